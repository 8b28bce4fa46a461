//! UDP flows, their ends and reports.

use linerate_protocol::iperf2::datagram::{
    ENDS_WITHOUT_REPLY, Iperf2Header, read_header, write_header, write_number,
};
use linerate_protocol::iperf2::{
    Iperf2ClientAction, Iperf2Datagram, Iperf2Direction, Iperf2Report, Iperf2Settings,
    Iperf2UdpClient, Iperf2UdpServer, REPORT_BYTES, ReportLayout,
};
use proptest::prelude::*;

use super::recorded::{Recorded, encode_words, recorded, sized};
use super::settings::any_settings;

#[test]
fn recorded_reports_and_ours_agree() {
    for test in recorded().iter().filter(|test| test.udp) {
        let Some(upstream) = test
            .server
            .first()
            .and_then(|bytes| Iperf2Report::read(bytes))
        else {
            continue;
        };
        // The same flow again: our counters match those of the upstream server.
        let mut flow = Iperf2UdpServer::open(&sized(&test.client[0], 1470), 0).unwrap();
        let end = read_header(&test.client[1], true)
            .unwrap()
            .sequence
            .unsigned_abs();
        let mut datagram = sized(&test.client[0], 1470);
        for number in 2..end {
            let header = Iperf2Header {
                sequence: number as i64,
                sent_ns: 0,
            };
            write_header(&mut datagram, true, header);
            assert_eq!(flow.receive(&datagram, number), Iperf2Datagram::Payload);
        }
        flow.receive(&sized(&test.client[1], 1470), end);
        let ours = flow.report();
        assert_eq!(
            (ours.datagrams, ours.lost),
            (upstream.datagrams, upstream.lost),
            "{}",
            test.options
        );
        if !test.has("--isochronous") {
            assert_eq!(ours.bytes, upstream.bytes, "{}", test.options);
        }
    }
}

/// Small datagrams (`iperf -u -l 12`): only the first one has room for the settings and for the
/// number's upper half.
#[test]
fn datagrams_smaller_than_their_header_count() {
    let tests = recorded();
    let forward = |test: &&Recorded| test.udp && !test.has("-R");
    let test = tests.iter().find(forward).unwrap();
    let mut flow = Iperf2UdpServer::open(&test.client[0], 0).unwrap();
    let small = |sequence| {
        let mut datagram = [0; 12];
        let header = Iperf2Header {
            sequence,
            sent_ns: 0,
        };
        write_header(&mut datagram, false, header);
        datagram
    };
    for number in [2, 3, 5] {
        assert_eq!(flow.receive(&small(number), 9), Iperf2Datagram::Payload);
    }
    assert_eq!(flow.receive(&small(6)[..11], 9), Iperf2Datagram::Unrelated);
    assert_eq!(flow.receive(&small(-7), 9), Iperf2Datagram::End);
    let report = flow.report();
    assert_eq!((report.datagrams, report.lost), (7, 2));
}

/// Zephyr and ESP-IDF number from 0: the end of 100 datagrams is -100.
#[test]
fn numbers_from_zero_count() {
    for lose in [0, 10] {
        let datagram = |number: i32| encode_words(&[number as u32, 17, 250_000, 0, 1, 5001]);
        let mut flow = Iperf2UdpServer::open(&datagram(0), 0).unwrap();
        let mut lost = 0;
        for number in 1..100 {
            if lose > 0 && number % lose == lose - 1 {
                lost += 1;
            } else {
                flow.receive(&datagram(number), u64::from(number as u32));
            }
        }
        assert_eq!(flow.receive(&datagram(-100), 200), Iperf2Datagram::End);
        let report = flow.report();
        assert_eq!((report.datagrams, report.lost), (101, lost));
        assert_eq!((report.out_of_order, flow.client_sent()), (0, Some(100)));
        assert_eq!(report.datagrams - report.lost, flow.stats().received());
        assert_eq!(flow.stats().lost_before_first(), 0);
    }
}

/// The server of Zephyr's zperf reports the datagrams that arrived after the first one, and not the
/// highest number; the reference server reports the highest number, that of the end.
#[test]
fn a_report_of_arrivals_is_no_report_of_numbers() {
    let (sent, size) = (126, 1000);
    for (datagrams, lost, bytes, packets) in [
        (113, 12, 113, 113),
        (125, 0, 125, 125),
        (127, 12, 115, 114),
        (127, 0, 127, 126),
    ] {
        let mut client = Iperf2UdpClient::new(Iperf2Settings::legacy(5001), size).unwrap();
        client.set_sent(sent);
        client.finish(0);
        let report = Iperf2Report {
            bytes: bytes * size as u64,
            datagrams,
            lost,
            ..Iperf2Report::default()
        };
        assert!(client.receive(&report.write(ReportLayout::Current)));
        let figures = client.remote_report().flows[0].figures;
        assert_eq!(figures.packets, Some(packets), "{datagrams} {lost}");
        assert_eq!(
            figures.bytes,
            Some(packets * size as u64),
            "{datagrams} {lost}"
        );
        assert_eq!(figures.lost, Some(lost), "{datagrams} {lost}");
    }
}

