//! Median round trips compared with a bare loop in the same wait mode and with sockperf, and the
//! cost of timestamps.

use std::time::Duration;

use linerate_host::settings::idle_hold::idle_hold;
use serde_json::Value;

use crate::bench_env::{Control, Ground};
use crate::error::Trouble;
use crate::peer::{bare_loops, linerate, sockperf};
use crate::row::{Mark, Peer, Row};

/// Duration of a run: tens of thousands of round trips, and rarely a change of the machine's state.
const SLICE: Duration = Duration::from_millis(500);

/// Time limit, far above a run.
const LIMIT: Duration = Duration::from_secs(20);

/// Both ends block.
pub const UDP_BLOCKING: Row = Row {
    name: "latency/udp/1024B/blocking",
    against: "bare blocking sendto/recvfrom loop, p50",
    unit: "us",
    mark: Mark::AtMost(1.02),
    speed: true,
    near: false,
    held: true,
    control: Control::Cubic,
    long: false,
    most_pairs: None,
    slices: 1,
    needs: bare_loops::installed,
    ours: |ground| ours(ground, 1024, "block"),
    theirs: &[Peer::only(|ground| bare_loop(ground, 1024, "block"))],
};

/// [`UDP_BLOCKING`] with small messages.
pub const UDP_64B_BLOCKING: Row = Row {
    name: "latency/udp/64B/blocking",
    ours: |ground| ours(ground, 64, "block"),
    theirs: &[Peer::only(|ground| bare_loop(ground, 64, "block"))],
    ..UDP_BLOCKING
};

/// [`UDP_BLOCKING`] with messages of 23 fragments.
pub const UDP_32K_BLOCKING: Row = Row {
    name: "latency/udp/32K/blocking",
    ours: |ground| ours(ground, 32 << 10, "block"),
    theirs: &[Peer::only(|ground| bare_loop(ground, 32 << 10, "block"))],
    ..UDP_BLOCKING
};

/// Both ends spin.
pub const UDP_SPINNING: Row = Row {
    name: "latency/udp/1024B/spinning",
    against: "bare MSG_DONTWAIT sendto/recvfrom loop, p50",
    mark: Mark::AtMost(1.03),
    ours: |ground| ours(ground, 1024, "spin"),
    theirs: &[Peer::only(|ground| bare_loop(ground, 1024, "spin"))],
    ..UDP_BLOCKING
};

/// Both ends spin on connected sockets, compared with sockperf.
pub const UDP_64B_SPINNING: Row = Row {
    name: "latency/udp/64B/spinning",
    against: "sockperf ping-pong --nonblocked --full-rtt, p50",
    mark: Mark::AtMost(0.97),
    needs: sockperf::installed,
    ours: |ground| ours(ground, 64, "spin"),
    theirs: &[Peer::only(|ground| {
        sockperf::ping_pong(ground, "-m 64 --nonblocked")
    })],
    ..UDP_BLOCKING
};

/// Default wait mode, on the unmodified machine.
pub const UDP_64B_FOUND: Row = Row {
    name: "latency/udp/64B/blocking/found",
    against: "sockperf ping-pong --full-rtt, p50",
    mark: Mark::Within(0.97, 1.03),
    held: false,
    needs: sockperf::installed,
    ours: |ground| ours(ground, 64, "block"),
    theirs: &[Peer::only(|ground| sockperf::ping_pong(ground, "-m 64"))],
    ..UDP_BLOCKING
};

/// Gain of disabling idle states.
pub const HOLD_LATENCY: Row = Row {
    name: "latency/hold_latency",
    against: "blocking as found, p50",
    mark: Mark::AtMost(1.0 / 3.0),
    held: false,
    needs: |_| Ok(()),
    ours: |ground| ours(ground, 64, "block --hold-latency"),
    theirs: &[Peer::only(|ground| ours(ground, 64, "block"))],
    ..UDP_BLOCKING
};

/// Gain of [`HOLD_LATENCY`] in a bare loop: the maximum on this machine; if other programs keep its cores
/// busy, there is none.
pub const HOLD_LATENCY_BARE: Row = Row {
    name: "latency/hold_latency/bare",
    against: "bare blocking sendto/recvfrom loop as found, p50",
    needs: bare_loops::installed,
    ours: |ground| {
        let _hold = idle_hold().map_err(|error| Trouble::skip(error.to_string()))?;
        bare_loop(ground, 64, "block")
    },
    theirs: &[Peer::only(|ground| bare_loop(ground, 64, "block"))],
    ..HOLD_LATENCY
};

/// Added time per round trip for requesting all packet timestamps.
pub const STAMPS: Row = Row {
    name: "latency/stages/asking",
    against: "1.6 us on top of the round trip",
    mark: Mark::AtMost(1.0),
    needs: |_| Ok(()),
    ours: |ground| {
        let record = stages(ground)?;
        Ok(linerate::figure(&record, "/stage_pass/asking_ns")? / 1e3)
    },
    theirs: &[Peer::only(|_| Ok(1.6))],
    ..UDP_BLOCKING
};

/// Sum of the stages' medians compared with the median of the same round trips.
pub const STAGE_SUM: Row = Row {
    name: "latency/stages/sum",
    against: "p50 of the same timestamped round trips",
    mark: Mark::Within(0.95, 1.05),
    needs: |_| Ok(()),
    ours: |ground| {
        let record = stages(ground)?;
        let sum = linerate::figure(&record, "/stage_pass/sum_of_medians_ns")?;
        Ok(sum / linerate::figure(&record, "/stage_pass/rtt_ns/p50")?)
    },
    theirs: &[Peer::only(|_| Ok(1.0))],
    unit: "",
    ..UDP_BLOCKING
};

fn ours(ground: &Ground, bytes: u32, wait: &str) -> Result<f64, Trouble> {
    let time = SLICE.as_millis();
    let words = format!("latency -u -l {bytes} -t {time}ms --wait {wait}");
    let record = linerate::run(ground, &words, LIMIT)?;
    Ok(linerate::figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}

fn stages(ground: &Ground) -> Result<Value, Trouble> {
    let time = SLICE.as_millis();
    let words = format!("latency -u -l 64 -t {time}ms --stages");
    linerate::run_tests(ground, &words, LIMIT)
}

fn bare_loop(ground: &Ground, bytes: u32, wait: &str) -> Result<f64, Trouble> {
    ground.bare()?.pingpong(ground, bytes, wait, SLICE)
}
