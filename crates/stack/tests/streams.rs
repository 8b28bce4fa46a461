//! TCP between two stacks in simulated time: lossy links, slow readers and aborted connections.

mod common;

use std::fmt::Write;
use std::task::Poll;

use common::{Bulk, FAR, FAR_V6, Link, World, any, at, config, ready};
use linerate_stack::{SocketId, StackError, TcpState};

fn bulk(world: &mut World, seconds: u64, near_bytes: usize, far_bytes: usize) -> (Bulk, Bulk) {
    let (client, server) = world.connected(80);
    let mut near = Bulk::new(client, near_bytes);
    let mut far = Bulk::new(server, far_bytes);
    world.until(seconds, |world| {
        near.step(&mut world.near);
        far.step(&mut world.far);
        near.ended && far.ended
    });
    assert_eq!((near.received, far.received), (far_bytes, near_bytes));
    (near, far)
}

#[test]
fn content_survives_a_bad_link() {
    for (number, loss, duplicate, reorder) in [
        (0, 1_000, 0, 0),
        (1, 10_000, 10_000, 0),
        (2, 0, 0, 200_000),
        (3, 20_000, 20_000, 100_000),
        (4, 50_000, 0, 0),
    ] {
        let link = Link {
            loss,
            duplicate,
            reorder,
            shuffle_ns: 300_000,
            seed: 40 + number,
            ..Link::CLEAN
        };
        let mut world = World::alike(&["tcp.send_buffer=64K", "tcp.receive_window=64K"], link);
        bulk(&mut world, 600, 400_000, 300_000);
        let counters = world.near.counters().tcp;
        if loss >= 10_000 {
            assert!(counters.retransmitted_segments > 0, "{link:?}");
        }
        // Segments of any length are lost; no loss counts as a path MTU problem.
        let far = world.far.counters().tcp;
        let guesses = (counters.path_mtu_guesses, far.path_mtu_guesses);
        assert_eq!(guesses, (0, 0), "{link:?}");
        assert_eq!(counters.in_checksum_errors, 0);
    }
}

#[test]
fn every_control_and_option_carries_content() {
    for settings in [
        &[
            "tcp.congestion_control=none",
            "tcp.nagle=off",
            "tcp.delayed_ack=off",
        ][..],
        &["tcp.congestion_control=reno", "tcp.psh=always"],
        &["tcp.psh=never", "mtu=576"],
        &["mtu=9000", "tcp.send_buffer=1M", "tcp.receive_window=1M"],
        &["checksum=offload"],
        &[
            "rx_descriptors=4",
            "tx_descriptors=4",
            "tcp.send_buffer=1024",
            "tcp.receive_window=1024",
        ],
        &["rx_descriptors=1", "tx_descriptors=1"],
    ] {
        let mut world = World::alike(settings, Link::CLEAN);
        bulk(&mut world, 120, 300_000, 200_000);
    }
}

#[test]
fn psh_is_as_configured_and_sums_stay_right() {
    for (setting, wanted) in [
        ("tcp.psh=never", [false, false]),
        ("tcp.psh=always", [true, true]),
        ("tcp.psh=buffer-empty", [false, true]),
    ] {
        let mut world = World::alike(&[setting, "tcp.nagle=off"], Link::CLEAN);
        let (client, server) = world.connected(80);
        let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let list = seen.clone();
        world.wire.watch = Box::new(move |end, frame| {
            let payload = frame.len() > 54 && frame[12..14] == [8, 0];
            if end == 0 && payload {
                list.borrow_mut().push(frame[47] & 8 != 0);
            }
            true
        });
        // Two segments: the first does not empty the buffer, the second does.
        ready(world.near.tcp_send(client, |room| room.len().min(2000)));
        world.until(5, |world| {
            let got = world.far.tcp_queued(server).unwrap().1;
            got == 2000
        });
        assert_eq!(*seen.borrow(), wanted, "{setting}");
        assert_eq!(world.far.counters().tcp.in_checksum_errors, 0);
    }
}

/// Payload of the longest segment that each stack sent, and the traffic classes of all packets.
type Seen = ([usize; 2], [Vec<u8>; 2]);

