//! Upstream nuttcp.

use std::process::Command;
use std::time::Duration;

use crate::bench_env::{Ground, Pinned};
use crate::error::Trouble;
use crate::process::Program;

/// Time for a program to start or to end.
const MOMENT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn installed(_ground: &Ground) -> Result<(), Trouble> {
    // It has no --version.
    match Command::new("nuttcp").arg("-V").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Trouble::skip(
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
pub fn goodput(ground: &Ground, pinned: Pinned, words: &str) -> Result<f64, Trouble> {
    let (near, far) = pinned.cpus(ground);
    // The server ends after its first test.
    let _server = Program::start(ground.server()?, far, Command::new("nuttcp").args(["-1"]))?;
    std::thread::sleep(Duration::from_millis(150));
    let mut command = Command::new("nuttcp");
    command
        .args(["-T1", "-fparse"])
        .args(words.split_whitespace())
        .arg(ground.far()?.to_string());
    let text = Program::start(ground.client()?, near, &mut command)?.finish(3 * MOMENT)?;
    let rate = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("rate_Mbps=")?.parse::<f64>().ok());
    rate.filter(|&rate| rate > 0.0)
        .map(|rate| rate / 1e3)
        .ok_or_else(|| Trouble::program("nuttcp", format!("it gave no rate: {text}")))
}
