//! Scheduler of paired runs: random order within pairs, and a group sequential stopping rule.
//!
//! The pairs are analyzed twice, with significance levels that keep the p-values valid: once after
//! [`FIRST_ANALYSIS_PAIRS`] pairs, and once when there are as many as the noise requires. That
//! number depends on the spread of the pairs, never on which side is ahead. Pairs in two clusters
//! can reach it while their median is beyond the effect but not significant. Then they are analyzed
//! again when there are twice as many. Noise without a difference leads there so seldom that the
//! p-values stay valid.

use linerate_record::comparison::{
    FIRST_ANALYSIS_PAIRS, FIRST_SIGNIFICANCE, LAST_SIGNIFICANCE, RunPair, SIGNIFICANCE,
    analyze_interim, log_ratios, pair_differences,
};

/// Factor of measured pairs over required pairs: a machine that keeps changing its state might
/// never give enough.
pub const MAX_TRIES_PER_PAIR: usize = 3;

/// Minimum number of pairs that can be clear; two clusters of a machine do not look like this four
/// times in a row.
const MIN_CLEAR_PAIRS: usize = 4;

/// Multiple of the effect by which each of them must differ.
const CLEAR_EFFECT_FACTOR: f64 = 4.0;

/// Returns whether there are at least four pairs and each differs by four times the effect in the
/// same direction.
///
/// That suffices to keep a change that is verified later together with others; a rank test would
/// need many more pairs.
#[must_use]
pub fn is_clear(pairs: &[RunPair], effect: f64) -> bool {
    let log_ratios = log_ratios(pairs);
    let min_log_ratio = (CLEAR_EFFECT_FACTOR * effect).ln_1p();
    log_ratios.len() >= MIN_CLEAR_PAIRS
        && (log_ratios.iter().all(|log| *log >= min_log_ratio)
            || log_ratios.iter().all(|log| *log <= -min_log_ratio))
}

/// Number of pairs to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairBudget {
    /// This number of valid pairs, and at most [`MAX_TRIES_PER_PAIR`] times as many in total.
    Exactly(usize),
    /// The number that a decision needs, up to a limit.
    UntilDecided {
        /// Maximum number of pairs, dropped ones included.
        ///
        /// Up to [`MAX_TRIES_PER_PAIR`] times as many while there are fewer valid pairs than a test
        /// needs.
        limit: usize,
    },
}

impl PairBudget {
    /// Maximum number of pairs, dropped ones included.
    #[must_use]
    pub fn max_pairs(self) -> usize {
        match self {
            Self::Exactly(count) => count.saturating_mul(MAX_TRIES_PER_PAIR),
            Self::UntilDecided { limit } => limit,
        }
    }

    /// Significance level for pairs that end early; never higher than that of an analysis of their
    /// own.
    #[must_use]
    pub fn significance(self) -> f64 {
        match self {
            Self::Exactly(_) => SIGNIFICANCE,
            Self::UntilDecided { .. } => LAST_SIGNIFICANCE,
        }
    }
}

/// Next step after some pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairStep {
    /// Measure another pair.
    Measure {
        /// True if B runs before A.
        b_first: bool,
    },
    /// Judge the pairs.
    Judge {
        /// Significance level: the sides differ if the p-value is not above it.
        significance: f64,
    },
}

/// Scheduler of pairs of runs of two sides.
#[derive(Clone, Debug)]
pub struct PairScheduler {
    budget: PairBudget,
    effect: f64,
    random: fastrand::Rng,
    /// Order of the second pair of a block of two, the opposite of the first.
    pending_order: Option<bool>,
    is_analyzed: bool,
    /// Valid pairs required before the next analysis after the first.
    next_analysis_pairs: usize,
    /// True if clear pairs end the measurement.
    until_clear: bool,
}

impl PairScheduler {
    /// Scheduler for sides whose difference matters from `effect` on (0.05: 5 %).
    #[must_use]
    pub fn new(budget: PairBudget, effect: f64, seed: u64) -> Self {
        Self {
            budget,
            effect,
            random: fastrand::Rng::with_seed(seed),
            pending_order: None,
            is_analyzed: false,
            next_analysis_pairs: 0,
            until_clear: false,
        }
    }

    /// Ends as soon as the pairs are clear ([`is_clear`]); for callers that need no p-value.
    #[must_use]
    pub fn until_clear(mut self) -> Self {
        self.until_clear = true;
        self
    }

