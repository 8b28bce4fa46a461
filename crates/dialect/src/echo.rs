//! Echo, RFC 862: the same bytes back.
//!
//! Over TCP until the client closes its writing half and everything is returned; over UDP one
//! datagram for each. The server side is [`Stream`] for TCP and nothing but [`answers_to`] for UDP:
//! the datagram itself is the answer. The client side is [`Asker`], for both.

use crate::control::flow::write_header;
use crate::far::FarReport;
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

/// Whether a datagram from `source_port` may be answered by echo or chargen.
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

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to the open question.
    RoundTrip {
        /// Number of the question, from 0.
        number: u64,
        /// From the question to its last byte, in nanoseconds.
        rtt_ns: u64,
        /// Whether it is the question, byte by byte.
        matches: bool,
    },
    /// The answer to an earlier question that was given up, told by its number.
    Late,
    /// Nothing that was asked for.
    Stray,
}

/// The client: one question at a time.
///
/// Questions of 16 bytes and more begin with number and time as all our datagrams do
/// ([`control::flow`](crate::control::flow)), smaller ones carry the lower bytes of their number.
/// All memory is taken when it is made.
#[derive(Clone, Debug)]
pub struct Asker {
    question: Vec<u8>,
    /// What has come of the answer on a stream.
    answer: Vec<u8>,
    next: u64,
    asked_ns: Option<u64>,
    /// Bytes of given-up answers that are still to come on a stream.
    owed: u64,
}

impl Asker {
    /// Asks with messages of this size.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let question = (0..bytes).map(|at| at as u8).collect();
        Self {
            question,
            answer: Vec::with_capacity(bytes),
            next: 0,
            asked_ns: None,
            owed: 0,
        }
    }

    /// The next question, to be sent now. One that is open is given up.
    pub fn ask(&mut self, now_ns: u64) -> &[u8] {
        self.give_up();
        if self.question.len() >= crate::control::flow::HEADER_BYTES {
            write_header(&mut self.question, self.next, now_ns);
        } else {
            let number = self.next.to_le_bytes();
            for (byte, part) in self.question.iter_mut().zip(number) {
                *byte = part;
            }
        }
        self.next += 1;
        self.asked_ns = Some(now_ns);
        &self.question
    }

    /// Stops waiting for the open question's answer.
    pub fn give_up(&mut self) {
        if self.asked_ns.take().is_some() {
            self.owed += (self.question.len() - self.answer.len()) as u64;
            self.answer.clear();
        }
    }

    /// Takes a datagram.
    pub fn datagram(&mut self, now_ns: u64, datagram: &[u8]) -> Answer {
        let same_number = |a: &[u8], b: &[u8]| a.iter().take(8).eq(b.iter().take(8));
        match self.asked_ns {
            Some(asked_ns)
                if datagram.len() == self.question.len()
                    && same_number(datagram, &self.question) =>
            {
                self.asked_ns = None;
                Answer::RoundTrip {
                    number: self.next - 1,
                    rtt_ns: now_ns.saturating_sub(asked_ns),
                    matches: datagram == self.question,
                }
            }
            _ => match datagram.first_chunk() {
                Some(&number)
                    if datagram.len() >= crate::control::flow::HEADER_BYTES
                        && u64::from_be_bytes(number) < self.next =>
                {
                    Answer::Late
                }
                _ => Answer::Stray,
            },
        }
    }

    /// Takes what arrived on a stream: how much of it, and the answer that it completed.
    pub fn stream(&mut self, now_ns: u64, bytes: &[u8]) -> (usize, Option<Answer>) {
        let skipped = usize::try_from(self.owed).map_or(bytes.len(), |owed| owed.min(bytes.len()));
        self.owed -= skipped as u64;
        let bytes = &bytes[skipped..];
        let Some(asked_ns) = self.asked_ns else {
            let stray = (!bytes.is_empty()).then_some(Answer::Stray);
            return (skipped + bytes.len(), stray);
        };
        let missing = self.question.len() - self.answer.len();
        let taken = missing.min(bytes.len());
        self.answer.extend_from_slice(&bytes[..taken]);
        if taken < missing {
            return (skipped + taken, None);
        }
        let matches = self.answer == self.question;
        self.answer.clear();
        self.asked_ns = None;
        let answer = Answer::RoundTrip {
            number: self.next - 1,
            rtt_ns: now_ns.saturating_sub(asked_ns),
            matches,
        };
        (skipped + taken, Some(answer))
    }

    /// What the far end said: nothing of its own; what came back the near end counts.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        FarReport::default()
    }
}
