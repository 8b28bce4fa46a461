//! Points of a sweep matrix, the order of their runs, and the Pareto front.

use linerate_record::comparison::BetterWhen;
use linerate_record::experiment::KnobValues;

use crate::sweep_axis::SweepAxis;

/// Maximum number of points: at one second each they take about a day.
pub const MAX_POINTS: usize = 100_000;

/// Returns every combination of values, the last axis varying fastest; `None` beyond
/// [`MAX_POINTS`].
#[must_use]
pub fn all_points(axes: &[SweepAxis]) -> Option<Vec<KnobValues>> {
    let count = axes
        .iter()
        .try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()))?;
    if count > MAX_POINTS {
        return None;
    }
    let mut combinations = vec![KnobValues::new()];
    for axis in axes {
        combinations = combinations
            .into_iter()
            .flat_map(|point| {
                axis.values.iter().map(move |value| {
                    let mut point = point.clone();
                    point.insert(axis.name.clone(), value.clone());
                    point
                })
            })
            .collect();
    }
    Some(combinations)
}

/// Maximum number of runs: ten per point of the largest matrix.
pub const MAX_RUNS: usize = 10 * MAX_POINTS;

/// Returns the order of all runs: one round per repeat, each round a permutation of all points.
///
/// A drift of the machine affects every point equally, and no point has two runs before each has
/// one.
/// Returns `None` beyond [`MAX_RUNS`].
#[must_use]
pub fn run_order(points: usize, repeats: u32, seed: u64) -> Option<Vec<usize>> {
    let runs = points.checked_mul(repeats as usize);
    let runs = runs.filter(|runs| *runs <= MAX_RUNS)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut runs_in_order = Vec::with_capacity(runs);
    for _ in 0..repeats {
        let mut round: Vec<usize> = (0..points).collect();
        random.shuffle(&mut round);
        runs_in_order.extend(round);
    }
    Some(runs_in_order)
}

/// Returns for each point whether it is on the Pareto front.
///
/// A point is on the front if no other point is at least as good in value and cost and better in
/// one of them. Points without a value or a cost are never on it.
#[must_use]
pub fn pareto_front(better: BetterWhen, points: &[(Option<f64>, Option<f64>)]) -> Vec<bool> {
    let higher_is_better = |value: f64| match better {
        BetterWhen::Higher => value,
        BetterWhen::Lower => -value,
    };
    let complete_points: Vec<Option<(f64, f64)>> = points
        .iter()
        .map(|(value, cost)| Some((higher_is_better((*value)?), (*cost)?)))
        .collect();
    complete_points
        .iter()
        .map(|point| {
            point.is_some_and(|(value, cost)| {
                !complete_points
                    .iter()
                    .flatten()
                    .any(|&(other_value, other_cost)| {
                        other_value >= value
                            && other_cost <= cost
                            && (other_value > value || other_cost < cost)
                    })
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn axes(texts: &[&str]) -> Vec<SweepAxis> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_last_axis_is_the_fastest() {
        let matrix_points = all_points(&axes(&["a=1,2", "b=x,y,z"])).unwrap();
        let labels: Vec<String> = matrix_points
            .iter()
            .map(|p| format!("{}{}", p["a"], p["b"]))
            .collect();
        assert_eq!(labels, ["1x", "1y", "1z", "2x", "2y", "2z"]);
        assert!(all_points(&axes(&["a=1..1000:+1", "b=1..1000:+1"])).is_none());
    }

    /// The order is rejected before memory for four billion runs is allocated.
    #[test]
    fn too_many_runs_have_no_order() {
        assert_eq!(run_order(10, 2, 1).map(|order| order.len()), Some(20));
        assert_eq!(run_order(MAX_POINTS, 11, 1), None);
        assert_eq!(run_order(4, u32::MAX, 1), None);
        assert_eq!(run_order(usize::MAX, 2, 1), None);
    }

    #[test]
    fn cheap_and_fast_points_are_on_the_front() {
        let front = pareto_front(
            BetterWhen::Higher,
            &[
                (Some(10.0), Some(1.0)),
                (Some(20.0), Some(2.0)),
                (Some(15.0), Some(2.0)),
                (Some(20.0), Some(3.0)),
                (None, Some(0.5)),
                (Some(30.0), None),
            ],
        );
        assert_eq!(front, [true, true, false, false, false, false]);
        let front = pareto_front(
            BetterWhen::Lower,
            &[(Some(5.0), Some(1.0)), (Some(9.0), Some(1.0))],
        );
        assert_eq!(front, [true, false]);
    }

    proptest! {
        #[test]
        fn every_round_has_every_point_once(points in 1usize..40, repeats in 1u32..5, seed: u64) {
            let all = run_order(points, repeats, seed).expect("they are few");
            for round in all.chunks(points) {
                let mut sorted = round.to_vec();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..points).collect::<Vec<_>>());
            }
            prop_assert_eq!(Some(all), run_order(points, repeats, seed));
        }
    }
}
