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
    bytes == ECHO_PROBE
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
