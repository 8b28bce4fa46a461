//! A flow: one stream of payload, or of questions and answers, between the two ends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use linerate_dialect::control::flow::{OPENING_BYTES, read_answer, read_opening};
use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Direction;
use linerate_metric::record::Socket as SocketFacts;

use crate::meter::{Meter, Totals};
use crate::sequence::Sequence;

/// What an end does in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Sends payload, or asks.
    Source,
    /// Receives payload, or answers.
    Sink,
}

/// Whether a datagram belongs to the opening of a UDP flow: a repeated one may come late.
#[inline]
#[must_use]
pub fn is_greeting(payload: &[u8]) -> bool {
    payload.len() == OPENING_BYTES
        && (read_opening(payload).is_some() || read_answer(payload).is_some())
}

/// When a run counts, on this end's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Payload may move.
    pub start_ns: Nanos,
    /// From here it is counted.
    pub count_from_ns: Nanos,
    /// Length of a reporting interval; `None`: no reports.
    pub interval_ns: Option<Nanos>,
}

impl Timeline {
    /// The end of the interval that begins at `start_ns`; `None` when there are no reports.
    ///
    /// The omitted time ends an interval early, so that none is half counted.
    #[must_use]
    pub fn interval_end(&self, start_ns: Nanos) -> Option<Nanos> {
        let end = start_ns + self.interval_ns?;
        if start_ns < self.count_from_ns {
            return Some(end.min(self.count_from_ns));
        }
        Some(end)
    }
}

/// How a run goes on, told to its threads by the coordinator.
#[derive(Debug, Default)]
pub struct Phase(AtomicU8);

impl Phase {
    const RUNNING: u8 = 0;
    const ENDING: u8 = 1;
    const ABORTED: u8 = 2;

    /// Sources stop; sinks take what is still on its way.
    pub fn end(&self) {
        self.0.fetch_max(Self::ENDING, Relaxed);
    }

    /// Everybody stops as soon as they look.
    pub fn abort(&self) {
        self.0.fetch_max(Self::ABORTED, Relaxed);
    }

    /// Whether sources are to stop.
    #[inline]
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.0.load(Relaxed) != Self::RUNNING
    }

    /// Whether everybody is to stop.
    #[inline]
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.load(Relaxed) == Self::ABORTED
    }
}

/// What the threads of a flow and the coordinator share.
#[derive(Debug)]
pub struct Shared {
    /// Written by the measuring thread, read by the coordinator.
    pub meter: Meter,
    /// Packets that the source has sent in all, once it has said so.
    expected: AtomicU64,
    /// Round-trip times of the interval that ended last: locked once per interval by each side.
    pub mailbox: Mutex<Mailbox>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            meter: Meter::default(),
            expected: AtomicU64::new(u64::MAX),
            mailbox: Mutex::default(),
        }
    }
}

impl Shared {
    /// Notes how many packets the source has sent in all.
    pub fn expect(&self, packets: u64) {
        // The largest number means "not known".
        self.expected.store(packets.min(u64::MAX - 1), Relaxed);
    }

    /// How many packets the source has sent in all; `None` while it still sends.
    #[inline]
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        let packets = self.expected.load(Relaxed);
        (packets != u64::MAX).then_some(packets)
    }
}

/// Round-trip times handed from an asking thread to the coordinator, interval by interval.
#[derive(Debug, Default)]
pub struct Mailbox {
    /// How many intervals the thread has left behind.
    pub intervals_ended: u64,
    /// The times of those that nobody has fetched yet; allocated when the flow opens.
    pub times: Option<Histogram>,
}

/// What one end of a flow came to.
#[derive(Debug)]
pub struct FlowOutcome {
    /// Number of the flow.
    pub id: u32,
    /// Which way it went.
    pub direction: Direction,
    /// What this end did.
    pub part: Part,
    /// What it moved, the omitted time included.
    pub totals: Totals,
    /// Sink of numbered datagrams: what their numbers told.
    pub sequence: Option<Sequence>,
    /// Asking end: the counted round-trip times.
    pub times: Option<Histogram>,
    /// Asking end: answers that differed from their question.
    pub mismatched: u64,
    /// The socket at the end.
    pub facts: SocketFacts,
    /// When its last payload moved.
    pub ended_ns: Nanos,
    /// What broke it.
    pub error: Option<std::io::Error>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_omitted_time_ends_an_interval() {
        let timeline = Timeline {
            start_ns: 1_000,
            count_from_ns: 1_250,
            interval_ns: Some(100),
        };
        let mut ends = Vec::new();
        let mut at = timeline.start_ns;
        for _ in 0..5 {
            at = timeline.interval_end(at).unwrap();
            ends.push(at);
        }
        assert_eq!(ends, [1_100, 1_200, 1_250, 1_350, 1_450]);
    }

    #[test]
    fn phases_only_go_forward() {
        let phase = Phase::default();
        phase.abort();
        phase.end();
        assert!(phase.is_aborted() && phase.is_ending());
    }
}
