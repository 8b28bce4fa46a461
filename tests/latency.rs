//! Round trips through the real binary: why answers were slow, and runs that end before their time.

mod common;

use std::time::Duration;

use common::{Room, Running, is_record, one_of};
use rustix::process::Signal;
use serde_json::Value;

/// Stops a process for a time, as a debugger or a frozen container would.
fn freeze(running: &Running, time: Duration) {
    running.signal(Signal::STOP);
    std::thread::sleep(time);
    running.signal(Signal::CONT);
}

/// The causes of the slow answers of a run, with their evidence, the slowest first. A record without slow
/// answers has no list of them.
fn causes(record: &Value) -> Vec<(u64, String, String)> {
    let slow = record["slow"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |answer: &Value, key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    let mut causes: Vec<_> = (slow.iter())
        .map(|answer| {
            let time = answer["time_ns"].as_u64().expect("a time");
            (time, text(answer, "cause"), text(answer, "evidence"))
        })
        .collect();
    causes.sort_unstable_by_key(|(time, ..)| std::cmp::Reverse(*time));
    causes
}

/// The slowest answer to a client that is frozen in the middle of its run: time, cause, evidence.
fn slowest_of_a_frozen_client(room: &Room, words: &str) -> Option<(u64, String, String)> {
    let mut client = Running::start(&mut room.linerate(words));
    client.started();
    std::thread::sleep(Duration::from_millis(300));
    freeze(&client, Duration::from_millis(400));
    let lines = client.wait().expect(0).json_lines();
    let record = lines.iter().find_map(|line| line.get("record"));
    let record = record.unwrap_or_else(|| panic!("{lines:?}"));
    is_record(record);
    causes(record).into_iter().next()
}

/// A client that stands still while its answer waits for it, over datagrams and streams.
#[test]
fn an_answer_that_waited_in_the_queue() {
    const TRIES: usize = 8;
    let room = Room::new();
    let server = room.server("-q --no-store");
    for protocol in ["-u", ""] {
        let words = format!(
            "latency 127.0.0.1 -p {} {protocol} -t 3 --limit 200ms --no-store --json-stream",
            server.port
        );
        // It may be frozen in the moment between its clock and its send call, or be over before, or a busy
        // machine may have a cause of its own.
        let evidence = one_of(TRIES, || {
            let slowest = slowest_of_a_frozen_client(&room, &words);
            match slowest.unwrap_or_default() {
                (300_000_000.., cause, evidence) if cause == "receive-queue-wait" => Ok(evidence),
                other => Err(format!("{protocol} {other:?}")),
            }
        });
        assert!(evidence.contains("before the program got it"), "{evidence}");
    }
    server.end().expect(0);
}

/// A server that is stopped during a run tells what it had: the run ends, says who ended it, and keeps
/// what was measured.
#[test]
fn a_far_end_that_is_stopped_is_told() {
    let room = Room::new();
    for (form, several) in [("", false), ("--json", false), ("", true)] {
        let mut server = room.server("--json-stream --no-store");
        let series = if several { "--compare-waiting" } else { "" };
        let words = format!(
            "latency 127.0.0.1 -p {} -u -t 60 -i 0.1 {series} {form}",
            server.port
        );
        println!("{words}");
        let client = Running::start(&mut room.linerate(&words));
        server.running.started();
        // Some answers, so that there is something to keep.
        std::thread::sleep(Duration::from_secs(1));
        server.end().expect(0);
        let client = client.wait().expect(5);
        assert!(
            client.stderr.contains("the far end ended the run early"),
            "{client:?}"
        );
        if form == "--json" {
            let record = client.json();
            is_record(&record);
            assert_eq!(record["interrupted"], true);
            assert!(record["summary"]["round_trips"].as_u64() > Some(0));
        } else {
            assert!(client.stdout.contains("until then") || client.stdout.contains("cover"));
            assert!(client.stderr.contains("help:"), "{client:?}");
        }
    }
}
