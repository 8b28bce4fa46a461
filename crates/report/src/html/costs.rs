//! Cost of a run and its streams: tables and a chart.

use linerate_metric::cost::StreamInterval;
use linerate_metric::plan::Direction;
use linerate_metric::record::{CountedAt, Interval, Record};
use linerate_metric::units::{format_bit_rate, format_count, format_share};

use super::figure;
use super::pretty;
use super::run::{Columns, directions, of, omitted, time_axis};
use crate::phrases::{self, or_unknown};
use crate::svg::{Axis, Chart, Mark, Series, Unit, escape};
use crate::{costs, figures};

/// Largest number of streams with a line each.
const LINES: usize = 8;

/// Renders the goodput of each stream over time, or of the slowest, median and fastest stream.
pub(super) fn streams_over_time(run: &Record) -> String {
    directions(run)
        .into_iter()
        .map(|direction| stream_chart(run, direction))
        .collect()
}

fn stream_chart(run: &Record, direction: Direction) -> String {
    let intervals: Vec<&Interval> = of(run, direction)
        .into_iter()
        .filter(|interval| !interval.streams.is_empty())
        .collect();
    let count = intervals.iter().map(|i| i.streams.len()).max().unwrap_or(0);
    if count < 2 || intervals.len() < 2 {
        return String::new();
    }
    let (x, unit) = time_axis(run);
    let mut columns = Columns::new(unit);
    let mut series = Vec::new();
    let mut highest: f64 = 0.0;
    let mut add = |name: String, read: &dyn Fn(&Interval) -> Option<f64>| {
        let spans = columns.add(&name, &intervals, read, format_bit_rate);
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(Series {
            name,
            mark: Mark::Step(spans),
        });
    };
    if count <= LINES {
        let ids = intervals
            .iter()
            .flat_map(|i| i.streams.iter().map(|s| s.id));
        let ids: std::collections::BTreeSet<u32> = ids.collect();
        for id in ids {
            add(format!("stream {id}"), &|interval| {
                let stream = interval.streams.iter().find(|stream| stream.id == id)?;
                Some(rate(interval, stream))
            });
        }
    } else {
        for (name, place) in [("slowest", 0.0), ("median", 0.5), ("fastest", 1.0)] {
            add(name.to_owned(), &|interval| {
                let mut rates: Vec<f64> =
                    interval.streams.iter().map(|s| rate(interval, s)).collect();
                rates.sort_by(f64::total_cmp);
                let last = rates.len().checked_sub(1)?;
                rates.get((last as f64 * place).round() as usize).copied()
            });
        }
    }
    if highest == 0.0 {
        return String::new();
    }
    let chart = Chart {
        title: match run.directions.len() {
            0 | 1 => "Goodput of each stream over time".to_owned(),
            _ => format!(
                "Goodput of each stream over time, {}",
                phrases::way_of(run, direction)
            ),
        },
        low: true,
        x,
        y: Axis::from_zero("", highest * 1.05, Unit::of_rate(highest)),
        series,
        shades: omitted(run),
        references: Vec::new(),
    };
    figure::chart(&chart, &columns.data())
}

fn rate(interval: &Interval, stream: &StreamInterval) -> f64 {
    stream.bytes as f64 * 8e9 / (interval.end_ns - interval.start_ns) as f64
}

/// Renders the tables of measuring threads and of TCP figures.
pub(super) fn tables(run: &Record) -> String {
    threads(run) + &tcp(run)
}

fn threads(run: &Record) -> String {
    let all: Vec<_> = (run.summary.cpu.iter())
        .flat_map(|cost| cost.threads.iter().map(move |thread| (cost.role, thread)))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<details><summary>Threads</summary><div class=\"scroll\"><table><thead><tr><th>thread</th><th class=\"text\">direction</th><th>streams</th><th>of a core</th><th>blocked</th><th>wake-up latency</th><th>waiting for a core</th><th>voluntary switches</th><th>involuntary switches</th><th class=\"text\">cores</th><th>instructions per cycle</th></tr></thead><tbody>",
    );
    for (role, thread) in all {
        let share = |ns: Option<u64>| {
            let wall = thread.wall_ns.max(1) as f64;
            or_unknown(ns, |ns| pretty(&format_share(ns as f64 / wall)))
        };
        let does = match thread.part {
            CountedAt::Sender => "sends",
            CountedAt::Receiver => "receives",
        };
        let rate = thread
            .cycles
            .filter(|&cycles| cycles > 0)
            .zip(thread.instructions);
        out.push_str(&format!(
            "<tr><th scope=\"row\">{} {does}</th><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"text\">{}</td><td>{}</td></tr>",
            figures::role(role),
            thread.direction,
            format_count(thread.flows.into()),
            share(Some(thread.cpu_ns)),
            share(thread.blocked_ns),
            share(thread.delay().map(|delay| delay.waking_ns)),
            share(thread.delay().map(|delay| delay.waited_ns)),
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
        if let Some(why) = &cost.uncounted_because {
            out.push_str(&format!(
                "<p class=\"muted\">{}: cycles unknown: {}.</p>",
                figures::role(cost.role),
                escape(why)
            ));
        }
    }
    if let Some(memory) = costs::memory_words(run) {
        out.push_str(&format!(
            "<p class=\"muted\">Memory per stream: {}.</p>",
            escape(&pretty(&memory))
        ));
    }
    out.push_str("</details>\n");
    out
}

fn tcp(run: &Record) -> String {
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
            escape(&pretty(&value))
        ));
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}
