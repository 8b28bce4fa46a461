//! Upstream iperf3.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bench_env::{BenchEnv, CorePinning};
use crate::error::BenchError;
use crate::process::HostProgram;

/// Default port of iperf3; all ports of the lab's hosts are free.
const PORT: &str = "5201";

/// Time for a program to start or to end.
const START_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn check_installed(env: &BenchEnv) -> Result<(), BenchError> {
    match env.iperf3 {
        Some(_) => Ok(()),
        None => Err(BenchError::skip(
            "needs iperf3: install it with `apt-get install iperf3`",
        )),
    }
}

/// Goodput at the receiver, Gb/s.
pub fn measure_goodput(env: &BenchEnv, pinned: CorePinning, args: &str) -> Result<f64, BenchError> {
    let mut command = Command::new("iperf3");
    // The server ends by itself if this process is killed before the client connects.
    command.args(["-s", "-1", "-p", PORT, "-i", "0", "--forceflush"]);
    command.args(["--idle-timeout", "30"]);
    let mut server = HostProgram::start(env.server()?, None, &mut command)?;
    server.wait_for_line("listening", START_END_TIMEOUT)?;
    let mut command = Command::new("iperf3");
    command
        .args([
            "-c",
            &env.server_address()?.to_string(),
            "-p",
            PORT,
            "-i",
            "0",
            "-J",
        ])
        .args(args.split_whitespace());
    if let (Some(client_cpu), Some(server_cpu)) = pinned.cpus(env) {
        command.args(["-A", &format!("{client_cpu},{server_cpu}")]);
    }
    let text = HostProgram::start(env.client()?, None, &mut command)?
        .wait_for_end(3 * START_END_TIMEOUT)?;
    server.wait_for_end(START_END_TIMEOUT)?;
    let result: Value = serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("iperf3", format!("its result is not JSON: {error}"))
    })?;
    let goodput = result.pointer("/end/sum_received/bits_per_second");
    let goodput = goodput.and_then(Value::as_f64);
    goodput
        .map(|bits| bits / 1e9)
        .ok_or_else(|| BenchError::program_failed("iperf3", "its result has no receiver figure"))
}
