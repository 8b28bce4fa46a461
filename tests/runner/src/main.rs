//! Runs the tests of the programs that cargo has built, each in a process of its own: `tests/run`.
//!
//! Tests of the group `waiting` run many at a time. Those of `pure` run beside them at a low
//! priority, as many at a time as there are CPUs. Those of `exclusive` run alone.
//! `tests/groups.toml` assigns them. A failed test fails the run: nothing runs twice.
#![forbid(unsafe_code)]

mod programs;
mod schedule;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use programs::{Group, Test};
use schedule::{Finished, Outcome};

/// Lines of a failed test's output that are shown.
const SHOWN_LINES: usize = 60;

/// Number of tests that are listed as the slowest.
const SLOWEST: usize = 10;

/// Arguments: the file with cargo's messages about the build, the file of groups, and the directory
/// of the logs. The environment may have `ONLY` (groups and parts of names), `BACKGROUND` (a
/// command that runs beside the first two groups) and `NIGHTLY` (runs the tests of that list and
/// no others).
fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything passed.
fn run() -> Result<bool, String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [messages, groups, logs] = args.as_slice() else {
        return Err("usage: linerate-test-runner MESSAGES GROUPS LOGS".to_owned());
    };
    let logs = Path::new(logs);
    let _ = fs::remove_dir_all(logs);
    fs::create_dir_all(logs).map_err(|error| format!("{}: {error}", logs.display()))?;

    let nightly = std::env::var_os("NIGHTLY").is_some();
    let only = std::env::var("ONLY").unwrap_or_default();
    let listed = programs::list(&read(messages)?, &read(groups)?)?;
    let (mut tests, mut postponed) = (Vec::new(), Vec::new());
    for test in listed.into_iter().filter(|test| is_selected(test, &only)) {
        match &test.nightly {
            Some(reason) if !nightly => postponed.push((test.id.clone(), reason.clone())),
            None if nightly => {}
            _ => tests.push(test),
        }
    }
    if tests.is_empty() {
        return Err(format!("no test is named {only}"));
    }

    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut take = |group: Group| -> Vec<Test> {
        let (of_group, others) = (tests.drain(..)).partition(|test| test.group == group);
        tests = others;
        of_group
    };
    let (pure, waiting, exclusive) = (
        take(Group::Pure),
        take(Group::Waiting),
        take(Group::Exclusive),
    );
    let background = Background::start(logs)?;
    let (mut finished, mut times) = (Vec::new(), Vec::new());
    let mut add = |(results, time): (Vec<Finished>, String)| {
        finished.extend(results);
        times.push(time);
    };
    std::thread::scope(|scope| {
        let pure = scope.spawn(|| schedule::run(pure, "pure", cpus, logs));
        add(schedule::run(waiting, "waiting", 5 * cpus, logs));
        add(pure.join().expect("the thread of the pure tests"));
    });
    if let Some(background) = background {
        let result = background.finish();
        let time = format!("{} {} s", result.id, result.time.as_secs());
        add((vec![result], time));
    }
    add(schedule::run(exclusive, "exclusive", 1, logs));
    Ok(report(&mut finished, &postponed, &times))
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

/// Returns whether `only`, a list with commas, has the group of a test or a part of its name.
fn is_selected(test: &Test, only: &str) -> bool {
    let group = format!("{:?}", test.group).to_lowercase();
    only.is_empty()
        || (only.split(','))
            .any(|part| !part.is_empty() && (group == part || test.id.contains(part)))
}

/// The command of `BACKGROUND`, at a low priority.
struct Background {
    command: String,
    child: Child,
    log: std::path::PathBuf,
    begin: Instant,
}

impl Background {
    fn start(logs: &Path) -> Result<Option<Self>, String> {
        let Some(command) = std::env::var("BACKGROUND")
            .ok()
            .filter(|text| !text.is_empty())
        else {
            return Ok(None);
        };
        let log = logs.join("background.log");
        let begin = Instant::now();
        let output = File::create(&log).and_then(|log| Ok((log.try_clone()?, log)));
        let child = output.and_then(|(stdout, stderr)| {
            Command::new("nice")
                .args(["sh", "-c", &command])
                .stdin(Stdio::null())
                .stdout(stdout)
                .stderr(stderr)
                .spawn()
        });
        let child = child.map_err(|error| format!("{command}: {error}"))?;
        Ok(Some(Self {
            command,
            child,
            log,
            begin,
        }))
    }

    fn finish(mut self) -> Finished {
        println!("waiting for {}", self.command);
        let passed = self.child.wait().is_ok_and(|status| status.success());
        Finished {
            id: self.command,
            outcome: if passed {
                Outcome::Passed
            } else {
                Outcome::Failed
            },
            time: self.begin.elapsed(),
            log: self.log,
        }
    }
}

/// Prints failures, then skipped tests, the slowest tests and the time of each part.
fn report(finished: &mut [Finished], postponed: &[(String, String)], times: &[String]) -> bool {
    finished.sort_by_key(|test| std::cmp::Reverse(test.time));
    let failed: Vec<&Finished> = (finished.iter())
        .filter(|test| test.outcome == Outcome::Failed)
        .collect();
    for test in &failed {
        let text = String::from_utf8_lossy(&fs::read(&test.log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        println!("\n==> FAILED {} ({})", test.id, test.log.display());
        println!(
            "{}",
            lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
        );
    }
    let mut skipped: BTreeSet<String> = postponed
        .iter()
        .map(|(id, reason)| format!("  {id}: make nightly: {reason}"))
        .collect();
    for test in finished.iter() {
        if let Outcome::Skipped(reason) = &test.outcome {
            skipped.insert(format!("  {}: {reason}", test.id));
        }
    }
    if !skipped.is_empty() {
        println!("\n==> not tested here");
        skipped.iter().for_each(|line| println!("{line}"));
    }
    println!("\n==> slowest");
    for test in finished.iter().take(SLOWEST) {
        println!("  {:6.1} s {}", seconds(test.time), test.id);
    }
    println!("\n==> {}", times.join(", "));
    for test in &failed {
        println!("FAILED {}", test.id);
    }
    println!(
        "tests: {} passed, {} failed, {} skipped",
        (finished.iter())
            .filter(|test| test.outcome == Outcome::Passed)
            .count(),
        failed.len(),
        skipped.len()
    );
    failed.is_empty()
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
