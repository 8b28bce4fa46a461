//! Conversion of a network device's timestamps (its PTP hardware clock) to CLOCK_REALTIME.
//!
//! The device clock has a rate of its own and may be stepped by others (ptp4l). So its offset is
//! measured repeatedly, and the difference between a measured and a predicted offset counts as
//! error.

use crate::clock::Nanos;

/// Offset of a device clock from CLOCK_REALTIME at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// Time of the measurement on CLOCK_REALTIME.
    pub at_ns: Nanos,
    /// Device time minus system time.
    pub ahead_ns: i64,
    /// Half the time between the two system readings around the device reading.
    pub error_ns: Nanos,
}

impl ClockOffset {
    /// Returns the offset with the smallest error from readings in the order of PTP_SYS_OFFSET:
    /// system, device, system, device, ..., system. `None` without a device reading between two
    /// system readings.
    #[must_use]
    pub fn from_readings(readings: &[Nanos]) -> Option<Self> {
        let offsets = readings.windows(3).step_by(2).filter_map(|reading| {
            let duration_ns = reading[2].checked_sub(reading[0])?;
            let at_ns = reading[0] + duration_ns / 2;
            Some(Self {
                at_ns,
                ahead_ns: reading[1].wrapping_sub(at_ns) as i64,
                error_ns: duration_ns.div_ceil(2),
            })
        });
        offsets.min_by_key(|offset| offset.error_ns)
    }
}

/// Clock model that converts device timestamps to CLOCK_REALTIME.
#[derive(Clone, Copy, Debug)]
pub struct DeviceClock {
    last: ClockOffset,
    /// Nanoseconds that the device clock gains per nanosecond of system time.
    drift: f64,
    /// Largest error of a measured offset.
    measurement_error_ns: Nanos,
    /// Largest difference between a measured and a predicted offset.
    prediction_error_ns: Nanos,
}

impl DeviceClock {
    /// Creates the model from two offsets some time apart; their difference gives the rate.
    #[must_use]
    pub fn new(first: ClockOffset, second: ClockOffset) -> Self {
        Self {
            last: second,
            drift: drift_between(first, second),
            measurement_error_ns: first.error_ns.max(second.error_ns),
            prediction_error_ns: 0,
        }
    }

    /// Returns the predicted offset at a system time.
    fn predict_ahead_ns(&self, real_ns: Nanos) -> i64 {
        let elapsed_ns = real_ns.wrapping_sub(self.last.at_ns) as i64;
        self.last.ahead_ns + (elapsed_ns as f64 * self.drift) as i64
    }

    /// Updates rate and error with a newly measured offset.
    pub fn update(&mut self, offset: ClockOffset) {
        let expected = self.predict_ahead_ns(offset.at_ns);
        self.prediction_error_ns = self
            .prediction_error_ns
            .max(expected.abs_diff(offset.ahead_ns));
        self.measurement_error_ns = self.measurement_error_ns.max(offset.error_ns);
        self.drift = drift_between(self.last, offset);
        self.last = offset;
    }

    /// Converts a device timestamp to system time.
    #[must_use]
    pub fn to_realtime(&self, device_ns: Nanos) -> Nanos {
        // Between this estimate and the exact time the device gains far less than a nanosecond.
        let approximate_ns = device_ns.wrapping_sub(self.last.ahead_ns as u64);
        device_ns.wrapping_sub(self.predict_ahead_ns(approximate_ns) as u64)
    }

    /// Returns the error bound of a converted time: largest measuring error plus largest prediction
    /// error.
    #[must_use]
    pub fn error_ns(&self) -> Nanos {
        self.measurement_error_ns
            .saturating_add(self.prediction_error_ns)
    }
}

fn drift_between(first: ClockOffset, second: ClockOffset) -> f64 {
    let elapsed_ns = second.at_ns.saturating_sub(first.at_ns);
    let gained_ns = second.ahead_ns.wrapping_sub(first.ahead_ns);
    if elapsed_ns == 0 {
        return 0.0;
    }
    gained_ns as f64 / elapsed_ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_reading_wins() {
        let second = 1_000_000_000;
        for (readings, expected) in [
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
            let expected = expected.map(|(at_ns, ahead_ns, error_ns)| ClockOffset {
                at_ns,
                ahead_ns,
                error_ns,
            });
            assert_eq!(
                ClockOffset::from_readings(readings),
                expected,
                "{readings:?}"
            );
        }
    }

    #[test]
    fn a_clock_with_drift_is_converted() {
        // The device counts from 5 s before START and gains 40 us per second.
        const START: Nanos = 1_700_000_000_000_000_000;
        let device_time = |real: Nanos| {
            let elapsed = real - START;
            5_000_000_000 + elapsed + elapsed / 25_000
        };
        let offset_at = |real: Nanos| ClockOffset {
            at_ns: real,
            ahead_ns: device_time(real).wrapping_sub(real) as i64,
            error_ns: 300,
        };
        let mut clock = DeviceClock::new(offset_at(START), offset_at(START + 10_000_000));
        for step in 1..=100 {
            let real = START + step * 20_000_000;
            let converted = clock.to_realtime(device_time(real));
            assert!(converted.abs_diff(real) <= 3, "{step} {converted} {real}");
            clock.update(offset_at(real));
        }
        assert!((300..=305).contains(&clock.error_ns()), "{clock:?}");
        // The clock is stepped by a microsecond: from then on the error bound includes the step.
        let mut stepped = offset_at(START + 3_000_000_000);
        stepped.ahead_ns += 1_000;
        clock.update(stepped);
        assert!((1_290..=1_310).contains(&clock.error_ns()), "{clock:?}");
    }

    #[test]
    fn two_offsets_at_one_time_give_no_drift() {
        let offset = ClockOffset {
            at_ns: 5_000,
            ahead_ns: -7,
            error_ns: 1,
        };
        let clock = DeviceClock::new(offset, offset);
        assert_eq!(clock.to_realtime(100), 107);
        assert_eq!(clock.error_ns(), 1);
    }
}
