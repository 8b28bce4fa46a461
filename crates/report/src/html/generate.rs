//! Packet generator runs as HTML.

use linerate_record::record::{Interval, Record};
use linerate_stats::units::{format_count, format_nanos, format_per_second};

use super::figure::{self, ChartData, ChartRow};
use super::run::{SeriesTable, intervals_of, time_axis};
use super::{run_comparison, with_micro_sign};
use crate::svg::{AxisUnit, ChartAxis, ChartSeries, LineChart, SeriesMark, escape_markup};

/// Number of flows shown in the table.
const MAX_FLOWS: usize = 256;

/// Renders rates, losses, delays and flows.
pub(super) fn generator_section(run: &Record) -> String {
    let Some(figures) = run.generate.as_deref() else {
        return String::new();
    };
    let mut out = String::from("<h3>Load</h3>\n");
    out.extend(crate::generate::load_table(run, figures).map(|grid| figure::render_grid(&grid)));
    if let Some(error) = crate::generate::rate_error(run) {
        out.push_str(&format!(
            "<p class=\"muted\">Rate error: {}.</p>\n",
            escape_markup(&error)
        ));
    }
    out.push_str(&rates_over_time(run));
    if let Some(grid) = crate::generate::loss_table(figures) {
        out.push_str("<h3>Loss and order</h3>\n");
        out.push_str(&figure::render_grid(&grid));
    }
    out.push_str(&lost_over_time(run));
    if let Some(grid) = crate::generate::time_table(run, figures) {
        out.push_str("<h3>Times</h3>\n");
        out.push_str(&figure::render_grid(&grid));
    }
    out.push_str(&run_comparison::time_distribution(
        "One-way delay by percentile",
        ("one_way_delay_ns", "frames", "one-way delay"),
        &[run],
    ));
    out.push_str(&flow_delays(run));
    if let Some(grid) = crate::generate::flow_table(figures, MAX_FLOWS) {
        out.push_str(&format!(
            "<details><summary>{} flows</summary>{}</details>\n",
            figures.flows.len(),
            figure::render_grid(&grid)
        ));
    }
    out
}

fn per_second(interval: &Interval, frames: Option<u64>) -> Option<f64> {
    Some(frames? as f64 * 1e9 / (interval.end_ns - interval.start_ns) as f64)
}

/// Renders frames sent and received per second, by interval.
pub(super) fn rates_over_time(run: &Record) -> String {
    let intervals: Vec<&Interval> = super::run::directions_of(run)
        .into_iter()
        .flat_map(|direction| intervals_of(run, direction))
        .collect();
    if intervals.len() < 2 {
        return String::new();
    }
    let (x, unit) = time_axis(run);
    let mut columns = SeriesTable::new(unit);
    let received = run.generate.as_ref().is_none_or(|g| g.received.is_some());
    let mut highest: f64 = 0.0;
    let mut series = Vec::new();
    let mut add_series = |name: &str, read: fn(&Interval) -> Option<u64>| {
        let read = |interval: &Interval| per_second(interval, read(interval));
        let spans = columns.add_series(name, &intervals, read, format_per_second);
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(ChartSeries {
            name: name.to_owned(),
            mark: SeriesMark::Step(spans),
        });
    };
    // Equal lines would hide each other, so they are drawn as one.
    let is_almost_equal = |interval: &&Interval| match (interval.packets_sent, interval.packets) {
        (Some(sent), Some(received)) => sent.abs_diff(received) * 100 <= sent.max(received),
        _ => false,
    };
    let lines_coincide = received && intervals.iter().all(is_almost_equal);
    let name = if lines_coincide {
        "sent and received"
    } else {
        "sent"
    };
    add_series(name, |interval| interval.packets_sent);
    if received && !lines_coincide {
        add_series("received", |interval| interval.packets);
    }
    if highest == 0.0 {
        return String::new();
    }
    let chart = LineChart {
        title: "Frames per second over time".to_owned(),
        is_secondary: false,
        x,
        y: ChartAxis::from_zero("frames", highest * 1.05, AxisUnit::for_packet_rate(highest)),
        series,
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &columns.into_chart_data())
}

fn lost_over_time(run: &Record) -> String {
    let intervals = intervals_of(run, linerate_record::plan::Direction::Send);
    let (x, unit) = time_axis(run);
    let mut columns = SeriesTable::new(unit);
    let spans = columns.add_series(
        "lost",
        &intervals,
        |interval| interval.lost.map(|count| count as f64),
        |count| format_count(count as u64),
    );
    let highest = spans.iter().map(|span| span.2).fold(0.0, f64::max);
    if highest == 0.0 {
        return String::new();
    }
    let chart = LineChart {
        title: "Lost frames over time".to_owned(),
        is_secondary: true,
        x,
        y: ChartAxis::from_zero("per interval", highest, AxisUnit::COUNT),
        series: vec![ChartSeries {
            name: "lost".to_owned(),
            mark: SeriesMark::Bars(spans),
        }],
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &columns.into_chart_data())
}

/// Renders the delay of each flow, which shows flows on another path or queue.
fn flow_delays(run: &Record) -> String {
    let Some(figures) = run.generate.as_deref() else {
        return String::new();
    };
    let delays: Vec<_> = (figures.flows.iter())
        .filter_map(|flow| Some((f64::from(flow.flow), flow.one_way_delay_ns?)))
        .collect();
    let (Some(first), Some(last)) = (delays.first(), delays.last()) else {
        return String::new();
    };
    if delays.len() < 3 {
        return String::new();
    }
    let low = delays.iter().map(|(_, times)| times.p50).min().unwrap_or(1) as f64;
    let high = delays.iter().map(|(_, times)| times.max).max().unwrap_or(1) as f64;
    let line = |name: &str, read: fn(&linerate_stats::histogram::Quantiles) -> u64| ChartSeries {
        name: name.to_owned(),
        // Flow numbers are no scale, so points are not joined.
        mark: SeriesMark::Step(
            delays
                .iter()
                .map(|(flow, times)| (flow - 0.5, flow + 0.5, read(times) as f64))
                .collect(),
        ),
    };
    let time = |time: u64| Some((time as f64, with_micro_sign(&format_nanos(time as f64))));
    let rows = delays.iter().map(|(flow, times)| ChartRow {
        x: *flow,
        text: format!("flow {flow}"),
        cells: vec![time(times.p50), time(times.p99), time(times.max)],
    });
    let data = ChartData {
        headings: ["flow", "p50", "p99", "max"].map(str::to_owned).into(),
        rows: rows.collect(),
    };
    let chart = LineChart {
        title: "One-way delay by flow".to_owned(),
        is_secondary: false,
        x: ChartAxis::between("flow", first.0 - 0.5, last.0 + 0.5, AxisUnit::COUNT),
        y: ChartAxis::log_time("one-way delay", low, high),
        series: vec![
            line("p50", |times| times.p50),
            line("p99", |times| times.p99),
            line("max", |times| times.max),
        ],
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &data)
}
