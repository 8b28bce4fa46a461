//! Full measurements in simulated time, frame by frame: devices with queues of some length,
//! measured by a host with occasional stalls.

use std::collections::VecDeque;

use linerate_record::capacity::{SizeCapacity, Throughput};
use linerate_record::generate::{WIRE_OVERHEAD_BYTES, line_rate_fps};
use linerate_record::ids::{CaveatId, SearchEnd, StoredId};
use linerate_stats::histogram::Histogram;
use linerate_workload::pacer::Pacer;

use super::caveats::suite_caveats;
use super::{Rfc2544Suite, SuiteOptions, SuiteTest, SuiteTrial, SuiteTrialResult, TrialAmount};
use crate::{HostDisturbance, QueueGrowthDetector};

/// A queue in front of a line.
#[derive(Clone, Copy, Debug)]
struct QueueDevice {
    /// Frames per second of the line.
    rate_fps: f64,
    /// Capacity of the queue in frames, the one on the line included.
    queue_frames: usize,
    /// Burst above the rate of the line that passes without delay before the rate limit applies.
    burst_frames: f64,
    /// Constant delay of the path in seconds.
    delay_s: f64,
    /// Loss probability of each frame, at any rate.
    loss_probability: f64,
}

/// A host on which this program does not always run.
#[derive(Clone, Copy, Debug)]
struct SimulatedHost {
    /// Stalls per second, and their mean length.
    stalls_per_s: f64,
    stall_s: f64,
    /// Frames that the receive ring holds during a stall.
    ring_frames: usize,
    /// Highest rate of the generator in frames per second.
    max_fps: f64,
}

const CALM: SimulatedHost = SimulatedHost {
    stalls_per_s: 0.0,
    stall_s: 0.0,
    ring_frames: usize::MAX,
    max_fps: 100_000.0,
};

/// Bytes that the pacer counts for a frame.
const PACER_FRAME_BYTES: u64 = 1_000_000;

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Returns the stalls of a trial of `seconds`, which do not overlap.
fn stalls(host: &SimulatedHost, seconds: f64, random: &mut fastrand::Rng) -> Vec<(f64, f64)> {
    let mut found = Vec::new();
    let mut at = 0.0;
    while host.stalls_per_s > 0.0 && at < seconds {
        let draw = |mean: f64, random: &mut fastrand::Rng| -mean * (1.0 - random.f64()).ln();
        at += draw(1.0 / host.stalls_per_s, random);
        let length_s = draw(host.stall_s, random);
        found.push((at, at + length_s));
        at += length_s;
    }
    found
}

/// Returns the end of the stall that contains `at`, or `at` outside of stalls.
fn end_of_stall(at: f64, stalls: &[(f64, f64)]) -> f64 {
    let stall = stalls.iter().find(|stall| (stall.0..stall.1).contains(&at));
    stall.map_or(at, |stall| stall.1)
}

