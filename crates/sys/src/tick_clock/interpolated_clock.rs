//! Clock of a thread, interpolated from the tick counter between two reads of the kernel's clock.

use std::cell::Cell;

use super::{ClockPair, TickSource, choose_source, read_tsc};
use crate::clock;
use crate::clock::Nanos;

/// Time between two reads of the kernel's clock.
const WINDOW_NS: Nanos = 1_000_000;

/// Least time over which the rate is measured: two readings with errors of 20 ns each give it to 4
/// ppm, which is 4 ns in a window.
const MIN_RATE_NS: Nanos = 10_000_000;

/// Time over which the rate is measured in the long run (up to twice as long): its error is
/// smaller, and it follows corrections of the clock.
const LONG_RATE_NS: Nanos = 500_000_000;

const _: () = assert!(WINDOW_NS < MIN_RATE_NS && MIN_RATE_NS < LONG_RATE_NS);

/// Tolerated error at the end of a window, and the tolerated fraction of the window. Beyond their
/// sum, counter and clock no longer match the measured rate.
const MAX_ERROR_NS: Nanos = 2_000;
const MAX_ERROR_DIVISOR: u64 = 1_000;

/// Plausible tick rates of a processor.
const PLAUSIBLE_HZ: std::ops::Range<f64> = 1e8..1e10;

/// Most ticks of an uninterrupted reading of both clocks: usual ones take 150 to 250, interrupted
/// ones thousands. The error of such a reading is at most half of them, 100 ns.
const UNINTERRUPTED_TICKS: u64 = 500;

/// Fractional bits of a rate.
const RATE_BITS: u32 = 32;

/// Interpolated clock: reading of both clocks at the start of a window, and the rate from there on.
#[derive(Clone, Copy)]
struct InterpolatedClock {
    window_start: ClockPair,
    /// Nanoseconds per 2^32 ticks.
    ns_per_tick: u64,
    /// Ticks in the window; 0: the rate is unknown, and `window_start` holds the latest time
    /// returned.
    window_ticks: u64,
    /// Reading from which the rate is measured.
    rate_base: ClockPair,
    /// Next base, used once it is [`LONG_RATE_NS`] old.
    next_base: ClockPair,
}

const UNSET_PAIR: ClockPair = ClockPair { ticks: 0, ns: 0 };

impl InterpolatedClock {
    const UNKNOWN: Self = Self::measuring_from(UNSET_PAIR, 0);

    /// Starts to measure the rate; times before `latest_ns` must not be returned any more.
    const fn measuring_from(base: ClockPair, latest_ns: Nanos) -> Self {
        Self {
            window_start: ClockPair {
                ticks: 0,
                ns: latest_ns,
            },
            ns_per_tick: 0,
            window_ticks: 0,
            rate_base: base,
            next_base: base,
        }
    }

    /// Waits for [`MIN_RATE_NS`] before it starts to measure the rate, because the last reading was
    /// interrupted.
    const fn waiting_since(now: Nanos, latest_ns: Nanos) -> Self {
        // No tick count exceeds this one: the value is never used for a rate.
        let ticks = u64::MAX;
        Self::measuring_from(ClockPair { ticks, ns: now }, latest_ns)
    }

    /// Returns the latest time that may have been returned.
    #[inline]
    fn latest_ns(&self) -> Nanos {
        self.window_start.ns + ((self.window_ticks * self.ns_per_tick) >> RATE_BITS)
    }

    /// Returns the time at a tick count within the window.
    #[inline]
    fn ns_at(&self, ticks: u64) -> Option<Nanos> {
        let elapsed_ticks = ticks.wrapping_sub(self.window_start.ticks);
        // A window has fewer than 2^32 nanoseconds, so the product fits.
        (elapsed_ticks < self.window_ticks)
            .then(|| self.window_start.ns + ((elapsed_ticks * self.ns_per_tick) >> RATE_BITS))
    }

    /// Starts the next window from a reading of both clocks.
    ///
    /// Time never goes back: if the last window ran ahead of the clock, this one runs slower and
    /// meets the clock at its end.
    fn next_window(self, reading: ClockPair) -> Self {
        let latest_ns = self.latest_ns();
        let measured_ns = reading.ns.saturating_sub(self.rate_base.ns);
        // The machine may have been suspended while a thread without a known rate did not read the
        // clock.
        let is_stale =
            self.window_ticks == 0 && (self.rate_base.ns == 0 || measured_ns > 2 * LONG_RATE_NS);
        if is_stale || self.contradicts(reading) {
            return Self::measuring_from(reading, latest_ns);
        }
        if self.window_ticks == 0 && measured_ns < MIN_RATE_NS {
            return self;
        }
        let hz = self.rate_base.tick_hz_until(&reading);
        let Some(hz) = hz.filter(|hz| PLAUSIBLE_HZ.contains(hz)) else {
            return Self::measuring_from(reading, latest_ns);
        };
        let window_ticks = (hz * WINDOW_NS as f64 / 1e9) as u64;
        let ahead_ns = latest_ns.saturating_sub(reading.ns).min(WINDOW_NS / 2);
        let is_long = |since: ClockPair| reading.ns.saturating_sub(since.ns) >= LONG_RATE_NS;
        let (rate_base, next_base) = match self.next_base.ns == self.rate_base.ns {
            true if is_long(self.rate_base) => (self.rate_base, reading),
            false if is_long(self.next_base) => (self.next_base, reading),
            _ => (self.rate_base, self.next_base),
        };
        Self {
            window_start: ClockPair {
                ticks: reading.ticks,
                ns: reading.ns.max(latest_ns),
            },
            ns_per_tick: ((WINDOW_NS - ahead_ns) << RATE_BITS) / window_ticks,
            window_ticks,
            rate_base,
            next_base,
        }
    }

