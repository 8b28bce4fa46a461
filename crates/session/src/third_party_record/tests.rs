use linerate_protocol::remote_report::{RemoteFigures, RemoteFlow};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn plan(kind: RunKind, protocol: TransportProtocol) -> Plan {
    Plan::new(kind, protocol, "far")
}

fn test_of(role: Role, plan: Plan, flows: &[FlowCounts]) -> InteropTest {
    let results = local_results(role, HostFacts::default(), &plan, flows);
    InteropTest::new("iperf3", plan, Timestamp::UNIX_EPOCH, results)
}

fn sent(id: u32, bytes: u64, packets: Option<u64>) -> FlowCounts {
    FlowCounts {
        bytes,
        packets,
        duration_ns: SECOND,
        ..FlowCounts::new(id, FlowRole::Sender)
    }
}

fn report_of(id: Option<u32>, direction: Direction, figures: RemoteFigures) -> RemoteReport {
    RemoteReport {
        flows: vec![RemoteFlow {
            id,
            direction,
            figures,
        }],
        ..RemoteReport::default()
    }
}

fn caveats(record: &Record) -> Vec<&str> {
    record.validity.iter().map(|d| d.id.as_str()).collect()
}

/// A client that sent 1000 datagrams of 100 B, with different reports of the server.
#[test]
fn remote_reports_of_datagrams() {
    struct ReportCase {
        name: &'static str,
        report: Option<RemoteFigures>,
        received: Option<u64>,
        lost: Option<u64>,
        goodput: Option<f64>,
        caveat: Option<&'static str>,
    }
    let rows = [
        ReportCase {
            name: "everything, with a gap",
            report: Some(RemoteFigures {
                bytes: Some(99_000),
                packets: Some(990),
                lost: Some(10),
                duration_ns: Some(2 * SECOND),
                ..RemoteFigures::default()
            }),
            received: Some(990),
            lost: Some(10),
            goodput: Some(99_000.0 * 8.0 / 2.0),
            caveat: None,
        },
        ReportCase {
            name: "the last ones never came, so no number after them shows it",
            report: Some(RemoteFigures {
                bytes: Some(98_000),
                packets: Some(980),
                lost: Some(10),
                duration_ns: Some(SECOND),
                ..RemoteFigures::default()
            }),
            received: Some(980),
            lost: Some(20),
            goodput: Some(98_000.0 * 8.0),
            caveat: Some("end-not-counted"),
        },
        ReportCase {
            name: "bytes alone, as a board's console has them",
            report: Some(RemoteFigures {
                bytes: Some(50_000),
                duration_ns: Some(SECOND),
                ..RemoteFigures::default()
            }),
            received: None,
            lost: None,
            goodput: Some(50_000.0 * 8.0),
            caveat: None,
        },
        ReportCase {
            name: "datagrams alone",
            report: Some(RemoteFigures {
                packets: Some(400),
                ..RemoteFigures::default()
            }),
            received: Some(400),
            lost: Some(600),
            goodput: None,
            caveat: None,
        },
        ReportCase {
            name: "nothing",
            report: None,
            received: None,
            lost: None,
            goodput: None,
            caveat: Some("remote-count-unknown"),
        },
        ReportCase {
            name: "more than was sent",
            report: Some(RemoteFigures {
                bytes: Some(200_000),
                packets: Some(2_000),
                duration_ns: Some(SECOND),
                ..RemoteFigures::default()
            }),
            received: Some(2_000),
            lost: Some(0),
            goodput: Some(1_600_000.0),
            caveat: Some("counts-contradict"),
        },
    ];
    for row in rows {
        let plan = plan(RunKind::Throughput, TransportProtocol::Udp);
        let mut test = test_of(Role::Client, plan, &[sent(1, 100_000, Some(1_000))]);
        test.remote_report = row.report.map_or_else(RemoteReport::default, |figures| {
            report_of(None, Direction::Send, figures)
        });
        let (record, failure) = test.into_record();
        let name = row.name;
        assert!(failure.is_none(), "{name}");
        let summary = &record.summary;
        assert_eq!(summary.packets_sent, Some(1_000), "{name}");
        assert_eq!(summary.packets_received, row.received, "{name}");
        assert_eq!(summary.lost, row.lost, "{name}");
        assert_eq!(
            summary.loss_fraction,
            row.lost.map(|lost| lost as f64 / 1_000.0),
            "{name}"
        );
        assert_eq!(summary.goodput_bps, row.goodput, "{name}");
        let expected: Vec<_> = row.caveat.into_iter().collect();
        assert_eq!(caveats(&record), expected, "{name}");
        assert_eq!(
            record.plan.peer_protocol.as_deref(),
            Some("iperf3"),
            "{name}"
        );
        assert_eq!(record.hosts.len(), 1, "{name}");
        // Figures without a report are absent.
        assert_eq!(summary.out_of_order, None, "{name}");
        assert_eq!(summary.ipdv_ns, None, "{name}");
        assert_eq!(summary.retransmits, None, "{name}");
    }
}

