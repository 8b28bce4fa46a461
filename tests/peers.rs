//! Our client against reference servers: iperf3, iperf, nuttcp and sockperf, and the C file for
//! devices. Both sides must report the same counts.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use common::{
    Finished, LONG, Lab, Room, Running, finish, free_port, is_record, number, one_of, skip, soon,
    works,
};
use serde_json::Value;

/// Two hosts and a link between them.
struct Pair {
    lab: Lab,
}

impl Pair {
    fn up(test: &str) -> Result<Self, String> {
        let link = "[[links]]\nbetween = [\"client\", \"server\"]\n";
        let lab = Lab::pair(&format!("peer-{test}"), link)?;
        Ok(Self { lab })
    }

    fn on(&self, host: &str, words: &[&str]) -> Command {
        self.lab.on(host, words)
    }

    /// Starts a server and waits until its port is bound.
    fn serve(&self, line: &str, protocol: &str, port: u16) -> Running {
        let words: Vec<_> = line.split_whitespace().collect();
        let server = Running::start(&mut self.on("server", &words));
        // Sockets of the previous server may still be in TIME_WAIT at this port: only a listener
        // counts.
        let far = if protocol == "tcp" {
            "[0-9A-F]*:0000 0A"
        } else {
            ""
        };
        let held =
            format!("grep -qi ':{port:04X} {far}' /proc/net/{protocol} /proc/net/{protocol}6");
        soon(line, || {
            let asked = self.on("server", &["sh", "-c", &held]).output();
            asked.is_ok_and(|asked| asked.status.success())
        });
        server
    }

    fn client(&self, words: &str) -> Command {
        let (command, rest) = words.split_once(' ').unwrap_or((words, ""));
        (self.lab).linerate("client", &format!("{command} 10.77.0.2 {rest}"))
    }

    #[track_caller]
    fn run(&self, words: &str) -> Finished {
        finish(&mut self.client(words))
    }

    #[track_caller]
    fn record(&self, words: &str) -> Value {
        let ran = self.run(&format!("{words} --json"));
        assert_eq!(ran.code(), 0, "{words}: {ran:#?}");
        let record = ran.json();
        is_record(&record);
        record
    }
}

macro_rules! pair {
    ($test:literal, $($program:expr),+) => {{
        $(if let Err(why) = works(Command::new("sh").args(["-c", concat!("command -v ", $program)])) {
            skip!("{why}");
        })+
        match Pair::up($test) {
            Ok(pair) => pair,
            Err(why) => skip!("{why}"),
        }
    }};
}

#[track_caller]
fn close(ours: f64, theirs: f64, what: &str) {
    assert!(
        (ours - theirs).abs() <= 0.02 * theirs.abs(),
        "{what}: ours {ours}, theirs {theirs}"
    );
}

/// Checks that sent equals received plus lost, and that something arrived: the machine may be busy.
#[track_caller]
fn adds_up(summary: &Value, what: &str) {
    let (sent, lost) = (number(summary, "/packets_sent"), number(summary, "/lost"));
    assert_eq!(
        sent,
        number(summary, "/packets_received") + lost,
        "{what}: {summary:#}"
    );
    assert!(lost < sent, "{what}: {summary:#}");
}

#[track_caller]
fn doubted(record: &Value, doubt: &str) -> bool {
    let validity = record["validity"].as_array().expect("a list");
    validity.iter().any(|entry| entry["doubt"] == doubt)
}

