mod drift_scenarios;

use super::*;

/// Half of the default goal of 5 % of `tune`, as a difference of logarithms.
const MIN_DIFFERENCE: f64 = 0.0247;

/// Response surface to search: knobs, score of a setting, and whether the setting may be chosen.
struct ResponseSurface {
    name: &'static str,
    /// Number of values of each knob, and whether they are ordered.
    knobs: &'static [(usize, bool)],
    /// Score; higher is better.
    score: fn(&SearchPoint) -> f64,
    is_allowed: fn(&SearchPoint) -> bool,
}

/// A window that saturates, write sizes that help until they exceed a cache, a congestion control
/// that limits all else, and an interaction: a spinning receiver with the wrong congestion control.
fn stream(point: &SearchPoint) -> f64 {
    let window = 2f64.powi(point[0] as i32);
    let write = [0.3, 0.6, 0.9, 1.0, 0.8][point[1]];
    let congestion = [0.35, 1.0, 0.9][point[2]];
    let waiting = [0.7, 1.0, 0.4][point[3]];
    let clash = if point[2] == 0 && point[3] == 1 {
        0.2
    } else {
        1.0
    };
    100.0 * window / (window + 6.0) * write * congestion * waiting * clash
}

/// Send buffer, window, descriptors and queue of a small stack: the smaller of the first two
/// limits.
fn embedded(point: &SearchPoint) -> f64 {
    let size = |at: usize| 2f64.powi(point[at] as i32);
    let window = size(0).min(size(1));
    let descriptors = [0.4, 0.7, 0.95, 1.0, 1.0][point[2]];
    let queue = [0.9, 0.95, 1.0, 1.0][point[3]];
    100.0 * window / (window + 4.0) * descriptors * queue
}

/// Memory budget of 36 KiB.
fn embedded_allowed(point: &SearchPoint) -> bool {
    let size = |at: usize| 1usize << point[at];
    size(0) + size(1) + [4, 8, 16, 32, 64][point[2]] / 2 + point[3] <= 36
}

/// Wait modes, idle states, scheduling class, CPUs and a busy-poll time: round-trip rates as
/// measured on a virtual machine (docs/method/defaults.md: blocking 48 us, without idle states 11,
/// spinning 5.6).
fn round_trips(point: &SearchPoint) -> f64 {
    let wait = [1.0, 8.0, 1.5, 0.95, 0.9][point[0]];
    let idle = if point[0] == 1 {
        1.0
    } else {
        [1.0, 3.5][point[1]]
    };
    let sched = [1.0, 1.03, 1.08][point[2]];
    let cpu = [1.0, 1.1, 0.5][point[3]];
    let busy = if point[0] == 2 {
        [0.6, 1.0, 1.1][point[4]]
    } else {
        1.0
    };
    20_000.0 * wait * idle * sched * cpu * busy
}

/// Datagrams: segmentation offload that multiplies, a queue that drops what does not fit, wait
/// modes.
fn datagrams(point: &SearchPoint) -> f64 {
    let offload = [1.0, 1.6, 6.0, 0.9][point[0]];
    let length = [0.2, 0.4, 0.7, 0.9, 1.0, 0.98][point[1]];
    let required_queue = offload / 6.0;
    let queue: f64 = [0.1, 0.3, 0.6, 1.0, 1.0][point[2]];
    let waiting = [0.8, 1.0, 0.7][point[3]];
    1e6 * offload * length * waiting * (queue / required_queue).min(1.0)
}

/// Buffers of both ends of a long path, which help only together, and knobs without effect.
fn long_path(point: &SearchPoint) -> f64 {
    let size = |at: usize| 2f64.powi(point[at] as i32);
    let window = size(0).min(size(1)).min(24.0);
    let negligible_gain = 1.0 + 0.002 * (point[2] + point[3]) as f64;
    window * negligible_gain
}

/// Segment sizes whose last step gains 6 % and whose whole gain needs large writes and offloads, an
/// MTU with almost no gain, and two knobs without any: the lab `hosts` of `make bench-tune`, with
/// more sizes.
fn hosts(point: &SearchPoint) -> f64 {
    let pays = point[1] != 2 && point[3] >= 2;
    let segments = match pays {
        true => [1.0, 1.3, 1.55, 1.74, 1.88, 2.0][point[0]],
        false => 1.0,
    };
    let offloads = [1.0, 1.0, 0.2][point[1]];
    let mtu = [1.0, 1.0, 1.005, 1.015][point[2]];
    let write = [0.15, 0.6, 0.95, 1.0][point[3]];
    let smallest_effect = [1.0, 0.99][point[4]];
    40e9 * segments * offloads * mtu * write * smallest_effect
}

