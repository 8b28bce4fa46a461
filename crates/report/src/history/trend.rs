//! Figure over time, with its change points.

use jiff::Timestamp;
use linerate_record::expect::FigureUnit;
use linerate_stats::change_points::{SeriesLevel, split_levels};
use serde::Serialize;

use super::entry::HistoryEntry;

/// Figure of many runs, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureTrend {
    /// `linerate/trend/1`.
    pub schema: &'static str,
    /// Name as in `--expect`; for an experiment's point `KNOB=VALUE… FIGURE`.
    pub figure: String,
    /// Unit of the values.
    pub unit: FigureUnit,
    /// Values in time order.
    pub points: Vec<TrendPoint>,
    /// Ranges of runs with the same level; a single one if nothing changed.
    pub levels: Vec<SeriesLevel>,
    /// Number of different plans; with more than one, a change may come from the plan.
    pub plans: usize,
}

/// Figure of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrendPoint {
    /// Id of the record.
    pub id: String,
    /// Start time.
    pub started: Timestamp,
    /// Value in base units.
    pub value: f64,
}

/// Returns the trend of a figure over the entries that have it. A point of an experiment counts
/// once per run, because a growing table is stored again with all of its points.
#[must_use]
pub fn trend(figure: &str, unit: FigureUnit, entries: &[HistoryEntry]) -> FigureTrend {
    let point = figure.rsplit_once(' ').map_or("", |(point, _)| point);
    let mut counted_runs: Vec<&str> = Vec::new();
    let values_of_entries: Vec<(&HistoryEntry, f64)> = entries
        .iter()
        .filter_map(|entry| Some((entry, *entry.figures.get(figure)?)))
        .filter(|(entry, _)| match entry.points.get(point) {
            Some(run) if counted_runs.contains(&run.as_str()) => false,
            run => {
                counted_runs.extend(run.map(String::as_str));
                true
            }
        })
        .collect();
    let mut plans: Vec<&str> = values_of_entries
        .iter()
        .map(|(entry, _)| &*entry.plan)
        .collect();
    plans.sort_unstable();
    plans.dedup();
    let values: Vec<f64> = values_of_entries.iter().map(|(_, value)| *value).collect();
    FigureTrend {
        schema: "linerate/trend/1",
        figure: figure.to_owned(),
        unit,
        plans: plans.len(),
        levels: split_levels(&values),
        points: values_of_entries
            .iter()
            .map(|(entry, value)| TrendPoint {
                id: entry.id.clone(),
                started: entry.started,
                value: *value,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--label` stores the complete table again with each added point.
    #[test]
    fn a_point_of_a_table_that_grows_counts_once() {
        let table = |id: &str, points: &[(&str, &str, f64)]| HistoryEntry {
            id: id.to_owned(),
            points: (points.iter())
                .map(|(at, run, _)| ((*at).to_owned(), (*run).to_owned()))
                .collect(),
            figures: (points.iter())
                .map(|(at, _, value)| (format!("{at} trip"), *value))
                .collect(),
            ..HistoryEntry::default()
        };
        let entries = [
            table("first", &[("hops=0 size=64", "a", 10.0)]),
            table(
                "second",
                &[("hops=0 size=64", "a", 10.0), ("hops=1 size=64", "b", 20.0)],
            ),
            table(
                "third",
                &[("hops=0 size=64", "c", 10.0), ("hops=1 size=64", "b", 20.0)],
            ),
        ];
        let ids_of = |figure: &str| -> Vec<String> {
            let trend = trend(figure, FigureUnit::Nanos, &entries);
            trend.points.into_iter().map(|point| point.id).collect()
        };
        assert_eq!(
            ids_of("hops=0 size=64 trip"),
            ["first", "third"],
            "measured again with an equal value"
        );
        assert_eq!(ids_of("hops=1 size=64 trip"), ["second"]);
    }
}
