//! Interval series of a run, as counted at this end.

use std::sync::Arc;

use linerate_dialect::control::IntervalEnded;
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::cost::{STREAMS_IN_SERIES, StreamInterval, TcpInterval};
use linerate_metric::event::What;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Direction, Kind, Protocol};
use linerate_metric::record::{CountedAt, Interval};

use super::{GRACE_NS, Reading, Run, flow_of};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::tcp_info_sums::TcpSums;
use crate::transport::Watch;
use crate::worker::LaneHandle;

/// Average time budget for reading TCP_INFO of one connection, between two reads of all. 10,000
/// connections are read at most five times a second, which takes 2 % of a CPU.
const LOOK_NS: Nanos = 20_000;

/// Shortest interval with thread times: the scheduler's figures of a running thread are up to a
/// tick (4 ms) old.
const SHARES_FROM_NS: Nanos = 100_000_000;

impl Run<'_> {
    /// Returns the end of the running interval on the grid; `None` when the end of the run ends it.
    pub(super) fn next_interval_end(&self) -> Option<Nanos> {
        let end = self.timeline.interval_end(self.slot_start_ns)?;
        let last = self
            .ends_ns
            .is_some_and(|ends| end >= ends || self.end.gate.phase.is_ending());
        (!last && self.exchange.outcome.is_none()).then_some(end)
    }

    /// Returns whether all requesting threads of this end have passed the interval of that number.
    pub(super) fn askers_passed(&self, interval: u64) -> bool {
        self.end.plan.kind != Kind::Latency
            || self
                .end
                .flows
                .iter()
                .filter(|flow| flow.part == Part::Source)
                .all(|flow| {
                    let mailbox = flow.shared.mailbox.lock().expect("no holder panics");
                    mailbox.intervals_ended > interval
                })
    }

    /// Closes the running interval of every direction; `slot_end_ns` is its end on the grid, `now`
    /// the time when its counters are read.
    pub(super) fn end_interval(
        &mut self,
        slot_end_ns: Nanos,
        now: Nanos,
    ) -> Result<(), MeasureError> {
        let mut slot_end_ns = slot_end_ns;
        // Late by complete intervals: they are merged under the number of the last.
        while let Some(next) = self.timeline.interval_end(slot_end_ns) {
            if next > now || slot_end_ns == self.timeline.count_from_ns {
                break;
            }
            slot_end_ns = next;
            self.number += 1;
        }
        // Throughput counters are read now, not at the planned end. Requesting threads close their
        // intervals on time.
        let end_ns = match self.end.plan.kind {
            Kind::Throughput | Kind::Forward | Kind::Generate | Kind::Stack => now,
            Kind::Latency => slot_end_ns,
        };
        self.report(end_ns, now)?;
        self.slot_start_ns = slot_end_ns;
        self.interval_start_ns = end_ns;
        self.number += 1;
        Ok(())
    }

    /// Sends this end's halves of the interval that ends now, and adds them to the series.
    fn report(&mut self, end_ns: Nanos, now: Nanos) -> Result<(), MeasureError> {
        for direction in [Direction::Send, Direction::Receive] {
            let Some(interval) = self.interval_of(direction, end_ns) else {
                continue;
            };
            self.say(IntervalEnded {
                interval: interval.clone(),
            })?;
            self.series.own(now, interval);
        }
        Ok(())
    }

    /// Returns this end's half of an interval; `None` for a direction that is not counted here.
    fn interval_of(&mut self, direction: Direction, end_ns: Nanos) -> Option<Interval> {
        let plan = Arc::clone(&self.end.plan);
        let start_ns = self.interval_start_ns;
        let now = clock::now();
        let mut reading = Reading::default();
        let mut times: Option<Histogram> = None;
        let mut part = None;
        let each = (2..=STREAMS_IN_SERIES).contains(&plan.streams) && plan.kind == Kind::Throughput;
        let mut totals_of_flows = Vec::with_capacity(if each { plan.streams as usize } else { 0 });
        for flow in self.end.flows.iter().filter(|f| f.direction == direction) {
            part = Some(flow.part);
            let totals = flow.shared.meter.read();
            reading.totals += totals;
            if each {
                totals_of_flows.push((flow.id, totals));
            }
            if flow.part == Part::Source && plan.kind == Kind::Latency {
                let mut mailbox = flow.shared.mailbox.lock().expect("no holder panics");
                if let Some(recent) = &mut mailbox.times {
                    times.get_or_insert_default().add(recent);
                    recent.clear();
                }
            }
        }
        let source = part? == Part::Source;
        if plan.kind == Kind::Latency && !source {
            return None;
        }
        // Read after the counters, which belong to the end of the interval.
        let tcp = self.look_at_connections(direction, now);
        let before = self.last.insert(direction, reading).unwrap_or_default();
        let mut moved = reading.totals.since(before.totals);
        if plan.kind == Kind::Latency {
            // The times belong to the exact interval, the counters are read later.
            moved.packets = times.as_ref().map_or(0, Histogram::count);
            moved.bytes = moved.packets * plan.payload_bytes;
        }
        let is_udp = plan.protocol == Protocol::Udp;
        let threads = (end_ns.saturating_sub(start_ns) >= SHARES_FROM_NS)
            .then(|| self.threads.interval(&self.end.lanes, direction, now))
            .flatten();
        let streams = self.streams_of(&totals_of_flows);
        self.look_at_memory(now);
        Some(Interval {
            number: self.number,
            start_ns: start_ns - self.timeline.start_ns,
            end_ns: end_ns - self.timeline.start_ns,
            direction,
            omitted: self.slot_start_ns < self.timeline.count_from_ns,
            counted_at: if source {
                CountedAt::Sender
            } else {
                CountedAt::Receiver
            },
            bytes: moved.bytes,
            packets: (is_udp || plan.kind == Kind::Latency).then_some(moved.packets),
            calls: Some(moved.calls),
            bytes_sent: source.then_some(moved.bytes),
            packets_sent: (source && is_udp).then_some(moved.packets + moved.missing),
            lost: ((is_udp && !source) || plan.kind == Kind::Latency).then_some(moved.missing),
            retransmits: tcp.map(|tcp| tcp.retransmits),
            cwnd_bytes: tcp.map(|tcp| tcp.cwnd_bytes),
            tcp_rtt_ns: tcp.map(|tcp| tcp.rtt_ns),
            rtt_ns: times.as_ref().and_then(Histogram::summary),
            tcp,
            sender_threads: threads.filter(|_| source),
            receiver_threads: threads.filter(|_| !source),
            streams,
        })
    }

    /// Returns TCP_INFO sums of the connections that this end sends on, since the last read; `None`
    /// without connections, or when the time budget is used up.
    fn look_at_connections(&mut self, direction: Direction, now: Nanos) -> Option<TcpInterval> {
        if self.end.plan.protocol != Protocol::Tcp {
            return None;
        }
        let flows = (self.end.flows.iter())
            .filter(|flow| flow.direction == direction && flow.part == Part::Source);
        let (before, looked_ns) = self.tcp.get(&direction).copied().unwrap_or_default();
        let looked_ns = looked_ns.max(self.timeline.start_ns);
        let due_ns = looked_ns + LOOK_NS * flows.clone().count() as Nanos;
        // The last interval is read in any case.
        let ended = self.end.lanes.iter().all(LaneHandle::is_finished);
        if now < due_ns && !ended {
            return None;
        }
        let mut sums = TcpSums::default();
        for watch in flows.filter_map(|flow| flow.watch.as_ref()) {
            if let Some(info) = watch.tcp() {
                sums.add(&info);
            }
        }
        self.tcp.insert(direction, (sums, now));
        sums.since(&before, now.saturating_sub(looked_ns))
    }

    /// Returns the interval of each flow, given its counters.
    fn streams_of(&mut self, counted: &[(u32, Totals)]) -> Vec<StreamInterval> {
        let is_udp = self.end.plan.protocol == Protocol::Udp;
        let mut streams = Vec::with_capacity(counted.len());
        for &(id, totals) in counted {
            let Some(flow) = flow_of(&self.end.flows, id) else {
                continue;
            };
            let source = flow.part == Part::Source;
            let tcp = (flow.watch.as_ref())
                .filter(|_| source && !is_udp)
                .and_then(Watch::tcp);
            let reading = Reading {
                totals,
                retransmits: tcp.map_or(0, |tcp| u64::from(tcp.retransmits)),
            };
            let before = self.last_of_flow.insert(id, reading).unwrap_or_default();
            let moved = totals.since(before.totals);
            streams.push(StreamInterval {
                id,
                bytes: moved.bytes,
                packets: is_udp.then_some(moved.packets),
                lost: (is_udp && !source).then_some(moved.missing),
                retransmits: tcp.map(|_| reading.retransmits.saturating_sub(before.retransmits)),
                cwnd_bytes: tcp.map(|tcp| u64::from(tcp.cwnd) * u64::from(tcp.mss)),
                tcp_rtt_ns: tcp.map(|tcp| u64::from(tcp.rtt_us) * 1_000),
            });
        }
        streams
    }

    /// Closes the last interval: shorter than the others, or longer by the drain time.
    pub(super) fn last_interval(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.timeline.interval_ns.is_none() {
            return Ok(());
        }
        let ended = self.finished.iter().map(|flow| flow.ended_ns).max();
        let ended = ended.unwrap_or(now).max(self.window_end_ns().unwrap_or(0));
        // The other half arrives at the latest with the results, so the interval waits for it.
        self.report(ended.max(self.interval_start_ns + 1), Nanos::MAX)
    }

    /// Emits the intervals with both halves.
    pub(super) fn show(&mut self) {
        for interval in self.series.ready(clock::now(), GRACE_NS) {
            (self.end.emit)(What::Interval {
                interval: Box::new(interval),
            });
        }
    }
}
