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

use drift::Runs;

/// Setting of all knobs: the index of each knob's value; 0 is the start.
pub type Point = Vec<usize>;

/// Number of runs of the start before any other: one lucky run must not be the reference.
const START_RUNS: usize = 2;

/// Number of spread settings measured again, the best ones, so that none leads by one lucky run.
const HALF: usize = 2;

/// Maximum number of rounds of a race; each round is one more run of both sides.
const MOST_ROUNDS: u32 = 3;

/// Maximum number of runs between two of the best setting, whose repeats reveal the machine's
/// drift.
///
/// Simulated on 200 searches over wait modes with wave-shaped drift: 14 misses 15, 8 misses 4; 6
/// takes 5 % more runs and misses as many as 8.
const LOOK_BACK: usize = 8;

/// Number of failures after which a value that never had a score is given up.
pub const FAILURES: usize = 3;

/// Values of one knob as the search sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    pub values: usize,
    /// True if the values are in an order along which the score rises and falls smoothly.
    pub ordered: bool,
}

/// Purpose of the queued settings.
#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Nothing,
    Moving(usize),
    Spreading(Vec<Point>),
    /// The best settings of the spread, measured again.
    Halving(Vec<Point>),
    /// Settings that differ from the best in two knobs.
    Diagonals(Vec<Point>),
    /// A rival that may be better than the best, measured again.
    Closing,
    /// A candidate that seems better, against the best so far.
    Racing {
        candidate: Point,
        rounds: u32,
    },
}

/// State of a race.
enum Race {
    Won,
    Lost,
    Open,
}

/// Search for the best setting of several knobs.
#[derive(Clone, Debug)]
pub struct Search {
    dials: Vec<Dial>,
    /// Maximum number of runs, and the number that remains.
    all: usize,
    left: usize,
    /// Smallest difference of scores that matters.
    worth: f64,
    random: fastrand::Rng,
    runs: Runs,
    /// Number of failed or rejected runs of each setting.
    failures: BTreeMap<Point, u32>,
    /// Failed settings in which this value (knob, value) was the only one not yet proven to work.
    blamed: BTreeMap<(usize, usize), Vec<Point>>,
    /// Values (knob, value) that are not tried any more.
    given_up: BTreeSet<(usize, usize)>,
    queue: VecDeque<Point>,
    doing: Doing,
    /// Knobs that are moved before any other.
    first: VecDeque<usize>,
    /// Knobs still to be moved in this round.
    round: Vec<usize>,
    /// The best so far: moves start from it and races run against it.
    from: Point,
    improved: bool,
    spread: bool,
    diagonals: bool,
    /// True once the comparison of close leaders has begun.
    closing: bool,
    /// The best setting whose knobs were last moved.
    settled: Point,
    over: bool,
}

impl Search {
    /// Search over these knobs with at most `runs` runs.
    #[must_use]
    pub fn new(dials: Vec<Dial>, runs: usize, seed: u64) -> Self {
        let start = vec![0; dials.len()];
        Self {
            all: runs,
            left: runs,
            worth: 0.0,
            random: fastrand::Rng::with_seed(seed),
            runs: Runs::default(),
            failures: BTreeMap::new(),
            blamed: BTreeMap::new(),
            given_up: BTreeSet::new(),
            queue: std::iter::repeat_n(start.clone(), START_RUNS).collect(),
            doing: Doing::Nothing,
            first: VecDeque::new(),
            round: Vec::new(),
            settled: start.clone(),
            from: start,
            improved: true,
            spread: false,
            diagonals: false,
            closing: false,
            over: false,
            dials,
        }
    }

    /// Sets the knobs to move before any other, in this order.
    #[must_use]
    pub fn beginning_with(mut self, knobs: &[usize]) -> Self {
        let known = knobs
            .iter()
            .copied()
            .filter(|&knob| knob < self.dials.len());
        self.first = known.collect();
        self
    }

    /// Returns the next setting to measure; `None` when the search has ended.
    pub fn propose(&mut self) -> Option<Point> {
        while self.left > 0 && self.queue.is_empty() && !self.over {
            self.plan();
        }
        self.look_back();
        if self.left == 1 {
            self.settle_last();
        }
        // `plan` may have reduced the budget to zero.
        self.left = self.left.checked_sub(1)?;
        self.queue.pop_front()
    }

