//! Reports of failed system calls: situation, object and next step.

use std::io;

use linerate_record::event::ErrorReport;
use rustix::io::Errno;

/// Returns the report of a system call that should work.
#[must_use]
pub fn system_call(action: &str, source: &io::Error) -> ErrorReport {
    ErrorReport::new(
        format!("{action} failed ({source})"),
        "this host",
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => "raise the open-file limit: `ulimit -n 100000`",
            Some(Errno::NOMEM) => "free some memory, or use fewer flows",
            _ => "`linerate doctor` shows what this host can do",
        },
    )
}

/// Returns the report of a thread that cannot be started.
#[must_use]
pub fn thread(thread: &str, source: &io::Error) -> ErrorReport {
    ErrorReport::new(
        format!("cannot be started ({source})"),
        thread,
        "use fewer, or allow more: `ulimit -u`, and pids.max of the control group",
    )
}