    /// Returns the next step for the pairs measured so far.
    pub fn next_step(&mut self, pairs: &[RunPair]) -> PairStep {
        if self.until_clear && is_clear(pairs, self.effect) {
            return PairStep::Judge {
                significance: LAST_SIGNIFICANCE,
            };
        }
        let found = pair_differences(pairs);
        let valid_pairs = found.values.len();
        match self.budget {
            PairBudget::Exactly(count) => {
                let has_enough = valid_pairs >= count || pairs.len() >= self.budget.max_pairs();
                match has_enough {
                    true => PairStep::Judge {
                        significance: SIGNIFICANCE,
                    },
                    false => self.next_pair(),
                }
            }
            PairBudget::UntilDecided { limit } => {
                // Fewer pairs than the first analysis needs decide nothing, however clear they are:
                // a machine that changed its state meanwhile would invalidate all of them.
                let has_too_few = valid_pairs < FIRST_ANALYSIS_PAIRS.min(limit);
                let is_full = pairs.len()
                    >= if has_too_few {
                        limit.saturating_mul(MAX_TRIES_PER_PAIR)
                    } else {
                        limit
                    };
                if valid_pairs < FIRST_ANALYSIS_PAIRS && !is_full {
                    return self.next_pair();
                }
                let Some(analysis) = analyze_interim(&found, self.effect) else {
                    return match is_full {
                        true => PairStep::Judge {
                            significance: LAST_SIGNIFICANCE,
                        },
                        false => self.next_pair(),
                    };
                };
                if !self.is_analyzed {
                    self.is_analyzed = true;
                    if analysis.p_value <= FIRST_SIGNIFICANCE {
                        return PairStep::Judge {
                            significance: FIRST_SIGNIFICANCE,
                        };
                    }
                }
                let has_enough = (analysis.needed)
                    .is_some_and(|needed| valid_pairs as u64 >= needed)
                    && valid_pairs >= self.next_analysis_pairs;
                let is_decided =
                    analysis.p_value <= LAST_SIGNIFICANCE || analysis.is_within(self.effect);
                if has_enough {
                    self.next_analysis_pairs = 2 * valid_pairs;
                }
                match has_enough && is_decided || is_full {
                    true => PairStep::Judge {
                        significance: LAST_SIGNIFICANCE,
                    },
                    false => self.next_pair(),
                }
            }
        }
    }

    /// The order is drawn per block of two pairs, one in each order: a drift favors neither side.
    fn next_pair(&mut self) -> PairStep {
        let b_first = match self.pending_order.take() {
            Some(b_first) => b_first,
            None => {
                let b_first = self.random.bool();
                self.pending_order = Some(!b_first);
                b_first
            }
        };
        PairStep::Measure { b_first }
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::comparison::{ComparisonVerdict, RankTest};
    use proptest::prelude::*;

    use super::*;

    /// Realistic noise: normal, drifting, and with occasional outliers.
    struct Noise {
        random: fastrand::Rng,
        deviation: f64,
        outlier_share: f64,
        drift: f64,
    }

    impl Noise {
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0
        }

        fn run(&mut self, center: f64) -> f64 {
            self.drift += 0.002 * self.normal();
            let outlier_factor = match self.random.f64() < self.outlier_share {
                true => 0.7,
                false => 1.0,
            };
            center * outlier_factor * (self.drift + self.deviation * self.normal()).exp()
        }
    }

    /// Verdict on B and the number of pairs.
    ///
    /// Leaves out the interval, which takes thousands of resamples and decides nothing here.
    fn compare(
        noise: &mut Noise,
        ratio: f64,
        effect: f64,
        seed: u64,
        limit: usize,
    ) -> (ComparisonVerdict, usize) {
        let mut scheduler = PairScheduler::new(PairBudget::UntilDecided { limit }, effect, seed);
        let mut pairs = Vec::new();
        loop {
            match scheduler.next_step(&pairs) {
                PairStep::Measure { b_first } => {
                    let first = noise.run(if b_first { ratio } else { 1.0 });
                    let second = noise.run(if b_first { 1.0 } else { ratio });
                    let (a, b) = match b_first {
                        true => (second, first),
                        false => (first, second),
                    };
                    pairs.push(pair(a, b, b_first));
                }
                PairStep::Judge { significance } => {
                    let analysis = analyze_interim(&pair_differences(&pairs), effect)
                        .expect("there are pairs");
                    let verdict = match analysis.p_value <= significance {
                        true if analysis.ratio > 1.0 => ComparisonVerdict::Faster,
                        true => ComparisonVerdict::Slower,
                        false
                            if analysis.is_within(effect)
                                && analysis.needed.is_some_and(|n| n <= pairs.len() as u64) =>
                        {
                            ComparisonVerdict::NoDifference
                        }
                        false => ComparisonVerdict::Undecided,
                    };
                    return (verdict, pairs.len());
                }
            }
        }
    }

    fn pair(a: f64, b: f64, b_first: bool) -> RunPair {
        RunPair {
            a,
            b,
            b_first,
            cache_line_rtt_ns: None,
            dropped: None,
        }
    }

