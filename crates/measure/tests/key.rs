//! Two ends with the same key, with different ones, and with a key at one end only.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate_measure::{Client, Family, Key, MeasureError, PeerOptions, Server, ServerOptions};
use linerate_metric::event::{Event, Problem, What};
use linerate_metric::exit;
use linerate_metric::plan::{Kind, Plan, Protocol};
use linerate_metric::record::Record;

fn key(secret: &str) -> Option<Key> {
    Some(Key::new(secret.as_bytes()).unwrap())
}

/// Runs a closure next to a server with this key; passes its port.
fn beside<T>(key: Option<Key>, run: impl FnOnce(u16) -> T) -> T {
    beside_with(key, None, run)
}

/// Runs it next to a server that serves these protocols of other tools, independent of its key.
fn beside_with<T>(key: Option<Key>, dialects: Option<&[&str]>, run: impl FnOnce(u16) -> T) -> T {
    told_beside(key, dialects, run).0
}

/// Runs it and returns the rejections that the server reported.
fn told_beside<T>(
    key: Option<Key>,
    dialects: Option<&[&str]>,
    run: impl FnOnce(u16) -> T,
) -> (T, Vec<Problem>) {
    let only = dialects.map(|names| names.iter().map(|&name| name.to_owned()).collect());
    let server = Server::bind(&ServerOptions {
        address: Some(Ipv4Addr::LOCALHOST.into()),
        key,
        peers: PeerOptions {
            only,
            ..PeerOptions::default()
        },
        ..ServerOptions::default()
    })
    .unwrap();
    let port = server.port();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // Ends the server when the test fails, too.
    struct Stopped(Arc<AtomicBool>);
    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let refused = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&refused);
    let emit = Arc::new(move |event: Event| {
        if let What::Refused { problem } = event.what {
            log.lock().unwrap().push(problem);
        }
    });
    let result = std::thread::scope(|scope| {
        let stopped = Stopped(stop);
        let server = scope.spawn(move || server.run(flag, emit));
        let result = run(port);
        drop(stopped);
        server.join().unwrap().unwrap();
        result
    });
    let refused = refused.lock().unwrap().clone();
    (result, refused)
}

fn ask(
    port: u16,
    kind: Kind,
    protocol: Protocol,
    key: Option<Key>,
) -> Result<Record, MeasureError> {
    let mut plan = Plan::new(kind, protocol, "127.0.0.1");
    plan.port = port;
    plan.duration_ns = Some(300_000_000);
    plan.interval_ns = Some(100_000_000);
    let client = Client {
        plan,
        family: Family::Any,
        retry: Duration::ZERO,
        key,
    };
    let (record, failure) = client.run(&AtomicBool::new(false), &mut |_| {})?;
    assert!(failure.is_none(), "{failure:?}");
    Ok(record)
}

#[test]
fn ends_with_one_key_measure_as_others_do() {
    beside(key("the same at both ends"), |port| {
        for kind in [Kind::Throughput, Kind::Latency] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let record = ask(port, kind, protocol, key("the same at both ends")).unwrap();
                let summary = &record.summary;
                assert!(summary.bytes_received.or(summary.round_trips) > Some(0));
            }
        }
    });
}

#[test]
fn whoever_lacks_the_key_gets_nothing_and_learns_why() {
    let wanted = [
        (
            key("the key of the server"),
            None,
            "accepts only clients that have its key",
            "the client has no key",
        ),
        (
            None,
            key("the key of the client"),
            "has no key",
            "the client has a key",
        ),
        (
            key("the key of the server"),
            key("the key of the client"),
            "another key",
            "another key",
        ),
    ];
    for (theirs, ours, why, told) in wanted {
        let (error, refused) = told_beside(theirs, None, |port| {
            ask(port, Kind::Throughput, Protocol::Tcp, ours).unwrap_err()
        });
        // The server's user gets the reason too, and the next step.
        let [refused] = &refused[..] else {
            panic!("{refused:?}");
        };
        assert!(refused.situation.contains(told), "{refused:?}");
        assert!(refused.situation.contains("127.0.0.1:"), "{refused:?}");
        assert!(refused.next_step.contains("--key"), "{refused:?}");
        let problem = error.problem();
        let text = format!("{problem:?}");
        assert!(text.contains(why), "{text}");
        assert!(text.contains("--key"), "{text}");
        assert_eq!(error.exit_code(), exit::PEER);
    }
}

/// Other protocols cannot prove a key: with a key, only those that are named are served.
#[test]
fn keys_keep_other_dialects_out() {
    let hello = b"HELO nuttcp v6.1.2\n";
    let ask = |port: u16| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.write_all(hello).unwrap();
        let mut answer = [0; 100];
        stream.read(&mut answer).unwrap_or(0)
    };
    let secret = "nobody else has it";
    assert_eq!(beside(key(secret), ask), 0);
    assert_eq!(beside_with(key(secret), Some(&["iperf3"]), ask), 0);
    assert!(beside_with(key(secret), Some(&["nuttcp"]), ask) > 0);
    assert!(beside(None, ask) > 0);
}

/// A replayed recording of a client gets no further than the server's own nonce.
#[test]
fn a_recorded_client_is_not_served_twice() {
    let secret = "recorded by somebody";
    beside(key(secret), |port| {
        let recorder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let between = recorder.local_addr().unwrap().port();
        let recorded = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                // The recorder forwards the hellos and then disconnects.
                ask(between, Kind::Throughput, Protocol::Tcp, key(secret)).unwrap_err()
            });
            let (mut near, _) = recorder.accept().unwrap();
            let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut said = Vec::new();
            let mut room = [0; 4096];
            for _ in 0..2 {
                let bytes = near.read(&mut room).unwrap();
                said.extend_from_slice(&room[..bytes]);
                far.write_all(&room[..bytes]).unwrap();
                let bytes = far.read(&mut room).unwrap();
                near.write_all(&room[..bytes]).unwrap();
            }
            drop((near, far));
            client.join().unwrap();
            said
        });
        let mut again = TcpStream::connect(("127.0.0.1", port)).unwrap();
        again
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        again.write_all(&recorded).unwrap();
        let mut answer = Vec::new();
        // The server ends it; a connection with unread bytes may end with a reset.
        let _ = again.read_to_end(&mut answer);
        // Opening, length and second message, without a hello after them.
        assert_eq!(answer.len(), 9 + 2 + 48);
    });
}
