//! Our client against reference servers: iperf3, iperf, nuttcp and sockperf, and the C file for
//! devices. Both sides must report the same counts.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use crate::common::{
    FinishedCommand, RunningCommand, TIME_LIMIT, TestDir, TestLab, assert_record, check_command,
    finish, free_port, number_at, skip, wait_until,
};
use serde_json::Value;

/// Two hosts and a link between them.
struct PeerLab {
    lab: TestLab,
}

impl PeerLab {
    fn up(test: &str) -> Result<Self, String> {
        let link = "[[links]]\nbetween = [\"client\", \"server\"]\n";
        let lab = TestLab::pair(&format!("peer-{test}"), link)?;
        Ok(Self { lab })
    }

    fn command_on(&self, host: &str, args: &[&str]) -> Command {
        self.lab.command_on(host, args)
    }

    /// Starts a server and waits until its port is bound.
    fn start_server(&self, line: &str, protocol: &str, port: u16) -> RunningCommand {
        let args: Vec<_> = line.split_whitespace().collect();
        let server = RunningCommand::start(&mut self.command_on("server", &args));
        // Sockets of the previous server may still be in TIME_WAIT at this port: only a listener
        // counts.
        let listen_state = if protocol == "tcp" {
            "[0-9A-F]*:0000 0A"
        } else {
            ""
        };
        let is_bound = format!(
            "grep -qi ':{port:04X} {listen_state}' /proc/net/{protocol} /proc/net/{protocol}6"
        );
        wait_until(line, || {
            let status = self.command_on("server", &["sh", "-c", &is_bound]).output();
            status.is_ok_and(|status| status.status.success())
        });
        server
    }

    fn client(&self, args: &str) -> Command {
        let (command, rest) = args.split_once(' ').unwrap_or((args, ""));
        (self.lab).linerate("client", &format!("{command} 10.77.0.2 {rest}"))
    }

    #[track_caller]
    fn run(&self, args: &str) -> FinishedCommand {
        finish(&mut self.client(args))
    }

    #[track_caller]
    fn record(&self, args: &str) -> Value {
        let output = self.run(&format!("{args} --json"));
        assert_eq!(output.exit_code(), 0, "{args}: {output:#?}");
        let record = output.json();
        assert_record(&record);
        record
    }
}

macro_rules! peer_lab {
    ($test:literal, $($program:expr),+) => {{
        $(if let Err(why) = check_command(Command::new("sh").args(["-c", concat!("command -v ", $program)])) {
            skip!("{why}");
        })+
        match PeerLab::up($test) {
            Ok(pair) => pair,
            Err(why) => skip!("{why}"),
        }
    }};
}

#[track_caller]
fn assert_close(own_count: f64, peer_count: f64, context: &str) {
    assert!(
        (own_count - peer_count).abs() <= 0.02 * peer_count.abs(),
        "{context}: ours {own_count}, theirs {peer_count}"
    );
}

/// Checks that sent equals received plus lost, and that something arrived: the machine may be busy.
#[track_caller]
fn check_sum(summary: &Value, context: &str) {
    let (sent, lost) = (
        number_at(summary, "/packets_sent"),
        number_at(summary, "/lost"),
    );
    assert_eq!(
        sent,
        number_at(summary, "/packets_received") + lost,
        "{context}: {summary:#}"
    );
    assert!(lost < sent, "{context}: {summary:#}");
}

#[track_caller]
fn has_caveat(record: &Value, caveat: &str) -> bool {
    let validity = record["validity"].as_array().expect("a list");
    validity.iter().any(|entry| entry["doubt"] == caveat)
}

