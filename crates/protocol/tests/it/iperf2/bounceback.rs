//! Requests and replies.

use linerate_protocol::iperf2::{Iperf2TcpRequest, Iperf2TcpServer, bounceback};
use proptest::prelude::*;

use super::recorded::recorded;

#[test]
fn recorded_requests_get_recorded_replies() {
    let test = recorded()
        .into_iter()
        .find(|test| test.has("--bounceback"))
        .unwrap();
    let Ok((consumed, Some(Iperf2TcpRequest::Bounceback(mut server)))) =
        Iperf2TcpServer::new().receive(&test.client[0], 0)
    else {
        panic!("a bounceback")
    };
    let time = |bytes: &[u8], at: usize| {
        let read_word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        u64::from(read_word(at)) * 1_000_000_000 + u64::from(read_word(at + 4)) * 1000
    };
    for (number, (request, upstream)) in test.client.iter().zip(&test.server).enumerate() {
        let consumed = if number == 0 { consumed } else { 0 };
        assert!(!server.has_request());
        let rest = &request[consumed..];
        assert_eq!(server.receive(rest, time(upstream, 28)), rest.len());
        assert!(server.has_request() && server.requests_quick_ack());
        // With the times of the upstream server, its reply.
        assert_eq!(server.reply(time(upstream, 36)), &upstream[..]);
        server.mark_replied();
    }
    assert_eq!(server.replies(), 2);
}

proptest! {
    /// Exchanges requests and replies of any size, split in any way.
    #[test]
    fn two_ends_exchange_requests_and_replies(size in 20u32..300, questions in 1usize..5, piece in 1usize..90) {
        let mut client = bounceback::BouncebackClient::new(size, 0).unwrap();
        let mut opening = Iperf2TcpServer::new();
        let mut server = None;
        for number in 1..=questions {
            let question = client.request(1_000_000, ).to_vec();
            let mut answers = Vec::new();
            for bytes in question.chunks(piece) {
                let mut at = 0;
                if server.is_none() {
                    let (taken, job) = opening.receive(bytes, 2_000_000).unwrap();
                    at = taken;
                    if let Some(Iperf2TcpRequest::Bounceback(begun)) = job {
                        server = Some(begun);
                    }
                }
                let Some(server) = &mut server else { continue };
                at += server.receive(&bytes[at..], 2_000_000);
                prop_assert_eq!(at, bytes.len());
                if server.has_request() {
                    answers.extend_from_slice(server.reply(3_000_000));
                    server.mark_replied();
                }
            }
            for bytes in answers.chunks(piece) {
                prop_assert_eq!(client.reply().unwrap(), None);
                client.receive(bytes);
            }
            let answer = client.reply().unwrap().unwrap();
            prop_assert_eq!(answer.number as usize, number);
            prop_assert_eq!(answer.received_ns, (size >= 36).then_some(2_000_000));
            prop_assert_eq!(answer.sent_ns, (size >= 44).then_some(3_000_000));
        }
        let server = &mut server.unwrap();
        prop_assert_eq!(server.replies(), questions as u64);
        server.receive(client.stop(0), 0);
        prop_assert!(server.is_over() && !server.has_request());
    }
}
