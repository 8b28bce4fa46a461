//! Unexpected SYNs and resets on existing connections (RFC 9293, section 3.10.7.4; RFC 5961).

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;

use common::segments::{self, ACK, RST, SYN};
use common::{Bulk, FAR, Link, NEAR, World, any, at, packets, ready};
use linerate_stack::{StackError, TcpState};

/// Segments sent by each stack.
type Seen = Rc<RefCell<[Vec<Vec<u8>>; 2]>>;

fn watched(world: &mut World) -> Seen {
    let seen = Seen::default();
    let list = Rc::clone(&seen);
    world.wire.watch = Box::new(move |end, frame| {
        if segments::is_tcp(frame) {
            list.borrow_mut()[end].push(frame.clone());
        }
        true
    });
    seen
}

/// After a restart the client connects from the same port, without state of the old connection.
#[test]
fn who_lost_its_memory_connects_again_from_the_same_port() {
    for fetched in [false, true] {
        let mut world = World::alike(&[], Link::CLEAN);
        let listener = world.far.tcp_listen(any(80), 4).unwrap();
        let from = at(NEAR, 50_000);
        let accept = |world: &mut World| {
            let client = world.near.tcp_connect(at(FAR, 80), Some(from)).unwrap();
            let start = world.now;
            let mut server = None;
            world.until(3, |world| {
                if let Poll::Ready(accepted) = world.far.tcp_accept(listener) {
                    server = Some(accepted.unwrap());
                }
                server.is_some()
            });
            (client, server.unwrap(), world.now - start)
        };
        let (client, server, _) = accept(&mut world);
        // Both streams have transferred data.
        ready(world.near.tcp_send(client, |room| room.len().min(700)));
        ready(world.far.tcp_send(server, |room| room.len().min(900)));
        world.run(100);
        if fetched {
            ready(world.far.tcp_receive(server, |_| (300, ())));
        }
        // It disappears silently.
        world.wire.watch = Box::new(|end, _| end == 1);
        world.near.abort(client).unwrap();
        world.run(20);
        assert_eq!(world.near.connections(), 0);
        assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::Established);
        let seen = watched(&mut world);
        let (again, second, took_ns) = accept(&mut world);
        assert!(took_ns < 1_200_000_000, "{took_ns} ns: one more request");
        assert_eq!(world.far.counters().tcp.out_challenges, 1);
        let resets = seen.borrow()[0]
            .iter()
            .filter(|frame| segments::flags(frame) & RST != 0)
            .count();
        assert_eq!(resets, 1);
        // The application with the old connection gets an error, and can read what had arrived.
        assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::Closed);
        let left = if fetched { 400 } else { 700 };
        assert_eq!(world.far.tcp_queued(server).unwrap().1, left);
        let sent = world.far.tcp_send(server, |_| 1);
        assert!(matches!(sent, Poll::Ready(Err(StackError::Reset))));
        // The new connection works in both directions, while the old one is still open.
        ready(world.near.tcp_send(again, |room| room.len().min(50)));
        ready(world.far.tcp_send(second, |room| room.len().min(60)));
        world.until(2, |world| {
            world.far.tcp_queued(second).unwrap().1 == 50
                && world.near.tcp_queued(again).unwrap().1 == 60
        });
        world.far.close(server).unwrap();
        world.run(20);
        assert_eq!(world.far.tcp_state(second).unwrap(), TcpState::Established);
        ready(world.near.tcp_send(again, |room| room.len().min(50)));
        world.until(2, |world| world.far.tcp_queued(second).unwrap().1 == 100);
    }
}

/// A flood of SYNs or resets is not answered segment by segment.
#[test]
fn answers_are_few() {
    let mut world = World::alike(&[], Link::CLEAN);
    let seen = watched(&mut world);
    let (_, server) = world.connected(80);
    let last = seen.borrow()[0].last().cloned().unwrap();
    let next = segments::sequence(&last);
    let before = world.far.counters().tcp;
    for number in 0..50u32 {
        let asks = segments::like(&last, next.wrapping_add(7_777 * number), SYN, &[]);
        let agrees = segments::like(&last, next.wrapping_add(number), SYN | ACK, &[]);
        let resets = segments::like(&last, next.wrapping_add(1 + number), RST, &[]);
        for frame in [asks, agrees, resets] {
            world.wire.put(1, &frame);
        }
        world.run(1);
    }
    let spent = world.far.counters().tcp;
    assert_eq!(spent.out_challenges, 1);
    assert_eq!(spent.out_segments - before.out_segments, 1);
    assert_eq!(spent.passive_opens, before.passive_opens);
    assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::Established);
}

#[test]
fn a_reset_needs_the_number_that_is_expected_next() {
    const WINDOW: u32 = 64 << 10;
    for queued in [0u32, 500] {
        for (ahead, answers, ends) in [
            (0, 0, true),
            (1, 1, false),
            (WINDOW - queued - 1, 1, false),
            (WINDOW - queued, 1, false),
            (WINDOW - queued + 1, 0, false),
            (u32::MAX, 0, false),
        ] {
            for payload in [&b""[..], b"because"] {
                let case = format!("{queued} B wait, {ahead} ahead, {} B", payload.len());
                let mut world = World::alike(&["tcp.receive_window=64K"], Link::CLEAN);
                let seen = watched(&mut world);
                let (client, server) = world.connected(80);
                if queued > 0 {
                    ready(world.near.tcp_send(client, |room| room.len().min(500)));
                    world.until(5, |world| world.near.tcp_queued(client).unwrap().0 == 0);
                }
                let last = seen.borrow()[0].last().cloned().unwrap();
                let behind = last.len() - segments::PAYLOAD;
                let next = segments::sequence(&last).wrapping_add(behind as u32);
                let sent = segments::like(&last, next.wrapping_add(ahead), RST, payload);
                let before = seen.borrow()[1].len();
                world.wire.put(1, &sent);
                world.run(20);
                assert_eq!(seen.borrow()[1].len() - before, answers, "{case}");
                let state = world.far.tcp_state(server).unwrap();
                assert_eq!(state == TcpState::Closed, ends, "{case}");
                if answers > 0 {
                    let answer = seen.borrow()[1].last().cloned().unwrap();
                    assert_eq!(segments::flags(&answer), ACK, "{case}");
                    assert_eq!(segments::acknowledged(&answer), next, "{case}");
                }
            }
        }
    }
}

