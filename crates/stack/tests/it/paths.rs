//! Path MTU discovery of connections, and ICMP errors about segments.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;

use crate::common::packets::{self, ETHERNET_BYTES};
use crate::common::router::{
    OFFLOAD_MODES, deliver_messages, icmp_error, packet_too_big, put_router, with_offload_mode,
};
use crate::common::{
    BulkTransfer, CapturedFrames, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address,
    expect_ready, socket_address,
};
use linerate_stack::{SocketId, StackError, TcpState, UnreachableReason};

fn pair(sim: &mut TwoStackSim, v6: bool) -> (SocketId, SocketId) {
    let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
    sim.connect_to(
        listener,
        socket_address(if v6 { REMOTE_V6 } else { REMOTE }, 80),
    )
}

/// Transfers a stream through a router; returns the time in milliseconds.
fn transfer(sim: &mut TwoStackSim, messages: &CapturedFrames, v6: bool, bytes: usize) -> u64 {
    let (client, server) = pair(sim, v6);
    let start = sim.now;
    let (mut local, mut remote) = (
        BulkTransfer::new(client, bytes),
        BulkTransfer::new(server, 1_000),
    );
    sim.run_until(60, |sim| {
        deliver_messages(sim, messages);
        local.step(&mut sim.local);
        remote.step(&mut sim.remote);
        local.has_received_end && remote.has_received_end
    });
    assert_eq!((local.received, remote.received), (1_000, bytes));
    assert_eq!(sim.remote.counters().tcp.in_checksum_errors, 0);
    (sim.now - start) / 1_000_000
}

#[test]
fn segments_follow_the_reported_path_mtu() {
    for (v6, mtu, reported_mtu) in [
        (false, 1_400, 1_400),
        (false, 576, 576),
        // An old router, which does not report its MTU.
        (false, 1_492, 0),
        (false, 1_006, 0),
        (true, 1_400, 1_400),
        (true, 1_280, 1_280),
    ] {
        for mode in OFFLOAD_MODES {
            let settings = ["tcp.send_buffer=64K", "tcp.min_rto=1s"];
            let mut sim = with_offload_mode(mode, &settings);
            let messages = put_router(&mut sim, mtu, Some(reported_mtu));
            let elapsed_ms = transfer(&mut sim, &messages, v6, 400_000);
            let name =
                format!("IPv6 {v6}, {mtu} B, {reported_mtu} reported, {mode}: {elapsed_ms} ms");
            // Without waiting for a timeout.
            assert!(elapsed_ms < 900, "{name}");
            let counters = sim.local.counters().tcp;
            let expected_count = if reported_mtu == 0 && mtu < 1_492 {
                2
            } else {
                1
            };
            assert_eq!(
                (counters.path_mtu_reported, counters.path_mtu_guesses),
                (expected_count, 0),
                "{name}"
            );
            // Only data in flight is retransmitted.
            assert!(
                counters.retransmitted_segments < 300,
                "{name}: {counters:#?}"
            );
        }
    }
}

/// No router reports the MTU: it is found by timeouts of the same segment.
#[test]
fn a_black_hole_for_long_segments_is_detected() {
    for (v6, mtu, guesses) in [(false, 1_300, 1), (false, 600, 2), (true, 1_280, 1)] {
        let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=100ms"], LinkModel::CLEAN);
        let messages = put_router(&mut sim, mtu, None);
        transfer(&mut sim, &messages, v6, 100_000);
        let counters = sim.local.counters().tcp;
        let counts = (counters.path_mtu_reported, counters.path_mtu_guesses);
        assert_eq!(counts, (0, guesses), "a stream, IPv6 {v6}, {mtu} B");
        for mode in OFFLOAD_MODES {
            let mut sim = with_offload_mode(mode, &["tcp.min_rto=100ms", "tcp.tail_probe=off"]);
            let lost = Rc::new(Cell::new(0));
            let count = Rc::clone(&lost);
            sim.wire.filter = Box::new(move |end, frame| {
                let length = frame.len() - ETHERNET_BYTES;
                let fits = end == 1 || length <= mtu;
                count.set(count.get() + u32::from(!fits && length > 1_280));
                fits
            });
            // A single segment, for which no acknowledgement triggers a retransmission.
            transfer(&mut sim, &CapturedFrames::default(), v6, 1_400);
            let counters = sim.local.counters().tcp;
            let counts = (counters.path_mtu_reported, counters.path_mtu_guesses);
            let name = format!("IPv6 {v6}, {mtu} B, {mode}");
            assert_eq!(counts, (0, guesses), "{name}");
            // Once, and four times by timeouts; with the fifth one it leaves shorter.
            assert_eq!(lost.get(), 5, "{name}");
        }
    }
    // Segments that are short already are not shortened.
    let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=100ms"], LinkModel::CLEAN);
    let (client, _) = pair(&mut sim, false);
    sim.wire.filter = Box::new(|end, _| end == 1);
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(400)));
    sim.run(5_000);
    let counters = sim.local.counters().tcp;
    assert!(counters.retransmitted_segments > 3);
    assert_eq!(counters.path_mtu_guesses, 0);
}

