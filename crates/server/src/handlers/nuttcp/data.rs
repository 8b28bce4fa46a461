//! Data of a nuttcp test: connections or flows of datagrams, on ports that the client chose.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use linerate_protocol::nuttcp::{
    CONNECT_DELAY_NS, NuttcpDatagram, NuttcpDirection, NuttcpSendAction, NuttcpTest as TestRequest,
    NuttcpUdpReceiver, NuttcpUdpSender,
};
use linerate_protocol::sniff::TransportKind;
use linerate_session::dial::with_port;
use linerate_session::error::SessionError;
use linerate_sys::clock::Nanos;
use linerate_sys::readiness::Readiness;
use linerate_sys::socket::MessageFlags;
use linerate_sys::{clock, readiness, socket};
use linerate_transport::flow_role::FlowRole;
use linerate_workload::flow_counters::PayloadTotals;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::payload::PayloadRing;
use super::super::test_run::TestRun;
use super::super::worker::{
    DatagramAction, DatagramFlow, FlowFailure, FlowWorkerContext, FlowWorkerResult, POLL_INTERVAL,
    SendPlan, SequenceStats, UnreachableCounter, receive_datagrams, receive_stream, send_stream,
};
use super::super::{AcceptedClient, set_tos};
use crate::interop_limits::InteropLimits;
use crate::interop_state::{ExpectationGuard, ExpectedFlow, IncomingFlow, canonical};

/// Limit of the bytes of one write on a connection.
const BLOCK_LIMIT_BYTES: usize = 1 << 20;

/// Extra time for each further port that the server connects to: a path around the world.
const EXTRA_TIME_PER_PORT: Duration = Duration::from_millis(250);

/// Reason for a test that ends because the server stops.
const STOPPED_REASON: &str = "this server is stopping";

/// Pause between two attempts.
const RETRY_INTERVAL_NS: Nanos = 50_000_000;

/// Data sockets of a test before payload moves.
pub struct DataSockets {
    /// Server ports on which the client's next connection belongs to this test.
    expectations: Vec<ExpectationGuard>,
    arrivals: mpsc::Receiver<IncomingFlow>,
    /// Ports opened for this test.
    listeners: Vec<TcpListener>,
    /// Unconnected sockets for datagrams.
    udp_sockets: Vec<Socket>,
    flow_count: usize,
}

impl DataSockets {
    /// Opens the sockets that the client will connect or send to.
    ///
    /// # Errors
    /// If a port is taken; the text is the reason for the client.
    pub fn prepare(client: &AcceptedClient, request: &TestRequest) -> Result<Self, String> {
        let (arrival_sender, arrivals) = mpsc::channel();
        let mut data = Self {
            expectations: Vec::new(),
            arrivals,
            listeners: Vec::new(),
            udp_sockets: Vec::new(),
            flow_count: usize::from(request.streams),
        };
        if !request.client_connects() {
            return Ok(data);
        }
        for port in request.ports() {
            let bind_error = |error: io::Error| format!("cannot listen on port {port}: {error}");
            if client.server.interop.ports().contains(&port) {
                let expected = match request.transport {
                    TransportKind::Stream => ExpectedFlow::Connection { port },
                    TransportKind::Datagram => ExpectedFlow::Datagrams { port },
                };
                let expectation = client.server.interop.expect(
                    client.peer.ip(),
                    expected,
                    arrival_sender.clone(),
                );
                data.expectations.push(
                    expectation
                        .ok_or_else(|| format!("another test of this client uses port {port}"))?,
                );
                continue;
            }
            let address = with_port(client.local, port);
            match request.transport {
                TransportKind::Stream => {
                    let listener = TcpListener::bind(address).map_err(bind_error)?;
                    listener.set_nonblocking(true).map_err(bind_error)?;
                    data.listeners.push(listener);
                }
                TransportKind::Datagram => {
                    data.udp_sockets
                        .push(bind_udp(address).map_err(bind_error)?);
                }
            }
        }
        Ok(data)
    }