fn seen_of(near: &[&str], far: &[&str], v6: bool) -> Seen {
    let mut world = World::new(&config(near), &config(far), Link::CLEAN);
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Seen::default()));
    let list = seen.clone();
    world.wire.watch = Box::new(move |end, frame| {
        let (tos, tcp) = match (frame[12], frame[13]) {
            (8, 0) if frame[23] == 6 => (frame[15], 34),
            (0x86, 0xdd) if frame[20] == 6 => (frame[14] << 4 | frame[15] >> 4, 54),
            _ => return true,
        };
        let payload = frame.len() - tcp - usize::from(frame[tcp + 12] >> 4) * 4;
        let (largest, classes) = &mut *list.borrow_mut();
        largest[end] = largest[end].max(payload);
        classes[end].push(tos);
        true
    });
    let listener = world.far.tcp_listen(any(80), 1).unwrap();
    let to = at(if v6 { FAR_V6 } else { FAR }, 80);
    let (client, server) = world.connect_to(listener, to);
    for (end, socket) in [(0, client), (1, server)] {
        let stack = if end == 0 {
            &mut world.near
        } else {
            &mut world.far
        };
        ready(stack.tcp_send(socket, |room| room.len().min(5_000)));
    }
    world.until(5, |world| {
        let came = |stack: &mut linerate_stack::Stack, socket| stack.tcp_queued(socket).unwrap().1;
        came(&mut world.far, server) == 5_000 && came(&mut world.near, client) == 5_000
    });
    for stack in [&world.near, &world.far] {
        let counters = stack.counters();
        assert_eq!(counters.tcp.in_checksum_errors, 0);
        assert_eq!(counters.ip.in_header_errors, 0);
    }
    seen.take()
}

#[test]
fn segments_are_as_long_as_the_smaller_end_wants_them() {
    for v6 in [false, true] {
        let whole = if v6 { 1_440 } else { 1_460 };
        for (near, far, longest) in [
            (&[][..], &[][..], [whole; 2]),
            // A stack's limit holds in both directions: for segments sent, and as the announced
            // MSS.
            (&["tcp.mss=600"], &[], [600; 2]),
            (&[], &["tcp.mss=536"], [536; 2]),
            (&["tcp.mss=1000"], &["tcp.mss=88"], [88; 2]),
            (&["tcp.mss=9000"], &[], [whole; 2]),
        ] {
            let (seen, _) = seen_of(near, far, v6);
            assert_eq!(seen, longest, "{near:?} {far:?} IPv6 {v6}");
        }
    }
}

#[test]
fn segments_carry_the_class_of_service_of_their_end() {
    for v6 in [false, true] {
        let (_, [near, far]) = seen_of(&["ip.tos=184"], &[], v6);
        assert!(
            !near.is_empty() && near.iter().all(|tos| *tos == 184),
            "{near:?}"
        );
        assert!(
            !far.is_empty() && far.iter().all(|tos| *tos == 0),
            "{far:?}"
        );
    }
}

#[test]
fn one_direction_ends_before_the_other() {
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = world.connected(80);
    world.near.tcp_finish(client).unwrap();
    let mut ended = false;
    world.until(5, |world| {
        if let Poll::Ready(got) = world.far.tcp_receive(server, |bytes| (0, bytes.len())) {
            assert_eq!(got.unwrap(), 0);
            ended = true;
        }
        ended
    });
    assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::FarFinished);
    let sent = world.near.tcp_send(client, |_| 1);
    assert!(matches!(sent, Poll::Ready(Err(StackError::Finished))));
    // The peer still sends much data.
    let mut far = Bulk::new(server, 500_000);
    far.ended = true;
    let mut near = Bulk::new(client, 0);
    world.until(30, |world| {
        far.step(&mut world.far);
        let mut seen = 0;
        if let Poll::Ready(got) = world
            .near
            .tcp_receive(client, |bytes| (bytes.len(), bytes.len()))
        {
            seen = got.unwrap();
            near.ended |= seen == 0;
        }
        near.received += seen;
        near.ended
    });
    assert_eq!(near.received, 500_000);
    world.near.close(client).unwrap();
    world.far.close(server).unwrap();
    world.until(60, |world| {
        world.near.connections() + world.far.connections() == 0
    });
}

