//! Neighbour resolution and announcements: ARP (RFC 826) and neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_packet::vnet::VnetHeader;

use super::LinkLayer;
use crate::addressing::{ALL_NODES_V6, solicited_node_group};
use crate::neighbors::{Advertisement, UndeliveredDatagram};
use crate::wire::ip::V6_BYTES;
use crate::wire::{ETHERTYPE_ARP, ICMPV6, checksum_sum, ip, read_u16, write_u16};

const ARP_BYTES: usize = 28;
/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4 (RFC 826).
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: reply to a solicitation; replaces a known address.
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;
/// Hop limit of packets that no router has forwarded.
const MAX_HOP_LIMIT: u8 = 255;
const SOURCE_ADDRESS_OPTION: u8 = 1;
const TARGET_ADDRESS_OPTION: u8 = 2;
/// Length of a message with its target address and one link-layer address option.
const DISCOVERY_BYTES: usize = 32;

impl LinkLayer {
    /// Does the periodic work: announces local addresses, repeats requests without a reply, and
    /// releases frames that waited. Returns the next datagram whose neighbour did not reply; call
    /// it until it returns `None`.
    pub(crate) fn poll_neighbors(&mut self) -> Option<UndeliveredDatagram> {
        while self.neighbors.is_announcement_due(self.now) && self.can_send() {
            let at =
                (self.neighbors).advance_announcement(self.addressing.networks.len(), self.now);
            self.announce_address(self.addressing.networks[at].address);
        }
        while self.can_send()
            && let Some(address) = self.neighbors.next_to_request(self.now)
        {
            self.solicit_neighbor(address);
        }
        loop {
            let (frame, hop) = self.release_until_unresolved()?;
            let addresses = self.free_undelivered(frame);
            if let Some((local, remote)) = addresses {
                return Some(UndeliveredDatagram { local, remote, hop });
            }
        }
    }

    /// Sends a request for the Ethernet address of a neighbour.
    pub(crate) fn solicit_neighbor(&mut self, address: IpAddr) {
        self.counters.link.out_neighbor_requests += 1;
        let Some(local) = self.addressing.source_for(address) else {
            return;
        };
        match (local, address) {
            (IpAddr::V4(local), IpAddr::V4(target)) => {
                self.send_arp(ARP_REQUEST, [0xff; 6], local, ([0; 6], target));
            }
            (IpAddr::V6(local), IpAddr::V6(target)) => {
                let to = solicited_node_group(target);
                self.send_discovery((SOLICITATION, 0), local, (to, None), target);
            }
            _ => {}
        }
    }

    /// Announces a local address to the link: hosts that know it with the Ethernet address of a
    /// previous owner update their cache.
    #[cold]
    fn announce_address(&mut self, local: IpAddr) {
        self.counters.link.out_announcements += 1;
        match local {
            // A request for the sender's own address, to which no host replies (RFC 5227, section
            // 2.3).
            IpAddr::V4(local) => self.send_arp(ARP_REQUEST, [0xff; 6], local, ([0; 6], local)),
            IpAddr::V6(local) => {
                self.send_discovery(
                    (ADVERTISEMENT, FLAG_OVERRIDE),
                    local,
                    (ALL_NODES_V6, None),
                    local,
                );
            }
        }
    }

    fn send_arp(
        &mut self,
        operation: u16,
        ethernet: [u8; 6],
        local: Ipv4Addr,
        (target_ethernet, target): ([u8; 6], Ipv4Addr),
    ) {
        let Some(mut frame) = self.allocate_frame(ARP_BYTES) else {
            return;
        };
        let sender = self.ethernet;
        let packet = self.packet(&mut frame);
        packet[..6].copy_from_slice(&ARP_ETHERNET_IPV4);
        write_u16(packet, 6, operation);
        packet[8..14].copy_from_slice(&sender);
        packet[14..18].copy_from_slice(&local.octets());
        packet[18..24].copy_from_slice(&target_ethernet);
        packet[24..28].copy_from_slice(&target.octets());
        self.write_link_header(&mut frame, ethernet, ETHERTYPE_ARP, VnetHeader::default());
        self.push(frame);
    }

