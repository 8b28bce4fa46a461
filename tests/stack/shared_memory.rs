//! Hosts on the user-space stack and their peers over shared memory, without the kernel in between.

use rustix::process::Signal;

use super::*;

#[test]
fn both_ends_are_our_stack_over_shared_memory() {
    let room = Room::new();
    let link = format!("shm:stack-{}", std::process::id());
    let quiet = "--set poll.interval=100us";
    let line = format!(
        "stack --dev {link},role=server --ip 10.9.1.2/24 {quiet} --serve echo,discard,chargen --no-store"
    );
    let mut host = Running::start(&mut room.linerate(&line));
    host.line(|line| line.starts_with("READY dev=shm:"));
    for (words, figure) in [
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
        let words = format!("{words} --dev {link} --ip 10.9.1.1/24 {quiet} --json --no-store");
        println!("{words}");
        let ran = room.run(&words);
        assert_eq!(ran.code(), 0, "{words}: {ran:#?}");
        let record = ran.json();
        is_record(&record);
        assert!(number(&record, figure) > 0.0, "{words}: {record:#}");
    }
    host.interrupt();
    let ran = host.wait().expect(0);
    assert!(ran.stdout.contains("echo"), "{ran:#?}");
}

/// The port detects a missing peer at once, without waiting for a timeout.
#[test]
fn a_far_end_that_is_not_there_is_told_by_the_port() {
    let room = Room::new();
    let link = format!("shm:stack-gone-{}", std::process::id());
    let quiet = "--set poll.interval=100us --no-store";
    let client = format!("--dev {link} --ip 10.9.1.1/24 {quiet}");
    let ran = room.run(&format!("latency 10.9.1.2 --peer echo -u {client}"));
    assert_eq!(ran.code(), 5, "{ran:#?}");
    let all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = format!("{link}: no process of this user connected to its other end within 5 s");
    assert!(all.contains(&said), "{ran:#?}");
    let line = format!("stack --dev {link},role=server --ip 10.9.1.2/24 {quiet} --serve linerate");
    let serve = || {
        let mut host = Running::start(&mut room.linerate(&line));
        host.line(|line| line.starts_with("READY dev=shm:"));
        host
    };
    // With --retry a missing peer is no reason to give up.
    let words = format!("latency 10.9.1.2 -n 20 --retry 60s {client}");
    let waits = Running::start(&mut room.linerate(&words));
    std::thread::sleep(Duration::from_secs(6));
    let host = serve();
    waits.wait().expect(0);
    host.interrupt();
    host.wait().expect(0);
    // With a driver thread, that thread detects it.
    for threads in [1, 2] {
        let host = serve();
        let words =
            format!("throughput 10.9.1.2 -t 60 -i 0.1 --set threads.count={threads} {client}");
        let mut run = Running::start(&mut room.linerate(&format!("{words} --json-stream")));
        run.line(|line| line.contains(r#""event":"interval""#));
        host.signal(Signal::KILL);
        let began = Instant::now();
        let ran = run.wait();
        assert_eq!(ran.code(), 5, "{ran:#?}");
        let last = ran.stdout.lines().last().expect("it says how it ended");
        let last: Value = serde_json::from_str(last).expect("an event");
        let problem = &last["problem"];
        assert_eq!(problem["object"], link.as_str(), "{ran:#?}");
        assert_eq!(problem["situation"], "the process at its other end is gone");
        // A silent peer would have been given up after 14 s.
        assert!(began.elapsed() < Duration::from_secs(10), "{ran:#?}");
    }
}

/// A stack has one link: its link-local addresses need no interface, and a kernel scope is ignored.
#[test]
fn link_local_addresses_are_those_of_the_stack_s_link() {
    let room = Room::new();
    let link = format!("shm:stack-local-{}", std::process::id());
    let quiet = "--set poll.interval=100us --no-store";
    let line =
        format!("stack --dev {link},role=server --ip fe80::7/64 {quiet} --serve linerate,echo");
    let mut host = Running::start(&mut room.linerate(&line));
    host.line(|line| line.starts_with("READY dev=shm:"));
    for words in [
        "latency fe80::7 -n 50",
        "latency fe80::7%lo -u -n 50",
        "latency fe80::7%nowhere --peer echo -u -n 50",
        "throughput fe80::7%lo -u -b 10M -t 0.2 -O 0",
    ] {
        let ran = room.run(&format!("{words} --dev {link} --ip fe80::8/64 {quiet}"));
        assert_eq!(ran.code(), 0, "{words}: {ran:#?}");
    }
    host.interrupt();
    host.wait().expect(0);
}

/// A run in which every call would fail is rejected.
#[test]
fn datagrams_that_may_not_be_cut_are_refused_before_the_run() {
    let room = Room::new();
    let link = format!("shm:stack-whole-{}", std::process::id());
    let quiet = "--set poll.interval=100us --no-store";
    let line = format!("stack --dev {link},role=server --ip 10.9.1.2/24 {quiet} --serve linerate");
    let mut host = Running::start(&mut room.linerate(&line));
    host.line(|line| line.starts_with("READY dev=shm:"));
    for (words, code) in [
        ("throughput 10.9.1.2 -u -b 1M -l 1473 -t 0.2", 4),
        ("latency 10.9.1.2 -u -l 8192 -n 20", 4),
        ("throughput 10.9.1.2 -u -b 1M -l 1472 -t 0.2 -O 0", 0),
        ("throughput 10.9.1.2 -u -b 1M -l 8192 -R -t 0.2 -O 0", 0),
    ] {
        let ran = room.run(&format!(
            "{words} --set ip.fragmentation=off --dev {link} --ip 10.9.1.1/24 {quiet}"
        ));
        assert_eq!(ran.code(), code, "{words}: {ran:#?}");
        let told = ran.stderr.contains("fragmentation is off");
        assert_eq!(told, code != 0, "{words}: {ran:#?}");
    }
    host.interrupt();
    host.wait().expect(0);
}

#[test]
fn a_host_that_is_ended_before_its_time_says_so() {
    let room = Room::new();
    let link = format!("shm:stack-ends-{}", std::process::id());
    let line = format!(
        "stack --dev {link},role=server --ip 10.9.1.2/24 --set poll.interval=100us --json --no-store"
    );
    // Without a time an interrupt is the regular end.
    for (options, code, interrupted) in [("", 0, false), ("-t 900", 130, true)] {
        let mut host = Running::start(&mut room.linerate(&format!("{line} {options}")));
        host.error_line(|line| line.starts_with("READY "));
        host.interrupt();
        let record = host.wait().expect(code).json();
        assert_eq!(record["interrupted"], interrupted, "{options}: {record:#}");
        assert_eq!(record["validity"][0]["doubt"], "no-peer", "{record:#}");
    }
}
