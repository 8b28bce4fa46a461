//! Figure over time, with its change points.

use jiff::Timestamp;
use linerate_record::expect::{FIGURES, FigureUnit};
use linerate_record::record::Record;
use linerate_stats::change_points::{SeriesLevel, split_levels};
use serde::Serialize;

use super::entry::HistoryEntry;
use crate::document::Document;
use crate::model::{count_of, format_change, format_value};
use crate::phrases;

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

impl FigureTrend {
    /// Describes the levels: `goodput 941 Mb/s in 288 runs: no change`, `goodput 941 Mb/s; 752 Mb/s
    /// (-20 %) since 2026-11-01 14:35`. Empty without points.
    #[must_use]
    pub fn describe(&self) -> String {
        let value = |level: &SeriesLevel| format_value(self.unit, level.figure.median);
        let Some((first, later)) = self.levels.split_first() else {
            return String::new();
        };
        let mut text = format!("{} {}", self.figure, value(first));
        if later.is_empty() {
            let runs = count_of(self.points.len() as u64, "run");
            return text + &format!(" in {runs}: no change");
        }
        for level in later {
            let change = (level.ratio).map_or_else(String::new, |ratio| {
                format!(" ({})", format_change(ratio - 1.0))
            });
            let since = self.points[level.from].started.strftime("%Y-%m-%d %H:%M");
            text.push_str(&format!("; {}{change} since {since}", value(level)));
        }
        text
    }
}

/// Runs with one plan, and the trends of their figures.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanTrends {
    /// Title of the plan, with the label of its runs.
    pub title: String,
    /// Trends of the main figures that the runs have; empty if the runs are too few.
    pub trends: Vec<FigureTrend>,
    /// Runs, the oldest first.
    pub runs: Vec<Record>,
}

/// Figures of a page over time, in order.
const TREND_FIGURES: [&str; 8] = [
    "goodput",
    "loss",
    "retransmits",
    "p50",
    "p99",
    "lost",
    "pps",
    "connections",
];

/// Fewest runs that are a series over time.
const MIN_SERIES: usize = 3;

/// Groups the runs of documents by plan and label, and returns the trends of each group, that with
/// the oldest run first. Interrupted runs are left out.
#[must_use]
pub fn trends_by_plan(documents: &[Document]) -> Vec<PlanTrends> {
    let mut runs: Vec<&Record> = documents.iter().flat_map(Document::runs).collect();
    runs.retain(|run| !run.interrupted);
    runs.sort_by_key(|run| (run.started, &run.id));
    // A run may be named twice.
    runs.dedup_by_key(|run| &run.id);
    let mut groups: Vec<Vec<(HistoryEntry, &Record)>> = Vec::new();
    for run in runs {
        let entry = HistoryEntry::summarise(&Document::Run(Box::new(run.clone())));
        let series =
            |entry: &HistoryEntry| (entry.kind.clone(), entry.plan.clone(), entry.label.clone());
        let group = groups
            .iter_mut()
            .find(|group| series(&group[0].0) == series(&entry));
        match group {
            Some(group) => group.push((entry, run)),
            None => groups.push(vec![(entry, run)]),
        }
    }
    groups.into_iter().map(PlanTrends::of_group).collect()
}

impl PlanTrends {
    fn of_group(group: Vec<(HistoryEntry, &Record)>) -> Self {
        let (entries, runs): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let trends = TREND_FIGURES.iter().filter_map(|name| {
            let figure = FIGURES.iter().find(|figure| figure.name == *name)?;
            let trend = trend(name, figure.unit, &entries);
            // A loss that never occurred needs no chart.
            let has_value = trend.points.iter().any(|point| point.value > 0.0);
            (has_value && trend.points.len() >= MIN_SERIES).then_some(trend)
        });
        let title = phrases::run_title(runs[0]);
        Self {
            title: match &runs[0].label {
                Some(label) if !title.contains(label.as_str()) => format!("{label}: {title}"),
                _ => title,
            },
            trends: trends.collect(),
            runs: runs.into_iter().cloned().collect(),
        }
    }
}

/// Describes how many runs and plans there are, and when the runs were made.
#[must_use]
pub fn describe_period(plans: &[PlanTrends]) -> String {
    let runs = || plans.iter().flat_map(|plan| &plan.runs);
    let starts = || runs().map(|run| run.started);
    let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
        return "No complete run.".to_owned();
    };
    format!(
        "{} of {}, {} to {}.",
        count_of(runs().count() as u64, "run"),
        count_of(plans.len() as u64, "plan"),
        first.strftime("%Y-%m-%d %H:%M"),
        last.strftime("%Y-%m-%d %H:%M UTC")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_plan_are_one_series() {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let run = |number: u32, streams: u32, goodput: f64| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.id = format!("20261101T00{number:02}00Z-000000");
            run.started += jiff::SignedDuration::from_mins(i64::from(number));
            run.plan.streams = streams;
            run.summary.goodput_bps = Some(goodput);
            Document::Run(Box::new(run))
        };
        let rate = |number: u32| match number {
            ..20 => 1e9,
            _ => 0.8e9,
        };
        let mut documents: Vec<Document> = (0..40)
            .map(|number| run(number, 1, rate(number) + f64::from(number % 3) * 1e6))
            .collect();
        documents.push(run(50, 4, 1e9));
        // A run that is there twice counts once.
        documents.push(documents[0].clone());
        let plans = trends_by_plan(&documents);
        let counts: Vec<usize> = plans.iter().map(|plan| plan.runs.len()).collect();
        assert_eq!(counts, [40, 1]);
        assert!(plans[1].trends.is_empty());
        let goodput = &plans[0].trends[0];
        assert_eq!((goodput.points.len(), goodput.levels.len()), (40, 2));
        let text = goodput.describe();
        assert!(
            text.starts_with("goodput 1.00 Gb/s; 801 Mb/s (-20"),
            "{text}"
        );
        let text = describe_period(&plans);
        assert!(text.starts_with("41 runs of 2 plans, "), "{text}");
    }

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
