//! Caveats of a capacity measurement as a whole.

use std::fmt;

use linerate_metric::capacity::{CapacityTrial, SizeCapacity, Throughput};
use linerate_metric::record::Doubt;
use linerate_metric::units::{format_count, format_nanos, format_per_second, format_share};

use super::loss_attribution::least_growth;

/// Minimum duration of a trial (RFC 2544 section 24).
const RFC_TRIAL_S: f64 = 60.0;

/// Returns all caveats of results found with trials of `trial_s`.
pub(super) fn all_of(sizes: &[SizeCapacity], resolution: f64, trial_s: f64) -> Vec<Doubt> {
    let all = [
        contradicted(sizes),
        disturbed(sizes, trial_s),
        lossy(sizes, trial_s),
        short(sizes, resolution, trial_s),
    ];
    all.into_iter().flatten().collect()
}

/// A caveat of one loss goal at one frame size.
struct Told<'a> {
    size: &'a str,
    badness: f64,
    sentence: String,
}

/// Returns the sentence of the most severe caveat, with the other sizes that share it. Goals share
/// their trials and sizes their device, so separate caveats would repeat each other.
fn worst(mut found: Vec<Told<'_>>) -> Option<String> {
    let bad = |told: &Told<'_>| told.badness;
    found.sort_by(|one, other| bad(other).total_cmp(&bad(one)));
    let mut told = found.into_iter();
    let worst = told.next()?;
    let mut others: Vec<&str> = Vec::new();
    for other in told.map(|told| told.size) {
        if other != worst.size && !others.contains(&other) {
            others.push(other);
        }
    }
    others.sort_by_key(|size| (size.parse::<u32>().unwrap_or(u32::MAX), *size));
    Some(match &others[..] {
        [] => worst.sentence,
        [size] => format!("{} (also at size {size})", worst.sentence),
        sizes => format!("{} (also at sizes {})", worst.sentence, sizes.join(", ")),
    })
}

/// Reports that a later trial lost frames at a load that had passed.
fn contradicted(sizes: &[SizeCapacity]) -> Option<Doubt> {
    let candidates = goals(sizes).filter_map(|(size, found)| {
        let (fps, later, loss) = (
            found.fps?,
            found.contradicted_fps?,
            found.contradicted_loss?,
        );
        Some(Told {
            size: &size.size,
            badness: loss,
            sentence: format!(
                "{} at frame size {} passed in the search, but a later trial lost {} at {}",
                format_per_second(fps),
                size.size,
                format_share(loss),
                format_per_second(later)
            ),
        })
    });
    let sentence = worst(candidates.collect())?;
    Some(Doubt::new(
        "contradicted",
        format!(
            "{sentence}: results vary from trial to trial, because of the device or of this host; use longer trials (--trial)"
        ),
    ))
}

/// Returns each goal with its frame size.
fn goals(sizes: &[SizeCapacity]) -> impl Iterator<Item = (&SizeCapacity, &Throughput)> {
    let of = |size| move |found| (size, found);
    sizes
        .iter()
        .flat_map(move |size: &SizeCapacity| size.throughput.iter().map(of(size)))
}

/// Reports that a bound depends on trials in which this host may have lost the frames.
fn disturbed(sizes: &[SizeCapacity], trial_s: f64) -> Option<Doubt> {
    let candidates = goals(sizes)
        .filter(|(_, found)| found.disturbed)
        .filter_map(|(size, found)| {
            let failed = found.failed_fps?;
            // A repeated trial has exactly the same intended load.
            let asked = found.failed_asked_fps.unwrap_or(failed);
            let decides = |trial: &&CapacityTrial| {
                let length = trial.duration_ns as f64 / 1e9;
                trial.test == "throughput" && trial.asked_fps == Some(asked) && length > trial_s * 0.9
            };
            let trials: Vec<&CapacityTrial> = size.trials.iter().filter(decides).collect();
            let lost: u64 = trials.iter().map(|trial| trial.lost).sum();
            let own: u64 = trials.iter().filter_map(|trial| trial.own).sum();
            Some(Told {
                size: &size.size,
                badness: lost as f64,
                sentence: format!(
                    "{} at frame size {} failed with {} frames lost in {}, {} of them possibly by this host",
                    format_per_second(failed),
                    size.size,
                    format_count(lost),
                    match trials.len() {
                        1 => "a trial".to_owned(),
                        trials => format!("{trials} trials"),
                    },
                    if own >= lost { "all".to_owned() } else { format_count(own) },
                ),
            })
        });
    let sentence = worst(candidates.collect())?;
    Some(Doubt::new(
        "trials-disturbed",
        format!(
            "{sentence}, because linerate was late or stalled: the device may forward more; use an idle host, dedicated \
             CPUs (--cpu), or a loss goal above 0 (--loss 0,0.1%)"
        ),
    ))
}

/// Ratio of a rate with little loss to the lowest failed rate, from which on the loss does not
/// depend on the rate.
const CARRIED: f64 = 1.5;
/// Highest loss fraction that counts as little.
const LITTLE: f64 = 0.05;

/// Returns a loss goal that allows such random loss: at least twice the loss, and at least 0.1 %, a
/// common goal.
fn allowed(loss_fraction: f64) -> Percent {
    let wanted = (loss_fraction * 2.0).max(0.001) * 100.0;
    let power = wanted.log10().floor() as i32;
    // Subtract the rounding error of binary fractions, which would add 1 to the digit.
    let digit = (wanted / 10f64.powi(power) - 1e-9).ceil();
    Percent { digit, power }
}

/// Percentage as the `--loss` option takes it: one digit times a power of ten.
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

