//! Stock programs of other kinds as clients of our server, over loopback: both sides' numbers are
//! held against each other.

mod common;

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::foreign::Host;
use linerate_dialect::iperf2::{Amount, Dual, Settings, TcpClient, Way};
use linerate_dialect::sniff::Carrier;
use linerate_lab::{Lab, LabError, Topology};
use linerate_measure::{PeerOptions, ServerOptions};
use linerate_metric::plan::{Direction, Kind};
use linerate_metric::record::Record;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

/// Whether a stock program is here; says so when it is not.
fn stock(program: &str, version: &str) -> bool {
    let there = Command::new(program).arg(version).output().is_ok();
    if !there {
        println!("skipped: {program} is not installed");
    }
    there
}

/// One at a time: their rates are compared, and a busy machine is noise enough.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two hosts of a lab, where there may be one.
fn lab() -> Option<Lab> {
    match Lab::up(&Topology::hops(0)) {
        Ok(lab) => Some(lab),
        Err(LabError::NotPrivileged) => {
            println!("skipped: namespaces need root");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(program: &str, words: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["60", program]).args(words.split_whitespace());
    let Output { stdout, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    text + &String::from_utf8_lossy(&stderr)
}

/// Within 2 % of each other.
fn is_near(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() / theirs.max(1.0) < 0.02
}

fn near(ours: f64, theirs: f64, what: &str) {
    assert!(is_near(ours, theirs), "{what}: {ours} here, {theirs} there");
}

/// The same of two rates: on a busy machine one of the two ends may hear of the end late, so that
/// more than one test may be needed.
fn near_in_time(what: &str, mut test: impl FnMut() -> (f64, f64)) {
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (ours, theirs) = test();
        if is_near(ours, theirs) {
            return;
        }
        seen.push((ours, theirs));
    }
    panic!("{what}: {seen:?} (here, there)");
}

fn way(record: &Record, direction: Direction) -> &linerate_metric::record::Summary {
    let mut ways = record.directions.iter();
    let way = ways.find(|way| way.direction == direction);
    &way.unwrap_or_else(|| panic!("{direction}")).summary
}

fn iperf3(host: &Host, options: &str) -> (Value, Record) {
    let text = run(
        "iperf3",
        &format!("-c 127.0.0.1 -J -p {} {options}", host.port),
    );
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(report.get("error"), None, "{options}");
    (report, host.record())
}

fn figure(report: &Value, sum: &str, name: &str) -> f64 {
    let value = report["end"][sum][name].as_f64();
    value.unwrap_or_else(|| panic!("{sum} {name}: {report}"))
}

#[test]
fn iperf3_over_tcp() {
    if !stock("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    for options in [
        "-t 2 -b 200M",
        "-n 20M -P 3",
        "-k 300 -l 10000",
        "-t 1 -b 50M --get-server-output",
    ] {
        let (report, record) = iperf3(&host, options);
        let sent = figure(&report, "sum_sent", "bytes");
        let got = way(&record, Direction::Send);
        assert_eq!(
            got.bytes_received,
            Some(sent as u64),
            "{options}: all arrived"
        );
        assert_eq!(figure(&report, "sum_received", "bytes"), sent, "{options}");
        assert_eq!(got.lost, None);
        assert_eq!(record.plan.dialect.as_deref(), Some("iperf3"));
        if options.starts_with("-t 2") {
            assert!(record.intervals.len() >= 2, "{options}");
            near_in_time(options, || {
                let (report, record) = iperf3(&host, options);
                let ours = way(&record, Direction::Send).goodput_bps.unwrap();
                (ours, figure(&report, "sum_received", "bits_per_second"))
            });
        }
        if options.contains("--get-server-output") {
            assert!(
                report["server_output_text"]
                    .as_str()
                    .unwrap()
                    .contains("linerate")
            );
        }
    }
    let (report, record) = iperf3(&host, "-R -t 2 -b 100M -P 2");
    let sent = way(&record, Direction::Receive);
    assert_eq!(
        sent.bytes_sent,
        Some(figure(&report, "sum_sent", "bytes") as u64)
    );
    near_in_time("-R", || {
        let (report, record) = iperf3(&host, "-R -t 2 -b 100M -P 2");
        let ours = way(&record, Direction::Receive).offered_bps.unwrap();
        (ours, figure(&report, "sum_received", "bits_per_second"))
    });

    let (report, record) = iperf3(&host, "--bidir -t 2 -b 50M");
    let (there, back) = (
        way(&record, Direction::Send),
        way(&record, Direction::Receive),
    );
    assert_eq!(
        there.bytes_received,
        Some(figure(&report, "sum_sent", "bytes") as u64)
    );
    let theirs = figure(&report, "sum_sent_bidir_reverse", "bytes");
    assert_eq!(back.bytes_sent, Some(theirs as u64));
    // The last block is 105 ms before the end; what the exchange of results takes is no time of the test.
    near_in_time("--bidir", || {
        let (report, record) = iperf3(&host, "--bidir -t 2 -b 10M");
        let ends = record.intervals.iter().map(|it| it.end_ns).max();
        assert!(ends < Some(2_090_000_000), "{:?}", record.intervals);
        let ours = way(&record, Direction::Send).goodput_bps.unwrap();
        (ours, figure(&report, "sum_received", "bits_per_second"))
    });
}

#[test]
fn the_largest_segment_of_an_iperf3_client_binds_both_ends() {
    if !stock("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    let (_, record) = iperf3(&host, "-R -n 1M -M 600 -C reno");
    let sent = &record.directions[0].streams[0];
    let state = sent.sender.as_ref().and_then(|socket| socket.tcp.clone());
    // Time stamps take 12 of its bytes.
    let mss = state.unwrap().mss_bytes;
    assert!((500..=600).contains(&mss), "{mss}");
    assert_eq!(record.plan.congestion_control.as_deref(), Some("reno"));
}

#[test]
fn iperf3_over_udp() {
    if !stock("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    for options in [
        "-u -t 2 -b 10M -l 1000",
        "-u -t 1 -b 5M -l 500 -P 3 --udp-counters-64bit",
    ] {
        let (report, record) = iperf3(&host, options);
        let got = way(&record, Direction::Send);
        // A loaded machine drops: what is lost is told alike.
        let lost = figure(&report, "sum", "lost_packets") as u64;
        let sent = figure(&report, "sum", "packets") as u64;
        assert_eq!(
            got.packets_received.unwrap() + got.lost.unwrap(),
            sent,
            "{options}"
        );
        assert_eq!(got.lost, Some(lost), "{options}");
        assert!(got.ipdv_ns.is_some());
    }
    let (report, record) = iperf3(&host, "-u -R -t 2 -b 10M -l 1000");
    let sent = way(&record, Direction::Receive);
    let theirs = figure(&report, "sum", "packets") as u64;
    assert!(sent.packets_sent.unwrap() >= theirs, "-u -R");
    // What is on its way when the client ends the test is not lost.
    let lost = figure(&report, "sum", "lost_packets") as u64;
    assert_eq!(sent.lost, Some(lost), "-u -R");
    near_in_time("-u -R", || {
        let (_, record) = iperf3(&host, "-u -R -t 2 -b 10M -l 1000");
        (way(&record, Direction::Receive).offered_bps.unwrap(), 10e6)
    });

    let (_, record) = iperf3(&host, "-u --bidir -t 1 -b 4M -l 1200");
    assert!(way(&record, Direction::Send).packets_received.unwrap() > 300);
    assert!(way(&record, Direction::Receive).packets_sent.unwrap() > 300);
}

/// Its payload comes on connections and flows of their own, to the same port.
#[test]
fn iperf3_on_a_port_that_was_given_to_it() {
    if !stock("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), Host::with_ports(&["iperf3"]));
    let given = host.also[0];
    for options in ["-n 4M -P 2", "-t 1 -u -b 10M -P 2", "-t 1 -R -b 10M"] {
        let text = run("iperf3", &format!("-c 127.0.0.1 -J -p {given} {options}"));
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report.get("error"), None, "{options}");
        assert_eq!(host.record().plan.port, given, "{options}");
    }
}

#[test]
fn several_iperf3_at_a_time() {
    if !stock("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    let reports = std::thread::scope(|scope| {
        let clients = [
            "-t 2 -b 20M",
            "-t 2 -b 20M -R",
            "-u -t 2 -b 5M -l 800",
            "-u -t 2 -b 5M -l 900 -R",
        ];
        let clients = clients.map(|options| {
            let words = format!("-c 127.0.0.1 -J -p {} {options}", host.port);
            scope.spawn(move || run("iperf3", &words))
        });
        clients.map(|client| client.join().unwrap())
    });
    for text in reports {
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report.get("error"), None);
    }
    for _ in 0..4 {
        assert!(!host.record().interrupted);
    }
}

/// What a client of iperf2 says as rows of fields, and our record.
fn iperf2(host: &Host, options: &str) -> (Vec<Vec<String>>, Record) {
    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -y C {options}", host.port),
    );
    let lines = text.lines().filter(|line| line.contains(",127.0.0.1,"));
    let rows: Vec<Vec<String>> = lines
        .map(|line| line.split(',').map(str::to_owned).collect())
        .collect();
    assert!(!rows.is_empty(), "{options}: {text}");
    (rows, host.record())
}

