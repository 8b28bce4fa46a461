//! Round trips through the real binary: causes of slow responses, and runs that end early.

use std::time::Duration;

use crate::common::{RunningCommand, TestDir, assert_record, retry};
use rustix::process::Signal;
use serde_json::Value;

/// Stops a process for some time, as a debugger or a frozen container would.
fn freeze(running: &RunningCommand, time: Duration) {
    running.send_signal(Signal::STOP);
    std::thread::sleep(time);
    running.send_signal(Signal::CONT);
}

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

/// Returns the slowest response to a client that is frozen in the middle of its run.
fn slowest_of_a_frozen_client(dir: &TestDir, args: &str) -> Option<(u64, String, String)> {
    let mut client = RunningCommand::start(&mut dir.linerate(args));
    client.wait_started();
    std::thread::sleep(Duration::from_millis(300));
    freeze(&client, Duration::from_millis(400));
    let lines = client.wait().expect(0).json_lines();
    let record = lines.iter().find_map(|line| line.get("record"));
    let record = record.unwrap_or_else(|| panic!("{lines:?}"));
    assert_record(record);
    causes(record).into_iter().next()
}

/// A stopped client whose response waits in its socket, over datagrams and streams.
#[test]
fn a_response_that_waited_in_the_queue() {
    const TRIES: usize = 8;
    let dir = TestDir::new();
    let server = dir.server("-q --no-store");
    for protocol in ["-u", ""] {
        let args = format!(
            "latency 127.0.0.1 -p {} {protocol} -t 3 --limit 200ms --no-store --json-stream",
            server.port
        );
        // The client may be frozen between its clock and its send call, or end too early, or a busy
        // machine may have a cause of its own.
        let evidence = retry(TRIES, || {
            let slowest = slowest_of_a_frozen_client(&dir, &args);
            match slowest.unwrap_or_default() {
                (300_000_000.., cause, evidence) if cause == "receive-queue-wait" => Ok(evidence),
                other => Err(format!("{protocol} {other:?}")),
            }
        });
        assert!(evidence.contains("in the receive queue"), "{evidence}");
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
