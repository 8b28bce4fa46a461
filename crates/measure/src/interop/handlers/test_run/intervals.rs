//! Interval series of a test, by direction.

use std::collections::BTreeMap;

use linerate_host::sys::clock::Nanos;
use linerate_host::sys::socket;
use linerate_metric::event::What;
use linerate_metric::plan::{Direction, Kind, Protocol};
use linerate_metric::record::{CountedAt, Interval};

use super::{FLOW_SILENCE, INTERVAL_NS, Test};
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::interval_series::KEPT;
use crate::tcp_info_sums::TcpSums;

/// Limit of intervals held back as possible silence after the end: the whole silence after which a
/// client without an end marker counts as gone.
const HELD: usize = (FLOW_SILENCE.as_nanos() as u64 / INTERVAL_NS) as usize + 2;

/// Silence at the end of an interval from which it may be the last one with payload.
const SILENT_NS: Nanos = 100_000_000;

/// Totals at the end of an interval, by direction.
type Counted = BTreeMap<Direction, (Totals, TcpSums)>;

/// Intervals that end in silence: discarded if the test is over, emitted if it goes on.
#[derive(Default)]
pub(super) struct Held {
    intervals: Vec<Interval>,
    /// Start of the first of them: its time, its number, and the totals at that time.
    from: Option<(Nanos, u64, Counted)>,
}

impl Test {
    pub(super) fn interval(&mut self, end: Nanos) {
        let spans = self.lanes.iter().filter_map(|lane| lane.context.span());
        let last = spans.map(|(_, last)| last).max().unwrap_or(0);
        let silent = self.ends_by_silence && end.saturating_sub(last) > SILENT_NS;
        if silent && self.held.intervals.len() < HELD * self.plan.directions.len() {
            let from = (self.from_ns, self.number, self.last.clone());
            self.held.from.get_or_insert(from);
        } else {
            self.tell_held();
        }
        let udp = self.plan.protocol == Protocol::Udp;
        let omitted = self.from_ns < self.counts_ns;
        for &direction in &self.plan.directions.clone() {
            let mut sum = Totals::default();
            let mut tcp = TcpSums::default();
            let lanes = self.lanes[self.part..]
                .iter()
                .filter(|lane| lane.direction() == direction);
            // A direction without a running flow has no rate of zero.
            let Some(part) = lanes.clone().next().map(|lane| lane.part) else {
                continue;
            };
            for lane in lanes {
                sum += lane.context.meter.read();
                if let (Some(watch), Part::Source, false) = (&lane.watch, lane.part, udp)
                    && let Ok(info) = socket::tcp_info(watch)
                {
                    tcp.add(&info);
                }
            }
            let (last, last_tcp) = self.last.insert(direction, (sum, tcp)).unwrap_or_default();
            let more = sum.since(last);
            let length_ns = end.saturating_sub(self.from_ns);
            let tcp = tcp.since(&last_tcp, length_ns);
            let sends = part == Part::Source;
            let counts_packets = udp || self.plan.kind == Kind::Latency;
            // Of requests, these are round trips with a response.
            let packets = match self.plan.kind {
                Kind::Latency => more.packets.saturating_sub(more.missing),
                _ => more.packets,
            };
            let interval = Interval {
                number: self.number,
                start_ns: self.from_ns - self.start_ns,
                end_ns: end - self.start_ns,
                direction,
                omitted,
                counted_at: match part {
                    Part::Source => CountedAt::Sender,
                    Part::Sink => CountedAt::Receiver,
                },
                bytes: more.bytes,
                packets: counts_packets.then_some(packets),
                calls: Some(more.calls),
                bytes_sent: sends.then_some(more.bytes),
                packets_sent: (sends && udp).then_some(more.packets),
                lost: (!sends && udp && self.numbered).then_some(more.missing),
                retransmits: tcp.map(|tcp| tcp.retransmits),
                cwnd_bytes: tcp.map(|tcp| tcp.cwnd_bytes),
                tcp_rtt_ns: tcp.map(|tcp| tcp.rtt_ns),
                rtt_ns: None,
                tcp,
                sender_threads: None,
                receiver_threads: None,
                streams: Vec::new(),
            };
            match self.held.from {
                Some(_) => self.held.intervals.push(interval),
                None => self.tell(interval),
            }
        }
        self.from_ns = end;
        self.number += 1;
    }

    /// Discards held intervals: the test is over, and the silence before that belongs to no
    /// interval.
    pub(super) fn forget_silence(&mut self) {
        if let Some((from_ns, number, last)) = std::mem::take(&mut self.held).from {
            (self.from_ns, self.number, self.last) = (from_ns, number, last);
        }
        self.ends_by_silence = false;
    }

    /// Emits held intervals: the test went on.
    pub(super) fn tell_held(&mut self) {
        for interval in std::mem::take(&mut self.held).intervals {
            self.tell(interval);
        }
    }

    fn tell(&mut self, interval: Interval) {
        self.emit(What::Interval {
            interval: Box::new(interval.clone()),
        });
        if self.intervals.len() < KEPT {
            self.intervals.push(interval);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the intervals that were emitted.
    #[must_use]
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }
}
