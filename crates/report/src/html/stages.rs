//! Stages of a round trip: stacked bar, table, timeline of the last round trips.

use std::fmt::Write;

use linerate_record::record::{Record, RoundTripStage};
use linerate_stats::units::{format_nanos, format_share};

use super::{timeline, with_micro_sign};
use crate::stages::describe_pass;
use crate::svg::{DrawingSize, NARROW_SIZE, WIDE_SIZE, escape_markup};

/// Renders stages and timeline; empty if neither was recorded.
pub(super) fn stage_section(run: &Record) -> String {
    let timeline_html = run
        .timeline
        .as_ref()
        .map(timeline::render_timeline)
        .unwrap_or_default();
    let Some(pass) = &run.stage_pass else {
        return timeline_html;
    };
    let mut out = String::from("<h3>Stages of a round trip</h3>\n");
    if !run.stages.is_empty() {
        out.push_str(&stage_bar(run));
    }
    let description = escape_markup(&with_micro_sign(&describe_pass(run, pass)));
    writeln!(out, "<p class=\"muted\">{description}</p>").expect("writing to a String cannot fail");
    for note in &pass.notes {
        let note = escape_markup(note);
        writeln!(out, "<p class=\"callout\"><b>Note.</b> {note}</p>")
            .expect("writing to a String cannot fail");
    }
    out.push_str(&timeline_html);
    out
}

/// Renders the stacked bar and its table; empty for a run without stages.
pub(super) fn stage_bar(run: &Record) -> String {
    if run.stages.is_empty() {
        return String::new();
    }
    let bars = [WIDE_SIZE, NARROW_SIZE].map(|size| stacked_bar(&run.stages, size));
    format!(
        "<figure class=\"stages\"><div class=\"canvas\">{}</div></figure>\n{}",
        bars.concat(),
        stage_table(&run.stages)
    )
}

/// Colour of a stage: client, server or path.
fn stage_color(stage: &str) -> usize {
    if stage.starts_with("client-") {
        0
    } else if stage.starts_with("server-") {
        1
    } else {
        2
    }
}

/// Renders one bar with a part per stage, in path order.
fn stacked_bar(stages: &[RoundTripStage], size: DrawingSize) -> String {
    const TOP: f64 = 20.0;
    const BAR: f64 = 34.0;
    let total_ns: u64 = stages.iter().map(|stage| stage.p50_ns).sum();
    let scale = size.width / total_ns.max(1) as f64;
    let mut out = format!(
        "<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Stages of a round trip\">",
        size.class,
        size.width,
        TOP + BAR + 4.0
    );
    let mut x = 0.0;
    for (position, stage) in stages.iter().enumerate() {
        let width = stage.p50_ns as f64 * scale;
        write!(
            out,
            "<g class=\"c{}\"><title>{}: {}</title><rect class=\"bar\" x=\"{x:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{BAR}\" opacity=\"{}\"/></g>",
            stage_color(&stage.stage),
            escape_markup(&stage.stage),
            escape_markup(&with_micro_sign(&format_nanos(stage.p50_ns as f64))),
            (width - 1.0).max(0.5),
            // Adjacent stages of one host differ in opacity.
            if position % 2 == 0 { "1" } else { "0.72" },
        )
        .expect("writing to a String cannot fail");
        // The name is drawn only if it fits.
        let name = stage.stage.replace('-', " ");
        if width > name.len() as f64 * 6.7 + 6.0 {
            write!(
                out,
                "<text class=\"mid\" x=\"{:.1}\" y=\"14\">{}</text>",
                x + width / 2.0,
                escape_markup(&name)
            )
            .expect("writing to a String cannot fail");
        }
        x += width;
    }
    out.push_str("</svg>");
    out
}

fn stage_table(stages: &[RoundTripStage]) -> String {
    let total_ns: u64 = stages.iter().map(|stage| stage.p50_ns).sum();
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>stage</th><th>share</th><th>p50</th><th>p90</th><th>p99</th><th class=\"text\">timestamps</th></tr></thead><tbody>",
    );
    let with_parts = stages.iter().flat_map(|stage| {
        let parts = stage.parts.iter().map(|part| (part, true));
        std::iter::once((stage, false)).chain(parts)
    });
    for (stage, is_part) in with_parts {
        let time = |ns: u64| escape_markup(&with_micro_sign(&format_nanos(ns as f64)));
        write!(
            out,
            "<tr class=\"c{}{}\"><th scope=\"row\"><i class=\"swatch\"></i>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            stage_color(&stage.stage),
            if is_part { " part" } else { "" },
            escape_markup(&stage.stage),
            if is_part {
                String::new()
            } else {
                escape_markup(&with_micro_sign(&format_share(stage.p50_ns as f64 / total_ns.max(1) as f64)))
            },
            time(stage.p50_ns),
            time(stage.p90_ns),
            time(stage.p99_ns),
            escape_markup(&stage.timestamp_source)
        )
        .expect("writing to a String cannot fail");
    }
    out.push_str("</tbody></table></div>\n");
    out
}
