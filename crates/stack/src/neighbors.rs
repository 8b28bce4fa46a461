//! Neighbour cache: Ethernet addresses of hosts on the link (ARP, RFC 826; neighbour discovery, RFC
//! 4861).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use linerate_sys::frames::frame::Frame;

use crate::Nanos;
use crate::index_table::{IndexTable, hash};
use crate::prefault;

/// Time between two requests to the same neighbour (RFC 1122, section 2.3.2.1).
const REQUEST_INTERVAL_NS: Nanos = 1_000_000_000;
/// Requests without a reply after which a neighbour is given up (RFC 4861, MAX_UNICAST_SOLICIT).
const MAX_REQUESTS: u8 = 3;
/// Age after which an address is requested again, while the old one is still used (RFC 1122).
const REACHABLE_TIME_NS: Nanos = 60_000_000_000;
/// Interval of the check for neighbours that have not replied.
const CHECK_INTERVAL_NS: Nanos = 250_000_000;
/// Frames that may wait for replies of neighbours, in all.
pub(crate) const MAX_WAITING_FRAMES: usize = 64;
/// Limit for one neighbour: this many times the number of free places (RFC 4861, section 7.2.2: a
/// small number). That is 48 of 64, so that a datagram of 64 KiB, in 45 fragments of Ethernet's
/// length, fits, and 16 are left for other neighbours.
const MAX_SHARE_OF_FREE: usize = 3;
/// Places that replies leave free for packets of sockets.
const RESERVED_FOR_SOCKETS: usize = MAX_WAITING_FRAMES / 2;
/// Interval in which one neighbour without local senders may replace one that sockets send to.
const DISPLACE_INTERVAL_NS: Nanos = 1_000_000_000;
/// Number of announcements of each local address (RFC 5227, ANNOUNCE_NUM), and the time between
/// them (ANNOUNCE_INTERVAL); within the limits of RFC 4861, MAX_NEIGHBOR_ADVERTISEMENT and
/// RetransTimer.
const ANNOUNCE_ROUNDS: u8 = 2;
const ANNOUNCE_INTERVAL_NS: Nanos = 2_000_000_000;

/// Entry of the neighbour cache.
struct NeighborEntry {
    address: IpAddr,
    ethernet: Option<[u8; 6]>,
    /// Time of the last confirmation; `None`: to be confirmed at its next use.
    confirmed_at: Option<Nanos>,
    /// Time of the last request; `tries` counts those without a reply. Without an address and with
    /// no tries it was given up.
    requested_at: Nanos,
    requests: u8,
    used_at: Nanos,
    /// Sockets send to it, or have sent. Other entries are known from their requests, or received
    /// replies.
    is_destination: bool,
}

impl NeighborEntry {
    /// Returns whether its address is so old that it must be confirmed again.
    fn is_stale(&self, now: Nanos) -> bool {
        self.ethernet.is_some()
            && self
                .confirmed_at
                .is_none_or(|then| now >= then + REACHABLE_TIME_NS)
    }

    /// Returns the eviction rank; the lowest is evicted. First neighbours that no socket sends to,
    /// then those without an address (unless requested just now for a socket), then the least
    /// recently used.
    fn eviction_rank(&self, now: Nanos) -> (bool, bool, Nanos) {
        let is_requested = self.is_destination
            && self.requests > 0
            && now < self.requested_at + REQUEST_INTERVAL_NS;
        (
            self.is_destination,
            self.ethernet.is_some() || is_requested,
            self.used_at,
        )
    }
}

/// Content of a neighbour advertisement (RFC 4861, section 4.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertisement {
    pub(crate) ethernet: Option<[u8; 6]>,
    /// Reply to a solicitation, so the neighbour receives our packets.
    pub(crate) is_solicited: bool,
    /// Replaces a known address.
    pub(crate) is_override: bool,
}

/// Result of a look-up.
pub(crate) enum Resolution {
    Usable([u8; 6]),
    /// Known, but stale: the caller sends a request and uses the address meanwhile.
    Stale([u8; 6]),
    /// Unknown: the caller sends a request.
    Unrequested,
    /// Unknown, and requested already.
    Requested,
}

