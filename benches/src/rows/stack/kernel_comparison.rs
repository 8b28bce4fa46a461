//! Host on the user-space stack, on a tap or shared memory, compared with a host of the kernel
//! behind a veth link.

use std::process::Command;
use std::time::Duration;

use linerate_record::ids::CauseId;
use serde_json::Value;

use super::BASE_ROW;
use crate::bench_env::{BenchEnv, DefaultCongestion};
use crate::error::BenchError;
use crate::peer::linerate::{self, read_figure};
use crate::process::HostProgram;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Time limit, far above the seconds of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(40);

/// Time for a host to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses of the kernel's end of the tap and of the stack.
const KERNEL_ADDRESS: &str = "10.66.0.1/24";
const STACK_ADDRESS: &str = "10.66.0.2";

/// Name of the tap interface.
const TAP_NAME: &str = "bench0";

const RTT_POINTER: &str = "/summary/rtt_ns/p50";

/// Both the stack's host and the kernel's host spin.
pub const ECHO_SPINNING: BenchRow = BenchRow {
    name: "stack/echo/tap/spinning",
    against: "kernel echo over veth, spinning, same spinning client, p50",
    unit: "us",
    mark: RatioMark::AtMost(0.75),
    is_speed: true,
    measure: |env| measure_tap_echo(env),
    peers: &[BenchPeer::single(|env| measure_kernel(env, "spin"))],
    ..BASE_ROW
};

/// Host on the stack compared with a bare loop behind a tap.
pub const ECHO_BARE: BenchRow = BenchRow {
    name: "stack/echo/tap/spinning/bare",
    against: "bare loop that returns frames of a tap, same spinning client, p50",
    mark: RatioMark::Informational,
    peers: &[BenchPeer::single(measure_bare_echo)],
    ..ECHO_SPINNING
};

/// Lower limit for any host behind a tap.
pub const ECHO_LIMIT: BenchRow = BenchRow {
    name: "stack/echo/tap/spinning/limit",
    against: "kernel echo over veth, spinning, same spinning client, p50; ours is the bare loop",
    mark: RatioMark::Informational,
    measure: measure_bare_echo,
    ..ECHO_SPINNING
};

/// The kernel's host blocks, which is the default.
pub const ECHO_BLOCKING: BenchRow = BenchRow {
    name: "stack/echo/tap/blocking_found",
    against: "kernel echo over veth, blocking as found, same spinning client, p50",
    mark: RatioMark::AtMost(0.25),
    holds_idle_states: false,
    peers: &[BenchPeer::single(|env| measure_kernel(env, "spin/block"))],
    ..ECHO_SPINNING
};

/// Lower limit for any host behind a tap, compared with the same.
pub const ECHO_BLOCKING_LIMIT: BenchRow = BenchRow {
    name: "stack/echo/tap/blocking_found/limit",
    against: "kernel echo over veth, blocking as found, same spinning client, p50; ours is the bare loop",
    mark: RatioMark::Informational,
    measure: measure_bare_echo,
    ..ECHO_BLOCKING
};

/// Two stacks over shared memory compared with two kernels.
pub const ECHO_SHM: BenchRow = BenchRow {
    name: "stack/echo/shm/found",
    against: "kernel to kernel over veth, both blocking as found, p50",
    mark: RatioMark::AtMost(1.0 / 20.0),
    measure: measure_shm_echo,
    peers: &[BenchPeer::single(|env| measure_kernel(env, "block"))],
    ..ECHO_BLOCKING
};

/// Two stacks over shared memory compared with a bare loop between two processes with shared
/// memory.
pub const ECHO_SHM_BARE: BenchRow = BenchRow {
    name: "stack/echo/shm/bare",
    against: "bare loop of copies between two processes that share memory, p50",
    mark: RatioMark::Informational,
    holds_idle_states: true,
    peers: &[BenchPeer::single(measure_bare_exchange)],
    ..ECHO_SHM
};

/// Lower limit for two hosts over shared memory.
pub const ECHO_SHM_LIMIT: BenchRow = BenchRow {
    name: "stack/echo/shm/limit",
    against: "kernel to kernel over veth, both blocking as found, p50; ours is the bare loop of copies",
    mark: RatioMark::Informational,
    measure: measure_bare_exchange,
    ..ECHO_SHM
};

