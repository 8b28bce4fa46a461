//! Cost of many streams: their total goodput compared with that of one.

use std::time::Duration;

use crate::bench_env::{BenchEnv, DefaultCongestion};
use crate::error::BenchError;
use crate::peer::{bare_loops, linerate};
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Time limit; opening ten thousand connections takes some seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

pub const STREAMS_10: BenchRow = BenchRow {
    name: "throughput/tcp/streams/10",
    against: "one stream",
    unit: "Gb/s",
    mark: RatioMark::Informational,
    is_speed: true,
    needs_near_state: false,
    holds_idle_states: true,
    default_congestion: DefaultCongestion::Cubic,
    is_long: false,
    max_pairs: Some(5),
    slices_per_pair: 1,
    check_requirements: |_| Ok(()),
    measure: |env| measure_goodput(env, 10),
    peers: &[BenchPeer::single(|env| measure_goodput(env, 1))],
};

pub const STREAMS_100: BenchRow = BenchRow {
    name: "throughput/tcp/streams/100",
    measure: |env| measure_goodput(env, 100),
    ..STREAMS_10
};

pub const STREAMS_1000: BenchRow = BenchRow {
    name: "throughput/tcp/streams/1000",
    measure: |env| measure_goodput(env, 1_000),
    ..STREAMS_10
};

/// Ten thousand streams, each end in its own process.
pub const STREAMS_10000: BenchRow = BenchRow {
    name: "throughput/tcp/streams/10000",
    against: "ten streams",
    mark: RatioMark::AtLeast(0.7),
    measure: |env| measure_goodput(env, 10_000),
    peers: &[BenchPeer::single(|env| measure_goodput(env, 10))],
    ..STREAMS_10
};

/// Ten thousand streams compared with a bare epoll loop, one thread per end each.
pub const STREAMS_10000_BARE: BenchRow = BenchRow {
    name: "throughput/tcp/streams_bare/10000",
    against: "a bare epoll loop",
    mark: RatioMark::AtLeast(0.95),
    check_requirements: bare_loops::check_installed,
    measure: |env| measure_one_thread(env, 10_000),
    peers: &[BenchPeer::single(|env| measure_bare(env, 10_000))],
    ..STREAMS_10
};

/// Cost of ten thousand streams with the kernel's calls alone.
pub const STREAMS_BARE_GROWTH: BenchRow = BenchRow {
    name: "throughput/tcp/streams_bare/growth",
    against: "the same bare loop with ten streams",
    check_requirements: bare_loops::check_installed,
    measure: |env| measure_bare(env, 10_000),
    peers: &[BenchPeer::single(|env| measure_bare(env, 10))],
    ..STREAMS_10
};

fn measure_bare(env: &BenchEnv, streams: u32) -> Result<f64, BenchError> {
    env.bare_loops()?
        .measure_streams(env, streams, Duration::from_secs(2))
}

fn measure_one_thread(env: &BenchEnv, streams: u32) -> Result<f64, BenchError> {
    let control = env.congestion_control;
    let args = format!("throughput -t 2 -i 0 -P {streams} -C {control} --threads 1 --wait epoll");
    let record = linerate::run_test(env, &args, RUN_TIMEOUT)?;
    Ok(linerate::read_figure(&record, "/summary/goodput_bps")? / 1e9)
}

fn measure_goodput(env: &BenchEnv, streams: u32) -> Result<f64, BenchError> {
    let control = env.congestion_control;
    let args = format!("throughput -t 2 -i 0 -P {streams} -C {control}");
    let record = linerate::run_test(env, &args, RUN_TIMEOUT)?;
    Ok(linerate::read_figure(&record, "/summary/goodput_bps")? / 1e9)
}
