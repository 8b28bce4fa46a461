//! Whoever floods a stack with questions leaves it room for what it sends itself.

mod common;

use std::net::Ipv6Addr;

use common::packets::{piece, ping};
use common::segments::{self, SYN};
use common::{Bulk, FAR, FAR_V6, Link, NEAR, World, any, at, config, ready};

/// Questions that everybody may ask, by name: echo, both kinds of neighbours' and a request that is refused.
fn questions(world: &mut World) -> Vec<(&'static str, Vec<u8>)> {
    let seen = world.kept(|end, _| end == 0);
    let client = world.near.udp_bind(any(0)).unwrap();
    for far in [FAR, FAR_V6] {
        ready(world.near.udp_send(client, Some(at(far, 7)), 1, |_| ()));
    }
    world.run(20);
    let refused = world.near.tcp_connect(at(FAR, 9), None).unwrap();
    world.run(20);
    world.near.close(refused).unwrap();
    world.near.close(client).unwrap();
    world.wire.watch = Box::new(|_, _| true);
    let echo = ping(world.far.ethernet(), (NEAR, FAR), 56);
    let seen = seen.borrow();
    let find = |is: &dyn Fn(&[u8]) -> bool| seen.iter().find(|frame| is(frame)).unwrap().clone();
    let arp = find(&|frame| frame[12..14] == [8, 6] && frame[38..42] == [10, 0, 0, 2]);
    let to: Ipv6Addr = FAR_V6.parse().unwrap();
    let solicitation = find(&|frame| {
        frame[12..14] == [0x86, 0xdd] && frame[54] == 135 && frame[62..78] == to.octets()
    });
    let asks = find(&|frame| segments::is_tcp(frame) && segments::flags(frame) == SYN);
    vec![
        ("echo", echo),
        ("ARP", arp),
        ("discovery", solicitation),
        ("refusals", asks),
    ]
}

const SETTINGS: [&str; 2] = ["tx_descriptors=8", "rx_descriptors=64"];

#[test]
fn a_flood_of_questions_leaves_datagrams_room() {
    let mut world = World::alike(&SETTINGS, Link::CLEAN);
    let server = world.far.udp_bind(any(7)).unwrap();
    // What is sent there is heard, and not answered.
    world.near.udp_bind(any(7)).unwrap();
    for (name, question) in questions(&mut world) {
        world.run(50);
        let before = world.far.counters();
        let (mut sent, turns) = (0, 200);
        for _ in 0..turns {
            for _ in 0..64 {
                world.wire.put(1, &question);
            }
            world.turn();
            for _ in 0..4 {
                let to = Some(at(NEAR, 7));
                let went = world.far.udp_send(server, to, 10, |room| room.fill(1));
                sent += u64::from(went.is_ready());
            }
            world.pass();
        }
        assert_eq!(sent, 4 * turns, "{name}");
        let since = world.far.counters().since(&before);
        let link = since.link;
        assert_eq!(link.out_ring_full, 0, "{name}");
        // Who asks is answered all the same, and what is not is counted.
        let answers =
            since.icmp.out_echo_replies + since.tcp.out_resets + link.out_neighbor_replies;
        assert_eq!(answers + link.out_answers_limited, 64 * turns, "{name}");
        assert!(answers > turns, "{name}: {answers}");
    }
}

#[test]
fn a_flood_of_questions_leaves_streams_room() {
    let mut world = World::alike(&SETTINGS, Link::CLEAN);
    for (name, question) in questions(&mut world) {
        let (client, server) = world.connected(80);
        let (mut near, mut far) = (Bulk::new(client, 20_000), Bulk::new(server, 50_000));
        let mut turns = 0;
        while !(near.ended && far.ended) {
            turns += 1;
            assert!(turns < 5_000, "{name}: {} of 50,000 B", near.received);
            // Some room is left for what the near end says.
            for _ in 0..48 {
                world.wire.put(1, &question);
            }
            near.step(&mut world.near);
            far.step(&mut world.far);
            world.turn();
            world.pass();
        }
        world.near.close(client).unwrap();
        world.far.close(server).unwrap();
        world.run(50);
    }
}

/// Of answers that leave in pieces not one begins when the last is gone: behind each datagrams have their turns.
#[test]
fn long_echoes_are_paid_for() {
    for tx in ["tx_descriptors=1", "tx_descriptors=4"] {
        let far = config(&[tx, "rx_descriptors=64"]);
        let mut world = World::new(&config(&[]), &far, Link::CLEAN);
        let _ = questions(&mut world);
        let server = world.far.udp_bind(any(7)).unwrap();
        // In pieces: as long as no packet is, so that its answer is cut as well.
        let whole = ping(world.far.ethernet(), (NEAR, FAR), 3_000);
        let before = world.far.counters().icmp.out_echo_replies;
        let mut sent = 0;
        for turn in 0..300 {
            for bytes in [0..1_480, 1_480..2_960, 2_960..3_008] {
                world.wire.put(1, &piece(&whole, turn, bytes));
            }
            world.turn();
            let to = Some(at(NEAR, 7));
            while world
                .far
                .udp_send(server, to, 10, |room| room.fill(1))
                .is_ready()
            {
                sent += 1;
            }
            world.pass();
        }
        let echoes = world.far.counters().icmp.out_echo_replies - before;
        let per_turn = if tx.ends_with('1') { 1 } else { 4 };
        assert!(
            sent >= 300 * per_turn / 2 - 10,
            "{tx}: {sent} beside {echoes}"
        );
        assert!(echoes > 20, "{tx}: {echoes}");
    }
}

/// Echo requests that come from hosts that are not there: their answers wait for those, in places that others need.
#[test]
fn answers_to_nobody_leave_datagrams_a_place_to_wait() {
    let mut world = World::alike(&[], Link::CLEAN).announced();
    let server = world.far.udp_bind(any(7)).unwrap();
    for host in 100..180 {
        let from = format!("10.0.0.{host}");
        let question = ping(world.far.ethernet(), (&from, FAR), 56);
        world.wire.put(1, &question);
    }
    world.turn();
    // Nobody was asked for this one's address yet.
    let got = world.near.udp_bind(any(7)).unwrap();
    for _ in 0..20 {
        ready(world.far.udp_send(server, Some(at(NEAR, 7)), 10, |_| ()));
    }
    world.run(20);
    assert_eq!(world.near.udp_waiting(got).unwrap(), 20);
}
