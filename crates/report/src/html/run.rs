//! One run: key figures, charts, all figures, losses, plan.

use linerate_metric::plan::{Direction, Kind, Protocol};
use linerate_metric::record::{CountedAt, Interval, Record, Summary};
use linerate_metric::units::{format_bit_rate, format_count, format_nanos, format_share};

use super::figure::{self, Data, Row};
use super::{costs, pretty, run_comparison, stages};
use crate::figures::{self, Figure};
use crate::phrases::{self, or_unknown};
use crate::round_trips;
use crate::svg::{Axis, Chart, Mark, Reference, Series, Shade, Unit, escape};

/// Number of streams shown in the table.
const STREAMS: usize = 64;

/// Renders one run with the HTML id `anchor`. The last argument is its path diagram, or empty if
/// the page already has it.
pub(super) fn section(run: &Record, anchor: &str, way: &str) -> String {
    let mut out = format!(
        "<section class=\"run\" id=\"{anchor}\">\n<h2>{}</h2>\n",
        escape(&phrases::name(run))
    );
    let mut details = phrases::details(&run.plan);
    if let Some(wait) = &run.plan.wait {
        details.push(phrases::ends("client", "server", wait, &run.plan.cpu));
    }
    out.push_str(&format!(
        "<p class=\"muted\">{}: {}</p>\n",
        escape(&phrases::run_title(run)),
        escape(&pretty(&details.join(", ")))
    ));
    if run.interrupted {
        let until = or_unknown(run.summary.duration_ns, |time| {
            pretty(&format_nanos(time as f64))
        });
        out.push_str(&format!(
            "<p class=\"callout\"><b>Interrupted.</b> The figures cover {until}.</p>\n"
        ));
    }
    for doubt in &run.validity {
        out.push_str(&format!(
            "<p class=\"callout\"><b>Note.</b> {} <code>{}</code></p>\n",
            escape(&doubt.why),
            escape(&doubt.doubt)
        ));
    }
    out.push_str(&cards(run));
    out.push_str(&super::findings::section(run));
    out.push_str(way);
    match run.kind {
        Kind::Throughput => {
            out.push_str(&goodput_over_time(run));
            out.push_str(&costs::streams_over_time(run));
            out.push_str(&lost_over_time(run));
            out.push_str(&stages::section(run));
        }
        Kind::Generate => out.push_str(&super::generate::section(run)),
        Kind::Stack => {}
        Kind::Latency => {
            out.push_str(&run_comparison::distribution(
                "Round-trip times by percentile",
                &[run],
            ));
            out.push_str(&percentiles_over_time(run));
            out.push_str(&stages::section(run));
        }
        Kind::Forward => out.push_str(&super::forward::section(run)),
    }
    out.push_str(&more_times(run));
    out.push_str(&slow(run));
    if let Some(cost) = figures::verification(run) {
        out.push_str(&format!(
            "<p class=\"muted\">Verified: {}.</p>\n",
            escape(&cost)
        ));
    }
    out.push_str(&losses(run));
    out.push_str(&super::calls::section(run));
    out.push_str(&all_figures(run));
    out.push_str(&streams(run));
    out.push_str(&costs::tables(run));
    out.push_str(&plan(run));
    out.push_str("</section>\n");
    out
}