    fn verdicts(ratio: f64, deviation: f64, outlier_share: f64) -> (usize, usize, usize, usize) {
        let mut counts = (0, 0, 0, 0);
        for seed in 0..100 {
            let mut noise = Noise {
                random: fastrand::Rng::with_seed(1_000 + seed),
                deviation,
                outlier_share,
                drift: 0.0,
            };
            let result = compare(&mut noise, ratio, 0.05, seed, 400);
            match result.0 {
                ComparisonVerdict::Faster => counts.0 += 1,
                ComparisonVerdict::Slower => counts.1 += 1,
                ComparisonVerdict::NoDifference => counts.2 += 1,
                ComparisonVerdict::Undecided => counts.3 += 1,
            }
        }
        counts
    }

    #[test]
    fn identical_sides_show_no_difference() {
        for (deviation, outlier_share) in [(0.01, 0.0), (0.04, 0.0), (0.03, 0.05)] {
            let counts = verdicts(1.0, deviation, outlier_share);
            assert!(counts.2 >= 95, "{deviation} {outlier_share}: {counts:?}");
        }
    }

    #[test]
    fn five_percent_are_found_with_the_required_pairs() {
        for (deviation, outlier_share) in [(0.01, 0.0), (0.04, 0.0), (0.03, 0.05)] {
            let counts = verdicts(1.05, deviation, outlier_share);
            assert!(counts.0 >= 95, "{deviation} {outlier_share}: {counts:?}");
            let counts = verdicts(0.95, deviation, outlier_share);
            assert!(counts.1 >= 95, "{deviation} {outlier_share}: {counts:?}");
        }
    }

    #[test]
    fn undecided_sides_use_the_remaining_pairs() {
        let mut undecided_early = Vec::new();
        let mut different = 0;
        for seed in 0..200 {
            // Two clusters, as of a machine that halves its clock; each side falls into either at
            // random.
            let mut random = fastrand::Rng::with_seed(seed);
            let mut scheduler =
                PairScheduler::new(PairBudget::UntilDecided { limit: 100 }, 0.05, seed);
            let mut pairs = Vec::new();
            let significance = loop {
                match scheduler.next_step(&pairs) {
                    PairStep::Judge { significance } => break significance,
                    PairStep::Measure { b_first } => {
                        let mut run = || if random.f64() < 0.2 { 0.9 } else { 1.0 };
                        let (a, b) = (run(), run());
                        let noise = 1.0 + 0.002 * (random.f64() - 0.5);
                        pairs.push(pair(a, b * noise, b_first));
                    }
                }
            };
            let analysis =
                analyze_interim(&pair_differences(&pairs), 0.05).expect("there are pairs");
            let differs = analysis.p_value <= significance;
            different += usize::from(differs);
            if !differs && !analysis.is_within(0.05) && pairs.len() < 100 {
                undecided_early.push((seed, pairs.len(), analysis));
            }
        }
        assert!(undecided_early.is_empty(), "{undecided_early:?}");
        assert!(different <= 10, "{different} of 200 of a thing with itself");
    }

    #[test]
    fn a_large_difference_is_decided_at_the_first_analysis() {
        let mut noise = Noise {
            random: fastrand::Rng::with_seed(5),
            deviation: 0.3,
            outlier_share: 0.0,
            drift: 0.0,
        };
        let result = compare(&mut noise, 8.0, 0.05, 1, 400);
        assert_eq!(result, (ComparisonVerdict::Faster, FIRST_ANALYSIS_PAIRS));
    }

    #[test]
    fn pairs_that_do_not_count_are_measured_again_up_to_a_bound() {
        for (every, measured, counting) in [(2, 12, 6), (usize::MAX, 6, 6), (1, 18, 0)] {
            let mut scheduler = PairScheduler::new(PairBudget::Exactly(6), 0.05, 1);
            let mut pairs = Vec::new();
            while let PairStep::Measure { b_first } = scheduler.next_step(&pairs) {
                let mut next = pair(1.0, 1.1, b_first);
                if (pairs.len() + 1).is_multiple_of(every) {
                    next.dropped = Some("machine-state".to_owned());
                }
                pairs.push(next);
                assert!(pairs.len() < 100);
            }
            // The last pair is valid where every second one is not.
            let min_pairs = measured - usize::from(every == 2);
            assert!((min_pairs..=measured).contains(&pairs.len()), "{every}");
            assert_eq!(log_ratios(&pairs).len(), counting, "{every}");
        }
    }

    /// Pairs ended by Ctrl-C or a failed run are not judged at 2 % in addition to the regular
    /// analyses.
    #[test]
    fn pairs_that_end_early_are_judged_as_at_an_analysis() {
        let limit = 100;
        for (budget, min_samples) in [
            (PairBudget::UntilDecided { limit }, 8),
            (PairBudget::Exactly(20), 7),
        ] {
            let significance = budget.significance();
            let required_samples =
                linerate_record::comparison::min_samples(RankTest::SignedRank, significance);
            assert_eq!(required_samples, min_samples, "{budget:?}");
        }
    }

