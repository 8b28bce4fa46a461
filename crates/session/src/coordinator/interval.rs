//! Interval series of a run, as counted at this end.

use std::sync::Arc;

use linerate_protocol::control::IntervalReport;
use linerate_record::cost::{MAX_STREAMS_IN_SERIES, StreamInterval, TcpInterval};
use linerate_record::event::EventKind;
use linerate_record::plan::{Direction, RunKind, TransportProtocol};
use linerate_record::record::{FlowEnd, Interval};
use linerate_stats::histogram::Histogram;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::SocketWatch;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use linerate_workload::worker::WorkerHandle;

use super::{INTERVAL_GRACE_NS, RunState};
use crate::error::SessionError;
use crate::flow_handle::{CounterReading, find_flow};
use crate::tcp_info_sums::TcpSums;

/// Average time budget for reading TCP_INFO of one connection, between two reads of all. 10,000
/// connections are read at most five times a second, which takes 2 % of a CPU.
const TCP_INFO_BUDGET_NS: Nanos = 20_000;

/// Shortest interval with thread times: the scheduler's figures of a running thread are up to a
/// tick (4 ms) old.
const MIN_THREAD_TIME_INTERVAL_NS: Nanos = 100_000_000;

impl RunState<'_> {
    /// Returns the end of the running interval on the grid; `None` when the end of the run ends it.
    pub(super) fn next_interval_end(&self) -> Option<Nanos> {
        let end = self.run_clock.interval_end(self.slot_start_ns)?;
        let last = self
            .end_ns
            .is_some_and(|run_end_ns| end >= run_end_ns || self.coordinator.phase().is_ending());
        (!last && self.exchange.local_results.is_none()).then_some(end)
    }

    /// Returns whether all requesting threads of this end have passed the interval of that number.
    pub(super) fn requesters_passed(&self, interval: u64) -> bool {
        self.coordinator.plan.kind != RunKind::Latency
            || self
                .coordinator
                .ready
                .flows
                .iter()
                .filter(|flow| flow.role == FlowRole::Sender)
                .all(|flow| {
                    let slot = flow.shared.interval_times.lock().expect("no holder panics");
                    slot.intervals_ended > interval
                })
    }

    /// Closes the running interval of every direction; `slot_end_ns` is its end on the grid, `now`
    /// the time when its counters are read.
    pub(super) fn close_interval(
        &mut self,
        slot_end_ns: Nanos,
        now: Nanos,
    ) -> Result<(), SessionError> {
        let mut slot_end_ns = slot_end_ns;
        // Late by complete intervals: they are merged under the number of the last.
        while let Some(next) = self.run_clock.interval_end(slot_end_ns) {
            if next > now || slot_end_ns == self.run_clock.count_from_ns {
                break;
            }
            slot_end_ns = next;
            self.interval_number += 1;
        }
        // Throughput counters are read now, not at the planned end. Requesting threads close their
        // intervals on time.
        let end_ns = match self.coordinator.plan.kind {
            RunKind::Throughput | RunKind::Forward | RunKind::Generate | RunKind::Stack => now,
            RunKind::Latency => slot_end_ns,
        };
        self.report_interval(end_ns, now)?;
        self.slot_start_ns = slot_end_ns;
        self.interval_start_ns = end_ns;
        self.interval_number += 1;
        Ok(())
    }

    /// Sends this end's halves of the interval that ends now, and adds them to the series.
    fn report_interval(&mut self, end_ns: Nanos, now: Nanos) -> Result<(), SessionError> {
        for direction in [Direction::Send, Direction::Receive] {
            let Some(interval) = self.local_interval(direction, end_ns) else {
                continue;
            };
            self.send(IntervalReport {
                interval: interval.clone(),
            })?;
            self.series.add_local(now, interval);
        }
        Ok(())
    }

    /// Returns this end's half of an interval; `None` for a direction that is not counted here.
    fn local_interval(&mut self, direction: Direction, end_ns: Nanos) -> Option<Interval> {
        let plan = Arc::clone(&self.coordinator.plan);
        let start_ns = self.interval_start_ns;
        let now = clock::now();
        let mut reading = CounterReading::default();
        let mut times: Option<Histogram> = None;
        let mut role = None;
        let per_flow =
            (2..=MAX_STREAMS_IN_SERIES).contains(&plan.streams) && plan.kind == RunKind::Throughput;
        let mut totals_of_flows =
            Vec::with_capacity(if per_flow { plan.streams as usize } else { 0 });
        for flow in self
            .coordinator
            .ready
            .flows
            .iter()
            .filter(|f| f.direction == direction)
        {
            role = Some(flow.role);
            let totals = flow.shared.counters.read();
            reading.totals += totals;
            if per_flow {
                totals_of_flows.push((flow.id, totals));
            }
            if flow.role == FlowRole::Sender && plan.kind == RunKind::Latency {
                let mut slot = flow.shared.interval_times.lock().expect("no holder panics");
                if let Some(recent) = &mut slot.times {
                    times.get_or_insert_default().add(recent);
                    recent.clear();
                }
            }
        }
        let is_sender = role? == FlowRole::Sender;
        if plan.kind == RunKind::Latency && !is_sender {
            return None;
        }
        // Read after the counters, which belong to the end of the interval.
        let tcp = self.read_tcp_info(direction, now);
        let before = self
            .last_readings
            .insert(direction, reading)
            .unwrap_or_default();
        let mut delta = reading.totals.since(before.totals);
        if plan.kind == RunKind::Latency {
            // The times belong to the exact interval, the counters are read later.
            delta.packets = times.as_ref().map_or(0, Histogram::count);
            delta.bytes = delta.packets * plan.payload_bytes;
        }
        let is_udp = plan.protocol == TransportProtocol::Udp;
        let threads = (end_ns.saturating_sub(start_ns) >= MIN_THREAD_TIME_INTERVAL_NS)
            .then(|| {
                self.thread_costs
                    .interval_times(&self.coordinator.ready.workers, direction, now)
            })
            .flatten();
        let streams = self.stream_intervals(&totals_of_flows);
        self.sample_memory(now);
        Some(Interval {
            number: self.interval_number,
            start_ns: start_ns - self.run_clock.start_ns,
            end_ns: end_ns - self.run_clock.start_ns,
            direction,
            omitted: self.slot_start_ns < self.run_clock.count_from_ns,
            counted_at: if is_sender {
                FlowEnd::Sender
            } else {
                FlowEnd::Receiver
            },
            bytes: delta.bytes,
            packets: (is_udp || plan.kind == RunKind::Latency).then_some(delta.packets),
            calls: Some(delta.calls),
            bytes_sent: is_sender.then_some(delta.bytes),
            packets_sent: (is_sender && is_udp).then_some(delta.packets + delta.missing),
            lost: ((is_udp && !is_sender) || plan.kind == RunKind::Latency)
                .then_some(delta.missing),
            retransmits: tcp.map(|tcp| tcp.retransmits),
            cwnd_bytes: tcp.map(|tcp| tcp.cwnd_bytes),
            tcp_rtt_ns: tcp.map(|tcp| tcp.rtt_ns),
            rtt_ns: times.as_ref().and_then(Histogram::summary),
            tcp,
            sender_threads: threads.filter(|_| is_sender),
            receiver_threads: threads.filter(|_| !is_sender),
            streams,
        })
    }

    /// Returns TCP_INFO sums of the connections that this end sends on, since the last read; `None`
    /// without connections, or when the time budget is used up.
    fn read_tcp_info(&mut self, direction: Direction, now: Nanos) -> Option<TcpInterval> {
        if self.coordinator.plan.protocol != TransportProtocol::Tcp {
            return None;
        }
        let flows = (self.coordinator.ready.flows.iter())
            .filter(|flow| flow.direction == direction && flow.role == FlowRole::Sender);
        let (before, last_read_ns) = self.tcp_sums.get(&direction).copied().unwrap_or_default();
        let last_read_ns = last_read_ns.max(self.run_clock.start_ns);
        let next_read_ns = last_read_ns + TCP_INFO_BUDGET_NS * flows.clone().count() as Nanos;
        // The last interval is read in any case.
        let ended = self
            .coordinator
            .ready
            .workers
            .iter()
            .all(WorkerHandle::is_finished);
        if now < next_read_ns && !ended {
            return None;
        }
        let mut sums = TcpSums::default();
        for watch in flows.filter_map(|flow| flow.socket_watch.as_ref()) {
            if let Some(info) = watch.tcp_info() {
                sums.add(&info);
            }
        }
        self.tcp_sums.insert(direction, (sums, now));
        sums.since(&before, now.saturating_sub(last_read_ns))
    }

    /// Returns the interval of each flow, given its counters.
    fn stream_intervals(&mut self, counted: &[(u32, PayloadTotals)]) -> Vec<StreamInterval> {
        let is_udp = self.coordinator.plan.protocol == TransportProtocol::Udp;
        let mut streams = Vec::with_capacity(counted.len());
        for &(id, totals) in counted {
            let Some(flow) = find_flow(&self.coordinator.ready.flows, id) else {
                continue;
            };
            let is_sender = flow.role == FlowRole::Sender;
            let tcp = (flow.socket_watch.as_ref())
                .filter(|_| is_sender && !is_udp)
                .and_then(SocketWatch::tcp_info);
            let reading = CounterReading {
                totals,
                retransmits: tcp.map_or(0, |tcp| u64::from(tcp.retransmits)),
            };
            let before = self
                .last_flow_readings
                .insert(id, reading)
                .unwrap_or_default();
            let delta = totals.since(before.totals);
            streams.push(StreamInterval {
                id,
                bytes: delta.bytes,
                packets: is_udp.then_some(delta.packets),
                lost: (is_udp && !is_sender).then_some(delta.missing),
                retransmits: tcp.map(|_| reading.retransmits.saturating_sub(before.retransmits)),
                cwnd_bytes: tcp.map(|tcp| u64::from(tcp.cwnd) * u64::from(tcp.mss)),
                tcp_rtt_ns: tcp.map(|tcp| u64::from(tcp.rtt_us) * 1_000),
            });
        }
        streams
    }

    /// Closes the last interval: shorter than the others, or longer by the drain time.
    pub(super) fn close_last_interval(&mut self, now: Nanos) -> Result<(), SessionError> {
        if self.run_clock.interval_ns.is_none() {
            return Ok(());
        }
        let ended = self.finished_flows.iter().map(|flow| flow.ended_ns).max();
        let ended = ended.unwrap_or(now).max(self.window_end_ns().unwrap_or(0));
        // The other half arrives at the latest with the results, so the interval waits for it.
        self.report_interval(ended.max(self.interval_start_ns + 1), Nanos::MAX)
    }

    /// Emits the intervals with both halves.
    pub(super) fn emit_ready_intervals(&mut self) {
        for interval in self.series.take_ready(clock::now(), INTERVAL_GRACE_NS) {
            (self.coordinator.emit)(EventKind::Interval {
                interval: Box::new(interval),
            });
        }
    }
}
