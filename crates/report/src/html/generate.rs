//! Packet generator runs as HTML.

use linerate_metric::record::{Interval, Record};
use linerate_metric::units::{format_count, format_nanos, format_per_second};

use super::figure::{self, Data, Row};
use super::run::{Columns, of, time_axis};
use super::{pretty, run_comparison};
use crate::svg::{Axis, Chart, Mark, Series, Unit, escape};
use crate::text::generate as text;

/// Number of flows shown in the table.
const FLOWS: usize = 256;

/// Renders rates, losses, delays and flows.
pub(super) fn section(run: &Record) -> String {
    let Some(figures) = run.generate.as_deref() else {
        return String::new();
    };
    let mut out = String::from("<h3>Load</h3>\n");
    out.extend(text::rates(run, figures).map(|grid| figure::grid(&grid)));
    if let Some(error) = text::rate_error(run) {
        out.push_str(&format!(
            "<p class=\"muted\">Rate error: {}.</p>\n",
            escape(&error)
        ));
    }
    out.push_str(&rates_over_time(run));
    if let Some(grid) = text::losses(figures) {
        out.push_str("<h3>Loss and order</h3>\n");
        out.push_str(&figure::grid(&grid));
    }
    out.push_str(&lost_over_time(run));
    if let Some(grid) = text::times(run, figures) {
        out.push_str("<h3>Times</h3>\n");
        out.push_str(&figure::grid(&grid));
    }
    out.push_str(&run_comparison::distribution_of(
        "One-way delay by percentile",
        ("one_way_delay_ns", "frames", "one-way delay"),
        &[run],
    ));
    out.push_str(&flow_delays(run));
    if let Some(grid) = text::flows(figures, FLOWS) {
        out.push_str(&format!(
            "<details><summary>{} flows</summary>{}</details>\n",
            figures.flows.len(),
            figure::grid(&grid)
        ));
    }
    out
}

fn per_second(interval: &Interval, frames: Option<u64>) -> Option<f64> {
    Some(frames? as f64 * 1e9 / (interval.end_ns - interval.start_ns) as f64)
}

/// Renders frames sent and received per second, by interval.
pub(super) fn rates_over_time(run: &Record) -> String {
    let intervals: Vec<&Interval> = super::run::directions(run)
        .into_iter()
        .flat_map(|direction| of(run, direction))
        .collect();
    if intervals.len() < 2 {
        return String::new();
    }
    let (x, unit) = time_axis(run);
    let mut columns = Columns::new(unit);
    let received = run.generate.as_ref().is_none_or(|g| g.received.is_some());
    let mut highest: f64 = 0.0;
    let mut series = Vec::new();
    let mut add = |name: &str, read: fn(&Interval) -> Option<u64>| {
        let read = |interval: &Interval| per_second(interval, read(interval));
        let spans = columns.add(name, &intervals, read, format_per_second);
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(Series {
            name: name.to_owned(),
            mark: Mark::Step(spans),
        });
    };
    // Equal lines would hide each other, so they are drawn as one.
    let same = |interval: &&Interval| match (interval.packets_sent, interval.packets) {
        (Some(sent), Some(received)) => sent.abs_diff(received) * 100 <= sent.max(received),
        _ => false,
    };
    let is_same = received && intervals.iter().all(same);
    let name = if is_same { "sent and received" } else { "sent" };
    add(name, |interval| interval.packets_sent);
    if received && !is_same {
        add("received", |interval| interval.packets);
    }
    if highest == 0.0 {
        return String::new();
    }
    let chart = Chart {
        title: "Frames per second over time".to_owned(),
        low: false,
        x,
        y: Axis::from_zero("frames", highest * 1.05, Unit::of_frequency(highest)),
        series,
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::chart(&chart, &columns.data())
}

fn lost_over_time(run: &Record) -> String {
    let intervals = of(run, linerate_metric::plan::Direction::Send);
    let (x, unit) = time_axis(run);
    let mut columns = Columns::new(unit);
    let spans = columns.add(
        "lost",
        &intervals,
        |interval| interval.lost.map(|count| count as f64),
        |count| format_count(count as u64),
    );
    let highest = spans.iter().map(|span| span.2).fold(0.0, f64::max);
    if highest == 0.0 {
        return String::new();
    }
    let chart = Chart {
        title: "Lost frames over time".to_owned(),
        low: true,
        x,
        y: Axis::from_zero("per interval", highest, Unit::COUNT),
        series: vec![Series {
            name: "lost".to_owned(),
            mark: Mark::Bars(spans),
        }],
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::chart(&chart, &columns.data())
}

/// Renders the delay of each flow, which shows flows on another path or queue.
fn flow_delays(run: &Record) -> String {
    let Some(figures) = run.generate.as_deref() else {
        return String::new();
    };
    let known: Vec<_> = (figures.flows.iter())
        .filter_map(|flow| Some((f64::from(flow.flow), flow.one_way_delay_ns?)))
        .collect();
    let (Some(first), Some(last)) = (known.first(), known.last()) else {
        return String::new();
    };
    if known.len() < 3 {
        return String::new();
    }
    let low = known.iter().map(|(_, times)| times.p50).min().unwrap_or(1) as f64;
    let high = known.iter().map(|(_, times)| times.max).max().unwrap_or(1) as f64;
    let line = |name: &str, read: fn(&linerate_metric::histogram::Quantiles) -> u64| Series {
        name: name.to_owned(),
        // Flow numbers are no scale, so points are not joined.
        mark: Mark::Step(
            known
                .iter()
                .map(|(flow, times)| (flow - 0.5, flow + 0.5, read(times) as f64))
                .collect(),
        ),
    };
    let time = |time: u64| Some((time as f64, pretty(&format_nanos(time as f64))));
    let rows = known.iter().map(|(flow, times)| Row {
        x: *flow,
        text: format!("flow {flow}"),
        cells: vec![time(times.p50), time(times.p99), time(times.max)],
    });
    let data = Data {
        headings: ["flow", "p50", "p99", "max"].map(str::to_owned).into(),
        rows: rows.collect(),
    };
    let chart = Chart {
        title: "One-way delay by flow".to_owned(),
        low: false,
        x: Axis::between("flow", first.0 - 0.5, last.0 + 0.5, Unit::COUNT),
        y: Axis::log_time("one-way delay", low, high),
        series: vec![
            line("p50", |times| times.p50),
            line("p99", |times| times.p99),
            line("max", |times| times.max),
        ],
        shades: Vec::new(),
        references: Vec::new(),
    };
    figure::chart(&chart, &data)
}
