//! Bare loops: the C programs of `benches/bare`, compiled by the machine's C compiler when the
//! bench runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linerate_lab::LabHost;

use crate::bench_env::{BenchEnv, program_version};
use crate::error::BenchError;
use crate::process::HostProgram;

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
const SERVER_PORT: &str = "7007";

/// Separate port for many streams, because connections of the previous run linger.
const STREAMS_PORT: &str = "7010";

/// Time to open ten thousand connections.
const CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a program to start or to end.
const START_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Compiled bare loops.
pub struct BareLoops {
    dir: PathBuf,
}

/// Checks for a compiler; the error explains how to install one.
pub fn check_installed(_env: &BenchEnv) -> Result<(), BenchError> {
    match program_version("cc") {
        Some(_) => Ok(()),
        None => Err(BenchError::skip(
            "needs a C compiler: install one with `apt-get install gcc`",
        )),
    }
}

impl BareLoops {
    /// Compiles the loops into a directory.
    pub fn compile(dir: &Path) -> Result<Self, BenchError> {
        for (name, text) in SOURCES {
            let source = dir.join(name).with_extension("c");
            std::fs::write(&source, text).map_err(BenchError::system_call("write a bare loop"))?;
            let mut command = Command::new("cc");
            command.arg("-O2").arg(&source);
            command.arg("-o").arg(dir.join(name));
            let output = command
                .output()
                .map_err(BenchError::system_call("start cc"))?;
            if !output.status.success() {
                let error_output = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(BenchError::program_failed("cc", error_output));
            }
        }
        let dir = dir.to_owned();
        Ok(Self { dir })
    }

    /// Frames of `bytes` that two processes copy into and out of shared memory, M/s.
    pub fn measure_memory(
        &self,
        env: &BenchEnv,
        bytes: u32,
        time: Duration,
    ) -> Result<f64, BenchError> {
        Ok(self.measure_shared(("memory", "pps"), env, bytes, time)? / 1e6)
    }

    /// Median time from a request of `bytes` to its response, between two processes with shared
    /// memory, µs.
    pub fn measure_exchange(
        &self,
        env: &BenchEnv,
        bytes: u32,
        time: Duration,
    ) -> Result<f64, BenchError> {
        Ok(self.measure_shared(("exchange", "p50_ns"), env, bytes, time)? / 1e3)
    }

