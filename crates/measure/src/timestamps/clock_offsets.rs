//! Offset between the clocks of two hosts over a run.

use linerate_dialect::control::clock::Offset;

/// Offset of the remote clock from the local one, before and after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Time of the first offset, on the remote clock.
    pub first_at_ns: u64,
    pub first: Offset,
    /// Time of the second offset, on the remote clock.
    pub last_at_ns: u64,
    pub last: Offset,
}

impl Clocks {
    /// Returns the remote clock's offset at `far_ns` of that clock, interpolated linearly.
    #[must_use]
    pub fn ahead_ns(&self, far_ns: u64) -> i64 {
        let span = i128::from(self.last_at_ns) - i128::from(self.first_at_ns);
        let change = i128::from(self.last.offset_ns) - i128::from(self.first.offset_ns);
        let passed = i128::from(far_ns) - i128::from(self.first_at_ns);
        if span <= 0 {
            return self.first.offset_ns;
        }
        let passed = passed.clamp(0, span);
        let ahead = i128::from(self.first.offset_ns) + change * passed / span;
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
        let offset = |offset_ns, error_ns| Offset {
            offset_ns,
            error_ns,
            rtt_ns: 2 * error_ns,
        };
        let clocks = Clocks {
            first_at_ns: 1_000_000,
            first: offset(-500, 20),
            last_at_ns: 2_000_000,
            last: offset(500, 30),
        };
        for (at, want) in [
            (0, -500),
            (1_000_000, -500),
            (1_500_000, 0),
            (2_000_000, 500),
            (9_000_000, 500),
        ] {
            assert_eq!(clocks.ahead_ns(at), want, "{at}");
        }
        assert_eq!(clocks.error_ns(), 30 + 1_000);
        let still = Clocks {
            last_at_ns: 1_000_000,
            ..clocks
        };
        assert_eq!(still.ahead_ns(5), -500);
    }
}
