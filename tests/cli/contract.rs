//! Contract with scripts: documents, streams, files, the store, exit codes, signals, the
//! environment.

mod demo;
mod signals;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{
    ClosedPort, FinishedCommand, LinerateServer, RunningCommand, TestDir, assert_record, finish,
    is_root, skip, unshare_command, wait_until, without_user_namespaces,
};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Checks a record against `docs/record.schema.json` and against its types.
#[track_caller]
fn assert_valid_record(record: &Value) {
    assert_record(record);
    let schema: Value =
        serde_json::from_str(include_str!("../../docs/record.schema.json")).expect("a schema");
    let complaints = crate::schema::violations(&schema, record);
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Keys of every record: they are added, never renamed (see CONTRIBUTING).
const KEYS: &[&str] = &[
    "/schema",
    "/id",
    "/kind",
    "/started",
    "/interrupted",
    "/plan",
    "/plan/protocol",
    "/plan/streams",
    "/hosts/0/role",
    "/hosts/1/role",
    "/summary",
    "/directions/0/direction",
    "/directions/0/streams",
    "/intervals/0/start_ns",
    "/intervals/0/end_ns",
    "/intervals/0/direction",
    "/histograms",
    "/losses",
    "/findings",
    "/validity",
];

/// Kinds of measurement, and the further keys of each.
const MEASUREMENTS: &[(&str, &[&str])] = &[
    (
        "throughput -t 0.3 -i 0.1",
        &[
            "/summary/goodput_bps",
            "/summary/bytes_sent",
            "/summary/bytes_received",
            "/summary/retransmits",
            "/summary/cpu/1/share",
            "/intervals/0/bytes",
        ],
    ),
    (
        "throughput -R -t 0.3 -i 0.1 -b 50M",
        &["/summary/goodput_bps", "/intervals/0/bytes"],
    ),
    (
        "throughput --bidir -P 2 -t 0.3 -i 0.1 -b 50M",
        &["/summary/goodput_bps", "/directions/1/streams/1"],
    ),
    (
        "throughput -P 300 --threads 2/1 -t 0.5 -i 0.2",
        &[
            "/plan/threads/server",
            "/summary/fairness_index",
            "/summary/cpu/0/ns_per_byte",
            "/summary/cpu/1/threads/0/flows",
            "/summary/memory/1/streams",
            "/directions/0/fairness_index",
            "/directions/0/streams/299/receiver",
            "/intervals/0/tcp/flows",
        ],
    ),
    (
        "throughput -P 3 -t 0.5 -i 0.2 -b 50M",
        &[
            "/intervals/0/streams/2/bytes",
            "/summary/cpu/0/threads/2/cpu_ns",
        ],
    ),
    (
        "throughput -u -t 0.3 -i 0.1 -b 20M",
        &[
            "/summary/goodput_bps",
            "/summary/packets_per_second",
            "/summary/loss_fraction",
            "/intervals/0/packets",
        ],
    ),
    (
        "latency -t 0.3 -i 0.1",
        &[
            "/summary/rtt_ns/min",
            "/summary/rtt_ns/mean",
            "/summary/rtt_ns/p50",
            "/summary/rtt_ns/p90",
            "/summary/rtt_ns/p99",
            "/summary/rtt_ns/p99_9",
            "/summary/rtt_ns/p99_99",
            "/summary/rtt_ns/max",
            "/summary/round_trips",
            "/summary/mismatched",
            "/histograms/rtt_ns",
        ],
    ),
    (
        "latency -u -t 0.3 -i 0.1",
        &["/summary/rtt_ns/p50", "/summary/lost", "/histograms/rtt_ns"],
    ),
];

#[test]
fn json_is_one_document_that_fits_its_schema() {
    let (client_dir, server_dir) = (TestDir::new(), TestDir::new());
    let server = server_dir.server("-q");
    for (args, keys) in MEASUREMENTS {
        println!("{args}");
        let output = client_dir.run(&format!("{args} 127.0.0.1 -p {} --json", server.port));
        let output = output.expect(0);
        let record = output.json();
        assert_valid_record(&record);
        for key in KEYS.iter().chain(*keys) {
            let field = record.pointer(key);
            assert!(
                field.is_some_and(|value| !value.is_null()),
                "no {key}: {record:#}"
            );
        }
        assert_eq!(record["interrupted"], false, "{args}");
        let stored = client_dir.stored();
        assert!(
            stored.contains(&record),
            "what is printed is what is stored"
        );
    }
    assert_eq!(
        client_dir.stored().len(),
        MEASUREMENTS.len(),
        "one record a run"
    );
    // The server's own records of the same runs.
    wait_until("the server stores what it serves", || {
        server_dir.stored().len() == MEASUREMENTS.len()
    });
    server_dir.stored().iter().for_each(assert_valid_record);
    server.stop().expect(0);
}

#[test]
fn a_stream_ends_with_the_record() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!(
        "throughput 127.0.0.1 -p {} -u -b 10M -t 2 -i 0.1 --json-stream",
        server.port
    );
    let output = dir.run(&args).expect(0);
    let lines = output.json_lines();
    let named: Vec<_> = lines
        .iter()
        .map(|line| line["event"].as_str().expect("every line names its event"))
        .collect();
    assert_eq!(named[..2], ["connected", "started"], "{named:?}");
    assert_eq!(named.last(), Some(&"finished"), "{named:?}");
    assert_eq!(named.iter().filter(|name| **name == "finished").count(), 1);
    for line in &lines {
        assert_eq!(line["schema"], "linerate/event/1", "{line}");
        assert!(line["time"].is_string(), "{line}");
    }
    assert_valid_record(&lines[lines.len() - 1]["record"]);
    // A delayed process merges several intervals: together they cover the full run, in order.
    let intervals: Vec<_> = (lines.iter())
        .filter(|line| line["event"] == "interval")
        .map(|line| &line["interval"])
        .collect();
    let each = |name: &'static str| {
        let numbers = intervals.iter().map(move |interval| &interval[name]);
        numbers.map(|number| number.as_u64().expect("a number"))
    };
    assert!(intervals.len() >= 2, "{named:?}");
    assert!(each("start_ns").is_sorted() && each("end_ns").is_sorted());
    assert!(
        each("end_ns").next_back() >= Some(2_000_000_000),
        "the last"
    );
    let summary = &lines[lines.len() - 1]["record"]["summary"];
    let sum = each("bytes").sum::<u64>();
    assert_eq!(summary["bytes_received"], sum, "{summary:#}");
}

