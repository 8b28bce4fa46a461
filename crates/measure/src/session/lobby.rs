//! Where connections and datagrams arrive: one thread that never waits for one of them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_dialect::control::{DATA_MAGIC, Opening, Token};
use linerate_dialect::sniff::{Carrier, Speaker, speaker};
use linerate_metric::event::{Event, What};
use linerate_metric::plan::Protocol;
use mio::net::{TcpListener, TcpStream as MioStream, UdpSocket};
use mio::{Events, Interest, Poll, Token as Key};
use socket2::{Domain, SockAddr, Socket, Type};

use super::house::{House, Seat, Waiting};
use super::limits::{GREETING_PATIENCE, LOBBY_LIMIT, open_files};
use super::session::serve;
use crate::error::MeasureError;

/// How soon the server notices that it is to stop.
const LOOK_UP: Duration = Duration::from_millis(250);

/// The same while somebody waits for what other sessions give back.
const LOOK_UP_SOON: Duration = Duration::from_millis(20);

/// Connections, or datagrams, taken in one turn: nobody holds up the others.
const AT_ONCE: usize = 1_024;

/// Failed receive calls in a row after which the rest can wait.
const FAILURES_AT_ONCE: usize = 16;

const TCP: Key = Key(0);
const UDP: Key = Key(1);

/// Connections that have not said yet what they are, or wait for a seat.
pub struct Lobby {
    poll: Poll,
    tcp: TcpListener,
    udp: UdpSocket,
    /// By order of arrival.
    guests: BTreeMap<usize, Guest>,
    /// Control connections for whom there was no seat.
    queue: VecDeque<Guest>,
    /// Guests that fit; the one who has been silent longest goes for one more.
    room: usize,
    next: usize,
    house: Arc<House>,
    sessions: Vec<JoinHandle<()>>,
    /// What was left in the two queues: the poll tells of new arrivals only.
    accept_again: bool,
    greet_again: bool,
}

struct Guest {
    stream: MioStream,
    since: Instant,
    first: Vec<u8>,
}

/// What a guest's first bytes say.
enum Said {
    /// Not enough.
    Little,
    /// A control connection.
    Control,
    /// A flow.
    Flow(Token),
    /// Nothing of ours.
    Nonsense,
}

impl Lobby {
    /// Opens the doors.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(
        tcp: std::net::TcpListener,
        udp: std::net::UdpSocket,
        house: Arc<House>,
    ) -> io::Result<Self> {
        tcp.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        let poll = Poll::new()?;
        let mut tcp = TcpListener::from_std(tcp);
        let mut udp = UdpSocket::from_std(udp);
        poll.registry()
            .register(&mut tcp, TCP, Interest::READABLE)?;
        poll.registry()
            .register(&mut udp, UDP, Interest::READABLE)?;
        Ok(Self {
            poll,
            tcp,
            udp,
            guests: BTreeMap::new(),
            queue: VecDeque::new(),
            // The other half of the descriptors is for tests.
            room: open_files().map_or(LOBBY_LIMIT, |files| LOBBY_LIMIT.min(files / 2)),
            next: 2,
            house,
            sessions: Vec::new(),
            accept_again: false,
            greet_again: false,
        })
    }

    /// Waits for something to happen, and sees to it.
    ///
    /// # Errors
    /// What `epoll_wait` says.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let soon = self.accept_again || self.greet_again || !self.queue.is_empty();
        let patience = if soon { LOOK_UP_SOON } else { LOOK_UP };
        match self.poll.poll(&mut events, Some(patience)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => done?,
        }
        for event in &events {
            match event.token() {
                TCP => self.accept_again = true,
                UDP => self.greet_again = true,
                Key(key) => self.read(key),
            }
        }
        if self.accept_again {
            self.accept_again = !self.accept();
        }
        if self.greet_again {
            self.greet_again = !self.greet_flows();
        }
        self.seat_waiting();
        let patient = |guest: &Guest| guest.since.elapsed() < GREETING_PATIENCE;
        self.guests.retain(|_, guest| patient(guest));
        self.queue.retain(patient);
        self.sessions.retain(|session| !session.is_finished());
        Ok(())
    }

    /// Takes those who are at the door; whether nobody is left there.
    fn accept(&mut self) -> bool {
        for _ in 0..AT_ONCE {
            match self.tcp.accept() {
                Ok((mut stream, _)) => {
                    let full = self.guests.len() + self.queue.len() >= self.room;
                    if full && self.guests.pop_first().is_none() {
                        continue;
                    }
                    let key = self.next;
                    self.next += 1;
                    let registry = self.poll.registry();
                    if registry
                        .register(&mut stream, Key(key), Interest::READABLE)
                        .is_ok()
                    {
                        let guest = Guest {
                            stream,
                            since: Instant::now(),
                            first: Vec::with_capacity(OPENING_BYTES),
                        };
                        self.guests.insert(key, guest);
                        // Most say what they are at once; those are not taken for silent.
                        self.read(key);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return true,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // No descriptor left: whoever has been silent longest gives up his, so that
                    // those who would say something come in.
                    _ if self.guests.pop_first().is_some() => {}
                    _ => return false,
                },
            }
        }
        false
    }

    /// Reads what a connection is, and not a byte more.
    fn read(&mut self, key: usize) {
        let Some(guest) = self.guests.get_mut(&key) else {
            return;
        };
        let said = guest.listen();
        if matches!(said, Said::Little) {
            return;
        }
        let Some(mut guest) = self.guests.remove(&key) else {
            return;
        };
        if self.poll.registry().deregister(&mut guest.stream).is_err() {
            return;
        }
        match said {
            Said::Control => self.queue.push_back(guest),
            Said::Flow(token) => self.house.admit(token, |waiting| {
                (waiting.protocol == Protocol::Tcp).then(|| guest.stream.into())
            }),
            // Closing is the one answer that no protocol misunderstands.
            Said::Nonsense | Said::Little => {}
        }
    }

    /// Gives seats to those who wait for one.
    fn seat_waiting(&mut self) {
        while !self.queue.is_empty() {
            let Some(seat) = self.house.seat() else {
                return;
            };
            if let Some(guest) = self.queue.pop_front() {
                self.seat(guest, seat);
            }
        }
    }

    fn seat(&mut self, guest: Guest, seat: Seat) {
        let stream = TcpStream::from(OwnedFd::from(guest.stream));
        let house = Arc::clone(&self.house);
        let session = std::thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || serve(&house, stream, &guest.first, seat));
        match session {
            Ok(session) => self.sessions.push(session),
            Err(error) => (self.house.emit)(Event {
                test: 0,
                what: What::Failed {
                    problem: MeasureError::system("new thread", error).problem(),
                },
            }),
        }
    }

    /// Gives each announced UDP flow that knocks a socket of its own; whether nobody knocks any
    /// more.
    fn greet_flows(&mut self) -> bool {
        let mut room = [0; OPENING_BYTES + 1];
        let mut failures = 0;
        for _ in 0..AT_ONCE {
            let (bytes, from) = match self.udp.recv_from(&mut room) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                // An ICMP error of an earlier answer: the next call has the next datagram.
                Err(_) if failures < FAILURES_AT_ONCE => {
                    failures += 1;
                    continue;
                }
                Err(_) => return false,
            };
            let Some(token) = read_opening(&room[..bytes]) else {
                continue;
            };
            let interface = self.house.interface.as_deref();
            self.house.admit(token, |waiting| {
                open_flow(waiting, from, token, interface).map(OwnedFd::from)
            });
        }
        false
    }

    /// Closes the doors and waits for the sessions, which have been told to end.
    pub fn close(self) {
        drop(self.tcp);
        drop(self.udp);
        drop(self.guests);
        drop(self.queue);
        for session in self.sessions {
            // A session that panicked has said so.
            let _ = session.join();
        }
    }
}

