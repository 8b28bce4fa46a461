//! Clocks and sleeping.

/// Nanoseconds of a clock. Only the difference of two readings of one clock has a meaning.
pub type Nanos = u64;

fn read_clock(clock: libc::clockid_t) -> Nanos {
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
/// The clock is common to all processes of a machine, so both ends of a lab share it.
#[inline]
#[must_use]
pub fn now() -> Nanos {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// Reads CLOCK_REALTIME: nanoseconds since 1970, the clock of the kernel's packet timestamps.
///
/// Setting the system time moves it: only for values that the kernel gives on this clock.
#[inline]
#[must_use]
pub fn now_realtime() -> Nanos {
    read_clock(libc::CLOCK_REALTIME)
}

/// Returns CLOCK_REALTIME minus CLOCK_MONOTONIC, modulo 2^64.
///
/// A run reads it once and adds it to [`now`] for its timestamps: setting the system time does not
/// move them.
#[must_use]
pub fn wall_offset() -> Nanos {
    now_realtime().wrapping_sub(now())
}

/// Returns CLOCK_TAI minus CLOCK_MONOTONIC.
#[must_use]
pub fn tai_offset() -> Nanos {
    // The shortest of several tries was not interrupted between its readings.
    let samples = (0..8).map(|_| {
        let before = now();
        let tai = read_clock(libc::CLOCK_TAI);
        let after = now();
        (after - before, tai.saturating_sub(before))
    });
    samples.min().map_or(0, |(_, offset)| offset)
}

/// Processor time used by the calling thread, with the precision of the scheduler's clock.
#[must_use]
pub fn thread_cpu_time() -> Nanos {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Sleeps until [`now`] reaches `deadline`, or until a signal arrives; never returns earlier.
///
/// The kernel may wake the thread later: timer slack (50 us by default) and a halted core add to
/// it.
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
        let before = thread_cpu_time();
        let end = now() + 1_000_000;
        while now() < end {}
        assert!(thread_cpu_time() > before);
    }
}
