//! Neighbour resolution and announcements: ARP (RFC 826) and neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_port::vnet::VnetHeader;

use crate::addressing::{ALL_NODES_V6, solicited_node};
use crate::link::Link;
use crate::neighbors::{Advertised, Unreached};
use crate::wire::ip::{self, V6_BYTES};
use crate::wire::{ETHERTYPE_ARP, ICMPV6, put, sum, word};

const ARP_BYTES: usize = 28;
/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4 (RFC 826).
const ARP_KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: reply to a solicitation; replaces a known address.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Hop limit of packets that no router has forwarded.
const MOST_HOPS: u8 = 255;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Length of a message with its target address and one link-layer address option.
const DISCOVERY_BYTES: usize = 32;

impl Link {
    /// Does the periodic work: announces local addresses, repeats requests without a reply, and
    /// releases frames that waited. Returns the next datagram whose neighbour did not reply; call
    /// it until it returns `None`.
    pub(crate) fn check_neighbors(&mut self) -> Option<Unreached> {
        while self.neighbors.is_announcing(self.now) && self.has_room() {
            let at = (self.neighbors).announced(self.own.networks.len(), self.now);
            self.announce(self.own.networks[at].address);
        }
        while self.has_room()
            && let Some(address) = self.neighbors.overdue(self.now)
        {
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

    /// Sends a request for the Ethernet address of a neighbour.
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
                let to = solicited_node(target);
                self.send_discovery((SOLICITATION, 0), own, (to, None), target);
            }
            _ => {}
        }
    }

    /// Announces a local address to the link: hosts that know it with the Ethernet address of a
    /// previous owner update their cache.
    #[cold]
    fn announce(&mut self, own: IpAddr) {
        self.counters.link.out_announcements += 1;
        match own {
            // A request for the sender's own address, to which no host replies (RFC 5227, section
            // 2.3).
            IpAddr::V4(own) => self.send_arp(ARP_REQUEST, [0xff; 6], own, ([0; 6], own)),
            IpAddr::V6(own) => {
                self.send_discovery((ADVERTISEMENT, OVERRIDE), own, (ALL_NODES_V6, None), own);
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

    /// Processes an ARP packet; bytes behind it are the frame's padding.
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
        let is_one = ethernet[0] & 1 == 0;
        let sane = is_one && near && !is_ours;
        let for_us = self.own.is_own(target.into());
        if sane {
            // A host that requests our address will send to us (RFC 826), so it is added; others
            // are only updated.
            self.neighbors
                .learn(from.into(), ethernet, for_us, self.now);
            self.release();
        }
        // A probe for a free address has no sender address (RFC 5227).
        let probes = is_one && from.is_unspecified();
        let asks = for_us && operation == ARP_REQUEST && (sane || probes);
        if asks && self.may_answer_neighbor() {
            self.counters.link.out_neighbor_replies += 1;
            self.send_arp(ARP_REPLY, ethernet, target, (ethernet, from));
        }
    }

    /// Counts an address conflict: another host uses an address of the stack (`is_ours`; RFC 5227,
    /// section 2.4).
    fn count_conflict(&mut self, is_ours: bool, ethernet: [u8; 6]) {
        // A frame of our own that was looped back is no conflict.
        let other = is_ours && ethernet != self.ethernet;
        self.counters.link.in_address_conflicts += u64::from(other);
    }

    /// Sends a neighbour discovery message with its type and flags. A solicitation that contains
    /// the sender's Ethernet address is answered at that address, whether the sender is in the
    /// cache or not.
    fn send_discovery(
        &mut self,
        (kind, says): (u8, u8),
        from: Ipv6Addr,
        (to, ethernet): (Ipv6Addr, Option<[u8; 6]>),
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
        match ethernet {
            Some(ethernet) => self.send_to(frame, ethernet, to.into(), VnetHeader::default()),
            None => self.send(frame, to.into(), VnetHeader::default()),
        }
    }

    /// Processes a neighbour discovery message with verified checksum. Returns false if it is of
    /// another type.
    pub(crate) fn input_discovery(&mut self, from: Ipv6Addr, message: &[u8], hops: u8) -> bool {
        let kind = message[0];
        if kind != SOLICITATION && kind != ADVERTISEMENT {
            return false;
        }
        // A message forwarded by a router is not from a neighbour.
        let said = (hops == MOST_HOPS).then(|| read(message, from)).flatten();
        let Some((target, ethernet)) = said else {
            self.counters.icmp.in_errors += 1;
            return true;
        };
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
        let near = self.own.next_hop(from.into()) == Some(from.into());
        let ethernet = ethernet.filter(|_| near && !from.is_unspecified());
        if let Some(ethernet) = ethernet {
            (self.neighbors).solicited_by(from.into(), ethernet, self.now);
            self.release();
        }
        if !self.may_answer_neighbor() {
            return true;
        }
        self.counters.link.out_neighbor_replies += 1;
        // A host that probes the address before using it learns that it is in use (RFC 4861,
        // section 7.2.4).
        let (says, to) = match from.is_unspecified() {
            true => (OVERRIDE, ALL_NODES_V6),
            false => (SOLICITED | OVERRIDE, from),
        };
        self.send_discovery((ADVERTISEMENT, says), target, (to, ethernet), target);
        true
    }
}

/// Parses a message: its target address and the link-layer address option; `None` if it violates
/// RFC 4861, section 7.1.
fn read(message: &[u8], from: Ipv6Addr) -> Option<(Ipv6Addr, Option<[u8; 6]>)> {
    let target: [u8; 16] = message.get(8..24)?.try_into().ok()?;
    let target = Ipv6Addr::from(target);
    if message[1] != 0 || target.is_multicast() {
        return None;
    }
    let wanted = match message[0] {
        SOLICITATION => SOURCE_OPTION,
        _ => TARGET_OPTION,
    };
    let mut options = &message[24..];
    let mut ethernet = None;
    while let [option, eights, ..] = options {
        let bytes = usize::from(*eights) * 8;
        let whole = options.get(..bytes).filter(|whole| !whole.is_empty())?;
        if *option == wanted && *eights == 1 && whole[2] & 1 == 0 {
            ethernet = whole[2..].try_into().ok();
        }
        options = &options[bytes..];
    }
    // A sender without an address must not include a link-layer address.
    let nobody = from.is_unspecified() && wanted == SOURCE_OPTION && ethernet.is_some();
    (!nobody && options.is_empty()).then_some((target, ethernet))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ETHERNET: [u8; 6] = [2, 0, 0, 0, 0, 9];

    /// Returns a message about fd00::9 with these options.
    fn message(kind: u8, options: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend("fd00::9".parse::<Ipv6Addr>().unwrap().octets());
        message.extend_from_slice(options);
        message
    }

    #[test]
    fn messages_are_as_the_rfc_wants_them_or_not_heard() {
        let from: Ipv6Addr = "fd00::1".parse().unwrap();
        let nobody = Ipv6Addr::UNSPECIFIED;
        let option = |kind| [&[kind, 1][..], &ETHERNET].concat();
        let (source, target) = (option(SOURCE_OPTION), option(TARGET_OPTION));
        for (name, kind, from, options, heard) in [
            ("no option", SOLICITATION, from, vec![], Some(None)),
            (
                "its own",
                SOLICITATION,
                from,
                source.clone(),
                Some(Some(ETHERNET)),
            ),
            (
                "the other's",
                SOLICITATION,
                from,
                target.clone(),
                Some(None),
            ),
            (
                "its own",
                ADVERTISEMENT,
                from,
                target.clone(),
                Some(Some(ETHERNET)),
            ),
            (
                "behind another",
                ADVERTISEMENT,
                from,
                [source.clone(), target.clone()].concat(),
                Some(Some(ETHERNET)),
            ),
            (
                "unspecified source",
                SOLICITATION,
                nobody,
                vec![],
                Some(None),
            ),
            (
                "unspecified source with an option",
                SOLICITATION,
                nobody,
                source,
                None,
            ),
            (
                "of no length",
                ADVERTISEMENT,
                from,
                vec![TARGET_OPTION, 0, 0, 0, 0, 0, 0, 0],
                None,
            ),
            ("cut short", ADVERTISEMENT, from, target[..7].to_vec(), None),
            (
                "half a header",
                ADVERTISEMENT,
                from,
                vec![TARGET_OPTION],
                None,
            ),
        ] {
            let message = message(kind, &options);
            let read = read(&message, from).map(|(_, ethernet)| ethernet);
            assert_eq!(read, heard, "{kind}: {name}");
        }
        let mut coded = message(SOLICITATION, &[]);
        coded[1] = 1;
        assert_eq!(read(&coded, from), None);
        let mut to_many = message(SOLICITATION, &[]);
        to_many[8] = 0xff;
        assert_eq!(read(&to_many, from), None);
    }

    proptest! {
        #[test]
        fn no_message_panics(message in prop::collection::vec(any::<u8>(), 0..80), nobody: bool) {
            let from = if nobody { Ipv6Addr::UNSPECIFIED } else { Ipv6Addr::LOCALHOST };
            let _ = read(&message, from);
        }
    }
}
