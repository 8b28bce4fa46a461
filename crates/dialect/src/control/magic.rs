//! The first bytes of our connections and flows.
//!
//! What keeps every other dialect from being taken for ours, and ours for theirs:
//!
//! - Byte 0, `01`, is no printable text (ttcp, echo, HTTP, nuttcp's `HELO`, iperf3's cookie) and no
//!   TLS record (`16`). The bits that make iperf2 expect a header (`80`, `40`, `04`) are clear: a
//!   stock iperf2 server takes all that follows for payload and answers nothing.
//! - Bytes 0 to 3, `01 6c 72 c0`, are an iperf2 flags word without the length bit (`00010000`) and
//!   the bounceback bit (`00800000`). After them, an iperf2 datagram with this sequence number
//!   would have seconds of the year 2105, and an iperf3 one with these seconds too many
//!   microseconds.
//! - Bytes 3 and 4, `c0 ff`, never occur in UTF-8.
//! - All 8 as one number are a sequence number of 10^17, for sockperf and for our own payloads: it
//!   takes 30 years to get there at 10^8 packets/s.
//! - Bytes 5 to 7, `ctl`, `dat` or `ans`, say what it opens to whoever reads a capture.
//!
//! One stock server answers all the same: iperf3 takes any 37 bytes for a cookie. It answers with
//! the one byte `09`, which our client takes at once for what it is.

use crate::sniff::{Carrier, Dialect, Verdict};

/// First bytes of a control connection, in both directions.
pub const CONTROL_MAGIC: [u8; 8] = *b"\x01lr\xC0\xFFctl";

/// First bytes of a data flow.
pub const DATA_MAGIC: [u8; 8] = *b"\x01lr\xC0\xFFdat";

/// First bytes of the server's answer to the opening of a UDP flow.
pub const ANSWER_MAGIC: [u8; 8] = *b"\x01lr\xC0\xFFans";

/// What a TCP connection of ours is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A [`super::Connection`].
    Control,
    /// A flow: [`super::flow`].
    Data,
}

impl Opening {
    /// Tells the two apart by the first bytes; `None` when they are neither, or too few.
    #[must_use]
    pub fn of(first_bytes: &[u8]) -> Option<Self> {
        match *first_bytes.first_chunk()? {
            CONTROL_MAGIC => Some(Self::Control),
            DATA_MAGIC => Some(Self::Data),
            _ => None,
        }
    }
}

/// Our own dialect, as the table of dialects has it.
pub const DIALECT: Dialect = Dialect {
    name: "linerate",
    recognise,
};

fn recognise(carrier: Carrier, bytes: &[u8]) -> Verdict {
    match carrier {
        Carrier::Stream => {
            Verdict::of_prefix(&CONTROL_MAGIC, bytes).or(Verdict::of_prefix(&DATA_MAGIC, bytes))
        }
        Carrier::Datagram if super::flow::read_opening(bytes).is_some() => Verdict::Yes,
        Carrier::Datagram => Verdict::No,
    }
}
