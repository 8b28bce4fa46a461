//! Forwarding compared with DPDK's testpmd over ports of the same kind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use linerate_lab::{Lab, LabHost, Topology};
use serde_json::Value;

use crate::bench_env::{BenchEnv, DefaultCongestion};
use crate::error::BenchError;
use crate::peer::bare_loops;
use crate::peer::linerate::read_figure;
use crate::peer::testpmd::{TestpmdOptions, TestpmdProcess, check_installed};
use crate::process::HostProgram;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Duration of a bare loop.
pub(super) const RUN_TIME: Duration = Duration::from_secs(1);
/// Time limit, far above the seconds of a run.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

pub const BASE_ROW: BenchRow = BenchRow {
    name: "",
    against: "",
    unit: "Mpps",
    mark: RatioMark::AtLeast(1.0),
    is_speed: true,
    needs_near_state: false,
    holds_idle_states: true,
    default_congestion: DefaultCongestion::MachineDefault,
    is_long: false,
    max_pairs: None,
    slices_per_pair: 1,
    check_requirements: check_installed,
    measure: |_| unreachable!("each row of this file sets its own measurement"),
    peers: &[],
};

/// One core and one ring, 32 packets in flight.
pub const RING_IO: BenchRow = BenchRow {
    name: "forward/ring/io",
    against: "testpmd net_ring",
    mark: RatioMark::AtLeast(2.0),
    measure: |env| measure_ring(env, "--dev ring:0 --tx-first 1"),
    peers: &[BenchPeer::single(|env| {
        measure_testpmd_ring(env, 1, "set fwd io\nstart tx_first 1")
    })],
    ..BASE_ROW
};

/// DPDK's own ring, polled by linerate's loop.
pub const DPDK_RING: BenchRow = BenchRow {
    name: "forward/dpdk/ring/io",
    against: "testpmd net_ring, the same device",
    mark: RatioMark::AtLeast(0.95),
    check_requirements: |env| {
        check_installed(env)?;
        let mut test_command = Command::new(&env.linerate_dpdk);
        test_command.args("forward --dev dpdk:net_null0 -t 0.1 -q --no-store".split(' '));
        match test_command.output() {
            Ok(output) if output.status.success() => Ok(()),
            _ => Err(BenchError::skip(
                "there is no build with dpdk ports: `make bench` builds one if pkg-config finds libdpdk (Debian: \
                 libdpdk-dev)",
            )),
        }
    },
    measure: |env| {
        let [_, server_cpu] = env.cpus;
        let args = format!("--dev dpdk:net_ring0 --tx-first 1 --corelist {server_cpu} -t 1");
        measure_build(&env.linerate_dpdk, env.client()?, &args, RATE_POINTER)
    },
    ..RING_IO
};

/// Two cores that exchange 512 packets.
pub const RING_IO_2_CORES: BenchRow = BenchRow {
    name: "forward/ring/io/2_cores",
    against: "testpmd net_ring, 512 in flight",
    mark: RatioMark::AtLeast(1.5),
    needs_near_state: true,
    measure: |env| measure_ring(env, "--dev ring:0 --dev ring:1 --tx-first 16 --cores 2"),
    peers: &[BenchPeer::single(|env| {
        measure_testpmd_ring(env, 2, "set fwd io\nstart tx_first 16")
    })],
    ..BASE_ROW
};

/// The addresses of every frame are rewritten.
pub const RING_MACSWAP_1: BenchRow = BenchRow {
    name: "forward/ring/macswap/1",
    against: "testpmd net_ring, tx_first 1",
    mark: RatioMark::AtLeast(1.3),
    measure: |env| measure_ring(env, "--dev ring:0 --mode macswap --tx-first 1"),
    peers: &[BenchPeer::single(|env| {
        measure_testpmd_ring(env, 1, "set fwd macswap\nstart tx_first 1")
    })],
    ..BASE_ROW
};

/// [`RING_MACSWAP_1`] with 512 frames in flight.
pub const RING_MACSWAP_16: BenchRow = BenchRow {
    name: "forward/ring/macswap/16",
    against: "testpmd net_ring, tx_first 16",
    measure: |env| measure_ring(env, "--dev ring:0 --mode macswap --tx-first 16"),
    peers: &[BenchPeer::single(|env| {
        measure_testpmd_ring(env, 1, "set fwd macswap\nstart tx_first 16")
    })],
    ..RING_MACSWAP_1
};

/// Two processes over shared memory, with every byte copied in and out.
pub const SHM_64B: BenchRow = BenchRow {
    name: "forward/shm/64B",
    against: "testpmd net_memif",
    mark: RatioMark::AtLeast(2.5),
    needs_near_state: true,
    measure: |env| measure_shm(env, 64),
    peers: &[BenchPeer::single(|env| measure_memif(env, 64))],
    ..BASE_ROW
};

