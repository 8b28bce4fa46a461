//! Neighbours on the link: what is known of who has which Ethernet address (ARP, RFC 826; neighbour discovery, RFC 4861).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use linerate_port::Frame;

use crate::Nanos;
use crate::pages;
use crate::table::{Table, hash};

/// Time between two questions about the same neighbour (RFC 1122, section 2.3.2.1).
const ASK_EVERY: Nanos = 1_000_000_000;
/// Questions without an answer until a neighbour is given up (RFC 4861, MAX_UNICAST_SOLICIT).
const TRIES: u8 = 3;
/// How long an answer holds before it is asked for again, while the old one is still used (RFC 1122).
const FRESH: Nanos = 60_000_000_000;
/// How often silent neighbours are looked for.
const CHECK_EVERY: Nanos = 250_000_000;
/// Frames that wait for neighbours' answers, in all.
pub(crate) const WAITING: usize = 64;
/// How many times as many as it leaves free wait for one neighbour at most (RFC 4861, section 7.2.2: a small number):
/// 48, so that a datagram of 64 KiB, in 45 fragments of Ethernet's length, has room, and 16 are left for others.
const SHARE: usize = 3;
/// Of these answers leave as many free, for what sockets send.
const KEPT_FROM_ANSWERS: usize = WAITING / 2;
/// How often whoever only asks for an address, or is answered, may take the place of a neighbour that is sent to.
const DISPLACE_EVERY: Nanos = 1_000_000_000;
/// How often the own addresses are announced (RFC 5227, ANNOUNCE_NUM), and the time from one to the next
/// (ANNOUNCE_INTERVAL); within what RFC 4861 allows, MAX_NEIGHBOR_ADVERTISEMENT and RetransTimer.
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_EVERY: Nanos = 2_000_000_000;

/// A neighbour, known or asked for.
struct Neighbor {
    address: IpAddr,
    ethernet: Option<[u8; 6]>,
    /// When it last said so; `None`: it is to be asked at its next use.
    confirmed: Option<Nanos>,
    /// When it was last asked, and how often without an answer. Without an address and never asked it was given up.
    asked: Nanos,
    tries: u8,
    used: Nanos,
    /// Sockets send to it, or have. Others are known because they asked, or were answered.
    wanted: bool,
}

impl Neighbor {
    /// Whether its address is known for so long that it is to be asked again.
    fn is_stale(&self, now: Nanos) -> bool {
        self.ethernet.is_some() && self.confirmed.is_none_or(|then| now >= then + FRESH)
    }

    /// Who makes room is who is worth least: of those that are not sent to before those that are, who has no address, and
    /// is not one that was asked for it just now by who sends to it, and then who was used least recently.
    fn worth(&self, now: Nanos) -> (bool, bool, Nanos) {
        let hoped_for = self.wanted && self.tries > 0 && now < self.asked + ASK_EVERY;
        (self.wanted, self.ethernet.is_some() || hoped_for, self.used)
    }
}

/// What an advertisement says (RFC 4861, section 4.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertised {
    pub(crate) ethernet: Option<[u8; 6]>,
    /// It answers a question, so the neighbour hears us.
    pub(crate) solicited: bool,
    /// It replaces what is known.
    pub(crate) overrides: bool,
}

/// What is known of a neighbour.
pub(crate) enum Resolved {
    Known([u8; 6]),
    /// Known for long: it is to be asked again, and used meanwhile.
    Renew([u8; 6]),
    /// Not known: it is to be asked.
    Ask,
    /// Not known, and asked already.
    Asked,
}

/// A datagram that waited for a neighbour's answer in vain.
pub(crate) struct Unreached {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) hop: IpAddr,
}

