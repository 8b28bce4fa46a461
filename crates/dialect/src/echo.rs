//! Echo, RFC 862: the same bytes back.
//!
//! Over TCP until the client closes its writing half and everything is returned; over UDP one
//! datagram for each. The server side is [`Stream`] for TCP and nothing but [`answers_to`] for UDP:
//! the datagram itself is the answer. A client has only to compare what comes back.

use crate::queue::Queue;
use crate::sniff::{Carrier, Dialect, Verdict};

/// The port of RFC 862, TCP and UDP.
pub const PORT: u16 = 7;

/// Ports whose services answer whatever they get: echo, daytime, quote of the day, chargen, time.
/// An answer to one of them may be answered again, for ever.
pub const ANSWERING_PORTS: [u16; 5] = [7, 13, 17, 19, 37];

/// Echo, as the table of dialects has it. Its bytes can be any, so it is never recognised: a port
/// is told to speak it.
pub const DIALECT: Dialect = Dialect {
    name: "echo",
    recognise: |_: Carrier, _: &[u8]| Verdict::No,
};

/// Whether a datagram from `source_port` may be answered by echo, chargen and the like.
///
/// Not when what sits there might answer the answer: the ports of [`ANSWERING_PORTS`], and those
/// that this server itself listens on, because the sender may be another server like it, or this
/// one with a forged address. Port 0 stands for "no answer wanted" (RFC 768).
#[must_use]
pub fn answers_to(source_port: u16, own_ports: &[u16]) -> bool {
    source_port != 0 && !ANSWERING_PORTS.contains(&source_port) && !own_ports.contains(&source_port)
}

/// Bytes of a TCP connection that wait to be returned before no more are taken: a client that does
/// not read costs no more than this.
pub const BACKLOG_LIMIT_BYTES: usize = 256 << 10;

/// The server's end of a TCP connection.
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
    /// Takes what arrived, and says how much of it: the rest is to be given again once something
    /// was sent, and nothing is to be read meanwhile.
    #[must_use]
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(BACKLOG_LIMIT_BYTES - self.waiting.len());
        self.waiting.push(&bytes[..taken]);
        self.received += taken as u64;
        taken
    }

    /// The client closed its writing half.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// What is to be written next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.bytes()
    }

    /// So many bytes of [`Stream::outgoing`] were written.
    ///
    /// # Panics
    /// When there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.waiting.pop(bytes);
        self.returned += bytes as u64;
    }

    /// Whether everything was returned and nothing more will come: the connection is to be closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.finished && self.waiting.is_empty()
    }

    /// Bytes that were taken, and bytes that were returned.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.received, self.returned)
    }
}
