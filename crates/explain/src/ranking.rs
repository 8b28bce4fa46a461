//! Order of findings, and links from consequences to their causes.

use std::cmp::Ordering;

use linerate_record::finding::{Finding, FindingKind, FindingLocation};
use linerate_record::ids::CauseId;

/// Pairs of consequence and cause: `(effect, cause)`. An effect is linked to the first of its
/// causes that was found, so direct causes come before remote ones.
pub const CONSEQUENCES: &[(CauseId, CauseId)] = &[
    (CauseId::ShapedLink, CauseId::AsymmetricPath),
    (CauseId::QdiscDrop, CauseId::ShapedLink),
    (CauseId::QdiscDrop, CauseId::LineRate),
    (CauseId::QdiscDrop, CauseId::BurstSize),
    (CauseId::CongestionLoss, CauseId::QdiscDrop),
    (CauseId::CongestionLoss, CauseId::NicDrop),
    (CauseId::CongestionLoss, CauseId::SoftnetBacklog),
    (CauseId::CongestionLoss, CauseId::ShapedLink),
    (CauseId::CongestionLoss, CauseId::LineRate),
    (CauseId::CongestionLoss, CauseId::MtuBlackHole),
    (CauseId::ShapedLink, CauseId::MtuBlackHole),
    (CauseId::ReceiveWindow, CauseId::MtuBlackHole),
    (CauseId::DelayedAck, CauseId::MtuBlackHole),
    (CauseId::PathLoss, CauseId::MtuBlackHole),
    (CauseId::PathLoss, CauseId::LinkDown),
    (CauseId::PathLoss, CauseId::Neighbour),
    (CauseId::Neighbour, CauseId::LinkDown),
    (CauseId::NicDrop, CauseId::LinkDown),
    (CauseId::CongestionLoss, CauseId::LinkDown),
    (CauseId::PathLoss, CauseId::ShapedLink),
    (CauseId::PathLoss, CauseId::TooFewDescriptors),
    (CauseId::Reordering, CauseId::CongestionControl),
    (CauseId::ReceiveWindow, CauseId::SlowReceiverApplication),
    (CauseId::ReceiveWindow, CauseId::SocketBufferCap),
    (CauseId::SendBuffer, CauseId::SocketBufferCap),
    (CauseId::PathDelay, CauseId::SocketBufferCap),
    (CauseId::PathDelay, CauseId::ReceiveWindow),
    (CauseId::PathDelay, CauseId::SendBuffer),
    (CauseId::DelayedAck, CauseId::Nagle),
    (CauseId::SendBuffer, CauseId::Nagle),
    (CauseId::SendBuffer, CauseId::DelayedAck),
    (CauseId::ReceiveWindow, CauseId::Nagle),
    (CauseId::ReceiveWindow, CauseId::DelayedAck),
    (CauseId::UdpReceiveQueue, CauseId::SocketBufferCap),
    (CauseId::UdpReceiveQueue, CauseId::CpuQuota),
    (CauseId::UdpReceiveQueue, CauseId::SharedCore),
    (CauseId::UdpReceiveQueue, CauseId::RtThrottle),
    (CauseId::UdpReceiveQueue, CauseId::SchedulingDelay),
    (CauseId::UdpReceiveQueue, CauseId::SoftirqCore),
    (CauseId::UdpReceiveQueue, CauseId::SlowReceiverApplication),
    (CauseId::UdpReceiveQueue, CauseId::ReceiverCpu),
    (CauseId::FragmentLoss, CauseId::QdiscDrop),
    (CauseId::Reassembly, CauseId::PathLoss),
    (CauseId::Reassembly, CauseId::QdiscDrop),
    (CauseId::Reassembly, CauseId::NicDrop),
    (CauseId::Reassembly, CauseId::SoftnetBacklog),
    (CauseId::NicDrop, CauseId::MtuBlackHole),
    (CauseId::FragmentLoss, CauseId::MtuBlackHole),
    (CauseId::NicDrop, CauseId::TooFewDescriptors),
    (CauseId::SchedulingDelay, CauseId::CpuQuota),
    (CauseId::SharedCore, CauseId::CpuQuota),
    (CauseId::SoftirqCore, CauseId::CpuQuota),
    (CauseId::SlowReceiverApplication, CauseId::CpuQuota),
    (CauseId::SlowSenderApplication, CauseId::CpuQuota),
    (CauseId::ToolLimit, CauseId::CpuQuota),
    (CauseId::SenderCpu, CauseId::CpuQuota),
    (CauseId::ReceiverCpu, CauseId::CpuQuota),
    (CauseId::SchedulingDelay, CauseId::SharedCore),
    (CauseId::SoftirqCore, CauseId::SharedCore),
    (CauseId::SchedulingDelay, CauseId::RtThrottle),
    (CauseId::SchedulingDelay, CauseId::SoftirqCore),
    (CauseId::SchedulingDelay, CauseId::Steal),
    (CauseId::SenderCpu, CauseId::Steal),
    (CauseId::ReceiverCpu, CauseId::Steal),
    (CauseId::SenderCpu, CauseId::CpuFrequency),
    (CauseId::ReceiverCpu, CauseId::CpuFrequency),
    (CauseId::SenderCpu, CauseId::OffloadOff),
    (CauseId::ReceiverCpu, CauseId::OffloadOff),
    (CauseId::SenderCpu, CauseId::SmallWrites),
    (CauseId::ReceiverCpu, CauseId::SmallWrites),
    (CauseId::SenderCpu, CauseId::GsoSize),
    (CauseId::ReceiverCpu, CauseId::GsoSize),
    (CauseId::SenderCpu, CauseId::SharedCore),
    (CauseId::ReceiverCpu, CauseId::SharedCore),
    (CauseId::ReceiverCpu, CauseId::SoftirqCore),
    (CauseId::SenderCpu, CauseId::SingleFlow),
    (CauseId::ReceiverCpu, CauseId::SingleFlow),
    (CauseId::SenderCpu, CauseId::TooFewDescriptors),
    (CauseId::SenderCpu, CauseId::ToolLimit),
    (CauseId::ToolLimit, CauseId::SchedulingDelay),
    (CauseId::ToolLimit, CauseId::SharedCore),
    (CauseId::SlowSenderApplication, CauseId::SchedulingDelay),
    (CauseId::LineRate, CauseId::LinkSpeed),
];

