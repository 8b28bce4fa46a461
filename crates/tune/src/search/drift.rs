//! Estimate of the machine's drift during a search, and scores with the drift removed.
//!
//! A shared machine may be slower for some dozens of runs and then fast again, by more than the
//! next knob gains. Repeated runs of one setting reveal the drift in between. The model of a score
//! is the level of its setting, a machine state that follows a random walk over the runs, and
//! noise:
//!
//! ```text
//! y_i = level(setting of i) + state_i + noise_i, state_(i+1) = state_i + step_i, Var(step) = ratio
//! · Var(noise)
//! ```
//!
//! Levels and states minimize the sum of squares (best linear unbiased prediction: Robinson 1991).
//! The ratio is the most likely one (restricted maximum likelihood: Patterson and Thompson 1971),
//! or 0, no drift, unless that is much less likely. A setting measured once carries no information
//! about the state: its level is its score minus the state.
//!
//! Two simpler methods were simulated on 200 searches. Running medians of the runs' deviations from
//! their setting's median: with states of 12 % a search over wait modes misses 20, and 4 with this
//! model. Comparing a run only with the adjacent run of the best so far: a search over host
//! settings misses 27 with states of 10 % and 17 without drift; 2 and 0 with this model.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::SearchPoint;

/// Candidate ratios of the variance of a step to the variance of noise, for a machine that drifts.
///
/// They range from a step of a quarter of the noise's standard deviation to a step of 10 % every
/// dozen runs with noise of 2 %.
const DRIFT_RATIOS: [f64; 3] = [0.05, 0.3, 2.0];

/// Twice the log-likelihood ratio that drift needs over no drift: drift must be 20 times as likely.
///
/// Searches of 800 seeds with noise of 4 %, or with one run in twenty 30 % low, miss 5 and 8 with a
/// threshold of 0, and 3 and 0 with 6. On a drifting machine both thresholds miss equally often.
const MIN_DRIFT_EVIDENCE: f64 = 6.0;

/// Minimum number of repeats for an estimate of the machine's state.
const MIN_REPEATS: usize = 3;

/// Lower bound of a variance before its logarithm is taken.
const MIN_VARIANCE: f64 = 1e-18;

/// Scores of all runs in order, raw and with the drift of the machine removed.
#[derive(Clone, Debug, Default)]
pub(super) struct RunHistory {
    scores: Vec<f64>,
    /// Run numbers of each setting.
    runs_by_point: BTreeMap<SearchPoint, Vec<usize>>,
    /// Estimated state of the machine at each run; computed on first use, not per recorded run.
    states: OnceCell<Vec<f64>>,
}

impl RunHistory {
    /// Records a run.
    pub(super) fn record(&mut self, point: &SearchPoint, score: f64) {
        let run = self.scores.len();
        self.runs_by_point
            .entry(point.clone())
            .or_default()
            .push(run);
        self.scores.push(score);
        self.states.take();
    }

    /// Measured settings with their number of runs.
    pub(super) fn measured_points(&self) -> impl Iterator<Item = (&SearchPoint, usize)> {
        self.runs_by_point
            .iter()
            .map(|(point, runs)| (point, runs.len()))
    }

    /// Returns whether a setting was measured.
    pub(super) fn contains(&self, point: &SearchPoint) -> bool {
        self.runs_by_point.contains_key(point)
    }

    /// Raw scores of a setting.
    pub(super) fn raw_scores(&self, point: &SearchPoint) -> Vec<f64> {
        let runs = self.run_numbers(point).iter();
        runs.map(|&run| self.scores[run]).collect()
    }

    /// Scores of a setting with the machine's state subtracted.
    pub(super) fn corrected_scores(&self, point: &SearchPoint) -> Vec<f64> {
        let states = (self.states)
            .get_or_init(|| RepeatedRuns::from_history(self).drift_states(self.scores.len()));
        let runs = self.run_numbers(point).iter();
        runs.map(|&run| self.scores[run] - states[run]).collect()
    }

    /// Number of runs since this setting was last measured.
    pub(super) fn runs_since(&self, point: &SearchPoint) -> usize {
        let last = self.run_numbers(point).last();
        last.map_or(self.scores.len(), |run| self.scores.len() - 1 - run)
    }

    fn run_numbers(&self, point: &SearchPoint) -> &[usize] {
        self.runs_by_point.get(point).map_or(&[], Vec::as_slice)
    }
}

