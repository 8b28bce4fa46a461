//! Pacing: distribution of an offered load over time.

use std::fmt;
use std::str::FromStr;

use linerate_stats::units::{ByteSize, parse_count};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Pacing of payload at a rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PacePlan {
    /// Method of pacing.
    #[serde(skip_serializing_if = "PacingMethod::is_default")]
    #[serde(alias = "by")]
    pub method: PacingMethod,
    /// Burst size; absent: one datagram, or one call of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<PaceBurst>,
    /// Datagrams (for a stream: calls) per second and flow, if the user gave this instead of a bit
    /// rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_second: Option<u64>,
}

impl PacePlan {
    /// Returns the burst size in bytes, rounded down to full payloads of `payload_bytes`, at least
    /// one.
    #[must_use]
    pub fn burst_bytes(&self, payload_bytes: u64) -> u64 {
        let payload = payload_bytes.max(1);
        match self.burst {
            None => payload,
            Some(PaceBurst::Payloads(count)) => payload.saturating_mul(count.max(1)),
            Some(PaceBurst::Bytes(bytes)) => (bytes / payload).max(1).saturating_mul(payload),
        }
    }

    /// Returns true if a burst has more than one payload.
    #[must_use]
    pub fn has_bursts(&self, payload_bytes: u64) -> bool {
        self.burst_bytes(payload_bytes) > payload_bytes
    }
}

/// Method that delays payload until its send time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PacingMethod {
    /// The sending thread waits for the send time by the clock.
    #[default]
    User,
    /// The kernel paces to a rate (SO_MAX_PACING_RATE): TCP itself, or for UDP the qdisc `fq`.
    Socket,
    /// The qdisc `fq` or `etf` sends each datagram at its time (SO_TXTIME).
    Txtime,
}

impl PacingMethod {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Pacing methods with their names.
pub const PACING_METHODS: &[(&str, PacingMethod)] = &[
    ("user", PacingMethod::User),
    ("socket", PacingMethod::Socket),
    ("txtime", PacingMethod::Txtime),
];

impl FromStr for PacingMethod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let entry = PACING_METHODS.iter().find(|(name, _)| *name == text);
        entry.map(|(_, pacing)| *pacing).ok_or_else(|| {
            let names: Vec<_> = PACING_METHODS.iter().map(|(name, _)| *name).collect();
            format!("`{text}` is not a pacing method: use {}", names.join(", "))
        })
    }
}

impl fmt::Display for PacingMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = PACING_METHODS.iter().find(|(_, pacing)| pacing == self);
        f.pad(name.expect("every method has a name").0)
    }
}

/// Size of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PaceBurst {
    /// Number of datagrams, or of calls of a stream.
    Payloads(u64),
    /// Number of bytes, rounded down to full payloads, at least one.
    Bytes(u64),
}

impl FromStr for PaceBurst {
    type Err = String;

    /// Parses a burst size. A plain number counts datagrams, as in iperf3; with a unit it is a
    /// size: `16`, `64K`, `9000B`.
    fn from_str(text: &str) -> Result<Self, String> {
        let burst = match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => Self::Payloads(parse_count(text).map_err(|error| error.to_string())?),
            false if !text.ends_with(|last: char| last.is_ascii_alphabetic()) => {
                return Err(format!(
                    "`{text}` is not a burst size: write 16 for datagrams, or 64K for bytes"
                ));
            }
            false => Self::Bytes(
                text.parse::<ByteSize>()
                    .map_err(|error| error.to_string())?
                    .0,
            ),
        };
        match burst {
            Self::Payloads(0) | Self::Bytes(0) => Err("a burst must not be empty".to_owned()),
            burst => Ok(burst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_multiples_of_the_payload() {
        for (text, payload, bytes) in [
            ("16", 1472, 16 * 1472),
            ("64K", 1472, 44 * 1472),
            ("1000B", 1472, 1472),
            ("1M", 1 << 20, 1 << 20),
        ] {
            let pace = PacePlan {
                burst: Some(text.parse().unwrap()),
                ..PacePlan::default()
            };
            assert_eq!(pace.burst_bytes(payload), bytes, "{text}");
        }
        assert_eq!(PacePlan::default().burst_bytes(100), 100);
        assert!(!PacePlan::default().has_bursts(100));
        for text in ["", "0", "0K", "x", "-1", "1.5"] {
            assert!(text.parse::<PaceBurst>().is_err(), "{text}");
        }
    }

    #[test]
    fn methods_read_as_they_print() {
        for (name, pacing) in PACING_METHODS {
            assert_eq!(name.parse(), Ok(*pacing));
            assert_eq!(pacing.to_string(), *name);
        }
        assert!("fq".parse::<PacingMethod>().is_err());
    }
}