/// The kernel sends with bbr.
pub const IN_BBR: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/in/bbr",
    against: "kernel to kernel over veth, both send with bbr",
    unit: "Gb/s",
    mark: RatioMark::AtLeast(1.0),
    is_speed: true,
    measure: |env| measure_stream_in(env, "bbr", ""),
    peers: &[BenchPeer::single(|env| measure_between_kernels(env, "bbr"))],
    ..BASE_ROW
};

/// The kernel sends with cubic.
pub const IN_CUBIC: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/in/cubic",
    against: "kernel to kernel over veth, both send with cubic",
    mark: RatioMark::Informational,
    measure: |env| measure_stream_in(env, "cubic", ""),
    peers: &[BenchPeer::single(|env| {
        measure_between_kernels(env, "cubic")
    })],
    ..IN_BBR
};

/// [`IN_BBR`] with a program that reads payload in place, as one written for such a stack does.
pub const IN_PLACE: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/in/bbr/in_place",
    against: "kernel to kernel over veth, both send with bbr; on the stack no copy to the program (--offload trunc)",
    mark: RatioMark::Informational,
    measure: |env| measure_stream_in(env, "bbr", "--offload trunc"),
    ..IN_BBR
};

/// The stack receives from the kernel, compared with a bare loop behind a tap.
pub const IN_BARE: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/in/bare",
    against: "bare loop that reads frames of 64 KB from a tap and acknowledges them; both senders with bbr",
    mark: RatioMark::Informational,
    peers: &[BenchPeer::single(measure_bare_receiver)],
    ..IN_BBR
};

/// Upper limit for any host behind a tap.
pub const IN_LIMIT: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/in/limit",
    against: "kernel to kernel over veth, both send with bbr; ours is the bare loop",
    mark: RatioMark::Informational,
    measure: measure_bare_receiver,
    ..IN_BBR
};

/// The stack sends, compared with a kernel that sends with bbr.
pub const OUT_BBR: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/out/bbr",
    against: "kernel to kernel over veth with bbr; the stack sends with cubic",
    mark: RatioMark::Informational,
    measure: |env| measure_stream_out(env, ""),
    peers: &[BenchPeer::single(|env| measure_between_kernels(env, "bbr"))],
    ..IN_BBR
};

/// The stack sends, compared with a kernel that sends with cubic.
pub const OUT_CUBIC: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/out/cubic",
    against: "kernel to kernel over veth with cubic; the stack sends with cubic",
    mark: RatioMark::AtLeast(1.15),
    peers: &[BenchPeer::single(|env| {
        measure_between_kernels(env, "cubic")
    })],
    ..OUT_BBR
};

/// [`OUT_CUBIC`] with a program that writes into the stack's buffer.
pub const OUT_PLACE: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/out/cubic/in_place",
    against: "kernel to kernel over veth with cubic; on the stack no copy from the program (--offload zerocopy)",
    mark: RatioMark::Informational,
    measure: |env| measure_stream_out(env, "--offload zerocopy"),
    ..OUT_CUBIC
};

/// The stack sends, compared with a bare sender behind a tap.
pub const OUT_BARE: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/out/bare",
    against: "bare loop that writes segments of 64 KB to a tap; the stack sends with cubic",
    mark: RatioMark::Informational,
    peers: &[BenchPeer::single(measure_bare_stream)],
    ..OUT_BBR
};

/// Upper limit for any sender behind a tap.
pub const OUT_LIMIT: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/out/limit",
    against: "kernel to kernel over veth with cubic; ours is the bare loop",
    mark: RatioMark::Informational,
    measure: measure_bare_stream,
    ..OUT_CUBIC
};

/// Upper limit for a stack that copies payload into a buffer and from there into frames.
pub const OUT_COPIES: BenchRow = BenchRow {
    name: "stack/tcp/tap_tso/out/limit/copies",
    against: "kernel to kernel over veth with cubic; ours is the bare loop, with a copy into a ring of 1 MB and one out of it",
    measure: |env| measure_bare_sender(env, "copies"),
    ..OUT_LIMIT
};

/// Cost of a send buffer of 1 KB without PSH.
pub const BUFFER: BenchRow = BenchRow {
    name: "stack/tcp/send_buffer/16K",
    against: "1 KB; PSH never in both, finding delayed-ack required",
    unit: "Mb/s",
    mark: RatioMark::AtLeast(100.0),
    is_speed: false,
    // A run must wait until the kernel's quick-ACK phase is over.
    max_pairs: Some(3),
    default_congestion: DefaultCongestion::MachineDefault,
    measure: |env| Ok(measure_send_buffer(env, "16K")?.0),
    peers: &[BenchPeer::single(|env| {
        let (rate, causes) = measure_send_buffer(env, "1K")?;
        if causes
            .iter()
            .any(|cause| cause == CauseId::DelayedAck.as_str())
        {
            Ok(rate)
        } else {
            let reason = format!("the cause delayed-ack was not found, but {causes:?}");
            Err(BenchError::program_failed("linerate", reason))
        }
    })],
    ..BASE_ROW
};

