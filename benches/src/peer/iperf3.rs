//! Upstream iperf3.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bench_env::{Ground, Pinned};
use crate::error::Trouble;
use crate::process::Program;

/// Default port of iperf3; all ports of the lab's hosts are free.
const PORT: &str = "5201";

/// Time for a program to start or to end.
const MOMENT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn installed(ground: &Ground) -> Result<(), Trouble> {
    match ground.iperf3 {
        Some(_) => Ok(()),
        None => Err(Trouble::skip(
            "needs iperf3: install it with `apt-get install iperf3`",
        )),
    }
}

/// Goodput at the receiver, Gb/s.
pub fn goodput(ground: &Ground, pinned: Pinned, words: &str) -> Result<f64, Trouble> {
    let mut command = Command::new("iperf3");
    // The server ends by itself if this process is killed before the client connects.
    command.args(["-s", "-1", "-p", PORT, "-i", "0", "--forceflush"]);
    command.args(["--idle-timeout", "30"]);
    let mut server = Program::start(ground.server()?, None, &mut command)?;
    server.wait_for("listening", MOMENT)?;
    let mut command = Command::new("iperf3");
    command
        .args([
            "-c",
            &ground.far()?.to_string(),
            "-p",
            PORT,
            "-i",
            "0",
            "-J",
        ])
        .args(words.split_whitespace());
    if let (Some(near), Some(far)) = pinned.cpus(ground) {
        command.args(["-A", &format!("{near},{far}")]);
    }
    let text = Program::start(ground.client()?, None, &mut command)?.finish(3 * MOMENT)?;
    server.finish(MOMENT)?;
    let result: Value = serde_json::from_str(&text)
        .map_err(|error| Trouble::program("iperf3", format!("its result is not JSON: {error}")))?;
    let goodput = result.pointer("/end/sum_received/bits_per_second");
    let goodput = goodput.and_then(Value::as_f64);
    goodput
        .map(|bits| bits / 1e9)
        .ok_or_else(|| Trouble::program("iperf3", "its result has no receiver figure"))
}
