//! Acceptor: one thread that accepts connections and first datagrams, classifies them, and never
//! blocks on one of them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_protocol::control::flow::{OPENING_BYTES, read_opening};
use linerate_protocol::control::{
    FIRST_FRAME_LIMIT_BYTES, FlowToken, OpeningKind, is_first_frame_complete,
};
use linerate_protocol::sniff::{Classification, PROTOCOLS, ProtocolMatch, TransportKind, classify};
use linerate_protocol::{control, unrelated_protocol};
use linerate_record::event::{Event, EventKind};
use linerate_record::plan::TransportProtocol;
use linerate_session::error::SessionError;
use linerate_sys::clock::Nanos;
use linerate_sys::socket::enable_keepalive;
use linerate_sys::{clock, fd_table};
use mio::net::{TcpListener, TcpStream as MioStream, UdpSocket};
use mio::{Events, Interest, Poll, Token as Key};

use crate::client_shares::owner_of;
use crate::handlers as protocols;
use crate::handlers::{AcceptedClient, ProtocolHandler, StreamHandler};
use crate::interop_state::{ExpectedFlow, IncomingFlow, UnvalidatedPermit, canonical};
use crate::limits::PENDING_CONNECTION_LIMIT;
use crate::listen_ports::ListenPort;
use crate::server_session::serve_kernel;
use crate::server_state::{AcceptedSocket, ServerState, SessionPermit};
use crate::udp_demux::{UdpDemux, open_flow};

/// Longest time until the server notices that it is to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Poll interval while connections wait for what other sessions release.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Connections, or datagrams, taken in one poll, so that one port does not delay the others.
const MAX_ARRIVALS_PER_POLL: usize = 1_024;

/// Failed receive calls in one poll after which the rest waits for the next.
const MAX_RECEIVE_FAILURES: usize = 16;

/// First bytes that are read to classify a connection: the longest protocol header is iperf2's,
/// with all its extensions.
const CLASSIFY_BYTES: usize = 512;

/// A connection whose first bytes still match several protocols after this time carries plain
/// payload.
const CLASSIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Accept loop of a server: connections that are not classified yet, or wait for a session permit.
pub struct Acceptor {
    poll: Poll,
    listeners: Vec<PolledListener>,
    /// By order of arrival.
    pending: BTreeMap<usize, PendingConnection>,
    /// Control connections that wait for a permit.
    permit_queue: VecDeque<(PendingConnection, ControlHandler)>,
    /// Most pending connections; beyond it the one that has been silent longest is closed.
    max_pending: usize,
    next_key: usize,
    server: Arc<ServerState>,
    sessions: Vec<JoinHandle<()>>,
    datagram_buffer: Vec<u8>,
    /// Time of the last check for connections that stay undecided.
    undecided_checked_at: Instant,
}

/// Listening port and what remains in its two queues: epoll reports new arrivals only.
struct PolledListener {
    tcp: TcpListener,
    udp: UdpSocket,
    port: u16,
    bound: IpAddr,
    forced: Option<&'static ProtocolHandler>,
    accept_pending: bool,
    datagrams_pending: bool,
}

struct PendingConnection {
    stream: MioStream,
    peer: SocketAddr,
    listener: usize,
    accepted_at: Instant,
    /// Time when its first bytes were there.
    first_bytes_ns: Option<Nanos>,
    /// It is a control connection of ours whose first frame is incomplete.
    is_control: bool,
}

/// Handler of a connection that negotiates before anything is measured.
#[derive(Clone, Copy)]
enum ControlHandler {
    /// Our control protocol.
    Linerate,
    /// Control protocol of another tool.
    ThirdParty(fn(AcceptedClient, SessionPermit, TcpStream)),
}