    /// Waits for the client's connections, or makes them.
    ///
    /// # Errors
    /// [`SessionError::PeerLost`] if a connection fails.
    pub fn open(
        self,
        client: &AcceptedClient,
        request: &TestRequest,
    ) -> Result<Vec<IncomingFlow>, SessionError> {
        let peer_lost = |reason: String| SessionError::PeerLost {
            peer: client.peer,
            reason,
        };
        if !request.client_connects() {
            let interop = &client.server.interop;
            let is_own_port =
                |&port: &u16| interop.is_self(with_port(client.peer, port), client.local.ip());
            if let Some(port) = request.ports().find(is_own_port) {
                return Err(port_conflict_error(client.peer, port));
            }
            return connect_back(client, request)
                .map_err(|error| peer_lost(format!("its data ports reject connections: {error}")));
        }
        if request.transport == TransportKind::Datagram {
            return self.receive_first_datagrams(client, request);
        }
        let deadline = clock::now() + client.timeouts().data_connect.as_nanos() as u64;
        let mut flows = Vec::new();
        while flows.len() < self.flow_count {
            if clock::now() > deadline {
                return Err(peer_lost("it does not connect to the data port".to_owned()));
            }
            if client.server.stop.load(Relaxed) {
                return Err(peer_lost(STOPPED_REASON.to_owned()));
            }
            flows.extend(self.arrivals.try_recv());
            for listener in &self.listeners {
                match listener.accept() {
                    // A connection of another host is not part of this test.
                    Ok((stream, from)) if canonical(from).ip() == client.peer.ip() => {
                        let blocking = stream.set_nonblocking(false);
                        if blocking.is_ok() {
                            flows.push(IncomingFlow::from_tcp(stream, from));
                        }
                    }
                    _ => {}
                }
            }
            clock::sleep_until(clock::now() + 2_000_000);
        }
        for incoming in &flows {
            set_socket_options(&incoming.socket, request);
        }
        Ok(flows)
    }

    /// Waits for the first datagram of each flow.
    fn receive_first_datagrams(
        self,
        client: &AcceptedClient,
        request: &TestRequest,
    ) -> Result<Vec<IncomingFlow>, SessionError> {
        let peer_lost = |reason: &str| SessionError::PeerLost {
            peer: client.peer,
            reason: reason.to_owned(),
        };
        let deadline = clock::now() + client.timeouts().data_connect.as_nanos() as u64;
        let mut flows = Vec::new();
        let mut waiting = self.udp_sockets;
        while flows.len() < self.flow_count {
            if clock::now() > deadline {
                return Err(peer_lost("no data arrived over UDP"));
            }
            if client.server.stop.load(Relaxed) {
                return Err(peer_lost(STOPPED_REASON));
            }
            flows.extend(self.arrivals.try_recv());
            let mut buffer = vec![0; 1 << 16];
            waiting.retain(|flow| {
                if !readiness::poll(flow, Readiness::Receive, Duration::from_millis(2))
                    .is_ok_and(|r| r)
                {
                    return true;
                }
                let first = linerate_sys::datagram::receive_with_destination(flow, &mut buffer);
                let Ok(first) = first else { return true };
                let from = canonical(first.sender);
                let is_client = from.ip() == client.peer.ip();
                // Datagrams of other hosts that arrived before the socket was connected are too
                // small for payload, or are counted: the sender of each is checked at once.
                if is_client
                    && flow.connect(&SockAddr::from(first.sender)).is_ok()
                    && let Ok(socket) = flow.try_clone()
                {
                    set_socket_options(&socket, request);
                    flows.push(IncomingFlow {
                        socket,
                        peer: from,
                        early_datagrams: vec![(clock::now(), buffer[..first.bytes].into())],
                        key: None,
                    });
                    return false;
                }
                true
            });
            if waiting.is_empty() {
                clock::sleep_until(clock::now() + 2_000_000);
            }
        }
        drop(self.expectations);
        Ok(flows)
    }
}