/// Datagram that waited for a neighbour which did not reply.
pub(crate) struct UndeliveredDatagram {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) hop: IpAddr,
}

/// Neighbour cache of a stack, with the frames that wait for replies.
pub(crate) struct NeighborCache {
    entries: Vec<NeighborEntry>,
    limit: usize,
    /// Number of entries that sockets send to.
    destinations: usize,
    table: IndexTable,
    seed: u64,
    waiting: VecDeque<(IpAddr, Frame)>,
    /// Waiting frames to be released or dropped: those at the front of `waiting`.
    ready_frames: usize,
    /// Changes with every change of an address, so that holders of a copy notice.
    epoch: u32,
    next_check: Nanos,
    /// Position of the current check in `entries`.
    check_position: usize,
    /// Time from which an entry that sockets send to may be replaced again by one without.
    displace_allowed_at: Nanos,
    announce: AnnounceProgress,
}

/// Progress of the announcements after start.
#[derive(Clone, Copy, Default)]
struct AnnounceProgress {
    /// Completed rounds over all addresses, and addresses announced in the current round.
    rounds: u8,
    addresses: usize,
    next_at: Nanos,
}

fn hash_of(seed: u64, address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => hash(seed, &[u64::from(u32::from(address))]),
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            hash(seed, &[bits as u64, (bits >> 64) as u64])
        }
    }
}

