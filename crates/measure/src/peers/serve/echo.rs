//! Echo (RFC 862): the same bytes back.

use std::net::TcpStream;

use linerate_dialect::echo::{DIALECT, PORT, Stream, answers_to};
use linerate_dialect::far::FarReport;
use linerate_host::sys::clock::Nanos;
use linerate_metric::event::Problem;
use linerate_metric::plan::{Direction, Kind, Protocol};

use super::answering::{Answers, answer_stream};
use super::lane::{Datagrams, Numbers, Take, receive_datagrams};
use super::plain::{QUESTION_SILENCE, plan};
use super::test::{IDLE, Test};
use super::{Caller, OnStream, Refused, Speaker};
use crate::flow::Part;
use crate::meter::Totals;
use crate::session::house::Claim;
use crate::session::porch::Arrived;

/// Echo, as the table of speakers has it.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: Some(PORT),
    speaks_first: false,
    stream: Some(OnStream::Test(stream)),
    flow_of: None,
    datagrams: Some(|caller, claim, arrived| {
        answer_datagrams(DIALECT.name, caller, claim, arrived, Flow::default());
    }),
};

fn stream(mut caller: Caller, claim: Claim, stream: TcpStream) {
    let plan = plan(&caller, Kind::Latency, Protocol::Tcp, Direction::Send);
    let mut test = Test::begin(&mut caller, claim, DIALECT.name, DIALECT.name, plan);
    let spawned = test.spawn(1, Part::Sink, stream.into(), |context, socket| {
        answer_stream(context, socket, IDLE, &mut Stream::default())
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
        // A stream has no questions to count.
        None
    }
}

/// Answers datagrams, each with one that is no larger, as far as the server's guard allows.
pub fn answer_datagrams<D: Datagrams + Send + 'static>(
    dialect: &'static str,
    mut caller: Caller,
    claim: Claim,
    arrived: Arrived,
    mut flow: D,
) {
    let hall = &caller.house.hall;
    if !answers_to(caller.peer.port(), hall.ports()) {
        let peer = caller.peer;
        let refused = Refused {
            why: "answering-port",
            dialect,
            from: peer,
        };
        hall.refuse(refused, || {
            Problem::new(
                format!("{peer} would answer the answer, for ever"),
                format!("{dialect} over UDP"),
                "let the client send from another port; no option allows this",
            )
        });
        return;
    }
    let mut plan = plan(&caller, Kind::Latency, Protocol::Udp, Direction::Send);
    plan.payload_bytes = arrived.largest();
    let (house, client) = (caller.house.clone(), (dialect, caller.peer));
    let test = Test::begin(&mut caller, claim, dialect, dialect, plan);
    let mut test = test.ending_by_silence();
    test.keep(arrived.key, false);
    let early = arrived.early;
    let spawned = test.spawn(1, Part::Sink, arrived.socket, move |context, socket| {
        let allow = |now, received, answer| house.hall.may_answer(now, client, received, answer);
        receive_datagrams(context, socket, early, &mut flow, allow)
    });
    test.conclude(spawned, FarReport::default);
}

/// Datagrams that are their own answers.
#[derive(Default)]
struct Flow {
    totals: Totals,
    last_ns: Nanos,
}

impl Datagrams for Flow {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        self.totals.bytes += datagram.len() as u64;
        self.totals.packets += 1;
        self.last_ns = now;
        Take::Answer {
            bytes: datagram.len(),
            payload: true,
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        now.saturating_sub(self.last_ns) > QUESTION_SILENCE.as_nanos() as u64
    }

    fn totals(&self) -> Totals {
        self.totals
    }

    fn numbers(&mut self) -> Option<Numbers> {
        None
    }

    fn answers(&self) -> bool {
        true
    }
}
