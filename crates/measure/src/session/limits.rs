//! What a server lets its clients have.

use std::time::Duration;

use linerate_metric::event::Problem;
use linerate_metric::plan::{
    Direction, Kind, LARGEST_CALL_BYTES, LARGEST_DATAGRAM_BYTES, Plan, Protocol,
    SHORTEST_INTERVAL_NS, Wait,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::flow::Part;
use crate::lane::call_bytes;

/// A connection that has not said what it is by then is closed.
pub const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// How long the next flow of an accepted test may take to arrive.
pub const ATTACH_PATIENCE: Duration = Duration::from_secs(10);

/// How long all of them may take: the first as above, the others at 100 a second.
#[must_use]
pub fn attach_limit(flows: usize) -> Duration {
    ATTACH_PATIENCE + Duration::from_millis(10) * u32::try_from(flows).unwrap_or(u32::MAX)
}

/// Connections that may stand around without having said what they are.
pub const LOBBY_LIMIT: usize = 16_384;

/// Conversations at a time that have not come to a test yet: each has a thread.
pub const TALK_LIMIT: usize = 64;

/// Tests at a time: each has at least two threads.
pub const TEST_LIMIT: usize = 256;

/// Longest frame that is taken from a client that has no test yet, in bytes: a PROPOSE is below
/// 16 KiB.
pub const PROPOSE_LIMIT_BYTES: usize = 256 << 10;

/// Memory of all tests together, in bytes.
pub const MEMORY_LIMIT: u64 = 1 << 30;

/// Flows of one test: as many as its results can be told of in one frame.
const FLOW_LIMIT: u64 = 2_000;

/// Longest time in a plan: 11 days.
const TIME_LIMIT_NS: u64 = 1_000_000 * 1_000_000_000;

/// Reporting intervals of one run.
const INTERVAL_LIMIT: u64 = 1_000_000;

/// Longest text in a plan, in characters.
const TEXT_LIMIT: usize = 256;

/// Processors that a plan may name.
const CPU_LIMIT: usize = 1_024;

/// What a thread costs besides its call buffers: its stack as far as it is used, and the kernel's
/// part.
const THREAD_BYTES: u64 = 48 << 10;

/// What a flow costs besides: the window of numbers seen, counters, its socket.
const FLOW_BYTES: u64 = 16 << 10;

/// Longest frame that is taken from a client with a test, in bytes: its results, with four full
/// histograms (0.5 MiB each) and 3 KiB a flow.
#[must_use]
pub fn frame_limit(plan: &Plan) -> usize {
    let flows = plan.streams as usize * plan.directions.len();
    (2 << 20) + flows * (4 << 10)
}

/// Memory that a test takes at the server, with so many threads in each direction; `None` when it
/// is beyond counting.
#[must_use]
pub fn memory_of(plan: &Plan, threads: &[(Part, usize)]) -> Option<u64> {
    let flow = match plan.kind {
        // An answering flow keeps the message that it is answering.
        Kind::Latency => FLOW_BYTES.checked_add(plan.payload_bytes)?,
        Kind::Throughput => FLOW_BYTES,
    };
    let mut bytes = u64::from(plan.streams)
        .checked_mul(plan.directions.len() as u64)?
        .checked_mul(flow)?
        .checked_add(frame_limit(plan) as u64)?;
    for &(part, count) in threads {
        let (sent, received) = call_bytes(plan, part);
        let thread = THREAD_BYTES
            .checked_add(sent as u64)?
            .checked_add(received as u64)?;
        bytes = bytes.checked_add(thread.checked_mul(count as u64)?)?;
    }
    Some(bytes)
}

/// What makes a plan one that no server of this version runs.
#[must_use]
pub fn unfit(plan: &Plan) -> Option<Problem> {
    sizes(plan).or_else(|| times(plan)).or_else(|| texts(plan))
}

fn problem(what: &str, value: impl Into<String>, next: &str) -> Option<Problem> {
    Some(Problem::new(format!("{what} out of range"), value, next))
}

fn sizes(plan: &Plan) -> Option<Problem> {
    let largest = match plan.protocol {
        Protocol::Tcp => LARGEST_CALL_BYTES,
        Protocol::Udp => LARGEST_DATAGRAM_BYTES,
    };
    let mut directions = plan.directions.clone();
    directions.sort_unstable();
    directions.dedup();
    if directions.is_empty() || directions.len() != plan.directions.len() {
        return problem("directions", "the plan", "name each at most once");
    }
    if plan.kind == Kind::Latency && directions != [Direction::Send] {
        return problem(
            "directions",
            "the plan",
            "round trips go one way: from the client",
        );
    }
    let flows = u64::from(plan.streams) * directions.len() as u64;
    if flows == 0 || flows > FLOW_LIMIT {
        return problem(
            "number of streams",
            format!("-P {}", plan.streams),
            "use 1 to 2000 in all, both directions together",
        );
    }
    if plan.payload_bytes == 0 || plan.payload_bytes > largest {
        return problem(
            "payload size",
            format!("-l {}", plan.payload_bytes),
            "use 1 B to 64 MiB for TCP, to 65507 B for UDP",
        );
    }
    if let Some(bytes) = plan.receive_bytes
        && (bytes == 0 || bytes > LARGEST_CALL_BYTES)
    {
        return problem("receive size", format!("{bytes} B"), "use 1 B to 64 MiB");
    }
    if plan.rate_bps == Some(0) {
        return problem("rate", "-b 0", "leave -b out to go as fast as it goes");
    }
    None
}

fn times(plan: &Plan) -> Option<Problem> {
    let longest = "use 1000000 s at most";
    for (option, time) in [
        ("-t", plan.duration_ns),
        ("-O", Some(plan.omit_ns)),
        ("-i", plan.interval_ns),
        ("--timeout", plan.answer_timeout_ns),
    ] {
        if let Some(time) = time.filter(|&time| time > TIME_LIMIT_NS) {
            return problem("time", format!("{option} {time}ns"), longest);
        }
    }
    if plan.duration_ns == Some(0) || plan.answer_timeout_ns == Some(0) {
        return problem("time", "the plan", "use more than 0 s");
    }
    let ends = match plan.kind {
        Kind::Throughput => plan.amount_bytes,
        Kind::Latency => plan.round_trips,
    };
    if plan.duration_ns.is_none() && ends.is_none() {
        return problem("time", "the plan", "say when it ends: with -t or -n");
    }
    if let Some(interval) = plan.interval_ns {
        if interval < SHORTEST_INTERVAL_NS {
            return problem(
                "interval",
                format!("-i {interval}ns"),
                "use -i 10ms or more",
            );
        }
        let whole = plan.duration_ns.unwrap_or(0) + plan.omit_ns;
        if whole / interval > INTERVAL_LIMIT {
            return problem(
                "interval",
                format!("-i {interval}ns"),
                "use longer ones: a run has 1000000 at most",
            );
        }
    }
    let waits = plan.wait.iter().flat_map(|wait| [wait.near, wait.far]);
    for wait in waits {
        if let Wait::Select {
            timeout_ns: Some(timeout),
        } = wait
            && timeout > TIME_LIMIT_NS
        {
            return problem("time", format!("--wait {wait}"), longest);
        }
    }
    None
}

fn texts(plan: &Plan) -> Option<Problem> {
    for (option, text) in [
        ("the host", Some(&plan.host)),
        ("-B", plan.bind.as_ref()),
        ("-C", plan.congestion_control.as_ref()),
        ("the stack", Some(&plan.stack.near)),
        ("the stack", Some(&plan.stack.far)),
    ] {
        if text.is_some_and(|text| text.chars().nth(TEXT_LIMIT).is_some()) {
            return problem("length of a name", option, "use 256 characters at most");
        }
    }
    if plan.cpu.near.0.len() > CPU_LIMIT || plan.cpu.far.0.len() > CPU_LIMIT {
        return problem("number of processors", "--cpu", "name 1024 at most");
    }
    None
}

/// Raises the soft limit of open files to the hard one: a flow takes one, and a thousand of them
/// are soon there. What does not succeed shows when there are too many.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let most = Rlimit {
            current: maximum,
            maximum,
        };
        let _ = setrlimit(Resource::Nofile, most);
    }
}

