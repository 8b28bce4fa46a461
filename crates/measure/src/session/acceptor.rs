//! Acceptor: one thread that accepts connections and first datagrams, classifies them, and never
//! blocks on one of them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_dialect::control::flow::{OPENING_BYTES, read_opening};
use linerate_dialect::control::{self, Opening, Token};
use linerate_dialect::sniff::{Carrier, DIALECTS, Speaker as Classification, Verdict, speaker};
use linerate_dialect::unrelated_protocol;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::fd_table;
use linerate_metric::event::{Event, What};
use linerate_metric::plan::Protocol;
use mio::net::{TcpListener, TcpStream as MioStream, UdpSocket};
use mio::{Events, Interest, Poll, Token as Key};

use socket2::{SockRef, TcpKeepalive};

use super::limits::{GREETING_PATIENCE, LOBBY_LIMIT};
use super::listen_ports::Door;
use super::server_session::serve;
use super::server_state::{Arrival, House, Seat};
use super::udp_demux::{Arrived, Porch, open_flow};
use crate::error::MeasureError;
use crate::interop::handlers::{self as protocols, Caller, OnStream, Speaker, Stranger, Wanted};

/// Longest time until the server notices that it is to stop.
const LOOK_UP: Duration = Duration::from_millis(250);

/// Poll interval while connections wait for what other sessions release.
const LOOK_UP_SOON: Duration = Duration::from_millis(20);

/// Connections, or datagrams, taken in one poll, so that one port does not delay the others.
const AT_ONCE: usize = 1_024;

/// Failed receive calls in one poll after which the rest waits for the next.
const FAILURES_AT_ONCE: usize = 16;

/// First bytes that are read to classify a connection: the longest protocol header is iperf2's,
/// with all its extensions.
const FIRST_BYTES: usize = 512;

/// A connection whose first bytes still match several protocols after this time carries plain
/// payload.
const TELLING_PATIENCE: Duration = Duration::from_secs(1);

/// Accept loop of a server: connections that are not classified yet, or wait for a session permit.
pub struct Lobby {
    poll: Poll,
    doors: Vec<Open>,
    /// By order of arrival.
    guests: BTreeMap<usize, Guest>,
    /// Control connections that wait for a permit.
    queue: VecDeque<(Guest, Talk)>,
    /// Most pending connections; beyond it the one that has been silent longest is closed.
    room: usize,
    next: usize,
    house: Arc<House>,
    sessions: Vec<JoinHandle<()>>,
    datagram: Vec<u8>,
    /// Time of the last check for connections that stay undecided.
    settled: Instant,
}

/// Listening port and what remains in its two queues: epoll reports new arrivals only.
struct Open {
    tcp: TcpListener,
    udp: UdpSocket,
    port: u16,
    bound: std::net::IpAddr,
    forced: Option<&'static Speaker>,
    accept_again: bool,
    greet_again: bool,
}

struct Guest {
    stream: MioStream,
    peer: SocketAddr,
    door: usize,
    since: Instant,
    /// Time when its first bytes were there.
    spoke_ns: Option<Nanos>,
}

/// Handler of a connection that negotiates before anything is measured.
#[derive(Clone, Copy)]
enum Talk {
    /// Our control protocol.
    Own,
    /// Control protocol of another tool.
    Foreign(fn(Caller, Seat, TcpStream)),
}

