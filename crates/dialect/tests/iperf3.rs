//! iperf3 through its public API: recorded exchanges of the upstream program, two ends with bytes
//! between them, and hostile peers.

use linerate_dialect::control::{ANSWER_MAGIC, CONTROL_MAGIC, DATA_MAGIC};
use linerate_dialect::iperf3::udp::{Header, read_header, write_header};
use linerate_dialect::iperf3::{
    BUSY, Client, ClientEvent, Cookie, Counters, DIALECT, FlowResult, Iperf3Error, JsonError,
    PARAMS_LIMIT_BYTES, Params, Phase, Protocol, READ_AHEAD_BYTES, RESULTS_LIMIT_BYTES, Refusal,
    Results, Server, ServerEvent, State, Way, far_report,
};
use linerate_dialect::sniff::{Carrier, Speaker, Verdict, speaker};
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
    for line in include_str!("fixtures/iperf3-3.12.hex").lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
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
fn serve(bytes: &[u8], cuts: &[usize]) -> (Vec<ServerEvent>, Vec<u8>, Result<(), Iperf3Error>) {
    let (first, rest) = bytes.split_first_chunk().unwrap();
    let (_, mut server) = Server::open(first, 0).unwrap();
    let mut events = Vec::new();
    let mut step = |server: &mut Server| -> Result<(), Iperf3Error> {
        while let Some(event) = server.next_event(0)? {
            match &event {
                ServerEvent::Asked(_) => {
                    server.accept(0)?;
                    while server.waits_for_flows() {
                        server.flow_arrived().unwrap();
                    }
                    assert_eq!(server.flow_arrived(), None);
                    server.start(0)?;
                }
                ServerEvent::Results(theirs) => server.results(theirs, 0)?,
                _ => {}
            }
            events.push(event);
        }
        Ok(())
    };
    let mut done = Ok(());
    for piece in pieces(rest, cuts) {
        done = server.receive(piece).and_then(|()| step(&mut server));
        if done.is_err() {
            break;
        }
    }
    let said = server.outgoing().to_vec();
    server.sent(said.len());
    (events, said, done)
}

/// Passes bytes to a client in the same way.
fn ask(
    params: Params,
    bytes: &[u8],
    cuts: &[usize],
) -> (Vec<ClientEvent>, Vec<u8>, Result<(), Iperf3Error>) {
    let mut client = Client::new(Cookie::new([7; 36]), params, 0);
    let mut events = Vec::new();
    let mut step = |client: &mut Client| -> Result<(), Iperf3Error> {
        while let Some(event) = client.next_event(0)? {
            match event {
                ClientEvent::Started => client.finish(0)?,
                ClientEvent::WantsResults => client.results(&Results::default(), 0)?,
                _ => {}
            }
            events.push(event);
        }
        Ok(())
    };
    let mut done = Ok(());
    for piece in pieces(bytes, cuts) {
        done = client.receive(piece).and_then(|()| step(&mut client));
        if done.is_err() {
            break;
        }
    }
    let said = client.outgoing().to_vec();
    client.sent(said.len());
    (events, said, done)
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

fn asked(events: &[ServerEvent]) -> &Params {
    match &events[0] {
        ServerEvent::Asked(params) => params,
        other => panic!("{other:?}"),
    }
}

/// Splits output into its state bytes and its texts.
fn states(said: &[u8]) -> (Vec<State>, Vec<Vec<u8>>) {
    let (mut states, mut texts, mut rest) = (Vec::new(), Vec::new(), said);
    while let [first, tail @ ..] = rest {
        match State::from_byte(*first) {
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
        let (events, said, done) = serve(&test.client, &[]);
        done.unwrap();
        // The state bytes equal those of the upstream server.
        assert_eq!(states(&said).0, states(&test.server).0, "{}", test.name);
        let ServerEvent::Results(theirs) = &events[2] else {
            panic!("{events:?}")
        };
        let far = far_report(asked(&events), false, theirs);
        out += &format!("{}\n{events:#?}\n{far:#?}\n\n", test.name);
    }
    insta::assert_snapshot!(out);
}

#[test]
fn recorded_servers_are_understood() {
    let mut out = String::new();
    for test in recorded() {
        let params = asked(&serve(&test.client, &[]).0).clone();
        let (events, said, done) = ask(params.clone(), &test.server, &[]);
        done.unwrap();
        let (our_states, our_texts) = states(&said[37..]);
        let (stock_states, stock_texts) = states(&test.client[37..]);
        assert_eq!(our_states, stock_states, "{}", test.name);
        // The parameters equal those of the upstream client that they were read from.
        let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&our_texts[0]), read(&stock_texts[0]), "{}", test.name);
        let ClientEvent::Results(theirs) = &events[3] else {
            panic!("{events:?}")
        };
        let far = far_report(&params, true, theirs);
        out += &format!("{}\n{events:#?}\n{far:#?}\n\n", test.name);
    }
    insta::assert_snapshot!(out);
}

