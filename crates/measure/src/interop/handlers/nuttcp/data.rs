//! Data of a nuttcp test: connections or flows of datagrams, on ports that the client chose.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use linerate_dialect::nuttcp::{
    CONNECT_DELAY_NS, Send, Test as TestRequest, Took, UdpReceiver, UdpSender, Way,
};
use linerate_dialect::sniff::Carrier;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::readiness::{self, Ready};
use linerate_host::sys::socket::{self, Flags};
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::interop_state::Expectation;
use super::super::limits::Limits;
use super::super::payload::Ring;
use super::super::test_run::{FLOW_SILENCE, IDLE, Test};
use super::super::worker::{
    Broke, Context, Datagrams, LOOK_UP, Moved, Numbers, Refusals, Sending, Take, receive_datagrams,
    receive_stream, send_stream,
};
use super::super::{Caller, Hall, Wanted, at_port, set_tos};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::acceptor::canonical;
use crate::session::udp_demux::Arrived;

/// Time for the client to connect, or to accept connections.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Limit of the bytes of one write on a connection.
const BLOCK_LIMIT_BYTES: usize = 1 << 20;

/// Extra time for each further port that the server connects to: a path around the world.
const ROUND_TRIP: Duration = Duration::from_millis(250);

/// Timeout of one connection attempt: a lost SYN is sent again after 1 s.
const TRY: Duration = Duration::from_secs(2);

/// Reason for a test that ends because the server stops.
const STOPPED: &str = "this server is stopping";

/// Pause between two attempts.
const AGAIN_NS: Nanos = 50_000_000;

/// Data sockets of a test before payload moves.
pub struct Data {
    /// Server ports on which the client's next connection belongs to this test.
    expected: Vec<Expectation>,
    arrivals: mpsc::Receiver<Arrived>,
    /// Ports opened for this test.
    listeners: Vec<TcpListener>,
    /// Unconnected sockets for datagrams.
    flows: Vec<Socket>,
    wanted: usize,
}

impl Data {
    /// Opens the sockets that the client will connect or send to.
    ///
    /// # Errors
    /// If a port is taken; the text is the reason for the client.
    pub fn prepare(caller: &Caller, asked: &TestRequest) -> Result<Self, String> {
        let (arrived, arrivals) = mpsc::channel();
        let mut data = Self {
            expected: Vec::new(),
            arrivals,
            listeners: Vec::new(),
            flows: Vec::new(),
            wanted: usize::from(asked.streams),
        };
        if !asked.client_connects() {
            return Ok(data);
        }
        for port in asked.ports() {
            let taken = |error: io::Error| format!("cannot listen on port {port}: {error}");
            if caller.house.hall.ports().contains(&port) {
                let wanted = match asked.carrier {
                    Carrier::Stream => Wanted::Connection { port },
                    Carrier::Datagram => Wanted::Datagrams { port },
                };
                let waits = Hall::expect(caller, wanted, arrived.clone());
                data.expected.push(
                    waits.ok_or_else(|| format!("another test of this client uses port {port}"))?,
                );
                continue;
            }
            let address = at_port(caller.local, port);
            match asked.carrier {
                Carrier::Stream => {
                    let listener = TcpListener::bind(address).map_err(taken)?;
                    listener.set_nonblocking(true).map_err(taken)?;
                    data.listeners.push(listener);
                }
                Carrier::Datagram => {
                    data.flows.push(bound(address).map_err(taken)?);
                }
            }
        }
        Ok(data)
    }

    /// Waits for the client's connections, or makes them.
    ///
    /// # Errors
    /// [`MeasureError::Vanished`] if a connection fails.
    pub fn open(self, caller: &Caller, asked: &TestRequest) -> Result<Vec<Arrived>, MeasureError> {
        let vanished = |how: String| MeasureError::Vanished {
            peer: caller.peer,
            how,
        };
        if !asked.client_connects() {
            let hall = &caller.house.hall;
            let own = |&port: &u16| hall.is_own(at_port(caller.peer, port), caller.local.ip());
            if let Some(port) = asked.ports().find(own) {
                return Err(held_here(caller.peer, port));
            }
            return connect(caller, asked, CONNECT_PATIENCE)
                .map_err(|error| vanished(format!("its data ports reject connections: {error}")));
        }
        if asked.carrier == Carrier::Datagram {
            return self.flows_of(caller, asked);
        }
        let deadline = clock::now() + CONNECT_PATIENCE.as_nanos() as u64;
        let mut came = Vec::new();
        while came.len() < self.wanted {
            if clock::now() > deadline {
                return Err(vanished("it does not connect to the data port".to_owned()));
            }
            if caller.house.stop.load(Relaxed) {
                return Err(vanished(STOPPED.to_owned()));
            }
            came.extend(self.arrivals.try_recv());
            for listener in &self.listeners {
                match listener.accept() {
                    // A connection of another host is not part of this test.
                    Ok((stream, from)) if canonical(from).ip() == caller.peer.ip() => {
                        let blocking = stream.set_nonblocking(false);
                        if blocking.is_ok() {
                            came.push(Arrived::stream(stream, from));
                        }
                    }
                    _ => {}
                }
            }
            clock::sleep_until(clock::now() + 2_000_000);
        }
        for arrived in &came {
            tune(&arrived.socket, asked);
        }
        Ok(came)
    }

