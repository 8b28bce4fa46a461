//! The first bytes of a datagram: its number, and when it was sent.
//!
//! ```text
//! 0 sequence low | 4 seconds | 8 microseconds | 12 sequence high (old versions end before it)
//! ```
//!
//! Numbers begin at 1. A negative one is the end; old receivers look at 32 bits, so that both words
//! carry it. The time is the sender's wall clock.

use super::{put, split_ns, wall_ns, word};

/// Bytes of today's header.
pub const HEADER_BYTES: usize = 16;

/// Bytes of the header of old versions: the least that a datagram has.
pub const LEGACY_HEADER_BYTES: usize = 12;

/// The beginning of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its number, from 1; negative at the end.
    pub sequence: i64,
    /// When it was sent, in wall-clock nanoseconds of the sender, exact to the microsecond.
    pub sent_ns: u64,
}

/// Reads the header of a datagram; `wide` for numbers of 64 bits. `None` when it is too small, or
/// its time is none.
#[inline]
#[must_use]
pub fn read_header(datagram: &[u8], wide: bool) -> Option<Header> {
    let low = word(datagram, 0)?;
    let microseconds = word(datagram, 8)?;
    let sequence = if wide {
        // Two's complement over both words.
        (u64::from(word(datagram, 12)?) << 32 | u64::from(low)) as i64
    } else {
        i64::from(low as i32)
    };
    (microseconds < 1_000_000).then_some(Header {
        sequence,
        sent_ns: wall_ns(word(datagram, 4)?, microseconds),
    })
}

/// Writes the header over the beginning of a datagram; with `wide` also the upper half of its number.
#[inline]
pub fn write_header(datagram: &mut [u8], wide: bool, header: Header) {
    let (seconds, microseconds) = split_ns(header.sent_ns);
    put(datagram, 0, header.sequence as u32);
    put(datagram, 4, seconds);
    put(datagram, 8, microseconds);
    if wide {
        put(datagram, 12, (header.sequence >> 32) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_end_is_negative_in_both_widths() {
        let end = [
            0xff, 0xff, 0xff, 0xf4, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff,
        ];
        for wide in [false, true] {
            let header = read_header(&end, wide).unwrap();
            assert_eq!((header.sequence, header.sent_ns), (-12, 1_000_002_000));
        }
        // What stands in the upper half of an old datagram is payload.
        let old = [&end[..12], b"2345"].concat();
        assert_eq!(read_header(&old, false).unwrap().sequence, -12);
        assert_eq!(read_header(&end[..11], false), None);
        assert_eq!(read_header(&end[..15], true), None);
    }

    proptest! {
        #[test]
        fn headers_read_as_written(
            sequence: i32,
            upper: i32,
            micros in 0u64..(1 << 32) * 1_000_000,
            wide: bool,
        ) {
            let mut datagram = [0xee; 20];
            let sequence = if wide { i64::from(upper) << 32 | i64::from(sequence as u32) } else { sequence.into() };
            let header = Header { sequence, sent_ns: micros * 1000 };
            write_header(&mut datagram, wide, header);
            prop_assert_eq!(read_header(&datagram, wide), Some(header));
            let header_bytes = if wide { HEADER_BYTES } else { LEGACY_HEADER_BYTES };
            prop_assert!(datagram[header_bytes..].iter().all(|&byte| byte == 0xee));
        }
    }
}
