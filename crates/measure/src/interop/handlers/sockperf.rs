//! sockperf clients: ping-pong, under-load and throughput, over TCP and UDP.

use std::net::TcpStream;

use linerate_dialect::remote_report::FarReport;
use linerate_dialect::sockperf::{DIALECT, HEADER_BYTES, Header, Server, Took};
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::plain::question_silence;
use super::responder_loop::{Answers, answer_datagrams, answer_stream, would_answer};
use super::test_run::{IDLE, Test};
use super::worker::{Datagrams, Numbers, Take};
use super::{Caller, OnStream, Speaker};
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::server_state::Claim;
use crate::session::udp_demux::Arrived;

/// Handler of sockperf.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
    speaks_first: false,
    stream: Some(OnStream::Test(stream)),
    flow_of: None,
    datagrams: Some(datagrams),
    turns_away: Some(|hall, from, _| would_answer(DIALECT.name, hall, from)),
};

/// Returns the plan; a client whose first message requests a response measures round trips.
fn plan(caller: &Caller, protocol: Protocol, first: Option<Header>) -> Plan {
    let kind = match first {
        Some(header) if !header.is_question() => Kind::Throughput,
        _ => Kind::Latency,
    };
    let mut plan = super::plain::plan(caller, kind, protocol, Direction::Send);
    plan.payload_bytes = first.map_or(0, |header| u64::from(header.length));
    plan
}

fn stream(mut caller: Caller, claim: Claim, stream: TcpStream) {
    let mut first = [0; HEADER_BYTES];
    let first = (stream.peek(&mut first).ok()).and_then(|bytes| Header::read(&first[..bytes]));
    let plan = plan(&caller, Protocol::Tcp, first);
    let came_ns = caller.came_ns;
    let mut test = Test::begin(&mut caller, claim, DIALECT.name, DIALECT.name, plan);
    let spawned = test.spawn(1, Part::Sink, stream.into(), move |context, socket| {
        answer_stream(context, socket, IDLE, came_ns, &mut Server::default())
    });
    test.conclude(spawned, FarReport::default);
}

impl Answers for Server {
    fn receive(&mut self, bytes: &[u8]) -> Result<usize, String> {
        Self::receive(self, bytes).map_err(|error| error.to_string())
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
        totals(self)
    }

    fn answered(&self) -> Option<u64> {
        Some(Self::totals(self).answered)
    }
}

fn totals(server: &Server) -> Totals {
    let totals = server.totals();
    Totals {
        bytes: totals.bytes,
        packets: totals.messages,
        ..Totals::default()
    }
}

fn datagrams(caller: Caller, claim: Claim, arrived: Arrived) {
    let first = arrived
        .early
        .first()
        .and_then(|(_, first)| Header::read(first));
    let plan = plan(&caller, Protocol::Udp, first);
    answer_datagrams(DIALECT.name, plan, caller, claim, arrived, Flow::default());
}

#[derive(Default)]
struct Flow {
    server: Server,
    last_ns: Nanos,
}

impl Datagrams for Flow {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        match self.server.datagram(datagram) {
            Took::Answer(_) => {
                self.last_ns = now;
                Take::Answer {
                    bytes: datagram.len(),
                    payload: true,
                }
            }
            Took::Counted(_) => {
                self.last_ns = now;
                Take::Payload
            }
            Took::Ignored => {
                // An unrelated datagram starts the flow's time, too: otherwise the flow would never
                // end.
                if self.last_ns == 0 {
                    self.last_ns = now;
                }
                Take::Other
            }
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        let silence = question_silence(self.server.totals().messages);
        now.saturating_sub(self.last_ns) > silence.as_nanos() as u64
    }

    fn totals(&self) -> Totals {
        totals(&self.server)
    }

    fn numbers(&mut self) -> Option<Numbers> {
        Some(Numbers {
            lost: Some(self.server.totals().lost()?),
            ..Numbers::default()
        })
    }

    fn answers(&self) -> bool {
        true
    }
}
