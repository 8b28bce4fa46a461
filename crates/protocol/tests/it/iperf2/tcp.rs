//! TCP connections, split anywhere.

use linerate_protocol::iperf2::settings::HEADER_LIMIT_BYTES;
use linerate_protocol::iperf2::{
    Iperf2Direction, Iperf2Error, Iperf2Settings, Iperf2TcpClient, Iperf2TcpRequest,
    Iperf2TcpServer, VersionAck, VersionAckTimes, bounceback,
};
use proptest::prelude::*;

use super::recorded::{encode_words, recorded};

fn split<'a>(bytes: &'a [u8], splits: &[usize]) -> Vec<&'a [u8]> {
    let mut splits: Vec<usize> = splits.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    splits.extend([0, bytes.len()]);
    splits.sort_unstable();
    splits
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

/// Passes the beginning of a connection in pieces; returns the request, the payload bytes and the
/// reply.
pub fn open(bytes: &[u8], splits: &[usize]) -> (Result<Option<String>, Iperf2Error>, u64, Vec<u8>) {
    let mut server = Iperf2TcpServer::new();
    for piece in split(bytes, splits) {
        match server.receive(piece, 7_000) {
            Ok((_, None)) => {}
            Ok((_, Some(job))) => {
                let job = match job {
                    Iperf2TcpRequest::Bounceback(server) => {
                        format!("messages of {}", server.message_bytes())
                    }
                    job => format!("{job:?}"),
                };
                return (
                    Ok(Some(job)),
                    server.payload_bytes(),
                    server.outgoing().to_vec(),
                );
            }
            Err(error) => return (Err(error), 0, Vec::new()),
        }
    }
    (Ok(None), server.payload_bytes(), server.outgoing().to_vec())
}

#[test]
fn a_hostile_client_costs_no_more_than_the_limits() {
    // The longest header that can be announced, and a key.
    let mut server = Iperf2TcpServer::new();
    let mut longest = encode_words(&[0x5001_01fe, 1, 5001, 0, 0, 1]);
    longest.resize(4096, 0xff);
    let (consumed, job) = server.receive(&longest, 0).unwrap();
    assert!(
        consumed <= HEADER_LIMIT_BYTES && job.is_some(),
        "{consumed}"
    );
    assert_eq!(
        server.receive(&longest, 0).unwrap().0,
        0,
        "nothing more is consumed"
    );

    for (size, error) in [
        (
            u32::MAX,
            Iperf2Error::MessageTooLarge {
                bytes: u32::MAX,
                limit: 1 << 20,
            },
        ),
        (
            19,
            Iperf2Error::MessageTooSmall {
                bytes: 19,
                min_bytes: 20,
            },
        ),
    ] {
        let request = encode_words(&[0x0080_0000, size, 1, 0, 0]);
        assert_eq!(
            Iperf2TcpServer::new().receive(&request, 0).unwrap_err(),
            error
        );
    }
    // A reply is never larger than the request, and its delay is limited.
    let mut request = encode_words(&[0x0080_0000, 64, 1, 0x0800_0000, 0]);
    request.resize(44, 0);
    request.extend(encode_words(&[u32::MAX, 0, 0, 0, u32::MAX]));
    let mut server = bounceback::BouncebackServer::new(&request).unwrap();
    assert_eq!(server.receive(&request, 0), 64);
    assert_eq!(server.reply(0).len(), 64);
    assert!(server.hold_ns() <= 10_000_000_000);
}

fn any_splits() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..12)
}

proptest! {
    #[test]
    fn splits_change_nothing(which in 0usize..15, splits in any_splits()) {
        let tests = recorded();
        let test = tests.iter().filter(|test| !test.udp).nth(which % 15).unwrap();
        prop_assert_eq!(open(&test.client[0], &splits), open(&test.client[0], &[]));
    }

    #[test]
    fn splits_change_nothing_of_nonsense(
        first in prop::sample::select(vec![0u32, 0x4001_0078, 0x4001_00a0, 0x5001_007c, 0x8000_0000, 0x0080_0000, 0x4601_0078]),
        rest in prop::collection::vec(any::<u8>(), 0..300),
        splits in any_splits(),
    ) {
        let bytes = [&first.to_be_bytes()[..], &rest].concat();
        prop_assert_eq!(open(&bytes, &splits), open(&bytes, &[]));
    }

    #[test]
    fn acknowledgements_are_no_payload(splits in any_splits(), payload in 0usize..100, direction in 0usize..3, timed: bool) {
        let direction = [Iperf2Direction::Forward, Iperf2Direction::Reverse, Iperf2Direction::Both][direction];
        let settings = Iperf2Settings { peer_detect: true, direction, ..Iperf2Settings::client(5001) };
        let mut client = Iperf2TcpClient::new(settings).unwrap();
        prop_assert!(client.waits_for_ack());
        let times = VersionAckTimes {
            client_sent_ns: 1_000,
            server_received_ns: 2_000,
            server_sent_ns: 3_000,
        };
        let ack = VersionAck { version: (0x0002_0001, 7), times: timed.then_some(times) };
        let mut bytes = ack.write();
        bytes.resize(bytes.len() + payload, b'x');
        let other: usize = split(&bytes, &splits).iter().map(|piece| client.receive(piece)).sum();
        let want = if direction == Iperf2Direction::Forward { bytes.len() } else { bytes.len() - payload };
        prop_assert_eq!((other, client.ack(), client.waits_for_ack()), (want, Some(ack), false));
    }
}
