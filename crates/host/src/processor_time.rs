//! Processor time of one thread (scheduler statistics) and of the machine (/proc/stat).

use std::fs;

use linerate_record::cost::{MachineTime, ProcessorTime};
use linerate_sys::thread::ThreadId;

use crate::steal::ticks_per_second;

/// Scheduler statistics of a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedStats {
    /// Time on a processor, ns. May lack up to one tick for a thread that is running now.
    pub running_ns: u64,
    /// Time on the run queue, runnable but not running, ns.
    pub runnable_ns: u64,
}

impl SchedStats {
    /// Reads a thread of this process (about 10 us). `None` when the thread has ended, or on
    /// kernels without schedstats.
    #[must_use]
    pub fn read(thread: ThreadId) -> Option<Self> {
        parse_schedstat(&fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?)
    }

    /// Returns the difference to an earlier read of the same thread.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            running_ns: self.running_ns.saturating_sub(earlier.running_ns),
            runnable_ns: self.runnable_ns.saturating_sub(earlier.runnable_ns),
        }
    }
}

/// Fields of linux Documentation/scheduler/sched-stats.rst: time on a processor, time waiting,
/// slices.
fn parse_schedstat(text: &str) -> Option<SchedStats> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    Some(SchedStats {
        running_ns: numbers.next()??,
        runnable_ns: numbers.next()??,
    })
}

/// Returns the processor that a thread of this process last ran on.
#[must_use]
pub fn last_processor(thread: ThreadId) -> Option<u32> {
    parse_last_processor(&fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?)
}

/// Field 39 of proc_pid_stat(5). Field 2 is a name in parentheses that may contain any character.
fn parse_last_processor(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(39 - 3)?.parse().ok()
}

/// Reads the time of all processors together since boot; `None` where /proc/stat is unreadable.
#[must_use]
pub fn read_machine_time() -> Option<MachineTime> {
    parse_machine_time(&fs::read_to_string("/proc/stat").ok()?, ticks_per_second())
}

/// Returns the difference between two reads of [`read_machine_time`].
#[must_use]
pub fn machine_time_since(now: &MachineTime, earlier: &MachineTime) -> MachineTime {
    MachineTime {
        processors: now.processors,
        user_ns: now.user_ns.saturating_sub(earlier.user_ns),
        system_ns: now.system_ns.saturating_sub(earlier.system_ns),
        irq_ns: now.irq_ns.saturating_sub(earlier.irq_ns),
        softirq_ns: now.softirq_ns.saturating_sub(earlier.softirq_ns),
        steal_ns: now.steal_ns.saturating_sub(earlier.steal_ns),
        idle_ns: now.idle_ns.saturating_sub(earlier.idle_ns),
    }
}

/// Reads the time of the first 64 processors since boot; empty where /proc/stat is unreadable.
#[must_use]
pub fn read_processor_times() -> Vec<ProcessorTime> {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let softirqs = fs::read_to_string("/proc/softirqs").unwrap_or_default();
    parse_processor_times(&stat, &softirqs, ticks_per_second())
}

/// Returns the differences between two reads of [`read_processor_times`].
#[must_use]
pub fn processor_times_since(
    now: &[ProcessorTime],
    earlier: &[ProcessorTime],
) -> Vec<ProcessorTime> {
    let since = |now: &ProcessorTime| {
        let before = earlier.iter().find(|before| before.cpu == now.cpu)?;
        Some(ProcessorTime {
            cpu: now.cpu,
            program_ns: now.program_ns.saturating_sub(before.program_ns),
            interrupt_ns: now.interrupt_ns.saturating_sub(before.interrupt_ns),
            steal_ns: now.steal_ns.saturating_sub(before.steal_ns),
            idle_ns: now.idle_ns.saturating_sub(before.idle_ns),
            receive_rounds: now.receive_rounds.saturating_sub(before.receive_rounds),
        })
    };
    now.iter().filter_map(since).collect()
}

/// Most processors in a list: keeps records readable.
const MAX_LISTED_PROCESSORS: usize = 64;

fn parse_processor_times(stat: &str, softirqs: &str, ticks_per_second: u64) -> Vec<ProcessorTime> {
    let tick_ns = 1_000_000_000 / ticks_per_second.max(1);
    let net_rx_counts = parse_net_rx_counts(softirqs);
    let parse_row = |line: &str| {
        let mut fields = line.split_whitespace();
        let cpu: u32 = fields.next()?.strip_prefix("cpu")?.parse().ok()?;
        let ticks: Vec<u64> = fields
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
            return None;
        };
        let ns = |ticks: u64| ticks.saturating_mul(tick_ns);
        let net_rx_count = net_rx_counts.iter().find(|(of, _)| *of == cpu);
        Some(ProcessorTime {
            cpu,
            program_ns: ns(user + nice + system),
            interrupt_ns: ns(irq + softirq),
            steal_ns: ns(steal),
            idle_ns: ns(idle + iowait),
            receive_rounds: net_rx_count.map_or(0, |&(_, net_rx_counts)| net_rx_counts),
        })
    };
    stat.lines()
        .filter_map(parse_row)
        .take(MAX_LISTED_PROCESSORS)
        .collect()
}

