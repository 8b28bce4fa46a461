//! User-space stack in use: as a host on a port that the kernel connects to, and in place of the
//! kernel's stack at the client of a run.

mod common;
#[path = "stack/shared_memory.rs"]
mod shared_memory;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Finished, Lab, Room, Running, finish, is_record, number, one_of, skip, soon, works};
use serde_json::Value;

/// Lab host with a tap interface for a user-space stack.
struct House {
    lab: Lab,
}

/// Addresses of the kernel and of the stack on the interface `t0`.
const KERNEL: &str = "10.9.0.1";
const STACK: &str = "10.9.0.2";

/// Port options of the stack; it yields its core, because tests run in parallel.
const PLACE: &str = "--dev tap:t0 --ip 10.9.0.2/24 --set poll.interval=200us";

impl House {
    fn up(test: &str) -> Result<Self, String> {
        let link = "[hosts.one]\n[hosts.other]\n[[links]]\nbetween = [\"one\", \"other\"]\n";
        let lab = Lab::of(&format!("stack-{test}"), link)?;
        let up = format!(
            "ip tuntap add t0 mode tap && ip address add {KERNEL}/24 dev t0 && ip link set t0 up"
        );
        lab.shell("one", &up)
            .map_err(|why| format!("a tap interface: {why}"))?;
        Ok(Self { lab })
    }

    fn on(&self, words: &[&str]) -> Command {
        self.lab.on("one", words)
    }

    fn linerate(&self, words: &str) -> Command {
        self.lab.linerate("one", words)
    }

    #[track_caller]
    fn run(&self, words: &str) -> Finished {
        println!("{words}");
        finish(&mut self.linerate(words))
    }

    #[track_caller]
    fn record(&self, words: &str) -> Value {
        let ran = self.run(&format!("{words} --json --no-store"));
        assert_eq!(ran.code(), 0, "{words}: {ran:#?}");
        let record = ran.json();
        is_record(&record);
        record
    }

    /// Returns a record with stages; on a busy machine the stage pass may be cut off with a
    /// warning, and is repeated.
    #[track_caller]
    fn record_with_stages(&self, words: &str) -> Value {
        one_of(5, || {
            let record = self.record(words);
            let doubts = record["validity"].as_array().expect("doubts");
            match doubts.iter().any(|doubt| doubt["doubt"] == "no-stages") {
                true => Err(format!("{doubts:#?}")),
                false => Ok(record),
            }
        })
    }

    /// Starts a host on the stack and waits until it is reachable.
    fn serve(&self, words: &str) -> Running {
        let mut host = Running::start(&mut self.linerate(&format!("stack {PLACE} {words}")));
        host.line(|line| line.starts_with("READY dev=tap:t0 ip=10.9.0.2/24"));
        host
    }

    /// Waits for the device, which a killed process may hold for a moment longer. Needs a running
    /// server.
    fn has_its_device(&self) {
        let words = format!("latency {KERNEL} -u -n 1 --no-store {PLACE}");
        soon("the device", || self.run(&words).code() == 0);
    }
}

