//! iperf2 against our server, and features of its protocol.

use linerate_protocol::iperf2::{
    DualTest, Iperf2Direction, Iperf2Settings, Iperf2TcpClient, TestAmount,
};
use socket2::{Domain, Socket, Type};

use super::*;

#[test]
fn iperf2_over_tcp() {
    if !is_installed("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in ["-n 20M", "-n 4M -C", "-t 2 -b 100M", "-n 1M --trip-times"] {
        let (rows, record) = iperf2(&host, options);
        let sent = field(rows.last().unwrap(), 7);
        let got = direction_summary(&record, Direction::Send);
        assert_eq!(
            got.bytes_received,
            Some(sent as u64),
            "{options}: all arrived"
        );
        let delay = direction_summary(&record, Direction::Send)
            .one_way_delay_ns
            .as_ref();
        if options.ends_with("--trip-times") {
            // 1 MiB in writes of 128 KiB.
            let delay = delay.expect("each write says when it left");
            assert_eq!(delay.count, 8, "{delay:?}");
        } else {
            assert!(delay.is_none(), "{options}: {delay:?}");
        }
        if options.starts_with("-t") {
            let theirs = field(rows.last().unwrap(), 8);
            assert_similar(got.goodput_bps.unwrap(), theirs, options);
        }
    }
    // -C has no header: a legacy client.
    let (rows, record) = iperf2(&host, "-t 2 -R -b 100M");
    let got = field(rows.last().unwrap(), 7);
    assert_eq!(
        direction_summary(&record, Direction::Receive).bytes_sent,
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
        let figures = direction_summary(&record, direction);
        assert!(figures.bytes_received.or(figures.bytes_sent).unwrap() > 0);
    }
    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -t 1 -d -L {}", host.port, free_port()),
    );
    let record = host.record();
    assert_eq!(record.directions.len(), 2, "{text}");
    assert!(
        direction_summary(&record, Direction::Receive)
            .bytes_sent
            .unwrap()
            > 0,
        "{text}"
    );

    // The two directions in sequence: the first is over when its client has sent everything, and
    // each has intervals of its own time only.
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
    let ends = rows.filter_map(|times| times.split('-').nth(1)?.parse::<f64>().ok());
    assert!(
        ends.fold(0.0, f64::max) < 1.9,
        "neither took both times: {text}"
    );
    assert_eq!(record.directions.len(), 2, "{text}");
    assert!(record.plan.sequential);
    let intervals: Vec<_> = record
        .intervals
        .iter()
        .map(|it| (it.direction, it.bytes > 0))
        .collect();
    assert!(intervals.iter().all(|(_, moved)| *moved), "{intervals:?}");
    assert!(
        intervals.is_sorted_by_key(|(way, _)| *way == Direction::Receive),
        "{intervals:?}"
    );
    assert_eq!(
        intervals.last().map(|(way, _)| *way),
        Some(Direction::Receive),
        "{intervals:?}"
    );

    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -t 1 --bounceback", host.port),
    );
    let record = host.record();
    assert_eq!(record.kind, RunKind::Latency, "{text}");
    // Ten per second, unless the machine is busy; they are answered at once, and the test goes on.
    assert!(record.summary.round_trips.unwrap() >= 5, "{text}");
    let rate = record.summary.round_trips_per_second.unwrap();
    assert!((2.0..50.0).contains(&rate), "{rate}: {text}");
}

/// Under load the client's listener may start after its own payload.
#[test]
fn a_client_that_listens_late_is_connected_to_all_the_same() {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    let (_alone, host) = (alone(), InteropServer::start());
    for dual in [DualTest::Simultaneous, DualTest::Sequential] {
        let port = free_port();
        let settings = Iperf2Settings {
            dual: Some(dual),
            amount: Some(TestAmount::Time(200_000_000)),
            ..Iperf2Settings::legacy(port)
        };
        let client = Iperf2TcpClient::new(settings).unwrap();
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
        assert!(
            direction_summary(&record, Direction::Receive)
                .bytes_sent
                .unwrap()
                > 0
        );
    }
}

