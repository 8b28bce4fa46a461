//! Timestamps that a device writes into its responses: arrival of the request and departure of the
//! response.
//!
//! Two counts of the device's own clock, one after the other in the payload. Only their difference
//! is used, so the clock's epoch does not matter.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use linerate_stats::units::parse_count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Byte order of a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// Big-endian (network order).
    #[default]
    Be,
    /// Little-endian.
    Le,
}

/// Position and format of a device's two counts. Written as on the command line:
/// `16,width=4,order=le,hz=25M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub struct DeviceTimestamps {
    /// Payload offset of the arrival count; the departure count follows it.
    pub offset: u32,
    /// Bytes per count: 4 or 8.
    pub width: u8,
    /// Byte order of the counts.
    pub order: ByteOrder,
    /// Counts per second.
    pub hz: u64,
}

/// Counts per second of a nanosecond clock, as `linerate target-code --stamps` writes them.
pub const NANOSECONDS_HZ: u64 = 1_000_000_000;

/// Bytes at the start of a message with its sequence number and send time.
const HEADER_BYTES: u32 = 16;

/// Largest offset of a count: the longest UDP payload.
const MAX_OFFSET_BYTES: u32 = 65_507;

/// The two counts of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampPair {
    /// Count at the arrival of the request.
    pub arrival: u64,
    /// Count at the departure of the response.
    pub departure: u64,
}

impl DeviceTimestamps {
    /// Returns the byte range of both counts in a payload.
    #[must_use]
    pub fn byte_range(&self) -> Range<usize> {
        let from = self.offset as usize;
        from..from + 2 * usize::from(self.width)
    }

    /// Reads both counts; `None` if the payload is too short.
    #[inline]
    #[must_use]
    pub fn read(&self, payload: &[u8]) -> Option<TimestampPair> {
        let (arrival, departure) = payload
            .get(self.byte_range())?
            .split_at(usize::from(self.width));
        Some(TimestampPair {
            arrival: self.decode_count(arrival),
            departure: self.decode_count(departure),
        })
    }

    fn decode_count(&self, bytes: &[u8]) -> u64 {
        let shift = |count: u64, &byte: &u8| count << 8 | u64::from(byte);
        match self.order {
            ByteOrder::Be => bytes.iter().fold(0, shift),
            ByteOrder::Le => bytes.iter().rev().fold(0, shift),
        }
    }

    /// Writes both counts from times in nanoseconds; returns false if the payload is too short.
    pub fn write(&self, payload: &mut [u8], arrival_ns: u64, departure_ns: u64) -> bool {
        let width = usize::from(self.width);
        let Some(bytes) = payload.get_mut(self.byte_range()) else {
            return false;
        };
        let (arrival, departure) = bytes.split_at_mut(width);
        for (bytes, ns) in [(arrival, arrival_ns), (departure, departure_ns)] {
            let count = self.ticks(ns);
            match self.order {
                ByteOrder::Be => bytes.copy_from_slice(&count.to_be_bytes()[8 - width..]),
                ByteOrder::Le => bytes.copy_from_slice(&count.to_le_bytes()[..width]),
            }
        }
        true
    }

    /// Converts a time to a count; the caller writes its low-order bytes.
    #[inline]
    fn ticks(&self, ns: u64) -> u64 {
        // The 128-bit division would take a tenth of the response time.
        if self.hz == NANOSECONDS_HZ {
            return ns;
        }
        (u128::from(ns) * u128::from(self.hz) / u128::from(NANOSECONDS_HZ)) as u64
    }

    /// Returns the time between both counts in nanoseconds. A counter that wrapped once gives the
    /// right time; more wraps cannot be detected.
    #[inline]
    #[must_use]
    pub fn elapsed_ns(&self, pair: TimestampPair) -> u64 {
        let mask = u64::MAX >> (64 - 8 * u32::from(self.width));
        let ticks = pair.departure.wrapping_sub(pair.arrival) & mask;
        let ns = u128::from(ticks) * u128::from(NANOSECONDS_HZ) / u128::from(self.hz);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the same timestamps relative to the payload without its first `bytes`.
    #[must_use]
    pub fn after_prefix(&self, bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            offset: self.offset.saturating_sub(bytes),
            ..*self
        }
    }

    /// Returns the reason why messages of this size cannot carry the counts.
    #[must_use]
    pub fn fit_error(&self, payload_bytes: u64) -> Option<String> {
        let end = self.byte_range().end as u64;
        if self.offset < HEADER_BYTES {
            return Some(format!(
                "bytes below {HEADER_BYTES} have the sequence number and send time of the message"
            ));
        }
        (end > payload_bytes).then(|| {
            format!("the counts end at byte {end}, and a message has {payload_bytes} bytes")
        })
    }
}

