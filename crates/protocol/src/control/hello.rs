//! HELLO: versions and features of an end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Oldest protocol version that this crate implements.
pub const PROTOCOL_MIN: u16 = 1;

/// Newest protocol version that this crate implements.
pub const PROTOCOL_MAX: u16 = 1;

/// Protection of the frames, as announced by the byte after the magic number; all other byte values
/// are reserved and rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Security {
    /// No protection: frames follow in clear text.
    Plain = 0,
    /// Pre-shared key: a handshake follows, then frames inside Noise messages.
    Noise = 1,
}

impl Security {
    /// Returns the byte on the wire.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        self as u8
    }

    /// Returns the security of a byte; `None` for a reserved one.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Plain, Self::Noise]
            .into_iter()
            .find(|security| security.to_byte() == byte)
    }
}

/// Inclusive range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// Oldest version.
    pub min: u16,
    /// Newest version.
    pub max: u16,
}

impl VersionRange {
    /// Returns the highest version in both ranges.
    #[must_use]
    pub fn highest_common(self, other: Self) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min.max(other.min)).then_some(highest)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{} to {}", self.min, self.max)
        }
    }
}

/// First frame in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest protocol version that the sender implements.
    pub protocol_min: u16,
    /// Newest protocol version that the sender implements.
    pub protocol_max: u16,
    /// Name and version of the sender's program, as text: `linerate 0.1.0`.
    #[serde(default)]
    pub agent: String,
    /// Features of the sender beyond its versions, as kebab-case names; unknown ones are ignored.
    #[serde(default)]
    pub features: Vec<String>,
    /// Sender's [`HostFacts::boot_id`](linerate_record::facts::HostFacts::boot_id): equal at both
    /// ends if they share a kernel, and so their cores.
    #[serde(default)]
    pub boot_id: Option<String>,
}

impl Hello {
    /// Creates a HELLO with this crate's versions and no features.
    #[must_use]
    pub fn new(agent: impl Into<String>) -> Self {
        Self {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            agent: agent.into(),
            features: Vec::new(),
            boot_id: None,
        }
    }

    /// Returns the range of versions that the sender implements.
    #[must_use]
    pub fn versions(&self) -> VersionRange {
        VersionRange {
            min: self.protocol_min,
            max: self.protocol_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_spoken() {
        for ((our_min, our_max), (their_min, their_max), expected) in [
            ((1, 1), (1, 1), Some(1)),
            ((1, 3), (2, 5), Some(3)),
            ((2, 5), (1, 3), Some(3)),
            ((1, 9), (4, 4), Some(4)),
            ((1, 2), (3, 4), None),
            ((3, 4), (1, 2), None),
            ((0, u16::MAX), (5, 5), Some(5)),
            ((1, 3), (3, 1), None),
        ] {
            let local = VersionRange {
                min: our_min,
                max: our_max,
            };
            let remote = VersionRange {
                min: their_min,
                max: their_max,
            };
            assert_eq!(
                local.highest_common(remote),
                expected,
                "{local} and {remote}"
            );
        }
    }
}
