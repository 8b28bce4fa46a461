//! Hardware counters of a thread: cycles and instructions.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// Counters of the calling thread, in user and kernel mode.
pub struct HardwareCounters {
    cycles: File,
    instructions: File,
}

/// Values of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareCounts {
    pub cycles: u64,
    pub instructions: u64,
}

/// linux/perf_event.h: PERF_COUNT_HW_CPU_CYCLES and PERF_COUNT_HW_INSTRUCTIONS of
/// PERF_TYPE_HARDWARE, which is type 0.
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;

impl HardwareCounters {
    /// Starts counting.
    ///
    /// # Errors
    /// A text with the reason why this process cannot count.
    pub fn open_for_current_thread() -> Result<Self, String> {
        let open = |event| open_counter(event).map_err(|error| explain_error(&error));
        Ok(Self {
            cycles: open(CYCLES)?,
            instructions: open(INSTRUCTIONS)?,
        })
    }

    /// Reads the counters; `None` when the processor never had a free counter.
    #[must_use]
    pub fn read(&self) -> Option<HardwareCounts> {
        Some(HardwareCounts {
            cycles: read_scaled(&self.cycles)?,
            instructions: read_scaled(&self.instructions)?,
        })
    }

    /// Descriptors that this value keeps open.
    #[must_use]
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.cycles.as_raw_fd(), self.instructions.as_raw_fd()]
    }
}

fn explain_error(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            "this machine has no hardware counters (virtual machines often have none)".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "not allowed: run as root, or `sysctl kernel.perf_event_paranoid=1`".to_owned()
        }
        Some(libc::ENOSYS) => "this kernel has no perf events".to_owned(),
        _ => format!("perf_event_open: {error}"),
    }
}

/// Reads a counter and scales it up for the time in which it was not on the hardware.
fn read_scaled(mut counter: &File) -> Option<u64> {
    // Read format: count, time enabled, time running (see `open_counter`).
    let mut raw = [0; 24];
    counter.read_exact(&mut raw).ok()?;
    let u64_at = |offset: usize| {
        let bytes = raw[offset..offset + 8].try_into().expect("eight bytes");
        u64::from_ne_bytes(bytes)
    };
    let (count, enabled, running) = (u64_at(0), u64_at(8), u64_at(16));
    if running == 0 {
        // Never scheduled on the hardware: zero is correct only if the thread never ran.
        return (enabled == 0).then_some(0);
    }
    let count = u128::from(count) * u128::from(enabled) / u128::from(running);
    u64::try_from(count).ok()
}

fn open_counter(event: u64) -> io::Result<File> {
    /// First published size of `struct perf_event_attr` (Linux 2.6.31): type, size, config, sample
    /// period, sample type, read format, flags, and 16 bytes that stay zero here.
    const BYTES: usize = 64;
    /// PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING.
    const READ_FORMAT: u64 = 1 | 2;
    const CLOEXEC: libc::c_ulong = 8;
    let mut attributes = [0u8; BYTES];
    attributes[4..8].copy_from_slice(&(BYTES as u32).to_ne_bytes());
    attributes[8..16].copy_from_slice(&event.to_ne_bytes());
    attributes[32..40].copy_from_slice(&READ_FORMAT.to_ne_bytes());
    // SAFETY: the attributes are readable for the size that they state; pid 0 is this thread, on
    // any processor.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            0 as libc::pid_t,
            -1 as libc::c_int,
            -1 as libc::c_int,
            CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and no other value owns it.
    Ok(unsafe { File::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_grow_or_have_a_reason() {
        match HardwareCounters::open_for_current_thread() {
            Err(reason) => {
                assert!(!reason.is_empty());
                println!("no counters here: {reason}");
            }
            Ok(counters) => {
                let before = counters.read();
                let sum: u64 = (0..100_000u64).map(std::hint::black_box).sum();
                std::hint::black_box(sum);
                if let (Some(before), Some(after)) = (before, counters.read()) {
                    assert!(after.instructions > before.instructions + 100_000);
                }
            }
        }
    }
}