    /// Waits for the first datagram of each flow.
    fn flows_of(self, caller: &Caller, asked: &TestRequest) -> Result<Vec<Arrived>, MeasureError> {
        let vanished = |how: &str| MeasureError::Vanished {
            peer: caller.peer,
            how: how.to_owned(),
        };
        let deadline = clock::now() + CONNECT_PATIENCE.as_nanos() as u64;
        let mut came = Vec::new();
        let mut waiting = self.flows;
        while came.len() < self.wanted {
            if clock::now() > deadline {
                return Err(vanished("no data arrived over UDP"));
            }
            if caller.house.stop.load(Relaxed) {
                return Err(vanished(STOPPED));
            }
            came.extend(self.arrivals.try_recv());
            let mut room = vec![0; 1 << 16];
            waiting.retain(|flow| {
                if !readiness::poll(flow, Ready::Receive, Duration::from_millis(2)).is_ok_and(|r| r)
                {
                    return true;
                }
                let first = linerate_host::sys::datagram::receive_addressed(flow, &mut room);
                let Ok(first) = first else { return true };
                let from = canonical(first.from);
                let ours = from.ip() == caller.peer.ip();
                // Datagrams of other hosts that arrived before the socket was connected are too
                // small for payload, or are counted: the sender of each is checked at once.
                if ours
                    && flow.connect(&SockAddr::from(first.from)).is_ok()
                    && let Ok(socket) = flow.try_clone()
                {
                    tune(&socket, asked);
                    came.push(Arrived {
                        socket,
                        from,
                        early: vec![(clock::now(), room[..first.bytes].into())],
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
        drop(self.expected);
        Ok(came)
    }
}

/// Returns the error for a client on the server's own host that chose a port of the server: the
/// client cannot listen there, and ends before its data connection could be made.
fn held_here(peer: SocketAddr, port: u16) -> MeasureError {
    MeasureError::Foreign {
        peer,
        situation: format!(
            "its data cannot go to its port {port}: the client is on this host, where this server \
             uses that port"
        ),
        next_step: format!(
            "let the client use another (`nuttcp -p {}`), or start the server with -p 0, which takes \
             no port except its own",
            other_port(port)
        ),
    }
}

/// Returns an alternative to a port.
pub fn other_port(port: u16) -> u16 {
    port.wrapping_add(100).max(1024)
}

fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// Sets the socket options that the client requested; failures are visible in the record.
fn tune(socket: &Socket, asked: &TestRequest) {
    if let Some(bytes) = asked.window_bytes {
        let _ = socket.set_send_buffer_size(bytes as usize);
        let _ = socket.set_recv_buffer_size(bytes as usize);
    }
    if asked.tos > 0 {
        set_tos(socket, asked.tos);
    }
    if asked.no_delay && asked.carrier == Carrier::Stream {
        let _ = socket.set_tcp_nodelay(true);
    }
}

/// Connects to the client's ports within a time limit. The client's address is validated by the TCP
/// handshake of the control connection.
fn connect(caller: &Caller, asked: &TestRequest, patience: Duration) -> io::Result<Vec<Arrived>> {
    let begin = clock::now();
    let until = begin + (patience + ROUND_TRIP * u32::from(asked.streams)).as_nanos() as u64;
    let stops = || caller.house.stop.load(Relaxed);
    clock::sleep_until(begin + CONNECT_DELAY_NS);
    let mut sockets = Vec::new();
    for port in asked.ports() {
        let to = at_port(caller.peer, port);
        let kind = match asked.carrier {
            Carrier::Stream => Type::STREAM,
            Carrier::Datagram => Type::DGRAM,
        };
        let socket = loop {
            if stops() {
                return Err(io::Error::other(STOPPED));
            }
            let socket = Socket::new(Domain::for_address(to), kind, None)?;
            tune(&socket, asked);
            let local = at_port(caller.local, 0);
            socket.bind(&SockAddr::from(local))?;
            // A port that does not answer would use up all the time; a stop is noticed between two
            // attempts.
            let left = Duration::from_nanos(until.saturating_sub(clock::now()));
            let step = left.clamp(Duration::from_millis(1), TRY);
            match socket.connect_timeout(&SockAddr::from(to), step) {
                Ok(()) => break socket,
                Err(error) if clock::now() >= until => return Err(error),
                Err(_) => clock::sleep_until(clock::now() + AGAIN_NS),
            }
        };
        sockets.push(Arrived {
            socket,
            from: to,
            early: Vec::new(),
            key: None,
        });
    }
    Ok(sockets)
}

/// Starts the workers of the data.
///
/// # Errors
/// If no thread or memory is available.
pub fn spawn(
    test: &mut Test,
    asked: &TestRequest,
    data: Vec<Arrived>,
    client_closed: &Arc<AtomicBool>,
) -> Result<(), MeasureError> {
    let system = |error| MeasureError::system("a second handle on a socket", error);
    match (asked.way, asked.carrier) {
        (Way::ToServer, Carrier::Stream) => {
            // A reference server ends sooner in short tests, and so drops a client that is stopped
            // for ten seconds.
            let idle = Duration::from_nanos(asked.idle_ns()).max(FLOW_SILENCE);
            for (id, arrived) in (1..).zip(data) {
                test.spawn(id, Part::Sink, arrived.socket, move |context, socket| {
                    receive_stream(context, socket, idle, Moved::default())
                })?;
            }
            Ok(())
        }
        (Way::ToServer, Carrier::Datagram) => {
            let together = Arc::new(Together {
                buffer_bytes: (asked.buffer_bytes as u64).max(1),
                going: AtomicUsize::new(data.len()),
                sent: AtomicU64::new(0),
                came: AtomicU64::new(0),
            });
            for (id, arrived) in (1..).zip(data) {
                let Arrived {
                    socket, early, key, ..
                } = arrived;
                test.keep(key, true);
                let mut flow = Incoming {
                    receiver: UdpReceiver::new(asked, clock::now()),
                    client_closed: Arc::clone(client_closed),
                    together: Arc::clone(&together),
                    is_first: id == 1,
                    told: 0,
                };
                test.spawn(id, Part::Sink, socket, move |context, socket| {
                    receive_datagrams(context, socket, early, &mut flow, |_, _, _| false)
                })?;
            }
            Ok(())
        }
        (Way::ToClient, Carrier::Stream) => {
            let sockets: Vec<Socket> = data.into_iter().map(|arrived| arrived.socket).collect();
            let Some(first) = sockets.first() else {
                return Ok(());
            };
            let first = first.try_clone().map_err(system)?;
            // The block size is invisible to the reader of a stream.
            let mut sending = Sending::new(asked.buffer_bytes.min(BLOCK_LIMIT_BYTES), IDLE);
            test.reserve(sending.block_bytes as u64)?;
            let bytes = asked.buffer_bytes as u64;
            sending.amount_bytes = asked.buffers.map(|buffers| buffers.saturating_mul(bytes));
            sending.rate_bps = asked.rate_kbps.map(|kbps| kbps.saturating_mul(1000));
            let limits = Limits {
                time_ns: None,
                ..*test.limits()
            };
            sending = sending.within(&limits, 1);
            let time_ns = asked.time_ns;
            // A reference receiver reads one buffer from each in rotation, so one thread writes in
            // that order.
            test.spawn(1, Part::Source, first, move |context, _| {
                sending.until_ns = time_ns.map(|time| clock::now() + time);
                let mut payload = Ring::random(sending.block_bytes);
                let moved = send_stream(context, &sockets, &sending, &mut payload);
                for socket in &sockets {
                    let _ = socket.shutdown(std::net::Shutdown::Write);
                }
                moved
            })
        }
        (Way::ToClient, Carrier::Datagram) => {
            let sockets: Vec<Socket> = data.into_iter().map(|arrived| arrived.socket).collect();
            let Some(first) = sockets.first() else {
                return Ok(());
            };
            let first = first.try_clone().map_err(system)?;
            let (mut sender, bytes) = (UdpSender::new(asked), asked.buffer_bytes);
            let held = test.limits().rate_bps.is_some();
            if held {
                sender = sender.held();
            }
            test.spawn(1, Part::Source, first, move |context, _| {
                send_datagrams(context, &sockets, sender, bytes, held)
            })
        }
    }
}

/// Sends the datagrams of the protocol's sender at its times.
fn send_datagrams(
    context: &Context,
    sockets: &[Socket],
    mut sender: UdpSender,
    bytes: usize,
    held: bool,
) -> Moved {
    let mut moved = Moved::default();
    let mut payload = vec![0; bytes];
    fastrand::fill(&mut payload);
    let mut refusals = Refusals::default();
    for socket in sockets {
        if let Err(error) = socket.set_write_timeout(Some(LOOK_UP)) {
            moved.broke = Some(Broke::Error(error));
            return moved;
        }
    }
    while !context.signals.closed.load(Relaxed) {
        let now = clock::now();
        if context.signals.ended_ns().is_some() {
            sender.finish();
        }
        match sender.step(now) {
            Send::Marker { bytes, stream } => {
                if bytes == *b"BOD1" && held {
                    // The wait for the send time of the first buffer counts.
                    moved.span.get_or_insert((now, now));
                }
                if bytes == *b"EOD0" {
                    moved.sent_all(None, &context.signals);
                }
                // A failed send equals a lost datagram: markers are repeated.
                let _ = socket::send(&sockets[usize::from(stream)], &bytes, Flags::NONE);
            }
            Send::Data { stream } => {
                sender.stamp(&mut payload);
                let sent = socket::send(&sockets[usize::from(stream)], &payload, Flags::NONE);
                if let Err(error) = &sent
                    && error.kind() == io::ErrorKind::ConnectionRefused
                    && refusals.take(now)
                {
                    moved.broke = sent.err().map(Broke::Error);
                    break;
                }
                if sent.is_ok() {
                    let now = clock::now();
                    moved.span = Some((moved.span.map_or(now, |(first, _)| first), now));
                    moved.totals.bytes += bytes as u64;
                    moved.totals.packets += 1;
                    moved.totals.calls += 1;
                    context.publish(&moved);
                }
            }
            Send::Wait { until_ns } => {
                let step = now + LOOK_UP.as_nanos() as u64;
                clock::sleep_until(until_ns.min(step));
            }
            Send::Nothing => break,
        }
    }
    moved
}

/// Totals shared by the flows of a test: the count in a datagram covers all that its client sent on
/// all ports.
struct Together {
    buffer_bytes: u64,
    /// Flows that have not ended.
    going: AtomicUsize,
    /// Bytes sent up to the last datagram received on any port.
    sent: AtomicU64,
    /// Bytes received.
    came: AtomicU64,
}

impl Together {
    fn lost(&self) -> u64 {
        let (came, sent) = (self.came.load(Relaxed), self.sent.load(Relaxed));
        sent.saturating_sub(came) / self.buffer_bytes
    }
}

/// Receiver of a client's datagrams.
struct Incoming {
    receiver: UdpReceiver,
    client_closed: Arc<AtomicBool>,
    together: Arc<Together>,
    /// True for the first flow, which reports losses while the test runs; the last one to end
    /// reports the total.
    is_first: bool,
    /// Bytes of this flow that are in the shared totals.
    told: u64,
}

impl Incoming {
    fn tell(&mut self) {
        let bytes = self.receiver.totals().bytes;
        self.together.came.fetch_add(bytes - self.told, Relaxed);
        self.told = bytes;
        if let Some(sent) = self.receiver.sent_bytes() {
            self.together.sent.fetch_max(sent, Relaxed);
        }
    }
}

impl Datagrams for Incoming {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        match self.receiver.receive(now, datagram) {
            // Time starts with the marker, if that arrives.
            Took::Begin => Take::Opening,
            Took::Data => Take::Payload,
            Took::Marker | Took::End => Take::Other,
            Took::Stray => Take::Unread,
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        self.tell();
        if self.client_closed.load(Relaxed) {
            self.receiver.control_closed(now);
        }
        self.receiver.is_over(now)
    }

    fn totals(&self) -> Totals {
        let totals = self.receiver.totals();
        Totals {
            bytes: totals.bytes,
            packets: totals.packets,
            calls: 0,
            missing: if self.is_first {
                self.together.lost()
            } else {
                0
            },
            ..Totals::default()
        }
    }

    fn numbers(&mut self) -> Option<Numbers> {
        self.tell();
        let is_last = self.together.going.fetch_sub(1, AcqRel) == 1;
        self.receiver.sent_bytes()?;
        Some(Numbers {
            lost: Some(if is_last { self.together.lost() } else { 0 }),
            ..Numbers::default()
        })
    }
}
