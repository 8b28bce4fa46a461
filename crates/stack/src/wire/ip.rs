//! IPv4 and IPv6 headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_packet::checksum::UnfoldedSum;

use super::{
    DEFAULT_HOP_LIMIT, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT_HEADER_V6, ICMPV6, checksum_sum,
    read_u16, read_u32, write_u16,
};

pub(crate) const V4_BYTES: usize = 20;
pub(crate) const V6_BYTES: usize = 40;
/// Length of the IPv6 fragment header (RFC 8200, section 4.5).
pub(crate) const FRAGMENT_BYTES: usize = 8;

/// IPv6 extension headers that are skipped: hop-by-hop options, routing, destination options.
const EXTENSION_HEADERS: [u8; 3] = [HOP_BY_HOP, ROUTING, 60];
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
/// Offset of the Next Header field in the IPv6 header.
const NEXT_HEADER_OFFSET: usize = 6;

/// Parsed IP header; offsets count from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpHeader {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) tos: u8,
    /// Offset of the transport header.
    pub(crate) transport: usize,
    /// End of the packet; the rest of the frame is padding.
    pub(crate) end: usize,
    /// Position in the datagram, if the packet is a fragment.
    pub(crate) fragment: Option<FragmentPosition>,
}

/// Position of a fragment (RFC 791; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentPosition {
    pub(crate) id: u32,
    pub(crate) offset: usize,
    pub(crate) has_more: bool,
}

/// Reason to reject an IPv6 packet that calls for a Parameter Problem message (RFC 4443, section
/// 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderProblem {
    pub(crate) code: u8,
    /// Offset of the rejected field in the packet.
    pub(crate) offset: u32,
    /// The message is sent for packets to a group, too.
    pub(crate) applies_to_groups: bool,
}

/// Codes: erroneous field, unknown next header, unknown option.
const CODE_ERRONEOUS_FIELD: u8 = 0;
const CODE_UNKNOWN_HEADER: u8 = 1;
const CODE_UNKNOWN_OPTION: u8 = 2;

/// Rejected without a message: truncated, or an option that requires silent discard.
const SILENT_DISCARD: Option<HeaderProblem> = None;

/// Parses the header of a packet of IP version 4 (`v4`) or 6. `None` if it is invalid, or its
/// checksum is wrong.
#[cfg(test)]
pub(crate) fn parse(packet: &[u8], v4: bool, verify: bool) -> Option<IpHeader> {
    if v4 {
        parse_v4(packet, verify)
    } else {
        parse_v6(packet)
    }
}

/// Parses an IPv4 header; `None` if it is invalid, or its checksum is wrong.
#[inline(always)]
pub(crate) fn parse_v4(packet: &[u8], verify: bool) -> Option<IpHeader> {
    // An array of known length needs no bounds checks. With a slice the compiler built the header
    // in memory, out of line, and the datagram path waited for it.
    let fixed_header: &[u8; V4_BYTES] = packet.first_chunk()?;
    let body = usize::from(fixed_header[0] & 0xf) * 4;
    if fixed_header[0] >> 4 != 4 || body < V4_BYTES || packet.len() < body {
        return None;
    }
    let end = usize::from(read_u16(fixed_header, 2));
    if end < body || end > packet.len() {
        return None;
    }
    if verify {
        let header_sum = match body {
            V4_BYTES => UnfoldedSum::from_ipv4_header(fixed_header),
            _ => UnfoldedSum::from_bytes(&packet[..body]),
        };
        if !header_sum.is_valid() {
            return None;
        }
    }
    const MORE: u16 = 0x2000;
    const OFFSET: u16 = 0x1fff;
    let flags_and_offset = read_u16(fixed_header, 6);
    let fragment = match flags_and_offset & (MORE | OFFSET) {
        0 => None,
        _ => Some(FragmentPosition {
            id: read_u16(fixed_header, 4).into(),
            offset: usize::from(flags_and_offset & OFFSET) * 8,
            has_more: flags_and_offset & MORE != 0,
        }),
    };
    // Loaded as 32-bit words instead of single bytes.
    let (address_words, _) = fixed_header.as_chunks::<4>();
    Some(IpHeader {
        from: Ipv4Addr::from(address_words[3]).into(),
        to: Ipv4Addr::from(address_words[4]).into(),
        protocol: fixed_header[9],
        tos: fixed_header[1],
        transport: body,
        end,
        fragment,
    })
}

