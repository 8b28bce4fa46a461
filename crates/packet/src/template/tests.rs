//! Frames as bytes, with their checksums compared to a simple implementation.

use linerate_record::generate::{
    ArpPlan, EthernetPlan, IcmpPlan, IpPlan, TcpPlan, UdpPlan, VlanPlan,
};
use proptest::prelude::*;

use super::*;

const SOURCE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DESTINATION_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

const TAG: FrameTag = FrameTag {
    mark: 0xabcd,
    number: 7,
    flow_group: 3,
    time_ns: 1_000_000,
};

fn frames(plan: &TemplatePlan, count: u32) -> Vec<Vec<u8>> {
    let template = Template::new(plan, SOURCE_MAC, DESTINATION_MAC).unwrap();
    let sizes = template.sizes().sequence();
    (0..count)
        .map(|number| {
            let size = sizes[number as usize % sizes.len()];
            let mut frame = vec![0xee; size.into()];
            template.write(&mut frame, number % template.flows(), TAG);
            frame
        })
        .collect()
}

/// Without a requested size, frames are as short as headers, number and time allow, and at least as
/// long as Ethernet requires.
#[test]
fn default_size_fits_the_headers() {
    for (text, size) in [
        ("", 64),
        ("[tcp]\n", 68),
        ("[[vlan]]\nid = 1\n", 64),
        ("[[vlan]]\nid = 1\n[[vlan]]\nid = 2\n[[vlan]]\nid = 3\n", 68),
        ("[ipv6]\n", 76),
        ("[ipv6]\n[icmp]\n", 76),
        ("[ipv6]\n[tcp]\n", 88),
        ("[arp]\n", 64),
    ] {
        let plan = parse(text);
        assert_eq!(fitted_size(&plan), Ok(size), "{text}");
        let template = Template::new(&plan, SOURCE_MAC, DESTINATION_MAC).unwrap();
        assert_eq!(template.sizes().sequence(), [size - FCS_BYTES], "{text}");
        assert!(template.tag_location().is_some(), "{text}");
    }
    // A requested size is not changed.
    let small_template = Template::new(&parse("size = 64\n[ipv6]\n"), SOURCE_MAC, DESTINATION_MAC);
    let result = small_template.map(drop);
    assert_eq!(
        result,
        Err(TemplateError::TooShort {
            size: 64,
            least: 66
        })
    );
}

