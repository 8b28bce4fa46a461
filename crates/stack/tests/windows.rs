//! Peers that ignore the announced window, and windows that close, shrink and are updated late.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;

use common::{Bulk, Link, World, packets, ready, segments};

const SECOND: u64 = 1_000_000_000;

/// The window of a SYN is not scaled, but smoltcp applies the scale: eight times the buffer's size.
#[test]
fn what_is_sent_beyond_the_buffer_is_not_taken() {
    for (window, ahead) in [
        // Across the end of the buffer, just beyond it, and far beyond.
        ("256K", (256 << 10) - 700),
        ("256K", 256 << 10),
        ("256K", 500_000),
        ("64K", (64 << 10) - 1),
        ("64K", 100_000),
        ("32K", (32 << 10) - 1_000),
    ] {
        let window_setting = format!("tcp.receive_window={window}");
        let mut world = World::alike(&[&window_setting], Link::CLEAN);
        let frames = world.kept(|end, frame| end == 0 && segments::is_tcp(frame));
        let (client, server) = world.connected(80);
        // The last segment of the handshake, after which the server has announced no scaled window
        // yet.
        let last = frames.borrow().last().cloned().expect("a greeting");
        let number = segments::sequence(&last).wrapping_add(ahead);
        let beyond = segments::like(&last, number, segments::ACK, &[0xaa; 1_400]);
        world.wire.put(1, &beyond);
        let mut near = Bulk::new(client, 600_000);
        let mut far = Bulk::new(server, 0);
        // Until the buffer is full, without reading.
        for _ in 0..3_000 {
            near.step(&mut world.near);
            world.turn();
            world.pass();
        }
        assert!(
            near.sent < near.send,
            "{window} {ahead}: there was no end to the room"
        );
        world.until(60, |world| {
            near.step(&mut world.near);
            far.step(&mut world.far);
            far.ended
        });
        assert_eq!(far.received, near.send, "{window} {ahead}");
    }
}

/// A closed window is probed with a byte that arrives and is not accepted.
#[test]
fn a_closed_window_is_no_hole_in_the_path() {
    let settings = [
        "tcp.receive_window=8192",
        "tcp.send_buffer=64K",
        "tcp.min_rto=100ms",
        "tcp.tail_probe=off",
    ];
    let mut world = World::alike(&settings, Link::CLEAN);
    let (client, server) = world.connected(80);
    let mut near = Bulk::new(client, 60_000);
    near.ended = true;
    let until = world.now + 30 * SECOND;
    while world.now < until {
        near.step(&mut world.near);
        world.turn();
        world.pass();
    }
    assert_eq!(world.far.tcp_queued(server).unwrap().1, 8192, "it is full");
    let asked = world.near.counters().tcp;
    // SYN and ACK, six segments with payload, and probes.
    assert!(asked.out_segments > 8 + 6, "{asked:#?}");
    assert_eq!(asked.retransmitted_segments, 0);
    // All segments sent first after the window opens are lost, for one timeout.
    let lost = Rc::new(Cell::new(0));
    let count = Rc::clone(&lost);
    let until = world.now + SECOND / 20;
    let clock = Rc::new(Cell::new(world.now));
    let now = Rc::clone(&clock);
    world.wire.watch = Box::new(move |end, frame| {
        let loses = end == 0 && frame.len() > 600 && now.get() < until;
        count.set(count.get() + u32::from(loses));
        !loses
    });
    let mut far = Bulk::new(server, 0);
    world.until(60, |world| {
        clock.set(world.now);
        near.step(&mut world.near);
        far.step(&mut world.far);
        far.ended
    });
    assert!(lost.get() > 0);
    assert_eq!(far.received, 60_000);
    let counters = world.near.counters().tcp;
    assert!(counters.retransmitted_segments > 0);
    assert_eq!(counters.path_mtu_guesses, 0, "{counters:#?}");
}

