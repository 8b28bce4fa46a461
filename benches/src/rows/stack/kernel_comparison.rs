//! Host on the user-space stack, on a tap or shared memory, compared with a host of the kernel
//! behind a veth link.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::BASE;
use crate::bench_env::{Control, Ground};
use crate::error::Trouble;
use crate::peer::linerate::{figure, run};
use crate::process::Program;
use crate::row::{Mark, Peer, Row};

/// Time limit, far above the seconds of a run.
const LIMIT: Duration = Duration::from_secs(40);

/// Time for a host to start.
const START: Duration = Duration::from_secs(10);

/// Addresses of the kernel's end of the tap and of the stack.
const KERNEL: &str = "10.66.0.1/24";
const STACK: &str = "10.66.0.2";

/// Name of the tap interface.
const TAP: &str = "bench0";

const RTT: &str = "/summary/rtt_ns/p50";

/// Both the stack's host and the kernel's host spin.
pub const ECHO_SPINNING: Row = Row {
    name: "stack/echo/tap/spinning",
    against: "kernel echo over veth, spinning, same spinning client, p50",
    unit: "us",
    mark: Mark::AtMost(0.75),
    speed: true,
    ours: |ground| over_tap(ground),
    theirs: &[Peer::only(|ground| by_the_kernel(ground, "spin"))],
    ..BASE
};

/// Host on the stack compared with a bare loop behind a tap.
pub const ECHO_BARE: Row = Row {
    name: "stack/echo/tap/spinning/bare",
    against: "bare loop that returns frames of a tap, same spinning client, p50",
    mark: Mark::Shown,
    theirs: &[Peer::only(bare_echo)],
    ..ECHO_SPINNING
};

/// Lower limit for any host behind a tap.
pub const ECHO_LIMIT: Row = Row {
    name: "stack/echo/tap/spinning/limit",
    against: "kernel echo over veth, spinning, same spinning client, p50; ours is the bare loop",
    mark: Mark::Shown,
    ours: bare_echo,
    ..ECHO_SPINNING
};

/// The kernel's host blocks, which is the default.
pub const ECHO_BLOCKING: Row = Row {
    name: "stack/echo/tap/blocking_found",
    against: "kernel echo over veth, blocking as found, same spinning client, p50",
    mark: Mark::AtMost(0.25),
    held: false,
    theirs: &[Peer::only(|ground| by_the_kernel(ground, "spin/block"))],
    ..ECHO_SPINNING
};

/// Lower limit for any host behind a tap, compared with the same.
pub const ECHO_BLOCKING_LIMIT: Row = Row {
    name: "stack/echo/tap/blocking_found/limit",
    against: "kernel echo over veth, blocking as found, same spinning client, p50; ours is the bare loop",
    mark: Mark::Shown,
    ours: bare_echo,
    ..ECHO_BLOCKING
};

/// Two stacks over shared memory compared with two kernels.
pub const ECHO_SHM: Row = Row {
    name: "stack/echo/shm/found",
    against: "kernel to kernel over veth, both blocking as found, p50",
    mark: Mark::AtMost(1.0 / 20.0),
    ours: over_shared_memory,
    theirs: &[Peer::only(|ground| by_the_kernel(ground, "block"))],
    ..ECHO_BLOCKING
};

/// Two stacks over shared memory compared with a bare loop between two processes with shared memory.
pub const ECHO_SHM_BARE: Row = Row {
    name: "stack/echo/shm/bare",
    against: "bare loop of copies between two processes that share memory, p50",
    mark: Mark::Shown,
    held: true,
    theirs: &[Peer::only(bare_exchange)],
    ..ECHO_SHM
};

/// Lower limit for two hosts over shared memory.
pub const ECHO_SHM_LIMIT: Row = Row {
    name: "stack/echo/shm/limit",
    against: "kernel to kernel over veth, both blocking as found, p50; ours is the bare loop of copies",
    mark: Mark::Shown,
    ours: bare_exchange,
    ..ECHO_SHM
};

/// The kernel sends with bbr.
pub const IN_BBR: Row = Row {
    name: "stack/tcp/tap_tso/in/bbr",
    against: "kernel to kernel over veth, both send with bbr",
    unit: "Gb/s",
    mark: Mark::AtLeast(1.0),
    speed: true,
    ours: |ground| stream_in(ground, "bbr", ""),
    theirs: &[Peer::only(|ground| between_kernels(ground, "bbr"))],
    ..BASE
};

