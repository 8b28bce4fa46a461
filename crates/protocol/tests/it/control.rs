//! Control protocol through its public API: two codecs, and the bytes between them.

use crate::samples::Source;
use linerate_protocol::control::{
    BACKLOG_LIMIT_BYTES, Bye, CONTROL_MAGIC, ControlCodec, ControlError, FLOWS_PER_FRAME,
    FRAME_LIMIT_BYTES, Frame, HELLO_LIMIT_BYTES, Heartbeat, Hello, READ_AHEAD_BYTES, Reject,
    RequestedSettings, StartRun, StopRun,
};
use linerate_record::event::ErrorReport;
use proptest::prelude::*;

/// Takes all outgoing bytes of one end.
fn take(connection: &mut ControlCodec) -> Vec<u8> {
    let bytes = connection.outgoing().to_vec();
    connection.mark_sent(bytes.len());
    bytes
}

/// Passes bytes in chunks and takes out every frame after each.
fn feed(
    to: &mut ControlCodec,
    bytes: &[u8],
    chunk_bytes: usize,
) -> Result<Vec<Frame>, ControlError> {
    let mut frames = Vec::new();
    for chunk_bytes in bytes.chunks(chunk_bytes) {
        to.receive(chunk_bytes)?;
        while let Some(frame) = to.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

/// Returns two ends that have exchanged HELLOs.
fn pair() -> (ControlCodec, ControlCodec) {
    let mut client = ControlCodec::client(Hello::new("client")).unwrap();
    let mut server = ControlCodec::server(Hello::new("server")).unwrap();
    assert!(server.outgoing().is_empty(), "the client sends first");
    feed(&mut server, &take(&mut client), 100).unwrap();
    feed(&mut client, &take(&mut server), 100).unwrap();
    (client, server)
}

/// Encodes a frame by hand.
fn raw(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 2).unwrap();
    [&length.to_be_bytes()[..], &kind.to_be_bytes(), body].concat()
}

/// Formats bytes as offset, hex and text.
fn dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (line, row) in bytes.chunks(16).enumerate() {
        let hex: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String = row
            .iter()
            .map(|&byte| match byte {
                b' '..=b'~' => byte as char,
                _ => '.',
            })
            .collect();
        out += &format!("{:04x}  {:47}  {text}\n", line * 16, hex.join(" "));
    }
    out
}

/// Formats every frame of a source as on the wire, HELLO first.
fn golden(mut source: Source) -> String {
    let client = ControlCodec::client(source.hello()).unwrap();
    let mut out = format!("HELLO, with the opening\n{}", dump(client.outgoing()));
    let (_, mut server) = pair();
    for frame in source.frames() {
        server.send(&frame).unwrap();
        out += &format!(
            "\n{} {}\n{}",
            frame.kind(),
            frame.name(),
            dump(&take(&mut server))
        );
    }
    out
}

#[test]
fn full_frames_do_not_drift() {
    insta::assert_snapshot!(golden(Source::Full(0)));
}

#[test]
fn the_least_frames_do_not_drift() {
    insta::assert_snapshot!(golden(Source::Minimal));
}

#[test]
fn ends_exchange_hello_and_agree_on_the_version() {
    let (client, server) = pair();
    assert_eq!(client.version(), Some(1));
    assert_eq!(server.version(), Some(1));
    assert_eq!(client.peer_hello().unwrap().agent, "server");
    assert_eq!(server.peer_hello().unwrap().agent, "client");
}

#[test]
fn full_and_least_frames_arrive_as_they_were() {
    for mut source in [Source::Full(0), Source::Minimal] {
        let (mut client, mut server) = pair();
        let frames = source.frames();
        for frame in &frames {
            client.send(frame).unwrap();
        }
        assert_eq!(feed(&mut server, &take(&mut client), 64).unwrap(), frames);
    }
}

fn hello_with_versions(min: u16, max: u16) -> Hello {
    Hello {
        protocol_min: min,
        protocol_max: max,
        ..Hello::new("x")
    }
}

