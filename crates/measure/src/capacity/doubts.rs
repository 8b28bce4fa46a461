//! What speaks against the results of a measurement as a whole.

use std::fmt;

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
        lossy(sizes, trial_s),
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

/// A rate that is so much higher than the lowest one that failed, and of which little is lost, says that loss has
/// little to do with the rate.
const CARRIED: f64 = 1.5;
/// What little is.
const LITTLE: f64 = 0.05;

/// A share that is allowed of such loss: at least twice as much, and no less than a goal that is common.
fn allowed(loss_fraction: f64) -> Percent {
    let wanted = (loss_fraction * 2.0).max(0.001) * 100.0;
    let power = wanted.log10().floor() as i32;
    // What binary fractions leave over is no further digit.
    let digit = (wanted / 10f64.powi(power) - 1e-9).ceil();
    Percent { digit, power }
}

/// A share as an option takes it: one digit, so many places up.
#[derive(Clone, Copy)]
struct Percent {
    digit: f64,
    power: i32,
}

impl Percent {
    fn share(self) -> f64 {
        self.digit * 10f64.powi(self.power) / 100.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.power.min(0).unsigned_abs() as usize;
        write!(f, "{:.places$}%", self.share() * 100.0)
    }
}

/// That frames are lost at any rate, so that a goal below that loss finds how many frames pass by chance.
fn lossy(sizes: &[SizeCapacity], trial_s: f64) -> Option<Doubt> {
    let found: Vec<(Percent, String)> = goals(sizes)
        .filter_map(|(size, goal)| {
            let failed = goal.failed_fps?;
            let carried = size.trials.iter().filter(|trial| {
                let length = trial.duration_ns as f64 / 1e9;
                trial.test == "throughput"
                    && length > trial_s * 0.9
                    && trial.forwarding_fps > failed * CARRIED
                    && trial.loss_fraction < LITTLE
                    && trial.queued.is_none()
                    && !trial.again
                    && trial.own.is_none_or(|own| own < trial.lost)
            });
            let most =
                carried.max_by(|one, other| one.forwarding_fps.total_cmp(&other.forwarding_fps))?;
            // What such loss does to a goal that allows for it is no matter of chance.
            let allowed = allowed(most.loss_fraction);
            (goal.loss_goal < allowed.share() - 1e-12).then(|| {
                let told = format!(
                    "{} of size {} failed the goal of {} lost, and at {} no more than {} were lost",
                    format_per_second(failed),
                    size.size,
                    format_share(goal.loss_goal),
                    format_per_second(most.offered_fps),
                    format_share(most.loss_fraction)
                );
                (allowed, told)
            })
        })
        .collect();
    // As much as the worst of them asks for.
    let shares = found.iter().map(|(allowed, _)| *allowed);
    let allowed = shares.max_by(|one, other| one.share().total_cmp(&other.share()))?;
    let told: Vec<String> = found.into_iter().map(|(_, told)| told).collect();
    Some(Doubt::new(
        "loss-at-any-rate",
        format!(
            "{}: frames are lost now and then at whatever rate, and how many pass without depends on chance; \
             allow for that loss (--loss 0,{allowed})",
            told.join("; ")
        ),
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A goal that failed at 1000 frames a second, and a trial at 2000 that lost so much.
    fn found(loss_goal: f64, loss_fraction: f64) -> Option<String> {
        let goal = Throughput {
            loss_goal,
            failed_fps: Some(1000.0),
            ..Throughput::default()
        };
        let trial = CapacityTrial {
            test: "throughput".to_owned(),
            duration_ns: 5_000_000_000,
            sent: 10_000,
            lost: (loss_fraction * 10_000.0) as u64,
            offered_fps: 2000.0,
            forwarding_fps: 2000.0 * (1.0 - loss_fraction),
            loss_fraction,
            ..CapacityTrial::default()
        };
        let size = SizeCapacity {
            throughput: vec![goal],
            trials: vec![trial],
            ..SizeCapacity::default()
        };
        lossy(&[size], 5.0).map(|doubt| doubt.why)
    }

    #[test]
    fn the_loss_to_allow_is_that_of_the_path() {
        for (goal, loss, wanted) in [
            (0.0, 0.0, "(--loss 0,0.1%)"),
            (0.0, 0.0005, "(--loss 0,0.1%)"),
            (0.0, 0.0011, "(--loss 0,0.3%)"),
            (0.001, 0.0015, "(--loss 0,0.3%)"),
            (0.0, 0.045, "(--loss 0,9%)"),
            (0.0, 0.048, "(--loss 0,10%)"),
        ] {
            let why = found(goal, loss).unwrap_or_else(|| panic!("{goal} {loss}"));
            assert!(why.contains(wanted), "{goal} {loss}: {why}");
        }
        let why = found(0.001, 0.0015).unwrap();
        assert!(why.contains("goal of 0.1"), "{why}");
        // It is allowed for already.
        assert_eq!(found(0.001, 0.0005), None);
        assert_eq!(found(0.003, 0.0015), None);
    }
}
