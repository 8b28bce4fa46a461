//! The cheapest counter that time can be told from: for durations of single calls, where reading the
//! kernel's clock would cost more than it times.

use std::sync::OnceLock;

use super::clock::{self, Nanos};

mod hand;

pub use hand::now;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The processor's time-stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC, in nanoseconds.
    Clock,
}

impl Source {
    /// As the record has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tsc => "tsc",
            Self::Clock => "clock_gettime",
        }
    }
}

/// What this machine's calls are timed with: the time-stamp counter where it runs at one rate in all
/// power states and the kernel trusts it across cores (it is its own clock source), else the clock.
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

/// The counter now (9 ns for the time-stamp counter on the 2-core VM, 21 ns for the clock).
///
/// Readings of one source subtract. The processor may read a little early: nothing orders it with
/// loads and stores around it, which moves a call by a few nanoseconds.
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
    // SAFETY: every x86-64 processor has the instruction; where the kernel forbids it to programs
    // (PR_SET_TSC), it does so for the vDSO's clock too.
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
    /// AMD and Intel alike: leaf with the power management facts, and its invariance bit.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    __cpuid(0x8000_0000).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_is_invariant() -> bool {
    false
}

/// A moment on both clocks, by which counts become times.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    ticks: u64,
    ns: Nanos,
}

impl Anchor {
    /// Now, on both. Of a few readings the one with the least between them counts.
    #[must_use]
    pub fn now(source: Source) -> Self {
        Self::within(source, 0).1
    }

    /// Now, on both, by the first reading of a few that took no more steps than this, or by the shortest; with the steps
    /// that it took.
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

    /// Steps per second between two moments; `None` when no time lies between them.
    #[must_use]
    pub fn hz_until(&self, later: &Self) -> Option<f64> {
        let ns = later.ns.checked_sub(self.ns).filter(|&ns| ns > 0)?;
        let ticks = later.ticks.checked_sub(self.ticks).filter(|&n| n > 0)?;
        Some(ticks as f64 * 1e9 / ns as f64)
    }

    /// The time of the clock at which the counter shows `ticks`, at so many steps per second.
    #[must_use]
    pub fn ns_at(&self, ticks: u64, hz: f64) -> Nanos {
        let ahead = ticks.wrapping_sub(self.ticks) as i64 as f64 * 1e9 / hz;
        self.ns.saturating_add_signed(ahead as i64)
    }

    /// What the counter shows at a time of the clock, at so many steps per second.
    #[must_use]
    pub fn ticks_at(&self, ns: Nanos, hz: f64) -> u64 {
        if ns <= self.ns {
            return self.ticks;
        }
        let ahead = (ns - self.ns) as f64 * hz / 1e9;
        self.ticks.saturating_add(ahead as u64)
    }
}

/// Steps of a source per second, found once in 5 ms: good to a few thousandths of a percent.
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