/// Row NET_RX of /proc/softirqs, by processor.
fn parse_net_rx_counts(softirqs: &str) -> Vec<(u32, u64)> {
    let mut lines = softirqs.lines();
    let cpus = lines.next().unwrap_or_default().split_whitespace();
    let cpus = cpus.map(|name| name.strip_prefix("CPU")?.parse().ok());
    let row = lines.find_map(|line| line.trim_start().strip_prefix("NET_RX:"));
    let counts = row.unwrap_or_default().split_whitespace();
    let counts = counts.map(|count| count.parse().ok());
    cpus.zip(counts)
        .filter_map(|(cpu, count)| Some((cpu?, count?)))
        .collect()
}

fn parse_machine_time(stat: &str, ticks_per_second: u64) -> Option<MachineTime> {
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    // proc(5): user nice system idle iowait irq softirq steal; guest time is part of user time.
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] else {
        return None;
    };
    let tick_ns = 1_000_000_000 / ticks_per_second.max(1);
    let ns = |ticks: u64| ticks.saturating_mul(tick_ns);
    Some(MachineTime {
        processors: u32::try_from(stat.lines().filter(is_processor).count()).ok()?,
        user_ns: ns(user.saturating_add(nice)),
        system_ns: ns(system),
        irq_ns: ns(irq),
        softirq_ns: ns(softirq),
        steal_ns: ns(steal),
        idle_ns: ns(idle.saturating_add(iowait)),
    })
}

/// Returns the resident memory of this process in bytes; `None` without /proc.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_move_the_fields() {
        let tail: String = (3..=52).map(|field| format!(" {field}")).collect();
        for name in ["source", "a) b", ") 1 2 (", ""] {
            assert_eq!(
                parse_last_processor(&format!("77 ({name}){tail}")),
                Some(39),
                "{name:?}"
            );
        }
        assert_eq!(parse_last_processor("77 (short) R 1 2"), None);
        assert_eq!(parse_last_processor(""), None);
    }

    #[test]
    fn schedstat_is_parsed() {
        let expected = SchedStats {
            running_ns: 596_795,
            runnable_ns: 12,
        };
        assert_eq!(parse_schedstat("596795 12 2\n"), Some(expected));
        for text in ["", "1", "1 x 2"] {
            assert_eq!(parse_schedstat(text), None, "{text:?}");
        }
    }

    #[test]
    fn machine_time_is_parsed() {
        let stat = "cpu  1 2 3 4 5 6 7 8 90 90\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 0 0 0\nintr 5\n";
        let expected = MachineTime {
            processors: 2,
            user_ns: 30_000_000,
            system_ns: 30_000_000,
            irq_ns: 60_000_000,
            softirq_ns: 70_000_000,
            steal_ns: 80_000_000,
            idle_ns: 90_000_000,
        };
        assert_eq!(parse_machine_time(stat, 100), Some(expected));
        assert_eq!(parse_machine_time("cpu  1 2 3\n", 100), None);
        assert_eq!(parse_machine_time("", 100), None);
    }

    #[test]
    fn each_processor_has_its_own_row() {
        let stat = "cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu2 1 0 0 0 0 0 0 0\nintr 5\n";
        let softirqs = "      CPU0  CPU2\n  TIMER: 1 2\n NET_RX:  30 40\n";
        let times = parse_processor_times(stat, softirqs, 100);
        let expected = ProcessorTime {
            cpu: 0,
            program_ns: 60_000_000,
            interrupt_ns: 130_000_000,
            steal_ns: 80_000_000,
            idle_ns: 90_000_000,
            receive_rounds: 30,
        };
        assert_eq!(times[0], expected);
        assert_eq!((times[1].cpu, times[1].receive_rounds), (2, 40));
        let since = processor_times_since(&times, &times);
        assert_eq!((since.len(), since[0].interrupt_ns), (2, 0));
        assert!(parse_processor_times("", "", 100).is_empty());
    }

    #[test]
    fn thread_and_machine_can_be_read() {
        let thread = ThreadId::current();
        if let Some(before) = SchedStats::read(thread) {
            let until = std::time::Instant::now() + std::time::Duration::from_millis(30);
            while std::time::Instant::now() < until {}
            // Longer than a tick of any kernel.
            let after = SchedStats::read(thread).unwrap();
            assert!(after.since(&before).running_ns > 0);
            assert!(last_processor(thread).is_some());
        } else {
            println!("skipped: the kernel has no CONFIG_SCHED_INFO");
        }
        assert!(read_machine_time().is_none_or(|time| time.processors > 0));
        assert!(resident_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