macro_rules! house {
    ($test:literal) => {
        match House::up($test) {
            Ok(house) => house,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn the_kernel_talks_to_a_host_on_our_stack() {
    let house = house!("serve");
    let host = house.serve("--serve echo,discard,chargen,iperf2,sockperf --no-store");
    match works(&mut house.on(&["ping", "-c", "1", "-W", "10", STACK])) {
        Ok(()) => {}
        Err(why) => println!("skipped: ping: {why}"),
    }
    for options in ["-u", "", "-u -l 1400 --outstanding 4", "-l 5000"] {
        let words = format!("latency {STACK} --peer echo -n 300 {options}");
        let record = house.record(&words);
        assert_eq!(record["summary"]["round_trips"], 300, "{words}");
        assert_eq!(record["summary"]["mismatched"], 0, "{words}");
    }
    // Longer than a packet, in fragments in both directions.
    let record = house.record(&format!("latency {STACK} --peer echo -u -n 50 -l 8000"));
    assert_eq!(record["summary"]["mismatched"], 0);
    let record = house.record(&format!("throughput {STACK} --peer discard -n 3M"));
    assert_eq!(record["summary"]["bytes_received"], 3 << 20);
    let record = house.record(&format!("throughput {STACK} --peer chargen -R -t 0.5"));
    assert!(number(&record, "/summary/goodput_bps") > 0.0);
    for options in ["-u", ""] {
        let words = format!("latency {STACK} --peer sockperf -n 300 {options}");
        let record = house.record(&words);
        assert_eq!(record["summary"]["mismatched"], 0, "{words}");
    }
    let record = house.record(&format!("throughput {STACK} --peer iperf2 -n 2M"));
    assert_eq!(record["summary"]["bytes_received"], 2 << 20);
    // The previous connection has validated the client's address.
    for way in ["", "-R"] {
        let words = format!("throughput {STACK} --peer iperf2 -u -b 2M -t 1 {way}");
        let record = house.record(&words);
        let came = number(&record, "/summary/packets_received");
        assert!(came > 0.0, "{words}: {record:#}");
    }
    drop(host);
}

/// Sockets over the port see only a closed connection.
#[test]
fn a_port_that_breaks_is_named_and_not_the_far_end() {
    let house = house!("breaks");
    let mut server = Running::start(&mut house.linerate("server --no-store"));
    server.line(|line| line.starts_with("READY port=5201"));
    let words = format!("throughput {KERNEL} -t 100 --no-store --json-stream {PLACE}");
    let mut run = Running::start(&mut house.linerate(&words));
    run.started();
    works(&mut house.on(&["ip", "link", "set", "t0", "down"])).unwrap();
    let ran = run.wait();
    assert_ne!(ran.code(), 0, "{ran:#?}");
    let all = format!("{} {}", ran.stdout, ran.stderr);
    let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(all.contains("its interface went down"), "{all}");
}

/// Both directions, on the client's flow or on a second one towards it.
#[test]
fn stock_iperf2_is_sent_what_it_asks_for() {
    let house = house!("iperf");
    // It prints its version and fails.
    if let Err(why) = Command::new("iperf").arg("--version").output() {
        skip!("stock iperf 2: {why}");
    }
    let host = house.serve("--serve iperf2 --allow 10.9.0.1 --no-store");
    for options in ["-u -R", "-u -d", "-u -r", "-R", "-d", "-r"] {
        let words = format!("iperf -c {STACK} -t 1 -b 2M -y C {options}");
        println!("{words}");
        let words: Vec<_> = words.split_whitespace().collect();
        let ran = finish(&mut house.on(&words));
        assert_eq!(ran.code(), 0, "{options}: {ran:#?}");
        // One line for each received flow: time, addresses, ports, number, interval, bytes.
        let bytes = |line: &str| -> Option<u64> { line.split(',').nth(7)?.parse().ok() };
        let back = ran.stdout.lines().filter(|line| bytes(line) > Some(0));
        let least = if options.contains('R') { 1 } else { 2 };
        assert!(back.count() >= least, "{options}: {ran:#?}");
    }
    drop(host);
}

#[test]
fn whole_tests_run_with_a_host_on_our_stack() {
    let house = house!("server");
    let host = house.serve("--serve linerate --no-store");
    for (words, figure) in [
        ("latency -u -n 300", "/summary/round_trips"),
        ("latency -n 300 -l 3000", "/summary/round_trips"),
        ("latency -n 100 --reopen", "/summary/round_trips"),
        ("latency -u -n 100 --reopen", "/summary/round_trips"),
        ("latency -u -n 100 --unconnected", "/summary/round_trips"),
        ("throughput -n 2M --verify", "/summary/goodput_bps"),
        ("throughput -t 1 -R --verify", "/summary/goodput_bps"),
        (
            "throughput -n 2M -R --offload zerocopy",
            "/summary/goodput_bps",
        ),
        ("throughput -n 2M --offload trunc", "/summary/goodput_bps"),
        ("throughput -t 1 --bidir -P 3", "/summary/goodput_bps"),
        ("throughput -u -b 2M -t 1 --verify", "/summary/goodput_bps"),
        ("throughput -u -b 2M -t 1 -R -P 2", "/summary/goodput_bps"),
        ("throughput -u -b 2M -t 1 --bidir", "/summary/goodput_bps"),
    ] {
        let (command, rest) = words.split_once(' ').expect("two words");
        let words = format!("{command} {STACK} {rest}");
        let record = house.record(&words);
        let directions = record["directions"].as_array().expect("directions");
        let wanted = if words.contains("--bidir") { 2 } else { 1 };
        assert_eq!(directions.len(), wanted, "{words}");
        for direction in directions.iter().filter(|_| command == "throughput") {
            assert!(number(direction, "/goodput_bps") > 0.0, "{words}");
        }
        if wanted == 1 {
            assert!(number(&record, figure) > 0.0, "{words}: {record:#}");
        }
        if words.contains("--verify") || command == "latency" {
            assert_eq!(record["summary"]["mismatched"], 0, "{words}");
        }
        if words.contains("--offload") {
            let copies = &record["plan"]["copies"];
            let around = [&copies["send"], &copies["receive"]];
            assert!(around.iter().any(|way| **way != "copied"), "{words}");
        }
        assert_eq!(record["plan"]["stack"]["far"], "linerate", "{words}");
        let far = &record["hosts"][1]["stack"];
        assert_eq!(far["addresses"][0], "10.9.0.2/24", "{words}: {record:#}");
    }
    // Stages of a stack that does not sleep.
    for options in ["-u", ""] {
        let words = format!("latency {STACK} -n 300 --stages {options}");
        let record = house.record_with_stages(&words);
        let stages = record["stages"].as_array().expect("stages");
        let names: Vec<_> = stages.iter().filter_map(|s| s["stage"].as_str()).collect();
        for stage in [
            "stack-in",
            "receive",
            "application",
            "stack-out",
            "driver-out",
        ] {
            let stage = format!("server-{stage}");
            assert!(names.contains(&stage.as_str()), "{words}: {names:?}");
        }
        let whole = number(&record, "/stage_pass/rtt_ns/p50");
        let sum: f64 = stages.iter().map(|stage| number(stage, "/mean_ns")).sum();
        let mean = number(&record, "/stage_pass/rtt_ns/mean");
        assert!((sum - mean).abs() <= mean * 0.05, "{sum} {mean} {whole}");
    }
    // Unsupported options are rejected before any traffic.
    for (options, said) in [
        ("-P 100", "sockets"),
        ("-R --offload sendfile", "files and pipes"),
        ("-w 1M", "buffers"),
        ("--wait spin", "waits as it was started"),
    ] {
        let ran = house.run(&format!("throughput {STACK} -t 1 {options} --no-store"));
        assert_eq!(ran.code(), 4, "{options}: {ran:#?}");
        let said_all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said_all.contains(said), "{options}: {said_all}");
    }
    drop(host);
}

/// Returns scheduling class and priority of a thread, by its name.
fn scheduled(process: u32, name: &str) -> Option<(u32, u32)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut tasks = tasks.flatten().map(|task| task.path());
    let task = tasks.find(|task| {
        let own = fs::read_to_string(task.join("comm"));
        own.is_ok_and(|own| own.trim() == name)
    })?;
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    // The third field comes after the name, which may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some((field(41)?, field(40)?))
}

#[test]
fn driver_and_application_have_a_thread_and_a_priority_each() {
    const FIFO: u32 = 1;
    let house = house!("threads");
    let place = "--set threads.count=2 --set threads.driver.sched=fifo:3 \
                 --set threads.application.sched=fifo:2";
    let host = house.serve(&format!("--serve echo,linerate --no-store {place}"));
    let line = format!("stack {PLACE} --serve echo,linerate --no-store {place}");
    let command: Vec<u8> = (line.split_whitespace())
        .flat_map(|word| word.bytes().chain([0]))
        .collect();
    // The host runs in a lab: its process is a child of the started one.
    let find = || {
        let mut processes = fs::read_dir("/proc").expect("proc").flatten();
        processes.find_map(|entry| {
            let process: u32 = entry.file_name().to_str()?.parse().ok()?;
            let own = fs::read(entry.path().join("cmdline")).ok()?;
            (own.ends_with(&command) && scheduled(process, "stack").is_some()).then_some(process)
        })
    };
    // A ready host may not have its threads yet.
    soon("threads with a priority each", || {
        find().is_some_and(|process| {
            scheduled(process, "driver") == Some((FIFO, 3))
                && scheduled(process, "stack") == Some((FIFO, 2))
        })
    });
    for words in [
        "latency -u -n 200 --peer echo",
        "latency -n 200",
        "throughput -n 1M --verify",
        "throughput -t 1 -R --verify",
    ] {
        let (command, rest) = words.split_once(' ').expect("two words");
        let record = house.record(&format!("{command} {STACK} {rest}"));
        assert_eq!(record["summary"]["mismatched"], 0, "{words}");
    }
    drop(host);
    // The client's stack has them too.
    let mut server = Running::start(&mut house.linerate("server --no-store"));
    server.line(|line| line.starts_with("READY port=5201"));
    house.has_its_device();
    let record = house.record(&format!(
        "throughput {KERNEL} -n 1M --verify {PLACE} {place}"
    ));
    assert_eq!(record["summary"]["mismatched"], 0);
}

#[test]
fn a_thousand_connections_go_over_our_stack_both_ways() {
    let house = house!("many");
    let room = "--set sockets.tcp=1100 --set tcp.send_buffer=8K --set tcp.receive_window=8K";
    let host = house.serve(&format!("--serve linerate --no-store {room}"));
    for options in ["", "-R"] {
        let words = format!("throughput {STACK} -t 1 -P 1000 {options}");
        let record = house.record(&words);
        let streams = record["directions"][0]["streams"].as_array();
        assert_eq!(streams.map(Vec::len), Some(1000), "{words}");
        assert!(number(&record, "/summary/goodput_bps") > 0.0, "{words}");
    }
    drop(host);
    let mut server = Running::start(&mut house.linerate("server --no-store"));
    server.line(|line| line.starts_with("READY port=5201"));
    house.has_its_device();
    for options in ["", "-R"] {
        let words = format!("throughput {KERNEL} -t 1 -P 1000 {options} {PLACE} {room}");
        let record = house.record(&words);
        let streams = record["directions"][0]["streams"].as_array();
        assert_eq!(streams.map(Vec::len), Some(1000), "{words}");
        assert!(number(&record, "/summary/goodput_bps") > 0.0, "{words}");
    }
}

#[test]
fn what_a_host_did_is_a_record() {
    let house = house!("record");
    let ask = format!("latency {STACK} --peer echo -p 4000 -u -n 100");
    // On a busy machine the host may end before the first request: the next one lasts longer.
    let mut seconds = 2;
    let ran = one_of(5, || {
        seconds *= 2;
        let words = format!("--serve echo:4000 --json --no-store -t {seconds} -i 1");
        let mut host = Running::start(&mut house.linerate(&format!("stack {PLACE} {words}")));
        host.error_line(|line| line.starts_with("READY dev=tap:t0"));
        let asked = house.run(&ask);
        let ran = host.wait().expect(0);
        match asked.code() {
            0 => Ok(ran),
            _ => Err(format!("{asked:#?}")),
        }
    });
    assert!(ran.stderr.contains("READY dev=tap:t0"), "{ran:#?}");
    let record = ran.json();
    is_record(&record);
    assert_eq!(record["kind"], "stack");
    assert_eq!(record["interrupted"], false);
    let stack = &record["hosts"][0]["stack"];
    assert_eq!(stack["name"], "linerate");
    assert_eq!(stack["configuration"]["poll.interval"], "200us");
    let items = stack["memory"]["items"].as_array().expect("items");
    let sum: f64 = items.iter().map(|item| number(item, "/bytes")).sum();
    assert_eq!(sum, number(stack, "/memory/bytes"));
    assert!(number(stack, "/counters/udp/in_datagrams") >= 100.0);
    let service = &record["stack"]["services"][0];
    assert_eq!(service["service"], "echo");
    assert_eq!(service["port"], 4000);
    assert_eq!(service["bytes_received"], service["bytes_sent"]);
    let intervals = record["stack"]["intervals"].as_array().expect("intervals");
    assert!(intervals.len() >= 2, "{record:#}");
}

/// Intervals were once only text on standard error and missing from the stream.
#[test]
fn a_stream_has_a_line_for_each_interval_of_a_host() {
    let words = "stack --dev null:silent --ip 10.9.0.2/24 --set poll.interval=1ms --no-store --json-stream -t 1 -i 0.2";
    let room = Room::new();
    let ran = Running::start(&mut room.linerate(words)).wait().expect(0);
    let lines = ran.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let intervals = lines
        .iter()
        .filter(|line| line["event"] == "stack-interval");
    let mut ends = intervals.map(|line| number(line, "/interval/end_ns"));
    assert!(ends.next().is_some_and(|end| end > 0.0), "{lines:#?}");
    assert!(ends.next().is_some(), "{lines:#?}");
    let last = lines.last().map(|line| line["event"].clone());
    assert_eq!(last, Some(Value::from("finished")), "{lines:#?}");
}

#[test]
fn a_host_notes_when_questions_came_and_answers_left() {
    let house = house!("stamps");
    for stamps in ["16", "20,width=4,order=le,hz=10M"] {
        let host = house.serve(&format!(
            "--serve echo,iperf2 --no-store --stamp-payload {stamps}"
        ));
        let words = format!("latency {STACK} --peer echo -u -n 300 --device-stamps {stamps}");
        let record = house.record(&words);
        assert_eq!(record["summary"]["mismatched"], 0, "{words}");
        let share = number(&record, "/summary/device/share");
        assert!(share > 0.0 && share < 1.0, "{words}: {share}");
        // Another service uses these bytes itself.
        let words = format!("throughput {STACK} --peer iperf2 -u -b 1M -t 1");
        let record = house.record(&words);
        let (sent, came) = (
            number(&record, "/summary/packets_sent"),
            number(&record, "/summary/packets_received"),
        );
        assert!(came > 0.0 && came <= sent, "{words}: {came} of {sent}");
        drop(host);
    }
}

#[test]
fn a_run_goes_over_our_stack_to_the_kernel_s_server() {
    let house = house!("client");
    let mut server = Running::start(&mut house.linerate("server --grant multicast --no-store"));
    server.line(|line| line.starts_with("READY port=5201"));
    for (words, figure) in [
        ("latency -u -n 300", "/summary/round_trips"),
        ("latency -n 300 -l 3000", "/summary/round_trips"),
        ("latency -u -t 1 --rate 500/s", "/summary/round_trips"),
        ("throughput -t 1 --verify", "/summary/goodput_bps"),
        ("throughput -t 1 -R --verify", "/summary/goodput_bps"),
        (
            "throughput -n 2M --offload zerocopy,trunc",
            "/summary/goodput_bps",
        ),
        (
            "throughput -n 2M -R --offload sendfile,trunc",
            "/summary/goodput_bps",
        ),
        (
            "throughput -u -b 2M -t 1 --offload zerocopy",
            "/summary/goodput_bps",
        ),
        ("throughput -n 1M -P 3", "/summary/goodput_bps"),
        ("throughput -u -b 2M -t 1 --verify", "/summary/goodput_bps"),
        ("throughput -u -b 2M -t 1 -R -P 2", "/summary/goodput_bps"),
        ("throughput -t 1 --bidir", "/directions/1/goodput_bps"),
        ("latency -n 100 --reopen", "/summary/round_trips"),
        ("latency -u -n 100 --reopen", "/summary/round_trips"),
        ("latency -u -n 100 --unconnected", "/summary/round_trips"),
        ("latency -u -n 300 --stages", "/stages/0/p50_ns"),
        ("latency -n 300 --stages", "/stages/0/p50_ns"),
        (
            "latency -u -n 100 --multicast 239.1.2.3",
            "/summary/round_trips",
        ),
        (
            "latency -u -n 100 --calls -S 16",
            "/calls/udp_receive/ready/count",
        ),
        ("throughput -n 1M --calls", "/calls/tcp_send/room/count"),
        (
            "throughput -u -b 2M -t 1 -R --calls",
            "/calls/udp_receive_burst/ready/count",
        ),
        ("throughput -n 1M -M 600", "/summary/goodput_bps"),
    ] {
        let (command, rest) = words.split_once(' ').expect("two words");
        let words = format!("{command} {KERNEL} {rest} {PLACE}");
        let record = house.record_with_stages(&words);
        assert!(number(&record, figure) > 0.0, "{words}: {record:#}");
        if words.contains("--verify") {
            assert_eq!(record["summary"]["mismatched"], 0, "{words}");
        }
        assert_eq!(record["plan"]["stack"]["near"], "linerate", "{words}");
        assert_eq!(record["plan"]["stack"]["far"], "kernel", "{words}");
        assert_eq!(record["plan"]["wait"]["near"], "interval:200us", "{words}");
        let stack = &record["hosts"][0]["stack"];
        assert_eq!(stack["name"], "linerate", "{words}");
        assert_eq!(stack["addresses"][0], "10.9.0.2/24", "{words}");
        let protocol = if words.contains(" -u") { "udp" } else { "tcp" };
        let came = match protocol {
            "udp" => "in_datagrams",
            _ => "in_segments",
        };
        let sinks = !words.contains("-u -b") || words.contains("-R");
        if sinks {
            let counted = number(stack, &format!("/counters/{protocol}/{came}"));
            assert!(counted > 0.0, "{words}: {stack:#}");
        }
    }
    // The control connection may use another path, if payload has one at all.
    let record = house.record(&format!("latency {KERNEL} -n 100 --control kernel {PLACE}"));
    assert_eq!(record["summary"]["round_trips"], 100);
    let ran = house.run(&format!("latency 127.0.0.1 -n 10 --control kernel {PLACE}"));
    assert_eq!(ran.code(), 5, "loopback is no path for payload: {ran:#?}");
}

/// Waits for a receiver; without any datagram it would wait for ever, so it is interrupted after 10
/// s.
fn ended(mut receiver: Running) -> Finished {
    let end = Instant::now() + Duration::from_secs(10);
    while !receiver.has_ended() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    if !receiver.has_ended() {
        receiver.interrupt();
    }
    receiver.wait()
}

#[test]
fn classic_tools_talk_over_our_stack() {
    let house = house!("classic");
    for options in ["", "-u"] {
        // The kernel receives, then sends. Datagrams are sent without a receiver too: all but the
        // last may be lost before it starts.
        let waits = format!("ttcp -r {options} --no-store -p 5010");
        let sent = format!("ttcp -t {KERNEL} -p 5010 {options} -l 1000 -n 300 {PLACE} --no-store");
        let received = (0..10).find_map(|_| {
            let receiver = Running::start(&mut house.linerate(&waits));
            soon("the receiver", || house.run(&sent).code() == 0);
            let ran = ended(receiver);
            (ran.code() == 0).then_some(ran)
        });
        let ran = received.expect("one of ten");
        assert!(ran.stdout.contains("ttcp-r: "), "{options}: {ran:#?}");
        let waits = format!("ttcp -r {options} -p 5010 --no-store --json {PLACE}");
        let sent = format!("ttcp -t {STACK} -p 5010 {options} -l 1000 -n 300 --no-store");
        let received = (0..10).find_map(|_| {
            let receiver = Running::start(&mut house.linerate(&waits));
            soon("the receiver", || house.run(&sent).code() == 0);
            let ran = ended(receiver);
            (ran.code() == 0).then_some(ran)
        });
        let record = received.expect("one of ten").json();
        let came = number(&record, "/directions/0/bytes_received");
        assert!(came > 0.0 && came <= 300_000.0, "{options}: {came}");
    }
    let mut server = Running::start(&mut house.linerate("server --no-store"));
    server.line(|line| line.starts_with("READY port=5201"));
    for (dialect, options) in [
        ("iperf2", "-n 1M"),
        ("iperf2", "-u -b 2M -t 1"),
        ("iperf2", "-u -b 2M -t 1 -P 2"),
        ("iperf2", "-u -b 2M -t 1 -R"),
        ("iperf2", "-t 1 -R"),
        ("iperf2", "-t 1 --bidir"),
        ("iperf3", "-n 1M -P 2"),
        ("iperf3", "-t 1 -R"),
        ("iperf3", "-t 1 --bidir"),
        ("iperf3", "-u -b 2M -t 1 --bidir"),
        ("nuttcp", "-n 1M"),
        ("nuttcp", "-t 1 -R"),
        ("nuttcp", "-u -b 2M -t 1"),
        ("nuttcp", "-u -b 2M -t 1 -R"),
    ] {
        let words = format!("throughput {KERNEL} --peer {dialect} {options} {PLACE}");
        let record = house.record(&words);
        assert!(number(&record, "/summary/goodput_bps") > 0.0, "{words}");
        let bidir = options.contains("--bidir");
        let ways = record["directions"].as_array().expect("directions");
        assert_eq!(ways.len(), 1 + usize::from(bidir), "{words}");
        for way in ways {
            assert!(number(way, "/goodput_bps") > 0.0, "{words}: {way:#}");
            // It ends at its own time, not at a timeout.
            assert!(number(way, "/duration_ns") < 9e9, "{words}: {way:#}");
        }
        if options.contains("-u") {
            assert!(
                number(&record, "/summary/packets_received") > 0.0,
                "{words}"
            );
        }
    }
    let words = format!("latency {KERNEL} --peer iperf2 -n 100 {PLACE}");
    assert_eq!(house.record(&words)["summary"]["round_trips"], 100);
}

/// The error names the sockets, not a firewall.
#[test]
fn a_host_with_too_few_sockets_says_so() {
    let house = house!("few");
    let host = house.serve("--serve linerate,echo,discard --no-store --set sockets.udp=4");
    let words =
        |streams: u32| format!("throughput {STACK} -u -b 1M -P {streams} -t 0.2 -O 0 --no-store");
    let ran = house.run(&words(3));
    assert_ne!(ran.code(), 0, "{ran:#?}");
    let all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "all 4 UDP sockets of the host's stack are in use, and the test needs 2 more";
    assert!(all.contains(said), "{all}");
    assert!(all.contains("--set sockets.udp=6"), "{all}");
    // Each service has one; those of the rejected test are free again.
    let ran = house.run(&words(1));
    assert_eq!(ran.code(), 0, "{ran:#?}");
    drop(host);
}

#[test]
fn who_is_not_on_the_stack_s_link_is_named() {
    let house = house!("link");
    let silent = "--dev tap:t0 --set poll.interval=200us";
    for (words, said) in [
        (
            format!("throughput 10.9.0.77 -t 1 {PLACE}"),
            "it does not reply on the link of the user-space stack (ARP, 5 s)",
        ),
        (
            format!("latency 10.9.0.77 --peer echo -u -t 1 {PLACE}"),
            "it does not reply on the link",
        ),
        (
            format!("latency {KERNEL} --ip 10.9.7.2/24 --gateway 10.9.7.1 {silent}"),
            "the gateway 10.9.7.1 does not reply",
        ),
        (
            format!("latency {KERNEL} --ip 10.9.7.2/24 {silent}"),
            "add one with --ip or --gateway",
        ),
    ] {
        let ran = house.run(&format!("{words} --no-store"));
        assert_eq!(ran.code(), 5, "{words}: {ran:#?}");
        let all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(all.contains(said), "{words}: {all}");
    }
    for (words, said) in [
        (
            format!("latency {STACK} {PLACE}"),
            "give the stack an address of its own",
        ),
        (
            format!("latency {KERNEL} -B 10.9.0.3 {PLACE}"),
            "no such address",
        ),
    ] {
        let ran = house.run(&format!("{words} --no-store"));
        assert_eq!(ran.code(), 4, "{words}: {ran:#?}");
        let all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(all.contains(said), "{words}: {all}");
    }
}

/// A client that sends half of a handshake and leaves blocks no connection.
#[test]
fn half_a_greeting_keeps_no_socket() {
    let house = house!("half");
    let host = house.serve("--serve linerate --no-store --set sockets.tcp=4");
    let half = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do exec 3<>/dev/tcp/{STACK}/5201; printf lin >&3; exec 3>&-; done"
    );
    works(&mut house.on(&["timeout", "9", "bash", "-c", &half])).expect("nine connections");
    let began = Instant::now();
    let ran = house.run(&format!("latency {STACK} -n 50 --no-store"));
    assert_eq!(ran.code(), 0, "{ran:#?}");
    // Each of them would have been kept for ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8));
    drop(host);
}

