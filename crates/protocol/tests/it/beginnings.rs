//! Each protocol's first bytes are detected by the table, and none is mistaken for another's.

use linerate_protocol::control::{ControlCodec, DATA_MAGIC, FlowToken, Hello, flow};
use linerate_protocol::iperf2::datagram::write_number;
use linerate_protocol::iperf2::{Iperf2Settings, Iperf2TcpClient, Iperf2UdpClient};
use linerate_protocol::nuttcp::{NuttcpClient, NuttcpDirection, NuttcpTest};
use linerate_protocol::sniff::{Classification, PROTOCOLS, ProtocolMatch, TransportKind, classify};
use linerate_protocol::sockperf;
use proptest::prelude::*;

fn classify_name(transport: TransportKind, bytes: &[u8]) -> &'static str {
    match classify(transport, bytes) {
        Classification::Known(protocol) => protocol.name,
        Classification::NeedMore => "more",
        Classification::Unknown => "plain",
    }
}

fn iperf2_stream() -> Vec<u8> {
    let client = Iperf2TcpClient::new(Iperf2Settings::client(5_001)).unwrap();
    [client.header(), b"0123456789"].concat()
}

fn iperf2_datagram() -> Vec<u8> {
    let client = Iperf2UdpClient::new(Iperf2Settings::client(5_001), 1_470).unwrap();
    let mut datagram = client.template();
    write_number(&mut datagram, 1, 1_795_000_000_999_999_000);
    datagram
}

fn message(sequence: u64, flags: u16, length: u32) -> Vec<u8> {
    let mut bytes = vec![7; length as usize];
    sockperf::SockperfHeader {
        sequence,
        flags,
        length,
    }
    .write(&mut bytes);
    bytes
}

fn nuttcp_client() -> Vec<u8> {
    let client = NuttcpClient::new(NuttcpTest::new(
        NuttcpDirection::ToServer,
        TransportKind::Stream,
        5_001,
    ))
    .unwrap();
    client.outgoing().to_vec()
}

fn ttcp_payload(size: usize) -> Vec<u8> {
    // The printable characters of ASCII, repeated.
    (b' '..=b'~').cycle().take(size).collect()
}

#[test]
fn streams_are_classified() {
    let control = ControlCodec::client(Hello::new("x")).unwrap();
    for (bytes, expected) in [
        (control.outgoing().to_vec(), "linerate"),
        (flow::opening(FlowToken([9; 16])).to_vec(), "linerate"),
        (nuttcp_client(), "nuttcp"),
        (b"HELO nuttcp v8.2.2\n".to_vec(), "nuttcp"),
        (b"o3zcvulb4ybmnxqckv4jjlyxqyqlvw2hkrkp\0".to_vec(), "iperf3"),
        (iperf2_stream(), "iperf2"),
        (message(1, 3, 14), "sockperf"),
        (message(1, 1, 65_507), "sockperf"),
        (message(1, 7, 64), "sockperf"),
        (ttcp_payload(200), "ttcp"),
        // Bytes that no protocol begins with.
        (vec![b' '; 200], "plain"),
        (b"OK v6.1.2\n".to_vec(), "plain"),
        (b"BOD1\0.1.2\n\0 v6.1.2".to_vec(), "plain"),
        (b"hello, echo\r\n".to_vec(), "plain"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "plain"),
        (message(1, 2, 14), "plain"),
        (
            message(1, 3, 65_507)[..10]
                .iter()
                .copied()
                .chain([0, 1, 0, 0])
                .collect(),
            "plain",
        ),
        (vec![0xff; 64], "plain"),
    ] {
        assert_eq!(
            classify_name(TransportKind::Stream, &bytes),
            expected,
            "{:02x?}",
            &bytes[..bytes.len().min(40)]
        );
        // With fewer bytes the result is "more", never a wrong one.
        for length in 0..bytes.len().min(100) {
            let result = classify_name(TransportKind::Stream, &bytes[..length]);
            assert!(
                result == "more" || result == expected,
                "{length}: {result}, not {expected}"
            );
        }
    }
}

#[test]
fn datagrams_are_classified() {
    for (bytes, expected) in [
        (flow::opening(FlowToken([9; 16])).to_vec(), "linerate"),
        (b"BOD0".to_vec(), "nuttcp"),
        (b"BOD1".to_vec(), "nuttcp"),
        (b"9876".to_vec(), "iperf3"),
        (message(1, 3, 14), "sockperf"),
        (message(7, 1, 1_472), "sockperf"),
        (iperf2_datagram(), "iperf2"),
        (vec![0; 4], "ttcp"),
        (b"!".to_vec(), "ttcp"),
        (vec![], "plain"),
        (b"hello".to_vec(), "plain"),
        (ttcp_payload(8_192), "plain"),
        (message(1, 3, 20)[..19].to_vec(), "plain"),
        (message(1 << 40, 3, 20), "plain"),
    ] {
        assert_eq!(
            classify_name(TransportKind::Datagram, &bytes),
            expected,
            "{:02x?}",
            &bytes[..bytes.len().min(40)]
        );
    }
}

/// Checks that no protocol but linerate's own detects these bytes.
fn assert_no_other_protocol(bytes: &[u8]) {
    for protocol in PROTOCOLS
        .iter()
        .filter(|protocol| protocol.name != "linerate")
    {
        for transport in [TransportKind::Stream, TransportKind::Datagram] {
            let verdict = (protocol.detect)(transport, bytes);
            assert_ne!(
                verdict,
                ProtocolMatch::Yes,
                "{} {transport:?} {bytes:02x?}",
                protocol.name
            );
        }
    }
}

proptest! {
    #[test]
    fn our_first_bytes_match_no_other_protocol(token: [u8; 16], agent in "[ -~]{0,40}", kept in 5usize..24) {
        let control = ControlCodec::client(Hello::new(agent)).unwrap();
        let opening = flow::opening(FlowToken(token));
        assert_no_other_protocol(control.outgoing());
        assert_no_other_protocol(&control.outgoing()[..kept]);
        assert_no_other_protocol(&opening);
        assert_no_other_protocol(&opening[..kept]);
        assert_no_other_protocol(&flow::reply(FlowToken(token)));
        assert_no_other_protocol(&DATA_MAGIC);
    }

    /// Our requests and payload on a UDP port are plain for any number, except a sequence near
    /// zero, which is where iperf2 has its own.
    #[test]
    fn our_payload_begins_no_other_test(size in 16usize..1_500, sent_ns in 1u64 << 32..1 << 47) {
        let mut payload = vec![0; size];
        flow::write_header(&mut payload, 1 << 40, sent_ns);
        assert_no_other_protocol(&payload);
    }

    #[test]
    fn more_bytes_never_change_a_result(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(3), Just(0x10), Just(0x40), Just(0x80), any::<u8>()], 0..80),
        "(HELO|HELO nuttcp|[a-z2-7]{30,36}).{0,30}".prop_map(String::into_bytes),
    ]) {
        let mut last = "more";
        for length in 0..=bytes.len() {
            let now = classify_name(TransportKind::Stream, &bytes[..length]);
            if last != "more" {
                prop_assert_eq!(now, last, "{} of {:02x?}", length, &bytes);
            }
            last = now;
        }
        prop_assert_ne!(classify_name(TransportKind::Datagram, &bytes), "more");
    }
}
