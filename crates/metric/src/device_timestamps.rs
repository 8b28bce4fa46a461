//! Timestamps that a device writes into its responses: arrival of the request and departure of the
//! response.
//!
//! Two counts of the device's own clock, one after the other in the payload. Only their difference
//! is used, so the clock's epoch does not matter.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::parse_count;

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
pub struct DeviceStamps {
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
const OFFSET_LIMIT: u32 = 65_507;

/// The two counts of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// Count at the arrival of the request.
    pub came: u64,
    /// Count at the departure of the response.
    pub left: u64,
}

impl DeviceStamps {
    /// Returns the byte range of both counts in a payload.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let from = self.offset as usize;
        from..from + 2 * usize::from(self.width)
    }

    /// Reads both counts; `None` if the payload is too short.
    #[inline]
    #[must_use]
    pub fn read(&self, payload: &[u8]) -> Option<Stamped> {
        let (came, left) = payload.get(self.range())?.split_at(usize::from(self.width));
        Some(Stamped {
            came: self.count_of(came),
            left: self.count_of(left),
        })
    }

    fn count_of(&self, bytes: &[u8]) -> u64 {
        let shift = |count: u64, &byte: &u8| count << 8 | u64::from(byte);
        match self.order {
            ByteOrder::Be => bytes.iter().fold(0, shift),
            ByteOrder::Le => bytes.iter().rev().fold(0, shift),
        }
    }

    /// Writes both counts from times in nanoseconds; returns false if the payload is too short.
    pub fn write(&self, payload: &mut [u8], came_ns: u64, left_ns: u64) -> bool {
        let width = usize::from(self.width);
        let Some(room) = payload.get_mut(self.range()) else {
            return false;
        };
        let (came, left) = room.split_at_mut(width);
        for (room, ns) in [(came, came_ns), (left, left_ns)] {
            let count = self.ticks(ns);
            match self.order {
                ByteOrder::Be => room.copy_from_slice(&count.to_be_bytes()[8 - width..]),
                ByteOrder::Le => room.copy_from_slice(&count.to_le_bytes()[..width]),
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
    pub fn between_ns(&self, stamped: Stamped) -> u64 {
        let mask = u64::MAX >> (64 - 8 * u32::from(self.width));
        let ticks = stamped.left.wrapping_sub(stamped.came) & mask;
        let ns = u128::from(ticks) * u128::from(NANOSECONDS_HZ) / u128::from(self.hz);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the same timestamps relative to the payload without its first `bytes`.
    #[must_use]
    pub fn behind(&self, bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            offset: self.offset.saturating_sub(bytes),
            ..*self
        }
    }

    /// Returns the reason why messages of this size cannot carry the counts.
    #[must_use]
    pub fn unfit(&self, payload_bytes: u64) -> Option<String> {
        let end = self.range().end as u64;
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

impl fmt::Display for DeviceStamps {
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

impl FromStr for DeviceStamps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let offset = parts.next().unwrap_or_default();
        let offset = offset.parse().ok().filter(|&at| at <= OFFSET_LIMIT);
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

impl From<DeviceStamps> for String {
    fn from(stamps: DeviceStamps) -> Self {
        stamps.to_string()
    }
}

impl TryFrom<String> for DeviceStamps {
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
        for (text, want) in [
            ("16", "16,width=8,order=be,hz=1000000000"),
            (
                "20,width=4,order=le,hz=25M",
                "20,width=4,order=le,hz=25000000",
            ),
            ("0,hz=1000", "0,width=8,order=be,hz=1000"),
        ] {
            let stamps: DeviceStamps = text.parse().unwrap();
            assert_eq!(stamps.to_string(), want, "{text}");
            assert_eq!(want.parse(), Ok(stamps));
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
            assert!(text.parse::<DeviceStamps>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "16",
            "17,width=4,hz=25M",
            "30,order=le",
            "16,width=4,order=le,hz=1M",
        ] {
            let stamps: DeviceStamps = text.parse().unwrap();
            let mut payload = [0xee; 64];
            assert!(stamps.write(&mut payload, 5_000_000, 5_750_000));
            let read = stamps.read(&payload).unwrap();
            assert_eq!(stamps.between_ns(read), 750_000, "{text}");
            let range = stamps.range();
            let outside = (0..payload.len()).filter(|at| !range.contains(at));
            assert!(outside.into_iter().all(|at| payload[at] == 0xee), "{text}");
            assert!(!stamps.write(&mut payload[..range.end - 1], 1, 2));
            assert_eq!(stamps.read(&payload[..range.end - 1]), None);
        }
    }

    #[test]
    fn a_count_that_began_anew_is_still_right() {
        let narrow: DeviceStamps = "16,width=4,hz=1M".parse().unwrap();
        let wrapped = Stamped {
            came: u64::from(u32::MAX) - 9,
            left: 30,
        };
        assert_eq!(narrow.between_ns(wrapped), 40_000);
        let wide: DeviceStamps = "16,hz=1000000000".parse().unwrap();
        let wrapped = Stamped {
            came: u64::MAX,
            left: 4,
        };
        assert_eq!(wide.between_ns(wrapped), 5);
        let slow: DeviceStamps = "16,hz=1".parse().unwrap();
        let backwards = Stamped { came: 5, left: 4 };
        assert_eq!(slow.between_ns(backwards), u64::MAX, "no overflow");
    }

    #[test]
    fn messages_must_have_room() {
        let stamps: DeviceStamps = "16".parse().unwrap();
        assert_eq!(stamps.unfit(32), None);
        assert!(stamps.unfit(31).is_some());
        let early: DeviceStamps = "12,width=4".parse().unwrap();
        assert!(early.unfit(64).is_some());
    }
}
