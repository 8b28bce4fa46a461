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
pub(crate) mod limits;
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
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub use answering::Answers;
pub use hall::{FlowKey, Hall, Stranger, Wanted};
pub use iperf2::{Back as Iperf2Back, Bounce, Flow as Iperf2Flow};
pub use lane::{Datagrams as TakesDatagrams, Take as Took};
pub use payload::Ring;
pub use refusals::Refused;

use linerate_dialect::sniff::{Carrier, Speaker as Told, speaker};
use linerate_host::sys::clock::Nanos;
use socket2::{Domain, Socket};

use crate::error::MeasureError;
use crate::peers::probes::is_probe;
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
    /// Who gets no such flow; anybody does where there is none.
    pub turns_away: Option<TurnsAway>,
}

/// Whether somebody who sends this first datagram is turned away, which is told: what is opened for a flow is
/// only opened for one that is served.
pub type TurnsAway = fn(&Hall, SocketAddr, &[u8]) -> bool;

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

impl Caller {
    /// Tells that its connection came to no test; what a server that ends gave up itself is not told.
    fn fruitless(&self, dialect: &'static str, how: &str) {
        if !self.house.stop.load(Relaxed) {
            self.house.hall.refuse_fruitless(dialect, self.peer, how);
        }
    }
}

/// What ended a conversation, without who it was with.
fn how(error: &MeasureError) -> String {
    match error {
        MeasureError::Vanished { how, .. } => how.clone(),
        error => {
            let problem = error.problem();
            format!("{}: {}", problem.situation, problem.next_step)
        }
    }
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

/// Dialects whose first bytes are nobody else's: the others take whatever comes.
const CERTAIN: [&str; 5] = [
    linerate_dialect::control::DIALECT.name,
    linerate_dialect::nuttcp::DIALECT.name,
    linerate_dialect::iperf3::DIALECT.name,
    linerate_dialect::iperf2::DIALECT.name,
    linerate_dialect::sockperf::DIALECT.name,
];

/// Which dialect somebody speaks at a port that was given to another one: what is certainly not for it is
/// no test of it, and would only seem one.
#[must_use]
pub fn misplaced(forced: &Speaker, carrier: Carrier, first: &[u8]) -> Told {
    if !CERTAIN.contains(&forced.name) {
        return Told::Unknown;
    }
    match speaker(carrier, first) {
        Told::Known(other) if other.name == forced.name || !CERTAIN.contains(&other.name) => {
            Told::Unknown
        }
        told => told,
    }
}

/// Whether what came to a port that was given to this dialect only asks what is spoken there: of one that takes
/// whatever comes, it would be a test of some bytes.
#[must_use]
pub fn only_asks(forced: &Speaker, first: &[u8]) -> bool {
    const TAKES_ALL: [&str; 3] = [
        linerate_dialect::plain::DIALECT.name,
        linerate_dialect::discard::DIALECT.name,
        linerate_dialect::ttcp::DIALECT.name,
    ];
    TAKES_ALL.contains(&forced.name) && is_probe(first)
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
    fn a_port_of_one_dialect_takes_none_that_is_certainly_another() {
        let cookie = b"abcdefghijklmnopqrstuvwxyz234567abcd\0";
        let misplaced = |forced: &str, first: &[u8]| match misplaced(
            speaker_named(forced).unwrap(),
            Carrier::Stream,
            first,
        ) {
            Told::Known(dialect) => dialect.name,
            Told::NeedMore => "more",
            Told::Unknown => "",
        };
        for (forced, first, want) in [
            ("iperf2", &cookie[..], "iperf3"),
            ("iperf2", &cookie[..10], "more"),
            ("iperf2", b"HELO nuttcp v6.1.2\n", "nuttcp"),
            ("iperf3", cookie, ""),
            ("iperf3", b"HELO nuttcp v6.1.2\n", "nuttcp"),
            // An old client, and one that says nothing of itself.
            ("iperf2", b"0123456789012345678901234567890123456789", ""),
            ("iperf2", &[7; 64], ""),
            // These take everything.
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
