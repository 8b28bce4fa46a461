//! User-space stack in use: as a host on a port that the kernel connects to, and in place of the
//! kernel's stack at the client of a run.

mod shared_memory;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    FinishedCommand, RunningCommand, TestDir, TestLab, assert_record, check_command, finish,
    join_lines, number_at, skip, wait_until,
};
use serde_json::Value;

/// Lab host with a tap interface for a user-space stack.
struct StackLab {
    lab: TestLab,
}

/// Addresses of the kernel and of the stack on the interface `t0`.
const KERNEL_IP: &str = "10.9.0.1";
const STACK_IP: &str = "10.9.0.2";

/// Port options of the stack; it yields its core, because tests run in parallel.
const STACK_ARGS: &str = "--dev tap:t0 --ip 10.9.0.2/24 --set poll.interval=200us";

impl StackLab {
    fn up(test: &str) -> Result<Self, String> {
        let link = "[hosts.one]\n[hosts.other]\n[[links]]\nbetween = [\"one\", \"other\"]\n";
        let lab = TestLab::from_text(&format!("stack-{test}"), link)?;
        let up = format!(
            "ip tuntap add t0 mode tap && ip address add {KERNEL_IP}/24 dev t0 && ip link set t0 up"
        );
        lab.shell("one", &up)
            .map_err(|why| format!("a tap interface: {why}"))?;
        Ok(Self { lab })
    }

    fn command_on(&self, args: &[&str]) -> Command {
        self.lab.command_on("one", args)
    }

    fn linerate(&self, args: &str) -> Command {
        self.lab.linerate("one", args)
    }

    #[track_caller]
    fn run(&self, args: &str) -> FinishedCommand {
        println!("{args}");
        finish(&mut self.linerate(args))
    }

    #[track_caller]
    fn record(&self, args: &str) -> Value {
        let output = self.run(&format!("{args} --json --no-store"));
        assert_eq!(output.exit_code(), 0, "{args}: {output:#?}");
        let record = output.json();
        assert_record(&record);
        record
    }

    /// Starts a host on the stack and waits until it is reachable.
    fn start_host(&self, args: &str) -> RunningCommand {
        let mut host =
            RunningCommand::start(&mut self.linerate(&format!("stack {STACK_ARGS} {args}")));
        host.wait_line(|line| line.starts_with("READY dev=tap:t0 ip=10.9.0.2/24"));
        host
    }

    /// Waits for the device, which a killed process may hold for a moment longer. Needs a running
    /// server.
    fn wait_for_device(&self) {
        let args = format!("latency {KERNEL_IP} -u -n 1 --no-store {STACK_ARGS}");
        wait_until("the device", || self.run(&args).exit_code() == 0);
    }
}

/// Returns whether a record has no stages, with the warning: a busy machine may cut the stage pass
/// off.
fn is_without_stages(record: &Value) -> bool {
    let caveats = record["validity"].as_array().expect("doubts");
    let is_cut_off = caveats.iter().any(|caveat| caveat["doubt"] == "no-stages");
    assert!(!is_cut_off || record["stages"].is_null(), "{record:#}");
    is_cut_off
}

