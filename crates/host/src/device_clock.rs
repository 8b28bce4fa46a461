//! Conversion of a network device's timestamps (its PTP hardware clock) to CLOCK_REALTIME.
//!
//! The device clock has a rate of its own and may be stepped by others (ptp4l). So its offset is
//! measured repeatedly, and the difference between a measured and a predicted offset counts as
//! error.

use crate::sys::clock::Nanos;

/// Offset of a device clock from CLOCK_REALTIME at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Time of the measurement on CLOCK_REALTIME.
    pub at_ns: Nanos,
    /// Device time minus system time.
    pub ahead_ns: i64,
    /// Half the time between the two system readings around the device reading.
    pub error_ns: Nanos,
}

impl Offset {
    /// Returns the offset with the smallest error from readings in the order of PTP_SYS_OFFSET:
    /// system, device, system, device, ..., system. `None` without a device reading between two
    /// system readings.
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

/// Clock model that converts device timestamps to CLOCK_REALTIME.
#[derive(Clone, Copy, Debug)]
pub struct DeviceClock {
    last: Offset,
    /// Nanoseconds that the device clock gains per nanosecond of system time.
    gain: f64,
    /// Largest error of a measured offset.
    found_ns: Nanos,
    /// Largest difference between a measured and a predicted offset.
    missed_ns: Nanos,
}

impl DeviceClock {
    /// Creates the model from two offsets some time apart; their difference gives the rate.
    #[must_use]
    pub fn between(first: Offset, second: Offset) -> Self {
        Self {
            last: second,
            gain: gain(first, second),
            found_ns: first.error_ns.max(second.error_ns),
            missed_ns: 0,
        }
    }

    /// Returns the predicted offset at a system time.
    fn ahead_ns(&self, real_ns: Nanos) -> i64 {
        let since = real_ns.wrapping_sub(self.last.at_ns) as i64;
        self.last.ahead_ns + (since as f64 * self.gain) as i64
    }

    /// Updates rate and error with a newly measured offset.
    pub fn found(&mut self, offset: Offset) {
        let expected = self.ahead_ns(offset.at_ns);
        self.missed_ns = self.missed_ns.max(expected.abs_diff(offset.ahead_ns));
        self.found_ns = self.found_ns.max(offset.error_ns);
        self.gain = gain(self.last, offset);
        self.last = offset;
    }

    /// Converts a device timestamp to system time.
    #[must_use]
    pub fn real(&self, device_ns: Nanos) -> Nanos {
        // Between this estimate and the exact time the device gains far less than a nanosecond.
        let about = device_ns.wrapping_sub(self.last.ahead_ns as u64);
        device_ns.wrapping_sub(self.ahead_ns(about) as u64)
    }

    /// Returns the error bound of a converted time: largest measuring error plus largest prediction
    /// error.
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
            // The system clock was set back during the only reading.
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
        // The device counts from 5 s before START and gains 40 us per second.
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
        // The clock is stepped by a microsecond: from then on the error bound includes the step.
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
