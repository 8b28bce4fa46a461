//! Unexpected SYNs and resets on existing connections (RFC 9293, section 3.10.7.4; RFC 5961).

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;

use crate::common::segments::{self, ACK, RST, SYN};
use crate::common::{
    BulkTransfer, LOCAL, LinkModel, REMOTE, TwoStackSim, any_address, expect_ready, packets,
    socket_address,
};
use linerate_stack::{StackError, TcpState};

/// Segments sent by each stack.
type SentSegments = Rc<RefCell<[Vec<Vec<u8>>; 2]>>;

fn watch_segments(sim: &mut TwoStackSim) -> SentSegments {
    let captured = SentSegments::default();
    let frames = Rc::clone(&captured);
    sim.wire.filter = Box::new(move |end, frame| {
        if segments::is_tcp(frame) {
            frames.borrow_mut()[end].push(frame.clone());
        }
        true
    });
    captured
}

/// After a restart the client connects from the same port, without state of the old connection.
#[test]
fn a_restarted_client_reconnects_from_the_same_port() {
    for has_read in [false, true] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
        let from = socket_address(LOCAL, 50_000);
        let accept = |sim: &mut TwoStackSim| {
            let client = sim
                .local
                .tcp_connect(socket_address(REMOTE, 80), Some(from))
                .unwrap();
            let start = sim.now;
            let mut server = None;
            sim.run_until(3, |sim| {
                if let Poll::Ready(accepted) = sim.remote.tcp_accept(listener) {
                    server = Some(accepted.unwrap());
                }
                server.is_some()
            });
            (client, server.unwrap(), sim.now - start)
        };
        let (client, server, _) = accept(&mut sim);
        // Both streams have transferred data.
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(700)));
        expect_ready(sim.remote.tcp_send(server, |space| space.len().min(900)));
        sim.run(100);
        if has_read {
            expect_ready(sim.remote.tcp_receive(server, |_| (300, ())));
        }
        // It disappears silently.
        sim.wire.filter = Box::new(|end, _| end == 1);
        sim.local.abort(client).unwrap();
        sim.run(20);
        assert_eq!(sim.local.connection_count(), 0);
        assert_eq!(sim.remote.tcp_state(server).unwrap(), TcpState::Established);
        let captured = watch_segments(&mut sim);
        let (second_client, second, elapsed_ns) = accept(&mut sim);
        assert!(
            elapsed_ns < 1_200_000_000,
            "{elapsed_ns} ns: one more request"
        );
        assert_eq!(sim.remote.counters().tcp.out_challenges, 1);
        let resets = captured.borrow()[0]
            .iter()
            .filter(|frame| segments::flags(frame) & RST != 0)
            .count();
        assert_eq!(resets, 1);
        // The application with the old connection gets an error, and can read what had arrived.
        assert_eq!(sim.remote.tcp_state(server).unwrap(), TcpState::Closed);
        let unread = if has_read { 400 } else { 700 };
        assert_eq!(sim.remote.tcp_queued(server).unwrap().1, unread);
        let sent = sim.remote.tcp_send(server, |_| 1);
        assert!(matches!(
            sent,
            Poll::Ready(Err(StackError::ConnectionReset))
        ));
        // The new connection works in both directions, while the old one is still open.
        expect_ready(
            sim.local
                .tcp_send(second_client, |space| space.len().min(50)),
        );
        expect_ready(sim.remote.tcp_send(second, |space| space.len().min(60)));
        sim.run_until(2, |sim| {
            sim.remote.tcp_queued(second).unwrap().1 == 50
                && sim.local.tcp_queued(second_client).unwrap().1 == 60
        });
        sim.remote.close(server).unwrap();
        sim.run(20);
        assert_eq!(sim.remote.tcp_state(second).unwrap(), TcpState::Established);
        expect_ready(
            sim.local
                .tcp_send(second_client, |space| space.len().min(50)),
        );
        sim.run_until(2, |sim| sim.remote.tcp_queued(second).unwrap().1 == 100);
    }
}

