//! Floods of requests leave a share of the transmit ring to local sockets.

mod common;

use std::net::Ipv6Addr;
use std::task::Poll;

use common::packets::{self, UDP, packet, piece, ping};
use common::router::too_long;
use common::segments::{self, ACK, AT, RST, SYN};
use common::{Bulk, FAR, FAR_V6, Link, NEAR, NEAR_V6, World, any, at, config, ready};
use linerate_stack::Counters;

/// Request that any host may send.
struct Question {
    name: &'static str,
    frame: Vec<u8>,
    /// Minimum number of replies, to 64 requests in each of [`TURNS`].
    answers: u64,
}

const TURNS: u64 = 200;

/// Burst limit of ICMP errors.
const ERRORS: u64 = 50;

/// Returns echo requests, address requests, rejected SYNs, and packets that cause errors.
fn questions(world: &mut World) -> Vec<Question> {
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
    let seen = seen.borrow();
    let find = |is: &dyn Fn(&[u8]) -> bool| seen.iter().find(|frame| is(frame)).unwrap().clone();
    let arp = find(&|frame| frame[12..14] == [8, 6] && frame[38..42] == [10, 0, 0, 2]);
    let to: Ipv6Addr = FAR_V6.parse().unwrap();
    let solicitation = find(&|frame| {
        frame[12..14] == [0x86, 0xdd] && frame[54] == 135 && frame[62..78] == to.octets()
    });
    let asks = find(&|frame| segments::is_tcp(frame) && segments::flags(frame) == SYN);
    let [of_nobody, resets] = [ACK, RST].map(|flags| segments::like(&asks, 1, flags, b"?"));
    let ethernet = world.far.ethernet();
    let (v4, v6) = ((NEAR, FAR), (NEAR_V6, FAR_V6));
    // To a port without a socket.
    let stray = packets::datagram(0xc001, 8_080, b"?");
    let [stray_v4, stray_v6] = [v4, v6].map(|ends| packet(ethernet, ends, UDP, &stray));
    // With an unknown option that must be reported.
    let mut option = stray_v6.clone();
    packets::insert_headers(&mut option, 60, &[UDP, 0, 0x9e, 4, 1, 2, 3, 4]);
    let all = [
        ("echo", ping(ethernet, v4, 56), TURNS),
        ("echo of IPv6", ping(ethernet, v6, 56), TURNS),
        ("ARP", arp, TURNS),
        ("discovery", solicitation, TURNS),
        ("rejected SYNs", asks, TURNS),
        ("segments without connection", of_nobody, TURNS),
        ("resets", resets, 0),
        ("closed port", stray_v4, ERRORS),
        ("closed port, IPv6", stray_v6, ERRORS),
        ("options", option, ERRORS),
    ];
    let question = |(name, frame, answers)| Question {
        name,
        frame,
        answers,
    };
    all.map(question).into()
}

const SETTINGS: [&str; 2] = ["tx_descriptors=8", "rx_descriptors=64"];

#[test]
fn a_flood_of_questions_leaves_datagrams_room() {
    let mut world = World::alike(&SETTINGS, Link::CLEAN);
    let server = world.far.udp_bind(any(7)).unwrap();
    // Received there, and not answered.
    world.near.udp_bind(any(7)).unwrap();
    for Question {
        name,
        frame,
        answers: least,
    } in questions(&mut world)
    {
        // Refills the limit of errors.
        world.run(100);
        let before = world.far.counters();
        let mut sent = 0;
        for _ in 0..TURNS {
            for _ in 0..64 {
                world.wire.put(1, &frame);
            }
            world.turn();
            for _ in 0..4 {
                let to = Some(at(NEAR, 7));
                let went = world.far.udp_send(server, to, 10, |room| room.fill(1));
                sent += u64::from(went.is_ready());
            }
            world.pass();
        }
        assert_eq!(sent, 4 * TURNS, "{name}");
        // Frames that found no descriptor because of neighbour messages.
        world.run(5);
        let Counters {
            link, icmp, tcp, ..
        } = world.far.counters().since(&before);
        assert_eq!(link.out_ring_full, 0, "{name}");
        // Requests are still answered, and those that are not are counted.
        let errors = icmp.out_port_unreachables + icmp.out_parameter_problems;
        let others = icmp.out_echo_replies + tcp.out_resets + link.out_neighbor_replies;
        let limited = link.out_answers_limited + icmp.out_limited;
        let (answers, asked) = (errors + others, if least > 0 { 64 * TURNS } else { 0 });
        assert_eq!(answers + limited, asked, "{name}");
        assert!(answers >= least, "{name}: {answers}");
    }
}

