//! Upstream iperf 2 (Debian's package `iperf`).

use std::process::Command;
use std::time::Duration;

use crate::bench_env::{BenchEnv, CorePinning, program_version};
use crate::error::BenchError;
use crate::process::HostProgram;

/// Default port of iperf 2; all ports of the lab's hosts are free.
const PORT: &str = "5001";

/// Time for a program to start or to end.
const START_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn check_installed(_env: &BenchEnv) -> Result<(), BenchError> {
    match program_version("iperf") {
        Some(_) => Ok(()),
        None => Err(BenchError::skip(
            "needs iperf: install it with `apt-get install iperf`",
        )),
    }
}

/// Goodput at the receiver, in Gb/s.
pub fn measure_goodput(env: &BenchEnv, pinned: CorePinning, args: &str) -> Result<f64, BenchError> {
    let udp = args.split_whitespace().any(|arg| arg == "-u");
    let (client_cpu, server_cpu) = pinned.cpus(env);
    let mut command = Command::new("iperf");
    command.args(["-s", "-p", PORT, "-y", "C"]);
    command.args(udp.then_some("-u"));
    let mut server = HostProgram::start(env.server()?, server_cpu, &mut command)?;
    // The server prints nothing before its first result; it is ready some milliseconds after its
    // start.
    std::thread::sleep(Duration::from_millis(150));
    let mut command = Command::new("iperf");
    command
        .args(["-c", &env.server_address()?.to_string(), "-p", PORT])
        .args(args.split_whitespace());
    HostProgram::start(env.client()?, client_cpu, &mut command)?
        .wait_for_end(3 * START_END_TIMEOUT)?;
    // Fields: date, four addresses and ports, id, interval, bytes, bits per second, and more for
    // UDP.
    let line = server.wait_for_line(",", START_END_TIMEOUT)?;
    let bits = line
        .trim()
        .split(',')
        .nth(8)
        .and_then(|bits| bits.parse::<f64>().ok());
    bits.map(|bits| bits / 1e9).ok_or_else(|| {
        BenchError::program_failed("iperf", format!("its result has no rate: {line}"))
    })
}
