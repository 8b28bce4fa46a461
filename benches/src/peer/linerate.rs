//! linerate: a server for one test, and a client that returns its record.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bench_env::{BenchEnv, CorePinning};
use crate::error::BenchError;
use crate::process::HostProgram;

/// Time for a server to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a server for one test; returns its port.
pub fn start_server(env: &BenchEnv) -> Result<(HostProgram, String), BenchError> {
    let mut command = Command::new(&env.linerate);
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
    wait_until_ready(HostProgram::start(env.server()?, None, &mut command)?)
}

/// Waits for a server's READY line; returns its port.
fn wait_until_ready(mut server: HostProgram) -> Result<(HostProgram, String), BenchError> {
    let line = server.wait_for_line("READY", START_TIMEOUT)?;
    let port = line
        .split_whitespace()
        .find_map(|token| token.strip_prefix("port="));
    let port = port
        .ok_or_else(|| BenchError::program_failed("linerate server", "its READY line has no port"));
    Ok((server, port?.to_owned()))
}

/// Command line of a client for that server, on the cores of the bench.
pub fn client_command(env: &BenchEnv, port: &str, args: &str) -> Result<Command, BenchError> {
    client_command_on(env, CorePinning::Yes, port, args)
}

fn client_command_on(
    env: &BenchEnv,
    pinned: CorePinning,
    port: &str,
    args: &str,
) -> Result<Command, BenchError> {
    let mut args = args.split_whitespace();
    let mut command = Command::new(&env.linerate);
    command
        .args(args.next())
        .arg(env.server_address()?.to_string())
        .args(["-p", port, "--json", "--no-store"])
        .args(args);
    if let (Some(client_cpu), Some(server_cpu)) = pinned.cpus(env) {
        command.args(["--cpu", &format!("{client_cpu}/{server_cpu}")]);
    }
    Ok(command)
}

/// Runs a test and returns its record.
pub fn run_test(env: &BenchEnv, args: &str, timeout: Duration) -> Result<Value, BenchError> {
    run_test_on(env, CorePinning::Yes, args, timeout)
}

/// Runs a test with this CPU placement.
pub fn run_test_on(
    env: &BenchEnv,
    pinned: CorePinning,
    args: &str,
    timeout: Duration,
) -> Result<Value, BenchError> {
    let (server, port) = start_server(env)?;
    let mut command = client_command_on(env, pinned, &port, args)?;
    let text = HostProgram::start(env.client()?, None, &mut command)?.wait_for_end(timeout)?;
    server.wait_for_end(START_TIMEOUT)?;
    serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })
}

/// Runs a command with several consecutive tests, and returns its document.
pub fn run_tests(env: &BenchEnv, args: &str, timeout: Duration) -> Result<Value, BenchError> {
    let mut command = Command::new(&env.linerate);
    command.args([
        "server",
        "-p",
        "0",
        "-q",
        "--no-store",
        "--grant",
        "idle,socket",
    ]);
    let (_server, port) = wait_until_ready(HostProgram::start(env.server()?, None, &mut command)?)?;
    let mut command = client_command(env, &port, args)?;
    let text = HostProgram::start(env.client()?, None, &mut command)?.wait_for_end(timeout)?;
    serde_json::from_str(&text).map_err(|error| {
        BenchError::program_failed("linerate", format!("its record is not JSON: {error}"))
    })
}

/// Figure of a record.
pub fn read_figure(record: &Value, pointer: &str) -> Result<f64, BenchError> {
    let value = record.pointer(pointer).and_then(Value::as_f64);
    value.ok_or_else(|| {
        BenchError::program_failed("linerate", format!("its record has no {pointer}"))
    })
}
