//! Programs of an experiment on hosts of its lab; they always end with it.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate_host::output_reader::OutputReader;
use linerate_lab::LabHost;
use linerate_record::event::{Event, read_line};
use linerate_sys::process::{ChildExit, poll_exit, terminate_with_thread};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::ExperimentError;

/// Callback for events of a command, called on another thread.
pub type EventListener = Arc<dyn Fn(Event) + Send + Sync>;

/// Environment variable with the process id of the experiment that the program must end with.
pub const PARENT_VARIABLE: &str = "LINERATE_DIES_WITH";

/// Timeout for a remote program to report that it is ready, and for a program to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Delay for a program that does not report that it is ready.
const START_DELAY: Duration = Duration::from_millis(400);

/// Poll interval of a running program: long, because the program measures.
const PROCESS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Poll interval of the stop flag while a program starts.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Timeout for a program that is not ready yet to end: it has nothing to complete.
const SHORT_END_TIMEOUT: Duration = Duration::from_secs(1);

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
        std::process::exit(i32::from(linerate_record::exit_codes::FAILED));
    }
}

/// Command without environment variables that change its behavior.
fn build_command(program: &Path, args: &[String]) -> Command {
    let mut command = Command::new(program);
    // In its own process group it receives Ctrl-C only from this process, once, with its children.
    command.args(args).stdin(Stdio::null()).process_group(0);
    // A second Ctrl-C aborts this process without a signal to its children.
    terminate_with_thread(&mut command);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LINERATE_") {
            command.env_remove(name);
        }
    }
    command.env(PARENT_VARIABLE, std::process::id().to_string());
    command
}

