//! sockperf's messages, compared with those of the upstream program.

use linerate_protocol::sniff::{Classification, TransportKind, classify};
use linerate_protocol::sockperf::{
    BACKLOG_LIMIT_BYTES, HEADER_BYTES, MESSAGE_LIMIT_BYTES, SockperfDatagram, SockperfError,
    SockperfHeader, SockperfServer, SockperfTotals,
};
use proptest::prelude::*;

/// Recorded messages of upstream clients and servers, with the client's command line.
struct Recorded {
    command: String,
    client: Vec<Vec<u8>>,
    server: Vec<Vec<u8>>,
}

fn recorded() -> Vec<Recorded> {
    let mut runs: Vec<Recorded> = Vec::new();
    for line in include_str!("../fixtures/sockperf-3.7.hex").lines() {
        let bytes = || {
            let digits = &line.as_bytes()[2..];
            let pair =
                |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            digits.chunks(2).map(pair).collect::<Vec<u8>>()
        };
        match line.as_bytes().first() {
            Some(b'>') => runs.push(Recorded {
                command: line[2..].to_owned(),
                client: Vec::new(),
                server: Vec::new(),
            }),
            Some(b'C') => runs.last_mut().unwrap().client.push(bytes()),
            Some(b'S') => runs.last_mut().unwrap().server.push(bytes()),
            _ => {}
        }
    }
    assert_eq!(runs.len(), 8);
    runs
}

#[test]
fn our_server_replies_as_the_upstream_one() {
    for run in recorded() {
        let mut server = SockperfServer::default();
        let mut replies = Vec::new();
        let tcp = run.command.contains("--tcp");
        for message in &run.client {
            let transport = if tcp {
                assert_eq!(server.receive_stream(message).unwrap(), message.len());
                TransportKind::Stream
            } else {
                let mut datagram = message.clone();
                if let SockperfDatagram::Reply(_) = server.receive_datagram(&mut datagram) {
                    replies.extend(datagram);
                }
                TransportKind::Datagram
            };
            let first = classify(transport, message);
            assert!(
                matches!(first, Classification::Known(dialect) if dialect.name == "sockperf"),
                "{}: {first:?}",
                run.command
            );
        }
        replies.extend_from_slice(server.outgoing());
        let upstream = run.server.concat();
        assert!(replies.starts_with(&upstream), "{}", run.command);
        // Over TCP the recording may end before the upstream server's last reply.
        assert!(tcp || replies.len() == upstream.len(), "{}", run.command);
        assert!(server.totals().messages >= run.client.len() as u64);
        assert_eq!(server.totals().ignored, 0);
    }
}

#[test]
fn our_requests_and_replies_are_the_upstream_ones() {
    let mut replies = 0;
    for run in recorded() {
        let (request_bytes, reply_bytes) = (run.client.concat(), run.server.concat());
        let length = SockperfHeader::read(&request_bytes).unwrap().length;
        let messages = |bytes: &[u8]| -> Vec<[u8; HEADER_BYTES]> {
            let chunks = bytes.chunks_exact(length as usize);
            chunks
                .map(|message| *message.first_chunk().unwrap())
                .collect()
        };
        if run.command.starts_with("sockperf pp") {
            for (sequence, upstream) in (1..).zip(messages(&request_bytes)) {
                assert_eq!(
                    SockperfHeader::request(sequence, length).to_bytes(),
                    upstream,
                    "{}",
                    run.command
                );
            }
        }
        for upstream in messages(&reply_bytes) {
            let sequence = SockperfHeader::read(&upstream).unwrap().sequence;
            let own_reply = SockperfHeader::request(sequence, length).to_reply();
            assert_eq!(own_reply.to_bytes(), upstream, "{}", run.command);
            replies += 1;
        }
    }
    assert!(replies > 10, "{replies}");
}

#[test]
fn some_messages_get_no_reply() {
    for (flags, replied, counted) in [
        (0u16, false, false),
        (1, false, true),
        (2, false, false),
        (3, true, true),
        (4, false, false),
        (5, false, false),
        (7, false, false),
        (0x13, true, true),
    ] {
        let header = SockperfHeader {
            sequence: 9,
            flags,
            length: 20,
        };
        let mut bytes = [7; 20];
        header.write(&mut bytes);
        let mut server = SockperfServer::default();
        assert_eq!(server.receive_stream(&bytes), Ok(20), "{flags}");
        assert_eq!(
            server.outgoing().len(),
            if replied { 20 } else { 0 },
            "{flags}"
        );
        assert_eq!(server.totals().messages, u64::from(counted), "{flags}");
        let mut datagram = bytes;
        let kind = SockperfServer::default().receive_datagram(&mut datagram);
        match kind {
            SockperfDatagram::Reply(_) => {
                assert!(replied, "{flags}");
                assert_eq!(datagram, server.outgoing());
                assert_eq!(datagram[14..], bytes[14..]);
            }
            SockperfDatagram::Counted(_) => assert!(counted && !replied, "{flags}"),
            SockperfDatagram::Ignored => assert!(!counted, "{flags}"),
        }
    }
}

