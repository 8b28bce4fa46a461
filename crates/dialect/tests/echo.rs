//! The same bytes back, and to whom never.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use linerate_dialect::echo::{
    ANSWERING_PORTS, Answer, Asker, BACKLOG_LIMIT_BYTES, Stream, answers_to,
};
use linerate_dialect::far::FarReport;
use proptest::prelude::*;

#[test]
fn whom_echo_never_answers() {
    let own = [7, 5_201, 5_001];
    for (source, answered, why) in [
        (0, false, "no answer is wanted"),
        (7, false, "echo"),
        (9, true, "discard takes and is silent"),
        (13, false, "daytime"),
        (17, false, "quote of the day"),
        (19, false, "chargen"),
        (37, false, "time"),
        (5_201, false, "itself, or another server like it"),
        (5_001, false, "another port of its own"),
        (5_202, true, "anybody"),
        (53, true, "a name server answers no answers"),
        (49_152, true, "anybody"),
        (65_535, true, "anybody"),
    ] {
        assert_eq!(answers_to(source, &own), answered, "{source}: {why}");
    }
    for source in 0..=u16::MAX {
        let forbidden = source == 0 || ANSWERING_PORTS.contains(&source);
        assert_eq!(answers_to(source, &[]), !forbidden, "{source}");
    }
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_the_limit() {
    let mut stream = Stream::default();
    let much = vec![1; 64 << 10];
    let mut taken = 0;
    loop {
        match stream.receive(&much) {
            0 => break,
            bytes => taken += bytes,
        }
    }
    assert_eq!(taken, BACKLOG_LIMIT_BYTES);
    stream.sent(10);
    assert_eq!(stream.receive(&much), 10);
    stream.finish();
    assert!(!stream.is_over());
    stream.sent(stream.outgoing().len());
    assert!(stream.is_over());
    let all = BACKLOG_LIMIT_BYTES as u64 + 10;
    assert_eq!(stream.totals(), (all, all));
}

#[test]
fn what_came_back_is_told_apart() {
    let mut asker = Asker::new(64);
    let first = asker.ask(1_000).to_vec();
    assert_eq!(
        asker.datagram(1_500, &first),
        Answer::RoundTrip {
            number: 0,
            rtt_ns: 500,
            matches: true
        }
    );
    assert_eq!(asker.datagram(1_600, &first), Answer::Late, "it came again");
    let second = asker.ask(2_000).to_vec();
    assert_eq!(asker.datagram(2_100, &first), Answer::Late);
    assert_eq!(asker.datagram(2_100, &second[..63]), Answer::Late);
    assert_eq!(asker.datagram(2_100, b"hello"), Answer::Stray);
    assert_eq!(asker.datagram(2_100, &[0xff; 64]), Answer::Stray);
    let mut broken = second;
    broken[40] ^= 1;
    assert_eq!(
        asker.datagram(2_400, &broken),
        Answer::RoundTrip {
            number: 1,
            rtt_ns: 400,
            matches: false
        }
    );
    assert_eq!(asker.far_report(), FarReport::default());
}

#[test]
fn a_stream_is_read_past_an_answer_that_was_given_up() {
    let mut asker = Asker::new(20);
    let first = asker.ask(0).to_vec();
    assert_eq!(asker.stream(5, &first[..8]), (8, None));
    // Given up half-way: its other 12 bytes are still owed.
    let second = asker.ask(1_000).to_vec();
    let bytes = [&first[8..], &second[..]].concat();
    assert_eq!(asker.stream(1_100, &bytes[..15]), (15, None));
    assert_eq!(
        asker.stream(1_200, &bytes[15..]),
        (
            17,
            Some(Answer::RoundTrip {
                number: 1,
                rtt_ns: 200,
                matches: true
            })
        )
    );
    assert_eq!(asker.stream(1_300, b"x"), (1, Some(Answer::Stray)));
}

proptest! {
    /// However a stream is cut and however its answers drain, the same bytes come back.
    #[test]
    fn splits_change_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..3_000),
        cuts in prop::collection::vec((1usize..700, 0usize..700), 1..60),
    ) {
        let mut stream = Stream::default();
        let (mut rest, mut back) = (&bytes[..], Vec::new());
        for (read, write) in cuts.iter().cycle() {
            let taken = stream.receive(&rest[..rest.len().min(*read)]);
            rest = &rest[taken..];
            let ready = stream.outgoing().len().min(write + usize::from(rest.is_empty()));
            back.extend_from_slice(&stream.outgoing()[..ready]);
            stream.sent(ready);
            if rest.is_empty() {
                stream.finish();
            }
            if stream.is_over() {
                break;
            }
        }
        prop_assert_eq!(back, bytes);
    }

    #[test]
    fn answers_on_a_stream_may_be_cut_anywhere(
        size in 1usize..200,
        cuts in prop::collection::vec(1usize..90, 1..20),
    ) {
        let mut asker = Asker::new(size);
        let mut trips = 0;
        for round in 0..5u64 {
            let question = asker.ask(round * 10).to_vec();
            let mut rest = &question[..];
            for cut in cuts.iter().cycle() {
                let piece = &rest[..rest.len().min(*cut)];
                let (taken, answer) = asker.stream(round * 10 + 3, piece);
                prop_assert_eq!(taken, piece.len());
                rest = &rest[taken..];
                if let Some(answer) = answer {
                    prop_assert_eq!(answer, Answer::RoundTrip { number: round, rtt_ns: 3, matches: true });
                    trips += 1;
                    break;
                }
            }
        }
        prop_assert_eq!(trips, 5);
    }

    #[test]
    fn nothing_panics(size in 0usize..40, pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..60)), 0..20)) {
        let mut asker = Asker::new(size);
        for (ask, piece) in &pieces {
            if *ask {
                asker.ask(1);
            }
            asker.datagram(2, piece);
            let (taken, _) = asker.stream(2, piece);
            prop_assert!(taken <= piece.len());
        }
    }
}

