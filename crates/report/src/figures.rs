//! The figures of a summary with their names, what they mean, and how they print.

use linerate_metric::facts::Role;
use linerate_metric::plan::{Kind, Plan, Protocol};
use linerate_metric::record::{CpuCost, Loss, Record, Summary};
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_per_second, format_share,
};

use crate::words;

/// One figure of a run or of a direction.
pub(crate) struct Figure {
    /// Its heading.
    pub(crate) name: &'static str,
    /// What it says, for people who meet it for the first time.
    pub(crate) meaning: &'static str,
    /// Its value with the unit; `None` where it could not be known.
    pub(crate) value: Option<String>,
}

pub(crate) fn figure(name: &'static str, meaning: &'static str, value: Option<String>) -> Figure {
    Figure {
        name,
        meaning,
        value,
    }
}

/// The figures that a run of this plan has, known or not.
pub(crate) fn figures(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    match (plan.kind, plan.protocol) {
        (Kind::Throughput, protocol) => {
            let mut all = match protocol {
                Protocol::Tcp => tcp(plan, summary),
                Protocol::Udp => udp(plan, summary),
            };
            all.extend((plan.streams > 1).then(|| fairness(summary)));
            all
        }
        (Kind::Generate, _) => crate::generate::figures(summary),
        (Kind::Latency, _) => {
            let mut all = round_trip_times(summary);
            all.extend(round_trips(summary));
            all
        }
        (Kind::Forward, _) => crate::forward::figures(plan, summary),
        // What its services did stands in a table of its own.
        (Kind::Stack, _) => Vec::new(),
    }
}

/// The figures of one flow among several: what tells of all of them is left out.
pub(crate) fn stream_figures(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    let mut all = figures(plan, summary);
    all.retain(|figure| figure.name != FAIRNESS);
    all
}

const FAIRNESS: &str = "fairness";

fn fairness(summary: &Summary) -> Figure {
    figure(
        FAIRNESS,
        "1 when all streams received the same, 1/n when one received everything (Jain)",
        summary.fairness_index.map(|index| format!("{index:.3}")),
    )
}

fn tcp(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    let mut all = vec![
        goodput(plan, summary),
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
    ];
    all.extend(mismatched(plan, summary));
    all
}

fn udp(plan: &Plan, summary: &Summary) -> Vec<Figure> {
    let mut all = vec![
        goodput(plan, summary),
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
    ];
    all.extend(mismatched(plan, summary));
    all
}

/// What a throughput run tells of its times, where it does.
pub(crate) fn times_of(summary: &Summary) -> Vec<Figure> {
    let mut all = Vec::new();
    if let Some(error) = summary.rate_error {
        let sign = if error < 0.0 { '-' } else { '+' };
        all.push(figure(
            "rate error",
            "offered load against what was asked for",
            Some(format!("{sign}{}", format_share(error.abs()))),
        ));
    }
    for (quantiles, names) in [
        (
            summary.lateness_ns,
            [
                (
                    "lateness p50",
                    "half of the bursts left no later than this after their time",
                ),
                (
                    "lateness p99",
                    "99 of 100 left no later than this after their time",
                ),
            ],
        ),
        (
            summary.arrival_gap_ns,
            [
                (
                    "arrival gap p50",
                    "half of the datagrams came no longer than this after the one before",
                ),
                (
                    "arrival gap p99",
                    "99 of 100 came no longer than this after the one before",
                ),
            ],
        ),
        (
            summary.one_way_delay_ns,
            [
                (
                    "one-way delay p50",
                    "half of the datagrams were on their way no longer than this",
                ),
                (
                    "one-way delay p99",
                    "99 of 100 were on their way no longer than this",
                ),
            ],
        ),
        (
            summary.delay_variation_ns,
            [
                (
                    "delay variation p50",
                    "half of the delays differ by no more than this from the one before",
                ),
                (
                    "delay variation p99",
                    "99 of 100 differ by no more than this from the one before",
                ),
            ],
        ),
    ] {
        let Some(quantiles) = quantiles else { continue };
        for ((name, meaning), value) in names.into_iter().zip([quantiles.p50, quantiles.p99]) {
            all.push(figure(name, meaning, Some(format_nanos(value as f64))));
        }
    }
    if let Some(extent) = summary.reordering_extent {
        all.push(figure(
            "reordering extent",
            "the furthest that a late datagram came behind the one that overtook it",
            Some(format_count(extent)),
        ));
    }
    all
}

