//! Sample throughput runs: TCP and UDP, one or two directions, with and without failures.

use linerate_record::cost::{MemoryCost, StreamInterval, TcpInterval, ThreadShares};
use linerate_record::facts::Role;
use linerate_record::ids::{CaveatId, LossPoint, StoredId};
use linerate_record::plan::{
    Direction, PerEnd, Plan, ReceiveCopy, RunKind, TransportProtocol, WaitMode,
};
use linerate_record::record::{
    Caveat, DirectionFigures, FlowEnd, Interval, PacketLoss, Record, SocketFacts, StreamFigures,
    Summary, TcpFacts, VerificationCost,
};

use super::{Noise, SECOND, block_spin, cpu, empty, interval, times};

fn tcp_stream(id: u32, summary: Summary) -> StreamFigures {
    let (client, server) = (format!("10.77.0.1:{}", 40_000 + id), "10.77.0.2:5201");
    StreamFigures {
        id,
        mismatch: None,
        sender: Some(SocketFacts {
            local: Some(client.clone()),
            remote: Some(server.to_owned()),
            send_buffer_bytes: Some(4_194_304),
            receive_buffer_bytes: Some(131_072),
            congestion_control: Some("cubic".to_owned()),
            receive_queue_drops: None,
            port_unreachable: None,
            unroutable: None,
            send_refused: None,
            datagrams_per_call: None,
            napi_id: None,
            zero_copy: None,
            tcp: Some(TcpFacts {
                retransmits: summary.retransmits.unwrap_or(0),
                cwnd_segments: 874,
                mss_bytes: 1448,
                path_mtu_bytes: 1500,
                rtt_ns: 24_000,
                rtt_variation_ns: 9_000,
                min_rtt_ns: Some(11_000),
                send_window_bytes: None,
                delivery_rate_bps: Some(63_214_000_000),
                busy_ns: Some(9_998_000_000),
                receive_window_limited_ns: Some(120_000_000),
                send_buffer_limited_ns: None,
                retransmitted_bytes: Some(4_344),
                spurious_retransmits: Some(1),
                reordering_seen: Some(0),
                timeouts: Some(0),
                marked: Some(0),
                ecn: Some(false),
            }),
        }),
        receiver: Some(SocketFacts {
            local: Some(server.to_owned()),
            remote: Some(client),
            ..SocketFacts::default()
        }),
        summary,
    }
}

/// TCP over veth: 10 s at about 60 Gb/s, after one omitted second.
pub fn tcp_send() -> Record {
    tcp("20261121T144042Z-3f9a1c", Direction::Send, 61.2e9, 3)
}

/// TCP over veth in the other direction.
pub fn tcp_receive() -> Record {
    tcp("20261121T144054Z-77d0e2", Direction::Receive, 57.4e9, 41)
}

