//! Record of a test with another tool, from what one end has counted.
//!
//! Other tools report little, and each something else. So both halves of the record are built from
//! one end: its own counts, and the [`ReportCommand`] of the protocol. Figures that neither has
//! stay absent.

mod remote_figures;

use std::collections::BTreeMap;

use jiff::Timestamp;
use linerate_protocol::control::{EndResults, FlowFigures};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_record::record::{
    Caveat, CounterDelta, Interval, MAX_SERVER_TEXT_BYTES, Record, SocketFacts, StreamFigures,
    Summary,
};
use linerate_stats::histogram::{Histogram, HistogramData};
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::timestamps::TimestampPass;
pub use remote_figures::lost_of_total;
use remote_figures::{
    arrival_summary, check_counts, check_time, clear_arrivals, clear_impossible_losses,
    departure_summary, mixed_flow_loss, offered_load_by_numbers, sum_summaries,
};

use crate::coordinator::RunResults;
use crate::error::SessionError;
use crate::loss::PathLinks;
use crate::rate_accuracy;
use crate::record_assembly::{RecordInputs, assemble_record};

/// Test with another tool, as counted by one end.
pub struct InteropTest {
    /// Protocol of the remote end, by its name in [`linerate_protocol::sniff::PROTOCOLS`].
    pub protocol: &'static str,
    /// Plan with every effective option; directions are the client's, at both ends.
    pub plan: Plan,
    /// Start of the payload.
    pub started: Timestamp,
    /// Results of this end: built by [`local_results`], with the flows from
    /// [`FlowCounts::figures`].
    pub local_results: EndResults,
    /// Interval series of this end; directions are the client's.
    pub intervals: Vec<Interval>,
    /// Number of intervals above the storage limit.
    pub dropped_intervals: u64,
    /// Report of the remote end. Its directions are those of this end: `Direction::Send` is what
    /// this end sent.
    pub remote_report: RemoteReport,
    /// TCP payload that the remote kernel acknowledged, by flow number: all that is known of the
    /// arrivals at a remote end without counts.
    pub acknowledged: BTreeMap<u32, AckedPayload>,
    /// Time from which this end counted, on the monotonic clock.
    pub counted_from_ns: Nanos,
    /// Error that ended the test early.
    pub failure: Option<SessionError>,
    /// True if the ends use IPv6.
    pub ipv6: bool,
    /// Counters along the whole path, where it is visible.
    pub path_counters: Option<(PathLinks, Vec<CounterDelta>)>,
    /// Timestamps of this end's calls, if a timeline was requested.
    pub timestamps: Option<Box<TimestampPass>>,
}

/// Payload of a TCP flow that the remote kernel acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckedPayload {
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Time of the last acknowledgement, on the monotonic clock.
    pub last_ack_ns: Nanos,
}

/// Counts of one flow at one end; what that end did not count is absent.
#[derive(Clone, Debug)]
pub struct FlowCounts {
    /// Flow number of the protocol, unique within the test.
    pub id: u32,
    /// Role of this end in the flow.
    pub role: FlowRole,
    /// Payload bytes sent or received by this end; for round trips, those of received responses.
    pub bytes: u64,
    /// UDP: datagrams.
    pub packets: Option<u64>,
    /// Calls that moved payload.
    pub calls: Option<u64>,
    /// Time from the first payload to the last, or to the end of the test, in ns.
    pub duration_ns: u64,
    /// Receiver: datagrams missing by their sequence numbers. Round trips: requests without a
    /// response in time.
    pub lost: Option<u64>,
    /// Datagrams, or responses, received after one with a higher number.
    pub out_of_order: Option<u64>,
    /// Datagrams, or responses, received more than once.
    pub duplicates: Option<u64>,
    /// Receiver: variation of the transit time (RFC 3550 section 6.4.1), in ns.
    pub ipdv_ns: Option<f64>,
    /// Receiver: one-way delays, where the sender declares the clocks synchronised, in ns.
    pub one_way_delays: Option<Histogram>,
    /// TCP sender: retransmitted segments.
    pub retransmits: Option<u64>,
    /// Round-trip times, in ns.
    pub rtts: Option<Histogram>,
    /// Round trips: responses that differ from what was sent.
    pub mismatched: Option<u64>,
    /// Round trips: payload bytes of all requests.
    pub request_bytes: Option<u64>,
    /// State of the socket at the end.
    pub socket: Option<SocketFacts>,
}

