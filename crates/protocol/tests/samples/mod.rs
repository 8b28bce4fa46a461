//! Frames for tests: complete ones, minimal ones, and random ones.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;

use linerate_protocol::control::{
    Accept, Bye, ClockReply, ClockRequest, DeviceTimestamping, EndResults, FlowFigures,
    FlowFiguresBatch, FlowGrant, FlowToken, FlowTotal, FlowsAttached, Frame, Heartbeat, Hello,
    IntervalReport, Propose, Reject, RequestedSettings, ResponderTimestamps, SenderTotals,
    SettingsReply, StartRun, StopRun,
};
use linerate_record::cost::{
    MachineTime, MemoryCost, StreamInterval, TcpInterval, ThreadCost, ThreadShares,
};
use linerate_record::event::ErrorReport;
use linerate_record::facts::{CpuFacts, CpuQuota, HostFacts, IdleState, InterfaceFacts, Role};
use linerate_record::ids::StoredId;
use linerate_record::pace::{PaceBurst, PacePlan, PacingMethod};
use linerate_record::plan::{
    CopyModes, CpuList, Direction, PerEnd, Plan, RunKind, SchedPolicy, SocketPlan, TimestampLevel,
    TransportProtocol, UdpOffload, WaitMode,
};
use linerate_record::record::{
    Caveat, CounterDelta, CpuCost, FlowEnd, Interval, PacketLoss, SlowResponse, SocketFacts,
    StreamFigures, Summary, TcpFacts,
};
use linerate_record::round_trip::{MulticastGroup, RoundTripPlan, SocketMode};
use linerate_record::throttling::CpuThrottling;
use linerate_stats::histogram::{HistogramData, Quantiles};

/// Source of values; it also decides whether an optional value is present.
pub enum Source {
    /// No optional values, and zeros.
    Minimal,
    /// All optional values, with counted numbers.
    Full(u64),
    /// Random values.
    Random(fastrand::Rng),
}

impl Source {
    fn number(&mut self) -> u64 {
        match self {
            Self::Minimal => 0,
            Self::Full(next) => {
                *next += 1;
                *next
            }
            // All integer widths of MessagePack.
            Self::Random(rng) => rng.u64(..) >> rng.u32(..64),
        }
    }

    fn small(&mut self) -> u32 {
        (self.number() & 0xffff_ffff) as u32
    }

    fn real(&mut self) -> f64 {
        match self {
            Self::Random(rng) => match rng.u8(..8) {
                0 => 0.0,
                1 => rng.u32(..).into(),
                2 => f64::MAX,
                3 => -rng.f64(),
                _ => rng.f64() * 1e12,
            },
            _ => self.number() as f64 + 0.5,
        }
    }

    fn is_present(&mut self) -> bool {
        match self {
            Self::Minimal => false,
            Self::Full(_) => true,
            Self::Random(rng) => rng.bool(),
        }
    }

    fn count(&mut self) -> usize {
        match self {
            Self::Minimal => 0,
            Self::Full(_) => 1,
            Self::Random(rng) => rng.usize(..4),
        }
    }

    fn text(&mut self) -> String {
        match self {
            Self::Minimal => String::new(),
            Self::Full(_) => format!("text {}", self.number()),
            Self::Random(rng) => (0..rng.usize(..40)).map(|_| rng.char(..)).collect(),
        }
    }