/// Runs of the settings that were measured more than once, in order.
struct RepeatedRuns {
    /// Their numbers among all runs.
    run_numbers: Vec<usize>,
    scores: Vec<f64>,
    /// For each setting, indices of its runs into `at`.
    runs_by_setting: Vec<Vec<usize>>,
}

/// States estimated with one ratio, and their deviance: minus twice the log-likelihood, up to a
/// constant that does not depend on the ratio.
struct DriftFit {
    states: Vec<f64>,
    deviance: f64,
}

impl RepeatedRuns {
    fn from_history(history: &RunHistory) -> Self {
        let repeated = || history.runs_by_point.values().filter(|runs| runs.len() > 1);
        let mut run_numbers: Vec<usize> = repeated().flatten().copied().collect();
        run_numbers.sort_unstable();
        let position = |run: &usize| run_numbers.partition_point(|run_numbers| run_numbers < run);
        let settings = repeated().map(|runs| runs.iter().map(position).collect());
        Self {
            runs_by_setting: settings.collect(),
            scores: run_numbers.iter().map(|&run| history.scores[run]).collect(),
            run_numbers,
        }
    }

    /// State of the machine at each of `runs` runs, in units of the score.
    fn drift_states(&self, runs: usize) -> Vec<f64> {
        match self.best_fit() {
            Some(fit) => interpolate_states(&self.run_numbers, &fit.states, runs),
            None => vec![0.0; runs],
        }
    }

    /// Fit with the most likely ratio; `None` if too few runs were repeated.
    fn best_fit(&self) -> Option<DriftFit> {
        if self.degrees_of_freedom() < MIN_REPEATS {
            return None;
        }
        let steady = self.fit(0.0)?;
        let mut best = self.fit(DRIFT_RATIOS[0])?;
        for &ratio in &DRIFT_RATIOS[1..] {
            let candidate = self.fit(ratio)?;
            if candidate.deviance >= best.deviance {
                break;
            }
            best = candidate;
        }
        let is_drifting = best.deviance + MIN_DRIFT_EVIDENCE < steady.deviance;
        Some(if is_drifting { best } else { steady })
    }

    /// Degrees of freedom: runs beyond the first of each setting.
    fn degrees_of_freedom(&self) -> usize {
        self.run_numbers.len() - self.runs_by_setting.len()
    }

    /// Fits levels by generalized least squares, with the most likely states given these levels.
    fn fit(&self, ratio: f64) -> Option<DriftFit> {
        let walk = RandomWalk::new(&self.run_numbers, ratio);
        let (normal, right_side) = self.normal_equations(&walk);
        let factor = CholeskyFactor::decompose(normal)?;
        let mut residuals = self.scores.clone();
        for (runs, level) in self.runs_by_setting.iter().zip(factor.solve(&right_side)) {
            runs.iter().for_each(|&run| residuals[run] -= level);
        }
        let states = walk.predict_states(&residuals);
        let pairs = residuals.iter().zip(&states);
        let squares: f64 = pairs
            .map(|(residuals, state)| residuals * (residuals - state))
            .sum();
        let freedom = self.degrees_of_freedom() as f64;
        Some(DriftFit {
            deviance: freedom * (squares / freedom).max(MIN_VARIANCE).ln()
                + walk.ln_determinant()
                + factor.ln_determinant(),
            states,
        })
    }

    /// Normal equations of the levels after the states are eliminated: lower half of the symmetric
    /// matrix, and right side.
    fn normal_equations(&self, walk: &RandomWalk) -> (Vec<Vec<f64>>, Vec<f64>) {
        let (mut normal, mut right_side) = (Vec::new(), Vec::new());
        let mut indicator = vec![0.0; self.run_numbers.len()];
        for (number, runs) in self.runs_by_setting.iter().enumerate() {
            runs.iter().for_each(|&run| indicator[run] = 1.0);
            let states = walk.predict_states(&indicator);
            let mut matrix_row = Vec::with_capacity(number + 1);
            for other_runs in &self.runs_by_setting[..=number] {
                matrix_row.push(-other_runs.iter().map(|&run| states[run]).sum::<f64>());
            }
            matrix_row[number] += runs.len() as f64;
            normal.push(matrix_row);
            let scores: f64 = runs.iter().map(|&run| self.scores[run]).sum();
            right_side.push(scores - dot(&states, &self.scores));
            runs.iter().for_each(|&run| indicator[run] = 0.0);
        }
        (normal, right_side)
    }
}