#[test]
fn old_clients_get_their_report_layout() {
    let mut old = encode_words(&[1, 9, 9]);
    old.extend(b"234567890123456789012345678901234567890123456789012345678901234567890123456789");
    let current = [&encode_words(&[1, 9, 9, 0])[..], &old[16..]].concat();
    for (first, layout) in [
        (&old, ReportLayout::Legacy),
        (&current, ReportLayout::Current),
    ] {
        let mut flow = Iperf2UdpServer::open(first, 1_000).unwrap();
        assert_eq!(flow.settings(), None);
        let mut end = first.clone();
        write_header(
            &mut end,
            false,
            Iperf2Header {
                sequence: -2,
                sent_ns: 0,
            },
        );
        assert_eq!(flow.receive(&end, 2_000), Iperf2Datagram::End);
        let report = flow.report();
        assert_eq!((report.datagrams, report.lost), (2, 0));
        assert_eq!(flow.reply(usize::MAX), Some(&report.write(layout)[..]));
    }
}

#[test]
fn a_report_is_no_larger_than_it_may_be() {
    let first = sized(&encode_words(&[1, 9, 9, 0]), 1470);
    let mut flow = Iperf2UdpServer::open(&first, 0).unwrap();
    assert_eq!(flow.reply(1470), None, "not before the end");
    let mut end = first.clone();
    write_header(
        &mut end,
        false,
        Iperf2Header {
            sequence: -2,
            sent_ns: 0,
        },
    );
    for _ in 0..3 {
        assert_eq!(flow.receive(&end, 1), Iperf2Datagram::End);
        assert_eq!(flow.reply(1470).unwrap().len(), REPORT_BYTES);
        assert_eq!(flow.reply(76).unwrap().len(), 76);
        assert_eq!(flow.reply(55), None);
    }
    // Datagrams after the end are ignored.
    let before = flow.report();
    assert_eq!(flow.receive(&first, 5), Iperf2Datagram::Unrelated);
    assert_eq!(flow.report(), before);
    assert!(
        Iperf2UdpServer::open(&end, 0).is_none(),
        "an end opens no flow"
    );
}

#[test]
fn an_end_is_repeated_until_it_gets_a_reply() {
    let mut client = Iperf2UdpClient::new(Iperf2Settings::client(5001), 100).unwrap();
    let mut datagram = client.template();
    assert_eq!(client.next_action(0), Iperf2ClientAction::Idle);
    client.set_sent(1);
    client.finish(50);
    let (mut now_ns, mut ends) = (50, 0);
    loop {
        match client.next_action(now_ns) {
            Iperf2ClientAction::End => {
                client.write_end(&mut datagram, 0, now_ns);
                assert_eq!(read_header(&datagram, true).unwrap().sequence, -2);
                ends += 1;
            }
            Iperf2ClientAction::WaitUntil(at) => now_ns = at,
            Iperf2ClientAction::Idle => break,
            Iperf2ClientAction::Request => panic!("it sends"),
        }
    }
    assert_eq!(ends, 10);
    // The ends in the time that an upstream client waits, the answer as long as any first one.
    assert!((4_300_000_000..5_000_000_000).contains(&now_ns), "{now_ns}");
    assert_eq!(client.remote_report().flows, []);

    // The first report ends it, however late.
    let report = Iperf2Report {
        bytes: 200,
        datagrams: 2,
        lost: 0,
        ..Iperf2Report::default()
    };
    assert!(!client.receive(&datagram), "its own end, returned");
    assert!(client.receive(&report.write(ReportLayout::Current)));
    let second = Iperf2Report { bytes: 9, ..report };
    client.receive(&second.write(ReportLayout::Current));
    let remote = client.remote_report().flows[0].figures;
    assert_eq!(
        (
            remote.bytes,
            remote.packets,
            remote.lost,
            remote.duration_ns
        ),
        (Some(100), Some(1), Some(0), None)
    );
    assert_eq!(client.next_action(now_ns), Iperf2ClientAction::Idle);
}

