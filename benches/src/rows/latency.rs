//! Median round trips against a bare loop that waits in the same way.

use std::time::Duration;

use crate::ground::Ground;
use crate::peer::{bare, linerate};
use crate::row::{Mark, Row};
use crate::trouble::Trouble;

const BYTES: u32 = 1024;

/// One slice: tens of thousands of round trips, and rarely a change of the machine's state.
const SLICE: Duration = Duration::from_millis(500);

/// Far above a slice.
const LIMIT: Duration = Duration::from_secs(20);

/// Both ends sleep until something comes.
pub const UDP_BLOCKING: Row = Row {
    name: "latency/udp/1024B/blocking",
    against: "bare blocking sendto/recvfrom loop, p50",
    unit: "us",
    mark: Mark::AtMost(1.03),
    speed: true,
    long: false,
    most_pairs: None,
    needs: bare::installed,
    ours: |ground| ours(ground, "block"),
    theirs: |ground| theirs(ground, "block"),
};

/// Neither end ever sleeps.
pub const UDP_SPINNING: Row = Row {
    name: "latency/udp/1024B/spinning",
    against: "bare MSG_DONTWAIT sendto/recvfrom loop, p50",
    ours: |ground| ours(ground, "spin"),
    theirs: |ground| theirs(ground, "spin"),
    ..UDP_BLOCKING
};

fn ours(ground: &Ground, wait: &str) -> Result<f64, Trouble> {
    let time = SLICE.as_millis();
    let words = format!("latency -u -l {BYTES} --wait {wait} -t {time}ms");
    let record = linerate::run(ground, &words, LIMIT)?;
    Ok(linerate::figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}

fn theirs(ground: &Ground, wait: &str) -> Result<f64, Trouble> {
    ground.bare()?.pingpong(ground, BYTES, wait, SLICE)
}
