//! A fragmented datagram is lost with any of its fragments.

use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::units::{format_count, format_share};

use super::reassembly::refused;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest loss share that matters.
const MATTERS: f64 = 0.001;

/// See docs/CAUSES.md#fragment-loss.
pub struct FragmentLoss;

impl Rule for FragmentLoss {
    fn id(&self) -> &'static str {
        "fragment-loss"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Udp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl FragmentLoss {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let pieces = way.fragments();
        let lost = way.lost_at("reassembly");
        let share = way.lost_share("reassembly");
        if pieces < 2.0 || lost < 3 || share < MATTERS || refused(case, way) * 4 > lost {
            return None;
        }
        let whole = way.summary().loss_fraction.unwrap_or(share).min(1.0);
        // With independent fragment losses p, 1 - (1 - p)^k of the datagrams are lost.
        let each = 1.0 - (1.0 - whole).powf(1.0 / pieces);
        let host = name(way.receiver);
        let of = |counter| case.added(counter, |at, _| at == host);
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{} datagrams ({}) arrived incomplete: each has {pieces:.0} fragments and is lost \
                 with any of them; about {} of the fragments were lost",
                format_count(lost),
                format_share(share),
                format_share(each)
            ))
            .seen("losses[reassembly]", lost, "datagrams", "losses")
            .seen_if(
                "fragments_received",
                of("fragments_received"),
                "fragments",
                format!("{host} /proc/net/snmp ReasmReqds"),
            )
            .seen_if(
                "reassembled",
                of("reassembled"),
                "datagrams",
                format!("{host} /proc/net/snmp ReasmOKs"),
            )
            .seen("payload_bytes", case.plan.payload_bytes, "B", "plan")
            .seen(
                "mtu",
                way.mtu(),
                "B",
                format!("{} interface", name(way.sender)),
            )
            .remedy("send datagrams that fit into one packet, or raise the MTU of the path")
            .command(case.again(&format!(
                "-l {:.0}",
                way.mtu() - f64::from(case.datagram_headers())
            )))
            .gain(
                Some((1.0 - each) / (1.0 - whole).max(0.01)),
                "(1 - loss of one fragment) / (1 - loss of a datagram), loss = 1 - (1 - \
                 p)^fragments",
            )
            .found()
    }
}