#[test]
fn a_reset_is_told() {
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = world.connected(80);
    ready(world.near.tcp_send(client, |room| room.len().min(10)));
    world.run(20);
    world.near.abort(client).unwrap();
    world.until(5, |world| {
        world.far.tcp_state(server).unwrap() == TcpState::Closed
    });
    // Data received before the reset can still be read, as smoltcp keeps it; then the error
    // follows.
    let _ = world
        .far
        .tcp_receive(server, |bytes| (bytes.len(), bytes.len()));
    let got = world.far.tcp_receive(server, |bytes| (bytes.len(), ()));
    assert!(
        matches!(got, Poll::Ready(Err(StackError::Reset))),
        "{got:?}"
    );
    assert_eq!(world.far.counters().tcp.established_resets, 1);
    assert_eq!(world.near.counters().tcp.out_resets, 1);
    world.far.close(server).unwrap();
    world.until(5, |world| {
        world.near.connections() + world.far.connections() == 0
    });

    // Closing with unread payload resets the connection (RFC 2525, section 2.17).
    let (client, server) = world.connected(81);
    ready(world.near.tcp_send(client, |room| room.len().min(10)));
    world.run(20);
    world.far.close(server).unwrap();
    world.until(5, |world| {
        world.near.tcp_state(client).unwrap() == TcpState::Closed
    });
}

#[test]
fn a_full_window_opens_again_even_if_the_news_is_lost() {
    let small = [
        "tcp.receive_window=4096",
        "tcp.send_buffer=16K",
        "tcp.min_rto=200ms",
    ];
    let mut world = World::alike(&small, Link::CLEAN);
    let (client, server) = world.connected(80);
    let mut near = Bulk::new(client, 50_000);
    near.ended = true;
    for _ in 0..2_000 {
        near.step(&mut world.near);
        world.turn();
        world.pass();
    }
    assert_eq!(
        world.far.tcp_queued(server).unwrap().1,
        4096,
        "the window is full"
    );
    let probes = world.near.counters().tcp.out_segments;
    // For two seconds no segment of the reader arrives: only probes keep the connection alive.
    let deaf_until = world.now + 2_000_000_000;
    let mut far = Bulk::new(server, 0);
    world.wire.watch = Box::new(|end, _| end == 0);
    while world.now < deaf_until {
        far.step(&mut world.far);
        world.turn();
        world.pass();
    }
    assert!(
        world.near.counters().tcp.out_segments > probes,
        "a full window is probed"
    );
    world.wire.watch = Box::new(|_, _| true);
    world.until(60, |world| {
        near.step(&mut world.near);
        far.step(&mut world.far);
        far.ended
    });
    assert_eq!(far.received, 50_000);
}

/// Both windows are full, and the peer reads nothing until it can send. Only acknowledgements can
/// help, and they lie beyond a window whose edge was rounded down.
#[test]
fn full_windows_both_ways_do_not_lock() {
    for odd in [1_000_003, 524_289, 99_991] {
        let sizes = format!("tcp.receive_window={odd}");
        let settings = [&sizes, "tcp.send_buffer=2M", "tcp.delayed_ack=off"];
        let mut world = World::alike(&settings, Link::CLEAN);
        let (client, server) = world.connected(80);
        let mut near = Bulk::new(client, 4_000_000);
        let mut far = Bulk::new(server, 4_000_000);
        // Neither reads until nothing moves any more.
        (near.ended, far.ended) = (true, true);
        for _ in 0..3_000 {
            near.step(&mut world.near);
            far.step(&mut world.far);
            world.turn();
            world.pass();
        }
        // Only the local stack reads; the peer's payload has to get through.
        near.ended = false;
        world.until(60, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            near.received == 4_000_000
        });
        far.ended = false;
        world.until(60, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            near.ended && far.ended
        });
        assert_eq!(far.received, 4_000_000);
    }
}

