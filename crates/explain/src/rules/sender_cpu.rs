//! The sending threads have no idle time.

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_record::record::FlowEnd;

use super::MAX_RATE_ERROR;
use super::receiver_cpu::{MAX_QUEUE_LOSS, saturated_ends, unknown_end};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Largest share of rounds without a frame of forwarding threads without idle time.
const MAX_IDLE_ROUNDS: f64 = 0.1;

/// Smallest processor share of a forwarding thread without idle time.
const MIN_CPU_SHARE: f64 = 0.85;

/// See docs/CAUSES.md#sender-cpu.
pub struct SenderCpu;

impl Rule for SenderCpu {
    fn id(&self) -> CauseId {
        CauseId::SenderCpu
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The sending threads work all the time: this is what one CPU moves.",
            shown_when: vec![
                detection("TCP and UDP", ["the sending end is saturated".into()]),
                detection(
                    "`forward`",
                    [
                        format!(
                            "{} of the rounds at most find no frame",
                            percent(MAX_IDLE_ROUNDS)
                        ),
                        format!(
                            "each polling thread has {} of a CPU or more",
                            percent(MIN_CPU_SHARE)
                        ),
                        "no port lacks a carrier".into(),
                    ],
                ),
            ],
            unknown_when: vec![
                "the sending end does not report the time of its threads, such as another tool"
                    .into(),
            ],
            not_when: vec![
                "the path is full".into(),
                format!(
                    "a rate was requested, and less than {} of it is missing",
                    percent(MAX_RATE_ERROR)
                ),
                format!(
                    "the receiving socket dropped more than {} of the datagrams",
                    percent(MAX_QUEUE_LOSS)
                ),
            ],
            evidence: &[
                ("working time", "share"),
                ("idle time", "share"),
                ("ns_per_byte", "ns"),
                ("ns_per_packet", "ns"),
                ("working time of the threads", ""),
                ("idle_rounds", "rounds"),
                ("rounds", "rounds"),
                ("cpu_share", "share"),
            ],
            cost: vec![
                "Working time of the threads; of `forward` the share of rounds with frames.".into(),
            ],
            remedy: vec![
                "Remove the causes that come before it, then use more flows and CPUs (`-P`)."
                    .into(),
                "`forward`: use more queues and threads, as far as CPUs and ports permit \
                 (`--rxq`, `--txq`, `--cores`)."
                    .into(),
                "Run `linerate server` at an end that is unknown.".into(),
            ],
            wrong_when: vec![
                "the work belongs to the remote end: on veth the sender also pays for the \
                 receiver's protocols"
                    .into(),
            ],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Throughput => {
                let mut findings = saturated_ends(run, self.id(), FlowEnd::Sender);
                // An end with both directions is reported once, as a receiver.
                if findings.is_empty() && run.directions.len() == 1 && !run.is_third_party_client()
                {
                    findings.extend(unknown_end(run, self.id(), FlowEnd::Sender));
                }
                findings
            }
            RunKind::Forward => evaluate_forwarder(run, self.id()).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

/// Poll-mode threads that never found their ports empty.
fn evaluate_forwarder(run: &RunView<'_>, id: CauseId) -> Option<Finding> {
    let figures = run.record.forward.as_ref()?;
    if run.lacks_carrier() {
        return None;
    }
    let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
    let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
    let share = idle as f64 / rounds.max(1) as f64;
    // A thread that sleeps, or shares its processor, is not at its limit.
    let least = figures
        .cores
        .iter()
        .map(|core| core.cpu_share)
        .fold(1.0, f64::min);
    if rounds == 0 || share > MAX_IDLE_ROUNDS || least < MIN_CPU_SHARE {
        return None;
    }
    let plan = run.plan.forward.as_ref()?;
    let usable = run
        .host(linerate_record::facts::Role::Client)
        .and_then(|host| host.cpu.usable);
    let (remedy, options) = extra_threads_remedy(
        &plan.ports,
        figures.cores.len(),
        figures.streams.len(),
        usable,
    );
    let builder = FindingBuilder::limit(id, linerate_record::finding::FindingLocation::Client)
        .cost(1.0 - share)
        .summary("the forwarding threads found frames in nearly every round: they are saturated")
        .evidence("idle_rounds", idle, "rounds", "forwarding threads")
        .evidence("rounds", rounds, "rounds", "forwarding threads")
        .evidence("cpu_share", least, "share", "forwarding threads, minimum")
        .remedy(remedy)
        .tried((figures.cores.len() > 1).then(|| format!("--cores {}", figures.cores.len())));
    match options {
        Some(options) => builder.command(run.rerun_command(&options)).build(),
        None => builder.build(),
    }
}

/// Returns the remedy for threads without idle time, and its options if there are any.
fn extra_threads_remedy(
    ports: &[String],
    threads: usize,
    streams: usize,
    usable: Option<u32>,
) -> (&'static str, Option<String>) {
    if usable.is_some_and(|usable| threads >= usable as usize) {
        return (
            "every usable CPU has a thread already: use larger frames, or a machine with \
             more CPUs",
            None,
        );
    }
    // More threads than streams would have nothing to do.
    if threads < streams {
        return (
            "add threads, each on its own CPU",
            Some(format!("--cores {}", threads + 1)),
        );
    }
    // A capture file has one queue.
    if ports.iter().any(|port| port.starts_with("pcap:")) {
        return (
            "spread the work over more ports: a capture file has one queue",
            None,
        );
    }
    let queues = streams / ports.len().max(1) + 1;
    let options = format!("--rxq {queues} --txq {queues} --cores {}", threads + 1);
    (
        "add queues, and a thread on its own CPU for each",
        Some(options),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_are_possible() {
        for (ports, threads, streams, usable, expected) in [
            (&["null:"][..], 1, 1, 4, Some("--rxq 2 --txq 2 --cores 2")),
            (&["null:"], 2, 2, 4, Some("--rxq 3 --txq 3 --cores 3")),
            (&["ring:0", "ring:1"], 1, 2, 4, Some("--cores 2")),
            (
                &["ring:0", "ring:1"],
                2,
                2,
                4,
                Some("--rxq 2 --txq 2 --cores 3"),
            ),
            // Two processors cannot run a third thread.
            (&["null:"], 2, 2, 2, None),
            (&["pcap:tx=t.pcapng"], 1, 1, 4, None),
            (&["pcap:rx=a.pcap", "null:"], 1, 2, 4, Some("--cores 2")),
        ] {
            let ports: Vec<String> = ports.iter().map(ToString::to_string).collect();
            let (remedy, options) = extra_threads_remedy(&ports, threads, streams, Some(usable));
            assert_eq!(options.as_deref(), expected, "{ports:?} {threads}");
            assert!(!remedy.is_empty());
        }
    }
}
