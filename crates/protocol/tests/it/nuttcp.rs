//! nuttcp's control connection, compared with recordings of the upstream program.

use linerate_protocol::nuttcp::{
    CpuTimes, LINE_LIMIT_BYTES, NuttcpClient, NuttcpClientEvent, NuttcpCounts, NuttcpDirection,
    NuttcpError, NuttcpInterval, NuttcpServer, NuttcpServerEvent, NuttcpTest, REPORTED_BYTES_ERROR,
    TEXT_LIMIT_BYTES, VERSION,
};
use linerate_protocol::remote_report::{RemoteFigures, RemoteReport};
use linerate_protocol::sniff::{Classification, ProtocolMatch, TransportKind, classify};
use linerate_record::plan::Direction;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Recorded exchange: lines of the client and of the server.
struct Recorded {
    name: &'static str,
    client: Vec<String>,
    server: Vec<String>,
}

macro_rules! recorded {
    ($($name:literal),* $(,)?) => {
        vec![$(Recorded::read($name, include_str!(concat!("../fixtures/nuttcp-6.1.2/", $name, ".txt")))),*]
    };
}

impl Recorded {
    fn read(name: &'static str, text: &str) -> Self {
        let side = |prefix: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
            lines.map(|line| format!("{line}\n")).collect()
        };
        Self {
            name,
            client: side("C: "),
            server: side("S: "),
        }
    }
}

fn recorded() -> Vec<Recorded> {
    recorded![
        "tcp-send",
        "tcp-receive",
        "tcp-ten-buffers",
        "tcp-send-intervals",
        "tcp-receive-intervals",
        "tcp-flip",
        "tcp-streams",
        "tcp-parse",
        "tcp-parse-intervals",
        "tcp-options",
        "udp-send",
        "udp-receive",
        "udp-send-intervals",
        "udp-parse",
        "udp-parse-intervals",
        "udp-running-totals",
        "traceroute",
        "third-party",
    ]
}

/// Returns the test that a recorded client requests from our server.
fn requested_test(run: &Recorded) -> Result<NuttcpTest, String> {
    let mut server = NuttcpServer::default();
    server.receive(run.client.concat().as_bytes()).unwrap();
    match server.poll().unwrap() {
        NuttcpServerEvent::Prepare(test) => Ok(test),
        _ => Err(String::from_utf8(server.outgoing().to_vec()).unwrap()),
    }
}

#[test]
fn requests_of_reference_clients() {
    let mut text = String::new();
    for run in recorded() {
        let requested = requested_test(&run);
        text += &format!("{}: {requested:#?}\n", run.name);
        if let Ok(test) = requested {
            // Our client requests it with the same text.
            let mut client = NuttcpClient::new(test).unwrap();
            assert_eq!(client.outgoing(), run.client[0].as_bytes());
            client.mark_sent(client.outgoing().len());
            client.receive(run.server[0].as_bytes()).unwrap();
            assert!(matches!(client.poll(), Some(NuttcpClientEvent::Prepare(_))));
            client.mark_ready();
            let line = String::from_utf8(client.outgoing().to_vec()).unwrap();
            // The client alone prints running totals and the like; ours does not request them.
            let line = line.replace("format = 2048", "format = 2053");
            let upstream = run.client[1].replace("format = 2048", "format = 2053");
            assert_eq!(line, upstream, "{}", run.name);
        }
    }
    insta::assert_snapshot!(text);
}

