//! Round trips beyond their times: options, slow responses and their causes, times of each step.

use std::collections::BTreeMap;

use linerate_record::plan::PerEnd;
use linerate_record::record::Record;
use linerate_record::round_trip::{RoundTripPlan, SocketMode};
use linerate_stats::histogram::{Histogram, Quantiles};
use linerate_stats::units::{format_count, format_nanos};

use crate::model;

/// Describes the options of round trips that differ from the defaults.
pub(crate) fn describe_options(plan: &RoundTripPlan) -> Vec<String> {
    let mut parts = Vec::new();
    if !plan.verify {
        parts.push("responses not verified".to_owned());
    }
    parts.extend(
        plan.limit_ns
            .map(|limit| format!("slow above {}", model::format_duration(limit))),
    );
    match plan.socket_mode {
        SocketMode::Connected => {}
        SocketMode::Unconnected => parts.push("unconnected sockets".to_owned()),
        SocketMode::Reopened => parts.push("one socket per round trip".to_owned()),
    }
    parts.extend(
        plan.rate_per_second
            .map(|rate| format!("{} requests/s per flow", format_count(rate))),
    );
    if plan.outstanding > 1 {
        parts.push(format!(
            "up to {} outstanding",
            format_count(plan.outstanding.into())
        ));
    }
    parts.extend(
        plan.group
            .as_ref()
            .map(|group| format!("to group {group}, TTL {}", group.ttl)),
    );
    if plan.load_threads.client > 0 || plan.load_threads.server > 0 {
        parts.push(describe_load_threads(&plan.load_threads));
    }
    if plan.rt_yield {
        parts.push("real-time threads yield (--rt-yield)".to_owned());
    }
    parts.extend(
        plan.device_timestamps
            .map(|stamps| format!("device timestamps at {stamps}")),
    );
    if plan.lock_memory {
        parts.push("memory locked".to_owned());
    }
    parts
}

/// Describes the threads that generate CPU load.
fn describe_load_threads(threads: &PerEnd<u32>) -> String {
    let thread_count = |count: u32| model::count_of(count.into(), "thread");
    match (threads.client, threads.server) {
        (client, 0) => format!("CPU load on the client: {}", thread_count(client)),
        (0, server) => format!("CPU load on the server: {}", thread_count(server)),
        (client, server) => format!(
            "CPU load on the client: {}, on the server: {}",
            thread_count(client),
            thread_count(server)
        ),
    }
}

/// Counts the causes of the listed slow responses: `12 not known, 3 preempted`.
pub(crate) fn count_causes(run: &Record) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for slow in &run.slow {
        *counts.entry(&slow.cause).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(cause, count)| (std::cmp::Reverse(count), cause));
    let parts: Vec<_> = counts
        .into_iter()
        .map(|(cause, count)| format!("{} {}", format_count(count), cause.replace('-', " ")))
        .collect();
    parts.join(", ")
}

/// Returns headings and rows of the slow responses, up to a number of rows.
pub(crate) fn slow_response_rows(
    run: &Record,
    max_rows: usize,
) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let several = run.plan.streams > 1;
    let mut headings = vec!["at", "time", "cause", "evidence"];
    headings.splice(
        0..0,
        if several {
            &["flow", "number"][..]
        } else {
            &["number"]
        }
        .iter()
        .copied(),
    );
    let rows = run.slow.iter().take(max_rows).map(|slow| {
        let mut row = Vec::new();
        if several {
            row.push(slow.flow.to_string());
        }
        row.extend([
            format_count(slow.number),
            format_nanos(slow.at_ns as f64),
            format_nanos(slow.time_ns as f64),
            slow.cause.replace('-', " "),
            slow.evidence.clone(),
        ]);
        row
    });
    (headings, rows.collect())
}

/// Steps of a round trip with its own socket, in order: histogram, name, meaning.
const STEPS: &[(&str, &str, &str)] = &[
    (
        "open_ns",
        "open",
        "opening the socket and setting its options",
    ),
    ("bind_ns", "bind", "binding it to a local port"),
    (
        "connect_ns",
        "connect",
        "connecting to the server; over TCP the handshake",
    ),
    ("send_ns", "send", "the call that sends the request"),
    ("receive_ns", "receive", "from the request to the response"),
    (
        "close_ns",
        "close",
        "closing; over TCP from the response to the end of the stream",
    ),
    ("whole_ns", "total", "from opening to closing"),
];

/// Parts of a round trip by the device's own timestamps: histogram, name, meaning.
const DEVICE_PARTS: &[(&str, &str, &str)] = &[
    (
        "device_ns",
        "device",
        "from the request's arrival to the response's departure, by the device's clock",
    ),
    ("outside_ns", "outside", "the rest of the same round trips"),
];

/// Returns headings and rows of further distributions: the time of each step, or the round-trip
/// times counted from the scheduled send time.
pub(crate) fn further_distributions(run: &Record) -> Option<(Vec<&'static str>, Vec<Vec<String>>)> {
    let summary_of = |name: &str| Histogram::from(run.histograms.get(name)?).summary();
    let row = |name: &str, q: &Quantiles, meaning: &str| {
        let time = |ns: u64| format_nanos(ns as f64);
        vec![
            name.to_owned(),
            time(q.min),
            time(q.p50),
            time(q.p90),
            time(q.p99),
            time(q.p99_9),
            time(q.max),
            meaning.to_owned(),
        ]
    };
    let mut rows = Vec::new();
    if let Some((intended, actual)) = summary_of("rtt_intended_ns").zip(summary_of("rtt_ns")) {
        rows.push(row("scheduled", &intended, "from the scheduled send time"));
        rows.push(row("sent", &actual, "from the actual send time"));
    }
    for (name, label, meaning) in DEVICE_PARTS {
        rows.extend(summary_of(name).map(|q| row(label, &q, meaning)));
    }
    for (name, label, meaning) in STEPS {
        rows.extend(summary_of(name).map(|q| row(label, &q, meaning)));
    }
    let has = |name| run.histograms.contains_key(name);
    let first = match (has("whole_ns"), has("device_ns")) {
        (true, _) => "step",
        (false, true) => "part",
        (false, false) => "from",
    };
    let headings = vec![first, "min", "p50", "p90", "p99", "p99.9", "max", "meaning"];
    (!rows.is_empty()).then_some((headings, rows))
}