/// The peer closes its window below the data in flight, which is lost, and its later segments do
/// not arrive: one end has to probe (RFC 9293, section 3.8.6: MUST-35).
#[test]
fn a_window_that_shrinks_to_nothing_is_asked_for_room() {
    let mut world = World::alike(&["tcp.min_rto=100ms"], Link::CLEAN);
    let (client, server) = world.connected(80);
    // Both have announced scaled windows.
    ready(world.near.tcp_send(client, |_| 1));
    world.until(5, |world| world.near.tcp_queued(client).unwrap().0 == 0);
    ready(world.far.tcp_receive(server, |_| (1, ())));
    world.run(20);
    // Data of the local stack is lost, and segments of the remote one close its window.
    world.wire.watch = Box::new(|end, frame| {
        if end == 1 && segments::is_tcp(frame) {
            let window = segments::AT + 14;
            frame[window..window + 2].fill(0);
            packets::complete(frame);
        }
        // Only acknowledgements arrive.
        end == 1 || !segments::is_tcp(frame) || frame.len() <= 54
    });
    ready(world.near.tcp_send(client, |room| {
        room[..1_000].fill(7);
        1_000
    }));
    ready(world.far.tcp_send(server, |_| 10));
    let until = world.now + 2 * SECOND;
    while world.now < until {
        world.turn();
        world.pass();
    }
    assert_eq!(world.near.tcp_queued(client).unwrap(), (1_000, 10));
    // From here on the link is clean, and the peer has nothing to send.
    world.wire.watch = Box::new(|_, _| true);
    world.until(20, |world| world.far.tcp_queued(server).unwrap().1 == 1_000);
    assert_eq!(world.near.counters().tcp.path_mtu_guesses, 0);
}

/// A reordered segment contains an outdated window.
#[test]
fn what_comes_late_closes_no_window_that_has_opened() {
    let settings = ["tcp.receive_window=8192", "tcp.min_rto=1s"];
    let mut world = World::alike(&settings, Link::CLEAN);
    let (client, server) = world.connected(80);
    ready(world.near.tcp_send(client, |room| room.len().min(8_192)));
    // The window is full, and all of it is acknowledged.
    world.until(20, |world| {
        world.far.tcp_queued(server).unwrap().1 == 8_192
            && world.near.tcp_queued(client).unwrap().0 == 0
    });
    // A segment of the peer with the closed window is held back.
    let held = Rc::new(RefCell::new(None));
    let late = Rc::clone(&held);
    world.wire.watch = Box::new(move |end, frame| {
        let holds = end == 1 && frame.len() > 500 && late.borrow().is_none();
        if holds {
            *late.borrow_mut() = Some(frame.clone());
        }
        !holds
    });
    ready(world.far.tcp_send(server, |room| room.len().min(500)));
    world.run(5);
    let held = held.take().expect("a segment that is held back");
    // The peer reads everything, and its window opens.
    while world.far.tcp_queued(server).unwrap().1 > 0 {
        ready(world.far.tcp_receive(server, |bytes| (bytes.len(), ())));
    }
    world.run(50);
    world.wire.put(0, &held);
    world.run(5);
    assert_eq!(world.near.tcp_queued(client).unwrap().1, 500, "it is taken");
    // New data leaves at once, without waiting for a window probe.
    let start = world.now;
    ready(world.near.tcp_send(client, |room| {
        room[..700].fill(7);
        700
    }));
    world.until(5, |world| world.far.tcp_queued(server).unwrap().1 == 700);
    let took_ms = (world.now - start) / 1_000_000;
    assert!(took_ms < 100, "{took_ms} ms");
}

/// A window that is rounded down ends before the one announced earlier; the stream may end between
/// the two.
#[test]
fn an_end_beyond_what_was_told_last_comes_with_the_payload_before_it() {
    /// Odd, so that its announcement is rounded down.
    const WINDOW: usize = 99_991;
    let setting = format!("tcp.receive_window={WINDOW}");
    let mut world = World::alike(&[&setting], Link::CLEAN);
    let frames = world.kept(|end, frame| end == 0 && segments::is_tcp(frame));
    let (_, server) = world.connected(80);
    let last = frames.borrow().last().cloned().expect("a greeting");
    let put = |world: &mut World, at: usize, bytes: usize, flags| {
        let number = segments::sequence(&last).wrapping_add(at as u32);
        let segment = segments::like(&last, number, flags, &vec![0xaa; bytes]);
        world.wire.put(1, &segment);
        for _ in 0..3 {
            world.turn();
            world.pass();
        }
    };
    for at in (0..99_000).step_by(1_000) {
        put(&mut world, at, 1_000, segments::ACK);
    }
    let ends = segments::ACK | segments::FIN;
    put(&mut world, 99_000, 991, ends);
    let read = |world: &mut World| {
        let mut came = 0;
        loop {
            let take = |bytes: &[u8]| (bytes.len(), bytes.len());
            match world.far.tcp_receive(server, take) {
                Poll::Ready(Ok(0)) => return (came, true),
                Poll::Ready(Ok(bytes)) => came += bytes,
                other => {
                    assert!(other.is_pending(), "{other:?}");
                    return (came, false);
                }
            }
        }
    };
    assert_eq!(read(&mut world), (WINDOW - 1, false));
    // A window update is sent.
    world.turn();
    put(&mut world, WINDOW - 1, 1, ends);
    assert_eq!(read(&mut world), (1, true));
}
