//! Packets arrive out of order.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_count, format_share};

use super::tcp_info_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::run_view::{DirectionView, RunView};

/// Smallest share of late datagrams that matters.
const MIN_RELEVANT_SHARE: f64 = 0.005;

/// Fewest unnecessary retransmits; fewer are noise.
const MIN_SPURIOUS: u64 = 20;

/// See docs/CAUSES.md#reordering.
pub struct Reordering;

impl Rule for Reordering {
    fn id(&self) -> &'static str {
        "reordering"
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
            && (tcp.spurious_retransmits * 2 >= tcp.retransmits || tcp.is_reordered());
        // Retransmits do not limit an end without idle time.
        let saturated = super::is_saturated(direction);
        if !needless || tcp.reordering_events == 0 || share < if saturated { 0.01 } else { 0.001 } {
            return None;
        }
        // Unnecessary retransmits cost their own share, and the windows that they reduce.
        let window_cost = match saturated {
            true => 0.0,
            false => super::congestion_loss::cwnd_limited_share(&tcp) * 0.5,
        };
        let cost = (share + window_cost).min(0.9);
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
                "keep each flow on one path: no load balancing per packet, one queue and one core \
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
                "keep each flow on one path: no load balancing per packet, one queue and one core \
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
