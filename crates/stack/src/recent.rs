//! Whom long packets went to lately.
//!
//! Anybody can say that a packet is too long for a link, and one that is not a segment of TCP has no number that only who
//! saw it knows (RFC 8201, section 6). So it is heard of ends between which something left that may be too long, and whoever
//! makes ends up hits none of those.

use std::net::SocketAddr;

use crate::table::pair_hash;

/// Ends that are remembered at a time. What is said of a packet comes a round trip behind it, and by then as many others
/// have seldom left; where they have, the next packet is told of, too.
const PLACES: usize = 256;

/// The ends of packets, as hashes of which nobody outside knows the key; zero is a free place.
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

    /// Bytes from the heap.
    pub(crate) const fn heap_bytes() -> usize {
        PLACES * size_of::<u32>()
    }

    /// What these ends are remembered as.
    pub(crate) fn name(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        pair_hash(self.seed, local, remote).max(1)
    }

    /// Something leaves between the ends of this name.
    #[inline]
    pub(crate) fn add(&mut self, name: u32) {
        self.hashes[name as usize % PLACES] = name;
    }

    /// Whether something left between these ends lately.
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
        // The last of each place, among them the very last.
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