#[test]
fn both_ends_name_directions_as_the_client_sees_them() {
    // The remote end of a server is the client, and its report has the server's directions.
    for (role, flow_role, reported_direction, expected) in [
        (
            Role::Client,
            FlowRole::Sender,
            Direction::Send,
            Direction::Send,
        ),
        (
            Role::Client,
            FlowRole::Receiver,
            Direction::Receive,
            Direction::Receive,
        ),
        (
            Role::Server,
            FlowRole::Receiver,
            Direction::Receive,
            Direction::Send,
        ),
        (
            Role::Server,
            FlowRole::Sender,
            Direction::Send,
            Direction::Receive,
        ),
    ] {
        let mut plan = plan(RunKind::Throughput, TransportProtocol::Tcp);
        plan.directions = vec![expected];
        let flow = FlowCounts {
            bytes: 1_000,
            duration_ns: SECOND,
            ..FlowCounts::new(1, flow_role)
        };
        let mut test = test_of(role, plan, &[flow]);
        let figures = RemoteFigures {
            bytes: Some(1_000),
            duration_ns: Some(SECOND),
            ..RemoteFigures::default()
        };
        test.remote_report = report_of(Some(1), reported_direction, figures);
        let (record, _) = test.into_record();
        let [direction] = record.directions.as_slice() else {
            panic!("{role:?} {flow_role:?}: {:?}", record.directions);
        };
        assert_eq!(direction.direction, expected);
        let summary = &direction.summary;
        assert_eq!(summary.bytes_sent, Some(1_000), "{role:?} {flow_role:?}");
        assert_eq!(
            summary.bytes_received,
            Some(1_000),
            "{role:?} {flow_role:?}"
        );
        assert_eq!(summary.goodput_bps, Some(8_000.0), "{role:?} {flow_role:?}");
        assert_eq!(summary.offered_bps, Some(8_000.0), "{role:?} {flow_role:?}");
        assert_eq!(record.hosts[0].role, Some(role));
        assert_eq!(
            caveats(&record),
            Vec::<&str>::new(),
            "{role:?} {flow_role:?}"
        );
    }
}

#[test]
fn a_total_is_of_the_direction_and_not_of_its_flows() {
    let mut plan = plan(RunKind::Throughput, TransportProtocol::Udp);
    plan.streams = 2;
    let flows = [sent(1, 100_000, Some(1_000)), sent(2, 100_000, Some(1_000))];
    let mut test = test_of(Role::Client, plan, &flows);
    let figures = RemoteFigures {
        bytes: Some(150_000),
        packets: Some(1_500),
        duration_ns: Some(SECOND),
        ..RemoteFigures::default()
    };
    test.remote_report = report_of(None, Direction::Send, figures);
    let (record, _) = test.into_record();
    let summary = &record.directions[0].summary;
    assert_eq!(summary.bytes_sent, Some(200_000));
    assert_eq!(summary.bytes_received, Some(150_000));
    assert_eq!(summary.lost, Some(500));
    assert_eq!(summary.loss_fraction, Some(0.25));
    assert_eq!(summary.goodput_bps, Some(1_200_000.0));
    for stream in &record.directions[0].streams {
        assert_eq!(stream.summary.bytes_received, None);
        assert_eq!(stream.summary.lost, None);
    }
}

