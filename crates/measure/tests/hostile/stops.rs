//! Clients that are stopped while a server delays them.

use super::*;

/// Returns the result of a client that is stopped after a while, and its duration.
fn stopped(plan: Plan, retry: Duration) -> (MeasureError, Duration) {
    let client = Client {
        plan,
        family: Family::Any,
        retry,
        key: None,
    };
    let stop = AtomicBool::new(false);
    let wait = Duration::from_millis(300);
    let began = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(wait);
            stop.store(true, Relaxed);
        });
        client.run(&stop, &mut |_| {}).unwrap_err()
    });
    (error, began.elapsed().saturating_sub(wait))
}

#[test]
fn a_stop_is_heard_in_every_state() {
    let hour = Duration::from_secs(3_600);
    // No server yet.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = free.local_addr().unwrap().port();
    drop(free);
    // A server that sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = silent.local_addr().unwrap().port();
    // A server that grants a flow and never confirms its opening.
    let (deaf, server) = by_hand(|listener| {
        let (mut hand, accept) = Hand::proposed(listener);
        let _udp = UdpSocket::bind(listener.local_addr().unwrap());
        hand.say(accept);
        assert!(matches!(hand.hear(), Ok(Some(Frame::Bye(_)))));
    });
    for (name, port, retry) in [
        ("retry", nobody, hour),
        ("handshake", mute, Duration::ZERO),
        ("opening", deaf, Duration::ZERO),
    ] {
        let (error, took) = stopped(udp_plan(port), retry);
        assert!(
            matches!(error, MeasureError::Interrupted),
            "{name}: {error}"
        );
        assert_eq!(error.exit_code(), exit::INTERRUPTED);
        // Without a check of the stop flag, each would end after 5 s or more.
        assert!(took < Duration::from_secs(4), "{name}: {took:?}");
    }
    server.join().unwrap();
}

#[test]
fn a_client_that_waits_for_lanes_is_heard() {
    // Opening takes up to five seconds: meanwhile the client must send heartbeats.
    let (port, server) = by_hand(|listener| {
        let (mut hand, accept) = Hand::proposed(listener);
        let udp = UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
        hand.say(accept);
        let mut beats = 0;
        loop {
            match hand.codec.next_frame() {
                Ok(Some(Frame::Heartbeat(_))) => beats += 1,
                Ok(Some(Frame::Bye(_))) => break,
                Ok(Some(other)) => panic!("{other:?}"),
                Ok(None) => {
                    let mut room = [0; 100];
                    let bytes = hand.stream.read(&mut room).unwrap();
                    hand.codec.receive(&room[..bytes]).unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        drop(udp);
        beats
    });
    let error = run(udp_plan(port)).unwrap_err();
    assert!(matches!(error, MeasureError::UdpBlocked { .. }), "{error}");
    assert!(server.join().unwrap() >= 3);
}