#[test]
fn iperf3_counts_the_same() {
    let pair = pair!("iperf3", "iperf3");
    for (options, sends, receives, udp) in [
        ("-n 20M", true, false, false),
        ("-n 20M -P 3", true, false, false),
        ("-n 20M -R", false, true, false),
        ("-t 2 -b 40M", true, false, false),
        ("-t 2 -u -b 20M", true, false, true),
        ("-t 2 -u -b 20M -R", false, true, true),
        ("-t 2 -u -b 20M --bidir -P 2", true, true, true),
        ("-t 2 -b 40M --bidir", true, true, false),
    ] {
        let server = pair.serve("iperf3 -s -1 -J", "tcp", 5201);
        let record = pair.record(&format!("throughput --peer iperf3 {options} -i 0.5"));
        let report = server.wait();
        let theirs: Value = serde_json::from_str(&report.stdout).expect("iperf3's JSON");
        assert_eq!(record["plan"]["dialect"], "iperf3");
        assert_eq!(record["hosts"].as_array().map(Vec::len), Some(1));
        for way in record["directions"].as_array().expect("a list") {
            let send = way["direction"] == "send";
            assert!(if send { sends } else { receives }, "{options}");
            let (sent, received) = (number(way, "/bytes_sent"), number(way, "/bytes_received"));
            assert!(received > 0.0 && received <= sent, "{options}: {way:#}");
            if !udp && record["plan"]["amount_bytes"].is_u64() && send {
                assert_eq!(sent, received, "{options}");
            }
            if udp {
                adds_up(way, options);
            }
            // The server's own report.
            let sum = match (sends && receives, send) {
                (true, false) => "sum_sent_bidir_reverse",
                _ if send => "sum_received",
                _ => "sum_sent",
            };
            let end = &theirs["end"][sum];
            if let Some(bytes) = end["bytes"].as_f64().filter(|_| !udp) {
                let ours = if send { received } else { sent };
                assert_eq!(ours, bytes, "{options} {sum}");
                close(
                    ours * 8.0 / number(end, "/seconds"),
                    number(end, "/bits_per_second"),
                    options,
                );
            }
            if record["plan"]["rate_bps"].is_u64() {
                // Busy machines send less, but never more.
                let rate = number(&record, "/plan/rate_bps") * number(&record, "/plan/streams");
                assert!(
                    number(way, "/goodput_bps") < 1.1 * rate,
                    "{options}: {way:#}"
                );
            }
        }
        assert!(record["far_text"].is_string() || record["far_text"].is_null());
    }
}

#[test]
fn iperf2_counts_the_same_in_both_layouts() {
    let pair = pair!("iperf2", "iperf");
    for dialect in ["iperf2", "iperf2-legacy"] {
        let server = pair.serve("iperf -s -y C -P 1", "tcp", 5001);
        let record = pair.record(&format!("throughput --peer {dialect} -n 20M"));
        let line = server.wait().stdout;
        let theirs: Option<f64> = line
            .trim()
            .split(',')
            .nth(7)
            .and_then(|field| field.parse().ok());
        let theirs: f64 = theirs.unwrap_or_default();
        let ours = number(&record, "/summary/bytes_sent");
        // Without a header a reference server does not count the first four bytes, which it peeked
        // at.
        let looked_at = if dialect == "iperf2" { 0.0 } else { 4.0 };
        assert!(
            (0.0..=looked_at).contains(&(ours - theirs)),
            "{ours}: {line}"
        );
        assert_eq!(ours, number(&record, "/summary/bytes_received"));
        assert!(doubted(&record, "counted-by-acknowledgement"));

        let server = pair.serve("iperf -s -u -y C -P 1", "udp", 5001);
        let record = pair.record(&format!("throughput --peer {dialect} -u -b 20M -t 2"));
        let line = server.wait().stdout;
        let fields: Vec<f64> = (line.trim().split(','))
            .filter_map(|field| field.parse().ok())
            .collect();
        assert!(!fields.is_empty(), "{line}");
        let summary = &record["summary"];
        adds_up(summary, &line);
        assert!(summary["ipdv_ns"].is_number() && summary["duplicates"].is_null());
        // The server's count is in the eighth column and includes the last datagram. A rate would
        // depend on when two programs on a busy machine read their clocks.
        let theirs = (line.trim().split(','))
            .nth(7)
            .and_then(|field| field.parse().ok());
        let ours = number(summary, "/bytes_received") + 1470.0;
        close(ours, theirs.unwrap_or_default(), &line);
    }
    let server = pair.serve("iperf -s -P 1", "tcp", 5001);
    let record = pair.record("throughput --peer iperf2 -t 1 -R");
    assert!(number(&record, "/summary/bytes_received") > 0.0);
    assert!(record["summary"]["bytes_sent"].is_null());
    drop(server);
    let server = pair.serve("iperf -s", "tcp", 5001);
    let record = pair.record("latency --peer iperf2 -n 500 -l 100");
    assert_eq!(record["summary"]["round_trips"], 500);
    assert_eq!(record["summary"]["mismatched"], 0);
    drop(server);
    // Over UDP alone no TCP port shows the protocol.
    let _server = pair.serve("iperf -s -u", "udp", 5001);
    let record = pair.record("throughput --peer auto -u -b 10M -t 1");
    assert_eq!(record["plan"]["dialect"], "iperf2");
    assert!(number(&record, "/summary/bytes_received") > 0.0);
}

