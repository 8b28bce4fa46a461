//! Child processes: runs of this program with other options, and commands of the user.
//!
//! A run in its own process starts like a typed command: with fresh memory, no threads, and no
//! scheduling settings of the run before.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::output_reader::OutputReader;
use linerate_host::stop_flag::StopFlag;
use linerate_record::event::{ErrorReport, read_line};
use linerate_record::exit_codes;
use linerate_record::record::{RUN_SCHEMA, Record, new_id};
use linerate_record::run_set::RunSet;
use linerate_sys::process::{poll_exit, terminate_with_thread};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::event_queue::EventSender;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::shell_words;

/// Rejects `--html` among the options of the measuring command, because each run would overwrite
/// the file.
pub fn check_report_option(of: &str, command: &[String]) -> Result<(), CommandFailure> {
    let is_html_option = |arg: &&String| **arg == "--html" || arg.starts_with("--html=");
    match command.iter().find(is_html_option) {
        None => Ok(()),
        Some(arg) => Err(CommandFailure::usage(ErrorReport::new(
            format!(
                "is an option of the measuring command, so each run of the {of} would overwrite the file"
            ),
            arg.clone(),
            format!(
                "put it before the measuring command: linerate {of} --html FILE ... {}",
                command[0]
            ),
        ))),
    }
}

/// Variables that set output or the number of runs. They apply to the outer command and are removed
/// for its runs.
const OUTER_VARIABLES: [&str; 13] = [
    "LINERATE_JSON",
    "LINERATE_JSON_STREAM",
    "LINERATE_TUI",
    "LINERATE_OUTPUT",
    "LINERATE_QUIET",
    "LINERATE_VERBOSE",
    "LINERATE_HTML",
    "LINERATE_LABEL",
    "LINERATE_NO_STORE",
    "LINERATE_REPEAT",
    "LINERATE_EXPECT",
    "LINERATE_PAIRS",
    "LINERATE_FIGURE",
];

/// Variable that marks a run as part of a command, which already reported what concerns all of its
/// runs.
pub const PART_VARIABLE: &str = "LINERATE_PART";

/// Time between two checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time that an interrupted run may take to deliver its result.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that an interrupted run of an experiment may take: its measuring program may need 20 s to
/// end, the servers together as much again, and then its network is removed.
const EXPERIMENT_STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Time to wait for the last output of a user's command: a program that it left running may hold
/// the pipe open forever.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Maximum number of characters of an error output in a message.
const MAX_ERROR_CHARS: usize = 400;

