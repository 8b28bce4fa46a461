//! Goodput at the receiver against stock iperf3.

use std::time::Duration;

use crate::ground::Ground;
use crate::peer::{iperf3, linerate};
use crate::row::{Mark, Row};
use crate::trouble::Trouble;

/// Far above the second that a slice takes.
const LIMIT: Duration = Duration::from_secs(30);

const BASE: Row = Row {
    name: "",
    against: "",
    unit: "Gb/s",
    mark: Mark::AtLeast(1.0),
    speed: true,
    long: false,
    most_pairs: None,
    needs: iperf3::installed,
    ours: |_| unreachable!("every row of this file says how to measure"),
    theirs: |_| unreachable!("every row of this file says how to measure"),
};

/// One TCP stream, 128 KiB a call.
pub const TCP_128K: Row = Row {
    name: "throughput/tcp/1_stream",
    against: "iperf3 -l 128K, same congestion control",
    ours: |ground| tcp_ours(ground, "128K"),
    theirs: |ground| tcp_theirs(ground, "128K"),
    ..BASE
};

/// One TCP stream, 1 MiB a call.
pub const TCP_1M: Row = Row {
    name: "throughput/tcp/1_stream/1M",
    against: "iperf3 -l 1M, same congestion control",
    ours: |ground| tcp_ours(ground, "1M"),
    theirs: |ground| tcp_theirs(ground, "1M"),
    ..BASE
};

/// Datagrams of a whole packet, one a call, as fast as it goes.
pub const UDP_1472B: Row = Row {
    name: "throughput/udp/1472B",
    against: "iperf3 -u -b 0 -l 1472",
    ours: |ground| ours(ground, "-u -l 1472 --offload none"),
    // iperf3 takes whole seconds only, so a slice is one second here.
    theirs: |ground| iperf3::goodput(ground, "-u -b 0 -l 1472 -t 1"),
    ..BASE
};

/// The same, with the kernel cutting and joining them.
pub const UDP_1472B_BURSTS: Row = Row {
    name: "throughput/udp/1472B/gso_gro",
    mark: Mark::AtLeast(28.0),
    ours: |ground| ours(ground, "-u -l 1472 --offload gso,gro"),
    ..UDP_1472B
};

/// Small datagrams: one a call there, up to 128 a call here.
pub const UDP_64B_BURSTS: Row = Row {
    name: "throughput/udp/64B/gso_gro",
    against: "iperf3 -u -b 0 -l 64",
    mark: Mark::AtLeast(100.0),
    ours: |ground| ours(ground, "-u -l 64 --offload gso,gro"),
    theirs: |ground| iperf3::goodput(ground, "-u -b 0 -l 64 -t 1"),
    ..BASE
};

fn ours(ground: &Ground, words: &str) -> Result<f64, Trouble> {
    let record = linerate::run(ground, &format!("throughput -t 1 {words}"), LIMIT)?;
    Ok(linerate::figure(&record, "/summary/goodput_bps")? / 1e9)
}

fn tcp_ours(ground: &Ground, call: &str) -> Result<f64, Trouble> {
    ours(
        ground,
        &format!("-l {call} -C {}", ground.congestion_control),
    )
}

fn tcp_theirs(ground: &Ground, call: &str) -> Result<f64, Trouble> {
    let control = ground.congestion_control;
    iperf3::goodput(ground, &format!("-l {call} -C {control} -t 1"))
}
