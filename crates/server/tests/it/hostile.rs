//! Clients and servers that violate the protocol, over loopback.

mod grants;
mod results;
mod stops;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lab::{Lab, LabError, Topology};
use linerate_protocol::control::flow::{opening, read_reply};
use linerate_protocol::control::{
    Accept, CONTROL_MAGIC, ClockRequest, ControlCodec, ControlError, FlowGrant, FlowToken, Frame,
    Heartbeat, Hello, Propose, Reject, RequestedSettings, SenderTotals, StartRun,
};
use linerate_record::event::{Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::facts::HostFacts;
use linerate_record::plan::{
    CpuList, Direction, PerEnd, Plan, RunKind, SendCopy, TimestampLevel, TransportProtocol,
    WaitMode,
};
use linerate_record::record::Record;
use linerate_server::options::{Grant, ServerOptions};
use linerate_server::server::Server;
use linerate_server::timeouts::Timeouts;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;
use linerate_session::remote_settings::{AppliedSettings, RemoteTuning};

/// Upper bound of every wait, for a machine that is many times slower and busier than this one.
const LONG: Duration = Duration::from_secs(90);

struct TestServer {
    port: u16,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
    thread: JoinHandle<Result<(), SessionError>>,
}

impl TestServer {
    fn start(single_test: bool) -> Self {
        Self::start_with(single_test, |_| {})
    }

    /// Starts a server; `also` receives every event before it is stored.
    fn start_with(single_test: bool, also: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self::serve(Ipv4Addr::LOCALHOST, single_test, Vec::new(), also)
    }

    /// Starts a server on an address of this host, with grants.
    fn granting(address: Ipv4Addr, grants: Vec<Grant>) -> Self {
        Self::serve(address, false, grants, |_| {})
    }

    fn serve(
        address: Ipv4Addr,
        single_test: bool,
        grants: Vec<Grant>,
        also: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Self {
        let options = ServerOptions {
            port: 0,
            address: Some(address.into()),
            interface: None,
            family: AddressFamily::Any,
            single_test,
            grants,
            ..ServerOptions::default()
        };
        Self::serving(options, also)
    }

    fn serving(options: ServerOptions, also: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        let server = Server::bind(&options).unwrap();
        let port = server.port();
        let stop = Arc::new(AtomicBool::new(false));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (flag, log) = (Arc::clone(&stop), Arc::clone(&events));
        let emit = Arc::new(move |event: Event| {
            also(&event);
            log.lock().unwrap().push(event);
        });
        let thread = std::thread::spawn(move || server.run(flag, emit));
        Self {
            port,
            stop,
            events,
            thread,
        }
    }

    fn plan(&self, kind: RunKind, protocol: TransportProtocol) -> Plan {
        plan(kind, protocol, self.port)
    }

    fn end(self) -> Result<(), SessionError> {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

/// Returns options of a server with short silence limits, and the limits.
fn short_timeouts() -> (ServerOptions, Timeouts) {
    let timeouts = Timeouts::short();
    let options = ServerOptions {
        address: Some(Ipv4Addr::LOCALHOST.into()),
        timeouts,
        ..ServerOptions::default()
    };
    (options, timeouts)
}

fn plan(kind: RunKind, protocol: TransportProtocol, port: u16) -> Plan {
    let mut plan = Plan::new(kind, protocol, "127.0.0.1");
    plan.port = port;
    plan.duration_ns = Some(200_000_000);
    plan.interval_ns = Some(100_000_000);
    plan
}

fn run_for(plan: Plan, retry: Duration) -> Result<Record, SessionError> {
    let client = Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: retry,
        key: None,
    };
    let stop = AtomicBool::new(false);
    let (record, failure) = client.run(&stop, &mut |_| {})?;
    failure.map_or(Ok(record), Err)
}

fn run(plan: Plan) -> Result<Record, SessionError> {
    run_for(plan, Duration::ZERO)
}

/// End of a control connection, driven step by step.
struct ManualPeer {
    stream: TcpStream,
    codec: ControlCodec,
}

impl ManualPeer {
    fn client(port: u16, hello: Hello) -> Self {
        Self::client_of(Ipv4Addr::LOCALHOST, port, hello)
    }

    fn client_of(address: Ipv4Addr, port: u16, hello: Hello) -> Self {
        let stream = TcpStream::connect((address, port)).unwrap();
        Self::new(stream, ControlCodec::client(hello).unwrap())
    }

    fn server(listener: &TcpListener, hello: Hello) -> Self {
        let (stream, _) = listener.accept().unwrap();
        Self::new(stream, ControlCodec::server(hello).unwrap())
    }

    fn new(stream: TcpStream, codec: ControlCodec) -> Self {
        let timeout = Some(Duration::from_secs(20));
        stream.set_read_timeout(timeout).unwrap();
        let mut peer = Self { stream, codec };
        peer.flush();
        peer
    }

    fn flush(&mut self) {
        let bytes = self.codec.outgoing().to_vec();
        self.stream.write_all(&bytes).unwrap();
        self.codec.mark_sent(bytes.len());
    }

    fn send(&mut self, frame: impl Into<Frame>) {
        self.codec.send(&frame.into()).unwrap();
        self.flush();
    }

    /// Returns the next frame that is no heartbeat; `None` when the connection was closed.
    fn receive(&mut self) -> Result<Option<Frame>, ControlError> {
        loop {
            match self.codec.next_frame() {
                Ok(Some(Frame::Heartbeat(_))) => continue,
                Ok(Some(frame)) => {
                    self.flush();
                    return Ok(Some(frame));
                }
                Ok(None) => {}
                Err(error) => {
                    self.flush();
                    return Err(error);
                }
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return Ok(None),
                Ok(bytes) => self.codec.receive(&buffer[..bytes])?,
            }
        }
    }

    fn next(&mut self) -> Frame {
        self.receive().unwrap().expect("a frame")
    }

    /// Runs the handshake up to the reply to a proposal.
    fn propose(port: u16, plan: Plan) -> (Self, Frame) {
        Self::propose_to(Ipv4Addr::LOCALHOST, port, plan)
    }

    fn propose_to(address: Ipv4Addr, port: u16, plan: Plan) -> (Self, Frame) {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let hello = Hello {
            boot_id: boot.map(|id| id.trim().to_owned()),
            ..Hello::new("hand")
        };
        let mut peer = Self::client_of(address, port, hello);
        assert!(matches!(peer.next(), Frame::Hello(_)));
        peer.send(Propose {
            plan,
            host: HostFacts::default(),
        });
        let answer = peer.next();
        (peer, answer)
    }

    fn accepted(port: u16, plan: Plan) -> (Self, Accept) {
        match Self::propose(port, plan) {
            (peer, Frame::Accept(accept)) => (peer, *accept),
            (_, others) => panic!("{others:?}"),
        }
    }

    /// Returns a server with a pending proposal, and the reply that grants one flow.
    fn proposed(listener: &TcpListener) -> (Self, Accept) {
        let mut peer = Self::server(listener, Hello::new("hand"));
        assert!(matches!(peer.next(), Frame::Hello(_)));
        let Frame::Propose(propose) = peer.next() else {
            panic!("no proposal");
        };
        let accept = Accept {
            plan: propose.plan,
            wait: WaitMode::Block,
            cpus: CpuList::default(),
            flows: vec![FlowGrant {
                id: 1,
                direction: Direction::Send,
                token: FlowToken([1; 16]),
                port: None,
            }],
            caveats: Vec::new(),
            wait_reason: None,
            threads: None,
        };
        (peer, accept)
    }
}

fn udp_plan(port: u16) -> Plan {
    let mut plan = plan(RunKind::Latency, TransportProtocol::Udp, port);
    plan.wait = Some(PerEnd::same(WaitMode::Block));
    plan
}

fn gets_reply(udp: &UdpSocket, port: u16, token: FlowToken) -> bool {
    udp.send_to(&opening(token), ("127.0.0.1", port)).unwrap();
    let mut buffer = [0; 100];
    match udp.recv(&mut buffer) {
        Ok(bytes) => read_reply(&buffer[..bytes]) == Some(token),
        Err(_) => false,
    }
}

/// Two hosts and a link, with different boot ids; `None` without the privilege.
fn lab(test: &str) -> Option<Lab> {
    match Lab::up(&Topology::hops(0)) {
        Ok(lab) => Some(lab),
        Err(LabError::NotPrivileged) => {
            println!("skipped: {test} needs root for network namespaces");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn udp(address: &str) -> UdpSocket {
    let udp = UdpSocket::bind((address, 0)).unwrap();
    udp.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    udp
}

#[test]
fn a_server_of_both_families_knows_its_clients() {
    let bound = Server::bind(&ServerOptions {
        port: 0,
        address: None,
        interface: Some("lo".to_owned()),
        family: AddressFamily::Any,
        single_test: false,
        grants: Vec::new(),
        ..ServerOptions::default()
    });
    let server = match bound {
        Ok(server) => server,
        Err(error) => {
            println!("cannot bind to lo here: {error}");
            return;
        }
    };
    let port = server.port();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let thread = std::thread::spawn(move || server.run(flag, Arc::new(|_| {})));
    for host in ["127.0.0.1", "::1"] {
        if TcpStream::connect((host, port)).is_err() {
            println!("no {host} here");
            continue;
        }
        for bind in [None, Some("%lo".to_owned())] {
            let mut plan = udp_plan(port);
            plan.host = host.to_owned();
            plan.bind = bind;
            assert!(
                run(plan).unwrap().summary.round_trips.unwrap() > 0,
                "{host}"
            );
        }
    }
    stop.store(true, Relaxed);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_token_from_another_address_gets_no_reply() {
    let server = TestServer::start(false);
    let (_peer, accept) = ManualPeer::accepted(server.port, udp_plan(server.port));
    let token = accept.flows[0].token;
    assert!(!gets_reply(&udp("127.0.0.2"), server.port, token));
    assert!(gets_reply(&udp("127.0.0.1"), server.port, token));
    server.end().unwrap();
}

#[test]
fn lost_replies_are_repeated_until_the_start() {
    let server = TestServer::start(false);
    let mut plan = udp_plan(server.port);
    plan.streams = 2;
    let (mut peer, accept) = ManualPeer::accepted(server.port, plan);
    let (first, second) = (udp("127.0.0.1"), udp("127.0.0.1"));
    let tokens: Vec<_> = accept.flows.iter().map(|flow| flow.token).collect();
    for _ in 0..3 {
        assert!(gets_reply(&first, server.port, tokens[0]));
    }
    assert!(gets_reply(&second, server.port, tokens[1]));
    assert!(matches!(peer.next(), Frame::Attached(_)));
    for _ in 0..2 {
        assert!(gets_reply(&first, server.port, tokens[0]));
        assert!(gets_reply(&second, server.port, tokens[1]));
    }
    server.end().unwrap();
}

#[test]
fn short_messages_of_clients_do_not_delay_the_server_stop() {
    let server = TestServer::start(false);
    let silent: Vec<_> = (0..10)
        .map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap())
        .collect();
    let mut brief: Vec<_> = (0..5)
        .map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap())
        .collect();
    for stream in &mut brief {
        stream.write_all(&CONTROL_MAGIC).unwrap();
    }
    let mut alive = ManualPeer::client(server.port, Hello::new("hand"));
    assert!(matches!(alive.next(), Frame::Hello(_)));
    alive.send(Heartbeat {});
    let (mut unattached, _) = ManualPeer::accepted(server.port, udp_plan(server.port));
    unattached.send(Heartbeat {});
    std::thread::sleep(Duration::from_millis(200));
    let start_time = Instant::now();
    server.end().unwrap();
    assert!(
        // Well before any timeout.
        start_time.elapsed() < Duration::from_secs(8),
        "{:?}",
        start_time.elapsed()
    );
    // Clients that use the protocol got a rejection.
    for peer in [&mut alive, &mut unattached] {
        match peer.receive() {
            Ok(Some(Frame::Reject(rejection))) => assert!(rejection.retryable),
            others => panic!("{others:?}"),
        }
    }
    drop(silent);
}

#[test]
fn heartbeats_do_not_prolong_a_handshake() {
    let (options, timeouts) = short_timeouts();
    let server = TestServer::serving(options, |_| {});
    let start_time = Instant::now();
    let mut peer = ManualPeer::client(server.port, Hello::new("hand"));
    assert!(matches!(peer.next(), Frame::Hello(_)));
    let mut beating = peer.stream.try_clone().unwrap();
    peer.codec.send(&Heartbeat {}.into()).unwrap();
    let beat = peer.codec.outgoing().to_vec();
    peer.codec.mark_sent(beat.len());
    let beats = std::thread::spawn(move || {
        while start_time.elapsed() < Duration::from_secs(90) && beating.write_all(&beat).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(matches!(peer.receive(), Ok(Some(Frame::Reject(_)))));
    let elapsed = start_time.elapsed();
    assert!(elapsed >= timeouts.handshake, "{elapsed:?}");
    drop(peer);
    beats.join().unwrap();
    server.end().unwrap();
}

fn after() -> Hello {
    Hello {
        protocol_min: 7,
        protocol_max: 9,
        ..Hello::new("linerate 99")
    }
}

#[test]
fn a_client_of_another_version_is_rejected() {
    let server = TestServer::start(false);
    // Several times: a reply is lost to a hard close only sometimes.
    for _ in 0..20 {
        let mut peer = ManualPeer::client(server.port, after());
        match peer.receive() {
            Err(ControlError::Version {
                remote: their_end, ..
            }) => assert_eq!(their_end.max, 1),
            others => panic!("{others:?}"),
        }
    }
    server.end().unwrap();
}

/// Server that is driven step by step, in a thread.
fn manual_server<R: Send + 'static>(
    lead: impl FnOnce(&TcpListener) -> R + Send + 'static,
) -> (u16, JoinHandle<R>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, std::thread::spawn(move || lead(&listener)))
}

#[test]
fn a_server_of_another_version_is_rejected() {
    let (port, server) = manual_server(|listener| {
        let mut peer = ManualPeer::server(listener, after());
        assert!(matches!(peer.receive(), Err(ControlError::Version { .. })));
        let _ = peer.stream.read(&mut [0; 10]);
    });
    let error = run(plan(RunKind::Latency, TransportProtocol::Tcp, port)).unwrap_err();
    match &error {
        SessionError::Protocol { source, .. } => {
            assert!(matches!(source, ControlError::Version { .. }), "{source}");
        }
        others => panic!("{others}"),
    }
    assert!(error.to_report().next_step.contains("same version"));
    server.join().unwrap();
}

#[test]
fn many_beginners_get_few_threads() {
    let server = TestServer::start(false);
    let sessions = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "session").count()
    };
    let beginners = |first: &[u8]| -> Vec<TcpStream> {
        let begin = |_| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream.write_all(first).unwrap();
            stream
        };
        (0..300).map(begin).collect()
    };
    // Other tests of this process have a few sessions of their own.
    let others = sessions();
    let incomplete = beginners(&[&CONTROL_MAGIC[..], &[0]].concat());
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        sessions() < others + 30,
        "an incomplete hello gets no thread"
    );
    drop(incomplete);
    let hello = ControlCodec::client(Hello::new("beginner")).unwrap();
    let beginners = beginners(hello.outgoing());
    let start_time = Instant::now();
    // Half of all, which is the share of an address.
    while sessions() < 32 {
        assert!(start_time.elapsed() < LONG, "{}", sessions());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let count = sessions();
    assert!((32..64).contains(&count), "{count}");
    drop(beginners);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Tcp);
    plan.duration_ns = None;
    plan.round_trips = Some(10);
    assert_eq!(run(plan).unwrap().summary.round_trips, Some(10));
    server.end().unwrap();
}

#[test]
fn a_busy_server_is_retried() {
    let server = TestServer::start(true);
    let (peer, _) = ManualPeer::accepted(server.port, udp_plan(server.port));
    let plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    let busy = run(plan.clone()).unwrap_err();
    assert!(matches!(busy, SessionError::PeerBusy { .. }), "{busy}");
    assert_eq!(busy.exit_code(), exit_codes::PEER);
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(peer);
    });
    let record = run_for(plan, LONG).unwrap();
    assert!(record.summary.round_trips.unwrap() > 0);
    later.join().unwrap();
    server.thread.join().unwrap().unwrap();
}

