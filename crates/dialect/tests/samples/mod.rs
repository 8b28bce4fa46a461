//! Frames for tests: complete ones, minimal ones, and random ones.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;

use linerate_dialect::control::{
    Accept, Attached, Bye, ClockAnswer, ClockQuestion, DeviceStamps, Figures, FlowFigures,
    FlowGrant, FlowTotal, Frame, Heartbeat, Hello, IntervalEnded, Outcome, Propose, Refuse, Sent,
    Settings, SettingsAnswer, Stamps, Start, Stop, Token,
};
use linerate_metric::cost::{
    MachineTime, MemoryCost, StreamInterval, TcpInterval, ThreadCost, ThreadShares,
};
use linerate_metric::event::Problem;
use linerate_metric::facts::{Cpu, Host, IdleState, Interface, Role};
use linerate_metric::pace::{Burst, Pace, Pacing};
use linerate_metric::plan::{
    Copies, Cpus, Direction, Ends, Kind, Plan, Protocol, Sched, SocketPlan, Stamping, UdpOffload,
    Wait,
};
use linerate_metric::record::{
    CountedAt, CpuCost, Doubt, HistogramData, Interval, Loss, PlaceCounter, Quantiles, SlowAnswer,
    Socket, Stream, Summary, TcpState,
};
use linerate_metric::round_trip::{Attachment, Group, RoundTripPlan};

/// Source of values; it also decides whether an optional value is present.
pub enum Source {
    /// No optional values, and zeros.
    Least,
    /// All optional values, with counted numbers.
    Full(u64),
    /// Random values.
    Random(fastrand::Rng),
}

impl Source {
    fn number(&mut self) -> u64 {
        match self {
            Self::Least => 0,
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

    fn yes(&mut self) -> bool {
        match self {
            Self::Least => false,
            Self::Full(_) => true,
            Self::Random(rng) => rng.bool(),
        }
    }

    fn count(&mut self) -> usize {
        match self {
            Self::Least => 0,
            Self::Full(_) => 1,
            Self::Random(rng) => rng.usize(..4),
        }
    }

    fn text(&mut self) -> String {
        match self {
            Self::Least => String::new(),
            Self::Full(_) => format!("text {}", self.number()),
            Self::Random(rng) => (0..rng.usize(..40)).map(|_| rng.char(..)).collect(),
        }
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.yes().then(|| value(self))
    }

    fn many<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.count()).map(|_| value(self)).collect()
    }

