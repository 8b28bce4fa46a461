//! The qdisc of an interface drops packets.

use linerate_metric::facts::Interface;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest share of the packets that matters.
const MATTERS: f64 = 0.0005;

/// Share of the time limited by the congestion window from which drops at the sender's own
/// interface limit it.
const HELD: f64 = 0.3;

/// Fewest drops; fewer are noise.
const FEW: u64 = 10;

/// See docs/CAUSES.md#qdisc-drop.
pub struct QdiscDrop;

impl Rule for QdiscDrop {
    fn id(&self) -> &'static str {
        "qdisc-drop"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let ways = case.ways.iter();
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl QdiscDrop {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        // With payload in both directions, a drop belongs to the direction whose sender has the
        // qdisc, or that leaves a host between the ends through this interface.
        let own = name(way.sender);
        let other = name(way.receiver);
        let of_way =
            |host: &str, on: Option<&str>| host == own || host != other && way.leaves_by(host, on);
        let drops = case.added("qdisc_drops", of_way)?;
        let here = case
            .added("qdisc_drops", |host, _| host == own)
            .unwrap_or(0)
            > 0;
        let lost = of_this_run(way, way.lost_at("qdisc").max(drops), here)?;
        let share = lost as f64 / (way.packets() + lost as f64).max(1.0);
        if lost < FEW || share < MATTERS {
            return None;
        }
        let at = case.record.counters.iter().find(|counter| {
            counter.counter == "qdisc_drops"
                && counter.added() > 0
                && of_way(&counter.host, counter.interface.as_deref())
        })?;
        let held = way
            .tcp()
            .map_or(0.0, |tcp| super::congestion_loss::held_by_congestion(&tcp));
        let cost = match way.plan().protocol {
            Protocol::Tcp => held.max(share),
            Protocol::Udp => share,
        };
        let interface = at.interface.as_deref().unwrap_or("IF");
        let sends = way.sends_by();
        let own_interface = sends.filter(|_| at.host == own);
        let kind = own_interface.and_then(|found| found.qdisc.as_deref());
        let below = own_interface.and_then(|found| super::kinds_below(&found.qdisc_children));
        let end = match at.host == own {
            true => End::from(way.sender),
            false => End::Path,
        };
        Draft::cause(self.id(), end)
            .way(way.direction)
            .cost(cost)
            .says(format!(
                "the qdisc of {} at {} dropped {} packets ({})",
                interface,
                at.host,
                format_count(lost),
                format_share(share)
            ))
            .seen(
                "qdisc_drops",
                at.added(),
                "packets",
                format!("{} {interface} rtnetlink TCA_STATS2", at.host),
            )
            .seen_if("qdisc", kind, "", format!("{own} rtnetlink"))
            .seen_if("qdisc, below it", below, "", format!("{own} rtnetlink"))
            .seen("losses[qdisc]", way.lost_at("qdisc"), "datagrams", "losses")
            .remedy("enlarge the queue of the qdisc, or send at a rate that it passes")
            .command(case.at_host(&at.host, &longer_queue(interface, own_interface)))
            .gain(
                (way.plan().protocol == Protocol::Udp).then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }
}

/// Returns the drops of an interface that belong to this run: the counter includes all traffic.
/// `None` if the run shows no loss.
fn of_this_run(way: &Way<'_>, drops: u64, here: bool) -> Option<u64> {
    match way.plan().protocol {
        Protocol::Tcp => {
            let Some(tcp) = way.tcp() else {
                return Some(drops);
            };
            let again = tcp.retransmits.saturating_sub(tcp.spurious);
            // The kernel resends drops of its own interface without counting them, and reduces its
            // congestion window.
            let refused = here
                && super::congestion_loss::held_by_congestion(&tcp) >= HELD
                && !super::is_saturated(way);
            match (again >= FEW, refused) {
                (_, true) => Some(drops),
                (true, false) => Some(drops.min(again)),
                (false, false) => None,
            }
        }
        Protocol::Udp => {
            let lost = way
                .summary()
                .loss_fraction
                .map(|share| share * way.packets_sent() * way.fragments());
            Some(lost.map_or(drops, |lost| drops.min(lost.ceil() as u64)))
        }
    }
}

/// Returns the command that keeps the qdisc and gives it a queue of about 1000 packets. If its
/// other settings are unknown, the command shows them: another kind of qdisc could remove a wanted
/// rate limit, and the kernel may not support it.
fn longer_queue(interface: &str, at: Option<&Interface>) -> String {
    let as_it_is = || format!("tc -s qdisc show dev {interface}");
    let Some((at, kind)) = at.and_then(|at| Some((at, at.qdisc.as_deref()?))) else {
        return as_it_is();
    };
    // Below `mq` each queue has its own qdisc; equal ones can be changed together.
    let (kind, rate, queues) = match (kind, &at.qdisc_children[..]) {
        ("mq", [queue]) => (
            queue.kind.as_str(),
            queue.rate_bps.zip(queue.burst_bytes),
            Some(queue.count),
        ),
        _ => (kind, at.qdisc_rate_bps.zip(at.qdisc_burst_bytes), None),
    };
    if kind == "pfifo_fast" {
        return format!("ip link set dev {interface} txqueuelen {}", 10 * QUEUE);
    }
    let longer = match (kind, rate) {
        ("tbf", Some((rate, burst))) => {
            format!("tbf rate {rate}bit burst {burst} limit {}", QUEUE * 1500)
        }
        ("pfifo" | "codel" | "sfq", _) => format!("{kind} limit {}", 10 * QUEUE),
        // The default limits are 10,000 packets, and 100 of one flow.
        ("fq", _) => format!("fq limit {} flow_limit {}", 100 * QUEUE, 10 * QUEUE),
        ("fq_codel", _) => format!("fq_codel limit {}", 100 * QUEUE),
        ("bfifo", _) => format!("bfifo limit {}", 10 * QUEUE * 1500),
        _ => return as_it_is(),
    };
    match (queues, kind) {
        // A default `mq` has no handle to attach children to, so it is replaced by one with a
        // handle first.
        (Some(queues), _) => {
            let numbers: Vec<String> = (1..=queues).map(|queue| format!("{queue:x}")).collect();
            format!(
                "tc qdisc replace dev {interface} root handle 1: mq && for queue in {}; do tc \
                 qdisc replace dev {interface} parent 1:$queue {longer}; done",
                numbers.join(" ")
            )
        }
        (None, "tbf") => format!("tc qdisc change dev {interface} root {longer}"),
        // A default qdisc cannot be changed, only replaced.
        (None, _) => format!("tc qdisc replace dev {interface} root {longer}"),
    }
}

/// Queue length in packets: more would delay packets by seconds on a slow link (bufferbloat).
const QUEUE: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::facts::ChildQdisc;