/// Field of a row: 7 is bytes, 8 is bits a second.
fn field(row: &[String], at: usize) -> f64 {
    row[at]
        .trim()
        .parse()
        .unwrap_or_else(|e| panic!("{e}: {row:?}"))
}

#[test]
fn iperf2_over_tcp() {
    if !stock("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    for options in ["-n 20M", "-n 4M -C", "-t 2 -b 100M", "-n 1M --trip-times"] {
        let (rows, record) = iperf2(&host, options);
        let sent = field(rows.last().unwrap(), 7);
        let got = way(&record, Direction::Send);
        assert_eq!(
            got.bytes_received,
            Some(sent as u64),
            "{options}: all arrived"
        );
        let delay = way(&record, Direction::Send).one_way_delay_ns.as_ref();
        if options.ends_with("--trip-times") {
            // 1 MiB in writes of 128 KiB.
            let delay = delay.expect("each write says when it left");
            assert_eq!(delay.count, 8, "{delay:?}");
        } else {
            assert!(delay.is_none(), "{options}: {delay:?}");
        }
        if options.starts_with("-t") {
            near_in_time(options, || {
                let (rows, record) = iperf2(&host, options);
                let ours = way(&record, Direction::Send).goodput_bps.unwrap();
                (ours, field(rows.last().unwrap(), 8))
            });
        }
    }
    // -C has no header: an old client.
    let (rows, record) = iperf2(&host, "-t 2 -R -b 100M");
    let got = field(rows.last().unwrap(), 7);
    assert_eq!(
        way(&record, Direction::Receive).bytes_sent,
        Some(got as u64),
        "-R"
    );

    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -t 1 --full-duplex", host.port),
    );
    let record = host.record();
    assert!(text.contains("full-duplex"), "{text}");
    for direction in [Direction::Send, Direction::Receive] {
        let moved = way(&record, direction);
        assert!(moved.bytes_received.or(moved.bytes_sent).unwrap() > 0);
    }
    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -t 1 -d -L {}", host.port, free_port()),
    );
    let record = host.record();
    assert_eq!(record.directions.len(), 2, "{text}");
    assert!(
        way(&record, Direction::Receive).bytes_sent.unwrap() > 0,
        "{text}"
    );

    // One way after the other: the first is over when its client has sent all, and each has intervals of
    // its own time only.
    let text = run(
        "iperf",
        &format!(
            "-c 127.0.0.1 -p {} -t 1 -r -y C -L {}",
            host.port,
            free_port()
        ),
    );
    let record = host.record();
    let rows = text.lines().filter_map(|line| line.split(',').nth(6));
    let ends = rows.filter_map(|span| span.split('-').nth(1)?.parse::<f64>().ok());
    assert!(
        ends.fold(0.0, f64::max) < 1.9,
        "neither took both times: {text}"
    );
    assert_eq!(record.directions.len(), 2, "{text}");
    assert!(record.plan.in_turn);
    let told: Vec<_> = record
        .intervals
        .iter()
        .map(|it| (it.direction, it.bytes > 0))
        .collect();
    assert!(told.iter().all(|(_, moved)| *moved), "{told:?}");
    assert!(
        told.is_sorted_by_key(|(way, _)| *way == Direction::Receive),
        "{told:?}"
    );
    assert_eq!(
        told.last().map(|(way, _)| *way),
        Some(Direction::Receive),
        "{told:?}"
    );

    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -t 1 --bounceback", host.port),
    );
    let record = host.record();
    assert_eq!(record.kind, Kind::Latency, "{text}");
    // Ten a second, unless the machine is busy; they come at once, and the test goes on.
    assert!(record.summary.round_trips.unwrap() >= 5, "{text}");
    let rate = record.summary.round_trips_per_second.unwrap();
    assert!((2.0..50.0).contains(&rate), "{rate}: {text}");
}

