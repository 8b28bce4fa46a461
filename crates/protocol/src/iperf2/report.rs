//! Report that a server sends after a UDP test.
//!
//! ```text
//!  16 flags | 20 bytes high | 24 bytes low | 28 seconds | 32 microseconds | 36 lost | 40 out of order
//!  44 datagrams | 48 jitter seconds | 52 jitter microseconds          (clients read up to here)
//!  56 transit times: min, max, sum, mean, m2, vd, each in seconds and microseconds | 104 their count
//! 108 gaps | 112 their sum | 116 lost high | 120 out of order high | 124 datagrams high
//! ```
//!
//! The bytes before the flags are the header of the datagram, which is not read. Versions before
//! 2.0.13 have a header of 12 bytes, and so all fields up to the jitter 4 bytes earlier.

use super::settings::flags;
use super::{read_u32, to_wire_time, wire_time_ns, write_u32};

/// Bytes of a report.
pub const REPORT_BYTES: usize = 128;

/// Bytes of the shortest report that all clients of upstream accept.
pub const REPORT_MIN_BYTES: usize = 56;

/// Offsets of the fields of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportLayout {
    /// Layout of 2.0.13 and later.
    #[default]
    Current,
    /// Layout of 2.0.5 and most embedded boards.
    Legacy,
}

impl ReportLayout {
    /// Returns the offset of the flags.
    const fn flags_offset(self) -> usize {
        match self {
            Self::Current => 16,
            Self::Legacy => 12,
        }
    }
}

/// Receive counters that a server reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Iperf2Report {
    /// Payload bytes received, the end datagram included.
    pub bytes: u64,
    /// Time from the first to the last datagram, in nanoseconds.
    pub duration_ns: u64,
    /// Lost datagrams.
    pub lost: u64,
    /// Datagrams that arrived after one with a higher number.
    pub out_of_order: u64,
    /// Highest number received, the end datagram included.
    pub datagrams: u64,
    /// Smoothed variation of the transit time, in nanoseconds.
    pub ipdv_ns: u64,
    /// Transit times, if the clocks are synchronised.
    pub transit: Option<TransitTimes>,
}

/// Statistics of the transit times of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransitTimes {
    /// Minimum in nanoseconds.
    pub min_ns: u64,
    /// Maximum in nanoseconds.
    pub max_ns: u64,
    /// Sum in nanoseconds.
    pub sum_ns: u64,
    /// Mean in nanoseconds.
    pub mean_ns: u64,
    /// Sum of the squared differences from the mean, in square microseconds.
    pub m2_us2: f64,
    /// Number of transit times.
    pub count: u32,
}

/// Flag: the report has transit times.
const WITH_TRANSIT: u32 = flags::EXTENSION;

/// Flag: the counts have 64 bits.
const WIDE_COUNTS: u32 = flags::WIDE;

/// Returns the lower half of a count.
fn low_half(count: u64) -> u32 {
    count as u32
}

fn high_half(count: u64) -> u32 {
    (count >> 32) as u32
}

impl Iperf2Report {
    /// Returns the sum of the gaps between arrivals in whole seconds, as servers of upstream write
    /// it. At least 1, because clients divide by it.
    fn inter_arrival_seconds(&self) -> u32 {
        u32::try_from(self.duration_ns / 1_000_000_000).map_or(u32::MAX, |seconds| seconds.max(1))
    }

    /// Encodes the report.
    #[must_use]
    pub fn write(&self, layout: ReportLayout) -> [u8; REPORT_BYTES] {
        let mut out = [0; REPORT_BYTES];
        let at = layout.flags_offset();
        let mut flags = flags::DUAL;
        if layout == ReportLayout::Current {
            flags |= WIDE_COUNTS;
            write_u32(&mut out, 116, high_half(self.lost));
            write_u32(&mut out, 120, high_half(self.out_of_order));
            write_u32(&mut out, 124, high_half(self.datagrams));
            if let Some(transit) = self.transit {
                flags |= WITH_TRANSIT;
                transit.write(&mut out);
                // Clients show transit times only together with the time between arrivals.
                write_u32(&mut out, 108, transit.count.saturating_sub(1));
                write_u32(&mut out, 112, self.inter_arrival_seconds());
            }
        }
        let (seconds, microseconds) = to_wire_time(self.duration_ns);
        let (ipdv_seconds, ipdv_microseconds) = to_wire_time(self.ipdv_ns);
        for (offset, value) in [
            (0, flags),
            (4, high_half(self.bytes)),
            (8, low_half(self.bytes)),
            (12, seconds),
            (16, microseconds),
            (20, low_half(self.lost)),
            (24, low_half(self.out_of_order)),
            (28, low_half(self.datagrams)),
            (32, ipdv_seconds),
            (36, ipdv_microseconds),
        ] {
            write_u32(&mut out, at + offset, value);
        }
        out
    }

