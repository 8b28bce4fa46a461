//! Live text: a few lines per event while runs are in progress.

use std::collections::HashMap;

use linerate_metric::cost::StreamInterval;
use linerate_metric::event::{Event, What};
use linerate_metric::plan::{Copies, Direction, Kind, Plan, Protocol};
use linerate_metric::record::{CountedAt, Interval};
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use crate::phrases::{self, UNKNOWN, or_unknown};
use crate::style::{Paint, Style, clean, hang};
use crate::text;

/// Converts events to lines and keeps the columns of each test.
///
/// A client's lines omit the summary and the failure, because the caller prints the record or the
/// error. A server's lines carry the number of the test and include both.
#[derive(Debug)]
pub struct Lines {
    style: Style,
    serving: bool,
    tests: HashMap<u32, Test>,
    /// Columns of the last printed header.
    header: Option<Shape>,
    /// True if each stream of an interval gets a line.
    per_stream: bool,
}

#[derive(Debug, Default)]
struct Test {
    peer: String,
    shape: Option<Shape>,
}

/// Inputs that determine the columns of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    kind: Kind,
    protocol: Protocol,
    both_ways: bool,
    decimals: usize,
    /// Skipped copies of the data path.
    copies: Copies,
    /// True for the lines of a server.
    serving: bool,
    /// True if lines may be marked as counted at the sender.
    sent: bool,
}

impl Lines {
    /// Returns a renderer for a program that makes one run at a time.
    #[must_use]
    pub fn new(style: Style) -> Self {
        Self {
            style,
            serving: false,
            tests: HashMap::new(),
            header: None,
            per_stream: false,
        }
    }

    /// Adds a line for each stream of an interval, if the interval has per-stream values.
    #[must_use]
    pub fn per_stream(self, per_stream: bool) -> Self {
        Self { per_stream, ..self }
    }

    /// Returns a renderer for a server, whose tests run concurrently.
    #[must_use]
    pub fn serving(style: Style) -> Self {
        Self {
            serving: true,
            ..Self::new(style)
        }
    }

    /// Renders one event; `None` for an event without output.
    pub fn event(&mut self, event: &Event) -> Option<String> {
        let text = match &event.what {
            What::Ready {
                port,
                addresses,
                also,
            } => self.ready(*port, addresses, also),
            What::Connected { peer, agent } => {
                self.tests.entry(event.test).or_default().peer = clean(peer).into_owned();
                let verb = if self.serving {
                    "client"
                } else {
                    "connected to"
                };
                self.dim(&format!("{verb} {} ({})", clean(peer), clean(agent)))
            }
            What::Started {
                plan,
                wait,
                cpu,
                because,
            } => {
                // Other programs report the received amount only at the end.
                let sent = plan.dialect.is_some()
                    && plan.kind == Kind::Throughput
                    && plan.flows(Direction::Receive);
                let shape = Shape {
                    serving: self.serving,
                    sent: self.serving && sent,
                    ..Shape::of(plan)
                };
                self.tests.entry(event.test).or_default().shape = Some(shape);
                // The header is repeated after lines of other kinds.
                self.header = None;
                let (near, far) = ("client", "server");
                if plan.kind == Kind::Generate {
                    let line = format!(
                        "{}: {}",
                        phrases::title(plan),
                        phrases::details(plan).join(", ")
                    );
                    return Some(crate::style::wrap(&clean(&line), self.style.width).join("\n"));
                }
                let mut line = format!(
                    "{}: {}; {}",
                    self.title(event.test, plan),
                    phrases::details(plan).join(", "),
                    match plan.dialect {
                        // The wait mode of another program is unknown.
                        Some(_) if self.serving => phrases::near_end(far, wait.far, &cpu.far),
                        Some(_) => phrases::near_end(near, wait.near, &cpu.near),
                        None => phrases::ends(near, far, wait, cpu),
                    }
                );
                if let Some(because) = because {
                    line.push_str(&format!(" ({because})"));
                }
                crate::style::wrap(&clean(&line), self.text_width(event.test)).join("\n")
            }
            What::Interval { interval } => self.interval(event.test, interval),
            What::StackInterval { interval } => text::stack::interval(interval),
            What::Doubted { doubt } => text::note(doubt, &self.style, self.text_width(event.test)),
            What::Pass {
                pass,
                passes,
                notes,
            } => format!("pass {pass} of {passes}: {}", clean(notes)),
            What::Awaited { what } => format!("waiting for {}", clean(what)),
            What::Refused { problem } => text::refusal(problem, &self.style),
            What::CapacityTrial { trial } => text::capacity_trial(trial),
            What::Trial { trial } => text::trial(trial, self.text_width(event.test)),
            What::Finished { record } => {
                let test = self.tests.remove(&event.test).unwrap_or_default();
                self.header = None;
                if !self.serving {
                    return None;
                }
                text::served_summary(record, &test.peer, &self.narrowed(event.test))
            }
            What::Failed { problem } => {
                self.tests.remove(&event.test);
                self.header = None;
                if !self.serving {
                    return None;
                }
                text::problem(problem, &self.narrowed(event.test))
            }
        };
        Some(self.numbered(event.test, &text))
    }

