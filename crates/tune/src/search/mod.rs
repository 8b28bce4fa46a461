//! Which setting to try next: first what findings point at, then a start spread over all values, then one
//! knob at a time from the best, then two at a time; what seems better has to win a race. At the end leaders that lie
//! close are told apart. All scores are compared without the drift of the machine.
//!
//! Takes scores, higher is better, and gives settings; it measures nothing and reads no clock.

mod drift;
mod leaders;
mod moves;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use drift::Runs;

/// A setting: for each knob the number of its value, 0 is the start.
pub type Point = Vec<usize>;

/// Runs of the start before anything else: what changes have to beat must not be one lucky run.
const START_RUNS: usize = 2;

/// Spread settings that are measured again: the better ones, so that none leads by one lucky run.
const HALF: usize = 2;

/// Rounds of a race at most; each is one more run of either side.
const MOST_ROUNDS: u32 = 3;

/// Runs without one of the best so far at most: only runs of the same setting tell what the machine did. With 14, 15 of
/// 200 searches of ways of waiting miss on a machine that changes in a wave, 4 with 8; with 6 a search takes 5 % more runs
/// and misses no less.
const LOOK_BACK: usize = 8;

/// Failures of a value that never came to a score, after which it is given up.
pub const FAILURES: usize = 3;

/// A knob as the search sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// How many values it has.
    pub values: usize,
    /// Whether its values are in an order along which the score is expected to rise and fall.
    pub ordered: bool,
}

/// What the settings in the queue are for.
#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Nothing,
    /// Values of one knob.
    Moving(usize),
    /// Settings spread over all values.
    Spreading(Vec<Point>),
    /// The better ones of those, again.
    Halving(Vec<Point>),
    /// Two knobs at a time.
    Diagonals(Vec<Point>),
    /// What may be better than the best, once more.
    Closing,
    /// A setting that seems better, against the best so far.
    Racing {
        candidate: Point,
        rounds: u32,
    },
}

/// How a race stands.
enum Race {
    Won,
    Lost,
    Open,
}

/// A search over knobs.
#[derive(Clone, Debug)]
pub struct Search {
    dials: Vec<Dial>,
    /// Runs at most, and those that are left of them.
    all: usize,
    left: usize,
    /// Difference of scores that is worth knowing.
    worth: f64,
    random: fastrand::Rng,
    runs: Runs,
    /// How often a setting failed, or might not be chosen.
    failures: BTreeMap<Point, u32>,
    /// The failed settings of which a value, by its knob, was the only one that nobody knew whether it can be had at
    /// all.
    blamed: BTreeMap<(usize, usize), Vec<Point>>,
    /// Values that are not tried any more.
    given_up: BTreeSet<(usize, usize)>,
    queue: VecDeque<Point>,
    doing: Doing,
    /// Knobs that are moved before anything else.
    first: VecDeque<usize>,
    /// The knobs still to be moved in this round.
    round: Vec<usize>,
    /// The best so far, which moves start from and races are run against.
    from: Point,
    improved: bool,
    spread: bool,
    diagonals: bool,
    /// Whether leaders that lie close are told apart by now.
    closing: bool,
    /// The best whose knobs were moved last before that.
    settled: Point,
    over: bool,
}

impl Search {
    /// Searches these knobs with so many runs at most.
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

    /// The same, with knobs that are moved before anything else, in this order.
    #[must_use]
    pub fn beginning_with(mut self, knobs: &[usize]) -> Self {
        let known = knobs
            .iter()
            .copied()
            .filter(|&knob| knob < self.dials.len());
        self.first = known.collect();
        self
    }

    /// The next setting to measure; `None` when it has come to its end.
    pub fn propose(&mut self) -> Option<Point> {
        while self.left > 0 && self.queue.is_empty() && !self.over {
            self.plan();
        }
        self.look_back();
        if self.left == 1 {
            self.settle_last();
        }
        // The plan may have given up what was left.
        self.left = self.left.checked_sub(1)?;
        self.queue.pop_front()
    }

    /// Measures the best so far again where that was long ago: nothing else tells what the machine did since.
    fn look_back(&mut self) {
        let Some(next) = self.queue.front() else {
            return;
        };
        let long_ago = self.runs.since(&self.from) >= LOOK_BACK;
        if long_ago && *next != self.from && self.score(&self.from).is_some() {
            self.queue.push_front(self.from.clone());
        }
    }

    /// The last run goes to what looks best and was measured once: nobody would choose it otherwise, however much better
    /// it is.
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

    /// That the last setting came to nothing: it could not be set, or its run failed. What cost no run is no run.
    ///
    /// Gives the knob and the value that are given up with it: one that failed often enough beside values that work.
    pub fn fail(&mut self, point: &Point, ran: bool) -> Option<(usize, usize)> {
        *self.failures.entry(point.clone()).or_default() += 1;
        self.left += usize::from(!ran);
        let works =
            |knob: usize, value: usize| self.runs.settings().any(|(seen, _)| seen[knob] == value);
        let mut unknown =
            (point.iter().copied().enumerate()).filter(|&(knob, value)| !works(knob, value));
        // With two of them nobody knows which one it was.
        let (Some(blamed), None) = (unknown.next(), unknown.next()) else {
            return None;
        };
        let failed = self.blamed.entry(blamed).or_default();
        failed.push(point.clone());
        if failed.len() < FAILURES {
            return None;
        }
        // It may be that the two cannot be had together: alone tells.
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

    /// What the last setting came to; `None`: it may not be chosen.
    pub fn tell(&mut self, point: &Point, score: Option<f64>) {
        match score.filter(|score| score.is_finite()) {
            Some(score) => self.runs.tell(point, score),
            None => *self.failures.entry(point.clone()).or_default() += 1,
        }
    }

    /// The best setting so far; absent when none has a score.
    ///
    /// What was measured once is not chosen while anything was measured twice: of many settings the luckiest
    /// single run looks best.
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

    /// Median score of a setting as it was measured, and how often that was.
    #[must_use]
    pub fn seen(&self, point: &Point) -> Option<(f64, usize)> {
        let runs = self.runs.measured(point);
        (!runs.is_empty()).then(|| (middle(&runs), runs.len()))
    }

    /// Median score of a setting that may be chosen, without what the machine did meanwhile.
    fn score(&self, point: &Point) -> Option<f64> {
        let may_be = self.runs.has(point) && !self.is_refused(point);
        may_be.then(|| middle(&self.runs.corrected(point)))
    }

    /// Fills the queue, or ends it.
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

    /// The next step, with nothing under way.
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
            // Two at a time were tried around a best that this one is close to.
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

    /// A setting that never came to a score, or failed more than once: one run that failed beside others that
    /// did not says nothing of a setting.
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

    /// The best of these against the best so far, if it seems better.
    fn challenge(&mut self, points: &[Point]) {
        let better = points
            .iter()
            .filter(|point| **point != self.from && self.score(point) > self.score(&self.from));
        let Some(candidate) = better.max_by(|a, b| self.order(a, b)).cloned() else {
            return;
        };
        if self.score(&self.from).is_none() {
            // There is nothing to race against.
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

    /// All runs of one side above all of the other decide at once; else the medians, when there was time.
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
