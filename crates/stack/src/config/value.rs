//! Conversion of configuration values from and to text.

use std::time::Duration;

use linerate_stats::units::{ByteSize, parse_duration};

/// Parses a whole number within bounds; `16K` is 16384.
pub(super) fn parse_size(text: &str, min: u64, max: u64) -> Option<u64> {
    // 1.5K is a whole number, 1.5 is not.
    if text.contains('.') && text.ends_with(|last: char| last.is_ascii_digit()) {
        return None;
    }
    let ByteSize(size) = text.parse().ok()?;
    (min..=max).contains(&size).then_some(size)
}

/// Parses a switch.
pub(super) fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" | "yes" | "true" => Some(true),
        "off" | "no" | "false" => Some(false),
        _ => None,
    }
}

pub(super) fn format_switch(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Parses a duration within bounds, with a unit or in seconds.
pub(super) fn parse_duration_within(text: &str, min: Duration, max: Duration) -> Option<Duration> {
    let duration = parse_duration(text).ok()?;
    (min..=max).contains(&duration).then_some(duration)
}

/// Formats a duration in the largest unit of which it is a whole multiple.
pub(super) fn format_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    for (unit, unit_ns) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns.is_multiple_of(unit_ns) {
            return format!("{}{unit}", ns / unit_ns);
        }
    }
    format!("{ns}ns")
}

/// Returns the value of a keyword.
pub(super) fn parse_keyword<T: Copy>(text: &str, keywords: &[(&str, T)]) -> Option<T> {
    let entry = keywords.iter().find(|(keyword, _)| *keyword == text);
    entry.map(|&(_, value)| value)
}

pub(super) fn format_keyword<T: Copy + PartialEq>(value: T, keywords: &[(&str, T)]) -> String {
    let entry = keywords.iter().find(|(_, candidate)| *candidate == value);
    entry.expect("every value is in its table").0.to_owned()
}