#[test]
fn a_mix_is_lengthened() {
    assert_eq!(FrameSizes::imix_with_min(64), "64:7,594:4,1518:1");
    assert_eq!(FrameSizes::imix_with_min(76), "76:7,594:4,1518:1");
    assert!(FrameSizes::parse(&FrameSizes::imix_with_min(600), 1).is_ok());
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        let octets: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        octets.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn parse(text: &str) -> TemplatePlan {
    parse_template(text).unwrap()
}

/// Golden frames, one of each kind.
#[test]
fn one_of_each() {
    let all = [
        ("udp", ""),
        ("ipv6 and udp", "size = '82'\n[ipv6]\n"),
        ("tcp", "size = '74'\n[tcp]\nflags = 'S'\n"),
        ("icmp", "[icmp]\n"),
        ("icmpv6", "size = '82'\n[ipv6]\n[icmp]\n"),
        ("arp", "[arp]\n"),
        (
            "two tags",
            "size = '72'\n[[vlan]]\nid = '100'\npriority = 5\n[[vlan]]\nid = '7'\n",
        ),
        (
            "bare ethernet",
            "content = 'zeros'\n[ethernet]\nethertype = 0\n",
        ),
    ];
    let text: Vec<String> = all
        .iter()
        .map(|(name, plan)| format!("{name}\n{}\n", hex(&frames(&parse(plan), 1)[0])))
        .collect();
    insta::assert_snapshot!(text.join("\n"));
}

/// Field values ascend, rotate and are random from flow to flow, and are the same on each run.
#[test]
fn fields_by_flow() {
    let plan = parse(
        "flows = 4\n[ethernet]\nsource = '02:00:00:00:01:00-02:00:00:00:01:ff'\n\
         [ipv4]\nsource = 'draw:10.0.0.0-10.0.0.255'\ndestination = '10.1.0.1-10.1.0.9+4'\n\
         [udp]\nsource = '1000,2000'\n",
    );
    let text: Vec<String> = frames(&plan, 5)
        .iter()
        .map(|frame| hex(&frame[..42]))
        .collect();
    assert_eq!(
        text,
        frames(&plan, 5)
            .iter()
            .map(|frame| hex(&frame[..42]))
            .collect::<Vec<_>>()
    );
    insta::assert_snapshot!(text.join("\n\n"));
    // Without a number of flows, the field with the most values determines it.
    let plan = TemplatePlan {
        flows: None,
        ..plan
    };
    assert_eq!(
        Template::new(&plan, SOURCE_MAC, DESTINATION_MAC)
            .unwrap()
            .flows(),
        256
    );
}

#[test]
fn impossible_templates_are_rejected() {
    for (text, expected) in [
        ("[ipv4]\n[ipv6]\n", "ipv4 and ipv6 cannot be combined"),
        ("[arp]\n[udp]\n", "cannot be combined"),
        (
            "[ethernet]\nethertype = 2048\n[ipv4]\n",
            "cannot be combined",
        ),
        ("size = 64\n[ipv6]\n", "use 66 or more"),
        (
            "[ipv4]\nsource = '1.2.3'\n",
            "`1.2.3` is not a valid ip.source",
        ),
        (
            "[ipv6]\nsource = '1.2.3.4-1.2.3.9'\n",
            "use an IPv6 address, because both addresses of a frame have the same version",
        ),
        (
            "size = 'foo'\n",
            "`foo` is not a valid size: use 64 to 65535 bytes, as 64, 64,512,1518",
        ),
        ("size = '64-1518+0'\n", "draw:64-1518, imix"),
        ("[[vlan]]\nid = '4096'\n", "vlan.id"),
        ("[[vlan]]\nid = '1'\npriority = 8\n", "vlan.priority"),
        ("[tcp]\nflags = 'X'\n", "FSRPAU"),
        ("content = 'noise'\n", "content"),
        ("flows = 0\n", "flows"),
        (
            "[ethernet]\nsource = '0:0:0:0:0:0-ff:ff:ff:ff:ff:ff'\n",
            "flows are not possible",
        ),
    ] {
        let error = Template::new(&parse(text), SOURCE_MAC, DESTINATION_MAC)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    // Location and cause only: the command that reads the file adds the next step.
    let message = parse_template("size = '64'\ncolour = 'red'")
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("not a valid template, line 2: unknown field `colour`, expected"),
        "{message}"
    );
    assert!(
        !message.contains('\n') && !message.contains("--help"),
        "{message}"
    );
    let short = Template::new(&parse("size = 64\n[tcp]\n"), SOURCE_MAC, DESTINATION_MAC).unwrap();
    assert_eq!(
        short.tag_location(),
        None,
        "the 6 bytes after the TCP header are no tag"
    );
}

/// VLAN tags leave less space in the shortest frames, but the tag still fits.
#[test]
fn the_shortest_frames_have_room_for_a_tag() {
    for (vlans, tag_bytes) in [(0, 16), (1, 14), (2, 10)] {
        let plan = TemplatePlan {
            vlan: vec![
                VlanPlan {
                    id: "5".to_owned(),
                    ..VlanPlan::default()
                };
                vlans
            ],
            size: Some("imix".to_owned()),
            ..TemplatePlan::default()
        };
        let template = Template::new(&plan, SOURCE_MAC, DESTINATION_MAC).unwrap();
        let (location, layout) = template.tag_location().unwrap();
        assert_eq!((location, layout.bytes), (42 + 4 * vlans, tag_bytes));
        let mut frame = vec![0; 60];
        template.write(&mut frame, 0, TAG);
        assert_eq!(
            find_tag(&frame, (location, layout), TAG.mark, 4, TAG.time_ns),
            TagMatch::Tagged(TAG, location + layout.bytes)
        );
    }
}

#[test]
fn errors_name_the_value_and_its_bounds() {
    for (text, expected) in [
        ("size = '63'", "64 to 65535"),
        ("size = '64,70000'", "64 to 65535"),
        (
            "size = 'draw:512-64'",
            "`512-64` of size is a descending range",
        ),
        (
            "[udp]\nsource = '1,70000'",
            "`70000` is not a valid udp.source: use 0 to 65535",
        ),
        (
            "[ipv4]\ndestination = '10.0.0.9-10.0.0.1'",
            "descending range",
        ),
    ] {
        let error = Template::new(&parse(text), SOURCE_MAC, DESTINATION_MAC)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    // Numbers need no quotes.
    let plan = parse("size = 128\n[[vlan]]\nid = 7\n[udp]\nsource = 1000\n");
    assert_eq!(plan.size.as_deref(), Some("128"));
    assert_eq!(plan.vlan[0].id, "7");
    assert_eq!(plan.udp.unwrap().source.as_deref(), Some("1000"));
}

/// Returns whether the one's complement sum of the words is all ones, that is, the checksum is
/// right.
fn is_sum_right(parts: &[&[u8]]) -> bool {
    let bytes = parts.concat();
    let mut total: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low)))
        .sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total == 0xffff
}

