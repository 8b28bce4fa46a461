//! What a signal does to the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{clock, terminal};

/// Ends the process by SIGPIPE, as other tools of a pipeline end (`linerate … | head`).
///
/// For when a write to one of the process's own streams found that its reader went away. Until then
/// the signal stays ignored, as Rust's runtime has it: a peer that goes away breaks pipes too, and
/// must cost its own test alone. Not all calls that send take `MSG_NOSIGNAL`.
pub fn end_by_sigpipe() -> ! {
    terminal::put_back();
    // SAFETY: SIG_DFL installs no handler, so nothing of ours can run at a bad time, and SIGPIPE is
    // a signal whose action may be changed, so the call cannot fail.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let _ = signal_hook::low_level::raise(libc::SIGPIPE);
    // Somebody blocked the signal: end as a shell would report it.
    signal_hook::low_level::exit(128 + libc::SIGPIPE)
}

/// Whether whoever started the process has it ignore this signal, as `nohup` does with SIGHUP.
#[must_use]
pub fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the present one, to memory of that size.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if asked != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it has written all of it.
    let action = unsafe { action.assume_init() };
    action.sa_sigaction == libc::SIG_IGN
}

/// Ends the process with `code` when one of `signals` comes again, unless it comes within
/// `grace_ns` of the first: `timeout` and some shells send the same signal twice, to the process
/// and to its group. A terminal that is taken over is put back before.
///
/// # Errors
/// What `sigaction(2)` says.
pub fn exit_when_repeated(
    signals: &[libc::c_int],
    code: libc::c_int,
    grace_ns: u64,
) -> io::Result<()> {
    let first = Arc::new(AtomicU64::new(0));
    for &signal in signals {
        let first = Arc::clone(&first);
        let action = move || {
            let now = clock::now().max(1);
            match first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
                Err(then) if now.saturating_sub(then) > grace_ns => {
                    // SAFETY: no handler is installed, and SIGTTOU may be ignored: in the background
                    // the terminal's settings would else stop the process that is to end.
                    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
                    terminal::put_back();
                    signal_hook::low_level::exit(code);
                }
                _ => {}
            }
        };
        // SAFETY: the action only reads a clock, exchanges atomic numbers, and may put a terminal back
        // by system calls and end the process with `_exit`: all of it is allowed in a signal handler
        // (signal-safety(7)).
        unsafe { signal_hook::low_level::register(signal, action) }?;
    }
    Ok(())
}
