//! Discard, RFC 863: whatever comes is thrown away and nothing is answered.
//!
//! Its server is a [`Sink`](crate::plain::Sink) like that of [`plain`](crate::plain) payload; only a port can tell the
//! two apart. A client sends what it likes, and ends a TCP stream by closing it. A stock server
//! (inetutils' inetd) closes its side as soon as the client's writing half is closed, and sends
//! nothing, ever: what arrived there stays unknown unless its console tells.

use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of RFC 863, TCP and UDP.
pub const PORT: u16 = 9;

/// Discard, as the table of dialects has it. Its bytes can be any, so it is never recognised: a
/// port is told to speak it.
pub const DIALECT: Dialect = Dialect {
    name: "discard",
    recognise: |_: Carrier, _: &[u8]| Verdict::No,
};
