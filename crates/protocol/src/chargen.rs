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

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// The port of RFC 864, TCP and UDP.
pub const PORT: u16 = 19;

/// Bytes of a line: 72 characters, CR and LF.
pub const LINE_BYTES: usize = 74;

/// Largest reply to a datagram (RFC 864).
pub const REPLY_LIMIT_BYTES: usize = 512;

/// Bytes after which the stream repeats.
pub const PERIOD_BYTES: usize = LINE_BYTES * CHARACTERS.len();

/// Printable ASCII characters, from space to tilde.
const CHARACTERS: [u8; 95] = {
    let mut characters = [0; 95];
    let mut at = 0;
    while at < characters.len() {
        characters[at] = b' ' + at as u8;
        at += 1;
    }
    characters
};

/// Entry of the protocol table. A chargen client may send nothing, so the protocol is never
/// detected: a port is assigned to it by an option.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "chargen",
    detect: |_: TransportKind, _: &[u8]| ProtocolMatch::No,
};

/// Returns the character at an offset of the stream.
fn character_at(offset: u64) -> u8 {
    let offset = (offset % PERIOD_BYTES as u64) as usize;
    let (line, column) = (offset / LINE_BYTES, offset % LINE_BYTES);
    match column {
        72 => b'\r',
        73 => b'\n',
        _ => CHARACTERS[(line + column) % CHARACTERS.len()],
    }
}

/// Writes the stream from `offset` on. A sender of large amounts fills a buffer of at least
/// [`PERIOD_BYTES`] once and sends from there.
pub fn fill(offset: u64, out: &mut [u8]) {
    for (position, byte) in (offset..).zip(out) {
        *byte = character_at(position);
    }
}

/// Writes the reply to a datagram of `request_bytes` into `out` and returns its size: at most that
/// of the request, [`REPLY_LIMIT_BYTES`] and `out`. `line` is the number of the first line; the
/// server of inetutils counts it up with each reply.
///
/// Check [`echo::may_reply_to`](crate::echo::may_reply_to) before sending it: two chargen servers
/// would reply to each other for ever.
pub fn reply(request_bytes: usize, line: u64, out: &mut [u8]) -> usize {
    let bytes = request_bytes.min(REPLY_LIMIT_BYTES).min(out.len());
    let line = line % CHARACTERS.len() as u64;
    fill(line * LINE_BYTES as u64, &mut out[..bytes]);
    bytes
}