/// smoltcp's minimum timeout is a second; the stack's is as configured.
#[test]
fn a_lost_tail_comes_again_after_the_configured_time() {
    for (rto_ms, most_ms) in [(1_000, 2_200), (200, 450), (20, 60)] {
        let mut world = World::alike(&[&format!("tcp.min_rto={rto_ms}ms")], Link::CLEAN);
        let (client, server) = world.connected(80);
        let mut dropped = false;
        world.wire.watch = Box::new(move |end, frame| {
            let first = end == 0 && frame.len() > 60 && !dropped;
            dropped |= first;
            !first
        });
        let start = world.now;
        ready(world.near.tcp_send(client, |room| room.len().min(100)));
        world.until(10, |world| world.far.tcp_queued(server).unwrap().1 == 100);
        let took_ms = (world.now - start) / 1_000_000;
        assert!((rto_ms..most_ms).contains(&took_ms), "{rto_ms}: {took_ms}");
        assert_eq!(world.near.counters().tcp.retransmitted_segments, 1);
    }
}

/// Drops frames with payload of the local stack: each entry is the number of a frame, and how many
/// of its transmissions are lost.
fn lose(world: &mut World, lost: &'static [(usize, usize)], windows_grow: bool) {
    const PAYLOAD: usize = 1_000;
    let (mut seen, mut times) = (Vec::<u32>::new(), Vec::<usize>::new());
    let mut answers = 0u16;
    world.wire.watch = Box::new(move |end, frame| {
        if end == 1 && windows_grow {
            // Linux widens its window while it receives.
            answers += 1;
            let window = u16::from_be_bytes([frame[48], frame[49]]);
            let window = window.saturating_sub(answers % 50);
            frame[48..50].copy_from_slice(&window.to_be_bytes());
        }
        if end == 1 || frame.len() < PAYLOAD {
            return true;
        }
        let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        let at = seen.iter().position(|known| *known == sequence);
        let at = at.unwrap_or_else(|| {
            seen.push(sequence);
            times.push(0);
            seen.len() - 1
        });
        times[at] += 1;
        let left = lost.iter().find(|(number, _)| *number == at);
        left.is_none_or(|(_, often)| times[at] > *often)
    });
}

/// Losses in the middle of a stream cost round trips, and no timeout.
#[test]
fn losses_are_mended_before_the_time_out() {
    for lost in [
        &[(60, 1)][..],
        &[(60, 1), (61, 1), (70, 1), (75, 1)],
        &[(60, 2)],
        &[(60, 1), (62, 1), (90, 2)],
        // While too few are in flight for three duplicates.
        &[(1, 1)],
    ] {
        for windows_grow in [false, true] {
            let settings = [
                "tcp.send_buffer=256K",
                "tcp.receive_window=256K",
                "tcp.min_rto=1s",
                // Without checksums: windows are rewritten on the way.
                "checksum=offload",
            ];
            let link = Link {
                delay_ns: 500_000,
                ..Link::CLEAN
            };
            let mut world = World::alike(&settings, link);
            let (client, server) = world.connected(80);
            lose(&mut world, lost, windows_grow);
            let start = world.now;
            let (mut near, mut far) = (Bulk::new(client, 400_000), Bulk::new(server, 0));
            near.ended = true;
            world.until(60, |world| {
                near.step(&mut world.near);
                far.step(&mut world.far);
                far.ended
            });
            assert_eq!(far.received, 400_000);
            let took_ms = (world.now - start) / 1_000_000;
            assert!(took_ms < 500, "{lost:?}, {windows_grow}: {took_ms} ms");
            let again = world.near.counters().tcp.retransmitted_segments as usize;
            let least: usize = lost.iter().map(|(_, often)| often).sum();
            assert!(
                (least..=2 * least + 2).contains(&again),
                "{lost:?}: {again}"
            );
        }
    }
}

