//! Discard, RFC 863: the server discards all data and sends nothing.
//!
//! The server is a [`PlainSink`](crate::plain::PlainSink), as for [`plain`](crate::plain) payload;
//! only the port distinguishes the two. A client sends any payload and ends a TCP stream by closing
//! it. The server of inetutils' inetd closes its side as soon as the client has shut down its
//! sending side. It sends no counts, so the number of received bytes is unknown unless its console
//! shows it.

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// The port of RFC 863, TCP and UDP.
pub const PORT: u16 = 9;

/// Entry of the protocol table. Discard has no prefix of its own, so it is never detected: a port
/// is assigned to it by an option.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "discard",
    detect: |_: TransportKind, _: &[u8]| ProtocolMatch::No,
};
