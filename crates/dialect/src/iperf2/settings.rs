//! The header by which a client says what it wants, in front of its payload.
//!
//! ```text
//!  0 flags u32 | 4 flows | 8 port | 12 buffer bytes | 16 window, or old rate | 20 amount i32
//! 24 type | 28 length | 32 upper flags u16, lower flags u16 | 36 version | 40 version
//! 44 reserved u16, TOS u16 | 48 rate low | 52 rate high << 8 | 56 write prefetch
//! 60 what the flags announce: [reserved,] start seconds, microseconds, kernel's rate low, high << 8; …
//! ```
//!
//! The first line is all that old versions have, and only with `-d` or `-r`. The amount is bytes, or
//! a negative number of 10 ms; 0 where it did not fit into 32 bits (`-n 4G`). 2.2 has one more word
//! in front of what the flags announce. Over UDP the header begins after the datagram's own 16 bytes,
//! whose length its flags count in.

pub mod flags;

use super::{Iperf2Error, put, word};

/// Bytes of the header of old versions.
pub const BASE_BYTES: usize = 24;

/// Bytes of today's header (2.1).
pub const EXTENDED_BYTES: usize = 60;

/// The longest header that a length can say.
pub const LENGTH_LIMIT: usize = (flags::LENGTH_MASK >> 1) as usize;

/// A key is at most this long.
const KEY_LIMIT: usize = 128;

/// Most bytes that have to be there before a header can be read: header, key and its length.
pub const HEADER_LIMIT_BYTES: usize = LENGTH_LIMIT + 2 + KEY_LIMIT;

/// The bits of the word that say how many flows there are; 2.2 has a number in the others.
const FLOWS_MASK: u32 = 0x000f_ffff;

/// Who sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// The client.
    #[default]
    Forward,
    /// The server (`-R`).
    Reverse,
    /// Both, on one connection (`--full-duplex`).
    Both,
}

/// When a test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// After so many bytes.
    Bytes(u64),
    /// After so long, in nanoseconds; the wire has 10 ms.
    Time(u64),
}

/// A second connection, from the server to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dual {
    /// At once (`-d`).
    Now,
    /// When the client has sent all (`-r`).
    After,
}

/// What a client wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Who sends on this connection.
    pub way: Way,
    /// A second connection that the client wants: to its address, [`Settings::port`].
    pub dual: Option<Dual>,
    /// Flows beside each other; each has a header of its own.
    pub flows: u32,
    /// The port that the client listens on for a second connection, or just the server's.
    pub port: u16,
    /// Bytes of a write, or of a datagram; `None` for the default.
    pub buffer_bytes: Option<u32>,
    /// Socket buffer in bytes; in old versions over UDP the rate in bits per second.
    pub window: Option<u32>,
    /// When it ends; `None` where the client alone knows.
    pub amount: Option<Amount>,
    /// Payload rate, in bits (or datagrams, [`Settings::rate_is_packets`]) per second.
    pub rate: Option<u64>,
    /// The rate counts datagrams.
    pub rate_is_packets: bool,
    /// TOS byte.
    pub tos: Option<u8>,
    /// Numbers on datagrams have 64 bits.
    pub wide: bool,
    /// The client wants to know how long each write or datagram was on its way. Written over UDP only,
    /// with the start time.
    pub trip_times: bool,
    /// A UDP test ends without a report.
    pub no_fin: bool,
    /// The client wants to know the server's version before it sends.
    pub peer_detect: bool,
    /// When the client began, in wall-clock nanoseconds; with trip times.
    pub start_ns: Option<u64>,
    /// Version of the client, upper and lower word: 2.1.8 is `(0x0002_0001, 0x0008_0003)`. `None` for
    /// the old header.
    pub version: Option<(u32, u32)>,
    /// Bytes of the header, from its flags on; the key is not in it.
    pub header_bytes: usize,
}

/// The version that our headers say: what they are the layout of.
pub const VERSION: (u32, u32) = (0x0002_0001, 0x0008_0003);

/// Where the start time is over TCP, from the flags on, in 2.1 as in 2.2; over UDP it is behind the
/// isochronous settings.
const START_AT: usize = 64;

/// Bytes of the isochronous settings, which UDP has room for wherever a start time is.
const ISOCHRONOUS_BYTES: usize = 32;

/// Bytes of the start time and the kernel's rate.
const START_BYTES: usize = 20;

