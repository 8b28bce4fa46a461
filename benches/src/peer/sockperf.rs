//! Upstream sockperf.

use std::process::Command;
use std::time::Duration;

use crate::bench_env::{Ground, Pinned, version_of};
use crate::error::Trouble;
use crate::process::Program;

/// Default port of sockperf.
const PORT: &str = "11111";

/// Time for a program to start or to end.
const MOMENT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn installed(_ground: &Ground) -> Result<(), Trouble> {
    match version_of("sockperf") {
        Some(_) => Ok(()),
        None => Err(Trouble::skip(
            "needs sockperf: install it with `apt-get install sockperf`",
        )),
    }
}

/// Median round trip, µs (`--full-rtt`: otherwise sockperf halves it). It measures whole seconds.
pub fn ping_pong(ground: &Ground, words: &str) -> Result<f64, Trouble> {
    let (near, far) = Pinned::Yes.cpus(ground);
    let address = ground.far()?.to_string();
    let common = ["-i", &address, "-p", PORT];
    let both = words
        .split_whitespace()
        .filter(|word| *word == "--nonblocked");
    let mut command = Command::new("sockperf");
    command.arg("sr").args(common).args(both);
    let _server = Program::start(ground.server()?, far, &mut command)?;
    std::thread::sleep(Duration::from_millis(300));
    let mut command = Command::new("sockperf");
    command
        .arg("pp")
        .args(common)
        .args(["-t", "1", "--full-rtt"])
        .args(words.split_whitespace());
    let text = Program::start(ground.client()?, near, &mut command)?.finish(3 * MOMENT)?;
    let median = text
        .lines()
        .find(|line| line.contains("percentile 50.000"))
        .and_then(|line| line.split('=').nth(1)?.trim().parse::<f64>().ok());
    median.ok_or_else(|| Trouble::program("sockperf", "it printed no median"))
}