/// Files that this process may have open; `None` for any number.
#[must_use]
pub fn open_files() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::{Cpus, Ends};

    fn plan() -> Plan {
        Plan::new(Kind::Throughput, Protocol::Tcp, "host")
    }

    #[test]
    fn defaults_fit() {
        assert_eq!(unfit(&plan()), None);
        assert_eq!(
            unfit(&Plan::new(Kind::Latency, Protocol::Udp, "host")),
            None
        );
    }

    #[test]
    fn nonsense_does_not_fit() {
        type Change = fn(&mut Plan);
        let changes: &[(&str, Change)] = &[
            ("no streams", |p| p.streams = 0),
            ("many streams", |p| p.streams = 2_001),
            ("many both ways", |p| {
                p.streams = 1_500;
                p.directions = vec![Direction::Send, Direction::Receive];
            }),
            ("largest number of streams", |p| p.streams = u32::MAX),
            ("no payload", |p| p.payload_bytes = 0),
            ("much payload", |p| p.payload_bytes = u64::MAX),
            ("no room", |p| p.receive_bytes = Some(0)),
            ("much room", |p| p.receive_bytes = Some(1 << 40)),
            ("no directions", |p| p.directions.clear()),
            ("twice", |p| p.directions = vec![Direction::Send; 2]),
            ("long", |p| p.duration_ns = Some(u64::MAX)),
            ("not at all", |p| p.duration_ns = Some(0)),
            ("endless", |p| p.duration_ns = None),
            ("omit", |p| p.omit_ns = u64::MAX),
            ("long interval", |p| p.interval_ns = Some(u64::MAX)),
            ("no interval", |p| p.interval_ns = Some(0)),
            ("short interval", |p| {
                p.interval_ns = Some(SHORTEST_INTERVAL_NS - 1)
            }),
            ("many intervals", |p| {
                p.duration_ns = Some(TIME_LIMIT_NS);
                p.interval_ns = Some(SHORTEST_INTERVAL_NS);
            }),
            ("timeout", |p| p.answer_timeout_ns = Some(u64::MAX)),
            ("no timeout", |p| p.answer_timeout_ns = Some(0)),
            ("select", |p| {
                p.wait = Some(Ends::both(Wait::Select {
                    timeout_ns: Some(u64::MAX),
                }));
            }),
            ("rate", |p| p.rate_bps = Some(0)),
            ("host", |p| p.host = "x".repeat(257)),
            ("bind", |p| p.bind = Some("x".repeat(257))),
            ("congestion control", |p| {
                p.congestion_control = Some("x".repeat(1 << 20));
            }),
            ("cpus", |p| p.cpu.far = Cpus((0..1_025).collect())),
        ];
        for (name, change) in changes {
            let mut plan = plan();
            change(&mut plan);
            assert!(unfit(&plan).is_some(), "{name}");
        }
    }

    #[test]
    fn memory_is_counted_without_wrapping() {
        let mut plan = plan();
        let one = memory_of(&plan, &[(Part::Sink, 1)]).unwrap() - frame_limit(&plan) as u64;
        // The default room of a receive call, and little else.
        assert!((256 << 10..400 << 10).contains(&one), "{one}");
        plan.receive_bytes = Some(LARGEST_CALL_BYTES);
        let many = memory_of(&plan, &[(Part::Sink, 2_000)]).unwrap();
        assert!(many > MEMORY_LIMIT);
        plan.receive_bytes = Some(u64::MAX / 2);
        assert_eq!(memory_of(&plan, &[(Part::Sink, 2_000)]), None);
        plan.kind = Kind::Latency;
        plan.payload_bytes = u64::MAX;
        assert_eq!(memory_of(&plan, &[]), None);
    }
}
