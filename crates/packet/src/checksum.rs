//! Internet checksum (RFC 1071): completes a partial checksum, and verifies those of received
//! frames.

mod unfolded_sum;

use std::ops::Range;

pub use unfolded_sum::UnfoldedSum;

/// Folded sum of 16-bit words in native byte order; an odd last byte is padded with zero.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    UnfoldedSum::from_bytes(bytes).to_native_u16()
}

/// Adds two folded sums.
#[inline]
#[must_use]
pub fn add_folded(first: u16, second: u16) -> u16 {
    let sum = u32::from(first) + u32::from(second);
    // End-around carry of ones' complement addition.
    (sum as u16) + (sum >> 16) as u16
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// VLAN tags: 802.1Q and 802.1ad.
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// IPv6 extension headers before the transport header: hop-by-hop, routing, destination options.
const IPV6_EXTENSIONS: [u8; 3] = [0, 43, 60];

/// Computes and writes the TCP or UDP checksum of an Ethernet frame; the old value is ignored.
///
/// A sender on the same machine may leave the checksum to a device, which virtual links do not
/// have. The next receiver would drop such a frame. Returns true if the frame has a complete TCP or
/// UDP header and thus a checksum now; fragments and other protocols are not changed.
pub fn complete(frame: &mut [u8]) -> bool {
    complete_packet(frame).is_some()
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Positions of the parts of a frame's IP packet.
struct PacketLayout {
    /// Offset of the packet in the frame; all others are relative to it.
    packet_offset: usize,
    is_ipv6: bool,
    /// Bytes of the IP header; only used for IPv4.
    header_bytes: usize,
    addresses: Range<usize>,
    protocol: u8,
    /// Transport segment with its header.
    segment: Range<usize>,
    /// The packet is only part of a datagram.
    is_fragment: bool,
}

impl PacketLayout {
    fn parse(frame: &[u8]) -> Option<Self> {
        let mut at = 12;
        let mut ethertype = read_u16(frame, at)?;
        while ETHERTYPES_VLAN.contains(&ethertype) {
            at += 4;
            ethertype = read_u16(frame, at)?;
        }
        let at = at + 2;
        let packet = frame.get(at..)?;
        let layers = match ethertype {
            ETHERTYPE_IPV4 => {
                let first = *packet.first()?;
                if first >> 4 != 4 {
                    return None;
                }
                let header_bytes = usize::from(first & 0xf) * 4;
                /// More-fragments flag and fragment offset.
                const FRAGMENT: u16 = 0x3fff;
                Self {
                    packet_offset: at,
                    is_ipv6: false,
                    header_bytes,
                    addresses: 12..20,
                    protocol: *packet.get(9)?,
                    segment: header_bytes..usize::from(read_u16(packet, 2)?),
                    is_fragment: read_u16(packet, 6)? & FRAGMENT != 0,
                }
            }
            ETHERTYPE_IPV6 => {
                if packet.first()? >> 4 != 6 {
                    return None;
                }
                let total = 40 + usize::from(read_u16(packet, 4)?);
                let (mut next, mut header_bytes) = (*packet.get(6)?, 40);
                while IPV6_EXTENSIONS.contains(&next) {
                    next = *packet.get(header_bytes)?;
                    header_bytes += 8 + usize::from(*packet.get(header_bytes + 1)?) * 8;
                }
                Self {
                    packet_offset: at,
                    is_ipv6: true,
                    header_bytes,
                    addresses: 8..40,
                    protocol: next,
                    segment: header_bytes..total,
                    is_fragment: false,
                }
            }
            _ => return None,
        };
        let is_complete = layers.header_bytes >= 20
            && layers.segment.start <= layers.segment.end
            && layers.segment.end <= packet.len();
        is_complete.then_some(layers)
    }

    /// Offset of the transport's checksum in its segment; true if it covers a pseudo header.
    fn checksum_field(&self) -> Option<(usize, bool)> {
        match self.protocol {
            PROTOCOL_TCP => Some((16, true)),
            PROTOCOL_UDP => Some((6, true)),
            PROTOCOL_ICMPV6 if self.is_ipv6 => Some((2, true)),
            PROTOCOL_ICMP if !self.is_ipv6 => Some((2, false)),
            _ => None,
        }
    }

    /// Sum of the pseudo header.
    fn pseudo_header_sum(&self, packet: &[u8]) -> Option<u16> {
        let length = u16::try_from(self.segment.len()).ok()?;
        let protocol = u16::from(self.protocol);
        let rest = add_folded(protocol.to_be(), length.to_be());
        Some(add_folded(sum(&packet[self.addresses.clone()]), rest))
    }
}

fn complete_packet(frame: &mut [u8]) -> Option<()> {
    let layers = PacketLayout::parse(frame)?;
    if layers.is_fragment || ![PROTOCOL_TCP, PROTOCOL_UDP].contains(&layers.protocol) {
        return None;
    }
    let (field, _) = layers.checksum_field()?;
    let packet = &mut frame[layers.packet_offset..];
    let pseudo = layers.pseudo_header_sum(packet)?;
    let segment = &mut packet[layers.segment];
    let range = field..field + 2;
    segment.get_mut(range.clone())?.fill(0);
    // Zero means "no checksum" in UDP, and 0xffff is the same number (RFC 768).
    let checksum = match !add_folded(sum(segment), pseudo) {
        0 => u16::MAX,
        checksum => checksum,
    };
    segment[range].copy_from_slice(&checksum.to_ne_bytes());
    Some(())
}

/// Result of verifying the checksums of a frame's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumReport {
    /// True for IPv6, false for IPv4.
    pub is_ipv6: bool,
    /// IP protocol number of the transport.
    pub protocol: u8,
    /// The IPv4 header checksum is valid, or there is none.
    pub header_valid: bool,
    /// The checksum of TCP, UDP or ICMP is valid, or there is none.
    pub segment_valid: bool,
    /// The sender gave the datagram no checksum, which UDP over IPv4 permits.
    pub is_without_checksum: bool,
}

impl ChecksumReport {
    /// Returns true if all checksums are valid.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.header_valid && self.segment_valid
    }
}

