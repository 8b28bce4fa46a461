//! Full measurements of simulated devices with a known capacity.

use super::*;
use linerate_record::ids::SearchEnd;
use proptest::prelude::*;

fn options(line_bps: Option<u64>) -> SuiteOptions {
    SuiteOptions {
        sizes: vec![("64".to_owned(), 64.0), ("1518".to_owned(), 1518.0)],
        tests: vec![
            SuiteTest::Throughput,
            SuiteTest::Latency,
            SuiteTest::FrameLoss,
            SuiteTest::BackToBack,
        ],
        loss_goals: vec![0.0, 0.001],
        resolution: 0.01,
        trial_s: 10.0,
        first_trial_s: 0.5,
        latency_loads: vec![0.1, 0.5, 0.9],
        max_trials: 200,
        tries: 1,
        burst_searches: 3,
        line_bps,
    }
}

#[test]
fn the_time_is_known_before() {
    let quick = SuiteOptions {
        tests: vec![SuiteTest::Throughput],
        loss_goals: vec![0.0],
        sizes: vec![("64".to_owned(), 64.0)],
        ..options(None)
    };
    // One to four trials of 10 s, five to nine of 1 s, 2 s after each.
    assert_eq!(quick.expected_time_s(2.0), (27.0, 75.0));
    let (least, usual) = options(None).expected_time_s(2.0);
    assert!(least > 300.0 && usual > least, "{least} {usual}");
}

/// A device that forwards `capacity` frames per second and has a buffer, behind a generator with
/// its own limit.
fn simulate_trial(
    trial: &SuiteTrial,
    capacity: f64,
    buffer: f64,
    generator: f64,
) -> SuiteTrialResult {
    let offered = trial.load.unwrap_or(f64::INFINITY).min(generator);
    let seconds = match trial.amount {
        TrialAmount::Time(seconds) => seconds,
        TrialAmount::Frames(frames) => frames as f64 / offered,
    };
    let sent = match trial.amount {
        // The first frame is sent at once.
        TrialAmount::Time(_) => (offered * seconds).round().max(1.0),
        TrialAmount::Frames(frames) => frames as f64,
    };
    let arrived = sent.min((capacity * seconds + buffer).floor()).max(0.0);
    SuiteTrialResult {
        sent: sent as u64,
        lost: (sent - arrived) as u64,
        duration_ns: (seconds * 1e9) as u64,
        offered_fps: offered,
        forwarding_fps: arrived / seconds,
        load_met: trial.load.is_none_or(|load| offered >= load * 0.99),
        ..SuiteTrialResult::default()
    }
}

fn run(
    options: SuiteOptions,
    capacity: f64,
    buffer: f64,
    generator: f64,
) -> (Vec<SizeCapacity>, u32) {
    let mut suite = Rfc2544Suite::new(options);
    let mut trials_done = 0;
    while let Some(trial) = suite.propose() {
        suite.record(trial, &simulate_trial(&trial, capacity, buffer, generator));
        trials_done += 1;
        assert!(trials_done < 5000);
    }
    (suite.results().to_vec(), trials_done)
}

