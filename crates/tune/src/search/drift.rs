//! What the machine did while the search ran, and scores without it.
//!
//! A shared machine is slower for some dozens of runs and then fast again, by more than the next knob brings. Runs of one
//! setting at different times tell what it did in between: a score is taken for the level of its setting, the state of
//! the machine, which wanders from run to run, and noise:
//!
//! ```text
//! y_i = level(setting of i) + state_i + noise_i,   state_(i+1) = state_i + step_i,   Var(step) = ratio · Var(noise)
//! ```
//!
//! Levels and states are those with the least sum of squares (best linear unbiased prediction: Robinson 1991). The ratio
//! is the likeliest one (restricted maximum likelihood: Patterson and Thompson 1971), or 0, no drift, while that is not
//! much less likely. What was measured once says nothing of the state: its level is what its run leaves.
//!
//! Two simpler ways were simulated. With running medians of how far runs are from their setting's median a search of ways of
//! waiting misses 20 of 200 beside states of 12 %, and 4 with this. Where a run is compared with that of the best so far
//! beside it alone, one of settings of hosts misses 27 of 200 beside states of 10 %, and 17 where there are none: 2 and 0
//! with this.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::Point;

/// How far the state of a machine that drifts wanders in a run, as shares of the variance of noise: from a quarter of
/// its standard deviation to a step of 10 % every dozen runs beside noise of 2 %.
const RATIOS: [f64; 3] = [0.05, 0.3, 2.0];

/// Twice the logarithm of how much likelier drift has to be than none: 20 times. Searches of 800 seeds with noise of 4 %,
/// or with one run of twenty 30 % low, miss 5 and 8 times where 0 is asked for, 3 and 0 times with 6, and those on a
/// drifting machine as often with either.
const EVIDENCE: f64 = 6.0;

/// Repeats that are needed before they say anything of the machine.
const LEAST_REPEATS: usize = 3;

/// Variance of what does not differ at all, whose logarithm is asked for all the same.
const NOTHING: f64 = 1e-18;

/// Runs in their order, and their scores without the drift of the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    scores: Vec<f64>,
    /// Which of them a setting has.
    of: BTreeMap<Point, Vec<usize>>,
    /// How far the machine was off at each. Made when somebody asks: not for each run of a group.
    states: OnceCell<Vec<f64>>,
}

impl Runs {
    /// One more run.
    pub(super) fn tell(&mut self, point: &Point, score: f64) {
        let run = self.scores.len();
        self.of.entry(point.clone()).or_default().push(run);
        self.scores.push(score);
        self.states.take();
    }

    /// Settings that were measured, and how often.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&Point, usize)> {
        self.of.iter().map(|(point, runs)| (point, runs.len()))
    }

    /// Whether a setting was measured.
    pub(super) fn has(&self, point: &Point) -> bool {
        self.of.contains_key(point)
    }

    /// Scores of a setting as they were measured.
    pub(super) fn measured(&self, point: &Point) -> Vec<f64> {
        let runs = self.runs(point).iter();
        runs.map(|&run| self.scores[run]).collect()
    }

    /// The same as if the machine had been in one state all the time.
    pub(super) fn corrected(&self, point: &Point) -> Vec<f64> {
        let states = (self.states).get_or_init(|| Repeats::of(self).states(self.scores.len()));
        let runs = self.runs(point).iter();
        runs.map(|&run| self.scores[run] - states[run]).collect()
    }

    /// Runs since this setting was measured.
    pub(super) fn since(&self, point: &Point) -> usize {
        let last = self.runs(point).last();
        last.map_or(self.scores.len(), |run| self.scores.len() - 1 - run)
    }

    fn runs(&self, point: &Point) -> &[usize] {
        self.of.get(point).map_or(&[], Vec::as_slice)
    }
}

/// Runs of what was measured more than once, in their order.
struct Repeats {
    /// When they were: numbers among all runs.
    at: Vec<usize>,
    scores: Vec<f64>,
    /// For each setting which of these are its own.
    settings: Vec<Vec<usize>>,
}

