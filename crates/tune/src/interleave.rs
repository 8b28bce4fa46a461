//! Pairs of runs that take turns in random order, and when there are enough of them.
//!
//! The sides are looked at twice, so that their p-values stay true: once after
//! [`FIRST_LOOK`] pairs, and once when there are as many as the noise asks for. How many that is depends
//! on how the pairs spread, never on which side is ahead. Pairs that fall into two heaps can be as many, and
//! still have their middle beyond the effect without being sure of it: then they are looked at again when
//! there are twice as many, which noise around no difference comes to so seldom that the p-values stay true.

use linerate_metric::comparison::{
    FIRST_LOOK, FIRST_SIGNIFICANCE, LAST_SIGNIFICANCE, Pair, SIGNIFICANCE, differences, logs, look,
};

/// Pairs that are measured at most for each that was asked for: a machine that changes its state all the
/// time would never give as many that count.
pub const TRIES: usize = 3;

/// Pairs that can be clear; two heaps of a machine do not look like this four times in a row.
const CLEAR_PAIRS: usize = 4;

/// How many times the effect each of them differs.
const CLEAR_EFFECTS: f64 = 4.0;

/// Whether each of at least four pairs differs by four times the effect, all of them one way: enough to keep a
/// change that is proved together with others later, long before ranks could tell.
#[must_use]
pub fn is_clear(pairs: &[Pair], effect: f64) -> bool {
    let logs = logs(pairs);
    let least = (CLEAR_EFFECTS * effect).ln_1p();
    logs.len() >= CLEAR_PAIRS
        && (logs.iter().all(|log| *log >= least) || logs.iter().all(|log| *log <= -least))
}

/// How many pairs to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many that count, and no more than [`TRIES`] times as many in all.
    Exactly(usize),
    /// Until it is decided, and no more than these.
    UntilDecided {
        /// The most that may be measured, dropped ones included; more, up to [`TRIES`] times as many, only
        /// while those that count are fewer than could be told apart.
        limit: usize,
    },
}

impl Amount {
    /// Pairs that are measured at most, dropped ones included.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Self::Exactly(count) => count.saturating_mul(TRIES),
            Self::UntilDecided { limit } => limit,
        }
    }

    /// Below which p-value sides are called different whose pairs end before they were to: never more than they would
    /// have been by a look of their own.
    #[must_use]
    pub fn significance(self) -> f64 {
        match self {
            Self::Exactly(_) => SIGNIFICANCE,
            Self::UntilDecided { .. } => LAST_SIGNIFICANCE,
        }
    }
}

/// What to do after some pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Measure another pair.
    Measure {
        /// B before A.
        b_first: bool,
    },
    /// Judge them, at this significance.
    Judge {
        /// Below which p-value the sides are called different.
        significance: f64,
    },
}

/// Two sides that take turns.
#[derive(Clone, Debug)]
pub struct Interleave {
    amount: Amount,
    effect: f64,
    random: fastrand::Rng,
    /// The order of the second pair of two, which is the other one.
    owed: Option<bool>,
    looked: bool,
    /// Pairs that count before the next look after the first.
    next_look: usize,
    /// Whether pairs that are clear end it.
    until_clear: bool,
}

impl Interleave {
    /// Sides whose difference is worth knowing from `effect` on (0.05: 5 %).
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

    /// Ends as soon as the pairs are clear ([`is_clear`]), for who needs no p-value.
    #[must_use]
    pub fn until_clear(mut self) -> Self {
        self.until_clear = true;
        self
    }

    /// What to do now that there are these pairs.
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
                // Fewer than the first look takes decide nothing, however clear they are: a machine that changed
                // its state meanwhile would have made all of them vain.
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

    /// The order is drawn for two pairs at a time, one each way: a drift favours neither side.
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

    /// Noise as machines have it: normal, drifting, and with a wild run now and then.
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

    /// What was found of B, and with how many pairs. Without the interval, which takes the time of
    /// thousands of resamples and decides nothing here.
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
            // Two heaps, as of a machine that halves its clock: each side in either as it comes.
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
            // The last one counts where every second one does not.
            let least = measured - usize::from(every == 2);
            assert!((least..=measured).contains(&pairs.len()), "{every}");
            assert_eq!(logs(&pairs).len(), counting, "{every}");
        }
    }

    /// Ctrl-C, or a run that fails, is no look at 2 in 100 beside those that there were.
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

    /// Two sides that lose nothing are alike, and pairs of which one side lost nothing count.
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
        // One of them the other way.
        let wild = [0.5, 0.5, 1.6, 0.5].map(|ratio| pair(1.0, ratio, false));
        assert!(!is_clear(&wild, 0.05));
    }

    #[test]
    fn pairs_that_do_not_count_leave_a_clear_difference_decided() {
        // Every `every`th pair does not count; the difference is thirty times.
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
