//! Comparison of the remote end's report with the counts of this end.

use linerate_dialect::remote_report::FarFigures;
use linerate_metric::plan::{Plan, Protocol};
use linerate_metric::record::{Doubt, Summary};

use super::{per_second, share};

/// Tolerance for rounding between two counts of the same bytes: reports in text round to 100 bytes
/// at best.
const ROUNDING_BYTES: u64 = 1024;

/// Part of the sent datagrams, one in this many, that may have been in flight when the remote end
/// stopped counting; more than that was lost.
const ON_ITS_WAY: u64 = 20;

/// Returns the figures of what this end sent, as counted by the remote end.
pub(super) fn arrived(
    plan: &Plan,
    own: &Summary,
    said: &FarFigures,
    stopped_first: bool,
) -> Summary {
    let udp = plan.protocol == Protocol::Udp;
    // Without a time in the report, the time of this end differs by a round trip only.
    let duration_ns = said.duration_ns.or(own.duration_ns);
    let packets = said.packets.filter(|_| udp);
    // Sequence numbers show gaps, but not what is missing after the last one received.
    let sent = own.packets_sent.filter(|&sent| {
        // Datagrams in flight when the remote end stopped counting are not lost; most of a test is
        // never in flight.
        let counted = packets
            .zip(said.lost)
            .map_or(0, |(came, lost)| came.saturating_add(lost));
        !stopped_first || sent.saturating_sub(counted) > sent / ON_ITS_WAY
    });
    let lost = match (sent, packets) {
        (Some(sent), Some(arrived)) => Some(sent.saturating_sub(arrived)),
        _ => said.lost.filter(|_| udp),
    };
    let all = sent.or_else(|| Some(packets?.saturating_add(lost?)));
    Summary {
        duration_ns,
        bytes_received: said.bytes,
        goodput_bps: (said.bytes)
            .and_then(|bytes| per_second(bytes, duration_ns))
            .map(|bytes| bytes * 8.0),
        packets_received: packets,
        packets_per_second: packets.and_then(|packets| per_second(packets, duration_ns)),
        lost,
        loss_fraction: lost.zip(all).and_then(|(lost, all)| share(lost, all)),
        out_of_order: said.out_of_order,
        ipdv_ns: said.ipdv_ns,
        ..Summary::default()
    }
}

/// Returns the figures of what the remote end sent, with the loss that follows from the counts of
/// this end.
pub(super) fn departed(own: &Summary, said: &FarFigures) -> Summary {
    let unique =
        (own.packets_received).map(|packets| packets.saturating_sub(own.duplicates.unwrap_or(0)));
    let lost = said
        .packets
        .zip(unique)
        .map(|(sent, here)| sent.saturating_sub(here));
    Summary {
        duration_ns: said.duration_ns,
        bytes_sent: said.bytes,
        packets_sent: said.packets,
        offered_bps: (said.bytes)
            .and_then(|bytes| per_second(bytes, said.duration_ns))
            .map(|bytes| bytes * 8.0),
        lost,
        loss_fraction: (lost.zip(said.packets)).and_then(|(lost, sent)| share(lost, sent)),
        retransmits: said.retransmits,
        ..Summary::default()
    }
}

/// Returns the offered load of a datagram sender without a report, from sequence numbers: missing
/// datagrams were sent, too, all of it in the time of this end.
pub(super) fn passed(plan: &Plan, own: &Summary) -> Option<f64> {
    let (bytes, packets, lost) = (own.bytes_received?, own.packets_received?, own.lost?);
    if plan.protocol != Protocol::Udp || packets == 0 {
        return None;
    }
    let unique = packets.saturating_sub(own.duplicates.unwrap_or(0));
    let sent = per_second(unique.saturating_add(lost), own.duration_ns)?;
    Some(sent * bytes as f64 / packets as f64 * 8.0)
}

/// Returns the loss over several flows where the remote end counted datagrams of one flow for
/// another, as reference iperf2 does with those that arrive while it opens flows: the sums of bytes
/// are right, the numbers of single flows are not.
pub(super) fn mixed_up<'a>(
    flows: impl Iterator<Item = (&'a Summary, &'a Summary)>,
) -> Option<Summary> {
    let (mut sent, mut arrived, mut packets, mut more) = (0_u64, 0_u64, 0_u64, false);
    let mut duration_ns = None;
    for (own, theirs) in flows {
        let (there, here) = theirs.bytes_received.zip(own.bytes_sent)?;
        more |= there > here;
        sent = sent.saturating_add(here);
        arrived = arrived.saturating_add(there);
        packets = packets.saturating_add(own.packets_sent?);
        duration_ns = duration_ns.max(theirs.duration_ns);
    }
    let missing = sent.checked_sub(arrived).filter(|_| more)?;
    let lost = missing.div_ceil((sent / packets.max(1)).max(1));
    let came = packets.saturating_sub(lost);
    Some(Summary {
        packets_received: Some(came),
        packets_per_second: per_second(came, duration_ns),
        lost: Some(lost),
        loss_fraction: share(lost, packets),
        ..Summary::default()
    })
}

/// Removes the arrivals of a direction, which are known for only some of its flows.
pub(super) fn forget_arrivals(summary: &mut Summary) {
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
pub(super) fn contradiction(
    plan: &Plan,
    own: &Summary,
    theirs: &Summary,
    said: &FarFigures,
    sends: bool,
) -> Option<Doubt> {
    let more = |arrived: Option<u64>, sent: Option<u64>| {
        let (arrived, sent) = arrived.zip(sent)?;
        (arrived > sent.saturating_add(ROUNDING_BYTES)).then_some((arrived, sent))
    };
    let (arrived, sent) = match sends {
        true => (theirs.bytes_received, own.bytes_sent),
        false => (own.bytes_received, theirs.bytes_sent),
    };
    // Payload in flight at the start of counting is counted where it arrives only.
    if let Some((arrived, sent)) = more(arrived, sent).filter(|_| plan.omit_ns == 0) {
        return Some(Doubt::new(
            "counts-contradict",
            format!(
                "{arrived} B arrived by one end's count, but {sent} B were sent by the other's: one of \
                 them counts something else"
            ),
        ));
    }
    let (lost, gaps) = theirs.lost.zip(said.lost.filter(|_| sends))?;
    let unseen = lost.checked_sub(gaps).filter(|&unseen| unseen > 0)?;
    Some(Doubt::new(
        "end-not-counted",
        format!(
            "the receiver missed {gaps} datagrams by their sequence numbers; {unseen} more did not arrive before \
             it stopped counting"
        ),
    ))
}

/// Sums what several flows sent and received, for a total of the remote end.
pub(super) fn sum_of<'a>(flows: impl Iterator<Item = &'a Summary> + Clone) -> Summary {
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
