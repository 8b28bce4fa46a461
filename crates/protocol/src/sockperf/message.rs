//! Header of a message, and parser of messages in a stream.

/// Bytes of a [`SockperfHeader`] and of the smallest message.
pub const HEADER_BYTES: usize = 14;

/// Bytes of the largest message: the payload of the largest UDP datagram over IPv4, which upstream
/// uses for TCP too.
pub const MESSAGE_LIMIT_BYTES: usize = 65_507;

/// Flag: the message is from a client.
pub(super) const FROM_CLIENT: u16 = 1;

/// Flag: the client requests a reply.
const REPLY_REQUESTED: u16 = 2;

/// Flag: the message is neither counted nor answered.
pub(super) const WARM_UP: u16 = 4;

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SockperfHeader {
    /// Number of the message, from 1.
    pub sequence: u64,
    /// Bits: 1 from a client, 2 reply requested, 4 warm-up.
    pub flags: u16,
    /// Bytes of the message, this header included.
    pub length: u32,
}

impl SockperfHeader {
    /// Reads the header at the beginning of `bytes`; `None` if there are too few.
    #[inline]
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (sequence, rest) = bytes.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let length = rest.first_chunk()?;
        Some(Self {
            sequence: u64::from_be_bytes(*sequence),
            flags: u16::from_be_bytes(*flags),
            length: u32::from_be_bytes(*length),
        })
    }

    /// Creates the header of a request, as a client sends it that waits for each reply (ping-pong).
    #[inline]
    #[must_use]
    pub const fn request(sequence: u64, length: u32) -> Self {
        Self {
            sequence,
            flags: FROM_CLIENT | REPLY_REQUESTED,
            length,
        }
    }

    /// Returns the header as on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.flags.to_be_bytes());
        bytes[10..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Writes the header over the first [`HEADER_BYTES`] of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    #[inline]
    pub fn write(self, out: &mut [u8]) {
        out[..HEADER_BYTES].copy_from_slice(&self.to_bytes());
    }

    #[inline]
    pub(super) fn has_flag(self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether a server sends the message back.
    #[inline]
    #[must_use]
    pub fn is_request(self) -> bool {
        self.flags & (FROM_CLIENT | REPLY_REQUESTED | WARM_UP) == FROM_CLIENT | REPLY_REQUESTED
    }

    /// Returns the header of the reply.
    #[inline]
    #[must_use]
    pub fn to_reply(self) -> Self {
        Self {
            flags: self.flags & !FROM_CLIENT,
            ..self
        }
    }

    /// Returns whether flags and length are those of a client; the sequence is not checked.
    pub(super) fn is_plausible(self) -> bool {
        matches!(self.flags, 1 | 3 | 5 | 7) && self.has_valid_length()
    }

    /// Returns whether the length is valid.
    pub(super) fn has_valid_length(self) -> bool {
        (HEADER_BYTES as u32..=MESSAGE_LIMIT_BYTES as u32).contains(&self.length)
    }
}

/// Error of a stream; close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SockperfError {
    /// The length is invalid: the stream is out of sync, or not sockperf.
    #[error(
        "the peer sent a sockperf message of {length} B, valid are {HEADER_BYTES} to {MESSAGE_LIMIT_BYTES} B: it uses another protocol, or its stream is out of sync; assign the right protocol to this port"
    )]
    Length {
        /// Announced length.
        length: u32,
    },
    /// A read was repeated after an error.
    #[error("the sockperf stream has already failed: close it")]
    Failed,
}

/// Parsed part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePart<'a> {
    /// Start of a message.
    Header(SockperfHeader),
    /// Filler of the current message, as much as has arrived.
    Filler(&'a [u8]),
    /// End of the current message.
    End(SockperfHeader),
}

/// Parser of the messages of a stream; stores at most the bytes of one header.
#[derive(Clone, Copy, Debug)]
pub struct MessageParser {
    partial_header: [u8; HEADER_BYTES],
    partial_bytes: usize,
    state: ParserState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Header,
    /// In a message, with this number of filler bytes left.
    Filler(SockperfHeader, usize),
    Failed,
}

impl Default for MessageParser {
    fn default() -> Self {
        Self {
            partial_header: [0; HEADER_BYTES],
            partial_bytes: 0,
            state: ParserState::Header,
        }
    }
}

impl MessageParser {
    /// Takes the next part from the front of `bytes`; `None` if they are used up.
    ///
    /// # Errors
    /// [`SockperfError::Length`], and [`SockperfError::Failed`] in later calls.
    pub fn next_part<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<MessagePart<'a>>, SockperfError> {
        match self.state {
            ParserState::Failed => Err(SockperfError::Failed),
            ParserState::Filler(header, 0) => {
                self.state = ParserState::Header;
                Ok(Some(MessagePart::End(header)))
            }
            ParserState::Filler(header, remaining) => {
                if bytes.is_empty() {
                    return Ok(None);
                }
                let (filler, rest) = bytes.split_at(remaining.min(bytes.len()));
                *bytes = rest;
                self.state = ParserState::Filler(header, remaining - filler.len());
                Ok(Some(MessagePart::Filler(filler)))
            }
            ParserState::Header => {
                let consumed = (HEADER_BYTES - self.partial_bytes).min(bytes.len());
                let (part, rest) = bytes.split_at(consumed);
                *bytes = rest;
                self.partial_header[self.partial_bytes..self.partial_bytes + consumed]
                    .copy_from_slice(part);
                self.partial_bytes += consumed;
                if self.partial_bytes < HEADER_BYTES {
                    return Ok(None);
                }
                let header =
                    SockperfHeader::read(&self.partial_header).expect("the header is complete");
                if !header.has_valid_length() {
                    self.state = ParserState::Failed;
                    return Err(SockperfError::Length {
                        length: header.length,
                    });
                }
                self.partial_bytes = 0;
                self.state = ParserState::Filler(header, header.length as usize - HEADER_BYTES);
                Ok(Some(MessagePart::Header(header)))
            }
        }
    }
}
