//! Capacity measurement (RFC 2544): trials, tables per test, notes on limits.

use linerate_record::capacity::{
    BackToBackResult, Capacity, CapacityTrial, SizeCapacity, Throughput,
};
use linerate_record::ids::SearchEnd;
use linerate_stats::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use crate::model::{Grid, format_duration, or_unknown};
use crate::style::strip_control_characters;

/// Describes a trial: `trial 3, throughput, 64: 52.0 k/s for 1.00 s, 48.2 k/s received, 7.30 %
/// lost`. When the offered load missed the intended load, both are shown.
#[must_use]
pub fn describe_capacity_trial(trial: &CapacityTrial) -> String {
    let offered = format_rate(trial.offered_fps);
    let load = match trial.intended_fps {
        Some(intended) if !trial.load_met => {
            format!("{offered} of {} intended", format_per_second(intended))
        }
        Some(_) => offered,
        None => format!("{offered} (maximum)"),
    };
    let received = match trial.forwarding_fps > 0.0 {
        true => format!(
            "{} received, {} lost",
            format_per_second(trial.forwarding_fps),
            format_share(trial.loss_fraction)
        ),
        false => "nothing received".to_owned(),
    };
    let mut line = format!(
        "trial {}, {}, {}: {load} for {}, {received}",
        trial.number,
        trial.test,
        strip_control_characters(&trial.size),
        format_nanos(trial.duration_ns as f64),
    );
    for note in trial_notes(trial) {
        line.push_str(", ");
        line.push_str(&note);
    }
    line
}

/// Returns notes on a trial: `a queue was filling (420 ms)`, `repeated: this host was late`.
fn trial_notes(trial: &CapacityTrial) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(wait) = trial.queue_wait_ns {
        notes.push(format!(
            "a queue was filling ({})",
            format_nanos(wait as f64)
        ));
    }
    if trial.repeated {
        notes.push("repeated: this host was late".to_owned());
    }
    notes
}

/// Summarises the throughput: `Without loss pass 1.49 M/s of 64 B frames and 81.3 k/s of 1518 B
/// frames.`
pub(crate) fn describe_throughput(capacity: &Capacity) -> Option<String> {
    let throughputs: Vec<(String, &Throughput)> = (capacity.sizes.iter())
        .filter_map(|size| {
            Some((
                strip_control_characters(&size.size).into_owned(),
                size.throughput.first()?,
            ))
        })
        .collect();
    let (_, strictest) = throughputs.first()?;
    let goal = match strictest.loss_goal > 0.0 {
        true => format!("With up to {} loss", format_share(strictest.loss_goal)),
        false => "Without loss".to_owned(),
    };
    let rate = |(size, throughputs): &(String, &Throughput)| {
        let frames = match size.bytes().all(|digit| digit.is_ascii_digit()) {
            true => format!("{size} B frames"),
            false => size.clone(),
        };
        // The range between this rate and the lowest failed rate was not searched.
        let is_lower_bound = throughputs.stopped_by.is_one_of(&[
            SearchEnd::Generator,
            SearchEnd::Interrupted,
            SearchEnd::Trials,
        ]);
        let rate = match throughputs.fps {
            Some(fps) if is_lower_bound => format!("at least {}", format_per_second(fps)),
            Some(fps) => format_per_second(fps),
            None if throughputs.stopped_by == SearchEnd::MinimumRate => "nothing".to_owned(),
            // The search ended before any trial passed or failed.
            None => "an unknown rate".to_owned(),
        };
        let contradiction = describe_contradiction(throughputs)
            .map_or_else(String::new, |later| format!(" (but later {later})"));
        format!("{rate} of {frames}{contradiction}")
    };
    Some(match &throughputs[..] {
        [only] => format!("{goal} pass {}.", rate(only)),
        [first, .., last] => format!("{goal} pass {}, and {}.", rate(first), rate(last)),
        [] => return None,
    })
}

/// Describes the measurement: `ring:0 to ring:0: trials of 5 s, resolution 0.5 %`.
pub(crate) fn describe_setup(capacity: &Capacity) -> String {
    format!(
        "{} to {}: trials of {}, resolution {}",
        strip_control_characters(&capacity.send),
        strip_control_characters(&capacity.receive),
        format_duration(capacity.trial_ns),
        format_share(capacity.resolution)
    )
}

/// Names the loss goal: `NDR` (no loss), `PDR 0.1 %` (partial drop rate).
pub(crate) fn loss_goal_name(throughput: &Throughput) -> String {
    match throughput.loss_goal > 0.0 {
        true => format!("PDR {}", format_share(throughput.loss_goal)),
        false => "NDR".to_owned(),
    }
}