/// Whoever begins as a test and comes to none is told of; the same again is nothing new for a minute.
#[test]
fn who_comes_to_no_test_is_told_of() {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    let (_alone, host) = (alone(), Host::with_ports(&["iperf2", "nuttcp"]));
    let cookie = b"abcdefghijklmnopqrstuvwxyz234567abcd\0";
    let say = |port: u16, words: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(words).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        stream
    };
    let (own, iperf2, nuttcp) = (host.port, host.also[0], host.also[1]);
    for (port, words, told) in [
        (own, &cookie[..], "closed the connection while sending the"),
        (own, b"HELO nuttcp v6.1.2\nno parameters\n", "make no sense"),
        (own, b"HELO nuttcp\n", "speaks nuttcp without its version"),
        (iperf2, cookie, "speaks iperf3 to port"),
        (nuttcp, cookie, "speaks iperf3 to port"),
        (iperf2, b"HELO nuttcp v6.1.2\n", "speaks nuttcp to port"),
    ] {
        let _gone = say(port, words);
        let refused = host.refused(told).unwrap_or_else(|| panic!("{told}"));
        let whole = format!("{refused:?}");
        assert!(whole.contains("127.0.0.1:"), "{whole}");
    }
    say(own, cookie);
    assert!(host.refused("closed the connection").is_none());
    // A dialect that takes no datagrams by itself has its port all the same: a question of
    // sockperf is told.
    let question = [0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0, 0, 14];
    let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    from.send_to(&question, ("127.0.0.1", nuttcp)).unwrap();
    let told = "speaks sockperf to port";
    let refused = host.refused(told).unwrap_or_else(|| panic!("{told}"));
    assert!(format!("{refused:?}").contains("127.0.0.1:"), "{refused:?}");
    assert_eq!((host.begun(), host.failures()), (0, 0));
}

