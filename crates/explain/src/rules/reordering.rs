//! Packets arrive out of order.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::units::{format_count, format_share};

use super::tcp_info;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way};

/// Smallest share of late datagrams that matters.
const MATTERS: f64 = 0.005;

/// Fewest unnecessary retransmits; fewer are noise.
const FEW: u64 = 20;

/// See docs/CAUSES.md#reordering.
pub struct Reordering;

impl Rule for Reordering {
    fn id(&self) -> &'static str {
        "reordering"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let tcp = case.throughput(Protocol::Tcp);
        let udp = case.throughput(Protocol::Udp);
        (tcp.filter_map(|way| self.of_tcp(case, way)))
            .chain(udp.filter_map(|way| self.of_udp(case, way)))
            .collect()
    }
}

impl Reordering {
    fn of_tcp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let share = tcp.repeated();
        // A receiver does not report every duplicate.
        let needless =
            tcp.spurious >= FEW && (tcp.spurious * 2 >= tcp.retransmits || tcp.is_overtaking());
        // Retransmits do not limit an end without idle time.
        let saturated = super::is_saturated(way);
        if !needless || tcp.reordering == 0 || share < if saturated { 0.01 } else { 0.001 } {
            return None;
        }
        // Unnecessary retransmits cost their own share, and the windows that they reduce.
        let held = match saturated {
            true => 0.0,
            false => super::congestion_loss::held_by_congestion(&tcp) * 0.5,
        };
        let cost = (share + held).min(0.9);
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "segments were reordered: of {} retransmitted segments the receiver already had {}",
                format_count(tcp.retransmits),
                format_count(tcp.spurious)
            ))
            .seen("tcpi_reord_seen", tcp.reordering, "", tcp_info(way.sender))
            .seen(
                "tcpi_dsack_dups",
                tcp.spurious,
                "segments",
                tcp_info(way.sender),
            )
            .seen(
                "tcpi_total_retrans",
                tcp.retransmits,
                "segments",
                tcp_info(way.sender),
            )
            .remedy(
                "keep each flow on one path: no load balancing per packet, one queue and one core \
                 per flow",
            )
            .command(case.at(way.sender, "sysctl -w net.ipv4.tcp_reordering=30"))
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let summary = way.summary();
        let late = summary.out_of_order?;
        let share = late as f64 / way.packets_sent();
        if share < MATTERS || late < FEW {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{} datagrams ({}) arrived after one that was sent later",
                format_count(late),
                format_share(share)
            ))
            .seen("out_of_order", late, "datagrams", "receiver")
            .seen_if(
                "reordering_extent",
                summary.reordering_extent,
                "datagrams",
                "receiver",
            )
            .remedy(
                "keep each flow on one path: no load balancing per packet, one queue and one core \
                 per flow",
            )
            .command(match case.device(way.receiver) {
                Some(device) => {
                    case.at(way.receiver, &format!("ethtool -X {} equal 1", device.name))
                }
                // On a virtual link the reordering depends on the program behind it.
                None => case.again("--offload none"),
            })
            .found()
    }
}