#[test]
fn over_tcp_acknowledgements_replace_a_report() {
    let flows = [sent(1, 100_000, None)];
    let mut test = test_of(
        Role::Client,
        plan(RunKind::Throughput, TransportProtocol::Tcp),
        &flows,
    );
    // Sent in a second, and acknowledged a second later. When this end learned of its own end does
    // not matter.
    test.counted_from_ns = 100 * SECOND;
    test.acknowledged.insert(
        1,
        AckedPayload {
            bytes: 100_000,
            last_ack_ns: 102 * SECOND,
        },
    );
    let (record, _) = test.into_record();
    assert_eq!(record.summary.bytes_received, Some(100_000));
    assert_eq!(record.summary.goodput_bps, Some(400_000.0));
    assert_eq!(record.summary.duration_ns, Some(2 * SECOND));
    assert_eq!(caveats(&record), ["counted-by-acknowledgement"]);

    let test = test_of(
        Role::Client,
        plan(RunKind::Throughput, TransportProtocol::Tcp),
        &flows,
    );
    let (record, _) = test.into_record();
    assert_eq!(record.summary.bytes_received, None);
    assert_eq!(record.summary.goodput_bps, None);
    assert_eq!(caveats(&record), ["remote-count-unknown"]);
}

/// Gaps show 80 of 100 losses: the last 20 datagrams of 1,000 were lost.
#[test]
fn a_senders_total_shows_losses_at_the_end() {
    let sink = |lost| FlowCounts {
        bytes: 90_000,
        packets: Some(900),
        lost: Some(lost),
        duplicates: Some(0),
        duration_ns: SECOND,
        ..FlowCounts::new(1, FlowRole::Receiver)
    };
    let figures = |packets| RemoteFigures {
        packets: Some(packets),
        bytes: Some(100 * packets),
        ..RemoteFigures::default()
    };
    for (role, direction) in [
        (Role::Client, Direction::Receive),
        (Role::Server, Direction::Send),
    ] {
        let mut plan = plan(RunKind::Throughput, TransportProtocol::Udp);
        plan.directions = vec![direction];
        for (omit_ns, gaps, packets, lost) in [
            (0, 80, 1_000, 100),
            // The total is exact, unless the omitted time ends at different datagrams.
            (0, 130, 1_000, 100),
            (SECOND, 130, 1_000, 130),
            (SECOND, 80, 1_000, 100),
            // Less than what arrived: that total counts something else.
            (0, 80, 899, 80),
        ] {
            plan.omit_ns = omit_ns;
            let mut test = test_of(role, plan.clone(), &[sink(gaps)]);
            test.remote_report = report_of(Some(1), Direction::Receive, figures(packets));
            let (record, _) = test.into_record();
            let case = format!("{role:?}, {gaps} in gaps, {packets} sent, {omit_ns}");
            let stream = &record.directions[0].streams[0].summary;
            for summary in [&record.summary, stream] {
                assert_eq!(summary.lost, Some(lost), "{case}");
                assert_eq!(summary.packets_sent, Some(packets), "{case}");
                let share = lost as f64 / (900 + lost) as f64;
                assert!(
                    (summary.loss_fraction.unwrap() - share).abs() < 1e-3,
                    "{case}"
                );
                assert_eq!(summary.duration_ns, Some(SECOND), "{case}");
            }
            let beyond_gaps = lost > gaps;
            assert_eq!(
                caveats(&record).contains(&"end-not-counted"),
                beyond_gaps,
                "{case}"
            );
        }
        // Without a report, what the numbers show as sent in this time was offered.
        plan.omit_ns = 0;
        let (record, _) = test_of(role, plan, &[sink(80)]).into_record();
        assert_eq!(record.summary.lost, Some(80));
        assert_eq!(record.summary.packets_sent, None);
        assert_eq!(record.summary.offered_bps, Some(980.0 * 100.0 * 8.0));
    }
}