fn cards(run: &Record) -> String {
    let mut cards = Vec::new();
    let mut card = |label: &str, value: Option<String>, meaning: &str| {
        cards.push(format!(
            "<div class=\"card\"><div class=\"name\">{}</div><div class=\"figure\">{}</div><div class=\"muted\">{}</div></div>",
            escape(label),
            escape(&pretty(&or_unknown(value, |value| value))),
            escape(meaning)
        ));
    };
    match run.kind {
        Kind::Throughput => {
            let several = run.directions.len() > 1;
            let ways: Vec<(String, &Summary)> = if run.directions.is_empty() {
                vec![(String::new(), &run.summary)]
            } else {
                run.directions
                    .iter()
                    .map(|way| {
                        let label = if several {
                            format!(", {}", phrases::way_of(run, way.direction))
                        } else {
                            String::new()
                        };
                        (label, &way.summary)
                    })
                    .collect()
            };
            let wanted: &[&str] = match (run.plan.protocol, several) {
                (Protocol::Tcp, false) => &["goodput", "retransmits", "calls/s"],
                (Protocol::Tcp, true) => &["goodput", "retransmits"],
                (Protocol::Udp, false) => &["goodput", "packets/s", "loss"],
                (Protocol::Udp, true) => &["goodput", "loss"],
            };
            for (label, summary) in &ways {
                for figure in figures::figures(&run.plan, summary) {
                    if wanted.contains(&figure.name) {
                        card(
                            &format!("{}{label}", figure.name),
                            figure.value,
                            figure.meaning,
                        );
                    }
                }
            }
        }
        // A stack host is described in words.
        Kind::Stack => {}
        Kind::Generate => {
            for figure in figures::figures(&run.plan, &run.summary) {
                card(figure.name, figure.value, figure.meaning);
            }
        }
        Kind::Latency => {
            for figure in figures::figures(&run.plan, &run.summary) {
                if matches!(
                    figure.name,
                    "p50" | "p99" | "p99.9" | "max" | "rate" | "lost"
                ) {
                    card(figure.name, figure.value, figure.meaning);
                }
            }
        }
        Kind::Forward => {
            for figure in figures::figures(&run.plan, &run.summary) {
                card(figure.name, figure.value, figure.meaning);
            }
        }
    }
    let ends = figures::cpu(&run.summary);
    let ends = ends.into_iter().filter(|_| has_ends(run.kind));
    for (role, cost) in ends {
        card(
            &format!("{} CPU", figures::role(role)),
            cost.map(|cost| format_share(cost.share)),
            "of one core, for the threads that moved payload",
        );
    }
    // Cards per row: rows of equal length where the number allows it.
    let beside = match cards.len() {
        n @ 1..=6 => n.max(3),
        7 | 8 => 4,
        _ => 5,
    };
    format!("<div class=\"cards by{beside}\">{}</div>\n", cards.concat())
}

/// Returns whether a kind of run has a client and a server with CPU costs of their own.
fn has_ends(kind: Kind) -> bool {
    matches!(kind, Kind::Throughput | Kind::Latency)
}

/// Returns the intervals of one direction.
pub(super) fn of(run: &Record, direction: Direction) -> Vec<&Interval> {
    run.intervals
        .iter()
        .filter(|interval| interval.direction == direction && interval.end_ns > interval.start_ns)
        .collect()
}

pub(super) fn directions(run: &Record) -> Vec<Direction> {
    [Direction::Send, Direction::Receive]
        .into_iter()
        .filter(|&direction| run.intervals.iter().any(|i| i.direction == direction))
        .collect()
}

pub(super) fn time_axis(run: &Record) -> (Axis, Unit) {
    let end = run.intervals.iter().map(|i| i.end_ns).max().unwrap_or(0) as f64;
    let unit = Unit::of_time(end);
    (Axis::between("time", 0.0, end, unit), unit)
}

pub(super) fn omitted(run: &Record) -> Vec<Shade> {
    let last = run
        .intervals
        .iter()
        .filter(|interval| interval.omitted)
        .map(|interval| interval.end_ns)
        .max();
    last.map(|to| Shade {
        from: 0.0,
        to: to as f64,
        label: "omitted",
    })
    .into_iter()
    .collect()
}

fn rate(interval: &Interval) -> f64 {
    interval.bytes as f64 * 8e9 / (interval.end_ns - interval.start_ns) as f64
}

/// Table behind a chart: one column per series, one row per interval.
pub(super) struct Columns {
    unit: Unit,
    headings: Vec<String>,
    rows: Vec<Row>,
}

impl Columns {
    pub(super) fn new(unit: Unit) -> Self {
        Self {
            unit,
            headings: vec!["time".to_owned()],
            rows: Vec::new(),
        }
    }