macro_rules! stack_lab {
    ($test:literal) => {
        match StackLab::up($test) {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn the_kernel_reaches_a_host_on_our_stack() {
    let lab = stack_lab!("serve");
    let host = lab.start_host("--serve echo,discard,chargen,iperf2,sockperf --no-store");
    match check_command(&mut lab.command_on(&["ping", "-c", "1", "-W", "10", STACK_IP])) {
        Ok(()) => {}
        Err(why) => println!("skipped: ping: {why}"),
    }
    for options in ["-u", "", "-u -l 1400 --outstanding 4", "-l 5000"] {
        let args = format!("latency {STACK_IP} --peer echo -n 300 {options}");
        let record = lab.record(&args);
        assert_eq!(record["summary"]["round_trips"], 300, "{args}");
        assert_eq!(record["summary"]["mismatched"], 0, "{args}");
    }
    // Longer than a packet, in fragments in both directions.
    let record = lab.record(&format!("latency {STACK_IP} --peer echo -u -n 50 -l 8000"));
    assert_eq!(record["summary"]["mismatched"], 0);
    let record = lab.record(&format!("throughput {STACK_IP} --peer discard -n 3M"));
    assert_eq!(record["summary"]["bytes_received"], 3 << 20);
    let record = lab.record(&format!("throughput {STACK_IP} --peer chargen -R -t 0.5"));
    assert!(number_at(&record, "/summary/goodput_bps") > 0.0);
    for options in ["-u", ""] {
        let args = format!("latency {STACK_IP} --peer sockperf -n 300 {options}");
        let record = lab.record(&args);
        assert_eq!(record["summary"]["mismatched"], 0, "{args}");
    }
    let record = lab.record(&format!("throughput {STACK_IP} --peer iperf2 -n 2M"));
    assert_eq!(record["summary"]["bytes_received"], 2 << 20);
    // The previous connection has validated the client's address.
    for direction in ["", "-R"] {
        let args = format!("throughput {STACK_IP} --peer iperf2 -u -b 2M -t 1 {direction}");
        let record = lab.record(&args);
        let received = number_at(&record, "/summary/packets_received");
        assert!(received > 0.0, "{args}: {record:#}");
    }
    drop(host);
}

/// Sockets over the port see only a closed connection.
#[test]
fn a_broken_port_is_named_and_not_the_server() {
    let lab = stack_lab!("breaks");
    let mut server = RunningCommand::start(&mut lab.linerate("server --no-store"));
    server.wait_line(|line| line.starts_with("READY port=5201"));
    let args = format!("throughput {KERNEL_IP} -t 100 --no-store --json-stream {STACK_ARGS}");
    let mut run = RunningCommand::start(&mut lab.linerate(&args));
    run.wait_started();
    check_command(&mut lab.command_on(&["ip", "link", "set", "t0", "down"])).unwrap();
    let output = run.wait();
    assert_ne!(output.exit_code(), 0, "{output:#?}");
    let all = join_lines(&format!("{} {}", output.stdout, output.stderr));
    assert!(all.contains("its interface went down"), "{all}");
}

/// Both directions, on the client's flow or on a second one towards it.
#[test]
fn reference_iperf2_gets_the_requested_flows() {
    let lab = stack_lab!("iperf");
    // It prints its version and fails.
    if let Err(why) = Command::new("iperf").arg("--version").output() {
        skip!("stock iperf 2: {why}");
    }
    let host = lab.start_host("--serve iperf2 --allow 10.9.0.1 --no-store");
    for options in ["-u -R", "-u -d", "-u -r", "-R", "-d", "-r"] {
        let args = format!("iperf -c {STACK_IP} -t 1 -b 2M -y C {options}");
        println!("{args}");
        let args: Vec<_> = args.split_whitespace().collect();
        let output = finish(&mut lab.command_on(&args));
        assert_eq!(output.exit_code(), 0, "{options}: {output:#?}");
        // One line for each received flow: time, addresses, ports, number, interval, bytes.
        let bytes = |line: &str| -> Option<u64> { line.split(',').nth(7)?.parse().ok() };
        let back = output.stdout.lines().filter(|line| bytes(line) > Some(0));
        let least = if options.contains('R') { 1 } else { 2 };
        assert!(back.count() >= least, "{options}: {output:#?}");
    }
    drop(host);
}

#[test]
fn complete_tests_run_with_a_host_on_our_stack() {
    let lab = stack_lab!("server");
    let host = lab.start_host("--serve linerate --no-store");
    for (args, figure) in [
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
        let (command, rest) = args.split_once(' ').expect("two words");
        let args = format!("{command} {STACK_IP} {rest}");
        let record = lab.record(&args);
        let directions = record["directions"].as_array().expect("directions");
        let expected_count = if args.contains("--bidir") { 2 } else { 1 };
        assert_eq!(directions.len(), expected_count, "{args}");
        for direction in directions.iter().filter(|_| command == "throughput") {
            assert!(number_at(direction, "/goodput_bps") > 0.0, "{args}");
        }
        if expected_count == 1 {
            assert!(number_at(&record, figure) > 0.0, "{args}: {record:#}");
        }
        if args.contains("--verify") || command == "latency" {
            assert_eq!(record["summary"]["mismatched"], 0, "{args}");
        }
        if args.contains("--offload") {
            let copies = &record["plan"]["copies"];
            let around = [&copies["send"], &copies["receive"]];
            assert!(around.iter().any(|way| **way != "copied"), "{args}");
        }
        assert_eq!(record["plan"]["stack"]["server"], "linerate", "{args}");
        let server_stack = &record["hosts"][1]["stack"];
        assert_eq!(
            server_stack["addresses"][0], "10.9.0.2/24",
            "{args}: {record:#}"
        );
    }
    // Stages of a stack that does not sleep.
    for options in ["-u", ""] {
        let args = format!("latency {STACK_IP} -n 300 --stages {options}");
        let record = lab.record(&args);
        if is_without_stages(&record) {
            println!("{args}: the stage pass was cut off");
            continue;
        }
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
            assert!(names.contains(&stage.as_str()), "{args}: {names:?}");
        }
        let rtt_p50_ns = number_at(&record, "/stage_pass/rtt_ns/p50");
        let sum: f64 = stages
            .iter()
            .map(|stage| number_at(stage, "/mean_ns"))
            .sum();
        let mean = number_at(&record, "/stage_pass/rtt_ns/mean");
        assert!(
            (sum - mean).abs() <= mean * 0.05,
            "{sum} {mean} {rtt_p50_ns}"
        );
    }
    // Unsupported options are rejected before any traffic.
    for (options, expected) in [
        ("-P 100", "sockets"),
        ("-R --offload sendfile", "need kernel sockets"),
        ("-w 1M", "buffers"),
        ("--wait spin", "wait mode is fixed at its start"),
    ] {
        let output = lab.run(&format!("throughput {STACK_IP} -t 1 {options} --no-store"));
        assert_eq!(output.exit_code(), 4, "{options}: {output:#?}");
        let message = join_lines(&output.stderr);
        assert!(message.contains(expected), "{options}: {message}");
    }
    drop(host);
}

/// Returns scheduling class and priority of a thread, by its name.
fn thread_priority(process: u32, name: &str) -> Option<(u32, u32)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut tasks = tasks.flatten().map(|task| task.path());
    let task = tasks.find(|task| {
        let comm = fs::read_to_string(task.join("comm"));
        comm.is_ok_and(|comm| comm.trim() == name)
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
    let lab = stack_lab!("threads");
    let thread_args = "--set threads.count=2 --set threads.driver.sched=fifo:3 \
                 --set threads.application.sched=fifo:2";
    let host = lab.start_host(&format!("--serve echo,linerate --no-store {thread_args}"));
    let line = format!("stack {STACK_ARGS} --serve echo,linerate --no-store {thread_args}");
    let command: Vec<u8> = (line.split_whitespace())
        .flat_map(|arg| arg.bytes().chain([0]))
        .collect();
    // The host runs in a lab: its process is a child of the started one.
    let find = || {
        let mut processes = fs::read_dir("/proc").expect("proc").flatten();
        processes.find_map(|entry| {
            let process: u32 = entry.file_name().to_str()?.parse().ok()?;
            let cmdline = fs::read(entry.path().join("cmdline")).ok()?;
            (cmdline.ends_with(&command) && thread_priority(process, "stack").is_some())
                .then_some(process)
        })
    };
    // A ready host may not have its threads yet.
    wait_until("threads with a priority each", || {
        find().is_some_and(|process| {
            thread_priority(process, "driver") == Some((FIFO, 3))
                && thread_priority(process, "stack") == Some((FIFO, 2))
        })
    });
    for args in [
        "latency -u -n 200 --peer echo",
        "latency -n 200",
        "throughput -n 1M --verify",
        "throughput -t 1 -R --verify",
    ] {
        let (command, rest) = args.split_once(' ').expect("two words");
        let record = lab.record(&format!("{command} {STACK_IP} {rest}"));
        assert_eq!(record["summary"]["mismatched"], 0, "{args}");
    }
    drop(host);
    // The client's stack has them too.
    let mut server = RunningCommand::start(&mut lab.linerate("server --no-store"));
    server.wait_line(|line| line.starts_with("READY port=5201"));
    lab.wait_for_device();
    let record = lab.record(&format!(
        "throughput {KERNEL_IP} -n 1M --verify {STACK_ARGS} {thread_args}"
    ));
    assert_eq!(record["summary"]["mismatched"], 0);
}

#[test]
fn a_thousand_connections_use_our_stack_in_both_directions() {
    let lab = stack_lab!("many");
    let buffer_args = "--set sockets.tcp=1100 --set tcp.send_buffer=8K --set tcp.receive_window=8K";
    let host = lab.start_host(&format!("--serve linerate --no-store {buffer_args}"));
    for options in ["", "-R"] {
        let args = format!("throughput {STACK_IP} -t 1 -P 1000 {options}");
        let record = lab.record(&args);
        let streams = record["directions"][0]["streams"].as_array();
        assert_eq!(streams.map(Vec::len), Some(1000), "{args}");
        assert!(number_at(&record, "/summary/goodput_bps") > 0.0, "{args}");
    }
    drop(host);
    let mut server = RunningCommand::start(&mut lab.linerate("server --no-store"));
    server.wait_line(|line| line.starts_with("READY port=5201"));
    lab.wait_for_device();
    for options in ["", "-R"] {
        let args =
            format!("throughput {KERNEL_IP} -t 1 -P 1000 {options} {STACK_ARGS} {buffer_args}");
        let record = lab.record(&args);
        let streams = record["directions"][0]["streams"].as_array();
        assert_eq!(streams.map(Vec::len), Some(1000), "{args}");
        assert!(number_at(&record, "/summary/goodput_bps") > 0.0, "{args}");
    }
}

#[test]
fn a_host_writes_a_record() {
    let lab = stack_lab!("record");
    let args = "--serve echo:4000 --json --no-store -i 0.1";
    let mut host = RunningCommand::start(&mut lab.linerate(&format!("stack {STACK_ARGS} {args}")));
    host.wait_error_line(|line| line.starts_with("READY dev=tap:t0"));
    // Half a second of requests.
    lab.record(&format!(
        "latency {STACK_IP} --peer echo -p 4000 -u -n 100 --rate 200/s"
    ));
    host.interrupt();
    let output = host.wait().expect(0);
    let record = output.json();
    assert_record(&record);
    assert_eq!(record["kind"], "stack");
    assert_eq!(record["interrupted"], false);
    let stack = &record["hosts"][0]["stack"];
    assert_eq!(stack["name"], "linerate");
    assert_eq!(stack["configuration"]["poll.interval"], "200us");
    let items = stack["memory"]["items"].as_array().expect("items");
    let sum: f64 = items.iter().map(|item| number_at(item, "/bytes")).sum();
    assert_eq!(sum, number_at(stack, "/memory/bytes"));
    assert!(number_at(stack, "/counters/udp/in_datagrams") >= 100.0);
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
    let args = "stack --dev null:silent --ip 10.9.0.2/24 --set poll.interval=1ms --no-store --json-stream -t 1 -i 0.2";
    let dir = TestDir::new();
    let output = RunningCommand::start(&mut dir.linerate(args))
        .wait()
        .expect(0);
    let lines = output.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let intervals = lines
        .iter()
        .filter(|line| line["event"] == "stack-interval");
    let mut end_times = intervals.map(|line| number_at(line, "/interval/end_ns"));
    assert!(end_times.next().is_some_and(|end| end > 0.0), "{lines:#?}");
    assert!(end_times.next().is_some(), "{lines:#?}");
    let last = lines.last().map(|line| line["event"].clone());
    assert_eq!(last, Some(Value::from("finished")), "{lines:#?}");
}

#[test]
fn a_host_stamps_requests_and_responses() {
    let lab = stack_lab!("stamps");
    for stamps in ["16", "20,width=4,order=le,hz=10M"] {
        let host = lab.start_host(&format!(
            "--serve echo,iperf2 --no-store --stamp-payload {stamps}"
        ));
        let args = format!("latency {STACK_IP} --peer echo -u -n 300 --device-stamps {stamps}");
        let record = lab.record(&args);
        assert_eq!(record["summary"]["mismatched"], 0, "{args}");
        let share = number_at(&record, "/summary/device/share");
        assert!(share > 0.0 && share < 1.0, "{args}: {share}");
        // Another service uses these bytes itself.
        let args = format!("throughput {STACK_IP} --peer iperf2 -u -b 1M -t 1");
        let record = lab.record(&args);
        let (packets_sent, received) = (
            number_at(&record, "/summary/packets_sent"),
            number_at(&record, "/summary/packets_received"),
        );
        assert!(
            received > 0.0 && received <= packets_sent,
            "{args}: {received} of {packets_sent}"
        );
        drop(host);
    }
}

/// Starts the kernel's server in a lab.
fn start_server(lab: &StackLab) -> RunningCommand {
    let mut server =
        RunningCommand::start(&mut lab.linerate("server --grant multicast --no-store"));
    server.wait_line(|line| line.starts_with("READY port=5201"));
    server
}

/// Runs measurements over our stack against the kernel's server; each of them has a figure.
fn run_over_our_stack(lab: &StackLab, runs: &[(&str, &str)]) {
    for (args, figure) in runs {
        let (command, rest) = args.split_once(' ').expect("two words");
        let args = format!("{command} {KERNEL_IP} {rest} {STACK_ARGS}");
        let record = lab.record(&args);
        if !args.contains("--stages") || !is_without_stages(&record) {
            assert!(number_at(&record, figure) > 0.0, "{args}: {record:#}");
        }
        if args.contains("--verify") {
            assert_eq!(record["summary"]["mismatched"], 0, "{args}");
        }
        assert_eq!(record["plan"]["stack"]["client"], "linerate", "{args}");
        assert_eq!(record["plan"]["stack"]["server"], "kernel", "{args}");
        assert_eq!(record["plan"]["wait"]["client"], "interval:200us", "{args}");
        let stack = &record["hosts"][0]["stack"];
        assert_eq!(stack["name"], "linerate", "{args}");
        assert_eq!(stack["addresses"][0], "10.9.0.2/24", "{args}");
        let protocol = if args.contains(" -u") { "udp" } else { "tcp" };
        let received_counter = match protocol {
            "udp" => "in_datagrams",
            _ => "in_segments",
        };
        let sinks = !args.contains("-u -b") || args.contains("-R");
        if sinks {
            let counted = number_at(stack, &format!("/counters/{protocol}/{received_counter}"));
            assert!(counted > 0.0, "{args}: {stack:#}");
        }
    }
}

#[test]
fn round_trips_go_over_our_stack_to_the_kernel_s_server() {
    let lab = stack_lab!("rtt");
    let _server = start_server(&lab);
    let figure = "/summary/round_trips";
    run_over_our_stack(
        &lab,
        &[
            ("latency -u -n 300", figure),
            ("latency -n 300 -l 3000", figure),
            ("latency -u -t 0.5 --rate 500/s", figure),
            ("latency -n 100 --reopen", figure),
            ("latency -u -n 100 --reopen", figure),
            ("latency -u -n 100 --unconnected", figure),
            ("latency -u -n 100 --multicast 239.1.2.3", figure),
        ],
    );
    // The control connection may use another path, if payload has one at all.
    let record = lab.record(&format!(
        "latency {KERNEL_IP} -n 100 --control kernel {STACK_ARGS}"
    ));
    assert_eq!(record["summary"]["round_trips"], 100);
    let output = lab.run(&format!(
        "latency 127.0.0.1 -n 10 --control kernel {STACK_ARGS}"
    ));
    assert_eq!(
        output.exit_code(),
        5,
        "loopback is no path for payload: {output:#?}"
    );
}

#[test]
fn streams_go_over_our_stack_to_the_kernel_s_server() {
    let lab = stack_lab!("tcp");
    let _server = start_server(&lab);
    let figure = "/summary/goodput_bps";
    run_over_our_stack(
        &lab,
        &[
            ("throughput -t 0.5 --verify", figure),
            ("throughput -t 0.5 -R --verify", figure),
            ("throughput -n 2M --offload zerocopy,trunc", figure),
            ("throughput -n 2M -R --offload sendfile,trunc", figure),
            ("throughput -n 1M -P 3", figure),
            ("throughput -t 0.5 --bidir", "/directions/1/goodput_bps"),
            ("throughput -n 1M -M 600", figure),
        ],
    );
}

#[test]
fn datagrams_go_over_our_stack_to_the_kernel_s_server() {
    let lab = stack_lab!("udp");
    let _server = start_server(&lab);
    let figure = "/summary/goodput_bps";
    run_over_our_stack(
        &lab,
        &[
            ("throughput -u -b 2M -t 0.5 --offload zerocopy", figure),
            ("throughput -u -b 2M -t 0.5 --verify", figure),
            ("throughput -u -b 2M -t 0.5 -R -P 2", figure),
        ],
    );
}

#[test]
fn calls_and_stages_of_our_stack_are_recorded() {
    let lab = stack_lab!("calls");
    let _server = start_server(&lab);
    run_over_our_stack(
        &lab,
        &[
            ("latency -u -n 300 --stages", "/stages/0/p50_ns"),
            ("latency -n 300 --stages", "/stages/0/p50_ns"),
            (
                "latency -u -n 100 --calls -S 16",
                "/calls/udp_receive/ready/count",
            ),
            ("throughput -n 1M --calls", "/calls/tcp_send/accepted/count"),
            (
                "throughput -u -b 2M -t 0.5 -R --calls",
                "/calls/udp_receive_burst/ready/count",
            ),
        ],
    );
}

/// Sends to a receiver until it has ended. A sender of datagrams notices no receiver that has not
/// started; it may lose all but its last datagrams to one that starts.
fn send_until_received(
    lab: &StackLab,
    mut receiver: RunningCommand,
    args: &str,
) -> FinishedCommand {
    wait_until("the receiver's end", || {
        lab.run(args);
        receiver.has_exited()
    });
    receiver.wait().expect(0)
}

#[test]
fn ttcp_runs_over_our_stack() {
    let lab = stack_lab!("ttcp");
    // All datagrams of a sender fit into the buffers of a receiver that waits for a CPU, with their end.
    for options in ["", "-u"] {
        // The kernel receives, then sends.
        let receiver_args = format!("ttcp -r {options} --no-store -p 5010");
        let sender_args =
            format!("ttcp -t {KERNEL_IP} -p 5010 {options} -l 1000 -n 100 {STACK_ARGS} --no-store");
        let receiver = RunningCommand::start(&mut lab.linerate(&receiver_args));
        let output = send_until_received(&lab, receiver, &sender_args);
        assert!(output.stdout.contains("ttcp-r: "), "{options}: {output:#?}");
        let receiver_args = format!("ttcp -r {options} -p 5010 --no-store --json {STACK_ARGS}");
        let sender_args = format!("ttcp -t {STACK_IP} -p 5010 {options} -l 1000 -n 100 --no-store");
        let receiver = RunningCommand::start(&mut lab.linerate(&receiver_args));
        let record = send_until_received(&lab, receiver, &sender_args).json();
        let received_bytes = number_at(&record, "/directions/0/bytes_received");
        assert!(
            received_bytes > 0.0 && received_bytes <= 100_000.0,
            "{options}: {received_bytes}"
        );
    }
}

#[test]
fn iperf2_runs_over_our_stack() {
    let lab = stack_lab!("iperf2");
    let _server = start_server(&lab);
    for options in [
        "-n 1M",
        "-u -b 2M -t 1",
        "-u -b 2M -t 1 -P 2",
        "-u -b 2M -t 1 -R",
        "-t 1 -R",
        "-t 1 --bidir",
    ] {
        run_protocol(&lab, "iperf2", options);
    }
    let args = format!("latency {KERNEL_IP} --peer iperf2 -n 100 {STACK_ARGS}");
    assert_eq!(lab.record(&args)["summary"]["round_trips"], 100);
}

#[test]
fn iperf3_runs_over_our_stack() {
    let lab = stack_lab!("iperf3");
    let _server = start_server(&lab);
    for options in [
        "-n 1M -P 2",
        "-t 1 -R",
        "-t 1 --bidir",
        "-u -b 2M -t 1 --bidir",
    ] {
        run_protocol(&lab, "iperf3", options);
    }
}

#[test]
fn nuttcp_runs_over_our_stack() {
    let lab = stack_lab!("nuttcp");
    let _server = start_server(&lab);
    for options in ["-n 1M", "-t 1 -R", "-u -b 2M -t 1", "-u -b 2M -t 1 -R"] {
        run_protocol(&lab, "nuttcp", options);
    }
}

/// Runs a protocol of another tool over our stack against the kernel's server.
fn run_protocol(lab: &StackLab, protocol: &str, options: &str) {
    let args = format!("throughput {KERNEL_IP} --peer {protocol} {options} {STACK_ARGS}");
    let record = lab.record(&args);
    assert!(number_at(&record, "/summary/goodput_bps") > 0.0, "{args}");
    let bidir = options.contains("--bidir");
    let directions = record["directions"].as_array().expect("directions");
    assert_eq!(directions.len(), 1 + usize::from(bidir), "{args}");
    for direction in directions {
        assert!(
            number_at(direction, "/goodput_bps") > 0.0,
            "{args}: {direction:#}"
        );
        // It ends at its own time, not at a timeout.
        assert!(
            number_at(direction, "/duration_ns") < 9e9,
            "{args}: {direction:#}"
        );
    }
    if options.contains("-u") {
        assert!(
            number_at(&record, "/summary/packets_received") > 0.0,
            "{args}"
        );
    }
}

/// The error names the sockets, not a firewall.
#[test]
fn a_host_reports_that_it_has_too_few_sockets() {
    let lab = stack_lab!("few");
    let host = lab.start_host("--serve linerate,echo,discard --no-store --set sockets.udp=4");
    let args = |streams: u32| {
        format!("throughput {STACK_IP} -u -b 1M -P {streams} -t 0.2 -O 0 --no-store")
    };
    let output = lab.run(&args(3));
    assert_ne!(output.exit_code(), 0, "{output:#?}");
    let all = join_lines(&output.stderr);
    let expected = "all 4 UDP sockets of the host's stack are in use, and the test needs 2 more";
    assert!(all.contains(expected), "{all}");
    assert!(all.contains("--set sockets.udp=6"), "{all}");
    // Each service has one; those of the rejected test are free again.
    let output = lab.run(&args(1));
    assert_eq!(output.exit_code(), 0, "{output:#?}");
    drop(host);
}

#[test]
fn a_host_off_the_stack_s_link_is_named() {
    let lab = stack_lab!("link");
    let silent = "--dev tap:t0 --set poll.interval=200us";
    for (args, expected) in [
        (
            format!("throughput 10.9.0.77 -t 1 {STACK_ARGS}"),
            "it does not reply on the link of the user-space stack (ARP, 5 s)",
        ),
        (
            format!("latency 10.9.0.77 --peer echo -u -t 1 {STACK_ARGS}"),
            "it does not reply on the link",
        ),
        (
            format!("latency {KERNEL_IP} --ip 10.9.7.2/24 --gateway 10.9.7.1 {silent}"),
            "the gateway 10.9.7.1 does not reply",
        ),
        (
            format!("latency {KERNEL_IP} --ip 10.9.7.2/24 {silent}"),
            "add one with --ip or --gateway",
        ),
    ] {
        let output = lab.run(&format!("{args} --no-store"));
        assert_eq!(output.exit_code(), 5, "{args}: {output:#?}");
        let all = join_lines(&output.stderr);
        assert!(all.contains(expected), "{args}: {all}");
    }
    for (args, expected) in [
        (
            format!("latency {STACK_IP} {STACK_ARGS}"),
            "give the stack an address of its own",
        ),
        (
            format!("latency {KERNEL_IP} -B 10.9.0.3 {STACK_ARGS}"),
            "no such address",
        ),
    ] {
        let output = lab.run(&format!("{args} --no-store"));
        assert_eq!(output.exit_code(), 4, "{args}: {output:#?}");
        let all = join_lines(&output.stderr);
        assert!(all.contains(expected), "{args}: {all}");
    }
}

/// A client that sends half of a handshake and leaves blocks no connection.
#[test]
fn an_unfinished_handshake_keeps_no_socket() {
    let lab = stack_lab!("half");
    let host = lab.start_host("--serve linerate --no-store --set sockets.tcp=4");
    let partial_hello = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do exec 3<>/dev/tcp/{STACK_IP}/5201; printf lin >&3; exec 3>&-; done"
    );
    check_command(&mut lab.command_on(&["timeout", "9", "bash", "-c", &partial_hello]))
        .expect("nine connections");
    let start = Instant::now();
    let output = lab.run(&format!("latency {STACK_IP} -n 50 --no-store"));
    assert_eq!(output.exit_code(), 0, "{output:#?}");
    // Each of them would have been kept for ten seconds.
    assert!(start.elapsed() < Duration::from_secs(8));
    drop(host);
}

#[test]
fn unsupported_options_of_our_stack_are_rejected_before_any_traffic() {
    let dir = TestDir::new();
    let port_args = "--dev tap:none-such --ip 10.9.0.2/24";
    for (args, code, expected) in [
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
            "need kernel sockets",
        ),
        ("throughput 10.9.0.1 -u --offload gso", 4, "in bursts"),
        (
            "throughput 10.9.0.1 -u -b 1M --pacing txtime",
            4,
            "only the kernel can pace",
        ),
        ("throughput 10.9.0.1 -u -w 1M", 4, "counted in packets"),
        (
            "latency 10.9.0.1 --set tcp.nonsense=1",
            2,
            "unknown configuration key",
        ),
        (
            "latency 10.9.0.1 --set tcp.psh=sometimes",
            2,
            "buffer-empty",
        ),
        ("latency 10.9.0.1 --profile none", 2, "embedded-default"),
        ("stack --serve ftp", 2, "unknown service"),
        (
            "stack --set tcp.send_buffer=1G;sockets.tcp=4096",
            4,
            "of memory",
        ),
    ] {
        let output = dir.run(&format!("{args} {port_args} --no-store"));
        assert_eq!(output.exit_code(), code, "{args}: {output:#?}");
        let message = join_lines(&output.stderr);
        assert!(message.contains(expected), "{args}: {message}");
    }
    for (address, expected) in [
        ("10.9.0.0/24", "that network itself"),
        ("10.9.0.255/24", "broadcast address"),
    ] {
        let output = dir.run(&format!(
            "stack --dev tap:none-such --ip {address} --no-store"
        ));
        assert_eq!(output.exit_code(), 2, "{address}: {output:#?}");
        let message = join_lines(&output.stderr);
        assert!(message.contains(expected), "{address}: {message}");
    }
    for args in [
        "latency 10.9.0.1 --ip 10.9.0.2/24",
        "latency 10.9.0.1 --dev tap:t0",
        "latency 10.9.0.1 --dev tap:t0 --ip 10.9.0.2",
        "latency 10.9.0.1 --dev nonsense:t0 --ip 10.9.0.2/24",
        "stack",
        "latency 10.9.0.1 --wait interval:1ms",
    ] {
        let output = dir.run(&format!("{args} --no-store"));
        assert!(
            [2, 4, 5].contains(&output.exit_code()),
            "{args}: {output:#?}"
        );
    }
}

#[test]
fn a_port_that_is_not_there_is_named() {
    let dir = TestDir::new();
    for args in [
        "stack --dev packet:none0 --ip 10.9.0.2/24",
        "latency 10.9.0.1 -u --dev packet:none0 --ip 10.9.0.2/24",
    ] {
        let output = dir.run(&format!("{args} --no-store --json"));
        assert!(
            [1, 2, 4].contains(&output.exit_code()),
            "{args}: {output:#?}"
        );
        let error = &output.json()["error"];
        assert!(
            error["object"].is_string() || error["situation"].is_string(),
            "{output:#?}"
        );
    }
}
