//! Interval series: merges both ends' halves of each interval. The receiver counts arrivals, the
//! sender counts departures and retransmissions.

use std::collections::BTreeMap;

use linerate_host::sys::clock::Nanos;
use linerate_metric::cost::{STREAMS_IN_SERIES, StreamInterval};
use linerate_metric::plan::Direction;
use linerate_metric::record::{CountedAt, Interval};

/// Intervals of a direction in a record: about 30 MB of JSON. Later intervals are shown but not
/// stored, so that memory is bounded.
pub const KEPT: usize = 100_000;

/// Stream intervals of a direction in a record, of about the same size. Later intervals have only
/// the total.
pub const KEPT_STREAMS: usize = 4 * KEPT;

/// Most intervals by which the other end's half may be ahead: a second of the shortest intervals (1
/// ms), and 0.6 MB of waiting halves.
const AHEAD: u64 = 1_000;

/// Stream intervals in waiting halves: 0.2 MB. Further halves wait with the total only.
const AHEAD_STREAMS: usize = 2_048;

/// Interval series of a run, as built at both ends.
#[derive(Debug, Default)]
pub struct Series {
    by_direction: BTreeMap<Direction, Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    /// Halves that wait for their counterpart, by number.
    own: BTreeMap<u64, (Nanos, Interval)>,
    peer: BTreeMap<u64, Interval>,
    /// Shown intervals, ascending by number.
    kept: Vec<Interval>,
    next: u64,
    left_out: u64,
    /// Number of stored stream intervals.
    streams: usize,
    /// Number of stream intervals in the waiting halves of the other end.
    waiting_streams: usize,
}

impl Series {
    /// Adds this end's half of an interval.
    pub fn own(&mut self, now: Nanos, interval: Interval) {
        let halves = self.by_direction.entry(interval.direction).or_default();
        halves.own.insert(interval.number, (now, interval));
    }

    /// Adds the other end's half; invalid ones are dropped.
    pub fn peer(&mut self, mut interval: Interval) {
        interval.streams.truncate(STREAMS_IN_SERIES as usize);
        // Frees the capacity of the truncated part.
        interval.streams.shrink_to_fit();
        let halves = self.by_direction.entry(interval.direction).or_default();
        let number = interval.number;
        if number < halves.next {
            // Late: shown without this half already, but the record gets both.
            if let Ok(index) = halves
                .kept
                .binary_search_by_key(&number, |kept| kept.number)
            {
                let kept = &mut halves.kept[index];
                *kept = join(Some(kept), Some(&interval)).expect("both halves are there");
            }
        } else if number < halves.next + AHEAD {
            let before = halves.peer.remove(&number);
            halves.waiting_streams -= before.map_or(0, |before| before.streams.len());
            if halves.waiting_streams + interval.streams.len() > AHEAD_STREAMS {
                interval.streams = Vec::new();
            }
            halves.waiting_streams += interval.streams.len();
            halves.peer.insert(number, interval);
        }
    }

    /// Takes the intervals that can be shown: both halves exist, or the other one is late by more
    /// than `grace_ns`.
    pub fn ready(&mut self, now: Nanos, grace_ns: Nanos) -> Vec<Interval> {
        let mut out = Vec::new();
        for halves in self.by_direction.values_mut() {
            while let Some((&number, (since, own))) = halves.own.first_key_value() {
                // Round trips have no second half: only the requesting end counts.
                let alone = own.rtt_ns.is_some() || now >= since.saturating_add(grace_ns);
                if !alone && !halves.peer.contains_key(&number) {
                    break;
                }
                let (_, own) = halves.own.remove(&number).expect("it was just seen");
                halves.show(number, Some(own), &mut out);
            }
        }
        out
    }

    /// Returns the complete series, ascending by number, and the number of omitted intervals.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Interval>, u64) {
        let mut shown = self.ready(Nanos::MAX, 0);
        let mut left_out = 0;
        let mut out = Vec::new();
        for halves in self.by_direction.values_mut() {
            // Halves of the other end only: this one ended earlier.
            for number in halves.peer.keys().copied().collect::<Vec<_>>() {
                halves.show(number, None, &mut shown);
            }
            left_out += halves.left_out;
            halves.count_once();
            out.append(&mut halves.kept);
        }
        out.sort_by_key(|interval| (interval.number, interval.direction));
        (out, left_out)
    }
}

impl Halves {
    /// Removes the sender's counts of an interval where the receiver's counts exist in another one.
    fn count_once(&mut self) {
        let receiver = |interval: &Interval| interval.counted_at == CountedAt::Receiver;
        if !self.kept.iter().any(receiver) {
            return;
        }
        for interval in self.kept.iter_mut().filter(|interval| !receiver(interval)) {
            interval.counted_at = CountedAt::Receiver;
            interval.bytes = 0;
            interval.packets = interval.packets.map(|_| 0);
            for stream in &mut interval.streams {
                stream.bytes = 0;
                stream.packets = stream.packets.map(|_| 0);
            }
        }
    }

    fn show(&mut self, number: u64, own: Option<Interval>, out: &mut Vec<Interval>) {
        let peer = self.peer.remove(&number);
        self.waiting_streams -= peer.as_ref().map_or(0, |peer| peer.streams.len());
        let Some(whole) = join(own.as_ref(), peer.as_ref()) else {
            return;
        };
        self.next = self.next.max(number + 1);
        if self.kept.len() < KEPT {
            let mut kept = whole.clone();
            self.streams += kept.streams.len();
            if self.streams > KEPT_STREAMS {
                kept.streams = Vec::new();
            }
            self.kept.push(kept);
        } else {
            self.left_out += 1;
        }
        out.push(whole);
    }
}

