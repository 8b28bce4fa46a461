//! Comparison of the remote end's report with the counts of this end.

use linerate_protocol::remote_report::RemoteFigures;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Plan, TransportProtocol};
use linerate_record::record::{Caveat, Summary};
use linerate_stats::units::format_nanos;

use super::{fraction, per_second};

/// Tolerance for rounding between two counts of the same bytes: reports in text round to 100 bytes
/// at best.
const ROUNDING_BYTES: u64 = 1024;

/// Part of the sent datagrams, one in this many, that may have been in flight when the remote end
/// stopped counting; more than that was lost.
const IN_FLIGHT_DIVISOR: u64 = 20;

/// Returns the figures of what this end sent, as counted by the remote end.
pub(super) fn arrival_summary(
    plan: &Plan,
    local: &Summary,
    report: &RemoteFigures,
    stopped_first: bool,
) -> Summary {
    let udp = plan.protocol == TransportProtocol::Udp;
    // Without a time in the report, the time of this end differs by a round trip and the queues of
    // the path.
    let duration_ns = match is_time_too_short(plan, local, report) {
        true => local.duration_ns,
        false => report.duration_ns.or(local.duration_ns),
    };
    let is_known = !datagrams_contradict_bytes(plan, report);
    let packets = report.packets.filter(|_| udp && is_known);
    // Sequence numbers show gaps, but not what is missing after the last one received.
    let sent = local.packets_sent.filter(|&sent| {
        // Datagrams in flight when the remote end stopped counting are not lost; most of a test is
        // never in flight.
        let counted = packets
            .zip(report.lost)
            .map_or(0, |(received, lost)| received.saturating_add(lost));
        !stopped_first || sent.saturating_sub(counted) > sent / IN_FLIGHT_DIVISOR
    });
    let lost = match (sent, packets) {
        (Some(sent), Some(arrived)) => Some(sent.saturating_sub(arrived)),
        _ => report.lost.filter(|_| udp && is_known),
    };
    let offered = sent.or_else(|| Some(packets?.saturating_add(lost?)));
    Summary {
        duration_ns,
        bytes_received: report.bytes,
        goodput_bps: (report.bytes)
            .and_then(|bytes| per_second(bytes, duration_ns))
            .map(|bytes| bytes * 8.0),
        packets_received: packets,
        packets_per_second: packets.and_then(|packets| per_second(packets, duration_ns)),
        lost,
        loss_fraction: lost
            .zip(offered)
            .and_then(|(lost, offered)| fraction(lost, offered)),
        out_of_order: report.out_of_order,
        ipdv_ns: report.ipdv_ns,
        ..Summary::default()
    }
}

/// Returns the figures of what the remote end sent, with the loss that follows from the counts of
/// this end.
pub(super) fn departure_summary(plan: &Plan, local: &Summary, report: &RemoteFigures) -> Summary {
    let unique = (local.packets_received)
        .map(|packets| packets.saturating_sub(local.duplicates.unwrap_or(0)));
    let lost = report
        .packets
        .zip(unique)
        .and_then(|(sent, received)| lost_of_total(plan, sent, received, local.lost));
    Summary {
        duration_ns: report.duration_ns,
        bytes_sent: report.bytes,
        packets_sent: report.packets,
        // Without a time in the report, the time of this end differs by a round trip only.
        offered_bps: (report.bytes)
            .and_then(|bytes| per_second(bytes, report.duration_ns.or(local.duration_ns)))
            .map(|bytes| bytes * 8.0),
        lost,
        loss_fraction: (lost.zip(unique))
            .and_then(|(lost, unique)| fraction(lost, lost.saturating_add(unique))),
        retransmits: report.retransmits,
        ..Summary::default()
    }
}

/// Returns the losses of a flow by the sender's total, which gaps in the numbers do not show after
/// the last arrival; `None` if the total is below what arrived, and so counts something else.
///
/// With an omitted time, the two ends start to count at different datagrams: then the gaps are a
/// lower bound.
#[must_use]
pub fn lost_of_total(plan: &Plan, sent: u64, unique: u64, gaps: Option<u64>) -> Option<u64> {
    match (sent.checked_sub(unique), plan.omit_ns) {
        (lost, 0) => lost,
        (lost, _) => lost.max(gaps),
    }
}

/// Highest plausible offered load of one sender in bit/s: ten times what the fastest links carry.
const MAX_OFFERED_BPS: f64 = 1e13;

/// Factor above the requested rate from which a sender's numbers are not plausible.
const MAX_RATE_FACTOR: f64 = 10.0;

/// Datagrams that may exceed that: bursts in a short run.
const MAX_BURST_DATAGRAMS: f64 = 1_000.0;

