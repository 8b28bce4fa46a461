//! The clock as a thread tells it from the counter between two looks at it.

use std::cell::Cell;

use super::{Anchor, Source, source, tsc};
use crate::sys::clock::{self, Nanos};

/// Time from one look at the clock to the next.
const WINDOW_NS: Nanos = 1_000_000;

/// How long a rate is told from at least: two readings that each err by 20 ns give it to 4 ppm, which is 4 ns in a window.
const RATE_NS: Nanos = 10_000_000;

/// The same in the long run, from when on it is told from once to twice as long: it errs less, and follows a clock that
/// is being corrected.
const LONG_NS: Nanos = 500_000_000;

const _: () = assert!(WINDOW_NS < RATE_NS && RATE_NS < LONG_NS);

/// How far a window may be off at its end, and which share of its time: beyond that the counter and the clock no longer go
/// by that rate.
const OFF_NS: Nanos = 2_000;
const OFF_SHARE: u64 = 1_000;

/// Steps a second that a processor's counter may have.
const PLAUSIBLE_HZ: std::ops::Range<f64> = 1e8..1e10;

/// A reading of both that takes no more steps was not interrupted: a usual one takes 150 to 250, an interrupt thousands.
/// It errs by half of them at worst, by 100 ns.
const UNDISTURBED_STEPS: u64 = 500;

/// How fine a rate is.
const RATE_BITS: u32 = 32;

/// Where the clock stood at a moment, and how fast it goes from there.
#[derive(Clone, Copy)]
struct Hand {
    at: Anchor,
    /// Nanoseconds in 2^32 steps.
    rate: u64,
    /// Steps from there until the clock is looked at again; none: the rate is not known, and `at` says what was told
    /// last.
    steps: u64,
    /// Since when the rate is told.
    base: Anchor,
    /// What takes the base's place once it is [`LONG_NS`] old itself.
    later: Anchor,
}

const NEVER: Anchor = Anchor { ticks: 0, ns: 0 };

impl Hand {
    const UNKNOWN: Self = Self::from(NEVER, 0);

    /// One that begins to learn the rate, where no time before `told` may be told any more.
    const fn from(base: Anchor, told: Nanos) -> Self {
        Self {
            at: Anchor { ticks: 0, ns: told },
            rate: 0,
            steps: 0,
            base,
            later: base,
        }
    }

    /// One that waits for [`RATE_NS`] before it begins to learn: no reading was to be had that is any good.
    const fn waiting(now: Nanos, told: Nanos) -> Self {
        // No count is beyond that one: nothing is told from it.
        let ticks = u64::MAX;
        Self::from(Anchor { ticks, ns: now }, told)
    }

    /// The latest time that was told, or may have been.
    #[inline]
    fn told(&self) -> Nanos {
        self.at.ns + ((self.steps * self.rate) >> RATE_BITS)
    }

    /// The time at this count, within the window.
    #[inline]
    fn shows(&self, ticks: u64) -> Option<Nanos> {
        let since = ticks.wrapping_sub(self.at.ticks);
        // No more than a window's nanoseconds in as many bits: it fits.
        (since < self.steps).then(|| self.at.ns + ((since * self.rate) >> RATE_BITS))
    }

