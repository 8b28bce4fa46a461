//! Which setting to try next: a start spread over all values, then one knob at a time from the best, with
//! a second look at what seems better.
//!
//! Takes scores, higher is better, and gives settings; it measures nothing and reads no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A setting: for each knob the number of its value, 0 is the start.
pub type Point = Vec<usize>;

/// Runs of the start before anything else: what changes have to beat must not be one lucky run.
const START_RUNS: usize = 2;

/// Spread settings at most, before knobs are moved one by one.
const MOST_STRATA: usize = 8;

/// A knob as the search sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// How many values it has.
    pub values: usize,
    /// Whether its values are in an order along which the score is expected to rise and fall.
    pub ordered: bool,
}

/// A search over knobs.
#[derive(Clone, Debug)]
pub struct Search {
    dials: Vec<Dial>,
    left: usize,
    random: fastrand::Rng,
    scores: BTreeMap<Point, Vec<f64>>,
    refused: BTreeSet<Point>,
    queue: VecDeque<Point>,
    /// The knobs still to be moved in this round.
    round: Vec<usize>,
    /// What the moves of the present knob are to be held against.
    from: Point,
    moved: Option<usize>,
    racing: Option<Point>,
    improved: bool,
    strata: bool,
    over: bool,
}

impl Search {
    /// Searches these knobs with so many runs at most.
    #[must_use]
    pub fn new(dials: Vec<Dial>, runs: usize, seed: u64) -> Self {
        let start = vec![0; dials.len()];
        Self {
            left: runs,
            random: fastrand::Rng::with_seed(seed),
            scores: BTreeMap::new(),
            refused: BTreeSet::new(),
            queue: std::iter::repeat_n(start.clone(), START_RUNS).collect(),
            round: Vec::new(),
            from: start,
            moved: None,
            racing: None,
            improved: true,
            strata: false,
            over: false,
            dials,
        }
    }

    /// The next setting to measure; `None` when it has come to its end.
    pub fn propose(&mut self) -> Option<Point> {
        if self.left == 0 {
            return None;
        }
        while self.queue.is_empty() && !self.over {
            self.plan();
        }
        let point = self.queue.pop_front()?;
        self.left -= 1;
        Some(point)
    }

    /// What the last setting came to; `None`: it failed, or may not be chosen.
    pub fn tell(&mut self, point: &Point, score: Option<f64>) {
        match score.filter(|score| score.is_finite()) {
            Some(score) => self.scores.entry(point.clone()).or_default().push(score),
            None => {
                self.refused.insert(point.clone());
            }
        }
    }

