//! A fragmented datagram is lost with any of its fragments.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::TransportProtocol;
use linerate_stats::units::{format_count, format_share};

use super::reassembly::{MIN_FRAGMENTS, REJECTED_PART, rejected_fragments};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Smallest loss share that matters.
const MIN_RELEVANT_SHARE: f64 = 0.001;

/// Fewest incomplete datagrams; fewer are noise.
const MIN_LOST: u64 = 3;

/// See docs/CAUSES.md#fragment-loss.
pub struct FragmentLoss;

impl Rule for FragmentLoss {
    fn id(&self) -> CauseId {
        CauseId::FragmentLoss
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A datagram of k fragments is lost with any of them: 1 - (1 - p)^k.",
            shown_when: vec![detection(
                "UDP, datagrams above the MTU",
                [format!(
                    "{MIN_LOST} datagrams or more, and {} or more, arrive incomplete",
                    percent(MIN_RELEVANT_SHARE)
                )],
            )],
            not_when: vec![format!(
                "the receiver dropped more than one fragment for {REJECTED_PART} incomplete \
                 datagrams: see [reassembly](#reassembly)"
            )],
            evidence: &[
                ("losses[reassembly]", "datagrams"),
                ("fragments_received", "fragments"),
                ("reassembled", "datagrams"),
                ("payload_bytes", "B"),
                ("mtu", "B"),
            ],
            cost: vec!["Share of the datagrams lost that way.".into()],
            remedy: vec![
                "Send datagrams that fit into one packet (`-l 1472`; IPv6 `-l 1452`).".into(),
                "Or raise the MTU of the whole path.".into(),
            ],
            wrong_when: vec![
                "the fragments are lost at a place of their own, such as a filter that drops them"
                    .into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Udp);
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

impl FragmentLoss {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let fragments = direction.fragments();
        let lost = direction.lost_at(LossPoint::Reassembly);
        let share = direction.lost_share(LossPoint::Reassembly);
        if fragments < MIN_FRAGMENTS
            || lost < MIN_LOST
            || share < MIN_RELEVANT_SHARE
            || rejected_fragments(run, direction) * REJECTED_PART > lost
        {
            return None;
        }
        let datagram_loss = direction.summary().loss_fraction.unwrap_or(share).min(1.0);
        // With independent fragment losses p, 1 - (1 - p)^k of the datagrams are lost.
        let fragment_loss = 1.0 - (1.0 - datagram_loss).powf(1.0 / fragments);
        let host = direction.receiver.as_str();
        let increase_of = |counter| run.counter_increase(counter, |at, _| at == host);
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{} datagrams ({}) arrived incomplete: each has {fragments:.0} fragments and is lost \
                 with any of them; about {} of the fragments were lost",
                format_count(lost),
                format_share(share),
                format_share(fragment_loss)
            ))
            .evidence("losses[reassembly]", lost, "datagrams", "losses")
            .evidence_if(
                "fragments_received",
                increase_of("fragments_received"),
                "fragments",
                run.ip_counter_source(host, "ReasmReqds"),
            )
            .evidence_if(
                "reassembled",
                increase_of("reassembled"),
                "datagrams",
                run.ip_counter_source(host, "ReasmOKs"),
            )
            .evidence("payload_bytes", run.plan.payload_bytes, "B", "plan")
            .evidence(
                "mtu",
                direction.mtu(),
                "B",
                format!("{} interface", direction.sender.as_str()),
            )
            .remedy("send datagrams that fit into one packet, or raise the MTU of the path")
            .command(run.rerun_command(&format!(
                "-l {:.0}",
                direction.mtu() - f64::from(run.datagram_headers())
            )))
            .gain(
                Some((1.0 - fragment_loss) / (1.0 - datagram_loss).max(0.01)),
                "(1 - loss of one fragment) / (1 - loss of a datagram), loss = 1 - (1 - \
                 p)^fragments",
            )
            .build()
    }
}