#[test]
fn without_a_common_version_both_ends_name_the_side_to_update() {
    let mut client = ControlCodec::client(hello_with_versions(1, 2)).unwrap();
    let mut server = ControlCodec::server(hello_with_versions(3, 4)).unwrap();
    let error = feed(&mut server, &take(&mut client), 100).unwrap_err();
    insta::assert_snapshot!(error, @"this end supports version 3 to 4 of the control protocol, the peer version 1 to 2: update linerate at the peer");
    // A rejection may follow the server's HELLO, but the client fails at the HELLO already.
    let problem = ErrorReport::new("no common version", "server", "update");
    let rejection = Reject {
        problem,
        exit_code: 5,
        retryable: false,
    };
    server.send(&rejection.into()).unwrap();
    let error = feed(&mut client, &take(&mut server), 100).unwrap_err();
    insta::assert_snapshot!(error, @"this end supports version 1 to 2 of the control protocol, the peer version 3 to 4: update linerate at this end");
    assert_eq!((client.version(), server.version()), (None, None));
    assert!(matches!(
        client.next_frame(),
        Err(ControlError::AlreadyFailed)
    ));
    assert!(matches!(
        client.receive(b""),
        Err(ControlError::AlreadyFailed)
    ));
}

#[test]
fn only_the_magic_is_accepted() {
    for first in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"\x02",
        b"\x01lr\xC0\xFFdat",
        b"\x09",
        b"\xff",
    ] {
        let mut server = ControlCodec::server(Hello::new("server")).unwrap();
        assert!(
            matches!(feed(&mut server, first, 1), Err(ControlError::NotLinerate)),
            "{first:02x?}"
        );
        assert!(
            server.outgoing().is_empty(),
            "an unrelated peer gets no reply"
        );
    }
}

#[test]
fn reserved_securities_are_rejected() {
    for security_byte in 2..=255 {
        let mut server = ControlCodec::server(Hello::new("server")).unwrap();
        let opening = [&CONTROL_MAGIC[..], &[security_byte]].concat();
        match feed(&mut server, &opening, 100) {
            Err(ControlError::Security {
                security_byte: byte,
            }) => assert_eq!(byte, security_byte),
            other => panic!("{security_byte}: {other:?}"),
        }
    }
}

/// Returns a server that has read the opening.
fn opened() -> ControlCodec {
    let mut server = ControlCodec::server(Hello::new("server")).unwrap();
    let opening = [&CONTROL_MAGIC[..], &[0]].concat();
    assert!(feed(&mut server, &opening, 100).unwrap().is_empty());
    server
}