impl FlowCounts {
    /// Creates the counts of a flow, without values.
    #[must_use]
    pub fn new(id: u32, role: FlowRole) -> Self {
        Self {
            id,
            role,
            bytes: 0,
            packets: None,
            calls: None,
            duration_ns: 0,
            lost: None,
            out_of_order: None,
            duplicates: None,
            ipdv_ns: None,
            one_way_delays: None,
            retransmits: None,
            rtts: None,
            mismatched: None,
            request_bytes: None,
            socket: None,
        }
    }

    /// Converts the counts into figures, for [`ForwardResults::streams`].
    #[must_use]
    pub fn figures(&self, role: Role, plan: &Plan) -> FlowFigures {
        let udp = plan.protocol == TransportProtocol::Udp;
        let per_second = |count: u64| per_second(count, Some(self.duration_ns));
        let mut summary = Summary {
            duration_ns: Some(self.duration_ns),
            ..Summary::default()
        };
        match (plan.kind, self.role) {
            (RunKind::Throughput, FlowRole::Sender) => {
                summary.bytes_sent = Some(self.bytes);
                summary.offered_bps = per_second(self.bytes).map(|bytes| bytes * 8.0);
                summary.packets_sent = self.packets.filter(|_| udp);
                summary.rate_error = crate::rate_accuracy::rate_error(
                    plan,
                    summary.offered_bps,
                    summary.duration_ns,
                    1,
                );
                summary.calls_per_second = self.calls.filter(|_| !udp).and_then(per_second);
                summary.retransmits = self.retransmits;
            }
            (RunKind::Throughput, FlowRole::Receiver) => {
                summary.bytes_received = Some(self.bytes);
                summary.goodput_bps = per_second(self.bytes).map(|bytes| bytes * 8.0);
                if let Some(packets) = self.packets.filter(|_| udp) {
                    summary.packets_received = Some(packets);
                    summary.packets_per_second = per_second(packets);
                    summary.lost = self.lost;
                    let unique = packets.saturating_sub(self.duplicates.unwrap_or(0));
                    summary.loss_fraction =
                        (self.lost).and_then(|lost| fraction(lost, lost.saturating_add(unique)));
                }
                summary.out_of_order = self.out_of_order;
                summary.duplicates = self.duplicates;
                summary.ipdv_ns = self.ipdv_ns;
            }
            (RunKind::Latency, FlowRole::Sender) => {
                let round_trips = self.rtts.as_ref().map(Histogram::count);
                summary.rtt_ns = self.rtts.as_ref().and_then(Histogram::summary);
                summary.round_trips = round_trips;
                summary.round_trips_per_second = round_trips.and_then(per_second);
                summary.lost = self.lost;
                summary.loss_fraction = (self.lost.zip(round_trips))
                    .and_then(|(lost, round_trips)| fraction(lost, lost + round_trips));
                summary.out_of_order = self.out_of_order;
                summary.duplicates = self.duplicates;
                summary.mismatched = self.mismatched;
                summary.bytes_sent = self.request_bytes;
                summary.bytes_received = Some(self.bytes);
                summary.retransmits = self.retransmits;
            }
            (RunKind::Latency, FlowRole::Receiver)
            | (RunKind::Forward | RunKind::Generate | RunKind::Stack, _) => {}
        }
        let (sender, receiver) = match self.role {
            FlowRole::Sender => (self.socket.clone(), None),
            FlowRole::Receiver => (None, self.socket.clone()),
        };
        FlowFigures {
            direction: flow_direction(role, self.role),
            stream: StreamFigures {
                id: self.id,
                summary,
                mismatch: None,
                sender,
                receiver,
            },
        }
    }
}

