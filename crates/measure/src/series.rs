//! Joins the two ends' halves of each interval: the receiver counts what arrived, the sender knows
//! what left and what its kernel sent again.

use std::collections::BTreeMap;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Direction;
use linerate_metric::record::{CountedAt, Interval};

/// The series of a run, as it grows at both ends.
#[derive(Debug, Default)]
pub struct Series {
    by_direction: BTreeMap<Direction, Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    own: Vec<(Nanos, Interval)>,
    peer: Vec<Interval>,
    shown: usize,
}

impl Series {
    /// Takes this end's half of the next interval of its direction.
    pub fn own(&mut self, now: Nanos, interval: Interval) {
        let halves = self.by_direction.entry(interval.direction).or_default();
        halves.own.push((now, interval));
    }

    /// Takes the other end's half.
    pub fn peer(&mut self, interval: Interval) {
        let halves = self.by_direction.entry(interval.direction).or_default();
        halves.peer.push(interval);
    }

    /// Intervals that can be shown now: both halves are there, or the other one is late by more
    /// than `grace_ns`.
    pub fn ready(&mut self, now: Nanos, grace_ns: Nanos) -> Vec<Interval> {
        let mut out = Vec::new();
        for halves in self.by_direction.values_mut() {
            while let Some((since, own)) = halves.own.get(halves.shown) {
                let peer = halves.peer.get(halves.shown);
                // Round trips have no second half: the asking end counts alone.
                if peer.is_none() && own.rtt_ns.is_none() && now < since + grace_ns {
                    break;
                }
                out.push(join(Some(own), peer).expect("one half is there"));
                halves.shown += 1;
            }
        }
        out
    }

    /// The whole series, ascending in time.
    #[must_use]
    pub fn finish(self) -> Vec<Interval> {
        let mut out = Vec::new();
        for halves in self.by_direction.values() {
            for index in 0..halves.own.len().max(halves.peer.len()) {
                let own = halves.own.get(index).map(|(_, interval)| interval);
                out.extend(join(own, halves.peer.get(index)));
            }
        }
        out.sort_by_key(|interval| (interval.start_ns, interval.direction));
        out
    }
}

/// One interval from its halves, the receiver's times and counts first.
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
            // A stream has no packets to count; the calls that made it are the sender's.
            whole.calls = sender.calls;
        }
        whole.cwnd_bytes = sender.cwnd_bytes;
        whole.tcp_rtt_ns = sender.tcp_rtt_ns;
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(direction: Direction, end: CountedAt, bytes: u64) -> Interval {
        Interval {
            start_ns: 0,
            end_ns: 1_000,
            direction,
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
        }
    }

    #[test]
    fn the_receiver_counts_and_the_sender_adds() {
        let mut series = Series::default();
        series.own(0, interval(Direction::Send, CountedAt::Sender, 100));
        assert!(series.ready(10, 50).is_empty(), "the other half may come");
        series.peer(interval(Direction::Send, CountedAt::Receiver, 90));
        let ready = series.ready(10, 50);
        assert_eq!(ready.len(), 1);
        assert_eq!((ready[0].bytes, ready[0].bytes_sent), (90, Some(100)));
        assert_eq!(ready[0].retransmits, Some(3));
        assert!(series.ready(1_000, 50).is_empty(), "nothing is shown twice");
        assert_eq!(series.finish().len(), 1);
    }

    #[test]
    fn a_half_that_does_not_come_is_not_waited_for() {
        let mut series = Series::default();
        series.own(0, interval(Direction::Send, CountedAt::Sender, 100));
        let ready = series.ready(60, 50);
        assert_eq!(ready[0].counted_at, CountedAt::Sender);
    }

    #[test]
    fn a_late_half_still_reaches_the_record() {
        let mut series = Series::default();
        series.own(0, interval(Direction::Send, CountedAt::Sender, 100));
        assert_eq!(series.ready(60, 50).len(), 1);
        series.peer(interval(Direction::Send, CountedAt::Receiver, 90));
        assert_eq!(series.finish()[0].bytes, 90);
    }
}
