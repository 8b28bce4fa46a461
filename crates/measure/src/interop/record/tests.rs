use super::*;
use linerate_dialect::remote_report::{FarFigures, FarFlow};

const SECOND: u64 = 1_000_000_000;

fn plan(kind: Kind, protocol: Protocol) -> Plan {
    Plan::new(kind, protocol, "far")
}

fn test_of(role: Role, plan: Plan, flows: &[Counted]) -> PeerTest {
    let own = own_half(role, Host::default(), &plan, flows);
    PeerTest::new("iperf3", plan, Timestamp::UNIX_EPOCH, own)
}

fn sent(id: u32, bytes: u64, packets: Option<u64>) -> Counted {
    Counted {
        bytes,
        packets,
        duration_ns: SECOND,
        ..Counted::new(id, Part::Source)
    }
}

fn said(id: Option<u32>, direction: Direction, figures: FarFigures) -> FarReport {
    FarReport {
        flows: vec![FarFlow {
            id,
            direction,
            figures,
        }],
        ..FarReport::default()
    }
}

fn doubts(record: &Record) -> Vec<&str> {
    record.validity.iter().map(|d| d.doubt.as_str()).collect()
}

/// A client that sent 1000 datagrams of 100 B, with different reports of the server.
#[test]
fn what_far_ends_say_of_datagrams() {
    struct Row {
        name: &'static str,
        said: Option<FarFigures>,
        received: Option<u64>,
        lost: Option<u64>,
        goodput: Option<f64>,
        doubt: Option<&'static str>,
    }
    let rows = [
        Row {
            name: "everything, with a gap",
            said: Some(FarFigures {
                bytes: Some(99_000),
                packets: Some(990),
                lost: Some(10),
                duration_ns: Some(2 * SECOND),
                ..FarFigures::default()
            }),
            received: Some(990),
            lost: Some(10),
            goodput: Some(99_000.0 * 8.0 / 2.0),
            doubt: None,
        },
        Row {
            name: "the last ones never came, so no number after them shows it",
            said: Some(FarFigures {
                bytes: Some(98_000),
                packets: Some(980),
                lost: Some(10),
                ..FarFigures::default()
            }),
            received: Some(980),
            lost: Some(20),
            goodput: Some(98_000.0 * 8.0),
            doubt: Some("end-not-counted"),
        },
        Row {
            name: "bytes alone, as a board's console has them",
            said: Some(FarFigures {
                bytes: Some(50_000),
                ..FarFigures::default()
            }),
            received: None,
            lost: None,
            goodput: Some(50_000.0 * 8.0),
            doubt: None,
        },
        Row {
            name: "datagrams alone",
            said: Some(FarFigures {
                packets: Some(400),
                ..FarFigures::default()
            }),
            received: Some(400),
            lost: Some(600),
            goodput: None,
            doubt: None,
        },
        Row {
            name: "nothing",
            said: None,
            received: None,
            lost: None,
            goodput: None,
            doubt: Some("far-count-unknown"),
        },
        Row {
            name: "more than was sent",
            said: Some(FarFigures {
                bytes: Some(200_000),
                packets: Some(2_000),
                ..FarFigures::default()
            }),
            received: Some(2_000),
            lost: Some(0),
            goodput: Some(1_600_000.0),
            doubt: Some("counts-contradict"),
        },
    ];
    for row in rows {
        let plan = plan(Kind::Throughput, Protocol::Udp);
        let mut test = test_of(Role::Client, plan, &[sent(1, 100_000, Some(1_000))]);
        test.far = row.said.map_or_else(FarReport::default, |figures| {
            said(None, Direction::Send, figures)
        });
        let (record, failure) = test.record();
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
        let wanted: Vec<_> = row.doubt.into_iter().collect();
        assert_eq!(doubts(&record), wanted, "{name}");
        assert_eq!(record.plan.dialect.as_deref(), Some("iperf3"), "{name}");
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
    for (role, part, own_word, want) in [
        (Role::Client, Part::Source, Direction::Send, Direction::Send),
        (
            Role::Client,
            Part::Sink,
            Direction::Receive,
            Direction::Receive,
        ),
        (
            Role::Server,
            Part::Sink,
            Direction::Receive,
            Direction::Send,
        ),
        (
            Role::Server,
            Part::Source,
            Direction::Send,
            Direction::Receive,
        ),
    ] {
        let mut plan = plan(Kind::Throughput, Protocol::Tcp);
        plan.directions = vec![want];
        let flow = Counted {
            bytes: 1_000,
            duration_ns: SECOND,
            ..Counted::new(1, part)
        };
        let mut test = test_of(role, plan, &[flow]);
        let figures = FarFigures {
            bytes: Some(1_000),
            duration_ns: Some(SECOND),
            ..FarFigures::default()
        };
        test.far = said(Some(1), own_word, figures);
        let (record, _) = test.record();
        let [direction] = record.directions.as_slice() else {
            panic!("{role:?} {part:?}: {:?}", record.directions);
        };
        assert_eq!(direction.direction, want);
        let summary = &direction.summary;
        assert_eq!(summary.bytes_sent, Some(1_000), "{role:?} {part:?}");
        assert_eq!(summary.bytes_received, Some(1_000), "{role:?} {part:?}");
        assert_eq!(summary.goodput_bps, Some(8_000.0), "{role:?} {part:?}");
        assert_eq!(summary.offered_bps, Some(8_000.0), "{role:?} {part:?}");
        assert_eq!(record.hosts[0].role, Some(role));
        assert_eq!(doubts(&record), Vec::<&str>::new(), "{role:?} {part:?}");
    }
}

#[test]
fn a_total_is_of_the_direction_and_not_of_its_flows() {
    let mut plan = plan(Kind::Throughput, Protocol::Udp);
    plan.streams = 2;
    let flows = [sent(1, 100_000, Some(1_000)), sent(2, 100_000, Some(1_000))];
    let mut test = test_of(Role::Client, plan, &flows);
    let figures = FarFigures {
        bytes: Some(150_000),
        packets: Some(1_500),
        duration_ns: Some(SECOND),
        ..FarFigures::default()
    };
    test.far = said(None, Direction::Send, figures);
    let (record, _) = test.record();
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
fn over_tcp_the_far_kernel_is_the_next_best_witness() {
    let flows = [sent(1, 100_000, None)];
    let mut test = test_of(Role::Client, plan(Kind::Throughput, Protocol::Tcp), &flows);
    test.acknowledged.insert(
        1,
        Acknowledged {
            bytes: 100_000,
            behind_ns: SECOND,
        },
    );
    let (record, _) = test.record();
    assert_eq!(record.summary.bytes_received, Some(100_000));
    assert_eq!(record.summary.goodput_bps, Some(400_000.0));
    assert_eq!(record.summary.duration_ns, Some(2 * SECOND));
    assert_eq!(doubts(&record), ["counted-by-acknowledgement"]);

    let test = test_of(Role::Client, plan(Kind::Throughput, Protocol::Tcp), &flows);
    let (record, _) = test.record();
    assert_eq!(record.summary.bytes_received, None);
    assert_eq!(record.summary.goodput_bps, None);
    assert_eq!(doubts(&record), ["far-count-unknown"]);
}

#[test]
fn what_a_sender_says_completes_what_a_sink_saw() {
    let mut plan = plan(Kind::Throughput, Protocol::Udp);
    plan.directions = vec![Direction::Receive];
    let sink = Counted {
        bytes: 90_000,
        packets: Some(900),
        lost: Some(80),
        duplicates: Some(0),
        duration_ns: SECOND,
        ..Counted::new(1, Part::Sink)
    };
    let mut test = test_of(Role::Client, plan.clone(), std::slice::from_ref(&sink));
    let figures = FarFigures {
        packets: Some(1_000),
        bytes: Some(100_000),
        ..FarFigures::default()
    };
    test.far = said(Some(1), Direction::Receive, figures);
    let (record, _) = test.record();
    assert_eq!(record.summary.lost, Some(100));
    assert_eq!(record.summary.packets_sent, Some(1_000));
    assert_eq!(record.summary.loss_fraction, Some(0.1));
    assert_eq!(record.summary.duration_ns, Some(SECOND));

    // Without a report, what the numbers show as sent in this time was offered.
    let (record, _) = test_of(Role::Client, plan, std::slice::from_ref(&sink)).record();
    assert_eq!(record.summary.lost, Some(80));
    assert_eq!(record.summary.packets_sent, None);
    assert_eq!(record.summary.offered_bps, Some(980.0 * 100.0 * 8.0));
}

#[test]
fn what_was_offered_follows_from_numbers_alone() {
    for (lost, offered) in [(Some(100), Some(8_000.0 * 100.0)), (None, None)] {
        let sink = Counted {
            bytes: 90_000,
            packets: Some(900),
            lost,
            duration_ns: SECOND,
            ..Counted::new(1, Part::Sink)
        };
        let test = test_of(Role::Server, plan(Kind::Throughput, Protocol::Udp), &[sink]);
        let (record, _) = test.record();
        assert_eq!(record.summary.offered_bps, offered, "{lost:?}");
        assert_eq!(record.directions[0].streams[0].summary.offered_bps, offered);
    }
}

/// Payload in flight at the end of the omitted time is counted only where it arrives.
#[test]
fn behind_omitted_time_more_may_arrive_than_was_sent() {
    for (omit_ns, wanted) in [(0, vec!["counts-contradict"]), (SECOND, vec![])] {
        let mut plan = plan(Kind::Throughput, Protocol::Tcp);
        plan.omit_ns = omit_ns;
        let mut test = test_of(Role::Client, plan, &[sent(1, 10_000_000, None)]);
        let figures = FarFigures {
            bytes: Some(10_500_000),
            duration_ns: Some(SECOND),
            ..FarFigures::default()
        };
        test.far = said(Some(1), Direction::Send, figures);
        let (record, _) = test.record();
        assert_eq!(doubts(&record), wanted, "{omit_ns}");
    }
}

#[test]
fn datagrams_counted_for_another_flow_are_not_lost() {
    // By the bytes; the repeated numbers are those of datagrams that the flow had already.
    for (there, lost) in [([1_001, 999], 0), ([1_001, 990], 9), ([1_000, 999], 1)] {
        let mut plan = plan(Kind::Throughput, Protocol::Udp);
        plan.streams = 2;
        let flows = [sent(1, 100_000, Some(1_000)), sent(2, 100_000, Some(1_000))];
        let mut test = test_of(Role::Client, plan, &flows);
        for (id, packets) in (1..).zip(there) {
            let figures = FarFigures {
                bytes: Some(packets * 100),
                packets: Some(packets.min(1_000)),
                ..FarFigures::default()
            };
            test.far
                .flows
                .extend(said(Some(id), Direction::Send, figures).flows);
        }
        let (record, _) = test.record();
        assert_eq!(record.summary.lost, Some(lost), "{there:?}");
        assert_eq!(record.summary.packets_received, Some(2_000 - lost));
        assert_eq!(
            record.summary.loss_fraction,
            Some(lost as f64 / 2_000.0),
            "{there:?}"
        );
        let counted = record.losses.iter().map(|loss| loss.packets).sum::<u64>();
        assert_eq!(counted, lost, "{there:?}");
    }
}

/// Two flows of which the server reported one.
#[test]
fn a_part_of_what_arrived_is_not_told_for_the_whole() {
    let mut plan = plan(Kind::Throughput, Protocol::Udp);
    plan.streams = 2;
    let flows = [sent(1, 100_000, Some(1_000)), sent(2, 100_000, Some(1_000))];
    let mut test = test_of(Role::Client, plan, &flows);
    let figures = FarFigures {
        bytes: Some(90_000),
        packets: Some(900),
        lost: Some(100),
        duration_ns: Some(SECOND),
        ..FarFigures::default()
    };
    test.far = said(Some(2), Direction::Send, figures);
    let (record, _) = test.record();
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
    assert_eq!(doubts(&record), ["far-count-unknown"]);
}

#[test]
fn round_trips_need_nothing_from_the_far_end() {
    let mut times = Histogram::new();
    for value in 1..=10_000_u64 {
        times.record(value * 1_000);
    }
    let asking = Counted {
        bytes: 640_000,
        asked_bytes: Some(640_000),
        lost: Some(0),
        times: Some(times),
        duration_ns: SECOND,
        ..Counted::new(1, Part::Source)
    };
    let test = test_of(Role::Client, plan(Kind::Latency, Protocol::Udp), &[asking]);
    let (record, _) = test.record();
    assert_eq!(record.summary.round_trips, Some(10_000));
    assert_eq!(record.summary.round_trips_per_second, Some(10_000.0));
    assert_eq!(record.summary.loss_fraction, Some(0.0));
    assert_eq!(record.summary.mismatched, None);
    assert!(record.histograms.contains_key("rtt_ns"));
    assert_eq!(doubts(&record), Vec::<&str>::new());
}

#[test]
fn an_interrupted_test_and_a_vanished_peer_are_marked() {
    let plan = plan(Kind::Throughput, Protocol::Tcp);
    let mut test = test_of(Role::Server, plan, &[Counted::new(1, Part::Sink)]);
    test.failure = Some(MeasureError::Vanished {
        peer: ([192, 0, 2, 1], 5201).into(),
        how: "the connection was reset".to_owned(),
    });
    test.far.text = Some("é".repeat(FAR_TEXT_BYTES));
    let (record, failure) = test.record();
    assert!(failure.is_some() && record.interrupted);
    assert_eq!(doubts(&record), ["peer-vanished"]);
    let text = record.far_text.unwrap();
    assert!(text.len() <= FAR_TEXT_BYTES && text.len() + 2 > FAR_TEXT_BYTES);
}

/// A server that sent 100 datagrams to a client that ends the test itself.
#[test]
fn what_was_on_its_way_at_a_clients_end_is_not_lost() {
    for (came, gaps, lost) in [(99, 0, 0), (97, 2, 2), (60, 0, 40), (100, 0, 0)] {
        let mut plan = plan(Kind::Throughput, Protocol::Udp);
        plan.directions = vec![Direction::Receive];
        let mut test = test_of(Role::Server, plan, &[sent(1, 10_000, Some(100))]);
        let figures = FarFigures {
            bytes: Some(came * 100),
            packets: Some(came),
            lost: Some(gaps),
            ..FarFigures::default()
        };
        test.far = FarReport {
            stopped_first: true,
            ..said(Some(1), Direction::Send, figures)
        };
        let (record, failure) = test.record();
        assert!(failure.is_none());
        assert_eq!(record.summary.lost, Some(lost), "{came} came");
        assert_eq!(record.summary.packets_sent, Some(100));
    }
}
