//! Thresholds set by a script: `--expect 'p99<100us'`, `--expect 'goodput>9G'`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use linerate_stats::statistics::Estimate;
use linerate_stats::units::{
    BitRate, ByteSize, UnitError, format_bit_rate, format_bytes, format_count, format_nanos,
    format_per_second, format_share, parse_count, parse_duration, parse_fraction,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::RunKind;
use crate::record::Summary;

/// Unit of a figure, which decides how its values are written and parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FigureUnit {
    /// Bits per second.
    BitRate,
    /// Nanoseconds.
    Nanos,
    /// A share, 0 to 1.
    Share,
    /// A count.
    Count,
    /// Events per second.
    PerSecond,
    /// Bytes.
    Bytes,
}

impl FigureUnit {
    /// Parses a value in one of its notations, into base units.
    ///
    /// # Errors
    /// [`UnitError`] if the text is not such a value.
    pub fn parse(self, text: &str) -> Result<f64, UnitError> {
        match self {
            Self::BitRate => text.parse::<BitRate>().map(|rate| rate.0 as f64),
            Self::Nanos => parse_duration(text).map(|time| time.as_nanos() as f64),
            Self::Share => parse_fraction(text),
            Self::Bytes => text.parse::<ByteSize>().map(|size| size.0 as f64),
            Self::Count | Self::PerSecond => {
                parse_count(text.trim_end_matches("/s").trim_end()).map(|count| count as f64)
            }
        }
    }

    /// Prints a value with its unit.
    #[must_use]
    pub fn format(self, value: f64) -> String {
        match self {
            Self::BitRate => format_bit_rate(value),
            Self::Nanos => format_nanos(value),
            Self::Share => format_share(value),
            Self::Count => format_count(value as u64),
            Self::PerSecond => format_per_second(value),
            Self::Bytes => format_bytes(value as u64),
        }
    }
}

/// A named figure of a summary.
pub struct NamedFigure {
    /// Name in `--expect` and in the results of repeats.
    pub name: &'static str,
    /// Unit of the value.
    pub unit: FigureUnit,
    /// Kinds of runs that have the figure.
    pub kinds: &'static [RunKind],
    /// Reads the figure; `None` if the run did not measure it.
    pub read: fn(&Summary) -> Option<f64>,
}

const THROUGHPUT: &[RunKind] = &[RunKind::Throughput];
const LATENCY: &[RunKind] = &[RunKind::Latency];
const THROUGHPUT_LATENCY: &[RunKind] = &[RunKind::Throughput, RunKind::Latency];
const ALL_MEASURED: &[RunKind] = &[RunKind::Throughput, RunKind::Latency, RunKind::Generate];
const THROUGHPUT_GENERATE: &[RunKind] = &[RunKind::Throughput, RunKind::Generate];

macro_rules! figure {
    ($name:literal, $unit:ident, $kinds:ident, $read:expr) => {
        NamedFigure {
            name: $name,
            unit: FigureUnit::$unit,
            kinds: $kinds,
            read: $read,
        }
    };
}

