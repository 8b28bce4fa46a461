//! UDP flows: opening, and header of the datagrams.
//!
//! ```text
//! hello, client to server    39 38 37 36   (b1 68 de 3a is the reply of an old server)
//! reply, server to client    36 37 38 39
//! datagram                   seconds u32 | microseconds u32 | sequence u32, or u64 | filler
//! ```
//!
//! Flows are opened one after another. Hello and reply do not identify the test, so a server finds
//! it by the sender's address and by which test awaits flows. Upstream repeats neither of them. The
//! time is the sender's monotonic clock: usable for the variation of transit times, not for one-way
//! delays. Numbers begin at 1 in each flow.

use super::params::CounterWidth;

/// Bytes of a hello and of its reply.
pub const HELLO_BYTES: usize = 4;

/// Hello of a client. Upstream writes these numbers in the byte order of its host, and versions
/// before 3.8 had other numbers: each has its own reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpHello {
    /// From a little-endian host.
    Little,
    /// From a big-endian host.
    Big,
    /// An old version, little-endian.
    OldLittle,
    /// An old version, big-endian.
    OldBig,
}

/// Numbers of old versions.
const OLD_HELLO: u32 = 123_456_789;
const OLD_REPLY: u32 = 987_654_321;

impl UdpHello {
    const ALL: [Self; 4] = [Self::Little, Self::Big, Self::OldLittle, Self::OldBig];

    /// Reads a complete datagram; `None` if it is no hello.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|hello| hello.to_bytes() == datagram)
    }

    /// Returns the hello as the client sends it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        match self {
            Self::Little => *b"9876",
            Self::Big => *b"6789",
            Self::OldLittle => OLD_HELLO.to_le_bytes(),
            Self::OldBig => OLD_HELLO.to_be_bytes(),
        }
    }

    /// Returns the reply of the server.
    #[must_use]
    pub fn reply(self) -> [u8; HELLO_BYTES] {
        match self {
            Self::Little => *b"6789",
            Self::Big => *b"9876",
            Self::OldLittle => OLD_REPLY.to_le_bytes(),
            Self::OldBig => OLD_REPLY.to_be_bytes(),
        }
    }
}

/// Returns whether a datagram is the reply of a server, of any version and byte order.
#[must_use]
pub fn is_reply(datagram: &[u8]) -> bool {
    UdpHello::ALL.iter().any(|hello| hello.reply() == datagram)
}

/// Header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iperf3Header {
    /// Number of the datagram within its flow, from 1.
    pub sequence: u64,
    /// Send time in nanoseconds of the sender's monotonic clock, with microsecond resolution; wraps
    /// after 2^32 seconds.
    pub sent_ns: u64,
}

impl CounterWidth {
    /// Returns the bytes of a datagram's header.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::Bits32 => 12,
            Self::Bits64 => 16,
        }
    }
}

/// Writes the header over the beginning of a datagram; a smaller datagram is unchanged.
#[inline]
pub fn write_header(datagram: &mut [u8], counters: CounterWidth, header: Iperf3Header) {
    let Some(field) = datagram.get_mut(..counters.header_bytes()) else {
        return;
    };
    // Both halves fit: the seconds wrap by design, and the rest is below a million.
    let seconds = (header.sent_ns / 1_000_000_000) as u32;
    let microseconds = (header.sent_ns % 1_000_000_000 / 1000) as u32;
    field[..4].copy_from_slice(&seconds.to_be_bytes());
    field[4..8].copy_from_slice(&microseconds.to_be_bytes());
    match counters {
        CounterWidth::Bits32 => field[8..].copy_from_slice(&(header.sequence as u32).to_be_bytes()),
        CounterWidth::Bits64 => field[8..].copy_from_slice(&header.sequence.to_be_bytes()),
    }
}

/// Reads the header of a datagram; `None` if it is too small, or its time is invalid.
#[inline]
#[must_use]
pub fn read_header(datagram: &[u8], counters: CounterWidth) -> Option<Iperf3Header> {
    let (seconds, rest) = datagram.split_first_chunk()?;
    let (microseconds, rest) = rest.split_first_chunk()?;
    let sequence = match counters {
        CounterWidth::Bits32 => u32::from_be_bytes(*rest.first_chunk()?).into(),
        CounterWidth::Bits64 => u64::from_be_bytes(*rest.first_chunk()?),
    };
    let microseconds = u32::from_be_bytes(*microseconds);
    (microseconds < 1_000_000).then(|| Iperf3Header {
        sequence,
        sent_ns: u64::from(u32::from_be_bytes(*seconds)) * 1_000_000_000
            + u64::from(microseconds) * 1000,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn openings_do_not_drift() {
        for (hello, wire, reply) in [
            (
                UdpHello::Little,
                [0x39, 0x38, 0x37, 0x36],
                [0x36, 0x37, 0x38, 0x39],
            ),
            (
                UdpHello::OldLittle,
                [0x15, 0xcd, 0x5b, 0x07],
                [0xb1, 0x68, 0xde, 0x3a],
            ),
        ] {
            assert_eq!((hello.to_bytes(), hello.reply()), (wire, reply));
            assert_eq!(UdpHello::read(&wire), Some(hello));
            assert!(is_reply(&reply));
        }
        for other in [&b""[..], b"987", b"98765", b"BOD0", &[0; 4]] {
            assert_eq!(UdpHello::read(other), None);
            assert!(!is_reply(other));
        }
    }

    proptest! {
        #[test]
        fn headers_read_as_written(
            sequence in 0u64..1 << 32,
            microseconds in 0u64..(1 << 32) * 1_000_000,
            wide: bool,
            size in 0usize..40,
        ) {
            let counters = if wide { CounterWidth::Bits64 } else { CounterWidth::Bits32 };
            let header = Iperf3Header { sequence, sent_ns: microseconds * 1000 };
            let mut datagram = vec![0xee; size];
            write_header(&mut datagram, counters, header);
            let fits = size >= counters.header_bytes();
            prop_assert_eq!(read_header(&datagram, counters), fits.then_some(header));
            prop_assert!(datagram.iter().skip(counters.header_bytes()).all(|&b| b == 0xee));
        }
    }
}
