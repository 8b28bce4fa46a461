//! TCP between two stacks in simulated time: lossy links, slow readers and aborted connections.

use std::fmt::Write;
use std::task::Poll;

use crate::common::{
    BulkTransfer, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, config, expect_ready,
    socket_address,
};
use linerate_stack::{SocketId, StackError, TcpState};

fn transfer_in_both_directions(
    sim: &mut TwoStackSim,
    seconds: u64,
    local_bytes: usize,
    remote_bytes: usize,
) -> (BulkTransfer, BulkTransfer) {
    let (client, server) = sim.connect(80);
    let mut local = BulkTransfer::new(client, local_bytes);
    let mut remote = BulkTransfer::new(server, remote_bytes);
    sim.run_until(seconds, |sim| {
        local.step(&mut sim.local);
        remote.step(&mut sim.remote);
        local.has_received_end && remote.has_received_end
    });
    assert_eq!(
        (local.received, remote.received),
        (remote_bytes, local_bytes)
    );
    (local, remote)
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
        let link = LinkModel {
            loss,
            duplicate,
            reorder,
            shuffle_ns: 300_000,
            seed: 40 + number,
            ..LinkModel::CLEAN
        };
        let mut sim =
            TwoStackSim::symmetric(&["tcp.send_buffer=64K", "tcp.receive_window=64K"], link);
        transfer_in_both_directions(&mut sim, 600, 400_000, 300_000);
        let counters = sim.local.counters().tcp;
        if loss >= 10_000 {
            assert!(counters.retransmitted_segments > 0, "{link:?}");
        }
        // Segments of any length are lost; no loss counts as a path MTU problem.
        let remote = sim.remote.counters().tcp;
        let guesses = (counters.path_mtu_guesses, remote.path_mtu_guesses);
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
        let mut sim = TwoStackSim::symmetric(settings, LinkModel::CLEAN);
        transfer_in_both_directions(&mut sim, 120, 300_000, 200_000);
    }
}

#[test]
fn psh_is_as_configured_and_sums_stay_right() {
    for (setting, expected) in [
        ("tcp.psh=never", [false, false]),
        ("tcp.psh=always", [true, true]),
        ("tcp.psh=buffer-empty", [false, true]),
    ] {
        let mut sim = TwoStackSim::symmetric(&[setting, "tcp.nagle=off"], LinkModel::CLEAN);
        let (client, server) = sim.connect(80);
        let captured = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let frames = captured.clone();
        sim.wire.filter = Box::new(move |end, frame| {
            let payload = frame.len() > 54 && frame[12..14] == [8, 0];
            if end == 0 && payload {
                frames.borrow_mut().push(frame[47] & 8 != 0);
            }
            true
        });
        // Two segments: the first does not empty the buffer, the second does.
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(2000)));
        sim.run_until(5, |sim| {
            let got = sim.remote.tcp_queued(server).unwrap().1;
            got == 2000
        });
        assert_eq!(*captured.borrow(), expected, "{setting}");
        assert_eq!(sim.remote.counters().tcp.in_checksum_errors, 0);
    }
}

/// Payload of the longest segment that each stack sent, and the traffic classes of all packets.
type CapturedTraffic = ([usize; 2], [Vec<u8>; 2]);

