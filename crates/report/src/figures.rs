//! Figures of a run's summary: which figures each kind of run has, and their values as text.

use linerate_record::facts::Role;
use linerate_record::ids::LossPoint;
use linerate_record::plan::{Plan, RunKind, TransportProtocol};
use linerate_record::record::{CpuCost, PacketLoss, Record, Summary};
use linerate_stats::units::{
    count_of, format_bit_rate, format_bytes, format_count, format_nanos, format_per_second,
    format_share,
};

use crate::model::{self, SummaryFigure, summary_figure};

/// Returns the figures of a run of this plan, including those without a value.
pub(crate) fn summary_figures(plan: &Plan, summary: &Summary) -> Vec<SummaryFigure> {
    match (plan.kind, plan.protocol) {
        (RunKind::Throughput, protocol) => {
            let mut all = match protocol {
                TransportProtocol::Tcp => tcp_figures(plan, summary),
                TransportProtocol::Udp => udp_figures(plan, summary),
            };
            all.extend((plan.streams > 1).then(|| fairness_figure(summary)));
            all
        }
        (RunKind::Generate, _) => crate::generate::generator_figures(summary),
        (RunKind::Latency, _) => {
            let mut all = rtt_figures(summary);
            all.extend(round_trip_figures(summary));
            all
        }
        (RunKind::Forward, _) => crate::forward::forward_figures(plan, summary),
        // Results of the stack's services have a table of their own.
        (RunKind::Stack, _) => Vec::new(),
    }
}

/// Returns the figures of one stream; those that describe the set of all streams are left out.
pub(crate) fn stream_figures(plan: &Plan, summary: &Summary) -> Vec<SummaryFigure> {
    let mut all = summary_figures(plan, summary);
    all.retain(|figure| figure.name != FAIRNESS);
    all
}

const FAIRNESS: &str = "fairness";

fn fairness_figure(summary: &Summary) -> SummaryFigure {
    summary_figure(
        FAIRNESS,
        "1 when all flows received the same, 1/n when one received everything (Jain)",
        summary.fairness_index.map(|index| format!("{index:.3}")),
    )
}

fn tcp_figures(plan: &Plan, summary: &Summary) -> Vec<SummaryFigure> {
    let mut figures = vec![
        goodput_figure(plan, summary),
        offered_figure(summary),
        summary_figure(
            "transferred",
            "total payload received",
            summary.bytes_received.map(format_bytes),
        ),
        summary_figure(
            "calls/s",
            "send calls per second",
            summary.calls_per_second.map(format_per_second),
        ),
        summary_figure(
            "retransmits",
            "segments retransmitted by the sender's kernel",
            summary.retransmits.map(format_count),
        ),
    ];
    figures.extend(mismatched_figure(plan, summary));
    figures
}

/// Returns the share of the sent datagrams that was not received: those that the sender gave up
/// because its socket was full were not sent.
pub(crate) fn path_loss(summary: &Summary) -> Option<f64> {
    let (Some(unsent), Some(lost)) = (summary.unsent, summary.lost) else {
        return summary.loss_fraction;
    };
    let lost = lost.saturating_sub(unsent) as f64;
    let received = summary.packets_received?;
    let unique = received.saturating_sub(summary.duplicates.unwrap_or(0)) as f64;
    (lost + unique > 0.0).then(|| lost / (lost + unique))
}

/// Describes the datagrams that were not sent: `14,840 datagrams (74.1 %) were not sent: the
/// sender's socket was full`.
pub(crate) fn describe_unsent(summary: &Summary) -> Option<String> {
    let unsent = summary.unsent.filter(|&unsent| unsent > 0)?;
    let share = summary.packets_sent.filter(|&all| all > 0);
    let share = share.map_or_else(String::new, |all| {
        format!(" ({})", format_share(unsent as f64 / all as f64))
    });
    let were = if unsent == 1 { "was" } else { "were" };
    Some(format!(
        "{}{share} {were} not sent: the sender's socket was full",
        count_of(unsent, "datagram")
    ))
}

