//! Interval series: merges both ends' halves of each interval. The receiver counts arrivals, the
//! sender counts departures and retransmissions.

use std::collections::BTreeMap;

use linerate_record::cost::{MAX_STREAMS_IN_SERIES, StreamInterval};
use linerate_record::plan::Direction;
use linerate_record::record::{FlowEnd, Interval};
use linerate_sys::clock::Nanos;

/// Intervals of a direction in a record: about 30 MB of JSON. Later intervals are shown but not
/// stored, so that memory is bounded.
pub const MAX_INTERVALS: usize = 100_000;

/// Stream intervals of a direction in a record, of about the same size. Later intervals have only
/// the total.
pub const MAX_STREAM_INTERVALS: usize = 4 * MAX_INTERVALS;

/// Most intervals by which the other end's half may be ahead: a second of the shortest intervals (1
/// ms), and 0.6 MB of waiting halves.
const MAX_INTERVALS_AHEAD: u64 = 1_000;

/// Stream intervals in waiting halves: 0.2 MB. Further halves wait with the total only.
const MAX_STREAM_INTERVALS_AHEAD: usize = 2_048;

/// Interval series of a run, as built at both ends.
#[derive(Debug, Default)]
pub struct MergedSeries {
    by_direction: BTreeMap<Direction, IntervalHalves>,
}

#[derive(Debug, Default)]
struct IntervalHalves {
    /// Halves that wait for their counterpart, by number.
    local: BTreeMap<u64, (Nanos, Interval)>,
    peer: BTreeMap<u64, Interval>,
    /// Shown intervals, ascending by number.
    stored: Vec<Interval>,
    next_number: u64,
    omitted: u64,
    /// Number of stored stream intervals.
    stored_streams: usize,
    /// Number of stream intervals in the waiting halves of the other end.
    waiting_streams: usize,
}

impl MergedSeries {
    /// Adds this end's half of an interval.
    pub fn add_local(&mut self, now: Nanos, interval: Interval) {
        let halves = self.by_direction.entry(interval.direction).or_default();
        halves.local.insert(interval.number, (now, interval));
    }

    /// Adds the other end's half; invalid ones are dropped.
    pub fn add_peer(&mut self, mut interval: Interval) {
        interval.streams.truncate(MAX_STREAMS_IN_SERIES as usize);
        // Frees the capacity of the truncated part.
        interval.streams.shrink_to_fit();
        let halves = self.by_direction.entry(interval.direction).or_default();
        let number = interval.number;
        if number < halves.next_number {
            // Late: shown without this half already, but the record gets both.
            if let Ok(index) = halves
                .stored
                .binary_search_by_key(&number, |stored| stored.number)
            {
                let stored = &mut halves.stored[index];
                *stored =
                    merge_halves(Some(stored), Some(&interval)).expect("both halves are there");
            }
        } else if number < halves.next_number + MAX_INTERVALS_AHEAD {
            let before = halves.peer.remove(&number);
            halves.waiting_streams -= before.map_or(0, |before| before.streams.len());
            if halves.waiting_streams + interval.streams.len() > MAX_STREAM_INTERVALS_AHEAD {
                interval.streams = Vec::new();
            }
            halves.waiting_streams += interval.streams.len();
            halves.peer.insert(number, interval);
        }
    }

    /// Takes the intervals that can be shown: both halves exist, or the other one is late by more
    /// than `grace_ns`.
    pub fn take_ready(&mut self, now: Nanos, grace_ns: Nanos) -> Vec<Interval> {
        let mut out = Vec::new();
        for halves in self.by_direction.values_mut() {
            while let Some((&number, (since, local))) = halves.local.first_key_value() {
                // Round trips have no second half: only the requesting end counts.
                let no_counterpart =
                    local.rtt_ns.is_some() || now >= since.saturating_add(grace_ns);
                if !no_counterpart && !halves.peer.contains_key(&number) {
                    break;
                }
                let (_, local) = halves.local.remove(&number).expect("it was just seen");
                halves.emit(number, Some(local), &mut out);
            }
        }
        out
    }