/// Runs this program and returns its record; `args` start with the command. If there is a screen,
/// it shows the events of the run.
///
/// # Errors
/// Returns the failure of the run, or that it was interrupted.
pub fn run_measurement(
    args: &[String],
    stop: &StopFlag,
    screen: Option<&EventSender>,
) -> Result<Record, SeriesEnd> {
    let form = match screen {
        Some(_) => "--json-stream",
        None => "--json",
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("linerate")
        .args(args.iter().filter(|arg| *arg != "--no-store"))
        .args([form, "--no-store"]);
    for variable in OUTER_VARIABLES {
        command.env_remove(variable);
    }
    let command_text = format!("linerate {}", shell_words::join_args(args));
    let done = run(
        command,
        &command_text,
        (stop, RunTimeouts::unlimited_run(STOP_TIMEOUT)),
        CapturedOutput::All(screen),
    )?;
    if let Ok(record) = serde_json::from_str::<Record>(&done.stdout)
        && record.schema == RUN_SCHEMA
        && matches!(done.code, Some(0 | 3))
    {
        return Ok(record);
    }
    Err(SeriesEnd::Failed(failure_of(&command_text, &done)))
}

/// Measures one point of an experiment and returns the record of its last command; `args` start
/// with `run`.
///
/// # Errors
/// Returns the failure of the run, or that it was interrupted.
pub fn measure_point(args: &[String], stop: &StopFlag) -> Result<Record, SeriesEnd> {
    // The report and the files of a single point are discarded.
    let dir = PointDir::new()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("linerate")
        .args(args)
        .arg("--dir")
        // A directory of its own, because both processes lock theirs.
        .arg(dir.path.join("results"))
        .args(["--json", "--no-store"]);
    for variable in OUTER_VARIABLES {
        command.env_remove(variable);
    }
    let command_text = format!("linerate {}", shell_words::join_args(args));
    let done = run(
        command,
        &command_text,
        (stop, RunTimeouts::unlimited_run(EXPERIMENT_STOP_TIMEOUT)),
        CapturedOutput::All(None),
    )?;
    // Code 3 means that an expected result does not hold, which does not matter for one point.
    let set = serde_json::from_str::<RunSet>(&done.stdout).ok();
    let set = set.filter(|_| matches!(done.code, Some(0 | 3)));
    match set.and_then(|mut set| set.runs.pop()) {
        Some(record) => Ok(record),
        None => Err(SeriesEnd::Failed(failure_of(&command_text, &done))),
    }
}

/// Private temporary directory, removed on drop; if this process is killed, the next one that
/// creates such a directory removes it.
struct PointDir {
    path: PathBuf,
    /// Lock of the directory: one without a lock is a leftover of a killed process.
    _lock: File,
}

/// Prefix of the names of such directories.
const DIR_PREFIX: &str = "linerate-point-";

impl PointDir {
    fn new() -> Result<Self, CommandFailure> {
        let temp_dir = std::env::temp_dir();
        Self::new_in(&temp_dir).map_err(|error| {
            CommandFailure::failed(ErrorReport::new(
                format!("cannot be created ({error})"),
                temp_dir.join(DIR_PREFIX).display().to_string(),
                "set TMPDIR to a directory with free space",
            ))
        })
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        remove_leftovers(parent);
        loop {
            let path = parent.join(format!("{DIR_PREFIX}{}", new_id(Timestamp::now())));
            // Fails if the path exists, even as a symbolic link.
            DirBuilder::new().mode(0o700).create(&path)?;
            // Until it is locked, another process may remove it as a leftover.
            let lock = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if lock.try_lock().is_ok() && path.is_dir() {
                return Ok(Self { path, _lock: lock });
            }
        }
    }
}

impl Drop for PointDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes directories that killed or aborted processes of this user left behind.
fn remove_leftovers(parent: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named =
            (entry.file_name().to_str()).is_some_and(|name| name.starts_with(DIR_PREFIX));
        // For a symbolic link this is the metadata of the link itself.
        let is_own = is_named
            && (entry.metadata()).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == uid);
        let lock = is_own.then(|| File::open(entry.path()).ok()).flatten();
        // The lock is held until the directory is removed.
        if let Some(lock) = lock
            && lock.try_lock().is_ok()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a shell command and returns its output. It ends with its shell: a program that it starts in
/// the background continues.
///
/// # Errors
/// Fails if the exit code is not 0, or if it was interrupted.
pub fn run_shell(line: &str, stop: &StopFlag) -> Result<String, SeriesEnd> {
    run_shell_command(line, None, stop)
}

/// Runs a shell command with a time limit.
///
/// # Errors
/// As for [`run_shell`], and if the limit expired: then its whole process group is stopped.
pub fn run_shell_within(line: &str, limit: Duration, stop: &StopFlag) -> Result<String, SeriesEnd> {
    run_shell_command(line, Some(limit), stop)
}

fn run_shell_command(
    line: &str,
    limit: Option<Duration>,
    stop: &StopFlag,
) -> Result<String, SeriesEnd> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    let timeouts = RunTimeouts {
        run: limit,
        stop: STOP_TIMEOUT,
    };
    let done = run(command, line, (stop, timeouts), CapturedOutput::UntilExit)?;
    if let Some(limit) = limit.filter(|_| done.has_timed_out) {
        return Err(SeriesEnd::Failed(CommandFailure::failed(ErrorReport::new(
            format!("did not end within {} s and was stopped", limit.as_secs()),
            line.to_owned(),
            "run it by itself to see what it waits for, or give its knob more time: within = \"30m\"",
        ))));
    }
    match done.code {
        Some(0) => Ok(done.stdout),
        _ => Err(SeriesEnd::Failed(failure_of(line, &done))),
    }
}

/// Output of a run that is read.
#[derive(Clone, Copy)]
enum CapturedOutput<'a> {
    /// Full output; if there is a screen, it shows the events.
    All(Option<&'a EventSender>),
    /// Output until the process ends: other processes may hold its pipes open.
    UntilExit,
}

/// Time limits of a run.
#[derive(Clone, Copy)]
struct RunTimeouts {
    /// Limit of the whole run; `None` for none.
    run: Option<Duration>,
    /// Limit for delivering the result after an interrupt.
    stop: Duration,
}

impl RunTimeouts {
    /// Returns limits for a run of any length with this time to stop.
    const fn unlimited_run(of_stop: Duration) -> Self {
        Self {
            run: None,
            stop: of_stop,
        }
    }
}

