//! Charts of round-trip series: percentiles by message size, by load, by round.

use std::collections::BTreeMap;

use linerate_record::plan::RunKind;
use linerate_record::record::Record;
use linerate_stats::histogram::Quantiles;
use linerate_stats::units::{format_bytes, format_count, format_nanos};

use super::figure::{self, ChartData, ChartRow};
use super::with_micro_sign;
use crate::phrases;
use crate::svg::{AxisUnit, ChartAxis, ChartSeries, LineChart, SeriesMark};

/// Line of a chart: name, and values by x.
struct FigureCurve {
    name: String,
    points: BTreeMap<u64, f64>,
}

impl FigureCurve {
    /// Collects a figure of each run that has an x value.
    fn over_runs(
        name: &str,
        runs: &[&Record],
        x_of: impl Fn(&Record) -> Option<u64>,
        read: impl Fn(&Record) -> Option<u64>,
    ) -> Self {
        let points = runs.iter();
        Self {
            name: name.to_owned(),
            points: points
                .filter_map(|run| Some((x_of(run)?, read(run)? as f64)))
                .collect(),
        }
    }
}

/// Renders the chart of what varies between the runs of a document; empty if nothing varies. `name`
/// is the name of the document, empty if there is only one. `runs` must have their original names,
/// so that repeats have equal names.
pub(super) fn series_section(name: &str, runs: &[Record]) -> String {
    let titled = |title: &str| match name {
        "" => title.to_owned(),
        name => format!("{title}: {name}"),
    };
    let round_trips: Vec<&Record> = (runs.iter())
        .filter(|run| run.kind == RunKind::Latency)
        .collect();
    let size = |run: &Record| Some(run.plan.payload_bytes);
    let rate = |run: &Record| {
        let flows = u64::from(run.plan.streams.max(1));
        Some(run.plan.round_trip.rate_per_second? * flows)
    };
    let distinct_positions = |x_of: &dyn Fn(&Record) -> Option<u64>| {
        let mut positions: Vec<u64> = round_trips.iter().filter_map(|run| x_of(run)).collect();
        positions.sort_unstable();
        positions.dedup();
        positions.len()
    };
    // Two points do not make a curve.
    if distinct_positions(&rate) > 2 {
        let scheduled_quantile = |titled: fn(&Quantiles) -> u64| {
            move |run: &Record| run.summary.rtt_intended_ns.as_ref().map(titled)
        };
        let lines = [
            FigureCurve::over_runs(
                "p50 from scheduled",
                &round_trips,
                rate,
                scheduled_quantile(|q| q.p50),
            ),
            FigureCurve::over_runs(
                "p90 from scheduled",
                &round_trips,
                rate,
                scheduled_quantile(|q| q.p90),
            ),
            FigureCurve::over_runs(
                "p99 from scheduled",
                &round_trips,
                rate,
                scheduled_quantile(|q| q.p99),
            ),
            FigureCurve::over_runs(
                "p99 from sent",
                &round_trips,
                rate,
                sent_quantile(|q| q.p99),
            ),
        ];
        return curve_chart(
            &titled("Round-trip times by load"),
            "requests/s",
            &lines,
            |distinct_positions| format!("{}/s", format_count(distinct_positions)),
        );
    }
    if distinct_positions(&size) > 2 {
        let lines = [
            FigureCurve::over_runs("p50", &round_trips, size, sent_quantile(|q| q.p50)),
            FigureCurve::over_runs("p90", &round_trips, size, sent_quantile(|q| q.p90)),
            FigureCurve::over_runs("p99", &round_trips, size, sent_quantile(|q| q.p99)),
        ];
        return curve_chart(
            &titled("Round-trip times by size"),
            "message, B",
            &lines,
            format_bytes,
        );
    }
    round_chart(&titled("Median of each round"), &round_trips)
}

fn sent_quantile(quantile: fn(&Quantiles) -> u64) -> impl Fn(&Record) -> Option<u64> {
    move |run| run.summary.rtt_ns.as_ref().map(quantile)
}

/// Renders the medians of alternating runs by round, one line per name.
fn round_chart(title: &str, round_trips: &[&Record]) -> String {
    let mut lines: Vec<FigureCurve> = Vec::new();
    for run in round_trips {
        let name = phrases::run_name(run);
        let Some(median) = run.summary.rtt_ns.map(|rtt| rtt.p50 as f64) else {
            continue;
        };
        let line_index = match lines.iter().position(|line| line.name == name) {
            Some(line_index) => line_index,
            None => {
                lines.push(FigureCurve {
                    name,
                    points: BTreeMap::new(),
                });
                lines.len() - 1
            }
        };
        let points = &mut lines[line_index].points;
        points.insert(points.len() as u64 + 1, median);
    }
    lines.retain(|line| line.points.len() > 2);
    if lines.is_empty() {
        return String::new();
    }
    curve_chart(title, "round", &lines, |round| format!("round {round}"))
}

fn curve_chart(
    title: &str,
    x_label: &str,
    lines: &[FigureCurve],
    format_x: impl Fn(u64) -> String,
) -> String {
    let values = || lines.iter().flat_map(|line| line.points.values().copied());
    let positions = || lines.iter().flat_map(|line| line.points.keys().copied());
    let (Some(first), Some(last)) = (positions().min(), positions().max()) else {
        return String::new();
    };
    let (lowest, highest) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    );
    let series = lines.iter().map(|line| ChartSeries {
        name: line.name.clone(),
        mark: SeriesMark::Line((line.points.iter()).map(|(x, y)| (*x as f64, *y)).collect()),
    });
    let chart = LineChart {
        title: title.to_owned(),
        is_secondary: false,
        x: ChartAxis::between(x_label, first as f64, last as f64, AxisUnit::COUNT),
        y: ChartAxis::log_time("round-trip time", lowest, highest),
        series: series.collect(),
        shades: Vec::new(),
        references: Vec::new(),
    };
    let mut headings = vec![x_label.to_owned()];
    headings.extend(lines.iter().map(|line| line.name.clone()));
    let mut rows: Vec<u64> = positions().collect();
    rows.sort_unstable();
    rows.dedup();
    let rows = rows.into_iter().map(|position| ChartRow {
        x: position as f64,
        text: format_x(position),
        cells: lines
            .iter()
            .map(|line| {
                let value = *line.points.get(&position)?;
                Some((value, with_micro_sign(&format_nanos(value))))
            })
            .collect(),
    });
    let data = ChartData {
        headings,
        rows: rows.collect(),
    };
    figure::render_chart(&chart, &data)
}
