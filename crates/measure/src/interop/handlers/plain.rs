//! Payload without a header, over TCP until its end and over UDP until a second of silence.

use std::net::TcpStream;
use std::time::Duration;

use linerate_dialect::plain::{DIALECT, SILENCE_NS, Sink};
use linerate_dialect::remote_report::FarReport;
use linerate_dialect::ttcp::MARKER_LIMIT_BYTES;
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::short_flow;
use super::test_run::{FLOW_SILENCE, PLAIN_IDLE, Test};
use super::worker::{Datagrams, Numbers, RECEIVE_BYTES, Take, receive_datagrams, receive_stream};
use super::{Caller, OnStream, Speaker};
use crate::flow::Part;
use crate::flow_counters::Totals;
use crate::session::server_state::Claim;
use crate::session::udp_demux::Arrived;

/// Handler of plain payload.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
    speaks_first: false,
    stream: Some(OnStream::Test(|caller, claim, stream| {
        stream_of(DIALECT.name, caller, claim, stream);
    })),
    flow_of: None,
    datagrams: Some(|caller, claim, arrived| {
        datagrams_of(DIALECT.name, caller, claim, arrived, Flow::default());
    }),
    turns_away: None,
};

/// Returns the plan of a test whose client describes nothing.
pub fn plan(caller: &Caller, kind: Kind, protocol: Protocol, direction: Direction) -> Plan {
    let mut plan = Plan::new(kind, protocol, caller.local.ip().to_string());
    plan.port = caller.door;
    plan.directions = vec![direction];
    plan.duration_ns = None;
    // The size of its calls is not announced.
    plan.payload_bytes = 0;
    plan.receive_bytes = (protocol == Protocol::Tcp).then_some(RECEIVE_BYTES as u64);
    plan.answer_timeout_ns = None;
    plan
}

/// Receives a connection that carries payload only.
pub fn stream_of(dialect: &'static str, mut caller: Caller, claim: Claim, stream: TcpStream) {
    let Some(begun) = short_flow::of_stream(&caller, &stream) else {
        return;
    };
    let plan = plan(&caller, Kind::Throughput, Protocol::Tcp, Direction::Send);
    let mut test = Test::begin(&mut caller, claim, dialect, dialect, plan);
    let spawned = test.spawn(1, Part::Sink, stream.into(), |context, socket| {
        receive_stream(context, socket, PLAIN_IDLE, begun)
    });
    test.conclude(spawned, FarReport::default);
}

/// Receives a flow of datagrams that carries payload only.
pub fn datagrams_of<D: Datagrams + Send + 'static>(
    dialect: &'static str,
    mut caller: Caller,
    claim: Claim,
    arrived: Arrived,
    mut flow: D,
) {
    if !short_flow::of_flow(&caller, &arrived, SILENCE_NS) {
        return;
    }
    let mut plan = plan(&caller, Kind::Throughput, Protocol::Udp, Direction::Send);
    // A marker alone does not show the size of payload.
    let first = arrived.largest();
    plan.payload_bytes = if first > MARKER_LIMIT_BYTES as u64 {
        first
    } else {
        0
    };
    let test = Test::begin(&mut caller, claim, dialect, dialect, plan);
    let mut test = test.without_an_end();
    test.takes_size_from_payload();
    test.keep(arrived.key, false);
    let early = arrived.early;
    let spawned = test.spawn(1, Part::Sink, arrived.socket, move |context, socket| {
        receive_datagrams(context, socket, early, &mut flow, |_, _, _| false)
    });
    test.conclude(spawned, FarReport::default);
}

/// Datagrams without a header.
#[derive(Default)]
pub struct Flow(Sink);

impl Datagrams for Flow {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        self.0.receive(now, datagram.len());
        Take::Payload
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        self.0.is_over(now)
    }

    fn totals(&self) -> Totals {
        let totals = self.0.totals();
        Totals {
            bytes: totals.bytes,
            packets: totals.packets,
            ..Totals::default()
        }
    }

    fn numbers(&mut self) -> Option<Numbers> {
        None
    }
}

/// Silence that ends a flow of few requests: some clients pause between two of them.
const QUESTION_SILENCE: Duration = Duration::from_nanos(3 * SILENCE_NS);

/// Number of requests from which the server waits longer for more: a forger has to send that many
/// first.
const FEW_QUESTIONS: u64 = 100;

/// Returns the silence that ends a flow of so many requests. A client that is stopped for ten
/// seconds may go on with its flow.
pub fn question_silence(questions: u64) -> Duration {
    match questions {
        0..FEW_QUESTIONS => QUESTION_SILENCE,
        _ => FLOW_SILENCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_questions_are_not_waited_for_as_long_as_many() {
        assert_eq!(question_silence(0), Duration::from_secs(3));
        assert_eq!(question_silence(99), Duration::from_secs(3));
        let stopped = Duration::from_secs(10);
        assert!(question_silence(100) > stopped);
    }
}
