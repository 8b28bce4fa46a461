//! Knobs that may remedy a finding: a search tries them first.

use linerate_record::finding::{Finding, FindingKind};
use linerate_record::ids::{CauseId, StoredId};

/// Causes with the knobs that may remedy them, the most likely first.
///
/// A cause that no knob can remedy (a long path, another virtual machine) is not listed.
const KNOBS_BY_CAUSE: &[(CauseId, &[&str])] = &[
    (
        CauseId::ReceiveWindow,
        &[
            "rcvbuf",
            "tcp-rmem",
            "server-tcp-rmem",
            "stack-rcvbuf",
            "rmem-max",
            "server-rmem-max",
        ],
    ),
    (
        CauseId::SendBuffer,
        &[
            "sndbuf",
            "tcp-wmem",
            "stack-sndbuf",
            "wmem-max",
            "congestion",
        ],
    ),
    (
        CauseId::CongestionLoss,
        &["congestion", "sndbuf", "streams"],
    ),
    (CauseId::CongestionControl, &["congestion"]),
    (CauseId::Reordering, &["congestion", "cpu", "rps"]),
    (
        CauseId::DelayedAck,
        &["no-delay", "stack-sndbuf", "stack-psh", "sndbuf", "rcvbuf"],
    ),
    (
        CauseId::Nagle,
        &[
            "no-delay",
            "stack-nagle",
            "stack-sndbuf",
            "write-size",
            "sndbuf",
        ],
    ),
    (
        CauseId::SmallWrites,
        &["write-size", "offload", "batch", "gso-size"],
    ),
    (
        CauseId::SenderCpu,
        &[
            "write-size",
            "gso-size",
            "offloads",
            "offload",
            "wait",
            "cpu",
        ],
    ),
    (
        CauseId::ReceiverCpu,
        &[
            "gso-size", "offloads", "wait", "rcvlowat", "offload", "cpu", "rps",
        ],
    ),
    (CauseId::SharedCore, &["cpu", "wait"]),
    (CauseId::SoftirqCore, &["cpu", "rps", "xps"]),
    (
        CauseId::IdleWakeup,
        &["wait", "hold-latency", "busy-read", "cpu"],
    ),
    (
        CauseId::SchedulingDelay,
        &["sched", "cpu", "wait", "hold-latency"],
    ),
    (CauseId::RtThrottle, &["sched"]),
    (CauseId::CpuFrequency, &["hold-latency", "wait"]),
    (
        CauseId::UdpReceiveQueue,
        &[
            "rcvbuf",
            "rmem-max",
            "stack-queue",
            "offload",
            "wait",
            "sched",
        ],
    ),
    (
        CauseId::SocketBufferCap,
        &[
            "rmem-max",
            "wmem-max",
            "server-rmem-max",
            "server-wmem-max",
            "rcvbuf",
            "sndbuf",
        ],
    ),
    (CauseId::QdiscDrop, &["sndbuf", "congestion"]),
    (CauseId::NicDrop, &["rings", "stack-rx", "coalescing"]),
    (CauseId::SoftnetBacklog, &["backlog", "rps", "cpu"]),
    (CauseId::FragmentLoss, &["rcvbuf", "mtu", "stack-queue"]),
    (CauseId::Reassembly, &["rcvbuf", "mtu"]),
    (CauseId::MtuBlackHole, &["mtu"]),
    (CauseId::OffloadOff, &["offloads", "offload"]),
    (CauseId::GsoSize, &["gso-size", "write-size"]),
    (
        CauseId::PathDelay,
        &[
            "sndbuf",
            "rcvbuf",
            "tcp-wmem",
            "tcp-rmem",
            "server-tcp-rmem",
            "streams",
        ],
    ),
    (CauseId::SingleFlow, &["streams", "rps"]),
    (CauseId::TooFewInFlight, &["streams", "stack-rx"]),
    (
        CauseId::TooFewDescriptors,
        &["rings", "stack-rx", "stack-tx"],
    ),
    (CauseId::BurstSize, &["stack-tx", "sndbuf"]),
    (CauseId::InterruptCoalescing, &["coalescing"]),
    (
        CauseId::SlowSenderApplication,
        &["write-size", "sched", "cpu"],
    ),
    (
        CauseId::SlowReceiverApplication,
        &["rcvlowat", "wait", "sched", "cpu"],
    ),
    (CauseId::PathLoss, &["congestion"]),
    (CauseId::ToolLimit, &["cpu", "sched", "wait"]),
];