#[test]
fn quiet_is_the_result_alone() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!("latency 127.0.0.1 -p {} -t 0.3 -i 0.1", server.port);
    let text = dir.run(&args).expect(0).stdout;
    assert!(
        text.contains("connected to") && text.contains("seconds"),
        "{text}"
    );
    let quiet = dir.run(&format!("{args} -q")).expect(0);
    assert!(quiet.stdout.contains("p99.9"), "{quiet:?}");
    assert!(!quiet.stdout.contains("connected to") && !quiet.stdout.contains("seconds"));
    assert_eq!(quiet.stderr, "");
    // A quiet server still prints its address and the result for each client.
    let server_output = server.stop().expect(0).stdout;
    assert!(server_output.starts_with("READY port="), "{server_output}");
    assert!(server_output.contains("127.0.0.1:"), "{server_output}");
}

#[test]
fn a_file_gets_the_record() {
    let dir = TestDir::new();
    let server = dir.server("-q");
    let args = format!("latency 127.0.0.1 -p {} -n 50 -o out.json", server.port);
    let file = || -> Value {
        let text = fs::read_to_string(dir.path().join("out.json")).expect("the file");
        serde_json::from_str(&text).expect("one document")
    };
    let text = dir.run(&args).expect(0);
    assert!(text.stdout.contains("round trips"), "{text:?}");
    let first = file();
    assert_valid_record(&first);
    // With --json the file replaces standard output; it is replaced as a whole.
    let json = dir.run(&format!("{args} --json")).expect(0);
    assert_eq!(json.stdout, "");
    let second = file();
    assert_valid_record(&second);
    assert_ne!(first["id"], second["id"]);
    // `-` is standard output.
    let dash = dir.run(&format!(
        "latency 127.0.0.1 -p {} -n 50 --json -o -",
        server.port
    ));
    assert_valid_record(&dash.expect(0).json());
}

