//! iperf2 over its public face: recorded bytes of the stock program, two machines and bytes between
//! them, and peers that mean harm.

use linerate_dialect::control::{ANSWER_MAGIC, CONTROL_MAGIC, DATA_MAGIC};
use linerate_dialect::iperf2::datagram::{
    HEADER_BYTES, Header, UNANSWERED_ENDS, read_header, write_header, write_number,
};
use linerate_dialect::iperf2::settings::HEADER_LIMIT_BYTES;
use linerate_dialect::iperf2::{
    Ack, AckTimes, Amount, DIALECT, Dual, Due, Heard, Iperf2Error, LEGACY_DIALECT, Layout,
    REPORT_BYTES, Report, Settings, TcpClient, TcpJob, TcpServer, UdpClient, UdpServer, Way,
    bounceback, fill,
};
use linerate_dialect::sniff::{Carrier, Speaker, Verdict, speaker};
use proptest::prelude::*;

/// One recorded test.
struct Recorded {
    options: String,
    udp: bool,
    client: Vec<Vec<u8>>,
    server: Vec<Vec<u8>>,
}

impl Recorded {
    fn has(&self, option: &str) -> bool {
        self.options.split(' ').any(|word| word.starts_with(option))
    }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn recorded() -> Vec<Recorded> {
    let mut tests: Vec<Recorded> = Vec::new();
    for line in include_str!("fixtures/iperf2-2.1.8.hex").lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "tcp" | "udp" => tests.push(Recorded {
                options: rest.to_owned(),
                udp: word == "udp",
                client: Vec::new(),
                server: Vec::new(),
            }),
            "client" => tests.last_mut().unwrap().client.push(unhex(rest)),
            "server" => tests.last_mut().unwrap().server.push(unhex(rest)),
            _ => assert!(line.is_empty() || line.starts_with('#'), "{line}"),
        }
    }
    tests
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

/// The beginning of a connection, in pieces: what the client wants, what was taken, what was said.
fn open(bytes: &[u8], cuts: &[usize]) -> (Result<Option<String>, Iperf2Error>, u64, Vec<u8>) {
    let mut server = TcpServer::new();
    for piece in pieces(bytes, cuts) {
        match server.receive(piece, 7_000) {
            Ok((_, None)) => {}
            Ok((_, Some(job))) => {
                let job = match job {
                    TcpJob::Bounceback(server) => format!("messages of {}", server.message_bytes()),
                    job => format!("{job:?}"),
                };
                return (
                    Ok(Some(job)),
                    server.payload_bytes(),
                    server.outgoing().to_vec(),
                );
            }
            Err(error) => return (Err(error), 0, Vec::new()),
        }
    }
    (Ok(None), server.payload_bytes(), server.outgoing().to_vec())
}

fn settings(bytes: &[u8], udp: bool) -> Option<Settings> {
    let before = if udp { HEADER_BYTES } else { 0 };
    Settings::read(bytes.get(before..)?, before)
}

#[test]
fn recorded_headers_are_understood() {
    let mut out = String::new();
    for test in recorded() {
        out += &format!("{}\n", test.options);
        if test.udp {
            let mut flow = UdpServer::open(&test.client[0], 0);
            out += &format!("{:#?}\n", flow.as_ref().and_then(UdpServer::settings));
            if let (Some(flow), Some(end)) = (&mut flow, test.client.get(1)) {
                assert_eq!(flow.receive(end, 1), Heard::End, "{}", test.options);
                out += &format!("the client says that it sent {:?}\n", flow.client_sent());
            }
            for datagram in &test.server {
                out += &format!(
                    "{:?} {:?}\n",
                    Report::read(datagram),
                    read_header(datagram, true)
                );
            }
        } else {
            let (job, payload, said) = open(&test.client[0], &[]);
            out += &format!("{} ({payload} B)\n", job.unwrap().unwrap());
            // A stock server says the same, but for the times.
            let stock = test.server.first().map_or(&[][..], |said| said);
            match Ack::read(stock) {
                Some(ack) => {
                    let ours = Ack::read(&said).unwrap();
                    assert_eq!(said.len(), stock.len(), "{}", test.options);
                    assert_eq!(ours.version, ack.version);
                    let begun = |ack: Ack| ack.times.map(|times| times.client_sent_ns);
                    assert_eq!(begun(ours), begun(ack), "{}", test.options);
                }
                None if test.server.is_empty() => {}
                None => assert!(said.is_empty(), "{}", test.options),
            }
        }
        out += "\n";
    }
    insta::assert_snapshot!(out);
}

