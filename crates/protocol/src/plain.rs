//! Payload without a header, from a device that implements no tool's protocol.
//!
//! Only the size and the time of what arrives can be measured. The amount that was sent is unknown,
//! so the loss is unknown too. A UDP flow ends by silence. Discard (RFC 863), classic ttcp and `nc`
//! over TCP are received in this way.

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// Silence after which a flow of datagrams is over, in nanoseconds.
pub const SILENCE_NS: u64 = 1_000_000_000;

/// Entry of the protocol table. Plain payload has no prefix of its own, so it is never detected: it
/// is the fallback if no other protocol matches, or the protocol that an option assigns to a port.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "plain",
    detect: |_: TransportKind, _: &[u8]| ProtocolMatch::No,
};

/// Receive counters of one flow.
///
/// ```
/// use linerate_protocol::plain::{SILENCE_NS, PlainSink};
///
/// let mut sink = PlainSink::default();
/// sink.receive(5_000, 1_472);
/// sink.receive(9_000, 1_472);
/// assert!(!sink.is_over(9_000 + SILENCE_NS - 1));
/// assert!(sink.is_over(9_000 + SILENCE_NS));
/// assert_eq!(sink.totals().bytes, 2_944);
/// assert_eq!(sink.totals().duration_ns, Some(4_000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSink {
    bytes: u64,
    packets: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    closed: bool,
}

/// Amount of payload that arrived in one flow, and its duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedTotals {
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Number of datagrams of a UDP flow, or of receive calls of a TCP connection.
    pub packets: u64,
    /// Time from the first arrival to the last, or to the end mark of the peer, in nanoseconds. The
    /// silence that ends a flow is not included. `None` if both are the same moment.
    ///
    /// The first arrival starts the time, but its bytes are in [`ReceivedTotals::bytes`]: without
    /// an end mark, a rate over `n` datagrams is too high by the fraction `1 / (n - 1)`.
    pub duration_ns: Option<u64>,
}

impl PlainSink {
    /// Counts a datagram, or the bytes of one receive call of a stream.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, bytes: usize) {
        self.bytes += bytes as u64;
        self.packets += 1;
        self.record_activity(now_ns);
    }

    /// Starts or extends the duration without counting payload.
    #[inline]
    pub(crate) fn record_activity(&mut self, now_ns: u64) {
        if self.first_ns.is_none() {
            self.first_ns = Some(now_ns);
        }
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// Records that the peer ended the stream or marked its end.
    pub fn close(&mut self, now_ns: u64) {
        if !self.closed {
            self.record_activity(now_ns);
            self.closed = true;
        }
    }

    /// Returns the time at which a silent flow is over; `None` before its first datagram.
    fn deadline_ns(&self) -> Option<u64> {
        self.first_ns
            .map(|_| self.last_ns.saturating_add(SILENCE_NS))
    }

    /// Returns whether the peer ended the flow, or was silent for [`SILENCE_NS`]. A silent stream
    /// may continue: use [`PlainSink::is_closed`] for it.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.closed
            || self
                .deadline_ns()
                .is_some_and(|deadline| now_ns >= deadline)
    }

    /// Returns whether the peer ended the flow.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn totals(&self) -> ReceivedTotals {
        ReceivedTotals {
            bytes: self.bytes,
            packets: self.packets,
            duration_ns: self
                .first_ns
                .map(|first| self.last_ns - first)
                .filter(|&duration| duration > 0),
        }
    }
}
