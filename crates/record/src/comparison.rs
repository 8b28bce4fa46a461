//! Comparison of one figure between two sides: the result of `compare`.
//!
//! Pairs are judged by the signed ranks of their logarithmic ratios, unpaired samples by the ranks
//! of all values. A figure that was zero in some run (losses, retransmits) has no ratio: then
//! differences are judged, as shares of the larger side. Everything here is arithmetic on measured
//! values.

use linerate_stats::power::pairs_needed;
use linerate_stats::rank_tests::{
    center_spread, hodges_lehmann_center, hodges_lehmann_shift, mann_whitney, signed_rank,
};
use linerate_stats::statistics::{Estimate, bootstrap_interval, estimate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Probability that two equal sides are called different.
///
/// It is divided among all interim analyses of the growing list of pairs. At least 95 of 100
/// comparisons of a thing with itself should end well: with 2 false results expected in 100, more
/// than 5 occur once in 65 such series.
pub const SIGNIFICANCE: f64 = 0.02;

/// Part of [`SIGNIFICANCE`] spent at the first analysis, after [`FIRST_ANALYSIS_PAIRS`] pairs: all
/// of them on one side (2 in 256).
pub const FIRST_SIGNIFICANCE: f64 = 0.008;

/// Part of [`SIGNIFICANCE`] spent at the last analysis.
pub const LAST_SIGNIFICANCE: f64 = SIGNIFICANCE - FIRST_SIGNIFICANCE;

/// Probability that a difference of the requested size is found with the planned number of pairs,
/// for normal noise. Outliers that the first pairs did not have reduce it: with one run in twenty
/// 30 % low, 95 of 100 are found.
pub const POWER: f64 = 0.995;

/// Pairs before the first analysis: the fewest that can be significant at its level.
pub const FIRST_ANALYSIS_PAIRS: usize = 8;

/// Confidence of the ratio's interval, if there are enough pairs for it.
pub const CONFIDENCE: f64 = 1.0 - SIGNIFICANCE;

/// Direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BetterWhen {
    /// Higher is better: rates.
    Higher,
    /// Lower is better: times and losses.
    Lower,
}

impl std::str::FromStr for BetterWhen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "higher" => Ok(Self::Higher),
            "lower" => Ok(Self::Lower),
            _ => Err(format!("`{text}` is not a direction: use higher or lower")),
        }
    }
}

/// Result of a comparison, for side B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ComparisonVerdict {
    /// B is better than A.
    Faster,
    /// B is worse than A.
    Slower,
    /// The difference is smaller than the requested effect.
    NoDifference,
    /// Too few pairs, or too much noise.
    Undecided,
}

/// Test that gave the p-value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RankTest {
    /// Wilcoxon's signed-rank test, of interleaved pairs.
    SignedRank,
    /// Mann-Whitney test, of two independent samples.
    MannWhitney,
}

/// Side of a comparison.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonSide {
    /// Name of the side: its options, its command, or the name of its record.
    pub label: String,
    /// Name that the user gave to the side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Command that ran before each of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<String>,
    /// Median and interval of its runs; absent without runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Estimate>,
    /// Ids of its records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<String>,
}

/// Run of each side, measured one right after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPair {
    /// Figure of A.
    pub a: f64,
    /// Figure of B.
    pub b: f64,
    /// True if B was measured first.
    pub b_first: bool,
    /// Round-trip time of a cache line between two processors before and after the pair, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "line_rtt_ns")]
    pub cache_line_rtt_ns: Option<[f64; 2]>,
    /// Reason for excluding the pair: `machine-state` (the distance of the processors changed
    /// within it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// Result of `compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Name of the figure for `--figure`, or the expression that extracted it.
    pub figure: String,
    /// Direction in which the figure improves.
    pub better: BetterWhen,
    /// Baseline side.
    pub a: ComparisonSide,
    /// Side that is judged.
    pub b: ComparisonSide,
    /// Pairs in their order; empty if the sides were measured separately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<RunPair>,
    /// Test that gave the p-value.
    pub test: RankTest,
    /// Ratio B / A with its interval at `confidence`; absent if a side has a figure that is not
    /// above zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Estimate>,
    /// Difference B - A in the unit of the figure, with an interval at the same confidence: where a
    /// figure was zero, so that there is no ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<Estimate>,
    /// Confidence of the interval: [`CONFIDENCE`], or less for few pairs.
    pub confidence: f64,
    /// Probability of ranks at least as uneven as these if the sides do not differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// Largest p-value at which the sides are called different.
    pub significance: f64,
    /// Smallest relative difference of interest.
    pub effect: f64,
    /// Pairs (or runs of each side, if measured separately) that find such a difference with
    /// probability [`POWER`] at the measured noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs_needed: Option<u64>,
    /// Upper bound of the difference from the interval: a share of A, or of the larger side if
    /// there is no ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_difference: Option<f64>,
    /// Verdict for B.
    pub verdict: ComparisonVerdict,
    /// True if B regressed: `slower`, and the interval reaches a loss of `effect`.
    pub regression: bool,
    /// Seed of the random order; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// Returns the fewest pairs (or runs of each side, if measured separately) that can be significant
