//! Goodput at the receiver compared with other tools, and with other modes of linerate.

use std::time::Duration;

use crate::bench_env::{BenchEnv, CorePinning, DefaultCongestion};
use crate::error::BenchError;
use crate::peer::{bare_loops, iperf2, iperf3, linerate, nuttcp};
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Time limit, far above the second of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// Duration of a bare loop.
const RUN_TIME: Duration = Duration::from_secs(1);

const BASE_ROW: BenchRow = BenchRow {
    name: "",
    against: "",
    unit: "Gb/s",
    mark: RatioMark::AtLeast(1.0),
    is_speed: true,
    needs_near_state: false,
    holds_idle_states: true,
    default_congestion: DefaultCongestion::Cubic,
    is_long: false,
    max_pairs: None,
    slices_per_pair: 1,
    check_requirements: |_| Ok(()),
    measure: |_| unreachable!("each row of this file sets its own measurement"),
    peers: &[],
};

/// One TCP stream; both sides touch every byte, are tuned manually, and are pinned to separate
/// cores.
pub const TCP_TUNED: BenchRow = BenchRow {
    name: "throughput/tcp/tuned",
    against: "best of iperf3, iperf2, nuttcp with 1 MiB calls",
    mark: RatioMark::AtLeast(1.08),
    measure: |env| measure_tcp(env, "1M"),
    peers: &[
        BenchPeer {
            name: "iperf3",
            check_requirements: iperf3::check_installed,
            measure: |env| measure_tcp_iperf3(env, CorePinning::Yes, "-l 1M"),
        },
        BenchPeer {
            name: "iperf2",
            check_requirements: iperf2::check_installed,
            measure: |env| measure_tcp_iperf2(env, CorePinning::Yes, "-l 1M"),
        },
        BenchPeer {
            name: "nuttcp",
            check_requirements: check_nuttcp,
            measure: |env| nuttcp::measure_goodput(env, CorePinning::Yes, "-l1m"),
        },
    ],
    ..BASE_ROW
};

/// [`TCP_TUNED`] on the unmodified machine: halting cores delay programs that sleep.
pub const TCP_TUNED_FOUND: BenchRow = BenchRow {
    name: "throughput/tcp/tuned/found",
    mark: RatioMark::AtLeast(1.3),
    holds_idle_states: false,
    ..TCP_TUNED
};

/// Compared with the calls alone, with the fastest call sizes of that loop: shows the kernel's part
/// of the row above.
pub const TCP_BARE: BenchRow = BenchRow {
    name: "throughput/tcp/tuned/bare",
    against: "bare write and MSG_DONTWAIT recv loop, 1 MiB and 256 KiB a call",
    mark: RatioMark::AtLeast(0.98),
    check_requirements: bare_loops::check_installed,
    measure: |env| measure_tcp(env, "1M"),
    peers: &[BenchPeer::single(|env| {
        let calls = [1 << 20, 256 << 10];
        env.bare_loops()?
            .measure_stream(env, calls, "spin", RUN_TIME)
    })],
    ..BASE_ROW
};

/// Bare loop compared with the best tool: the upper limit.
pub const TCP_BARE_PEERS: BenchRow = BenchRow {
    name: "throughput/tcp/tuned/bare_against_peers",
    mark: RatioMark::Informational,
    check_requirements: bare_loops::check_installed,
    measure: TCP_BARE.peers[0].measure,
    ..TCP_TUNED
};

/// Default options of each tool, except for the congestion control.
pub const TCP_DEFAULTS: BenchRow = BenchRow {
    name: "throughput/tcp/defaults",
    against: "best of iperf3, iperf2, nuttcp by default, cubic",
    mark: RatioMark::AtLeast(1.35),
    measure: |env| {
        let control = env.congestion_control;
        measure_linerate_on(env, CorePinning::No, &format!("-C {control}"))
    },
    peers: &[
        BenchPeer {
            name: "iperf3",
            check_requirements: iperf3::check_installed,
            measure: |env| measure_tcp_iperf3(env, CorePinning::No, ""),
        },
        BenchPeer {
            name: "iperf2",
            check_requirements: iperf2::check_installed,
            measure: |env| measure_tcp_iperf2(env, CorePinning::No, ""),
        },
        BenchPeer {
            name: "nuttcp",
            check_requirements: check_nuttcp,
            measure: |env| nuttcp::measure_goodput(env, CorePinning::No, ""),
        },
    ],
    ..BASE_ROW
};

