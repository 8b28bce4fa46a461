//! Which finding comes first, and which only follows from another.

use std::cmp::Ordering;

use linerate_metric::finding::{Finding, FindingKind};

/// What is a consequence of what: `(effect, what it follows from)`. An effect is linked to the first of its
/// causes that was found, so the nearer one stands before the further.
pub const FOLLOWS: &[(&str, &str)] = &[
    ("shaped-link", "asymmetric-path"),
    ("qdisc-drop", "shaped-link"),
    ("qdisc-drop", "line-rate"),
    ("qdisc-drop", "burst-size"),
    ("congestion-loss", "qdisc-drop"),
    ("congestion-loss", "nic-drop"),
    ("congestion-loss", "softnet-backlog"),
    ("congestion-loss", "shaped-link"),
    ("congestion-loss", "line-rate"),
    ("congestion-loss", "mtu-black-hole"),
    ("shaped-link", "mtu-black-hole"),
    ("receive-window", "mtu-black-hole"),
    ("delayed-ack", "mtu-black-hole"),
    ("path-loss", "mtu-black-hole"),
    ("path-loss", "link-down"),
    ("path-loss", "neighbour"),
    ("neighbour", "link-down"),
    ("nic-drop", "link-down"),
    ("congestion-loss", "link-down"),
    ("path-loss", "shaped-link"),
    ("path-loss", "too-few-descriptors"),
    ("reordering", "congestion-control"),
    ("receive-window", "slow-receiver-application"),
    ("receive-window", "socket-buffer-cap"),
    ("send-buffer", "socket-buffer-cap"),
    ("path-delay", "socket-buffer-cap"),
    ("path-delay", "receive-window"),
    ("path-delay", "send-buffer"),
    ("delayed-ack", "nagle"),
    ("send-buffer", "nagle"),
    ("send-buffer", "delayed-ack"),
    ("receive-window", "nagle"),
    ("receive-window", "delayed-ack"),
    ("udp-receive-queue", "socket-buffer-cap"),
    ("udp-receive-queue", "shared-core"),
    ("udp-receive-queue", "rt-throttle"),
    ("udp-receive-queue", "scheduling-delay"),
    ("udp-receive-queue", "softirq-core"),
    ("udp-receive-queue", "slow-receiver-application"),
    ("udp-receive-queue", "receiver-cpu"),
    ("fragment-loss", "qdisc-drop"),
    ("reassembly", "path-loss"),
    ("reassembly", "qdisc-drop"),
    ("reassembly", "nic-drop"),
    ("reassembly", "softnet-backlog"),
    ("nic-drop", "mtu-black-hole"),
    ("fragment-loss", "mtu-black-hole"),
    ("nic-drop", "too-few-descriptors"),
    ("scheduling-delay", "shared-core"),
    ("softirq-core", "shared-core"),
    ("scheduling-delay", "rt-throttle"),
    ("scheduling-delay", "softirq-core"),
    ("scheduling-delay", "steal"),
    ("sender-cpu", "steal"),
    ("receiver-cpu", "steal"),
    ("sender-cpu", "cpu-frequency"),
    ("receiver-cpu", "cpu-frequency"),
    ("sender-cpu", "offload-off"),
    ("receiver-cpu", "offload-off"),
    ("sender-cpu", "small-writes"),
    ("receiver-cpu", "small-writes"),
    ("sender-cpu", "gso-size"),
    ("receiver-cpu", "gso-size"),
    ("sender-cpu", "shared-core"),
    ("receiver-cpu", "shared-core"),
    ("receiver-cpu", "softirq-core"),
    ("sender-cpu", "single-flow"),
    ("receiver-cpu", "single-flow"),
    ("sender-cpu", "tool-limit"),
    ("tool-limit", "scheduling-delay"),
    ("tool-limit", "shared-core"),
    ("line-rate", "link-speed"),
];

/// Links consequences to what they follow from, and puts what costs most first.
///
/// Findings that nothing else leads to come in the order of their kind and cost, each with what follows from
/// it directly behind it. What follows from a limit is part of that limit and no cause of its own.
pub(crate) fn rank(mut findings: Vec<Finding>) -> Vec<Finding> {
    for at in 0..findings.len() {
        let effect = &findings[at];
        let from = FOLLOWS
            .iter()
            .filter(|(name, _)| *name == effect.cause)
            .find_map(|(_, from)| {
                findings.iter().position(|other| {
                    other.cause == *from
                        && alike(other, effect)
                        && other.kind != FindingKind::Unknown
                })
            });
        if let Some(from) = from {
            findings[at].follows_from = Some(findings[from].cause.clone());
        }
    }
    // A chain of them is as long as it likes, and in any order.
    for _ in 0..findings.len() {
        for at in 0..findings.len() {
            let from = findings[at].follows_from.as_deref();
            let limited = from.is_some_and(|from| {
                let mut others = findings.iter();
                others.any(|other| {
                    other.cause == from
                        && alike(other, &findings[at])
                        && other.kind == FindingKind::Limit
                })
            });
            if limited && findings[at].kind == FindingKind::Cause {
                findings[at].kind = FindingKind::Limit;
            }
        }
    }
    let mut roots: Vec<usize> = (0..findings.len())
        .filter(|&at| findings[at].follows_from.is_none())
        .collect();
    let weight = |at: usize| {
        let below = findings.iter().filter(|other| {
            other.follows_from.as_deref() == Some(findings[at].cause.as_str())
                && alike(other, &findings[at])
        });
        below
            .map(|other| other.cost)
            .fold(findings[at].cost, f64::max)
    };
    roots.sort_by(|&a, &b| {
        (findings[a].kind.cmp(&findings[b].kind)).then_with(|| descending(weight(a), weight(b)))
    });
    let explained = (roots.iter())
        .any(|&at| findings[at].kind != FindingKind::Unknown && weight(at) >= EXPLAINED);
    let mut placed = vec![false; findings.len()];
    let mut order = Vec::with_capacity(findings.len());
    for root in roots {
        // What is not known matters where what is known does not explain the run.
        if explained && findings[root].kind == FindingKind::Unknown {
            placed[root] = true;
            continue;
        }
        place(root, &findings, &mut placed, &mut order);
    }
    // A ring of consequences would have no root: nothing is lost.
    for at in 0..findings.len() {
        if !placed[at] {
            place(at, &findings, &mut placed, &mut order);
        }
    }
    let mut slots: Vec<Option<Finding>> = findings.into_iter().map(Some).collect();
    order.iter().filter_map(|&at| slots[at].take()).collect()
}

