//! Chargen, RFC 864: an endless stream of characters.
//!
//! A TCP connection receives lines of [`LINE_BYTES`] until the client closes it; data from the
//! client is discarded. A datagram is answered by one datagram. The RFC allows up to 512 characters
//! for a request of any size, which made the service a known traffic amplifier. Here the reply is
//! never larger than the request; an empty request gets an empty reply.
//!
//! The characters are those of the RFC's example and of inetutils' inetd: a line has 72 of the 95
//! printable ASCII characters in cyclic order, starts one character after the line before, and ends
//! with CR LF.

use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of RFC 864, TCP and UDP.
pub const PORT: u16 = 19;

/// Bytes of a line: 72 characters, CR and LF.
pub const LINE_BYTES: usize = 74;

/// Largest reply to a datagram (RFC 864).
pub const ANSWER_LIMIT_BYTES: usize = 512;

/// Bytes after which the stream repeats.
pub const PERIOD_BYTES: usize = LINE_BYTES * RING.len();

/// Printable ASCII characters, from space to tilde.
const RING: [u8; 95] = {
    let mut ring = [0; 95];
    let mut at = 0;
    while at < ring.len() {
        ring[at] = b' ' + at as u8;
        at += 1;
    }
    ring
};

/// Entry of the protocol table. A chargen client may send nothing, so the protocol is never
/// detected: a port is assigned to it by an option.
pub const DIALECT: Dialect = Dialect {
    name: "chargen",
    recognise: |_: Carrier, _: &[u8]| Verdict::No,
};

/// Returns the character at an offset of the stream.
fn character(offset: u64) -> u8 {
    let offset = (offset % PERIOD_BYTES as u64) as usize;
    let (line, column) = (offset / LINE_BYTES, offset % LINE_BYTES);
    match column {
        72 => b'\r',
        73 => b'\n',
        _ => RING[(line + column) % RING.len()],
    }
}

/// Writes the stream from `offset` on. A sender of large amounts fills a buffer of at least
/// [`PERIOD_BYTES`] once and sends from there.
pub fn fill(offset: u64, out: &mut [u8]) {
    for (place, byte) in (offset..).zip(out) {
        *byte = character(place);
    }
}

/// Writes the reply to a datagram of `request_bytes` into `out` and returns its size: at most that
/// of the request, [`ANSWER_LIMIT_BYTES`] and `out`. `line` is the number of the first line; the
/// server of inetutils counts it up with each reply.
///
/// Check [`echo::answers_to`](crate::echo::answers_to) before sending it: two chargen servers would
/// reply to each other for ever.
pub fn answer(request_bytes: usize, line: u64, out: &mut [u8]) -> usize {
    let bytes = request_bytes.min(ANSWER_LIMIT_BYTES).min(out.len());
    let line = line % RING.len() as u64;
    fill(line * LINE_BYTES as u64, &mut out[..bytes]);
    bytes
}