    /// Queues the best so far again if its last run is long ago; its repeats reveal the machine's
    /// drift.
    fn look_back(&mut self) {
        let Some(next) = self.queue.front() else {
            return;
        };
        let long_ago = self.runs.since(&self.from) >= LOOK_BACK;
        if long_ago && *next != self.from && self.score(&self.from).is_some() {
            self.queue.push_front(self.from.clone());
        }
    }

    /// Spends the last run on the most promising setting with a single run.
    ///
    /// A setting measured once is not chosen by `best`, however much better its score is.
    fn settle_last(&mut self) {
        let Some(best) = self.best() else {
            return;
        };
        let ahead = |point: &Point| Some(self.score(point)? - self.score(&best)?);
        let once = self.runs.settings().filter(|&(_, runs)| runs == 1);
        let promising = once
            .filter_map(|(point, _)| Some((point, ahead(point)?)))
            .filter(|(_, ahead)| *ahead > self.worth)
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((point, _)) = promising {
            self.queue = [point.clone()].into();
        }
    }

    /// Records that a setting could not be applied or that its run failed; `ran` is false if no run
    /// was spent.
    ///
    /// Returns the knob and value given up because of it: one that failed often enough in
    /// combination
    /// with values that work.
    pub fn fail(&mut self, point: &Point, ran: bool) -> Option<(usize, usize)> {
        *self.failures.entry(point.clone()).or_default() += 1;
        self.left += usize::from(!ran);
        let works =
            |knob: usize, value: usize| self.runs.settings().any(|(seen, _)| seen[knob] == value);
        let mut unknown =
            (point.iter().copied().enumerate()).filter(|&(knob, value)| !works(knob, value));
        // With two unproven values the failure cannot be attributed to one of them.
        let (Some(blamed), None) = (unknown.next(), unknown.next()) else {
            return None;
        };
        let failed = self.blamed.entry(blamed).or_default();
        failed.push(point.clone());
        if failed.len() < FAILURES {
            return None;
        }
        // The failures may come from a combination with one other value: a run of the value alone
        // decides.
        let beside_one = (0..point.len()).any(|knob| {
            let same = |other: &Point| other[knob] == point[knob];
            knob != blamed.0 && point[knob] != 0 && failed.iter().all(same)
        });
        if beside_one {
            let mut alone = vec![0; point.len()];
            alone[blamed.0] = blamed.1;
            if !self.queue.contains(&alone) {
                self.queue.push_back(alone);
            }
            return None;
        }
        if !self.given_up.insert(blamed) {
            return None;
        }
        self.queue.retain(|point| point[blamed.0] != blamed.1);
        Some(blamed)
    }

    /// Records the score of a setting; `None`: it may not be chosen.
    pub fn tell(&mut self, point: &Point, score: Option<f64>) {
        match score.filter(|score| score.is_finite()) {
            Some(score) => self.runs.tell(point, score),
            None => *self.failures.entry(point.clone()).or_default() += 1,
        }
    }