/// The last segments, or the only acknowledgement of many, are lost: with tail probes that is
/// detected after two round trips.
#[test]
fn a_lost_tail_is_probed() {
    for (probe, most_ms) in [("on", 500), ("off", 3_000)] {
        let probe_key = format!("tcp.tail_probe={probe}");
        let settings = [
            "tcp.send_buffer=256K",
            "tcp.receive_window=256K",
            "tcp.min_rto=1s",
            &probe_key,
        ];
        let link = Link {
            delay_ns: 500_000,
            ..Link::CLEAN
        };
        for deaf in [false, true] {
            let mut world = World::alike(&settings, link);
            let (client, server) = world.connected(80);
            let mut answers = 0;
            match deaf {
                // So early that it covers everything in flight.
                true => {
                    world.wire.watch = Box::new(move |end, _| {
                        answers += usize::from(end == 1);
                        end == 0 || answers != 6
                    });
                }
                false => lose(&mut world, &[(270, 1), (271, 1), (272, 1)], false),
            }
            let start = world.now;
            let mut near = Bulk::new(client, 400_000);
            near.ended = true;
            // The peer does not finish here: losses after that have a test of their own.
            let mut received = 0;
            world.until(60, |world| {
                near.step(&mut world.near);
                let take = |bytes: &[u8]| (bytes.len(), bytes.len());
                if let Poll::Ready(got) = world.far.tcp_receive(server, take) {
                    received += got.unwrap();
                }
                received == 400_000
            });
            let took_ms = (world.now - start) / 1_000_000;
            let waited = took_ms >= 1_000;
            assert!(took_ms < most_ms, "{probe}, {deaf}: {took_ms} ms");
            assert_eq!(waited, probe == "off", "{probe}, {deaf}: {took_ms} ms");
        }
    }
}

/// Losses of the last data of a finished stream, whichever end finished first, before or after the
/// data left.
#[test]
fn losses_at_the_end_of_a_finished_stream_are_mended_before_the_time_out() {
    const BYTES: usize = 400_000;
    for lost in [
        &[][..],
        // As in the middle of a stream, and a tail without any acknowledgement.
        &[(262, 1)],
        &[(262, 1), (265, 2), (268, 1)],
        &[(272, 1), (273, 1), (274, 1)],
    ] {
        for (far_first, sent_first) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let settings = [
                "tcp.send_buffer=512K",
                "tcp.receive_window=512K",
                "tcp.min_rto=1s",
                "tcp.congestion_control=none",
                "tcp.delayed_ack=off",
                if sent_first {
                    "tcp.nagle=off"
                } else {
                    "tcp.nagle=on"
                },
            ];
            let link = Link {
                delay_ns: 5_000_000,
                ..Link::CLEAN
            };
            let mut world = World::alike(&settings, link);
            let (client, server) = world.connected(80);
            // A first exchange, so that the scaled window is known.
            ready(world.near.tcp_send(client, |_| 1));
            world.until(5, |world| world.near.tcp_queued(client).unwrap().0 == 0);
            ready(world.far.tcp_receive(server, |_| (1, ())));
            if far_first {
                world.far.tcp_finish(server).unwrap();
                world.until(5, |world| {
                    world.near.tcp_state(client).unwrap() == TcpState::FarFinished
                });
            }
            lose(&mut world, lost, false);
            let case = format!("lost {lost:?}, far first {far_first}, sent first {sent_first}");
            let start = world.now;
            let before = world.near.counters();
            let mut written = 0;
            while written < BYTES {
                written += ready(
                    world
                        .near
                        .tcp_send(client, |room| room.len().min(BYTES - written)),
                );
            }
            if sent_first {
                // Everything is in flight, and nothing acknowledged.
                for _ in 0..20 {
                    world.turn();
                }
            }
            world.near.tcp_finish(client).unwrap();
            let sent = world.near.tcp_send(client, |_| 1);
            assert!(
                matches!(sent, Poll::Ready(Err(StackError::Finished))),
                "{case}"
            );
            let (mut received, mut ended) = (0, false);
            world.until(60, |world| {
                while let Poll::Ready(got) = world
                    .far
                    .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
                {
                    let count = got.unwrap();
                    received += count;
                    ended = count == 0;
                    if ended {
                        break;
                    }
                }
                ended
            });
            let took_ms = (world.now - start) / 1_000_000;
            assert_eq!(received, BYTES, "{case}");
            assert!(took_ms < 500, "{case}: {took_ms} ms");
            let spent = world.near.counters().since(&before).tcp;
            let spent = (spent.out_segments, spent.retransmitted_segments);
            if lost.is_empty() {
                assert_eq!(spent, (274 + u64::from(sent_first), 0), "{case}");
                assert!(took_ms <= 8, "{case}: {took_ms} ms, one way alone takes 5");
            }
            world.near.close(client).unwrap();
            world.far.close(server).unwrap();
            world.until(70, |world| {
                world.near.connections() + world.far.connections() == 0
            });
        }
    }
}

