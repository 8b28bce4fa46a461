//! When to stop: a flag that Ctrl-C sets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::sys::signal::exit_when_repeated;

pub use crate::sys::signal::end_by_sigpipe;

/// Exit code of a process that a second signal aborted: 128 and the number of SIGINT, as a shell
/// gives it.
pub const ABORTED: i32 = 130;

/// Two signals closer than this are one wish: nobody presses Ctrl-C that fast.
const REPEAT_GRACE_NS: u64 = 50_000_000;

/// Whether the run should end early; clones share one flag.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// A flag that only [`Stop::set`] sets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that the first SIGINT or SIGTERM sets; the second ends the process at once with
    /// [`ABORTED`], if it comes more than a moment later (`timeout` sends its signal twice).
    ///
    /// The handlers stay for the life of the process. [`Stop::set`] does not count as the first
    /// signal: a run that ended by itself may still be stored when Ctrl-C comes.
    ///
    /// # Errors
    /// What `sigaction(2)` says.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::new();
        let signals = [SIGINT, SIGTERM];
        exit_when_repeated(&signals, ABORTED, REPEAT_GRACE_NS)?;
        for signal in signals {
            flag::register(signal, Arc::clone(&stop.flag))?;
        }
        Ok(stop)
    }

    /// Whether somebody asked to stop. One relaxed load: cheap enough for a measuring loop.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Asks everybody who shares the flag to stop.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for those who know nothing of signals.
    #[must_use]
    pub fn as_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn clones_share_one_flag() {
        let stop = Stop::new();
        let other = stop.clone();
        assert!(!other.is_set());
        stop.set();
        assert!(other.is_set());
        assert!(other.as_flag().load(Ordering::Relaxed));
        assert!(!Stop::new().is_set());
    }

    const PART: &str = "LINERATE_STOP_TEST_PART";

    /// Starts this test binary again to play one part, since signals are for whole processes.
    fn start(part: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stop::tests::play", "--ignored", "--nocapture"])
            .env(PART, part)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    #[ignore = "a part of the tests below, played in a process of its own"]
    fn play() {
        match std::env::var(PART).as_deref() {
            Ok("wait") => {
                let stop = Stop::on_signals().unwrap();
                println!("ready");
                while !stop.is_set() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                println!("stopping");
                std::thread::sleep(Duration::from_secs(20));
                println!("late");
            }
            Ok("set") => {
                let stop = Stop::on_signals().unwrap();
                stop.set();
                signal_hook::low_level::raise(SIGINT).unwrap();
                println!("survived");
            }
            Ok("pipe") => {
                println!("ready");
                // A connection whose other end is gone breaks as quietly as a pipe.
                let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
                drop(far);
                let broken = (&near).write(b"text").unwrap_err();
                assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
                loop {
                    let mut out = io::stdout().lock();
                    if let Err(error) = writeln!(out, "text that nobody reads") {
                        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
                        end_by_sigpipe();
                    }
                }
            }
            _ => println!("played by other tests only"),
        }
    }

    fn wait_for(lines: &mut impl BufRead, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "no {text:?}");
        }
    }

    fn signal(child: &Child, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    }

    #[test]
    fn the_first_signal_asks_and_the_second_aborts() {
        use rustix::process::Signal;
        for pair in [
            [Signal::INT, Signal::INT],
            [Signal::TERM, Signal::INT],
            [Signal::INT, Signal::TERM],
        ] {
            let mut child = start("wait");
            let mut lines = BufReader::new(child.stdout.take().unwrap());
            wait_for(&mut lines, "ready");
            signal(&child, pair[0]);
            // At once again, as `timeout` does: still one wish.
            signal(&child, pair[0]);
            wait_for(&mut lines, "stopping");
            std::thread::sleep(Duration::from_millis(100));
            let asked = Instant::now();
            signal(&child, pair[1]);
            assert_eq!(child.wait().unwrap().code(), Some(ABORTED), "{pair:?}");
            assert!(asked.elapsed() < Duration::from_secs(10), "{pair:?}");
        }
    }

    #[test]
    fn setting_it_does_not_count_as_a_signal() {
        let mut child = start("set");
        let mut text = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        assert!(text.contains("survived"), "{text}");
    }

    #[test]
    fn a_closed_pipe_ends_the_process_quietly() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = start("pipe");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        wait_for(&mut lines, "ready");
        drop(lines);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGPIPE));
    }
}