    /// The next window, from a reading of both.
    ///
    /// Time never goes back: where the last window ran ahead of the clock this one runs slower and meets it at its end.
    fn next(self, read: Anchor) -> Self {
        let shown = self.told();
        let ran = read.ns.saturating_sub(self.base.ns);
        // While a thread that had not learnt the rate yet was away for long the machine may have slept.
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

    /// Whether the last window's rate leads elsewhere than to this reading: the counter was set back, or went on while the
    /// machine slept, or the clock is being corrected by more than a little.
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
    static HAND: Cell<Hand> = const { Cell::new(Hand::UNKNOWN) };
}

/// [`clock::now`], told from the time-stamp counter where that is the kernel's own clock source: for a thread that spins
/// and reads it several times a microsecond, and for which a reading of the clock costs as much as handling a packet
/// (docs/METHOD.md#time has what both cost).
///
/// Once a millisecond the clock itself is looked at. One thread's readings never go back. Those of two threads, or of one and
/// [`clock::now`], may differ by some tens of nanoseconds, 200 at worst; by a microsecond while the kernel corrects the clock
/// by up to 500 ppm, and by three where it is corrected by more. Beyond that a window is wrong by a millisecond's share of
/// the correction, or what was told stands still for as long as a sleep within it, a millisecond at most; then the clock is
/// read each time for 10 ms. The processor may read a little early, as with [`read`](super::read).
#[inline]
#[must_use]
pub fn now() -> Nanos {
    let shown = HAND.with(|hand| {
        let hand = hand.get();
        // Without a rate the counter, which may not even be there, says nothing.
        if hand.steps == 0 {
            return None;
        }
        hand.shows(tsc())
    });
    shown.unwrap_or_else(look)
}

/// Looks at the clock, and begins a window if a rate is known.
#[cold]
#[inline(never)]
fn look() -> Nanos {
    if source() != Source::Tsc {
        return clock::now();
    }
    HAND.with(|own| {
        let hand = own.get();
        // The processor may have read the count before it read where the window begins.
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

    /// A clock and a counter in simulated time, and a thread that tells one from the other.
    struct World {
        ticks: f64,
        ns: f64,
        ghz: f64,
        /// How fast the clock goes, of 1.
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

        /// A reading after so long; what it is off.
        #[track_caller]
        fn read(&mut self, pause_ns: f64) -> u64 {
            self.ticks += pause_ns * self.ghz;
            self.ns += pause_ns * self.rate;
            let (ticks, ns) = (self.ticks as u64, self.ns as u64);
            let time = self.hand.shows(ticks).unwrap_or_else(|| {
                self.looks += 1;
                // Readings of both err by up to 20 ns.
                let ns = ns + self.looks * 7 % 20;
                self.hand = self.hand.next(Anchor { ticks, ns });
                match self.hand.steps {
                    0 => ns.max(self.hand.at.ns),
                    _ => self.hand.at.ns,
                }
            });
            // By what readings err they may go back, where each is one of the clock.
            assert!(time + 20 >= self.told, "{time} after {}", self.told);
            self.told = time;
            time.abs_diff(ns)
        }

        /// The worst of readings for so long.
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
        // One look a window, and no more.
        assert!((world.looks - learnt).abs_diff(5_000) < 100);
        // Whoever comes once in a while is told as well.
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
                // The counter goes on and the clock does not; or it begins again.
                world.ticks += asleep_ns * world.ghz;
                world.read(9_000.0);
                // Not one that learns its first rate: that window lasts as much longer.
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

    /// No time is told from a reading that was disturbed, and none goes back behind it.
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
        /// Whatever the kernel's usual corrections are, and however rarely it is asked.
        #[test]
        fn a_clock_that_is_corrected_is_followed(
            ghz in 1.0..5.0f64,
            ppm in prop::collection::vec(-500.0..500.0f64, 1..120),
            pause_ns in 1_000.0..3_000_000.0f64,
        ) {
            let mut world = World::new(ghz);
            for ppm in ppm {
                world.rate = 1.0 + ppm / 1e6;
                // A correction lasts 20 ms here.
                let pause_ns = pause_ns.max(10_000.0);
                prop_assert!(world.worst(20e6, pause_ns) <= 1_100);
            }
        }
    }

    #[test]
    fn what_is_told_is_the_clock_and_never_goes_back() {
        /// A thread that is interrupted while it reads both errs by half of that.
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
            told += u64::from(HAND.with(Cell::get).steps > 0);
            if after >= end {
                break;
            }
        }
        assert_eq!(told > 0, source() == Source::Tsc);
    }
}
