//! First bytes of protocols that are not tests: HTTP, TLS, SSH, SMTP and port scanners.
//!
//! Clients of such services try every open port. Their first bytes could be plain payload, and a
//! server that accepts them as payload would store a record for each.

/// First bytes of a client, and the name of its protocol. Protocols whose server sends first are
/// absent: their clients send nothing.
const FIRST_BYTES: &[(&[u8], &str)] = &[
    (b"GET ", "HTTP"),
    (b"HEAD ", "HTTP"),
    (b"POST ", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"DELETE ", "HTTP"),
    (b"OPTIONS ", "HTTP"),
    (b"CONNECT ", "HTTP"),
    (b"PRI * HTTP/2", "HTTP"),
    (b"SSH-", "SSH"),
    // A TLS record of any version that contains a handshake.
    (b"\x16\x03", "TLS"),
    (b"EHLO ", "SMTP"),
    // A complete nuttcp HELO is classified before this table is used.
    (b"HELO nuttcp", "nuttcp without its version"),
    (b"HELO ", "SMTP"),
    (b"HELP\r", "a port scanner"),
    (b"\r\n\r\n", "a port scanner"),
    (b"PROXY ", "the PROXY protocol"),
    // TPKT header of a connection request.
    (b"\x03\x00\x00", "RDP"),
    (b"JRMI", "Java RMI"),
];

/// Returns the name of the protocol that the first bytes of a connection belong to, if it is none
/// of the tests.
#[must_use]
pub fn identify(first_bytes: &[u8]) -> Option<&'static str> {
    let entry = FIRST_BYTES
        .iter()
        .find(|(prefix, _)| first_bytes.starts_with(prefix));
    entry.map(|(_, name)| *name)
}

/// Returns whether a datagram is a nuttcp marker, which belongs to a test that is over or unknown.
#[must_use]
pub fn is_nuttcp_marker(datagram: &[u8]) -> bool {
    matches!(datagram, [b'B' | b'E', b'O', b'D', b'0'..=b'9'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sniff::{Classification, TransportKind, classify};

    #[test]
    fn first_bytes_of_services_are_identified() {
        for (prefix, name) in [
            (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], Some("HTTP")),
            (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", Some("SSH")),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Some("TLS")),
            (b"EHLO mail.example.com\r\n", Some("SMTP")),
            (b"HELO nuttcp\n", Some("nuttcp without its version")),
            (b"01234567890123456789", None),
            (b"GETTY", None),
            (b"\x00\x00\x00\x00", None),
            (b"", None),
        ] {
            assert_eq!(identify(prefix), name, "{prefix:?}");
        }
    }

    #[test]
    fn no_protocol_begins_like_a_service() {
        for (prefix, name) in FIRST_BYTES {
            let classification = classify(TransportKind::Stream, prefix);
            assert!(
                matches!(
                    classification,
                    Classification::Unknown | Classification::NeedMore
                ),
                "{name}: {classification:?}"
            );
        }
        // nuttcp's detector comes first.
        let classification = classify(TransportKind::Stream, b"HELO nuttcp v6.1.2\n");
        assert!(
            matches!(classification, Classification::Known(dialect) if dialect.name == "nuttcp")
        );
    }

    #[test]
    fn markers_are_distinguished_from_payload() {
        for (datagram, is_marker) in [
            (&b"EOD1"[..], true),
            (b"BOD0", true),
            (b"EODx", false),
            (b"EOD10", false),
            (b"1234", false),
        ] {
            assert_eq!(is_nuttcp_marker(datagram), is_marker, "{datagram:?}");
        }
    }
}
