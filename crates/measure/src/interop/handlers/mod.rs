//! Server side of other tools' protocols.
//!
//! The acceptor classifies a client by its first bytes and hands the connection or flow to the
//! [`Speaker`] of that protocol. Each test has a thread that keeps its time and emits its events
//! ([`test`]), and workers that move its payload ([`lane`]). State shared by all tests is in
//! [`Hall`].
//!
//! A new protocol is one file and one line in [`SPEAKERS`].

mod interop_state;
pub(crate) mod limits;
mod payload;
mod rejection_log;
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

pub use interop_state::{FlowKey, Hall, Stranger, Wanted};
pub use iperf2::{Back as Iperf2Back, Bounce, Flow as Iperf2Flow};
pub use payload::Ring;
pub use rejection_log::Refused;
pub use responder_loop::Answers;
pub use worker::{Datagrams as TakesDatagrams, Take as Took};

use linerate_dialect::sniff::{Carrier, Speaker as Classification, speaker};
use linerate_host::sys::clock::Nanos;
use socket2::{Domain, Socket};

use crate::error::MeasureError;
use crate::interop::probes::is_probe;
use crate::session::server_state::{Claim, House, Seat};
use crate::session::udp_demux::Arrived;

/// Time a client may leave no space for a control message.
const SAYING_PATIENCE: Option<Duration> = Some(Duration::from_secs(1));

/// Handlers of all third-party protocols of the server.
pub const SPEAKERS: &[&Speaker] = &[
    &iperf3::SPEAKER,
    &iperf2::SPEAKER,
    &iperf2::LEGACY_SPEAKER,
    &nuttcp::SPEAKER,
    &ttcp::SPEAKER,
    &sockperf::SPEAKER,
    &echo::SPEAKER,
    &discard::SPEAKER,
    &chargen::SPEAKER,
    &plain::SPEAKER,
];

/// Server side of one protocol.
pub struct Speaker {
    /// Name as in [`linerate_dialect::sniff::DIALECTS`].
    pub name: &'static str,
    /// Well-known port on which no other protocol is looked for.
    pub port: Option<u16>,
    /// True if the server sends before its client does.
    pub speaks_first: bool,
    /// Handler of a connection.
    pub stream: Option<OnStream>,
    /// Derives the expected flow that a connection may be from its first bytes.
    pub flow_of: Option<FlowOf>,
    /// Handler of a flow of datagrams that no running test expects.
    pub datagrams: Option<fn(Caller, Claim, Arrived)>,
    /// Rejects flows; `None` accepts all.
    pub turns_away: Option<TurnsAway>,
}

/// Returns whether a flow with this first datagram is rejected, which is logged. No socket is
/// opened for a rejected flow.
pub type TurnsAway = fn(&Hall, SocketAddr, &[u8]) -> bool;

/// Returns the expected flow that a connection with these first bytes may be.
pub type FlowOf = fn(&[u8]) -> Option<Wanted>;

/// Handler of a connection, by what the connection is used for.
#[derive(Clone, Copy)]
pub enum OnStream {
    /// Control connection; a test may follow.
    Talk(fn(Caller, Seat, TcpStream)),
    /// Connection that carries the test itself.
    Test(fn(Caller, Claim, TcpStream)),
}

/// Accepted connection or flow of another tool's client.
pub struct Caller {
    pub house: Arc<House>,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Local address that the client sent to.
    pub local: SocketAddr,
    /// Port that the client sent to.
    pub door: u16,
    /// Arrival time of the first bytes. The threads of its test start later.
    pub came_ns: Nanos,
    /// Permit of an unvalidated or unidentified client.
    pub stranger: Option<Stranger>,
    /// True if the port belongs to this protocol alone (`--also PORT=NAME`) and accepts any bytes.
    pub given: bool,
}

impl Caller {
    /// Logs a connection on which no test started. Connections that a stopping server drops are not
    /// logged.
    fn fruitless(&self, dialect: &'static str, how: &str) {
        if !self.house.stop.load(Relaxed) {
            self.house.hall.refuse_fruitless(dialect, self.peer, how);
        }
    }
}

/// Returns the reason that ended a control connection, without the peer's address.
fn how(error: &MeasureError) -> String {
    match error {
        MeasureError::Vanished { how, .. } => how.clone(),
        error => {
            let problem = error.problem();
            format!("{}: {}", problem.situation, problem.next_step)
        }
    }
}

