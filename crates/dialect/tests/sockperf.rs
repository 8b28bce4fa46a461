//! sockperf's messages, compared with those of the upstream program.

use linerate_dialect::sniff::{Carrier, Speaker, speaker};
use linerate_dialect::sockperf::{
    BACKLOG_LIMIT_BYTES, HEADER_BYTES, Header, MESSAGE_LIMIT_BYTES, Server, SockperfError, Took,
    Totals,
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
    for line in include_str!("fixtures/sockperf-3.7.hex").lines() {
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
fn our_server_answers_as_the_stock_one() {
    for run in recorded() {
        let mut server = Server::default();
        let mut answers = Vec::new();
        let tcp = run.command.contains("--tcp");
        for message in &run.client {
            let carrier = if tcp {
                assert_eq!(server.receive(message).unwrap(), message.len());
                Carrier::Stream
            } else {
                let mut datagram = message.clone();
                if let Took::Answer(_) = server.datagram(&mut datagram) {
                    answers.extend(datagram);
                }
                Carrier::Datagram
            };
            let first = speaker(carrier, message);
            assert!(
                matches!(first, Speaker::Known(dialect) if dialect.name == "sockperf"),
                "{}: {first:?}",
                run.command
            );
        }
        answers.extend_from_slice(server.outgoing());
        let stock = run.server.concat();
        assert!(answers.starts_with(&stock), "{}", run.command);
        // Over TCP the recording may end before the upstream server's last reply.
        assert!(tcp || answers.len() == stock.len(), "{}", run.command);
        assert!(server.totals().messages >= run.client.len() as u64);
        assert_eq!(server.totals().ignored, 0);
    }
}

#[test]
fn our_questions_and_answers_are_the_stock_ones() {
    let mut answers = 0;
    for run in recorded() {
        let (asked, answered) = (run.client.concat(), run.server.concat());
        let length = Header::read(&asked).unwrap().length;
        let messages = |bytes: &[u8]| -> Vec<[u8; HEADER_BYTES]> {
            let whole = bytes.chunks_exact(length as usize);
            whole
                .map(|message| *message.first_chunk().unwrap())
                .collect()
        };
        if run.command.starts_with("sockperf pp") {
            for (sequence, stock) in (1..).zip(messages(&asked)) {
                assert_eq!(
                    Header::question(sequence, length).bytes(),
                    stock,
                    "{}",
                    run.command
                );
            }
        }
        for stock in messages(&answered) {
            let sequence = Header::read(&stock).unwrap().sequence;
            let ours = Header::question(sequence, length).answered();
            assert_eq!(ours.bytes(), stock, "{}", run.command);
            answers += 1;
        }
    }
    assert!(answers > 10, "{answers}");
}

#[test]
fn messages_that_are_not_answered() {
    for (flags, answered, counted) in [
        (0u16, false, false),
        (1, false, true),
        (2, false, false),
        (3, true, true),
        (4, false, false),
        (5, false, false),
        (7, false, false),
        (0x13, true, true),
    ] {
        let header = Header {
            sequence: 9,
            flags,
            length: 20,
        };
        let mut bytes = [7; 20];
        header.write(&mut bytes);
        let mut server = Server::default();
        assert_eq!(server.receive(&bytes), Ok(20), "{flags}");
        assert_eq!(
            server.outgoing().len(),
            if answered { 20 } else { 0 },
            "{flags}"
        );
        assert_eq!(server.totals().messages, u64::from(counted), "{flags}");
        let mut datagram = bytes;
        let took = Server::default().datagram(&mut datagram);
        match took {
            Took::Answer(_) => {
                assert!(answered, "{flags}");
                assert_eq!(datagram, server.outgoing());
                assert_eq!(datagram[14..], bytes[14..]);
            }
            Took::Counted(_) => assert!(counted && !answered, "{flags}"),
            Took::Ignored => assert!(!counted, "{flags}"),
        }
    }
}

#[test]
fn a_datagram_has_the_length_that_it_says() {
    for (length, size) in [(20u32, 19), (20, 21), (0, 20), (u32::MAX, 20), (13, 13)] {
        let mut datagram = [0; 40];
        Header {
            sequence: 1,
            flags: 3,
            length,
        }
        .write(&mut datagram);
        let mut server = Server::default();
        assert_eq!(
            server.datagram(&mut datagram[..size]),
            Took::Ignored,
            "{length} {size}"
        );
        assert_eq!(server.totals().ignored, 1);
    }
}

#[test]
fn a_stream_out_of_step_is_ended() {
    for length in [0u32, 13, MESSAGE_LIMIT_BYTES as u32 + 1, u32::MAX] {
        let mut bytes = [0; HEADER_BYTES];
        Header {
            sequence: 1,
            flags: 3,
            length,
        }
        .write(&mut bytes);
        let mut server = Server::default();
        assert_eq!(
            server.receive(&bytes),
            Err(SockperfError::Length { length })
        );
        assert_eq!(server.receive(b"more"), Err(SockperfError::Failed));
    }
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_the_limit() {
    let mut server = Server::default();
    let mut message = vec![1; 50_000];
    Header {
        sequence: 1,
        flags: 3,
        length: 50_000,
    }
    .write(&mut message);
    let mut taken = 0;
    for _ in 0..100 {
        taken += server.receive(&message[taken % 50_000..]).unwrap();
    }
    assert!(server.outgoing().len() <= BACKLOG_LIMIT_BYTES + HEADER_BYTES);
    assert!(taken <= BACKLOG_LIMIT_BYTES + HEADER_BYTES);
    server.sent(server.outgoing().len());
    assert!(server.receive(&message[taken % 50_000..]).unwrap() > 0);
}

fn messages() -> impl Strategy<Value = Vec<(Header, Vec<u8>)>> {
    let message = (
        any::<u64>(),
        0u16..8,
        prop::collection::vec(any::<u8>(), 0..200),
    );
    let message = message.prop_map(|(sequence, flags, filler)| {
        let length = (HEADER_BYTES + filler.len()) as u32;
        let header = Header {
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
        let header = Header { sequence, flags, length };
        let mut bytes = [0; HEADER_BYTES];
        header.write(&mut bytes);
        prop_assert_eq!(Header::read(&bytes), Some(header));
        prop_assert_eq!(Header::read(&bytes[..13]), None);
    }

    /// Splitting a stream gives the same replies and counters as its messages as datagrams.
    #[test]
    fn splits_change_nothing(messages in messages(), cuts in prop::collection::vec(1usize..60, 1..20)) {
        let stream: Vec<u8> = messages.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        let mut cut = Server::default();
        let mut rest = &stream[..];
        for size in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            prop_assert_eq!(cut.receive(piece), Ok(piece.len()));
            rest = after;
        }
        let mut single = Server::default();
        let mut answers = Vec::new();
        for (_, bytes) in &messages {
            let mut bytes = bytes.clone();
            if let Took::Answer(_) = single.datagram(&mut bytes) {
                answers.extend(bytes);
            }
        }
        prop_assert_eq!(cut.outgoing(), answers);
        prop_assert_eq!(cut.totals(), single.totals());
    }

    /// No bytes cause a reply larger than the input, and none panic.
    #[test]
    fn hostile_bytes_get_nothing_more_than_came(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20)) {
        let mut server = Server::default();
        let mut came = 0;
        for piece in &pieces {
            came += piece.len();
            if server.receive(piece).is_err() {
                break;
            }
            prop_assert!(server.outgoing().len() <= came);
        }
        for piece in pieces {
            let mut datagram = piece.clone();
            let _ = server.datagram(&mut datagram);
            prop_assert_eq!(datagram.len(), piece.len());
        }
    }
}

#[test]
fn nothing_counted_is_nothing_known() {
    assert_eq!(Server::default().totals(), Totals::default());
    assert_eq!(Totals::default().highest_sequence, None);
    assert_eq!(Totals::default().lost(), None);
}

#[test]
fn what_was_sent_before_the_first_that_came_is_not_lost() {
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
        let mut server = Server::default();
        for &sequence in sequences {
            let mut datagram = [0; 20];
            let header = Header {
                sequence,
                flags: 1,
                length: 20,
            };
            header.write(&mut datagram);
            let _ = server.datagram(&mut datagram);
        }
        assert_eq!(server.totals().lost(), Some(lost), "{sequences:?}");
    }
}
