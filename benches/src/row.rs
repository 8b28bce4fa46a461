//! What is compared, as a table.

use std::fmt;

use crate::ground::Ground;
use crate::rows::{latency, memory, throughput};
use crate::trouble::Trouble;

/// Measures one side once; gives the figure in the row's unit.
pub type Run = fn(&Ground) -> Result<f64, Trouble>;

/// One comparison.
pub struct Row {
    /// Spells the setting; stable for scripts.
    pub name: &'static str,
    /// What ours is compared with.
    pub against: &'static str,
    /// Unit of both figures.
    pub unit: &'static str,
    /// What the ratio ours / theirs is to be.
    pub mark: Mark,
    /// Whether it is about speed: idle states are held off for both sides, and a pair counts only
    /// when the machine stayed in one state.
    pub speed: bool,
    /// Whether it is left out unless LONG=1.
    pub long: bool,
    /// Pairs at most, where more tell nothing.
    pub most_pairs: Option<usize>,
    /// Fails with [`Trouble::Skip`] where something that the row needs is not installed.
    pub needs: fn(&Ground) -> Result<(), Trouble>,
    /// Measures ours.
    pub ours: Run,
    /// Measures what it is compared with.
    pub theirs: Run,
}

/// Every row, in the order it runs.
pub const ROWS: &[Row] = &[
    throughput::TCP_128K,
    throughput::TCP_1M,
    throughput::UDP_1472B,
    throughput::UDP_1472B_BURSTS,
    throughput::UDP_64B_BURSTS,
    latency::UDP_BLOCKING,
    latency::UDP_SPINNING,
    memory::HISTOGRAM,
    memory::ROUND_TRIPS,
    memory::TEN_MINUTES_CLIENT,
    memory::TEN_MINUTES_SERVER,
];

impl Row {
    /// Whether `name` means this row: its name, or a folder of it.
    pub fn is(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What a ratio ours / theirs is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mark {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
}

/// How far the interval may reach beyond the mark, as a share of it.
const TOLERANCE: f64 = 0.02;

impl Mark {
    /// Whether a median with its interval meets it.
    pub fn holds(self, median: f64, low: f64, high: f64) -> bool {
        match self {
            Self::AtLeast(mark) => median >= mark && low >= mark * (1.0 - TOLERANCE),
            Self::AtMost(mark) => median <= mark && high <= mark * (1.0 + TOLERANCE),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(mark) => write!(f, ">={mark:.2}"),
            Self::AtMost(mark) => write!(f, "<={mark:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_wants_the_median_and_leaves_the_interval_a_little() {
        for (mark, median, low, high, want) in [
            (Mark::AtLeast(1.0), 1.00, 0.99, 1.30, true),
            (Mark::AtLeast(1.0), 1.10, 0.97, 1.30, false),
            (Mark::AtLeast(1.0), 0.999, 0.998, 1.30, false),
            (Mark::AtMost(1.03), 1.03, 0.50, 1.05, true),
            (Mark::AtMost(1.03), 1.01, 1.00, 1.06, false),
            (Mark::AtMost(1.03), 1.04, 1.04, 1.04, false),
        ] {
            let holds = mark.holds(median, low, high);
            assert_eq!(holds, want, "{mark} {median} [{low}, {high}]");
        }
    }

    #[test]
    fn names_are_unique_and_no_row_is_a_folder_of_itself_only() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name));
            assert!(row.is(row.name) && !row.is(&row.name[..row.name.len() - 1]));
        }
    }
}
