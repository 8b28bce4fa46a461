//! Echo (RFC 862): sends received bytes back.

use std::net::TcpStream;

use linerate_dialect::echo::{DIALECT, PORT, Stream};
use linerate_dialect::remote_report::FarReport;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::plain::plan;
use super::responder_loop::{Answers, Questions, answer_datagrams, answer_stream, would_answer};
use super::test_run::{IDLE, Test};
use super::{Caller, OnStream, Speaker};
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::server_state::Claim;

/// Handler of echo.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: Some(PORT),
    speaks_first: false,
    stream: Some(OnStream::Test(stream)),
    flow_of: None,
    datagrams: Some(|caller, claim, arrived| {
        let flow = Questions::answered_by(|question: &mut [u8], _| question.len());
        let plan = plan_of_questions(&caller);
        answer_datagrams(DIALECT.name, plan, caller, claim, arrived, flow);
    }),
    turns_away: Some(|hall, from, _| would_answer(DIALECT.name, hall, from)),
};

/// Returns the plan of a client that sends datagrams to have them answered. Their size is taken
/// from the payload at the end, because some programs send a small probe first.
pub fn plan_of_questions(caller: &Caller) -> Plan {
    plan(caller, Kind::Latency, Protocol::Udp, Direction::Send)
}

fn stream(mut caller: Caller, claim: Claim, stream: TcpStream) {
    // A stream has no request boundaries: its bytes can be counted, its round trips cannot.
    let plan = plan(&caller, Kind::Throughput, Protocol::Tcp, Direction::Send);
    let came_ns = caller.came_ns;
    let mut test = Test::begin(&mut caller, claim, DIALECT.name, DIALECT.name, plan);
    let spawned = test.spawn(1, Part::Sink, stream.into(), move |context, socket| {
        answer_stream(context, socket, IDLE, came_ns, &mut Stream::default())
    });
    test.conclude(spawned, FarReport::default);
}

impl Answers for Stream {
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String> {
        Ok(Self::receive(self, bytes))
    }

    fn finish(&mut self) {
        Self::finish(self);
    }

    fn ends_by_closing(&self) -> bool {
        true
    }

    fn outgoing(&self) -> &[u8] {
        Self::outgoing(self)
    }

    fn sent(&mut self, bytes: usize) {
        Self::sent(self, bytes);
    }

    fn totals(&self) -> Totals {
        Totals {
            bytes: Self::totals(self).0,
            ..Totals::default()
        }
    }

    fn answered(&self) -> Option<u64> {
        // A stream has no requests to count.
        None
    }
}