    /// Returns the complete series, ascending by number, and the number of omitted intervals.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Interval>, u64) {
        let mut shown = self.take_ready(Nanos::MAX, 0);
        let mut omitted = 0;
        let mut out = Vec::new();
        for halves in self.by_direction.values_mut() {
            // Halves of the other end only: this one ended earlier.
            for number in halves.peer.keys().copied().collect::<Vec<_>>() {
                halves.emit(number, None, &mut shown);
            }
            omitted += halves.omitted;
            halves.count_once();
            out.append(&mut halves.stored);
        }
        out.sort_by_key(|interval| (interval.number, interval.direction));
        (out, omitted)
    }
}

impl IntervalHalves {
    /// Removes the sender's counts of an interval where the receiver's counts exist in another one.
    fn count_once(&mut self) {
        let receiver = |interval: &Interval| interval.counted_at == FlowEnd::Receiver;
        if !self.stored.iter().any(receiver) {
            return;
        }
        for interval in self
            .stored
            .iter_mut()
            .filter(|interval| !receiver(interval))
        {
            interval.counted_at = FlowEnd::Receiver;
            interval.bytes = 0;
            interval.packets = interval.packets.map(|_| 0);
            for stream in &mut interval.streams {
                stream.bytes = 0;
                stream.packets = stream.packets.map(|_| 0);
            }
        }
    }

    fn emit(&mut self, number: u64, local: Option<Interval>, out: &mut Vec<Interval>) {
        let peer = self.peer.remove(&number);
        self.waiting_streams -= peer.as_ref().map_or(0, |peer| peer.streams.len());
        let Some(merged) = merge_halves(local.as_ref(), peer.as_ref()) else {
            return;
        };
        self.next_number = self.next_number.max(number + 1);
        if self.stored.len() < MAX_INTERVALS {
            let mut stored = merged.clone();
            self.stored_streams += stored.streams.len();
            if self.stored_streams > MAX_STREAM_INTERVALS {
                stored.streams = Vec::new();
            }
            self.stored.push(stored);
        } else {
            self.omitted += 1;
        }
        out.push(merged);
    }
}

/// Merges the halves of an interval; times and counts of the receiver take precedence.
fn merge_halves(a: Option<&Interval>, b: Option<&Interval>) -> Option<Interval> {
    let half = |counted_at| {
        [a, b]
            .into_iter()
            .flatten()
            .find(|half| half.counted_at == counted_at)
    };
    let (receiver, sender) = (half(FlowEnd::Receiver), half(FlowEnd::Sender));
    let Some(receiver) = receiver else {
        return sender.cloned();
    };
    let mut merged = receiver.clone();
    if let Some(sender) = sender {
        merged.bytes_sent = sender.bytes_sent;
        merged.packets_sent = sender.packets_sent;
        merged.retransmits = sender.retransmits;
        if merged.packets.is_none() {
            // TCP has no packet count; the calls are those of the sender.
            merged.calls = sender.calls;
        }
        merged.cwnd_bytes = sender.cwnd_bytes;
        merged.tcp_rtt_ns = sender.tcp_rtt_ns;
        merged.tcp = sender.tcp;
        merged.sender_threads = sender.sender_threads;
        merge_streams(&mut merged.streams, &sender.streams);
    }
    Some(merged)
}