/// States with one ratio, and how unlikely the scores are with it: twice the negative logarithm, but for what is the
/// same with all ratios.
struct Fit {
    states: Vec<f64>,
    unlikely: f64,
}

impl Repeats {
    fn of(all: &Runs) -> Self {
        let repeated = || all.of.values().filter(|runs| runs.len() > 1);
        let mut at: Vec<usize> = repeated().flatten().copied().collect();
        at.sort_unstable();
        let place = |run: &usize| at.partition_point(|at| at < run);
        let settings = repeated().map(|runs| runs.iter().map(place).collect());
        Self {
            settings: settings.collect(),
            scores: at.iter().map(|&run| all.scores[run]).collect(),
            at,
        }
    }

    /// The state of the machine at each of so many runs, in scores.
    fn states(&self, runs: usize) -> Vec<f64> {
        match self.likeliest() {
            Some(fit) => between(&self.at, &fit.states, runs),
            None => vec![0.0; runs],
        }
    }

    /// `None` where too little was repeated.
    fn likeliest(&self) -> Option<Fit> {
        if self.freedom() < LEAST_REPEATS {
            return None;
        }
        let steady = self.fit(0.0)?;
        let mut likeliest = self.fit(RATIOS[0])?;
        for &ratio in &RATIOS[1..] {
            let next = self.fit(ratio)?;
            if next.unlikely >= likeliest.unlikely {
                break;
            }
            likeliest = next;
        }
        let drifts = likeliest.unlikely + EVIDENCE < steady.unlikely;
        Some(if drifts { likeliest } else { steady })
    }

    /// Runs beyond the first one of each setting.
    fn freedom(&self) -> usize {
        self.at.len() - self.settings.len()
    }

    /// Generalised least squares for the levels, and the likeliest states beside them.
    fn fit(&self, ratio: f64) -> Option<Fit> {
        let walk = Walk::new(&self.at, ratio);
        let (normal, right) = self.normal(&walk);
        let factor = Factor::of(normal)?;
        let mut rest = self.scores.clone();
        for (runs, level) in self.settings.iter().zip(factor.solve(&right)) {
            runs.iter().for_each(|&run| rest[run] -= level);
        }
        let states = walk.states(&rest);
        let each = rest.iter().zip(&states);
        let squares: f64 = each.map(|(rest, state)| rest * (rest - state)).sum();
        let freedom = self.freedom() as f64;
        Some(Fit {
            unlikely: freedom * (squares / freedom).max(NOTHING).ln()
                + walk.ln_determinant()
                + factor.ln_determinant(),
            states,
        })
    }

    /// The normal equations of the levels, by what states cannot explain of each setting's runs; of the matrix, which is
    /// symmetric, the lower half.
    fn normal(&self, walk: &Walk) -> (Vec<Vec<f64>>, Vec<f64>) {
        let (mut normal, mut right) = (Vec::new(), Vec::new());
        let mut own = vec![0.0; self.at.len()];
        for (number, runs) in self.settings.iter().enumerate() {
            runs.iter().for_each(|&run| own[run] = 1.0);
            let states = walk.states(&own);
            let mut row = Vec::with_capacity(number + 1);
            for others in &self.settings[..=number] {
                row.push(-others.iter().map(|&run| states[run]).sum::<f64>());
            }
            row[number] += runs.len() as f64;
            normal.push(row);
            let scores: f64 = runs.iter().map(|&run| self.scores[run]).sum();
            right.push(scores - dot(&states, &self.scores));
            runs.iter().for_each(|&run| own[run] = 0.0);
        }
        (normal, right)
    }
}