    fn ready(&self, port: u16, addresses: &[String], also: &[u16]) -> String {
        let places: Vec<_> = addresses
            .iter()
            .map(|address| phrases::address(&clean(address), port))
            .collect();
        let places = if places.is_empty() {
            format!("port {port}")
        } else {
            places.join(", ")
        };
        let prefix = "listening on ";
        let also: Vec<_> = also.iter().map(u16::to_string).collect();
        let places = match also.is_empty() {
            true => places,
            false => format!("{places} (also on port {})", also.join(", ")),
        };
        hang(prefix, prefix, &places, self.style.width)
    }

    /// Title of a run: `TCP send to 10.77.0.2:5201`. A server's title names the client and its
    /// direction.
    fn title(&self, test: u32, plan: &Plan) -> String {
        if !self.serving {
            return phrases::title(plan);
        }
        let peer = self
            .tests
            .get(&test)
            .map(|test| test.peer.as_str())
            .filter(|peer| !peer.is_empty())
            .unwrap_or("the client");
        phrases::served_title(plan, peer)
    }

    fn interval(&mut self, test: u32, interval: &Interval) -> String {
        let shape = self
            .tests
            .get(&test)
            .and_then(|test| test.shape)
            .unwrap_or_else(|| Shape::guess(interval));
        let skipped = phrases::skipped(shape.copies);
        // Marks after the columns reduce the width that is left for columns.
        let behind = skipped.as_ref().map_or(0, |words| words.len() + 12);
        let behind = behind + if shape.sent { "  (sent)".len() } else { 0 };
        let whole = self.text_width(test);
        let (columns, gap) = (shape.fitting(whole.saturating_sub(behind)))
            .or_else(|| shape.fitting(whole))
            .unwrap_or_else(|| shape.narrowest());
        let mut out = String::new();
        if self.header != Some(shape) {
            self.header = Some(shape);
            let header = join(&columns, gap, |column| column.heading.to_owned());
            out.push_str(&self.style.paint(Paint::Head, header.trim_end()));
            out.push('\n');
        }
        let mut line = join(&columns, gap, |column| (column.cell)(shape, interval));
        // Round trips are always counted at the client.
        let sent = shape.kind == Kind::Throughput && interval.counted_at == CountedAt::Sender;
        let marks: Vec<_> = [
            sent.then(|| "sent".to_owned()),
            interval.omitted.then(|| "omitted".to_owned()),
            skipped,
        ]
        .into_iter()
        .flatten()
        .collect();
        if !marks.is_empty() {
            let marks = format!("({})", marks.join(", "));
            let fits = line.chars().count() + 2 + marks.chars().count() <= whole;
            // The mark of a skipped copy must not be dropped: without space it goes to the next
            // line.
            line.push_str(&match fits {
                true => format!("  {marks}"),
                false => format!("\n{:>whole$}", marks),
            });
        }
        if interval.omitted {
            line = self.dim(&line);
        }
        out.push_str(&line);
        if self.per_stream {
            for stream in &interval.streams {
                let line = join(&columns, gap, |column| {
                    if column.heading == TIME.heading {
                        return format!("[{}]", stream.id);
                    }
                    (column.cell)(shape, &alone(interval, stream))
                });
                out.push('\n');
                out.push_str(&self.dim(&line));
            }
        }
        out
    }

