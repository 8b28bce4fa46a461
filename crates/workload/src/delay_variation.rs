//! Delay variation and arrival gaps of numbered datagrams.

use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;

/// Distributions of consecutive datagrams; pairs with a gap in their numbers are not compared (RFC
/// 5481 section 4.1).
#[derive(Clone, Debug)]
pub struct DelayVariation {
    last: Option<LastArrival>,
    variation: Histogram,
    gaps: Option<Histogram>,
}

#[derive(Clone, Copy, Debug)]
struct LastArrival {
    number: u64,
    at_ns: Nanos,
    transit_ns: i64,
}

impl DelayVariation {
    /// Creates empty distributions. Gaps are recorded only for flows with a rate.
    #[must_use]
    pub fn new(paced: bool) -> Self {
        Self {
            last: None,
            variation: Histogram::coarse(),
            gaps: paced.then(Histogram::coarse),
        }
    }

    /// Records one receive call: its first and last number, the arrival time, and the transit time
    /// of the last datagram. Datagrams of one call share their time and count once.
    #[inline]
    pub fn record(&mut self, first: u64, last: u64, at_ns: Nanos, transit_ns: i64) {
        if let Some(previous) = self.last
            && previous.number.wrapping_add(1) == first
        {
            let difference = transit_ns.wrapping_sub(previous.transit_ns).unsigned_abs();
            self.variation.record(difference);
            if let Some(gaps) = &mut self.gaps {
                gaps.record(at_ns.saturating_sub(previous.at_ns));
            }
        }
        self.last = Some(LastArrival {
            number: last,
            at_ns,
            transit_ns,
        });
    }

    /// Returns the distributions of transit time differences and of arrival gaps.
    #[must_use]
    pub fn into_distributions(self) -> (Histogram, Option<Histogram>) {
        (self.variation, self.gaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_neighbours_are_compared() {
        let mut arrivals = DelayVariation::new(true);
        // (numbers, arrival, transit)
        for (first, last, at, transit) in [
            (0, 0, 1_000, 500),
            (1, 1, 2_000, 600),
            (2, 4, 3_500, 550),
            // 5 is missing, so 6 is not compared with 4.
            (6, 6, 9_000, 900),
            (7, 7, 9_100, 880),
            // Late.
            (5, 5, 9_200, 5_000),
        ] {
            arrivals.record(first, last, at, transit);
        }
        let (variation, gaps) = arrivals.into_distributions();
        assert_eq!(variation.count(), 3);
        assert_eq!((variation.min(), variation.max()), (Some(20), Some(100)));
        let gaps = gaps.unwrap();
        assert_eq!((gaps.min(), gaps.max()), (Some(100), Some(1_500)));
        assert!(DelayVariation::new(false).into_distributions().1.is_none());
    }
}
