//! nuttcp's control connection, compared with recordings of the upstream program.

use linerate_dialect::nuttcp::{
    BYTES_ERROR, Client, ClientEvent, Counts, Cpu, Interval, LINE_LIMIT_BYTES, NuttcpError, Server,
    ServerEvent, TEXT_LIMIT_BYTES, Test, VERSION, Way,
};
use linerate_dialect::remote_report::{FarFigures, FarReport};
use linerate_dialect::sniff::{Carrier, Speaker, Verdict, speaker};
use linerate_metric::plan::Direction;
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
        vec![$(Recorded::read($name, include_str!(concat!("fixtures/nuttcp-6.1.2/", $name, ".txt")))),*]
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
fn asked(run: &Recorded) -> Result<Test, String> {
    let mut server = Server::default();
    server.receive(run.client.concat().as_bytes()).unwrap();
    match server.poll().unwrap() {
        ServerEvent::Prepare(test) => Ok(test),
        _ => Err(String::from_utf8(server.outgoing().to_vec()).unwrap()),
    }
}

#[test]
fn what_stock_clients_ask_for() {
    let mut text = String::new();
    for run in recorded() {
        let asked = asked(&run);
        text += &format!("{}: {asked:#?}\n", run.name);
        if let Ok(test) = asked {
            // Our client requests it with the same text.
            let mut client = Client::new(test).unwrap();
            assert_eq!(client.outgoing(), run.client[0].as_bytes());
            client.sent(client.outgoing().len());
            client.receive(run.server[0].as_bytes()).unwrap();
            assert!(matches!(client.poll(), Some(ClientEvent::Prepare(_))));
            client.ready();
            let line = String::from_utf8(client.outgoing().to_vec()).unwrap();
            // The client alone prints running totals and the like; ours does not request them.
            let line = line.replace("format = 2048", "format = 2053");
            let stock = run.client[1].replace("format = 2048", "format = 2053");
            assert_eq!(line, stock, "{}", run.name);
        }
    }
    insta::assert_snapshot!(text);
}

/// Replays a server's lines to our client.
fn replayed(run: &Recorded, cut: usize) -> (Vec<ClientEvent>, FarReport) {
    let mut client = Client::new(asked(run).unwrap()).unwrap();
    let mut events = Vec::new();
    let hello = run.server[0].len();
    let stream = run.server.concat();
    let (hello, rest) = stream.as_bytes().split_at(hello);
    for piece in hello.chunks(cut) {
        client.receive(piece).unwrap();
    }
    events.extend(std::iter::from_fn(|| client.poll()));
    client.ready();
    for piece in rest.chunks(cut) {
        client.receive(piece).unwrap();
        events.extend(std::iter::from_fn(|| client.poll()));
    }
    client.closed().unwrap();
    events.extend(std::iter::from_fn(|| client.poll()));
    assert_eq!(client.server_version(), Some(VERSION));
    (events, client.far_report())
}

