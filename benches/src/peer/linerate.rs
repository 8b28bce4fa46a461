//! linerate: a server for one test, and a client that returns its record.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bench_env::{Ground, Pinned};
use crate::error::Trouble;
use crate::process::Program;

/// Time for a server to start.
const START: Duration = Duration::from_secs(10);

/// Starts a server for one test; returns its port.
pub fn serve(ground: &Ground) -> Result<(Program, String), Trouble> {
    let mut command = Command::new(&ground.linerate);
    command.args([
        "server",
        "-1",
        "-p",
        "0",
        "-q",
        "--no-store",
        "--grant",
        "idle,socket",
    ]);
    started(Program::start(ground.server()?, None, &mut command)?)
}

/// Waits for a server's READY line; returns its port.
fn started(mut server: Program) -> Result<(Program, String), Trouble> {
    let line = server.wait_for("READY", START)?;
    let port = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("port="));
    let port =
        port.ok_or_else(|| Trouble::program("linerate server", "its READY line has no port"));
    Ok((server, port?.to_owned()))
}

/// Command line of a client for that server, on the cores of the bench.
pub fn client(ground: &Ground, port: &str, words: &str) -> Result<Command, Trouble> {
    client_on(ground, Pinned::Yes, port, words)
}

fn client_on(ground: &Ground, pinned: Pinned, port: &str, words: &str) -> Result<Command, Trouble> {
    let mut words = words.split_whitespace();
    let mut command = Command::new(&ground.linerate);
    command
        .args(words.next())
        .arg(ground.far()?.to_string())
        .args(["-p", port, "--json", "--no-store"])
        .args(words);
    if let (Some(near), Some(far)) = pinned.cpus(ground) {
        command.args(["--cpu", &format!("{near}/{far}")]);
    }
    Ok(command)
}

/// Runs a test and returns its record.
pub fn run(ground: &Ground, words: &str, limit: Duration) -> Result<Value, Trouble> {
    run_on(ground, Pinned::Yes, words, limit)
}

/// Runs a test with this CPU placement.
pub fn run_on(
    ground: &Ground,
    pinned: Pinned,
    words: &str,
    limit: Duration,
) -> Result<Value, Trouble> {
    let (server, port) = serve(ground)?;
    let mut command = client_on(ground, pinned, &port, words)?;
    let text = Program::start(ground.client()?, None, &mut command)?.finish(limit)?;
    server.finish(START)?;
    serde_json::from_str(&text)
        .map_err(|error| Trouble::program("linerate", format!("its record is not JSON: {error}")))
}

/// Runs a command with several consecutive tests, and returns its document.
pub fn run_tests(ground: &Ground, words: &str, limit: Duration) -> Result<Value, Trouble> {
    let mut command = Command::new(&ground.linerate);
    command.args([
        "server",
        "-p",
        "0",
        "-q",
        "--no-store",
        "--grant",
        "idle,socket",
    ]);
    let (_server, port) = started(Program::start(ground.server()?, None, &mut command)?)?;
    let mut command = client(ground, &port, words)?;
    let text = Program::start(ground.client()?, None, &mut command)?.finish(limit)?;
    serde_json::from_str(&text)
        .map_err(|error| Trouble::program("linerate", format!("its record is not JSON: {error}")))
}

/// Figure of a record.
pub fn figure(record: &Value, pointer: &str) -> Result<f64, Trouble> {
    let value = record.pointer(pointer).and_then(Value::as_f64);
    value.ok_or_else(|| Trouble::program("linerate", format!("its record has no {pointer}")))
}