#[test]
fn our_headers_are_those_of_the_stock_client() {
    let mut same = 0;
    for test in recorded() {
        let written_otherwise = ["--trip-times", "--permit-key", "--isochronous"];
        if written_otherwise.iter().any(|option| test.has(option)) {
            continue;
        }
        let Some(settings) = settings(&test.client[0], test.udp) else {
            continue;
        };
        if test.udp {
            let ours = UdpClient::new(settings, test.client[0].len()).unwrap();
            let mut template = ours.template();
            let stock = read_header(&test.client[0], true).unwrap();
            write_header(&mut template, true, stock);
            assert_eq!(template[..76], test.client[0][..76], "{}", test.options);
        } else {
            let ours = TcpClient::new(settings).unwrap();
            assert_eq!(
                ours.header(),
                &test.client[0][..ours.header().len()],
                "{}",
                test.options
            );
            assert_eq!(ours.header().len(), 60);
        }
        same += 1;
    }
    assert_eq!(same, 17);
}

#[test]
fn trip_times_over_udp_are_where_the_stock_client_has_them() {
    let test = recorded()
        .into_iter()
        .find(|t| t.udp && t.options.ends_with("1 --trip-times"))
        .unwrap();
    let settings = settings(&test.client[0], true).unwrap();
    assert!(settings.trip_times && settings.start_ns.is_some());
    let mut ours = UdpClient::new(settings, 136).unwrap().template();
    write_header(&mut ours, true, read_header(&test.client[0], true).unwrap());
    assert_eq!(ours[..128], test.client[0][..128]);
}

#[test]
fn recorded_questions_are_answered() {
    let test = recorded()
        .into_iter()
        .find(|test| test.has("--bounceback"))
        .unwrap();
    let Ok((taken, Some(TcpJob::Bounceback(mut server)))) =
        TcpServer::new().receive(&test.client[0], 0)
    else {
        panic!("a bounceback")
    };
    let time = |bytes: &[u8], at: usize| {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * 1000
    };
    for (number, (question, stock)) in test.client.iter().zip(&test.server).enumerate() {
        let taken = if number == 0 { taken } else { 0 };
        assert!(!server.is_due());
        let rest = &question[taken..];
        assert_eq!(server.receive(rest, time(stock, 28)), rest.len());
        assert!(server.is_due() && server.wants_quick_ack());
        // With the stock server's times, its answer.
        assert_eq!(server.answer(time(stock, 36)), &stock[..]);
        server.answered();
    }
    assert_eq!(server.answers(), 2);
}

#[test]
fn recorded_reports_and_ours_agree() {
    for test in recorded().iter().filter(|test| test.udp) {
        let Some(stock) = test.server.first().and_then(|bytes| Report::read(bytes)) else {
            continue;
        };
        // The flow again, with the same numbers: what the stock server counted, we count.
        let mut flow = UdpServer::open(&sized(&test.client[0], 1470), 0).unwrap();
        let end = read_header(&test.client[1], true)
            .unwrap()
            .sequence
            .unsigned_abs();
        let mut datagram = sized(&test.client[0], 1470);
        for number in 2..end {
            let header = Header {
                sequence: number as i64,
                sent_ns: 0,
            };
            write_header(&mut datagram, true, header);
            assert_eq!(flow.receive(&datagram, number), Heard::Payload);
        }
        flow.receive(&sized(&test.client[1], 1470), end);
        let ours = flow.report();
        assert_eq!(
            (ours.datagrams, ours.lost),
            (stock.datagrams, stock.lost),
            "{}",
            test.options
        );
        if !test.has("--isochronous") {
            assert_eq!(ours.bytes, stock.bytes, "{}", test.options);
        }
    }
}

