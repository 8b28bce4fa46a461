//! Payload at full speed or at a rate: every copy mode, with the same counts at both ends.

use linerate_record::plan::{Direction, UdpOffload};

use super::*;

#[test]
fn io_uring_moves_whatever_the_others_do() {
    let server = TestServer::start(false);
    for (protocol, streams, bytes, offload, wait) in [
        (TransportProtocol::Tcp, 1, 1 << 20, false, "io-uring"),
        (TransportProtocol::Tcp, 1, 100, false, "io-uring/block"),
        (TransportProtocol::Tcp, 5, 70_000, false, "block/io-uring"),
        (TransportProtocol::Udp, 1, 1_472, true, "io-uring"),
        (TransportProtocol::Udp, 1, 16, false, "io-uring"),
        (TransportProtocol::Udp, 4, 1_000, true, "io-uring"),
        (TransportProtocol::Udp, 1, 9_000, false, "io-uring/spin"),
    ] {
        for direction in [Direction::Send, Direction::Receive] {
            for calls in [false, true] {
                let mut plan = server.plan(RunKind::Throughput, protocol);
                plan.duration_ns = Some(150_000_000);
                plan.directions = vec![direction];
                plan.streams = streams;
                plan.payload_bytes = bytes;
                plan.verify = true;
                plan.calls = calls;
                plan.udp_offload = UdpOffload {
                    gso: Some(offload),
                    gro: Some(offload),
                    requested: true,
                };
                plan.wait = Some(wait.parse().unwrap());
                let context = format!("{protocol} {streams} {bytes} {wait} {direction} {calls}");
                let Some(record) = run_if_possible(plan) else {
                    return;
                };
                let summary = &record.summary;
                assert_eq!(summary.mismatched, Some(0), "{context}: {summary:?}");
                assert!(summary.bytes_received > Some(0), "{context}");
                match protocol {
                    TransportProtocol::Tcp => {
                        assert_eq!(summary.bytes_sent, summary.bytes_received, "{context}");
                    }
                    TransportProtocol::Udp => {
                        let sent = summary.packets_sent.unwrap();
                        let received = summary.packets_received.unwrap();
                        assert_eq!(sent, received + summary.lost.unwrap(), "{context}");
                    }
                }
                if calls {
                    let by_ring = [&record.calls, &record.server_calls];
                    let named = by_ring.iter().any(|c| c.contains_key("io_uring_enter"));
                    assert!(named, "{context}");
                }
            }
        }
    }
    server.end().unwrap();
}

#[test]
fn tcp_in_both_directions_counts_the_same_bytes_at_both_ends() {
    let server = TestServer::start(false);
    for directions in [
        vec![Direction::Send],
        vec![Direction::Receive],
        vec![Direction::Send, Direction::Receive],
    ] {
        let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
        plan.directions.clone_from(&directions);
        plan.streams = 2;
        let record = run(plan);
        assert_eq!(record.directions.len(), directions.len());
        for direction in &record.directions {
            let summary = &direction.summary;
            assert_eq!(summary.bytes_sent, summary.bytes_received, "{summary:?}");
            assert!(summary.goodput_bps.unwrap() > 1e6);
            assert_eq!(direction.streams.len(), 2);
            assert!(
                direction
                    .streams
                    .iter()
                    .all(|s| s.sender.is_some() && s.receiver.is_some())
            );
        }
        assert!(
            record.intervals.len() >= 2 * directions.len(),
            "{:?}",
            record.intervals
        );
        let sum: u64 = record.intervals.iter().map(|interval| interval.bytes).sum();
        assert_eq!(Some(sum), record.summary.bytes_received);
        assert_eq!(record.hosts.len(), 2);
        assert_eq!(record.summary.cpu.len(), 2);
    }
    server.end().unwrap();
}

