//! The terminal as it was before a screen or an editor took it over, and putting it back from wherever the
//! process ends.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdin, stdout};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, isatty, tcflush, tcgetattr, tcsetattr,
};

/// Settings of the terminal when it was first taken over: a process has one terminal.
static BEFORE: OnceLock<Termios> = OnceLock::new();

/// What somebody has of the terminal: nothing, its settings, or its screen as well.
static TAKEN: AtomicU8 = AtomicU8::new(NOTHING);

const NOTHING: u8 = 0;
const SETTINGS: u8 = 1;
const SCREEN: u8 = 2;

/// Leaves the alternate screen and shows the cursor (xterm, `rmcup` and `cnorm` of its terminfo).
const LEAVE: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// How long a terminal may take to show what it was given before: one that was stopped (Ctrl-S) takes for ever.
const DRAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// For a look that waits for nothing.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Puts the terminal back when it is dropped, and so does a signal that ends the process before.
#[derive(Debug)]
pub struct Taken(());

impl Taken {
    /// For who changes the settings of the terminal on standard input.
    ///
    /// # Errors
    /// What `tcgetattr(3)` says: it is none.
    pub fn settings() -> io::Result<Self> {
        Self::of(SETTINGS)
    }

    /// For who also draws on the alternate screen of standard output.
    ///
    /// # Errors
    /// What `tcgetattr(3)` says: it is none.
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

/// Puts the terminal back as it was, once, if somebody has taken it.
///
/// Safe in a signal handler: system calls and atomic loads, no memory, no lock, and none of it waits long for a
/// terminal that takes no more.
pub fn put_back() {
    let taken = TAKEN.load(Ordering::Acquire);
    let Some(before) = BEFORE.get().filter(|_| taken != NOTHING) else {
        return;
    };
    // A terminal that is gone has nothing to be put back.
    let _ = tcsetattr(stdin(), OptionalActions::Now, before);
    if taken == SCREEN && takes_output() {
        let _ = rustix::io::write(stdout(), LEAVE);
    }
    // Last: a handler that comes meanwhile does all of it again, which is better than half.
    TAKEN.store(NOTHING, Ordering::Release);
}

/// Whether a write to standard output would go through now or soon; one to a stopped terminal waits without end.
#[must_use]
pub fn takes_output() -> bool {
    let out = stdout();
    let mut asked = [PollFd::new(&out, PollFlags::OUT)];
    poll(&mut asked, Some(&DRAIN)).is_ok() && asked[0].revents().contains(PollFlags::OUT)
}

/// Lets standard output and standard error go nowhere from here on, each where it is a terminal: a program that
/// is to end would wait without end for one that nobody reads.
pub fn leave_unread() {
    let Ok(nowhere) = File::options().write(true).open("/dev/null") else {
        return;
    };
    // What cannot be put in its place stays what it was.
    if isatty(stdout()) {
        let _ = dup2_stdout(&nowhere);
    }
    if isatty(stderr()) {
        let _ = dup2_stderr(&nowhere);
    }
}

/// Throws away what was typed on the terminal on standard input and nobody has read.
pub fn forget_typed() {
    // What is no terminal has nobody who types.
    let _ = tcflush(stdin(), QueueSelector::IFlush);
}

/// What was typed on the terminal on standard input and nobody has read, a few keys at most; nothing where a read would
/// wait.
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

/// Whether the terminal on standard input has gone away: whoever reads from it then waits for nobody.
#[must_use]
pub fn has_hung_up() -> bool {
    let input = stdin();
    let mut asked = [PollFd::new(&input, PollFlags::IN)];
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    poll(&mut asked, Some(&NOW)).is_ok() && asked[0].revents().intersects(gone)
}
