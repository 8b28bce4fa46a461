//! Variation of transit times, from timestamps of a clock that may stand still or be set.
//!
//! The time of a datagram is its sender's. Boards send a constant or zero where they have no clock,
//! count in seconds or ticks, and set their clock while they send.

/// Fall of the transit time below the lowest one from which the sender's clock was set: only a
/// queue that empties shortens transit times, and the lowest one had no queue. Steps below this
/// weigh as little as a single late datagram.
const CLOCK_STEP_NS: i64 = 100_000_000;

/// Difference from which a datagram that was overtaken has its time from before a step.
const LATE_LIMIT_NS: u64 = 1_000_000_000;

/// Time between arrivals with one timestamp from which the clock stood still: a burst that was
/// stamped once arrives faster on links above 100 Mb/s.
const STANDSTILL_NS: u64 = 5_000_000;

/// Differences for each standstill, below which the timestamps are too coarse for the variation.
const MIN_DIFFERENCES_PER_STANDSTILL: u64 = 8;

/// Smoothed variation of the transit times of one flow (RFC 3550 section 6.4.1). No call allocates.
///
/// ```
/// use linerate_stats::transit_variation::TransitVariation;
///
/// let mut variation = TransitVariation::default();
/// assert_eq!(variation.record(5_000_001, 90_000_000, true), None);
/// assert_eq!(variation.record(6_000_002, 91_000_161, true), Some(160));
/// assert_eq!(variation.ipdv_ns(), Some(10.0));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransitVariation {
    /// Last datagram with a timestamp of its own.
    last: Option<TimedArrival>,
    /// Lowest transit time since the clock was set.
    min_transit_ns: i64,
    ipdv_ns: f64,
    differences: u64,
    standstills: u64,
    /// True once two timestamps had different fractions of a second.
    has_fractions: bool,
    /// True once a later datagram had an earlier time.
    went_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct TimedArrival {
    sent_ns: u64,
    arrived_ns: u64,
}

impl TimedArrival {
    fn transit_ns(self) -> i64 {
        self.arrived_ns.wrapping_sub(self.sent_ns) as i64
    }
}

impl TransitVariation {
    /// Records a datagram by its sender's time and the arrival time; `is_newest` if no later
    /// datagram has arrived. Returns the difference from the transit time of the one before, `None`
    /// where the two timestamps do not show it.
    #[inline]
    pub fn record(&mut self, sent_ns: u64, arrived_ns: u64, is_newest: bool) -> Option<u64> {
        if sent_ns == 0 {
            return None;
        }
        let arrival = TimedArrival {
            sent_ns,
            arrived_ns,
        };
        let transit_ns = arrival.transit_ns();
        let Some(last) = self.last else {
            (self.last, self.min_transit_ns) = (Some(arrival), transit_ns);
            return None;
        };
        let difference = transit_ns.wrapping_sub(last.transit_ns()).unsigned_abs();
        if is_newest {
            if sent_ns == last.sent_ns {
                // Sent in one burst, or by a clock that stands still.
                let passed_ns = arrived_ns.saturating_sub(last.arrived_ns);
                self.standstills += u64::from(passed_ns >= STANDSTILL_NS);
                return None;
            }
            self.has_fractions |= sent_ns.abs_diff(last.sent_ns) % 1_000_000_000 != 0;
            self.last = Some(arrival);
            let went_back = sent_ns < last.sent_ns;
            self.went_back |= went_back;
            if went_back || transit_ns < self.min_transit_ns.saturating_sub(CLOCK_STEP_NS) {
                self.min_transit_ns = transit_ns;
                return None;
            }
            self.min_transit_ns = self.min_transit_ns.min(transit_ns);
        } else if difference >= LATE_LIMIT_NS {
            return None;
        } else {
            self.last = Some(arrival);
        }
        self.differences += 1;
        self.ipdv_ns += (difference as f64 - self.ipdv_ns) / 16.0;
        Some(difference)
    }

    /// Returns the smoothed variation in nanoseconds; `None` before the second timestamp, and for
    /// timestamps of a clock that stands still or is too coarse.
    #[must_use]
    pub fn ipdv_ns(&self) -> Option<f64> {
        let is_fine = self.has_fractions
            && self.standstills * MIN_DIFFERENCES_PER_STANDSTILL <= self.differences;
        (self.differences > 0 && is_fine).then_some(self.ipdv_ns)
    }

