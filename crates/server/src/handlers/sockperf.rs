//! sockperf clients: ping-pong, under-load and throughput, over TCP and UDP.

use std::net::TcpStream;

use linerate_protocol::sockperf::{
    HEADER_BYTES, PROTOCOL, SockperfDatagram, SockperfHeader, SockperfServer,
};
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_sys::clock::Nanos;
use linerate_workload::flow_counters::PayloadTotals;

use super::plain::request_silence;
use super::responder_loop::{
    StreamResponder, rejects_reply_loop, respond_to_datagrams, respond_to_stream,
};
use super::worker::{DatagramAction, DatagramFlow, SequenceStats};
use super::{AcceptedClient, ProtocolHandler, StreamHandler};
use crate::interop_state::IncomingFlow;
use crate::server_state::TestReservation;

/// Handler of sockperf.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: None,
    sends_first: false,
    stream: Some(StreamHandler::Test(serve_stream)),
    expected_flow: None,
    datagrams: Some(serve_datagrams),
    rejects_flow: Some(|interop, from, _| rejects_reply_loop(PROTOCOL.name, interop, from)),
};

/// Returns the plan; a client whose first message requests a response measures round trips.
fn plan(
    client: &AcceptedClient,
    protocol: TransportProtocol,
    first: Option<SockperfHeader>,
) -> Plan {
    let kind = match first {
        Some(header) if !header.is_request() => RunKind::Throughput,
        _ => RunKind::Latency,
    };
    let mut plan = super::plain::plan(client, kind, protocol, Direction::Send);
    plan.payload_bytes = first.map_or(0, |header| u64::from(header.length));
    plan
}

fn serve_stream(client: AcceptedClient, reservation: TestReservation, stream: TcpStream) {
    let mut first = [0; HEADER_BYTES];
    let first =
        (stream.peek(&mut first).ok()).and_then(|bytes| SockperfHeader::read(&first[..bytes]));
    let plan = plan(&client, TransportProtocol::Tcp, first);
    let responder = SockperfServer::default();
    respond_to_stream(PROTOCOL.name, plan, client, reservation, stream, responder);
}

impl StreamResponder for SockperfServer {
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String> {
        Self::receive_stream(self, bytes).map_err(|error| error.to_string())
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
        totals(self)
    }

    fn responses(&self) -> Option<u64> {
        Some(Self::totals(self).replied)
    }
}

fn totals(server: &SockperfServer) -> PayloadTotals {
    let totals = server.totals();
    PayloadTotals {
        bytes: totals.bytes,
        packets: totals.messages,
        ..PayloadTotals::default()
    }
}

fn serve_datagrams(client: AcceptedClient, reservation: TestReservation, incoming: IncomingFlow) {
    let first = incoming
        .early_datagrams
        .first()
        .and_then(|(_, first)| SockperfHeader::read(first));
    let plan = plan(&client, TransportProtocol::Udp, first);
    respond_to_datagrams(
        PROTOCOL.name,
        plan,
        client,
        reservation,
        incoming,
        SockperfFlow::default(),
    );
}

#[derive(Default)]
struct SockperfFlow {
    server: SockperfServer,
    last_ns: Nanos,
}

impl DatagramFlow for SockperfFlow {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        match self.server.receive_datagram(datagram) {
            SockperfDatagram::Reply(_) => {
                self.last_ns = now;
                DatagramAction::ReplyInPlace {
                    bytes: datagram.len(),
                    is_payload: true,
                }
            }
            SockperfDatagram::Counted(_) => {
                self.last_ns = now;
                DatagramAction::Payload
            }
            SockperfDatagram::Ignored => {
                // An unrelated datagram starts the flow's time, too: otherwise the flow would never
                // end.
                if self.last_ns == 0 {
                    self.last_ns = now;
                }
                DatagramAction::Ignore
            }
        }
    }

    fn is_finished(&mut self, now: Nanos) -> bool {
        let silence = request_silence(self.server.totals().messages);
        now.saturating_sub(self.last_ns) > silence.as_nanos() as u64
    }

    fn totals(&self) -> PayloadTotals {
        totals(&self.server)
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        Some(SequenceStats {
            lost: Some(self.server.totals().lost()?),
            ..SequenceStats::default()
        })
    }

    fn sends_replies(&self) -> bool {
        true
    }
}