/// Under load its listener may start behind its own payload.
#[test]
fn a_client_that_listens_late_is_connected_to_all_the_same() {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    let (_alone, host) = (alone(), Host::start());
    for dual in [Dual::Now, Dual::After] {
        let port = free_port();
        let settings = Settings {
            dual: Some(dual),
            amount: Some(Amount::Time(200_000_000)),
            ..Settings::legacy(port)
        };
        let client = TcpClient::new(settings).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
        stream.write_all(client.header()).unwrap();
        stream.write_all(&[b'1'; 100_000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let late = TcpListener::bind(("127.0.0.1", port)).unwrap();
        late.set_nonblocking(true).unwrap();
        let mut back = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            late.accept().ok()
        });
        let (back, _) = back.as_mut().expect("it is connected to");
        back.set_nonblocking(false).unwrap();
        std::io::copy(back, &mut std::io::sink()).unwrap();
        let record = host.record();
        assert!(way(&record, Direction::Receive).bytes_sent.unwrap() > 0);
    }
}

/// Who sends is not over with the last that found room: a pause, or a client that reads nothing, is part of
/// the time that was asked for.
#[test]
fn what_is_sent_takes_the_time_that_was_asked_for() {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    let _alone = alone();
    // Blocks of 128 KiB are 210 ms apart.
    let slow = PeerOptions {
        max_rate_bps: Some(5_000_000),
        ..PeerOptions::default()
    };
    for (stalls, peers) in [(false, slow), (true, PeerOptions::default())] {
        let host = Host::with(peers);
        let far = SocketAddr::from(([127, 0, 0, 1], host.port));
        let settings = Settings {
            way: Way::Reverse,
            amount: Some(Amount::Time(1_500_000_000)),
            ..Settings::client(far.port())
        };
        let client = TcpClient::new(settings).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(20_000).unwrap();
        socket.connect(&far.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(client.header()).unwrap();
        if stalls {
            let (began, mut room) = (Instant::now(), [0; 4096]);
            while began.elapsed() < Duration::from_millis(300) {
                stream.read_exact(&mut room).unwrap();
            }
            std::thread::sleep(Duration::from_millis(2_200));
        }
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        let record = host.record();
        let sent = way(&record, Direction::Receive);
        let took = sent.duration_ns.unwrap();
        assert!(
            (1_480_000_000..1_600_000_000).contains(&took),
            "{stalls}: {sent:?}"
        );
        let bytes = sent.bytes_sent.unwrap();
        assert_eq!(sent.offered_bps, Some(bytes as f64 * 8e9 / took as f64));
        let last = record.intervals.last().unwrap();
        assert!(last.end_ns.abs_diff(took) < 50_000_000, "{last:?}");
        let told: u64 = record.intervals.iter().map(|it| it.bytes).sum();
        assert_eq!(told, bytes);
    }
}

#[test]
fn iperf2_over_udp() {
    if !stock("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    for options in ["-u -t 2 -b 10M", "-u -t 1 -b 2M -l 500", "-u -t 1 -b 4M -C"] {
        let text = run("iperf", &format!("-c 127.0.0.1 -p {} {options}", host.port));
        let record = host.record();
        let got = way(&record, Direction::Send);
        // What we reported, its end's datagram included: `  3/ 1787 (0.2%)`.
        let report = text.split_once("Server Report:").map(|(_, report)| report);
        let report = report.unwrap_or_else(|| panic!("{options}: no report in {text}"));
        let line = report.lines().rfind(|line| line.contains("sec")).unwrap();
        let (before, after) = line.rsplit_once('/').expect("lost and sent");
        let lost: u64 = before.split_whitespace().last().unwrap().parse().unwrap();
        let all: u64 = after.split_whitespace().next().unwrap().parse().unwrap();
        assert_eq!(got.lost, Some(lost), "{options}");
        let ours = got.packets_received.unwrap() + got.lost.unwrap();
        assert!(
            (all - 1..=all).contains(&ours),
            "{options}: {ours} of {all}"
        );
    }
    let options = "-u -t 1 -b 1M --trip-times";
    let text = run("iperf", &format!("-c 127.0.0.1 -p {} {options}", host.port));
    let record = host.record();
    let delay = way(&record, Direction::Send).one_way_delay_ns.unwrap();
    assert!(delay.count > 50 && delay.min > 0, "{delay:?}");
    let report = text.split_once("Server Report:").unwrap().1;
    assert!(report.contains("Latency"), "{text}");
    assert!(!report.contains("-/-/-/-"), "{text}");

    // An address that proved nothing is sent nothing but answers.
    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -u -t 1 -R -b 2M", host.port),
    );
    if host.refused("its address may be forged").is_none() {
        // It did, by a connection less than a minute ago.
        let record = host.record();
        assert!(
            way(&record, Direction::Receive).packets_sent.unwrap() > 50,
            "{text}"
        );
    }
}

