//! Leaders that lie close: which of them is worth another run.
//!
//! One run of a setting may be as far below as the next knob brings, and what lost by such a run is looked at by
//! nobody again. So when nothing leads further, what may still be better than the best is measured once more.

use super::{Doing, Point, Search, middle};

/// Part of all runs that leaders which lie close get, with what is tried from a new one: 1 of so many.
const SHARE: usize = 6;

/// Runs of a setting at most: one more would move its middle by less than a tenth of a run's noise.
const MOST_RUNS: usize = 8;

/// Standard errors by which a setting may be better than it looked: one of fifteen is by more.
const REACH: f64 = 1.5;

/// The middle of the differences between two runs, for noise with a standard deviation of 1: 0.6745 of √2.
const MIDDLE_DIFFERENCE: f64 = 0.954;

impl Search {
    /// The same, for who wants to know of differences of this size in the score.
    ///
    /// Without it every difference counts, and leaders are told apart as far as runs go.
    #[must_use]
    pub fn worth(mut self, difference: f64) -> Self {
        self.worth = difference;
        self
    }

    /// With nothing left that leads further: measures once more what may be better than the best, and moves knobs from
    /// a new best once it is settled. Ends the search when there is nothing of that.
    pub(super) fn close(&mut self) {
        if !self.closing {
            self.closing = true;
            self.settled.clone_from(&self.from);
            // What it did not take to find them stays unspent for the most part.
            self.left = self.left.min(self.all / SHARE);
        }
        if let Some(rival) = self.rival() {
            let count = |point| self.seen(point).map_or(0, |(_, runs)| runs);
            // What is not known of the best is the same for all of them, and costs its runs once.
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

    /// Starts from what leads by now.
    pub(super) fn lead(&mut self) {
        let leads = |best: &Point| self.score(best) > self.score(&self.from);
        if let Some(best) = self.best().filter(leads) {
            self.from = best;
        }
    }

    /// What may be better than the best by more than is worth knowing, as far as its runs tell: the one that may be
    /// so by most.
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

    /// The score of a setting without drift, and its runs.
    fn known(&self, point: &Point) -> Option<(f64, usize)> {
        let runs = self.runs.corrected(point);
        (!runs.is_empty()).then(|| (middle(&runs), runs.len()))
    }

    /// Standard deviation of a run, from how runs of one setting differ; `None` while each was measured once.
    ///
    /// By the middle of all these differences: a wild run now and then does not move it.
    fn noise(&self) -> Option<f64> {
        let mut steps = Vec::new();
        for (point, _) in self.runs.settings() {
            let runs = self.runs.corrected(point);
            steps.extend(runs.windows(2).map(|two| (two[1] - two[0]).abs()));
        }
        (!steps.is_empty()).then(|| middle(&steps) / MIDDLE_DIFFERENCE)
    }
}
