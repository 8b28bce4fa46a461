//! Peers that are another program, are blocked, or vanish, and payload that changes on the path.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use linerate_dialect::control::{Connection, Hello};
use rustix::process::Signal;

use super::common::{LONG, free_port, is_record};
use super::*;

/// Accepts connections on a loopback port and handles them with another protocol.
fn other_program(speak: impl Fn(TcpStream) + Send + Clone + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    other_program_on(listener, speak)
}

fn other_program_on(
    listener: TcpListener,
    speak: impl Fn(TcpStream) + Send + Clone + 'static,
) -> u16 {
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let speak = speak.clone();
            std::thread::spawn(move || speak(stream));
        }
    });
    port
}

#[test]
fn something_else_on_the_port() {
    let room = Room::new();
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
    for port in [mail, web, iperf3] {
        let words = format!("throughput 127.0.0.1 -p {port} -t 1");
        let object = format!("127.0.0.1:{port}");
        let want = told(
            5,
            "does not speak linerate's protocol",
            &object,
            "check the port",
        );
        words_tell(&room, &words, &want);
    }
    let closes = other_program(|stream| {
        let _ = stream.shutdown(Shutdown::Both);
    });
    let words = format!("latency 127.0.0.1 -p {closes}");
    words_tell(
        &room,
        &words,
        &told(
            5,
            "closed the connection",
            &format!("127.0.0.1:{closes}"),
            "--peer auto",
        ),
    );
}

/// The peer accepts the connection and sends nothing: the client gives up after the reported time.
#[test]
fn somebody_silent_on_the_port() {
    let room = Room::new();
    let port = other_program(|_stream| std::thread::sleep(LONG));
    let words = format!("latency 127.0.0.1 -p {port}");
    words_tell(
        &room,
        &words,
        &told(5, "10 s", &format!("127.0.0.1:{port}"), "--peer auto"),
    );
}

#[test]
fn another_version() {
    let room = Room::new();
    let port = other_program(|mut stream| {
        let hello = Hello {
            protocol_min: 700,
            protocol_max: 900,
            ..Hello::new("linerate 99.0.0")
        };
        let mut connection = Connection::server(hello).expect("a short greeting");
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
    let words = format!("throughput 127.0.0.1 -p {port}");
    let object = format!("127.0.0.1:{port}");
    let want = told(5, "700 to 900", &object, "same version");
    words_tell(&room, &words, &want);
}

/// Forwards TCP to a server, and nothing else, as a firewall without a rule for UDP.
fn tcp_only(server: u16) -> (u16, UdpSocket) {
    let port = free_port();
    let here = (Ipv4Addr::LOCALHOST, port);
    let listener = TcpListener::bind(here).expect("a free port");
    let hole = UdpSocket::bind(here).expect("UDP is free where TCP was");
    let port = other_program_on(listener, move |near| {
        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        };
        let (back, forth) = (
            (
                far.try_clone().expect("a copy"),
                near.try_clone().expect("a copy"),
            ),
            (near, far),
        );
        std::thread::spawn(move || pass(back.0, back.1));
        pass(forth.0, forth.1);
    });
    (port, hole)
}

#[test]
fn udp_does_not_get_through() {
    let room = Room::new();
    let server = room.server("-q");
    let (port, _hole) = tcp_only(server.port);
    let words = format!("throughput 127.0.0.1 -u -p {port}");
    let open = format!("open UDP port {port}");
    words_tell(
        &room,
        &words,
        &told(5, "UDP does not get through", "127.0.0.1", &open),
    );
    // Only the path was blocked: the server serves further clients.
    let direct = format!("throughput 127.0.0.1 -u -p {} -t 0.2", server.port);
    room.run(&direct).expect(0);
}

/// Starts a server that prints its events.
fn server_that_tells(room: &Room) -> common::Server {
    room.server("--json-stream")
}

/// Forwards TCP, and changes the byte at that offset of a flow's payload.
fn changing(server: u16, offset: usize) -> u16 {
    const OPENING: &[u8] = b"\x01lr\xC0\xFFdat";
    const OPENING_BYTES: usize = 24;
    other_program(move |near| {
        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else {
            return;
        };
        let mut back = (
            far.try_clone().expect("a copy"),
            near.try_clone().expect("a copy"),
        );
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back.0, &mut back.1);
            let _ = back.1.shutdown(Shutdown::Both);
        });
        let (mut near, mut far) = (near, far);
        let (mut room, mut passed, mut is_flow) = (vec![0; 1 << 16], 0, false);
        while let Ok(bytes @ 1..) = near.read(&mut room) {
            if passed == 0 {
                is_flow = room.starts_with(OPENING);
            }
            let at = OPENING_BYTES + offset;
            if is_flow && (passed..passed + bytes).contains(&at) {
                room[at - passed] ^= 1;
            }
            passed += bytes;
            if far.write_all(&room[..bytes]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(Shutdown::Write);
    })
}

