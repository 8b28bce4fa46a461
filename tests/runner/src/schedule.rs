//! Processes of the tests of one group, several at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::programs::{Group, Test};

/// Time after which a test is killed. The longest takes a minute on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(400);

/// Time between two lines of progress where the output is no terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(20);

/// Result of one test.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// With the reason that the test printed.
    Skipped(String),
}

/// A test that has ended.
pub struct Finished {
    pub id: String,
    pub outcome: Outcome,
    pub time: Duration,
    /// File with its output.
    pub log: PathBuf,
}

/// State that the threads of a group share.
struct Queue {
    /// Tests that have not started; the next one is the last.
    waiting: Vec<Test>,
    locks: BTreeSet<String>,
    finished: Vec<Finished>,
    failed: usize,
    last_progress: Instant,
}

/// Last line of progress of each group: they share a line of a terminal.
static PROGRESS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Runs `tests`, `width` at a time. Also returns the time that they took, as text.
pub fn run(
    mut tests: Vec<Test>,
    group: &str,
    width: usize,
    logs: &Path,
) -> (Vec<Finished>, String) {
    tests.reverse();
    let total = tests.len();
    let queue = Mutex::new(Queue {
        waiting: tests,
        locks: BTreeSet::new(),
        finished: Vec::new(),
        failed: 0,
        last_progress: Instant::now(),
    });
    let (begin, changed) = (Instant::now(), Condvar::new());
    thread::scope(|scope| {
        for _ in 0..width.min(total) {
            scope.spawn(|| {
                while let Some(test) = next(&queue, &changed) {
                    let finished = run_one(&test, logs);
                    let mut queue = lock(&queue);
                    if let Some(name) = &test.lock {
                        queue.locks.remove(name);
                    }
                    if finished.outcome == Outcome::Failed {
                        queue.failed += 1;
                        let seconds = finished.time.as_secs_f64();
                        println!("\r\x1b[KFAILED {} ({seconds:.1} s)", test.id);
                    }
                    queue.finished.push(finished);
                    show_progress(&mut queue, group, total, begin);
                    changed.notify_all();
                }
            });
        }
    });
    let queue = queue.into_inner().unwrap_or_else(PoisonError::into_inner);
    let time = format!("{group} {} s ({total} tests)", begin.elapsed().as_secs());
    (queue.finished, time)
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the next test whose lock is free, and waits if there is none; `None` at the end.
fn next(queue: &Mutex<Queue>, changed: &Condvar) -> Option<Test> {
    let mut queue = lock(queue);
    loop {
        let is_free = |test: &Test| {
            test.lock
                .as_ref()
                .is_none_or(|name| !queue.locks.contains(name))
        };
        if let Some(at) = queue.waiting.iter().rposition(is_free) {
            let test = queue.waiting.remove(at);
            queue.locks.extend(test.lock.clone());
            return Some(test);
        }
        if queue.waiting.is_empty() {
            return None;
        }
        queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

fn show_progress(queue: &mut Queue, group: &str, total: usize, begin: Instant) {
    let text = format!(
        "{group}: {} of {total}, {} failed, {} s",
        queue.finished.len(),
        queue.failed,
        begin.elapsed().as_secs()
    );
    let is_last = queue.finished.len() == total;
    if io::stdout().is_terminal() {
        let mut progress = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
        progress.insert(group.to_owned(), text);
        let text: Vec<&str> = progress.values().map(String::as_str).collect();
        print!("\r\x1b[K{}", text.join("; "));
        if is_last {
            progress.remove(group);
            println!();
        }
        let _ = io::stdout().flush();
    } else if is_last || queue.last_progress.elapsed() >= PROGRESS_INTERVAL {
        println!("{text}");
        queue.last_progress = Instant::now();
    }
}

/// Runs one test in its environment: that which cargo gives it.
fn run_one(test: &Test, logs: &Path) -> Finished {
    let log = logs.join(test.id.replace('/', ":") + ".log");
    let begin = Instant::now();
    let succeeded = match start_and_wait(test, &log) {
        Ok(Some(status)) => status.success(),
        Ok(None) => {
            append(&log, &format!("killed after {} s", TIME_LIMIT.as_secs()));
            false
        }
        Err(error) => {
            append(&log, &error.to_string());
            false
        }
    };
    let output = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    let outcome = match skip_reason(&output) {
        _ if !succeeded => Outcome::Failed,
        Some(reason) => Outcome::Skipped(reason),
        None if output.contains("\ntest result: ok. 1 passed") => Outcome::Passed,
        None => Outcome::Failed,
    };
    Finished {
        id: test.id.clone(),
        outcome,
        time: begin.elapsed(),
        log,
    }
}

/// Reason that a test printed when it did not run, or that of its `#[ignore]`.
fn skip_reason(output: &str) -> Option<String> {
    output.lines().find_map(|line| {
        let printed = line.strip_prefix("skipped: ");
        let ignored = || {
            let (_, reason) = line.split_once(" ... ignored")?;
            Some(reason.strip_prefix(", ").unwrap_or("ignored"))
        };
        printed.or_else(ignored).map(str::to_owned)
    })
}

fn append(log: &Path, text: &str) {
    if let Ok(mut file) = File::options().append(true).create(true).open(log) {
        let _ = writeln!(file, "{text}");
    }
}

/// Kills a process and those that it started, which would disturb later tests.
fn kill_tree(process: u32) {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let children: String = (threads.into_iter().flatten().flatten())
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    let _ = Command::new("kill")
        .args(["-KILL", &process.to_string()])
        .status();
    (children.split_whitespace())
        .filter_map(|child| child.parse().ok())
        .for_each(kill_tree);
}

/// Returns the status of a test's process; `None`: it was killed at the time limit.
fn start_and_wait(test: &Test, log: &Path) -> io::Result<Option<ExitStatus>> {
    let output = File::create(log)?;
    let mut command = match test.group {
        // They compute all the time, beside tests that wait for something to happen soon.
        Group::Pure => {
            let mut nice = Command::new("nice");
            nice.arg(&test.executable);
            nice
        }
        Group::Waiting | Group::Exclusive => Command::new(&test.executable),
    };
    let mut child = command
        .args(["--exact", &test.name, "--nocapture"])
        .current_dir(&test.package_dir)
        .env("CARGO_MANIFEST_DIR", &test.package_dir)
        // These belong to the runner; some tests read variables of the same name.
        .env_remove("ONLY")
        .env_remove("NIGHTLY")
        // With one thread libtest begins the line of a test before the test prints.
        .env("RUST_TEST_THREADS", "2")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() > TIME_LIMIT {
            kill_tree(child.id());
            child.wait()?;
            return Ok(None);
        }
        let nap = begin.elapsed() / 20;
        thread::sleep(nap.clamp(Duration::from_micros(500), Duration::from_millis(50)));
    }
}
