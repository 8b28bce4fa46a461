//! Processors: affinity and usage of threads.

use std::io;
use std::mem;

use linerate_record::plan::CpuList;

/// Fraction of its CPU below which a spinning thread was preempted by others.
pub const MIN_SPINNING_SHARE: f64 = 0.95;

/// Lists the processors that the calling thread may run on.
///
/// # Errors
/// Errors of `sched_getaffinity`; affinity masks above 1024 processors are not supported.
pub fn list_usable() -> io::Result<Vec<u32>> {
    // SAFETY: a cpu_set_t is an array of integers; all zeros is its empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the set is writable and its size is the one given.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &raw mut set) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..libc::CPU_SETSIZE as u32)
        .filter(|&cpu| {
            // SAFETY: `cpu` is below CPU_SETSIZE, so it lies within the set.
            unsafe { libc::CPU_ISSET(cpu as usize, &set) }
        })
        .collect())
}

/// Lists the processors that are online, usable by this thread or not; `None` without `/sys`.
#[must_use]
pub fn list_online() -> Option<Vec<u32>> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let CpuList(cpus) = list.trim().parse().ok()?;
    Some(cpus)
}

/// Pins the calling thread to these processors; threads it starts later inherit the affinity.
///
/// # Errors
/// `EINVAL` when none of them is online or allowed here.
pub fn pin(cpus: &[u32]) -> io::Result<()> {
    // SAFETY: as in `list_usable`.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as u32 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: `cpu` is below CPU_SETSIZE, so it lies within the set.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: the set is readable and its size is the one given.
    let result = unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &raw const set) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Least processor time with a meaningful split into user and system time where ticks sample it: 25
/// ticks at the usual 250 Hz give a share with a standard error of 0.1.
const MIN_SPLIT_NS: u64 = 100_000_000;

/// Processor time and context switches of the calling thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// User and system time, with the precision of the scheduler's clock.
    pub cpu_ns: u64,
    /// User time; sampled by ticks on kernels without precise accounting.
    pub user_ns: u64,
    /// System time; sampled in the same way.
    pub system_ns: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

impl ThreadUsage {
    /// Reads the usage of the calling thread (two system calls: keep it out of measured loops).
    #[must_use]
    pub fn read() -> Self {
        // SAFETY: rusage is plain integers; all zeros is valid.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: `usage` is a valid, writable rusage.
        let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        debug_assert_eq!(result, 0, "RUSAGE_THREAD exists since Linux 2.6.26");
        let ns = |time: libc::timeval| {
            (time.tv_sec as u64) * 1_000_000_000 + (time.tv_usec as u64) * 1_000
        };
        Self {
            cpu_ns: super::clock::thread_cpu_time(),
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
        }
    }

    /// Returns whether the processor time is long enough for a meaningful split into user and
    /// system time.
    #[must_use]
    pub fn has_reliable_split(&self) -> bool {
        self.cpu_ns >= MIN_SPLIT_NS
    }

    /// Returns the usage since an earlier reading of the same thread.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let cpu_ns = self.cpu_ns.saturating_sub(earlier.cpu_ns);
        // A tick-sampled part may exceed the exact total.
        let clamp_part = |now: u64, earlier: u64| now.saturating_sub(earlier).min(cpu_ns);
        Self {
            cpu_ns,
            user_ns: clamp_part(self.user_ns, earlier.user_ns),
            system_ns: clamp_part(self.system_ns, earlier.system_ns),
            voluntary_switches: self
                .voluntary_switches
                .saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self
                .involuntary_switches
                .saturating_sub(earlier.involuntary_switches),
        }
    }
}

/// Returns the processor that the calling thread is running on.
#[must_use]
pub fn current() -> u32 {
    // SAFETY: the call takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

/// Context switches and page faults of the calling thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadEvents {
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// Page faults resolved without I/O.
    pub minor_faults: u64,
    /// Page faults that waited for I/O.
    pub major_faults: u64,
}

impl ThreadEvents {
    /// Reads the counters (one system call).
    #[must_use]
    pub fn read() -> Self {
        // SAFETY: rusage is plain integers; all zeros is valid.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: `usage` is a valid, writable rusage.
        let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        debug_assert_eq!(result, 0, "RUSAGE_THREAD exists since Linux 2.6.26");
        Self {
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_where_it_was_put() {
        std::thread::spawn(|| {
            let cpu = *list_usable().unwrap().last().unwrap();
            pin(&[cpu]).unwrap();
            assert_eq!(list_usable().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_missing_processor_is_rejected() {
        assert!(pin(&[1023]).is_err());
        assert!(pin(&[100_000]).is_err());
    }

    #[test]
    fn the_split_of_a_few_ticks_is_not_reliable() {
        for (cpu_ns, is_reliable) in [(4_000_000, false), (99_999_999, false), (100_000_000, true)]
        {
            let usage = ThreadUsage {
                cpu_ns,
                ..ThreadUsage::default()
            };
            assert_eq!(usage.has_reliable_split(), is_reliable, "{cpu_ns}");
        }
    }

    #[test]
    fn usage_grows() {
        let before = ThreadUsage::read();
        let end = super::super::clock::now() + 2_000_000;
        while super::super::clock::now() < end {}
        assert!(ThreadUsage::read().since(&before).cpu_ns > 0);
    }
}