#[test]
fn changed_content_is_a_failed_run() {
    let room = Room::new();
    let server = common::Server::start(&mut room.linerate("server -p 0 -q"));
    let port = changing(server.port, 4_321);
    let words = format!("throughput 127.0.0.1 -p {port} -n 1M --verify -q");
    let plain = room.run(&words).expect(1);
    let said = in_one_line(&format!("{} {}", plain.stdout, plain.stderr));
    for part in ["offset 4321", "content-mismatch", "error: content", "help:"] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    let json = room.run(&format!("{words} --json")).expect(1).json();
    is_record(&json);
    assert_eq!(json["summary"]["mismatched"], 1, "{json}");
    let first = &json["directions"][0]["streams"][0]["mismatch"];
    assert_eq!(first["offset"], 4_321, "{json}");
    // Directly to the server nothing is changed.
    let words = words.replace(&port.to_string(), &server.port.to_string());
    room.run(&words).expect(0);
}

#[test]
fn a_killed_server_ends_the_test_with_what_there_is() {
    let room = Room::new();
    for form in ["", "--json", "--json-stream"] {
        let mut server = server_that_tells(&room);
        let words = format!(
            "throughput 127.0.0.1 -p {} -t 60 -b 50M -i 0.1 {form}",
            server.port
        );
        let client = Running::start(&mut room.linerate(&words));
        server.running.started();
        // Some intervals, so that there is something to keep.
        std::thread::sleep(Duration::from_secs(1));
        server.running.signal(Signal::KILL);
        let client = client.wait().expect(5);
        match form {
            "" => {
                assert!(client.stderr.contains("peer lost"), "{client:?}");
                assert!(client.stderr.contains("help:"), "{client:?}");
                assert!(client.stdout.contains("interrupted"), "{client:?}");
            }
            "--json" => {
                assert!(client.stderr.contains("peer lost"), "{client:?}");
                vanished(&client.json());
            }
            _ => {
                let last = client
                    .json_lines()
                    .into_iter()
                    .rfind(|line| line["event"] == "finished");
                vanished(&last.expect("a last event")["record"]);
            }
        }
    }
    for record in room.stored() {
        is_record(&record);
    }
}

/// A flow that breaks in the middle of a write keeps its time and cost until then.
#[test]
fn a_broken_stream_keeps_its_time() {
    let room = Room::new();
    for (way, moved) in [("", "bytes_sent"), ("-R", "bytes_received")] {
        let mut server = server_that_tells(&room);
        let words = format!(
            "throughput 127.0.0.1 -p {} -t 600 --json {way}",
            server.port
        );
        let client = Running::start(&mut room.linerate(&words));
        server.running.started();
        std::thread::sleep(Duration::from_millis(1_500));
        server.running.signal(Signal::KILL);
        let record = client.wait().expect(5).json();
        vanished(&record);
        let summary = &record["summary"];
        let lasted = summary["duration_ns"].as_u64().unwrap_or_default();
        // Not the planned time: a receiver would divide by it.
        assert!(
            (200_000_001..500_000_000_000).contains(&lasted),
            "{summary:#}"
        );
        assert!(summary[moved].as_u64() > Some(0), "{summary:#}");
        let share = summary["cpu"][0]["share"].as_f64();
        assert!(
            share.is_none_or(|share| share < 4.0),
            "one thread: {summary:#}"
        );
    }
}

/// Checks the record of a run whose peer vanished.
#[track_caller]
fn vanished(record: &Value) {
    is_record(record);
    assert_eq!(record["interrupted"], true);
    let doubts = record["validity"].as_array().expect("a list");
    assert!(
        doubts.iter().any(|doubt| doubt["doubt"] == "peer-vanished"),
        "{doubts:?}"
    );
}

/// Neither end waits longer than its timeout; a server continues with other clients.
#[test]
fn silence_is_not_waited_for() {
    let room = Room::new();
    let mut server = server_that_tells(&room);
    let words = format!("latency 127.0.0.1 -p {} -t 600", server.port);
    let near = Running::start(&mut room.linerate(&words));
    server.running.started();
    // The client stops responding; the server must detect it.
    near.signal(Signal::STOP);
    let mut frozen = room.server("--json-stream");
    let words = format!("latency 127.0.0.1 -p {} -t 600", frozen.port);
    let far = Running::start(&mut room.linerate(&words));
    frozen.running.started();
    frozen.running.signal(Signal::STOP);
    let far = far.wait().expect(5);
    assert!(far.stderr.contains("14 s"), "{far:?}");
    server.running.line(|line| {
        line.contains(r#""event":"finished""#) || line.contains(r#""event":"failed""#)
    });
    room.run(&format!("latency 127.0.0.1 -p {} -n 10", server.port))
        .expect(0);
}
