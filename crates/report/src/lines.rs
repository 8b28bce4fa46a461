//! Live text: a few lines per event while runs are in progress.

use std::collections::HashMap;

use linerate_record::cost::StreamInterval;
use linerate_record::event::{Event, EventKind};
use linerate_record::facts::Role;
use linerate_record::plan::{CopyModes, Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::{Caveat, FlowEnd, Interval};
use linerate_stats::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use crate::model::{self, UNKNOWN, or_unknown};
use crate::phrases;
use crate::style::{PaintRole, TextStyle, strip_control_characters, wrap_with_prefix};
use crate::text;

/// Converts events to lines and keeps the columns of each test.
///
/// A client's lines omit the summary and the failure, because the caller prints the record or the
/// error. A server's lines carry the number of the test and include both.
#[derive(Debug)]
pub struct LiveLines {
    style: TextStyle,
    serving: bool,
    tests: HashMap<u32, LiveTest>,
    /// Columns of the last printed header.
    last_header: Option<ColumnLayout>,
    /// True if each stream of an interval gets a line.
    per_stream: bool,
    /// Last connection of a series of runs.
    last_connection: String,
    /// Title and details of the last run of a series.
    last_details: Vec<String>,
    /// Caveats printed so far.
    printed_caveats: Vec<Caveat>,
}

#[derive(Debug, Default)]
struct LiveTest {
    peer: String,
    layout: Option<ColumnLayout>,
}

/// Inputs that determine the columns of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnLayout {
    kind: RunKind,
    protocol: TransportProtocol,
    bidirectional: bool,
    decimals: usize,
    /// Skipped copies of the data path.
    copies: CopyModes,
    /// True for the lines of a server.
    serving: bool,
    /// True if lines may be marked as counted at the sender.
    may_count_at_sender: bool,
}

impl LiveLines {
    /// Returns a renderer for a program that makes one run at a time.
    #[must_use]
    pub fn new(style: TextStyle) -> Self {
        Self {
            style,
            serving: false,
            tests: HashMap::new(),
            last_header: None,
            per_stream: false,
            last_connection: String::new(),
            last_details: Vec::new(),
            printed_caveats: Vec::new(),
        }
    }

    /// Returns true if the details of the current run were printed.
    #[must_use]
    pub fn has_printed_details(&self) -> bool {
        !self.last_details.is_empty()
    }

    /// Adds a line for each stream of an interval, if the interval has per-stream values.
    #[must_use]
    pub fn with_per_stream(self, per_stream: bool) -> Self {
        Self { per_stream, ..self }
    }

    /// Returns a renderer for a server, whose tests run concurrently.
    #[must_use]
    pub fn for_server(style: TextStyle) -> Self {
        Self {
            serving: true,
            ..Self::new(style)
        }
    }

