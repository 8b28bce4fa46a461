//! Probes that `--peer auto` sends, and the check that distinguishes them from payload on a port
//! that accepts anything.

use linerate_protocol::control::{ControlCodec, Hello};
use linerate_protocol::iperf2::{Iperf2Settings, Iperf2TcpClient, TestAmount};
use linerate_protocol::iperf3::Cookie;
use linerate_protocol::sockperf::{HEADER_BYTES, SockperfHeader};

/// Agent name in the probe for our own server. No server has this name, so an unchanged copy means
/// echo.
const AGENT: &str = "linerate --peer auto";

/// Payload of the echo probe, and the tail of the iperf2 UDP probe.
pub const ECHO_PROBE: &[u8] = b"linerate?";

/// nuttcp greeting with a version that no server has: a server with the same one would look like
/// echo.
pub const NUTTCP_PROBE: &[u8] = b"HELO nuttcp v6.1.99\n";

/// Smallest request of sockperf.
pub const SOCKPERF_PROBE: SockperfHeader = SockperfHeader::request(1, HEADER_BYTES as u32);

/// Attempts to get a first response from a responder. Each probe has its own number: a reply shows
/// which probe it belongs to, and a late one differs from the response to a request.
pub const RESPONDER_PROBES: u8 = 5;

/// Returns the probe of an attempt at an echo server.
#[must_use]
pub fn echo_probe(attempt: u8) -> Vec<u8> {
    [ECHO_PROBE, &[b'0' + attempt]].concat()
}

/// Returns the probe of an attempt at a sockperf server: no test has so many requests.
#[must_use]
pub const fn sockperf_probe(attempt: u8) -> SockperfHeader {
    SockperfHeader::request((u32::MAX - attempt as u32) as u64, HEADER_BYTES as u32)
}

/// Returns whether a datagram is the reply of an echo server to a probe.
#[must_use]
pub fn is_echo_reply(payload: &[u8]) -> bool {
    let attempt = payload.strip_prefix(ECHO_PROBE);
    attempt.is_some_and(|attempt| attempt.len() <= 1 && attempt.iter().all(u8::is_ascii_digit))
}

/// Returns whether a datagram is the reply of a sockperf server to a numbered probe.
#[must_use]
pub fn is_sockperf_reply(payload: &[u8]) -> bool {
    let header = SockperfHeader::read(payload).filter(|_| payload.len() == HEADER_BYTES);
    header.is_some_and(|header| {
        (0..RESPONDER_PROBES).any(|attempt| header == sockperf_probe(attempt).to_reply())
    })
}

/// Prefix of the cookies that probes for iperf3 send.
const COOKIE_PREFIX: &[u8; 8] = b"linerate";

/// Payload bytes of the iperf2 UDP probe: reports of old servers are as long as the datagram they
/// reply to.
pub const IPERF2_UDP_PROBE_BYTES: usize = 128;

/// Returns the probe for our own server.
pub fn linerate() -> Vec<u8> {
    match ControlCodec::client(Hello::new(AGENT)) {
        Ok(connection) => connection.outgoing().to_vec(),
        Err(_) => Vec::new(),
    }
}

/// Returns the probe for iperf3.
pub fn iperf3() -> Vec<u8> {
    let random = std::array::from_fn(|at| match COOKIE_PREFIX.get(at) {
        Some(letter) => letter - b'a',
        None => fastrand::u8(..),
    });
    Cookie::new(random).to_wire().to_vec()
}

/// Returns the probe for iperf2 over TCP.
pub fn iperf2() -> Vec<u8> {
    let settings = Iperf2Settings {
        amount: Some(TestAmount::Bytes(1)),
        ..Iperf2Settings::client(5001)
    };
    Iperf2TcpClient::new(settings).map_or_else(|_| Vec::new(), |client| client.header().to_vec())
}

/// Returns whether a datagram, or all that a connection has sent, is one of these probes.
#[must_use]
pub fn is_probe(bytes: &[u8]) -> bool {
    let agent = AGENT.as_bytes();
    is_echo_reply(bytes)
        || bytes == NUTTCP_PROBE
        || bytes == SOCKPERF_PROBE.to_bytes()
        || (bytes.starts_with(COOKIE_PREFIX) && Cookie::read(bytes).is_some())
        || (bytes.len() == IPERF2_UDP_PROBE_BYTES && bytes.ends_with(ECHO_PROBE))
        || (bytes.len() <= 4 * IPERF2_UDP_PROBE_BYTES
            && bytes.windows(agent.len()).any(|part| part == agent))
        || bytes == iperf2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_to_a_probe_names_its_attempt() {
        for attempt in 0..RESPONDER_PROBES {
            let echo = echo_probe(attempt);
            assert!(is_echo_reply(&echo) && is_probe(&echo));
            let reply = sockperf_probe(attempt).to_reply().to_bytes();
            assert!(is_sockperf_reply(&reply));
            assert_ne!(sockperf_probe(attempt), SOCKPERF_PROBE);
        }
        assert_ne!(echo_probe(0), echo_probe(1));
        for payload in [
            &b"linerate"[..],
            b"linerate? ",
            b"linerate?00",
            b"linerate!0",
        ] {
            assert!(!is_echo_reply(payload), "{payload:?}");
        }
        for number in [1, 2, u64::from(u32::MAX) - u64::from(RESPONDER_PROBES)] {
            let reply = SockperfHeader::request(number, HEADER_BYTES as u32).to_reply();
            assert!(!is_sockperf_reply(&reply.to_bytes()), "{number}");
        }
    }

    #[test]
    fn probes_are_distinguished_from_payload() {
        for probe in [linerate(), iperf3(), iperf2()] {
            assert!(is_probe(&probe), "{probe:?}");
            let mut more = probe.clone();
            more.extend([b'x'; 1_000]);
            assert!(!is_probe(&more), "{probe:?}");
        }
        assert!(
            is_probe(ECHO_PROBE) && is_probe(NUTTCP_PROBE) && is_probe(&SOCKPERF_PROBE.to_bytes())
        );
        for payload in [&b""[..], b"linerate", b"HELO nuttcp v6.1.2\n", &[0; 128]] {
            assert!(!is_probe(payload), "{payload:?}");
        }
    }
}
