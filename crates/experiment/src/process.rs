//! Programs of an experiment on hosts of its lab; they always end with it.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate_host::output_reader::Reader;
use linerate_host::sys::process::{Ended as End, end_with_thread, ended as end_of};
use linerate_lab::LabHost;
use linerate_metric::event::read_line;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::ExperimentError;
use crate::run::Listener;

/// Environment variable with the process id of the experiment that the program must end with.
pub const PARENT_VARIABLE: &str = "LINERATE_DIES_WITH";

/// Timeout for a remote program to report that it is ready, and for a program to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(20);

/// Delay for a program that does not report that it is ready.
const MOMENT: Duration = Duration::from_millis(400);

/// Poll interval of a running program: long, because the program measures.
const GLANCE: Duration = Duration::from_millis(100);

/// Poll interval of the stop flag while a program starts.
const LOOK: Duration = Duration::from_millis(50);

/// Timeout for a program that is not ready yet to end: it has nothing to complete.
const SHORT: Duration = Duration::from_secs(1);

/// Makes this process end with the experiment that started it, if any; called first in `main`.
///
/// The parent set a death signal too, but Linux clears it if the executable has file capabilities.
pub fn die_with_parent() {
    let parent = std::env::var(PARENT_VARIABLE).ok();
    let Some(parent) = parent.and_then(|parent| Pid::from_raw(parent.parse().ok()?)) else {
        return;
    };
    if rustix::process::getppid() == Some(parent) {
        // Without a death signal, programs end at their own time limits.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    }
    // A program started by a script of the experiment has another parent and ends with that.
    let is_gone = rustix::process::test_kill_process(parent) == Err(rustix::io::Errno::SRCH);
    if is_gone {
        std::process::exit(i32::from(linerate_metric::exit::FAILED));
    }
}

/// Command without environment variables that change its behavior.
fn command(program: &Path, words: &[String]) -> Command {
    let mut command = Command::new(program);
    // In its own process group it receives Ctrl-C only from this process, once, with its children.
    command.args(words).stdin(Stdio::null()).process_group(0);
    // A second Ctrl-C aborts this process without a signal to its children.
    end_with_thread(&mut command);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LINERATE_") {
            command.env_remove(name);
        }
    }
    command.env(PARENT_VARIABLE, std::process::id().to_string());
    command
}

/// Runs `body` on a host of the lab, or on this machine.
fn on<R: Send>(
    host: Option<&LabHost>,
    body: impl FnOnce() -> R + Send,
) -> Result<R, ExperimentError> {
    match host {
        Some(host) => Ok(host.run(body)?),
        None => Ok(body()),
    }
}

/// Exit status and output of a program.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// Signal that killed it, if any.
    pub(crate) signal: Option<i32>,
    /// True if it was ended by the time limit.
    pub(crate) late: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program to completion, until a stop or until the time limit.
///
/// With a listener, its output is read as a stream of events, and `stdout` is the final document.
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
    // The thread that starts a program must outlive it: its end would trigger the death signal.
    on(host, move || {
        let mut child = command.spawn().map_err(|error| far(&name, error))?;
        let stdout = child.stdout.take().expect("it is piped");
        let stdout = match listener {
            Some(listener) => follow(stdout, Arc::clone(listener)),
            None => Reader::all(stdout),
        };
        let stderr = Reader::told(child.stderr.take().expect("it is piped"));
        let deadline = Instant::now() + limit;
        let mut told: Option<Instant> = None;
        while end_of(&child).is_none() {
            match told {
                None if stop.load(Relaxed) || Instant::now() > deadline => {
                    told = Some(Instant::now());
                    signal(&child, Signal::TERM);
                }
                Some(since) if since.elapsed() > PATIENCE => {
                    signal(&child, Signal::KILL);
                    thread::sleep(GLANCE / 10);
                }
                _ => thread::sleep(GLANCE),
            }
        }
        // Processes left behind would hold the pipes open and disturb the next point.
        signal(&child, Signal::KILL);
        let status = child.wait().map_err(|error| far(&name, error))?;
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            late: told.is_some() && !stop.load(Relaxed),
            stdout: text(&stdout),
            stderr: text(&stderr),
        })
    })?
}

