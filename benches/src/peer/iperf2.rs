//! Upstream iperf 2 (Debian's package `iperf`).

use std::process::Command;
use std::time::Duration;

use crate::bench_env::{Ground, Pinned, version_of};
use crate::error::Trouble;
use crate::process::Program;

/// Default port of iperf 2; all ports of the lab's hosts are free.
const PORT: &str = "5001";

/// Time for a program to start or to end.
const MOMENT: Duration = Duration::from_secs(10);

/// Checks that it is installed; the error explains how to install it.
pub fn installed(_ground: &Ground) -> Result<(), Trouble> {
    match version_of("iperf") {
        Some(_) => Ok(()),
        None => Err(Trouble::skip(
            "needs iperf: install it with `apt-get install iperf`",
        )),
    }
}

/// Goodput at the receiver, in Gb/s.
pub fn goodput(ground: &Ground, pinned: Pinned, words: &str) -> Result<f64, Trouble> {
    let udp = words.split_whitespace().any(|word| word == "-u");
    let (near, far) = pinned.cpus(ground);
    let mut command = Command::new("iperf");
    command.args(["-s", "-p", PORT, "-y", "C"]);
    command.args(udp.then_some("-u"));
    let mut server = Program::start(ground.server()?, far, &mut command)?;
    // The server prints nothing before its first result; it is ready some milliseconds after its
    // start.
    std::thread::sleep(Duration::from_millis(150));
    let mut command = Command::new("iperf");
    command
        .args(["-c", &ground.far()?.to_string(), "-p", PORT])
        .args(words.split_whitespace());
    Program::start(ground.client()?, near, &mut command)?.finish(3 * MOMENT)?;
    // Fields: date, four addresses and ports, id, interval, bytes, bits per second, and more for
    // UDP.
    let line = server.wait_for(",", MOMENT)?;
    let bits = line
        .trim()
        .split(',')
        .nth(8)
        .and_then(|bits| bits.parse::<f64>().ok());
    bits.map(|bits| bits / 1e9)
        .ok_or_else(|| Trouble::program("iperf", format!("its result has no rate: {line}")))
}
