//! Neighbours on the link: who has which Ethernet address (ARP, RFC 826; neighbour discovery, RFC 4861).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linerate_port::Frame;
use linerate_port::vnet::VnetHeader;

use crate::Nanos;
use crate::addressing::{ALL_NODES_V6, solicited_node};
use crate::link::Link;
use crate::table::{Table, hash};
use crate::wire::ip::{self, V6_BYTES};
use crate::wire::{ETHERTYPE_ARP, ICMPV6, put, sum, word};

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
}

impl Neighbor {
    /// Whether its address is known for so long that it is to be asked again.
    fn is_stale(&self, now: Nanos) -> bool {
        self.ethernet.is_some() && self.confirmed.is_none_or(|then| now >= then + FRESH)
    }
}

/// What an advertisement says (RFC 4861, section 4.4).
#[derive(Clone, Copy, Debug)]
struct Advertised {
    ethernet: Option<[u8; 6]>,
    /// It answers a question, so the neighbour hears us.
    solicited: bool,
    /// It replaces what is known.
    overrides: bool,
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
    table: Table,
    seed: u64,
    waiting: VecDeque<(IpAddr, Frame)>,
    /// Frames whose waiting is over: with an address they go, without they are lost.
    over: usize,
    /// Changes with every change of an address, so that whoever copied one knows.
    epoch: u32,
    next_check: Nanos,
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
            list: Vec::with_capacity(limit),
            limit,
            table: Table::new(limit),
            seed,
            waiting: VecDeque::with_capacity(WAITING),
            over: 0,
            epoch: 1,
            next_check: 0,
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

    /// What is known of a neighbour; whoever is told to ask does.
    pub(crate) fn resolve(&mut self, address: IpAddr, now: Nanos) -> Resolved {
        let at = match self.find(address) {
            Some(at) => at,
            None => self.add(address, now),
        };
        let neighbor = &mut self.list[at];
        neighbor.used = now;
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

    /// Adds a neighbour without an address; the one used least recently makes room.
    fn add(&mut self, address: IpAddr, now: Nanos) -> usize {
        let neighbor = Neighbor {
            address,
            ethernet: None,
            confirmed: None,
            asked: 0,
            tries: 0,
            used: now,
        };
        let at = if self.list.len() < self.limit {
            self.list.push(neighbor);
            self.list.len() - 1
        } else {
            let at = (0..self.list.len())
                .min_by_key(|&at| self.list[at].used)
                .expect("a cache has a place");
            self.forget(at);
            self.list[at] = neighbor;
            at
        };
        self.table.insert(hash_of(self.seed, address), at as u32);
        at
    }

    /// Takes a neighbour out of the table; its place stays.
    fn forget(&mut self, at: usize) {
        let seed = self.seed;
        let (table, list) = (&mut self.table, &self.list);
        table.remove(hash_of(seed, list[at].address), at as u32, |other| {
            hash_of(seed, list[other as usize].address)
        });
        self.changed();
        // Nobody is asked any more for what waits for it.
        self.over = self.waiting.len();
    }

    /// A neighbour told its address. Strangers are remembered only if they may be (`new`).
    pub(crate) fn learn(&mut self, address: IpAddr, ethernet: [u8; 6], new: bool, now: Nanos) {
        let at = match self.find(address) {
            Some(at) => at,
            None if new => self.add(address, now),
            None => return,
        };
        let neighbor = &mut self.list[at];
        neighbor.confirmed = Some(now);
        neighbor.tries = 0;
        if neighbor.ethernet.replace(ethernet) != Some(ethernet) {
            self.changed();
        }
        self.over = self.waiting.len();
    }

    /// A neighbour was advertised: what is known of it changes as RFC 4861 says, section 7.2.5.
    fn advertised(&mut self, address: IpAddr, said: Advertised, now: Nanos) {
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
            self.changed();
            self.over = self.waiting.len();
        }
    }