/// Reordered frames are not losses: hardly any segment is sent twice.
#[test]
fn what_comes_late_is_seldom_sent_again() {
    let link = Link {
        delay_ns: 500_000,
        reorder: 20_000,
        shuffle_ns: 300_000,
        seed: 5,
        ..Link::CLEAN
    };
    let settings = ["tcp.send_buffer=64K", "tcp.receive_window=64K"];
    let mut world = World::alike(&settings, link);
    let (client, server) = world.connected(80);
    let (mut near, mut far) = (Bulk::new(client, 2_000_000), Bulk::new(server, 0));
    near.ended = true;
    world.until(60, |world| {
        near.step(&mut world.near);
        far.step(&mut world.far);
        far.ended
    });
    let counters = world.near.counters().tcp;
    let share = counters.retransmitted_segments as f64 / counters.out_segments as f64;
    assert!(share < 0.04, "{counters:#?}");
}

/// Small rings at both ends, both full of payload: receiving never waits for transmit space.
#[test]
fn full_rings_do_not_stand_still() {
    for descriptors in [1, 4, 8, 32] {
        let settings = format!("tx_descriptors={descriptors}");
        let mut world = World::alike(&[&settings, "rx_descriptors=2"], Link::CLEAN);
        bulk(&mut world, 300, 200_000, 200_000);
    }
}

#[test]
fn a_listener_takes_as_many_as_its_backlog() {
    let mut world = World::alike(&["sockets.tcp=64", "tcp.min_rto=200ms"], Link::CLEAN);
    let listener = world.far.tcp_listen(any(80), 4).unwrap();
    let clients: Vec<SocketId> = (0..10)
        .map(|_| world.near.tcp_connect(at(FAR, 80), None).unwrap())
        .collect();
    world.run(3_000);
    assert!(world.far.counters().tcp.listen_overflows >= 6);
    assert_eq!(world.far.connections(), 4);
    // Clients that were not answered retransmit their SYN, and are served once there is space.
    let mut accepted = 0;
    world.until(60, |world| {
        while let Poll::Ready(socket) = world.far.tcp_accept(listener) {
            socket.unwrap();
            accepted += 1;
        }
        let stands =
            |client: &SocketId| world.near.tcp_state(*client).unwrap() == TcpState::Established;
        accepted == 10 && clients.iter().all(stands)
    });
    world.far.close(listener).unwrap();
    let late = world.near.tcp_connect(at(FAR, 80), None).unwrap();
    world.until(5, |world| {
        world.near.tcp_state(late).unwrap() == TcpState::Closed
    });
}

#[test]
fn a_thousand_connections_one_after_the_other() {
    let mut world = World::alike(&["sockets.tcp=16"], Link::CLEAN);
    let listener = world.far.tcp_listen(any(80), 4).unwrap();
    for number in 0..1_000 {
        let (client, server) = world.connect_to(listener, at(FAR, 80));
        ready(world.near.tcp_send(client, |room| {
            room[0] = number as u8;
            1
        }));
        world.until(5, |world| world.far.tcp_queued(server).unwrap().1 == 1);
        let got = ready(world.far.tcp_receive(server, |bytes| (1, bytes[0])));
        assert_eq!(got, number as u8);
        world.near.close(client).unwrap();
        world.run(3);
        world.far.close(server).unwrap();
    }
    assert_eq!(world.far.counters().tcp.passive_opens, 1_000);
    assert_eq!(world.near.counters().tcp.active_opens, 1_000);
    assert_eq!(world.near.counters().tcp.established_resets, 0);
}

