//! Both ends in this process, over loopback: every kind of run.

mod round_trips;
mod stops;
mod throughput;

use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_record::event::{Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::plan::{PerEnd, Plan, RunKind, SchedPolicy, TransportProtocol, WaitMode};
use linerate_record::record::Record;
use linerate_server::options::{Grant, ServerOptions};
use linerate_server::server::Server;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;

struct TestServer {
    port: u16,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
    thread: Option<JoinHandle<Result<(), SessionError>>>,
}

impl TestServer {
    fn start(single_test: bool) -> Self {
        Self::granting(single_test, Vec::new())
    }

    fn granting(single_test: bool, grants: Vec<Grant>) -> Self {
        let server = Server::bind(&ServerOptions {
            port: 0,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: AddressFamily::Any,
            single_test,
            grants,
            ..ServerOptions::default()
        })
        .unwrap();
        let port = server.port();
        let stop = Arc::new(AtomicBool::new(false));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (flag, log) = (Arc::clone(&stop), Arc::clone(&events));
        let emit = Arc::new(move |event| log.lock().unwrap().push(event));
        let thread = std::thread::spawn(move || server.run(flag, emit));
        Self {
            port,
            stop,
            events,
            thread: Some(thread),
        }
    }

    fn plan(&self, kind: RunKind, protocol: TransportProtocol) -> Plan {
        let mut plan = Plan::new(kind, protocol, "127.0.0.1");
        plan.port = self.port;
        plan.duration_ns = Some(300_000_000);
        plan.interval_ns = Some(100_000_000);
        plan
    }

    fn end(mut self) -> Result<(), SessionError> {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn client(plan: Plan) -> Client {
    Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: Duration::ZERO,
        key: None,
    }
}

fn run(plan: Plan) -> Record {
    let stop = AtomicBool::new(false);
    let (record, failure) = client(plan).run(&stop, &mut |_| {}).unwrap();
    assert!(failure.is_none(), "{failure:?}");
    let read = Record::from_json(&record.to_json()).unwrap();
    assert_eq!(read, record, "a record round-trips exactly");
    record
}

/// Returns `None`, with a message, where the kernel does not permit this user the requested option.
fn run_if_possible(plan: Plan) -> Option<Record> {
    let stop = AtomicBool::new(false);
    match client(plan).run(&stop, &mut |_| {}) {
        Ok((record, failure)) => {
            assert!(failure.is_none(), "{failure:?}");
            Some(record)
        }
        Err(error) if error.exit_code() == exit_codes::MISSING => {
            println!("not to be had here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn buffers_are_forced_only_where_that_is_granted() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.window_bytes = Some(100 << 20);
    let stop = AtomicBool::new(false);
    match client(plan).run(&stop, &mut |_| {}) {
        // Only where the system's limit permits as much to every user.
        Ok((record, _)) => assert!(!record.plan.forced_buffers.server),
        Err(error) => {
            assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
            println!("{error}: {}", error.to_report());
        }
    }
    server.end().unwrap();
    let server = TestServer::granting(false, vec![Grant::Buffers]);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.window_bytes = Some(100 << 20);
    if let Some(record) = run_if_possible(plan)
        && record.plan.forced_buffers.client
    {
        assert!(record.plan.forced_buffers.server);
        let stream = &record.directions[0].streams[0];
        let sender = stream.sender.as_ref().unwrap().send_buffer_bytes;
        let receiver = stream.receiver.as_ref().unwrap().receive_buffer_bytes;
        assert!(sender >= Some(100 << 20) && receiver >= Some(100 << 20));
    }
    // More than the server has for all its tests.
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.window_bytes = Some(900 << 20);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    println!("{error}: {}", error.to_report());
    server.end().unwrap();
}

#[test]
fn calls_are_timed_at_both_ends() {
    let server = TestServer::start(false);
    for (kind, protocol, wait) in [
        (RunKind::Throughput, TransportProtocol::Tcp, "block"),
        (RunKind::Throughput, TransportProtocol::Tcp, "spin"),
        (RunKind::Throughput, TransportProtocol::Udp, "block"),
        (RunKind::Latency, TransportProtocol::Udp, "block"),
        (RunKind::Latency, TransportProtocol::Udp, "spin"),
        (RunKind::Latency, TransportProtocol::Tcp, "poll"),
        (RunKind::Latency, TransportProtocol::Udp, "select:50us"),
        (RunKind::Latency, TransportProtocol::Udp, "epoll"),
    ] {
        let mut plan = server.plan(kind, protocol);
        plan.calls = true;
        plan.wait = Some(wait.parse().unwrap());
        let started = Instant::now();
        let record = run(plan);
        let elapsed = started.elapsed().as_nanos() as u64;
        let context = format!("{kind} {protocol} {wait}");
        assert_eq!(record.call_clocks.len(), 2, "{context}");
        assert!(
            !record.calls.is_empty() && !record.server_calls.is_empty(),
            "{context}"
        );
        for calls in [&record.calls, &record.server_calls] {
            for (name, call) in calls {
                for (outcome, times) in call.outcomes() {
                    assert_eq!(times.times.count, times.histogram.count);
                    // One thread at each end: its calls do not overlap.
                    assert!(
                        times.total_ns <= elapsed,
                        "{context}: {name} {outcome} {} of {elapsed}",
                        times.total_ns
                    );
                }
            }
        }
        let count = |calls: &linerate_record::call_times::CallsByName, name: &str| -> u64 {
            let call = calls
                .get(name)
                .unwrap_or_else(|| panic!("{context}: no {name}"));
            call.outcomes().map(|(_, times)| times.times.count).sum()
        };
        let waits = match wait {
            "poll" => Some("poll"),
            "select:50us" => Some("select"),
            "epoll" => Some("epoll_wait"),
            _ => None,
        };
        if let Some(name) = waits {
            assert!(count(&record.server_calls, name) > 0, "{context}");
        }
        if kind == RunKind::Latency {
            let round_trips = record.summary.round_trips.unwrap();
            for calls in [&record.calls, &record.server_calls] {
                for name in ["sendto", "recvfrom"] {
                    assert!(count(calls, name) >= round_trips, "{context}: {name}");
                }
                assert!(calls["sendto"].accepted.is_some(), "{context}");
            }
            let ready = record.server_calls["recvfrom"].ready.as_ref();
            let waited = record.server_calls["recvfrom"].waited.as_ref();
            assert!(ready.or(waited).is_some(), "{context}");
        }
    }
    // Not requested: absent.
    let record = run(server.plan(RunKind::Throughput, TransportProtocol::Tcp));
    assert!(record.calls.is_empty() && record.call_clocks.is_empty());
    server.end().unwrap();
}

#[test]
fn many_tests_at_a_time() {
    let server = TestServer::start(false);
    let plans: Vec<_> = (0..6)
        .map(|number| {
            let protocol = if number % 2 == 0 {
                TransportProtocol::Udp
            } else {
                TransportProtocol::Tcp
            };
            let mut plan = server.plan(RunKind::Latency, protocol);
            plan.streams = 2;
            plan
        })
        .collect();
    let threads: Vec<_> = plans
        .into_iter()
        .map(|plan| std::thread::spawn(move || run(plan)))
        .collect();
    for thread in threads {
        let record = thread.join().unwrap();
        assert!(record.summary.round_trips.unwrap() > 100);
        assert_eq!(record.summary.mismatched, Some(0));
    }
    let events = server.events.lock().unwrap().clone();
    let finished = events
        .iter()
        .filter(|e| matches!(e.kind, EventKind::Finished { .. }));
    assert_eq!(finished.count(), 6);
    server.end().unwrap();
}

#[test]
fn unrelated_traffic_does_not_disturb() {
    let server = TestServer::start(false);
    let address = ("127.0.0.1", server.port);
    let silent: Vec<_> = (0..50)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut rude = TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut rude, &[0xff; 4096]).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(address).unwrap();
    for _ in 0..100 {
        udp.send(b"\x01lr\xC0\xFFdat0123456789abcdef").unwrap();
        udp.send(&[7; 1000]).unwrap();
    }
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(500);
    assert_eq!(run(plan).summary.lost, Some(0));
    drop(silent);
    server.end().unwrap();
}

#[test]
fn an_unknown_congestion_control_is_rejected_before_any_traffic() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.congestion_control = Some("nonesuch".to_owned());
    plan.congestion_control_requested = true;
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    server.end().unwrap();
}

#[test]
fn idle_states_are_limited_only_where_permitted() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.duration_ns = None;
    plan.round_trips = Some(100);
    plan.hold_latency = true;
    let stop = AtomicBool::new(false);
    // Both ends share this machine, so this end's hold is enough and needs no grant.
    match client(plan).run(&stop, &mut |_| {}) {
        Ok((record, _)) => assert!(record.plan.hold_latency),
        Err(error) => {
            println!("no /dev/cpu_dma_latency for this user: {error}");
            assert_eq!(error.exit_code(), exit_codes::MISSING);
        }
    }
    server.end().unwrap();
}

#[test]
fn sockets_get_the_requested_options() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.socket.send_buffer_bytes = Some(50_000);
    plan.socket.receive_buffer_bytes = Some(60_000);
    plan.socket.mss_bytes = Some(1_000);
    plan.socket.tos = Some(0xb8);
    plan.socket.no_delay = true;
    plan.socket.receive_low_water_bytes = Some(10_000);
    let record = run(plan);
    let stream = &record.directions[0].streams[0];
    let (sender, receiver) = (
        stream.sender.as_ref().unwrap(),
        stream.receiver.as_ref().unwrap(),
    );
    // The kernel doubles the request for its own overhead (socket(7)).
    assert_eq!(sender.send_buffer_bytes, Some(100_000));
    assert_eq!(receiver.receive_buffer_bytes, Some(120_000));
    let mss = sender.tcp.as_ref().unwrap().mss_bytes;
    assert!((900..=1_000).contains(&mss), "{mss}");
    server.end().unwrap();
}

#[test]
fn scheduling_needs_a_grant_at_the_server() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.sched = PerEnd::same(SchedPolicy::Fifo(1));
    let stop = AtomicBool::new(false);
    let error = client(plan.clone()).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    plan.sched = PerEnd::same(SchedPolicy::Nice(5));
    assert!(run(plan).summary.round_trips.unwrap() > 0);
    server.end().unwrap();
}

#[test]
fn processors_are_kept_busy_only_where_that_is_granted() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Latency, TransportProtocol::Udp);
    plan.round_trip.load_threads = PerEnd {
        client: 1,
        server: 0,
    };
    assert!(run(plan.clone()).summary.round_trips.unwrap() > 0);
    plan.round_trip.load_threads = PerEnd {
        client: 0,
        server: 1,
    };
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), exit_codes::MISSING, "{error}");
    server.end().unwrap();
}