/// Returns the results of an end with these flows; the caller adds what else it has.
#[must_use]
pub fn local_results(role: Role, host: HostFacts, plan: &Plan, flows: &[FlowCounts]) -> EndResults {
    let mut times: Option<Histogram> = None;
    for more in flows.iter().filter_map(|flow| flow.rtts.as_ref()) {
        times.get_or_insert_default().add(more);
    }
    let times = times.filter(|times| times.count() > 0);
    let times = times.map(|times| ("rtt_ns".to_owned(), HistogramData::from(&times)));
    let delays = flows.iter().filter_map(|flow| {
        let name = rate_accuracy::histogram_key(
            rate_accuracy::ONE_WAY_DELAY,
            flow_direction(role, flow.role),
        );
        Some((name, HistogramData::from(flow.one_way_delays.as_ref()?)))
    });
    let histograms = times.into_iter().chain(delays);
    EndResults {
        duration_ns: flows.iter().map(|flow| flow.duration_ns).max().unwrap_or(0),
        streams: flows.iter().map(|flow| flow.figures(role, plan)).collect(),
        histograms: histograms.collect(),
        ..empty_results(role, host)
    }
}

/// Returns the client's direction of a flow, from the role of the end at `role` in it.
#[must_use]
pub fn flow_direction(role: Role, flow_role: FlowRole) -> Direction {
    match (role, flow_role) {
        (Role::Client, FlowRole::Sender) | (Role::Server, FlowRole::Receiver) => Direction::Send,
        (Role::Client, FlowRole::Receiver) | (Role::Server, FlowRole::Sender) => Direction::Receive,
    }
}

impl InteropTest {
    /// Creates a test with the results of this end only.
    #[must_use]
    pub fn new(
        protocol: &'static str,
        plan: Plan,
        started: Timestamp,
        local_results: EndResults,
    ) -> Self {
        Self {
            protocol,
            plan,
            started,
            local_results,
            intervals: Vec::new(),
            dropped_intervals: 0,
            remote_report: RemoteReport::default(),
            acknowledged: BTreeMap::new(),
            counted_from_ns: 0,
            failure: None,
            ipv6: false,
            path_counters: None,
            timestamps: None,
        }
    }

    /// Returns the record, and the error that ended the test early.
    #[must_use]
    pub fn into_record(mut self) -> (Record, Option<SessionError>) {
        self.plan.peer_protocol = Some(self.protocol.to_owned());
        let role = self.local_results.role;
        let remote_role = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let mut remote = empty_results(remote_role, HostFacts::default());
        let mut totals = Vec::new();
        let mut caveats = Vec::new();
        for flow in &mut self.local_results.streams {
            caveats.extend(clear_impossible_losses(
                &self.plan,
                &mut flow.stream.summary,
            ));
        }
        // Directions with a count of the remote end for only some of their flows.
        let mut partly_counted = Vec::new();
        if self.plan.kind == RunKind::Throughput {
            for &direction in &self.plan.directions {
                let complete =
                    self.add_remote_direction(direction, &mut remote, &mut totals, &mut caveats);
                partly_counted.extend((!complete).then_some(direction));
            }
        }
        // The remote sender's total replaces the gaps that this end found.
        for flow in &mut self.local_results.streams {
            let by_total = (remote.streams.iter())
                .filter(|remote| {
                    remote.direction == flow.direction && remote.stream.id == flow.stream.id
                })
                .find(|remote| remote.stream.summary.packets_sent.is_some());
            if let Some(by_total) = by_total.map(|remote| &remote.stream.summary)
                && by_total.lost.is_some()
            {
                flow.stream.summary.lost = by_total.lost;
                flow.stream.summary.loss_fraction = by_total.loss_fraction;
            }
        }
        let interrupted = self.local_results.interrupted;
        self.local_results.caveats.extend(caveats);
        let text = self
            .remote_report
            .text
            .take()
            .map(truncate_text)
            .filter(|text| !text.is_empty());
        let (mut record, failure) = assemble_record(RecordInputs {
            plan: self.plan,
            started_at: self.started,
            role,
            results: RunResults {
                local: self.local_results,
                peer: Some(remote),
                intervals: self.intervals,
                intervals_omitted: self.dropped_intervals,
                timestamps: self.timestamps,
                interrupted,
                counted_from_ns: self.counted_from_ns,
                connection_refused: false,
                failure: self.failure,
            },
            path: self.path_counters,
            ipv6: self.ipv6,
            clocks: None,
            totals,
            peer_text: text,
        });
        let directions = record.directions.iter_mut();
        for figures in directions.filter(|figures| partly_counted.contains(&figures.direction)) {
            clear_arrivals(&mut figures.summary);
        }
        if !partly_counted.is_empty() {
            clear_arrivals(&mut record.summary);
            record
                .losses
                .retain(|loss| !partly_counted.contains(&loss.direction));
        }
        // The facts of the remote host are not known.
        record.hosts.retain(|host| host.role != Some(remote_role));
        (record, failure)
    }

