//! Order of findings, and links from consequences to their causes.

use std::cmp::Ordering;

use linerate_record::finding::{Finding, FindingKind, FindingLocation};

/// Pairs of consequence and cause: `(effect, cause)`. An effect is linked to the first of its
/// causes that was found, so direct causes come before remote ones.
pub const CONSEQUENCES: &[(&str, &str)] = &[
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
    ("sender-cpu", "too-few-descriptors"),
    ("sender-cpu", "tool-limit"),
    ("tool-limit", "scheduling-delay"),
    ("tool-limit", "shared-core"),
    ("slow-sender-application", "scheduling-delay"),
    ("line-rate", "link-speed"),
];

/// Causes that affect only their own end: missing time of threads, processors or sockets explains
/// nothing at the other end. Other causes also affect the peer: a short queue at the sender leaves
/// incomplete datagrams at the receiver, and disabled segmentation offload costs both ends.
pub(crate) const SINGLE_END_CAUSES: &[&str] = &[
    "steal",
    "cpu-frequency",
    "softirq-core",
    "rt-throttle",
    "scheduling-delay",
    "socket-buffer-cap",
    "tool-limit",
];

/// Causes of [`SINGLE_END_CAUSES`] that two ends on one machine share.
pub(crate) const SHARED_MACHINE_CAUSES: &[&str] = &["steal", "cpu-frequency"];

/// Pairs of consequence and cause that are linked only in findings without a direction: the
/// processors of `forward` repeat work for frames that a short ring dropped. Between two ends, a
/// ring overflows because a thread has no time, and not the other way round.
pub(crate) const UNDIRECTED_CONSEQUENCES: &[(&str, &str)] =
    &[("sender-cpu", "too-few-descriptors")];

