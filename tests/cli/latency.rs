//! Round trips through the real binary: causes of slow responses, and runs that end early.

use std::time::{Duration, Instant};

use crate::common::{LinerateServer, RunningCommand, TestDir, assert_record, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// Returns time, cause and evidence of a run's slow responses, the slowest first. A record without
/// slow responses has no list of them.
fn causes(record: &Value) -> Vec<(u64, String, String)> {
    let slow = record["slow"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |response: &Value, key: &str| response[key].as_str().unwrap_or_default().to_owned();
    let mut causes: Vec<_> = (slow.iter())
        .map(|response| {
            let time = response["time_ns"].as_u64().expect("a time");
            (time, text(response, "cause"), text(response, "evidence"))
        })
        .collect();
    causes.sort_unstable_by_key(|(time, ..)| std::cmp::Reverse(*time));
    causes
}

/// Stops a process and waits until all of its threads have stopped: one in a system call may still
/// complete it.
fn stop_process(running: &RunningCommand) {
    running.send_signal(Signal::STOP);
    let tasks = format!("/proc/{}/task", running.pid());
    wait_until("stopped threads", || {
        let mut tasks = std::fs::read_dir(&tasks).expect("a process").flatten();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat"));
            // The state comes after the name, which may contain anything.
            stat.is_ok_and(|stat| {
                stat.rsplit_once(')')
                    .is_some_and(|(_, rest)| rest.starts_with(" T"))
            })
        })
    });
}

/// Shortest time of a response in the queue of a stopped client.
const QUEUE_WAIT: Duration = Duration::from_millis(400);

/// Payload of a request: larger than any message of the control connection.
const REQUEST_BYTES: u64 = 5_000;

/// End of a flow between a client and its server.
#[derive(Clone, Copy)]
enum FlowEnd {
    Client,
    Server,
}

/// Returns whether payload of a flow to this server is in the receive queue of an end.
fn has_queued_payload(protocol: &str, port: u16, end: FlowEnd) -> bool {
    let port = format!(":{port:04X}");
    let is_queued = |line: &str| {
        // Number, local and remote address, state, queues to send and received, in hexadecimal.
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[_, local, remote, _, queues, ..] = fields.as_slice() else {
            return false;
        };
        let address = match end {
            FlowEnd::Client => remote,
            FlowEnd::Server => local,
        };
        let received = queues.split_once(':').map(|(_, received)| received);
        let bytes = received.and_then(|bytes| u64::from_str_radix(bytes, 16).ok());
        address.ends_with(&port) && bytes >= Some(REQUEST_BYTES)
    };
    ["", "6"].iter().any(|family| {
        let table = std::fs::read_to_string(format!("/proc/net/{protocol}{family}"));
        table.unwrap_or_default().lines().skip(1).any(is_queued)
    })
}

/// Returns the slow responses of a run in which a response waits in the queue of a stopped client.
fn causes_of_a_stopped_client(
    dir: &TestDir,
    server: &LinerateServer,
    protocol: &str,
    args: &str,
) -> Vec<(u64, String, String)> {
    let mut client = RunningCommand::start(&mut dir.linerate(args));
    client.wait_line(|line| line.contains(r#""event":"interval""#));
    let is_queued = |end| has_queued_payload(protocol, server.port, end);
    // The client waits for a response once its request is in the queue of the stopped server. A
    // server that is stopped with a request in hand continues for a moment.
    let mut stopped = Instant::now();
    wait_until("a request in the queue of the server", || {
        stopped = Instant::now();
        stop_process(&server.running);
        let is_request_queued = (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            is_queued(FlowEnd::Server)
        });
        if !is_request_queued {
            server.running.send_signal(Signal::CONT);
        }
        is_request_queued
    });
    stop_process(&client);
    server.running.send_signal(Signal::CONT);
    wait_until("a response in the queue of the client", || {
        is_queued(FlowEnd::Client)
    });
    // The longer wait is the cause.
    std::thread::sleep(stopped.elapsed().max(QUEUE_WAIT));
    client.send_signal(Signal::CONT);
    let lines = client.wait().expect(0).json_lines();
    let record = lines.iter().find_map(|line| line.get("record"));
    let record = record.unwrap_or_else(|| panic!("{lines:?}"));
    assert_record(record);
    causes(record)
}

/// A stopped client whose response waits in its socket, over datagrams and streams.
#[test]
fn a_response_that_waited_in_the_queue() {
    let dir = TestDir::new();
    let server = dir.server("-q --no-store");
    for (protocol, option) in [("udp", "-u"), ("tcp", "")] {
        let args = format!(
            "latency 127.0.0.1 -p {} {option} -l {REQUEST_BYTES} -t 6 -i 0.1 --timeout 30s --limit 200ms \
             --no-store --json-stream",
            server.port
        );
        // On a busy machine other responses are slow as well: those of the stopped server.
        let causes = causes_of_a_stopped_client(&dir, &server, protocol, &args);
        let waited = causes.iter().find(|(time_ns, cause, evidence)| {
            u128::from(*time_ns) >= QUEUE_WAIT.as_nanos()
                && cause == "receive-queue-wait"
                && evidence.contains("in the receive queue")
        });
        assert!(waited.is_some(), "{protocol}: {causes:?}");
    }
    server.stop().expect(0);
}

/// A server that is stopped during a run reports its results: the run ends with the reason and
/// keeps what was measured.
#[test]
fn a_stopped_server_is_reported() {
    let dir = TestDir::new();
    for (form, several) in [("", false), ("--json", false), ("", true)] {
        let mut server = dir.server("--json-stream --no-store");
        let series = if several { "--compare-waiting" } else { "" };
        let args = format!(
            "latency 127.0.0.1 -p {} -u -t 60 -i 0.1 {series} {form}",
            server.port
        );
        println!("{args}");
        let client = RunningCommand::start(&mut dir.linerate(&args));
        server.running.wait_started();
        // Some responses, so that there is something to keep.
        std::thread::sleep(Duration::from_secs(1));
        server.stop().expect(0);
        let client = client.wait().expect(5);
        assert!(
            client.stderr.contains("the server ended the run early"),
            "{client:?}"
        );
        if form == "--json" {
            let record = client.json();
            assert_record(&record);
            assert_eq!(record["interrupted"], true);
            assert!(record["summary"]["round_trips"].as_u64() > Some(0));
        } else {
            assert!(client.stdout.contains("interrupted: "), "{client:?}");
            assert!(client.stderr.contains("help:"), "{client:?}");
        }
    }
}
