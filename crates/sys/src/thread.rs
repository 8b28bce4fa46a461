//! Interruption of a thread that sleeps in a system call, thread names and timer slack.
//!
//! A receive timeout could replace the interruption, but the kernel then arms and removes a timer
//! for each call that sleeps: 1.6 % of a blocking round trip. A signal costs time only when it is
//! sent.

use std::io;
use std::mem;

/// Kernel id of a thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(libc::pid_t);

/// Signal for wake-ups. Its default action is to be ignored, so a late one is harmless. The kernel
/// sends it only for sockets with an owner (F_SETOWN), which sockets of this program do not have.
const WAKE_SIGNAL: libc::c_int = libc::SIGURG;

extern "C" fn on_wake_signal(_: libc::c_int) {}

impl std::fmt::Display for ThreadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl ThreadId {
    /// Returns the id of the calling thread.
    #[must_use]
    pub fn current() -> Self {
        // SAFETY: the call takes nothing and cannot fail.
        Self(unsafe { libc::gettid() })
    }

    /// Makes the system call in which the thread sleeps return `Interrupted`; no effect when it
    /// does not sleep or has ended.
    pub fn wake(self) {
        // SAFETY: the call takes no pointers. A thread that has ended only causes an error, because
        // the process id is passed too, and `on_wake_signal` is installed before any thread is
        // woken.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.0, WAKE_SIGNAL) };
    }
}

/// Sets the name of the calling thread for monitoring tools; at most 15 bytes are kept.
///
/// Kernel tracepoints report this name in every PID namespace, but the thread id only as seen in
/// the initial one.
///
/// # Errors
/// Fails when the name contains a zero byte.
pub fn set_name(name: &str) -> io::Result<()> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the name ends with a zero and lives through the call; longer ones are truncated.
    let result = unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Disables timer slack for the calling thread. By default the kernel delays timers of ordinary
/// threads by up to 50 us to batch them.
pub fn disable_timer_slack() {
    const LEAST_NS: libc::c_ulong = 1;
    // SAFETY: the call takes a number and cannot fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, LEAST_NS) };
}

/// Installs the signal handler for [`ThreadId::wake`]. May be called repeatedly.
///
/// # Errors
/// Errors of `sigaction(2)`.
pub fn install_wake_handler() -> io::Result<()> {
    // SAFETY: a sigaction is integers and a pointer; all zeros is valid: an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // Without SA_RESTART: the interrupted call has to return.
    action.sa_sigaction = on_wake_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the action is readable through the call; its handler does nothing, which is allowed
    // at any moment in any thread.
    let result = unsafe { libc::sigaction(WAKE_SIGNAL, &raw const action, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::socket::{MessageFlags, receive};

    #[test]
    fn timer_slack_is_disabled_per_thread() {
        // SAFETY: the call takes no pointers.
        let slack_ns = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let before = slack_ns();
        let other = std::thread::spawn(move || {
            disable_timer_slack();
            slack_ns()
        });
        assert_eq!((other.join().unwrap(), slack_ns()), (1, before));
    }

    #[test]
    fn a_sleeping_call_returns() {
        install_wake_handler().unwrap();
        let (id_sender, id) = mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            id_sender.send(ThreadId::current()).unwrap();
            receive(&socket, &mut [0; 8], MessageFlags::NONE)
                .unwrap_err()
                .kind()
        });
        let id = id.recv().unwrap();
        while !sleeper.is_finished() {
            // The thread may not sleep yet at the first wake-up.
            id.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(sleeper.join().unwrap(), io::ErrorKind::Interrupted);
        id.wake();
    }
}
