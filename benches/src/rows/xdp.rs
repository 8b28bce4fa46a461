//! AF_XDP compared with DPDK's testpmd and with sockets: transmit, receive, forward, and responses
//! that bypass the
//! kernel's stack.

use std::process::Command;
use std::thread;
use std::time::Duration;

use linerate_lab::{Lab, LabHost, Topology};
use serde_json::Value;

use super::forward::{BASE, RATE, SECOND, one_core, ours, start, wire, with_source};
use crate::bench_env::Ground;
use crate::error::Trouble;
use crate::peer::bare_loops;
use crate::peer::linerate::{figure, run};
use crate::peer::testpmd::installed;
use crate::process::Program;
use crate::row::{Mark, Peer, Row};

/// Time limit, far above the seconds of a run.
const LIMIT: Duration = Duration::from_secs(30);

/// Transmit through an AF_XDP socket into a veth link whose other end is not read.
pub const TX: Row = Row {
    name: "forward/xdp/tx",
    against: "testpmd net_af_xdp",
    mark: Mark::AtLeast(1.0),
    ours: |ground| {
        let [_, far] = ground.cpus;
        let words = format!("--dev xdp:eth0 --mode txonly --corelist {far} -t 1");
        ours(ground.client()?, ground, &words, RATE)
    },
    theirs: &[Peer::only(|ground| {
        let devices = [af_xdp(0, "eth0")];
        let [_, sent] = one_core(ground, ground.client()?, &devices, "set fwd txonly\nstart")?;
        Ok(sent)
    })],
    ..BASE
};

/// Receive through an AF_XDP socket, from a linerate sender on the other core.
pub const RX: Row = Row {
    name: "forward/xdp/rx",
    ours: |ground| {
        let [_, far] = ground.cpus;
        with_source(ground.server()?, ground, "packet:eth0", || {
            let words = format!("--dev xdp:eth0 --mode rxonly --corelist {far} -t 1");
            ours(ground.client()?, ground, &words, RATE)
        })
    },
    theirs: &[Peer::only(|ground| {
        with_source(ground.server()?, ground, "packet:eth0", || {
            let devices = [af_xdp(0, "eth0")];
            let [received, _] =
                one_core(ground, ground.client()?, &devices, "set fwd rxonly\nstart")?;
            Ok(received)
        })
    })],
    ..TX
};

/// Forward between two links, from a linerate sender on the other core.
pub const IO: Row = Row {
    name: "forward/xdp/io",
    ours: |ground| between_links(ground, |device| our_io(ground, device)),
    theirs: &[Peer::only(|ground| {
        between_links(ground, |device| {
            let devices = [af_xdp(0, "eth0"), af_xdp(1, "eth1")];
            let [_, sent] = one_core(ground, device, &devices, "set fwd io\nstart")?;
            Ok(sent)
        })
    })],
    ..TX
};

/// linerate compared with a loop that only forwards frames.
pub const IO_BARE: Row = Row {
    name: "forward/xdp/io/bare",
    against: "bare loop of AF_XDP",
    mark: Mark::Shown,
    needs: bare_loops::installed,
    theirs: &[Peer::only(|ground| {
        between_links(ground, |device| bare_io(ground, device))
    })],
    ..IO
};

/// The bare loop compared with testpmd: the upper limit with the native hook.
///
/// The sender's core carries each frame up to the ring, and is the bottleneck for both.
pub const IO_LIMIT: Row = Row {
    name: "forward/xdp/io/limit",
    against: "testpmd net_af_xdp; ours is the bare loop of AF_XDP",
    mark: Mark::Shown,
    needs: |ground| installed(ground).and_then(|()| bare_loops::installed(ground)),
    ours: |ground| between_links(ground, |device| bare_io(ground, device)),
    ..IO
};

