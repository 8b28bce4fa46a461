//! Charts of round-trip series: percentiles by message size, by load, by round.

use std::collections::BTreeMap;

use linerate_metric::histogram::Quantiles;
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::units::{format_bytes, format_count, format_nanos};

use super::figure::{self, Data, Row};
use super::pretty;
use crate::phrases;
use crate::svg::{Axis, Chart, Mark, Series, Unit};

/// Line of a chart: name, and values by x.
struct Line {
    name: String,
    points: BTreeMap<u64, f64>,
}

impl Line {
    /// Collects a figure of each run that has an x value.
    fn of(
        name: &str,
        runs: &[&Record],
        place: impl Fn(&Record) -> Option<u64>,
        read: impl Fn(&Record) -> Option<u64>,
    ) -> Self {
        let points = runs.iter();
        Self {
            name: name.to_owned(),
            points: points
                .filter_map(|run| Some((place(run)?, read(run)? as f64)))
                .collect(),
        }
    }
}

/// Renders the chart of what varies between the runs of a document; empty if nothing varies. `name`
/// is the name of the document, empty if there is only one. `runs` must have their original names,
/// so that repeats have equal names.
pub(super) fn section(name: &str, runs: &[Record]) -> String {
    let of = |title: &str| match name {
        "" => title.to_owned(),
        name => format!("{title}: {name}"),
    };
    let trips: Vec<&Record> = (runs.iter())
        .filter(|run| run.kind == Kind::Latency)
        .collect();
    let size = |run: &Record| Some(run.plan.payload_bytes);
    let rate = |run: &Record| {
        let flows = u64::from(run.plan.streams.max(1));
        Some(run.plan.round_trip.rate_per_second? * flows)
    };
    let count = |place: &dyn Fn(&Record) -> Option<u64>| {
        let mut places: Vec<u64> = trips.iter().filter_map(|run| place(run)).collect();
        places.sort_unstable();
        places.dedup();
        places.len()
    };
    // Two points do not make a curve.
    if count(&rate) > 2 {
        let due = |of: fn(&Quantiles) -> u64| {
            move |run: &Record| run.summary.rtt_intended_ns.as_ref().map(of)
        };
        let lines = [
            Line::of("p50 from scheduled", &trips, rate, due(|q| q.p50)),
            Line::of("p90 from scheduled", &trips, rate, due(|q| q.p90)),
            Line::of("p99 from scheduled", &trips, rate, due(|q| q.p99)),
            Line::of("p99 from sent", &trips, rate, sent(|q| q.p99)),
        ];
        return chart(
            &of("Round-trip times by load"),
            "requests/s",
            &lines,
            |count| format!("{}/s", format_count(count)),
        );
    }
    if count(&size) > 2 {
        let lines = [
            Line::of("p50", &trips, size, sent(|q| q.p50)),
            Line::of("p90", &trips, size, sent(|q| q.p90)),
            Line::of("p99", &trips, size, sent(|q| q.p99)),
        ];
        return chart(
            &of("Round-trip times by size"),
            "message, B",
            &lines,
            format_bytes,
        );
    }
    rounds(&of("Median of each round"), &trips)
}

fn sent(of: fn(&Quantiles) -> u64) -> impl Fn(&Record) -> Option<u64> {
    move |run| run.summary.rtt_ns.as_ref().map(of)
}

/// Renders the medians of alternating runs by round, one line per name.
fn rounds(title: &str, trips: &[&Record]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for run in trips {
        let name = phrases::name(run);
        let Some(median) = run.summary.rtt_ns.map(|rtt| rtt.p50 as f64) else {
            continue;
        };
        let place = match lines.iter().position(|line| line.name == name) {
            Some(place) => place,
            None => {
                lines.push(Line {
                    name,
                    points: BTreeMap::new(),
                });
                lines.len() - 1
            }
        };
        let points = &mut lines[place].points;
        points.insert(points.len() as u64 + 1, median);
    }
    lines.retain(|line| line.points.len() > 2);
    if lines.is_empty() {
        return String::new();
    }
    chart(title, "round", &lines, |round| format!("round {round}"))
}

fn chart(title: &str, along: &str, lines: &[Line], write: impl Fn(u64) -> String) -> String {
    let values = || lines.iter().flat_map(|line| line.points.values().copied());
    let places = || lines.iter().flat_map(|line| line.points.keys().copied());
    let (Some(first), Some(last)) = (places().min(), places().max()) else {
        return String::new();
    };
    let (lowest, highest) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    let series = lines.iter().map(|line| Series {
        name: line.name.clone(),
        mark: Mark::Line((line.points.iter()).map(|(x, y)| (*x as f64, *y)).collect()),
    });
    let chart = Chart {
        title: title.to_owned(),
        low: false,
        x: Axis::between(along, first as f64, last as f64, Unit::COUNT),
        y: Axis::log_time("round-trip time", lowest, highest),
        series: series.collect(),
        shades: Vec::new(),
        references: Vec::new(),
    };
    let mut headings = vec![along.to_owned()];
    headings.extend(lines.iter().map(|line| line.name.clone()));
    let mut rows: Vec<u64> = places().collect();
    rows.sort_unstable();
    rows.dedup();
    let rows = rows.into_iter().map(|place| Row {
        x: place as f64,
        text: write(place),
        cells: lines
            .iter()
            .map(|line| {
                let value = *line.points.get(&place)?;
                Some((value, pretty(&format_nanos(value))))
            })
            .collect(),
    });
    let data = Data {
        headings,
        rows: rows.collect(),
    };
    figure::chart(&chart, &data)
}