#[test]
fn memory_has_a_budget() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.directions = vec![Direction::Receive];
    plan.payload_bytes = 64 << 20;
    plan.streams = 100;
    // A thread and a buffer for each.
    plan.wait = Some(PerEnd::same(WaitMode::Block));
    let error = run(plan).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::USAGE, "{error}");
    assert!(
        error.to_string().contains("all tests together may use"),
        "{error}"
    );
    server.end().unwrap();
}

#[test]
fn invalid_values_in_a_proposal_are_rejected() {
    type Change = fn(&mut Plan);
    let changes: [(&str, u8, Change); 4] = [
        ("streams", exit_codes::USAGE, |p| p.streams = u32::MAX),
        ("time", exit_codes::USAGE, |p| {
            p.duration_ns = Some(u64::MAX)
        }),
        ("text", exit_codes::USAGE, |p| p.host = "x".repeat(100_000)),
        ("congestion control", exit_codes::MISSING, |p| {
            p.congestion_control = Some("nonesuch".to_owned());
            p.congestion_control_requested = true;
        }),
    ];
    let server = TestServer::start(false);
    for (name, code, change) in changes {
        let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
        change(&mut plan);
        match ManualPeer::propose(server.port, plan).1 {
            Frame::Reject(Reject { exit_code, .. }) => assert_eq!(exit_code, code, "{name}"),
            others => panic!("{name}: {others:?}"),
        }
    }
    server.end().unwrap();
}