/// SYNs, each reset as soon as it may have been answered.
#[test]
fn a_flood_of_requests_leaves_datagrams_room() {
    let settings = [&SETTINGS[..], &["sockets.tcp=64"]].concat();
    let mut world = World::alike(&settings, Link::CLEAN);
    let mut asks = questions(&mut world).swap_remove(4).frame;
    asks[AT + 2..AT + 4].copy_from_slice(&80u16.to_be_bytes());
    let server = world.far.udp_bind(any(7)).unwrap();
    world.near.udp_bind(any(7)).unwrap();
    world.far.tcp_listen(any(80), 64).unwrap();
    let (mut sent, mut asked) = (0, Vec::<Vec<u8>>::new());
    let before = world.far.counters();
    for turn in 0..TURNS as u16 {
        let number = segments::sequence(&asks);
        let resets = asked
            .iter()
            .map(|frame| segments::like(frame, number + 1, RST, &[]));
        let resets: Vec<Vec<u8>> = resets.collect();
        let from = |port: u16| {
            let mut frame = asks.clone();
            frame[AT..AT + 2].copy_from_slice(&(1_000 + 24 * turn + port).to_be_bytes());
            packets::complete(&mut frame);
            frame
        };
        asked = (0..24).map(from).collect();
        for frame in resets.iter().chain(&asked) {
            world.wire.put(1, frame);
        }
        world.turn();
        for _ in 0..4 {
            let to = Some(at(NEAR, 7));
            let went = world.far.udp_send(server, to, 10, |room| room.fill(1));
            sent += u64::from(went.is_ready());
        }
        world.pass();
    }
    assert_eq!(sent, 4 * TURNS);
    let since = world.far.counters().since(&before).tcp;
    assert!(since.passive_opens > 20 * TURNS, "{since:#?}");
    assert!(since.out_segments >= TURNS, "{since:#?}");
}

/// A flooded service that does not reply or read leaves space to another service.
#[test]
fn a_flood_of_datagrams_leaves_other_sockets_room() {
    for answers in [false, true] {
        let mut world = World::alike(&SETTINGS, Link::CLEAN);
        let _ = questions(&mut world);
        let [flooded, quiet] = [9, 7].map(|port| world.far.udp_bind(any(port)).unwrap());
        let client = world.near.udp_bind(any(0)).unwrap();
        world.near.udp_connect(client, at(FAR, 7)).unwrap();
        let ethernet = world.far.ethernet();
        let datagram = packets::datagram(0xc001, 9, &[7; 20]);
        let flood = packet(ethernet, (NEAR, FAR), UDP, &datagram);
        let mut got = 0;
        for turn in 0..3 * TURNS {
            // Some descriptors are left for packets of the local stack.
            for _ in 0..48 {
                world.wire.put(1, &flood);
            }
            if turn < TURNS {
                ready(world.near.udp_send(client, None, 10, |room| room.fill(1)));
            }
            world.turn();
            for socket in [quiet, flooded] {
                while (socket == quiet || answers) && world.far.udp_has_room() {
                    let Poll::Ready(from) = world.far.udp_receive(socket, |_, meta| meta.from)
                    else {
                        break;
                    };
                    ready(
                        world
                            .far
                            .udp_send(socket, from.ok(), 10, |room| room.fill(2)),
                    );
                }
            }
            while world.near.udp_receive(client, |_, _| ()).is_ready() {
                got += 1;
            }
            world.pass();
        }
        assert_eq!(got, TURNS, "it answers: {answers}");
        assert!(world.far.counters().udp.receive_queue_full > TURNS);
    }
}

