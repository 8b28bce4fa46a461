//! Chargen (RFC 864): an endless stream of characters, or one datagram for each received one.

use std::net::TcpStream;
use std::slice::from_ref;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use linerate_protocol::chargen::{PERIOD_BYTES, PORT, PROTOCOL, fill, reply};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::plan::{Direction, RunKind, TransportProtocol};
use linerate_sys::socket;
use linerate_sys::socket::MessageFlags;
use linerate_transport::flow_role::FlowRole;
use socket2::Socket;

use super::echo::request_plan;
use super::payload::PayloadRing;
use super::plain::plan;
use super::responder_loop::{RequestFlow, rejects_reply_loop, respond_to_datagrams};
use super::test_run::TestRun;
use super::worker::{
    FlowFailure, FlowWorkerResult, POLL_INTERVAL, SendPlan, is_retryable, send_stream,
};
use super::{AcceptedClient, ProtocolHandler, StreamHandler};
use crate::server_state::TestReservation;

/// Handler of chargen.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: Some(PORT),
    sends_first: true,
    stream: Some(StreamHandler::Test(serve_stream)),
    expected_flow: None,
    datagrams: Some(|client, reservation, incoming| {
        let respond = |request: &mut [u8], line| reply(request.len(), line, request);
        let flow = RequestFlow::with_responder(PROTOCOL.name, &client, respond);
        let plan = request_plan(&client);
        respond_to_datagrams(PROTOCOL.name, plan, client, reservation, incoming, flow);
    }),
    rejects_flow: Some(|interop, from, _| rejects_reply_loop(PROTOCOL.name, interop, from)),
};

/// Bytes dropped by one receive call.
const DISCARD_BUFFER_BYTES: usize = 64 << 10;

/// Bytes of a write: a multiple of the pattern's period.
const WRITE_BYTES: usize = 16 * PERIOD_BYTES;

fn serve_stream(mut client: AcceptedClient, reservation: TestReservation, stream: TcpStream) {
    let mut plan = plan(
        &client,
        RunKind::Throughput,
        TransportProtocol::Tcp,
        Direction::Receive,
    );
    plan.payload_bytes = WRITE_BYTES as u64;
    let limits = *client.server.interop.limits();
    let idle = client.timeouts().plain_idle;
    plan.rate_bps = limits.rate_bps;
    let mut test = TestRun::begin(&mut client, reservation, PROTOCOL.name, PROTOCOL.name, plan);
    let spawned = test.spawn(1, FlowRole::Sender, stream.into(), move |context, socket| {
        let mut characters = vec![0; WRITE_BYTES];
        fill(0, &mut characters);
        let send_plan = SendPlan::new(WRITE_BYTES, idle).within_limits(&limits, 1);
        let stop = AtomicBool::new(false);
        let mut result = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("chargen-discard".to_owned());
            if let Err(error) = builder.spawn_scoped(scope, || discard_input(socket, &stop)) {
                // A client that writes would block for ever: the next one may find a thread.
                return FlowWorkerResult {
                    failure: Some(FlowFailure::InvalidData(format!(
                        "this server could start no thread for it ({error}): raise `ulimit -u`, or \
                         lower --max-tests"
                    ))),
                    ..FlowWorkerResult::default()
                };
            }
            let mut payload = PayloadRing::new(characters);
            let result = send_stream(context, from_ref(socket), &send_plan, &mut payload);
            stop.store(true, Relaxed);
            result
        });
        // A chargen test ends only when its client closes.
        if matches!(result.failure, Some(FlowFailure::Socket(_))) {
            result.failure = None;
        }
        result
    });
    test.conclude(spawned, RemoteReport::default);
}

/// Drops what the client sends, which has no meaning (RFC 864). Without that, a client that writes
/// would block for ever, and closing with unread bytes would reset the connection while the client
/// still reads.
fn discard_input(socket: &Socket, stop: &AtomicBool) {
    let mut buffer = vec![0; DISCARD_BUFFER_BYTES];
    if socket.set_read_timeout(Some(POLL_INTERVAL)).is_err() {
        return;
    }
    while !stop.load(Relaxed) {
        match socket::receive(socket, &mut buffer, MessageFlags::TRUNCATE) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if is_retryable(&error) => {}
            Err(_) => return,
        }
    }
}