/// States at all runs from those at some: a walk is expected on the straight line between two known places.
fn between(at: &[usize], states: &[f64], runs: usize) -> Vec<f64> {
    let mut all = Vec::with_capacity(runs);
    let mut next = 0;
    for run in 0..runs {
        while next + 1 < at.len() && at[next] < run {
            next += 1;
        }
        let before = if next > 0 && at[next] > run {
            next - 1
        } else {
            next
        };
        let share = match at[next].saturating_sub(at[before]) {
            0 => 0.0,
            gap => (run - at[before]) as f64 / gap as f64,
        };
        all.push(states[before] + share * (states[next] - states[before]));
    }
    all
}

/// A state that wanders: the matrix ratio + DᵀD, with the steps D from one run to the next, shorter the further they are
/// apart, divided into L·diag(pivots)·Lᵀ. The state of the first run is 0: levels have its part.
struct Walk {
    ratio: f64,
    /// One over the runs from one to the next.
    links: Vec<f64>,
    pivots: Vec<f64>,
}

impl Walk {
    fn new(at: &[usize], ratio: f64) -> Self {
        let gaps = at.windows(2).map(|two| two[1] - two[0]);
        let links: Vec<f64> = gaps.map(|gap| 1.0 / gap as f64).collect();
        let mut pivots = vec![1.0; at.len()];
        let mut before = links.first().copied().unwrap_or(0.0);
        for (run, pivot) in pivots.iter_mut().enumerate().skip(1) {
            let after = links.get(run).copied().unwrap_or(0.0);
            *pivot = ratio + before + after;
            // What is left of the link once this run is eliminated.
            before = after - after * after / *pivot;
        }
        Self {
            ratio,
            links,
            pivots,
        }
    }

    /// The likeliest states where runs are so far from their levels.
    fn states(&self, rest: &[f64]) -> Vec<f64> {
        let count = rest.len();
        let mut states = vec![0.0; count];
        let mut carried = 0.0;
        for run in 1..count {
            states[run] = (self.ratio * rest[run] + carried) / self.pivots[run];
            carried = self.links.get(run).map_or(0.0, |link| link * states[run]);
        }
        for run in (1..count.saturating_sub(1)).rev() {
            states[run] += self.links[run] * states[run + 1] / self.pivots[run];
        }
        states
    }

    fn ln_determinant(&self) -> f64 {
        self.pivots.iter().map(|pivot| pivot.ln()).sum()
    }
}

/// Cholesky's factor of a matrix.
struct Factor(Vec<Vec<f64>>);

impl Factor {
    /// `None` where the matrix is not positive definite.
    fn of(mut matrix: Vec<Vec<f64>>) -> Option<Self> {
        for row in 0..matrix.len() {
            let (done, rest) = matrix.split_at_mut(row);
            let own = &mut rest[0];
            for (column, above) in done.iter().enumerate() {
                let known = dot(&own[..column], &above[..column]);
                own[column] = (own[column] - known) / above[column];
            }
            let pivot = own[row] - dot(&own[..row], &own[..row]);
            own[row] = (pivot > 0.0).then(|| pivot.sqrt())?;
        }
        Some(Self(matrix))
    }

    fn solve(&self, right: &[f64]) -> Vec<f64> {
        let mut values = right.to_vec();
        for (row, own) in self.0.iter().enumerate() {
            values[row] = (values[row] - dot(&own[..row], &values[..row])) / own[row];
        }
        for row in (0..values.len()).rev() {
            values[row] /= self.0[row][row];
            for above in 0..row {
                values[above] -= self.0[row][above] * values[row];
            }
        }
        values
    }