/// Page, stages and timeline of one command; an unwritable file loses nothing else.
#[test]
fn pages_stages_and_timelines() {
    let dir = TestDir::new();
    let server = dir.server("-q --no-store");
    let args = format!(
        "latency 127.0.0.1 -p {} -u -n 500 --no-store --json",
        server.port
    );
    let output = dir
        .run(&format!("{args} --trace trip.json --html trip.html"))
        .expect(0);
    let record = output.json();
    assert_valid_record(&record);
    let stages = record["stages"].as_array().expect("stages");
    assert!(stages.len() >= 9, "{stages:?}");
    assert!(
        record["stage_pass"]["round_trips"].as_u64() > Some(400),
        "{record}"
    );
    let read = |file: &str| fs::read_to_string(dir.path().join(file)).expect(file);
    let trace: Value = serde_json::from_str(&read("trip.json")).expect("one document");
    let events = trace["traceEvents"].as_array().expect("events");
    assert!(events.len() > 1_000, "{}", events.len());
    assert!(read("trip.html").contains("Stages of a round trip"));
    let lost = dir.run(&format!("{args} --trace /dev/full"));
    let lost = lost.expect(1);
    assert_valid_record(&lost.json());
    assert!(lost.stderr.contains("/dev/full"), "{lost:?}");
    let failed = dir.run(&format!("{args} --html nowhere/page.html"));
    assert!(failed.expect(1).json()["error"]["object"].is_string());
}

#[test]
fn nothing_is_stored_on_request() {
    let (client_dir, server_dir) = (TestDir::new(), TestDir::new());
    let server = server_dir.server("--no-store");
    for args in ["-n 10", "-n 10 --repeat 2"] {
        let args = format!("latency 127.0.0.1 -p {} {args} --no-store", server.port);
        client_dir.run(&args).expect(0);
    }
    server.stop().expect(0);
    assert!(!client_dir.path().join("data").exists());
    assert!(!server_dir.path().join("data").exists());
}

/// Without XDG_DATA_HOME the store is in the home directory; without both there is only a warning.
#[test]
fn the_store_without_a_place() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let args = format!("latency 127.0.0.1 -p {} -n 10 --json", server.port);
    finish(dir.linerate(&args).env_remove("XDG_DATA_HOME")).expect(0);
    let default = dir.path().join(".local/share/linerate/runs");
    assert_eq!(fs::read_dir(default).expect("the store").count(), 1);
    let mut homeless = dir.linerate(&args);
    homeless.env_remove("XDG_DATA_HOME").env_remove("HOME");
    let output = finish(&mut homeless).expect(0);
    assert_valid_record(&output.json());
    assert!(output.stderr.contains("warning"), "{output:?}");
}

#[test]
fn a_full_disk_costs_the_copy_and_not_the_result() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    fs::create_dir_all(dir.path().join("data")).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size=32k tmpfs data
        head -c 1M /dev/zero > data/full 2> /dev/null || true
        {} latency 127.0.0.1 -p {} -n 10 --json
        echo left: $(ls -A data/linerate/runs) >&2",
        crate::common::LINERATE,
        server.port
    );
    match unshare_command(&dir, "--mount", &["sh", "-c", &script]) {
        Err(why) => skip!("no mount namespace: {why}"),
        Ok(mut command) => {
            let output = finish(&mut command);
            assert_valid_record(&output.json());
            assert!(output.stderr.contains("warning"), "{output:?}");
            assert!(
                output.stderr.ends_with("left:\n"),
                "half a file: {output:?}"
            );
        }
    }
}

