//! Destinations of recent long packets.
//!
//! Any host can send a Packet Too Big message, and only TCP segments contain a number that an
//! off-path attacker cannot guess (RFC 8201, section 6). So a message about another packet is
//! accepted only if a packet that may have been too long was sent recently between the quoted
//! addresses and ports; invented ones do not match.

use std::net::SocketAddr;

use crate::index_table::pair_hash;

/// Pairs remembered at a time. A message arrives one round trip after the packet, and seldom have
/// as many others been sent by then; if they have, the next packet causes another message.
const PLACES: usize = 256;

/// Set of address and port pairs, as hashes with a secret key; zero is a free slot.
pub(crate) struct Recent {
    hashes: Vec<u32>,
    seed: u64,
}

impl Recent {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            hashes: vec![0; PLACES],
            seed,
        }
    }

    /// Heap memory in bytes.
    pub(crate) const fn heap_bytes() -> usize {
        PLACES * size_of::<u32>()
    }

    /// Returns the hash of a pair.
    pub(crate) fn name(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        pair_hash(self.seed, local, remote).max(1)
    }

    /// Adds the pair with this hash.
    #[inline]
    pub(crate) fn add(&mut self, name: u32) {
        self.hashes[name as usize % PLACES] = name;
    }

    /// Returns whether a packet was sent recently between these addresses and ports.
    pub(crate) fn has(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let name = self.name(local, remote);
        self.hashes[name as usize % PLACES] == name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u16, port: u16) -> SocketAddr {
        let address = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number);
        SocketAddr::new(address.into(), port)
    }

    #[test]
    fn ends_that_were_not_spoken_between_are_not_hit() {
        let mut recent = Recent::new(0x1234_5678_9abc_def1);
        let own = host(1, 7);
        for number in 0..4 * PLACES as u16 {
            recent.add(recent.name(own, host(number, 9)));
        }
        // The last pair of each slot is still there, the most recent one included.
        let is_known = |number: &u16| recent.has(own, host(*number, 9));
        assert!((0..4 * PLACES as u16).filter(is_known).count() > PLACES / 2);
        assert!(is_known(&(4 * PLACES as u16 - 1)));
        let others = (0..u16::MAX).filter(|port| *port != 9);
        for port in others {
            assert!(!recent.has(own, host(port % 1_000, port)), "{port}");
            assert!(!recent.has(host(1, port), host(1_000, 9)) || port == 7);
        }
    }
}
