//! Scheduler of paired runs: random order within pairs, and a group sequential stopping rule.
//!
//! The pairs are analyzed twice, with significance levels that keep the p-values valid: once after
//! [`FIRST_LOOK`] pairs, and once when there are as many as the noise requires. That number depends
//! on
//! the spread of the pairs, never on which side is ahead. Pairs in two clusters can reach it while
//! their median is beyond the effect but not significant. Then they are analyzed again when there
//! are
//! twice as many. Noise without a difference leads there so seldom that the p-values stay valid.

use linerate_metric::comparison::{
    FIRST_LOOK, FIRST_SIGNIFICANCE, LAST_SIGNIFICANCE, Pair, SIGNIFICANCE, differences, logs, look,
};

/// Factor of measured pairs over required pairs: a machine that keeps changing its state might
/// never give enough.
pub const TRIES: usize = 3;

/// Minimum number of pairs that can be clear; two clusters of a machine do not look like this four
/// times in a row.
const CLEAR_PAIRS: usize = 4;

/// Multiple of the effect by which each of them must differ.
const CLEAR_EFFECTS: f64 = 4.0;

/// Returns whether there are at least four pairs and each differs by four times the effect in the
/// same direction.
///
/// That suffices to keep a change that is verified later together with others; a rank test would
/// need
/// many more pairs.
#[must_use]
pub fn is_clear(pairs: &[Pair], effect: f64) -> bool {
    let logs = logs(pairs);
    let least = (CLEAR_EFFECTS * effect).ln_1p();
    logs.len() >= CLEAR_PAIRS
        && (logs.iter().all(|log| *log >= least) || logs.iter().all(|log| *log <= -least))
}

/// Number of pairs to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of valid pairs, and at most [`TRIES`] times as many in total.
    Exactly(usize),
    /// The number that a decision needs, up to a limit.
    UntilDecided {
        /// Maximum number of pairs, dropped ones included.
        ///
        /// Up to [`TRIES`] times as many while there are fewer valid pairs than a test needs.
        limit: usize,
    },
}