/// The kernel sends with cubic.
pub const IN_CUBIC: Row = Row {
    name: "stack/tcp/tap_tso/in/cubic",
    against: "kernel to kernel over veth, both send with cubic",
    mark: Mark::Shown,
    ours: |ground| stream_in(ground, "cubic", ""),
    theirs: &[Peer::only(|ground| between_kernels(ground, "cubic"))],
    ..IN_BBR
};

/// [`IN_BBR`] with a program that reads payload in place, as one written for such a stack does.
pub const IN_PLACE: Row = Row {
    name: "stack/tcp/tap_tso/in/bbr/in_place",
    against: "kernel to kernel over veth, both send with bbr; on the stack no copy to the program (--offload trunc)",
    mark: Mark::Shown,
    ours: |ground| stream_in(ground, "bbr", "--offload trunc"),
    ..IN_BBR
};

/// The stack receives from the kernel, compared with a bare loop behind a tap.
pub const IN_BARE: Row = Row {
    name: "stack/tcp/tap_tso/in/bare",
    against: "bare loop that reads frames of 64 KB from a tap and acknowledges them; both senders with bbr",
    mark: Mark::Shown,
    theirs: &[Peer::only(bare_taking)],
    ..IN_BBR
};

/// Upper limit for any host behind a tap.
pub const IN_LIMIT: Row = Row {
    name: "stack/tcp/tap_tso/in/limit",
    against: "kernel to kernel over veth, both send with bbr; ours is the bare loop",
    mark: Mark::Shown,
    ours: bare_taking,
    ..IN_BBR
};

/// The stack sends, compared with a kernel that sends with bbr.
pub const OUT_BBR: Row = Row {
    name: "stack/tcp/tap_tso/out/bbr",
    against: "kernel to kernel over veth with bbr; the stack sends with cubic",
    mark: Mark::Shown,
    ours: |ground| stream_out(ground, ""),
    theirs: &[Peer::only(|ground| between_kernels(ground, "bbr"))],
    ..IN_BBR
};

/// The stack sends, compared with a kernel that sends with cubic.
pub const OUT_CUBIC: Row = Row {
    name: "stack/tcp/tap_tso/out/cubic",
    against: "kernel to kernel over veth with cubic; the stack sends with cubic",
    mark: Mark::AtLeast(1.15),
    theirs: &[Peer::only(|ground| between_kernels(ground, "cubic"))],
    ..OUT_BBR
};

/// [`OUT_CUBIC`] with a program that writes into the stack's buffer.
pub const OUT_PLACE: Row = Row {
    name: "stack/tcp/tap_tso/out/cubic/in_place",
    against: "kernel to kernel over veth with cubic; on the stack no copy from the program (--offload zerocopy)",
    mark: Mark::Shown,
    ours: |ground| stream_out(ground, "--offload zerocopy"),
    ..OUT_CUBIC
};

/// The stack sends, compared with a bare sender behind a tap.
pub const OUT_BARE: Row = Row {
    name: "stack/tcp/tap_tso/out/bare",
    against: "bare loop that writes segments of 64 KB to a tap; the stack sends with cubic",
    mark: Mark::Shown,
    theirs: &[Peer::only(bare_stream)],
    ..OUT_BBR
};

/// Upper limit for any sender behind a tap.
pub const OUT_LIMIT: Row = Row {
    name: "stack/tcp/tap_tso/out/limit",
    against: "kernel to kernel over veth with cubic; ours is the bare loop",
    mark: Mark::Shown,
    ours: bare_stream,
    ..OUT_CUBIC
};

/// Upper limit for a stack that copies payload into a buffer and from there into frames.
pub const OUT_COPIES: Row = Row {
    name: "stack/tcp/tap_tso/out/limit/copies",
    against: "kernel to kernel over veth with cubic; ours is the bare loop, with a copy into a ring of 1 MB and one out of it",
    ours: |ground| bare_sender(ground, "copies"),
    ..OUT_LIMIT
};

