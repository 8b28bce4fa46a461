//! The qdisc of an interface drops packets.

use linerate_record::facts::InterfaceFacts;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_stats::units::{format_count, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Smallest share of the packets that matters.
const MIN_RELEVANT_SHARE: f64 = 0.0005;

/// Share of the time limited by the congestion window from which drops at the sender's own
/// interface limit it.
const MIN_CWND_LIMITED_SHARE: f64 = 0.3;

/// Fewest drops; fewer are noise.
const MIN_DROPS: u64 = 10;

/// See docs/CAUSES.md#qdisc-drop.
pub struct QdiscDrop;

impl Rule for QdiscDrop {
    fn id(&self) -> CauseId {
        CauseId::QdiscDrop
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The qdisc of an interface drops packets.",
            shown_when: vec![detection(
                "TCP and UDP",
                [
                    "the qdisc is at the sender, or on the path where payload of that direction \
                     leaves"
                        .into(),
                    format!(
                        "{MIN_DROPS} of its drops or more, and {} of the packets or more, belong to \
                         the run",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                ],
            )],

            not_when: vec!["the run lost nothing: the drops are those of other traffic".into()],
            evidence: &[
                ("qdisc_drops", "packets"),
                ("qdisc", ""),
                ("qdisc, below it", ""),
                ("losses[qdisc]", "datagrams"),
            ],
            cost: vec![
                "UDP: share of the packets lost there.".into(),
                "TCP: share of the time in which only the congestion window limits the sender."
                    .into(),
            ],
            notes: vec![
                "Behind [shaped-link](#shaped-link) it is a limit.".into(),
                "UDP: no more drops belong to the run than it lost.".into(),
                "TCP: no more drops belong to the run than its needed retransmits.".into(),
                format!(
                    "A kernel resends drops of its own interface without counting them. They belong \
                     to the run if the congestion window limits an idle sender for {} of the time.",
                    percent(MIN_CWND_LIMITED_SHARE)
                ),
            ],
            remedy: vec![
                "Enlarge the queue of the same qdisc and keep its rate; below `mq` that of each \
                 queue, if they are equal."
                    .into(),
                "Or send at a rate that it passes.".into(),
                "Show a qdisc on the path, or one with unknown settings, with `tc -s qdisc show`."
                    .into(),
            ],
            wrong_when: vec![
                "outside a lab, the counter includes other packets, and the run lost as many \
                 elsewhere"
                    .into(),
            ],
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

impl QdiscDrop {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        // With payload in both directions, a drop belongs to the direction whose sender has the
        // qdisc, or that leaves a host between the ends through this interface.
        let sender_host = direction.sender.as_str();
        let receiver_host = direction.receiver.as_str();
        let is_on_path = |host: &str, on: Option<&str>| {
            host == sender_host || host != receiver_host && direction.leaves_through(host, on)
        };
        let drops = run.counter_increase("qdisc_drops", is_on_path)?;
        let at_sender = run
            .counter_increase("qdisc_drops", |host, _| host == sender_host)
            .unwrap_or(0)
            > 0;
        let lost = drops_of_this_run(
            direction,
            direction.lost_at(LossPoint::Qdisc).max(drops),
            at_sender,
        )?;
        let share = lost as f64 / (direction.path_packets() + lost as f64).max(1.0);
        if lost < MIN_DROPS || share < MIN_RELEVANT_SHARE {
            return None;
        }
        let at = run.record.counters.iter().find(|counter| {
            counter.counter == "qdisc_drops"
                && counter.increase() > 0
                && is_on_path(&counter.host, counter.interface.as_deref())
        })?;
        let limited = direction
            .tcp()
            .map_or(0.0, |tcp| super::congestion_loss::cwnd_limited_share(&tcp));
        let cost = match direction.plan().protocol {
            TransportProtocol::Tcp => limited.max(share),
            TransportProtocol::Udp => share,
        };
        let interface = at.interface.as_deref().unwrap_or("IF");
        let sends = direction.sender_interface();
        let sender_interface = sends.filter(|_| at.host == sender_host);
        let kind = sender_interface.and_then(|interface_facts| interface_facts.qdisc.as_deref());
        let below = sender_interface
            .and_then(|interface_facts| super::child_qdiscs(&interface_facts.qdisc_children));
        let end = match at.host == sender_host {
            true => FindingLocation::from(direction.sender),
            false => FindingLocation::Path,
        };
        FindingBuilder::cause(self.id(), end)
            .direction(direction.direction)
            .cost(cost)
            .summary(format!(
                "the qdisc of {} at {} dropped {} packets ({})",
                interface,
                at.host,
                format_count(lost),
                format_share(share)
            ))
            .evidence(
                "qdisc_drops",
                at.increase(),
                "packets",
                format!("{} {interface} rtnetlink TCA_STATS2", at.host),
            )
            .evidence_if("qdisc", kind, "", format!("{sender_host} rtnetlink"))
            .evidence_if(
                "qdisc, below it",
                below,
                "",
                format!("{sender_host} rtnetlink"),
            )
            .evidence(
                "losses[qdisc]",
                direction.lost_at(LossPoint::Qdisc),
                "datagrams",
                "losses",
            )
            .remedy("enlarge the queue of the qdisc, or send at a rate that it passes")
            .command(
                run.command_at_host(&at.host, &longer_queue_command(interface, sender_interface)),
            )
            .gain(
                (direction.plan().protocol == TransportProtocol::Udp)
                    .then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }
}

/// Returns the drops of an interface that belong to this run: the counter includes all traffic.
/// `None` if the run shows no loss.
fn drops_of_this_run(direction: &DirectionView<'_>, drops: u64, at_sender: bool) -> Option<u64> {
    match direction.plan().protocol {
        TransportProtocol::Tcp => {
            let Some(tcp) = direction.tcp() else {
                return Some(drops);
            };
            let retransmitted = tcp.retransmits.saturating_sub(tcp.spurious_retransmits);
            // The kernel resends drops of its own interface without counting them, and reduces its
            // congestion window.
            let is_local_drop = at_sender
                && super::congestion_loss::cwnd_limited_share(&tcp) >= MIN_CWND_LIMITED_SHARE
                && !super::is_saturated(direction);
            match (retransmitted >= MIN_DROPS, is_local_drop) {
                (_, true) => Some(drops),
                (true, false) => Some(drops.min(retransmitted)),
                (false, false) => None,
            }
        }
        TransportProtocol::Udp => {
            let lost = direction
                .summary()
                .loss_fraction
                .map(|share| share * direction.packets_sent() * direction.fragments());
            Some(lost.map_or(drops, |lost| drops.min(lost.ceil() as u64)))
        }
    }
}

/// Returns the command that keeps the qdisc and gives it a queue of about 1000 packets. If its
/// other settings are unknown, the command shows them: another kind of qdisc could remove a wanted
/// rate limit, and the kernel may not support it.
fn longer_queue_command(interface: &str, at: Option<&InterfaceFacts>) -> String {
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
        return format!(
            "ip link set dev {interface} txqueuelen {}",
            10 * QUEUE_PACKETS
        );
    }
    let longer = match (kind, rate) {
        ("tbf", Some((rate, burst))) => {
            format!(
                "tbf rate {rate}bit burst {burst} limit {}",
                QUEUE_PACKETS * 1500
            )
        }
        ("pfifo" | "codel" | "sfq", _) => format!("{kind} limit {}", 10 * QUEUE_PACKETS),
        // The default limits are 10,000 packets, and 100 of one flow.
        ("fq", _) => format!(
            "fq limit {} flow_limit {}",
            100 * QUEUE_PACKETS,
            10 * QUEUE_PACKETS
        ),
        ("fq_codel", _) => format!("fq_codel limit {}", 100 * QUEUE_PACKETS),
        ("bfifo", _) => format!("bfifo limit {}", 10 * QUEUE_PACKETS * 1500),
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
const QUEUE_PACKETS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_record::facts::ChildQdisc;

    #[test]
    fn a_longer_queue_keeps_the_discipline() {
        let of = |kind: &str, rate| InterfaceFacts {
            qdisc: Some(kind.to_owned()),
            qdisc_rate_bps: rate,
            qdisc_burst_bytes: rate.map(|_| 65_536),
            ..InterfaceFacts::default()
        };
        for (at, expected) in [
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
            assert_eq!(longer_queue_command("e0", at.as_ref()), expected);
        }
    }

    #[test]
    fn queues_below_mq_are_made_longer_each() {
        let of = |children: &[(&str, u32)]| InterfaceFacts {
            qdisc: Some("mq".to_owned()),
            qdisc_children: (children.iter())
                .map(|&(kind, count)| ChildQdisc {
                    kind: kind.to_owned(),
                    count,
                    ..ChildQdisc::default()
                })
                .collect(),
            ..InterfaceFacts::default()
        };
        for (children, expected) in [
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
                longer_queue_command("e0", Some(&of(children))),
                expected,
                "{children:?}"
            );
        }
        let many = longer_queue_command("e0", Some(&of(&[("fq", 17)])));
        assert!(many.contains(" f 10 11; do"), "hexadecimal: {many}");
    }
}
