//! Tick counter with the cheapest read, for durations of single calls: a read of the kernel's clock
//! would cost more than such a call.

use std::sync::OnceLock;

use super::clock::{self, Nanos};

mod interpolated_clock;

pub use interpolated_clock::now;

/// Source of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The processor's time-stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC, in nanoseconds.
    Clock,
}

impl Source {
    /// Returns the name used in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tsc => "tsc",
            Self::Clock => "clock_gettime",
        }
    }
}

/// Returns the source for this machine: the time-stamp counter where its rate is constant in all
/// power states and the kernel trusts it across cores (as its clock source), else the clock.
#[must_use]
pub fn source() -> Source {
    static FOUND: OnceLock<Source> = OnceLock::new();
    *FOUND.get_or_init(|| {
        const KERNELS_OWN: &str =
            "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let trusted = std::fs::read_to_string(KERNELS_OWN).is_ok_and(|name| name.trim() == "tsc");
        if trusted && tsc_is_invariant() {
            Source::Tsc
        } else {
            Source::Clock
        }
    })
}

/// Reads the counter (9 ns for the time-stamp counter on the 2-core VM, 21 ns for the clock).
///
/// Only differences of one source have a meaning. The processor may execute the read slightly
/// early, because it is not ordered with surrounding loads and stores: an error of a few
/// nanoseconds.
#[inline]
#[must_use]
pub fn read(source: Source) -> u64 {
    match source {
        Source::Tsc => tsc(),
        Source::Clock => clock::now(),
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; where the kernel disables it
    // (PR_SET_TSC), the vDSO clock is disabled too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn tsc() -> u64 {
    clock::now()
}

#[cfg(target_arch = "x86_64")]
fn tsc_is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    /// CPUID leaf with the power management features, and its invariant-TSC bit; equal for AMD and
    /// Intel.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    __cpuid(0x8000_0000).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_is_invariant() -> bool {
    false
}

/// Simultaneous reading of both clocks, used to convert ticks to time.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    ticks: u64,
    ns: Nanos,
}

impl Anchor {
    /// Reads both clocks; of a few readings, the shortest is kept.
    #[must_use]
    pub fn now(source: Source) -> Self {
        Self::within(source, 0).1
    }

    /// Reads both clocks, and stops early at a reading within `steps` ticks. Returns the ticks that
    /// the reading took, too.
    fn within(source: Source, steps: u64) -> (u64, Self) {
        let mut best = (u64::MAX, Self { ticks: 0, ns: 0 });
        for _ in 0..5 {
            let before = read(source);
            let ns = clock::now();
            let after = read(source);
            let width = after.wrapping_sub(before);
            if width < best.0 {
                let ticks = before.wrapping_add(width / 2);
                best = (width, Self { ticks, ns });
            }
            if width <= steps {
                break;
            }
        }
        best
    }

    /// Returns the tick rate between two readings, Hz; `None` when no time lies between them.
    #[must_use]
    pub fn hz_until(&self, later: &Self) -> Option<f64> {
        let ns = later.ns.checked_sub(self.ns).filter(|&ns| ns > 0)?;
        let ticks = later.ticks.checked_sub(self.ticks).filter(|&n| n > 0)?;
        Some(ticks as f64 * 1e9 / ns as f64)
    }

    /// Converts a tick count to time at a tick rate of `hz`.
    #[must_use]
    pub fn ns_at(&self, ticks: u64, hz: f64) -> Nanos {
        let ahead = ticks.wrapping_sub(self.ticks) as i64 as f64 * 1e9 / hz;
        self.ns.saturating_add_signed(ahead as i64)
    }

    /// Converts a time to a tick count at a tick rate of `hz`.
    #[must_use]
    pub fn ticks_at(&self, ns: Nanos, hz: f64) -> u64 {
        if ns <= self.ns {
            return self.ticks;
        }
        let ahead = (ns - self.ns) as f64 * hz / 1e9;
        self.ticks.saturating_add(ahead as u64)
    }
}

/// Returns the tick rate of a source, Hz. Measured once over 5 ms: accurate to a few thousandths of
/// a percent.
#[must_use]
pub fn hz(source: Source) -> f64 {
    static FOUND: OnceLock<f64> = OnceLock::new();
    match source {
        Source::Clock => 1e9,
        Source::Tsc => *FOUND.get_or_init(|| {
            const LONG_ENOUGH_NS: Nanos = 5_000_000;
            let first = Anchor::now(source);
            clock::sleep_until(clock::now() + LONG_ENOUGH_NS);
            first.hz_until(&Anchor::now(source)).unwrap_or(1e9)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sources_tell_the_same_time() {
        for source in [source(), Source::Clock] {
            let hz = hz(source);
            let (first, began) = (Anchor::now(source), clock::now());
            clock::sleep_until(began + 20_000_000);
            let last = Anchor::now(source);
            let found = first.hz_until(&last).unwrap();
            assert!((found / hz - 1.0).abs() < 0.01, "{source:?}: {found} {hz}");
            let there = first.ticks_at(last.ns, found);
            assert!(there.abs_diff(last.ticks) < 1_000, "{source:?}");
        }
        println!("{:?} at {} Hz", source(), hz(source()));
    }
}
