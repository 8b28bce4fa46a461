//! The far end: one port that serves many tests at a time.
//!
//! One thread accepts connections and reads their first bytes without ever waiting for one of them;
//! each test then has a thread of its own, besides those that move payload.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_dialect::control::flow::{OPENING_BYTES, answer, read_opening};
use linerate_dialect::control::{
    Accept, Attached, CONTROL_MAGIC, Connection, DATA_MAGIC, FlowGrant, Frame, Refuse, Token,
};
use linerate_host::knob::idle::IdleHold;
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Sched};
use mio::net::{TcpListener as MioListener, TcpStream as MioStream, UdpSocket as MioUdp};
use mio::{Events, Interest, Poll, Token as Key};
use socket2::{Domain, SockAddr, Socket, Type};

use super::client::Family;
use super::hello;
use super::setup::{self, AgreedFlow, Manner, flow_options, part};
use super::wire::Wire;
use crate::assemble::{Report, assemble};
use crate::end::End;
use crate::error::MeasureError;
use crate::lane::Opening;

/// A connection that has not said what it is by then is closed.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// How long the flows of an accepted test may take to arrive.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);

/// Connections that may stand around without having said what they are.
const LOBBY_LIMIT: usize = 16_384;

/// Tests at a time: each has at least two threads.
const TEST_LIMIT: usize = 256;

/// Flows of one test.
const STREAM_LIMIT: u32 = 16_384;

/// Largest buffer that a client may make the server allocate per thread.
const CALL_BYTES_LIMIT: u64 = 64 << 20;

/// Largest UDP payload (a 16-bit length with its own and the IPv4 header inside).
const DATAGRAM_LIMIT: u64 = 65_507;

/// How soon the server notices that it is to stop.
const LOOK_UP: Duration = Duration::from_millis(250);

/// How a server listens.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Its port; 0 takes any free one.
    pub port: u16,
    /// The address that it listens on; all when absent.
    pub address: Option<IpAddr>,
    /// The interface that it listens on; all when absent.
    pub interface: Option<String>,
    /// The families that it listens on, when no address is given.
    pub family: Family,
    /// Serve one test and end.
    pub once: bool,
    /// What far clients may have for the time of their runs.
    pub grants: Vec<Grant>,
}

/// Something that a far client may have for the time of its run, if the server says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Keep the cores from halting.
    Idle,
    /// Run its threads at a scheduling class and priority of its choice.
    Sched,
}

impl std::str::FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "idle" => Ok(Self::Idle),
            "sched" => Ok(Self::Sched),
            _ => Err(format!("`{text}` cannot be granted: sched, idle")),
        }
    }
}

/// Takes events of any test, from any thread.
pub type Emit = Arc<dyn Fn(Event) + Send + Sync>;

/// A bound server.
pub struct Server {
    tcp: std::net::TcpListener,
    udp: UdpSocket,
    port: u16,
    once: bool,
    grants: Vec<Grant>,
}

/// Flows that have been announced and have not arrived yet.
type Announced = Arc<Mutex<HashMap<Token, Waiting>>>;

struct Waiting {
    id: u32,
    protocol: Protocol,
    /// Where the client reached us: its UDP flows are answered from there.
    local: SocketAddr,
    arrived: mpsc::Sender<(u32, OwnedFd)>,
}

/// What every session of a server shares.
struct House {
    announced: Announced,
    emit: Emit,
    stop: Arc<AtomicBool>,
    once: bool,
    grants: Vec<Grant>,
    tests: AtomicU32,
    running: AtomicUsize,
    taken: AtomicBool,
    over: AtomicBool,
    failure: Mutex<Option<MeasureError>>,
    port: u16,
}

impl Server {
    /// Binds TCP and UDP to the same port.
    ///
    /// # Errors
    /// [`MeasureError::PortTaken`], or what is wrong with the address or interface.
    pub fn bind(options: &ServerOptions) -> Result<Self, MeasureError> {
        // With port 0 the port that TCP gets may be taken for UDP: try another.
        let mut tries = if options.port == 0 { 32 } else { 1 };
        loop {
            match Self::bind_once(options) {
                Err(MeasureError::PortTaken { .. }) if tries > 1 => tries -= 1,
                done => return done,
            }
        }
    }

