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

    /// Records one receive call: its first and last number, the arrival time, and the difference of
    /// the transit time from that of the call before, if known. Datagrams of one call share their
    /// time and count once.
    #[inline]
    pub fn record(&mut self, first: u64, last: u64, at_ns: Nanos, difference_ns: Option<u64>) {
        if let Some(previous) = self.last
            && previous.number.wrapping_add(1) == first
        {
            if let Some(difference) = difference_ns {
                self.variation.record(difference);
            }
            if let Some(gaps) = &mut self.gaps {
                gaps.record(at_ns.saturating_sub(previous.at_ns));
            }
        }
        self.last = Some(LastArrival {
            number: last,
            at_ns,
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
        // (numbers, arrival, difference)
        for (first, last, at, difference) in [
            (0, 0, 1_000, None),
            (1, 1, 2_000, Some(100)),
            (2, 4, 3_500, Some(50)),
            // 5 is missing, so 6 is not compared with 4.
            (6, 6, 9_000, Some(350)),
            (7, 7, 9_100, Some(20)),
            // The sender's clock was set.
            (8, 8, 9_200, None),
            // Late.
            (5, 5, 9_300, Some(5_000)),
        ] {
            arrivals.record(first, last, at, difference);
        }
        let (variation, gaps) = arrivals.into_distributions();
        assert_eq!(variation.count(), 3);
        assert_eq!((variation.min(), variation.max()), (Some(20), Some(100)));
        let gaps = gaps.unwrap();
        assert_eq!((gaps.min(), gaps.max()), (Some(100), Some(1_500)));
        assert!(DelayVariation::new(false).into_distributions().1.is_none());
    }
}
