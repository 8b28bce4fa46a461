//! One run: key figures, charts, all figures, losses, plan.

use linerate_record::plan::{Direction, RunKind, TransportProtocol};
use linerate_record::record::{FlowEnd, Interval, Record, Summary};
use linerate_stats::units::{format_bit_rate, format_count, format_nanos, format_share};

use super::figure::{self, ChartData, ChartRow};
use super::{costs, run_comparison, stages, with_micro_sign};
use crate::figures;
use crate::model::{self, SummaryFigure, or_unknown};
use crate::phrases;
use crate::round_trips;
use crate::svg::{
    AxisUnit, ChartAxis, ChartSeries, LineChart, ReferenceLine, SeriesMark, ShadedRange,
    escape_markup,
};

/// Number of streams shown in the table.
const MAX_STREAMS: usize = 64;

/// Renders one run with the HTML id `anchor`. The last argument is its path diagram, or empty if
/// the page already has it.
pub(super) fn run_section(run: &Record, anchor: &str, path: &str) -> String {
    let mut out = format!(
        "<section class=\"run\" id=\"{anchor}\">\n<h2>{}</h2>\n",
        escape_markup(&phrases::run_name(run))
    );
    let mut details = phrases::plan_details(&run.plan);
    if let Some(wait) = &run.plan.wait {
        details.push(phrases::describe_wait(
            "client",
            "server",
            wait,
            &run.plan.cpu,
        ));
    }
    out.push_str(&format!(
        "<p class=\"muted\">{}: {}</p>\n",
        escape_markup(&phrases::run_title(run)),
        escape_markup(&with_micro_sign(&details.join(", ")))
    ));
    if run.interrupted {
        let covered_time = or_unknown(run.summary.duration_ns, |time| {
            with_micro_sign(&format_nanos(time as f64))
        });
        out.push_str(&format!(
            "<p class=\"callout\"><b>Interrupted.</b> The figures cover {covered_time}.</p>\n"
        ));
    }
    for caveat in &run.validity {
        out.push_str(&format!(
            "<p class=\"callout\"><b>Note.</b> {} <code>{}</code></p>\n",
            escape_markup(&caveat.reason),
            escape_markup(caveat.id.as_str())
        ));
    }
    out.push_str(&key_figures(run));
    out.push_str(&super::findings::findings_section(run));
    out.push_str(path);
    match run.kind {
        RunKind::Throughput => {
            out.push_str(&goodput_over_time(run));
            out.push_str(&costs::streams_over_time(run));
            out.push_str(&lost_over_time(run));
            out.push_str(&stages::stage_section(run));
        }
        RunKind::Generate => out.push_str(&super::generate::generator_section(run)),
        RunKind::Stack => {}
        RunKind::Latency => {
            out.push_str(&run_comparison::rtt_distribution(
                "Round-trip times by percentile",
                &[run],
            ));
            out.push_str(&percentiles_over_time(run));
            out.push_str(&stages::stage_section(run));
        }
        RunKind::Forward => out.push_str(&super::forward::forward_section(run)),
    }
    out.push_str(&further_times(run));
    out.push_str(&slow_responses(run));
    if let Some(cost) = figures::describe_verification(run) {
        out.push_str(&format!(
            "<p class=\"muted\">Verified: {}.</p>\n",
            escape_markup(&cost)
        ));
    }
    out.push_str(&loss_section(run));
    out.push_str(&super::calls::calls_section(run));
    out.push_str(&figure_table(run));
    out.push_str(&stream_table(run));
    out.push_str(&costs::cost_tables(run));
    out.push_str(&plan_table(run));
    out.push_str("</section>\n");
    out
}

