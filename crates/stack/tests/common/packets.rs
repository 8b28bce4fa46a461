//! Packets in frames, built from scratch or from others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use linerate_port::checksum::{self, Sum};

use super::byte;

/// Header lengths in bytes.
pub const ETHERNET: usize = 14;
pub const V4: usize = 20;
pub const V6: usize = 40;

/// Protocol numbers.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const FRAGMENT: u8 = 44;
pub const ICMPV6: u8 = 58;

/// Broadcast address, and the Ethernet address of a third host.
pub const EVERYBODY: [u8; 6] = [0xff; 6];
pub const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Builds a packet between two hosts, in a frame to an Ethernet address.
pub fn packet(ethernet: [u8; 6], ends: (&str, &str), kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [ethernet, STRANGER].concat();
    let (from, to): (IpAddr, IpAddr) = (ends.0.parse().unwrap(), ends.1.parse().unwrap());
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
    let words = [from, to, 8 + payload.len() as u16, 0];
    let mut datagram = words.map(u16::to_be_bytes).concat();
    datagram.extend_from_slice(payload);
    datagram
}

/// Builds an echo request with this many bytes.
pub fn ping(ethernet: [u8; 6], ends: (&str, &str), bytes: usize) -> Vec<u8> {
    let (kind, asks) = if ends.1.contains(':') {
        (ICMPV6, 128)
    } else {
        (ICMP, 8)
    };
    let mut message = vec![asks, 0, 0, 0, 1, 2, 0, 1];
    message.extend((0..bytes).map(byte));
    packet(ethernet, ends, kind, &message)
}

/// Builds a fragment with this range of a packet's payload.
pub fn piece(frame: &[u8], id: u16, bytes: Range<usize>) -> Vec<u8> {
    let held = &frame[body(frame)..];
    let (place, more) = (bytes.start as u16 / 8, u16::from(bytes.end < held.len()));
    let mut piece = frame[..body(frame)].to_vec();
    if is_v4(frame) {
        put(&mut piece, ETHERNET + 4, id);
        put(&mut piece, ETHERNET + 6, more << 13 | place);
    } else {
        let kind = std::mem::replace(&mut piece[ETHERNET + 6], FRAGMENT);
        piece.extend([kind, 0]);
        piece.extend([place << 3 | more, 0, id].map(u16::to_be_bytes).concat());
    }
    piece.extend_from_slice(&held[bytes]);
    complete_header(&mut piece);
    piece
}

/// Inserts IPv6 extension headers, the first one of type `first`, in front of a packet's payload.
pub fn insert_headers(frame: &mut Vec<u8>, first: u8, headers: &[u8]) {
    let at = body(frame);
    frame[ETHERNET + 6] = first;
    frame.splice(at..at, headers.iter().copied());
    complete_header(frame);
}

/// Writes length and checksums of a modified packet.
pub fn complete(frame: &mut [u8]) {
    complete_header(frame);
    let at = body(frame);
    let message = (frame.len() - at) as u16;
    let (kind, start) = match is_v4(frame) {
        true => (frame[ETHERNET + 9], Sum::default()),
        false => {
            let ends = Sum::of(&frame[ETHERNET + 8..at]);
            let sum = ends + Sum::word(ICMPV6.into()) + Sum::word(message);
            (frame[ETHERNET + 6], sum)
        }
    };
    if [ICMP, ICMPV6].contains(&kind) {
        put(frame, at + 2, 0);
        let sum = start + Sum::of(&frame[at..]);
        put(frame, at + 2, !sum.folded());
    } else {
        checksum::complete(frame);
    }
}

fn complete_header(frame: &mut [u8]) {
    let (v4, packet) = (is_v4(frame), &mut frame[ETHERNET..]);
    let length = packet.len() as u16;
    if v4 {
        put(packet, 2, length);
        put(packet, 10, 0);
        let sum = Sum::of(&packet[..V4]);
        put(packet, 10, !sum.folded());
    } else {
        put(packet, 4, length - V6 as u16);
    }
}

fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

pub fn is_v4(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0]
}

/// Returns the offset of the payload behind a plain IP header.
pub fn body(frame: &[u8]) -> usize {
    ETHERNET + if is_v4(frame) { V4 } else { V6 }
}

/// Returns the source address of a packet.
pub fn sender(frame: &[u8]) -> IpAddr {
    let packet = &frame[ETHERNET..];
    if is_v4(frame) {
        Ipv4Addr::from_octets(packet[12..16].try_into().unwrap()).into()
    } else {
        Ipv6Addr::from_octets(packet[8..24].try_into().unwrap()).into()
    }
}

/// Returns the destination address of a packet.
pub fn addressee(frame: &[u8]) -> IpAddr {
    let packet = &frame[ETHERNET..];
    if is_v4(frame) {
        Ipv4Addr::from_octets(packet[16..20].try_into().unwrap()).into()
    } else {
        Ipv6Addr::from_octets(packet[24..40].try_into().unwrap()).into()
    }
}