/// Simulates one trial; the same thread sends and receives.
fn simulate_trial(
    request: &SuiteTrial,
    device: &QueueDevice,
    host: &SimulatedHost,
    random: &mut fastrand::Rng,
) -> SuiteTrialResult {
    let load = request.load.unwrap_or(host.max_fps).min(host.max_fps);
    let (seconds, frames) = match request.amount {
        TrialAmount::Time(seconds) => (seconds, u64::MAX),
        TrialAmount::Frames(frames) => (frames as f64 / load * 2.0 + 1.0, frames),
    };
    let stalls = stalls(host, seconds, random);
    let mut pacer =
        Pacer::new(Some((load * PACER_FRAME_BYTES as f64 * 8.0) as u64), 1).with_smooth_catch_up();
    let mut detector = QueueGrowthDetector::new(ns(seconds));
    let (mut sent, mut received, mut dropped) = (0u64, 0u64, 0u64);
    let mut queue: VecDeque<f64> = VecDeque::new();
    let (mut line_free_at, mut now, mut passed) = (0.0f64, 0.0f64, 0.0f64);
    // Frames in the receive ring, and the time until which it is not polled.
    let (mut ring_used, mut not_polled_until) = (0, 0.0);
    let mut arrivals: Option<(f64, f64)> = None;
    while sent < frames && pacer.next_departure_ns() < ns(seconds) {
        let send_at = pacer
            .wait_until(ns(now))
            .map_or(now, |send_at| send_at as f64 / 1e9 + 1e-9);
        now = end_of_stall(send_at, &stalls);
        if now > seconds + 0.1 {
            break;
        }
        pacer.record_sent(PACER_FRAME_BYTES, ns(now));
        sent += 1;
        while queue.front().is_some_and(|&leaves_at| leaves_at <= now) {
            queue.pop_front();
        }
        // The burst allowance refills like a token bucket, which over a trial is part of the rate.
        let passes = passed < device.burst_frames + device.rate_fps * now;
        let leaves_at = match device.burst_frames > 0.0 {
            true if passes => now,
            true => continue,
            false if queue.len() >= device.queue_frames => continue,
            false => now.max(line_free_at) + 1.0 / device.rate_fps,
        };
        if device.loss_probability > 0.0 && random.f64() < device.loss_probability {
            continue;
        }
        passed += 1.0;
        if device.burst_frames == 0.0 {
            line_free_at = leaves_at;
            queue.push_back(leaves_at);
        }
        let arrives_at = end_of_stall(leaves_at + device.delay_s, &stalls);
        if arrives_at > not_polled_until {
            (ring_used, not_polled_until) = (0, arrives_at);
        }
        if arrives_at > leaves_at + device.delay_s {
            ring_used += 1;
            if ring_used > host.ring_frames {
                dropped += 1;
                continue;
            }
        }
        received += 1;
        detector.record(ns(now), ns(arrives_at - now));
        arrivals = Some((
            arrivals.map_or(arrives_at, |arrivals| arrivals.0),
            arrives_at,
        ));
    }
    let length_s = match request.amount {
        TrialAmount::Time(seconds) => seconds,
        TrialAmount::Frames(_) => now.max(1e-9),
    };
    let offered = sent as f64 / length_s;
    let lateness = pacer.into_lateness().unwrap_or_else(Histogram::coarse);
    let arrival_window_s = arrivals.map_or(0.0, |(from, to)| to - from);
    SuiteTrialResult {
        sent,
        lost: sent - received,
        duration_ns: ns(length_s),
        offered_fps: offered,
        forwarding_fps: received as f64 / length_s,
        load_met: request
            .load
            .is_none_or(|load| offered + 1.0 / length_s >= load * 0.99),
        one_way_delay_ns: None,
        queue_growth: detector.queue_growth(),
        arrival_fps: (received > 1 && arrival_window_s > 0.0)
            .then(|| (received - 1) as f64 / arrival_window_s),
        disturbance: HostDisturbance {
            late_bursts: lateness.count_above(HostDisturbance::lateness_threshold_ns(load)),
            max_lateness_ns: lateness.max().unwrap_or(0),
            core_share: 1.0,
            // The stall time of the scheduler would count the same stalls; lateness alone must
            // suffice here.
            stalled_ns: 0,
            ring_drops: dropped,
        },
    }
}

fn options(trial_s: f64) -> SuiteOptions {
    SuiteOptions {
        sizes: vec![("64".to_owned(), 64.0)],
        tests: vec![SuiteTest::Throughput, SuiteTest::Latency],
        loss_goals: vec![0.0],
        resolution: 0.005,
        trial_s,
        first_trial_s: trial_s / 20.0,
        latency_loads: vec![0.5],
        max_trials: 100,
        tries: 1,
        burst_searches: 1,
        // 10,000 frames of 64 B a second.
        line_bps: Some(10_000 * (64 + u64::from(WIRE_OVERHEAD_BYTES)) * 8),
    }
}

/// Returns the result and the ids of the caveats.
fn run_suite(
    device: QueueDevice,
    host: SimulatedHost,
    options: SuiteOptions,
    seed: u64,
) -> (SizeCapacity, Vec<StoredId<CaveatId>>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (resolution, trial_s) = (options.resolution, options.trial_s);
    let mut suite = Rfc2544Suite::new(options);
    let mut trials_done = 0;
    while let Some(trial) = suite.propose() {
        suite.record(trial, &simulate_trial(&trial, &device, &host, &mut random));
        trials_done += 1;
        assert!(trials_done < 500, "it does not end");
    }
    let results = suite.results().to_vec();
    let caveats = suite_caveats(&results, resolution, trial_s);
    let caveats = caveats.into_iter().map(|caveat| caveat.id).collect();
    (results.into_iter().next().unwrap(), caveats)
}

fn is_close(throughput: &Throughput, rate: f64) -> bool {
    let fps = throughput.fps.unwrap_or(0.0);
    // One resolution below, and half of it above: slower growth of a queue is within the noise.
    (rate * 0.995 - 1.0..=rate * 1.003 + 1.0).contains(&fps)
}

const DEVICE: QueueDevice = QueueDevice {
    rate_fps: 2_350.0,
    queue_frames: 1_000,
    burst_frames: 0.0,
    delay_s: 0.001,
    loss_probability: 0.0,
};

/// The rate of the line is found for any queue length and trial length.
#[test]
fn a_queue_is_no_capacity() {
    assert!((line_rate_fps(6_720_000, 64.0) - 10_000.0).abs() < 1e-6);
    for queue_frames in [1, 2, 10, 100, 1_000, 10_000, 1_000_000] {
        for trial_s in [0.5, 1.0, 2.0, 5.0] {
            for delay_s in [0.0, 0.001, 0.3] {
                let device = QueueDevice {
                    queue_frames,
                    delay_s,
                    ..DEVICE
                };
                let (size, caveats) = run_suite(device, CALM, options(trial_s), 1);
                let throughput = &size.throughput[0];
                let details = format!(
                    "{queue_frames} frames, {trial_s} s, {delay_s} s: {throughput:?} {caveats:?}"
                );
                assert!(is_close(throughput, device.rate_fps), "{details}");
                assert_eq!(throughput.stopped_by, SearchEnd::Resolution, "{details}");
                // A trial of 0.5 s has 1,175 frames: enough for the resolution.
                assert!(caveats.is_empty(), "{details}");
            }
        }
    }
}

