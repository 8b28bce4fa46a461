//! Order of findings, and links from consequences to their causes.

use std::cmp::Ordering;

use linerate_metric::finding::{End, Finding, FindingKind};

/// Pairs of consequence and cause: `(effect, cause)`. An effect is linked to the first of its
/// causes that was found, so direct causes come before remote ones.
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
const OF_ONE_END: &[&str] = &[
    "steal",
    "cpu-frequency",
    "softirq-core",
    "rt-throttle",
    "scheduling-delay",
    "socket-buffer-cap",
    "tool-limit",
];

/// Causes of [`OF_ONE_END`] that two ends on one machine share.
const OF_THE_MACHINE: &[&str] = &["steal", "cpu-frequency"];

/// Pairs of consequence and cause that are linked only in findings without a direction: the
/// processors of `forward` repeat work for frames that a short ring dropped. Between two ends, a
/// ring overflows because a thread has no time, and not the other way round.
const OF_NO_DIRECTION: &[(&str, &str)] = &[("sender-cpu", "too-few-descriptors")];

/// Links consequences to their causes and sorts by cost. `one_machine`: both ends ran on one
/// machine.
///
/// Findings without a cause are sorted by kind and cost, each followed by its consequences. A
/// consequence of a limit is part of that limit and no cause of its own.
pub(crate) fn rank(mut findings: Vec<Finding>, one_machine: bool) -> Vec<Finding> {
    let leads = |from: &Finding, to: &Finding| leads_to(from, to, one_machine);
    for at in 0..findings.len() {
        let effect = &findings[at];
        let from = FOLLOWS
            .iter()
            .filter(|(name, _)| *name == effect.cause)
            .find_map(|(_, from)| {
                findings.iter().position(|other| {
                    other.cause == *from
                        && leads(other, effect)
                        && other.kind != FindingKind::Unknown
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
                let mut others = findings.iter();
                others.any(|other| {
                    other.cause == from
                        && leads(other, &findings[at])
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
                && leads(&findings[at], other)
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
        // Unknowns matter only if the other findings do not explain the run.
        if explained && findings[root].kind == FindingKind::Unknown {
            placed[root] = true;
            continue;
        }
        place(root, &findings, &leads, &mut placed, &mut order);
    }
    // A cycle of consequences has no root, but must not be lost.
    for at in 0..findings.len() {
        if !placed[at] {
            place(at, &findings, &leads, &mut placed, &mut order);
        }
    }
    let mut slots: Vec<Option<Finding>> = findings.into_iter().map(Some).collect();
    order.iter().filter_map(|&at| slots[at].take()).collect()
}

/// Smallest cost of a finding that explains a run.
const EXPLAINED: f64 = 0.3;

fn place(
    at: usize,
    findings: &[Finding],
    leads: &dyn Fn(&Finding, &Finding) -> bool,
    placed: &mut [bool],
    order: &mut Vec<usize>,
) {
    if placed[at] {
        return;
    }
    placed[at] = true;
    order.push(at);
    let own = &findings[at];
    let mut below: Vec<usize> = (0..findings.len())
        .filter(|&other| {
            findings[other].follows_from.as_deref() == Some(own.cause.as_str())
                && leads(own, &findings[other])
        })
        .collect();
    below.sort_by(|&a, &b| descending(findings[a].cost, findings[b].cost));
    for other in below {
        place(other, findings, leads, placed, order);
    }
}

/// Returns true if one finding can cause the other: both concern the same payload, and a cause of a
/// single end is at the end of its consequence.
fn leads_to(from: &Finding, to: &Finding, one_machine: bool) -> bool {
    let payload =
        from.direction.is_none() || to.direction.is_none() || from.direction == to.direction;
    let cause = from.cause.as_str();
    let directed = from.direction.is_some() || to.direction.is_some();
    if directed && OF_NO_DIRECTION.contains(&(to.cause.as_str(), cause)) {
        return false;
    }
    let everywhere = !OF_ONE_END.contains(&cause) || one_machine && OF_THE_MACHINE.contains(&cause);
    let names_one = |end| matches!(end, End::Client | End::Server);
    payload && (everywhere || !names_one(from.end) || !names_one(to.end) || from.end == to.end)
}

fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding_builder::Draft;
    use linerate_metric::facts::Role;
    use linerate_metric::plan::Direction;

    fn finding(draft: Draft, cost: f64) -> Finding {
        let draft = draft.cost(cost).seen("x", 1_u64, "", "here");
        draft.found().expect("it has evidence")
    }

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|f| f.cause.as_str()).collect()
    }

    #[test]
    fn what_costs_most_is_first_and_consequences_stand_behind() {
        let found = rank(
            vec![
                finding(Draft::limit("sender-cpu", Role::Client), 0.9),
                finding(Draft::cause("congestion-loss", Role::Client), 0.6),
                finding(Draft::cause("nagle", Role::Client), 0.3),
                finding(Draft::cause("qdisc-drop", Role::Client), 0.1),
            ],
            false,
        );
        assert_eq!(
            names(&found),
            ["qdisc-drop", "congestion-loss", "nagle", "sender-cpu"]
        );
        assert_eq!(found[1].follows_from.as_deref(), Some("qdisc-drop"));
        assert_eq!(found[2].follows_from, None);
    }

    /// Datagrams that lack a fragment hold memory for half a minute.
    #[test]
    fn memory_full_of_what_others_dropped_is_theirs() {
        for place in ["qdisc-drop", "nic-drop", "softnet-backlog", "path-loss"] {
            let found = rank(
                vec![
                    finding(Draft::cause("reassembly", Role::Server), 0.65),
                    finding(Draft::cause(place, Role::Client), 0.08),
                ],
                false,
            );
            assert_eq!(names(&found), [place, "reassembly"]);
            assert_eq!(found[1].follows_from.as_deref(), Some(place));
        }
    }

    #[test]
    fn what_follows_from_a_limit_is_no_cause() {
        let found = rank(
            vec![
                finding(Draft::cause("qdisc-drop", Role::Client), 0.1),
                finding(Draft::limit("shaped-link", Role::Client), 0.9),
            ],
            false,
        );
        assert_eq!(names(&found), ["shaped-link", "qdisc-drop"]);
        assert!(found.iter().all(|finding| !finding.is_cause()));
    }

    #[test]
    fn a_chain_behind_a_limit_is_no_cause() {
        let found = rank(
            vec![
                finding(Draft::cause("congestion-loss", Role::Client), 0.6),
                finding(Draft::cause("qdisc-drop", Role::Client), 0.7),
                finding(Draft::limit("line-rate", Role::Client), 0.95),
            ],
            false,
        );
        assert_eq!(
            names(&found),
            ["line-rate", "qdisc-drop", "congestion-loss"]
        );
        assert!(found.iter().all(|finding| !finding.is_cause()), "{found:?}");
    }

    #[test]
    fn what_is_not_known_matters_where_nothing_explains() {
        let unknown = || finding(Draft::unknown("receiver-cpu", Role::Server), 0.0);
        let found = rank(
            vec![
                unknown(),
                finding(Draft::limit("line-rate", Role::Client), 0.9),
            ],
            false,
        );
        assert_eq!(names(&found), ["line-rate"]);
        assert_eq!(names(&rank(vec![unknown()], false)), ["receiver-cpu"]);
    }

    #[test]
    fn rings_lose_nothing() {
        let mut a = finding(Draft::cause("sender-cpu", Role::Client), 0.2);
        a.follows_from = Some("sender-cpu".to_owned());
        assert_eq!(rank(vec![a], false).len(), 1);
    }

    /// A cause at one host explains a slow host only if it is the same one.
    #[test]
    fn what_is_an_ends_own_explains_that_end() {
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
                finding(Draft::limit(effect, of), 0.9),
                finding(Draft::cause(cause, at), 0.2),
            ];
            let found = rank(findings, one_machine);
            let told = found.iter().find(|found| found.cause == effect);
            let from = told.and_then(|found| found.follows_from.as_deref());
            assert_eq!(
                from,
                follows.then_some(cause),
                "{cause} {at:?}, {effect} {of:?}"
            );
        }
        // A finding of both ends can cause one of a single end.
        let both = vec![
            finding(Draft::limit("scheduling-delay", server), 0.9),
            finding(Draft::cause("shared-core", End::Both), 0.2),
        ];
        assert_eq!(
            names(&rank(both, false)),
            ["shared-core", "scheduling-delay"]
        );
    }

    /// An overflowing ring costs a sender no time; one between two ports of `forward` does.
    #[test]
    fn rings_explain_the_processors_of_forward() {
        for (direction, follows) in [(None, true), (Some(Direction::Send), false)] {
            let of = |draft: Draft, cost| {
                let draft = direction.into_iter().fold(draft, Draft::way);
                finding(draft, cost)
            };
            let found = rank(
                vec![
                    of(Draft::limit("sender-cpu", Role::Client), 0.9),
                    of(Draft::cause("too-few-descriptors", Role::Server), 0.1),
                ],
                false,
            );
            let told = found.iter().find(|found| found.cause == "sender-cpu");
            let from = told.and_then(|found| found.follows_from.as_deref());
            assert_eq!(from, follows.then_some("too-few-descriptors"));
        }
    }

    /// Consequences follow the cause at their own end.
    #[test]
    fn two_ends_that_wait_explain_one_each() {
        let found = rank(
            vec![
                finding(Draft::limit("tool-limit", Role::Client), 0.1),
                finding(Draft::cause("scheduling-delay", Role::Server), 0.5),
                finding(Draft::cause("udp-receive-queue", Role::Server), 0.2),
                finding(Draft::cause("scheduling-delay", Role::Client), 0.3),
            ],
            false,
        );
        let order: Vec<_> = found.iter().map(|f| (f.cause.as_str(), f.end)).collect();
        assert_eq!(
            order,
            [
                ("scheduling-delay", End::Server),
                ("udp-receive-queue", End::Server),
                ("scheduling-delay", End::Client),
                ("tool-limit", End::Client),
            ]
        );
    }
}