fn capture_traffic(local_settings: &[&str], remote_settings: &[&str], v6: bool) -> CapturedTraffic {
    let mut sim = TwoStackSim::new(
        &config(local_settings),
        &config(remote_settings),
        LinkModel::CLEAN,
    );
    let captured = std::rc::Rc::new(std::cell::RefCell::new(CapturedTraffic::default()));
    let traffic = captured.clone();
    sim.wire.filter = Box::new(move |end, frame| {
        let (tos, tcp) = match (frame[12], frame[13]) {
            (8, 0) if frame[23] == 6 => (frame[15], 34),
            (0x86, 0xdd) if frame[20] == 6 => (frame[14] << 4 | frame[15] >> 4, 54),
            _ => return true,
        };
        let payload = frame.len() - tcp - usize::from(frame[tcp + 12] >> 4) * 4;
        let (largest, classes) = &mut *traffic.borrow_mut();
        largest[end] = largest[end].max(payload);
        classes[end].push(tos);
        true
    });
    let listener = sim.remote.tcp_listen(any_address(80), 1).unwrap();
    let to = socket_address(if v6 { REMOTE_V6 } else { REMOTE }, 80);
    let (client, server) = sim.connect_to(listener, to);
    for (end, socket) in [(0, client), (1, server)] {
        let stack = if end == 0 {
            &mut sim.local
        } else {
            &mut sim.remote
        };
        expect_ready(stack.tcp_send(socket, |space| space.len().min(5_000)));
    }
    sim.run_until(5, |sim| {
        let received =
            |stack: &mut linerate_stack::Stack, socket| stack.tcp_queued(socket).unwrap().1;
        received(&mut sim.remote, server) == 5_000 && received(&mut sim.local, client) == 5_000
    });
    for stack in [&sim.local, &sim.remote] {
        let counters = stack.counters();
        assert_eq!(counters.tcp.in_checksum_errors, 0);
        assert_eq!(counters.ip.in_header_errors, 0);
    }
    captured.take()
}

#[test]
fn segments_follow_the_smaller_maximum_segment_size() {
    for v6 in [false, true] {
        let full_segment = if v6 { 1_440 } else { 1_460 };
        for (local_settings, remote_settings, longest) in [
            (&[][..], &[][..], [full_segment; 2]),
            // A stack's limit holds in both directions: for segments sent, and as the announced
            // MSS.
            (&["tcp.mss=600"], &[], [600; 2]),
            (&[], &["tcp.mss=536"], [536; 2]),
            (&["tcp.mss=1000"], &["tcp.mss=88"], [88; 2]),
            (&["tcp.mss=9000"], &[], [full_segment; 2]),
        ] {
            let (lengths, _) = capture_traffic(local_settings, remote_settings, v6);
            assert_eq!(
                lengths, longest,
                "{local_settings:?} {remote_settings:?} IPv6 {v6}"
            );
        }
    }
}

#[test]
fn segments_carry_the_class_of_service_of_their_end() {
    for v6 in [false, true] {
        let (_, [local, remote]) = capture_traffic(&["ip.tos=184"], &[], v6);
        assert!(
            !local.is_empty() && local.iter().all(|tos| *tos == 184),
            "{local:?}"
        );
        assert!(
            !remote.is_empty() && remote.iter().all(|tos| *tos == 0),
            "{remote:?}"
        );
    }
}

#[test]
fn one_direction_ends_before_the_other() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    sim.local.tcp_finish(client).unwrap();
    let mut has_ended = false;
    sim.run_until(5, |sim| {
        if let Poll::Ready(got) = sim.remote.tcp_receive(server, |bytes| (0, bytes.len())) {
            assert_eq!(got.unwrap(), 0);
            has_ended = true;
        }
        has_ended
    });
    assert_eq!(
        sim.remote.tcp_state(server).unwrap(),
        TcpState::RemoteFinished
    );
    let sent = sim.local.tcp_send(client, |_| 1);
    assert!(matches!(sent, Poll::Ready(Err(StackError::SendFinished))));
    // The peer still sends much data.
    let mut remote = BulkTransfer::new(server, 500_000);
    remote.has_received_end = true;
    let mut local = BulkTransfer::new(client, 0);
    sim.run_until(30, |sim| {
        remote.step(&mut sim.remote);
        let mut captured = 0;
        if let Poll::Ready(got) = sim
            .local
            .tcp_receive(client, |bytes| (bytes.len(), bytes.len()))
        {
            captured = got.unwrap();
            local.has_received_end |= captured == 0;
        }
        local.received += captured;
        local.has_received_end
    });
    assert_eq!(local.received, 500_000);
    sim.local.close(client).unwrap();
    sim.remote.close(server).unwrap();
    sim.run_until(60, |sim| {
        sim.local.connection_count() + sim.remote.connection_count() == 0
    });
}

