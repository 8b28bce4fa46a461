//! Medians with intervals from few, noisy runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::power::{normal_tail, student_quantile};

/// Confidence of a median's interval.
pub const CONFIDENCE: f64 = 0.95;

/// Bootstrap resamples: with more, the bounds change by less than the third digit.
const BOOTSTRAP_RESAMPLES: usize = 2_000;

/// A median with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// Median of the runs.
    pub median: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Number of runs.
    pub runs: usize,
}

/// Returns the middle value, or the mean of the two middle values of an even number.
///
/// `None` without values. The caller must remove NaN.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the slope of y over x: the median of the slopes between all pairs (Theil-Sen), robust
/// against outliers in up to 29 % of the points. `None` if all points have the same x.
#[must_use]
pub fn theil_sen_slope(points: &[(f64, f64)]) -> Option<f64> {
    let mut slopes = Vec::new();
    for (position, one) in points.iter().enumerate() {
        let later_points = points[position + 1..]
            .iter()
            .filter(|later| later.0 != one.0);
        slopes.extend(later_points.map(|later| (later.1 - one.1) / (later.0 - one.0)));
    }
    median(&slopes)
}

/// Returns the median with a percentile-bootstrap interval ([`CONFIDENCE`], 2,000 resamples).
///
/// Formula: Efron's percentile interval. With fewer than six runs no interval can cover 95 %, so
/// the full range of the runs is returned instead. The same input gives the same interval, because
/// the seed is fixed.
#[must_use]
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = median_of_sorted(&sorted)?;
    let runs = sorted.len();
    if runs < 6 {
        return Some(Estimate {
            median,
            low: sorted[0],
            high: sorted[runs - 1],
            runs,
        });
    }
    let mut random = fastrand::Rng::with_seed(0x6c69_6e65_7261_7465);
    let mut resample = vec![0.0; runs];
    let mut medians: Vec<f64> = (0..BOOTSTRAP_RESAMPLES)
        .map(|_| {
            for slot in &mut resample {
                *slot = sorted[random.usize(..runs)];
            }
            resample.sort_by(f64::total_cmp);
            median_of_sorted(&resample).expect("a resample is as long as the sample")
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let at = |share: f64| medians[((BOOTSTRAP_RESAMPLES - 1) as f64 * share).round() as usize];
    Some(Estimate {
        median,
        low: at(tail),
        high: at(1.0 - tail),
        runs,
    })
}

/// Returns a figure of one or several samples with its bootstrap interval.
///
/// Each sample is resampled separately, 2,000 times. The interval is Efron's percentile interval,
/// widened for small samples: the normal quantile behind its bounds is replaced by Student's, times
/// √(n / (n − 1)) (Hesterberg 2015, section 5.3, the expanded percentile interval). The same input
/// gives the same interval. `None` if the figure is `None`; with fewer than two values in a sample
/// both bounds are the figure itself.
#[must_use]
pub fn bootstrap_interval(
    samples: &[&[f64]],
    confidence: f64,
    figure: impl Fn(&[Vec<f64>]) -> Option<f64>,
) -> Option<Estimate> {
    let mut drawn: Vec<Vec<f64>> = samples.iter().map(|sample| sample.to_vec()).collect();
    let median = figure(&drawn)?;
    let runs = samples.iter().map(|sample| sample.len()).min()?;
    let estimate = Estimate {
        median,
        low: median,
        high: median,
        runs,
    };
    if runs < 2 {
        return Some(estimate);
    }
    let mut random = fastrand::Rng::with_seed(0x6c69_6e65_7261_7465);
    let mut figures = Vec::with_capacity(BOOTSTRAP_RESAMPLES);
    for _ in 0..BOOTSTRAP_RESAMPLES {
        for (sample, drawn) in samples.iter().zip(&mut drawn) {
            for slot in drawn.iter_mut() {
                *slot = sample[random.usize(..sample.len())];
            }
        }
        figures.extend(figure(&drawn));
    }
    figures.sort_by(f64::total_cmp);
    let n = runs as f64;
    let freedom = u32::try_from(runs - 1).unwrap_or(u32::MAX);
    let wide = student_quantile((1.0 - confidence) / 2.0, freedom) * (n / (n - 1.0)).sqrt();
    let tail = normal_tail(wide);
    let at = |share: f64| figures[((figures.len() - 1) as f64 * share).round() as usize];
    Some(Estimate {
        low: at(tail).min(median),
        high: at(1.0 - tail).max(median),
        ..estimate
    })
}

/// Returns the ratio of paired figures `ours / theirs` with its interval, from the logarithm of
/// each pair.
///
/// Pairs with a figure that is not above zero are skipped.
#[must_use]
pub fn paired_ratio(pairs: &[(f64, f64)]) -> Option<Estimate> {
    let logs: Vec<f64> = pairs
        .iter()
        .filter(|(ours, theirs)| *ours > 0.0 && *theirs > 0.0)
        .map(|(ours, theirs)| (ours / theirs).ln())
        .collect();
    estimate(&logs).map(|logs| Estimate {
        median: logs.median.exp(),
        low: logs.low.exp(),
        high: logs.high.exp(),
        runs: logs.runs,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slopes() {
        let line = [(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)];
        assert_eq!(theil_sen_slope(&line), Some(2.0));
        assert_eq!(theil_sen_slope(&[(0.0, 1.0), (0.0, 2.0)]), None);
        assert_eq!(theil_sen_slope(&[]), None);
        // Two of the nine points are outliers.
        let noisy_points = |x: f64| [(x, 2.0 * x), (x, 2.0 * x + 0.1), (x, 2.0 * x - 0.1)];
        let mut runs = [noisy_points(0.0), noisy_points(2.0), noisy_points(4.0)].concat();
        (runs[0].1, runs[1].1) = (5.0, 5.2);
        let estimated = theil_sen_slope(&runs).unwrap();
        assert!((estimated - 2.0).abs() < 0.1, "{estimated}");
    }

    #[test]
    fn medians() {
        for (values, expected) in [
            (&[][..], None),
            (&[3.0][..], Some(3.0)),
            (&[1.0, 9.0, 2.0][..], Some(2.0)),
            (&[4.0, 1.0, 2.0, 3.0][..], Some(2.5)),
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_ratio_of_equal_pairs_is_one() {
        let pairs = [(5.0, 5.0); 10];
        let ratio = paired_ratio(&pairs).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn the_interval_covers_the_true_median_about_as_often_as_it_says() {
        // Uniform noise around 100: in 200 experiments of 15 runs, nearly all intervals contain
        // 100.
        let mut random = fastrand::Rng::with_seed(7);
        let covered = (0..200)
            .filter(|_| {
                let runs: Vec<f64> = (0..15).map(|_| 90.0 + 20.0 * random.f64()).collect();
                let estimate = estimate(&runs).unwrap();
                (estimate.low..=estimate.high).contains(&100.0)
            })
            .count();
        assert!((175..=200).contains(&covered), "{covered} of 200");
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_median(values in prop::collection::vec(0.0f64..1e12, 1..40)) {
            let estimate = estimate(&values).unwrap();
            prop_assert!(estimate.low <= estimate.median && estimate.median <= estimate.high);
        }
    }
}
