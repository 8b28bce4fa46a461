//! Reference clients of other tools against our server, over loopback: the figures of both sides
//! are compared.

mod iperf2;
mod iperf3;
mod services;

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::common::third_party::{InteropServer, free_port};
use linerate_lab::{Lab, LabError, Topology};
use linerate_protocol::sniff::TransportKind;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Direction, RunKind};
use linerate_record::record::Record;
use linerate_server::options::{InteropOptions, ServerOptions};
use linerate_server::timeouts::Timeouts;
use serde_json::Value;

/// Returns whether a reference program is installed; prints a note if not.
fn is_installed(program: &str, version: &str) -> bool {
    let there = Command::new(program).arg(version).output().is_ok();
    if !there {
        println!("skipped: {program} is not installed");
    }
    there
}

/// Serialises the tests: rates are compared, and a busy machine adds noise.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a lab with two hosts, if the privileges allow it.
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

fn run(program: &str, args: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["60", program]).args(args.split_whitespace());
    let Output { stdout, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    text + &String::from_utf8_lossy(&stderr)
}

/// Returns whether two values differ by less than 2 %.
fn is_close(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() / theirs.max(1.0) < 0.02
}

fn assert_close(ours: f64, theirs: f64, case: &str) {
    assert!(
        is_close(ours, theirs),
        "{case}: {ours} here, {theirs} there"
    );
}

/// Checks that two rates are of the same size. On a busy machine one end may notice the start or
/// the end of a test late: the tests of the rates alone check more.
fn assert_similar(ours: f64, theirs: f64, case: &str) {
    assert!(
        (theirs / 2.0..theirs * 2.0).contains(&ours),
        "{case}: {ours} here, {theirs} there"
    );
}

fn direction_summary(record: &Record, direction: Direction) -> &linerate_record::record::Summary {
    let mut directions = record.directions.iter();
    let figures = directions.find(|figures| figures.direction == direction);
    &figures.unwrap_or_else(|| panic!("{direction}")).summary
}

fn iperf3(host: &InteropServer, options: &str) -> (Value, Record) {
    let text = run(
        "iperf3",
        &format!("-c 127.0.0.1 -J -p {} {options}", host.port),
    );
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(report.get("error"), None, "{options}");
    (report, host.record())
}

/// Returns the CSV rows of an iperf2 client, and our record.
fn iperf2(host: &InteropServer, options: &str) -> (Vec<Vec<String>>, Record) {
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

/// Returns a field of a row: 7 is bytes, 8 is bits per second.
fn field(row: &[String], at: usize) -> f64 {
    row[at]
        .trim()
        .parse()
        .unwrap_or_else(|e| panic!("{e}: {row:?}"))
}

/// A connection on which no test starts is logged; another one of the same client is not, for a
/// minute.
#[test]
fn connections_without_a_test_are_logged() {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    let (_alone, host) = (alone(), InteropServer::with_ports(&["iperf2", "nuttcp"]));
    let cookie = b"abcdefghijklmnopqrstuvwxyz234567abcd\0";
    let send = |port: u16, bytes: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(bytes).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        stream
    };
    let (main_port, iperf2, nuttcp) = (host.port, host.also[0], host.also[1]);
    for (port, bytes, expected) in [
        (
            main_port,
            &cookie[..],
            "closed the connection while sending the",
        ),
        (
            main_port,
            b"HELO nuttcp v6.1.2\nno parameters\n",
            "parameters are invalid",
        ),
        (
            main_port,
            b"HELO nuttcp\n",
            "nuttcp without its version is not a test protocol",
        ),
        (iperf2, cookie, "uses iperf3 on port"),
        (nuttcp, cookie, "uses iperf3 on port"),
        (iperf2, b"HELO nuttcp v6.1.2\n", "uses nuttcp on port"),
    ] {
        let _stream = send(port, bytes);
        let rejection = host
            .take_rejection(expected)
            .unwrap_or_else(|| panic!("{expected}"));
        let text = format!("{rejection:?}");
        assert!(text.contains("127.0.0.1:"), "{text}");
    }
    send(main_port, cookie);
    assert!(host.take_rejection("closed the connection").is_none());
    // A protocol without datagrams of its own still owns the port over UDP: a request of sockperf
    // is logged.
    let request = [0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0, 0, 14];
    let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    from.send_to(&request, ("127.0.0.1", nuttcp)).unwrap();
    let expected = "uses sockperf on port";
    let rejection = host
        .take_rejection(expected)
        .unwrap_or_else(|| panic!("{expected}"));
    assert!(
        format!("{rejection:?}").contains("127.0.0.1:"),
        "{rejection:?}"
    );
    assert_eq!((host.started_tests(), host.failures()), (0, 0));
}

fn nuttcp(host: &InteropServer, data: u16, options: &str) -> (String, Record) {
    let args = format!("-fparse -P {} -p {data} {options} 127.0.0.1", host.port);
    let text = run("nuttcp", &args);
    let record = host.record();
    assert!(!record.interrupted, "{options}: {text}");
    (text, record)
}

