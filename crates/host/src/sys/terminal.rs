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
static BEFORE: OnceLock<Termios> = OnceLock::new();

/// Changed state of the terminal: none, its settings, or also its screen.
static TAKEN: AtomicU8 = AtomicU8::new(NOTHING);

const NOTHING: u8 = 0;
const SETTINGS: u8 = 1;
const SCREEN: u8 = 2;

/// Leaves the alternate screen and shows the cursor (xterm, terminfo `rmcup` and `cnorm`).
const LEAVE: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// Longest wait for a terminal that accepts no output: one stopped by Ctrl-S never does.
const DRAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Timeout of a poll that does not wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Guard that restores the terminal when dropped. A signal that ends the process restores it too.
#[derive(Debug)]
pub struct Taken(());

impl Taken {
    /// Creates a guard for changed settings of the terminal on standard input.
    ///
    /// # Errors
    /// Errors of `tcgetattr(3)`: not a terminal.
    pub fn settings() -> io::Result<Self> {
        Self::of(SETTINGS)
    }

    /// Creates a guard for changed settings and the alternate screen of standard output.
    ///
    /// # Errors
    /// Errors of `tcgetattr(3)`: not a terminal.
    pub fn screen() -> io::Result<Self> {
        Self::of(SCREEN)
    }

    fn of(what: u8) -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        BEFORE.get_or_init(|| before);
        TAKEN.store(what, Ordering::Release);
        Ok(Self(()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        put_back();
    }
}

/// Restores the terminal once, if it was changed.
///
/// Safe in a signal handler: only system calls and atomic loads, no allocation and no lock. It
/// never waits long for a terminal that accepts no output.
pub fn put_back() {
    let taken = TAKEN.load(Ordering::Acquire);
    let Some(before) = BEFORE.get().filter(|_| taken != NOTHING) else {
        return;
    };
    // Errors are ignored: a closed terminal has no state to restore.
    let _ = tcsetattr(stdin(), OptionalActions::Now, before);
    if taken == SCREEN && takes_output() {
        let _ = rustix::io::write(stdout(), LEAVE);
    }
    // Last: a signal handler in the meantime restores everything again, which is better than half
    // of it.
    TAKEN.store(NOTHING, Ordering::Release);
}

/// Returns whether a write to standard output succeeds now or soon; a write to a stopped terminal
/// blocks forever.
#[must_use]
pub fn takes_output() -> bool {
    let out = stdout();
    let mut asked = [PollFd::new(&out, PollFlags::OUT)];
    poll(&mut asked, Some(&DRAIN)).is_ok() && asked[0].revents().contains(PollFlags::OUT)
}

/// Redirects standard output and standard error to /dev/null where they are terminals. Otherwise a
/// program that should exit would wait forever for a stopped terminal.
pub fn leave_unread() {
    let Ok(nowhere) = File::options().write(true).open("/dev/null") else {
        return;
    };
    // A stream that cannot be redirected stays as it was.
    if isatty(stdout()) {
        let _ = dup2_stdout(&nowhere);
    }
    if isatty(stderr()) {
        let _ = dup2_stderr(&nowhere);
    }
}

/// Discards unread input of the terminal on standard input.
pub fn forget_typed() {
    // Fails if standard input is not a terminal: then there is no typed input.
    let _ = tcflush(stdin(), QueueSelector::IFlush);
}

/// Reads pending input of the terminal on standard input, a few keys at most; empty where a read
/// would block.
#[must_use]
pub fn typed() -> Vec<u8> {
    let input = stdin();
    let mut asked = [PollFd::new(&input, PollFlags::IN)];
    let waits = poll(&mut asked, Some(&NOW)).is_ok() && asked[0].revents() == PollFlags::IN;
    let mut bytes = [0; 64];
    let read = match waits {
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
    let mut asked = [PollFd::new(&input, PollFlags::IN)];
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut asked, Some(&NOW)).is_ok() && asked[0].revents().intersects(gone)
}