/// Named figures, in the order in which messages list them.
pub const FIGURES: &[NamedFigure] = &[
    figure!("goodput", BitRate, THROUGHPUT, |s| s.goodput_bps),
    figure!("offered", BitRate, THROUGHPUT, |s| s.offered_bps),
    figure!("pps", PerSecond, THROUGHPUT_GENERATE, |s| s
        .packets_per_second),
    figure!("loss", Share, ALL_MEASURED, |s| s.loss_fraction),
    figure!("lost", Count, ALL_MEASURED, |s| s.lost.map(|n| n as f64)),
    figure!("retransmits", Count, THROUGHPUT_LATENCY, |s| s
        .retransmits
        .map(|n| n as f64)),
    figure!("ipdv", Nanos, THROUGHPUT, |s| s.ipdv_ns),
    figure!("rate_error", Share, THROUGHPUT_GENERATE, |s| s
        .rate_error
        .map(f64::abs)),
    figure!("lateness_p99", Nanos, THROUGHPUT_GENERATE, |s| s
        .lateness_ns
        .map(|q| q.p99 as f64)),
    figure!("delay_variation_p99", Nanos, THROUGHPUT, |s| s
        .delay_variation_ns
        .map(|q| q.p99 as f64)),
    figure!("min", Nanos, LATENCY, |s| s.rtt_ns.map(|q| q.min as f64)),
    figure!("mean", Nanos, LATENCY, |s| s.rtt_ns.map(|q| q.mean)),
    figure!("p50", Nanos, LATENCY, |s| s.rtt_ns.map(|q| q.p50 as f64)),
    figure!("p90", Nanos, LATENCY, |s| s.rtt_ns.map(|q| q.p90 as f64)),
    figure!("p99", Nanos, LATENCY, |s| s.rtt_ns.map(|q| q.p99 as f64)),
    figure!("p99.9", Nanos, LATENCY, |s| s
        .rtt_ns
        .map(|q| q.p99_9 as f64)),
    figure!("p99.99", Nanos, LATENCY, |s| s
        .rtt_ns
        .map(|q| q.p99_99 as f64)),
    figure!("max", Nanos, LATENCY, |s| s.rtt_ns.map(|q| q.max as f64)),
    figure!("round_trips", Count, LATENCY, |s| s
        .round_trips
        .map(|n| n as f64)),
    figure!("rate", PerSecond, LATENCY, |s| s.round_trips_per_second),
    figure!("mismatched", Count, LATENCY, |s| s
        .mismatched
        .map(|n| n as f64)),
    figure!("slow", Count, LATENCY, |s| s.slow.map(|n| n as f64)),
    figure!("connections", PerSecond, LATENCY, |s| s
        .connections_per_second),
    figure!("whole_p50", Nanos, LATENCY, |s| s
        .whole_ns
        .map(|q| q.p50 as f64)),
    figure!("device_p50", Nanos, LATENCY, |s| s
        .device
        .as_ref()
        .map(|device| device.device_ns.p50 as f64)),
    figure!("device_share", Share, LATENCY, |s| s
        .device
        .as_ref()
        .map(|device| device.share)),
    figure!("intended_p50", Nanos, LATENCY, |s| s
        .rtt_intended_ns
        .map(|q| q.p50 as f64)),
    figure!("intended_p99", Nanos, LATENCY, |s| s
        .rtt_intended_ns
        .map(|q| q.p99 as f64)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComparisonOperator {
    Less,
    LessOrEqual,
    Equal,
    MoreOrEqual,
    More,
}

/// A threshold on one figure.
#[derive(Clone)]
pub struct Expectation {
    figure: &'static NamedFigure,
    comparison: ComparisonOperator,
    bound: f64,
    text: String,
}

/// Error of parsing a threshold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpectError {
    /// The comparison operator is missing.
    #[error("`{text}` has no comparison: write FIGURE<VALUE, as in p99<100us or goodput>9G")]
    NoComparison {
        /// Text as written.
        text: String,
    },
    /// No figure has this name.
    #[error("`{name}` is not a figure: {}", figure_names(*kind))]
    UnknownFigure {
        /// Name as written.
        name: String,
        /// Kind of run whose figures can be used, where it is known.
        kind: Option<RunKind>,
    },
    /// The value cannot be parsed.
    #[error(transparent)]
    Value(#[from] UnitError),
    /// This kind of run does not have the figure.
    #[error("a {kind} run has no {name}: {}", figure_names(Some(*kind)))]
    WrongKind {
        /// Name of the figure.
        name: &'static str,
        /// Kind of run.
        kind: RunKind,
    },
}

fn figure_names(kind: Option<RunKind>) -> String {
    let names: Vec<_> = FIGURES
        .iter()
        .filter(|figure| kind.is_none_or(|kind| figure.kinds.contains(&kind)))
        .map(|figure| figure.name)
        .collect();
    names.join(", ")
}

impl FromStr for Expectation {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        Self::parse_for_kind(text, None)
    }
}

impl Expectation {
    /// Parses a threshold on a figure of this kind of run.
    ///
    /// # Errors
    /// The error, with the figures of that kind.
    pub fn of_kind(text: &str, kind: RunKind) -> Result<Self, ExpectError> {
        let expectation = Self::parse_for_kind(text, Some(kind))?;
        expectation.check_kind(kind)?;
        Ok(expectation)
    }

    fn parse_for_kind(text: &str, kind: Option<RunKind>) -> Result<Self, ExpectError> {
        let missing = || ExpectError::NoComparison {
            text: text.to_owned(),
        };
        let at = text.find(['<', '>', '=']).ok_or_else(missing)?;
        let (name, rest) = text.split_at(at);
        let (comparison, length) = match rest.as_bytes() {
            [b'<', b'=', ..] => (ComparisonOperator::LessOrEqual, 2),
            [b'>', b'=', ..] => (ComparisonOperator::MoreOrEqual, 2),
            [b'=', b'=', ..] => (ComparisonOperator::Equal, 2),
            [b'<', ..] => (ComparisonOperator::Less, 1),
            [b'>', ..] => (ComparisonOperator::More, 1),
            _ => (ComparisonOperator::Equal, 1),
        };
        // Records write p99.9 as p99_9; both are accepted.
        let name = name.trim().replace("p99_", "p99.");
        let figure = FIGURES
            .iter()
            .find(|figure| figure.name == name)
            .ok_or(ExpectError::UnknownFigure { name, kind })?;
        Ok(Self {
            figure,
            comparison,
            bound: figure.unit.parse(rest[length..].trim())?,
            text: text.to_owned(),
        })
    }
}

impl fmt::Debug for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expectation({})", self.text)
    }
}

