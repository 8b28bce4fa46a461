//! A network device's own clock: what its stamps mean on CLOCK_REALTIME.
//!
//! The clock runs at a rate of its own and may be set by others (ptp4l), so where it stands is found
//! again and again, and how far the last finding was off is part of the error.

use crate::sys::clock::Nanos;

/// Where a device's clock stood against the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// When, on CLOCK_REALTIME.
    pub at_ns: Nanos,
    /// What the device's clock showed beyond that.
    pub ahead_ns: i64,
    /// Half the time that the reading took.
    pub error_ns: Nanos,
}

impl Offset {
    /// The best of readings in turn: system, device, system, device, ..., system, as PTP_SYS_OFFSET
    /// gives them. `None` when there is none between two of the system.
    #[must_use]
    pub fn best(readings: &[Nanos]) -> Option<Self> {
        let tries = readings.windows(3).step_by(2).filter_map(|reading| {
            let took = reading[2].checked_sub(reading[0])?;
            let at_ns = reading[0] + took / 2;
            Some(Self {
                at_ns,
                ahead_ns: reading[1].wrapping_sub(at_ns) as i64,
                error_ns: took.div_ceil(2),
            })
        });
        tries.min_by_key(|offset| offset.error_ns)
    }
}

/// Carries times of a device over to CLOCK_REALTIME.
#[derive(Clone, Copy, Debug)]
pub struct DeviceClock {
    last: Offset,
    /// What it gains in a nanosecond.
    gain: f64,
    /// The largest error of a finding, and how far the clock was from where it was expected.
    found_ns: Nanos,
    missed_ns: Nanos,
}

impl DeviceClock {
    /// From two findings some time apart, which tell its rate.
    #[must_use]
    pub fn between(first: Offset, second: Offset) -> Self {
        Self {
            last: second,
            gain: gain(first, second),
            found_ns: first.error_ns.max(second.error_ns),
            missed_ns: 0,
        }
    }

    /// How far ahead the device is when the system's clock shows a time.
    fn ahead_ns(&self, real_ns: Nanos) -> i64 {
        let since = real_ns.wrapping_sub(self.last.at_ns) as i64;
        self.last.ahead_ns + (since as f64 * self.gain) as i64
    }

    /// Takes in where the clock stands now.
    pub fn found(&mut self, offset: Offset) {
        let expected = self.ahead_ns(offset.at_ns);
        self.missed_ns = self.missed_ns.max(expected.abs_diff(offset.ahead_ns));
        self.found_ns = self.found_ns.max(offset.error_ns);
        self.gain = gain(self.last, offset);
        self.last = offset;
    }

    /// The system's time of a device's.
    #[must_use]
    pub fn real(&self, device_ns: Nanos) -> Nanos {
        // Its gain between the two guesses is far below a nanosecond.
        let about = device_ns.wrapping_sub(self.last.ahead_ns as u64);
        device_ns.wrapping_sub(self.ahead_ns(about) as u64)
    }

    /// How far a carried time may be off: as far as any finding, and any expectation of the next.
    #[must_use]
    pub fn error_ns(&self) -> Nanos {
        self.found_ns.saturating_add(self.missed_ns)
    }
}

fn gain(first: Offset, second: Offset) -> f64 {
    let passed = second.at_ns.saturating_sub(first.at_ns);
    let gained = second.ahead_ns.wrapping_sub(first.ahead_ns);
    if passed == 0 {
        return 0.0;
    }
    gained as f64 / passed as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_reading_decides() {
        let second = 1_000_000_000;
        for (readings, want) in [
            (&[][..], None),
            (&[5, 6], None),
            // The system's clock was set back within the only reading.
            (&[9, 7, 8], None),
            (&[1_000, 1_500, 1_100], Some((1_050, 450, 50))),
            (&[1_000, 900, 1_101], Some((1_050, -150, 51))),
            // Slow, quick, slow; the device counts TAI.
            (
                &[
                    0,
                    37 * second,
                    4_000,
                    37 * second + 4_100,
                    4_200,
                    37 * second + 5_000,
                    9_000,
                ],
                Some((4_100, 37 * second as i64, 100)),
            ),
        ] {
            let want = want.map(|(at_ns, ahead_ns, error_ns)| Offset {
                at_ns,
                ahead_ns,
                error_ns,
            });
            assert_eq!(Offset::best(readings), want, "{readings:?}");
        }
    }

    #[test]
    fn a_clock_of_its_own_rate_is_carried() {
        // Counts from its start, 5 s before, and gains 40 us a second.
        const START: Nanos = 1_700_000_000_000_000_000;
        let shows = |real: Nanos| {
            let passed = real - START;
            5_000_000_000 + passed + passed / 25_000
        };
        let at = |real: Nanos| Offset {
            at_ns: real,
            ahead_ns: shows(real).wrapping_sub(real) as i64,
            error_ns: 300,
        };
        let mut clock = DeviceClock::between(at(START), at(START + 10_000_000));
        for step in 1..=100 {
            let real = START + step * 20_000_000;
            let carried = clock.real(shows(real));
            assert!(carried.abs_diff(real) <= 3, "{step} {carried} {real}");
            clock.found(at(real));
        }
        assert!((300..=305).contains(&clock.error_ns()), "{clock:?}");
        // Somebody sets it by a microsecond: from then on the bound says so.
        let mut set = at(START + 3_000_000_000);
        set.ahead_ns += 1_000;
        clock.found(set);
        assert!((1_290..=1_310).contains(&clock.error_ns()), "{clock:?}");
    }

    #[test]
    fn two_findings_at_one_time_tell_no_rate() {
        let offset = Offset {
            at_ns: 5_000,
            ahead_ns: -7,
            error_ns: 1,
        };
        let clock = DeviceClock::between(offset, offset);
        assert_eq!(clock.real(100), 107);
        assert_eq!(clock.error_ns(), 1);
    }
}
