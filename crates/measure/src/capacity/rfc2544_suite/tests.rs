//! Full measurements of simulated devices with a known capacity.

use super::*;
use proptest::prelude::*;

fn options(line_bps: Option<u64>) -> Options {
    Options {
        sizes: vec![("64".to_owned(), 64.0), ("1518".to_owned(), 1518.0)],
        tests: vec![
            Test::Throughput,
            Test::Latency,
            Test::FrameLoss,
            Test::BackToBack,
        ],
        goals: vec![0.0, 0.001],
        resolution: 0.01,
        trial_s: 10.0,
        first_s: 0.5,
        shares: vec![0.1, 0.5, 0.9],
        trials: 200,
        tries: 1,
        searches: 3,
        line_bps,
    }
}

/// A device that forwards `capacity` frames per second and has a buffer, behind a generator with
/// its own limit.
fn trial(ask: &Ask, capacity: f64, buffer: f64, generator: f64) -> Seen {
    let offered = ask.load.unwrap_or(f64::INFINITY).min(generator);
    let seconds = match ask.amount {
        Amount::Time(seconds) => seconds,
        Amount::Frames(frames) => frames as f64 / offered,
    };
    let sent = match ask.amount {
        // The first frame is sent at once.
        Amount::Time(_) => (offered * seconds).round().max(1.0),
        Amount::Frames(frames) => frames as f64,
    };
    let arrived = sent.min((capacity * seconds + buffer).floor()).max(0.0);
    Seen {
        sent: sent as u64,
        lost: (sent - arrived) as u64,
        duration_ns: (seconds * 1e9) as u64,
        offered,
        forwarded: arrived / seconds,
        kept: ask.load.is_none_or(|load| offered >= load * 0.99),
        ..Seen::default()
    }
}

fn run(options: Options, capacity: f64, buffer: f64, generator: f64) -> (Vec<SizeCapacity>, u32) {
    let mut campaign = Campaign::new(options);
    let mut made = 0;
    while let Some(ask) = campaign.propose() {
        campaign.take(ask, &trial(&ask, capacity, buffer, generator));
        made += 1;
        assert!(made < 5000);
    }
    (campaign.results().to_vec(), made)
}

