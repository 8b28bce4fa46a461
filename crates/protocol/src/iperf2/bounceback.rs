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

use super::{Iperf2Error, read_u32, settings::flags, to_wire_time, wire_time_ns, write_u32};

/// Bytes from which a server can read the size of the messages: the smallest message.
pub const MESSAGE_MIN_BYTES: usize = 20;

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
    pub const REPLY_SIZE: u16 = 0x0800;
}

/// Value of a time field that is not set.
const UNSET_TIME: u32 = u32::MAX;

fn message_size(message: &[u8]) -> Result<usize, Iperf2Error> {
    let bytes = read_u32(message, 4).unwrap_or(0);
    if bytes > SIZE_LIMIT {
        return Err(Iperf2Error::MessageTooLarge {
            bytes,
            limit: SIZE_LIMIT,
        });
    }
    // Within the limit, so the conversion is lossless.
    let size = bytes as usize;
    if size < MESSAGE_MIN_BYTES {
        return Err(Iperf2Error::MessageTooSmall {
            bytes,
            min_bytes: MESSAGE_MIN_BYTES as u32,
        });
    }
    Ok(size)
}

fn write_time(message: &mut [u8], at: usize, now_wall_ns: u64) {
    let (seconds, microseconds) = to_wire_time(now_wall_ns);
    write_u32(message, at, seconds);
    write_u32(message, at + 4, microseconds);
}

/// Responding end. Its memory is one message, allocated once.
#[derive(Debug)]
pub struct BouncebackServer {
    message: Vec<u8>,
    filled_bytes: usize,
    reply_bytes: usize,
    replies: u64,
}

impl BouncebackServer {
    /// Creates the server for a client whose first request begins with `first_bytes`, at least
    /// [`MESSAGE_MIN_BYTES`] bytes. Pass them to [`BouncebackServer::receive`] too.
    ///
    /// # Errors
    /// [`Iperf2Error::MessageTooLarge`], [`Iperf2Error::MessageTooSmall`].
    pub fn new(first_bytes: &[u8]) -> Result<Self, Iperf2Error> {
        let size = message_size(first_bytes)?;
        Ok(Self {
            message: vec![0; size],
            filled_bytes: 0,
            reply_bytes: size,
            replies: 0,
        })
    }

    /// Appends received bytes and returns how many belong to this request. If there are more, send
    /// the reply before passing the rest.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8], now_wall_ns: u64) -> usize {
        let accepted = bytes.len().min(self.message.len() - self.filled_bytes);
        self.message[self.filled_bytes..self.filled_bytes + accepted]
            .copy_from_slice(&bytes[..accepted]);
        self.filled_bytes += accepted;
        if accepted > 0 && self.has_request() {
            write_time(&mut self.message, 28, now_wall_ns);
        }
        accepted
    }

    /// Returns whether a complete request waits for its reply.
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.is_complete() && !self.is_over()
    }

    /// Returns whether the client has sent the stop message: close the connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_complete() && self.mode() & mode::STOP != 0
    }

    fn is_complete(&self) -> bool {
        self.filled_bytes == self.message.len()
    }

    /// Returns the time to wait before the reply, in nanoseconds.
    #[must_use]
    pub fn hold_ns(&self) -> u64 {
        let hold_us = read_u32(&self.message, 44).unwrap_or(0).min(HOLD_LIMIT_US);
        u64::from(hold_us) * 1000
    }

    /// Returns the reply; write all of it, then call [`BouncebackServer::mark_replied`].
    #[inline]
    pub fn reply(&mut self, now_wall_ns: u64) -> &[u8] {
        write_time(&mut self.message, 36, now_wall_ns);
        let mode = self.mode();
        let requested_bytes = read_u32(&self.message, 60).unwrap_or(0) as usize;
        // A reply may be smaller than its request but never larger: the client must not control
        // memory.
        self.reply_bytes = if mode & mode::REPLY_SIZE != 0 && requested_bytes >= MESSAGE_MIN_BYTES {
            requested_bytes.min(self.message.len())
        } else {
            self.message.len()
        };
        &self.message[..self.reply_bytes]
    }

    /// Records that the reply was written; the next request may arrive.
    #[inline]
    pub fn mark_replied(&mut self) {
        self.filled_bytes = 0;
        self.replies += 1;
    }

    /// Returns whether the client requests an immediate acknowledgement (TCP quick ACK).
    #[must_use]
    pub fn requests_quick_ack(&self) -> bool {
        self.mode() & mode::QUICK_ACK != 0
    }

    /// Returns the number of replies sent.
    #[must_use]
    pub fn replies(&self) -> u64 {
        self.replies
    }

    /// Returns the bytes of a request.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.message.len()
    }

    fn mode(&self) -> u16 {
        (read_u32(&self.message, 12).unwrap_or(0) >> 16) as u16
    }
}