#[test]
fn nuttcp_counts_the_same() {
    let pair = pair!("nuttcp", "nuttcp");
    let server = pair.serve("nuttcp -S --nofork", "tcp", 5000);
    for options in ["-n 20M", "-n 20M -R", "-u -b 20M -t 2", "-u -b 20M -t 2 -R"] {
        let record = pair.record(&format!("throughput --peer nuttcp {options}"));
        let summary = &record["summary"];
        let (sent, received) = (
            number(summary, "/bytes_sent"),
            number(summary, "/bytes_received"),
        );
        if options.contains("-u") {
            adds_up(summary, options);
        } else {
            // Its report is rounded to 100 B.
            assert!((sent - received).abs() <= 100.0, "{options}: {summary:#}");
        }
        let text = record["far_text"].as_str().expect("its report");
        assert!(text.contains("real seconds"), "{text}");
        // Count in the report: a rate would depend on when two programs on a busy machine read
        // their clocks.
        let count = text.split_whitespace().rev();
        let count = count.skip_while(|word| *word != "MB").nth(1);
        let theirs = count.and_then(|word| word.parse::<f64>().ok());
        let theirs = theirs.unwrap_or_else(|| panic!("no count in {text}")) * f64::from(1 << 20);
        close(
            if options.contains("-R") {
                sent
            } else {
                received
            },
            theirs,
            text,
        );
    }
    // Its data port is in use: it reports that, and there is no figure.
    drop(server);
    let binary = pair.lab.room.binary();
    let holder = format!("{} ttcp -r --no-store", binary.display());
    let _holder = pair.serve(&holder, "tcp", 5001);
    let _server = pair.serve("nuttcp -S", "tcp", 5000);
    let ran = pair.run("throughput --peer nuttcp -t 1 --json");
    assert_eq!(ran.code(), 5, "{ran:#?}");
    let problem = ran.json()["error"].clone();
    let said = problem["situation"].as_str().expect("what happened");
    assert!(said.contains("bind"), "{problem:#}");
}

