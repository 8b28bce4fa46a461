//! Stages of a round trip: table, timestamp sources, clock errors.

use linerate_record::plan::TimestampLevel;
use linerate_record::record::{Record, RoundTripStage, StagePass};
use linerate_stats::units::{format_count, format_nanos, format_share};

use super::render_note;
use super::table::render_table;
use crate::model;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap};

/// Characters of the longest bar.
const MAX_BAR_CHARS: usize = 18;

/// Renders the stages and how they were measured; `None` for a run without a timestamped pass.
pub(super) fn render_stages(record: &Record, style: &TextStyle) -> Option<String> {
    let pass = record.stage_pass.as_ref()?;
    let mut blocks = Vec::new();
    if !record.stages.is_empty() {
        blocks.push(render_rows(record, pass, style));
    }
    let lines: Vec<_> = wrap(&describe_pass(record, pass), style.width)
        .iter()
        .map(|line| style.paint(PaintRole::Dim, line))
        .collect();
    blocks.push(lines.join("\n"));
    let notes = pass.notes.iter();
    blocks.extend(notes.map(|why| render_note(&strip_control_characters(why), style, style.width)));
    Some(blocks.join("\n"))
}

fn render_rows(record: &Record, pass: &StagePass, style: &TextStyle) -> String {
    let sum_of_medians = pass.sum_of_medians_ns.max(1) as f64;
    let longest = record.stages.iter().map(|stage| stage.p50_ns).max();
    let longest = longest.unwrap_or(1).max(1) as f64;
    let row = |stage: &RoundTripStage, is_substage: bool| {
        let bar = (stage.p50_ns as f64 / longest * MAX_BAR_CHARS as f64).round() as usize;
        let (indent, bar, share) = if is_substage {
            // A part comes from another pass, so it has no share of this pass's sum.
            (
                "  ",
                style.glyph("▒", "-").repeat(bar.min(MAX_BAR_CHARS)),
                String::new(),
            )
        } else {
            let share = format_share(stage.p50_ns as f64 / sum_of_medians);
            ("", style.glyph("█", "#").repeat(bar), share)
        };
        vec![
            format!("{indent}{}", strip_control_characters(&stage.stage)),
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
    render_table(&["stage", "", "share", "p50", "p90", "p99"], rows, 2, style)
}

/// Describes how the stages were measured.
pub(crate) fn describe_pass(record: &Record, pass: &StagePass) -> String {
    let mut text = match &pass.rtt_ns {
        None => "no round trip of the timestamped pass has all timestamps".to_owned(),
        Some(rtt) => format!(
            "stages of {} timestamped round trips ({} timestamps), p50 {}",
            format_count(pass.round_trips),
            timestamp_sources(record),
            format_nanos(rtt.p50 as f64)
        ),
    };
    if pass.incomplete > 0 {
        text.push_str(&format!(
            " ({} without all timestamps are excluded)",
            format_count(pass.incomplete)
        ));
    }
    if let Some(timestamp_cost) = pass.timestamp_overhead_ns {
        let size = format_nanos(timestamp_cost.unsigned_abs() as f64);
        // With this caveat most of the difference has another cause.
        let has_unlike_caveat = record
            .validity
            .iter()
            .any(|doubt| doubt.id == "stages-unlike");
        text.push_str(&if timestamp_cost >= 0 && has_unlike_caveat {
            format!(
                "; that pass was {size} slower than the run, which is more than timestamps cost: see \
                 stages-unlike"
            )
        } else if timestamp_cost >= 0 {
            format!("; timestamping cost {size}, which is not part of the figures above")
        } else {
            format!("; the pass without timestamps was {size} slower: the load of the machine changed")
        });
    }
    if let Some(tracing_cost) = pass.tracing_overhead_ns.filter(|&cost| cost >= 0)
        && record.stages.iter().any(|stage| !stage.parts.is_empty())
    {
        text.push_str(&format!(
            "; indented parts come from a pass that also traced the scheduler and was {} slower; they do not add up to their stage",
            format_nanos(tracing_cost as f64)
        ));
    }
    text.push_str(&describe_clock_error(&record.stages));
    text
}

/// Describes the error of the clock offsets; empty if a single clock was used.
fn describe_clock_error(stages: &[RoundTripStage]) -> String {
    let by_device = stages
        .iter()
        .any(|stage| stage.timestamp_source == "hardware");
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
fn timestamp_sources(record: &Record) -> String {
    let mut kinds: Vec<_> = (record.stages.iter())
        .map(|stage| strip_control_characters(&stage.timestamp_source).into_owned())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" and ")
}

/// Renders the work of the receive drivers, if it was requested.
pub(super) fn render_receive_drivers(record: &Record, style: &TextStyle) -> Option<String> {
    let work = &record.timeline.as_ref()?.driver;
    if work.is_empty() {
        let is_requested = record.plan.timestamps == TimestampLevel::Driver;
        return is_requested.then(|| {
            let text = "receive driver: unknown, the kernel's tracepoints could not be read";
            wrap(text, style.width).join("\n")
        });
    }
    let rows = work.iter().map(|work| {
        let (period, duration) = (&work.period_ns, &work.duration_ns);
        vec![
            model::role_name(work.role).to_owned(),
            format_nanos(period.p50 as f64),
            format_nanos(period.p99 as f64),
            format_nanos(duration.p50 as f64),
            format_nanos(duration.p99 as f64),
        ]
    });
    Some(render_table(
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
    fn clock_errors_are_described() {
        let stage = |stamps: &str, clock_error_ns| RoundTripStage {
            timestamp_source: stamps.to_owned(),
            clock_error_ns,
            ..RoundTripStage::default()
        };
        let host_clock = stage("software", None);
        for (stages, expected) in [
            (vec![host_clock.clone()], ""),
            (
                vec![host_clock.clone(), stage("software", Some(4_000))],
                "; the offset of the hosts' clocks",
            ),
            (
                vec![
                    stage("hardware", Some(300)),
                    host_clock,
                    stage("hardware", Some(650)),
                ],
                "; clock offsets of devices and hosts are known to 650 ns",
            ),
        ] {
            let text = describe_clock_error(&stages);
            assert!(
                text.starts_with(expected) && text.is_empty() == expected.is_empty(),
                "{text}"
            );
        }
    }
}