    /// Decodes a report; `None` for other datagrams. A server that no longer has the test returns
    /// the end datagram instead, which lacks the report's flags.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<Self> {
        // Before 2.0.13 the word at 12 is the flags, of which only this bit is set. Today it
        // belongs to the header: zero, or the upper half of a number.
        let layout = match read_u32(datagram, 12)? {
            flags::DUAL => ReportLayout::Legacy,
            _ => ReportLayout::Current,
        };
        let at = |offset| read_u32(datagram, layout.flags_offset() + offset);
        let flags = at(0)?;
        if flags & flags::DUAL == 0 || flags & !(flags::DUAL | WITH_TRANSIT | WIDE_COUNTS) != 0 {
            return None;
        }
        let wide = |low: u32, high_at: usize| {
            let high = read_u32(datagram, high_at).filter(|_| flags & WIDE_COUNTS != 0);
            u64::from(high.unwrap_or(0)) << 32 | u64::from(low)
        };
        Some(Self {
            bytes: u64::from(at(4)?) << 32 | u64::from(at(8)?),
            duration_ns: wire_time_ns(at(12)?, at(16)?),
            lost: wide(at(20)?, 116),
            out_of_order: wide(at(24)?, 120),
            datagrams: wide(at(28)?, 124),
            ipdv_ns: wire_time_ns(at(32)?, at(36)?),
            transit: if flags & WITH_TRANSIT == 0 {
                None
            } else {
                TransitTimes::read(datagram)
            },
        })
    }
}

impl TransitTimes {
    fn write(&self, out: &mut [u8]) {
        let square = (
            self.m2_us2 as u32,
            (self.m2_us2.fract() * 1e6).max(0.0) as u32,
        );
        for (at, (integer_part, millionths)) in [
            (56, to_wire_time(self.min_ns)),
            (64, to_wire_time(self.max_ns)),
            (72, to_wire_time(self.sum_ns)),
            (80, to_wire_time(self.mean_ns)),
            (88, square),
        ] {
            write_u32(out, at, integer_part);
            write_u32(out, at + 4, millionths);
        }
        write_u32(out, 104, self.count);
    }

    fn read(datagram: &[u8]) -> Option<Self> {
        let time = |at| {
            Some(wire_time_ns(
                read_u32(datagram, at)?,
                read_u32(datagram, at + 4)?,
            ))
        };
        Some(Self {
            min_ns: time(56)?,
            max_ns: time(64)?,
            sum_ns: time(72)?,
            mean_ns: time(80)?,
            m2_us2: f64::from(read_u32(datagram, 88)?) + f64::from(read_u32(datagram, 92)?) / 1e6,
            count: read_u32(datagram, 104)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report() -> Iperf2Report {
        Iperf2Report {
            bytes: 5 << 32 | 7,
            duration_ns: 1_500_001_000,
            lost: 1 << 33,
            out_of_order: 2,
            datagrams: 3 << 33,
            ipdv_ns: 1_234_000,
            transit: None,
        }
    }

    #[test]
    fn both_layouts_read_as_written() {
        let current = report();
        assert_eq!(
            Iperf2Report::read(&current.write(ReportLayout::Current)),
            Some(current)
        );
        let legacy = Iperf2Report {
            lost: 3,
            datagrams: 9,
            ..current
        };
        assert_eq!(
            Iperf2Report::read(&legacy.write(ReportLayout::Legacy)),
            Some(legacy)
        );
        let transit = Iperf2Report {
            transit: Some(TransitTimes {
                min_ns: 1000,
                max_ns: 9_000_000_000,
                sum_ns: 10_000_000_000,
                mean_ns: 2_000_000,
                m2_us2: 12.5,
                count: 7,
            }),
            ..current
        };
        assert_eq!(
            Iperf2Report::read(&transit.write(ReportLayout::Current)),
            Some(transit)
        );
    }

    #[test]
    fn a_truncated_report_lacks_only_the_missing_part() {
        let expected = Iperf2Report {
            lost: 3,
            datagrams: 9,
            ..report()
        };
        let encoded = expected.write(ReportLayout::Current);
        assert_eq!(
            Iperf2Report::read(&encoded[..REPORT_MIN_BYTES]),
            Some(expected)
        );
        assert_eq!(Iperf2Report::read(&encoded[..REPORT_MIN_BYTES - 1]), None);
    }

    #[test]
    fn the_end_sent_back_is_no_report() {
        let mut end = [0; REPORT_BYTES];
        write_u32(&mut end, 0, -12i32 as u32);
        write_u32(&mut end, 12, u32::MAX);
        for first in [0, 0x4801_0098, 0x6c01_0098, 0x3637_3839] {
            write_u32(&mut end, 16, first);
            assert_eq!(Iperf2Report::read(&end), None, "{first:08x}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..140)) {
            let _ = Iperf2Report::read(&bytes);
        }
    }
}
