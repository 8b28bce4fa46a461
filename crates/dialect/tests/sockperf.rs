//! sockperf's messages, against what stock programs sent.

use linerate_dialect::far::FarReport;
use linerate_dialect::sniff::{Carrier, Speaker, speaker};
use linerate_dialect::sockperf::{
    Answered, Asks, BACKLOG_LIMIT_BYTES, Client, HEADER_BYTES, Header, MESSAGE_LIMIT_BYTES,
    OUTSTANDING, Server, SockperfError, Step, Took, Totals,
};
use proptest::prelude::*;

/// What stock clients sent and what a stock server answered, by the client's command line.
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
        // Over TCP the stock server may have been caught before its last answer.
        assert!(tcp || answers.len() == stock.len(), "{}", run.command);
        assert!(server.totals().messages >= run.client.len() as u64);
        assert_eq!(server.totals().ignored, 0);
    }
}

#[test]
fn our_client_asks_as_the_stock_one() {
    for run in recorded() {
        let (asks, gap_ns) = match run.command.split(' ').nth(1).unwrap() {
            "pp" => (Asks::Each, 0),
            "ul" => (Asks::Every(100), 500_000),
            _ => (Asks::None, 5_000_000),
        };
        let stream = run.client.concat();
        let mut rest = &stream[..];
        let length = Header::read(rest).unwrap().length as usize;
        let mut client = Client::new(asks, length, gap_ns, 1 << 40, 0);
        let mut now = 0;
        let mut last = 0;
        while let Some(header) = Header::read(rest) {
            if rest.len() < length {
                break;
            }
            rest = &rest[length..];
            // The recording leaves messages out.
            loop {
                match client.step(now) {
                    Step::Wait { until_ns } => {
                        assert!(until_ns > now);
                        now = until_ns;
                    }
                    Step::Send(ours) => {
                        let mut answer = vec![0; length];
                        Header { flags: 2, ..ours }.write(&mut answer);
                        if ours.flags == 3 {
                            let answered = client.datagram(now + 7, &answer).unwrap();
                            assert_eq!((answered.sequence, answered.rtt_ns), (ours.sequence, 7));
                        }
                        if ours.sequence == header.sequence {
                            assert_eq!(ours, header, "{}", run.command);
                            break;
                        }
                        assert!(ours.sequence < header.sequence);
                    }
                }
            }
            last = header.sequence;
        }
        assert_eq!(client.sent(), last, "{}", run.command);
        assert_eq!(client.far_report(), FarReport::default());
    }
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
        let mut client = Client::new(Asks::Each, 14, 0, 1, 0);
        assert_eq!(
            client.receive(0, &bytes),
            Err(SockperfError::Length { length })
        );
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

#[test]
fn questions_without_answers_are_lost_and_late_answers_are_none() {
    let mut client = Client::new(Asks::Each, 14, 0, 1_000, 0);
    let Step::Send(first) = client.step(0) else {
        panic!("the first leaves at once")
    };
    assert_eq!(client.step(10), Step::Wait { until_ns: 1_000 });
    let Step::Send(second) = client.step(1_000) else {
        panic!("the first was given up")
    };
    assert_eq!((second.sequence, client.lost()), (2, 1));
    let mut answer = [0; 14];
    first.answered().write(&mut answer);
    assert_eq!(client.datagram(1_001, &answer), None, "too late");
    second.answered().write(&mut answer);
    let answered = Some(Answered {
        sequence: 2,
        rtt_ns: 5,
    });
    assert_eq!(client.datagram(1_005, &answer), answered);
    assert_eq!(client.datagram(1_006, &answer), None, "it came twice");
    second.write(&mut answer);
    assert_eq!(client.datagram(1_007, &answer), None, "our own question");
    assert_eq!((client.answered(), client.unexpected()), (1, 3));
    // An open loop forgets the oldest when nothing is answered.
    let mut client = Client::new(Asks::Every(2), 14, 0, 1_000, 0);
    for _ in 0..4 * OUTSTANDING {
        assert!(matches!(client.step(0), Step::Send(_)));
    }
    assert_eq!(client.lost(), OUTSTANDING as u64);
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

    /// However a stream is cut, the answers and the counts are those of its messages as datagrams.
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

    /// The same at the client: answers in pieces are the same answers.
    #[test]
    fn answers_may_be_cut_anywhere(size in 14usize..100, cuts in prop::collection::vec(1usize..40, 1..10)) {
        let mut client = Client::new(Asks::Every(1), size, 0, 1_000, 0);
        let mut stream = Vec::new();
        for _ in 0..10 {
            let Step::Send(header) = client.step(0) else { panic!("no gap") };
            let mut answer = vec![3; size];
            header.answered().write(&mut answer);
            stream.extend(answer);
        }
        let (mut rest, mut came) = (&stream[..], Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let mut piece = &rest[..(*cut).min(rest.len())];
            rest = &rest[piece.len()..];
            while !piece.is_empty() {
                let (taken, answered) = client.receive(5, piece).unwrap();
                piece = &piece[taken..];
                came.extend(answered.map(|answered| answered.sequence));
            }
        }
        // The last one is complete with its last byte.
        came.extend(client.receive(5, &[]).unwrap().1.map(|answered| answered.sequence));
        prop_assert_eq!(came, (1..=10).collect::<Vec<u64>>());
    }

    /// No bytes make an answer larger than what came, and none panic.
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
            let mut client = Client::new(Asks::Every(1), 14, 0, 1, 0);
            client.step(0);
            prop_assert_eq!(client.datagram(1, &piece), None);
        }
    }
}

#[test]
fn nothing_counted_is_nothing_known() {
    assert_eq!(Server::default().totals(), Totals::default());
    assert_eq!(Totals::default().highest_sequence, None);
}