/// [`SHM_64B`] with large frames, which shows the cost of the copies.
pub const SHM_1500B: BenchRow = BenchRow {
    name: "forward/shm/1500B",
    mark: RatioMark::AtLeast(1.2),
    needs_near_state: true,
    measure: |env| measure_shm(env, 1500),
    peers: &[BenchPeer::single(|env| measure_memif(env, 1500))],
    ..SHM_64B
};

/// linerate compared with a loop of the copies alone.
pub const SHM_64B_BARE: BenchRow = BenchRow {
    name: "forward/shm/64B/bare",
    against: "bare loop of copies",
    mark: RatioMark::Informational,
    check_requirements: bare_loops::check_installed,
    peers: &[BenchPeer::single(|env| {
        env.bare_loops()?.measure_memory(env, 64, RUN_TIME)
    })],
    ..SHM_64B
};

/// [`SHM_64B_BARE`] with large frames.
pub const SHM_1500B_BARE: BenchRow = BenchRow {
    name: "forward/shm/1500B/bare",
    peers: &[BenchPeer::single(|env| {
        env.bare_loops()?.measure_memory(env, 1500, RUN_TIME)
    })],
    measure: |env| measure_shm(env, 1500),
    ..SHM_64B_BARE
};

/// The bare loop compared with testpmd: the upper limit with two copies.
pub const SHM_BARE_MEMIF_64B: BenchRow = BenchRow {
    name: "forward/shm/64B/limit",
    against: "testpmd net_memif; ours is the bare loop of copies",
    mark: RatioMark::Informational,
    check_requirements: |env| check_installed(env).and_then(|()| bare_loops::check_installed(env)),
    measure: |env| env.bare_loops()?.measure_memory(env, 64, RUN_TIME),
    ..SHM_64B
};

/// [`SHM_BARE_MEMIF_64B`] with large frames.
pub const SHM_BARE_MEMIF_1500B: BenchRow = BenchRow {
    name: "forward/shm/1500B/limit",
    measure: |env| env.bare_loops()?.measure_memory(env, 1500, RUN_TIME),
    peers: &[BenchPeer::single(|env| measure_memif(env, 1500))],
    ..SHM_BARE_MEMIF_64B
};

/// Transmit through a packet socket into a veth link whose other end is not read.
pub const PACKET_TX: BenchRow = BenchRow {
    name: "forward/packet/tx",
    against: "testpmd net_af_packet",
    mark: RatioMark::AtLeast(1.15),
    measure: |env| {
        let [_, server_cpu] = env.cpus;
        let args = format!("--dev packet:eth0 --mode txonly --corelist {server_cpu} -t 1");
        measure_linerate(env.client()?, env, &args, RATE_POINTER)
    },
    peers: &[BenchPeer::single(|env| {
        let devices = [af_packet_device(0, "eth0")];
        let [_, sent] = measure_testpmd(env, env.client()?, &devices, "set fwd txonly\nstart")?;
        Ok(sent)
    })],
    ..BASE_ROW
};

/// Receive through a packet socket, from a linerate sender on the other core.
pub const PACKET_RX: BenchRow = BenchRow {
    name: "forward/packet/rx",
    measure: |env| {
        let [_, server_cpu] = env.cpus;
        with_source(env.server()?, env, "packet:eth0", || {
            let args = format!("--dev packet:eth0 --mode rxonly --corelist {server_cpu} -t 1");
            measure_linerate(env.client()?, env, &args, RATE_POINTER)
        })
    },
    peers: &[BenchPeer::single(|env| {
        with_source(env.server()?, env, "packet:eth0", || {
            let devices = [af_packet_device(0, "eth0")];
            let [received, _] =
                measure_testpmd(env, env.client()?, &devices, "set fwd rxonly\nstart")?;
            Ok(received)
        })
    })],
    ..PACKET_TX
};

/// Forward between two links, from a linerate sender on the other core.
pub const PACKET_IO: BenchRow = BenchRow {
    name: "forward/packet/io",
    measure: |env| {
        let lab = build_device_lab()?;
        let [_, server_cpu] = env.cpus;
        with_source(lab.host("source")?, env, FASTEST_SENDER, || {
            let args = format!("--dev packet:eth0 --dev packet:eth1 --corelist {server_cpu} -t 1");
            measure_linerate(
                lab.host("device")?,
                env,
                &args,
                "/forward/ports/1/transmit/packets",
            )
            .map(|packets| packets / 1e6)
        })
    },
    peers: &[BenchPeer::single(|env| {
        let lab = build_device_lab()?;
        with_source(lab.host("source")?, env, FASTEST_SENDER, || {
            let devices = [af_packet_device(0, "eth0"), af_packet_device(1, "eth1")];
            let device = lab.host("device")?;
            let [_, sent] = measure_testpmd(env, device, &devices, "set fwd io\nstart")?;
            Ok(sent)
        })
    })],
    ..PACKET_TX
};

