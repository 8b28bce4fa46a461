//! Stop flag that SIGINT and SIGTERM set.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate_sys::signal::{exit_on_repeat, is_ignored};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

pub use linerate_sys::signal::exit_by_sigpipe;

/// Exit code after a second signal: 128 + SIGINT, as in shells.
pub const ABORTED_EXIT_CODE: i32 = 130;

/// Two signals closer than this count as one. `timeout` sends its signal twice, and on a busy
/// machine the two are delivered some time apart; a user does not press Ctrl-C twice this fast.
const REPEAT_GRACE_NS: u64 = 250_000_000;

/// Flag that requests the early end of a run; clones share it.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    flag: Arc<AtomicBool>,
}

impl StopFlag {
    /// Creates a flag that only [`StopFlag::set`] sets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a flag that the first SIGINT or SIGTERM sets. A second one ends the process at once
    /// with [`ABORTED_EXIT_CODE`], unless it follows within a moment (`timeout` sends its signal
    /// twice).
    ///
    /// SIGHUP sets the flag too, unless it is ignored (`nohup`), but never aborts: both the closing
    /// terminal and its shell may send it, some time apart.
    ///
    /// The handlers stay for the life of the process. [`StopFlag::set`] does not count as the first
    /// signal: a run that ended by itself may still be stored when Ctrl-C is pressed.
    ///
    /// # Errors
    /// Errors of `sigaction(2)`.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::new();
        let signals = [SIGINT, SIGTERM];
        exit_on_repeat(&signals, ABORTED_EXIT_CODE, REPEAT_GRACE_NS)?;
        for signal in signals {
            flag::register(signal, Arc::clone(&stop.flag))?;
        }
        if !is_ignored(SIGHUP) {
            flag::register(SIGHUP, Arc::clone(&stop.flag))?;
        }
        Ok(stop)
    }

    /// Returns whether the run should stop. One relaxed load: cheap enough for a measuring loop.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Requests the stop.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Returns the flag itself, for code that does not depend on this type.
    #[must_use]
    pub fn atomic(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn clones_share_one_flag() {
        let stop = StopFlag::new();
        let clone = stop.clone();
        assert!(!clone.is_set());
        stop.set();
        assert!(clone.is_set());
        assert!(clone.atomic().load(Ordering::Relaxed));
        assert!(!StopFlag::new().is_set());
    }

    const TEST_ROLE_VARIABLE: &str = "LINERATE_STOP_TEST_PART";

    /// Starts this test binary as a child process: signals are delivered to a whole process.
    fn spawn_role(role: &str) -> Child {
        spawn_role_with(&mut Command::new(std::env::current_exe().unwrap()), role)
    }

    fn spawn_role_with(command: &mut Command, role: &str) -> Child {
        let (_, module) = module_path!().split_once("::").unwrap();
        command
            .args([
                "--exact",
                &format!("{module}::run_role"),
                "--ignored",
                "--nocapture",
            ])
            .env(TEST_ROLE_VARIABLE, role)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    #[ignore = "child process of the tests below"]
    fn run_role() {
        match std::env::var(TEST_ROLE_VARIABLE).as_deref() {
            Ok("wait") => {
                let stop = StopFlag::on_signals().unwrap();
                println!("ready");
                while !stop.is_set() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                println!("stopping");
                std::thread::sleep(Duration::from_secs(20));
                println!("late");
            }
            Ok("hang-up") => {
                let stop = StopFlag::on_signals().unwrap();
                println!("ready");
                while !stop.is_set() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                println!("stopping");
                // The second signal arrives during this sleep.
                std::thread::sleep(Duration::from_secs(1));
                println!("ended");
            }
            Ok("nohup") => {
                let stop = StopFlag::on_signals().unwrap();
                signal_hook::low_level::raise(SIGHUP).unwrap();
                assert!(!stop.is_set());
                println!("goes on");
            }
            Ok("set") => {
                let stop = StopFlag::on_signals().unwrap();
                stop.set();
                signal_hook::low_level::raise(SIGINT).unwrap();
                println!("survived");
            }
            Ok("pipe") => {
                println!("ready");
                // Writing to a closed connection fails with EPIPE and does not end the process, as
                // with a pipe.
                let (local, remote) = std::os::unix::net::UnixStream::pair().unwrap();
                drop(remote);
                let broken = (&local).write(b"text").unwrap_err();
                assert_eq!(broken.kind(), io::ErrorKind::BrokenPipe);
                loop {
                    let mut out = io::stdout().lock();
                    if let Err(error) = writeln!(out, "text without a reader") {
                        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
                        exit_by_sigpipe();
                    }
                }
            }
            _ => println!("run by other tests only"),
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
    fn the_first_signal_stops_and_the_second_aborts() {
        use rustix::process::Signal;
        for pair in [
            [Signal::INT, Signal::INT],
            [Signal::TERM, Signal::INT],
            [Signal::INT, Signal::TERM],
        ] {
            let mut child = spawn_role("wait");
            let mut lines = BufReader::new(child.stdout.take().unwrap());
            wait_for(&mut lines, "ready");
            signal(&child, pair[0]);
            // A repeated signal within the grace time, as `timeout` sends it, counts as one.
            signal(&child, pair[0]);
            wait_for(&mut lines, "stopping");
            std::thread::sleep(2 * Duration::from_nanos(REPEAT_GRACE_NS));
            let sent_at = Instant::now();
            signal(&child, pair[1]);
            assert_eq!(
                child.wait().unwrap().code(),
                Some(ABORTED_EXIT_CODE),
                "{pair:?}"
            );
            assert!(sent_at.elapsed() < Duration::from_secs(10), "{pair:?}");
        }
    }

    #[test]
    fn repeated_hangups_stop_and_nohup_is_respected() {
        use rustix::process::Signal;
        // The tests themselves may run under nohup.
        let mut env_command = Command::new("env");
        env_command.arg("--default-signal=HUP");
        let mut child =
            spawn_role_with(env_command.arg(std::env::current_exe().unwrap()), "hang-up");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        wait_for(&mut lines, "ready");
        signal(&child, Signal::HUP);
        wait_for(&mut lines, "stopping");
        std::thread::sleep(Duration::from_millis(100));
        signal(&child, Signal::HUP);
        wait_for(&mut lines, "ended");
        assert!(child.wait().unwrap().success());

        let mut nohup = Command::new("sh");
        nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        let mut child = spawn_role_with(nohup.arg(std::env::current_exe().unwrap()), "nohup");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        wait_for(&mut lines, "goes on");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn setting_the_flag_does_not_count_as_a_signal() {
        let mut child = spawn_role("set");
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
        let mut child = spawn_role("pipe");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        wait_for(&mut lines, "ready");
        drop(lines);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGPIPE));
    }
}
