//! What a signal does to the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock;

/// Ends the process by SIGPIPE, as other tools of a pipeline end (`linerate … | head`).
///
/// For when a write to one of the process's own streams found that its reader went away. Until then
/// the signal stays ignored, as Rust's runtime has it: a peer that goes away breaks pipes too, and
/// must cost its own test alone. Not all calls that send take `MSG_NOSIGNAL`.
pub fn end_by_sigpipe() -> ! {
    // SAFETY: SIG_DFL installs no handler, so nothing of ours can run at a bad time, and SIGPIPE is
    // a signal whose action may be changed, so the call cannot fail.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let _ = signal_hook::low_level::raise(libc::SIGPIPE);
    // Somebody blocked the signal: end as a shell would report it.
    signal_hook::low_level::exit(128 + libc::SIGPIPE)
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
