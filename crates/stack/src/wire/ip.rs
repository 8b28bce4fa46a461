//! IPv4 and IPv6 headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT_V6, HOPS, ICMPV6, Sum, long, put, sum, word};

pub(crate) const V4_BYTES: usize = 20;
pub(crate) const V6_BYTES: usize = 40;
/// Length of the IPv6 fragment header (RFC 8200, section 4.5).
pub(crate) const FRAGMENT_BYTES: usize = 8;

/// IPv6 extension headers that are skipped: hop-by-hop options, routing, destination options.
const EXTENSIONS: [u8; 3] = [HOP_BY_HOP, ROUTING, 60];
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
/// Offset of the Next Header field in the IPv6 header.
const NEXT_HEADER: usize = 6;

/// Parsed IP header; offsets count from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) tos: u8,
    /// Offset of the transport header.
    pub(crate) body: usize,
    /// End of the packet; the rest of the frame is padding.
    pub(crate) end: usize,
    /// Position in the datagram, if the packet is a fragment.
    pub(crate) piece: Option<Piece>,
}

/// Position of a fragment (RFC 791; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) id: u32,
    pub(crate) offset: usize,
    pub(crate) more: bool,
}

/// Reason to reject an IPv6 packet that calls for a Parameter Problem message (RFC 4443, section
/// 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) code: u8,
    /// Offset of the rejected field in the packet.
    pub(crate) at: u32,
    /// The message is sent for packets to a group, too.
    pub(crate) to_groups: bool,
}

/// Codes: erroneous field, unknown next header, unknown option.
const ERRONEOUS: u8 = 0;
const UNKNOWN_HEADER: u8 = 1;
const UNKNOWN_OPTION: u8 = 2;

/// Rejected without a message: truncated, or an option that requires silent discard.
const UNTOLD: Option<Problem> = None;

/// Parses the header of a packet of IP version 4 (`v4`) or 6. `None` if it is invalid, or its
/// checksum is wrong.
#[cfg(test)]
pub(crate) fn parse(packet: &[u8], v4: bool, verify: bool) -> Option<Header> {
    if v4 {
        parse_v4(packet, verify)
    } else {
        parse_v6(packet)
    }
}

/// Parses an IPv4 header; `None` if it is invalid, or its checksum is wrong.
#[inline(always)]
pub(crate) fn parse_v4(packet: &[u8], verify: bool) -> Option<Header> {
    // An array of known length needs no bounds checks. With a slice the compiler built the header
    // in memory, out of line, and the datagram path waited for it.
    let plain: &[u8; V4_BYTES] = packet.first_chunk()?;
    let body = usize::from(plain[0] & 0xf) * 4;
    if plain[0] >> 4 != 4 || body < V4_BYTES || packet.len() < body {
        return None;
    }
    let end = usize::from(word(plain, 2));
    if end < body || end > packet.len() {
        return None;
    }
    if verify {
        let summed = match body {
            V4_BYTES => Sum::of_header(plain),
            _ => Sum::of(&packet[..body]),
        };
        if !summed.is_right() {
            return None;
        }
    }
    const MORE: u16 = 0x2000;
    const OFFSET: u16 = 0x1fff;
    let place = word(plain, 6);
    let piece = match place & (MORE | OFFSET) {
        0 => None,
        _ => Some(Piece {
            id: word(plain, 4).into(),
            offset: usize::from(place & OFFSET) * 8,
            more: place & MORE != 0,
        }),
    };
    // Loaded as 32-bit words instead of single bytes.
    let (words, _) = plain.as_chunks::<4>();
    Some(Header {
        from: Ipv4Addr::from(words[3]).into(),
        to: Ipv4Addr::from(words[4]).into(),
        protocol: plain[9],
        tos: plain[1],
        body,
        end,
        piece,
    })
}