/// Adds the TCP figures of the sender to each flow.
fn merge_streams(streams: &mut [StreamInterval], sender: &[StreamInterval]) {
    for stream in streams {
        if let Some(sender) = sender.iter().find(|sender| sender.id == stream.id) {
            stream.retransmits = sender.retransmits;
            stream.cwnd_bytes = sender.cwnd_bytes;
            stream.tcp_rtt_ns = sender.tcp_rtt_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(number: u64, end: FlowEnd, bytes: u64) -> Interval {
        Interval {
            number,
            start_ns: number * 1_000,
            end_ns: number * 1_000 + 1_000,
            direction: Direction::Send,
            omitted: false,
            counted_at: end,
            bytes,
            packets: None,
            calls: None,
            bytes_sent: (end == FlowEnd::Sender).then_some(bytes),
            packets_sent: None,
            lost: None,
            retransmits: (end == FlowEnd::Sender).then_some(3),
            cwnd_bytes: None,
            tcp_rtt_ns: None,
            rtt_ns: None,
            tcp: None,
            sender_threads: None,
            receiver_threads: None,
            streams: Vec::new(),
        }
    }

    #[test]
    fn the_receiver_counts_and_the_sender_adds() {
        let mut series = MergedSeries::default();
        series.add_local(0, interval(0, FlowEnd::Sender, 100));
        assert!(
            series.take_ready(10, 50).is_empty(),
            "the other half may come"
        );
        series.add_peer(interval(0, FlowEnd::Receiver, 90));
        let ready = series.take_ready(10, 50);
        assert_eq!(ready.len(), 1);
        assert_eq!((ready[0].bytes, ready[0].bytes_sent), (90, Some(100)));
        assert_eq!(ready[0].retransmits, Some(3));
        assert!(
            series.take_ready(1_000, 50).is_empty(),
            "nothing is shown twice"
        );
        assert_eq!(series.finish().0.len(), 1);
    }

    #[test]
    fn a_missing_half_is_not_waited_for() {
        let mut series = MergedSeries::default();
        series.add_local(0, interval(0, FlowEnd::Sender, 100));
        let ready = series.take_ready(60, 50);
        assert_eq!(ready[0].counted_at, FlowEnd::Sender);
    }

    #[test]
    fn streams_are_matched_by_number() {
        let stream = |id, bytes, retransmits| StreamInterval {
            id,
            bytes,
            retransmits,
            ..StreamInterval::default()
        };
        let mut series = MergedSeries::default();
        let mut sent = interval(0, FlowEnd::Sender, 100);
        sent.streams = vec![stream(1, 60, Some(2)), stream(2, 40, Some(0))];
        let mut received = interval(0, FlowEnd::Receiver, 90);
        received.streams = vec![stream(2, 40, None), stream(1, 50, None)];
        series.add_local(0, sent);
        series.add_peer(received);
        let intervals = series.finish().0;
        assert_eq!(
            intervals[0].streams,
            [stream(2, 40, Some(0)), stream(1, 50, Some(2))]
        );
    }

    #[test]
    fn a_late_half_reaches_the_record() {
        let mut series = MergedSeries::default();
        series.add_local(0, interval(0, FlowEnd::Sender, 100));
        assert_eq!(series.take_ready(60, 50).len(), 1);
        series.add_peer(interval(0, FlowEnd::Receiver, 90));
        assert_eq!(series.finish().0[0].bytes, 90);
    }

    #[test]
    fn halves_are_matched_by_number() {
        let mut series = MergedSeries::default();
        series.add_local(0, interval(1, FlowEnd::Sender, 100));
        series.add_peer(interval(0, FlowEnd::Receiver, 70));
        series.add_peer(interval(1, FlowEnd::Receiver, 90));
        assert_eq!(series.take_ready(0, 50)[0].bytes, 90);
        let (intervals, _) = series.finish();
        assert_eq!(
            intervals.iter().map(|i| i.bytes).collect::<Vec<_>>(),
            [70, 90]
        );
    }

    #[test]
    fn halves_of_a_peer_that_is_ahead_take_little_memory() {
        let mut series = MergedSeries::default();
        let streams = vec![StreamInterval::default(); 16_000];
        for _ in 0..2 {
            for number in 0..2 * MAX_INTERVALS_AHEAD {
                series.add_peer(Interval {
                    streams: streams.clone(),
                    ..interval(number, FlowEnd::Receiver, 1)
                });
            }
        }
        let halves = &series.by_direction[&Direction::Send];
        let capacity = |half: &Interval| half.streams.capacity();
        assert_eq!(halves.peer.len(), MAX_INTERVALS_AHEAD as usize);
        assert!(halves.peer.values().map(capacity).sum::<usize>() <= MAX_STREAM_INTERVALS_AHEAD);
        assert_eq!(capacity(&halves.peer[&0]), MAX_STREAMS_IN_SERIES as usize);
        // Halves that meet their counterpart free their budget.
        for number in 0..MAX_INTERVALS_AHEAD {
            series.add_local(0, interval(number, FlowEnd::Sender, 1));
        }
        series.take_ready(0, 0);
        assert_eq!(series.by_direction[&Direction::Send].waiting_streams, 0);
    }

    #[test]
    fn a_long_run_and_a_lying_peer_take_no_more_memory() {
        let mut series = MergedSeries::default();
        for number in 0..MAX_INTERVALS as u64 + 10 {
            series.add_peer(interval(number + 1_000_000_000, FlowEnd::Receiver, 1));
            series.add_local(0, interval(number, FlowEnd::Sender, 1));
            series.take_ready(1, 0);
        }
        let (stored, omitted) = series.finish();
        assert_eq!((stored.len(), omitted), (MAX_INTERVALS, 10));
    }
}
