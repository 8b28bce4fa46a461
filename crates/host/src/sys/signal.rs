//! What a signal does to the process.

/// Lets SIGPIPE end the process, as it does in other tools of a pipeline (`linerate … | head`).
///
/// Rust's runtime ignores it, so that a closed pipe would show as an error of every print instead.
/// Call it once, first thing in `main`; sockets are not affected when they send with `MSG_NOSIGNAL`.
pub fn quiet_sigpipe() {
    // SAFETY: SIG_DFL installs no handler, so nothing of ours can run at a bad time, and SIGPIPE is
    // a signal whose action may be changed, so the call cannot fail.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
