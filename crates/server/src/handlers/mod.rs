//! Server side of other tools' protocols.
//!
//! The acceptor classifies a client by its first bytes and hands the connection or flow to the
//! [`ProtocolHandler`] of that protocol. Each test has a thread that keeps its time and emits its
//! events ([`test_run`]), and workers that move its payload ([`worker`]). State shared by all tests
//! is in [`InteropState`](crate::interop_state).
//!
//! A new protocol is one file and one line in [`HANDLERS`].

mod payload;
mod report;
mod responder_loop;
mod short_flow;
mod test_run;
mod worker;

mod chargen;
mod discard;
mod echo;
mod iperf2;
mod iperf3;
mod nuttcp;
mod plain;
mod sockperf;
mod ttcp;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::sniff::{Classification, TransportKind, classify};
use linerate_session::error::SessionError;
use linerate_sys::clock::Nanos;
use linerate_workload::probes::is_probe;
use socket2::{Domain, Socket};

use crate::interop_state::{ExpectedFlow, IncomingFlow, InteropState, UnvalidatedPermit};
use crate::server_state::{ServerState, SessionPermit, TestReservation};
use crate::timeouts::Timeouts;
pub use iperf2::{BouncebackResponder, Iperf2Flow, Iperf2ReverseFlow, send_time_limit_s};
pub use payload::PayloadRing;
pub use responder_loop::StreamResponder;
pub use short_flow::identify;
pub use worker::{DatagramAction, DatagramFlow};

/// Time for which the send buffer of a client may stay full before its control connection ends.
const CONTROL_WRITE_TIMEOUT: Option<Duration> = Some(Duration::from_secs(1));

/// Handlers of all third-party protocols of the server.
pub const HANDLERS: &[&ProtocolHandler] = &[
    &iperf3::HANDLER,
    &iperf2::HANDLER,
    &iperf2::LEGACY_HANDLER,
    &nuttcp::HANDLER,
    &ttcp::HANDLER,
    &sockperf::HANDLER,
    &echo::HANDLER,
    &discard::HANDLER,
    &chargen::HANDLER,
    &plain::HANDLER,
];

/// Server side of one protocol.
pub struct ProtocolHandler {
    /// Name as in [`linerate_protocol::sniff::PROTOCOLS`].
    pub name: &'static str,
    /// Well-known port on which no other protocol is looked for.
    pub port: Option<u16>,
    /// True if the server sends before its client does.
    pub sends_first: bool,
    /// Handler of a connection.
    pub stream: Option<StreamHandler>,
    /// Derives the expected flow that a connection may be from its first bytes.
    pub expected_flow: Option<FlowMatcher>,
    /// Handler of a flow of datagrams that no running test expects.
    pub datagrams: Option<fn(AcceptedClient, TestReservation, IncomingFlow)>,
    /// Rejects flows; `None` accepts all.
    pub rejects_flow: Option<FlowFilter>,
}

/// Returns whether a flow with this first datagram is rejected, which is logged. No socket is
/// opened for a rejected flow.
pub type FlowFilter = fn(&InteropState, SocketAddr, &[u8]) -> bool;

/// Returns the expected flow that a connection with these first bytes may be.
pub type FlowMatcher = fn(&[u8]) -> Option<ExpectedFlow>;

/// Handler of a connection, by what the connection is used for.
#[derive(Clone, Copy)]
pub enum StreamHandler {
    /// Control connection; a test may follow.
    Control(fn(AcceptedClient, SessionPermit, TcpStream)),
    /// Connection that carries the test itself.
    Test(fn(AcceptedClient, TestReservation, TcpStream)),
}

/// Accepted connection or flow of another tool's client.
pub struct AcceptedClient {
    pub server: Arc<ServerState>,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Local address that the client sent to.
    pub local: SocketAddr,
    /// Port that the client sent to.
    pub port: u16,
    /// Arrival time of the first bytes. The threads of its test start later.
    pub arrived_ns: Nanos,
    /// Permit of an unvalidated or unidentified client.
    pub unvalidated_permit: Option<UnvalidatedPermit>,
    /// True if the port belongs to this protocol alone (`--also PORT=NAME`) and accepts any bytes.
    pub dedicated_port: bool,
}

impl AcceptedClient {
    /// Returns the silence limits of the server.
    #[must_use]
    pub fn timeouts(&self) -> &Timeouts {
        self.server.interop.timeouts()
    }

    /// Logs a connection on which no test started. Connections that a stopping server drops are not
    /// logged.
    fn log_no_test_started(&self, protocol: &'static str, reason: &str) {
        if !self.server.stop.load(Relaxed) {
            self.server
                .interop
                .log_no_test_started(protocol, self.peer, reason);
        }
    }
}

/// Returns the reason that ended a control connection, without the peer's address.
fn failure_reason(error: &SessionError) -> String {
    match error {
        SessionError::PeerLost { reason, .. } => reason.clone(),
        error => {
            let problem = error.to_report();
            format!("{}: {}", problem.situation, problem.next_step)
        }
    }
}

/// Returns the handler of a protocol name.
#[must_use]
pub fn handler_named(name: &str) -> Option<&'static ProtocolHandler> {
    HANDLERS
        .iter()
        .copied()
        .find(|handler| handler.name == name)
}

