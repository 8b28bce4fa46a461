//! Caveats of a capacity measurement as a whole.

use std::fmt;

use linerate_record::capacity::{CapacityTrial, SizeCapacity, Throughput};
use linerate_record::ids::{CaveatId, SearchEnd};
use linerate_record::record::Caveat;
use linerate_stats::units::{format_count, format_nanos, format_per_second, format_share};

use super::loss_attribution::min_detectable_growth;

/// Minimum duration of a trial (RFC 2544 section 24).
const RFC_TRIAL_S: f64 = 60.0;

/// Returns all caveats of results found with trials of `trial_s`.
pub(super) fn suite_caveats(sizes: &[SizeCapacity], resolution: f64, trial_s: f64) -> Vec<Caveat> {
    let caveats = [
        contradicted(sizes),
        disturbed(sizes, trial_s),
        lossy(sizes, trial_s),
        short(sizes, resolution, trial_s),
    ];
    caveats.into_iter().flatten().collect()
}

/// A caveat of one loss goal at one frame size.
struct CaveatCandidate<'a> {
    size: &'a str,
    severity: f64,
    sentence: String,
}

/// Returns the sentence of the most severe caveat, with the other sizes that share it. Goals share
/// their trials and sizes their device, so separate caveats would repeat each other.
fn worst(mut candidates: Vec<CaveatCandidate<'_>>) -> Option<String> {
    let severity = |candidate: &CaveatCandidate<'_>| candidate.severity;
    candidates.sort_by(|left, other_size| severity(other_size).total_cmp(&severity(left)));
    let mut candidates = candidates.into_iter();
    let worst = candidates.next()?;
    let mut other_sizes: Vec<&str> = Vec::new();
    for other_size in candidates.map(|candidate| candidate.size) {
        if other_size != worst.size && !other_sizes.contains(&other_size) {
            other_sizes.push(other_size);
        }
    }
    other_sizes.sort_by_key(|size| (size.parse::<u32>().unwrap_or(u32::MAX), *size));
    Some(match &other_sizes[..] {
        [] => worst.sentence,
        [size] => format!("{} (also at size {size})", worst.sentence),
        sizes => format!("{} (also at sizes {})", worst.sentence, sizes.join(", ")),
    })
}

/// Reports that a later trial lost frames at a load that had passed.
fn contradicted(sizes: &[SizeCapacity]) -> Option<Caveat> {
    let candidates = goals(sizes).filter_map(|(size, goal)| {
        let (fps, later_fps, loss) = (goal.fps?, goal.contradicted_fps?, goal.contradicted_loss?);
        Some(CaveatCandidate {
            size: &size.size,
            severity: loss,
            sentence: format!(
                "{} at frame size {} passed in the search, but a later trial lost {} at {}",
                format_per_second(fps),
                size.size,
                format_share(loss),
                format_per_second(later_fps)
            ),
        })
    });
    let sentence = worst(candidates.collect())?;
    Some(Caveat::new(
        CaveatId::Contradicted,
        format!(
            "{sentence}: results vary from trial to trial, because of the device or of this host; use longer trials (--trial)"
        ),
    ))
}

/// Returns each goal with its frame size.
fn goals(sizes: &[SizeCapacity]) -> impl Iterator<Item = (&SizeCapacity, &Throughput)> {
    let with_size = |size| move |goal| (size, goal);
    sizes
        .iter()
        .flat_map(move |size: &SizeCapacity| size.throughput.iter().map(with_size(size)))
}

/// Reports that a bound depends on trials in which this host may have lost the frames.
fn disturbed(sizes: &[SizeCapacity], trial_s: f64) -> Option<Caveat> {
    let candidates = goals(sizes)
        .filter(|(_, goal)| goal.disturbed)
        .filter_map(|(size, goal)| {
            let failed = goal.failed_fps?;
            // A repeated trial has exactly the same intended load.
            let intended = goal.failed_intended_fps.unwrap_or(failed);
            let decides = |trial: &&CapacityTrial| {
                let length = trial.duration_ns as f64 / 1e9;
                trial.test == "throughput" && trial.intended_fps == Some(intended) && length > trial_s * 0.9
            };
            let trials: Vec<&CapacityTrial> = size.trials.iter().filter(decides).collect();
            let lost: u64 = trials.iter().map(|trial| trial.lost).sum();
            let host_lost: u64 = trials.iter().filter_map(|trial| trial.local_loss).sum();
            Some(CaveatCandidate {
                size: &size.size,
                severity: lost as f64,
                sentence: format!(
                    "{} at frame size {} failed with {} frames lost in {}, {} of them possibly by this host",
                    format_per_second(failed),
                    size.size,
                    format_count(lost),
                    match trials.len() {
                        1 => "a trial".to_owned(),
                        trials => format!("{trials} trials"),
                    },
                    if host_lost >= lost { "all".to_owned() } else { format_count(host_lost) },
                ),
            })
        });
    let sentence = worst(candidates.collect())?;
    Some(Caveat::new(
        CaveatId::TrialsDisturbed,
        format!(
            "{sentence}, because linerate was late or stalled: the device may forward more; use an idle host, dedicated \
             CPUs (--cpu), or a loss goal above 0 (--loss 0,0.1%)"
        ),
    ))
}