#[test]
fn recorded_datagrams_are_understood() {
    let mut seen = 0;
    for test in recorded() {
        let counters = asked(&serve(&test.client, &[]).0).counters;
        for (datagram, sequence) in test.datagrams.iter().zip(1..) {
            let header = read_header(datagram, counters).unwrap();
            assert_eq!(header.sequence, sequence, "{}", test.name);
            let mut again = datagram.clone();
            write_header(
                &mut again,
                counters,
                Header {
                    sequence: 0,
                    sent_ns: 0,
                },
            );
            assert_ne!(&again, datagram);
            write_header(&mut again, counters, header);
            assert_eq!(&again, datagram, "{}", test.name);
            seen += 1;
        }
    }
    assert_eq!(seen, 6);
}

#[test]
fn recorded_first_bytes_are_iperf3s() {
    for test in recorded() {
        for length in 0..=test.client.len() {
            match speaker(Carrier::Stream, &test.client[..length]) {
                Speaker::NeedMore => assert!(length < 37, "{length}"),
                Speaker::Known(dialect) => {
                    assert_eq!((dialect.name, length >= 37), ("iperf3", true))
                }
                Speaker::Unknown => panic!("{} {length}", test.name),
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
        let (_, said, done) = serve(&opening(&length.to_be_bytes()), &[]);
        assert!(matches!(done, Err(Iperf3Error::TooLong { .. })), "{done:?}");
        assert_eq!(
            said[1..6],
            [&[0xfe][..], &Refusal::PARAMETERS.0.to_be_bytes()].concat()
        );
    }
    // JSON that would take much time or memory.
    for body in [
        "[".repeat(8000),
        r#"{"a":"#.repeat(1500),
        format!("{}1{}", "[".repeat(17), "]".repeat(17)),
        format!(r#"{{"tcp":true,{}"len":1}}"#, r#""x":[[]],"#.repeat(700)),
    ] {
        let (_, _, done) = serve(&opening(&text(body.as_bytes())), &[]);
        assert!(
            matches!(done, Ok(()) | Err(Iperf3Error::Json { .. })),
            "{done:?}"
        );
    }
    // Endless bytes in a step that expects one.
    let (_, mut server) = Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
    let mut taken = 0;
    while server.receive(&[0; 1000]).is_ok() {
        taken += 1000;
        assert!(taken <= PARAMS_LIMIT_BYTES + READ_AHEAD_BYTES);
    }
    assert!(matches!(server.next_event(0), Err(Iperf3Error::Failed)));
    assert!(matches!(server.receive(&[]), Err(Iperf3Error::Failed)));
}

#[test]
fn a_hostile_server_costs_no_more_than_the_limits() {
    let until_results = [9, 10, 1, 2, 13];
    let params = Params::default();
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
        let (_, _, done) = ask(params.clone(), &[&until_results[..], &rest].concat(), &[]);
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
fn refusals_are_told_apart() {
    let refused = [&[9, 0xfe][..], &27u32.to_be_bytes(), &113u32.to_be_bytes()].concat();
    for cut in 0..refused.len() {
        match ask(Params::default(), &refused, &[cut]).2 {
            Err(Iperf3Error::Refused {
                refusal: Refusal::TOTAL_RATE,
                errno: 113,
            }) => {}
            other => panic!("{other:?}"),
        }
    }
    let message = ask(Params::default(), &refused, &[])
        .2
        .unwrap_err()
        .to_string();
    assert!(message.contains("the rate is higher"), "{message}");
    for (said, want) in [
        (&[0xff][..], "busy"),
        (&[9, 10, 0xff], "busy"),
        (&[10], "unexpected"),
        (b"SSH", "unexpected"),
    ] {
        match (ask(Params::default(), said, &[]).2, want) {
            (Err(Iperf3Error::Busy), "busy")
            | (Err(Iperf3Error::Unexpected { .. }), "unexpected") => {}
            (other, want) => panic!("{other:?}, not {want}"),
        }
    }
    let (events, ..) = ask(Params::default(), &[9, 10, 1, 2, 11], &[]);
    assert_eq!(events.last(), Some(&ClientEvent::Terminated));
    // Also in place of a length.
    let (events, ..) = ask(Params::default(), &[9, 10, 1, 2, 13, 11], &[]);
    assert_eq!(events.last(), Some(&ClientEvent::Terminated));
}

#[test]
fn every_step_has_its_time() {
    let late = 11_000_000_000;
    let (_, mut server) = Server::open(&Cookie::new([1; 36]).to_wire(), 5).unwrap();
    server.check(10_000_000_004).unwrap();
    assert!(matches!(
        server.check(10_000_000_005),
        Err(Iperf3Error::Overdue {
            phase: Phase::Parameters
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
        let (_, mut server) = Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
        server.receive(&text(body)).unwrap();
        server.next_event(0).unwrap().unwrap();
        server.check(9_999_999_999).unwrap();
        server.accept(0).unwrap();
        assert!(matches!(
            server.start(0),
            Err(Iperf3Error::OutOfTurn { .. })
        ));
        server.flow_arrived().unwrap();
        server.start(0).unwrap();
        server
            .check(deadline.map_or(u64::MAX, |deadline| deadline - 1))
            .unwrap();
        if let Some(deadline) = deadline {
            assert!(matches!(
                server.check(deadline),
                Err(Iperf3Error::Overdue { .. })
            ));
        }
    }

    // A client that waits too long for other tests receives the busy byte.
    let (_, mut server) = Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
    server.receive(&text(br#"{"udp":true}"#)).unwrap();
    server.next_event(5).unwrap().unwrap();
    server.check(10_000_000_004).unwrap();
    let refused = server.check(10_000_000_005);
    assert!(matches!(refused, Err(Iperf3Error::Busy)), "{refused:?}");
    assert!(server.outgoing().ends_with(&BUSY));

    let mut client = Client::new(Cookie::new([1; 36]), Params::default(), 0);
    assert!(matches!(
        client.check(late),
        Err(Iperf3Error::Overdue {
            phase: Phase::Greeting
        })
    ));
    // The client reports the termination.
    assert_eq!(
        client.outgoing().last(),
        Some(&State::ClientTerminate.to_byte())
    );
}

#[test]
fn a_peer_that_goes_is_missed_until_all_is_said() {
    let (_, mut server) = Server::open(&Cookie::new([1; 36]).to_wire(), 0).unwrap();
    assert!(matches!(
        server.closed(),
        Err(Iperf3Error::Vanished {
            phase: Phase::Parameters
        })
    ));
    let mut client = Client::new(Cookie::new([1; 36]), Params::default(), 0);
    assert!(client.closed().is_err());
    client.terminate();
    assert!(client.results(&Results::default(), 0).is_err());
}

fn params() -> impl Strategy<Value = Params> {
    (
        (
            prop::sample::select(vec![Protocol::Tcp, Protocol::Udp]),
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
            |((protocol, way, parallel), (time, amount, block), (wide, output, title))| Params {
                protocol,
                way: [Way::Forward, Way::Reverse, Way::Both][way],
                parallel,
                duration_ns: time.map(|seconds| seconds * 1_000_000_000),
                amount_bytes: amount,
                block_bytes: block,
                counters: if wide {
                    Counters::Bits64
                } else {
                    Counters::Bits32
                },
                server_output: output,
                title,
                ..Params::default()
            },
        )
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..12)
}

proptest! {
    #[test]
    fn splits_change_nothing(which in 0usize..8, cuts in cuts()) {
        let test = &recorded()[which];
        let (whole, said, _) = serve(&test.client, &[]);
        let split = serve(&test.client, &cuts);
        prop_assert_eq!((&split.0, &split.1), (&whole, &said));
        let params = asked(&whole);
        let whole = ask(params.clone(), &test.server, &[]);
        let split = ask(params.clone(), &test.server, &cuts);
        prop_assert_eq!((split.0, split.1), (whole.0, whole.1));
    }

    #[test]
    fn splits_change_nothing_of_nonsense(
        bytes in prop::collection::vec(prop::sample::select(vec![0u8, 1, 2, 4, 9, 10, 11, 12, 13, 14, 16, 254, 255, b'{', b'}']), 0..60),
        cuts in cuts(),
    ) {
        let opening = opening(&bytes);
        let (whole, split) = (serve(&opening, &[]), serve(&opening, &cuts));
        prop_assert_eq!((&whole.0, &whole.1, whole.2.is_err()), (&split.0, &split.1, split.2.is_err()));
        let (whole, split) = (ask(Params::default(), &bytes, &[]), ask(Params::default(), &bytes, &cuts));
        prop_assert_eq!((&whole.0, &whole.1, whole.2.is_err()), (&split.0, &split.1, split.2.is_err()));
    }

    /// Connects our two ends with any parameters, split in any way.
    #[test]
    fn two_ends_complete_a_test(params in params(), piece in 1usize..80) {
        let mut client = Client::new(Cookie::new([3; 36]), params.clone(), 0);
        let first = *client.outgoing().first_chunk().unwrap();
        client.sent(first.len());
        let (_, mut server) = Server::open(&first, 0).unwrap();
        let mut results = Results {
            flows: params.flows().iter().map(|flow| FlowResult {
                id: flow.id,
                bytes: Some(u64::from(flow.id) * 1000),
                ..FlowResult::default()
            }).collect(),
            ..Results::default()
        };
        let (mut finished, mut done) = (None, false);
        while !done {
            let said = server.outgoing().to_vec();
            server.sent(said.len());
            for bytes in said.chunks(piece) {
                client.receive(bytes).unwrap();
                while let Some(event) = client.next_event(0).unwrap() {
                    match event {
                        ClientEvent::OpenFlows => {
                            for flow in params.flows() {
                                prop_assert_eq!(server.flow_arrived(), Some(flow));
                            }
                            server.start(0).unwrap();
                        }
                        ClientEvent::Started => client.finish(0).unwrap(),
                        ClientEvent::WantsResults => client.results(&results, 0).unwrap(),
                        ClientEvent::Results(theirs) => finished = Some(*theirs),
                        ClientEvent::Finished => {}
                        ClientEvent::Terminated => panic!("not terminated"),
                    }
                }
            }
            let said = client.outgoing().to_vec();
            client.sent(said.len());
            for bytes in said.chunks(piece) {
                server.receive(bytes).unwrap();
                while let Some(event) = server.next_event(0).unwrap() {
                    match event {
                        ServerEvent::Asked(asked) => {
                            prop_assert_eq!(&*asked, &params);
                            server.accept(0).unwrap();
                        }
                        ServerEvent::Ended => {}
                        ServerEvent::Results(theirs) => {
                            prop_assert_eq!(theirs.flows.len(), results.flows.len());
                            results.output_text = Some("report".into());
                            server.results(&results, 0).unwrap();
                        }
                        ServerEvent::Done => done = true,
                        ServerEvent::Terminated => panic!("not terminated"),
                    }
                }
            }
        }
        server.closed().unwrap();
        client.closed().unwrap();
        let far = far_report(&params, true, &finished.unwrap());
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
            ANSWER_MAGIC.to_vec(),
            [&[0; 4][..], &sequence.to_be_bytes(), &[0, 3, 0, 0, 0, 14]].concat(),
            b"HELO nuttcp v8.1.4\n".to_vec(),
            b"BOD0".to_vec(),
            iperf2,
            text.into_bytes(),
        ] {
            let bytes = [&beginning[..], &tail].concat();
            let mut last = Verdict::NeedMore;
            for length in 0..=bytes.len() {
                let verdict = (DIALECT.recognise)(Carrier::Stream, &bytes[..length]);
                prop_assert_ne!(verdict, Verdict::Yes);
                prop_assert!(last == Verdict::NeedMore || verdict == last, "no result changes");
                last = verdict;
            }
            prop_assert_eq!((DIALECT.recognise)(Carrier::Datagram, &bytes[..]), Verdict::No);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = serve(&opening(&bytes), &[]);
        let _ = serve(&opening(&text(&bytes)), &[]);
        let _ = ask(Params::default(), &bytes, &[]);
        for counters in [Counters::Bits32, Counters::Bits64] {
            let _ = read_header(&bytes, counters);
        }
    }
}