/// Transmit through a tap.
pub const TAP_TX: BenchRow = BenchRow {
    name: "forward/tap/tx",
    against: "testpmd net_tap",
    mark: RatioMark::AtLeast(1.2),
    measure: |env| {
        let [_, server_cpu] = env.cpus;
        let args = format!("--dev tap:lrbench0 --mode txonly --corelist {server_cpu} -t 1");
        measure_linerate(env.client()?, env, &args, RATE_POINTER)
    },
    peers: &[BenchPeer::single(|env| {
        let devices = ["net_tap0,iface=lrbench1".to_owned()];
        let [_, sent] = measure_testpmd(env, env.client()?, &devices, "set fwd txonly\nstart")?;
        Ok(sent)
    })],
    ..BASE_ROW
};

/// linerate compared with a loop of writes alone.
pub const TAP_TX_BARE: BenchRow = BenchRow {
    name: "forward/tap/tx/bare",
    against: "bare loop of writes",
    mark: RatioMark::Informational,
    check_requirements: bare_loops::check_installed,
    peers: &[BenchPeer::single(|env| {
        env.bare_loops()?
            .measure_tap_send(env, "lrbench1", RUN_TIME)
    })],
    ..TAP_TX
};

/// The bare loop compared with testpmd: the upper limit with one write per frame.
pub const TAP_TX_LIMIT: BenchRow = BenchRow {
    name: "forward/tap/tx/limit",
    against: "testpmd net_tap; ours is the bare loop of writes",
    mark: RatioMark::Informational,
    check_requirements: |env| check_installed(env).and_then(|()| bare_loops::check_installed(env)),
    measure: |env| {
        env.bare_loops()?
            .measure_tap_send(env, "lrbench0", RUN_TIME)
    },
    ..TAP_TX
};

/// Pointer to the frames forwarded per second in a record.
pub(super) const RATE_POINTER: &str = "/summary/packets_per_second";

/// Device of the cheapest sender.
///
/// The kernel delivers a frame to the receiver's socket on the sender's core, which is saturated.
/// With the cheapest sender the forwarder is the bottleneck.
const FASTEST_SENDER: &str = "xdp:eth0";

/// Lab with a source, a device with two interfaces, and a sink.
pub(super) fn build_device_lab() -> Result<Lab, BenchError> {
    const FILE: &str = "[hosts.source]\n[hosts.device]\n[hosts.sink]\n\
        [[links]]\nbetween = ['source', 'device']\n[[links]]\nbetween = ['device', 'sink']\n";
    let topology = Topology::from_toml(FILE).map_err(linerate_lab::LabError::from)?;
    Ok(Lab::up(&topology)?)
}

fn af_packet_device(number: u32, interface: &str) -> String {
    format!("net_af_packet{number},iface={interface},qdisc_bypass=1")
}

/// Runs a linerate forwarder and returns a figure of its record; rates in M/s.
pub(super) fn measure_linerate(
    host: &LabHost,
    env: &BenchEnv,
    args: &str,
    pointer: &str,
) -> Result<f64, BenchError> {
    measure_build(&env.linerate, host, args, pointer)
}

/// Like `measure_linerate`, with the given build.
fn measure_build(
    program: &Path,
    host: &LabHost,
    args: &str,
    pointer: &str,
) -> Result<f64, BenchError> {
    let text = start_build(program, host, args)?.wait_for_end(RUN_TIMEOUT)?;
    let record: Value = serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })?;
    let value = read_figure(&record, pointer)?;
    Ok(if pointer == RATE_POINTER {
        value / 1e6
    } else {
        value
    })
}

pub(super) fn start_forwarder(
    host: &LabHost,
    env: &BenchEnv,
    args: &str,
) -> Result<HostProgram, BenchError> {
    start_build(&env.linerate, host, args)
}

fn start_build(program: &Path, host: &LabHost, args: &str) -> Result<HostProgram, BenchError> {
    let mut command = Command::new(program);
    command
        .arg("forward")
        .args(args.split_whitespace())
        .args(["--json", "--no-store", "-q"]);
    HostProgram::start(host, None, &mut command)
}

