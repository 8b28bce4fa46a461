//! Times in the writes of iperf2's clients on TCP: recorded ones, cut anywhere, and nonsense.

use linerate_dialect::iperf2::{WRITE_HEADER_BYTES, WriteTimes};
use proptest::prelude::*;

/// Three writes of `iperf -c HOST --trip-times -l 100`, 2.1.8, as they came behind the settings.
const RECORDED: &str = "\
400100a000000001000013916b02fdc3000105c36b02fdc3000105d000000000001000000002000100080003000000010000\
00640000006600000000000000006b02fdc3000105a000000000000000000000000000000000000000000000000000000000\
400100a000000001000013916b02fdc3000105c36b02fdc3000105da00000000001000000002000100080003000000020000\
0064000000ca00000000000000006b02fdc3000105a000000000000000000000000000000000000000000000000000000000\
400100a000000001000013916b02fdc3000105c36b02fdc3000105e200000000001000000002000100080003000000030000\
00640000012e00000000000000006b02fdc3000105a000000000000000000000000000000000000000000000000000000000";

/// When they left, in wall-clock nanoseconds.
const WRITTEN_NS: [u64; 3] = [
    1795358147067024000,
    1795358147067034000,
    1795358147067042000,
];

fn recorded() -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&RECORDED[at..at + 2], 16).unwrap();
    (0..RECORDED.len()).step_by(2).map(byte).collect()
}

/// What is told of these pieces, the first of which comes at a time and each other one later by 1 us.
fn delays(pieces: &[&[u8]], first_ns: u64) -> (Vec<i64>, bool) {
    let mut writes = WriteTimes::new();
    let mut told = Vec::new();
    for (piece, now) in pieces.iter().zip((first_ns..).step_by(1000)) {
        writes.receive(piece, now, |delay| told.push(delay));
    }
    (told, writes.is_lost())
}

#[test]
fn each_recorded_write_tells_how_long_it_took() {
    let bytes = recorded();
    let now = WRITTEN_NS[2] + 50_000;
    let expected: Vec<i64> = WRITTEN_NS.iter().map(|at| (now - at) as i64).collect();
    assert_eq!(delays(&[&bytes], now), (expected, false));
    // The time of a write ends with its last byte.
    let (told, lost) = delays(&[&bytes[..99], &bytes[99..250]], WRITTEN_NS[0]);
    assert_eq!((told.len(), lost), (2, false));
    assert_eq!(told[0], 1000);
    // Clocks that do not agree.
    assert_eq!(delays(&[&bytes[..100]], WRITTEN_NS[0] - 7).0, [-7]);
}

#[test]
fn what_is_no_write_ends_it() {
    let good = recorded();
    let with = |at: usize, word: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        bytes
    };
    for (what, bytes, told) in [
        ("digits", b"0123456789".repeat(20), 0),
        ("another first number", with(44, 2), 0),
        ("a number twice", with(144, 1), 1),
        ("no time", with(20, 0), 0),
        ("microseconds that are none", with(24, 1_000_000), 0),
        ("smaller than its header", with(48, 51), 0),
        ("as large as everything", with(48, u32::MAX), 0),
    ] {
        let (delays, lost) = delays(&[&bytes], WRITTEN_NS[2]);
        assert_eq!((delays.len(), lost), (told, true), "{what}");
    }
    let header_only = with(48, WRITE_HEADER_BYTES as u32);
    assert_eq!(
        delays(&[&header_only[..52]], WRITTEN_NS[0]),
        (vec![0], false)
    );
}

proptest! {
    #[test]
    fn splits_change_nothing_but_when(cuts in prop::collection::vec(0usize..301, 0..12)) {
        let bytes = recorded();
        let mut cuts = cuts;
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let (told, lost) = delays(&pieces, WRITTEN_NS[2]);
        prop_assert_eq!((told.len(), lost), (3, false));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), now: u64) {
        delays(&[&bytes], now / 2);
        let mut known = recorded();
        known.truncate(60);
        known.extend(&bytes);
        delays(&[&known, &bytes], now / 2);
    }
}
