//! Closing of connections, and its counters: as in RFC 4022, and the kernel's /proc/net/snmp.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::segments::{self, ACK, FIN};
use crate::common::{LinkModel, REMOTE, TwoStackSim, any_address, expect_ready, socket_address};
use linerate_stack::{SocketId, Stack, TcpState};

/// Returns failed attempts and resets of established connections, of the local and the remote
/// stack.
fn close_counters(sim: &TwoStackSim) -> [(u64, u64); 2] {
    [&sim.local, &sim.remote].map(|stack| {
        let tcp = stack.counters().tcp;
        (tcp.attempt_fails, tcp.established_resets)
    })
}

fn is_in_state(stack: &mut Stack, socket: SocketId, state: TcpState) -> bool {
    stack.tcp_state(socket).unwrap() == state
}

/// Waits until neither stack has a connection left.
fn wait_until_closed(sim: &mut TwoStackSim) {
    sim.run_until(200, |sim| {
        sim.local.connection_count() + sim.remote.connection_count() == 0
    });
}

#[test]
fn a_regular_close_is_no_reset() {
    // The order of the FINs decides which end is in LAST-ACK and which in TIME-WAIT; simultaneous
    // FINs lead to CLOSING.
    for first in ["near", "far", "both"] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let (client, server) = sim.connect(80);
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(3_000)));
        sim.run_until(5, |sim| sim.remote.tcp_queued(server).unwrap().1 == 3_000);
        expect_ready(
            sim.remote
                .tcp_receive(server, |bytes| (bytes.len(), bytes.len())),
        );
        if first != "far" {
            sim.local.tcp_finish(client).unwrap();
        }
        if first != "near" {
            sim.remote.tcp_finish(server).unwrap();
        }
        sim.run(50);
        sim.local.close(client).unwrap();
        sim.remote.close(server).unwrap();
        wait_until_closed(&mut sim);
        assert_eq!(close_counters(&sim), [(0, 0); 2], "{first}");
    }
}

/// The peer finished first, and data is unacknowledged when this end finishes: smoltcp gets the FIN
/// once the data is acknowledged.
#[test]
fn a_deferred_fin_is_no_reset() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    sim.remote.tcp_finish(server).unwrap();
    sim.run_until(5, |sim| {
        is_in_state(&mut sim.local, client, TcpState::RemoteFinished)
    });
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(20_000)));
    sim.local.tcp_finish(client).unwrap();
    sim.run_until(20, |sim| {
        let _ = (sim.remote).tcp_receive(server, |bytes| (bytes.len(), ()));
        is_in_state(&mut sim.local, client, TcpState::Closed)
    });
    assert_eq!(close_counters(&sim), [(0, 0); 2]);
}

/// Superfluous retransmissions cause such acknowledgements; smoltcp counts three of them and has no
/// data to retransmit.
#[test]
fn a_lost_fin_is_retransmitted_despite_repeated_acknowledgements() {
    for (both_finish, ahead, payload) in [
        (false, 0, &[][..]),
        (true, 0, &[]),
        // Beyond the buffer, so that only the acknowledgement is processed.
        (false, 65_000, &[0xaa; 1_400]),
    ] {
        let mut sim = TwoStackSim::symmetric(&["tcp.receive_window=64K"], LinkModel::CLEAN);
        let (client, server) = sim.connect(80);
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(3_000)));
        sim.run_until(5, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
        let (last, lost) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(0)));
        let (last_frame, losses) = (Rc::clone(&last), Rc::clone(&lost));
        sim.wire.filter = Box::new(move |end, frame| {
            let tcp = segments::is_tcp(frame);
            if tcp && end == 1 {
                *last_frame.borrow_mut() = Some(frame.clone());
            }
            let is_lost = tcp && end == 0 && segments::flags(frame) & FIN != 0 && losses.get() == 0;
            losses.set(losses.get() + u32::from(is_lost));
            !is_lost
        });
        // Data is acknowledged; that acknowledgement is repeated below.
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(10)));
        sim.run_until(5, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
        sim.local.tcp_finish(client).unwrap();
        if both_finish {
            sim.remote.tcp_finish(server).unwrap();
        }
        sim.run(3);
        assert_eq!(lost.get(), 1);
        let last = last.take().expect("an acknowledgement");
        let next = segments::sequence(&last).wrapping_add(u32::from(both_finish));
        let repeated = segments::segment_like(&last, next.wrapping_add(ahead), ACK, payload);
        for _ in 0..5 {
            sim.wire.deliver(0, &repeated);
            sim.local.poll(sim.now);
        }
        sim.run_until(5, |sim| {
            let _ = (sim.remote).tcp_receive(server, |bytes| (bytes.len(), ()));
            let waiting_states = [TcpState::Established, TcpState::LocalFinished];
            !waiting_states.contains(&sim.remote.tcp_state(server).unwrap())
        });
    }
}

