//! iperf2 clients, current and legacy: a header in front of the payload, or none.

mod reverse_flow;
mod udp;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::iperf2::{
    DualTest, Iperf2Direction, Iperf2Settings, Iperf2TcpRequest, Iperf2TcpServer, LEGACY_PROTOCOL,
    PROTOCOL, TestAmount, WriteDelayReader, WriteTimestamper, bounceback, fill,
};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_session::dial::with_port;
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use socket2::{Domain, SockAddr, Socket, Type};

use super::payload::PayloadRing;
use super::responder_loop::{StreamResponder, respond_on_stream};
use super::test_run::TestRun;
use super::worker::{
    FlowWorkerContext, FlowWorkerResult, OneWayDelays, POLL_INTERVAL, SendPlan, StopSignals,
    is_retryable, receive_stream, send_stream, watch_stream,
};
use super::{AcceptedClient, ProtocolHandler, StreamHandler};
use crate::interop_limits::InteropLimits;
use crate::server_state::TestReservation;
pub use reverse_flow::Iperf2ReverseFlow;
pub use udp::{Iperf2Flow, send_time_limit_s};

/// Handler of iperf2 with a header.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: None,
    sends_first: false,
    stream: Some(StreamHandler::Test(|client, reservation, connection| {
        serve_stream(PROTOCOL.name, client, reservation, connection);
    })),
    expected_flow: None,
    datagrams: Some(|client, reservation, incoming| {
        udp::serve(PROTOCOL.name, client, reservation, incoming)
    }),
    rejects_flow: Some(|interop, from, first| {
        udp::rejects_flow(PROTOCOL.name, interop, from, first)
    }),
};

/// Handler of iperf2 without a header.
pub const LEGACY_HANDLER: ProtocolHandler = ProtocolHandler {
    name: LEGACY_PROTOCOL.name,
    stream: Some(StreamHandler::Test(|client, reservation, connection| {
        serve_stream(LEGACY_PROTOCOL.name, client, reservation, connection);
    })),
    datagrams: Some(|client, reservation, incoming| {
        udp::serve(LEGACY_PROTOCOL.name, client, reservation, incoming);
    }),
    rejects_flow: Some(|interop, from, first| {
        udp::rejects_flow(LEGACY_PROTOCOL.name, interop, from, first)
    }),
    ..HANDLER
};

/// Pause between two attempts.
const DUAL_RETRY_INTERVAL_NS: Nanos = 20_000_000;

/// Bytes of a write where the client announces none: the default of reference servers.
const WRITE_BYTES: usize = 128 << 10;

/// Alternative of a client to which no second connection is made.
const DUAL_ALTERNATIVE: &str = "let it use --full-duplex or -R";

/// Flow number of the second connection, or of the reverse direction on the first one.
const REVERSE_FLOW_ID: u32 = 2;

fn serve_stream(
    protocol: &'static str,
    mut client: AcceptedClient,
    reservation: TestReservation,
    connection: TcpStream,
) {
    let mut server = Iperf2TcpServer::new();
    let stop = &client.server.stop;
    let timeout = client.timeouts().header;
    let (job, behind) = match read_header(&mut server, &connection, timeout, stop) {
        Ok(read) => read,
        Err(reason) => return client.log_no_test_started(protocol, &reason),
    };
    let result = FlowWorkerResult {
        totals: PayloadTotals {
            bytes: server.payload_bytes() + behind.len() as u64,
            calls: 1,
            ..PayloadTotals::default()
        },
        ..FlowWorkerResult::started_at(client.arrived_ns)
    };
    match job {
        Iperf2TcpRequest::Plain => {
            let mut plan = plan(&client, TransportProtocol::Tcp, None);
            plan.duration_ns = None;
            let mut test = TestRun::begin(&mut client, reservation, protocol, protocol, plan);
            let idle = test.timeouts().plain_idle;
            let spawned = test.spawn(
                1,
                FlowRole::Receiver,
                connection.into(),
                move |context, socket| receive_stream(context, socket, idle, result),
            );
            test.conclude(spawned, RemoteReport::default);
        }
        Iperf2TcpRequest::Bounceback(responder) => {
            serve_bounceback(client, reservation, connection, *responder, &behind)
        }
        Iperf2TcpRequest::Test(settings) => {
            if let Err(error) = (&connection).write_all(server.outgoing()) {
                let reason = format!("it closed the connection before the reply ({error})");
                return client.log_no_test_started(protocol, &reason);
            }
            let plan = plan(&client, TransportProtocol::Tcp, Some(&settings));
            let agent = agent(&settings);
            let mut test = TestRun::begin(&mut client, reservation, protocol, &agent, plan);
            let spawned = start_flows(&client, &mut test, connection, &settings, (result, behind));
            test.conclude(spawned, RemoteReport::default);
        }
    }
}