    /// Runs a loop between two processes with shared memory and returns its figure.
    fn measure_shared(
        &self,
        (program, figure): (&'static str, &str),
        env: &BenchEnv,
        bytes: u32,
        time: Duration,
    ) -> Result<f64, BenchError> {
        let [client_cpu, server_cpu] = env.cpus;
        let mut command = Command::new(self.dir.join(program));
        command.args([bytes, client_cpu, server_cpu].map(|number| number.to_string()));
        command.arg(time.as_millis().to_string());
        let text = HostProgram::start(env.client()?, None, &mut command)?
            .wait_for_end(time + START_END_TIMEOUT)?;
        parse_figure(program, figure, &text)
    }

    /// Goodput of many TCP streams with one thread per end, Gb/s at the receiver.
    pub fn measure_streams(
        &self,
        env: &BenchEnv,
        streams: u32,
        time: Duration,
    ) -> Result<f64, BenchError> {
        let [client_cpu, server_cpu] = env.cpus;
        let command = |role: &str, last_arg: &str| -> Result<Command, BenchError> {
            let mut command = Command::new(self.dir.join("streams"));
            command.args([role, &env.server_address()?.to_string(), STREAMS_PORT]);
            command.args([&streams.to_string(), last_arg]);
            Ok(command)
        };
        let mut sink = command("sink", &time.as_millis().to_string())?;
        let mut sink = HostProgram::start(env.server()?, Some(server_cpu), &mut sink)?;
        sink.wait_for_line("READY", START_END_TIMEOUT)?;
        let mut source = command("source", env.congestion_control)?;
        let source = HostProgram::start(env.client()?, Some(client_cpu), &mut source)?;
        let text = sink.wait_for_end(time + CONNECTIONS_TIMEOUT)?;
        // The receiver has ended, so the source fails to send.
        let _ = source.wait_for_end(START_END_TIMEOUT);
        Ok(parse_figure("streams", "bps", &text)? / 1e9)
    }

    /// Host behind a tap in the client's namespace that returns each datagram on any port; runs
    /// until dropped.
    ///
    /// `address` is that of the kernel's end.
    pub fn start_tap_echo(
        &self,
        env: &BenchEnv,
        name: &str,
        address: &str,
    ) -> Result<HostProgram, BenchError> {
        let [_, server_cpu] = env.cpus;
        let mut command = Command::new(self.dir.join("tap"));
        command.args(["echo", name, address, &server_cpu.to_string()]);
        let mut host = HostProgram::start(env.client()?, Some(server_cpu), &mut command)?;
        host.wait_for_line("READY", START_END_TIMEOUT)?;
        Ok(host)
    }

    /// Frames of 64 B that a loop of writes sends to a tap, M/s.
    pub fn measure_tap_send(
        &self,
        env: &BenchEnv,
        name: &str,
        time: Duration,
    ) -> Result<f64, BenchError> {
        let [_, server_cpu] = env.cpus;
        let mut command = Command::new(self.dir.join("tap"));
        // The address is otherwise unused in the namespace; the interface only has to be up.
        command.args(["send", name, "198.18.255.1", &server_cpu.to_string()]);
        command.arg(time.as_millis().to_string());
        let text = HostProgram::start(env.client()?, None, &mut command)?
            .wait_for_end(time + START_END_TIMEOUT)?;
        Ok(parse_figure("tap", "pps", &text)? / 1e6)
    }

    /// Goodput that a kernel socket reads from a host behind a tap, which writes segments of 64 KB,
    /// Gb/s.
    ///
    /// `role` is "stream", or "copies" to copy each segment twice before, and the interface.
    /// `addresses` are the addresses of the kernel and of the host.
    pub fn measure_tap_stream(
        &self,
        env: &BenchEnv,
        role: [&str; 2],
        addresses: [&str; 2],
        time: Duration,
    ) -> Result<f64, BenchError> {
        self.measure_tap_tcp(env, role, addresses, time, None)
    }

    /// Goodput that a host behind a tap reads, without checks, from a kernel socket with this
    /// congestion control, Gb/s.
    ///
    /// `addresses` are the addresses of the kernel and of the host.
    pub fn measure_tap_take(
        &self,
        env: &BenchEnv,
        name: &str,
        addresses: [&str; 2],
        time: Duration,
        control: &str,
    ) -> Result<f64, BenchError> {
        self.measure_tap_tcp(env, ["take", name], addresses, time, Some(control))
    }

    fn measure_tap_tcp(
        &self,
        env: &BenchEnv,
        role: [&str; 2],
        addresses: [&str; 2],
        time: Duration,
        control: Option<&str>,
    ) -> Result<f64, BenchError> {
        let [client_cpu, server_cpu] = env.cpus;
        let mut command = Command::new(self.dir.join("tap"));
        command.args(role).args(addresses);
        command.args([server_cpu, client_cpu].map(|cpu| cpu.to_string()));
        command.arg(time.as_millis().to_string()).args(control);
        let text = HostProgram::start(env.client()?, None, &mut command)?
            .wait_for_end(time + START_END_TIMEOUT)?;
        Ok(parse_figure("tap", "bps", &text)? / 1e9)
    }

    /// Frames that an AF_XDP loop forwards from `eth0` of a host to its `eth1`, M/s.
    pub fn measure_xdp_io(
        &self,
        env: &BenchEnv,
        host: &LabHost,
        time: Duration,
    ) -> Result<f64, BenchError> {
        let [_, server_cpu] = env.cpus;
        let mut command = Command::new(self.dir.join("xdp"));
        command.args(["io", "eth0", "eth1", &time.as_millis().to_string()]);
        let text = HostProgram::start(host, Some(server_cpu), &mut command)?
            .wait_for_end(time + START_END_TIMEOUT)?;
        Ok(parse_figure("xdp", "pps", &text)? / 1e6)
    }

    /// AF_XDP loop on one interface that returns each datagram; runs until dropped.
    pub fn start_xdp_echo(
        &self,
        env: &BenchEnv,
        host: &LabHost,
    ) -> Result<HostProgram, BenchError> {
        let [_, server_cpu] = env.cpus;
        let mut command = Command::new(self.dir.join("xdp"));
        command.args(["echo", "eth0"]);
        let mut responder = HostProgram::start(host, Some(server_cpu), &mut command)?;
        responder.wait_for_line("READY", START_END_TIMEOUT)?;
        Ok(responder)
    }

    /// Median round trip of datagrams of `bytes`, µs. `wait`: `block` or `spin`.
    pub fn measure_pingpong(
        &self,
        env: &BenchEnv,
        bytes: u32,
        wait: &str,
        time: Duration,
    ) -> Result<f64, BenchError> {
        let [client_cpu, server_cpu] = env.cpus;
        let command = |role: &str| -> Result<Command, BenchError> {
            let mut command = Command::new(self.dir.join("pingpong"));
            command.args([role, &env.server_address()?.to_string(), SERVER_PORT]);
            command.args([&bytes.to_string(), wait]);
            Ok(command)
        };
        let mut server =
            HostProgram::start(env.server()?, Some(server_cpu), &mut command("server")?)?;
        server.wait_for_line("READY", START_END_TIMEOUT)?;
        let mut client = command("client")?;
        client.arg(time.as_millis().to_string());
        let client = HostProgram::start(env.client()?, Some(client_cpu), &mut client)?;
        let text = client.wait_for_end(time + START_END_TIMEOUT)?;
        Ok(parse_figure("pingpong", "p50_ns", &text)? / 1e3)
    }

    /// Goodput of a stream with writes of `written` and reads of `read` bytes, Gb/s.
    ///
    /// `wait` is the receiver's: `block` or `spin`.
    pub fn measure_stream(
        &self,
        env: &BenchEnv,
        [written, read]: [u32; 2],
        wait: &str,
        time: Duration,
    ) -> Result<f64, BenchError> {
        let [client_cpu, server_cpu] = env.cpus;
        let command = |role: &str, bytes: u32| -> Result<Command, BenchError> {
            let mut command = Command::new(self.dir.join("stream"));
            command.args([
                role,
                &env.server_address()?.to_string(),
                SERVER_PORT,
                &bytes.to_string(),
            ]);
            Ok(command)
        };
        let mut sink = command("sink", read)?;
        let mut server = HostProgram::start(env.server()?, Some(server_cpu), sink.arg(wait))?;
        server.wait_for_line("READY", START_END_TIMEOUT)?;
        let mut source = command("source", written)?;
        source.args([&time.as_millis().to_string(), env.congestion_control]);
        let client = HostProgram::start(env.client()?, Some(client_cpu), &mut source)?;
        client.wait_for_end(time + START_END_TIMEOUT)?;
        let text = server.wait_for_end(START_END_TIMEOUT)?;
        Ok(parse_figure("stream", "bps", &text)? / 1e9)
    }
}

/// Number after `NAME=` in the output of a loop.
fn parse_figure(program: &'static str, name: &str, text: &str) -> Result<f64, BenchError> {
    let number = |token: &str| token.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    let mut tokens = text.split_whitespace();
    let missing = || BenchError::program_failed(program, format!("it printed no {name}"));
    tokens.find_map(number).ok_or_else(missing)
}