/// Causes that affect only their own end: missing time of threads, processors or sockets explains
/// nothing at the other end. Other causes also affect the peer: a short queue at the sender leaves
/// incomplete datagrams at the receiver, and disabled segmentation offload costs both ends.
pub(crate) const SINGLE_END_CAUSES: &[CauseId] = &[
    CauseId::Steal,
    CauseId::CpuFrequency,
    CauseId::SoftirqCore,
    CauseId::RtThrottle,
    CauseId::CpuQuota,
    CauseId::SchedulingDelay,
    CauseId::SocketBufferCap,
    CauseId::ToolLimit,
];

/// Causes of [`SINGLE_END_CAUSES`] that two ends on one machine share.
pub(crate) const SHARED_MACHINE_CAUSES: &[CauseId] = &[CauseId::Steal, CauseId::CpuFrequency];

/// Pairs of consequence and cause that are linked only in findings without a direction: the
/// processors of `forward` repeat work for frames that a short ring dropped. Between two ends, a
/// ring overflows because a thread has no time, and not the other way round.
pub(crate) const UNDIRECTED_CONSEQUENCES: &[(CauseId, CauseId)] =
    &[(CauseId::SenderCpu, CauseId::TooFewDescriptors)];

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
            .filter(|(name, _)| effect.cause == *name)
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
            let from = findings[at].follows_from.as_ref();
            let limited = from.is_some_and(|from| {
                let mut candidates = findings.iter();
                candidates.any(|candidate| {
                    candidate.cause == *from
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
            candidate.follows_from.as_ref() == Some(&findings[at].cause)
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
            findings[effect].follows_from.as_ref() == Some(&cause.cause)
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
    let directed = from.direction.is_some() || to.direction.is_some();
    let mut undirected = UNDIRECTED_CONSEQUENCES.iter();
    if directed && undirected.any(|(effect, cause)| to.cause == *effect && from.cause == *cause) {
        return false;
    }
    let everywhere = !from.cause.is_one_of(SINGLE_END_CAUSES)
        || one_machine && from.cause.is_one_of(SHARED_MACHINE_CAUSES);
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

    fn names(findings: &[Finding]) -> Vec<CauseId> {
        let ids = findings.iter().map(|finding| finding.cause.known());
        ids.map(|id| id.expect("an id of this version")).collect()
    }

    #[test]
    fn the_highest_cost_is_first_and_followed_by_its_consequences() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::limit(CauseId::SenderCpu, Role::Client), 0.9),
                finding(
                    FindingBuilder::cause(CauseId::CongestionLoss, Role::Client),
                    0.6,
                ),
                finding(FindingBuilder::cause(CauseId::Nagle, Role::Client), 0.3),
                finding(FindingBuilder::cause(CauseId::QdiscDrop, Role::Client), 0.1),
            ],
            false,
        );
        assert_eq!(
            names(&ranked),
            [
                CauseId::QdiscDrop,
                CauseId::CongestionLoss,
                CauseId::Nagle,
                CauseId::SenderCpu
            ]
        );
        assert_eq!(ranked[1].follows_from, Some(CauseId::QdiscDrop.into()));
        assert_eq!(ranked[2].follows_from, None);
    }

    /// Datagrams that lack a fragment hold memory for half a minute.
    #[test]
    fn reassembly_follows_from_upstream_drops() {
        for place in [
            CauseId::QdiscDrop,
            CauseId::NicDrop,
            CauseId::SoftnetBacklog,
            CauseId::PathLoss,
        ] {
            let ranked = rank(
                vec![
                    finding(
                        FindingBuilder::cause(CauseId::Reassembly, Role::Server),
                        0.65,
                    ),
                    finding(FindingBuilder::cause(place, Role::Client), 0.08),
                ],
                false,
            );
            assert_eq!(names(&ranked), [place, CauseId::Reassembly]);
            assert_eq!(ranked[1].follows_from, Some(place.into()));
        }
    }

    #[test]
    fn a_consequence_of_a_limit_is_no_cause() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::cause(CauseId::QdiscDrop, Role::Client), 0.1),
                finding(
                    FindingBuilder::limit(CauseId::ShapedLink, Role::Client),
                    0.9,
                ),
            ],
            false,
        );
        assert_eq!(names(&ranked), [CauseId::ShapedLink, CauseId::QdiscDrop]);
        assert!(ranked.iter().all(|finding| !finding.is_cause()));
    }

    #[test]
    fn a_chain_behind_a_limit_is_no_cause() {
        let ranked = rank(
            vec![
                finding(
                    FindingBuilder::cause(CauseId::CongestionLoss, Role::Client),
                    0.6,
                ),
                finding(FindingBuilder::cause(CauseId::QdiscDrop, Role::Client), 0.7),
                finding(FindingBuilder::limit(CauseId::LineRate, Role::Client), 0.95),
            ],
            false,
        );
        assert_eq!(
            names(&ranked),
            [
                CauseId::LineRate,
                CauseId::QdiscDrop,
                CauseId::CongestionLoss
            ]
        );
        assert!(
            ranked.iter().all(|finding| !finding.is_cause()),
            "{ranked:?}"
        );
    }

    #[test]
    fn unknowns_matter_where_nothing_explains() {
        let unknown = || {
            finding(
                FindingBuilder::unknown(CauseId::ReceiverCpu, Role::Server),
                0.0,
            )
        };
        let ranked = rank(
            vec![
                unknown(),
                finding(FindingBuilder::limit(CauseId::LineRate, Role::Client), 0.9),
            ],
            false,
        );
        assert_eq!(names(&ranked), [CauseId::LineRate]);
        assert_eq!(names(&rank(vec![unknown()], false)), [CauseId::ReceiverCpu]);
    }

    #[test]
    fn a_cycle_of_consequences_loses_nothing() {
        let mut a = finding(FindingBuilder::cause(CauseId::SenderCpu, Role::Client), 0.2);
        a.follows_from = Some(CauseId::SenderCpu.into());
        assert_eq!(rank(vec![a], false).len(), 1);
    }

    /// A cause at one host explains a slow host only if it is the same one.
    #[test]
    fn a_cause_of_one_end_explains_that_end() {
        let (client, server) = (Role::Client, Role::Server);
        for (cause, at, effect, of, one_machine, follows) in [
            (
                CauseId::Steal,
                server,
                CauseId::SenderCpu,
                client,
                false,
                false,
            ),
            (
                CauseId::Steal,
                server,
                CauseId::ReceiverCpu,
                server,
                false,
                true,
            ),
            (
                CauseId::Steal,
                server,
                CauseId::SchedulingDelay,
                client,
                false,
                false,
            ),
            // One machine: the processors are the same.
            (
                CauseId::Steal,
                server,
                CauseId::SenderCpu,
                client,
                true,
                true,
            ),
            (
                CauseId::CpuFrequency,
                server,
                CauseId::SenderCpu,
                client,
                false,
                false,
            ),
            (
                CauseId::CpuFrequency,
                server,
                CauseId::SenderCpu,
                client,
                true,
                true,
            ),
            (
                CauseId::SoftirqCore,
                client,
                CauseId::ReceiverCpu,
                server,
                true,
                false,
            ),
            (
                CauseId::SoftirqCore,
                client,
                CauseId::SchedulingDelay,
                server,
                false,
                false,
            ),
            (
                CauseId::RtThrottle,
                server,
                CauseId::SchedulingDelay,
                client,
                true,
                false,
            ),
            (
                CauseId::RtThrottle,
                server,
                CauseId::UdpReceiveQueue,
                server,
                true,
                true,
            ),
            (
                CauseId::SchedulingDelay,
                client,
                CauseId::UdpReceiveQueue,
                server,
                false,
                false,
            ),
            (
                CauseId::SchedulingDelay,
                server,
                CauseId::ToolLimit,
                client,
                false,
                false,
            ),
            (
                CauseId::SchedulingDelay,
                client,
                CauseId::ToolLimit,
                client,
                false,
                true,
            ),
            (
                CauseId::SocketBufferCap,
                server,
                CauseId::SendBuffer,
                client,
                false,
                false,
            ),
            (
                CauseId::SocketBufferCap,
                server,
                CauseId::ReceiveWindow,
                server,
                false,
                true,
            ),
            // Work that one end causes by small, numerous or unsegmented packets is done by the
            // other.
            (
                CauseId::OffloadOff,
                client,
                CauseId::ReceiverCpu,
                server,
                false,
                true,
            ),
            (
                CauseId::SmallWrites,
                client,
                CauseId::ReceiverCpu,
                server,
                false,
                true,
            ),
        ] {
            let findings = vec![
                finding(FindingBuilder::limit(effect, of), 0.9),
                finding(FindingBuilder::cause(cause, at), 0.2),
            ];
            let ranked = rank(findings, one_machine);
            let effect_finding = ranked.iter().find(|ranked| ranked.cause == effect);
            let from = effect_finding.and_then(|ranked| ranked.follows_from.clone());
            assert_eq!(
                from,
                follows.then_some(cause.into()),
                "{cause} {at:?}, {effect} {of:?}"
            );
        }
        // A finding of both ends can cause one of a single end.
        let of_both_ends = vec![
            finding(FindingBuilder::limit(CauseId::SchedulingDelay, server), 0.9),
            finding(
                FindingBuilder::cause(CauseId::SharedCore, FindingLocation::Both),
                0.2,
            ),
        ];
        assert_eq!(
            names(&rank(of_both_ends, false)),
            [CauseId::SharedCore, CauseId::SchedulingDelay]
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
                    of(FindingBuilder::limit(CauseId::SenderCpu, Role::Client), 0.9),
                    of(
                        FindingBuilder::cause(CauseId::TooFewDescriptors, Role::Server),
                        0.1,
                    ),
                ],
                false,
            );
            let effect_finding = ranked
                .iter()
                .find(|ranked| ranked.cause == CauseId::SenderCpu);
            let from = effect_finding.and_then(|ranked| ranked.follows_from.clone());
            assert_eq!(from, follows.then_some(CauseId::TooFewDescriptors.into()));
        }
    }

    /// Consequences follow the cause at their own end.
    #[test]
    fn two_waiting_ends_explain_one_consequence_each() {
        let ranked = rank(
            vec![
                finding(FindingBuilder::limit(CauseId::ToolLimit, Role::Client), 0.1),
                finding(
                    FindingBuilder::cause(CauseId::SchedulingDelay, Role::Server),
                    0.5,
                ),
                finding(
                    FindingBuilder::cause(CauseId::UdpReceiveQueue, Role::Server),
                    0.2,
                ),
                finding(
                    FindingBuilder::cause(CauseId::SchedulingDelay, Role::Client),
                    0.3,
                ),
            ],
            false,
        );
        let ends = ranked.iter().map(|finding| finding.end);
        let order: Vec<_> = names(&ranked).into_iter().zip(ends).collect();
        assert_eq!(
            order,
            [
                (CauseId::SchedulingDelay, FindingLocation::Server),
                (CauseId::UdpReceiveQueue, FindingLocation::Server),
                (CauseId::SchedulingDelay, FindingLocation::Client),
                (CauseId::ToolLimit, FindingLocation::Client),
            ]
        );
    }
}
