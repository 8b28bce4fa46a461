//! Full measurements in simulated time, frame by frame: devices with queues of some length,
//! measured by a host with occasional stalls.

use std::collections::VecDeque;

use linerate_metric::capacity::{SizeCapacity, Throughput};
use linerate_metric::generate::{GAP_BYTES, line_frames};
use linerate_metric::histogram::Histogram;

use super::caveats::all_of;
use super::{Amount, Ask, Campaign, Options, Seen, Test};
use crate::generate::{Course, Disturbance};
use crate::pacer::Pacer;

/// A queue in front of a line.
#[derive(Clone, Copy, Debug)]
struct Device {
    /// Frames per second of the line.
    rate: f64,
    /// Capacity of the queue in frames, the one on the line included.
    room: usize,
    /// Burst above the rate of the line that passes without delay before the rate limit applies.
    allowance: f64,
    /// Constant delay of the path in seconds.
    delay: f64,
    /// Loss probability of each frame, at any rate.
    loss: f64,
}

/// A host on which this program does not always run.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// Stalls per second, and their mean length.
    stalls: f64,
    stall_s: f64,
    /// Frames that the receive ring holds during a stall.
    ring: usize,
    /// Highest rate of the generator in frames per second.
    most: f64,
}

const CALM: Machine = Machine {
    stalls: 0.0,
    stall_s: 0.0,
    ring: usize::MAX,
    most: 100_000.0,
};

/// Bytes that the pacer counts for a frame.
const UNIT: u64 = 1_000_000;

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Returns the stalls of a trial of `seconds`, which do not overlap.
fn stalls(machine: &Machine, seconds: f64, random: &mut fastrand::Rng) -> Vec<(f64, f64)> {
    let mut found = Vec::new();
    let mut at = 0.0;
    while machine.stalls > 0.0 && at < seconds {
        let drawn = |mean: f64, random: &mut fastrand::Rng| -mean * (1.0 - random.f64()).ln();
        at += drawn(1.0 / machine.stalls, random);
        let long = drawn(machine.stall_s, random);
        found.push((at, at + long));
        at += long;
    }
    found
}

/// Returns the end of the stall that contains `at`, or `at` outside of stalls.
fn awake(at: f64, stalls: &[(f64, f64)]) -> f64 {
    let stall = stalls.iter().find(|stall| (stall.0..stall.1).contains(&at));
    stall.map_or(at, |stall| stall.1)
}

/// Simulates one trial; the same thread sends and receives.
fn trial(ask: &Ask, device: &Device, machine: &Machine, random: &mut fastrand::Rng) -> Seen {
    let load = ask.load.unwrap_or(machine.most).min(machine.most);
    let (seconds, frames) = match ask.amount {
        Amount::Time(seconds) => (seconds, u64::MAX),
        Amount::Frames(frames) => (frames as f64 / load * 2.0 + 1.0, frames),
    };
    let stalls = stalls(machine, seconds, random);
    let mut pacer = Pacer::new(Some((load * UNIT as f64 * 8.0) as u64), 1).catching_up_gently();
    let mut course = Course::new(ns(seconds));
    let (mut sent, mut received, mut dropped) = (0u64, 0u64, 0u64);
    let mut queue: VecDeque<f64> = VecDeque::new();
    let (mut free, mut now, mut given) = (0.0f64, 0.0f64, 0.0f64);
    // Frames in the receive ring, and the time until which it is not polled.
    let (mut ring, mut blind) = (0, 0.0);
    let mut came: Option<(f64, f64)> = None;
    while sent < frames && pacer.due_ns() < ns(seconds) {
        let due = pacer
            .wait_until(ns(now))
            .map_or(now, |due| due as f64 / 1e9 + 1e-9);
        now = awake(due, &stalls);
        if now > seconds + 0.1 {
            break;
        }
        pacer.left(UNIT, ns(now));
        sent += 1;
        while queue.front().is_some_and(|&leaves| leaves <= now) {
            queue.pop_front();
        }
        // The burst allowance refills like a token bucket, which over a trial is part of the rate.
        let passes = given < device.allowance + device.rate * now;
        let leaves = match device.allowance > 0.0 {
            true if passes => now,
            true => continue,
            false if queue.len() >= device.room => continue,
            false => now.max(free) + 1.0 / device.rate,
        };
        if device.loss > 0.0 && random.f64() < device.loss {
            continue;
        }
        given += 1.0;
        if device.allowance == 0.0 {
            free = leaves;
            queue.push_back(leaves);
        }
        let found = awake(leaves + device.delay, &stalls);
        if found > blind {
            (ring, blind) = (0, found);
        }
        if found > leaves + device.delay {
            ring += 1;
            if ring > machine.ring {
                dropped += 1;
                continue;
            }
        }
        received += 1;
        course.take(ns(now), ns(found - now));
        came = Some((came.map_or(found, |came| came.0), found));
    }
    let length = match ask.amount {
        Amount::Time(seconds) => seconds,
        Amount::Frames(_) => now.max(1e-9),
    };
    let offered = sent as f64 / length;
    let lateness = pacer.into_lateness().unwrap_or_else(Histogram::coarse);
    let span = came.map_or(0.0, |(from, to)| to - from);
    Seen {
        sent,
        lost: sent - received,
        duration_ns: ns(length),
        offered,
        forwarded: received as f64 / length,
        kept: ask
            .load
            .is_none_or(|load| offered + 1.0 / length >= load * 0.99),
        delay: None,
        filling: course.filling(),
        arrival: (received > 1 && span > 0.0).then(|| (received - 1) as f64 / span),
        own: Disturbance {
            late: lateness.count_above(Disturbance::late_ns(load)),
            late_by_ns: lateness.max().unwrap_or(0),
            core_share: 1.0,
            // The stall time of the scheduler would count the same stalls; lateness alone must
            // suffice here.
            stood_ns: 0,
            dropped,
        },
    }
}

