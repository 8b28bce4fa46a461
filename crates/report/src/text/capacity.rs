//! Tables of a capacity measurement (RFC 2544).

use linerate_metric::capacity::{BackToBack, Capacity, CapacityTrial, SizeCapacity, Throughput};
use linerate_metric::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use super::table::Grid;
use crate::phrases::{duration, or_unknown};
use crate::style::{Paint, Style, clean, wrap};

/// Describes a trial: `trial 3, throughput, 64: 52.0 k/s for 1.00 s, 48.2 k/s received, 7.30 %
/// lost`. When the offered load missed the intended load, both are shown.
#[must_use]
pub fn trial(trial: &CapacityTrial) -> String {
    let offered = rate(trial.offered_fps);
    let load = match trial.asked_fps {
        Some(asked) if !trial.kept => {
            format!("{offered} of {} intended", format_per_second(asked))
        }
        Some(_) => offered,
        None => format!("{offered} (maximum)"),
    };
    let arrived = match trial.forwarding_fps > 0.0 {
        true => format!(
            "{} received, {} lost",
            format_per_second(trial.forwarding_fps),
            format_share(trial.loss_fraction)
        ),
        false => "nothing received".to_owned(),
    };
    let mut line = format!(
        "trial {}, {}, {}: {load} for {}, {arrived}",
        trial.number,
        trial.test,
        clean(&trial.size),
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
    if trial.again {
        notes.push("repeated: this host was late".to_owned());
    }
    notes
}

/// Renders all results, one table per test.
pub(crate) fn capacity(capacity: &Capacity, style: &Style) -> String {
    let mut blocks = vec![style.paint(Paint::Bold, &title(capacity))];
    let grids = [throughput, latency, frame_loss, bursts].map(|grid| grid(capacity));
    blocks.extend(grids.into_iter().flatten().map(|grid| grid.text(style)));
    let lines: Vec<String> = endings(capacity)
        .iter()
        .flat_map(|sentence| wrap(sentence, style.width))
        .collect();
    blocks.extend((!lines.is_empty()).then(|| lines.join("\n")));
    blocks.join("\n\n")
}

/// Summarises the throughput: `Without loss pass 1.49 M/s of 64 B frames and 81.3 k/s of 1518 B
/// frames.`
pub(crate) fn headline(capacity: &Capacity) -> Option<String> {
    let found: Vec<(String, &Throughput)> = (capacity.sizes.iter())
        .filter_map(|size| Some((clean(&size.size).into_owned(), size.throughput.first()?)))
        .collect();
    let (_, strictest) = found.first()?;
    let goal = match strictest.loss_goal > 0.0 {
        true => format!("With up to {} loss", format_share(strictest.loss_goal)),
        false => "Without loss".to_owned(),
    };
    let rate = |(size, found): &(String, &Throughput)| {
        let of = match size.bytes().all(|digit| digit.is_ascii_digit()) {
            true => format!("{size} B frames"),
            false => size.clone(),
        };
        // The range between this rate and the lowest failed rate was not searched.
        let is_bound = ["generator", "interrupted", "trials"].contains(&found.stopped_by.as_str());
        let rate = match found.fps {
            Some(fps) if is_bound => format!("at least {}", format_per_second(fps)),
            Some(fps) => format_per_second(fps),
            None if found.stopped_by == "floor" => "nothing".to_owned(),
            // The search ended before any trial passed or failed.
            None => "an unknown rate".to_owned(),
        };
        let but =
            later_loss(found).map_or_else(String::new, |later| format!(" (but later {later})"));
        format!("{rate} of {of}{but}")
    };
    Some(match &found[..] {
        [only] => format!("{goal} pass {}.", rate(only)),
        [first, .., last] => format!("{goal} pass {}, and {}.", rate(first), rate(last)),
        [] => return None,
    })
}

/// Describes the measurement: `ring:0 to ring:0: trials of 5 s, resolution 0.5 %`.
pub(crate) fn title(capacity: &Capacity) -> String {
    format!(
        "{} to {}: trials of {}, resolution {}",
        clean(&capacity.send),
        clean(&capacity.receive),
        duration(capacity.trial_ns),
        format_share(capacity.resolution)
    )
}

/// Names the loss goal: `NDR` (no loss), `PDR 0.1 %` (partial drop rate).
pub(crate) fn goal(throughput: &Throughput) -> String {
    match throughput.loss_goal > 0.0 {
        true => format!("PDR {}", format_share(throughput.loss_goal)),
        false => "NDR".to_owned(),
    }
}

/// Returns the table of the highest rate per frame size and loss goal.
pub(crate) fn throughput(capacity: &Capacity) -> Option<Grid> {
    let mut rows = Vec::new();
    for size in &capacity.sizes {
        for found in &size.throughput {
            rows.push(vec![
                clean(&size.size).into_owned(),
                goal(found),
                or_unknown(found.fps, format_per_second),
                or_unknown(found.failed_fps, format_per_second),
                or_unknown(found.l2_bps, format_bit_rate),
                or_unknown(found.l1_bps, format_bit_rate),
                or_unknown(found.loss_fraction, format_share),
                ended(found),
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
fn rate(fps: f64) -> String {
    or_unknown(Some(fps).filter(|&fps| fps > 0.0), format_per_second)
}

/// Describes a later trial that contradicts the throughput: `0.71 % were lost at 243 k/s`.
fn later_loss(found: &Throughput) -> Option<String> {
    let (fps, loss) = (found.contradicted_fps?, found.contradicted_loss?);
    Some(format!(
        "{} were lost at {}",
        format_share(loss),
        format_per_second(fps)
    ))
}

fn ended(found: &Throughput) -> String {
    let word = clean_word(&found.stopped_by);
    let mut words = vec![word];
    words.extend(found.contradicted_fps.map(|_| "contradicted"));
    words.extend(found.disturbed.then_some("disturbed"));
    words.join(", ")
}

/// Maps a keyword of a record to a known one, since records can come from anywhere.
fn clean_word(word: &str) -> &str {
    const KNOWN: &[&str] = &[
        "resolution",
        "line",
        "generator",
        "floor",
        "trials",
        "nothing-sent",
        "interrupted",
    ];
    KNOWN
        .iter()
        .find(|known| **known == word)
        .copied()
        .unwrap_or("?")
}

/// Formats an offered load, with a star if the intended load was not reached.
fn starred(offered_fps: f64, not_offered_fps: Option<f64>) -> String {
    let star = if not_offered_fps.is_some() { " *" } else { "" };
    format!("{}{star}", rate(offered_fps))
}

/// Returns the table of delays at shares of the throughput.
pub(crate) fn latency(capacity: &Capacity) -> Option<Grid> {
    let mut rows = Vec::new();
    for size in &capacity.sizes {
        for at in &size.latency {
            let mut row = vec![
                clean(&size.size).into_owned(),
                format_share(at.share),
                starred(at.offered_fps, at.not_offered_fps),
                format_share(at.loss_fraction),
            ];
            let times = at
                .one_way_delay_ns
                .map(|times| [times.min, times.p50, times.p99, times.max].map(|time| time as f64));
            for place in 0..4 {
                row.push(or_unknown(times.map(|times| times[place]), format_nanos));
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
pub(crate) fn frame_loss(capacity: &Capacity) -> Option<Grid> {
    let mut rows = Vec::new();
    for size in &capacity.sizes {
        for at in &size.frame_loss {
            rows.push(vec![
                clean(&size.size).into_owned(),
                format_share(at.share),
                starred(at.offered_fps, at.not_offered_fps),
                format_per_second(at.forwarding_fps),
                format_share(at.loss_fraction),
            ]);
        }
    }
    let headings = ["size", "of maximum", "offered", "received", "lost"];
    Grid::new(&headings, rows, 1)
}

/// Returns the table of the longest bursts without loss.
pub(crate) fn bursts(capacity: &Capacity) -> Option<Grid> {
    let row = |size: &SizeCapacity| {
        let found = size.back_to_back.as_ref()?;
        let more = if found.unlimited { "more than " } else { "" };
        let star = if found.at_line_rate == Some(false) {
            " *"
        } else {
            ""
        };
        Some(vec![
            clean(&size.size).into_owned(),
            format!("{more}{}", format_count(found.frames as u64)),
            format!("{}{star}", rate(found.burst_fps)),
            or_unknown(found.buffer_ns, |time| format_nanos(time as f64)),
        ])
    };
    let rows: Vec<_> = capacity.sizes.iter().filter_map(row).collect();
    let headings = ["size", "longest burst", "at", "buffer"];
    Grid::new(&headings, rows, 1)
}

/// Returns explanations of results that are not limits of the device.
pub(crate) fn endings(capacity: &Capacity) -> Vec<&'static str> {
    let by = |word: &str| {
        let mut found = capacity.sizes.iter().flat_map(|size| &size.throughput);
        found.any(|found| found.stopped_by == word)
    };
    let bursts = |is: fn(&BackToBack) -> bool| {
        let mut found = capacity
            .sizes
            .iter()
            .filter_map(|size| size.back_to_back.as_ref());
        found.any(is)
    };
    let sentences = [
        (
            by("generator"),
            "Stopped by the generator: the device may carry more; the limit is this tool (tool-limit).",
        ),
        (
            by("line"),
            "Stopped by the line: the device carries the full line rate.",
        ),
        (
            by("floor"),
            "Stopped by the floor: not even one frame per trial passed.",
        ),
        (
            by("trials"),
            "Stopped by trials: the received rate varies too much; use longer trials or --tries.",
        ),
        (
            capacity
                .sizes
                .iter()
                .flat_map(|size| &size.throughput)
                .any(|found| later_loss(found).is_some()),
            "Contradicted: a later trial at the same or a lower load lost more than the goal, so \
             the device does not always carry this rate (contradicted).",
        ),
        (
            (capacity.sizes.iter()).any(|size| size.throughput.iter().any(|found| found.disturbed)),
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
            by("nothing-sent"),
            "Nothing sent: no frame left the port, so there is no result about the device.",
        ),
        (
            by("interrupted"),
            "Interrupted: the bounds are those known at that time.",
        ),
        (
            (capacity.sizes.iter()).any(|size| {
                let losses = size.frame_loss.iter().map(|at| at.not_offered_fps);
                let mut all = losses.chain(size.latency.iter().map(|at| at.not_offered_fps));
                all.any(|asked| asked.is_some())
            }),
            "A star marks an offered load below the intended load, because the generator could not send \
             faster: loss and delay belong to the lower load (tool-limit).",
        ),
        (
            capacity.line_bps.is_none() && bursts(|_| true),
            "The line rate is unknown: bursts were sent as fast as the generator could (set --line-rate).",
        ),
        (
            bursts(|found| found.at_line_rate == Some(false)),
            "A star marks bursts that were sent below the line rate: the result holds for the rate in the \
             table, and the device may do worse with denser bursts (tool-limit).",
        ),
    ];
    let known = sentences.into_iter().filter(|(holds, _)| *holds);
    known.map(|(_, sentence)| sentence).collect()
}

/// Returns the table of all trials in order.
pub(crate) fn trials(capacity: &Capacity) -> Option<Grid> {
    let trials = capacity.sizes.iter().flat_map(|size| &size.trials);
    let rows = trials.map(|trial| {
        vec![
            trial.number.to_string(),
            clean(&trial.test).into_owned(),
            clean(&trial.size).into_owned(),
            or_unknown(trial.asked_fps, format_per_second),
            rate(trial.offered_fps),
            format_nanos(trial.duration_ns as f64),
            rate(trial.forwarding_fps),
            format_share(trial.loss_fraction),
            if trial.kept { "yes" } else { "no" }.to_owned(),
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
    use linerate_metric::capacity::{DelayAt, LossAt};

    #[test]
    fn a_load_that_was_not_offered_has_a_star() {
        let found = |not_offered_fps| Capacity {
            sizes: vec![SizeCapacity {
                size: "64".to_owned(),
                latency: vec![DelayAt {
                    share: 0.9,
                    offered_fps: 5000.0,
                    ..DelayAt::default()
                }],
                frame_loss: vec![LossAt {
                    share: 1.0,
                    offered_fps: 5000.0,
                    not_offered_fps,
                    ..LossAt::default()
                }],
                ..SizeCapacity::default()
            }],
            line_bps: Some(1_000_000_000),
            ..Capacity::default()
        };
        let plain = capacity(&found(None), &Style::PLAIN);
        assert!(!plain.contains('*'), "{plain}");
        let starred = capacity(&found(Some(10_000.0)), &Style::PLAIN);
        assert!(starred.contains("5.00 k/s *"), "{starred}");
        assert!(starred.contains("A star marks"), "{starred}");
    }

    #[test]
    fn what_was_not_found_out_is_not_said_to_be_nothing() {
        let headline = |ends: &[(Option<f64>, &str)]| {
            let sizes = ends.iter().map(|&(fps, stopped_by)| SizeCapacity {
                size: "64".to_owned(),
                throughput: vec![Throughput {
                    fps,
                    stopped_by: stopped_by.to_owned(),
                    ..Throughput::default()
                }],
                ..SizeCapacity::default()
            });
            let capacity = Capacity {
                sizes: sizes.collect(),
                ..Capacity::default()
            };
            super::headline(&capacity).expect("a sentence")
        };
        assert_eq!(
            headline(&[(Some(72.5), "interrupted"), (None, "interrupted")]),
            "Without loss pass at least 72.5 /s of 64 B frames, and an unknown rate of 64 B frames."
        );
        assert_eq!(
            headline(&[(Some(72.5), "trials"), (Some(72.5), "resolution")]),
            "Without loss pass at least 72.5 /s of 64 B frames, and 72.5 /s of 64 B frames."
        );
        assert_eq!(
            headline(&[(None, "nothing-sent")]),
            "Without loss pass an unknown rate of 64 B frames."
        );
        assert_eq!(
            headline(&[(None, "floor")]),
            "Without loss pass nothing of 64 B frames."
        );
    }
}
