//! Timeline with a track for each thread, kernel and driver, drawn from a table of slices.
//!
//! The static drawing shows the last round trips or calls. The script (`timeline.js`) reads the
//! table and shows any part of it at any scale.

use std::collections::BTreeMap;
use std::fmt::Write;

use linerate_record::facts::Role;
use linerate_record::timeline::{Timeline, TimelineSlice, TimelineTrack};
use linerate_stats::units::format_nanos;

use super::with_micro_sign;
use crate::svg::{DrawingSize, NARROW_SIZE, WIDE_SIZE, escape_markup};

/// Number of round trips in the initial view.
const INITIAL_ROUND_TRIPS: u64 = 3;

/// Number of slices on the page, the latest; larger tables are slow to open on a phone.
const MAX_SLICES: usize = 600;

/// Height of a track, and of the bar in it.
const TRACK_HEIGHT: f64 = 44.0;
const BAR_HEIGHT: f64 = 18.0;
const BAR_TOP: f64 = 20.0;
/// Height of the time axis.
const AXIS_HEIGHT: f64 = 20.0;
/// Width of a character in a bar.
const CHARACTER_WIDTH: f64 = 6.7;

/// Key of a track: kind, host, CPU or thread.
type TrackKey = (TimelineTrack, Role, Option<u32>);

/// Returns the position of a track: client thread, client kernel, server kernel, server thread (the
/// path of a request), then drivers.
fn track_order(key: &TrackKey) -> (u8, u32) {
    let (track, role, number) = key;
    let position = match (track, role) {
        (TimelineTrack::Thread, Role::Client) => 0,
        (TimelineTrack::Kernel, Role::Client) => 1,
        (TimelineTrack::Kernel, Role::Server) => 2,
        (TimelineTrack::Thread, Role::Server) => 3,
        (TimelineTrack::Driver, Role::Client) => 4,
        (TimelineTrack::Driver, Role::Server) => 5,
    };
    (position, number.unwrap_or(0))
}

fn track_key(slice: &TimelineSlice) -> TrackKey {
    (slice.track, slice.role, slice.cpu.or(slice.thread))
}

fn track_name(key: &TrackKey) -> String {
    let (track, role, cpu) = key;
    let role = role.as_str();
    match (track, cpu) {
        (TimelineTrack::Thread, None) => format!("{role} thread"),
        (TimelineTrack::Thread, Some(number)) => format!("{role} thread {}", number + 1),
        (TimelineTrack::Kernel, _) => format!("{role} kernel"),
        (TimelineTrack::Driver, Some(cpu)) => format!("{role} receive work, cpu {cpu}"),
        (TimelineTrack::Driver, None) => format!("{role} receive work"),
    }
}

fn track_color(key: &TrackKey) -> usize {
    match key {
        (TimelineTrack::Driver, _, _) => 3,
        (_, Role::Client, _) => 0,
        (_, Role::Server, _) => 1,
    }
}

/// Returns whether a slice is waiting time, which is drawn paler.
fn is_waiting(name: &str) -> bool {
    matches!(name, "receive" | "wake-up") || name.ends_with(" waited") || name.ends_with(" full")
}

/// Tracks of a timeline with their slices; times count from the first slice.
struct TimelineTracks<'a> {
    keys: Vec<TrackKey>,
    slices: Vec<(usize, &'a TimelineSlice)>,
    first: u64,
}

