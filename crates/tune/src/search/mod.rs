//! Search over knobs: decides which setting to measure next.
//!
//! The order of phases: knobs that findings point at, a spread over all values, one knob at a time
//! from the best, then two knobs at a time. A candidate replaces the best only if it wins a race
//! against it. At the end leaders with nearly equal scores are compared again. Scores are compared
//! with the drift of the machine removed.
//!
//! Takes scores (higher is better) and returns settings; measures nothing and reads no clock.

mod drift;
mod leaders;
mod moves;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use drift::RunHistory;

/// Setting of all knobs: the index of each knob's value; 0 is the start.
pub type SearchPoint = Vec<usize>;

/// Number of runs of the start before any other: one lucky run must not be the reference.
const START_RUNS: usize = 2;

/// Number of spread settings measured again, the best ones, so that none leads by one lucky run.
const REPEATED_SPREAD_POINTS: usize = 2;

/// Maximum number of rounds of a race; each round is one more run of both sides.
const MAX_RACE_ROUNDS: u32 = 3;

/// Maximum number of runs between two of the best setting, whose repeats reveal the machine's
/// drift.
///
/// Simulated on 200 searches over wait modes with wave-shaped drift: 14 misses 15, 8 misses 4; 6
/// takes 5 % more runs and misses as many as 8.
const MAX_RUNS_WITHOUT_INCUMBENT: usize = 8;

/// Number of failures after which a value that never had a score is given up.
pub const MAX_VALUE_FAILURES: usize = 3;

/// Values of one knob as the search sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnobSpace {
    pub value_count: usize,
    /// True if the values are in an order along which the score rises and falls smoothly.
    pub ordered: bool,
}

/// Purpose of the queued settings.
#[derive(Clone, Debug, PartialEq)]
enum SearchPhase {
    Idle,
    OneKnob(usize),
    Spread(Vec<SearchPoint>),
    /// The best settings of the spread, measured again.
    RepeatedSpread(Vec<SearchPoint>),
    /// Settings that differ from the best in two knobs.
    KnobPairs(Vec<SearchPoint>),
    /// A rival that may be better than the best, measured again.
    CloseLeaders,
    /// A candidate that seems better, against the best so far.
    Race {
        candidate: SearchPoint,
        rounds: u32,
    },
}

/// State of a race.
enum RaceState {
    Won,
    Lost,
    Open,
}

/// Search for the best setting of several knobs.
#[derive(Clone, Debug)]
pub struct Search {
    spaces: Vec<KnobSpace>,
    /// Maximum number of runs, and the number that remains.
    max_runs: usize,
    remaining_runs: usize,
    /// Smallest difference of scores that matters.
    min_difference: f64,
    random: fastrand::Rng,
    history: RunHistory,
    /// Number of failed or rejected runs of each setting.
    failures: BTreeMap<SearchPoint, u32>,
    /// Failed settings in which this value (knob, value) was the only one not yet proven to work.
    suspects: BTreeMap<(usize, usize), Vec<SearchPoint>>,
    /// Values (knob, value) that are not tried any more.
    abandoned_values: BTreeSet<(usize, usize)>,
    queue: VecDeque<SearchPoint>,
    phase: SearchPhase,
    /// Knobs that are moved before any other.
    first_knobs: VecDeque<usize>,
    /// Knobs still to be moved in this round.
    round_knobs: Vec<usize>,
    /// The best so far: moves start from it and races run against it.
    incumbent: SearchPoint,
    improved: bool,
    is_spread: bool,
    pairs_tried: bool,
    /// True once the comparison of close leaders has begun.
    is_closing: bool,
    /// The best setting whose knobs were last moved.
    last_explored: SearchPoint,
    is_over: bool,
}

impl Search {
    /// Search over these knobs with at most `runs` runs.
    #[must_use]
    pub fn new(spaces: Vec<KnobSpace>, runs: usize, seed: u64) -> Self {
        let start = vec![0; spaces.len()];
        Self {
            max_runs: runs,
            remaining_runs: runs,
            min_difference: 0.0,
            random: fastrand::Rng::with_seed(seed),
            history: RunHistory::default(),
            failures: BTreeMap::new(),
            suspects: BTreeMap::new(),
            abandoned_values: BTreeSet::new(),
            queue: std::iter::repeat_n(start.clone(), START_RUNS).collect(),
            phase: SearchPhase::Idle,
            first_knobs: VecDeque::new(),
            round_knobs: Vec::new(),
            last_explored: start.clone(),
            incumbent: start,
            improved: true,
            is_spread: false,
            pairs_tried: false,
            is_closing: false,
            is_over: false,
            spaces,
        }
    }

    /// Sets the knobs to move before any other, in this order.
    #[must_use]
    pub fn with_first_knobs(mut self, knobs: &[usize]) -> Self {
        let valid_knobs = knobs
            .iter()
            .copied()
            .filter(|&knob| knob < self.spaces.len());
        self.first_knobs = valid_knobs.collect();
        self
    }