#[test]
fn what_our_stack_does_not_have_is_refused_before_any_traffic() {
    let room = Room::new();
    let place = "--dev tap:none-such --ip 10.9.0.2/24";
    for (words, code, said) in [
        ("latency 10.9.0.1 -u --wait block", 4, "polls its port"),
        ("latency 10.9.0.1 -u --wait io-uring", 4, "polls its port"),
        (
            "latency 10.9.0.1 -u --multicast 239.1.2.3%eth0",
            4,
            "one port",
        ),
        ("latency 10.9.0.1 -u --compare-waiting", 2, "one stack"),
        ("throughput 10.9.0.1 -C bbr", 4, "none, reno and cubic"),
        ("throughput 10.9.0.1 -M 40", 2, "88 to 32767"),
        (
            "throughput 10.9.0.1 --offload splice",
            4,
            "files and pipes of the kernel",
        ),
        ("throughput 10.9.0.1 -u --offload gso", 4, "in bursts"),
        (
            "throughput 10.9.0.1 -u -b 1M --pacing txtime",
            4,
            "kernel that paces",
        ),
        ("throughput 10.9.0.1 -u -w 1M", 4, "counted in packets"),
        ("latency 10.9.0.1 --set tcp.nonsense=1", 2, "no key"),
        (
            "latency 10.9.0.1 --set tcp.psh=sometimes",
            2,
            "buffer-empty",
        ),
        ("latency 10.9.0.1 --profile none", 2, "embedded-default"),
        ("stack --serve ftp", 2, "no service"),
        (
            "stack --set tcp.send_buffer=1G;sockets.tcp=4096",
            4,
            "of memory",
        ),
    ] {
        let ran = room.run(&format!("{words} {place} --no-store"));
        assert_eq!(ran.code(), code, "{words}: {ran:#?}");
        let said_all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said_all.contains(said), "{words}: {said_all}");
    }
    for (address, said) in [
        ("10.9.0.0/24", "that network itself"),
        ("10.9.0.255/24", "broadcast address"),
    ] {
        let ran = room.run(&format!(
            "stack --dev tap:none-such --ip {address} --no-store"
        ));
        assert_eq!(ran.code(), 2, "{address}: {ran:#?}");
        let said_all = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said_all.contains(said), "{address}: {said_all}");
    }
    for words in [
        "latency 10.9.0.1 --ip 10.9.0.2/24",
        "latency 10.9.0.1 --dev tap:t0",
        "latency 10.9.0.1 --dev tap:t0 --ip 10.9.0.2",
        "latency 10.9.0.1 --dev nonsense:t0 --ip 10.9.0.2/24",
        "stack",
        "latency 10.9.0.1 --wait interval:1ms",
    ] {
        let ran = room.run(&format!("{words} --no-store"));
        assert!([2, 4, 5].contains(&ran.code()), "{words}: {ran:#?}");
    }
}

#[test]
fn a_port_that_is_not_there_is_named() {
    let room = Room::new();
    for words in [
        "stack --dev packet:none0 --ip 10.9.0.2/24",
        "latency 10.9.0.1 -u --dev packet:none0 --ip 10.9.0.2/24",
    ] {
        let ran = room.run(&format!("{words} --no-store --json"));
        assert!([1, 2, 4].contains(&ran.code()), "{words}: {ran:#?}");
        let error = &ran.json()["error"];
        assert!(
            error["object"].is_string() || error["situation"].is_string(),
            "{ran:#?}"
        );
    }
}