    /// Renders one event; `None` for an event without output.
    pub fn render_event(&mut self, event: &Event) -> Option<String> {
        let text = match &event.kind {
            EventKind::Ready {
                port,
                addresses,
                other_ports: also,
            } => self.render_ready(*port, addresses, also),
            EventKind::Connected {
                peer,
                agent,
                accepted,
            } => {
                self.tests.entry(event.test).or_default().peer =
                    strip_control_characters(peer).into_owned();
                let verb = match (self.serving, accepted) {
                    (true, _) => "client",
                    (false, true) => "connection from",
                    (false, false) => "connected to",
                };
                if self.logs_lines() {
                    return None;
                }
                let text = format!("{verb} {peer} ({agent})");
                // The runs of a series have one server.
                if !self.serving && self.last_connection == text {
                    return None;
                }
                self.last_connection.clone_from(&text);
                self.dim(&strip_control_characters(&text))
            }
            EventKind::Started {
                plan,
                wait,
                cpu,
                wait_reason: reason,
            } => {
                // Other programs report the received amount only at the end.
                let counts_at_sender = plan.peer_protocol.is_some()
                    && plan.kind == RunKind::Throughput
                    && plan.has_direction(Direction::Receive);
                let layout = ColumnLayout {
                    serving: self.serving,
                    may_count_at_sender: self.serving && counts_at_sender,
                    ..ColumnLayout::of_plan(plan)
                };
                self.tests.entry(event.test).or_default().layout = Some(layout);
                if self.serving {
                    // The header is repeated after lines of other tests.
                    self.last_header = None;
                }
                if self.logs_lines() {
                    return None;
                }
                let role_name = |role| model::role_name(plan, role);
                let (client, server) = (role_name(Role::Client), role_name(Role::Server));
                let has_wait = plan.kind != RunKind::Generate && !self.style.brief;
                let wait = has_wait.then(|| {
                    let wait = match plan.peer_protocol {
                        // The wait mode of another program is unknown.
                        Some(_) if self.serving => {
                            phrases::describe_local_wait(server, wait.server, &cpu.server)
                        }
                        Some(_) => phrases::describe_local_wait(client, wait.client, &cpu.client),
                        None => phrases::describe_wait(client, server, wait, cpu),
                    };
                    match reason {
                        Some(reason) => format!("chosen automatically: {wait}, because {reason}"),
                        None => wait,
                    }
                });
                let title = self.title(event.test, plan);
                let line = self.describe_start(title, phrases::plan_details(plan), wait)?;
                crate::style::wrap(
                    &strip_control_characters(&line),
                    self.text_width(event.test),
                )
                .join("\n")
            }
            EventKind::Interval { .. }
            | EventKind::StackInterval { .. }
            | EventKind::CaveatRaised { .. }
                if self.logs_lines() =>
            {
                return None;
            }
            EventKind::Interval { interval } => self.render_interval(event.test, interval),
            EventKind::StackInterval { interval } => text::stack::describe_interval(interval),
            EventKind::CaveatRaised { caveat } => {
                if !self.serving {
                    if self.printed_caveats.contains(caveat) {
                        return None;
                    }
                    self.printed_caveats.push(caveat.clone());
                }
                text::render_caveat(caveat, &self.style, self.text_width(event.test))
            }
            EventKind::Pass {
                pass,
                passes,
                notes,
            } => format!(
                "pass {pass} of {passes}: {}",
                strip_control_characters(notes)
            ),
            EventKind::Waiting { activity: awaited } => {
                format!("waiting for {}", strip_control_characters(awaited))
            }
            EventKind::Refused { problem } => text::render_rejection(problem, &self.style),
            EventKind::CapacityTrial { trial } => text::describe_capacity_trial(trial),
            EventKind::Trial { trial } => text::describe_trial(trial, self.text_width(event.test)),
            EventKind::Finished { record } => {
                let test = self.tests.remove(&event.test).unwrap_or_default();
                if !self.serving {
                    return None;
                }
                self.last_header = None;
                if self.logs_lines() {
                    // The log has no lines of other tests between those of this one.
                    return Some(text::render_server_line(record, &test.peer));
                }
                let details = test.layout.is_none();
                let style = self.style_of_test(event.test);
                text::render_server_summary(record, &test.peer, details, &style)
            }
            EventKind::Failed { problem } => {
                self.tests.remove(&event.test);
                self.last_header = None;
                if !self.serving {
                    return None;
                }
                text::render_error(problem, &self.style_of_test(event.test))
            }
        };
        Some(self.prefix_lines(event.test, &text))
    }

    /// Returns true if each test is one line of a server's log.
    fn logs_lines(&self) -> bool {
        self.serving && self.style.brief
    }

    fn render_ready(&self, port: u16, addresses: &[String], other_ports: &[u16]) -> String {
        let listen_addresses: Vec<_> = addresses
            .iter()
            .map(|address| model::format_address(&strip_control_characters(address), port))
            .collect();
        let listen_addresses = if listen_addresses.is_empty() {
            format!("port {port}")
        } else {
            listen_addresses.join(", ")
        };
        let prefix = "listening on ";
        let other_ports: Vec<_> = other_ports.iter().map(u16::to_string).collect();
        let listen_addresses = match other_ports.is_empty() {
            true => listen_addresses,
            false => format!(
                "{listen_addresses} (also on port {})",
                other_ports.join(", ")
            ),
        };
        wrap_with_prefix(prefix, prefix, &listen_addresses, self.style.width)
    }

