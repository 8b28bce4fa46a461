//! Clocks and sleeping.

/// Nanoseconds of a clock; two readings subtract, one alone means nothing.
pub type Nanos = u64;

fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid, writable timespec for the whole call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    debug_assert_eq!(result, 0, "these clocks exist since Linux 2.6.12");
    // No clock runs below zero, and tv_nsec is below 10^9 by definition.
    (time.tv_sec as u64) * 1_000_000_000 + (time.tv_nsec as u64)
}

/// Reads CLOCK_MONOTONIC (about 20 ns through the vDSO).
///
/// The same for all processes of a machine, so both ends of a lab share it.
#[inline]
#[must_use]
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// Reads CLOCK_REALTIME: nanoseconds since 1970, as the kernel stamps packets.
///
/// Whoever sets the time moves it; only for what the kernel gives on this clock.
#[inline]
#[must_use]
pub fn real() -> Nanos {
    read(libc::CLOCK_REALTIME)
}

/// What CLOCK_TAI shows beyond [`now`].
#[must_use]
pub fn tai_ahead() -> Nanos {
    // One of several tries is not interrupted between its two readings.
    let tries = (0..8).map(|_| {
        let before = now();
        let tai = read(libc::CLOCK_TAI);
        let after = now();
        (after - before, tai.saturating_sub(before))
    });
    tries.min().map_or(0, |(_, ahead)| ahead)
}

/// Processor time that the calling thread has used, exact to the scheduler's clock.
#[must_use]
pub fn thread_cpu() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps until [`now`] would return `deadline`, or until a signal; never returns early by itself.
///
/// The kernel may wake later: its timer slack (50 us unless changed) and a halted core add to it.
pub fn sleep_until(deadline: Nanos) {
    let time = libc::timespec {
        tv_sec: (deadline / 1_000_000_000) as libc::time_t,
        tv_nsec: (deadline % 1_000_000_000) as _,
    };
    // SAFETY: `time` outlives the call; an absolute sleep has no remainder to write, so null is
    // allowed for it.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const time,
            std::ptr::null_mut(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_reaches_the_deadline() {
        let deadline = now() + 2_000_000;
        sleep_until(deadline);
        assert!(now() >= deadline);
    }

    #[test]
    fn processor_time_passes_while_working() {
        let before = thread_cpu();
        let end = now() + 1_000_000;
        while now() < end {}
        assert!(thread_cpu() > before);
    }
}