/// Parses an IPv6 header, which has no checksum; `None` if it is invalid.
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
    let (mut protocol, mut body) = past_own_extensions(&packet[..end]).ok()?;
    let mut piece = None;
    if protocol == FRAGMENT_V6 {
        (protocol, body, piece) = parse_fragment(&packet[..end], body).ok()?;
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

/// Returns the problem to report for an IPv6 packet that [`parse_v6`] rejects, if any.
#[cold]
pub(crate) fn problem(packet: &[u8]) -> Option<Problem> {
    if packet.len() < V6_BYTES || packet[0] >> 4 != 6 {
        return None;
    }
    let packet = packet.get(..V6_BYTES + usize::from(word(packet, 4)))?;
    match past_own_extensions(packet) {
        Ok((FRAGMENT_V6, at)) => parse_fragment(packet, at).err()?,
        Ok(_) => None,
        Err(problem) => problem,
    }
}

/// Skips the extension headers of a complete IPv6 packet: returns the protocol behind them, and its
/// offset.
#[inline]
fn past_own_extensions(packet: &[u8]) -> Result<(u8, usize), Option<Problem>> {
    past_extensions(packet, packet[NEXT_HEADER], (NEXT_HEADER, V6_BYTES))
}

/// Skips extension headers. The first one is of type `protocol`, is announced by the field at
/// offset `named`, and begins at `at`. Returns the protocol behind them, and its offset. The error
/// is the problem to report, or `None` for silent discard.
#[inline]
pub(crate) fn past_extensions(
    packet: &[u8],
    mut protocol: u8,
    (mut named, mut at): (usize, usize),
) -> Result<(u8, usize), Option<Problem>> {
    while EXTENSIONS.contains(&protocol) {
        let behind = past_one(packet, protocol, (named, at))?;
        (protocol, named, at) = (packet[at], at, behind);
    }
    Ok((protocol, at))
}

/// Returns the end of an extension header, if all its content may be skipped (RFC 8200, sections
/// 4.2 to 4.6).
#[cold]
fn past_one(
    packet: &[u8],
    kind: u8,
    (named, at): (usize, usize),
) -> Result<usize, Option<Problem>> {
    let problem = |code, at: usize| Problem {
        code,
        at: at as u32,
        to_groups: false,
    };
    let eights = *packet.get(at + 1).ok_or(UNTOLD)?;
    let end = at + 8 + usize::from(eights) * 8;
    let header = packet.get(at..end).ok_or(UNTOLD)?;
    match kind {
        HOP_BY_HOP if named != NEXT_HEADER => return Err(Some(problem(UNKNOWN_HEADER, named))),
        // Segments left: the packet requires forwarding, and no routing type is supported.
        ROUTING if header[3] != 0 => return Err(Some(problem(ERRONEOUS, at + 2))),
        ROUTING => return Ok(end),
        _ => {}
    }
    const ONE_OF_PADDING: u8 = 0;
    let mut place = 2;
    while place < header.len() {
        let option = header[place];
        if option == ONE_OF_PADDING {
            place += 1;
            continue;
        }
        let behind = place + 2 + usize::from(*header.get(place + 1).ok_or(UNTOLD)?);
        if behind > header.len() {
            return Err(UNTOLD);
        }
        // No option is supported: the two high bits of its type say how to treat an unknown one.
        match option >> 6 {
            0 => {}
            1 => return Err(UNTOLD),
            two => {
                return Err(Some(Problem {
                    to_groups: two == 2,
                    ..problem(UNKNOWN_OPTION, at + place)
                }));
            }
        }
        place = behind;
    }
    Ok(end)
}

/// Calls `found` with type and offset of each header of a packet, without validating them, until it
/// returns true.
fn find_header(packet: &[u8], mut found: impl FnMut(u8, usize) -> bool) -> bool {
    let (mut kind, mut at) = (packet[NEXT_HEADER], V6_BYTES);
    loop {
        if found(kind, at) {
            return true;
        }
        let Some(header) = packet.get(at..at + 8) else {
            return false;
        };
        at += match kind {
            FRAGMENT_V6 => FRAGMENT_BYTES,
            kind if EXTENSIONS.contains(&kind) => 8 + usize::from(header[1]) * 8,
            _ => return false,
        };
        kind = header[0];
    }
}

/// Returns whether an IPv6 packet has a fragment header, that of an unfragmented datagram included.
#[cold]
pub(crate) fn has_fragment_header(packet: &[u8]) -> bool {
    find_header(packet, |kind, _| kind == FRAGMENT_V6)
}

/// Returns whether an IPv6 packet carries an ICMP error; errors are never sent about errors.
#[cold]
pub(crate) fn is_error(packet: &[u8]) -> bool {
    const FIRST_THAT_IS_NONE: u8 = 128;
    let is = |at| {
        packet
            .get(at)
            .is_some_and(|&kind| kind < FIRST_THAT_IS_NONE)
    };
    find_header(packet, |kind, at| kind == ICMPV6 && is(at))
}

/// Parses a fragment header: returns the protocol behind it, its offset, and the fragment's
/// position. A fragment that is a complete datagram has none, whatever other fragments exist (RFC
/// 6946).
#[cold]
fn parse_fragment(packet: &[u8], at: usize) -> Result<(u8, usize, Option<Piece>), Option<Problem>> {
    const MORE: u16 = 1;
    const OFFSET: u16 = 0xfff8;
    let header = packet.get(at..at + FRAGMENT_BYTES).ok_or(UNTOLD)?;
    let place = word(header, 2);
    let (protocol, body) = (header[0], at + FRAGMENT_BYTES);
    if place & (MORE | OFFSET) == 0 {
        let (protocol, body) = past_extensions(packet, protocol, (at, body))?;
        return Ok((protocol, body, None));
    }
    let piece = Piece {
        id: long(header, 4),
        offset: (place & OFFSET).into(),
        more: place & MORE != 0,
    };
    Ok((protocol, body, Some(piece)))
}

/// Writes a fragment header.
pub(crate) fn write_fragment(header: &mut [u8], protocol: u8, piece: Piece) {
    header[..2].copy_from_slice(&[protocol, 0]);
    put(header, 2, piece.offset as u16 | u16::from(piece.more));
    header[4..FRAGMENT_BYTES].copy_from_slice(&piece.id.to_be_bytes());
}

/// Returns the length of the header that [`write`] makes.
pub(crate) const fn header_bytes(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => V4_BYTES,
        IpAddr::V6(_) => V6_BYTES,
    }
}