/// at this level: with fewer, chance alone puts all of them in one order more often than that.
#[must_use]
pub fn min_samples(test: RankTest, significance: f64) -> usize {
    let fewest = (1..64).find(|&count| extreme_order_probability(test, count) <= significance);
    fewest.unwrap_or(usize::MAX)
}

/// Returns the two-sided probability that chance alone puts all pairs on one side, or all runs of
/// one side above those of the other.
fn extreme_order_probability(test: RankTest, count: usize) -> f64 {
    let doubled = (1..=count).fold(1.0, |orders, at| match test {
        RankTest::SignedRank => orders * 2.0,
        RankTest::MannWhitney => orders * (count + at) as f64 / at as f64,
    });
    (2.0 / doubled).min(1.0)
}

/// Returns the confidence of an interval over a number of pairs, or of runs of each side. No
/// resample exceeds the range of the runs, and chance puts the true ratio outside of that range
/// with [`extreme_order_probability`]'s probability.
fn interval_confidence(test: RankTest, count: usize) -> f64 {
    CONFIDENCE.min(1.0 - extreme_order_probability(test, count))
}

/// Interim analysis of the pairs measured so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InterimAnalysis {
    /// Ratio B / A; for figures at zero 1 + their difference as a share of the larger side.
    pub ratio: f64,
    /// P-value of Wilcoxon's test.
    pub p_value: f64,
    /// Pairs needed for the requested effect; `None`: more than a million.
    pub needed: Option<u64>,
}

/// Returns the logarithms of B / A. Excluded pairs, and pairs without two figures above zero, are
/// skipped.
#[must_use]
pub fn log_ratios(pairs: &[RunPair]) -> Vec<f64> {
    pairs
        .iter()
        .filter(|pair| pair.dropped.is_none() && pair.a > 0.0 && pair.b > 0.0)
        .map(|pair| (pair.b / pair.a).ln())
        .collect()
}

/// Differences within pairs, in the measure in which they are judged.
#[derive(Clone, Debug, PartialEq)]
pub struct PairDifferences {
    /// Logarithms of B / A, or (B - A) / `scale`, for each pair that counts.
    pub values: Vec<f64>,
    /// Larger side's mean, if a figure was zero or negative; `None` if all pairs have a ratio.
    pub scale: Option<f64>,
}

/// Returns the differences within pairs; excluded pairs are skipped.
#[must_use]
pub fn pair_differences(pairs: &[RunPair]) -> PairDifferences {
    let counted = || pairs.iter().filter(|pair| pair.dropped.is_none());
    if counted().all(|pair| pair.a > 0.0 && pair.b > 0.0) {
        return PairDifferences {
            values: log_ratios(pairs),
            scale: None,
        };
    }
    let values: [Vec<f64>; 2] = [
        counted().map(|pair| pair.a).collect(),
        counted().map(|pair| pair.b).collect(),
    ];
    let scale = larger_mean(&values);
    PairDifferences {
        values: (counted().map(|pair| share_of(pair.b - pair.a, scale))).collect(),
        scale: Some(scale),
    }
}

/// Returns the larger of the two sides' absolute means; zero if all values are.
fn larger_mean(values: &[Vec<f64>; 2]) -> f64 {
    let size = |values: &Vec<f64>| mean(values).map_or(0.0, f64::abs);
    size(&values[0]).max(size(&values[1]))
}

/// Returns a difference as a share of `scale`; 0 for a scale of zero.
fn share_of(difference: f64, scale: f64) -> f64 {
    if scale > 0.0 { difference / scale } else { 0.0 }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the standard deviation of a sample; `None` for fewer than two values.
fn standard_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares = values.iter().map(|value| (value - mean) * (value - mean));
    Some((squares.sum::<f64>() / (values.len() - 1) as f64).sqrt())
}