/// Removes losses that the sender cannot have sent in the time of this end, and returns the caveat:
/// the numbers of its datagrams are something else, or damaged.
pub(super) fn clear_impossible_losses(plan: &Plan, local: &mut Summary) -> Option<Caveat> {
    let (lost, packets) = (
        local.lost.filter(|&lost| lost > 0)?,
        local.packets_received?,
    );
    let seconds = local.duration_ns? as f64 / 1e9;
    let bits = local.bytes_received? as f64 * 8.0 / packets.max(1) as f64;
    // Losses of all flows may be in one of them.
    let max_factor = MAX_RATE_FACTOR * f64::from(plan.streams.max(1));
    let max_bps = (plan.rate_bps).map_or(MAX_OFFERED_BPS, |rate| rate as f64 * max_factor);
    let max_datagrams = max_bps.min(MAX_OFFERED_BPS) * seconds / bits.max(1.0);
    if lost as f64 <= max_datagrams + MAX_BURST_DATAGRAMS {
        return None;
    }
    (local.lost, local.loss_fraction) = (None, None);
    Some(Caveat::new(
        CaveatId::CountsContradict,
        format!(
            "the numbers of the {packets} datagrams received have gaps of {lost}, more than their sender can have \
             sent in {}: they are no counters, or damaged; what was lost is not known from them",
            format_nanos(seconds * 1e9)
        ),
    ))
}

/// Datagrams and time of a sender from which the times of both ends are alike.
const MIN_TIMED_DATAGRAMS: u64 = 20;
const MIN_TIMED_NS: u64 = 100_000_000;

/// Factor of the offered load above which the time of a receiver is not that of its bytes.
const MAX_GOODPUT_FACTOR: f64 = 2.0;

/// Returns whether datagrams arrived far faster than they were sent, by the time that the receiver
/// reports.
fn is_time_too_short(plan: &Plan, local: &Summary, report: &RemoteFigures) -> bool {
    let (Some(bytes), Some(offered_bps)) = (report.bytes, local.offered_bps) else {
        return false;
    };
    let goodput_bps = per_second(bytes, report.duration_ns).map_or(0.0, |bytes| bytes * 8.0);
    plan.protocol == TransportProtocol::Udp
        && local.packets_sent >= Some(MIN_TIMED_DATAGRAMS)
        && local.duration_ns >= Some(MIN_TIMED_NS)
        && goodput_bps > offered_bps * MAX_GOODPUT_FACTOR
}

/// Returns a caveat if a receiver of datagrams reports bytes without their time.
pub(super) fn check_time(plan: &Plan, report: &RemoteFigures) -> Option<Caveat> {
    let is_unknown = plan.protocol == TransportProtocol::Udp
        && report.bytes.is_some_and(|bytes| bytes > 0)
        && report.duration_ns.is_none();
    is_unknown.then(|| {
        Caveat::new(
            CaveatId::RemoteCountUnknown,
            "the receiver reported no time: goodput is over the time in which this end sent, and too high where \
             datagrams waited in a queue of the path",
        )
    })
}

/// Returns whether the datagrams and the bytes that a receiver reports contradict each other.
fn datagrams_contradict_bytes(plan: &Plan, report: &RemoteFigures) -> bool {
    let (Some(packets), Some(bytes)) = (report.packets, report.bytes) else {
        return false;
    };
    let by_size = bytes / plan.payload_bytes.max(1);
    // One or two are counted by some servers and not by others: the first, and the end marker.
    let tolerance = 2.max(packets.max(by_size) / 100);
    plan.protocol == TransportProtocol::Udp
        && plan.payload_bytes > 0
        && packets.abs_diff(by_size) > tolerance
}

/// Returns the offered load of a datagram sender without a report, from sequence numbers: missing
/// datagrams were sent, too, all of it in the time of this end.
pub(super) fn offered_load_by_numbers(plan: &Plan, local: &Summary) -> Option<f64> {
    let (bytes, packets, lost) = (local.bytes_received?, local.packets_received?, local.lost?);
    if plan.protocol != TransportProtocol::Udp || packets == 0 {
        return None;
    }
    let unique = packets.saturating_sub(local.duplicates.unwrap_or(0));
    let sent = per_second(unique.saturating_add(lost), local.duration_ns)?;
    Some(sent * bytes as f64 / packets as f64 * 8.0)
}