#[test]
fn frames_before_hello_are_errors_even_unknown_ones() {
    for kind in [2, 6, 16, 0, 999] {
        match feed(&mut opened(), &raw(kind, &[0x80]), 100) {
            Err(ControlError::HelloMissing { kind: received }) => assert_eq!(received, kind),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[test]
fn a_second_hello_is_an_error() {
    let (mut client, mut server) = pair();
    assert!(matches!(
        client.send(&Hello::new("again").into()),
        Err(ControlError::DuplicateHello)
    ));
    let hello = rmp_serde::to_vec_named(&Hello::new("again")).unwrap();
    assert!(matches!(
        feed(&mut server, &raw(1, &hello), 100),
        Err(ControlError::DuplicateHello)
    ));
}

#[test]
fn lengths_are_checked_before_anything_follows_them() {
    for (length, limit, hello) in [
        (HELLO_LIMIT_BYTES + 1, HELLO_LIMIT_BYTES, false),
        (u32::MAX as usize, HELLO_LIMIT_BYTES, false),
        (FRAME_LIMIT_BYTES + 1, FRAME_LIMIT_BYTES, true),
        (u32::MAX as usize, FRAME_LIMIT_BYTES, true),
    ] {
        let mut server = if hello { pair().1 } else { opened() };
        let announced = u32::try_from(length).unwrap();
        match feed(&mut server, &announced.to_be_bytes(), 100) {
            Err(ControlError::TooLong { length, limit: l }) => {
                assert_eq!((length, l), (announced, limit));
            }
            other => panic!("{length}: {other:?}"),
        }
    }
    for length in [0u32, 1] {
        assert!(matches!(
            feed(&mut opened(), &length.to_be_bytes(), 100),
            Err(ControlError::TooShort { .. })
        ));
    }
}

#[test]
fn without_a_grant_long_frames_are_rejected() {
    let (mut client, mut server) = pair();
    server.limit_incoming(100);
    let long = Frame::from(StopRun {
        reason: "x".repeat(200),
    });
    client.send(&long).unwrap();
    let bytes = take(&mut client);
    assert!(matches!(
        feed(&mut server, &bytes, 1000),
        Err(ControlError::TooLong { limit: 100, .. })
    ));
    let (mut client, mut server) = pair();
    server.limit_incoming(100);
    server.limit_incoming(usize::MAX);
    client.send(&long).unwrap();
    assert_eq!(feed(&mut server, &take(&mut client), 1000).unwrap(), [long]);
}

#[test]
fn a_frame_of_exactly_the_limit_passes() {
    let (mut client, mut server) = pair();
    let empty = StopRun {
        reason: String::new(),
    };
    client.send(&empty.into()).unwrap();
    // Beyond the empty text: a string of this length has a marker of 5 bytes instead of 1.
    let around = take(&mut client).len() - 4 + 4;
    let why = |bytes: usize| {
        Frame::from(StopRun {
            reason: "x".repeat(bytes),
        })
    };
    let most = FRAME_LIMIT_BYTES - around;
    match client.send(&why(most + 1)) {
        Err(ControlError::OutgoingTooLong { length, .. }) => {
            assert_eq!(length, FRAME_LIMIT_BYTES + 1)
        }
        other => panic!("{other:?}"),
    }
    assert!(client.outgoing().is_empty(), "no half frame is left behind");
    client.send(&why(most)).unwrap();
    let frames = feed(&mut server, &take(&mut client), READ_AHEAD_BYTES).unwrap();
    assert_eq!(frames, [why(most)]);
}

#[test]
fn a_hello_that_is_too_long_is_not_sent() {
    let hello = Hello::new("x".repeat(HELLO_LIMIT_BYTES));
    assert!(matches!(
        ControlCodec::client(hello),
        Err(ControlError::OutgoingTooLong { .. })
    ));
}

#[test]
fn frames_above_the_value_limit_are_not_sent() {
    let (mut client, _) = pair();
    let requested = (0..600_000)
        .map(|n| (n.to_string(), String::new()))
        .collect();
    assert!(matches!(
        client.send(&RequestedSettings { requested }.into()),
        Err(ControlError::Unencodable { .. })
    ));
    assert!(client.outgoing().is_empty());
}

#[test]
fn nothing_is_sent_before_hello() {
    let mut client = ControlCodec::client(Hello::new("client")).unwrap();
    assert!(matches!(
        client.send(&StartRun::default().into()),
        Err(ControlError::BeforeHello { .. })
    ));
    client.send(&Bye {}.into()).unwrap();
    let mut server = ControlCodec::server(Hello::new("server")).unwrap();
    assert!(matches!(
        server.send(&Bye {}.into()),
        Err(ControlError::BeforeHello { .. })
    ));
    // A client that gave up at once is still read.
    let frames = feed(&mut server, &take(&mut client), 100).unwrap();
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[1], Bye {}.into());
}

#[test]
fn a_peer_that_does_not_read_is_detected() {
    let (mut client, _) = pair();
    let long = Frame::from(StopRun {
        reason: "x".repeat(1 << 20),
    });
    let mut sent = 0;
    while client.send(&long).is_ok() {
        sent += 1;
        assert!(sent < 100);
    }
    assert!(matches!(
        client.send(&Heartbeat {}.into()),
        Err(ControlError::BacklogFull)
    ));
    assert!(client.outgoing().len() <= BACKLOG_LIMIT_BYTES + FRAME_LIMIT_BYTES);
    take(&mut client);
    client.send(&Heartbeat {}.into()).unwrap();
}

#[test]
fn frames_must_be_taken_before_reading_on() {
    let mut server = opened();
    let read = vec![0; READ_AHEAD_BYTES];
    server.receive(&read).unwrap();
    assert!(matches!(
        server.receive(&read),
        Err(ControlError::ReadAhead)
    ));
}

#[test]
fn an_old_reader_reads_a_new_writer() {
    /// HELLO of a later version: more fields, a map and bytes among them.
    #[derive(serde::Serialize)]
    struct NewerHello<'a> {
        before: [Option<u8>; 2],
        #[serde(flatten)]
        hello: &'a Hello,
        color: std::collections::BTreeMap<&'a str, f64>,
        key: linerate_protocol::control::FlowToken,
    }
    /// STOP of a later version.
    #[derive(serde::Serialize)]
    struct NewerStop {
        signal: u8,
        why: &'static str,
    }
    let hello = Hello::new("later");
    let newer = NewerHello {
        before: [None, Some(1)],
        hello: &hello,
        color: [("red", 0.5)].into(),
        key: linerate_protocol::control::FlowToken([7; 16]),
    };
    let stop = NewerStop {
        signal: 2,
        why: "interrupted",
    };
    let bytes = [
        raw(1, &rmp_serde::to_vec_named(&newer).unwrap()),
        raw(700, b"of whatever shape"),
        raw(9, &rmp_serde::to_vec_named(&stop).unwrap()),
        raw(u16::MAX, b""),
        raw(15, &rmp_serde::to_vec_named(&stop).unwrap()),
    ]
    .concat();
    let mut server = opened();
    assert_eq!(
        feed(&mut server, &bytes, 7).unwrap(),
        [
            hello.into(),
            StopRun {
                reason: "interrupted".to_owned()
            }
            .into(),
            Heartbeat {}.into()
        ]
    );
    assert_eq!(server.skipped_frames(), 2);
}

#[test]
fn flattened_parts_skip_what_is_new_too() {
    /// RESULTS of a later version, down to the flattened figures of a flow.
    #[derive(serde::Serialize)]
    struct NewerResults<'a> {
        role: linerate_record::facts::Role,
        streams: [NewerFigures<'a>; 1],
        duration_ns: u64,
    }
    #[derive(serde::Serialize)]
    struct NewerFigures<'a> {
        direction: linerate_record::plan::Direction,
        stream: NewerStream<'a>,
    }
    #[derive(serde::Serialize)]
    struct NewerStream<'a> {
        stages: std::collections::BTreeMap<&'a str, Vec<Option<f64>>>,
        #[serde(flatten)]
        stream: &'a linerate_record::record::StreamFigures,
        key: linerate_protocol::control::FlowToken,
    }
    let mut source = Source::Full(0);
    let Some(Frame::Results(results)) = source
        .frames()
        .into_iter()
        .find(|frame| frame.name() == "RESULTS")
    else {
        panic!("there is one")
    };
    let figures = &results.streams[0];
    let newer = NewerResults {
        role: results.role,
        streams: [NewerFigures {
            direction: figures.direction,
            stream: NewerStream {
                stages: [("driver", vec![Some(0.5), None])].into(),
                stream: &figures.stream,
                key: linerate_protocol::control::FlowToken([7; 16]),
            },
        }],
        duration_ns: 1,
    };
    let (_, mut server) = pair();
    let bytes = raw(10, &rmp_serde::to_vec_named(&newer).unwrap());
    let frames = feed(&mut server, &bytes, 1000).unwrap();
    let [Frame::Results(read)] = &frames[..] else {
        panic!("{frames:?}")
    };
    assert_eq!(read.streams, results.streams);
}

