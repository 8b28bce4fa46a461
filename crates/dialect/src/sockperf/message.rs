//! The header, and messages cut out of a stream.

/// Bytes of a [`Header`], and of the smallest message.
pub const HEADER_BYTES: usize = 14;

/// The largest message: the payload of the largest UDP datagram over IPv4, which stock programs use
/// for TCP too.
pub const MESSAGE_LIMIT_BYTES: usize = 65_507;

/// The message comes from a client.
pub(super) const FROM_CLIENT: u16 = 1;

/// The client wants it back.
const WANTS_ANSWER: u16 = 2;

/// The message is to be neither counted nor answered.
pub(super) const WARM_UP: u16 = 4;

/// The beginning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the message, from 1.
    pub sequence: u64,
    /// 1 from a client, 2 answer wanted, 4 warm-up.
    pub flags: u16,
    /// Bytes of the message, this header included.
    pub length: u32,
}

impl Header {
    /// Reads the header at the beginning of `bytes`; `None` when there are too few.
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

    /// What a client asks with that waits for each answer (ping-pong).
    #[inline]
    #[must_use]
    pub const fn question(sequence: u64, length: u32) -> Self {
        Self {
            sequence,
            flags: FROM_CLIENT | WANTS_ANSWER,
            length,
        }
    }

    /// The header as it is on the wire.
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
    /// When `out` is shorter.
    #[inline]
    pub fn write(self, out: &mut [u8]) {
        out[..HEADER_BYTES].copy_from_slice(&self.bytes());
    }

    /// Whether it has this flag.
    #[inline]
    pub(super) fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether a server is to send the message back.
    #[inline]
    #[must_use]
    pub fn is_question(self) -> bool {
        self.flags & (FROM_CLIENT | WANTS_ANSWER | WARM_UP) == FROM_CLIENT | WANTS_ANSWER
    }

    /// The same with which a server sends it back.
    #[inline]
    #[must_use]
    pub fn answered(self) -> Self {
        Self {
            flags: self.flags & !FROM_CLIENT,
            ..self
        }
    }

    /// Whether a client can have sent it: flags and length, not the sequence.
    pub(super) fn is_plausible(self) -> bool {
        matches!(self.flags, 1 | 3 | 5 | 7) && self.fits()
    }

    /// Whether the length is one that a message can have.
    pub(super) fn fits(self) -> bool {
        (HEADER_BYTES as u32..=MESSAGE_LIMIT_BYTES as u32).contains(&self.length)
    }
}

/// Why a stream cannot be read on; the connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SockperfError {
    /// A length that no message has: the stream is out of step, or none of sockperf.
    #[error(
        "the peer sent a sockperf message of {length} B, where {HEADER_BYTES} to {MESSAGE_LIMIT_BYTES} B are possible: it speaks something else, or its stream is out of step; name the right dialect for this port"
    )]
    Length {
        /// The length that it announced.
        length: u32,
    },
    /// Reading was tried again after it had failed.
    #[error("the sockperf stream failed before: close it")]
    Failed,
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A message begins.
    Header(Header),
    /// Filler of the message that began last, as much as has come.
    Filler(&'a [u8]),
    /// The message that began last is complete.
    End(Header),
}

/// Cuts a stream into messages without holding any of them: at most the bytes of one header stay
/// here.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    partial: [u8; HEADER_BYTES],
    /// Bytes in `partial`.
    there: usize,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Header,
    /// In a message, with so many bytes of filler to come.
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
    /// Takes the next piece from the front of `bytes`; `None` when they are used up.
    ///
    /// # Errors
    /// [`SockperfError::Length`], and from then on [`SockperfError::Failed`].
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
                let header = Header::read(&self.partial).expect("a whole header is there");
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
