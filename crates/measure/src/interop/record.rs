//! Record of a test with another tool, from what one end has counted.
//!
//! Other tools report little, and each something else. So both halves of the record are built from
//! one end: its own counts, and the [`FarReport`] of the protocol. Figures that neither has stay
//! absent.

mod remote_figures;

use std::collections::BTreeMap;

use jiff::Timestamp;
use linerate_dialect::control::{FlowFigures, Outcome};
use linerate_dialect::remote_report::FarReport;
use linerate_metric::facts::{Host, Role};
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::record::{
    Doubt, FAR_TEXT_BYTES, HistogramData, Interval, PlaceCounter, Record, Socket, Stream, Summary,
};

use crate::coordinator::Ended;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::loss::Ways;
use crate::rate_accuracy;
use crate::record_assembly::{Report, assemble};
use crate::timestamps::Stamped;
use remote_figures::{arrived, contradiction, departed, forget_arrivals, mixed_up, passed, sum_of};

/// Test with another tool, as counted by one end.
pub struct PeerTest {
    /// Protocol of the remote end, by its name in [`linerate_dialect::sniff::DIALECTS`].
    pub dialect: &'static str,
    /// Plan with every effective option; directions are the client's, at both ends.
    pub plan: Plan,
    /// Start of the payload.
    pub started: Timestamp,
    /// Results of this end: built by [`own_half`], with the flows from [`Counted::figures`].
    pub own: Outcome,
    /// Interval series of this end; directions are the client's.
    pub intervals: Vec<Interval>,
    /// Number of intervals above the storage limit.
    pub intervals_left_out: u64,
    /// Report of the remote end. Its directions are those of this end: `Direction::Send` is what
    /// this end sent.
    pub far: FarReport,
    /// TCP payload that the remote kernel acknowledged, by flow number: all that is known of the
    /// arrivals at a remote end without counts.
    pub acknowledged: BTreeMap<u32, Acknowledged>,
    /// Error that ended the test early.
    pub failure: Option<MeasureError>,
    /// True if the ends use IPv6.
    pub ipv6: bool,
    /// Counters along the whole path, where it is visible.
    pub(crate) region: Option<(Ways, Vec<PlaceCounter>)>,
    /// Timestamps of this end's calls, if a timeline was requested.
    pub(crate) stamped: Option<Box<Stamped>>,
}

/// Payload of a TCP flow that the remote kernel acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Acknowledged bytes.
    pub bytes: u64,
    /// Time of the last acknowledgement after the last send, in ns.
    pub behind_ns: u64,
}

/// Counts of one flow at one end; what that end did not count is absent.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Flow number of the protocol, unique within the test.
    pub id: u32,
    /// Role of this end in the flow.
    pub part: Part,
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
    pub one_way: Option<Histogram>,
    /// TCP sender: retransmitted segments.
    pub retransmits: Option<u64>,
    /// Round-trip times, in ns.
    pub times: Option<Histogram>,
    /// Round trips: responses that differ from what was sent.
    pub mismatched: Option<u64>,
    /// Round trips: payload bytes of all requests.
    pub asked_bytes: Option<u64>,
    /// State of the socket at the end.
    pub socket: Option<Socket>,
}

impl Counted {
    /// Creates the counts of a flow, without values.
    #[must_use]
    pub fn new(id: u32, part: Part) -> Self {
        Self {
            id,
            part,
            bytes: 0,
            packets: None,
            calls: None,
            duration_ns: 0,
            lost: None,
            out_of_order: None,
            duplicates: None,
            ipdv_ns: None,
            one_way: None,
            retransmits: None,
            times: None,
            mismatched: None,
            asked_bytes: None,
            socket: None,
        }
    }