#[test]
fn iperf2_over_udp_backwards_for_those_who_are_known() {
    if !stock("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -u -t 1 -R -b 2M", host.port),
    );
    let refused = host.refused("its address may be forged").unwrap();
    assert!(
        refused.situation.contains("to be sent a flow"),
        "{refused:?}"
    );
    // A connection proves where it is.
    let (_, _) = iperf2(&host, "-n 1000");
    let (rows, record) = iperf2(&host, "-u -t 2 -R -b 10M");
    let sent = way(&record, Direction::Receive);
    // Its M are binary ones.
    near_in_time("-u -R", || {
        let (_, record) = iperf2(&host, "-u -t 2 -R -b 10M");
        (
            way(&record, Direction::Receive).offered_bps.unwrap(),
            10_485_760.0,
        )
    });
    // It counts what says the end, too.
    let ends = 3.0 * 1470.0;
    assert!(field(rows.last().unwrap(), 7) <= sent.bytes_sent.unwrap() as f64 + ends);
}

#[test]
fn iperf2_over_udp_backwards_for_an_address_that_is_named() {
    if !stock("iperf", "-v") {
        return;
    }
    let _alone = alone();
    let allowing = |network: &str| {
        Host::with(PeerOptions {
            allow: vec![network.parse().unwrap()],
            ..PeerOptions::default()
        })
    };
    let words = |host: &Host| format!("-c 127.0.0.1 -p {} -u -t 1 -R -b 2M", host.port);
    let host = allowing("127.0.0.1");
    run("iperf", &words(&host));
    let record = host.record();
    assert!(way(&record, Direction::Receive).packets_sent.unwrap() > 100);
    // Of a network that is allowed the line says what would allow it.
    let host = allowing("127.0.0.0/8");
    run("iperf", &words(&host));
    let refused = host.refused("its address may be forged").unwrap();
    assert!(
        refused.next_step.starts_with("--allow 127.0.0.1,"),
        "{refused:?}"
    );
}

fn nuttcp(host: &Host, data: u16, options: &str) -> (String, Record) {
    let words = format!("-fparse -P {} -p {data} {options} 127.0.0.1", host.port);
    let text = run("nuttcp", &words);
    let record = host.record();
    assert!(!record.interrupted, "{options}: {text}");
    (text, record)
}

#[test]
fn a_nuttcp_client_that_cannot_have_its_data_port_is_told_of() {
    if !stock("nuttcp", "-V") {
        return;
    }
    // As port 5001 does, this one belongs to the server: the client cannot listen there.
    let (_alone, host) = (alone(), Host::with_ports(&["discard"]));
    let data = host.also[0];
    let words = format!("-P {} -p {data} -r -T 1 127.0.0.1", host.port);
    let client = Command::new("nuttcp")
        .args(words.split_whitespace())
        .output()
        .unwrap();
    let told = host.refused(&format!("its data cannot go to its port {data}"));
    let told = told.unwrap_or_else(|| panic!("{client:?}"));
    assert!(told.next_step.contains("nuttcp -p "), "{told:?}");
}

fn parsed(text: &str, name: &str) -> f64 {
    let (_, rest) = text
        .rsplit_once(&format!("{name}="))
        .unwrap_or_else(|| panic!("{name}: {text}"));
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

#[test]
fn nuttcp_both_ways_over_both() {
    if !stock("nuttcp", "-V") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    for options in ["-n 300", "-T 2 -R 100m", "-n 100 -N 2", "-T 2 -i 1 -R 50m"] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let got = way(&record, Direction::Send);
        let bytes = got.bytes_received.unwrap() as f64;
        near(bytes, parsed(&text, "megabytes") * 1_048_576.0, options);
        if options.starts_with("-T") {
            near_in_time(options, || {
                let (text, record) = nuttcp(&host, free_port(), options);
                let ours = way(&record, Direction::Send).goodput_bps.unwrap();
                (ours, parsed(&text, "rate_Mbps") * 1e6)
            });
        }
        assert!(record.summary.duration_ns.is_some(), "{text}");
    }
    for options in ["-r -n 300", "-r -T 2 -R 100m"] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let sent = way(&record, Direction::Receive);
        let bytes = sent.bytes_sent.unwrap() as f64;
        near(bytes, parsed(&text, "megabytes") * 1_048_576.0, options);
    }
    for options in ["-u -T 2 -R 10m", "-u -T 2 -R 10m -i 0.5"] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let got = way(&record, Direction::Send);
        near(
            got.bytes_received.unwrap() as f64,
            parsed(&text, "megabytes") * 1_048_576.0,
            options,
        );
        // What its datagrams do not tell is not known.
        assert_eq!(got.lost.is_some(), options.contains("-i"), "{text}");
    }
    near_in_time("-u -r", || {
        let (_, record) = nuttcp(&host, free_port(), "-u -r -T 2 -R 10m");
        (way(&record, Direction::Receive).offered_bps.unwrap(), 10e6)
    });
}

