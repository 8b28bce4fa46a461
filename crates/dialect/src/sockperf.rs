//! sockperf: messages that ask for an answer, or do not.
//!
//! ```text
//! u64 sequence | u16 flags | u32 length, header included | filler          (big-endian, 14 bytes)
//! flags   1 from a client    2 answer wanted    4 warm-up
//! ```
//!
//! A message is a datagram, or a piece of a TCP stream of that length; several may come at once. A
//! server sends each message that has 1 and 2 and not 4 back as it is, with flag 1 cleared; all
//! others it only counts. Sequences begin with 1. Seen on the wire of sockperf 3.7, both roles:
//! ping-pong has flags 3 throughout, throughput has 1, under-load has 1 and every hundredth message
//! (100, 200, …) has 3. Its "warm-up stage" sends nothing on the wire.
//!
//! A stock server loses what comes behind a warm-up message in the same TCP segment, and spins or
//! closes on a length that no message has. So our client sends no warm-ups, and nothing malformed.
//!
//! Nothing but the answers comes back: what a stock server counted, only its console tells.

mod message;
mod server;

pub use message::{HEADER_BYTES, Header, MESSAGE_LIMIT_BYTES, SockperfError};
pub use server::{BACKLOG_LIMIT_BYTES, Server, Took, Totals};

use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of stock servers, TCP and UDP.
pub const PORT: u16 = 11111;

/// sockperf, as the table of dialects has it.
///
/// Both ways of carrying ask for a sequence below 2^32 (a test would need hours to get there),
/// flags that a client sends, and a length that a message can have; a datagram must have exactly
/// that length.
pub const DIALECT: Dialect = Dialect {
    name: "sockperf",
    recognise,
};

fn recognise(carrier: Carrier, bytes: &[u8]) -> Verdict {
    let Some(header) = Header::read(bytes) else {
        return match carrier {
            Carrier::Stream if begins_like_one(bytes) => Verdict::NeedMore,
            _ => Verdict::No,
        };
    };
    let fits = header.is_plausible()
        && header.sequence <= u64::from(u32::MAX)
        && (carrier == Carrier::Stream || header.length as usize == bytes.len());
    if fits { Verdict::Yes } else { Verdict::No }
}

/// Whether the beginning of a header can become one.
fn begins_like_one(bytes: &[u8]) -> bool {
    bytes.iter().zip(0..).all(|(&byte, at)| match at {
        0..4 | 8 => byte == 0,
        9 => matches!(byte, 1 | 3 | 5 | 7),
        10 | 11 => byte == 0,
        _ => true,
    })
}
