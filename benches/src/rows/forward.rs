//! Forwarding compared with DPDK's testpmd over ports of the same kind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use linerate_lab::{Lab, LabHost, Topology};
use serde_json::Value;

use crate::bench_env::{Control, Ground};
use crate::error::Trouble;
use crate::peer::bare_loops;
use crate::peer::linerate::figure;
use crate::peer::testpmd::{Setting, Testpmd, installed};
use crate::process::Program;
use crate::row::{Mark, Peer, Row};

/// Duration of a bare loop.
pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Time limit, far above the seconds of a run.
const LIMIT: Duration = Duration::from_secs(30);

pub const BASE: Row = Row {
    name: "",
    against: "",
    unit: "Mpps",
    mark: Mark::AtLeast(1.0),
    speed: true,
    near: false,
    held: true,
    control: Control::Found,
    long: false,
    most_pairs: None,
    slices: 1,
    needs: installed,
    ours: |_| unreachable!("each row of this file sets its own measurement"),
    theirs: &[],
};

/// One core and one ring, 32 packets in flight.
pub const RING_IO: Row = Row {
    name: "forward/ring/io",
    against: "testpmd net_ring",
    mark: Mark::AtLeast(2.0),
    ours: |ground| ours_ring(ground, "--dev ring:0 --tx-first 1"),
    theirs: &[Peer::only(|ground| {
        theirs_ring(ground, 1, "set fwd io\nstart tx_first 1")
    })],
    ..BASE
};

/// DPDK's own ring, polled by linerate's loop.
pub const DPDK_RING: Row = Row {
    name: "forward/dpdk/ring/io",
    against: "testpmd net_ring, the same device",
    mark: Mark::AtLeast(0.95),
    needs: |ground| {
        installed(ground)?;
        let mut tried = Command::new(&ground.linerate_dpdk);
        tried.args("forward --dev dpdk:net_null0 -t 0.1 -q --no-store".split(' '));
        match tried.output() {
            Ok(output) if output.status.success() => Ok(()),
            _ => Err(Trouble::skip(
                "there is no build with dpdk ports: `make bench` builds one if pkg-config finds libdpdk (Debian: \
                 libdpdk-dev)",
            )),
        }
    },
    ours: |ground| {
        let [_, far] = ground.cpus;
        let words = format!("--dev dpdk:net_ring0 --tx-first 1 --corelist {far} -t 1");
        ours_by(&ground.linerate_dpdk, ground.client()?, &words, RATE)
    },
    ..RING_IO
};

/// Two cores that exchange 512 packets.
pub const RING_IO_2_CORES: Row = Row {
    name: "forward/ring/io/2_cores",
    against: "testpmd net_ring, 512 in flight",
    mark: Mark::AtLeast(1.5),
    near: true,
    ours: |ground| ours_ring(ground, "--dev ring:0 --dev ring:1 --tx-first 16 --cores 2"),
    theirs: &[Peer::only(|ground| {
        theirs_ring(ground, 2, "set fwd io\nstart tx_first 16")
    })],
    ..BASE
};

/// The addresses of every frame are rewritten.
pub const RING_MACSWAP_1: Row = Row {
    name: "forward/ring/macswap/1",
    against: "testpmd net_ring, tx_first 1",
    mark: Mark::AtLeast(1.3),
    ours: |ground| ours_ring(ground, "--dev ring:0 --mode macswap --tx-first 1"),
    theirs: &[Peer::only(|ground| {
        theirs_ring(ground, 1, "set fwd macswap\nstart tx_first 1")
    })],
    ..BASE
};

/// [`RING_MACSWAP_1`] with 512 frames in flight.
pub const RING_MACSWAP_16: Row = Row {
    name: "forward/ring/macswap/16",
    against: "testpmd net_ring, tx_first 16",
    ours: |ground| ours_ring(ground, "--dev ring:0 --mode macswap --tx-first 16"),
    theirs: &[Peer::only(|ground| {
        theirs_ring(ground, 1, "set fwd macswap\nstart tx_first 16")
    })],
    ..RING_MACSWAP_1
};

