//! Text report of a receiver or transmitter: formatting and parsing.

use std::fmt::Write;

use linerate_record::plan::Direction;

use super::parameters::{NuttcpDirection, NuttcpTest};
use crate::classification::TransportKind;
use crate::remote_report::{RemoteFigures, RemoteFlow, RemoteReport};

/// Largest error of a byte count that was parsed from a report, in bytes: reports give MB (2^20
/// bytes) with four decimals.
pub const REPORTED_BYTES_ERROR: u64 = 53;

const MB: f64 = 1_048_576.0;

/// Shortest time in nanoseconds for a division, as in upstream.
const MIN_DURATION_NS: u64 = 1_000;

/// Maximum number of stored report lines, without those of intervals: an upstream server sends ten.
const TEXT_LIMIT_LINES: usize = 64;

/// Maximum number of stored interval lines, of about 80 B each: half an hour of seconds.
const INTERVAL_LIMIT_LINES: usize = 2_000;

/// CPU time of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// User mode, in nanoseconds.
    pub user_ns: u64,
    /// Kernel mode, in nanoseconds.
    pub system_ns: u64,
}

/// Counters of an end. `None` is left out of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NuttcpCounts {
    /// Payload bytes.
    pub bytes: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// CPU time.
    pub cpu: Option<CpuTimes>,
    /// Number of system calls that moved payload.
    pub calls: Option<u64>,
    /// Retransmitted segments; of a transmitter.
    pub retransmits: Option<u64>,
    /// Round-trip time of the connection setup in nanoseconds; of the connecting end.
    pub rtt_ns: Option<u64>,
    /// Maximum segment size of the data connection in bytes.
    pub mss: Option<u32>,
}

/// Counters of an end for one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NuttcpInterval {
    /// Payload bytes.
    pub bytes: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// UDP: lost and sent datagrams.
    pub lost_of: Option<(u64, u64)>,
    /// TCP: retransmitted segments.
    pub retransmits: Option<u64>,
}

fn seconds(ns: u64) -> f64 {
    ns.max(MIN_DURATION_NS) as f64 / 1e9
}

fn megabits(bytes: u64, ns: u64) -> f64 {
    bytes as f64 / 125_000.0 / seconds(ns)
}

/// Returns the line of an interval, in upstream's format.
pub(super) fn format_interval(test: &NuttcpTest, interval: &NuttcpInterval) -> String {
    let megabytes = interval.bytes as f64 / MB;
    let time = seconds(interval.duration_ns);
    let rate = megabits(interval.bytes, interval.duration_ns);
    let lost = interval.lost_of.map(|(lost, sent)| {
        let fraction = lost as f64 / sent.max(1) as f64;
        (lost, sent, fraction)
    });
    let mut line = String::new();
    // Writing to a String cannot fail.
    let _ = if test.parseable {
        let _ = write!(
            line,
            "megabytes={megabytes:.4} real_sec={time:.2} rate_Mbps={rate:.4}"
        );
        match (lost, interval.retransmits) {
            (Some((lost, sent, fraction)), _) => {
                write!(
                    line,
                    " drop={lost} pkt={sent} data_loss={:.5}",
                    fraction * 100.0
                )
            }
            (None, Some(retransmits)) => write!(line, " retrans={retransmits}"),
            (None, None) => Ok(()),
        }
    } else {
        let _ = write!(
            line,
            "{megabytes:10.4} MB / {time:6.2} sec = {rate:9.4} Mbps"
        );
        match (lost, interval.retransmits) {
            (Some((lost, sent, fraction)), _) => write!(
                line,
                " {lost:5} / {sent:5} ~drop/pkt {:5.2} ~%loss",
                fraction * 100.0
            ),
            (None, Some(retransmits)) => write!(line, " {retransmits:5} retrans"),
            (None, None) => Ok(()),
        }
    };
    line + "\n"
}

