//! Interval series of a test, by direction.

use std::collections::BTreeMap;

use linerate_record::event::EventKind;
use linerate_record::plan::{Direction, RunKind, TransportProtocol};
use linerate_record::record::{FlowEnd, Interval};
use linerate_session::interval_series::MAX_INTERVALS;
use linerate_session::tcp_info_sums::TcpSums;
use linerate_sys::clock::Nanos;
use linerate_sys::socket;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;

use super::{FLOW_SILENCE_TIMEOUT, INTERVAL_NS, TestRun};

/// Limit of intervals held back as possible silence after the end: the whole silence after which a
/// client without an end marker counts as gone.
const SILENT_INTERVAL_LIMIT: usize =
    (FLOW_SILENCE_TIMEOUT.as_nanos() as u64 / INTERVAL_NS) as usize + 2;

/// Silence at the end of an interval from which it may be the last one with payload.
const SILENT_NS: Nanos = 100_000_000;

/// Totals at the end of an interval, by direction.
type DirectionTotals = BTreeMap<Direction, (PayloadTotals, TcpSums)>;

/// Intervals that end in silence: discarded if the test is over, emitted if it goes on.
#[derive(Default)]
pub(super) struct SilentIntervals {
    intervals: Vec<Interval>,
    /// Start of the first of them: its time, its number, and the totals at that time.
    start: Option<(Nanos, u64, DirectionTotals)>,
}

impl TestRun {
    pub(super) fn close_interval(&mut self, end_ns: Nanos) {
        let spans = self
            .workers
            .iter()
            .filter_map(|worker| worker.context.payload_times());
        let last = spans.map(|(_, last)| last).max().unwrap_or(0);
        let silent = self.ends_by_silence && end_ns.saturating_sub(last) > SILENT_NS;
        if silent
            && self.silent_intervals.intervals.len()
                < SILENT_INTERVAL_LIMIT * self.plan.directions.len()
        {
            let from = (
                self.interval_start_ns,
                self.interval_number,
                self.last_totals.clone(),
            );
            self.silent_intervals.start.get_or_insert(from);
        } else {
            self.emit_held();
        }
        let udp = self.plan.protocol == TransportProtocol::Udp;
        let omitted = self.interval_start_ns < self.counting_start_ns;
        for &direction in &self.plan.directions.clone() {
            let mut sum = PayloadTotals::default();
            let mut tcp = TcpSums::default();
            let workers = self.workers[self.phase_start..]
                .iter()
                .filter(|worker| worker.direction() == direction);
            // A direction without a running flow has no rate of zero.
            let Some(role) = workers.clone().next().map(|worker| worker.role) else {
                continue;
            };
            for worker in workers {
                sum += worker.context.counters.read();
                if let (Some(watch), FlowRole::Sender, false) = (&worker.watch, worker.role, udp)
                    && let Ok(info) = socket::read_tcp_info(watch)
                {
                    tcp.add(&info);
                }
            }
            let (last, last_tcp) = self
                .last_totals
                .insert(direction, (sum, tcp))
                .unwrap_or_default();
            let delta = sum.since(last);
            let length_ns = end_ns.saturating_sub(self.interval_start_ns);
            let tcp = tcp.since(&last_tcp, length_ns);
            let sends = role == FlowRole::Sender;
            let counts_packets = udp || self.plan.kind == RunKind::Latency;
            // Of requests, these are round trips with a response.
            let packets = match self.plan.kind {
                RunKind::Latency => delta.packets.saturating_sub(delta.missing),
                _ => delta.packets,
            };
            let interval = Interval {
                number: self.interval_number,
                start_ns: self.interval_start_ns - self.start_ns,
                end_ns: end_ns - self.start_ns,
                direction,
                omitted,
                counted_at: match role {
                    FlowRole::Sender => FlowEnd::Sender,
                    FlowRole::Receiver => FlowEnd::Receiver,
                },
                bytes: delta.bytes,
                packets: counts_packets.then_some(packets),
                calls: Some(delta.calls),
                bytes_sent: sends.then_some(delta.bytes),
                packets_sent: (sends && udp).then_some(delta.packets),
                lost: (!sends && udp && self.has_sequence_numbers).then_some(delta.missing),
                retransmits: tcp.map(|tcp| tcp.retransmits),
                cwnd_bytes: tcp.map(|tcp| tcp.cwnd_bytes),
                tcp_rtt_ns: tcp.map(|tcp| tcp.rtt_ns),
                rtt_ns: None,
                tcp,
                sender_threads: None,
                receiver_threads: None,
                streams: Vec::new(),
            };
            match self.silent_intervals.start {
                Some(_) => self.silent_intervals.intervals.push(interval),
                None => self.emit_interval(interval),
            }
        }
        self.interval_start_ns = end_ns;
        self.interval_number += 1;
    }

    /// Discards held intervals: the test is over, and the silence before that belongs to no
    /// interval.
    pub(super) fn discard_silence(&mut self) {
        if let Some((interval_start_ns, interval_number, last_totals)) =
            std::mem::take(&mut self.silent_intervals).start
        {
            (
                self.interval_start_ns,
                self.interval_number,
                self.last_totals,
            ) = (interval_start_ns, interval_number, last_totals);
        }
        self.ends_by_silence = false;
    }

    /// Emits held intervals: the test went on.
    pub(super) fn emit_held(&mut self) {
        for interval in std::mem::take(&mut self.silent_intervals).intervals {
            self.emit_interval(interval);
        }
    }

    fn emit_interval(&mut self, interval: Interval) {
        self.emit(EventKind::Interval {
            interval: Box::new(interval.clone()),
        });
        if self.intervals.len() < MAX_INTERVALS {
            self.intervals.push(interval);
        } else {
            self.dropped_intervals += 1;
        }
    }

    /// Returns the intervals that were emitted.
    #[must_use]
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }
}
