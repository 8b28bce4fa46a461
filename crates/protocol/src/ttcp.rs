//! Classic ttcp: payload without a header, over TCP and UDP.
//!
//! Over TCP the transmitter connects, writes and closes; no control data is exchanged, so the
//! receiver is a [`plain`](crate::plain) sink. Over UDP, datagrams of at most 4 bytes mark start
//! and end:
//!
//! ```text
//! marker | data, data, data … | marker, and four more in case that one is lost
//! ```
//!
//! No datagram has a number, so the loss follows only from the sender's count. A receiver never
//! replies. Markers are 4 bytes with most builds and 1 byte with some (VxWorks); their contents do
//! not matter. The classic receiver takes the end marker for the start if the start was lost, and
//! stops at the second end marker. [`TtcpReceiver`] avoids this: it has seen data before the end
//! marker.

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};
use crate::plain::{PlainSink, ReceivedTotals};
use crate::unrelated_protocol;

/// Classic port (also nuttcp's old data port and iperf2's port).
pub const PORT: u16 = 5001;

/// Default size of a write and of a datagram.
pub const BUFFER_BYTES: usize = 8_192;

/// Largest size of a marker; larger datagrams are payload.
pub const MARKER_LIMIT_BYTES: usize = 4;

/// Marker that we send: one before the payload, and [`END_MARKERS`] after it.
pub const MARKER: [u8; MARKER_LIMIT_BYTES] = [b' '; MARKER_LIMIT_BYTES];

/// Number of end markers: one, and four in case it is lost.
pub const END_MARKERS: u32 = 5;

/// Beginning of a write: the printable characters in order, repeated. It contains none of the flags
/// that iperf2's servers read there.
pub const PATTERN: &[u8; 32] = b" !\"#$%&'()*+,-./0123456789:;<=>?";

/// Entry of the protocol table. The TCP payload is detected by its first characters unless they
/// were replaced; UDP begins with a marker.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "ttcp",
    detect,
};

fn detect(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    // Small first datagrams of other protocols: nuttcp's markers, and iperf3's hello in both byte
    // orders.
    let hellos: [&[u8]; 2] = [b"9876", b"\x15\xcd\x5b\x07"];
    let is_other_protocol = unrelated_protocol::is_nuttcp_marker(bytes) || hellos.contains(&bytes);
    match (transport, bytes.len()) {
        (TransportKind::Stream, _) => ProtocolMatch::of_prefix(PATTERN, bytes),
        (TransportKind::Datagram, 1..=MARKER_LIMIT_BYTES) if !is_other_protocol => {
            ProtocolMatch::Yes
        }
        _ => ProtocolMatch::No,
    }
}

/// Classification of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtcpDatagram {
    /// Start marker: the duration begins.
    Start,
    /// Payload.
    Data,
    /// End marker: the flow is over.
    End,
    /// Repeated marker without new information.
    RepeatedMarker,
}

/// Receiver of a UDP flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct TtcpReceiver {
    sink: PlainSink,
    end_received: bool,
    markers: u64,
    marker_bytes: u64,
}

impl TtcpReceiver {
    /// Counts a datagram by its size and returns its kind.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, bytes: usize) -> TtcpDatagram {
        if bytes > MARKER_LIMIT_BYTES {
            // Reordered payload after the end marker still counts.
            self.sink.receive(now_ns, bytes);
            return TtcpDatagram::Data;
        }
        self.markers += 1;
        self.marker_bytes += bytes as u64;
        if self.end_received {
            TtcpDatagram::RepeatedMarker
        } else if self.sink.totals().packets > 0 {
            // Not part of the duration: the marker may be delayed until the payload has passed.
            self.end_received = true;
            TtcpDatagram::End
        } else {
            self.sink.record_activity(now_ns);
            if self.markers == 1 {
                TtcpDatagram::Start
            } else {
                TtcpDatagram::RepeatedMarker
            }
        }
    }

    /// Returns whether the flow has ended, by its marker or by silence.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.end_received || self.sink.is_over(now_ns)
    }

    /// Returns the payload between start and end. The duration is from the start marker, or the
    /// first payload, to the last payload; markers do not count.
    ///
    /// A flow of small datagrams only is not ttcp: its datagrams are then counted as plain payload.
    #[must_use]
    pub fn totals(&self) -> ReceivedTotals {
        let totals = self.sink.totals();
        if totals.packets > 0 || self.markers < 2 {
            return totals;
        }
        ReceivedTotals {
            bytes: self.marker_bytes,
            packets: self.markers,
            ..totals
        }
    }
}
