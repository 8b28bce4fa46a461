//! Cost of the server's amplification guard per response to an unvalidated address: one thread
//! sends requests and responses over loopback, with the guard called as the server does, and
//! without one.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate_protocol::amplification_guard::{AmplificationGuard, GuardRules, SendCredit};

use super::stack::UDP_BURST;
use crate::error::BenchError;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Duration of one side.
const RUN_TIME: Duration = Duration::from_millis(500);
/// Size of a request and of its response, bytes.
const MESSAGE_BYTES: usize = 64;
/// Round trips between two checks of the clock.
const ROUNDS_PER_CHECK: u32 = 256;

/// Request and response.
pub const RESPONSE: BenchRow = BenchRow {
    name: "server/guard/answer_64B",
    against: "no guard, one thread over loopback",
    unit: "ns",
    mark: RatioMark::AtMost(1.02),
    measure: |_| {
        let guard = guard_with_credit();
        ns_per_response(RUN_TIME, guard)
    },
    peers: &[BenchPeer::single(|_| {
        ns_per_response(RUN_TIME, |_, _| true)
    })],
    ..UDP_BURST
};

/// Decision alone, with a flow-local credit, compared with a call of the guard per datagram.
pub const DECISION: BenchRow = BenchRow {
    name: "server/guard/decision",
    against: "the guard called for each datagram",
    unit: "ns",
    mark: RatioMark::AtMost(1.0),
    measure: |_| Ok(ns_per_decision(RUN_TIME, guard_with_credit())),
    peers: &[BenchPeer::single(|_| {
        Ok(ns_per_decision(RUN_TIME, guard_per_datagram()))
    })],
    ..UDP_BURST
};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Calls the guard as the server does: a flow has a local credit, which the guard behind its lock
/// refills.
fn guard_with_credit() -> impl FnMut(u64, u64) -> bool {
    let guard = Mutex::new(AmplificationGuard::new(GuardRules::default()));
    let mut credit = SendCredit::default();
    move |now_ns, bytes| {
        if credit.try_consume(now_ns, bytes, bytes) {
            return true;
        }
        let received_bytes = credit.take_unreported();
        let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
        let new_credit = guard.grant_credit(now_ns, PEER, received_bytes, bytes);
        new_credit.map(|new_credit| credit = new_credit).is_ok()
    }
}

/// Calls the guard for each datagram, without a local credit.
fn guard_per_datagram() -> impl FnMut(u64, u64) -> bool {
    let guard = Mutex::new(AmplificationGuard::new(GuardRules::default()));
    move |now_ns, bytes| {
        let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.add_received(now_ns, PEER, bytes);
        guard.authorize_send(now_ns, PEER, bytes).is_ok()
    }
}

/// Time per request with its response, ns; fails if a response is not permitted.
fn ns_per_response(
    time: Duration,
    mut allow: impl FnMut(u64, u64) -> bool,
) -> Result<f64, BenchError> {
    let system_error = || BenchError::system_call("send over loopback");
    let local_address = (Ipv4Addr::LOCALHOST, 0);
    let requester = UdpSocket::bind(local_address).map_err(system_error())?;
    let responder = UdpSocket::bind(local_address).map_err(system_error())?;
    let address = |socket: &UdpSocket| socket.local_addr().map_err(system_error());
    requester
        .connect(address(&responder)?)
        .map_err(system_error())?;
    responder
        .connect(address(&requester)?)
        .map_err(system_error())?;
    let mut buffer = [0; MESSAGE_BYTES];
    let (begin, mut responses) = (Instant::now(), 0_u32);
    while begin.elapsed() < time {
        for _ in 0..ROUNDS_PER_CHECK {
            requester.send(&buffer).map_err(system_error())?;
            let bytes = responder.recv(&mut buffer).map_err(system_error())?;
            // The server reads the clock for each datagram, with or without the guard.
            let now_ns = begin.elapsed().as_nanos() as u64;
            if !allow(now_ns, bytes as u64) {
                return Err(BenchError::program_failed(
                    "the guard",
                    "it rejects a permitted response",
                ));
            }
            responder.send(&buffer[..bytes]).map_err(system_error())?;
            requester.recv(&mut buffer).map_err(system_error())?;
        }
        responses += ROUNDS_PER_CHECK;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(responses.max(1)))
}

/// Time per decision, ns, at a million datagrams per second.
fn ns_per_decision(time: Duration, mut allow: impl FnMut(u64, u64) -> bool) -> f64 {
    let (begin, mut decisions, mut allowed) = (Instant::now(), 0_u64, 0_u64);
    while begin.elapsed() < time {
        for _ in 0..ROUNDS_PER_CHECK {
            decisions += 1;
            allowed += u64::from(allow(decisions * 1_000, MESSAGE_BYTES as u64));
        }
    }
    let elapsed_ns = begin.elapsed().as_nanos() as f64;
    debug_assert_eq!(std::hint::black_box(allowed), decisions);
    elapsed_ns / decisions.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permitted_requests_are_timed() {
        let time = Duration::from_millis(20);
        for ns in [
            ns_per_response(time, guard_with_credit()).unwrap(),
            ns_per_response(time, |_, _| true).unwrap(),
            ns_per_decision(time, guard_with_credit()),
            ns_per_decision(time, guard_per_datagram()),
        ] {
            assert!(ns.is_finite() && ns > 0.0, "{ns}");
        }
        assert!(ns_per_response(time, |_, _| false).is_err());
    }
}