    fn texts(&mut self) -> BTreeMap<String, String> {
        self.many(|s| (s.text(), s.text())).into_iter().collect()
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        let choice = match self {
            Self::Least => 0,
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

    fn waiting(&mut self) -> Wait {
        self.pick(&[
            Wait::Block,
            Wait::Spin,
            Wait::Poll,
            Wait::Select {
                timeout_ns: Some(100_000),
            },
            Wait::Epoll,
        ])
    }

    fn cpus(&mut self) -> Cpus {
        Cpus(self.many(Self::small))
    }

    fn doubt(&mut self) -> Doubt {
        Doubt::new(&self.text(), self.text())
    }

    fn token(&mut self) -> Token {
        let mut token = [0; 16];
        for byte in &mut token {
            *byte = (self.number() & 0xff) as u8;
        }
        Token(token)
    }

    fn round_trip(&mut self) -> RoundTripPlan {
        RoundTripPlan {
            verify: self.yes(),
            limit_ns: self.maybe(Self::number),
            attachment: self.pick(&[
                Attachment::Connected,
                Attachment::Unconnected,
                Attachment::Reopened,
            ]),
            connections: self.yes(),
            rate_per_second: self.maybe(Self::number),
            outstanding: self.small(),
            group: self.maybe(|s| Group {
                address: std::net::Ipv4Addr::new(239, 1, 2, 3).into(),
                interface: s.maybe(Self::text),
                ttl: 7,
            }),
            rt_yield: self.yes(),
            lock_memory: self.yes(),
            device_stamps: None,
            burn: Ends {
                near: self.small(),
                far: self.small(),
            },
        }
    }

    fn plan(&mut self) -> Plan {
        Plan {
            kind: self.pick(&[Kind::Throughput, Kind::Latency]),
            protocol: self.pick(&[Protocol::Tcp, Protocol::Udp]),
            host: self.text(),
            port: (self.number() & 0xffff) as u16,
            directions: self.many(Self::direction),
            in_turn: false,
            streams: self.small(),
            threads: self.maybe(|s| Ends {
                near: s.small(),
                far: s.small(),
            }),
            duration_ns: self.maybe(Self::number),
            amount_bytes: self.maybe(Self::number),
            round_trips: self.maybe(Self::number),
            omit_ns: self.number(),
            interval_ns: self.maybe(Self::number),
            payload_bytes: self.number(),
            receive_bytes: self.maybe(Self::number),
            window_bytes: self.maybe(Self::number),
            rate_bps: self.maybe(Self::number),
            pace: Pace {
                by: Pacing::Txtime,
                burst: self.maybe(|s| Burst::Payloads(s.number())),
                packets_per_second: self.maybe(Self::number),
            },
            congestion_control: self.maybe(Self::text),
            congestion_control_asked: self.yes(),
            bind: self.maybe(Self::text),
            source_port: self.maybe(|s| (s.number() & 0xffff) as u16),
            wait: self.maybe(|s| Ends {
                near: s.waiting(),
                far: s.waiting(),
            }),
            near_wait: None,
            cpu: Ends {
                near: self.cpus(),
                far: self.cpus(),
            },
            sched: Ends {
                near: Sched::RoundRobin(99),
                far: Sched::Nice(-20),
            },
            round_trip: self.round_trip(),
            socket: SocketPlan {
                send_buffer_bytes: self.maybe(Self::number),
                receive_buffer_bytes: self.maybe(Self::number),
                mss_bytes: self.maybe(Self::small),
                no_delay: self.yes(),
                tos: self.maybe(|s| (s.number() & 0xff) as u8),
                priority: self.maybe(Self::small),
                receive_low_water_bytes: self.maybe(Self::small),
            },
            udp_offload: UdpOffload {
                gso: self.maybe(Self::yes),
                gro: self.maybe(Self::yes),
                asked: self.yes(),
            },
            batch: None,
            forced_buffers: Ends::default(),
            copies: Copies::default(),
            verify: false,
            calls: false,
            hold_latency: self.yes(),
            answer_timeout_ns: self.maybe(Self::number),
            trace: self.yes(),
            trace_on_ns: self.maybe(Self::number),
            stamps: match self.small() % 4 {
                0 => Stamping::None,
                1 => Stamping::Packets,
                2 => Stamping::Scheduler,
                _ => Stamping::Driver,
            },
            forward: None,
            generate: None,
            stack: Ends {
                near: self.text(),
                far: self.text(),
            },
            near_stack: None,
            dialect: self.maybe(Self::text),
            far_report: self.maybe(Self::text),
        }
    }

    fn host(&mut self) -> Host {
        Host {
            role: self.maybe(Self::role),
            hostname: self.maybe(Self::text),
            boot_id: self.maybe(Self::text),
            kernel: self.maybe(Self::text),
            distribution: self.maybe(Self::text),
            architecture: self.maybe(Self::text),
            cpu: Cpu {
                model: self.maybe(Self::text),
                usable: self.maybe(Self::small),
                logical: self.maybe(Self::small),
                cores: self.maybe(Self::small),
                sockets: self.maybe(Self::small),
                numa_nodes: self.maybe(Self::small),
                hypervisor: self.maybe(Self::text),
                governor: self.maybe(Self::text),
                frequency_hz: None,
                frequency_max_hz: None,
                idle: self.maybe(Self::text),
                idle_states: self.many(|s| IdleState {
                    name: s.text(),
                    latency_us: s.maybe(Self::number),
                    disabled: s.yes(),
                }),
                mitigations: self.texts(),
            },
            memory_bytes: self.maybe(Self::number),
            clock_source: self.maybe(Self::text),
            wake_up_ns: None,
            started_as: None,
            interface: self.maybe(Self::interface),
            stack: None,
            sysctls: self.texts(),
        }
    }

    fn interface(&mut self) -> Interface {
        Interface {
            name: self.text(),
            driver: self.maybe(Self::text),
            driver_version: self.maybe(Self::text),
            firmware: self.maybe(Self::text),
            pci_id: self.maybe(Self::text),
            pci_address: self.maybe(Self::text),
            numa_node: self.maybe(Self::small),
            mac: self.maybe(Self::text),
            speed_bps: self.maybe(Self::number),
            duplex: self.maybe(Self::text),
            mtu: self.maybe(Self::small),
            qdisc: self.maybe(Self::text),
            offloads: self.many(|s| (s.text(), s.yes())).into_iter().collect(),
            gso_ipv4_max_bytes: self.maybe(Self::small),
            rx_queues: self.maybe(Self::small),
            tx_queues: self.maybe(Self::small),
            rx_descriptors: self.maybe(Self::small),
            tx_descriptors: self.maybe(Self::small),
            ..Interface::default()
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
            omitted: self.yes(),
            counted_at: self.pick(&[CountedAt::Sender, CountedAt::Receiver]),
            bytes: self.number(),
            packets: self.maybe(Self::number),
            calls: self.maybe(Self::number),
            bytes_sent: self.maybe(Self::number),
            packets_sent: self.maybe(Self::number),
            lost: self.maybe(Self::number),
            retransmits: self.maybe(Self::number),
            cwnd_bytes: self.maybe(Self::number),
            tcp_rtt_ns: self.maybe(Self::number),
            rtt_ns: self.maybe(Self::quantiles),
            tcp: self.maybe(Self::tcp_interval),
            sender_threads: self.maybe(Self::thread_shares),
            receiver_threads: self.maybe(Self::thread_shares),
            streams: self.many(|s| StreamInterval {
                id: s.small(),
                bytes: s.number(),
                packets: s.maybe(Self::number),
                lost: s.maybe(Self::number),
                retransmits: s.maybe(Self::number),
                cwnd_bytes: s.maybe(Self::number),
                tcp_rtt_ns: s.maybe(Self::number),
            }),
        }
    }

    fn tcp_interval(&mut self) -> TcpInterval {
        TcpInterval {
            flows: self.small(),
            cwnd_bytes: self.number(),
            rtt_ns: self.number(),
            min_rtt_ns: self.maybe(Self::number),
            delivery_rate_bps: self.maybe(Self::number),
            retransmits: self.number(),
            retransmitted_bytes: self.maybe(Self::number),
            spurious_retransmits: self.maybe(Self::number),
            reordering_seen: self.maybe(Self::number),
            timeouts: self.maybe(Self::number),
            marked: self.maybe(Self::number),
            busy: self.maybe(Self::real),
            receive_window_limited: self.maybe(Self::real),
            send_buffer_limited: self.maybe(Self::real),
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
            part: self.pick(&[CountedAt::Sender, CountedAt::Receiver]),
            flows: self.small(),
            wall_ns: self.number(),
            cpu_ns: self.number(),
            user_ns: self.number(),
            system_ns: self.number(),
            runnable_ns: self.maybe(Self::number),
            blocked_ns: self.maybe(Self::number),
            voluntary_switches: self.number(),
            involuntary_switches: self.number(),
            cpus: self.maybe(Self::cpus),
            calls: self.maybe(Self::number),
            empty_calls: self.maybe(Self::number),
            cycles: self.maybe(Self::number),
            instructions: self.maybe(Self::number),
        }
    }

    fn memory(&mut self) -> MemoryCost {
        MemoryCost {
            role: self.role(),
            streams: self.small(),
            process_bytes_per_stream: self.maybe(Self::real),
            socket_bytes_per_stream: self.maybe(Self::real),
        }
    }

    fn cpu_cost(&mut self) -> CpuCost {
        CpuCost {
            role: self.role(),
            share: self.real(),
            user_share: Some(self.real()),
            voluntary_switches: self.number(),
            involuntary_switches: self.number(),
            blocked_share: self.maybe(Self::real),
            runnable_share: self.maybe(Self::real),
            empty_share: self.maybe(Self::real),
            ns_per_byte: self.maybe(Self::real),
            ns_per_packet: self.maybe(Self::real),
            cycles: self.maybe(Self::number),
            instructions: self.maybe(Self::number),
            uncounted_because: self.maybe(Self::text),
            machine: self.maybe(|s| MachineTime {
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
            duration_ns: self.maybe(Self::number),
            goodput_bps: self.maybe(Self::real),
            offered_bps: self.maybe(Self::real),
            packets_per_second: self.maybe(Self::real),
            calls_per_second: self.maybe(Self::real),
            bytes_sent: self.maybe(Self::number),
            bytes_received: self.maybe(Self::number),
            packets_sent: self.maybe(Self::number),
            packets_received: self.maybe(Self::number),
            loss_fraction: self.maybe(Self::real),
            out_of_order: self.maybe(Self::number),
            duplicates: self.maybe(Self::number),
            reordering_extent: self.maybe(Self::number),
            ipdv_ns: self.maybe(Self::real),
            // Only directions have histograms, not flows.
            delay_variation_ns: None,
            one_way_delay_ns: None,
            rate_error: self.maybe(Self::real),
            lateness_ns: None,
            arrival_gap_ns: None,
            retransmits: self.maybe(Self::number),
            rtt_ns: self.maybe(Self::quantiles),
            round_trips: self.maybe(Self::number),
            round_trips_per_second: self.maybe(Self::real),
            lost: self.maybe(Self::number),
            mismatched: self.maybe(Self::number),
            slow: self.maybe(Self::number),
            wrong_length: self.maybe(Self::number),
            wrong_content: self.maybe(Self::number),
            rtt_intended_ns: self.maybe(Self::quantiles),
            unsent: self.maybe(Self::number),
            whole_ns: self.maybe(Self::quantiles),
            // Only runs have these, made from histograms.
            device: None,
            connections_per_second: self.maybe(Self::real),
            fairness_index: self.maybe(Self::real),
            cpu: self.many(Self::cpu_cost),
            memory: self.many(Self::memory),
        }
    }

    fn socket(&mut self) -> Socket {
        Socket {
            local: self.maybe(Self::text),
            remote: self.maybe(Self::text),
            send_buffer_bytes: self.maybe(Self::number),
            receive_buffer_bytes: self.maybe(Self::number),
            congestion_control: self.maybe(Self::text),
            receive_queue_drops: self.maybe(Self::number),
            send_refused: self.maybe(Self::number),
            refusals: None,
            unroutable: None,
            datagrams_per_call: self.maybe(Self::small),
            napi_id: None,
            zero_copy: None,
            tcp: self.maybe(|s| TcpState {
                retransmits: s.number(),
                cwnd_segments: s.number(),
                mss_bytes: s.number(),
                path_mtu_bytes: s.number(),
                rtt_ns: s.number(),
                rtt_variation_ns: s.number(),
                min_rtt_ns: s.maybe(Self::number),
                send_window_bytes: None,
                delivery_rate_bps: s.maybe(Self::number),
                busy_ns: s.maybe(Self::number),
                receive_window_limited_ns: s.maybe(Self::number),
                send_buffer_limited_ns: s.maybe(Self::number),
                retransmitted_bytes: s.maybe(Self::number),
                spurious_retransmits: s.maybe(Self::number),
                reordering_seen: s.maybe(Self::number),
                timeouts: s.maybe(Self::number),
                marked: s.maybe(Self::number),
                ecn: s.maybe(Self::yes),
            }),
        }
    }

    fn figures(&mut self) -> FlowFigures {
        FlowFigures {
            direction: self.direction(),
            stream: Stream {
                id: self.small(),
                summary: Summary {
                    // Measured only for the complete run.
                    rtt_intended_ns: None,
                    whole_ns: None,
                    ..self.summary()
                },
                mismatch: None,
                sender: self.maybe(Self::socket),
                receiver: self.maybe(Self::socket),
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

    fn outcome(&mut self) -> Outcome {
        Outcome {
            role: self.role(),
            host: self.host(),
            cpu: self.maybe(Self::cpu_cost),
            memory: self.maybe(Self::memory),
            // One even in a minimal frame: its flattened part must be readable without any field.
            streams: vec![self.figures()],
            histograms: self
                .many(|s| (s.text(), s.histogram()))
                .into_iter()
                .collect(),
            verification: None,
            calls: BTreeMap::new(),
            call_clock: None,
            losses: self.many(|s| Loss {
                direction: s.direction(),
                place: s.text(),
                packets: s.number(),
                exact: s.yes(),
                at_least: s.maybe(Self::number),
                at_most: s.maybe(Self::number),
            }),
            counters: self.many(|s| PlaceCounter {
                host: s.text(),
                interface: s.maybe(Self::text),
                counter: s.text(),
                before: s.number(),
                after: s.number(),
            }),
            slow: self.many(|s| SlowAnswer {
                flow: s.small(),
                number: s.number(),
                at_ns: s.number(),
                time_ns: s.number(),
                cause: s.text(),
                evidence: s.text(),
            }),
            doubts: self.many(Self::doubt),
            interrupted: self.yes(),
            duration_ns: self.number(),
        }
    }

    /// Returns one frame of every type but HELLO, in the order of their types.
    pub fn frames(&mut self) -> Vec<Frame> {
        vec![
            Refuse {
                problem: Problem::new(self.text(), self.text(), self.text()),
                exit_code: (self.number() & 0xff) as u8,
                may_pass: self.yes(),
            }
            .into(),
            Propose {
                plan: self.plan(),
                host: self.host(),
            }
            .into(),
            Accept {
                plan: self.plan(),
                wait: self.waiting(),
                cpus: self.cpus(),
                flows: self.many(|s| FlowGrant {
                    id: s.small(),
                    direction: s.direction(),
                    token: s.token(),
                    port: s.maybe(|s| (s.number() & 0xffff) as u16),
                }),
                doubts: self.many(Self::doubt),
                because: self.maybe(Self::text),
                threads: self.maybe(Self::small),
            }
            .into(),
            Attached {}.into(),
            Start {
                wait: self.maybe(Self::waiting),
                cpus: self.maybe(Self::cpus),
                threads: self.maybe(Self::small),
            }
            .into(),
            IntervalEnded {
                interval: self.interval(),
            }
            .into(),
            Sent {
                flows: self.many(|s| FlowTotal {
                    id: s.small(),
                    bytes: s.number(),
                    packets: s.maybe(Self::number),
                }),
            }
            .into(),
            Stop { why: self.text() }.into(),
            self.outcome().into(),
            Settings {
                wanted: self.texts(),
            }
            .into(),
            SettingsAnswer {
                granted: self.texts(),
                refused: self.texts(),
            }
            .into(),
            ClockQuestion {
                t1_ns: self.number(),
            }
            .into(),
            ClockAnswer {
                t1_ns: self.number(),
                t2_ns: self.number(),
                t3_ns: self.number(),
            }
            .into(),
            Heartbeat {}.into(),
            Bye {}.into(),
            Figures {
                flows: vec![self.figures()],
            }
            .into(),
            Stamps {
                flow: self.small(),
                trips: self.many(|source| [(); 9].map(|()| source.number())),
                work: self.many(|source| [(); 3].map(|()| source.number())),
                calls: self.many(|source| [(); 4].map(|()| source.number())),
                notes: self.many(Self::text),
                device: self.maybe(|source| DeviceStamps {
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
            boot_id: self.maybe(Self::text),
            ..Hello::new("")
        }
    }
}