    /// Describes the start of a run: title, details, wait modes. Of a further run of a series only
    /// the parts that differ, if any do.
    fn describe_start(
        &mut self,
        title: String,
        details: Vec<String>,
        wait: Option<String>,
    ) -> Option<String> {
        let first = format!("{title}: {}", details.join(", "));
        let first: Vec<_> = std::iter::once(first).chain(wait.clone()).collect();
        let parts: Vec<_> = (std::iter::once(title).chain(details).chain(wait)).collect();
        let is_new = |part: &&String| !self.last_details.contains(part);
        let text = match !self.serving && self.last_details.first() == parts.first() {
            true => parts
                .iter()
                .filter(is_new)
                .cloned()
                .collect::<Vec<_>>()
                .join(", "),
            false => first.join("; "),
        };
        self.last_details = parts;
        (!text.is_empty()).then_some(text)
    }

    /// Title of a run: `TCP send to 10.77.0.2:5201`. A server's title names the client and its
    /// direction.
    fn title(&self, test: u32, plan: &Plan) -> String {
        if !self.serving {
            return phrases::plan_title(plan);
        }
        let peer = self
            .tests
            .get(&test)
            .map(|test| test.peer.as_str())
            .filter(|peer| !peer.is_empty())
            .unwrap_or("the client");
        phrases::server_view_title(plan, peer)
    }

    fn render_interval(&mut self, test: u32, interval: &Interval) -> String {
        let layout = self
            .tests
            .get(&test)
            .and_then(|test| test.layout)
            .unwrap_or_else(|| ColumnLayout::of_interval(interval));
        let skipped = model::skipped_copies(layout.copies);
        // Marks after the columns reduce the width that is left for columns.
        let reserved_width = skipped.as_ref().map_or(0, |mark| mark.len() + 12);
        let reserved_width = reserved_width
            + if layout.may_count_at_sender {
                "  (sent)".len()
            } else {
                0
            };
        let text_width = self.text_width(test);
        let (columns, gap) = (layout.columns_for_width(text_width.saturating_sub(reserved_width)))
            .or_else(|| layout.columns_for_width(text_width))
            .unwrap_or_else(|| layout.required_columns());
        let mut out = String::new();
        if self.last_header != Some(layout) {
            self.last_header = Some(layout);
            let header = join_cells(&columns, gap, |column| column.heading.to_owned());
            out.push_str(&self.style.paint(PaintRole::Heading, header.trim_end()));
            out.push('\n');
        }
        let mut line = join_cells(&columns, gap, |column| (column.cell)(layout, interval));
        // Round trips are always counted at the client.
        let counted_at_sender =
            layout.kind == RunKind::Throughput && interval.counted_at == FlowEnd::Sender;
        let marks: Vec<_> = [
            counted_at_sender.then(|| "sent".to_owned()),
            interval.omitted.then(|| "omitted".to_owned()),
            skipped,
        ]
        .into_iter()
        .flatten()
        .collect();
        if !marks.is_empty() {
            let marks = format!("({})", marks.join(", "));
            let fits = line.chars().count() + 2 + marks.chars().count() <= text_width;
            // The mark of a skipped copy must not be dropped: without space it goes to the next
            // line.
            line.push_str(&match fits {
                true => format!("  {marks}"),
                false => format!("\n{:>text_width$}", marks),
            });
        }
        if interval.omitted {
            line = self.dim(&line);
        }
        out.push_str(&line);
        if self.per_stream {
            for stream in &interval.streams {
                let line = join_cells(&columns, gap, |column| {
                    if column.heading == TIME.heading {
                        return format!("[{}]", stream.id);
                    }
                    (column.cell)(layout, &interval_of_stream(interval, stream))
                });
                out.push('\n');
                out.push_str(&self.dim(&line));
            }
        }
        out
    }