/// Verifies the checksums of an Ethernet frame. None if it carries no IP packet, or a truncated
/// one.
#[must_use]
pub fn verify(frame: &[u8]) -> Option<ChecksumReport> {
    const NONE: u16 = 0;
    let layers = PacketLayout::parse(frame)?;
    let packet = &frame[layers.packet_offset..];
    let header_valid = layers.is_ipv6 || sum(&packet[..layers.header_bytes]) == u16::MAX;
    let segment = &packet[layers.segment.clone()];
    let mut is_without_checksum = false;
    let segment_valid = match layers.checksum_field().filter(|_| !layers.is_fragment) {
        None => true,
        Some((field, with_pseudo)) => {
            let may_be_absent = layers.protocol == PROTOCOL_UDP && !layers.is_ipv6;
            let pseudo = match with_pseudo {
                true => layers.pseudo_header_sum(packet)?,
                false => 0,
            };
            let checksum = read_u16(segment, field)?;
            is_without_checksum = may_be_absent && checksum == NONE;
            is_without_checksum || add_folded(sum(segment), pseudo) == u16::MAX
        }
    };
    Some(ChecksumReport {
        is_ipv6: layers.is_ipv6,
        protocol: layers.protocol,
        header_valid,
        segment_valid,
        is_without_checksum,
    })
}