struct FinishedChild {
    code: Option<i32>,
    /// The run was stopped because its limit expired.
    has_timed_out: bool,
    /// Standard output; for a stream of events, its final document.
    stdout: String,
    stderr: String,
}

fn run(
    mut command: Command,
    command_text: &str,
    (stop, timeouts): (&StopFlag, RunTimeouts),
    captured: CapturedOutput<'_>,
) -> Result<FinishedChild, SeriesEnd> {
    // A second Ctrl-C, or any other abort of this program, ends our runs too. For a user's command
    // the signal reaches only its shell.
    terminate_with_thread(&mut command);
    let started = command
        .env(PART_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C reaches only this process, which forwards it: so a run is never interrupted
        // halfway.
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|error| {
        CommandFailure::failed(ErrorReport::new(
            format!("cannot start ({error})"),
            command_text.to_owned(),
            "check the limits of this process with `ulimit -a`",
        ))
    })?;
    let stdout = child.stdout.take().expect("it is piped");
    let stdout = match captured {
        CapturedOutput::All(Some(screen)) => {
            let screen = screen.clone();
            // The reader keeps the document that ends the stream.
            OutputReader::read_lines(stdout, move |line| {
                Some(read_line(line, &mut |event| screen.send(event))? + "\n")
            })
        }
        // The number or the record of a user's command may follow any amount of other output.
        CapturedOutput::All(None) | CapturedOutput::UntilExit => OutputReader::read_output(stdout),
    };
    let stderr = OutputReader::read_diagnostics(child.stderr.take().expect("it is piped"));
    let mut interrupted_at: Option<Instant> = None;
    let mut exited_at: Option<Instant> = None;
    let started_at = Instant::now();
    let mut has_timed_out = false;
    loop {
        let has_exited = poll_exit(&child).is_some();
        let is_closed = stdout.wait_closed(POLL_INTERVAL) && stderr.wait_closed(POLL_INTERVAL);
        if has_exited && is_closed {
            break;
        }
        // After an interrupt or a timeout, wait until all processes of the group have ended.
        if has_exited
            && !stop.is_set()
            && !has_timed_out
            && matches!(captured, CapturedOutput::UntilExit)
        {
            let since = *exited_at.get_or_insert_with(Instant::now);
            if since.elapsed() > OUTPUT_GRACE {
                break;
            }
        }
        has_timed_out |= !has_exited
            && timeouts
                .run
                .is_some_and(|limit| started_at.elapsed() > limit);
        match interrupted_at {
            None if stop.is_set() || has_timed_out => {
                signal(&child, Signal::INT);
                interrupted_at = Some(Instant::now());
            }
            Some(since) if since.elapsed() > timeouts.stop => {
                signal(&child, Signal::KILL);
                // Processes that still hold the pipes are not in the group.
                if has_exited {
                    break;
                }
            }
            _ => {}
        }
        if is_closed {
            thread::sleep(POLL_INTERVAL / 20);
        }
    }
    let done = FinishedChild {
        has_timed_out,
        code: child.wait().ok().and_then(|status| status.code()),
        stdout: stdout.text(),
        stderr: stderr.text(),
    };
    match stop.is_set() {
        true => Err(SeriesEnd::Interrupted),
        false => Ok(done),
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()) {
        // The group may have ended already.
        let _ = kill_process_group(pid, signal);
    }
}