/// Two queues of one veth with a core each, compared with one queue.
pub const TWO_QUEUES: Row = Row {
    name: "forward/xdp/tx/2_queues",
    against: "one queue, one core (testpmd rejects two on veth)",
    mark: Mark::AtLeast(1.9),
    needs: |_| match Command::new("ethtool").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(Trouble::skip(
            "ethtool is not installed: it sets the number of queues",
        )),
    },
    ours: |ground| {
        let [near, far] = ground.cpus;
        queues(
            &format!("--rxq 2 --cores 2 --corelist {near},{far}"),
            ground,
        )
    },
    theirs: &[Peer::only(|ground| {
        let [_, far] = ground.cpus;
        queues(&format!("--corelist {far}"), ground)
    })],
    ..TX
};

/// Response by the forwarder over AF_XDP, which spins, compared with a server that blocks between
/// requests.
///
/// The machine is unmodified. The client is the same for both and spins.
pub const ECHO_BLOCKING: Row = Row {
    name: "forward/xdp/echo/blocking",
    against: "kernel echo that blocks, as found, p50; the client spins for both",
    unit: "us",
    mark: Mark::AtMost(1.0 / 3.0),
    held: false,
    needs: |_| Ok(()),
    ours: |ground| answered(ground, "spin", our_echo),
    theirs: &[Peer::only(|ground| by_the_kernel(ground, "spin/block"))],
    ..BASE
};

/// The bare loop compared with the kernel: the lower limit, since the path through the kernel is
/// the same for any
/// AF_XDP responder.
pub const ECHO_BLOCKING_LIMIT: Row = Row {
    name: "forward/xdp/echo/blocking/limit",
    against: "kernel echo that blocks, as found, p50; ours is the bare loop of AF_XDP",
    mark: Mark::Shown,
    needs: bare_loops::installed,
    ours: |ground| answered(ground, "spin", bare_echo),
    ..ECHO_BLOCKING
};

/// [`ECHO_BLOCKING`] without idle states, so that only the blocking remains of the server's wakeup cost.
pub const ECHO_BLOCKING_HELD: Row = Row {
    name: "forward/xdp/echo/blocking_held",
    against: "kernel echo that blocks, no core halts, p50; the client spins for both",
    mark: Mark::AtMost(1.0 / 1.5),
    held: true,
    ..ECHO_BLOCKING
};

/// [`ECHO_BLOCKING`] with a client that blocks too: its wakeup is in both figures.
pub const ECHO_ASLEEP: Row = Row {
    name: "forward/xdp/echo/asleep",
    against: "kernel echo that blocks, as found, p50; the client blocks for both",
    mark: Mark::Shown,
    ours: |ground| answered(ground, "block", our_echo),
    theirs: &[Peer::only(|ground| by_the_kernel(ground, "block"))],
    ..ECHO_BLOCKING
};

/// [`ECHO_BLOCKING_HELD`] compared with a kernel socket that spins too.
pub const ECHO_SPINNING: Row = Row {
    name: "forward/xdp/echo/spinning",
    against: "kernel echo, both ends spinning, p50",
    mark: Mark::AtMost(1.0 / 1.2),
    theirs: &[Peer::only(|ground| by_the_kernel(ground, "spin"))],
    ..ECHO_BLOCKING_HELD
};

/// linerate compared with a loop that only returns frames; the client is the same for both and
/// spins.
pub const ECHO_BARE: Row = Row {
    name: "forward/xdp/echo/spinning/bare",
    against: "bare loop of AF_XDP, same spinning client, p50",
    mark: Mark::Shown,
    needs: bare_loops::installed,
    theirs: &[Peer::only(|ground| answered(ground, "spin", bare_echo))],
    ..ECHO_SPINNING
};

/// Measures on a device between two links, with a linerate sender on the other core.
fn between_links(
    ground: &Ground,
    measure: impl FnOnce(&LabHost) -> Result<f64, Trouble>,
) -> Result<f64, Trouble> {
    let lab = wire()?;
    let device = lab.host("device")?;
    with_source(lab.host("source")?, ground, "packet:eth0", || {
        measure(device)
    })
}

