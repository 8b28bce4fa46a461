//! Tick counter with the cheapest read, for durations of single calls: a read of the kernel's clock
//! would cost more than such a call.

use std::sync::OnceLock;

use super::clock::{self, Nanos};

mod interpolated_clock;

pub use interpolated_clock::interpolated_now;

/// Source of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickSource {
    /// The processor's time-stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC, in nanoseconds.
    Clock,
}

impl TickSource {
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
pub fn choose_source() -> TickSource {
    static SOURCE: OnceLock<TickSource> = OnceLock::new();
    *SOURCE.get_or_init(|| {
        const CURRENT_CLOCKSOURCE: &str =
            "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let is_trusted =
            std::fs::read_to_string(CURRENT_CLOCKSOURCE).is_ok_and(|name| name.trim() == "tsc");
        if is_trusted && tsc_is_invariant() {
            TickSource::Tsc
        } else {
            TickSource::Clock
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
pub fn read_ticks(source: TickSource) -> u64 {
    match source {
        TickSource::Tsc => read_tsc(),
        TickSource::Clock => clock::now(),
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read_tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; where the kernel disables it
    // (PR_SET_TSC), the vDSO clock is disabled too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn read_tsc() -> u64 {
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
pub struct ClockPair {
    ticks: u64,
    ns: Nanos,
}

impl ClockPair {
    /// Reads both clocks; of a few readings, the shortest is kept.
    #[must_use]
    pub fn read(source: TickSource) -> Self {
        Self::read_within(source, 0).1
    }

    /// Reads both clocks, and stops early at a reading within `max_ticks` ticks. Returns the ticks
    /// that the reading took, too.
    fn read_within(source: TickSource, max_ticks: u64) -> (u64, Self) {
        let mut best = (u64::MAX, Self { ticks: 0, ns: 0 });
        for _ in 0..5 {
            let before = read_ticks(source);
            let ns = clock::now();
            let after = read_ticks(source);
            let duration_ticks = after.wrapping_sub(before);
            if duration_ticks < best.0 {
                let ticks = before.wrapping_add(duration_ticks / 2);
                best = (duration_ticks, Self { ticks, ns });
            }
            if duration_ticks <= max_ticks {
                break;
            }
        }
        best
    }

    /// Returns the tick rate between two readings, Hz; `None` when no time lies between them.
    #[must_use]
    pub fn tick_hz_until(&self, end: &Self) -> Option<f64> {
        let ns = end.ns.checked_sub(self.ns).filter(|&ns| ns > 0)?;
        let ticks = end.ticks.checked_sub(self.ticks).filter(|&n| n > 0)?;
        Some(ticks as f64 * 1e9 / ns as f64)
    }

    /// Converts a tick count to time at a tick rate of `tick_hz`.
    #[must_use]
    pub fn ns_at(&self, ticks: u64, tick_hz: f64) -> Nanos {
        let ahead_ns = ticks.wrapping_sub(self.ticks) as i64 as f64 * 1e9 / tick_hz;
        self.ns.saturating_add_signed(ahead_ns as i64)
    }

    /// Converts a time to a tick count at a tick rate of `tick_hz`.
    #[must_use]
    pub fn ticks_at(&self, ns: Nanos, tick_hz: f64) -> u64 {
        if ns <= self.ns {
            return self.ticks;
        }
        let ahead_ticks = (ns - self.ns) as f64 * tick_hz / 1e9;
        self.ticks.saturating_add(ahead_ticks as u64)
    }
}

/// Returns the tick rate of a source, Hz. Measured once over 5 ms: accurate to a few thousandths of
/// a percent.
#[must_use]
pub fn tick_hz(source: TickSource) -> f64 {
    static TSC_HZ: OnceLock<f64> = OnceLock::new();
    match source {
        TickSource::Clock => 1e9,
        TickSource::Tsc => *TSC_HZ.get_or_init(|| {
            const MEASURE_NS: Nanos = 5_000_000;
            let first = ClockPair::read(source);
            clock::sleep_until(clock::now() + MEASURE_NS);
            first.tick_hz_until(&ClockPair::read(source)).unwrap_or(1e9)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sources_give_the_same_time() {
        for source in [choose_source(), TickSource::Clock] {
            let tick_hz = tick_hz(source);
            let (first, started_at) = (ClockPair::read(source), clock::now());
            clock::sleep_until(started_at + 20_000_000);
            let last = ClockPair::read(source);
            let measured_hz = first.tick_hz_until(&last).unwrap();
            assert!(
                (measured_hz / tick_hz - 1.0).abs() < 0.01,
                "{source:?}: {measured_hz} {tick_hz}"
            );
            let expected_ticks = first.ticks_at(last.ns, measured_hz);
            assert!(expected_ticks.abs_diff(last.ticks) < 1_000, "{source:?}");
        }
        println!("{:?} at {} Hz", choose_source(), tick_hz(choose_source()));
    }
}