/// A recorded beginning at the length that its datagram had.
fn sized(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut datagram = vec![0; size];
    let there = bytes.len().min(size);
    datagram[..there].copy_from_slice(&bytes[..there]);
    datagram
}

#[test]
fn recorded_first_bytes_are_iperf2s() {
    for test in recorded() {
        let legacy = test.has("-C") || (test.udp && test.options.contains("-l 40 --trip-times"));
        let want = if legacy { "iperf2-legacy" } else { "iperf2" };
        if test.udp {
            match speaker(
                Carrier::Datagram,
                &sized(&test.client[0], test.client[0].len()),
            ) {
                Speaker::Known(dialect) => assert_eq!(dialect.name, want, "{}", test.options),
                other => panic!("{}: {other:?}", test.options),
            }
            continue;
        }
        let mut known = None;
        for length in 0..=test.client[0].len() {
            match (speaker(Carrier::Stream, &test.client[0][..length]), known) {
                (Speaker::NeedMore, None) => {}
                (Speaker::Known(dialect), None) => known = Some(dialect.name),
                (Speaker::Known(dialect), Some(name)) => assert_eq!(dialect.name, name),
                (other, _) => panic!("{} {length}: {other:?}", test.options),
            }
        }
        assert_eq!(known, Some(want), "{}", test.options);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn who_is_taken_for_whom() {
    let named = |carrier, bytes: &[u8]| match speaker(carrier, bytes) {
        Speaker::Known(dialect) => dialect.name,
        Speaker::NeedMore => "more",
        Speaker::Unknown => "nobody",
    };
    for (bytes, name, whose) in [
        (
            words(&[0x8000_0000, 1, 5001, 0, 0, (-1000i32) as u32]),
            "iperf2",
            "lwIP, both ways",
        ),
        (
            words(&[0, 1, 5001, 0, 0, (-1000i32) as u32]),
            "iperf2-legacy",
            "lwIP",
        ),
        (
            b"01234567890123456789012345678901234567".to_vec(),
            "iperf2-legacy",
            "2.0.5",
        ),
        (words(&[0x8000_0000, 0, 5001, 0, 0, 1]), "nobody", "no flow"),
        (
            words(&[0x8000_0000, 1, 70_000, 0, 0, 1]),
            "nobody",
            "no port",
        ),
        (
            words(&[0x0080_0000, 10, 1]),
            "nobody",
            "a question without room",
        ),
        (
            words(&[0x0080_0000, 100, 2]),
            "nobody",
            "a question that is not the first",
        ),
        (vec![0; 64], "nobody", "zeros"),
        (vec![0xff; 64], "nobody", "ones"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            "nobody",
            "HTTP",
        ),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            "nobody",
            "TLS",
        ),
        (
            b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10".to_vec(),
            "nobody",
            "SSL 2",
        ),
        (
            b"@\x01echo".to_vec(),
            "nobody",
            "text that begins like flags",
        ),
    ] {
        assert_eq!(named(Carrier::Stream, &bytes), name, "{whose}");
    }
    let now = 1_795_000_000;
    for (bytes, name, whose) in [
        (
            words(&[1, 5, 999_999, 0]),
            "iperf2-legacy",
            "a board without a clock",
        ),
        (
            words(&[7, now, 1, 0]),
            "iperf2-legacy",
            "whose first datagrams got lost",
        ),
        (words(&[7, 5, 1, 0]), "nobody", "a counter"),
        (
            words(&[5000, now, 1, 0]),
            "nobody",
            "one that is long under way",
        ),
        (words(&[1, now, 1_000_000, 0]), "nobody", "no microseconds"),
        (words(&[u32::MAX, now, 1, u32::MAX]), "nobody", "a late end"),
        (words(&[1, now]), "nobody", "too short"),
        (b"0123456789012345".to_vec(), "nobody", "digits"),
    ] {
        assert_eq!(named(Carrier::Datagram, &bytes), name, "{whose}");
    }
}

#[test]
fn trip_times_that_are_announced_and_missing_change_no_verdict() {
    let mut bytes = words(&[
        0x4001_0078,
        1,
        5001,
        0,
        0,
        1,
        0,
        0,
        0x0010_0000,
        0x0002_0001,
    ]);
    bytes.resize(100, 0x41);
    for length in 0..bytes.len() {
        let want = if length < 60 {
            Verdict::NeedMore
        } else {
            Verdict::Yes
        };
        assert_eq!(
            (DIALECT.recognise)(Carrier::Stream, &bytes[..length]),
            want,
            "{length}"
        );
    }
    let settings = Settings::read(&bytes, 0).unwrap();
    assert_eq!((settings.trip_times, settings.start_ns), (true, None));
}

#[test]
fn old_clients_are_told_where_they_look() {
    let mut old = words(&[1, 9, 9]);
    old.extend(b"234567890123456789012345678901234567890123456789012345678901234567890123456789");
    let today = [&words(&[1, 9, 9, 0])[..], &old[16..]].concat();
    for (first, layout) in [(&old, Layout::Legacy), (&today, Layout::Today)] {
        let mut flow = UdpServer::open(first, 1_000).unwrap();
        assert_eq!(flow.settings(), None);
        let mut end = first.clone();
        write_header(
            &mut end,
            false,
            Header {
                sequence: -2,
                sent_ns: 0,
            },
        );
        assert_eq!(flow.receive(&end, 2_000), Heard::End);
        let report = flow.report();
        assert_eq!((report.datagrams, report.lost), (2, 0));
        assert_eq!(flow.answer(usize::MAX), Some(&report.write(layout)[..]));
    }
}

#[test]
fn a_report_is_no_larger_than_it_may_be() {
    let first = sized(&words(&[1, 9, 9, 0]), 1470);
    let mut flow = UdpServer::open(&first, 0).unwrap();
    assert_eq!(flow.answer(1470), None, "not before the end");
    let mut end = first.clone();
    write_header(
        &mut end,
        false,
        Header {
            sequence: -2,
            sent_ns: 0,
        },
    );
    for _ in 0..3 {
        assert_eq!(flow.receive(&end, 1), Heard::End);
        assert_eq!(flow.answer(1470).unwrap().len(), REPORT_BYTES);
        assert_eq!(flow.answer(76).unwrap().len(), 76);
        assert_eq!(flow.answer(55), None);
    }
    // What comes after the end is nothing, and changes nothing.
    let before = flow.report();
    assert_eq!(flow.receive(&first, 5), Heard::Stray);
    assert_eq!(flow.report(), before);
    assert!(UdpServer::open(&end, 0).is_none(), "an end opens no flow");
}

#[test]
fn an_end_is_repeated_until_it_is_answered() {
    let mut client = UdpClient::new(Settings::client(5001), 100).unwrap();
    let mut datagram = client.template();
    assert_eq!(client.due(0), Due::Nothing);
    client.count(1);
    client.finish(50);
    let (mut now_ns, mut ends) = (50, 0);
    loop {
        match client.due(now_ns) {
            Due::End => {
                client.write_end(&mut datagram, 0, now_ns);
                assert_eq!(read_header(&datagram, true).unwrap().sequence, -2);
                ends += 1;
            }
            Due::At(at) => now_ns = at,
            Due::Nothing => break,
            Due::Request => panic!("it sends"),
        }
    }
    assert_eq!(ends, 10);
    // As long as a stock client waits.
    assert!((1_900_000_000..2_500_000_000).contains(&now_ns), "{now_ns}");
    assert_eq!(client.far_report().flows, []);

    // The report ends it, however late, and the first one counts.
    let report = Report {
        bytes: 200,
        datagrams: 2,
        lost: 0,
        ..Report::default()
    };
    assert!(!client.receive(&datagram), "its own end, sent back");
    assert!(client.receive(&report.write(Layout::Today)));
    let again = Report { bytes: 9, ..report };
    client.receive(&again.write(Layout::Today));
    let far = client.far_report().flows[0].figures;
    assert_eq!(
        (far.bytes, far.packets, far.lost, far.duration_ns),
        (Some(100), Some(1), Some(0), None)
    );
    assert_eq!(client.due(now_ns), Due::Nothing);
}

#[test]
fn a_request_is_repeated_until_payload_comes() {
    let settings = Settings {
        way: Way::Reverse,
        ..Settings::client(5001)
    };
    let mut client = UdpClient::new(settings, 100).unwrap();
    let mut datagram = client.template();
    for step in 0..3 {
        assert_eq!(client.due(step * 20_000_000), Due::Request);
        client.write_request(&mut datagram, 0, step * 20_000_000);
        assert_eq!(read_header(&datagram, true).unwrap().sequence, 1);
    }
    let mut server = UdpServer::open(&datagram, 0).unwrap();
    assert_eq!((server.way(), server.tally().arrived()), (Way::Reverse, 0));
    assert_eq!(client.due(60_000_000 - 1), Due::At(60_000_000));
    // A server that never hears is not asked for ever.
    for step in 3..100 {
        client.write_request(&mut datagram, 0, step * 20_000_000);
    }
    assert_eq!(client.due(u64::MAX), Due::Nothing);
    assert_eq!(server.receive(&datagram, 9_000), Heard::Stray);
    assert_eq!(server.far_report().flows, []);
}

#[test]
fn an_end_that_nobody_answers_is_said_a_few_times() {
    for settings in [
        Settings {
            way: Way::Both,
            ..Settings::client(5001)
        },
        Settings {
            no_fin: true,
            ..Settings::client(5001)
        },
    ] {
        let mut client = UdpClient::new(settings, 100).unwrap();
        let mut datagram = client.template();
        client.finish(0);
        let (mut now_ns, mut ends) = (0, 0);
        loop {
            match client.due(now_ns) {
                Due::End => client.write_end(&mut datagram, 0, now_ns),
                Due::At(at) => {
                    now_ns = at;
                    continue;
                }
                _ => break,
            }
            ends += 1;
        }
        assert_eq!(ends, UNANSWERED_ENDS);
        assert!(!client.receive(&Report::default().write(Layout::Today)));
    }
}

#[test]
fn a_hostile_client_costs_no_more_than_the_limits() {
    // The longest header that can be announced, and a key.
    let mut server = TcpServer::new();
    let mut longest = words(&[0x5001_01fe, 1, 5001, 0, 0, 1]);
    longest.resize(4096, 0xff);
    let (taken, job) = server.receive(&longest, 0).unwrap();
    assert!(taken <= HEADER_LIMIT_BYTES && job.is_some(), "{taken}");
    assert_eq!(
        server.receive(&longest, 0).unwrap().0,
        0,
        "no more than that"
    );

    for (size, error) in [
        (
            u32::MAX,
            Iperf2Error::MessageTooLarge {
                bytes: u32::MAX,
                limit: 1 << 20,
            },
        ),
        (
            19,
            Iperf2Error::MessageTooSmall {
                bytes: 19,
                least: 20,
            },
        ),
    ] {
        let question = words(&[0x0080_0000, size, 1, 0, 0]);
        assert_eq!(TcpServer::new().receive(&question, 0).unwrap_err(), error);
    }
    // An answer is never larger than the question, and a server never sleeps for a day.
    let mut question = words(&[0x0080_0000, 64, 1, 0x0800_0000, 0]);
    question.resize(44, 0);
    question.extend(words(&[u32::MAX, 0, 0, 0, u32::MAX]));
    let mut server = bounceback::Server::new(&question).unwrap();
    assert_eq!(server.receive(&question, 0), 64);
    assert_eq!(server.answer(0).len(), 64);
    assert!(server.hold_ns() <= 10_000_000_000);
}

#[test]
fn what_the_header_cannot_say_is_told() {
    let much = Settings {
        amount: Some(Amount::Bytes(1 << 40)),
        ..Settings::client(5001)
    };
    assert!(
        TcpClient::new(much.clone()).is_ok(),
        "a server that only receives needs no end"
    );
    for settings in [
        Settings {
            way: Way::Reverse,
            ..much.clone()
        },
        Settings {
            dual: Some(Dual::Now),
            ..much.clone()
        },
        Settings {
            amount: Some(Amount::Time(u64::MAX)),
            ..much
        },
    ] {
        assert!(matches!(
            TcpClient::new(settings.clone()),
            Err(Iperf2Error::Unsendable { .. })
        ));
        assert!(matches!(
            UdpClient::new(settings, 1470),
            Err(Iperf2Error::Unsendable { .. })
        ));
    }
    assert!(matches!(
        UdpClient::new(Settings::client(5001), 75),
        Err(Iperf2Error::DatagramTooSmall {
            bytes: 75,
            least: 76
        })
    ));
    assert!(UdpClient::new(Settings::legacy(5001), 12).is_ok());
}

#[test]
fn an_old_server_finds_no_flags_in_our_datagrams() {
    let template = UdpClient::new(Settings::legacy(5001), 60)
        .unwrap()
        .template();
    assert_eq!(template[12..20], [0; 8]);
    assert_eq!(&template[20..30], b"0123456789");
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (
        (
            0usize..3,
            prop::option::of(any::<bool>()),
            1u32..1000,
            1u16..,
        ),
        (
            prop::option::of(1u32..1 << 20),
            prop::option::of(1i32..),
            any::<bool>(),
        ),
        (
            prop::option::of(1u64..1 << 55),
            prop::option::of(1u8..),
            any::<[bool; 4]>(),
        ),
    )
        .prop_map(
            |(
                (way, dual, flows, port),
                (buffer, amount, timed),
                (rate, tos, [wide, detect, quiet, old]),
            )| {
                let amount = amount.map(|amount| {
                    let amount = u64::from(amount.unsigned_abs());
                    if timed {
                        Amount::Time(amount * 10_000_000)
                    } else {
                        Amount::Bytes(amount)
                    }
                });
                let base = Settings {
                    dual: dual.map(|now| if now { Dual::Now } else { Dual::After }),
                    flows,
                    port,
                    buffer_bytes: buffer,
                    amount,
                    ..Settings::default()
                };
                if old {
                    return base;
                }
                let way = [Way::Forward, Way::Reverse, Way::Both][way];
                Settings {
                    way,
                    rate,
                    tos,
                    wide,
                    peer_detect: detect,
                    no_fin: quiet,
                    version: Some((0x0002_0001, 0x0008_0003)),
                    ..base
                }
            },
        )
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..12)
}

