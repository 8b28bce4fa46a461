//! Timeline with a lane for each thread, kernel and driver, drawn from a table of slices.
//!
//! The static drawing shows the last round trips or calls. The script (`timeline.js`) reads the
//! table and shows any part of it at any scale.

use std::collections::BTreeMap;
use std::fmt::Write;

use linerate_metric::facts::Role;
use linerate_metric::timeline::{Lane, Slice, Timeline};
use linerate_metric::units::format_nanos;

use super::pretty;
use crate::figures;
use crate::svg::{NARROW, Size, WIDE, escape};

/// Number of round trips in the initial view.
const TRIPS: u64 = 3;

/// Number of slices on the page, the latest; larger tables are slow to open on a phone.
const KEPT: usize = 600;

/// Height of a lane, and of the bar in it.
const LANE: f64 = 44.0;
const BAR: f64 = 18.0;
const BAR_TOP: f64 = 20.0;
/// Height of the time axis.
const AXIS: f64 = 20.0;
/// Width of a character in a bar.
const CHARACTER: f64 = 6.7;

/// Key of a lane: kind, host, CPU or thread.
type LaneKey = (Lane, Role, Option<u32>);

/// Returns the position of a lane: client thread, client kernel, server kernel, server thread (the
/// path of a request), then drivers.
fn order(key: &LaneKey) -> (u8, u32) {
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

fn key(slice: &Slice) -> LaneKey {
    (slice.lane, slice.role, slice.cpu.or(slice.thread))
}

fn name(key: &LaneKey) -> String {
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

fn color(key: &LaneKey) -> usize {
    match key {
        (Lane::Driver, _, _) => 3,
        (_, Role::Client, _) => 0,
        (_, Role::Server, _) => 1,
    }
}

/// Returns whether a slice is waiting time, which is drawn paler.
fn is_waiting(name: &str) -> bool {
    matches!(name, "receive" | "wake-up") || name.ends_with(" waited") || name.ends_with(" full")
}

/// Lanes of a timeline with their slices; times count from the first slice.
struct Lanes<'a> {
    keys: Vec<LaneKey>,
    slices: Vec<(usize, &'a Slice)>,
    first: u64,
}

impl<'a> Lanes<'a> {
    fn of(slices: &[&'a Slice]) -> Self {
        let lanes: BTreeMap<(u8, u32), LaneKey> = slices
            .iter()
            .map(|slice| (order(&key(slice)), key(slice)))
            .collect();
        let keys: Vec<LaneKey> = lanes.into_values().collect();
        let place = |slice: &Slice| {
            let wanted = order(&key(slice));
            keys.iter().position(|key| order(key) == wanted)
        };
        Self {
            slices: slices
                .iter()
                .filter_map(|slice| Some((place(slice)?, *slice)))
                .collect(),
            first: slices.iter().map(|slice| slice.start_ns).min().unwrap_or(0),
            keys,
        }
    }
}

/// Renders the last round trips or calls on one time axis.
pub(super) fn picture(timeline: &Timeline) -> String {
    let mut latest = timeline.clone();
    latest.keep_last(TRIPS);
    let span = |slices: &mut dyn Iterator<Item = &Slice>| {
        slices.fold(None, |span: Option<(u64, u64)>, slice| {
            let (from, to) = span.unwrap_or((u64::MAX, 0));
            Some((from.min(slice.start_ns), to.max(slice.end_ns)))
        })
    };
    // Slices without a round trip can continue after the last one.
    let of_trips = span(&mut latest.slices.iter().filter(|slice| slice.trip.is_some()));
    let Some((from, to)) = of_trips.or_else(|| span(&mut latest.slices.iter())) else {
        return String::new();
    };
    // Later slices, such as driver work after the last round trip, are left out.
    let until = timeline
        .slices
        .partition_point(|slice| slice.start_ns <= to);
    let kept: Vec<&Slice> = timeline.slices[until.saturating_sub(KEPT)..until]
        .iter()
        .collect();
    let lanes = Lanes::of(&kept);
    let Some((first, last)) = span(&mut kept.iter().copied()) else {
        return String::new();
    };
    // Early slices of the view may be missing if there are more slices than the page keeps.
    let view = (from.max(first) - first, to.max(first) - first);
    let what = if latest.slices.iter().any(|slice| slice.trip.is_some()) {
        format!("The last {TRIPS} timestamped round trips")
    } else {
        "The last calls".to_owned()
    };
    let mut out = format!(
        "<figure class=\"timeline\" data-view=\"{} {}\" data-all=\"{}\">\n<figcaption><h4>{what}</h4>\
         <div class=\"zoom\" hidden><button type=\"button\" data-do=\"in\" aria-label=\"zoom in\">+</button>\
         <button type=\"button\" data-do=\"out\" aria-label=\"zoom out\">−</button>\
         <button type=\"button\" data-do=\"left\" aria-label=\"earlier\">◂</button>\
         <button type=\"button\" data-do=\"right\" aria-label=\"later\">▸</button>\
         <button type=\"button\" data-do=\"all\">all</button>\
         <button type=\"button\" data-do=\"reset\">latest</button></div></figcaption>\n<div class=\"canvas\">",
        view.0,
        view.1,
        last.max(to) - first
    );
    for size in [WIDE, NARROW] {
        out.push_str(&drawn(&lanes, view, size));
    }
    out.push_str("<div class=\"tip\" hidden></div></div>\n");
    out.push_str(
        "<p class=\"muted zoom\" hidden>Drag over a part to zoom in, or turn the wheel with Ctrl; double-click to reset.</p>\n",
    );
    out.push_str(&table(&lanes));
    out.push_str("</figure>\n");
    out
}

fn time(ns: u64) -> String {
    pretty(&format_nanos(ns as f64))
}

fn drawn(lanes: &Lanes<'_>, (from, to): (u64, u64), size: Size) -> String {
    let scale = size.width / (to - from).max(1) as f64;
    let height = lanes.keys.len() as f64 * LANE;
    let mut out = format!(
        "<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" tabindex=\"0\" aria-label=\"Timeline\" data-height=\"{height}\">",
        size.class,
        size.width,
        height + AXIS
    );
    for (number, key) in lanes.keys.iter().enumerate() {
        let top = number as f64 * LANE;
        let _ = write!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text><rect class=\"track\" x=\"0\" y=\"{:.1}\" width=\"{}\" height=\"{BAR}\"/>",
            top + 14.0,
            escape(&name(key)),
            top + BAR_TOP,
            size.width
        );
    }
    out.push_str("<g class=\"slices\">");
    for (lane, slice) in &lanes.slices {
        let (start, end) = (slice.start_ns - lanes.first, slice.end_ns - lanes.first);
        if end < from || start > to {
            continue;
        }
        let left = (start.max(from) - from) as f64 * scale;
        let width = (end.min(to).saturating_sub(start.max(from))) as f64 * scale;
        let top = *lane as f64 * LANE + BAR_TOP;
        let _ = write!(
            out,
            "<g class=\"c{}\"><rect class=\"bar\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" opacity=\"{}\"/></g>",
            color(&lanes.keys[*lane]),
            width.max(0.8),
            if is_waiting(&slice.name) {
                "0.35"
            } else {
                "0.9"
            },
        );
        if width > slice.name.chars().count() as f64 * CHARACTER + 8.0 {
            let _ = write!(
                out,
                "<text class=\"mid note\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left + width / 2.0,
                top + 13.0,
                escape(&slice.name)
            );
        }
    }
    out.push_str("</g><g class=\"marks\">");
    let _ = write!(
        out,
        "<text x=\"0\" y=\"{y}\">{}</text><text class=\"end\" x=\"{}\" y=\"{y}\">{}</text></g></svg>",
        escape(&time(from)),
        size.width,
        escape(&time(to)),
        y = height + 14.0,
    );
    out
}

/// Renders the slices on the page as a table, which is also the data of the script.
fn table(lanes: &Lanes<'_>) -> String {
    let mut out = format!(
        "<details><summary>Data: the last {} recorded slices</summary><div class=\"scroll\"><table><thead><tr><th>slice</th><th class=\"text\">lane</th><th>start</th><th>duration</th><th>round trip</th></tr></thead><tbody>",
        lanes.slices.len()
    );
    for (lane, slice) in &lanes.slices {
        let key = &lanes.keys[*lane];
        let (start, took) = (
            slice.start_ns - lanes.first,
            slice.end_ns.saturating_sub(slice.start_ns),
        );
        let _ = write!(
            out,
            "<tr data-at=\"{start} {took} {lane} {}{}\"><th scope=\"row\">{}</th><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            color(key),
            if is_waiting(&slice.name) { " 1" } else { " 0" },
            escape(&slice.name),
            escape(&name(key)),
            escape(&time(start)),
            escape(&time(took)),
            slice
                .trip
                .map_or_else(|| "-".to_owned(), |trip| trip.to_string()),
        );
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}
