//! Choice of the next run among leaders with nearly equal scores.
//!
//! One bad run of a setting can cost more than the next knob gains, and a setting that lost by such
//! a
//! run would not be tried again. So when no move improves the best any more, the settings that may
//! still be better are measured again.

use super::{Doing, Point, Search, middle};

/// Divisor of the run budget: this phase, with the moves it triggers, gets one in so many runs.
const SHARE: usize = 6;

/// Maximum number of runs of one setting: another one would move its median by less than a tenth of
/// the noise.
const MOST_RUNS: usize = 8;

/// Standard errors by which a setting may be better than its score: one in fifteen exceeds it
/// (one-sided normal).
const REACH: f64 = 1.5;

/// Median absolute difference of two runs for noise with a standard deviation of 1: 0.6745 · √2.
const MIDDLE_DIFFERENCE: f64 = 0.954;

impl Search {
    /// Sets the smallest difference of scores that matters.
    ///
    /// Without it every difference matters, and leaders are compared until the runs are used up.
    #[must_use]
    pub fn worth(mut self, difference: f64) -> Self {
        self.worth = difference;
        self
    }

    /// Queues another run of the strongest rival once no move improves the best.
    ///
    /// If the best has changed since its knobs were last moved, starts a new round of moves;
    /// otherwise
    /// ends the search.
    pub(super) fn close(&mut self) {
        if !self.closing {
            self.closing = true;
            self.settled.clone_from(&self.from);
            // Most of the runs that the search did not need stay unspent.
            self.left = self.left.min(self.all / SHARE);
        }
        if let Some(rival) = self.rival() {
            let count = |point| self.seen(point).map_or(0, |(_, runs)| runs);
            // Uncertainty of the best affects every comparison, so its own runs come first.
            let again = count(&self.from) < 2 * (count(&rival) + 1);
            self.queue.push_back(rival);
            self.queue.extend(again.then(|| self.from.clone()));
            self.doing = Doing::Closing;
            return;
        }
        if self.settled == self.from {
            self.over = true;
            return;
        }
        self.settled.clone_from(&self.from);
        self.improved = true;
    }

    /// Makes the setting with the highest score the new best to start from.
    pub(super) fn lead(&mut self) {
        let leads = |best: &Point| self.score(best) > self.score(&self.from);
        if let Some(best) = self.best().filter(leads) {
            self.from = best;
        }
    }

    /// Setting that may exceed the best by more than `worth`, given the noise; the one with the
    /// largest possible lead.
    fn rival(&self) -> Option<Point> {
        let noise = self.noise()?;
        let (best, runs) = self.known(&self.from)?;
        let reach = |point: &Point| {
            let (score, count) = self.known(point)?;
            let unknown = noise * (1.0 / count as f64 + 1.0 / runs as f64).sqrt();
            let ahead = score - best + REACH * unknown;
            (count < MOST_RUNS && ahead > self.worth).then_some(ahead)
        };
        self.runs
            .settings()
            .filter(|(point, _)| **point != self.from && !self.is_refused(point))
            .filter_map(|(point, _)| Some((point, reach(point)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(point, _)| point.clone())
    }

    /// Median score without drift, and number of runs of a setting.
    fn known(&self, point: &Point) -> Option<(f64, usize)> {
        let runs = self.runs.corrected(point);
        (!runs.is_empty()).then(|| (middle(&runs), runs.len()))
    }

    /// Standard deviation of a run, from the differences between runs of the same setting.
    ///
    /// Uses the median of the differences, so that single outliers do not matter. `None` while no
    /// setting was measured twice.
    fn noise(&self) -> Option<f64> {
        let mut steps = Vec::new();
        for (point, _) in self.runs.settings() {
            let runs = self.runs.corrected(point);
            steps.extend(runs.windows(2).map(|two| (two[1] - two[0]).abs()));
        }
        (!steps.is_empty()).then(|| middle(&steps) / MIDDLE_DIFFERENCE)
    }
}