#[test]
fn a_flood_of_questions_leaves_streams_room() {
    let mut world = World::alike(&SETTINGS, Link::CLEAN);
    for Question { name, frame, .. } in questions(&mut world) {
        let (client, server) = world.connected(80);
        let (mut near, mut far) = (Bulk::new(client, 20_000), Bulk::new(server, 50_000));
        let mut turns = 0;
        while !(near.ended && far.ended) {
            turns += 1;
            assert!(turns < 5_000, "{name}: {} of 50,000 B", near.received);
            // Some descriptors are left for packets of the local stack.
            for _ in 0..48 {
                world.wire.put(1, &frame);
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

/// No fragmented reply begins right when the last one has left: datagrams are sent after each. A
/// reply is charged as many fragments as the path requires.
#[test]
fn long_echoes_are_paid_for() {
    for (tx, per_turn) in [("tx_descriptors=1", 1), ("tx_descriptors=4", 4)] {
        for narrow in [false, true] {
            let far = config(&[tx, "rx_descriptors=64"]);
            let mut world = World::new(&config(&[]), &far, Link::CLEAN);
            let _ = questions(&mut world);
            let server = world.far.udp_bind(any(7)).unwrap();
            let ethernet = world.far.ethernet();
            let whole = match narrow {
                // Longer than any packet, so that its reply is fragmented as well.
                false => ping(ethernet, (NEAR, FAR), 3_000),
                // Its reply is a single packet, and too long for a router.
                true => ping(ethernet, (NEAR_V6, FAR_V6), 1_400),
            };
            if narrow {
                let answered = world.kept(|end, frame| end == 1 && frame.len() > 1_400);
                world.wire.put(1, &whole);
                world.run(30);
                let said = too_long(&answered.take()[0], 1_280);
                world.wire.put(1, &said);
                world.run(30);
                assert_eq!(world.far.counters().ip.path_mtu_told, 1);
            }
            let before = world.far.counters().icmp.out_echo_replies;
            let mut sent = 0;
            for turn in 0..300 {
                match narrow {
                    false => {
                        for bytes in [0..1_480, 1_480..2_960, 2_960..3_008] {
                            world.wire.put(1, &piece(&whole, turn, bytes));
                        }
                    }
                    true => world.wire.put(1, &whole),
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
            let case = format!("{tx}, narrow {narrow}: {sent} datagrams, {echoes} echoes");
            assert!(sent >= 300 * per_turn / 2 - 10, "{case}");
            assert!(echoes > 20, "{case}");
        }
    }
}

/// Long requests that cannot be answered at all take no share from others.
#[test]
fn what_does_not_leave_is_not_paid_for() {
    let far = config(&[
        "tx_descriptors=4",
        "rx_descriptors=64",
        "ip.fragmentation=off",
    ]);
    let mut world = World::new(&config(&[]), &far, Link::CLEAN);
    let _ = questions(&mut world);
    let ethernet = world.far.ethernet();
    let [long, short] = [3_000, 56].map(|bytes| ping(ethernet, (NEAR, FAR), bytes));
    let before = world.far.counters();
    for turn in 0..100 {
        for bytes in [0..1_480, 1_480..2_960, 2_960..3_008] {
            world.wire.put(1, &piece(&long, turn, bytes));
        }
        world.wire.put(1, &short);
        world.turn();
        world.pass();
    }
    let since = world.far.counters().since(&before);
    let answers = (since.icmp.out_echo_replies, since.link.out_answers_limited);
    assert_eq!(answers, (100, 0));
    assert_eq!(since.ip.fragmented_fails, 100);
}

/// Echo requests from hosts that do not exist: their replies wait for ARP, in places that others
/// need.
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
    // No request was sent for this address yet.
    let got = world.near.udp_bind(any(7)).unwrap();
    for _ in 0..20 {
        ready(world.far.udp_send(server, Some(at(NEAR, 7)), 10, |_| ()));
    }
    world.run(20);
    assert_eq!(world.near.udp_waiting(got).unwrap(), 20);
}
