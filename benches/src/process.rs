//! Programs run on the hosts of the lab.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use linerate_lab::LabHost;
use linerate_sys::cpu;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::BenchError;

/// Running program; killed on drop.
pub struct HostProgram {
    name: String,
    child: Child,
    out: Option<BufReader<ChildStdout>>,
    errors: Option<ChildStderr>,
}

impl HostProgram {
    /// Starts a program on a host, pinned to one core if given.
    pub fn start(
        host: &LabHost,
        cpu: Option<u32>,
        command: &mut Command,
    ) -> Result<Self, BenchError> {
        command.stdout(Stdio::piped());
        Self::start_with_output(host, cpu, command)
    }

    /// Starts a program with the output that the caller configured.
    pub fn start_with_output(
        host: &LabHost,
        cpu: Option<u32>,
        command: &mut Command,
    ) -> Result<Self, BenchError> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        // A child process inherits network namespace and CPU affinity from the thread that starts
        // it.
        let child = host.run(|| {
            if let Some(cpu) = cpu {
                cpu::pin(&[cpu])?;
            }
            command.spawn()
        })?;
        let mut child = child.map_err(BenchError::system_call(format!("start {name}")))?;
        Ok(Self {
            out: child.stdout.take().map(BufReader::new),
            errors: child.stderr.take(),
            name,
            child,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads output lines until one contains `text`, and returns that line.
    pub fn wait_for_line(&mut self, text: &str, timeout: Duration) -> Result<String, BenchError> {
        let _watch = self.start_watchdog(timeout)?;
        let mut line = String::new();
        let out = self.out.as_mut().expect("the output has a single reader");
        loop {
            line.clear();
            match out.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(self.fail(&format!("did not print {text}"))),
                Ok(_) if line.contains(text) => return Ok(line),
                Ok(_) => {}
            }
        }
    }

    /// Waits for the end and returns the rest of the output; kills the program at the time limit.
    pub fn wait_for_end(mut self, timeout: Duration) -> Result<String, BenchError> {
        let _watch = self.start_watchdog(timeout)?;
        let mut text = String::new();
        if let Some(out) = &mut self.out {
            out.read_to_string(&mut text)
                .map_err(BenchError::system_call(format!(
                    "read the output of {}",
                    self.name
                )))?;
        }
        let status = self.child.wait();
        let status = status.map_err(BenchError::system_call(format!("wait for {}", self.name)))?;
        if status.success() {
            Ok(text)
        } else {
            let last = text.lines().last().unwrap_or_default().to_owned();
            Err(self.fail(&format!("ended with {status} {last}")))
        }
    }

    /// Kills the program at the time limit unless the returned value drops before.
    ///
    /// The thread sleeps in between: polling would disturb the measurement.
    fn start_watchdog(&self, timeout: Duration) -> Result<mpsc::Sender<()>, BenchError> {
        let handle = self.open_pidfd()?;
        let (cancel_tx, cancel_rx) = mpsc::channel::<()>();
        thread::spawn(move || {
            if cancel_rx.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
        });
        Ok(cancel_tx)
    }

    fn open_pidfd(&self) -> Result<OwnedFd, BenchError> {
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(|error| BenchError::system_call(format!("watch {}", self.name))(error.into()))
    }

    fn fail(&mut self, description: &str) -> BenchError {
        let _ = self.child.kill();
        let mut error_output = String::new();
        if let Some(errors) = &mut self.errors {
            let _ = errors.read_to_string(&mut error_output);
        }
        let error_output = error_output.lines().last().unwrap_or_default();
        BenchError::program_failed(
            &self.name,
            format!("{description} {error_output}").trim().to_owned(),
        )
    }
}

impl Drop for HostProgram {
    fn drop(&mut self) {
        // Fails only for a program that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
