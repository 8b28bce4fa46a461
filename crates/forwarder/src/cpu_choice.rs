//! Choice of processors for pinned threads, if the user gives none: the last free ones, because the
//! first handles the interrupts on most hosts.
//!
//! Two forwarders on the same processor would wait a time slice for each other with each burst. So
//! each forwarder samples the load of the processors, and locks the chosen ones against other
//! forwarders. The lock is on a sysfs directory of the processor, which leaves no trace.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Time over which the load is sampled: a few ticks of the kernel's accounting.
const LOAD_SAMPLE_TIME: Duration = Duration::from_millis(50);
/// Load from which on a processor counts as busy.
const BUSY_FRACTION: f64 = 0.5;

/// Processors chosen for the threads.
#[derive(Debug, Default)]
pub(super) struct ChosenCpus {
    /// Number of threads for which they were chosen.
    pub(super) threads: usize,
    /// One per thread; empty if there are fewer than threads: pinning would then only decide which
    /// of the threads waits.
    pub(super) cpus: Vec<u32>,
    /// Locks against other forwarders.
    _locks: Vec<File>,
}

impl ChosenCpus {
    /// Chooses among the processors that this process may use.
    pub(super) fn choose_from(usable: &[u32], threads: usize) -> Self {
        if usable.len() < threads {
            return Self {
                threads,
                ..Self::default()
            };
        }
        // Without a choice the load is irrelevant.
        let busy = match usable.len() == threads {
            true => BTreeMap::new(),
            false => busy_fractions(),
        };
        let mut locks = Vec::new();
        let mut lock_cpu = |cpu: u32| match try_lock(cpu) {
            CpuLock::HeldByOther => false,
            CpuLock::Unavailable => true,
            CpuLock::Acquired(file) => {
                locks.push(file);
                true
            }
        };
        let cpus = choose_cpus(usable, threads, &busy, &mut lock_cpu);
        Self {
            threads,
            cpus,
            _locks: locks,
        }
    }
}

/// Chooses the last processors that are neither busy nor locked. If there are too few, busy ones
/// follow, and then locked ones. Returns them in ascending order.
fn choose_cpus(
    usable: &[u32],
    threads: usize,
    busy: &BTreeMap<u32, f64>,
    try_lock: &mut dyn FnMut(u32) -> bool,
) -> Vec<u32> {
    let is_busy = |cpu: &u32| busy.get(cpu).is_some_and(|&share| share > BUSY_FRACTION);
    let mut chosen: Vec<u32> = Vec::new();
    let (busy_cpus, idle_cpus): (Vec<u32>, Vec<u32>) =
        usable.iter().rev().partition(|cpu| is_busy(cpu));
    for cpu in idle_cpus.iter().chain(&busy_cpus) {
        if chosen.len() < threads && try_lock(*cpu) {
            chosen.push(*cpu);
        }
    }
    for cpu in idle_cpus.iter().chain(&busy_cpus) {
        if chosen.len() < threads && !chosen.contains(cpu) {
            chosen.push(*cpu);
        }
    }
    chosen.sort_unstable();
    chosen
}

enum CpuLock {
    Acquired(File),
    HeldByOther,
    /// The kernel provides no such directory.
    Unavailable,
}

fn try_lock(cpu: u32) -> CpuLock {
    let Ok(file) = File::open(format!("/sys/devices/system/cpu/cpu{cpu}")) else {
        return CpuLock::Unavailable;
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => CpuLock::Acquired(file),
        Err(rustix::io::Errno::WOULDBLOCK) => CpuLock::HeldByOther,
        Err(_) => CpuLock::Unavailable,
    }
}

/// Returns the fraction of the last moment that each processor was busy; empty if the kernel does
/// not report it.
fn busy_fractions() -> BTreeMap<u32, f64> {
    let read = || std::fs::read_to_string("/proc/stat").map(|text| cpu_ticks(&text));
    let Ok(before) = read() else {
        return BTreeMap::new();
    };
    std::thread::sleep(LOAD_SAMPLE_TIME);
    let Ok(after) = read() else {
        return BTreeMap::new();
    };
    let share = |(cpu, (total, idle)): (&u32, &(u64, u64))| {
        let (total_before, idle_before) = before.get(cpu)?;
        let elapsed = total
            .checked_sub(*total_before)
            .filter(|&elapsed| elapsed > 0)?;
        let idle = idle.saturating_sub(*idle_before);
        Some((*cpu, 1.0 - (idle as f64 / elapsed as f64).min(1.0)))
    };
    after.iter().filter_map(share).collect()
}

/// Parses the ticks of each processor in `/proc/stat`: total and idle.
fn cpu_ticks(text: &str) -> BTreeMap<u32, (u64, u64)> {
    let cpu_line = |cpu_line: &str| {
        let mut fields = cpu_line.split_ascii_whitespace();
        let cpu = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user.
        let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or(0);
        Some((cpu, (ticks.iter().take(8).sum(), idle)))
    };
    text.lines().filter_map(cpu_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_that_are_free() {
        let lock_any = |_: u32| true;
        let busy = |list: &[(u32, f64)]| list.iter().copied().collect::<BTreeMap<_, _>>();
        let none = busy(&[]);
        assert_eq!(
            choose_cpus(&[0, 1, 2, 3], 2, &none, &mut { lock_any }),
            [2, 3]
        );
        // A busy processor and a locked one are not chosen.
        let load = busy(&[(3, 0.99), (2, 0.1)]);
        assert_eq!(
            choose_cpus(&[0, 1, 2, 3], 2, &load, &mut { lock_any }),
            [1, 2]
        );
        assert_eq!(choose_cpus(&[0, 1], 1, &none, &mut |cpu| cpu != 1), [0]);
        // If all are locked, the last one is chosen.
        assert_eq!(choose_cpus(&[0, 1], 1, &none, &mut |_| false), [1]);
        let load = busy(&[(0, 1.0), (1, 1.0)]);
        assert_eq!(choose_cpus(&[0, 1], 1, &load, &mut { lock_any }), [1]);
    }

    #[test]
    fn locked_processor_is_not_chosen_again() {
        let cpus: Vec<u32> = linerate_sys::cpu::list_usable().unwrap();
        if cpus.len() < 2 || matches!(try_lock(cpus[0]), CpuLock::Unavailable) {
            println!("skipped: one processor, or no directory of it");
            return;
        }
        let first = ChosenCpus::choose_from(&cpus, 1);
        let second = ChosenCpus::choose_from(&cpus, 1);
        // Other tests may hold the other processors.
        assert!(
            first.cpus != second.cpus || matches!(try_lock(first.cpus[0]), CpuLock::HeldByOther)
        );
    }

    #[test]
    fn ticks_are_read() {
        let text = "cpu  9 9 9 9\ncpu0 10 0 5 80 5 0 0 0 0 0\ncpu11 1 1 1 7\nintr 5\ncpux 1\n";
        let ticks = cpu_ticks(text);
        assert_eq!(ticks.get(&0), Some(&(100, 85)));
        assert_eq!(ticks.get(&11), Some(&(10, 7)));
        assert_eq!(ticks.len(), 2);
    }
}