#[test]
fn a_new_reader_reads_an_old_writer() {
    #[derive(serde::Serialize)]
    struct FirstHello {
        protocol_max: u16,
        protocol_min: u16,
    }
    let body = rmp_serde::to_vec_named(&FirstHello {
        protocol_max: 1,
        protocol_min: 1,
    })
    .unwrap();
    assert_eq!(
        feed(&mut opened(), &raw(1, &body), 100).unwrap(),
        [Hello::new("").into()]
    );
    // A STOP without its reason.
    let (_, mut server) = pair();
    assert_eq!(
        feed(&mut server, &raw(9, &[0x80]), 100).unwrap(),
        [StopRun::default().into()]
    );
}

#[test]
fn a_broken_body_names_its_frame() {
    for (kind, body, expected) in [
        (3u16, &[0x80][..], "PROPOSE"),
        (10, b"\xc0", "RESULTS"),
        (13, b"\x81\xa5t1_ns\xa1x", "CLOCK_REQUEST"),
        (9, b"", "STOP"),
        (9, b"\x80\x80", "STOP"),
        // Without names.
        (13, &[0x91, 5], "CLOCK_REQUEST"),
    ] {
        let (_, mut server) = pair();
        match feed(&mut server, &raw(kind, body), 100) {
            Err(ControlError::Body { frame, .. }) => assert_eq!(frame, expected),
            other => panic!("{body:02x?}: {other:?}"),
        }
    }
}

