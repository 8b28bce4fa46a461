//! Scheduling class and priority of the calling thread.

use std::io;

use linerate_metric::plan::Sched;

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

/// Sets the calling thread to SCHED_FIFO with a priority of 1 to 99.
///
/// # Errors
/// `PermissionDenied` without CAP_SYS_NICE or a real-time limit.
pub fn fifo(priority: u8) -> io::Result<()> {
    policy(libc::SCHED_FIFO, priority)
}

/// Sets the calling thread to SCHED_RR with a priority of 1 to 99.
///
/// # Errors
/// As [`fifo`].
pub fn round_robin(priority: u8) -> io::Result<()> {
    policy(libc::SCHED_RR, priority)
}

/// Sets the calling thread to SCHED_OTHER with a nice value of -20 to 19.
///
/// # Errors
/// `PermissionDenied` for a value below the current one without CAP_SYS_NICE or a matching limit.
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

/// Returns the priority of the calling thread if it is real-time, for example because this program
/// was started so.
#[must_use]
pub fn real_time_priority() -> Option<u8> {
    real_time()?.real_time_priority()
}

/// Returns the scheduling class of the calling thread if it is real-time.
#[must_use]
pub fn real_time() -> Option<Sched> {
    // SAFETY: the call takes no pointers; thread 0 is the calling one.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // With SCHED_RESET_ON_FORK, new threads do not inherit the class: such a policy does not match
    // here.
    let class: fn(u8) -> Sched = match policy {
        libc::SCHED_FIFO => Sched::Fifo,
        libc::SCHED_RR => Sched::RoundRobin,
        _ => return None,
    };
    let mut parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is writable through the call; thread 0 is the calling one.
    let known = unsafe { libc::sched_getparam(0, &raw mut parameter) };
    let priority = u8::try_from(parameter.sched_priority).ok();
    priority.filter(|_| known == 0).map(class)
}

/// Guard that gives the calling thread a real-time priority. Otherwise real-time threads that never
/// sleep could keep it off its processor.
#[derive(Debug)]
pub struct Above {
    policy: libc::c_int,
    parameter: libc::sched_param,
    /// The change belongs to the calling thread, so the guard must be dropped there.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Above {
    /// Raises the thread above all threads of this priority; `None` without permission, or at the
    /// highest priority.
    #[must_use]
    pub fn priority(priority: u8) -> Option<Self> {
        // SAFETY: the call takes no pointers; thread 0 is the calling one.
        let before = unsafe { libc::sched_getscheduler(0) };
        let mut parameter = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameter is writable through the call; thread 0 is the calling one.
        let known = unsafe { libc::sched_getparam(0, &raw mut parameter) };
        if before < 0 || known != 0 || priority >= 99 {
            return None;
        }
        fifo(priority + 1).ok()?;
        Some(Self {
            policy: before,
            parameter,
            _not_send: std::marker::PhantomData,
        })
    }
}

impl Drop for Above {
    fn drop(&mut self) {
        // SAFETY: the parameter is readable through the call; lowering a priority is always
        // allowed.
        unsafe { libc::sched_setscheduler(0, self.policy, &raw const self.parameter) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_above_is_what_it_was_again() {
        // SAFETY: the call takes no pointers; thread 0 is the calling one.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        match Above::priority(10) {
            Some(above) => {
                assert_eq!(policy(), libc::SCHED_FIFO);
                assert_eq!(real_time(), Some(Sched::Fifo(11)));
                assert_eq!(real_time_priority(), Some(11));
                drop(above);
            }
            None => eprintln!("skipped: no CAP_SYS_NICE"),
        }
        assert_eq!(policy(), before);
        assert!(Above::priority(99).is_none(), "nothing is above");
    }

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
