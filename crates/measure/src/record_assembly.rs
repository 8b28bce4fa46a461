//! Assembles the record from the results of both ends.

use std::collections::BTreeMap;

use jiff::Timestamp;
use linerate_dialect::control::{FlowFigures, Outcome};
use linerate_metric::call_times::Calls;
use linerate_metric::cost::fairness;
use linerate_metric::facts::Role;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, Stamping};
use linerate_metric::record::{
    DeviceTimes, DirectionFigures, Doubt, HistogramData, PlaceCounter, Record, Stream, Summary,
    new_id,
};

use crate::coordinator::Ended;
use crate::end_limits::{self, Seen};
use crate::error::MeasureError;
use crate::loss::{self, Ways};
use crate::rate_accuracy;
use crate::timestamps::Clocks;

/// Id of the warning that the other end sent no results.
pub const PEER_VANISHED: &str = "peer-vanished";

/// Returns the warning with its reason.
pub fn peer_vanished(why: impl std::fmt::Display) -> Doubt {
    Doubt::new(
        PEER_VANISHED,
        format!("{why}; the record has only this end's half"),
    )
}

/// Samples above a percentile that make it reliable.
const TAIL_SAMPLES: u64 = 10;

/// Inputs of a record.
pub struct Report {
    /// Plan with every effective option.
    pub plan: Plan,
    pub started: Timestamp,
    /// End that assembles the record.
    pub role: Role,
    pub ended: Ended,
    /// Links of the complete path with their counters, where it is visible.
    pub region: Option<(Ways, Vec<PlaceCounter>)>,
    pub ipv6: bool,
    /// Clock offsets of two hosts, for their timestamps.
    pub clocks: Option<Clocks>,
    /// Figures of a direction that are not known by flow.
    pub totals: Vec<(Direction, Summary)>,
    /// Text report of another tool's server.
    pub far_text: Option<String>,
}

/// Assembles the record; returns it with the error that ended the run before the exchange of
/// results.
#[must_use]
pub fn assemble(report: Report) -> (Record, Option<MeasureError>) {
    let Report {
        plan,
        started,
        role,
        ended,
        region,
        ipv6,
        clocks,
        totals,
        far_text,
    } = report;
    let Ended {
        own,
        peer,
        intervals,
        intervals_left_out,
        stamped,
        interrupted,
        failure,
    } = ended;
    let mut doubts = Vec::new();
    if let Some(failure) = &failure {
        doubts.push(peer_vanished(failure));
    }
    let interrupted = interrupted
        || failure.is_some()
        || peer.as_ref().is_some_and(|outcome| outcome.interrupted);
    let mut outcomes = vec![own];
    outcomes.extend(peer);
    // The client first, independent of the local role.
    outcomes.sort_by_key(|outcome| outcome.role);
    debug_assert!(outcomes.iter().any(|outcome| outcome.role == role));

    let mut directions = directions(&plan, &outcomes);
    for figures in &mut directions {
        for (_, total) in totals.iter().filter(|(of, _)| *of == figures.direction) {
            join_summary(&mut figures.summary, total);
        }
    }
    let seen: Vec<_> = outcomes
        .iter()
        .map(|outcome| Seen {
            role: outcome.role,
            boot_id: outcome.host.boot_id.as_deref(),
            cpu: outcome.cpu.as_ref(),
        })
        .collect();
    let limits = end_limits::doubts(&plan, &seen, &directions);
    let mut histograms = BTreeMap::new();
    let (ways, counters) = region.unwrap_or_else(|| between_ends(&outcomes, ipv6));
    let mtu = |direction: Direction| {
        let sender = match direction {
            Direction::Send => Role::Client,
            Direction::Receive => Role::Server,
        };
        let outcome = outcomes.iter().find(|outcome| outcome.role == sender)?;
        match &outcome.host.stack {
            Some(stack) => stack.key("mtu").parse().ok(),
            None => outcome.host.interface.as_ref()?.mtu,
        }
    };
    rate_accuracy::complete(&plan, &mut directions, &outcomes);
    let (losses, unexplained) = loss::account(&plan, &ways, &counters, &directions, mtu);
    // An aborted run has not reported all of its losses.
    doubts.extend(unexplained.into_iter().filter(|_| failure.is_none()));
    let mut slow = Vec::new();
    let mut hosts = Vec::new();
    let mut cpu = Vec::new();
    let (mut calls, mut far_calls, mut call_clocks) = (Calls::new(), Calls::new(), Vec::new());
    let mut verification = Vec::new();
    let mut memory = Vec::new();
    for outcome in outcomes {
        verification.extend(outcome.verification);
        match outcome.role {
            Role::Client => calls = outcome.calls,
            Role::Server => far_calls = outcome.calls,
        }
        call_clocks.extend(outcome.call_clock);
        // The client comes first: its own measurements take precedence.
        for (name, data) in outcome.histograms {
            histograms.entry(name).or_insert(data);
        }
        slow.extend(outcome.slow);
        hosts.push(outcome.host);
        cpu.extend(outcome.cpu);
        memory.extend(outcome.memory);
        for doubt in outcome.doubts {
            if !doubts.contains(&doubt) {
                doubts.push(doubt);
            }
        }
    }
    if intervals_left_out > 0 {
        doubts.push(Doubt::new(
            "series-cut",
            format!(
                "{intervals_left_out} intervals exceed the storage limit: the figures cover the complete run, the series does not"
            ),
        ));
    }
    let mut summary = whole(&plan, &directions, &histograms);
    summary.cpu = cpu;
    summary.memory = memory;
    // `shared-cores` gives the cause, so `core-shared` would repeat it.
    let crowded = doubts.iter().any(|doubt| doubt.doubt == "shared-cores");
    let limits = limits.into_iter();
    doubts.extend(limits.filter(|doubt| !(crowded && doubt.doubt == "core-shared")));
    doubts.extend(wrong_answers(&summary));
    doubts.extend(late_answers(&plan, &summary));
    doubts.extend(thin_tail(&summary));
    // A sender that was lost did not miss its rate.
    let missed = rate_accuracy::missed(&plan, &directions);
    doubts.extend(missed.into_iter().filter(|_| failure.is_none()));
    let mut plan = plan;
    if plan.protocol == Protocol::Tcp {
        // The congestion control that the sending sockets really used.
        let used = directions
            .iter()
            .flat_map(|direction| &direction.streams)
            .find_map(|stream| stream.sender.as_ref()?.congestion_control.clone());
        plan.congestion_control = used.or(plan.congestion_control);
    }
    let explained = stamped.map(|stamped| stamped.explain(clocks.as_ref(), plan.trace_on_ns));
    let (stages, stage_pass, timeline) = match explained {
        Some(explained) => (
            explained.stages,
            (!plan.stamps.is_none()).then_some(explained.pass),
            (plan.trace || plan.stamps == Stamping::Driver).then_some(explained.timeline),
        ),
        None => (Vec::new(), None, None),
    };
    let record = Record {
        interrupted,
        hosts,
        summary,
        directions,
        intervals,
        histograms,
        slow,
        losses,
        counters,
        calls,
        far_calls,
        verification,
        call_clocks,
        stages,
        stage_pass,
        timeline,
        far_text,
        validity: doubts,
        ..Record::new(new_id(started), started, plan)
    };
    (record, failure)
}