    /// The best setting so far; absent when none has a score.
    #[must_use]
    pub fn best(&self) -> Option<Point> {
        let scored = self
            .scores
            .iter()
            .filter(|(point, _)| !self.refused.contains(*point));
        scored
            .map(|(point, scores)| (point, middle(scores)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(point, _)| point.clone())
    }

    fn score(&self, point: &Point) -> Option<f64> {
        if self.refused.contains(point) {
            return None;
        }
        self.scores.get(point).map(|scores| middle(scores))
    }

    fn plan(&mut self) {
        if !self.strata {
            self.strata = true;
            self.spread();
            return;
        }
        if let Some(candidate) = self.racing.take() {
            // Both have been looked at again: the median of each decides.
            if self.score(&candidate) > self.score(&self.from) {
                self.from = candidate;
                self.improved = true;
            }
            self.moved = None;
            return;
        }
        if let Some(knob) = self.moved.take() {
            let best = self
                .moves(knob)
                .into_iter()
                .filter(|point| self.score(point) > self.score(&self.from))
                .max_by(|a, b| {
                    let score = |point| self.score(point).unwrap_or(f64::MIN);
                    score(a).total_cmp(&score(b))
                });
            if let Some(candidate) = best {
                self.queue.extend([candidate.clone(), self.from.clone()]);
                self.racing = Some(candidate);
            }
            return;
        }
        let Some(knob) = self.round.pop() else {
            if !self.improved {
                self.over = true;
                return;
            }
            self.improved = false;
            self.from = self.best().unwrap_or_else(|| vec![0; self.dials.len()]);
            self.round = (0..self.dials.len()).collect();
            self.random.shuffle(&mut self.round);
            return;
        };
        self.moved = Some(knob);
        let fresh: Vec<Point> = (self.moves(knob).into_iter())
            .filter(|point| !self.scores.contains_key(point) && !self.refused.contains(point))
            .collect();
        self.queue.extend(fresh);
    }

    /// Settings in which each value of each knob stands about as often as any other.
    fn spread(&mut self) {
        let most = self.dials.iter().map(|dial| dial.values).max().unwrap_or(0);
        let rows = most.clamp(0, MOST_STRATA);
        let columns: Vec<Vec<usize>> = self
            .dials
            .iter()
            .map(|dial| {
                let mut column: Vec<usize> = (0..rows.max(1))
                    .map(|row| row * dial.values / rows.max(1))
                    .collect();
                if dial.values > 0 && rows >= dial.values {
                    column = (0..rows).map(|row| row % dial.values).collect();
                }
                self.random.shuffle(&mut column);
                column
            })
            .collect();
        for row in 0..rows {
            let point: Point = columns.iter().map(|column| column[row]).collect();
            self.queue.push_back(point);
        }
    }

    /// Settings that differ in one knob: all of its values, or of many in an order some near and some far.
    fn moves(&self, knob: usize) -> Vec<Point> {
        let dial = self.dials[knob];
        let at = self.from[knob];
        let near = |value: usize| {
            let distance = value.abs_diff(at);
            !dial.ordered || dial.values <= 6 || distance <= 1 || distance == dial.values / 3
        };
        (0..dial.values)
            .filter(|&value| value != at && near(value))
            .map(|value| {
                let mut point = self.from.clone();
                point[knob] = value;
                point
            })
            .collect()
    }
}

fn middle(values: &[f64]) -> f64 {
    linerate_metric::statistics::median(values).unwrap_or(f64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dials(counts: &[usize]) -> Vec<Dial> {
        counts
            .iter()
            .map(|&values| Dial {
                values,
                ordered: values > 3,
            })
            .collect()
    }

    /// A surface as stacks have it: a window that saturates, writes whose size pays until they leave a
    /// cache, a congestion control that caps all else, and threads that get in each other's way.
    fn surface(point: &Point) -> f64 {
        let window = 2f64.powi(point[0] as i32);
        let write = [0.3, 0.6, 0.9, 1.0, 0.8][point[1]];
        let congestion = [0.35, 1.0, 0.9][point[2]];
        let waiting = [0.7, 1.0, 0.4][point[3]];
        let windowed = window / (window + 6.0);
        // A spinning receiver and the wrong congestion control do not go together.
        let clash = if point[2] == 0 && point[3] == 1 {
            0.2
        } else {
            1.0
        };
        100.0 * windowed * write * congestion * waiting * clash
    }

    fn run(
        counts: &[usize],
        runs: usize,
        noise: f64,
        seed: u64,
        of: fn(&Point) -> f64,
    ) -> (f64, usize) {
        let mut search = Search::new(dials(counts), runs, seed);
        let mut random = fastrand::Rng::with_seed(seed + 100);
        let mut spent = 0;
        while let Some(point) = search.propose() {
            spent += 1;
            assert!(
                point.iter().zip(counts).all(|(value, count)| value < count),
                "{point:?}"
            );
            search.tell(
                &point,
                Some(of(&point) * (1.0 + noise * (random.f64() - 0.5) * 2.0)),
            );
        }
        (of(&search.best().unwrap()), spent)
    }

    fn exhaustive(counts: &[usize], of: fn(&Point) -> f64) -> (f64, usize) {
        let mut all: Vec<Point> = vec![Vec::new()];
        for &count in counts {
            all = (all.into_iter())
                .flat_map(|point| (0..count).map(move |value| [&point[..], &[value]].concat()))
                .collect();
        }
        let best = all.iter().map(of).fold(0.0, f64::max);
        (best, all.len())
    }

    #[test]
    fn near_the_best_with_a_fifth_of_all_runs() {
        let counts = [8, 5, 3, 3];
        let (best, all) = exhaustive(&counts, surface);
        for seed in 0..20 {
            let (found, spent) = run(&counts, all / 5, 0.03, seed, surface);
            assert!(spent <= all / 5);
            assert!(
                found >= 0.95 * best,
                "seed {seed}: {found} of {best} with {spent} runs"
            );
        }
    }

    #[test]
    fn what_is_refused_is_never_the_best() {
        let mut search = Search::new(dials(&[4, 3]), 60, 1);
        while let Some(point) = search.propose() {
            // The fastest values cannot be had.
            let allowed = point[0] < 3 && point[1] < 2;
            search.tell(&point, allowed.then_some((point[0] * 10 + point[1]) as f64));
        }
        assert_eq!(search.best(), Some(vec![2, 1]));
    }

    #[test]
    fn nothing_to_search_ends_at_once() {
        let mut search = Search::new(Vec::new(), 50, 1);
        let mut runs = 0;
        while let Some(point) = search.propose() {
            search.tell(&point, Some(1.0));
            runs += 1;
            assert!(runs < 10);
        }
        assert_eq!(search.best(), Some(Vec::new()));
    }
}
