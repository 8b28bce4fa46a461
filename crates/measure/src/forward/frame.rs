//! Generated frames (Ethernet, IPv4 and UDP headers before zeros), and header access for modes.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::str::FromStr;

use linerate_metric::generate::{FCS_BYTES, IpPlan, PortsPlan, TemplatePlan};
use linerate_port::checksum;

use crate::generate::template as templates;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Length of an IPv4 header without options (RFC 791).
pub const IPV4: usize = 20;
/// Length of a UDP header (RFC 768).
pub const UDP: usize = 8;
/// Length of all three headers.
pub const HEADERS: usize = ETHERNET + IPV4 + UDP;
/// Payload bytes of a frame of 64 bytes, the most common length.
const SHORT: usize = 64 - HEADERS;
/// Minimum Ethernet frame length without FCS (IEEE 802.3).
pub const SHORTEST: usize = 60;

/// Offset of the checksum in the IPv4 header.
const IP_SUM: usize = 10;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Default address of a port without an address and of an unconfigured peer: locally
    /// administered (IEEE 802c), with the port number in it.
    #[must_use]
    pub const fn of_port(port: u32) -> Self {
        let [a, b, c, d] = port.to_be_bytes();
        Self([2, 0, a, b, c, d])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("`{text}` is not an Ethernet address: use 02:00:00:00:00:01");
        let mut address = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut address {
            // `from_str_radix` accepts a sign, which is no digit.
            let is_byte = |part: &&str| {
                (1..=2).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_hexdigit())
            };
            let part = parts.next().filter(is_byte);
            *byte = u8::from_str_radix(part.ok_or_else(refused)?, 16).map_err(|_| refused())?;
        }
        match parts.next() {
            None => Ok(Self(address)),
            Some(_) => Err(refused()),
        }
    }
}

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
pub struct Flows {
    /// Concatenated headers of all flows.
    headers: Box<[[u8; HEADERS]]>,
    length: u16,
}

/// Address that differs between flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Source address.
    Source,
    /// Destination address.
    Destination,
}