impl<'a> TimelineTracks<'a> {
    fn of_slices(slices: &[&'a TimelineSlice]) -> Self {
        let tracks: BTreeMap<(u8, u32), TrackKey> = slices
            .iter()
            .map(|slice| (track_order(&track_key(slice)), track_key(slice)))
            .collect();
        let keys: Vec<TrackKey> = tracks.into_values().collect();
        let place = |slice: &TimelineSlice| {
            let order = track_order(&track_key(slice));
            keys.iter().position(|key| track_order(key) == order)
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
pub(super) fn render_timeline(timeline: &Timeline) -> String {
    let mut latest = timeline.clone();
    latest.keep_last(INITIAL_ROUND_TRIPS);
    let time_range = |slices: &mut dyn Iterator<Item = &TimelineSlice>| {
        slices.fold(None, |time_range: Option<(u64, u64)>, slice| {
            let (from, to) = time_range.unwrap_or((u64::MAX, 0));
            Some((from.min(slice.start_ns), to.max(slice.end_ns)))
        })
    };
    // Slices without a round trip can continue after the last one.
    let round_trip_range = time_range(
        &mut latest
            .slices
            .iter()
            .filter(|slice| slice.round_trip.is_some()),
    );
    let Some((from, to)) = round_trip_range.or_else(|| time_range(&mut latest.slices.iter()))
    else {
        return String::new();
    };
    // Later slices, such as driver work after the last round trip, are left out.
    let end_index = timeline
        .slices
        .partition_point(|slice| slice.start_ns <= to);
    let shown_slices: Vec<&TimelineSlice> = timeline.slices
        [end_index.saturating_sub(MAX_SLICES)..end_index]
        .iter()
        .collect();
    let tracks = TimelineTracks::of_slices(&shown_slices);
    let Some((first, last)) = time_range(&mut shown_slices.iter().copied()) else {
        return String::new();
    };
    // Early slices of the view may be missing if there are more slices than the page keeps.
    let view = (from.max(first) - first, to.max(first) - first);
    let caption = if latest.slices.iter().any(|slice| slice.round_trip.is_some()) {
        format!("The last {INITIAL_ROUND_TRIPS} timestamped round trips")
    } else {
        "The last calls".to_owned()
    };
    let mut out = format!(
        "<figure class=\"timeline\" data-view=\"{} {}\" data-all=\"{}\">\n<figcaption><h4>{caption}</h4>\
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
    for size in [WIDE_SIZE, NARROW_SIZE] {
        out.push_str(&draw_timeline(&tracks, view, size));
    }
    out.push_str("<div class=\"tip\" hidden></div></div>\n");
    out.push_str(
        "<p class=\"muted zoom\" hidden>Drag over a part to zoom in, or turn the wheel with Ctrl; double-click to reset.</p>\n",
    );
    out.push_str(&slice_table(&tracks));
    out.push_str("</figure>\n");
    out
}

fn format_time(ns: u64) -> String {
    with_micro_sign(&format_nanos(ns as f64))
}

fn draw_timeline(tracks: &TimelineTracks<'_>, (from, to): (u64, u64), size: DrawingSize) -> String {
    let scale = size.width / (to - from).max(1) as f64;
    let height = tracks.keys.len() as f64 * TRACK_HEIGHT;
    let mut out = format!(
        "<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" tabindex=\"0\" aria-label=\"Timeline\" data-height=\"{height}\">",
        size.class,
        size.width,
        height + AXIS_HEIGHT
    );
    for (number, key) in tracks.keys.iter().enumerate() {
        let top = number as f64 * TRACK_HEIGHT;
        let _ = write!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text><rect class=\"track\" x=\"0\" y=\"{:.1}\" width=\"{}\" height=\"{BAR_HEIGHT}\"/>",
            top + 14.0,
            escape_markup(&track_name(key)),
            top + BAR_TOP,
            size.width
        );
    }
    out.push_str("<g class=\"slices\">");
    for (track, slice) in &tracks.slices {
        let (start, end) = (slice.start_ns - tracks.first, slice.end_ns - tracks.first);
        if end < from || start > to {
            continue;
        }
        let left_x = (start.max(from) - from) as f64 * scale;
        let width = (end.min(to).saturating_sub(start.max(from))) as f64 * scale;
        let top = *track as f64 * TRACK_HEIGHT + BAR_TOP;
        let _ = write!(
            out,
            "<g class=\"c{}\"><rect class=\"bar\" x=\"{left_x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" opacity=\"{}\"/></g>",
            track_color(&tracks.keys[*track]),
            width.max(0.8),
            if is_waiting(&slice.name) {
                "0.35"
            } else {
                "0.9"
            },
        );
        if width > slice.name.chars().count() as f64 * CHARACTER_WIDTH + 8.0 {
            let _ = write!(
                out,
                "<text class=\"mid note\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left_x + width / 2.0,
                top + 13.0,
                escape_markup(&slice.name)
            );
        }
    }
    out.push_str("</g><g class=\"marks\">");
    let _ = write!(
        out,
        "<text x=\"0\" y=\"{y}\">{}</text><text class=\"end\" x=\"{}\" y=\"{y}\">{}</text></g></svg>",
        escape_markup(&format_time(from)),
        size.width,
        escape_markup(&format_time(to)),
        y = height + 14.0,
    );
    out
}

/// Renders the slices on the page as a table, which is also the data of the script.
fn slice_table(tracks: &TimelineTracks<'_>) -> String {
    let mut out = format!(
        "<details><summary>Data: the last {} recorded slices</summary><div class=\"scroll\"><table><thead><tr><th>slice</th><th class=\"text\">track</th><th>start</th><th>duration</th><th>round trip</th></tr></thead><tbody>",
        tracks.slices.len()
    );
    for (track, slice) in &tracks.slices {
        let key = &tracks.keys[*track];
        let (start, duration_ns) = (
            slice.start_ns - tracks.first,
            slice.end_ns.saturating_sub(slice.start_ns),
        );
        let _ = write!(
            out,
            "<tr data-at=\"{start} {duration_ns} {track} {}{}\"><th scope=\"row\">{}</th><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            track_color(key),
            if is_waiting(&slice.name) { " 1" } else { " 0" },
            escape_markup(&slice.name),
            escape_markup(&track_name(key)),
            escape_markup(&format_time(start)),
            escape_markup(&format_time(duration_ns)),
            slice
                .round_trip
                .map_or_else(|| "-".to_owned(), |trip| trip.to_string()),
        );
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}
