//! Neighbour cache: Ethernet addresses of hosts on the link (ARP, RFC 826; neighbour discovery, RFC
//! 4861).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use linerate_port::Frame;

use crate::Nanos;
use crate::index_table::{Table, hash};
use crate::prefault;

/// Time between two requests to the same neighbour (RFC 1122, section 2.3.2.1).
const ASK_EVERY: Nanos = 1_000_000_000;
/// Requests without a reply after which a neighbour is given up (RFC 4861, MAX_UNICAST_SOLICIT).
const TRIES: u8 = 3;
/// Age after which an address is requested again, while the old one is still used (RFC 1122).
const FRESH: Nanos = 60_000_000_000;
/// Interval of the check for neighbours that have not replied.
const CHECK_EVERY: Nanos = 250_000_000;
/// Frames that may wait for replies of neighbours, in all.
pub(crate) const WAITING: usize = 64;
/// Limit for one neighbour: this many times the number of free places (RFC 4861, section 7.2.2: a
/// small number). That is 48 of 64, so that a datagram of 64 KiB, in 45 fragments of Ethernet's
/// length, fits, and 16 are left for other neighbours.
const SHARE: usize = 3;
/// Places that replies leave free for packets of sockets.
const KEPT_FROM_ANSWERS: usize = WAITING / 2;
/// Interval in which one neighbour without local senders may replace one that sockets send to.
const DISPLACE_EVERY: Nanos = 1_000_000_000;
/// Number of announcements of each local address (RFC 5227, ANNOUNCE_NUM), and the time between
/// them (ANNOUNCE_INTERVAL); within the limits of RFC 4861, MAX_NEIGHBOR_ADVERTISEMENT and
/// RetransTimer.
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_EVERY: Nanos = 2_000_000_000;

/// Entry of the neighbour cache.
struct Neighbor {
    address: IpAddr,
    ethernet: Option<[u8; 6]>,
    /// Time of the last confirmation; `None`: to be confirmed at its next use.
    confirmed: Option<Nanos>,
    /// Time of the last request; `tries` counts those without a reply. Without an address and with
    /// no tries it was given up.
    asked: Nanos,
    tries: u8,
    used: Nanos,
    /// Sockets send to it, or have sent. Other entries are known from their requests, or received
    /// replies.
    wanted: bool,
}

impl Neighbor {
    /// Returns whether its address is so old that it must be confirmed again.
    fn is_stale(&self, now: Nanos) -> bool {
        self.ethernet.is_some() && self.confirmed.is_none_or(|then| now >= then + FRESH)
    }

    /// Returns the eviction rank; the lowest is evicted. First neighbours that no socket sends to,
    /// then those without an address (unless requested just now for a socket), then the least
    /// recently used.
    fn worth(&self, now: Nanos) -> (bool, bool, Nanos) {
        let hoped_for = self.wanted && self.tries > 0 && now < self.asked + ASK_EVERY;
        (self.wanted, self.ethernet.is_some() || hoped_for, self.used)
    }
}

/// Content of a neighbour advertisement (RFC 4861, section 4.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertised {
    pub(crate) ethernet: Option<[u8; 6]>,
    /// Reply to a solicitation, so the neighbour receives our packets.
    pub(crate) solicited: bool,
    /// Replaces a known address.
    pub(crate) overrides: bool,
}

/// Result of a look-up.
pub(crate) enum Resolved {
    Known([u8; 6]),
    /// Known, but stale: the caller sends a request and uses the address meanwhile.
    Renew([u8; 6]),
    /// Unknown: the caller sends a request.
    Ask,
    /// Unknown, and requested already.
    Asked,
}

/// Datagram that waited for a neighbour which did not reply.
pub(crate) struct Unreached {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) hop: IpAddr,
}

/// Neighbour cache of a stack, with the frames that wait for replies.
pub(crate) struct Neighbors {
    list: Vec<Neighbor>,
    limit: usize,
    /// Number of entries that sockets send to.
    wanted: usize,
    table: Table,
    seed: u64,
    waiting: VecDeque<(IpAddr, Frame)>,
    /// Waiting frames to be released or dropped: those at the front of `waiting`.
    over: usize,
    /// Changes with every change of an address, so that holders of a copy notice.
    epoch: u32,
    next_check: Nanos,
    /// Position of the current check in `list`.
    checked: usize,
    /// Time from which an entry that sockets send to may be replaced again by one without.
    displaces: Nanos,
    announcing: Announcing,
}

