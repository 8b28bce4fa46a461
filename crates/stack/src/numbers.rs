//! Numbers of packets: what tells the fragments of one from those of another (RFC 791; RFC 8200, section 4.5).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Numbers that are counted for all hosts together, from another place for each two of them: none comes again soon, and
/// who sees those of one way cannot guess those of another, to spoil what is put together at its end (RFC 7739;
/// RFC 6864, section 5.3).
pub(crate) struct Numbers {
    secret: u64,
    v4: u16,
    v6: u32,
}

impl Numbers {
    pub(crate) fn new(secret: u64) -> Self {
        Self {
            secret,
            v4: 0,
            v6: 0,
        }
    }

    /// The place between two hosts.
    pub(crate) fn place(&self, from: IpAddr, to: IpAddr) -> u32 {
        // Of this kind (SipHash), as from the quick one of the tables its key could be reckoned back.
        let mut hasher = DefaultHasher::new();
        (self.secret, from, to).hash(&mut hasher);
        hasher.finish() as u32
    }

    /// The number of the next packet of IPv4, from a place that is known.
    #[inline]
    pub(crate) fn next_from(&mut self, place: u16) -> u16 {
        self.v4 = self.v4.wrapping_add(1);
        place.wrapping_add(self.v4)
    }

    /// The number of the next packet between two hosts; of IPv4 its lower half counts.
    pub(crate) fn next(&mut self, from: IpAddr, to: IpAddr) -> u32 {
        let place = self.place(from, to);
        match to {
            IpAddr::V4(_) => self.next_from(place as u16).into(),
            IpAddr::V6(_) => {
                self.v6 = self.v6.wrapping_add(1);
                place.wrapping_add(self.v6)
            }
        }
    }
}