/// Sum of RFC 1071, one word at a time.
#[cfg(test)]
fn reference_sum(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        total += u32::from(u16::from_be_bytes([pair[0], low]));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_standard() {
        // RFC 1071, section 3: 0001 f203 f4f5 f6f7 sums to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(u16::from_be(sum(&bytes)), 0xddf2);
    }

    /// A UDP datagram as sent by Linux (`Ab` from port 5000 to 7 between 10.0.0.1 and 10.0.0.2).
    fn datagram(tags: &[[u8; 4]]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend(tag);
        }
        frame.extend([0x08, 0x00]);
        frame.extend([
            0x45, 0, 0, 30, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend([0x13, 0x88, 0, 7, 0, 10, 0xde, 0xad, b'A', b'b']);
        frame
    }

    fn checksum_is_valid(segment: &[u8], addresses: &[u8], protocol: u8) -> bool {
        let mut all = addresses.to_vec();
        all.extend([0, protocol]);
        all.extend(u16::try_from(segment.len()).unwrap().to_be_bytes());
        all.extend(segment);
        reference_sum(&all) == 0xffff
    }

    #[test]
    fn partial_checksums_are_completed() {
        for tags in [
            &[][..],
            &[[0x81, 0, 0, 5]],
            &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]],
        ] {
            let mut frame = datagram(tags);
            // Ethernet padding is not part of the datagram.
            frame.extend([0xee; 18]);
            assert!(complete(&mut frame));
            let ip = 14 + 4 * tags.len();
            let (header, segment) = frame[ip..ip + 30].split_at(20);
            assert!(checksum_is_valid(segment, &header[12..20], 17), "{tags:?}");
        }
    }

    #[test]
    fn version_6_with_an_extension() {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 28, 60, 64]);
        frame.extend([7; 32]);
        frame.extend([6, 0, 1, 4, 0, 0, 0, 0]);
        frame.extend([9; 20]);
        assert!(complete(&mut frame));
        assert!(checksum_is_valid(&frame[62..], &frame[22..54], 6));
    }

    #[test]
    fn other_frames_are_left_alone() {
        let fragment = {
            let mut frame = datagram(&[]);
            frame[20] = 0x20;
            frame
        };
        let arp = [[2; 12].as_slice(), &[8, 6], &[1; 28]].concat();
        let icmp = {
            let mut frame = datagram(&[]);
            frame[23] = 1;
            frame
        };
        let truncated = datagram(&[])[..40].to_vec();
        for frame in [fragment, arp, icmp, truncated, vec![], vec![0; 13]] {
            let mut unchanged = frame.clone();
            assert!(!complete(&mut unchanged));
            assert_eq!(unchanged, frame);
        }
    }

    /// Flipped bits of the packet are detected, except those without an effect of their own.
    #[test]
    fn flipped_bits_are_detected() {
        let mut frame = datagram(&[[0x81, 0, 0, 5]]);
        let header = 18..38;
        let partial = sum(&frame[header.clone()]);
        frame[28..30].copy_from_slice(&(!partial).to_ne_bytes());
        assert!(complete(&mut frame));
        let udp = ChecksumReport {
            is_ipv6: false,
            protocol: 17,
            header_valid: true,
            segment_valid: true,
            is_without_checksum: false,
        };
        assert_eq!(verify(&frame), Some(udp));
        for bit in 8 * 18..8 * frame.len() {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let report = verify(&changed);
            assert_ne!(report, Some(udp), "bit {bit}");
            // Addresses are in both sums; the other header fields are not in that of the segment.
            let locates_error = |report: &ChecksumReport| report.protocol == 17 && bit >= 8 * 22;
            if let Some(report) = report.filter(locates_error) {
                let (in_header, in_segment) = (bit < 8 * 38, bit >= 8 * 30);
                assert_eq!(report.header_valid, !in_header, "bit {bit}");
                assert_eq!(report.segment_valid, !in_segment, "bit {bit}");
            }
        }
        // A datagram without a checksum, and frames without a packet.
        frame[44..46].fill(0);
        let unsummed = ChecksumReport {
            is_without_checksum: true,
            ..udp
        };
        assert_eq!(verify(&frame), Some(unsummed));
        assert_eq!(
            verify(&[[2; 12].as_slice(), &[8, 6], &[1; 28]].concat()),
            None
        );
        assert_eq!(verify(&frame[..40]), None);
    }

    proptest! {
        #[test]
        fn fast_and_slow_agree(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(u16::from_be(sum(&bytes)) % 0xffff, reference_sum(&bytes) % 0xffff);
        }

        #[test]
        fn no_frame_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..4) {
            let ethertype = [[8, 0], [0x86, 0xdd], [0x81, 0], [8, 6]][kind];
            if let Some(place) = bytes.get_mut(12..14) {
                place.copy_from_slice(&ethertype);
            }
            let _ = verify(&bytes);
            if complete(&mut bytes) {
                let verified = verify(&bytes).unwrap();
                prop_assert!(verified.segment_valid);
            }
        }
    }
}
