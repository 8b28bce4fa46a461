//! Description of a frame in one line, in the format of testpmd.

use std::fmt::Write;

use linerate_packet::frame::{ETHERNET_HEADER_BYTES, ipv4_header};
use linerate_packet::mac_address::MacAddress;

/// Length of an IPv6 header (RFC 8200).
const IPV6_HEADER_BYTES: usize = 40;
/// Length of a VLAN tag (IEEE 802.1Q).
const VLAN_TAG_BYTES: usize = 4;

fn mac_at(bytes: &[u8]) -> MacAddress {
    let mut address = [0; 6];
    address.copy_from_slice(&bytes[..6]);
    MacAddress(address)
}

/// Returns the name and length of the transport header, by protocol number (IANA).
fn transport_header(protocol: u8, rest: &[u8]) -> Option<(&'static str, usize)> {
    match protocol {
        6 => Some(("TCP", usize::from(rest.get(12)? >> 4) * 4)),
        17 => Some(("UDP", 8)),
        1 | 58 => Some(("ICMP", 8)),
        132 => Some(("SCTP", 12)),
        _ => None,
    }
}

/// Describes a frame: ` src=… - dst=… - type=0x0800 - length=64 - nb_segs=1 - sw ptype: L2_ETHER
/// L3_IPV4 L4_UDP - l2_len=14 - l3_len=20 - l4_len=8 - Receive queue=0x0`.
pub(super) fn describe_frame(bytes: &[u8], direction: &str, queue: u32) -> String {
    if bytes.len() < ETHERNET_HEADER_BYTES {
        return format!("  length={} - too short for a frame", bytes.len());
    }
    let ethertype_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let mut line = format!(
        "  src={} - dst={} - type=0x{:04x} - length={} - nb_segs=1",
        mac_at(&bytes[6..]),
        mac_at(bytes),
        ethertype_at(12),
        bytes.len()
    );
    let (mut types, mut l2) = ("L2_ETHER".to_owned(), ETHERNET_HEADER_BYTES);
    let mut lengths = String::new();
    let mut ethertype = ethertype_at(12);
    if ethertype == 0x8100 && bytes.len() >= ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES {
        types = "L2_ETHER_VLAN".to_owned();
        l2 += VLAN_TAG_BYTES;
        ethertype = ethertype_at(16);
        let _ = write!(line, " - VLAN tci=0x{:x}", ethertype_at(14));
    }
    let _ = write!(lengths, " - l2_len={l2}");
    let network = match ethertype {
        // With a VLAN tag, `ipv4_header` finds the header behind the tag.
        0x0800 => ipv4_header(bytes)
            .map(|header| header.len())
            .or_else(|| bytes.get(l2).map(|first| usize::from(first & 0xf) * 4))
            .filter(|&length| length >= 20 && bytes.len() >= l2 + length)
            .map(|length| ("L3_IPV4", length, bytes[l2 + 9])),
        0x86dd if bytes.len() >= l2 + IPV6_HEADER_BYTES => {
            Some(("L3_IPV6", IPV6_HEADER_BYTES, bytes[l2 + 6]))
        }
        _ => None,
    };
    if let Some((name, length, protocol)) = network {
        let _ = write!(types, " {name}");
        let _ = write!(lengths, " - l3_len={length}");
        if let Some((name, length)) = transport_header(protocol, &bytes[l2 + length..]) {
            let _ = write!(types, " L4_{name}");
            let _ = write!(lengths, " - l4_len={length}");
        }
    }
    let _ = write!(
        line,
        " - sw ptype: {types}{lengths} - {direction} queue=0x{queue:x}"
    );
    line
}

#[cfg(test)]
mod tests {
    use linerate_packet::frame::{FlowAddress, FlowFrames, FrameSpec};

    use super::*;
    #[test]
    fn a_frame_is_one_line() {
        let spec = FrameSpec::default();
        let flows = FlowFrames::new(
            &spec,
            MacAddress::of_port(0),
            MacAddress::of_port(1),
            1,
            FlowAddress::Source,
        );
        let mut bytes = vec![0; 64];
        flows.write(&mut bytes, 0);
        assert_eq!(
            describe_frame(&bytes, "Receive", 10),
            "  src=02:00:00:00:00:00 - dst=02:00:00:00:00:01 - type=0x0800 - length=64 - nb_segs=1 - sw ptype: \
             L2_ETHER L3_IPV4 L4_UDP - l2_len=14 - l3_len=20 - l4_len=8 - Receive queue=0xa"
        );
        // A VLAN tag before the same packet.
        bytes.splice(12..12, [0x81, 0, 0, 5]);
        let tagged = describe_frame(&bytes, "Send", 0);
        assert!(
            tagged.contains("VLAN tci=0x5 - sw ptype: L2_ETHER_VLAN L3_IPV4 L4_UDP - l2_len=18"),
            "{tagged}"
        );
    }

    proptest::proptest! {
        /// A frame of any bytes is described.
        #[test]
        fn no_frame_is_too_odd(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80),
            kind in proptest::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 0x0806]),
        ) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(12..14) {
                place.copy_from_slice(&kind.to_be_bytes());
            }
            let description = describe_frame(&bytes, "Send", 0);
            proptest::prop_assert!(description.contains("length="), "{}", description);
        }
    }
}
