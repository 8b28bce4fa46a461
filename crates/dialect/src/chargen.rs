//! Chargen, RFC 864: characters without end.
//!
//! A TCP connection gets lines of [`LINE_BYTES`] until the client closes it; what the client sends
//! is thrown away. A datagram gets one datagram in answer. The RFC allows up to 512 characters
//! whatever was asked, which made the service famous for multiplying other people's traffic: here
//! the answer is never larger than the request, so an empty one gets an empty one.
//!
//! The characters are those of the RFC's example and of stock servers (inetutils' inetd): each line
//! has 72 of the 95 printable ones of ASCII as a ring, begins one further than the line before,
//! and ends with CR LF.

use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of RFC 864, TCP and UDP.
pub const PORT: u16 = 19;

/// A line: 72 characters, CR and LF.
pub const LINE_BYTES: usize = 74;

/// The largest answer to a datagram, by the RFC.
pub const ANSWER_LIMIT_BYTES: usize = 512;

/// Bytes after which the whole pattern comes again.
pub const PERIOD_BYTES: usize = LINE_BYTES * RING.len();

/// The printable characters of ASCII, from space to tilde.
const RING: [u8; 95] = {
    let mut ring = [0; 95];
    let mut at = 0;
    while at < ring.len() {
        ring[at] = b' ' + at as u8;
        at += 1;
    }
    ring
};

/// Chargen, as the table of dialects has it. Its client need not say anything, so it is never
/// recognised: a port is told to speak it.
pub const DIALECT: Dialect = Dialect {
    name: "chargen",
    recognise: |_: Carrier, _: &[u8]| Verdict::No,
};

/// The character at a place of the stream.
fn character(offset: u64) -> u8 {
    let offset = (offset % PERIOD_BYTES as u64) as usize;
    let (line, column) = (offset / LINE_BYTES, offset % LINE_BYTES);
    match column {
        72 => b'\r',
        73 => b'\n',
        _ => RING[(line + column) % RING.len()],
    }
}

/// Writes the stream from a place on. Whoever sends much fills [`PERIOD_BYTES`] and more once, and
/// sends from there.
pub fn fill(offset: u64, out: &mut [u8]) {
    for (place, byte) in (offset..).zip(out) {
        *byte = character(place);
    }
}

/// Writes the answer to a datagram of `request_bytes` into `out` and returns its size: at most the
/// request's, [`ANSWER_LIMIT_BYTES`] and what `out` holds. `line` is the number of the line to
/// begin with; stock servers count it up with each answer.
///
/// Before it is sent, [`echo::answers_to`](crate::echo::answers_to) must allow it: two chargens
/// would talk for ever.
pub fn answer(request_bytes: usize, line: u64, out: &mut [u8]) -> usize {
    let bytes = request_bytes.min(ANSWER_LIMIT_BYTES).min(out.len());
    let line = line % RING.len() as u64;
    fill(line * LINE_BYTES as u64, &mut out[..bytes]);
    bytes
}