/// Classification of a connection by its first bytes.
enum Said {
    /// Too few bytes.
    Little,
    /// Our control connection.
    Control,
    /// Flow of ours, with its token.
    Flow(Token),
    /// Protocol of another tool.
    Foreign(&'static Speaker),
    /// Flow that a running test expects.
    Expected(Wanted),
    /// Payload without a header.
    Plain,
    /// Protocol that is no test (HTTP, TLS, SSH and so on).
    Stray(&'static str),
    /// Protocol that this port does not accept.
    Misplaced(&'static str),
    /// Closed by the client, or not worth a reply.
    Gone,
}

impl Lobby {
    /// Registers all listening sockets with epoll.
    ///
    /// # Errors
    /// Errors of `epoll_create`, `epoll_ctl` and `fcntl`.
    pub fn new(doors: Vec<Door>, house: Arc<House>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut open = Vec::new();
        for (place, door) in doors.into_iter().enumerate() {
            door.tcp.set_nonblocking(true)?;
            door.udp.set_nonblocking(true)?;
            let mut tcp = TcpListener::from_std(door.tcp);
            let mut udp = UdpSocket::from_std(door.udp);
            let registry = poll.registry();
            registry.register(&mut tcp, Key(2 * place), Interest::READABLE)?;
            registry.register(&mut udp, Key(2 * place + 1), Interest::READABLE)?;
            open.push(Open {
                tcp,
                udp,
                port: door.port,
                bound: door.bound,
                forced: door.forced,
                accept_again: false,
                greet_again: false,
            });
        }
        Ok(Self {
            poll,
            next: 2 * open.len(),
            doors: open,
            guests: BTreeMap::new(),
            queue: VecDeque::new(),
            // The other half of the descriptors is for tests.
            room: fd_table::limit().map_or(LOBBY_LIMIT, |files| LOBBY_LIMIT.min(files / 2)),
            house,
            sessions: Vec::new(),
            datagram: vec![0; 1 << 16],
            settled: Instant::now(),
        })
    }

    /// Waits for arrivals, at most for the poll interval, and handles them.
    ///
    /// # Errors
    /// Errors of `epoll_wait`.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let left = |door: &Open| door.accept_again || door.greet_again;
        let soon = self.doors.iter().any(left) || !self.queue.is_empty();
        let patience = if soon { LOOK_UP_SOON } else { LOOK_UP };
        match self.poll.poll(&mut events, Some(patience)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => done?,
        }
        for event in &events {
            let Key(key) = event.token();
            match self.doors.get_mut(key / 2) {
                Some(door) if key % 2 == 0 => door.accept_again = true,
                Some(door) => door.greet_again = true,
                None => self.read(key),
            }
        }
        for door in 0..self.doors.len() {
            if self.doors[door].accept_again {
                self.doors[door].accept_again = !self.accept(door);
            }
            if self.doors[door].greet_again {
                self.doors[door].greet_again = !self.greet_flows(door);
            }
        }
        self.seat_waiting();
        self.settle_undecided();
        let patient = |guest: &Guest| guest.since.elapsed() < GREETING_PATIENCE;
        self.guests.retain(|_, guest| patient(guest));
        let hall = &self.house.hall;
        self.queue.retain(|(guest, _)| {
            let waits = patient(guest);
            if !waits {
                hall.refuse_waiting(guest.peer);
            }
            waits
        });
        self.sessions.retain(|session| !session.is_finished());
        Ok(())
    }

    /// Accepts connections of one listener; returns true when its queue is empty.
    fn accept(&mut self, door: usize) -> bool {
        for _ in 0..AT_ONCE {
            match self.doors[door].tcp.accept() {
                Ok((mut stream, peer)) => {
                    let full = self.guests.len() + self.queue.len() >= self.room;
                    if full && self.guests.pop_first().is_none() {
                        continue;
                    }
                    // Keepalive is best effort: without it, a lost client is noticed later.
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive());
                    let key = self.next;
                    self.next += 1;
                    let registry = self.poll.registry();
                    if registry
                        .register(&mut stream, Key(key), Interest::READABLE)
                        .is_ok()
                    {
                        let guest = Guest {
                            stream,
                            peer,
                            door,
                            since: Instant::now(),
                            spoke_ns: None,
                        };
                        self.guests.insert(key, guest);
                        // Most clients send at once: classify now, so that they do not count as
                        // silent.
                        self.read(key);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return true,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // No descriptor left: close the connection that has been silent longest, so
                    // that others can be accepted.
                    _ if self.guests.pop_first().is_some() => {}
                    _ => return false,
                },
            }
        }
        false
    }

    /// Peeks at the first bytes of a connection and dispatches it when they suffice.
    fn read(&mut self, key: usize) {
        let Some(guest) = self.guests.get(&key) else {
            return;
        };
        let said = self.listen(guest);
        if let Some(guest) = self.guests.get_mut(&key)
            && guest.spoke_ns.is_none()
            && guest.has_begun()
        {
            guest.spoke_ns = Some(clock::now());
        }
        if !matches!(said, Said::Little) {
            self.show_in(key, said);
        }
    }

    /// Decides connections whose first bytes have matched no protocol within the timeout.
    fn settle_undecided(&mut self) {
        // One `recv` for each of thousands of connections, so not in every poll.
        if self.settled.elapsed() < LOOK_UP {
            return;
        }
        self.settled = Instant::now();
        let undecided = |(key, guest): (&usize, &Guest)| {
            let began = !guest.is_young() && guest.has_begun();
            began.then_some(*key)
        };
        let keys: Vec<usize> = self.guests.iter().filter_map(undecided).collect();
        for key in keys {
            let guest = self.guests.get(&key);
            let forced = guest.and_then(|guest| self.doors[guest.door].forced);
            self.show_in(key, forced.map_or(Said::Plain, Said::Foreign));
        }
    }

    /// Hands a connection to its handler.
    fn show_in(&mut self, key: usize, said: Said) {
        let Some(mut guest) = self.guests.remove(&key) else {
            return;
        };
        if self.poll.registry().deregister(&mut guest.stream).is_err() {
            return;
        }
        match said {
            Said::Control => self.queue.push_back((guest, Talk::Own)),
            Said::Flow(token) => self.house.admit(token, |waiting| {
                let mut opening = [0; OPENING_BYTES];
                let all_there = guest.stream.read_exact(&mut opening).is_ok();
                (all_there && waiting.protocol == Protocol::Tcp)
                    .then(|| Arrival::Kernel(guest.stream.into()))
            }),
            Said::Foreign(speaker) => self.show_in_foreign(guest, speaker, None),
            Said::Plain => {
                // Any host can send plain payload: unvalidated clients have a smaller limit.
                let plain = protocols::plain();
                match self.house.hall.stranger() {
                    None => self.house.hall.refuse_stranger(plain.name, guest.peer),
                    some => self.show_in_foreign(guest, plain, some),
                }
            }
            Said::Stray(protocol) => self.house.hall.refuse_stray(protocol, guest.peer),
            Said::Misplaced(dialect) => {
                let door = &self.doors[guest.door];
                let owner = door.forced.map_or("another", |forced| forced.name);
                let hall = &self.house.hall;
                hall.refuse_misplaced(dialect, guest.peer, (door.port, owner));
            }
            Said::Expected(wanted) => {
                let peer = guest.peer;
                self.house.hall.admit(&wanted, peer, || {
                    Some(Arrived::stream(blocking(guest.stream)?, peer))
                });
            }
            // Closing without a reply is safe in every protocol.
            Said::Gone | Said::Little => {}
        }
    }

    fn show_in_foreign(
        &mut self,
        guest: Guest,
        speaker: &'static Speaker,
        stranger: Option<Stranger>,
    ) {
        if !self.house.hall.speaks(speaker.name) {
            self.house.hall.refuse_dialect(speaker.name, guest.peer);
            return;
        }
        match speaker.stream {
            None => {}
            Some(OnStream::Talk(talk)) => self.queue.push_back((guest, Talk::Foreign(talk))),
            Some(OnStream::Test(run)) => match self.house.claim() {
                Err(refuse) => {
                    let hall = &self.house.hall;
                    hall.refuse_test(speaker.name, guest.peer, &refuse);
                }
                Ok(claim) => {
                    let Some((caller, stream)) = self.caller(guest, stranger) else {
                        return;
                    };
                    self.spawn(speaker.name, move || run(caller, claim, stream));
                }
            },
        }
    }

    /// Describes the client for the thread that serves it, and makes its socket blocking.
    fn caller(&self, guest: Guest, stranger: Option<Stranger>) -> Option<(Caller, TcpStream)> {
        let (peer, door) = (guest.peer, guest.door);
        let came_ns = guest.spoke_ns.unwrap_or_else(clock::now);
        let stream = blocking(guest.stream)?;
        let local = stream.local_addr().ok()?;
        // The client completed the TCP handshake, so its address is valid.
        self.house.hall.prove(peer.ip());
        let caller = Caller {
            house: Arc::clone(&self.house),
            peer: canonical(peer),
            local: canonical(local),
            door: self.doors[door].port,
            came_ns,
            stranger,
            given: self.doors[door].forced.is_some(),
        };
        Some((caller, stream))
    }

    /// Starts queued control connections while permits are available.
    fn seat_waiting(&mut self) {
        while !self.queue.is_empty() {
            let Some(seat) = self.house.seat() else {
                return;
            };
            if let Some((guest, talk)) = self.queue.pop_front() {
                self.seat(guest, talk, seat);
            }
        }
    }

    fn seat(&mut self, guest: Guest, talk: Talk, seat: Seat) {
        match talk {
            Talk::Own => {
                self.house.hall.prove(guest.peer.ip());
                let stream = TcpStream::from(OwnedFd::from(guest.stream));
                let house = Arc::clone(&self.house);
                self.spawn("session", move || serve(&house, stream, &[], seat));
            }
            Talk::Foreign(talk) => {
                if let Some((caller, stream)) = self.caller(guest, None) {
                    self.spawn("session", move || talk(caller, seat, stream));
                }
            }
        }
    }

    fn spawn(&mut self, name: &str, session: impl FnOnce() + Send + 'static) {
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(session);
        match spawned {
            Ok(session) => self.sessions.push(session),
            Err(error) => (self.house.emit)(Event {
                test: 0,
                what: What::Failed {
                    problem: MeasureError::system("new thread", error).problem(),
                },
            }),
        }
    }

    /// Starts new UDP flows of one port; returns true when its queue is empty.
    fn greet_flows(&mut self, door: usize) -> bool {
        let mut porch = Porch::new();
        let drained = self.take_datagrams(door, &mut porch);
        for knock in porch.leave(&self.house) {
            let Some(speaker) = knock.speaker else {
                continue;
            };
            let Some(serve) = speaker.datagrams else {
                continue;
            };
            let claim = match self.house.claim() {
                Ok(claim) => claim,
                Err(refuse) => {
                    let from = knock.arrived.from;
                    self.house.hall.refuse_test(speaker.name, from, &refuse);
                    continue;
                }
            };
            let caller = Caller {
                house: Arc::clone(&self.house),
                peer: canonical(knock.arrived.from),
                local: canonical(SocketAddr::new(knock.local, self.doors[door].port)),
                door: self.doors[door].port,
                came_ns: clock::now(),
                stranger: knock.stranger,
                given: self.doors[door].forced.is_some(),
            };
            let arrived = knock.arrived;
            self.spawn(speaker.name, move || serve(caller, claim, arrived));
        }
        drained
    }

    fn take_datagrams(&mut self, door: usize, porch: &mut Porch) -> bool {
        let mut failures = 0;
        for _ in 0..AT_ONCE {
            if porch.is_full() {
                return false;
            }
            let received = linerate_host::sys::datagram::receive_addressed(
                &self.doors[door].udp,
                &mut self.datagram,
            );
            let received = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // An ICMP error of an earlier reply: the next call returns the next datagram.
                Err(_) if failures < FAILURES_AT_ONCE => {
                    failures += 1;
                    continue;
                }
                Err(_) => return false,
            };
            let bytes = &self.datagram[..received.bytes];
            if let Some(token) = read_opening(bytes) {
                let interface = self.house.interface.as_deref();
                self.house.admit(token, |waiting| {
                    let socket = open_flow(waiting, received.from, token, interface)?;
                    Some(Arrival::Kernel(socket.into()))
                });
                continue;
            }
            let open = &self.doors[door];
            let local = received.to.unwrap_or(open.bound);
            porch.knock(
                &self.house,
                received.from,
                SocketAddr::new(local, open.port),
                open.forced,
                bytes,
            );
        }
        false
    }

    /// Closes all sockets and joins the sessions, which have been signalled to end.
    pub fn close(self) {
        drop(self.doors);
        drop(self.guests);
        drop(self.queue);
        for session in self.sessions {
            // A session that panicked has printed its message.
            let _ = session.join();
        }
    }

    fn listen(&self, guest: &Guest) -> Said {
        let door = &self.doors[guest.door];
        if let Some(forced) = door.forced
            && forced.speaks_first
        {
            return Said::Foreign(forced);
        }
        // A test that expects connections of this host at this port gets them, whatever their
        // bytes.
        let wanted = Wanted::Connection { port: door.port };
        if self.house.hall.expects(&wanted, guest.peer) {
            return Said::Expected(wanted);
        }
        let mut room = [0; FIRST_BYTES];
        let first = match guest.stream.peek(&mut room) {
            Ok(0) => return Said::Gone,
            Ok(bytes) => &room[..bytes],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => return Said::Little,
                _ => return Said::Gone,
            },
        };
        if let Some(forced) = door.forced {
            if protocols::only_asks(forced, first) {
                return Said::Gone;
            }
            return match protocols::misplaced(forced, Carrier::Stream, first) {
                Classification::Known(dialect) => Said::Misplaced(dialect.name),
                Classification::NeedMore if guest.is_young() => Said::Little,
                Classification::NeedMore | Classification::Unknown => {
                    self.listen_for(forced, guest, first)
                }
            };
        }
        match speaker(Carrier::Stream, first) {
            Classification::NeedMore if first.len() < FIRST_BYTES => Said::Little,
            Classification::NeedMore | Classification::Unknown => {
                match unrelated_protocol::protocol(first) {
                    Some(protocol) => Said::Stray(protocol),
                    None => Said::Plain,
                }
            }
            Classification::Known(dialect) if dialect.name == control::DIALECT.name => {
                match Opening::of(first) {
                    Some(Opening::Control) => Said::Control,
                    Some(Opening::Data) if first.len() < OPENING_BYTES => Said::Little,
                    Some(Opening::Data) => {
                        read_opening(&first[..OPENING_BYTES]).map_or(Said::Gone, Said::Flow)
                    }
                    None => Said::Gone,
                }
            }
            Classification::Known(dialect) => match protocols::speaker_named(dialect.name) {
                None => Said::Plain,
                Some(speaker) => self.listen_for(speaker, guest, first),
            },
        }
    }