    /// Returns the next setting to measure; `None` when the search has ended.
    pub fn propose(&mut self) -> Option<SearchPoint> {
        while self.remaining_runs > 0 && self.queue.is_empty() && !self.is_over {
            self.plan_next();
        }
        self.requeue_incumbent();
        if self.remaining_runs == 1 {
            self.spend_last_run();
        }
        // `plan` may have reduced the budget to zero.
        self.remaining_runs = self.remaining_runs.checked_sub(1)?;
        self.queue.pop_front()
    }

    /// Queues the best so far again if its last run is long ago; its repeats reveal the machine's
    /// drift.
    fn requeue_incumbent(&mut self) {
        let Some(next_point) = self.queue.front() else {
            return;
        };
        let is_overdue = self.history.runs_since(&self.incumbent) >= MAX_RUNS_WITHOUT_INCUMBENT;
        if is_overdue
            && *next_point != self.incumbent
            && self.corrected_score(&self.incumbent).is_some()
        {
            self.queue.push_front(self.incumbent.clone());
        }
    }

    /// Spends the last run on the most promising setting with a single run.
    ///
    /// A setting measured once is not chosen by `best_point`, however much better its score is.
    fn spend_last_run(&mut self) {
        let Some(best) = self.best_point() else {
            return;
        };
        let lead =
            |point: &SearchPoint| Some(self.corrected_score(point)? - self.corrected_score(&best)?);
        let single_runs = self
            .history
            .measured_points()
            .filter(|&(_, runs)| runs == 1);
        let promising = single_runs
            .filter_map(|(point, _)| Some((point, lead(point)?)))
            .filter(|(_, lead)| *lead > self.min_difference)
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((point, _)) = promising {
            self.queue = [point.clone()].into();
        }
    }

    /// Records that a setting could not be applied or that its run failed; `run_spent` is false if
    /// no run was spent.
    ///
    /// Returns the knob and value given up because of it: one that failed often enough in
    /// combination with values that work.
    pub fn record_failure(
        &mut self,
        point: &SearchPoint,
        run_spent: bool,
    ) -> Option<(usize, usize)> {
        *self.failures.entry(point.clone()).or_default() += 1;
        self.remaining_runs += usize::from(!run_spent);
        let is_proven = |knob: usize, value: usize| {
            self.history
                .measured_points()
                .any(|(measured_point, _)| measured_point[knob] == value)
        };
        let mut unproven =
            (point.iter().copied().enumerate()).filter(|&(knob, value)| !is_proven(knob, value));
        // With two unproven values the failure cannot be attributed to one of them.
        let (Some(suspect), None) = (unproven.next(), unproven.next()) else {
            return None;
        };
        let failed_points = self.suspects.entry(suspect).or_default();
        failed_points.push(point.clone());
        if failed_points.len() < MAX_VALUE_FAILURES {
            return None;
        }
        // The failures may come from a combination with one other value: a run of the value alone
        // decides.
        let shares_one_value = (0..point.len()).any(|knob| {
            let has_value = |failed_point: &SearchPoint| failed_point[knob] == point[knob];
            knob != suspect.0 && point[knob] != 0 && failed_points.iter().all(has_value)
        });
        if shares_one_value {
            let mut isolated = vec![0; point.len()];
            isolated[suspect.0] = suspect.1;
            if !self.queue.contains(&isolated) {
                self.queue.push_back(isolated);
            }
            return None;
        }
        if !self.abandoned_values.insert(suspect) {
            return None;
        }
        self.queue.retain(|point| point[suspect.0] != suspect.1);
        Some(suspect)
    }

    /// Records the score of a setting; `None`: it may not be chosen.
    pub fn record_score(&mut self, point: &SearchPoint, score: Option<f64>) {
        match score.filter(|score| score.is_finite()) {
            Some(score) => self.history.record(point, score),
            None => *self.failures.entry(point.clone()).or_default() += 1,
        }
    }

