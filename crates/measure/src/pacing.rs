//! When the next payload may leave, so that the offered load is what was asked for.
//!
//! Decides without a clock: time and bytes go in, the time of the next departure comes out.

use linerate_host::sys::clock::Nanos;

/// Lateness that is caught up with a burst; what is older is given up, so that a stall of the
/// sender is not followed by a flood.
const CATCH_UP_NS: Nanos = 100_000_000;

/// Spreads payload evenly over time at a fixed rate.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// `None`: as fast as it goes.
    rate_bps: Option<u64>,
    next_ns: Nanos,
    /// Remainder of the division that made `next_ns`, so that no bit is lost over hours.
    remainder: u64,
}

impl Pacer {
    /// A pacer of `rate_bps` payload bits per second whose first departure is due at `start_ns`.
    #[must_use]
    pub fn new(rate_bps: Option<u64>, start_ns: Nanos) -> Self {
        Self {
            rate_bps: rate_bps.filter(|&rate| rate > 0),
            next_ns: start_ns,
            remainder: 0,
        }
    }

    /// Whether there is a rate to keep.
    #[inline]
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.rate_bps.is_some()
    }

    /// The time until which nothing may leave; `None` when something may leave now.
    #[inline]
    #[must_use]
    pub fn wait_until(&self, now_ns: Nanos) -> Option<Nanos> {
        (self.rate_bps.is_some() && now_ns < self.next_ns).then_some(self.next_ns)
    }

    /// Notes that `bytes` left at `now_ns`.
    #[inline]
    pub fn left(&mut self, bytes: u64, now_ns: Nanos) {
        let Some(rate) = self.rate_bps else { return };
        let oldest = now_ns.saturating_sub(CATCH_UP_NS);
        if self.next_ns < oldest {
            self.next_ns = oldest;
        }
        // u128: 1 GiB x 8 x 10^9 does not fit 64 bits.
        let scaled = u128::from(bytes) * 8_000_000_000 + u128::from(self.remainder);
        self.next_ns += (scaled / u128::from(rate)) as Nanos;
        self.remainder = (scaled % u128::from(rate)) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pacer = Pacer::new(None, 0);
        pacer.left(1 << 30, 0);
        assert_eq!(pacer.wait_until(0), None);
    }

    #[test]
    fn a_stall_is_not_followed_by_a_flood() {
        // 8 kb/s in 1000-byte payloads: one a second. After an hour asleep, one is owed, not 3600.
        let mut pacer = Pacer::new(Some(8_000), 0);
        pacer.left(1000, 0);
        let late = 3_600_000_000_000;
        assert_eq!(pacer.wait_until(late), None);
        pacer.left(1000, late);
        assert!(pacer.wait_until(late).is_some());
    }

    proptest! {
        #[test]
        fn the_rate_is_exact_over_time(rate in 1_000u64..100_000_000_000, bytes in 1u64..1 << 20, count in 1u64..5_000) {
            let mut pacer = Pacer::new(Some(rate), 0);
            let mut now = 0;
            for _ in 0..count {
                now = pacer.wait_until(now).unwrap_or(now);
                pacer.left(bytes, now);
            }
            let want = u128::from(count) * u128::from(bytes) * 8_000_000_000 / u128::from(rate);
            let got = u128::from(pacer.next_ns);
            prop_assert!(got.abs_diff(want) <= 1, "{got} for {want}");
        }
    }
}