#[test]
fn a_datagram_has_the_length_of_its_header() {
    for (length, size) in [(20u32, 19), (20, 21), (0, 20), (u32::MAX, 20), (13, 13)] {
        let mut datagram = [0; 40];
        SockperfHeader {
            sequence: 1,
            flags: 3,
            length,
        }
        .write(&mut datagram);
        let mut server = SockperfServer::default();
        assert_eq!(
            server.receive_datagram(&mut datagram[..size]),
            SockperfDatagram::Ignored,
            "{length} {size}"
        );
        assert_eq!(server.totals().ignored, 1);
    }
}

#[test]
fn a_stream_out_of_sync_is_an_error() {
    for length in [0u32, 13, MESSAGE_LIMIT_BYTES as u32 + 1, u32::MAX] {
        let mut bytes = [0; HEADER_BYTES];
        SockperfHeader {
            sequence: 1,
            flags: 3,
            length,
        }
        .write(&mut bytes);
        let mut server = SockperfServer::default();
        assert_eq!(
            server.receive_stream(&bytes),
            Err(SockperfError::Length { length })
        );
        assert_eq!(server.receive_stream(b"more"), Err(SockperfError::Failed));
    }
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_the_limit() {
    let mut server = SockperfServer::default();
    let mut message = vec![1; 50_000];
    SockperfHeader {
        sequence: 1,
        flags: 3,
        length: 50_000,
    }
    .write(&mut message);
    let mut accepted = 0;
    for _ in 0..100 {
        accepted += server
            .receive_stream(&message[accepted % 50_000..])
            .unwrap();
    }
    assert!(server.outgoing().len() <= BACKLOG_LIMIT_BYTES + HEADER_BYTES);
    assert!(accepted <= BACKLOG_LIMIT_BYTES + HEADER_BYTES);
    server.mark_sent(server.outgoing().len());
    assert!(
        server
            .receive_stream(&message[accepted % 50_000..])
            .unwrap()
            > 0
    );
}

fn messages() -> impl Strategy<Value = Vec<(SockperfHeader, Vec<u8>)>> {
    let message = (
        any::<u64>(),
        0u16..8,
        prop::collection::vec(any::<u8>(), 0..200),
    );
    let message = message.prop_map(|(sequence, flags, filler)| {
        let length = (HEADER_BYTES + filler.len()) as u32;
        let header = SockperfHeader {
            sequence,
            flags,
            length,
        };
        let mut bytes = vec![0; HEADER_BYTES];
        header.write(&mut bytes);
        bytes.extend(filler);
        (header, bytes)
    });
    prop::collection::vec(message, 0..20)
}

proptest! {
    #[test]
    fn headers_read_as_written(sequence: u64, flags: u16, length: u32) {
        let header = SockperfHeader { sequence, flags, length };
        let mut bytes = [0; HEADER_BYTES];
        header.write(&mut bytes);
        prop_assert_eq!(SockperfHeader::read(&bytes), Some(header));
        prop_assert_eq!(SockperfHeader::read(&bytes[..13]), None);
    }

    /// Splitting a stream gives the same replies and counters as its messages as datagrams.
    #[test]
    fn splits_change_nothing(messages in messages(), splits in prop::collection::vec(1usize..60, 1..20)) {
        let stream: Vec<u8> = messages.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let mut cut = SockperfServer::default();
        let mut rest = &stream[..];
        for size in splits.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            prop_assert_eq!(cut.receive_stream(piece), Ok(piece.len()));
            rest = after;
        }
        let mut single = SockperfServer::default();
        let mut answers = Vec::new();
        for (_, bytes) in &messages {
            let mut bytes = bytes.clone();
            if let SockperfDatagram::Reply(_) = single.receive_datagram(&mut bytes) {
                answers.extend(bytes);
            }
        }
        prop_assert_eq!(cut.outgoing(), answers);
        prop_assert_eq!(cut.totals(), single.totals());
    }

    /// No bytes cause a reply larger than the input, and none panic.
    #[test]
    fn hostile_bytes_get_nothing_more_than_came(split in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20)) {
        let mut server = SockperfServer::default();
        let mut came = 0;
        for piece in &split {
            came += piece.len();
            if server.receive_stream(piece).is_err() {
                break;
            }
            prop_assert!(server.outgoing().len() <= came);
        }
        for piece in split {
            let mut datagram = piece.clone();
            let _ = server.receive_datagram(&mut datagram);
            prop_assert_eq!(datagram.len(), piece.len());
        }
    }
}

#[test]
fn without_messages_the_totals_are_empty() {
    assert_eq!(
        SockperfServer::default().totals(),
        SockperfTotals::default()
    );
    assert_eq!(SockperfTotals::default().highest_sequence, None);
    assert_eq!(SockperfTotals::default().lost(), None);
}

#[test]
fn messages_before_the_first_received_are_not_lost() {
    for (sequences, lost) in [
        (&[1, 2, 3][..], 0),
        (&[1, 3], 1),
        // A client that continues after a pause.
        (&[501, 502, 505], 2),
        (&[502, 501], 0),
        // Duplicates.
        (&[1, 1, 1], 0),
        (&[0, u64::MAX], u64::MAX - 2),
    ] {
        let mut server = SockperfServer::default();
        for &sequence in sequences {
            let mut datagram = [0; 20];
            let header = SockperfHeader {
                sequence,
                flags: 1,
                length: 20,
            };
            header.write(&mut datagram);
            let _ = server.receive_datagram(&mut datagram);
        }
        assert_eq!(server.totals().lost(), Some(lost), "{sequences:?}");
    }
}
