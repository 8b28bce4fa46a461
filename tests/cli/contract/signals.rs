//! Runs and servers that receive a signal, or whose reader closes the pipe.

use super::*;

/// Returns a client in the middle of its test, and its server.
fn start_test(dir: &TestDir, args: &str) -> (RunningCommand, LinerateServer) {
    let mut server = dir.server("--json-stream --no-store");
    let args = format!("{args} 127.0.0.1 -p {} -t 60 -i 0.1", server.port);
    let client = RunningCommand::start(&mut dir.linerate(&args));
    server.running.wait_started();
    // Some payload is sent within this time.
    std::thread::sleep(Duration::from_secs(1));
    (client, server)
}

#[test]
fn signals_end_a_test_with_its_partial_result() {
    for (signal, args) in [
        (Signal::INT, "throughput -b 50M --json"),
        (Signal::TERM, "throughput -u -R -b 20M --json"),
        (Signal::INT, "latency -u --json"),
        (Signal::TERM, "latency --repeat 3 --json"),
    ] {
        println!("{signal:?} {args}");
        let dir = TestDir::new();
        let (client, mut server) = start_test(&dir, args);
        client.send_signal(signal);
        let output = client.wait().expect(130);
        let document = output.json();
        assert_eq!(document["interrupted"], true);
        let record = match document.get("runs") {
            Some(runs) => &runs[0],
            None => &document,
        };
        assert_valid_record(record);
        assert_eq!(record["interrupted"], true, "{record:#}");
        let figure = if args.starts_with("latency") {
            "round_trips"
        } else {
            "bytes_received"
        };
        let counted = record["summary"][figure].as_u64();
        assert!(counted.is_some_and(|counted| counted > 0), "{record:#}");
        assert!(
            dir.stored().contains(record),
            "the partial result is stored"
        );
        // The server detects the end and serves further clients.
        server
            .running
            .wait_line(|line| line.contains(r#""event":"finished""#));
        dir.run(&format!("latency 127.0.0.1 -p {} -n 10", server.port))
            .expect(0);
    }
}

#[test]
fn an_interrupted_test_reports_it_in_text() {
    let dir = TestDir::new();
    let (client, _server) = start_test(&dir, "throughput -b 50M");
    client.interrupt();
    let output = client.wait().expect(130);
    assert!(output.stdout.contains("interrupted"), "{output:?}");
    assert!(output.stdout.contains("goodput"), "{output:?}");
}

/// `timeout` signals its child and then the whole group: the result is printed all the same.
#[test]
fn the_timeout_command_gets_the_partial_result() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    for signal in [Signal::TERM, Signal::INT] {
        for _ in 0..3 {
            let args = format!(
                "--preserve-status 600 {} latency 127.0.0.1 -p {} -t 600 --json-stream",
                crate::common::LINERATE,
                server.port
            );
            let mut running = RunningCommand::start(&mut dir.command("timeout", args.split(' ')));
            // Before a run has started there is nothing to print.
            running.wait_started();
            // `timeout` passes a signal on as it sends its own.
            running.send_signal(signal);
            let mut lines = running.wait().expect(130).json_lines();
            let record = lines.pop().expect("a line")["record"].take();
            assert_eq!(record["interrupted"], true, "{record:#}");
        }
    }
}

#[test]
fn a_second_signal_aborts() {
    let dir = TestDir::new();
    let (mut client, server) = start_test(&dir, "latency");
    // A server that does not respond keeps the orderly end waiting.
    server.running.send_signal(Signal::STOP);
    client.interrupt();
    // Two signals within a moment count as one: on a busy machine these may.
    wait_until("the abort", || {
        std::thread::sleep(Duration::from_millis(500));
        client.interrupt();
        client.has_exited()
    });
    client.wait().expect(130);
    assert!(dir.stored().is_empty(), "only an end in order has a record");
}

/// A client that is killed in the middle of a message ends only its own test.
#[test]
fn a_server_outlives_clients_that_are_killed() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.running.pid())).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a mask");
    // SIGPIPE, 13: a peer that closes its connection must not end the server.
    assert_ne!(ignored & (1 << 12), 0, "{ignored:x}");
    let search = "throughput 127.0.0.1 -u -b max:0 --trial 50ms --no-store";
    for signal in [Signal::KILL, Signal::INT] {
        for round in 0..8 {
            let args = format!("{search} -p {}", server.port);
            let client = RunningCommand::start(&mut dir.linerate(&args));
            // At any point: in the handshake, in a trial, or between two trials.
            std::thread::sleep(Duration::from_millis(40 + 37 * round));
            client.send_signal(signal);
            client.wait();
        }
    }
    let args = format!("latency 127.0.0.1 -p {} -n 20 --no-store", server.port);
    finish(&mut dir.linerate(&args)).expect(0);
}

