//! The answering end.

use super::message::{FROM_CLIENT, Header, Messages, Piece, SockperfError, WARM_UP};
use crate::queue::Queue;

/// Bytes of answers that wait for a client that does not read, before no more is taken from it.
pub const BACKLOG_LIMIT_BYTES: usize = 256 << 10;

/// What came from a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages, without warm-ups.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that were sent back.
    pub answered: u64,
    /// Warm-up messages.
    pub warm_ups: u64,
    /// Messages of servers, and datagrams that are none of sockperf.
    pub ignored: u64,
    /// The highest sequence of a counted message: what the client sent so far, if it began with 1.
    /// `None` before the first.
    pub highest_sequence: Option<u64>,
    /// The lowest one: a client that was stopped may go on with a flow that was over here.
    pub lowest_sequence: Option<u64>,
}

impl Totals {
    /// Messages over UDP that are missing among those from the first that came on; `None` before that.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        let between = self.highest_sequence?.checked_sub(self.lowest_sequence?)?;
        // Each message has a number of its own.
        Some(between.saturating_add(1).saturating_sub(self.messages))
    }
}

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// A message to be sent back: the datagram as it is now is the answer, no larger than it came.
    Answer(Header),
    /// A message to be counted.
    Counted(Header),
    /// Neither.
    Ignored,
}

/// The server's end of a TCP connection, or of a UDP flow.
///
/// Answers leave while their message still arrives, so no message is held: what waits are answers
/// that the client has not read.
#[derive(Clone, Debug, Default)]
pub struct Server {
    messages: Messages,
    /// The message that is arriving is being sent back.
    answering: bool,
    waiting: Queue,
    totals: Totals,
}

impl Server {
    /// Takes a datagram, and turns it into its answer when it wants one.
    ///
    /// Counting is by flow and needs no proof of the address; whether the answer may be sent there
    /// is the [guard's](crate::guard) decision.
    #[inline]
    pub fn datagram(&mut self, datagram: &mut [u8]) -> Took {
        let header = match Header::read(datagram) {
            Some(header) if header.length as usize == datagram.len() => header,
            _ => {
                self.totals.ignored += 1;
                return Took::Ignored;
            }
        };
        if !self.count(header) {
            return Took::Ignored;
        }
        if !header.is_question() {
            return Took::Counted(header);
        }
        header.answered().write(datagram);
        self.totals.answered += 1;
        Took::Answer(header)
    }

    /// Takes what arrived on a stream, and says how much of it: the rest is to be given again once
    /// something was sent, and nothing is to be read meanwhile.
    ///
    /// # Errors
    /// [`SockperfError`]; what waits may still be sent, then the connection is to be closed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<usize, SockperfError> {
        let room = BACKLOG_LIMIT_BYTES.saturating_sub(self.waiting.len());
        // Nothing answers with more than what came, so the room is never overrun by more than the
        // part of a header that came before.
        let mut rest = &bytes[..bytes.len().min(room)];
        let taken = rest.len();
        while let Some(piece) = self.messages.next(&mut rest)? {
            match piece {
                Piece::Header(header) => {
                    self.answering = header.is_question();
                    if self.answering {
                        self.waiting.push(&header.answered().bytes());
                    }
                }
                Piece::Filler(filler) => {
                    if self.answering {
                        self.waiting.push(filler);
                    }
                }
                Piece::End(header) => {
                    self.count(header);
                    if self.answering {
                        self.totals.answered += 1;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// Whether the message counts.
    #[inline]
    fn count(&mut self, header: Header) -> bool {
        if header.has(WARM_UP) {
            self.totals.warm_ups += 1;
            return false;
        }
        if !header.has(FROM_CLIENT) {
            self.totals.ignored += 1;
            return false;
        }
        self.totals.messages += 1;
        self.totals.bytes += u64::from(header.length);
        let highest = self.totals.highest_sequence.max(Some(header.sequence));
        self.totals.highest_sequence = highest;
        let lowest = self.totals.lowest_sequence;
        let lowest = lowest.map_or(header.sequence, |lowest| lowest.min(header.sequence));
        self.totals.lowest_sequence = Some(lowest);
        true
    }

    /// What is to be written to a stream next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.bytes()
    }

    /// So many bytes of [`Server::outgoing`] were written.
    ///
    /// # Panics
    /// When there were fewer.
    pub fn sent(&mut self, bytes: usize) {
        self.waiting.pop(bytes);
    }

    /// What has come so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
