//! Which processors threads are pinned to, where nobody says it: the last ones that are free. The first
//! one takes most machines' interrupts.
//!
//! Two forwarders that both took the last one would wait for each other, a time slice for each burst.
//! So each looks how busy processors are, and locks those that it takes for the others to see: a lock
//! on a directory of the kernel's own, which leaves nothing behind.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How long processors are watched: a few ticks of the kernel's accounting.
const WATCHED: Duration = Duration::from_millis(50);
/// A processor that works for more of that time belongs to somebody.
const BUSY: f64 = 0.5;

/// Processors that were chosen.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// For so many threads.
    pub(super) threads: usize,
    /// One for each; empty where there are fewer of them than threads: pinning would only choose which
    /// of the threads wait.
    pub(super) cpus: Vec<u32>,
    /// What keeps others off.
    _locks: Vec<File>,
}

impl Chosen {
    /// Chooses among those that this process may use.
    pub(super) fn among(usable: &[u32], threads: usize) -> Self {
        if usable.len() < threads {
            return Self {
                threads,
                ..Self::default()
            };
        }
        // Without a choice there is nothing to look at.
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

/// The last ones that are neither busy nor taken; where these are too few, of the rest those that are
/// not taken, and then any. In ascending order.
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
    /// This kernel shows no such directory.
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

/// Share of the last moment for which each processor worked; empty where the kernel does not tell.
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

/// Ticks of each processor in `/proc/stat`: all, and those without work.
fn times(text: &str) -> BTreeMap<u32, (u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
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
        // One that works is left alone, and so is one that somebody took.
        let works = busy(&[(3, 0.99), (2, 0.1)]);
        assert_eq!(choose(&[0, 1, 2, 3], 2, &works, &mut { all }), [1, 2]);
        assert_eq!(choose(&[0, 1], 1, &none, &mut |cpu| cpu != 1), [0]);
        // Where all are taken the last one has to do.
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
        // Other tests may hold the rest of them.
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