/// Runs `body` on a host of the lab, or on this machine.
fn run_on<R: Send>(
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
pub(crate) struct ProgramResult {
    pub(crate) code: Option<i32>,
    /// Signal that killed it, if any.
    pub(crate) signal: Option<i32>,
    /// True if it was ended by the time limit.
    pub(crate) timed_out: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program to completion, until a stop or until the time limit.
///
/// With a listener, its output is read as a stream of events, and `stdout` is the final document.
pub(crate) fn run_to_end(
    host: Option<&LabHost>,
    program: &Path,
    args: &[String],
    time_limit: Duration,
    stop: &AtomicBool,
    listener: Option<&EventListener>,
) -> Result<ProgramResult, ExperimentError> {
    let mut command = build_command(program, args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = args.join(" ");
    // The thread that starts a program must outlive it: its end would trigger the death signal.
    run_on(host, move || {
        let mut child = command.spawn().map_err(|error| start_error(&name, error))?;
        let stdout = child.stdout.take().expect("it is piped");
        let stdout = match listener {
            Some(listener) => read_events(stdout, Arc::clone(listener)),
            None => OutputReader::read_output(stdout),
        };
        let stderr = OutputReader::read_diagnostics(child.stderr.take().expect("it is piped"));
        let deadline = Instant::now() + time_limit;
        let mut term_sent: Option<Instant> = None;
        while poll_exit(&child).is_none() {
            match term_sent {
                None if stop.load(Relaxed) || Instant::now() > deadline => {
                    term_sent = Some(Instant::now());
                    signal_group(&child, Signal::TERM);
                }
                Some(sent_at) if sent_at.elapsed() > END_TIMEOUT => {
                    signal_group(&child, Signal::KILL);
                    thread::sleep(PROCESS_POLL_INTERVAL / 10);
                }
                _ => thread::sleep(PROCESS_POLL_INTERVAL),
            }
        }
        // Processes left behind would hold the pipes open and disturb the next point.
        signal_group(&child, Signal::KILL);
        let status = child.wait().map_err(|error| start_error(&name, error))?;
        Ok(ProgramResult {
            code: status.code(),
            signal: status.signal(),
            timed_out: term_sent.is_some() && !stop.load(Relaxed),
            stdout: output_text(&stdout),
            stderr: output_text(&stderr),
        })
    })?
}

fn start_error(command: &str, error: impl std::fmt::Display) -> ExperimentError {
    ExperimentError::RemoteProgram {
        command: command.to_owned(),
        reason: error.to_string(),
    }
}

/// Output of a program that has ended; partial if a process outside its group still holds the pipe.
fn output_text(reader: &OutputReader) -> String {
    let _ = reader.wait_closed(END_TIMEOUT);
    reader.text()
}

/// Passes the events of a stream to `listener`; the reader returns the final document.
fn read_events(pipe: ChildStdout, listener: EventListener) -> OutputReader {
    OutputReader::read_lines(pipe, move |line| {
        Some(read_line(line, &mut |event| listener(event))? + "\n")
    })
}

/// Signals the process group of a program, which has not been waited for, so that its id is still
/// valid.
fn signal_group(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Returns whether other processes of a program's group still run.
///
/// A signal to the group cannot test this: the ended program is a zombie that belongs to it.
fn group_has_others(child: &Child) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut other_pids = pids.filter(|&pid| pid != child.id());
    other_pids.any(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        is_alive_in(&stat, child.id())
    })
}

/// Returns whether a line of `/proc/PID/stat` (proc_pid_stat(5)) shows a live process of `group`.
fn is_alive_in(stat: &str, group: u32) -> bool {
    // The command name before may contain spaces and parentheses.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
    let (state, group_field) = (fields.nth(1), fields.nth(1));
    !matches!(state, Some("Z" | "X"))
        && group_field.and_then(|group_field| group_field.parse().ok()) == Some(group)
}

/// Program that runs until this is dropped.
pub(crate) struct RunningProgram {
    /// Sends the time that it may take to end; closing the channel means [`END_TIMEOUT`].
    end_timeout_tx: Option<Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl RunningProgram {
    /// Ends it quickly, since it has nothing to complete.
    fn end_quickly(self) {
        if let Some(end) = &self.end_timeout_tx {
            let _ = end.send(SHORT_END_TIMEOUT);
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        drop(self.end_timeout_tx.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Programs that run until this is dropped: each is signalled before the first is waited for.
#[derive(Default)]
pub(crate) struct RunningPrograms(Vec<RunningProgram>);

impl RunningPrograms {
    pub(crate) fn push(&mut self, running: RunningProgram) {
        self.0.push(running);
    }
}

impl Drop for RunningPrograms {
    fn drop(&mut self) {
        for running in &mut self.0 {
            drop(running.end_timeout_tx.take());
        }
    }
}

/// Starts a program and returns when it reports that it is ready, or after a delay if it does not
/// report.
///
/// A stop ends the program and the wait at once.
pub(crate) fn start_program(
    host: Option<&LabHost>,
    program: &Path,
    args: &[String],
    ready_prefix: Option<&str>,
    stop: &AtomicBool,
) -> Result<RunningProgram, ExperimentError> {
    start_with_delay(host, (program, args), ready_prefix, START_DELAY, stop)
}

fn start_with_delay(
    host: Option<&LabHost>,
    (program, args): (&Path, &[String]),
    ready_prefix: Option<&str>,
    start_delay: Duration,
    stop: &AtomicBool,
) -> Result<RunningProgram, ExperimentError> {
    let mut command = build_command(program, args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (end_timeout_tx, end_timeout_rx) = mpsc::channel::<Duration>();
    let (ready_tx, ready_rx) = mpsc::channel::<Result<(), String>>();
    let sign = ready_prefix.map(str::to_owned);
    let body = move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = ready_tx.send(Err(error.to_string()));
                return;
            }
        };
        let started = Instant::now();
        let reports_nothing = sign.is_none();
        let is_ready = Arc::new(AtomicBool::new(false));
        let errors = OutputReader::read_diagnostics(child.stderr.take().expect("it is piped"));
        let lines = child.stdout.take().expect("it is piped");
        let lines = {
            let (ready_tx, is_ready) = (ready_tx.clone(), Arc::clone(&is_ready));
            OutputReader::read_lines(lines, move |line| {
                if sign.as_ref().is_some_and(|sign| line.starts_with(sign)) {
                    is_ready.store(true, Relaxed);
                    let _ = ready_tx.send(Ok(()));
                }
                None
            })
        };
        let end_timeout = loop {
            let is_ready_now = is_ready.load(Relaxed);
            match end_timeout_rx.recv_timeout(if is_ready_now {
                PROCESS_POLL_INTERVAL * 5
            } else {
                PROCESS_POLL_INTERVAL
            }) {
                Ok(end_timeout) => break end_timeout,
                Err(RecvTimeoutError::Disconnected) => break END_TIMEOUT,
                // A program that was ready may leave child processes behind in its place.
                Err(RecvTimeoutError::Timeout) if is_ready_now => continue,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let is_over = match poll_exit(&child) {
                None => false,
                // Exit code 0: the work is done, or child processes continue it. If one of them is
                // to report that it is ready, it holds the pipe open.
                Some(ChildExit::Code(0)) => !reports_nothing && lines.wait_closed(Duration::ZERO),
                Some(_) => {
                    // Its last output may still be in the pipe.
                    let _ = lines.wait_closed(SHORT_END_TIMEOUT);
                    true
                }
            };
            if is_over && !is_ready.load(Relaxed) {
                break Duration::ZERO;
            }
            if reports_nothing && started.elapsed() > start_delay {
                is_ready.store(true, Relaxed);
                let _ = ready_tx.send(Ok(()));
            }
        };
        signal_group(&child, Signal::TERM);
        let deadline = Instant::now() + end_timeout;
        // Its children may need longer than itself: a server started by a shell restores settings.
        while (poll_exit(&child).is_none() || group_has_others(&child)) && Instant::now() < deadline
        {
            thread::sleep(PROCESS_POLL_INTERVAL / 10);
        }
        // Remaining children are killed too: they would hold the pipes read below.
        signal_group(&child, Signal::KILL);
        let status = child.wait();
        if end_timeout.is_zero() {
            let _ = errors.wait_closed(END_TIMEOUT);
        }
        let errors = errors.text();
        let killing_signal = status.ok().and_then(|status| status.signal());
        let _ = ready_tx.send(Err(match killing_signal {
            Some(signal) if errors.trim().is_empty() => describe_signal(signal),
            _ => first_output_line(&errors),
        }));
    };
    let thread = match host {
        Some(host) => host.spawn(body)?,
        None => thread::spawn(body),
    };
    let running = RunningProgram {
        end_timeout_tx: Some(end_timeout_tx),
        thread: Some(thread),
    };
    let name = args.join(" ");
    let deadline = Instant::now() + start_delay + END_TIMEOUT;
    loop {
        match ready_rx.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(Ok(())) => return Ok(running),
            Ok(Err(reason)) => return Err(start_error(&name, reason)),
            Err(_) if stop.load(Relaxed) => {
                running.end_quickly();
                return Err(start_error(&name, "the experiment was stopped"));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => {
                running.end_quickly();
                return Err(start_error(&name, "it did not report that it is ready"));
            }
        }
    }
}

/// Text such as `it was killed by SIGSEGV`.
pub(crate) fn describe_signal(signal: i32) -> String {
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
pub(crate) fn first_output_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or("it ended without output").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_shell(
        script: &str,
        ready_prefix: Option<&str>,
        stop: &AtomicBool,
    ) -> Result<RunningProgram, String> {
        let args = ["-c".to_owned(), script.to_owned()];
        // Long enough for any machine if the delay is waited out.
        let command = (Path::new("/bin/sh"), &args[..]);
        start_with_delay(None, command, ready_prefix, END_TIMEOUT, stop)
            .map_err(|error| error.to_string())
    }

    /// Returns whether the process whose id is in `file` runs.
    fn is_running(file: &Path) -> bool {
        let pid = std::fs::read_to_string(file).unwrap_or_default();
        let pid = pid.trim();
        // An empty id would give `/proc//stat`, which always exists.
        if pid.is_empty() {
            return false;
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        status.is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn wait_for(mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + END_TIMEOUT;
        while !condition() {
            assert!(Instant::now() < end);
            thread::sleep(PROCESS_POLL_INTERVAL / 10);
        }
    }

    /// Ctrl-C while a program starts: nothing remains, even if it ignores signals.
    #[test]
    fn a_stop_ends_a_program_that_starts_and_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let (own_pid_file, child_pid_file) = (dir.path().join("own"), dir.path().join("other"));
        let script = format!(
            "trap '' TERM INT; echo $$ > {}; sleep 1000 & echo $! > {}; while :; do wait; done",
            own_pid_file.display(),
            child_pid_file.display()
        );
        let stop = AtomicBool::new(false);
        let error = thread::scope(|scope| {
            let starting = scope.spawn(|| start_shell(&script, Some("READY"), &stop).map(drop));
            wait_for(|| is_running(&own_pid_file) && is_running(&child_pid_file));
            stop.store(true, Relaxed);
            starting.join().unwrap()
        });
        assert!(error.unwrap_err().contains("was stopped"));
        wait_for(|| !is_running(&own_pid_file) && !is_running(&child_pid_file));
    }

    /// A second Ctrl-C ends the experiment at once, without a signal to its programs.
    #[test]
    fn every_program_ends_with_its_parent() {
        let args = ["1000".to_owned()];
        let start = move || build_command(Path::new("sleep"), &args).spawn().unwrap();
        let mut child = thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    /// A shell ends at once, but the server that it started must still restore settings.
    #[test]
    fn child_processes_may_use_the_end_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let (own_pid_file, done) = (dir.path().join("own"), dir.path().join("done"));
        let script = format!(
            "sh -c 'trap \"sleep 0.5; echo > {}; exit\" TERM; echo READY; while :; do sleep 0.05; done' &
             echo $! > {}; wait",
            done.display(),
            own_pid_file.display()
        );
        let running = start_shell(&script, Some("READY"), &AtomicBool::new(false)).unwrap();
        drop(running);
        assert!(done.exists() && !is_running(&own_pid_file));
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
            let error = start_shell("echo it lacks a thing >&2; exit 3", ready, &stop).map(drop);
            let error = error.unwrap_err();
            assert!(error.contains("did not start: it lacks a thing"), "{error}");
        }
        let error = start_shell("exit 0", Some("READY"), &stop)
            .map(drop)
            .unwrap_err();
        assert!(error.contains("ended without output"), "{error}");
        let error = start_shell("kill -9 $$", Some("READY"), &stop)
            .map(drop)
            .unwrap_err();
        assert!(error.contains("it was killed by SIGKILL"), "{error}");
    }

    /// A server that goes into the background, or a setup command.
    #[test]
    fn a_program_without_ready_line_that_exits_with_0_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let child_pid_file = dir.path().join("other");
        let script = format!("sleep 1000 & echo $! > {}", child_pid_file.display());
        let args = ["-c".to_owned(), script];
        // The shell ends within this delay unless the machine is very slow; then the test covers
        // less.
        let (program, moment) = (Path::new("/bin/sh"), Duration::from_secs(2));
        let stop = AtomicBool::new(false);
        let running = start_with_delay(None, (program, &args), None, moment, &stop).unwrap();
        wait_for(|| is_running(&child_pid_file));
        drop(running);
        wait_for(|| !is_running(&child_pid_file));
    }

    /// The shell may end before its child reports that it is ready.
    #[test]
    fn ready_may_come_from_a_child_or_just_before_the_end() {
        let stop = AtomicBool::new(false);
        for script in [
            "(sleep 0.5; echo READY; sleep 1000) &",
            "echo READY; exit 3",
        ] {
            drop(start_shell(script, Some("READY"), &stop).unwrap());
        }
    }

    /// A process left behind by a measuring program would hold its output open.
    #[test]
    fn a_program_ends_with_its_child_processes() {
        let dir = tempfile::tempdir().unwrap();
        let child_pid_file = dir.path().join("other");
        let script = format!(
            "sleep 1000 & echo $! > {}; echo all; exit 3",
            child_pid_file.display()
        );
        let args = ["-c".to_owned(), script];
        let stop = AtomicBool::new(false);
        let program = Path::new("/bin/sh");
        let result = run_to_end(None, program, &args, END_TIMEOUT, &stop, None).unwrap();
        assert_eq!((result.code, result.stdout.as_str()), (Some(3), "all\n"));
        wait_for(|| !is_running(&child_pid_file));
    }

    /// Every program may use its full timeout.
    #[test]
    fn programs_end_in_parallel() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut programs = RunningPrograms::default();
        for (own_file, other_file) in [("a", "b"), ("b", "a")] {
            let script = format!(
                "cd {}; trap 'echo > {own_file}; while [ ! -e {other_file} ]; do sleep 0.05; done; echo > {own_file}-met; exit' TERM
                 echo READY; while :; do sleep 0.05; done",
                dir.path().display()
            );
            programs.push(start_shell(&script, Some("READY"), &stop).unwrap());
        }
        drop(programs);
        assert!(
            ["a-met", "b-met"]
                .iter()
                .all(|name| dir.path().join(name).exists())
        );
    }

    /// Processes left behind by a program that was ready end with the point.
    #[test]
    fn child_processes_of_a_ready_program_end_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let child_pid_file = dir.path().join("other");
        let script = format!(
            "sleep 1000 & echo $! > {}; echo READY",
            child_pid_file.display()
        );
        let stop = AtomicBool::new(false);
        let running = start_shell(&script, Some("READY"), &stop).unwrap();
        // It has been polled since.
        thread::sleep(PROCESS_POLL_INTERVAL * 7);
        assert!(is_running(&child_pid_file));
        drop(running);
        wait_for(|| !is_running(&child_pid_file));
    }
}