    /// Two sides without loss are equal, and pairs in which only one side has no loss are valid.
    #[test]
    fn figures_at_zero_come_to_an_end() {
        for (a, b, measured, p_value) in [
            (0.0, 0.0, FIRST_ANALYSIS_PAIRS, 1.0),
            (0.0, 0.01, FIRST_ANALYSIS_PAIRS, 2.0 / 256.0),
        ] {
            let mut scheduler =
                PairScheduler::new(PairBudget::UntilDecided { limit: 100 }, 0.05, 3);
            let mut pairs = Vec::new();
            while let PairStep::Measure { b_first } = scheduler.next_step(&pairs) {
                pairs.push(pair(a, b, b_first));
                assert!(pairs.len() <= 100);
            }
            assert_eq!(pairs.len(), measured, "{a} {b}");
            let analysis =
                analyze_interim(&pair_differences(&pairs), 0.05).expect("there are pairs");
            assert!(
                (analysis.p_value - p_value).abs() < 1e-9,
                "{a} {b}: {analysis:?}"
            );
        }
    }

    #[test]
    fn clear_pairs_end_a_comparison_without_p_value() {
        for (ratio, measured) in [(0.5, 4), (1.3, 4), (0.9, 8), (1.0, 8)] {
            let budget = PairBudget::UntilDecided { limit: 20 };
            let mut scheduler = PairScheduler::new(budget, 0.05, 3).until_clear();
            let mut pairs = Vec::new();
            while let PairStep::Measure { b_first } = scheduler.next_step(&pairs) {
                let noise = 1.0 + 0.001 * pairs.len() as f64;
                pairs.push(pair(1.0, ratio * noise, b_first));
            }
            assert_eq!(pairs.len(), measured, "{ratio}");
        }
        // One of the pairs differs in the opposite direction.
        let mixed = [0.5, 0.5, 1.6, 0.5].map(|ratio| pair(1.0, ratio, false));
        assert!(!is_clear(&mixed, 0.05));
    }

    #[test]
    fn pairs_that_do_not_count_leave_a_clear_difference_decided() {
        // Every `every`th pair is invalid; the difference is a factor of thirty.
        for (limit, every, measured, verdict) in [
            (10, 3, 11, ComparisonVerdict::Slower),
            (10, 2, 15, ComparisonVerdict::Slower),
            (10, 1, 30, ComparisonVerdict::Undecided),
            (10, usize::MAX, 8, ComparisonVerdict::Slower),
            (5, usize::MAX, 5, ComparisonVerdict::Undecided),
        ] {
            let mut scheduler = PairScheduler::new(PairBudget::UntilDecided { limit }, 0.05, 3);
            let mut pairs = Vec::new();
            let significance = loop {
                match scheduler.next_step(&pairs) {
                    PairStep::Judge { significance } => break significance,
                    PairStep::Measure { b_first } => {
                        let mut next = pair(30.0, 1.0, b_first);
                        if (pairs.len() + 1).is_multiple_of(every) {
                            next.dropped = Some("machine-state".to_owned());
                        }
                        pairs.push(next);
                    }
                }
            };
            let analysis = analyze_interim(&pair_differences(&pairs), 0.05);
            let result = match analysis {
                Some(analysis) if analysis.p_value <= significance => ComparisonVerdict::Slower,
                _ => ComparisonVerdict::Undecided,
            };
            assert_eq!(
                (pairs.len(), result),
                (measured, verdict),
                "{limit} {every}"
            );
        }
    }

    #[test]
    fn the_limit_ends_what_noise_would_not() {
        let mut noise = Noise {
            random: fastrand::Rng::with_seed(5),
            deviation: 0.5,
            outlier_share: 0.0,
            drift: 0.0,
        };
        let result = compare(&mut noise, 1.0, 0.01, 1, 12);
        assert_eq!(result, (ComparisonVerdict::Undecided, 12));
    }

    proptest! {
        #[test]
        fn each_side_is_first_as_often_as_the_other(seed: u64, two in 1usize..20) {
            let mut turns = PairScheduler::new(PairBudget::Exactly(2 * two), 0.05, seed);
            let mut pairs = Vec::new();
            while let PairStep::Measure { b_first } = turns.next_step(&pairs) {
                pairs.push(pair(1.0, 1.0, b_first));
            }
            prop_assert_eq!(pairs.len(), 2 * two);
            prop_assert_eq!(pairs.iter().filter(|pair| pair.b_first).count(), two);
        }
    }
}
