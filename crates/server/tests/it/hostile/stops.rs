//! Clients that are stopped while a server delays them.

use super::*;

/// Returns the result of a client that is stopped after a while, and its duration.
fn stopped(plan: Plan, retry: Duration) -> (SessionError, Duration) {
    let client = Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: retry,
        key: None,
    };
    let stop = AtomicBool::new(false);
    let wait = Duration::from_millis(300);
    let started = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(wait);
            stop.store(true, Relaxed);
        });
        client.run(&stop, &mut |_| {}).unwrap_err()
    });
    (error, started.elapsed().saturating_sub(wait))
}

#[test]
fn a_stop_is_noticed_in_every_state() {
    let hour = Duration::from_secs(3_600);
    // No server yet.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let unused_port = free.local_addr().unwrap().port();
    drop(free);
    // A server that sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = silent.local_addr().unwrap().port();
    // A server that grants a flow and never confirms its opening.
    let (deaf, server) = manual_server(|listener| {
        let (mut peer, accept) = ManualPeer::proposed(listener);
        let _udp = UdpSocket::bind(listener.local_addr().unwrap());
        peer.send(accept);
        assert!(matches!(peer.receive(), Ok(Some(Frame::Bye(_)))));
    });
    for (name, port, retry) in [
        ("retry", unused_port, hour),
        ("handshake", mute, Duration::ZERO),
        ("opening", deaf, Duration::ZERO),
    ] {
        let (error, elapsed) = stopped(udp_plan(port), retry);
        assert!(
            matches!(error, SessionError::Interrupted),
            "{name}: {error}"
        );
        assert_eq!(error.exit_code(), exit_codes::INTERRUPTED);
        // Without a check of the stop flag, each would end after 5 s or more.
        assert!(elapsed < Duration::from_secs(4), "{name}: {elapsed:?}");
    }
    server.join().unwrap();
}

#[test]
fn a_client_that_waits_for_workers_sends_heartbeats() {
    // Opening takes up to five seconds: meanwhile the client must send heartbeats.
    let (port, server) = manual_server(|listener| {
        let (mut peer, accept) = ManualPeer::proposed(listener);
        let udp = UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
        peer.send(accept);
        let mut beats = 0;
        loop {
            match peer.codec.next_frame() {
                Ok(Some(Frame::Heartbeat(_))) => beats += 1,
                Ok(Some(Frame::Bye(_))) => break,
                Ok(Some(other)) => panic!("{other:?}"),
                Ok(None) => {
                    let mut buffer = [0; 100];
                    let bytes = peer.stream.read(&mut buffer).unwrap();
                    peer.codec.receive(&buffer[..bytes]).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(udp);
        beats
    });
    let error = run(udp_plan(port)).unwrap_err();
    assert!(matches!(error, SessionError::UdpBlocked { .. }), "{error}");
    assert!(server.join().unwrap() >= 3);
}
