//! Upstream sockperf.

use std::process::Command;
use std::time::Duration;

use crate::bench_env::{BenchEnv, CorePinning, program_version};
use crate::error::BenchError;
use crate::process::HostProgram;

/// Default port of sockperf.
const PORT: &str = "11111";

/// Time for a program to start or to end.
const START_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn check_installed(_env: &BenchEnv) -> Result<(), BenchError> {
    match program_version("sockperf") {
        Some(_) => Ok(()),
        None => Err(BenchError::skip(
            "needs sockperf: install it with `apt-get install sockperf`",
        )),
    }
}

/// Median round trip, µs (`--full-rtt`: otherwise sockperf halves it). It measures whole seconds.
pub fn measure_ping_pong(env: &BenchEnv, args: &str) -> Result<f64, BenchError> {
    let (client_cpu, server_cpu) = CorePinning::Yes.cpus(env);
    let address = env.server_address()?.to_string();
    let common = ["-i", &address, "-p", PORT];
    let common_options = args.split_whitespace().filter(|arg| *arg == "--nonblocked");
    let mut command = Command::new("sockperf");
    command.arg("sr").args(common).args(common_options);
    let _server = HostProgram::start(env.server()?, server_cpu, &mut command)?;
    std::thread::sleep(Duration::from_millis(300));
    let mut command = Command::new("sockperf");
    command
        .arg("pp")
        .args(common)
        .args(["-t", "1", "--full-rtt"])
        .args(args.split_whitespace());
    let text = HostProgram::start(env.client()?, client_cpu, &mut command)?
        .wait_for_end(3 * START_END_TIMEOUT)?;
    let median = text
        .lines()
        .find(|line| line.contains("percentile 50.000"))
        .and_then(|line| line.split('=').nth(1)?.trim().parse::<f64>().ok());
    median.ok_or_else(|| BenchError::program_failed("sockperf", "it printed no median"))
}