#[test]
fn iperf3_counts_the_same() {
    let pair = peer_lab!("iperf3", "iperf3");
    for (options, sends, receives, udp) in [
        ("-n 20M", true, false, false),
        ("-n 20M -P 3", true, false, false),
        ("-n 20M -R", false, true, false),
        ("-t 2 -b 40M", true, false, false),
        ("-t 2 -u -b 20M", true, false, true),
        ("-t 2 -u -b 20M -R", false, true, true),
        ("-t 2 -u -b 20M --bidir -P 2", true, true, true),
        ("-t 2 -b 40M --bidir", true, true, false),
        // The client ends the test between two whole seconds.
        ("-t 0.5 -R", false, true, false),
        ("-t 1.5 -u -b 20M -R", false, true, true),
    ] {
        let server = pair.start_server("iperf3 -s -1 -J", "tcp", 5201);
        let record = pair.record(&format!("throughput --peer iperf3 {options} -i 0.5"));
        let report = server.wait();
        let peer_report: Value = serde_json::from_str(&report.stdout).expect("iperf3's JSON");
        assert_eq!(record["plan"]["peer_protocol"], "iperf3");
        assert_eq!(record["hosts"].as_array().map(Vec::len), Some(1));
        for direction in record["directions"].as_array().expect("a list") {
            let send = direction["direction"] == "send";
            assert!(if send { sends } else { receives }, "{options}");
            let (sent, received) = (
                number_at(direction, "/bytes_sent"),
                number_at(direction, "/bytes_received"),
            );
            assert!(
                received > 0.0 && received <= sent,
                "{options}: {direction:#}"
            );
            if !udp && record["plan"]["amount_bytes"].is_u64() && send {
                assert_eq!(sent, received, "{options}");
            }
            if udp {
                check_sum(direction, options);
            }
            // The server's own report.
            let sum = match (sends && receives, send) {
                (true, false) => "sum_sent_bidir_reverse",
                _ if send => "sum_received",
                _ => "sum_sent",
            };
            let end = &peer_report["end"][sum];
            if let Some(bytes) = end["bytes"].as_f64().filter(|_| !udp) {
                let own_bytes = if send { received } else { sent };
                assert_eq!(own_bytes, bytes, "{options} {sum}");
                assert_close(
                    own_bytes * 8.0 / number_at(end, "/seconds"),
                    number_at(end, "/bits_per_second"),
                    options,
                );
            }
            if record["plan"]["rate_bps"].is_u64() {
                // Busy machines send less, but never more.
                let rate =
                    number_at(&record, "/plan/rate_bps") * number_at(&record, "/plan/streams");
                assert!(
                    number_at(direction, "/goodput_bps") < 1.1 * rate,
                    "{options}: {direction:#}"
                );
            }
        }
        assert!(record["server_text"].is_string() || record["server_text"].is_null());
    }
}

/// A server that listens on all addresses replies from its first one.
#[test]
fn replies_of_another_address_are_named() {
    let pair = peer_lab!("other-address", "iperf3");
    let second = "ip address add 10.77.0.77/24 dev eth0";
    if let Err(reason) = pair.lab.shell("server", second) {
        skip!("{reason}");
    }
    let _server = pair.start_server("iperf3 -s", "tcp", 5201);
    let args = "throughput 10.77.0.77 --peer iperf3 -u -b 1M -t 1";
    let output = finish(&mut pair.lab.linerate("client", args)).expect(5);
    let text = crate::common::join_lines(&output.stderr);
    assert!(text.contains("from another address, 10.77.0.2"), "{text}");
}