/// Cost of a send buffer of 1 KB without PSH.
pub const BUFFER: Row = Row {
    name: "stack/tcp/send_buffer/16K",
    against: "1 KB; PSH never in both, finding delayed-ack required",
    unit: "Mb/s",
    mark: Mark::AtLeast(100.0),
    speed: false,
    // A run must wait until the kernel's quick-ACK phase is over.
    most_pairs: Some(3),
    control: Control::Found,
    ours: |ground| Ok(with_send_buffer(ground, "16K")?.0),
    theirs: &[Peer::only(|ground| {
        let (rate, causes) = with_send_buffer(ground, "1K")?;
        if causes.iter().any(|cause| cause == "delayed-ack") {
            Ok(rate)
        } else {
            let why = format!("the cause delayed-ack was not found, but {causes:?}");
            Err(Trouble::program("linerate", why))
        }
    })],
    ..BASE
};

/// Queue of one packet.
pub const QUEUE_1: Row = Row {
    name: "stack/udp/queue/1",
    against: "datagrams sent in bursts of 64, polled every 200 us",
    unit: "",
    mark: Mark::AtMost(0.1),
    speed: false,
    most_pairs: Some(9),
    ours: |ground| delivered(ground, 1),
    theirs: &[Peer::only(|_| Ok(1.0))],
    ..BASE
};

/// Queue that holds a burst.
pub const QUEUE_64: Row = Row {
    name: "stack/udp/queue/64",
    mark: Mark::AtLeast(1.0),
    ours: |ground| delivered(ground, 64),
    ..QUEUE_1
};

/// Queue of the tuned profile.
pub const QUEUE_255: Row = Row {
    name: "stack/udp/queue/255",
    ours: |ground| delivered(ground, 255),
    ..QUEUE_64
};

/// Starts a host on the user-space stack next to the client host's kernel; `keys` are options of
/// the tap.
fn host(ground: &Ground, keys: &str, words: &str) -> Result<Program, Trouble> {
    let device = format!("tap:{TAP},address={KERNEL}{keys}");
    let address = format!("{STACK}/24");
    let place = ["--dev", device.as_str(), "--ip", address.as_str()];
    started(ground, &place, words)
}

fn started(ground: &Ground, place: &[&str], words: &str) -> Result<Program, Trouble> {
    let [_, far] = ground.cpus;
    let mut command = Command::new(&ground.linerate);
    command.arg("stack").args(place).arg("--no-store");
    command.args(words.split_whitespace());
    let mut host = Program::start(ground.client()?, Some(far), &mut command)?;
    host.wait_for("READY", START)?;
    Ok(host)
}

/// Runs a test on the client host and returns its record.
fn asked(ground: &Ground, far: &str, words: &str) -> Result<Value, Trouble> {
    let [near, _] = ground.cpus;
    let (test, words) = words.split_once(' ').unwrap_or((words, ""));
    let mut command = Command::new(&ground.linerate);
    command.args([test, far, "--json", "--no-store"]);
    command.args(words.split_whitespace());
    // Only this end is pinned here: the stack's thread stays on the core on which it was started.
    let text = Program::start(ground.client()?, Some(near), &mut command)?.finish(LIMIT)?;
    serde_json::from_str(&text)
        .map_err(|error| Trouble::program("linerate", format!("its record is not JSON: {error}")))
}

fn over_tap(ground: &Ground) -> Result<f64, Trouble> {
    let _host = host(ground, "", "--serve linerate")?;
    let record = asked(ground, STACK, "latency -u -l 64 -t 500ms --wait spin")?;
    Ok(figure(&record, RTT)? / 1e3)
}

fn bare_echo(ground: &Ground) -> Result<f64, Trouble> {
    let _host = ground.bare()?.tap_echo(ground, TAP, kernel())?;
    let words = "latency -u -l 64 -t 500ms --wait spin --peer echo";
    Ok(figure(&asked(ground, STACK, words)?, RTT)? / 1e3)
}

fn bare_stream(ground: &Ground) -> Result<f64, Trouble> {
    bare_sender(ground, "stream")
}

fn bare_sender(ground: &Ground, how: &str) -> Result<f64, Trouble> {
    let second = Duration::from_secs(1);
    let ends = [kernel(), STACK];
    ground.bare()?.tap_stream(ground, [how, TAP], ends, second)
}

