//! Classification of a connection or flow by its first bytes.
//!
//! One server port serves all protocols. The first bytes of a connection, or the first datagram of
//! a flow, must therefore decide. Each protocol has a detector that reads only those bytes.
//! [`PROTOCOLS`] lists the detectors, the most certain first: linerate's own connections open with
//! a magic number that no other protocol sends, while plain payload can look like anything.

use crate::{chargen, control, discard, echo, iperf2, iperf3, nuttcp, plain, sockperf, ttcp};

/// Transport that carries the bytes; the detection rules differ between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// A TCP connection: the bytes are what has arrived of it so far.
    Stream,
    /// UDP: the bytes are one complete datagram.
    Datagram,
}

/// Result of one protocol's detector for the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolMatch {
    /// The bytes belong to this protocol.
    Yes,
    /// The bytes cannot belong to this protocol, whatever follows.
    No,
    /// The bytes may belong to this protocol: repeat with more. Never returned for a datagram.
    NeedMore,
}

impl ProtocolMatch {
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
pub struct ProtocolInfo {
    /// Kebab-case name, as in options and records.
    pub name: &'static str,
    /// Detector: compares the first bytes with the protocol.
    pub detect: fn(TransportKind, &[u8]) -> ProtocolMatch,
}

/// Table of all protocols, in the order of detection.
///
/// The last four have no prefix of their own and are never detected: a port is assigned to them by
/// an option. Payload that matches no protocol is plain.
pub const PROTOCOLS: &[ProtocolInfo] = &[
    control::PROTOCOL,
    nuttcp::PROTOCOL,
    iperf3::PROTOCOL,
    iperf2::PROTOCOL,
    sockperf::PROTOCOL,
    ttcp::PROTOCOL,
    iperf2::LEGACY_PROTOCOL,
    echo::PROTOCOL,
    discard::PROTOCOL,
    chargen::PROTOCOL,
    plain::PROTOCOL,
];

/// Protocol that the first bytes belong to.
#[derive(Clone, Copy, Debug)]
pub enum Classification {
    /// A protocol of the table.
    Known(&'static ProtocolInfo),
    /// Undecided: repeat with more bytes.
    NeedMore,
    /// No protocol of the table.
    Unknown,
}

/// Classifies the first bytes with the detectors of [`PROTOCOLS`], in their order.
///
/// A detector that needs more bytes defers all later ones. A weak match therefore never wins over a
/// strong one that has not arrived completely.
#[must_use]
pub fn classify(transport: TransportKind, first_bytes: &[u8]) -> Classification {
    for protocol in PROTOCOLS {
        match (protocol.detect)(transport, first_bytes) {
            ProtocolMatch::Yes => return Classification::Known(protocol),
            ProtocolMatch::NeedMore => return Classification::NeedMore,
            ProtocolMatch::No => {}
        }
    }
    Classification::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (position, protocol) in PROTOCOLS.iter().enumerate() {
            assert!(
                PROTOCOLS[..position]
                    .iter()
                    .all(|d| d.name != protocol.name),
                "{}",
                protocol.name
            );
        }
    }

    #[test]
    fn a_datagram_never_needs_more_bytes() {
        for protocol in PROTOCOLS {
            for bytes in [&b""[..], b"\x01", b"\x01lr\xC0"] {
                assert_ne!(
                    (protocol.detect)(TransportKind::Datagram, bytes),
                    ProtocolMatch::NeedMore,
                    "{} {bytes:02x?}",
                    protocol.name
                );
            }
        }
    }
}
