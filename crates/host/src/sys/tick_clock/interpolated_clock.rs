//! Clock of a thread, interpolated from the tick counter between two reads of the kernel's clock.

use std::cell::Cell;

use super::{Anchor, Source, source, tsc};
use crate::sys::clock::{self, Nanos};

/// Time between two reads of the kernel's clock.
const WINDOW_NS: Nanos = 1_000_000;

/// Least time over which the rate is measured: two readings with errors of 20 ns each give it to 4
/// ppm, which is 4 ns in a window.
const RATE_NS: Nanos = 10_000_000;

/// Time over which the rate is measured in the long run (up to twice as long): its error is
/// smaller, and it follows corrections of the clock.
const LONG_NS: Nanos = 500_000_000;

const _: () = assert!(WINDOW_NS < RATE_NS && RATE_NS < LONG_NS);

/// Tolerated error at the end of a window, and the tolerated fraction of the window. Beyond their
/// sum, counter and clock no longer match the measured rate.
const OFF_NS: Nanos = 2_000;
const OFF_SHARE: u64 = 1_000;

/// Plausible tick rates of a processor.
const PLAUSIBLE_HZ: std::ops::Range<f64> = 1e8..1e10;

/// Most ticks of an uninterrupted reading of both clocks: usual ones take 150 to 250, interrupted
/// ones thousands. The error of such a reading is at most half of them, 100 ns.
const UNDISTURBED_STEPS: u64 = 500;

/// Fractional bits of a rate.
const RATE_BITS: u32 = 32;

/// Interpolated clock: reading of both clocks at the start of a window, and the rate from there on.
#[derive(Clone, Copy)]
struct Hand {
    at: Anchor,
    /// Nanoseconds per 2^32 ticks.
    rate: u64,
    /// Ticks in the window; 0: the rate is unknown, and `at` holds the latest time returned.
    steps: u64,
    /// Reading from which the rate is measured.
    base: Anchor,
    /// Next base, used once it is [`LONG_NS`] old.
    later: Anchor,
}

const NEVER: Anchor = Anchor { ticks: 0, ns: 0 };

impl Hand {
    const UNKNOWN: Self = Self::from(NEVER, 0);

    /// Starts to measure the rate; times before `latest_ns` must not be returned any more.
    const fn from(base: Anchor, told: Nanos) -> Self {
        Self {
            at: Anchor { ticks: 0, ns: told },
            rate: 0,
            steps: 0,
            base,
            later: base,
        }
    }

    /// Waits for [`RATE_NS`] before it starts to measure the rate, because the last reading was
    /// interrupted.
    const fn waiting(now: Nanos, told: Nanos) -> Self {
        // No tick count exceeds this one: the value is never used for a rate.
        let ticks = u64::MAX;
        Self::from(Anchor { ticks, ns: now }, told)
    }

    /// Returns the latest time that may have been returned.
    #[inline]
    fn told(&self) -> Nanos {
        self.at.ns + ((self.steps * self.rate) >> RATE_BITS)
    }

    /// Returns the time at a tick count within the window.
    #[inline]
    fn shows(&self, ticks: u64) -> Option<Nanos> {
        let since = ticks.wrapping_sub(self.at.ticks);
        // A window has fewer than 2^32 nanoseconds, so the product fits.
        (since < self.steps).then(|| self.at.ns + ((since * self.rate) >> RATE_BITS))
    }

    /// Starts the next window from a reading of both clocks.
    ///
    /// Time never goes back: if the last window ran ahead of the clock, this one runs slower and
    /// meets the clock at its end.
    fn next(self, read: Anchor) -> Self {
        let shown = self.told();
        let ran = read.ns.saturating_sub(self.base.ns);
        // The machine may have been suspended while a thread without a known rate did not read the
        // clock.
        let is_old = self.steps == 0 && (self.base.ns == 0 || ran > 2 * LONG_NS);
        if is_old || self.is_off(read) {
            return Self::from(read, shown);
        }
        if self.steps == 0 && ran < RATE_NS {
            return self;
        }
        let hz = self.base.hz_until(&read);
        let Some(hz) = hz.filter(|hz| PLAUSIBLE_HZ.contains(hz)) else {
            return Self::from(read, shown);
        };
        let steps = (hz * WINDOW_NS as f64 / 1e9) as u64;
        let ahead = shown.saturating_sub(read.ns).min(WINDOW_NS / 2);
        let long = |since: Anchor| read.ns.saturating_sub(since.ns) >= LONG_NS;
        let (base, later) = match self.later.ns == self.base.ns {
            true if long(self.base) => (self.base, read),
            false if long(self.later) => (self.later, read),
            _ => (self.base, self.later),
        };
        Self {
            at: Anchor {
                ticks: read.ticks,
                ns: read.ns.max(shown),
            },
            rate: ((WINDOW_NS - ahead) << RATE_BITS) / steps,
            steps,
            base,
            later,
        }
    }

