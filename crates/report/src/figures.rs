//! The figures of a summary with their names, what they mean, and how they print.

use linerate_metric::facts::Role;
use linerate_metric::plan::{Kind, Plan, Protocol};
use linerate_metric::record::{CpuCost, Loss, Summary};
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_per_second, format_share,
};

/// One figure of a run or of a direction.
pub(crate) struct Figure {
    /// Its heading.
    pub(crate) name: &'static str,
    /// What it says, for people who meet it for the first time.
    pub(crate) meaning: &'static str,
    /// Its value with the unit; `None` where it could not be known.
    pub(crate) value: Option<String>,
}

fn figure(name: &'static str, meaning: &'static str, value: Option<String>) -> Figure {
    Figure {
        name,
        meaning,
        value,
    }
}

/// The figures that a run of this plan has, known or not.
pub(crate) fn figures(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    match (plan.kind, plan.protocol) {
        (Kind::Throughput, Protocol::Tcp) => tcp(summary),
        (Kind::Throughput, Protocol::Udp) => udp(summary),
        (Kind::Latency, _) => {
            let mut all = round_trip_times(summary);
            all.extend(round_trips(summary));
            all
        }
    }
}

fn tcp(summary: &Summary) -> Vec<Figure> {
    vec![
        goodput(summary),
        offered(summary),
        figure(
            "transferred",
            "payload that arrived in all",
            summary.bytes_received.map(format_bytes),
        ),
        figure(
            "calls/s",
            "send calls that the program made per second",
            summary.calls_per_second.map(format_per_second),
        ),
        figure(
            "retransmits",
            "segments that the sender's kernel sent again",
            summary.retransmits.map(format_count),
        ),
    ]
}

fn udp(summary: &Summary) -> Vec<Figure> {
    vec![
        goodput(summary),
        offered(summary),
        figure(
            "packets/s",
            "datagrams that arrived per second",
            summary.packets_per_second.map(format_per_second),
        ),
        figure(
            "lost",
            "datagrams that were sent and did not arrive",
            summary.lost.map(format_count),
        ),
        figure(
            "loss",
            "share of the sent datagrams that did not arrive",
            summary.loss_fraction.map(format_share),
        ),
        figure(
            "reordered",
            "datagrams that arrived after one that was sent later",
            summary.out_of_order.map(format_count),
        ),
        figure(
            "duplicates",
            "datagrams that arrived more than once",
            summary.duplicates.map(format_count),
        ),
        figure(
            "ipdv",
            "how much the gaps between datagrams vary (jitter)",
            summary.ipdv_ns.map(format_nanos),
        ),
    ]
}

fn goodput(summary: &Summary) -> Figure {
    figure(
        "goodput",
        "payload that arrived per second",
        summary.goodput_bps.map(format_bit_rate),
    )
}

fn offered(summary: &Summary) -> Figure {
    figure(
        "offered",
        "payload that the sender handed to its kernel per second",
        summary.offered_bps.map(format_bit_rate),
    )
}

/// The distribution of round-trip times.
pub(crate) fn round_trip_times(summary: &Summary) -> Vec<Figure> {
    let rtt = summary.rtt_ns;
    let at = |value: Option<u64>| value.map(|value| format_nanos(value as f64));
    vec![
        figure("min", "the shortest round trip", at(rtt.map(|q| q.min))),
        figure(
            "mean",
            "the average round trip",
            rtt.map(|q| format_nanos(q.mean)),
        ),
        figure(
            "p50",
            "half of the round trips took no longer",
            at(rtt.map(|q| q.p50)),
        ),
        figure("p90", "9 of 10 took no longer", at(rtt.map(|q| q.p90))),
        figure("p99", "99 of 100 took no longer", at(rtt.map(|q| q.p99))),
        figure(
            "p99.9",
            "999 of 1,000 took no longer",
            at(rtt.map(|q| q.p99_9)),
        ),
        figure(
            "p99.99",
            "9,999 of 10,000 took no longer",
            at(rtt.map(|q| q.p99_99)),
        ),
        figure("max", "the longest round trip", at(rtt.map(|q| q.max))),
    ]
}

/// How many round trips there were, and how many went wrong.
pub(crate) fn round_trips(summary: &Summary) -> Vec<Figure> {
    let mut all = vec![
        figure(
            "round trips",
            "questions that were answered",
            summary.round_trips.map(format_count),
        ),
        figure(
            "rate",
            "round trips per second",
            summary.round_trips_per_second.map(format_per_second),
        ),
        figure(
            "lost",
            "questions without an answer in time",
            summary.lost.map(format_count),
        ),
        figure(
            "mismatched",
            "answers that differ from what was sent",
            summary.mismatched.map(format_count),
        ),
    ];
    // Only a run with a limit knows slow answers: without one there is nothing to say.
    if let Some(slow) = summary.slow {
        all.push(figure(
            "slow",
            "answers above the limit",
            Some(format_count(slow)),
        ));
    }
    all
}

/// What both ends' measuring threads cost; `None` for an end that is not known.
pub(crate) fn cpu(summary: &Summary) -> [(Role, Option<&CpuCost>); 2] {
    [Role::Client, Role::Server]
        .map(|role| (role, summary.cpu.iter().find(|cost| cost.role == role)))
}

/// `client`.
pub(crate) fn role(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

/// `93.1 % of a core (4.20 % in user mode; slept 1,204 times, pushed off 12 times)`.
pub(crate) fn cpu_words(cost: &CpuCost) -> String {
    format!(
        "{} of a core ({} in user mode; slept {}, pushed off {})",
        format_share(cost.share),
        format_share(cost.user_share),
        times(cost.voluntary_switches),
        times(cost.involuntary_switches),
    )
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        n => format!("{} times", format_count(n)),
    }
}

/// Which way, how many and how sure: `send`, `10,103`, `exact`; an upper bound says `at most`.
pub(crate) fn loss_count(loss: &Loss) -> String {
    if loss.exact {
        format_count(loss.packets)
    } else {
        format!("at most {}", format_count(loss.packets))
    }
}

/// What a place of loss is, for people.
pub(crate) fn place(id: &str) -> Option<&'static str> {
    Some(match id {
        "sender-socket" => "the sender's socket buffer was full",
        "qdisc" => "the sender's queueing discipline dropped them",
        "interface-tx" => "the sender's interface dropped them",
        "interface-rx" => "the receiver's interface dropped them",
        "softnet-backlog" => "the receiver's per-core packet queue was full",
        "reassembly" => "fragments were missing or timed out",
        "udp-receive-queue" => "the receiver's socket buffer was full: it read too slowly",
        "path" => "between the ends, or where no counter looks",
        _ => return None,
    })
}