/// A flood of SYNs or resets is not answered segment by segment.
#[test]
fn challenge_acks_are_rate_limited() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let captured = watch_segments(&mut sim);
    let (_, server) = sim.connect(80);
    let last = captured.borrow()[0].last().cloned().unwrap();
    let next = segments::sequence(&last);
    let before = sim.remote.counters().tcp;
    for number in 0..50u32 {
        let syn = segments::segment_like(&last, next.wrapping_add(7_777 * number), SYN, &[]);
        let syn_ack = segments::segment_like(&last, next.wrapping_add(number), SYN | ACK, &[]);
        let resets = segments::segment_like(&last, next.wrapping_add(1 + number), RST, &[]);
        for frame in [syn, syn_ack, resets] {
            sim.wire.deliver(1, &frame);
        }
        sim.run(1);
    }
    let spent = sim.remote.counters().tcp;
    assert_eq!(spent.out_challenges, 1);
    assert_eq!(spent.out_segments - before.out_segments, 1);
    assert_eq!(spent.passive_opens, before.passive_opens);
    assert_eq!(sim.remote.tcp_state(server).unwrap(), TcpState::Established);
}

#[test]
fn a_reset_needs_the_number_that_is_expected_next() {
    const WINDOW: u32 = 64 << 10;
    for queued in [0u32, 500] {
        for (ahead, replies, closes) in [
            (0, 0, true),
            (1, 1, false),
            (WINDOW - queued - 1, 1, false),
            (WINDOW - queued, 1, false),
            (WINDOW - queued + 1, 0, false),
            (u32::MAX, 0, false),
        ] {
            for payload in [&b""[..], b"because"] {
                let name = format!("{queued} B wait, {ahead} ahead, {} B", payload.len());
                let mut sim = TwoStackSim::symmetric(&["tcp.receive_window=64K"], LinkModel::CLEAN);
                let captured = watch_segments(&mut sim);
                let (client, server) = sim.connect(80);
                if queued > 0 {
                    expect_ready(sim.local.tcp_send(client, |space| space.len().min(500)));
                    sim.run_until(5, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
                }
                let last = captured.borrow()[0].last().cloned().unwrap();
                let behind = last.len() - segments::PAYLOAD_OFFSET;
                let next = segments::sequence(&last).wrapping_add(behind as u32);
                let sent = segments::segment_like(&last, next.wrapping_add(ahead), RST, payload);
                let before = captured.borrow()[1].len();
                sim.wire.deliver(1, &sent);
                sim.run(20);
                assert_eq!(captured.borrow()[1].len() - before, replies, "{name}");
                let state = sim.remote.tcp_state(server).unwrap();
                assert_eq!(state == TcpState::Closed, closes, "{name}");
                if replies > 0 {
                    let reply = captured.borrow()[1].last().cloned().unwrap();
                    assert_eq!(segments::flags(&reply), ACK, "{name}");
                    assert_eq!(segments::acknowledgement_number(&reply), next, "{name}");
                }
            }
        }
    }
}

/// An old duplicate SYN arrives for a connection in TIME-WAIT (RFC 1122, section 4.2.2.13; RFC
/// 6191).
#[test]
fn an_old_syn_does_not_end_time_wait() {
    let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=1s"], LinkModel::CLEAN);
    let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
    let captured = watch_segments(&mut sim);
    let (client, server) = sim.connect_to(listener, socket_address(REMOTE, 80));
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(700)));
    sim.run(20);
    expect_ready(sim.remote.tcp_receive(server, |_| (700, ())));
    sim.remote.close(server).unwrap();
    sim.run_until(2, |sim| {
        sim.local.tcp_state(client).unwrap() == TcpState::RemoteFinished
    });
    sim.local.close(client).unwrap();
    sim.run_until(2, |sim| sim.local.connection_count() == 0);
    assert_eq!(sim.remote.connection_count(), 1);
    let mut syn = captured.borrow()[0].clone().into_iter();
    let syn = syn.find(|frame| segments::flags(frame) == SYN).unwrap();
    // The client's resets, which would end TIME-WAIT, are dropped.
    sim.wire.filter = Box::new(|end, _| end == 1);
    let first = segments::sequence(&syn);
    let before = sim.remote.counters().tcp;
    // Sequence numbers used by SYN, payload and FIN.
    let next = first.wrapping_add(1 + 700 + 1);
    for (number, opens) in [
        (first, 0),
        (first.wrapping_sub(5_000_000), 0),
        (next.wrapping_sub(1), 0),
        (next, 1),
    ] {
        sim.wire
            .deliver(1, &segments::segment_like(&syn, number, SYN, &[]));
        sim.run(20);
        let since = sim.remote.counters().tcp.passive_opens - before.passive_opens;
        assert_eq!(since, opens, "{}", number.wrapping_sub(first));
        assert_eq!(sim.remote.connection_count(), 1);
    }
    assert_eq!(
        sim.remote.counters().tcp.out_challenges - before.out_challenges,
        1
    );
}