impl Amount {
    /// Maximum number of pairs, dropped ones included.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Self::Exactly(count) => count.saturating_mul(TRIES),
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
pub enum Next {
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
pub struct Interleave {
    amount: Amount,
    effect: f64,
    random: fastrand::Rng,
    /// Order of the second pair of a block of two, the opposite of the first.
    owed: Option<bool>,
    looked: bool,
    /// Valid pairs required before the next analysis after the first.
    next_look: usize,
    /// True if clear pairs end the measurement.
    until_clear: bool,
}

impl Interleave {
    /// Scheduler for sides whose difference matters from `effect` on (0.05: 5 %).
    #[must_use]
    pub fn new(amount: Amount, effect: f64, seed: u64) -> Self {
        Self {
            amount,
            effect,
            random: fastrand::Rng::with_seed(seed),
            owed: None,
            looked: false,
            next_look: 0,
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
    pub fn next(&mut self, pairs: &[Pair]) -> Next {
        if self.until_clear && is_clear(pairs, self.effect) {
            return Next::Judge {
                significance: LAST_SIGNIFICANCE,
            };
        }
        let found = differences(pairs);
        let counting = found.values.len();
        match self.amount {
            Amount::Exactly(count) => {
                let enough = counting >= count || pairs.len() >= self.amount.most();
                match enough {
                    true => Next::Judge {
                        significance: SIGNIFICANCE,
                    },
                    false => self.measure(),
                }
            }
            Amount::UntilDecided { limit } => {
                // Fewer pairs than the first analysis needs decide nothing, however clear they are:
                // a machine that
                // changed its state meanwhile would invalidate all of them.
                let few = counting < FIRST_LOOK.min(limit);
                let full = pairs.len()
                    >= if few {
                        limit.saturating_mul(TRIES)
                    } else {
                        limit
                    };
                if counting < FIRST_LOOK && !full {
                    return self.measure();
                }
                let Some(look) = look(&found, self.effect) else {
                    return match full {
                        true => Next::Judge {
                            significance: LAST_SIGNIFICANCE,
                        },
                        false => self.measure(),
                    };
                };
                if !self.looked {
                    self.looked = true;
                    if look.p_value <= FIRST_SIGNIFICANCE {
                        return Next::Judge {
                            significance: FIRST_SIGNIFICANCE,
                        };
                    }
                }
                let enough = (look.needed).is_some_and(|needed| counting as u64 >= needed)
                    && counting >= self.next_look;
                let decided = look.p_value <= LAST_SIGNIFICANCE || look.is_within(self.effect);
                if enough {
                    self.next_look = 2 * counting;
                }
                match enough && decided || full {
                    true => Next::Judge {
                        significance: LAST_SIGNIFICANCE,
                    },
                    false => self.measure(),
                }
            }
        }
    }

    /// The order is drawn per block of two pairs, one in each order: a drift favors neither side.
    fn measure(&mut self) -> Next {
        let b_first = match self.owed.take() {
            Some(b_first) => b_first,
            None => {
                let b_first = self.random.bool();
                self.owed = Some(!b_first);
                b_first
            }
        };
        Next::Measure { b_first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::comparison::{Test, Verdict};
    use proptest::prelude::*;

    /// Realistic noise: normal, drifting, and with occasional outliers.
    struct Noise {
        random: fastrand::Rng,
        deviation: f64,
        wild: f64,
        drift: f64,
    }

    impl Noise {
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0
        }

        fn run(&mut self, middle: f64) -> f64 {
            self.drift += 0.002 * self.normal();
            let wild = match self.random.f64() < self.wild {
                true => 0.7,
                false => 1.0,
            };
            middle * wild * (self.drift + self.deviation * self.normal()).exp()
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
    ) -> (Verdict, usize) {
        let mut turns = Interleave::new(Amount::UntilDecided { limit }, effect, seed);
        let mut pairs = Vec::new();
        loop {
            match turns.next(&pairs) {
                Next::Measure { b_first } => {
                    let first = noise.run(if b_first { ratio } else { 1.0 });
                    let second = noise.run(if b_first { 1.0 } else { ratio });
                    let (a, b) = match b_first {
                        true => (second, first),
                        false => (first, second),
                    };
                    pairs.push(pair(a, b, b_first));
                }
                Next::Judge { significance } => {
                    let seen = look(&differences(&pairs), effect).expect("there are pairs");
                    let verdict = match seen.p_value <= significance {
                        true if seen.ratio > 1.0 => Verdict::Faster,
                        true => Verdict::Slower,
                        false
                            if seen.is_within(effect)
                                && seen.needed.is_some_and(|n| n <= pairs.len() as u64) =>
                        {
                            Verdict::NoDifference
                        }
                        false => Verdict::Undecided,
                    };
                    return (verdict, pairs.len());
                }
            }
        }
    }

    fn pair(a: f64, b: f64, b_first: bool) -> Pair {
        Pair {
            a,
            b,
            b_first,
            line_rtt_ns: None,
            dropped: None,
        }
    }

    fn verdicts(ratio: f64, deviation: f64, wild: f64) -> (usize, usize, usize, usize) {
        let mut counts = (0, 0, 0, 0);
        for seed in 0..100 {
            let mut noise = Noise {
                random: fastrand::Rng::with_seed(1_000 + seed),
                deviation,
                wild,
                drift: 0.0,
            };
            let found = compare(&mut noise, ratio, 0.05, seed, 400);
            match found.0 {
                Verdict::Faster => counts.0 += 1,
                Verdict::Slower => counts.1 += 1,
                Verdict::NoDifference => counts.2 += 1,
                Verdict::Undecided => counts.3 += 1,
            }
        }
        counts
    }

    #[test]
    fn of_a_thing_with_itself_no_difference_is_found() {
        for (deviation, wild) in [(0.01, 0.0), (0.04, 0.0), (0.03, 0.05)] {
            let counts = verdicts(1.0, deviation, wild);
            assert!(counts.2 >= 95, "{deviation} {wild}: {counts:?}");
        }
    }

    #[test]
    fn five_percent_are_found_with_the_pairs_that_it_asks_for() {
        for (deviation, wild) in [(0.01, 0.0), (0.04, 0.0), (0.03, 0.05)] {
            let counts = verdicts(1.05, deviation, wild);
            assert!(counts.0 >= 95, "{deviation} {wild}: {counts:?}");
            let counts = verdicts(0.95, deviation, wild);
            assert!(counts.1 >= 95, "{deviation} {wild}: {counts:?}");
        }
    }

    #[test]
    fn what_is_not_decided_uses_the_pairs_that_are_left() {
        let mut ended_early = Vec::new();
        let mut different = 0;
        for seed in 0..200 {
            // Two clusters, as of a machine that halves its clock; each side falls into either at
            // random.
            let mut random = fastrand::Rng::with_seed(seed);
            let mut turns = Interleave::new(Amount::UntilDecided { limit: 100 }, 0.05, seed);
            let mut pairs = Vec::new();
            let significance = loop {
                match turns.next(&pairs) {
                    Next::Judge { significance } => break significance,
                    Next::Measure { b_first } => {
                        let mut run = || if random.f64() < 0.2 { 0.9 } else { 1.0 };
                        let (a, b) = (run(), run());
                        let noise = 1.0 + 0.002 * (random.f64() - 0.5);
                        pairs.push(pair(a, b * noise, b_first));
                    }
                }
            };
            let seen = look(&differences(&pairs), 0.05).expect("there are pairs");
            let differs = seen.p_value <= significance;
            different += usize::from(differs);
            if !differs && !seen.is_within(0.05) && pairs.len() < 100 {
                ended_early.push((seed, pairs.len(), seen));
            }
        }
        assert!(ended_early.is_empty(), "{ended_early:?}");
        assert!(different <= 10, "{different} of 200 of a thing with itself");
    }

    #[test]
    fn a_large_difference_is_decided_at_the_first_look() {
        let mut noise = Noise {
            random: fastrand::Rng::with_seed(5),
            deviation: 0.3,
            wild: 0.0,
            drift: 0.0,
        };
        let found = compare(&mut noise, 8.0, 0.05, 1, 400);
        assert_eq!(found, (Verdict::Faster, FIRST_LOOK));
    }

    #[test]
    fn pairs_that_do_not_count_are_measured_again_up_to_a_bound() {
        for (every, measured, counting) in [(2, 12, 6), (usize::MAX, 6, 6), (1, 18, 0)] {
            let mut turns = Interleave::new(Amount::Exactly(6), 0.05, 1);
            let mut pairs = Vec::new();
            while let Next::Measure { b_first } = turns.next(&pairs) {
                let mut next = pair(1.0, 1.1, b_first);
                if (pairs.len() + 1).is_multiple_of(every) {
                    next.dropped = Some("machine-state".to_owned());
                }
                pairs.push(next);
                assert!(pairs.len() < 100);
            }
            // The last pair is valid where every second one is not.
            let least = measured - usize::from(every == 2);
            assert!((least..=measured).contains(&pairs.len()), "{every}");
            assert_eq!(logs(&pairs).len(), counting, "{every}");
        }
    }

    /// Pairs ended by Ctrl-C or a failed run are not judged at 2 % in addition to the regular
    /// analyses.
    #[test]
    fn what_ends_early_is_judged_as_at_a_look() {
        let limit = 100;
        for (amount, fewest) in [
            (Amount::UntilDecided { limit }, 8),
            (Amount::Exactly(20), 7),
        ] {
            let significance = amount.significance();
            let least = linerate_metric::comparison::fewest(Test::SignedRank, significance);
            assert_eq!(least, fewest, "{amount:?}");
        }
    }

    /// Two sides without loss are equal, and pairs in which only one side has no loss are valid.
    #[test]
    fn figures_at_zero_come_to_an_end() {
        for (a, b, measured, p_value) in [
            (0.0, 0.0, FIRST_LOOK, 1.0),
            (0.0, 0.01, FIRST_LOOK, 2.0 / 256.0),
        ] {
            let mut turns = Interleave::new(Amount::UntilDecided { limit: 100 }, 0.05, 3);
            let mut pairs = Vec::new();
            while let Next::Measure { b_first } = turns.next(&pairs) {
                pairs.push(pair(a, b, b_first));
                assert!(pairs.len() <= 100);
            }
            assert_eq!(pairs.len(), measured, "{a} {b}");
            let seen = look(&differences(&pairs), 0.05).expect("there are pairs");
            assert!((seen.p_value - p_value).abs() < 1e-9, "{a} {b}: {seen:?}");
        }
    }

    #[test]
    fn clear_pairs_end_a_question_that_needs_no_p_value() {
        for (ratio, measured) in [(0.5, 4), (1.3, 4), (0.9, 8), (1.0, 8)] {
            let amount = Amount::UntilDecided { limit: 20 };
            let mut turns = Interleave::new(amount, 0.05, 3).until_clear();
            let mut pairs = Vec::new();
            while let Next::Measure { b_first } = turns.next(&pairs) {
                let noise = 1.0 + 0.001 * pairs.len() as f64;
                pairs.push(pair(1.0, ratio * noise, b_first));
            }
            assert_eq!(pairs.len(), measured, "{ratio}");
        }
        // One of the pairs differs in the opposite direction.
        let wild = [0.5, 0.5, 1.6, 0.5].map(|ratio| pair(1.0, ratio, false));
        assert!(!is_clear(&wild, 0.05));
    }

    #[test]
    fn pairs_that_do_not_count_leave_a_clear_difference_decided() {
        // Every `every`th pair is invalid; the difference is a factor of thirty.
        for (limit, every, measured, verdict) in [
            (10, 3, 11, Verdict::Slower),
            (10, 2, 15, Verdict::Slower),
            (10, 1, 30, Verdict::Undecided),
            (10, usize::MAX, 8, Verdict::Slower),
            (5, usize::MAX, 5, Verdict::Undecided),
        ] {
            let mut turns = Interleave::new(Amount::UntilDecided { limit }, 0.05, 3);
            let mut pairs = Vec::new();
            let significance = loop {
                match turns.next(&pairs) {
                    Next::Judge { significance } => break significance,
                    Next::Measure { b_first } => {
                        let mut next = pair(30.0, 1.0, b_first);
                        if (pairs.len() + 1).is_multiple_of(every) {
                            next.dropped = Some("machine-state".to_owned());
                        }
                        pairs.push(next);
                    }
                }
            };
            let seen = look(&differences(&pairs), 0.05);
            let found = match seen {
                Some(seen) if seen.p_value <= significance => Verdict::Slower,
                _ => Verdict::Undecided,
            };
            assert_eq!((pairs.len(), found), (measured, verdict), "{limit} {every}");
        }
    }

    #[test]
    fn the_limit_ends_what_noise_would_not() {
        let mut noise = Noise {
            random: fastrand::Rng::with_seed(5),
            deviation: 0.5,
            wild: 0.0,
            drift: 0.0,
        };
        let found = compare(&mut noise, 1.0, 0.01, 1, 12);
        assert_eq!(found, (Verdict::Undecided, 12));
    }

    proptest! {
        #[test]
        fn each_side_is_first_as_often_as_the_other(seed: u64, two in 1usize..20) {
            let mut turns = Interleave::new(Amount::Exactly(2 * two), 0.05, seed);
            let mut pairs = Vec::new();
            while let Next::Measure { b_first } = turns.next(&pairs) {
                pairs.push(pair(1.0, 1.0, b_first));
            }
            prop_assert_eq!(pairs.len(), 2 * two);
            prop_assert_eq!(pairs.iter().filter(|pair| pair.b_first).count(), two);
        }
    }
}