/// An old duplicate SYN arrives for a connection in TIME-WAIT (RFC 1122, section 4.2.2.13; RFC
/// 6191).
#[test]
fn an_old_request_ends_no_waiting() {
    let mut world = World::alike(&["tcp.min_rto=1s"], Link::CLEAN);
    let listener = world.far.tcp_listen(any(80), 4).unwrap();
    let seen = watched(&mut world);
    let (client, server) = world.connect_to(listener, at(FAR, 80));
    ready(world.near.tcp_send(client, |room| room.len().min(700)));
    world.run(20);
    ready(world.far.tcp_receive(server, |_| (700, ())));
    world.far.close(server).unwrap();
    world.until(2, |world| {
        world.near.tcp_state(client).unwrap() == TcpState::FarFinished
    });
    world.near.close(client).unwrap();
    world.until(2, |world| world.near.connections() == 0);
    assert_eq!(world.far.connections(), 1);
    let mut asked = seen.borrow()[0].clone().into_iter();
    let asked = asked.find(|frame| segments::flags(frame) == SYN).unwrap();
    // The client's resets, which would end TIME-WAIT, are dropped.
    world.wire.watch = Box::new(|end, _| end == 1);
    let first = segments::sequence(&asked);
    let before = world.far.counters().tcp;
    // Sequence numbers used by SYN, payload and FIN.
    let next = first.wrapping_add(1 + 700 + 1);
    for (number, opens) in [
        (first, 0),
        (first.wrapping_sub(5_000_000), 0),
        (next.wrapping_sub(1), 0),
        (next, 1),
    ] {
        world.wire.put(1, &segments::like(&asked, number, SYN, &[]));
        world.run(20);
        let since = world.far.counters().tcp.passive_opens - before.passive_opens;
        assert_eq!(since, opens, "{}", number.wrapping_sub(first));
        assert_eq!(world.far.connections(), 1);
    }
    assert_eq!(
        world.far.counters().tcp.out_challenges - before.out_challenges,
        1
    );
}

/// The server has received everything, and none of its acknowledgements arrived. After the timeout
/// smoltcp sends from a number below the one that the server expects.
#[test]
fn who_gives_up_after_a_time_out_is_believed() {
    let mut world = World::alike(&["tcp.tail_probe=off"], Link::CLEAN);
    let (client, server) = world.connected(80);
    // Opens the congestion window for three segments in flight.
    for _ in 0..10 {
        ready(world.near.tcp_send(client, |room| room.len().min(1_460)));
        world.until(1, |world| world.near.tcp_queued(client).unwrap().0 == 0);
        ready(world.far.tcp_receive(server, |bytes| (bytes.len(), ())));
    }
    world.run(20);
    world.wire.watch = Box::new(|end, _| end == 0);
    ready(
        world
            .near
            .tcp_send(client, |room| room.len().min(3 * 1_460)),
    );
    world.until(1, |world| {
        world.far.tcp_queued(server).unwrap().1 == 3 * 1_460
    });
    let before = world.near.counters().tcp.retransmitted_segments;
    world.until(5, |world| {
        world.near.counters().tcp.retransmitted_segments > before
    });
    assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::Established);
    world.near.abort(client).unwrap();
    world.run(20);
    assert_eq!(world.far.tcp_state(server).unwrap(), TcpState::Closed);
}

/// A peer that acknowledges ahead to speed the sender up (RFC 9293, section 3.10.7.4) would lose
/// that data.
#[test]
fn an_acknowledgement_of_what_was_not_sent_is_not_taken() {
    const BYTES: usize = 30_000;
    let settings = ["tcp.receive_window=4096", "tcp.send_buffer=64K"];
    for (name, ahead, refused) in [
        ("all that was sent", 0, false),
        ("a byte more", 1, true),
        ("all that waits", BYTES as u32 - 4_096, true),
        ("more than there is", 1 << 20, true),
    ] {
        let mut world = World::alike(&settings, Link::CLEAN);
        let seen = watched(&mut world);
        let (client, server) = world.connected(80);
        let mut near = Bulk::new(client, BYTES);
        let mut far = Bulk::new(server, 0);
        // The window is full, and the rest waits.
        for _ in 0..100 {
            near.step(&mut world.near);
            world.turn();
            world.pass();
        }
        assert_eq!(near.sent, BYTES);
        assert_eq!(world.far.tcp_queued(server).unwrap().1, 4_096);
        let last = seen.borrow()[1].last().cloned().expect("acknowledgements");
        let mut forged = last.clone();
        let number = segments::acknowledged(&last).wrapping_add(ahead);
        let at = segments::AT + 8;
        forged[at..at + 4].copy_from_slice(&number.to_be_bytes());
        packets::complete(&mut forged);
        world.wire.put(0, &forged);
        world.run(3);
        let counters = world.near.counters().tcp;
        assert_eq!(counters.out_challenges, u64::from(refused), "{name}");
        world.until(20, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            far.ended
        });
        assert_eq!(far.received, BYTES, "{name}");
    }
}