    fn dim(&self, text: &str) -> String {
        self.style.paint(PaintRole::Dim, text)
    }

    fn style_of_test(&self, test: u32) -> TextStyle {
        TextStyle {
            width: self.text_width(test),
            ..self.style
        }
    }

    fn text_width(&self, test: u32) -> usize {
        self.style.width - if self.serving { prefix(test).len() } else { 0 }
    }

    /// Prefixes each line with the number of the test, because lines of several tests are mixed.
    fn prefix_lines(&self, test: u32, text: &str) -> String {
        if !self.serving || test == 0 {
            return text.to_owned();
        }
        let prefix = prefix(test);
        let lines: Vec<_> = text
            .lines()
            .map(|line| format!("{prefix}{line}").trim_end().to_owned())
            .collect();
        lines.join("\n")
    }
}

fn prefix(test: u32) -> String {
    format!("{:<4} ", format!("[{test}]"))
}

/// Column of a live line: heading, width, alignment, content.
struct LineColumn {
    heading: &'static str,
    width: usize,
    left_aligned: bool,
    /// True if the column is dropped in narrow terminals, because another column has similar
    /// content.
    optional: bool,
    cell: fn(ColumnLayout, &Interval) -> String,
}

const fn optional_column(column: LineColumn) -> LineColumn {
    LineColumn {
        optional: true,
        ..column
    }
}

const fn column(
    heading: &'static str,
    width: usize,
    cell: fn(ColumnLayout, &Interval) -> String,
) -> LineColumn {
    LineColumn {
        heading,
        width,
        left_aligned: false,
        optional: false,
        cell,
    }
}

const TIME: LineColumn = column("seconds", 13, |shape, i| {
    let at = |ns: u64| format!("{:.*}", shape.decimals, ns as f64 / 1e9);
    // Fixed widths keep the dash in place while the numbers grow.
    format!("{:>6}-{:<6}", at(i.start_ns), at(i.end_ns))
});
const DIRECTION: LineColumn = LineColumn {
    heading: "direction",
    width: 9,
    left_aligned: true,
    optional: false,
    cell: |shape, i| model::direction_name(i.direction, shape.serving).to_owned(),
};

const TRANSFERRED: LineColumn = optional_column(column("payload", 9, |_, i| format_bytes(i.bytes)));
const RATE: LineColumn = column("goodput", 9, |_, i| {
    or_unknown(seconds(i), |s| format_bit_rate(i.bytes as f64 * 8.0 / s))
});
const LOST: LineColumn = column("lost", 6, |_, i| or_unknown(i.lost, format_count));

const TCP: &[LineColumn] = &[
    TRANSFERRED,
    RATE,
    column("calls/s", 8, |_, i| per_second(i, i.calls)),
    column("retr", 6, |_, i| or_unknown(i.retransmits, format_count)),
    column("cwnd", 8, |_, i| or_unknown(i.cwnd_bytes, format_bytes)),
    column("rtt", 7, |_, i| {
        or_unknown(i.tcp_rtt_ns, |ns| format_nanos(ns as f64))
    }),
];

const UDP: &[LineColumn] = &[
    TRANSFERRED,
    RATE,
    column("packets/s", 9, |_, i| per_second(i, i.packets)),
    column("lost/total", 17, |_, i| {
        or_unknown(lost_of_total(i), |(lost, total)| {
            format!("{}/{}", format_count(lost), format_count(total))
        })
    }),
    column("loss", 7, |_, i| {
        or_unknown(
            lost_of_total(i).filter(|(_, total)| *total > 0),
            |(lost, total)| format_share(lost as f64 / total as f64),
        )
    }),
];

