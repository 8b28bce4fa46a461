//! Where the time of a round trip went: a stacked bar, its table, and a picture of the latest trips.

use std::collections::BTreeMap;
use std::fmt::Write;

use linerate_metric::facts::Role;
use linerate_metric::record::{Record, Stage};
use linerate_metric::timeline::{Lane, Slice, Timeline};
use linerate_metric::units::{format_nanos, format_share};

use super::pretty;
use crate::figures;
use crate::svg::{NARROW, Size, WIDE, escape};
use crate::text::pass_words;

/// Round trips that the picture shows.
const TRIPS: u64 = 3;

/// Stages, and the picture where there is one; empty when nobody asked.
pub(super) fn section(run: &Record) -> String {
    let picture = run.timeline.as_ref().map(picture).unwrap_or_default();
    let Some(pass) = &run.stage_pass else {
        return picture;
    };
    let mut out = String::from("<h3>Where the time of a round trip went</h3>\n");
    if !run.stages.is_empty() {
        out.push_str("<figure class=\"stages\"><div class=\"canvas\">");
        for size in [WIDE, NARROW] {
            out.push_str(&stacked(&run.stages, size));
        }
        out.push_str("</div></figure>\n");
        out.push_str(&table(&run.stages));
    }
    let words = escape(&pretty(&pass_words(run, pass)));
    writeln!(out, "<p class=\"muted\">{words}</p>").expect("a string takes all that is written");
    for note in &pass.notes {
        let note = escape(note);
        writeln!(out, "<p class=\"callout\"><b>Note.</b> {note}</p>")
            .expect("a string takes all that is written");
    }
    out.push_str(&picture);
    out
}

/// The colour of a stage: its end, or the path.
fn color(stage: &str) -> usize {
    if stage.starts_with("client-") {
        0
    } else if stage.starts_with("server-") {
        1
    } else {
        2
    }
}

/// One bar with a part for each stage, in the order in which a trip passes them.
fn stacked(stages: &[Stage], size: Size) -> String {
    const TOP: f64 = 20.0;
    const BAR: f64 = 34.0;
    let whole: u64 = stages.iter().map(|stage| stage.p50_ns).sum();
    let scale = size.width / whole.max(1) as f64;
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
            color(&stage.stage),
            escape(&stage.stage),
            escape(&pretty(&format_nanos(stage.p50_ns as f64))),
            (width - 1.0).max(0.5),
            // Neighbours of one end are told apart by their strength.
            if position % 2 == 0 { "1" } else { "0.72" },
        )
        .expect("a string takes all that is written");
        // A name is written where its part has room for it.
        let name = stage.stage.split_once('-').map_or("", |(_, name)| name);
        if width > name.len() as f64 * 6.7 + 6.0 {
            write!(
                out,
                "<text class=\"mid\" x=\"{:.1}\" y=\"14\">{}</text>",
                x + width / 2.0,
                escape(name)
            )
            .expect("a string takes all that is written");
        }
        x += width;
    }
    out.push_str("</svg>");
    out
}