/// [`TCP_DEFAULTS`] on the unmodified machine.
pub const TCP_DEFAULTS_FOUND: BenchRow = BenchRow {
    name: "throughput/tcp/defaults/found",
    mark: RatioMark::AtLeast(1.5),
    holds_idle_states: false,
    ..TCP_DEFAULTS
};

/// Default options, including the machine's congestion control.
pub const TCP_AS_IT_COMES: BenchRow = BenchRow {
    name: "throughput/tcp/as_it_comes",
    against: "best of iperf3, iperf2, nuttcp by default",
    mark: RatioMark::AtLeast(0.95),
    holds_idle_states: false,
    default_congestion: DefaultCongestion::MachineDefault,
    measure: |env| measure_linerate_on(env, CorePinning::No, ""),
    peers: &[
        BenchPeer {
            name: "iperf3",
            check_requirements: iperf3::check_installed,
            measure: |env| iperf3::measure_goodput(env, CorePinning::No, "-t 1"),
        },
        BenchPeer {
            name: "iperf2",
            check_requirements: iperf2::check_installed,
            measure: |env| iperf2::measure_goodput(env, CorePinning::No, "-t 1"),
        },
        BenchPeer {
            name: "nuttcp",
            check_requirements: nuttcp::check_installed,
            measure: |env| nuttcp::measure_goodput(env, CorePinning::No, ""),
        },
    ],
    ..BASE_ROW
};

/// The receiver discards payload in the kernel.
pub const TCP_NO_RECEIVE_COPY: BenchRow = BenchRow {
    name: "throughput/tcp/no_receive_copy",
    against: "linerate with payload copied",
    mark: RatioMark::AtLeast(1.1),
    measure: |env| {
        let control = env.congestion_control;
        measure_linerate(env, &format!("-l 1M -C {control} --offload trunc"))
    },
    peers: &[BenchPeer::single(|env| measure_tcp(env, "1M"))],
    ..BASE_ROW
};

/// One TCP stream with 128 KiB calls.
pub const TCP_128K: BenchRow = BenchRow {
    name: "throughput/tcp/1_stream",
    against: "iperf3 -l 128K, same congestion control",
    check_requirements: iperf3::check_installed,
    measure: |env| measure_tcp(env, "128K"),
    peers: &[BenchPeer::single(|env| {
        measure_tcp_iperf3(env, CorePinning::Yes, "-l 128K")
    })],
    ..BASE_ROW
};

/// Datagrams that fill a packet, one per call, at the maximum rate.
pub const UDP_1472B: BenchRow = BenchRow {
    name: "throughput/udp/1472B",
    against: "best of iperf3, iperf2, nuttcp, one datagram a call",
    mark: RatioMark::AtLeast(1.12),
    measure: |env| measure_linerate(env, "-u -l 1472 --offload none"),
    peers: &[
        // iperf3 accepts whole seconds only, so a slice is one second here.
        BenchPeer {
            name: "iperf3",
            check_requirements: iperf3::check_installed,
            measure: |env| iperf3::measure_goodput(env, CorePinning::Yes, "-u -b 0 -l 1472 -t 1"),
        },
        BenchPeer {
            name: "iperf2",
            check_requirements: iperf2::check_installed,
            measure: |env| {
                iperf2::measure_goodput(env, CorePinning::Yes, "-u -b 100g -l 1472 -t 1")
            },
        },
        BenchPeer {
            name: "nuttcp",
            check_requirements: nuttcp::check_installed,
            measure: |env| nuttcp::measure_goodput(env, CorePinning::Yes, "-u -Ru -l1472"),
        },
    ],
    ..BASE_ROW
};

/// Small datagrams, one per call.
pub const UDP_64B: BenchRow = BenchRow {
    name: "throughput/udp/64B",
    mark: RatioMark::AtLeast(1.05),
    measure: |env| measure_linerate(env, "-u -l 64 --offload none"),
    peers: &[
        BenchPeer {
            name: "iperf3",
            check_requirements: iperf3::check_installed,
            measure: |env| iperf3::measure_goodput(env, CorePinning::Yes, "-u -b 0 -l 64 -t 1"),
        },
        BenchPeer {
            name: "iperf2",
            check_requirements: iperf2::check_installed,
            measure: |env| iperf2::measure_goodput(env, CorePinning::Yes, "-u -b 100g -l 64 -t 1"),
        },
        BenchPeer {
            name: "nuttcp",
            check_requirements: nuttcp::check_installed,
            measure: |env| nuttcp::measure_goodput(env, CorePinning::Yes, "-u -Ru -l64"),
        },
    ],
    ..UDP_1472B
};