pub(super) fn tcp(id: &str, direction: Direction, goodput: f64, seed: u64) -> Record {
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.77.0.2");
    plan.directions = vec![direction];
    plan.congestion_control = Some("cubic".to_owned());
    plan.omit_ns = SECOND;
    plan.wait = Some(block_spin());
    let mut record = empty(id, plan);
    let mut noise = Noise::new(seed);
    let mut bytes_received = 0;
    for second in 0..11 {
        let ramp = if second == 0 { 0.71 } else { 1.0 };
        let bytes = (goodput / 8.0 * noise.around(0.06) * ramp) as u64;
        bytes_received += if second == 0 { 0 } else { bytes };
        record.intervals.push(Interval {
            number: second,
            start_ns: second * SECOND,
            end_ns: (second + 1) * SECOND,
            direction,
            omitted: second == 0,
            counted_at: FlowEnd::Receiver,
            bytes,
            packets: None,
            calls: Some(bytes / (1 << 20)),
            bytes_sent: Some(bytes + 40_000),
            packets_sent: None,
            lost: None,
            retransmits: Some(if second == 6 { 3 } else { 0 }),
            cwnd_bytes: Some(1_265_552),
            tcp_rtt_ns: Some((24_000.0 * noise.around(0.3)) as u64),
            rtt_ns: None,
            tcp: Some(TcpInterval {
                flows: 1,
                cwnd_bytes: 1_265_552,
                rtt_ns: 24_000,
                min_rtt_ns: Some(11_000),
                delivery_rate_bps: Some(63_214_000_000),
                retransmits: if second == 6 { 3 } else { 0 },
                retransmitted_bytes: Some(if second == 6 { 4_344 } else { 0 }),
                spurious_retransmits: Some(u64::from(second == 6)),
                reordering_seen: Some(0),
                timeouts: Some(0),
                marked: Some(0),
                busy: Some(1.0),
                receive_window_limited: Some(0.012),
                send_buffer_limited: Some(0.0),
            }),
            sender_threads: Some(ThreadShares {
                running: 0.931,
                runnable: 0.01,
                blocked: 0.059,
            }),
            receiver_threads: Some(ThreadShares {
                running: 0.998,
                runnable: 0.002,
                blocked: 0.0,
            }),
            ..interval(direction)
        });
    }
    let summary = Summary {
        duration_ns: Some(10 * SECOND + 312_345),
        goodput_bps: Some(bytes_received as f64 * 8.0 / 10.000_312_345),
        offered_bps: Some(bytes_received as f64 * 8.0 / 9.999_9),
        calls_per_second: Some(bytes_received as f64 / 10.0 / f64::from(1 << 20)),
        bytes_sent: Some(bytes_received + 400_000),
        bytes_received: Some(bytes_received),
        retransmits: Some(3),
        cpu: cpu(0.931, 0.998),
        ..Summary::default()
    };
    record.directions = vec![DirectionFigures {
        direction,
        summary: summary.clone(),
        streams: vec![tcp_stream(1, summary.clone())],
    }];
    record.summary = summary;
    record
}

/// Ten TCP streams; the last one starves.
pub fn ten_streams() -> Record {
    let mut record = tcp_send();
    record.id = "20261121T144300Z-0a0a0a".to_owned();
    record.plan.streams = 12;
    record.plan.cpu = "0-1/2".parse().unwrap();
    let share = record.summary.goodput_bps.unwrap() / 11.5;
    record.directions[0].streams = (1..=12)
        .map(|id| {
            let rate = if id == 12 { share / 2.0 } else { share };
            tcp_stream(
                id,
                Summary {
                    duration_ns: Some(10 * SECOND),
                    goodput_bps: Some(rate),
                    offered_bps: Some(rate),
                    calls_per_second: Some(rate / 8.0 / f64::from(1 << 20)),
                    bytes_received: Some((rate * 10.0 / 8.0) as u64),
                    bytes_sent: Some((rate * 10.0 / 8.0) as u64),
                    retransmits: Some(u64::from(id == 12) * 3),
                    ..Summary::default()
                },
            )
        })
        .collect();
    let count = record.directions[0].streams.len() as u64;
    let ids: Vec<u32> = record.directions[0].streams.iter().map(|s| s.id).collect();
    for interval in &mut record.intervals {
        let part = interval.bytes / (2 * count);
        interval.streams = (ids.iter().zip(0..))
            .map(|(&id, point)| StreamInterval {
                id,
                bytes: part + part * 2 * point / (count - 1),
                retransmits: interval.retransmits.map(|n| if point == 0 { n } else { 0 }),
                cwnd_bytes: interval.cwnd_bytes.map(|bytes| bytes / count),
                tcp_rtt_ns: interval.tcp_rtt_ns,
                ..StreamInterval::default()
            })
            .collect();
    }
    for summary in [&mut record.summary, &mut record.directions[0].summary] {
        summary.fairness_index = Some(0.987);
    }
    record.summary.memory = [Role::Client, Role::Server]
        .map(|role| MemoryCost {
            role,
            streams: 10,
            process_bytes_per_stream: Some(113_152.0),
            socket_bytes_per_stream: Some(1_887_436.8),
        })
        .to_vec();
    record
}

