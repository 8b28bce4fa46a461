//! Scheduling class and priority of the calling thread.

use std::io;

use linerate_record::plan::SchedPolicy;

fn set_policy(policy: libc::c_int, priority: u8) -> io::Result<()> {
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
pub fn set_fifo(priority: u8) -> io::Result<()> {
    set_policy(libc::SCHED_FIFO, priority)
}

/// Sets the calling thread to SCHED_RR with a priority of 1 to 99.
///
/// # Errors
/// As [`set_fifo`].
pub fn set_round_robin(priority: u8) -> io::Result<()> {
    set_policy(libc::SCHED_RR, priority)
}

/// Sets the calling thread to SCHED_OTHER with a nice value of -20 to 19.
///
/// # Errors
/// `PermissionDenied` for a value below the current one without CAP_SYS_NICE or a matching limit.
pub fn set_nice(value: i8) -> io::Result<()> {
    set_policy(libc::SCHED_OTHER, 0)?;
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
pub fn current_real_time_priority() -> Option<u8> {
    current_real_time_class()?.real_time_priority()
}

/// Returns the scheduling class of the calling thread if it is real-time.
#[must_use]
pub fn current_real_time_class() -> Option<SchedPolicy> {
    // SAFETY: the call takes no pointers; thread 0 is the calling one.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // With SCHED_RESET_ON_FORK, new threads do not inherit the class: such a policy does not match
    // here.
    let class: fn(u8) -> SchedPolicy = match policy {
        libc::SCHED_FIFO => SchedPolicy::Fifo,
        libc::SCHED_RR => SchedPolicy::RoundRobin,
        _ => return None,
    };
    let mut parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is writable through the call; thread 0 is the calling one.
    let result = unsafe { libc::sched_getparam(0, &raw mut parameter) };
    let priority = u8::try_from(parameter.sched_priority).ok();
    priority.filter(|_| result == 0).map(class)
}

/// Guard that gives the calling thread a real-time priority. Otherwise real-time threads that never
/// sleep could keep it off its processor.
#[derive(Debug)]
pub struct PriorityBoost {
    policy: libc::c_int,
    parameter: libc::sched_param,
    /// The change belongs to the calling thread, so the guard must be dropped there.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl PriorityBoost {
    /// Raises the thread above all threads of this priority; `None` without permission, or at the
    /// highest priority.
    #[must_use]
    pub fn above(priority: u8) -> Option<Self> {
        // SAFETY: the call takes no pointers; thread 0 is the calling one.
        let before = unsafe { libc::sched_getscheduler(0) };
        let mut parameter = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameter is writable through the call; thread 0 is the calling one.
        let result = unsafe { libc::sched_getparam(0, &raw mut parameter) };
        if before < 0 || result != 0 || priority >= 99 {
            return None;
        }
        set_fifo(priority + 1).ok()?;
        Some(Self {
            policy: before,
            parameter,
            _not_send: std::marker::PhantomData,
        })
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        // SAFETY: the parameter is readable through the call; lowering a priority is always
        // allowed.
        unsafe { libc::sched_setscheduler(0, self.policy, &raw const self.parameter) };
    }
}

/// Sets the scheduling class and priority of this thread.
///
/// # Errors
/// Errors of the kernel.
pub fn apply_policy(policy: SchedPolicy) -> io::Result<()> {
    match policy {
        SchedPolicy::Inherited => Ok(()),
        SchedPolicy::Nice(value) => set_nice(value),
        SchedPolicy::Fifo(priority) => set_fifo(priority),
        SchedPolicy::RoundRobin(priority) => set_round_robin(priority),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_boost_restores_the_policy() {
        // SAFETY: the call takes no pointers; thread 0 is the calling one.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        match PriorityBoost::above(10) {
            Some(boost) => {
                assert_eq!(policy(), libc::SCHED_FIFO);
                assert_eq!(current_real_time_class(), Some(SchedPolicy::Fifo(11)));
                assert_eq!(current_real_time_priority(), Some(11));
                drop(boost);
            }
            None => eprintln!("skipped: no CAP_SYS_NICE"),
        }
        assert_eq!(policy(), before);
        assert!(PriorityBoost::above(99).is_none(), "nothing is above");
    }

    #[test]
    fn a_thread_can_always_be_nicer() {
        std::thread::spawn(|| set_nice(19).unwrap()).join().unwrap();
    }

    #[test]
    fn real_time_is_set_or_denied() {
        std::thread::spawn(|| match set_fifo(1) {
            Ok(()) => set_round_robin(1).unwrap(),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        })
        .join()
        .unwrap();
    }
}