    /// Adds a series; its intervals are matched with existing rows by time.
    pub(super) fn add(
        &mut self,
        name: &str,
        intervals: &[&Interval],
        read: impl Fn(&Interval) -> Option<f64>,
        write: impl Fn(f64) -> String,
    ) -> Vec<(f64, f64, f64)> {
        let column = self.headings.len() - 1;
        self.headings.push(name.to_owned());
        let mut spans = Vec::new();
        let mut at = 0;
        for interval in intervals {
            let (from, to) = (interval.start_ns as f64, interval.end_ns as f64);
            let x = f64::midpoint(from, to);
            let value = read(interval);
            spans.extend(value.map(|value| (from, to, value)));
            // Both lists ascend, so the search continues at the last position.
            while self.rows.get(at).is_some_and(|row| row.x < x) {
                at += 1;
            }
            if self.rows.get(at).is_none_or(|row| row.x != x) {
                let text = format!(
                    "{}-{} {}",
                    phrases::short(from / self.unit.size),
                    phrases::short(to / self.unit.size),
                    self.unit.name
                );
                self.rows.insert(
                    at,
                    Row {
                        x,
                        text,
                        cells: Vec::new(),
                    },
                );
            }
            let cells = &mut self.rows[at].cells;
            cells.resize_with(column, || None);
            cells.push(value.map(|value| (value, pretty(&write(value)))));
        }
        for row in &mut self.rows {
            row.cells.resize_with(column + 1, || None);
        }
        spans
    }

    pub(super) fn data(self) -> Data {
        Data {
            headings: self.headings,
            rows: self.rows,
        }
    }
}

fn goodput_over_time(run: &Record) -> String {
    let (x, unit) = time_axis(run);
    let mut columns = Columns::new(unit);
    let mut series = Vec::new();
    let mut highest: f64 = 0.0;
    for direction in directions(run) {
        let spans = columns.add(
            phrases::way_of(run, direction),
            &of(run, direction),
            |interval| Some(rate(interval)),
            format_bit_rate,
        );
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(Series {
            name: phrases::way_of(run, direction).to_owned(),
            mark: Mark::Step(spans),
        });
    }
    // A single interval gives no curve.
    if highest == 0.0 || columns.rows.len() < 2 {
        return String::new();
    }
    // With two directions, a line for the mean of one would cross the curve of the other.
    let references = match (&run.directions[..], run.summary.goodput_bps) {
        ([_], Some(mean)) => vec![Reference {
            value: mean,
            label: format!("mean {}", format_bit_rate(mean)),
        }],
        _ => Vec::new(),
    };
    let sent = run
        .intervals
        .iter()
        .any(|interval| interval.counted_at == CountedAt::Sender);
    let chart = Chart {
        title: if sent {
            "Sent over time (received amount unknown)".to_owned()
        } else {
            "Goodput over time".to_owned()
        },
        low: false,
        x,
        y: Axis::from_zero("", highest * 1.05, Unit::of_rate(highest)),
        series,
        shades: omitted(run),
        references,
    };
    figure::chart(&chart, &columns.data())
}

/// Renders losses or retransmits per interval; empty if there are none.
fn lost_over_time(run: &Record) -> String {
    let (read, title): (fn(&Interval) -> Option<u64>, _) = match run.plan.protocol {
        Protocol::Tcp => (|i| i.retransmits, "Retransmits over time"),
        Protocol::Udp => (|i| i.lost, "Lost datagrams over time"),
    };
    let (x, unit) = time_axis(run);
    let mut columns = Columns::new(unit);
    let mut series = Vec::new();
    let mut highest: f64 = 0.0;
    for direction in directions(run) {
        let intervals = of(run, direction);
        if intervals.iter().all(|i| read(i).unwrap_or(0) == 0) {
            continue;
        }
        let spans = columns.add(
            phrases::way_of(run, direction),
            &intervals,
            |interval| read(interval).map(|count| count as f64),
            |count| format_count(count as u64),
        );
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(Series {
            name: phrases::way_of(run, direction).to_owned(),
            mark: Mark::Bars(spans),
        });
    }
    if highest == 0.0 || columns.rows.len() < 2 {
        return String::new();
    }
    let chart = Chart {
        title: title.to_owned(),
        low: true,
        x,
        y: Axis::from_zero("per interval", highest, Unit::COUNT),
        series,
        shades: omitted(run),
        references: Vec::new(),
    };
    figure::chart(&chart, &columns.data())
}

