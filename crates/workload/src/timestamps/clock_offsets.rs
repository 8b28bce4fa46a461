//! Offset between the clocks of two hosts over a run.

use linerate_protocol::control::clock_offset::OffsetEstimate;

/// Offset of the remote clock from the local one, before and after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffsets {
    /// Time of the first offset, on the remote clock.
    pub first_at_ns: u64,
    pub first: OffsetEstimate,
    /// Time of the second offset, on the remote clock.
    pub last_at_ns: u64,
    pub last: OffsetEstimate,
}

impl ClockOffsets {
    /// Returns the remote clock's offset at `remote_ns` of that clock, interpolated linearly.
    #[must_use]
    pub fn offset_at_ns(&self, remote_ns: u64) -> i64 {
        let interval_ns = i128::from(self.last_at_ns) - i128::from(self.first_at_ns);
        let change = i128::from(self.last.offset_ns) - i128::from(self.first.offset_ns);
        let passed = i128::from(remote_ns) - i128::from(self.first_at_ns);
        if interval_ns <= 0 {
            return self.first.offset_ns;
        }
        let passed = passed.clamp(0, interval_ns);
        let ahead = i128::from(self.first.offset_ns) + change * passed / interval_ns;
        i64::try_from(ahead).unwrap_or(self.first.offset_ns)
    }

    /// Returns the error bound of a converted time: the larger bound of both offsets plus the whole
    /// drift between them. The drift may not be linear, as a time daemon may have changed the rate.
    #[must_use]
    pub fn error_ns(&self) -> u64 {
        let drift = self.last.offset_ns.abs_diff(self.first.offset_ns);
        (self.first.error_ns.max(self.last.error_ns)).saturating_add(drift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_spread_over_the_run() {
        let offset = |offset_ns, error_ns| OffsetEstimate {
            offset_ns,
            error_ns,
            rtt_ns: 2 * error_ns,
        };
        let clocks = ClockOffsets {
            first_at_ns: 1_000_000,
            first: offset(-500, 20),
            last_at_ns: 2_000_000,
            last: offset(500, 30),
        };
        for (at, expected) in [
            (0, -500),
            (1_000_000, -500),
            (1_500_000, 0),
            (2_000_000, 500),
            (9_000_000, 500),
        ] {
            assert_eq!(clocks.offset_at_ns(at), expected, "{at}");
        }
        assert_eq!(clocks.error_ns(), 30 + 1_000);
        let same_instant = ClockOffsets {
            last_at_ns: 1_000_000,
            ..clocks
        };
        assert_eq!(same_instant.offset_at_ns(5), -500);
    }
}
