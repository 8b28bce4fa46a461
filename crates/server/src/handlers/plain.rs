//! Payload without a header, over TCP until its end and over UDP until a second of silence.

use std::net::TcpStream;
use std::time::Duration;

use linerate_protocol::plain::{PROTOCOL, PlainSink, SILENCE_NS};
use linerate_protocol::remote_report::RemoteReport;
use linerate_protocol::ttcp::MARKER_LIMIT_BYTES;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;

use super::test_run::{FLOW_SILENCE_TIMEOUT, PLAIN_IDLE_TIMEOUT, TestRun};
use super::worker::{
    DatagramAction, DatagramFlow, RECEIVE_BUFFER_BYTES, SequenceStats, receive_datagrams,
    receive_stream,
};
use super::{AcceptedClient, ProtocolHandler, StreamHandler, short_flow};
use crate::interop_state::IncomingFlow;
use crate::server_state::TestReservation;

/// Handler of plain payload.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: None,
    sends_first: false,
    stream: Some(StreamHandler::Test(|client, reservation, stream| {
        serve_stream(PROTOCOL.name, client, reservation, stream);
    })),
    expected_flow: None,
    datagrams: Some(|client, reservation, incoming| {
        serve_datagrams(
            PROTOCOL.name,
            client,
            reservation,
            incoming,
            PlainFlow::default(),
        );
    }),
    rejects_flow: None,
};

/// Returns the plan of a test whose client describes nothing.
pub fn plan(
    client: &AcceptedClient,
    kind: RunKind,
    protocol: TransportProtocol,
    direction: Direction,
) -> Plan {
    let mut plan = Plan::new(kind, protocol, client.local.ip().to_string());
    plan.port = client.port;
    plan.directions = vec![direction];
    plan.duration_ns = None;
    // The size of its calls is not announced.
    plan.payload_bytes = 0;
    plan.receive_bytes =
        (protocol == TransportProtocol::Tcp).then_some(RECEIVE_BUFFER_BYTES as u64);
    plan.response_timeout_ns = None;
    plan
}

/// Receives a connection that carries payload only.
pub fn serve_stream(
    protocol: &'static str,
    mut client: AcceptedClient,
    reservation: TestReservation,
    stream: TcpStream,
) {
    let Some(result) = short_flow::receive_minimum(&client, &stream) else {
        return;
    };
    let plan = plan(
        &client,
        RunKind::Throughput,
        TransportProtocol::Tcp,
        Direction::Send,
    );
    let mut test = TestRun::begin(&mut client, reservation, protocol, protocol, plan);
    let spawned = test.spawn(1, FlowRole::Receiver, stream.into(), |context, socket| {
        receive_stream(context, socket, PLAIN_IDLE_TIMEOUT, result)
    });
    test.conclude(spawned, RemoteReport::default);
}

/// Receives a flow of datagrams that carries payload only.
pub fn serve_datagrams<D: DatagramFlow + Send + 'static>(
    protocol: &'static str,
    mut client: AcceptedClient,
    reservation: TestReservation,
    incoming: IncomingFlow,
    mut flow: D,
) {
    if !short_flow::is_test_flow(&client, &incoming, SILENCE_NS) {
        return;
    }
    let mut plan = plan(
        &client,
        RunKind::Throughput,
        TransportProtocol::Udp,
        Direction::Send,
    );
    // A marker alone does not show the size of payload.
    let first = incoming.largest_datagram_bytes();
    plan.payload_bytes = if first > MARKER_LIMIT_BYTES as u64 {
        first
    } else {
        0
    };
    let test = TestRun::begin(&mut client, reservation, protocol, protocol, plan);
    let mut test = test.without_end_marker();
    test.use_payload_size();
    test.hold_open_flow(incoming.key, false);
    let early = incoming.early_datagrams;
    let spawned = test.spawn(
        1,
        FlowRole::Receiver,
        incoming.socket,
        move |context, socket| {
            receive_datagrams(context, socket, early, &mut flow, |_, _, _| false)
        },
    );
    test.conclude(spawned, RemoteReport::default);
}

/// Datagrams without a header.
#[derive(Default)]
pub struct PlainFlow(PlainSink);

impl DatagramFlow for PlainFlow {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        self.0.receive(now, datagram.len());
        DatagramAction::Payload
    }

    fn is_finished(&mut self, now: Nanos) -> bool {
        self.0.is_over(now)
    }

    fn totals(&self) -> PayloadTotals {
        let totals = self.0.totals();
        PayloadTotals {
            bytes: totals.bytes,
            packets: totals.packets,
            ..PayloadTotals::default()
        }
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        None
    }
}

/// Silence that ends a flow of few requests: some clients pause between two of them.
const FEW_REQUESTS_TIMEOUT: Duration = Duration::from_nanos(3 * SILENCE_NS);

/// Number of requests from which the server waits longer for more: a forger has to send that many
/// first.
const FEW_REQUESTS: u64 = 100;

/// Returns the silence that ends a flow of so many requests. A client that is stopped for ten
/// seconds may go on with its flow.
pub fn request_silence(requests: u64) -> Duration {
    match requests {
        0..FEW_REQUESTS => FEW_REQUESTS_TIMEOUT,
        _ => FLOW_SILENCE_TIMEOUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_have_a_shorter_timeout() {
        assert_eq!(request_silence(0), Duration::from_secs(3));
        assert_eq!(request_silence(99), Duration::from_secs(3));
        let stopped = Duration::from_secs(10);
        assert!(request_silence(100) > stopped);
    }
}
