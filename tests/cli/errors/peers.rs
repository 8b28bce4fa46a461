//! Peers that are another program, are blocked, or vanish, and payload that changes on the path.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use linerate_protocol::control::{ControlCodec, Hello};
use rustix::process::Signal;

use super::*;
use crate::common::{TIME_LIMIT, assert_record, free_port};

/// Accepts connections on a loopback port and handles them with another protocol.
fn other_program(handle: impl Fn(TcpStream) + Send + Clone + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    other_program_on(listener, handle)
}

fn other_program_on(
    listener: TcpListener,
    handle: impl Fn(TcpStream) + Send + Clone + 'static,
) -> u16 {
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let handle = handle.clone();
            std::thread::spawn(move || handle(stream));
        }
    });
    port
}

#[test]
fn something_else_on_the_port() {
    let dir = TestDir::new();
    let mail = other_program(|mut stream| {
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        let _ = stream.read(&mut [0; 64]);
    });
    let web = other_program(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let iperf3 = other_program(|mut stream| {
        let _ = stream.read_exact(&mut [0; 37]);
        let _ = stream.write_all(&[9]);
        let _ = stream.read(&mut [0; 64]);
    });
    check_args(
        &dir,
        &format!("throughput 127.0.0.1:{iperf3}"),
        &expected_error(5, "is an iperf3 server", "127.0.0.1", "--peer iperf3"),
    );
    for port in [mail, web] {
        let args = format!("throughput 127.0.0.1 -p {port} -t 1");
        let object = format!("127.0.0.1:{port}");
        let expected = expected_error(
            5,
            "does not speak linerate's protocol",
            &object,
            "check the port",
        );
        check_args(&dir, &args, &expected);
    }
    let closes = other_program(|stream| {
        let _ = stream.shutdown(Shutdown::Both);
    });
    let args = format!("latency 127.0.0.1 -p {closes}");
    check_args(
        &dir,
        &args,
        &expected_error(
            5,
            "closed the connection",
            &format!("127.0.0.1:{closes}"),
            "--peer auto",
        ),
    );
}

/// The peer accepts the connection and sends nothing: the client gives up after the reported time.
#[test]
fn a_silent_peer_on_the_port() {
    let dir = TestDir::new();
    let port = other_program(|_stream| std::thread::sleep(TIME_LIMIT));
    let args = format!("latency 127.0.0.1 -p {port}");
    check_args(
        &dir,
        &args,
        &expected_error(5, "10 s", &format!("127.0.0.1:{port}"), "--peer auto"),
    );
}

#[test]
fn another_version() {
    let dir = TestDir::new();
    let port = other_program(|mut stream| {
        let hello = Hello {
            protocol_min: 700,
            protocol_max: 900,
            ..Hello::new("linerate 99.0.0")
        };
        let mut connection = ControlCodec::server(hello).expect("a short greeting");
        let mut bytes = [0; 4096];
        while connection.outgoing().is_empty() {
            match stream.read(&mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(count) => connection.receive(&bytes[..count]).expect("it fits"),
            }
            // The mismatch of versions is intended.
            let _ = connection.next_frame();
        }
        let _ = stream.write_all(connection.outgoing());
        let _ = stream.read(&mut bytes);
    });
    let args = format!("throughput 127.0.0.1 -p {port}");
    let object = format!("127.0.0.1:{port}");
    let expected = expected_error(5, "700 to 900", &object, "same version");
    check_args(&dir, &args, &expected);
}

/// Forwards TCP to a server, and nothing else, as a firewall without a rule for UDP.
fn tcp_only_proxy(server: u16) -> (u16, UdpSocket) {
    let port = free_port();
    let here = (Ipv4Addr::LOCALHOST, port);
    let listener = TcpListener::bind(here).expect("a free port");
    let hole = UdpSocket::bind(here).expect("UDP is free where TCP was");
    let port = other_program_on(listener, move |client_stream| {
        let Ok(server_stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        };
        let (back, forth) = (
            (
                server_stream.try_clone().expect("a copy"),
                client_stream.try_clone().expect("a copy"),
            ),
            (client_stream, server_stream),
        );
        std::thread::spawn(move || pass(back.0, back.1));
        pass(forth.0, forth.1);
    });
    (port, hole)
}

#[test]
fn udp_does_not_get_through() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let (port, _hole) = tcp_only_proxy(server.port);
    let args = format!("throughput 127.0.0.1 -u -p {port}");
    let open = format!("open UDP port {port}");
    check_args(
        &dir,
        &args,
        &expected_error(5, "UDP does not get through", "127.0.0.1", &open),
    );
    // Only the path was blocked: the server serves further clients.
    let direct = format!("throughput 127.0.0.1 -u -p {} -t 0.2", server.port);
    dir.run(&direct).expect(0);
}