/// Reports that frames are lost at any rate: the result of a goal below that loss depends on
/// chance.
fn lossy(sizes: &[SizeCapacity], trial_s: f64) -> Option<Doubt> {
    let found: Vec<(Percent, Told<'_>)> = goals(sizes)
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
            // A goal that already allows this loss is not affected by chance.
            let allowed = allowed(most.loss_fraction);
            (goal.loss_goal < allowed.share() - 1e-12).then(|| {
                let sentence = format!(
                    "{} at frame size {} failed the loss goal of {}, but {} lost no more than {}",
                    format_per_second(failed),
                    size.size,
                    format_share(goal.loss_goal),
                    format_per_second(most.offered_fps),
                    format_share(most.loss_fraction)
                );
                let told = Told {
                    size: &size.size,
                    badness: allowed.share(),
                    sentence,
                };
                (allowed, told)
            })
        })
        .collect();
    // The largest of the required allowances.
    let shares = found.iter().map(|(allowed, _)| *allowed);
    let allowed = shares.max_by(|one, other| one.share().total_cmp(&other.share()))?;
    let sentence = worst(found.into_iter().map(|(_, told)| told).collect())?;
    Some(Doubt::new(
        "loss-at-any-rate",
        format!(
            "{sentence}: frames are lost at random at any rate, so the result depends on chance; allow that loss \
             (--loss 0,{allowed})"
        ),
    ))
}

/// Reports that trials are too short for their results.
fn short(sizes: &[SizeCapacity], resolution: f64, trial_s: f64) -> Option<Doubt> {
    let (mut beyond_it, mut too_few) = (Vec::new(), Vec::new());
    // The longest of the required durations.
    let mut wanted_s = RFC_TRIAL_S;
    for (size, goal) in goals(sizes) {
        let Some(fps) = goal.fps.filter(|&fps| fps > 0.0) else {
            continue;
        };
        let beyond = goal.beyond_frames.unwrap_or(0.0);
        if beyond / trial_s > fps * resolution {
            let needed_s = beyond / (fps * resolution);
            beyond_it.push(Told {
                size: &size.size,
                badness: needed_s,
                sentence: format!(
                    "shorter trials passed {} frames of size {} above {}, which a buffer or a rate limiter of the \
                     device took: trials of {} overstate the rate by up to {}",
                    format_count(beyond as u64),
                    size.size,
                    or_failed(goal),
                    format_nanos(trial_s * 1e9),
                    format_share(beyond / trial_s / fps)
                ),
            });
            wanted_s = wanted_s.max(needed_s);
        }
        let frames = fps * trial_s;
        if goal.stopped_by == "resolution" && frames * resolution < 1.0 {
            let needed_s = 1.0 / (fps * resolution);
            too_few.push(Told {
                size: &size.size,
                badness: needed_s,
                sentence: format!(
                    "at {} and frame size {} a trial has {} frames, and one frame is more than {}",
                    format_per_second(fps),
                    size.size,
                    format_count(frames as u64),
                    format_share(resolution)
                ),
            });
            wanted_s = wanted_s.max(needed_s);
        }
    }
    let mut found: Vec<String> = [beyond_it, too_few].into_iter().filter_map(worst).collect();
    let least = least_growth(resolution, trial_s);
    if least > resolution && goals(sizes).any(|(_, goal)| goal.fps.is_some()) {
        found.push(format!(
            "in trials of {} a growing queue is detected only from {} above the rate of the device on",
            format_nanos(trial_s * 1e9),
            format_share(least)
        ));
    }
    (!found.is_empty()).then(|| {
        Doubt::new(
            "short-trials",
            format!(
                "{}; use longer trials: --trial {:.0}s",
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

    /// Returns the caveat for a goal that failed at 1000 frames/s, with a trial at 2000 frames/s
    /// that lost `loss_fraction`.
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

    /// A caveat that applies to several goals and sizes is reported once, for the worst of them.
    #[test]
    fn a_doubt_is_told_once() {
        let goal = |loss_goal, fps, loss| Throughput {
            loss_goal,
            fps: Some(fps),
            failed_fps: Some(fps * 1.005),
            contradicted_fps: Some(500.0),
            contradicted_loss: Some(loss),
            beyond_frames: Some(fps),
            stopped_by: "resolution".to_owned(),
            ..Throughput::default()
        };
        let size = |size: &str, fps, loss| SizeCapacity {
            size: size.to_owned(),
            throughput: vec![goal(0.0, fps, loss), goal(0.001, fps * 1.1, loss)],
            ..SizeCapacity::default()
        };
        let sizes = [
            size("1518", 1000.0, 0.1),
            size("64", 1000.0, 0.25),
            size("512", 1000.0, 0.2),
        ];
        let all = all_of(&sizes, 0.005, 2.0);
        for name in ["contradicted", "short-trials"] {
            let said: Vec<_> = all.iter().filter(|doubt| doubt.doubt == name).collect();
            assert_eq!(said.len(), 1, "{all:?}");
        }
        let why = |name| &all.iter().find(|doubt| doubt.doubt == name).unwrap().why;
        let contradicted = why("contradicted");
        assert!(
            contradicted.starts_with(
                "1.00 k/s at frame size 64 passed in the search, but a later trial lost 25.0 % at 500 /s (also at sizes \
                 512, 1518): "
            ),
            "{contradicted}"
        );
        let short = why("short-trials");
        assert_eq!(short.matches("shorter trials passed").count(), 1, "{short}");
        assert!(short.contains("(also at sizes"), "{short}");
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
        // The goal already allows the loss.
        assert_eq!(found(0.001, 0.0005), None);
        assert_eq!(found(0.003, 0.0015), None);
    }
}
