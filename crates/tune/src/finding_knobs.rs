//! Knobs that may remedy a finding: a search tries them first.

use linerate_record::finding::{Finding, FindingKind};

/// Causes with the knobs that may remedy them, the most likely first.
///
/// A cause that no knob can remedy (a long path, another virtual machine) is not listed.
const KNOBS_BY_CAUSE: &[(&str, &[&str])] = &[
    (
        "receive-window",
        &[
            "rcvbuf",
            "tcp-rmem",
            "far-tcp-rmem",
            "stack-rcvbuf",
            "rmem-max",
            "far-rmem-max",
        ],
    ),
    (
        "send-buffer",
        &[
            "sndbuf",
            "tcp-wmem",
            "stack-sndbuf",
            "wmem-max",
            "congestion",
        ],
    ),
    ("congestion-loss", &["congestion", "sndbuf", "streams"]),
    ("congestion-control", &["congestion"]),
    ("reordering", &["congestion", "cpu", "rps"]),
    (
        "delayed-ack",
        &["no-delay", "stack-sndbuf", "stack-psh", "sndbuf", "rcvbuf"],
    ),
    (
        "nagle",
        &[
            "no-delay",
            "stack-nagle",
            "stack-sndbuf",
            "write-size",
            "sndbuf",
        ],
    ),
    (
        "small-writes",
        &["write-size", "offload", "batch", "gso-size"],
    ),
    (
        "sender-cpu",
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
        "receiver-cpu",
        &[
            "gso-size", "offloads", "wait", "rcvlowat", "offload", "cpu", "rps",
        ],
    ),
    ("shared-core", &["cpu", "wait"]),
    ("softirq-core", &["cpu", "rps", "xps"]),
    ("idle-wakeup", &["wait", "hold-latency", "busy-read", "cpu"]),
    (
        "scheduling-delay",
        &["sched", "cpu", "wait", "hold-latency"],
    ),
    ("rt-throttle", &["sched"]),
    ("cpu-frequency", &["hold-latency", "wait"]),
    (
        "udp-receive-queue",
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
        "socket-buffer-cap",
        &[
            "rmem-max",
            "wmem-max",
            "far-rmem-max",
            "far-wmem-max",
            "rcvbuf",
            "sndbuf",
        ],
    ),
    ("qdisc-drop", &["sndbuf", "congestion"]),
    ("nic-drop", &["rings", "stack-rx", "coalescing"]),
    ("softnet-backlog", &["backlog", "rps", "cpu"]),
    ("fragment-loss", &["rcvbuf", "mtu", "stack-queue"]),
    ("reassembly", &["rcvbuf", "mtu"]),
    ("mtu-black-hole", &["mtu"]),
    ("offload-off", &["offloads", "offload"]),
    ("gso-size", &["gso-size", "write-size"]),
    (
        "path-delay",
        &[
            "sndbuf",
            "rcvbuf",
            "tcp-wmem",
            "tcp-rmem",
            "far-tcp-rmem",
            "streams",
        ],
    ),
    ("single-flow", &["streams", "rps"]),
    ("too-few-in-flight", &["streams", "stack-rx"]),
    ("too-few-descriptors", &["rings", "stack-rx", "stack-tx"]),
    ("burst-size", &["stack-tx", "sndbuf"]),
    ("interrupt-coalescing", &["coalescing"]),
    ("slow-sender-application", &["write-size", "sched", "cpu"]),
    (
        "slow-receiver-application",
        &["rcvlowat", "wait", "sched", "cpu"],
    ),
    ("path-loss", &["congestion"]),
    ("tool-limit", &["cpu", "sched", "wait"]),
];

/// Finding with the knobs that may remedy it.
#[derive(Clone, Debug, PartialEq)]
pub struct FindingKnobs {
    pub cause: String,
    /// Cost of the finding, 0 to 1.
    pub cost: f64,
    /// Finding as one sentence.
    pub summary: String,
    /// Knobs, the most likely first; empty if none can help.
    pub knobs: Vec<String>,
}

/// Knobs that may remedy `cause`, whether or not they apply here.
#[must_use]
pub fn knobs_for_cause(cause: &str) -> &'static [&'static str] {
    let entry = KNOBS_BY_CAUSE.iter().find(|(name, _)| *name == cause);
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

    fn finding(kind: FindingKind, cause: &str) -> Finding {
        Finding {
            kind,
            cause: cause.to_owned(),
            end: FindingLocation::Both,
            direction: None,
            cost: 0.5,
            follows_from: None,
            summary: String::new(),
            evidence: Vec::new(),
            remedy: String::new(),
            command: None,
            tried: Vec::new(),
            gain: None,
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

    /// Ids that have sections in docs/CAUSES.md.
    #[test]
    fn every_listed_cause_is_documented() {
        let causes = include_str!("../../../docs/CAUSES.md");
        for (cause, _) in KNOBS_BY_CAUSE {
            assert!(causes.contains(&format!("\n## {cause}\n")), "{cause}");
        }
    }

    #[test]
    fn the_likeliest_knob_of_each_finding_comes_first() {
        let findings = [
            finding(FindingKind::Cause, "idle-wakeup"),
            finding(FindingKind::Limit, "receiver-cpu"),
            finding(FindingKind::Unknown, "congestion-control"),
            finding(FindingKind::Cause, "steal"),
            finding(FindingKind::Cause, "idle-wakeup"),
        ];
        let here = ["gso-size", "wait", "hold-latency", "congestion"];
        let hints = knobs_for_findings(&findings, &here);
        let knobs: Vec<_> = hints.iter().map(|p| p.knobs.join(" ")).collect();
        assert_eq!(knobs, ["wait hold-latency", "gso-size wait", ""]);
        assert_eq!(first_knobs(&hints), ["wait", "gso-size", "hold-latency"]);
        assert!(first_knobs(&[]).is_empty());
    }
}