/// Runs linerate on both cores for two rings, on the second core for one.
fn measure_ring(env: &BenchEnv, args: &str) -> Result<f64, BenchError> {
    let [client_cpu, server_cpu] = env.cpus;
    let cpus = match args.contains("--cores 2") {
        true => format!("{client_cpu},{server_cpu}"),
        false => server_cpu.to_string(),
    };
    let args = format!("{args} --corelist {cpus} -t 1");
    measure_linerate(env.client()?, env, &args, RATE_POINTER)
}

fn measure_testpmd_ring(env: &BenchEnv, cores: u32, commands: &str) -> Result<f64, BenchError> {
    let [client_cpu, server_cpu] = env.cpus;
    let devices: Vec<String> = (0..cores).map(|n| format!("net_ring{n}")).collect();
    let lcores = match cores {
        1 => format!("0@{client_cpu},1@{server_cpu}"),
        _ => format!("0@{client_cpu},1@{client_cpu},2@{server_cpu}"),
    };
    let options = TestpmdOptions {
        devices: &devices,
        lcores,
        forwarding_threads: cores,
        commands,
    };
    let [_, sent] = TestpmdProcess::start(env.client()?, &options)?.wait_for_rates()?;
    Ok(sent)
}

/// Runs testpmd with one forwarding thread on the second core.
pub(super) fn measure_testpmd(
    env: &BenchEnv,
    host: &LabHost,
    devices: &[String],
    commands: &str,
) -> Result<[f64; 2], BenchError> {
    let [client_cpu, server_cpu] = env.cpus;
    let options = TestpmdOptions {
        devices,
        lcores: format!("0@{client_cpu},1@{server_cpu}"),
        forwarding_threads: 1,
        commands,
    };
    TestpmdProcess::start(host, &options)?.wait_for_rates()
}

/// Measures while a linerate sender keeps the other core busy.
pub(super) fn with_source(
    host: &LabHost,
    env: &BenchEnv,
    device: &str,
    measure: impl FnOnce() -> Result<f64, BenchError>,
) -> Result<f64, BenchError> {
    let [client_cpu, _] = env.cpus;
    let args = format!("--dev {device} --mode txonly --corelist {client_cpu} -t 20");
    let _source = start_forwarder(host, env, &args)?;
    // The sender runs once packets flow; both sides of a pair start measuring a moment later.
    thread::sleep(Duration::from_millis(300));
    measure()
}

fn measure_shm(env: &BenchEnv, bytes: u32) -> Result<f64, BenchError> {
    let [client_cpu, server_cpu] = env.cpus;
    let host = env.client()?;
    let name = format!("bench-{}-{}", std::process::id(), fastrand::u32(..));
    let args = format!(
        "--dev shm:{name},role=server --mode txonly --txpkts {bytes} --corelist {client_cpu} -t 20"
    );
    let _source = start_forwarder(host, env, &args)?;
    thread::sleep(Duration::from_millis(300));
    let args = format!("--dev shm:{name} --mode rxonly --corelist {server_cpu} -t 1");
    measure_linerate(host, env, &args, RATE_POINTER)
}

/// Waits until a process on a host listens on an abstract socket address.
fn wait_for_listener(host: &LabHost, socket: &str) -> Result<(), BenchError> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let table = host.run(|| fs::read_to_string("/proc/thread-self/net/unix"))?;
        let table = table.map_err(BenchError::system_call("read the table of unix sockets"))?;
        if table.lines().any(|line| line.ends_with(socket)) || Instant::now() > end {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn measure_memif(env: &BenchEnv, bytes: u32) -> Result<f64, BenchError> {
    let [client_cpu, server_cpu] = env.cpus;
    let host = env.client()?;
    let socket = format!("@linerate-bench-{}", fastrand::u32(..));
    let device = |role: &str| {
        [format!(
            "net_memif0,role={role},id=0,socket={},socket-abstract=yes",
            &socket[1..]
        )]
    };
    let (server, client) = (device("server"), device("client"));
    let sink = TestpmdOptions {
        devices: &server,
        lcores: format!("0@{server_cpu},1@{server_cpu}"),
        forwarding_threads: 1,
        commands: "set fwd rxonly\nstart",
    };
    let commands = format!("set fwd txonly\nset txpkts {bytes}\nstart");
    let source = TestpmdOptions {
        devices: &client,
        lcores: format!("0@{client_cpu},1@{client_cpu}"),
        forwarding_threads: 1,
        commands: &commands,
    };
    let sink = TestpmdProcess::start(host, &sink)?;
    // A client that connects before its server listens does not retry.
    wait_for_listener(host, &socket)?;
    let source = TestpmdProcess::start(host, &source)?;
    let [received, _] = sink.wait_for_rates()?;
    drop(source);
    Ok(received)
}