const HOSTS: ResponseSurface = ResponseSurface {
    name: "hosts",
    knobs: &[
        (6, true),
        (3, true),
        (4, true),
        (4, true),
        (2, true),
        (2, false),
    ],
    score: hosts,
    is_allowed: |_| true,
};

const SURFACES: &[ResponseSurface] = &[
    ResponseSurface {
        name: "stream",
        knobs: &[(8, true), (5, true), (3, false), (3, false)],
        score: stream,
        is_allowed: |_| true,
    },
    ResponseSurface {
        name: "embedded",
        knobs: &[(6, true), (6, true), (5, true), (4, true)],
        score: embedded,
        is_allowed: embedded_allowed,
    },
    ResponseSurface {
        name: "trips",
        knobs: &[(5, false), (2, false), (3, false), (3, false), (3, true)],
        score: round_trips,
        is_allowed: |_| true,
    },
    ResponseSurface {
        name: "datagrams",
        knobs: &[(4, false), (6, true), (5, true), (3, false)],
        score: datagrams,
        is_allowed: |_| true,
    },
    ResponseSurface {
        name: "long path",
        knobs: &[(6, true), (6, true), (5, false), (3, false)],
        score: long_path,
        is_allowed: |_| true,
    },
];

impl ResponseSurface {
    fn spaces(&self) -> Vec<KnobSpace> {
        let spaces = self.knobs.iter();
        spaces
            .map(|&(values, ordered)| KnobSpace {
                value_count: values,
                ordered,
            })
            .collect()
    }

    /// Score of the best setting that may be chosen, and the number of settings.
    fn exhaustive(&self) -> (f64, usize) {
        let mut points: Vec<SearchPoint> = vec![Vec::new()];
        for &(count, _) in self.knobs {
            points = (points.into_iter())
                .flat_map(|point| (0..count).map(move |value| [&point[..], &[value]].concat()))
                .collect();
        }
        let allowed = points.iter().filter(|point| (self.is_allowed)(point));
        (allowed.map(self.score).fold(0.0, f64::max), points.len())
    }

    /// Noise-free score of the setting that a search chose, and its number of runs; `noise` is a
    /// share per run.
    fn search(
        &self,
        mut search: Search,
        mut noise: impl FnMut(&mut fastrand::Rng) -> f64,
        seed: u64,
    ) -> (f64, usize) {
        let mut random = fastrand::Rng::with_seed(seed + 100);
        let mut runs_spent = 0;
        while let Some(point) = search.propose() {
            runs_spent += 1;
            let counts = self.knobs.iter().map(|(count, _)| *count);
            assert!(
                point
                    .iter()
                    .zip(counts)
                    .all(|(value, count)| *value < count)
            );
            let noisy = (self.score)(&point) * (1.0 + noise(&mut random));
            // The logarithm, as `tune` passes it.
            search.record_score(&point, (self.is_allowed)(&point).then(|| noisy.ln()));
        }
        let best = search.best_point().unwrap();
        assert!((self.is_allowed)(&best), "{}: {best:?}", self.name);
        ((self.score)(&best), runs_spent)
    }
}

/// The goal of the bench: within 5 % of the best with a fifth of all runs.
#[test]
fn near_the_best_of_five_surfaces_with_a_fifth_of_all_runs() {
    for surface in SURFACES {
        let (best, point_count) = surface.exhaustive();
        let mut missed = Vec::new();
        for seed in 0..40 {
            let search = Search::new(surface.spaces(), point_count / 5, seed);
            let uniform_noise = |random: &mut fastrand::Rng| 0.03 * (random.f64() - 0.5) * 2.0;
            let (best_score, runs_spent) = surface.search(search, uniform_noise, seed);
            assert!(
                runs_spent <= point_count / 5,
                "{}: {runs_spent} of {point_count}",
                surface.name
            );
            if best_score < 0.95 * best {
                missed.push((seed, best_score / best));
            }
        }
        println!(
            "{}: {} of 40 missed: {missed:?}",
            surface.name,
            missed.len()
        );
        assert!(missed.len() <= 1, "{}: {missed:?}", surface.name);
    }
}

