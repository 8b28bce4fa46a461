//! Upstream nuttcp.

use std::process::Command;
use std::time::Duration;

use crate::bench_env::{BenchEnv, CorePinning};
use crate::error::BenchError;
use crate::process::HostProgram;

/// Time for a program to start or to end.
const START_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn check_installed(_env: &BenchEnv) -> Result<(), BenchError> {
    // It has no --version.
    match Command::new("nuttcp").arg("-V").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(BenchError::skip(
            "needs nuttcp: install it with `apt-get install nuttcp`",
        )),
    }
}

/// First line of its version output.
pub fn version() -> Option<String> {
    let output = Command::new("nuttcp").arg("-V").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    text.lines().next().map(str::to_owned)
}

/// Goodput at the receiver, Gb/s. It has no option for the congestion control.
pub fn measure_goodput(env: &BenchEnv, pinned: CorePinning, args: &str) -> Result<f64, BenchError> {
    let (client_cpu, server_cpu) = pinned.cpus(env);
    // The server ends after its first test.
    let _server = HostProgram::start(
        env.server()?,
        server_cpu,
        Command::new("nuttcp").args(["-1"]),
    )?;
    std::thread::sleep(Duration::from_millis(150));
    let mut command = Command::new("nuttcp");
    command
        .args(["-T1", "-fparse"])
        .args(args.split_whitespace())
        .arg(env.server_address()?.to_string());
    let text = HostProgram::start(env.client()?, client_cpu, &mut command)?
        .wait_for_end(3 * START_END_TIMEOUT)?;
    let rate = text
        .split_whitespace()
        .find_map(|token| token.strip_prefix("rate_Mbps=")?.parse::<f64>().ok());
    rate.filter(|&rate| rate > 0.0)
        .map(|rate| rate / 1e3)
        .ok_or_else(|| BenchError::program_failed("nuttcp", format!("it gave no rate: {text}")))
}