fn key_figures(run: &Record) -> String {
    let mut cards = Vec::new();
    let mut card = |label: &str, value: Option<String>, meaning: &str| {
        cards.push(format!(
            "<div class=\"card\"><div class=\"name\">{}</div><div class=\"figure\">{}</div><div class=\"muted\">{}</div></div>",
            escape_markup(label),
            escape_markup(&with_micro_sign(&or_unknown(value, |value| value))),
            escape_markup(meaning)
        ));
    };
    match run.kind {
        RunKind::Throughput => {
            let several = run.directions.len() > 1;
            let summaries: Vec<(String, &Summary)> = if run.directions.is_empty() {
                vec![(String::new(), &run.summary)]
            } else {
                run.directions
                    .iter()
                    .map(|figures| {
                        let label = if several {
                            format!(", {}", phrases::recorded_direction(run, figures.direction))
                        } else {
                            String::new()
                        };
                        (label, &figures.summary)
                    })
                    .collect()
            };
            let shown_names: &[&str] = match (run.plan.protocol, several) {
                (TransportProtocol::Tcp, false) => &["goodput", "retransmits", "calls/s"],
                (TransportProtocol::Tcp, true) => &["goodput", "retransmits"],
                (TransportProtocol::Udp, false) => &["goodput", "packets/s", "loss"],
                (TransportProtocol::Udp, true) => &["goodput", "loss"],
            };
            for (label, summary) in &summaries {
                for figure in figures::summary_figures(&run.plan, summary) {
                    if shown_names.contains(&figure.name) {
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
        RunKind::Stack => {}
        RunKind::Generate => {
            for figure in figures::summary_figures(&run.plan, &run.summary) {
                card(figure.name, figure.value, figure.meaning);
            }
        }
        RunKind::Latency => {
            for figure in figures::summary_figures(&run.plan, &run.summary) {
                if matches!(
                    figure.name,
                    "p50" | "p99" | "p99.9" | "max" | "rate" | "lost"
                ) {
                    card(figure.name, figure.value, figure.meaning);
                }
            }
        }
        RunKind::Forward => {
            for figure in figures::summary_figures(&run.plan, &run.summary) {
                card(figure.name, figure.value, figure.meaning);
            }
        }
    }
    let hosts = figures::cpu_costs(&run.summary);
    let hosts = hosts
        .into_iter()
        .filter(|_| has_client_and_server(run.kind));
    for (role, cost) in hosts {
        card(
            &format!("{} CPU", role.as_str()),
            cost.map(|cost| format_share(cost.share)),
            "of one CPU, for the threads that moved payload",
        );
    }
    // Cards per row: rows of equal length where the number allows it.
    let cards_per_row = match cards.len() {
        n @ 1..=6 => n.max(3),
        7 | 8 => 4,
        _ => 5,
    };
    format!(
        "<div class=\"cards by{cards_per_row}\">{}</div>\n",
        cards.concat()
    )
}

/// Returns whether a kind of run has a client and a server with CPU costs of their own.
fn has_client_and_server(kind: RunKind) -> bool {
    matches!(kind, RunKind::Throughput | RunKind::Latency)
}

/// Returns the intervals of one direction.
pub(super) fn intervals_of(run: &Record, direction: Direction) -> Vec<&Interval> {
    run.intervals
        .iter()
        .filter(|interval| interval.direction == direction && interval.end_ns > interval.start_ns)
        .collect()
}

pub(super) fn directions_of(run: &Record) -> Vec<Direction> {
    [Direction::Send, Direction::Receive]
        .into_iter()
        .filter(|&direction| run.intervals.iter().any(|i| i.direction == direction))
        .collect()
}

pub(super) fn time_axis(run: &Record) -> (ChartAxis, AxisUnit) {
    let end = run.intervals.iter().map(|i| i.end_ns).max().unwrap_or(0) as f64;
    let unit = AxisUnit::for_time(end);
    (ChartAxis::between("time", 0.0, end, unit), unit)
}

pub(super) fn omitted_range(run: &Record) -> Vec<ShadedRange> {
    let last = run
        .intervals
        .iter()
        .filter(|interval| interval.omitted)
        .map(|interval| interval.end_ns)
        .max();
    last.map(|to| ShadedRange {
        from: 0.0,
        to: to as f64,
        label: "omitted",
    })
    .into_iter()
    .collect()
}

fn goodput_of(interval: &Interval) -> f64 {
    interval.bytes as f64 * 8e9 / (interval.end_ns - interval.start_ns) as f64
}

/// Table behind a chart: one column per series, one row per interval.
pub(super) struct SeriesTable {
    unit: AxisUnit,
    headings: Vec<String>,
    rows: Vec<ChartRow>,
}

impl SeriesTable {
    pub(super) fn new(unit: AxisUnit) -> Self {
        Self {
            unit,
            headings: vec!["time".to_owned()],
            rows: Vec::new(),
        }
    }

    /// Adds a series; its intervals are matched with existing rows by time.
    pub(super) fn add_series(
        &mut self,
        name: &str,
        intervals: &[&Interval],
        read: impl Fn(&Interval) -> Option<f64>,
        write: impl Fn(f64) -> String,
    ) -> Vec<(f64, f64, f64)> {
        let column = self.headings.len() - 1;
        self.headings.push(name.to_owned());
        let mut spans = Vec::new();
        let mut position = 0;
        for interval in intervals {
            let (from, to) = (interval.start_ns as f64, interval.end_ns as f64);
            let x = f64::midpoint(from, to);
            let value = read(interval);
            spans.extend(value.map(|value| (from, to, value)));
            // Both lists ascend, so the search continues at the last position.
            while self.rows.get(position).is_some_and(|row| row.x < x) {
                position += 1;
            }
            if self.rows.get(position).is_none_or(|row| row.x != x) {
                let text = format!(
                    "{}-{} {}",
                    model::format_short(from / self.unit.size),
                    model::format_short(to / self.unit.size),
                    self.unit.name
                );
                self.rows.insert(
                    position,
                    ChartRow {
                        x,
                        text,
                        cells: Vec::new(),
                    },
                );
            }
            let cells = &mut self.rows[position].cells;
            cells.resize_with(column, || None);
            cells.push(value.map(|value| (value, with_micro_sign(&write(value)))));
        }
        for row in &mut self.rows {
            row.cells.resize_with(column + 1, || None);
        }
        spans
    }

    pub(super) fn into_chart_data(self) -> ChartData {
        ChartData {
            headings: self.headings,
            rows: self.rows,
        }
    }
}

fn goodput_over_time(run: &Record) -> String {
    let (x, unit) = time_axis(run);
    let mut columns = SeriesTable::new(unit);
    let mut series = Vec::new();
    let mut highest: f64 = 0.0;
    for direction in directions_of(run) {
        let spans = columns.add_series(
            phrases::recorded_direction(run, direction),
            &intervals_of(run, direction),
            |interval| Some(goodput_of(interval)),
            format_bit_rate,
        );
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(ChartSeries {
            name: phrases::recorded_direction(run, direction).to_owned(),
            mark: SeriesMark::Step(spans),
        });
    }
    // A single interval gives no curve.
    if highest == 0.0 || columns.rows.len() < 2 {
        return String::new();
    }
    // With two directions, a line for the mean of one would cross the curve of the other.
    let references = match (&run.directions[..], run.summary.goodput_bps) {
        ([_], Some(mean)) => vec![ReferenceLine {
            value: mean,
            label: format!("mean {}", format_bit_rate(mean)),
        }],
        _ => Vec::new(),
    };
    let sent = run
        .intervals
        .iter()
        .any(|interval| interval.counted_at == FlowEnd::Sender);
    let chart = LineChart {
        title: if sent {
            "Sent over time (received amount unknown)".to_owned()
        } else {
            "Goodput over time".to_owned()
        },
        is_secondary: false,
        x,
        y: ChartAxis::from_zero("", highest * 1.05, AxisUnit::for_bit_rate(highest)),
        series,
        shades: omitted_range(run),
        references,
    };
    figure::render_chart(&chart, &columns.into_chart_data())
}

/// Renders losses or retransmits per interval; empty if there are none.
fn lost_over_time(run: &Record) -> String {
    let (read, title): (fn(&Interval) -> Option<u64>, _) = match run.plan.protocol {
        TransportProtocol::Tcp => (|i| i.retransmits, "Retransmits over time"),
        TransportProtocol::Udp => (|i| i.lost, "Lost datagrams over time"),
    };
    let (x, unit) = time_axis(run);
    let mut columns = SeriesTable::new(unit);
    let mut series = Vec::new();
    let mut highest: f64 = 0.0;
    for direction in directions_of(run) {
        let intervals = intervals_of(run, direction);
        if intervals.iter().all(|i| read(i).unwrap_or(0) == 0) {
            continue;
        }
        let spans = columns.add_series(
            phrases::recorded_direction(run, direction),
            &intervals,
            |interval| read(interval).map(|count| count as f64),
            |count| format_count(count as u64),
        );
        highest = spans.iter().map(|span| span.2).fold(highest, f64::max);
        series.push(ChartSeries {
            name: phrases::recorded_direction(run, direction).to_owned(),
            mark: SeriesMark::Bars(spans),
        });
    }
    if highest == 0.0 || columns.rows.len() < 2 {
        return String::new();
    }
    let chart = LineChart {
        title: title.to_owned(),
        is_secondary: true,
        x,
        y: ChartAxis::from_zero("per interval", highest, AxisUnit::COUNT),
        series,
        shades: omitted_range(run),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &columns.into_chart_data())
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
    let mut columns = SeriesTable::new(unit);
    let (mut lowest, mut highest) = (f64::INFINITY, 0.0f64);
    let series = [("p50", 0), ("p99", 1), ("max", 2)]
        .into_iter()
        .map(|(name, quantile)| {
            let spans = columns.add_series(
                name,
                &intervals,
                |interval| {
                    interval.rtt_ns.map(|q| match quantile {
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
            ChartSeries {
                name: name.to_owned(),
                mark: SeriesMark::Step(spans),
            }
        })
        .collect();
    let chart = LineChart {
        title: "Round-trip times over time".to_owned(),
        is_secondary: false,
        x,
        y: ChartAxis::log_time("round-trip time", lowest, highest),
        series,
        shades: omitted_range(run),
        references: Vec::new(),
    };
    figure::render_chart(&chart, &columns.into_chart_data())
}

fn further_times(run: &Record) -> String {
    let Some((headings, rows)) = round_trips::further_distributions(run) else {
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
            out.push_str(&format!(
                "<td{class}>{}</td>",
                escape_markup(&with_micro_sign(cell))
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Number of slow responses shown in the table.
const MAX_SLOW_RESPONSES: usize = 200;

fn slow_responses(run: &Record) -> String {
    let (headings, rows) = round_trips::slow_response_rows(run, MAX_SLOW_RESPONSES);
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "<h3>Slow responses</h3>\n<p>{} above {}; of the {} listed: {}.</p>\n<div class=\"scroll\"><table><thead><tr>",
        or_unknown(run.summary.slow, format_count),
        escape_markup(&with_micro_sign(&or_unknown(
            run.plan.round_trip.limit_ns,
            model::format_duration
        ))),
        format_count(run.slow.len() as u64),
        escape_markup(&round_trips::count_causes(run))
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
                escape_markup(&with_micro_sign(cell))
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn loss_section(run: &Record) -> String {
    if run.losses.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h3>Where packets were lost</h3>\n");
    out.push_str(&super::loss_flow::loss_flows(run));
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>lost at</th><th class=\"text\">direction</th><th>packets</th><th class=\"text\">meaning</th></tr></thead><tbody>",
    );
    for loss in &run.losses {
        out.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"text\">{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            escape_markup(loss.place.as_str()),
            phrases::recorded_direction(run, loss.direction),
            figures::format_loss_count(loss),
            (loss.place.known()).map_or("", figures::describe_loss_point)
        ));
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn figure_table(run: &Record) -> String {
    let mut columns: Vec<(String, Vec<SummaryFigure>)> = run
        .directions
        .iter()
        .filter(|_| run.kind == RunKind::Throughput)
        .map(|direction| {
            let mut figures = figures::summary_figures(&run.plan, &direction.summary);
            figures.extend(figures::timing_figures(&direction.summary));
            (
                phrases::recorded_direction(run, direction.direction).to_owned(),
                figures,
            )
        })
        .collect();
    if columns.is_empty() {
        let figures = figures::summary_figures(&run.plan, &run.summary);
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
            let matching = figures.iter().find(|figure| figure.name == name);
            let value = matching.and_then(|figure| figure.value.clone());
            out.push_str(&format!(
                "<td>{}</td>",
                escape_markup(&with_micro_sign(&or_unknown(value, |v| v)))
            ));
        }
        out.push_str(&format!(
            "<td class=\"text\">{}</td></tr>",
            columns[0].1[position].meaning
        ));
    }
    let empty = "<td></td>".repeat(columns.len() - 1);
    let hosts = figures::cpu_costs(&run.summary).into_iter();
    for (role, cost) in hosts.filter(|_| has_client_and_server(run.kind)) {
        out.push_str(&format!(
            "<tr><th scope=\"row\">{} CPU</th><td>{}</td>{empty}<td class=\"text\">{}</td></tr>",
            role.as_str(),
            or_unknown(cost, |cost| format_share(cost.share)),
            or_unknown(cost, |cost| escape_markup(&figures::describe_cpu(cost)))
        ));
    }
    out.push_str("</tbody></table></div></details>\n");
    out
}

fn stream_table(run: &Record) -> String {
    let flows: Vec<_> = run
        .directions
        .iter()
        .flat_map(|direction_figures| {
            direction_figures.streams.iter().map(move |stream| {
                (
                    phrases::recorded_direction(run, direction_figures.direction),
                    stream,
                )
            })
        })
        .collect();
    if flows.len() <= run.directions.len() {
        return String::new();
    }
    let mut out = format!(
        "<details><summary>{} flows</summary><div class=\"scroll\"><table><thead><tr><th>flow</th><th class=\"text\">direction</th><th class=\"text\">from</th><th class=\"text\">to</th>",
        flows.len()
    );
    for figure in figures::stream_figures(&run.plan, &Summary::default()) {
        out.push_str(&format!("<th>{}</th>", figure.name));
    }
    out.push_str("</tr></thead><tbody>");
    for (direction, stream) in flows.iter().take(MAX_STREAMS) {
        let socket = |read: fn(&linerate_record::record::SocketFacts) -> Option<String>| {
            or_unknown(stream.sender.as_ref().and_then(read), |text| {
                escape_markup(&text)
            })
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
                escape_markup(&with_micro_sign(&or_unknown(figure.value, |v| v)))
            ));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    if flows.len() > MAX_STREAMS {
        out.push_str(&format!(
            "<p class=\"muted\">… and {} more in the record.</p>",
            flows.len() - MAX_STREAMS
        ));
    }
    out.push_str("</details>\n");
    out
}

/// Renders every effective option under its key in the record.
fn plan_table(run: &Record) -> String {
    let value = serde_json::to_value(&run.plan).expect("a plan is JSON");
    let mut out =
        String::from("<details><summary>Plan</summary><div class=\"scroll\"><table><tbody>");
    for (name, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::Null => "-".to_owned(),
            serde_json::Value::String(text) => text.clone(),
            other_value => other_value.to_string(),
        };
        out.push_str(&format!(
            "<tr><th scope=\"row\"><code>{}</code></th><td class=\"text\">{}</td></tr>",
            escape_markup(name),
            escape_markup(&text)
        ));
    }
    out.push_str(&format!(
        "<tr><th scope=\"row\"><code>id</code></th><td class=\"text\">{}</td></tr></tbody></table></div></details>\n",
        escape_markup(&run.id)
    ));
    out
}