/// Ratio of a rate with little loss to the lowest failed rate, from which on the loss does not
/// depend on the rate.
const CARRIED_RATIO: f64 = 1.5;
/// Highest loss fraction that counts as little.
const SMALL_LOSS: f64 = 0.05;

/// Returns a loss goal that allows such random loss: at least twice the loss, and at least 0.1 %, a
/// common goal.
fn goal_allowing(loss_fraction: f64) -> LossPercent {
    let percent = (loss_fraction * 2.0).max(0.001) * 100.0;
    let power = percent.log10().floor() as i32;
    // Subtract the rounding error of binary fractions, which would add 1 to the digit.
    let digit = (percent / 10f64.powi(power) - 1e-9).ceil();
    LossPercent { digit, power }
}

/// Percentage as the `--loss` option takes it: one digit times a power of ten.
#[derive(Clone, Copy)]
struct LossPercent {
    digit: f64,
    power: i32,
}

impl LossPercent {
    fn share(self) -> f64 {
        self.digit * 10f64.powi(self.power) / 100.0
    }
}

impl fmt::Display for LossPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = self.power.min(0).unsigned_abs() as usize;
        write!(f, "{:.decimals$}%", self.share() * 100.0)
    }
}

/// Reports that frames are lost at any rate: the result of a goal below that loss depends on
/// chance.
fn lossy(sizes: &[SizeCapacity], trial_s: f64) -> Option<Caveat> {
    let candidates: Vec<(LossPercent, CaveatCandidate<'_>)> = goals(sizes)
        .filter_map(|(size, goal)| {
            let failed = goal.failed_fps?;
            let carried = size.trials.iter().filter(|trial| {
                let length = trial.duration_ns as f64 / 1e9;
                trial.test == "throughput"
                    && length > trial_s * 0.9
                    && trial.forwarding_fps > failed * CARRIED_RATIO
                    && trial.loss_fraction < SMALL_LOSS
                    && trial.queued.is_none()
                    && !trial.repeated
                    && trial
                        .local_loss
                        .is_none_or(|host_lost| host_lost < trial.lost)
            });
            let fastest = carried
                .max_by(|left, right| left.forwarding_fps.total_cmp(&right.forwarding_fps))?;
            // A goal that already allows this loss is not affected by chance.
            let allowed = goal_allowing(fastest.loss_fraction);
            (goal.loss_goal < allowed.share() - 1e-12).then(|| {
                let sentence = format!(
                    "{} at frame size {} failed the loss goal of {}, but {} lost no more than {}",
                    format_per_second(failed),
                    size.size,
                    format_share(goal.loss_goal),
                    format_per_second(fastest.offered_fps),
                    format_share(fastest.loss_fraction)
                );
                let candidate = CaveatCandidate {
                    size: &size.size,
                    severity: allowed.share(),
                    sentence,
                };
                (allowed, candidate)
            })
        })
        .collect();
    // The largest of the required allowances.
    let shares = candidates.iter().map(|(allowed, _)| *allowed);
    let allowed = shares.max_by(|left, right| left.share().total_cmp(&right.share()))?;
    let sentence = worst(
        candidates
            .into_iter()
            .map(|(_, candidate)| candidate)
            .collect(),
    )?;
    Some(Caveat::new(
        CaveatId::LossAtAnyRate,
        format!(
            "{sentence}: frames are lost at random at any rate, so the result depends on chance; allow that loss \
             (--loss 0,{allowed})"
        ),
    ))
}

/// Reports that trials are too short for their results.
fn short(sizes: &[SizeCapacity], resolution: f64, trial_s: f64) -> Option<Caveat> {
    let (mut beyond_rate, mut too_few) = (Vec::new(), Vec::new());
    // The longest of the required durations.
    let mut required_s = RFC_TRIAL_S;
    for (size, goal) in goals(sizes) {
        let Some(fps) = goal.fps.filter(|&fps| fps > 0.0) else {
            continue;
        };
        let beyond = goal.short_trial_surplus_frames.unwrap_or(0.0);
        if beyond / trial_s > fps * resolution {
            let needed_s = beyond / (fps * resolution);
            beyond_rate.push(CaveatCandidate {
                size: &size.size,
                severity: needed_s,
                sentence: format!(
                    "shorter trials passed {} frames of size {} above {}, which a buffer or a rate limiter of the \
                     device took: trials of {} overstate the rate by up to {}",
                    format_count(beyond as u64),
                    size.size,
                    failed_rate(goal),
                    format_nanos(trial_s * 1e9),
                    format_share(beyond / trial_s / fps)
                ),
            });
            required_s = required_s.max(needed_s);
        }
        let frames = fps * trial_s;
        if goal.stopped_by == SearchEnd::Resolution && frames * resolution < 1.0 {
            let needed_s = 1.0 / (fps * resolution);
            too_few.push(CaveatCandidate {
                size: &size.size,
                severity: needed_s,
                sentence: format!(
                    "at {} and frame size {} a trial has {} frames, and one frame is more than {}",
                    format_per_second(fps),
                    size.size,
                    format_count(frames as u64),
                    format_share(resolution)
                ),
            });
            required_s = required_s.max(needed_s);
        }
    }
    let mut sentences: Vec<String> = [beyond_rate, too_few]
        .into_iter()
        .filter_map(worst)
        .collect();
    let min_growth = min_detectable_growth(resolution, trial_s);
    if min_growth > resolution && goals(sizes).any(|(_, goal)| goal.fps.is_some()) {
        sentences.push(format!(
            "in trials of {} a growing queue is detected only from {} above the rate of the device on",
            format_nanos(trial_s * 1e9),
            format_share(min_growth)
        ));
    }
    (!sentences.is_empty()).then(|| {
        Caveat::new(
            CaveatId::ShortTrials,
            format!(
                "{}; use longer trials: --trial {:.0}s",
                sentences.join("; "),
                required_s.ceil()
            ),
        )
    })
}

fn failed_rate(goal: &Throughput) -> String {
    goal.failed_fps
        .map_or_else(|| "that rate".to_owned(), format_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the caveat for a goal that failed at 1000 frames/s, with a trial at 2000 frames/s
    /// that lost `loss_fraction`.
    fn lossy_caveat(loss_goal: f64, loss_fraction: f64) -> Option<String> {
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
        lossy(&[size], 5.0).map(|caveat| caveat.reason)
    }

    /// A caveat that applies to several goals and sizes is reported once, for the worst of them.
    #[test]
    fn caveat_is_reported_once() {
        let goal = |loss_goal, fps, loss| Throughput {
            loss_goal,
            fps: Some(fps),
            failed_fps: Some(fps * 1.005),
            contradicted_fps: Some(500.0),
            contradicted_loss: Some(loss),
            short_trial_surplus_frames: Some(fps),
            stopped_by: SearchEnd::Resolution.into(),
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
        let caveats = suite_caveats(&sizes, 0.005, 2.0);
        for id in [CaveatId::Contradicted, CaveatId::ShortTrials] {
            let same_kind: Vec<_> = caveats.iter().filter(|caveat| caveat.id == id).collect();
            assert_eq!(same_kind.len(), 1, "{caveats:?}");
        }
        let why = |id: CaveatId| {
            &caveats
                .iter()
                .find(|caveat| caveat.id == id)
                .unwrap()
                .reason
        };
        let contradicted = why(CaveatId::Contradicted);
        assert!(
            contradicted.starts_with(
                "1.00 k/s at frame size 64 passed in the search, but a later trial lost 25.0 % at 500 /s (also at sizes \
                 512, 1518): "
            ),
            "{contradicted}"
        );
        let short = why(CaveatId::ShortTrials);
        assert_eq!(short.matches("shorter trials passed").count(), 1, "{short}");
        assert!(short.contains("(also at sizes"), "{short}");
    }

    #[test]
    fn the_loss_to_allow_is_that_of_the_path() {
        for (goal, loss, advice) in [
            (0.0, 0.0, "(--loss 0,0.1%)"),
            (0.0, 0.0005, "(--loss 0,0.1%)"),
            (0.0, 0.0011, "(--loss 0,0.3%)"),
            (0.001, 0.0015, "(--loss 0,0.3%)"),
            (0.0, 0.045, "(--loss 0,9%)"),
            (0.0, 0.048, "(--loss 0,10%)"),
        ] {
            let why = lossy_caveat(goal, loss).unwrap_or_else(|| panic!("{goal} {loss}"));
            assert!(why.contains(advice), "{goal} {loss}: {why}");
        }
        let why = lossy_caveat(0.001, 0.0015).unwrap();
        assert!(why.contains("goal of 0.1"), "{why}");
        // The goal already allows the loss.
        assert_eq!(lossy_caveat(0.001, 0.0005), None);
        assert_eq!(lossy_caveat(0.003, 0.0015), None);
    }
}
