//! Detection of iperf2's clients.

use linerate_dialect::control::{ANSWER_MAGIC, CONTROL_MAGIC, DATA_MAGIC};
use linerate_dialect::iperf2::{DIALECT, LEGACY_DIALECT, Settings};
use linerate_dialect::sniff::{Carrier, Speaker, Verdict, speaker};
use proptest::prelude::*;

use super::recorded::{recorded, sized, words};

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

#[test]
fn who_is_taken_for_whom() {
    let named = |carrier, bytes: &[u8]| match speaker(carrier, bytes) {
        Speaker::Known(dialect) => dialect.name,
        Speaker::NeedMore => "more",
        Speaker::Unknown => "none",
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
        (words(&[0x8000_0000, 0, 5001, 0, 0, 1]), "none", "no flow"),
        (words(&[0x8000_0000, 1, 70_000, 0, 0, 1]), "none", "no port"),
        (
            words(&[0x0080_0000, 10, 1]),
            "none",
            "a request that is too small",
        ),
        (
            words(&[0x0080_0000, 100, 2]),
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
            "the first datagrams got lost",
        ),
        (words(&[7, 5, 1, 0]), "none", "a counter"),
        (
            words(&[5000, now, 1, 0]),
            "none",
            "a flow that began long ago",
        ),
        (words(&[1, now, 1_000_000, 0]), "none", "no microseconds"),
        (words(&[u32::MAX, now, 1, u32::MAX]), "none", "a late end"),
        (words(&[1, now]), "none", "too short"),
        (b"0123456789012345".to_vec(), "none", "digits"),
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
        let sockperf = [&words(&[0, sequence])[..], &flags.to_be_bytes(), &length.to_be_bytes()].concat();
        for (beginning, description) in [
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
                    prop_assert_ne!(verdict, Verdict::Yes, "{} {}", description, dialect.name);
                }
                if beginning.len() >= 14 || description.starts_with("ours") {
                    prop_assert_eq!((dialect.recognise)(Carrier::Stream, &bytes[..]), Verdict::No, "{} {}", description, dialect.name);
                }
                prop_assert_eq!((dialect.recognise)(Carrier::Datagram, &bytes[..]), Verdict::No, "{} {}", description, dialect.name);
            }
        }
    }

    #[test]
    fn more_bytes_never_change_a_result(
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
}