/// Cost from which a finding is an explanation.
const EXPLAINED: f64 = 0.3;

fn place(at: usize, findings: &[Finding], placed: &mut [bool], order: &mut Vec<usize>) {
    if placed[at] {
        return;
    }
    placed[at] = true;
    order.push(at);
    let own = &findings[at];
    let mut below: Vec<usize> = (0..findings.len())
        .filter(|&other| {
            findings[other].follows_from.as_deref() == Some(own.cause.as_str())
                && alike(&findings[other], own)
        })
        .collect();
    below.sort_by(|&a, &b| descending(findings[a].cost, findings[b].cost));
    for other in below {
        place(other, findings, placed, order);
    }
}

/// Whether two findings concern the same payload.
fn alike(a: &Finding, b: &Finding) -> bool {
    a.direction.is_none() || b.direction.is_none() || a.direction == b.direction
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Draft;
    use linerate_metric::facts::Role;

    fn finding(draft: Draft, cost: f64) -> Finding {
        let draft = draft.cost(cost).seen("x", 1_u64, "", "here");
        draft.found().expect("it has evidence")
    }

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|f| f.cause.as_str()).collect()
    }

    #[test]
    fn what_costs_most_is_first_and_consequences_stand_behind() {
        let found = rank(vec![
            finding(Draft::limit("sender-cpu", Role::Client), 0.9),
            finding(Draft::cause("congestion-loss", Role::Client), 0.6),
            finding(Draft::cause("nagle", Role::Client), 0.3),
            finding(Draft::cause("qdisc-drop", Role::Client), 0.1),
        ]);
        assert_eq!(
            names(&found),
            ["qdisc-drop", "congestion-loss", "nagle", "sender-cpu"]
        );
        assert_eq!(found[1].follows_from.as_deref(), Some("qdisc-drop"));
        assert_eq!(found[2].follows_from, None);
    }

    /// Each datagram that lacks a fragment holds memory for half a minute.
    #[test]
    fn memory_full_of_what_others_dropped_is_theirs() {
        for place in ["qdisc-drop", "nic-drop", "softnet-backlog", "path-loss"] {
            let found = rank(vec![
                finding(Draft::cause("reassembly", Role::Server), 0.65),
                finding(Draft::cause(place, Role::Client), 0.08),
            ]);
            assert_eq!(names(&found), [place, "reassembly"]);
            assert_eq!(found[1].follows_from.as_deref(), Some(place));
        }
    }

    #[test]
    fn what_follows_from_a_limit_is_no_cause() {
        let found = rank(vec![
            finding(Draft::cause("qdisc-drop", Role::Client), 0.1),
            finding(Draft::limit("shaped-link", Role::Client), 0.9),
        ]);
        assert_eq!(names(&found), ["shaped-link", "qdisc-drop"]);
        assert!(found.iter().all(|finding| !finding.is_cause()));
    }

    #[test]
    fn a_chain_behind_a_limit_is_no_cause() {
        let found = rank(vec![
            finding(Draft::cause("congestion-loss", Role::Client), 0.6),
            finding(Draft::cause("qdisc-drop", Role::Client), 0.7),
            finding(Draft::limit("line-rate", Role::Client), 0.95),
        ]);
        assert_eq!(
            names(&found),
            ["line-rate", "qdisc-drop", "congestion-loss"]
        );
        assert!(found.iter().all(|finding| !finding.is_cause()), "{found:?}");
    }

    #[test]
    fn what_is_not_known_matters_where_nothing_explains() {
        let unknown = || finding(Draft::unknown("receiver-cpu", Role::Server), 0.0);
        let found = rank(vec![
            unknown(),
            finding(Draft::limit("line-rate", Role::Client), 0.9),
        ]);
        assert_eq!(names(&found), ["line-rate"]);
        assert_eq!(names(&rank(vec![unknown()])), ["receiver-cpu"]);
    }

    #[test]
    fn rings_lose_nothing() {
        let mut a = finding(Draft::cause("sender-cpu", Role::Client), 0.2);
        a.follows_from = Some("sender-cpu".to_owned());
        assert_eq!(rank(vec![a]).len(), 1);
    }
}