fn our_io(ground: &Ground, device: &LabHost) -> Result<f64, Trouble> {
    let [_, far] = ground.cpus;
    let words = format!("--dev xdp:eth0 --dev xdp:eth1 --corelist {far} -t 1");
    let sent = ours(device, ground, &words, "/forward/ports/1/transmit/packets")?;
    Ok(sent / 1e6)
}

fn bare_io(ground: &Ground, device: &LabHost) -> Result<f64, Trouble> {
    ground.bare()?.xdp_io(ground, device, SECOND)
}

fn af_xdp(number: u32, interface: &str) -> String {
    format!("net_af_xdp{number},iface={interface}")
}

/// Lab of two hosts with valid checksums on the wire: without the kernel's stack they would not be
/// completed.
fn pair() -> Result<Lab, Trouble> {
    const FILE: &str = "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = ['client', 'server']\n\
                        offloads = { tx-checksumming = false }\n";
    let topology = Topology::from_toml(FILE).map_err(linerate_lab::LabError::from)?;
    Ok(Lab::up(&topology)?)
}

/// Runs a system tool on a host.
fn tool(host: &LabHost, program: &str, words: &str) -> Result<(), Trouble> {
    let mut command = Command::new(program);
    command.args(words.split_whitespace());
    let ran = host.run(|| command.output())?;
    match ran {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Trouble::skip(format!(
            "{program} {words}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(_) => Err(Trouble::skip(format!("{program} is not installed"))),
    }
}

fn queues(words: &str, ground: &Ground) -> Result<f64, Trouble> {
    let lab = pair()?;
    for host in lab.hosts() {
        tool(host, "ethtool", "-L eth0 rx 2 tx 2")?;
    }
    let words = format!("--dev xdp:eth0 --mode txonly {words} -t 1");
    ours(lab.host("client")?, ground, &words, RATE)
}

/// Function that starts a responder on a host, on the second core.
type Answering = fn(&Ground, &LabHost) -> Result<Program, Trouble>;

fn our_echo(ground: &Ground, server: &LabHost) -> Result<Program, Trouble> {
    let [_, far] = ground.cpus;
    let words = format!("--dev xdp:eth0 --mode 5tswap --corelist {far} -t 20");
    start(server, ground, &words)
}

fn bare_echo(ground: &Ground, server: &LabHost) -> Result<Program, Trouble> {
    ground.bare()?.xdp_echo(ground, server)
}

/// Median round trip to a responder, µs.
fn answered(ground: &Ground, wait: &str, answering: Answering) -> Result<f64, Trouble> {
    const PORT: u16 = 7007;
    let [near, _] = ground.cpus;
    let lab = pair()?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    // The responder receives every frame, ARP requests too, so the neighbor entry is set
    // statically.
    let hardware = server
        .run(|| std::fs::read_to_string("/sys/class/net/eth0/address"))?
        .map_err(Trouble::system("read the server's Ethernet address"))?;
    let neighbour = format!("{} lladdr {}", server.address(), hardware.trim());
    let words = format!("neigh replace {neighbour} dev eth0 nud permanent");
    tool(client, "ip", &words)?;
    let _answering = answering(ground, server)?;
    thread::sleep(Duration::from_millis(300));
    let mut command = Command::new(&ground.linerate);
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
        .args(["--cpu", &near.to_string(), "--json", "--no-store"]);
    let text = Program::start(client, None, &mut command)?.finish(LIMIT)?;
    let record: Value = serde_json::from_str(&text).map_err(|error| {
        Trouble::program("linerate", format!("its record is not JSON: {error}"))
    })?;
    Ok(figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}

fn by_the_kernel(ground: &Ground, wait: &str) -> Result<f64, Trouble> {
    let words = format!("latency -u -l 64 -t 0.5 --wait {wait}");
    let record = run(ground, &words, LIMIT)?;
    Ok(figure(&record, "/summary/rtt_ns/p50")? / 1e3)
}
