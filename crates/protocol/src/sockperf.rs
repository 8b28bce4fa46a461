//! sockperf: messages with or without a requested reply.
//!
//! ```text
//! u64 sequence | u16 flags | u32 length, header included | filler          (big-endian, 14 bytes)
//! flags   1 from a client    2 reply requested    4 warm-up
//! ```
//!
//! A message is a datagram, or a section of a TCP stream of that length; several may arrive at
//! once. A server sends each message with flags 1 and 2 but not 4 back unchanged, with flag 1
//! cleared; it only counts all others. Sequences begin with 1. Observed with sockperf 3.7 in both
//! roles: ping-pong has flags 3 throughout, throughput has 1, under-load has 1 and every hundredth
//! message (100, 200, …) has 3. Its "warm-up stage" sends nothing on the wire.
//!
//! An upstream server loses data after a warm-up message in the same TCP segment, and spins or
//! closes on an invalid length. So our client sends no warm-ups, and no malformed messages.
//!
//! A server sends only the replies; its counters appear only on its console.

mod message;
mod server;

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

pub use message::{HEADER_BYTES, MESSAGE_LIMIT_BYTES, SockperfError, SockperfHeader};
pub use server::{BACKLOG_LIMIT_BYTES, SockperfDatagram, SockperfServer, SockperfTotals};

/// Port of upstream servers, TCP and UDP.
pub const PORT: u16 = 11111;

/// Entry of sockperf in the protocol table.
///
/// Both transports require a sequence below 2^32 (a test would need hours to reach it), flags that
/// a client sends, and a valid length; a datagram must have exactly that length.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "sockperf",
    detect,
};

fn detect(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    let Some(header) = SockperfHeader::read(bytes) else {
        return match transport {
            TransportKind::Stream if may_become_header(bytes) => ProtocolMatch::NeedMore,
            _ => ProtocolMatch::No,
        };
    };
    let fits = header.is_plausible()
        && header.sequence <= u64::from(u32::MAX)
        && (transport == TransportKind::Stream || header.length as usize == bytes.len());
    if fits {
        ProtocolMatch::Yes
    } else {
        ProtocolMatch::No
    }
}

/// Returns whether incomplete bytes can be the beginning of a header.
fn may_become_header(bytes: &[u8]) -> bool {
    bytes.iter().zip(0..).all(|(&byte, at)| match at {
        0..4 | 8 => byte == 0,
        9 => matches!(byte, 1 | 3 | 5 | 7),
        10 | 11 => byte == 0,
        _ => true,
    })
}