    /// Processes an ARP packet; bytes behind it are the frame's padding.
    pub(crate) fn input_arp(&mut self, packet: &[u8]) {
        if packet.len() < ARP_BYTES || packet[..6] != ARP_ETHERNET_IPV4 {
            self.counters.link.in_errors += 1;
            return;
        }
        let ethernet: [u8; 6] = packet[8..14].try_into().expect("six bytes");
        let address =
            |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        let (from, target) = (address(14), address(24));
        let operation = read_u16(packet, 6);
        match operation {
            ARP_REQUEST => self.counters.link.in_neighbor_requests += 1,
            ARP_REPLY => self.counters.link.in_neighbor_replies += 1,
            _ => return,
        }
        let is_on_link = self.addressing.next_hop(from.into()) == Some(from.into());
        let is_local = self.addressing.is_local(from.into());
        self.count_conflict(is_local, ethernet);
        let is_unicast = ethernet[0] & 1 == 0;
        let is_valid = is_unicast && is_on_link && !is_local;
        let is_for_local = self.addressing.is_local(target.into());
        if is_valid {
            // A host that requests our address will send to us (RFC 826), so it is added; others
            // are only updated.
            self.neighbors
                .learn(from.into(), ethernet, is_for_local, self.now);
            self.release_resolved();
        }
        // A probe for a free address has no sender address (RFC 5227).
        let is_probe = is_unicast && from.is_unspecified();
        let needs_reply = is_for_local && operation == ARP_REQUEST && (is_valid || is_probe);
        if needs_reply && self.may_reply_to_neighbor() {
            self.counters.link.out_neighbor_replies += 1;
            self.send_arp(ARP_REPLY, ethernet, target, (ethernet, from));
        }
    }

    /// Counts an address conflict: another host uses an address of the stack (`is_local`; RFC 5227,
    /// section 2.4).
    fn count_conflict(&mut self, is_local: bool, ethernet: [u8; 6]) {
        // A frame of our own that was looped back is no conflict.
        let is_conflict = is_local && ethernet != self.ethernet;
        self.counters.link.in_address_conflicts += u64::from(is_conflict);
    }

    /// Sends a neighbour discovery message with its type and flags. A solicitation that contains
    /// the sender's Ethernet address is answered at that address, whether the sender is in the
    /// cache or not.
    fn send_discovery(
        &mut self,
        (kind, flags): (u8, u8),
        from: Ipv6Addr,
        (to, ethernet): (Ipv6Addr, Option<[u8; 6]>),
        target: Ipv6Addr,
    ) {
        let Some(mut frame) = self.allocate_frame(V6_BYTES + DISCOVERY_BYTES) else {
            return;
        };
        let local = self.ethernet;
        let packet = self.packet(&mut frame);
        ip::write_header(packet, from.into(), to.into(), ICMPV6, DISCOVERY_BYTES, 0);
        packet[7] = MAX_HOP_LIMIT;
        let message = &mut packet[V6_BYTES..];
        message[..8].fill(0);
        (message[0], message[4]) = (kind, flags);
        let option = match kind {
            SOLICITATION => SOURCE_ADDRESS_OPTION,
            _ => TARGET_ADDRESS_OPTION,
        };
        message[8..24].copy_from_slice(&target.octets());
        message[24..26].copy_from_slice(&[option, 1]);
        message[26..32].copy_from_slice(&local);
        let pseudo = ip::folded_pseudo_sum(from.into(), to.into(), ICMPV6, DISCOVERY_BYTES);
        let checksum = !crate::wire::combine_sums([pseudo, checksum_sum(message)]);
        write_u16(message, 2, checksum);
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
        let parsed = (hops == MAX_HOP_LIMIT)
            .then(|| parse_message(message, from))
            .flatten();
        let Some((target, ethernet)) = parsed else {
            self.counters.icmp.in_errors += 1;
            return true;
        };
        if kind == ADVERTISEMENT {
            self.counters.link.in_neighbor_replies += 1;
            if let Some(ethernet) = ethernet {
                self.count_conflict(self.addressing.is_local(target.into()), ethernet);
            }
            let parsed = Advertisement {
                ethernet,
                is_solicited: message[4] & FLAG_SOLICITED != 0,
                is_override: message[4] & FLAG_OVERRIDE != 0,
            };
            (self.neighbors).apply_advertisement(target.into(), parsed, self.now);
            self.release_resolved();
            return true;
        }
        self.counters.link.in_neighbor_requests += 1;
        if !self.addressing.is_local(target.into()) {
            return true;
        }
        let is_on_link = self.addressing.next_hop(from.into()) == Some(from.into());
        let ethernet = ethernet.filter(|_| is_on_link && !from.is_unspecified());
        if let Some(ethernet) = ethernet {
            (self.neighbors).learn_from_solicitation(from.into(), ethernet, self.now);
            self.release_resolved();
        }
        if !self.may_reply_to_neighbor() {
            return true;
        }
        self.counters.link.out_neighbor_replies += 1;
        // A host that probes the address before using it learns that it is in use (RFC 4861,
        // section 7.2.4).
        let (flags, to) = match from.is_unspecified() {
            true => (FLAG_OVERRIDE, ALL_NODES_V6),
            false => (FLAG_SOLICITED | FLAG_OVERRIDE, from),
        };
        self.send_discovery((ADVERTISEMENT, flags), target, (to, ethernet), target);
        true
    }
}