    /// Keeps a frame until a neighbour has answered; gives it back when there is no place.
    pub(crate) fn wait(&mut self, hop: IpAddr, frame: Frame) -> Result<(), Frame> {
        if self.waiting.len() == WAITING {
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

    /// Looks for neighbours that owe an answer. Gives the next one that is to be asked again.
    pub(crate) fn overdue(&mut self, now: Nanos) -> Option<IpAddr> {
        if now < self.next_check || self.list.is_empty() {
            return None;
        }
        for at in 0..self.list.len() {
            let neighbor = &mut self.list[at];
            let stale = neighbor.is_stale(now);
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
            self.changed();
            self.over = self.waiting.len();
        }
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
    fn is_announcing(&self, now: Nanos) -> bool {
        self.announcing.rounds < ANNOUNCEMENTS && now >= self.announcing.due
    }

    /// One of `count` own addresses is announced: its place among them.
    fn announced(&mut self, count: usize, now: Nanos) -> usize {
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

const ARP_BYTES: usize = 28;
/// Ethernet and IPv4, six and four bytes of address (RFC 826).
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// What an advertisement says of itself: that it answers a solicitation, and that it replaces what was known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// What no packet has that was passed on.
const MOST_HOPS: u8 = 255;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// The message, the address in question, and one option with an Ethernet address.
const DISCOVERY_BYTES: usize = 32;

impl Link {
    /// Work of a turn: the own addresses are announced, neighbours that owe an answer are asked again, and what waited
    /// for them leaves. Gives the next datagram that waited in vain; to be called until there is none.
    pub(crate) fn check_neighbors(&mut self) -> Option<Unreached> {
        while self.neighbors.is_announcing(self.now) && self.has_room() {
            let at = (self.neighbors).announced(self.own.networks.len(), self.now);
            self.announce(self.own.networks[at].address);
        }
        while let Some(address) = self.neighbors.overdue(self.now) {
            self.ask(address);
        }
        loop {
            let (frame, hop) = self.release_some()?;
            let ends = self.ends_of(frame);
            if let Some((local, remote)) = ends {
                return Some(Unreached { local, remote, hop });
            }
        }
    }

    /// Asks who has an address.
    pub(crate) fn ask(&mut self, address: IpAddr) {
        self.counters.link.out_neighbor_requests += 1;
        let Some(own) = self.own.source_for(address) else {
            return;
        };
        match (own, address) {
            (IpAddr::V4(own), IpAddr::V4(target)) => {
                self.send_arp(ARP_REQUEST, [0xff; 6], own, ([0; 6], target));
            }
            (IpAddr::V6(own), IpAddr::V6(target)) => {
                self.send_discovery((SOLICITATION, 0), own, solicited_node(target), target);
            }
            _ => {}
        }
    }

    /// Tells everybody on the link that an address is this stack's: whoever knows it with another Ethernet
    /// address, of what had it before, renews that.
    #[cold]
    fn announce(&mut self, own: IpAddr) {
        self.counters.link.out_announcements += 1;
        match own {
            // A question that nobody has to answer (RFC 5227, section 2.3).
            IpAddr::V4(own) => self.send_arp(ARP_REQUEST, [0xff; 6], own, ([0; 6], own)),
            IpAddr::V6(own) => {
                self.send_discovery((ADVERTISEMENT, OVERRIDE), own, ALL_NODES_V6, own)
            }
        }
    }

    fn send_arp(
        &mut self,
        operation: u16,
        ethernet: [u8; 6],
        own: Ipv4Addr,
        (far, target): ([u8; 6], Ipv4Addr),
    ) {
        let Some(mut frame) = self.make(ARP_BYTES) else {
            return;
        };
        let sender = self.ethernet;
        let packet = self.packet(&mut frame);
        packet[..6].copy_from_slice(&ARP_KIND);
        put(packet, 6, operation);
        packet[8..14].copy_from_slice(&sender);
        packet[14..18].copy_from_slice(&own.octets());
        packet[18..24].copy_from_slice(&far);
        packet[24..28].copy_from_slice(&target.octets());
        self.write_head(&mut frame, ethernet, ETHERTYPE_ARP, VnetHeader::default());
        self.push(frame);
    }

    /// An ARP packet came, with whatever pads its frame.
    pub(crate) fn input_arp(&mut self, packet: &[u8]) {
        if packet.len() < ARP_BYTES || packet[..6] != ARP_KIND {
            self.counters.link.in_errors += 1;
            return;
        }
        let ethernet: [u8; 6] = packet[8..14].try_into().expect("six bytes");
        let address =
            |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let (from, target) = (address(14), address(24));
        let operation = word(packet, 6);
        match operation {
            ARP_REQUEST => self.counters.link.in_neighbor_requests += 1,
            ARP_REPLY => self.counters.link.in_neighbor_replies += 1,
            _ => return,
        }
        let near = self.own.next_hop(from.into()) == Some(from.into());
        let is_ours = self.own.is_own(from.into());
        self.count_conflict(is_ours, ethernet);
        let sane = ethernet[0] & 1 == 0 && near && !is_ours;
        let for_us = self.own.is_own(target.into());
        if sane {
            // Whoever asks for us will talk to us (RFC 826); others only renew what is known.
            self.neighbors
                .learn(from.into(), ethernet, for_us, self.now);
            self.release();
        }
        // A probe for a free address comes from no address (RFC 5227).
        if for_us && operation == ARP_REQUEST && (sane || from.is_unspecified()) {
            self.counters.link.out_neighbor_replies += 1;
            self.send_arp(ARP_REPLY, ethernet, target, (ethernet, from));
        }
    }

    /// Somebody said which Ethernet address he has; `is_ours`: of an address of this stack's (RFC 5227, section 2.4).
    fn count_conflict(&mut self, is_ours: bool, ethernet: [u8; 6]) {
        // What comes back from where it was sent is no conflict.
        let other = is_ours && ethernet != self.ethernet;
        self.counters.link.in_address_conflicts += u64::from(other);
    }

    /// Sends a message of neighbour discovery: its kind, and of an advertisement what it says of itself.
    fn send_discovery(
        &mut self,
        (kind, says): (u8, u8),
        from: Ipv6Addr,
        to: Ipv6Addr,
        target: Ipv6Addr,
    ) {
        let Some(mut frame) = self.make(V6_BYTES + DISCOVERY_BYTES) else {
            return;
        };
        let own = self.ethernet;
        let packet = self.packet(&mut frame);
        ip::write(packet, from.into(), to.into(), ICMPV6, DISCOVERY_BYTES, 0);
        packet[7] = MOST_HOPS;
        let message = &mut packet[V6_BYTES..];
        message[..8].fill(0);
        (message[0], message[4]) = (kind, says);
        let option = match kind {
            SOLICITATION => SOURCE_OPTION,
            _ => TARGET_OPTION,
        };
        message[8..24].copy_from_slice(&target.octets());
        message[24..26].copy_from_slice(&[option, 1]);
        message[26..32].copy_from_slice(&own);
        let pseudo = ip::pseudo(from.into(), to.into(), ICMPV6, DISCOVERY_BYTES);
        let checksum = !crate::wire::combine([pseudo, sum(message)]);
        put(message, 2, checksum);
        self.counters.icmp.out_messages += 1;
        self.send(frame, to.into(), VnetHeader::default());
    }

    /// A message of neighbour discovery came, its checksum checked. False when it is none.
    pub(crate) fn input_discovery(&mut self, from: Ipv6Addr, message: &[u8], hops: u8) -> bool {
        let kind = message[0];
        if kind != SOLICITATION && kind != ADVERTISEMENT {
            return false;
        }
        // One that a router passed on is no neighbour's (RFC 4861, section 7.1).
        if message.len() < 24 || hops != MOST_HOPS {
            self.counters.icmp.in_errors += 1;
            return true;
        }
        let target: [u8; 16] = message[8..24].try_into().expect("sixteen bytes");
        let target = Ipv6Addr::from(target);
        let wanted = if kind == SOLICITATION {
            SOURCE_OPTION
        } else {
            TARGET_OPTION
        };
        let mut options = &message[24..];
        let mut ethernet = None;
        while let [option, length, rest @ ..] = options {
            let bytes = usize::from(*length) * 8;
            if bytes == 0 || bytes > options.len() {
                break;
            }
            if *option == wanted && *length == 1 && rest[0] & 1 == 0 {
                ethernet = rest[..6].try_into().ok();
            }
            options = &options[bytes..];
        }
        if kind == ADVERTISEMENT {
            self.counters.link.in_neighbor_replies += 1;
            if let Some(ethernet) = ethernet {
                self.count_conflict(self.own.is_own(target.into()), ethernet);
            }
            let said = Advertised {
                ethernet,
                solicited: message[4] & SOLICITED != 0,
                overrides: message[4] & OVERRIDE != 0,
            };
            (self.neighbors).advertised(target.into(), said, self.now);
            self.release();
            return true;
        }
        self.counters.link.in_neighbor_requests += 1;
        if !self.own.is_own(target.into()) {
            return true;
        }
        if from.is_unspecified() {
            // Whoever is about to take the address learns that it is taken (RFC 4861, section 7.2.4).
            self.counters.link.out_neighbor_replies += 1;
            self.send_discovery((ADVERTISEMENT, OVERRIDE), target, ALL_NODES_V6, target);
            return true;
        }
        if let Some(ethernet) = ethernet
            && self.own.next_hop(from.into()) == Some(from.into())
        {
            self.neighbors.learn(from.into(), ethernet, true, self.now);
            self.release();
        }
        self.counters.link.out_neighbor_replies += 1;
        self.send_discovery((ADVERTISEMENT, SOLICITED | OVERRIDE), target, from, target);
        true
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
                None => drop(neighbors.resolve(address, 0)),
            }
            neighbors.advertised(address, said, 10);
            let (found, renews) = match neighbors.resolve(address, ASK_EVERY) {
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
}