/// Reads the client's settings, and bytes received after them. Fails at the timeout, however often
/// single bytes arrive.
fn read_header(
    server: &mut Iperf2TcpServer,
    connection: &TcpStream,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<(Iperf2TcpRequest, Vec<u8>), String> {
    let deadline = clock::now() + timeout.as_nanos() as u64;
    let failure = |error: std::io::Error| format!("its header was not received ({error})");
    connection
        .set_read_timeout(Some(POLL_INTERVAL))
        .map_err(failure)?;
    let mut buffer = [0; 512];
    while clock::now() < deadline && !stop.load(Relaxed) {
        let bytes = match (&*connection).read(&mut buffer) {
            Err(error) if is_retryable(&error) => continue,
            read => read.map_err(failure)?,
        };
        let (consumed, job) = server
            .receive(&buffer[..bytes], clock::now_realtime())
            .map_err(|error| error.to_string())?;
        if let Some(job) = job {
            return Ok((job, buffer[consumed..bytes].to_vec()));
        }
        if bytes == 0 {
            // Too short for the header that it resembles, so it was payload.
            return Ok((Iperf2TcpRequest::Plain, Vec::new()));
        }
    }
    Err(format!(
        "its header was not complete after {} s",
        timeout.as_secs_f64()
    ))
}

fn start_flows(
    client: &AcceptedClient,
    test: &mut TestRun,
    connection: TcpStream,
    settings: &Iperf2Settings,
    (result, behind): (FlowWorkerResult, Vec<u8>),
) -> Result<(), SessionError> {
    let socket = Socket::from(connection);
    let system = |error| SessionError::system("a second handle on a socket", error);
    if settings.direction != Iperf2Direction::Reverse {
        let receive_socket = socket.try_clone().map_err(system)?;
        let (timed, idle) = (settings.trip_times, test.timeouts().idle);
        test.spawn(
            1,
            FlowRole::Receiver,
            receive_socket,
            move |context, socket| match timed {
                true => receive_timed(context, socket, idle, result, &behind),
                false => receive_stream(context, socket, idle, result),
            },
        )?;
    }
    if settings.direction != Iperf2Direction::Forward {
        let id = if settings.direction == Iperf2Direction::Both {
            REVERSE_FLOW_ID
        } else {
            1
        };
        start_sender(test, id, socket, settings)?;
    }
    let Some(dual) = settings.dual else {
        return Ok(());
    };
    if dual == DualTest::Sequential {
        test.wait_for_workers();
        if test.is_aborted() {
            return Ok(());
        }
        test.start_next_phase();
    }
    let interop = &client.server.interop;
    if !interop.may_connect_back(PROTOCOL.name, client.peer, settings.port, DUAL_ALTERNATIVE) {
        return Ok(());
    }
    let reverse_socket = connect_back(client, test, settings.port)?;
    start_sender(test, REVERSE_FLOW_ID, reverse_socket, settings)
}

/// Receives a connection whose writes carry send times; `behind` was received with the
/// settings.
fn receive_timed(
    context: &FlowWorkerContext,
    socket: &Socket,
    idle: Duration,
    result: FlowWorkerResult,
    behind: &[u8],
) -> FlowWorkerResult {
    let mut writes = WriteDelayReader::new();
    let mut delays = OneWayDelays::new();
    let wall_offset_ns = clock::wall_offset();
    let mut watch = |bytes: &[u8]| {
        let now_wall_ns = clock::now().wrapping_add(wall_offset_ns);
        writes.receive(bytes, now_wall_ns, |delay| delays.record(delay));
    };
    watch(behind);
    let mut result = watch_stream(context, socket, idle, result, watch);
    result.one_way_delays = (!writes.is_out_of_sync()).then_some(delays);
    result
}

/// Starts the worker that sends what the client requested and closes the sending half.
fn start_sender(
    test: &mut TestRun,
    id: u32,
    socket: Socket,
    settings: &Iperf2Settings,
) -> Result<(), SessionError> {
    let mut send_plan = send_plan(settings, WRITE_BYTES, test.timeouts().idle, test.limits());
    if settings.trip_times {
        // The time in front of a write applies to the whole write.
        send_plan.block_bytes = send_plan.write_bytes();
    }
    // A second connection carries payload only.
    let settings = settings.clone();
    let write_stamps = move || {
        let stamps = WriteTimestamper::new(&settings, send_plan.block_bytes, clock::now_realtime());
        stamps.filter(|_| settings.dual.is_none())
    };
    test.reserve(send_plan.block_bytes as u64)?;
    test.spawn(
        id,
        FlowRole::Sender,
        socket,
        move |context: &FlowWorkerContext, socket| {
            let mut digits = vec![0; send_plan.block_bytes];
            fill(&mut digits);
            let stamps = write_stamps();
            if let Some(stamps) = &stamps {
                // A failed early reply shows as a failed payload.
                let _ = (&*socket).write_all(stamps.reply());
            }
            let mut payload = PayloadRing::new(digits).with_write_stamps(stamps);
            let result = send_stream(context, from_ref(socket), &send_plan, &mut payload);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            result
        },
    )
}

/// Returns the send plan of the client's request.
fn send_plan(
    settings: &Iperf2Settings,
    block: usize,
    idle: Duration,
    limits: &InteropLimits,
) -> SendPlan {
    let block = settings.buffer_bytes.map_or(block, |bytes| bytes as usize);
    // Bounds the memory for a block size that the client chose.
    let mut send_plan = SendPlan::new(block.min(1 << 20), idle);
    match settings.amount {
        Some(TestAmount::Bytes(bytes)) => send_plan.amount_bytes = Some(bytes),
        Some(TestAmount::Time(ns)) => send_plan.until_ns = Some(clock::now() + ns),
        None => {}
    }
    let bits = |rate: u64| match settings.rate_is_packets {
        true => rate.saturating_mul(send_plan.block_bytes as u64 * 8),
        false => rate,
    };
    send_plan.rate_bps = settings.rate.map(bits);
    send_plan.within_limits(limits, settings.flows)
}

/// Connects to the client's own port. The client may start to listen a moment after its request, so
/// the connection is retried.
fn connect_back(
    client: &AcceptedClient,
    test: &mut TestRun,
    port: u16,
) -> Result<Socket, SessionError> {
    let (to, timeouts) = (with_port(client.peer, port), test.timeouts());
    let (timeout, attempt_timeout) = (timeouts.data_connect, timeouts.connect_attempt);
    let connect = || {
        if port == 0 {
            return Err(std::io::Error::other("its port is not from 1 to 65535"));
        }
        if client.server.interop.is_self(to, client.local.ip()) {
            return Err(std::io::Error::other(
                "its port is this server's own: choose another with -L",
            ));
        }
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.connect_timeout(&SockAddr::from(to), attempt_timeout)?;
        Ok(socket)
    };
    let until = clock::now() + timeout.as_nanos() as u64;
    let is_early = |error: &std::io::Error| {
        let passes = matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::TimedOut
        );
        passes && clock::now() < until
    };
    loop {
        match connect() {
            Err(error) if is_early(&error) && test.stop_reason().is_none() => {
                test.wait(clock::now() + DUAL_RETRY_INTERVAL_NS);
            }
            result => {
                return result.map_err(|error: std::io::Error| SessionError::PeerLost {
                    peer: to,
                    reason: format!("it accepts no second connection ({error})"),
                });
            }
        }
    }
}