#[test]
fn iperf2_counts_the_same_in_both_layouts() {
    let pair = peer_lab!("iperf2", "iperf");
    for protocol in ["iperf2", "iperf2-legacy"] {
        let server = pair.start_server("iperf -s -y C -P 1", "tcp", 5001);
        let record = pair.record(&format!("throughput --peer {protocol} -n 20M"));
        let line = server.wait().stdout;
        let peer_bytes: Option<f64> = line
            .trim()
            .split(',')
            .nth(7)
            .and_then(|field| field.parse().ok());
        let peer_bytes: f64 = peer_bytes.unwrap_or_default();
        let own_bytes = number_at(&record, "/summary/bytes_sent");
        // Without a header a reference server does not count the first four bytes, which it peeked
        // at.
        let peeked_bytes = if protocol == "iperf2" { 0.0 } else { 4.0 };
        assert!(
            (0.0..=peeked_bytes).contains(&(own_bytes - peer_bytes)),
            "{own_bytes}: {line}"
        );
        assert_eq!(own_bytes, number_at(&record, "/summary/bytes_received"));
        assert!(has_caveat(&record, "counted-by-acknowledgement"));

        let server = pair.start_server("iperf -s -u -y C -P 1", "udp", 5001);
        let record = pair.record(&format!("throughput --peer {protocol} -u -b 20M -t 2"));
        let line = server.wait().stdout;
        let fields: Vec<f64> = (line.trim().split(','))
            .filter_map(|field| field.parse().ok())
            .collect();
        assert!(!fields.is_empty(), "{line}");
        let summary = &record["summary"];
        check_sum(summary, &line);
        assert!(summary["ipdv_ns"].is_number() && summary["duplicates"].is_null());
        // The server's count is in the eighth column and includes the last datagram. A rate would
        // depend on when two programs on a busy machine read their clocks.
        let peer_bytes = (line.trim().split(','))
            .nth(7)
            .and_then(|field| field.parse().ok());
        let own_bytes = number_at(summary, "/bytes_received") + 1470.0;
        assert_close(own_bytes, peer_bytes.unwrap_or_default(), &line);
    }
    let server = pair.start_server("iperf -s -P 1", "tcp", 5001);
    let record = pair.record("throughput --peer iperf2 -t 1 -R");
    assert!(number_at(&record, "/summary/bytes_received") > 0.0);
    assert!(record["summary"]["bytes_sent"].is_null());
    drop(server);
    let server = pair.start_server("iperf -s", "tcp", 5001);
    let record = pair.record("latency --peer iperf2 -n 500 -l 100");
    assert_eq!(record["summary"]["round_trips"], 500);
    assert_eq!(record["summary"]["mismatched"], 0);
    drop(server);
    // Over UDP alone no TCP port shows the protocol.
    let _server = pair.start_server("iperf -s -u", "udp", 5001);
    let record = pair.record("throughput --peer auto -u -b 10M -t 1");
    assert_eq!(record["plan"]["peer_protocol"], "iperf2");
    assert!(number_at(&record, "/summary/bytes_received") > 0.0);
}

#[test]
fn nuttcp_counts_the_same() {
    let pair = peer_lab!("nuttcp", "nuttcp");
    let server = pair.start_server("nuttcp -S --nofork", "tcp", 5000);
    for options in ["-n 20M", "-n 20M -R", "-u -b 20M -t 2", "-u -b 20M -t 2 -R"] {
        let record = pair.record(&format!("throughput --peer nuttcp {options}"));
        let summary = &record["summary"];
        let (sent, received) = (
            number_at(summary, "/bytes_sent"),
            number_at(summary, "/bytes_received"),
        );
        if options.contains("-u") {
            check_sum(summary, options);
        } else {
            // Its report is rounded to 100 B.
            assert!((sent - received).abs() <= 100.0, "{options}: {summary:#}");
        }
        let text = record["server_text"].as_str().expect("its report");
        assert!(text.contains("real seconds"), "{text}");
        // Count in the report: a rate would depend on when two programs on a busy machine read
        // their clocks.
        let count = text.split_whitespace().rev();
        let count = count.skip_while(|word| *word != "MB").nth(1);
        let peer_bytes = count.and_then(|word| word.parse::<f64>().ok());
        let peer_bytes =
            peer_bytes.unwrap_or_else(|| panic!("no count in {text}")) * f64::from(1 << 20);
        assert_close(
            if options.contains("-R") {
                sent
            } else {
                received
            },
            peer_bytes,
            text,
        );
    }
    // Its data port is in use: it reports that, and there is no figure.
    drop(server);
    let binary = pair.lab.dir.binary();
    let holder = format!("{} ttcp -r --no-store", binary.display());
    let _holder = pair.start_server(&holder, "tcp", 5001);
    let _server = pair.start_server("nuttcp -S", "tcp", 5000);
    let output = pair.run("throughput --peer nuttcp -t 1 --json");
    assert_eq!(output.exit_code(), 5, "{output:#?}");
    let problem = output.json()["error"].clone();
    let situation = problem["situation"].as_str().expect("what happened");
    assert!(situation.contains("bind"), "{problem:#}");
}