/// Returns the table of the highest rate per frame size and loss goal.
pub(crate) fn throughput_table(capacity: &Capacity) -> Option<Grid> {
    let mut rows = Vec::new();
    for size in &capacity.sizes {
        for found in &size.throughput {
            rows.push(vec![
                strip_control_characters(&size.size).into_owned(),
                loss_goal_name(found),
                or_unknown(found.fps, format_per_second),
                or_unknown(found.failed_fps, format_per_second),
                or_unknown(found.l2_bps, format_bit_rate),
                or_unknown(found.l1_bps, format_bit_rate),
                or_unknown(found.loss_fraction, format_share),
                stop_reasons(found),
            ]);
        }
    }
    let headings = [
        "size",
        "goal",
        "passes",
        "fails",
        "L2",
        "L1",
        "lost",
        "stopped by",
    ];
    Grid::new(&headings, rows, 2)
}

/// Formats a rate; a trial that sent nothing, or a single burst, has none.
fn format_rate(fps: f64) -> String {
    or_unknown(Some(fps).filter(|&fps| fps > 0.0), format_per_second)
}

/// Describes a later trial that contradicts the throughput: `0.71 % were lost at 243 k/s`.
fn describe_contradiction(throughput: &Throughput) -> Option<String> {
    let (fps, loss) = (throughput.contradicted_fps?, throughput.contradicted_loss?);
    Some(format!(
        "{} were lost at {}",
        format_share(loss),
        format_per_second(fps)
    ))
}

fn stop_reasons(throughput: &Throughput) -> String {
    // A record of another version may have any text.
    let reason = throughput.stopped_by.known();
    let mut reasons = vec![reason.map_or("?", SearchEnd::as_str)];
    reasons.extend(throughput.contradicted_fps.map(|_| "contradicted"));
    reasons.extend(throughput.disturbed.then_some("disturbed"));
    reasons.join(", ")
}

/// Formats an offered load, with a star if the intended load was not reached.
fn format_offered(offered_fps: f64, not_offered_fps: Option<f64>) -> String {
    let star = if not_offered_fps.is_some() { " *" } else { "" };
    format!("{}{star}", format_rate(offered_fps))
}

/// Returns the table of delays at shares of the throughput.
pub(crate) fn delay_table(capacity: &Capacity) -> Option<Grid> {
    let mut rows = Vec::new();
    for size in &capacity.sizes {
        for delay in &size.latency {
            let mut row = vec![
                strip_control_characters(&size.size).into_owned(),
                format_share(delay.share),
                format_offered(delay.offered_fps, delay.missed_intended_fps),
                format_share(delay.loss_fraction),
            ];
            let times = delay
                .one_way_delay_ns
                .map(|times| [times.min, times.p50, times.p99, times.max].map(|time| time as f64));
            for quantile in 0..4 {
                row.push(or_unknown(times.map(|times| times[quantile]), format_nanos));
            }
            rows.push(row);
        }
    }
    let headings = [
        "size",
        "at",
        "offered",
        "lost",
        "delay min",
        "p50",
        "p99",
        "max",
    ];
    Grid::new(&headings, rows, 1)
}

/// Returns the table of loss by offered load.
pub(crate) fn frame_loss_table(capacity: &Capacity) -> Option<Grid> {
    let mut rows = Vec::new();
    for size in &capacity.sizes {
        for loss in &size.frame_loss {
            rows.push(vec![
                strip_control_characters(&size.size).into_owned(),
                format_share(loss.share),
                format_offered(loss.offered_fps, loss.missed_intended_fps),
                format_per_second(loss.forwarding_fps),
                format_share(loss.loss_fraction),
            ]);
        }
    }
    let headings = ["size", "of maximum", "offered", "received", "lost"];
    Grid::new(&headings, rows, 1)
}

/// Returns the table of the longest bursts without loss.
pub(crate) fn burst_table(capacity: &Capacity) -> Option<Grid> {
    let burst_row = |size: &SizeCapacity| {
        let result = size.back_to_back.as_ref()?;
        let more = if result.unlimited { "more than " } else { "" };
        let star = if result.at_line_rate == Some(false) {
            " *"
        } else {
            ""
        };
        Some(vec![
            strip_control_characters(&size.size).into_owned(),
            format!("{more}{}", format_count(result.frames as u64)),
            format!("{}{star}", format_rate(result.burst_fps)),
            or_unknown(result.buffer_ns, |time| format_nanos(time as f64)),
        ])
    };
    let rows: Vec<_> = capacity.sizes.iter().filter_map(burst_row).collect();
    let headings = ["size", "longest burst", "at", "buffer"];
    Grid::new(&headings, rows, 1)
}