#[test]
fn a_full_disk_stops_no_server() {
    let dir = TestDir::new();
    fs::create_dir_all(dir.path().join("data")).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size=32k tmpfs data
        head -c 1M /dev/zero > data/full 2> /dev/null || true
        exec {} server -p 0 -B 127.0.0.1",
        crate::common::LINERATE,
    );
    let mut command = match unshare_command(&dir, "--mount", &["sh", "-c", &script]) {
        Err(why) => skip!("no mount namespace: {why}"),
        Ok(command) => command,
    };
    let mut server = LinerateServer::start(&mut command);
    for _ in 0..2 {
        let mut client =
            std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("a server");
        client.write_all(&[b'x'; 100 << 10]).expect("it reads");
        drop(client);
        let summary = server
            .running
            .wait_line(|line| line.contains("TCP from") && line.contains("KiB"));
        assert!(summary.contains("100 KiB"), "{summary}");
    }
    let output = server.stop().expect(0);
    assert_eq!(output.stderr.matches("warning: ").count(), 2, "{output:?}");
}

/// A result that could not be printed is an error.
#[test]
fn standard_output_on_a_full_disk() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let args = format!(
        "latency 127.0.0.1 -p {} -n 10 --json --no-store",
        server.port
    );
    let mut child = dir
        .linerate(&args)
        .stdout(
            fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .expect("a full device"),
        )
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stderr = std::io::read_to_string(child.stderr.take().expect("piped")).expect("text");
    let status = child.wait().expect("it ends");
    assert!(stderr.contains("standard output"), "{stderr}");
    assert_eq!(status.code(), Some(1), "{stderr}");
}

#[test]
fn repeats_give_the_median_and_its_interval() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let args = format!("latency 127.0.0.1 -p {} -u -n 50 --repeat 3", server.port);
    let set = dir.run(&format!("{args} --json")).expect(0).json();
    assert_eq!(set["schema"], "linerate/set/1");
    let runs = set["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3);
    runs.iter().for_each(assert_valid_record);
    let median = &set["result"]["figures"]["p50"];
    let bound = |name: &str| median[name].as_f64().unwrap_or_else(|| panic!("{median}"));
    assert!(bound("low") <= bound("median") && bound("median") <= bound("high"));
    assert_eq!(median["runs"], 3);
    // Each run, and the set.
    assert_eq!(dir.stored().len(), 4);
    let text = dir.run(&args).expect(0).stdout;
    assert!(text.contains("median"), "{text}");
    // The expectation applies to the median.
    dir.run(&format!("{args} --expect p50<1s")).expect(0);
    dir.run(&format!("{args} --expect p50<1ns")).expect(3);
}

#[test]
fn expectations_decide_the_exit_code() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let latency = format!("latency 127.0.0.1 -p {} -n 50", server.port);
    let throughput = format!("throughput 127.0.0.1 -p {} -t 0.2 -b 20M", server.port);
    for (args, code, missed) in [
        (format!("{latency} --expect p99<10s"), 0, ""),
        (format!("{latency} --expect p99<1ns"), 3, "p99<1ns"),
        (format!("{latency} --expect p50<10s --expect lost=0"), 0, ""),
        (
            format!("{latency} --expect p50<10s --expect max<1ns"),
            3,
            "max<1ns",
        ),
        (format!("{throughput} --expect goodput>1k"), 0, ""),
        (format!("{throughput} --expect goodput>1T"), 3, "goodput>1T"),
        (
            format!("{throughput} -u --expect pps>1000G"),
            3,
            "pps>1000G",
        ),
    ] {
        let text = dir.run(&args).expect(code);
        assert!(text.stdout.contains(missed), "{text:?}");
        // A note of a busy machine may also report a missed rate.
        let is_missed = text.stdout.lines().any(|line| line.starts_with("not met"));
        assert_eq!(is_missed, code == 3, "{text:?}");
        let json = dir.run(&format!("{args} --json")).expect(code);
        assert_valid_record(&json.json());
        assert!(json.stderr.contains(missed), "{json:?}");
    }
}

