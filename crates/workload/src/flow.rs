//! Flow: one stream of payload, or of requests and responses, between the two ends.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

use linerate_protocol::control::flow::{OPENING_BYTES, read_opening, read_reply};
use linerate_record::plan::Direction;
use linerate_record::record::{ContentMismatch, SlowResponse, SocketFacts};
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;

use crate::flow_counters::{FlowCounters, PayloadTotals};
use crate::sequence_tracker::SequenceTracker;
use crate::timestamps::TimestampRing;

/// Returns whether a datagram belongs to the opening of a UDP flow: a repeated one may arrive late.
#[inline]
#[must_use]
pub fn is_opening_datagram(payload: &[u8]) -> bool {
    payload.len() == OPENING_BYTES
        && (read_opening(payload).is_some() || read_reply(payload).is_some())
}

/// Phase of a run, set by the coordinator and read by its threads.
#[derive(Debug, Default)]
pub struct RunPhase(AtomicU8);

impl RunPhase {
    const RUNNING: u8 = 0;
    const ENDING: u8 = 1;
    const INTERRUPTED: u8 = 2;
    const ABORTED: u8 = 3;

    /// Stops senders; receivers drain payload in flight.
    pub fn end(&self) {
        self.0.fetch_max(Self::ENDING, Relaxed);
    }

    /// Stops senders before the planned end, with a short drain time.
    pub fn interrupt(&self) {
        self.0.fetch_max(Self::INTERRUPTED, Relaxed);
    }

    /// Stops all threads at their next check.
    pub fn abort(&self) {
        self.0.fetch_max(Self::ABORTED, Relaxed);
    }

    /// Returns whether senders must stop.
    #[inline]
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.0.load(Relaxed) != Self::RUNNING
    }

    /// Returns whether the run was stopped before its planned end.
    #[inline]
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.0.load(Relaxed) >= Self::INTERRUPTED
    }

    /// Returns whether all threads must stop.
    #[inline]
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.load(Relaxed) == Self::ABORTED
    }
}

/// State shared by a flow's thread and the coordinator.
#[derive(Debug)]
pub struct FlowShared {
    /// Written by the worker thread, read by the coordinator.
    pub counters: FlowCounters,
    /// Total packets of the sender, once it has reported them.
    expected: AtomicU64,
    /// Round-trip times of the last interval: locked once per interval by each side.
    pub interval_times: Mutex<IntervalHistogramSlot>,
}

impl Default for FlowShared {
    fn default() -> Self {
        Self {
            counters: FlowCounters::default(),
            expected: AtomicU64::new(Self::STILL_SENDING),
            interval_times: Mutex::default(),
        }
    }
}

impl FlowShared {
    /// The sender is active.
    const STILL_SENDING: u64 = u64::MAX;
    /// The sender has ended without reporting a total.
    const TOTAL_UNKNOWN: u64 = u64::MAX - 1;

    /// Sets the total number of packets of the sender.
    pub fn set_expected(&self, packets: u64) {
        self.expected
            .store(packets.min(Self::TOTAL_UNKNOWN - 1), Relaxed);
    }

    /// Marks the sender as ended, without a total.
    pub fn set_sender_ended(&self) {
        let _ = (self.expected).compare_exchange(
            Self::STILL_SENDING,
            Self::TOTAL_UNKNOWN,
            Relaxed,
            Relaxed,
        );
    }

    /// Returns the total packets of the sender; `None` while it is active, or without a reported
    /// total.
    #[inline]
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        let packets = self.expected.load(Relaxed);
        (packets < Self::TOTAL_UNKNOWN).then_some(packets)
    }

    /// Returns whether the sender has ended.
    #[inline]
    #[must_use]
    pub fn has_sender_ended(&self) -> bool {
        self.expected.load(Relaxed) != Self::STILL_SENDING
    }
}

/// Round-trip times that a requesting thread hands to the coordinator, interval by interval.
#[derive(Debug, Default)]
pub struct IntervalHistogramSlot {
    /// Number of intervals that the thread has passed.
    pub intervals_ended: u64,
    /// Times that the coordinator has not fetched yet; allocated when the flow opens.
    pub times: Option<Histogram>,
}

/// Distributions of departure and arrival times.
#[derive(Debug, Default)]
pub struct TimingHistograms {
    /// Sender with a rate: lateness of bursts.
    pub lateness: Option<Histogram>,
    /// Receiver of numbered datagrams: differences of the transit times of consecutive ones.
    pub variation: Option<Histogram>,
    /// Receiver with a rate: times between arrivals.
    pub gaps: Option<Histogram>,
}

/// Results of one end of a flow.
#[derive(Debug)]
pub struct FlowEndResults {
    pub id: u32,
    pub direction: Direction,
    pub role: FlowRole,
    /// Moved payload, the omitted time included.
    pub totals: PayloadTotals,
    /// Receiver of numbered datagrams: loss, reordering and duplicates.
    pub sequence: Option<SequenceTracker>,
    /// Requesting end: the counted round-trip times.
    pub times: Option<Histogram>,
    /// Requesting end: responses that differ from their request. Verifying receiver: bytes that
    /// differ.
    pub mismatched: u64,
    /// Verifying receiver: the first byte that differs.
    pub first_mismatch: Option<ContentMismatch>,
    /// Distributions other than round trips.
    pub timing: TimingHistograms,
    /// Facts of the socket at the end.
    pub facts: SocketFacts,
    /// Receiver of payload: time at which the first arrived, or would have if it was not lost.
    pub first_ns: Option<Nanos>,
    /// Time of the last payload.
    pub ended_ns: Nanos,
    /// Timestamps of round trips.
    pub log: Option<Box<TimestampRing>>,
    /// Error that broke the flow.
    pub error: Option<std::io::Error>,
    /// Requesting end: further results.
    pub requests: Option<RequestResults>,
}

/// Results of a requesting end in addition to its round-trip times.
#[derive(Debug, Default)]
pub struct RequestResults {
    /// Responses of another length than their request.
    pub wrong_length: u64,
    /// Responses of the right length with other content.
    pub wrong_content: u64,
    /// Part of these: responses that differ only in the bytes where the C target for devices writes
    /// its times.
    pub differs_in_device_time: u64,
    /// With a limit: number of responses above it, and the first of them.
    pub slow: Option<(u64, Vec<SlowResponse>)>,
    /// Further distributions by their name in the record.
    pub histograms: Vec<(&'static str, Histogram)>,
    /// Open loop: scheduled requests that were never sent.
    pub unsent: Option<u64>,
    /// Open loop: requests without a response at the end; their times are ages since the scheduled
    /// send.
    pub without_response: u64,
    /// Times that no local port was free for a new connection.
    pub port_waits: u64,
    /// Rejected or broken connections, each a lost round trip.
    pub broken: u64,
    /// Responses by the validity of their device times, where they were requested.
    pub device: Option<DeviceTimeCounts>,
}

/// Responses by the validity of their device times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimeCounts {
    /// Valid device times.
    pub valid: u64,
    /// Responses without device times.
    pub missing: u64,
    /// Responses whose time inside the device exceeds the round trip.
    pub impossible: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_go_forward() {
        let phase = RunPhase::default();
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