/// Progress of the announcements after start.
#[derive(Clone, Copy, Default)]
struct Announcing {
    /// Completed rounds over all addresses, and addresses announced in the current round.
    rounds: u8,
    addresses: usize,
    due: Nanos,
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

impl Neighbors {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            list: prefault::room(limit),
            limit,
            wanted: 0,
            table: Table::new(limit),
            seed,
            waiting: VecDeque::with_capacity(WAITING),
            over: 0,
            epoch: 1,
            next_check: 0,
            checked: 0,
            displaces: 0,
            announcing: Announcing::default(),
        }
    }

    /// Returns the heap memory of a cache of this size, in bytes.
    pub(crate) const fn heap_bytes(limit: usize) -> usize {
        limit * size_of::<Neighbor>()
            + Table::slots_for(limit) * size_of::<u32>()
            + WAITING * size_of::<(IpAddr, Frame)>()
    }

    /// Invalidates all copies of addresses. Zero is reserved for "never".
    pub(crate) fn changed(&mut self) {
        self.epoch = self.epoch.wrapping_add(1).max(1);
    }

    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let found = self.table.find(hash_of(self.seed, address), |index| {
            self.list[index as usize].address == address
        });
        found.map(|index| index as usize)
    }

    /// Looks up a neighbour. If the result is `Renew` or `Ask`, the caller sends a request.
    /// `wanted`: a socket sends to it, and not only a reply is sent.
    pub(crate) fn resolve(&mut self, address: IpAddr, now: Nanos, wanted: bool) -> Resolved {
        let at = self.find(address);
        let Some(at) = at.or_else(|| self.add(address, now, wanted)) else {
            return Resolved::Asked;
        };
        let neighbor = &mut self.list[at];
        neighbor.used = now;
        if wanted && !std::mem::replace(&mut neighbor.wanted, true) {
            self.wanted += 1;
        }
        let may_ask = neighbor.tries == 0 || now >= neighbor.asked + ASK_EVERY;
        match neighbor.ethernet {
            Some(ethernet) if neighbor.is_stale(now) && may_ask => {
                neighbor.asked = now;
                neighbor.tries = neighbor.tries.saturating_add(1);
                Resolved::Renew(ethernet)
            }
            Some(ethernet) => Resolved::Known(ethernet),
            None if may_ask => {
                neighbor.asked = now;
                neighbor.tries = neighbor.tries.saturating_add(1);
                Resolved::Ask
            }
            None => Resolved::Asked,
        }
    }

    /// Adds an entry without an address and evicts the lowest-ranked one. An entry without local
    /// senders replaces one with local senders only once in a while: packets from invented
    /// addresses evict no active neighbour, and cause no searches.
    fn add(&mut self, address: IpAddr, now: Nanos, wanted: bool) -> Option<usize> {
        let neighbor = Neighbor {
            address,
            ethernet: None,
            confirmed: None,
            asked: 0,
            tries: 0,
            used: now,
            wanted,
        };
        let at = if self.list.len() < self.limit {
            self.list.push(neighbor);
            self.list.len() - 1
        } else {
            if !wanted && self.wanted == self.limit {
                if now < self.displaces {
                    return None;
                }
                self.displaces = now + DISPLACE_EVERY;
            }
            let worth = |&at: &usize| self.list[at].worth(now);
            let at = (0..self.list.len()).min_by_key(worth)?;
            self.forget(at);
            self.list[at] = neighbor;
            at
        };
        self.wanted += usize::from(wanted);
        self.table.insert(hash_of(self.seed, address), at as u32);
        Some(at)
    }

    /// Removes an entry from the table; its slot stays.
    fn forget(&mut self, at: usize) {
        let seed = self.seed;
        let (table, list) = (&mut self.table, &self.list);
        table.remove(hash_of(seed, list[at].address), at as u32, |other| {
            hash_of(seed, list[other as usize].address)
        });
        // Copies exist only of entries that sockets send to.
        let wanted = list[at].wanted;
        if wanted && list[at].ethernet.is_some() {
            self.changed();
        }
        self.wanted -= usize::from(wanted);
        // Frames that wait for it would never be released.
        self.over = self.waiting.len();
    }

    /// Records a confirmed address. An unknown neighbour is added only if `new` is set.
    pub(crate) fn learn(&mut self, address: IpAddr, ethernet: [u8; 6], new: bool, now: Nanos) {
        let Some(at) = self.find_or_add(address, new, now) else {
            return;
        };
        let neighbor = &mut self.list[at];
        neighbor.confirmed = Some(now);
        neighbor.tries = 0;
        self.set(at, ethernet);
    }

    fn find_or_add(&mut self, address: IpAddr, new: bool, now: Nanos) -> Option<usize> {
        let at = self.find(address);
        at.or_else(|| new.then(|| self.add(address, now, false)).flatten())
    }

    /// Sets the address of an entry.
    fn set(&mut self, at: usize, ethernet: [u8; 6]) {
        let neighbor = &mut self.list[at];
        let before = neighbor.ethernet.replace(ethernet);
        // Copies exist only of addresses that were known.
        if neighbor.wanted && before.is_some_and(|before| before != ethernet) {
            self.changed();
        }
        self.over = self.waiting.len();
    }

    /// Records the sender of a solicitation. Reachability in the other direction is unconfirmed: a
    /// new address is verified at its next use, and a known one changes nothing (RFC 4861, section
    /// 7.2.3).
    pub(crate) fn solicited_by(&mut self, address: IpAddr, ethernet: [u8; 6], now: Nanos) {
        let Some(at) = self.find_or_add(address, true, now) else {
            return;
        };
        let neighbor = &mut self.list[at];
        if neighbor.ethernet != Some(ethernet) {
            (neighbor.confirmed, neighbor.tries) = (None, 0);
            self.set(at, ethernet);
        }
    }

    /// Applies an advertisement to a known neighbour (RFC 4861, section 7.2.5).
    pub(crate) fn advertised(&mut self, address: IpAddr, said: Advertised, now: Nanos) {
        let Some(at) = self.find(address) else {
            return;
        };
        let neighbor = &mut self.list[at];
        let ethernet = match (neighbor.ethernet, said.ethernet) {
            (None, None) => return,
            // A different address without the override flag: a request will show which one is
            // right.
            (Some(known), Some(other)) if known != other && !said.overrides => {
                neighbor.confirmed = None;
                return;
            }
            (known, said) => said.or(known),
        };
        let is_new = neighbor.ethernet != ethernet;
        neighbor.ethernet = ethernet;
        if said.solicited {
            (neighbor.confirmed, neighbor.tries) = (Some(now), 0);
        } else if is_new {
            (neighbor.confirmed, neighbor.tries) = (None, 0);
        }
        if is_new {
            // As in `forget`: copies exist only of entries that sockets send to.
            if neighbor.wanted {
                self.changed();
            }
            self.over = self.waiting.len();
        }
    }

    /// Keeps a frame until a neighbour has replied; returns it if there is no place. `answer`: it
    /// is a reply.
    pub(crate) fn wait(&mut self, hop: IpAddr, frame: Frame, answer: bool) -> Result<(), Frame> {
        let free = WAITING - self.waiting.len();
        let least = if answer { KEPT_FROM_ANSWERS } else { 0 };
        let same = self.waiting.iter().filter(|(other, _)| *other == hop);
        if free <= least || same.count() >= SHARE * free || self.find(hop).is_none() {
            return Err(frame);
        }
        self.waiting.push_back((hop, frame));
        Ok(())
    }

    /// Returns the next frame to be released, its neighbour, and that one's Ethernet address;
    /// without an address the frame is lost.
    pub(crate) fn released(&mut self) -> Option<(Frame, IpAddr, Option<[u8; 6]>)> {
        while self.over > 0 {
            self.over -= 1;
            let (hop, frame) = self.waiting.pop_front()?;
            match self.find(hop).map(|at| &self.list[at]) {
                Some(neighbor) if neighbor.ethernet.is_some() => {
                    return Some((frame, hop, neighbor.ethernet));
                }
                // Still requested: the frame moves to the end of the queue, as will those behind
                // it.
                Some(neighbor) if neighbor.tries > 0 => {
                    self.waiting.push_back((hop, frame));
                }
                _ => return Some((frame, hop, None)),
            }
        }
        None
    }

    /// Returns the next neighbour to be requested again; the check continues behind it in the next
    /// call.
    pub(crate) fn overdue(&mut self, now: Nanos) -> Option<IpAddr> {
        if now < self.next_check || self.list.is_empty() {
            return None;
        }
        while let Some(neighbor) = self.list.get_mut(self.checked) {
            self.checked += 1;
            // Senders keep a copy of the address and do not look it up here.
            let stale = neighbor.wanted && neighbor.is_stale(now);
            if (neighbor.tries == 0 && !stale) || now < neighbor.asked + ASK_EVERY {
                continue;
            }
            if neighbor.tries < TRIES {
                neighbor.tries += 1;
                neighbor.asked = now;
                return Some(neighbor.address);
            }
            // No reply: frames that wait for it are lost, and the next packet starts over.
            (neighbor.ethernet, neighbor.tries) = (None, 0);
            if neighbor.wanted {
                self.changed();
            }
            self.over = self.waiting.len();
        }
        self.checked = 0;
        self.next_check = now + CHECK_EVERY;
        None
    }

    /// Returns when [`Neighbors::overdue`] or an announcement has work; `None` while no reply is
    /// outstanding.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let owing = |neighbor: &Neighbor| (1..=TRIES).contains(&neighbor.tries);
        let asked = self.list.iter().filter(|neighbor| owing(neighbor));
        let first = asked.map(|neighbor| neighbor.asked + ASK_EVERY).min();
        let asks = first.map(|first| first.max(self.next_check));
        let announcing = &self.announcing;
        let tells = (announcing.rounds < ANNOUNCEMENTS).then_some(announcing.due);
        asks.into_iter().chain(tells).min()
    }

    /// Returns whether a local address is to be announced now.
    #[inline]
    pub(crate) fn is_announcing(&self, now: Nanos) -> bool {
        self.announcing.rounds < ANNOUNCEMENTS && now >= self.announcing.due
    }

    /// Records the announcement of one of `count` local addresses and returns its index.
    pub(crate) fn announced(&mut self, count: usize, now: Nanos) -> usize {
        let announcing = &mut self.announcing;
        let at = announcing.addresses;
        announcing.addresses += 1;
        if announcing.addresses == count {
            *announcing = Announcing {
                rounds: announcing.rounds + 1,
                addresses: 0,
                due: now + ANNOUNCE_EVERY,
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
        for (known, ethernet, solicited, overrides, used, asks) in [
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
            let said = Advertised {
                ethernet,
                solicited,
                overrides,
            };
            let mut neighbors = Neighbors::new(4, 1);
            match known {
                Some(known) => neighbors.learn(address, known, true, 0),
                None => drop(neighbors.resolve(address, 0, true)),
            }
            neighbors.advertised(address, said, 10);
            let (found, renews) = match neighbors.resolve(address, ASK_EVERY, true) {
                Resolved::Known(ethernet) => (Some(ethernet), false),
                Resolved::Renew(ethernet) => (Some(ethernet), true),
                Resolved::Ask | Resolved::Asked => (None, false),
            };
            assert_eq!((found, renews), (used, asks), "{known:?} {said:?}");
        }
        // Advertisements of unknown neighbours are ignored.
        let mut neighbors = Neighbors::new(4, 1);
        let said = Advertised {
            ethernet: Some(NEW),
            solicited: false,
            overrides: true,
        };
        neighbors.advertised(address, said, 10);
        assert!(neighbors.find(address).is_none());
    }

    /// Returns the address of a host by number.
    fn host(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    /// Neighbours without an address are evicted before those with one, however recently they were
    /// used.
    #[test]
    fn who_has_no_address_makes_room_first() {
        for wanted in [false, true] {
            let mut neighbors = Neighbors::new(4, 1);
            for number in 0..2 {
                neighbors.learn(host(number), OLD, true, 0);
                let _ = neighbors.resolve(host(number), 1, wanted);
            }
            for number in 10..30 {
                let now = (number + 1) as Nanos * 2 * ASK_EVERY;
                let asks = neighbors.resolve(host(number), now, wanted);
                assert!(matches!(asks, Resolved::Ask));
            }
            let known = |number: &u32| neighbors.find(host(*number)).is_some();
            let left: Vec<u32> = (0..30).filter(known).collect();
            assert_eq!(left, [0, 1, 28, 29], "sent to: {wanted}");
        }
        // Two destinations used alternately do not evict each other before they can have replied.
        let mut neighbors = Neighbors::new(2, 1);
        for number in 0..2 {
            let _ = neighbors.resolve(host(number), 0, true);
            neighbors.learn(host(number), OLD, true, 0);
        }
        let now = 5 * ASK_EVERY;
        let asks = |neighbors: &mut Neighbors, number| {
            matches!(neighbors.resolve(host(number), now, true), Resolved::Ask)
        };
        let first = [8, 9, 8, 9].map(|number| asks(&mut neighbors, number));
        assert_eq!(first, [true, true, false, false]);
    }

    fn seen(neighbors: &mut Neighbors, address: IpAddr) -> (Option<[u8; 6]>, bool) {
        match neighbors.resolve(address, ASK_EVERY, true) {
            Resolved::Known(ethernet) => (Some(ethernet), false),
            Resolved::Renew(ethernet) => (Some(ethernet), true),
            Resolved::Ask | Resolved::Asked => (None, false),
        }
    }

    /// RFC 4861, section 7.2.3: address used afterwards, and whether it is verified.
    #[test]
    fn who_asks_is_not_known_to_hear() {
        let address: IpAddr = "fd00::9".parse().unwrap();
        for (known, used, asks) in [
            (None, NEW, true),
            (Some(OLD), NEW, true),
            (Some(NEW), NEW, false),
        ] {
            let mut neighbors = Neighbors::new(4, 1);
            if let Some(known) = known {
                neighbors.learn(address, known, true, 0);
            }
            neighbors.solicited_by(address, NEW, 10);
            // No socket sends to it: no request is due.
            assert_eq!(neighbors.overdue(2 * ASK_EVERY), None);
            let found = seen(&mut neighbors, address);
            assert_eq!(found, (Some(used), asks), "{known:?}");
        }
    }

    /// A flood from many invented addresses evicts no neighbour that sockets send to, and
    /// invalidates no headers.
    #[test]
    fn strangers_take_the_places_of_strangers() {
        let mut neighbors = Neighbors::new(8, 1);
        for number in 0..8 {
            neighbors.learn(host(number), OLD, true, 0);
        }
        for number in 0..4 {
            assert_eq!(seen(&mut neighbors, host(number)), (Some(OLD), false));
        }
        for number in 100..200 {
            neighbors.learn(host(number), NEW, true, 2 * ASK_EVERY);
        }
        let known = |number: &u32| neighbors.find(host(*number)).is_some();
        assert_eq!((0..8).filter(known).count(), 4);
        assert_eq!((100..200).filter(known).count(), 4);
        // If sockets send to all entries, one per second is replaced.
        for number in 0..8 {
            let _ = seen(&mut neighbors, host(number));
        }
        let epoch = neighbors.epoch();
        for number in 200..300 {
            neighbors.learn(host(number), NEW, true, 3 * ASK_EVERY);
        }
        let known = |number: &u32| neighbors.find(host(*number)).is_some();
        assert_eq!((0..8).filter(known).count(), 7);
        assert!(neighbors.epoch() - epoch <= 1);
        // A new destination takes the place of the entry without senders.
        let _ = seen(&mut neighbors, host(400));
        let wanted = neighbors.list.iter().filter(|neighbor| neighbor.wanted);
        assert_eq!((wanted.count(), neighbors.wanted), (8, 8));
    }
}