#[test]
fn the_offered_load_follows_from_sequence_numbers() {
    for (lost, offered) in [(Some(100), Some(8_000.0 * 100.0)), (None, None)] {
        let sink = FlowCounts {
            bytes: 90_000,
            packets: Some(900),
            lost,
            duration_ns: SECOND,
            ..FlowCounts::new(1, FlowRole::Receiver)
        };
        let test = test_of(
            Role::Server,
            plan(RunKind::Throughput, TransportProtocol::Udp),
            &[sink],
        );
        let (record, _) = test.into_record();
        assert_eq!(record.summary.offered_bps, offered, "{lost:?}");
        assert_eq!(record.directions[0].streams[0].summary.offered_bps, offered);
    }
}

/// Payload in flight at the end of the omitted time is counted only where it arrives.
#[test]
fn behind_omitted_time_more_may_arrive_than_was_sent() {
    for (omit_ns, expected) in [(0, vec!["counts-contradict"]), (SECOND, vec![])] {
        let mut plan = plan(RunKind::Throughput, TransportProtocol::Tcp);
        plan.omit_ns = omit_ns;
        let mut test = test_of(Role::Client, plan, &[sent(1, 10_000_000, None)]);
        let figures = RemoteFigures {
            bytes: Some(10_500_000),
            duration_ns: Some(SECOND),
            ..RemoteFigures::default()
        };
        test.remote_report = report_of(Some(1), Direction::Send, figures);
        let (record, _) = test.into_record();
        assert_eq!(caveats(&record), expected, "{omit_ns}");
    }
}

#[test]
fn datagrams_counted_for_another_flow_are_not_lost() {
    // By the bytes; the repeated numbers are those of datagrams that the flow had already.
    for (received, lost) in [([1_001, 999], 0), ([1_001, 990], 9), ([1_000, 999], 1)] {
        let mut plan = plan(RunKind::Throughput, TransportProtocol::Udp);
        plan.streams = 2;
        let flows = [sent(1, 100_000, Some(1_000)), sent(2, 100_000, Some(1_000))];
        let mut test = test_of(Role::Client, plan, &flows);
        for (id, packets) in (1..).zip(received) {
            let figures = RemoteFigures {
                bytes: Some(packets * 100),
                packets: Some(packets.min(1_000)),
                ..RemoteFigures::default()
            };
            test.remote_report
                .flows
                .extend(report_of(Some(id), Direction::Send, figures).flows);
        }
        let (record, _) = test.into_record();
        assert_eq!(record.summary.lost, Some(lost), "{received:?}");
        assert_eq!(record.summary.packets_received, Some(2_000 - lost));
        assert_eq!(
            record.summary.loss_fraction,
            Some(lost as f64 / 2_000.0),
            "{received:?}"
        );
        let counted = record.losses.iter().map(|loss| loss.packets).sum::<u64>();
        assert_eq!(counted, lost, "{received:?}");
    }
}

/// Two flows of which the server reported one.
#[test]
fn a_partial_count_is_not_reported_as_the_total() {
    let mut plan = plan(RunKind::Throughput, TransportProtocol::Udp);
    plan.streams = 2;
    let flows = [sent(1, 100_000, Some(1_000)), sent(2, 100_000, Some(1_000))];
    let mut test = test_of(Role::Client, plan, &flows);
    let figures = RemoteFigures {
        bytes: Some(90_000),
        packets: Some(900),
        lost: Some(100),
        duration_ns: Some(SECOND),
        ..RemoteFigures::default()
    };
    test.remote_report = report_of(Some(2), Direction::Send, figures);
    let (record, _) = test.into_record();
    for summary in [&record.summary, &record.directions[0].summary] {
        assert_eq!(summary.packets_sent, Some(2_000));
        assert_eq!(summary.bytes_received, None);
        assert_eq!(summary.goodput_bps, None);
        assert_eq!((summary.lost, summary.loss_fraction), (None, None));
    }
    assert!(record.losses.is_empty());
    let streams = &record.directions[0].streams;
    assert_eq!(streams[0].summary.lost, None);
    assert_eq!(streams[1].summary.lost, Some(100));
    assert_eq!(caveats(&record), ["remote-count-unknown"]);
}

