//! Header in front of the payload with the settings that a client requests.
//!
//! ```text
//!  0 flags u32 | 4 flows | 8 port | 12 buffer bytes | 16 window, or old rate | 20 amount i32
//! 24 type | 28 length | 32 upper flags u16, lower flags u16 | 36 version | 40 version
//! 44 reserved u16, TOS u16 | 48 rate low | 52 rate high << 8 | 56 write prefetch
//! 60 by flags: [reserved,] start seconds, microseconds, kernel's rate low, high << 8; …
//! ```
//!
//! Old versions have only the first line, and only with `-d` or `-r`. The amount is bytes, or a
//! negative number of 10 ms; 0 if it does not fit into 32 bits (`-n 4G`). 2.2 has one more word
//! before the fields announced by flags. Over UDP the header begins after the datagram's own 16
//! bytes, which the length in its flags includes.

pub mod flags;

use super::{Iperf2Error, read_u32, write_u32};

/// Bytes of the header of old versions.
pub const BASE_BYTES: usize = 24;

/// Bytes of the current header (2.1).
pub const EXTENDED_BYTES: usize = 60;

/// Longest header that the length field can express.
pub const LENGTH_LIMIT: usize = (flags::LENGTH_MASK >> 1) as usize;

/// Longest key in bytes.
const KEY_LIMIT: usize = 128;

/// Maximum number of bytes needed to read a header: header, length of the key, key.
pub const HEADER_LIMIT_BYTES: usize = LENGTH_LIMIT + 2 + KEY_LIMIT;

/// Bits of the word with the number of flows; 2.2 has another number in the upper bits.
const FLOWS_MASK: u32 = 0x000f_ffff;

/// Direction of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iperf2Direction {
    /// Client to server.
    #[default]
    Forward,
    /// Server to client (`-R`).
    Reverse,
    /// Both directions on one connection (`--full-duplex`).
    Both,
}

/// Length of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestAmount {
    /// Number of bytes.
    Bytes(u64),
    /// Time in nanoseconds; the wire has 10 ms resolution.
    Time(u64),
}

/// Second connection, from the server to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DualTest {
    /// At the same time (`-d`).
    Simultaneous,
    /// After the client has sent everything (`-r`).
    Sequential,
}

/// Settings that a client requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iperf2Settings {
    /// Direction of the payload on this connection.
    pub direction: Iperf2Direction,
    /// Second connection to the client's address and [`Iperf2Settings::port`].
    pub dual: Option<DualTest>,
    /// Number of parallel flows; each has a header of its own.
    pub flows: u32,
    /// Port on which the client listens for a second connection; otherwise the server's port.
    pub port: u16,
    /// Bytes of a write or a datagram; `None` for the default.
    pub buffer_bytes: Option<u32>,
    /// Socket buffer in bytes; in old versions over UDP the rate in bits per second.
    pub window: Option<u32>,
    /// Length of the test; `None` if only the client has the limit.
    pub amount: Option<TestAmount>,
    /// Payload rate, in bits (or datagrams, [`Iperf2Settings::rate_is_packets`]) per second.
    pub rate: Option<u64>,
    /// True if the rate counts datagrams.
    pub rate_is_packets: bool,
    /// TOS byte.
    pub tos: Option<u8>,
    /// True if datagrams have 64-bit numbers.
    pub wide: bool,
    /// True if the client requests the delay of each write or datagram. Written over UDP only, with
    /// the start time.
    pub trip_times: bool,
    /// True if a UDP test ends without a report.
    pub no_fin: bool,
    /// True if the client waits for the server's version before it sends.
    pub peer_detect: bool,
    /// Start time of the client in wall-clock nanoseconds; with trip times.
    pub start_ns: Option<u64>,
    /// Version of the client, upper and lower word: 2.1.8 is `(0x0002_0001, 0x0008_0003)`. `None`
    /// for the old header.
    pub version: Option<(u32, u32)>,
    /// Bytes of the header from its flags on, without the key.
    pub header_bytes: usize,
}

/// Version in the headers that we write: the one whose layout they have.
pub const VERSION: (u32, u32) = (0x0002_0001, 0x0008_0003);

/// Offset of the start time over TCP from the flags on, in 2.1 as in 2.2; over UDP it follows the
/// isochronous settings.
const START_OFFSET: usize = 64;

/// Bytes of the isochronous settings, which are present over UDP whenever a start time is.
const ISOCHRONOUS_BYTES: usize = 32;

/// Bytes of the start time and the kernel's rate.
const START_BYTES: usize = 20;

impl Iperf2Settings {
    /// Returns the settings of a current client without options, for a server on this port.
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

    /// Returns the settings of an old client, for old servers and embedded boards.
    #[must_use]
    pub fn legacy(port: u16) -> Self {
        Self {
            flows: 1,
            port,
            ..Self::default()
        }
    }