/// UDP in both directions with 0.3 % loss from client to server.
pub fn udp_bidirectional() -> Record {
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.77.0.2");
    plan.directions = vec![Direction::Send, Direction::Receive];
    plan.payload_bytes = 1472;
    plan.rate_bps = Some(3_500_000_000);
    plan.wait = Some(PerEnd::same(WaitMode::Block));
    let mut record = empty("20261121T144106Z-b2c4d6", plan);
    record.label = Some("UDP at 3.5 Gb/s".to_owned());
    let mut noise = Noise::new(11);
    for (direction, rate, loss) in [
        (Direction::Send, 3.49e9, 0.003),
        (Direction::Receive, 2.91e9, 0.0),
    ] {
        let (mut received, mut lost_all) = (0, 0);
        for second in 0..10 {
            let packets = (rate / 8.0 / 1472.0 * noise.around(0.03)) as u64;
            let lost = (packets as f64 * loss * noise.around(0.9)) as u64;
            received += packets;
            lost_all += lost;
            record.intervals.push(Interval {
                number: second,
                start_ns: second * SECOND,
                end_ns: (second + 1) * SECOND,
                direction,
                omitted: false,
                counted_at: FlowEnd::Receiver,
                bytes: packets * 1472,
                packets: Some(packets),
                calls: Some(packets / 16),
                bytes_sent: Some((packets + lost) * 1472),
                packets_sent: Some(packets + lost),
                lost: Some(lost),
                retransmits: None,
                cwnd_bytes: None,
                tcp_rtt_ns: None,
                rtt_ns: None,
                ..interval(direction)
            });
        }
        let sent = received + lost_all;
        let summary = Summary {
            duration_ns: Some(10 * SECOND),
            goodput_bps: Some(received as f64 * 1472.0 * 0.8),
            offered_bps: Some(sent as f64 * 1472.0 * 0.8),
            packets_per_second: Some(received as f64 / 10.0),
            bytes_sent: Some(sent * 1472),
            bytes_received: Some(received * 1472),
            packets_sent: Some(sent),
            packets_received: Some(received),
            loss_fraction: Some(lost_all as f64 / sent as f64),
            lost: Some(lost_all),
            out_of_order: Some(0),
            duplicates: Some(0),
            ipdv_ns: (direction == Direction::Send).then_some(3_412.5),
            rate_error: Some(-0.0023),
            lateness_ns: times(61),
            arrival_gap_ns: times(3_360),
            delay_variation_ns: times(440),
            one_way_delay_ns: None,
            ..Summary::default()
        };
        if lost_all > 0 {
            let at_socket = lost_all * 9 / 10;
            for (point, packets, exact) in [
                (LossPoint::SoftnetBacklog, 120, false),
                (LossPoint::UdpReceiveQueue, at_socket, true),
                (LossPoint::Path, lost_all - at_socket - 120, false),
            ] {
                // Losses that the shared counter may not have seen belong to the path.
                let at_most = match point {
                    LossPoint::Path => lost_all - at_socket,
                    _ => packets,
                };
                let at_least = if point == LossPoint::Path { packets } else { 0 };
                record.losses.push(PacketLoss {
                    direction,
                    place: point.into(),
                    packets,
                    exact,
                    at_least: (!exact).then_some(at_least),
                    at_most: (!exact).then_some(at_most),
                });
            }
        }
        record.directions.push(DirectionFigures {
            direction,
            summary: summary.clone(),
            streams: vec![StreamFigures {
                id: record.directions.len() as u32 + 1,
                summary,
                ..StreamFigures::default()
            }],
        });
    }
    record.intervals.sort_by_key(|interval| interval.start_ns);
    let total = |read: fn(&Summary) -> Option<f64>| -> Option<f64> {
        record
            .directions
            .iter()
            .map(|figures_of_direction| read(&figures_of_direction.summary))
            .sum()
    };
    record.summary = Summary {
        duration_ns: Some(10 * SECOND),
        goodput_bps: total(|s| s.goodput_bps),
        offered_bps: total(|s| s.offered_bps),
        packets_per_second: total(|s| s.packets_per_second),
        loss_fraction: record.directions[0].summary.loss_fraction,
        lost: record.directions[0].summary.lost,
        cpu: cpu(1.62, 1.71),
        ..Summary::default()
    };
    record.validity = vec![Caveat {
        id: StoredId::from_text("shared-cores".to_owned()),
        reason: "both ends run on the same 2 cores: each takes time from the other, so two machines would do better".to_owned(),
    }];
    record
}

