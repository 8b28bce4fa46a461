//! The receiving threads have no idle time.

use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_share;

use super::schedstat;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name, part_name};

/// See docs/CAUSES.md#receiver-cpu.
pub struct ReceiverCpu;

impl Rule for ReceiverCpu {
    fn id(&self) -> &'static str {
        "receiver-cpu"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let mut found = saturated(case, self.id(), CountedAt::Receiver);
        if found.is_empty() && !case.is_of_a_guest() {
            found.extend(not_in_view(case, self.id(), CountedAt::Receiver));
        }
        found
    }
}

/// Returns a finding for each direction whose threads at this end were always busy.
pub(super) fn saturated(case: &Case<'_>, id: &str, part: CountedAt) -> Vec<Finding> {
    let ways = case.ways.iter();
    ways.filter_map(|way| of(case, way, id, part)).collect()
}

fn of(case: &Case<'_>, way: &Way<'_>, id: &str, part: CountedAt) -> Option<Finding> {
    let role = match part {
        CountedAt::Sender => way.sender,
        CountedAt::Receiver => way.receiver,
    };
    let time = way.time(part)?;
    if !time.is_saturated() || way.fills_path() {
        return None;
    }
    // Datagrams that the receiver dropped are no limit of the sender.
    if part == CountedAt::Sender && way.lost_share("udp-receive-queue") > 0.02 {
        return None;
    }
    // A pacing thread polls the clock all the time: it is saturated only if it misses the rate.
    let kept = match part {
        CountedAt::Sender => way.summary().rate_error.is_none_or(|error| error > -0.02),
        CountedAt::Receiver => lost_nothing(way),
    };
    if super::is_paced(case) && kept {
        return None;
    }
    let cost = case.cpu(role)?;
    let figure = match way.plan().protocol {
        Protocol::Tcp => cost.ns_per_byte.map(|ns| ("ns_per_byte", ns)),
        Protocol::Udp => cost.ns_per_packet.map(|ns| ("ns_per_packet", ns)),
    };
    let streams = case.plan.streams;
    let (remedy, command) = match (case.plan.protocol, streams) {
        (Protocol::Tcp, 1) => (
            "spread the payload over several flows, one per core; larger GSO packets, larger \
             calls and offloads reduce the cost per byte",
            Some(case.again("-P 2")),
        ),
        (Protocol::Tcp, _) => (
            "reduce the cost per byte: larger GSO packets, larger calls, offloads of the interface",
            larger_packets(case, way),
        ),
        // One thread of our stack serves all flows, without datagram segmentation or coalescing.
        (Protocol::Udp, _) if way.is_own_stack(role) => (
            "send larger datagrams: in our stack the cost per datagram hardly depends on its \
             size, and one thread serves all flows",
            None,
        ),
        (Protocol::Udp, _) if way.is_own_stack(way.sender) || way.is_own_stack(way.receiver) => (
            "send larger datagrams, or spread them over several flows: our stack at the other end \
             supports neither GSO nor GRO",
            (streams == 1).then(|| case.again("-P 2")),
        ),
        (Protocol::Udp, _) => (
            "send many datagrams per call (GSO, GRO), or spread them over several flows",
            Some(case.again(if streams == 1 {
                "-P 2"
            } else {
                "--offload gso,gro"
            })),
        ),
    };
    let mut draft = Draft::limit(id, role)
        .way(way.direction)
        .cost(time.working)
        .says(format!(
            "the {}'s {} threads worked for {} of the time and had almost no idle time: its \
             processor is the limit",
            name(role),
            part_name(part),
            format_share(time.working)
        ))
        .seen("working time", time.working, "share", schedstat(role))
        .seen("idle time", time.free(), "share", schedstat(role))
        .remedy(remedy)
        .tried((streams > 1).then(|| format!("-P {streams}")));
    if let Some(command) = command {
        draft = draft.command(command);
    }
    if let Some((figure, ns)) = figure {
        draft = draft.seen(figure, ns, "ns", format!("{} threads", name(role)));
    }
    draft.found()
}

/// Returns the command that lets the sending kernel make the largest packets of the interface;
/// `None` if it does already, or if no kernel sends.
fn larger_packets(case: &Case<'_>, way: &Way<'_>) -> Option<String> {
    let interface = way.sends_by()?;
    let now = interface.gso_ipv4_max_bytes.unwrap_or(0);
    Some(super::gso_size::larger(case, way.sender, &interface.name, now)?.1)
}

fn lost_nothing(way: &Way<'_>) -> bool {
    way.summary().loss_fraction.is_none_or(|loss| loss < 0.001)
}

/// Returns a finding for an end that reports no processor time.
pub(super) fn not_in_view(case: &Case<'_>, id: &str, part: CountedAt) -> Option<Finding> {
    let end = |way: &Way<'_>| match part {
        CountedAt::Sender => way.sender,
        CountedAt::Receiver => way.receiver,
    };
    let mut ways = case.ways.iter();
    let way = ways.find(|way| case.time(end(way)).is_none())?;
    let role = end(way);
    let why = match case.far_is_foreign() {
        true => "the server is another program, which does not report it",
        false => "that end did not report the time of its threads",
    };
    let remedy = match case.far_is_foreign() {
        true => format!(
            "run `linerate server` there instead, and `{}` here: it reports processor times",
            case.of_own_server()
        ),
        false => "run `linerate server` there, which reports processor times".to_owned(),
    };
    let draft = Draft::unknown(id, role);
    let draft = match case.ways.len() {
        1 => draft.way(way.direction),
        _ => draft,
    };
    draft
        .says(format!(
            "the processor of the {}, the {} end, may be the limit: {why}",
            name(role),
            part_name(part)
        ))
        .missing("working time of the threads", &schedstat(role), why)
        .remedy(remedy)
        .command("linerate server")
        .found()
}
