//! Header of a UDP datagram: number and send time.
//!
//! ```text
//! 0 sequence low | 4 seconds | 8 microseconds | 12 sequence high (old versions end before it)
//! ```
//!
//! Numbers begin at 1. A negative number marks the end; both words carry the sign, because old
//! receivers read only 32 bits. The time is the sender's wall clock.

use super::{read_u32, to_wire_time, wire_time_ns, write_u32};

/// Number of end datagrams that are sent if no reply is expected: for a flow from a server, and for
/// a client that requests no report.
pub const ENDS_WITHOUT_REPLY: u32 = 3;

/// Bytes of the current header.
pub const HEADER_BYTES: usize = 16;

/// Bytes of the header of old versions, and of the smallest datagram.
pub const LEGACY_HEADER_BYTES: usize = 12;

/// Header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iperf2Header {
    /// Number, from 1; negative at the end.
    pub sequence: i64,
    /// Send time in wall-clock nanoseconds of the sender, with microsecond resolution.
    pub sent_ns: u64,
}

/// Reads the header of a datagram; `wide` for 64-bit numbers. `None` if it is too small, or its
/// time is invalid.
#[inline]
#[must_use]
pub fn read_header(datagram: &[u8], wide: bool) -> Option<Iperf2Header> {
    let low = read_u32(datagram, 0)?;
    let microseconds = read_u32(datagram, 8)?;
    let sequence = if wide {
        // Two's complement over both words.
        (u64::from(read_u32(datagram, 12)?) << 32 | u64::from(low)) as i64
    } else {
        i64::from(low as i32)
    };
    (microseconds < 1_000_000).then_some(Iperf2Header {
        sequence,
        sent_ns: wire_time_ns(read_u32(datagram, 4)?, microseconds),
    })
}

/// Writes the header over the beginning of a datagram; `wide` includes the upper half of its
/// number.
#[inline]
pub fn write_header(datagram: &mut [u8], wide: bool, header: Iperf2Header) {
    let (seconds, microseconds) = to_wire_time(header.sent_ns);
    write_u32(datagram, 0, header.sequence as u32);
    write_u32(datagram, 4, seconds);
    write_u32(datagram, 8, microseconds);
    if wide {
        write_u32(datagram, 12, (header.sequence >> 32) as u32);
    }
}

/// Writes number (from 1) and time over a payload datagram, always with the upper half of the
/// number: old servers read it as payload, and upstream's client that listens for a second flow
/// reads 64 bits although no flag announces them.
#[inline]
pub fn write_number(datagram: &mut [u8], number: u64, now_wall_ns: u64) {
    let header = Iperf2Header {
        sequence: i64::try_from(number).unwrap_or(i64::MAX),
        sent_ns: now_wall_ns,
    };
    write_header(datagram, true, header);
}

/// Writes the end of a flow of `sent` datagrams. All end datagrams have the same number, so that a
/// lost one does not count as lost payload.
pub fn write_end(datagram: &mut [u8], sent: u64, now_wall_ns: u64) {
    let header = Iperf2Header {
        sequence: -i64::try_from(sent).map_or(i64::MAX, |sent| sent.saturating_add(1)),
        sent_ns: now_wall_ns,
    };
    write_header(datagram, true, header);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_end_is_negative_in_both_widths() {
        let end = [
            0xff, 0xff, 0xff, 0xf4, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff,
        ];
        for wide in [false, true] {
            let header = read_header(&end, wide).unwrap();
            assert_eq!((header.sequence, header.sent_ns), (-12, 1_000_002_000));
        }
        // The upper half of an old datagram is payload.
        let old = [&end[..12], b"2345"].concat();
        assert_eq!(read_header(&old, false).unwrap().sequence, -12);
        assert_eq!(read_header(&end[..11], false), None);
        assert_eq!(read_header(&end[..15], true), None);
    }

    #[test]
    fn payload_counts_up_and_its_end_is_one_further() {
        let mut datagram = [0; 20];
        for (number, sequence) in [
            (1, 1),
            (u64::from(u32::MAX) + 7, 0x1_0000_0006),
            (u64::MAX, i64::MAX),
        ] {
            write_number(&mut datagram, number, 5_000);
            let header = read_header(&datagram, true).unwrap();
            assert_eq!((header.sequence, header.sent_ns), (sequence, 5_000));
            write_end(&mut datagram, number, 9_000);
            let header = read_header(&datagram, true).unwrap();
            assert_eq!(header.sequence, -sequence.saturating_add(1));
            // Old receivers read 32 bits.
            assert!(number > 1 || read_header(&datagram, false).unwrap().sequence == -2);
        }
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
            let header = Iperf2Header { sequence, sent_ns: micros * 1000 };
            write_header(&mut datagram, wide, header);
            prop_assert_eq!(read_header(&datagram, wide), Some(header));
            let header_bytes = if wide { HEADER_BYTES } else { LEGACY_HEADER_BYTES };
            prop_assert!(datagram[header_bytes..].iter().all(|&byte| byte == 0xee));
        }
    }
}