/// Returns the report of a server. An upstream client finds the lines by their words.
pub(super) fn format_report(test: &NuttcpTest, counts: &NuttcpCounts) -> String {
    // `t` if the server transmits, `r` if it receives.
    let role = if test.direction == NuttcpDirection::ToClient {
        't'
    } else {
        'r'
    };
    let transport = match test.transport {
        TransportKind::Stream => "tcp",
        TransportKind::Datagram => "udp",
    };
    let megabytes = counts.bytes as f64 / MB;
    let time = seconds(counts.duration_ns);
    let rate = megabits(counts.bytes, counts.duration_ns);
    let (buffer, streams, port) = (test.buffer_bytes, test.streams, test.first_port);
    let mut text = format!("nuttcp-{role}: v{}: linerate\n", super::VERSION);
    // Writes the default form, or that of `-fparse`.
    let mut add_line = |text_form: String, parseable_form: String| {
        let line = if test.parseable {
            parseable_form
        } else {
            text_form
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "nuttcp-{role}: {line}");
    };
    add_line(
        format!("buflen={buffer}, nstream={streams}, port={port} {transport}"),
        format!("buflen={buffer} nstream={streams} port={port} mode={transport}"),
    );
    if let (Some(mss), Some(rtt_ns)) = (counts.mss, counts.rtt_ns) {
        let rtt = rtt_ns as f64 / 1e6;
        add_line(
            format!("connect with mss={mss}, RTT={rtt:.3} ms"),
            format!("connect mss={mss} rtt_ms={rtt:.3}"),
        );
    }
    let kilobytes = counts.bytes as f64 / 1024.0 / time;
    add_line(
        format!(
            "{megabytes:.4} MB in {time:.2} real seconds = {kilobytes:.2} KB/sec = {rate:.4} Mbps"
        ),
        format!(
            "megabytes={megabytes:.4} real_seconds={time:.2} rate_KBps={kilobytes:.2} rate_Mbps={rate:.4}"
        ),
    );
    if let Some(retransmits) = counts.retransmits {
        add_line(
            format!("retrans = {retransmits}"),
            format!("retrans={retransmits}"),
        );
    }
    if let Some(calls) = counts.calls {
        let each = 1_000.0 * time / calls.max(1) as f64;
        let rate = calls as f64 / time;
        add_line(
            format!("{calls} I/O calls, msec/call = {each:.2}, calls/sec = {rate:.2}"),
            format!("io_calls={calls} msec_per_call={each:.2} calls_per_sec={rate:.2}"),
        );
    }
    if let Some(cpu) = counts.cpu {
        let (user, system) = (cpu.user_ns as f64 / 1e9, cpu.system_ns as f64 / 1e9);
        let (real, share) = (format_clock(time), cpu_percent(cpu, time));
        add_line(
            format!("{user:.1}user {system:.1}sys {real}real {share}%"),
            format!("stats=cpu user={user:.1} system={system:.1} elapsed={real} cpu={share}%"),
        );
    }
    text
}

/// Formats minutes and seconds.
fn format_clock(seconds: f64) -> String {
    let whole_seconds = seconds as u64;
    format!("{}:{:02}", whole_seconds / 60, whole_seconds % 60)
}

fn cpu_percent(cpu: CpuTimes, seconds: f64) -> u64 {
    ((cpu.user_ns + cpu.system_ns) as f64 / 1e7 / seconds) as u64
}

/// Report of a remote end, collected line by line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NuttcpReport {
    /// Payload bytes that it counted, within [`REPORTED_BYTES_ERROR`].
    pub bytes: Option<u64>,
    /// Duration of its counting in nanoseconds.
    pub duration_ns: Option<u64>,
    /// Segments that its kernel retransmitted.
    pub retransmits: Option<u64>,
    /// System calls that moved payload.
    pub calls: Option<u64>,
    /// CPU usage in percent of one processor.
    pub cpu_percent: Option<u64>,
    /// Lines of the report.
    pub text: Vec<String>,
    /// Number of stored interval lines; `words` counts the other lines.
    interval_lines: usize,
    other_lines: usize,
}

impl NuttcpReport {
    /// Parses a line; returns the interval if it is an interval line.
    pub(super) fn add_line(&mut self, line: &str) -> Option<NuttcpInterval> {
        let body = line
            .strip_prefix("nuttcp-r: ")
            .or_else(|| line.strip_prefix("nuttcp-t: "));
        let interval = match body {
            Some(_) => None,
            None => read_interval(line),
        };
        // The totals follow the intervals: each kind of line has its own limit.
        let (line_count, limit) = match interval {
            Some(_) => (&mut self.interval_lines, INTERVAL_LIMIT_LINES),
            None => (&mut self.other_lines, TEXT_LIMIT_LINES),
        };
        if *line_count < limit {
            *line_count += 1;
            self.text.push(line.to_owned());
        }
        let Some(body) = body else {
            return interval;
        };
        let value = NumberFinder(body);
        if body.contains("real seconds =") {
            self.set_totals(
                value.before("MB in"),
                value.before("real seconds"),
                value.before("Mbps"),
            );
        } else if body.contains("real_seconds=") {
            self.set_totals(
                value.after("megabytes="),
                value.after("real_seconds="),
                value.after("rate_Mbps="),
            );
        } else if let Some(retransmits) = value.after("retrans = ").or(value.after("retrans=")) {
            self.retransmits = to_count(retransmits);
        } else if let Some(calls) = value.before("I/O calls,").or(value.after("io_calls=")) {
            self.calls = to_count(calls);
        } else if body.contains("real ") || body.starts_with("stats=cpu ") {
            self.cpu_percent = value.before("%").and_then(to_count);
        }
        None
    }

    fn set_totals(&mut self, megabytes: Option<f64>, seconds: Option<f64>, rate: Option<f64>) {
        self.bytes = megabytes.and_then(bytes_of);
        self.duration_ns = duration_of(self.bytes, seconds, rate);
    }
}

/// Converts a number to a count; `None` above the exact range of an `f64`.
fn to_count(value: f64) -> Option<u64> {
    (0.0..9e15).contains(&value).then_some(value as u64)
}

fn bytes_of(megabytes: f64) -> Option<u64> {
    to_count((megabytes * MB).round())
}

