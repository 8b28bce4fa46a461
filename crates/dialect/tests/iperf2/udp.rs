//! UDP flows, their ends and reports.

use linerate_dialect::iperf2::datagram::{
    Header, UNANSWERED_ENDS, read_header, write_header, write_number,
};
use linerate_dialect::iperf2::{
    Due, Heard, Layout, REPORT_BYTES, Report, Settings, UdpClient, UdpServer, Way,
};
use proptest::prelude::*;

use super::recorded::{Recorded, recorded, sized, words};
use super::settings::any_settings;

#[test]
fn recorded_reports_and_ours_agree() {
    for test in recorded().iter().filter(|test| test.udp) {
        let Some(stock) = test.server.first().and_then(|bytes| Report::read(bytes)) else {
            continue;
        };
        // The same flow again: our counters match those of the upstream server.
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

/// Small datagrams (`iperf -u -l 12`): only the first one has room for the settings and for the
/// number's upper half.
#[test]
fn datagrams_smaller_than_their_header_count() {
    let tests = recorded();
    let forward = |test: &&Recorded| test.udp && !test.has("-R");
    let test = tests.iter().find(forward).unwrap();
    let mut flow = UdpServer::open(&test.client[0], 0).unwrap();
    let small = |sequence| {
        let mut datagram = [0; 12];
        let header = Header {
            sequence,
            sent_ns: 0,
        };
        write_header(&mut datagram, false, header);
        datagram
    };
    for number in [2, 3, 5] {
        assert_eq!(flow.receive(&small(number), 9), Heard::Payload);
    }
    assert_eq!(flow.receive(&small(6)[..11], 9), Heard::Stray);
    assert_eq!(flow.receive(&small(-7), 9), Heard::End);
    let report = flow.report();
    assert_eq!((report.datagrams, report.lost), (7, 2));
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
    // Datagrams after the end are ignored.
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
    // As long as an upstream client waits.
    assert!((1_900_000_000..2_500_000_000).contains(&now_ns), "{now_ns}");
    assert_eq!(client.far_report().flows, []);

    // The first report ends it, however late.
    let report = Report {
        bytes: 200,
        datagrams: 2,
        lost: 0,
        ..Report::default()
    };
    assert!(!client.receive(&datagram), "its own end, returned");
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
    // Requests to a silent server end.
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
fn an_old_server_finds_no_flags_in_our_datagrams() {
    let template = UdpClient::new(Settings::legacy(5001), 60)
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
}
