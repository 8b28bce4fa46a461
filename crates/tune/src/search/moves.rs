//! Points to try: spread over all values, or one or two knobs away from the best so far.

use std::collections::BTreeSet;

use super::{Search, SearchPhase, SearchPoint};

/// Maximum number of spread points, before knobs are moved one by one.
const MAX_SPREAD_POINTS: usize = 8;

/// Maximum number of points in which two ordered knobs move a step together.
const MAX_STEP_POINTS: usize = 16;

/// Maximum number of points in which two knobs, at least one unordered, change together.
const MAX_CHOICE_POINTS: usize = 8;

impl Search {
    /// Queues points in which each value of each knob occurs about equally often.
    ///
    /// Knobs that were moved already keep their best value.
    pub(super) fn plan_spread(&mut self) {
        let is_free: Vec<bool> = self.incumbent.iter().map(|&value| value == 0).collect();
        let counts = self
            .spaces
            .iter()
            .zip(&is_free)
            .filter(|(_, is_free)| **is_free);
        let max_values = counts
            .map(|(space, _)| space.value_count)
            .max()
            .unwrap_or(0);
        let rows = max_values
            .min(MAX_SPREAD_POINTS)
            .min(self.remaining_runs / 4);
        let mut columns = Vec::with_capacity(self.spaces.len());
        for (knob, space) in self.spaces.iter().enumerate() {
            let mut column: Vec<usize> = (0..rows)
                .map(|row| match (is_free[knob], rows >= space.value_count) {
                    (false, _) => self.incumbent[knob],
                    (true, true) => row % space.value_count.max(1),
                    (true, false) => row * space.value_count / rows,
                })
                .collect();
            self.random.shuffle(&mut column);
            columns.push(column);
        }
        let points: BTreeSet<SearchPoint> = (0..rows)
            .map(|row| columns.iter().map(|column| column[row]).collect())
            .filter(|point| self.is_untried(point))
            .collect();
        let points: Vec<SearchPoint> = points.into_iter().collect();
        self.queue.extend(points.iter().cloned());
        self.phase = SearchPhase::Spread(points);
    }

    /// Points that differ in one knob: every value, or for a long ordered knob neighbors and
    /// distant values.
    pub(super) fn single_moves(&self, knob: usize) -> Vec<SearchPoint> {
        let space = self.spaces[knob];
        let current = self.incumbent[knob];
        let is_selected = |value: usize| {
            let distance = value.abs_diff(current);
            !space.ordered
                || space.value_count <= 6
                || distance <= 1
                || distance == space.value_count / 3
        };
        (0..space.value_count)
            .filter(|&value| value != current && is_selected(value))
            .map(|value| {
                let mut point = self.incumbent.clone();
                point[knob] = value;
                point
            })
            .collect()
    }

    /// Points that differ from the best in two knobs.
    ///
    /// Needed where no single knob helps: the smaller of two buffers limits, two knobs share one
    /// memory budget, or one knob pays only in combination with the other.
    pub(super) fn pair_moves(&mut self) -> Vec<SearchPoint> {
        let (mut steps, mut choices) = (Vec::new(), Vec::new());
        for first_knob in 0..self.spaces.len() {
            for second_knob in first_knob + 1..self.spaces.len() {
                match self.spaces[first_knob].ordered && self.spaces[second_knob].ordered {
                    true => steps.extend(self.pair_steps(first_knob, second_knob)),
                    false => choices.extend(self.pair_choices(first_knob, second_knob)),
                }
            }
        }
        for (points, max_points) in [
            (&mut steps, MAX_STEP_POINTS),
            (&mut choices, MAX_CHOICE_POINTS),
        ] {
            points.retain(|point| self.is_untried(point));
            self.random.shuffle(points);
            points.truncate(max_points);
        }
        steps.extend(choices);
        steps
    }

    /// Steps of two ordered knobs.
    fn pair_steps(&self, first_knob: usize, second_knob: usize) -> Vec<SearchPoint> {
        let shifted_value = |knob: usize, step: isize| {
            let value = self.incumbent[knob].checked_add_signed(step)?;
            (value < self.spaces[knob].value_count).then_some(value)
        };
        [(1, 1), (1, -1), (-1, 1), (2, 2)]
            .into_iter()
            .filter_map(|(first_step, second_step)| {
                Some(self.with_values(
                    first_knob,
                    shifted_value(first_knob, first_step)?,
                    second_knob,
                    shifted_value(second_knob, second_step)?,
                ))
            })
            .collect()
    }

    /// Other values of two knobs, at least one of them unordered.
    fn pair_choices(&self, first_knob: usize, second_knob: usize) -> Vec<SearchPoint> {
        let other_values = |knob: usize| {
            let current = self.incumbent[knob];
            (0..self.spaces[knob].value_count).filter(move |&value| value != current)
        };
        other_values(first_knob)
            .flat_map(|first_value| {
                other_values(second_knob).map(move |second_value| (first_value, second_value))
            })
            .map(|(first_value, second_value)| {
                self.with_values(first_knob, first_value, second_knob, second_value)
            })
            .collect()
    }

    fn with_values(
        &self,
        first_knob: usize,
        first_value: usize,
        second_knob: usize,
        second_value: usize,
    ) -> SearchPoint {
        let mut point = self.incumbent.clone();
        (point[first_knob], point[second_knob]) = (first_value, second_value);
        point
    }
}