const GENERATE: &[LineColumn] = &[
    column("sent/s", 9, |_, i| per_second(i, i.packets_sent)),
    column("received/s", 10, |_, i| per_second(i, i.packets)),
    optional_column(column("received", 13, |_, i| {
        or_unknown(i.packets, format_count)
    })),
    column("missing", 9, |_, i| or_unknown(i.lost, format_count)),
];

const LATENCY: &[LineColumn] = &[
    column("round trips", 11, |_, i| {
        or_unknown(i.packets, format_count)
    }),
    column("rate", 8, |_, i| per_second(i, i.packets)),
    column("min", 7, |_, i| {
        or_unknown(i.rtt_ns, |q| format_nanos(q.min as f64))
    }),
    optional_column(column("mean", 7, |_, i| {
        or_unknown(i.rtt_ns, |q| format_nanos(q.mean))
    })),
    column("p50", 7, |_, i| {
        or_unknown(i.rtt_ns, |q| format_nanos(q.p50 as f64))
    }),
    column("p99", 7, |_, i| {
        or_unknown(i.rtt_ns, |q| format_nanos(q.p99 as f64))
    }),
    column("max", 7, |_, i| {
        or_unknown(i.rtt_ns, |q| format_nanos(q.max as f64))
    }),
    LOST,
];

/// Returns one stream's share of an interval as an interval.
fn interval_of_stream(interval: &Interval, stream: &StreamInterval) -> Interval {
    Interval {
        bytes: stream.bytes,
        packets: stream.packets,
        calls: None,
        lost: stream.lost,
        retransmits: stream.retransmits,
        cwnd_bytes: stream.cwnd_bytes,
        tcp_rtt_ns: stream.tcp_rtt_ns,
        streams: Vec::new(),
        ..interval.clone()
    }
}

fn seconds(interval: &Interval) -> Option<f64> {
    let length = interval.end_ns.saturating_sub(interval.start_ns);
    (length > 0).then(|| length as f64 / 1e9)
}

fn per_second(interval: &Interval, count: Option<u64>) -> String {
    match (count, seconds(interval)) {
        (Some(count), Some(seconds)) => format_per_second(count as f64 / seconds),
        _ => UNKNOWN.to_owned(),
    }
}

/// Returns missing sequence numbers and their total; only the receiver counts them.
fn lost_of_total(interval: &Interval) -> Option<(u64, u64)> {
    let lost = interval.lost?;
    Some((lost, interval.packets?.saturating_add(lost)))
}

impl ColumnLayout {
    fn of_plan(plan: &Plan) -> Self {
        // Decimals as the interval length requires: 1 s and 0.25 s need two.
        let interval_ns = plan.interval_ns.unwrap_or(1_000_000_000);
        let decimals = match interval_ns {
            n if n % 10_000_000 == 0 => 2,
            n if n % 1_000_000 == 0 => 3,
            _ => 4,
        };
        Self {
            kind: plan.kind,
            protocol: plan.protocol,
            bidirectional: plan.has_direction(Direction::Send)
                && plan.has_direction(Direction::Receive),
            decimals,
            copies: plan.copies,
            serving: false,
            may_count_at_sender: false,
        }
    }

    /// Derives the columns from an interval when its start event is missing.
    fn of_interval(interval: &Interval) -> Self {
        Self {
            kind: if interval.rtt_ns.is_some() {
                RunKind::Latency
            } else {
                RunKind::Throughput
            },
            protocol: if interval.packets.is_some() {
                TransportProtocol::Udp
            } else {
                TransportProtocol::Tcp
            },
            bidirectional: true,
            decimals: 2,
            copies: CopyModes::default(),
            serving: false,
            may_count_at_sender: false,
        }
    }

