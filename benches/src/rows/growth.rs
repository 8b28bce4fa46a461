//! Cost of many streams: their total goodput compared with that of one.

use std::time::Duration;

use crate::bench_env::{Control, Ground};
use crate::error::Trouble;
use crate::peer::{bare_loops, linerate};
use crate::row::{Mark, Peer, Row};

/// Time limit; opening ten thousand connections takes some seconds.
const LIMIT: Duration = Duration::from_secs(120);

pub const STREAMS_10: Row = Row {
    name: "throughput/tcp/streams/10",
    against: "one stream",
    unit: "Gb/s",
    mark: Mark::Shown,
    speed: true,
    near: false,
    held: true,
    control: Control::Cubic,
    long: false,
    most_pairs: Some(5),
    slices: 1,
    needs: |_| Ok(()),
    ours: |ground| goodput(ground, 10),
    theirs: &[Peer::only(|ground| goodput(ground, 1))],
};

pub const STREAMS_100: Row = Row {
    name: "throughput/tcp/streams/100",
    ours: |ground| goodput(ground, 100),
    ..STREAMS_10
};

pub const STREAMS_1000: Row = Row {
    name: "throughput/tcp/streams/1000",
    ours: |ground| goodput(ground, 1_000),
    ..STREAMS_10
};

/// Ten thousand streams, each end in its own process.
pub const STREAMS_10000: Row = Row {
    name: "throughput/tcp/streams/10000",
    against: "ten streams",
    mark: Mark::AtLeast(0.7),
    ours: |ground| goodput(ground, 10_000),
    theirs: &[Peer::only(|ground| goodput(ground, 10))],
    ..STREAMS_10
};

/// Ten thousand streams compared with a bare epoll loop, one thread per end each.
pub const STREAMS_10000_BARE: Row = Row {
    name: "throughput/tcp/streams_bare/10000",
    against: "a bare epoll loop",
    mark: Mark::AtLeast(0.95),
    needs: bare_loops::installed,
    ours: |ground| one_thread(ground, 10_000),
    theirs: &[Peer::only(|ground| bare_goodput(ground, 10_000))],
    ..STREAMS_10
};

/// Cost of ten thousand streams with the kernel's calls alone.
pub const STREAMS_BARE_GROWTH: Row = Row {
    name: "throughput/tcp/streams_bare/growth",
    against: "the same bare loop with ten streams",
    needs: bare_loops::installed,
    ours: |ground| bare_goodput(ground, 10_000),
    theirs: &[Peer::only(|ground| bare_goodput(ground, 10))],
    ..STREAMS_10
};

fn bare_goodput(ground: &Ground, streams: u32) -> Result<f64, Trouble> {
    ground
        .bare()?
        .streams(ground, streams, Duration::from_secs(2))
}

fn one_thread(ground: &Ground, streams: u32) -> Result<f64, Trouble> {
    let control = ground.congestion_control;
    let words = format!("throughput -t 2 -i 0 -P {streams} -C {control} --threads 1 --wait epoll");
    let record = linerate::run(ground, &words, LIMIT)?;
    Ok(linerate::figure(&record, "/summary/goodput_bps")? / 1e9)
}

fn goodput(ground: &Ground, streams: u32) -> Result<f64, Trouble> {
    let control = ground.congestion_control;
    let words = format!("throughput -t 2 -i 0 -P {streams} -C {control}");
    let record = linerate::run(ground, &words, LIMIT)?;
    Ok(linerate::figure(&record, "/summary/goodput_bps")? / 1e9)
}
