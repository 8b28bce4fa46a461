//! No other protocol's first bytes are classified as linerate's, nor linerate's as another's.

use linerate_protocol::control::{
    CONTROL_MAGIC, ControlCodec, DATA_MAGIC, FlowToken, Hello, OpeningKind, flow,
};
use linerate_protocol::sniff::{Classification, PROTOCOLS, ProtocolMatch, TransportKind, classify};
use proptest::prelude::*;

/// Returns the result of linerate's own detector and checks it against the table. The detector
/// comes first there, so the results of other protocols do not matter.
fn detect_linerate(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    let own_entry = &PROTOCOLS[0];
    assert_eq!(own_entry.name, "linerate");
    let result = (own_entry.detect)(transport, bytes);
    match classify(transport, bytes) {
        Classification::Known(protocol) if protocol.name == own_entry.name => {
            assert_eq!(result, ProtocolMatch::Yes)
        }
        Classification::Known(_) | Classification::Unknown => assert_eq!(result, ProtocolMatch::No),
        Classification::NeedMore => assert_ne!(result, ProtocolMatch::Yes),
    }
    result
}

/// Encodes the first words of a header.
fn encode_words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect()
}

/// Encodes a sockperf header.
fn sockperf(sequence: u64, flags: u16, length: u32) -> Vec<u8> {
    [
        &sequence.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &length.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn other_streams_are_not_ours() {
    for (first, description) in [
        (
            encode_words(&[0x4001_0078, 1, 5001, 0, 0, (-1000i32) as u32]),
            "iperf2 2.1.8",
        ),
        (encode_words(&[0x4401_0078, 1, 5001]), "iperf2 reverse"),
        (encode_words(&[0x8000_0001, 1, 5001]), "iperf2 -d"),
        (encode_words(&[0x8000_0000, 1, 5001]), "iperf2 -r, lwIP"),
        (encode_words(&[0x0080_0000, 100, 1]), "iperf2 bounceback"),
        (encode_words(&[0, 1, 5001]), "iperf2 legacy"),
        (
            b"\0\0\0\0\0\0\0\x01\x3c\x9d".to_vec(),
            "iperf2 legacy, counting",
        ),
        (b"0123456789".to_vec(), "iperf2 payload"),
        (
            b"o3zcvulb4ybmnxqckv4jjlyxqyqlvw2hkrkp\0".to_vec(),
            "iperf3 cookie",
        ),
        (b"HELO nuttcp v6.1.2\n".to_vec(), "nuttcp"),
        (sockperf(1, 3, 14), "sockperf ping-pong"),
        (sockperf(0, 7, 64), "sockperf warm-up"),
        (b" !\"#$%&'()*+,-./0123".to_vec(), "ttcp"),
        (b"hello, echo\r\n".to_vec(), "text"),
        ("grüße".as_bytes().to_vec(), "text that is not ASCII"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            "TLS 1.3",
        ),
        (b"\x80\x2e\x01\x00\x02".to_vec(), "SSL 2"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "HTTP"),
        (b"PRI * HTTP/2.0\r\n".to_vec(), "HTTP 2"),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "SSH"),
        (vec![0; 64], "zeros"),
        (vec![0xff; 64], "ones"),
        ((1..=64).collect(), "counting from 1"),
    ] {
        assert_eq!(
            detect_linerate(TransportKind::Stream, &first),
            ProtocolMatch::No,
            "{description}"
        );
    }
}

#[test]
fn other_datagrams_are_not_ours() {
    let filled = |mut bytes: Vec<u8>, size: usize| {
        bytes.resize(size, b'7');
        bytes
    };
    let now = 1_795_000_000;
    for (datagram, description) in [
        (
            filled(encode_words(&[1, now, 999_999, 0, 0x4801_0098]), 1470),
            "iperf2",
        ),
        (
            filled(encode_words(&[u32::MAX, now, 1, u32::MAX]), 1470),
            "iperf2 end",
        ),
        (
            filled(encode_words(&[1, now, 5]), 24),
            "iperf2 legacy, of the size of our opening",
        ),
        (b"9876".to_vec(), "iperf3 hello"),
        (b"\xb1\x68\xde\x3a".to_vec(), "iperf3 hello, legacy"),
        (filled(encode_words(&[now, 17, 1]), 24), "iperf3 data"),
        (b"BOD0".to_vec(), "nuttcp"),
        (b"\0\0\0\0".to_vec(), "ttcp marker"),
        (b"\x01".to_vec(), "a marker that begins like our magic"),
        (sockperf(1, 3, 14), "sockperf"),
        (
            filled(sockperf(1, 3, 24), 24),
            "sockperf of the size of our opening",
        ),
        (
            b"hello, echo, how are you".to_vec(),
            "text of the size of our opening",
        ),
        (vec![], "nothing"),
        (DATA_MAGIC.to_vec(), "our magic without a token"),
        (
            flow::reply(FlowToken([1; 16])).to_vec(),
            "our reply, which no client opens with",
        ),
        (
            filled(flow::opening(FlowToken([1; 16])).to_vec(), 25),
            "our opening and more",
        ),
    ] {
        assert_eq!(
            detect_linerate(TransportKind::Datagram, &datagram),
            ProtocolMatch::No,
            "{description}"
        );
    }
}

#[test]
fn our_first_bytes_are_ours_as_soon_as_the_magic_is_there() {
    let client = ControlCodec::client(Hello::new("x")).unwrap();
    let flow = flow::opening(FlowToken([9; 16]));
    for (bytes, opening) in [
        (client.outgoing(), OpeningKind::Control),
        (&flow[..], OpeningKind::Data),
    ] {
        for length in 0..bytes.len() {
            let (expected, opens) = match length {
                0..8 => (ProtocolMatch::NeedMore, None),
                _ => (ProtocolMatch::Yes, Some(opening)),
            };
            assert_eq!(
                detect_linerate(TransportKind::Stream, &bytes[..length]),
                expected,
                "{length}"
            );
            assert_eq!(
                OpeningKind::from_first_bytes(&bytes[..length]),
                opens,
                "{length}"
            );
        }
    }
    assert_eq!(
        detect_linerate(TransportKind::Datagram, &flow),
        ProtocolMatch::Yes
    );
}

type Rule = fn(&[u8]) -> bool;

/// Rules by which other servers detect their clients, from the documents and sources of each
/// protocol.
const OTHER_RULES: &[(&str, Rule)] = &[
    ("iperf2 over TCP", |bytes| {
        // V1, V2, extension, bounceback; without them an upstream server counts all as payload.
        read_word(bytes, 0) & 0xc480_0000 != 0
    }),
    ("iperf2 over UDP", |bytes| {
        // A sequence from 1 or just after, or a negative one, and microseconds.
        let sequence = read_word(bytes, 0) as i32;
        sequence < 1 << 20 && read_word(bytes, 8) < 1_000_000
    }),
    ("iperf3 cookie", |bytes| {
        bytes[0].is_ascii_lowercase() || (b'2'..=b'7').contains(&bytes[0])
    }),
    ("iperf3 over UDP", |bytes| bytes.len() == 4),
    ("nuttcp", |bytes| {
        bytes.starts_with(b"HELO") || bytes.starts_with(b"BOD")
    }),
    ("sockperf", |bytes| {
        let sequence = u64::from_be_bytes(bytes[..8].try_into().unwrap());
        sequence < 1 << 48 && matches!(bytes[8..10], [0, 1 | 3 | 5 | 7])
    }),
    ("ttcp marker", |bytes| bytes.len() <= 4),
    ("TLS", |bytes| bytes[0] == 0x16 || bytes[0] & 0x80 != 0),
    ("text", |bytes| {
        bytes[0].is_ascii_graphic()
            || bytes[0].is_ascii_whitespace()
            || std::str::from_utf8(&bytes[..8]).is_ok()
    }),
];

fn read_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

proptest! {
    #[test]
    fn our_first_bytes_match_no_other_rule(token: [u8; 16], agent in "[ -~]{0,40}", security: u8) {
        let mut control = ControlCodec::client(Hello::new(agent)).unwrap().outgoing().to_vec();
        control[CONTROL_MAGIC.len()] = security;
        let flow = flow::opening(FlowToken(token));
        let answer = flow::reply(FlowToken(token));
        for bytes in [&control[..], &flow, &answer] {
            for (name, rule) in OTHER_RULES {
                prop_assert!(!rule(bytes), "{name}: {bytes:02x?}");
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        for carrier in [TransportKind::Stream, TransportKind::Datagram] {
            let _ = classify(carrier, &bytes);
        }
    }

    #[test]
    fn more_bytes_never_change_a_result(
        keep in 0usize..12,
        rest in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let bytes = [&CONTROL_MAGIC[..keep.min(8)], &rest].concat();
        let mut last = ProtocolMatch::NeedMore;
        for length in 0..=bytes.len() {
            let next = detect_linerate(TransportKind::Stream, &bytes[..length]);
            if last != ProtocolMatch::NeedMore {
                prop_assert_eq!(next, last);
            }
            last = next;
        }
    }
}
