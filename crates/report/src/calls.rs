//! System call times: rows of the table, and the clocks that measured them.

use linerate_record::call_times::{CallTimes, CallsByName};
use linerate_record::facts::Role;
use linerate_record::plan::Direction;
use linerate_record::record::Record;
use linerate_stats::units::{format_count, format_nanos, format_share};

use crate::model;

/// Columns of figures (name, meaning) that follow the columns naming the row.
pub(crate) const COLUMNS: [(&str, &str); 8] = [
    ("calls", "number of calls"),
    ("min", "shortest"),
    ("p50", "median"),
    ("p90", "90th percentile"),
    ("p99", "99th percentile"),
    ("p99.9", "99.9th percentile"),
    ("max", "longest"),
    ("share", "share of the threads' time spent in the calls"),
];

/// System call of one host, with one result.
pub(crate) struct CallRow {
    pub(crate) role: &'static str,
    /// Name of the system call.
    pub(crate) call: String,
    /// Result of the call, as text.
    pub(crate) result: &'static str,
    /// Cells in the order of [`COLUMNS`].
    pub(crate) figures: Vec<String>,
}

/// Returns all calls of a run, the client's first.
pub(crate) fn call_rows(record: &Record) -> Vec<CallRow> {
    let mut all = Vec::new();
    for (role, calls) in [
        (Role::Client, &record.calls),
        (Role::Server, &record.server_calls),
    ] {
        append_rows(&mut all, record, role, calls);
    }
    all
}

fn append_rows(rows: &mut Vec<CallRow>, record: &Record, role: Role, calls: &CallsByName) {
    let clock = record.call_clocks.iter().find(|clock| clock.role == role);
    let threads = clock.map_or(1, |clock| clock.threads.max(1));
    // Each end has its own time; that of the run is the receiver's.
    let sent = match (role, record.directions.as_slice()) {
        (Role::Client, [only]) if only.direction == Direction::Send => only.send_duration_ns(),
        (Role::Server, [only]) if only.direction == Direction::Receive => only.send_duration_ns(),
        _ => None,
    };
    let time = sent.or(record.summary.duration_ns).filter(|&time| time > 0);
    for (name, call) in calls {
        for (kind, times) in call.outcomes() {
            let share = time.map(|time| {
                let thread_time_ns = time as f64 * f64::from(threads);
                // A call that began in the omitted time may end in the counted time.
                (times.total_ns as f64 / thread_time_ns).min(1.0)
            });
            rows.push(CallRow {
                role: role.as_str(),
                call: name.clone(),
                result: describe_result(kind),
                figures: figure_cells(times, share),
            });
        }
    }
}

fn figure_cells(call: &CallTimes, share: Option<f64>) -> Vec<String> {
    let times = &call.times;
    let mut cells = vec![format_count(times.count)];
    let durations = [
        times.min,
        times.p50,
        times.p90,
        times.p99,
        times.p99_9,
        times.max,
    ];
    cells.extend(durations.map(|time| format_nanos(time as f64)));
    cells.push(model::or_unknown(share, format_share));
    cells
}

/// Describes the result of a call; `kind` is a key of the record's `calls`.
fn describe_result(kind: &str) -> &'static str {
    match kind {
        "accepted" => "sent",
        "full" => "buffer full",
        "ready" => "data ready",
        "waited" => "waited",
        _ => "no data",
    }
}

/// Describes the clocks: `client's calls: tsc at 2.600 GHz; each time includes 9.3 ns for the
/// reading, …`.
pub(crate) fn describe_clocks(record: &Record) -> Vec<String> {
    (record.call_clocks.iter())
        .map(|clock| {
            format!(
                "{}'s calls: {} at {:.3} GHz; each time includes {:.1} ns for the clock reading, \
                 recording adds {:.1} ns per call",
                clock.role.as_str(),
                clock.source,
                clock.hz / 1e9,
                clock.read_ns,
                clock.record_ns
            )
        })
        .collect()
}