/// Any host can send Packet Too Big; an off-path attacker does not have a sequence number in
/// flight.
#[test]
fn messages_that_quote_nothing_in_flight_are_ignored() {
    for v6 in [false, true] {
        for (variant, expected_count) in [
            ("as it is", 1),
            ("old", 0),
            ("new", 0),
            ("other port", 0),
            ("long link", 0),
            ("bad sum", 0),
        ] {
            let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=1s"], LinkModel::CLEAN);
            let (client, server) = pair(&mut sim, v6);
            let captured = sim.capture(|end, frame| end == 0 && frame.len() > 1_000);
            expect_ready(sim.local.tcp_send(client, |space| space.len().min(3_000)));
            sim.local.flush();
            sim.wire.transfer(sim.now);
            let mut frame = captured.borrow()[0].clone();
            let sequence = packets::payload_offset(&frame) + 4;
            let number = u32::from_be_bytes(frame[sequence..sequence + 4].try_into().unwrap());
            let number = match variant {
                "old" => number.wrapping_sub(1),
                "new" => number.wrapping_add(3_000),
                _ => number,
            };
            frame[sequence..sequence + 4].copy_from_slice(&number.to_be_bytes());
            if variant == "other port" {
                frame[sequence - 4] ^= 1;
            }
            let mtu = if variant == "long link" { 1_500 } else { 1_300 };
            let mut message = packet_too_big(&frame, mtu);
            if variant == "bad sum" {
                *message.last_mut().unwrap() ^= 1;
            }
            sim.wire.deliver(0, &message);
            sim.run_until(5, |sim| sim.remote.tcp_queued(server).unwrap().1 == 3_000);
            let counters = sim.local.counters().tcp;
            assert_eq!(
                counters.path_mtu_reported, expected_count,
                "{variant}, IPv6 {v6}"
            );
        }
    }
}

#[test]
fn unreachable_destinations_are_reported() {
    let prohibited = UnreachableReason::Prohibited;
    for (v6, kind, reason, is_final) in [
        (false, (3, 3), UnreachableReason::Port, true),
        (false, (3, 2), UnreachableReason::Protocol, true),
        (false, (3, 13), prohibited, true),
        (false, (3, 0), UnreachableReason::Network, false),
        (false, (3, 1), UnreachableReason::Host, false),
        (false, (11, 0), UnreachableReason::HopLimit, false),
        (true, (1, 4), UnreachableReason::Port, true),
        (true, (1, 1), prohibited, true),
        (true, (1, 3), UnreachableReason::Host, false),
        (true, (1, 0), UnreachableReason::Network, false),
    ] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
        let syns = CapturedFrames::default();
        let frames = Rc::clone(&syns);
        let tcp = if v6 { 20 } else { 23 };
        sim.wire.filter = Box::new(move |end, frame| {
            let is_syn = end == 0 && frame[tcp] == 6;
            if is_syn {
                frames.borrow_mut().push(frame.clone());
            }
            !is_syn
        });
        let to = socket_address(if v6 { REMOTE_V6 } else { REMOTE }, 80);
        let client = sim.local.tcp_connect(to, None).unwrap();
        sim.run_until(1, |_| !syns.borrow().is_empty());
        assert_eq!(sim.local.tcp_icmp_error(client).unwrap(), None);
        let said = icmp_error(&syns.borrow()[0], kind, 0);
        sim.wire.deliver(0, &said);
        sim.run(5);
        let router: IpAddr = if v6 { "fd00::fe" } else { "10.0.0.254" }.parse().unwrap();
        let name = format!("{kind:?}, IPv6 {v6}");
        assert_eq!(
            sim.local.tcp_icmp_error(client).unwrap(),
            Some((reason, router)),
            "{name}"
        );
        let got = sim.local.tcp_receive(client, |bytes| (bytes.len(), ()));
        if is_final {
            let Poll::Ready(Err(StackError::Unreachable {
                remote,
                reason: reported,
                reporter,
            })) = got
            else {
                panic!("{name}: {got:?}");
            };
            assert_eq!((remote, reported, reporter), (to, reason, router), "{name}");
            assert_eq!(sim.local.counters().tcp.attempt_fails, 1);
            assert_eq!(sim.local.counters().tcp.out_resets, 0);
        } else {
            assert!(got.is_pending(), "{name}");
            assert_eq!(sim.local.tcp_state(client).unwrap(), TcpState::Connecting);
            // The error may be temporary.
            sim.wire.filter = Box::new(|_, _| true);
            let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
            sim.run_until(5, |sim| {
                sim.local.tcp_state(client).unwrap() == TcpState::Established
            });
            sim.remote.close(listener).unwrap();
        }
    }
}

/// An established connection is not closed by an ICMP error (RFC 5927), which it reports.
#[test]
fn an_established_connection_is_not_closed_by_an_icmp_error() {
    let mut sim = TwoStackSim::symmetric(&["tcp.min_rto=200ms"], LinkModel::CLEAN);
    let (client, server) = pair(&mut sim, false);
    let captured = CapturedFrames::default();
    let frames = Rc::clone(&captured);
    sim.wire.filter = Box::new(move |end, frame| {
        if end == 0 {
            frames.borrow_mut().push(frame.clone());
        }
        end == 1
    });
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(100)));
    sim.run_until(1, |_| !captured.borrow().is_empty());
    let said = icmp_error(&captured.borrow()[0], (3, 3), 0);
    sim.wire.deliver(0, &said);
    sim.run(5);
    let router: IpAddr = "10.0.0.254".parse().unwrap();
    let expected = Some((UnreachableReason::Port, router));
    assert_eq!(sim.local.tcp_icmp_error(client).unwrap(), expected);
    sim.wire.filter = Box::new(|_, _| true);
    sim.run_until(2, |sim| sim.remote.tcp_queued(server).unwrap().1 == 100);
    assert_eq!(sim.local.tcp_state(client).unwrap(), TcpState::Established);
}
