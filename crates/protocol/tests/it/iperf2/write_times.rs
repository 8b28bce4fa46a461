//! Timestamps in TCP writes: recorded ones, split anywhere, and invalid ones.

use linerate_protocol::iperf2::{
    Iperf2Settings, WRITE_HEADER_BYTES, WriteDelayReader, WriteTimestamper,
};
use proptest::prelude::*;

/// Three writes of `iperf -c HOST --trip-times -l 100`, 2.1.8, as they followed the settings.
const RECORDED: &str = "\
400100a000000001000013916b02fdc3000105c36b02fdc3000105d000000000001000000002000100080003000000010000\
00640000006600000000000000006b02fdc3000105a000000000000000000000000000000000000000000000000000000000\
400100a000000001000013916b02fdc3000105c36b02fdc3000105da00000000001000000002000100080003000000020000\
0064000000ca00000000000000006b02fdc3000105a000000000000000000000000000000000000000000000000000000000\
400100a000000001000013916b02fdc3000105c36b02fdc3000105e200000000001000000002000100080003000000030000\
00640000012e00000000000000006b02fdc3000105a000000000000000000000000000000000000000000000000000000000";

/// Send times of the writes, in wall-clock nanoseconds.
const WRITTEN_NS: [u64; 3] = [
    1795358147067024000,
    1795358147067034000,
    1795358147067042000,
];

fn recorded() -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&RECORDED[at..at + 2], 16).unwrap();
    (0..RECORDED.len()).step_by(2).map(byte).collect()
}

/// Returns the reported delays of these pieces: the first arrives at `first_ns`, each other one 1
/// us later.
fn delays(pieces: &[&[u8]], first_ns: u64) -> (Vec<i64>, bool) {
    let mut writes = WriteDelayReader::new();
    let mut reported = Vec::new();
    for (piece, now) in pieces.iter().zip((first_ns..).step_by(1000)) {
        writes.receive(piece, now, |delay| reported.push(delay));
    }
    (reported, writes.is_out_of_sync())
}

#[test]
fn recorded_writes_have_delays() {
    let bytes = recorded();
    let now = WRITTEN_NS[2] + 50_000;
    let expected: Vec<i64> = WRITTEN_NS.iter().map(|at| (now - at) as i64).collect();
    assert_eq!(delays(&[&bytes], now), (expected, false));
    // The time of a write ends with its last byte.
    let (reported, lost) = delays(&[&bytes[..99], &bytes[99..250]], WRITTEN_NS[0]);
    assert_eq!((reported.len(), lost), (2, false));
    assert_eq!(reported[0], 1000);
    // Clocks that are not synchronised.
    assert_eq!(delays(&[&bytes[..100]], WRITTEN_NS[0] - 7).0, [-7]);
}

#[test]
fn an_invalid_write_ends_the_reading() {
    let good = recorded();
    let with = |at: usize, token: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&token.to_be_bytes());
        bytes
    };
    for (description, bytes, expected) in [
        ("digits", b"0123456789".repeat(20), 0),
        ("another first number", with(44, 2), 0),
        ("a number twice", with(144, 1), 1),
        ("no time", with(20, 0), 0),
        ("microseconds that are none", with(24, 1_000_000), 0),
        ("smaller than its header", with(48, 51), 0),
        ("as large as everything", with(48, u32::MAX), 0),
    ] {
        let (delays, lost) = delays(&[&bytes], WRITTEN_NS[2]);
        assert_eq!((delays.len(), lost), (expected, true), "{description}");
    }
    let header_only = with(48, WRITE_HEADER_BYTES as u32);
    assert_eq!(
        delays(&[&header_only[..52]], WRITTEN_NS[0]),
        (vec![0], false)
    );
}

proptest! {
    #[test]
    fn splits_change_nothing_but_when(mut splits in prop::collection::vec(0usize..301, 0..12)) {
        let bytes = recorded();
        splits.extend([0, bytes.len()]);
        splits.sort_unstable();
        let pieces: Vec<&[u8]> = splits.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let (reported, lost) = delays(&pieces, WRITTEN_NS[2]);
        prop_assert_eq!((reported.len(), lost), (3, false));
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

/// Checks the first bytes of an upstream 2.1.8 server for `iperf -R --trip-times -n 500K`, and the
/// header of its first write.
#[test]
fn a_server_writes_times_as_the_upstream_one_does() {
    let hex = |text: &str| -> Vec<u8> {
        let tokens = text.split_whitespace();
        tokens
            .flat_map(|token| u32::from_str_radix(token, 16).unwrap().to_be_bytes())
            .collect()
    };
    let request = hex(
        "440100a0 00000001 000017d4 00000000 00000000 0007d000 00000000 00000000 04100000 00020001 \
         00080003 00000000 00000000 00000000 00000000 00000000 6b03670a 000b2bd3 00000000 00000000",
    );
    let reply = hex(
        "400100a0 00000001 000017d4 00000000 00000000 0007d000 00000000 00000000 00100000 00020001 \
         00080003 00000000 00000000 00000000 00000000 00000000 6b03670a 000b3c63 00000000 00000000",
    );
    let header = hex(
        "400100a0 00000001 000017d4 6b03670a 000b3c63 6b03670a 000b3cd4 00000000 00100000 00020001 \
         00080003 00000001 00020000",
    );
    let wall = |us: u64| 0x6b03_670a * 1_000_000_000 + us * 1_000;
    let settings = Iperf2Settings::read(&request, 0).unwrap();
    let mut stamps = WriteTimestamper::new(&settings, 131_072, wall(0x0b_3c63)).unwrap();
    assert_eq!(stamps.reply(), reply);
    let mut write = vec![7; 131_072];
    stamps.stamp(&mut write, 1, wall(0x0b_3cd4));
    assert_eq!(write[..WRITE_HEADER_BYTES], header);

    // The reader parses them.
    let mut times = WriteDelayReader::new();
    let mut delays = Vec::new();
    for number in 1..=3 {
        stamps.stamp(&mut write, number, wall(number.into()));
        times.receive(&write, wall(100), |delay| delays.push(delay));
    }
    assert!(!times.is_out_of_sync());
    assert_eq!(delays, [99_000, 98_000, 97_000]);

    // Too small, or not requested: no timestamps.
    assert!(WriteTimestamper::new(&settings, WRITE_HEADER_BYTES, 0).is_none());
    assert!(WriteTimestamper::new(&Iperf2Settings::client(5_001), 131_072, 0).is_none());
}