/// The neighbours that the stack remembers.
pub(crate) struct Neighbors {
    list: Vec<Neighbor>,
    limit: usize,
    /// How many of them are sent to.
    wanted: usize,
    table: Table,
    seed: u64,
    waiting: VecDeque<(IpAddr, Frame)>,
    /// Frames whose waiting is over: with an address they go, without they are lost.
    over: usize,
    /// Changes with every change of an address, so that whoever copied one knows.
    epoch: u32,
    next_check: Nanos,
    /// How far the check that is due has come.
    checked: usize,
    /// When the place of a neighbour that is sent to may be taken again by one that is not.
    displaces: Nanos,
    announcing: Announcing,
}

/// How far a stack that was just started has told its neighbours who it is.
#[derive(Clone, Copy, Default)]
struct Announcing {
    /// Announcements of all addresses that were made, and addresses of the next one that were.
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
            list: pages::room(limit),
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

    /// Bytes that a cache of this size takes from the heap.
    pub(crate) const fn heap_bytes(limit: usize) -> usize {
        limit * size_of::<Neighbor>()
            + Table::slots_for(limit) * size_of::<u32>()
            + WAITING * size_of::<(IpAddr, Frame)>()
    }

    /// Whatever was made with an address is to be made anew; zero stays free for "never".
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

    /// What is known of a neighbour; whoever is told to ask does. `wanted`: it is not only to be answered.
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

    /// Adds a neighbour without an address; the one that is worth least makes room. One that is not sent to itself takes
    /// the place of one that is once in a while: whoever makes names up drives nobody out, and has nobody searched for.
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

    /// Takes a neighbour out of the table; its place stays.
    fn forget(&mut self, at: usize) {
        let seed = self.seed;
        let (table, list) = (&mut self.table, &self.list);
        table.remove(hash_of(seed, list[at].address), at as u32, |other| {
            hash_of(seed, list[other as usize].address)
        });
        // Nobody has copied the address of one that is only answered.
        let wanted = list[at].wanted;
        if wanted && list[at].ethernet.is_some() {
            self.changed();
        }
        self.wanted -= usize::from(wanted);
        // Nobody is asked any more for what waits for it.
        self.over = self.waiting.len();
    }

    /// A neighbour told its address. Strangers are remembered only if they may be (`new`).
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

    /// A neighbour has this address from here on.
    fn set(&mut self, at: usize, ethernet: [u8; 6]) {
        let neighbor = &mut self.list[at];
        let before = neighbor.ethernet.replace(ethernet);
        // Nobody has copied one that was not known.
        if neighbor.wanted && before.is_some_and(|before| before != ethernet) {
            self.changed();
        }
        self.over = self.waiting.len();
    }

    /// A neighbour asked, and told its address. That it hears what is sent to it is not known: with a new address it is
    /// asked at its next use, with the one that it had nothing changes (RFC 4861, section 7.2.3).
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

    /// A neighbour was advertised: what is known of it changes as RFC 4861 says, section 7.2.5.
    pub(crate) fn advertised(&mut self, address: IpAddr, said: Advertised, now: Nanos) {
        let Some(at) = self.find(address) else {
            return;
        };
        let neighbor = &mut self.list[at];
        let ethernet = match (neighbor.ethernet, said.ethernet) {
            (None, None) => return,
            // Somebody who may only fill in says something else: who is right shows when it is asked.
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
            // As in `forget`: nobody has copied the address of one that is only answered.
            if neighbor.wanted {
                self.changed();
            }
            self.over = self.waiting.len();
        }
    }

    /// Keeps a frame until a neighbour has answered; gives it back when there is no place. `answer`: it is one.
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

    /// A frame whose waiting is over, with the neighbour that it waited for and its address or none.
    pub(crate) fn released(&mut self) -> Option<(Frame, IpAddr, Option<[u8; 6]>)> {
        while self.over > 0 {
            self.over -= 1;
            let (hop, frame) = self.waiting.pop_front()?;
            match self.find(hop).map(|at| &self.list[at]) {
                Some(neighbor) if neighbor.ethernet.is_some() => {
                    return Some((frame, hop, neighbor.ethernet));
                }
                // Still hoped for: to the end of the line, where those behind it go too.
                Some(neighbor) if neighbor.tries > 0 => {
                    self.waiting.push_back((hop, frame));
                }
                _ => return Some((frame, hop, None)),
            }
        }
        None
    }