fn far(command: &str, error: impl std::fmt::Display) -> ExperimentError {
    ExperimentError::Far {
        command: command.to_owned(),
        why: error.to_string(),
    }
}

/// Output of a program that has ended; partial if a process outside its group still holds the pipe.
fn text(reader: &Reader) -> String {
    let _ = reader.ends_within(PATIENCE);
    reader.text()
}

/// Passes the events of a stream to `listener`; the reader returns the final document.
fn follow(pipe: ChildStdout, listener: Listener) -> Reader {
    Reader::lines(pipe, move |line| {
        Some(read_line(line, &mut |event| listener(event))? + "\n")
    })
}

/// Signals the process group of a program, which has not been waited for, so that its id is still
/// valid.
fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Returns whether other processes of a program's group still run.
///
/// A signal to the group cannot test this: the ended program is a zombie that belongs to it.
fn has_others(child: &Child) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut others = numbers.filter(|&number| number != child.id());
    others.any(|number| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        is_alive_in(&stat, child.id())
    })
}

/// Returns whether a line of `/proc/PID/stat` (proc_pid_stat(5)) shows a live process of `group`.
fn is_alive_in(stat: &str, group: u32) -> bool {
    // The command name before may contain spaces and parentheses.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
    let (state, of) = (fields.nth(1), fields.nth(1));
    !matches!(state, Some("Z" | "X")) && of.and_then(|of| of.parse().ok()) == Some(group)
}