#[test]
fn a_reset_is_reported() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(10)));
    sim.run(20);
    sim.local.abort(client).unwrap();
    sim.run_until(5, |sim| {
        sim.remote.tcp_state(server).unwrap() == TcpState::Closed
    });
    // Data received before the reset can still be read, as smoltcp keeps it; then the error
    // follows.
    let _ = sim
        .remote
        .tcp_receive(server, |bytes| (bytes.len(), bytes.len()));
    let got = sim.remote.tcp_receive(server, |bytes| (bytes.len(), ()));
    assert!(
        matches!(got, Poll::Ready(Err(StackError::ConnectionReset))),
        "{got:?}"
    );
    assert_eq!(sim.remote.counters().tcp.established_resets, 1);
    assert_eq!(sim.local.counters().tcp.out_resets, 1);
    sim.remote.close(server).unwrap();
    sim.run_until(5, |sim| {
        sim.local.connection_count() + sim.remote.connection_count() == 0
    });

    // Closing with unread payload resets the connection (RFC 2525, section 2.17).
    let (client, server) = sim.connect(81);
    expect_ready(sim.local.tcp_send(client, |space| space.len().min(10)));
    sim.run(20);
    sim.remote.close(server).unwrap();
    sim.run_until(5, |sim| {
        sim.local.tcp_state(client).unwrap() == TcpState::Closed
    });
}

#[test]
fn a_full_window_reopens_even_if_the_update_is_lost() {
    let small = [
        "tcp.receive_window=4096",
        "tcp.send_buffer=16K",
        "tcp.min_rto=200ms",
    ];
    let mut sim = TwoStackSim::symmetric(&small, LinkModel::CLEAN);
    let (client, server) = sim.connect(80);
    let mut local = BulkTransfer::new(client, 50_000);
    local.has_received_end = true;
    for _ in 0..2_000 {
        local.step(&mut sim.local);
        sim.poll();
        sim.advance();
    }
    assert_eq!(
        sim.remote.tcp_queued(server).unwrap().1,
        4096,
        "the window is full"
    );
    let probes = sim.local.counters().tcp.out_segments;
    // For two seconds no segment of the reader arrives: only probes keep the connection alive.
    let muted_until = sim.now + 2_000_000_000;
    let mut remote = BulkTransfer::new(server, 0);
    sim.wire.filter = Box::new(|end, _| end == 0);
    while sim.now < muted_until {
        remote.step(&mut sim.remote);
        sim.poll();
        sim.advance();
    }
    assert!(
        sim.local.counters().tcp.out_segments > probes,
        "a full window is probed"
    );
    sim.wire.filter = Box::new(|_, _| true);
    sim.run_until(60, |sim| {
        local.step(&mut sim.local);
        remote.step(&mut sim.remote);
        remote.has_received_end
    });
    assert_eq!(remote.received, 50_000);
}

/// Both windows are full, and the peer reads nothing until it can send. Only acknowledgements can
/// help, and they lie beyond a window whose edge was rounded down.
#[test]
fn full_windows_in_both_directions_do_not_deadlock() {
    for odd in [1_000_003, 524_289, 99_991] {
        let sizes = format!("tcp.receive_window={odd}");
        let settings = [&sizes, "tcp.send_buffer=2M", "tcp.delayed_ack=off"];
        let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
        let (client, server) = sim.connect(80);
        let mut local = BulkTransfer::new(client, 4_000_000);
        let mut remote = BulkTransfer::new(server, 4_000_000);
        // Neither reads until nothing moves any more.
        (local.has_received_end, remote.has_received_end) = (true, true);
        for _ in 0..3_000 {
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            sim.poll();
            sim.advance();
        }
        // Only the local stack reads; the peer's payload has to get through.
        local.has_received_end = false;
        sim.run_until(60, |sim| {
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            local.received == 4_000_000
        });
        remote.has_received_end = false;
        sim.run_until(60, |sim| {
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            local.has_received_end && remote.has_received_end
        });
        assert_eq!(remote.received, 4_000_000);
    }
}