    /// Returns whether the reading contradicts the last window's rate: the counter was reset, or
    /// went on while the machine was suspended, or the clock is being corrected strongly.
    fn is_off(&self, read: Anchor) -> bool {
        if self.steps == 0 {
            return false;
        }
        let since = read.ticks.wrapping_sub(self.at.ticks);
        let passed = (u128::from(since) * u128::from(self.rate)) >> RATE_BITS;
        let told = u128::from(self.at.ns) + passed;
        let allowed = OFF_NS + read.ns.saturating_sub(self.at.ns) / OFF_SHARE;
        told.abs_diff(read.ns.into()) > allowed.into()
    }
}

thread_local! {
    static CLOCK: Cell<Hand> = const { Cell::new(Hand::UNKNOWN) };
}

/// Returns [`clock::now`], interpolated from the time-stamp counter where that is the kernel's
/// clock source. For threads that spin and read the time several times per microsecond, where a
/// clock read costs as much as handling a packet (docs/method/time-and-clocks.md has both costs).
///
/// The kernel's clock is read once per millisecond. Readings of one thread never go back. Readings
/// of two threads, or of one and [`clock::now`], differ by some tens of nanoseconds, at most 200.
/// While the kernel corrects the clock by up to 500 ppm they differ by up to a microsecond, beyond
/// that by up to three. At a still larger correction, one window is wrong by a millisecond's share
/// of it, or the returned time stands still for the duration of a suspend within it, at most a
/// millisecond. Then the clock itself is read each time for 10 ms. The processor may execute the
/// read slightly early.
#[inline]
#[must_use]
pub fn now() -> Nanos {
    let shown = CLOCK.with(|hand| {
        let hand = hand.get();
        // Without a rate the counter is useless; it may not even exist.
        if hand.steps == 0 {
            return None;
        }
        hand.shows(tsc())
    });
    shown.unwrap_or_else(look)
}

