//! nuttcp's datagrams, compared with those of upstream transmitters, and in simulated time.

use linerate_protocol::nuttcp::{
    EOD_GAP_NS, NuttcpDatagram, NuttcpDirection, NuttcpSendAction, NuttcpServer, NuttcpServerEvent,
    NuttcpTest, NuttcpUdpReceiver, NuttcpUdpSender, START_GAP_NS,
};
use linerate_protocol::sniff::{Classification, TransportKind, classify};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Send time, stream and bytes.
type Datagram = (u64, u16, Vec<u8>);

/// Returns recorded datagrams of an upstream transmitter with their test.
fn recorded_datagrams() -> Vec<(String, NuttcpTest, Vec<Datagram>)> {
    let mut runs: Vec<(String, NuttcpTest, Vec<Datagram>)> = Vec::new();
    let text = include_str!("../fixtures/nuttcp-6.1.2/udp-datagrams.hex");
    let mut name = String::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(command) = line.strip_prefix("> ") {
            name = command.to_owned();
        } else if let Some(parameters) = line.strip_prefix("= ") {
            let mut server = NuttcpServer::default();
            let lines = format!("HELO nuttcp v6.1.2\n{parameters}\n");
            server.receive(lines.as_bytes()).unwrap();
            let Some(NuttcpServerEvent::Prepare(test)) = server.poll() else {
                panic!("{name}")
            };
            runs.push((name.clone(), test, Vec::new()));
        } else {
            let fields: Vec<_> = line.split(' ').collect();
            let at = (fields[0].parse::<f64>().unwrap() * 1e6) as u64;
            let digit = |at: usize| u8::from_str_radix(&fields[3][at..at + 2], 16).unwrap();
            let mut bytes: Vec<_> = (0..fields[3].len()).step_by(2).map(digit).collect();
            bytes.resize(fields[2].parse().unwrap(), 0);
            runs.last_mut()
                .unwrap()
                .2
                .push((at, fields[1].parse().unwrap(), bytes));
        }
    }
    assert_eq!(runs.len(), 4);
    runs
}

#[test]
fn datagrams_of_upstream_transmitters_are_counted() {
    for (name, test, datagrams) in recorded_datagrams() {
        let mut receiver = NuttcpUdpReceiver::new(&test, 0);
        let mut end_ns = None;
        for (at, _, datagram) in &datagrams {
            if receiver.receive(*at, datagram) == NuttcpDatagram::End {
                end_ns.get_or_insert(*at);
            }
        }
        let totals = receiver.totals();
        let packets = test.buffer_limit.unwrap();
        assert_eq!(totals.packets, packets, "{name}");
        assert_eq!(totals.bytes, packets * test.buffer_bytes as u64, "{name}");
        let numbered = test.interval_ns.is_some() && test.buffer_bytes >= 32;
        assert_eq!(receiver.lost(), numbered.then_some(0), "{name}");
        // From BOD1 to EOD0.
        let at = |marker: &[u8]| datagrams.iter().find(|(_, _, d)| d == marker).unwrap().0;
        let duration = at(b"EOD0") - at(b"BOD1");
        assert_eq!(
            totals.duration_ns,
            (duration > 0).then_some(duration),
            "{name}"
        );
        assert_eq!(end_ns, Some(at(b"EOD1")), "{name}");
        assert!(matches!(
            classify(TransportKind::Datagram, &datagrams[0].2),
            Classification::Known(dialect) if dialect.name == "nuttcp"
        ));
    }
}

/// The last third of 3 s of payload is lost, with more or less of the markers.
#[test]
fn the_end_marker_ends_the_time() {
    let second = 1_000 * MS;
    for (name, markers, closed_ns, end_ns) in [
        ("EOD0", &[(&b"EOD0"[..], 3_000)][..], None, Some(3 * second)),
        ("EOD1 only", &[(b"EOD1", 3_500)], None, Some(3 * second)),
        (
            "none, and the control connection ends",
            &[],
            Some(5 * second),
            Some(3 * second),
        ),
        (
            "none, and the client is interrupted",
            &[],
            Some(5 * second / 2),
            Some(5 * second / 2),
        ),
        ("none yet", &[], None, None),
    ] {
        let mut test = NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Datagram, 5001);
        (test.buffer_limit, test.duration_ns) = (None, Some(3 * second));
        let mut receiver = NuttcpUdpReceiver::new(&test, 0);
        receiver.receive(0, b"BOD1");
        for at in 0..200 {
            receiver.receive(at * 10 * MS, &vec![0; test.buffer_bytes]);
        }
        for (marker, at) in markers {
            receiver.receive(at * MS, marker);
        }
        if let Some(at) = closed_ns {
            receiver.control_closed(at);
        }
        assert_eq!(receiver.end_ns(), end_ns, "{name}");
        let last_payload_ns = 1_990 * MS;
        let duration_ns = end_ns.unwrap_or(last_payload_ns);
        assert_eq!(receiver.totals().duration_ns, Some(duration_ns), "{name}");
    }
}