/// Returns the duration. Seconds have two decimals and the rate has four, so the rate is more
/// exact.
fn duration_of(bytes: Option<u64>, seconds: Option<f64>, rate: Option<f64>) -> Option<u64> {
    let from_rate = match (bytes, rate) {
        (Some(bytes), Some(rate)) if bytes > 0 && rate > 0.0 => {
            to_count((bytes as f64 * 8_000.0 / rate).round())
        }
        _ => None,
    };
    let from_seconds = seconds.and_then(|seconds| to_count((seconds * 1e9).round()));
    // If the two differ by more than the rounding of the seconds, the rate has too few digits (a
    // rate of a few bytes): use the seconds.
    match (from_rate, from_seconds) {
        (Some(rate), Some(seconds)) if rate.abs_diff(seconds) > 10_000_000 => Some(seconds),
        (Some(rate), _) => Some(rate),
        (None, seconds) => seconds.filter(|&ns| ns > 0),
    }
}

/// Parses `802.6875 MB / 0.30 sec = 22442.1510 Mbps …` or its `key=value` form.
fn read_interval(line: &str) -> Option<NuttcpInterval> {
    let value = NumberFinder(line);
    if line.contains("real_sec=") {
        let bytes = value.after("megabytes=").and_then(bytes_of)?;
        let lost = value.after("drop=").and_then(to_count);
        let sent = value.after("pkt=").and_then(to_count);
        return Some(NuttcpInterval {
            bytes,
            duration_ns: duration_of(
                Some(bytes),
                value.after("real_sec="),
                value.after("rate_Mbps="),
            )?,
            lost_of: lost.zip(sent),
            retransmits: value.after("retrans=").and_then(to_count),
        });
    }
    if !line.contains(" MB / ") {
        return None;
    }
    let bytes = value.before("MB / ").and_then(bytes_of)?;
    // The rate is followed by `2 retrans`, by `12 / 1000 ~drop/pkt`, or by nothing.
    let (_, rest) = line.split_once(" Mbps")?;
    let tokens: Vec<_> = rest.split_whitespace().take(4).collect();
    let (lost_of, retransmits) = match tokens[..] {
        [retransmits, "retrans", ..] => (None, retransmits.parse().ok()),
        [lost, "/", sent, "~drop/pkt"] => (lost.parse().ok().zip(sent.parse().ok()), None),
        _ => (None, None),
    };
    Some(NuttcpInterval {
        bytes,
        duration_ns: duration_of(Some(bytes), value.before("sec = "), value.before("Mbps"))?,
        lost_of,
        retransmits,
    })
}

/// Finder of numbers next to words of a line.
struct NumberFinder<'a>(&'a str);

impl NumberFinder<'_> {
    /// Returns the number after a word.
    fn after(&self, text: &str) -> Option<f64> {
        let (_, rest) = self.0.split_once(text)?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        number(&rest[..end])
    }

    /// Returns the number before a word.
    fn before(&self, text: &str) -> Option<f64> {
        let (rest, _) = self.0.split_once(text)?;
        let rest = rest.trim_end();
        let start = rest
            .rfind(|c: char| !c.is_ascii_digit() && c != '.')
            .map_or(0, |at| {
                at + rest[at..].chars().next().map_or(1, char::len_utf8)
            });
        number(&rest[start..])
    }
}

/// Parses a number of digits and a point.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Rounds a count from a report to a multiple of the buffer size if that is within the report's
/// error: upstream transmitters write complete buffers. For other counts the result is off by at
/// most twice that error.
pub(super) fn round_to_buffers(test: &NuttcpTest, bytes: u64) -> u64 {
    let buffer = test.buffer_bytes as u64;
    if buffer <= 2 * REPORTED_BYTES_ERROR {
        return bytes;
    }
    let nearest = (bytes + buffer / 2) / buffer * buffer;
    if nearest.abs_diff(bytes) <= REPORTED_BYTES_ERROR {
        nearest
    } else {
        bytes
    }
}

/// Converts the report of a remote end.
pub(super) fn remote_report(test: &NuttcpTest, report: &NuttcpReport) -> RemoteReport {
    let bytes = report.bytes.map(|bytes| round_to_buffers(test, bytes));
    let packets = match test.transport {
        TransportKind::Datagram if test.buffer_bytes as u64 > 2 * REPORTED_BYTES_ERROR => {
            bytes.map(|bytes| bytes / test.buffer_bytes as u64)
        }
        _ => None,
    };
    let figures = RemoteFigures {
        bytes,
        packets,
        retransmits: report.retransmits,
        duration_ns: report.duration_ns,
        ..RemoteFigures::default()
    };
    let direction = match test.direction {
        NuttcpDirection::ToServer => Direction::Send,
        NuttcpDirection::ToClient => Direction::Receive,
    };
    let has_figures = figures != RemoteFigures::default();
    RemoteReport {
        flows: has_figures
            .then_some(RemoteFlow {
                id: None,
                direction,
                figures,
            })
            .into_iter()
            .collect(),
        text: (!report.text.is_empty()).then(|| report.text.join("\n")),
        stopped_early: false,
    }
}
