//! Runs as they come out of real ones, made by hand and always the same.
#![allow(dead_code)] // each test binary uses some of them

use std::collections::BTreeMap;

use linerate_metric::facts::{Ability, Check, Cpu, Examination, Host, Interface, Role};
use linerate_metric::histogram::{Histogram, HistogramData};
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Wait};
use linerate_metric::record::{
    CountedAt, CpuCost, DirectionFigures, Doubt, Interval, Loss, RUN_SCHEMA, Record, Socket,
    Stream, Summary, TcpState, Tool,
};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};

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
        plan,
        hosts: vec![client(), server()],
        summary: Summary::default(),
        directions: Vec::new(),
        intervals: Vec::new(),
        histograms: BTreeMap::new(),
        losses: Vec::new(),
        validity: Vec::new(),
    }
}

fn cpu(near: f64, far: f64) -> Vec<CpuCost> {
    vec![
        CpuCost {
            role: Role::Client,
            share: near,
            user_share: near * 0.05,
            voluntary_switches: 1_204,
            involuntary_switches: 12,
        },
        CpuCost {
            role: Role::Server,
            share: far,
            user_share: far * 0.08,
            voluntary_switches: 0,
            involuntary_switches: 1,
        },
    ]
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
        sender: Some(Socket {
            local: Some(near.clone()),
            remote: Some(far.to_owned()),
            send_buffer_bytes: Some(4_194_304),
            receive_buffer_bytes: Some(131_072),
            congestion_control: Some("cubic".to_owned()),
            receive_queue_drops: None,
            datagrams_per_call: None,
            tcp: Some(TcpState {
                retransmits: summary.retransmits.unwrap_or(0),
                cwnd_segments: 874,
                mss_bytes: 1448,
                path_mtu_bytes: 1500,
                rtt_ns: 24_000,
                rtt_variation_ns: 9_000,
                min_rtt_ns: Some(11_000),
                delivery_rate_bps: Some(63_214_000_000),
                busy_ns: Some(9_998_000_000),
                receive_window_limited_ns: Some(120_000_000),
                send_buffer_limited_ns: None,
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
            ..Summary::default()
        };
        if lost_all > 0 {
            let at_socket = lost_all * 9 / 10;
            for (place, packets, exact) in [
                ("udp-receive-queue", at_socket, true),
                ("softnet-backlog", 120, false),
                ("path", lost_all - at_socket, true),
            ] {
                record.losses.push(Loss {
                    direction,
                    place: place.to_owned(),
                    packets,
                    exact,
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