    fn dim(&self, text: &str) -> String {
        self.style.paint(Paint::Dim, text)
    }

    fn narrowed(&self, test: u32) -> Style {
        Style {
            width: self.text_width(test),
            ..self.style
        }
    }

    fn text_width(&self, test: u32) -> usize {
        self.style.width - if self.serving { prefix(test).len() } else { 0 }
    }

    /// Prefixes each line with the number of the test, because lines of several tests are mixed.
    fn numbered(&self, test: u32, text: &str) -> String {
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
struct Column {
    heading: &'static str,
    width: usize,
    left: bool,
    /// True if the column is dropped in narrow terminals, because another column has similar
    /// content.
    spare: bool,
    cell: fn(Shape, &Interval) -> String,
}

const fn spare(column: Column) -> Column {
    Column {
        spare: true,
        ..column
    }
}

const fn column(
    heading: &'static str,
    width: usize,
    cell: fn(Shape, &Interval) -> String,
) -> Column {
    Column {
        heading,
        width,
        left: false,
        spare: false,
        cell,
    }
}

const TIME: Column = column("seconds", 13, |shape, i| {
    let at = |ns: u64| format!("{:.*}", shape.decimals, ns as f64 / 1e9);
    // Fixed widths keep the dash in place while the numbers grow.
    format!("{:>6}-{:<6}", at(i.start_ns), at(i.end_ns))
});
const DIRECTION: Column = Column {
    heading: "direction",
    width: 9,
    left: true,
    spare: false,
    cell: |shape, i| phrases::way(i.direction, shape.serving).to_owned(),
};
const TRANSFERRED: Column = spare(column("payload", 9, |_, i| format_bytes(i.bytes)));
const RATE: Column = column("goodput", 9, |_, i| {
    or_unknown(seconds(i), |s| format_bit_rate(i.bytes as f64 * 8.0 / s))
});
const LOST: Column = column("lost", 6, |_, i| or_unknown(i.lost, format_count));

const TCP: &[Column] = &[
    TRANSFERRED,
    RATE,
    column("calls/s", 8, |_, i| per_second(i, i.calls)),
    column("retr", 6, |_, i| or_unknown(i.retransmits, format_count)),
    column("cwnd", 8, |_, i| or_unknown(i.cwnd_bytes, format_bytes)),
    column("rtt", 7, |_, i| {
        or_unknown(i.tcp_rtt_ns, |ns| format_nanos(ns as f64))
    }),
];

const UDP: &[Column] = &[
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

const GENERATE: &[Column] = &[
    column("sent/s", 9, |_, i| per_second(i, i.packets_sent)),
    column("received/s", 10, |_, i| per_second(i, i.packets)),
    spare(column("received", 13, |_, i| {
        or_unknown(i.packets, format_count)
    })),
    column("missing", 9, |_, i| or_unknown(i.lost, format_count)),
];

const LATENCY: &[Column] = &[
    column("round trips", 11, |_, i| {
        or_unknown(i.packets, format_count)
    }),
    column("rate", 8, |_, i| per_second(i, i.packets)),
    column("min", 7, |_, i| {
        or_unknown(i.rtt_ns, |q| format_nanos(q.min as f64))
    }),
    spare(column("mean", 7, |_, i| {
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
fn alone(interval: &Interval, stream: &StreamInterval) -> Interval {
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

impl Shape {
    fn of(plan: &Plan) -> Self {
        // Decimals as the interval length requires: 1 s and 0.25 s need two.
        let length = plan.interval_ns.unwrap_or(1_000_000_000);
        let decimals = match length {
            n if n % 10_000_000 == 0 => 2,
            n if n % 1_000_000 == 0 => 3,
            _ => 4,
        };
        Self {
            kind: plan.kind,
            protocol: plan.protocol,
            both_ways: plan.flows(Direction::Send) && plan.flows(Direction::Receive),
            decimals,
            copies: plan.copies,
            serving: false,
            sent: false,
        }
    }

    /// Derives the columns from an interval when its start event is missing.
    fn guess(interval: &Interval) -> Self {
        Self {
            kind: if interval.rtt_ns.is_some() {
                Kind::Latency
            } else {
                Kind::Throughput
            },
            protocol: if interval.packets.is_some() {
                Protocol::Udp
            } else {
                Protocol::Tcp
            },
            both_ways: true,
            decimals: 2,
            copies: Copies::default(),
            serving: false,
            sent: false,
        }
    }

    fn columns(&self) -> impl Iterator<Item = &'static Column> {
        let figures = match (self.kind, self.protocol) {
            (Kind::Latency, _) => LATENCY,
            (Kind::Generate, _) => GENERATE,
            (Kind::Throughput, Protocol::Tcp) => TCP,
            (Kind::Throughput, Protocol::Udp) | (Kind::Forward | Kind::Stack, _) => UDP,
        };
        let both_ways = self.both_ways && self.kind == Kind::Throughput;
        std::iter::once(&TIME)
            .chain(both_ways.then_some(&DIRECTION))
            .chain(figures)
    }

    /// Returns the columns that fit a width, and the gap between them; `None` if even the narrowest
    /// set does not fit.
    fn fitting(&self, width: usize) -> Option<(Vec<&'static Column>, usize)> {
        let all: Vec<_> = self.columns().collect();
        let fits = |columns: &[&Column], gap: usize| {
            let room: usize = columns.iter().map(|column| column.width + gap).sum();
            room - gap <= width
        };
        for gap in [2, 1] {
            if fits(&all, gap) {
                return Some((all, gap));
            }
        }
        let (needed, gap) = self.narrowest();
        fits(&needed, gap).then_some((needed, gap))
    }

    /// Returns only the columns that no other column replaces.
    fn narrowest(&self) -> (Vec<&'static Column>, usize) {
        (self.columns().filter(|column| !column.spare).collect(), 1)
    }
}

fn join(columns: &[&Column], gap: usize, cell: impl Fn(&Column) -> String) -> String {
    let cells: Vec<_> = columns
        .iter()
        .map(|column| {
            let (text, width) = (cell(column), column.width);
            if column.left {
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
    fn what_was_not_copied_stands_below_where_lines_are_short() {
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "host");
        plan.directions = vec![Direction::Send, Direction::Receive];
        plan.copies = Copies {
            send: linerate_metric::plan::SendCopy::ZeroCopy,
            receive: linerate_metric::plan::ReceiveCopy::Discarded,
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
            let style = Style {
                width,
                ..Style::PLAIN
            };
            let mut lines = Lines::new(style);
            lines.tests.entry(1).or_default().shape = Some(Shape::of(&plan));
            let text = lines.interval(1, &interval);
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
        for kind in [Kind::Throughput, Kind::Latency, Kind::Generate] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for both_ways in [false, true] {
                    let shape = Shape {
                        kind,
                        protocol,
                        both_ways,
                        decimals: 2,
                        copies: Copies::default(),
                        serving: true,
                        sent: false,
                    };
                    for width in [100, 95, 80, 75] {
                        let (columns, gap) = shape.fitting(width).expect("it fits");
                        let header = join(&columns, gap, |column| column.heading.to_owned());
                        assert!(header.len() <= width, "{width}: {header}");
                    }
                }
            }
        }
    }
}