    #[test]
    fn a_longer_queue_keeps_the_discipline() {
        let of = |kind: &str, rate| Interface {
            qdisc: Some(kind.to_owned()),
            qdisc_rate_bps: rate,
            qdisc_burst_bytes: rate.map(|_| 65_536),
            ..Interface::default()
        };
        for (at, want) in [
            (
                Some(of("tbf", Some(2_000_000_000))),
                "tc qdisc change dev e0 root tbf rate 2000000000bit burst 65536 limit 1500000",
            ),
            (Some(of("tbf", None)), "tc -s qdisc show dev e0"),
            (
                Some(of("pfifo_fast", None)),
                "ip link set dev e0 txqueuelen 10000",
            ),
            (
                Some(of("fq_codel", None)),
                "tc qdisc replace dev e0 root fq_codel limit 100000",
            ),
            (
                Some(of("fq", None)),
                "tc qdisc replace dev e0 root fq limit 100000 flow_limit 10000",
            ),
            (Some(of("htb", None)), "tc -s qdisc show dev e0"),
            (None, "tc -s qdisc show dev e0"),
        ] {
            assert_eq!(longer_queue("e0", at.as_ref()), want);
        }
    }

    #[test]
    fn queues_below_mq_are_made_longer_each() {
        let of = |children: &[(&str, u32)]| Interface {
            qdisc: Some("mq".to_owned()),
            qdisc_children: (children.iter())
                .map(|&(kind, count)| ChildQdisc {
                    kind: kind.to_owned(),
                    count,
                    ..ChildQdisc::default()
                })
                .collect(),
            ..Interface::default()
        };
        for (children, want) in [
            (
                &[("pfifo", 2)][..],
                "tc qdisc replace dev e0 root handle 1: mq && for queue in 1 2; do tc qdisc \
                 replace dev e0 parent 1:$queue pfifo limit 10000; done",
            ),
            (&[("pfifo_fast", 8)], "ip link set dev e0 txqueuelen 10000"),
            (&[("fq", 7), ("fq_codel", 1)], "tc -s qdisc show dev e0"),
            (&[("htb", 2)], "tc -s qdisc show dev e0"),
            (&[], "tc -s qdisc show dev e0"),
        ] {
            assert_eq!(
                longer_queue("e0", Some(&of(children))),
                want,
                "{children:?}"
            );
        }
        let many = longer_queue("e0", Some(&of(&[("fq", 17)])));
        assert!(many.contains(" f 10 11; do"), "hexadecimal: {many}");
    }
}
