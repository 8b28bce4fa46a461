//! Request and reply over TCP (`--bounceback`).
//!
//! ```text
//!  0 flags 00800000 | 4 size | 8 number | 12 mode u16, TOS u16 | 16 run time, 10 ms
//! 20 request sent | 28 request received | 36 reply sent     (seconds, microseconds; ff = not set)
//! 44 hold, us | 48 round trip | 52 reply received | 60 size of the reply (2.2)
//! ```
//!
//! The reply is the request with two times filled in. Times are of the two wall clocks. Messages
//! may be as small as 20 B; then they end before the times. A message with the stop bit is the last
//! one and not a request: upstream's server closes after it. Clients of 2.1 close without it.

use super::{Iperf2Error, put, settings::flags, split_ns, wall_ns, word};

/// Bytes from which a server can read the size of the messages: the smallest message.
pub const BEGINNING_BYTES: usize = 20;

/// Bytes of the fields; payload follows.
const FIELD_BYTES: usize = 64;

/// Largest message in bytes.
pub const SIZE_LIMIT: u32 = 1 << 20;

/// Longest time that a server delays a reply, in microseconds: 10 s.
const HOLD_LIMIT_US: u32 = 10_000_000;

/// Bits of the mode field.
mod mode {
    /// The server acknowledges at once.
    pub const QUICK_ACK: u16 = 0x8000;
    /// This is the last message.
    pub const STOP: u16 = 0x1000;
    /// The size of the reply is valid.
    pub const ANSWER_SIZE: u16 = 0x0800;
}

/// Value of a time field that is not set.
const NOT_YET: u32 = u32::MAX;

fn size_of(message: &[u8]) -> Result<usize, Iperf2Error> {
    let bytes = word(message, 4).unwrap_or(0);
    if bytes > SIZE_LIMIT {
        return Err(Iperf2Error::MessageTooLarge {
            bytes,
            limit: SIZE_LIMIT,
        });
    }
    // Within the limit, so the conversion is lossless.
    let size = bytes as usize;
    if size < BEGINNING_BYTES {
        return Err(Iperf2Error::MessageTooSmall {
            bytes,
            least: BEGINNING_BYTES as u32,
        });
    }
    Ok(size)
}

fn stamp(message: &mut [u8], at: usize, now_wall_ns: u64) {
    let (seconds, microseconds) = split_ns(now_wall_ns);
    put(message, at, seconds);
    put(message, at + 4, microseconds);
}

/// Responding end. Its memory is one message, allocated once.
#[derive(Debug)]
pub struct Server {
    message: Vec<u8>,
    filled: usize,
    answer_bytes: usize,
    answered: u64,
}

impl Server {
    /// Creates the server for a client whose first request begins with `beginning`, at least
    /// [`BEGINNING_BYTES`] bytes. Pass them to [`Server::receive`] too.
    ///
    /// # Errors
    /// [`Iperf2Error::MessageTooLarge`], [`Iperf2Error::MessageTooSmall`].
    pub fn new(beginning: &[u8]) -> Result<Self, Iperf2Error> {
        let size = size_of(beginning)?;
        Ok(Self {
            message: vec![0; size],
            filled: 0,
            answer_bytes: size,
            answered: 0,
        })
    }

    /// Appends received bytes and returns how many belong to this request. If there are more, send
    /// the reply before passing the rest.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8], now_wall_ns: u64) -> usize {
        let some = bytes.len().min(self.message.len() - self.filled);
        self.message[self.filled..self.filled + some].copy_from_slice(&bytes[..some]);
        self.filled += some;
        if some > 0 && self.is_due() {
            stamp(&mut self.message, 28, now_wall_ns);
        }
        some
    }

    /// Returns whether a complete request waits for its reply.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_whole() && !self.is_over()
    }

    /// Returns whether the client has sent the stop message: close the connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_whole() && self.mode() & mode::STOP != 0
    }

    fn is_whole(&self) -> bool {
        self.filled == self.message.len()
    }

    /// Returns the time to wait before the reply, in nanoseconds.
    #[must_use]
    pub fn hold_ns(&self) -> u64 {
        let us = word(&self.message, 44).unwrap_or(0).min(HOLD_LIMIT_US);
        u64::from(us) * 1000
    }

    /// Returns the reply; write all of it, then call [`Server::answered`].
    #[inline]
    pub fn answer(&mut self, now_wall_ns: u64) -> &[u8] {
        stamp(&mut self.message, 36, now_wall_ns);
        let mode = self.mode();
        let asked = word(&self.message, 60).unwrap_or(0) as usize;
        // A reply may be smaller than its request but never larger: the client must not control
        // memory.
        self.answer_bytes = if mode & mode::ANSWER_SIZE != 0 && asked >= BEGINNING_BYTES {
            asked.min(self.message.len())
        } else {
            self.message.len()
        };
        &self.message[..self.answer_bytes]
    }

    /// Records that the reply was written; the next request may arrive.
    #[inline]
    pub fn answered(&mut self) {
        self.filled = 0;
        self.answered += 1;
    }

    /// Returns whether the client requests an immediate acknowledgement (TCP quick ACK).
    #[must_use]
    pub fn wants_quick_ack(&self) -> bool {
        self.mode() & mode::QUICK_ACK != 0
    }

    /// Returns the number of replies sent.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answered
    }

    /// Returns the bytes of a request.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.message.len()
    }

    fn mode(&self) -> u16 {
        (word(&self.message, 12).unwrap_or(0) >> 16) as u16
    }
}