/// Packets at the MTU, with segmentation and coalescing by the kernel.
pub const UDP_1472B_BURSTS: BenchRow = BenchRow {
    name: "throughput/udp/1472B/gso_gro",
    against: "iperf3 -u -b 0 -l 1472",
    mark: RatioMark::AtLeast(28.0),
    check_requirements: iperf3::check_installed,
    measure: |env| measure_linerate(env, "-u -l 1472 --offload gso,gro"),
    peers: &[BenchPeer::single(|env| {
        iperf3::measure_goodput(env, CorePinning::Yes, "-u -b 0 -l 1472 -t 1")
    })],
    ..BASE_ROW
};

/// Small datagrams: one per call in iperf3, up to 128 per call in linerate.
pub const UDP_64B_BURSTS: BenchRow = BenchRow {
    name: "throughput/udp/64B/gso_gro",
    against: "iperf3 -u -b 0 -l 64",
    mark: RatioMark::AtLeast(100.0),
    measure: |env| measure_linerate(env, "-u -l 64 --offload gso,gro"),
    peers: &[BenchPeer::single(|env| {
        iperf3::measure_goodput(env, CorePinning::Yes, "-u -b 0 -l 64 -t 1")
    })],
    ..UDP_1472B_BURSTS
};

/// Timing of every call, with many small calls.
pub const CALLS: BenchRow = BenchRow {
    name: "throughput/calls",
    against: "the same run without --calls, 128 KiB calls",
    mark: RatioMark::AtLeast(0.99),
    measure: |env| {
        let control = env.congestion_control;
        measure_linerate(env, &format!("-l 128K -C {control} --calls"))
    },
    peers: &[BenchPeer::single(|env| measure_tcp(env, "128K"))],
    ..BASE_ROW
};

/// Time to record one call.
pub const CALL_RECORD: BenchRow = BenchRow {
    name: "throughput/calls/each",
    against: "25 ns a call",
    unit: "ns",
    mark: RatioMark::AtMost(1.0),
    measure: |env| {
        let record = linerate::run_test(env, "throughput -t 1 -l 128K --calls", RUN_TIMEOUT)?;
        linerate::read_figure(&record, "/call_clocks/0/record_ns")
    },
    peers: &[BenchPeer::single(|_| Ok(25.0))],
    ..BASE_ROW
};

fn measure_linerate(env: &BenchEnv, args: &str) -> Result<f64, BenchError> {
    measure_linerate_on(env, CorePinning::Yes, args)
}

fn measure_linerate_on(env: &BenchEnv, pinned: CorePinning, args: &str) -> Result<f64, BenchError> {
    let args = format!("throughput -t 1 {args}");
    let record = linerate::run_test_on(env, pinned, &args, RUN_TIMEOUT)?;
    Ok(linerate::read_figure(&record, "/summary/goodput_bps")? / 1e9)
}

fn measure_tcp(env: &BenchEnv, call: &str) -> Result<f64, BenchError> {
    measure_linerate(env, &format!("-l {call} -C {}", env.congestion_control))
}

fn measure_tcp_iperf3(env: &BenchEnv, pinned: CorePinning, args: &str) -> Result<f64, BenchError> {
    let control = env.congestion_control;
    iperf3::measure_goodput(env, pinned, &format!("{args} -C {control} -t 1"))
}

fn measure_tcp_iperf2(env: &BenchEnv, pinned: CorePinning, args: &str) -> Result<f64, BenchError> {
    let control = env.congestion_control;
    iperf2::measure_goodput(env, pinned, &format!("{args} -Z {control} -t 1"))
}

/// Checks for nuttcp; it has no option for the congestion control, so the hosts' default must be
/// changeable.
fn check_nuttcp(env: &BenchEnv) -> Result<(), BenchError> {
    nuttcp::check_installed(env)?;
    if env.set_default_congestion(DefaultCongestion::Cubic)? {
        return Ok(());
    }
    Err(BenchError::skip(
        "its congestion control cannot be selected here (root can)",
    ))
}