    /// Returns the best setting so far; `None` if no setting has a score.
    ///
    /// A setting measured once is not chosen while any was measured twice: of many settings the
    /// luckiest single run looks best.
    #[must_use]
    pub fn best_point(&self) -> Option<SearchPoint> {
        let best_of = |min_runs: usize| {
            let measured = self
                .history
                .measured_points()
                .filter(|&(_, runs)| runs >= min_runs);
            measured
                .filter_map(|(point, _)| Some((point, self.corrected_score(point)?)))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(point, _)| point.clone())
        };
        best_of(START_RUNS).or_else(|| best_of(1))
    }

    /// Returns the median raw score of a setting and its number of runs.
    #[must_use]
    pub fn raw_score(&self, point: &SearchPoint) -> Option<(f64, usize)> {
        let runs = self.history.raw_scores(point);
        (!runs.is_empty()).then(|| (median_score(&runs), runs.len()))
    }

    /// Median score of a setting that may be chosen, with the machine's drift removed.
    fn corrected_score(&self, point: &SearchPoint) -> Option<f64> {
        let is_eligible = self.history.contains(point) && !self.is_rejected(point);
        is_eligible.then(|| median_score(&self.history.corrected_scores(point)))
    }

    /// Fills the queue, or ends the search.
    fn plan_next(&mut self) {
        match std::mem::replace(&mut self.phase, SearchPhase::Idle) {
            SearchPhase::Idle => self.start_next_phase(),
            SearchPhase::OneKnob(knob) => {
                let moves = self.single_moves(knob);
                self.challenge_incumbent(&moves);
            }
            SearchPhase::KnobPairs(points) => self.challenge_incumbent(&points),
            SearchPhase::Spread(mut points) => {
                points.retain(|point| self.corrected_score(point).is_some());
                points.sort_by(|a, b| self.compare_scores(b, a));
                points.truncate(REPEATED_SPREAD_POINTS);
                self.queue.extend(points.iter().cloned());
                self.phase = SearchPhase::RepeatedSpread(points);
            }
            SearchPhase::RepeatedSpread(points) => self.challenge_incumbent(&points),
            SearchPhase::CloseLeaders => self.adopt_leader(),
            SearchPhase::Race { candidate, rounds } => match self.race_state(&candidate, rounds) {
                RaceState::Open => self.queue_race(candidate, rounds + 1),
                RaceState::Lost => {}
                RaceState::Won => {
                    self.incumbent = candidate;
                    self.improved = true;
                }
            },
        }
    }

    /// Starts the next phase.
    fn start_next_phase(&mut self) {
        if let Some(knob) = self.first_knobs.pop_front() {
            return self.queue_knob_moves(knob);
        }
        if !self.is_spread {
            self.is_spread = true;
            return self.plan_spread();
        }
        if let Some(knob) = self.round_knobs.pop() {
            return self.queue_knob_moves(knob);
        }
        if self.improved {
            self.improved = false;
            // Pairs of knobs were already tried around a setting close to this one.
            self.pairs_tried = self.is_closing;
            self.round_knobs = (0..self.spaces.len()).collect();
            self.random.shuffle(&mut self.round_knobs);
            return;
        }
        if self.pairs_tried {
            return self.compare_leaders();
        }
        self.pairs_tried = true;
        let points = self.pair_moves();
        self.queue.extend(points.iter().cloned());
        self.phase = SearchPhase::KnobPairs(points);
    }

    fn queue_knob_moves(&mut self, knob: usize) {
        let untried = (self.single_moves(knob).into_iter()).filter(|point| self.is_untried(point));
        let untried: Vec<SearchPoint> = untried.collect();
        self.queue.extend(untried);
        self.phase = SearchPhase::OneKnob(knob);
    }

    /// Returns whether a setting never had a score or failed more than once.
    ///
    /// One failed run among successful ones does not disqualify a setting.
    fn is_rejected(&self, point: &SearchPoint) -> bool {
        (self.failures.get(point))
            .is_some_and(|&failures| failures > 1 || !self.history.contains(point))
    }

    fn is_untried(&self, point: &SearchPoint) -> bool {
        let mut values = point.iter().copied().enumerate();
        let is_abandoned = values.any(|value| self.abandoned_values.contains(&value));
        !is_abandoned && !self.history.contains(point) && !self.is_rejected(point)
    }

    fn compare_scores(&self, a: &SearchPoint, b: &SearchPoint) -> std::cmp::Ordering {
        let score = |point| self.corrected_score(point).unwrap_or(f64::MIN);
        score(a).total_cmp(&score(b))
    }

    /// Starts a race of the best of `points` against the best so far, if its score is higher.
    fn challenge_incumbent(&mut self, points: &[SearchPoint]) {
        let better = points.iter().filter(|point| {
            **point != self.incumbent
                && self.corrected_score(point) > self.corrected_score(&self.incumbent)
        });
        let Some(candidate) = better.max_by(|a, b| self.compare_scores(a, b)).cloned() else {
            return;
        };
        if self.corrected_score(&self.incumbent).is_none() {
            // The current best has no score, so there is no race.
            self.incumbent = candidate;
            self.improved = true;
            return;
        }
        self.queue_race(candidate, 1);
    }

    fn queue_race(&mut self, candidate: SearchPoint, rounds: u32) {
        self.queue
            .extend([candidate.clone(), self.incumbent.clone()]);
        self.phase = SearchPhase::Race { candidate, rounds };
    }

    /// State of a race: won at once if each run of the candidate is above each run of the best; by
    /// medians after the last round.
    fn race_state(&self, candidate: &SearchPoint, rounds: u32) -> RaceState {
        let is_ahead = self.corrected_score(candidate) > self.corrected_score(&self.incumbent);
        let runs = |point: &SearchPoint| self.history.corrected_scores(point).into_iter();
        let lowest = runs(candidate).fold(f64::MAX, f64::min);
        let highest = runs(&self.incumbent).fold(f64::MIN, f64::max);
        match is_ahead {
            false => RaceState::Lost,
            true if lowest > highest || rounds >= MAX_RACE_ROUNDS => RaceState::Won,
            true => RaceState::Open,
        }
    }
}

fn median_score(values: &[f64]) -> f64 {
    linerate_stats::statistics::median(values).unwrap_or(f64::MIN)
}
