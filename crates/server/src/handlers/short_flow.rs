//! First payload of a flow: the minimum that makes a test, and the datagrams that show its protocol.
//!
//! Any host can send anything to an open port: a scanner, a browser, a stray datagram. A rate needs
//! more than that, and a record of it would be noise. So payload of no recognised protocol becomes
//! a test only above a minimum. A port that belongs to plain payload accepts everything.

use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;

use linerate_protocol::iperf2::detect_legacy_flow;
use linerate_protocol::sniff::ProtocolMatch;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::{Readiness, poll};
use linerate_sys::socket::MessageFlags;
use linerate_sys::{clock, socket};
use linerate_workload::flow_counters::PayloadTotals;

use super::worker::{FlowWorkerResult, POLL_INTERVAL, is_retryable};
use super::{AcceptedClient, ProtocolHandler, iperf2, plain};
use crate::interop_state::IncomingFlow;

/// Receive buffer: the largest datagram.
const MAX_DATAGRAM_BYTES: usize = 1 << 16;

/// Bytes of a connection that make a test: more than the first message of any other service's
/// client.
const MIN_STREAM_BYTES: u64 = 4_096;

/// Receives the start of a connection until it is enough for a test. Returns `None` if it stays too
/// short, which is logged.
pub fn receive_minimum(client: &AcceptedClient, stream: &TcpStream) -> Option<FlowWorkerResult> {
    let mut result = FlowWorkerResult::started_at(client.arrived_ns);
    if client.unvalidated_permit.is_none() || client.dedicated_port {
        return Some(result);
    }
    stream.set_read_timeout(Some(POLL_INTERVAL)).ok()?;
    let start_ns = clock::now();
    let mut buffer = vec![0; MIN_STREAM_BYTES as usize];
    let timeout_ns = client.timeouts().request.as_nanos() as u64;
    let in_time = || clock::now().saturating_sub(start_ns) < timeout_ns;
    while in_time() && !client.server.stop.load(Relaxed) {
        match socket::receive(stream, &mut buffer, MessageFlags::NONE) {
            Ok(0) => break,
            Ok(bytes) => {
                let now = clock::now();
                let first = result.payload_times.map_or(now, |(first, _)| first);
                result.payload_times = Some((first, now));
                result.totals += PayloadTotals {
                    bytes: bytes as u64,
                    calls: 1,
                    ..PayloadTotals::default()
                };
                if result.totals.bytes >= MIN_STREAM_BYTES {
                    return Some(result);
                }
            }
            Err(error) if is_retryable(&error) => {}
            Err(_) => break,
        }
    }
    let description = format!("{} B of no recognised protocol", result.totals.bytes);
    client
        .server
        .interop
        .log_short_flow(client.peer, &description);
    None
}

/// Datagrams of which at least two differ in their number, if they are iperf2's.
const MAX_DECIDING_DATAGRAMS: usize = 4;

/// Time for these datagrams. Without a second one, the first one decides.
const DECIDING_TIMEOUT_NS: Nanos = 2_000_000_000;

/// Returns the handler of a flow of datagrams that one datagram does not identify: plain payload
/// and iperf2 without a header. Receives further datagrams for it.
pub fn identify(
    first: &'static ProtocolHandler,
    client: &AcceptedClient,
    incoming: &mut IncomingFlow,
) -> &'static ProtocolHandler {
    let handlers = [&plain::HANDLER, &iperf2::LEGACY_HANDLER];
    let is_served = client.server.interop.serves(iperf2::LEGACY_HANDLER.name);
    if client.dedicated_port || !is_served || !handlers.iter().any(|it| it.name == first.name) {
        return first;
    }
    let until = client.arrived_ns.saturating_add(DECIDING_TIMEOUT_NS);
    let mut buffer = Vec::new();
    loop {
        let early = incoming.early_datagrams.iter();
        match detect_legacy_flow(early.map(|(_, datagram)| &**datagram)) {
            ProtocolMatch::Yes => return &iperf2::LEGACY_HANDLER,
            ProtocolMatch::No => return &plain::HANDLER,
            ProtocolMatch::NeedMore => {}
        }
        if incoming.early_datagrams.len() >= MAX_DECIDING_DATAGRAMS {
            return &plain::HANDLER;
        }
        if clock::now() >= until || client.server.stop.load(Relaxed) {
            return first;
        }
        if poll(&incoming.socket, Readiness::Receive, POLL_INTERVAL).is_ok_and(|ready| ready) {
            buffer.resize(MAX_DATAGRAM_BYTES, 0);
            // An ICMP error of an earlier reply is no datagram.
            if let Ok(bytes) = socket::receive(&incoming.socket, &mut buffer, MessageFlags::NONE) {
                let datagram = (clock::now(), buffer[..bytes].into());
                incoming.early_datagrams.push(datagram);
            }
        }
    }
}

/// Returns whether a flow of datagrams of an unvalidated client is a test.
pub fn is_test_flow(client: &AcceptedClient, incoming: &IncomingFlow, timeout: Nanos) -> bool {
    client.unvalidated_permit.is_none() || has_second_datagram(client, incoming, timeout)
}

/// Returns whether another datagram of a flow arrives within `timeout`. A single datagram has no
/// rate and may be forged, even from a validated address. A flow that is too short is logged.
pub fn has_second_datagram(
    client: &AcceptedClient,
    incoming: &IncomingFlow,
    timeout: Nanos,
) -> bool {
    if client.dedicated_port || incoming.early_datagrams.len() > 1 {
        return true;
    }
    let until = client.arrived_ns.saturating_add(timeout);
    while clock::now() < until && !client.server.stop.load(Relaxed) {
        if poll(&incoming.socket, Readiness::Receive, POLL_INTERVAL).is_ok_and(|ready| ready) {
            return true;
        }
    }
    let description = format!("one datagram of {} B", incoming.largest_datagram_bytes());
    client
        .server
        .interop
        .log_short_flow(client.peer, &description);
    false
}