/// Interpolates states at all runs from those at `run_numbers`: the expectation of a random walk
/// between two known states.
fn interpolate_states(run_numbers: &[usize], states: &[f64], runs: usize) -> Vec<f64> {
    let mut interpolated = Vec::with_capacity(runs);
    let mut next = 0;
    for run in 0..runs {
        while next + 1 < run_numbers.len() && run_numbers[next] < run {
            next += 1;
        }
        let before = if next > 0 && run_numbers[next] > run {
            next - 1
        } else {
            next
        };
        let fraction = match run_numbers[next].saturating_sub(run_numbers[before]) {
            0 => 0.0,
            gap => (run - run_numbers[before]) as f64 / gap as f64,
        };
        interpolated.push(states[before] + fraction * (states[next] - states[before]));
    }
    interpolated
}

/// Random walk: the matrix ratio·I + DᵀD of the steps D between runs, factored as
/// L·diag(pivots)·Lᵀ.
///
/// Steps are weighted by one over the gap between runs. The state of the first run is 0: it is part
/// of the levels.
struct RandomWalk {
    ratio: f64,
    /// Reciprocal of the number of runs between consecutive entries.
    inverse_gaps: Vec<f64>,
    pivots: Vec<f64>,
}

impl RandomWalk {
    fn new(run_numbers: &[usize], ratio: f64) -> Self {
        let gaps = run_numbers
            .windows(2)
            .map(|consecutive| consecutive[1] - consecutive[0]);
        let inverse_gaps: Vec<f64> = gaps.map(|gap| 1.0 / gap as f64).collect();
        let mut pivots = vec![1.0; run_numbers.len()];
        let mut before = inverse_gaps.first().copied().unwrap_or(0.0);
        for (run, pivot) in pivots.iter_mut().enumerate().skip(1) {
            let after = inverse_gaps.get(run).copied().unwrap_or(0.0);
            *pivot = ratio + before + after;
            // Weight of the link that remains after this run is eliminated.
            before = after - after * after / *pivot;
        }
        Self {
            ratio,
            inverse_gaps,
            pivots,
        }
    }

    /// Most likely states for these residuals of the runs from their levels.
    fn predict_states(&self, residuals: &[f64]) -> Vec<f64> {
        let count = residuals.len();
        let mut states = vec![0.0; count];
        let mut carried_over = 0.0;
        for run in 1..count {
            states[run] = (self.ratio * residuals[run] + carried_over) / self.pivots[run];
            carried_over = self
                .inverse_gaps
                .get(run)
                .map_or(0.0, |weight| weight * states[run]);
        }
        for run in (1..count.saturating_sub(1)).rev() {
            states[run] += self.inverse_gaps[run] * states[run + 1] / self.pivots[run];
        }
        states
    }

    fn ln_determinant(&self) -> f64 {
        self.pivots.iter().map(|pivot| pivot.ln()).sum()
    }
}

/// Cholesky factor of a symmetric positive definite matrix.
struct CholeskyFactor(Vec<Vec<f64>>);

impl CholeskyFactor {
    /// Factors `matrix`; `None` if it is not positive definite.
    fn decompose(mut matrix: Vec<Vec<f64>>) -> Option<Self> {
        for row in 0..matrix.len() {
            let (finished_rows, remaining_rows) = matrix.split_at_mut(row);
            let current_row = &mut remaining_rows[0];
            for (column, above) in finished_rows.iter().enumerate() {
                let partial_sum = dot(&current_row[..column], &above[..column]);
                current_row[column] = (current_row[column] - partial_sum) / above[column];
            }
            let pivot = current_row[row] - dot(&current_row[..row], &current_row[..row]);
            current_row[row] = (pivot > 0.0).then(|| pivot.sqrt())?;
        }
        Some(Self(matrix))
    }