/// Number of 200 seeds that miss the mark with Gaussian noise, and the average number of runs.
fn count_misses(surface: &ResponseSurface, deviation: f64) -> (usize, f64) {
    const SEEDS: usize = 200;
    let (best, point_count) = surface.exhaustive();
    let gaussian_noise =
        |random: &mut fastrand::Rng| deviation * ((0..12).map(|_| random.f64()).sum::<f64>() - 6.0);
    let (mut misses, mut runs) = (0, 0);
    for seed in 0..SEEDS as u64 {
        let search = Search::new(surface.spaces(), point_count / 5, seed)
            .with_min_difference(MIN_DIFFERENCE);
        let (best_score, runs_spent) = surface.search(search, gaussian_noise, seed);
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

#[test]
fn a_last_step_of_six_percent_is_found_through_noise_of_its_size() {
    for (deviation, max_misses) in [(0.03, 1), (0.04, 2), (0.05, 4)] {
        let (misses, runs) = count_misses(&HOSTS, deviation);
        println!("hosts, {deviation}: {misses} of 200 missed, {runs} runs");
        assert!(
            misses <= max_misses,
            "{deviation}: {misses} of 200, {runs} runs"
        );
    }
}

#[test]
fn knobs_of_findings_are_moved_first() {
    let surface = &SURFACES[0];
    let mut search = Search::new(surface.spaces(), 60, 3).with_first_knobs(&[2, 3]);
    let mut proposed = Vec::new();
    while let Some(point) = search.propose() {
        search.record_score(&point, Some(stream(&point).ln()));
        proposed.push(point);
    }
    assert_eq!(proposed[..2], [vec![0; 4], vec![0; 4]]);
    // Both values of the first knob, and no other knob.
    assert!(
        proposed[2..4]
            .iter()
            .all(|point| point[2] != 0 && point[0] == 0)
    );
    let third = proposed.iter().position(|point| point[0] != 0).unwrap();
    assert!(
        proposed[third][2] != 0,
        "what was found is kept while others are spread: {proposed:?}"
    );
}

#[test]
fn one_lucky_run_is_not_the_best() {
    let spaces = vec![
        KnobSpace {
            value_count: 4,
            ordered: false
        };
        2
    ];
    let mut search = Search::new(spaces, 40, 5);
    let mut first = true;
    while let Some(point) = search.propose() {
        let lucky = point[0] == 3 && std::mem::take(&mut first);
        let score = match lucky {
            true => 10.0,
            false => 1.0 + 0.1 * point[1] as f64,
        };
        search.record_score(&point, Some(score));
    }
    let best = search.best_point().unwrap();
    assert_eq!(best[1], 3, "{best:?}");
    assert!(search.raw_score(&best).unwrap().1 >= 2);
}

#[test]
fn rejected_points_are_never_the_best() {
    let spaces = [(4, true), (3, false)].map(|(values, ordered)| KnobSpace {
        value_count: values,
        ordered,
    });
    let mut search = Search::new(spaces.to_vec(), 60, 1);
    while let Some(point) = search.propose() {
        // The fastest values are rejected.
        let allowed = point[0] < 3 && point[1] < 2;
        search.record_score(&point, allowed.then_some((point[0] * 10 + point[1]) as f64));
    }
    assert_eq!(search.best_point(), Some(vec![2, 1]));
}

#[test]
fn a_start_that_may_not_be_chosen_is_abandoned() {
    let spaces = vec![
        KnobSpace {
            value_count: 5,
            ordered: true
        };
        2
    ];
    let mut search = Search::new(spaces, 60, 1);
    while let Some(point) = search.propose() {
        search.record_score(&point, (point[0] > 0).then(|| -(point[0] as f64)));
    }
    assert_eq!(search.best_point().unwrap()[0], 1);
}

#[test]
fn nothing_to_search_ends_at_once() {
    let mut search = Search::new(Vec::new(), 50, 1);
    let mut runs = 0;
    while let Some(point) = search.propose() {
        search.record_score(&point, Some(1.0));
        runs += 1;
        assert!(runs < 10);
    }
    assert_eq!(search.best_point(), Some(Vec::new()));
}

#[test]
fn one_failed_run_bars_no_setting_that_has_scores() {
    let spaces = vec![KnobSpace {
        value_count: 3,
        ordered: true,
    }];
    let mut search = Search::new(spaces, 20, 1);
    search.record_score(&vec![0], Some(1.0));
    search.record_score(&vec![0], Some(1.0));
    search.record_score(&vec![2], Some(5.0));
    search.record_score(&vec![2], Some(5.0));
    search.record_score(&vec![2], None);
    assert_eq!(search.best_point(), Some(vec![2]));
    search.record_score(&vec![1], None);
    search.record_score(&vec![2], None);
    assert_eq!(search.best_point(), Some(vec![0]), "it failed twice");
}

/// A device that rejects two of its windows costs no runs, and the values are not requested over
/// and over.
#[test]
fn failing_values_are_given_up_and_cost_no_runs() {
    let spaces = [(4, true), (3, false), (5, true)].map(|(values, ordered)| KnobSpace {
        value_count: values,
        ordered,
    });
    for seed in 0..40 {
        for run_spent in [false, true] {
            let mut search = Search::new(spaces.to_vec(), 60, seed);
            let (mut runs, mut proposals, mut abandoned_values) = (0, [0; 2], Vec::new());
            while let Some(point) = search.propose() {
                let fails = point[0] > 1;
                runs += usize::from(!fails || run_spent);
                match fails {
                    true => {
                        proposals[point[0] - 2] += 1;
                        assert!(
                            !abandoned_values.contains(&(0, point[0])),
                            "{seed}: {point:?}"
                        );
                        abandoned_values.extend(search.record_failure(&point, run_spent));
                    }
                    false => {
                        let score = [1.0, 0.9][point[0]] + point[1] as f64 + point[2] as f64 * 0.1;
                        search.record_score(&point, Some(score));
                    }
                }
            }
            abandoned_values.sort_unstable();
            assert!(runs <= 60, "{seed}: {runs}");
            assert!(
                proposals
                    .iter()
                    .all(|&times| times <= 2 * MAX_VALUE_FAILURES),
                "{seed}: {proposals:?}"
            );
            assert_eq!(search.best_point(), Some(vec![0, 2, 4]), "{seed}");
            // A value may be requested less often than it takes to give it up.
            assert!(
                abandoned_values
                    .iter()
                    .all(|value| [(0, 2), (0, 3)].contains(value)),
                "{seed}: {abandoned_values:?}"
            );
        }
    }
}

#[test]
fn a_value_that_fails_with_another_unproven_value_is_not_suspected() {
    let spaces = vec![
        KnobSpace {
            value_count: 3,
            ordered: false
        };
        2
    ];
    let mut search = Search::new(spaces, 20, 1);
    search.record_score(&vec![0, 0], Some(1.0));
    assert!((0..5).all(|_| search.record_failure(&vec![1, 1], true).is_none()));
    assert_eq!(search.record_failure(&vec![1, 0], true), None);
    assert_eq!(search.record_failure(&vec![1, 0], true), None);
    assert_eq!(search.record_failure(&vec![1, 0], true), Some((0, 1)));
    assert_eq!(
        search.record_failure(&vec![1, 0], true),
        None,
        "it is reported once"
    );
    // A value that worked once is not given up because of failed runs.
    search.record_score(&vec![2, 0], Some(1.0));
    assert!((0..5).all(|_| search.record_failure(&vec![2, 0], true).is_none()));
}

/// Eight runs end before the setting with twice the start's score was measured twice.
#[test]
fn the_last_run_settles_what_looks_best() {
    for seed in 0..20 {
        let spaces = [(3, false), (3, true)].map(|(values, ordered)| KnobSpace {
            value_count: values,
            ordered,
        });
        for runs in 4..12 {
            let mut search =
                Search::new(spaces.to_vec(), runs, seed).with_min_difference(MIN_DIFFERENCE);
            let mut proposed_runs = 0;
            let mut was_tried = false;
            while let Some(point) = search.propose() {
                proposed_runs += 1;
                was_tried |= point[0] == 1 && proposed_runs < runs;
                let score = [10.0, 20.0, 5.0][point[0]] + 0.001 * point[1] as f64;
                search.record_score(&point, Some(f64::ln(score)));
            }
            let best = search.best_point().unwrap_or_default();
            assert_eq!(best[0] == 1, was_tried, "{seed}, {runs} runs: {best:?}");
        }
    }
}

/// Two knobs share one memory budget: a value that fails only in combination is not given up, and
/// is found in another.
#[test]
fn a_value_that_fails_with_one_other_value_is_not_given_up() {
    let spaces = [(3, true), (2, false), (3, true), (3, true)].map(|(values, ordered)| KnobSpace {
        value_count: values,
        ordered,
    });
    for seed in 0..40 {
        for run_spent in [false, true] {
            let mut search = Search::new(spaces.to_vec(), 60, seed);
            while let Some(point) = search.propose() {
                if (point[0], point[1]) == (2, 1) {
                    assert_eq!(
                        search.record_failure(&point, run_spent),
                        None,
                        "{seed}: {point:?}"
                    );
                    continue;
                }
                let rest = (point[2] + point[3]) as f64 * 0.1;
                let score = point[0] as f64 + 3.0 * point[1] as f64 + rest;
                search.record_score(&point, Some(score));
            }
            assert_eq!(search.best_point(), Some(vec![1, 1, 2, 2]), "{seed}");
        }
    }
}
