//! Stages of a round trip as text: table with bars, notes, work of the receive drivers.

use linerate_record::plan::TimestampLevel;
use linerate_record::record::{Record, RoundTripStage, StagePass};
use linerate_stats::units::{format_nanos, format_share};

use super::render_note;
use super::table::render_table;
use crate::stages::describe_pass;
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
            work.role.as_str().to_owned(),
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
