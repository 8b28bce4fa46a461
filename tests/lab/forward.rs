//! `linerate forward` from the command line and from its shell, over rings and shared memory.
//! Interfaces are in `devices.rs`.

mod processes;
mod shell;
mod testpmd;

use std::fs;

use crate::common::{
    FinishedCommand, RunningCommand, TestDir, assert_record, finish, join_lines, number_at,
    wait_until,
};
use serde_json::Value;

/// Runs with these arguments and returns the record.
#[track_caller]
fn run_for_record(dir: &TestDir, args: &str) -> Value {
    println!("{args}");
    let output = dir.run(&format!("{args} --json")).expect(0);
    let record = output.json();
    assert_record(&record);
    assert_eq!(record["kind"], "forward");
    record
}

#[test]
fn frames_circulate_over_rings() {
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --dev ring:1 --cores 2 --tx-first 2 -t 0.3 --idle yield";
    let result = run_for_record(&dir, args);
    assert_eq!(result["plan"]["forward"]["mode"], "io");
    assert_eq!(result["plan"]["forward"]["tx_first"], 2);
    assert_eq!(number_at(&result, "/forward/primed"), 128.0);
    assert!(number_at(&result, "/summary/packets_per_second") > 0.0);
    assert_eq!(number_at(&result, "/summary/lost"), 0.0);
    let (received, sent) = ("/summary/packets_received", "/summary/packets_sent");
    assert_eq!(
        number_at(&result, sent),
        number_at(&result, received) + 128.0
    );
    assert_eq!(
        result["forward"]["streams"].as_array().map(Vec::len),
        Some(2)
    );
    // It is stored as the records of other commands are.
    let stored = dir.stored();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0]["id"], result["id"]);
}

#[test]
fn every_mode_runs_from_the_command_line() {
    let dir = TestDir::new();
    for mode in [
        "mac",
        "macswap",
        "5tswap",
        "rxonly",
        "txonly",
        "flowgen",
        "icmpecho",
        "csum",
        "noisy:reads=1,memory=4K",
        "link:rate=1G,delay=50us,jitter=5us,loss=0.1%,reorder=1%,duplicate=1%,corrupt=1%",
    ] {
        let result = run_for_record(
            &dir,
            &format!("forward --dev null:size=100 --mode {mode} -t 0.1 --no-store --idle yield"),
        );
        let mode = mode.split(':').next().unwrap();
        let output = result["plan"]["forward"]["mode"].as_str().unwrap();
        assert!(output.starts_with(mode), "{output}");
    }
}

#[test]
fn an_emulated_link_loses_the_requested_share() {
    let dir = TestDir::new();
    let args = "forward --dev null: --mode link:loss=50%,limit=100000 -t 0.2 --no-store --seed 3";
    // On a busy machine a run may see a burst or two, too few for a share.
    let mut counted = (0.0, 0.0);
    wait_until("enough frames", || {
        let result = run_for_record(&dir, args);
        counted = (
            number_at(&result, "/forward/ports/0/receive/packets"),
            number_at(&result, "/forward/streams/0/mode_counters/lost"),
        );
        counted.0 > 10_000.0
    });
    let (received, lost) = counted;
    let share = lost / received;
    assert!((0.45..0.55).contains(&share), "{share} of {received}");
}

#[test]
fn statistics_are_printed_as_known() {
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --tx-first -t 3 --stats-period 0.2 --record-core-cycles \
                 --idle yield";
    let printed = dir.run(args).expect(0).stdout;
    for expected in [
        "io packet forwarding - ports=1 - cores=1 - streams=1",
        "RX P=0/Q=0 -> TX P=0/Q=0 peer=02:00:00:00:00:00",
        "NIC statistics for port 0",
        "Rx-pps:",
        "Forward Stats for RX Port= 0/Queue= 0 -> TX Port= 0/Queue= 0",
        "CPU cycles/packet=",
        "Forward statistics for port 0",
        "Accumulated forward statistics for all ports",
        "TX-total:",
        "packets/s",
    ] {
        assert!(printed.contains(expected), "no `{expected}` in {printed}");
    }
    // The count of a port grows from one block to the next, as in testpmd.
    let received = printed.lines().filter(|line| line.contains("RX-missed"));
    let received = received.filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
    let received: Vec<u64> = received.collect();
    assert!(received.len() > 1 && received.is_sorted(), "{received:?}");
    assert!(received.last() > received.first(), "{received:?}");
}

