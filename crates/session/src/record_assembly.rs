//! Assembles the record from the results of both ends.

use std::collections::BTreeMap;

use jiff::Timestamp;
use linerate_protocol::control::{EndResults, FlowFigures};
use linerate_record::call_times::CallsByName;
use linerate_record::cost::fairness_index;
use linerate_record::facts::Role;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, Plan, RunKind, TimestampLevel, TransportProtocol};
use linerate_record::record::{
    Caveat, CounterDelta, DeviceTimes, DirectionFigures, Record, StreamFigures, Summary, new_id,
};
use linerate_stats::histogram::{Histogram, HistogramData};
use linerate_stats::units::count_of;
use linerate_workload::timestamps::ClockOffsets;

use crate::coordinator::RunResults;
use crate::error::SessionError;
use crate::loss::PathLinks;
use crate::tool_limit::EndCpuCost;
use crate::{loss, rate_accuracy, tool_limit};

/// Returns the warning that the other end sent no results.
pub fn peer_lost_warning(why: impl std::fmt::Display) -> Caveat {
    Caveat::new(
        CaveatId::PeerVanished,
        format!("{why}; no data of the other end"),
    )
}

/// Samples above a percentile that make it reliable.
const MIN_TAIL_SAMPLES: u64 = 10;

/// Inputs of a record.
pub struct RecordInputs {
    /// Plan with every effective option.
    pub plan: Plan,
    pub started_at: Timestamp,
    /// End that assembles the record.
    pub role: Role,
    pub results: RunResults,
    /// Links of the complete path with their counters, where it is visible.
    pub path: Option<(PathLinks, Vec<CounterDelta>)>,
    pub ipv6: bool,
    /// Clock offsets of two hosts, for their timestamps.
    pub clocks: Option<ClockOffsets>,
    /// Figures of a direction that are not known by flow.
    pub totals: Vec<(Direction, Summary)>,
    /// Text report of another tool's server.
    pub peer_text: Option<String>,
}

