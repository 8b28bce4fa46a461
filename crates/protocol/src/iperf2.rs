//! iperf2: a header in front of the payload, and a report after a UDP test.
//!
//! # On the wire (numbers are big-endian)
//!
//! ```text
//! TCP   client to server   header, 24 B (old) or 60 B and more, then payload; the header counts as payload
//!       server to client   28 B or 52 B with its version, if the client's flags request them
//! UDP   client to server   sequence low u32 | seconds u32 | microseconds u32 | sequence high u32 |
//!                          the same header in every datagram, or zeros, or digits | filler
//!       client to server   the end: a negative sequence, repeated until it is acknowledged
//!       server to client   the report, 128 B
//! ```
//!
//! Old versions (2.0.x, and `-C`) send no header over TCP unless both directions are requested, and
//! only the first 12 bytes over UDP: to a server they look like plain payload. [`settings`] has the
//! header in both layouts, [`datagram`] the header of a UDP datagram.
//!
//! # Parts for each kind of test
//!
//! | test | server | client |
//! |---|---|---|
//! | TCP, one direction, or both on one connection | [`Iperf2TcpServer`] reads the header and reports the direction | [`Iperf2TcpClient`] writes it and reads the version |
//! | TCP with a timestamp in each write (`--trip-times`) | [`WriteDelayReader`] reports the delay of each write; [`WriteTimestamper`] writes timestamps for a client that receives | none |
//! | TCP, request and reply (`--bounceback`) | [`bounceback::BouncebackServer`] | [`bounceback::BouncebackClient`] |
//! | UDP, one direction, or both on one socket | [`Iperf2UdpServer`] | [`Iperf2UdpClient`] |
//! | a second connection back (`-d`, `-r`) | [`Iperf2Settings::dual`]: connects to the client's port and acts as a client without a header | listens |
//!
//! Times are wall-clock nanoseconds since 1970 (timestamps in a [`datagram`]) or nanoseconds of a
//! monotonic clock (deadlines), as the name of each parameter shows.
//!
//! # Security of a server
//!
//! UDP does not validate the client's address. The report is 128 B and may be truncated to the size
//! of the datagram that it answers, down to 56 B: clients of upstream read no further. `-R`, both
//! directions and `-d`/`-r` over UDP make a server send to an unvalidated address, and `-d`/`-r`
//! over TCP make it connect to a port that the client chooses. The owner of the sockets must decide
//! whether to allow it.

pub mod bounceback;
pub mod datagram;
pub mod settings;

mod error;
mod receiver_stats;
mod remote_report;
mod report;
mod sniff;
mod tcp;
mod udp_client;
mod udp_server;
mod write_times;

pub use error::Iperf2Error;
pub use receiver_stats::Iperf2ReceiverStats;
pub use report::{Iperf2Report, REPORT_BYTES, REPORT_MIN_BYTES, ReportLayout, TransitTimes};
pub use settings::{DualTest, Iperf2Direction, Iperf2Settings, TestAmount};
pub use sniff::{LEGACY_PROTOCOL, PROTOCOL, detect_legacy_flow};
pub use tcp::{
    ACK_BYTES, Iperf2TcpClient, Iperf2TcpRequest, Iperf2TcpServer, VersionAck, VersionAckTimes,
};
pub use udp_client::{Iperf2ClientAction, Iperf2UdpClient};
pub use udp_server::{Iperf2Datagram, Iperf2UdpServer, QUIET_NS};
pub use write_times::{WRITE_HEADER_BYTES, WriteDelayReader, WriteTimestamper};

/// Fills a payload with iperf2's pattern, the digits repeated; old receivers can verify it.
pub fn fill(payload: &mut [u8]) {
    fill_from(payload, 0);
}

/// Fills a payload with the pattern from its position `start` on.
pub(crate) fn fill_from(payload: &mut [u8], start: usize) {
    for (byte, digit) in payload
        .iter_mut()
        .zip((b'0'..=b'9').cycle().skip(start % 10))
    {
        *byte = digit;
    }
}

/// Reads the 32-bit word at an offset; `None` if the bytes end before it.
fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|word_bytes| u32::from_be_bytes(*word_bytes))
}

/// Writes a 32-bit word at an offset if it fits.
fn write_u32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(field) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value.to_be_bytes();
    }
}

/// Converts seconds and microseconds of the wire to nanoseconds.
fn wire_time_ns(seconds: u32, microseconds: u32) -> u64 {
    u64::from(seconds) * 1_000_000_000 + u64::from(microseconds) * 1000
}

/// Converts nanoseconds to seconds and microseconds of the wire; the seconds wrap in 2106.
fn to_wire_time(ns: u64) -> (u32, u32) {
    let seconds = (ns / 1_000_000_000) as u32;
    (seconds, (ns % 1_000_000_000 / 1000) as u32)
}
