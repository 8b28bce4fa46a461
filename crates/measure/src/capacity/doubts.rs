//! What speaks against the results of a measurement as a whole.

use linerate_metric::capacity::{CapacityTrial, SizeCapacity, Throughput};
use linerate_metric::record::Doubt;
use linerate_metric::units::{format_count, format_nanos, format_per_second, format_share};

use super::judge::least_growth;

/// RFC 2544 section 24: what trials should last at least.
const RFC_TRIAL_S: f64 = 60.0;

/// All of them, of results found with trials of `trial_s`.
pub(super) fn all_of(sizes: &[SizeCapacity], resolution: f64, trial_s: f64) -> Vec<Doubt> {
    let all = [
        contradicted(sizes),
        disturbed(sizes, trial_s),
        short(sizes, resolution, trial_s),
    ];
    all.into_iter().flatten().collect()
}

/// That a later trial lost at a load which had passed.
fn contradicted(sizes: &[SizeCapacity]) -> Option<Doubt> {
    let found = sizes.iter().flat_map(|size| {
        let found = size.throughput.iter();
        found.filter_map(|found| {
            let (fps, later) = (found.fps?, found.contradicted_fps?);
            Some(format!(
                "{} of {} passed in the search, and later {} were lost at {}",
                format_per_second(fps),
                size.size,
                format_share(found.contradicted_loss?),
                format_per_second(later)
            ))
        })
    });
    let found: Vec<String> = found.collect();
    (!found.is_empty()).then(|| {
        Doubt::new(
            "contradicted",
            format!(
                "{}: the device, or this machine, does not do the same each time; longer trials (--trial) \
                 tell more",
                found.join("; ")
            ),
        )
    })
}

/// Every goal that was found, with its size.
fn goals(sizes: &[SizeCapacity]) -> impl Iterator<Item = (&SizeCapacity, &Throughput)> {
    let of = |size| move |found| (size, found);
    sizes
        .iter()
        .flat_map(move |size: &SizeCapacity| size.throughput.iter().map(of(size)))
}

/// That a bound stands on trials in which this machine may have lost the frames itself.
fn disturbed(sizes: &[SizeCapacity], trial_s: f64) -> Option<Doubt> {
    let found: Vec<String> = goals(sizes)
        .filter(|(_, found)| found.disturbed)
        .filter_map(|(size, found)| {
            let failed = found.failed_fps?;
            // A load is asked for again as the same number.
            let decides = |trial: &&CapacityTrial| {
                let length = trial.duration_ns as f64 / 1e9;
                trial.test == "throughput" && trial.asked_fps == Some(failed) && length > trial_s * 0.9
            };
            let trials: Vec<&CapacityTrial> = size.trials.iter().filter(decides).collect();
            let lost: u64 = trials.iter().map(|trial| trial.lost).sum();
            let own: u64 = trials.iter().filter_map(|trial| trial.own).sum();
            Some(format!(
                "{} of size {} failed with {} frames lost in {} trials, {} of which this machine may have lost",
                format_per_second(failed),
                size.size,
                format_count(lost),
                trials.len(),
                if own >= lost { "all".to_owned() } else { format_count(own) },
            ))
        })
        .collect();
    (!found.is_empty()).then(|| {
        Doubt::new(
            "trials-disturbed",
            format!(
                "{}, because this program was late or stood still: the device may carry more; use a quieter \
                 machine, processors of its own (--cpu), or allow a little loss (--loss 0,0.1%)",
                found.join("; ")
            ),
        )
    })
}

/// That trials are too short for what they have to show.
fn short(sizes: &[SizeCapacity], resolution: f64, trial_s: f64) -> Option<Doubt> {
    let mut found = Vec::new();
    // As long as the worst of them asks for.
    let mut wanted_s = RFC_TRIAL_S;
    for (size, goal) in goals(sizes) {
        let Some(fps) = goal.fps.filter(|&fps| fps > 0.0) else {
            continue;
        };
        let beyond = goal.beyond_frames.unwrap_or(0.0);
        if beyond / trial_s > fps * resolution {
            found.push(format!(
                "shorter trials let {} frames of size {} pass beyond {}, which the device has room or an allowance \
                 for: in trials of {} that is up to {} of the rate",
                format_count(beyond as u64),
                size.size,
                or_failed(goal),
                format_nanos(trial_s * 1e9),
                format_share(beyond / trial_s / fps)
            ));
            wanted_s = wanted_s.max(beyond / (fps * resolution));
        }
        let frames = fps * trial_s;
        if goal.stopped_by == "resolution" && frames * resolution < 1.0 {
            found.push(format!(
                "at {} of size {} a trial has {} frames, and one of them is more than {}",
                format_per_second(fps),
                size.size,
                format_count(frames as u64),
                format_share(resolution)
            ));
            wanted_s = wanted_s.max(1.0 / (fps * resolution));
        }
    }
    let least = least_growth(resolution, trial_s);
    if least > resolution && goals(sizes).any(|(_, goal)| goal.fps.is_some()) {
        found.push(format!(
            "within {} a queue that fills is seen only from {} above the device's rate on",
            format_nanos(trial_s * 1e9),
            format_share(least)
        ));
    }
    (!found.is_empty()).then(|| {
        Doubt::new(
            "short-trials",
            format!(
                "{}; longer trials tell: --trial {:.0}s",
                found.join("; "),
                wanted_s.ceil()
            ),
        )
    })
}

fn or_failed(goal: &Throughput) -> String {
    goal.failed_fps
        .map_or_else(|| "that rate".to_owned(), format_per_second)
}
