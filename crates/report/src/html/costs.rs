//! Cost of a run and its streams: tables and a chart.

use linerate_record::cost::StreamInterval;
use linerate_record::plan::Direction;
use linerate_record::record::{FlowEnd, Interval, Record};
use linerate_stats::units::{format_bit_rate, format_count, format_share};

use super::figure;
use super::run::{SeriesTable, directions_of, intervals_of, omitted_range, time_axis};
use super::with_micro_sign;
use crate::costs;
use crate::model::or_unknown;
use crate::phrases;
use crate::svg::{AxisUnit, ChartAxis, ChartSeries, LineChart, SeriesMark, escape_markup};

/// Largest number of streams with a line each.
const MAX_LINES: usize = 8;

/// Renders the goodput of each stream over time, or of the slowest, median and fastest stream.
pub(super) fn streams_over_time(run: &Record) -> String {
    directions_of(run)
        .into_iter()
        .map(|direction| stream_chart(run, direction))
        .collect()
}

fn stream_chart(run: &Record, direction: Direction) -> String {
    let intervals: Vec<&Interval> = intervals_of(run, direction)
        .into_iter()
        .filter(|interval| !interval.streams.is_empty())
        .collect();
    let count = intervals.iter().map(|i| i.streams.len()).max().unwrap_or(0);
    if count < 2 || intervals.len() < 2 {
        return String::new();
    }
    let (x, unit) = time_axis(run);
    let mut columns = SeriesTable::new(unit);
    let mut series = Vec::new();
    let mut highest: f64 = 0.0;
    let mut add_series = |name: String, read: &dyn Fn(&Interval) -> Option<f64>| {
        let spans = columns.add_series(&name, &intervals, read, format_bit_rate);
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(ChartSeries {
            name,
            mark: SeriesMark::Step(spans),
        });
    };
    if count <= MAX_LINES {
        let ids = intervals
            .iter()
            .flat_map(|i| i.streams.iter().map(|s| s.id));
        let ids: std::collections::BTreeSet<u32> = ids.collect();
        for id in ids {
            add_series(format!("flow {id}"), &|interval| {
                let stream = interval.streams.iter().find(|stream| stream.id == id)?;
                Some(goodput_of_stream(interval, stream))
            });
        }
    } else {
        for (name, quantile) in [("slowest", 0.0), ("median", 0.5), ("fastest", 1.0)] {
            add_series(name.to_owned(), &|interval| {
                let mut rates: Vec<f64> = interval
                    .streams
                    .iter()
                    .map(|s| goodput_of_stream(interval, s))
                    .collect();
                rates.sort_by(f64::total_cmp);
                let last = rates.len().checked_sub(1)?;
                rates
                    .get((last as f64 * quantile).round() as usize)
                    .copied()
            });
        }
    }
    if highest == 0.0 {
        return String::new();
    }
    let chart = LineChart {
        title: match run.directions.len() {
            0 | 1 => "Goodput of each flow over time".to_owned(),
            _ => format!(
                "Goodput of each flow over time, {}",
                phrases::recorded_direction(run, direction)
            ),
        },
        is_secondary: true,
        x,
        y: ChartAxis::from_zero("", highest * 1.05, AxisUnit::for_bit_rate(highest)),
        series,
        shades: omitted_range(run),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &columns.into_chart_data())
}

fn goodput_of_stream(interval: &Interval, stream: &StreamInterval) -> f64 {
    stream.bytes as f64 * 8e9 / (interval.end_ns - interval.start_ns) as f64
}

/// Renders the tables of measuring threads and of TCP figures.
pub(super) fn cost_tables(run: &Record) -> String {
    thread_table(run) + &tcp_table(run)
}

fn thread_table(run: &Record) -> String {
    let all: Vec<_> = (run.summary.cpu.iter())
        .flat_map(|cost| cost.threads.iter().map(move |thread| (cost.role, thread)))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<details><summary>Threads</summary><div class=\"scroll\"><table><thead><tr><th>thread</th><th class=\"text\">direction</th><th>flows</th><th>of a CPU</th><th>blocked</th><th>wake-up latency</th><th>waiting for a CPU</th><th>voluntary switches</th><th>involuntary switches</th><th class=\"text\">CPUs</th><th>instructions per cycle</th></tr></thead><tbody>",
    );
    for (role, thread) in all {
        let share = |ns: Option<u64>| {
            let wall = thread.wall_ns.max(1) as f64;
            or_unknown(ns, |ns| with_micro_sign(&format_share(ns as f64 / wall)))
        };
        let verb = match thread.flow_end {
            FlowEnd::Sender => "sends",
            FlowEnd::Receiver => "receives",
        };
        let rate = thread
            .cycles
            .filter(|&cycles| cycles > 0)
            .zip(thread.instructions);
        out.push_str(&format!(
            "<tr><th scope=\"row\">{} {verb}</th><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td></tr>",
            role.as_str(),
            thread.direction,
            format_count(thread.flows.into()),
            share(Some(thread.cpu_ns)),
            share(thread.blocked_ns),
            share(thread.run_delay().map(|delay| delay.wakeup_ns)),
            share(thread.run_delay().map(|delay| delay.core_wait_ns)),
            format_count(thread.voluntary_switches),
            format_count(thread.involuntary_switches),
            or_unknown(thread.cpus.as_ref(), ToString::to_string),
            or_unknown(rate, |(cycles, instructions)| format!(
                "{:.2}",
                instructions as f64 / cycles as f64
            )),
        ));
    }
    out.push_str("</tbody></table></div>");
    for cost in &run.summary.cpu {
        if let Some(why) = &cost.uncounted_reason {
            out.push_str(&format!(
                "<p class=\"muted\">{}: cycles unknown: {}.</p>",
                cost.role.as_str(),
                escape_markup(why)
            ));
        }
    }
    if let Some(memory) = costs::describe_memory(run) {
        out.push_str(&format!(
            "<p class=\"muted\">Memory per flow: {}.</p>",
            escape_markup(&with_micro_sign(&memory))
        ));
    }
    out.push_str("</details>\n");
    out
}

fn tcp_table(run: &Record) -> String {
    let rows = costs::tcp_rows(run);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<details><summary>TCP statistics</summary><div class=\"scroll\"><table><tbody>",
    );
    for (name, value, meaning) in rows {
        out.push_str(&format!(
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td class=\"text\">{meaning}</td></tr>",
            escape_markup(&with_micro_sign(&value))
        ));
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}