/// Queue of one packet.
pub const QUEUE_1: BenchRow = BenchRow {
    name: "stack/udp/queue/1",
    against: "datagrams sent in bursts of 64, polled every 200 us",
    unit: "",
    mark: RatioMark::AtMost(0.1),
    is_speed: false,
    max_pairs: Some(9),
    measure: |env| measure_delivered(env, 1),
    peers: &[BenchPeer::single(|_| Ok(1.0))],
    ..BASE_ROW
};

/// Queue that holds a burst.
pub const QUEUE_64: BenchRow = BenchRow {
    name: "stack/udp/queue/64",
    mark: RatioMark::AtLeast(1.0),
    measure: |env| measure_delivered(env, 64),
    ..QUEUE_1
};

/// Queue of the tuned profile.
pub const QUEUE_255: BenchRow = BenchRow {
    name: "stack/udp/queue/255",
    measure: |env| measure_delivered(env, 255),
    ..QUEUE_64
};

/// Starts a host on the user-space stack next to the client host's kernel; `keys` are options of
/// the tap.
fn start_tap_host(env: &BenchEnv, keys: &str, args: &str) -> Result<HostProgram, BenchError> {
    let device = format!("tap:{TAP_NAME},address={KERNEL_ADDRESS}{keys}");
    let address = format!("{STACK_ADDRESS}/24");
    let port_args = ["--dev", device.as_str(), "--ip", address.as_str()];
    start_stack(env, &port_args, args)
}

fn start_stack(env: &BenchEnv, port_args: &[&str], args: &str) -> Result<HostProgram, BenchError> {
    let [_, server_cpu] = env.cpus;
    let mut command = Command::new(&env.linerate);
    command.arg("stack").args(port_args).arg("--no-store");
    command.args(args.split_whitespace());
    let mut host = HostProgram::start(env.client()?, Some(server_cpu), &mut command)?;
    host.wait_for_line("READY", START_TIMEOUT)?;
    Ok(host)
}

/// Runs a test on the client host and returns its record.
fn run_test(env: &BenchEnv, server_address: &str, args: &str) -> Result<Value, BenchError> {
    let [client_cpu, _] = env.cpus;
    let (test, args) = args.split_once(' ').unwrap_or((args, ""));
    let mut command = Command::new(&env.linerate);
    command.args([test, server_address, "--json", "--no-store"]);
    command.args(args.split_whitespace());
    // Only this end is pinned here: the stack's thread stays on the core on which it was started.
    let text = HostProgram::start(env.client()?, Some(client_cpu), &mut command)?
        .wait_for_end(RUN_TIMEOUT)?;
    serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })
}

fn measure_tap_echo(env: &BenchEnv) -> Result<f64, BenchError> {
    let _host = start_tap_host(env, "", "--serve linerate")?;
    let record = run_test(env, STACK_ADDRESS, "latency -u -l 64 -t 500ms --wait spin")?;
    Ok(read_figure(&record, RTT_POINTER)? / 1e3)
}

fn measure_bare_echo(env: &BenchEnv) -> Result<f64, BenchError> {
    let _host = env
        .bare_loops()?
        .start_tap_echo(env, TAP_NAME, kernel_address())?;
    let args = "latency -u -l 64 -t 500ms --wait spin --peer echo";
    Ok(read_figure(&run_test(env, STACK_ADDRESS, args)?, RTT_POINTER)? / 1e3)
}

fn measure_bare_stream(env: &BenchEnv) -> Result<f64, BenchError> {
    measure_bare_sender(env, "stream")
}

fn measure_bare_sender(env: &BenchEnv, role: &str) -> Result<f64, BenchError> {
    let second = Duration::from_secs(1);
    let addresses = [kernel_address(), STACK_ADDRESS];
    env.bare_loops()?
        .measure_tap_stream(env, [role, TAP_NAME], addresses, second)
}

fn measure_bare_receiver(env: &BenchEnv) -> Result<f64, BenchError> {
    let second = Duration::from_secs(1);
    let addresses = [kernel_address(), STACK_ADDRESS];
    env.bare_loops()?
        .measure_tap_take(env, TAP_NAME, addresses, second, "bbr")
}

