//! Detection of iperf2's clients.

use linerate_protocol::control::{CONTROL_MAGIC, DATA_MAGIC, REPLY_MAGIC};
use linerate_protocol::iperf2::{Iperf2Settings, LEGACY_PROTOCOL, PROTOCOL, detect_legacy_flow};
use linerate_protocol::sniff::{Classification, ProtocolMatch, TransportKind, classify};
use proptest::prelude::*;

use super::recorded::{encode_words, recorded, sized};

#[test]
fn recorded_first_bytes_are_iperf2s() {
    for test in recorded() {
        let legacy = test.has("-C") || (test.udp && test.options.contains("-l 40 --trip-times"));
        let expected = if legacy { "iperf2-legacy" } else { "iperf2" };
        if test.udp {
            match classify(
                TransportKind::Datagram,
                &sized(&test.client[0], test.client[0].len()),
            ) {
                Classification::Known(protocol) => {
                    assert_eq!(protocol.name, expected, "{}", test.options)
                }
                other => panic!("{}: {other:?}", test.options),
            }
            continue;
        }
        let mut classified = None;
        for length in 0..=test.client[0].len() {
            match (
                classify(TransportKind::Stream, &test.client[0][..length]),
                classified,
            ) {
                (Classification::NeedMore, None) => {}
                (Classification::Known(protocol), None) => classified = Some(protocol.name),
                (Classification::Known(protocol), Some(name)) => assert_eq!(protocol.name, name),
                (other, _) => panic!("{} {length}: {other:?}", test.options),
            }
        }
        assert_eq!(classified, Some(expected), "{}", test.options);
    }
}

/// Boards count from 0, have no clock or one that was not set, and lose their first datagrams.
#[test]
fn several_datagrams_show_a_legacy_flow() {
    let header = |number: i32, seconds: u32| encode_words(&[number as u32, seconds, 250_000, 0]);
    let text = |_: i32| b"sensor 7: 21.5 C; ".to_vec();
    let constant = |_: i32| encode_words(&[1, 0, 0, 0]);
    let zeros = |_: i32| vec![0; 1000];
    let counter_and_noise = |n: i32| encode_words(&[n as u32, 0x8000_0000, 0x9000_0000 + n as u32]);
    type Datagram<'a> = &'a dyn Fn(i32) -> Vec<u8>;
    let cases: [(&str, Datagram<'_>, &[i32], ProtocolMatch); 16] = [
        (
            "one datagram",
            &|n| header(n, 17),
            &[0],
            ProtocolMatch::NeedMore,
        ),
        ("from 0", &|n| header(n, 17), &[0, 1], ProtocolMatch::Yes),
        ("from 1", &|n| header(n, 17), &[1, 2], ProtocolMatch::Yes),
        ("no clock", &|n| header(n, 0), &[0, 1], ProtocolMatch::Yes),
        (
            "the first ones lost",
            &|n| header(n, 17),
            &[9, 12],
            ProtocolMatch::Yes,
        ),
        ("reordered", &|n| header(n, 17), &[1, 0], ProtocolMatch::Yes),
        (
            "repeated on the way",
            &|n| header(n, 17),
            &[0, 0, 1],
            ProtocolMatch::Yes,
        ),
        (
            "one and its end",
            &|n| header(n, 17),
            &[0, -1],
            ProtocolMatch::Yes,
        ),
        (
            "a clock that is set",
            &|n| header(n, 17 + n as u32 * 9_000),
            &[0, 1],
            ProtocolMatch::Yes,
        ),
        (
            "the end of another flow",
            &|n| header(n, 17),
            &[-9],
            ProtocolMatch::No,
        ),
        (
            "numbers far from the start",
            &|n| header(n, 17),
            &[7_000, 7_001],
            ProtocolMatch::No,
        ),
        (
            "unrelated numbers",
            &|n| header(n, 17),
            &[1, 1 << 20],
            ProtocolMatch::No,
        ),
        ("text", &text, &[0, 1], ProtocolMatch::No),
        ("a constant", &constant, &[0, 1, 2], ProtocolMatch::NeedMore),
        ("zeros", &zeros, &[0, 1, 2], ProtocolMatch::NeedMore),
        ("no time", &counter_and_noise, &[0, 1], ProtocolMatch::No),
    ];
    for (case, datagram, numbers, expected) in cases {
        let datagrams: Vec<_> = numbers.iter().map(|&number| datagram(number)).collect();
        let detected = detect_legacy_flow(datagrams.iter().map(Vec::as_slice));
        assert_eq!(detected, expected, "{case}");
    }
}

#[test]
fn clients_are_classified() {
    let classify_name = |carrier, bytes: &[u8]| match classify(carrier, bytes) {
        Classification::Known(protocol) => protocol.name,
        Classification::NeedMore => "more",
        Classification::Unknown => "none",
    };
    for (bytes, name, description) in [
        (
            encode_words(&[0x8000_0000, 1, 5001, 0, 0, (-1000i32) as u32]),
            "iperf2",
            "lwIP, both ways",
        ),
        (
            encode_words(&[0, 1, 5001, 0, 0, (-1000i32) as u32]),
            "iperf2-legacy",
            "lwIP",
        ),
        (
            b"01234567890123456789012345678901234567".to_vec(),
            "iperf2-legacy",
            "2.0.5",
        ),
        (
            encode_words(&[0x8000_0000, 0, 5001, 0, 0, 1]),
            "none",
            "no flow",
        ),
        (
            encode_words(&[0x8000_0000, 1, 70_000, 0, 0, 1]),
            "none",
            "no port",
        ),
        (
            encode_words(&[0x0080_0000, 10, 1]),
            "none",
            "a request that is too small",
        ),
        (
            encode_words(&[0x0080_0000, 100, 2]),
            "none",
            "a request that is not the first",
        ),
        (vec![0; 64], "none", "zeros"),
        (vec![0xff; 64], "none", "ones"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            "none",
            "HTTP",
        ),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            "none",
            "TLS",
        ),
        (
            b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10".to_vec(),
            "none",
            "SSL 2",
        ),
        (b"@\x01echo".to_vec(), "none", "text that begins like flags"),
    ] {
        assert_eq!(
            classify_name(TransportKind::Stream, &bytes),
            name,
            "{description}"
        );
    }
    let now = 1_795_000_000;
    for (bytes, name, description) in [
        (
            encode_words(&[1, 5, 999_999, 0]),
            "iperf2-legacy",
            "a board without a clock",
        ),
        (
            encode_words(&[7, now, 1, 0]),
            "iperf2-legacy",
            "the first datagrams got lost",
        ),
        (encode_words(&[7, 5, 1, 0]), "none", "a counter"),
        (
            encode_words(&[5000, now, 1, 0]),
            "none",
            "a flow that began long ago",
        ),
        (
            encode_words(&[1, now, 1_000_000, 0]),
            "none",
            "no microseconds",
        ),
        (
            encode_words(&[u32::MAX, now, 1, u32::MAX]),
            "none",
            "a late end",
        ),
        (encode_words(&[1, now]), "none", "too short"),
        (b"0123456789012345".to_vec(), "none", "digits"),
    ] {
        assert_eq!(
            classify_name(TransportKind::Datagram, &bytes),
            name,
            "{description}"
        );
    }
}