    /// Looks for neighbours that owe an answer. Gives the next one that is to be asked again; the look goes on behind it.
    pub(crate) fn overdue(&mut self, now: Nanos) -> Option<IpAddr> {
        if now < self.next_check || self.list.is_empty() {
            return None;
        }
        while let Some(neighbor) = self.list.get_mut(self.checked) {
            self.checked += 1;
            // Whoever sends to it remembers its address, and does not ask here.
            let stale = neighbor.wanted && neighbor.is_stale(now);
            if (neighbor.tries == 0 && !stale) || now < neighbor.asked + ASK_EVERY {
                continue;
            }
            if neighbor.tries < TRIES {
                neighbor.tries += 1;
                neighbor.asked = now;
                return Some(neighbor.address);
            }
            // It is silent: what waits for it is lost, and the next packet asks afresh.
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

    /// When [`Neighbors::overdue`] has something to do; `None` while nobody owes an answer.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let owing = |neighbor: &Neighbor| (1..=TRIES).contains(&neighbor.tries);
        let asked = self.list.iter().filter(|neighbor| owing(neighbor));
        let first = asked.map(|neighbor| neighbor.asked + ASK_EVERY).min();
        let asks = first.map(|first| first.max(self.next_check));
        let announcing = &self.announcing;
        let tells = (announcing.rounds < ANNOUNCEMENTS).then_some(announcing.due);
        asks.into_iter().chain(tells).min()
    }

    /// Whether an own address is to be announced now.
    #[inline]
    pub(crate) fn is_announcing(&self, now: Nanos) -> bool {
        self.announcing.rounds < ANNOUNCEMENTS && now >= self.announcing.due
    }

    /// One of `count` own addresses is announced: its place among them.
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

    /// The table of RFC 4861, section 7.2.5: what was known, what is said, what is used then and whether it is asked.
    #[test]
    fn an_advertisement_changes_what_its_flags_say() {
        let address: IpAddr = "fd00::9".parse().unwrap();
        for (known, ethernet, solicited, overrides, used, asks) in [
            // Not known yet.
            (None, None, true, true, None, false),
            (None, Some(NEW), true, false, Some(NEW), false),
            (None, Some(NEW), false, false, Some(NEW), true),
            // The same again.
            (Some(OLD), Some(OLD), false, false, Some(OLD), false),
            (Some(OLD), None, true, false, Some(OLD), false),
            // Another one that may not replace it.
            (Some(OLD), Some(NEW), true, false, Some(OLD), true),
            (Some(OLD), Some(NEW), false, false, Some(OLD), true),
            // And one that may.
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
        // Strangers are not remembered.
        let mut neighbors = Neighbors::new(4, 1);
        let said = Advertised {
            ethernet: Some(NEW),
            solicited: false,
            overrides: true,
        };
        neighbors.advertised(address, said, 10);
        assert!(neighbors.find(address).is_none());
    }

    /// The last host of this number.
    fn host(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    /// Who is not there takes no place from who is, however recently he was sent something.
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
        // Two that are sent to in turns do not drive each other out before they can have answered.
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

    /// RFC 4861, section 7.2.3: what is used then, and whether it is asked.
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
            // Nobody sends to it: nothing is asked.
            assert_eq!(neighbors.overdue(2 * ASK_EVERY), None);
            let found = seen(&mut neighbors, address);
            assert_eq!(found, (Some(used), asks), "{known:?}");
        }
    }

    /// Whoever says that he is many drives nobody out to whom something is sent, and has nothing made anew.
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
        // Where all are sent to one gives way in a second.
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
        // One of the others is sent to: it takes the place of the one that is not.
        let _ = seen(&mut neighbors, host(400));
        let wanted = neighbors.list.iter().filter(|neighbor| neighbor.wanted);
        assert_eq!((wanted.count(), neighbors.wanted), (8, 8));
    }
}