/// Parses an IPv6 header, which has no checksum; `None` if it is invalid.
#[inline]
pub(crate) fn parse_v6(packet: &[u8]) -> Option<IpHeader> {
    if packet.len() < V6_BYTES || packet[0] >> 4 != 6 {
        return None;
    }
    let end = V6_BYTES + usize::from(read_u16(packet, 4));
    if end > packet.len() {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
        Ipv6Addr::from(octets)
    };
    let (mut protocol, mut body) = skip_packet_extensions(&packet[..end]).ok()?;
    let mut fragment = None;
    if protocol == FRAGMENT_HEADER_V6 {
        (protocol, body, fragment) = parse_fragment(&packet[..end], body).ok()?;
    }
    Some(IpHeader {
        from: address(8).into(),
        to: address(24).into(),
        protocol,
        tos: (packet[0] << 4) | (packet[1] >> 4),
        transport: body,
        end,
        fragment,
    })
}

/// Returns the problem to report for an IPv6 packet that [`parse_v6`] rejects, if any.
#[cold]
pub(crate) fn find_problem(packet: &[u8]) -> Option<HeaderProblem> {
    if packet.len() < V6_BYTES || packet[0] >> 4 != 6 {
        return None;
    }
    let packet = packet.get(..V6_BYTES + usize::from(read_u16(packet, 4)))?;
    match skip_packet_extensions(packet) {
        Ok((FRAGMENT_HEADER_V6, at)) => parse_fragment(packet, at).err()?,
        Ok(_) => None,
        Err(problem) => problem,
    }
}

/// Skips the extension headers of a complete IPv6 packet: returns the protocol behind them, and its
/// offset.
#[inline]
fn skip_packet_extensions(packet: &[u8]) -> Result<(u8, usize), Option<HeaderProblem>> {
    skip_extensions(
        packet,
        packet[NEXT_HEADER_OFFSET],
        (NEXT_HEADER_OFFSET, V6_BYTES),
    )
}

/// Skips extension headers. The first one is of type `protocol`, is announced by the field at
/// offset `field_at`, and begins at `at`. Returns the protocol behind them, and its offset. The
/// error is the problem to report, or `None` for silent discard.
#[inline]
pub(crate) fn skip_extensions(
    packet: &[u8],
    mut protocol: u8,
    (mut field_at, mut at): (usize, usize),
) -> Result<(u8, usize), Option<HeaderProblem>> {
    while EXTENSION_HEADERS.contains(&protocol) {
        let next = skip_extension(packet, protocol, (field_at, at))?;
        (protocol, field_at, at) = (packet[at], at, next);
    }
    Ok((protocol, at))
}

/// Returns the end of an extension header, if all its content may be skipped (RFC 8200, sections
/// 4.2 to 4.6).
#[cold]
fn skip_extension(
    packet: &[u8],
    kind: u8,
    (field_at, at): (usize, usize),
) -> Result<usize, Option<HeaderProblem>> {
    let problem = |code, at: usize| HeaderProblem {
        code,
        offset: at as u32,
        applies_to_groups: false,
    };
    let length_units = *packet.get(at + 1).ok_or(SILENT_DISCARD)?;
    let end = at + 8 + usize::from(length_units) * 8;
    let header = packet.get(at..end).ok_or(SILENT_DISCARD)?;
    match kind {
        HOP_BY_HOP if field_at != NEXT_HEADER_OFFSET => {
            return Err(Some(problem(CODE_UNKNOWN_HEADER, field_at)));
        }
        // Segments left: the packet requires forwarding, and no routing type is supported.
        ROUTING if header[3] != 0 => return Err(Some(problem(CODE_ERRONEOUS_FIELD, at + 2))),
        ROUTING => return Ok(end),
        _ => {}
    }
    const PAD1: u8 = 0;
    let mut position = 2;
    while position < header.len() {
        let option = header[position];
        if option == PAD1 {
            position += 1;
            continue;
        }
        let option_end =
            position + 2 + usize::from(*header.get(position + 1).ok_or(SILENT_DISCARD)?);
        if option_end > header.len() {
            return Err(SILENT_DISCARD);
        }
        // No option is supported: the two high bits of its type say how to treat an unknown one.
        match option >> 6 {
            0 => {}
            1 => return Err(SILENT_DISCARD),
            action => {
                return Err(Some(HeaderProblem {
                    applies_to_groups: action == 2,
                    ..problem(CODE_UNKNOWN_OPTION, at + position)
                }));
            }
        }
        position = option_end;
    }
    Ok(end)
}