    fn bind_once(options: &ServerOptions) -> Result<Self, MeasureError> {
        let address = match (options.address, options.family) {
            (Some(address), _) => address,
            (None, Family::V4) => Ipv4Addr::UNSPECIFIED.into(),
            (None, _) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let both = options.address.is_none() && options.family == Family::Any;
        let bound = listen(options, SocketAddr::new(address, options.port), both);
        let (tcp, udp) = match bound {
            // A kernel without IPv6 still has IPv4.
            Err(MeasureError::LocalAddress { .. }) if both => {
                let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), options.port);
                listen(options, address, false)?
            }
            bound => bound?,
        };
        let local = tcp.local_addr();
        let local = local.map_err(|error| MeasureError::system("listening socket", error))?;
        Ok(Self {
            tcp,
            udp,
            port: local.port(),
            once: options.once,
            grants: options.grants.clone(),
        })
    }

    /// The port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The addresses it listens on.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        (self.tcp.local_addr().into_iter())
            .map(|address| address.ip().to_string())
            .collect()
    }

    /// Serves until `stop` is set, or until one test is over when it is to serve only one.
    ///
    /// # Errors
    /// What broke the one test of a server that serves only one, or the listening sockets.
    pub fn run(self, stop: Arc<AtomicBool>, emit: Emit) -> Result<(), MeasureError> {
        emit(Event {
            test: 0,
            what: What::Ready {
                port: self.port,
                addresses: self.addresses(),
            },
        });
        let house = Arc::new(House {
            announced: Announced::default(),
            emit,
            stop,
            once: self.once,
            grants: self.grants.clone(),
            tests: AtomicU32::new(0),
            running: AtomicUsize::new(0),
            taken: AtomicBool::new(false),
            over: AtomicBool::new(false),
            failure: Mutex::new(None),
            port: self.port,
        });
        let mut lobby = Lobby::new(self, Arc::clone(&house))
            .map_err(|error| MeasureError::system("listening", error))?;
        while !house.stop.load(Relaxed) && !house.over.load(Relaxed) {
            lobby
                .turn()
                .map_err(|error| MeasureError::system("listening", error))?;
        }
        lobby.close();
        let failure = house.failure.lock().expect("no holder panics").take();
        match failure {
            Some(failure) if self_is_once(&house) => Err(failure),
            _ => Ok(()),
        }
    }
}

fn self_is_once(house: &House) -> bool {
    house.once
}

fn listen(
    options: &ServerOptions,
    address: SocketAddr,
    both: bool,
) -> Result<(std::net::TcpListener, UdpSocket), MeasureError> {
    let bind = |kind: Type, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(!both)?;
        }
        // TCP: connections of an earlier server may linger. UDP: each flow gets a socket of its own
        // on the same port.
        socket.set_reuse_address(true)?;
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.bind(&SockAddr::from(address))?;
        Ok(socket)
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => MeasureError::PortTaken {
            port: address.port(),
            source,
        },
        io::ErrorKind::PermissionDenied if address.port() < 1024 => MeasureError::OptionRefused {
            option: format!("-p {}", address.port()),
            why: "ports below 1024 need a privilege".to_owned(),
            next_step: "run as root, or choose a port above 1023".to_owned(),
        },
        _ => MeasureError::LocalAddress {
            address: match &options.interface {
                Some(interface) => format!("{}%{interface}", address.ip()),
                None => address.ip().to_string(),
            },
            source,
        },
    };
    let tcp = bind(Type::STREAM, address).map_err(failed)?;
    tcp.listen(4096).map_err(failed)?;
    let port = tcp.local_addr().map_err(failed)?.as_socket();
    let address = SocketAddr::new(address.ip(), port.map_or(address.port(), |a| a.port()));
    // SO_REUSEADDR lets two servers share a UDP port; whether one is there already is seen
    // without it.
    if options.port != 0 {
        let probe = Socket::new(Domain::for_address(address), Type::DGRAM, None);
        let probe = probe.and_then(|socket| {
            if address.is_ipv6() {
                socket.set_only_v6(!both)?;
            }
            socket.bind(&SockAddr::from(address))
        });
        probe.map_err(failed)?;
    }
    let udp = bind(Type::DGRAM, address).map_err(failed)?;
    Ok((tcp.into(), udp.into()))
}

const TCP: Key = Key(0);
const UDP: Key = Key(1);

/// Connections that have not said yet what they are.
struct Lobby {
    poll: Poll,
    tcp: MioListener,
    udp: MioUdp,
    guests: HashMap<usize, Guest>,
    next: usize,
    house: Arc<House>,
    sessions: Vec<JoinHandle<()>>,
}