#[test]
fn a_request_is_repeated_until_payload_comes() {
    let settings = Iperf2Settings {
        direction: Iperf2Direction::Reverse,
        ..Iperf2Settings::client(5001)
    };
    let mut client = Iperf2UdpClient::new(settings, 100).unwrap();
    let mut datagram = client.template();
    for step in 0..3 {
        assert_eq!(
            client.next_action(step * 20_000_000),
            Iperf2ClientAction::Request
        );
        client.write_request(&mut datagram, 0, step * 20_000_000);
        assert_eq!(read_header(&datagram, true).unwrap().sequence, 1);
    }
    let mut server = Iperf2UdpServer::open(&datagram, 0).unwrap();
    assert_eq!(
        (server.direction(), server.stats().received()),
        (Iperf2Direction::Reverse, 0)
    );
    assert_eq!(
        client.next_action(60_000_000 - 1),
        Iperf2ClientAction::WaitUntil(60_000_000)
    );
    // Requests to a silent server end.
    for step in 3..100 {
        client.write_request(&mut datagram, 0, step * 20_000_000);
    }
    assert_eq!(client.next_action(u64::MAX), Iperf2ClientAction::Idle);
    assert_eq!(server.receive(&datagram, 9_000), Iperf2Datagram::Unrelated);
    assert_eq!(server.remote_report().flows, []);
}

#[test]
fn an_end_without_reply_is_repeated_a_few_times() {
    for settings in [
        Iperf2Settings {
            direction: Iperf2Direction::Both,
            ..Iperf2Settings::client(5001)
        },
        Iperf2Settings {
            no_fin: true,
            ..Iperf2Settings::client(5001)
        },
    ] {
        let mut client = Iperf2UdpClient::new(settings, 100).unwrap();
        let mut datagram = client.template();
        client.finish(0);
        let (mut now_ns, mut ends) = (0, 0);
        loop {
            match client.next_action(now_ns) {
                Iperf2ClientAction::End => client.write_end(&mut datagram, 0, now_ns),
                Iperf2ClientAction::WaitUntil(at) => {
                    now_ns = at;
                    continue;
                }
                _ => break,
            }
            ends += 1;
        }
        assert_eq!(ends, ENDS_WITHOUT_REPLY);
        assert!(!client.receive(&Iperf2Report::default().write(ReportLayout::Current)));
    }
}

#[test]
fn an_old_server_finds_no_flags_in_our_datagrams() {
    let template = Iperf2UdpClient::new(Iperf2Settings::legacy(5001), 60)
        .unwrap()
        .template();
    assert_eq!(template[12..20], [0; 8]);
    assert_eq!(&template[20..30], b"0123456789");
}

proptest! {
    /// Sends a flow over a path with losses.
    #[test]
    fn two_ends_agree_on_a_flow(
        settings in any_settings(),
        lost in prop::collection::vec(any::<bool>(), 1..50),
        bytes in 80usize..1500,
    ) {
        let settings = Iperf2Settings { direction: Iperf2Direction::Forward, no_fin: false, ..settings };
        let mut client = Iperf2UdpClient::new(settings, bytes).unwrap();
        let mut datagram = client.template();
        let mut server: Option<Iperf2UdpServer> = None;
        for (lost, at) in lost.iter().zip(1..) {
            write_number(&mut datagram, at, at * 1000);
            if *lost {
                continue;
            }
            match &mut server {
                Some(server) => prop_assert_eq!(server.receive(&datagram, at * 1000 + 500), Iperf2Datagram::Payload),
                None => server = Some(Iperf2UdpServer::open(&datagram, at * 1000 + 500).unwrap()),
            }
        }
        let Some(mut server) = server else { return Ok(()) };
        client.set_sent(lost.len() as u64);
        client.finish(0);
        client.write_end(&mut datagram, 99_000_000, 0);
        prop_assert_eq!(server.receive(&datagram, 99_001_000), Iperf2Datagram::End);
        prop_assert_eq!(server.client_sent(), Some(lost.len() as u64));
        let report = server.reply(bytes).unwrap().to_vec();
        prop_assert!(report.len() <= bytes);
        prop_assert!(client.receive(&report));
        let far = client.remote_report().flows[0].figures;
        let arrived = lost.iter().filter(|lost| !**lost).count() as u64;
        prop_assert_eq!(far.packets, Some(arrived));
        prop_assert_eq!(far.lost, Some(lost.len() as u64 - arrived));
        prop_assert_eq!(far.bytes, Some(arrived * bytes as u64));
        prop_assert_eq!(far.retransmits, None);
    }
}

/// Two servers that are set on each other do not reply to each other's reports.
#[test]
fn a_report_is_no_end() {
    let datagram = |number: i32| [&number.to_be_bytes()[..], &[0; 1466]].concat();
    let mut flows = [0, 0].map(|_| Iperf2UdpServer::open(&datagram(0), 0).unwrap());
    assert_eq!(flows[0].receive(&datagram(-1), 0), Iperf2Datagram::End);
    let report = flows[0].reply(1470).unwrap().to_vec();
    assert_ne!(flows[1].receive(&report, 0), Iperf2Datagram::End);
    assert_eq!(flows[1].reply(report.len()), None);
}