fn options(trial_s: f64) -> Options {
    Options {
        sizes: vec![("64".to_owned(), 64.0)],
        tests: vec![Test::Throughput, Test::Latency],
        goals: vec![0.0],
        resolution: 0.005,
        trial_s,
        first_s: trial_s / 20.0,
        shares: vec![0.5],
        trials: 100,
        tries: 1,
        searches: 1,
        // 10,000 frames of 64 B a second.
        line_bps: Some(10_000 * (64 + u64::from(GAP_BYTES)) * 8),
    }
}

/// Returns the result and the ids of the caveats.
fn measured(
    device: Device,
    machine: Machine,
    options: Options,
    seed: u64,
) -> (SizeCapacity, Vec<String>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (resolution, trial_s) = (options.resolution, options.trial_s);
    let mut campaign = Campaign::new(options);
    let mut made = 0;
    while let Some(ask) = campaign.propose() {
        campaign.take(ask, &trial(&ask, &device, &machine, &mut random));
        made += 1;
        assert!(made < 500, "it does not end");
    }
    let results = campaign.results().to_vec();
    let doubts = all_of(&results, resolution, trial_s);
    let doubts = doubts.into_iter().map(|doubt| doubt.doubt).collect();
    (results.into_iter().next().unwrap(), doubts)
}

fn is_near(found: &Throughput, rate: f64) -> bool {
    let fps = found.fps.unwrap_or(0.0);
    // One resolution below, and half of it above: slower growth of a queue is within the noise.
    (rate * 0.995 - 1.0..=rate * 1.003 + 1.0).contains(&fps)
}

const DEVICE: Device = Device {
    rate: 2_350.0,
    room: 1_000,
    allowance: 0.0,
    delay: 0.001,
    loss: 0.0,
};

/// The rate of the line is found for any queue length and trial length.
#[test]
fn a_queue_is_no_capacity() {
    assert!((line_frames(6_720_000, 64.0) - 10_000.0).abs() < 1e-6);
    for room in [1, 2, 10, 100, 1_000, 10_000, 1_000_000] {
        for trial_s in [0.5, 1.0, 2.0, 5.0] {
            for delay in [0.0, 0.001, 0.3] {
                let device = Device {
                    room,
                    delay,
                    ..DEVICE
                };
                let (size, doubts) = measured(device, CALM, options(trial_s), 1);
                let found = &size.throughput[0];
                let told = format!("{room} frames, {trial_s} s, {delay} s: {found:?} {doubts:?}");
                assert!(is_near(found, device.rate), "{told}");
                assert_eq!(found.stopped_by, "resolution", "{told}");
                // A trial of 0.5 s has 1,175 frames: enough for the resolution.
                assert!(doubts.is_empty(), "{told}");
            }
        }
    }
}

