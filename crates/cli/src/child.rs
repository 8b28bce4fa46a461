//! Runs in processes of their own: this program with other options, or a command of the user's.
//!
//! A run of its own starts as the one that is typed would: with fresh memory, no threads, and no
//! scheduling left over from the run before.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use linerate_host::stop::Stop;
use linerate_host::sys::process::end_with_thread;
use linerate_metric::event::{Problem, read_line};
use linerate_metric::exit;
use linerate_metric::record::{RUN_SCHEMA, Record};
use linerate_metric::set::RunSet;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::command::series::Ended;
use crate::failure::Failure;
use crate::printer::Teller;
use crate::words;

/// Refuses a page of the measuring command where the whole of `of` was meant: each run would write it over.
pub fn check_page(of: &str, command: &[String]) -> Result<(), Failure> {
    let asks = |word: &&String| **word == "--html" || word.starts_with("--html=");
    match command.iter().find(asks) {
        None => Ok(()),
        Some(word) => Err(Failure::usage(Problem::new(
            format!(
                "is behind the measuring command, which would write it over with each run of the {of}"
            ),
            word.clone(),
            format!(
                "put it in front: linerate {of} --html FILE ... {}",
                command[0]
            ),
        ))),
    }
}

/// Variables that say how results look or how many there are: those of the outer command hold.
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

/// How often it is looked whether somebody pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// How long a run that was told to stop may take to say what it has.
const STOPPING: Duration = Duration::from_secs(5);

/// The same of a run that may have to wait for programs of an experiment to end.
const STOPPING_PROGRAMS: Duration = Duration::from_secs(30);

/// Text of an error that is told.
const TOLD: usize = 400;

/// Makes a run of this program; `words` begin with the command. Where there is a screen it sees what the run
/// tells meanwhile.
///
/// # Errors
/// What it failed with, or that somebody stopped it.
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
    let named = format!("linerate {}", words::join(words));
    let done = run(command, &named, (stop, STOPPING), screen)?;
    if let Ok(record) = serde_json::from_str::<Record>(&done.stdout)
        && record.schema == RUN_SCHEMA
        && matches!(done.code, Some(0 | 3))
    {
        return Ok(record);
    }
    Err(Ended::Over(failed(&named, &done)))
}

/// Measures one point of an experiment; gives the record of its last command. `words` begin with `run`.
///
/// # Errors
/// What it failed with, or that somebody stopped it.
pub fn point(words: &[String], stop: &Stop) -> Result<Record, Ended> {
    // Its page and its files are of no use to anybody.
    let folder = std::env::temp_dir().join(format!("linerate-point-{}", std::process::id()));
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("linerate")
        .args(words)
        .arg("--dir")
        .arg(&folder)
        .args(["--json", "--no-store"]);
    for variable in OUTER {
        command.env_remove(variable);
    }
    let named = format!("linerate {}", words::join(words));
    let done = run(command, &named, (stop, STOPPING_PROGRAMS), None);
    // It may have ended before it made one.
    let _ = std::fs::remove_dir_all(&folder);
    let done = done?;
    // 3: a shape does not hold, which nobody asked for.
    let set = serde_json::from_str::<RunSet>(&done.stdout).ok();
    let set = set.filter(|_| matches!(done.code, Some(0 | 3)));
    match set.and_then(|mut set| set.runs.pop()) {
        Some(record) => Ok(record),
        None => Err(Ended::Over(failed(&named, &done))),
    }
}

/// Runs a shell command; gives what it printed.
///
/// # Errors
/// It ended with another code than 0, or somebody stopped it.
pub fn shell(line: &str, stop: &Stop) -> Result<String, Ended> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    let done = run(command, line, (stop, STOPPING), None)?;
    match done.code {
        Some(0) => Ok(done.stdout),
        _ => Err(Ended::Over(failed(line, &done))),
    }
}

struct Done {
    code: Option<i32>,
    /// Of a stream of events the document that it ended with.
    stdout: String,
    stderr: String,
}

fn run(
    mut command: Command,
    named: &str,
    (stop, patience): (&Stop, Duration),
    screen: Option<&Teller>,
) -> Result<Done, Ended> {
    // A second Ctrl-C, or whatever else aborts this program, leaves no run behind.
    end_with_thread(&mut command);
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for us: it is handed on, so that a run is never half stopped.
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|error| {
        Failure::failed(Problem::new(
            format!("cannot be started ({error})"),
            named.to_owned(),
            "see what limits this process",
        ))
    })?;
    let (sender, ended) = mpsc::channel();
    let stdout = child.stdout.take().expect("it is piped");
    let stdout = match screen {
        Some(screen) => follow(stdout, screen.clone(), sender),
        None => collect(stdout, Some(sender)),
    };
    let stderr = collect(child.stderr.take().expect("it is piped"), None);
    let mut told: Option<Instant> = None;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
        match told {
            None if stop.is_set() => {
                signal(&child, Signal::INT);
                told = Some(Instant::now());
            }
            Some(since) if since.elapsed() > patience => signal(&child, Signal::KILL),
            _ => {}
        }
    }
    let status = child.wait();
    let text = |thread: JoinHandle<Vec<u8>>| {
        let bytes = thread.join().expect("a reader does not panic");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let done = Done {
        code: status.ok().and_then(|status| status.code()),
        stdout: text(stdout),
        stderr: text(stderr),
    };
    match stop.is_set() {
        true => Err(Ended::Stopped),
        false => Ok(done),
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()) {
        // It may have ended meanwhile.
        let _ = kill_process_group(pid, signal);
    }
}

fn collect(
    mut from: impl Read + Send + 'static,
    ended: Option<mpsc::Sender<()>>,
) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is kept.
        let _ = from.read_to_end(&mut bytes);
        drop(ended);
        bytes
    })
}

/// Shows what a stream of events tells; gives the document that it ends with.
fn follow(
    from: impl Read + Send + 'static,
    screen: Teller,
    ended: mpsc::Sender<()>,
) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut document = String::new();
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if let Some(text) = read_line(&line, &mut |event| screen.tell(event)) {
                document.push_str(&text);
                document.push('\n');
            }
        }
        drop(ended);
        document.into_bytes()
    })
}

/// What a run failed with: its own words, where it said them as JSON.
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
        Some(0) => "gave no record of one run".to_owned(),
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
            "run it alone to see what it says",
        ),
        code: code.filter(|&code| code != 0).unwrap_or(exit::FAILED),
    }
}
