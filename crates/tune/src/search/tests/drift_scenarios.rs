//! Results of a search on a machine whose speed drifts.

use super::*;

/// Slowdown of the machine during a search; the number is its maximum share.
#[derive(Clone, Copy, Debug)]
enum Weather {
    Steady,
    /// One run in twenty is 30 % slower.
    Wild,
    /// Two alternating states, each for 15 to 40 runs.
    States(f64),
    /// A cosine with a period of 60 runs.
    Wave(f64),
    /// A linear slowdown over 80 runs.
    Ramp(f64),
}

/// Simulated machine, run by run.
struct Machine {
    weather: Weather,
    random: fastrand::Rng,
    run: usize,
    slow: bool,
    changes_at: usize,
}

impl Machine {
    fn new(weather: Weather, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed + 1000);
        Self {
            weather,
            slow: random.bool(),
            changes_at: random.usize(1..=40),
            random,
            run: 0,
        }
    }

    /// Share by which the next run is slower.
    fn slower(&mut self) -> f64 {
        if self.run == self.changes_at {
            self.slow = !self.slow;
            self.changes_at += self.random.usize(15..=40);
        }
        let run = self.run as f64;
        self.run += 1;
        match self.weather {
            Weather::Steady => 0.0,
            Weather::Wild => 0.3 * f64::from(self.random.u8(0..20) == 0),
            Weather::States(size) => size * f64::from(self.slow),
            Weather::Wave(size) => size * (0.5 - 0.5 * (run * std::f64::consts::TAU / 60.0).cos()),
            Weather::Ramp(size) => size * (run / 80.0).min(1.0),
        }
    }
}

/// Number of 200 seeds that miss the mark in this scenario with Gaussian noise, and the average
/// number of runs.
fn missed(surface: &Surface, deviation: f64, weather: Weather) -> (usize, f64) {
    const SEEDS: usize = 200;
    let (best, all) = surface.exhaustive();
    let (mut missed, mut runs) = (0, 0);
    for seed in 0..SEEDS as u64 {
        let mut machine = Machine::new(weather, seed);
        let noise = |random: &mut fastrand::Rng| {
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            (1.0 - machine.slower()) * (1.0 + deviation * normal) - 1.0
        };
        let search = Search::new(surface.dials(), all / 5, seed).worth(WORTH);
        let (found, spent) = surface.search(search, noise, seed);
        assert!(spent <= all / 5, "{}: {spent} of {all}", surface.name);
        missed += usize::from(found < 0.95 * best);
        runs += spent;
    }
    (missed, runs as f64 / SEEDS as f64)
}

/// A single state of 10 % hides the last step of a knob, which gains 6 %, for some dozens of runs.
///
/// With raw scores 7 to 25 of 200 searches miss here.
#[test]
fn a_last_step_of_six_percent_is_found_on_a_machine_that_drifts() {
    use Weather::{Ramp, States, Wave};
    for (weather, most) in [
        (States(0.08), 5),
        (States(0.10), 5),
        (States(0.12), 10),
        (States(0.15), 12),
        (Wave(0.15), 4),
        (Ramp(0.15), 4),
    ] {
        let (missed, runs) = missed(&HOSTS, 0.025, weather);
        println!("hosts, {weather:?}: {missed} of 200 missed, {runs} runs");
        assert!(missed <= most, "{weather:?}: {missed} of 200, {runs} runs");
    }
}

/// A slow state must not discard a knob that helps: with raw scores 23 and 36 of 200 searches over
/// wait modes missed.
#[test]
fn near_the_best_of_five_surfaces_on_a_machine_that_drifts() {
    use Weather::{States, Wave};
    for surface in SURFACES {
        for weather in [States(0.12), Wave(0.15)] {
            let (missed, runs) = missed(surface, 0.025, weather);
            println!(
                "{}, {weather:?}: {missed} of 200 missed, {runs} runs",
                surface.name
            );
            assert!(
                missed <= 8,
                "{}, {weather:?}: {missed} of 200, {runs} runs",
                surface.name
            );
        }
    }
}

/// Neither an outlier nor noise is treated as drift.
#[test]
fn a_machine_that_does_not_drift_loses_nothing() {
    for (deviation, weather) in [(0.025, Weather::Wild), (0.03, Weather::Steady)] {
        let (missed, runs) = missed(&HOSTS, deviation, weather);
        println!("hosts, {weather:?}: {missed} of 200 missed, {runs} runs");
        assert!(missed <= 1, "{weather:?}: {missed} of 200, {runs} runs");
    }
}
