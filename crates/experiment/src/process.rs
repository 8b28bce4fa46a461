//! Programs of an experiment: on hosts of its lab, ended with it, whatever ends it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate_lab::LabHost;
use linerate_metric::event::read_line;
use rustix::process::{Pid, Signal, kill_process};

use crate::ExperimentError;
use crate::run::Listener;

/// Tells a program that it is to die with the process that has this number.
pub const PARENT_VARIABLE: &str = "LINERATE_DIES_WITH";

/// How long a far end may take to be ready, and a program to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a program that says nothing when it is ready is given.
const MOMENT: Duration = Duration::from_millis(400);

/// How often a running program is looked at: rarely, since it measures.
const GLANCE: Duration = Duration::from_millis(100);

/// Makes this process die with the experiment that started it, where one did; called first in `main`.
pub fn die_with_parent() {
    let Some(parent) = std::env::var(PARENT_VARIABLE).ok() else {
        return;
    };
    // Where it cannot be had, programs end with their own time limits.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    if now.is_none_or(|now| now != parent) {
        std::process::exit(i32::from(linerate_metric::exit::FAILED));
    }
}

/// A command line without anything in its environment that would change what it does.
fn command(program: &Path, words: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LINERATE_") {
            command.env_remove(name);
        }
    }
    command.env(PARENT_VARIABLE, std::process::id().to_string());
    command
}

/// Runs something on a host of the lab, or here.
fn on<R: Send>(
    host: Option<&LabHost>,
    body: impl FnOnce() -> R + Send,
) -> Result<R, ExperimentError> {
    match host {
        Some(host) => Ok(host.run(body)?),
        None => Ok(body()),
    }
}

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program to its end; a stop and a time limit end it early. A listener hears what it tells as a
/// stream of events; its output is then the document that the stream ends with.
pub(crate) fn finish(
    host: Option<&LabHost>,
    program: &Path,
    words: &[String],
    limit: Duration,
    stop: &AtomicBool,
    listener: Option<&Listener>,
) -> Result<Ended, ExperimentError> {
    let mut command = command(program, words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = words.join(" ");
    // The thread that starts a program must live as long as it: its death would be the parent's.
    on(host, move || {
        let mut child = command.spawn().map_err(|error| far(&name, error))?;
        let stdout = match listener {
            Some(listener) => follow(child.stdout.take(), Arc::clone(listener)),
            None => gather(child.stdout.take()),
        };
        let stderr = gather(child.stderr.take());
        let deadline = Instant::now() + limit;
        let mut told = false;
        let status = loop {
            match child.try_wait().map_err(|error| far(&name, error))? {
                Some(status) => break status,
                None if !told && (stop.load(Relaxed) || Instant::now() > deadline) => {
                    told = true;
                    terminate(&child);
                }
                None if told && Instant::now() > deadline + PATIENCE => {
                    let _ = child.kill();
                }
                None => thread::sleep(GLANCE),
            }
        };
        let text = |thread: JoinHandle<String>| thread.join().unwrap_or_default();
        Ok(Ended {
            code: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
        })
    })?
}

fn far(command: &str, error: impl std::fmt::Display) -> ExperimentError {
    ExperimentError::Far {
        command: command.to_owned(),
        why: error.to_string(),
    }
}

fn gather(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Lets somebody hear the events of a stream; gives the document that it ends with.
fn follow(pipe: Option<impl Read + Send + 'static>, listener: Listener) -> JoinHandle<String> {
    thread::spawn(move || {
        let lines = pipe.map(|pipe| BufReader::new(pipe).lines());
        let lines = lines.into_iter().flatten().map_while(Result::ok);
        let mut hear = |event| listener(event);
        lines
            .filter_map(|line| Some(read_line(&line, &mut hear)? + "\n"))
            .collect()
    })
}

/// Asks a program to end; it is our child and not yet waited for, so its number is its own.
fn terminate(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// A program that runs until this is dropped.
pub(crate) struct Running {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a program and returns when it says that it is ready.
pub(crate) fn start(
    host: Option<&LabHost>,
    program: &Path,
    words: &[String],
    ready: Option<&str>,
) -> Result<Running, ExperimentError> {
    let mut command = command(program, words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (end, ended) = mpsc::channel::<()>();
    let (said, hears) = mpsc::channel::<Result<(), String>>();
    let sign = ready.map(str::to_owned);
    let body = move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = said.send(Err(error.to_string()));
                return;
            }
        };
        let errors = gather(child.stderr.take());
        let lines = child.stdout.take().map(|pipe| {
            let said = said.clone();
            thread::spawn(move || {
                // Read to the end: a full pipe would stop the program.
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if sign.as_ref().is_some_and(|sign| line.starts_with(sign)) {
                        let _ = said.send(Ok(()));
                    }
                }
            })
        });
        let gone = loop {
            match ended.recv_timeout(GLANCE * 5) {
                Err(RecvTimeoutError::Disconnected) | Ok(()) => break false,
                Err(RecvTimeoutError::Timeout) => {
                    if !matches!(child.try_wait(), Ok(None)) {
                        break true;
                    }
                }
            }
        };
        if !gone {
            terminate(&child);
            let deadline = Instant::now() + PATIENCE;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(GLANCE / 10);
            }
            let _ = child.kill();
        }
        let _ = child.wait();
        if let Some(lines) = lines {
            let _ = lines.join();
        }
        let errors = errors.join().unwrap_or_default();
        let _ = said.send(Err(first_line(&errors)));
    };
    let thread = match host {
        Some(host) => host.spawn(body)?,
        None => thread::spawn(body),
    };
    let running = Running {
        end: Some(end),
        thread: Some(thread),
    };
    let name = words.join(" ");
    let patience = if ready.is_some() { PATIENCE } else { MOMENT };
    match hears.recv_timeout(patience) {
        Ok(Ok(())) => Ok(running),
        Ok(Err(why)) => Err(far(&name, why)),
        Err(_) if ready.is_none() => Ok(running),
        Err(_) => Err(far(&name, "it does not say that it is ready")),
    }
}

/// The first line of what a program said, for people.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or("it ended without a word").to_owned()
}
