//! Makes the record from what both ends found.

use std::collections::BTreeMap;

use jiff::Timestamp;
use linerate_dialect::control::{FlowFigures, Outcome};
use linerate_metric::facts::Role;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Kind, Plan, Protocol};
use linerate_metric::record::{
    DirectionFigures, Doubt, HistogramData, RUN_SCHEMA, Record, Stream, Summary, Tool, new_id,
};

use crate::end::Ended;
use crate::error::MeasureError;

/// Samples above a percentile that make it more than the luck of a few.
const TAIL_SAMPLES: u64 = 10;

/// All that goes into a record.
pub struct Report {
    /// What was run, with every effective option.
    pub plan: Plan,
    /// When it began.
    pub started: Timestamp,
    /// Which end makes the record.
    pub role: Role,
    /// What both ends found.
    pub ended: Ended,
}

/// The record, and what ended the run before its results were exchanged.
#[must_use]
pub fn assemble(report: Report) -> (Record, Option<MeasureError>) {
    let Report {
        plan,
        started,
        role,
        ended,
    } = report;
    let Ended {
        own,
        peer,
        intervals,
        intervals_left_out,
        interrupted,
        failure,
    } = ended;
    let mut doubts = Vec::new();
    if let Some(failure) = &failure {
        doubts.push(Doubt::new(
            "peer-vanished",
            format!("{failure}; only this end's half is here"),
        ));
    }
    let interrupted = interrupted
        || failure.is_some()
        || peer.as_ref().is_some_and(|outcome| outcome.interrupted);
    let mut outcomes = vec![own];
    outcomes.extend(peer);
    // The client first, whichever end this is.
    outcomes.sort_by_key(|outcome| outcome.role);
    debug_assert!(outcomes.iter().any(|outcome| outcome.role == role));

    let directions = directions(&plan, &outcomes);
    let mut histograms = BTreeMap::new();
    let mut losses = Vec::new();
    let mut hosts = Vec::new();
    let mut cpu = Vec::new();
    for outcome in outcomes {
        histograms.extend(outcome.histograms);
        losses.extend(outcome.losses);
        hosts.push(outcome.host);
        cpu.extend(outcome.cpu);
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
                "{intervals_left_out} intervals were too many to keep: the figures hold all of the run, the series does not"
            ),
        ));
    }
    let mut summary = whole(&plan, &directions, &histograms);
    summary.cpu = cpu;
    doubts.extend(thin_tail(&summary));
    let mut plan = plan;
    if plan.protocol == Protocol::Tcp {
        // What the sending sockets really used.
        let used = directions
            .iter()
            .flat_map(|direction| &direction.streams)
            .find_map(|stream| stream.sender.as_ref()?.congestion_control.clone());
        plan.congestion_control = used.or(plan.congestion_control);
    }
    let record = Record {
        schema: RUN_SCHEMA.to_owned(),
        id: new_id(started),
        kind: plan.kind,
        started,
        interrupted,
        tool: Tool {
            name: "linerate".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        label: None,
        plan,
        hosts,
        summary,
        directions,
        intervals,
        histograms,
        losses,
        validity: doubts,
    };
    (record, failure)
}

/// The figures of each direction, from both ends' views of each flow.
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

/// Adds one end's view of a flow; each figure is known to one end only.
fn join(stream: &mut Stream, flow: &FlowFigures) {
    let (has, more) = (&mut stream.summary, &flow.stream.summary);
    stream.id = flow.stream.id;
    if flow.stream.sender.is_some() {
        stream.sender.clone_from(&flow.stream.sender);
    }
    if flow.stream.receiver.is_some() {
        stream.receiver.clone_from(&flow.stream.receiver);
    }
    // The receiver's time is the one that goodput refers to.
    if has.duration_ns.is_none() || more.goodput_bps.is_some() || more.rtt_ns.is_some() {
        has.duration_ns = more.duration_ns;
    }
    macro_rules! take {
        ($($field:ident)+) => { $(has.$field = more.$field.or(has.$field);)+ };
    }
    take!(goodput_bps offered_bps packets_per_second calls_per_second bytes_sent bytes_received
        packets_sent packets_received loss_fraction out_of_order duplicates ipdv_ns retransmits
        rtt_ns round_trips round_trips_per_second lost mismatched slow);
}

/// Adds flows up: counts and rates add, times do not.
fn sum<'a>(kind: Kind, parts: impl Iterator<Item = &'a Summary> + Clone) -> Summary {
    fn total<T: std::iter::Sum>(values: impl Iterator<Item = Option<T>>) -> Option<T> {
        let known: Vec<T> = values.flatten().collect();
        (!known.is_empty()).then(|| known.into_iter().sum())
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
    };
    let sent = lost.zip(arrived).map(|(lost, arrived)| lost + arrived);
    let variations: Vec<f64> = parts.clone().filter_map(|part| part.ipdv_ns).collect();
    Summary {
        duration_ns,
        goodput_bps: (kind == Kind::Throughput)
            .then(|| rate(bytes_received).map(|bytes| bytes * 8.0))
            .flatten(),
        // Each sender by its own clock: the receiver's window may be longer.
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
        ipdv_ns: (!variations.is_empty())
            .then(|| variations.iter().sum::<f64>() / variations.len() as f64),
        retransmits: total!(retransmits),
        rtt_ns: None,
        round_trips,
        round_trips_per_second: rate(round_trips),
        lost,
        mismatched: total!(mismatched),
        slow: total!(slow),
        cpu: Vec::new(),
    }
}

/// The figures of the run.
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
            // Each direction has its own clock: rates add, and are not made anew from a common one.
            let rates = several.iter().map(|d| d.summary.goodput_bps);
            whole.goodput_bps = rates.sum::<Option<f64>>();
            let rates = several.iter().map(|d| d.summary.packets_per_second);
            whole.packets_per_second = rates.sum::<Option<f64>>();
            let rates = several.iter().map(|d| d.summary.offered_bps);
            whole.offered_bps = rates.sum::<Option<f64>>();
            whole
        }
    };
    if let Some(times) = histograms.get("rtt_ns") {
        whole.rtt_ns = Histogram::from(times).summary();
    }
    whole
}

/// Says so when a high percentile rests on a few samples.
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
                "{} round trips leave fewer than {TAIL_SAMPLES} above {}: take these as single events",
                rtt.count,
                thin.join(", ")
            ),
        )
    })
}
