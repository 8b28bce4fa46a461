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
use linerate_host::output_reader::Reader;
use linerate_host::stop_flag::Stop;
use linerate_host::sys::process::{end_with_thread, ended};
use linerate_metric::event::{Problem, read_line};
use linerate_metric::exit;
use linerate_metric::record::{RUN_SCHEMA, Record, new_id};
use linerate_metric::run_set::RunSet;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::command::series::Ended;
use crate::failure::Failure;
use crate::printer::Teller;
use crate::shell_words;

/// Rejects `--html` among the options of the measuring command, because each run would overwrite
/// the file.
pub fn check_page(of: &str, command: &[String]) -> Result<(), Failure> {
    let asks = |word: &&String| **word == "--html" || word.starts_with("--html=");
    match command.iter().find(asks) {
        None => Ok(()),
        Some(word) => Err(Failure::usage(Problem::new(
            format!(
                "is an option of the measuring command, so each run of the {of} would overwrite the file"
            ),
            word.clone(),
            format!(
                "put it before the measuring command: linerate {of} --html FILE ... {}",
                command[0]
            ),
        ))),
    }
}

/// Variables that set output or the number of runs. They apply to the outer command and are removed
/// for its runs.
const OUTER: [&str; 13] = [
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
const LOOK: Duration = Duration::from_millis(100);

/// Time that an interrupted run may take to deliver its result.
const STOPPING: Duration = Duration::from_secs(5);

/// Time that an interrupted run of an experiment may take: its measuring program may need 20 s to
/// end, the servers together as much again, and then its network is removed.
const STOPPING_PROGRAMS: Duration = Duration::from_secs(60);

/// Time to wait for the last output of a user's command: a program that it left running may hold
/// the pipe open forever.
const LAST: Duration = Duration::from_secs(1);

/// Maximum number of characters of an error output in a message.
const TOLD: usize = 400;

/// Runs this program and returns its record; `words` start with the command. If there is a screen,
/// it shows the events of the run.
///
/// # Errors
/// Returns the failure of the run, or that it was interrupted.
pub fn measure(words: &[String], stop: &Stop, screen: Option<&Teller>) -> Result<Record, Ended> {
    let form = match screen {
        Some(_) => "--json-stream",
        None => "--json",
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("linerate")
        .args(words)
        .args([form, "--no-store"]);
    for variable in OUTER {
        command.env_remove(variable);
    }
    let named = format!("linerate {}", shell_words::join(words));
    let done = run(
        command,
        &named,
        (stop, Patience::to_stop(STOPPING)),
        Said::To(screen),
    )?;
    if let Ok(record) = serde_json::from_str::<Record>(&done.stdout)
        && record.schema == RUN_SCHEMA
        && matches!(done.code, Some(0 | 3))
    {
        return Ok(record);
    }
    Err(Ended::Over(failed(&named, &done)))
}

/// Measures one point of an experiment and returns the record of its last command; `words` start
/// with `run`.
///
/// # Errors
/// Returns the failure of the run, or that it was interrupted.
pub fn point(words: &[String], stop: &Stop) -> Result<Record, Ended> {
    // The report and the files of a single point are discarded.
    let folder = Folder::new()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("linerate")
        .args(words)
        .arg("--dir")
        // A directory of its own, because both processes lock theirs.
        .arg(folder.path.join("results"))
        .args(["--json", "--no-store"]);
    for variable in OUTER {
        command.env_remove(variable);
    }
    let named = format!("linerate {}", shell_words::join(words));
    let done = run(
        command,
        &named,
        (stop, Patience::to_stop(STOPPING_PROGRAMS)),
        Said::To(None),
    )?;
    // Code 3 means that an expected result does not hold, which does not matter for one point.
    let set = serde_json::from_str::<RunSet>(&done.stdout).ok();
    let set = set.filter(|_| matches!(done.code, Some(0 | 3)));
    match set.and_then(|mut set| set.runs.pop()) {
        Some(record) => Ok(record),
        None => Err(Ended::Over(failed(&named, &done))),
    }
}

/// Private temporary directory, removed on drop; if this process is killed, the next one that
/// creates such a directory removes it.
struct Folder {
    path: PathBuf,
    /// Lock of the directory: one without a lock is a leftover of a killed process.
    _lock: File,
}

/// Prefix of the names of such directories.
const FOLDER: &str = "linerate-point-";

impl Folder {
    fn new() -> Result<Self, Failure> {
        let place = std::env::temp_dir();
        Self::new_in(&place).map_err(|error| {
            Failure::failed(Problem::new(
                format!("cannot be created ({error})"),
                place.join(FOLDER).display().to_string(),
                "set TMPDIR to a directory with free space",
            ))
        })
    }

    fn new_in(place: &Path) -> io::Result<Self> {
        sweep(place);
        loop {
            let path = place.join(format!("{FOLDER}{}", new_id(Timestamp::now())));
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

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes directories that killed or aborted processes of this user left behind.
fn sweep(place: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let is_named = (entry.file_name().to_str()).is_some_and(|name| name.starts_with(FOLDER));
        // For a symbolic link this is the metadata of the link itself.
        let is_ours =
            is_named && (entry.metadata()).is_ok_and(|found| found.is_dir() && found.uid() == own);
        let lock = is_ours.then(|| File::open(entry.path()).ok()).flatten();
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
pub fn shell(line: &str, stop: &Stop) -> Result<String, Ended> {
    shell_for(line, None, stop)
}

/// Runs a shell command with a time limit.
///
/// # Errors
/// As for [`shell`], and if the limit expired: then its whole process group is stopped.
pub fn shell_within(line: &str, limit: Duration, stop: &Stop) -> Result<String, Ended> {
    shell_for(line, Some(limit), stop)
}

fn shell_for(line: &str, limit: Option<Duration>, stop: &Stop) -> Result<String, Ended> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    let patience = Patience {
        of_run: limit,
        of_stop: STOPPING,
    };
    let done = run(command, line, (stop, patience), Said::UntilItEnds)?;
    if let Some(limit) = limit.filter(|_| done.is_late) {
        return Err(Ended::Over(Failure::failed(Problem::new(
            format!("did not end within {} s and was stopped", limit.as_secs()),
            line.to_owned(),
            "run it by itself to see what it waits for, or give its knob more time: within = \"30m\"",
        ))));
    }
    match done.code {
        Some(0) => Ok(done.stdout),
        _ => Err(Ended::Over(failed(line, &done))),
    }
}

/// Output of a run that is read.
#[derive(Clone, Copy)]
enum Said<'a> {
    /// Full output; if there is a screen, it shows the events.
    To(Option<&'a Teller>),
    /// Output until the process ends: other processes may hold its pipes open.
    UntilItEnds,
}

/// Time limits of a run.
#[derive(Clone, Copy)]
struct Patience {
    /// Limit of the whole run; `None` for none.
    of_run: Option<Duration>,
    /// Limit for delivering the result after an interrupt.
    of_stop: Duration,
}

impl Patience {
    /// Returns limits for a run of any length with this time to stop.
    const fn to_stop(of_stop: Duration) -> Self {
        Self {
            of_run: None,
            of_stop,
        }
    }
}

struct Done {
    code: Option<i32>,
    /// The run was stopped because its limit expired.
    is_late: bool,
    /// Standard output; for a stream of events, its final document.
    stdout: String,
    stderr: String,
}

fn run(
    mut command: Command,
    named: &str,
    (stop, patience): (&Stop, Patience),
    said: Said<'_>,
) -> Result<Done, Ended> {
    // A second Ctrl-C, or any other abort of this program, ends our runs too. For a user's command
    // the signal reaches only its shell.
    end_with_thread(&mut command);
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
        Failure::failed(Problem::new(
            format!("cannot start ({error})"),
            named.to_owned(),
            "check the limits of this process with `ulimit -a`",
        ))
    })?;
    let stdout = child.stdout.take().expect("it is piped");
    let stdout = match said {
        Said::To(Some(screen)) => {
            let screen = screen.clone();
            // The reader keeps the document that ends the stream.
            Reader::lines(stdout, move |line| {
                Some(read_line(line, &mut |event| screen.tell(event))? + "\n")
            })
        }
        // The number or the record of a user's command may follow any amount of other output.
        Said::To(None) | Said::UntilItEnds => Reader::all(stdout),
    };
    let stderr = Reader::told(child.stderr.take().expect("it is piped"));
    let mut told: Option<Instant> = None;
    let mut over: Option<Instant> = None;
    let begun = Instant::now();
    let mut is_late = false;
    loop {
        let is_over = ended(&child).is_some();
        let is_quiet = stdout.ends_within(LOOK) && stderr.ends_within(LOOK);
        if is_over && is_quiet {
            break;
        }
        // After an interrupt or a timeout, wait until all processes of the group have ended.
        if is_over && !stop.is_set() && !is_late && matches!(said, Said::UntilItEnds) {
            let since = *over.get_or_insert_with(Instant::now);
            if since.elapsed() > LAST {
                break;
            }
        }
        is_late |= !is_over && patience.of_run.is_some_and(|limit| begun.elapsed() > limit);
        match told {
            None if stop.is_set() || is_late => {
                signal(&child, Signal::INT);
                told = Some(Instant::now());
            }
            Some(since) if since.elapsed() > patience.of_stop => {
                signal(&child, Signal::KILL);
                // Processes that still hold the pipes are not in the group.
                if is_over {
                    break;
                }
            }
            _ => {}
        }
        if is_quiet {
            thread::sleep(LOOK / 20);
        }
    }
    let done = Done {
        is_late,
        code: child.wait().ok().and_then(|status| status.code()),
        stdout: stdout.text(),
        stderr: stderr.text(),
    };
    match stop.is_set() {
        true => Err(Ended::Stopped),
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
fn failed(named: &str, done: &Done) -> Failure {
    let document: Option<serde_json::Value> = serde_json::from_str(&done.stdout).ok();
    let error = document.as_ref().and_then(|document| document.get("error"));
    let part = |name: &str| error?.get(name)?.as_str().map(str::to_owned);
    let code = done.code.and_then(|code| u8::try_from(code).ok());
    if let (Some(situation), Some(object)) = (part("situation"), part("object")) {
        let next = part("next_step").unwrap_or_default();
        return Failure {
            problem: Problem::new(situation, object, next),
            code: code.unwrap_or(exit::FAILED),
        };
    }
    let said: String = done.stderr.trim().chars().take(TOLD).collect();
    let said = said.replace('\n', "; ");
    let how = match done.code {
        Some(0) => "printed no record of a single run".to_owned(),
        Some(code) => format!("ended with code {code}"),
        None => "was killed".to_owned(),
    };
    let situation = match said.is_empty() {
        true => how,
        false => format!("{how}: {said}"),
    };
    Failure {
        problem: Problem::new(
            situation,
            named.to_owned(),
            "run it by itself to see its output",
        ),
        // Codes of other programs have other meanings: 3 and 6 would be results of `compare`.
        code: exit::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_command_that_closed_its_output_is_stopped_all_the_same() {
        let stop = Stop::new();
        stop.set();
        let ended = shell("exec >&- 2>&-; sleep 1000", &stop);
        assert!(matches!(ended, Err(Ended::Stopped)));
    }

    #[test]
    fn the_code_of_another_program_is_no_verdict_of_ours() {
        for (line, code) in [
            ("exit 3", exit::FAILED),
            ("exit 6", exit::FAILED),
            ("kill -9 $$", exit::FAILED),
            // A run of this program prints its error.
            (
                r#"echo '{"error":{"situation":"a","object":"b","next_step":"c"}}'; exit 5"#,
                exit::PEER,
            ),
        ] {
            let Err(Ended::Over(failure)) = shell(line, &Stop::new()) else {
                panic!("{line} did not fail");
            };
            assert_eq!(failure.code, code, "{line}");
        }
    }

    /// A command that ignores interrupts is killed with its children.
    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let begun = Instant::now();
        let ended = shell_within("sleep 1000", Duration::from_millis(50), &Stop::new());
        let Err(Ended::Over(failure)) = ended else {
            panic!("it did not end");
        };
        assert!(
            failure.problem.situation.contains("did not end"),
            "{}",
            failure.problem
        );
        // A shell started with interrupts ignored, as in the background of a script, is killed
        // after `STOPPING`.
        assert!(begun.elapsed() < 4 * STOPPING, "it is not waited for");
        assert!(shell_within("echo in time", Duration::from_secs(600), &Stop::new()).is_ok());
    }

    #[test]
    fn all_that_a_command_said_is_there() {
        // More than 1 MiB: the number may come last.
        let line = "seq 200000; sleep 0.2; seq 20000 >&2; echo last";
        let said = shell(line, &Stop::new()).unwrap_or_default();
        assert!(said.starts_with("1\n2\n") && said.ends_with("\n200000\nlast\n"));
    }

    #[test]
    fn what_a_command_leaves_running_is_not_waited_for() {
        let Ok(said) = shell("sleep 100 & echo $!", &Stop::new()) else {
            panic!("it ended with code 0");
        };
        let left: i32 = said.trim().parse().expect("its number");
        let comm = std::fs::read_to_string(format!("/proc/{left}/comm"));
        assert_eq!(comm.unwrap_or_default().trim(), "sleep", "it goes on");
        let left = Pid::from_raw(left).expect("a number");
        rustix::process::kill_process(left, Signal::KILL).expect("it is ours");
    }

    fn made(place: &Path) -> Folder {
        Folder::new_in(place).expect("there is room in the folder of temporary files")
    }

    #[test]
    fn the_folder_of_a_point_is_ours_alone_and_goes() {
        let room = tempfile::tempdir().unwrap();
        let (one, other) = (made(room.path()), made(room.path()));
        assert_ne!(one.path, other.path);
        let mode = std::fs::metadata(&one.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.path.clone();
        std::fs::write(path.join("page"), "").unwrap();
        drop(one);
        assert!(!path.exists() && other.path.exists());
    }

    /// A second Ctrl-C or `kill -9` runs no destructors, but the kernel releases the lock.
    #[test]
    fn what_a_killed_process_left_behind_goes_with_the_next_folder() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        for left in ["linerate-point-1", "linerate-other-1"] {
            std::fs::create_dir(at(left)).unwrap();
            std::fs::write(at(left).join("report.html"), "").unwrap();
        }
        std::os::unix::fs::symlink(at("linerate-other-1"), at("linerate-point-link")).unwrap();
        std::fs::write(at("linerate-point-file"), "").unwrap();
        let in_use = made(room.path());
        assert!(!at("linerate-point-1").exists(), "it was left behind");
        let next = made(room.path());
        assert!(in_use.path.exists() && next.path.exists());
        for kept in [
            "linerate-other-1/report.html",
            "linerate-point-link",
            "linerate-point-file",
        ] {
            assert!(at(kept).exists(), "{kept} is none of ours");
        }
    }
}
