//! The receiving threads have no idle time.

use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;
use linerate_stats::units::format_share;

use super::schedstat_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView, flow_end_name};

/// Share of the datagrams dropped at the receiving socket from which the sender is not the limit.
pub(super) const MAX_QUEUE_LOSS: f64 = 0.02;

/// See docs/CAUSES.md#receiver-cpu.
pub struct ReceiverCpu;

impl Rule for ReceiverCpu {
    fn id(&self) -> CauseId {
        CauseId::ReceiverCpu
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The receiving threads work all the time.",
            shown_when: vec![detection(
                "TCP and UDP",
                ["the receiving end is saturated".into()],
            )],
            unknown_when: vec![
                "the receiving end does not report the time of its threads, such as another tool"
                    .into(),
            ],
            not_when: vec![
                "the path is full".into(),
                format!(
                    "a rate was requested, and less than {} was lost",
                    percent(super::MAX_RATE_LOSS)
                ),
            ],
            evidence: &[
                ("working time", "share"),
                ("idle time", "share"),
                ("ns_per_byte", "ns"),
                ("ns_per_packet", "ns"),
                ("working time of the threads", ""),
            ],
            cost: vec!["Working time of the threads.".into()],
            notes: vec![
                "Time in which a receiver of datagrams waits for late ones after the last is no \
                 idle time."
                    .into(),
            ],
            remedy: vec![
                "Use GRO, larger packets, and more queues and flows (`-P`).".into(),
                "Measure without verification of the payload.".into(),
                "Run `linerate server` at an end that is unknown.".into(),
            ],
            wrong_when: vec!["the program spins on a socket without counting empty calls".into()],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput {
            return Vec::new();
        }
        let mut findings = saturated_ends(run, self.id(), FlowEnd::Receiver);
        if findings.is_empty() && !run.is_third_party_client() {
            findings.extend(unknown_end(run, self.id(), FlowEnd::Receiver));
        }
        findings
    }
}

/// Returns a finding for each direction whose threads at this end were always busy.
pub(super) fn saturated_ends(run: &RunView<'_>, id: CauseId, part: FlowEnd) -> Vec<Finding> {
    let directions = run.directions.iter();
    directions
        .filter_map(|direction| evaluate_flow_end(run, direction, id, part))
        .collect()
}

