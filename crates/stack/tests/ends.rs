//! Closing of connections, and its counters: as in RFC 4022, and the kernel's /proc/net/snmp.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use common::segments::{self, ACK, FIN};
use common::{FAR, Link, World, any, at, ready};
use linerate_stack::{SocketId, Stack, TcpState};

/// Returns failed attempts and resets of established connections, of the local and the remote
/// stack.
fn ends(world: &World) -> [(u64, u64); 2] {
    [&world.near, &world.far].map(|stack| {
        let tcp = stack.counters().tcp;
        (tcp.attempt_fails, tcp.established_resets)
    })
}

fn is(stack: &mut Stack, socket: SocketId, state: TcpState) -> bool {
    stack.tcp_state(socket).unwrap() == state
}

/// Waits until neither stack has a connection left.
fn all_over(world: &mut World) {
    world.until(200, |world| {
        world.near.connections() + world.far.connections() == 0
    });
}

#[test]
fn an_end_that_both_sides_said_is_no_reset() {
    // The order of the FINs decides which end is in LAST-ACK and which in TIME-WAIT; simultaneous
    // FINs lead to CLOSING.
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

/// The peer finished first, and data is unacknowledged when this end finishes: smoltcp gets the FIN
/// once the data is acknowledged.
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

/// Superfluous retransmissions cause such acknowledgements; smoltcp counts three of them and has no
/// data to retransmit.
#[test]
fn an_end_that_is_lost_is_sent_again_whatever_payload_is_acknowledged_once_more() {
    for (both, ahead, payload) in [
        (false, 0, &[][..]),
        (true, 0, &[]),
        // Beyond the buffer, so that only the acknowledgement is processed.
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
        // Data is acknowledged; that acknowledgement is repeated below.
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
        assert_eq!(ends(&world), [(0, 1); 2], "by the local stack: {by_near}");
    }
    // An end in FIN-WAIT-2 has sent its FIN: a reset does not count there.
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
    // No listener.
    let mut world = World::alike(&[], Link::CLEAN);
    let refused = world.near.tcp_connect(at(FAR, 81), None).unwrap();
    world.until(5, |world| is(&mut world.near, refused, TcpState::Closed));
    // Closing the socket does not count again.
    world.near.abort(refused).unwrap();
    all_over(&mut world);
    assert_eq!(ends(&world), [(1, 0), (0, 0)]);

    // No reply, and the client gives up: gracefully or not makes no difference.
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

    // The client is gone before the connection is established: it is dropped after a minute.
    let mut world = World::alike(&[], Link::CLEAN);
    world.far.tcp_listen(any(80), 4).unwrap();
    let mut greetings = 0;
    world.wire.watch = Box::new(move |end, frame| {
        let tcp = frame[12..14] == [8, 0];
        greetings += u32::from(end == 0 && tcp);
        // Only the first segment arrives.
        !tcp || (end == 0 && greetings == 1)
    });
    let client = world.near.tcp_connect(at(FAR, 80), None).unwrap();
    world.run(50);
    world.near.abort(client).unwrap();
    all_over(&mut world);
    assert_eq!(ends(&world), [(1, 0), (1, 0)]);
}

/// Connections that were not accepted are reset with their listener.
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

/// A socket whose last connection ended without Nagle's algorithm is reset to the configuration.
#[test]
fn a_place_that_is_used_again_waits_for_company_again() {
    for (nagle, leave) in [("on", 1), ("off", 2)] {
        let nagle = format!("tcp.nagle={nagle}");
        let mut world = World::alike(&["sockets.tcp=1", "tcp.min_rto=1s", &nagle], Link::CLEAN);
        // The last bytes leave at once: the peer has finished, and data is in flight.
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