    /// Returns whether the reading contradicts the last window's rate: the counter was reset, or
    /// went on while the machine was suspended, or the clock is being corrected strongly.
    fn contradicts(&self, reading: ClockPair) -> bool {
        if self.window_ticks == 0 {
            return false;
        }
        let elapsed_ticks = reading.ticks.wrapping_sub(self.window_start.ticks);
        let elapsed_ns = (u128::from(elapsed_ticks) * u128::from(self.ns_per_tick)) >> RATE_BITS;
        let predicted_ns = u128::from(self.window_start.ns) + elapsed_ns;
        let allowed_ns =
            MAX_ERROR_NS + reading.ns.saturating_sub(self.window_start.ns) / MAX_ERROR_DIVISOR;
        predicted_ns.abs_diff(reading.ns.into()) > allowed_ns.into()
    }
}

thread_local! {
    static CLOCK: Cell<InterpolatedClock> = const { Cell::new(InterpolatedClock::UNKNOWN) };
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
pub fn interpolated_now() -> Nanos {
    let interpolated_ns = CLOCK.with(|clock| {
        let clock = clock.get();
        // Without a rate the counter is useless; it may not even exist.
        if clock.window_ticks == 0 {
            return None;
        }
        clock.ns_at(read_tsc())
    });
    interpolated_ns.unwrap_or_else(resync)
}

/// Reads the kernel's clock, and starts a window if the rate is known.
#[cold]
#[inline(never)]
fn resync() -> Nanos {
    if choose_source() != TickSource::Tsc {
        return clock::now();
    }
    CLOCK.with(|cell| {
        let hand = cell.get();
        // The processor may have read the counter before it read the start of the window.
        if hand.window_start.ticks.wrapping_sub(read_tsc()) < hand.window_ticks {
            return hand.window_start.ns;
        }
        if hand.window_ticks == 0 {
            let ns = clock::now();
            if ns.saturating_sub(hand.rate_base.ns) < MIN_RATE_NS {
                return ns.max(hand.window_start.ns);
            }
        }
        let (duration_ticks, reading) =
            ClockPair::read_within(TickSource::Tsc, UNINTERRUPTED_TICKS);
        let next_clock = match duration_ticks <= UNINTERRUPTED_TICKS {
            true => hand.next_window(reading),
            false => InterpolatedClock::waiting_since(reading.ns, hand.latest_ns()),
        };
        cell.set(next_clock);
        match next_clock.window_ticks {
            0 => reading.ns.max(next_clock.window_start.ns),
            _ => next_clock.window_start.ns,
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Simulated clock and counter, and a thread that interpolates one from the other.
    struct ClockSim {
        ticks: f64,
        ns: f64,
        ghz: f64,
        /// Clock rate relative to true time.
        clock_rate: f64,
        clock: InterpolatedClock,
        last_ns: Nanos,
        clock_reads: u64,
    }

    impl ClockSim {
        fn new(ghz: f64) -> Self {
            Self {
                ticks: 7e12,
                ns: 5e12,
                ghz,
                clock_rate: 1.0,
                clock: InterpolatedClock::UNKNOWN,
                last_ns: 0,
                clock_reads: 0,
            }
        }

        /// Reads the time after a pause; returns its error.
        #[track_caller]
        fn read(&mut self, pause_ns: f64) -> u64 {
            self.ticks += pause_ns * self.ghz;
            self.ns += pause_ns * self.clock_rate;
            let (ticks, ns) = (self.ticks as u64, self.ns as u64);
            let time = self.clock.ns_at(ticks).unwrap_or_else(|| {
                self.clock_reads += 1;
                // Readings of both clocks have errors of up to 20 ns.
                let ns = ns + self.clock_reads * 7 % 20;
                self.clock = self.clock.next_window(ClockPair { ticks, ns });
                match self.clock.window_ticks {
                    0 => ns.max(self.clock.window_start.ns),
                    _ => self.clock.window_start.ns,
                }
            });
            // Times read from the clock directly may go back by the error of a reading.
            assert!(time + 20 >= self.last_ns, "{time} after {}", self.last_ns);
            self.last_ns = time;
            time.abs_diff(ns)
        }

        /// Returns the largest error of readings over a time.
        #[track_caller]
        fn max_error(&mut self, time_ns: f64, pause_ns: f64) -> u64 {
            let readings = 0..(time_ns / pause_ns) as u64;
            readings.map(|_| self.read(pause_ns)).max().unwrap_or(0)
        }
    }

    #[test]
    fn a_steady_clock_is_interpolated_precisely() {
        let mut sim = ClockSim::new(2.45);
        sim.max_error(20e6, 9_000.0);
        let reads_before = sim.clock_reads;
        assert!(sim.max_error(5e9, 9_000.0) < 50);
        // One clock read per window, and no more.
        assert!((sim.clock_reads - reads_before).abs_diff(5_000) < 100);
        // A thread that reads the clock rarely gets the same precision.
        for pause_ns in [5e9, 0.7e6, 3e6, 400e6, 2e9] {
            assert!(sim.read(pause_ns) < 50, "{pause_ns}");
            assert!(sim.max_error(30e6, 9_000.0) < 50, "{pause_ns}");
        }
    }

    #[test]
    fn a_suspended_machine_resumes_quickly() {
        for suspended_ns in [20e6, 1e9, 3_600e9] {
            for after_ns in [5e6, 15e6, 700e6] {
                let mut sim = ClockSim::new(2.45);
                sim.max_error(after_ns, 9_000.0);
                // The counter goes on during a suspend and the clock does not; or the counter
                // restarts.
                sim.ticks += suspended_ns * sim.ghz;
                sim.read(9_000.0);
                // Outside the first measurement of the rate: that window lasts longer by the
                // suspend.
                sim.max_error(40e6, 9_000.0);
                assert!(
                    sim.max_error(50e6, 9_000.0) < 100,
                    "{suspended_ns} {after_ns}"
                );
                sim.ticks = 1e6;
                sim.max_error(20e6, 9_000.0);
                assert!(
                    sim.max_error(50e6, 9_000.0) < 100,
                    "{suspended_ns} {after_ns}"
                );
            }
        }
    }

    #[test]
    fn a_long_pause_restarts_the_rate_measurement() {
        for (away_ns, suspended_ns) in [(5e9, 5e9), (60e9, 30e9), (60e9, 0.12e9)] {
            let mut sim = ClockSim::new(2.45);
            sim.read(9_000.0);
            sim.ticks += suspended_ns * sim.ghz;
            sim.read(away_ns);
            assert!(
                sim.max_error(50e6, 9_000.0) < 50,
                "{away_ns} {suspended_ns}"
            );
        }
    }

    /// A disturbed reading gives no rate, and time does not go back.
    #[test]
    fn a_disturbed_reading_delays_the_rate_measurement() {
        let mut sim = ClockSim::new(2.45);
        sim.max_error(50e6, 9_000.0);
        let latest_ns = sim.clock.latest_ns();
        sim.clock = InterpolatedClock::waiting_since(sim.ns as u64, latest_ns);
        assert!(sim.max_error(9e6, 9_000.0) < 1_000_000);
        assert_eq!(sim.clock.window_ticks, 0);
        sim.max_error(15e6, 9_000.0);
        assert!(sim.max_error(50e6, 9_000.0) < 50 && sim.clock.window_ticks > 0);
    }

    /// As chrony does after a jump: eight per cent for a while.
    #[test]
    fn a_clock_that_is_slewed_hard_is_followed() {
        let mut sim = ClockSim::new(3.1);
        sim.max_error(700e6, 9_000.0);
        for rate in [1.083, 1.0, 0.917, 1.0] {
            sim.clock_rate = rate;
            assert!(sim.max_error(12e6, 9_000.0) < 100_000);
            assert!(sim.max_error(300e6, 9_000.0) < 100, "{rate}");
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
            let mut world = ClockSim::new(ghz);
            for ppm in ppm {
                world.clock_rate = 1.0 + ppm / 1e6;
                // A correction lasts 20 ms in this test.
                let pause_ns = pause_ns.max(10_000.0);
                prop_assert!(world.max_error(20e6, pause_ns) <= 1_100);
            }
        }
    }

    #[test]
    fn interpolated_time_follows_the_clock_and_never_goes_back() {
        /// A thread that is interrupted during a reading of both clocks errs by half of the
        /// interruption.
        const TOLERANCE_NS: Nanos = 20_000;
        let end = clock::now() + 60_000_000;
        let (mut last, mut interpolated) = (0, 0);
        loop {
            let before = clock::now();
            let time = interpolated_now();
            let after = clock::now();
            assert!(time >= last, "{time} {last}");
            assert!(time + TOLERANCE_NS >= before, "{time} {before}");
            assert!(time <= after + TOLERANCE_NS, "{time} {after}");
            last = time;
            interpolated += u64::from(CLOCK.with(Cell::get).window_ticks > 0);
            if after >= end {
                break;
            }
        }
        assert_eq!(interpolated > 0, choose_source() == TickSource::Tsc);
    }
}
