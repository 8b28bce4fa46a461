//! Sample latency runs.

use std::collections::BTreeMap;

use linerate_record::call_times::{CallClock, CallOutcomes, CallTimes};
use linerate_record::facts::Role;
use linerate_record::plan::{Direction, PerEnd, Plan, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::{
    DirectionFigures, FlowEnd, Interval, Record, SlowResponse, StreamFigures, Summary,
};
use linerate_record::round_trip::SocketMode;
use linerate_stats::histogram::{Histogram, HistogramData};

use super::{Noise, SECOND, cpu, empty, interval};

/// UDP round trips with blocking sockets: 48 us, with a tail.
pub fn latency_blocking() -> Record {
    latency("20261121T144118Z-c0ffee", WaitMode::Block, 48_000.0, 101)
}

/// Latency run with a limit, and with responses that were slow, wrong, late and duplicated.
pub fn latency_limited() -> Record {
    let mut record = latency("20261121T144121Z-51011e", WaitMode::Block, 48_000.0, 101);
    record.plan.round_trip.limit_ns = Some(200_000);
    let slow = |number: u64, time_ns: u64, cause: &str, evidence: &str| SlowResponse {
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

/// One socket per round trip, with a send schedule. (Real runs have one or the other; each has its
/// table.)
pub fn latency_reopened() -> Record {
    let mut record = latency("20261121T144122Z-0be0ed", WaitMode::Block, 48_000.0, 101);
    record.plan.round_trip.socket_mode = SocketMode::Reopened;
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

/// UDP round trips with spinning sockets: 6 us.
pub fn latency_spinning() -> Record {
    latency("20261121T144124Z-facade", WaitMode::Spin, 6_050.0, 202)
}

pub(super) fn latency(id: &str, wait: WaitMode, typical: f64, seed: u64) -> Record {
    let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "10.77.0.2");
    plan.duration_ns = Some(5 * SECOND);
    plan.interval_ns = Some(SECOND / 2);
    plan.wait = Some(PerEnd::same(wait));
    plan.cpu = "0/1".parse().unwrap();
    let mut record = empty(id, plan);
    let mut noise = Noise::new(seed);
    let mut all = Histogram::new();
    for step in 0..10 {
        let mut part = Histogram::new();
        for _ in 0..5_000 {
            let body = typical * (0.86 + 0.2 * noise.uniform() + 0.1 * noise.uniform());
            // One in a hundred is delayed by a timer tick, a few in ten thousand by another thread.
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
            counted_at: FlowEnd::Sender,
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
    let busy = if wait == WaitMode::Spin { 1.0 } else { 0.31 };
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
        streams: vec![StreamFigures {
            id: 1,
            summary: record.summary.clone(),
            ..StreamFigures::default()
        }],
    }];
    record
}

/// Latency run with all calls timed.
pub fn timed() -> Record {
    let times = |around: u64, count: u64| {
        let mut histogram = Histogram::new();
        for n in 0..count {
            histogram.record(around + n % 97 * (around / 50).max(1));
        }
        CallTimes::from_histogram(&histogram)
    };
    let mut record = latency_blocking();
    record.plan.calls = true;
    record.calls = BTreeMap::from([
        (
            "sendto".to_owned(),
            CallOutcomes {
                accepted: times(3_600, 20_000),
                ..CallOutcomes::default()
            },
        ),
        (
            "recvfrom".to_owned(),
            CallOutcomes {
                ready: times(560, 120),
                waited: times(44_000, 19_880),
                ..CallOutcomes::default()
            },
        ),
    ]);
    record.server_calls.clone_from(&record.calls);
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