/// Merges the halves of an interval; times and counts of the receiver take precedence.
fn join(a: Option<&Interval>, b: Option<&Interval>) -> Option<Interval> {
    let half = |end| {
        [a, b]
            .into_iter()
            .flatten()
            .find(|half| half.counted_at == end)
    };
    let (receiver, sender) = (half(CountedAt::Receiver), half(CountedAt::Sender));
    let Some(receiver) = receiver else {
        return sender.cloned();
    };
    let mut whole = receiver.clone();
    if let Some(sender) = sender {
        whole.bytes_sent = sender.bytes_sent;
        whole.packets_sent = sender.packets_sent;
        whole.retransmits = sender.retransmits;
        if whole.packets.is_none() {
            // TCP has no packet count; the calls are those of the sender.
            whole.calls = sender.calls;
        }
        whole.cwnd_bytes = sender.cwnd_bytes;
        whole.tcp_rtt_ns = sender.tcp_rtt_ns;
        whole.tcp = sender.tcp;
        whole.sender_threads = sender.sender_threads;
        join_streams(&mut whole.streams, &sender.streams);
    }
    Some(whole)
}

/// Adds the TCP figures of the sender to each flow.
fn join_streams(whole: &mut [StreamInterval], sender: &[StreamInterval]) {
    for stream in whole {
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

    fn interval(number: u64, end: CountedAt, bytes: u64) -> Interval {
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
            bytes_sent: (end == CountedAt::Sender).then_some(bytes),
            packets_sent: None,
            lost: None,
            retransmits: (end == CountedAt::Sender).then_some(3),
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
        let mut series = Series::default();
        series.own(0, interval(0, CountedAt::Sender, 100));
        assert!(series.ready(10, 50).is_empty(), "the other half may come");
        series.peer(interval(0, CountedAt::Receiver, 90));
        let ready = series.ready(10, 50);
        assert_eq!(ready.len(), 1);
        assert_eq!((ready[0].bytes, ready[0].bytes_sent), (90, Some(100)));
        assert_eq!(ready[0].retransmits, Some(3));
        assert!(series.ready(1_000, 50).is_empty(), "nothing is shown twice");
        assert_eq!(series.finish().0.len(), 1);
    }

    #[test]
    fn a_half_that_does_not_come_is_not_waited_for() {
        let mut series = Series::default();
        series.own(0, interval(0, CountedAt::Sender, 100));
        let ready = series.ready(60, 50);
        assert_eq!(ready[0].counted_at, CountedAt::Sender);
    }

    #[test]
    fn streams_meet_by_number_too() {
        let stream = |id, bytes, retransmits| StreamInterval {
            id,
            bytes,
            retransmits,
            ..StreamInterval::default()
        };
        let mut series = Series::default();
        let mut sent = interval(0, CountedAt::Sender, 100);
        sent.streams = vec![stream(1, 60, Some(2)), stream(2, 40, Some(0))];
        let mut received = interval(0, CountedAt::Receiver, 90);
        received.streams = vec![stream(2, 40, None), stream(1, 50, None)];
        series.own(0, sent);
        series.peer(received);
        let whole = series.finish().0;
        assert_eq!(
            whole[0].streams,
            [stream(2, 40, Some(0)), stream(1, 50, Some(2))]
        );
    }

    #[test]
    fn a_late_half_still_reaches_the_record() {
        let mut series = Series::default();
        series.own(0, interval(0, CountedAt::Sender, 100));
        assert_eq!(series.ready(60, 50).len(), 1);
        series.peer(interval(0, CountedAt::Receiver, 90));
        assert_eq!(series.finish().0[0].bytes, 90);
    }

    #[test]
    fn halves_meet_by_number_and_not_by_order() {
        let mut series = Series::default();
        series.own(0, interval(1, CountedAt::Sender, 100));
        series.peer(interval(0, CountedAt::Receiver, 70));
        series.peer(interval(1, CountedAt::Receiver, 90));
        assert_eq!(series.ready(0, 50)[0].bytes, 90);
        let (whole, _) = series.finish();
        assert_eq!(whole.iter().map(|i| i.bytes).collect::<Vec<_>>(), [70, 90]);
    }

    #[test]
    fn what_a_peer_says_ahead_takes_little_memory() {
        let mut series = Series::default();
        let streams = vec![StreamInterval::default(); 16_000];
        for _ in 0..2 {
            for number in 0..2 * AHEAD {
                series.peer(Interval {
                    streams: streams.clone(),
                    ..interval(number, CountedAt::Receiver, 1)
                });
            }
        }
        let halves = &series.by_direction[&Direction::Send];
        let room = |half: &Interval| half.streams.capacity();
        assert_eq!(halves.peer.len(), AHEAD as usize);
        assert!(halves.peer.values().map(room).sum::<usize>() <= AHEAD_STREAMS);
        assert_eq!(room(&halves.peer[&0]), STREAMS_IN_SERIES as usize);
        // Halves that meet their counterpart free their budget.
        for number in 0..AHEAD {
            series.own(0, interval(number, CountedAt::Sender, 1));
        }
        series.ready(0, 0);
        assert_eq!(series.by_direction[&Direction::Send].waiting_streams, 0);
    }

    #[test]
    fn a_long_run_and_a_lying_peer_take_no_more_memory() {
        let mut series = Series::default();
        for number in 0..KEPT as u64 + 10 {
            series.peer(interval(number + 1_000_000_000, CountedAt::Receiver, 1));
            series.own(0, interval(number, CountedAt::Sender, 1));
            series.ready(1, 0);
        }
        let (kept, left_out) = series.finish();
        assert_eq!((kept.len(), left_out), (KEPT, 10));
    }
}