/// Returns the handler of a protocol name.
#[must_use]
pub fn speaker_named(name: &str) -> Option<&'static Speaker> {
    SPEAKERS
        .iter()
        .copied()
        .find(|speaker| speaker.name == name)
}

/// Returns the names of all third-party protocols of the server.
#[must_use]
pub fn dialects() -> Vec<&'static str> {
    SPEAKERS.iter().map(|speaker| speaker.name).collect()
}

/// Protocols with unmistakable first bytes; the others accept anything.
const CERTAIN: [&str; 5] = [
    linerate_dialect::control::DIALECT.name,
    linerate_dialect::nuttcp::DIALECT.name,
    linerate_dialect::iperf3::DIALECT.name,
    linerate_dialect::iperf2::DIALECT.name,
    linerate_dialect::sockperf::DIALECT.name,
];

/// Classifies the first bytes on a port that belongs to `forced`. Bytes that are certainly another
/// protocol's would give a meaningless test.
#[must_use]
pub fn misplaced(forced: &Speaker, carrier: Carrier, first: &[u8]) -> Classification {
    if !CERTAIN.contains(&forced.name) {
        return Classification::Unknown;
    }
    match speaker(carrier, first) {
        Classification::Known(other)
            if other.name == forced.name || !CERTAIN.contains(&other.name) =>
        {
            Classification::Unknown
        }
        told => told,
    }
}

/// Returns whether the first bytes on a port of `forced` are only a `--peer auto` probe. A protocol
/// that accepts anything would count a probe as a test of some bytes.
#[must_use]
pub fn only_asks(forced: &Speaker, first: &[u8]) -> bool {
    const TAKES_ALL: [&str; 3] = [
        linerate_dialect::plain::DIALECT.name,
        linerate_dialect::discard::DIALECT.name,
        linerate_dialect::ttcp::DIALECT.name,
    ];
    TAKES_ALL.contains(&forced.name) && is_probe(first)
}

/// Returns the handler that owns a well-known port.
#[must_use]
pub fn speaker_of_port(port: u16) -> Option<&'static Speaker> {
    let owns = |speaker: &&Speaker| speaker.port == Some(port);
    SPEAKERS.iter().copied().find(owns)
}

/// Returns the handler of payload that no other protocol recognises.
#[must_use]
pub fn plain() -> &'static Speaker {
    &plain::SPEAKER
}

/// Returns `address` with another port; an IPv6 scope id stays.
fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Writes pending bytes to a control connection and returns how many were written. A client that
/// does not read is detected by its own traffic.
fn say(mut control: &TcpStream, words: &[u8]) -> usize {
    let mut said = 0;
    if control.set_write_timeout(SAYING_PATIENCE).is_ok() {
        while said < words.len() {
            match control.write(&words[said..]) {
                Ok(bytes) if bytes > 0 => said += bytes,
                _ => break,
            }
        }
    }
    said
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
    use linerate_dialect::sniff::DIALECTS;

    use super::*;

    #[test]
    fn a_port_of_one_dialect_takes_none_that_is_certainly_another() {
        let cookie = b"abcdefghijklmnopqrstuvwxyz234567abcd\0";
        let misplaced = |forced: &str, first: &[u8]| match misplaced(
            speaker_named(forced).unwrap(),
            Carrier::Stream,
            first,
        ) {
            Classification::Known(dialect) => dialect.name,
            Classification::NeedMore => "more",
            Classification::Unknown => "",
        };
        for (forced, first, want) in [
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
            assert_eq!(misplaced(forced, first), want, "{forced} {first:?}");
        }
    }

    #[test]
    fn every_dialect_but_our_own_is_served() {
        for dialect in &DIALECTS[1..] {
            assert!(speaker_named(dialect.name).is_some(), "{}", dialect.name);
        }
        for speaker in SPEAKERS {
            let known = DIALECTS.iter().any(|dialect| dialect.name == speaker.name);
            assert!(known, "{}", speaker.name);
        }
        assert_eq!(speaker_of_port(7).map(|speaker| speaker.name), Some("echo"));
        assert!(speaker_of_port(5001).is_none());
    }
}
