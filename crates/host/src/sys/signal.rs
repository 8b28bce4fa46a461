//! What a signal does to the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;

/// Lets SIGPIPE end the process, as it does in other tools of a pipeline (`linerate … | head`).
///
/// Rust's runtime ignores it, so that a closed pipe would show as an error of every print instead.
/// Call it once, first thing in `main`; sockets are not affected when they send with `MSG_NOSIGNAL`.
pub fn quiet_sigpipe() {
    // SAFETY: SIG_DFL installs no handler, so nothing of ours can run at a bad time, and SIGPIPE is
    // a signal whose action may be changed, so the call cannot fail.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Ends the process with `code` when one of `signals` comes again, unless it comes within
/// `grace_ns` of the first: `timeout` and some shells send the same signal twice, to the process
/// and to its group.
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
                    signal_hook::low_level::exit(code);
                }
                _ => {}
            }
        };
        // SAFETY: the action only reads a clock, exchanges an atomic number and may end the process
        // with `_exit`: all of it is allowed in a signal handler (signal-safety(7)).
        unsafe { signal_hook::low_level::register(signal, action) }?;
    }
    Ok(())
}
