//! Settings of a child process between fork and exec, and its exit state.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, set_parent_process_death_signal, waitid,
};

/// Exit of a child that has not been reaped yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Exited with this code.
    With(i32),
    /// Killed by a signal, or unknown.
    Otherwise,
}

/// Returns how a child has exited, or `None` while it runs. The child is not reaped, so its process
/// id and group id are not reused yet.
#[must_use]
pub fn ended(child: &Child) -> Option<Ended> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        Ok(None) => None,
        Ok(Some(status)) => Some((status.exit_status()).map_or(Ended::Otherwise, Ended::With)),
        Err(_) => Some(Ended::Otherwise),
    }
}

/// Makes the kernel send SIGTERM to the program when the thread that starts it ends, for whatever
/// reason. A process that is killed cannot stop its children otherwise. Programs that the child
/// starts are not covered.
///
/// So the starting thread has to live as long as the program should run.
pub fn end_with_thread(command: &mut Command) {
    let parent = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have ended before the request.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls and builds a result without
    // allocation: this is allowed after a fork of a multi-threaded process (signal-safety(7)).
    unsafe { command.pre_exec(ask) };
}

/// Makes a program ignore the signals that a terminal sends to its foreground group: hang-up,
/// Ctrl-C, Ctrl-\\.
///
/// The program stays in the process group of this process, so that it may read from the terminal:
/// in a background group the terminal would stop it.
pub fn deaf_to_terminal(command: &mut Command) {
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
    fn how_a_program_ended_is_told_until_it_is_waited_for() {
        for (script, told) in [
            ("exit 0", Ended::With(0)),
            ("exit 3", Ended::With(3)),
            ("kill -9 $$", Ended::Otherwise),
        ] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let how = loop {
                match ended(&child) {
                    Some(how) => break how,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((how, ended(&child)), (told, Some(told)), "{script}");
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_comes_from_the_terminal_is_not_heard() {
        let mut command = Command::new("sh");
        command.args(["-c", "for s in HUP INT QUIT; do kill -$s $$; done; exit 7"]);
        deaf_to_terminal(&mut command);
        assert_eq!(command.status().unwrap().code(), Some(7));
    }

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
