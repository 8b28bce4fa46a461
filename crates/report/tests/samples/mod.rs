//! Runs as they come out of real ones, made by hand and always the same.
#![allow(dead_code)] // each test binary uses some of them

use std::collections::BTreeMap;

use linerate_metric::calls::{Call, CallClock, CallTimes};
use linerate_metric::cost::{
    MachineTime, MemoryCost, StreamInterval, TcpInterval, ThreadCost, ThreadShares,
};
use linerate_metric::facts::{Ability, Check, Cpu, Examination, Host, Interface, Role};
use linerate_metric::fit::{Cost, SizeCosts};
use linerate_metric::histogram::{Histogram, HistogramData};
use linerate_metric::load::{LoadCurve, LoadPoint, UnderLoad};
use linerate_metric::plan::{Cpus, Direction, Ends, Kind, Plan, Protocol, ReceiveCopy, Wait};
use linerate_metric::record::{
    CountedAt, CpuCost, DirectionFigures, Doubt, Interval, Loss, RUN_SCHEMA, Record, SlowAnswer,
    Socket, Stage, StagePass, Stream, Summary, TcpState, Tool, Verification,
};
use linerate_metric::round_trip::Attachment;
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::timeline::{DriverWork, Lane, Slice, Timeline};
use linerate_metric::waiting::Turns;

const SECOND: u64 = 1_000_000_000;

/// Numbers that look random and are the same everywhere.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in `0.0..1.0`.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Around 1, within `spread` to either side.
    pub fn around(&mut self, spread: f64) -> f64 {
        1.0 + spread * (2.0 * self.uniform() - 1.0)
    }
}

pub fn client() -> Host {
    let text = |text: &str| Some(text.to_owned());
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    Host {
        role: Some(Role::Client),
        hostname: text("alpha"),
        boot_id: text("5c7e1c5c-2b5e-4b1c-9b53-0a6f3a2a3d11"),
        kernel: text("6.18.5"),
        distribution: text("Debian GNU/Linux 12 (bookworm)"),
        architecture: text("x86_64"),
        cpu: Cpu {
            model: text("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"),
            usable: Some(2),
            logical: Some(2),
            cores: Some(1),
            sockets: Some(1),
            numa_nodes: Some(1),
            hypervisor: text("KVM"),
            governor: None,
            frequency_hz: None,
            frequency_max_hz: None,
            idle: text("haltpoll: POLL, haltpoll"),
            mitigations: pairs(&[
                (
                    "mds",
                    "Mitigation: Clear CPU buffers; SMT Host state unknown",
                ),
                ("meltdown", "Mitigation: PTI"),
                ("retbleed", "Mitigation: Enhanced IBRS"),
                ("spec_store_bypass", "Vulnerable"),
                (
                    "spectre_v2",
                    "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: SW sequence",
                ),
            ]),
        },
        memory_bytes: Some(8_320_000_000),
        clock_source: text("tsc"),
        wake_up_ns: None,
        interface: Some(Interface {
            name: "client-eth0".to_owned(),
            driver: text("veth"),
            driver_version: text("1.0"),
            mac: text("02:00:0a:4d:00:01"),
            speed_bps: Some(10_000_000_000),
            duplex: text("full"),
            mtu: Some(1500),
            qdisc: text("noqueue"),
            offloads: [
                ("generic-receive-offload", true),
                ("generic-segmentation-offload", true),
                ("rx-checksumming", true),
                ("rx-udp-gro-forwarding", false),
                ("tx-checksumming", true),
                ("tx-tcp-segmentation", true),
                ("tx-udp-segmentation", true),
            ]
            .into_iter()
            .map(|(name, on)| (name.to_owned(), on))
            .collect(),
            gso_ipv4_max_bytes: Some(65_536),
            rx_queues: Some(1),
            tx_queues: Some(1),
            ..Interface::default()
        }),
        stack: None,
        sysctls: pairs(&[
            ("net.core.rmem_max", "212992"),
            ("net.core.wmem_max", "212992"),
            ("net.ipv4.tcp_congestion_control", "cubic"),
            ("net.ipv4.tcp_rmem", "4096\t131072\t6291456"),
            ("net.ipv4.tcp_wmem", "4096\t16384\t4194304"),
        ]),
    }
}

