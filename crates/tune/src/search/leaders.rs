//! Choice of the next run among leaders with nearly equal scores.
//!
//! One bad run of a setting can cost more than the next knob gains, and a setting that lost by such
//! a run would not be tried again. So when no move improves the best any more, the settings that
//! may still be better are measured again.

use super::{Search, SearchPhase, SearchPoint, median_score};

/// Divisor of the run budget: this phase, with the moves it triggers, gets one in so many runs.
const LEADER_BUDGET_DIVISOR: usize = 6;

/// Maximum number of runs of one setting: another one would move its median by less than a tenth of
/// the noise.
const MAX_RUNS_PER_POINT: usize = 8;

/// Standard errors by which a setting may be better than its score: one in fifteen exceeds it
/// (one-sided normal).
const MAX_STANDARD_ERRORS: f64 = 1.5;

/// Median absolute difference of two runs for noise with a standard deviation of 1: 0.6745 · √2.
const UNIT_NOISE_MEDIAN_DIFFERENCE: f64 = 0.954;

impl Search {
    /// Sets the smallest difference of scores that matters.
    ///
    /// Without it every difference matters, and leaders are compared until the runs are used up.
    #[must_use]
    pub fn with_min_difference(mut self, difference: f64) -> Self {
        self.min_difference = difference;
        self
    }

    /// Queues another run of the strongest rival once no move improves the best.
    ///
    /// If the best has changed since its knobs were last moved, starts a new round of moves;
    /// otherwise ends the search.
    pub(super) fn compare_leaders(&mut self) {
        if !self.is_closing {
            self.is_closing = true;
            self.last_explored.clone_from(&self.incumbent);
            // Most of the runs that the search did not need stay unspent.
            self.remaining_runs = self
                .remaining_runs
                .min(self.max_runs / LEADER_BUDGET_DIVISOR);
        }
        if let Some(rival) = self.strongest_rival() {
            let run_count = |point| self.raw_score(point).map_or(0, |(_, runs)| runs);
            // Uncertainty of the best affects every comparison, so its own runs come first.
            let repeat_incumbent = run_count(&self.incumbent) < 2 * (run_count(&rival) + 1);
            self.queue.push_back(rival);
            self.queue
                .extend(repeat_incumbent.then(|| self.incumbent.clone()));
            self.phase = SearchPhase::CloseLeaders;
            return;
        }
        if self.last_explored == self.incumbent {
            self.is_over = true;
            return;
        }
        self.last_explored.clone_from(&self.incumbent);
        self.improved = true;
    }

    /// Makes the setting with the highest score the new best to start from.
    pub(super) fn adopt_leader(&mut self) {
        let is_ahead =
            |best: &SearchPoint| self.corrected_score(best) > self.corrected_score(&self.incumbent);
        if let Some(best) = self.best_point().filter(is_ahead) {
            self.incumbent = best;
        }
    }

    /// Setting that may exceed the best by more than `min_difference`, given the noise; the one
    /// with the largest possible lead.
    fn strongest_rival(&self) -> Option<SearchPoint> {
        let noise = self.run_noise()?;
        let (best, runs) = self.score_and_runs(&self.incumbent)?;
        let possible_lead = |point: &SearchPoint| {
            let (score, count) = self.score_and_runs(point)?;
            let standard_error = noise * (1.0 / count as f64 + 1.0 / runs as f64).sqrt();
            let possible_lead_value = score - best + MAX_STANDARD_ERRORS * standard_error;
            (count < MAX_RUNS_PER_POINT && possible_lead_value > self.min_difference)
                .then_some(possible_lead_value)
        };
        self.history
            .measured_points()
            .filter(|(point, _)| **point != self.incumbent && !self.is_rejected(point))
            .filter_map(|(point, _)| Some((point, possible_lead(point)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(point, _)| point.clone())
    }

    /// Median score without drift, and number of runs of a setting.
    fn score_and_runs(&self, point: &SearchPoint) -> Option<(f64, usize)> {
        let runs = self.history.corrected_scores(point);
        (!runs.is_empty()).then(|| (median_score(&runs), runs.len()))
    }

    /// Standard deviation of a run, from the differences between runs of the same setting.
    ///
    /// Uses the median of the differences, so that single outliers do not matter. `None` while no
    /// setting was measured twice.
    fn run_noise(&self) -> Option<f64> {
        let mut differences = Vec::new();
        for (point, _) in self.history.measured_points() {
            let runs = self.history.corrected_scores(point);
            differences.extend(
                runs.windows(2)
                    .map(|consecutive| (consecutive[1] - consecutive[0]).abs()),
            );
        }
        (!differences.is_empty()).then(|| median_score(&differences) / UNIT_NOISE_MEDIAN_DIFFERENCE)
    }
}
