//! Path MTU discovery of connections, and ICMP errors about segments.

mod common;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;

use common::packets::{self, ETHERNET};
use common::router::{CUTTERS, cut_by, deliver, message, router, too_long};
use common::{Bulk, FAR, FAR_V6, Frames, Link, World, any, at, ready};
use linerate_stack::{SocketId, StackError, TcpState, Unreachable};

fn pair(world: &mut World, v6: bool) -> (SocketId, SocketId) {
    let listener = world.far.tcp_listen(any(80), 4).unwrap();
    world.connect_to(listener, at(if v6 { FAR_V6 } else { FAR }, 80))
}

/// Transfers a stream through a router; returns the time in milliseconds.
fn through(world: &mut World, said: &Frames, v6: bool, bytes: usize) -> u64 {
    let (client, server) = pair(world, v6);
    let start = world.now;
    let (mut near, mut far) = (Bulk::new(client, bytes), Bulk::new(server, 1_000));
    world.until(60, |world| {
        deliver(world, said);
        near.step(&mut world.near);
        far.step(&mut world.far);
        near.ended && far.ended
    });
    assert_eq!((near.received, far.received), (1_000, bytes));
    assert_eq!(world.far.counters().tcp.in_checksum_errors, 0);
    (world.now - start) / 1_000_000
}

#[test]
fn segments_get_as_short_as_a_router_says() {
    for (v6, mtu, says) in [
        (false, 1_400, 1_400),
        (false, 576, 576),
        // An old router, which does not report its MTU.
        (false, 1_492, 0),
        (false, 1_006, 0),
        (true, 1_400, 1_400),
        (true, 1_280, 1_280),
    ] {
        for cutter in CUTTERS {
            let settings = ["tcp.send_buffer=64K", "tcp.min_rto=1s"];
            let mut world = cut_by(cutter, &settings);
            let said = router(&mut world, mtu, Some(says));
            let took_ms = through(&mut world, &said, v6, 400_000);
            let case = format!("IPv6 {v6}, {mtu} B, {says} reported, {cutter}: {took_ms} ms");
            // Without waiting for a timeout.
            assert!(took_ms < 900, "{case}");
            let counters = world.near.counters().tcp;
            let told = if says == 0 && mtu < 1_492 { 2 } else { 1 };
            assert_eq!(
                (counters.path_mtu_told, counters.path_mtu_guesses),
                (told, 0),
                "{case}"
            );
            // Only data in flight is retransmitted.
            assert!(
                counters.retransmitted_segments < 300,
                "{case}: {counters:#?}"
            );
        }
    }
}

/// No router reports the MTU: it is found by timeouts of the same segment.
#[test]
fn a_hole_that_swallows_long_segments_is_found() {
    for (v6, mtu, guesses) in [(false, 1_300, 1), (false, 600, 2), (true, 1_280, 1)] {
        let mut world = World::alike(&["tcp.min_rto=100ms"], Link::CLEAN);
        let said = router(&mut world, mtu, None);
        through(&mut world, &said, v6, 100_000);
        let counters = world.near.counters().tcp;
        let found = (counters.path_mtu_told, counters.path_mtu_guesses);
        assert_eq!(found, (0, guesses), "a stream, IPv6 {v6}, {mtu} B");
        for cutter in CUTTERS {
            let mut world = cut_by(cutter, &["tcp.min_rto=100ms", "tcp.tail_probe=off"]);
            let vanished = Rc::new(Cell::new(0));
            let count = Rc::clone(&vanished);
            world.wire.watch = Box::new(move |end, frame| {
                let length = frame.len() - ETHERNET;
                let fits = end == 1 || length <= mtu;
                count.set(count.get() + u32::from(!fits && length > 1_280));
                fits
            });
            // A single segment, for which no acknowledgement triggers a retransmission.
            through(&mut world, &Frames::default(), v6, 1_400);
            let counters = world.near.counters().tcp;
            let found = (counters.path_mtu_told, counters.path_mtu_guesses);
            let case = format!("IPv6 {v6}, {mtu} B, {cutter}");
            assert_eq!(found, (0, guesses), "{case}");
            // Once, and four times by timeouts; with the fifth one it leaves shorter.
            assert_eq!(vanished.get(), 5, "{case}");
        }
    }
    // Segments that are short already are not shortened.
    let mut world = World::alike(&["tcp.min_rto=100ms"], Link::CLEAN);
    let (client, _) = pair(&mut world, false);
    world.wire.watch = Box::new(|end, _| end == 1);
    ready(world.near.tcp_send(client, |room| room.len().min(400)));
    world.run(5_000);
    let counters = world.near.counters().tcp;
    assert!(counters.retransmitted_segments > 3);
    assert_eq!(counters.path_mtu_guesses, 0);
}