/// A client that has its results closes, and may leave something unread: that resets the connection.
#[test]
fn a_nuttcp_client_may_leave_with_its_results() {
    use linerate_dialect::nuttcp::{Client, ClientEvent, Test, Way};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let (_alone, host) = (alone(), Host::start());
    let data_port = free_port();
    let asked = Test::new(Way::ToServer, Carrier::Stream, data_port);
    let mut client = Client::new(asked).unwrap();
    let mut control = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    let mut room = [0; 1024];
    loop {
        control.write_all(client.outgoing()).unwrap();
        client.sent(client.outgoing().len());
        let bytes = control.read(&mut room).unwrap();
        client.receive(&room[..bytes]).unwrap();
        match client.poll() {
            Some(ClientEvent::Prepare(_)) => client.ready(),
            Some(ClientEvent::Start(_)) => break,
            _ => {}
        }
    }
    let mut data = TcpStream::connect(("127.0.0.1", data_port)).unwrap();
    data.write_all(&[b'n'; 100_000]).unwrap();
    drop(data);
    // The first of it, and no more.
    control.read_exact(&mut room[..4]).unwrap();
    drop(control);
    let record = host.record();
    assert!(!record.interrupted, "{:?}", record.validity);
    assert_eq!(record.summary.bytes_received, Some(100_000));
}

/// A port that was free a moment ago, of those that nuttcp takes.
fn free_port() -> u16 {
    loop {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        if port > 5000 {
            return port;
        }
    }
}

#[test]
fn sockperf_in_all_its_ways() {
    if !stock("sockperf", "--version") {
        return;
    }
    let (_alone, host) = (alone(), Host::start());
    for tcp in ["", "--tcp"] {
        let words = format!("ping-pong -i 127.0.0.1 -p {} -t 1 {tcp}", host.port);
        let text = run("sockperf", &words);
        let record = host.record();
        assert_eq!(record.kind, Kind::Latency, "{text}");
        let answered = record.summary.round_trips.unwrap();
        let (_, rest) = text
            .split_once("[Total Run]")
            .unwrap_or_else(|| panic!("{text}"));
        let (_, rest) = rest.split_once("SentMessages=").unwrap();
        let sent: u64 = rest.split(';').next().unwrap().parse().unwrap();
        assert!(!record.interrupted, "its end is no failure: {text}");
        // The last question's answer may come when the client looks no more.
        assert!(answered.abs_diff(sent) <= 2, "{answered} of {sent}: {text}");

        let words = format!(
            "throughput -i 127.0.0.1 -p {} -t 1 -m 1000 --mps 2000 {tcp}",
            host.port
        );
        let text = run("sockperf", &words);
        let record = host.record();
        assert_eq!(record.kind, Kind::Throughput, "{text}");
        assert!(
            way(&record, Direction::Send).bytes_received.unwrap() > 500_000,
            "{text}"
        );

        let words = format!(
            "under-load -i 127.0.0.1 -p {} -t 1 --mps 2000 {tcp}",
            host.port
        );
        let text = run("sockperf", &words);
        assert!(text.contains("Latency is"), "{text}");
        host.record();
    }
}

