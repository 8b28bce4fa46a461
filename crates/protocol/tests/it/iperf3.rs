//! iperf3 through its public API: recorded exchanges of the upstream program, two ends with bytes
//! between them, and hostile peers.

use linerate_protocol::control::{CONTROL_MAGIC, DATA_MAGIC, REPLY_MAGIC};
use linerate_protocol::iperf3::udp::{Iperf3Header, read_header, write_header};
use linerate_protocol::iperf3::{
    BUSY, Cookie, CounterWidth, FlowResult, Iperf3Client, Iperf3ClientEvent, Iperf3Direction,
    Iperf3Error, Iperf3ErrorCode, Iperf3Params, Iperf3Phase, Iperf3Results, Iperf3Server,
    Iperf3ServerEvent, Iperf3State, Iperf3Transport, JsonError, PARAMS_LIMIT_BYTES, PROTOCOL,
    READ_AHEAD_BYTES, RESULTS_LIMIT_BYTES, remote_report,
};
use linerate_protocol::sniff::{Classification, ProtocolMatch, TransportKind, classify};
use proptest::prelude::*;

/// Recorded test.
struct Recorded {
    name: String,
    client: Vec<u8>,
    server: Vec<u8>,
    datagrams: Vec<Vec<u8>>,
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
    for line in include_str!("../fixtures/iperf3-3.12.hex").lines() {
        let (keyword, rest) = line.split_once(' ').unwrap_or((line, ""));
        match keyword {
            "test" => tests.push(Recorded {
                name: rest.to_owned(),
                client: Vec::new(),
                server: Vec::new(),
                datagrams: Vec::new(),
            }),
            "client" => tests.last_mut().unwrap().client = unhex(rest),
            "server" => tests.last_mut().unwrap().server = unhex(rest),
            "datagram" => tests.last_mut().unwrap().datagrams.push(unhex(rest)),
            _ => assert!(line.is_empty() || line.starts_with('#'), "{line}"),
        }
    }
    tests
}

/// Passes bytes to a server in pieces, performs each requested step, and returns its events and its
/// output.
fn run_server(
    bytes: &[u8],
    splits: &[usize],
) -> (Vec<Iperf3ServerEvent>, Vec<u8>, Result<(), Iperf3Error>) {
    let (first, rest) = bytes.split_first_chunk().unwrap();
    let (_, mut server) = Iperf3Server::open(first, 0).unwrap();
    let mut events = Vec::new();
    let mut step = |server: &mut Iperf3Server| -> Result<(), Iperf3Error> {
        while let Some(event) = server.next_event(0)? {
            match &event {
                Iperf3ServerEvent::TestRequested(_) => {
                    server.accept(0)?;
                    while server.waits_for_flows() {
                        server.assign_flow().unwrap();
                    }
                    assert_eq!(server.assign_flow(), None);
                    server.start(0)?;
                }
                Iperf3ServerEvent::Results(results) => server.send_results(results, 0)?,
                _ => {}
            }
            events.push(event);
        }
        Ok(())
    };
    let mut done = Ok(());
    for piece in split(rest, splits) {
        done = server.receive(piece).and_then(|()| step(&mut server));
        if done.is_err() {
            break;
        }
    }
    let output = server.outgoing().to_vec();
    server.mark_sent(output.len());
    (events, output, done)
}

/// Passes bytes to a client in the same way.
fn run_client(
    params: Iperf3Params,
    bytes: &[u8],
    splits: &[usize],
) -> (Vec<Iperf3ClientEvent>, Vec<u8>, Result<(), Iperf3Error>) {
    let mut client = Iperf3Client::new(Cookie::new([7; 36]), params, 0);
    let mut events = Vec::new();
    let mut step = |client: &mut Iperf3Client| -> Result<(), Iperf3Error> {
        while let Some(event) = client.next_event(0)? {
            match event {
                Iperf3ClientEvent::Started => client.finish(0)?,
                Iperf3ClientEvent::SendResults => {
                    client.send_results(&Iperf3Results::default(), 0)?
                }
                _ => {}
            }
            events.push(event);
        }
        Ok(())
    };
    let mut done = Ok(());
    for piece in split(bytes, splits) {
        done = client.receive(piece).and_then(|()| step(&mut client));
        if done.is_err() {
            break;
        }
    }
    let output = client.outgoing().to_vec();
    client.mark_sent(output.len());
    (events, output, done)
}

fn split<'a>(bytes: &'a [u8], splits: &[usize]) -> Vec<&'a [u8]> {
    let mut splits: Vec<usize> = splits.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    splits.extend([0, bytes.len()]);
    splits.sort_unstable();
    splits
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

