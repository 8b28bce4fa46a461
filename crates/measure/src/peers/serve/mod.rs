//! Answering programs of other kinds: what `linerate server` does beside our own dialect.
//!
//! The lobby tells from the first bytes which dialect a client speaks, and hands its connection or
//! flow to that dialect's [`Speaker`]. Each test has a thread that keeps its time and tells of it
//! ([`test`]), and threads that move its payload ([`lane`]); what all tests share is in the [`Hall`].
//!
//! A dialect is one file and one line in [`SPEAKERS`].

mod answering;
mod crumbs;
mod hall;
mod lane;
mod limits;
mod payload;
mod refusals;
mod report;
mod test;

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
use std::time::Duration;

pub use answering::Answers;
pub use hall::{FlowKey, Hall, Stranger, Wanted};
pub use iperf2::{Bounce, Flow as Iperf2Flow};
pub use lane::{Datagrams as TakesDatagrams, Take as Took};
pub use refusals::Refused;

use linerate_host::sys::clock::Nanos;
use socket2::{Domain, Socket};

use crate::session::house::{Claim, House, Seat};
use crate::session::porch::Arrived;

/// How long a client may leave no room for what is said to it.
const SAYING_PATIENCE: Option<Duration> = Some(Duration::from_secs(1));

/// Every dialect of other programs that a server speaks.
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

/// How a dialect is served.
pub struct Speaker {
    /// Its name, as [`linerate_dialect::sniff::DIALECTS`] has it.
    pub name: &'static str,
    /// The port that belongs to it and that no other dialect is looked for on.
    pub port: Option<u16>,
    /// Whether the server says something before its client does.
    pub speaks_first: bool,
    /// What is done with a connection.
    pub stream: Option<OnStream>,
    /// Which test's payload a connection carries, told by its first bytes, where one waits for it.
    pub flow_of: Option<FlowOf>,
    /// What is done with a flow of datagrams that no test waits for.
    pub datagrams: Option<fn(Caller, Claim, Arrived)>,
}

/// What a test waits for, told by the first bytes of a connection that may be it.
pub type FlowOf = fn(&[u8]) -> Option<Wanted>;

/// What a connection begins with.
#[derive(Clone, Copy)]
pub enum OnStream {
    /// A conversation; the test comes later, or never.
    Talk(fn(Caller, Seat, TcpStream)),
    /// The test itself.
    Test(fn(Caller, Claim, TcpStream)),
}

/// Who calls.
pub struct Caller {
    /// What all tests share.
    pub house: Arc<House>,
    /// The client.
    pub peer: SocketAddr,
    /// The address that it knows us by.
    pub local: SocketAddr,
    /// The port that it came to.
    pub door: u16,
    /// When its first bytes were there. Its test's threads begin later, and those bytes wait for them.
    pub came_ns: Nanos,
    /// Leave for those whom nobody knows.
    pub stranger: Option<Stranger>,
    /// Whether that port was given to the dialect, and takes whatever comes.
    pub given: bool,
}

/// The dialect of that name.
#[must_use]
pub fn speaker_named(name: &str) -> Option<&'static Speaker> {
    SPEAKERS
        .iter()
        .copied()
        .find(|speaker| speaker.name == name)
}

/// The names of all dialects that a server speaks beside our own.
#[must_use]
pub fn dialects() -> Vec<&'static str> {
    SPEAKERS.iter().map(|speaker| speaker.name).collect()
}

/// The dialect that a port belongs to.
#[must_use]
pub fn speaker_of_port(port: u16) -> Option<&'static Speaker> {
    let owns = |speaker: &&Speaker| speaker.port == Some(port);
    SPEAKERS.iter().copied().find(owns)
}

/// What everything is that is nothing else.
#[must_use]
pub fn plain() -> &'static Speaker {
    &plain::SPEAKER
}

/// Another port at the same address, on the same link where the address is of one.
fn at_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Says what waits to be said on a control connection, and how much of it was. A client that does not listen
/// is told apart by what it sends.
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

/// Marks what a socket sends, as its client wants it; what cannot be had shows on the wire alone.
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
