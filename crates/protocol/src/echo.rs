//! Echo, RFC 862: returns the received bytes.
//!
//! Over TCP until the client shuts down its sending side and everything is returned; over UDP one
//! datagram for each. The server side is [`EchoStream`] for TCP and [`may_reply_to`] for UDP, where
//! the received datagram itself is the reply. A client compares the returned bytes with those it
//! sent.

use crate::byte_queue::ByteQueue;
use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// The port of RFC 862, TCP and UDP.
pub const PORT: u16 = 7;

/// First source port of a client. Below are the ports of services (RFC 6335 section 6), among them
/// those that reply to any data: echo, quote of the day, chargen, time, DNS, NTP.
pub const FIRST_CLIENT_PORT: u16 = 1_024;

/// Entry of the protocol table. Echo has no prefix of its own, so it is never detected: a port is
/// assigned to it by an option.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "echo",
    detect: |_: TransportKind, _: &[u8]| ProtocolMatch::No,
};

/// Returns whether a datagram from `source_port` may be answered by echo, chargen and the like.
///
/// False for ports whose service may reply to the reply: those below [`FIRST_CLIENT_PORT`], and the
/// ports of this server. The sender may be another server of this kind, or this server with a
/// forged source address. A service may have any other port, too: so replies that come back are
/// counted ([`AmplificationGuard::count_returned`]).
///
/// [`AmplificationGuard::count_returned`]: crate::amplification_guard::AmplificationGuard::count_returned
#[must_use]
pub fn may_reply_to(source_port: u16, local_ports: &[u16]) -> bool {
    source_port >= FIRST_CLIENT_PORT && !local_ports.contains(&source_port)
}

/// Bytes of a TCP connection that may wait to be returned; limits the memory for a client that does
/// not read.
pub const BACKLOG_LIMIT_BYTES: usize = 256 << 10;

/// Server side of a TCP connection.
///
/// ```
/// use linerate_protocol::echo::EchoStream;
///
/// let mut stream = EchoStream::default();
/// assert_eq!(stream.receive(b"hello"), 5);
/// stream.close_input();
/// assert_eq!(stream.outgoing(), b"hello");
/// stream.mark_sent(5);
/// assert!(stream.is_over());
/// ```
#[derive(Clone, Debug, Default)]
pub struct EchoStream {
    unsent: ByteQueue,
    input_closed: bool,
    received_bytes: u64,
    returned_bytes: u64,
}

impl EchoStream {
    /// Appends received bytes and returns how many were accepted. Pass the rest again after some
    /// bytes were sent, and read nothing from the connection meanwhile.
    #[must_use]
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let accepted = bytes.len().min(BACKLOG_LIMIT_BYTES - self.unsent.len());
        self.unsent.push(&bytes[..accepted]);
        self.received_bytes += accepted as u64;
        accepted
    }

    /// Records that the client shut down its sending side.
    pub fn close_input(&mut self) {
        self.input_closed = true;
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.unsent.bytes()
    }

    /// Removes bytes of [`EchoStream::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.unsent.pop(bytes);
        self.returned_bytes += bytes as u64;
    }

    /// Returns whether everything was returned after the client's end: close the connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.input_closed && self.unsent.is_empty()
    }

    /// Returns the numbers of bytes received and returned.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.received_bytes, self.returned_bytes)
    }
}