#[test]
fn round_trips_need_no_remote_report() {
    let mut times = Histogram::new();
    for value in 1..=10_000_u64 {
        times.record(value * 1_000);
    }
    let counts = FlowCounts {
        bytes: 640_000,
        request_bytes: Some(640_000),
        lost: Some(0),
        rtts: Some(times),
        duration_ns: SECOND,
        ..FlowCounts::new(1, FlowRole::Sender)
    };
    let test = test_of(
        Role::Client,
        plan(RunKind::Latency, TransportProtocol::Udp),
        &[counts],
    );
    let (record, _) = test.into_record();
    assert_eq!(record.summary.round_trips, Some(10_000));
    assert_eq!(record.summary.round_trips_per_second, Some(10_000.0));
    assert_eq!(record.summary.loss_fraction, Some(0.0));
    assert_eq!(record.summary.mismatched, None);
    assert!(record.histograms.contains_key("rtt_ns"));
    assert_eq!(caveats(&record), Vec::<&str>::new());
}

#[test]
fn an_interrupted_test_and_a_vanished_peer_are_marked() {
    let plan = plan(RunKind::Throughput, TransportProtocol::Tcp);
    let mut test = test_of(
        Role::Server,
        plan,
        &[FlowCounts::new(1, FlowRole::Receiver)],
    );
    test.failure = Some(SessionError::PeerLost {
        peer: ([192, 0, 2, 1], 5201).into(),
        reason: "the connection was reset".to_owned(),
    });
    test.remote_report.text = Some("é".repeat(MAX_SERVER_TEXT_BYTES));
    let (record, failure) = test.into_record();
    assert!(failure.is_some() && record.interrupted);
    assert_eq!(caveats(&record), ["peer-vanished"]);
    let text = record.server_text.unwrap();
    assert!(text.len() <= MAX_SERVER_TEXT_BYTES && text.len() + 2 > MAX_SERVER_TEXT_BYTES);
}

/// A server that sent 100 datagrams to a client that ends the test itself.
#[test]
fn datagrams_in_flight_at_a_clients_end_are_not_lost() {
    for (received, gaps, lost) in [(99, 0, 0), (97, 2, 2), (60, 0, 40), (100, 0, 0)] {
        let mut plan = plan(RunKind::Throughput, TransportProtocol::Udp);
        plan.directions = vec![Direction::Receive];
        let mut test = test_of(Role::Server, plan, &[sent(1, 10_000, Some(100))]);
        let figures = RemoteFigures {
            bytes: Some(received * 100),
            packets: Some(received),
            lost: Some(gaps),
            ..RemoteFigures::default()
        };
        test.remote_report = RemoteReport {
            stopped_early: true,
            ..report_of(Some(1), Direction::Send, figures)
        };
        let (record, failure) = test.into_record();
        assert!(failure.is_none());
        assert_eq!(record.summary.lost, Some(lost), "{received} came");
        assert_eq!(record.summary.packets_sent, Some(100));
    }
}

