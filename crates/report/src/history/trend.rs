//! A figure over time, and where its level changed.

use jiff::Timestamp;
use linerate_metric::changes::{Level, levels};
use linerate_metric::expect::Unit;
use serde::Serialize;

use super::entry::Entry;

/// A figure of many runs, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// `linerate/trend/1`.
    pub schema: &'static str,
    /// Its name, as `--expect` knows it; of an experiment's point `KNOB=VALUE… FIGURE`.
    pub figure: String,
    /// In what its values are.
    pub unit: Unit,
    /// Its values.
    pub points: Vec<Point>,
    /// Stretches of runs that are alike; one where nothing changed.
    pub levels: Vec<Level>,
    /// How many different plans the runs had: with more than one a change may be the plan's.
    pub plans: usize,
}

/// One run's figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Id of its record.
    pub id: String,
    /// When it started.
    pub started: Timestamp,
    /// The figure, in base units.
    pub value: f64,
}

/// The trend of a figure over the entries that have it.
#[must_use]
pub fn trend(figure: &str, unit: Unit, entries: &[Entry]) -> Trend {
    let having: Vec<(&Entry, f64)> = entries
        .iter()
        .filter_map(|entry| Some((entry, *entry.figures.get(figure)?)))
        .collect();
    let mut plans: Vec<&str> = having.iter().map(|(entry, _)| &*entry.plan).collect();
    plans.sort_unstable();
    plans.dedup();
    let values: Vec<f64> = having.iter().map(|(_, value)| *value).collect();
    Trend {
        schema: "linerate/trend/1",
        figure: figure.to_owned(),
        unit,
        plans: plans.len(),
        levels: levels(&values),
        points: having
            .iter()
            .map(|(entry, value)| Point {
                id: entry.id.clone(),
                started: entry.started,
                value: *value,
            })
            .collect(),
    }
}
