//! How connections end, and what is counted of it: as RFC 4022 has it, and the kernel's /proc/net/snmp.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::segments::{self, ACK, FIN};
use common::{FAR, Link, World, any, at, ready};
use linerate_stack::{SocketId, Stack, TcpState};

/// Attempts that failed and connections that were broken off, of the near end and the far one.
fn ends(world: &World) -> [(u64, u64); 2] {
    [&world.near, &world.far].map(|stack| {
        let tcp = stack.counters().tcp;
        (tcp.attempt_fails, tcp.established_resets)
    })
}

fn is(stack: &mut Stack, socket: SocketId, state: TcpState) -> bool {
    stack.tcp_state(socket).unwrap() == state
}

/// Waits until neither end has a connection left.
fn all_over(world: &mut World) {
    world.until(200, |world| {
        world.near.connections() + world.far.connections() == 0
    });
}

#[test]
fn an_end_that_both_sides_said_is_no_reset() {
    // Whose end leaves first decides who waits in LAST-ACK and who in TIME-WAIT; at once both are in CLOSING.
    for first in ["near", "far", "both"] {
        let mut world = World::alike(&[], Link::CLEAN);
        let (client, server) = world.connected(80);
        ready(world.near.tcp_send(client, |room| room.len().min(3_000)));
        world.until(5, |world| world.far.tcp_queued(server).unwrap().1 == 3_000);
        ready(
            world
                .far
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len())),
        );
        if first != "far" {
            world.near.tcp_finish(client).unwrap();
        }
        if first != "near" {
            world.far.tcp_finish(server).unwrap();
        }
        world.run(50);
        world.near.close(client).unwrap();
        world.far.close(server).unwrap();
        all_over(&mut world);
        assert_eq!(ends(&world), [(0, 0); 2], "{first}");
    }
}

/// The far end finished first, and payload waits to be acknowledged when this end does: the engine learns of the
/// end when that has come.
#[test]
fn an_end_that_the_engine_learns_of_late_is_no_reset() {
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = world.connected(80);
    world.far.tcp_finish(server).unwrap();
    world.until(5, |world| {
        is(&mut world.near, client, TcpState::FarFinished)
    });
    ready(world.near.tcp_send(client, |room| room.len().min(20_000)));
    world.near.tcp_finish(client).unwrap();
    world.until(20, |world| {
        let _ = (world.far).tcp_receive(server, |bytes| (bytes.len(), ()));
        is(&mut world.near, client, TcpState::Closed)
    });
    assert_eq!(ends(&world), [(0, 0); 2]);
}

/// Payload that is sent again in vain is answered so, and the engine, which counts three, has none to send again.
#[test]
fn an_end_that_is_lost_is_sent_again_whatever_payload_is_acknowledged_once_more() {
    for (both, ahead, payload) in [
        (false, 0, &[][..]),
        (true, 0, &[]),
        // Beyond the buffer, so that the acknowledgement alone is taken.
        (false, 65_000, &[0xaa; 1_400]),
    ] {
        let mut world = World::alike(&["tcp.receive_window=64K"], Link::CLEAN);
        let (client, server) = world.connected(80);
        ready(world.near.tcp_send(client, |room| room.len().min(3_000)));
        world.until(5, |world| world.near.tcp_queued(client).unwrap().0 == 0);
        let (last, lost) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(0)));
        let (seen, losses) = (Rc::clone(&last), Rc::clone(&lost));
        world.wire.watch = Box::new(move |end, frame| {
            let tcp = segments::is_tcp(frame);
            if tcp && end == 1 {
                *seen.borrow_mut() = Some(frame.clone());
            }
            let loses = tcp && end == 0 && segments::flags(frame) & FIN != 0 && losses.get() == 0;
            losses.set(losses.get() + u32::from(loses));
            !loses
        });
        // Something is acknowledged, by what is said again then.
        ready(world.near.tcp_send(client, |room| room.len().min(10)));
        world.until(5, |world| world.near.tcp_queued(client).unwrap().0 == 0);
        world.near.tcp_finish(client).unwrap();
        if both {
            world.far.tcp_finish(server).unwrap();
        }
        world.run(3);
        assert_eq!(lost.get(), 1);
        let last = last.take().expect("an acknowledgement");
        let next = segments::sequence(&last).wrapping_add(u32::from(both));
        let again = segments::like(&last, next.wrapping_add(ahead), ACK, payload);
        for _ in 0..5 {
            world.wire.put(0, &again);
            world.near.turn(world.now);
        }
        world.until(5, |world| {
            let _ = (world.far).tcp_receive(server, |bytes| (bytes.len(), ()));
            let waits = [TcpState::Established, TcpState::Finished];
            !waits.contains(&world.far.tcp_state(server).unwrap())
        });
    }
}

