//! Estimate of the machine's drift during a search, and scores with the drift removed.
//!
//! A shared machine may be slower for some dozens of runs and then fast again, by more than the
//! next
//! knob gains. Repeated runs of one setting reveal the drift in between. The model of a score is
//! the
//! level of its setting, a machine state that follows a random walk over the runs, and noise:
//!
//! ```text
//! y_i = level(setting of i) + state_i + noise_i, state_(i+1) = state_i + step_i, Var(step) = ratio
//! · Var(noise)
//! ```
//!
//! Levels and states minimize the sum of squares (best linear unbiased prediction: Robinson 1991).
//! The ratio is the most likely one (restricted maximum likelihood: Patterson and Thompson 1971),
//! or
//! 0, no drift, unless that is much less likely. A setting measured once carries no information
//! about
//! the state: its level is its score minus the state.
//!
//! Two simpler methods were simulated on 200 searches. Running medians of the runs' deviations from
//! their setting's median: with states of 12 % a search over wait modes misses 20, and 4 with this
//! model. Comparing a run only with the adjacent run of the best so far: a search over host
//! settings
//! misses 27 with states of 10 % and 17 without drift; 2 and 0 with this model.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::Point;

/// Candidate ratios of the variance of a step to the variance of noise, for a machine that drifts.
///
/// They range from a step of a quarter of the noise's standard deviation to a step of 10 % every
/// dozen runs with noise of 2 %.
const RATIOS: [f64; 3] = [0.05, 0.3, 2.0];

/// Twice the log-likelihood ratio that drift needs over no drift: drift must be 20 times as likely.
///
/// Searches of 800 seeds with noise of 4 %, or with one run in twenty 30 % low, miss 5 and 8 with a
/// threshold of 0, and 3 and 0 with 6. On a drifting machine both thresholds miss equally often.
const EVIDENCE: f64 = 6.0;

/// Minimum number of repeats for an estimate of the machine's state.
const LEAST_REPEATS: usize = 3;

/// Lower bound of a variance before its logarithm is taken.
const NOTHING: f64 = 1e-18;

/// Scores of all runs in order, raw and with the drift of the machine removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    scores: Vec<f64>,
    /// Run numbers of each setting.
    of: BTreeMap<Point, Vec<usize>>,
    /// Estimated state of the machine at each run; computed on first use, not per recorded run.
    states: OnceCell<Vec<f64>>,
}

impl Runs {
    /// Records a run.
    pub(super) fn tell(&mut self, point: &Point, score: f64) {
        let run = self.scores.len();
        self.of.entry(point.clone()).or_default().push(run);
        self.scores.push(score);
        self.states.take();
    }

    /// Measured settings with their number of runs.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&Point, usize)> {
        self.of.iter().map(|(point, runs)| (point, runs.len()))
    }

    /// Returns whether a setting was measured.
    pub(super) fn has(&self, point: &Point) -> bool {
        self.of.contains_key(point)
    }

    /// Raw scores of a setting.
    pub(super) fn measured(&self, point: &Point) -> Vec<f64> {
        let runs = self.runs(point).iter();
        runs.map(|&run| self.scores[run]).collect()
    }

    /// Scores of a setting with the machine's state subtracted.
    pub(super) fn corrected(&self, point: &Point) -> Vec<f64> {
        let states = (self.states).get_or_init(|| Repeats::of(self).states(self.scores.len()));
        let runs = self.runs(point).iter();
        runs.map(|&run| self.scores[run] - states[run]).collect()
    }

    /// Number of runs since this setting was last measured.
    pub(super) fn since(&self, point: &Point) -> usize {
        let last = self.runs(point).last();
        last.map_or(self.scores.len(), |run| self.scores.len() - 1 - run)
    }

    fn runs(&self, point: &Point) -> &[usize] {
        self.of.get(point).map_or(&[], Vec::as_slice)
    }
}

/// Runs of the settings that were measured more than once, in order.
struct Repeats {
    /// Their numbers among all runs.
    at: Vec<usize>,
    scores: Vec<f64>,
    /// For each setting, indices of its runs into `at`.
    settings: Vec<Vec<usize>>,
}

/// States estimated with one ratio, and their deviance: minus twice the log-likelihood, up to a
/// constant
/// that does not depend on the ratio.
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

    /// State of the machine at each of `runs` runs, in units of the score.
    fn states(&self, runs: usize) -> Vec<f64> {
        match self.likeliest() {
            Some(fit) => between(&self.at, &fit.states, runs),
            None => vec![0.0; runs],
        }
    }

    /// Fit with the most likely ratio; `None` if too few runs were repeated.
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

    /// Degrees of freedom: runs beyond the first of each setting.
    fn freedom(&self) -> usize {
        self.at.len() - self.settings.len()
    }

    /// Fits levels by generalized least squares, with the most likely states given these levels.
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

    /// Normal equations of the levels after the states are eliminated: lower half of the symmetric
    /// matrix, and right side.
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

/// Interpolates states at all runs from those at `at`: the expectation of a random walk between two
/// known states.
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

/// Random walk: the matrix ratio·I + DᵀD of the steps D between runs, factored as
/// L·diag(pivots)·Lᵀ.
///
/// Steps are weighted by one over the gap between runs. The state of the first run is 0: it is part
/// of the levels.
struct Walk {
    ratio: f64,
    /// Reciprocal of the number of runs between consecutive entries.
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
            // Weight of the link that remains after this run is eliminated.
            before = after - after * after / *pivot;
        }
        Self {
            ratio,
            links,
            pivots,
        }
    }

    /// Most likely states for these residuals of the runs from their levels.
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

/// Cholesky factor of a symmetric positive definite matrix.
struct Factor(Vec<Vec<f64>>);

impl Factor {
    /// Factors `matrix`; `None` if it is not positive definite.
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

    /// Alternates two settings and, every third run, one that is measured once; `score` takes run
    /// and setting.
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

    /// Reproducible noise with a standard deviation of 1.
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
        // Settings with a single run are corrected too, except near a change, whose exact run is
        // not identifiable.
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

    /// Checks the definition: no small change of the states lowers the sum of squares.
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
