//! Change points in a series of runs, without a model of the noise.
//!
//! Method: PELT (Killick, Fearnhead, Eckley 2012). The cost of a segment is the sum of absolute
//! deviations from its median. Absolute deviations keep a single outlier from forming a segment,
//! squared ones do not. Adding a boundary never increases that cost, which is the condition of
//! PELT's pruning.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::statistics::{Estimate, estimate, median};

/// Fewest runs of a level: of two runs that differ, either could be the outlier.
pub const MIN_LEVEL_RUNS: usize = 3;

/// Cost of a boundary, in mean absolute deviations of the noise times the logarithm of the number
/// of runs. With 3, noise alone makes a boundary in fewer than one of twenty series (see the test).
const BOUNDARY_PENALTY: f64 = 3.0;

/// Mean absolute deviation of normal noise over its standard deviation: the square root of 2/pi.
const MEAN_OVER_SIGMA: f64 = 0.797_884_560_802_865_4;

/// Standard deviation of normal noise over the median of its absolute deviations.
const SIGMA_OVER_MEDIAN: f64 = 1.482_602_218_505_602;

/// Smallest change, as a share of the level, that counts as one even if the series has less noise.
const MIN_CHANGE_SHARE: f64 = 0.005;

/// Consecutive runs of one level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesLevel {
    /// Index of its first run.
    pub from: usize,
    /// Index after its last run.
    pub to: usize,
    /// Median of the level with its interval.
    pub figure: Estimate,
    /// Median over the median of the previous level; absent for the first level, and if the
    /// previous median is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// Splits a series, in its order, into levels; one level if nothing changed.
///
/// The caller must remove values that are not finite. An empty series has no level.
#[must_use]
pub fn split_levels(values: &[f64]) -> Vec<SeriesLevel> {
    let mut levels: Vec<SeriesLevel> = Vec::new();
    let mut from = 0;
    for to in find_boundaries(values).into_iter().chain([values.len()]) {
        let Some(figure) = estimate(&values[from..to]) else {
            break;
        };
        let before = levels.last().map(|level| level.figure.median);
        let ratio = before.filter(|before| *before != 0.0);
        levels.push(SeriesLevel {
            from,
            to,
            figure,
            ratio: ratio.map(|before| figure.median / before),
        });
        from = to;
    }
    levels
}

/// Returns the indices at which a new level starts, ascending.
fn find_boundaries(values: &[f64]) -> Vec<usize> {
    let n = values.len();
    if n < 2 * MIN_LEVEL_RUNS {
        return Vec::new();
    }
    let penalty = BOUNDARY_PENALTY * (n as f64).ln() * MEAN_OVER_SIGMA * noise_sigma(values);
    // best[t]: lowest cost of the first t values; came[t]: start of their last segment.
    let mut best = vec![f64::INFINITY; n + 1];
    let mut segment_starts = vec![0; n + 1];
    best[0] = -penalty;
    let mut candidates: Vec<SegmentStart> = Vec::new();
    for t in 1..=n {
        // A segment may start where the values before it have a valid split.
        if best[t - 1].is_finite() {
            candidates.push(SegmentStart::at(t - 1));
        }
        for start in &mut candidates {
            start.deviations.add(values[t - 1]);
            if t - start.from >= MIN_LEVEL_RUNS {
                let cost = best[start.from] + start.deviations.cost() + penalty;
                if cost < best[t] {
                    (best[t], segment_starts[t]) = (cost, start.from);
                }
            }
        }
        // PELT: a start whose cost exceeds that of a new segment here never wins again, but only
        // for segments that are long enough to start here.
        candidates.retain_mut(|start| {
            if start.worse_at.is_none() && best[start.from] + start.deviations.cost() >= best[t] {
                start.worse_at = Some(t);
            }
            start
                .worse_at
                .is_none_or(|worse_at| t - worse_at < MIN_LEVEL_RUNS)
        });
    }
    let mut found = Vec::new();
    let mut end = n;
    while end > 0 && segment_starts[end] > 0 {
        end = segment_starts[end];
        found.push(end);
    }
    found.reverse();
    found
}

/// Returns the standard deviation of the noise between consecutive runs: a change of level affects
/// one difference only.
fn noise_sigma(values: &[f64]) -> f64 {
    let steps: Vec<f64> = values
        .windows(2)
        .map(|two| (two[1] - two[0]).abs())
        .collect();
    let noise = median(&steps).unwrap_or(0.0) * SIGMA_OVER_MEDIAN / std::f64::consts::SQRT_2;
    let level = median(values).unwrap_or(0.0).abs();
    let smallest = (level * MIN_CHANGE_SHARE).max(f64::MIN_POSITIVE);
    noise.max(smallest)
}

/// Possible start of a segment.
struct SegmentStart {
    from: usize,
    deviations: DeviationSum,
    /// Index from which another start has a lower or equal cost.
    worse_at: Option<usize>,
}

impl SegmentStart {
    fn at(from: usize) -> Self {
        Self {
            from,
            deviations: DeviationSum::default(),
            worse_at: None,
        }
    }
}

/// A float with a total order, for the heaps.
#[derive(Clone, Copy, PartialEq)]
struct OrderedValue(f64);

impl Eq for OrderedValue {}

impl PartialOrd for OrderedValue {
    fn partial_cmp(&self, right: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(right))
    }
}

impl Ord for OrderedValue {
    fn cmp(&self, right: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&right.0)
    }
}