/// Returns the length of the header that [`write`] makes, by IP version.
pub(crate) const fn header_bytes_of(v4: bool) -> usize {
    if v4 { V4_BYTES } else { V6_BYTES }
}

pub(crate) const fn ethertype(to: IpAddr) -> u16 {
    match to {
        IpAddr::V4(_) => ETHERTYPE_IPV4,
        IpAddr::V6(_) => ETHERTYPE_IPV6,
    }
}

/// Writes a header in front of `payload` bytes. `id` is the IPv4 identification.
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

/// Sets type of service or traffic class; the caller updates the checksum.
pub(crate) fn mark(packet: &mut [u8], tos: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = tos;
    } else {
        packet[0] = 0x60 | tos >> 4;
        packet[1] = tos << 4 | packet[1] & 0x0f;
    }
}

/// Sets TTL or hop limit; the caller updates the checksum.
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

/// Returns the folded sum of the pseudo header (RFC 9293; RFC 8200, section 8.1).
#[inline]
pub(crate) fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u16 {
    pseudo_sum(from, to, protocol, length).folded()
}

/// Returns the sum of the pseudo header, to be added to that of the data.
#[inline(always)]
pub(crate) fn pseudo_sum(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Sum {
    Sum::address(from)
        + Sum::address(to)
        + Sum::word(protocol.into())
        + Sum::word((length >> 16) as u16)
        + Sum::word(length as u16)
}

/// Returns the sum of the pseudo header of a parsed packet, without the length. It reads the
/// addresses from the packet: the parsed header was just written in shorter stores, for which wider
/// loads would wait.
#[inline(always)]
pub(crate) fn pseudo_sum_in(packet: &[u8], v4: bool, protocol: u8) -> Sum {
    let addresses = match v4 {
        true => &packet[12..V4_BYTES],
        false => &packet[8..V6_BYTES],
    };
    Sum::of(addresses) + Sum::word(protocol.into())
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
            // Options in front of the fragment header are not part of the fragmented data.
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
                // One in three has a fragment header.
                *next = [*next, FRAGMENT_V6, 60][usize::from(*next) % 3];
            }
            if let Some(header) = parse(&bytes, v4, false) {
                prop_assert!(header.body <= header.end && header.end <= bytes.len());
            }
        }
    }
}
