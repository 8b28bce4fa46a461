//! Latency added by each switch: table of round trips over 0 to 4 switches.

use std::process::Command;
use std::time::Duration;

use linerate_host::settings::idle_hold::idle_hold;
use linerate_lab::{Lab, LabHost, Topology};
use linerate_metric::statistics::median;
use serde_json::Value;

use crate::bench_env::Ground;
use crate::error::Trouble;
use crate::process::Program;

/// Maximum number of switches between the hosts.
const MOST: usize = 4;

/// Runs of each point; the hop counts alternate, so that a drift favors none.
const RUNS: usize = 5;

/// Message sizes.
const SIZES: [&str; 2] = ["1024", "32K"];

/// Socket modes: one socket for all round trips, or one for each.
const SOCKETS: [(&str, &str); 2] = [("reused", ""), ("reopened", "--reopen")];

const MOMENT: Duration = Duration::from_secs(20);

/// Point of the table.
pub struct Point {
    /// Name such as `hops/2/1024/reused`.
    pub name: String,
    /// Median of the runs' medians, µs.
    pub p50_us: f64,
    /// Median without a switch, µs.
    pub without_us: f64,
}

/// Measures and prints the table.
pub fn table(ground: &Ground) -> Result<Vec<Point>, Trouble> {
    let labs: Vec<Lab> = (0..=MOST)
        .map(|hops| Ok(Lab::up(&Topology::hops(hops))?))
        .collect::<Result<_, Trouble>>()?;
    // With idle states the wakeups of halted cores hide the latency of a switch.
    let _hold = idle_hold().ok();
    println!(
        "\nround trips over switches: UDP, p50 of {RUNS} runs, us (the last column is the increment per switch)"
    );
    println!(
        "{:<8}  {:<9}  {}  {:>9}",
        "message",
        "socket",
        (0..=MOST)
            .map(|hops| format!("{hops:>8}"))
            .collect::<String>(),
        "per hop"
    );
    let mut points = Vec::new();
    for bytes in SIZES {
        for (socket, option) in SOCKETS {
            let mut runs = vec![Vec::new(); labs.len()];
            for _ in 0..RUNS {
                for (hops, lab) in labs.iter().enumerate() {
                    runs[hops].push(round_trip(ground, lab, bytes, option)?);
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
            points.extend(medians.iter().enumerate().map(|(hops, &p50_us)| Point {
                name: format!("hops/{hops}/{bytes}/{socket}"),
                p50_us,
                without_us: medians[0],
            }));
        }
    }
    Ok(points)
}

/// Slope per switch: least squares over 0, 1, 2 …
fn slope(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let (middle, mean) = ((count - 1.0) / 2.0, values.iter().sum::<f64>() / count);
    let offsets = (0..values.len()).map(|x| x as f64 - middle);
    let above: f64 = offsets
        .clone()
        .zip(values)
        .map(|(x, y)| x * (y - mean))
        .sum();
    above / offsets.map(|x| x * x).sum::<f64>()
}

fn round_trip(ground: &Ground, lab: &Lab, bytes: &str, option: &str) -> Result<f64, Trouble> {
    let [near, far] = ground.cpus;
    let server_host: &LabHost = lab.host("server")?;
    let mut command = Command::new(&ground.linerate);
    command.args(["server", "-1", "-p", "0", "-q", "--no-store"]);
    let mut server = Program::start(server_host, None, &mut command)?;
    let line = server.wait_for("READY", MOMENT)?;
    let port = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("port="))
        .ok_or_else(|| Trouble::program("linerate server", "its READY line has no port"))?;
    let mut command = Command::new(&ground.linerate);
    command
        .args([
            "latency",
            &server_host.address().to_string(),
            "-p",
            port,
            "-u",
        ])
        .args(["-l", bytes, "-t", "500ms", "--json", "--no-store"])
        .args(["--cpu", &format!("{near}/{far}")])
        .args(option.split_whitespace());
    let text = Program::start(lab.host("client")?, None, &mut command)?.finish(MOMENT)?;
    server.finish(MOMENT)?;
    let record: Value = serde_json::from_str(&text).map_err(|error| {
        Trouble::program("linerate", format!("its record is not JSON: {error}"))
    })?;
    let p50 = record
        .pointer("/summary/rtt_ns/p50")
        .and_then(Value::as_f64);
    p50.map(|p50| p50 / 1e3)
        .ok_or_else(|| Trouble::program("linerate", "its record has no round trips"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_increment_is_that_of_a_line() {
        assert!((slope(&[10.0, 12.5, 15.0, 17.5, 20.0]) - 2.5).abs() < 1e-9);
        assert!((slope(&[10.0, 10.0, 10.0]) - 0.0).abs() < 1e-9);
    }
}