/// Running sum of absolute deviations of values from their median.
#[derive(Default)]
struct DeviationSum {
    low: BinaryHeap<OrderedValue>,
    high: BinaryHeap<Reverse<OrderedValue>>,
    low_sum: f64,
    high_sum: f64,
}

impl DeviationSum {
    fn add(&mut self, value: f64) {
        if self.low.peek().is_none_or(|top| value <= top.0) {
            self.low.push(OrderedValue(value));
            self.low_sum += value;
        } else {
            self.high.push(Reverse(OrderedValue(value)));
            self.high_sum += value;
        }
        if self.low.len() > self.high.len() + 1 {
            if let Some(OrderedValue(transferred)) = self.low.pop() {
                self.low_sum -= transferred;
                self.high.push(Reverse(OrderedValue(transferred)));
                self.high_sum += transferred;
            }
        } else if self.high.len() > self.low.len()
            && let Some(Reverse(OrderedValue(transferred))) = self.high.pop()
        {
            self.high_sum -= transferred;
            self.low.push(OrderedValue(transferred));
            self.low_sum += transferred;
        }
    }

    fn cost(&self) -> f64 {
        let middle = self.low.peek().map_or(0.0, |top| top.0);
        let below = middle * self.low.len() as f64 - self.low_sum;
        let above = self.high_sum - middle * self.high.len() as f64;
        (below + above).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(random: &mut fastrand::Rng) -> f64 {
        // The sum of twelve uniform numbers is close to normal, with standard deviation 1.
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    fn level_starts(values: &[f64]) -> Vec<usize> {
        split_levels(values)
            .iter()
            .map(|level| level.from)
            .collect()
    }

    #[test]
    fn steps_are_found_where_they_are() {
        let mut random = fastrand::Rng::with_seed(3);
        for (levels, expected) in [
            (&[(100.0, 20)][..], &[0][..]),
            (&[(100.0, 20), (120.0, 20)][..], &[0, 20][..]),
            (&[(100.0, 8), (70.0, 5), (100.0, 9)][..], &[0, 8, 13][..]),
            (&[(100.0, 3), (200.0, 3)][..], &[0, 3][..]),
        ] {
            let values: Vec<f64> = levels
                .iter()
                .flat_map(|&(level, count)| std::iter::repeat_n(level, count))
                .map(|level| level + 2.0 * noise(&mut random))
                .collect();
            assert_eq!(level_starts(&values), expected, "{levels:?}: {values:?}");
        }
    }

    #[test]
    fn one_outlier_is_no_level() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut values: Vec<f64> = (0..30).map(|_| 100.0 + noise(&mut random)).collect();
        values[14] = 900.0;
        values[29] = 0.0;
        assert_eq!(level_starts(&values), [0]);
    }

    #[test]
    fn noise_alone_rarely_makes_a_level() {
        let mut random = fastrand::Rng::with_seed(11);
        for length in [6, 12, 40, 200] {
            let wrong = (0..200)
                .filter(|_| {
                    let values: Vec<f64> = (0..length)
                        .map(|_| 1000.0 + 30.0 * noise(&mut random))
                        .collect();
                    !find_boundaries(&values).is_empty()
                })
                .count();
            assert!(wrong <= 10, "{wrong} of 200 series of {length}");
        }
    }

    #[test]
    fn an_even_series_has_one_level_and_a_small_drift_of_it_none() {
        assert_eq!(level_starts(&[5.0; 40]), [0]);
        let mut values = vec![1000.0; 20];
        values.extend([1001.0; 20]);
        assert_eq!(level_starts(&values), [0]);
        let last = values.len() - 20;
        values[last..].fill(1100.0);
        let found = split_levels(&values);
        assert_eq!((found.len(), found[1].to), (2, 40));
        assert_eq!(found[1].ratio, Some(1.1));
    }

    #[test]
    fn few_runs_are_one_level() {
        assert!(split_levels(&[]).is_empty());
        assert_eq!(level_starts(&[1.0, 100.0, 1.0, 100.0]), [0]);
    }

    /// Reference without pruning and without heaps.
    fn optimal_cost(values: &[f64]) -> f64 {
        let n = values.len();
        let penalty = BOUNDARY_PENALTY * (n as f64).ln() * MEAN_OVER_SIGMA * noise_sigma(values);
        let mut best = vec![f64::INFINITY; n + 1];
        best[0] = -penalty;
        for t in 1..=n {
            for s in 0..=t.saturating_sub(MIN_LEVEL_RUNS) {
                if t - s < MIN_LEVEL_RUNS || !best[s].is_finite() {
                    continue;
                }
                best[t] = best[t].min(best[s] + penalty + absolute_deviations(&values[s..t]));
            }
        }
        best[n]
    }

    fn absolute_deviations(values: &[f64]) -> f64 {
        let middle = median(values).unwrap();
        values.iter().map(|value| (value - middle).abs()).sum()
    }

    proptest! {
        #[test]
        fn levels_cover_the_series_and_cost_as_little_as_can_be(
            values in prop::collection::vec(0.0f64..100.0, 6..40)
        ) {
            let found = find_boundaries(&values);
            let penalty = BOUNDARY_PENALTY * (values.len() as f64).ln() * MEAN_OVER_SIGMA * noise_sigma(&values);
            let mut cost = penalty * found.len() as f64;
            let mut from = 0;
            for to in found.into_iter().chain([values.len()]) {
                prop_assert!(to - from >= MIN_LEVEL_RUNS);
                cost += absolute_deviations(&values[from..to]);
                from = to;
            }
            prop_assert!((cost - optimal_cost(&values)).abs() < 1e-6 * (1.0 + cost.abs()));
        }
    }
}
