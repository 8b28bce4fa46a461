//! Programs run on the hosts of the lab.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use linerate_host::sys::cpu;
use linerate_lab::LabHost;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::Trouble;

/// Running program; killed on drop.
pub struct Program {
    name: String,
    child: Child,
    out: Option<BufReader<ChildStdout>>,
    errors: Option<ChildStderr>,
}

impl Program {
    /// Starts a program on a host, pinned to one core if given.
    pub fn start(host: &LabHost, cpu: Option<u32>, command: &mut Command) -> Result<Self, Trouble> {
        command.stdout(Stdio::piped());
        Self::start_into(host, cpu, command)
    }

    /// Starts a program with the output that the caller configured.
    pub fn start_into(
        host: &LabHost,
        cpu: Option<u32>,
        command: &mut Command,
    ) -> Result<Self, Trouble> {
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
        let mut child = child.map_err(Trouble::system(format!("start {name}")))?;
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

    /// Reads output lines until one contains `word`, and returns that line.
    pub fn wait_for(&mut self, word: &str, limit: Duration) -> Result<String, Trouble> {
        let _watch = self.watch(limit)?;
        let mut line = String::new();
        let out = self.out.as_mut().expect("the output has a single reader");
        loop {
            line.clear();
            match out.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(self.failed(&format!("did not print {word}"))),
                Ok(_) if line.contains(word) => return Ok(line),
                Ok(_) => {}
            }
        }
    }

    /// Waits for the end and returns the rest of the output; kills the program at the time limit.
    pub fn finish(mut self, limit: Duration) -> Result<String, Trouble> {
        let _watch = self.watch(limit)?;
        let mut text = String::new();
        if let Some(out) = &mut self.out {
            out.read_to_string(&mut text)
                .map_err(Trouble::system(format!("read the output of {}", self.name)))?;
        }
        let status = self.child.wait();
        let status = status.map_err(Trouble::system(format!("wait for {}", self.name)))?;
        if status.success() {
            Ok(text)
        } else {
            let last = text.lines().last().unwrap_or_default().to_owned();
            Err(self.failed(&format!("ended with {status} {last}")))
        }
    }

    /// Kills the program at the time limit unless the returned value drops before.
    ///
    /// The thread sleeps in between: polling would disturb the measurement.
    fn watch(&self, limit: Duration) -> Result<mpsc::Sender<()>, Trouble> {
        let handle = self.handle()?;
        let (alive, over) = mpsc::channel::<()>();
        thread::spawn(move || {
            if over.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
        });
        Ok(alive)
    }

    fn handle(&self) -> Result<OwnedFd, Trouble> {
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(|error| Trouble::system(format!("watch {}", self.name))(error.into()))
    }

    fn failed(&mut self, what: &str) -> Trouble {
        let _ = self.child.kill();
        let mut words = String::new();
        if let Some(errors) = &mut self.errors {
            let _ = errors.read_to_string(&mut words);
        }
        let words = words.lines().last().unwrap_or_default();
        Trouble::program(&self.name, format!("{what} {words}").trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only for a program that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
