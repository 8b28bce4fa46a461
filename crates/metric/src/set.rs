//! Several runs that belong together, with the result made from them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::FIGURES;
use crate::record::Record;
use crate::statistics::{Estimate, estimate};

/// Schema id of a [`RunSet`].
pub const SET_SCHEMA: &str = "linerate/set/1";

/// What a command that makes several runs gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSet {
    /// `linerate/set/1`.
    pub schema: String,
    /// Sortable by time, unique.
    pub id: String,
    /// What made it: `repeat`, `demo`, ...
    pub kind: String,
    /// When its first run started.
    pub started: Timestamp,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The runs.
    pub runs: Vec<Record>,
    /// What follows from them together.
    pub result: SetResult,
}

/// What several runs say together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SetResult {
    /// For repeats of one run: each figure's median and interval, by the names `--expect` knows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, Estimate>,
    /// What could not be done and why, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl SetResult {
    /// The median and interval of every figure that all of the runs have.
    #[must_use]
    pub fn of_repeats(runs: &[Record]) -> Self {
        let figures = FIGURES
            .iter()
            .filter_map(|figure| {
                let values: Option<Vec<f64>> =
                    runs.iter().map(|run| (figure.read)(&run.summary)).collect();
                Some((figure.name.to_owned(), estimate(&values?)?))
            })
            .collect();
        Self {
            figures,
            notes: Vec::new(),
        }
    }
}
