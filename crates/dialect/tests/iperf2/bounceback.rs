//! Requests and replies.

use linerate_dialect::iperf2::{TcpJob, TcpServer, bounceback};
use proptest::prelude::*;

use super::recorded::recorded;

#[test]
fn recorded_questions_are_answered() {
    let test = recorded()
        .into_iter()
        .find(|test| test.has("--bounceback"))
        .unwrap();
    let Ok((taken, Some(TcpJob::Bounceback(mut server)))) =
        TcpServer::new().receive(&test.client[0], 0)
    else {
        panic!("a bounceback")
    };
    let time = |bytes: &[u8], at: usize| {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * 1000
    };
    for (number, (question, stock)) in test.client.iter().zip(&test.server).enumerate() {
        let taken = if number == 0 { taken } else { 0 };
        assert!(!server.is_due());
        let rest = &question[taken..];
        assert_eq!(server.receive(rest, time(stock, 28)), rest.len());
        assert!(server.is_due() && server.wants_quick_ack());
        // With the times of the upstream server, its reply.
        assert_eq!(server.answer(time(stock, 36)), &stock[..]);
        server.answered();
    }
    assert_eq!(server.answers(), 2);
}

proptest! {
    /// Exchanges requests and replies of any size, split in any way.
    #[test]
    fn two_ends_exchange_requests_and_replies(size in 20u32..300, questions in 1usize..5, piece in 1usize..90) {
        let mut client = bounceback::Client::new(size, 0).unwrap();
        let mut opening = TcpServer::new();
        let mut server = None;
        for number in 1..=questions {
            let question = client.question(1_000_000, ).to_vec();
            let mut answers = Vec::new();
            for bytes in question.chunks(piece) {
                let mut at = 0;
                if server.is_none() {
                    let (taken, job) = opening.receive(bytes, 2_000_000).unwrap();
                    at = taken;
                    if let Some(TcpJob::Bounceback(begun)) = job {
                        server = Some(begun);
                    }
                }
                let Some(server) = &mut server else { continue };
                at += server.receive(&bytes[at..], 2_000_000);
                prop_assert_eq!(at, bytes.len());
                if server.is_due() {
                    answers.extend_from_slice(server.answer(3_000_000));
                    server.answered();
                }
            }
            for bytes in answers.chunks(piece) {
                prop_assert_eq!(client.answer().unwrap(), None);
                client.receive(bytes);
            }
            let answer = client.answer().unwrap().unwrap();
            prop_assert_eq!(answer.number as usize, number);
            prop_assert_eq!(answer.received_ns, (size >= 36).then_some(2_000_000));
            prop_assert_eq!(answer.sent_ns, (size >= 44).then_some(3_000_000));
        }
        let server = &mut server.unwrap();
        prop_assert_eq!(server.answers(), questions as u64);
        server.receive(client.stop(0), 0);
        prop_assert!(server.is_over() && !server.is_due());
    }
}