impl Settings {
    /// What a client of today asks for without options, of a server on this port.
    #[must_use]
    pub fn client(port: u16) -> Self {
        Self {
            flows: 1,
            port,
            wide: true,
            version: Some(VERSION),
            ..Self::default()
        }
    }

    /// The same of an old client, for old servers and boards.
    #[must_use]
    pub fn legacy(port: u16) -> Self {
        Self {
            flows: 1,
            port,
            ..Self::default()
        }
    }

    /// Whether a server is to tell its version.
    #[must_use]
    pub fn wants_ack(&self) -> bool {
        self.version.is_some() && (self.peer_detect || self.way == Way::Forward)
    }

    /// Reads a header whose flags are the first word. `before` is what the length in the flags counts
    /// in addition: 0 over TCP, 16 over UDP. `None` when the bytes are no header, or end too soon.
    #[must_use]
    pub fn read(bytes: &[u8], before: usize) -> Option<Self> {
        let first = word(bytes, 0)?;
        let length = header_length(first, before)?;
        let at = |offset| word(bytes, offset);
        let nonzero = |value: u32| (value != 0).then_some(value);
        let amount = at(20)? as i32;
        let mut settings = Self {
            dual: (first & flags::DUAL != 0).then_some(if first & flags::NOW != 0 {
                Dual::Now
            } else {
                Dual::After
            }),
            flows: at(4)? & FLOWS_MASK,
            // Anything above is nonsense, and is no port that could be connected to.
            port: u16::try_from(at(8)?).unwrap_or(0),
            buffer_bytes: nonzero(at(12)?),
            window: nonzero(at(16)?),
            amount: match amount {
                0 => None,
                1.. => Some(Amount::Bytes(amount.unsigned_abs().into())),
                _ => Some(Amount::Time(u64::from(amount.unsigned_abs()) * 10_000_000)),
            },
            wide: first & flags::WIDE != 0,
            peer_detect: first & flags::PEER_DETECT != 0,
            header_bytes: length,
            ..Self::default()
        };
        if first & flags::EXTENSION != 0 {
            settings.read_extension(bytes, first, before)?;
        }
        Some(settings)
    }

    fn read_extension(&mut self, bytes: &[u8], first: u32, before: usize) -> Option<()> {
        let at = |offset| word(bytes, offset);
        let upper = (at(32)? >> 16) as u16;
        let is = |flag| upper & flag != 0;
        self.version = Some((at(36)?, at(40)?));
        self.tos = Some((at(44)? & 0xff) as u8).filter(|tos| *tos != 0);
        // The upper half is shifted by a byte, which stock servers undo.
        let rate = u64::from(at(48)?) | (u64::from(at(52)?) >> 8) << 32;
        self.rate = (rate != 0).then_some(rate);
        at(56)?;
        self.rate_is_packets = is(flags::RATE_IS_PACKETS);
        self.trip_times = is(flags::TRIP_TIMES);
        self.no_fin = is(flags::NO_FIN);
        if first & flags::V2 != 0 {
            self.way = match () {
                () if is(flags::FULL_DUPLEX) => Way::Both,
                () if is(flags::REVERSE) => Way::Reverse,
                () => Way::Forward,
            };
        }
        if self.trip_times {
            let isochronous = if before > 0 { ISOCHRONOUS_BYTES } else { 0 };
            let start = START_AT + isochronous;
            // A header that announces trip times and ends before them is one all the same.
            let fits = before > 0 || self.header_bytes >= start + 8;
            self.start_ns = at(start)
                .zip(at(start + 4))
                .filter(|(seconds, _)| fits && *seconds != 0)
                .map(|(seconds, microseconds)| super::wall_ns(seconds, microseconds));
        }
        Some(())
    }

