//! Hosts on the user-space stack and their peers over shared memory, without the kernel in between.

use rustix::process::Signal;

use super::*;

#[test]
fn both_ends_are_our_stack_over_shared_memory() {
    let dir = TestDir::new();
    let link = format!("shm:stack-{}", std::process::id());
    let quiet = "--set poll.interval=100us";
    let line = format!(
        "stack --dev {link},role=server --ip 10.9.1.2/24 {quiet} --serve echo,discard,chargen --no-store"
    );
    let mut host = RunningCommand::start(&mut dir.linerate(&line));
    host.wait_line(|line| line.starts_with("READY dev=shm:"));
    for (args, figure) in [
        (
            "latency 10.9.1.2 --peer echo -u -n 300",
            "/summary/round_trips",
        ),
        (
            "latency 10.9.1.2 --peer echo -n 300",
            "/summary/round_trips",
        ),
        (
            "throughput 10.9.1.2 --peer discard -n 1M",
            "/summary/bytes_received",
        ),
        // The protocol of the peer is detected over the stack too.
        (
            "latency 10.9.1.2 --peer auto -p 7 -u -n 100",
            "/summary/round_trips",
        ),
        (
            "latency 10.9.1.2 --peer auto -p 7 -n 100 --profile embedded-default",
            "/summary/round_trips",
        ),
        (
            "throughput 10.9.1.2 --peer auto -n 1M",
            "/summary/bytes_received",
        ),
        (
            "throughput 10.9.1.2 --peer chargen -R -t 0.5",
            "/summary/goodput_bps",
        ),
    ] {
        let args = format!("{args} --dev {link} --ip 10.9.1.1/24 {quiet} --json --no-store");
        println!("{args}");
        let output = dir.run(&args);
        assert_eq!(output.exit_code(), 0, "{args}: {output:#?}");
        let record = output.json();
        assert_record(&record);
        assert!(number_at(&record, figure) > 0.0, "{args}: {record:#}");
    }
    host.interrupt();
    let output = host.wait().expect(0);
    assert!(output.stdout.contains("echo"), "{output:#?}");
}

