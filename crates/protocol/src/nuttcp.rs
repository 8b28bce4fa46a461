//! nuttcp: a test negotiated in lines of text, with data on connections of its own.
//!
//! # On the wire
//!
//! Observed with nuttcp 6.1.2 in both roles. The control connection (TCP, port [`CONTROL_PORT`])
//! carries lines that end with LF:
//!
//! ```text
//! client  HELO nuttcp v6.1.2
//! server  HELO nuttcp v6.1.2
//! client buflen = 65536, nbuf = 2147483647, win = 0, nstream = 1, rate = 4294967295, port = 5001,
//! …
//! server  OK v6.1.2            or  KO, lines of reasons, KO
//!         … data …
//! server  interval lines and DONE, if intervals were requested and the server receives
//! server  nuttcp-r: 2577.0000 MB in 0.50 real seconds = 5276102.62 KB/sec = 43221.8326 Mbps
//!         and more such lines, then it closes
//! ```
//!
//! Data is TCP or UDP on `nstream` ports from `port` on, one connection each. The transmitter
//! connects (or sends datagrams), whichever role it has; the flip option (`reverse = 1`) reverses
//! this for TCP. So a server that transmits connects to its client.
//!
//! TCP data is a stream that ends when it is closed. With several streams an upstream receiver
//! reads one complete buffer from each in turn, and stops when one has ended: a transmitter must
//! write in the same order. With intervals an upstream transmitter puts its number of
//! retransmissions into each buffer, after the four bytes `NRTR` at offset 28; this crate neither
//! writes nor reads it.
//!
//! UDP data is framed by datagrams of 4 bytes ([`NuttcpUdpSender`]). The first bytes of upstream's
//! payload are leftovers of the last marker or line (`BOD1`, `OK v6.1.2`), so only the size
//! identifies a marker.
//!
//! # Versions
//!
//! Each field of the parameters is sent only to a peer whose version has it. Both roles announce
//! [`VERSION`], and newer peers (8.x) fall back to it.
//!
//! # Not supported
//!
//! Our server rejects, with the reason: third-party tests (which would run tests against hosts that
//! the client chooses), traceroute and multicast.
//!
//! # Use
//!
//! [`NuttcpServer`] and [`NuttcpClient`] are the two ends of the control connection: bytes in,
//! [`NuttcpServerEvent`]s or [`NuttcpClientEvent`]s and bytes out. The caller owns all sockets. On
//! `Prepare` it opens the listening data sockets and calls `mark_ready`; on `Run` (`Start` at the
//! client) it transfers payload. It may use a port on which it already listens for all clients:
//! then a connection from the address of the peer, while a test awaits one there, belongs to that
//! test.

mod client;
mod error;
mod line_reader;
mod parameters;
mod report;
mod server;
mod udp;

use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

pub use client::{NuttcpClient, NuttcpClientEvent};
pub use error::NuttcpError;
pub use line_reader::{LINE_LIMIT_BYTES, TEXT_LIMIT_BYTES};
pub use parameters::{
    BUFFER_LIMIT_BYTES, NuttcpDirection, NuttcpTest, NuttcpVersion, STREAMS_LIMIT,
};
pub use report::{CpuTimes, NuttcpCounts, NuttcpInterval, NuttcpReport, REPORTED_BYTES_ERROR};
pub use server::{NuttcpServer, NuttcpServerEvent};
pub use udp::{
    CountReader, EOD_GAP_NS, NuttcpDatagram, NuttcpSendAction, NuttcpUdpReceiver, NuttcpUdpSender,
    START_GAP_NS, write_count,
};

/// Port of the control connection.
pub const CONTROL_PORT: u16 = 5000;

/// First data port of nuttcp before version 8.
pub const DATA_PORT: u16 = 5001;

/// Version that this crate announces.
pub const VERSION: NuttcpVersion = NuttcpVersion::new(6, 1, 2);

/// Delay of a transmitter between OK and its connection to the other end, in nanoseconds.
///
/// An upstream server listens on the data ports only after it has sent OK; upstream clients wait
/// 30 ms and servers 50 ms. If the connection is refused nevertheless, retry it.
pub const CONNECT_DELAY_NS: u64 = 50_000_000;

/// First line of a client, up to its version.
const HELLO_PREFIX: &str = "HELO nuttcp v";

/// Entry of nuttcp in the protocol table: its control connection, and the first datagram of its UDP
/// data.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "nuttcp",
    detect,
};

fn detect(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    match transport {
        TransportKind::Stream => ProtocolMatch::of_prefix(HELLO_PREFIX.as_bytes(), bytes),
        TransportKind::Datagram if matches!(bytes, b"BOD0" | b"BOD1") => ProtocolMatch::Yes,
        TransportKind::Datagram => ProtocolMatch::No,
    }
}