proptest! {
    #[test]
    fn settings_read_as_written(settings in any_settings(), udp: bool) {
        let before = if udp { HEADER_BYTES } else { 0 };
        let mut bytes = vec![0; settings.room_bytes(0)];
        settings.write(&mut bytes, before).unwrap();
        match Settings::read(&bytes, before) {
            // An old header is sent only where both directions are wanted.
            None => prop_assert!(settings.version.is_none() && settings.dual.is_none()),
            Some(read) => {
                let want = Settings {
                    header_bytes: read.header_bytes,
                    wide: settings.wide && udp,
                    no_fin: settings.no_fin || (udp && settings.way == Way::Both),
                    ..settings
                };
                prop_assert_eq!(read, want);
            }
        }
    }

    #[test]
    fn splits_change_nothing(which in 0usize..15, cuts in cuts()) {
        let tests = recorded();
        let test = tests.iter().filter(|test| !test.udp).nth(which % 15).unwrap();
        prop_assert_eq!(open(&test.client[0], &cuts), open(&test.client[0], &[]));
    }

    #[test]
    fn splits_change_nothing_of_nonsense(
        first in prop::sample::select(vec![0u32, 0x4001_0078, 0x4001_00a0, 0x5001_007c, 0x8000_0000, 0x0080_0000, 0x4601_0078]),
        rest in prop::collection::vec(any::<u8>(), 0..300),
        cuts in cuts(),
    ) {
        let bytes = [&first.to_be_bytes()[..], &rest].concat();
        prop_assert_eq!(open(&bytes, &cuts), open(&bytes, &[]));
    }

    #[test]
    fn acknowledgements_are_no_payload(cuts in cuts(), payload in 0usize..100, way in 0usize..3, timed: bool) {
        let way = [Way::Forward, Way::Reverse, Way::Both][way];
        let settings = Settings { peer_detect: true, way, ..Settings::client(5001) };
        let mut client = TcpClient::new(settings).unwrap();
        prop_assert!(client.waits());
        let times = AckTimes {
            client_sent_ns: 1_000,
            server_received_ns: 2_000,
            server_sent_ns: 3_000,
        };
        let ack = Ack { version: (0x0002_0001, 7), times: timed.then_some(times) };
        let mut bytes = ack.write();
        bytes.resize(bytes.len() + payload, b'x');
        let other: usize = pieces(&bytes, &cuts).iter().map(|piece| client.receive(piece)).sum();
        let want = if way == Way::Forward { bytes.len() } else { bytes.len() - payload };
        prop_assert_eq!((other, client.ack(), client.waits()), (want, Some(ack), false));
    }

    /// Questions and answers, whatever their size and however they arrive.
    #[test]
    fn two_ends_answer_each_other(size in 20u32..300, questions in 1usize..5, piece in 1usize..90) {
        let mut client = bounceback::Client::new(size, 0).unwrap();
        let mut opening = TcpServer::new();
        let mut server = None;
        for number in 1..=questions {
            let question = client.question(1_000_000, ).to_vec();
            let mut answers = Vec::new();
            for bytes in question.chunks(piece) {
                let mut at = 0;
                if server.is_none() {
                    let (taken, job) = opening.receive(bytes, 2_000_000).unwrap();
                    at = taken;
                    if let Some(TcpJob::Bounceback(begun)) = job {
                        server = Some(begun);
                    }
                }
                let Some(server) = &mut server else { continue };
                at += server.receive(&bytes[at..], 2_000_000);
                prop_assert_eq!(at, bytes.len());
                if server.is_due() {
                    answers.extend_from_slice(server.answer(3_000_000));
                    server.answered();
                }
            }
            for bytes in answers.chunks(piece) {
                prop_assert_eq!(client.answer().unwrap(), None);
                client.receive(bytes);
            }
            let answer = client.answer().unwrap().unwrap();
            prop_assert_eq!(answer.number as usize, number);
            prop_assert_eq!(answer.received_ns, (size >= 36).then_some(2_000_000));
            prop_assert_eq!(answer.sent_ns, (size >= 44).then_some(3_000_000));
        }
        let server = &mut server.unwrap();
        prop_assert_eq!(server.answers(), questions as u64);
        server.receive(client.stop(0), 0);
        prop_assert!(server.is_over() && !server.is_due());
    }

    /// A flow over a path that loses some.
    #[test]
    fn two_ends_agree_on_a_flow(
        settings in any_settings(),
        lost in prop::collection::vec(any::<bool>(), 1..50),
        bytes in 80usize..1500,
    ) {
        let settings = Settings { way: Way::Forward, no_fin: false, ..settings };
        let mut client = UdpClient::new(settings, bytes).unwrap();
        let mut datagram = client.template();
        let mut server: Option<UdpServer> = None;
        for (lost, at) in lost.iter().zip(1..) {
            write_number(&mut datagram, at, at * 1000);
            if *lost {
                continue;
            }
            match &mut server {
                Some(server) => prop_assert_eq!(server.receive(&datagram, at * 1000 + 500), Heard::Payload),
                None => server = Some(UdpServer::open(&datagram, at * 1000 + 500).unwrap()),
            }
        }
        let Some(mut server) = server else { return Ok(()) };
        client.count(lost.len() as u64);
        client.finish(0);
        client.write_end(&mut datagram, 99_000_000, 0);
        prop_assert_eq!(server.receive(&datagram, 99_001_000), Heard::End);
        prop_assert_eq!(server.client_sent(), Some(lost.len() as u64));
        let report = server.answer(bytes).unwrap().to_vec();
        prop_assert!(report.len() <= bytes);
        prop_assert!(client.receive(&report));
        let far = client.far_report().flows[0].figures;
        let arrived = lost.iter().filter(|lost| !**lost).count() as u64;
        prop_assert_eq!(far.packets, Some(arrived));
        prop_assert_eq!(far.lost, Some(lost.len() as u64 - arrived));
        prop_assert_eq!(far.bytes, Some(arrived * bytes as u64));
        prop_assert_eq!(far.retransmits, None);
    }

    /// Nobody else's beginning is ours, however much of it is there.
    #[test]
    fn others_are_not_taken_for_us(
        tail in prop::collection::vec(any::<u8>(), 0..80),
        sequence: u32,
        flags in prop::sample::select(vec![1u16, 3, 5, 7]),
        length in 14u32..65_536,
        cookie in "[a-z2-7]{36}",
        text in "[ -~]{40,80}",
    ) {
        let sockperf = [&words(&[0, sequence])[..], &flags.to_be_bytes(), &length.to_be_bytes()].concat();
        for (beginning, whose) in [
            (CONTROL_MAGIC.to_vec(), "ours, control"),
            (DATA_MAGIC.to_vec(), "ours, data"),
            (ANSWER_MAGIC.to_vec(), "ours, answer"),
            (sockperf, "sockperf"),
            (format!("{cookie}\0").into_bytes(), "iperf3"),
            (b"HELO nuttcp v8.1.4\n".to_vec(), "nuttcp"),
            (b"BOD0".to_vec(), "nuttcp"),
            (text.into_bytes(), "text"),
        ] {
            let bytes = [&beginning[..], &tail].concat();
            for dialect in [DIALECT, LEGACY_DIALECT] {
                for length in 0..bytes.len() {
                    let verdict = (dialect.recognise)(Carrier::Stream, &bytes[..length]);
                    prop_assert_ne!(verdict, Verdict::Yes, "{} {}", whose, dialect.name);
                }
                if beginning.len() >= 14 || whose.starts_with("ours") {
                    prop_assert_eq!((dialect.recognise)(Carrier::Stream, &bytes[..]), Verdict::No, "{} {}", whose, dialect.name);
                }
                prop_assert_eq!((dialect.recognise)(Carrier::Datagram, &bytes[..]), Verdict::No, "{} {}", whose, dialect.name);
            }
        }
    }

    #[test]
    fn more_bytes_never_take_back_a_verdict(
        first in prop::sample::select(vec![0u32, 0x4001_0078, 0x8000_0000, 0x0080_0000, 0x3031_3233]),
        second in prop::sample::select(vec![0u32, 1, 100, 0x3435_3637]),
        rest in prop::collection::vec(prop::sample::select(vec![0u8, 0, 1, 2, 19, 48, 255]), 0..80),
    ) {
        let bytes = [&words(&[first, second])[..], &rest].concat();
        for dialect in [DIALECT, LEGACY_DIALECT] {
            let mut last = Verdict::NeedMore;
            for length in 0..=bytes.len() {
                let next = (dialect.recognise)(Carrier::Stream, &bytes[..length]);
                if last != Verdict::NeedMore {
                    prop_assert_eq!(next, last, "{} {}", dialect.name, length);
                }
                last = next;
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), known: bool) {
        let mut bytes = bytes;
        if known && bytes.len() > 20 {
            bytes[..20].copy_from_slice(&words(&[1, 5, 5, 0, 0x6801_00d8]));
        }
        if let Some(mut flow) = UdpServer::open(&bytes, 0) {
            flow.receive(&bytes, u64::MAX);
            bytes[0] |= 0x80;
            flow.receive(&bytes, 0);
            let _ = (flow.answer(128), flow.far_report());
        }
        let _ = open(&bytes, &[]);
        let mut client = UdpClient::new(Settings::client(1), 100).unwrap();
        client.finish(0);
        client.receive(&bytes);
        let mut tcp = TcpClient::new(Settings::client(1)).unwrap();
        tcp.receive(&bytes);
        for way in [Way::Forward, Way::Reverse] {
            let _ = Settings { way, ..Settings::client(1) }.wants_ack();
        }
        fill(&mut bytes);
    }
}
