//! Payload without any header: what a device sends that speaks no tool's protocol.
//!
//! All that can be said of it is what arrived and when. Nothing tells what was sent, so what was
//! lost stays unknown, and nothing tells the end of a UDP flow but its silence. Discard (RFC 863),
//! classic ttcp and `nc` over TCP are received the same way.

use crate::sniff::{Carrier, Dialect, Verdict};

/// Silence after which a flow of datagrams counts as over, in nanoseconds.
pub const SILENCE_NS: u64 = 1_000_000_000;

/// Payload without a header, as the table of dialects has it. No bytes are certain to be plain, so
/// it is never recognised: it is what is left when no other dialect is, or what a port is told to
/// speak.
pub const DIALECT: Dialect = Dialect {
    name: "plain",
    recognise: |_: Carrier, _: &[u8]| Verdict::No,
};

/// What arrived of one flow.
///
/// ```
/// use linerate_dialect::plain::{SILENCE_NS, Sink};
///
/// let mut sink = Sink::default();
/// sink.receive(5_000, 1_472);
/// sink.receive(9_000, 1_472);
/// assert!(!sink.is_over(9_000 + SILENCE_NS - 1));
/// assert!(sink.is_over(9_000 + SILENCE_NS));
/// assert_eq!(sink.totals().bytes, 2_944);
/// assert_eq!(sink.totals().duration_ns, Some(4_000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Sink {
    bytes: u64,
    packets: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    closed: bool,
}

/// What a flow came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Payload that arrived.
    pub bytes: u64,
    /// Datagrams of a UDP flow, receive calls of a TCP one.
    pub packets: u64,
    /// From the first arrival to the last, or to the end that the peer marked; the silence that
    /// told the end is not in it. `None` when both are the same moment.
    ///
    /// The first arrival opens the time and its bytes are in [`Totals::bytes`]: a rate over `n`
    /// datagrams without an end mark reads high by the fraction `1 / (n - 1)`.
    pub duration_ns: Option<u64>,
}

impl Sink {
    /// Takes a datagram, or what one call gave of a stream, by its size.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, bytes: usize) {
        self.bytes += bytes as u64;
        self.packets += 1;
        self.touch(now_ns);
    }

    /// Something came that is no payload: it opens the time, or prolongs it.
    #[inline]
    pub(crate) fn touch(&mut self, now_ns: u64) {
        if self.first_ns.is_none() {
            self.first_ns = Some(now_ns);
        }
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// The peer ended a stream, or marked its end.
    pub fn close(&mut self, now_ns: u64) {
        if !self.closed {
            self.touch(now_ns);
            self.closed = true;
        }
    }

    /// When a flow of datagrams that stays silent is over; `None` before its first.
    fn deadline_ns(&self) -> Option<u64> {
        self.first_ns
            .map(|_| self.last_ns.saturating_add(SILENCE_NS))
    }

    /// Whether the peer ended it, or was silent for [`SILENCE_NS`] (for a stream, ask
    /// [`Sink::is_closed`]: a silent one may go on).
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.closed
            || self
                .deadline_ns()
                .is_some_and(|deadline| now_ns >= deadline)
    }

    /// Whether the peer ended it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// What has arrived so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            bytes: self.bytes,
            packets: self.packets,
            duration_ns: self
                .first_ns
                .map(|first| self.last_ns - first)
                .filter(|&duration| duration > 0),
        }
    }
}
