//! IPv6 headers that are skipped, dropped or reported (RFC 8200, section 4; RFC 4443, section 3.4).

mod common;

use std::net::Ipv6Addr;

use common::packets::{self, ETHERNET, ICMPV6, UDP, V6, insert_headers};
use common::{FAR_V6, Link, NEAR_V6, World, at};

const ALL_NODES: &str = "ff02::1";

fn octets(address: &str) -> [u8; 16] {
    address.parse::<Ipv6Addr>().unwrap().octets()
}

/// Handling of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Taken,
    Dropped,
    /// Reported with this code and offset.
    Told(u8, u32),
}

#[test]
fn what_is_not_known_is_passed_over_or_told() {
    use Fate::{Dropped, Taken, Told};
    // An ICMP error: port unreachable.
    let error = [1, 4, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0];
    let usual = (FAR_V6, UDP);
    let to_all = (ALL_NODES, UDP);
    for (name, (to, last), first, headers, fate) in [
        // Destination options: the upper two bits of the type select the handling.
        (
            "pass over",
            usual,
            60,
            &[UDP, 0, 0x1e, 4, 1, 2, 3, 4][..],
            Taken,
        ),
        ("drop", usual, 60, &[UDP, 0, 0x5e, 4, 1, 2, 3, 4], Dropped),
        (
            "report",
            usual,
            60,
            &[UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Told(2, 42),
        ),
        (
            "report, unicast only, to unicast",
            usual,
            60,
            &[UDP, 0, 0xde, 4, 1, 2, 3, 4],
            Told(2, 42),
        ),
        (
            "report, to a group",
            to_all,
            60,
            &[UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Told(2, 42),
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
            Told(2, 45),
        ),
        ("padding", usual, 60, &[UDP, 0, 1, 2, 0, 0, 0, 0], Taken),
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
            (FAR_V6, ICMPV6),
            60,
            &[ICMPV6, 0, 0x9e, 4, 1, 2, 3, 4],
            Dropped,
        ),
        // Hop-by-hop options: only in front of all others.
        ("hops", usual, 0, &[UDP, 0, 0x1e, 4, 1, 2, 3, 4], Taken),
        (
            "hops, report",
            usual,
            0,
            &[UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Told(2, 42),
        ),
        (
            "hops behind",
            usual,
            60,
            &[0, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 1, 4, 0, 0, 0, 0],
            Told(1, 40),
        ),
        // Routing headers: at their end, or not.
        ("route", usual, 43, &[UDP, 0, 99, 0, 0, 0, 0, 0], Taken),
        (
            "route, segments left",
            usual,
            43,
            &[UDP, 0, 99, 1, 0, 0, 0, 0],
            Told(0, 42),
        ),
        (
            "route, segments left, behind options",
            usual,
            60,
            &[43, 0, 1, 4, 0, 0, 0, 0, UDP, 0, 0, 1, 0, 0, 0, 0],
            Told(0, 50),
        ),
        // A fragment that is the complete datagram.
        (
            "fragment, report",
            usual,
            44,
            &[60, 0, 0, 0, 1, 2, 3, 4, UDP, 0, 0x9e, 4, 1, 2, 3, 4],
            Told(2, 50),
        ),
    ] {
        let mut world = World::alike(&[], Link::CLEAN).announced();
        let server = world.far.udp_bind(at("::", 7)).unwrap();
        let told = world.kept(|end, frame| {
            end == 1 && frame[12..14] == [0x86, 0xdd] && frame[20] == ICMPV6 && frame[54] == 4
        });
        let behind = match last {
            UDP => packets::datagram(0xc001, 7, &[1, 2, 3, 4]),
            _ => error.to_vec(),
        };
        let ethernet = match to {
            ALL_NODES => [0x33, 0x33, 0, 0, 0, 1],
            _ => world.far.ethernet(),
        };
        let mut sent = packets::packet(ethernet, (NEAR_V6, to), last, &behind);
        insert_headers(&mut sent, first, headers);
        world.wire.put(1, &sent);
        world.run(30);
        let told = told.borrow();
        let taken = world.far.udp_waiting(server).unwrap() > 0;
        let found = match (&told[..], taken) {
            ([], true) => Taken,
            ([], false) => Dropped,
            ([told], false) => {
                // From the address of the packet, or the stack's own, to the sender, with the whole
                // packet.
                assert_eq!(told[ETHERNET + 8..ETHERNET + 24], octets(FAR_V6), "{name}");
                assert_eq!(
                    told[ETHERNET + 24..ETHERNET + V6],
                    octets(NEAR_V6),
                    "{name}"
                );
                assert_eq!(told[62..], sent[ETHERNET..], "{name}");
                Told(
                    told[55],
                    u32::from_be_bytes(told[58..62].try_into().unwrap()),
                )
            }
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(found, fate, "{name}");
        let counters = world.far.counters();
        assert_eq!(counters.icmp.out_parameter_problems, told.len() as u64);
        let errors = counters.ip.in_header_errors;
        assert_eq!(errors, u64::from(fate != Taken), "{name}");
        assert_eq!(world.near.counters().icmp.in_checksum_errors, 0, "{name}");
    }
}
