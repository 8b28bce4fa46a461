//! Generated frames (Ethernet, IPv4 and UDP headers before zeros), and header access for modes.

use std::net::Ipv4Addr;
use std::ops::Range;

use linerate_record::generate::{FCS_BYTES, IpPlan, TemplatePlan, UdpPlan};

use crate::mac_address::MacAddress;
use crate::{checksum, template as templates};

/// Length of an Ethernet header.
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// Length of an IPv4 header without options (RFC 791).
pub const IPV4_HEADER_BYTES: usize = 20;
/// Length of a UDP header (RFC 768).
pub const UDP_HEADER_BYTES: usize = 8;
/// Length of all three headers.
pub const HEADERS_BYTES: usize = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES;
/// Payload bytes of a frame of 64 bytes, the most common length.
const SHORT_PAYLOAD_BYTES: usize = 64 - HEADERS_BYTES;
/// Minimum Ethernet frame length without FCS (IEEE 802.3).
pub const MIN_FRAME_BYTES: usize = 60;

/// Offset of the checksum in the IPv4 header.
const IPV4_CHECKSUM_OFFSET: usize = 10;

/// Contents of generated frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSpec {
    /// Length from the Ethernet header on, without FCS.
    pub bytes: u16,
    /// Source address, from 198.18.0.0/15 for benchmarks (RFC 2544, appendix C.2.2).
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// UDP source port; 9 is "discard" (RFC 863).
    pub source_port: u16,
    pub destination_port: u16,
}

impl Default for FrameSpec {
    fn default() -> Self {
        Self {
            bytes: 64,
            source: Ipv4Addr::new(198, 18, 0, 1),
            destination: Ipv4Addr::new(198, 18, 0, 2),
            source_port: 9,
            destination_port: 9,
        }
    }
}

/// Frames of several flows, written many times: made by the generator's [template](templates),
/// without a tag and with their checksums, so that each write is a copy.
#[derive(Clone, Debug)]
pub struct FlowFrames {
    /// Concatenated headers of all flows.
    headers: Box<[[u8; HEADERS_BYTES]]>,
    length: u16,
}

/// Address that differs between flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowAddress {
    /// Source address.
    Source,
    /// Destination address.
    Destination,
}

impl FlowFrames {
    /// Creates frames between two Ethernet addresses, of `flows` flows that differ in one IP
    /// address. The frames are at least as long as their headers. At most
    /// [`templates::FLOWS_LIMIT`] flows.
    #[must_use]
    pub fn new(
        spec: &FrameSpec,
        from: MacAddress,
        to: MacAddress,
        flows: u32,
        varied: FlowAddress,
    ) -> Self {
        let length = spec.bytes.max(HEADERS_BYTES as u16);
        let flows = flows.clamp(1, templates::FLOWS_LIMIT as u32);
        let (source, destination) = match varied {
            FlowAddress::Source => (
                address_range(spec.source, flows),
                spec.destination.to_string(),
            ),
            FlowAddress::Destination => (
                spec.source.to_string(),
                address_range(spec.destination, flows),
            ),
        };
        // Templates describe frames of valid Ethernet length; the length fields are those of the
        // frame written here.
        let size = (u32::from(length) + u32::from(FCS_BYTES))
            .max(u32::from(templates::MIN_FRAME_WITH_FCS));
        let plan = TemplatePlan {
            size: Some(size.to_string()),
            flows: Some(flows),
            content: Some("zeros".to_owned()),
            ipv4: Some(IpPlan {
                source: Some(source),
                destination: Some(destination),
                ..IpPlan::default()
            }),
            udp: Some(UdpPlan {
                source: Some(spec.source_port.to_string()),
                destination: Some(spec.destination_port.to_string()),
            }),
            ..TemplatePlan::default()
        };
        let template = templates::Template::new(&plan, from.0, to.0)
            .expect("lengths, addresses and ports of a specification are a template")
            .untagged();
        let mut frame = vec![0; length.into()];
        let empty_tag = templates::FrameTag {
            mark: 0,
            number: 0,
            flow_group: 0,
            time_ns: 0,
        };
        let header = |flow| {
            template.write(&mut frame, flow, empty_tag);
            let mut header = [0; HEADERS_BYTES];
            header.copy_from_slice(&frame[..HEADERS_BYTES]);
            header
        };
        Self {
            headers: (0..flows).map(header).collect(),
            length,
        }
    }

    /// Returns the length of a frame.
    #[must_use]
    pub fn len(&self) -> u16 {
        self.length
    }

    /// Returns false always: there is at least one flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Returns the number of flows.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.headers.len() as u32
    }

    /// Writes the headers of a flow below [`FlowFrames::flows`] into a slot that already holds a
    /// frame of its length.
    #[inline]
    pub fn write_headers(&self, slot: &mut [u8], flow: u32) {
        slot[..HEADERS_BYTES].copy_from_slice(&self.headers[flow as usize]);
    }

    /// Writes a frame of a flow below [`FlowFrames::flows`] into a slot of its length.
    #[inline]
    pub fn write(&self, slot: &mut [u8], flow: u32) {
        self.write_headers(slot, flow);
        let content = &mut slot[HEADERS_BYTES..];
        // The shortest frames are filled without a call, which would cost more than the bytes.
        match <&mut [u8; SHORT_PAYLOAD_BYTES]>::try_from(&mut *content) {
            Ok(short) => *short = [0; SHORT_PAYLOAD_BYTES],
            Err(_) => content.fill(0),
        }
    }
}

/// Formats a range as `198.18.0.1-198.18.0.4`; it ends at the last IPv4 address at most.
fn address_range(first: Ipv4Addr, count: u32) -> String {
    let first = first.to_bits().min(u32::MAX - (count - 1));
    let last = Ipv4Addr::from_bits(first + (count - 1));
    format!("{}-{last}", Ipv4Addr::from_bits(first))
}

