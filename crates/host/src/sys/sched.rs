//! Scheduling class and priority of the calling thread.

use std::io;

fn policy(policy: libc::c_int, priority: u8) -> io::Result<()> {
    let parameter = libc::sched_param {
        sched_priority: libc::c_int::from(priority),
    };
    // SAFETY: the parameter is readable through the call; thread 0 is the calling one.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the calling thread SCHED_FIFO with a priority of 1 to 99.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_NICE or a real-time limit.
pub fn fifo(priority: u8) -> io::Result<()> {
    policy(libc::SCHED_FIFO, priority)
}

/// Makes the calling thread SCHED_RR with a priority of 1 to 99.
///
/// # Errors
/// As [`fifo`].
pub fn round_robin(priority: u8) -> io::Result<()> {
    policy(libc::SCHED_RR, priority)
}

/// Makes the calling thread SCHED_OTHER with a nice value of -20 to 19.
///
/// # Errors
/// `PermissionDenied` for a value below the present one without CAP_SYS_NICE or a limit for it.
pub fn nice(value: i8) -> io::Result<()> {
    policy(libc::SCHED_OTHER, 0)?;
    // SAFETY: the call takes no pointers; who 0 is the calling thread on Linux.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, libc::c_int::from(value)) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_always_be_nicer() {
        std::thread::spawn(|| nice(19).unwrap()).join().unwrap();
    }

    #[test]
    fn real_time_is_given_or_refused_for_lack_of_privilege() {
        std::thread::spawn(|| match fifo(1) {
            Ok(()) => round_robin(1).unwrap(),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        })
        .join()
        .unwrap();
    }
}