    fn optional<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.is_present().then(|| value(self))
    }

    fn many<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.count()).map(|_| value(self)).collect()
    }

    fn texts(&mut self) -> BTreeMap<String, String> {
        self.many(|s| (s.text(), s.text())).into_iter().collect()
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        let choice = match self {
            Self::Minimal => 0,
            Self::Full(_) => choices.len() - 1,
            Self::Random(rng) => rng.usize(..choices.len()),
        };
        choices[choice].clone()
    }

    fn direction(&mut self) -> Direction {
        self.pick(&[Direction::Send, Direction::Receive])
    }

    fn role(&mut self) -> Role {
        self.pick(&[Role::Client, Role::Server])
    }

    fn wait_mode(&mut self) -> WaitMode {
        self.pick(&[
            WaitMode::Block,
            WaitMode::Spin,
            WaitMode::Poll,
            WaitMode::Select {
                timeout_ns: Some(100_000),
            },
            WaitMode::Epoll,
        ])
    }

    fn cpus(&mut self) -> CpuList {
        CpuList(self.many(Self::small))
    }

    fn caveat(&mut self) -> Caveat {
        Caveat {
            id: StoredId::from_text(self.text()),
            reason: self.text(),
        }
    }

    fn token(&mut self) -> FlowToken {
        let mut token = [0; 16];
        for byte in &mut token {
            *byte = (self.number() & 0xff) as u8;
        }
        FlowToken(token)
    }

    fn round_trip(&mut self) -> RoundTripPlan {
        RoundTripPlan {
            verify: self.is_present(),
            limit_ns: self.optional(Self::number),
            socket_mode: self.pick(&[
                SocketMode::Connected,
                SocketMode::Unconnected,
                SocketMode::Reopened,
            ]),
            connections: self.is_present(),
            rate_per_second: self.optional(Self::number),
            outstanding: self.small(),
            group: self.optional(|s| MulticastGroup {
                address: std::net::Ipv4Addr::new(239, 1, 2, 3).into(),
                interface: s.optional(Self::text),
                ttl: 7,
            }),
            rt_yield: self.is_present(),
            lock_memory: self.is_present(),
            device_timestamps: None,
            load_threads: PerEnd {
                client: self.small(),
                server: self.small(),
            },
        }
    }

    fn plan(&mut self) -> Plan {
        Plan {
            kind: self.pick(&[RunKind::Throughput, RunKind::Latency]),
            protocol: self.pick(&[TransportProtocol::Tcp, TransportProtocol::Udp]),
            host: self.text(),
            port: (self.number() & 0xffff) as u16,
            directions: self.many(Self::direction),
            sequential: false,
            streams: self.small(),
            threads: self.optional(|s| PerEnd {
                client: s.small(),
                server: s.small(),
            }),
            duration_ns: self.optional(Self::number),
            amount_bytes: self.optional(Self::number),
            round_trips: self.optional(Self::number),
            omit_ns: self.number(),
            interval_ns: self.optional(Self::number),
            payload_bytes: self.number(),
            receive_bytes: self.optional(Self::number),
            window_bytes: self.optional(Self::number),
            rate_bps: self.optional(Self::number),
            pace: PacePlan {
                method: PacingMethod::Txtime,
                burst: self.optional(|s| PaceBurst::Payloads(s.number())),
                packets_per_second: self.optional(Self::number),
            },
            congestion_control: self.optional(Self::text),
            congestion_control_requested: self.is_present(),
            bind: self.optional(Self::text),
            source_port: self.optional(|s| (s.number() & 0xffff) as u16),
            wait: self.optional(|s| PerEnd {
                client: s.wait_mode(),
                server: s.wait_mode(),
            }),
            client_wait: None,
            cpu: PerEnd {
                client: self.cpus(),
                server: self.cpus(),
            },
            sched: PerEnd {
                client: SchedPolicy::RoundRobin(99),
                server: SchedPolicy::Nice(-20),
            },
            round_trip: self.round_trip(),
            socket: SocketPlan {
                send_buffer_bytes: self.optional(Self::number),
                receive_buffer_bytes: self.optional(Self::number),
                mss_bytes: self.optional(Self::small),
                no_delay: self.is_present(),
                tos: self.optional(|s| (s.number() & 0xff) as u8),
                priority: self.optional(Self::small),
                receive_low_water_bytes: self.optional(Self::small),
            },
            udp_offload: UdpOffload {
                gso: self.optional(Self::is_present),
                gro: self.optional(Self::is_present),
                requested: self.is_present(),
            },
            batch: None,
            forced_buffers: PerEnd::default(),
            copies: CopyModes::default(),
            verify: false,
            calls: false,
            hold_latency: self.is_present(),
            response_timeout_ns: self.optional(Self::number),
            response_timeout_requested: self.is_present(),
            trace: self.is_present(),
            trace_on_ns: self.optional(Self::number),
            timestamps: match self.small() % 4 {
                0 => TimestampLevel::None,
                1 => TimestampLevel::Packets,
                2 => TimestampLevel::Scheduler,
                _ => TimestampLevel::Driver,
            },
            forward: None,
            generate: None,
            stack: PerEnd {
                client: self.text(),
                server: self.text(),
            },
            client_stack: None,
            peer_protocol: self.optional(Self::text),
            server_report_command: self.optional(Self::text),
        }
    }

    fn host(&mut self) -> HostFacts {
        HostFacts {
            role: self.optional(Self::role),
            hostname: self.optional(Self::text),
            boot_id: self.optional(Self::text),
            kernel: self.optional(Self::text),
            distribution: self.optional(Self::text),
            architecture: self.optional(Self::text),
            cpu: CpuFacts {
                model: self.optional(Self::text),
                usable: self.optional(Self::small),
                quota: self.optional(|s| CpuQuota {
                    quota_ns: s.number(),
                    period_ns: s.number(),
                    file: s.text(),
                }),
                logical: self.optional(Self::small),
                cores: self.optional(Self::small),
                sockets: self.optional(Self::small),
                numa_nodes: self.optional(Self::small),
                hypervisor: self.optional(Self::text),
                governor: self.optional(Self::text),
                frequency_hz: None,
                frequency_max_hz: None,
                idle: self.optional(Self::text),
                idle_states: self.many(|s| IdleState {
                    name: s.text(),
                    latency_us: s.optional(Self::number),
                    disabled: s.is_present(),
                }),
                mitigations: self.texts(),
            },
            memory_bytes: self.optional(Self::number),
            clock_source: self.optional(Self::text),
            wake_up_ns: None,
            started_as: None,
            interface: self.optional(Self::interface),
            stack: None,
            sysctls: self.texts(),
        }
    }

    fn interface(&mut self) -> InterfaceFacts {
        InterfaceFacts {
            name: self.text(),
            driver: self.optional(Self::text),
            driver_version: self.optional(Self::text),
            firmware: self.optional(Self::text),
            pci_id: self.optional(Self::text),
            pci_address: self.optional(Self::text),
            numa_node: self.optional(Self::small),
            mac: self.optional(Self::text),
            speed_bps: self.optional(Self::number),
            duplex: self.optional(Self::text),
            mtu: self.optional(Self::small),
            qdisc: self.optional(Self::text),
            offloads: self
                .many(|s| (s.text(), s.is_present()))
                .into_iter()
                .collect(),
            gso_max_bytes: self.optional(Self::small),
            gso_ipv4_max_bytes: self.optional(Self::small),
            rx_queues: self.optional(Self::small),
            tx_queues: self.optional(Self::small),
            rx_descriptors: self.optional(Self::small),
            tx_descriptors: self.optional(Self::small),
            ..InterfaceFacts::default()
        }
    }

    fn quantiles(&mut self) -> Quantiles {
        Quantiles {
            count: self.number(),
            min: self.number(),
            mean: self.real(),
            p50: self.number(),
            p90: self.number(),
            p99: self.number(),
            p99_9: self.number(),
            p99_99: self.number(),
            max: self.number(),
            standard_deviation: self.real(),
        }
    }

    fn interval(&mut self) -> Interval {
        Interval {
            number: self.number(),
            start_ns: self.number(),
            end_ns: self.number(),
            direction: self.direction(),
            omitted: self.is_present(),
            counted_at: self.pick(&[FlowEnd::Sender, FlowEnd::Receiver]),
            bytes: self.number(),
            packets: self.optional(Self::number),
            calls: self.optional(Self::number),
            bytes_sent: self.optional(Self::number),
            packets_sent: self.optional(Self::number),
            lost: self.optional(Self::number),
            retransmits: self.optional(Self::number),
            cwnd_bytes: self.optional(Self::number),
            tcp_rtt_ns: self.optional(Self::number),
            rtt_ns: self.optional(Self::quantiles),
            tcp: self.optional(Self::tcp_interval),
            sender_threads: self.optional(Self::thread_shares),
            receiver_threads: self.optional(Self::thread_shares),
            streams: self.many(|s| StreamInterval {
                id: s.small(),
                bytes: s.number(),
                packets: s.optional(Self::number),
                lost: s.optional(Self::number),
                retransmits: s.optional(Self::number),
                cwnd_bytes: s.optional(Self::number),
                tcp_rtt_ns: s.optional(Self::number),
            }),
        }
    }

    fn tcp_interval(&mut self) -> TcpInterval {
        TcpInterval {
            flows: self.small(),
            cwnd_bytes: self.number(),
            rtt_ns: self.number(),
            min_rtt_ns: self.optional(Self::number),
            delivery_rate_bps: self.optional(Self::number),
            retransmits: self.number(),
            retransmitted_bytes: self.optional(Self::number),
            spurious_retransmits: self.optional(Self::number),
            reordering_seen: self.optional(Self::number),
            timeouts: self.optional(Self::number),
            marked: self.optional(Self::number),
            busy: self.optional(Self::real),
            receive_window_limited: self.optional(Self::real),
            send_buffer_limited: self.optional(Self::real),
        }
    }

    fn thread_shares(&mut self) -> ThreadShares {
        ThreadShares {
            running: self.real(),
            runnable: self.real(),
            blocked: self.real(),
        }
    }

    fn thread_cost(&mut self) -> ThreadCost {
        ThreadCost {
            direction: self.direction(),
            flow_end: self.pick(&[FlowEnd::Sender, FlowEnd::Receiver]),
            flows: self.small(),
            wall_ns: self.number(),
            cpu_ns: self.number(),
            user_ns: self.number(),
            system_ns: self.number(),
            runnable_ns: self.optional(Self::number),
            blocked_ns: self.optional(Self::number),
            voluntary_switches: self.number(),
            involuntary_switches: self.number(),
            cpus: self.optional(Self::cpus),
            calls: self.optional(Self::number),
            empty_calls: self.optional(Self::number),
            cycles: self.optional(Self::number),
            instructions: self.optional(Self::number),
        }
    }

    fn memory(&mut self) -> MemoryCost {
        MemoryCost {
            role: self.role(),
            streams: self.small(),
            process_bytes_per_stream: self.optional(Self::real),
            socket_bytes_per_stream: self.optional(Self::real),
        }
    }

    fn cpu_cost(&mut self) -> CpuCost {
        CpuCost {
            role: self.role(),
            share: self.real(),
            user_share: Some(self.real()),
            voluntary_switches: self.number(),
            involuntary_switches: self.number(),
            blocked_share: self.optional(Self::real),
            runnable_share: self.optional(Self::real),
            empty_share: self.optional(Self::real),
            ns_per_byte: self.optional(Self::real),
            ns_per_packet: self.optional(Self::real),
            cycles: self.optional(Self::number),
            instructions: self.optional(Self::number),
            uncounted_reason: self.optional(Self::text),
            throttling: self.optional(|s| CpuThrottling {
                periods: s.number(),
                throttled_periods: s.number(),
                throttled_ns: s.number(),
            }),
            machine: self.optional(|s| MachineTime {
                processors: s.small(),
                user_ns: s.number(),
                system_ns: s.number(),
                irq_ns: s.number(),
                softirq_ns: s.number(),
                steal_ns: s.number(),
                idle_ns: s.number(),
            }),
            processors: Vec::new(),
            threads: self.many(Self::thread_cost),
        }
    }

    fn summary(&mut self) -> Summary {
        Summary {
            duration_ns: self.optional(Self::number),
            goodput_bps: self.optional(Self::real),
            offered_bps: self.optional(Self::real),
            packets_per_second: self.optional(Self::real),
            calls_per_second: self.optional(Self::real),
            bytes_sent: self.optional(Self::number),
            bytes_received: self.optional(Self::number),
            packets_sent: self.optional(Self::number),
            packets_received: self.optional(Self::number),
            loss_fraction: self.optional(Self::real),
            out_of_order: self.optional(Self::number),
            duplicates: self.optional(Self::number),
            reordering_extent: self.optional(Self::number),
            ipdv_ns: self.optional(Self::real),
            // Only directions have histograms, not flows.
            delay_variation_ns: None,
            one_way_delay_ns: None,
            rate_error: self.optional(Self::real),
            lateness_ns: None,
            arrival_gap_ns: None,
            retransmits: self.optional(Self::number),
            rtt_ns: self.optional(Self::quantiles),
            round_trips: self.optional(Self::number),
            round_trips_per_second: self.optional(Self::real),
            lost: self.optional(Self::number),
            mismatched: self.optional(Self::number),
            slow: self.optional(Self::number),
            wrong_length: self.optional(Self::number),
            wrong_content: self.optional(Self::number),
            rtt_intended_ns: self.optional(Self::quantiles),
            unsent: self.optional(Self::number),
            whole_ns: self.optional(Self::quantiles),
            // Only runs have these, made from histograms.
            device: None,
            connections_per_second: self.optional(Self::real),
            fairness_index: self.optional(Self::real),
            cpu: self.many(Self::cpu_cost),
            memory: self.many(Self::memory),
        }
    }

    fn socket(&mut self) -> SocketFacts {
        SocketFacts {
            local: self.optional(Self::text),
            remote: self.optional(Self::text),
            send_buffer_bytes: self.optional(Self::number),
            receive_buffer_bytes: self.optional(Self::number),
            congestion_control: self.optional(Self::text),
            receive_queue_drops: self.optional(Self::number),
            send_refused: self.optional(Self::number),
            port_unreachable: None,
            unroutable: None,
            datagrams_per_call: self.optional(Self::small),
            napi_id: None,
            zero_copy: None,
            tcp: self.optional(|s| TcpFacts {
                retransmits: s.number(),
                cwnd_segments: s.number(),
                mss_bytes: s.number(),
                path_mtu_bytes: s.number(),
                rtt_ns: s.number(),
                rtt_variation_ns: s.number(),
                min_rtt_ns: s.optional(Self::number),
                send_window_bytes: None,
                delivery_rate_bps: s.optional(Self::number),
                busy_ns: s.optional(Self::number),
                receive_window_limited_ns: s.optional(Self::number),
                send_buffer_limited_ns: s.optional(Self::number),
                retransmitted_bytes: s.optional(Self::number),
                spurious_retransmits: s.optional(Self::number),
                reordering_seen: s.optional(Self::number),
                timeouts: s.optional(Self::number),
                marked: s.optional(Self::number),
                ecn: s.optional(Self::is_present),
            }),
        }
    }

    fn figures(&mut self) -> FlowFigures {
        FlowFigures {
            direction: self.direction(),
            stream: StreamFigures {
                id: self.small(),
                summary: Summary {
                    // Measured only for the complete run.
                    rtt_intended_ns: None,
                    whole_ns: None,
                    ..self.summary()
                },
                mismatch: None,
                sender: self.optional(Self::socket),
                receiver: self.optional(Self::socket),
            },
        }
    }

    fn histogram(&mut self) -> HistogramData {
        HistogramData {
            unit: self.text(),
            significant_digits: 3,
            count: self.number(),
            min: self.number(),
            max: self.number(),
            sum: self.number(),
            buckets: self.many(|s| (s.number(), s.number())),
        }
    }

    fn results(&mut self) -> EndResults {
        EndResults {
            role: self.role(),
            host: self.host(),
            cpu: self.optional(Self::cpu_cost),
            memory: self.optional(Self::memory),
            // One even in a minimal frame: its flattened part must be readable without any field.
            streams: vec![self.figures()],
            histograms: self
                .many(|s| (s.text(), s.histogram()))
                .into_iter()
                .collect(),
            verification: None,
            calls: BTreeMap::new(),
            call_clock: None,
            losses: self.many(|s| PacketLoss {
                direction: s.direction(),
                place: StoredId::from_text(s.text()),
                packets: s.number(),
                exact: s.is_present(),
                at_least: s.optional(Self::number),
                at_most: s.optional(Self::number),
            }),
            counters: self.many(|s| CounterDelta {
                host: s.text(),
                interface: s.optional(Self::text),
                counter: s.text(),
                before: s.number(),
                after: s.number(),
            }),
            slow: self.many(|s| SlowResponse {
                flow: s.small(),
                number: s.number(),
                at_ns: s.number(),
                time_ns: s.number(),
                cause: s.text(),
                evidence: s.text(),
            }),
            caveats: self.many(Self::caveat),
            interrupted: self.is_present(),
            duration_ns: self.number(),
        }
    }

    /// Returns one frame of every type but HELLO, in the order of their types.
    pub fn frames(&mut self) -> Vec<Frame> {
        vec![
            Reject {
                problem: ErrorReport::new(self.text(), self.text(), self.text()),
                exit_code: (self.number() & 0xff) as u8,
                retryable: self.is_present(),
            }
            .into(),
            Propose {
                plan: self.plan(),
                host: self.host(),
            }
            .into(),
            Accept {
                plan: self.plan(),
                wait: self.wait_mode(),
                cpus: self.cpus(),
                flows: self.many(|s| FlowGrant {
                    id: s.small(),
                    direction: s.direction(),
                    token: s.token(),
                    port: s.optional(|s| (s.number() & 0xffff) as u16),
                }),
                caveats: self.many(Self::caveat),
                wait_reason: self.optional(Self::text),
                threads: self.optional(Self::small),
            }
            .into(),
            FlowsAttached {}.into(),
            StartRun {
                wait: self.optional(Self::wait_mode),
                cpus: self.optional(Self::cpus),
                threads: self.optional(Self::small),
            }
            .into(),
            IntervalReport {
                interval: self.interval(),
            }
            .into(),
            SenderTotals {
                flows: self.many(|s| FlowTotal {
                    id: s.small(),
                    bytes: s.number(),
                    packets: s.optional(Self::number),
                }),
            }
            .into(),
            StopRun {
                reason: self.text(),
            }
            .into(),
            self.results().into(),
            RequestedSettings {
                requested: self.texts(),
            }
            .into(),
            SettingsReply {
                granted: self.texts(),
                rejected: self.texts(),
            }
            .into(),
            ClockRequest {
                t1_ns: self.number(),
            }
            .into(),
            ClockReply {
                t1_ns: self.number(),
                t2_ns: self.number(),
                t3_ns: self.number(),
            }
            .into(),
            Heartbeat {}.into(),
            Bye {}.into(),
            FlowFiguresBatch {
                flows: vec![self.figures()],
            }
            .into(),
            ResponderTimestamps {
                flow: self.small(),
                round_trips: self.many(|source| [(); 9].map(|()| source.number())),
                work: self.many(|source| [(); 3].map(|()| source.number())),
                calls: self.many(|source| [(); 4].map(|()| source.number())),
                caveats: self.many(Self::text),
                device: self.optional(|source| DeviceTimestamping {
                    departures: source.number().is_multiple_of(2),
                    arrivals: source.number().is_multiple_of(2),
                    error_ns: source.number(),
                }),
            }
            .into(),
        ]
    }

    /// Returns a HELLO of version 1.
    pub fn hello(&mut self) -> Hello {
        Hello {
            agent: self.text(),
            features: self.many(Self::text),
            boot_id: self.optional(Self::text),
            ..Hello::new("")
        }
    }
}