#[test]
fn who_breaks_off_counts_as_who_is_told() {
    for by_near in [true, false] {
        let mut world = World::alike(&[], Link::CLEAN);
        let (client, server) = world.connected(80);
        match by_near {
            true => world.near.abort(client).unwrap(),
            false => world.far.abort(server).unwrap(),
        }
        world.until(5, |world| match by_near {
            true => is(&mut world.far, server, TcpState::Closed),
            false => is(&mut world.near, client, TcpState::Closed),
        });
        assert_eq!(ends(&world), [(0, 1); 2], "by the near end {by_near}");
    }
    // One that had said its end waits for the other's alone: FIN-WAIT-2 is no state that counts.
    let mut world = World::alike(&[], Link::CLEAN);
    let (client, server) = world.connected(80);
    world.near.tcp_finish(client).unwrap();
    world.until(5, |world| is(&mut world.far, server, TcpState::FarFinished));
    world.far.abort(server).unwrap();
    world.until(5, |world| is(&mut world.near, client, TcpState::Closed));
    assert_eq!(ends(&world), [(0, 0), (0, 1)]);
}

#[test]
fn what_never_stood_is_a_failed_attempt() {
    // Nobody listens.
    let mut world = World::alike(&[], Link::CLEAN);
    let refused = world.near.tcp_connect(at(FAR, 81), None).unwrap();
    world.until(5, |world| is(&mut world.near, refused, TcpState::Closed));
    // Given back, it counts no second time.
    world.near.abort(refused).unwrap();
    all_over(&mut world);
    assert_eq!(ends(&world), [(1, 0), (0, 0)]);

    // Nobody answers, and who asked gives up: gently or not is the same.
    for abort in [true, false] {
        let mut world = World::alike(&[], Link::CLEAN);
        world.wire.watch = Box::new(|_, frame| frame[12..14] != [8, 0]);
        let silent = world.near.tcp_connect(at(FAR, 80), None).unwrap();
        world.run(50);
        match abort {
            true => world.near.abort(silent).unwrap(),
            false => world.near.close(silent).unwrap(),
        }
        all_over(&mut world);
        assert_eq!(ends(&world), [(1, 0), (0, 0)], "abort {abort}");
    }

    // Who asked is gone before the connection stands here: given up after a minute.
    let mut world = World::alike(&[], Link::CLEAN);
    world.far.tcp_listen(any(80), 4).unwrap();
    let mut greetings = 0;
    world.wire.watch = Box::new(move |end, frame| {
        let tcp = frame[12..14] == [8, 0];
        greetings += u32::from(end == 0 && tcp);
        // The first one comes, and nothing after it.
        !tcp || (end == 0 && greetings == 1)
    });
    let client = world.near.tcp_connect(at(FAR, 80), None).unwrap();
    world.run(50);
    world.near.abort(client).unwrap();
    all_over(&mut world);
    assert_eq!(ends(&world), [(1, 0), (1, 0)]);
}

/// Connections that nobody accepted are broken off with their listener.
#[test]
fn a_listener_that_ends_counts_whom_it_had() {
    let mut world = World::alike(&[], Link::CLEAN);
    let listener = world.far.tcp_listen(any(80), 4).unwrap();
    let clients = [(); 2].map(|()| world.near.tcp_connect(at(FAR, 80), None).unwrap());
    world.until(5, |world| {
        clients
            .iter()
            .all(|&client| is(&mut world.near, client, TcpState::Established))
    });
    world.run(20);
    world.far.close(listener).unwrap();
    world.until(5, |world| {
        clients
            .iter()
            .all(|&client| is(&mut world.near, client, TcpState::Closed))
    });
    assert_eq!(ends(&world), [(0, 2); 2]);
}

/// A place whose last connection said its end without waiting for company goes on as configured.
#[test]
fn a_place_that_is_used_again_waits_for_company_again() {
    for (nagle, leave) in [("on", 1), ("off", 2)] {
        let nagle = format!("tcp.nagle={nagle}");
        let mut world = World::alike(&["sockets.tcp=1", "tcp.min_rto=1s", &nagle], Link::CLEAN);
        // The last bytes leave at once: the far end has finished, and payload is on its way.
        let (client, server) = world.connected(80);
        world.far.tcp_finish(server).unwrap();
        world.until(5, |world| {
            is(&mut world.near, client, TcpState::FarFinished)
        });
        for _ in 0..2 {
            ready(world.near.tcp_send(client, |room| room.len().min(10)));
            world.near.turn(world.now);
        }
        world.near.close(client).unwrap();
        world.until(20, |world| {
            let _ = (world.far).tcp_receive(server, |bytes| (bytes.len(), ()));
            is(&mut world.far, server, TcpState::Closed)
        });
        world.far.close(server).unwrap();
        all_over(&mut world);

        let (client, _) = world.connected(81);
        let left = Rc::new(RefCell::new(0));
        let seen = left.clone();
        world.wire.watch = Box::new(move |end, frame| {
            *seen.borrow_mut() += usize::from(end == 0 && frame.len() == 54 + 10);
            true
        });
        for _ in 0..2 {
            ready(world.near.tcp_send(client, |room| room.len().min(10)));
            // No time passes, so that nothing is acknowledged in between.
            world.near.turn(world.now);
            world.wire.carry(world.now);
        }
        assert_eq!(*left.borrow(), leave, "{nagle}");
    }
}
