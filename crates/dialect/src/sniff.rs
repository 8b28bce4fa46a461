//! Classification of a connection or flow by its first bytes.
//!
//! One server port serves all protocols. The first bytes of a connection, or the first datagram of
//! a flow, must therefore decide. Each protocol has a detector that reads only those bytes.
//! [`DIALECTS`] lists the detectors, the most certain first: linerate's own connections open with a
//! magic number that no other protocol sends, while plain payload can look like anything.

use crate::{chargen, control, discard, echo, iperf2, iperf3, nuttcp, plain, sockperf, ttcp};

/// Transport that carries the bytes; the detection rules differ between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A TCP connection: the bytes are what has arrived of it so far.
    Stream,
    /// UDP: the bytes are one complete datagram.
    Datagram,
}

/// Result of one protocol's detector for the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes belong to this protocol.
    Yes,
    /// The bytes cannot belong to this protocol, whatever follows.
    No,
    /// The bytes may belong to this protocol: repeat with more. Never returned for a datagram.
    NeedMore,
}

impl Verdict {
    /// Compares `bytes` with a fixed prefix.
    #[must_use]
    pub fn of_prefix(prefix: &[u8], bytes: &[u8]) -> Self {
        if bytes.starts_with(prefix) {
            Self::Yes
        } else if prefix.starts_with(bytes) {
            Self::NeedMore
        } else {
            Self::No
        }
    }

    /// Combines the results for two alternative prefixes of one protocol.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::NeedMore, _) | (_, Self::NeedMore) => Self::NeedMore,
            (Self::No, Self::No) => Self::No,
        }
    }
}

/// Name and detector of a protocol.
#[derive(Debug)]
pub struct Dialect {
    /// Kebab-case name, as in options and records.
    pub name: &'static str,
    /// Detector: compares the first bytes with the protocol.
    pub recognise: fn(Carrier, &[u8]) -> Verdict,
}

/// Table of all protocols, in the order of detection.
///
/// The last four have no prefix of their own and are never detected: a port is assigned to them by
/// an option. Payload that matches no protocol is plain.
pub const DIALECTS: &[Dialect] = &[
    control::DIALECT,
    nuttcp::DIALECT,
    iperf3::DIALECT,
    iperf2::DIALECT,
    sockperf::DIALECT,
    ttcp::DIALECT,
    iperf2::LEGACY_DIALECT,
    echo::DIALECT,
    discard::DIALECT,
    chargen::DIALECT,
    plain::DIALECT,
];

/// Protocol that the first bytes belong to.
#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    /// A protocol of the table.
    Known(&'static Dialect),
    /// Undecided: repeat with more bytes.
    NeedMore,
    /// No protocol of the table.
    Unknown,
}

/// Classifies the first bytes with the detectors of [`DIALECTS`], in their order.
///
/// A detector that needs more bytes defers all later ones. A weak match therefore never wins over a
/// strong one that has not arrived completely.
#[must_use]
pub fn speaker(carrier: Carrier, first_bytes: &[u8]) -> Speaker {
    for dialect in DIALECTS {
        match (dialect.recognise)(carrier, first_bytes) {
            Verdict::Yes => return Speaker::Known(dialect),
            Verdict::NeedMore => return Speaker::NeedMore,
            Verdict::No => {}
        }
    }
    Speaker::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (position, dialect) in DIALECTS.iter().enumerate() {
            assert!(
                DIALECTS[..position].iter().all(|d| d.name != dialect.name),
                "{}",
                dialect.name
            );
        }
    }

    #[test]
    fn a_datagram_is_whole() {
        for dialect in DIALECTS {
            for bytes in [&b""[..], b"\x01", b"\x01lr\xC0"] {
                assert_ne!(
                    (dialect.recognise)(Carrier::Datagram, bytes),
                    Verdict::NeedMore,
                    "{} {bytes:02x?}",
                    dialect.name
                );
            }
        }
    }
}
