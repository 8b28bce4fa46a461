//! What a process that is started is given on its way, between fork and exec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has a program hear SIGTERM when the thread that starts it is gone, whatever ended that: a process that is
/// killed can tell its programs nothing. What the program starts in turn does not hear it.
///
/// So whoever starts it has to stay in that thread while it is to run.
pub fn end_with_thread(command: &mut Command) {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // It may have ended before it was asked for.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and builds a result that takes no
    // memory: all of it is allowed after a fork of a process with several threads (signal-safety(7)).
    unsafe { command.pre_exec(ask) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::thread;

    use super::*;

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let starter = thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_thread(&mut command);
            command.arg("1000").spawn().unwrap()
        });
        let mut child = starter.join().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    }
}