/// Two processes over shared memory, with every byte copied in and out.
pub const SHM_64B: Row = Row {
    name: "forward/shm/64B",
    against: "testpmd net_memif",
    mark: Mark::AtLeast(2.5),
    near: true,
    ours: |ground| ours_shm(ground, 64),
    theirs: &[Peer::only(|ground| theirs_memif(ground, 64))],
    ..BASE
};

/// [`SHM_64B`] with large frames, which shows the cost of the copies.
pub const SHM_1500B: Row = Row {
    name: "forward/shm/1500B",
    mark: Mark::AtLeast(1.2),
    near: true,
    ours: |ground| ours_shm(ground, 1500),
    theirs: &[Peer::only(|ground| theirs_memif(ground, 1500))],
    ..SHM_64B
};

/// linerate compared with a loop of the copies alone.
pub const SHM_64B_BARE: Row = Row {
    name: "forward/shm/64B/bare",
    against: "bare loop of copies",
    mark: Mark::Shown,
    needs: bare_loops::installed,
    theirs: &[Peer::only(|ground| {
        ground.bare()?.memory(ground, 64, SECOND)
    })],
    ..SHM_64B
};

/// [`SHM_64B_BARE`] with large frames.
pub const SHM_1500B_BARE: Row = Row {
    name: "forward/shm/1500B/bare",
    theirs: &[Peer::only(|ground| {
        ground.bare()?.memory(ground, 1500, SECOND)
    })],
    ours: |ground| ours_shm(ground, 1500),
    ..SHM_64B_BARE
};

/// The bare loop compared with testpmd: the upper limit with two copies.
pub const SHM_BARE_MEMIF_64B: Row = Row {
    name: "forward/shm/64B/limit",
    against: "testpmd net_memif; ours is the bare loop of copies",
    mark: Mark::Shown,
    needs: |ground| installed(ground).and_then(|()| bare_loops::installed(ground)),
    ours: |ground| ground.bare()?.memory(ground, 64, SECOND),
    ..SHM_64B
};

/// [`SHM_BARE_MEMIF_64B`] with large frames.
pub const SHM_BARE_MEMIF_1500B: Row = Row {
    name: "forward/shm/1500B/limit",
    ours: |ground| ground.bare()?.memory(ground, 1500, SECOND),
    theirs: &[Peer::only(|ground| theirs_memif(ground, 1500))],
    ..SHM_BARE_MEMIF_64B
};

/// Transmit through a packet socket into a veth link whose other end is not read.
pub const PACKET_TX: Row = Row {
    name: "forward/packet/tx",
    against: "testpmd net_af_packet",
    mark: Mark::AtLeast(1.15),
    ours: |ground| {
        let [_, far] = ground.cpus;
        let words = format!("--dev packet:eth0 --mode txonly --corelist {far} -t 1");
        ours(ground.client()?, ground, &words, RATE)
    },
    theirs: &[Peer::only(|ground| {
        let devices = [af_packet(0, "eth0")];
        let [_, sent] = one_core(ground, ground.client()?, &devices, "set fwd txonly\nstart")?;
        Ok(sent)
    })],
    ..BASE
};

/// Receive through a packet socket, from a linerate sender on the other core.
pub const PACKET_RX: Row = Row {
    name: "forward/packet/rx",
    ours: |ground| {
        let [_, far] = ground.cpus;
        with_source(ground.server()?, ground, "packet:eth0", || {
            let words = format!("--dev packet:eth0 --mode rxonly --corelist {far} -t 1");
            ours(ground.client()?, ground, &words, RATE)
        })
    },
    theirs: &[Peer::only(|ground| {
        with_source(ground.server()?, ground, "packet:eth0", || {
            let devices = [af_packet(0, "eth0")];
            let [received, _] =
                one_core(ground, ground.client()?, &devices, "set fwd rxonly\nstart")?;
            Ok(received)
        })
    })],
    ..PACKET_TX
};

/// Forward between two links, from a linerate sender on the other core.
pub const PACKET_IO: Row = Row {
    name: "forward/packet/io",
    ours: |ground| {
        let lab = wire()?;
        let [_, far] = ground.cpus;
        with_source(lab.host("source")?, ground, FASTEST, || {
            let words = format!("--dev packet:eth0 --dev packet:eth1 --corelist {far} -t 1");
            ours(
                lab.host("device")?,
                ground,
                &words,
                "/forward/ports/1/transmit/packets",
            )
            .map(|packets| packets / 1e6)
        })
    },
    theirs: &[Peer::only(|ground| {
        let lab = wire()?;
        with_source(lab.host("source")?, ground, FASTEST, || {
            let devices = [af_packet(0, "eth0"), af_packet(1, "eth1")];
            let device = lab.host("device")?;
            let [_, sent] = one_core(ground, device, &devices, "set fwd io\nstart")?;
            Ok(sent)
        })
    })],
    ..PACKET_TX
};