/// Starts a server that prints its events.
fn server_with_events(dir: &TestDir) -> crate::common::LinerateServer {
    dir.server("--json-stream")
}

/// Forwards TCP, and changes the byte at that offset of a flow's payload.
fn changing_proxy(server: u16, offset: usize) -> u16 {
    const OPENING: &[u8] = b"\x01lr\xC0\xFFdat";
    const OPENING_BYTES: usize = 24;
    other_program(move |client_stream| {
        let Ok(server_stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let mut back = (
            server_stream.try_clone().expect("a copy"),
            client_stream.try_clone().expect("a copy"),
        );
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back.0, &mut back.1);
            let _ = back.1.shutdown(Shutdown::Both);
        });
        let (mut client_stream, mut server_stream) = (client_stream, server_stream);
        let (mut buffer, mut passed, mut is_flow) = (vec![0; 1 << 16], 0, false);
        while let Ok(bytes @ 1..) = client_stream.read(&mut buffer) {
            if passed == 0 {
                is_flow = buffer.starts_with(OPENING);
            }
            let at = OPENING_BYTES + offset;
            if is_flow && (passed..passed + bytes).contains(&at) {
                buffer[at - passed] ^= 1;
            }
            passed += bytes;
            if server_stream.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        let _ = server_stream.shutdown(Shutdown::Write);
    })
}