/// Ethertypes of VLAN tags: 802.1Q and 802.1ad.
const VLAN_ETHERTYPES: [u16; 2] = [0x8100, 0x88a8];
const IPV4_ETHERTYPE: u16 = 0x0800;

/// Returns offset and ethertype of the network header, behind all VLAN tags.
#[inline]
#[must_use]
pub fn network_header(frame: &[u8]) -> Option<(usize, u16)> {
    let mut offset = ETHERNET_HEADER_BYTES;
    loop {
        let ethertype = frame.get(offset - 2..offset)?;
        let ethertype = u16::from_be_bytes([ethertype[0], ethertype[1]]);
        if !VLAN_ETHERTYPES.contains(&ethertype) {
            return Some((offset, ethertype));
        }
        offset += 4;
    }
}

/// Returns the range of the IPv4 header with options; `None` if the frame has no complete one.
#[inline]
#[must_use]
pub fn ipv4_header(frame: &[u8]) -> Option<Range<usize>> {
    let (offset, ethertype) = network_header(frame)?;
    if ethertype != IPV4_ETHERTYPE
        || frame.len() < offset + IPV4_HEADER_BYTES
        || frame[offset] >> 4 != 4
    {
        return None;
    }
    let end = offset + usize::from(frame[offset] & 0xf) * 4;
    (end >= offset + IPV4_HEADER_BYTES && frame.len() >= end).then_some(offset..end)
}

/// Writes the checksum of the IPv4 header; returns false if the frame has none.
#[inline]
pub fn write_ipv4_checksum(frame: &mut [u8]) -> bool {
    let Some(header) = ipv4_header(frame) else {
        return false;
    };
    let header = &mut frame[header];
    header[IPV4_CHECKSUM_OFFSET..IPV4_CHECKSUM_OFFSET + 2].fill(0);
    let sum = !checksum::sum(header);
    header[IPV4_CHECKSUM_OFFSET..IPV4_CHECKSUM_OFFSET + 2].copy_from_slice(&sum.to_ne_bytes());
    true
}

/// Returns whether the checksum of the IPv4 header is right: its words sum to all ones (RFC 1071).
#[inline]
#[must_use]
pub fn is_ipv4_checksum_right(frame: &[u8]) -> Option<bool> {
    Some(checksum::sum(&frame[ipv4_header(frame)?]) == u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn single_frame(spec: &FrameSpec, from: MacAddress, to: MacAddress) -> Vec<u8> {
        let flows = FlowFrames::new(spec, from, to, 1, FlowAddress::Source);
        let mut frame = vec![0xee; flows.len().into()];
        flows.write(&mut frame, 0);
        frame
    }

    /// Equal to the frame of a Linux host: 198.18.0.1:9 to 198.18.0.2:9, 22 zero bytes, checksums
    /// computed by hand.
    #[test]
    fn default_frame_is_valid() {
        let bytes = single_frame(
            &FrameSpec::default(),
            MacAddress::of_port(0),
            MacAddress::of_port(1),
        );
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0]);
        // Don't Fragment: such packets need no identification.
        let words_to_sum = [
            0x4500u32, 0x0032, 0, 0x4000, 0x4011, 0xc612, 0x0001, 0xc612, 0x0002,
        ];
        let total: u32 = words_to_sum.iter().sum();
        let folded = (total & 0xffff) + (total >> 16);
        let expected = !(folded as u16);
        assert_eq!(bytes[24..26], expected.to_be_bytes());
        assert_eq!(is_ipv4_checksum_right(&bytes), Some(true));
        // Pseudo header, ports 9 and 9, length 30 twice.
        let words_to_sum = [0xc612u32, 1, 0xc612, 2, 17, 30, 9, 9, 30];
        let total: u32 = words_to_sum.iter().sum();
        let expected = !(((total & 0xffff) + (total >> 16)) as u16);
        assert_eq!(bytes[40..42], expected.to_be_bytes());
        assert!(bytes[42..].iter().all(|&byte| byte == 0));
        let short = FrameSpec {
            bytes: 10,
            ..FrameSpec::default()
        };
        assert_eq!(
            single_frame(&short, MacAddress::default(), MacAddress::default()).len(),
            HEADERS_BYTES
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn flows_have_right_checksums(
            flows in 1u32..50,
            bytes in 42u16..1518,
            source in any::<u32>(),
            is_source in any::<bool>(),
        ) {
            let spec = FrameSpec { bytes, source: source.into(), ..FrameSpec::default() };
            let which = if is_source { FlowAddress::Source } else { FlowAddress::Destination };
            let made = FlowFrames::new(&spec, MacAddress::default(), MacAddress::of_port(7), flows, which);
            prop_assert_eq!(made.flows(), flows);
            let at = if is_source { 26 } else { 30 };
            let mut addresses = std::collections::BTreeSet::new();
            for flow in 0..flows {
                let mut frame = vec![0xee; bytes.into()];
                made.write(&mut frame, flow);
                prop_assert_eq!(is_ipv4_checksum_right(&frame), Some(true));
                let mut again = frame.clone();
                prop_assert!(checksum::complete(&mut again));
                let sum = |frame: &[u8]| u16::from_be_bytes([frame[40], frame[41]]);
                // 0 and 0xffff are the same number in ones' complement.
                let (kept, summed) = (sum(&frame), sum(&again));
                prop_assert!(kept == summed || kept % 0xffff == summed % 0xffff);
                addresses.insert(frame[at..at + 4].to_vec());
            }
            prop_assert_eq!(addresses.len(), flows as usize);
        }
    }
}
