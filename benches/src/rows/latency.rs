//! Median round trips compared with a bare loop in the same wait mode and with sockperf, and the
//! cost of timestamps.

use std::time::Duration;

use linerate_host::settings::idle_hold::hold_idle_states;
use serde_json::Value;

use crate::bench_env::{BenchEnv, DefaultCongestion};
use crate::error::BenchError;
use crate::peer::{bare_loops, linerate, sockperf};
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Duration of a run: tens of thousands of round trips, and rarely a change of the machine's state.
const RUN_TIME: Duration = Duration::from_millis(500);

/// Time limit, far above a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);

/// Both ends block.
pub const UDP_BLOCKING: BenchRow = BenchRow {
    name: "latency/udp/1024B/blocking",
    against: "bare blocking sendto/recvfrom loop, p50",
    unit: "us",
    mark: RatioMark::AtMost(1.02),
    is_speed: true,
    needs_near_state: false,
    holds_idle_states: true,
    default_congestion: DefaultCongestion::Cubic,
    is_long: false,
    max_pairs: None,
    slices_per_pair: 1,
    check_requirements: bare_loops::check_installed,
    measure: |env| measure_linerate(env, 1024, "block"),
    peers: &[BenchPeer::single(|env| measure_bare(env, 1024, "block"))],
};

/// [`UDP_BLOCKING`] with small messages.
pub const UDP_64B_BLOCKING: BenchRow = BenchRow {
    name: "latency/udp/64B/blocking",
    measure: |env| measure_linerate(env, 64, "block"),
    peers: &[BenchPeer::single(|env| measure_bare(env, 64, "block"))],
    ..UDP_BLOCKING
};

/// [`UDP_BLOCKING`] with messages of 23 fragments.
pub const UDP_32K_BLOCKING: BenchRow = BenchRow {
    name: "latency/udp/32K/blocking",
    measure: |env| measure_linerate(env, 32 << 10, "block"),
    peers: &[BenchPeer::single(|env| {
        measure_bare(env, 32 << 10, "block")
    })],
    ..UDP_BLOCKING
};

/// Both ends spin.
pub const UDP_SPINNING: BenchRow = BenchRow {
    name: "latency/udp/1024B/spinning",
    against: "bare MSG_DONTWAIT sendto/recvfrom loop, p50",
    mark: RatioMark::AtMost(1.03),
    measure: |env| measure_linerate(env, 1024, "spin"),
    peers: &[BenchPeer::single(|env| measure_bare(env, 1024, "spin"))],
    ..UDP_BLOCKING
};

/// Both ends spin on connected sockets, compared with sockperf.
pub const UDP_64B_SPINNING: BenchRow = BenchRow {
    name: "latency/udp/64B/spinning",
    against: "sockperf ping-pong --nonblocked --full-rtt, p50",
    mark: RatioMark::AtMost(0.97),
    check_requirements: sockperf::check_installed,
    measure: |env| measure_linerate(env, 64, "spin"),
    peers: &[BenchPeer::single(|env| {
        sockperf::measure_ping_pong(env, "-m 64 --nonblocked")
    })],
    ..UDP_BLOCKING
};

/// Default wait mode, on the unmodified machine.
pub const UDP_64B_FOUND: BenchRow = BenchRow {
    name: "latency/udp/64B/blocking/found",
    against: "sockperf ping-pong --full-rtt, p50",
    mark: RatioMark::Within(0.97, 1.03),
    holds_idle_states: false,
    check_requirements: sockperf::check_installed,
    measure: |env| measure_linerate(env, 64, "block"),
    peers: &[BenchPeer::single(|env| {
        sockperf::measure_ping_pong(env, "-m 64")
    })],
    ..UDP_BLOCKING
};

/// Gain of disabling idle states.
pub const HOLD_LATENCY: BenchRow = BenchRow {
    name: "latency/hold_latency",
    against: "blocking as found, p50",
    mark: RatioMark::AtMost(1.0 / 3.0),
    holds_idle_states: false,
    check_requirements: |_| Ok(()),
    measure: |env| measure_linerate(env, 64, "block --hold-latency"),
    peers: &[BenchPeer::single(|env| measure_linerate(env, 64, "block"))],
    ..UDP_BLOCKING
};

/// Gain of [`HOLD_LATENCY`] in a bare loop: the maximum on this machine; if other programs keep its
/// cores busy, there is none.
pub const HOLD_LATENCY_BARE: BenchRow = BenchRow {
    name: "latency/hold_latency/bare",
    against: "bare blocking sendto/recvfrom loop as found, p50",
    check_requirements: bare_loops::check_installed,
    measure: |env| {
        let _hold = hold_idle_states().map_err(|error| BenchError::skip(error.to_string()))?;
        measure_bare(env, 64, "block")
    },
    peers: &[BenchPeer::single(|env| measure_bare(env, 64, "block"))],
    ..HOLD_LATENCY
};

/// Added time per round trip for requesting all packet timestamps.
pub const STAMPS: BenchRow = BenchRow {
    name: "latency/stages/timestamp_overhead",
    against: "1.6 us on top of the round trip",
    mark: RatioMark::AtMost(1.0),
    check_requirements: |_| Ok(()),
    measure: |env| {
        let record = measure_stages(env)?;
        Ok(linerate::read_figure(&record, "/stage_pass/timestamp_overhead_ns")? / 1e3)
    },
    peers: &[BenchPeer::single(|_| Ok(1.6))],
    ..UDP_BLOCKING
};

/// Sum of the stages' medians compared with the median of the same round trips.
pub const STAGE_SUM: BenchRow = BenchRow {
    name: "latency/stages/sum",
    against: "p50 of the same timestamped round trips",
    mark: RatioMark::Within(0.95, 1.05),
    check_requirements: |_| Ok(()),
    measure: |env| {
        let record = measure_stages(env)?;
        let sum = linerate::read_figure(&record, "/stage_pass/sum_of_medians_ns")?;
        Ok(sum / linerate::read_figure(&record, "/stage_pass/rtt_ns/p50")?)
    },
    peers: &[BenchPeer::single(|_| Ok(1.0))],
    unit: "",
    ..UDP_BLOCKING
};

fn measure_linerate(env: &BenchEnv, bytes: u32, wait: &str) -> Result<f64, BenchError> {
    let time = RUN_TIME.as_millis();
    let args = format!("latency -u -l {bytes} -t {time}ms --wait {wait}");
    let record = linerate::run_test(env, &args, RUN_TIMEOUT)?;
    Ok(linerate::read_figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}

fn measure_stages(env: &BenchEnv) -> Result<Value, BenchError> {
    let time = RUN_TIME.as_millis();
    let args = format!("latency -u -l 64 -t {time}ms --stages");
    linerate::run_tests(env, &args, RUN_TIMEOUT)
}

fn measure_bare(env: &BenchEnv, bytes: u32, wait: &str) -> Result<f64, BenchError> {
    env.bare_loops()?
        .measure_pingpong(env, bytes, wait, RUN_TIME)
}