fn requested_params(events: &[Iperf3ServerEvent]) -> &Iperf3Params {
    match &events[0] {
        Iperf3ServerEvent::TestRequested(params) => params,
        other => panic!("{other:?}"),
    }
}

/// Splits output into its state bytes and its texts.
fn states(output: &[u8]) -> (Vec<Iperf3State>, Vec<Vec<u8>>) {
    let (mut states, mut texts, mut rest) = (Vec::new(), Vec::new(), output);
    while let [first, tail @ ..] = rest {
        match Iperf3State::from_byte(*first) {
            Some(state) => {
                states.push(state);
                rest = tail;
            }
            None => {
                let (length, tail) = rest.split_first_chunk().unwrap();
                let (text, tail) = tail.split_at(u32::from_be_bytes(*length) as usize);
                texts.push(text.to_vec());
                rest = tail;
            }
        }
    }
    (states, texts)
}

#[test]
fn recorded_clients_are_understood() {
    let mut out = String::new();
    for test in recorded() {
        let (events, output, done) = run_server(&test.client, &[]);
        done.unwrap();
        // The state bytes equal those of the upstream server.
        assert_eq!(states(&output).0, states(&test.server).0, "{}", test.name);
        let Iperf3ServerEvent::Results(results) = &events[2] else {
            panic!("{events:?}")
        };
        let remote = remote_report(requested_params(&events), false, results);
        out += &format!("{}\n{events:#?}\n{remote:#?}\n\n", test.name);
    }
    insta::assert_snapshot!(out);
}

#[test]
fn recorded_servers_are_understood() {
    let mut out = String::new();
    for test in recorded() {
        let params = requested_params(&run_server(&test.client, &[]).0).clone();
        let (events, output, done) = run_client(params.clone(), &test.server, &[]);
        done.unwrap();
        let (our_states, our_texts) = states(&output[37..]);
        let (upstream_states, upstream_texts) = states(&test.client[37..]);
        assert_eq!(our_states, upstream_states, "{}", test.name);
        // The parameters equal those of the upstream client that they were read from.
        let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        assert_eq!(
            read(&our_texts[0]),
            read(&upstream_texts[0]),
            "{}",
            test.name
        );
        let Iperf3ClientEvent::Results(results) = &events[3] else {
            panic!("{events:?}")
        };
        let remote = remote_report(&params, true, results);
        out += &format!("{}\n{events:#?}\n{remote:#?}\n\n", test.name);
    }
    insta::assert_snapshot!(out);
}

#[test]
fn recorded_datagrams_are_understood() {
    let mut count = 0;
    for test in recorded() {
        let counters = requested_params(&run_server(&test.client, &[]).0).counter_width;
        for (datagram, sequence) in test.datagrams.iter().zip(1..) {
            let header = read_header(datagram, counters).unwrap();
            assert_eq!(header.sequence, sequence, "{}", test.name);
            let mut rewritten = datagram.clone();
            write_header(
                &mut rewritten,
                counters,
                Iperf3Header {
                    sequence: 0,
                    sent_ns: 0,
                },
            );
            assert_ne!(&rewritten, datagram);
            write_header(&mut rewritten, counters, header);
            assert_eq!(&rewritten, datagram, "{}", test.name);
            count += 1;
        }
    }
    assert_eq!(count, 6);
}

#[test]
fn recorded_first_bytes_are_iperf3s() {
    for test in recorded() {
        for length in 0..=test.client.len() {
            match classify(TransportKind::Stream, &test.client[..length]) {
                Classification::NeedMore => assert!(length < 37, "{length}"),
                Classification::Known(protocol) => {
                    assert_eq!((protocol.name, length >= 37), ("iperf3", true))
                }
                Classification::Unknown => panic!("{} {length}", test.name),
            }
        }
    }
}

fn text(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text].concat()
}

fn opening(rest: &[u8]) -> Vec<u8> {
    [&Cookie::new([1; 36]).to_wire()[..], rest].concat()
}