impl PairDifferences {
    /// Returns the location of the differences: Hodges and Lehmann's estimate, or the mean for
    /// figures at zero, because the median of a figure that is mostly zero is zero.
    fn center(&self, values: &[f64]) -> Option<f64> {
        match self.scale {
            None => hodges_lehmann_center(values),
            Some(_) => mean(values),
        }
    }

    fn spread(scale: Option<f64>, values: &[f64]) -> Option<f64> {
        match scale {
            None => center_spread(values),
            Some(_) => standard_deviation(values).filter(|_| values.len() >= 4),
        }
    }

    /// Converts a value to a share of A, or of the larger side.
    fn share(scale: Option<f64>, value: f64) -> f64 {
        match scale {
            None => value.exp_m1(),
            Some(_) => value,
        }
    }

    /// Converts the effect to the measure of the values.
    fn effect(scale: Option<f64>, effect: f64) -> f64 {
        match scale {
            None => effect.ln_1p(),
            Some(_) => effect,
        }
    }
}

impl InterimAnalysis {
    /// Returns true if the ratio differs from 1 by no more than the effect.
    #[must_use]
    pub fn is_within(&self, effect: f64) -> bool {
        (self.ratio - 1.0).abs() <= effect
    }
}

/// Analyses the differences of the pairs so far; `None` for fewer than four.
#[must_use]
pub fn analyze_interim(differences: &PairDifferences, effect: f64) -> Option<InterimAnalysis> {
    let spread = PairDifferences::spread(differences.scale, &differences.values)?;
    let effect = PairDifferences::effect(differences.scale, effect);
    Some(InterimAnalysis {
        ratio: 1.0
            + PairDifferences::share(differences.scale, differences.center(&differences.values)?),
        p_value: signed_rank(&differences.values)?,
        needed: pairs_needed(spread, effect, LAST_SIGNIFICANCE, POWER),
    })
}

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonSpec {
    /// Name of the figure.
    pub figure: String,
    /// Direction in which the figure improves.
    pub better: BetterWhen,
    /// Smallest relative difference of interest.
    pub effect: f64,
    /// Largest p-value at which the sides are called different.
    pub significance: f64,
}

/// Compares interleaved pairs.
#[must_use]
pub fn compare_pairs(
    spec: &ComparisonSpec,
    sides: [ComparisonSide; 2],
    pairs: Vec<RunPair>,
) -> Comparison {
    let found = pair_differences(&pairs);
    let counted = || pairs.iter().filter(|pair| pair.dropped.is_none());
    let values = [
        counted().map(|pair| pair.a).collect::<Vec<_>>(),
        counted().map(|pair| pair.b).collect(),
    ];
    let statistics = TestStatistics {
        test: RankTest::SignedRank,
        center: bootstrap_interval(&[&found.values], CONFIDENCE, |samples| {
            found.center(&samples[0])
        }),
        scale: found.scale,
        p_value: signed_rank(&found.values),
        needed: analyze_interim(&found, spec.effect).and_then(|analysis| analysis.needed),
        runs: found.values.len(),
    };
    build_comparison(spec, sides, &values, pairs, statistics)
}

/// Compares two independent samples.
#[must_use]
pub fn compare_samples(
    spec: &ComparisonSpec,
    sides: [ComparisonSide; 2],
    a: &[f64],
    b: &[f64],
) -> Comparison {
    let values = [a.to_vec(), b.to_vec()];
    let above = values.iter().flatten().all(|&value| value > 0.0);
    let scale = (!above).then(|| larger_mean(&values));
    let measure = |values: &[f64]| -> Vec<f64> {
        let of = |&value: &f64| scale.map_or_else(|| value.ln(), |scale| share_of(value, scale));
        values.iter().map(of).collect()
    };
    let (of_a, of_b) = (measure(a), measure(b));
    let center = bootstrap_interval(&[&of_a, &of_b], CONFIDENCE, |samples| match scale {
        None => hodges_lehmann_shift(&samples[0], &samples[1]),
        Some(_) => Some(mean(&samples[1])? - mean(&samples[0])?),
    });
    let spreads = PairDifferences::spread(scale, &of_a).zip(PairDifferences::spread(scale, &of_b));
    let statistics = TestStatistics {
        test: RankTest::MannWhitney,
        center,
        scale,
        p_value: mann_whitney(a, b),
        needed: spreads.and_then(|(a, b)| {
            let effect = PairDifferences::effect(scale, spec.effect);
            pairs_needed(a.hypot(b), effect, spec.significance, POWER)
        }),
        runs: a.len().min(b.len()),
    };
    build_comparison(spec, sides, &values, Vec::new(), statistics)
}