/// A rate limiter's burst adds no delay: short trials pass what long ones do not, and a caveat
/// advises longer trials.
#[test]
fn rate_limiter_burst_is_reported() {
    let device = QueueDevice {
        burst_frames: 1_000.0,
        ..DEVICE
    };
    for (trial_s, expect_report) in [(1.0, true), (5.0, true), (300.0, false)] {
        let (size, caveats) = run_suite(device, CALM, options(trial_s), 1);
        let throughput = &size.throughput[0];
        let is_reported = caveats.contains(&CaveatId::ShortTrials.into());
        assert_eq!(
            is_reported, expect_report,
            "{trial_s} s: {throughput:?} {caveats:?}"
        );
        assert!(
            expect_report || is_close(throughput, device.rate_fps),
            "{throughput:?}"
        );
    }
}

/// Random loss is no buffer of the device: short trials have too few frames to lose one. Instead, a
/// caveat reports loss at any rate where the result for goal 0 is far below the capacity.
#[test]
fn loss_at_any_rate_is_reported_and_is_no_buffer() {
    let mut reported = 0;
    for seed in 0..10 {
        let device = QueueDevice {
            rate_fps: 9_000.0,
            loss_probability: 0.0005,
            ..DEVICE
        };
        let mut suite_options = options(5.0);
        suite_options.loss_goals = vec![0.0, 0.002];
        let (size, caveats) = run_suite(device, CALM, suite_options, seed);
        let [goal_zero, goal_above] = &size.throughput[..] else {
            panic!("{size:?}")
        };
        for throughput in [goal_zero, goal_above] {
            let beyond = throughput.short_trial_surplus_frames.unwrap_or(0.0) / 5.0;
            assert!(
                beyond <= throughput.fps.unwrap_or(0.0) * 0.005,
                "{seed}: {throughput:?}"
            );
        }
        let is_reported = caveats.contains(&CaveatId::LossAtAnyRate.into());
        // A goal that allows the loss finds the capacity, although trials at low rates lost more of
        // their few frames.
        let fps = goal_above.fps.unwrap();
        assert!((8_900.0..9_100.0).contains(&fps), "{seed}: {goal_above:?}");
        assert!(
            goal_zero.fps.is_none_or(|fps| fps < 6_000.0),
            "{seed}: {goal_zero:?}"
        );
        reported += u32::from(is_reported);
    }
    assert!(reported >= 8, "{reported}");
}

/// On a host with stalls either the capacity is found or a caveat reports the stalls.
#[test]
fn losses_of_this_host_are_not_the_devices() {
    let (mut found, mut total) = (0, 0);
    for stalls in [0.2, 2.0, 10.0] {
        for stall_s in [0.002, 0.01, 0.03] {
            for queue_frames in [4, 20, 1_000] {
                for ring in [16, 1_024] {
                    let host = SimulatedHost {
                        stalls_per_s: stalls,
                        stall_s,
                        ring_frames: ring,
                        ..CALM
                    };
                    let device = QueueDevice {
                        queue_frames,
                        ..DEVICE
                    };
                    let (size, caveats) = run_suite(device, host, options(2.0), 7);
                    let throughput = &size.throughput[0];
                    let is_found = is_close(throughput, device.rate_fps);
                    assert!(
                        is_found
                            || !caveats.is_empty()
                            || throughput.stopped_by == SearchEnd::Generator,
                        "{host:?} {device:?}: {throughput:?}"
                    );
                    found += u32::from(is_found);
                    total += 1;
                }
            }
        }
    }
    // A third of these hosts are stalled for 10 % of the time or more, before a queue of four
    // frames.
    assert!(found * 2 >= total, "{found} of {total}");
}

/// Repetitions of trials are bounded and recorded.
#[test]
fn trial_repetitions_are_bounded() {
    let host = SimulatedHost {
        stalls_per_s: 20.0,
        stall_s: 0.02,
        ring_frames: 4,
        ..CALM
    };
    let device = QueueDevice {
        queue_frames: 2,
        ..DEVICE
    };
    let (size, _) = run_suite(device, host, options(1.0), 3);
    let retried = size.trials.iter().filter(|trial| trial.repeated);
    let are_disturbed = retried.clone().all(|trial| {
        trial
            .local_loss
            .is_some_and(|are_disturbed| are_disturbed > 0)
    });
    assert!(retried.count() > 0 && are_disturbed);
    let windows = size.trials.windows(3);
    assert!(
        windows
            .filter(|three| three.iter().all(|trial| trial.repeated))
            .count()
            == 0
    );
}