/// Links consequences to their causes and sorts by cost. `one_machine`: both ends ran on one
/// machine.
///
/// Findings without a cause are sorted by kind and cost, each followed by its consequences. A
/// consequence of a limit is part of that limit and no cause of its own.
pub(crate) fn rank(mut findings: Vec<Finding>, one_machine: bool) -> Vec<Finding> {
    let can_cause = |from: &Finding, to: &Finding| can_cause(from, to, one_machine);
    for at in 0..findings.len() {
        let effect = &findings[at];
        let from = CONSEQUENCES
            .iter()
            .filter(|(name, _)| *name == effect.cause)
            .find_map(|(_, from)| {
                findings.iter().position(|candidate| {
                    candidate.cause == *from
                        && can_cause(candidate, effect)
                        && candidate.kind != FindingKind::Unknown
                })
            });
        if let Some(from) = from {
            findings[at].follows_from = Some(findings[from].cause.clone());
        }
    }
    // Chains may have any length and order.
    for _ in 0..findings.len() {
        for at in 0..findings.len() {
            let from = findings[at].follows_from.as_deref();
            let limited = from.is_some_and(|from| {
                let mut candidates = findings.iter();
                candidates.any(|candidate| {
                    candidate.cause == from
                        && can_cause(candidate, &findings[at])
                        && candidate.kind == FindingKind::Limit
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
        let below = findings.iter().filter(|candidate| {
            candidate.follows_from.as_deref() == Some(findings[at].cause.as_str())
                && can_cause(&findings[at], candidate)
        });
        below
            .map(|candidate| candidate.cost)
            .fold(findings[at].cost, f64::max)
    };
    roots.sort_by(|&a, &b| {
        (findings[a].kind.cmp(&findings[b].kind))
            .then_with(|| compare_descending(weight(a), weight(b)))
    });
    let explained = (roots.iter())
        .any(|&at| findings[at].kind != FindingKind::Unknown && weight(at) >= MIN_EXPLAINED_COST);
    let mut is_placed = vec![false; findings.len()];
    let mut order = Vec::with_capacity(findings.len());
    for root in roots {
        // Unknowns matter only if the other findings do not explain the run.
        if explained && findings[root].kind == FindingKind::Unknown {
            is_placed[root] = true;
            continue;
        }
        append_with_consequences(root, &findings, &can_cause, &mut is_placed, &mut order);
    }
    // A cycle of consequences has no root, but must not be lost.
    for at in 0..findings.len() {
        if !is_placed[at] {
            append_with_consequences(at, &findings, &can_cause, &mut is_placed, &mut order);
        }
    }
    let mut slots: Vec<Option<Finding>> = findings.into_iter().map(Some).collect();
    order.iter().filter_map(|&at| slots[at].take()).collect()
}

/// Smallest cost of a finding that explains a run.
pub(crate) const MIN_EXPLAINED_COST: f64 = 0.3;

fn append_with_consequences(
    at: usize,
    findings: &[Finding],
    can_cause: &dyn Fn(&Finding, &Finding) -> bool,
    is_placed: &mut [bool],
    order: &mut Vec<usize>,
) {
    if is_placed[at] {
        return;
    }
    is_placed[at] = true;
    order.push(at);
    let cause = &findings[at];
    let mut below: Vec<usize> = (0..findings.len())
        .filter(|&effect| {
            findings[effect].follows_from.as_deref() == Some(cause.cause.as_str())
                && can_cause(cause, &findings[effect])
        })
        .collect();
    below.sort_by(|&a, &b| compare_descending(findings[a].cost, findings[b].cost));
    for effect in below {
        append_with_consequences(effect, findings, can_cause, is_placed, order);
    }
}

/// Returns true if one finding can cause the other: both concern the same payload, and a cause of a
/// single end is at the end of its consequence.
fn can_cause(from: &Finding, to: &Finding, one_machine: bool) -> bool {
    let payload =
        from.direction.is_none() || to.direction.is_none() || from.direction == to.direction;
    let cause = from.cause.as_str();
    let directed = from.direction.is_some() || to.direction.is_some();
    if directed && UNDIRECTED_CONSEQUENCES.contains(&(to.cause.as_str(), cause)) {
        return false;
    }
    let everywhere = !SINGLE_END_CAUSES.contains(&cause)
        || one_machine && SHARED_MACHINE_CAUSES.contains(&cause);
    let names_one = |end| matches!(end, FindingLocation::Client | FindingLocation::Server);
    payload && (everywhere || !names_one(from.end) || !names_one(to.end) || from.end == to.end)
}

fn compare_descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding_builder::FindingBuilder;
    use linerate_record::facts::Role;
    use linerate_record::plan::Direction;

    fn finding(builder: FindingBuilder, cost: f64) -> Finding {
        let builder = builder.cost(cost).evidence("x", 1_u64, "", "here");
        builder.build().expect("it has evidence")
    }

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|f| f.cause.as_str()).collect()
    }

    #[test]
    fn the_highest_cost_is_first_and_followed_by_its_consequences() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::limit("sender-cpu", Role::Client), 0.9),
                finding(FindingBuilder::cause("congestion-loss", Role::Client), 0.6),
                finding(FindingBuilder::cause("nagle", Role::Client), 0.3),
                finding(FindingBuilder::cause("qdisc-drop", Role::Client), 0.1),
            ],
            false,
        );
        assert_eq!(
            names(&ranked),
            ["qdisc-drop", "congestion-loss", "nagle", "sender-cpu"]
        );
        assert_eq!(ranked[1].follows_from.as_deref(), Some("qdisc-drop"));
        assert_eq!(ranked[2].follows_from, None);
    }

    /// Datagrams that lack a fragment hold memory for half a minute.
    #[test]
    fn reassembly_follows_from_upstream_drops() {
        for place in ["qdisc-drop", "nic-drop", "softnet-backlog", "path-loss"] {
            let ranked = rank(
                vec![
                    finding(FindingBuilder::cause("reassembly", Role::Server), 0.65),
                    finding(FindingBuilder::cause(place, Role::Client), 0.08),
                ],
                false,
            );
            assert_eq!(names(&ranked), [place, "reassembly"]);
            assert_eq!(ranked[1].follows_from.as_deref(), Some(place));
        }
    }

    #[test]
    fn a_consequence_of_a_limit_is_no_cause() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::cause("qdisc-drop", Role::Client), 0.1),
                finding(FindingBuilder::limit("shaped-link", Role::Client), 0.9),
            ],
            false,
        );
        assert_eq!(names(&ranked), ["shaped-link", "qdisc-drop"]);
        assert!(ranked.iter().all(|finding| !finding.is_cause()));
    }

    #[test]
    fn a_chain_behind_a_limit_is_no_cause() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::cause("congestion-loss", Role::Client), 0.6),
                finding(FindingBuilder::cause("qdisc-drop", Role::Client), 0.7),
                finding(FindingBuilder::limit("line-rate", Role::Client), 0.95),
            ],
            false,
        );
        assert_eq!(
            names(&ranked),
            ["line-rate", "qdisc-drop", "congestion-loss"]
        );
        assert!(
            ranked.iter().all(|finding| !finding.is_cause()),
            "{ranked:?}"
        );
    }

    #[test]
    fn what_is_not_known_matters_where_nothing_explains() {
        let unknown = || finding(FindingBuilder::unknown("receiver-cpu", Role::Server), 0.0);
        let ranked = rank(
            vec![
                unknown(),
                finding(FindingBuilder::limit("line-rate", Role::Client), 0.9),
            ],
            false,
        );
        assert_eq!(names(&ranked), ["line-rate"]);
        assert_eq!(names(&rank(vec![unknown()], false)), ["receiver-cpu"]);
    }

    #[test]
    fn a_cycle_of_consequences_loses_nothing() {
        let mut a = finding(FindingBuilder::cause("sender-cpu", Role::Client), 0.2);
        a.follows_from = Some("sender-cpu".to_owned());
        assert_eq!(rank(vec![a], false).len(), 1);
    }

    /// A cause at one host explains a slow host only if it is the same one.
    #[test]
    fn a_cause_of_one_end_explains_that_end() {
        let (client, server) = (Role::Client, Role::Server);
        for (cause, at, effect, of, one_machine, follows) in [
            ("steal", server, "sender-cpu", client, false, false),
            ("steal", server, "receiver-cpu", server, false, true),
            ("steal", server, "scheduling-delay", client, false, false),
            // One machine: the processors are the same.
            ("steal", server, "sender-cpu", client, true, true),
            ("cpu-frequency", server, "sender-cpu", client, false, false),
            ("cpu-frequency", server, "sender-cpu", client, true, true),
            ("softirq-core", client, "receiver-cpu", server, true, false),
            (
                "softirq-core",
                client,
                "scheduling-delay",
                server,
                false,
                false,
            ),
            (
                "rt-throttle",
                server,
                "scheduling-delay",
                client,
                true,
                false,
            ),
            (
                "rt-throttle",
                server,
                "udp-receive-queue",
                server,
                true,
                true,
            ),
            (
                "scheduling-delay",
                client,
                "udp-receive-queue",
                server,
                false,
                false,
            ),
            (
                "scheduling-delay",
                server,
                "tool-limit",
                client,
                false,
                false,
            ),
            (
                "scheduling-delay",
                client,
                "tool-limit",
                client,
                false,
                true,
            ),
            (
                "socket-buffer-cap",
                server,
                "send-buffer",
                client,
                false,
                false,
            ),
            (
                "socket-buffer-cap",
                server,
                "receive-window",
                server,
                false,
                true,
            ),
            // Work that one end causes by small, numerous or unsegmented packets is done by the
            // other.
            ("offload-off", client, "receiver-cpu", server, false, true),
            ("small-writes", client, "receiver-cpu", server, false, true),
        ] {
            let findings = vec![
                finding(FindingBuilder::limit(effect, of), 0.9),
                finding(FindingBuilder::cause(cause, at), 0.2),
            ];
            let ranked = rank(findings, one_machine);
            let effect_finding = ranked.iter().find(|ranked| ranked.cause == effect);
            let from = effect_finding.and_then(|ranked| ranked.follows_from.as_deref());
            assert_eq!(
                from,
                follows.then_some(cause),
                "{cause} {at:?}, {effect} {of:?}"
            );
        }
        // A finding of both ends can cause one of a single end.
        let of_both_ends = vec![
            finding(FindingBuilder::limit("scheduling-delay", server), 0.9),
            finding(
                FindingBuilder::cause("shared-core", FindingLocation::Both),
                0.2,
            ),
        ];
        assert_eq!(
            names(&rank(of_both_ends, false)),
            ["shared-core", "scheduling-delay"]
        );
    }

    /// An overflowing ring costs a sender no time; one between two ports of `forward` does.
    #[test]
    fn rings_explain_the_processors_of_forward() {
        for (direction, follows) in [(None, true), (Some(Direction::Send), false)] {
            let of = |builder: FindingBuilder, cost| {
                let builder = direction
                    .into_iter()
                    .fold(builder, FindingBuilder::direction);
                finding(builder, cost)
            };
            let ranked = rank(
                vec![
                    of(FindingBuilder::limit("sender-cpu", Role::Client), 0.9),
                    of(
                        FindingBuilder::cause("too-few-descriptors", Role::Server),
                        0.1,
                    ),
                ],
                false,
            );
            let effect_finding = ranked.iter().find(|ranked| ranked.cause == "sender-cpu");
            let from = effect_finding.and_then(|ranked| ranked.follows_from.as_deref());
            assert_eq!(from, follows.then_some("too-few-descriptors"));
        }
    }

    /// Consequences follow the cause at their own end.
    #[test]
    fn two_waiting_ends_explain_one_consequence_each() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::limit("tool-limit", Role::Client), 0.1),
                finding(FindingBuilder::cause("scheduling-delay", Role::Server), 0.5),
                finding(
                    FindingBuilder::cause("udp-receive-queue", Role::Server),
                    0.2,
                ),
                finding(FindingBuilder::cause("scheduling-delay", Role::Client), 0.3),
            ],
            false,
        );
        let order: Vec<_> = ranked.iter().map(|f| (f.cause.as_str(), f.end)).collect();
        assert_eq!(
            order,
            [
                ("scheduling-delay", FindingLocation::Server),
                ("udp-receive-queue", FindingLocation::Server),
                ("scheduling-delay", FindingLocation::Client),
                ("tool-limit", FindingLocation::Client),
            ]
        );
    }
}
