//! Sample runs, modelled on real ones and deterministic.
#![allow(dead_code, unused_imports)] // each test binary uses some of them

mod hosts;
mod round_trips;
mod sets;
mod stages;
mod streams;

use linerate_record::cost::{MachineTime, ThreadCost};
use linerate_record::facts::Role;
use linerate_record::plan::{CpuList, Direction, PerEnd, Plan, WaitMode};
use linerate_record::record::{CpuCost, FlowEnd, Interval, Record};

pub use hosts::*;
pub use round_trips::*;
pub use sets::*;
pub use stages::*;
pub use streams::*;

const SECOND: u64 = 1_000_000_000;

/// Deterministic pseudo-random numbers.
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

    /// Returns a value around 1, within `spread` to either side.
    pub fn around(&mut self, spread: f64) -> f64 {
        1.0 + spread * (2.0 * self.uniform() - 1.0)
    }
}

fn empty(id: &str, plan: Plan) -> Record {
    let started = "2026-11-21T14:40:42.123456789Z".parse().unwrap();
    Record {
        hosts: vec![client(), server()],
        ..Record::new(id.to_owned(), started, plan)
    }
}

/// Returns a distribution with the median `p50`.
fn times(p50: u64) -> Option<linerate_stats::histogram::Quantiles> {
    Some(linerate_stats::histogram::Quantiles {
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

fn cpu(client: f64, server: f64) -> Vec<CpuCost> {
    vec![
        CpuCost {
            role: Role::Client,
            share: client,
            user_share: Some(client * 0.05),
            voluntary_switches: 1_204,
            involuntary_switches: 12,
            blocked_share: Some((0.99 - client).max(0.0)),
            runnable_share: Some(0.01),
            empty_share: None,
            ns_per_byte: Some(0.121),
            ns_per_packet: None,
            cycles: Some(31_400_000_000),
            instructions: Some(27_900_000_000),
            uncounted_reason: None,
            throttling: None,
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
                flow_end: FlowEnd::Sender,
                flows: 1,
                wall_ns: 10_000_200_000,
                cpu_ns: (client * 1e10) as u64,
                user_ns: (client * 5e8) as u64,
                system_ns: (client * 9.5e9) as u64,
                runnable_ns: Some(100_000_000),
                blocked_ns: Some(((0.99 - client) * 1e10) as u64),
                voluntary_switches: 1_204,
                involuntary_switches: 12,
                cpus: Some(CpuList(vec![0])),
                calls: Some(81_230),
                empty_calls: Some(0),
                cycles: Some(31_400_000_000),
                instructions: Some(27_900_000_000),
            }],
        },
        CpuCost {
            role: Role::Server,
            share: server,
            user_share: Some(server * 0.08),
            voluntary_switches: 0,
            involuntary_switches: 1,
            blocked_share: Some(0.0),
            runnable_share: Some(0.0),
            empty_share: Some(0.31),
            ns_per_byte: Some(0.124),
            ns_per_packet: None,
            cycles: None,
            instructions: None,
            uncounted_reason: Some(
                "this machine has no hardware counters (virtual machines often have none)"
                    .to_owned(),
            ),
            throttling: None,
            machine: None,
            processors: Vec::new(),
            threads: Vec::new(),
        },
    ]
}

/// Returns an interval without figures.
fn interval(direction: Direction) -> Interval {
    Interval {
        number: 0,
        start_ns: 0,
        end_ns: 0,
        direction,
        omitted: false,
        counted_at: FlowEnd::Receiver,
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

/// Wait modes of the samples: the client blocks, the server spins.
pub fn block_spin() -> PerEnd<WaitMode> {
    PerEnd {
        client: WaitMode::Block,
        server: WaitMode::Spin,
    }
}