    /// Returns whether the client expects the server's version.
    #[must_use]
    pub fn expects_ack(&self) -> bool {
        self.version.is_some() && (self.peer_detect || self.direction == Iperf2Direction::Forward)
    }

    /// Reads a header whose first word is the flags. `prefix_bytes` is the number of bytes before
    /// the flags that the length in the flags includes: 0 over TCP, 16 over UDP. `None` if the
    /// bytes are no header, or incomplete.
    #[must_use]
    pub fn read(bytes: &[u8], prefix_bytes: usize) -> Option<Self> {
        let first = read_u32(bytes, 0)?;
        let length = header_length(first, prefix_bytes)?;
        let at = |offset| read_u32(bytes, offset);
        let nonzero = |value: u32| (value != 0).then_some(value);
        let amount = at(20)? as i32;
        let mut settings = Self {
            dual: (first & flags::DUAL != 0).then_some(if first & flags::NOW != 0 {
                DualTest::Simultaneous
            } else {
                DualTest::Sequential
            }),
            flows: at(4)? & FLOWS_MASK,
            // A larger value is invalid; 0 is a port to which no connection is made.
            port: u16::try_from(at(8)?).unwrap_or(0),
            buffer_bytes: nonzero(at(12)?),
            window: nonzero(at(16)?),
            amount: match amount {
                0 => None,
                1.. => Some(TestAmount::Bytes(amount.unsigned_abs().into())),
                _ => Some(TestAmount::Time(
                    u64::from(amount.unsigned_abs()) * 10_000_000,
                )),
            },
            wide: first & flags::WIDE != 0,
            peer_detect: first & flags::PEER_DETECT != 0,
            header_bytes: length,
            ..Self::default()
        };
        if first & flags::EXTENSION != 0 {
            settings.read_extension(bytes, first, prefix_bytes)?;
        }
        Some(settings)
    }

    fn read_extension(&mut self, bytes: &[u8], first: u32, prefix_bytes: usize) -> Option<()> {
        let at = |offset| read_u32(bytes, offset);
        let upper = (at(32)? >> 16) as u16;
        let is = |flag| upper & flag != 0;
        self.version = Some((at(36)?, at(40)?));
        self.tos = Some((at(44)? & 0xff) as u8).filter(|tos| *tos != 0);
        // The upper half is shifted by a byte, which servers of upstream reverse.
        let rate = u64::from(at(48)?) | (u64::from(at(52)?) >> 8) << 32;
        self.rate = (rate != 0).then_some(rate);
        at(56)?;
        self.rate_is_packets = is(flags::RATE_IS_PACKETS);
        self.trip_times = is(flags::TRIP_TIMES);
        self.no_fin = is(flags::NO_FIN);
        if first & flags::V2 != 0 {
            self.direction = match () {
                () if is(flags::FULL_DUPLEX) => Iperf2Direction::Both,
                () if is(flags::REVERSE) => Iperf2Direction::Reverse,
                () => Iperf2Direction::Forward,
            };
        }
        if self.trip_times {
            let isochronous = if prefix_bytes > 0 {
                ISOCHRONOUS_BYTES
            } else {
                0
            };
            let start = START_OFFSET + isochronous;
            // A header that announces trip times but ends before them is still valid.
            let fits = prefix_bytes > 0 || self.header_bytes >= start + 8;
            self.start_ns = at(start)
                .zip(at(start + 4))
                .filter(|(seconds, _)| fits && *seconds != 0)
                .map(|(seconds, microseconds)| super::wire_time_ns(seconds, microseconds));
        }
        Some(())
    }

    /// Writes the header over the beginning of a payload, as 2.1.8 does. `prefix_bytes` as for
    /// [`Iperf2Settings::read`]. Fields that do not fit are left out.
    ///
    /// # Errors
    /// [`Iperf2Error::Unencodable`] for a value that the server needs and the header cannot
    /// express.
    pub fn write(&self, payload: &mut [u8], prefix_bytes: usize) -> Result<(), Iperf2Error> {
        let server_sends = self.direction != Iperf2Direction::Forward || self.dual.is_some();
        let amount = match self.amount {
            None => 0,
            // A server that only receives needs no end; clients of upstream write 0 too.
            Some(TestAmount::Bytes(bytes)) => match i32::try_from(bytes) {
                Err(_) if server_sends => {
                    return Err(Iperf2Error::Unencodable {
                        quantity: "2 GiB or more from the server",
                    });
                }
                fits => fits.unwrap_or(0),
            },
            Some(TestAmount::Time(ns)) => match i32::try_from(ns.div_ceil(10_000_000)) {
                Err(_) => {
                    return Err(Iperf2Error::Unencodable {
                        quantity: "a test of 248 days",
                    });
                }
                Ok(units) => -units,
            },
        };
        let mut first = match self.dual {
            None => 0,
            Some(DualTest::Simultaneous) => flags::DUAL | flags::NOW,
            Some(DualTest::Sequential) => flags::DUAL,
        };
        if self.version.is_some() {
            let length = self.announced_bytes(prefix_bytes) + prefix_bytes;
            first |= flags::EXTENSION | flags::LENGTH | (length as u32) << 1;
            if self.direction != Iperf2Direction::Forward || self.peer_detect {
                first |= flags::V2;
            }
            if self.peer_detect {
                first |= flags::PEER_DETECT;
            }
            if self.wide && prefix_bytes > 0 {
                first |= flags::WIDE;
            }
            if prefix_bytes > 0 && self.upper_flags(prefix_bytes) != 0 {
                first |= flags::UDP_TESTS;
            }
        }
        for (at, value) in [
            (0, first),
            (4, self.flows),
            (8, self.port.into()),
            (12, self.buffer_bytes.unwrap_or(0)),
            (16, self.window.unwrap_or(0)),
            // Two's complement, as on the wire.
            (20, amount as u32),
        ] {
            write_u32(payload, at, value);
        }
        if let Some(version) = self.version {
            self.write_extension(payload, version, prefix_bytes);
        }
        Ok(())
    }