/// Returns the plan of the client's request.
fn plan(
    client: &AcceptedClient,
    protocol: TransportProtocol,
    settings: Option<&Iperf2Settings>,
) -> Plan {
    let mut plan = super::plain::plan(client, RunKind::Throughput, protocol, Direction::Send);
    let Some(settings) = settings else {
        return plan;
    };
    plan.directions = match (settings.direction, settings.dual) {
        (Iperf2Direction::Both, _) | (_, Some(_)) => vec![Direction::Send, Direction::Receive],
        (Iperf2Direction::Forward, None) => vec![Direction::Send],
        (Iperf2Direction::Reverse, None) => vec![Direction::Receive],
    };
    plan.sequential = settings.dual == Some(DualTest::Sequential);
    match settings.amount {
        Some(TestAmount::Bytes(bytes)) => plan.amount_bytes = Some(bytes),
        Some(TestAmount::Time(ns)) => plan.duration_ns = Some(ns),
        None => {}
    }
    plan.payload_bytes = settings.buffer_bytes.map_or(0, u64::from);
    plan.rate_bps = settings.rate.filter(|_| !settings.rate_is_packets);
    plan.socket.tos = settings.tos;
    plan
}

fn agent(settings: &Iperf2Settings) -> String {
    match settings.version {
        Some((upper, lower)) => {
            let (major, minor, patch) = (upper >> 16, upper & 0xffff, lower >> 16);
            format!("iperf {major}.{minor}.{patch}")
        }
        None => "iperf 2.0".to_owned(),
    }
}