#[test]
fn a_nuttcp_client_with_a_taken_data_port_is_logged() {
    if !is_installed("nuttcp", "-V") {
        return;
    }
    // Like port 5001, this one belongs to the server: the client cannot listen there.
    let (_alone, host) = (alone(), InteropServer::with_ports(&["discard"]));
    let data = host.also[0];
    let args = format!("-P {} -p {data} -r -T 1 127.0.0.1", host.port);
    let client = Command::new("nuttcp")
        .args(args.split_whitespace())
        .output()
        .unwrap();
    let rejection = host.take_rejection(&format!("its data cannot go to its port {data}"));
    let rejection = rejection.unwrap_or_else(|| panic!("{client:?}"));
    assert!(rejection.next_step.contains("nuttcp -p "), "{rejection:?}");
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

/// Without a server at its control port, a nuttcp transmitter sends like ttcp.
#[test]
fn a_ttcp_transmitter_is_counted() {
    if !is_installed("nuttcp", "-V") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    let args = format!(
        "-t -n 2048 -l 8192 -P {} -p {} 127.0.0.1",
        free_port(),
        host.port
    );
    let text = run("nuttcp", &args);
    let got = direction_summary(&host.record(), Direction::Send).bytes_received;
    assert_eq!(got, Some(16 << 20), "{text}");
    assert!(text.contains("16.0000 MB"), "{text}");
}

#[test]
fn nuttcp_both_directions_over_tcp_and_udp() {
    if !is_installed("nuttcp", "-V") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in [
        "-n 300",
        "-F -n 100",
        "-T 2 -R 100m",
        "-n 100 -N 2",
        "-T 2 -i 1 -R 50m",
    ] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let got = direction_summary(&record, Direction::Send);
        let bytes = got.bytes_received.unwrap() as f64;
        assert_close(bytes, parsed(&text, "megabytes") * 1_048_576.0, options);
        if options.starts_with("-T") {
            let theirs = parsed(&text, "rate_Mbps") * 1e6;
            assert_similar(got.goodput_bps.unwrap(), theirs, options);
        }
        assert!(record.summary.duration_ns.is_some(), "{text}");
    }
    for options in [
        "-r -n 300",
        "-r -F -n 100",
        "-r -N 3 -n 100",
        "-r -T 2 -R 100m",
    ] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let sent = direction_summary(&record, Direction::Receive);
        let bytes = sent.bytes_sent.unwrap() as f64;
        assert_close(bytes, parsed(&text, "megabytes") * 1_048_576.0, options);
    }
    for options in [
        "-u -T 2 -R 10m",
        "-u -N 3 -T 1 -R 10m",
        "-u -T 2 -R 10m -i 0.5",
    ] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let got = direction_summary(&record, Direction::Send);
        assert_close(
            got.bytes_received.unwrap() as f64,
            parsed(&text, "megabytes") * 1_048_576.0,
            options,
        );
        // Without numbers in its datagrams, losses are not known.
        assert_eq!(got.lost.is_some(), options.contains("-i"), "{text}");
    }
    let (_, record) = nuttcp(&host, free_port(), "-u -r -T 2 -R 10m");
    let sent = direction_summary(&record, Direction::Receive);
    assert_similar(sent.offered_bps.unwrap(), 10e6, "-u -r");
}

#[test]
fn rates_are_those_of_nuttcp() {
    if !is_installed("nuttcp", "-V") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in ["-T 2 -R 100m", "-T 2 -i 1 -R 50m"] {
        let (text, record) = nuttcp(&host, free_port(), options);
        let got = direction_summary(&record, Direction::Send);
        let theirs = parsed(&text, "rate_Mbps") * 1e6;
        assert_close(got.goodput_bps.unwrap(), theirs, options);
    }
    let (_, record) = nuttcp(&host, free_port(), "-u -r -T 2 -R 10m");
    let sent = direction_summary(&record, Direction::Receive);
    assert_close(sent.offered_bps.unwrap(), 10e6, "-u -r");
}

/// A client that has its results closes, possibly with unread bytes: that resets the connection.
#[test]
fn a_nuttcp_client_may_leave_with_its_results() {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use linerate_protocol::nuttcp::{NuttcpClient, NuttcpClientEvent, NuttcpDirection, NuttcpTest};
    let (_alone, host) = (alone(), InteropServer::start());
    let data_port = free_port();
    let request = NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Stream, data_port);
    let mut client = NuttcpClient::new(request).unwrap();
    let mut control = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    let mut buffer = [0; 1024];
    loop {
        control.write_all(client.outgoing()).unwrap();
        client.mark_sent(client.outgoing().len());
        let bytes = control.read(&mut buffer).unwrap();
        client.receive(&buffer[..bytes]).unwrap();
        match client.poll() {
            Some(NuttcpClientEvent::Prepare(_)) => client.mark_ready(),
            Some(NuttcpClientEvent::Start(_)) => break,
            _ => {}
        }
    }
    let mut data = TcpStream::connect(("127.0.0.1", data_port)).unwrap();
    data.write_all(&[b'n'; 100_000]).unwrap();
    drop(data);
    // The first bytes, and no more.
    control.read_exact(&mut buffer[..4]).unwrap();
    drop(control);
    let record = host.record();
    assert!(!record.interrupted, "{:?}", record.validity);
    assert_eq!(record.summary.bytes_received, Some(100_000));
}

