//! Minimum of plain payload that makes a test.
//!
//! Any host can send anything to an open port: a scanner, a browser, a stray datagram. A rate needs
//! more than that, and a record of it would be noise. So payload of no recognised protocol becomes
//! a test only above a minimum. A port that belongs to plain payload accepts everything.

use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{Ready, poll};
use linerate_host::sys::socket::{self, Flags};

use super::Caller;
use super::worker::{LOOK_UP, Moved, is_nothing};
use crate::flow_counters::Totals;
use crate::session::udp_demux::Arrived;

/// Bytes of a connection that make a test: more than the first message of any other service's
/// client.
const LEAST_BYTES: u64 = 4_096;

/// Time in which they must arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Receives the start of a connection until it is enough for a test. Returns `None` if it stays too
/// short, which is logged.
pub fn of_stream(caller: &Caller, stream: &TcpStream) -> Option<Moved> {
    let mut moved = Moved::since(caller.came_ns);
    if caller.stranger.is_none() || caller.given {
        return Some(moved);
    }
    stream.set_read_timeout(Some(LOOK_UP)).ok()?;
    let began = clock::now();
    let mut room = vec![0; LEAST_BYTES as usize];
    let patient = || clock::now().saturating_sub(began) < PATIENCE.as_nanos() as u64;
    while patient() && !caller.house.stop.load(Relaxed) {
        match socket::receive(stream, &mut room, Flags::NONE) {
            Ok(0) => break,
            Ok(bytes) => {
                let now = clock::now();
                let first = moved.span.map_or(now, |(first, _)| first);
                moved.span = Some((first, now));
                moved.totals += Totals {
                    bytes: bytes as u64,
                    calls: 1,
                    ..Totals::default()
                };
                if moved.totals.bytes >= LEAST_BYTES {
                    return Some(moved);
                }
            }
            Err(error) if is_nothing(&error) => {}
            Err(_) => break,
        }
    }
    let crumbs = format!("{} B of no recognised protocol", moved.totals.bytes);
    caller.house.hall.refuse_crumbs(caller.peer, &crumbs);
    None
}

/// Returns whether a flow of datagrams of an unvalidated client is a test.
pub fn of_flow(caller: &Caller, arrived: &Arrived, patience: Nanos) -> bool {
    caller.stranger.is_none() || goes_on(caller, arrived, patience)
}

/// Returns whether another datagram of a flow arrives within `timeout`. A single datagram has no
/// rate and may be forged, even from a validated address. A flow that is too short is logged.
pub fn goes_on(caller: &Caller, arrived: &Arrived, patience: Nanos) -> bool {
    if caller.given || arrived.early.len() > 1 {
        return true;
    }
    let until = clock::now() + patience;
    while clock::now() < until && !caller.house.stop.load(Relaxed) {
        if poll(&arrived.socket, Ready::Receive, LOOK_UP).is_ok_and(|ready| ready) {
            return true;
        }
    }
    let crumbs = format!("one datagram of {} B", arrived.largest());
    caller.house.hall.refuse_crumbs(caller.peer, &crumbs);
    false
}