#[test]
fn the_tools_that_say_nothing_of_themselves() {
    let (_alone, host) = (alone(), Host::with_ports(&["echo", "discard", "chargen"]));
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream, UdpSocket};
    let patience = Some(Duration::from_secs(20));

    // Classic ttcp over TCP is a stream of characters.
    let mut stream = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    let payload: Vec<u8> = (b' '..=b'~').cycle().take(8192).collect();
    for _ in 0..256 {
        stream.write_all(&payload).unwrap();
    }
    drop(stream);
    let record = host.record();
    assert_eq!(record.summary.bytes_received, Some(8192 * 256));
    assert_eq!(record.plan.dialect.as_deref(), Some("ttcp"));
    // Its characters tell it. Without them nothing does.
    let mut stream = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    stream.write_all(&[b' '; 100_000]).unwrap();
    drop(stream);
    assert_eq!(host.record().plan.dialect.as_deref(), Some("plain"));

    // Over UDP it has markers; datagrams without any end by silence.
    for (dialect, markers) in [("ttcp", true), ("plain", false)] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", host.port)).unwrap();
        if markers {
            socket.send(&[0; 4]).unwrap();
        }
        for _ in 0..50 {
            socket.send(&payload[..1000]).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..5 * u32::from(markers) {
            socket.send(&[0; 4]).unwrap();
        }
        let record = host.record();
        assert_eq!(record.plan.dialect.as_deref(), Some(dialect));
        assert_eq!(record.summary.bytes_received, Some(50_000));
        assert_eq!(record.summary.packets_received, Some(50));
        assert_eq!(record.plan.payload_bytes, 1000, "markers are none of it");
        assert_eq!(
            (record.summary.lost, record.summary.loss_fraction),
            (None, None)
        );
        let seconds = record.summary.duration_ns.unwrap() as f64 / 1e9;
        assert!(
            (0.05..0.9).contains(&seconds),
            "silence is not counted: {seconds}"
        );
    }

    let mut echo = TcpStream::connect(("127.0.0.1", host.also[0])).unwrap();
    echo.set_read_timeout(patience).unwrap();
    echo.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    echo.read_exact(&mut back).unwrap();
    echo.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&back, echo.read(&mut [0; 1]).unwrap()), (b"hello", 0));
    let record = host.record();
    // Bytes are known; how many questions they were is not.
    assert_eq!(record.summary.bytes_received, Some(5));
    assert_eq!(
        (record.kind, record.summary.round_trips),
        (Kind::Throughput, None)
    );

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(patience).unwrap();
    let mut room = [0; 2000];
    for (port, size) in [(host.also[0], 700), (host.also[2], 300)] {
        socket
            .send_to(&payload[..size], ("127.0.0.1", port))
            .unwrap();
        assert_eq!(
            socket.recv(&mut room).unwrap(),
            size,
            "no larger than the question"
        );
    }
    assert!(
        room[..300].starts_with(b" !\"#"),
        "characters of the first line"
    );
    for _ in 0..2 {
        let record = host.record();
        assert_eq!(record.summary.round_trips, Some(1));
        assert!(
            [300, 700].contains(&record.plan.payload_bytes),
            "{}",
            record.plan.payload_bytes
        );
    }

    let mut discard = TcpStream::connect(("127.0.0.1", host.also[1])).unwrap();
    // Bytes of another dialect mean nothing there.
    discard.write_all(b"HELO nuttcp v6.1.2\n").unwrap();
    drop(discard);
    assert_eq!(host.record().plan.dialect.as_deref(), Some("discard"));

    let mut chargen = TcpStream::connect(("127.0.0.1", host.also[2])).unwrap();
    let mut line = [0; 74];
    chargen.read_exact(&mut line).unwrap();
    assert!(line.ends_with(b"\r\n"));
    drop(chargen);
    assert_eq!(host.record().plan.dialect.as_deref(), Some("chargen"));
}

/// A program that asks once whether anybody answers measures a moment later.
#[test]
fn a_first_question_long_before_the_others_opens_no_time() {
    use std::net::UdpSocket;
    let (_alone, host) = (alone(), Host::with_ports(&["echo"]));
    // A busy machine may take the time between two looks at a clock: the next program has another chance.
    near_in_time("time", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", host.also[0])).unwrap();
        let ask = || {
            socket.send(&[0; 64]).unwrap();
            socket.recv(&mut [0; 100]).unwrap();
        };
        ask();
        std::thread::sleep(Duration::from_millis(400));
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1_500) {
            ask();
        }
        let took = began.elapsed().as_nanos() as f64;
        let record = host.record();
        let covered = record.summary.duration_ns.unwrap();
        let trips: Option<u64> = record.intervals.iter().map(|it| it.packets).sum();
        assert_eq!(trips, record.summary.round_trips);
        let ends = record.intervals.iter().map(|it| it.end_ns).max().unwrap();
        // Lines that end elsewhere than the whole are not right either.
        match ends.abs_diff(covered) < 10_000_000 {
            true => (covered as f64, took),
            false => (ends as f64 + took, took),
        }
    });
}