#[test]
fn a_saturation_sweep_finds_the_plateau() {
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --dev ring:1 --cores 2 --saturate --trial 0.05 --idle yield";
    let output = dir
        .run(&format!("{args} --json --html walk.html"))
        .expect(0);
    let set = output.json();
    assert_eq!(
        (&set["schema"], &set["kind"]),
        (&"linerate/set/1".into(), &"saturation".into())
    );
    let sweeps = set["result"]["saturation"].as_array().unwrap();
    assert_eq!(sweeps.len(), 2);
    for (cores, sweep) in (1..).zip(sweeps) {
        assert_eq!(sweep["cores"], cores);
        let points = sweep["points"].as_array().unwrap();
        // On a busy machine steps may stay disturbed: then no plateau is named.
        if points.iter().all(|point| point["disturbed"] != true) {
            assert!(number_at(sweep, "/plateau_pps") > 0.0);
        }
        assert!(points.len() >= 3 && points[0]["tx_first"] == 1);
        assert_eq!(points[1]["in_flight"], 128);
    }
    let page = fs::read_to_string(dir.path().join("walk.html")).unwrap();
    assert!(page.contains("Packets per second by packets in flight"));
    let has_plateau_text =
        |text: &str| text.contains("in flight on (") || text.contains("no plateau is named");
    assert!(has_plateau_text(&page) && !page.contains("No run has a result"));
    // More cores than streams: a note explains it.
    let text = dir
        .run("forward --dev ring:0 --cores 2 --saturate --trial 0.05 --idle yield")
        .expect(0)
        .stdout;
    assert!(
        has_plateau_text(&text) && text.contains("1 stream keeps"),
        "{text}"
    );
}

#[test]
fn invalid_arguments_are_rejected() {
    let dir = TestDir::new();
    for (args, code, expected) in [
        ("forward", 2, "--dev"),
        ("forward --dev nonsense -t 1", 2, "KIND:NAME"),
        (
            "forward --dev ring:0 --mode nonsense -t 1",
            2,
            "is not a mode",
        ),
        ("forward --dev ring:0 --cores 0 -t 1", 2, "needs a thread"),
        (
            "forward --dev ring:0 --idle interrupt -t 1",
            4,
            "no file descriptor to wait on",
        ),
        (
            "forward --dev ring:0 --dev ring:1,queues=2 -t 1",
            2,
            "queues",
        ),
        (
            "forward --dev ring:0 --corelist 1000 -t 1",
            2,
            "may not run there",
        ),
        ("forward --dev packet:none-such -t 1", 1, "no interface"),
        (
            "forward --dev ring:0 --rxq=2 --txq=1 -t 1",
            2,
            "do not form pairs",
        ),
        ("forward --dev ring:0 --burst 64 -t 1", 2, "1 to 32"),
        (
            "forward --dev ring:0 --nb-ports 4 -t 1",
            2,
            "there is 1 port",
        ),
        (
            "forward --dev ring:0 --portlist 0,0 -t 1",
            2,
            "listed twice",
        ),
        (
            "forward --dev ring:0 --eth-peer 9,02:00:00:00:00:01 -t 1",
            2,
            "no such port",
        ),
        ("forward --dev ring:0 --cores 3 -t 1", 2, "keeps only 1"),
        (
            "forward --dev ring:0 --flowgen-flows 0 -t 1",
            2,
            "use 1 to ",
        ),
        (
            "forward --dev ring:0 --total-num-mbufs 0 -t 1",
            2,
            "use 1 to ",
        ),
        ("forward --dev ring:0 --saturate -t 1", 2, "--saturate"),
        ("forward --dev ring:0 --saturate --trial 0", 2, "above 0"),
        (
            "forward --dev ring:0 --tx-first --txpkts 2000 -t 1",
            4,
            "mtu=",
        ),
        (
            "forward --dev ring:0,mtu=65500 --rxq 64 --rxd 65536 -t 1",
            2,
            "that are free",
        ),
        (
            "forward --dev ring:0 --commands none-such",
            2,
            "cannot read none-such",
        ),
    ] {
        let message = join_lines(&dir.run(args).expect(code).stderr);
        assert!(message.contains(expected), "{args}: {message}");
    }
    let output = dir.run("forward --dev ring:x,end=q --json -t 1").expect(2);
    assert!(output.json()["error"]["next_step"].is_string());
}