#[test]
fn impossible_counts_are_no_figures() {
    // 1,000 datagrams of 100 B, sent and received in a second.
    let mut plan = plan(RunKind::Throughput, TransportProtocol::Udp);
    plan.payload_bytes = 100;
    // The server's datagrams and losses.
    for (bytes, packets, lost, is_known) in [
        (100_000, 1_000, 0, true),
        (90_000, 900, 100, true),
        (90_100, 902, 98, true),
        // iperf3 3.0 reads zero in the upper half of a 64-bit number.
        (100_000, 0, 857, false),
        (90_000, 800, 200, false),
        (45_000, 900, 100, false),
    ] {
        let mut test = test_of(Role::Client, plan.clone(), &[sent(1, 100_000, Some(1_000))]);
        let figures = RemoteFigures {
            bytes: Some(bytes),
            packets: Some(packets),
            lost: Some(lost),
            ..RemoteFigures::default()
        };
        test.remote_report = report_of(Some(1), Direction::Send, figures);
        let (record, _) = test.into_record();
        let summary = &record.summary;
        let case = format!("{packets} datagrams, {bytes} B");
        assert_eq!(summary.bytes_received, Some(bytes), "{case}");
        assert_eq!(
            summary.packets_received,
            is_known.then_some(packets),
            "{case}"
        );
        assert_eq!(summary.lost, is_known.then_some(1_000 - packets), "{case}");
        assert_eq!(summary.loss_fraction.is_some(), is_known, "{case}");
        assert_eq!(
            caveats(&record).contains(&"counts-contradict"),
            !is_known,
            "{case}"
        );
    }
    // The server's time.
    for (duration_ns, goodput_bps, is_known) in [
        (SECOND, 800_000.0, true),
        (4 * SECOND, 200_000.0, true),
        (SECOND * 9 / 10, 800_000.0 / 0.9, true),
        (SECOND / 1_000, 800_000.0, false),
    ] {
        let mut test = test_of(Role::Client, plan.clone(), &[sent(1, 100_000, Some(1_000))]);
        let figures = RemoteFigures {
            bytes: Some(100_000),
            packets: Some(1_000),
            duration_ns: Some(duration_ns),
            ..RemoteFigures::default()
        };
        test.remote_report = report_of(Some(1), Direction::Send, figures);
        let (record, _) = test.into_record();
        let goodput = record.summary.goodput_bps.unwrap();
        assert!(
            (goodput - goodput_bps).abs() < 1.0,
            "{duration_ns}: {goodput}"
        );
        let contradict = caveats(&record).contains(&"counts-contradict");
        assert_eq!(contradict, !is_known, "{duration_ns}");
    }
    // Gaps between the numbers of 1,000 received datagrams, and the rate in bit/s.
    plan.directions = vec![Direction::Receive];
    for (gaps, rate_bps, is_possible) in [
        (500, Some(800_000), true),
        // The receiver was stalled, and the sender exceeded its rate.
        (8_000, Some(800_000), true),
        (100_000, Some(800_000), false),
        (100_000_000, None, true),
        (642 << 32, None, false),
        (u64::MAX, Some(u64::MAX), false),
    ] {
        plan.rate_bps = rate_bps;
        let sink = FlowCounts {
            bytes: 100_000,
            packets: Some(1_000),
            lost: Some(gaps),
            duration_ns: SECOND,
            ..FlowCounts::new(1, FlowRole::Receiver)
        };
        for reported in [None, Some(1_010)] {
            let mut test = test_of(Role::Client, plan.clone(), std::slice::from_ref(&sink));
            let figures = RemoteFigures {
                packets: reported,
                bytes: reported.map(|packets| packets * 100),
                ..RemoteFigures::default()
            };
            test.remote_report = report_of(Some(1), Direction::Receive, figures);
            let (record, _) = test.into_record();
            let summary = &record.summary;
            let case = format!("gaps {gaps}, {rate_bps:?}, reported {reported:?}");
            let lost = match reported {
                Some(packets) => Some(packets - 1_000),
                None => is_possible.then_some(gaps),
            };
            assert_eq!(summary.lost, lost, "{case}");
            let offered = summary.offered_bps.unwrap_or(0.0);
            assert!(offered < 1e13, "{case}: {offered}");
            assert_eq!(
                caveats(&record).contains(&"counts-contradict"),
                !is_possible,
                "{case}"
            );
        }
    }
}

/// Without the receiver's time a queue of the path makes the rate too high.
#[test]
fn a_count_of_datagrams_without_a_time_has_a_caveat() {
    for (protocol, duration_ns, expected) in [
        (TransportProtocol::Udp, None, vec!["remote-count-unknown"]),
        (TransportProtocol::Udp, Some(2 * SECOND), vec![]),
        (TransportProtocol::Tcp, None, vec![]),
    ] {
        let packets = (protocol == TransportProtocol::Udp).then_some(1_000);
        let mut test = test_of(
            Role::Client,
            plan(RunKind::Throughput, protocol),
            &[sent(1, 100_000, packets)],
        );
        let figures = RemoteFigures {
            bytes: Some(100_000),
            packets,
            duration_ns,
            ..RemoteFigures::default()
        };
        test.remote_report = report_of(Some(1), Direction::Send, figures);
        let (record, _) = test.into_record();
        assert_eq!(caveats(&record), expected, "{protocol:?} {duration_ns:?}");
    }
}
