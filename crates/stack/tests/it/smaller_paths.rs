//! Lifetime of the path MTU cache, and probing for larger MTUs.

use std::task::Poll;

use crate::common::packets::{ETHERNET_BYTES, V6_BYTES, complete, ping};
use crate::common::router::{
    OFFLOAD_MODES, deliver_messages, packet_too_big, put_router, put_variable_router,
    with_offload_mode,
};
use crate::common::{
    CapturedFrames, LOCAL_V6, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, expect_ready,
    pattern_byte, socket_address,
};
use linerate_stack::{SocketId, StackError};

const SECOND_NS: u64 = 1_000_000_000;

/// Lifetime of a reported or guessed path MTU.
const PMTU_LIFETIME_NS: u64 = 600 * SECOND_NS;

/// Sends `bytes` over an open connection, until everything has arrived and is acknowledged.
fn transfer(
    sim: &mut TwoStackSim,
    messages: &CapturedFrames,
    pair: (SocketId, SocketId),
    bytes: usize,
) {
    let (client, server) = pair;
    let (mut sent, mut got) = (0, 0);
    sim.run_until(60, |sim| {
        deliver_messages(sim, messages);
        while sent < bytes {
            match (sim.local).tcp_send(client, |space| space.len().min(bytes - sent)) {
                Poll::Ready(more) => sent += more.unwrap(),
                Poll::Pending => break,
            }
        }
        let take = |bytes: &[u8]| (bytes.len(), bytes.len());
        while let Poll::Ready(more) = sim.remote.tcp_receive(server, take) {
            got += more.unwrap();
        }
        got >= bytes && sim.local.tcp_queued(client).unwrap().0 == 0
    });
}

/// The path may have changed, or the link may only have been down.
#[test]
fn larger_mtus_are_probed_every_ten_minutes() {
    for (v6, reported_mtu) in [(false, Some(1_300)), (false, None), (true, Some(1_300))] {
        for mode in OFFLOAD_MODES {
            let settings = ["tcp.min_rto=100ms", "tcp.send_buffer=64K"];
            let mut sim = with_offload_mode(mode, &settings);
            let (messages, mtu, long_packets) = put_variable_router(&mut sim, 1_300, reported_mtu);
            let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
            let pair = sim.connect_to(
                listener,
                socket_address(if v6 { REMOTE_V6 } else { REMOTE }, 80),
            );
            let label = format!("IPv6 {v6}, {reported_mtu:?} reported, {mode}");
            let reductions = |sim: &TwoStackSim| {
                let tcp = sim.local.counters().tcp;
                tcp.path_mtu_reported + tcp.path_mtu_guesses
            };
            transfer(&mut sim, &messages, pair, 100_000);
            assert_eq!(reductions(&sim), 1, "{label}");
            let start = sim.now;
            // Not before the lifetime is over.
            sim.now += PMTU_LIFETIME_NS - 60 * SECOND_NS;
            long_packets.set(0);
            transfer(&mut sim, &messages, pair, 100_000);
            assert_eq!(long_packets.get(), 0, "{label}");
            // The path is unchanged: one probe is lost, which does not count as a black hole.
            sim.now = start + PMTU_LIFETIME_NS + SECOND_NS;
            let retransmitted = sim.local.counters().tcp.retransmitted_segments;
            transfer(&mut sim, &messages, pair, 100_000);
            assert_eq!(long_packets.get(), 1, "{label}");
            let expected_reports = u64::from(reported_mtu.is_some());
            assert_eq!(reductions(&sim), 1 + expected_reports, "{label}");
            let retransmitted = sim.local.counters().tcp.retransmitted_segments - retransmitted;
            assert!(
                (1..120).contains(&retransmitted),
                "{label}: {retransmitted}"
            );
            let start = sim.now;
            transfer(&mut sim, &messages, pair, 100_000);
            assert_eq!(long_packets.get(), 1, "{label}");
            // Now the path is wider.
            mtu.set(1_500);
            sim.now = start + PMTU_LIFETIME_NS + SECOND_NS;
            let retransmitted = sim.local.counters().tcp.retransmitted_segments;
            transfer(&mut sim, &messages, pair, 300_000);
            assert!(long_packets.get() > 100, "{label}: {}", long_packets.get());
            assert_eq!(reductions(&sim), 1 + expected_reports, "{label}");
            let now = sim.local.counters().tcp.retransmitted_segments;
            assert_eq!(now, retransmitted, "{label}");
        }
    }
}

