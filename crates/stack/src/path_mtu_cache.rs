//! Path MTU cache, filled from ICMP messages of routers.
//!
//! Datagrams have no acknowledgement from which their sender could learn, and IPv6 routers do not
//! fragment (RFC 8201). So the MTU in a message about a packet of any protocol is stored for its
//! destination. Over IPv6 datagrams, their fragments and echo replies keep to it; new TCP
//! connections do over both IP versions.

use std::net::IpAddr;

use crate::Nanos;
use crate::recent_flows::RecentFlows;

/// Paths remembered at a time, in 2 KiB. The one that would expire first is replaced, and is
/// learned again when it is used.
const MAX_PATHS: usize = 64;

/// Lifetime of an entry before a longer packet is tried (RFC 1191, section 6.3; RFC 8201, section
/// 4).
pub(crate) const PMTU_LIFETIME_NS: Nanos = 600_000_000_000;

/// Smallest MTU accepted from a message: Linux's default (min_pmtu), and RFC 8200, section 5.
pub(crate) const MIN_PMTU_V4: u16 = 552;
pub(crate) const MIN_PMTU_V6: u16 = 1_280;

/// Typical MTUs, used if the router does not report its own (RFC 1191, section 7).
const PLATEAUS: [u16; 7] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006];

/// Returns the MTU to use after a message with this MTU (0: none) about a packet of `packet` bytes.
pub(crate) fn plausible_mtu(reported: u32, packet: u16, v4: bool) -> u16 {
    let least = if v4 { MIN_PMTU_V4 } else { MIN_PMTU_V6 };
    let reported = match reported {
        0 => PLATEAUS.into_iter().find(|plateau| *plateau < packet),
        reported => Some(reported.min(u16::MAX.into()) as u16),
    };
    reported.unwrap_or(least).max(least)
}

/// Entry of the path MTU cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathMtu {
    to: IpAddr,
    /// Longest packet for this destination, in bytes.
    pub(crate) mtu: u16,
    pub(crate) expires_at: Nanos,
}

/// Path MTU cache of a stack.
pub(crate) struct PathMtuCache {
    entries: Vec<PathMtu>,
    /// Time when the first entry expires.
    next_expiry: Nanos,
    /// Pairs of datagrams that may have been too long, and of echo replies (with ports zero).
    /// Separate, so that echo requests evict no pairs of datagrams.
    pub(crate) datagrams: RecentFlows,
    pub(crate) echo_replies: RecentFlows,
}

