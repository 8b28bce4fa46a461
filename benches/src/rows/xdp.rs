//! AF_XDP compared with DPDK's testpmd and with sockets: transmit, receive, forward, and responses
//! that bypass the kernel's stack.

use std::process::Command;
use std::thread;
use std::time::Duration;

use linerate_lab::{Lab, LabHost, Topology};
use serde_json::Value;

use super::forward::{
    BASE_ROW, RATE_POINTER, RUN_TIME, build_device_lab, measure_linerate, measure_testpmd,
    start_forwarder, with_source,
};
use crate::bench_env::BenchEnv;
use crate::error::BenchError;
use crate::peer::bare_loops;
use crate::peer::linerate::{read_figure, run_test};
use crate::peer::testpmd::check_installed;
use crate::process::HostProgram;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Time limit, far above the seconds of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// Transmit through an AF_XDP socket into a veth link whose other end is not read.
pub const TX: BenchRow = BenchRow {
    name: "forward/xdp/tx",
    against: "testpmd net_af_xdp",
    mark: RatioMark::AtLeast(1.0),
    measure: |env| {
        let [_, server_cpu] = env.cpus;
        let args = format!("--dev xdp:eth0 --mode txonly --corelist {server_cpu} -t 1");
        measure_linerate(env.client()?, env, &args, RATE_POINTER)
    },
    peers: &[BenchPeer::single(|env| {
        let devices = [af_xdp_device(0, "eth0")];
        let [_, sent] = measure_testpmd(env, env.client()?, &devices, "set fwd txonly\nstart")?;
        Ok(sent)
    })],
    ..BASE_ROW
};

/// Receive through an AF_XDP socket, from a linerate sender on the other core.
pub const RX: BenchRow = BenchRow {
    name: "forward/xdp/rx",
    measure: |env| {
        let [_, server_cpu] = env.cpus;
        with_source(env.server()?, env, "packet:eth0", || {
            let args = format!("--dev xdp:eth0 --mode rxonly --corelist {server_cpu} -t 1");
            measure_linerate(env.client()?, env, &args, RATE_POINTER)
        })
    },
    peers: &[BenchPeer::single(|env| {
        with_source(env.server()?, env, "packet:eth0", || {
            let devices = [af_xdp_device(0, "eth0")];
            let [received, _] =
                measure_testpmd(env, env.client()?, &devices, "set fwd rxonly\nstart")?;
            Ok(received)
        })
    })],
    ..TX
};

/// Forward between two links, from a linerate sender on the other core.
pub const IO: BenchRow = BenchRow {
    name: "forward/xdp/io",
    measure: |env| measure_between_links(env, |device| measure_io(env, device)),
    peers: &[BenchPeer::single(|env| {
        measure_between_links(env, |device| {
            let devices = [af_xdp_device(0, "eth0"), af_xdp_device(1, "eth1")];
            let [_, sent] = measure_testpmd(env, device, &devices, "set fwd io\nstart")?;
            Ok(sent)
        })
    })],
    ..TX
};

/// linerate compared with a loop that only forwards frames.
pub const IO_BARE: BenchRow = BenchRow {
    name: "forward/xdp/io/bare",
    against: "bare loop of AF_XDP",
    mark: RatioMark::Informational,
    check_requirements: bare_loops::check_installed,
    peers: &[BenchPeer::single(|env| {
        measure_between_links(env, |device| measure_bare_io(env, device))
    })],
    ..IO
};

/// The bare loop compared with testpmd: the upper limit with the native hook.
///
/// The sender's core carries each frame up to the ring, and is the bottleneck for both.
pub const IO_LIMIT: BenchRow = BenchRow {
    name: "forward/xdp/io/limit",
    against: "testpmd net_af_xdp; ours is the bare loop of AF_XDP",
    mark: RatioMark::Informational,
    check_requirements: |env| check_installed(env).and_then(|()| bare_loops::check_installed(env)),
    measure: |env| measure_between_links(env, |device| measure_bare_io(env, device)),
    ..IO
};

