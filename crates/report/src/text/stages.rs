//! Stages of a round trip: table, timestamp sources, clock errors.

use linerate_metric::plan::Stamping;
use linerate_metric::record::{Record, Stage, StagePass};
use linerate_metric::units::{format_count, format_nanos, format_share};

use super::sentence_note;
use super::table::table;
use crate::style::{Paint, Style, clean, wrap};

/// Characters of the longest bar.
const BAR: usize = 18;

/// Renders the stages and how they were measured; `None` for a run without a timestamped pass.
pub(super) fn stages(record: &Record, style: &Style) -> Option<String> {
    let pass = record.stage_pass.as_ref()?;
    let mut blocks = Vec::new();
    if !record.stages.is_empty() {
        blocks.push(rows(record, pass, style));
    }
    let lines: Vec<_> = wrap(&pass_words(record, pass), style.width)
        .iter()
        .map(|line| style.paint(Paint::Dim, line))
        .collect();
    blocks.push(lines.join("\n"));
    let notes = pass.notes.iter();
    blocks.extend(notes.map(|why| sentence_note(&clean(why), style, style.width)));
    Some(blocks.join("\n"))
}

fn rows(record: &Record, pass: &StagePass, style: &Style) -> String {
    let whole = pass.sum_of_medians_ns.max(1) as f64;
    let longest = record.stages.iter().map(|stage| stage.p50_ns).max();
    let longest = longest.unwrap_or(1).max(1) as f64;
    let row = |stage: &Stage, is_part: bool| {
        let bar = (stage.p50_ns as f64 / longest * BAR as f64).round() as usize;
        let (indent, bar, share) = if is_part {
            // A part comes from another pass, so it has no share of this pass's sum.
            (
                "  ",
                style.glyph("▒", "-").repeat(bar.min(BAR)),
                String::new(),
            )
        } else {
            let share = format_share(stage.p50_ns as f64 / whole);
            ("", style.glyph("█", "#").repeat(bar), share)
        };
        vec![
            format!("{indent}{}", clean(&stage.stage)),
            bar,
            share,
            format_nanos(stage.p50_ns as f64),
            format_nanos(stage.p90_ns as f64),
            format_nanos(stage.p99_ns as f64),
        ]
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for stage in &record.stages {
        rows.push(row(stage, false));
        rows.extend(stage.parts.iter().map(|part| row(part, true)));
    }
    rows.push(vec![
        "sum of medians".to_owned(),
        String::new(),
        String::new(),
        format_nanos(pass.sum_of_medians_ns as f64),
        String::new(),
        String::new(),
    ]);
    table(&["stage", "", "share", "p50", "p90", "p99"], rows, 2, style)
}

/// Describes how the stages were measured.
pub(crate) fn pass_words(record: &Record, pass: &StagePass) -> String {
    let mut text = match &pass.rtt_ns {
        None => "no round trip of the timestamped pass has all timestamps".to_owned(),
        Some(rtt) => format!(
            "stages of {} timestamped round trips ({} timestamps), p50 {}",
            format_count(pass.round_trips),
            stamps(record),
            format_nanos(rtt.p50 as f64)
        ),
    };
    if pass.left_out > 0 {
        text.push_str(&format!(
            " ({} without all timestamps are excluded)",
            format_count(pass.left_out)
        ));
    }
    if let Some(asking) = pass.asking_ns {
        let size = format_nanos(asking.unsigned_abs() as f64);
        // With this caveat most of the difference has another cause.
        let unlike = record
            .validity
            .iter()
            .any(|doubt| doubt.doubt == "stages-unlike");
        text.push_str(&if asking >= 0 && unlike {
            format!(
                "; that pass was {size} slower than the run, which is more than timestamps cost: see \
                 stages-unlike"
            )
        } else if asking >= 0 {
            format!("; timestamping cost {size}, which is not part of the figures above")
        } else {
            format!("; the pass without timestamps was {size} slower: the load of the machine changed")
        });
    }
    if let Some(watching) = pass.watching_ns.filter(|&cost| cost >= 0)
        && record.stages.iter().any(|stage| !stage.parts.is_empty())
    {
        text.push_str(&format!(
            "; indented parts come from a pass that also traced the scheduler and was {} slower; they do not add up to their stage",
            format_nanos(watching as f64)
        ));
    }
    text.push_str(&clock_words(&record.stages));
    text
}

/// Describes the error of the clock offsets; empty if a single clock was used.
fn clock_words(stages: &[Stage]) -> String {
    let by_device = stages.iter().any(|stage| stage.stamps == "hardware");
    let error = stages.iter().filter_map(|stage| stage.clock_error_ns).max();
    let error = error.map(|error| format_nanos(error as f64));
    match (by_device, error) {
        (_, None) => String::new(),
        (false, Some(error)) => {
            format!(
                "; the offset of the hosts' clocks is known to {error}, an error shared by the two path stages"
            )
        }
        (true, Some(error)) => format!(
            "; clock offsets of devices and hosts are known to {error} in the worst stage; adjacent stages have this error with opposite signs"
        ),
    }
}

/// Names the sources of the timestamps.
fn stamps(record: &Record) -> String {
    let mut kinds: Vec<_> = (record.stages.iter())
        .map(|stage| clean(&stage.stamps).into_owned())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" and ")
}

/// Renders the work of the receive drivers, if it was requested.
pub(super) fn drivers(record: &Record, style: &Style) -> Option<String> {
    let work = &record.timeline.as_ref()?.driver;
    if work.is_empty() {
        let asked = record.plan.stamps == Stamping::Driver;
        return asked.then(|| {
            let why = "receive driver: unknown, the kernel's tracepoints could not be read";
            wrap(why, style.width).join("\n")
        });
    }
    let rows = work.iter().map(|work| {
        let (period, duration) = (&work.period_ns, &work.duration_ns);
        vec![
            crate::figures::role(work.role).to_owned(),
            format_nanos(period.p50 as f64),
            format_nanos(period.p99 as f64),
            format_nanos(duration.p50 as f64),
            format_nanos(duration.p99 as f64),
        ]
    });
    Some(table(
        &[
            "receive driver",
            "period p50",
            "p99",
            "duration p50",
            "p99 ",
        ],
        rows.collect(),
        1,
        style,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_are_told() {
        let stage = |stamps: &str, clock_error_ns| Stage {
            stamps: stamps.to_owned(),
            clock_error_ns,
            ..Stage::default()
        };
        let own = stage("software", None);
        for (stages, want) in [
            (vec![own.clone()], ""),
            (
                vec![own.clone(), stage("software", Some(4_000))],
                "; the offset of the hosts' clocks",
            ),
            (
                vec![
                    stage("hardware", Some(300)),
                    own,
                    stage("hardware", Some(650)),
                ],
                "; clock offsets of devices and hosts are known to 650 ns",
            ),
        ] {
            let text = clock_words(&stages);
            assert!(
                text.starts_with(want) && text.is_empty() == want.is_empty(),
                "{text}"
            );
        }
    }
}
