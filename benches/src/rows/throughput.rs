//! Goodput at the receiver compared with other tools, and with other modes of linerate.

use std::time::Duration;

use crate::bench_env::{Control, Ground, Pinned};
use crate::error::Trouble;
use crate::peer::{bare_loops, iperf2, iperf3, linerate, nuttcp};
use crate::row::{Mark, Peer, Row};

/// Time limit, far above the second of a run.
const LIMIT: Duration = Duration::from_secs(30);

/// Duration of a bare loop.
const SECOND: Duration = Duration::from_secs(1);

const BASE: Row = Row {
    name: "",
    against: "",
    unit: "Gb/s",
    mark: Mark::AtLeast(1.0),
    speed: true,
    near: false,
    held: true,
    control: Control::Cubic,
    long: false,
    most_pairs: None,
    slices: 1,
    needs: |_| Ok(()),
    ours: |_| unreachable!("each row of this file sets its own measurement"),
    theirs: &[],
};

/// One TCP stream; both sides touch every byte, are tuned manually, and are pinned to separate
/// cores.
pub const TCP_TUNED: Row = Row {
    name: "throughput/tcp/tuned",
    against: "best of iperf3, iperf2, nuttcp with 1 MiB calls",
    mark: Mark::AtLeast(1.08),
    ours: |ground| tcp_ours(ground, "1M"),
    theirs: &[
        Peer {
            name: "iperf3",
            needs: iperf3::installed,
            run: |ground| tcp_iperf3(ground, Pinned::Yes, "-l 1M"),
        },
        Peer {
            name: "iperf2",
            needs: iperf2::installed,
            run: |ground| tcp_iperf2(ground, Pinned::Yes, "-l 1M"),
        },
        Peer {
            name: "nuttcp",
            needs: nuttcp_with_control,
            run: |ground| nuttcp::goodput(ground, Pinned::Yes, "-l1m"),
        },
    ],
    ..BASE
};

/// [`TCP_TUNED`] on the unmodified machine: halting cores delay programs that sleep.
pub const TCP_TUNED_FOUND: Row = Row {
    name: "throughput/tcp/tuned/found",
    mark: Mark::AtLeast(1.3),
    held: false,
    ..TCP_TUNED
};

/// Compared with the calls alone, with the fastest call sizes of that loop: shows the kernel's part
/// of the row above.
pub const TCP_BARE: Row = Row {
    name: "throughput/tcp/tuned/bare",
    against: "bare write and MSG_DONTWAIT recv loop, 1 MiB and 256 KiB a call",
    mark: Mark::AtLeast(0.98),
    needs: bare_loops::installed,
    ours: |ground| tcp_ours(ground, "1M"),
    theirs: &[Peer::only(|ground| {
        let calls = [1 << 20, 256 << 10];
        ground.bare()?.stream(ground, calls, "spin", SECOND)
    })],
    ..BASE
};

/// Bare loop compared with the best tool: the upper limit.
pub const TCP_BARE_PEERS: Row = Row {
    name: "throughput/tcp/tuned/bare_against_peers",
    mark: Mark::Shown,
    needs: bare_loops::installed,
    ours: TCP_BARE.theirs[0].run,
    ..TCP_TUNED
};

/// Default options of each tool, except for the congestion control.
pub const TCP_DEFAULTS: Row = Row {
    name: "throughput/tcp/defaults",
    against: "best of iperf3, iperf2, nuttcp by default, cubic",
    mark: Mark::AtLeast(1.35),
    ours: |ground| {
        let control = ground.congestion_control;
        ours_on(ground, Pinned::No, &format!("-C {control}"))
    },
    theirs: &[
        Peer {
            name: "iperf3",
            needs: iperf3::installed,
            run: |ground| tcp_iperf3(ground, Pinned::No, ""),
        },
        Peer {
            name: "iperf2",
            needs: iperf2::installed,
            run: |ground| tcp_iperf2(ground, Pinned::No, ""),
        },
        Peer {
            name: "nuttcp",
            needs: nuttcp_with_control,
            run: |ground| nuttcp::goodput(ground, Pinned::No, ""),
        },
    ],
    ..BASE
};