/// Any host can send Packet Too Big; an off-path attacker does not have a sequence number in
/// flight.
#[test]
fn messages_that_quote_nothing_on_its_way_are_not_believed() {
    for v6 in [false, true] {
        for (what, told) in [
            ("as it is", 1),
            ("old", 0),
            ("new", 0),
            ("other port", 0),
            ("long link", 0),
            ("bad sum", 0),
        ] {
            let mut world = World::alike(&["tcp.min_rto=1s"], Link::CLEAN);
            let (client, server) = pair(&mut world, v6);
            let seen = world.kept(|end, frame| end == 0 && frame.len() > 1_000);
            ready(world.near.tcp_send(client, |room| room.len().min(3_000)));
            world.near.flush();
            world.wire.carry(world.now);
            let mut frame = seen.borrow()[0].clone();
            let sequence = packets::body(&frame) + 4;
            let number = u32::from_be_bytes(frame[sequence..sequence + 4].try_into().unwrap());
            let number = match what {
                "old" => number.wrapping_sub(1),
                "new" => number.wrapping_add(3_000),
                _ => number,
            };
            frame[sequence..sequence + 4].copy_from_slice(&number.to_be_bytes());
            if what == "other port" {
                frame[sequence - 4] ^= 1;
            }
            let mtu = if what == "long link" { 1_500 } else { 1_300 };
            let mut said = too_long(&frame, mtu);
            if what == "bad sum" {
                *said.last_mut().unwrap() ^= 1;
            }
            world.wire.put(0, &said);
            world.until(5, |world| world.far.tcp_queued(server).unwrap().1 == 3_000);
            let counters = world.near.counters().tcp;
            assert_eq!(counters.path_mtu_told, told, "{what}, IPv6 {v6}");
        }
    }
}

#[test]
fn what_cannot_be_reached_is_said() {
    let prohibited = Unreachable::Prohibited;
    for (v6, kind, what, ends) in [
        (false, (3, 3), Unreachable::Port, true),
        (false, (3, 2), Unreachable::Protocol, true),
        (false, (3, 13), prohibited, true),
        (false, (3, 0), Unreachable::Network, false),
        (false, (3, 1), Unreachable::Host, false),
        (false, (11, 0), Unreachable::Hops, false),
        (true, (1, 4), Unreachable::Port, true),
        (true, (1, 1), prohibited, true),
        (true, (1, 3), Unreachable::Host, false),
        (true, (1, 0), Unreachable::Network, false),
    ] {
        let mut world = World::alike(&[], Link::CLEAN);
        let asked = Frames::default();
        let list = Rc::clone(&asked);
        let tcp = if v6 { 20 } else { 23 };
        world.wire.watch = Box::new(move |end, frame| {
            let asks = end == 0 && frame[tcp] == 6;
            if asks {
                list.borrow_mut().push(frame.clone());
            }
            !asks
        });
        let to = at(if v6 { FAR_V6 } else { FAR }, 80);
        let client = world.near.tcp_connect(to, None).unwrap();
        world.until(1, |_| !asked.borrow().is_empty());
        assert_eq!(world.near.tcp_trouble(client).unwrap(), None);
        let said = message(&asked.borrow()[0], kind, 0);
        world.wire.put(0, &said);
        world.run(5);
        let router: IpAddr = if v6 { "fd00::fe" } else { "10.0.0.254" }.parse().unwrap();
        let case = format!("{kind:?}, IPv6 {v6}");
        assert_eq!(
            world.near.tcp_trouble(client).unwrap(),
            Some((what, router)),
            "{case}"
        );
        let got = world.near.tcp_receive(client, |bytes| (bytes.len(), ()));
        if ends {
            let Poll::Ready(Err(StackError::Unreachable {
                remote,
                what: told,
                by,
            })) = got
            else {
                panic!("{case}: {got:?}");
            };
            assert_eq!((remote, told, by), (to, what, router), "{case}");
            assert_eq!(world.near.counters().tcp.attempt_fails, 1);
            assert_eq!(world.near.counters().tcp.out_resets, 0);
        } else {
            assert!(got.is_pending(), "{case}");
            assert_eq!(world.near.tcp_state(client).unwrap(), TcpState::Opening);
            // The error may be temporary.
            world.wire.watch = Box::new(|_, _| true);
            let listener = world.far.tcp_listen(any(80), 1).unwrap();
            world.until(5, |world| {
                world.near.tcp_state(client).unwrap() == TcpState::Established
            });
            world.far.close(listener).unwrap();
        }
    }
}

/// An established connection is not closed by an ICMP error (RFC 5927), which it reports.
#[test]
fn what_stands_is_not_ended_by_a_message() {
    let mut world = World::alike(&["tcp.min_rto=200ms"], Link::CLEAN);
    let (client, server) = pair(&mut world, false);
    let seen = Frames::default();
    let list = Rc::clone(&seen);
    world.wire.watch = Box::new(move |end, frame| {
        if end == 0 {
            list.borrow_mut().push(frame.clone());
        }
        end == 1
    });
    ready(world.near.tcp_send(client, |room| room.len().min(100)));
    world.until(1, |_| !seen.borrow().is_empty());
    let said = message(&seen.borrow()[0], (3, 3), 0);
    world.wire.put(0, &said);
    world.run(5);
    let router: IpAddr = "10.0.0.254".parse().unwrap();
    let told = Some((Unreachable::Port, router));
    assert_eq!(world.near.tcp_trouble(client).unwrap(), told);
    world.wire.watch = Box::new(|_, _| true);
    world.until(2, |world| world.far.tcp_queued(server).unwrap().1 == 100);
    assert_eq!(world.near.tcp_state(client).unwrap(), TcpState::Established);
}