#[test]
fn datagrams_without_a_copy_have_a_budget_too() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Udp);
    plan.directions = vec![Direction::Receive];
    plan.payload_bytes = 65_507;
    plan.streams = 2_000;
    plan.threads = Some(PerEnd::same(1));
    plan.copies.send = SendCopy::ZeroCopy;
    match ManualPeer::propose(server.port, plan).1 {
        Frame::Reject(rejection) => {
            let why = rejection.problem.situation;
            assert!(why.contains("all tests together may use"), "{why}");
        }
        others => panic!("{others:?}"),
    }
    server.end().unwrap();
}

/// Returns the number of CPU load threads of this process.
fn load_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "cpu-load").count()
}

#[test]
fn processors_are_kept_busy_from_the_start_on() {
    let server = TestServer::granting(Ipv4Addr::LOCALHOST, vec![Grant::Load]);
    let mut plan = udp_plan(server.port);
    plan.duration_ns = Some(10_000_000_000);
    plan.round_trip.load_threads.server = 1;
    let (mut peer, accept) = ManualPeer::accepted(server.port, plan.clone());
    assert_eq!(load_threads(), 0);
    assert!(gets_reply(
        &udp("127.0.0.1"),
        server.port,
        accept.flows[0].token
    ));
    assert!(matches!(peer.next(), Frame::Attached(_)));
    assert_eq!(load_threads(), 0);
    peer.send(StartRun::default());
    let start_time = Instant::now();
    while load_threads() == 0 {
        assert!(start_time.elapsed() < LONG);
        std::thread::yield_now();
    }
    // With another test there are fewer left, and never more than CPUs.
    let processors = std::thread::available_parallelism().unwrap().get() as u32;
    for (threads, code) in [
        (processors, exit_codes::PEER),
        (processors + 1, exit_codes::USAGE),
    ] {
        plan.round_trip.load_threads.server = threads;
        match ManualPeer::propose(server.port, plan.clone()).1 {
            Frame::Reject(rejection) => assert_eq!(rejection.exit_code, code, "{rejection:?}"),
            others => panic!("{others:?}"),
        }
    }
    drop(peer);
    let _ = server.end();
    assert_eq!(load_threads(), 0);
}