#[test]
fn sockperf_answers_over_both_protocols() {
    let pair = pair!("sockperf", "sockperf");
    for (server, protocol, options) in [
        ("sockperf server -p 11111", "udp", "-u"),
        ("sockperf server --tcp -p 11111", "tcp", ""),
    ] {
        let running = pair.serve(server, protocol, 11111);
        for dialect in ["sockperf", "auto"] {
            let words = format!("latency --peer {dialect} {options} -n 1000 -l 200 -p 11111");
            let record = pair.record(&words);
            assert_eq!(record["plan"]["dialect"], "sockperf", "{words}");
            assert_eq!(record["summary"]["round_trips"], 1000, "{words}");
            assert_eq!(record["summary"]["mismatched"], 0, "{words}");
        }
        if protocol == "tcp" {
            let ran = pair.run("throughput --peer auto -t 1 -p 11111 --json");
            assert_eq!(ran.code(), 5, "{ran:#?}");
            let error = ran.json()["error"].to_string();
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
    let pair = pair!("target", "cc");
    for stamps in ["", "--stamps"] {
        let code = pair
            .lab
            .room
            .run(&format!("target-code {stamps}"))
            .expect(0);
        fs::write(pair.lab.room.path().join("target.c"), code.stdout).expect("a file");
        let words = "-std=c99 -Wall -Wextra -pedantic -Werror -O2 -o target target.c";
        finish(&mut pair.lab.room.command("cc", words.split_whitespace())).expect(0);
        let target = pair.lab.room.path().join("target");
        let console = pair.lab.room.path().join("console");
        // Output of the previous server must not be read for this one's.
        let _ = fs::remove_file(&console);
        let line = format!("exec {} > {}", target.display(), console.display());
        let server = Running::start(&mut pair.on("server", &["sh", "-c", &line]));
        soon("the target", || {
            fs::read_to_string(&console).is_ok_and(|text| text.contains("ready"))
        });
        if !stamps.is_empty() {
            for more in ["", "--outstanding 4", "-l 1000"] {
                let words = format!("latency --peer echo -u -n 500 --device-stamps 16 {more}");
                let record = pair.record(&words);
                assert_eq!(record["summary"]["round_trips"], 500, "{words}");
                assert_eq!(record["summary"]["mismatched"], 0, "{words}");
                let share = number(&record, "/summary/device/share");
                assert!(share > 0.0 && share < 1.0, "{words}: {share}");
                let inside = number(&record, "/summary/device/device_ns/mean");
                let around = number(&record, "/summary/device/outside_ns/mean");
                let whole = number(&record, "/summary/rtt_ns/mean");
                assert!((inside + around - whole).abs() < 2.0, "{words}: {record:#}");
            }
            // Unread timestamps are ordinary bytes, and their position suggests what they may be.
            let record = pair.record("latency --peer echo -u -n 500");
            assert!(doubted(&record, "device-stamps-unread"), "{record:#}");
            // Read with a wrong frequency they are impossible, and a warning reports it.
            let record = pair.record("latency --peer echo -u -n 500 --device-stamps 16,hz=1k");
            assert!(doubted(&record, "device-stamps-impossible"), "{record:#}");
            let record = pair.record("latency --peer echo -u -n 500 -l 99 --device-stamps 70");
            assert!(doubted(&record, "device-stamps-missing"), "{record:#}");
            drop(server);
            continue;
        }
        let record = pair.record("throughput --peer discard -n 5M");
        assert_eq!(record["summary"]["bytes_received"], 5 << 20);
        assert!(doubted(&record, "counted-by-acknowledgement"));

        // The count is on the device's console a second after the last datagram. A device that is
        // descheduled in between loses some, or reports in two parts: such a run is repeated.
        let told = format!("grep -c '^sink udp' {}", console.display());
        one_of(5, || {
            let before = finish(&mut pair.lab.room.command("sh", ["-c", &told])).stdout;
            let ask = format!(
                "until [ $({told}) -gt {} ]; do sleep 0.1; done; tail -n 1 {},(?P<bytes>[0-9]+) bytes in \
                 (?P<packets>[0-9]+)",
                before.trim(),
                console.display()
            );
            let mut client =
                pair.client("throughput --peer discard -u -b 10M -t 1 --json --far-report");
            let ran = finish(client.arg(&ask));
            if ran.code() != 0 {
                return Err(format!("{ran:#?}"));
            }
            let summary = ran.json()["summary"].clone();
            let counted = [&summary["packets_received"], &summary["loss_fraction"]];
            match counted == [&summary["packets_sent"], &0.0.into()] {
                true => Ok(()),
                false => Err(format!("{summary:#}")),
            }
        });

        // An impossible count is rejected.
        for ask in ["exit 3", "echo 99999999999 bytes"] {
            let mut client =
                pair.client("throughput --peer discard -u -b 10M -t 1 --json --far-report");
            let ran = finish(client.arg(ask)).expect(1);
            let record = ran.json();
            assert!(doubted(&record, "far-report-failed"), "{ask}");
            assert!(record["summary"]["goodput_bps"].is_null(), "{ask}");
            assert!(ran.stderr.contains("--far-report"), "{ask}: {ran:#?}");
        }

        let record = pair.record("throughput --peer chargen -R -t 1");
        assert!(number(&record, "/summary/goodput_bps") > 0.0);
        for options in ["", "-u"] {
            let record = pair.record(&format!("latency --peer echo {options} -n 500 -l 300"));
            assert_eq!(record["summary"]["round_trips"], 500);
            assert_eq!(record["summary"]["mismatched"], 0);
        }
        let record = pair.record("latency --peer auto -p 7 -u -n 100");
        assert_eq!(record["plan"]["dialect"], "echo");
        drop(server);
    }
}

/// Silent clients block the places of others only for a while, and truncated packets are reported.
#[test]
fn a_device_makes_room_and_says_what_it_cut() {
    let room = Room::new();
    let code = room.run("target-code").expect(0);
    fs::write(room.path().join("target.c"), code.stdout).expect("a file");
    let words = "-std=c99 -Wall -Wextra -pedantic -Werror -O2 -DLINERATE_IDLE_S=2 -DLINERATE_CONNECTIONS=2 \
                 -DLINERATE_BUFFER_BYTES=512 -o target target.c";
    let compiled = room.command("cc", words.split_whitespace()).output();
    match compiled {
        Err(_) => skip!("there is no cc"),
        Ok(done) => assert!(done.status.success(), "{done:?}"),
    }
    let target = room.path().join("target");
    for words in [&["--help"][..], &["0"], &["70000"], &["1", "2", "3", "4"]] {
        let refused = finish(&mut room.command(&target, words)).expect(2);
        assert!(refused.stdout.starts_with("usage: "), "{refused:?}");
    }
    let ports = [(); 3].map(|()| free_port());
    let [sink, _, echo] = ports;
    let mut command = room.command(&target, ports.map(|port| port.to_string()));
    let mut device = Running::start(&mut command);
    device.line(|line| line.starts_with("ready"));
    let silent = [(); 2].map(|()| TcpStream::connect(("127.0.0.1", echo)).expect("a place"));
    let mut third = TcpStream::connect(("127.0.0.1", echo)).expect("the listening queue");
    third.write_all(b"hello").expect("it is sent");
    third.set_read_timeout(Some(LONG)).expect("a limit");
    let mut answer = [0; 5];
    third.read_exact(&mut answer).expect("a place became free");
    assert_eq!(&answer, b"hello");
    drop(silent);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .send_to(&[0; 700], ("127.0.0.1", sink))
        .expect("it is sent");
    let told = device.line(|line| line.starts_with("sink udp"));
    assert!(
        told.contains("1 of these packets filled the buffer of 512 bytes"),
        "{told}"
    );
    device.line(|line| line.contains("512 bytes in 1 packets"));
}

#[test]
fn ttcp_is_the_classic_at_both_ends() {
    let pair = match Pair::up("ttcp") {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    let binary = pair.lab.room.binary();
    let binary = binary.to_str().expect("a path in UTF-8");
    for (options, protocol) in [("", "tcp"), ("-u -l 1000 -n 300", "udp")] {
        let receiver = pair.serve(
            &format!("{binary} ttcp -r -q --calls {options}"),
            protocol,
            5001,
        );
        let mut words = vec![binary, "ttcp", "-q", "-t", "10.77.0.2"];
        words.extend(options.split_whitespace());
        let sender = finish(&mut pair.on("client", &words)).expect(0);
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
fn what_goes_wrong_is_named() {
    let pair = match Pair::up("wrong") {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    // Without a server.
    for words in [
        "throughput --peer iperf3",
        "throughput --peer nuttcp",
        "throughput --peer ttcp",
        "throughput --peer discard -u -t 1 -b 1M",
        "throughput --peer iperf2 -u -t 1 -b 1M",
        "throughput --peer auto",
        "latency --peer sockperf -u",
        "latency --peer echo",
    ] {
        let ran = pair.run(&format!("{words} --json"));
        assert_eq!(ran.code(), 5, "{words}: {ran:#?}");
    }
    // Options that a protocol does not support.
    for words in [
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
        let ran = pair.run(&format!("{words} --json"));
        assert_eq!(ran.code(), 2, "{words}: {ran:#?}");
        let why = ran.json()["error"]["situation"].clone();
        assert!(why.is_string(), "{words}");
    }
    // A server that is killed during the run, and Ctrl-C.
    if works(Command::new("sh").args(["-c", "command -v iperf3"])).is_err() {
        skip!("no iperf3 to kill");
    }
    let server = pair.serve("iperf3 -s", "tcp", 5201);
    let mut client =
        Running::start(&mut pair.client("throughput --peer iperf3 -t 900 --json-stream"));
    client.started();
    std::thread::sleep(Duration::from_millis(500));
    let killed = pair
        .on("server", &["sh", "-c", "kill -9 $(pidof iperf3)"])
        .output();
    assert!(killed.is_ok());
    let ran = client.wait();
    assert_eq!(ran.code(), 5, "{ran:#?}");
    drop(server);

    let _server = pair.serve("iperf3 -s -p 5202", "tcp", 5202);
    let words = "throughput --peer iperf3 -p 5202 -t 900 --json-stream";
    let mut client = Running::start(&mut pair.client(words));
    client.started();
    std::thread::sleep(Duration::from_millis(1_500));
    client.interrupt();
    let ran = client.wait();
    assert_eq!(ran.code(), 130, "{ran:#?}");
    let last = ran.json_lines().pop().expect("a line");
    assert_eq!(last["record"]["interrupted"], true);
    assert!(number(&last["record"], "/summary/bytes_received") > 0.0);
}
