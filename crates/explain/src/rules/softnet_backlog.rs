//! A processor's backlog queue of received packets is full.

use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_stats::units::{format_count, format_share};

use super::nic_drop::{MIN_DROPS, MIN_RELEVANT_SHARE, needed_retransmits};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// See docs/CAUSES.md#softnet-backlog.
pub struct SoftnetBacklog;

impl Rule for SoftnetBacklog {
    fn id(&self) -> CauseId {
        CauseId::SoftnetBacklog
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A CPU's queue of received packets is full.",
            shown_when: vec![detection(
                "TCP and UDP",
                [
                    format!(
                        "{MIN_DROPS} drops or more, and {} of the packets or more, in the second \
                         column of /proc/net/softnet_stat",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                    "UDP: as many as `losses` has there".into(),
                    "TCP: no more than the needed retransmits".into(),
                ],
            )],
            evidence: &[
                ("backlog_drops", "packets"),
                ("budget_spent", "rounds"),
                ("net.core.netdev_max_backlog", "packets"),
            ],
            cost: vec!["As for [nic-drop](#nic-drop).".into()],
            remedy: vec![
                "Raise `net.core.netdev_max_backlog`, a machine-wide setting of the initial \
                 network namespace."
                    .into(),
                "Reduce the receive work (GRO), or spread it over more CPUs (RPS).".into(),
            ],
            wrong_when: vec!["the machine-wide counter includes other packets".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput {
            return Vec::new();
        }
        let directions = run.directions.iter();
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

impl SoftnetBacklog {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let role = direction.receiver;
        let end = role.as_str();
        let drops = run
            .counter_increase("backlog_drops", |host, _| host == end)
            .or_else(|| run.counter_increase("backlog_drops", |_, _| true))?;
        let is_udp = run.plan.protocol == TransportProtocol::Udp;
        let lost = match is_udp {
            true => direction.lost_at(LossPoint::SoftnetBacklog),
            false => drops.min(needed_retransmits(direction)),
        };
        let share = lost as f64 / (direction.path_packets() + lost as f64).max(1.0);
        if lost < MIN_DROPS || share < MIN_RELEVANT_SHARE {
            return None;
        }
        let limit = run.sysctl(role, "net.core.netdev_max_backlog");
        let budget_spent = run.counter_increase("budget_spent", |host, _| host == end);
        let cost = match (is_udp, direction.tcp()) {
            (true, _) => direction.lost_share(LossPoint::SoftnetBacklog),
            (false, Some(tcp)) => super::congestion_loss::cwnd_limited_share(&tcp).max(share),
            (false, None) => share,
        };
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(cost)
            .summary(format!(
                "the backlog queues of the {2}'s CPUs were full: {0} packets ({1}) were \
                 dropped",
                format_count(lost),
                format_share(share),
                end
            ))
            .evidence(
                "backlog_drops",
                drops,
                "packets",
                format!("{end} /proc/net/softnet_stat, second column"),
            )
            .evidence_if(
                "budget_spent",
                budget_spent,
                "rounds",
                format!("{end} /proc/net/softnet_stat, third column"),
            )
            .evidence_if(
                "net.core.netdev_max_backlog",
                limit,
                "packets",
                format!("{end} sysctl"),
            )
            .remedy(
                "enlarge the queue (a machine-wide setting, in the initial network namespace), \
                 and reduce the receive work or spread it over more CPUs",
            )
            .command(super::sysctl_command(
                "net.core.netdev_max_backlog",
                (limit.unwrap_or(1000) * 10).max(10_000),
            ))
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }
}