#[test]
fn every_test_for_every_size() {
    let (results, _) = run(options(Some(1_000_000_000)), 60_000.0, 1000.0, 1e9);
    assert_eq!(results.len(), 2);
    let small = &results[0];
    assert!((small.max_tried_fps - 1_488_095.0).abs() < 1.0);
    let ndr = &small.throughput[0];
    assert_eq!(
        (ndr.name.as_str(), ndr.stopped_by.as_str()),
        ("ndr", "resolution")
    );
    let fps = ndr.fps.unwrap();
    // The buffer adds a hundredth of a trial's frames per second.
    assert!((59_000.0..60_200.0).contains(&fps), "{fps}");
    assert_eq!(ndr.l2_bps, Some(fps * 64.0 * 8.0));
    assert_eq!(ndr.l1_bps, Some(fps * 84.0 * 8.0));
    assert_eq!(small.throughput[1].name, "pdr");
    let shares: Vec<f64> = small.latency.iter().map(|at| at.share).collect();
    assert_eq!(shares, [0.1, 0.5, 0.9]);
    assert!((small.latency[1].offered_fps - fps / 2.0).abs() < 1.0);
    // Loss down to 10 % of the line; 148,809 frames per second are still too many.
    assert_eq!(small.frame_loss.len(), 10);
    assert!(
        small
            .frame_loss
            .windows(2)
            .all(|two| two[0].loss_fraction >= two[1].loss_fraction)
    );
    let bursts = small.back_to_back.as_ref().unwrap();
    assert_eq!(bursts.searches.len(), 3);
    // 1000 frames of buffer, plus those forwarded while the burst arrives: 1042.
    assert!((1030.0..=1043.0).contains(&bursts.frames), "{bursts:?}");
    let buffer = bursts.buffer_ns.unwrap() as f64 / 1e9 * small.max_tried_fps;
    assert!((buffer - 1000.0).abs() < 25.0, "{buffer}");
    // 60,000 frames of 1518 B are 74 % of the line: two steps without loss end the test.
    let large = &results[1];
    let losses: Vec<bool> = large
        .frame_loss
        .iter()
        .map(|at| at.loss_fraction > 0.0)
        .collect();
    assert_eq!(losses, [true, true, true, false, false]);
}

#[test]
fn without_a_line_the_generator_is_the_most() {
    let (results, _) = run(options(None), 1e9, 0.0, 250_000.0);
    for size in results {
        assert_eq!(size.max_tried_fps, 250_000.0);
        for goal in &size.throughput {
            assert_eq!(
                (goal.fps, goal.stopped_by.as_str()),
                (Some(250_000.0), "generator")
            );
        }
        assert!(size.back_to_back.unwrap().unlimited);
        assert_eq!(size.frame_loss.len(), 2);
    }
}

/// A generator slower than the line: the loss at 100 % of the line rate was not measured.
#[test]
fn load_that_was_not_offered_is_reported() {
    let (results, _) = run(options(Some(1_000_000_000)), 60_000.0, 0.0, 400_000.0);
    let small = &results[0];
    // 1,488,095 at 100 %: the generator cannot send 30 % of them, but can send 20 %.
    for at in &small.frame_loss {
        let intended = small.max_tried_fps * at.share;
        let expected = (intended > 400_000.0).then_some(intended);
        assert_eq!(at.missed_intended_fps, expected, "{at:?}");
    }
    assert!(small.frame_loss[0].missed_intended_fps.is_some());
    assert!(small.frame_loss[9].missed_intended_fps.is_none());
    assert!(
        small
            .latency
            .iter()
            .all(|at| at.missed_intended_fps.is_none())
    );
}

#[test]
fn nothing_passes_and_it_ends() {
    let (results, _) = run(options(Some(1_000_000)), 0.0, 0.0, 1e9);
    let size = &results[0];
    assert_eq!(size.throughput[0].stopped_by, SearchEnd::MinimumRate);
    assert!(size.throughput[0].fps.is_none() && size.latency.is_empty());
    assert_eq!(size.back_to_back.as_ref().unwrap().frames, 0.0);
}

/// A port whose link leads nowhere: no trial without loss, and no throughput.
#[test]
fn nothing_sent_is_no_throughput() {
    for line_bps in [None, Some(1_000_000)] {
        let mut suite = Rfc2544Suite::new(options(line_bps));
        let mut trials_done = 0;
        while let Some(trial) = suite.propose() {
            suite.record(trial, &SuiteTrialResult::default());
            trials_done += 1;
            assert!(trials_done <= UNSENT_TRIALS);
        }
        assert!(suite.is_unable_to_send());
        let [size] = suite.results() else {
            panic!("no other size is tried");
        };
        for goal in &size.throughput {
            assert_eq!(
                (goal.fps, goal.stopped_by.known()),
                (None, Some(SearchEnd::NothingSent))
            );
        }
        assert_eq!(size.throughput.len(), 2);
    }
}