#[test]
fn requests_get_replies_before_a_proposal() {
    let server = TestServer::start(false);
    let mut peer = ManualPeer::client(server.port, Hello::new("hand"));
    assert!(matches!(peer.next(), Frame::Hello(_)));
    peer.send(ClockRequest { t1_ns: 5 });
    match peer.next() {
        Frame::ClockReply(answer) => {
            assert!(
                answer.t1_ns == 5 && answer.t3_ns >= answer.t2_ns,
                "{answer:?}"
            );
        }
        others => panic!("{others:?}"),
    }
    peer.send(RequestedSettings {
        requested: [("net.core.rmem_max".to_owned(), "1".to_owned())].into(),
    });
    match peer.next() {
        Frame::SettingsReply(answer) => {
            assert!(answer.granted.is_empty());
            assert!(answer.rejected.contains_key("net.core.rmem_max"));
        }
        others => panic!("{others:?}"),
    }
    server.end().unwrap();
}

/// Setting of a client that records its restore.
struct RecordedSettings(Sender<Instant>);

impl AppliedSettings for RecordedSettings {
    fn set(&mut self, _: &str, value: &str) -> Result<String, String> {
        Ok(value.to_owned())
    }
}

impl Drop for RecordedSettings {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

#[test]
fn settings_are_restored_when_their_client_is_silent() {
    let (back, restored) = channel();
    let backend = RemoteTuning(Arc::new(move || {
        Ok(Box::new(RecordedSettings(back.clone())))
    }));
    let (options, timeouts) = short_timeouts();
    let server = TestServer::serving(
        ServerOptions {
            grants: vec![Grant::Tune],
            tuning: Some(backend),
            ..options
        },
        |_| {},
    );
    let mut peer = ManualPeer::client(server.port, Hello::new("hand"));
    assert!(matches!(peer.next(), Frame::Hello(_)));
    let silent = Instant::now();
    peer.send(RequestedSettings {
        requested: [("net.core.rmem_max".to_owned(), "1".to_owned())].into(),
    });
    match peer.next() {
        Frame::SettingsReply(answer) => assert_eq!(answer.granted["net.core.rmem_max"], "1"),
        others => panic!("{others:?}"),
    }
    // A client that is silent for less keeps its settings.
    let went = restored.recv_timeout(LONG).unwrap();
    let elapsed = went.duration_since(silent);
    assert!(elapsed >= timeouts.client_silence, "{elapsed:?}");
    drop(peer);
    server.end().unwrap();
}

#[test]
fn a_server_does_not_decide_what_the_client_does() {
    type Change = fn(&mut Accept);
    let changes: [(&str, Change); 7] = [
        ("payload", |a| a.plan.payload_bytes = 1 << 40),
        ("streams", |a| a.plan.streams = 1_000),
        ("bind", |a| a.plan.bind = Some("%eth0".to_owned())),
        ("flows", |a| a.flows.push(a.flows[0])),
        ("no flows", |a| a.flows.clear()),
        ("direction", |a| a.flows[0].direction = Direction::Receive),
        ("wait", |a| a.wait = WaitMode::Spin),
    ];
    for (name, change) in changes {
        let (port, server) = manual_server(move |listener| {
            let (mut peer, mut accept) = ManualPeer::proposed(listener);
            change(&mut accept);
            peer.send(accept);
            let _ = peer.stream.read(&mut [0; 10]);
        });
        let error = run(udp_plan(port)).unwrap_err();
        assert!(
            matches!(error, SessionError::PeerLost { .. }),
            "{name}: {error}"
        );
        assert!(
            error.to_string().contains("unexpected message"),
            "{name}: {error}"
        );
        server.join().unwrap();
    }
}

#[test]
fn the_servers_record_has_the_wait_modes_of_both_ends() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.wait = None;
    let record = run(plan).unwrap();
    let events = loop {
        let events = server.events.lock().unwrap().clone();
        if events
            .iter()
            .any(|e| matches!(e.kind, EventKind::Finished { .. }))
        {
            break events;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let finished = events.iter().find_map(|event| match &event.kind {
        EventKind::Finished { record } => Some(record.plan.wait.clone()),
        _ => None,
    });
    let started = events.iter().find_map(|event| match &event.kind {
        EventKind::Started { wait, .. } => Some(wait.clone()),
        _ => None,
    });
    assert_eq!(finished.unwrap(), record.plan.wait);
    assert_eq!(started, record.plan.wait);
    server.end().unwrap();
}

#[test]
fn a_start_without_settings_is_one_of_an_older_client() {
    let server = TestServer::start(false);
    let mut plan = udp_plan(server.port);
    plan.wait = Some(PerEnd::same(WaitMode::Poll));
    let (mut peer, accept) = ManualPeer::accepted(server.port, plan);
    assert!(gets_reply(
        &udp("127.0.0.1"),
        server.port,
        accept.flows[0].token
    ));
    assert!(matches!(peer.next(), Frame::Attached(_)));
    peer.send(StartRun::default());
    let start_time = Instant::now();
    let wait = loop {
        let started = server
            .events
            .lock()
            .unwrap()
            .iter()
            .find_map(|e| match &e.kind {
                EventKind::Started { wait, .. } => Some(wait.clone()),
                _ => None,
            });
        if let Some(wait) = started {
            break wait;
        }
        assert!(start_time.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(wait, PerEnd::same(WaitMode::Poll));
    drop(peer);
    server.end().unwrap();
}

#[test]
fn a_bug_in_one_session_costs_that_one() {
    let first = AtomicBool::new(true);
    let server = TestServer::start_with(true, move |event| {
        if matches!(event.kind, EventKind::Connected { .. }) && first.swap(false, Relaxed) {
            panic!("as a bug would");
        }
    });
    let error = run(server.plan(RunKind::Latency, TransportProtocol::Tcp)).unwrap_err();
    assert!(
        matches!(error, SessionError::PeerRejected { .. }),
        "{error}"
    );
    // The single test of `-1` is still available, and the server ends after it.
    assert!(run_for(server.plan(RunKind::Latency, TransportProtocol::Tcp), LONG).is_ok());
    server.thread.join().unwrap().unwrap();
}

#[test]
fn descriptors_beyond_a_select_set_are_rejected() {
    let server = TestServer::start(false);
    // So many descriptors that no free one fits an fd_set.
    let applied: Result<Vec<_>, _> = (0..1_100)
        .map(|_| std::fs::File::open("/dev/null"))
        .collect();
    let Ok(applied) = applied else {
        println!("the open-file limit leaves no room to try this");
        return;
    };
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.wait = Some("select".parse().unwrap());
    let error = run(plan).unwrap_err();
    drop(applied);
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    assert!(error.to_string().contains("--wait select"), "{error}");
    server.end().unwrap();
}

#[test]
fn garbage_on_every_listener_does_no_harm() {
    let server = TestServer::start(false);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port));
    let mut rng = 7u32;
    let mut byte = || {
        rng = rng.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (rng >> 24) as u8
    };
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in 0..100 {
        let mut bytes: Vec<u8> = (0..200).map(|_| byte()).collect();
        if round % 2 == 0 {
            bytes[..8].copy_from_slice(&CONTROL_MAGIC);
            bytes[8] = 0;
        }
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&bytes);
        let _ = datagrams.send_to(&bytes[..24], address);
    }
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(100);
    assert_eq!(run(plan).unwrap().summary.round_trips, Some(100));
    server.end().unwrap();
}

const SERVER_PART: &str = "LINERATE_HOSTILE_TEST_FILES";

#[test]
#[ignore = "a part of the test below, played in a process of its own"]
fn run_a_server_with_few_files() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let Some(files) = std::env::var(SERVER_PART).ok().and_then(|n| n.parse().ok()) else {
        println!("played by another test only");
        return;
    };
    let limit = Rlimit {
        current: Some(files),
        maximum: Some(files),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let server = TestServer::start(true);
    println!("port {}", server.port);
    server.thread.join().unwrap().unwrap();
}

#[test]
fn silent_clients_do_not_use_up_the_descriptors() {
    use std::io::{BufRead, BufReader};
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hostile::run_a_server_with_few_files",
            "--ignored",
            "--nocapture",
        ])
        .env(SERVER_PART, "64")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.find_map(|line| line.unwrap().strip_prefix("port ")?.parse().ok());
    let port = port.unwrap();
    let silent: Vec<_> = (0..200)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    let start_time = Instant::now();
    let mut plan = plan(RunKind::Latency, TransportProtocol::Udp, port);
    plan.duration_ns = None;
    plan.round_trips = Some(50);
    plan.streams = 4;
    let record = run(plan);
    let elapsed = start_time.elapsed();
    drop(silent);
    assert_eq!(record.unwrap().summary.round_trips, Some(50));
    // Well before the timeout of the silent ones.
    assert!(elapsed < Duration::from_secs(9), "{elapsed:?}");
    assert!(child.wait().unwrap().success());
}
