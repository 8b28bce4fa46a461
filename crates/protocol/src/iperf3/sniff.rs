//! Detection of iperf3: a cookie (TCP), or the datagram that opens a flow (UDP).

use super::cookie::{CHARACTERS, is_cookie_byte};
use super::udp::UdpHello;
use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// Entry of iperf3 in the protocol table.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "iperf3",
    detect,
};

fn detect(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    match transport {
        TransportKind::Stream => detect_stream(bytes),
        TransportKind::Datagram if UdpHello::read(bytes).is_some() => ProtocolMatch::Yes,
        TransportKind::Datagram => ProtocolMatch::No,
    }
}

/// Detects a cookie. An upstream server accepts any 37 bytes. On a port for all protocols only the
/// format of upstream clients counts: characters of a host name, and a NUL, which text never has.
fn detect_stream(bytes: &[u8]) -> ProtocolMatch {
    let characters = &bytes[..bytes.len().min(CHARACTERS)];
    if !characters.iter().all(|&byte| is_cookie_byte(byte)) {
        return ProtocolMatch::No;
    }
    match bytes.get(CHARACTERS) {
        None => ProtocolMatch::NeedMore,
        Some(0) => ProtocolMatch::Yes,
        Some(_) => ProtocolMatch::No,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::cookie::Cookie;
    use super::*;

    #[test]
    fn cookies_of_all_versions_are_detected() {
        for (bytes, version) in [
            (&b"ydm5fwt4x4y5xyepdgnbnbd2a26uucdaknbs\0"[..], "3.12"),
            (b"laptop.1400000000.123456.3c5e21f9aab\0", "3.0"),
        ] {
            assert_eq!(detect_stream(bytes), ProtocolMatch::Yes, "{version}");
            for length in 0..37 {
                assert_eq!(
                    detect_stream(&bytes[..length]),
                    ProtocolMatch::NeedMore,
                    "{version}"
                );
            }
        }
    }

    #[test]
    fn other_bytes_are_not_detected() {
        for bytes in [
            &b"HELO nuttcp v6.1.2\n"[..],
            b"GET / HTTP/1.1\r\n",
            b"012345678901234567890123456789012345678901",
            b"ydm5fwt4x4y5xyepdgnbnbd2a26uucdaknbs\n",
            b"\0",
            b"ydm\0",
        ] {
            assert_eq!(detect_stream(bytes), ProtocolMatch::No);
        }
    }

    proptest! {
        #[test]
        fn cookies_are_detected_as_written(random in prop::collection::vec(any::<u8>(), 36)) {
            let cookie = Cookie::new(random.try_into().unwrap());
            prop_assert_eq!(detect_stream(&cookie.to_wire()), ProtocolMatch::Yes);
        }
    }
}