    fn ln_determinant(&self) -> f64 {
        let diagonal = self.0.iter().enumerate().map(|(row, own)| own[row]);
        2.0 * diagonal.map(f64::ln).sum::<f64>()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two settings in turn and, every third run, one that is measured once; `score` gives that of a run and its setting.
    fn told(runs: usize, score: impl Fn(usize, usize) -> f64) -> (Runs, Vec<Point>) {
        let mut all = Runs::default();
        let points: Vec<Point> = (0..runs)
            .map(|run| vec![if run % 3 == 2 { run } else { run % 2 }])
            .collect();
        for (run, point) in points.iter().enumerate() {
            all.tell(point, score(run, point[0]));
        }
        (all, points)
    }

    /// Noise with a deviation of 1 that is the same every time.
    fn noise(run: usize) -> f64 {
        let mut random = fastrand::Rng::with_seed(run as u64);
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    #[test]
    fn a_slow_state_is_taken_out_of_what_was_measured_in_it() {
        let slow = |run: usize| if (20..45).contains(&run) { 10.0 } else { 0.0 };
        let level = |setting: usize| if setting == 1 { 3.0 } else { 0.0 };
        let (all, points) = told(60, |run, setting| level(setting) - slow(run) + noise(run));
        let known = |point: &Point| super::super::middle(&all.corrected(point));
        let ahead = known(&vec![1]) - known(&vec![0]);
        assert!((ahead - 3.0).abs() < 0.8, "{ahead}");
        // Those of one run as well, but for the runs beside a change, where nobody knows when it was.
        for (run, point) in points.iter().enumerate().filter(|(_, point)| point[0] > 1) {
            let wrong = known(point) - known(&vec![0]);
            let beside = run.abs_diff(20).min(run.abs_diff(45)) < 4;
            assert!(beside || wrong.abs() < 4.0, "run {run}: {wrong}");
        }
    }

    #[test]
    fn without_drift_scores_stay_as_they_are() {
        let (all, points) = told(60, |run, setting| setting as f64 + noise(run));
        for (run, point) in points.iter().enumerate() {
            let raw = point[0] as f64 + noise(run);
            assert!(all.corrected(point).contains(&raw), "run {run}");
        }
    }

    #[test]
    fn what_never_differs_and_too_few_repeats_say_nothing() {
        for runs in 0..12 {
            let (all, points) = told(runs, |_, setting| setting as f64);
            for point in &points {
                let same = |score: &f64| (score - point[0] as f64).abs() < 1e-9;
                assert!(all.corrected(point).iter().all(same), "{runs}: {point:?}");
            }
        }
        let mut all = Runs::default();
        for (run, point) in [0, 1, 0, 1].into_iter().enumerate() {
            all.tell(&vec![point], run as f64);
        }
        assert_eq!(all.corrected(&vec![0]), [0.0, 2.0]);
        assert_eq!(all.corrected(&vec![2]), [0.0; 0]);
    }

    #[test]
    fn since_counts_the_runs_of_others() {
        let (all, _) = told(6, |_, _| 0.0);
        // Settings 0, 1, 2, 1, 0, 5.
        let since = [0, 1, 2, 7].map(|setting| all.since(&vec![setting]));
        assert_eq!(since, [1, 2, 3, 6]);
    }

    /// Against the definition: levels and states for which no small change lowers the sum of squares.
    #[test]
    fn levels_and_states_are_those_of_the_least_squares() {
        let ratio = 0.3;
        let (all, _) = told(30, |run, setting| {
            setting as f64 + 4.0 * noise(run / 10) + noise(run)
        });
        let repeats = Repeats::of(&all);
        let fit = repeats.fit(ratio).unwrap();
        let cost = |states: &[f64]| {
            let mut sum = 0.0;
            for runs in &repeats.settings {
                let rest = runs.iter().map(|&run| repeats.scores[run] - states[run]);
                let level = rest.clone().sum::<f64>() / runs.len() as f64;
                sum += rest.map(|rest| (rest - level).powi(2)).sum::<f64>();
            }
            for run in 1..states.len() {
                let gap = (repeats.at[run] - repeats.at[run - 1]) as f64;
                sum += (states[run] - states[run - 1]).powi(2) / (ratio * gap);
            }
            sum
        };
        let least = cost(&fit.states);
        for run in 0..fit.states.len() {
            for change in [-1e-3, 1e-3] {
                let mut other = fit.states.clone();
                other[run] += change;
                assert!(cost(&other) > least, "run {run}: {change}");
            }
        }
    }
}
