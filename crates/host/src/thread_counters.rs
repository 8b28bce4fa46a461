//! Kernel counters of one thread and its processor, read before and after a wait to explain it.
//!
//! The files stay open and are read into fixed buffers: a read allocates nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu::{ThreadEvents, current};

use crate::steal::ticks_per_second;

/// Softirqs that a network round trip causes itself (linux/interrupt.h, names as in
/// /proc/softirqs).
const NETWORK_SOFTIRQS: &[&[u8]] = &[b"NET_TX", b"NET_RX"];

/// Buffer for /proc/softirqs: ten rows of eleven characters per processor, up to 256 processors.
const SOFTIRQS_BUFFER_BYTES: usize = 32 << 10;

/// Buffer for the processor rows of /proc/stat.
const STAT_BUFFER_BYTES: usize = 32 << 10;

/// Counters of the calling thread and of the processor it runs on, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounters {
    pub at_ns: Nanos,
    /// Processor that the thread ran on.
    pub cpu: u32,
    /// Context switches and page faults of the thread.
    pub events: ThreadEvents,
    /// Time that the thread was runnable but not running; `None` on kernels without schedstats.
    pub run_delay_ns: Option<u64>,
    /// Softirqs on that processor except the network ones: timers, scheduler, RCU, block.
    pub non_network_softirqs: Option<u64>,
    /// Time that the hypervisor took from that processor, in ticks of /proc/stat.
    pub steal_ticks: Option<u64>,
}

/// Reader of the counters of the thread that opened it.
#[derive(Debug)]
pub struct ThreadCounterReader {
    schedstat: Option<File>,
    softirqs: Option<File>,
    stat: Option<File>,
    buffer: Vec<u8>,
}

impl ThreadCounterReader {
    /// Opens the counter files. A counter whose file is missing is `None` in every read.
    #[must_use]
    pub fn for_current_thread() -> Self {
        Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            softirqs: File::open("/proc/softirqs").ok(),
            stat: File::open("/proc/stat").ok(),
            buffer: vec![0; SOFTIRQS_BUFFER_BYTES.max(STAT_BUFFER_BYTES)],
        }
    }

    /// Reads all counters. Takes about 10 to 20 us: keep it outside of timed code.
    pub fn sample(&mut self) -> ThreadCounters {
        let cpu = current();
        ThreadCounters {
            cpu,
            events: ThreadEvents::read(),
            run_delay_ns: read_file(self.schedstat.as_ref(), &mut self.buffer)
                .and_then(parse_run_delay),
            non_network_softirqs: read_file(self.softirqs.as_ref(), &mut self.buffer)
                .and_then(|text| sum_non_network_softirqs(text, cpu)),
            steal_ticks: read_file(self.stat.as_ref(), &mut self.buffer)
                .and_then(|text| parse_steal(text, cpu)),
            at_ns: clock::now(),
        }
    }
}

/// Returns the length of one tick of steal time.
#[must_use]
pub fn steal_tick_ns() -> u64 {
    1_000_000_000 / ticks_per_second().max(1)
}

fn read_file<'a>(file: Option<&File>, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let bytes = file?.read_at(buffer, 0).ok()?;
    Some(&buffer[..bytes])
}

fn split_fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
}

fn parse_number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Second number: time on the run queue (Documentation/scheduler/sched-stats.rst).
fn parse_run_delay(text: &[u8]) -> Option<u64> {
    split_fields(text).nth(1).and_then(parse_number)
}

/// Sums the column of one processor without the network rows.
fn sum_non_network_softirqs(text: &[u8], cpu: u32) -> Option<u64> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let mut column_name = [0; 16];
    let length = {
        use std::io::Write;
        let mut rest = &mut column_name[..];
        write!(rest, "CPU{cpu}").ok()?;
        16 - rest.len()
    };
    let column_name = &column_name[..length];
    let column = split_fields(lines.next()?).position(|name| name == column_name)?;
    let mut sum = 0u64;
    let mut has_row = false;
    for line in lines {
        let mut fields = split_fields(line);
        let Some(name) = fields.next() else { continue };
        let name = name.strip_suffix(b":").unwrap_or(name);
        if NETWORK_SOFTIRQS.contains(&name) {
            continue;
        }
        sum = sum.saturating_add(fields.nth(column).and_then(parse_number)?);
        has_row = true;
    }
    has_row.then_some(sum)
}

/// Eighth number in the row of a processor (proc_stat(5)).
fn parse_steal(text: &[u8], cpu: u32) -> Option<u64> {
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = split_fields(line);
        let name = fields.next()?;
        let cpu_number = name.strip_prefix(b"cpu").and_then(parse_number)?;
        (cpu_number == u64::from(cpu)).then(|| fields.nth(7).and_then(parse_number))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(parse_run_delay(b"1234 5678 9\n"), Some(5678));
        assert_eq!(parse_run_delay(b"1234\n"), None);
        let softirqs = b"                    CPU0       CPU1       \n          HI:          1          2\n       TIMER:         10         20\n      NET_RX:        100        200\n       SCHED:          3          4\n";
        assert_eq!(sum_non_network_softirqs(softirqs, 0), Some(14));
        assert_eq!(sum_non_network_softirqs(softirqs, 1), Some(26));
        assert_eq!(sum_non_network_softirqs(softirqs, 2), None);
        assert_eq!(sum_non_network_softirqs(b"", 0), None);
        let stat = b"cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 5 0 0\ncpu1 1 1 1 1 1 1 1 6 0 0\nintr 5\n";
        assert_eq!(parse_steal(stat, 1), Some(6));
        assert_eq!(parse_steal(stat, 7), None);
        assert_eq!(parse_steal(b"cpu0 1 2\n", 0), None);
    }

    #[test]
    fn the_current_thread_can_be_read() {
        let mut reader = ThreadCounterReader::for_current_thread();
        let before = reader.sample();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let after = reader.sample();
        assert!(after.at_ns > before.at_ns);
        assert!(after.events.voluntary_switches > before.events.voluntary_switches);
        if before.run_delay_ns.is_none() {
            println!("needs CONFIG_SCHED_INFO");
        }
        assert!(after.run_delay_ns >= before.run_delay_ns);
        assert!(steal_tick_ns() > 0);
    }
}