/// Contents of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BouncebackReply {
    /// Number of the request.
    pub number: u32,
    /// Time when the request arrived, in nanoseconds of the server's wall clock; `None` if the
    /// message has no space for it.
    pub received_ns: Option<u64>,
    /// Time when the reply left, in nanoseconds of the server's wall clock.
    pub sent_ns: Option<u64>,
}

/// Requesting end, one request at a time. Its memory is two messages, allocated once.
#[derive(Debug)]
pub struct BouncebackClient {
    request: Vec<u8>,
    reply: Vec<u8>,
    filled_bytes: usize,
    number: u32,
}

impl BouncebackClient {
    /// Creates a client with messages of `size` bytes; the server delays each reply by `hold_us`.
    ///
    /// # Errors
    /// [`Iperf2Error::MessageTooLarge`], [`Iperf2Error::MessageTooSmall`].
    pub fn new(size: u32, hold_us: u32) -> Result<Self, Iperf2Error> {
        let mut first_bytes = [0; MESSAGE_MIN_BYTES];
        write_u32(&mut first_bytes, 4, size);
        let mut request = vec![0; message_size(&first_bytes)?];
        if let Some(payload) = request.get_mut(FIELD_BYTES..) {
            super::fill(payload);
        }
        write_u32(&mut request, 0, flags::BOUNCEBACK);
        write_u32(&mut request, 4, size);
        write_u32(&mut request, 44, hold_us);
        Ok(Self {
            reply: vec![0; request.len()],
            request,
            filled_bytes: 0,
            number: 0,
        })
    }

    /// Returns the next request.
    #[inline]
    pub fn request(&mut self, now_wall_ns: u64) -> &[u8] {
        self.next_message(mode::QUICK_ACK, now_wall_ns)
    }

    /// Returns the message after the last request: the server sends no reply and closes.
    pub fn stop(&mut self, now_wall_ns: u64) -> &[u8] {
        self.next_message(mode::QUICK_ACK | mode::STOP, now_wall_ns)
    }

    #[inline]
    fn next_message(&mut self, mode: u16, now_wall_ns: u64) -> &[u8] {
        self.number = self.number.wrapping_add(1);
        self.filled_bytes = 0;
        write_u32(&mut self.request, 8, self.number);
        write_u32(&mut self.request, 12, u32::from(mode) << 16);
        write_time(&mut self.request, 20, now_wall_ns);
        for at in [28, 32, 36, 40] {
            write_u32(&mut self.request, at, UNSET_TIME);
        }
        &self.request
    }

    /// Appends received bytes and returns how many belong to this reply.
    #[inline]
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let accepted = bytes.len().min(self.reply.len() - self.filled_bytes);
        self.reply[self.filled_bytes..self.filled_bytes + accepted]
            .copy_from_slice(&bytes[..accepted]);
        self.filled_bytes += accepted;
        accepted
    }

    /// Returns the reply, once it is complete.
    ///
    /// # Errors
    /// [`Iperf2Error::UnexpectedReply`] if it does not belong to the last request.
    #[inline]
    pub fn reply(&self) -> Result<Option<BouncebackReply>, Iperf2Error> {
        if self.filled_bytes < self.reply.len() {
            return Ok(None);
        }
        let number = read_u32(&self.reply, 8);
        if read_u32(&self.reply, 0) != Some(flags::BOUNCEBACK) || number != Some(self.number) {
            return Err(Iperf2Error::UnexpectedReply);
        }
        let time = |at| {
            let (seconds, microseconds) =
                (read_u32(&self.reply, at)?, read_u32(&self.reply, at + 4)?);
            (seconds != UNSET_TIME && microseconds < 1_000_000)
                .then(|| wire_time_ns(seconds, microseconds))
        };
        Ok(Some(BouncebackReply {
            number: self.number,
            received_ns: time(28),
            sent_ns: time(36),
        }))
    }
}