/// Calls `is_wanted` with type and offset of each header of a packet, without validating them,
/// until it returns true.
fn find_header(packet: &[u8], mut is_wanted: impl FnMut(u8, usize) -> bool) -> bool {
    let (mut kind, mut at) = (packet[NEXT_HEADER_OFFSET], V6_BYTES);
    loop {
        if is_wanted(kind, at) {
            return true;
        }
        let Some(header) = packet.get(at..at + 8) else {
            return false;
        };
        at += match kind {
            FRAGMENT_HEADER_V6 => FRAGMENT_BYTES,
            kind if EXTENSION_HEADERS.contains(&kind) => 8 + usize::from(header[1]) * 8,
            _ => return false,
        };
        kind = header[0];
    }
}

/// Returns whether an IPv6 packet has a fragment header, that of an unfragmented datagram included.
#[cold]
pub(crate) fn has_fragment_header(packet: &[u8]) -> bool {
    find_header(packet, |kind, _| kind == FRAGMENT_HEADER_V6)
}

/// Returns whether an IPv6 packet carries an ICMP error; errors are never sent about errors.
#[cold]
pub(crate) fn is_icmp_error(packet: &[u8]) -> bool {
    const FIRST_INFORMATIONAL_TYPE: u8 = 128;
    let is_error_type = |at| {
        packet
            .get(at)
            .is_some_and(|&kind| kind < FIRST_INFORMATIONAL_TYPE)
    };
    find_header(packet, |kind, at| kind == ICMPV6 && is_error_type(at))
}

/// Parses a fragment header: returns the protocol behind it, its offset, and the fragment's
/// position. A fragment that is a complete datagram has none, whatever other fragments exist (RFC
/// 6946).
#[cold]
fn parse_fragment(
    packet: &[u8],
    at: usize,
) -> Result<(u8, usize, Option<FragmentPosition>), Option<HeaderProblem>> {
    const MORE: u16 = 1;
    const OFFSET: u16 = 0xfff8;
    let header = packet.get(at..at + FRAGMENT_BYTES).ok_or(SILENT_DISCARD)?;
    let flags_and_offset = read_u16(header, 2);
    let (protocol, body) = (header[0], at + FRAGMENT_BYTES);
    if flags_and_offset & (MORE | OFFSET) == 0 {
        let (protocol, body) = skip_extensions(packet, protocol, (at, body))?;
        return Ok((protocol, body, None));
    }
    let fragment = FragmentPosition {
        id: read_u32(header, 4),
        offset: (flags_and_offset & OFFSET).into(),
        has_more: flags_and_offset & MORE != 0,
    };
    Ok((protocol, body, Some(fragment)))
}

/// Writes a fragment header.
pub(crate) fn write_fragment_header(header: &mut [u8], protocol: u8, fragment: FragmentPosition) {
    header[..2].copy_from_slice(&[protocol, 0]);
    write_u16(
        header,
        2,
        fragment.offset as u16 | u16::from(fragment.has_more),
    );
    header[4..FRAGMENT_BYTES].copy_from_slice(&fragment.id.to_be_bytes());
}

/// Returns the length of the header that [`write_header`] makes.
pub(crate) const fn header_bytes(to: IpAddr) -> usize {
    match to {
        IpAddr::V4(_) => V4_BYTES,
        IpAddr::V6(_) => V6_BYTES,
    }
}

/// Returns the length of the header that [`write_header`] makes, by IP version.
pub(crate) const fn header_bytes_for_version(v4: bool) -> usize {
    if v4 { V4_BYTES } else { V6_BYTES }
}

pub(crate) const fn ethertype(to: IpAddr) -> u16 {
    match to {
        IpAddr::V4(_) => ETHERTYPE_IPV4,
        IpAddr::V6(_) => ETHERTYPE_IPV6,
    }
}

/// Writes a header in front of `payload` bytes. `id` is the IPv4 identification.
pub(crate) fn write_header(
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
            write_u16(header, 2, (V4_BYTES + payload) as u16);
            write_u16(header, 4, id);
            header[8] = DEFAULT_HOP_LIMIT;
            header[9] = protocol;
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            write_checksum(header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = &mut packet[..V6_BYTES];
            header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
            write_u16(header, 4, payload as u16);
            header[6] = protocol;
            header[7] = DEFAULT_HOP_LIMIT;
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
        }
        _ => unreachable!("the source is chosen by the destination's version"),
    }
}

