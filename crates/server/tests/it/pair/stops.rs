//! Runs that are stopped, servers that end, and the errors where no server is.

use super::*;

#[test]
fn an_interrupted_run_keeps_what_it_has() {
    let server = TestServer::start(false);
    for (kind, protocol) in [
        (RunKind::Throughput, TransportProtocol::Tcp),
        (RunKind::Throughput, TransportProtocol::Udp),
        (RunKind::Latency, TransportProtocol::Udp),
        (RunKind::Latency, TransportProtocol::Tcp),
    ] {
        let mut plan = server.plan(kind, protocol);
        plan.duration_ns = Some(60_000_000_000);
        let stop = AtomicBool::new(false);
        let started = AtomicBool::new(false);
        let client = client(plan);
        let ran = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !started.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(Duration::from_millis(500));
                stop.store(true, Relaxed);
            });
            let ran = client.run(&stop, &mut |what| {
                if matches!(what, EventKind::Started { .. }) {
                    started.store(true, Relaxed);
                }
            });
            // However it ended, no thread waits for it.
            started.store(true, Relaxed);
            ran
        });
        let (record, failure) = ran.unwrap();
        assert!(failure.is_none(), "{failure:?}");
        assert!(record.interrupted);
        assert!(record.summary.duration_ns < Some(50_000_000_000));
        let moved = record.summary.bytes_received.unwrap();
        assert!(moved > 0, "{kind} {protocol}");
    }
    server.end().unwrap();
}

#[test]
fn a_server_that_ends_ends_its_tests_in_order() {
    let server = TestServer::start(false);
    let mut plan = server.plan(RunKind::Throughput, TransportProtocol::Tcp);
    plan.duration_ns = Some(60_000_000_000);
    let thread = std::thread::spawn(move || {
        let stop = AtomicBool::new(false);
        client(plan).run(&stop, &mut |_| {}).unwrap()
    });
    let is_started = |event: &Event| matches!(event.kind, EventKind::Started { .. });
    while !server.events.lock().unwrap().iter().any(is_started) {
        assert!(!thread.is_finished(), "it ended before it began");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    server.end().unwrap();
    let (record, _) = thread.join().unwrap();
    assert!(record.interrupted);
    assert!(record.summary.bytes_received.unwrap() > 0);
}

#[test]
fn one_test_and_no_more() {
    let server = TestServer::start(true);
    let record = run(server.plan(RunKind::Throughput, TransportProtocol::Tcp));
    assert!(record.summary.goodput_bps.is_some());
    let deadline = Instant::now() + Duration::from_secs(90);
    while !server.thread.as_ref().unwrap().is_finished() {
        assert!(Instant::now() < deadline, "the server goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.end().unwrap();
}

#[test]
fn missing_servers_are_distinguished() {
    let stop = AtomicBool::new(false);
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    plan.port = free.local_addr().unwrap().port();
    drop(free);
    let rejected = client(plan.clone()).run(&stop, &mut |_| {}).unwrap_err();
    assert!(
        matches!(rejected, SessionError::ConnectionRefused { .. }),
        "{rejected}"
    );
    assert_eq!(rejected.exit_code(), exit_codes::PEER);

    plan.host = "no-such-host.invalid".to_owned();
    let unknown = client(plan.clone()).run(&stop, &mut |_| {}).unwrap_err();
    assert!(
        matches!(unknown, SessionError::UnknownName { .. }),
        "{unknown}"
    );

    plan.host = "127.0.0.1".to_owned();
    let mut wrong = client(plan);
    wrong.family = AddressFamily::V6;
    let wrong = wrong.run(&stop, &mut |_| {}).unwrap_err();
    assert!(
        matches!(wrong, SessionError::FamilyMismatch { .. }),
        "{wrong}"
    );
}

#[test]
fn retrying_waits_for_the_server() {
    let stop = AtomicBool::new(false);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        let server = Server::bind(&ServerOptions {
            port,
            address: Some(Ipv4Addr::LOCALHOST.into()),
            interface: None,
            family: AddressFamily::Any,
            single_test: true,
            grants: Vec::new(),
            ..ServerOptions::default()
        });
        server.unwrap().run(Arc::default(), Arc::new(|_| {}))
    });
    let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "localhost");
    plan.port = port;
    plan.duration_ns = None;
    plan.round_trips = Some(10);
    let mut client = client(plan);
    client.retry_timeout = Duration::from_secs(10);
    let (record, _) = client.run(&stop, &mut |_| {}).unwrap();
    assert_eq!(record.summary.round_trips, Some(10));
    late.join().unwrap().unwrap();
}

#[test]
fn another_program_on_the_port_is_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    });
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
    plan.port = port;
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert!(matches!(error, SessionError::Protocol { .. }), "{error}");
    other.join().unwrap();
}

#[test]
fn a_port_in_use_is_reported() {
    let server = TestServer::start(false);
    let error = Server::bind(&ServerOptions {
        port: server.port,
        address: Some(Ipv4Addr::LOCALHOST.into()),
        interface: None,
        family: AddressFamily::Any,
        single_test: false,
        grants: Vec::new(),
        ..ServerOptions::default()
    })
    .err()
    .unwrap();
    assert!(matches!(error, SessionError::PortInUse { .. }), "{error}");
    assert_eq!(error.exit_code(), exit_codes::FAILED);
    server.end().unwrap();
}

#[test]
fn a_killed_peer_is_detected() {
    // A server that accepts, grants nothing, and closes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
    plan.port = port;
    let stop = AtomicBool::new(false);
    let error = client(plan).run(&stop, &mut |_| {}).unwrap_err();
    assert!(matches!(error, SessionError::PeerFailed { .. }), "{error}");
    assert_eq!(error.exit_code(), exit_codes::PEER);
    other.join().unwrap();
}