    /// Adds what the remote end, or its kernel, reported of one direction; false if it counted only
    /// some of the flows.
    fn add_remote_direction(
        &self,
        direction: Direction,
        remote: &mut EndResults,
        totals: &mut Vec<(Direction, Summary)>,
        caveats: &mut Vec<Caveat>,
    ) -> bool {
        let local_flows: Vec<_> = (self.local_results.streams.iter())
            .filter(|flow| flow.direction == direction)
            .collect();
        let sends = self::flow_direction(self.local_results.role, FlowRole::Sender) == direction;
        let flow_report = self.remote_report.flows.iter().filter(|flow_report| {
            // The directions of the report are those of this end.
            let sent = flow_report.direction == Direction::Send;
            sent == sends
        });
        let mut has_figures = false;
        for flow_report in flow_report {
            let flow = match (flow_report.id, local_flows.as_slice()) {
                (Some(id), _) => local_flows.iter().find(|flow| flow.stream.id == id),
                (None, [only]) => Some(only),
                (None, _) => None,
            };
            if flow_report.id.is_some() && flow.is_none() {
                continue;
            }
            let basis = match flow {
                Some(flow) => flow.stream.summary.clone(),
                None => sum_summaries(local_flows.iter().map(|flow| &flow.stream.summary)),
            };
            let summary = if sends {
                arrival_summary(
                    &self.plan,
                    &basis,
                    &flow_report.figures,
                    self.remote_report.stopped_early,
                )
            } else {
                departure_summary(&self.plan, &basis, &flow_report.figures)
            };
            has_figures |= summary.bytes_received.is_some()
                || summary.packets_received.is_some()
                || summary.bytes_sent.is_some()
                || summary.packets_sent.is_some();
            caveats.extend(check_counts(
                &self.plan,
                &basis,
                &summary,
                &flow_report.figures,
                sends,
            ));
            caveats.extend(check_time(&self.plan, &flow_report.figures).filter(|_| sends));
            match flow {
                Some(flow) => remote.streams.push(FlowFigures {
                    direction,
                    stream: StreamFigures {
                        id: flow.stream.id,
                        summary,
                        ..StreamFigures::default()
                    },
                }),
                None => totals.push((direction, summary)),
            }
        }
        if !sends {
            self.add_remote_offered_load(direction, &local_flows, remote, totals);
            return true;
        }
        if !has_figures && !local_flows.is_empty() {
            self.add_acknowledged(direction, &local_flows, remote, caveats);
        }
        if !has_figures || totals.iter().any(|(of, _)| *of == direction) {
            return true;
        }
        let counted = |flow: &&&FlowFigures| {
            let mut remote_flows = remote.streams.iter();
            remote_flows.any(|remote_flow| {
                (remote_flow.direction, remote_flow.stream.id) == (direction, flow.stream.id)
            })
        };
        let counted = local_flows.iter().filter(counted).count();
        if counted < local_flows.len() {
            caveats.push(Caveat::new(
                CaveatId::RemoteCountUnknown,
                format!(
                    "the server reported for {counted} of {} flows what arrived there, and nothing for the \
                     others: the total that arrived is not known",
                    local_flows.len()
                ),
            ));
        }
        let all = counted == local_flows.len();
        if all && !self.remote_report.stopped_early {
            let remote_flows = remote.streams.iter();
            let remote_flows =
                remote_flows.filter(|remote_flow| remote_flow.direction == direction);
            let pairs = remote_flows.filter_map(|remote_flow| {
                let mut local_flows = local_flows.iter();
                let flow = local_flows.find(|flow| flow.stream.id == remote_flow.stream.id)?;
                Some((&flow.stream.summary, &remote_flow.stream.summary))
            });
            totals.extend(mixed_flow_loss(pairs).map(|summary| (direction, summary)));
        }
        all
    }

