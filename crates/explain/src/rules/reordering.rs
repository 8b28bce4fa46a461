//! Packets arrive out of order.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_count, format_share};

use super::tcp_info_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, REORDERED_SHARE, RunView};

/// Smallest share of late datagrams that matters.
const MIN_RELEVANT_SHARE: f64 = 0.005;

/// Fewest unnecessary retransmits; fewer are noise.
const MIN_SPURIOUS: u64 = 20;

/// Part of the retransmits from which unnecessary ones are reordering: one in two.
const SPURIOUS_PART: u64 = 2;

/// Smallest share of retransmitted segments that matters, and for an end without idle time.
const MIN_RETRANSMIT_SHARE: f64 = 0.001;
const MIN_SATURATED_RETRANSMIT_SHARE: f64 = 0.01;

/// Share of the time with a reduced congestion window that reordering takes, and largest cost.
const REDUCED_WINDOW_COST: f64 = 0.5;
const MAX_COST: f64 = 0.9;

/// See docs/CAUSES.md#reordering.
pub struct Reordering;

impl Rule for Reordering {
    fn id(&self) -> CauseId {
        CauseId::Reordering
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Packets overtake each other, and TCP takes that for loss.",
            shown_when: vec![
                detection(
                    "TCP",
                    [
                        format!(
                            "{MIN_SPURIOUS} or more unnecessary retransmits (`tcpi_dsack_dups`)"
                        ),
                        format!(
                            "they are {} of all or more; or {} of the segments or more overtake \
                             others",
                            percent(1.0 / SPURIOUS_PART as f64),
                            percent(REORDERED_SHARE)
                        ),
                        "the sender detects reordering (`tcpi_reord_seen`)".into(),
                        format!(
                            "{} of the segments or more are retransmitted; {} if an end is \
                             saturated",
                            percent(MIN_RETRANSMIT_SHARE),
                            percent(MIN_SATURATED_RETRANSMIT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "UDP",
                    [format!(
                        "{MIN_SPURIOUS} datagrams or more, and {} or more, arrive after one with a \
                         higher number",
                        percent(MIN_RELEVANT_SHARE)
                    )],
                ),
            ],
            evidence: &[
                ("tcpi_reord_seen", ""),
                ("tcpi_dsack_dups", "segments"),
                ("tcpi_total_retrans", "segments"),
                ("out_of_order", "datagrams"),
                ("reordering_extent", "datagrams"),
            ],
            cost: vec![
                "Share of retransmitted segments, or of late datagrams.".into(),
                format!(
                    "If both ends have idle time, {} of the time limited by the reduced congestion \
                     window is added.",
                    percent(REDUCED_WINDOW_COST)
                ),
            ],
            remedy: vec![
                "Keep each flow on one path: no load balancing by packet, one queue and one CPU \
                 for each flow."
                    .into(),
                "Raise `net.ipv4.tcp_reordering` at the sender.".into(),
            ],
            wrong_when: vec!["a middlebox makes the receiver repeat DSACKs".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let tcp = run.throughput_directions(TransportProtocol::Tcp);
        let udp = run.throughput_directions(TransportProtocol::Udp);
        (tcp.filter_map(|direction| self.evaluate_tcp(run, direction)))
            .chain(udp.filter_map(|direction| self.evaluate_udp(run, direction)))
            .collect()
    }
}

impl Reordering {
    fn evaluate_tcp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let tcp = direction.tcp()?;
        let share = tcp.retransmit_share();
        // A receiver does not report every duplicate.
        let needless = tcp.spurious_retransmits >= MIN_SPURIOUS
            && (tcp.spurious_retransmits * SPURIOUS_PART >= tcp.retransmits || tcp.is_reordered());
        // Retransmits do not limit an end without idle time.
        let saturated = super::is_saturated(direction);
        let min_share = match saturated {
            true => MIN_SATURATED_RETRANSMIT_SHARE,
            false => MIN_RETRANSMIT_SHARE,
        };
        if !needless || tcp.reordering_events == 0 || share < min_share {
            return None;
        }
        // Unnecessary retransmits cost their own share, and the windows that they reduce.
        let window_cost = match saturated {
            true => 0.0,
            false => super::congestion_loss::cwnd_limited_share(&tcp) * REDUCED_WINDOW_COST,
        };
        let cost = (share + window_cost).min(MAX_COST);
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(cost)
            .summary(format!(
                "segments were reordered: of {} retransmitted segments the receiver already had {}",
                format_count(tcp.retransmits),
                format_count(tcp.spurious_retransmits)
            ))
            .evidence(
                "tcpi_reord_seen",
                tcp.reordering_events,
                "",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_dsack_dups",
                tcp.spurious_retransmits,
                "segments",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_total_retrans",
                tcp.retransmits,
                "segments",
                tcp_info_source(direction.sender),
            )
            .remedy(
                "keep each flow on one path: no load balancing per packet, one queue and one CPU \
                 per flow",
            )
            .command(run.command_at(direction.sender, "sysctl -w net.ipv4.tcp_reordering=30"))
            .build()
    }

    fn evaluate_udp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let summary = direction.summary();
        let out_of_order = summary.out_of_order?;
        let share = out_of_order as f64 / direction.packets_sent();
        if share < MIN_RELEVANT_SHARE || out_of_order < MIN_SPURIOUS {
            return None;
        }
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{} datagrams ({}) arrived after one that was sent later",
                format_count(out_of_order),
                format_share(share)
            ))
            .evidence("out_of_order", out_of_order, "datagrams", "receiver")
            .evidence_if(
                "reordering_extent",
                summary.reordering_extent,
                "datagrams",
                "receiver",
            )
            .remedy(
                "keep each flow on one path: no load balancing per packet, one queue and one CPU \
                 per flow",
            )
            .command(match run.device(direction.receiver) {
                Some(device) => run.command_at(
                    direction.receiver,
                    &format!("ethtool -X {} equal 1", device.name),
                ),
                // On a virtual link the reordering depends on the program behind it.
                None => run.rerun_command("--offload none"),
            })
            .build()
    }
}
