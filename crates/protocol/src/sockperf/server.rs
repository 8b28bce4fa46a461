//! Responding end.

use super::message::{
    FROM_CLIENT, MessageParser, MessagePart, SockperfError, SockperfHeader, WARM_UP,
};
use crate::byte_queue::ByteQueue;

/// Bytes of replies that may wait for a client; then nothing more is read from it.
pub const BACKLOG_LIMIT_BYTES: usize = 256 << 10;

/// Receive counters of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SockperfTotals {
    /// Messages, without warm-ups.
    pub messages: u64,
    /// Bytes of the messages.
    pub bytes: u64,
    /// Replies sent.
    pub replied: u64,
    /// Warm-up messages.
    pub warm_ups: u64,
    /// Messages of servers, and datagrams that are not sockperf.
    pub ignored: u64,
    /// Highest sequence of a counted message, which is the number of messages that the client sent
    /// if it began with 1; `None` before the first.
    pub highest_sequence: Option<u64>,
    /// Lowest sequence: a paused client may continue a flow that had already ended here.
    pub lowest_sequence: Option<u64>,
}

impl SockperfTotals {
    /// Returns the lost UDP messages between the lowest and the highest sequence; `None` before the
    /// first message.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        let between = self.highest_sequence?.checked_sub(self.lowest_sequence?)?;
        // Each message has a number of its own.
        Some(between.saturating_add(1).saturating_sub(self.messages))
    }
}

/// Classification of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SockperfDatagram {
    /// Request: the datagram now contains the reply, which is no larger.
    Reply(SockperfHeader),
    /// Message that was counted.
    Counted(SockperfHeader),
    /// Any other datagram.
    Ignored,
}

/// Server side of a TCP connection or of a UDP flow.
///
/// A reply is sent while its message still arrives, so no message is stored; only replies that the
/// client has not read wait.
#[derive(Clone, Debug, Default)]
pub struct SockperfServer {
    parser: MessageParser,
    /// True if the current message is being sent back.
    is_replying: bool,
    unsent: ByteQueue,
    totals: SockperfTotals,
}

impl SockperfServer {
    /// Processes a datagram and turns it into its reply if one is requested.
    ///
    /// Counting is per flow and needs no validated address; the
    /// [guard](crate::amplification_guard) decides whether the reply may be sent.
    #[inline]
    pub fn receive_datagram(&mut self, datagram: &mut [u8]) -> SockperfDatagram {
        let header = match SockperfHeader::read(datagram) {
            Some(header) if header.length as usize == datagram.len() => header,
            _ => {
                self.totals.ignored += 1;
                return SockperfDatagram::Ignored;
            }
        };
        if !self.count(header) {
            return SockperfDatagram::Ignored;
        }
        if !header.is_request() {
            return SockperfDatagram::Counted(header);
        }
        header.to_reply().write(datagram);
        self.totals.replied += 1;
        SockperfDatagram::Reply(header)
    }

    /// Processes received bytes of a stream and returns how many were accepted. Pass the rest again
    /// after some bytes were sent, and read nothing from the connection meanwhile.
    ///
    /// # Errors
    /// [`SockperfError`]; send the queued bytes, then close the connection.
    pub fn receive_stream(&mut self, bytes: &[u8]) -> Result<usize, SockperfError> {
        let capacity = BACKLOG_LIMIT_BYTES.saturating_sub(self.unsent.len());
        // A reply is no larger than its message, so the limit is exceeded at most by the part of a
        // header that arrived earlier.
        let mut rest = &bytes[..bytes.len().min(capacity)];
        let accepted = rest.len();
        while let Some(part) = self.parser.next_part(&mut rest)? {
            match part {
                MessagePart::Header(header) => {
                    self.is_replying = header.is_request();
                    if self.is_replying {
                        self.unsent.push(&header.to_reply().to_bytes());
                    }
                }
                MessagePart::Filler(filler) => {
                    if self.is_replying {
                        self.unsent.push(filler);
                    }
                }
                MessagePart::End(header) => {
                    self.count(header);
                    if self.is_replying {
                        self.totals.replied += 1;
                    }
                }
            }
        }
        Ok(accepted)
    }

    /// Counts a message; returns whether it counts as payload.
    #[inline]
    fn count(&mut self, header: SockperfHeader) -> bool {
        if header.has_flag(WARM_UP) {
            self.totals.warm_ups += 1;
            return false;
        }
        if !header.has_flag(FROM_CLIENT) {
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

    /// Returns the bytes to write next.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.unsent.bytes()
    }

    /// Removes bytes of [`SockperfServer::outgoing`] that were written.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.unsent.pop(bytes);
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn totals(&self) -> SockperfTotals {
        self.totals
    }
}