#[test]
fn trip_times_that_are_announced_and_missing_change_no_verdict() {
    let mut bytes = encode_words(&[
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
        let expected = if length < 60 {
            ProtocolMatch::NeedMore
        } else {
            ProtocolMatch::Yes
        };
        assert_eq!(
            (PROTOCOL.detect)(TransportKind::Stream, &bytes[..length]),
            expected,
            "{length}"
        );
    }
    let settings = Iperf2Settings::read(&bytes, 0).unwrap();
    assert_eq!((settings.trip_times, settings.start_ns), (true, None));
}

proptest! {
    /// First bytes of other protocols are not detected as iperf2, however many have arrived.
    #[test]
    fn other_protocols_are_not_detected_as_iperf2(
        tail in prop::collection::vec(any::<u8>(), 0..80),
        sequence: u32,
        flags in prop::sample::select(vec![1u16, 3, 5, 7]),
        length in 14u32..65_536,
        cookie in "[a-z2-7]{36}",
        text in "[ -~]{40,80}",
    ) {
        let sockperf = [&encode_words(&[0, sequence])[..], &flags.to_be_bytes(), &length.to_be_bytes()].concat();
        for (beginning, description) in [
            (CONTROL_MAGIC.to_vec(), "ours, control"),
            (DATA_MAGIC.to_vec(), "ours, data"),
            (REPLY_MAGIC.to_vec(), "ours, answer"),
            (sockperf, "sockperf"),
            (format!("{cookie}\0").into_bytes(), "iperf3"),
            (b"HELO nuttcp v8.1.4\n".to_vec(), "nuttcp"),
            (b"BOD0".to_vec(), "nuttcp"),
            (text.into_bytes(), "text"),
        ] {
            let bytes = [&beginning[..], &tail].concat();
            for dialect in [PROTOCOL, LEGACY_PROTOCOL] {
                for length in 0..bytes.len() {
                    let detect_linerate = (dialect.detect)(TransportKind::Stream, &bytes[..length]);
                    prop_assert_ne!(detect_linerate, ProtocolMatch::Yes, "{} {}", description, dialect.name);
                }
                if beginning.len() >= 14 || description.starts_with("ours") {
                    prop_assert_eq!((dialect.detect)(TransportKind::Stream, &bytes[..]), ProtocolMatch::No, "{} {}", description, dialect.name);
                }
                prop_assert_eq!((dialect.detect)(TransportKind::Datagram, &bytes[..]), ProtocolMatch::No, "{} {}", description, dialect.name);
            }
        }
    }

    #[test]
    fn more_bytes_never_change_a_result(
        first in prop::sample::select(vec![0u32, 0x4001_0078, 0x8000_0000, 0x0080_0000, 0x3031_3233]),
        second in prop::sample::select(vec![0u32, 1, 100, 0x3435_3637]),
        rest in prop::collection::vec(prop::sample::select(vec![0u8, 0, 1, 2, 19, 48, 255]), 0..80),
    ) {
        let bytes = [&encode_words(&[first, second])[..], &rest].concat();
        for dialect in [PROTOCOL, LEGACY_PROTOCOL] {
            let mut last = ProtocolMatch::NeedMore;
            for length in 0..=bytes.len() {
                let next = (dialect.detect)(TransportKind::Stream, &bytes[..length]);
                if last != ProtocolMatch::NeedMore {
                    prop_assert_eq!(next, last, "{} {}", dialect.name, length);
                }
                last = next;
            }
        }
    }
}