#[test]
fn udp_accounts_for_every_datagram() {
    let server = TestServer::start(false);
    for (direction, wait) in [
        (Direction::Send, WaitMode::Block),
        (Direction::Receive, WaitMode::Block),
        (Direction::Send, WaitMode::Spin),
        (Direction::Receive, WaitMode::Spin),
    ] {
        let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Udp);
        plan.directions = vec![direction];
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(40_000_000);
        plan.wait = Some(PerEnd::same(wait));
        let record = run(plan);
        let summary = &record.summary;
        let (sent, received) = (
            summary.packets_sent.unwrap(),
            summary.packets_received.unwrap(),
        );
        assert_eq!(sent, received + summary.lost.unwrap(), "{summary:?}");
        assert_eq!(summary.bytes_received.unwrap(), received * 1000);
        // 40 Mb/s for 0.3 s are 1500 datagrams; a busy machine may lose some of that time.
        assert!((500..=1_600).contains(&sent), "{sent}");
        assert!(summary.ipdv_ns.is_some());
        let placed: u64 = record.losses.iter().map(|loss| loss.packets).sum();
        assert_eq!(placed, summary.lost.unwrap());
    }
    server.end().unwrap();
}

#[test]
fn udp_in_bursts_counts_datagrams() {
    let server = TestServer::start(false);
    for (gso, gro, wait) in [
        (true, true, "spin"),
        (true, true, "block"),
        (true, false, "spin"),
        (false, true, "epoll"),
        (false, false, "poll"),
    ] {
        // Small ones reach the kernel's limit of datagrams in one send, not that of its bytes.
        for bytes in [1, 16, 64, 100, 1472] {
            let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Udp);
            plan.duration_ns = Some(150_000_000);
            plan.payload_bytes = bytes;
            plan.udp_offload = UdpOffload {
                gso: Some(gso),
                gro: Some(gro),
                requested: true,
            };
            plan.wait = Some(wait.parse().unwrap());
            let record = run(plan);
            let summary = &record.summary;
            let (sent, received) = (
                summary.packets_sent.unwrap(),
                summary.packets_received.unwrap(),
            );
            assert_eq!(
                sent,
                received + summary.lost.unwrap(),
                "{gso} {gro} {wait} {bytes}"
            );
            assert_eq!(summary.bytes_received.unwrap(), received * bytes);
            assert_eq!(summary.bytes_sent.unwrap(), sent * bytes);
            assert_eq!(summary.out_of_order, (bytes >= 16).then_some(0));
            let sender = record.directions[0].streams[0].sender.as_ref().unwrap();
            assert_eq!(sender.datagrams_per_call.is_some(), gso);
        }
    }
    server.end().unwrap();
}

#[test]
fn udp_in_batches_counts_datagrams() {
    let server = TestServer::start(false);
    for (batch, wait) in [
        (1, "block"),
        (7, "spin"),
        (64, "block/spin"),
        (1024, "epoll"),
    ] {
        for bytes in [1, 16, 1472] {
            for direction in [Direction::Send, Direction::Receive] {
                let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Udp);
                plan.duration_ns = Some(100_000_000);
                plan.directions = vec![direction];
                plan.payload_bytes = bytes;
                plan.batch = Some(batch);
                plan.wait = Some(wait.parse().unwrap());
                let record = run(plan);
                let summary = &record.summary;
                let context = format!("{batch} {wait} {bytes} {direction}: {summary:?}");
                let (sent, received) = (
                    summary.packets_sent.unwrap(),
                    summary.packets_received.unwrap(),
                );
                assert_eq!(sent, received + summary.lost.unwrap(), "{context}");
                assert!(received > 0, "{context}");
                assert_eq!(
                    summary.bytes_received.unwrap(),
                    received * bytes,
                    "{context}"
                );
                assert_eq!(summary.bytes_sent.unwrap(), sent * bytes, "{context}");
                assert_eq!(record.plan.udp_offload.gso, Some(false));
                assert_eq!(record.plan.udp_offload.gro, Some(false));
            }
        }
    }
    server.end().unwrap();
}