/// Returns the path between two ends that see only their own host, with the counters of both.
fn between_ends(outcomes: &[Outcome], ipv6: bool) -> (Ways, Vec<PlaceCounter>) {
    let of = |role| outcomes.iter().find(|outcome| outcome.role == role);
    let (near, far) = (of(Role::Client), of(Role::Server));
    fn interface(outcome: Option<&Outcome>) -> Option<&str> {
        Some(outcome?.host.interface.as_ref()?.name.as_str())
    }
    let boot = |outcome: Option<&Outcome>| outcome?.host.boot_id.clone();
    let one_machine = boot(near).is_some() && boot(near) == boot(far);
    let ways = Ways::between_ends(interface(near), interface(far), one_machine, ipv6);
    // An end reports only counters of its own host.
    let own = |outcome: &Outcome| {
        let name = loss::name_of(outcome.role);
        let counters = outcome.counters.iter();
        counters
            .filter(|counter| counter.host == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    (ways, outcomes.iter().flat_map(own).collect())
}

/// Returns the figures of each direction, merged from both ends' views of each flow.
fn directions(plan: &Plan, outcomes: &[Outcome]) -> Vec<DirectionFigures> {
    let mut out = Vec::new();
    for &direction in &plan.directions {
        let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
        let flows = outcomes.iter().flat_map(|outcome| &outcome.streams);
        for flow in flows.filter(|flow| flow.direction == direction) {
            let stream = streams.entry(flow.stream.id).or_default();
            join(stream, flow);
        }
        let streams: Vec<_> = streams.into_values().collect();
        out.push(DirectionFigures {
            direction,
            summary: sum(plan.kind, streams.iter().map(|stream| &stream.summary)),
            streams,
        });
    }
    out
}

/// Merges one end's view of a flow; each figure is known to one end only.
fn join(stream: &mut Stream, flow: &FlowFigures) {
    stream.id = flow.stream.id;
    if flow.stream.sender.is_some() {
        stream.sender.clone_from(&flow.stream.sender);
    }
    if flow.stream.receiver.is_some() {
        stream.receiver.clone_from(&flow.stream.receiver);
    }
    if flow.stream.mismatch.is_some() {
        stream.mismatch.clone_from(&flow.stream.mismatch);
    }
    join_summary(&mut stream.summary, &flow.stream.summary);
}

/// Merges the figures of another end, or of a total.
fn join_summary(has: &mut Summary, more: &Summary) {
    // Goodput refers to the receiver's time.
    if has.duration_ns.is_none() || more.goodput_bps.is_some() || more.rtt_ns.is_some() {
        has.duration_ns = more.duration_ns;
    }
    macro_rules! take {
        ($($field:ident)+) => { $(has.$field = more.$field.or(has.$field);)+ };
    }
    take!(goodput_bps offered_bps packets_per_second calls_per_second bytes_sent bytes_received
        packets_sent packets_received loss_fraction out_of_order duplicates reordering_extent ipdv_ns
        rate_error retransmits
        rtt_ns round_trips round_trips_per_second lost mismatched slow wrong_length wrong_content
        rtt_intended_ns unsent whole_ns connections_per_second);
}

/// Sum of figures; some come from the other end, so integers saturate.
trait Total {
    fn plus(self, other: Self) -> Self;
}

impl Total for u64 {
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl Total for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

/// Adds up flows: counts and rates are summed, times are not.
fn sum<'a>(kind: Kind, parts: impl Iterator<Item = &'a Summary> + Clone) -> Summary {
    fn total<T: Total>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
        values.flatten().reduce(Total::plus)
    }
    macro_rules! total {
        ($field:ident) => {
            total(parts.clone().map(|part| part.$field))
        };
    }
    let duration_ns = parts.clone().filter_map(|part| part.duration_ns).max();
    let bytes_received: Option<u64> = total!(bytes_received);
    let bytes_sent: Option<u64> = total!(bytes_sent);
    let (lost, packets_received): (Option<u64>, Option<u64>) =
        (total!(lost), total!(packets_received));
    let duplicates: Option<u64> = total!(duplicates);
    let round_trips: Option<u64> = total!(round_trips);
    let seconds = duration_ns.filter(|&ns| ns > 0).map(|ns| ns as f64 / 1e9);
    let rate = |count: Option<u64>| Some(count? as f64 / seconds?);
    let arrived = match kind {
        Kind::Throughput => packets_received.map(|n| n.saturating_sub(duplicates.unwrap_or(0))),
        Kind::Latency => round_trips,
        Kind::Forward | Kind::Generate | Kind::Stack => packets_received,
    };
    let sent = lost.zip(arrived).map(|(lost, arrived)| lost.plus(arrived));
    let variations: Vec<f64> = parts.clone().filter_map(|part| part.ipdv_ns).collect();
    Summary {
        duration_ns,
        goodput_bps: (kind == Kind::Throughput)
            .then(|| rate(bytes_received).map(|bytes| bytes * 8.0))
            .flatten(),
        // Each sender has its own clock: the receiver's window may be longer.
        offered_bps: total!(offered_bps),
        packets_per_second: rate(packets_received),
        calls_per_second: total!(calls_per_second),
        bytes_sent,
        bytes_received,
        packets_sent: total!(packets_sent),
        packets_received,
        loss_fraction: lost
            .zip(sent)
            .filter(|&(_, sent)| sent > 0)
            .map(|(lost, sent)| lost as f64 / sent as f64),
        out_of_order: total!(out_of_order),
        duplicates,
        reordering_extent: parts
            .clone()
            .filter_map(|part| part.reordering_extent)
            .max(),
        delay_variation_ns: None,
        one_way_delay_ns: None,
        rate_error: None,
        lateness_ns: None,
        arrival_gap_ns: None,
        ipdv_ns: (!variations.is_empty())
            .then(|| variations.iter().sum::<f64>() / variations.len() as f64),
        retransmits: total!(retransmits),
        rtt_ns: None,
        round_trips,
        round_trips_per_second: rate(round_trips),
        lost,
        mismatched: total!(mismatched),
        slow: total!(slow),
        wrong_length: total!(wrong_length),
        wrong_content: total!(wrong_content),
        rtt_intended_ns: None,
        unsent: total!(unsent),
        whole_ns: None,
        device: None,
        connections_per_second: total!(connections_per_second),
        fairness_index: (kind == Kind::Throughput)
            .then(|| {
                parts
                    .clone()
                    .map(|part| part.goodput_bps)
                    .collect::<Option<Vec<_>>>()
            })
            .flatten()
            .and_then(|rates| fairness(&rates)),
        cpu: Vec::new(),
        memory: Vec::new(),
    }
}

/// Returns the figures of the run.
fn whole(
    plan: &Plan,
    directions: &[DirectionFigures],
    histograms: &BTreeMap<String, HistogramData>,
) -> Summary {
    let mut whole = match directions {
        [only] => only.summary.clone(),
        several => {
            let mut whole = sum(
                plan.kind,
                several.iter().map(|direction| &direction.summary),
            );
            // Each direction has its own clock: their rates are summed, not computed from a common
            // time.
            let rates = several.iter().map(|d| d.summary.goodput_bps);
            whole.goodput_bps = rates.sum::<Option<f64>>();
            let rates = several.iter().map(|d| d.summary.packets_per_second);
            whole.packets_per_second = rates.sum::<Option<f64>>();
            let rates = several.iter().map(|d| d.summary.offered_bps);
            whole.offered_bps = rates.sum::<Option<f64>>();
            // Fairness is defined among the streams of one direction.
            whole.fairness_index = None;
            whole
        }
    };
    let of = |name: &str| Histogram::from(histograms.get(name)?).summary();
    if let Some(times) = of("rtt_ns") {
        whole.rtt_ns = Some(times);
    }
    whole.rtt_intended_ns = of("rtt_intended_ns").or(whole.rtt_intended_ns);
    whole.whole_ns = of("whole_ns").or(whole.whole_ns);
    whole.device = (of("device_ns").zip(of("outside_ns"))).map(|(device_ns, around_ns)| {
        let all = device_ns.mean + around_ns.mean;
        Box::new(DeviceTimes {
            device_ns,
            around_ns,
            // Round trips of zero duration have no fraction.
            share: if all > 0.0 { device_ns.mean / all } else { 0.0 },
        })
    });
    whole
}

/// Warns when responses differ from their requests.
fn wrong_answers(summary: &Summary) -> Option<Doubt> {
    // Only round trips have both counts.
    let (length, content) = (summary.wrong_length?, summary.wrong_content?);
    let answers = summary.round_trips.unwrap_or(0);
    (length + content > 0).then(|| {
        Doubt::new(
            "wrong-answers",
            format!(
                "{} of {answers} responses differ from their requests: {length} in length, {content} in content",
                length + content,
            ),
        )
    })
}

/// Warns when responses arrived after their timeout.
fn late_answers(plan: &Plan, summary: &Summary) -> Option<Doubt> {
    // With several outstanding requests, responses may be reordered in time.
    if plan.kind != Kind::Latency || plan.round_trip.is_open() {
        return None;
    }
    let lost = summary.lost.filter(|&lost| lost > 0)?;
    let late = summary.out_of_order.filter(|&late| late > 0)?.min(lost);
    Some(Doubt::new(
        "late-answers",
        format!(
            "{late} of the {lost} requests that count as lost had a response after the timeout: the \
             server stalled, or a queue delayed them; a longer --timeout counts them"
        ),
    ))
}

/// Warns when a high percentile has few samples.
fn thin_tail(summary: &Summary) -> Option<Doubt> {
    let rtt = summary.rtt_ns.as_ref()?;
    let thin: Vec<&str> = [("p99", 100), ("p99.9", 1_000)]
        .into_iter()
        .filter(|(_, one_in)| rtt.count < TAIL_SAMPLES * one_in)
        .map(|(name, _)| name)
        .collect();
    (!thin.is_empty()).then(|| {
        Doubt::new(
            "thin-tail",
            format!(
                "{} round trips have fewer than {TAIL_SAMPLES} samples above {}: these are single events",
                rtt.count,
                thin.join(", ")
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_and_late_answers_are_told() {
        let told = |doubt: Option<Doubt>| doubt.map(|doubt| (doubt.doubt, doubt.why));
        let mut summary = Summary {
            round_trips: Some(1_000),
            wrong_length: Some(0),
            wrong_content: Some(0),
            lost: Some(4),
            out_of_order: Some(0),
            ..Summary::default()
        };
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far".to_owned());
        assert_eq!(told(wrong_answers(&summary)), None);
        assert_eq!(told(late_answers(&plan, &summary)), None);
        (summary.wrong_length, summary.wrong_content) = (Some(20), Some(1));
        summary.out_of_order = Some(3);
        let (id, text) = told(wrong_answers(&summary)).expect("a doubt");
        assert_eq!(id, "wrong-answers");
        assert!(text.starts_with("21 of 1000 responses"), "{text}");
        let (id, text) = told(late_answers(&plan, &summary)).expect("a doubt");
        assert_eq!(id, "late-answers");
        assert!(text.starts_with("3 of the 4 requests"), "{text}");
        // Eight outstanding requests may overtake each other in time.
        plan.round_trip.outstanding = 8;
        assert_eq!(told(late_answers(&plan, &summary)), None);
    }
}