#[test]
fn a_client_waits_for_its_server() {
    let dir = TestDir::new();
    let deaf = ClosedPort::new();
    let port = deaf.port;
    let args = format!("latency 127.0.0.1 -p {port} -n 10");
    let started_at = std::time::Instant::now();
    dir.run(&format!("{args} --retry 0.5")).expect(5);
    assert!(started_at.elapsed() >= Duration::from_millis(500));
    let client = RunningCommand::start(&mut dir.linerate(&format!("{args} --retry 150 --json")));
    // An attempt until now was refused; otherwise the first attempt comes later.
    std::thread::sleep(Duration::from_millis(300));
    drop(deaf);
    let server = dir.linerate(&format!("server -p {port} -B 127.0.0.1 -1"));
    let server = LinerateServer::start(&mut { server });
    assert_valid_record(&client.wait().expect(0).json());
    server.running.wait().expect(0);
}

#[test]
fn a_server_for_one_test() {
    let dir = TestDir::new();
    for (form, args) in [
        ("", "latency -u -n 20"),
        ("--json-stream", "throughput -t 0.2 -b 10M"),
    ] {
        let server = dir.server(&format!("-1 {form}"));
        dir.run(&format!("{args} 127.0.0.1 -p {}", server.port))
            .expect(0);
        server.running.wait().expect(0);
    }
    // One JSON document on standard output: the ready line goes to standard error.
    let mut command = dir.linerate("server -1 -p 0 --json");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    stderr.read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).expect("the ready line");
    assert_eq!(ready["event"], "ready", "{ready}");
    dir.run(&format!("latency 127.0.0.1 -p {} -n 20", ready["port"]))
        .expect(0);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let record: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_valid_record(&record);
    assert_eq!(record["hosts"][1]["role"], "server");
}

/// Unrelated connections and failed attempts do not count as the one test.
#[test]
fn a_server_for_one_test_waits_for_a_real_one() {
    let dir = TestDir::new();
    let server = dir.server("-1");
    drop(std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("it listens"));
    let args = format!("latency 127.0.0.1 -p {}", server.port);
    dir.run(&format!("{args} --cpu 0/8000")).expect(4);
    dir.run(&format!("{args} -n 10")).expect(0);
    server.running.wait().expect(0);
}

/// Options of a measurement arrive in its plan, from the command line and from the environment.
#[test]
fn options_and_variables() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let port = server.port.to_string();
    let run_with = |variables: &[(&str, &str)], args: &str| -> Value {
        let mut command = dir.linerate(args);
        command.envs(variables.iter().copied());
        finish(&mut command).expect(0).json()
    };
    let from_args = run_with(
        &[],
        &format!(
            "latency localhost -p {port} -u -n 20 -l 100 -i 0 -w 100K --wait spin/block --cpu 0 --timeout 2 -4 --json"
        ),
    );
    let from_environment = run_with(
        &[
            ("LINERATE_HOST", "localhost"),
            ("LINERATE_PORT", &port),
            ("LINERATE_UDP", "true"),
            ("LINERATE_COUNT", "20"),
            ("LINERATE_LENGTH", "100"),
            ("LINERATE_INTERVAL", "0"),
            ("LINERATE_WINDOW", "100K"),
            ("LINERATE_WAIT", "spin/block"),
            ("LINERATE_CPU", "0"),
            ("LINERATE_TIMEOUT", "2"),
            ("LINERATE_IPV4", "true"),
            ("LINERATE_JSON", "true"),
        ],
        "latency",
    );
    assert_eq!(from_args["plan"], from_environment["plan"]);
    let plan = &from_args["plan"];
    for (name, expected) in [
        ("host", Value::from("localhost")),
        ("protocol", "udp".into()),
        ("round_trips", 20.into()),
        ("payload_bytes", 100.into()),
        ("interval_ns", Value::Null),
        ("duration_ns", Value::Null),
        ("window_bytes", (100 * 1024).into()),
        ("response_timeout_ns", 2_000_000_000_u64.into()),
    ] {
        assert_eq!(plan[name], expected, "{name}");
    }
    assert_eq!(plan["wait"]["client"], "spin");
    assert_eq!(plan["wait"]["server"], "block");
    assert_eq!(from_args["summary"]["round_trips"], 20);
    assert_eq!(from_args["summary"]["mismatched"], 0);
    // The command line wins over the environment.
    let mixed = run_with(
        &[("LINERATE_LENGTH", "100")],
        &format!("latency 127.0.0.1 -p {port} -n 10 -l 200 --json"),
    );
    assert_eq!(mixed["plan"]["payload_bytes"], 200);
}

