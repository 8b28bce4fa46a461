//! iperf2: a header in front of the payload, and a report after UDP.
//!
//! # On the wire (numbers are big-endian)
//!
//! ```text
//! TCP   client to server   header, 24 B (old) or 60 B and more, then payload; the header counts as payload
//!       server to client   28 B or 52 B that say its version, when the client's flags ask for them
//! UDP   client to server   sequence low u32 | seconds u32 | microseconds u32 | sequence high u32 |
//!                          the same header in every datagram, or zeros, or digits | filler
//!       client to server   the end: a negative sequence, repeated until it is answered
//!       server to client   the report, 128 B
//! ```
//!
//! Old versions (2.0.x, and `-C`) send no header over TCP unless both directions are wanted, and only
//! the first 12 bytes over UDP: to a server they look like plain payload. [`settings`] has the header
//! in both layouts, [`datagram`] what is in front of it over UDP.
//!
//! # What a driver does
//!
//! | test | server | client |
//! |---|---|---|
//! | TCP, either way, or both on one connection | [`TcpServer`] reads the header and says who sends | [`TcpClient`] makes it and reads the version |
//! | TCP, each write with its time (`--trip-times`) | [`WriteTimes`] says how long each was on its way; [`WriteStamps`] says the same to a client that receives | none |
//! | TCP, question and answer (`--bounceback`) | [`bounceback::Server`] | [`bounceback::Client`] |
//! | UDP, either way, or both on one socket | [`UdpServer`] | [`UdpClient`] |
//! | a second connection back (`-d`, `-r`) | [`Settings::dual`]: connects to the client's port and is then a client that sends no header | the same, listening |
//!
//! Times are wall-clock nanoseconds since 1970 ([`datagram`] stamps) or nanoseconds of a clock that
//! never goes back (deadlines); each parameter's name says which.
//!
//! # Safety of a server
//!
//! Nothing in UDP proves that a client is where it says it is. The report is 128 B and may be cut to
//! the size of the datagram that it answers, down to 56 B: stock clients read no further. `-R`, both
//! directions and `-d`/`-r` over UDP make a server send to an address that proved nothing, and `-d`/`-r`
//! over TCP to a port that proved nothing: whoever opens sockets decides.

pub mod bounceback;
pub mod datagram;
pub mod settings;

mod error;
mod far;
mod report;
mod sniff;
mod tally;
mod tcp;
mod udp_client;
mod udp_server;
mod writes;

pub use error::Iperf2Error;
pub use report::{Layout, REPORT_BYTES, REPORT_LEAST_BYTES, Report, Transit};
pub use settings::{Amount, Dual, Settings, Way};
pub use sniff::{DIALECT, LEGACY_DIALECT};
pub use tally::Tally;
pub use tcp::{ACK_BYTES, Ack, AckTimes, TcpClient, TcpJob, TcpServer};
pub use udp_client::{Due, UdpClient};
pub use udp_server::{Heard, QUIET_NS, UdpServer};
pub use writes::{WRITE_HEADER_BYTES, WriteStamps, WriteTimes};

/// The pattern of payload: the digits, again and again. Old receivers can be told to check it.
pub fn fill(payload: &mut [u8]) {
    fill_from(payload, 0);
}

/// The same, as it goes on `start` bytes after a beginning.
pub(crate) fn fill_from(payload: &mut [u8], start: usize) {
    for (byte, digit) in payload
        .iter_mut()
        .zip((b'0'..=b'9').cycle().skip(start % 10))
    {
        *byte = digit;
    }
}

/// The 32-bit word at an offset; `None` when the bytes end before it.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|word| u32::from_be_bytes(*word))
}

/// Writes a 32-bit word at an offset, where there is room.
fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(room) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *room = value.to_be_bytes();
    }
}

/// Seconds and microseconds of the wire as nanoseconds.
fn wall_ns(seconds: u32, microseconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000 + u64::from(microseconds) * 1000
}

/// Nanoseconds as seconds and microseconds of the wire; the seconds wrap in 2106.
fn split_ns(ns: u64) -> (u32, u32) {
    let seconds = (ns / 1_000_000_000) as u32;
    (seconds, (ns % 1_000_000_000 / 1000) as u32)
}