/// A sending server does not end with the last accepted write: a pause, or a client that reads
/// nothing, is part of the requested time.
#[test]
fn sending_takes_the_requested_time() {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    let _alone = alone();
    // Blocks of 128 KiB are 404 ms apart: the last of them is sent after 1,212 ms.
    let slow = InteropOptions {
        max_rate_bps: Some(2_600_000),
        ..InteropOptions::default()
    };
    for (stalls, peers) in [(false, slow), (true, InteropOptions::default())] {
        let host = InteropServer::with(peers);
        let remote = SocketAddr::from(([127, 0, 0, 1], host.port));
        let settings = Iperf2Settings {
            direction: Iperf2Direction::Reverse,
            amount: Some(TestAmount::Time(1_500_000_000)),
            ..Iperf2Settings::client(remote.port())
        };
        let client = Iperf2TcpClient::new(settings).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(20_000).unwrap();
        socket.connect(&remote.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.write_all(client.header()).unwrap();
        if stalls {
            let (started, mut buffer) = (Instant::now(), [0; 4096]);
            while started.elapsed() < Duration::from_millis(300) {
                stream.read_exact(&mut buffer).unwrap();
            }
            std::thread::sleep(Duration::from_millis(2_200));
        }
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        let record = host.record();
        let sent = direction_summary(&record, Direction::Receive);
        let duration_ns = sent.duration_ns.unwrap();
        assert!(
            (1_300_000_000..2_200_000_000).contains(&duration_ns),
            "{stalls}: {sent:?}"
        );
        let bytes = sent.bytes_sent.unwrap();
        assert_eq!(
            sent.offered_bps,
            Some(bytes as f64 * 8e9 / duration_ns as f64)
        );
        let last = record.intervals.last().unwrap();
        assert!(last.end_ns.abs_diff(duration_ns) < 50_000_000, "{last:?}");
        let interval_bytes: u64 = record.intervals.iter().map(|it| it.bytes).sum();
        assert_eq!(interval_bytes, bytes);
    }
}

#[test]
fn iperf2_over_udp() {
    if !is_installed("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in ["-u -t 2 -b 10M", "-u -t 1 -b 2M -l 500", "-u -t 1 -b 4M -C"] {
        let text = run("iperf", &format!("-c 127.0.0.1 -p {} {options}", host.port));
        let record = host.record();
        let got = direction_summary(&record, Direction::Send);
        // Our report, including the datagram of the end marker: `  3/ 1787 (0.2%)`.
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
    let delay = direction_summary(&record, Direction::Send)
        .one_way_delay_ns
        .unwrap();
    assert!(delay.count > 50 && delay.min > 0, "{delay:?}");
    let report = text.split_once("Server Report:").unwrap().1;
    assert!(report.contains("Latency"), "{text}");
    assert!(!report.contains("-/-/-/-"), "{text}");

    // An unvalidated address is sent only replies.
    let text = run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -u -t 1 -R -b 2M", host.port),
    );
    if host.take_rejection("its address may be forged").is_none() {
        // It was validated, by a connection less than a minute ago.
        let record = host.record();
        assert!(
            direction_summary(&record, Direction::Receive)
                .packets_sent
                .unwrap()
                > 50,
            "{text}"
        );
    }
}

/// Each changes the header or the size of what a client sends first.
#[test]
fn iperf2_options_of_the_header() {
    if !is_installed("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in [
        "-X -n 1M",
        "--permit-key=abcd -n 1M",
        "--isochronous=60:1M,0 -t 1",
        "-l 40 -n 4000",
        "-u -l 40 -t 1 -b 1M",
        "-u -l 80 -t 1 -b 1M",
        "-u --no-udp-fin -t 1 -b 1M",
        "-u --isochronous=60:1M,0 -t 1",
    ] {
        let (rows, record) = iperf2(&host, options);
        let sent = field(rows.last().unwrap(), 7) as u64;
        let received = direction_summary(&record, Direction::Send)
            .bytes_received
            .unwrap();
        // A client over UDP may count its end markers.
        let ends = if options.starts_with("-u") {
            4 * 1470
        } else {
            0
        };
        assert!(
            (sent - ends..=sent + ends).contains(&received),
            "{options}: {received} of {sent}"
        );
    }
}

#[test]
fn iperf2_over_udp_reverse_for_validated_clients() {
    if !is_installed("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    run(
        "iperf",
        &format!("-c 127.0.0.1 -p {} -u -t 1 -R -b 2M", host.port),
    );
    let rejection = host.take_rejection("its address may be forged").unwrap();
    assert!(
        rejection.situation.contains("requests a flow"),
        "{rejection:?}"
    );
    // A connection validates the address.
    let (_, _) = iperf2(&host, "-n 1000");
    let (rows, record) = iperf2(&host, "-u -t 2 -R -b 10M");
    let sent = direction_summary(&record, Direction::Receive);
    // Its M are binary ones.
    assert_similar(sent.offered_bps.unwrap(), 10_485_760.0, "-u -R");
    // The client counts end markers, too.
    let ends = 3.0 * 1470.0;
    assert!(field(rows.last().unwrap(), 7) <= sent.bytes_sent.unwrap() as f64 + ends);
}

#[test]
fn rates_are_those_of_iperf2() {
    if !is_installed("iperf", "-v") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    let (rows, record) = iperf2(&host, "-t 2 -b 100M");
    let got = direction_summary(&record, Direction::Send);
    let theirs = field(rows.last().unwrap(), 8);
    assert_close(got.goodput_bps.unwrap(), theirs, "-b 100M");
    // The connection validated the address. Its M are binary ones.
    let (_, record) = iperf2(&host, "-u -t 2 -R -b 10M");
    let sent = direction_summary(&record, Direction::Receive);
    assert_close(sent.offered_bps.unwrap(), 10_485_760.0, "-u -R");
}

#[test]
fn iperf2_over_udp_reverse_for_an_allowed_address() {
    if !is_installed("iperf", "-v") {
        return;
    }
    let _alone = alone();
    let allowing = |network: &str| {
        InteropServer::with(InteropOptions {
            allowed_networks: vec![network.parse().unwrap()],
            ..InteropOptions::default()
        })
    };
    let args = |host: &InteropServer| format!("-c 127.0.0.1 -p {} -u -t 1 -R -b 2M", host.port);
    let host = allowing("127.0.0.1");
    run("iperf", &args(&host));
    let record = host.record();
    assert!(
        direction_summary(&record, Direction::Receive)
            .packets_sent
            .unwrap()
            > 100
    );
    // For an allowed network, the message names the option that would allow it.
    let host = allowing("127.0.0.0/8");
    run("iperf", &args(&host));
    let rejection = host.take_rejection("its address may be forged").unwrap();
    assert!(
        rejection
            .next_step
            .starts_with("--allow 127.0.0.1 (that address alone)"),
        "{rejection:?}"
    );
}

/// Boards number from 0, and have no clock or one that was not set; other payload may begin as
/// theirs does. One datagram shows none of that.
#[test]
fn boards_are_recognised_by_several_datagrams() {
    use std::net::UdpSocket;
    let (_alone, host) = (alone(), InteropServer::start());
    let board = |number: i32, ms: u32| {
        let words = [
            number as u32,
            17 + ms / 1000,
            ms % 1000 * 1000,
            0,
            1,
            5001,
            0,
            0,
            1000,
        ];
        let mut datagram: Vec<u8> = words
            .iter()
            .flat_map(|word: &u32| word.to_be_bytes())
            .collect();
        datagram.resize(500, b'z');
        datagram
    };
    type Datagram<'a> = &'a dyn Fn(i32, u32) -> Vec<u8>;
    let without_clock = |number, _| board(number, 0);
    let constant = |_, _| board(1, 0);
    let zeros = |_, _| vec![0; 500];
    for (name, datagram, first, protocol) in [
        ("from 0", &board as Datagram<'_>, 0, "iperf2-legacy"),
        ("from 1 without a clock", &without_clock, 1, "iperf2-legacy"),
        ("the first one lost", &board, 2, "iperf2-legacy"),
        ("a constant", &constant, 0, "plain"),
        ("zeros", &zeros, 0, "plain"),
    ] {
        let is_legacy = protocol == "iperf2-legacy";
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", host.port)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let start = Instant::now();
        let now_ms = || start.elapsed().as_millis() as u32;
        // Every tenth is lost, and the last ten.
        for number in (0..100).filter(|number| number % 10 != 9 && *number < 90) {
            socket.send(&datagram(first + number, now_ms())).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(100));
        if is_legacy {
            socket.send(&datagram(-(first + 100), 0)).unwrap();
            let mut report = [0; 500];
            assert!(socket.recv(&mut report).unwrap() >= 56, "{name}");
            let word = |at: usize| u32::from_be_bytes(report[at..at + 4].try_into().unwrap());
            // The number before the first received one counts for the client, as with its own
            // server.
            let before_first = u32::from(first == 2);
            assert_eq!((word(36), word(40)), (19 + before_first, 0), "{name}");
        }
        let record = host.record();
        let summary = &record.summary;
        assert_eq!(
            record.plan.peer_protocol.as_deref(),
            Some(protocol),
            "{name}"
        );
        assert_eq!(summary.packets_received, Some(81), "{name}");
        assert_eq!(summary.lost, is_legacy.then_some(19), "{name}");
        // A clock that stands still shows no variation.
        let has_clock = is_legacy && !name.contains("without");
        assert_eq!(summary.ipdv_ns.is_some(), has_clock, "{name}");
        // The lost datagrams at the end take their time.
        let min_ns = if is_legacy { 250_000_000 } else { 150_000_000 };
        assert!(
            summary.duration_ns.unwrap() >= min_ns,
            "{name}: {:?}",
            summary.duration_ns
        );
    }
}