#[test]
fn what_stock_servers_report() {
    let mut text = String::new();
    for run in recorded() {
        if asked(&run).is_err() {
            continue;
        }
        let (events, report) = replayed(&run, 1_000);
        text += &format!("{}:\n", run.name);
        for event in &events {
            match event {
                ClientEvent::Prepare(_) => text += "  prepare\n",
                ClientEvent::Start(_) => text += "  start\n",
                other => text += &format!("  {other:?}\n"),
            }
        }
        assert_eq!(report.flows.len(), 1, "{}", run.name);
        text += &format!("  {:?}\n", report.flows[0]);
        // Splitting the bytes changes nothing.
        for cut in [1, 2, 7, 100] {
            assert_eq!(
                replayed(&run, cut),
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
    let (_, report) = replayed(run, 100);
    let flow = report.flows[0];
    assert_eq!(flow.direction, Direction::Send);
    assert_eq!(flow.figures.bytes, Some(50_000));
    assert_eq!(flow.figures.packets, Some(50));
    assert_eq!(flow.figures.lost, None, "a server does not report it");
    assert!(50_000u64.abs_diff((0.0477f64 * 1_048_576.0) as u64) <= BYTES_ERROR);
}

/// Connects our two ends; returns the server's output, the client's report and events.
fn converse(
    test: &Test,
    counts: &Counts,
    intervals: &[Interval],
) -> (String, FarReport, Vec<ClientEvent>) {
    let mut client = Client::new(test.clone()).unwrap();
    let mut server = Server::default();
    let (mut said, mut events) = (String::new(), Vec::new());
    loop {
        server.receive(client.outgoing()).unwrap();
        client.sent(client.outgoing().len());
        let event = server.poll();
        match &event {
            Some(ServerEvent::Prepare(prepared)) => {
                assert_eq!(prepared, test);
                server.ready();
            }
            Some(ServerEvent::Run(_)) => {
                for interval in intervals {
                    server.interval(interval);
                }
                server.finish(counts);
            }
            _ => {}
        }
        said += std::str::from_utf8(server.outgoing()).unwrap();
        client.receive(server.outgoing()).unwrap();
        server.sent(server.outgoing().len());
        while let Some(event) = client.poll() {
            if let ClientEvent::Prepare(_) = event {
                client.ready();
            }
            events.push(event);
        }
        if event == Some(ServerEvent::Close) {
            break;
        }
    }
    client.closed().unwrap();
    (said, client.far_report(), events)
}

#[test]
fn what_our_server_says() {
    let counts = Counts {
        bytes: 2_702_180_352,
        duration_ns: 500_153_000,
        cpu: Some(Cpu {
            user_ns: 10_000_000,
            system_ns: 230_000_000,
        }),
        calls: Some(48_052),
        retransmits: Some(3),
        rtt_ns: Some(104_000),
        mss: Some(1_448),
    };
    let least = Counts {
        bytes: 0,
        duration_ns: 0,
        ..Counts::default()
    };
    let mut text = String::new();
    for carrier in [Carrier::Stream, Carrier::Datagram] {
        for way in [Way::ToServer, Way::ToClient] {
            for parseable in [false, true] {
                let test = Test {
                    parseable,
                    interval_ns: Some(300 * MS),
                    ..Test::new(way, carrier, 5_001)
                };
                let interval = Interval {
                    bytes: 1_438_777_344,
                    duration_ns: 300 * MS,
                    lost_of: (carrier == Carrier::Datagram).then_some((12, 1_000)),
                    retransmits: (carrier == Carrier::Stream).then_some(2),
                };
                let (said, report, _) = converse(&test, &counts, &[interval]);
                text += &format!("{way:?} {carrier:?} {parseable}\n{said}\n");
                let figures = report.flows[0].figures;
                assert!(figures.bytes.unwrap().abs_diff(counts.bytes) <= BYTES_ERROR);
                assert!(figures.duration_ns.unwrap().abs_diff(counts.duration_ns) < MS);
                assert_eq!(figures.retransmits, Some(3));
                let (said, report, _) = converse(&test, &least, &[]);
                text += &format!("nothing\n{said}\n");
                assert_eq!(report.flows[0].figures.bytes, Some(0), "reported as zero");
                assert_eq!(report.flows[0].figures.retransmits, None, "not reported");
            }
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_client_that_reads_nothing_has_few_lines_waiting() {
    let test = Test {
        interval_ns: Some(MS),
        ..Test::new(Way::ToServer, Carrier::Stream, 5_001)
    };
    let mut client = Client::new(test).unwrap();
    let mut server = Server::default();
    let mut turns = 0;
    while !matches!(server.poll(), Some(ServerEvent::Prepare(_))) {
        server.receive(client.outgoing()).unwrap();
        client.sent(client.outgoing().len());
        client.receive(server.outgoing()).unwrap();
        server.sent(server.outgoing().len());
        if let Some(ClientEvent::Prepare(_)) = client.poll() {
            client.ready();
        }
        turns += 1;
        assert!(turns < 100, "they do not agree");
    }
    server.ready();
    let interval = Interval {
        bytes: 1,
        duration_ns: MS,
        lost_of: None,
        retransmits: None,
    };
    for _ in 0..10_000 {
        server.interval(&interval);
    }
    let waiting = server.outgoing().len();
    assert!((60 << 10..66 << 10).contains(&waiting), "{waiting}");
}

#[test]
fn tests_that_are_refused_say_why() {
    let line = Test::new(Way::ToServer, Carrier::Stream, 5_001);
    let mut client = Client::new(line).unwrap();
    client.receive(b"HELO nuttcp v6.1.2\n").unwrap();
    client.sent(client.outgoing().len());
    client.ready();
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
        let mut server = Server::default();
        server.receive(b"HELO nuttcp v6.1.2\n").unwrap();
        server.sent(server.outgoing().len());
        server.receive(good.replace(from, to).as_bytes()).unwrap();
        assert_eq!(server.poll(), Some(ServerEvent::Close), "{from} -> {to}");
        let said = std::str::from_utf8(server.outgoing()).unwrap();
        // Our client reports the reason.
        let mut client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
        client.receive(b"HELO nuttcp v6.1.2\n").unwrap();
        client.ready();
        let heard = client.receive(said.as_bytes()).unwrap_err();
        assert!(matches!(heard, NuttcpError::Refused { .. }), "{heard}");
        text += &format!("{} -> {to:?}\n{said}\n", from.trim());
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_reason_cannot_say_more_than_one_line() {
    let mut server = Server::default();
    server.receive(b"HELO nuttcp v6.1.2\n").unwrap();
    server.sent(server.outgoing().len());
    server.refuse("no\nKO\nOK v6.1.2\x1b[31m");
    let said = String::from_utf8(server.outgoing().to_vec()).unwrap();
    assert_eq!(said, "KO\nnuttcp: v6.1.2: no KO OK v6.1.2 [31m\nKO\n");
}

#[test]
fn tests_that_nuttcp_cannot_do_are_not_asked_for() {
    let good = Test::new(Way::ToServer, Carrier::Datagram, 5_001);
    for bad in [
        Test {
            flip: true,
            ..good.clone()
        },
        Test {
            buffer_bytes: 70_000,
            ..good.clone()
        },
        Test {
            buffer_bytes: 4,
            ..good.clone()
        },
        Test {
            streams: 0,
            ..good.clone()
        },
        Test {
            first_port: 7,
            ..good.clone()
        },
    ] {
        assert!(matches!(
            Client::new(bad),
            Err(NuttcpError::Impossible { .. })
        ));
    }
    assert!(Client::new(good).is_ok());
}

#[test]
fn who_connects() {
    let test = |way, flip| Test {
        flip,
        streams: 3,
        ..Test::new(way, Carrier::Stream, 5_001)
    };
    for (way, flip, client) in [
        (Way::ToServer, false, true),
        (Way::ToServer, true, false),
        (Way::ToClient, false, false),
        (Way::ToClient, true, true),
    ] {
        assert_eq!(test(way, flip).client_connects(), client);
    }
    let test = test(Way::ToServer, false);
    assert_eq!(test.ports().collect::<Vec<_>>(), [5_001, 5_002, 5_003]);
}

#[test]
fn strangers_and_old_ones_are_told() {
    for (bytes, want) in [
        (&b"GET / HTTP/1.1\r\n"[..], "NotNuttcp"),
        (b"HELO nuttcp v6\n", "NotNuttcp"),
        (b"HELO nuttcp v6.1.2.3\n", "NotNuttcp"),
        (b"HELO nuttcp v99999.1.2\n", "NotNuttcp"),
        (b"\n", "NotNuttcp"),
    ] {
        let error = Server::default().receive(bytes).unwrap_err();
        assert!(
            format!("{error:?}").starts_with(want),
            "{bytes:?}: {error:?}"
        );
        let mut client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
        let error = client.receive(bytes).unwrap_err();
        assert!(
            format!("{error:?}").starts_with(want),
            "{bytes:?}: {error:?}"
        );
        assert_eq!(client.receive(b""), Err(NuttcpError::Failed));
    }
    let mut client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
    let error = client.receive(b"HELO nuttcp v4.0.3\n").unwrap_err();
    insta::assert_snapshot!(error, @"the peer is nuttcp 4.0.3, older than 5.4.1: update it there");
    // OK before the request is an error; calling ready after it has no effect.
    let mut client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
    assert!(client.receive(b"HELO nuttcp v6.1.2\nOK v6.1.2\n").is_err());
    assert!(matches!(client.poll(), Some(ClientEvent::Prepare(_))));
    let waiting = client.outgoing().len();
    client.ready();
    assert_eq!(client.outgoing().len(), waiting);
    // Closing before a test was accepted is an error.
    assert_eq!(Server::default().closed(), Err(NuttcpError::Vanished));
    let mut client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
    assert_eq!(client.closed(), Err(NuttcpError::Vanished));
}

#[test]
fn memory_is_bounded() {
    let mut server = Server::default();
    let long = vec![b'x'; LINE_LIMIT_BYTES + 1];
    assert_eq!(server.receive(&long), Err(NuttcpError::LineTooLong));
    assert_eq!(server.receive(b"\n"), Err(NuttcpError::Failed));
    // Data from a client after its parameters is not stored.
    let run = &recorded()[0];
    let mut server = Server::default();
    server.receive(run.client.concat().as_bytes()).unwrap();
    for _ in 0..1_000 {
        server.receive(&long).unwrap();
    }
    // An endless report is cut off.
    let mut client = Client::new(asked(run).unwrap()).unwrap();
    client.receive(run.server[0].as_bytes()).unwrap();
    client.ready();
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
    let mut taken = 3_600 * line.len();
    let error = loop {
        match client.receive(line) {
            Ok(()) => taken += line.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error, NuttcpError::TooMuch);
    assert!(taken <= TEXT_LIMIT_BYTES);
    assert!(client.report().text.len() <= 2_064);
    let events = std::iter::from_fn(|| client.poll()).count();
    assert!(events <= 4_100, "{events}");
}

#[test]
fn terminals_are_not_steered() {
    let run = &recorded()[0];
    let mut client = Client::new(asked(run).unwrap()).unwrap();
    client.receive(run.server[0].as_bytes()).unwrap();
    client.ready();
    client
        .receive(b"OK v6.1.2\nnuttcp-r: \x1b[2J\x07red\xff\n")
        .unwrap();
    assert_eq!(
        client.report().text,
        ["nuttcp-r: \u{fffd}[2J\u{fffd}red\u{fffd}"]
    );
}

#[test]
fn a_client_is_told_by_its_first_line() {
    let name = |bytes: &[u8]| match speaker(Carrier::Stream, bytes) {
        Speaker::Known(dialect) => dialect.name,
        Speaker::NeedMore => "more",
        Speaker::Unknown => "none",
    };
    for (bytes, whose) in [
        (&b"HELO nuttcp v6.1.2\n"[..], "nuttcp"),
        (b"HELO nuttcp v8", "nuttcp"),
        (b"HELO nuttcp", "more"),
        (b"HELO", "more"),
        (b"HELO mail.example\r\n", "none"),
        (b"buflen = 1", "none"),
    ] {
        assert_eq!(name(bytes), whose, "{bytes:?}");
    }
    let datagram = linerate_dialect::nuttcp::DIALECT.recognise;
    assert_eq!(datagram(Carrier::Datagram, b"BOD0"), Verdict::Yes);
    assert_eq!(datagram(Carrier::Datagram, b"BOD0x"), Verdict::No);
    assert_eq!(datagram(Carrier::Datagram, b"HELO nuttcp v"), Verdict::No);
}

fn tests() -> impl Strategy<Value = Test> {
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
            Test {
                way: if to_server {
                    Way::ToServer
                } else {
                    Way::ToClient
                },
                carrier: if udp {
                    Carrier::Datagram
                } else {
                    Carrier::Stream
                },
                streams,
                first_port,
                buffer_bytes,
                buffers,
                time_ns: time_us.map(|us| us * 1_000),
                rate_kbps,
                rate_instantaneous,
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
    fn our_ends_understand_each_other(
        test in tests(),
        bytes in 0u64..1 << 45,
        duration_ns in 10_000_000u64..1 << 40,
        retransmits in prop::option::of(0u64..1 << 40),
        lost in prop::option::of((0u64..1 << 30, 1u64..1 << 30)),
    ) {
        let counts = Counts { bytes, duration_ns, retransmits, ..Counts::default() };
        let udp = test.carrier == Carrier::Datagram;
        let interval = Interval {
            bytes,
            duration_ns,
            lost_of: lost.filter(|_| udp),
            retransmits: retransmits.filter(|_| !udp),
        };
        let (_, report, events) = converse(&test, &counts, &[interval]);
        let figures = report.flows[0].figures;
        // Rounded once by the report, and once to complete buffers, which these bytes are not.
        prop_assert!(figures.bytes.unwrap().abs_diff(bytes) <= 2 * BYTES_ERROR);
        prop_assert_eq!(figures.retransmits, retransmits);
        if bytes > 1 << 20 {
            let error = figures.duration_ns.unwrap().abs_diff(duration_ns);
            prop_assert!(error <= 10_000_000 + duration_ns / 1_000, "{error}");
        }
        let reported = events.iter().find_map(|event| match event {
            ClientEvent::Interval(interval) => Some(interval),
            _ => None,
        });
        let receives = test.way == Way::ToServer && test.interval_ns.is_some();
        prop_assert_eq!(reported.is_some(), receives);
        if let Some(reported) = reported {
            prop_assert!(reported.bytes.abs_diff(bytes) <= 2 * BYTES_ERROR);
            prop_assert_eq!(reported.lost_of, interval.lost_of);
            prop_assert_eq!(reported.retransmits, interval.retransmits);
        }
    }

    /// Splitting a client's lines changes nothing.
    #[test]
    fn splits_change_nothing(test in tests(), cuts in prop::collection::vec(1usize..80, 1..10)) {
        let mut client = Client::new(test.clone()).unwrap();
        let mut stream = client.outgoing().to_vec();
        client.sent(stream.len());
        client.receive(b"HELO nuttcp v8.2.2\n").unwrap();
        client.ready();
        stream.extend_from_slice(client.outgoing());
        let mut server = Server::default();
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            server.receive(piece).unwrap();
            rest = after;
        }
        prop_assert_eq!(server.outgoing(), b"HELO nuttcp v6.1.2\n");
        prop_assert_eq!(server.poll(), Some(ServerEvent::Prepare(test)));
    }

    #[test]
    fn hostile_bytes_harm_neither_end(
        lines in prop::collection::vec("(HELO nuttcp v6.1.2|OK v6.1.2|KO|DONE|nuttcp-r: .{0,60}|.{0,40} MB / .{0,20} sec = .{0,10}Mbps .{0,20}drop.{0,9}|[ -~]{0,80})\n?", 0..12),
    ) {
        let mut server = Server::default();
        for line in &lines {
            let _ = server.receive(line.as_bytes());
        }
        let mut client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
        client.receive(b"HELO nuttcp v6.1.2\n").unwrap();
        client.ready();
        for line in &lines {
            let _ = client.receive(line.as_bytes());
        }
        let _ = client.closed();
        let _ = client.far_report();
    }
}

#[test]
fn nothing_said_is_nothing_known() {
    let client = Client::new(Test::new(Way::ToServer, Carrier::Stream, 5_001)).unwrap();
    assert_eq!(client.far_report(), FarReport::default());
    assert_eq!(Server::default().far_report(), FarReport::default());
    assert_eq!(FarFigures::default().bytes, None);
}