    /// Returns the test that expects a connection of this protocol, or the protocol's handler.
    /// Waits for more bytes while the header that identifies the test is incomplete.
    fn listen_for(&self, speaker: &'static Speaker, guest: &Guest, first: &[u8]) -> Said {
        let Some(flow_of) = speaker.flow_of else {
            return Said::Foreign(speaker);
        };
        let dialect = DIALECTS.iter().find(|known| known.name == speaker.name);
        let said = dialect.map(|dialect| (dialect.recognise)(Carrier::Stream, first));
        if said == Some(Verdict::NeedMore) && guest.is_young() {
            return Said::Little;
        }
        let hall = &self.house.hall;
        let waits = |wanted: &Wanted| hall.expects(wanted, guest.peer);
        flow_of(first)
            .filter(waits)
            .map_or(Said::Foreign(speaker), Said::Expected)
    }
}

impl Guest {
    /// Returns whether its first bytes may still arrive.
    fn is_young(&self) -> bool {
        self.since.elapsed() <= TELLING_PATIENCE
    }

    /// Returns whether it has sent any byte.
    fn has_begun(&self) -> bool {
        self.stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
    }
}

/// Keepalive that detects a lost host: first probe after 10 s without data, closed 15 s later.
fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3)
}

/// Makes the socket of a connection blocking again.
fn blocking(stream: MioStream) -> Option<TcpStream> {
    let stream = TcpStream::from(OwnedFd::from(stream));
    stream.set_nonblocking(false).ok()?;
    Some(stream)
}

/// Converts an IPv4-mapped address to IPv4; other addresses keep their scope id.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}