/// Only the probe is retransmitted, at once, without waiting for a timeout.
#[test]
fn a_dropped_probe_costs_only_itself() {
    // The first of many segments, a single one, and behind others.
    for writes in [
        &[50_000][..],
        &[1_400],
        &[500, 500, 1_400],
        &[500, 500, 20_000],
    ] {
        for v6 in [false, true] {
            let settings = [
                "tcp.min_rto=1s",
                "tcp.send_buffer=64K",
                "tcp.nagle=off",
                "tcp.delayed_ack=off",
            ];
            let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
            let (messages, _, long_packets) = put_variable_router(&mut sim, 1_300, Some(1_300));
            let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
            let to = socket_address(if v6 { REMOTE_V6 } else { REMOTE }, 80);
            let (client, server) = sim.connect_to(listener, to);
            transfer(&mut sim, &messages, (client, server), 200_000);
            sim.now += PMTU_LIFETIME_NS + SECOND_NS;
            long_packets.set(0);
            let (before, start) = (sim.local.counters(), sim.now);
            for &bytes in writes {
                let mut remaining = bytes;
                while remaining > 0 {
                    remaining -= expect_ready(
                        sim.local
                            .tcp_send(client, |space| space.len().min(remaining)),
                    );
                }
                sim.local.poll(sim.now);
            }
            transfer(&mut sim, &messages, (client, server), 0);
            let elapsed_ms = (sim.now - start) / 1_000_000;
            let tcp = sim.local.counters().since(&before).tcp;
            let label = format!("{writes:?}, IPv6 {v6}: {elapsed_ms} ms, {tcp:#?}");
            assert_eq!(
                (long_packets.get(), tcp.path_mtu_reported),
                (1, 1),
                "{label}"
            );
            // In two segments.
            assert_eq!(tcp.retransmitted_segments, 2, "{label}");
            assert!(elapsed_ms < 20, "{label}");
        }
    }
}

/// From the smallest guess, larger MTUs are probed in steps.
#[test]
fn the_next_probe_follows_at_once() {
    let settings = ["tcp.min_rto=100ms", "tcp.send_buffer=16K"];
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let (messages, mtu, long_packets) = put_variable_router(&mut sim, 600, None);
    let pair = sim.connect(80);
    transfer(&mut sim, &messages, pair, 20_000);
    assert_eq!(sim.local.counters().tcp.path_mtu_guesses, 2);
    mtu.set(1_300);
    sim.now += PMTU_LIFETIME_NS + SECOND_NS;
    let before = sim.local.counters().tcp.out_segments;
    long_packets.set(0);
    transfer(&mut sim, &messages, pair, 1_000_000);
    let sent = sim.local.counters().tcp.out_segments - before;
    // A packet of 1460 B by smoltcp leaves in two segments of at most 1240 B, which takes 1370, or
    // in three of 512 B.
    assert!((1_370..1_450).contains(&sent), "{sent}");
    // A longer one did not arrive.
    assert_eq!(long_packets.get(), 1);
    assert_eq!(sim.local.counters().tcp.path_mtu_guesses, 2);
}

/// A router reports the MTU to the first connection; the second one needs no report.
#[test]
fn new_connections_use_the_cached_path_mtu() {
    for v6 in [false, true] {
        for mode in OFFLOAD_MODES {
            let mut sim = with_offload_mode(mode, &["tcp.send_buffer=64K"]);
            let (messages, _, long_packets) = put_variable_router(&mut sim, 1_300, Some(1_300));
            let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
            let to = socket_address(if v6 { REMOTE_V6 } else { REMOTE }, 80);
            let first = sim.connect_to(listener, to);
            transfer(&mut sim, &messages, first, 50_000);
            long_packets.set(0);
            let before = sim.local.counters();
            let second = sim.connect_to(listener, to);
            transfer(&mut sim, &messages, second, 50_000);
            let label = format!("IPv6 {v6}, {mode}");
            assert_eq!(long_packets.get(), 0, "{label}");
            let since = sim.local.counters().since(&before).tcp;
            let repeated = (since.path_mtu_reported, since.retransmitted_segments);
            assert_eq!(repeated, (0, 0), "{label}");
        }
    }
}

fn bind_sockets(sim: &mut TwoStackSim, connected: bool) -> (SocketId, SocketId) {
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    if connected {
        sim.local
            .udp_connect(client, socket_address(REMOTE_V6, 7))
            .unwrap();
    }
    (client, server)
}