    /// Converts the counts into figures, for [`Outcome::streams`].
    #[must_use]
    pub fn figures(&self, role: Role, plan: &Plan) -> FlowFigures {
        let udp = plan.protocol == Protocol::Udp;
        let per_second = |count: u64| per_second(count, Some(self.duration_ns));
        let mut summary = Summary {
            duration_ns: Some(self.duration_ns),
            ..Summary::default()
        };
        match (plan.kind, self.part) {
            (Kind::Throughput, Part::Source) => {
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
            (Kind::Throughput, Part::Sink) => {
                summary.bytes_received = Some(self.bytes);
                summary.goodput_bps = per_second(self.bytes).map(|bytes| bytes * 8.0);
                if let Some(packets) = self.packets.filter(|_| udp) {
                    summary.packets_received = Some(packets);
                    summary.packets_per_second = per_second(packets);
                    summary.lost = self.lost;
                    let unique = packets.saturating_sub(self.duplicates.unwrap_or(0));
                    summary.loss_fraction = self.lost.and_then(|lost| share(lost, lost + unique));
                }
                summary.out_of_order = self.out_of_order;
                summary.duplicates = self.duplicates;
                summary.ipdv_ns = self.ipdv_ns;
            }
            (Kind::Latency, Part::Source) => {
                let trips = self.times.as_ref().map(Histogram::count);
                summary.rtt_ns = self.times.as_ref().and_then(Histogram::summary);
                summary.round_trips = trips;
                summary.round_trips_per_second = trips.and_then(per_second);
                summary.lost = self.lost;
                summary.loss_fraction =
                    (self.lost.zip(trips)).and_then(|(lost, trips)| share(lost, lost + trips));
                summary.out_of_order = self.out_of_order;
                summary.duplicates = self.duplicates;
                summary.mismatched = self.mismatched;
                summary.bytes_sent = self.asked_bytes;
                summary.bytes_received = Some(self.bytes);
                summary.retransmits = self.retransmits;
            }
            (Kind::Latency, Part::Sink) | (Kind::Forward | Kind::Generate | Kind::Stack, _) => {}
        }
        let (sender, receiver) = match self.part {
            Part::Source => (self.socket.clone(), None),
            Part::Sink => (None, self.socket.clone()),
        };
        FlowFigures {
            direction: direction(role, self.part),
            stream: Stream {
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
pub fn own_half(role: Role, host: Host, plan: &Plan, flows: &[Counted]) -> Outcome {
    let mut times: Option<Histogram> = None;
    for more in flows.iter().filter_map(|flow| flow.times.as_ref()) {
        times.get_or_insert_default().add(more);
    }
    let times = times.filter(|times| times.count() > 0);
    let times = times.map(|times| ("rtt_ns".to_owned(), HistogramData::from(&times)));
    let delays = flows.iter().filter_map(|flow| {
        let name = rate_accuracy::name(rate_accuracy::ONE_WAY_DELAY, direction(role, flow.part));
        Some((name, HistogramData::from(flow.one_way.as_ref()?)))
    });
    let histograms = times.into_iter().chain(delays);
    Outcome {
        duration_ns: flows.iter().map(|flow| flow.duration_ns).max().unwrap_or(0),
        streams: flows.iter().map(|flow| flow.figures(role, plan)).collect(),
        histograms: histograms.collect(),
        ..empty_half(role, host)
    }
}

/// Returns the client's direction of a flow, from the role of the end at `role` in it.
#[must_use]
pub fn direction(role: Role, part: Part) -> Direction {
    match (role, part) {
        (Role::Client, Part::Source) | (Role::Server, Part::Sink) => Direction::Send,
        (Role::Client, Part::Sink) | (Role::Server, Part::Source) => Direction::Receive,
    }
}

impl PeerTest {
    /// Creates a test with the results of this end only.
    #[must_use]
    pub fn new(dialect: &'static str, plan: Plan, started: Timestamp, own: Outcome) -> Self {
        Self {
            dialect,
            plan,
            started,
            own,
            intervals: Vec::new(),
            intervals_left_out: 0,
            far: FarReport::default(),
            acknowledged: BTreeMap::new(),
            failure: None,
            ipv6: false,
            region: None,
            stamped: None,
        }
    }

    /// Returns the record, and the error that ended the test early.
    #[must_use]
    pub fn record(mut self) -> (Record, Option<MeasureError>) {
        self.plan.dialect = Some(self.dialect.to_owned());
        let role = self.own.role;
        let far_role = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let mut far = empty_half(far_role, Host::default());
        let mut totals = Vec::new();
        let mut doubts = Vec::new();
        // Directions with a count of the remote end for only some of their flows.
        let mut in_part = Vec::new();
        if self.plan.kind == Kind::Throughput {
            for &direction in &self.plan.directions {
                let whole = self.half_of(direction, &mut far, &mut totals, &mut doubts);
                in_part.extend((!whole).then_some(direction));
            }
        }
        let interrupted = self.own.interrupted;
        self.own.doubts.extend(doubts);
        let text = self
            .far
            .text
            .take()
            .map(cut)
            .filter(|text| !text.is_empty());
        let (mut record, failure) = assemble(Report {
            plan: self.plan,
            started: self.started,
            role,
            ended: Ended {
                own: self.own,
                peer: Some(far),
                intervals: self.intervals,
                intervals_left_out: self.intervals_left_out,
                stamped: self.stamped,
                interrupted,
                failure: self.failure,
            },
            region: self.region,
            ipv6: self.ipv6,
            clocks: None,
            totals,
            far_text: text,
        });
        let ways = record.directions.iter_mut();
        for way in ways.filter(|way| in_part.contains(&way.direction)) {
            forget_arrivals(&mut way.summary);
        }
        if !in_part.is_empty() {
            forget_arrivals(&mut record.summary);
            record
                .losses
                .retain(|loss| !in_part.contains(&loss.direction));
        }
        // The facts of the remote host are not known.
        record.hosts.retain(|host| host.role != Some(far_role));
        (record, failure)
    }

    /// Adds what the remote end, or its kernel, reported of one direction; false if it counted only
    /// some of the flows.
    fn half_of(
        &self,
        direction: Direction,
        far: &mut Outcome,
        totals: &mut Vec<(Direction, Summary)>,
        doubts: &mut Vec<Doubt>,
    ) -> bool {
        let own: Vec<_> = (self.own.streams.iter())
            .filter(|flow| flow.direction == direction)
            .collect();
        let sends = self::direction(self.own.role, Part::Source) == direction;
        let said = self.far.flows.iter().filter(|said| {
            // The directions of the report are those of this end.
            let sent = said.direction == Direction::Send;
            sent == sends
        });
        let mut told = false;
        for said in said {
            let flow = match (said.id, own.as_slice()) {
                (Some(id), _) => own.iter().find(|flow| flow.stream.id == id),
                (None, [only]) => Some(only),
                (None, _) => None,
            };
            if said.id.is_some() && flow.is_none() {
                continue;
            }
            let basis = match flow {
                Some(flow) => flow.stream.summary.clone(),
                None => sum_of(own.iter().map(|flow| &flow.stream.summary)),
            };
            let summary = if sends {
                arrived(&self.plan, &basis, &said.figures, self.far.stopped_first)
            } else {
                departed(&basis, &said.figures)
            };
            told |= summary.bytes_received.is_some()
                || summary.packets_received.is_some()
                || summary.bytes_sent.is_some()
                || summary.packets_sent.is_some();
            doubts.extend(contradiction(
                &self.plan,
                &basis,
                &summary,
                &said.figures,
                sends,
            ));
            match flow {
                Some(flow) => far.streams.push(FlowFigures {
                    direction,
                    stream: Stream {
                        id: flow.stream.id,
                        summary,
                        ..Stream::default()
                    },
                }),
                None => totals.push((direction, summary)),
            }
        }
        if !sends {
            self.offered_there(direction, &own, far, totals);
            return true;
        }
        if !told && !own.is_empty() {
            self.without_count(direction, &own, far, doubts);
        }
        if !told || totals.iter().any(|(of, _)| *of == direction) {
            return true;
        }
        let counted = |flow: &&&FlowFigures| {
            let mut theirs = far.streams.iter();
            theirs.any(|there| (there.direction, there.stream.id) == (direction, flow.stream.id))
        };
        let counted = own.iter().filter(counted).count();
        if counted < own.len() {
            doubts.push(Doubt::new(
                "far-count-unknown",
                format!(
                    "the server reported for {counted} of {} flows what arrived there, and nothing for the \
                     others: the total that arrived is not known",
                    own.len()
                ),
            ));
        }
        let all = counted == own.len();
        if all && !self.far.stopped_first {
            let theirs = far.streams.iter();
            let theirs = theirs.filter(|there| there.direction == direction);
            let pairs = theirs.filter_map(|there| {
                let mut own = own.iter();
                let flow = own.find(|flow| flow.stream.id == there.stream.id)?;
                Some((&flow.stream.summary, &there.stream.summary))
            });
            totals.extend(mixed_up(pairs).map(|summary| (direction, summary)));
        }
        all
    }

    /// Adds the offered load of the remote sender, where its report has none.
    fn offered_there(
        &self,
        direction: Direction,
        own: &[&FlowFigures],
        far: &mut Outcome,
        totals: &[(Direction, Summary)],
    ) {
        let mut whole = totals.iter().filter(|(of, _)| *of == direction);
        if whole.any(|(_, summary)| summary.offered_bps.is_some()) {
            return;
        }
        for flow in own {
            let Some(offered) = passed(&self.plan, &flow.stream.summary) else {
                continue;
            };
            let id = flow.stream.id;
            let mut theirs = far.streams.iter_mut();
            let there = theirs.find(|there| (there.direction, there.stream.id) == (direction, id));
            match there {
                Some(there) => {
                    there.stream.summary.offered_bps.get_or_insert(offered);
                }
                None => far.streams.push(FlowFigures {
                    direction,
                    stream: Stream {
                        id,
                        summary: Summary {
                            offered_bps: Some(offered),
                            ..Summary::default()
                        },
                        ..Stream::default()
                    },
                }),
            }
        }
    }

    /// Adds the kernel's acknowledged bytes of what this end sent, where the remote end has no
    /// count.
    fn without_count(
        &self,
        direction: Direction,
        own: &[&FlowFigures],
        far: &mut Outcome,
        doubts: &mut Vec<Doubt>,
    ) {
        let known = own
            .iter()
            .all(|flow| self.acknowledged.contains_key(&flow.stream.id));
        if self.plan.protocol == Protocol::Udp || !known {
            doubts.push(Doubt::new(
                "far-count-unknown",
                format!(
                    "a remote end that speaks {} did not report what arrived there: what was sent is known, \
                     goodput and loss are not",
                    self.dialect
                ),
            ));
            return;
        }
        for flow in own {
            let Some(by_kernel) = self.acknowledged.get(&flow.stream.id) else {
                continue;
            };
            // From the first payload on, as the remote end counts it too.
            let own_ns = flow.stream.summary.duration_ns;
            let duration_ns = own_ns.map(|own| own.saturating_add(by_kernel.behind_ns));
            let rate = per_second(by_kernel.bytes, duration_ns);
            far.streams.push(FlowFigures {
                direction,
                stream: Stream {
                    id: flow.stream.id,
                    summary: Summary {
                        duration_ns,
                        bytes_received: Some(by_kernel.bytes),
                        goodput_bps: rate.map(|bytes| bytes * 8.0),
                        ..Summary::default()
                    },
                    ..Stream::default()
                },
            });
        }
        doubts.push(Doubt::new(
            "counted-by-acknowledgement",
            format!(
                "a remote end that speaks {} does not report what it read: received is what its kernel \
                 acknowledged",
                self.dialect
            ),
        ));
    }
}

fn per_second(count: u64, duration_ns: Option<u64>) -> Option<f64> {
    let ns = duration_ns.filter(|&ns| ns > 0)?;
    Some(count as f64 * 1e9 / ns as f64)
}

fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// Truncates a text that is too long for the record.
fn cut(mut text: String) -> String {
    if text.len() > FAR_TEXT_BYTES {
        let at = (0..=FAR_TEXT_BYTES)
            .rev()
            .find(|&at| text.is_char_boundary(at));
        text.truncate(at.unwrap_or(0));
    }
    text
}

/// Returns the results of an end without any figure.
fn empty_half(role: Role, host: Host) -> Outcome {
    Outcome {
        role,
        host: Host {
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
        doubts: Vec::new(),
        interrupted: false,
        duration_ns: 0,
    }
}

#[cfg(test)]
mod tests;