/// TCP run interrupted after three seconds.
pub fn interrupted() -> Record {
    let mut record = tcp_send();
    record.id = "20261121T145000Z-dead00".to_owned();
    record.interrupted = true;
    record.intervals.truncate(4);
    for summary in [&mut record.summary, &mut record.directions[0].summary] {
        summary.duration_ns = Some(3_214_000_000);
    }
    record
}

/// TCP run whose server was lost, so the received amount is unknown.
pub fn server_unknown() -> Record {
    let mut record = tcp_send();
    record.id = "20261121T145500Z-0ff11e".to_owned();
    record.hosts.truncate(1);
    record.plan.host = "fd00::7".to_owned();
    for interval in &mut record.intervals {
        interval.counted_at = FlowEnd::Sender;
        interval.tcp_rtt_ns = None;
        interval.cwnd_bytes = None;
        interval.retransmits = None;
    }
    let figures = &mut record.directions[0];
    figures.streams.clear();
    figures.summary.goodput_bps = None;
    figures.summary.bytes_received = None;
    figures.summary.retransmits = None;
    figures.summary.duration_ns = None;
    figures.summary.cpu.truncate(1);
    record.summary = figures.summary.clone();
    record.validity = vec![Caveat::new(
        CaveatId::RemoteCountUnknown,
        "the server was lost before it reported the received amount; only the sent amount is known",
    )];
    record
}

/// Record with texts that a hostile peer could send.
pub fn hostile() -> Record {
    let mut record = udp_bidirectional();
    record.id = "20261121T145900Z-666666".to_owned();
    let evil = "</script><script>alert(1)</script>\x1b[2J\"'&";
    record.label = Some(evil.to_owned());
    record.plan.host = evil.to_owned();
    record.hosts[1].hostname = Some(evil.to_owned());
    record.hosts[1].kernel = Some(evil.to_owned());
    record.hosts[1]
        .sysctls
        .insert(evil.to_owned(), evil.to_owned());
    record.validity.push(Caveat {
        id: StoredId::from_text(evil.to_owned()),
        reason: evil.to_owned(),
    });
    record.losses[0].place = StoredId::from_text(evil.to_owned());
    record
}

/// TCP run whose receiver discarded the payload in the kernel.
pub fn discarded() -> Record {
    let mut record = tcp_send();
    record.plan.copies.receive = ReceiveCopy::Discarded;
    record
}

/// TCP run with one corrupted byte.
pub fn corrupted() -> Record {
    let mut record = tcp_send();
    record.plan.verify = true;
    for summary in [&mut record.summary, &mut record.directions[0].summary] {
        summary.mismatched = Some(1);
    }
    record.verification = vec![
        VerificationCost {
            role: Role::Client,
            fill_ns_per_kib: Some(21.3),
            check_ns_per_kib: None,
        },
        VerificationCost {
            role: Role::Server,
            fill_ns_per_kib: None,
            check_ns_per_kib: Some(24.0),
        },
    ];
    record
}
