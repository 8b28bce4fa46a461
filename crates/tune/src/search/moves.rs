//! Points to try: spread over all values, or one or two knobs away from the best so far.

use std::collections::BTreeSet;

use super::{Doing, Point, Search};

/// Maximum number of spread points, before knobs are moved one by one.
const MOST_STRATA: usize = 8;

/// Maximum number of points in which two ordered knobs move a step together.
const MOST_STEPS: usize = 16;

/// Maximum number of points in which two knobs, at least one unordered, change together.
const MOST_CHOICES: usize = 8;

impl Search {
    /// Queues points in which each value of each knob occurs about equally often.
    ///
    /// Knobs that were moved already keep their best value.
    pub(super) fn spread(&mut self) {
        let free: Vec<bool> = self.from.iter().map(|&value| value == 0).collect();
        let counts = self.dials.iter().zip(&free).filter(|(_, free)| **free);
        let most = counts.map(|(dial, _)| dial.values).max().unwrap_or(0);
        let rows = most.min(MOST_STRATA).min(self.left / 4);
        let mut columns = Vec::with_capacity(self.dials.len());
        for (knob, dial) in self.dials.iter().enumerate() {
            let mut column: Vec<usize> = (0..rows)
                .map(|row| match (free[knob], rows >= dial.values) {
                    (false, _) => self.from[knob],
                    (true, true) => row % dial.values.max(1),
                    (true, false) => row * dial.values / rows,
                })
                .collect();
            self.random.shuffle(&mut column);
            columns.push(column);
        }
        let points: BTreeSet<Point> = (0..rows)
            .map(|row| columns.iter().map(|column| column[row]).collect())
            .filter(|point| self.is_fresh(point))
            .collect();
        let points: Vec<Point> = points.into_iter().collect();
        self.queue.extend(points.iter().cloned());
        self.doing = Doing::Spreading(points);
    }

    /// Points that differ in one knob: every value, or for a long ordered knob neighbors and
    /// distant values.
    pub(super) fn moves(&self, knob: usize) -> Vec<Point> {
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

    /// Points that differ from the best in two knobs.
    ///
    /// Needed where no single knob helps: the smaller of two buffers limits, two knobs share one
    /// memory
    /// budget, or one knob pays only in combination with the other.
    pub(super) fn diagonals(&mut self) -> Vec<Point> {
        let (mut steps, mut choices) = (Vec::new(), Vec::new());
        for one in 0..self.dials.len() {
            for other in one + 1..self.dials.len() {
                match self.dials[one].ordered && self.dials[other].ordered {
                    true => steps.extend(self.steps(one, other)),
                    false => choices.extend(self.choices(one, other)),
                }
            }
        }
        for (points, most) in [(&mut steps, MOST_STEPS), (&mut choices, MOST_CHOICES)] {
            points.retain(|point| self.is_fresh(point));
            self.random.shuffle(points);
            points.truncate(most);
        }
        steps.extend(choices);
        steps
    }

    /// Steps of two ordered knobs.
    fn steps(&self, one: usize, other: usize) -> Vec<Point> {
        let moved = |knob: usize, step: isize| {
            let value = self.from[knob].checked_add_signed(step)?;
            (value < self.dials[knob].values).then_some(value)
        };
        [(1, 1), (1, -1), (-1, 1), (2, 2)]
            .into_iter()
            .filter_map(|(a, b)| Some(self.with(one, moved(one, a)?, other, moved(other, b)?)))
            .collect()
    }

    /// Other values of two knobs, at least one of them unordered.
    fn choices(&self, one: usize, other: usize) -> Vec<Point> {
        let others = |knob: usize| {
            let at = self.from[knob];
            (0..self.dials[knob].values).filter(move |&value| value != at)
        };
        others(one)
            .flat_map(|a| others(other).map(move |b| (a, b)))
            .map(|(a, b)| self.with(one, a, other, b))
            .collect()
    }

    fn with(&self, one: usize, a: usize, other: usize, b: usize) -> Point {
        let mut point = self.from.clone();
        (point[one], point[other]) = (a, b);
        point
    }
}