#[test]
fn throughput_flows_in_every_wait_mode() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        for wait in [
            "block",
            "spin",
            "poll",
            "select",
            "select:50us",
            "epoll",
            "io-uring",
            "busy-poll",
        ] {
            let mut plan = server.plan(RunKind::Throughput, protocol);
            plan.wait = Some(wait.parse().unwrap());
            plan.streams = 3;
            let Some(record) = run_if_possible(plan) else {
                continue;
            };
            assert!(
                record.summary.bytes_received.unwrap() > 0,
                "{protocol} {wait}"
            );
        }
    }
    server.end().unwrap();
}

#[test]
fn the_default_datagram_fills_a_packet() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Udp);
    plan.rate_bps = Some(10_000_000);
    let record = run(plan);
    // Loopback's MTU is larger than any datagram.
    assert_eq!(record.plan.payload_bytes, 65_507);
    server.end().unwrap();
}

#[test]
fn an_amount_arrives_completely() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let mut plan = server.plan(RunKind::Throughput, protocol);
        plan.duration_ns = None;
        plan.amount_bytes = Some(3_000_000);
        plan.streams = 3;
        if protocol == TransportProtocol::Udp {
            plan.payload_bytes = 1000;
            plan.rate_bps = Some(100_000_000);
        }
        let record = run(plan);
        assert_eq!(record.summary.bytes_sent, Some(3_000_000), "{protocol}");
        let received = record.summary.bytes_received.unwrap();
        let lost = record.summary.lost.unwrap_or(0) * 1000;
        assert_eq!(received + lost, 3_000_000, "{protocol}");
    }
    server.end().unwrap();
}

#[test]
fn omitted_time_is_not_counted() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.omit_ns = 150_000_000;
    let record = run(plan);
    let duration = record.summary.duration_ns.unwrap();
    assert!((100_000_000..600_000_000).contains(&duration), "{duration}");
    assert!(record.intervals.iter().any(|interval| interval.omitted));
    let counted: u64 = (record.intervals.iter())
        .filter(|interval| !interval.omitted)
        .map(|interval| interval.bytes)
        .sum();
    let received = record.summary.bytes_received.unwrap();
    // The baseline is read a moment after the interval ends.
    assert!(
        counted.abs_diff(received) <= received / 5,
        "{counted} {received}"
    );
    server.end().unwrap();
}

#[test]
fn short_intervals_add_up_to_the_whole() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let mut plan = server.plan(RunKind::Throughput, protocol);
        plan.interval_ns = Some(10_000_000);
        plan.duration_ns = Some(1_000_000_000);
        plan.directions = vec![Direction::Send, Direction::Receive];
        let record = run(plan);
        for direction in &record.directions {
            let intervals = record.intervals.iter();
            let of_it = intervals.filter(|interval| interval.direction == direction.direction);
            let sum: u64 = of_it.clone().map(|interval| interval.bytes).sum();
            assert_eq!(Some(sum), direction.summary.bytes_received, "{protocol}");
            let sent: u64 = of_it
                .clone()
                .filter_map(|interval| interval.bytes_sent)
                .sum();
            assert_eq!(Some(sent), direction.summary.bytes_sent, "{protocol}");
            let numbers: Vec<u64> = of_it.map(|interval| interval.number).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert!(numbers.last().unwrap().abs_diff(99) <= 1, "{numbers:?}");
        }
    }
    server.end().unwrap();
}

#[test]
fn a_paced_flow_has_the_requested_rate() {
    let server = TestServer::start(false);
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        // One datagram every half second: the window is the run, not the time between payloads.
        let mut plan = server.plan(RunKind::Throughput, protocol);
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(16_000);
        plan.duration_ns = Some(1_200_000_000);
        let record = run(plan);
        assert_eq!(record.summary.bytes_received, Some(3_000), "{protocol}");
        let seconds = record.summary.duration_ns.unwrap() as f64 / 1e9;
        assert!((1.19..1.6).contains(&seconds), "{protocol}: {seconds}");
    }
    server.end().unwrap();
}