impl fmt::Display for DeviceTimestamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            ByteOrder::Be => "be",
            ByteOrder::Le => "le",
        };
        let Self {
            offset, width, hz, ..
        } = self;
        f.pad(&format!("{offset},width={width},order={order},hz={hz}"))
    }
}

impl FromStr for DeviceTimestamps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let offset = parts.next().unwrap_or_default();
        let offset = offset.parse().ok().filter(|&at| at <= MAX_OFFSET_BYTES);
        let mut stamps = Self {
            offset: offset.ok_or_else(|| {
                format!(
                    "`{text}` does not start with a byte offset: write 16,width=4,order=le,hz=25M"
                )
            })?,
            width: 8,
            order: ByteOrder::Be,
            hz: NANOSECONDS_HZ,
        };
        for part in parts {
            match part.split_once('=') {
                Some(("width", "4")) => stamps.width = 4,
                Some(("width", "8")) => stamps.width = 8,
                Some(("order", "be")) => stamps.order = ByteOrder::Be,
                Some(("order", "le")) => stamps.order = ByteOrder::Le,
                Some(("hz", hz)) => {
                    stamps.hz = parse_count(hz)
                        .ok()
                        .filter(|&hz| hz > 0)
                        .ok_or_else(|| format!("`{part}` is not a clock rate: write hz=25M"))?;
                }
                _ => {
                    return Err(format!(
                        "`{part}` is not one of width=4, width=8, order=be, order=le, hz=N"
                    ));
                }
            }
        }
        Ok(stamps)
    }
}

impl From<DeviceTimestamps> for String {
    fn from(stamps: DeviceTimestamps) -> Self {
        stamps.to_string()
    }
}

impl TryFrom<String> for DeviceTimestamps {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_as_they_print() {
        for (text, expected) in [
            ("16", "16,width=8,order=be,hz=1000000000"),
            (
                "20,width=4,order=le,hz=25M",
                "20,width=4,order=le,hz=25000000",
            ),
            ("0,hz=1000", "0,width=8,order=be,hz=1000"),
        ] {
            let stamps: DeviceTimestamps = text.parse().unwrap();
            assert_eq!(stamps.to_string(), expected, "{text}");
            assert_eq!(expected.parse(), Ok(stamps));
        }
        for text in [
            "",
            "x",
            "16,width=2",
            "16,order=be,le",
            "16,hz=0",
            "70000",
            "-1",
        ] {
            assert!(text.parse::<DeviceTimestamps>().is_err(), "{text}");
        }
    }

    #[test]
    fn written_counts_read_back() {
        for text in [
            "16",
            "17,width=4,hz=25M",
            "30,order=le",
            "16,width=4,order=le,hz=1M",
        ] {
            let stamps: DeviceTimestamps = text.parse().unwrap();
            let mut payload = [0xee; 64];
            assert!(stamps.write(&mut payload, 5_000_000, 5_750_000));
            let read = stamps.read(&payload).unwrap();
            assert_eq!(stamps.elapsed_ns(read), 750_000, "{text}");
            let range = stamps.byte_range();
            let outside = (0..payload.len()).filter(|at| !range.contains(at));
            assert!(outside.into_iter().all(|at| payload[at] == 0xee), "{text}");
            assert!(!stamps.write(&mut payload[..range.end - 1], 1, 2));
            assert_eq!(stamps.read(&payload[..range.end - 1]), None);
        }
    }

    #[test]
    fn a_count_that_began_anew_is_still_right() {
        let narrow: DeviceTimestamps = "16,width=4,hz=1M".parse().unwrap();
        let wrapped = TimestampPair {
            arrival: u64::from(u32::MAX) - 9,
            departure: 30,
        };
        assert_eq!(narrow.elapsed_ns(wrapped), 40_000);
        let wide: DeviceTimestamps = "16,hz=1000000000".parse().unwrap();
        let wrapped = TimestampPair {
            arrival: u64::MAX,
            departure: 4,
        };
        assert_eq!(wide.elapsed_ns(wrapped), 5);
        let slow: DeviceTimestamps = "16,hz=1".parse().unwrap();
        let backwards = TimestampPair {
            arrival: 5,
            departure: 4,
        };
        assert_eq!(slow.elapsed_ns(backwards), u64::MAX, "no overflow");
    }

    #[test]
    fn messages_must_have_space() {
        let stamps: DeviceTimestamps = "16".parse().unwrap();
        assert_eq!(stamps.fit_error(32), None);
        assert!(stamps.fit_error(31).is_some());
        let early: DeviceTimestamps = "12,width=4".parse().unwrap();
        assert!(early.fit_error(64).is_some());
    }
}
