//! DPDK's testpmd as packaged by Debian (dpdk-dev), with normal pages.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use linerate_lab::LabHost;

use crate::bench_env::BenchEnv;
use crate::error::BenchError;

const PROGRAM: &str = "dpdk-testpmd";

/// Time to start and reach a steady rate before the rates are counted.
const SETTLING_TIME: Duration = Duration::from_millis(1500);
/// Time over which it counts its rates.
const COUNTING_TIME: Duration = Duration::from_secs(1);

/// Checks that it can run here.
pub fn check_installed(_: &BenchEnv) -> Result<(), BenchError> {
    if Command::new(PROGRAM).arg("--version").output().is_err() {
        return Err(BenchError::skip(
            "dpdk-testpmd is not installed (Debian: apt-get install dpdk-dev)",
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::skip("dpdk-testpmd needs root for its memory"));
    }
    Ok(())
}

/// Version text.
pub fn version() -> Option<String> {
    let output = Command::new(PROGRAM)
        .arg("-v")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let raw_output = [output.stdout, output.stderr].concat();
    let raw_output = String::from_utf8_lossy(&raw_output);
    let line = raw_output
        .lines()
        .find(|line| line.contains("RTE Version"))?;
    Some(line.trim_start_matches("EAL: ").replace('\'', ""))
}

/// Options of a testpmd process.
pub struct TestpmdOptions<'a> {
    /// Virtual devices (`--vdev`).
    pub devices: &'a [String],
    /// `lcore@cpu` for each thread: the first one runs the shell, the others forward.
    pub lcores: String,
    /// Number of forwarding threads.
    pub forwarding_threads: u32,
    /// Shell commands before the rates are counted, including `start`.
    pub commands: &'a str,
}

/// Running testpmd process; returns the rates of its ports.
pub struct TestpmdProcess {
    child: Child,
    /// Directory of its runtime files, which outlive it.
    runtime_dir: PathBuf,
}

impl TestpmdProcess {
    /// Starts testpmd on a host.
    pub fn start(host: &LabHost, options: &TestpmdOptions<'_>) -> Result<Self, BenchError> {
        let mut command = Command::new("stdbuf");
        // A prefix of its own, so that two processes can run at the same time.
        let prefix = format!("linerate-{}-{}", std::process::id(), fastrand::u32(..));
        command
            .args([
                "-oL",
                PROGRAM,
                "--no-pci",
                "--no-huge",
                "-m",
                "256",
                "--no-telemetry",
            ])
            .args(["--file-prefix", &prefix, "--log-level", "lib.eal:error"])
            .arg(format!("--lcores={}", options.lcores));
        for device in options.devices {
            command.arg(format!("--vdev={device}"));
        }
        command
            .args([
                "--",
                "-i",
                &format!("--nb-cores={}", options.forwarding_threads),
            ])
            .arg(format!("--total-num-mbufs={}", mbuf_count(options.devices)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = host.run(|| command.spawn())?;
        let mut child = child.map_err(BenchError::system_call("start dpdk-testpmd"))?;
        let mut commands = child.stdin.take().expect("piped above");
        let initial_commands = format!("{}\n", options.commands);
        let (first, second) = (
            initial_commands.into_bytes(),
            b"show port stats all\n".to_vec(),
        );
        // The shell reads commands while testpmd forwards; rates are those between two
        // `show_progress` commands.
        thread::spawn(move || {
            let mut send_commands = |command_bytes: &[u8], wait: Duration| {
                let initial_commands = commands
                    .write_all(command_bytes)
                    .and_then(|()| commands.flush());
                thread::sleep(wait);
                initial_commands
            };
            let _ = send_commands(&first, SETTLING_TIME)
                .and_then(|()| send_commands(&second, COUNTING_TIME))
                .and_then(|()| send_commands(&second, Duration::from_millis(50)))
                .and_then(|()| send_commands(b"stop\nquit\n", Duration::ZERO));
        });
        let runtime_dir = Path::new("/var/run/dpdk").join(prefix);
        Ok(Self { child, runtime_dir })
    }

    /// Waits for the end; returns the summed rates of all ports, received and sent, M/s.
    pub fn wait_for_rates(mut self) -> Result<[f64; 2], BenchError> {
        let mut text = String::new();
        let out = self.child.stdout.as_mut().expect("piped above");
        out.read_to_string(&mut text)
            .map_err(BenchError::system_call("read the output of dpdk-testpmd"))?;
        parse_rates(&text).ok_or_else(|| {
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            BenchError::program_failed(
                PROGRAM,
                format!("it showed no rates: {}", last.unwrap_or("")),
            )
        })
    }
}

impl Drop for TestpmdProcess {
    fn drop(&mut self) {
        // Fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.runtime_dir);
    }
}

/// Number of mbufs for all ports.
///
/// Two AF_XDP ports reserve 8192 and would then forward nothing. More than other ports need delays
/// their start.
fn mbuf_count(devices: &[String]) -> u32 {
    let has_several = devices.len() > 1;
    match devices
        .iter()
        .all(|device| device.starts_with("net_af_xdp"))
    {
        true if has_several => 32768,
        _ => 8192,
    }
}

/// Rates of the last `show_progress` command, summed over the ports.
fn parse_rates(text: &str) -> Option<[f64; 2]> {
    let rates = |direction: &str| {
        let lines = text.lines().filter_map(|line| {
            let rest = line.trim_start().strip_prefix(direction)?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        });
        lines.collect::<Vec<f64>>()
    };
    let (received, sent) = (rates("Rx-pps:"), rates("Tx-pps:"));
    // Each port was shown twice.
    let ports = received.len() / 2;
    if ports == 0 || sent.len() != received.len() || received.len() % 2 != 0 {
        return None;
    }
    let sum = |rates: &[f64]| rates[ports..].iter().sum::<f64>() / 1e6;
    Some([sum(&received), sum(&sent)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_show_counts() {
        let block = |rx: u64, tx: u64| {
            format!(
                "  Rx-pps: {rx:>12}          Rx-bps: 0\n  Tx-pps: {tx:>12}          Tx-bps: 0\n"
            )
        };
        let text = [
            (1, 2),
            (3, 4),
            (5_000_000, 6_000_000),
            (7_000_000, 8_000_000),
        ]
        .map(|(rx, tx)| block(rx, tx))
        .concat();
        assert_eq!(parse_rates(&text), Some([12.0, 14.0]));
        assert_eq!(parse_rates("nothing"), None);
        assert_eq!(parse_rates(&block(1, 1)), None);
    }
}