fn percentiles_over_time(run: &Record) -> String {
    let (x, unit) = time_axis(run);
    let intervals: Vec<_> = run
        .intervals
        .iter()
        .filter(|interval| interval.end_ns > interval.start_ns)
        .collect();
    if intervals
        .iter()
        .filter(|interval| interval.rtt_ns.is_some())
        .count()
        < 2
    {
        return String::new();
    }
    let mut columns = Columns::new(unit);
    let (mut lowest, mut highest) = (f64::INFINITY, 0.0f64);
    let series = [("p50", 0), ("p99", 1), ("max", 2)]
        .into_iter()
        .map(|(name, which)| {
            let spans = columns.add(
                name,
                &intervals,
                |interval| {
                    interval.rtt_ns.map(|q| match which {
                        0 => q.p50,
                        1 => q.p99,
                        _ => q.max,
                    } as f64)
                },
                format_nanos,
            );
            for span in &spans {
                lowest = lowest.min(span.2);
                highest = highest.max(span.2);
            }
            Series {
                name: name.to_owned(),
                mark: Mark::Step(spans),
            }
        })
        .collect();
    let chart = Chart {
        title: "Round-trip times over time".to_owned(),
        low: false,
        x,
        y: Axis::log_time("round-trip time", lowest, highest),
        series,
        shades: omitted(run),
        references: Vec::new(),
    };
    figure::chart(&chart, &columns.data())
}

