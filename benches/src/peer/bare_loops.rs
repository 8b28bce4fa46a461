//! Bare loops: the C programs of `benches/bare`, compiled by the machine's C compiler when the
//! bench runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linerate_lab::LabHost;

use crate::bench_env::{Ground, version_of};
use crate::error::Trouble;
use crate::process::Program;

const SOURCES: [(&str, &str); 7] = [
    ("exchange", include_str!("../../bare/exchange.c")),
    ("memory", include_str!("../../bare/memory.c")),
    ("pingpong", include_str!("../../bare/pingpong.c")),
    ("stream", include_str!("../../bare/stream.c")),
    ("streams", include_str!("../../bare/streams.c")),
    ("tap", include_str!("../../bare/tap.c")),
    ("xdp", include_str!("../../bare/xdp.c")),
];

/// Port of the lab's server; any free one works.
const PORT: &str = "7007";

/// Separate port for many streams, because connections of the previous run linger.
const STREAMS_PORT: &str = "7010";

/// Time to open ten thousand connections.
const OPENING: Duration = Duration::from_secs(60);

/// Time for a program to start or to end.
const MOMENT: Duration = Duration::from_secs(10);

/// Compiled bare loops.
pub struct Bare {
    folder: PathBuf,
}

/// Checks for a compiler; the error explains how to install one.
pub fn installed(_ground: &Ground) -> Result<(), Trouble> {
    match version_of("cc") {
        Some(_) => Ok(()),
        None => Err(Trouble::skip(
            "needs a C compiler: install one with `apt-get install gcc`",
        )),
    }
}

impl Bare {
    /// Compiles the loops into a directory.
    pub fn compile(folder: &Path) -> Result<Self, Trouble> {
        for (name, text) in SOURCES {
            let source = folder.join(name).with_extension("c");
            std::fs::write(&source, text).map_err(Trouble::system("write a bare loop"))?;
            let mut command = Command::new("cc");
            command.arg("-O2").arg(&source);
            command.arg("-o").arg(folder.join(name));
            let output = command.output().map_err(Trouble::system("start cc"))?;
            if !output.status.success() {
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(Trouble::program("cc", words));
            }
        }
        let folder = folder.to_owned();
        Ok(Self { folder })
    }

    /// Frames of `bytes` that two processes copy into and out of shared memory, M/s.
    pub fn memory(&self, ground: &Ground, bytes: u32, time: Duration) -> Result<f64, Trouble> {
        Ok(self.sharing(("memory", "pps"), ground, bytes, time)? / 1e6)
    }

    /// Median time from a request of `bytes` to its response, between two processes with shared
    /// memory, µs.
    pub fn exchange(&self, ground: &Ground, bytes: u32, time: Duration) -> Result<f64, Trouble> {
        Ok(self.sharing(("exchange", "p50_ns"), ground, bytes, time)? / 1e3)
    }