    /// Writes the header over the beginning of a payload, as 2.1.8 does. `before` as for
    /// [`Settings::read`]. What does not fit is left out.
    ///
    /// # Errors
    /// [`Iperf2Error::Unsendable`] for what a server would have to know and the header cannot say.
    pub fn write(&self, payload: &mut [u8], before: usize) -> Result<(), Iperf2Error> {
        let server_sends = self.way != Way::Forward || self.dual.is_some();
        let amount = match self.amount {
            None => 0,
            // A server that only receives needs no end; stock clients write 0 too.
            Some(Amount::Bytes(bytes)) => match i32::try_from(bytes) {
                Err(_) if server_sends => {
                    return Err(Iperf2Error::Unsendable {
                        what: "2 GiB or more from the server",
                    });
                }
                fits => fits.unwrap_or(0),
            },
            Some(Amount::Time(ns)) => match i32::try_from(ns.div_ceil(10_000_000)) {
                Err(_) => {
                    return Err(Iperf2Error::Unsendable {
                        what: "a test of 248 days",
                    });
                }
                Ok(hundredths) => -hundredths,
            },
        };
        let mut first = match self.dual {
            None => 0,
            Some(Dual::Now) => flags::DUAL | flags::NOW,
            Some(Dual::After) => flags::DUAL,
        };
        if self.version.is_some() {
            let length = self.written_bytes(before) + before;
            first |= flags::EXTENSION | flags::LENGTH | (length as u32) << 1;
            if self.way != Way::Forward || self.peer_detect {
                first |= flags::V2;
            }
            if self.peer_detect {
                first |= flags::PEER_DETECT;
            }
            if self.wide && before > 0 {
                first |= flags::WIDE;
            }
            if before > 0 && self.upper_flags(before) != 0 {
                first |= flags::UDP_TESTS;
            }
        }
        for (at, value) in [
            (0, first),
            (4, self.flows),
            (8, self.port.into()),
            (12, self.buffer_bytes.unwrap_or(0)),
            (16, self.window.unwrap_or(0)),
            // Two's complement, as the wire has it.
            (20, amount as u32),
        ] {
            put(payload, at, value);
        }
        if let Some(version) = self.version {
            self.write_extension(payload, version, before);
        }
        Ok(())
    }

    /// Whether the start time is written. Over TCP a stock server would look for times in each write
    /// of the client, too.
    fn tells_start(&self, before: usize) -> bool {
        before > 0 && self.trip_times && self.start_ns.is_some() && self.version.is_some()
    }

    /// Bytes of the header that [`Settings::write`] announces, from the flags on.
    #[must_use]
    pub fn written_bytes(&self, before: usize) -> usize {
        match self.version {
            None => BASE_BYTES,
            Some(_) if self.tells_start(before) => EXTENDED_BYTES + ISOCHRONOUS_BYTES,
            Some(_) => EXTENDED_BYTES,
        }
    }

    /// Bytes that a payload needs for all of the header.
    #[must_use]
    pub fn room_bytes(&self, before: usize) -> usize {
        let start = if self.tells_start(before) {
            START_BYTES
        } else {
            0
        };
        before + self.written_bytes(before) + start
    }

    fn upper_flags(&self, before: usize) -> u16 {
        let mut upper = match self.way {
            Way::Forward => 0,
            Way::Reverse => flags::REVERSE,
            Way::Both => flags::FULL_DUPLEX,
        };
        // Stock ends do not report on what went both ways.
        if self.no_fin || (before > 0 && self.way == Way::Both) {
            upper |= flags::NO_FIN;
        }
        if self.tells_start(before) {
            upper |= flags::TRIP_TIMES;
        }
        upper
    }

    fn write_extension(&self, payload: &mut [u8], version: (u32, u32), before: usize) {
        let upper = self.upper_flags(before);
        let rate = self.rate.unwrap_or(0);
        for (at, value) in [
            (24, 0),
            (28, 0),
            (32, u32::from(upper) << 16),
            (36, version.0),
            (40, version.1),
            (44, self.tos.unwrap_or(0).into()),
            // Halves of the rate: the upper one goes shifted, and loses what no link has.
            (48, rate as u32),
            (52, ((rate >> 32) as u32) << 8),
            (56, 0),
        ] {
            put(payload, at, value);
        }
        if let Some(start_ns) = self.start_ns
            && self.tells_start(before)
        {
            let (seconds, microseconds) = super::split_ns(start_ns);
            let start = START_AT + ISOCHRONOUS_BYTES;
            put(payload, start, seconds);
            put(payload, start + 4, microseconds);
        }
    }
}

/// Bytes of the header that flags announce, from the flags on; `None` for flags that no version sends.
#[must_use]
pub fn header_length(first: u32, before: usize) -> Option<usize> {
    if first & !flags::KNOWN != 0 || first & (flags::DUAL | flags::EXTENSION) == 0 {
        return None;
    }
    let least = if first & flags::EXTENSION != 0 {
        EXTENDED_BYTES
    } else {
        BASE_BYTES
    };
    if first & flags::LENGTH == 0 {
        // Without the bit no length is there, and what would be one is something else.
        return (first & flags::LENGTH_MASK == 0).then_some(least);
    }
    let length = ((first & flags::LENGTH_MASK) >> 1) as usize;
    length.checked_sub(before).filter(|length| *length >= least)
}