/// Runs a sender in simulated time.
fn sent(test: &NuttcpTest) -> Vec<Datagram> {
    sent_by(NuttcpUdpSender::new(test), test)
}

fn sent_by(mut sender: NuttcpUdpSender, test: &NuttcpTest) -> Vec<Datagram> {
    let mut buffer = vec![b'x'; test.buffer_bytes];
    let (mut now, mut sent) = (0, Vec::new());
    loop {
        match sender.next_action(now) {
            NuttcpSendAction::Marker { bytes, stream } => sent.push((now, stream, bytes.to_vec())),
            NuttcpSendAction::Data { stream } => {
                sender.write_count(&mut buffer);
                sent.push((now, stream, buffer.clone()));
            }
            NuttcpSendAction::Wait { until_ns } => {
                assert!(until_ns > now);
                now = until_ns;
            }
            NuttcpSendAction::Finished => return sent,
        }
    }
}

/// Checks the markers' times: an upstream receiver with intervals fails at the first interval
/// without payload.
#[test]
fn markers_leave_no_interval_without_payload() {
    for (interval_ns, start, end) in [
        (None, START_GAP_NS, EOD_GAP_NS),
        (Some(500 * MS), START_GAP_NS, 250 * MS),
        (Some(200 * MS), 100 * MS, 100 * MS),
        (Some(2_000 * MS), START_GAP_NS, EOD_GAP_NS),
    ] {
        let mut test = NuttcpTest::new(NuttcpDirection::ToClient, TransportKind::Datagram, 5001);
        (test.interval_ns, test.buffer_limit, test.duration_ns) = (interval_ns, Some(3), None);
        let sent = sent(&test);
        let at = |marker: &[u8]| sent.iter().find(|(_, _, bytes)| bytes == marker).unwrap().0;
        let gaps = (at(b"BOD1") - at(b"BOD0"), at(b"EOD1") - at(b"EOD0"));
        assert_eq!(gaps, (start, end), "{interval_ns:?}");
    }
}

#[test]
fn a_rate_that_is_a_limit_is_never_exceeded() {
    for (kbps, buffer_bytes) in [(5_000, 8_192), (100, 1_024), (1_000_000, 65_507)] {
        for instantaneous in [false, true] {
            let mut test =
                NuttcpTest::new(NuttcpDirection::ToClient, TransportKind::Datagram, 5001);
            test.buffer_bytes = buffer_bytes;
            test.rate_kbps = Some(kbps);
            test.rate_is_instantaneous = instantaneous;
            (test.buffer_limit, test.duration_ns) = (Some(50), None);
            let datagrams = sent_by(NuttcpUdpSender::new(&test).with_strict_rate(), &test);
            let start_ns = datagrams.iter().find(|(_, _, d)| d == b"BOD1").unwrap().0;
            let mut bytes = 0;
            for (now, _, datagram) in datagrams.iter().filter(|(_, _, d)| d.len() > 4) {
                bytes += datagram.len() as u64;
                let max_bytes = kbps * (now - start_ns) / 8_000_000;
                // The remainder of the division is below one byte.
                assert!(bytes <= max_bytes + 1, "{bytes} of {max_bytes} B at {kbps}");
                assert!(
                    bytes + 50 >= max_bytes,
                    "{bytes} of {max_bytes} B at {kbps}"
                );
            }
            assert_eq!(bytes, 50 * buffer_bytes as u64);
        }
    }
}

