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
const WATCHED: Duration = Duration::from_millis(50);
/// Load from which on a processor counts as busy.
const BUSY: f64 = 0.5;

/// Processors chosen for the threads.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Number of threads for which they were chosen.
    pub(super) threads: usize,
    /// One per thread; empty if there are fewer than threads: pinning would then only decide which
    /// of the threads waits.
    pub(super) cpus: Vec<u32>,
    /// Locks against other forwarders.
    _locks: Vec<File>,
}

impl Chosen {
    /// Chooses among the processors that this process may use.
    pub(super) fn among(usable: &[u32], threads: usize) -> Self {
        if usable.len() < threads {
            return Self {
                threads,
                ..Self::default()
            };
        }
        // Without a choice the load is irrelevant.
        let busy = match usable.len() == threads {
            true => BTreeMap::new(),
            false => busy(),
        };
        let mut locks = Vec::new();
        let mut lock = |cpu: u32| match locked(cpu) {
            Lock::Taken => false,
            Lock::Unknown => true,
            Lock::Ours(file) => {
                locks.push(file);
                true
            }
        };
        let cpus = choose(usable, threads, &busy, &mut lock);
        Self {
            threads,
            cpus,
            _locks: locks,
        }
    }
}

/// Chooses the last processors that are neither busy nor locked. If there are too few, busy ones
/// follow, and then locked ones. Returns them in ascending order.
fn choose(
    usable: &[u32],
    threads: usize,
    busy: &BTreeMap<u32, f64>,
    take: &mut dyn FnMut(u32) -> bool,
) -> Vec<u32> {
    let is_busy = |cpu: &u32| busy.get(cpu).is_some_and(|&share| share > BUSY);
    let mut chosen: Vec<u32> = Vec::new();
    let (worked, idle): (Vec<u32>, Vec<u32>) = usable.iter().rev().partition(|cpu| is_busy(cpu));
    for cpu in idle.iter().chain(&worked) {
        if chosen.len() < threads && take(*cpu) {
            chosen.push(*cpu);
        }
    }
    for cpu in idle.iter().chain(&worked) {
        if chosen.len() < threads && !chosen.contains(cpu) {
            chosen.push(*cpu);
        }
    }
    chosen.sort_unstable();
    chosen
}

enum Lock {
    Ours(File),
    Taken,
    /// The kernel provides no such directory.
    Unknown,
}

fn locked(cpu: u32) -> Lock {
    let Ok(file) = File::open(format!("/sys/devices/system/cpu/cpu{cpu}")) else {
        return Lock::Unknown;
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Lock::Ours(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Lock::Taken,
        Err(_) => Lock::Unknown,
    }
}

/// Returns the fraction of the last moment that each processor was busy; empty if the kernel does
/// not report it.
fn busy() -> BTreeMap<u32, f64> {
    let read = || std::fs::read_to_string("/proc/stat").map(|text| times(&text));
    let Ok(before) = read() else {
        return BTreeMap::new();
    };
    std::thread::sleep(WATCHED);
    let Ok(after) = read() else {
        return BTreeMap::new();
    };
    let share = |(cpu, (all, idle)): (&u32, &(u64, u64))| {
        let (all_before, idle_before) = before.get(cpu)?;
        let passed = all.checked_sub(*all_before).filter(|&passed| passed > 0)?;
        let idle = idle.saturating_sub(*idle_before);
        Some((*cpu, 1.0 - (idle as f64 / passed as f64).min(1.0)))
    };
    after.iter().filter_map(share).collect()
}

/// Parses the ticks of each processor in `/proc/stat`: total and idle.
fn times(text: &str) -> BTreeMap<u32, (u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user.
        let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or(0);
        Some((cpu, (ticks.iter().take(8).sum(), idle)))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_that_are_free() {
        let all = |_: u32| true;
        let busy = |list: &[(u32, f64)]| list.iter().copied().collect::<BTreeMap<_, _>>();
        let none = busy(&[]);
        assert_eq!(choose(&[0, 1, 2, 3], 2, &none, &mut { all }), [2, 3]);
        // A busy processor and a locked one are not chosen.
        let works = busy(&[(3, 0.99), (2, 0.1)]);
        assert_eq!(choose(&[0, 1, 2, 3], 2, &works, &mut { all }), [1, 2]);
        assert_eq!(choose(&[0, 1], 1, &none, &mut |cpu| cpu != 1), [0]);
        // If all are locked, the last one is chosen.
        assert_eq!(choose(&[0, 1], 1, &none, &mut |_| false), [1]);
        let works = busy(&[(0, 1.0), (1, 1.0)]);
        assert_eq!(choose(&[0, 1], 1, &works, &mut { all }), [1]);
    }

    #[test]
    fn what_one_takes_another_leaves() {
        let cpus: Vec<u32> = linerate_host::sys::cpu::usable().unwrap();
        if cpus.len() < 2 || matches!(locked(cpus[0]), Lock::Unknown) {
            println!("skipped: one processor, or no directory of it");
            return;
        }
        let one = Chosen::among(&cpus, 1);
        let other = Chosen::among(&cpus, 1);
        // Other tests may hold the other processors.
        assert!(one.cpus != other.cpus || matches!(locked(one.cpus[0]), Lock::Taken));
    }

    #[test]
    fn ticks_are_read() {
        let text = "cpu  9 9 9 9\ncpu0 10 0 5 80 5 0 0 0 0 0\ncpu11 1 1 1 7\nintr 5\ncpux 1\n";
        let found = times(text);
        assert_eq!(found.get(&0), Some(&(100, 85)));
        assert_eq!(found.get(&11), Some(&(10, 7)));
        assert_eq!(found.len(), 2);
    }
}
