//! Two ends with the same key, with different ones, and with a key at one end only.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate_protocol::control::PresharedKey;
use linerate_record::event::{ErrorReport, Event, EventKind};
use linerate_record::exit_codes;
use linerate_record::plan::{Plan, RunKind, TransportProtocol};
use linerate_record::record::Record;
use linerate_server::options::{InteropOptions, ServerOptions};
use linerate_server::server::Server;
use linerate_session::client::Client;
use linerate_session::dial::AddressFamily;
use linerate_session::error::SessionError;

fn key(secret: &str) -> Option<PresharedKey> {
    Some(PresharedKey::new(secret.as_bytes()).unwrap())
}

/// Runs a closure next to a server with this key; passes its port.
fn with_server<T>(key: Option<PresharedKey>, run: impl FnOnce(u16) -> T) -> T {
    with_server_of(key, None, run)
}

/// Runs it next to a server that serves these protocols of other tools, independent of its key.
fn with_server_of<T>(
    key: Option<PresharedKey>,
    dialects: Option<&[&str]>,
    run: impl FnOnce(u16) -> T,
) -> T {
    rejections_of(key, dialects, run).0
}

/// Runs it and returns the rejections that the server reported.
fn rejections_of<T>(
    key: Option<PresharedKey>,
    dialects: Option<&[&str]>,
    run: impl FnOnce(u16) -> T,
) -> (T, Vec<ErrorReport>) {
    let only = dialects.map(|names| names.iter().map(|&name| name.to_owned()).collect());
    let server = Server::bind(&ServerOptions {
        address: Some(Ipv4Addr::LOCALHOST.into()),
        key,
        interop: InteropOptions {
            protocols: only,
            ..InteropOptions::default()
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
    let rejected = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&rejected);
    let emit = Arc::new(move |event: Event| {
        if let EventKind::Refused { problem } = event.kind {
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
    let rejected = rejected.lock().unwrap().clone();
    (result, rejected)
}

fn request(
    port: u16,
    kind: RunKind,
    protocol: TransportProtocol,
    key: Option<PresharedKey>,
) -> Result<Record, SessionError> {
    let mut plan = Plan::new(kind, protocol, "127.0.0.1");
    plan.port = port;
    plan.duration_ns = Some(300_000_000);
    plan.interval_ns = Some(100_000_000);
    let client = Client {
        plan,
        family: AddressFamily::Any,
        retry_timeout: Duration::ZERO,
        key,
    };
    let (record, failure) = client.run(&AtomicBool::new(false), &mut |_| {})?;
    assert!(failure.is_none(), "{failure:?}");
    Ok(record)
}

#[test]
fn ends_with_one_key_measure_as_others_do() {
    with_server(key("the same at both ends"), |port| {
        for kind in [RunKind::Throughput, RunKind::Latency] {
            for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
                let record = request(port, kind, protocol, key("the same at both ends")).unwrap();
                let summary = &record.summary;
                assert!(summary.bytes_received.or(summary.round_trips) > Some(0));
            }
        }
    });
}

#[test]
fn a_client_without_the_key_is_rejected_with_the_reason() {
    let requested = [
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
    for (their_key, our_key, why, reported) in requested {
        let (error, rejected) = rejections_of(their_key, None, |port| {
            request(port, RunKind::Throughput, TransportProtocol::Tcp, our_key).unwrap_err()
        });
        // The server's user gets the reason too, and the next step.
        let [rejected] = &rejected[..] else {
            panic!("{rejected:?}");
        };
        assert!(rejected.situation.contains(reported), "{rejected:?}");
        assert!(rejected.situation.contains("127.0.0.1:"), "{rejected:?}");
        assert!(rejected.next_step.contains("--key"), "{rejected:?}");
        let problem = error.to_report();
        let text = format!("{problem:?}");
        assert!(text.contains(why), "{text}");
        assert!(text.contains("--key"), "{text}");
        assert_eq!(error.exit_code(), exit_codes::PEER);
    }
}

/// Other protocols cannot prove a key: with a key, only those that are named are served.
#[test]
fn keys_exclude_other_protocols() {
    let hello = b"HELO nuttcp v6.1.2\n";
    let request = |port: u16| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.write_all(hello).unwrap();
        let mut answer = [0; 100];
        stream.read(&mut answer).unwrap_or(0)
    };
    let secret = "nobody else has it";
    assert_eq!(with_server(key(secret), request), 0);
    assert_eq!(with_server_of(key(secret), Some(&["iperf3"]), request), 0);
    assert!(with_server_of(key(secret), Some(&["nuttcp"]), request) > 0);
    assert!(with_server(None, request) > 0);
}

/// A replayed recording of a client gets no further than the server's own nonce.
#[test]
fn a_replayed_client_is_rejected() {
    let secret = "recorded by somebody";
    with_server(key(secret), |port| {
        let recorder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let between = recorder.local_addr().unwrap().port();
        let recorded = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                // The recorder forwards the hellos and then disconnects.
                request(
                    between,
                    RunKind::Throughput,
                    TransportProtocol::Tcp,
                    key(secret),
                )
                .unwrap_err()
            });
            let (mut downstream, _) = recorder.accept().unwrap();
            let mut upstream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut reply = Vec::new();
            let mut buffer = [0; 4096];
            for _ in 0..2 {
                let bytes = downstream.read(&mut buffer).unwrap();
                reply.extend_from_slice(&buffer[..bytes]);
                upstream.write_all(&buffer[..bytes]).unwrap();
                let bytes = upstream.read(&mut buffer).unwrap();
                downstream.write_all(&buffer[..bytes]).unwrap();
            }
            drop((downstream, upstream));
            client.join().unwrap();
            reply
        });
        let mut replayed = TcpStream::connect(("127.0.0.1", port)).unwrap();
        replayed
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        replayed.write_all(&recorded).unwrap();
        let mut answer = Vec::new();
        // The server ends it; a connection with unread bytes may end with a reset.
        let _ = replayed.read_to_end(&mut answer);
        // Opening, length and second message, without a hello after them.
        assert_eq!(answer.len(), 9 + 2 + 48);
    });
}

/// An attacker that has no key begins on many connections, and says little or nothing useful on each.
/// A client with the key is served meanwhile, also from the same address.
#[test]
fn clients_without_the_key_keep_out_nobody_with_it() {
    let secret = "the key of the server";
    let opening = b"\x01lr\xC0\xFFctl\x01";
    // The length of a first message, and less than that; a message that proves nothing.
    let incomplete = [&opening[..], &[0, 48, 1, 2, 3]].concat();
    let worthless = [&opening[..], &[0, 48], &[7; 48]].concat();
    with_server(key(secret), |port| {
        let mut attackers = Vec::new();
        for first in [&opening[..], &incomplete, &worthless] {
            for _ in 0..200 {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.write_all(first).unwrap();
                attackers.push(stream);
            }
            let record = request(port, RunKind::Latency, TransportProtocol::Tcp, key(secret));
            assert!(record.unwrap().summary.round_trips > Some(0), "{first:?}");
        }
    });
}