struct Guest {
    stream: MioStream,
    since: Instant,
    first: Vec<u8>,
}

impl Lobby {
    fn new(server: Server, house: Arc<House>) -> io::Result<Self> {
        server.tcp.set_nonblocking(true)?;
        server.udp.set_nonblocking(true)?;
        let poll = Poll::new()?;
        let mut tcp = MioListener::from_std(server.tcp);
        let mut udp = MioUdp::from_std(server.udp);
        poll.registry()
            .register(&mut tcp, TCP, Interest::READABLE)?;
        poll.registry()
            .register(&mut udp, UDP, Interest::READABLE)?;
        Ok(Self {
            poll,
            tcp,
            udp,
            guests: HashMap::new(),
            next: 2,
            house,
            sessions: Vec::new(),
        })
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        match self.poll.poll(&mut events, Some(LOOK_UP)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => done?,
        }
        for event in &events {
            match event.token() {
                TCP => self.accept(),
                UDP => self.greet_flows(),
                Key(key) => self.read(key),
            }
        }
        self.guests
            .retain(|_, guest| guest.since.elapsed() < GREETING_PATIENCE);
        self.sessions.retain(|session| !session.is_finished());
        Ok(())
    }

    fn accept(&mut self) {
        // Edge-triggered: everything that waits is taken now.
        loop {
            match self.tcp.accept() {
                Ok((mut stream, _)) => {
                    if self.guests.len() >= LOBBY_LIMIT {
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
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No descriptor left: those who wait are served when one is free.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    /// Reads what a connection is, and not a byte more.
    fn read(&mut self, key: usize) {
        let Some(guest) = self.guests.get_mut(&key) else {
            return;
        };
        loop {
            let wanted = match guest.first.get(..DATA_MAGIC.len()) {
                None => DATA_MAGIC.len(),
                Some(magic) if magic == DATA_MAGIC => OPENING_BYTES,
                Some(magic) if magic == CONTROL_MAGIC => break,
                Some(_) => {
                    // Not ours. Closing is the one answer that no protocol misunderstands.
                    self.guests.remove(&key);
                    return;
                }
            };
            let has = guest.first.len();
            if has == wanted {
                break;
            }
            let mut room = [0; OPENING_BYTES];
            match guest.stream.read(&mut room[..wanted - has]) {
                Ok(0) => {
                    self.guests.remove(&key);
                    return;
                }
                Ok(bytes) => guest.first.extend_from_slice(&room[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.guests.remove(&key);
                    return;
                }
            }
        }
        if let Some(guest) = self.guests.remove(&key) {
            self.seat(guest);
        }
    }

    /// Brings a connection to where it belongs.
    fn seat(&mut self, mut guest: Guest) {
        if self.poll.registry().deregister(&mut guest.stream).is_err() {
            return;
        }
        let stream = TcpStream::from(OwnedFd::from(guest.stream));
        if let Some(token) = read_opening(&guest.first) {
            let mut announced = self.house.announced.lock().expect("no holder panics");
            let fits = (announced.get(&token)).is_some_and(|w| w.protocol == Protocol::Tcp);
            if let Some(waiting) = fits.then(|| announced.remove(&token)).flatten() {
                // The session may have given up meanwhile; then the connection just closes.
                let _ = waiting.arrived.send((waiting.id, stream.into()));
            }
            return;
        }
        let house = Arc::clone(&self.house);
        let session = std::thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || serve(&house, stream, &guest.first));
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

    /// Gives each announced UDP flow that knocks a socket of its own.
    fn greet_flows(&mut self) {
        let mut room = [0; OPENING_BYTES + 1];
        loop {
            let (bytes, from) = match self.udp.recv_from(&mut room) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An ICMP error of an earlier answer: the next call has the next datagram.
                Err(_) => continue,
            };
            let Some(token) = read_opening(&room[..bytes]) else {
                continue;
            };
            let mut announced = self.house.announced.lock().expect("no holder panics");
            let Some(waiting) = announced.get(&token) else {
                continue;
            };
            if waiting.protocol != Protocol::Udp {
                continue;
            }
            if let Ok(socket) = open_flow(waiting.local, from, token) {
                let sent = waiting.arrived.send((waiting.id, socket.into()));
                if sent.is_ok() {
                    announced.remove(&token);
                }
            }
        }
    }

    fn close(self) {
        drop(self.tcp);
        drop(self.udp);
        drop(self.guests);
        for session in self.sessions {
            let _ = session.join();
        }
    }
}

/// A socket for one UDP flow on the server's port, answered from the address that the client
/// knows. The kernel gives a datagram to the socket that is connected to its sender first.
fn open_flow(local: SocketAddr, from: SocketAddr, token: Token) -> io::Result<Socket> {
    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
    let local_ip = local.ip().to_canonical();
    let socket = Socket::new(Domain::for_address(from), Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
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

/// One test, from the greeting to the farewell.
fn serve(house: &Arc<House>, stream: TcpStream, first: &[u8]) {
    let test = house.tests.fetch_add(1, Relaxed) + 1;
    house.running.fetch_add(1, Relaxed);
    let emit = |what| (house.emit)(Event { test, what });
    let mut session = Session {
        house,
        emit: &emit,
        began: false,
        claimed: false,
        tokens: Vec::new(),
    };
    let result = session.run(stream, first);
    let (began, claimed) = (session.began, session.claimed);
    session.forget();
    house.running.fetch_sub(1, Relaxed);
    if let Err(error) = result {
        // Whoever connects and goes away again is nobody's failure.
        if claimed {
            emit(What::Failed {
                problem: error.problem(),
            });
            if began {
                *house.failure.lock().expect("no holder panics") = Some(error);
            }
        }
    }
    if claimed && house.once {
        if began {
            house.over.store(true, Relaxed);
        } else {
            // It never came to a test: the one test is still to be had.
            house.taken.store(false, Relaxed);
        }
    }
}

/// What the server promised: its answer, how it will wait, where the flows will arrive, and what
/// it holds meanwhile.
type Agreed = (
    Accept,
    Manner,
    mpsc::Receiver<(u32, OwnedFd)>,
    Option<IdleHold>,
);

struct Session<'a> {
    house: &'a Arc<House>,
    emit: &'a dyn Fn(What),
    /// Payload has moved.
    began: bool,
    /// A test was asked for and granted.
    claimed: bool,
    tokens: Vec<Token>,
}

impl Session<'_> {
    fn forget(&self) {
        let mut announced = self.house.announced.lock().expect("no holder panics");
        for token in &self.tokens {
            announced.remove(token);
        }
    }

    fn run(&mut self, stream: TcpStream, first: &[u8]) -> Result<(), MeasureError> {
        let system = |error| MeasureError::system("control connection", error);
        let peer = stream.peer_addr().map_err(system)?;
        let local = stream.local_addr().map_err(system)?;
        let host = setup::host_facts(Role::Server, peer.ip().to_canonical());
        let codec = Connection::server(hello(host.boot_id.clone()))
            .map_err(|source| MeasureError::Protocol { peer, source })?;
        let mut wire = Wire::new(stream, codec)?;
        wire.preload(first)?;
        let Frame::Hello(greeting) = wire.expect()? else {
            return Err(refuse_to_talk(peer));
        };
        let Frame::Propose(propose) = wire.expect()? else {
            return Err(refuse_to_talk(peer));
        };
        if let Err((problem, exit_code)) = self.claim(&propose.plan) {
            wire.say(Refuse { problem, exit_code })?;
            wire.close(Duration::from_secs(1));
            return Ok(());
        }
        (self.emit)(What::Connected {
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string(),
            agent: greeting.agent.clone(),
        });
        let shares_cores = greeting.boot_id.is_some() && greeting.boot_id == host.boot_id;
        let agreed = self.agree(propose.plan, shares_cores, local);
        // The hold ends with this function, and so with the run.
        let (accept, manner, arrivals, _hold) = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                wire.say(Refuse {
                    problem: error.problem(),
                    exit_code: error.exit_code(),
                })?;
                wire.close(Duration::from_secs(1));
                return Err(error);
            }
        };
        wire.say(accept.clone())?;
        let plan = Arc::new(accept.plan.clone());
        let ready = self
            .attach(&accept, &mut wire, &arrivals)
            .and_then(|flows| setup::prepare(&plan, Role::Server, &manner, flows));
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                // The client may be the one who is gone.
                let _ = wire.say(Refuse {
                    problem: error.problem(),
                    exit_code: error.exit_code(),
                });
                wire.close(Duration::from_secs(1));
                return Err(error);
            }
        };
        let begun = wire.say(Attached {}).and_then(|()| wire.expect());
        match begun {
            Ok(Frame::Start(_)) => {}
            other => {
                ready.gate.cancel();
                other?;
                return Err(refuse_to_talk(peer));
            }
        }
        self.began = true;
        self.measure(wire, plan, host, ready, &accept, shares_cores)
    }

    fn measure(
        &self,
        mut wire: Wire,
        plan: Arc<Plan>,
        host: Host,
        ready: setup::Ready,
        accept: &Accept,
        shares_cores: bool,
    ) -> Result<(), MeasureError> {
        let started = jiff::Timestamp::now();
        let near_wait = plan.wait.as_ref().map_or(accept.wait, |wait| wait.near);
        (self.emit)(What::Started {
            plan: Box::new(Plan::clone(&plan)),
            wait: Ends {
                near: near_wait,
                far: accept.wait,
            },
            cpu: plan.cpu.clone(),
            because: accept.because.clone(),
        });
        let ended = End {
            role: Role::Server,
            plan: Arc::clone(&plan),
            host,
            wire: &mut wire,
            gate: ready.gate,
            lanes: ready.lanes,
            flows: ready.flows,
            done: ready.done,
            stop: &self.house.stop,
            emit: &mut |what| (self.emit)(what),
            doubts: accept.doubts.clone(),
            watches_machine: !shares_cores,
        }
        .run();
        wire.close(Duration::from_secs(1));
        let (record, failure) = assemble(Report {
            plan: Plan::clone(&plan),
            started,
            role: Role::Server,
            ended,
        });
        (self.emit)(What::Finished {
            record: Box::new(record),
        });
        failure.map_or(Ok(()), Err)
    }

    /// Takes a place for a test, if the plan is one that this server runs.
    fn claim(&mut self, plan: &Plan) -> Result<(), (Problem, u8)> {
        if let Some(problem) = unfit(plan) {
            return Err((problem, exit::USAGE));
        }
        let here = format!("server port {}", self.house.port);
        if self.house.running.load(Relaxed) > TEST_LIMIT {
            return Err((
                Problem::new(
                    format!("it runs {TEST_LIMIT} tests already"),
                    here,
                    "try again later, or with --retry 30s",
                ),
                exit::PEER,
            ));
        }
        if self.house.once && self.house.taken.swap(true, Relaxed) {
            return Err((
                Problem::new(
                    "it serves a single test, and another client has it",
                    here,
                    "start a server without -1",
                ),
                exit::PEER,
            ));
        }
        self.claimed = true;
        Ok(())
    }

    /// Settles this end's part of the plan and announces the flows.
    fn agree(
        &mut self,
        mut plan: Plan,
        shares_cores: bool,
        local: SocketAddr,
    ) -> Result<Agreed, MeasureError> {
        setup::check_congestion_control(&plan)?;
        let refused = setup::settle_udp_offload(&mut plan, Role::Server)?;
        // To be nicer than others takes nothing from them.
        let takes = !matches!(plan.sched.far, Sched::Inherited | Sched::Nice(0..));
        if takes && !self.house.grants.contains(&Grant::Sched) {
            return Err(MeasureError::OptionRefused {
                option: format!("--sched {}", plan.sched),
                why: "it does not let clients choose how its threads are scheduled".to_owned(),
                next_step: "start it as root with `linerate server --grant sched`, or ask for \
                            this end alone: --sched CLASS/inherited"
                    .to_owned(),
            });
        }
        // On the client's own machine its hold is enough.
        let hold = if plan.hold_latency && !shares_cores {
            if !self.house.grants.contains(&Grant::Idle) {
                return Err(MeasureError::OptionRefused {
                    option: "--hold-latency".to_owned(),
                    why: "it does not let clients keep its cores from halting".to_owned(),
                    next_step: "start it as root with `linerate server --grant idle`".to_owned(),
                });
            }
            setup::hold_idle(&plan)?
        } else {
            None
        };
        if plan.protocol == Protocol::Tcp && plan.flows(Direction::Receive) {
            // In both directions the client's name stands: the ends differ only where nobody asked.
            plan.congestion_control = plan
                .congestion_control
                .or_else(setup::default_congestion_control);
        }
        let asked = plan.wait.as_ref().map(|wait| wait.far);
        let cpus = plan.cpu.far.clone();
        let manner = Manner::settle(&plan, Role::Server, asked, cpus, shares_cores)?;
        let (arrived, arrivals) = mpsc::channel();
        let mut flows = Vec::new();
        let mut announced = self.house.announced.lock().expect("no holder panics");
        let mut id = 0;
        for &direction in &plan.directions {
            for _ in 0..plan.streams {
                id += 1;
                let token = new_token()?;
                announced.insert(
                    token,
                    Waiting {
                        id,
                        protocol: plan.protocol,
                        local,
                        arrived: arrived.clone(),
                    },
                );
                self.tokens.push(token);
                flows.push(FlowGrant {
                    id,
                    direction,
                    token,
                });
            }
        }
        drop(announced);
        let accept = Accept {
            plan,
            wait: manner.wait,
            cpus: manner.cpus.clone(),
            flows,
            doubts: refused.into_iter().collect(),
            because: manner.because.clone(),
        };
        Ok((accept, manner, arrivals, hold))
    }

    /// Waits until every announced flow has arrived.
    fn attach(
        &self,
        accept: &Accept,
        wire: &mut Wire,
        arrivals: &mpsc::Receiver<(u32, OwnedFd)>,
    ) -> Result<Vec<AgreedFlow>, MeasureError> {
        let began = Instant::now();
        // Thousands of flows open one after the other: what counts is that more keep coming.
        let mut last = began;
        let mut flows = Vec::new();
        while flows.len() < accept.flows.len() {
            match arrivals.recv_timeout(Duration::from_millis(50)) {
                Ok((id, fd)) => {
                    last = Instant::now();
                    let grant = accept.flows.iter().find(|grant| grant.id == id);
                    let Some(grant) = grant else { continue };
                    flows.push(AgreedFlow {
                        id,
                        direction: grant.direction,
                        opening: Opening::Adopt(fd),
                        options: flow_options(&accept.plan, part(Role::Server, grant.direction)),
                    });
                }
                Err(_) => match wire.hear()? {
                    Some(Frame::Bye(_) | Frame::Refuse(_)) => {
                        return Err(MeasureError::Vanished {
                            peer: wire.peer(),
                            how: "it gave the test up before it began".to_owned(),
                        });
                    }
                    _ if last.elapsed() > ATTACH_PATIENCE => {
                        return Err(MeasureError::Vanished {
                            peer: wire.peer(),
                            how: format!(
                                "only {} of {} flows arrived within {} s",
                                flows.len(),
                                accept.flows.len(),
                                ATTACH_PATIENCE.as_secs()
                            ),
                        });
                    }
                    _ => wire.beat()?,
                },
            }
        }
        flows.sort_by_key(|flow| flow.id);
        Ok(flows)
    }
}

/// What makes a plan one that no server of this version runs.
fn unfit(plan: &Plan) -> Option<Problem> {
    let problem = |what: &str, value: String, next: &str| {
        Some(Problem::new(format!("{what} out of range"), value, next))
    };
    let largest = match plan.protocol {
        Protocol::Tcp => CALL_BYTES_LIMIT,
        Protocol::Udp => DATAGRAM_LIMIT,
    };
    if plan.streams == 0 || plan.streams > STREAM_LIMIT {
        return problem(
            "number of streams",
            format!("-P {}", plan.streams),
            "use 1 to 16384",
        );
    }
    if plan.payload_bytes == 0 || plan.payload_bytes > largest {
        return problem(
            "payload size",
            format!("-l {}", plan.payload_bytes),
            "use 1 B to 64 MiB for TCP, to 65507 B for UDP",
        );
    }
    if plan.receive_bytes.unwrap_or(1) == 0 || plan.receive_bytes.unwrap_or(0) > CALL_BYTES_LIMIT {
        return problem("receive size", String::new(), "use 1 B to 64 MiB");
    }
    let mut directions = plan.directions.clone();
    directions.sort_unstable();
    directions.dedup();
    if directions.is_empty() || directions.len() != plan.directions.len() {
        return problem("directions", String::new(), "name each at most once");
    }
    if plan.kind == Kind::Latency && directions != [Direction::Send] {
        return problem(
            "directions",
            String::new(),
            "round trips go one way: from the client",
        );
    }
    if plan
        .interval_ns
        .is_some_and(|interval| interval < 1_000_000)
    {
        return problem("interval", String::new(), "use -i 1ms or more");
    }
    None
}

fn new_token() -> Result<Token, MeasureError> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| MeasureError::system("random numbers", error.into()))?;
    Ok(Token(bytes))
}

fn refuse_to_talk(peer: SocketAddr) -> MeasureError {
    MeasureError::Vanished {
        peer,
        how: "the conversation made no sense".to_owned(),
    }
}
