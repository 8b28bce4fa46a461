//! Times that a device writes into its answers: when a question came in, and when the answer left.
//!
//! Two counts of the device's own clock follow each other in the payload. What they mean by the far
//! clock does not matter: only how far they are apart.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::parse_count;

/// In which order the bytes of a count stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// The highest first, as in protocols.
    #[default]
    Be,
    /// The lowest first, as most processors have it.
    Le,
}

/// Where and how a device writes its two counts. Written as on the command line:
/// `16,width=4,order=le,hz=25M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub struct DeviceStamps {
    /// First byte of the count at arrival; the one at departure stands behind it.
    pub offset: u32,
    /// Bytes of a count: 4 or 8.
    pub width: u8,
    /// Order of these bytes.
    pub order: ByteOrder,
    /// Counts a second.
    pub hz: u64,
}

/// Counts a second of a clock of nanoseconds: what `linerate target-code --stamps` writes.
pub const NANOSECONDS_HZ: u64 = 1_000_000_000;

/// Bytes at the beginning of a message that tell its number and time.
const HEADER_BYTES: u32 = 16;

/// Largest place of a count: no datagram is longer.
const OFFSET_LIMIT: u32 = 65_507;

/// The two counts of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// When the question came in.
    pub came: u64,
    /// When the answer left.
    pub left: u64,
}

impl DeviceStamps {
    /// The bytes of both counts in a payload.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let from = self.offset as usize;
        from..from + 2 * usize::from(self.width)
    }

    /// Reads both counts; `None` where the payload is too short for them.
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

    /// Writes both counts, from times in nanoseconds; false where the payload is too short for them.
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

    /// A time as a count, of which the lower bytes are written.
    #[inline]
    fn ticks(&self, ns: u64) -> u64 {
        // Divisions of such numbers are a tenth of what an answer takes.
        if self.hz == NANOSECONDS_HZ {
            return ns;
        }
        (u128::from(ns) * u128::from(self.hz) / u128::from(NANOSECONDS_HZ)) as u64
    }

    /// Time between both counts in nanoseconds, however often the count began anew in between: once
    /// is right, and more often nobody can know.
    #[inline]
    #[must_use]
    pub fn between_ns(&self, stamped: Stamped) -> u64 {
        let mask = u64::MAX >> (64 - 8 * u32::from(self.width));
        let ticks = stamped.left.wrapping_sub(stamped.came) & mask;
        let ns = u128::from(ticks) * u128::from(NANOSECONDS_HZ) / u128::from(self.hz);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The same stamps in what stands behind so many bytes of the message.
    #[must_use]
    pub fn behind(&self, bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            offset: self.offset.saturating_sub(bytes),
            ..*self
        }
    }

    /// What keeps messages of so many bytes from carrying these counts.
    #[must_use]
    pub fn unfit(&self, payload_bytes: u64) -> Option<String> {
        let end = self.range().end as u64;
        if self.offset < HEADER_BYTES {
            return Some(format!(
                "bytes below {HEADER_BYTES} carry the number and time that tell answers apart"
            ));
        }
        (end > payload_bytes)
            .then(|| format!("the counts end at byte {end}, and a message has {payload_bytes}"))
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
                    "`{text}` does not begin with a byte offset: write 16,width=4,order=le,hz=25M"
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
                        .ok_or_else(|| format!("`{part}` is no rate: write hz=25M"))?;
                }
                _ => {
                    return Err(format!(
                        "`{part}` is none of width=4, width=8, order=be, order=le and hz=N"
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