/// Result of checking one threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectationResult {
    /// The threshold as written.
    pub expectation: String,
    /// True if the threshold is met. A figure that was not measured does not meet it.
    pub holds: bool,
    /// Measured value as text for users.
    pub measured: String,
}

impl Expectation {
    /// Rejects a threshold on a figure that this kind of run does not have.
    ///
    /// # Errors
    /// [`ExpectError::WrongKind`].
    pub fn check_kind(&self, kind: RunKind) -> Result<(), ExpectError> {
        if self.figure.kinds.contains(&kind) {
            return Ok(());
        }
        Err(ExpectError::WrongKind {
            name: self.figure.name,
            kind,
        })
    }

    /// Checks the threshold against a run.
    #[must_use]
    pub fn evaluate(&self, summary: &Summary) -> ExpectationResult {
        self.evaluate_value((self.figure.read)(summary))
    }

    /// Checks the threshold against the median of repeats.
    #[must_use]
    pub fn evaluate_repeats(&self, figures: &BTreeMap<String, Estimate>) -> ExpectationResult {
        self.evaluate_value(figures.get(self.figure.name).map(|e| e.median))
    }

    /// Returns the figure of the threshold.
    #[must_use]
    pub fn figure(&self) -> &'static NamedFigure {
        self.figure
    }

    /// Returns true if a value of the figure meets the threshold.
    #[must_use]
    pub fn is_met_by(&self, value: f64) -> bool {
        match self.comparison {
            ComparisonOperator::Less => value < self.bound,
            ComparisonOperator::LessOrEqual => value <= self.bound,
            ComparisonOperator::Equal => value == self.bound,
            ComparisonOperator::MoreOrEqual => value >= self.bound,
            ComparisonOperator::More => value > self.bound,
        }
    }

    fn evaluate_value(&self, value: Option<f64>) -> ExpectationResult {
        ExpectationResult {
            expectation: self.text.clone(),
            holds: value.is_some_and(|value| self.is_met_by(value)),
            measured: match value {
                Some(value) => format!("{} = {}", self.figure.name, self.figure.unit.format(value)),
                None => format!("{} was not measured in this run", self.figure.name),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn summary() -> Summary {
        Summary {
            goodput_bps: Some(9.5e9),
            loss_fraction: Some(0.001),
            lost: Some(0),
            ..Summary::default()
        }
    }

    #[test]
    fn thresholds_hold_or_do_not() {
        for (text, holds) in [
            ("goodput>9G", true),
            ("goodput > 9.5G", false),
            ("goodput>=9.5G", true),
            ("goodput<9.6Gbit/s", true),
            ("loss<=0.1%", true),
            ("loss<0.0005", false),
            ("lost=0", true),
            ("lost==0", true),
            ("pps>1", false),
        ] {
            let verdict = text.parse::<Expectation>().unwrap().evaluate(&summary());
            assert_eq!(verdict.holds, holds, "{text}: {}", verdict.measured);
        }
    }

    #[test]
    fn invalid_thresholds_are_rejected() {
        assert!(matches!(
            "goodput".parse::<Expectation>(),
            Err(ExpectError::NoComparison { .. })
        ));
        let unknown = "speed>9G".parse::<Expectation>().unwrap_err();
        assert!(unknown.to_string().contains("goodput"), "{unknown}");
        assert!("p99<100Q".parse::<Expectation>().is_err());
        let p99 = "p99<100us".parse::<Expectation>().unwrap();
        assert!(p99.check_kind(RunKind::Throughput).is_err());
        assert!(p99.check_kind(RunKind::Latency).is_ok());
        // Each command lists only its own figures.
        for text in ["speed>9G", "p99<100us", "goodput>1G"] {
            let error = Expectation::of_kind(text, RunKind::Generate).unwrap_err();
            let (_, offered) = error
                .to_string()
                .rsplit_once(": ")
                .map_or_else(Default::default, |parts| {
                    (parts.0.to_owned(), parts.1.to_owned())
                });
            let offered: Vec<&str> = offered.split(", ").collect();
            assert!(offered.contains(&"loss"), "{error}");
            assert!(
                !offered.contains(&"p99") && !offered.contains(&"goodput"),
                "{error}"
            );
        }
        assert!(Expectation::of_kind("loss<0.1%", RunKind::Generate).is_ok());
    }

    #[test]
    fn the_records_spelling_is_read_too() {
        assert!("p99_9<1ms".parse::<Expectation>().is_ok());
        assert!("p99.99<1ms".parse::<Expectation>().is_ok());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Expectation>();
        }
    }
}