/// Responds to bounceback requests.
fn serve_bounceback(
    mut client: AcceptedClient,
    reservation: TestReservation,
    connection: TcpStream,
    server: bounceback::BouncebackServer,
    behind: &[u8],
) {
    let mut plan = super::plain::plan(
        &client,
        RunKind::Latency,
        TransportProtocol::Tcp,
        Direction::Send,
    );
    plan.payload_bytes = server.message_bytes() as u64;
    let mut responder = BouncebackResponder::new(server);
    let (arrived_ns, idle) = (client.arrived_ns, client.timeouts().idle);
    let mut test = TestRun::begin(&mut client, reservation, PROTOCOL.name, "iperf 2", plan);
    let mut rest = behind.to_vec();
    // Request and response.
    let reserved = test.reserve(2 * responder.server.message_bytes() as u64);
    let spawned = reserved.and_then(|()| {
        test.spawn(
            1,
            FlowRole::Receiver,
            connection.into(),
            move |context, socket| {
                responder.delay_context = socket.try_clone().ok().map(|socket| ReplyDelayContext {
                    signals: Arc::clone(&context.signals),
                    socket,
                });
                responder.reply_if_complete();
                while !rest.is_empty() {
                    // A first message in several reads; no client sends another request before the
                    // response.
                    match responder.receive(&rest) {
                        Ok(consumed) if consumed > 0 => drop(rest.drain(..consumed)),
                        _ => break,
                    }
                }
                let mut result =
                    respond_on_stream(context, socket, idle, arrived_ns, &mut responder);
                result.totals.bytes += responder.early_bytes;
                result
            },
        )
    });
    test.conclude(spawned, RemoteReport::default);
}