#[test]
fn our_datagrams_are_those_of_an_upstream_transmitter() {
    for (name, test, upstream) in recorded_datagrams() {
        let ours = sent(&test);
        assert_eq!(ours.len(), upstream.len(), "{name}");
        // The order between the two recorded ports is undefined.
        let by_stream = |datagrams: &[Datagram]| {
            (0..test.streams)
                .map(|wanted| {
                    let of = datagrams.iter().filter(|(_, stream, _)| *stream == wanted);
                    of.map(|(_, _, datagram)| match datagram.len() {
                        4 => String::from_utf8(datagram.clone()).unwrap(),
                        size if test.numbers_datagrams() => {
                            let count = datagram[24..32].try_into().unwrap();
                            // Recorded on a little-endian host.
                            let count = match datagram[0] {
                                b'x' => u64::from_ne_bytes(count),
                                _ => u64::from_le_bytes(count),
                            };
                            format!("{size} {count}")
                        }
                        size => format!("{size}"),
                    })
                    .collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(by_stream(&ours), by_stream(&upstream), "{name}");
    }
}

#[test]
fn the_times_of_our_datagrams() {
    let test = NuttcpTest {
        duration_ns: Some(1_000 * MS),
        rate_kbps: Some(8_000),
        buffer_bytes: 1_000,
        ..NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Datagram, 5_001)
    };
    let sent = sent(&test);
    let at = |marker: &[u8]| sent.iter().find(|(_, _, d)| d == marker).unwrap().0;
    assert_eq!(at(b"BOD0"), 0);
    assert_eq!(at(b"BOD1"), START_GAP_NS);
    assert_eq!(at(b"EOD0"), START_GAP_NS + 1_000 * MS);
    for (number, marker) in (1..).zip([b"EOD1", b"EOD2", b"EOD3", b"EOD4"]) {
        assert_eq!(at(marker), at(b"EOD0") + number * EOD_GAP_NS);
    }
    // 8 Mb/s are 1000 datagrams of 1000 B a second, one each millisecond.
    let data: Vec<_> = sent.iter().filter(|(_, _, d)| d.len() > 4).collect();
    assert_eq!(data.len(), 1_000);
    for (number, (at, _, _)) in (0..).zip(data) {
        assert_eq!(*at, START_GAP_NS + number * MS);
    }
}

#[test]
fn a_flow_with_lost_markers_still_ends() {
    let test = NuttcpTest {
        buffer_limit: Some(10),
        duration_ns: None,
        interval_ns: Some(1_000 * MS),
        buffer_bytes: 1_000,
        ..NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Datagram, 5_001)
    };
    let datagrams = sent(&test);
    let receive = |keep: &dyn Fn(&[u8]) -> bool| {
        let mut receiver = NuttcpUdpReceiver::new(&test, 0);
        let mut now = 0;
        for (at, _, datagram) in &datagrams {
            now = *at;
            if keep(datagram) && receiver.receive(now, datagram) == NuttcpDatagram::End {
                break;
            }
        }
        (receiver, now)
    };
    let (receiver, now) = receive(&|d| !matches!(d, b"EOD0" | b"EOD1"));
    assert!(receiver.is_over(now));
    // EOD2 means that the data ended a second ago.
    assert_eq!(
        receiver.totals().duration_ns,
        None,
        "at once: no rate was requested"
    );
    let (receiver, now) = receive(&|d| !d.starts_with(b"EOD") || d == b"EOD0");
    assert!(!receiver.is_over(now.min(receiver.deadline_ns() - 1)));
    assert!(receiver.is_over(receiver.deadline_ns()));
    let (mut receiver, now) = receive(&|d| !d.starts_with(b"EOD"));
    assert!(receiver.deadline_ns() >= 5_000 * MS);
    // Closing the control connection shortens the timeout.
    receiver.control_closed(now);
    assert!(receiver.is_over(now + 2_500 * MS));
    // Without BOD the duration begins with the first data.
    let (receiver, _) = receive(&|d| !d.starts_with(b"BOD"));
    assert_eq!(receiver.totals().packets, 10);
    // Half of the data lost, the last datagram present.
    let (receiver, _) = receive(&|d| {
        d.len() == 4 || u64::from_ne_bytes(d[24..32].try_into().unwrap()).is_multiple_of(2_000)
    });
    assert_eq!(receiver.lost(), Some(5));
    // A sender with the other byte order.
    let mut swapped = NuttcpUdpReceiver::new(&test, 0);
    for (at, _, datagram) in &datagrams {
        let mut datagram = datagram.clone();
        if datagram.len() > 4 {
            datagram[24..32].reverse();
        }
        swapped.receive(*at, &datagram);
    }
    assert_eq!(swapped.lost(), Some(0));
}

proptest! {
    #[test]
    fn hostile_datagrams_harm_nothing(
        datagrams in prop::collection::vec((any::<u64>(), prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "[BE]OD[0-9]".prop_map(String::into_bytes),
        ]), 0..30),
    ) {
        let test = NuttcpTest {
            interval_ns: Some(MS),
            buffer_bytes: 32,
            ..NuttcpTest::new(NuttcpDirection::ToServer, TransportKind::Datagram, 5_001)
        };
        let mut receiver = NuttcpUdpReceiver::new(&test, 0);
        for (at, datagram) in &datagrams {
            receiver.receive(*at, datagram);
            let _ = (receiver.is_over(*at), receiver.lost(), receiver.totals());
        }
    }
}
