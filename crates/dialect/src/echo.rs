//! Echo, RFC 862: returns the received bytes.
//!
//! Over TCP until the client shuts down its sending side and everything is returned; over UDP one
//! datagram for each. The server side is [`Stream`] for TCP and [`answers_to`] for UDP, where the
//! received datagram itself is the reply. A client compares the returned bytes with those it sent.

use crate::byte_queue::Queue;
use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of RFC 862, TCP and UDP.
pub const PORT: u16 = 7;

/// Ports of services that reply to any data: echo, daytime, quote of the day, chargen, time.
/// A reply to one of them can cause another reply, for ever.
pub const ANSWERING_PORTS: [u16; 5] = [7, 13, 17, 19, 37];

/// Entry of the protocol table. Echo has no prefix of its own, so it is never detected: a port is
/// assigned to it by an option.
pub const DIALECT: Dialect = Dialect {
    name: "echo",
    recognise: |_: Carrier, _: &[u8]| Verdict::No,
};

/// Returns whether a datagram from `source_port` may be answered by echo, chargen and the like.
///
/// False for ports whose service may reply to the reply: [`ANSWERING_PORTS`] and the ports of this
/// server. The sender may be another server of this kind, or this server with a forged source
/// address. Source port 0 means that no reply is expected (RFC 768).
#[must_use]
pub fn answers_to(source_port: u16, own_ports: &[u16]) -> bool {
    source_port != 0 && !ANSWERING_PORTS.contains(&source_port) && !own_ports.contains(&source_port)
}

/// Bytes of a TCP connection that may wait to be returned; limits the memory for a client that does
/// not read.
pub const BACKLOG_LIMIT_BYTES: usize = 256 << 10;

/// Server side of a TCP connection.
///
/// ```
/// use linerate_dialect::echo::Stream;
///
/// let mut stream = Stream::default();
/// assert_eq!(stream.receive(b"hello"), 5);
/// stream.finish();
/// assert_eq!(stream.outgoing(), b"hello");
/// stream.sent(5);
/// assert!(stream.is_over());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stream {
    waiting: Queue,
    finished: bool,
    received: u64,
    returned: u64,
}

impl Stream {
    /// Appends received bytes and returns how many were accepted. Pass the rest again after some
    /// bytes were sent, and read nothing from the connection meanwhile.
    #[must_use]
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(BACKLOG_LIMIT_BYTES - self.waiting.len());
        self.waiting.push(&bytes[..taken]);
        self.received += taken as u64;
        taken
    }

    /// Records that the client shut down its sending side.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.bytes()
    }

    /// Removes bytes of [`Stream::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.waiting.pop(bytes);
        self.returned += bytes as u64;
    }

    /// Returns whether everything was returned after the client's end: close the connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.finished && self.waiting.is_empty()
    }

    /// Returns the numbers of bytes received and returned.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.received, self.returned)
    }
}
