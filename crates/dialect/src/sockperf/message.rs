//! Header of a message, and parser of messages in a stream.

/// Bytes of a [`Header`] and of the smallest message.
pub const HEADER_BYTES: usize = 14;

/// Bytes of the largest message: the payload of the largest UDP datagram over IPv4, which upstream
/// uses for TCP too.
pub const MESSAGE_LIMIT_BYTES: usize = 65_507;

/// Flag: the message is from a client.
pub(super) const FROM_CLIENT: u16 = 1;

/// Flag: the client requests a reply.
const WANTS_ANSWER: u16 = 2;

/// Flag: the message is neither counted nor answered.
pub(super) const WARM_UP: u16 = 4;

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the message, from 1.
    pub sequence: u64,
    /// Bits: 1 from a client, 2 reply requested, 4 warm-up.
    pub flags: u16,
    /// Bytes of the message, this header included.
    pub length: u32,
}

impl Header {
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
    pub const fn question(sequence: u64, length: u32) -> Self {
        Self {
            sequence,
            flags: FROM_CLIENT | WANTS_ANSWER,
            length,
        }
    }

    /// Returns the header as on the wire.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> [u8; HEADER_BYTES] {
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
        out[..HEADER_BYTES].copy_from_slice(&self.bytes());
    }

    #[inline]
    pub(super) fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether a server sends the message back.
    #[inline]
    #[must_use]
    pub fn is_question(self) -> bool {
        self.flags & (FROM_CLIENT | WANTS_ANSWER | WARM_UP) == FROM_CLIENT | WANTS_ANSWER
    }

    /// Returns the header of the reply.
    #[inline]
    #[must_use]
    pub fn answered(self) -> Self {
        Self {
            flags: self.flags & !FROM_CLIENT,
            ..self
        }
    }

    /// Returns whether flags and length are those of a client; the sequence is not checked.
    pub(super) fn is_plausible(self) -> bool {
        matches!(self.flags, 1 | 3 | 5 | 7) && self.fits()
    }

    /// Returns whether the length is valid.
    pub(super) fn fits(self) -> bool {
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
pub enum Piece<'a> {
    /// Start of a message.
    Header(Header),
    /// Filler of the current message, as much as has arrived.
    Filler(&'a [u8]),
    /// End of the current message.
    End(Header),
}

/// Parser of the messages of a stream; stores at most the bytes of one header.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    partial: [u8; HEADER_BYTES],
    there: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Header,
    /// In a message, with this number of filler bytes left.
    Filler(Header, usize),
    Failed,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            partial: [0; HEADER_BYTES],
            there: 0,
            place: Place::Header,
        }
    }
}

impl Messages {
    /// Takes the next part from the front of `bytes`; `None` if they are used up.
    ///
    /// # Errors
    /// [`SockperfError::Length`], and [`SockperfError::Failed`] in later calls.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, SockperfError> {
        match self.place {
            Place::Failed => Err(SockperfError::Failed),
            Place::Filler(header, 0) => {
                self.place = Place::Header;
                Ok(Some(Piece::End(header)))
            }
            Place::Filler(header, left) => {
                if bytes.is_empty() {
                    return Ok(None);
                }
                let (filler, rest) = bytes.split_at(left.min(bytes.len()));
                *bytes = rest;
                self.place = Place::Filler(header, left - filler.len());
                Ok(Some(Piece::Filler(filler)))
            }
            Place::Header => {
                let taken = (HEADER_BYTES - self.there).min(bytes.len());
                let (part, rest) = bytes.split_at(taken);
                *bytes = rest;
                self.partial[self.there..self.there + taken].copy_from_slice(part);
                self.there += taken;
                if self.there < HEADER_BYTES {
                    return Ok(None);
                }
                let header = Header::read(&self.partial).expect("the header is complete");
                if !header.fits() {
                    self.place = Place::Failed;
                    return Err(SockperfError::Length {
                        length: header.length,
                    });
                }
                self.there = 0;
                self.place = Place::Filler(header, header.length as usize - HEADER_BYTES);
                Ok(Some(Piece::Header(header)))
            }
        }
    }
}