/// smoltcp's minimum timeout is a second; the stack's is as configured.
#[test]
fn a_lost_tail_is_retransmitted_after_the_configured_time() {
    for (rto_ms, most_ms) in [(1_000, 2_200), (200, 450), (20, 60)] {
        let mut sim =
            TwoStackSim::symmetric(&[&format!("tcp.min_rto={rto_ms}ms")], LinkModel::CLEAN);
        let (client, server) = sim.connect(80);
        let mut dropped = false;
        sim.wire.filter = Box::new(move |end, frame| {
            let first = end == 0 && frame.len() > 60 && !dropped;
            dropped |= first;
            !first
        });
        let start = sim.now;
        expect_ready(sim.local.tcp_send(client, |space| space.len().min(100)));
        sim.run_until(10, |sim| sim.remote.tcp_queued(server).unwrap().1 == 100);
        let elapsed_ms = (sim.now - start) / 1_000_000;
        assert!(
            (rto_ms..most_ms).contains(&elapsed_ms),
            "{rto_ms}: {elapsed_ms}"
        );
        assert_eq!(sim.local.counters().tcp.retransmitted_segments, 1);
    }
}

/// Drops frames with payload of the local stack: each entry is the number of a frame, and how many
/// of its transmissions are lost.
fn drop_frames(sim: &mut TwoStackSim, lost: &'static [(usize, usize)], windows_grow: bool) {
    const PAYLOAD: usize = 1_000;
    let (mut sequences, mut times) = (Vec::<u32>::new(), Vec::<usize>::new());
    let mut acknowledgements = 0u16;
    sim.wire.filter = Box::new(move |end, frame| {
        if end == 1 && windows_grow {
            // Linux widens its window while it receives.
            acknowledgements += 1;
            let window = u16::from_be_bytes([frame[48], frame[49]]);
            let window = window.saturating_sub(acknowledgements % 50);
            frame[48..50].copy_from_slice(&window.to_be_bytes());
        }
        if end == 1 || frame.len() < PAYLOAD {
            return true;
        }
        let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
        let position = sequences.iter().position(|sent| *sent == sequence);
        let position = position.unwrap_or_else(|| {
            sequences.push(sequence);
            times.push(0);
            sequences.len() - 1
        });
        times[position] += 1;
        let lost_frame = lost.iter().find(|(number, _)| *number == position);
        lost_frame.is_none_or(|(_, times_lost)| times[position] > *times_lost)
    });
}