pub fn server() -> Host {
    let mut host = client();
    host.role = Some(Role::Server);
    if let Some(interface) = &mut host.interface {
        interface.name = "server-eth0".to_owned();
        interface.mac = Some("02:00:0a:4d:00:02".to_owned());
    }
    host
}

/// A machine of another kind: hardware that knows its firmware, and things that could not be read.
pub fn board() -> Host {
    Host {
        role: Some(Role::Server),
        hostname: Some("board-7".to_owned()),
        kernel: Some("5.10.0-rt17".to_owned()),
        architecture: Some("aarch64".to_owned()),
        cpu: Cpu {
            logical: Some(4),
            usable: Some(3),
            governor: Some("ondemand".to_owned()),
            ..Cpu::default()
        },
        interface: Some(Interface {
            name: "enp3s0".to_owned(),
            driver: Some("igb".to_owned()),
            driver_version: Some("5.10.0".to_owned()),
            firmware: Some("1.63, 0x800009fa".to_owned()),
            pci_id: Some("8086:1521".to_owned()),
            pci_address: Some("0000:03:00.0".to_owned()),
            numa_node: Some(0),
            mac: Some("a0:36:9f:00:00:07".to_owned()),
            speed_bps: Some(1_000_000_000),
            duplex: Some("full".to_owned()),
            mtu: Some(9000),
            rx_queues: Some(8),
            tx_queues: Some(8),
            rx_descriptors: Some(256),
            tx_descriptors: Some(256),
            ..Interface::default()
        }),
        ..Host::default()
    }
}

fn empty(id: &str, plan: Plan) -> Record {
    Record {
        schema: RUN_SCHEMA.to_owned(),
        id: id.to_owned(),
        kind: plan.kind,
        started: "2026-11-21T14:40:42.123456789Z".parse().unwrap(),
        interrupted: false,
        tool: Tool {
            name: "linerate".to_owned(),
            version: "0.1.0".to_owned(),
        },
        label: None,
        kept_by: None,
        served: None,
        command: None,
        plan,
        hosts: vec![client(), server()],
        summary: Summary::default(),
        directions: Vec::new(),
        intervals: Vec::new(),
        histograms: BTreeMap::new(),
        slow: Vec::new(),
        losses: Vec::new(),
        counters: Vec::new(),
        calls: BTreeMap::new(),
        far_calls: BTreeMap::new(),
        verification: Vec::new(),
        call_clocks: Vec::new(),
        stages: Vec::new(),
        stage_pass: None,
        timeline: None,
        far_text: None,
        forward: None,
        generate: None,
        findings: Vec::new(),
        stack: None,
        validity: Vec::new(),
    }
}

/// A distribution whose median is `p50`.
fn times(p50: u64) -> Option<linerate_metric::histogram::Quantiles> {
    Some(linerate_metric::histogram::Quantiles {
        count: 1_000_000,
        min: p50 / 2,
        mean: p50 as f64 * 1.1,
        p50,
        p90: p50 * 2,
        p99: p50 * 5,
        p99_9: p50 * 40,
        p99_99: p50 * 100,
        max: p50 * 900,
        standard_deviation: p50 as f64,
    })
}