/// Reads the kernel's clock, and starts a window if the rate is known.
#[cold]
#[inline(never)]
fn look() -> Nanos {
    if source() != Source::Tsc {
        return clock::now();
    }
    CLOCK.with(|own| {
        let hand = own.get();
        // The processor may have read the counter before it read the start of the window.
        if hand.at.ticks.wrapping_sub(tsc()) < hand.steps {
            return hand.at.ns;
        }
        if hand.steps == 0 {
            let ns = clock::now();
            if ns.saturating_sub(hand.base.ns) < RATE_NS {
                return ns.max(hand.at.ns);
            }
        }
        let (steps, read) = Anchor::within(Source::Tsc, UNDISTURBED_STEPS);
        let next = match steps <= UNDISTURBED_STEPS {
            true => hand.next(read),
            false => Hand::waiting(read.ns, hand.told()),
        };
        own.set(next);
        match next.steps {
            0 => read.ns.max(next.at.ns),
            _ => next.at.ns,
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Simulated clock and counter, and a thread that interpolates one from the other.
    struct World {
        ticks: f64,
        ns: f64,
        ghz: f64,
        /// Clock rate relative to true time.
        rate: f64,
        hand: Hand,
        told: Nanos,
        looks: u64,
    }

    impl World {
        fn new(ghz: f64) -> Self {
            Self {
                ticks: 7e12,
                ns: 5e12,
                ghz,
                rate: 1.0,
                hand: Hand::UNKNOWN,
                told: 0,
                looks: 0,
            }
        }

        /// Reads the time after a pause; returns its error.
        #[track_caller]
        fn read(&mut self, pause_ns: f64) -> u64 {
            self.ticks += pause_ns * self.ghz;
            self.ns += pause_ns * self.rate;
            let (ticks, ns) = (self.ticks as u64, self.ns as u64);
            let time = self.hand.shows(ticks).unwrap_or_else(|| {
                self.looks += 1;
                // Readings of both clocks have errors of up to 20 ns.
                let ns = ns + self.looks * 7 % 20;
                self.hand = self.hand.next(Anchor { ticks, ns });
                match self.hand.steps {
                    0 => ns.max(self.hand.at.ns),
                    _ => self.hand.at.ns,
                }
            });
            // Times read from the clock directly may go back by the error of a reading.
            assert!(time + 20 >= self.told, "{time} after {}", self.told);
            self.told = time;
            time.abs_diff(ns)
        }

        /// Returns the largest error of readings over a time.
        #[track_caller]
        fn worst(&mut self, time_ns: f64, pause_ns: f64) -> u64 {
            let readings = 0..(time_ns / pause_ns) as u64;
            readings.map(|_| self.read(pause_ns)).max().unwrap_or(0)
        }
    }

    #[test]
    fn a_steady_clock_is_told_to_some_tens_of_nanoseconds() {
        let mut world = World::new(2.45);
        world.worst(20e6, 9_000.0);
        let learnt = world.looks;
        assert!(world.worst(5e9, 9_000.0) < 50);
        // One clock read per window, and no more.
        assert!((world.looks - learnt).abs_diff(5_000) < 100);
        // A thread that reads the clock rarely gets the same precision.
        for pause_ns in [5e9, 0.7e6, 3e6, 400e6, 2e9] {
            assert!(world.read(pause_ns) < 50, "{pause_ns}");
            assert!(world.worst(30e6, 9_000.0) < 50, "{pause_ns}");
        }
    }

    #[test]
    fn a_machine_that_slept_keeps_nobody_waiting() {
        for asleep_ns in [20e6, 1e9, 3_600e9] {
            for after_ns in [5e6, 15e6, 700e6] {
                let mut world = World::new(2.45);
                world.worst(after_ns, 9_000.0);
                // The counter goes on during a suspend and the clock does not; or the counter
                // restarts.
                world.ticks += asleep_ns * world.ghz;
                world.read(9_000.0);
                // Outside the first measurement of the rate: that window lasts longer by the
                // suspend.
                world.worst(40e6, 9_000.0);
                assert!(world.worst(50e6, 9_000.0) < 100, "{asleep_ns} {after_ns}");
                world.ticks = 1e6;
                world.worst(20e6, 9_000.0);
                assert!(world.worst(50e6, 9_000.0) < 100, "{asleep_ns} {after_ns}");
            }
        }
    }

    #[test]
    fn a_thread_that_was_away_while_it_learnt_begins_anew() {
        for (away_ns, asleep_ns) in [(5e9, 5e9), (60e9, 30e9), (60e9, 0.12e9)] {
            let mut world = World::new(2.45);
            world.read(9_000.0);
            world.ticks += asleep_ns * world.ghz;
            world.read(away_ns);
            assert!(world.worst(50e6, 9_000.0) < 50, "{away_ns} {asleep_ns}");
        }
    }

    /// A disturbed reading gives no rate, and time does not go back.
    #[test]
    fn a_hand_without_a_good_reading_waits_for_one() {
        let mut world = World::new(2.45);
        world.worst(50e6, 9_000.0);
        let told = world.hand.told();
        world.hand = Hand::waiting(world.ns as u64, told);
        assert!(world.worst(9e6, 9_000.0) < 1_000_000);
        assert_eq!(world.hand.steps, 0);
        world.worst(15e6, 9_000.0);
        assert!(world.worst(50e6, 9_000.0) < 50 && world.hand.steps > 0);
    }

    /// As chrony does after a jump: eight per cent for a while.
    #[test]
    fn a_clock_that_is_slewed_hard_is_followed() {
        let mut world = World::new(3.1);
        world.worst(700e6, 9_000.0);
        for rate in [1.083, 1.0, 0.917, 1.0] {
            world.rate = rate;
            assert!(world.worst(12e6, 9_000.0) < 100_000);
            assert!(world.worst(300e6, 9_000.0) < 100, "{rate}");
        }
    }

    proptest! {
        /// For all usual kernel corrections and reading rates.
        #[test]
        fn a_clock_that_is_corrected_is_followed(
            ghz in 1.0..5.0f64,
            ppm in prop::collection::vec(-500.0..500.0f64, 1..120),
            pause_ns in 1_000.0..3_000_000.0f64,
        ) {
            let mut world = World::new(ghz);
            for ppm in ppm {
                world.rate = 1.0 + ppm / 1e6;
                // A correction lasts 20 ms in this test.
                let pause_ns = pause_ns.max(10_000.0);
                prop_assert!(world.worst(20e6, pause_ns) <= 1_100);
            }
        }
    }

    #[test]
    fn what_is_told_is_the_clock_and_never_goes_back() {
        /// A thread that is interrupted during a reading of both clocks errs by half of the
        /// interruption.
        const TOLERANCE_NS: Nanos = 20_000;
        let end = clock::now() + 60_000_000;
        let (mut last, mut told) = (0, 0);
        loop {
            let before = clock::now();
            let time = now();
            let after = clock::now();
            assert!(time >= last, "{time} {last}");
            assert!(time + TOLERANCE_NS >= before, "{time} {before}");
            assert!(time <= after + TOLERANCE_NS, "{time} {after}");
            last = time;
            told += u64::from(CLOCK.with(Cell::get).steps > 0);
            if after >= end {
                break;
            }
        }
        assert_eq!(told > 0, source() == Source::Tsc);
    }
}