#[test]
fn a_server_that_gets_a_signal_ends_its_tests_in_order() {
    let dir = TestDir::new();
    let (client, server) = start_test(&dir, "throughput -b 50M --json");
    server.running.send_signal(Signal::TERM);
    server.running.wait().expect(0);
    let output = client.wait();
    assert!(matches!(output.exit_code(), 0 | 5), "{output:?}");
    let record = output.json();
    assert_valid_record(&record);
    assert_eq!(record["interrupted"], true);
}

/// A reader that closes its pipe ends the program without a message.
#[test]
fn a_closed_pipe_is_quiet() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    for form in ["", "--json-stream"] {
        let args = format!("latency 127.0.0.1 -p {} -t 30 -i 0.1 {form}", server.port);
        let mut child = dir
            .linerate(&args)
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
    let output = finish(&mut dir.command(
        "sh",
        [
            "-c",
            &format!("{} --help | head -1", crate::common::LINERATE),
        ],
    ));
    assert_eq!(output.expect(0).stderr, "");
}

/// Requested files are still written, and the result is stored.
#[test]
fn a_closed_pipe_loses_no_files() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let file = |name: &str| dir.path().join(name);
    let args = format!(
        "latency 127.0.0.1 -p {} -t 4 -i 0.1 -o {} --html {}",
        server.port,
        file("run.json").display(),
        file("run.html").display()
    );
    let mut child = dir
        .linerate(&args)
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
    assert_valid_record(&record);
    assert_eq!(record["interrupted"], false);
    assert!(
        std::fs::read_to_string(file("run.html"))
            .expect("the page")
            .contains("</html>")
    );
    assert_eq!(dir.stored().len(), 1);
}

/// Closes the reader of a command's first stream after its first line, and of the other stream.
fn start_and_close_readers(command: &mut Command) -> (String, Child) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("a line");
    drop(child.stderr.take());
    (line, child)
}

/// The tests of a server belong to its clients, not to the reader of its log.
#[test]
fn a_server_outlives_the_reader_of_its_log() {
    let dir = TestDir::new();
    for form in ["", "--json-stream", "--verbose"] {
        let port = crate::common::free_port();
        let args = format!("server -p {port} --no-store {form}");
        let (line, mut server) = start_and_close_readers(&mut dir.linerate(&args));
        assert!(line.contains(&port.to_string()), "{line}");
        for _ in 0..2 {
            let args = format!("throughput 127.0.0.1 -p {port} -b 10M -t 0.3 --no-store");
            finish(&mut dir.linerate(&args)).expect(0);
        }
        assert_eq!(server.try_wait().expect("its state"), None, "{form}");
        let pid = Pid::from_child(&server);
        rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
        assert_eq!(server.wait().expect("it ends").code(), Some(0), "{form}");
    }
}

/// Frames of others pass through a forwarder; at its end it exits as a pipeline tool does.
#[test]
fn a_forwarder_outlives_the_reader_of_its_statistics() {
    let dir = TestDir::new();
    let args = "forward --dev null: --dev null: -t 1 --stats-period 0.1 --json-stream";
    let (_, mut forwarder) = start_and_close_readers(&mut dir.linerate(args));
    let status = forwarder.wait().expect("it ends");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(13), "{status}");
    let stored = dir.stored();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0]["interrupted"], false);
}

/// A command without a reader ends as on Ctrl-C if it has a setting to restore.
#[test]
fn a_closed_pipe_leaves_no_setting_changed() {
    let dir = TestDir::new();
    let server = dir.server("--no-store -q");
    fs::write(
        dir.path().join("knobs.toml"),
        "[[knob]]\nname = \"state\"\nvalues = [1, 2]\nset = \"echo {} > state\"\n\
         restore = \"echo before > state\"\n",
    )
    .expect("a file");
    let args = format!(
        "sweep --no-store --knob-file knobs.toml --over state=1,2 --repeats 100 throughput 127.0.0.1 -p {} -b 1M -t 0.1",
        server.port
    );
    let (line, mut sweep) = start_and_close_readers(&mut dir.linerate(&args));
    assert!(line.starts_with("sweep "), "{line}");
    let status = sweep.wait().expect("it ends");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(13), "{status}");
    let state = fs::read_to_string(dir.path().join("state")).expect("the knob was set");
    assert_eq!(state, "before\n");
}