/// Returns whether a datagram of this length arrives.
fn arrives(
    sim: &mut TwoStackSim,
    messages: &CapturedFrames,
    pair: (SocketId, SocketId),
    bytes: usize,
) -> bool {
    let (client, server) = pair;
    let fill = |payload: &mut [u8]| {
        for (number, slot) in payload.iter_mut().enumerate() {
            *slot = pattern_byte(number);
        }
    };
    let to = Some(socket_address(REMOTE_V6, 7));
    assert_eq!(
        expect_ready(sim.local.udp_send(client, to, bytes, fill)),
        bytes
    );
    for _ in 0..200 {
        sim.poll();
        sim.advance();
        deliver_messages(sim, messages);
    }
    match sim
        .remote
        .udp_receive(server, |payload, _| payload.to_vec())
    {
        Poll::Ready(got) => {
            let expected: Vec<u8> = (0..bytes).map(pattern_byte).collect();
            assert!(got.unwrap() == expected, "{bytes} B are others");
            true
        }
        Poll::Pending => false,
    }
}

/// IPv6 routers do not fragment: without this, no datagram would reach a destination behind a link
/// with a smaller MTU.
#[test]
fn fragments_fit_the_path_mtu() {
    for connected in [false, true] {
        // One that fits the local link, and one that is fragmented anyway.
        for first in [1_400, 5_000] {
            let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
            let messages = put_router(&mut sim, 1_300, Some(1_300));
            let pair = bind_sockets(&mut sim, connected);
            let reductions = |sim: &TwoStackSim| sim.local.counters().ip.path_mtu_reported;
            assert!(arrives(&mut sim, &messages, pair, 100));
            assert!(!arrives(&mut sim, &messages, pair, first));
            assert_eq!(reductions(&sim), 1);
            for bytes in [first, 1_252, 1_253, 1_400, 1_452, 1_453, 20_000] {
                assert!(arrives(&mut sim, &messages, pair, bytes), "{bytes} B");
            }
            assert_eq!(reductions(&sim), 1);
            assert!(messages.borrow().is_empty());
            // The entry expires, and is learned again.
            sim.now += PMTU_LIFETIME_NS;
            sim.poll();
            assert!(!arrives(&mut sim, &messages, pair, first));
            assert_eq!(reductions(&sim), 2);
            assert!(arrives(&mut sim, &messages, pair, first));
        }
    }
}

#[test]
fn an_unfragmentable_datagram_is_rejected_once_the_path_mtu_is_known() {
    let mut sim =
        TwoStackSim::symmetric(&["ip.fragmentation=off"], LinkModel::CLEAN).after_announcements();
    let messages = put_router(&mut sim, 1_300, Some(1_300));
    let pair = bind_sockets(&mut sim, true);
    assert!(!arrives(&mut sim, &messages, pair, 1_400));
    let result = sim.local.udp_send(pair.0, None, 1_400, |_| ());
    assert!(
        matches!(
            result,
            Poll::Ready(Err(StackError::TooLong { limit: 1_252, .. }))
        ),
        "{result:?}"
    );
    assert!(arrives(&mut sim, &messages, pair, 1_252));
    // The limit of the local link applies to other destinations.
    let other_address = socket_address("fd00::77", 7);
    assert!(
        sim.local
            .udp_send(pair.0, Some(other_address), 1_452, |_| ())
            .is_ready()
    );
}

