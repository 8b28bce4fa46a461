//! A flow: one stream of payload, or of questions and answers, between the two ends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use linerate_dialect::control::flow::{OPENING_BYTES, read_answer, read_opening};
use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Direction;
use linerate_metric::record::{Mismatch, SlowAnswer, Socket as SocketFacts};

use crate::meter::{Meter, Totals};
use crate::sequence::Sequence;
use crate::stamped::Log;

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
    /// A kept timeline of calls ends soon after one that is longer.
    pub trace_on_ns: Option<Nanos>,
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
    const INTERRUPTED: u8 = 2;
    const ABORTED: u8 = 3;

    /// Sources stop; sinks take what is still on its way.
    pub fn end(&self) {
        self.0.fetch_max(Self::ENDING, Relaxed);
    }

    /// The same before its time: what is on its way is hardly waited for.
    pub fn interrupt(&self) {
        self.0.fetch_max(Self::INTERRUPTED, Relaxed);
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

    /// Whether somebody wants the run to end before its time.
    #[inline]
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.0.load(Relaxed) >= Self::INTERRUPTED
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
            expected: AtomicU64::new(Self::SENDING),
            mailbox: Mutex::default(),
        }
    }
}

impl Shared {
    /// The source still sends.
    const SENDING: u64 = u64::MAX;
    /// It does not any more, and nobody knows how much it was.
    const UNTOLD: u64 = u64::MAX - 1;

    /// Notes how many packets the source has sent in all.
    pub fn expect(&self, packets: u64) {
        self.expected.store(packets.min(Self::UNTOLD - 1), Relaxed);
    }

    /// Notes that the source has sent all, and did not say how much that was.
    pub fn expect_no_more(&self) {
        let _ = (self.expected).compare_exchange(Self::SENDING, Self::UNTOLD, Relaxed, Relaxed);
    }

    /// How many packets the source has sent in all; `None` while it still sends, or when it did not
    /// say.
    #[inline]
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        let packets = self.expected.load(Relaxed);
        (packets < Self::UNTOLD).then_some(packets)
    }

    /// Whether the source has sent all.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.expected.load(Relaxed) != Self::SENDING
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

/// What the times of departures and arrivals told.
#[derive(Debug, Default)]
pub struct Timing {
    /// Source at a rate: how late bursts left.
    pub lateness: Option<Histogram>,
    /// Sink of numbered datagrams: how much transit times of neighbours differ.
    pub variation: Option<Histogram>,
    /// The same at a rate: times between arrivals.
    pub gaps: Option<Histogram>,
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
    /// Asking end: answers that differed from their question. Verifying sink: bytes that differed.
    pub mismatched: u64,
    /// Verifying sink: the first byte that differs.
    pub first_mismatch: Option<Mismatch>,
    /// What its times told beside round trips.
    pub timing: Timing,
    /// The socket at the end.
    pub facts: SocketFacts,
    /// When its last payload moved.
    pub ended_ns: Nanos,
    /// Stamped round trips: what this end noted of them.
    pub log: Option<Box<Log>>,
    /// What broke it.
    pub error: Option<std::io::Error>,
    /// Asking end: what else was found.
    pub asking: Option<AskingOutcome>,
}

/// What an asking end found beside its round-trip times.
#[derive(Debug, Default)]
pub struct AskingOutcome {
    /// Answers of another length than their question.
    pub wrong_length: u64,
    /// Answers of the right length with another content.
    pub wrong_content: u64,
    /// Of these, answers that differ only where the C file for devices writes its times.
    pub stamped: u64,
    /// With a limit: how many answers were above it, and the first of them.
    pub slow: Option<(u64, Vec<SlowAnswer>)>,
    /// Further distributions by their name in the record.
    pub histograms: Vec<(&'static str, Histogram)>,
    /// Open loop: questions that were due and never left.
    pub unsent: Option<u64>,
    /// Open loop: times from the due time that are ages at the end, because no answer had come.
    pub unanswered: u64,
    /// Times that no local port was free for a new connection.
    pub ports_waited: u64,
    /// Connections that were refused or broken off, each a lost round trip.
    pub broken: u64,
    /// How many answers told of their time inside the device, where that was asked for.
    pub device: Option<DeviceAccount>,
}

/// Answers by what their device's stamps are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceAccount {
    /// Those that count.
    pub read: u64,
    /// Those without.
    pub without: u64,
    /// Those that were longer inside the device than the whole round trip took.
    pub impossible: u64,
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
            trace_on_ns: None,
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
        phase.end();
        assert!(phase.is_ending() && !phase.is_interrupted() && !phase.is_aborted());
        phase.interrupt();
        phase.end();
        assert!(phase.is_ending() && phase.is_interrupted() && !phase.is_aborted());
        phase.abort();
        phase.end();
        assert!(phase.is_aborted() && phase.is_interrupted() && phase.is_ending());
    }
}
