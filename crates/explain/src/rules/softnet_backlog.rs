//! A processor's backlog queue of received packets is full.

use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::units::{format_count, format_share};

use super::nic_drop::{FEW, MATTERS, needed_again};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// See docs/CAUSES.md#softnet-backlog.
pub struct SoftnetBacklog;

impl Rule for SoftnetBacklog {
    fn id(&self) -> &'static str {
        "softnet-backlog"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let ways = case.ways.iter();
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl SoftnetBacklog {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let role = way.receiver;
        let end = name(role);
        let drops = case
            .added("backlog_drops", |host, _| host == end)
            .or_else(|| case.added("backlog_drops", |_, _| true))?;
        let is_udp = case.plan.protocol == Protocol::Udp;
        let lost = match is_udp {
            true => way.lost_at("softnet-backlog"),
            false => drops.min(needed_again(way)),
        };
        let share = lost as f64 / (way.packets() + lost as f64).max(1.0);
        if lost < FEW || share < MATTERS {
            return None;
        }
        let limit = case.sysctl(role, "net.core.netdev_max_backlog");
        let squeezed = case.added("budget_spent", |host, _| host == end);
        let cost = match (is_udp, way.tcp()) {
            (true, _) => way.lost_share("softnet-backlog"),
            (false, Some(tcp)) => super::congestion_loss::held_by_congestion(&tcp).max(share),
            (false, None) => share,
        };
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "the backlog queues of the {2}'s processors were full: {0} packets ({1}) were \
                 dropped",
                format_count(lost),
                format_share(share),
                end
            ))
            .seen(
                "backlog_drops",
                drops,
                "packets",
                format!("{end} /proc/net/softnet_stat, second column"),
            )
            .seen_if(
                "budget_spent",
                squeezed,
                "rounds",
                format!("{end} /proc/net/softnet_stat, third column"),
            )
            .seen_if(
                "net.core.netdev_max_backlog",
                limit,
                "packets",
                format!("{end} sysctl"),
            )
            .remedy(
                "enlarge the queue (a machine-wide setting, in the initial network namespace), \
                 and reduce the receive work or spread it over more cores",
            )
            .command(super::sysctl(
                "net.core.netdev_max_backlog",
                (limit.unwrap_or(1000) * 10).max(10_000),
            ))
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }
}