/// Contents of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the request.
    pub number: u32,
    /// Time when the request arrived, in nanoseconds of the server's wall clock; `None` if the
    /// message has no room for it.
    pub received_ns: Option<u64>,
    /// Time when the reply left, in nanoseconds of the server's wall clock.
    pub sent_ns: Option<u64>,
}

/// Requesting end, one request at a time. Its memory is two messages, allocated once.
#[derive(Debug)]
pub struct Client {
    question: Vec<u8>,
    answer: Vec<u8>,
    filled: usize,
    number: u32,
}

impl Client {
    /// Creates a client with messages of `size` bytes; the server delays each reply by `hold_us`.
    ///
    /// # Errors
    /// [`Iperf2Error::MessageTooLarge`], [`Iperf2Error::MessageTooSmall`].
    pub fn new(size: u32, hold_us: u32) -> Result<Self, Iperf2Error> {
        let mut beginning = [0; BEGINNING_BYTES];
        put(&mut beginning, 4, size);
        let mut question = vec![0; size_of(&beginning)?];
        if let Some(payload) = question.get_mut(FIELD_BYTES..) {
            super::fill(payload);
        }
        put(&mut question, 0, flags::BOUNCEBACK);
        put(&mut question, 4, size);
        put(&mut question, 44, hold_us);
        Ok(Self {
            answer: vec![0; question.len()],
            question,
            filled: 0,
            number: 0,
        })
    }

    /// Returns the next request.
    #[inline]
    pub fn question(&mut self, now_wall_ns: u64) -> &[u8] {
        self.next(mode::QUICK_ACK, now_wall_ns)
    }

    /// Returns the message after the last request: the server sends no reply and closes.
    pub fn stop(&mut self, now_wall_ns: u64) -> &[u8] {
        self.next(mode::QUICK_ACK | mode::STOP, now_wall_ns)
    }

    #[inline]
    fn next(&mut self, mode: u16, now_wall_ns: u64) -> &[u8] {
        self.number = self.number.wrapping_add(1);
        self.filled = 0;
        put(&mut self.question, 8, self.number);
        put(&mut self.question, 12, u32::from(mode) << 16);
        stamp(&mut self.question, 20, now_wall_ns);
        for at in [28, 32, 36, 40] {
            put(&mut self.question, at, NOT_YET);
        }
        &self.question
    }

    /// Appends received bytes and returns how many belong to this reply.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let some = bytes.len().min(self.answer.len() - self.filled);
        self.answer[self.filled..self.filled + some].copy_from_slice(&bytes[..some]);
        self.filled += some;
        some
    }

    /// Returns the reply, once it is complete.
    ///
    /// # Errors
    /// [`Iperf2Error::NotAnAnswer`] if it does not belong to the last request.
    #[inline]
    pub fn answer(&self) -> Result<Option<Answer>, Iperf2Error> {
        if self.filled < self.answer.len() {
            return Ok(None);
        }
        let number = word(&self.answer, 8);
        if word(&self.answer, 0) != Some(flags::BOUNCEBACK) || number != Some(self.number) {
            return Err(Iperf2Error::NotAnAnswer);
        }
        let time = |at| {
            let (seconds, microseconds) = (word(&self.answer, at)?, word(&self.answer, at + 4)?);
            (seconds != NOT_YET && microseconds < 1_000_000).then(|| wall_ns(seconds, microseconds))
        };
        Ok(Some(Answer {
            number: self.number,
            received_ns: time(28),
            sent_ns: time(36),
        }))
    }
}