    /// Returns whether the start time is written. Over TCP a server of upstream would then expect
    /// timestamps in each write of the client.
    fn includes_start_time(&self, prefix_bytes: usize) -> bool {
        prefix_bytes > 0 && self.trip_times && self.start_ns.is_some() && self.version.is_some()
    }

    /// Returns the bytes of the header that [`Iperf2Settings::write`] announces, from the flags on.
    #[must_use]
    pub fn announced_bytes(&self, prefix_bytes: usize) -> usize {
        match self.version {
            None => BASE_BYTES,
            Some(_) if self.includes_start_time(prefix_bytes) => EXTENDED_BYTES + ISOCHRONOUS_BYTES,
            Some(_) => EXTENDED_BYTES,
        }
    }

    /// Returns the bytes that a payload needs for the complete header.
    #[must_use]
    pub fn required_bytes(&self, prefix_bytes: usize) -> usize {
        let start = if self.includes_start_time(prefix_bytes) {
            START_BYTES
        } else {
            0
        };
        prefix_bytes + self.announced_bytes(prefix_bytes) + start
    }

    fn upper_flags(&self, prefix_bytes: usize) -> u16 {
        let mut upper = match self.direction {
            Iperf2Direction::Forward => 0,
            Iperf2Direction::Reverse => flags::REVERSE,
            Iperf2Direction::Both => flags::FULL_DUPLEX,
        };
        // Ends of upstream send no report for a test in both directions on one socket.
        if self.no_fin || (prefix_bytes > 0 && self.direction == Iperf2Direction::Both) {
            upper |= flags::NO_FIN;
        }
        if self.includes_start_time(prefix_bytes) {
            upper |= flags::TRIP_TIMES;
        }
        upper
    }

    fn write_extension(&self, payload: &mut [u8], version: (u32, u32), prefix_bytes: usize) {
        let upper = self.upper_flags(prefix_bytes);
        let rate = self.rate.unwrap_or(0);
        for (at, value) in [
            (24, 0),
            (28, 0),
            (32, u32::from(upper) << 16),
            (36, version.0),
            (40, version.1),
            (44, self.tos.unwrap_or(0).into()),
            // Halves of the rate. The shifted upper half loses its top byte, which no link rate
            // needs.
            (48, rate as u32),
            (52, ((rate >> 32) as u32) << 8),
            (56, 0),
        ] {
            write_u32(payload, at, value);
        }
        if let Some(start_ns) = self.start_ns
            && self.includes_start_time(prefix_bytes)
        {
            let (seconds, microseconds) = super::to_wire_time(start_ns);
            let start = START_OFFSET + ISOCHRONOUS_BYTES;
            write_u32(payload, start, seconds);
            write_u32(payload, start + 4, microseconds);
        }
    }
}

/// Returns the bytes of the header that flags announce, from the flags on; `None` for flags that no
/// version sends.
#[must_use]
pub fn header_length(first: u32, prefix_bytes: usize) -> Option<usize> {
    if first & !flags::ALL != 0 || first & (flags::DUAL | flags::EXTENSION) == 0 {
        return None;
    }
    let min_bytes = if first & flags::EXTENSION != 0 {
        EXTENDED_BYTES
    } else {
        BASE_BYTES
    };
    if first & flags::LENGTH == 0 {
        // Without the length bit the length field must be empty.
        return (first & flags::LENGTH_MASK == 0).then_some(min_bytes);
    }
    let length = ((first & flags::LENGTH_MASK) >> 1) as usize;
    length
        .checked_sub(prefix_bytes)
        .filter(|length| *length >= min_bytes)
}
