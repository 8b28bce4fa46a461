//! Latency added by each switch: table of round trips over 0 to 4 switches.

use std::process::Command;
use std::time::Duration;

use linerate_host::settings::idle_hold::hold_idle_states;
use linerate_lab::{Lab, LabHost, Topology};
use linerate_stats::statistics::median;
use serde_json::Value;

use crate::bench_env::BenchEnv;
use crate::error::BenchError;
use crate::process::HostProgram;

/// Maximum number of switches between the hosts.
const MAX_HOPS: usize = 4;

/// Runs of each point; the hop counts alternate, so that a drift favors none.
const RUNS: usize = 5;

/// Message sizes.
const MESSAGE_SIZES: [&str; 2] = ["1024", "32K"];

/// Socket modes: one socket for all round trips, or one for each.
const SOCKETS: [(&str, &str); 2] = [("reused", ""), ("reopened", "--reopen")];

const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);

/// Point of the table.
pub struct HopsPoint {
    /// Name such as `hops/2/1024/reused`.
    pub name: String,
    /// Median of the runs' medians, µs.
    pub p50_us: f64,
    /// Median without a switch, µs.
    pub p50_without_switch_us: f64,
}

/// Measures and prints the table.
pub fn measure_table(env: &BenchEnv) -> Result<Vec<HopsPoint>, BenchError> {
    let labs: Vec<Lab> = (0..=MAX_HOPS)
        .map(|hops| Ok(Lab::up(&Topology::hops(hops))?))
        .collect::<Result<_, BenchError>>()?;
    // With idle states the wakeups of halted cores hide the latency of a switch.
    let _hold = hold_idle_states().ok();
    println!(
        "\nround trips over switches: UDP, p50 of {RUNS} runs, us (the last column is the increment per switch)"
    );
    println!(
        "{:<8}  {:<9}  {}  {:>9}",
        "message",
        "socket",
        (0..=MAX_HOPS)
            .map(|hops| format!("{hops:>8}"))
            .collect::<String>(),
        "per hop"
    );
    let mut points = Vec::new();
    for bytes in MESSAGE_SIZES {
        for (socket, option) in SOCKETS {
            let mut runs = vec![Vec::new(); labs.len()];
            for _ in 0..RUNS {
                for (hops, lab) in labs.iter().enumerate() {
                    runs[hops].push(measure_p50_us(env, lab, bytes, option)?);
                }
            }
            let medians: Vec<f64> = runs.iter().filter_map(|runs| median(runs)).collect();
            println!(
                "{bytes:<8}  {socket:<9}  {}  {:>9.2}",
                medians
                    .iter()
                    .map(|p50| format!("{p50:>8.2}"))
                    .collect::<String>(),
                slope(&medians)
            );
            points.extend(medians.iter().enumerate().map(|(hops, &p50_us)| HopsPoint {
                name: format!("hops/{hops}/{bytes}/{socket}"),
                p50_us,
                p50_without_switch_us: medians[0],
            }));
        }
    }
    Ok(points)
}

/// Slope per switch: least squares over 0, 1, 2 …
fn slope(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let (center, mean) = ((count - 1.0) / 2.0, values.iter().sum::<f64>() / count);
    let offsets = (0..values.len()).map(|x| x as f64 - center);
    let numerator: f64 = offsets
        .clone()
        .zip(values)
        .map(|(x, y)| x * (y - mean))
        .sum();
    numerator / offsets.map(|x| x * x).sum::<f64>()
}

fn measure_p50_us(env: &BenchEnv, lab: &Lab, bytes: &str, option: &str) -> Result<f64, BenchError> {
    let [client_cpu, server_cpu] = env.cpus;
    let server_host: &LabHost = lab.host("server")?;
    let mut command = Command::new(&env.linerate);
    command.args(["server", "-1", "-p", "0", "-q", "--no-store"]);
    let mut server = HostProgram::start(server_host, None, &mut command)?;
    let line = server.wait_for_line("READY", PROGRAM_TIMEOUT)?;
    let port = line
        .split_whitespace()
        .find_map(|token| token.strip_prefix("port="))
        .ok_or_else(|| {
            BenchError::program_failed("linerate server", "its READY line has no port")
        })?;
    let mut command = Command::new(&env.linerate);
    command
        .args([
            "latency",
            &server_host.address().to_string(),
            "-p",
            port,
            "-u",
        ])
        .args(["-l", bytes, "-t", "500ms", "--json", "--no-store"])
        .args(["--cpu", &format!("{client_cpu}/{server_cpu}")])
        .args(option.split_whitespace());
    let text = HostProgram::start(lab.host("client")?, None, &mut command)?
        .wait_for_end(PROGRAM_TIMEOUT)?;
    server.wait_for_end(PROGRAM_TIMEOUT)?;
    let record: Value = serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })?;
    let p50 = record
        .pointer("/summary/rtt_ns/p50")
        .and_then(Value::as_f64);
    p50.map(|p50| p50 / 1e3)
        .ok_or_else(|| BenchError::program_failed("linerate", "its record has no round trips"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_a_line() {
        assert!((slope(&[10.0, 12.5, 15.0, 17.5, 20.0]) - 2.5).abs() < 1e-9);
        assert!((slope(&[10.0, 10.0, 10.0]) - 0.0).abs() < 1e-9);
    }
}