#[test]
fn sockperf_replies_over_both_protocols() {
    let pair = peer_lab!("sockperf", "sockperf");
    for (server, protocol, options) in [
        ("sockperf server -p 11111", "udp", "-u"),
        ("sockperf server --tcp -p 11111", "tcp", ""),
    ] {
        let running = pair.start_server(server, protocol, 11111);
        for peer in ["sockperf", "auto"] {
            let args = format!("latency --peer {peer} {options} -n 1000 -l 200 -p 11111");
            let record = pair.record(&args);
            assert_eq!(record["plan"]["peer_protocol"], "sockperf", "{args}");
            assert_eq!(record["summary"]["round_trips"], 1000, "{args}");
            assert_eq!(record["summary"]["mismatched"], 0, "{args}");
        }
        if protocol == "tcp" {
            let output = pair.run("throughput --peer auto -t 1 -p 11111 --json");
            assert_eq!(output.exit_code(), 5, "{output:#?}");
            let error = output.json()["error"].to_string();
            assert!(
                error.contains("sockperf") && error.contains("latency"),
                "{error}"
            );
        }
        drop(running);
    }
}

#[test]
fn the_file_for_devices_compiles_and_serves() {
    let pair = peer_lab!("target", "cc");
    for stamps in ["", "--stamps"] {
        let code = pair.lab.dir.run(&format!("target-code {stamps}")).expect(0);
        fs::write(pair.lab.dir.path().join("target.c"), code.stdout).expect("a file");
        let args = "-std=c99 -Wall -Wextra -pedantic -Werror -O2 -o target target.c";
        finish(&mut pair.lab.dir.command("cc", args.split_whitespace())).expect(0);
        let target = pair.lab.dir.path().join("target");
        let console = pair.lab.dir.path().join("console");
        // Output of the previous server must not be read for this one's.
        let _ = fs::remove_file(&console);
        let line = format!("exec {} > {}", target.display(), console.display());
        let server = RunningCommand::start(&mut pair.command_on("server", &["sh", "-c", &line]));
        wait_until("the target", || {
            fs::read_to_string(&console).is_ok_and(|text| text.contains("ready"))
        });
        if !stamps.is_empty() {
            for more in ["", "--outstanding 4", "-l 1000"] {
                let args = format!("latency --peer echo -u -n 500 --device-stamps 16 {more}");
                let record = pair.record(&args);
                assert_eq!(record["summary"]["round_trips"], 500, "{args}");
                assert_eq!(record["summary"]["mismatched"], 0, "{args}");
                let share = number_at(&record, "/summary/device/share");
                assert!(share > 0.0 && share < 1.0, "{args}: {share}");
                let inside = number_at(&record, "/summary/device/device_ns/mean");
                let around = number_at(&record, "/summary/device/outside_ns/mean");
                let rtt_ns = number_at(&record, "/summary/rtt_ns/mean");
                assert!((inside + around - rtt_ns).abs() < 2.0, "{args}: {record:#}");
            }
            // Unread timestamps are ordinary bytes, and their position suggests what they may be.
            let record = pair.record("latency --peer echo -u -n 500");
            assert!(
                has_caveat(&record, "device-timestamps-unread"),
                "{record:#}"
            );
            // Read with a wrong frequency they are impossible, and a warning reports it.
            let record = pair.record("latency --peer echo -u -n 500 --device-stamps 16,hz=1k");
            assert!(
                has_caveat(&record, "device-timestamps-impossible"),
                "{record:#}"
            );
            let record = pair.record("latency --peer echo -u -n 500 -l 99 --device-stamps 70");
            assert!(
                has_caveat(&record, "device-timestamps-missing"),
                "{record:#}"
            );
            drop(server);
            continue;
        }
        let record = pair.record("throughput --peer discard -n 5M");
        assert_eq!(record["summary"]["bytes_received"], 5 << 20);
        assert!(has_caveat(&record, "counted-by-acknowledgement"));

        // The count is on the device's console a second after the last datagram. A device that is
        // descheduled in between loses some, or reports in two parts.
        let count_command = format!("grep -c '^sink udp' {}", console.display());
        let before = finish(&mut pair.lab.dir.command("sh", ["-c", &count_command])).stdout;
        let report_command = format!(
            "until [ $({count_command}) -gt {} ]; do sleep 0.1; done; tail -n 1 {},(?P<bytes>[0-9]+) bytes in \
             (?P<packets>[0-9]+)",
            before.trim(),
            console.display()
        );
        let mut client =
            pair.client("throughput --peer discard -u -b 10M -t 1 --json --far-report");
        let summary = finish(client.arg(&report_command)).expect(0).json()["summary"].take();
        let (sent, received) = (
            number_at(&summary, "/packets_sent"),
            number_at(&summary, "/packets_received"),
        );
        assert!(received > 0.0 && received <= sent, "{summary:#}");
        let loss = number_at(&summary, "/loss_fraction");
        assert!(
            (loss - (sent - received) / sent).abs() < 1e-6,
            "{summary:#}"
        );

        // An impossible count is rejected.
        for report_command in ["exit 3", "echo 99999999999 bytes"] {
            let mut client =
                pair.client("throughput --peer discard -u -b 10M -t 1 --json --far-report");
            let output = finish(client.arg(report_command)).expect(1);
            let record = output.json();
            assert!(
                has_caveat(&record, "remote-report-failed"),
                "{report_command}"
            );
            assert!(
                record["summary"]["goodput_bps"].is_null(),
                "{report_command}"
            );
            assert!(
                output.stderr.contains("--far-report"),
                "{report_command}: {output:#?}"
            );
        }

        let record = pair.record("throughput --peer chargen -R -t 1");
        assert!(number_at(&record, "/summary/goodput_bps") > 0.0);
        for options in ["", "-u"] {
            let record = pair.record(&format!("latency --peer echo {options} -n 500 -l 300"));
            assert_eq!(record["summary"]["round_trips"], 500);
            assert_eq!(record["summary"]["mismatched"], 0);
        }
        let record = pair.record("latency --peer auto -p 7 -u -n 100");
        assert_eq!(record["plan"]["peer_protocol"], "echo");
        drop(server);
    }
}

