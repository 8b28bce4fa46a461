//! Runs and servers that receive a signal, or whose reader closes the pipe.

use super::*;

/// Returns a client in the middle of its test, and its server.
fn in_the_middle(room: &Room, words: &str) -> (Running, Server) {
    let mut server = room.server("--json-stream --no-store");
    let words = format!("{words} 127.0.0.1 -p {} -t 60 -i 0.1", server.port);
    let client = Running::start(&mut room.linerate(&words));
    server.running.started();
    // Some payload is sent within this time.
    std::thread::sleep(Duration::from_secs(1));
    (client, server)
}

#[test]
fn signals_end_a_test_with_its_partial_result() {
    for (signal, words) in [
        (Signal::INT, "throughput -b 50M --json"),
        (Signal::TERM, "throughput -u -R -b 20M --json"),
        (Signal::INT, "latency -u --json"),
        (Signal::TERM, "latency --repeat 3 --json"),
    ] {
        println!("{signal:?} {words}");
        let room = Room::new();
        let (client, mut server) = in_the_middle(&room, words);
        client.signal(signal);
        let ran = client.wait().expect(130);
        let document = ran.json();
        assert_eq!(document["interrupted"], true);
        let record = match document.get("runs") {
            Some(runs) => &runs[0],
            None => &document,
        };
        is_valid(record);
        assert_eq!(record["interrupted"], true, "{record:#}");
        let figure = if words.starts_with("latency") {
            "round_trips"
        } else {
            "bytes_received"
        };
        let counted = record["summary"][figure].as_u64();
        assert!(counted.is_some_and(|counted| counted > 0), "{record:#}");
        assert!(
            room.stored().contains(record),
            "the partial result is stored"
        );
        // The server detects the end and serves further clients.
        server
            .running
            .line(|line| line.contains(r#""event":"finished""#));
        room.run(&format!("latency 127.0.0.1 -p {} -n 10", server.port))
            .expect(0);
    }
}

#[test]
fn an_interrupted_test_says_so_to_people() {
    let room = Room::new();
    let (client, _server) = in_the_middle(&room, "throughput -b 50M");
    client.interrupt();
    let ran = client.wait().expect(130);
    assert!(ran.stdout.contains("interrupted"), "{ran:?}");
    assert!(ran.stdout.contains("goodput"), "{ran:?}");
}

/// `timeout` signals its child and then the whole group: the result is printed all the same.
#[test]
fn the_timeout_command_gets_the_partial_result() {
    let room = Room::new();
    let server = room.server("--no-store");
    for signal in ["TERM", "INT"] {
        for _ in 0..3 {
            // Before a run has started there is nothing to print: the next attempt has more time.
            let mut seconds = 0.3_f64;
            let document = one_of(8, || {
                seconds = (seconds * 2.0).min(8.0);
                let words = format!(
                    "--preserve-status -s {signal} {seconds} {} latency 127.0.0.1 -p {} -t 600 --json",
                    common::LINERATE,
                    server.port
                );
                let ran = finish(&mut room.command("timeout", words.split(' ')));
                // A signal before the handler is installed ends the program. On a busy machine the
                // two signals of `timeout` may arrive as two, and the second one aborts.
                let document = serde_json::from_str::<Value>(&ran.stdout);
                match document {
                    Ok(document) if document["error"].is_null() => Ok(ran.expect(130).json()),
                    _ => Err(format!("{ran:?}")),
                }
            });
            assert_eq!(document["interrupted"], true);
        }
    }
}

#[test]
fn a_second_signal_aborts() {
    let room = Room::new();
    let (mut client, server) = in_the_middle(&room, "latency");
    // A server that does not respond keeps the orderly end waiting.
    server.running.signal(Signal::STOP);
    client.interrupt();
    // Two signals within a moment count as one: on a busy machine these may.
    soon("the abort", || {
        std::thread::sleep(Duration::from_millis(500));
        client.interrupt();
        client.has_ended()
    });
    client.wait().expect(130);
    assert!(
        room.stored().is_empty(),
        "only an end in order has a record"
    );
}

/// A client that is killed in the middle of a message ends only its own test.
#[test]
fn a_server_outlives_clients_that_are_killed() {
    let room = Room::new();
    let server = room.server("--no-store");
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.running.pid())).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a mask");
    // SIGPIPE, 13: a peer that closes its connection must not end the server.
    assert_ne!(ignored & (1 << 12), 0, "{ignored:x}");
    let search = "throughput 127.0.0.1 -u -b max:0 --trial 50ms --no-store";
    for signal in [Signal::KILL, Signal::INT] {
        for round in 0..8 {
            let words = format!("{search} -p {}", server.port);
            let client = Running::start(&mut room.linerate(&words));
            // At any point: in the handshake, in a trial, or between two trials.
            std::thread::sleep(Duration::from_millis(40 + 37 * round));
            client.signal(signal);
            client.wait();
        }
    }
    let words = format!("latency 127.0.0.1 -p {} -n 20 --no-store", server.port);
    finish(&mut room.linerate(&words)).expect(0);
}

#[test]
fn a_server_that_is_told_to_end_ends_its_tests_in_order() {
    let room = Room::new();
    let (client, server) = in_the_middle(&room, "throughput -b 50M --json");
    server.running.signal(Signal::TERM);
    server.running.wait().expect(0);
    let ran = client.wait();
    assert!(matches!(ran.code(), 0 | 5), "{ran:?}");
    let record = ran.json();
    is_valid(&record);
    assert_eq!(record["interrupted"], true);
}

/// A reader that closes its pipe ends the program without a message.
#[test]
fn a_closed_pipe_is_quiet() {
    let room = Room::new();
    let server = room.server("--no-store");
    for form in ["", "--json-stream"] {
        let words = format!("latency 127.0.0.1 -p {} -t 30 -i 0.1 {form}", server.port);
        let mut child = room
            .linerate(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        // The pipe is closed now.
        let stderr = std::io::read_to_string(child.stderr.take().expect("piped")).expect("text");
        let status = child.wait().expect("it ends");
        assert!(line.contains("connected"), "{line}");
        assert_eq!(stderr, "");
        // Killed by SIGPIPE, as `cat` would be.
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(13),
            "{status}"
        );
    }
    let ran = finish(&mut room.command(
        "sh",
        ["-c", &format!("{} --help | head -1", common::LINERATE)],
    ));
    assert_eq!(ran.expect(0).stderr, "");
}

/// Requested files are still written, and the result is stored.
#[test]
fn a_closed_pipe_takes_no_files_along() {
    let room = Room::new();
    let server = room.server("--no-store");
    let file = |name: &str| room.path().join(name);
    let words = format!(
        "latency 127.0.0.1 -p {} -t 4 -i 0.1 -o {} --html {}",
        server.port,
        file("run.json").display(),
        file("run.html").display()
    );
    let mut child = room
        .linerate(&words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("a line");
    // The pipe is closed now.
    let stderr = std::io::read_to_string(child.stderr.take().expect("piped")).expect("text");
    let status = child.wait().expect("it ends");
    assert_eq!(stderr, "");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(13),
        "{status}"
    );
    let record = std::fs::read(file("run.json")).expect("the record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    is_valid(&record);
    assert_eq!(record["interrupted"], false);
    assert!(
        std::fs::read_to_string(file("run.html"))
            .expect("the page")
            .contains("</html>")
    );
    assert_eq!(room.stored().len(), 1);
}
