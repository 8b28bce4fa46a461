//! What system calls took, in rows and words, the same on every surface.

use linerate_metric::calls::{CallTimes, Calls};
use linerate_metric::facts::Role;
use linerate_metric::record::Record;
use linerate_metric::units::{format_count, format_nanos, format_share};

use crate::figures;

/// Columns of figures, beside those that name the row.
pub(crate) const COLUMNS: [(&str, &str); 8] = [
    ("calls", "how many there were"),
    ("min", "the shortest"),
    ("p50", "half of them took no longer"),
    ("p90", "9 of 10 took no longer"),
    ("p99", "99 of 100 took no longer"),
    ("p99.9", "999 of 1,000 took no longer"),
    ("max", "the longest"),
    ("share", "of the threads' time that went by in them"),
];

/// One call of one end, as it found things.
pub(crate) struct Row {
    /// Which end.
    pub(crate) end: &'static str,
    /// The kernel's name for it.
    pub(crate) call: String,
    /// What it found, for people.
    pub(crate) found: &'static str,
    /// As in [`COLUMNS`].
    pub(crate) figures: Vec<String>,
}

/// Every call of a run, the near end's first.
pub(crate) fn rows(record: &Record) -> Vec<Row> {
    let mut all = Vec::new();
    for (role, calls) in [
        (Role::Client, &record.calls),
        (Role::Server, &record.far_calls),
    ] {
        add(&mut all, record, role, calls);
    }
    all
}

fn add(all: &mut Vec<Row>, record: &Record, role: Role, calls: &Calls) {
    let clock = record.call_clocks.iter().find(|clock| clock.role == role);
    let threads = clock.map_or(1, |clock| clock.threads.max(1));
    let time = record.summary.duration_ns.filter(|&time| time > 0);
    for (name, call) in calls {
        for (kind, times) in call.kinds() {
            let share = time.map(|time| {
                let whole = time as f64 * f64::from(threads);
                // A call that began in the omitted time may end in the counted one.
                (times.total_ns as f64 / whole).min(1.0)
            });
            all.push(Row {
                end: figures::role(role),
                call: name.clone(),
                found: words(kind),
                figures: figures_of(times, share),
            });
        }
    }
}

fn figures_of(call: &CallTimes, share: Option<f64>) -> Vec<String> {
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
    cells.push(crate::words::or_unknown(share, format_share));
    cells
}

/// What a call found.
fn words(kind: &str) -> &'static str {
    match kind {
        "room" => "room",
        "full" => "buffer full",
        "ready" => "data there",
        "waited" => "had to wait",
        _ => "nothing there",
    }
}

/// How the times came about: `client: tsc at 2.60 GHz, 9.3 ns a reading, 21.5 ns a call recorded`.
pub(crate) fn clocks(record: &Record) -> Vec<String> {
    (record.call_clocks.iter())
        .map(|clock| {
            format!(
                "{}'s calls by {} at {:.3} GHz: a reading takes {:.1} ns and is in every time, \
                 recording adds {:.1} ns to a call",
                figures::role(clock.role),
                clock.source,
                clock.hz / 1e9,
                clock.read_ns,
                clock.record_ns
            )
        })
        .collect()
}
