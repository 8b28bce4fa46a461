//! What `--peer auto` asks with, and how a port that takes everything tells it from payload.

use linerate_dialect::control::{Connection, Hello};
use linerate_dialect::iperf2::{Amount, Settings, TcpClient};
use linerate_dialect::iperf3::Cookie;
use linerate_dialect::sockperf::{HEADER_BYTES, Header};

/// How whoever asks calls himself. No server calls itself so: what comes back unchanged is echo.
const AGENT: &str = "linerate --peer auto";

/// What echo is asked with, and the end of the datagrams that iperf2 is.
pub const MARK: &[u8] = b"linerate?";

/// A version that no server has: one that said the same would be taken for echo.
pub const NUTTCP: &[u8] = b"HELO nuttcp v6.1.99\n";

/// The smallest of sockperf's questions.
pub const SOCKPERF: Header = Header::question(1, HEADER_BYTES as u32);

/// What cookies of probes begin with.
const COOKIE: &[u8; 8] = b"linerate";

/// Payload of the datagrams that iperf2 is asked with: old servers' reports are as long as what they answer.
pub const END_BYTES: usize = 128;

/// For our own server.
pub fn own() -> Vec<u8> {
    match Connection::client(Hello::new(AGENT)) {
        Ok(connection) => connection.outgoing().to_vec(),
        Err(_) => Vec::new(),
    }
}

/// For iperf3.
pub fn iperf3() -> Vec<u8> {
    let random = std::array::from_fn(|at| match COOKIE.get(at) {
        Some(letter) => letter - b'a',
        None => fastrand::u8(..),
    });
    Cookie::new(random).to_wire().to_vec()
}

/// For iperf2.
pub fn iperf2() -> Vec<u8> {
    let settings = Settings {
        amount: Some(Amount::Bytes(1)),
        ..Settings::client(5001)
    };
    TcpClient::new(settings).map_or_else(|_| Vec::new(), |client| client.header().to_vec())
}

/// Whether a connection that says no more than this, or a datagram, is such a question and no payload.
#[must_use]
pub fn is_probe(bytes: &[u8]) -> bool {
    let agent = AGENT.as_bytes();
    bytes == MARK
        || bytes == NUTTCP
        || bytes == SOCKPERF.bytes()
        || (bytes.starts_with(COOKIE) && Cookie::read(bytes).is_some())
        || (bytes.len() == END_BYTES && bytes.ends_with(MARK))
        || (bytes.len() <= 4 * END_BYTES && bytes.windows(agent.len()).any(|part| part == agent))
        || bytes == iperf2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_told_from_payload() {
        for question in [own(), iperf3(), iperf2()] {
            assert!(is_probe(&question), "{question:?}");
            let mut more = question.clone();
            more.extend([b'x'; 1_000]);
            assert!(!is_probe(&more), "{question:?}");
        }
        assert!(is_probe(MARK) && is_probe(NUTTCP) && is_probe(&SOCKPERF.bytes()));
        for payload in [&b""[..], b"linerate", b"HELO nuttcp v6.1.2\n", &[0; 128]] {
            assert!(!is_probe(payload), "{payload:?}");
        }
    }
}