#[test]
fn a_hostile_client_costs_no_more_than_the_limits() {
    // A length that is too large is rejected at once, even by one byte.
    for length in [PARAMS_LIMIT_BYTES as u32 + 1, u32::MAX] {
        let (_, output, done) = run_server(&opening(&length.to_be_bytes()), &[]);
        assert!(matches!(done, Err(Iperf3Error::TooLong { .. })), "{done:?}");
        assert_eq!(
            output[1..6],
            [&[0xfe][..], &Iperf3ErrorCode::PARAMETERS.0.to_be_bytes()].concat()
        );
    }
    // JSON that would take much time or memory.
    for body in [
        "[".repeat(8000),
        r#"{"a":"#.repeat(1500),
        format!("{}1{}", "[".repeat(17), "]".repeat(17)),
        format!(r#"{{"tcp":true,{}"len":1}}"#, r#""x":[[]],"#.repeat(700)),
    ] {
        let (_, _, done) = run_server(&opening(&text(body.as_bytes())), &[]);
        assert!(
            matches!(done, Ok(()) | Err(Iperf3Error::Json { .. })),
            "{done:?}"
        );
    }
    // Endless bytes in a step that expects one.
    let (_, mut server) = Iperf3Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
    let mut accepted = 0;
    while server.receive(&[0; 1000]).is_ok() {
        accepted += 1000;
        assert!(accepted <= PARAMS_LIMIT_BYTES + READ_AHEAD_BYTES);
    }
    assert!(matches!(
        server.next_event(0),
        Err(Iperf3Error::AlreadyFailed)
    ));
    assert!(matches!(
        server.receive(&[]),
        Err(Iperf3Error::AlreadyFailed)
    ));
}

#[test]
fn a_hostile_server_costs_no_more_than_the_limits() {
    let until_results = [9, 10, 1, 2, 13];
    let params = Iperf3Params::default();
    for (rest, too_long) in [
        (
            (RESULTS_LIMIT_BYTES as u32 + 1).to_be_bytes().to_vec(),
            true,
        ),
        (text(b"[[[[[[[[[[[[[[[[[[[[[[[["), false),
        (
            text(format!(r#"{{"streams":[{}]}}"#, "{},".repeat(1000)).as_bytes()),
            false,
        ),
    ] {
        let (_, _, done) = run_client(params.clone(), &[&until_results[..], &rest].concat(), &[]);
        match done {
            Err(Iperf3Error::TooLong { .. }) => assert!(too_long),
            Err(Iperf3Error::Json { source, .. }) => {
                assert!(!too_long && !matches!(source, JsonError::Missing(_)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rejections_are_distinguished() {
    let error_bytes = [&[9, 0xfe][..], &27u32.to_be_bytes(), &113u32.to_be_bytes()].concat();
    for cut in 0..error_bytes.len() {
        match run_client(Iperf3Params::default(), &error_bytes, &[cut]).2 {
            Err(Iperf3Error::Rejected {
                code: Iperf3ErrorCode::TOTAL_RATE,
                errno: 113,
            }) => {}
            other => panic!("{other:?}"),
        }
    }
    let message = run_client(Iperf3Params::default(), &error_bytes, &[])
        .2
        .unwrap_err()
        .to_string();
    assert!(message.contains("the rate is higher"), "{message}");
    for (output, expected) in [
        (&[0xff][..], "busy"),
        (&[9, 10, 0xff], "busy"),
        (&[10], "unexpected"),
        (b"SSH", "unexpected"),
    ] {
        match (run_client(Iperf3Params::default(), output, &[]).2, expected) {
            (Err(Iperf3Error::Busy), "busy")
            | (Err(Iperf3Error::Unexpected { .. }), "unexpected") => {}
            (other, expected) => panic!("{other:?}, not {expected}"),
        }
    }
    let (events, ..) = run_client(Iperf3Params::default(), &[9, 10, 1, 2, 11], &[]);
    assert_eq!(events.last(), Some(&Iperf3ClientEvent::Terminated));
    // Also in place of a length.
    let (events, ..) = run_client(Iperf3Params::default(), &[9, 10, 1, 2, 13, 11], &[]);
    assert_eq!(events.last(), Some(&Iperf3ClientEvent::Terminated));
}

#[test]
fn every_step_has_a_timeout() {
    let late = 11_000_000_000;
    let (_, mut server) = Iperf3Server::open(&Cookie::new([1; 36]).to_wire(), 5).unwrap();
    server.check_deadline(10_000_000_004).unwrap();
    assert!(matches!(
        server.check_deadline(10_000_000_005),
        Err(Iperf3Error::TimedOut {
            phase: Iperf3Phase::Parameters
        })
    ));

    // A run has the agreed time plus a margin; a run without a time has no deadline.
    for (body, deadline) in [
        (
            &br#"{"tcp":true,"time":3,"omit":1}"#[..],
            Some(14_000_000_000),
        ),
        (br#"{"tcp":true,"num":100}"#, None),
    ] {
        let (_, mut server) = Iperf3Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
        server.receive(&text(body)).unwrap();
        server.next_event(0).unwrap().unwrap();
        server.check_deadline(9_999_999_999).unwrap();
        server.accept(0).unwrap();
        assert!(matches!(
            server.start(0),
            Err(Iperf3Error::OutOfOrder { .. })
        ));
        server.assign_flow().unwrap();
        server.start(0).unwrap();
        server
            .check_deadline(deadline.map_or(u64::MAX, |deadline| deadline - 1))
            .unwrap();
        if let Some(deadline) = deadline {
            assert!(matches!(
                server.check_deadline(deadline),
                Err(Iperf3Error::TimedOut { .. })
            ));
        }
    }

    // A client that waits too long for other tests receives the busy byte.
    let (_, mut server) = Iperf3Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
    server.receive(&text(br#"{"udp":true}"#)).unwrap();
    server.next_event(5).unwrap().unwrap();
    server.check_deadline(10_000_000_004).unwrap();
    let rejection = server.check_deadline(10_000_000_005);
    assert!(matches!(rejection, Err(Iperf3Error::Busy)), "{rejection:?}");
    assert!(server.outgoing().ends_with(&BUSY));

    let mut client = Iperf3Client::new(Cookie::new([1; 36]), Iperf3Params::default(), 0);
    assert!(matches!(
        client.check_deadline(late),
        Err(Iperf3Error::TimedOut {
            phase: Iperf3Phase::CookieExchange
        })
    ));
    // The client reports the termination.
    assert_eq!(
        client.outgoing().last(),
        Some(&Iperf3State::ClientTerminate.to_byte())
    );
}

#[test]
fn a_peer_that_closes_early_is_an_error() {
    let (_, mut server) = Iperf3Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
    assert!(matches!(
        server.mark_closed(),
        Err(Iperf3Error::PeerClosed {
            phase: Iperf3Phase::Parameters
        })
    ));
    let mut client = Iperf3Client::new(Cookie::new([1; 36]), Iperf3Params::default(), 0);
    assert!(client.mark_closed().is_err());
    client.terminate();
    assert!(client.send_results(&Iperf3Results::default(), 0).is_err());
}

fn params() -> impl Strategy<Value = Iperf3Params> {
    (
        (
            prop::sample::select(vec![Iperf3Transport::Tcp, Iperf3Transport::Udp]),
            0usize..3,
            1u32..5,
        ),
        (
            prop::option::of(1u64..90),
            prop::option::of(1u64..1 << 50),
            16u32..60_000,
        ),
        (
            any::<bool>(),
            any::<bool>(),
            prop::option::of("[ -~]{0,30}"),
        ),
    )
        .prop_map(
            |((protocol, way, parallel), (time, amount, block), (wide, output, title))| {
                Iperf3Params {
                    protocol,
                    direction: [
                        Iperf3Direction::Forward,
                        Iperf3Direction::Reverse,
                        Iperf3Direction::Both,
                    ][way],
                    parallel,
                    duration_ns: time.map(|seconds| seconds * 1_000_000_000),
                    amount_bytes: amount,
                    block_bytes: block,
                    counter_width: if wide {
                        CounterWidth::Bits64
                    } else {
                        CounterWidth::Bits32
                    },
                    server_output: output,
                    title,
                    ..Iperf3Params::default()
                }
            },
        )
}

fn any_splits() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..12)
}

proptest! {
    #[test]
    fn splits_change_nothing(which in 0usize..8, splits in any_splits()) {
        let test = &recorded()[which];
        let (whole, said, _) = run_server(&test.client, &[]);
        let split = run_server(&test.client, &splits);
        prop_assert_eq!((&split.0, &split.1), (&whole, &said));
        let params = requested_params(&whole);
        let whole = run_client(params.clone(), &test.server, &[]);
        let split = run_client(params.clone(), &test.server, &splits);
        prop_assert_eq!((split.0, split.1), (whole.0, whole.1));
    }

    #[test]
    fn splits_change_nothing_of_nonsense(
        bytes in prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 4, 9, 10, 11, 12, 13, 14, 16, 254, 255, b'{', b'}']), 0..60),
        splits in any_splits(),
    ) {
        let opening = opening(&bytes);
        let (whole, split) = (run_server(&opening, &[]), run_server(&opening, &splits));
        prop_assert_eq!((&whole.0, &whole.1, whole.2.is_err()), (&split.0, &split.1, split.2.is_err()));
        let (whole, split) = (run_client(Iperf3Params::default(), &bytes, &[]), run_client(Iperf3Params::default(), &bytes, &splits));
        prop_assert_eq!((&whole.0, &whole.1, whole.2.is_err()), (&split.0, &split.1, split.2.is_err()));
    }

    /// Connects our two ends with any parameters, split in any way.
    #[test]
    fn two_ends_complete_a_test(params in params(), piece in 1usize..80) {
        let mut client = Iperf3Client::new(Cookie::new([3; 36]), params.clone(), 0);
        let first = *client.outgoing().first_chunk().unwrap();
        client.mark_sent(first.len());
        let (_, mut server) = Iperf3Server::open(&first, 0).unwrap();
        let mut results = Iperf3Results {
            flows: params.flows().iter().map(|flow| FlowResult {
                id: flow.id,
                bytes: Some(u64::from(flow.id) * 1000),
                ..FlowResult::default()
            }).collect(),
            ..Iperf3Results::default()
        };
        let (mut finished, mut done) = (None, false);
        while !done {
            let said = server.outgoing().to_vec();
            server.mark_sent(said.len());
            for bytes in said.chunks(piece) {
                client.receive(bytes).unwrap();
                while let Some(event) = client.next_event(0).unwrap() {
                    match event {
                        Iperf3ClientEvent::OpenFlows => {
                            for flow in params.flows() {
                                prop_assert_eq!(server.assign_flow(), Some(flow));
                            }
                            server.start(0).unwrap();
                        }
                        Iperf3ClientEvent::Started => client.finish(0).unwrap(),
                        Iperf3ClientEvent::SendResults => client.send_results(&results, 0).unwrap(),
                        Iperf3ClientEvent::Results(theirs) => finished = Some(*theirs),
                        Iperf3ClientEvent::Finished => {}
                        Iperf3ClientEvent::Terminated => panic!("not terminated"),
                    }
                }
            }
            let said = client.outgoing().to_vec();
            client.mark_sent(said.len());
            for bytes in said.chunks(piece) {
                server.receive(bytes).unwrap();
                while let Some(event) = server.next_event(0).unwrap() {
                    match event {
                        Iperf3ServerEvent::TestRequested(asked) => {
                            prop_assert_eq!(&*asked, &params);
                            server.accept(0).unwrap();
                        }
                        Iperf3ServerEvent::TestEnded => {}
                        Iperf3ServerEvent::Results(theirs) => {
                            prop_assert_eq!(theirs.flows.len(), results.flows.len());
                            results.output_text = Some("report".into());
                            server.send_results(&results, 0).unwrap();
                        }
                        Iperf3ServerEvent::Done => done = true,
                        Iperf3ServerEvent::Terminated => panic!("not terminated"),
                    }
                }
            }
        }
        server.mark_closed().unwrap();
        client.mark_closed().unwrap();
        let far = remote_report(&params, true, &finished.unwrap());
        prop_assert_eq!(far.text.as_deref(), Some("report"));
        let bytes: Vec<_> = far.flows.iter().map(|flow| flow.figures.bytes).collect();
        let want: Vec<_> = results.flows.iter().map(|flow| flow.bytes).collect();
        prop_assert_eq!(bytes, want);
    }

    /// First bytes of other protocols are not detected as iperf3, however many have arrived.
    #[test]
    fn other_protocols_are_not_detected_as_iperf3(
        tail in prop::collection::vec(any::<u8>(), 0..80),
        sequence: u32,
        text in "[ -~]{40,80}",
    ) {
        let iperf2 = [&[0x40, 1, 0, 0x78][..], &[0; 8]].concat();
        for beginning in [
            CONTROL_MAGIC.to_vec(),
            DATA_MAGIC.to_vec(),
            REPLY_MAGIC.to_vec(),
            [&[0; 4][..], &sequence.to_be_bytes(), &[0, 3, 0, 0, 0, 14]].concat(),
            b"HELO nuttcp v8.1.4\n".to_vec(),
            b"BOD0".to_vec(),
            iperf2,
            text.into_bytes(),
        ] {
            let bytes = [&beginning[..], &tail].concat();
            let mut last = ProtocolMatch::NeedMore;
            for length in 0..=bytes.len() {
                let detect_linerate = (PROTOCOL.detect)(TransportKind::Stream, &bytes[..length]);
                prop_assert_ne!(detect_linerate, ProtocolMatch::Yes);
                prop_assert!(last == ProtocolMatch::NeedMore || detect_linerate == last, "no result changes");
                last = detect_linerate;
            }
            prop_assert_eq!((PROTOCOL.detect)(TransportKind::Datagram, &bytes[..]), ProtocolMatch::No);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = run_server(&opening(&bytes), &[]);
        let _ = run_server(&opening(&text(&bytes)), &[]);
        let _ = run_client(Iperf3Params::default(), &bytes, &[]);
        for counters in [CounterWidth::Bits32, CounterWidth::Bits64] {
            let _ = read_header(&bytes, counters);
        }
    }
}