#[test]
fn a_reset_counts_at_both_ends() {
    for by_local in [true, false] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let (client, server) = sim.connect(80);
        match by_local {
            true => sim.local.abort(client).unwrap(),
            false => sim.remote.abort(server).unwrap(),
        }
        sim.run_until(5, |sim| match by_local {
            true => is_in_state(&mut sim.remote, server, TcpState::Closed),
            false => is_in_state(&mut sim.local, client, TcpState::Closed),
        });
        assert_eq!(
            close_counters(&sim),
            [(0, 1); 2],
            "by the local stack: {by_local}"
        );
    }
    // An end in FIN-WAIT-2 has sent its FIN: a reset does not count there.
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    sim.local.tcp_finish(client).unwrap();
    sim.run_until(5, |sim| {
        is_in_state(&mut sim.remote, server, TcpState::RemoteFinished)
    });
    sim.remote.abort(server).unwrap();
    sim.run_until(5, |sim| {
        is_in_state(&mut sim.local, client, TcpState::Closed)
    });
    assert_eq!(close_counters(&sim), [(0, 0), (0, 1)]);
}

#[test]
fn a_connection_never_established_is_a_failed_attempt() {
    // No listener.
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let rejected_client = sim
        .local
        .tcp_connect(socket_address(REMOTE, 81), None)
        .unwrap();
    sim.run_until(5, |sim| {
        is_in_state(&mut sim.local, rejected_client, TcpState::Closed)
    });
    // Closing the socket does not count again.
    sim.local.abort(rejected_client).unwrap();
    wait_until_closed(&mut sim);
    assert_eq!(close_counters(&sim), [(1, 0), (0, 0)]);

    // No reply, and the client gives up: gracefully or not makes no difference.
    for abort in [true, false] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        sim.wire.filter = Box::new(|_, frame| frame[12..14] != [8, 0]);
        let unanswered_client = sim
            .local
            .tcp_connect(socket_address(REMOTE, 80), None)
            .unwrap();
        sim.run(50);
        match abort {
            true => sim.local.abort(unanswered_client).unwrap(),
            false => sim.local.close(unanswered_client).unwrap(),
        }
        wait_until_closed(&mut sim);
        assert_eq!(close_counters(&sim), [(1, 0), (0, 0)], "abort {abort}");
    }

    // The client is gone before the connection is established: it is dropped after a minute.
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    sim.remote.tcp_listen(any_address(80), 4).unwrap();
    let mut handshake_segments = 0;
    sim.wire.filter = Box::new(move |end, frame| {
        let tcp = frame[12..14] == [8, 0];
        handshake_segments += u32::from(end == 0 && tcp);
        // Only the first segment arrives.
        !tcp || (end == 0 && handshake_segments == 1)
    });
    let client = sim
        .local
        .tcp_connect(socket_address(REMOTE, 80), None)
        .unwrap();
    sim.run(50);
    sim.local.abort(client).unwrap();
    wait_until_closed(&mut sim);
    assert_eq!(close_counters(&sim), [(1, 0), (1, 0)]);
}

/// Connections that were not accepted are reset with their listener.
#[test]
fn a_closed_listener_counts_its_connections() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
    let clients = [(); 2].map(|()| {
        sim.local
            .tcp_connect(socket_address(REMOTE, 80), None)
            .unwrap()
    });
    sim.run_until(5, |sim| {
        clients
            .iter()
            .all(|&client| is_in_state(&mut sim.local, client, TcpState::Established))
    });
    sim.run(20);
    sim.remote.close(listener).unwrap();
    sim.run_until(5, |sim| {
        clients
            .iter()
            .all(|&client| is_in_state(&mut sim.local, client, TcpState::Closed))
    });
    assert_eq!(close_counters(&sim), [(0, 2); 2]);
}

/// A socket whose last connection ended without Nagle's algorithm is reset to the configuration.
#[test]
fn a_reused_socket_applies_nagle() {
    for (nagle, expected) in [("on", 1), ("off", 2)] {
        let nagle = format!("tcp.nagle={nagle}");
        let mut sim = TwoStackSim::symmetric(
            &["sockets.tcp=1", "tcp.min_rto=1s", &nagle],
            LinkModel::CLEAN,
        );
        // The last bytes leave at once: the peer has finished, and data is in flight.
        let (client, server) = sim.connect(80);
        sim.remote.tcp_finish(server).unwrap();
        sim.run_until(5, |sim| {
            is_in_state(&mut sim.local, client, TcpState::RemoteFinished)
        });
        for _ in 0..2 {
            expect_ready(sim.local.tcp_send(client, |space| space.len().min(10)));
            sim.local.poll(sim.now);
        }
        sim.local.close(client).unwrap();
        sim.run_until(20, |sim| {
            let _ = (sim.remote).tcp_receive(server, |bytes| (bytes.len(), ()));
            is_in_state(&mut sim.remote, server, TcpState::Closed)
        });
        sim.remote.close(server).unwrap();
        wait_until_closed(&mut sim);

        let (client, _) = sim.connect(81);
        let sent = Rc::new(RefCell::new(0));
        let counter = sent.clone();
        sim.wire.filter = Box::new(move |end, frame| {
            *counter.borrow_mut() += usize::from(end == 0 && frame.len() == 54 + 10);
            true
        });
        for _ in 0..2 {
            expect_ready(sim.local.tcp_send(client, |space| space.len().min(10)));
            // No time passes, so that nothing is acknowledged in between.
            sim.local.poll(sim.now);
            sim.wire.transfer(sim.now);
        }
        assert_eq!(*sent.borrow(), expected, "{nagle}");
    }
}
