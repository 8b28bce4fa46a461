//! IPv4 and IPv6 headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT_V6, HOPS, Sum, long, put, sum, word};

pub(crate) const V4_BYTES: usize = 20;
pub(crate) const V6_BYTES: usize = 40;
/// Bytes of IPv6's header of fragments (RFC 8200, section 4.5).
pub(crate) const FRAGMENT_BYTES: usize = 8;

/// Headers of IPv6 that lie in front of the transport's: hop-by-hop, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// What a header says; positions count from the start of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) tos: u8,
    /// Where the protocol's own header begins.
    pub(crate) body: usize,
    /// Where the packet ends; what is behind is padding.
    pub(crate) end: usize,
    /// Its place in a datagram, when it is a piece of one.
    pub(crate) piece: Option<Piece>,
}

/// A fragment's place (RFC 791; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) id: u32,
    pub(crate) offset: usize,
    pub(crate) more: bool,
}

/// Reads the header of a packet, which is of version 4 if `v4`. `None` when it is none, or its checksum
/// is wrong.
#[cfg(test)]
pub(crate) fn parse(packet: &[u8], v4: bool, verify: bool) -> Option<Header> {
    if v4 {
        parse_v4(packet, verify)
    } else {
        parse_v6(packet)
    }
}

/// Reads the header of a packet of version 4; `None` when it is none, or its checksum is wrong.
#[inline(always)]
pub(crate) fn parse_v4(packet: &[u8], verify: bool) -> Option<Header> {
    let first = *packet.first()?;
    let body = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || body < V4_BYTES || packet.len() < body {
        return None;
    }
    let end = usize::from(word(packet, 2));
    if end < body || end > packet.len() {
        return None;
    }
    if verify {
        let summed = match packet.first_chunk::<V4_BYTES>() {
            Some(plain) if body == V4_BYTES => Sum::of_header(plain),
            _ => Sum::of(&packet[..body]),
        };
        if !summed.is_right() {
            return None;
        }
    }
    let address =
        |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    const MORE: u16 = 0x2000;
    const OFFSET: u16 = 0x1fff;
    let place = word(packet, 6);
    let piece = (place & (MORE | OFFSET) != 0).then(|| Piece {
        id: word(packet, 4).into(),
        offset: usize::from(place & OFFSET) * 8,
        more: place & MORE != 0,
    });
    Some(Header {
        from: address(12).into(),
        to: address(16).into(),
        protocol: packet[9],
        tos: packet[1],
        body,
        end,
        piece,
    })
}

/// The same of version 6, whose header has no checksum.
#[inline]
pub(crate) fn parse_v6(packet: &[u8]) -> Option<Header> {
    if packet.len() < V6_BYTES || packet[0] >> 4 != 6 {
        return None;
    }
    let end = V6_BYTES + usize::from(word(packet, 4));
    if end > packet.len() {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
        Ipv6Addr::from(octets)
    };
    let (mut protocol, mut body) = past_extensions(&packet[..end], packet[6], V6_BYTES)?;
    let mut piece = None;
    if protocol == FRAGMENT_V6 {
        (protocol, body, piece) = parse_fragment(&packet[..end], body)?;
    }
    Some(Header {
        from: address(8).into(),
        to: address(24).into(),
        protocol,
        tos: (packet[0] << 4) | (packet[1] >> 4),
        body,
        end,
        piece,
    })
}

/// What lies behind the extensions of which the first is of this kind and begins `at` there: the protocol, and where it
/// begins.
#[inline]
pub(crate) fn past_extensions(
    packet: &[u8],
    mut protocol: u8,
    mut at: usize,
) -> Option<(u8, usize)> {
    while EXTENSIONS.contains(&protocol) {
        let header = packet.get(at..at + 8)?;
        protocol = header[0];
        at += 8 + usize::from(header[1]) * 8;
    }
    (at <= packet.len()).then_some((protocol, at))
}

/// Reads a header of fragments: the protocol behind it, where that begins, and the fragment's place. One that is all of
/// its datagram is none, whatever other fragments say (RFC 6946).
#[cold]
fn parse_fragment(packet: &[u8], at: usize) -> Option<(u8, usize, Option<Piece>)> {
    const MORE: u16 = 1;
    const OFFSET: u16 = 0xfff8;
    let header = packet.get(at..at + FRAGMENT_BYTES)?;
    let place = word(header, 2);
    let (protocol, body) = (header[0], at + FRAGMENT_BYTES);
    if place & (MORE | OFFSET) == 0 {
        let (protocol, body) = past_extensions(packet, protocol, body)?;
        return Some((protocol, body, None));
    }
    let piece = Piece {
        id: long(header, 4),
        offset: (place & OFFSET).into(),
        more: place & MORE != 0,
    };
    Some((protocol, body, Some(piece)))
}

/// Writes a header of fragments.
pub(crate) fn write_fragment(header: &mut [u8], protocol: u8, piece: Piece) {
    header[..2].copy_from_slice(&[protocol, 0]);
    put(header, 2, piece.offset as u16 | u16::from(piece.more));
    header[4..FRAGMENT_BYTES].copy_from_slice(&piece.id.to_be_bytes());
}

/// Bytes of the header that [`write`] makes.
pub(crate) const fn header_bytes(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => V4_BYTES,
        IpAddr::V6(_) => V6_BYTES,
    }
}

