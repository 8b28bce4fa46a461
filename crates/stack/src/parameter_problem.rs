//! ICMPv6 Parameter Problem: reports IPv6 headers that the stack does not process to their sender
//! (RFC 4443, section 3.4).

use std::net::{IpAddr, Ipv6Addr};

use linerate_packet::vnet::VnetHeader;

use crate::link::LinkLayer;
use crate::wire::ip::{HeaderProblem, V6_BYTES};
use crate::wire::{ICMPV6, checksum_sum, combine_sums, ip, write_u16};

const MESSAGE_TYPE: u8 = 4;
const HEADER_BYTES: usize = 8;
/// Bytes of the offending packet that are quoted: with the headers in front, the minimum IPv6 MTU
/// (RFC 4443, section 3.4; RFC 8200, section 5).
const QUOTE_BYTES: usize = 1_280 - V6_BYTES - HEADER_BYTES;

fn read_address(packet: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
    Ipv6Addr::from(octets).into()
}

/// Sends a Parameter Problem to the sender of a packet, if RFC 4443, section 2.4 allows it.
/// `is_group_frame`: the frame had a group's Ethernet address.
#[cold]
pub(crate) fn send_parameter_problem(
    link: &mut LinkLayer,
    packet: &[u8],
    problem: HeaderProblem,
    is_group_frame: bool,
) {
    let (from, to) = (read_address(packet, 8), read_address(packet, 24));
    let is_unicast = link.addressing.is_local(to);
    let is_allowed = link.addressing.accepts(to)
        && !from.is_unspecified()
        && !link.addressing.is_invalid_source(from)
        && ((is_unicast && !is_group_frame) || problem.applies_to_groups)
        && !ip::is_icmp_error(packet);
    if !is_allowed {
        return;
    }
    let local = match is_unicast {
        true => Some(to),
        false => link.addressing.source_for(from),
    };
    let Some(local) = local else {
        return;
    };
    if !link.may_send_error() {
        return;
    }
    let quote = &packet[..packet.len().min(QUOTE_BYTES)];
    let length = HEADER_BYTES + quote.len();
    let Some(mut frame) = link.allocate_frame(V6_BYTES + length) else {
        return;
    };
    let packet_out = link.packet(&mut frame);
    ip::write_header(packet_out, local, from, ICMPV6, length, 0);
    let message = &mut packet_out[V6_BYTES..];
    message[..4].copy_from_slice(&[MESSAGE_TYPE, problem.code, 0, 0]);
    message[4..HEADER_BYTES].copy_from_slice(&problem.offset.to_be_bytes());
    message[HEADER_BYTES..].copy_from_slice(quote);
    let checksum = !combine_sums([
        ip::folded_pseudo_sum(local, from, ICMPV6, length),
        checksum_sum(message),
    ]);
    write_u16(message, 2, checksum);
    link.counters.icmp.out_parameter_problems += 1;
    link.counters.icmp.out_messages += 1;
    link.send(frame, from, VnetHeader::default());
}
