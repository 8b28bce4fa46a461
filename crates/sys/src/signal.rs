//! Signal dispositions of the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{clock, terminal};

/// Ends the process by SIGPIPE, as other tools of a pipeline do (`linerate … | head`).
///
/// For use after a write to a standard stream failed because its reader closed it. Until then the
/// signal stays ignored, as Rust's runtime sets it: a lost peer also causes EPIPE, which must end
/// only its own test. Some sending calls do not support `MSG_NOSIGNAL`.
pub fn exit_by_sigpipe() -> ! {
    terminal::restore();
    // SAFETY: SIG_DFL installs no handler, so no code of this program runs in signal context. The
    // action of SIGPIPE may be changed, so the call cannot fail.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let _ = signal_hook::low_level::raise(libc::SIGPIPE);
    // The signal is blocked: exit with the code that a shell would report.
    signal_hook::low_level::exit(128 + libc::SIGPIPE)
}

/// Returns whether the process was started with this signal ignored, as `nohup` does with SIGHUP.
#[must_use]
pub fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the current one, to memory of that size.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if result != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it has written the complete structure.
    let action = unsafe { action.assume_init() };
    action.sa_sigaction == libc::SIG_IGN
}

/// Exits with `code` when one of `signals` arrives again more than `grace_ns` after the first one:
/// `timeout` and some shells send the same signal twice, to the process and to its group. Restores
/// a changed terminal before.
///
/// # Errors
/// Errors of `sigaction(2)`.
pub fn exit_on_repeat(signals: &[libc::c_int], code: libc::c_int, grace_ns: u64) -> io::Result<()> {
    let first = Arc::new(AtomicU64::new(0));
    for &signal in signals {
        let first = Arc::clone(&first);
        let action = move || {
            let now = clock::now().max(1);
            match first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
                Err(first_at) if now.saturating_sub(first_at) > grace_ns => {
                    // SAFETY: no handler is installed, and SIGTTOU may be ignored. A background
                    // process would otherwise be stopped by the change of terminal settings instead
                    // of exiting.
                    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
                    terminal::restore();
                    signal_hook::low_level::exit(code);
                }
                _ => {}
            }
        };
        // SAFETY: the action only reads a clock, exchanges atomic numbers, and may restore a
        // terminal by system calls and exit with `_exit`: all of it is allowed in a signal handler
        // (signal-safety(7)).
        unsafe { signal_hook::low_level::register(signal, action) }?;
    }
    Ok(())
}