/// The same by version.
pub(crate) const fn header_bytes_of(v4: bool) -> usize {
    if v4 { V4_BYTES } else { V6_BYTES }
}

pub(crate) const fn ethertype(to: IpAddr) -> u16 {
    match to {
        IpAddr::V4(_) => ETHERTYPE_IPV4,
        IpAddr::V6(_) => ETHERTYPE_IPV6,
    }
}

/// Writes a header in front of `payload` bytes. `id` is the datagram's number (IPv4).
pub(crate) fn write(
    packet: &mut [u8],
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    payload: usize,
    id: u16,
) {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = &mut packet[..V4_BYTES];
            header.fill(0);
            header[0] = 0x45;
            put(header, 2, (V4_BYTES + payload) as u16);
            put(header, 4, id);
            header[8] = HOPS;
            header[9] = protocol;
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            seal(header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = &mut packet[..V6_BYTES];
            header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
            put(header, 4, payload as u16);
            header[6] = protocol;
            header[7] = HOPS;
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
        }
        _ => unreachable!("the source is chosen by the destination's version"),
    }
}

/// Writes the type of service or traffic class into a header; its checksum is the caller's.
pub(crate) fn mark(packet: &mut [u8], tos: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = tos;
    } else {
        packet[0] = 0x60 | tos >> 4;
        packet[1] = tos << 4 | packet[1] & 0x0f;
    }
}

/// Writes how many networks a packet may cross into its header; its checksum is the caller's.
pub(crate) fn limit_hops(packet: &mut [u8], hops: u8) {
    let at = if packet[0] >> 4 == 4 { 8 } else { 7 };
    packet[at] = hops;
}

/// Writes the checksum of an IPv4 header.
pub(crate) fn seal(header: &mut [u8]) {
    put(header, 10, 0);
    let checksum = !sum(header);
    put(header, 10, checksum);
}

/// The sum of the pseudo header (RFC 9293, RFC 8200 section 8.1).
#[inline]
pub(crate) fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u16 {
    pseudo_sum(from, to, protocol, length).folded()
}

/// The same, to be added to that of what follows.
#[inline(always)]
pub(crate) fn pseudo_sum(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Sum {
    Sum::address(from)
        + Sum::address(to)
        + Sum::word(protocol.into())
        + Sum::word((length >> 16) as u16)
        + Sum::word(length as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            v4: bool,
            addresses: [u128; 2],
            protocol in prop::sample::select(vec![1u8, 6, 17, 58, 99]),
            payload in 0usize..100,
            id: u16,
        ) {
            let [from, to] = addresses.map(|bits| if v4 {
                IpAddr::V4(Ipv4Addr::from(bits as u32))
            } else {
                IpAddr::V6(Ipv6Addr::from(bits))
            });
            let mut packet = vec![0xaa; header_bytes(to) + payload + 3];
            write(&mut packet, from, to, protocol, payload, id);
            mark(&mut packet, id as u8);
            limit_hops(&mut packet, 1);
            if v4 {
                seal(&mut packet[..V4_BYTES]);
            }
            prop_assert_eq!(packet[if v4 { 8 } else { 7 }], 1);
            let header = parse(&packet, v4, true).unwrap();
            prop_assert_eq!((header.from, header.to, header.protocol), (from, to, protocol));
            prop_assert_eq!(header.tos, id as u8);
            prop_assert_eq!((header.body, header.end), (header_bytes(to), header_bytes(to) + payload));
            if v4 {
                packet[8] ^= 1;
                prop_assert!(parse(&packet, true, true).is_none());
                prop_assert!(parse(&packet, true, false).is_some());
            }
        }

        #[test]
        fn a_fragment_of_ipv6_reads_back(
            id: u32,
            offset in (0usize..8_192).prop_map(|number| number * 8),
            more: bool,
            options: bool,
        ) {
            let (from, to) = (Ipv6Addr::from(1).into(), Ipv6Addr::from(2).into());
            let piece = Piece { id, offset, more };
            // Options in front of it are no part of what was cut.
            let at = V6_BYTES + if options { 16 } else { 0 };
            let mut packet = vec![0; at + FRAGMENT_BYTES + 24];
            let behind = packet.len() - V6_BYTES;
            write(&mut packet, from, to, FRAGMENT_V6, behind, 0);
            if options {
                packet[6] = 60;
                packet[V6_BYTES..V6_BYTES + 2].copy_from_slice(&[FRAGMENT_V6, 1]);
            }
            write_fragment(&mut packet[at..], 17, piece);
            let header = parse(&packet, false, true).unwrap();
            prop_assert_eq!((header.protocol, header.body), (17, at + FRAGMENT_BYTES));
            prop_assert_eq!(header.piece, (offset > 0 || more).then_some(piece));
        }

        #[test]
        fn no_packet_panics(bytes in prop::collection::vec(any::<u8>(), 0..120), v4: bool) {
            let mut bytes = bytes;
            if let (false, Some(next)) = (v4, bytes.get_mut(6)) {
                // One in three has a header of fragments.
                *next = [*next, FRAGMENT_V6, 60][usize::from(*next) % 3];
            }
            if let Some(header) = parse(&bytes, v4, false) {
                prop_assert!(header.body <= header.end && header.end <= bytes.len());
            }
        }
    }
}
