//! Conversion of configuration values from and to text.

use std::time::Duration;

use linerate_metric::units::{ByteSize, parse_duration};

/// Parses a whole number within bounds; `16K` is 16384.
pub(super) fn size(text: &str, least: u64, most: u64) -> Option<u64> {
    // 1.5K is a whole number, 1.5 is not.
    if text.contains('.') && text.ends_with(|last: char| last.is_ascii_digit()) {
        return None;
    }
    let ByteSize(size) = text.parse().ok()?;
    (least..=most).contains(&size).then_some(size)
}

/// Parses a switch.
pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "yes" | "true" => Some(true),
        "off" | "no" | "false" => Some(false),
        _ => None,
    }
}

pub(super) fn switch_text(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

/// Parses a duration within bounds, with a unit or in seconds.
pub(super) fn span(text: &str, least: Duration, most: Duration) -> Option<Duration> {
    let span = parse_duration(text).ok()?;
    (least..=most).contains(&span).then_some(span)
}

/// Formats a duration in the largest unit of which it is a whole multiple.
pub(super) fn span_text(span: Duration) -> String {
    let ns = span.as_nanos();
    for (unit, one) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns.is_multiple_of(one) {
            return format!("{}{unit}", ns / one);
        }
    }
    format!("{ns}ns")
}

/// Returns the value of a keyword.
pub(super) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Option<T> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|&(_, value)| value)
}

pub(super) fn word_of<T: Copy + PartialEq>(value: T, words: &[(&str, T)]) -> String {
    let found = words.iter().find(|(_, known)| *known == value);
    found.expect("every value is in its table").0.to_owned()
}