fn cpu(near: f64, far: f64) -> Vec<CpuCost> {
    vec![
        CpuCost {
            role: Role::Client,
            share: near,
            user_share: Some(near * 0.05),
            voluntary_switches: 1_204,
            involuntary_switches: 12,
            blocked_share: Some((0.99 - near).max(0.0)),
            runnable_share: Some(0.01),
            empty_share: None,
            ns_per_byte: Some(0.121),
            ns_per_packet: None,
            cycles: Some(31_400_000_000),
            instructions: Some(27_900_000_000),
            uncounted_because: None,
            machine: Some(MachineTime {
                processors: 4,
                user_ns: 1_210_000_000,
                system_ns: 12_700_000_000,
                irq_ns: 0,
                softirq_ns: 2_130_000_000,
                steal_ns: 40_000_000,
                idle_ns: 23_920_000_000,
            }),
            processors: Vec::new(),
            threads: vec![ThreadCost {
                direction: Direction::Send,
                part: CountedAt::Sender,
                flows: 1,
                wall_ns: 10_000_200_000,
                cpu_ns: (near * 1e10) as u64,
                user_ns: (near * 5e8) as u64,
                system_ns: (near * 9.5e9) as u64,
                runnable_ns: Some(100_000_000),
                blocked_ns: Some(((0.99 - near) * 1e10) as u64),
                voluntary_switches: 1_204,
                involuntary_switches: 12,
                cpus: Some(Cpus(vec![0])),
                calls: Some(81_230),
                empty_calls: Some(0),
                cycles: Some(31_400_000_000),
                instructions: Some(27_900_000_000),
            }],
        },
        CpuCost {
            role: Role::Server,
            share: far,
            user_share: Some(far * 0.08),
            voluntary_switches: 0,
            involuntary_switches: 1,
            blocked_share: Some(0.0),
            runnable_share: Some(0.0),
            empty_share: Some(0.31),
            ns_per_byte: Some(0.124),
            ns_per_packet: None,
            cycles: None,
            instructions: None,
            uncounted_because: Some(
                "this machine has no hardware counters (virtual machines often have none)"
                    .to_owned(),
            ),
            machine: None,
            processors: Vec::new(),
            threads: Vec::new(),
        },
    ]
}

/// An interval without figures.
fn interval(direction: Direction) -> Interval {
    Interval {
        number: 0,
        start_ns: 0,
        end_ns: 0,
        direction,
        omitted: false,
        counted_at: CountedAt::Receiver,
        bytes: 0,
        packets: None,
        calls: None,
        bytes_sent: None,
        packets_sent: None,
        lost: None,
        retransmits: None,
        cwnd_bytes: None,
        tcp_rtt_ns: None,
        rtt_ns: None,
        tcp: None,
        sender_threads: None,
        receiver_threads: None,
        streams: Vec::new(),
    }
}

/// Where the samples' ends wait: the near one sleeps, the far one spins.
pub fn block_spin() -> Ends<Wait> {
    Ends {
        near: Wait::Block,
        far: Wait::Spin,
    }
}