fn bare_taking(ground: &Ground) -> Result<f64, Trouble> {
    let second = Duration::from_secs(1);
    let ends = [kernel(), STACK];
    ground.bare()?.tap_take(ground, TAP, ends, second, "bbr")
}

/// Address of the kernel without its prefix length.
fn kernel() -> &'static str {
    KERNEL.split('/').next().unwrap_or(KERNEL)
}

fn over_shared_memory(ground: &Ground) -> Result<f64, Trouble> {
    let device = format!("shm:bench-{}", std::process::id());
    let server = format!("{device},role=server");
    let place = ["--dev", server.as_str(), "--ip", "10.66.1.2/24"];
    let _host = started(ground, &place, "--serve echo")?;
    let words = format!("latency -u -l 64 -t 500ms --peer echo --dev {device} --ip 10.66.1.1/24");
    let record = asked(ground, "10.66.1.2", &words)?;
    Ok(figure(&record, RTT)? / 1e3)
}

/// Frames have the same length as those of the stacks: 64 B with the headers of Ethernet, IP and
/// UDP.
fn bare_exchange(ground: &Ground) -> Result<f64, Trouble> {
    const FRAME_BYTES: u32 = 14 + 20 + 8 + 64;
    let time = Duration::from_millis(500);
    ground.bare()?.exchange(ground, FRAME_BYTES, time)
}

fn by_the_kernel(ground: &Ground, wait: &str) -> Result<f64, Trouble> {
    let words = format!("latency -u -l 64 -t 500ms --wait {wait}");
    Ok(figure(&run(ground, &words, LIMIT)?, RTT)? / 1e3)
}

/// Host with segmentation and checksums left to the other side of the tap.
fn offloading(ground: &Ground) -> Result<Program, Trouble> {
    let buffers = "--set tcp.send_buffer=1M --set tcp.receive_window=1M";
    let words = format!("--serve linerate --set checksum=offload {buffers}");
    host(ground, ",vnet", &words)
}

fn goodput(record: &Value) -> Result<f64, Trouble> {
    Ok(figure(record, "/summary/goodput_bps")? / 1e9)
}

fn stream_in(ground: &Ground, control: &str, options: &str) -> Result<f64, Trouble> {
    let _host = offloading(ground)?;
    let words = format!("throughput -t 1 -C {control} {options}");
    goodput(&asked(ground, STACK, &words)?)
}

fn stream_out(ground: &Ground, options: &str) -> Result<f64, Trouble> {
    let _host = offloading(ground)?;
    goodput(&asked(
        ground,
        STACK,
        &format!("throughput -t 1 -R {options}"),
    )?)
}

fn between_kernels(ground: &Ground, control: &str) -> Result<f64, Trouble> {
    let words = format!("throughput -t 1 -C {control}");
    goodput(&run(ground, &words, LIMIT)?)
}

/// Goodput of a stack with a send buffer of this size, Mb/s, and the causes found.
fn with_send_buffer(ground: &Ground, bytes: &str) -> Result<(f64, Vec<String>), Trouble> {
    let words = "--serve linerate --set tcp.psh=never --set tcp.congestion_control=none";
    let _host = host(
        ground,
        "",
        &format!("{words} --set tcp.send_buffer={bytes}"),
    )?;
    let record = asked(ground, STACK, "throughput -R -t 2 -O 4")?;
    let findings = record["findings"].as_array().into_iter().flatten();
    let causes = findings.filter_map(|finding| finding["cause"].as_str().map(str::to_owned));
    Ok((goodput(&record)? * 1e3, causes.collect()))
}

/// Share of datagrams that a queue of this length did not lose.
fn delivered(ground: &Ground, queue: u32) -> Result<f64, Trouble> {
    let words =
        format!("--serve linerate --set poll.interval=200us --set udp.receive_queue={queue}");
    let _host = host(ground, "", &words)?;
    // A burst every 2 ms, so that the previous one is complete. A hypervisor that stops a core for
    // longer
    // merges two bursts; with runs of 100 bursts this does not affect the median.
    let test = "throughput -u -l 64 --pps 32000/64 -t 0.2 --wait block/interval:200us";
    let record = asked(ground, STACK, test)?;
    let sent = figure(&record, "/summary/packets_sent")?;
    Ok(figure(&record, "/summary/packets_received")? / sent)
}
