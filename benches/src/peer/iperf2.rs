//! Stock iperf of the second line (Debian's package `iperf`).

use std::process::Command;
use std::time::Duration;

use crate::ground::{Ground, Pinned, version_of};
use crate::process::Program;
use crate::trouble::Trouble;

/// Its own default; the lab's hosts have all their ports free.
const PORT: &str = "5001";

/// How long it may take to start, or to end.
const MOMENT: Duration = Duration::from_secs(10);

/// Says how to get it where it is not installed.
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
    // It says nothing before its first result, and is ready some milliseconds after its start.
    std::thread::sleep(Duration::from_millis(150));
    let mut command = Command::new("iperf");
    command
        .args(["-c", &ground.far()?.to_string(), "-p", PORT])
        .args(words.split_whitespace());
    Program::start(ground.client()?, near, &mut command)?.finish(3 * MOMENT)?;
    // date, four addresses and ports, id, interval, bytes, bits per second, and for UDP some more.
    let line = server.wait_for(",", MOMENT)?;
    let bits = line
        .trim()
        .split(',')
        .nth(8)
        .and_then(|bits| bits.parse::<f64>().ok());
    bits.map(|bits| bits / 1e9)
        .ok_or_else(|| Trouble::program("iperf", format!("its result has no rate: {line}")))
}