fn check_sums(frame: &[u8], vlans: usize) -> Result<(), TestCaseError> {
    let ip = &frame[14 + 4 * vlans..];
    let version_6 = ip[0] >> 4 == 6;
    let (addresses, protocol, segment) = if version_6 {
        prop_assert_eq!(
            usize::from(u16::from_be_bytes([ip[4], ip[5]])),
            ip.len() - 40
        );
        (&ip[8..40], ip[6], &ip[40..])
    } else {
        prop_assert!(is_sum_right(&[&ip[..20]]));
        prop_assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        (&ip[12..20], ip[9], &ip[20..])
    };
    let length = (segment.len() as u32).to_be_bytes();
    let pseudo = [addresses, &[0, protocol], &length].concat();
    match protocol {
        1 => prop_assert!(is_sum_right(&[segment])),
        17 => {
            prop_assert_eq!(
                usize::from(u16::from_be_bytes([segment[4], segment[5]])),
                segment.len()
            );
            prop_assert!(segment[6..8] != [0, 0]);
            prop_assert!(is_sum_right(&[&pseudo, segment]));
        }
        _ => prop_assert!(is_sum_right(&[&pseudo, segment])),
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_checksum_is_right(
        version_6: bool, transport in 0usize..3, vlans in 0usize..3, size in 100u16..1600, seed: u64,
        addresses: [u32; 2], mark: u16, number in 0u64..1 << 40, flow_group: u16, time_ns in 0u64..1 << 40,
        content in 0usize..4, flows in 1u32..5,
    ) {
        let v4 = |at: usize| std::net::Ipv4Addr::from_bits(addresses[at]).to_string();
        let ip = match version_6 {
            false => IpPlan { source: Some(v4(0)), destination: Some(format!("draw:{}-255.255.255.255", v4(1))), ..IpPlan::default() },
            true => IpPlan { source: Some(format!("2001:db8::{:x}", addresses[0] & 0xffff)), tos: Some(seed as u8), ..IpPlan::default() },
        };
        let plan = TemplatePlan {
            size: Some(size.to_string()),
            flows: Some(flows),
            seed: Some(seed),
            content: Some(["count", "zeros", "ones", "random"][content].to_owned()),
            ethernet: Some(EthernetPlan::default()),
            vlan: vec![VlanPlan { id: "1-4000".to_owned(), ..VlanPlan::default() }; vlans],
            ipv4: (!version_6).then(|| ip.clone()),
            ipv6: version_6.then_some(ip),
            arp: None::<ArpPlan>,
            udp: (transport == 0).then(|| UdpPlan { source: Some("draw:0-65535".to_owned()), destination: None }),
            tcp: (transport == 1).then(TcpPlan::default),
            icmp: (transport == 2).then(|| IcmpPlan { id: Some("draw:0-65535".to_owned()) }),
        };
        let template = Template::new(&plan, SOURCE_MAC, DESTINATION_MAC).unwrap();
        let tag = FrameTag { mark, number, flow_group, time_ns };
        let mut frame = vec![0xaa; usize::from(size - FCS_BYTES)];
        for flow in 0..flows {
            template.write(&mut frame, flow, tag);
            check_sums(&frame, vlans)?;
            let place = template.tag_location().unwrap();
            let found = find_tag(&frame, place, mark, u16::MAX, time_ns);
            let found = match found {
                TagMatch::Tagged(found, _) => Some(found.with_number_near(place.1, number)),
                _ => None,
            };
            prop_assert!(found == Some(tag) || flow_group == u16::MAX);
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,30}") {
        let _ = parse_template(&text);
        let plan = TemplatePlan { size: Some(text.clone()), content: Some("zeros".to_owned()), ..TemplatePlan::default() };
        let _ = Template::new(&plan, SOURCE_MAC, DESTINATION_MAC);
        let plan = TemplatePlan { ipv4: Some(IpPlan { source: Some(text), ..IpPlan::default() }), flows: Some(1), ..TemplatePlan::default() };
        let _ = Template::new(&plan, SOURCE_MAC, DESTINATION_MAC);
    }
}
