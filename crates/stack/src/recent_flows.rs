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
const SLOTS: usize = 256;

/// Set of address and port pairs, as hashes with a secret key; zero is a free slot.
pub(crate) struct RecentFlows {
    hashes: Vec<u32>,
    seed: u64,
}

impl RecentFlows {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            hashes: vec![0; SLOTS],
            seed,
        }
    }

    /// Heap memory in bytes.
    pub(crate) const fn heap_bytes() -> usize {
        SLOTS * size_of::<u32>()
    }

    /// Returns the hash of a pair.
    pub(crate) fn flow_hash(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        pair_hash(self.seed, local, remote).max(1)
    }

    /// Adds the pair with this hash.
    #[inline]
    pub(crate) fn insert(&mut self, flow_hash: u32) {
        self.hashes[flow_hash as usize % SLOTS] = flow_hash;
    }

    /// Returns whether a packet was sent recently between these addresses and ports.
    pub(crate) fn contains(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let flow_hash = self.flow_hash(local, remote);
        self.hashes[flow_hash as usize % SLOTS] == flow_hash
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
    fn flows_that_were_not_recorded_do_not_match() {
        let mut recent = RecentFlows::new(0x1234_5678_9abc_def1);
        let local = host(1, 7);
        for number in 0..4 * SLOTS as u16 {
            recent.insert(recent.flow_hash(local, host(number, 9)));
        }
        // The last pair of each slot is still there, the most recent one included.
        let is_remembered = |number: &u16| recent.contains(local, host(*number, 9));
        assert!((0..4 * SLOTS as u16).filter(is_remembered).count() > SLOTS / 2);
        assert!(is_remembered(&(4 * SLOTS as u16 - 1)));
        let other_ports = (0..u16::MAX).filter(|port| *port != 9);
        for port in other_ports {
            assert!(!recent.contains(local, host(port % 1_000, port)), "{port}");
            assert!(!recent.contains(host(1, port), host(1_000, 9)) || port == 7);
        }
    }
}