/// Losses in the middle of a stream cost round trips, and no timeout.
#[test]
fn losses_are_recovered_before_the_timeout() {
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
            let link = LinkModel {
                delay_ns: 500_000,
                ..LinkModel::CLEAN
            };
            let mut sim = TwoStackSim::symmetric(&settings, link);
            let (client, server) = sim.connect(80);
            drop_frames(&mut sim, lost, windows_grow);
            let start = sim.now;
            let (mut local, mut remote) = (
                BulkTransfer::new(client, 400_000),
                BulkTransfer::new(server, 0),
            );
            local.has_received_end = true;
            sim.run_until(60, |sim| {
                local.step(&mut sim.local);
                remote.step(&mut sim.remote);
                remote.has_received_end
            });
            assert_eq!(remote.received, 400_000);
            let elapsed_ms = (sim.now - start) / 1_000_000;
            assert!(
                elapsed_ms < 500,
                "{lost:?}, {windows_grow}: {elapsed_ms} ms"
            );
            let retransmitted = sim.local.counters().tcp.retransmitted_segments as usize;
            let least: usize = lost.iter().map(|(_, times_lost)| times_lost).sum();
            assert!(
                (least..=2 * least + 2).contains(&retransmitted),
                "{lost:?}: {retransmitted}"
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
        let link = LinkModel {
            delay_ns: 500_000,
            ..LinkModel::CLEAN
        };
        for acks_are_lost in [false, true] {
            let mut sim = TwoStackSim::symmetric(&settings, link);
            let (client, server) = sim.connect(80);
            let mut acknowledgements = 0;
            match acks_are_lost {
                // So early that it covers everything in flight.
                true => {
                    sim.wire.filter = Box::new(move |end, _| {
                        acknowledgements += usize::from(end == 1);
                        end == 0 || acknowledgements != 6
                    });
                }
                false => drop_frames(&mut sim, &[(270, 1), (271, 1), (272, 1)], false),
            }
            let start = sim.now;
            let mut local = BulkTransfer::new(client, 400_000);
            local.has_received_end = true;
            // The peer does not finish here: losses after that have a test of their own.
            let mut received = 0;
            sim.run_until(60, |sim| {
                local.step(&mut sim.local);
                let take = |bytes: &[u8]| (bytes.len(), bytes.len());
                if let Poll::Ready(got) = sim.remote.tcp_receive(server, take) {
                    received += got.unwrap();
                }
                received == 400_000
            });
            let elapsed_ms = (sim.now - start) / 1_000_000;
            let has_timed_out = elapsed_ms >= 1_000;
            assert!(
                elapsed_ms < most_ms,
                "{probe}, {acks_are_lost}: {elapsed_ms} ms"
            );
            assert_eq!(
                has_timed_out,
                probe == "off",
                "{probe}, {acks_are_lost}: {elapsed_ms} ms"
            );
        }
    }
}

/// Losses of the last data of a finished stream, whichever end finished first, before or after the
/// data left.
#[test]
fn losses_at_the_end_of_a_finished_stream_are_recovered_before_the_timeout() {
    const BYTES: usize = 400_000;
    for lost in [
        &[][..],
        // As in the middle of a stream, and a tail without any acknowledgement.
        &[(262, 1)],
        &[(262, 1), (265, 2), (268, 1)],
        &[(272, 1), (273, 1), (274, 1)],
    ] {
        for (remote_first, sent_first) in
            [(false, false), (true, false), (false, true), (true, true)]
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
            let link = LinkModel {
                delay_ns: 5_000_000,
                ..LinkModel::CLEAN
            };
            let mut sim = TwoStackSim::symmetric(&settings, link);
            let (client, server) = sim.connect(80);
            // A first exchange, so that the scaled window is known.
            expect_ready(sim.local.tcp_send(client, |_| 1));
            sim.run_until(5, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
            expect_ready(sim.remote.tcp_receive(server, |_| (1, ())));
            if remote_first {
                sim.remote.tcp_finish(server).unwrap();
                sim.run_until(5, |sim| {
                    sim.local.tcp_state(client).unwrap() == TcpState::RemoteFinished
                });
            }
            drop_frames(&mut sim, lost, false);
            let name = format!("lost {lost:?}, far first {remote_first}, sent first {sent_first}");
            let start = sim.now;
            let before = sim.local.counters();
            let mut written = 0;
            while written < BYTES {
                written += expect_ready(
                    sim.local
                        .tcp_send(client, |space| space.len().min(BYTES - written)),
                );
            }
            if sent_first {
                // Everything is in flight, and nothing acknowledged.
                for _ in 0..20 {
                    sim.poll();
                }
            }
            sim.local.tcp_finish(client).unwrap();
            let sent = sim.local.tcp_send(client, |_| 1);
            assert!(
                matches!(sent, Poll::Ready(Err(StackError::SendFinished))),
                "{name}"
            );
            let (mut received, mut has_ended) = (0, false);
            sim.run_until(60, |sim| {
                while let Poll::Ready(got) = sim
                    .remote
                    .tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
                {
                    let count = got.unwrap();
                    received += count;
                    has_ended = count == 0;
                    if has_ended {
                        break;
                    }
                }
                has_ended
            });
            let elapsed_ms = (sim.now - start) / 1_000_000;
            assert_eq!(received, BYTES, "{name}");
            assert!(elapsed_ms < 500, "{name}: {elapsed_ms} ms");
            let spent = sim.local.counters().since(&before).tcp;
            let spent = (spent.out_segments, spent.retransmitted_segments);
            if lost.is_empty() {
                assert_eq!(spent, (274 + u64::from(sent_first), 0), "{name}");
                assert!(
                    elapsed_ms <= 8,
                    "{name}: {elapsed_ms} ms, one way alone takes 5"
                );
            }
            sim.local.close(client).unwrap();
            sim.remote.close(server).unwrap();
            sim.run_until(70, |sim| {
                sim.local.connection_count() + sim.remote.connection_count() == 0
            });
        }
    }
}