fn tcp_stream(id: u32, summary: Summary) -> Stream {
    let (near, far) = (format!("10.77.0.1:{}", 40_000 + id), "10.77.0.2:5201");
    Stream {
        id,
        mismatch: None,
        sender: Some(Socket {
            local: Some(near.clone()),
            remote: Some(far.to_owned()),
            send_buffer_bytes: Some(4_194_304),
            receive_buffer_bytes: Some(131_072),
            congestion_control: Some("cubic".to_owned()),
            receive_queue_drops: None,
            refusals: None,
            unroutable: None,
            send_refused: None,
            datagrams_per_call: None,
            napi_id: None,
            zero_copy: None,
            tcp: Some(TcpState {
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
        receiver: Some(Socket {
            local: Some(far.to_owned()),
            remote: Some(near),
            ..Socket::default()
        }),
        summary,
    }
}

/// TCP over veth: 10 s at about 60 Gb/s, one second omitted before.
pub fn tcp_send() -> Record {
    tcp("20261121T144042Z-3f9a1c", Direction::Send, 61.2e9, 3)
}

/// The same the other way.
pub fn tcp_receive() -> Record {
    tcp("20261121T144054Z-77d0e2", Direction::Receive, 57.4e9, 41)
}

fn tcp(id: &str, direction: Direction, goodput: f64, seed: u64) -> Record {
    let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.77.0.2");
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
            counted_at: CountedAt::Receiver,
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

/// Ten TCP streams of which the last starves.
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
            .map(|(&id, place)| StreamInterval {
                id,
                bytes: part + part * 2 * place / (count - 1),
                retransmits: interval.retransmits.map(|n| if place == 0 { n } else { 0 }),
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

/// UDP both ways with 0.3 % lost on the way out, and where.
pub fn udp_both() -> Record {
    let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "10.77.0.2");
    plan.directions = vec![Direction::Send, Direction::Receive];
    plan.payload_bytes = 1472;
    plan.rate_bps = Some(3_500_000_000);
    plan.wait = Some(Ends::both(Wait::Block));
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
                counted_at: CountedAt::Receiver,
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
            for (place, packets, exact) in [
                ("softnet-backlog", 120, false),
                ("udp-receive-queue", at_socket, true),
                ("path", lost_all - at_socket - 120, false),
            ] {
                // What a shared counter may have is the path's otherwise.
                let at_most = match place {
                    "path" => lost_all - at_socket,
                    _ => packets,
                };
                let at_least = if place == "path" { packets } else { 0 };
                record.losses.push(Loss {
                    direction,
                    place: place.to_owned(),
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
            streams: vec![Stream {
                id: record.directions.len() as u32 + 1,
                summary,
                ..Stream::default()
            }],
        });
    }
    record.intervals.sort_by_key(|interval| interval.start_ns);
    let whole = |read: fn(&Summary) -> Option<f64>| -> Option<f64> {
        record.directions.iter().map(|way| read(&way.summary)).sum()
    };
    record.summary = Summary {
        duration_ns: Some(10 * SECOND),
        goodput_bps: whole(|s| s.goodput_bps),
        offered_bps: whole(|s| s.offered_bps),
        packets_per_second: whole(|s| s.packets_per_second),
        loss_fraction: record.directions[0].summary.loss_fraction,
        lost: record.directions[0].summary.lost,
        cpu: cpu(1.62, 1.71),
        ..Summary::default()
    };
    record.validity = vec![Doubt::new(
        "cores-shared",
        "both ends run on the same 2 cores: each takes time from the other, so two machines would do better",
    )];
    record
}

/// UDP round trips that sleep while they wait: 48 us, with a tail.
pub fn latency_blocking() -> Record {
    latency("20261121T144118Z-c0ffee", Wait::Block, 48_000.0, 101)
}

/// The same with a limit, and with answers that were slow, wrong, late and repeated.
pub fn latency_limited() -> Record {
    let mut record = latency("20261121T144121Z-51011e", Wait::Block, 48_000.0, 101);
    record.plan.round_trip.limit_ns = Some(200_000);
    let slow = |number: u64, time_ns: u64, cause: &str, evidence: &str| SlowAnswer {
        flow: 1,
        number,
        at_ns: number * 50_000,
        time_ns,
        cause: cause.to_owned(),
        evidence: evidence.to_owned(),
    };
    record.slow = vec![
        slow(
            812,
            1_204_000,
            "preempted",
            "pushed off its processor, ready to run for 1.14 ms",
        ),
        slow(
            4_711,
            310_400,
            "scheduler-wake-up",
            "ready to run for 241 us",
        ),
        slow(20_113, 260_100, "not-known", ""),
        slow(31_870, 203_006_100, "retransmit", "1 segments sent again"),
    ];
    let summary = &mut record.summary;
    summary.slow = Some(4);
    summary.mismatched = Some(3);
    summary.wrong_length = Some(1);
    summary.wrong_content = Some(2);
    summary.out_of_order = Some(5);
    summary.duplicates = Some(6);
    record
}

/// A socket for each round trip, on a schedule of its own. (No run has both; each has its table.)
pub fn latency_reopened() -> Record {
    let mut record = latency("20261121T144122Z-0be0ed", Wait::Block, 48_000.0, 101);
    record.plan.round_trip.attachment = Attachment::Reopened;
    for (name, share) in [
        ("open_ns", 0.04),
        ("bind_ns", 0.02),
        ("connect_ns", 0.05),
        ("send_ns", 0.1),
        ("receive_ns", 0.9),
        ("close_ns", 0.05),
        ("whole_ns", 1.2),
    ] {
        let mut times = Histogram::new();
        for step in 0..1_000u32 {
            times.record((48_000.0 * share * (1.0 + f64::from(step) / 4_000.0)) as u64);
        }
        record
            .histograms
            .insert(name.to_owned(), HistogramData::from(&times));
    }
    record.summary.connections_per_second = Some(20_100.0);
    record
}

/// Costs of all kinds, as series of runs find them.
pub fn conclusions() -> RunSet {
    let mut set = demo();
    let cost = |ns: f64| Cost {
        ns,
        low_ns: Some(ns * 0.95),
        high_ns: Some(ns * 1.05),
    };
    set.result.size_costs = Some(SizeCosts {
        fixed: cost(10_600.0),
        per_byte: cost(0.071),
        per_fragment: Some(cost(1_480.0)),
        fragments_in_bytes: false,
        residual_ns: Some(12.0),
    });
    let (idle, loaded) = (latency_blocking(), latency_spinning());
    let (idle, loaded) = (idle.summary.rtt_ns.unwrap(), loaded.summary.rtt_ns.unwrap());
    let point = |share: f64| LoadPoint {
        share,
        intended_per_second: share * 80_000.0,
        achieved_per_second: share * 80_000.0,
        lost: 0,
        unsent: 0,
        rtt_intended_ns: idle,
        rtt_ns: loaded,
    };
    set.result.load_curve = Some(LoadCurve {
        capacity_per_second: 80_000.0,
        points: vec![point(0.1), point(0.5), point(0.95)],
        knee: Some(point(0.5)),
    });
    set.result.under_load = Some(UnderLoad {
        rate_per_second: Some(500),
        ..UnderLoad::compare("TCP".to_owned(), loaded, idle, Some(13.5e9))
    });
    set
}

/// Ways of waiting in turn.
pub fn waiting() -> RunSet {
    let mut set = demo();
    set.result.waiting_costs = Turns {
        blocking: vec![48_000.0, 49_000.0, 47_500.0],
        held: vec![10_100.0, 10_300.0, 10_000.0],
        spinning: vec![6_100.0, 6_000.0, 6_050.0],
    }
    .costs();
    set
}

/// The same without ever sleeping: 6 us.
pub fn latency_spinning() -> Record {
    latency("20261121T144124Z-facade", Wait::Spin, 6_050.0, 202)
}

fn latency(id: &str, wait: Wait, typical: f64, seed: u64) -> Record {
    let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "10.77.0.2");
    plan.duration_ns = Some(5 * SECOND);
    plan.interval_ns = Some(SECOND / 2);
    plan.wait = Some(Ends::both(wait));
    plan.cpu = "0/1".parse().unwrap();
    let mut record = empty(id, plan);
    let mut noise = Noise::new(seed);
    let mut all = Histogram::new();
    for step in 0..10 {
        let mut part = Histogram::new();
        for _ in 0..5_000 {
            let body = typical * (0.86 + 0.2 * noise.uniform() + 0.1 * noise.uniform());
            // One in a hundred waits for a timer tick, few in ten thousand for another thread.
            let rare = noise.uniform();
            let tail = if rare < 0.000_4 {
                1_500_000.0 * noise.uniform()
            } else if rare < 0.01 {
                typical * 2.0 * noise.uniform()
            } else {
                0.0
            };
            part.record((body + tail) as u64);
        }
        all.add(&part);
        record.intervals.push(Interval {
            number: step,
            start_ns: step * SECOND / 2,
            end_ns: (step + 1) * SECOND / 2,
            direction: Direction::Send,
            omitted: false,
            counted_at: CountedAt::Sender,
            bytes: 5_000 * 64,
            packets: Some(5_000),
            calls: Some(10_000),
            bytes_sent: Some(5_000 * 64),
            packets_sent: Some(5_000),
            lost: Some(0),
            retransmits: None,
            cwnd_bytes: None,
            tcp_rtt_ns: None,
            rtt_ns: part.summary(),
            ..interval(Direction::Send)
        });
    }
    record
        .histograms
        .insert("rtt_ns".to_owned(), HistogramData::from(&all));
    let busy = if wait == Wait::Spin { 1.0 } else { 0.31 };
    record.summary = Summary {
        duration_ns: Some(5 * SECOND),
        bytes_sent: Some(50_000 * 64),
        bytes_received: Some(50_000 * 64),
        rtt_ns: all.summary(),
        round_trips: Some(50_000),
        round_trips_per_second: Some(10_000.0),
        lost: Some(0),
        mismatched: Some(0),
        loss_fraction: Some(0.0),
        cpu: cpu(busy, busy * 0.97),
        ..Summary::default()
    };
    record.directions = vec![DirectionFigures {
        direction: Direction::Send,
        summary: record.summary.clone(),
        streams: vec![Stream {
            id: 1,
            summary: record.summary.clone(),
            ..Stream::default()
        }],
    }];
    record
}

/// Ended by Ctrl-C after three seconds.
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

/// The far end vanished: nobody knows what arrived.
pub fn far_unknown() -> Record {
    let mut record = tcp_send();
    record.id = "20261121T145500Z-0ff11e".to_owned();
    record.hosts.truncate(1);
    record.plan.host = "fd00::7".to_owned();
    for interval in &mut record.intervals {
        interval.counted_at = CountedAt::Sender;
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
    record.validity = vec![Doubt::new(
        "far-count-unknown",
        "the far end went away before it told what arrived, so only what was sent is known",
    )];
    record
}

/// Texts that a hostile peer could send.
pub fn hostile() -> Record {
    let mut record = udp_both();
    record.id = "20261121T145900Z-666666".to_owned();
    let evil = "</script><script>alert(1)</script>\x1b[2J\"'&";
    record.label = Some(evil.to_owned());
    record.plan.host = evil.to_owned();
    record.hosts[1].hostname = Some(evil.to_owned());
    record.hosts[1].kernel = Some(evil.to_owned());
    record.hosts[1]
        .sysctls
        .insert(evil.to_owned(), evil.to_owned());
    record.validity.push(Doubt::new(evil, evil));
    record.losses[0].place = evil.to_owned();
    record
}

fn labelled(label: &str, mut record: Record) -> Record {
    record.label = Some(label.to_owned());
    record
}

/// What the demo measures.
pub fn demo() -> RunSet {
    let mut tcp_blocking = labelled(
        "TCP round trips, blocking",
        latency("", Wait::Block, 55_000.0, 303),
    );
    let mut tcp_spinning = labelled(
        "TCP round trips, spinning",
        latency("", Wait::Spin, 8_300.0, 404),
    );
    for (run, id) in [
        (&mut tcp_blocking, "20261121T144130Z-111111"),
        (&mut tcp_spinning, "20261121T144136Z-222222"),
    ] {
        run.id = id.to_owned();
        run.plan.protocol = Protocol::Tcp;
    }
    let runs = vec![
        labelled("TCP, sending", tcp_send()),
        labelled("TCP, receiving", tcp_receive()),
        labelled("UDP, both ways", udp_both()),
        labelled("UDP round trips, blocking", latency_blocking()),
        labelled("UDP round trips, spinning", latency_spinning()),
        tcp_blocking,
        tcp_spinning,
    ];
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: "20261121T144042Z-5e7000".to_owned(),
        kind: "demo".to_owned(),
        started: runs[0].started,
        interrupted: false,
        runs,
        result: SetResult {
            notes: vec![
                "the two hosts are network namespaces on this machine, joined by a veth pair: no cable is involved".to_owned(),
            ],
            ..SetResult::default()
        },
    }
}

/// The same run seven times.
pub fn repeats() -> RunSet {
    let runs: Vec<_> = (0..7)
        .map(|n| {
            let id = format!("20261121T15000{n}Z-00000{n}");
            tcp(&id, Direction::Send, 61.2e9, 100 + n)
        })
        .collect();
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: "20261121T150000Z-5e7001".to_owned(),
        kind: "repeat".to_owned(),
        started: runs[0].started,
        interrupted: false,
        result: SetResult::of_repeats(&runs),
        runs,
    }
}

/// What a doctor could find.
pub fn examination() -> Examination {
    let check = |name: &str, ability, found: &str, enable: Option<&str>| Check {
        name: name.to_owned(),
        ability,
        found: found.to_owned(),
        enable: enable.map(str::to_owned),
    };
    Examination {
        schema: linerate_metric::facts::EXAMINATION_SCHEMA.to_owned(),
        host: client(),
        checks: vec![
            check(
                "user-namespaces",
                Ability::Ok,
                "can be created, so labs need no root",
                None,
            ),
            check(
                "idle-states",
                Ability::Limited,
                "cores halt between packets, and waking one takes most of a round trip that blocks; /dev/cpu_dma_latency cannot be opened",
                Some(
                    "run as root, or let a group open it:\n  chgrp net /dev/cpu_dma_latency && chmod 660 /dev/cpu_dma_latency",
                ),
            ),
            check(
                "netem",
                Ability::Missing,
                "links with delay, loss or reordering cannot be made",
                Some("modprobe sch_netem, or a kernel with CONFIG_NET_SCH_NETEM"),
            ),
            check(
                "steal",
                Ability::Unknown,
                "/proc/stat could not be read",
                None,
            ),
        ],
    }
}

/// Round trips of which every call was timed.
pub fn timed() -> Record {
    let times = |around: u64, count: u64| {
        let mut histogram = Histogram::new();
        for n in 0..count {
            histogram.record(around + n % 97 * (around / 50).max(1));
        }
        CallTimes::of(&histogram)
    };
    let mut record = latency_blocking();
    record.plan.calls = true;
    record.calls = BTreeMap::from([
        (
            "sendto".to_owned(),
            Call {
                room: times(3_600, 20_000),
                ..Call::default()
            },
        ),
        (
            "recvfrom".to_owned(),
            Call {
                ready: times(560, 120),
                waited: times(44_000, 19_880),
                ..Call::default()
            },
        ),
    ]);
    record.far_calls.clone_from(&record.calls);
    let clock = |role| CallClock {
        role,
        source: "tsc".to_owned(),
        hz: 2.596e9,
        read_ns: 9.9,
        record_ns: 22.4,
        threads: 1,
    };
    record.call_clocks = vec![clock(Role::Client), clock(Role::Server)];
    record
}

/// A stream that was thrown away unseen by its receiver.
pub fn discarded() -> Record {
    let mut record = tcp_send();
    record.plan.copies.receive = ReceiveCopy::Discarded;
    record
}

/// A stream of which a byte did not arrive as it was sent.
pub fn corrupted() -> Record {
    let mut record = tcp_send();
    record.plan.verify = true;
    for summary in [&mut record.summary, &mut record.directions[0].summary] {
        summary.mismatched = Some(1);
    }
    record.verification = vec![
        Verification {
            role: Role::Client,
            fill_ns_per_kib: Some(21.3),
            check_ns_per_kib: None,
        },
        Verification {
            role: Role::Server,
            fill_ns_per_kib: None,
            check_ns_per_kib: Some(24.0),
        },
    ];
    record
}

/// Round trips with their stages, and a picture of the last of them.
pub fn staged() -> Record {
    let mut record = latency_blocking();
    record.label = Some("where the time goes".to_owned());
    let times = [
        ("client-send-call", 1_510),
        ("client-qdisc", 461),
        ("path-there", 191),
        ("server-receive", 7_220),
        ("server-application", 180),
        ("server-send-call", 1_590),
        ("server-qdisc", 461),
        ("path-back", 191),
        ("client-receive", 9_950),
    ];
    record.stages = times
        .iter()
        .map(|&(stage, p50_ns)| Stage {
            stage: stage.to_owned(),
            p50_ns,
            p90_ns: p50_ns * 5 / 4,
            p99_ns: p50_ns * 3,
            mean_ns: p50_ns as f64 * 1.1,
            stamps: "software".to_owned(),
            clock_error_ns: stage.starts_with("path").then_some(1_250),
            parts: Vec::new(),
        })
        .collect();
    let parts = [
        ("server-softirq", 2_100),
        ("server-wake-up", 5_590),
        ("server-receive-call", 1_630),
    ];
    record.stages[3].parts = parts
        .iter()
        .map(|&(stage, p50_ns)| Stage {
            stage: stage.to_owned(),
            p50_ns,
            p90_ns: p50_ns * 2,
            p99_ns: p50_ns * 3,
            ..record.stages[0].clone()
        })
        .collect();
    record.stage_pass = Some(StagePass {
        round_trips: 15_998,
        left_out: 2,
        rtt_ns: record.summary.rtt_ns,
        sum_of_medians_ns: times.iter().map(|&(_, time)| time).sum(),
        asking_ns: Some(1_340),
        watching_ns: Some(4_100),
        notes: vec![
            "client: when its thread was woken is not known (Permission denied)".to_owned(),
        ],
    });
    let slice = |role, lane, name: &str, start_ns, end_ns, cpu| Slice {
        role,
        lane,
        name: name.to_owned(),
        start_ns,
        end_ns,
        trip: (lane != Lane::Driver).then_some(start_ns / 25_000),
        cpu,
        thread: None,
    };
    let mut timeline = Timeline::default();
    for trip in 0..3u64 {
        let at = 25_000 * trip;
        timeline.slices.extend([
            slice(Role::Client, Lane::Thread, "send", at, at + 3_000, None),
            slice(
                Role::Client,
                Lane::Kernel,
                "stack-out",
                at,
                at + 1_510,
                None,
            ),
            slice(
                Role::Client,
                Lane::Kernel,
                "qdisc",
                at + 1_510,
                at + 1_971,
                None,
            ),
            slice(
                Role::Server,
                Lane::Kernel,
                "stack-in",
                at + 2_162,
                at + 4_000,
                None,
            ),
            slice(
                Role::Server,
                Lane::Driver,
                "net-rx",
                at + 2_400,
                at + 4_400,
                Some(1),
            ),
            slice(
                Role::Client,
                Lane::Thread,
                "receive",
                at + 3_000,
                at + 24_000,
                None,
            ),
            slice(
                Role::Server,
                Lane::Kernel,
                "wake-up",
                at + 4_000,
                at + 7_752,
                None,
            ),
            slice(
                Role::Server,
                Lane::Thread,
                "receive",
                at + 7_752,
                at + 9_382,
                None,
            ),
            slice(
                Role::Server,
                Lane::Thread,
                "send",
                at + 9_562,
                at + 13_000,
                None,
            ),
            slice(
                Role::Server,
                Lane::Kernel,
                "stack-out",
                at + 9_562,
                at + 11_152,
                None,
            ),
            slice(
                Role::Client,
                Lane::Kernel,
                "stack-in",
                at + 11_804,
                at + 23_000,
                None,
            ),
        ]);
    }
    let quantiles = record.summary.rtt_ns.unwrap();
    timeline.driver = vec![DriverWork {
        role: Role::Server,
        period_ns: quantiles,
        duration_ns: quantiles,
    }];
    record.timeline = Some(timeline);
    record
}
