//! Path MTU cache, filled from ICMP messages of routers.
//!
//! Datagrams have no acknowledgement from which their sender could learn, and IPv6 routers do not
//! fragment (RFC 8201). So the MTU in a message about a packet of any protocol is stored for its
//! destination. Over IPv6 datagrams, their fragments and echo replies keep to it; new TCP
//! connections do over both IP versions.

use std::net::IpAddr;

use crate::Nanos;
use crate::link::Link;
use crate::recent_flows::Recent;

/// Paths remembered at a time, in 2 KiB. The one that would expire first is replaced, and is
/// learned again when it is used.
const PATHS: usize = 64;

/// Lifetime of an entry before a longer packet is tried (RFC 1191, section 6.3; RFC 8201, section
/// 4).
pub(crate) const HOLDS: Nanos = 600_000_000_000;

/// Smallest MTU accepted from a message: Linux's default (min_pmtu), and RFC 8200, section 5.
pub(crate) const LEAST_V4: u16 = 552;
pub(crate) const LEAST_V6: u16 = 1_280;

/// Typical MTUs, used if the router does not report its own (RFC 1191, section 7).
const PLATEAUS: [u16; 7] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006];

/// Returns the MTU to use after a message with this MTU (0: none) about a packet of `packet` bytes.
pub(crate) fn believed(told: u32, packet: u16, v4: bool) -> u16 {
    let least = if v4 { LEAST_V4 } else { LEAST_V6 };
    let told = match told {
        0 => PLATEAUS.into_iter().find(|plateau| *plateau < packet),
        told => Some(told.min(u16::MAX.into()) as u16),
    };
    told.unwrap_or(least).max(least)
}

/// Entry of the path MTU cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    to: IpAddr,
    /// Longest packet for this destination, in bytes.
    pub(crate) mtu: u16,
    pub(crate) until: Nanos,
}

/// Path MTU cache of a stack.
pub(crate) struct Paths {
    list: Vec<Path>,
    /// Time when the first entry expires.
    next: Nanos,
    /// Pairs of datagrams that may have been too long, and of echo replies (with ports zero).
    /// Separate, so that echo requests evict no pairs of datagrams.
    pub(crate) datagrams: Recent,
    pub(crate) answers: Recent,
}

impl Paths {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            list: Vec::with_capacity(PATHS),
            next: Nanos::MAX,
            datagrams: Recent::new(seed),
            answers: Recent::new(seed),
        }
    }

    /// Heap memory in bytes.
    pub(crate) const fn heap_bytes() -> usize {
        PATHS * size_of::<Path>() + 2 * Recent::heap_bytes()
    }

    /// Returns the entry of a destination; `None` if its path is not known to be smaller than the
    /// local link.
    pub(crate) fn of(&self, to: IpAddr) -> Option<Path> {
        self.list.iter().find(|path| path.to == to).copied()
    }

    /// Returns the longest packet that may leave unfragmented on a link with MTU `own`. Over IPv4
    /// the path does not matter: routers fragment packets without DF, which this stack's datagrams
    /// do not set.
    pub(crate) fn whole(&self, to: IpAddr, own: usize) -> usize {
        match to {
            IpAddr::V4(_) => own,
            IpAddr::V6(_) => self.of(to).map_or(own, |path| own.min(path.mtu.into())),
        }
    }

    /// Records a path MTU; returns whether it is smaller than the known one.
    fn learn(&mut self, to: IpAddr, mtu: u16, now: Nanos) -> bool {
        let until = now + HOLDS;
        let learnt = match self.list.iter_mut().find(|path| path.to == to) {
            // A larger value may belong to a packet sent earlier; only expiry increases the MTU.
            Some(known) if known.mtu <= mtu => false,
            Some(known) => {
                (known.mtu, known.until) = (mtu, until);
                true
            }
            None => {
                if self.list.len() == PATHS {
                    let ages = self.list.iter().enumerate();
                    let oldest = ages.min_by_key(|(_, path)| path.until);
                    let (oldest, _) = oldest.expect("a full list has a first");
                    self.list.swap_remove(oldest);
                }
                self.list.push(Path { to, mtu, until });
                true
            }
        };
        self.count_down();
        learnt
    }

    fn count_down(&mut self) {
        let first = self.list.iter().map(|path| path.until).min();
        self.next = first.unwrap_or(Nanos::MAX);
    }

    /// Returns whether a router may report a packet of this length as too long. IPv4 routers
    /// fragment this stack's datagrams instead.
    #[inline]
    pub(crate) const fn may_be_too_long(bytes: usize, v4: bool) -> bool {
        !v4 && bytes > LEAST_V6 as usize
    }
}

impl Link {
    /// Records that the path to a host has this MTU; returns whether that is new.
    pub(crate) fn learn_path(&mut self, to: IpAddr, mtu: u16) -> bool {
        let learnt = self.paths.learn(to, mtu, self.now);
        if learnt {
            // Prepared headers contain the limit of that destination.
            self.neighbors.changed();
        }
        learnt
    }

    /// Removes expired entries.
    #[inline]
    pub(crate) fn forget_paths(&mut self) {
        if self.now >= self.paths.next {
            self.forget_old_paths();
        }
    }

    #[cold]
    fn forget_old_paths(&mut self) {
        let now = self.now;
        self.paths.list.retain(|path| path.until > now);
        self.paths.count_down();
        self.neighbors.changed();
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
    fn routers_are_believed_within_reason() {
        for (told, packet, v4, believe) in [
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
            assert_eq!(believed(told, packet, v4), believe, "{told} of {packet}");
        }
    }

    #[test]
    fn a_path_gets_smaller_by_what_is_said_and_larger_by_time_alone() {
        let mut paths = Paths::new(1);
        for (mtu, at, news, known) in [
            (1_400, 5, true, 1_400),
            (1_450, 6, false, 1_400),
            (1_400, 7, false, 1_400),
            (1_300, 8, true, 1_300),
        ] {
            assert_eq!(paths.learn(host(1), mtu, at * SECOND), news, "{mtu}");
            assert_eq!(paths.of(host(1)).unwrap().mtu, known, "{mtu}");
        }
        assert_eq!(paths.next, 8 * SECOND + HOLDS);
        assert_eq!(paths.whole(host(1), 1_500), 1_300);
        assert_eq!(paths.whole(host(2), 1_500), 1_500);
        assert_eq!(paths.whole(host(1), 1_200), 1_200);
        // IPv4 datagrams are fragmented by routers.
        let v4 = std::net::Ipv4Addr::LOCALHOST.into();
        paths.learn(v4, 600, 9 * SECOND);
        assert_eq!(paths.whole(v4, 1_500), 1_500);
    }

    #[test]
    fn as_many_as_there_is_room_for_are_remembered() {
        let mut paths = Paths::new(1);
        let room = paths.list.capacity();
        for number in 0..3 * PATHS {
            assert!(paths.learn(host(number), 1_300, number as u64 * SECOND));
        }
        // The newest entries are kept, and no more heap memory was taken.
        assert_eq!((paths.list.len(), paths.list.capacity()), (PATHS, room));
        let recent = 2 * Recent::heap_bytes();
        assert_eq!(Paths::heap_bytes(), room * size_of::<Path>() + recent);
        for number in 0..3 * PATHS {
            assert_eq!(paths.of(host(number)).is_some(), number >= 2 * PATHS);
        }
        assert_eq!(paths.next, 2 * PATHS as u64 * SECOND + HOLDS);
    }
}