/// Sets type of service or traffic class; the caller updates the checksum.
pub(crate) fn write_tos(packet: &mut [u8], tos: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = tos;
    } else {
        packet[0] = 0x60 | tos >> 4;
        packet[1] = tos << 4 | packet[1] & 0x0f;
    }
}

/// Sets TTL or hop limit; the caller updates the checksum.
pub(crate) fn write_hop_limit(packet: &mut [u8], hops: u8) {
    let at = if packet[0] >> 4 == 4 { 8 } else { 7 };
    packet[at] = hops;
}

/// Writes the checksum of an IPv4 header.
pub(crate) fn write_checksum(header: &mut [u8]) {
    write_u16(header, 10, 0);
    let checksum = !checksum_sum(header);
    write_u16(header, 10, checksum);
}

/// Returns the folded sum of the pseudo header (RFC 9293; RFC 8200, section 8.1).
#[inline]
pub(crate) fn folded_pseudo_sum(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u16 {
    pseudo_sum(from, to, protocol, length).to_u16()
}

/// Returns the sum of the pseudo header, to be added to that of the data.
#[inline(always)]
pub(crate) fn pseudo_sum(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> UnfoldedSum {
    UnfoldedSum::from_address(from)
        + UnfoldedSum::from_address(to)
        + UnfoldedSum::from_u16(protocol.into())
        + UnfoldedSum::from_u16((length >> 16) as u16)
        + UnfoldedSum::from_u16(length as u16)
}

/// Returns the sum of the pseudo header of a parsed packet, without the length. It reads the
/// addresses from the packet: the parsed header was just written in shorter stores, for which wider
/// loads would wait.
#[inline(always)]
pub(crate) fn pseudo_sum_of_packet(packet: &[u8], v4: bool, protocol: u8) -> UnfoldedSum {
    let addresses = match v4 {
        true => &packet[12..V4_BYTES],
        false => &packet[8..V6_BYTES],
    };
    UnfoldedSum::from_bytes(addresses) + UnfoldedSum::from_u16(protocol.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn written_values_read_back(
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
            write_header(&mut packet, from, to, protocol, payload, id);
            write_tos(&mut packet, id as u8);
            write_hop_limit(&mut packet, 1);
            if v4 {
                write_checksum(&mut packet[..V4_BYTES]);
            }
            prop_assert_eq!(packet[if v4 { 8 } else { 7 }], 1);
            let header = parse(&packet, v4, true).unwrap();
            prop_assert_eq!((header.from, header.to, header.protocol), (from, to, protocol));
            prop_assert_eq!(header.tos, id as u8);
            prop_assert_eq!((header.transport, header.end), (header_bytes(to), header_bytes(to) + payload));
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
            has_more: bool,
            options: bool,
        ) {
            let (from, to) = (Ipv6Addr::from(1).into(), Ipv6Addr::from(2).into());
            let piece = FragmentPosition { id, offset, has_more };
            // Options in front of the fragment header are not part of the fragmented data.
            let at = V6_BYTES + if options { 16 } else { 0 };
            let mut packet = vec![0; at + FRAGMENT_BYTES + 24];
            let behind = packet.len() - V6_BYTES;
            write_header(&mut packet, from, to, FRAGMENT_HEADER_V6, behind, 0);
            if options {
                packet[6] = 60;
                packet[V6_BYTES..V6_BYTES + 2].copy_from_slice(&[FRAGMENT_HEADER_V6, 1]);
            }
            write_fragment_header(&mut packet[at..], 17, piece);
            let header = parse(&packet, false, true).unwrap();
            prop_assert_eq!((header.protocol, header.transport), (17, at + FRAGMENT_BYTES));
            prop_assert_eq!(header.fragment, (offset > 0 || has_more).then_some(piece));
        }

        #[test]
        fn no_packet_panics(bytes in prop::collection::vec(any::<u8>(), 0..120), v4: bool) {
            let mut bytes = bytes;
            if let (false, Some(next)) = (v4, bytes.get_mut(6)) {
                // One in three has a fragment header.
                *next = [*next, FRAGMENT_HEADER_V6, 60][usize::from(*next) % 3];
            }
            if let Some(header) = parse(&bytes, v4, false) {
                prop_assert!(header.transport <= header.end && header.end <= bytes.len());
            }
        }
    }
}