/// Runs the shell on a pipe and returns its output.
#[track_caller]
fn run_shell(dir: &TestDir, args: &str, commands: &str) -> FinishedCommand {
    fs::write(dir.path().join("typed"), commands).unwrap();
    let typed = fs::File::open(dir.path().join("typed")).unwrap();
    finish(dir.linerate(args).stdin(typed))
}

#[test]
fn a_stream_begins_with_what_is_measured() {
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --tx-first 1 --idle yield --json-stream";
    let lines = dir.run(&format!("{args} -t 0.3")).expect(0).json_lines();
    assert_eq!(lines[0]["event"], "started");
    let record = &lines[lines.len() - 1]["record"];
    assert_eq!(lines[0]["plan"], record["plan"]);
    let args = "forward --dev ring:0 --saturate --trial 50ms --json-stream";
    let lines = dir.run(args).expect(0).json_lines();
    let (set, events) = lines.split_last().expect("a set");
    assert_eq!(set["kind"], "saturation");
    let steps = set["runs"].as_array().expect("steps").len();
    assert_eq!(events.len(), 2 * steps);
    for (at, event) in events.iter().enumerate() {
        let expected = ["started", "finished"][at % 2];
        assert_eq!(
            (&event["event"], &event["test"]),
            (&expected.into(), &(at / 2 + 1).into())
        );
    }
}

#[test]
fn a_signal_stops_prints_and_stores() {
    let dir = TestDir::new();
    for (args, code) in [
        (
            "forward --dev ring:0 --tx-first --stats-period 0.05 --idle yield",
            0,
        ),
        (
            "forward --dev ring:0 --tx-first -t 600 --stats-period 0.05 --idle yield",
            130,
        ),
    ] {
        let mut running = RunningCommand::start(&mut dir.linerate(args));
        running.wait_line(|line| line.contains("Rx-pps"));
        running.interrupt();
        let output = running.wait().expect(code);
        assert!(
            output.stdout.contains("Accumulated forward statistics"),
            "{output:?}"
        );
    }
    let interrupted: Vec<_> = dir
        .stored()
        .iter()
        .map(|r| r["interrupted"].clone())
        .collect();
    assert_eq!(interrupted.len(), 2);
    assert!(interrupted.contains(&Value::Bool(true)));
}

/// The latency of each idle mode is reported.
#[test]
fn idle_latency_is_stated() {
    let dir = TestDir::new();
    for (idle, expected) in [
        ("sleep:100us", "/forward/cores/0/idle_gap_ns"),
        ("yield", "/forward/cores/0/idle_gap_max_ns"),
    ] {
        let args = format!("forward --dev ring:0 -t 1 --idle {idle} --no-store");
        let result = run_for_record(&dir, &args);
        assert!(number_at(&result, expected) > 0.0);
        let text = dir.run(&args).expect(0).stdout;
        assert!(
            text.contains("a frame that arrives while it is idle waits"),
            "{text}"
        );
    }
}

/// A million first bursts do not use up the run: the ring is full before forwarding starts.
#[test]
fn first_bursts_end_with_a_full_ring() {
    let dir = TestDir::new();
    let args = "forward --dev ring:0 --tx-first 1000000 -t 2 --idle yield --no-store";
    let result = run_for_record(&dir, args);
    let primed = number_at(&result, "/forward/primed");
    assert!((32.0..100_000.0).contains(&primed), "{primed}");
    assert!(number_at(&result, "/summary/packets_per_second") > 0.0);
}

/// Frames of a capture are not stale frames of an earlier run.
#[test]
fn captured_frames_are_not_flushed() {
    let dir = TestDir::new();
    dir.run("generate --dev pcap:tx=some.pcap --no-receive --count 50 --rate max --no-store")
        .expect(0);
    let args = "forward --dev pcap:rx=some.pcap,tx=out.pcap --port-topology loop -t 20 --no-store";
    let result = run_for_record(&dir, args);
    assert_eq!(number_at(&result, "/forward/flushed"), 0.0);
    assert_eq!(number_at(&result, "/summary/packets_received"), 50.0);
}