/// Parses a message: its target address and the link-layer address option; `None` if it violates
/// RFC 4861, section 7.1.
fn parse_message(message: &[u8], from: Ipv6Addr) -> Option<(Ipv6Addr, Option<[u8; 6]>)> {
    let target: [u8; 16] = message.get(8..24)?.try_into().ok()?;
    let target = Ipv6Addr::from(target);
    if message[1] != 0 || target.is_multicast() {
        return None;
    }
    let expected_option = match message[0] {
        SOLICITATION => SOURCE_ADDRESS_OPTION,
        _ => TARGET_ADDRESS_OPTION,
    };
    let mut options = &message[24..];
    let mut ethernet = None;
    while let [option, length_units, ..] = options {
        let bytes = usize::from(*length_units) * 8;
        let option_bytes = options
            .get(..bytes)
            .filter(|option_bytes| !option_bytes.is_empty())?;
        if *option == expected_option && *length_units == 1 && option_bytes[2] & 1 == 0 {
            ethernet = option_bytes[2..].try_into().ok();
        }
        options = &options[bytes..];
    }
    // A sender without an address must not include a link-layer address.
    let is_invalid =
        from.is_unspecified() && expected_option == SOURCE_ADDRESS_OPTION && ethernet.is_some();
    (!is_invalid && options.is_empty()).then_some((target, ethernet))
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
    fn messages_that_violate_the_rfc_are_rejected() {
        let from: Ipv6Addr = "fd00::1".parse().unwrap();
        let unspecified = Ipv6Addr::UNSPECIFIED;
        let option = |kind| [&[kind, 1][..], &ETHERNET].concat();
        let (source, target) = (option(SOURCE_ADDRESS_OPTION), option(TARGET_ADDRESS_OPTION));
        for (name, kind, from, options, expected) in [
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
                unspecified,
                vec![],
                Some(None),
            ),
            (
                "unspecified source with an option",
                SOLICITATION,
                unspecified,
                source,
                None,
            ),
            (
                "of no length",
                ADVERTISEMENT,
                from,
                vec![TARGET_ADDRESS_OPTION, 0, 0, 0, 0, 0, 0, 0],
                None,
            ),
            ("cut short", ADVERTISEMENT, from, target[..7].to_vec(), None),
            (
                "half a header",
                ADVERTISEMENT,
                from,
                vec![TARGET_ADDRESS_OPTION],
                None,
            ),
        ] {
            let message = message(kind, &options);
            let parsed = parse_message(&message, from).map(|(_, ethernet)| ethernet);
            assert_eq!(parsed, expected, "{kind}: {name}");
        }
        let mut coded = message(SOLICITATION, &[]);
        coded[1] = 1;
        assert_eq!(parse_message(&coded, from), None);
        let mut to_many = message(SOLICITATION, &[]);
        to_many[8] = 0xff;
        assert_eq!(parse_message(&to_many, from), None);
    }

    proptest! {
        #[test]
        fn no_message_panics(message in prop::collection::vec(any::<u8>(), 0..80), nobody: bool) {
            let from = if nobody { Ipv6Addr::UNSPECIFIED } else { Ipv6Addr::LOCALHOST };
            let _ = parse_message(&message, from);
        }
    }
}
