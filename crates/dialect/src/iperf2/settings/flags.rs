//! Bits of the header's first word, and of the upper flags in its extension.

/// A test in both directions on two connections.
pub const DUAL: u32 = 0x8000_0000;
/// The extension is there.
pub const EXTENSION: u32 = 0x4000_0000;
/// UDP with settings of its own (trip times, isochronous).
pub const UDP_TESTS: u32 = 0x2000_0000;
/// A key is there.
pub const KEY: u32 = 0x1000_0000;
/// Numbers on datagrams have 64 bits.
pub const WIDE: u32 = 0x0800_0000;
/// Reverse and both directions on one connection are meant.
pub const V2: u32 = 0x0400_0000;
/// The server is to say its version.
pub const PEER_DETECT: u32 = 0x0200_0000;
/// Question and answer.
pub const BOUNCEBACK: u32 = 0x0080_0000;
/// Small datagrams with the start time.
pub const SMALL_TRIP_TIMES: u32 = 0x0002_0000;
/// The length below is valid.
pub const LENGTH: u32 = 0x0001_0000;
/// Twice the length of the header in bytes.
pub const LENGTH_MASK: u32 = 0x0000_01fe;
/// With [`DUAL`]: both directions at once.
pub const NOW: u32 = 0x0000_0001;
/// Every bit that a version sets.
pub const KNOWN: u32 = DUAL
    | EXTENSION
    | UDP_TESTS
    | KEY
    | WIDE
    | V2
    | PEER_DETECT
    | BOUNCEBACK
    | SMALL_TRIP_TIMES
    | LENGTH
    | LENGTH_MASK
    | NOW;

/// Upper flags, from here on: a UDP test ends without a report.
pub const NO_FIN: u16 = 0x0008;
/// Every datagram's or write's time is to be told.
pub const TRIP_TIMES: u16 = 0x0010;
/// The rate is packets a second.
pub const RATE_IS_PACKETS: u16 = 0x0080;
/// The server sends.
pub const REVERSE: u16 = 0x0400;
/// Both send, on one connection.
pub const FULL_DUPLEX: u16 = 0x0800;