#[test]
fn changed_content_is_a_failed_run() {
    let dir = TestDir::new();
    let server = crate::common::LinerateServer::start(&mut dir.linerate("server -p 0 -q"));
    let port = changing_proxy(server.port, 4_321);
    let args = format!("throughput 127.0.0.1 -p {port} -n 1M --verify -q");
    let plain = dir.run(&args).expect(1);
    let message = join_lines(&format!("{} {}", plain.stdout, plain.stderr));
    for part in ["offset 4321", "content-mismatch", "error: content", "help:"] {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
    let json = dir.run(&format!("{args} --json")).expect(1).json();
    assert_record(&json);
    assert_eq!(json["summary"]["mismatched"], 1, "{json}");
    let first = &json["directions"][0]["streams"][0]["mismatch"];
    assert_eq!(first["offset"], 4_321, "{json}");
    // Directly to the server nothing is changed.
    let args = args.replace(&port.to_string(), &server.port.to_string());
    dir.run(&args).expect(0);
}

#[test]
fn a_killed_server_ends_the_test_with_its_results_so_far() {
    let dir = TestDir::new();
    for form in ["", "--json", "--json-stream"] {
        let mut server = server_with_events(&dir);
        let args = format!(
            "throughput 127.0.0.1 -p {} -t 60 -b 50M -i 0.1 {form}",
            server.port
        );
        let client = RunningCommand::start(&mut dir.linerate(&args));
        server.running.wait_started();
        // Some intervals, so that there is something to keep.
        std::thread::sleep(Duration::from_secs(1));
        server.running.send_signal(Signal::KILL);
        let client = client.wait().expect(5);
        match form {
            "" => {
                assert!(client.stderr.contains("peer lost"), "{client:?}");
                assert!(client.stderr.contains("help:"), "{client:?}");
                assert!(client.stdout.contains("interrupted"), "{client:?}");
            }
            "--json" => {
                assert!(client.stderr.contains("peer lost"), "{client:?}");
                assert_peer_vanished(&client.json());
            }
            _ => {
                let last = client
                    .json_lines()
                    .into_iter()
                    .rfind(|line| line["event"] == "finished");
                assert_peer_vanished(&last.expect("a last event")["record"]);
            }
        }
    }
    for record in dir.stored() {
        assert_record(&record);
    }
}

/// A flow that breaks in the middle of a write keeps its time and cost until then.
#[test]
fn a_broken_stream_keeps_its_time() {
    let dir = TestDir::new();
    for (direction, counter) in [("", "bytes_sent"), ("-R", "bytes_received")] {
        let mut server = server_with_events(&dir);
        let args = format!(
            "throughput 127.0.0.1 -p {} -t 600 --json {direction}",
            server.port
        );
        let client = RunningCommand::start(&mut dir.linerate(&args));
        server.running.wait_started();
        std::thread::sleep(Duration::from_millis(1_500));
        server.running.send_signal(Signal::KILL);
        let record = client.wait().expect(5).json();
        assert_peer_vanished(&record);
        let summary = &record["summary"];
        let lasted = summary["duration_ns"].as_u64().unwrap_or_default();
        // Not the planned time: a receiver would divide by it.
        assert!(
            (200_000_001..500_000_000_000).contains(&lasted),
            "{summary:#}"
        );
        assert!(summary[counter].as_u64() > Some(0), "{summary:#}");
        let share = summary["cpu"][0]["share"].as_f64();
        assert!(
            share.is_none_or(|share| share < 4.0),
            "one thread: {summary:#}"
        );
    }
}

/// Checks the record of a run whose peer vanished.
#[track_caller]
fn assert_peer_vanished(record: &Value) {
    assert_record(record);
    assert_eq!(record["interrupted"], true);
    let caveats = record["validity"].as_array().expect("a list");
    assert!(
        caveats
            .iter()
            .any(|caveat| caveat["doubt"] == "peer-vanished"),
        "{caveats:?}"
    );
}

/// The server of another protocol hangs for most of a short run, and its connection stays.
#[test]
fn a_server_that_hangs_in_a_short_run_is_reported() {
    let dir = TestDir::new();
    for direction in ["-R", "--bidir"] {
        let server = dir.server("-q");
        let args = format!(
            "throughput 127.0.0.1 -p {} --peer iperf2 {direction} -t 2 --json-stream",
            server.port
        );
        let mut client = RunningCommand::start(&mut dir.linerate(&args));
        client.wait_started();
        std::thread::sleep(Duration::from_millis(300));
        server.running.send_signal(Signal::STOP);
        let output = client.wait().expect(5);
        let lines = output.json_lines();
        let record = lines.iter().find_map(|line| line.get("record"));
        let record = record.unwrap_or_else(|| panic!("{lines:?}"));
        let receive = record["directions"].as_array().expect("a list").iter();
        let receive = receive.filter(|one| one["direction"] == "receive");
        let times: Vec<_> = receive.map(|one| one["duration_ns"].as_u64()).collect();
        // The run, and not the wait for the end of a stream.
        assert!(
            matches!(times[..], [Some(..2_500_000_000)]),
            "{args}: {times:?}"
        );
    }
}

/// Neither end waits longer than its timeout; a server continues with other clients.
#[test]
fn silence_is_not_waited_for() {
    let dir = TestDir::new();
    let mut server = server_with_events(&dir);
    let args = format!("latency 127.0.0.1 -p {} -t 600", server.port);
    let client = RunningCommand::start(&mut dir.linerate(&args));
    server.running.wait_started();
    // The client stops responding; the server must detect it.
    client.send_signal(Signal::STOP);
    let mut frozen = dir.server("--json-stream");
    let args = format!("latency 127.0.0.1 -p {} -t 600", frozen.port);
    let second_client = RunningCommand::start(&mut dir.linerate(&args));
    frozen.running.wait_started();
    frozen.running.send_signal(Signal::STOP);
    let second_client = second_client.wait().expect(5);
    assert!(second_client.stderr.contains("14 s"), "{second_client:?}");
    server.running.wait_line(|line| {
        line.contains(r#""event":"finished""#) || line.contains(r#""event":"failed""#)
    });
    dir.run(&format!("latency 127.0.0.1 -p {} -n 10", server.port))
        .expect(0);
}
