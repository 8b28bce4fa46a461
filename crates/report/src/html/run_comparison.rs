//! Comparison of several runs as charts.

use linerate_record::plan::{PerEnd, RunKind, WaitMode};
use linerate_record::record::Record;
use linerate_stats::histogram::Histogram;
use linerate_stats::units::{format_bit_rate, format_nanos};

use super::figure::{self, ChartData, ChartRow};
use super::with_micro_sign;
use crate::phrases;
use crate::svg::{
    AxisUnit, BarChart, ChartAxis, ChartSeries, LineChart, SeriesMark, ValueBar, escape_markup,
};

/// Largest number of lines in a chart of distributions; with more, only the series chart is shown.
const MAX_DISTRIBUTIONS: usize = 6;

/// Renders the comparison; empty for a single run. `lengths` holds the number of runs per document,
/// `series` the chart of the knob that varies within a document.
pub(super) fn comparison_section(runs: &[Record], lengths: &[usize], series: &str) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let mut out = String::from("<section>\n<h2>Comparison</h2>\n");
    out.push_str(&measurement_table(runs, lengths));
    out.push_str(&goodput_bars(runs).map_or(String::new(), |bars| figure::render_bars(&bars)));
    if series.is_empty() {
        out.push_str(&rtt_bars(runs).map_or(String::new(), |bars| figure::render_bars(&bars)));
    }
    out.push_str(series);
    let latency: Vec<_> = runs
        .iter()
        .filter(|run| run.kind == RunKind::Latency)
        .collect();
    if (2..=MAX_DISTRIBUTIONS).contains(&latency.len()) {
        out.push_str(&rtt_distribution(
            "Round-trip times by percentile",
            &latency,
        ));
    }
    out.push_str("</section>\n");
    out
}

fn measurement_table(runs: &[Record], lengths: &[usize]) -> String {
    let mut out = String::from("<table class=\"measurements\"><tbody>");
    let mut next = 0;
    let documents = lengths.iter().flat_map(|length| {
        let indices = next..next + length;
        next = indices.end;
        phrases::measurements(&runs[indices])
    });
    for row in documents {
        let number = runs.iter().position(|run| std::ptr::eq(run, row.run));
        out.push_str(&format!(
            "<tr><th scope=\"row\"><a href=\"#{}\">{}</a></th><td class=\"figure\">{}</td><td>{}</td></tr>",
            super::run_anchor(runs, number.expect("a row is about one of the runs")),
            escape_markup(&row.name),
            escape_markup(&with_micro_sign(&row.figure)).replace(' ', "&nbsp;"),
            escape_markup(&with_micro_sign(&row.meaning))
        ));
    }
    out.push_str("</tbody></table>\n");
    out
}

fn goodput_bars(runs: &[Record]) -> Option<BarChart> {
    let mut rows = Vec::new();
    for run in runs.iter().filter(|run| run.kind == RunKind::Throughput) {
        let has_two_directions = run.directions.len() > 1;
        for figures in &run.directions {
            let name = if has_two_directions {
                format!(
                    "{}: {}",
                    phrases::run_name(run),
                    phrases::recorded_direction(run, figures.direction)
                )
            } else {
                phrases::run_name(run)
            };
            rows.extend(figures.summary.goodput_bps.map(|rate| (name, rate)));
        }
    }
    if rows.len() < 2 {
        return None;
    }
    let highest = rows.iter().map(|row| row.1).fold(0.0, f64::max);
    let lowest = rows.iter().map(|row| row.1).fold(highest, f64::min);
    Some(BarChart {
        title: "Goodput".to_owned(),
        axis: ChartAxis::for_bars("goodput", lowest, highest, AxisUnit::for_bit_rate(highest)),
        bars: rows
            .into_iter()
            .map(|(name, value)| ValueBar {
                name,
                value,
                interval: None,
                text: format_bit_rate(value),
                color: 0,
            })
            .collect(),
    })
}