/// Any host can send Packet Too Big: a message about a packet that no socket sent is ignored, and
/// none reduces packets below the minimum MTU.
#[test]
fn messages_about_packets_not_sent_are_ignored() {
    // Offsets in the frame.
    const FROM: usize = ETHERNET_BYTES + 8 + 15;
    const TO: usize = ETHERNET_BYTES + 24 + 15;
    const PORTS: usize = ETHERNET_BYTES + V6_BYTES;
    let cases = [
        ("as it is", 1_300, None, 1_300),
        ("hardly any MTU", 68, None, 1_280),
        ("a link that takes it", 1_448, None, 1_500),
        ("another host", 1_300, Some(TO), 1_500),
        ("from another one", 1_300, Some(FROM), 1_500),
        ("a port without a socket", 1_300, Some(PORTS + 1), 1_500),
        ("a port that was not sent to", 1_300, Some(PORTS + 3), 1_500),
        (
            "an unknown protocol",
            1_300,
            Some(ETHERNET_BYTES + 6),
            1_500,
        ),
    ];
    // Also for an unconnected socket.
    let cases = cases.map(|label| [(true, label), (false, label)]);
    for (connected, (variant, mtu, position, mtu_then)) in cases.into_iter().flatten() {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
        let captured = sim.capture(|end, frame| end == 0 && frame.len() > 1_000);
        let pair = bind_sockets(&mut sim, connected);
        let no_messages = CapturedFrames::default();
        assert!(arrives(&mut sim, &no_messages, pair, 1_400), "{variant}");
        let mut frame = captured.take().remove(0);
        if let Some(position) = position {
            frame[position] ^= 0x40;
        }
        let mut message = packet_too_big(&frame, mtu);
        // Addressed to the local stack whatever the quoted sender is.
        message[..6].copy_from_slice(&sim.local.ethernet_address());
        let local_address: std::net::Ipv6Addr = LOCAL_V6.parse().unwrap();
        message[ETHERNET_BYTES + 24..ETHERNET_BYTES + V6_BYTES]
            .copy_from_slice(&local_address.octets());
        complete(&mut message);
        sim.wire.deliver(0, &message);
        sim.run(3);
        assert!(arrives(&mut sim, &no_messages, pair, 1_452), "{variant}");
        let longest = captured.borrow().iter().map(Vec::len).max().unwrap() - ETHERNET_BYTES;
        // All fragments but the last hold a multiple of eight bytes.
        let expected = if mtu_then == 1_500 {
            1_500
        } else {
            48 + (mtu_then - 48) / 8 * 8
        };
        assert_eq!(longest, expected, "{variant}");
        let reductions = sim.local.counters().ip.path_mtu_reported;
        assert_eq!(reductions, u64::from(mtu_then != 1_500), "{variant}");
        assert_eq!(sim.local.counters().icmp.in_checksum_errors, 0, "{variant}");
    }
}

#[test]
fn echo_replies_fit_the_path_mtu() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let messages = put_router(&mut sim, 1_300, Some(1_300));
    let mut replies = Vec::new();
    for _ in 0..3 {
        let before = sim.remote.counters();
        let request = ping(sim.local.ethernet_address(), (REMOTE_V6, LOCAL_V6), 1_400);
        sim.wire.deliver(0, &request);
        for _ in 0..200 {
            sim.poll();
            sim.advance();
            deliver_messages(&mut sim, &messages);
        }
        let since = sim.remote.counters().since(&before);
        replies.push(since.ip.reassembly_ok);
    }
    // The first reply taught the path MTU.
    assert_eq!(replies, [0, 1, 1]);
    assert_eq!(sim.local.counters().ip.path_mtu_reported, 1);
    assert_eq!(sim.local.counters().icmp.out_echo_replies, 3);
    assert_eq!(sim.remote.counters().icmp.in_checksum_errors, 0);
    // A reply to another host is not one of ours; a valid one may be older than later replies.
    for (address_change, expected) in [(0x40, 0), (0, 1)] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
        let captured = sim.capture(|end, frame| end == 0 && frame.len() > 1_000);
        let ethernet = sim.local.ethernet_address();
        for host in [REMOTE_V6, "fd00::77"] {
            (sim.wire).deliver(0, &ping(ethernet, (host, LOCAL_V6), 1_400));
            sim.run(50);
        }
        let mut reply = captured.take().remove(0);
        reply[ETHERNET_BYTES + 24 + 15] ^= address_change;
        sim.wire.deliver(0, &packet_too_big(&reply, 1_300));
        sim.run(3);
        assert_eq!(sim.local.counters().ip.path_mtu_reported, expected);
    }
}

/// No router reports a packet of the minimum MTU as too long.
#[test]
fn messages_about_short_datagrams_are_ignored() {
    for (bytes, expected) in [(1_232, 0), (1_233, 1)] {
        let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
        let captured = sim.capture(|end, frame| end == 0 && frame.len() > 1_000);
        let pair = bind_sockets(&mut sim, true);
        assert!(arrives(&mut sim, &CapturedFrames::default(), pair, bytes));
        // The message claims that it was longer.
        let mut frame = captured.take().remove(0);
        frame[ETHERNET_BYTES + 4..ETHERNET_BYTES + 6].copy_from_slice(&1_450u16.to_be_bytes());
        sim.wire.deliver(0, &packet_too_big(&frame, 1_300));
        sim.run(3);
        assert_eq!(
            sim.local.counters().ip.path_mtu_reported,
            expected,
            "{bytes} B"
        );
    }
}