/// The server has received everything, and none of its acknowledgements arrived. After the timeout
/// smoltcp sends from a number below the one that the server expects.
#[test]
fn a_reset_after_a_timeout_is_accepted() {
    let mut sim = TwoStackSim::symmetric(&["tcp.tail_probe=off"], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    // Opens the congestion window for three segments in flight.
    for _ in 0..10 {
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(1_460)));
        sim.run_until(1, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
        expect_ready(sim.remote.tcp_receive(server, |bytes| (bytes.len(), ())));
    }
    sim.run(20);
    sim.wire.filter = Box::new(|end, _| end == 0);
    expect_ready(
        sim.local
            .tcp_send(client, |space| space.len().min(3 * 1_460)),
    );
    sim.run_until(1, |sim| {
        sim.remote.tcp_queued(server).unwrap().1 == 3 * 1_460
    });
    let before = sim.local.counters().tcp.retransmitted_segments;
    sim.run_until(5, |sim| {
        sim.local.counters().tcp.retransmitted_segments > before
    });
    assert_eq!(sim.remote.tcp_state(server).unwrap(), TcpState::Established);
    sim.local.abort(client).unwrap();
    sim.run(20);
    assert_eq!(sim.remote.tcp_state(server).unwrap(), TcpState::Closed);
}

/// A peer that acknowledges ahead to speed the sender up (RFC 9293, section 3.10.7.4) would lose
/// that data.
#[test]
fn an_acknowledgement_of_unsent_data_is_ignored() {
    const BYTES: usize = 30_000;
    let settings = ["tcp.receive_window=4096", "tcp.send_buffer=64K"];
    for (name, ahead, is_challenged) in [
        ("all that was sent", 0, false),
        ("a byte more", 1, true),
        ("all that waits", BYTES as u32 - 4_096, true),
        ("more than there is", 1 << 20, true),
    ] {
        let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
        let captured = watch_segments(&mut sim);
        let (client, server) = sim.connect(80);
        let mut sender = BulkTransfer::new(client, BYTES);
        let mut receiver = BulkTransfer::new(server, 0);
        // The window is full, and the rest waits.
        for _ in 0..100 {
            sender.step(&mut sim.local);
            sim.poll();
            sim.advance();
        }
        assert_eq!(sender.sent, BYTES);
        assert_eq!(sim.remote.tcp_queued(server).unwrap().1, 4_096);
        let last = captured.borrow()[1]
            .last()
            .cloned()
            .expect("acknowledgements");
        let mut forged = last.clone();
        let number = segments::acknowledgement_number(&last).wrapping_add(ahead);
        let ack_offset = segments::TCP_OFFSET + 8;
        forged[ack_offset..ack_offset + 4].copy_from_slice(&number.to_be_bytes());
        packets::complete(&mut forged);
        sim.wire.deliver(0, &forged);
        sim.run(3);
        let counters = sim.local.counters().tcp;
        assert_eq!(counters.out_challenges, u64::from(is_challenged), "{name}");
        sim.run_until(20, |sim| {
            sender.step(&mut sim.local);
            receiver.step(&mut sim.remote);
            receiver.has_received_end
        });
        assert_eq!(receiver.received, BYTES, "{name}");
    }
}