fn udp_figures(plan: &Plan, summary: &Summary) -> Vec<SummaryFigure> {
    let path_lost = (summary.lost).map(|lost| lost.saturating_sub(summary.unsent.unwrap_or(0)));
    let mut figures = vec![
        goodput_figure(plan, summary),
        offered_figure(summary),
        summary_figure(
            "packets/s",
            "datagrams received per second",
            summary.packets_per_second.map(format_per_second),
        ),
        summary_figure(
            "lost",
            "datagrams sent and not received",
            path_lost.map(format_count),
        ),
        summary_figure(
            "loss",
            "share of the sent datagrams that was not received",
            path_loss(summary).map(format_share),
        ),
        summary_figure(
            "reordered",
            "datagrams that arrived after one that was sent later",
            summary.out_of_order.map(format_count),
        ),
        summary_figure(
            "duplicates",
            "datagrams that arrived more than once",
            summary.duplicates.map(format_count),
        ),
        summary_figure(
            "ipdv",
            "variation of the gaps between datagrams (jitter)",
            summary.ipdv_ns.map(format_nanos),
        ),
    ];
    figures.extend(mismatched_figure(plan, summary));
    figures
}

/// Returns the known figures of a line in a server's log: `10.0 s, 17.6 GiB, 15.1 Gb/s, 3
/// retransmits`.
pub(crate) fn log_figures(plan: &Plan, summary: &Summary) -> Vec<String> {
    let count = |value: Option<u64>, name: &str| {
        let value = value.filter(|&value| value > 0)?;
        Some(format!("{} {name}", format_count(value)))
    };
    let rtt = summary.rtt_ns.as_ref();
    let figures = match plan.kind {
        RunKind::Latency => [
            count(summary.round_trips, "round trips"),
            rtt.map(|rtt| format!("p50 {}", format_nanos(rtt.p50 as f64))),
            rtt.map(|rtt| format!("p99 {}", format_nanos(rtt.p99 as f64))),
            count(summary.lost, "lost"),
        ],
        _ => [
            (summary.bytes_received.or(summary.bytes_sent)).map(format_bytes),
            summary.goodput_bps.map(format_bit_rate),
            count(summary.retransmits, "retransmits"),
            (path_loss(summary).filter(|&loss| loss > 0.0))
                .map(|loss| format!("{} lost", format_share(loss))),
        ],
    };
    let time = summary.duration_ns.map(|time| format_nanos(time as f64));
    time.into_iter()
        .chain(figures.into_iter().flatten())
        .collect()
}

/// Returns the timing figures that a throughput run recorded.
pub(crate) fn timing_figures(summary: &Summary) -> Vec<SummaryFigure> {
    let mut figures = Vec::new();
    if let Some(error) = summary.rate_error {
        let sign = if error < 0.0 { '-' } else { '+' };
        figures.push(summary_figure(
            "rate error",
            "difference between offered and intended load",
            Some(format!("{sign}{}", format_share(error.abs()))),
        ));
    }
    for (quantiles, names) in [
        (
            summary.lateness_ns,
            [
                (
                    "lateness p50",
                    "delay of bursts after their scheduled time, median",
                ),
                (
                    "lateness p99",
                    "delay of bursts after their scheduled time, 99th percentile",
                ),
            ],
        ),
        (
            summary.arrival_gap_ns,
            [
                ("arrival gap p50", "time between two datagrams, median"),
                (
                    "arrival gap p99",
                    "time between two datagrams, 99th percentile",
                ),
            ],
        ),
        (
            summary.one_way_delay_ns,
            [
                ("one-way delay p50", "time from sender to receiver, median"),
                (
                    "one-way delay p99",
                    "time from sender to receiver, 99th percentile",
                ),
            ],
        ),
        (
            summary.delay_variation_ns,
            [
                (
                    "delay variation p50",
                    "change of the delay from one datagram to the next, median",
                ),
                (
                    "delay variation p99",
                    "change of the delay from one datagram to the next, 99th percentile",
                ),
            ],
        ),
    ] {
        let Some(quantiles) = quantiles else { continue };
        for ((name, meaning), value) in names.into_iter().zip([quantiles.p50, quantiles.p99]) {
            figures.push(summary_figure(
                name,
                meaning,
                Some(format_nanos(value as f64)),
            ));
        }
    }
    if let Some(extent) = summary.reordering_extent {
        figures.push(summary_figure(
            "reordering extent",
            "largest number of datagrams between a late one and the one that overtook it",
            Some(format_count(extent)),
        ));
    }
    figures
}