    /// Returns whether the times can be compared with another clock: the sender's clock ran, and
    /// was not set back.
    #[must_use]
    pub fn has_steady_clock(&self) -> bool {
        !self.went_back && (self.differences > 0 || self.standstills == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Records 200 datagrams, 8 ms apart, that arrive 1 ms after they were sent, with the clock
    /// `stamp(number, true time)`.
    fn variation_of(stamp: impl Fn(u64, u64) -> u64) -> TransitVariation {
        let mut variation = TransitVariation::default();
        for number in 0..200 {
            let sent_ns = 1_000_000_007 + number * 8 * MS;
            variation.record(stamp(number, sent_ns), sent_ns + MS, true);
        }
        variation
    }

    #[test]
    fn only_a_clock_that_runs_shows_variation() {
        let hour = 3_600_000 * MS;
        type Stamp<'a> = &'a dyn Fn(u64, u64) -> u64;
        let cases: [(&str, Stamp<'_>, bool, bool); 11] = [
            ("runs", &|_, at| at, true, true),
            ("is absent", &|_, _| 0, false, true),
            ("stands still", &|_, _| hour, false, false),
            (
                "stops in the middle",
                &|n, at| at - n.saturating_sub(100) * 8 * MS,
                false,
                true,
            ),
            (
                "counts seconds",
                &|_, at| at / (1_000 * MS) * 1_000 * MS,
                false,
                true,
            ),
            (
                "counts ticks of 10 ms",
                &|_, at| at / (10 * MS) * 10 * MS,
                false,
                true,
            ),
            (
                "is set forward",
                &|n, at| at + hour * u64::from(n > 100),
                true,
                true,
            ),
            (
                "is set forward by 1 s",
                &|n, at| at + 1_000 * MS * u64::from(n > 100),
                true,
                true,
            ),
            (
                "is set back",
                &|n, at| at + hour * u64::from(n <= 100),
                true,
                false,
            ),
            (
                "is missing in some",
                &|n, at| at * u64::from(n % 3 > 0),
                true,
                true,
            ),
            (
                "is missing at the end",
                &|n, at| at * u64::from(n < 199),
                true,
                true,
            ),
        ];
        for (clock, stamp, is_known, is_steady) in cases {
            let variation = variation_of(stamp);
            let expected = is_known.then_some(0.0);
            assert_eq!(variation.ipdv_ns(), expected, "a clock that {clock}");
            assert_eq!(
                variation.has_steady_clock(),
                is_steady,
                "a clock that {clock}"
            );
        }
        // The jump of a small step counts once.
        let ipdv = variation_of(|n, at| at + 90 * MS * u64::from(n > 100))
            .ipdv_ns()
            .unwrap();
        assert!(ipdv < 0.1 * MS as f64, "{ipdv}");
    }

    #[test]
    fn queues_bursts_and_late_datagrams_are_no_steps() {
        let record = |datagrams: &[(u64, u64, bool)]| {
            let mut variation = TransitVariation::default();
            let mut all = Vec::new();
            for &(sent, arrived, is_newest) in datagrams {
                all.extend(variation.record(sent * 1_000, arrived * 1_000, is_newest));
            }
            all.into_iter().map(|ns| ns / 1_000).collect::<Vec<_>>()
        };
        // An outage of 2 s: what was queued arrives at once.
        let outage = [
            (1_001, 2_001, true),
            (9_002, 2_009_002, true),
            (17_003, 2_009_003, true),
            (2_010_004, 2_011_004, true),
        ];
        assert_eq!(record(&outage), [1_999_000, 8_000, 1_991_000]);
        // The datagrams of a burst have one time.
        let burst = [
            (1, 100, true),
            (1, 110, true),
            (1, 120, true),
            (1_001, 1_105, true),
        ];
        assert_eq!(record(&burst), [5]);
        // The second overtook the first.
        let late = [
            (2_000, 3_000, true),
            (1_000, 3_010, false),
            (3_000, 4_000, true),
        ];
        assert_eq!(record(&late), [1_010, 1_010]);
        // One that was overtaken by a step.
        let step = [(2_000_000_000, 3_000, true), (1_000, 3_010, false)];
        assert_eq!(record(&step), [0_u64; 0]);
    }
}