/// Reordered frames are not losses: hardly any segment is sent twice.
#[test]
fn reordered_frames_are_seldom_retransmitted() {
    let link = LinkModel {
        delay_ns: 500_000,
        reorder: 20_000,
        shuffle_ns: 300_000,
        seed: 5,
        ..LinkModel::CLEAN
    };
    let settings = ["tcp.send_buffer=64K", "tcp.receive_window=64K"];
    let mut sim = TwoStackSim::symmetric(&settings, link);
    let (client, server) = sim.connect(80);
    let (mut local, mut remote) = (
        BulkTransfer::new(client, 2_000_000),
        BulkTransfer::new(server, 0),
    );
    local.has_received_end = true;
    sim.run_until(60, |sim| {
        local.step(&mut sim.local);
        remote.step(&mut sim.remote);
        remote.has_received_end
    });
    let counters = sim.local.counters().tcp;
    let share = counters.retransmitted_segments as f64 / counters.out_segments as f64;
    assert!(share < 0.04, "{counters:#?}");
}

/// Small rings at both ends, both full of payload: receiving never waits for transmit space.
#[test]
fn full_rings_do_not_deadlock() {
    for descriptors in [1, 4, 8, 32] {
        let settings = format!("tx_descriptors={descriptors}");
        let mut sim = TwoStackSim::symmetric(&[&settings, "rx_descriptors=2"], LinkModel::CLEAN);
        transfer_in_both_directions(&mut sim, 300, 200_000, 200_000);
    }
}

#[test]
fn a_listener_keeps_its_backlog() {
    let mut sim =
        TwoStackSim::symmetric(&["sockets.tcp=64", "tcp.min_rto=200ms"], LinkModel::CLEAN);
    let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
    let clients: Vec<SocketId> = (0..10)
        .map(|_| {
            sim.local
                .tcp_connect(socket_address(REMOTE, 80), None)
                .unwrap()
        })
        .collect();
    sim.run(3_000);
    assert!(sim.remote.counters().tcp.listen_overflows >= 6);
    assert_eq!(sim.remote.connection_count(), 4);
    // Clients that were not answered retransmit their SYN, and are served once there is space.
    let mut accepted = 0;
    sim.run_until(60, |sim| {
        while let Poll::Ready(socket) = sim.remote.tcp_accept(listener) {
            socket.unwrap();
            accepted += 1;
        }
        let is_established =
            |client: &SocketId| sim.local.tcp_state(*client).unwrap() == TcpState::Established;
        accepted == 10 && clients.iter().all(is_established)
    });
    sim.remote.close(listener).unwrap();
    let late_client = sim
        .local
        .tcp_connect(socket_address(REMOTE, 80), None)
        .unwrap();
    sim.run_until(5, |sim| {
        sim.local.tcp_state(late_client).unwrap() == TcpState::Closed
    });
}