/// Transmit through a tap.
pub const TAP_TX: Row = Row {
    name: "forward/tap/tx",
    against: "testpmd net_tap",
    mark: Mark::AtLeast(1.2),
    ours: |ground| {
        let [_, far] = ground.cpus;
        let words = format!("--dev tap:lrbench0 --mode txonly --corelist {far} -t 1");
        ours(ground.client()?, ground, &words, RATE)
    },
    theirs: &[Peer::only(|ground| {
        let devices = ["net_tap0,iface=lrbench1".to_owned()];
        let [_, sent] = one_core(ground, ground.client()?, &devices, "set fwd txonly\nstart")?;
        Ok(sent)
    })],
    ..BASE
};

/// linerate compared with a loop of writes alone.
pub const TAP_TX_BARE: Row = Row {
    name: "forward/tap/tx/bare",
    against: "bare loop of writes",
    mark: Mark::Shown,
    needs: bare_loops::installed,
    theirs: &[Peer::only(|ground| {
        ground.bare()?.tap_send(ground, "lrbench1", SECOND)
    })],
    ..TAP_TX
};

/// The bare loop compared with testpmd: the upper limit with one write per frame.
pub const TAP_TX_LIMIT: Row = Row {
    name: "forward/tap/tx/limit",
    against: "testpmd net_tap; ours is the bare loop of writes",
    mark: Mark::Shown,
    needs: |ground| installed(ground).and_then(|()| bare_loops::installed(ground)),
    ours: |ground| ground.bare()?.tap_send(ground, "lrbench0", SECOND),
    ..TAP_TX
};

/// Pointer to the frames forwarded per second in a record.
pub(super) const RATE: &str = "/summary/packets_per_second";

/// Device of the cheapest sender.
///
/// The kernel delivers a frame to the receiver's socket on the sender's core, which is saturated.
/// With
/// the cheapest sender the forwarder is the bottleneck.
const FASTEST: &str = "xdp:eth0";

/// Lab with a source, a device with two interfaces, and a sink.
pub(super) fn wire() -> Result<Lab, Trouble> {
    const FILE: &str = "[hosts.source]\n[hosts.device]\n[hosts.sink]\n\
        [[links]]\nbetween = ['source', 'device']\n[[links]]\nbetween = ['device', 'sink']\n";
    let topology = Topology::from_toml(FILE).map_err(linerate_lab::LabError::from)?;
    Ok(Lab::up(&topology)?)
}

fn af_packet(number: u32, interface: &str) -> String {
    format!("net_af_packet{number},iface={interface},qdisc_bypass=1")
}

/// Runs a linerate forwarder and returns a figure of its record; rates in M/s.
pub(super) fn ours(
    host: &LabHost,
    ground: &Ground,
    words: &str,
    pointer: &str,
) -> Result<f64, Trouble> {
    ours_by(&ground.linerate, host, words, pointer)
}

/// Like `ours`, with the given build.
fn ours_by(program: &Path, host: &LabHost, words: &str, pointer: &str) -> Result<f64, Trouble> {
    let text = start_by(program, host, words)?.finish(LIMIT)?;
    let record: Value = serde_json::from_str(&text).map_err(|error| {
        Trouble::program("linerate", format!("its record is not JSON: {error}"))
    })?;
    let value = figure(&record, pointer)?;
    Ok(if pointer == RATE { value / 1e6 } else { value })
}

pub(super) fn start(host: &LabHost, ground: &Ground, words: &str) -> Result<Program, Trouble> {
    start_by(&ground.linerate, host, words)
}

fn start_by(program: &Path, host: &LabHost, words: &str) -> Result<Program, Trouble> {
    let mut command = Command::new(program);
    command
        .arg("forward")
        .args(words.split_whitespace())
        .args(["--json", "--no-store", "-q"]);
    Program::start(host, None, &mut command)
}