/// Two queues of one veth with a core each, compared with one queue.
pub const TWO_QUEUES: BenchRow = BenchRow {
    name: "forward/xdp/tx/2_queues",
    against: "one queue, one core (testpmd rejects two on veth)",
    mark: RatioMark::AtLeast(1.9),
    check_requirements: |_| match Command::new("ethtool").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(BenchError::skip(
            "ethtool is not installed: it sets the number of queues",
        )),
    },
    measure: |env| {
        let [client_cpu, server_cpu] = env.cpus;
        measure_queues(
            &format!("--rxq 2 --cores 2 --corelist {client_cpu},{server_cpu}"),
            env,
        )
    },
    peers: &[BenchPeer::single(|env| {
        let [_, server_cpu] = env.cpus;
        measure_queues(&format!("--corelist {server_cpu}"), env)
    })],
    ..TX
};

/// Response by the forwarder over AF_XDP, which spins, compared with a server that blocks between
/// requests.
///
/// The machine is unmodified. The client is the same for both and spins.
pub const ECHO_BLOCKING: BenchRow = BenchRow {
    name: "forward/xdp/echo/blocking",
    against: "kernel echo that blocks, as found, p50; the client spins for both",
    unit: "us",
    mark: RatioMark::AtMost(1.0 / 3.0),
    holds_idle_states: false,
    check_requirements: |_| Ok(()),
    measure: |env| measure_responder(env, "spin", start_echo),
    peers: &[BenchPeer::single(|env| measure_kernel(env, "spin/block"))],
    ..BASE_ROW
};

/// The bare loop compared with the kernel: the lower limit, since the path through the kernel is
/// the same for any AF_XDP responder.
pub const ECHO_BLOCKING_LIMIT: BenchRow = BenchRow {
    name: "forward/xdp/echo/blocking/limit",
    against: "kernel echo that blocks, as found, p50; ours is the bare loop of AF_XDP",
    mark: RatioMark::Informational,
    check_requirements: bare_loops::check_installed,
    measure: |env| measure_responder(env, "spin", start_bare_echo),
    ..ECHO_BLOCKING
};

/// [`ECHO_BLOCKING`] without idle states, so that only the blocking remains of the server's wakeup
/// cost.
pub const ECHO_BLOCKING_HELD: BenchRow = BenchRow {
    name: "forward/xdp/echo/blocking_held",
    against: "kernel echo that blocks, no core halts, p50; the client spins for both",
    mark: RatioMark::AtMost(1.0 / 1.5),
    holds_idle_states: true,
    ..ECHO_BLOCKING
};

/// [`ECHO_BLOCKING`] with a client that blocks too: its wakeup is in both figures.
pub const ECHO_ASLEEP: BenchRow = BenchRow {
    name: "forward/xdp/echo/asleep",
    against: "kernel echo that blocks, as found, p50; the client blocks for both",
    mark: RatioMark::Informational,
    measure: |env| measure_responder(env, "block", start_echo),
    peers: &[BenchPeer::single(|env| measure_kernel(env, "block"))],
    ..ECHO_BLOCKING
};

/// [`ECHO_BLOCKING_HELD`] compared with a kernel socket that spins too.
pub const ECHO_SPINNING: BenchRow = BenchRow {
    name: "forward/xdp/echo/spinning",
    against: "kernel echo, both ends spinning, p50",
    mark: RatioMark::AtMost(1.0 / 1.2),
    peers: &[BenchPeer::single(|env| measure_kernel(env, "spin"))],
    ..ECHO_BLOCKING_HELD
};

/// linerate compared with a loop that only returns frames; the client is the same for both and
/// spins.
pub const ECHO_BARE: BenchRow = BenchRow {
    name: "forward/xdp/echo/spinning/bare",
    against: "bare loop of AF_XDP, same spinning client, p50",
    mark: RatioMark::Informational,
    check_requirements: bare_loops::check_installed,
    peers: &[BenchPeer::single(|env| {
        measure_responder(env, "spin", start_bare_echo)
    })],
    ..ECHO_SPINNING
};

/// Measures on a device between two links, with a linerate sender on the other core.
fn measure_between_links(
    env: &BenchEnv,
    measure: impl FnOnce(&LabHost) -> Result<f64, BenchError>,
) -> Result<f64, BenchError> {
    let lab = build_device_lab()?;
    let device = lab.host("device")?;
    with_source(lab.host("source")?, env, "packet:eth0", || measure(device))
}