/// Usual values of a switch: 1 is yes; 0 and empty are no.
#[test]
fn switches_in_the_environment() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    for (value, json) in [
        ("1", true),
        ("yes", true),
        ("0", false),
        ("no", false),
        ("", false),
    ] {
        let mut command = dir.linerate(&format!("latency 127.0.0.1 -p {} -n 10", server.port));
        let output = finish(command.env("LINERATE_JSON", value)).expect(0);
        assert_eq!(output.stdout.starts_with('{'), json, "{value}: {output:?}");
    }
}

#[test]
fn amounts_arrive_completely() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    for args in ["-n 10M", "-n 10M -R -P 3", "-n 10M --bidir"] {
        let args = format!("throughput 127.0.0.1 -p {} {args} --json", server.port);
        let record = dir.run(&args).expect(0).json();
        assert_valid_record(&record);
        for direction in record["directions"].as_array().expect("directions") {
            assert_eq!(direction["bytes_received"], 10 << 20, "{args}");
        }
    }
}

/// A rate of few datagrams or writes is offered and received as requested.
#[test]
fn low_rates_are_reached() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    for args in ["-u -b 1M", "-u -b 200k -l 1000", "-b 1M", "-u -R -b 1M"] {
        let args = format!("throughput 127.0.0.1 -p {} -t 1 {args} --json", server.port);
        let summary = &dir.run(&args).expect(0).json()["summary"];
        let requested_bps = if args.contains("200k") { 2e5 } else { 1e6 };
        for figure in ["goodput_bps", "offered_bps"] {
            let ratio = summary[figure].as_f64().expect("a rate") / requested_bps;
            assert!((0.4..1.6).contains(&ratio), "{args}: {figure}: {summary:#}");
        }
        for end in summary["cpu"].as_array().expect("both ends") {
            let share = end["share"].as_f64().expect("a share");
            assert!(share < 4.0, "one thread: {args}: {summary:#}");
        }
    }
}

#[test]
fn addresses() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let port = server.port;
    let mut cases = vec![
        (
            format!("latency 127.0.0.1 -p {port} -B 127.0.0.5"),
            "127.0.0.5:",
        ),
        (
            format!("latency 127.0.0.1 -p {port} -u -B 127.0.0.5%lo"),
            "127.0.0.5:",
        ),
        (
            format!("throughput 127.0.0.1 -p {port} -B %lo"),
            "127.0.0.1:",
        ),
    ];
    if std::net::TcpListener::bind(("::1", 0)).is_ok() {
        cases.push((format!("latency ::1 -p {port} -u"), "[::1]:"));
        cases.push((format!("throughput ::1 -6 -p {port} -B ::1"), "[::1]:"));
    } else {
        println!("skipped: no IPv6 on loopback");
    }
    for (args, local) in cases {
        let amount = if args.starts_with("latency") {
            "-n 20"
        } else {
            "-n 1M"
        };
        let record = dir.run(&format!("{args} {amount} --json")).expect(0).json();
        let socket = &record["directions"][0]["streams"][0]["sender"]["local"];
        let socket = socket.as_str().unwrap_or_else(|| panic!("{record:#}"));
        assert!(socket.starts_with(local), "{args}: {socket}");
    }
}

