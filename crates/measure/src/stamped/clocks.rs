//! How the clocks of two hosts stand to each other over a run.

use linerate_dialect::control::clock::Offset;

/// The far clock against the near one, before a run and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// When the first offset was found, on the far clock.
    pub first_at_ns: u64,
    /// The first offset.
    pub first: Offset,
    /// When the second was found, on the far clock.
    pub last_at_ns: u64,
    /// The second offset.
    pub last: Offset,
}

impl Clocks {
    /// How far the far clock is ahead when it shows `far_ns`: clocks drift evenly over a run.
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

    /// How far a carried time may be off: either offset's own bound, and all that the clocks drifted
    /// apart in between, because nobody knows when they did (a daemon may have changed their rate
    /// half-way).
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
