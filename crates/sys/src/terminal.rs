//! Terminal state: saved before a full-screen view or an editor changes it, and restored on every
//! way the process ends.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdin, stdout};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, isatty, tcflush, tcgetattr, tcsetattr,
};

/// Terminal settings before the first change: a process has one terminal.
static SAVED_SETTINGS: OnceLock<Termios> = OnceLock::new();

/// Changed state of the terminal: none, its settings, or also its screen.
static CHANGED_STATE: AtomicU8 = AtomicU8::new(UNCHANGED);

const UNCHANGED: u8 = 0;
const SETTINGS_CHANGED: u8 = 1;
const SCREEN_CHANGED: u8 = 2;

/// Leaves the alternate screen and shows the cursor (xterm, terminfo `rmcup` and `cnorm`).
const LEAVE_SCREEN_SEQUENCE: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// Longest wait for a terminal that accepts no output: one stopped by Ctrl-S never does.
const WRITE_TIMEOUT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Timeout of a poll that does not wait.
const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Guard that restores the terminal when dropped. A signal that ends the process restores it too.
#[derive(Debug)]
pub struct TerminalGuard(());

impl TerminalGuard {
    /// Creates a guard for changed settings of the terminal on standard input.
    ///
    /// # Errors
    /// Errors of `tcgetattr(3)`: not a terminal.
    pub fn for_settings() -> io::Result<Self> {
        Self::new(SETTINGS_CHANGED)
    }

    /// Creates a guard for changed settings and the alternate screen of standard output.
    ///
    /// # Errors
    /// Errors of `tcgetattr(3)`: not a terminal.
    pub fn for_screen() -> io::Result<Self> {
        Self::new(SCREEN_CHANGED)
    }

    fn new(state: u8) -> io::Result<Self> {
        let settings = tcgetattr(stdin())?;
        SAVED_SETTINGS.get_or_init(|| settings);
        CHANGED_STATE.store(state, Ordering::Release);
        Ok(Self(()))
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal once, if it was changed.
///
/// Safe in a signal handler: only system calls and atomic loads, no allocation and no lock. It
/// never waits long for a terminal that accepts no output.
pub fn restore() {
    let state = CHANGED_STATE.load(Ordering::Acquire);
    let Some(settings) = SAVED_SETTINGS.get().filter(|_| state != UNCHANGED) else {
        return;
    };
    // Errors are ignored: a closed terminal has no state to restore.
    let _ = tcsetattr(stdin(), OptionalActions::Now, settings);
    if state == SCREEN_CHANGED && can_write_output() {
        let _ = rustix::io::write(stdout(), LEAVE_SCREEN_SEQUENCE);
    }
    // Last: a signal handler in the meantime restores everything again, which is better than half
    // of it.
    CHANGED_STATE.store(UNCHANGED, Ordering::Release);
}

/// Returns whether a write to standard output succeeds now or soon; a write to a stopped terminal
/// blocks forever.
#[must_use]
pub fn can_write_output() -> bool {
    let out = stdout();
    let mut poll_fds = [PollFd::new(&out, PollFlags::OUT)];
    poll(&mut poll_fds, Some(&WRITE_TIMEOUT)).is_ok()
        && poll_fds[0].revents().contains(PollFlags::OUT)
}

/// Redirects standard output and standard error to /dev/null where they are terminals. Otherwise a
/// program that should exit would wait forever for a stopped terminal.
pub fn redirect_output_to_null() {
    let Ok(null_device) = File::options().write(true).open("/dev/null") else {
        return;
    };
    // A stream that cannot be redirected stays as it was.
    if isatty(stdout()) {
        let _ = dup2_stdout(&null_device);
    }
    if isatty(stderr()) {
        let _ = dup2_stderr(&null_device);
    }
}

/// Discards unread input of the terminal on standard input.
pub fn discard_input() {
    // Fails if standard input is not a terminal: then there is no typed input.
    let _ = tcflush(stdin(), QueueSelector::IFlush);
}

/// Reads pending input of the terminal on standard input, a few keys at most; empty where a read
/// would block.
#[must_use]
pub fn read_input() -> Vec<u8> {
    let input = stdin();
    let mut poll_fds = [PollFd::new(&input, PollFlags::IN)];
    let has_input =
        poll(&mut poll_fds, Some(&NO_WAIT)).is_ok() && poll_fds[0].revents() == PollFlags::IN;
    let mut bytes = [0; 64];
    let read = match has_input {
        true => rustix::io::read(input, &mut bytes).unwrap_or(0),
        false => 0,
    };
    bytes[..read].to_vec()
}

/// Returns whether the terminal on standard input was closed, so that a read from it returns no
/// more input.
#[must_use]
pub fn has_hung_up() -> bool {
    let input = stdin();
    let mut poll_fds = [PollFd::new(&input, PollFlags::IN)];
    let hangup_flags = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut poll_fds, Some(&NO_WAIT)).is_ok() && poll_fds[0].revents().intersects(hangup_flags)
}
