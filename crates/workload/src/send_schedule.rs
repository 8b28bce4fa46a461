//! Schedule of requests that do not wait for responses.

use linerate_sys::clock::Nanos;

/// Schedule at a constant rate: request n is due at the start plus n periods, to the nanosecond
/// over hours.
#[derive(Clone, Copy, Debug)]
pub struct SendSchedule {
    /// Time of the first request.
    pub start_ns: Nanos,
    /// Requests per second.
    pub per_second: u64,
}

impl SendSchedule {
    /// Returns the intended send time of a request.
    #[must_use]
    pub fn send_time_ns(&self, number: u64) -> Nanos {
        let after = u128::from(number) * 1_000_000_000 / u128::from(self.per_second);
        self.start_ns
            .saturating_add(Nanos::try_from(after).unwrap_or(Nanos::MAX))
    }

    /// Returns the number of requests due before a time.
    #[must_use]
    pub fn count_before(&self, time: Nanos) -> u64 {
        let passed = u128::from(time.saturating_sub(self.start_ns));
        let count = (passed * u128::from(self.per_second)).div_ceil(1_000_000_000);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_do_not_drift() {
        let thirds = SendSchedule {
            start_ns: 1_000,
            per_second: 3,
        };
        for (number, expected_ns) in [(0, 1_000), (1, 333_334_333), (3, 1_000_001_000)] {
            assert_eq!(thirds.send_time_ns(number), expected_ns, "{number}");
        }
        assert_eq!(
            thirds.send_time_ns(3 * 86_400 * 365),
            86_400 * 365 * 1_000_000_000 + 1_000
        );
        for (time, count) in [(0, 0), (1_000, 0), (1_001, 1), (1_000_001_000, 3)] {
            assert_eq!(thirds.count_before(time), count, "{time}");
        }
    }
}
