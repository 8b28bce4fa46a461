//! Identification numbers of IP packets, which distinguish fragments of different packets (RFC 791;
//! RFC 8200, section 4.5).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Generator of identification numbers: one counter for all destinations, with a secret offset for
/// each address pair. No number repeats soon, and a host that sees the numbers of one path cannot
/// guess those of another to disturb reassembly (RFC 7739; RFC 6864, section 5.3).
pub(crate) struct IpIdGenerator {
    secret: u64,
    v4: u16,
    v6: u32,
}

impl IpIdGenerator {
    pub(crate) fn new(secret: u64) -> Self {
        Self {
            secret,
            v4: 0,
            v6: 0,
        }
    }

    /// Returns the secret offset of an address pair.
    pub(crate) fn pair_offset(&self, from: IpAddr, to: IpAddr) -> u32 {
        // SipHash: the key of the hash tables' fast function could be computed back from its
        // results.
        let mut hasher = DefaultHasher::new();
        (self.secret, from, to).hash(&mut hasher);
        hasher.finish() as u32
    }

    /// Returns the next IPv4 number for a known offset.
    #[inline]
    pub(crate) fn next_from(&mut self, offset: u16) -> u16 {
        self.v4 = self.v4.wrapping_add(1);
        offset.wrapping_add(self.v4)
    }

    /// Returns the next number for an address pair; IPv4 uses the lower half.
    pub(crate) fn next(&mut self, from: IpAddr, to: IpAddr) -> u32 {
        let offset = self.pair_offset(from, to);
        match to {
            IpAddr::V4(_) => self.next_from(offset as u16).into(),
            IpAddr::V6(_) => {
                self.v6 = self.v6.wrapping_add(1);
                offset.wrapping_add(self.v6)
            }
        }
    }
}