/// [`TCP_DEFAULTS`] on the unmodified machine.
pub const TCP_DEFAULTS_FOUND: Row = Row {
    name: "throughput/tcp/defaults/found",
    mark: Mark::AtLeast(1.5),
    held: false,
    ..TCP_DEFAULTS
};

/// Default options, including the machine's congestion control.
pub const TCP_AS_IT_COMES: Row = Row {
    name: "throughput/tcp/as_it_comes",
    against: "best of iperf3, iperf2, nuttcp by default",
    mark: Mark::AtLeast(0.95),
    held: false,
    control: Control::Found,
    ours: |ground| ours_on(ground, Pinned::No, ""),
    theirs: &[
        Peer {
            name: "iperf3",
            needs: iperf3::installed,
            run: |ground| iperf3::goodput(ground, Pinned::No, "-t 1"),
        },
        Peer {
            name: "iperf2",
            needs: iperf2::installed,
            run: |ground| iperf2::goodput(ground, Pinned::No, "-t 1"),
        },
        Peer {
            name: "nuttcp",
            needs: nuttcp::installed,
            run: |ground| nuttcp::goodput(ground, Pinned::No, ""),
        },
    ],
    ..BASE
};

/// The receiver discards payload in the kernel.
pub const TCP_NO_RECEIVE_COPY: Row = Row {
    name: "throughput/tcp/no_receive_copy",
    against: "linerate with payload copied",
    mark: Mark::AtLeast(1.1),
    ours: |ground| {
        let control = ground.congestion_control;
        ours(ground, &format!("-l 1M -C {control} --offload trunc"))
    },
    theirs: &[Peer::only(|ground| tcp_ours(ground, "1M"))],
    ..BASE
};

/// One TCP stream with 128 KiB calls.
pub const TCP_128K: Row = Row {
    name: "throughput/tcp/1_stream",
    against: "iperf3 -l 128K, same congestion control",
    needs: iperf3::installed,
    ours: |ground| tcp_ours(ground, "128K"),
    theirs: &[Peer::only(|ground| {
        tcp_iperf3(ground, Pinned::Yes, "-l 128K")
    })],
    ..BASE
};

/// Datagrams that fill a packet, one per call, at the maximum rate.
pub const UDP_1472B: Row = Row {
    name: "throughput/udp/1472B",
    against: "best of iperf3, iperf2, nuttcp, one datagram a call",
    mark: Mark::AtLeast(1.12),
    ours: |ground| ours(ground, "-u -l 1472 --offload none"),
    theirs: &[
        // iperf3 accepts whole seconds only, so a slice is one second here.
        Peer {
            name: "iperf3",
            needs: iperf3::installed,
            run: |ground| iperf3::goodput(ground, Pinned::Yes, "-u -b 0 -l 1472 -t 1"),
        },
        Peer {
            name: "iperf2",
            needs: iperf2::installed,
            run: |ground| iperf2::goodput(ground, Pinned::Yes, "-u -b 100g -l 1472 -t 1"),
        },
        Peer {
            name: "nuttcp",
            needs: nuttcp::installed,
            run: |ground| nuttcp::goodput(ground, Pinned::Yes, "-u -Ru -l1472"),
        },
    ],
    ..BASE
};

/// Small datagrams, one per call.
pub const UDP_64B: Row = Row {
    name: "throughput/udp/64B",
    mark: Mark::AtLeast(1.05),
    ours: |ground| ours(ground, "-u -l 64 --offload none"),
    theirs: &[
        Peer {
            name: "iperf3",
            needs: iperf3::installed,
            run: |ground| iperf3::goodput(ground, Pinned::Yes, "-u -b 0 -l 64 -t 1"),
        },
        Peer {
            name: "iperf2",
            needs: iperf2::installed,
            run: |ground| iperf2::goodput(ground, Pinned::Yes, "-u -b 100g -l 64 -t 1"),
        },
        Peer {
            name: "nuttcp",
            needs: nuttcp::installed,
            run: |ground| nuttcp::goodput(ground, Pinned::Yes, "-u -Ru -l64"),
        },
    ],
    ..UDP_1472B
};

