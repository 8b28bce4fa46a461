//! Settings of a child process between fork and exec, and its exit state.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, set_parent_process_death_signal, waitid,
};

/// Exit of a child that has not been reaped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    /// Exited with this code.
    Code(i32),
    /// Killed by a signal, or unknown.
    SignalOrUnknown,
}

/// Returns how a child has exited, or `None` while it runs. The child is not reaped, so its process
/// id and group id are not reused yet.
#[must_use]
pub fn poll_exit(child: &Child) -> Option<ChildExit> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        Ok(None) => None,
        Ok(Some(status)) => {
            Some((status.exit_status()).map_or(ChildExit::SignalOrUnknown, ChildExit::Code))
        }
        Err(_) => Some(ChildExit::SignalOrUnknown),
    }
}

/// Makes the kernel send SIGTERM to the program when the thread that starts it ends, for whatever
/// reason. A process that is killed cannot stop its children otherwise. Programs that the child
/// starts are not covered.
///
/// So the starting thread has to live as long as the program should run.
pub fn terminate_with_thread(command: &mut Command) {
    let parent = getpid();
    let set_death_signal = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have ended before the request.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and builds a result without
    // allocation: this is allowed after a fork of a multi-threaded process (signal-safety(7)).
    unsafe { command.pre_exec(set_death_signal) };
}

/// Makes a program ignore the signals that a terminal sends to its foreground group: hang-up,
/// Ctrl-C, Ctrl-\\.
///
/// The program stays in the process group of this process, so that it may read from the terminal:
/// in a background group the terminal would stop it.
pub fn ignore_terminal_signals(command: &mut Command) {
    let ignore = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: no handler is installed, and these signals may be ignored.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes three system calls, which is allowed after a
    // fork of a multi-threaded process (signal-safety(7)).
    unsafe { command.pre_exec(ignore) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::thread;

    use super::*;

    #[test]
    fn the_exit_is_reported_until_the_child_is_reaped() {
        for (script, expected) in [
            ("exit 0", ChildExit::Code(0)),
            ("exit 3", ChildExit::Code(3)),
            ("kill -9 $$", ChildExit::SignalOrUnknown),
        ] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let exit = loop {
                match poll_exit(&child) {
                    Some(exit) => break exit,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(
                (exit, poll_exit(&child)),
                (expected, Some(expected)),
                "{script}"
            );
            child.wait().unwrap();
        }
    }

    #[test]
    fn terminal_signals_are_ignored() {
        let mut command = Command::new("sh");
        command.args(["-c", "for s in HUP INT QUIT; do kill -$s $$; done; exit 7"]);
        ignore_terminal_signals(&mut command);
        assert_eq!(command.status().unwrap().code(), Some(7));
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let starter = thread::spawn(|| {
            let mut command = Command::new("sleep");
            terminate_with_thread(&mut command);
            command.arg("1000").spawn().unwrap()
        });
        let mut child = starter.join().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    }
}