/// Ten thousand idle connections are not processed: counted, because time on a busy machine is no
/// evidence.
#[test]
fn idle_connections_cost_nothing() {
    let mut steps = Vec::new();
    for idle in [0, 10_000] {
        let settings = [
            "sockets.tcp=10016",
            "tcp.send_buffer=256",
            "tcp.receive_window=256",
            "tcp.delayed_ack=off",
            "rx_descriptors=65536",
            "tx_descriptors=65536",
        ];
        let mut world = World::alike(&settings, Link::CLEAN);
        let listener = world.far.tcp_listen(any(80), 10_000).unwrap();
        let mut sockets = Vec::new();
        while sockets.len() < idle {
            let more = (idle - sockets.len()).min(500);
            for _ in 0..more {
                world.near.tcp_connect(at(FAR, 80), None).unwrap();
            }
            let wanted = sockets.len() + more;
            world.until(60, |world| {
                while let Poll::Ready(socket) = world.far.tcp_accept(listener) {
                    sockets.push(socket.unwrap());
                }
                sockets.len() == wanted
            });
        }
        let (client, server) = world.connect_to(listener, at(FAR, 80));
        // Timers of earlier acknowledgements expire once.
        world.run(1_500);
        let before = world.far.counters();
        for _ in 0..100 {
            ready(world.near.tcp_send(client, |room| {
                room[..64].fill(1);
                64
            }));
            world.until(5, |world| world.far.tcp_queued(server).unwrap().1 == 64);
            assert_eq!(
                ready(world.far.tcp_receive(server, |bytes| (64, bytes.len()))),
                64
            );
            world.until(5, |world| world.near.tcp_queued(client).unwrap().0 == 0);
        }
        let spent = world.far.counters().since(&before).tcp;
        steps.push((spent.connection_steps, spent.in_segments));
    }
    assert_eq!(
        steps[0], steps[1],
        "with none and with ten thousand idle connections"
    );
    assert!(steps[0].0 < 600, "{steps:?}");
}

/// Goodput in simulated time, by window and loss: changes of this table are intentional. A
/// continuous stream is measured, three times; its end, where no other segment follows a lost one,
/// is another matter.
///
/// The line below the table is a reference, no bound: Reno reaches MSS / RTT * 1.22 / sqrt(loss) if
/// only losses limit it and no timeout occurs (Mathis et al., 1997); these streams use cubic. It
/// applies to three cells: 256 KiB at 0.1 % (0.73 of it) and at 1 % (0.73), 64 KiB at 1 % (0.72).
/// Smaller windows, and 64 KiB at 0.1 %, are limited by the window; at 5 % the reference is a
/// window of 5.5 segments, too few for a stream without timeouts.
///
/// The causes of the remaining difference were not measured. Likely ones: one missing segment is
/// sent per round trip; acknowledgements are lost here, too, and there is one for each burst; what
/// is lost twice waits for a probe or the timeout.
#[test]
fn goodput_by_window_and_loss() {
    const BYTES: usize = 3_000_000;
    const SEEDS: [u64; 3] = [7, 8, 9];
    const MSS_BITS: f64 = 1460.0 * 8.0;
    let mut table = String::from("Mb/s at 1 ms of round trip, cubic, min_rto 200 ms\nwindow");
    let losses = [0, 1_000, 10_000, 50_000];
    for loss in losses {
        write!(table, " {:>8}%", f64::from(loss) / 10_000.0).unwrap();
    }
    for kib in [4, 16, 64, 256] {
        write!(table, "\n{kib:>3}KiB").unwrap();
        for loss in losses {
            let mut took_ns = 0;
            for seed in SEEDS {
                let link = Link {
                    loss,
                    delay_ns: 500_000,
                    seed,
                    ..Link::CLEAN
                };
                let sizes = [
                    format!("tcp.send_buffer={kib}K"),
                    format!("tcp.receive_window={kib}K"),
                ];
                let mut world = World::alike(&[&sizes[0], &sizes[1]], link);
                let (client, server) = world.connected(80);
                let start = world.now;
                let mut near = Bulk::new(client, BYTES + (1 << 20));
                near.ended = true;
                let mut far = Bulk::new(server, 0);
                world.until(600, |world| {
                    near.step(&mut world.near);
                    far.step(&mut world.far);
                    far.received >= BYTES
                });
                took_ns += world.now - start;
                // No loss counted as a path MTU problem.
                let guesses = world.near.counters().tcp.path_mtu_guesses;
                assert_eq!(guesses, 0, "{kib} KiB, loss {loss}, seed {seed}");
            }
            let rate = (SEEDS.len() * BYTES) as f64 * 8e3 / took_ns as f64;
            write!(table, " {rate:>9.2}").unwrap();
        }
    }
    write!(table, "\nMathis {:>9}", "").unwrap();
    for loss in &losses[1..] {
        let mathis = MSS_BITS / 1e-3 * 1.22 / (f64::from(*loss) / 1e6).sqrt() / 1e6;
        write!(table, " {mathis:>9.2}").unwrap();
    }
    insta::assert_snapshot!(table);
}
