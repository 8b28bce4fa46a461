//! First bytes of linerate's connections and flows.
//!
//! Reasons why no other protocol is mistaken for ours, and ours for no other:
//!
//! - Byte 0, `01`, is no printable text (ttcp, echo, HTTP, nuttcp's `HELO`, iperf3's cookie) and no
//!   TLS record (`16`). The bits that make iperf2 expect a header (`80`, `40`, `04`) are clear: an
//!   iperf2 server of upstream counts all that follows as payload and sends nothing.
//! - Bytes 0 to 3, `01 6c 72 c0`, are an iperf2 flags word without the length bit (`00010000`) and
//!   the bounceback bit (`00800000`). After them, an iperf2 datagram with this sequence number
//!   would have seconds of the year 2105, and an iperf3 one with these seconds too many
//!   microseconds.
//! - Bytes 3 and 4, `c0 ff`, never occur in UTF-8.
//! - All 8 bytes as one number are a sequence number of 10^17, for sockperf and for our own
//!   payloads. At 10^8 packets/s it takes 30 years to reach it.
//! - Bytes 5 to 7, `ctl`, `dat` or `ans`, make the purpose readable in a capture.
//!
//! One upstream server replies nevertheless: iperf3 accepts any 37 bytes as a cookie. It sends the
//! one byte `09`, which our client recognises at once.

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// First bytes of a control connection, in both directions.
pub const CONTROL_MAGIC: [u8; 8] = *b"\x01lr\xC0\xFFctl";

/// First bytes of a data flow.
pub const DATA_MAGIC: [u8; 8] = *b"\x01lr\xC0\xFFdat";

/// First bytes of the server's reply to the opening of a UDP flow.
pub const REPLY_MAGIC: [u8; 8] = *b"\x01lr\xC0\xFFans";

/// Purpose of one of linerate's TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpeningKind {
    /// Control connection: [`super::ControlCodec`].
    Control,
    /// Data flow: [`super::flow`].
    Data,
}

impl OpeningKind {
    /// Returns the purpose by the first bytes; `None` if they are neither, or too few.
    #[must_use]
    pub fn from_first_bytes(first_bytes: &[u8]) -> Option<Self> {
        match *first_bytes.first_chunk()? {
            CONTROL_MAGIC => Some(Self::Control),
            DATA_MAGIC => Some(Self::Data),
            _ => None,
        }
    }
}

/// Entry of linerate's own protocol in the protocol table.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "linerate",
    detect,
};

fn detect(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    match transport {
        TransportKind::Stream => ProtocolMatch::of_prefix(&CONTROL_MAGIC, bytes)
            .or(ProtocolMatch::of_prefix(&DATA_MAGIC, bytes)),
        TransportKind::Datagram if super::flow::read_opening(bytes).is_some() => ProtocolMatch::Yes,
        TransportKind::Datagram => ProtocolMatch::No,
    }
}
