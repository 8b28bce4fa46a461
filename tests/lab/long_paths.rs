//! Paths whose own time is longer than usual time-outs: satellites, radio, modems with a deep queue.

use serde_json::Value;

use crate::common::{RunningCommand, TestLab, assert_record, lab, number_at};

/// A round trip of 1.4 s is one, and an answer to a repeated probe is none.
#[test]
fn round_trips_beyond_a_second_are_measured() {
    let link = "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"700ms\"\n";
    let lab = lab!(TestLab::pair("long-round-trips", link));
    let _server = lab.server("-q --also 7");
    let runs = [
        "latency 10.77.0.2 -n 2",
        "latency 10.77.0.2 -u -n 2",
        "latency 10.77.0.2 -u --peer sockperf -p 5201 -n 2",
        "latency 10.77.0.2 -u --peer echo -n 2",
        "latency 10.77.0.2 --peer echo -n 2",
        // Each with a connection of its own: 2.8 s, of which the last is awaited beyond the end.
        "throughput 10.77.0.2 --connect -t 4",
    ];
    let runs = runs.map(|run| {
        let args = format!("{run} -i 0 --json");
        (
            RunningCommand::start(&mut lab.linerate("client", &args)),
            args,
        )
    });
    for (running, args) in runs {
        let record = running.wait().expect(0).json();
        assert_record(&record);
        let summary = &record["summary"];
        let min_ns = number_at(&record, "/summary/rtt_ns/min");
        assert!(min_ns >= 1.399e9, "{args}: {summary:#}");
        assert_eq!(summary["round_trips"], 2, "{args}: {summary:#}");
        for lost in ["lost", "mismatched"] {
            let count = summary[lost].as_u64().unwrap_or(0);
            assert_eq!(count, 0, "{args}: {lost}: {summary:#}");
        }
    }
}

/// The end of a test that waits behind its own datagrams for longer than silence is tolerated.
#[test]
fn results_behind_a_deep_queue_are_awaited() {
    // 2 Mb/s for 2 s into 200 kb/s: 18 s more.
    let link = "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"200K\"\nqueue = \"1M\"\n";
    let lab = lab!(TestLab::pair("deep-queue", link));
    let _server = lab.server("-q");
    let args = "throughput 10.77.0.2 -u -b 2M -t 2 -w 2M -l 1400 --json";
    let record = RunningCommand::start(&mut lab.linerate("client", args)).wait();
    let record: Value = record.expect(0).json();
    assert_record(&record);
    let summary = &record["summary"];
    assert_eq!(summary["lost"], 0, "{summary:#}");
    let duration_ns = number_at(&record, "/summary/duration_ns");
    assert!(duration_ns > 18e9, "{summary:#}");
}