struct TestStatistics {
    test: RankTest,
    /// Location of the logarithms, or of the differences over `scale`.
    center: Option<Estimate>,
    scale: Option<f64>,
    p_value: Option<f64>,
    needed: Option<u64>,
    runs: usize,
}

fn build_comparison(
    spec: &ComparisonSpec,
    sides: [ComparisonSide; 2],
    values: &[Vec<f64>; 2],
    pairs: Vec<RunPair>,
    statistics: TestStatistics,
) -> Comparison {
    let [a, b] = sides;
    let each = |of: &dyn Fn(f64) -> f64| {
        statistics.center.map(|center| Estimate {
            median: of(center.median),
            low: of(center.low),
            high: of(center.high),
            runs: center.runs,
        })
    };
    let (ratio, difference) = match statistics.scale {
        None => (each(&f64::exp), None),
        Some(scale) => (None, each(&|share| share * scale)),
    };
    let shares = each(&|value| PairDifferences::share(statistics.scale, value));
    let largest = shares.map(|share| share.high.max(-share.low).max(0.0));
    let differs = statistics.p_value.is_some_and(|p| p <= spec.significance);
    let enough = statistics.runs >= FIRST_ANALYSIS_PAIRS
        && (statistics
            .needed
            .is_some_and(|needed| statistics.runs as u64 >= needed)
            || largest.is_some_and(|largest| largest <= spec.effect));
    let gain = shares.map(|share| match spec.better {
        BetterWhen::Higher => share.median,
        BetterWhen::Lower => -share.median,
    });
    let verdict = match gain {
        Some(gain) if differs && gain > 0.0 => ComparisonVerdict::Faster,
        Some(gain) if differs && gain < 0.0 => ComparisonVerdict::Slower,
        // An estimate beyond the effect without significance, from too few or too noisy pairs,
        // decides nothing.
        Some(gain) if enough && gain.abs() <= spec.effect => ComparisonVerdict::NoDifference,
        _ => ComparisonVerdict::Undecided,
    };
    let worst = shares.map(|share| match spec.better {
        BetterWhen::Higher => -share.low,
        BetterWhen::Lower => share.high,
    });
    Comparison {
        figure: spec.figure.clone(),
        better: spec.better,
        a: ComparisonSide {
            value: estimate(&values[0]),
            ..a
        },
        b: ComparisonSide {
            value: estimate(&values[1]),
            ..b
        },
        pairs,
        test: statistics.test,
        ratio,
        difference,
        confidence: interval_confidence(statistics.test, statistics.runs),
        p_value: statistics.p_value,
        significance: spec.significance,
        effect: spec.effect,
        pairs_needed: statistics.needed,
        largest_difference: largest,
        verdict,
        regression: verdict == ComparisonVerdict::Slower
            && worst.is_some_and(|worst| worst >= spec.effect),
        seed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(label: &str) -> ComparisonSide {
        ComparisonSide {
            label: label.to_owned(),
            ..ComparisonSide::default()
        }
    }

    fn spec(better: BetterWhen, effect: f64) -> ComparisonSpec {
        ComparisonSpec {
            figure: "goodput".to_owned(),
            better,
            effect,
            significance: SIGNIFICANCE,
        }
    }

    fn pairs(ratio: f64, noise: f64, count: usize, seed: u64) -> Vec<RunPair> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut value = |middle: f64| middle * (1.0 + noise * (random.f64() - 0.5));
        (0..count)
            .map(|number| RunPair {
                a: value(100.0),
                b: value(100.0 * ratio),
                b_first: number % 2 == 1,
                cache_line_rtt_ns: None,
                dropped: None,
            })
            .collect()
    }

    fn compare(better: BetterWhen, effect: f64, pairs: Vec<RunPair>) -> Comparison {
        compare_pairs(&spec(better, effect), [side("a"), side("b")], pairs)
    }

    #[test]
    fn verdicts_follow_the_direction_and_the_size() {
        for (ratio, better, effect, verdict, regression) in [
            (
                1.10,
                BetterWhen::Higher,
                0.05,
                ComparisonVerdict::Faster,
                false,
            ),
            (
                1.10,
                BetterWhen::Lower,
                0.05,
                ComparisonVerdict::Slower,
                true,
            ),
            (
                0.90,
                BetterWhen::Higher,
                0.05,
                ComparisonVerdict::Slower,
                true,
            ),
            (
                0.90,
                BetterWhen::Lower,
                0.05,
                ComparisonVerdict::Faster,
                false,
            ),
            // Significant, but smaller than the effect.
            (
                0.98,
                BetterWhen::Higher,
                0.05,
                ComparisonVerdict::Slower,
                false,
            ),
            (
                1.00,
                BetterWhen::Higher,
                0.05,
                ComparisonVerdict::NoDifference,
                false,
            ),
        ] {
            let comparison = compare(better, effect, pairs(ratio, 0.02, 12, 5));
            let context = format!("{ratio} {better:?}: {comparison:#?}");
            assert_eq!(comparison.verdict, verdict, "{context}");
            assert_eq!(comparison.regression, regression, "{context}");
            let ratio_estimate = comparison.ratio.unwrap();
            assert!(
                (ratio_estimate.median / ratio - 1.0).abs() < 0.02,
                "{context}"
            );
            assert!(
                ratio_estimate.low <= ratio_estimate.median
                    && ratio_estimate.median <= ratio_estimate.high,
                "{context}"
            );
        }
    }

    #[test]
    fn noise_and_few_pairs_leave_it_undecided() {
        let noisy = compare(BetterWhen::Higher, 0.05, pairs(1.0, 0.6, 10, 9));
        assert_eq!(noisy.verdict, ComparisonVerdict::Undecided, "{noisy:#?}");
        assert!(noisy.pairs_needed.unwrap() > 10);
        assert!(noisy.largest_difference.unwrap() > 0.05);
        let few = compare(BetterWhen::Higher, 0.05, pairs(2.0, 0.01, 3, 9));
        assert_eq!(few.verdict, ComparisonVerdict::Undecided);
        let none = compare(BetterWhen::Higher, 0.05, Vec::new());
        assert_eq!(
            (none.verdict, none.p_value),
            (ComparisonVerdict::Undecided, None)
        );
    }

    #[test]
    fn below_the_fewest_nothing_is_called_different_and_from_there_it_is() {
        assert_eq!(min_samples(RankTest::SignedRank, SIGNIFICANCE), 7);
        assert_eq!(
            min_samples(RankTest::SignedRank, FIRST_SIGNIFICANCE),
            FIRST_ANALYSIS_PAIRS
        );
        assert_eq!(min_samples(RankTest::MannWhitney, SIGNIFICANCE), 5);
        for (count, verdict) in [
            (6, ComparisonVerdict::Undecided),
            (7, ComparisonVerdict::Faster),
        ] {
            let comparison = compare(BetterWhen::Higher, 0.05, pairs(26.0, 0.01, count, 9));
            assert_eq!(comparison.verdict, verdict, "{count}");
        }
    }

    /// Three pairs have an interval of 75 % confidence, because no resample exceeds their range: 98
    /// % would contradict their p-value of 0.25.
    #[test]
    fn an_interval_of_few_pairs_is_called_no_surer_than_it_is() {
        for (count, sure) in [
            (1, 0.0),
            (3, 0.75),
            (6, 0.968_75),
            (7, CONFIDENCE),
            (40, CONFIDENCE),
        ] {
            let comparison = compare(BetterWhen::Higher, 0.05, pairs(2.0, 0.01, count, 9));
            assert!(
                (comparison.confidence - sure).abs() < 1e-9,
                "{count}: {comparison:?}"
            );
        }
        assert!((interval_confidence(RankTest::MannWhitney, 3) - 0.9).abs() < 1e-9);
        assert_eq!(interval_confidence(RankTest::MannWhitney, 5), CONFIDENCE);
        // The interval of three pairs contains the true ratio as often as its confidence.
        let holds = |seed: &u64| {
            let comparison = compare(BetterWhen::Higher, 0.05, pairs(1.0, 0.1, 3, *seed));
            let ratio = comparison.ratio.expect("nothing is zero");
            (ratio.low..=ratio.high).contains(&1.0)
        };
        let covered = (0..400).filter(holds).count();
        assert!((260..340).contains(&covered), "{covered} of 400");
    }

    #[test]
    fn a_pair_that_does_not_count_moves_nothing() {
        let mut with = pairs(1.1, 0.02, 12, 5);
        let without = compare(BetterWhen::Higher, 0.05, with.clone());
        with.push(RunPair {
            a: 1.0,
            b: 1e9,
            b_first: false,
            cache_line_rtt_ns: Some([110.0, 500.0]),
            dropped: Some("machine-state".to_owned()),
        });
        let with = compare(BetterWhen::Higher, 0.05, with);
        assert_eq!(with.ratio, without.ratio);
        assert_eq!(with.b.value, without.b.value);
    }

    #[test]
    fn independent_samples_use_mann_whitney() {
        let compare_unpaired = |ratio: f64, count| {
            let pairs = pairs(ratio, 0.03, count, 4);
            let a: Vec<f64> = pairs.iter().map(|pair| pair.a).collect();
            let b: Vec<f64> = pairs.iter().map(|pair| pair.b).collect();
            compare_samples(
                &spec(BetterWhen::Lower, 0.05),
                [side("a"), side("b")],
                &a,
                &b,
            )
        };
        let slower = compare_unpaired(1.1, 10);
        assert_eq!(slower.test, RankTest::MannWhitney);
        assert_eq!(slower.verdict, ComparisonVerdict::Slower, "{slower:#?}");
        assert!(slower.regression);
        assert_eq!(
            compare_unpaired(1.0, 12).verdict,
            ComparisonVerdict::NoDifference
        );
        assert_eq!(
            compare_unpaired(3.0, 1).verdict,
            ComparisonVerdict::Undecided
        );
    }

    /// Losses and retransmits are zero in a healthy run: there is a difference and no ratio.
    #[test]
    fn figures_at_zero_are_judged_by_their_difference() {
        let lost = [0.011, 0.009, 0.012, 0.008, 0.010, 0.013, 0.011, 0.009];
        let some = [0.0, 0.002, 0.0, 0.0, 0.001, 0.0, 0.0, 0.0];
        let none = [0.0; 8];
        for (a, b, better, verdict, regression) in [
            (
                none,
                lost,
                BetterWhen::Lower,
                ComparisonVerdict::Slower,
                true,
            ),
            (
                lost,
                none,
                BetterWhen::Lower,
                ComparisonVerdict::Faster,
                false,
            ),
            (
                none,
                lost,
                BetterWhen::Higher,
                ComparisonVerdict::Faster,
                false,
            ),
            (
                some,
                lost,
                BetterWhen::Lower,
                ComparisonVerdict::Slower,
                true,
            ),
            (
                none,
                none,
                BetterWhen::Lower,
                ComparisonVerdict::NoDifference,
                false,
            ),
            // Two of eight values above zero are not significant.
            (
                none,
                some,
                BetterWhen::Lower,
                ComparisonVerdict::Undecided,
                false,
            ),
        ] {
            let pair = |(&a, &b): (&f64, &f64)| RunPair {
                a,
                b,
                b_first: false,
                cache_line_rtt_ns: None,
                dropped: None,
            };
            let paired = compare(better, 0.05, a.iter().zip(&b).map(pair).collect());
            let sides = [side("a"), side("b")];
            let unpaired = compare_samples(&spec(better, 0.05), sides, &a, &b);
            for comparison in [paired, unpaired] {
                let context = format!("{a:?} {b:?} {better:?}: {comparison:#?}");
                assert_eq!(comparison.verdict, verdict, "{context}");
                assert_eq!(comparison.regression, regression, "{context}");
                assert_eq!(comparison.ratio, None, "{context}");
                let difference = comparison.difference.expect("it is known");
                let mean = |values: [f64; 8]| values.iter().sum::<f64>() / 8.0;
                let expected = mean(b) - mean(a);
                assert!((difference.median - expected).abs() < 1e-12, "{context}");
                assert!(
                    difference.low <= expected && expected <= difference.high,
                    "{context}"
                );
                assert!(comparison.p_value.is_some(), "{context}");
            }
        }
        // Without zeros there is a ratio.
        let comparison = compare(BetterWhen::Higher, 0.05, pairs(1.1, 0.02, 12, 5));
        assert!(comparison.ratio.is_some() && comparison.difference.is_none());
    }
}