    /// Runs a loop between two processes with shared memory and returns its figure.
    fn sharing(
        &self,
        (program, figure): (&'static str, &str),
        ground: &Ground,
        bytes: u32,
        time: Duration,
    ) -> Result<f64, Trouble> {
        let [near, far] = ground.cpus;
        let mut command = Command::new(self.folder.join(program));
        command.args([bytes, near, far].map(|number| number.to_string()));
        command.arg(time.as_millis().to_string());
        let text = Program::start(ground.client()?, None, &mut command)?.finish(time + MOMENT)?;
        told(program, figure, &text)
    }

    /// Goodput of many TCP streams with one thread per end, Gb/s at the receiver.
    pub fn streams(&self, ground: &Ground, streams: u32, time: Duration) -> Result<f64, Trouble> {
        let [near, far] = ground.cpus;
        let command = |part: &str, last: &str| -> Result<Command, Trouble> {
            let mut command = Command::new(self.folder.join("streams"));
            command.args([part, &ground.far()?.to_string(), STREAMS_PORT]);
            command.args([&streams.to_string(), last]);
            Ok(command)
        };
        let mut sink = command("sink", &time.as_millis().to_string())?;
        let mut sink = Program::start(ground.server()?, Some(far), &mut sink)?;
        sink.wait_for("READY", MOMENT)?;
        let mut source = command("source", ground.congestion_control)?;
        let source = Program::start(ground.client()?, Some(near), &mut source)?;
        let text = sink.finish(time + OPENING)?;
        // The receiver has ended, so the source fails to send.
        let _ = source.finish(MOMENT);
        Ok(told("streams", "bps", &text)? / 1e9)
    }

    /// Host behind a tap in the client's namespace that returns each datagram on any port; runs
    /// until dropped.
    ///
    /// `address` is that of the kernel's end.
    pub fn tap_echo(&self, ground: &Ground, name: &str, address: &str) -> Result<Program, Trouble> {
        let [_, far] = ground.cpus;
        let mut command = Command::new(self.folder.join("tap"));
        command.args(["echo", name, address, &far.to_string()]);
        let mut host = Program::start(ground.client()?, Some(far), &mut command)?;
        host.wait_for("READY", MOMENT)?;
        Ok(host)
    }

    /// Frames of 64 B that a loop of writes sends to a tap, M/s.
    pub fn tap_send(&self, ground: &Ground, name: &str, time: Duration) -> Result<f64, Trouble> {
        let [_, far] = ground.cpus;
        let mut command = Command::new(self.folder.join("tap"));
        // The address is otherwise unused in the namespace; the interface only has to be up.
        command.args(["send", name, "198.18.255.1", &far.to_string()]);
        command.arg(time.as_millis().to_string());
        let text = Program::start(ground.client()?, None, &mut command)?.finish(time + MOMENT)?;
        Ok(told("tap", "pps", &text)? / 1e6)
    }

    /// Goodput that a kernel socket reads from a host behind a tap, which writes segments of 64 KB,
    /// Gb/s.
    ///
    /// `part` is "stream", or "copies" to copy each segment twice before, and the interface. `ends`
    /// are
    /// the addresses of the kernel and of the host.
    pub fn tap_stream(
        &self,
        ground: &Ground,
        part: [&str; 2],
        ends: [&str; 2],
        time: Duration,
    ) -> Result<f64, Trouble> {
        self.tap_tcp(ground, part, ends, time, None)
    }

    /// Goodput that a host behind a tap reads, without checks, from a kernel socket with this
    /// congestion control, Gb/s.
    ///
    /// `ends` are the addresses of the kernel and of the host.
    pub fn tap_take(
        &self,
        ground: &Ground,
        name: &str,
        ends: [&str; 2],
        time: Duration,
        control: &str,
    ) -> Result<f64, Trouble> {
        self.tap_tcp(ground, ["take", name], ends, time, Some(control))
    }

    fn tap_tcp(
        &self,
        ground: &Ground,
        part: [&str; 2],
        ends: [&str; 2],
        time: Duration,
        control: Option<&str>,
    ) -> Result<f64, Trouble> {
        let [near, far] = ground.cpus;
        let mut command = Command::new(self.folder.join("tap"));
        command.args(part).args(ends);
        command.args([far, near].map(|cpu| cpu.to_string()));
        command.arg(time.as_millis().to_string()).args(control);
        let text = Program::start(ground.client()?, None, &mut command)?.finish(time + MOMENT)?;
        Ok(told("tap", "bps", &text)? / 1e9)
    }

    /// Frames that an AF_XDP loop forwards from `eth0` of a host to its `eth1`, M/s.
    pub fn xdp_io(&self, ground: &Ground, host: &LabHost, time: Duration) -> Result<f64, Trouble> {
        let [_, far] = ground.cpus;
        let mut command = Command::new(self.folder.join("xdp"));
        command.args(["io", "eth0", "eth1", &time.as_millis().to_string()]);
        let text = Program::start(host, Some(far), &mut command)?.finish(time + MOMENT)?;
        Ok(told("xdp", "pps", &text)? / 1e6)
    }

    /// AF_XDP loop on one interface that returns each datagram; runs until dropped.
    pub fn xdp_echo(&self, ground: &Ground, host: &LabHost) -> Result<Program, Trouble> {
        let [_, far] = ground.cpus;
        let mut command = Command::new(self.folder.join("xdp"));
        command.args(["echo", "eth0"]);
        let mut answering = Program::start(host, Some(far), &mut command)?;
        answering.wait_for("READY", MOMENT)?;
        Ok(answering)
    }

    /// Median round trip of datagrams of `bytes`, µs. `wait`: `block` or `spin`.
    pub fn pingpong(
        &self,
        ground: &Ground,
        bytes: u32,
        wait: &str,
        time: Duration,
    ) -> Result<f64, Trouble> {
        let [near, far] = ground.cpus;
        let command = |part: &str| -> Result<Command, Trouble> {
            let mut command = Command::new(self.folder.join("pingpong"));
            command.args([part, &ground.far()?.to_string(), PORT]);
            command.args([&bytes.to_string(), wait]);
            Ok(command)
        };
        let mut server = Program::start(ground.server()?, Some(far), &mut command("server")?)?;
        server.wait_for("READY", MOMENT)?;
        let mut client = command("client")?;
        client.arg(time.as_millis().to_string());
        let client = Program::start(ground.client()?, Some(near), &mut client)?;
        let text = client.finish(time + MOMENT)?;
        Ok(told("pingpong", "p50_ns", &text)? / 1e3)
    }

    /// Goodput of a stream with writes of `written` and reads of `read` bytes, Gb/s.
    ///
    /// `wait` is the receiver's: `block` or `spin`.
    pub fn stream(
        &self,
        ground: &Ground,
        [written, read]: [u32; 2],
        wait: &str,
        time: Duration,
    ) -> Result<f64, Trouble> {
        let [near, far] = ground.cpus;
        let command = |part: &str, bytes: u32| -> Result<Command, Trouble> {
            let mut command = Command::new(self.folder.join("stream"));
            command.args([part, &ground.far()?.to_string(), PORT, &bytes.to_string()]);
            Ok(command)
        };
        let mut sink = command("sink", read)?;
        let mut server = Program::start(ground.server()?, Some(far), sink.arg(wait))?;
        server.wait_for("READY", MOMENT)?;
        let mut source = command("source", written)?;
        source.args([&time.as_millis().to_string(), ground.congestion_control]);
        let client = Program::start(ground.client()?, Some(near), &mut source)?;
        client.finish(time + MOMENT)?;
        let text = server.finish(MOMENT)?;
        Ok(told("stream", "bps", &text)? / 1e9)
    }
}

/// Number after `NAME=` in the output of a loop.
fn told(program: &'static str, name: &str, text: &str) -> Result<f64, Trouble> {
    let number = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    let mut words = text.split_whitespace();
    let missing = || Trouble::program(program, format!("it printed no {name}"));
    words.find_map(number).ok_or_else(missing)
}