fn evaluate_flow_end(
    run: &RunView<'_>,
    direction: &DirectionView<'_>,
    id: CauseId,
    part: FlowEnd,
) -> Option<Finding> {
    let role = match part {
        FlowEnd::Sender => direction.sender,
        FlowEnd::Receiver => direction.receiver,
    };
    let time = direction.thread_time(part)?;
    if !time.is_saturated() || direction.fills_path() {
        return None;
    }
    // Datagrams that the receiver dropped are no limit of the sender.
    if part == FlowEnd::Sender && direction.lost_share(LossPoint::UdpReceiveQueue) > MAX_QUEUE_LOSS
    {
        return None;
    }
    // A pacing thread polls the clock all the time: it is saturated only if it misses the rate.
    let met_rate = match part {
        FlowEnd::Sender => direction
            .summary()
            .rate_error
            .is_none_or(|error| error > -super::MAX_RATE_ERROR),
        FlowEnd::Receiver => has_no_loss(direction),
    };
    if super::is_paced(run) && met_rate {
        return None;
    }
    let cost = run.cpu(role)?;
    let figure = match direction.plan().protocol {
        TransportProtocol::Tcp => cost.ns_per_byte.map(|ns| ("ns_per_byte", ns)),
        TransportProtocol::Udp => cost.ns_per_packet.map(|ns| ("ns_per_packet", ns)),
    };
    let streams = run.plan.streams;
    let (remedy, command) = match (run.plan.protocol, streams) {
        (TransportProtocol::Tcp, 1) => (
            "spread the payload over several flows, one per CPU; larger GSO packets, larger \
             calls and offloads reduce the cost per byte",
            Some(run.rerun_command("-P 2")),
        ),
        (TransportProtocol::Tcp, _) => (
            "reduce the cost per byte: larger GSO packets, larger calls, offloads of the interface",
            larger_packets_command(run, direction),
        ),
        // One thread of our stack serves all flows, without datagram segmentation or coalescing.
        (TransportProtocol::Udp, _) if direction.uses_netstack(role) => (
            "send larger datagrams: in the user-space stack the cost per datagram hardly depends on its \
             size, and one thread serves all flows",
            None,
        ),
        (TransportProtocol::Udp, _)
            if direction.uses_netstack(direction.sender)
                || direction.uses_netstack(direction.receiver) =>
        {
            (
                "send larger datagrams, or spread them over several flows: the user-space stack at the other end \
             supports neither GSO nor GRO",
                (streams == 1).then(|| run.rerun_command("-P 2")),
            )
        }
        (TransportProtocol::Udp, _) => (
            "send many datagrams per call (GSO, GRO), or spread them over several flows",
            Some(run.rerun_command(if streams == 1 {
                "-P 2"
            } else {
                "--offload gso,gro"
            })),
        ),
    };
    let mut builder = FindingBuilder::limit(id, role)
        .direction(direction.direction)
        .cost(time.working)
        .summary(format!(
            "the {}'s {} threads worked for {} of the time and had almost no idle time: its \
             CPU is the limit",
            role.as_str(),
            flow_end_name(part),
            format_share(time.working)
        ))
        .evidence(
            "working time",
            time.working,
            "share",
            schedstat_source(role),
        )
        .evidence(
            "idle time",
            time.free_share(),
            "share",
            schedstat_source(role),
        )
        .remedy(remedy)
        .tried((streams > 1).then(|| format!("-P {streams}")));
    if let Some(command) = command {
        builder = builder.command(command);
    }
    if let Some((figure, ns)) = figure {
        builder = builder.evidence(figure, ns, "ns", format!("{} threads", role.as_str()));
    }
    builder.build()
}

/// Returns the command that lets the sending kernel make the largest packets of the interface;
/// `None` if it does already, or if no kernel sends.
fn larger_packets_command(run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<String> {
    let interface = direction.sender_interface()?;
    let now = interface.gso_bytes(direction.is_ipv6()).unwrap_or(0);
    Some(super::gso_size::larger_gso_command(run, direction.sender, &interface.name, now)?.1)
}

fn has_no_loss(direction: &DirectionView<'_>) -> bool {
    direction
        .summary()
        .loss_fraction
        .is_none_or(|loss| loss < super::MAX_RATE_LOSS)
}

/// Returns a finding for an end that reports no processor time.
pub(super) fn unknown_end(run: &RunView<'_>, id: CauseId, part: FlowEnd) -> Option<Finding> {
    let end = |direction: &DirectionView<'_>| match part {
        FlowEnd::Sender => direction.sender,
        FlowEnd::Receiver => direction.receiver,
    };
    let mut directions = run.directions.iter();
    let direction = directions.find(|direction| run.thread_time(end(direction)).is_none())?;
    let role = end(direction);
    let why = match run.has_third_party_server() {
        true => "the server is another program, which does not report it",
        false => "that end did not report the time of its threads",
    };
    let remedy = match run.has_third_party_server() {
        true => format!(
            "run `linerate server` there instead, and `{}` here: it reports CPU times",
            run.linerate_server_command()
        ),
        false => "run `linerate server` there, which reports CPU times".to_owned(),
    };
    let builder = FindingBuilder::unknown(id, role);
    let builder = match run.directions.len() {
        1 => builder.direction(direction.direction),
        _ => builder,
    };
    builder
        .summary(format!(
            "the CPU of the {}, the {} end, may be the limit: {why}",
            role.as_str(),
            flow_end_name(part)
        ))
        .missing_evidence("working time of the threads", &schedstat_source(role), why)
        .remedy(remedy)
        .command("linerate server")
        .build()
}