/// The port detects a missing peer at once, without waiting for a timeout.
#[test]
fn a_missing_peer_is_reported_by_the_port() {
    let dir = TestDir::new();
    let link = format!("shm:stack-gone-{}", std::process::id());
    let quiet = "--set poll.interval=100us --no-store";
    let client = format!("--dev {link} --ip 10.9.1.1/24 {quiet}");
    let output = dir.run(&format!("latency 10.9.1.2 --peer echo -u {client}"));
    assert_eq!(output.exit_code(), 5, "{output:#?}");
    let all = join_lines(&output.stderr);
    let expected = format!("{link}: no process of this user connected to its other end within 5 s");
    assert!(all.contains(&expected), "{output:#?}");
    let line = format!("stack --dev {link},role=server --ip 10.9.1.2/24 {quiet} --serve linerate");
    let serve = || {
        let mut host = RunningCommand::start(&mut dir.linerate(&line));
        host.wait_line(|line| line.starts_with("READY dev=shm:"));
        host
    };
    // With --retry a missing peer is no reason to give up.
    let args = format!("latency 10.9.1.2 -n 20 --retry 60s {client}");
    let waits = RunningCommand::start(&mut dir.linerate(&args));
    std::thread::sleep(Duration::from_secs(6));
    let host = serve();
    waits.wait().expect(0);
    host.interrupt();
    host.wait().expect(0);
    // With a driver thread, that thread detects it.
    for threads in [1, 2] {
        let host = serve();
        let args =
            format!("throughput 10.9.1.2 -t 60 -i 0.1 --set threads.count={threads} {client}");
        let mut run = RunningCommand::start(&mut dir.linerate(&format!("{args} --json-stream")));
        run.wait_line(|line| line.contains(r#""event":"interval""#));
        host.send_signal(Signal::KILL);
        let started_at = Instant::now();
        let output = run.wait();
        assert_eq!(output.exit_code(), 5, "{output:#?}");
        let last = output.stdout.lines().last().expect("it says how it ended");
        let last: Value = serde_json::from_str(last).expect("an event");
        let problem = &last["problem"];
        assert_eq!(problem["object"], link.as_str(), "{output:#?}");
        assert_eq!(problem["situation"], "the process at its other end is gone");
        // A silent peer would have been given up after 14 s.
        assert!(
            started_at.elapsed() < Duration::from_secs(10),
            "{output:#?}"
        );
    }
}

/// A stack has one link: its link-local addresses need no interface, and a kernel scope is ignored.
#[test]
fn link_local_addresses_are_those_of_the_stack_s_link() {
    let dir = TestDir::new();
    let link = format!("shm:stack-local-{}", std::process::id());
    let quiet = "--set poll.interval=100us --no-store";
    let line =
        format!("stack --dev {link},role=server --ip fe80::7/64 {quiet} --serve linerate,echo");
    let mut host = RunningCommand::start(&mut dir.linerate(&line));
    host.wait_line(|line| line.starts_with("READY dev=shm:"));
    for args in [
        "latency fe80::7 -n 50",
        "latency fe80::7%lo -u -n 50",
        "latency fe80::7%nowhere --peer echo -u -n 50",
        "throughput fe80::7%lo -u -b 10M -t 0.2 -O 0",
    ] {
        let output = dir.run(&format!("{args} --dev {link} --ip fe80::8/64 {quiet}"));
        assert_eq!(output.exit_code(), 0, "{args}: {output:#?}");
    }
    host.interrupt();
    host.wait().expect(0);
}

/// A run in which every call would fail is rejected.
#[test]
fn datagrams_that_may_not_be_fragmented_are_rejected_before_the_run() {
    let dir = TestDir::new();
    let link = format!("shm:stack-whole-{}", std::process::id());
    let quiet = "--set poll.interval=100us --no-store";
    let line = format!("stack --dev {link},role=server --ip 10.9.1.2/24 {quiet} --serve linerate");
    let mut host = RunningCommand::start(&mut dir.linerate(&line));
    host.wait_line(|line| line.starts_with("READY dev=shm:"));
    for (args, code) in [
        ("throughput 10.9.1.2 -u -b 1M -l 1473 -t 0.2", 4),
        ("latency 10.9.1.2 -u -l 8192 -n 20", 4),
        ("throughput 10.9.1.2 -u -b 1M -l 1472 -t 0.2 -O 0", 0),
        ("throughput 10.9.1.2 -u -b 1M -l 8192 -R -t 0.2 -O 0", 0),
    ] {
        let output = dir.run(&format!(
            "{args} --set ip.fragmentation=off --dev {link} --ip 10.9.1.1/24 {quiet}"
        ));
        assert_eq!(output.exit_code(), code, "{args}: {output:#?}");
        let is_reported = output.stderr.contains("fragmentation is off");
        assert_eq!(is_reported, code != 0, "{args}: {output:#?}");
    }
    host.interrupt();
    host.wait().expect(0);
}

#[test]
fn an_interrupted_host_reports_it() {
    let dir = TestDir::new();
    let link = format!("shm:stack-ends-{}", std::process::id());
    let line = format!(
        "stack --dev {link},role=server --ip 10.9.1.2/24 --set poll.interval=100us --json --no-store"
    );
    // Without a time an interrupt is the regular end.
    for (options, code, interrupted) in [("", 0, false), ("-t 900", 130, true)] {
        let mut host = RunningCommand::start(&mut dir.linerate(&format!("{line} {options}")));
        host.wait_error_line(|line| line.starts_with("READY "));
        host.interrupt();
        let record = host.wait().expect(code).json();
        assert_eq!(record["interrupted"], interrupted, "{options}: {record:#}");
        assert_eq!(record["validity"][0]["doubt"], "no-peer", "{record:#}");
    }
}