/// Classification of a connection by its first bytes.
enum ConnectionKind {
    /// Too few bytes.
    NeedMore,
    /// Our control connection.
    Control,
    /// Our control connection, without a complete first frame: it gets no thread.
    IncompleteControl,
    /// Flow of ours, with its token.
    Flow(FlowToken),
    /// Protocol of another tool.
    ThirdParty(&'static ProtocolHandler),
    /// Flow that a running test expects.
    Expected(ExpectedFlow),
    /// Payload without a header.
    Plain,
    /// Protocol that is no test (HTTP, TLS, SSH and so on).
    NotATest(&'static str),
    /// Protocol that this port does not accept.
    WrongProtocol(&'static str),
    /// Closed by the client, or not worth a reply.
    Closed,
}

impl Acceptor {
    /// Registers all listening sockets with epoll.
    ///
    /// # Errors
    /// Errors of `epoll_create`, `epoll_ctl` and `fcntl`.
    pub fn new(ports: Vec<ListenPort>, server: Arc<ServerState>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listeners = Vec::new();
        for (index, port) in ports.into_iter().enumerate() {
            port.tcp.set_nonblocking(true)?;
            port.udp.set_nonblocking(true)?;
            let mut tcp = TcpListener::from_std(port.tcp);
            let mut udp = UdpSocket::from_std(port.udp);
            let registry = poll.registry();
            registry.register(&mut tcp, Key(2 * index), Interest::READABLE)?;
            registry.register(&mut udp, Key(2 * index + 1), Interest::READABLE)?;
            listeners.push(PolledListener {
                tcp,
                udp,
                port: port.port,
                bound: port.address,
                forced: port.forced,
                accept_pending: false,
                datagrams_pending: false,
            });
        }
        Ok(Self {
            poll,
            next_key: 2 * listeners.len(),
            listeners,
            pending: BTreeMap::new(),
            permit_queue: VecDeque::new(),
            // The other half of the descriptors is for tests.
            max_pending: fd_table::open_file_limit().map_or(PENDING_CONNECTION_LIMIT, |files| {
                PENDING_CONNECTION_LIMIT.min(files / 2)
            }),
            server,
            sessions: Vec::new(),
            datagram_buffer: vec![0; 1 << 16],
            undecided_checked_at: Instant::now(),
        })
    }

    /// Waits for arrivals, at most for the poll interval, and handles them.
    ///
    /// # Errors
    /// Errors of `epoll_wait`.
    pub fn poll_once(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let backlog =
            |listener: &PolledListener| listener.accept_pending || listener.datagrams_pending;
        let has_backlog = self.listeners.iter().any(backlog) || !self.permit_queue.is_empty();
        let timeout = if has_backlog {
            QUEUE_POLL_INTERVAL
        } else {
            STOP_POLL_INTERVAL
        };
        match self.poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => done?,
        }
        for event in &events {
            let Key(key) = event.token();
            match self.listeners.get_mut(key / 2) {
                Some(listener) if key % 2 == 0 => listener.accept_pending = true,
                Some(listener) => listener.datagrams_pending = true,
                None => self.classify_pending(key),
            }
        }
        for listener in 0..self.listeners.len() {
            if self.listeners[listener].accept_pending {
                self.listeners[listener].accept_pending = !self.accept(listener);
            }
            if self.listeners[listener].datagrams_pending {
                self.listeners[listener].datagrams_pending = !self.start_flows(listener);
            }
        }
        self.start_queued();
        self.decide_overdue();
        let timeout = self.server.interop.timeouts().classify;
        let is_recent = |connection: &PendingConnection| connection.accepted_at.elapsed() < timeout;
        let interop = &self.server.interop;
        self.pending.retain(|_, connection| {
            let keeps_waiting = is_recent(connection);
            if !keeps_waiting && connection.is_control {
                let reason = "it sent no complete hello";
                interop.log_no_test_started(control::PROTOCOL.name, connection.peer, reason);
            }
            keeps_waiting
        });
        self.permit_queue.retain(|(connection, _)| {
            let keeps_waiting = is_recent(connection);
            if !keeps_waiting {
                interop.log_permit_timeout(connection.peer);
            }
            keeps_waiting
        });
        self.sessions.retain(|session| !session.is_finished());
        Ok(())
    }

    /// Accepts connections of one listener; returns true when its queue is empty.
    fn accept(&mut self, listener: usize) -> bool {
        for _ in 0..MAX_ARRIVALS_PER_POLL {
            match self.listeners[listener].tcp.accept() {
                Ok((mut stream, peer)) => {
                    let full = self.pending.len() + self.permit_queue.len() >= self.max_pending;
                    if full && self.pending.pop_first().is_none() {
                        continue;
                    }
                    // Keepalive is best effort: without it, a lost client is noticed later.
                    let _ = enable_keepalive(&stream);
                    let key = self.next_key;
                    self.next_key += 1;
                    let registry = self.poll.registry();
                    if registry
                        .register(&mut stream, Key(key), Interest::READABLE)
                        .is_ok()
                    {
                        let connection = PendingConnection {
                            stream,
                            peer,
                            listener,
                            accepted_at: Instant::now(),
                            first_bytes_ns: None,
                            is_control: false,
                        };
                        self.pending.insert(key, connection);
                        // Most clients send at once: classify now, so that they do not count as
                        // silent.
                        self.classify_pending(key);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return true,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // No descriptor left: close the connection that has been silent longest, so
                    // that others can be accepted.
                    _ if self.pending.pop_first().is_some() => {}
                    _ => return false,
                },
            }
        }
        false
    }

    /// Peeks at the first bytes of a connection and dispatches it when they suffice.
    fn classify_pending(&mut self, key: usize) {
        let Some(connection) = self.pending.get(&key) else {
            return;
        };
        let kind = self.classify(connection);
        if let Some(connection) = self.pending.get_mut(&key) {
            connection.is_control = matches!(kind, ConnectionKind::IncompleteControl);
            if connection.first_bytes_ns.is_none() && connection.has_sent() {
                connection.first_bytes_ns = Some(clock::now());
            }
        }
        if !matches!(
            kind,
            ConnectionKind::NeedMore | ConnectionKind::IncompleteControl
        ) {
            self.dispatch(key, kind);
        }
    }

    /// Decides connections whose first bytes have matched no protocol within the timeout.
    fn decide_overdue(&mut self) {
        // One `recv` for each of thousands of connections, so not in every poll.
        if self.undecided_checked_at.elapsed() < STOP_POLL_INTERVAL {
            return;
        }
        self.undecided_checked_at = Instant::now();
        let undecided = |(key, connection): (&usize, &PendingConnection)| {
            let overdue = !connection.may_send_more() && !connection.is_control;
            let overdue = overdue && connection.has_sent();
            overdue.then_some(*key)
        };
        let keys: Vec<usize> = self.pending.iter().filter_map(undecided).collect();
        for key in keys {
            let connection = self.pending.get(&key);
            let forced =
                connection.and_then(|connection| self.listeners[connection.listener].forced);
            self.dispatch(
                key,
                forced.map_or(ConnectionKind::Plain, ConnectionKind::ThirdParty),
            );
        }
    }

    /// Hands a connection to its handler.
    fn dispatch(&mut self, key: usize, kind: ConnectionKind) {
        let Some(mut connection) = self.pending.remove(&key) else {
            return;
        };
        if self
            .poll
            .registry()
            .deregister(&mut connection.stream)
            .is_err()
        {
            return;
        }
        match kind {
            ConnectionKind::Control => self
                .permit_queue
                .push_back((connection, ControlHandler::Linerate)),
            ConnectionKind::Flow(token) => self.server.deliver_socket(token, |waiting| {
                let mut opening = [0; OPENING_BYTES];
                let is_complete = connection.stream.read_exact(&mut opening).is_ok();
                (is_complete && waiting.protocol == TransportProtocol::Tcp)
                    .then(|| AcceptedSocket::Kernel(connection.stream.into()))
            }),
            ConnectionKind::ThirdParty(handler) => {
                self.dispatch_third_party(connection, handler, None)
            }
            ConnectionKind::Plain => {
                // Any host can send plain payload: unvalidated clients have a smaller limit.
                let plain = protocols::plain_handler();
                match self.server.interop.acquire_unvalidated_permit() {
                    None => self
                        .server
                        .interop
                        .reject_unvalidated_client(plain.name, connection.peer),
                    some => self.dispatch_third_party(connection, plain, some),
                }
            }
            ConnectionKind::NotATest(protocol) => self
                .server
                .interop
                .reject_unrelated_protocol(protocol, connection.peer),
            ConnectionKind::WrongProtocol(detected) => {
                let listener = &self.listeners[connection.listener];
                let owner = listener.forced.map_or("another", |forced| forced.name);
                let interop = &self.server.interop;
                interop.reject_wrong_protocol(detected, connection.peer, (listener.port, owner));
            }
            ConnectionKind::Expected(expected) => {
                let peer = connection.peer;
                self.server.interop.deliver(&expected, peer, || {
                    Some(IncomingFlow::from_tcp(blocking(connection.stream)?, peer))
                });
            }
            // Closing without a reply is safe in every protocol.
            ConnectionKind::Closed
            | ConnectionKind::NeedMore
            | ConnectionKind::IncompleteControl => {}
        }
    }

    fn dispatch_third_party(
        &mut self,
        connection: PendingConnection,
        handler: &'static ProtocolHandler,
        unvalidated: Option<UnvalidatedPermit>,
    ) {
        if !self.server.interop.serves(handler.name) {
            self.server
                .interop
                .reject_protocol(handler.name, connection.peer);
            return;
        }
        match handler.stream {
            None => {}
            Some(StreamHandler::Control(control_handler)) => self
                .permit_queue
                .push_back((connection, ControlHandler::ThirdParty(control_handler))),
            Some(StreamHandler::Test(run)) => {
                match self.server.reserve_test(connection.peer.ip()) {
                    Err(rejection) => {
                        let interop = &self.server.interop;
                        interop.reject_test(handler.name, connection.peer, &rejection);
                    }
                    Ok(mut reservation) => {
                        reservation.may_be_ended = true;
                        let Some((client, stream)) = self.accepted_client(connection, unvalidated)
                        else {
                            return;
                        };
                        self.spawn_session(handler.name, move || run(client, reservation, stream));
                    }
                }
            }
        }
    }

    /// Describes the client for the thread that serves it, and makes its socket blocking.
    fn accepted_client(
        &self,
        connection: PendingConnection,
        unvalidated: Option<UnvalidatedPermit>,
    ) -> Option<(AcceptedClient, TcpStream)> {
        let (peer, listener) = (connection.peer, connection.listener);
        let first_bytes_ns = connection.first_bytes_ns.unwrap_or_else(clock::now);
        let stream = blocking(connection.stream)?;
        let local = stream.local_addr().ok()?;
        // The client completed the TCP handshake, so its address is valid.
        self.server.interop.mark_validated(peer.ip());
        let client = AcceptedClient {
            server: Arc::clone(&self.server),
            peer: canonical(peer),
            local: canonical(local),
            port: self.listeners[listener].port,
            arrived_ns: first_bytes_ns,
            unvalidated_permit: unvalidated,
            dedicated_port: self.listeners[listener].forced.is_some(),
        };
        Some((client, stream))
    }

    /// Starts the queued control connections for whose addresses there are permits.
    fn start_queued(&mut self) {
        // An address without a permit is asked for once: each attempt may end a stalled session.
        let mut without_permit: Vec<IpAddr> = Vec::new();
        for (connection, handler) in std::mem::take(&mut self.permit_queue) {
            let owner = owner_of(connection.peer.ip());
            let permit = match without_permit.contains(&owner) {
                true => None,
                false => (self.server).acquire_permit(owner, || connection.end_handle()),
            };
            match permit {
                Some(permit) => self.start_control(connection, handler, permit),
                None => {
                    if !without_permit.contains(&owner) {
                        without_permit.push(owner);
                    }
                    self.permit_queue.push_back((connection, handler));
                }
            }
        }
    }

    fn start_control(
        &mut self,
        connection: PendingConnection,
        handler: ControlHandler,
        permit: SessionPermit,
    ) {
        match handler {
            ControlHandler::Linerate => {
                self.server.interop.mark_validated(connection.peer.ip());
                let stream = TcpStream::from(OwnedFd::from(connection.stream));
                let server = Arc::clone(&self.server);
                self.spawn_session("session", move || {
                    serve_kernel(&server, stream, &[], permit)
                });
            }
            ControlHandler::ThirdParty(handler) => {
                if let Some((client, stream)) = self.accepted_client(connection, None) {
                    self.spawn_session("session", move || handler(client, permit, stream));
                }
            }
        }
    }

    fn spawn_session(&mut self, name: &str, session: impl FnOnce() + Send + 'static) {
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(session);
        match spawned {
            Ok(session) => self.sessions.push(session),
            Err(error) => (self.server.emit)(Event {
                test: 0,
                kind: EventKind::Failed {
                    problem: SessionError::system("new thread", error).to_report(),
                },
            }),
        }
    }

    /// Starts new UDP flows of one port; returns true when its queue is empty.
    fn start_flows(&mut self, listener: usize) -> bool {
        let mut demux = UdpDemux::new();
        let drained = self.receive_datagrams(listener, &mut demux);
        for flow in demux.finish(&self.server) {
            let Some(handler) = flow.handler else {
                continue;
            };
            let client = flow.incoming.peer.ip();
            let reservation = match self.server.reserve_test(client) {
                Ok(reservation) => reservation,
                Err(rejection) => {
                    let from = flow.incoming.peer;
                    self.server
                        .interop
                        .reject_test(handler.name, from, &rejection);
                    continue;
                }
            };
            let client = AcceptedClient {
                server: Arc::clone(&self.server),
                peer: canonical(flow.incoming.peer),
                local: canonical(SocketAddr::new(flow.local, self.listeners[listener].port)),
                port: self.listeners[listener].port,
                arrived_ns: clock::now(),
                unvalidated_permit: flow.unvalidated,
                dedicated_port: self.listeners[listener].forced.is_some(),
            };
            let mut arrived = flow.incoming;
            self.spawn_session(handler.name, move || {
                let handler = protocols::identify(handler, &client, &mut arrived);
                if let Some(serve_flow) = handler.datagrams {
                    serve_flow(client, reservation, arrived);
                }
            });
        }
        drained
    }

    fn receive_datagrams(&mut self, listener: usize, demux: &mut UdpDemux) -> bool {
        let mut failures = 0;
        for _ in 0..MAX_ARRIVALS_PER_POLL {
            if demux.is_full() {
                return false;
            }
            let received = linerate_sys::datagram::receive_with_destination(
                &self.listeners[listener].udp,
                &mut self.datagram_buffer,
            );
            let received = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // An ICMP error of an earlier reply: the next call returns the next datagram.
                Err(_) if failures < MAX_RECEIVE_FAILURES => {
                    failures += 1;
                    continue;
                }
                Err(_) => return false,
            };
            let bytes = &self.datagram_buffer[..received.bytes];
            if let Some(token) = read_opening(bytes) {
                let interface = self.server.interface.as_deref();
                self.server.deliver_socket(token, |waiting| {
                    let socket = open_flow(waiting, received.sender, token, interface)?;
                    Some(AcceptedSocket::Kernel(socket.into()))
                });
                continue;
            }
            let polled = &self.listeners[listener];
            let local = received.destination.unwrap_or(polled.bound);
            demux.on_datagram(
                &self.server,
                received.sender,
                SocketAddr::new(local, polled.port),
                polled.forced,
                bytes,
            );
        }
        false
    }

    /// Closes all sockets and joins the sessions, which have been signalled to end.
    pub fn close(self) {
        drop(self.listeners);
        drop(self.pending);
        drop(self.permit_queue);
        for session in self.sessions {
            // A session that panicked has printed its message.
            let _ = session.join();
        }
    }

    fn classify(&self, connection: &PendingConnection) -> ConnectionKind {
        let listener = &self.listeners[connection.listener];
        if let Some(forced) = listener.forced
            && forced.sends_first
        {
            return ConnectionKind::ThirdParty(forced);
        }
        // A test that expects connections of this host at this port gets them, whatever their
        // bytes.
        let expected = ExpectedFlow::Connection {
            port: listener.port,
        };
        if self.server.interop.expects(&expected, connection.peer) {
            return ConnectionKind::Expected(expected);
        }
        let mut buffer = [0; CLASSIFY_BYTES];
        let first = match connection.stream.peek(&mut buffer) {
            Ok(0) => return ConnectionKind::Closed,
            Ok(bytes) => &buffer[..bytes],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {
                    return ConnectionKind::NeedMore;
                }
                _ => return ConnectionKind::Closed,
            },
        };
        if let Some(forced) = listener.forced {
            if protocols::is_only_probe(forced, first) {
                return ConnectionKind::Closed;
            }
            return match protocols::wrong_protocol_for_port(forced, TransportKind::Stream, first) {
                Classification::Known(detected) => ConnectionKind::WrongProtocol(detected.name),
                Classification::NeedMore if connection.may_send_more() => ConnectionKind::NeedMore,
                Classification::NeedMore | Classification::Unknown => {
                    self.classify_third_party(forced, connection, first)
                }
            };
        }
        match classify(TransportKind::Stream, first) {
            Classification::NeedMore if first.len() < CLASSIFY_BYTES => ConnectionKind::NeedMore,
            Classification::NeedMore | Classification::Unknown => {
                match unrelated_protocol::identify(first) {
                    Some(protocol) => ConnectionKind::NotATest(protocol),
                    None => ConnectionKind::Plain,
                }
            }
            Classification::Known(detected) if detected.name == control::PROTOCOL.name => {
                match OpeningKind::from_first_bytes(first) {
                    Some(OpeningKind::Control) => match connection.has_first_frame() {
                        true => ConnectionKind::Control,
                        false => ConnectionKind::IncompleteControl,
                    },
                    Some(OpeningKind::Data) if first.len() < OPENING_BYTES => {
                        ConnectionKind::NeedMore
                    }
                    Some(OpeningKind::Data) => read_opening(&first[..OPENING_BYTES])
                        .map_or(ConnectionKind::Closed, ConnectionKind::Flow),
                    None => ConnectionKind::Closed,
                }
            }
            Classification::Known(detected) => match protocols::handler_named(detected.name) {
                None => ConnectionKind::Plain,
                Some(handler) => self.classify_third_party(handler, connection, first),
            },
        }
    }

    /// Returns the test that expects a connection of this protocol, or the protocol's handler.
    /// Waits for more bytes while the header that identifies the test is incomplete.
    fn classify_third_party(
        &self,
        handler: &'static ProtocolHandler,
        connection: &PendingConnection,
        first: &[u8],
    ) -> ConnectionKind {
        let Some(flow_of) = handler.expected_flow else {
            return ConnectionKind::ThirdParty(handler);
        };
        let codec = PROTOCOLS.iter().find(|known| known.name == handler.name);
        let kind = codec.map(|codec| (codec.detect)(TransportKind::Stream, first));
        if kind == Some(ProtocolMatch::NeedMore) && connection.may_send_more() {
            return ConnectionKind::NeedMore;
        }
        let interop = &self.server.interop;
        let is_expected = |expected: &ExpectedFlow| interop.expects(expected, connection.peer);
        flow_of(first).filter(is_expected).map_or(
            ConnectionKind::ThirdParty(handler),
            ConnectionKind::Expected,
        )
    }
}

impl PendingConnection {
    /// Returns whether its first bytes may still arrive.
    fn may_send_more(&self) -> bool {
        self.accepted_at.elapsed() <= CLASSIFY_TIMEOUT
    }

    /// Returns whether the first frame of our protocol has arrived, or will be rejected.
    fn has_first_frame(&self) -> bool {
        let mut buffer = [0; FIRST_FRAME_LIMIT_BYTES];
        let first = self.stream.peek(&mut buffer).unwrap_or(0);
        is_first_frame_complete(&buffer[..first])
    }

    /// Returns a handle that ends the connection.
    fn end_handle(&self) -> Option<TcpStream> {
        self.stream
            .as_fd()
            .try_clone_to_owned()
            .ok()
            .map(Into::into)
    }

    /// Returns whether it has sent any byte.
    fn has_sent(&self) -> bool {
        self.stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }
}

/// Makes the socket of a connection blocking again.
fn blocking(stream: MioStream) -> Option<TcpStream> {
    let stream = TcpStream::from(OwnedFd::from(stream));
    stream.set_nonblocking(false).ok()?;
    Some(stream)
}