    fn columns(&self) -> impl Iterator<Item = &'static LineColumn> {
        let figures = match (self.kind, self.protocol) {
            (RunKind::Latency, _) => LATENCY,
            (RunKind::Generate, _) => GENERATE,
            (RunKind::Throughput, TransportProtocol::Tcp) => TCP,
            (RunKind::Throughput, TransportProtocol::Udp)
            | (RunKind::Forward | RunKind::Stack, _) => UDP,
        };
        let bidirectional = self.bidirectional && self.kind == RunKind::Throughput;
        std::iter::once(&TIME)
            .chain(bidirectional.then_some(&DIRECTION))
            .chain(figures)
    }

    /// Returns the columns that fit a width, and the gap between them; `None` if even the narrowest
    /// set does not fit.
    fn columns_for_width(&self, width: usize) -> Option<(Vec<&'static LineColumn>, usize)> {
        let all_columns: Vec<_> = self.columns().collect();
        let fits = |columns: &[&LineColumn], gap: usize| {
            let total_width: usize = columns.iter().map(|column| column.width + gap).sum();
            total_width - gap <= width
        };
        for gap in [2, 1] {
            if fits(&all_columns, gap) {
                return Some((all_columns, gap));
            }
        }
        let (required, gap) = self.required_columns();
        fits(&required, gap).then_some((required, gap))
    }

    /// Returns only the columns that no other column replaces.
    fn required_columns(&self) -> (Vec<&'static LineColumn>, usize) {
        (
            self.columns().filter(|column| !column.optional).collect(),
            1,
        )
    }
}

fn join_cells(columns: &[&LineColumn], gap: usize, cell: impl Fn(&LineColumn) -> String) -> String {
    let cells: Vec<_> = columns
        .iter()
        .map(|column| {
            let (text, width) = (cell(column), column.width);
            if column.left_aligned {
                format!("{text:<width$}")
            } else {
                format!("{text:>width$}")
            }
        })
        .collect();
    cells.join(&" ".repeat(gap)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_copies_are_named_on_a_second_line_in_narrow_terminals() {
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "host");
        plan.directions = vec![Direction::Send, Direction::Receive];
        plan.copies = CopyModes {
            send: linerate_record::plan::SendCopy::ZeroCopy,
            receive: linerate_record::plan::ReceiveCopy::Discarded,
        };
        let interval = Interval {
            number: 0,
            start_ns: 0,
            end_ns: 1_000_000_000,
            direction: Direction::Receive,
            omitted: true,
            bytes: 1 << 30,
            calls: Some(8_000),
            retransmits: Some(12_345),
            cwnd_bytes: Some(1 << 20),
            tcp_rtt_ns: Some(929_000),
            ..empty()
        };
        for width in [80, 100, 140] {
            let style = TextStyle {
                width,
                ..TextStyle::PLAIN
            };
            let mut live_lines = LiveLines::new(style);
            live_lines.tests.entry(1).or_default().layout = Some(ColumnLayout::of_plan(&plan));
            let text = live_lines.render_interval(1, &interval);
            assert!(text.contains("zero-copy sends, receive copy skipped"));
            assert!(text.lines().all(|line| line.len() <= width), "{text}");
        }
    }

    fn empty() -> Interval {
        serde_json::from_value(serde_json::json!({
            "number": 0, "start_ns": 0, "end_ns": 1, "direction": "receive", "omitted": false,
            "counted_at": "receiver", "bytes": 0,
        }))
        .expect("an interval")
    }

    /// A terminal of 80 columns fits every line, including a server's with the number of its test.
    #[test]
    fn lines_fit_a_terminal() {
        for kind in [RunKind::Throughput, RunKind::Latency, RunKind::Generate] {
            for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
                for bidirectional in [false, true] {
                    let layout = ColumnLayout {
                        kind,
                        protocol,
                        bidirectional,
                        decimals: 2,
                        copies: CopyModes::default(),
                        serving: true,
                        may_count_at_sender: false,
                    };
                    for width in [100, 95, 80, 75] {
                        let (columns, gap) = layout.columns_for_width(width).expect("it fits");
                        let header = join_cells(&columns, gap, |column| column.heading.to_owned());
                        assert!(header.len() <= width, "{width}: {header}");
                    }
                }
            }
        }
    }
}