/// Packets at the MTU, with segmentation and coalescing by the kernel.
pub const UDP_1472B_BURSTS: Row = Row {
    name: "throughput/udp/1472B/gso_gro",
    against: "iperf3 -u -b 0 -l 1472",
    mark: Mark::AtLeast(28.0),
    needs: iperf3::installed,
    ours: |ground| ours(ground, "-u -l 1472 --offload gso,gro"),
    theirs: &[Peer::only(|ground| {
        iperf3::goodput(ground, Pinned::Yes, "-u -b 0 -l 1472 -t 1")
    })],
    ..BASE
};

/// Small datagrams: one per call in iperf3, up to 128 per call in linerate.
pub const UDP_64B_BURSTS: Row = Row {
    name: "throughput/udp/64B/gso_gro",
    against: "iperf3 -u -b 0 -l 64",
    mark: Mark::AtLeast(100.0),
    ours: |ground| ours(ground, "-u -l 64 --offload gso,gro"),
    theirs: &[Peer::only(|ground| {
        iperf3::goodput(ground, Pinned::Yes, "-u -b 0 -l 64 -t 1")
    })],
    ..UDP_1472B_BURSTS
};

/// Timing of every call, with many small calls.
pub const CALLS: Row = Row {
    name: "throughput/calls",
    against: "the same run without --calls, 128 KiB calls",
    mark: Mark::AtLeast(0.99),
    ours: |ground| {
        let control = ground.congestion_control;
        ours(ground, &format!("-l 128K -C {control} --calls"))
    },
    theirs: &[Peer::only(|ground| tcp_ours(ground, "128K"))],
    ..BASE
};

/// Time to record one call.
pub const CALL_RECORD: Row = Row {
    name: "throughput/calls/each",
    against: "25 ns a call",
    unit: "ns",
    mark: Mark::AtMost(1.0),
    ours: |ground| {
        let record = linerate::run(ground, "throughput -t 1 -l 128K --calls", LIMIT)?;
        linerate::figure(&record, "/call_clocks/0/record_ns")
    },
    theirs: &[Peer::only(|_| Ok(25.0))],
    ..BASE
};

fn ours(ground: &Ground, words: &str) -> Result<f64, Trouble> {
    ours_on(ground, Pinned::Yes, words)
}

fn ours_on(ground: &Ground, pinned: Pinned, words: &str) -> Result<f64, Trouble> {
    let words = format!("throughput -t 1 {words}");
    let record = linerate::run_on(ground, pinned, &words, LIMIT)?;
    Ok(linerate::figure(&record, "/summary/goodput_bps")? / 1e9)
}

fn tcp_ours(ground: &Ground, call: &str) -> Result<f64, Trouble> {
    ours(
        ground,
        &format!("-l {call} -C {}", ground.congestion_control),
    )
}

fn tcp_iperf3(ground: &Ground, pinned: Pinned, words: &str) -> Result<f64, Trouble> {
    let control = ground.congestion_control;
    iperf3::goodput(ground, pinned, &format!("{words} -C {control} -t 1"))
}

fn tcp_iperf2(ground: &Ground, pinned: Pinned, words: &str) -> Result<f64, Trouble> {
    let control = ground.congestion_control;
    iperf2::goodput(ground, pinned, &format!("{words} -Z {control} -t 1"))
}

/// Checks for nuttcp; it has no option for the congestion control, so the hosts' default must be
/// changeable.
fn nuttcp_with_control(ground: &Ground) -> Result<(), Trouble> {
    nuttcp::installed(ground)?;
    if ground.default_to(Control::Cubic)? {
        return Ok(());
    }
    Err(Trouble::skip(
        "its congestion control cannot be selected here (root can)",
    ))
}