fn measure_io(env: &BenchEnv, device: &LabHost) -> Result<f64, BenchError> {
    let [_, server_cpu] = env.cpus;
    let args = format!("--dev xdp:eth0 --dev xdp:eth1 --corelist {server_cpu} -t 1");
    let sent = measure_linerate(device, env, &args, "/forward/ports/1/transmit/packets")?;
    Ok(sent / 1e6)
}

fn measure_bare_io(env: &BenchEnv, device: &LabHost) -> Result<f64, BenchError> {
    env.bare_loops()?.measure_xdp_io(env, device, RUN_TIME)
}

fn af_xdp_device(number: u32, interface: &str) -> String {
    format!("net_af_xdp{number},iface={interface}")
}

/// Lab of two hosts with valid checksums on the wire: without the kernel's stack they would not be
/// completed.
fn build_pair_lab() -> Result<Lab, BenchError> {
    const FILE: &str = "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = ['client', 'server']\n\
                        offloads = { tx-checksumming = false }\n";
    let topology = Topology::from_toml(FILE).map_err(linerate_lab::LabError::from)?;
    Ok(Lab::up(&topology)?)
}

/// Runs a system tool on a host.
fn run_tool(host: &LabHost, program: &str, args: &str) -> Result<(), BenchError> {
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    let result = host.run(|| command.output())?;
    match result {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(BenchError::skip(format!(
            "{program} {args}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(_) => Err(BenchError::skip(format!("{program} is not installed"))),
    }
}

fn measure_queues(args: &str, env: &BenchEnv) -> Result<f64, BenchError> {
    let lab = build_pair_lab()?;
    for host in lab.hosts() {
        run_tool(host, "ethtool", "-L eth0 rx 2 tx 2")?;
    }
    let args = format!("--dev xdp:eth0 --mode txonly {args} -t 1");
    measure_linerate(lab.host("client")?, env, &args, RATE_POINTER)
}

/// Function that starts a responder on a host, on the second core.
type StartResponder = fn(&BenchEnv, &LabHost) -> Result<HostProgram, BenchError>;

fn start_echo(env: &BenchEnv, server: &LabHost) -> Result<HostProgram, BenchError> {
    let [_, server_cpu] = env.cpus;
    let args = format!("--dev xdp:eth0 --mode 5tswap --corelist {server_cpu} -t 20");
    start_forwarder(server, env, &args)
}

fn start_bare_echo(env: &BenchEnv, server: &LabHost) -> Result<HostProgram, BenchError> {
    env.bare_loops()?.start_xdp_echo(env, server)
}

/// Median round trip to a responder, µs.
fn measure_responder(
    env: &BenchEnv,
    wait: &str,
    start_responder: StartResponder,
) -> Result<f64, BenchError> {
    const PORT: u16 = 7007;
    let [client_cpu, _] = env.cpus;
    let lab = build_pair_lab()?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    // The responder receives every frame, ARP requests too, so the neighbor entry is set
    // statically.
    let mac_address = server
        .run(|| std::fs::read_to_string("/sys/class/net/eth0/address"))?
        .map_err(BenchError::system_call(
            "read the server's Ethernet address",
        ))?;
    let neighbor = format!("{} lladdr {}", server.address(), mac_address.trim());
    let args = format!("neigh replace {neighbor} dev eth0 nud permanent");
    run_tool(client, "ip", &args)?;
    let _responder = start_responder(env, server)?;
    thread::sleep(Duration::from_millis(300));
    let mut command = Command::new(&env.linerate);
    command
        .args([
            "latency",
            &server.address().to_string(),
            "-u",
            "--peer",
            "echo",
        ])
        .args([
            "-p",
            &PORT.to_string(),
            "-l",
            "64",
            "-t",
            "0.5",
            "--wait",
            wait,
        ])
        .args(["--cpu", &client_cpu.to_string(), "--json", "--no-store"]);
    let text = HostProgram::start(client, None, &mut command)?.wait_for_end(RUN_TIMEOUT)?;
    let record: Value = serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })?;
    Ok(read_figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}

fn measure_kernel(env: &BenchEnv, wait: &str) -> Result<f64, BenchError> {
    let args = format!("latency -u -l 64 -t 0.5 --wait {wait}");
    let record = run_test(env, &args, RUN_TIMEOUT)?;
    Ok(read_figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}