    fn solve(&self, right_side: &[f64]) -> Vec<f64> {
        let mut values = right_side.to_vec();
        for (row, factor_row) in self.0.iter().enumerate() {
            values[row] = (values[row] - dot(&factor_row[..row], &values[..row])) / factor_row[row];
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
        let diagonal = self
            .0
            .iter()
            .enumerate()
            .map(|(row, factor_row)| factor_row[row]);
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
    fn alternating_runs(
        runs: usize,
        score: impl Fn(usize, usize) -> f64,
    ) -> (RunHistory, Vec<SearchPoint>) {
        let mut history = RunHistory::default();
        let points: Vec<SearchPoint> = (0..runs)
            .map(|run| vec![if run % 3 == 2 { run } else { run % 2 }])
            .collect();
        for (run, point) in points.iter().enumerate() {
            history.record(point, score(run, point[0]));
        }
        (history, points)
    }

    /// Reproducible noise with a standard deviation of 1.
    fn noise(run: usize) -> f64 {
        let mut random = fastrand::Rng::with_seed(run as u64);
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    #[test]
    fn a_slow_state_is_removed_from_the_scores() {
        let slow = |run: usize| if (20..45).contains(&run) { 10.0 } else { 0.0 };
        let level = |setting: usize| if setting == 1 { 3.0 } else { 0.0 };
        let (history, points) =
            alternating_runs(60, |run, setting| level(setting) - slow(run) + noise(run));
        let corrected_median =
            |point: &SearchPoint| super::super::median_score(&history.corrected_scores(point));
        let lead = corrected_median(&vec![1]) - corrected_median(&vec![0]);
        assert!((lead - 3.0).abs() < 0.8, "{lead}");
        // Settings with a single run are corrected too, except near a change, whose exact run is
        // not identifiable.
        for (run, point) in points.iter().enumerate().filter(|(_, point)| point[0] > 1) {
            let error = corrected_median(point) - corrected_median(&vec![0]);
            let is_near_change = run.abs_diff(20).min(run.abs_diff(45)) < 4;
            assert!(is_near_change || error.abs() < 4.0, "run {run}: {error}");
        }
    }

    #[test]
    fn without_drift_scores_stay_as_they_are() {
        let (history, points) = alternating_runs(60, |run, setting| setting as f64 + noise(run));
        for (run, point) in points.iter().enumerate() {
            let raw = point[0] as f64 + noise(run);
            assert!(history.corrected_scores(point).contains(&raw), "run {run}");
        }
    }

    #[test]
    fn constant_scores_and_too_few_repeats_show_no_drift() {
        for runs in 0..12 {
            let (history, points) = alternating_runs(runs, |_, setting| setting as f64);
            for point in &points {
                let is_unchanged = |score: &f64| (score - point[0] as f64).abs() < 1e-9;
                assert!(
                    history.corrected_scores(point).iter().all(is_unchanged),
                    "{runs}: {point:?}"
                );
            }
        }
        let mut history = RunHistory::default();
        for (run, point) in [0, 1, 0, 1].into_iter().enumerate() {
            history.record(&vec![point], run as f64);
        }
        assert_eq!(history.corrected_scores(&vec![0]), [0.0, 2.0]);
        assert_eq!(history.corrected_scores(&vec![2]), [0.0; 0]);
    }

    #[test]
    fn runs_since_counts_the_runs_of_other_points() {
        let (history, _) = alternating_runs(6, |_, _| 0.0);
        // Settings 0, 1, 2, 1, 0, 5.
        let since = [0, 1, 2, 7].map(|setting| history.runs_since(&vec![setting]));
        assert_eq!(since, [1, 2, 3, 6]);
    }

    /// Checks the definition: no small change of the states lowers the sum of squares.
    #[test]
    fn levels_and_states_minimize_the_sum_of_squares() {
        let ratio = 0.3;
        let (history, _) = alternating_runs(30, |run, setting| {
            setting as f64 + 4.0 * noise(run / 10) + noise(run)
        });
        let repeats = RepeatedRuns::from_history(&history);
        let fit = repeats.fit(ratio).unwrap();
        let cost = |states: &[f64]| {
            let mut sum = 0.0;
            for runs in &repeats.runs_by_setting {
                let rest = runs.iter().map(|&run| repeats.scores[run] - states[run]);
                let level = rest.clone().sum::<f64>() / runs.len() as f64;
                sum += rest.map(|rest| (rest - level).powi(2)).sum::<f64>();
            }
            for run in 1..states.len() {
                let gap = (repeats.run_numbers[run] - repeats.run_numbers[run - 1]) as f64;
                sum += (states[run] - states[run - 1]).powi(2) / (ratio * gap);
            }
            sum
        };
        let min_cost = cost(&fit.states);
        for run in 0..fit.states.len() {
            for change in [-1e-3, 1e-3] {
                let mut shifted_states = fit.states.clone();
                shifted_states[run] += change;
                assert!(cost(&shifted_states) > min_cost, "run {run}: {change}");
            }
        }
    }
}