/// Returns the failure of a run: its own error if it printed one as JSON.
fn failure_of(command_text: &str, done: &FinishedChild) -> CommandFailure {
    let document: Option<serde_json::Value> = serde_json::from_str(&done.stdout).ok();
    let error = document.as_ref().and_then(|document| document.get("error"));
    let part = |name: &str| error?.get(name)?.as_str().map(str::to_owned);
    let code = done.code.and_then(|code| u8::try_from(code).ok());
    if let (Some(situation), Some(object)) = (part("situation"), part("object")) {
        let next = part("next_step").unwrap_or_default();
        return CommandFailure {
            problem: ErrorReport::new(situation, object, next),
            code: code.unwrap_or(exit_codes::FAILED),
        };
    }
    let stderr: String = done.stderr.trim().chars().take(MAX_ERROR_CHARS).collect();
    let stderr = stderr.replace('\n', "; ");
    let outcome = match done.code {
        Some(0) => "printed no record of a single run".to_owned(),
        Some(code) => format!("ended with code {code}"),
        None => "was killed".to_owned(),
    };
    let situation = match stderr.is_empty() {
        true => outcome,
        false => format!("{outcome}: {stderr}"),
    };
    CommandFailure {
        problem: ErrorReport::new(
            situation,
            command_text.to_owned(),
            "run it by itself to see its output",
        ),
        // Codes of other programs have other meanings: 3 and 6 would be results of `compare`.
        code: exit_codes::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_command_that_closed_its_output_is_stopped_all_the_same() {
        let stop = StopFlag::new();
        stop.set();
        let result = run_shell("exec >&- 2>&-; sleep 1000", &stop);
        assert!(matches!(result, Err(SeriesEnd::Interrupted)));
    }

    #[test]
    fn the_code_of_another_program_is_no_verdict_of_ours() {
        for (line, code) in [
            ("exit 3", exit_codes::FAILED),
            ("exit 6", exit_codes::FAILED),
            ("kill -9 $$", exit_codes::FAILED),
            // A run of this program prints its error.
            (
                r#"echo '{"error":{"situation":"a","object":"b","next_step":"c"}}'; exit 5"#,
                exit_codes::PEER,
            ),
        ] {
            let Err(SeriesEnd::Failed(failure)) = run_shell(line, &StopFlag::new()) else {
                panic!("{line} did not fail");
            };
            assert_eq!(failure.code, code, "{line}");
        }
    }

    /// A command that ignores interrupts is killed with its children.
    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let started_at = Instant::now();
        let result = run_shell_within("sleep 1000", Duration::from_millis(50), &StopFlag::new());
        let Err(SeriesEnd::Failed(failure)) = result else {
            panic!("it did not end");
        };
        assert!(
            failure.problem.situation.contains("did not end"),
            "{}",
            failure.problem
        );
        // A shell started with interrupts ignored, as in the background of a script, is killed
        // after `STOP_TIMEOUT`.
        assert!(
            started_at.elapsed() < 4 * STOP_TIMEOUT,
            "it is not waited for"
        );
        assert!(
            run_shell_within("echo in time", Duration::from_secs(600), &StopFlag::new()).is_ok()
        );
    }

    #[test]
    fn the_full_output_is_returned() {
        // More than 1 MiB: the number may come last.
        let line = "seq 200000; sleep 0.2; seq 20000 >&2; echo last";
        let output = run_shell(line, &StopFlag::new()).unwrap_or_default();
        assert!(output.starts_with("1\n2\n") && output.ends_with("\n200000\nlast\n"));
    }

    #[test]
    fn background_programs_are_not_waited_for() {
        let Ok(output) = run_shell("sleep 100 & echo $!", &StopFlag::new()) else {
            panic!("it ended with code 0");
        };
        let background: i32 = output.trim().parse().expect("its number");
        let comm = std::fs::read_to_string(format!("/proc/{background}/comm"));
        assert_eq!(comm.unwrap_or_default().trim(), "sleep", "it goes on");
        let background = Pid::from_raw(background).expect("a number");
        rustix::process::kill_process(background, Signal::KILL).expect("it is ours");
    }

    fn new_dir(parent: &Path) -> PointDir {
        PointDir::new_in(parent).expect("there is room in the folder of temporary files")
    }

    #[test]
    fn the_folder_of_a_point_is_ours_alone_and_goes() {
        let temp = tempfile::tempdir().unwrap();
        let (one, second) = (new_dir(temp.path()), new_dir(temp.path()));
        assert_ne!(one.path, second.path);
        let mode = std::fs::metadata(&one.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.path.clone();
        std::fs::write(path.join("page"), "").unwrap();
        drop(one);
        assert!(!path.exists() && second.path.exists());
    }

    /// A second Ctrl-C or `kill -9` runs no destructors, but the kernel releases the lock.
    #[test]
    fn leftovers_of_killed_processes_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for leftover in ["linerate-point-1", "linerate-other-1"] {
            std::fs::create_dir(at(leftover)).unwrap();
            std::fs::write(at(leftover).join("report.html"), "").unwrap();
        }
        std::os::unix::fs::symlink(at("linerate-other-1"), at("linerate-point-link")).unwrap();
        std::fs::write(at("linerate-point-file"), "").unwrap();
        let in_use = new_dir(temp.path());
        assert!(!at("linerate-point-1").exists(), "it was left behind");
        let next = new_dir(temp.path());
        assert!(in_use.path.exists() && next.path.exists());
        for unrelated in [
            "linerate-other-1/report.html",
            "linerate-point-link",
            "linerate-point-file",
        ] {
            assert!(at(unrelated).exists(), "{unrelated} is none of ours");
        }
    }
}
