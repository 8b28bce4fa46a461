//! IPv6 headers that are skipped, dropped or reported (RFC 8200, section 4; RFC 4443, section 3.4).

use std::net::Ipv6Addr;

use crate::common::packets::{self, ETHERNET_BYTES, ICMPV6, UDP, V6_BYTES, insert_headers};
use crate::common::{LOCAL_V6, LinkModel, REMOTE_V6, TwoStackSim, socket_address};

const ALL_NODES: &str = "ff02::1";

fn octets(address: &str) -> [u8; 16] {
    address.parse::<Ipv6Addr>().unwrap().octets()
}

/// Handling of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Handling {
    Accepted,
    Dropped,
    /// Reported with this code and offset.
    Reported(u8, u32),
}

#[test]
fn unknown_headers_are_skipped_dropped_or_reported() {
    use Handling::{Accepted, Dropped, Reported};
    // An ICMP error: port unreachable.
    let error = [1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0];
    let usual = (REMOTE_V6, UDP);
    let to_all = (ALL_NODES, UDP);
    for (name, (to, last), first, headers, expected) in [
        // Destination options: the upper two bits of the type select the handling.
        (
            "pass over",
            usual,
            60,
            &[UDP, 0, 0x1e, 4, 1, 2, 3, 4][..],
            Accepted,
        ),
        ("drop", usual, 60, &[UDP, 0, 0x5e, 4, 1, 2, 3, 4], Dropped),
        (
            "report",
            usual,
            60,
            &[UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Reported(2, 42),
        ),
        (
            "report, unicast only, to unicast",
            usual,
            60,
            &[UDP, 0, 0xde, 4, 1, 2, 3, 4],
            Reported(2, 42),
        ),
        (
            "report, to a group",
            to_all,
            60,
            &[UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Reported(2, 42),
        ),
        (
            "unicast only, to a group",
            to_all,
            60,
            &[UDP, 0, 0xde, 4, 1, 2, 3, 4],
            Dropped,
        ),
        (
            "behind padding",
            usual,
            60,
            &[UDP, 0, 0, 1, 0, 0x9e, 1, 9],
            Reported(2, 45),
        ),
        ("padding", usual, 60, &[UDP, 0, 1, 2, 0, 0, 0, 0], Accepted),
        (
            "too long",
            usual,
            60,
            &[UDP, 0, 0x1e, 5, 1, 2, 3, 4],
            Dropped,
        ),
        (
            "without a length",
            usual,
            60,
            &[UDP, 0, 1, 3, 0, 0, 0, 0x1e],
            Dropped,
        ),
        (
            "of an error",
            (REMOTE_V6, ICMPV6),
            60,
            &[ICMPV6, 0, 0x9e, 4, 1, 2, 3, 4],
            Dropped,
        ),
        // Hop-by-hop options: only in front of all others.
        ("hops", usual, 0, &[UDP, 0, 0x1e, 4, 1, 2, 3, 4], Accepted),
        (
            "hops, report",
            usual,
            0,
            &[UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Reported(2, 42),
        ),
        (
            "hops behind",
            usual,
            60,
            &[0, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 1, 4, 0, 0, 0, 0],
            Reported(1, 40),
        ),
        // Routing headers: at their end, or not.
        ("route", usual, 43, &[UDP, 0, 99, 0, 0, 0, 0, 0], Accepted),
        (
            "route, segments left",
            usual,
            43,
            &[UDP, 0, 99, 1, 0, 0, 0, 0],
            Reported(0, 42),
        ),
        (
            "route, segments left, behind options",
            usual,
            60,
            &[43, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 0, 1, 0, 0, 0, 0],
            Reported(0, 50),
        ),
        // A fragment that is the complete datagram.
        (
            "fragment, report",
            usual,
            44,
            &[60, 0, 0, 0, 1, 2, 3, 4, UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Reported(2, 50),
        ),
    ] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
        let server = sim.remote.udp_bind(socket_address("::", 7)).unwrap();
        let reports = sim.capture(|end, frame| {
            end == 1 && frame[12..14] == [0x86, 0xdd] && frame[20] == ICMPV6 && frame[54] == 4
        });
        let payload = match last {
            UDP => packets::datagram(0xc001, 7, &[1, 2, 3, 4]),
            _ => error.to_vec(),
        };
        let ethernet = match to {
            ALL_NODES => [0x33, 0x33, 0, 0, 0, 1],
            _ => sim.remote.ethernet_address(),
        };
        let mut sent = packets::packet(ethernet, (LOCAL_V6, to), last, &payload);
        insert_headers(&mut sent, first, headers);
        sim.wire.deliver(1, &sent);
        sim.run(30);
        let reports = reports.borrow();
        let is_accepted = sim.remote.udp_queued(server).unwrap() > 0;
        let handling = match (&reports[..], is_accepted) {
            ([], true) => Accepted,
            ([], false) => Dropped,
            ([reports], false) => {
                // From the address of the packet, or the stack's own, to the sender, with the whole
                // packet.
                assert_eq!(
                    reports[ETHERNET_BYTES + 8..ETHERNET_BYTES + 24],
                    octets(REMOTE_V6),
                    "{name}"
                );
                assert_eq!(
                    reports[ETHERNET_BYTES + 24..ETHERNET_BYTES + V6_BYTES],
                    octets(LOCAL_V6),
                    "{name}"
                );
                assert_eq!(reports[62..], sent[ETHERNET_BYTES..], "{name}");
                Reported(
                    reports[55],
                    u32::from_be_bytes(reports[58..62].try_into().unwrap()),
                )
            }
            unexpected => panic!("{name}: {unexpected:?}"),
        };
        assert_eq!(handling, expected, "{name}");
        let counters = sim.remote.counters();
        assert_eq!(counters.icmp.out_parameter_problems, reports.len() as u64);
        let errors = counters.ip.in_header_errors;
        assert_eq!(errors, u64::from(expected != Accepted), "{name}");
        assert_eq!(sim.local.counters().icmp.in_checksum_errors, 0, "{name}");
    }
}