/// A rate limiter's burst adds no delay: short trials pass what long ones do not, and a caveat
/// advises longer trials.
#[test]
fn an_allowance_is_told() {
    let device = Device {
        allowance: 1_000.0,
        ..DEVICE
    };
    for (trial_s, is_told) in [(1.0, true), (5.0, true), (300.0, false)] {
        let (size, doubts) = measured(device, CALM, options(trial_s), 1);
        let found = &size.throughput[0];
        let told = doubts.contains(&"short-trials".to_owned());
        assert_eq!(told, is_told, "{trial_s} s: {found:?} {doubts:?}");
        assert!(is_told || is_near(found, device.rate), "{found:?}");
    }
}

/// Random loss is no buffer of the device: short trials have too few frames to lose one. Instead, a
/// caveat reports loss at any rate where the result for goal 0 is far below the capacity.
#[test]
fn loss_at_any_rate_is_told_and_is_no_room() {
    let mut told = 0;
    for seed in 0..10 {
        let device = Device {
            rate: 9_000.0,
            loss: 0.0005,
            ..DEVICE
        };
        let mut wish = options(5.0);
        wish.goals = vec![0.0, 0.002];
        let (size, doubts) = measured(device, CALM, wish, seed);
        let [none, some] = &size.throughput[..] else {
            panic!("{size:?}")
        };
        for found in [none, some] {
            let beyond = found.beyond_frames.unwrap_or(0.0) / 5.0;
            assert!(
                beyond <= found.fps.unwrap_or(0.0) * 0.005,
                "{seed}: {found:?}"
            );
        }
        let is_told = doubts.contains(&"loss-at-any-rate".to_owned());
        // A goal that allows the loss finds the capacity, although trials at low rates lost more of
        // their few frames.
        let fps = some.fps.unwrap();
        assert!((8_900.0..9_100.0).contains(&fps), "{seed}: {some:?}");
        assert!(none.fps.is_none_or(|fps| fps < 6_000.0), "{seed}: {none:?}");
        told += u32::from(is_told);
    }
    assert!(told >= 8, "{told}");
}

/// On a host with stalls either the capacity is found or a caveat reports the stalls.
#[test]
fn what_this_machine_loses_is_not_the_devices() {
    let (mut found_it, mut all) = (0, 0);
    for stalls in [0.2, 2.0, 10.0] {
        for stall_s in [0.002, 0.01, 0.03] {
            for room in [4, 20, 1_000] {
                for ring in [16, 1_024] {
                    let machine = Machine {
                        stalls,
                        stall_s,
                        ring,
                        ..CALM
                    };
                    let device = Device { room, ..DEVICE };
                    let (size, doubts) = measured(device, machine, options(2.0), 7);
                    let found = &size.throughput[0];
                    let is_it = is_near(found, device.rate);
                    assert!(
                        is_it || !doubts.is_empty() || found.stopped_by == "generator",
                        "{machine:?} {device:?}: {found:?}"
                    );
                    found_it += u32::from(is_it);
                    all += 1;
                }
            }
        }
    }
    // A third of these hosts are stalled for 10 % of the time or more, before a queue of four
    // frames.
    assert!(found_it * 2 >= all, "{found_it} of {all}");
}

/// Repetitions of trials are bounded and recorded.
#[test]
fn trials_are_made_again_so_often_and_no_more() {
    let machine = Machine {
        stalls: 20.0,
        stall_s: 0.02,
        ring: 4,
        ..CALM
    };
    let device = Device { room: 2, ..DEVICE };
    let (size, _) = measured(device, machine, options(1.0), 3);
    let again = size.trials.iter().filter(|trial| trial.again);
    let own = again
        .clone()
        .all(|trial| trial.own.is_some_and(|own| own > 0));
    assert!(again.count() > 0 && own);
    let row = size.trials.windows(3);
    assert!(
        row.filter(|three| three.iter().all(|trial| trial.again))
            .count()
            == 0
    );
}