/// Returns explanations of results that are not limits of the device.
pub(crate) fn result_notes(capacity: &Capacity) -> Vec<&'static str> {
    let stopped_by = |reason: SearchEnd| {
        let mut values = capacity.sizes.iter().flat_map(|size| &size.throughput);
        values.any(|values| values.stopped_by == reason)
    };
    let any_burst = |condition: fn(&BackToBackResult) -> bool| {
        let mut values = capacity
            .sizes
            .iter()
            .filter_map(|size| size.back_to_back.as_ref());
        values.any(condition)
    };
    let sentences = [
        (
            stopped_by(SearchEnd::Generator),
            "Stopped by the generator: the device may carry more; the limit is this tool (tool-limit).",
        ),
        (
            stopped_by(SearchEnd::Line),
            "Stopped by the line: the device carries the full line rate.",
        ),
        (
            stopped_by(SearchEnd::MinimumRate),
            "Stopped by the minimum rate: no frame arrived, even at one frame per trial.",
        ),
        (
            stopped_by(SearchEnd::Trials),
            "Stopped by trials: the received rate varies too much; use longer trials or --tries.",
        ),
        (
            capacity
                .sizes
                .iter()
                .flat_map(|size| &size.throughput)
                .any(|values| describe_contradiction(values).is_some()),
            "Contradicted: a later trial at the same or a lower load lost more than the goal, so \
             the device does not always carry this rate (contradicted).",
        ),
        (
            (capacity.sizes.iter())
                .any(|size| size.throughput.iter().any(|values| values.disturbed)),
            "Disturbed: the lowest failed load failed only in trials in which this host was late, \
             so the device may carry more (trials-disturbed).",
        ),
        (
            (capacity.sizes.iter())
                .flat_map(|size| &size.trials)
                .any(|trial| trial.test == "throughput" && trial.queued.is_some()),
            "Some trials ended while a queue on the path was still filling. They count as failed, although \
             no frame was lost while the queue had space.",
        ),
        (
            stopped_by(SearchEnd::NothingSent),
            "Nothing sent: no frame left the port, so there is no result about the device.",
        ),
        (
            stopped_by(SearchEnd::Interrupted),
            "Interrupted: the bounds are those known at that time.",
        ),
        (
            (capacity.sizes.iter()).any(|size| {
                let missed_loads = size.frame_loss.iter().map(|at| at.missed_intended_fps);
                let mut missed_loads_of_size =
                    missed_loads.chain(size.latency.iter().map(|at| at.missed_intended_fps));
                missed_loads_of_size.any(|missed| missed.is_some())
            }),
            "A star marks an offered load below the intended load, because the generator could not send \
             faster: loss and delay belong to the lower load (tool-limit).",
        ),
        (
            capacity.line_bps.is_none() && any_burst(|_| true),
            "The line rate is unknown: bursts were sent as fast as the generator could (set --line-rate).",
        ),
        (
            any_burst(|values| values.at_line_rate == Some(false)),
            "A star marks bursts that were sent below the line rate: the result holds for the rate in the \
             table, and the device may do worse with denser bursts (tool-limit).",
        ),
    ];
    let applicable = sentences.into_iter().filter(|(holds, _)| *holds);
    applicable.map(|(_, sentence)| sentence).collect()
}

/// Returns the table of all trials in order.
pub(crate) fn trial_table(capacity: &Capacity) -> Option<Grid> {
    let trials = capacity.sizes.iter().flat_map(|size| &size.trials);
    let rows = trials.map(|trial| {
        vec![
            trial.number.to_string(),
            strip_control_characters(&trial.test).into_owned(),
            strip_control_characters(&trial.size).into_owned(),
            or_unknown(trial.intended_fps, format_per_second),
            format_rate(trial.offered_fps),
            format_nanos(trial.duration_ns as f64),
            format_rate(trial.forwarding_fps),
            format_share(trial.loss_fraction),
            if trial.load_met { "yes" } else { "no" }.to_owned(),
            trial_notes(trial).join(", "),
        ]
    });
    let headings = [
        "trial", "test", "size", "intended", "offered", "for", "received", "lost", "load met",
        "note",
    ];
    Grid::new(&headings, rows.collect(), 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_rate_is_not_reported_as_zero() {
        let headline = |results: &[(Option<f64>, SearchEnd)]| {
            let sizes = results.iter().map(|&(fps, stopped_by)| SizeCapacity {
                size: "64".to_owned(),
                throughput: vec![Throughput {
                    fps,
                    stopped_by: stopped_by.into(),
                    ..Throughput::default()
                }],
                ..SizeCapacity::default()
            });
            let capacity = Capacity {
                sizes: sizes.collect(),
                ..Capacity::default()
            };
            describe_throughput(&capacity).expect("a sentence")
        };
        assert_eq!(
            headline(&[
                (Some(72.5), SearchEnd::Interrupted),
                (None, SearchEnd::Interrupted)
            ]),
            "Without loss pass at least 72.5 /s of 64 B frames, and an unknown rate of 64 B frames."
        );
        assert_eq!(
            headline(&[
                (Some(72.5), SearchEnd::Trials),
                (Some(72.5), SearchEnd::Resolution)
            ]),
            "Without loss pass at least 72.5 /s of 64 B frames, and 72.5 /s of 64 B frames."
        );
        assert_eq!(
            headline(&[(None, SearchEnd::NothingSent)]),
            "Without loss pass an unknown rate of 64 B frames."
        );
        assert_eq!(
            headline(&[(None, SearchEnd::MinimumRate)]),
            "Without loss pass nothing of 64 B frames."
        );
    }
}
