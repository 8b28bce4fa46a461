//! nuttcp: a test agreed on in lines of text, its data on connections of its own.
//!
//! # On the wire
//!
//! Seen with nuttcp 6.1.2 in both roles. The control connection (TCP, port [`CONTROL_PORT`]) carries
//! lines that end with LF:
//!
//! ```text
//! client  HELO nuttcp v6.1.2
//! server  HELO nuttcp v6.1.2
//! client  buflen = 65536, nbuf = 2147483647, win = 0, nstream = 1, rate = 4294967295, port = 5001, …
//! server  OK v6.1.2            or  KO, lines of reasons, KO
//!         … data …
//! server  interval lines and DONE, when intervals were asked for and the server receives
//! server  nuttcp-r: 2577.0000 MB in 0.50 real seconds = 5276102.62 KB/sec = 43221.8326 Mbps
//!         and more such lines, then it closes
//! ```
//!
//! Data is TCP or UDP on `nstream` ports from `port` on, a connection each. Whoever transmits
//! connects (or sends datagrams), in whichever role; the flip option (`reverse = 1`) turns that
//! round for TCP. So a server that transmits connects to its client.
//!
//! TCP data is a stream until it is closed. With several streams a stock receiver reads them in
//! turns, one whole buffer from each, and stops when one has ended: a transmitter must write in the
//! same turns. With intervals a stock transmitter hides its count of
//! retransmits in each buffer, behind the four bytes `NRTR` at 28; we neither write nor read it.
//!
//! UDP data is framed by datagrams of 4 bytes ([`UdpSender`]). The first bytes of stock payload are
//! leftovers of the last marker or line (`BOD1`, `OK v6.1.2`), so only its size tells a marker.
//!
//! # Versions
//!
//! Each field of the parameters is sent only to a peer whose version knows it. We announce
//! [`VERSION`] in both roles, and newer peers (8.x) fall back to it.
//!
//! # What is left out
//!
//! A server of ours refuses, with the reason: third-party tests (it would run tests against hosts
//! of the client's choice), traceroute and multicast.
//!
//! # Using the machines
//!
//! [`Server`] and [`Client`] speak the control connection: bytes in, [`ServerEvent`]s or
//! [`ClientEvent`]s and bytes out. The caller owns all sockets. On `Prepare` it makes those of the
//! data ready to be connected to, says `ready`, and on `Run` (`Start` at the client) moves payload. A port of
//! the data may be one on which the caller already listens for everybody: then a connection from
//! the peer's address, while a test waits for one there, is that test's.

mod client;
mod error;
mod line;
mod report;
mod server;
mod test;
mod udp;

pub use client::{Client, ClientEvent};
pub use error::NuttcpError;
pub use line::{LINE_LIMIT_BYTES, TEXT_LIMIT_BYTES};
pub use report::{BYTES_ERROR, Counts, Cpu, Interval, Report};
pub use server::{Server, ServerEvent};
pub use test::{BUFFER_LIMIT_BYTES, STREAMS_LIMIT, Test, Version, Way};
pub use udp::{
    CountReader, EOD_GAP_NS, START_GAP_NS, Send, Took, UdpReceiver, UdpSender, write_count,
};

use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of the control connection.
pub const CONTROL_PORT: u16 = 5000;

/// The first data port of nuttcp before 8.
pub const DATA_PORT: u16 = 5001;

/// The version that we announce.
pub const VERSION: Version = Version::new(6, 1, 2);

/// How long a transmitter waits after OK before it connects to the other end, in nanoseconds.
///
/// A stock server listens on the data ports only after it said OK; stock clients wait 30 ms and
/// stock servers 50 ms. Whoever is refused all the same should try again.
pub const CONNECT_DELAY_NS: u64 = 50_000_000;

/// What a client says first, up to its version.
const HELLO: &str = "HELO nuttcp v";

/// nuttcp, as the table of dialects has it: its control connection, and the first datagram of its
/// UDP data.
pub const DIALECT: Dialect = Dialect {
    name: "nuttcp",
    recognise,
};

fn recognise(carrier: Carrier, bytes: &[u8]) -> Verdict {
    match carrier {
        Carrier::Stream => Verdict::of_prefix(HELLO.as_bytes(), bytes),
        Carrier::Datagram if matches!(bytes, b"BOD0" | b"BOD1") => Verdict::Yes,
        Carrier::Datagram => Verdict::No,
    }
}