/// Questions that are not answered are no round trips, in no line.
#[test]
fn questions_from_afar_are_no_round_trips() {
    use std::net::UdpSocket;
    const AFAR: &str = "198.51.100.7";
    let Some(lab) = lab() else {
        return;
    };
    let _alone = alone();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let ip = |words: &str| {
        let done = Command::new("ip").args(words.split(' ')).status();
        assert!(done.unwrap().success(), "{words}");
    };
    let back = format!("route add {AFAR} via {}", client.address());
    server.run(|| ip(&back)).unwrap();
    let options = ServerOptions {
        port: 0,
        peers: PeerOptions {
            also: vec!["7".parse().unwrap()],
            ..PeerOptions::default()
        },
        ..ServerOptions::default()
    };
    let host = server.run(|| Host::of(&options).unwrap()).unwrap();
    let to = (server.address(), 7);
    let ask = || {
        ip(&format!("addr add {AFAR}/32 dev lo"));
        let socket = UdpSocket::bind((AFAR, 0)).unwrap();
        for _ in 0..3 {
            socket.send_to(&[0; 64], to).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
    };
    client.run(ask).unwrap();
    assert!(host.refused("").is_some());
    let told = host.interval().unwrap();
    assert_eq!((told.bytes, told.packets), (192, Some(0)));
}

#[test]
fn tests_are_ended_and_paced_by_the_servers_limits() {
    let _alone = alone();
    let host = Host::with(PeerOptions {
        max_time_ns: Some(1_000_000_000),
        max_rate_bps: Some(20_000_000),
        ..PeerOptions::default()
    });
    let doubted = |record: &Record, doubt: &str| record.validity.iter().any(|d| d.doubt == doubt);
    if stock("iperf3", "--version") {
        let text = run("iperf3", &format!("-c 127.0.0.1 -p {} -t 6", host.port));
        assert!(text.contains("terminated"), "{text}");
        let record = host.record();
        assert!(doubted(&record, "cut-short") && record.interrupted);
        let covered = record.summary.duration_ns.unwrap();
        assert!(covered < 1_900_000_000, "no second is given: {covered}");
        assert!(record.summary.bytes_received.unwrap() > 1_000);

        // A client that ends in the same time is not cut, and gets the rate that there is.
        let (_, record) = iperf3(&host, "-t 1 -R -P 2");
        assert!(!record.interrupted, "{:?}", record.validity);
        assert!(doubted(&record, "held-to-max-rate"));
        let rate = way(&record, Direction::Receive).offered_bps.unwrap();
        assert!(rate <= 20e6, "{rate}");
    }
    if stock("iperf", "-v") {
        let (rows, record) = iperf2(&host, "-t 5 -R");
        assert!(
            field(rows.last().unwrap(), 7) > 1_000.0,
            "it ended in order"
        );
        assert!(doubted(&record, "cut-short") && !record.interrupted);
        let rate = way(&record, Direction::Receive).offered_bps.unwrap();
        assert!(rate <= 20e6, "{rate}");
    }
    if stock("nuttcp", "-V") {
        for options in ["-r -T 5", "-u -r -T 5 -R 10m"] {
            let (text, record) = nuttcp(&host, free_port(), options);
            assert!(parsed(&text, "real_seconds") < 3.0, "{options}: {text}");
            assert!(doubted(&record, "cut-short") && !record.interrupted);
            let rate = way(&record, Direction::Receive).offered_bps.unwrap();
            // Its UDP has a marker on the way before the first payload.
            assert!(rate < 20.1e6, "{options}: {rate}");
        }
    }
}

/// Two hosts: every tool finds its usual port, and is answered from the address that it knows.
#[test]
fn between_two_hosts_without_an_option() {
    let Some(lab) = lab() else {
        return;
    };
    let _alone = alone();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let options = ServerOptions {
        port: 5201,
        peers: PeerOptions {
            well_known: true,
            ..PeerOptions::default()
        },
        ..ServerOptions::default()
    };
    let host = server.run(|| Host::of(&options).unwrap()).unwrap();
    assert_eq!(host.also, [5001, 5000, 11111]);
    let to = server.address().to_string();
    let mut tests = vec![
        ("iperf3", format!("-c {to} -t 1 -b 20M"), "iperf3"),
        ("iperf3", format!("-c {to} -t 1 -u -b 5M --bidir"), "iperf3"),
        ("iperf", format!("-c {to} -t 1 -b 20M"), "iperf2"),
        ("iperf", format!("-c {to} -t 1 -u -b 5M"), "iperf2"),
        ("iperf", format!("-c {to} -t 1 -u -b 5M -R"), "iperf2"),
        ("iperf", format!("-c {to} -t 1 -d"), "iperf2"),
        ("nuttcp", format!("-T 1 -R 20m {to}"), "nuttcp"),
        ("nuttcp", format!("-r -T 1 -R 20m {to}"), "nuttcp"),
        ("nuttcp", format!("-u -T 1 -R 5m {to}"), "nuttcp"),
        ("nuttcp", format!("-u -r -T 1 -R 5m {to}"), "nuttcp"),
        (
            "sockperf",
            format!("ping-pong -i {to} -p 11111 -t 1"),
            "sockperf",
        ),
    ];
    if let Some(v6) = server.address_v6() {
        tests.push(("iperf3", format!("-6 -c {v6} -t 1 -u -b 5M"), "iperf3"));
        tests.push(("iperf", format!("-V -c {v6} -t 1 -u -b 5M"), "iperf2"));
    }
    for (program, words, dialect) in tests {
        if !stock(program, "--version") {
            continue;
        }
        let text = client.run(|| run(program, &words)).unwrap();
        let record = host.record();
        assert_eq!(
            record.plan.dialect.as_deref(),
            Some(dialect),
            "{words}: {text}"
        );
        assert!(!record.interrupted, "{words}: {text}");
        let summary = &record.summary;
        let moved = summary.bytes_received.or(summary.bytes_sent);
        assert!(moved.is_some_and(|bytes| bytes > 1000), "{words}: {text}");
        let served = record.served.as_ref().expect("a server's record");
        let v6 = client.address_v6().map(|address| address.to_string());
        let from = [Some(client.address().to_string()), v6];
        let address = Some(served.address().to_owned());
        assert!(from.contains(&address), "{served:?}");
        assert!(served.agent.starts_with(program), "{words}: {served:?}");
    }
    // Whoever opened a test opened no second one by what came late.
    assert_eq!(host.failures(), 0);
}