#[test]
fn colours() {
    let dir = TestDir::new();
    let server = dir.server("--no-store");
    let args = format!(
        "latency 127.0.0.1 -p {} -n 10 --expect p50<10s",
        server.port
    );
    for (variables, option, coloured) in [
        (&[][..], "", false),
        (&[], "--color always", true),
        (&[("CLICOLOR_FORCE", "1")], "", true),
        (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], "", false),
        (&[("NO_COLOR", "1")], "--color always", true),
        (&[("CLICOLOR_FORCE", "1")], "--color never", false),
    ] {
        let mut command = dir.linerate(&format!("{args} {option}"));
        command.envs(variables.iter().copied());
        let output = finish(&mut command).expect(0);
        assert_eq!(
            output.stdout.contains('\x1b'),
            coloured,
            "{variables:?} {option}: {output:?}"
        );
    }
}

#[test]
fn many_tests_at_a_time() {
    let (client_dir, server_dir) = (TestDir::new(), TestDir::new());
    let server = server_dir.server("-q");
    let clients: Vec<_> = [
        "latency -u",
        "latency",
        "throughput -u -b 10M",
        "throughput -R -b 10M",
    ]
    .into_iter()
    .map(|args| {
        let args = format!("{args} 127.0.0.1 -p {} -t 0.5 --json", server.port);
        RunningCommand::start(&mut client_dir.linerate(&args))
    })
    .collect();
    for client in clients {
        assert_valid_record(&client.wait().expect(0).json());
    }
    for _ in 0..5 {
        client_dir
            .run(&format!("latency 127.0.0.1 -p {} -n 5", server.port))
            .expect(0);
    }
    server.stop().expect(0);
    assert_eq!(client_dir.stored().len(), 9);
    let records = server_dir.stored();
    assert_eq!(records.len(), 9);
    records.iter().for_each(assert_valid_record);
}

#[test]
fn a_server_keeps_no_privilege_that_its_grants_do_not_need() {
    if !is_root() {
        skip!("an unprivileged user has none to give up");
    }
    let dir = TestDir::new();
    let effective = |server: &crate::common::LinerateServer| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.running.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        u64::from_str_radix(line.expect("CapEff").trim(), 16).unwrap()
    };
    // linux/capability.h: CAP_PERFMON is 38, CAP_SYS_NICE 23.
    let (perfmon, nice) = (1 << 38, 1 << 23);
    for (args, allowed) in [
        ("-B 127.0.0.1", perfmon),
        ("-B 127.0.0.1 --grant sched", perfmon | nice),
    ] {
        let server = dir.server(args);
        assert_eq!(effective(&server) & !allowed, 0, "{args}");
        server.stop().expect(0);
    }
}

#[test]
fn the_ready_line() {
    let dir = TestDir::new();
    for args in ["-B 127.0.0.1", "-4", ""] {
        let server_output = dir.server(args).stop().expect(0).stdout;
        let line = server_output.lines().next().expect("a line").to_owned();
        let mut parts = line.split(' ');
        assert_eq!(parts.next(), Some("READY"), "{line}");
        let port = parts.next().and_then(|part| part.strip_prefix("port="));
        assert!(
            port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0)),
            "{line}"
        );
        let address = parts.next().and_then(|part| part.strip_prefix("address="));
        let address = address.unwrap_or_else(|| panic!("{line}"));
        if args == "-B 127.0.0.1" {
            assert_eq!(address, "127.0.0.1");
        }
    }
}

#[test]
fn doctor() {
    let dir = TestDir::new();
    let text = dir.run("doctor").expect(0).stdout;
    assert!(text.lines().count() > 10, "{text}");
    let document = dir.run("doctor --json").expect(0).json();
    let checks = document["checks"].as_array().expect("checks");
    assert!(checks.len() > 10, "{document:#}");
}