/// Assembles the record; returns it with the error that ended the run before the exchange of
/// results.
#[must_use]
pub fn assemble_record(inputs: RecordInputs) -> (Record, Option<SessionError>) {
    let RecordInputs {
        plan,
        started_at,
        role,
        results,
        path: lab_path,
        ipv6,
        clocks,
        totals,
        peer_text,
    } = inputs;
    let RunResults {
        local: local_results,
        peer: peer_results,
        intervals,
        intervals_omitted,
        timestamps,
        interrupted,
        counted_from_ns: _,
        connection_refused: _,
        failure,
    } = results;
    let mut caveats = Vec::new();
    if let Some(failure) = &failure {
        caveats.push(peer_lost_warning(failure));
    }
    let interrupted = interrupted
        || failure.is_some()
        || peer_results.as_ref().is_some_and(|end| end.interrupted);
    let mut ends = vec![local_results];
    ends.extend(peer_results);
    // The client first, independent of the local role.
    ends.sort_by_key(|end| end.role);
    debug_assert!(ends.iter().any(|end| end.role == role));

    let mut directions = direction_figures(&plan, &ends);
    for figures in &mut directions {
        for (_, total) in totals
            .iter()
            .filter(|(total_direction, _)| *total_direction == figures.direction)
        {
            merge_summary(&mut figures.summary, total);
        }
    }
    let end_limits: Vec<_> = ends
        .iter()
        .map(|end| EndCpuCost {
            role: end.role,
            boot_id: end.host.boot_id.as_deref(),
            cpu: end.cpu.as_ref(),
        })
        .collect();
    let limits = tool_limit::limit_warnings(&plan, &end_limits, &directions);
    let mut histograms = BTreeMap::new();
    let (path, counters) = lab_path.unwrap_or_else(|| local_path(&ends, ipv6));
    let mtu = |direction: Direction| {
        let sender = match direction {
            Direction::Send => Role::Client,
            Direction::Receive => Role::Server,
        };
        let end = ends.iter().find(|end| end.role == sender)?;
        match &end.host.stack {
            Some(stack) => stack.config_value("mtu").parse().ok(),
            None => end.host.interface.as_ref()?.mtu,
        }
    };
    rate_accuracy::add_distributions(&plan, &mut directions, &ends);
    let (losses, loss_warnings) = loss::account_losses(&plan, &path, &counters, &directions, mtu);
    // An aborted run has not reported all of its losses.
    caveats.extend(loss_warnings.into_iter().filter(|_| failure.is_none()));
    let mut slow = Vec::new();
    let mut hosts = Vec::new();
    let mut cpu = Vec::new();
    let (mut calls, mut server_calls, mut call_clocks) =
        (CallsByName::new(), CallsByName::new(), Vec::new());
    let mut verification = Vec::new();
    let mut memory = Vec::new();
    for end in ends {
        verification.extend(end.verification);
        match end.role {
            Role::Client => calls = end.calls,
            Role::Server => server_calls = end.calls,
        }
        call_clocks.extend(end.call_clock);
        // The client comes first: its own measurements take precedence.
        for (name, data) in end.histograms {
            histograms.entry(name).or_insert(data);
        }
        slow.extend(end.slow);
        hosts.push(end.host);
        cpu.extend(end.cpu);
        memory.extend(end.memory);
        for caveat in end.caveats {
            if !caveats.contains(&caveat) {
                caveats.push(caveat);
            }
        }
    }
    if intervals_omitted > 0 {
        caveats.push(Caveat::new(
            CaveatId::SeriesCut,
            format!(
                "{intervals_omitted} intervals exceed the storage limit: the figures cover the complete run, the series does not"
            ),
        ));
    }
    let mut summary = run_summary(&plan, &directions, &histograms);
    summary.cpu = cpu;
    summary.memory = memory;
    // `shared-cores` gives the cause, so `core-shared` would repeat it.
    let shared_cores = caveats
        .iter()
        .any(|caveat| caveat.id == CaveatId::SharedCores);
    let limits = limits.into_iter();
    caveats.extend(limits.filter(|caveat| !(shared_cores && caveat.id == CaveatId::CoreShared)));
    caveats.extend(wrong_responses(&summary));
    caveats.extend(late_responses(&plan, &summary));
    caveats.extend(thin_tail(&summary));
    // A sender that was lost did not miss its rate.
    let rate_warnings = rate_accuracy::missed_rate_warnings(&plan, &directions);
    caveats.extend(rate_warnings.into_iter().filter(|_| failure.is_none()));
    let mut plan = plan;
    if plan.protocol == TransportProtocol::Tcp {
        // The congestion control that the sending sockets really used.
        let used_by_senders = directions
            .iter()
            .flat_map(|direction| &direction.streams)
            .find_map(|stream| stream.sender.as_ref()?.congestion_control.clone());
        plan.congestion_control = used_by_senders.or(plan.congestion_control);
    }
    let analysis =
        timestamps.map(|timestamps| timestamps.analyse(clocks.as_ref(), plan.trace_on_ns));
    let (stages, stage_pass, timeline) = match analysis {
        Some(analysis) => (
            analysis.stages,
            (!plan.timestamps.is_none()).then_some(analysis.pass),
            (plan.trace || plan.timestamps == TimestampLevel::Driver).then_some(analysis.timeline),
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
        server_calls,
        verification,
        call_clocks,
        stages,
        stage_pass,
        timeline,
        server_text: peer_text,
        validity: caveats,
        ..Record::new(new_id(started_at), started_at, plan)
    };
    (record, failure)
}

/// Returns the path between two ends that see only their own host, with the counters of both.
fn local_path(ends: &[EndResults], ipv6: bool) -> (PathLinks, Vec<CounterDelta>) {
    let by_role = |role| ends.iter().find(|end| end.role == role);
    let (client, server) = (by_role(Role::Client), by_role(Role::Server));
    fn interface(end: Option<&EndResults>) -> Option<&str> {
        Some(end?.host.interface.as_ref()?.name.as_str())
    }
    let boot = |end: Option<&EndResults>| end?.host.boot_id.clone();
    let one_machine = boot(client).is_some() && boot(client) == boot(server);
    let path = PathLinks::between_ends(interface(client), interface(server), one_machine, ipv6);
    // An end reports only counters of its own host.
    let own_counters = |end: &EndResults| {
        let name = end.role.as_str();
        let counters = end.counters.iter();
        counters
            .filter(|counter| counter.host == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    (path, ends.iter().flat_map(own_counters).collect())
}

/// Returns the figures of each direction, merged from both ends' views of each flow.
fn direction_figures(plan: &Plan, ends: &[EndResults]) -> Vec<DirectionFigures> {
    let mut out = Vec::new();
    for &direction in &plan.directions {
        let mut streams: BTreeMap<u32, StreamFigures> = BTreeMap::new();
        let flows = ends.iter().flat_map(|end| &end.streams);
        for flow in flows.filter(|flow| flow.direction == direction) {
            let stream = streams.entry(flow.stream.id).or_default();
            merge_flow(stream, flow);
        }
        let streams: Vec<_> = streams.into_values().collect();
        out.push(DirectionFigures {
            direction,
            summary: sum_summaries(plan.kind, streams.iter().map(|stream| &stream.summary)),
            streams,
        });
    }
    out
}

/// Merges one end's view of a flow; each figure is known to one end only.
fn merge_flow(stream: &mut StreamFigures, flow: &FlowFigures) {
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
    merge_summary(&mut stream.summary, &flow.stream.summary);
}

/// Merges the figures of another end, or of a total.
fn merge_summary(summary: &mut Summary, more: &Summary) {
    // Goodput refers to the receiver's time.
    if summary.duration_ns.is_none() || more.goodput_bps.is_some() || more.rtt_ns.is_some() {
        summary.duration_ns = more.duration_ns;
    }
    macro_rules! merge {
        ($($field:ident)+) => { $(summary.$field = more.$field.or(summary.$field);)+ };
    }
    merge!(goodput_bps offered_bps packets_per_second calls_per_second bytes_sent bytes_received
        packets_sent packets_received loss_fraction out_of_order duplicates reordering_extent ipdv_ns
        rate_error retransmits
        rtt_ns round_trips round_trips_per_second lost mismatched slow wrong_length wrong_content
        rtt_intended_ns unsent whole_ns connections_per_second);
}

/// Sum of figures; some come from the other end, so integers saturate.
trait SaturatingSum {
    fn add(self, other: Self) -> Self;
}

impl SaturatingSum for u64 {
    fn add(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl SaturatingSum for f64 {
    fn add(self, other: Self) -> Self {
        self + other
    }
}

/// Adds up flows: counts and rates are summed, times are not.
fn sum_summaries<'a>(kind: RunKind, flows: impl Iterator<Item = &'a Summary> + Clone) -> Summary {
    fn total<T: SaturatingSum>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
        values.flatten().reduce(SaturatingSum::add)
    }
    macro_rules! total {
        ($field:ident) => {
            total(flows.clone().map(|part| part.$field))
        };
    }
    let duration_ns = flows.clone().filter_map(|flow| flow.duration_ns).max();
    let bytes_received: Option<u64> = total!(bytes_received);
    let bytes_sent: Option<u64> = total!(bytes_sent);
    let (lost, packets_received): (Option<u64>, Option<u64>) =
        (total!(lost), total!(packets_received));
    let duplicates: Option<u64> = total!(duplicates);
    let round_trips: Option<u64> = total!(round_trips);
    let seconds = duration_ns.filter(|&ns| ns > 0).map(|ns| ns as f64 / 1e9);
    let rate = |count: Option<u64>| Some(count? as f64 / seconds?);
    let delivered = match kind {
        RunKind::Throughput => packets_received.map(|n| n.saturating_sub(duplicates.unwrap_or(0))),
        RunKind::Latency => round_trips,
        RunKind::Forward | RunKind::Generate | RunKind::Stack => packets_received,
    };
    let sent = lost
        .zip(delivered)
        .map(|(lost, delivered)| lost.add(delivered));
    let variations: Vec<f64> = flows.clone().filter_map(|flow| flow.ipdv_ns).collect();
    Summary {
        duration_ns,
        goodput_bps: (kind == RunKind::Throughput)
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
        reordering_extent: flows
            .clone()
            .filter_map(|flow| flow.reordering_extent)
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
        fairness_index: (kind == RunKind::Throughput)
            .then(|| {
                flows
                    .clone()
                    .map(|flow| flow.goodput_bps)
                    .collect::<Option<Vec<_>>>()
            })
            .flatten()
            .and_then(|rates| fairness_index(&rates)),
        cpu: Vec::new(),
        memory: Vec::new(),
    }
}

/// Returns the figures of the run.
fn run_summary(
    plan: &Plan,
    directions: &[DirectionFigures],
    histograms: &BTreeMap<String, HistogramData>,
) -> Summary {
    let mut summary = match directions {
        [only] => only.summary.clone(),
        many => {
            let mut summary =
                sum_summaries(plan.kind, many.iter().map(|direction| &direction.summary));
            // Each direction has its own clock: their rates are summed, not computed from a common
            // time.
            let rates = many.iter().map(|d| d.summary.goodput_bps);
            summary.goodput_bps = rates.sum::<Option<f64>>();
            let rates = many.iter().map(|d| d.summary.packets_per_second);
            summary.packets_per_second = rates.sum::<Option<f64>>();
            let rates = many.iter().map(|d| d.summary.offered_bps);
            summary.offered_bps = rates.sum::<Option<f64>>();
            // Fairness is defined among the streams of one direction.
            summary.fairness_index = None;
            summary
        }
    };
    let summary_of = |name: &str| Histogram::from(histograms.get(name)?).summary();
    if let Some(times) = summary_of("rtt_ns") {
        summary.rtt_ns = Some(times);
    }
    summary.rtt_intended_ns = summary_of("rtt_intended_ns").or(summary.rtt_intended_ns);
    summary.whole_ns = summary_of("whole_ns").or(summary.whole_ns);
    summary.device =
        (summary_of("device_ns").zip(summary_of("outside_ns"))).map(|(device_ns, around_ns)| {
            let all = device_ns.mean + around_ns.mean;
            Box::new(DeviceTimes {
                device_ns,
                outside_ns: around_ns,
                // Round trips of zero duration have no fraction.
                share: if all > 0.0 { device_ns.mean / all } else { 0.0 },
            })
        });
    summary
}

/// Warns when responses differ from their requests.
fn wrong_responses(summary: &Summary) -> Option<Caveat> {
    // Only round trips have both counts.
    let (length, content) = (summary.wrong_length?, summary.wrong_content?);
    let responses = summary.round_trips.unwrap_or(0);
    (length + content > 0).then(|| {
        Caveat::new(
            CaveatId::WrongResponses,
            format!(
                "{} of {responses} responses differ from their requests: {length} in length, {content} in content",
                length + content,
            ),
        )
    })
}

/// Warns when responses arrived after their timeout.
fn late_responses(plan: &Plan, summary: &Summary) -> Option<Caveat> {
    // With several outstanding requests, responses may be reordered in time.
    if plan.kind != RunKind::Latency || plan.round_trip.is_pipelined() {
        return None;
    }
    let lost = summary.lost.filter(|&lost| lost > 0)?;
    let late = summary.out_of_order.filter(|&late| late > 0)?.min(lost);
    Some(Caveat::new(
        CaveatId::LateResponses,
        format!(
            "{late} of the {lost} requests that count as lost had a response after the timeout: the \
             server stalled, or a queue delayed them; a longer --timeout counts them"
        ),
    ))
}

/// Warns when a high percentile has few samples.
fn thin_tail(summary: &Summary) -> Option<Caveat> {
    let rtt = summary.rtt_ns.as_ref()?;
    let unreliable: Vec<&str> = [("p99", 100), ("p99.9", 1_000)]
        .into_iter()
        .filter(|(_, one_in)| rtt.count < MIN_TAIL_SAMPLES * one_in)
        .map(|(name, _)| name)
        .collect();
    (!unreliable.is_empty()).then(|| {
        Caveat::new(
            CaveatId::ThinTail,
            format!(
                "only {}: fewer than {MIN_TAIL_SAMPLES} are above {}, so {} and higher are unreliable",
                count_of(rtt.count, "round trip"),
                unreliable[0],
                unreliable[0]
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_and_late_responses_are_reported() {
        let id_and_text = |caveat: Option<Caveat>| {
            caveat.map(|caveat| (caveat.id.known().unwrap(), caveat.reason))
        };
        let mut summary = Summary {
            round_trips: Some(1_000),
            wrong_length: Some(0),
            wrong_content: Some(0),
            lost: Some(4),
            out_of_order: Some(0),
            ..Summary::default()
        };
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far".to_owned());
        assert_eq!(id_and_text(wrong_responses(&summary)), None);
        assert_eq!(id_and_text(late_responses(&plan, &summary)), None);
        (summary.wrong_length, summary.wrong_content) = (Some(20), Some(1));
        summary.out_of_order = Some(3);
        let (id, text) = id_and_text(wrong_responses(&summary)).expect("a caveat");
        assert_eq!(id, CaveatId::WrongResponses);
        assert!(text.starts_with("21 of 1000 responses"), "{text}");
        let (id, text) = id_and_text(late_responses(&plan, &summary)).expect("a caveat");
        assert_eq!(id, CaveatId::LateResponses);
        assert!(text.starts_with("3 of the 4 requests"), "{text}");
        // Eight outstanding requests may overtake each other in time.
        plan.round_trip.outstanding = 8;
        assert_eq!(id_and_text(late_responses(&plan, &summary)), None);
    }
}