#[test]
fn a_full_histogram_and_many_flows_fit() {
    let mut histogram = linerate_stats::histogram::Histogram::new();
    let mut nanoseconds = 1u64;
    while nanoseconds < linerate_stats::histogram::HIGHEST_NS {
        histogram.record_many(nanoseconds, u64::MAX >> 24);
        nanoseconds += (nanoseconds / 2048).max(1);
    }
    let mut source = Source::Full(1 << 40);
    let Some(Frame::Results(mut results)) = source
        .frames()
        .into_iter()
        .find(|frame| frame.name() == "RESULTS")
    else {
        panic!("there is one")
    };
    // The CPU cost of an end is in its own field, not in each flow.
    let mut flow = results.streams[0].clone();
    flow.stream.summary.cpu.clear();
    flow.stream.summary.memory.clear();
    results.streams = vec![flow; FLOWS_PER_FRAME];
    results.histograms = (0..4)
        .map(|n| (n.to_string(), (&histogram).into()))
        .collect();
    let buckets = results.histograms["0"].buckets.len();
    assert!(buckets > 27_000, "{buckets}");
    let frame = Frame::Results(results);
    let (mut client, mut server) = pair();
    client.send(&frame).unwrap();
    let bytes = take(&mut client);
    assert!(bytes.len() < FRAME_LIMIT_BYTES / 2, "{}", bytes.len());
    assert_eq!(
        feed(&mut server, &bytes, READ_AHEAD_BYTES).unwrap(),
        [frame]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_frame_arrives_unchanged_however_the_stream_is_split(
        seed: u64,
        split in prop::collection::vec(1usize..4000, 1..40),
    ) {
        let mut source = Source::Random(fastrand::Rng::with_seed(seed));
        let hello = source.hello();
        let mut client = ControlCodec::client(hello.clone()).unwrap();
        let mut server = ControlCodec::server(Hello::new("server")).unwrap();
        let mut stream = take(&mut client);
        // A server of another pair sends the frames, so that all can be passed in one go.
        let (_, mut other) = pair();
        let mut frames = vec![Frame::from(hello)];
        for frame in source.frames() {
            other.send(&frame).unwrap();
            frames.push(frame);
        }
        stream.extend(take(&mut other));

        let mut received = Vec::new();
        let (mut rest, mut split) = (&stream[..], split.iter().cycle());
        while !rest.is_empty() {
            let piece = (*split.next().unwrap()).min(rest.len());
            received.extend(feed(&mut server, &rest[..piece], piece).unwrap());
            rest = &rest[piece..];
        }
        prop_assert_eq!(received, frames);
    }

    #[test]
    fn no_bytes_panic(
        greeted: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        piece in 1usize..100,
    ) {
        let mut server = if greeted { pair().1 } else { opened() };
        let _ = feed(&mut server, &bytes, piece);
    }

    #[test]
    fn no_body_panics(kind in 0u16..20, mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (_, mut server) = pair();
        let _ = feed(&mut server, &raw(kind, &bytes), 1000);
        let (_, mut server) = pair();
        bytes.insert(0, 0x8f);
        let _ = feed(&mut server, &raw(kind, &bytes), 1000);
    }

    #[test]
    fn a_damaged_stream_neither_panics_nor_grows(
        seed: u64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut source = Source::Random(fastrand::Rng::with_seed(seed));
        let (mut client, mut server) = pair();
        for frame in source.frames() {
            client.send(&frame).unwrap();
        }
        let mut bytes = take(&mut client);
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        let _ = feed(&mut server, &bytes, 1000);
    }
}