/// Returns the error for a client on the server's own host that chose a port of the server: the
/// client cannot listen there, and ends before its data connection could be made.
fn port_conflict_error(peer: SocketAddr, port: u16) -> SessionError {
    SessionError::PeerFailed {
        peer,
        situation: format!(
            "its data cannot go to its port {port}: the client is on this host, where this server \
             uses that port"
        ),
        next_step: format!(
            "let the client use another (`nuttcp -p {}`), or start the server with -p 0, which takes \
             no port except its own",
            alternative_port(port)
        ),
    }
}

/// Returns an alternative to a port.
pub fn alternative_port(port: u16) -> u16 {
    port.wrapping_add(100).max(1024)
}

fn bind_udp(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// Sets the socket options that the client requested; failures are visible in the record.
fn set_socket_options(socket: &Socket, request: &TestRequest) {
    if let Some(bytes) = request.window_bytes {
        let _ = socket.set_send_buffer_size(bytes as usize);
        let _ = socket.set_recv_buffer_size(bytes as usize);
    }
    if request.tos > 0 {
        set_tos(socket, request.tos);
    }
    if request.no_delay && request.transport == TransportKind::Stream {
        let _ = socket.set_tcp_nodelay(true);
    }
}

/// Connects to the client's ports within a time limit. The client's address is validated by the TCP
/// handshake of the control connection.
fn connect_back(client: &AcceptedClient, request: &TestRequest) -> io::Result<Vec<IncomingFlow>> {
    let begin = clock::now();
    let timeouts = client.timeouts();
    let timeout = timeouts.data_connect + EXTRA_TIME_PER_PORT * u32::from(request.streams);
    let until = begin + timeout.as_nanos() as u64;
    let stops = || client.server.stop.load(Relaxed);
    clock::sleep_until(begin + CONNECT_DELAY_NS);
    let mut sockets = Vec::new();
    for port in request.ports() {
        let to = with_port(client.peer, port);
        let kind = match request.transport {
            TransportKind::Stream => Type::STREAM,
            TransportKind::Datagram => Type::DGRAM,
        };
        let socket = loop {
            if stops() {
                return Err(io::Error::other(STOPPED_REASON));
            }
            let socket = Socket::new(Domain::for_address(to), kind, None)?;
            set_socket_options(&socket, request);
            let local = with_port(client.local, 0);
            socket.bind(&SockAddr::from(local))?;
            // A port that does not answer would use up all the time; a stop is noticed between two
            // attempts.
            let remaining = Duration::from_nanos(until.saturating_sub(clock::now()));
            let step = remaining.clamp(Duration::from_millis(1), timeouts.connect_attempt);
            match socket.connect_timeout(&SockAddr::from(to), step) {
                Ok(()) => break socket,
                Err(error) if clock::now() >= until => return Err(error),
                Err(_) => clock::sleep_until(clock::now() + RETRY_INTERVAL_NS),
            }
        };
        sockets.push(IncomingFlow {
            socket,
            peer: to,
            early_datagrams: Vec::new(),
            key: None,
        });
    }
    Ok(sockets)
}

/// Starts the workers of the data.
///
/// # Errors
/// If no thread or memory is available.
pub fn spawn_workers(
    test: &mut TestRun,
    request: &TestRequest,
    data: Vec<IncomingFlow>,
    client_closed: &Arc<AtomicBool>,
) -> Result<(), SessionError> {
    let system = |error| SessionError::system("a second handle on a socket", error);
    match (request.direction, request.transport) {
        (NuttcpDirection::ToServer, TransportKind::Stream) => {
            // A reference server ends sooner in short tests, and so drops a client that is stopped
            // for ten seconds.
            let idle =
                Duration::from_nanos(request.idle_timeout_ns()).max(test.timeouts().flow_silence);
            for (id, incoming) in (1..).zip(data) {
                test.spawn(
                    id,
                    FlowRole::Receiver,
                    incoming.socket,
                    move |context, socket| {
                        receive_stream(context, socket, idle, FlowWorkerResult::default())
                    },
                )?;
            }
            Ok(())
        }
        (NuttcpDirection::ToServer, TransportKind::Datagram) => {
            let shared = Arc::new(SharedCounts {
                buffer_bytes: (request.buffer_bytes as u64).max(1),
                active_flows: AtomicUsize::new(data.len()),
                sent_bytes: AtomicU64::new(0),
                received_bytes: AtomicU64::new(0),
            });
            for (id, incoming) in (1..).zip(data) {
                let IncomingFlow {
                    socket,
                    early_datagrams: early,
                    key,
                    ..
                } = incoming;
                test.hold_open_flow(key, true);
                let mut flow = NuttcpUdpFlow {
                    receiver: NuttcpUdpReceiver::new(request, clock::now()),
                    client_closed: Arc::clone(client_closed),
                    shared: Arc::clone(&shared),
                    is_first: id == 1,
                    published_bytes: 0,
                };
                test.spawn(id, FlowRole::Receiver, socket, move |context, socket| {
                    receive_datagrams(context, socket, early, &mut flow, |_, _, _| false)
                })?;
            }
            Ok(())
        }
        (NuttcpDirection::ToClient, TransportKind::Stream) => {
            let sockets: Vec<Socket> = data.into_iter().map(|incoming| incoming.socket).collect();
            let Some(first) = sockets.first() else {
                return Ok(());
            };
            let first = first.try_clone().map_err(system)?;
            // The block size is invisible to the reader of a stream.
            let block = request.buffer_bytes.min(BLOCK_LIMIT_BYTES);
            let mut send_plan = SendPlan::new(block, test.timeouts().idle);
            test.reserve(send_plan.block_bytes as u64)?;
            let bytes = request.buffer_bytes as u64;
            send_plan.amount_bytes = request
                .buffer_limit
                .map(|buffers| buffers.saturating_mul(bytes));
            send_plan.rate_bps = request.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
            let limits = InteropLimits {
                time_ns: None,
                ..*test.limits()
            };
            send_plan = send_plan.within_limits(&limits, 1);
            let time_ns = request.duration_ns;
            // A reference receiver reads one buffer from each in rotation, so one thread writes in
            // that order.
            test.spawn(1, FlowRole::Sender, first, move |context, _| {
                send_plan.until_ns = time_ns.map(|time| clock::now() + time);
                let mut payload = PayloadRing::random(send_plan.block_bytes);
                let result = send_stream(context, &sockets, &send_plan, &mut payload);
                for socket in &sockets {
                    let _ = socket.shutdown(std::net::Shutdown::Write);
                }
                result
            })
        }
        (NuttcpDirection::ToClient, TransportKind::Datagram) => {
            let sockets: Vec<Socket> = data.into_iter().map(|incoming| incoming.socket).collect();
            let Some(first) = sockets.first() else {
                return Ok(());
            };
            let first = first.try_clone().map_err(system)?;
            let (mut sender, bytes) = (NuttcpUdpSender::new(request), request.buffer_bytes);
            let rate_limited = test.limits().rate_bps.is_some();
            if rate_limited {
                sender = sender.with_strict_rate();
            }
            test.spawn(1, FlowRole::Sender, first, move |context, _| {
                send_datagrams(context, &sockets, sender, bytes, rate_limited)
            })
        }
    }
}

/// Sends the datagrams of the protocol's sender at its times.
fn send_datagrams(
    context: &FlowWorkerContext,
    sockets: &[Socket],
    mut sender: NuttcpUdpSender,
    bytes: usize,
    rate_limited: bool,
) -> FlowWorkerResult {
    let mut result = FlowWorkerResult::default();
    let mut payload = vec![0; bytes];
    fastrand::fill(&mut payload);
    let mut unreachable = UnreachableCounter::default();
    for socket in sockets {
        if let Err(error) = socket.set_write_timeout(Some(POLL_INTERVAL)) {
            result.failure = Some(FlowFailure::Socket(error));
            return result;
        }
    }
    while !context.signals.closed.load(Relaxed) {
        let now = clock::now();
        if context.signals.end_ns().is_some() {
            sender.finish();
        }
        match sender.next_action(now) {
            NuttcpSendAction::Marker { bytes, stream } => {
                if bytes == *b"BOD1" && rate_limited {
                    // The wait for the send time of the first buffer counts.
                    result.payload_times.get_or_insert((now, now));
                }
                if bytes == *b"EOD0" {
                    result.record_send_end(None, &context.signals);
                }
                // A failed send equals a lost datagram: markers are repeated.
                let _ = socket::send(&sockets[usize::from(stream)], &bytes, MessageFlags::NONE);
            }
            NuttcpSendAction::Data { stream } => {
                sender.write_count(&mut payload);
                let sent =
                    socket::send(&sockets[usize::from(stream)], &payload, MessageFlags::NONE);
                if let Err(error) = &sent
                    && error.kind() == io::ErrorKind::ConnectionRefused
                    && unreachable.record(now)
                {
                    result.failure = sent.err().map(FlowFailure::Socket);
                    break;
                }
                if sent.is_ok() {
                    let now = clock::now();
                    result.payload_times =
                        Some((result.payload_times.map_or(now, |(first, _)| first), now));
                    result.totals.bytes += bytes as u64;
                    result.totals.packets += 1;
                    result.totals.calls += 1;
                    context.publish(&result);
                }
            }
            NuttcpSendAction::Wait { until_ns } => {
                let step = now + POLL_INTERVAL.as_nanos() as u64;
                clock::sleep_until(until_ns.min(step));
            }
            NuttcpSendAction::Finished => break,
        }
    }
    result
}

/// Totals shared by the flows of a test: the count in a datagram covers all that its client sent on
/// all ports.
struct SharedCounts {
    buffer_bytes: u64,
    /// Flows that have not ended.
    active_flows: AtomicUsize,
    /// Bytes sent up to the last datagram received on any port.
    sent_bytes: AtomicU64,
    /// Bytes received.
    received_bytes: AtomicU64,
}

impl SharedCounts {
    fn lost(&self) -> u64 {
        let (received, sent) = (
            self.received_bytes.load(Relaxed),
            self.sent_bytes.load(Relaxed),
        );
        sent.saturating_sub(received) / self.buffer_bytes
    }
}

/// Receiver of a client's datagrams.
struct NuttcpUdpFlow {
    receiver: NuttcpUdpReceiver,
    client_closed: Arc<AtomicBool>,
    shared: Arc<SharedCounts>,
    /// True for the first flow, which reports losses while the test runs; the last one to end
    /// reports the total.
    is_first: bool,
    /// Bytes of this flow that are in the shared totals.
    published_bytes: u64,
}

impl NuttcpUdpFlow {
    fn publish(&mut self) {
        let bytes = self.receiver.totals().bytes;
        self.shared
            .received_bytes
            .fetch_add(bytes - self.published_bytes, Relaxed);
        self.published_bytes = bytes;
        if let Some(sent) = self.receiver.sent_bytes() {
            self.shared.sent_bytes.fetch_max(sent, Relaxed);
        }
    }
}

impl DatagramFlow for NuttcpUdpFlow {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        match self.receiver.receive(now, datagram) {
            // Time starts with the marker, if that arrives.
            NuttcpDatagram::Begin => DatagramAction::Start,
            NuttcpDatagram::Data => DatagramAction::Payload,
            NuttcpDatagram::Marker | NuttcpDatagram::End => DatagramAction::Ignore,
            NuttcpDatagram::Unrelated => DatagramAction::Unparsed,
        }
    }

    fn is_finished(&mut self, now: Nanos) -> bool {
        self.publish();
        if self.client_closed.load(Relaxed) {
            self.receiver.control_closed(now);
        }
        self.receiver.is_over(now)
    }

    fn totals(&self) -> PayloadTotals {
        let totals = self.receiver.totals();
        PayloadTotals {
            bytes: totals.bytes,
            packets: totals.packets,
            calls: 0,
            missing: if self.is_first { self.shared.lost() } else { 0 },
            ..PayloadTotals::default()
        }
    }

    fn end_ns(&self) -> Option<Nanos> {
        self.receiver.end_ns()
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        self.publish();
        let is_last = self.shared.active_flows.fetch_sub(1, AcqRel) == 1;
        self.receiver.sent_bytes()?;
        Some(SequenceStats {
            lost: Some(if is_last { self.shared.lost() } else { 0 }),
            ..SequenceStats::default()
        })
    }
}