/// Program that runs until this is dropped.
pub(crate) struct Running {
    /// Sends the time that it may take to end; closing the channel means [`PATIENCE`].
    end: Option<Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Ends it quickly, since it has nothing to complete.
    fn break_off(self) {
        if let Some(end) = &self.end {
            let _ = end.send(SHORT);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Programs that run until this is dropped: each is signalled before the first is waited for.
#[derive(Default)]
pub(crate) struct Programs(Vec<Running>);

impl Programs {
    pub(crate) fn push(&mut self, running: Running) {
        self.0.push(running);
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for running in &mut self.0 {
            drop(running.end.take());
        }
    }
}

/// Starts a program and returns when it reports that it is ready, or after a delay if it does not
/// report.
///
/// A stop ends the program and the wait at once.
pub(crate) fn start(
    host: Option<&LabHost>,
    program: &Path,
    words: &[String],
    ready: Option<&str>,
    stop: &AtomicBool,
) -> Result<Running, ExperimentError> {
    start_in(host, (program, words), ready, MOMENT, stop)
}

fn start_in(
    host: Option<&LabHost>,
    (program, words): (&Path, &[String]),
    ready: Option<&str>,
    moment: Duration,
    stop: &AtomicBool,
) -> Result<Running, ExperimentError> {
    let mut command = command(program, words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (end, ended) = mpsc::channel::<Duration>();
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
        let begun = Instant::now();
        let quiet = sign.is_none();
        let is_ready = Arc::new(AtomicBool::new(false));
        let errors = Reader::told(child.stderr.take().expect("it is piped"));
        let lines = child.stdout.take().expect("it is piped");
        let lines = {
            let (said, is_ready) = (said.clone(), Arc::clone(&is_ready));
            Reader::lines(lines, move |line| {
                if sign.as_ref().is_some_and(|sign| line.starts_with(sign)) {
                    is_ready.store(true, Relaxed);
                    let _ = said.send(Ok(()));
                }
                None
            })
        };
        let patience = loop {
            let is_up = is_ready.load(Relaxed);
            match ended.recv_timeout(if is_up { GLANCE * 5 } else { GLANCE }) {
                Ok(patience) => break patience,
                Err(RecvTimeoutError::Disconnected) => break PATIENCE,
                // A program that was ready may leave child processes behind in its place.
                Err(RecvTimeoutError::Timeout) if is_up => continue,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let is_over = match end_of(&child) {
                None => false,
                // Exit code 0: the work is done, or child processes continue it. If one of them is
                // to report
                // that it is ready, it holds the pipe open.
                Some(End::With(0)) => !quiet && lines.ends_within(Duration::ZERO),
                Some(_) => {
                    // Its last output may still be in the pipe.
                    let _ = lines.ends_within(SHORT);
                    true
                }
            };
            if is_over && !is_ready.load(Relaxed) {
                break Duration::ZERO;
            }
            if quiet && begun.elapsed() > moment {
                is_ready.store(true, Relaxed);
                let _ = said.send(Ok(()));
            }
        };
        signal(&child, Signal::TERM);
        let deadline = Instant::now() + patience;
        // Its children may need longer than itself: a server started by a shell restores settings.
        while (end_of(&child).is_none() || has_others(&child)) && Instant::now() < deadline {
            thread::sleep(GLANCE / 10);
        }
        // Remaining children are killed too: they would hold the pipes read below.
        signal(&child, Signal::KILL);
        let status = child.wait();
        if patience.is_zero() {
            let _ = errors.ends_within(PATIENCE);
        }
        let errors = errors.text();
        let killed = status.ok().and_then(|status| status.signal());
        let _ = said.send(Err(match killed {
            Some(signal) if errors.trim().is_empty() => signal_words(signal),
            _ => first_line(&errors),
        }));
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
    let deadline = Instant::now() + moment + PATIENCE;
    loop {
        match hears.recv_timeout(LOOK) {
            Ok(Ok(())) => return Ok(running),
            Ok(Err(why)) => return Err(far(&name, why)),
            Err(_) if stop.load(Relaxed) => {
                running.break_off();
                return Err(far(&name, "the experiment was stopped"));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => {
                running.break_off();
                return Err(far(&name, "it did not report that it is ready"));
            }
        }
    }
}

/// Text such as `it was killed by SIGSEGV`.
pub(crate) fn signal_words(signal: i32) -> String {
    let name = match Signal::from_named_raw(signal) {
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::INT) => "SIGINT",
        Some(Signal::HUP) => "SIGHUP",
        _ => return format!("it was killed by signal {signal}"),
    };
    format!("it was killed by {name}")
}

/// First line of a program's output, for display.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or("it ended without output").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, ready: Option<&str>, stop: &AtomicBool) -> Result<Running, String> {
        let words = ["-c".to_owned(), script.to_owned()];
        // Long enough for any machine if the delay is waited out.
        let what = (Path::new("/bin/sh"), &words[..]);
        start_in(None, what, ready, PATIENCE, stop).map_err(|error| error.to_string())
    }

    /// Returns whether the process whose id is in `file` runs.
    fn runs(file: &Path) -> bool {
        let number = std::fs::read_to_string(file).unwrap_or_default();
        let number = number.trim();
        // An empty id would give `/proc//stat`, which always exists.
        if number.is_empty() {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{number}/stat"));
        status.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_for(mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end);
            thread::sleep(GLANCE / 10);
        }
    }

    /// Ctrl-C while a program starts: nothing remains, even if it ignores signals.
    #[test]
    fn a_stop_ends_a_program_that_starts_and_what_it_started() {
        let room = tempfile::tempdir().unwrap();
        let (own, other) = (room.path().join("own"), room.path().join("other"));
        let script = format!(
            "trap '' TERM INT; echo $$ > {}; sleep 1000 & echo $! > {}; while :; do wait; done",
            own.display(),
            other.display()
        );
        let stop = AtomicBool::new(false);
        let told = thread::scope(|scope| {
            let starting = scope.spawn(|| sh(&script, Some("READY"), &stop).map(drop));
            wait_for(|| runs(&own) && runs(&other));
            stop.store(true, Relaxed);
            starting.join().unwrap()
        });
        assert!(told.unwrap_err().contains("was stopped"));
        wait_for(|| !runs(&own) && !runs(&other));
    }

    /// A second Ctrl-C ends the experiment at once, without a signal to its programs.
    #[test]
    fn a_program_of_any_kind_ends_with_who_started_it() {
        let words = ["1000".to_owned()];
        let start = move || command(Path::new("sleep"), &words).spawn().unwrap();
        let mut child = thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    /// A shell ends at once, but the server that it started must still restore settings.
    #[test]
    fn what_a_program_started_may_come_to_its_end_too() {
        let room = tempfile::tempdir().unwrap();
        let (own, done) = (room.path().join("own"), room.path().join("done"));
        let script = format!(
            "sh -c 'trap \"sleep 0.5; echo > {}; exit\" TERM; echo READY; while :; do sleep 0.05; done' &
             echo $! > {}; wait",
            done.display(),
            own.display()
        );
        let running = sh(&script, Some("READY"), &AtomicBool::new(false)).unwrap();
        drop(running);
        assert!(done.exists() && !runs(&own));
    }

    #[test]
    fn a_process_is_of_a_group_until_it_has_ended() {
        assert!(is_alive_in("7 (a) S 1) S 1 42 42 0 -1", 42));
        assert!(!is_alive_in("7 (a) S 1 42 42 0 -1", 1));
        assert!(!is_alive_in("7 (a) Z 1 42 42 0 -1", 42));
        assert!(!is_alive_in("", 42));
    }

    #[test]
    fn a_program_that_ends_before_it_is_ready_did_not_start() {
        let stop = AtomicBool::new(false);
        for ready in [Some("READY"), None] {
            let told = sh("echo it lacks a thing >&2; exit 3", ready, &stop).map(drop);
            let told = told.unwrap_err();
            assert!(told.contains("did not start: it lacks a thing"), "{told}");
        }
        let told = sh("exit 0", Some("READY"), &stop).map(drop).unwrap_err();
        assert!(told.contains("ended without output"), "{told}");
        let told = sh("kill -9 $$", Some("READY"), &stop)
            .map(drop)
            .unwrap_err();
        assert!(told.contains("it was killed by SIGKILL"), "{told}");
    }

    /// A server that goes into the background, or a setup command.
    #[test]
    fn who_is_to_say_nothing_and_has_done_its_work_is_up() {
        let room = tempfile::tempdir().unwrap();
        let other = room.path().join("other");
        let script = format!("sleep 1000 & echo $! > {}", other.display());
        let words = ["-c".to_owned(), script];
        // The shell ends within this delay unless the machine is very slow; then the test covers
        // less.
        let (program, moment) = (Path::new("/bin/sh"), Duration::from_secs(2));
        let stop = AtomicBool::new(false);
        let running = start_in(None, (program, &words), None, moment, &stop).unwrap();
        wait_for(|| runs(&other));
        drop(running);
        wait_for(|| !runs(&other));
    }

    /// The shell may end before its child reports that it is ready.
    #[test]
    fn ready_is_heard_of_whom_a_program_left_behind_or_as_its_last_word() {
        let stop = AtomicBool::new(false);
        for script in [
            "(sleep 0.5; echo READY; sleep 1000) &",
            "echo READY; exit 3",
        ] {
            drop(sh(script, Some("READY"), &stop).unwrap());
        }
    }

    /// A process left behind by a measuring program would hold its output open.
    #[test]
    fn a_program_is_over_when_it_ends_and_what_it_left_goes_with_it() {
        let room = tempfile::tempdir().unwrap();
        let other = room.path().join("other");
        let script = format!(
            "sleep 1000 & echo $! > {}; echo all; exit 3",
            other.display()
        );
        let words = ["-c".to_owned(), script];
        let stop = AtomicBool::new(false);
        let program = Path::new("/bin/sh");
        let ended = finish(None, program, &words, PATIENCE, &stop, None).unwrap();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), "all\n"));
        wait_for(|| !runs(&other));
    }

    /// Every program may use its full timeout.
    #[test]
    fn programs_come_to_their_end_together() {
        let room = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut programs = Programs::default();
        for (own, other) in [("a", "b"), ("b", "a")] {
            let script = format!(
                "cd {}; trap 'echo > {own}; while [ ! -e {other} ]; do sleep 0.05; done; echo > {own}-met; exit' TERM
                 echo READY; while :; do sleep 0.05; done",
                room.path().display()
            );
            programs.push(sh(&script, Some("READY"), &stop).unwrap());
        }
        drop(programs);
        assert!(
            ["a-met", "b-met"]
                .iter()
                .all(|name| room.path().join(name).exists())
        );
    }

    /// Processes left behind by a program that was ready end with the point.
    #[test]
    fn what_a_program_leaves_in_its_place_goes_with_it() {
        let room = tempfile::tempdir().unwrap();
        let other = room.path().join("other");
        let script = format!("sleep 1000 & echo $! > {}; echo READY", other.display());
        let stop = AtomicBool::new(false);
        let running = sh(&script, Some("READY"), &stop).unwrap();
        // It has been polled since.
        thread::sleep(GLANCE * 7);
        assert!(runs(&other));
        drop(running);
        wait_for(|| !runs(&other));
    }
}