fn goodput(plan: &Plan, summary: &Summary) -> Figure {
    // What skips a copy says so wherever it is shown.
    let rate = |rate| match words::skipped(plan.copies) {
        None => format_bit_rate(rate),
        Some(skipped) => format!("{} ({skipped})", format_bit_rate(rate)),
    };
    figure(
        "goodput",
        "payload that arrived per second",
        summary.goodput_bps.map(rate),
    )
}

/// Bytes that differ, where that was looked at.
fn mismatched(plan: &Plan, summary: &Summary) -> Option<Figure> {
    plan.verify.then(|| {
        figure(
            "mismatched",
            "bytes that differ from what was sent",
            summary.mismatched.map(format_count),
        )
    })
}

/// What verifying costs, by end: `client writes content at 21.3 ns a KiB`.
pub(crate) fn verification(record: &Record) -> Option<String> {
    let words: Vec<_> = (record.verification.iter())
        .flat_map(|end| {
            let does = |what: &str, cost: Option<f64>| {
                cost.map(|cost| format!("{} {what} content in {cost:.1} ns a KiB", role(end.role)))
            };
            [
                does("writes", end.fill_ns_per_kib),
                does("compares", end.check_ns_per_kib),
            ]
        })
        .flatten()
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
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
        figure(
            "sd",
            "standard deviation of the round trips",
            rtt.map(|q| format_nanos(q.standard_deviation)),
        ),
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
    if let Some(rate) = summary.connections_per_second {
        let meaning = "connections made, used and closed per second";
        all[1] = figure("connections/s", meaning, Some(format_per_second(rate)));
    }
    // What did not happen needs no column of its own.
    for (name, meaning, count) in [
        (
            "wrong length",
            "mismatched answers of another length",
            summary.wrong_length,
        ),
        (
            "wrong content",
            "mismatched answers of the right length",
            summary.wrong_content,
        ),
        (
            "out of order",
            "answers after their time, or in time and after the answer to a later question",
            summary.out_of_order,
        ),
        (
            "retransmits",
            "segments that the kernels of both ends sent again",
            summary.retransmits,
        ),
        (
            "repeated",
            "answers that came more than once",
            summary.duplicates,
        ),
        (
            "unsent",
            "questions that were due and never left",
            summary.unsent,
        ),
    ] {
        if let Some(count) = count.filter(|&count| count > 0) {
            all.push(figure(name, meaning, Some(format_count(count))));
        }
    }
    if let Some(device) = &summary.device {
        let meaning = "the device's part of the time of all round trips, by its own stamps";
        all.push(figure(
            "in device",
            meaning,
            Some(format_share(device.share)),
        ));
    }
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
    let user = cost.user_share.map_or_else(String::new, |share| {
        format!("{} in user mode; ", format_share(share))
    });
    format!(
        "{} of a core ({user}slept {}, pushed off {})",
        format_share(cost.share),
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

/// How many and how sure: `10,103`; `at most 10`; `at least 10`; `50 (10 to 90)`.
#[must_use]
pub fn loss_count(loss: &Loss) -> String {
    let packets = format_count(loss.packets);
    if loss.exact {
        return packets;
    }
    let least = loss.at_least.unwrap_or(0);
    match loss.at_most {
        _ if least == loss.packets && least > 0 => format!("at least {packets}"),
        Some(most) if most > loss.packets => {
            format!(
                "{packets} ({} to {})",
                format_count(least),
                format_count(most)
            )
        }
        _ => format!("at most {packets}"),
    }
}

/// What a place of loss is, for people.
pub(crate) fn place(id: &str) -> Option<&'static str> {
    Some(match id {
        "sender-socket" => "the sender's socket buffer was full",
        "qdisc" => "the queueing discipline of an interface dropped them",
        "interface-tx" => "an interface dropped them on the way out",
        "interface-rx" => "an interface dropped them on the way in",
        "softnet-backlog" => "a core's queue of arrived packets was full",
        "reassembly" => "some fragments arrived, but not all or not together",
        "udp-receive-queue" => "the receiver's socket buffer was full: it read too slowly",
        "path" => "between the ends, or where no counter looks",
        "emulated-link" => "an emulated link lost them, or its queue was full, as it was told to",
        _ => return None,
    })
}