#[test]
fn every_test_for_every_size() {
    let (results, _) = run(options(Some(1_000_000_000)), 60_000.0, 1000.0, 1e9);
    assert_eq!(results.len(), 2);
    let small = &results[0];
    assert!((small.most_fps - 1_488_095.0).abs() < 1.0);
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
    let buffer = bursts.buffer_ns.unwrap() as f64 / 1e9 * small.most_fps;
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
        assert_eq!(size.most_fps, 250_000.0);
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
fn a_load_that_was_not_offered_is_told() {
    let (results, _) = run(options(Some(1_000_000_000)), 60_000.0, 0.0, 400_000.0);
    let small = &results[0];
    // 1,488,095 at 100 %: the generator cannot send 30 % of them, but can send 20 %.
    for at in &small.frame_loss {
        let asked = small.most_fps * at.share;
        let want = (asked > 400_000.0).then_some(asked);
        assert_eq!(at.not_offered_fps, want, "{at:?}");
    }
    assert!(small.frame_loss[0].not_offered_fps.is_some());
    assert!(small.frame_loss[9].not_offered_fps.is_none());
    assert!(small.latency.iter().all(|at| at.not_offered_fps.is_none()));
}

#[test]
fn nothing_passes_and_it_ends() {
    let (results, _) = run(options(Some(1_000_000)), 0.0, 0.0, 1e9);
    let size = &results[0];
    assert_eq!(size.throughput[0].stopped_by, "floor");
    assert!(size.throughput[0].fps.is_none() && size.latency.is_empty());
    assert_eq!(size.back_to_back.as_ref().unwrap().frames, 0.0);
}

/// A port whose link leads nowhere: no trial without loss, and no throughput.
#[test]
fn where_nothing_leaves_nothing_passes() {
    for line in [None, Some(1_000_000)] {
        let mut campaign = Campaign::new(options(line));
        let mut made = 0;
        while let Some(ask) = campaign.propose() {
            campaign.take(ask, &Seen::default());
            made += 1;
            assert!(made <= UNSENT_TRIALS);
        }
        assert!(campaign.sends_nothing());
        let [size] = campaign.results() else {
            panic!("no other size is tried");
        };
        for goal in &size.throughput {
            assert_eq!((goal.fps, &*goal.stopped_by), (None, "nothing-sent"));
        }
        assert_eq!(size.throughput.len(), 2);
    }
}

/// A device that fails after the search: its throughput is marked as contradicted.
#[test]
fn later_loss_below_the_throughput_is_told() {
    for (later, want) in [(60_000.0, None), (20_000.0, Some(29_999.0))] {
        let mut campaign = Campaign::new(Options {
            sizes: vec![("64".to_owned(), 64.0)],
            ..options(Some(1_000_000_000))
        });
        while let Some(ask) = campaign.propose() {
            let capacity = match ask.test {
                Test::Throughput => 60_000.0,
                _ => later,
            };
            campaign.take(ask, &trial(&ask, capacity, 0.0, 1e9));
        }
        let found = &campaign.results()[0].throughput[0];
        // Half of the throughput is the lowest load of the delay test that loses.
        let is_near = |fps: f64| want.is_some_and(|want: f64| (fps / want - 1.0).abs() < 0.02);
        assert_eq!(
            found.contradicted_fps.is_some(),
            want.is_some(),
            "{found:?}"
        );
        assert!(found.contradicted_fps.is_none_or(is_near), "{found:?}");
        assert_eq!(
            found.contradicted_loss.is_some_and(|loss| loss > 0.3),
            want.is_some()
        );
    }
}

/// A trial in which the generator stalled is repeated.
#[test]
fn a_trial_without_a_frame_is_made_again() {
    let mut campaign = Campaign::new(options(Some(1_000_000_000)));
    let mut made = 0;
    while let Some(ask) = campaign.propose() {
        let seen = match made % 3 {
            0 => Seen::default(),
            _ => trial(&ask, 50_000.0, 0.0, 1e9),
        };
        campaign.take(ask, &seen);
        made += 1;
    }
    assert!(!campaign.sends_nothing());
    let fps = campaign.results()[0].throughput[0].fps.unwrap();
    assert!((49_000.0..=50_000.0).contains(&fps), "{fps}");
}

#[test]
fn an_interruption_keeps_what_is_known() {
    let mut campaign = Campaign::new(options(Some(1_000_000_000)));
    for _ in 0..4 {
        let ask = campaign.propose().unwrap();
        campaign.take(ask, &trial(&ask, 50_000.0, 0.0, 1e9));
    }
    campaign.interrupt();
    assert!(campaign.propose().is_none());
    let result = &campaign.results()[0];
    assert_eq!(result.throughput[0].stopped_by, "interrupted");
    assert_eq!(result.trials.len(), 4);
}

#[test]
fn a_bound_on_trials_holds_for_all_of_a_search() {
    for (line, trials) in [
        (None, 1),
        (None, 2),
        (None, 3),
        (None, 8),
        (Some(1_000_000_000), 8),
    ] {
        let options = Options {
            trials,
            tests: vec![Test::Throughput],
            resolution: 1e-6,
            ..options(line)
        };
        let (results, _) = run(options, 500.0, 0.0, 1e6);
        for size in &results {
            assert_eq!(size.trials.len(), trials as usize, "{line:?}");
            assert_eq!(size.throughput[0].stopped_by, "trials");
        }
    }
}

proptest! {
    // Each case is a few hundred trials.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_ends(
        capacity in (-3.0f64..8.0).prop_map(|exponent| 10f64.powf(exponent)), buffer in 0.0f64..1e5,
        generator in 1.0f64..1e7, line in prop::option::of(1_000_000u64..100_000_000_000),
    ) {
        let (results, made) = run(options(line), capacity, buffer, generator);
        prop_assert_eq!(results.len(), 2);
        prop_assert!(made < 1000, "{}", made);
    }
}
