//! Classification of a connection or flow by its first bytes.
//!
//! One server port serves all protocols. The first bytes of a connection, or the first datagram of
//! a flow, must therefore decide. Each protocol has a detector that reads only those bytes.
//! [`PROTOCOLS`] lists the detectors, the most certain first: linerate's own connections open with
//! a magic number that no other protocol sends, while plain payload can look like anything.

pub use crate::classification::{Classification, ProtocolInfo, ProtocolMatch, TransportKind};
use crate::{chargen, control, discard, echo, iperf2, iperf3, nuttcp, plain, sockperf, ttcp};

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