/// Runs linerate on both cores for two rings, on the second core for one.
fn ours_ring(ground: &Ground, words: &str) -> Result<f64, Trouble> {
    let [near, far] = ground.cpus;
    let cpus = match words.contains("--cores 2") {
        true => format!("{near},{far}"),
        false => far.to_string(),
    };
    let words = format!("{words} --corelist {cpus} -t 1");
    ours(ground.client()?, ground, &words, RATE)
}

fn theirs_ring(ground: &Ground, cores: u32, commands: &str) -> Result<f64, Trouble> {
    let [near, far] = ground.cpus;
    let devices: Vec<String> = (0..cores).map(|n| format!("net_ring{n}")).collect();
    let lcores = match cores {
        1 => format!("0@{near},1@{far}"),
        _ => format!("0@{near},1@{near},2@{far}"),
    };
    let setting = Setting {
        devices: &devices,
        lcores,
        cores,
        commands,
    };
    let [_, sent] = Testpmd::start(ground.client()?, &setting)?.rates()?;
    Ok(sent)
}

/// Runs testpmd with one forwarding thread on the second core.
pub(super) fn one_core(
    ground: &Ground,
    host: &LabHost,
    devices: &[String],
    commands: &str,
) -> Result<[f64; 2], Trouble> {
    let [near, far] = ground.cpus;
    let setting = Setting {
        devices,
        lcores: format!("0@{near},1@{far}"),
        cores: 1,
        commands,
    };
    Testpmd::start(host, &setting)?.rates()
}

/// Measures while a linerate sender keeps the other core busy.
pub(super) fn with_source(
    host: &LabHost,
    ground: &Ground,
    device: &str,
    measure: impl FnOnce() -> Result<f64, Trouble>,
) -> Result<f64, Trouble> {
    let [near, _] = ground.cpus;
    let words = format!("--dev {device} --mode txonly --corelist {near} -t 20");
    let _source = start(host, ground, &words)?;
    // The sender runs once packets flow; both sides of a pair start measuring a moment later.
    thread::sleep(Duration::from_millis(300));
    measure()
}

fn ours_shm(ground: &Ground, bytes: u32) -> Result<f64, Trouble> {
    let [near, far] = ground.cpus;
    let host = ground.client()?;
    let name = format!("bench-{}-{}", std::process::id(), fastrand::u32(..));
    let words = format!(
        "--dev shm:{name},role=server --mode txonly --txpkts {bytes} --corelist {near} -t 20"
    );
    let _source = start(host, ground, &words)?;
    thread::sleep(Duration::from_millis(300));
    let words = format!("--dev shm:{name} --mode rxonly --corelist {far} -t 1");
    ours(host, ground, &words, RATE)
}

/// Waits until a process on a host listens on an abstract socket address.
fn listening(host: &LabHost, socket: &str) -> Result<(), Trouble> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let table = host.run(|| fs::read_to_string("/proc/thread-self/net/unix"))?;
        let table = table.map_err(Trouble::system("read the table of unix sockets"))?;
        if table.lines().any(|line| line.ends_with(socket)) || Instant::now() > end {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn theirs_memif(ground: &Ground, bytes: u32) -> Result<f64, Trouble> {
    let [near, far] = ground.cpus;
    let host = ground.client()?;
    let socket = format!("@linerate-bench-{}", fastrand::u32(..));
    let device = |role: &str| {
        [format!(
            "net_memif0,role={role},id=0,socket={},socket-abstract=yes",
            &socket[1..]
        )]
    };
    let (server, client) = (device("server"), device("client"));
    let sink = Setting {
        devices: &server,
        lcores: format!("0@{far},1@{far}"),
        cores: 1,
        commands: "set fwd rxonly\nstart",
    };
    let commands = format!("set fwd txonly\nset txpkts {bytes}\nstart");
    let source = Setting {
        devices: &client,
        lcores: format!("0@{near},1@{near}"),
        cores: 1,
        commands: &commands,
    };
    let sink = Testpmd::start(host, &sink)?;
    // A client that connects before its server listens does not retry.
    listening(host, &socket)?;
    let source = Testpmd::start(host, &source)?;
    let [received, _] = sink.rates()?;
    drop(source);
    Ok(received)
}