    /// Adds the offered load of the remote sender, where its report has none.
    fn add_remote_offered_load(
        &self,
        direction: Direction,
        local_flows: &[&FlowFigures],
        remote: &mut EndResults,
        totals: &[(Direction, Summary)],
    ) {
        let mut direction_totals = totals.iter().filter(|(of, _)| *of == direction);
        if direction_totals.any(|(_, summary)| summary.offered_bps.is_some()) {
            return;
        }
        for flow in local_flows {
            let Some(offered) = offered_load_by_numbers(&self.plan, &flow.stream.summary) else {
                continue;
            };
            let id = flow.stream.id;
            let mut remote_flows = remote.streams.iter_mut();
            let remote_flow = remote_flows.find(|remote_flow| {
                (remote_flow.direction, remote_flow.stream.id) == (direction, id)
            });
            match remote_flow {
                Some(remote_flow) => {
                    remote_flow
                        .stream
                        .summary
                        .offered_bps
                        .get_or_insert(offered);
                }
                None => remote.streams.push(FlowFigures {
                    direction,
                    stream: StreamFigures {
                        id,
                        summary: Summary {
                            offered_bps: Some(offered),
                            ..Summary::default()
                        },
                        ..StreamFigures::default()
                    },
                }),
            }
        }
    }

    /// Adds the kernel's acknowledged bytes of what this end sent, where the remote end has no
    /// count.
    fn add_acknowledged(
        &self,
        direction: Direction,
        local_flows: &[&FlowFigures],
        remote: &mut EndResults,
        caveats: &mut Vec<Caveat>,
    ) {
        let all_acknowledged = local_flows
            .iter()
            .all(|flow| self.acknowledged.contains_key(&flow.stream.id));
        if self.plan.protocol == TransportProtocol::Udp || !all_acknowledged {
            caveats.push(Caveat::new(
                CaveatId::RemoteCountUnknown,
                format!(
                    "{} did not report received bytes: what was sent is known, goodput and loss are not",
                    self.protocol
                ),
            ));
            return;
        }
        for flow in local_flows {
            let Some(by_kernel) = self.acknowledged.get(&flow.stream.id) else {
                continue;
            };
            // From the first payload on, as the remote end counts it too.
            let local_ns = flow.stream.summary.duration_ns;
            let acknowledged_ns = by_kernel.last_ack_ns.saturating_sub(self.counted_from_ns);
            let duration_ns = local_ns.map(|local_ns| local_ns.max(acknowledged_ns));
            let rate = per_second(by_kernel.bytes, duration_ns);
            remote.streams.push(FlowFigures {
                direction,
                stream: StreamFigures {
                    id: flow.stream.id,
                    summary: Summary {
                        duration_ns,
                        bytes_received: Some(by_kernel.bytes),
                        goodput_bps: rate.map(|bytes| bytes * 8.0),
                        ..Summary::default()
                    },
                    ..StreamFigures::default()
                },
            });
        }
        caveats.push(Caveat::new(
            CaveatId::CountedByAcknowledgement,
            format!(
                "{} does not report received bytes: goodput is what the remote kernel acknowledged",
                self.protocol
            ),
        ));
    }
}

fn per_second(count: u64, duration_ns: Option<u64>) -> Option<f64> {
    let ns = duration_ns.filter(|&ns| ns > 0)?;
    Some(count as f64 * 1e9 / ns as f64)
}

fn fraction(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// Truncates a text that is too long for the record.
fn truncate_text(mut text: String) -> String {
    if text.len() > MAX_SERVER_TEXT_BYTES {
        let at = (0..=MAX_SERVER_TEXT_BYTES)
            .rev()
            .find(|&at| text.is_char_boundary(at));
        text.truncate(at.unwrap_or(0));
    }
    text
}

/// Returns the results of an end without any figure.
fn empty_results(role: Role, host: HostFacts) -> EndResults {
    EndResults {
        role,
        host: HostFacts {
            role: Some(role),
            ..host
        },
        cpu: None,
        memory: None,
        streams: Vec::new(),
        histograms: BTreeMap::new(),
        losses: Vec::new(),
        counters: Vec::new(),
        verification: None,
        calls: BTreeMap::new(),
        call_clock: None,
        slow: Vec::new(),
        caveats: Vec::new(),
        interrupted: false,
        duration_ns: 0,
    }
}

#[cfg(test)]
mod tests;