fn table(stages: &[Stage]) -> String {
    let whole: u64 = stages.iter().map(|stage| stage.p50_ns).sum();
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>stage</th><th>share</th><th>p50</th><th>p90</th><th>p99</th><th class=\"text\">stamps</th></tr></thead><tbody>",
    );
    let with_parts = stages.iter().flat_map(|stage| {
        let parts = stage.parts.iter().map(|part| (part, true));
        std::iter::once((stage, false)).chain(parts)
    });
    for (stage, is_part) in with_parts {
        let time = |ns: u64| escape(&pretty(&format_nanos(ns as f64)));
        write!(
            out,
            "<tr class=\"c{}{}\"><th scope=\"row\"><i class=\"swatch\"></i>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            color(&stage.stage),
            if is_part { " part" } else { "" },
            escape(&stage.stage),
            if is_part {
                String::new()
            } else {
                escape(&pretty(&format_share(stage.p50_ns as f64 / whole.max(1) as f64)))
            },
            time(stage.p50_ns),
            time(stage.p90_ns),
            time(stage.p99_ns),
            escape(&stage.stamps)
        )
        .expect("a string takes all that is written");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// A row of the picture: whose, which, and on which processor or in which thread.
type RowKey = (Lane, Role, Option<u32>);

/// Rows in the order in which a question passes them: its thread, its kernel, the other kernel, the
/// other thread; then the drivers.
fn order(key: &RowKey) -> (u8, u32) {
    let (lane, role, number) = key;
    let place = match (lane, role) {
        (Lane::Thread, Role::Client) => 0,
        (Lane::Kernel, Role::Client) => 1,
        (Lane::Kernel, Role::Server) => 2,
        (Lane::Thread, Role::Server) => 3,
        (Lane::Driver, Role::Client) => 4,
        (Lane::Driver, Role::Server) => 5,
    };
    (place, number.unwrap_or(0))
}

fn name(key: &RowKey) -> String {
    let (lane, role, cpu) = key;
    let role = figures::role(*role);
    match (lane, cpu) {
        (Lane::Thread, None) => format!("{role} thread"),
        (Lane::Thread, Some(number)) => format!("{role} thread {}", number + 1),
        (Lane::Kernel, _) => format!("{role} kernel"),
        (Lane::Driver, Some(cpu)) => format!("{role} receive work, cpu {cpu}"),
        (Lane::Driver, None) => format!("{role} receive work"),
    }
}

/// The latest trips on one time axis.
fn picture(timeline: &Timeline) -> String {
    let mut latest = timeline.clone();
    latest.keep_last(TRIPS);
    let (Some(from), Some(to)) = (
        latest.slices.iter().map(|slice| slice.start_ns).min(),
        latest.slices.iter().map(|slice| slice.end_ns).max(),
    ) else {
        return String::new();
    };
    let mut rows: BTreeMap<(u8, u32), (RowKey, Vec<&Slice>)> = BTreeMap::new();
    for slice in &latest.slices {
        let key = (slice.lane, slice.role, slice.cpu.or(slice.thread));
        let row = rows.entry(order(&key)).or_insert((key, Vec::new()));
        row.1.push(slice);
    }
    let what = if latest.slices.iter().any(|slice| slice.trip.is_some()) {
        format!("The last {TRIPS} stamped round trips")
    } else {
        "The last calls".to_owned()
    };
    let mut out = format!(
        "<h3>{what}, {}</h3>\n<figure class=\"timeline\"><div class=\"canvas\">",
        escape(&pretty(&format_nanos((to - from) as f64)))
    );
    for size in [WIDE, NARROW] {
        out.push_str(&lanes(rows.values(), from, to, size));
    }
    out.push_str("</div></figure>\n");
    out
}

fn lanes<'a>(
    rows: impl Iterator<Item = &'a (RowKey, Vec<&'a Slice>)>,
    from: u64,
    to: u64,
    size: Size,
) -> String {
    const ROW: f64 = 44.0;
    const BAR: f64 = 18.0;
    let scale = size.width / (to - from).max(1) as f64;
    let (mut body, mut top) = (String::new(), 0.0);
    for (key, slices) in rows {
        write!(
            body,
            "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text><rect class=\"track\" x=\"0\" y=\"{:.1}\" width=\"{}\" height=\"{BAR}\"/>",
            top + 14.0,
            escape(&name(key)),
            top + 20.0,
            size.width
        )
        .expect("a string takes all that is written");
        let color = match key {
            (Lane::Driver, _, _) => 3,
            (_, Role::Client, _) => 0,
            (_, Role::Server, _) => 1,
        };
        for slice in slices {
            let (x, width) = (
                (slice.start_ns - from) as f64 * scale,
                (slice.end_ns - slice.start_ns) as f64 * scale,
            );
            // Waiting is paler than work.
            let opacity = match slice.name.as_str() {
                "receive" | "wake-up" => "0.35",
                name if name.ends_with(" waited") || name.ends_with(" full") => "0.35",
                _ => "0.9",
            };
            let trip = slice
                .trip
                .map_or(String::new(), |trip| format!(" of {trip}"));
            write!(
                body,
                "<g class=\"c{color}\"><title>{}{trip}: {}</title><rect class=\"bar\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" opacity=\"{opacity}\"/></g>",
                escape(&slice.name),
                escape(&pretty(&format_nanos((slice.end_ns - slice.start_ns) as f64))),
                top + 20.0,
                width.max(0.8),
            )
            .expect("a string takes all that is written");
            if width > slice.name.len() as f64 * 6.7 + 8.0 {
                write!(
                    body,
                    "<text class=\"mid note\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    x + width / 2.0,
                    top + 33.0,
                    escape(&slice.name)
                )
                .expect("a string takes all that is written");
            }
        }
        top += ROW;
    }
    format!(
        "<svg class=\"{}\" viewBox=\"0 0 {} {top}\" role=\"img\" aria-label=\"Timeline of the last round trips\">{body}</svg>",
        size.class, size.width
    )
}
