//! The asking end.

use super::message::{
    FROM_CLIENT, HEADER_BYTES, Header, MESSAGE_LIMIT_BYTES, Messages, Piece, SockperfError,
    WANTS_ANSWER,
};
use crate::far::FarReport;

/// Questions whose times are kept until their answers come; of more, the oldest counts as lost.
pub const OUTSTANDING: usize = 1_024;

/// Which messages are to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Each, and the next one leaves when the answer is there (ping-pong).
    Each,
    /// Every so many, on a schedule (under-load; stock: 100).
    Every(u64),
    /// None, on a schedule or as fast as it goes (throughput).
    None,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send the message that begins with this header, now.
    Send(Header),
    /// Nothing before this time, or before an answer comes.
    Wait {
        /// Time to ask again, in nanoseconds.
        until_ns: u64,
    },
}

/// An answer that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Number of the message, from 1.
    pub sequence: u64,
    /// From the message to its answer, in nanoseconds: the whole round trip (stock sockperf prints
    /// half of it).
    pub rtt_ns: u64,
}

/// The client of one server, over UDP or TCP.
#[derive(Clone, Debug)]
pub struct Client {
    asks: Asks,
    length: u32,
    /// Time between two messages on a schedule.
    gap_ns: u64,
    timeout_ns: u64,
    /// When the next message is due.
    due_ns: u64,
    /// Number of the next message.
    next: u64,
    /// Sequence and time of questions, by their number.
    open: Box<[(u64, u64)]>,
    waiting: Option<u64>,
    messages: Messages,
    answered: u64,
    lost: u64,
    unexpected: u64,
}

impl Client {
    /// Messages of `bytes`, from `now_ns` on, one each `gap_ns` (0: as fast as it goes; with
    /// [`Asks::Each`] the time from question to question is at least this). A question without an
    /// answer is given up after `timeout_ns`.
    ///
    /// The size is brought into what a message can have ([`HEADER_BYTES`] to
    /// [`MESSAGE_LIMIT_BYTES`]).
    #[must_use]
    pub fn new(asks: Asks, bytes: usize, gap_ns: u64, timeout_ns: u64, now_ns: u64) -> Self {
        let length = bytes.clamp(HEADER_BYTES, MESSAGE_LIMIT_BYTES) as u32;
        Self {
            asks: match asks {
                Asks::Every(0 | 1) => Asks::Every(1),
                asks => asks,
            },
            length,
            gap_ns,
            timeout_ns,
            due_ns: now_ns,
            next: 1,
            open: vec![(0, 0); OUTSTANDING].into_boxed_slice(),
            waiting: None,
            messages: Messages::default(),
            answered: 0,
            lost: 0,
            unexpected: 0,
        }
    }

    /// What to do now. A message that is to be sent counts as sent.
    pub fn step(&mut self, now_ns: u64) -> Step {
        if let Some(sequence) = self.waiting {
            let (_, asked_ns) = self.open[self.slot(sequence)];
            let give_up_ns = asked_ns.saturating_add(self.timeout_ns);
            if now_ns < give_up_ns {
                return Step::Wait {
                    until_ns: give_up_ns,
                };
            }
            self.waiting = None;
            self.forget(sequence);
        }
        if now_ns < self.due_ns {
            return Step::Wait {
                until_ns: self.due_ns,
            };
        }
        let sequence = self.next;
        self.next += 1;
        self.due_ns = match self.asks {
            // The schedule of a closed loop begins again with each question.
            Asks::Each => now_ns.saturating_add(self.gap_ns),
            // An open one keeps its times: what was late is caught up.
            _ => self.due_ns.saturating_add(self.gap_ns),
        };
        let asking = match self.asks {
            Asks::Each => true,
            Asks::Every(every) => sequence.is_multiple_of(every),
            Asks::None => false,
        };
        if asking {
            let slot = self.slot(sequence);
            let (before, _) = self.open[slot];
            if before != 0 {
                self.forget(before);
            }
            self.open[slot] = (sequence, now_ns);
            if self.asks == Asks::Each {
                self.waiting = Some(sequence);
            }
        }
        Step::Send(Header {
            sequence,
            flags: if asking {
                FROM_CLIENT | WANTS_ANSWER
            } else {
                FROM_CLIENT
            },
            length: self.length,
        })
    }

    fn slot(&self, sequence: u64) -> usize {
        let question = match self.asks {
            Asks::Every(every) => sequence / every,
            Asks::Each | Asks::None => sequence,
        };
        (question % OUTSTANDING as u64) as usize
    }

    fn forget(&mut self, sequence: u64) {
        let slot = self.slot(sequence);
        if self.open[slot].0 == sequence {
            self.open[slot] = (0, 0);
            self.lost += 1;
        }
    }

    /// Takes a datagram: the answer that it is, if it was waited for.
    pub fn datagram(&mut self, now_ns: u64, datagram: &[u8]) -> Option<Answered> {
        match Header::read(datagram) {
            Some(header) if header.length as usize == datagram.len() => self.take(now_ns, header),
            _ => {
                self.unexpected += 1;
                None
            }
        }
    }

    /// Takes what arrived on a stream, up to the end of one answer: how much of it, and the answer.
    /// Call it again with the rest.
    ///
    /// # Errors
    /// [`SockperfError`]: the connection is to be closed.
    pub fn receive(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
    ) -> Result<(usize, Option<Answered>), SockperfError> {
        let mut rest = bytes;
        while let Some(piece) = self.messages.next(&mut rest)? {
            if let Piece::End(header) = piece
                && let Some(answered) = self.take(now_ns, header)
            {
                return Ok((bytes.len() - rest.len(), Some(answered)));
            }
        }
        Ok((bytes.len(), None))
    }

    fn take(&mut self, now_ns: u64, header: Header) -> Option<Answered> {
        let slot = self.slot(header.sequence);
        let (sequence, asked_ns) = self.open[slot];
        if header.flags != WANTS_ANSWER
            || header.length != self.length
            || header.sequence == 0
            || header.sequence != sequence
        {
            self.unexpected += 1;
            return None;
        }
        self.open[slot] = (0, 0);
        if self.waiting == Some(sequence) {
            self.waiting = None;
        }
        self.answered += 1;
        Some(Answered {
            sequence,
            rtt_ns: now_ns.saturating_sub(asked_ns),
        })
    }

    /// Messages that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next - 1
    }

    /// Questions that were answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Questions that were given up; those still open are not among them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Answers that came again, late or unasked, and datagrams that are none.
    #[must_use]
    pub fn unexpected(&self) -> u64 {
        self.unexpected
    }

    /// What the far end said: nothing of its own. Its answers tell what reached it of the questions,
    /// and nothing tells of the other messages.
    #[must_use]
    pub fn far_report(&self) -> FarReport {
        FarReport::default()
    }
}