/// Finding with the knobs that may remedy it.
#[derive(Clone, Debug, PartialEq)]
pub struct FindingKnobs {
    pub cause: StoredId<CauseId>,
    /// Cost of the finding, 0 to 1.
    pub cost: f64,
    /// Finding as one sentence.
    pub summary: String,
    /// Knobs, the most likely first; empty if none can help.
    pub knobs: Vec<String>,
}

/// Knobs that may remedy `cause`, whether or not they apply here.
#[must_use]
pub fn knobs_for_cause(cause: &StoredId<CauseId>) -> &'static [&'static str] {
    let entry = KNOBS_BY_CAUSE.iter().find(|(id, _)| cause == id);
    entry.map_or(&[], |(_, knobs)| knobs)
}

/// Returns the findings of a run with those of `knobs` that may remedy them, in the order of the
/// findings.
///
/// A cause found at both ends counts once; findings of kind `unknown` are skipped.
#[must_use]
pub fn knobs_for_findings(findings: &[Finding], knobs: &[&str]) -> Vec<FindingKnobs> {
    let mut causes = std::collections::BTreeSet::new();
    findings
        .iter()
        .filter(|finding| finding.kind != FindingKind::Unknown)
        .filter(|finding| causes.insert(finding.cause.as_str()))
        .map(|finding| FindingKnobs {
            cause: finding.cause.clone(),
            cost: finding.cost,
            summary: finding.summary.clone(),
            knobs: (knobs_for_cause(&finding.cause).iter())
                .filter(|knob| knobs.contains(knob))
                .map(|&knob| knob.to_owned())
                .collect(),
        })
        .collect()
}

/// Order in which knobs are tried: the most likely one of each finding, then the second ones, and
/// so on.
///
/// Each knob occurs once; knobs without a finding do not occur.
#[must_use]
pub fn first_knobs(hints: &[FindingKnobs]) -> Vec<String> {
    let longest = hints.iter().map(|hint| hint.knobs.len()).max();
    let mut order: Vec<String> = Vec::new();
    for depth in 0..longest.unwrap_or(0) {
        for hint in hints {
            if let Some(knob) = hint.knobs.get(depth)
                && !order.contains(knob)
            {
                order.push(knob.clone());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use linerate_record::finding::FindingLocation;

    use super::*;
    use crate::knob::knob_names;

    fn finding(kind: FindingKind, cause: CauseId) -> Finding {
        Finding {
            kind,
            cause: cause.into(),
            end: FindingLocation::Both,
            direction: None,
            cost: 0.5,
            follows_from: None,
            summary: String::new(),
            evidence: Vec::new(),
            remedy: String::new(),
            command: None,
            needs_our_server: false,
            tried: Vec::new(),
            gain: None,
            gain_is_estimate: false,
            gain_formula: None,
        }
    }

    #[test]
    fn every_listed_knob_exists() {
        for (cause, knobs) in KNOBS_BY_CAUSE {
            assert!(!knobs.is_empty(), "{cause}");
            for knob in *knobs {
                assert!(knob_names().contains(knob), "{cause} points at {knob}");
            }
        }
    }

    #[test]
    fn the_likeliest_knob_of_each_finding_comes_first() {
        let findings = [
            finding(FindingKind::Cause, CauseId::IdleWakeup),
            finding(FindingKind::Limit, CauseId::ReceiverCpu),
            finding(FindingKind::Unknown, CauseId::CongestionControl),
            finding(FindingKind::Cause, CauseId::Steal),
            finding(FindingKind::Cause, CauseId::IdleWakeup),
        ];
        let here = ["gso-size", "wait", "hold-latency", "congestion"];
        let hints = knobs_for_findings(&findings, &here);
        let knobs: Vec<_> = hints.iter().map(|p| p.knobs.join(" ")).collect();
        assert_eq!(knobs, ["wait hold-latency", "gso-size wait", ""]);
        assert_eq!(first_knobs(&hints), ["wait", "gso-size", "hold-latency"]);
        assert!(first_knobs(&[]).is_empty());
    }
}