#[test]
fn tests_are_ended_and_paced_by_the_servers_limits() {
    let _alone = alone();
    let host = InteropServer::with(InteropOptions {
        max_time_ns: Some(1_000_000_000),
        max_rate_bps: Some(20_000_000),
        ..InteropOptions::default()
    });
    let has_caveat = |record: &Record, id| record.validity.iter().any(|caveat| caveat.id == id);
    if is_installed("iperf3", "--version") {
        let text = run("iperf3", &format!("-c 127.0.0.1 -p {} -t 6", host.port));
        assert!(text.contains("terminated"), "{text}");
        let record = host.record();
        assert!(has_caveat(&record, CaveatId::CutShort) && record.interrupted);
        let covered = record.summary.duration_ns.unwrap();
        assert!(covered < 1_900_000_000, "no second is given: {covered}");
        assert!(record.summary.bytes_received.unwrap() > 1_000);

        // A client that ends within the limit is not stopped, and gets the limit's rate.
        let (_, record) = iperf3(&host, "-t 1 -R -P 2");
        assert!(!record.interrupted, "{:?}", record.validity);
        assert!(has_caveat(&record, CaveatId::HeldToMaxRate));
        let rate = direction_summary(&record, Direction::Receive)
            .offered_bps
            .unwrap();
        assert!(rate <= 20e6, "{rate}");
    }
    if is_installed("iperf", "-v") {
        let (rows, record) = iperf2(&host, "-t 5 -R");
        assert!(
            field(rows.last().unwrap(), 7) > 1_000.0,
            "it ended in order"
        );
        assert!(has_caveat(&record, CaveatId::CutShort) && !record.interrupted);
        let rate = direction_summary(&record, Direction::Receive)
            .offered_bps
            .unwrap();
        assert!(rate <= 20e6, "{rate}");
    }
    if is_installed("nuttcp", "-V") {
        for options in ["-r -T 5", "-u -r -T 5 -R 10m"] {
            let (text, record) = nuttcp(&host, free_port(), options);
            assert!(parsed(&text, "real_seconds") < 3.0, "{options}: {text}");
            assert!(has_caveat(&record, CaveatId::CutShort) && !record.interrupted);
            let rate = direction_summary(&record, Direction::Receive)
                .offered_bps
                .unwrap();
            // Over UDP a marker is sent before the first payload.
            assert!(rate < 20.1e6, "{options}: {rate}");
        }
    }
}

/// Two hosts: every tool finds its default port, and gets replies from the address that it used.
#[test]
fn iperf3_between_two_hosts_without_an_option() {
    run_between_hosts("iperf3");
}

#[test]
fn iperf2_between_two_hosts_without_an_option() {
    run_between_hosts("iperf");
}

#[test]
fn nuttcp_between_two_hosts_without_an_option() {
    run_between_hosts("nuttcp");
}

#[test]
fn sockperf_between_two_hosts_without_an_option() {
    run_between_hosts("sockperf");
}

/// Runs a tool against the default ports of a server on another host.
fn run_between_hosts(tool: &str) {
    let Some(lab) = lab() else {
        return;
    };
    let _alone = alone();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let options = ServerOptions {
        port: 5201,
        interop: InteropOptions {
            well_known_ports: true,
            ..InteropOptions::default()
        },
        timeouts: Timeouts::short(),
        ..ServerOptions::default()
    };
    let host = server.run(|| InteropServer::of(&options).unwrap()).unwrap();
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
    for (program, args, protocol) in tests.into_iter().filter(|test| test.0 == tool) {
        if !is_installed(program, "--version") {
            continue;
        }
        let text = client.run(|| run(program, &args)).unwrap();
        let record = host.record();
        assert_eq!(
            record.plan.peer_protocol.as_deref(),
            Some(protocol),
            "{args}: {text}"
        );
        assert!(!record.interrupted, "{args}: {text}");
        let summary = &record.summary;
        let moved = summary.bytes_received.or(summary.bytes_sent);
        assert!(moved.is_some_and(|bytes| bytes > 1000), "{args}: {text}");
        let served_client = record.served_client.as_ref().expect("a server's record");
        let v6 = client.address_v6().map(|address| address.to_string());
        let from = [Some(client.address().to_string()), v6];
        let address = Some(served_client.ip().to_owned());
        assert!(from.contains(&address), "{served_client:?}");
        assert!(
            served_client.agent.starts_with(program),
            "{args}: {served_client:?}"
        );
    }
    // Late datagrams of a test open no second one.
    assert_eq!(host.failures(), 0);
}