/// Responder of iperf2 bounceback on a connection.
pub struct BouncebackResponder {
    server: bounceback::BouncebackServer,
    /// Bytes of the first request that were received with the header.
    early_bytes: u64,
    reply: Vec<u8>,
    sent: usize,
    received_bytes: u64,
    finished: bool,
    /// Offset of the wall clock from the monotonic clock.
    wall_offset_ns: Nanos,
    /// State for delayed responses.
    delay_context: Option<ReplyDelayContext>,
}

/// State that a delayed response needs.
struct ReplyDelayContext {
    /// Stop signals that end the delay.
    signals: Arc<StopSignals>,
    /// Connection on which the request is acknowledged.
    socket: Socket,
}

impl BouncebackResponder {
    /// Creates a responder for a client whose first request has started to arrive.
    #[must_use]
    pub fn new(server: bounceback::BouncebackServer) -> Self {
        Self {
            reply: Vec::with_capacity(server.message_bytes()),
            early_bytes: bounceback::MESSAGE_MIN_BYTES as u64,
            server,
            sent: 0,
            received_bytes: 0,
            finished: false,
            wall_offset_ns: clock::wall_offset(),
            delay_context: None,
        }
    }

    /// Sleeps for the delay that the client requested, in steps that check the stop signals.
    fn delay_reply(&self, hold_ns: Nanos) {
        let delay = self.delay_context.as_ref();
        if self.server.requests_quick_ack()
            && let Some(delay) = delay
        {
            // An immediate response carries the acknowledgement. A delayed one would delay that,
            // and the client's kernel would measure the delay as round-trip time.
            let _ = delay.socket.set_tcp_quickack(true);
        }
        let is_over = || delay.is_some_and(|delay| delay.signals.closed.load(Relaxed));
        let until = clock::now() + hold_ns;
        while clock::now() < until && !is_over() {
            clock::sleep_until(until.min(clock::now() + POLL_INTERVAL.as_nanos() as u64));
        }
    }

    fn reply_if_complete(&mut self) {
        self.finished = self.server.is_over();
        if !self.server.has_request() {
            return;
        }
        match self.server.hold_ns() {
            0 => {}
            hold_ns => self.delay_reply(hold_ns),
        }
        self.reply.clear();
        self.sent = 0;
        self.reply.extend_from_slice(
            self.server
                .reply(clock::now().wrapping_add(self.wall_offset_ns)),
        );
        self.server.mark_replied();
    }
}

impl StreamResponder for BouncebackResponder {
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String> {
        if !self.outgoing().is_empty() || self.finished {
            return Ok(0);
        }
        let now_wall_ns = clock::now().wrapping_add(self.wall_offset_ns);
        let consumed = self.server.receive(bytes, now_wall_ns);
        self.received_bytes += consumed as u64;
        self.reply_if_complete();
        Ok(consumed)
    }

    fn outgoing(&self) -> &[u8] {
        &self.reply[self.sent..]
    }

    fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    fn totals(&self) -> PayloadTotals {
        PayloadTotals {
            bytes: self.received_bytes,
            packets: self.server.replies(),
            ..PayloadTotals::default()
        }
    }

    fn responses(&self) -> Option<u64> {
        Some(self.server.replies())
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_request_with_a_delayed_reply_is_acknowledged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::from(listener.accept().unwrap().0);
        for (hold_us, quick) in [(0, false), (1, true)] {
            let mut client = bounceback::BouncebackClient::new(100, hold_us).unwrap();
            let request = client.request(1).to_vec();
            let mut bounce =
                BouncebackResponder::new(bounceback::BouncebackServer::new(&request).unwrap());
            bounce.delay_context = Some(ReplyDelayContext {
                signals: Arc::default(),
                socket: socket.try_clone().unwrap(),
            });
            // As the kernel sets it on a request/response connection.
            socket.set_tcp_quickack(false).unwrap();
            assert_eq!(bounce.receive(&request), Ok(100));
            assert_eq!(bounce.outgoing().len(), 100);
            assert_eq!(socket.tcp_quickack().unwrap(), quick, "{hold_us}");
        }
    }
}