/// Address of the kernel without its prefix length.
fn kernel_address() -> &'static str {
    KERNEL_ADDRESS.split('/').next().unwrap_or(KERNEL_ADDRESS)
}

fn measure_shm_echo(env: &BenchEnv) -> Result<f64, BenchError> {
    let device = format!("shm:bench-{}", std::process::id());
    let server = format!("{device},role=server");
    let port_args = ["--dev", server.as_str(), "--ip", "10.66.1.2/24"];
    let _host = start_stack(env, &port_args, "--serve echo")?;
    let args = format!("latency -u -l 64 -t 500ms --peer echo --dev {device} --ip 10.66.1.1/24");
    let record = run_test(env, "10.66.1.2", &args)?;
    Ok(read_figure(&record, RTT_POINTER)? / 1e3)
}

/// Frames have the same length as those of the stacks: 64 B with the headers of Ethernet, IP and
/// UDP.
fn measure_bare_exchange(env: &BenchEnv) -> Result<f64, BenchError> {
    const FRAME_BYTES: u32 = 14 + 20 + 8 + 64;
    let time = Duration::from_millis(500);
    env.bare_loops()?.measure_exchange(env, FRAME_BYTES, time)
}

fn measure_kernel(env: &BenchEnv, wait: &str) -> Result<f64, BenchError> {
    let args = format!("latency -u -l 64 -t 500ms --wait {wait}");
    Ok(read_figure(&linerate::run_test(env, &args, RUN_TIMEOUT)?, RTT_POINTER)? / 1e3)
}

/// Host with segmentation and checksums left to the other side of the tap.
fn start_offloading_host(env: &BenchEnv) -> Result<HostProgram, BenchError> {
    let buffers = "--set tcp.send_buffer=1M --set tcp.receive_window=1M";
    let args = format!("--serve linerate --set checksum=offload {buffers}");
    start_tap_host(env, ",vnet", &args)
}

fn goodput_gbps(record: &Value) -> Result<f64, BenchError> {
    Ok(read_figure(record, "/summary/goodput_bps")? / 1e9)
}

fn measure_stream_in(env: &BenchEnv, control: &str, options: &str) -> Result<f64, BenchError> {
    let _host = start_offloading_host(env)?;
    let args = format!("throughput -t 1 -C {control} {options}");
    goodput_gbps(&run_test(env, STACK_ADDRESS, &args)?)
}

fn measure_stream_out(env: &BenchEnv, options: &str) -> Result<f64, BenchError> {
    let _host = start_offloading_host(env)?;
    goodput_gbps(&run_test(
        env,
        STACK_ADDRESS,
        &format!("throughput -t 1 -R {options}"),
    )?)
}

fn measure_between_kernels(env: &BenchEnv, control: &str) -> Result<f64, BenchError> {
    let args = format!("throughput -t 1 -C {control}");
    goodput_gbps(&linerate::run_test(env, &args, RUN_TIMEOUT)?)
}

/// Goodput of a stack with a send buffer of this size, Mb/s, and the causes found.
fn measure_send_buffer(env: &BenchEnv, bytes: &str) -> Result<(f64, Vec<String>), BenchError> {
    let args = "--serve linerate --set tcp.psh=never --set tcp.congestion_control=none";
    let _host = start_tap_host(env, "", &format!("{args} --set tcp.send_buffer={bytes}"))?;
    let record = run_test(env, STACK_ADDRESS, "throughput -R -t 2 -O 4")?;
    let findings = record["findings"].as_array().into_iter().flatten();
    let causes = findings.filter_map(|finding| finding["cause"].as_str().map(str::to_owned));
    Ok((goodput_gbps(&record)? * 1e3, causes.collect()))
}

/// Share of datagrams that a queue of this length did not lose.
fn measure_delivered(env: &BenchEnv, queue: u32) -> Result<f64, BenchError> {
    let args =
        format!("--serve linerate --set poll.interval=200us --set udp.receive_queue={queue}");
    let _host = start_tap_host(env, "", &args)?;
    // A burst every 2 ms, so that the previous one is complete. A hypervisor that stops a core for
    // longer merges two bursts; with runs of 100 bursts this does not affect the median.
    let test = "throughput -u -l 64 --pps 32000/64 -t 0.2 --wait block/interval:200us";
    let record = run_test(env, STACK_ADDRESS, test)?;
    let sent = read_figure(&record, "/summary/packets_sent")?;
    Ok(read_figure(&record, "/summary/packets_received")? / sent)
}