/// Returns the loss over several flows where the remote end counted datagrams of one flow for
/// another, as reference iperf2 does with those that arrive while it opens flows: the sums of bytes
/// are right, the numbers of single flows are not.
pub(super) fn mixed_flow_loss<'a>(
    flows: impl Iterator<Item = (&'a Summary, &'a Summary)>,
) -> Option<Summary> {
    let (mut sent, mut arrived, mut packets, mut has_surplus) = (0_u64, 0_u64, 0_u64, false);
    let mut duration_ns = None;
    for (local, remote) in flows {
        let (remote_bytes, local_bytes) = remote.bytes_received.zip(local.bytes_sent)?;
        has_surplus |= remote_bytes > local_bytes;
        sent = sent.saturating_add(local_bytes);
        arrived = arrived.saturating_add(remote_bytes);
        packets = packets.saturating_add(local.packets_sent?);
        duration_ns = duration_ns.max(remote.duration_ns);
    }
    let missing = sent.checked_sub(arrived).filter(|_| has_surplus)?;
    let lost = missing.div_ceil((sent / packets.max(1)).max(1));
    let received = packets.saturating_sub(lost);
    Some(Summary {
        packets_received: Some(received),
        packets_per_second: per_second(received, duration_ns),
        lost: Some(lost),
        loss_fraction: fraction(lost, packets),
        ..Summary::default()
    })
}

/// Removes the arrivals of a direction, which are known for only some of its flows.
pub(super) fn clear_arrivals(summary: &mut Summary) {
    *summary = Summary {
        goodput_bps: None,
        packets_per_second: None,
        bytes_received: None,
        packets_received: None,
        lost: None,
        loss_fraction: None,
        out_of_order: None,
        ipdv_ns: None,
        fairness_index: None,
        ..std::mem::take(summary)
    };
}

/// Returns a caveat if the counts of the two ends contradict each other, or need an explanation.
pub(super) fn check_counts(
    plan: &Plan,
    local: &Summary,
    remote: &Summary,
    report: &RemoteFigures,
    sends: bool,
) -> Option<Caveat> {
    let exceeds = |arrived: Option<u64>, sent: Option<u64>| {
        let (arrived, sent) = arrived.zip(sent)?;
        (arrived > sent.saturating_add(ROUNDING_BYTES)).then_some((arrived, sent))
    };
    let (arrived, sent) = match sends {
        true => (remote.bytes_received, local.bytes_sent),
        false => (local.bytes_received, remote.bytes_sent),
    };
    // Payload in flight at the start of counting is counted where it arrives only.
    if let Some((arrived, sent)) = exceeds(arrived, sent).filter(|_| plan.omit_ns == 0) {
        return Some(Caveat::new(
            CaveatId::CountsContradict,
            format!(
                "{arrived} B arrived by one end's count, but {sent} B were sent by the other's: one of \
                 them counts something else"
            ),
        ));
    }
    if sends && datagrams_contradict_bytes(plan, report) {
        return Some(Caveat::new(
            CaveatId::CountsContradict,
            format!(
                "the receiver reports {} B and {} datagrams of {} B: one of them counts something else, so what was \
                 lost is not known",
                report.bytes.unwrap_or(0),
                report.packets.unwrap_or(0),
                plan.payload_bytes
            ),
        ));
    }
    if sends && is_time_too_short(plan, local, report) {
        return Some(Caveat::new(
            CaveatId::CountsContradict,
            format!(
                "the receiver reports a time of {}, in which the datagrams were not even sent: the rates are over \
                 the time of this end",
                format_nanos(report.duration_ns.unwrap_or(0) as f64)
            ),
        ));
    }
    let gaps = if sends { report.lost } else { local.lost };
    let (lost, gaps) = remote.lost.zip(gaps)?;
    // Datagrams for which the sender's socket was full have numbers, but were not sent.
    let lost_on_path = lost.saturating_sub(local.unsent.unwrap_or(0));
    let uncounted = lost.checked_sub(gaps)?.min(lost_on_path);
    if uncounted == 0 {
        return None;
    }
    Some(Caveat::new(
        CaveatId::EndNotCounted,
        format!(
            "the receiver missed {gaps} datagrams by their sequence numbers; {uncounted} more did not arrive before \
             it stopped counting"
        ),
    ))
}

/// Sums what several flows sent and received, for a total of the remote end.
pub(super) fn sum_summaries<'a>(flows: impl Iterator<Item = &'a Summary> + Clone) -> Summary {
    fn total(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
        // One unknown part makes the sum unknown.
        values.reduce(|a, b| Some(a?.saturating_add(b?))).flatten()
    }
    Summary {
        duration_ns: flows.clone().filter_map(|flow| flow.duration_ns).max(),
        bytes_sent: total(flows.clone().map(|flow| flow.bytes_sent)),
        packets_sent: total(flows.clone().map(|flow| flow.packets_sent)),
        bytes_received: total(flows.clone().map(|flow| flow.bytes_received)),
        packets_received: total(flows.clone().map(|flow| flow.packets_received)),
        duplicates: total(flows.map(|flow| flow.duplicates)),
        ..Summary::default()
    }
}