impl PathMtuCache {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            entries: Vec::with_capacity(MAX_PATHS),
            next_expiry: Nanos::MAX,
            datagrams: RecentFlows::new(seed),
            echo_replies: RecentFlows::new(seed),
        }
    }

    /// Heap memory in bytes.
    pub(crate) const fn heap_bytes() -> usize {
        MAX_PATHS * size_of::<PathMtu>() + 2 * RecentFlows::heap_bytes()
    }

    /// Returns the entry of a destination; `None` if its path is not known to be smaller than the
    /// local link.
    pub(crate) fn get(&self, to: IpAddr) -> Option<PathMtu> {
        self.entries.iter().find(|path| path.to == to).copied()
    }

    /// Returns the longest packet that may leave unfragmented on a link with MTU `link_mtu`. Over
    /// IPv4 the path does not matter: routers fragment packets without DF, which this stack's
    /// datagrams do not set.
    pub(crate) fn packet_limit(&self, to: IpAddr, link_mtu: usize) -> usize {
        match to {
            IpAddr::V4(_) => link_mtu,
            IpAddr::V6(_) => self
                .get(to)
                .map_or(link_mtu, |path| link_mtu.min(path.mtu.into())),
        }
    }

    /// Records a path MTU; returns whether it is smaller than the known one.
    pub(crate) fn learn(&mut self, to: IpAddr, mtu: u16, now: Nanos) -> bool {
        let expires_at = now + PMTU_LIFETIME_NS;
        let is_new = match self.entries.iter_mut().find(|path| path.to == to) {
            // A larger value may belong to a packet sent earlier; only expiry increases the MTU.
            Some(entry) if entry.mtu <= mtu => false,
            Some(entry) => {
                (entry.mtu, entry.expires_at) = (mtu, expires_at);
                true
            }
            None => {
                if self.entries.len() == MAX_PATHS {
                    let entries = self.entries.iter().enumerate();
                    let oldest = entries.min_by_key(|(_, path)| path.expires_at);
                    let (oldest, _) = oldest.expect("a full list has a first");
                    self.entries.swap_remove(oldest);
                }
                self.entries.push(PathMtu {
                    to,
                    mtu,
                    expires_at,
                });
                true
            }
        };
        self.update_next_expiry();
        is_new
    }

    /// Returns whether an entry has expired.
    #[inline]
    pub(crate) const fn has_expired(&self, now: Nanos) -> bool {
        now >= self.next_expiry
    }

    /// Removes expired entries.
    pub(crate) fn remove_expired(&mut self, now: Nanos) {
        self.entries.retain(|path| path.expires_at > now);
        self.update_next_expiry();
    }

    fn update_next_expiry(&mut self) {
        let first = self.entries.iter().map(|path| path.expires_at).min();
        self.next_expiry = first.unwrap_or(Nanos::MAX);
    }

    /// Returns whether a router may report a packet of this length as too long. IPv4 routers
    /// fragment this stack's datagrams instead.
    #[inline]
    pub(crate) const fn may_exceed_path(bytes: usize, v4: bool) -> bool {
        !v4 && bytes > MIN_PMTU_V6 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn host(number: usize) -> IpAddr {
        std::net::Ipv6Addr::from(number as u128).into()
    }

    #[test]
    fn implausible_mtus_are_limited() {
        for (reported, packet, v4, expected) in [
            (1_400, 1_500, true, 1_400),
            (68, 1_500, true, 552),
            (1_400, 1_500, false, 1_400),
            (600, 1_500, false, 1_280),
            // Routers older than RFC 1191 send zero.
            (0, 1_500, true, 1_492),
            (0, 1_492, true, 1_006),
            (0, 900, true, 552),
            (70_000, 9_000, false, u16::MAX),
        ] {
            assert_eq!(
                plausible_mtu(reported, packet, v4),
                expected,
                "{reported} of {packet}"
            );
        }
    }

    #[test]
    fn only_expiry_increases_a_path_mtu() {
        let mut paths = PathMtuCache::new(1);
        for (mtu, at, is_new, expected_mtu) in [
            (1_400, 5, true, 1_400),
            (1_450, 6, false, 1_400),
            (1_400, 7, false, 1_400),
            (1_300, 8, true, 1_300),
        ] {
            assert_eq!(paths.learn(host(1), mtu, at * SECOND), is_new, "{mtu}");
            assert_eq!(paths.get(host(1)).unwrap().mtu, expected_mtu, "{mtu}");
        }
        assert_eq!(paths.next_expiry, 8 * SECOND + PMTU_LIFETIME_NS);
        assert_eq!(paths.packet_limit(host(1), 1_500), 1_300);
        assert_eq!(paths.packet_limit(host(2), 1_500), 1_500);
        assert_eq!(paths.packet_limit(host(1), 1_200), 1_200);
        // IPv4 datagrams are fragmented by routers.
        let v4 = std::net::Ipv4Addr::LOCALHOST.into();
        paths.learn(v4, 600, 9 * SECOND);
        assert_eq!(paths.packet_limit(v4, 1_500), 1_500);
    }

    #[test]
    fn the_cache_keeps_the_newest_paths() {
        let mut paths = PathMtuCache::new(1);
        let room = paths.entries.capacity();
        for number in 0..3 * MAX_PATHS {
            assert!(paths.learn(host(number), 1_300, number as u64 * SECOND));
        }
        // The newest entries are kept, and no more heap memory was taken.
        assert_eq!(
            (paths.entries.len(), paths.entries.capacity()),
            (MAX_PATHS, room)
        );
        let recent = 2 * RecentFlows::heap_bytes();
        assert_eq!(
            PathMtuCache::heap_bytes(),
            room * size_of::<PathMtu>() + recent
        );
        for number in 0..3 * MAX_PATHS {
            assert_eq!(paths.get(host(number)).is_some(), number >= 2 * MAX_PATHS);
        }
        assert_eq!(
            paths.next_expiry,
            2 * MAX_PATHS as u64 * SECOND + PMTU_LIFETIME_NS
        );
    }
}
