//! Results of a search on a machine whose speed drifts.

use super::*;

/// Slowdown of the machine during a search; the number is its maximum share.
#[derive(Clone, Copy, Debug)]
enum DriftScenario {
    Steady,
    /// One run in twenty is 30 % slower.
    Outliers,
    /// Two alternating states, each for 15 to 40 runs.
    States(f64),
    /// A cosine with a period of 60 runs.
    Wave(f64),
    /// A linear slowdown over 80 runs.
    Ramp(f64),
}

/// Simulated machine, run by run.
struct DriftingMachine {
    scenario: DriftScenario,
    random: fastrand::Rng,
    run: usize,
    is_slow: bool,
    changes_at: usize,
}

impl DriftingMachine {
    fn new(scenario: DriftScenario, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed + 1000);
        Self {
            scenario,
            is_slow: random.bool(),
            changes_at: random.usize(1..=40),
            random,
            run: 0,
        }
    }

    /// Share by which the next run is slower.
    fn next_slowdown(&mut self) -> f64 {
        if self.run == self.changes_at {
            self.is_slow = !self.is_slow;
            self.changes_at += self.random.usize(15..=40);
        }
        let run = self.run as f64;
        self.run += 1;
        match self.scenario {
            DriftScenario::Steady => 0.0,
            DriftScenario::Outliers => 0.3 * f64::from(self.random.u8(0..20) == 0),
            DriftScenario::States(size) => size * f64::from(self.is_slow),
            DriftScenario::Wave(size) => {
                size * (0.5 - 0.5 * (run * std::f64::consts::TAU / 60.0).cos())
            }
            DriftScenario::Ramp(size) => size * (run / 80.0).min(1.0),
        }
    }
}

/// Number of 200 seeds that miss the mark in this scenario with Gaussian noise, and the average
/// number of runs.
fn count_misses(
    surface: &ResponseSurface,
    deviation: f64,
    scenario: DriftScenario,
) -> (usize, f64) {
    const SEEDS: usize = 200;
    let (best, point_count) = surface.exhaustive();
    let (mut misses, mut runs) = (0, 0);
    for seed in 0..SEEDS as u64 {
        let mut machine = DriftingMachine::new(scenario, seed);
        let noise = |random: &mut fastrand::Rng| {
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            (1.0 - machine.next_slowdown()) * (1.0 + deviation * normal) - 1.0
        };
        let search = Search::new(surface.spaces(), point_count / 5, seed)
            .with_min_difference(MIN_DIFFERENCE);
        let (best_score, runs_spent) = surface.search(search, noise, seed);
        assert!(
            runs_spent <= point_count / 5,
            "{}: {runs_spent} of {point_count}",
            surface.name
        );
        misses += usize::from(best_score < 0.95 * best);
        runs += runs_spent;
    }
    (misses, runs as f64 / SEEDS as f64)
}

/// A single state of 10 % hides the last step of a knob, which gains 6 %, for some dozens of runs.
///
/// With raw scores 7 to 25 of 200 searches miss here.
#[test]
fn a_last_step_of_six_percent_is_found_on_a_machine_that_drifts() {
    use DriftScenario::{Ramp, States, Wave};
    for (scenario, max_misses) in [
        (States(0.08), 5),
        (States(0.10), 5),
        (States(0.12), 10),
        (States(0.15), 12),
        (Wave(0.15), 4),
        (Ramp(0.15), 4),
    ] {
        let (misses, runs) = count_misses(&HOSTS, 0.025, scenario);
        println!("hosts, {scenario:?}: {misses} of 200 missed, {runs} runs");
        assert!(
            misses <= max_misses,
            "{scenario:?}: {misses} of 200, {runs} runs"
        );
    }
}

/// A slow state must not discard a knob that helps: with raw scores 23 and 36 of 200 searches over
/// wait modes missed.
#[test]
fn near_the_best_of_five_surfaces_on_a_machine_that_drifts() {
    use DriftScenario::{States, Wave};
    for surface in SURFACES {
        for scenario in [States(0.12), Wave(0.15)] {
            let (misses, runs) = count_misses(surface, 0.025, scenario);
            println!(
                "{}, {scenario:?}: {misses} of 200 missed, {runs} runs",
                surface.name
            );
            assert!(
                misses <= 8,
                "{}, {scenario:?}: {misses} of 200, {runs} runs",
                surface.name
            );
        }
    }
}

/// Neither an outlier nor noise is treated as drift.
#[test]
fn a_machine_that_does_not_drift_loses_nothing() {
    for (deviation, scenario) in [
        (0.025, DriftScenario::Outliers),
        (0.03, DriftScenario::Steady),
    ] {
        let (misses, runs) = count_misses(&HOSTS, deviation, scenario);
        println!("hosts, {scenario:?}: {misses} of 200 missed, {runs} runs");
        assert!(misses <= 1, "{scenario:?}: {misses} of 200, {runs} runs");
    }
}
