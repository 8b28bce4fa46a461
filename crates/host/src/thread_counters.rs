//! Kernel counters of one thread and its processor, read before and after a wait to explain it.
//!
//! The files stay open and are read into fixed buffers: a read allocates nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::steal::ticks_per_second;
use crate::sys::clock::{self, Nanos};
use crate::sys::cpu::{ThreadEvents, current};

/// Softirqs that a network round trip causes itself (linux/interrupt.h, names as in
/// /proc/softirqs).
const OWN_SOFTIRQS: &[&[u8]] = &[b"NET_TX", b"NET_RX"];

/// Buffer for /proc/softirqs: ten rows of eleven characters per processor, up to 256 processors.
const SOFTIRQS_ROOM: usize = 32 << 10;

/// Buffer for the processor rows of /proc/stat.
const STAT_ROOM: usize = 32 << 10;

/// Counters of the calling thread and of the processor it runs on, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub at_ns: Nanos,
    /// Processor that the thread ran on.
    pub cpu: u32,
    /// Context switches and page faults of the thread.
    pub events: ThreadEvents,
    /// Time that the thread was runnable but not running; `None` on kernels without schedstats.
    pub run_delay_ns: Option<u64>,
    /// Softirqs on that processor except the network ones: timers, scheduler, RCU, block.
    pub other_softirqs: Option<u64>,
    /// Time that the hypervisor took from that processor, in ticks of /proc/stat.
    pub steal_ticks: Option<u64>,
}

/// Reader of the counters of the thread that opened it.
#[derive(Debug)]
pub struct Evidence {
    schedstat: Option<File>,
    softirqs: Option<File>,
    stat: Option<File>,
    room: Vec<u8>,
}

impl Evidence {
    /// Opens the counter files. A counter whose file is missing is `None` in every read.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            softirqs: File::open("/proc/softirqs").ok(),
            stat: File::open("/proc/stat").ok(),
            room: vec![0; SOFTIRQS_ROOM.max(STAT_ROOM)],
        }
    }

    /// Reads all counters. Takes about 10 to 20 us: keep it outside of timed code.
    pub fn read(&mut self) -> Reading {
        let cpu = current();
        Reading {
            cpu,
            events: ThreadEvents::now(),
            run_delay_ns: read(self.schedstat.as_ref(), &mut self.room).and_then(run_delay),
            other_softirqs: read(self.softirqs.as_ref(), &mut self.room)
                .and_then(|text| other_softirqs(text, cpu)),
            steal_ticks: read(self.stat.as_ref(), &mut self.room).and_then(|text| steal(text, cpu)),
            at_ns: clock::now(),
        }
    }
}

/// Returns the length of one tick of steal time.
#[must_use]
pub fn steal_tick_ns() -> u64 {
    1_000_000_000 / ticks_per_second().max(1)
}

fn read<'a>(file: Option<&File>, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let bytes = file?.read_at(room, 0).ok()?;
    Some(&room[..bytes])
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Second number: time on the run queue (Documentation/scheduler/sched-stats.rst).
fn run_delay(text: &[u8]) -> Option<u64> {
    words(text).nth(1).and_then(number)
}

/// Sums the column of one processor without the network rows.
fn other_softirqs(text: &[u8], cpu: u32) -> Option<u64> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let mut wanted = [0; 16];
    let length = {
        use std::io::Write;
        let mut rest = &mut wanted[..];
        write!(rest, "CPU{cpu}").ok()?;
        16 - rest.len()
    };
    let wanted = &wanted[..length];
    let column = words(lines.next()?).position(|name| name == wanted)?;
    let mut sum = 0u64;
    let mut seen = false;
    for line in lines {
        let mut row = words(line);
        let Some(name) = row.next() else { continue };
        let name = name.strip_suffix(b":").unwrap_or(name);
        if OWN_SOFTIRQS.contains(&name) {
            continue;
        }
        sum = sum.saturating_add(row.nth(column).and_then(number)?);
        seen = true;
    }
    seen.then_some(sum)
}

/// Eighth number in the row of a processor (proc_stat(5)).
fn steal(text: &[u8], cpu: u32) -> Option<u64> {
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let mut row = words(line);
        let name = row.next()?;
        let own = name.strip_prefix(b"cpu").and_then(number)?;
        (own == u64::from(cpu)).then(|| row.nth(7).and_then(number))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(run_delay(b"1234 5678 9\n"), Some(5678));
        assert_eq!(run_delay(b"1234\n"), None);
        let softirqs = b"                    CPU0       CPU1       \n          HI:          1          2\n       TIMER:         10         20\n      NET_RX:        100        200\n       SCHED:          3          4\n";
        assert_eq!(other_softirqs(softirqs, 0), Some(14));
        assert_eq!(other_softirqs(softirqs, 1), Some(26));
        assert_eq!(other_softirqs(softirqs, 2), None);
        assert_eq!(other_softirqs(b"", 0), None);
        let stat = b"cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 5 0 0\ncpu1 1 1 1 1 1 1 1 6 0 0\nintr 5\n";
        assert_eq!(steal(stat, 1), Some(6));
        assert_eq!(steal(stat, 7), None);
        assert_eq!(steal(b"cpu0 1 2\n", 0), None);
    }

    #[test]
    fn this_thread_can_be_read() {
        let mut evidence = Evidence::of_this_thread();
        let before = evidence.read();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let after = evidence.read();
        assert!(after.at_ns > before.at_ns);
        assert!(after.events.voluntary_switches > before.events.voluntary_switches);
        if before.run_delay_ns.is_none() {
            println!("needs CONFIG_SCHED_INFO");
        }
        assert!(after.run_delay_ns >= before.run_delay_ns);
        assert!(steal_tick_ns() > 0);
    }
}