fn more_times(run: &Record) -> String {
    let Some((headings, rows)) = round_trips::more_times(run) else {
        return String::new();
    };
    let has = |name| run.histograms.contains_key(name);
    let title = match (has("whole_ns"), has("device_ns")) {
        (true, _) => "Time of each step",
        (false, true) => "Time inside and outside the device",
        (false, false) => "Times from the scheduled and from the actual send time",
    };
    let mut out = format!("<h3>{title}</h3>\n<div class=\"scroll\"><table><thead><tr>");
    let last = headings.len() - 1;
    for (position, heading) in headings.iter().enumerate() {
        let class = if position == last {
            " class=\"text\""
        } else {
            ""
        };
        out.push_str(&format!("<th{class}>{heading}</th>"));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str(&format!("<tr><th scope=\"row\">{}</th>", row[0]));
        for (position, cell) in row.iter().enumerate().skip(1) {
            let class = if position == last {
                " class=\"text\""
            } else {
                ""
            };
            out.push_str(&format!("<td{class}>{}</td>", escape(&pretty(cell))));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Number of slow responses shown in the table.
const SLOW: usize = 200;

fn slow(run: &Record) -> String {
    let (headings, rows) = round_trips::slow_rows(run, SLOW);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "<h3>Slow responses</h3>\n<p>{} above {}; of the {} listed: {}.</p>\n<div class=\"scroll\"><table><thead><tr>",
        or_unknown(run.summary.slow, format_count),
        escape(&pretty(&or_unknown(
            run.plan.round_trip.limit_ns,
            phrases::duration
        ))),
        format_count(run.slow.len() as u64),
        escape(&round_trips::causes(run))
    );
    let class = |position: usize| match position + 2 < headings.len() {
        true => "",
        false => " class=\"text\"",
    };
    for (position, heading) in headings.iter().enumerate() {
        out.push_str(&format!("<th{}>{heading}</th>", class(position)));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (position, cell) in row.iter().enumerate() {
            out.push_str(&format!(
                "<td{}>{}</td>",
                class(position),
                escape(&pretty(cell))
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn losses(run: &Record) -> String {
    if run.losses.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h3>Where packets were lost</h3>\n");
    out.push_str(&super::loss_flow::flows(run));
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>place</th><th class=\"text\">direction</th><th>packets</th><th class=\"text\">meaning</th></tr></thead><tbody>",
    );
    for loss in &run.losses {
        out.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            escape(&loss.place),
            phrases::way_of(run, loss.direction),
            figures::loss_count(loss),
            figures::place(&loss.place).unwrap_or_default()
        ));
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn all_figures(run: &Record) -> String {
    let mut columns: Vec<(String, Vec<Figure>)> = run
        .directions
        .iter()
        .filter(|_| run.kind == Kind::Throughput)
        .map(|way| {
            let mut figures = figures::figures(&run.plan, &way.summary);
            figures.extend(figures::times_of(&way.summary));
            (phrases::way_of(run, way.direction).to_owned(), figures)
        })
        .collect();
    if columns.is_empty() {
        let figures = figures::figures(&run.plan, &run.summary);
        columns.push(("value".to_owned(), figures));
    }
    let mut out = String::from(
        "<details><summary>All figures</summary><div class=\"scroll\"><table><thead><tr><th>figure</th>",
    );
    for (name, _) in &columns {
        out.push_str(&format!("<th>{name}</th>"));
    }
    out.push_str("<th class=\"text\">meaning</th></tr></thead><tbody>");
    for position in 0..columns[0].1.len() {
        out.push_str(&format!(
            "<tr><th scope=\"row\">{}</th>",
            columns[0].1[position].name
        ));
        for (_, figures) in &columns {
            let name = columns[0].1[position].name;
            let same = figures.iter().find(|figure| figure.name == name);
            let value = same.and_then(|figure| figure.value.clone());
            out.push_str(&format!(
                "<td>{}</td>",
                escape(&pretty(&or_unknown(value, |v| v)))
            ));
        }
        out.push_str(&format!(
            "<td class=\"text\">{}</td></tr>",
            columns[0].1[position].meaning
        ));
    }
    let empty = "<td></td>".repeat(columns.len() - 1);
    let ends = figures::cpu(&run.summary).into_iter();
    for (role, cost) in ends.filter(|_| has_ends(run.kind)) {
        out.push_str(&format!(
            "<tr><th scope=\"row\">{} CPU</th><td>{}</td>{empty}<td class=\"text\">{}</td></tr>",
            figures::role(role),
            or_unknown(cost, |cost| format_share(cost.share)),
            or_unknown(cost, |cost| escape(&figures::cpu_words(cost)))
        ));
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}

fn streams(run: &Record) -> String {
    let flows: Vec<_> = run
        .directions
        .iter()
        .flat_map(|way| {
            way.streams
                .iter()
                .map(move |stream| (phrases::way_of(run, way.direction), stream))
        })
        .collect();
    if flows.len() <= run.directions.len() {
        return String::new();
    }
    let mut out = format!(
        "<details><summary>{} streams</summary><div class=\"scroll\"><table><thead><tr><th>stream</th><th class=\"text\">direction</th><th class=\"text\">from</th><th class=\"text\">to</th>",
        flows.len()
    );
    for figure in figures::stream_figures(&run.plan, &Summary::default()) {
        out.push_str(&format!("<th>{}</th>", figure.name));
    }
    out.push_str("</tr></thead><tbody>");
    for (direction, stream) in flows.iter().take(STREAMS) {
        let socket = |read: fn(&linerate_metric::record::Socket) -> Option<String>| {
            or_unknown(stream.sender.as_ref().and_then(read), |text| escape(&text))
        };
        out.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text\">{direction}</td><td class=\"text\">{}</td><td class=\"text\">{}</td>",
            stream.id,
            socket(|socket| socket.local.clone()),
            socket(|socket| socket.remote.clone())
        ));
        for figure in figures::stream_figures(&run.plan, &stream.summary) {
            out.push_str(&format!(
                "<td>{}</td>",
                escape(&pretty(&or_unknown(figure.value, |v| v)))
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    if flows.len() > STREAMS {
        out.push_str(&format!(
            "<p class=\"muted\">… and {} more in the record.</p>",
            flows.len() - STREAMS
        ));
    }
    out.push_str("</details>\n");
    out
}

/// Renders every effective option under its key in the record.
fn plan(run: &Record) -> String {
    let value = serde_json::to_value(&run.plan).expect("a plan is JSON");
    let mut out =
        String::from("<details><summary>Plan</summary><div class=\"scroll\"><table><tbody>");
    for (name, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::Null => "-".to_owned(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        out.push_str(&format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td class=\"text\">{}</td></tr>",
            escape(name),
            escape(&text)
        ));
    }
    out.push_str(&format!(
        "<tr><th scope=\"row\"><code>id</code></th><td class=\"text\">{}</td></tr></tbody></table></div></details>\n",
        escape(&run.id)
    ));
    out
}