/// Silent clients block the places of others only for a while, and truncated packets are reported.
#[test]
fn a_device_frees_idle_places_and_reports_truncated_packets() {
    let dir = TestDir::new();
    let code = dir.run("target-code").expect(0);
    fs::write(dir.path().join("target.c"), code.stdout).expect("a file");
    let args = "-std=c99 -Wall -Wextra -pedantic -Werror -O2 -DLINERATE_IDLE_S=2 -DLINERATE_CONNECTIONS=2 \
                 -DLINERATE_BUFFER_BYTES=512 -o target target.c";
    let compiled = dir.command("cc", args.split_whitespace()).output();
    match compiled {
        Err(_) => skip!("there is no cc"),
        Ok(done) => assert!(done.status.success(), "{done:?}"),
    }
    let target = dir.path().join("target");
    for args in [&["--help"][..], &["0"], &["70000"], &["1", "2", "3", "4"]] {
        let rejected = finish(&mut dir.command(&target, args)).expect(2);
        assert!(rejected.stdout.starts_with("usage: "), "{rejected:?}");
    }
    let ports = [(); 3].map(|()| free_port());
    let [sink, _, echo] = ports;
    let mut command = dir.command(&target, ports.map(|port| port.to_string()));
    let mut device = RunningCommand::start(&mut command);
    device.wait_line(|line| line.starts_with("ready"));
    let silent = [(); 2].map(|()| TcpStream::connect(("127.0.0.1", echo)).expect("a place"));
    let mut third = TcpStream::connect(("127.0.0.1", echo)).expect("the listening queue");
    third.write_all(b"hello").expect("it is sent");
    third.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
    let mut reply = [0; 5];
    third.read_exact(&mut reply).expect("a place became free");
    assert_eq!(&reply, b"hello");
    drop(silent);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .send_to(&[0; 700], ("127.0.0.1", sink))
        .expect("it is sent");
    let report = device.wait_line(|line| line.starts_with("sink udp"));
    assert!(
        report.contains("1 of these packets filled the buffer of 512 bytes"),
        "{report}"
    );
    device.wait_line(|line| line.contains("512 bytes in 1 packets"));
}