/// Replays a server's lines to our client.
fn replay(run: &Recorded, cut: usize) -> (Vec<NuttcpClientEvent>, RemoteReport) {
    let mut client = NuttcpClient::new(requested_test(run).unwrap()).unwrap();
    let mut events = Vec::new();
    let hello = run.server[0].len();
    let stream = run.server.concat();
    let (hello, rest) = stream.as_bytes().split_at(hello);
    for piece in hello.chunks(cut) {
        client.receive(piece).unwrap();
    }
    events.extend(std::iter::from_fn(|| client.poll()));
    client.mark_ready();
    for piece in rest.chunks(cut) {
        client.receive(piece).unwrap();
        events.extend(std::iter::from_fn(|| client.poll()));
    }
    client.mark_closed().unwrap();
    events.extend(std::iter::from_fn(|| client.poll()));
    assert_eq!(client.server_version(), Some(VERSION));
    (events, client.remote_report())
}

#[test]
fn reports_of_reference_servers() {
    let mut text = String::new();
    for run in recorded() {
        if requested_test(&run).is_err() {
            continue;
        }
        let (events, report) = replay(&run, 1_000);
        text += &format!("{}:\n", run.name);
        for event in &events {
            match event {
                NuttcpClientEvent::Prepare(_) => text += "  prepare\n",
                NuttcpClientEvent::Start(_) => text += "  start\n",
                other => text += &format!("  {other:?}\n"),
            }
        }
        assert_eq!(report.flows.len(), 1, "{}", run.name);
        text += &format!("  {:?}\n", report.flows[0]);
        // Splitting the bytes changes nothing.
        for cut in [1, 2, 7, 100] {
            assert_eq!(
                replay(&run, cut),
                (events.clone(), report.clone()),
                "{} {cut}",
                run.name
            );
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn bytes_that_a_report_rounds_are_whole_buffers() {
    // 0.0477 MB in the report of 50 datagrams of 1000 B.
    let runs = recorded();
    let run = runs.iter().find(|run| run.name == "udp-send").unwrap();
    let (_, report) = replay(run, 100);
    let flow = report.flows[0];
    assert_eq!(flow.direction, Direction::Send);
    assert_eq!(flow.figures.bytes, Some(50_000));
    assert_eq!(flow.figures.packets, Some(50));
    assert_eq!(flow.figures.lost, None, "a server does not report it");
    assert!(50_000u64.abs_diff((0.0477f64 * 1_048_576.0) as u64) <= REPORTED_BYTES_ERROR);
}

/// Connects our two ends; returns the server's output, the client's report and events.
fn run_test(
    test: &NuttcpTest,
    counts: &NuttcpCounts,
    intervals: &[NuttcpInterval],
) -> (String, RemoteReport, Vec<NuttcpClientEvent>) {
    let mut client = NuttcpClient::new(test.clone()).unwrap();
    let mut server = NuttcpServer::default();
    let (mut output, mut events) = (String::new(), Vec::new());
    loop {
        server.receive(client.outgoing()).unwrap();
        client.mark_sent(client.outgoing().len());
        let event = server.poll();
        match &event {
            Some(NuttcpServerEvent::Prepare(prepared)) => {
                assert_eq!(prepared, test);
                server.mark_ready();
            }
            Some(NuttcpServerEvent::Run(_)) => {
                for interval in intervals {
                    server.report_interval(interval);
                }
                server.finish(counts);
            }
            _ => {}
        }
        output += std::str::from_utf8(server.outgoing()).unwrap();
        client.receive(server.outgoing()).unwrap();
        server.mark_sent(server.outgoing().len());
        while let Some(event) = client.poll() {
            if let NuttcpClientEvent::Prepare(_) = event {
                client.mark_ready();
            }
            events.push(event);
        }
        if event == Some(NuttcpServerEvent::Close) {
            break;
        }
    }
    client.mark_closed().unwrap();
    (output, client.remote_report(), events)
}

#[test]
fn replies_of_our_server() {
    let counts = NuttcpCounts {
        bytes: 2_702_180_352,
        duration_ns: 500_153_000,
        cpu: Some(CpuTimes {
            user_ns: 10_000_000,
            system_ns: 230_000_000,
        }),
        calls: Some(48_052),
        retransmits: Some(3),
        rtt_ns: Some(104_000),
        mss: Some(1_448),
    };
    let minimum = NuttcpCounts {
        bytes: 0,
        duration_ns: 0,
        ..NuttcpCounts::default()
    };
    let mut text = String::new();
    for transport in [TransportKind::Stream, TransportKind::Datagram] {
        for direction in [NuttcpDirection::ToServer, NuttcpDirection::ToClient] {
            for parseable in [false, true] {
                let test = NuttcpTest {
                    parseable,
                    interval_ns: Some(300 * MS),
                    ..NuttcpTest::new(direction, transport, 5_001)
                };
                let interval = NuttcpInterval {
                    bytes: 1_438_777_344,
                    duration_ns: 300 * MS,
                    lost_of: (transport == TransportKind::Datagram).then_some((12, 1_000)),
                    retransmits: (transport == TransportKind::Stream).then_some(2),
                };
                let (output, report, _) = run_test(&test, &counts, &[interval]);
                text += &format!("{direction:?} {transport:?} {parseable}\n{output}\n");
                let figures = report.flows[0].figures;
                assert!(figures.bytes.unwrap().abs_diff(counts.bytes) <= REPORTED_BYTES_ERROR);
                assert!(figures.duration_ns.unwrap().abs_diff(counts.duration_ns) < MS);
                assert_eq!(figures.retransmits, Some(3));
                let (output, report, _) = run_test(&test, &minimum, &[]);
                text += &format!("nothing\n{output}\n");
                assert_eq!(report.flows[0].figures.bytes, Some(0), "reported as zero");
                assert_eq!(report.flows[0].figures.retransmits, None, "not reported");
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_client_that_reads_nothing_has_few_lines_waiting() {
    let test = NuttcpTest {
        interval_ns: Some(MS),
        ..NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Stream, 5_001)
    };
    let mut client = NuttcpClient::new(test).unwrap();
    let mut server = NuttcpServer::default();
    let mut rounds = 0;
    while !matches!(server.poll(), Some(NuttcpServerEvent::Prepare(_))) {
        server.receive(client.outgoing()).unwrap();
        client.mark_sent(client.outgoing().len());
        client.receive(server.outgoing()).unwrap();
        server.mark_sent(server.outgoing().len());
        if let Some(NuttcpClientEvent::Prepare(_)) = client.poll() {
            client.mark_ready();
        }
        rounds += 1;
        assert!(rounds < 100, "they do not agree");
    }
    server.mark_ready();
    let interval = NuttcpInterval {
        bytes: 1,
        duration_ns: MS,
        lost_of: None,
        retransmits: None,
    };
    for _ in 0..10_000 {
        server.report_interval(&interval);
    }
    let waiting = server.outgoing().len();
    assert!((60 << 10..66 << 10).contains(&waiting), "{waiting}");
}

#[test]
fn rejected_tests_report_the_reason() {
    let line = NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Stream, 5_001);
    let mut client = NuttcpClient::new(line).unwrap();
    client.receive(b"HELO nuttcp v6.1.2\n").unwrap();
    client.mark_sent(client.outgoing().len());
    client.mark_ready();
    let good = String::from_utf8(client.outgoing().to_vec()).unwrap();
    let mut text = String::new();
    for (from, to) in [
        ("buflen = 65536", "buflen = 0"),
        ("buflen = 65536", "buflen = 99999999999999999999"),
        ("buflen = 65536", "buflen = -1"),
        ("buflen = 65536, ", ""),
        ("nbuf = 2147483647", "nbuf = 0"),
        ("nstream = 1", "nstream = 0"),
        ("nstream = 1", "nstream = 129"),
        ("port = 5001", "port = 80"),
        (
            "nstream = 1, rate = 4294967295, port = 5001",
            "nstream = 100, rate = 0, port = 65500",
        ),
        ("timeout = 10.000000", "timeout = -1"),
        ("timeout = 10.000000", "timeout = nan"),
        ("timeout = 10.000000", "timeout = 1e300"),
        ("udp = 0", "udp = 1"),
        ("vers = 6.1.2", "vers = 5.3.4"),
        ("vers = 6.1.2", "vers = six"),
        ("thirdparty = _NULL_", "thirdparty = 10.0.0.1"),
        ("traceroute = 0", "traceroute = 1"),
        ("multicast = 0", "multicast = 4"),
        ("tos = 0", "tos = 100"),
        (
            "udp = 0, vers = 6.1.2, interval = 0.000000, reverse = 0",
            "udp = 1, vers = 6.1.2, interval = 0, reverse = 1",
        ),
        (&good, "\n"),
        (&good, "GET / HTTP/1.1\n"),
    ] {
        assert!(good.contains(from), "{from}");
        let mut server = NuttcpServer::default();
        server.receive(b"HELO nuttcp v6.1.2\n").unwrap();
        server.mark_sent(server.outgoing().len());
        server.receive(good.replace(from, to).as_bytes()).unwrap();
        assert_eq!(
            server.poll(),
            Some(NuttcpServerEvent::Close),
            "{from} -> {to}"
        );
        let output = std::str::from_utf8(server.outgoing()).unwrap();
        // Our client reports the reason.
        let mut client = NuttcpClient::new(NuttcpTest::new(
            NuttcpDirection::ToServer,
            TransportKind::Stream,
            5_001,
        ))
        .unwrap();
        client.receive(b"HELO nuttcp v6.1.2\n").unwrap();
        client.mark_ready();
        let error = client.receive(output.as_bytes()).unwrap_err();
        assert!(matches!(error, NuttcpError::Rejected { .. }), "{error}");
        text += &format!("{} -> {to:?}\n{output}\n", from.trim());
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_reason_is_limited_to_one_line() {
    let mut server = NuttcpServer::default();
    server.receive(b"HELO nuttcp v6.1.2\n").unwrap();
    server.mark_sent(server.outgoing().len());
    server.reject("no\nKO\nOK v6.1.2\x1b[31m");
    let output = String::from_utf8(server.outgoing().to_vec()).unwrap();
    assert_eq!(output, "KO\nnuttcp: v6.1.2: no KO OK v6.1.2 [31m\nKO\n");
}

#[test]
fn tests_that_nuttcp_cannot_do_are_not_requested() {
    let good = NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Datagram, 5_001);
    for bad in [
        NuttcpTest {
            flip: true,
            ..good.clone()
        },
        NuttcpTest {
            buffer_bytes: 70_000,
            ..good.clone()
        },
        NuttcpTest {
            buffer_bytes: 4,
            ..good.clone()
        },
        NuttcpTest {
            streams: 0,
            ..good.clone()
        },
        NuttcpTest {
            first_port: 7,
            ..good.clone()
        },
    ] {
        assert!(matches!(
            NuttcpClient::new(bad),
            Err(NuttcpError::Unsupported { .. })
        ));
    }
    assert!(NuttcpClient::new(good).is_ok());
}

#[test]
fn the_connecting_end() {
    let test = |direction, flip| NuttcpTest {
        flip,
        streams: 3,
        ..NuttcpTest::new(direction, TransportKind::Stream, 5_001)
    };
    for (direction, flip, client) in [
        (NuttcpDirection::ToServer, false, true),
        (NuttcpDirection::ToServer, true, false),
        (NuttcpDirection::ToClient, false, false),
        (NuttcpDirection::ToClient, true, true),
    ] {
        assert_eq!(test(direction, flip).client_connects(), client);
    }
    let test = test(NuttcpDirection::ToServer, false);
    assert_eq!(test.ports().collect::<Vec<_>>(), [5_001, 5_002, 5_003]);
}

#[test]
fn other_and_old_peers_are_rejected() {
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n"[..], "NotNuttcp"),
        (b"HELO nuttcp v6\n", "NotNuttcp"),
        (b"HELO nuttcp v6.1.2.3\n", "NotNuttcp"),
        (b"HELO nuttcp v99999.1.2\n", "NotNuttcp"),
        (b"\n", "NotNuttcp"),
    ] {
        let error = NuttcpServer::default().receive(bytes).unwrap_err();
        assert!(
            format!("{error:?}").starts_with(expected),
            "{bytes:?}: {error:?}"
        );
        let mut client = NuttcpClient::new(NuttcpTest::new(
            NuttcpDirection::ToServer,
            TransportKind::Stream,
            5_001,
        ))
        .unwrap();
        let error = client.receive(bytes).unwrap_err();
        assert!(
            format!("{error:?}").starts_with(expected),
            "{bytes:?}: {error:?}"
        );
        assert_eq!(client.receive(b""), Err(NuttcpError::AlreadyFailed));
    }
    let mut client = NuttcpClient::new(NuttcpTest::new(
        NuttcpDirection::ToServer,
        TransportKind::Stream,
        5_001,
    ))
    .unwrap();
    let error = client.receive(b"HELO nuttcp v4.0.3\n").unwrap_err();
    insta::assert_snapshot!(error, @"the peer is nuttcp 4.0.3, older than 5.4.1: update it there");
    // OK before the request is an error; calling ready after it has no effect.
    let mut client = NuttcpClient::new(NuttcpTest::new(
        NuttcpDirection::ToServer,
        TransportKind::Stream,
        5_001,
    ))
    .unwrap();
    assert!(client.receive(b"HELO nuttcp v6.1.2\nOK v6.1.2\n").is_err());
    assert!(matches!(client.poll(), Some(NuttcpClientEvent::Prepare(_))));
    let waiting = client.outgoing().len();
    client.mark_ready();
    assert_eq!(client.outgoing().len(), waiting);
    // Closing before a test was accepted is an error.
    assert_eq!(
        NuttcpServer::default().mark_closed(),
        Err(NuttcpError::PeerClosed)
    );
    let mut client = NuttcpClient::new(NuttcpTest::new(
        NuttcpDirection::ToServer,
        TransportKind::Stream,
        5_001,
    ))
    .unwrap();
    assert_eq!(client.mark_closed(), Err(NuttcpError::PeerClosed));
}

#[test]
fn memory_is_bounded() {
    let mut server = NuttcpServer::default();
    let long = vec![b'x'; LINE_LIMIT_BYTES + 1];
    assert_eq!(server.receive(&long), Err(NuttcpError::LineTooLong));
    assert_eq!(server.receive(b"\n"), Err(NuttcpError::AlreadyFailed));
    // Data from a client after its parameters is not stored.
    let run = &recorded()[0];
    let mut server = NuttcpServer::default();
    server.receive(run.client.concat().as_bytes()).unwrap();
    for _ in 0..1_000 {
        server.receive(&long).unwrap();
    }
    // An endless report is cut off.
    let mut client = NuttcpClient::new(requested_test(run).unwrap()).unwrap();
    client.receive(run.server[0].as_bytes()).unwrap();
    client.mark_ready();
    client.receive(run.server[1].as_bytes()).unwrap();
    // The totals after an hour of intervals are stored.
    let line = b"  871.1875 MB /   0.30 sec = 24355.6217 Mbps     0 retrans\n";
    for _ in 0..3_600 {
        client.receive(line).unwrap();
    }
    client
        .receive(b"nuttcp-r: 3600.0 real seconds in all\n")
        .unwrap();
    let text = &client.report().text;
    assert_eq!(text.len(), 2_001);
    assert!(text.last().unwrap().ends_with("in all"), "{text:?}");
    let mut accepted = 3_600 * line.len();
    let error = loop {
        match client.receive(line) {
            Ok(()) => accepted += line.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error, NuttcpError::ReportTooLong);
    assert!(accepted <= TEXT_LIMIT_BYTES);
    assert!(client.report().text.len() <= 2_064);
    let events = std::iter::from_fn(|| client.poll()).count();
    assert!(events <= 4_100, "{events}");
}

#[test]
fn control_characters_are_replaced() {
    let run = &recorded()[0];
    let mut client = NuttcpClient::new(requested_test(run).unwrap()).unwrap();
    client.receive(run.server[0].as_bytes()).unwrap();
    client.mark_ready();
    client
        .receive(b"OK v6.1.2\nnuttcp-r: \x1b[2J\x07red\xff\n")
        .unwrap();
    assert_eq!(
        client.report().text,
        ["nuttcp-r: \u{fffd}[2J\u{fffd}red\u{fffd}"]
    );
}

#[test]
fn a_client_is_classified_by_its_first_line() {
    let name = |bytes: &[u8]| match classify(TransportKind::Stream, bytes) {
        Classification::Known(dialect) => dialect.name,
        Classification::NeedMore => "more",
        Classification::Unknown => "none",
    };
    for (bytes, expected) in [
        (&b"HELO nuttcp v6.1.2\n"[..], "nuttcp"),
        (b"HELO nuttcp v8", "nuttcp"),
        (b"HELO nuttcp", "more"),
        (b"HELO", "more"),
        (b"HELO mail.example\r\n", "none"),
        (b"buflen = 1", "none"),
    ] {
        assert_eq!(name(bytes), expected, "{bytes:?}");
    }
    let datagram = linerate_protocol::nuttcp::PROTOCOL.detect;
    assert_eq!(
        datagram(TransportKind::Datagram, b"BOD0"),
        ProtocolMatch::Yes
    );
    assert_eq!(
        datagram(TransportKind::Datagram, b"BOD0x"),
        ProtocolMatch::No
    );
    assert_eq!(
        datagram(TransportKind::Datagram, b"HELO nuttcp v"),
        ProtocolMatch::No
    );
}

fn tests() -> impl Strategy<Value = NuttcpTest> {
    (
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        (1u16..=128, 5_000u16..60_000, 5usize..65_507),
        (
            prop::option::of(1u64..2_000_000_000),
            prop::option::of(1u64..100_000_000),
            prop::option::of(1u64..4_000_000_000),
            prop::option::of(1u64..100_000_000),
        ),
        (
            prop::option::of(1u32..1 << 30),
            prop::option::of(1u32..9_000),
            any::<u8>(),
            any::<bool>(),
            any::<bool>(),
        ),
    )
        .prop_map(|(flags, places, limits, options)| {
            let (to_server, udp, flip, parseable) = flags;
            let (streams, first_port, buffer_bytes) = places;
            let (buffers, time_us, rate_kbps, interval_us) = limits;
            let (window_bytes, mss, tos, no_delay, rate_instantaneous) = options;
            NuttcpTest {
                direction: if to_server {
                    NuttcpDirection::ToServer
                } else {
                    NuttcpDirection::ToClient
                },
                transport: if udp {
                    TransportKind::Datagram
                } else {
                    TransportKind::Stream
                },
                streams,
                first_port,
                buffer_bytes,
                buffer_limit: buffers,
                duration_ns: time_us.map(|us| us * 1_000),
                rate_kbps,
                rate_is_instantaneous: rate_instantaneous,
                window_bytes,
                interval_ns: interval_us.map(|us| us * 1_000),
                flip: flip && !udp,
                mss,
                tos,
                no_delay,
                parseable,
            }
        })
}

proptest! {
    /// The server reads the request that the client sent, and the client reads the counters that
    /// the server sent.
    #[test]
    fn our_ends_interoperate(
        test in tests(),
        bytes in 0u64..1 << 45,
        duration_ns in 10_000_000u64..1 << 40,
        retransmits in prop::option::of(0u64..1 << 40),
        lost in prop::option::of((0u64..1 << 30, 1u64..1 << 30)),
    ) {
        let counts = NuttcpCounts { bytes, duration_ns, retransmits, ..NuttcpCounts::default() };
        let udp = test.transport == TransportKind::Datagram;
        let interval = NuttcpInterval {
            bytes,
            duration_ns,
            lost_of: lost.filter(|_| udp),
            retransmits: retransmits.filter(|_| !udp),
        };
        let (_, report, events) = run_test(&test, &counts, &[interval]);
        let figures = report.flows[0].figures;
        // Rounded once by the report, and once to complete buffers, which these bytes are not.
        prop_assert!(figures.bytes.unwrap().abs_diff(bytes) <= 2 * REPORTED_BYTES_ERROR);
        prop_assert_eq!(figures.retransmits, retransmits);
        if bytes > 1 << 20 {
            let error = figures.duration_ns.unwrap().abs_diff(duration_ns);
            prop_assert!(error <= 10_000_000 + duration_ns / 1_000, "{error}");
        }
        let reported = events.iter().find_map(|event| match event {
            NuttcpClientEvent::Interval(interval) => Some(interval),
            _ => None,
        });
        let receives = test.direction == NuttcpDirection::ToServer && test.interval_ns.is_some();
        prop_assert_eq!(reported.is_some(), receives);
        if let Some(reported) = reported {
            prop_assert!(reported.bytes.abs_diff(bytes) <= 2 * REPORTED_BYTES_ERROR);
            prop_assert_eq!(reported.lost_of, interval.lost_of);
            prop_assert_eq!(reported.retransmits, interval.retransmits);
        }
    }

    /// Splitting a client's lines changes nothing.
    #[test]
    fn splits_change_nothing(test in tests(), splits in prop::collection::vec(1usize..80, 1..10)) {
        let mut client = NuttcpClient::new(test.clone()).unwrap();
        let mut stream = client.outgoing().to_vec();
        client.mark_sent(stream.len());
        client.receive(b"HELO nuttcp v8.2.2\n").unwrap();
        client.mark_ready();
        stream.extend_from_slice(client.outgoing());
        let mut server = NuttcpServer::default();
        let mut rest = &stream[..];
        for cut in splits.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            server.receive(piece).unwrap();
            rest = after;
        }
        prop_assert_eq!(server.outgoing(), b"HELO nuttcp v6.1.2\n");
        prop_assert_eq!(server.poll(), Some(NuttcpServerEvent::Prepare(test)));
    }

    #[test]
    fn hostile_bytes_harm_neither_end(
        lines in prop::collection::vec("(HELO nuttcp v6.1.2|OK v6.1.2|KO|DONE|nuttcp-r: .{0,60}|.{0,40} MB / .{0,20} sec = .{0,10}Mbps .{0,20}drop.{0,9}|[ -~]{0,80})\n?", 0..12),
    ) {
        let mut server = NuttcpServer::default();
        for line in &lines {
            let _ = server.receive(line.as_bytes());
        }
        let mut client = NuttcpClient::new(NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Stream, 5_001)).unwrap();
        client.receive(b"HELO nuttcp v6.1.2\n").unwrap();
        client.mark_ready();
        for line in &lines {
            let _ = client.receive(line.as_bytes());
        }
        let _ = client.mark_closed();
        let _ = client.remote_report();
    }
}

#[test]
fn without_a_report_all_figures_are_absent() {
    let client = NuttcpClient::new(NuttcpTest::new(
        NuttcpDirection::ToServer,
        TransportKind::Stream,
        5_001,
    ))
    .unwrap();
    assert_eq!(client.remote_report(), RemoteReport::default());
    assert_eq!(
        NuttcpServer::default().remote_report(),
        RemoteReport::default()
    );
    assert_eq!(RemoteFigures::default().bytes, None);
}
