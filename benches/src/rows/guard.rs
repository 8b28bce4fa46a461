//! Cost of the server's amplification guard per response to an unvalidated address: one thread
//! sends requests and
//! responses over loopback, with the guard called as the server does, and without one.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate_dialect::amplification_guard::{Guard, Leave, Rules};

use super::stack::UDP_BURST;
use crate::error::Trouble;
use crate::row::{Mark, Peer, Row};

/// Duration of one side.
const TIME: Duration = Duration::from_millis(500);
/// Size of a request and of its response, bytes.
const BYTES: usize = 64;
/// Round trips between two checks of the clock.
const ROUND: u32 = 256;

/// Request and response.
pub const ANSWER: Row = Row {
    name: "server/guard/answer_64B",
    against: "no guard, one thread over loopback",
    unit: "ns",
    mark: Mark::AtMost(1.02),
    ours: |_| {
        let guard = asked_once_in_a_while();
        per_answer(TIME, guard)
    },
    theirs: &[Peer::only(|_| per_answer(TIME, |_, _| true))],
    ..UDP_BURST
};

/// Decision alone, with a flow-local credit, compared with a call of the guard per datagram.
pub const DECISION: Row = Row {
    name: "server/guard/decision",
    against: "the guard called for each datagram",
    unit: "ns",
    mark: Mark::AtMost(1.0),
    ours: |_| Ok(per_decision(TIME, asked_once_in_a_while())),
    theirs: &[Peer::only(|_| Ok(per_decision(TIME, asked_each_time())))],
    ..UDP_BURST
};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Calls the guard as the server does: a flow has a local credit, which the guard behind its lock
/// refills.
fn asked_once_in_a_while() -> impl FnMut(u64, u64) -> bool {
    let guard = Mutex::new(Guard::new(Rules::default()));
    let mut leave = Leave::default();
    move |now_ns, bytes| {
        if leave.take(now_ns, bytes, bytes) {
            return true;
        }
        let came = leave.untold();
        let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
        let more = guard.leave(now_ns, PEER, came, bytes);
        more.map(|more| leave = more).is_ok()
    }
}

/// Calls the guard for each datagram, without a local credit.
fn asked_each_time() -> impl FnMut(u64, u64) -> bool {
    let guard = Mutex::new(Guard::new(Rules::default()));
    move |now_ns, bytes| {
        let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.received(now_ns, PEER, bytes);
        guard.send(now_ns, PEER, bytes).is_ok()
    }
}

/// Time per request with its response, ns; fails if a response is not permitted.
fn per_answer(time: Duration, mut allow: impl FnMut(u64, u64) -> bool) -> Result<f64, Trouble> {
    let broken = || Trouble::system("send over loopback");
    let own = (Ipv4Addr::LOCALHOST, 0);
    let asks = UdpSocket::bind(own).map_err(broken())?;
    let answers = UdpSocket::bind(own).map_err(broken())?;
    let address = |socket: &UdpSocket| socket.local_addr().map_err(broken());
    asks.connect(address(&answers)?).map_err(broken())?;
    answers.connect(address(&asks)?).map_err(broken())?;
    let mut room = [0; BYTES];
    let (begin, mut answered) = (Instant::now(), 0_u32);
    while begin.elapsed() < time {
        for _ in 0..ROUND {
            asks.send(&room).map_err(broken())?;
            let bytes = answers.recv(&mut room).map_err(broken())?;
            // The server reads the clock for each datagram, with or without the guard.
            let now_ns = begin.elapsed().as_nanos() as u64;
            if !allow(now_ns, bytes as u64) {
                return Err(Trouble::program(
                    "the guard",
                    "it rejects a permitted response",
                ));
            }
            answers.send(&room[..bytes]).map_err(broken())?;
            asks.recv(&mut room).map_err(broken())?;
        }
        answered += ROUND;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(answered.max(1)))
}

/// Time per decision, ns, at a million datagrams per second.
fn per_decision(time: Duration, mut allow: impl FnMut(u64, u64) -> bool) -> f64 {
    let (begin, mut decided, mut allowed) = (Instant::now(), 0_u64, 0_u64);
    while begin.elapsed() < time {
        for _ in 0..ROUND {
            decided += 1;
            allowed += u64::from(allow(decided * 1_000, BYTES as u64));
        }
    }
    let spent = begin.elapsed().as_nanos() as f64;
    debug_assert_eq!(std::hint::black_box(allowed), decided);
    spent / decided.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn honest_questions_are_answered_and_timed() {
        let time = Duration::from_millis(20);
        for ns in [
            per_answer(time, asked_once_in_a_while()).unwrap(),
            per_answer(time, |_, _| true).unwrap(),
            per_decision(time, asked_once_in_a_while()),
            per_decision(time, asked_each_time()),
        ] {
            assert!(ns.is_finite() && ns > 0.0, "{ns}");
        }
        assert!(per_answer(time, |_, _| false).is_err());
    }
}
