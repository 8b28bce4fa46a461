//! ICMPv6 Parameter Problem: reports IPv6 headers that the stack does not process to their sender
//! (RFC 4443, section 3.4).

use std::net::{IpAddr, Ipv6Addr};

use linerate_port::vnet::VnetHeader;

use crate::link::Link;
use crate::wire::ip::{self, Problem, V6_BYTES};
use crate::wire::{ICMPV6, combine, put, sum};

const KIND: u8 = 4;
const HEADER_BYTES: usize = 8;
/// Bytes of the offending packet that are quoted: with the headers in front, the minimum IPv6 MTU
/// (RFC 4443, section 3.4; RFC 8200, section 5).
const QUOTE_BYTES: usize = 1_280 - V6_BYTES - HEADER_BYTES;

fn address(packet: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
    Ipv6Addr::from(octets).into()
}

/// Sends a Parameter Problem to the sender of a packet, if RFC 4443, section 2.4 allows it.
/// `to_many`: the frame had a group's Ethernet address.
#[cold]
pub(crate) fn tell(link: &mut Link, packet: &[u8], problem: Problem, to_many: bool) {
    let (from, to) = (address(packet, 8), address(packet, 24));
    let one = link.own.is_own(to);
    let may = link.own.accepts(to)
        && !from.is_unspecified()
        && !link.own.is_nobody(from)
        && ((one && !to_many) || problem.to_groups)
        && !ip::is_error(packet);
    if !may {
        return;
    }
    let own = match one {
        true => Some(to),
        false => link.own.source_for(from),
    };
    let Some(own) = own else {
        return;
    };
    if !link.may_complain() {
        return;
    }
    let quote = &packet[..packet.len().min(QUOTE_BYTES)];
    let length = HEADER_BYTES + quote.len();
    let Some(mut frame) = link.make(V6_BYTES + length) else {
        return;
    };
    let made = link.packet(&mut frame);
    ip::write(made, own, from, ICMPV6, length, 0);
    let message = &mut made[V6_BYTES..];
    message[..4].copy_from_slice(&[KIND, problem.code, 0, 0]);
    message[4..HEADER_BYTES].copy_from_slice(&problem.at.to_be_bytes());
    message[HEADER_BYTES..].copy_from_slice(quote);
    let checksum = !combine([ip::pseudo(own, from, ICMPV6, length), sum(message)]);
    put(message, 2, checksum);
    link.counters.icmp.out_parameter_problems += 1;
    link.counters.icmp.out_messages += 1;
    link.send(frame, from, VnetHeader::default());
}