impl Guest {
    fn listen(&mut self) -> Said {
        loop {
            let wanted = match speaker(Carrier::Stream, &self.first) {
                Speaker::NeedMore => DATA_MAGIC.len(),
                Speaker::Unknown => return Said::Nonsense,
                // The one dialect that this server speaks so far.
                Speaker::Known(_) => match Opening::of(&self.first) {
                    Some(Opening::Control) => return Said::Control,
                    Some(Opening::Data) => OPENING_BYTES,
                    None => return Said::Nonsense,
                },
            };
            let has = self.first.len();
            if has >= wanted {
                return read_opening(&self.first).map_or(Said::Nonsense, Said::Flow);
            }
            let mut room = [0; OPENING_BYTES];
            match self.stream.read(&mut room[..wanted - has]) {
                Ok(0) => return Said::Nonsense,
                Ok(bytes) => self.first.extend_from_slice(&room[..bytes]),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Said::Little,
                    _ => return Said::Nonsense,
                },
            }
        }
    }
}

/// A socket for one UDP flow on the server's port, answered from the address that the client
/// knows. The kernel gives a datagram to the socket that is connected to its sender first.
///
/// The opening must come from the host that holds the control connection: an address in a datagram
/// proves nothing, and a run towards it would flood whoever has it.
fn open_flow(
    waiting: &Waiting,
    from: SocketAddr,
    token: Token,
    interface: Option<&str>,
) -> Option<Socket> {
    // Only a mapped address becomes another one: an IPv6 address keeps its scope.
    let from = match from.ip().to_canonical() {
        ip if ip == from.ip() => from,
        ip => SocketAddr::new(ip, from.port()),
    };
    if waiting.protocol != Protocol::Udp || from.ip() != waiting.peer {
        return None;
    }
    // What fails here is tried again: the client repeats its opening.
    connect_flow(waiting.local, from, token, interface).ok()
}

fn connect_flow(
    local: SocketAddr,
    from: SocketAddr,
    token: Token,
    interface: Option<&str>,
) -> io::Result<Socket> {
    let local_ip = local.ip().to_canonical();
    let socket = Socket::new(Domain::for_address(from), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    let mut bound = SocketAddr::new(local_ip, local.port());
    if let (SocketAddr::V6(bound), SocketAddr::V6(from)) = (&mut bound, from) {
        bound.set_scope_id(from.scope_id());
    }
    socket.bind(&SockAddr::from(bound))?;
    socket.connect(&SockAddr::from(from))?;
    // What came between binding and connecting may be other flows' openings: they are repeated.
    socket.set_nonblocking(true)?;
    let mut room = [std::mem::MaybeUninit::uninit(); 1];
    while socket.recv(&mut room).is_ok() {}
    socket.set_nonblocking(false)?;
    socket.send(&answer(token))?;
    Ok(socket)
}