#[test]
fn a_thousand_connections_one_after_the_other() {
    let mut sim = TwoStackSim::symmetric(&["sockets.tcp=16"], LinkModel::CLEAN);
    let listener = sim.remote.tcp_listen(any_address(80), 4).unwrap();
    for number in 0..1_000 {
        let (client, server) = sim.connect_to(listener, socket_address(REMOTE, 80));
        expect_ready(sim.local.tcp_send(client, |space| {
            space[0] = number as u8;
            1
        }));
        sim.run_until(5, |sim| sim.remote.tcp_queued(server).unwrap().1 == 1);
        let got = expect_ready(sim.remote.tcp_receive(server, |bytes| (1, bytes[0])));
        assert_eq!(got, number as u8);
        sim.local.close(client).unwrap();
        sim.run(3);
        sim.remote.close(server).unwrap();
    }
    assert_eq!(sim.remote.counters().tcp.passive_opens, 1_000);
    assert_eq!(sim.local.counters().tcp.active_opens, 1_000);
    assert_eq!(sim.local.counters().tcp.established_resets, 0);
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
        let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
        let listener = sim.remote.tcp_listen(any_address(80), 10_000).unwrap();
        let mut sockets = Vec::new();
        while sockets.len() < idle {
            let more = (idle - sockets.len()).min(500);
            for _ in 0..more {
                sim.local
                    .tcp_connect(socket_address(REMOTE, 80), None)
                    .unwrap();
            }
            let target = sockets.len() + more;
            sim.run_until(60, |sim| {
                while let Poll::Ready(socket) = sim.remote.tcp_accept(listener) {
                    sockets.push(socket.unwrap());
                }
                sockets.len() == target
            });
        }
        let (client, server) = sim.connect_to(listener, socket_address(REMOTE, 80));
        // Timers of earlier acknowledgements expire once.
        sim.run(1_500);
        let before = sim.remote.counters();
        for _ in 0..100 {
            expect_ready(sim.local.tcp_send(client, |space| {
                space[..64].fill(1);
                64
            }));
            sim.run_until(5, |sim| sim.remote.tcp_queued(server).unwrap().1 == 64);
            assert_eq!(
                expect_ready(sim.remote.tcp_receive(server, |bytes| (64, bytes.len()))),
                64
            );
            sim.run_until(5, |sim| sim.local.tcp_queued(client).unwrap().0 == 0);
        }
        let spent = sim.remote.counters().since(&before).tcp;
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
            let mut elapsed_ns = 0;
            for seed in SEEDS {
                let link = LinkModel {
                    loss,
                    delay_ns: 500_000,
                    seed,
                    ..LinkModel::CLEAN
                };
                let sizes = [
                    format!("tcp.send_buffer={kib}K"),
                    format!("tcp.receive_window={kib}K"),
                ];
                let mut sim = TwoStackSim::symmetric(&[&sizes[0], &sizes[1]], link);
                let (client, server) = sim.connect(80);
                let start = sim.now;
                let mut local = BulkTransfer::new(client, BYTES + (1 << 20));
                local.has_received_end = true;
                let mut remote = BulkTransfer::new(server, 0);
                sim.run_until(600, |sim| {
                    local.step(&mut sim.local);
                    remote.step(&mut sim.remote);
                    remote.received >= BYTES
                });
                elapsed_ns += sim.now - start;
                // No loss counted as a path MTU problem.
                let guesses = sim.local.counters().tcp.path_mtu_guesses;
                assert_eq!(guesses, 0, "{kib} KiB, loss {loss}, seed {seed}");
            }
            let rate = (SEEDS.len() * BYTES) as f64 * 8e3 / elapsed_ns as f64;
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
