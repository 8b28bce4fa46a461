//! The receiving threads have no time left.

use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_share;

use super::schedstat;
use crate::Rule;
use crate::case::{Case, Way, name, part_name};
use crate::draft::Draft;

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

/// Ends of directions whose threads worked all the time.
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
    // What the receiver cannot take is no limit of the sender.
    if part == CountedAt::Sender && way.lost_share("udp-receive-queue") > 0.02 {
        return None;
    }
    // A thread that paces looks at the clock all the time: it is at its end when the rate is.
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
            "spread the payload over several flows, one a core; larger GSO packets, larger calls and offloads make each byte cheaper",
            Some(case.again("-P 2")),
        ),
        (Protocol::Tcp, _) => (
            "make each byte cheaper: larger GSO packets, larger calls, offloads of the interface",
            larger_packets(case, way),
        ),
        // One thread of our own stack moves all flows, and nobody cuts or joins datagrams for it.
        (Protocol::Udp, _) if way.is_own_stack(role) => (
            "send larger datagrams: our stack takes about as long for each, whatever it holds, and one thread moves all flows",
            None,
        ),
        (Protocol::Udp, _) if way.is_own_stack(way.sender) || way.is_own_stack(way.receiver) => (
            "send larger datagrams, or spread them over several flows: our stack at the other end takes none that are joined",
            (streams == 1).then(|| case.again("-P 2")),
        ),
        (Protocol::Udp, _) => (
            "hand over many datagrams a call (GSO, GRO), or spread them over several flows",
            Some(case.again(if streams == 1 { "-P 2" } else { "--offload gso,gro" })),
        ),
    };
    let mut draft = Draft::limit(id, role)
        .way(way.direction)
        .cost(time.working)
        .says(format!(
            "the {}'s {} threads worked for {} of the time and had next to none to spare: this is what its processor moves",
            name(role),
            part_name(part),
            format_share(time.working)
        ))
        .seen("working time", time.working, "share", schedstat(role))
        .seen("free time", time.free(), "share", schedstat(role))
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

/// What lets the sending kernel make packets as large as the interface takes; nothing where it does, and where no
/// kernel sends.
fn larger_packets(case: &Case<'_>, way: &Way<'_>) -> Option<String> {
    let interface = way.sends_by()?;
    let now = interface.gso_ipv4_max_bytes.unwrap_or(0);
    Some(super::gso_size::larger(case, way.sender, &interface.name, now)?.1)
}

fn lost_nothing(way: &Way<'_>) -> bool {
    way.summary().loss_fraction.is_none_or(|loss| loss < 0.001)
}

/// An end of a direction that tells nothing of its processor.
pub(super) fn not_in_view(case: &Case<'_>, id: &str, part: CountedAt) -> Option<Finding> {
    let end = |way: &Way<'_>| match part {
        CountedAt::Sender => way.sender,
        CountedAt::Receiver => way.receiver,
    };
    let mut ways = case.ways.iter();
    let way = ways.find(|way| case.time(end(way)).is_none())?;
    let role = end(way);
    let why = match case.far_is_foreign() {
        true => "the far end is another program, which does not tell",
        false => "its end told nothing of the time of its threads",
    };
    let remedy = match case.far_is_foreign() {
        true => format!(
            "run `linerate server` there in its place, and `{}` here: it tells",
            case.of_own_server()
        ),
        false => "run `linerate server` there, which tells".to_owned(),
    };
    let draft = Draft::unknown(id, role);
    let draft = match case.ways.len() {
        1 => draft.way(way.direction),
        _ => draft,
    };
    draft
        .says(format!(
            "whether the processor of the {}, the {} end, is the limit is not known: {why}",
            name(role),
            part_name(part)
        ))
        .missing("working time of the threads", &schedstat(role), why)
        .remedy(remedy)
        .command("linerate server")
        .found()
}