/// The driver: a server over both, and a client that measures it.
#[test]
fn round_trips_over_loopback() {
    let begun = Instant::now();
    let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut stream = Stream::default();
        let mut buffer = [0; 4_096];
        while !stream.is_over() {
            match socket.read(&mut buffer).unwrap() {
                0 => stream.finish(),
                bytes => {
                    // This driver writes all before it reads on, so there is always room.
                    assert_eq!(stream.receive(&buffer[..bytes]), bytes);
                }
            }
            socket.write_all(stream.outgoing()).unwrap();
            stream.sent(stream.outgoing().len());
        }
        stream.totals()
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    let mut asker = Asker::new(1_024);
    let mut buffer = [0; 4_096];
    for number in 0..100 {
        let question = asker.ask(now()).to_vec();
        client.write_all(&question).unwrap();
        loop {
            let bytes = client.read(&mut buffer).unwrap();
            if let (_, Some(answer)) = asker.stream(now(), &buffer[..bytes]) {
                assert!(
                    matches!(answer, Answer::RoundTrip { number: n, matches: true, .. } if n == number)
                );
                break;
            }
        }
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(server.join().unwrap(), (102_400, 102_400));

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        for _ in 0..50 {
            let (bytes, from) = socket.recv_from(&mut buffer).unwrap();
            assert!(answers_to(from.port(), &[address.port()]));
            socket.send_to(&buffer[..bytes], from).unwrap();
        }
    });
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    client.connect(address).unwrap();
    let mut asker = Asker::new(64);
    for number in 0..50 {
        client.send(asker.ask(now())).unwrap();
        let bytes = client.recv(&mut buffer).unwrap();
        let answer = asker.datagram(now(), &buffer[..bytes]);
        assert!(
            matches!(answer, Answer::RoundTrip { number: n, matches: true, .. } if n == number)
        );
    }
    server.join().unwrap();
}
