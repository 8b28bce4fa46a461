//! Reference of a cause: plain data of each rule, and formats of its thresholds.
//!
//! `causes_page` makes docs/CAUSES.md from it. Numbers come from the constants that the rule
//! compares with, so text and behaviour cannot drift apart.

use linerate_record::finding::FindingKind;
use linerate_stats::units::{format_bit_rate, format_bytes, format_nanos, format_share};

/// Reference of one cause: the data of its section in docs/CAUSES.md.
#[derive(Clone, Debug, PartialEq)]
pub struct CauseReference {
    /// Kind of its findings, unless a condition of the next two lists applies.
    pub kind: FindingKind,
    /// Conditions under which a finding is only a limit.
    pub limit_when: Vec<String>,
    /// Conditions under which a finding is unknown.
    pub unknown_when: Vec<String>,
    /// Meaning in one sentence.
    pub meaning: &'static str,
    /// Detections, each sufficient.
    pub shown_when: Vec<Detection>,
    /// Conditions that exclude every detection.
    pub not_when: Vec<String>,
    /// Names and units of the evidence that findings may have.
    pub evidence: &'static [(&'static str, &'static str)],
    /// Sentences about cost and gain.
    pub cost: Vec<String>,
    /// Further sentences.
    pub notes: Vec<String>,
    /// Sentences about the changes that remove the cause, the best first.
    pub remedy: Vec<String>,
    /// Conditions under which the finding misleads, although its evidence is right.
    pub wrong_when: Vec<String>,
}

impl CauseReference {
    /// Empty reference of a rule whose findings are causes.
    #[must_use]
    pub fn cause() -> Self {
        Self::of(FindingKind::Cause)
    }

    /// Empty reference of a rule whose findings are limits.
    #[must_use]
    pub fn limit() -> Self {
        Self::of(FindingKind::Limit)
    }

    fn of(kind: FindingKind) -> Self {
        Self {
            kind,
            limit_when: Vec::new(),
            unknown_when: Vec::new(),
            meaning: "",
            shown_when: Vec::new(),
            not_when: Vec::new(),
            evidence: &[],
            cost: Vec::new(),
            notes: Vec::new(),
            remedy: Vec::new(),
            wrong_when: Vec::new(),
        }
    }

    /// Returns the kinds that its findings may have, the usual one first.
    #[must_use]
    pub fn kinds(&self) -> Vec<FindingKind> {
        let mut kinds = vec![self.kind];
        if !self.limit_when.is_empty() {
            kinds.push(FindingKind::Limit);
        }
        if !self.unknown_when.is_empty() {
            kinds.push(FindingKind::Unknown);
        }
        kinds
    }
}

/// Conditions that together show a cause in one kind of run.
#[derive(Clone, Debug, PartialEq)]
pub struct Detection {
    /// Kind of run: `TCP`, `round trips`, `forward`.
    pub run: &'static str,
    /// Conditions that must all be true.
    pub all_of: Vec<String>,
}

/// Creates a detection from its kind of run and its conditions.
#[must_use]
pub fn detection(run: &'static str, all_of: impl IntoIterator<Item = String>) -> Detection {
    let all_of = all_of.into_iter().collect();
    Detection { run, all_of }
}

/// Formats a share as a percentage: `0.05 %`, `20 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    without_trailing_zeros(&format_share(share))
}

/// Formats a time: `700 us`, `2 ms`.
#[must_use]
pub fn duration(nanoseconds: f64) -> String {
    without_trailing_zeros(&format_nanos(nanoseconds))
}

/// Formats a size: `256 KiB`, `1100 B`.
#[must_use]
pub fn size(bytes: u64) -> String {
    without_trailing_zeros(&format_bytes(bytes))
}

/// Formats a bit rate: `100 Gb/s`.
#[must_use]
pub fn bit_rate(bits_per_second: f64) -> String {
    without_trailing_zeros(&format_bit_rate(bits_per_second))
}

/// Removes the zeros behind the decimal point of a number with a unit: a threshold is exact.
fn without_trailing_zeros(text: &str) -> String {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_have_no_false_digits() {
        for (text, expected) in [
            (percent(0.0005), "0.05 %"),
            (percent(0.2), "20 %"),
            (percent(1.0), "100 %"),
            (duration(700e3), "700 us"),
            (duration(2e6), "2 ms"),
            (duration(100e9), "100 s"),
            (size(256 << 10), "256 KiB"),
            (size(1_100), "1100 B"),
            (bit_rate(100e9), "100 Gb/s"),
        ] {
            assert_eq!(text, expected);
        }
    }
}
