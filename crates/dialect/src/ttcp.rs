//! Classic ttcp: payload without any header, over TCP and UDP.
//!
//! Over TCP the transmitter connects, writes and closes; nothing is said and nothing answered, so
//! the receiver is a [`plain`](crate::plain) sink. Over UDP datagrams of at most 4 bytes mark start
//! and end:
//!
//! ```text
//! marker | data, data, data … | marker, and four more in case that one is lost
//! ```
//!
//! Nothing carries a number: what was lost is known only to whoever knows what was sent. A receiver
//! never answers. Markers are 4 bytes with most builds and 1 byte with some (VxWorks); what is in them
//! does not matter. The classic receiver takes the end marker for the start when the start was lost
//! and stops at the second end marker; [`Receiver`] knows better, because data came before.

use crate::plain::{Sink, Totals};
use crate::sniff::{Carrier, Dialect, Verdict};
use crate::stray;

/// The classic port (nuttcp's old data port and iperf2's port too).
pub const PORT: u16 = 5001;

/// Size of a write, and of a datagram, by default.
pub const BUFFER_BYTES: usize = 8_192;

/// Datagrams of at most this size are markers.
pub const MARKER_LIMIT_BYTES: usize = 4;

/// Our own marker. A transmitter sends one before its payload, and [`END_MARKERS`] behind it.
pub const MARKER: [u8; MARKER_LIMIT_BYTES] = [b' '; MARKER_LIMIT_BYTES];

/// End markers: the one that ends, and four more.
pub const END_MARKERS: u32 = 5;

/// What a write begins with: the printable characters in their order, again and again. Nothing of it looks
/// like the flags that iperf2's servers read there.
pub const PATTERN: &[u8; 32] = b" !\"#$%&'()*+,-./0123456789:;<=>?";

/// Classic ttcp, as the table of dialects has it: its TCP is plain payload and known by the characters that
/// it begins with, where nobody replaced them; its UDP begins with a marker.
pub const DIALECT: Dialect = Dialect {
    name: "ttcp",
    recognise,
};

fn recognise(carrier: Carrier, bytes: &[u8]) -> Verdict {
    // What else opens with so small a datagram says so by its bytes: nuttcp, and iperf3's hello in
    // its two byte patterns.
    let hellos: [&[u8]; 2] = [b"9876", b"\x15\xcd\x5b\x07"];
    let other = stray::is_nuttcp_marker(bytes) || hellos.contains(&bytes);
    match (carrier, bytes.len()) {
        (Carrier::Stream, _) => Verdict::of_prefix(PATTERN, bytes),
        (Carrier::Datagram, 1..=MARKER_LIMIT_BYTES) if !other => Verdict::Yes,
        _ => Verdict::No,
    }
}

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// The start marker: time begins.
    Start,
    /// Payload.
    Data,
    /// The end marker: the flow is over.
    End,
    /// A marker that says nothing new.
    Again,
}

/// The receiving end of a UDP flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receiver {
    sink: Sink,
    ended: bool,
    markers: u64,
    marker_bytes: u64,
}

impl Receiver {
    /// Takes a datagram by its size.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, bytes: usize) -> Took {
        if bytes > MARKER_LIMIT_BYTES {
            // Late payload behind the end marker still arrived.
            self.sink.receive(now_ns, bytes);
            return Took::Data;
        }
        self.markers += 1;
        self.marker_bytes += bytes as u64;
        if self.ended {
            Took::Again
        } else if self.sink.totals().packets > 0 {
            // No part of the time: it may be held back until the payload has passed.
            self.ended = true;
            Took::End
        } else {
            self.sink.touch(now_ns);
            if self.markers == 1 {
                Took::Start
            } else {
                Took::Again
            }
        }
    }

    /// Whether the end was marked, or silence tells it.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.ended || self.sink.is_over(now_ns)
    }

    /// What arrived between start and end, and from the start, or the first payload, to the last payload;
    /// markers are not counted.
    ///
    /// A flow that consists of small datagrams only is none of ttcp: then these are they, counted
    /// as plain payload.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let totals = self.sink.totals();
        if totals.packets > 0 || self.markers < 2 {
            return totals;
        }
        Totals {
            bytes: self.marker_bytes,
            packets: self.markers,
            ..totals
        }
    }
}