/// A device that fails after the search: its throughput is marked as contradicted.
#[test]
fn later_loss_below_the_throughput_is_reported() {
    for (later_capacity, expected) in [(60_000.0, None), (20_000.0, Some(29_999.0))] {
        let mut suite = Rfc2544Suite::new(SuiteOptions {
            sizes: vec![("64".to_owned(), 64.0)],
            ..options(Some(1_000_000_000))
        });
        while let Some(trial) = suite.propose() {
            let capacity = match trial.test {
                SuiteTest::Throughput => 60_000.0,
                _ => later_capacity,
            };
            suite.record(trial, &simulate_trial(&trial, capacity, 0.0, 1e9));
        }
        let throughput = &suite.results()[0].throughput[0];
        // Half of the throughput is the lowest load of the delay test that loses.
        let is_close =
            |fps: f64| expected.is_some_and(|expected: f64| (fps / expected - 1.0).abs() < 0.02);
        assert_eq!(
            throughput.contradicted_fps.is_some(),
            expected.is_some(),
            "{throughput:?}"
        );
        assert!(
            throughput.contradicted_fps.is_none_or(is_close),
            "{throughput:?}"
        );
        assert_eq!(
            throughput.contradicted_loss.is_some_and(|loss| loss > 0.3),
            expected.is_some()
        );
    }
}

/// A trial in which the generator stalled is repeated.
#[test]
fn a_trial_without_a_frame_is_made_again() {
    let mut suite = Rfc2544Suite::new(options(Some(1_000_000_000)));
    let mut trials_done = 0;
    while let Some(trial) = suite.propose() {
        let result = match trials_done % 3 {
            0 => SuiteTrialResult::default(),
            _ => simulate_trial(&trial, 50_000.0, 0.0, 1e9),
        };
        suite.record(trial, &result);
        trials_done += 1;
    }
    assert!(!suite.is_unable_to_send());
    let fps = suite.results()[0].throughput[0].fps.unwrap();
    assert!((49_000.0..=50_000.0).contains(&fps), "{fps}");
}

#[test]
fn an_interruption_keeps_what_is_known() {
    let mut suite = Rfc2544Suite::new(options(Some(1_000_000_000)));
    for _ in 0..4 {
        let trial = suite.propose().unwrap();
        suite.record(trial, &simulate_trial(&trial, 50_000.0, 0.0, 1e9));
    }
    suite.interrupt();
    assert!(suite.propose().is_none());
    let result = &suite.results()[0];
    assert_eq!(result.throughput[0].stopped_by, SearchEnd::Interrupted);
    assert_eq!(result.trials.len(), 4);
}

#[test]
fn a_bound_on_trials_holds_for_all_of_a_search() {
    for (line_bps, trials) in [
        (None, 1),
        (None, 2),
        (None, 3),
        (None, 8),
        (Some(1_000_000_000), 8),
    ] {
        let options = SuiteOptions {
            max_trials: trials,
            tests: vec![SuiteTest::Throughput],
            resolution: 1e-6,
            ..options(line_bps)
        };
        let (results, _) = run(options, 500.0, 0.0, 1e6);
        for size in &results {
            assert_eq!(size.trials.len(), trials as usize, "{line_bps:?}");
            assert_eq!(size.throughput[0].stopped_by, SearchEnd::Trials);
        }
    }
}

proptest! {
    // Each case is a few hundred trials.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_suite_ends(
        capacity in (-3.0f64..8.0).prop_map(|exponent| 10f64.powf(exponent)), buffer in 0.0f64..1e5,
        generator in 1.0f64..1e7, line in prop::option::of(1_000_000u64..100_000_000_000),
    ) {
        let (results, made) = run(options(line), capacity, buffer, generator);
        prop_assert_eq!(results.len(), 2);
        prop_assert!(made < 1000, "{}", made);
    }
}