/// Returns the names of all third-party protocols of the server.
#[must_use]
pub fn handler_names() -> Vec<&'static str> {
    HANDLERS.iter().map(|handler| handler.name).collect()
}

/// Protocols with unmistakable first bytes; the others accept anything.
const UNMISTAKABLE_PROTOCOLS: [&str; 5] = [
    linerate_protocol::control::PROTOCOL.name,
    linerate_protocol::nuttcp::PROTOCOL.name,
    linerate_protocol::iperf3::PROTOCOL.name,
    linerate_protocol::iperf2::PROTOCOL.name,
    linerate_protocol::sockperf::PROTOCOL.name,
];

/// Classifies the first bytes on a port that belongs to `forced`. Bytes that are certainly another
/// protocol's would give a meaningless test.
#[must_use]
pub fn wrong_protocol_for_port(
    forced: &ProtocolHandler,
    carrier: TransportKind,
    first: &[u8],
) -> Classification {
    if !UNMISTAKABLE_PROTOCOLS.contains(&forced.name) {
        return Classification::Unknown;
    }
    match classify(carrier, first) {
        Classification::Known(other)
            if other.name == forced.name || !UNMISTAKABLE_PROTOCOLS.contains(&other.name) =>
        {
            Classification::Unknown
        }
        classification => classification,
    }
}

/// Returns whether the first bytes on a port of `forced` are only a `--peer auto` probe. A protocol
/// that accepts anything would count a probe as a test of some bytes.
#[must_use]
pub fn is_only_probe(forced: &ProtocolHandler, first: &[u8]) -> bool {
    const ACCEPT_ANYTHING: [&str; 3] = [
        linerate_protocol::plain::PROTOCOL.name,
        linerate_protocol::discard::PROTOCOL.name,
        linerate_protocol::ttcp::PROTOCOL.name,
    ];
    ACCEPT_ANYTHING.contains(&forced.name) && is_probe(first)
}

/// Returns the handler that owns a well-known port.
#[must_use]
pub fn handler_of_port(port: u16) -> Option<&'static ProtocolHandler> {
    let owns = |handler: &&ProtocolHandler| handler.port == Some(port);
    HANDLERS.iter().copied().find(owns)
}

/// Returns the handler of payload that no other protocol recognises.
#[must_use]
pub fn plain_handler() -> &'static ProtocolHandler {
    &plain::HANDLER
}

/// Writes pending bytes to a control connection and returns how many were written. A client that
/// does not read is detected by its own traffic.
fn write_control(mut control: &TcpStream, message: &[u8]) -> usize {
    let mut sent = 0;
    if control.set_write_timeout(CONTROL_WRITE_TIMEOUT).is_ok() {
        while sent < message.len() {
            match control.write(&message[sent..]) {
                Ok(bytes) if bytes > 0 => sent += bytes,
                _ => break,
            }
        }
    }
    sent
}

/// Sets the TOS byte that the client requested; a failure is visible on the wire only.
fn set_tos(socket: &Socket, tos: u8) {
    let tos = u32::from(tos);
    if socket.domain().is_ok_and(|domain| domain == Domain::IPV6) {
        let _ = socket.set_tclass_v6(tos);
    }
    // An IPv6 socket may have an IPv4 peer.
    let _ = socket.set_tos_v4(tos);
}

#[cfg(test)]
mod tests {
    use linerate_protocol::sniff::PROTOCOLS;

    use super::*;

    #[test]
    fn a_dedicated_port_rejects_other_protocols() {
        let cookie = b"abcdefghijklmnopqrstuvwxyz234567abcd\0";
        let classify = |forced: &str, first: &[u8]| match wrong_protocol_for_port(
            handler_named(forced).unwrap(),
            TransportKind::Stream,
            first,
        ) {
            Classification::Known(protocol) => protocol.name,
            Classification::NeedMore => "more",
            Classification::Unknown => "",
        };
        for (forced, first, expected) in [
            ("iperf2", &cookie[..], "iperf3"),
            ("iperf2", &cookie[..10], "more"),
            ("iperf2", b"HELO nuttcp v6.1.2\n", "nuttcp"),
            ("iperf3", cookie, ""),
            ("iperf3", b"HELO nuttcp v6.1.2\n", "nuttcp"),
            // A legacy client, and one without an identification.
            ("iperf2", b"0123456789012345678901234567890123456789", ""),
            ("iperf2", &[7; 64], ""),
            // These accept anything.
            ("discard", cookie, ""),
            ("plain", cookie, ""),
            ("ttcp", b"HELO nuttcp v6.1.2\n", ""),
            ("iperf2-legacy", cookie, ""),
        ] {
            assert_eq!(classify(forced, first), expected, "{forced} {first:?}");
        }
    }

    #[test]
    fn every_third_party_protocol_has_a_handler() {
        for protocol in &PROTOCOLS[1..] {
            assert!(handler_named(protocol.name).is_some(), "{}", protocol.name);
        }
        for handler in HANDLERS {
            let is_known = PROTOCOLS
                .iter()
                .any(|protocol| protocol.name == handler.name);
            assert!(is_known, "{}", handler.name);
        }
        assert_eq!(handler_of_port(7).map(|handler| handler.name), Some("echo"));
        assert!(handler_of_port(5001).is_none());
    }
}
