//! Echo (RFC 862): sends received bytes back.

use std::net::TcpStream;

use linerate_protocol::echo::{EchoStream, PORT, PROTOCOL};
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_workload::flow_counters::PayloadTotals;

use super::plain::plan;
use super::responder_loop::{
    RequestFlow, StreamResponder, rejects_reply_loop, respond_to_datagrams, respond_to_stream,
};
use super::{AcceptedClient, ProtocolHandler, StreamHandler};
use crate::server_state::TestReservation;

/// Handler of echo.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: Some(PORT),
    sends_first: false,
    stream: Some(StreamHandler::Test(serve_stream)),
    expected_flow: None,
    datagrams: Some(|client, reservation, incoming| {
        let respond = |request: &mut [u8], _| request.len();
        let flow = RequestFlow::with_responder(PROTOCOL.name, &client, respond);
        let plan = request_plan(&client);
        respond_to_datagrams(PROTOCOL.name, plan, client, reservation, incoming, flow);
    }),
    rejects_flow: Some(|interop, from, _| rejects_reply_loop(PROTOCOL.name, interop, from)),
};

/// Returns the plan of a client that sends datagrams to have them answered. Their size is taken
/// from the payload at the end, because some programs send a small probe first.
pub fn request_plan(client: &AcceptedClient) -> Plan {
    plan(
        client,
        RunKind::Latency,
        TransportProtocol::Udp,
        Direction::Send,
    )
}

fn serve_stream(client: AcceptedClient, reservation: TestReservation, stream: TcpStream) {
    // A stream has no request boundaries: its bytes can be counted, its round trips cannot.
    let plan = plan(
        &client,
        RunKind::Throughput,
        TransportProtocol::Tcp,
        Direction::Send,
    );
    let responder = EchoStream::default();
    respond_to_stream(PROTOCOL.name, plan, client, reservation, stream, responder);
}

impl StreamResponder for EchoStream {
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String> {
        Ok(Self::receive(self, bytes))
    }

    fn finish(&mut self) {
        Self::close_input(self);
    }

    fn ends_by_reset(&self) -> bool {
        true
    }

    fn outgoing(&self) -> &[u8] {
        Self::outgoing(self)
    }

    fn sent(&mut self, bytes: usize) {
        Self::mark_sent(self, bytes);
    }

    fn totals(&self) -> PayloadTotals {
        PayloadTotals {
            bytes: Self::totals(self).0,
            ..PayloadTotals::default()
        }
    }

    fn responses(&self) -> Option<u64> {
        // A stream has no requests to count.
        None
    }
}