fn goodput_figure(plan: &Plan, summary: &Summary) -> SummaryFigure {
    // A mode that skips a copy is named wherever its goodput is shown.
    let rate = |rate| match model::skipped_copies(plan.copies) {
        None => format_bit_rate(rate),
        Some(skipped) => format!("{} ({skipped})", format_bit_rate(rate)),
    };
    summary_figure(
        "goodput",
        "payload received per second",
        summary.goodput_bps.map(rate),
    )
}

/// Number of corrupted bytes, if the content was verified.
fn mismatched_figure(plan: &Plan, summary: &Summary) -> Option<SummaryFigure> {
    plan.verify.then(|| {
        summary_figure(
            "mismatched",
            "received bytes that differ from those sent",
            summary.mismatched.map(format_count),
        )
    })
}

/// Describes the cost of verification per host: `client writes content at 21.3 ns per KiB`.
pub(crate) fn describe_verification(record: &Record) -> Option<String> {
    let parts: Vec<_> = (record.verification.iter())
        .flat_map(|end| {
            let describe = |verb: &str, cost: Option<f64>| {
                cost.map(|cost| {
                    format!(
                        "{} {verb} content at {cost:.1} ns per KiB",
                        end.role.as_str()
                    )
                })
            };
            [
                describe("writes", end.fill_ns_per_kib),
                describe("compares", end.check_ns_per_kib),
            ]
        })
        .flatten()
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn offered_figure(summary: &Summary) -> SummaryFigure {
    summary_figure(
        "offered",
        "payload passed to the sender's kernel per second",
        summary.offered_bps.map(format_bit_rate),
    )
}

/// Returns the distribution of round-trip times.
pub(crate) fn rtt_figures(summary: &Summary) -> Vec<SummaryFigure> {
    let rtt = summary.rtt_ns;
    let at = |value: Option<u64>| value.map(|value| format_nanos(value as f64));
    vec![
        summary_figure("min", "shortest round trip", at(rtt.map(|q| q.min))),
        summary_figure(
            "mean",
            "average round trip",
            rtt.map(|q| format_nanos(q.mean)),
        ),
        summary_figure("p50", "median round trip", at(rtt.map(|q| q.p50))),
        summary_figure("p90", "90th percentile", at(rtt.map(|q| q.p90))),
        summary_figure("p99", "99th percentile", at(rtt.map(|q| q.p99))),
        summary_figure("p99.9", "99.9th percentile", at(rtt.map(|q| q.p99_9))),
        summary_figure("p99.99", "99.99th percentile", at(rtt.map(|q| q.p99_99))),
        summary_figure("max", "longest round trip", at(rtt.map(|q| q.max))),
        summary_figure(
            "sd",
            "standard deviation of round trips",
            rtt.map(|q| format_nanos(q.standard_deviation)),
        ),
    ]
}

/// Returns the numbers of round trips and of failures.
pub(crate) fn round_trip_figures(summary: &Summary) -> Vec<SummaryFigure> {
    let mut figures = vec![
        summary_figure(
            "round trips",
            "requests that got a response",
            summary.round_trips.map(format_count),
        ),
        summary_figure(
            "rate",
            "round trips per second",
            summary.round_trips_per_second.map(format_per_second),
        ),
        summary_figure(
            "lost",
            "requests without a response before the timeout",
            summary.lost.map(format_count),
        ),
        summary_figure(
            "mismatched",
            "responses that differ from what was sent",
            summary.mismatched.map(format_count),
        ),
    ];
    if let Some(rate) = summary.connections_per_second {
        let meaning = "connections opened, used and closed per second";
        figures[1] = summary_figure("connections/s", meaning, Some(format_per_second(rate)));
    }
    // A failure that did not happen has no column.
    for (name, meaning, count) in [
        (
            "wrong length",
            "mismatched responses of another length",
            summary.wrong_length,
        ),
        (
            "wrong content",
            "mismatched responses of the right length",
            summary.wrong_content,
        ),
        (
            "out of order",
            "responses after the timeout, or after the response to a later request",
            summary.out_of_order,
        ),
        (
            "retransmits",
            "segments retransmitted by both kernels",
            summary.retransmits,
        ),
        (
            "repeated",
            "responses received more than once",
            summary.duplicates,
        ),
        (
            "unsent",
            "scheduled requests that were not sent",
            summary.unsent,
        ),
    ] {
        if let Some(count) = count.filter(|&count| count > 0) {
            figures.push(summary_figure(name, meaning, Some(format_count(count))));
        }
    }
    if let Some(device) = &summary.device {
        let meaning = "share of the round-trip time spent in the device, by its own timestamps";
        figures.push(summary_figure(
            "in device",
            meaning,
            Some(format_share(device.share)),
        ));
    }
    // Slow responses are counted only in a run with a limit.
    if let Some(slow) = summary.slow {
        figures.push(summary_figure(
            "slow",
            "responses above the limit",
            Some(format_count(slow)),
        ));
    }
    figures
}

/// Returns the CPU cost of the measuring threads per host; `None` where it is unknown.
pub(crate) fn cpu_costs(summary: &Summary) -> [(Role, Option<&CpuCost>); 2] {
    [Role::Client, Role::Server]
        .map(|role| (role, summary.cpu.iter().find(|cost| cost.role == role)))
}

/// Describes the CPU cost: `93.1 % of a core (4.20 % in user mode; context switches: 1,204
/// voluntary, 12 involuntary)`.
pub(crate) fn describe_cpu(cost: &CpuCost) -> String {
    let user = cost.user_share.map_or_else(String::new, |share| {
        format!("{} in user mode; ", format_share(share))
    });
    format!(
        "{} of a CPU ({user}context switches: {} voluntary, {} involuntary)",
        format_share(cost.share),
        format_count(cost.voluntary_switches),
        format_count(cost.involuntary_switches),
    )
}

/// Describes a loss count with its bounds: `10,103`; `at most 10`; `at least 10`; `50 (10 to 90)`.
#[must_use]
pub fn format_loss_count(loss: &PacketLoss) -> String {
    let packets = format_count(loss.packets);
    if loss.exact {
        return packets;
    }
    let at_least = loss.at_least.unwrap_or(0);
    match loss.at_most {
        _ if at_least == loss.packets && at_least > 0 => format!("at least {packets}"),
        Some(at_most) if at_most > loss.packets => {
            format!(
                "{packets} ({} to {})",
                format_count(at_least),
                format_count(at_most)
            )
        }
        _ => format!("at most {packets}"),
    }
}

/// Describes a loss point.
pub(crate) fn describe_loss_point(point: LossPoint) -> &'static str {
    match point {
        LossPoint::SenderSocket => "not sent: the sender's socket buffer was full",
        LossPoint::Qdisc => "dropped by the queueing discipline of an interface",
        LossPoint::InterfaceTx => "dropped by an interface on transmit",
        LossPoint::InterfaceRx => "dropped by an interface on receive",
        LossPoint::SoftnetBacklog => "a CPU's backlog of received packets was full",
        LossPoint::Reassembly => "IP fragments were missing or too late",
        LossPoint::UdpReceiveQueue => "the receiver's socket buffer was full: it read too slowly",
        LossPoint::Path => "between the hosts, or where no counter exists",
        LossPoint::EmulatedLink => "dropped by an emulated link: configured loss, or a full queue",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 Mb/s into a link of 5 Mb/s: the socket was full for three of four datagrams, and one more
    /// was lost on the path.
    #[test]
    fn datagrams_that_were_not_sent_are_not_lost() {
        let summary = Summary {
            packets_sent: Some(20_000),
            packets_received: Some(5_159),
            lost: Some(14_841),
            loss_fraction: Some(14_841.0 / 20_000.0),
            unsent: Some(14_840),
            ..Summary::default()
        };
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
        let shown = |summary: &Summary| {
            let figures = summary_figures(&plan, summary).into_iter();
            let shown = figures.filter(|figure| ["lost", "loss"].contains(&figure.name));
            shown.filter_map(|figure| figure.value).collect::<Vec<_>>()
        };
        assert_eq!(shown(&summary), ["1", "0.02 %"]);
        assert_eq!(
            describe_unsent(&summary).as_deref(),
            Some("14,840 datagrams (74.2 %) were not sent: the sender's socket was full")
        );
        // Records without the count.
        let earlier = Summary {
            unsent: None,
            ..summary
        };
        assert_eq!(shown(&earlier), ["14,841", "74.2 %"]);
        assert_eq!(describe_unsent(&earlier), None);
    }
}