#[test]
fn ttcp_is_the_classic_at_both_ends() {
    let pair = match PeerLab::up("ttcp") {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    let binary = pair.lab.dir.binary();
    let binary = binary.to_str().expect("a path in UTF-8");
    for (options, protocol) in [("", "tcp"), ("-u -l 1000 -n 300", "udp")] {
        let receiver = pair.start_server(
            &format!("{binary} ttcp -r -q --calls {options}"),
            protocol,
            5001,
        );
        let mut args = vec![binary, "ttcp", "-q", "-t", "10.77.0.2"];
        args.extend(options.split_whitespace());
        let sender = finish(&mut pair.command_on("client", &args)).expect(0);
        let received = receiver.wait().expect(0);
        let bytes = if options.is_empty() {
            16 << 20
        } else {
            300_000
        };
        for (text, name) in [(&sender.stdout, "ttcp-t"), (&received.stdout, "ttcp-r")] {
            let line = text.lines().next().unwrap_or_default();
            assert!(
                line.starts_with(&format!("{name}: {bytes} bytes in ")),
                "{line}"
            );
            assert!(line.ends_with(" KB/sec +++"), "{line}");
        }
    }
}

#[test]
fn failures_are_reported() {
    let pair = match PeerLab::up("wrong") {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    // Without a server.
    for args in [
        "throughput --peer iperf3",
        "throughput --peer nuttcp",
        "throughput --peer ttcp",
        "throughput --peer discard -u -t 1 -b 1M",
        "throughput --peer iperf2 -u -t 1 -b 1M",
        "throughput --peer auto",
        "latency --peer sockperf -u",
        "latency --peer echo",
    ] {
        let output = pair.run(&format!("{args} --json"));
        assert_eq!(output.exit_code(), 5, "{args}: {output:#?}");
    }
    // Options that a protocol does not support.
    for args in [
        "throughput --peer ttcp -R",
        "throughput --peer nuttcp --bidir",
        "throughput --peer nuttcp -P 2",
        "throughput --peer iperf2 -u --bidir",
        "throughput --peer chargen",
        "throughput --peer discard --far-report cat,(?P<bytes>\\d+",
        "throughput --peer iperf3 --verify",
        "latency --peer sockperf --rate 100/s",
        "latency --peer iperf3",
    ] {
        let output = pair.run(&format!("{args} --json"));
        assert_eq!(output.exit_code(), 2, "{args}: {output:#?}");
        let why = output.json()["error"]["situation"].clone();
        assert!(why.is_string(), "{args}");
    }
    // A server that is killed during the run, and Ctrl-C.
    if check_command(Command::new("sh").args(["-c", "command -v iperf3"])).is_err() {
        skip!("no iperf3 to kill");
    }
    let server = pair.start_server("iperf3 -s", "tcp", 5201);
    let mut client =
        RunningCommand::start(&mut pair.client("throughput --peer iperf3 -t 900 --json-stream"));
    client.wait_started();
    std::thread::sleep(Duration::from_millis(500));
    let killed = pair
        .command_on("server", &["sh", "-c", "kill -9 $(pidof iperf3)"])
        .output();
    assert!(killed.is_ok());
    let output = client.wait();
    assert_eq!(output.exit_code(), 5, "{output:#?}");
    drop(server);

    let _server = pair.start_server("iperf3 -s -p 5202", "tcp", 5202);
    let args = "throughput --peer iperf3 -p 5202 -t 900 --json-stream";
    let mut client = RunningCommand::start(&mut pair.client(args));
    client.wait_started();
    std::thread::sleep(Duration::from_millis(1_500));
    client.interrupt();
    let output = client.wait();
    assert_eq!(output.exit_code(), 130, "{output:#?}");
    let last = output.json_lines().pop().expect("a line");
    assert_eq!(last["record"]["interrupted"], true);
    assert!(number_at(&last["record"], "/summary/bytes_received") > 0.0);
}