impl Flows {
    /// Creates frames between two Ethernet addresses, of `flows` flows that differ in one IP
    /// address. The frames are at least as long as their headers. At most
    /// [`templates::FLOWS_LIMIT`] flows.
    #[must_use]
    pub fn new(spec: &FrameSpec, from: Mac, to: Mac, flows: u32, which: Which) -> Self {
        let length = spec.bytes.max(HEADERS as u16);
        let flows = flows.clamp(1, templates::FLOWS_LIMIT as u32);
        let (source, destination) = match which {
            Which::Source => (range(spec.source, flows), spec.destination.to_string()),
            Which::Destination => (spec.source.to_string(), range(spec.destination, flows)),
        };
        // Templates describe frames of valid Ethernet length; the length fields are those of the
        // frame written here.
        let size =
            (u32::from(length) + u32::from(FCS_BYTES)).max(u32::from(templates::SHORTEST_BYTES));
        let plan = TemplatePlan {
            size: Some(size.to_string()),
            flows: Some(flows),
            content: Some("zeros".to_owned()),
            ipv4: Some(IpPlan {
                source: Some(source),
                destination: Some(destination),
                ..IpPlan::default()
            }),
            udp: Some(PortsPlan {
                source: Some(spec.source_port.to_string()),
                destination: Some(spec.destination_port.to_string()),
            }),
            ..TemplatePlan::default()
        };
        let template = templates::Template::new(&plan, from.0, to.0)
            .expect("lengths, addresses and ports of a specification are a template")
            .untagged();
        let mut frame = vec![0; length.into()];
        let nothing = templates::Tag {
            mark: 0,
            number: 0,
            account: 0,
            time_ns: 0,
        };
        let header = |flow| {
            template.write(&mut frame, flow, nothing);
            let mut header = [0; HEADERS];
            header.copy_from_slice(&frame[..HEADERS]);
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

    /// Writes the headers of a flow below [`Flows::flows`] into a slot that already holds a frame
    /// of its length.
    #[inline]
    pub fn write_headers(&self, slot: &mut [u8], flow: u32) {
        slot[..HEADERS].copy_from_slice(&self.headers[flow as usize]);
    }

    /// Writes a frame of a flow below [`Flows::flows`] into a slot of its length.
    #[inline]
    pub fn write(&self, slot: &mut [u8], flow: u32) {
        self.write_headers(slot, flow);
        let content = &mut slot[HEADERS..];
        // The shortest frames are filled without a call, which would cost more than the bytes.
        match <&mut [u8; SHORT]>::try_from(&mut *content) {
            Ok(short) => *short = [0; SHORT],
            Err(_) => content.fill(0),
        }
    }
}

/// Formats a range as `198.18.0.1-198.18.0.4`; it ends at the last IPv4 address at most.
fn range(first: Ipv4Addr, count: u32) -> String {
    let first = first.to_bits().min(u32::MAX - (count - 1));
    let last = Ipv4Addr::from_bits(first + (count - 1));
    format!("{}-{last}", Ipv4Addr::from_bits(first))
}

/// Ethertypes of VLAN tags: 802.1Q and 802.1ad.
const VLAN: [u16; 2] = [0x8100, 0x88a8];
const IPV4_TYPE: u16 = 0x0800;

/// Returns offset and ethertype of the network header, behind all VLAN tags.
#[inline]
#[must_use]
pub fn carried(frame: &[u8]) -> Option<(usize, u16)> {
    let mut at = ETHERNET;
    loop {
        let kind = frame.get(at - 2..at)?;
        let kind = u16::from_be_bytes([kind[0], kind[1]]);
        if !VLAN.contains(&kind) {
            return Some((at, kind));
        }
        at += 4;
    }
}

/// Returns the range of the IPv4 header with options; `None` if the frame has no complete one.
#[inline]
#[must_use]
pub fn ipv4_header(frame: &[u8]) -> Option<Range<usize>> {
    let (at, kind) = carried(frame)?;
    if kind != IPV4_TYPE || frame.len() < at + IPV4 || frame[at] >> 4 != 4 {
        return None;
    }
    let end = at + usize::from(frame[at] & 0xf) * 4;
    (end >= at + IPV4 && frame.len() >= end).then_some(at..end)
}

/// Writes the checksum of the IPv4 header; returns false if the frame has none.
pub fn write_ipv4_checksum(frame: &mut [u8]) -> bool {
    let Some(header) = ipv4_header(frame) else {
        return false;
    };
    let header = &mut frame[header];
    header[IP_SUM..IP_SUM + 2].fill(0);
    let sum = !checksum::sum(header);
    header[IP_SUM..IP_SUM + 2].copy_from_slice(&sum.to_ne_bytes());
    true
}

/// Returns whether the checksum of the IPv4 header is right: its words sum to all ones (RFC 1071).
#[must_use]
pub fn ipv4_checksum_holds(frame: &[u8]) -> Option<bool> {
    Some(checksum::sum(&frame[ipv4_header(frame)?]) == u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(spec: &FrameSpec, from: Mac, to: Mac) -> Vec<u8> {
        let flows = Flows::new(spec, from, to, 1, Which::Source);
        let mut frame = vec![0xee; flows.len().into()];
        flows.write(&mut frame, 0);
        frame
    }

    /// Equal to the frame of a Linux host: 198.18.0.1:9 to 198.18.0.2:9, 22 zero bytes, checksums
    /// computed by hand.
    #[test]
    fn a_frame_that_any_host_takes() {
        let bytes = one(&FrameSpec::default(), Mac::of_port(0), Mac::of_port(1));
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0]);
        // Don't Fragment: such packets need no identification.
        let words = [
            0x4500u32, 0x0032, 0, 0x4000, 0x4011, 0xc612, 0x0001, 0xc612, 0x0002,
        ];
        let total: u32 = words.iter().sum();
        let folded = (total & 0xffff) + (total >> 16);
        let want = !(folded as u16);
        assert_eq!(bytes[24..26], want.to_be_bytes());
        assert_eq!(ipv4_checksum_holds(&bytes), Some(true));
        // Pseudo header, ports 9 and 9, length 30 twice.
        let words = [0xc612u32, 1, 0xc612, 2, 17, 30, 9, 9, 30];
        let total: u32 = words.iter().sum();
        let want = !(((total & 0xffff) + (total >> 16)) as u16);
        assert_eq!(bytes[40..42], want.to_be_bytes());
        assert!(bytes[42..].iter().all(|&byte| byte == 0));
        let short = FrameSpec {
            bytes: 10,
            ..FrameSpec::default()
        };
        assert_eq!(one(&short, Mac::default(), Mac::default()).len(), HEADERS);
    }

    #[test]
    fn addresses_read_as_they_print() {
        for text in ["02:00:00:00:00:01", "AA:BB:CC:DD:EE:FF"] {
            assert_eq!(text.parse::<Mac>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1:2:3:4:5",
            "1:2:3:4:5:6:7",
            "g0:0:0:0:0:0",
            "+1:0:0:0:0:0",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
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
            let which = if is_source { Which::Source } else { Which::Destination };
            let made = Flows::new(&spec, Mac::default(), Mac::of_port(7), flows, which);
            prop_assert_eq!(made.flows(), flows);
            let at = if is_source { 26 } else { 30 };
            let mut addresses = std::collections::BTreeSet::new();
            for flow in 0..flows {
                let mut frame = vec![0xee; bytes.into()];
                made.write(&mut frame, flow);
                prop_assert_eq!(ipv4_checksum_holds(&frame), Some(true));
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