    /// Returns the best setting so far; `None` if no setting has a score.
    ///
    /// A setting measured once is not chosen while any was measured twice: of many settings the
    /// luckiest single run looks best.
    #[must_use]
    pub fn best(&self) -> Option<Point> {
        let best = |least: usize| {
            let measured = self.runs.settings().filter(|&(_, runs)| runs >= least);
            measured
                .filter_map(|(point, _)| Some((point, self.score(point)?)))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(point, _)| point.clone())
        };
        best(START_RUNS).or_else(|| best(1))
    }

    /// Returns the median raw score of a setting and its number of runs.
    #[must_use]
    pub fn seen(&self, point: &Point) -> Option<(f64, usize)> {
        let runs = self.runs.measured(point);
        (!runs.is_empty()).then(|| (middle(&runs), runs.len()))
    }

    /// Median score of a setting that may be chosen, with the machine's drift removed.
    fn score(&self, point: &Point) -> Option<f64> {
        let may_be = self.runs.has(point) && !self.is_refused(point);
        may_be.then(|| middle(&self.runs.corrected(point)))
    }

    /// Fills the queue, or ends the search.
    fn plan(&mut self) {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => self.go_on(),
            Doing::Moving(knob) => {
                let moves = self.moves(knob);
                self.challenge(&moves);
            }
            Doing::Diagonals(points) => self.challenge(&points),
            Doing::Spreading(mut points) => {
                points.retain(|point| self.score(point).is_some());
                points.sort_by(|a, b| self.order(b, a));
                points.truncate(HALF);
                self.queue.extend(points.iter().cloned());
                self.doing = Doing::Halving(points);
            }
            Doing::Halving(points) => self.challenge(&points),
            Doing::Closing => self.lead(),
            Doing::Racing { candidate, rounds } => match self.race(&candidate, rounds) {
                Race::Open => self.run_race(candidate, rounds + 1),
                Race::Lost => {}
                Race::Won => {
                    self.from = candidate;
                    self.improved = true;
                }
            },
        }
    }

    /// Starts the next phase.
    fn go_on(&mut self) {
        if let Some(knob) = self.first.pop_front() {
            return self.move_knob(knob);
        }
        if !self.spread {
            self.spread = true;
            return self.spread();
        }
        if let Some(knob) = self.round.pop() {
            return self.move_knob(knob);
        }
        if self.improved {
            self.improved = false;
            // Pairs of knobs were already tried around a setting close to this one.
            self.diagonals = self.closing;
            self.round = (0..self.dials.len()).collect();
            self.random.shuffle(&mut self.round);
            return;
        }
        if self.diagonals {
            return self.close();
        }
        self.diagonals = true;
        let points = self.diagonals();
        self.queue.extend(points.iter().cloned());
        self.doing = Doing::Diagonals(points);
    }

    fn move_knob(&mut self, knob: usize) {
        let fresh = (self.moves(knob).into_iter()).filter(|point| self.is_fresh(point));
        let fresh: Vec<Point> = fresh.collect();
        self.queue.extend(fresh);
        self.doing = Doing::Moving(knob);
    }

    /// Returns whether a setting never had a score or failed more than once.
    ///
    /// One failed run among successful ones does not disqualify a setting.
    fn is_refused(&self, point: &Point) -> bool {
        (self.failures.get(point)).is_some_and(|&failures| failures > 1 || !self.runs.has(point))
    }

    fn is_fresh(&self, point: &Point) -> bool {
        let mut values = point.iter().copied().enumerate();
        let given_up = values.any(|value| self.given_up.contains(&value));
        !given_up && !self.runs.has(point) && !self.is_refused(point)
    }

    fn order(&self, a: &Point, b: &Point) -> std::cmp::Ordering {
        let score = |point| self.score(point).unwrap_or(f64::MIN);
        score(a).total_cmp(&score(b))
    }

    /// Starts a race of the best of `points` against the best so far, if its score is higher.
    fn challenge(&mut self, points: &[Point]) {
        let better = points
            .iter()
            .filter(|point| **point != self.from && self.score(point) > self.score(&self.from));
        let Some(candidate) = better.max_by(|a, b| self.order(a, b)).cloned() else {
            return;
        };
        if self.score(&self.from).is_none() {
            // The current best has no score, so there is no race.
            self.from = candidate;
            self.improved = true;
            return;
        }
        self.run_race(candidate, 1);
    }

    fn run_race(&mut self, candidate: Point, rounds: u32) {
        self.queue.extend([candidate.clone(), self.from.clone()]);
        self.doing = Doing::Racing { candidate, rounds };
    }

    /// State of a race: won at once if each run of the candidate is above each run of the best; by
    /// medians after the last round.
    fn race(&self, candidate: &Point, rounds: u32) -> Race {
        let ahead = self.score(candidate) > self.score(&self.from);
        let runs = |point: &Point| self.runs.corrected(point).into_iter();
        let lowest = runs(candidate).fold(f64::MAX, f64::min);
        let highest = runs(&self.from).fold(f64::MIN, f64::max);
        match ahead {
            false => Race::Lost,
            true if lowest > highest || rounds >= MOST_ROUNDS => Race::Won,
            true => Race::Open,
        }
    }
}

fn middle(values: &[f64]) -> f64 {
    linerate_metric::statistics::median(values).unwrap_or(f64::MIN)
}