impl NeighborCache {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            entries: prefault::with_capacity(limit),
            limit,
            destinations: 0,
            table: IndexTable::new(limit),
            seed,
            waiting: VecDeque::with_capacity(MAX_WAITING_FRAMES),
            ready_frames: 0,
            epoch: 1,
            next_check: 0,
            check_position: 0,
            displace_allowed_at: 0,
            announce: AnnounceProgress::default(),
        }
    }

    /// Returns the heap memory of a cache of this size, in bytes.
    pub(crate) const fn heap_bytes(limit: usize) -> usize {
        limit * size_of::<NeighborEntry>()
            + IndexTable::slots_for(limit) * size_of::<u32>()
            + MAX_WAITING_FRAMES * size_of::<(IpAddr, Frame)>()
    }

    /// Invalidates all copies of addresses. Zero is reserved for "never".
    pub(crate) fn bump_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1).max(1);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let position = self.table.find(hash_of(self.seed, address), |index| {
            self.entries[index as usize].address == address
        });
        position.map(|index| index as usize)
    }

    /// Looks up a neighbour. If the result is `Stale` or `Unrequested`, the caller sends a request.
    /// `is_destination`: a socket sends to it, and not only a reply is sent.
    pub(crate) fn resolve(
        &mut self,
        address: IpAddr,
        now: Nanos,
        is_destination: bool,
    ) -> Resolution {
        let at = self.find(address);
        let Some(at) = at.or_else(|| self.add(address, now, is_destination)) else {
            return Resolution::Requested;
        };
        let neighbor = &mut self.entries[at];
        neighbor.used_at = now;
        if is_destination && !std::mem::replace(&mut neighbor.is_destination, true) {
            self.destinations += 1;
        }
        let may_request =
            neighbor.requests == 0 || now >= neighbor.requested_at + REQUEST_INTERVAL_NS;
        match neighbor.ethernet {
            Some(ethernet) if neighbor.is_stale(now) && may_request => {
                neighbor.requested_at = now;
                neighbor.requests = neighbor.requests.saturating_add(1);
                Resolution::Stale(ethernet)
            }
            Some(ethernet) => Resolution::Usable(ethernet),
            None if may_request => {
                neighbor.requested_at = now;
                neighbor.requests = neighbor.requests.saturating_add(1);
                Resolution::Unrequested
            }
            None => Resolution::Requested,
        }
    }

    /// Adds an entry without an address and evicts the lowest-ranked one. An entry without local
    /// senders replaces one with local senders only once in a while: packets from invented
    /// addresses evict no active neighbour, and cause no searches.
    fn add(&mut self, address: IpAddr, now: Nanos, is_destination: bool) -> Option<usize> {
        let neighbor = NeighborEntry {
            address,
            ethernet: None,
            confirmed_at: None,
            requested_at: 0,
            requests: 0,
            used_at: now,
            is_destination,
        };
        let at = if self.entries.len() < self.limit {
            self.entries.push(neighbor);
            self.entries.len() - 1
        } else {
            if !is_destination && self.destinations == self.limit {
                if now < self.displace_allowed_at {
                    return None;
                }
                self.displace_allowed_at = now + DISPLACE_INTERVAL_NS;
            }
            let worth = |&at: &usize| self.entries[at].eviction_rank(now);
            let at = (0..self.entries.len()).min_by_key(worth)?;
            self.remove_from_table(at);
            self.entries[at] = neighbor;
            at
        };
        self.destinations += usize::from(is_destination);
        self.table.insert(hash_of(self.seed, address), at as u32);
        Some(at)
    }

    /// Removes an entry from the table; its slot stays.
    fn remove_from_table(&mut self, at: usize) {
        let seed = self.seed;
        let (table, list) = (&mut self.table, &self.entries);
        table.remove(hash_of(seed, list[at].address), at as u32, |other_index| {
            hash_of(seed, list[other_index as usize].address)
        });
        // Copies exist only of entries that sockets send to.
        let was_destination = list[at].is_destination;
        if was_destination && list[at].ethernet.is_some() {
            self.bump_epoch();
        }
        self.destinations -= usize::from(was_destination);
        // Frames that wait for it would never be released.
        self.ready_frames = self.waiting.len();
    }

    /// Records a confirmed address. An unknown neighbour is added only if `may_add` is set.
    pub(crate) fn learn(&mut self, address: IpAddr, ethernet: [u8; 6], may_add: bool, now: Nanos) {
        let Some(at) = self.find_or_add(address, may_add, now) else {
            return;
        };
        let neighbor = &mut self.entries[at];
        neighbor.confirmed_at = Some(now);
        neighbor.requests = 0;
        self.set_ethernet(at, ethernet);
    }

    fn find_or_add(&mut self, address: IpAddr, may_add: bool, now: Nanos) -> Option<usize> {
        let at = self.find(address);
        at.or_else(|| may_add.then(|| self.add(address, now, false)).flatten())
    }

    /// Sets the address of an entry.
    fn set_ethernet(&mut self, at: usize, ethernet: [u8; 6]) {
        let neighbor = &mut self.entries[at];
        let before = neighbor.ethernet.replace(ethernet);
        // Copies exist only of addresses that were known.
        if neighbor.is_destination && before.is_some_and(|before| before != ethernet) {
            self.bump_epoch();
        }
        self.ready_frames = self.waiting.len();
    }

    /// Records the sender of a solicitation. Reachability in the other direction is unconfirmed: a
    /// new address is verified at its next use, and a known one changes nothing (RFC 4861, section
    /// 7.2.3).
    pub(crate) fn learn_from_solicitation(
        &mut self,
        address: IpAddr,
        ethernet: [u8; 6],
        now: Nanos,
    ) {
        let Some(at) = self.find_or_add(address, true, now) else {
            return;
        };
        let neighbor = &mut self.entries[at];
        if neighbor.ethernet != Some(ethernet) {
            (neighbor.confirmed_at, neighbor.requests) = (None, 0);
            self.set_ethernet(at, ethernet);
        }
    }

    /// Applies an advertisement to a known neighbour (RFC 4861, section 7.2.5).
    pub(crate) fn apply_advertisement(
        &mut self,
        address: IpAddr,
        advertisement: Advertisement,
        now: Nanos,
    ) {
        let Some(at) = self.find(address) else {
            return;
        };
        let neighbor = &mut self.entries[at];
        let ethernet = match (neighbor.ethernet, advertisement.ethernet) {
            (None, None) => return,
            // A different address without the override flag: a request will show which one is
            // right.
            (Some(known_ethernet), Some(other_ethernet))
                if known_ethernet != other_ethernet && !advertisement.is_override =>
            {
                neighbor.confirmed_at = None;
                return;
            }
            (known_ethernet, advertisement) => advertisement.or(known_ethernet),
        };
        let is_new = neighbor.ethernet != ethernet;
        neighbor.ethernet = ethernet;
        if advertisement.is_solicited {
            (neighbor.confirmed_at, neighbor.requests) = (Some(now), 0);
        } else if is_new {
            (neighbor.confirmed_at, neighbor.requests) = (None, 0);
        }
        if is_new {
            // As in `remove_from_table`: copies exist only of entries that sockets send to.
            if neighbor.is_destination {
                self.bump_epoch();
            }
            self.ready_frames = self.waiting.len();
        }
    }

    /// Keeps a frame until a neighbour has replied; returns it if there is no place. `is_reply`: it
    /// is a reply.
    pub(crate) fn hold_frame(
        &mut self,
        hop: IpAddr,
        frame: Frame,
        is_reply: bool,
    ) -> Result<(), Frame> {
        let free = MAX_WAITING_FRAMES - self.waiting.len();
        let reserved = if is_reply { RESERVED_FOR_SOCKETS } else { 0 };
        let same_hop = self
            .waiting
            .iter()
            .filter(|(waiting_hop, _)| *waiting_hop == hop);
        if free <= reserved
            || same_hop.count() >= MAX_SHARE_OF_FREE * free
            || self.find(hop).is_none()
        {
            return Err(frame);
        }
        self.waiting.push_back((hop, frame));
        Ok(())
    }

    /// Returns the next frame to be released, its neighbour, and that one's Ethernet address;
    /// without an address the frame is lost.
    pub(crate) fn pop_ready(&mut self) -> Option<(Frame, IpAddr, Option<[u8; 6]>)> {
        while self.ready_frames > 0 {
            self.ready_frames -= 1;
            let (hop, frame) = self.waiting.pop_front()?;
            match self.find(hop).map(|at| &self.entries[at]) {
                Some(neighbor) if neighbor.ethernet.is_some() => {
                    return Some((frame, hop, neighbor.ethernet));
                }
                // Still requested: the frame moves to the end of the queue, as will those behind
                // it.
                Some(neighbor) if neighbor.requests > 0 => {
                    self.waiting.push_back((hop, frame));
                }
                _ => return Some((frame, hop, None)),
            }
        }
        None
    }

    /// Returns the next neighbour to be requested again; the check continues behind it in the next
    /// call.
    pub(crate) fn next_to_request(&mut self, now: Nanos) -> Option<IpAddr> {
        if now < self.next_check || self.entries.is_empty() {
            return None;
        }
        while let Some(neighbor) = self.entries.get_mut(self.check_position) {
            self.check_position += 1;
            // Senders keep a copy of the address and do not look it up here.
            let stale = neighbor.is_destination && neighbor.is_stale(now);
            if (neighbor.requests == 0 && !stale)
                || now < neighbor.requested_at + REQUEST_INTERVAL_NS
            {
                continue;
            }
            if neighbor.requests < MAX_REQUESTS {
                neighbor.requests += 1;
                neighbor.requested_at = now;
                return Some(neighbor.address);
            }
            // No reply: frames that wait for it are lost, and the next packet starts over.
            (neighbor.ethernet, neighbor.requests) = (None, 0);
            if neighbor.is_destination {
                self.bump_epoch();
            }
            self.ready_frames = self.waiting.len();
        }
        self.check_position = 0;
        self.next_check = now + CHECK_INTERVAL_NS;
        None
    }

    /// Returns when [`NeighborCache::next_to_request`] or an announcement has work; `None` while no
    /// reply is outstanding.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let is_waiting = |neighbor: &NeighborEntry| (1..=MAX_REQUESTS).contains(&neighbor.requests);
        let waiting = self.entries.iter().filter(|neighbor| is_waiting(neighbor));
        let first_retry = waiting
            .map(|neighbor| neighbor.requested_at + REQUEST_INTERVAL_NS)
            .min();
        let next_request = first_retry.map(|first_retry| first_retry.max(self.next_check));
        let announcing = &self.announce;
        let next_announcement = (announcing.rounds < ANNOUNCE_ROUNDS).then_some(announcing.next_at);
        next_request.into_iter().chain(next_announcement).min()
    }

    /// Returns whether a local address is to be announced now.
    #[inline]
    pub(crate) fn is_announcement_due(&self, now: Nanos) -> bool {
        self.announce.rounds < ANNOUNCE_ROUNDS && now >= self.announce.next_at
    }

    /// Records the announcement of one of `count` local addresses and returns its index.
    pub(crate) fn advance_announcement(&mut self, count: usize, now: Nanos) -> usize {
        let announcing = &mut self.announce;
        let at = announcing.addresses;
        announcing.addresses += 1;
        if announcing.addresses == count {
            *announcing = AnnounceProgress {
                rounds: announcing.rounds + 1,
                addresses: 0,
                next_at: now + ANNOUNCE_INTERVAL_NS,
            };
        }
        at
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Frame> + '_ {
        self.waiting.drain(..).map(|(_, frame)| frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const NEW: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Table of RFC 4861, section 7.2.5: known address, advertisement, address used then, and
    /// whether it is verified.
    #[test]
    fn an_advertisement_changes_what_its_flags_say() {
        let address: IpAddr = "fd00::9".parse().unwrap();
        for (known_ethernet, ethernet, solicited, overrides, expected_ethernet, expects_request) in [
            // Unknown before.
            (None, None, true, true, None, false),
            (None, Some(NEW), true, false, Some(NEW), false),
            (None, Some(NEW), false, false, Some(NEW), true),
            // Unchanged address.
            (Some(OLD), Some(OLD), false, false, Some(OLD), false),
            (Some(OLD), None, true, false, Some(OLD), false),
            // A different address without the override flag.
            (Some(OLD), Some(NEW), true, false, Some(OLD), true),
            (Some(OLD), Some(NEW), false, false, Some(OLD), true),
            // A different address with the override flag.
            (Some(OLD), Some(NEW), true, true, Some(NEW), false),
            (Some(OLD), Some(NEW), false, true, Some(NEW), true),
        ] {
            let advertisement = Advertisement {
                ethernet,
                is_solicited: solicited,
                is_override: overrides,
            };
            let mut neighbors = NeighborCache::new(4, 1);
            match known_ethernet {
                Some(known_ethernet) => neighbors.learn(address, known_ethernet, true, 0),
                None => drop(neighbors.resolve(address, 0, true)),
            }
            neighbors.apply_advertisement(address, advertisement, 10);
            let (ethernet_used, renews) =
                match neighbors.resolve(address, REQUEST_INTERVAL_NS, true) {
                    Resolution::Usable(ethernet) => (Some(ethernet), false),
                    Resolution::Stale(ethernet) => (Some(ethernet), true),
                    Resolution::Unrequested | Resolution::Requested => (None, false),
                };
            assert_eq!(
                (ethernet_used, renews),
                (expected_ethernet, expects_request),
                "{known_ethernet:?} {advertisement:?}"
            );
        }
        // Advertisements of unknown neighbours are ignored.
        let mut neighbors = NeighborCache::new(4, 1);
        let advertisement = Advertisement {
            ethernet: Some(NEW),
            is_solicited: false,
            is_override: true,
        };
        neighbors.apply_advertisement(address, advertisement, 10);
        assert!(neighbors.find(address).is_none());
    }

    /// Returns the address of a host by number.
    fn host(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    /// Neighbours without an address are evicted before those with one, however recently they were
    /// used.
    #[test]
    fn neighbors_without_an_address_are_evicted_first() {
        for is_destination in [false, true] {
            let mut neighbors = NeighborCache::new(4, 1);
            for number in 0..2 {
                neighbors.learn(host(number), OLD, true, 0);
                let _ = neighbors.resolve(host(number), 1, is_destination);
            }
            for number in 10..30 {
                let now = (number + 1) as Nanos * 2 * REQUEST_INTERVAL_NS;
                let resolution = neighbors.resolve(host(number), now, is_destination);
                assert!(matches!(resolution, Resolution::Unrequested));
            }
            let is_cached = |number: &u32| neighbors.find(host(*number)).is_some();
            let cached: Vec<u32> = (0..30).filter(is_cached).collect();
            assert_eq!(cached, [0, 1, 28, 29], "sent to: {is_destination}");
        }
        // Two destinations used alternately do not evict each other before they can have replied.
        let mut neighbors = NeighborCache::new(2, 1);
        for number in 0..2 {
            let _ = neighbors.resolve(host(number), 0, true);
            neighbors.learn(host(number), OLD, true, 0);
        }
        let now = 5 * REQUEST_INTERVAL_NS;
        let resolution = |neighbors: &mut NeighborCache, number| {
            matches!(
                neighbors.resolve(host(number), now, true),
                Resolution::Unrequested
            )
        };
        let first = [8, 9, 8, 9].map(|number| resolution(&mut neighbors, number));
        assert_eq!(first, [true, true, false, false]);
    }

    fn look_up(neighbors: &mut NeighborCache, address: IpAddr) -> (Option<[u8; 6]>, bool) {
        match neighbors.resolve(address, REQUEST_INTERVAL_NS, true) {
            Resolution::Usable(ethernet) => (Some(ethernet), false),
            Resolution::Stale(ethernet) => (Some(ethernet), true),
            Resolution::Unrequested | Resolution::Requested => (None, false),
        }
    }

    /// RFC 4861, section 7.2.3: address used afterwards, and whether it is verified.
    #[test]
    fn a_solicitation_does_not_confirm_reachability() {
        let address: IpAddr = "fd00::9".parse().unwrap();
        for (known_ethernet, used, expects_request) in [
            (None, NEW, true),
            (Some(OLD), NEW, true),
            (Some(NEW), NEW, false),
        ] {
            let mut neighbors = NeighborCache::new(4, 1);
            if let Some(known_ethernet) = known_ethernet {
                neighbors.learn(address, known_ethernet, true, 0);
            }
            neighbors.learn_from_solicitation(address, NEW, 10);
            // No socket sends to it: no request is due.
            assert_eq!(neighbors.next_to_request(2 * REQUEST_INTERVAL_NS), None);
            let looked_up = look_up(&mut neighbors, address);
            assert_eq!(
                looked_up,
                (Some(used), expects_request),
                "{known_ethernet:?}"
            );
        }
    }

    /// A flood from many invented addresses evicts no neighbour that sockets send to, and
    /// invalidates no headers.
    #[test]
    fn a_flood_evicts_no_active_neighbor() {
        let mut neighbors = NeighborCache::new(8, 1);
        for number in 0..8 {
            neighbors.learn(host(number), OLD, true, 0);
        }
        for number in 0..4 {
            assert_eq!(look_up(&mut neighbors, host(number)), (Some(OLD), false));
        }
        for number in 100..200 {
            neighbors.learn(host(number), NEW, true, 2 * REQUEST_INTERVAL_NS);
        }
        let is_cached = |number: &u32| neighbors.find(host(*number)).is_some();
        assert_eq!((0..8).filter(is_cached).count(), 4);
        assert_eq!((100..200).filter(is_cached).count(), 4);
        // If sockets send to all entries, one per second is replaced.
        for number in 0..8 {
            let _ = look_up(&mut neighbors, host(number));
        }
        let epoch = neighbors.epoch();
        for number in 200..300 {
            neighbors.learn(host(number), NEW, true, 3 * REQUEST_INTERVAL_NS);
        }
        let is_cached = |number: &u32| neighbors.find(host(*number)).is_some();
        assert_eq!((0..8).filter(is_cached).count(), 7);
        assert!(neighbors.epoch() - epoch <= 1);
        // A new destination takes the place of the entry without senders.
        let _ = look_up(&mut neighbors, host(400));
        let destinations = neighbors
            .entries
            .iter()
            .filter(|neighbor| neighbor.is_destination);
        assert_eq!((destinations.count(), neighbors.destinations), (8, 8));
    }
}