fn rtt_bars(runs: &[Record]) -> Option<BarChart> {
    let rows: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run, run.summary.rtt_ns?)))
        .collect();
    if rows.len() < 2 {
        return None;
    }
    let highest = rows.iter().map(|row| row.1.p50).max()? as f64;
    let lowest = rows.iter().map(|row| row.1.p50).min()? as f64;
    Some(BarChart {
        title: "Median round trip (shorter is better)".to_owned(),
        axis: ChartAxis::for_bars(
            "median round trip",
            lowest,
            highest,
            AxisUnit::for_time(highest),
        ),
        bars: rows
            .into_iter()
            .map(|(run, rtt)| ValueBar {
                name: phrases::run_name(run),
                value: rtt.p50 as f64,
                interval: None,
                text: with_micro_sign(&format_nanos(rtt.p50 as f64)),
                color: usize::from(run.plan.wait == Some(PerEnd::same(WaitMode::Spin))),
            })
            .collect(),
    })
}

/// Percentiles in the data table of a distribution.
const PERCENTILES: &[f64] = &[
    0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.999_5, 0.999_9,
    0.999_99, 0.999_999, 1.0,
];

/// Renders round-trip times by percentile on an axis that stretches the tail.
pub(super) fn rtt_distribution(title: &str, runs: &[&Record]) -> String {
    time_distribution(title, ("rtt_ns", "round trips", "round-trip time"), runs)
}

/// Renders times by percentile on an axis that stretches the tail. The tuple holds the name of the
/// histogram, the noun of what was timed, and the name of the time.
pub(super) fn time_distribution(
    title: &str,
    (histogram, noun, time_name): (&str, &str, &str),
    runs: &[&Record],
) -> String {
    let histograms: Vec<_> = runs
        .iter()
        .filter_map(|run| {
            let histogram = Histogram::from(run.histograms.get(histogram)?);
            (histogram.count() > 0).then(|| (phrases::run_name(run), histogram))
        })
        .collect();
    let lowest = histograms.iter().filter_map(|(_, h)| h.min()).min();
    let highest = histograms.iter().filter_map(|(_, h)| h.max()).max();
    let max_count = histograms.iter().map(|(_, h)| h.count()).max();
    let (Some(lowest), Some(highest), Some(max_count)) = (lowest, highest, max_count) else {
        return String::new();
    };
    let series = histograms
        .iter()
        .map(|(name, histogram)| {
            // Starts at the minimum, since the first bucket would leave the start of the line open.
            let mut points = vec![(0.0, histogram.min().unwrap_or(lowest) as f64)];
            let mut previous_share = 0.0;
            for (value, share) in histogram.cumulative() {
                points.push((f64::midpoint(previous_share, share), value as f64));
                previous_share = share;
            }
            // The line ends at the share of the last sample.
            points.push((
                1.0 - 0.5 / histogram.count() as f64,
                histogram.max().unwrap_or(highest) as f64,
            ));
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            ChartSeries {
                name: name.clone(),
                mark: SeriesMark::Line(points),
            }
        })
        .collect();
    let chart = LineChart {
        title: title.to_owned(),
        is_secondary: false,
        x: ChartAxis::percentile_tail(&format!("percentile of {noun}"), max_count),
        y: ChartAxis::log_time(time_name, lowest as f64, highest as f64),
        series,
        shades: Vec::new(),
        references: Vec::new(),
    };
    let mut headings = vec!["percentile".to_owned()];
    headings.extend(histograms.iter().map(|(name, _)| name.clone()));
    let rows = PERCENTILES
        .iter()
        // Percentiles above 1 - 1/n equal the maximum.
        .filter(|&&share| share == 1.0 || (1.0 - share) * max_count as f64 >= 1.0)
        .map(|&share| ChartRow {
            x: share,
            text: match share {
                0.0 => "min".to_owned(),
                1.0 => "max".to_owned(),
                share => format!("{} %", (share * 1e8).round() / 1e6),
            },
            cells: histograms
                .iter()
                .map(|(_, histogram)| {
                    let value = if share == 0.0 {
                        histogram.min()?
                    } else {
                        histogram.quantile(share)?
                    } as f64;
                    Some((value, with_micro_sign(&format_nanos(value))))
                })
                .collect(),
        })
        .collect();
    figure::render_chart(&chart, &ChartData { headings, rows })
}
