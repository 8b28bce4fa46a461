//! Bits of the header's first word, and of the upper flags in its extension.

/// Test in both directions on two connections.
pub const DUAL: u32 = 0x8000_0000;
/// The header has the extension.
pub const EXTENSION: u32 = 0x4000_0000;
/// UDP test with settings of its own (trip times, isochronous).
pub const UDP_TESTS: u32 = 0x2000_0000;
/// A key follows the header.
pub const KEY: u32 = 0x1000_0000;
/// Datagrams have 64-bit numbers.
pub const WIDE: u32 = 0x0800_0000;
/// The upper flags for reverse and both directions on one connection are valid.
pub const V2: u32 = 0x0400_0000;
/// The client requests the server's version.
pub const PEER_DETECT: u32 = 0x0200_0000;
/// Request and reply test.
pub const BOUNCEBACK: u32 = 0x0080_0000;
/// Small datagrams with the start time.
pub const SMALL_TRIP_TIMES: u32 = 0x0002_0000;
/// The length field is valid.
pub const LENGTH: u32 = 0x0001_0000;
/// Bits with twice the length of the header in bytes.
pub const LENGTH_MASK: u32 = 0x0000_01fe;
/// With [`DUAL`]: both directions at the same time.
pub const NOW: u32 = 0x0000_0001;
/// Mask of the bits that any version sets.
pub const ALL: u32 = DUAL
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
/// Datagrams or writes have timestamps.
pub const TRIP_TIMES: u16 = 0x0010;
/// The rate is in packets per second.
pub const RATE_IS_PACKETS: u16 = 0x0080;
/// The server sends.
pub const REVERSE: u16 = 0x0400;
/// Both ends send, on one connection.
pub const FULL_DUPLEX: u16 = 0x0800;
