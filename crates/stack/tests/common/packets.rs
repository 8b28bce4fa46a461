//! Packets in frames, built from scratch or from others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use linerate_packet::checksum;
use linerate_packet::checksum::UnfoldedSum;

use super::pattern_byte;

/// Header lengths in bytes.
pub const ETHERNET_BYTES: usize = 14;
pub const V4_BYTES: usize = 20;
pub const V6_BYTES: usize = 40;

/// Protocol numbers.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const FRAGMENT: u8 = 44;
pub const ICMPV6: u8 = 58;

/// Broadcast address, and the Ethernet address of a third host.
pub const BROADCAST: [u8; 6] = [0xff; 6];
pub const THIRD_HOST: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Builds a packet between two hosts, in a frame to an Ethernet address.
pub fn packet(ethernet: [u8; 6], addresses: (&str, &str), kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [ethernet, THIRD_HOST].concat();
    let (from, to): (IpAddr, IpAddr) = (addresses.0.parse().unwrap(), addresses.1.parse().unwrap());
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, kind, 0, 0]);
            frame.extend([from.octets(), to.octets()].concat());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, kind, 64]);
            frame.extend([from.octets(), to.octets()].concat());
        }
        _ => panic!("no packet goes from {from} to {to}"),
    }
    frame.extend_from_slice(payload);
    complete(&mut frame);
    frame
}

/// Builds a datagram without a checksum.
pub fn datagram(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let fields = [from, to, 8 + payload.len() as u16, 0];
    let mut datagram = fields.map(u16::to_be_bytes).concat();
    datagram.extend_from_slice(payload);
    datagram
}

/// Builds an echo request with this many bytes.
pub fn ping(ethernet: [u8; 6], addresses: (&str, &str), bytes: usize) -> Vec<u8> {
    let (protocol, echo_type) = if addresses.1.contains(':') {
        (ICMPV6, 128)
    } else {
        (ICMP, 8)
    };
    let mut message = vec![echo_type, 0, 0, 0, 1, 2, 0, 1];
    message.extend((0..bytes).map(pattern_byte));
    packet(ethernet, addresses, protocol, &message)
}

/// Builds a fragment with this range of a packet's payload.
pub fn fragment(frame: &[u8], id: u16, bytes: Range<usize>) -> Vec<u8> {
    let payload = &frame[payload_offset(frame)..];
    let (offset, more) = (bytes.start as u16 / 8, u16::from(bytes.end < payload.len()));
    let mut fragment_frame = frame[..payload_offset(frame)].to_vec();
    if is_v4(frame) {
        put(&mut fragment_frame, ETHERNET_BYTES + 4, id);
        put(&mut fragment_frame, ETHERNET_BYTES + 6, more << 13 | offset);
    } else {
        let kind = std::mem::replace(&mut fragment_frame[ETHERNET_BYTES + 6], FRAGMENT);
        fragment_frame.extend([kind, 0]);
        fragment_frame.extend([offset << 3 | more, 0, id].map(u16::to_be_bytes).concat());
    }
    fragment_frame.extend_from_slice(&payload[bytes]);
    complete_header(&mut fragment_frame);
    fragment_frame
}

/// Inserts IPv6 extension headers, the first one of type `first`, in front of a packet's payload.
pub fn insert_headers(frame: &mut Vec<u8>, first: u8, headers: &[u8]) {
    let payload_at = payload_offset(frame);
    frame[ETHERNET_BYTES + 6] = first;
    frame.splice(payload_at..payload_at, headers.iter().copied());
    complete_header(frame);
}

/// Writes length and checksums of a modified packet.
pub fn complete(frame: &mut [u8]) {
    complete_header(frame);
    let payload_at = payload_offset(frame);
    let message = (frame.len() - payload_at) as u16;
    let (kind, start) = match is_v4(frame) {
        true => (frame[ETHERNET_BYTES + 9], UnfoldedSum::default()),
        false => {
            let addresses = UnfoldedSum::from_bytes(&frame[ETHERNET_BYTES + 8..payload_at]);
            let sum =
                addresses + UnfoldedSum::from_u16(ICMPV6.into()) + UnfoldedSum::from_u16(message);
            (frame[ETHERNET_BYTES + 6], sum)
        }
    };
    if [ICMP, ICMPV6].contains(&kind) {
        put(frame, payload_at + 2, 0);
        let sum = start + UnfoldedSum::from_bytes(&frame[payload_at..]);
        put(frame, payload_at + 2, !sum.to_u16());
    } else {
        checksum::complete(frame);
    }
}

fn complete_header(frame: &mut [u8]) {
    let (v4, packet) = (is_v4(frame), &mut frame[ETHERNET_BYTES..]);
    let length = packet.len() as u16;
    if v4 {
        put(packet, 2, length);
        put(packet, 10, 0);
        let sum = UnfoldedSum::from_bytes(&packet[..V4_BYTES]);
        put(packet, 10, !sum.to_u16());
    } else {
        put(packet, 4, length - V6_BYTES as u16);
    }
}

fn put(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

pub fn is_v4(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0]
}

/// Returns the offset of the payload behind a plain IP header.
pub fn payload_offset(frame: &[u8]) -> usize {
    ETHERNET_BYTES + if is_v4(frame) { V4_BYTES } else { V6_BYTES }
}

/// Returns the source address of a packet.
pub fn source(frame: &[u8]) -> IpAddr {
    let packet = &frame[ETHERNET_BYTES..];
    if is_v4(frame) {
        Ipv4Addr::from_octets(packet[12..16].try_into().unwrap()).into()
    } else {
        Ipv6Addr::from_octets(packet[8..24].try_into().unwrap()).into()
    }
}

/// Returns the destination address of a packet.
pub fn destination(frame: &[u8]) -> IpAddr {
    let packet = &frame[ETHERNET_BYTES..];
    if is_v4(frame) {
        Ipv4Addr::from_octets(packet[16..20].try_into().unwrap()).into()
    } else {
        Ipv6Addr::from_octets(packet[24..40].try_into().unwrap()).into()
    }
}
