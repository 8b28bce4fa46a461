//! Scripted transport for tests: responses arrive after a fixed delay, and simulated time advances
//! only in calls that wait.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use linerate_record::plan::{Direction, Plan, TransportProtocol};
use linerate_record::record::SocketFacts;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::{
    FlowOptions, RecvMeta, RunClock, Transport, TransportCapabilities, TxTimestamp,
};

use super::{OpenFlow, WorkerContext};
use crate::flow::{FlowEndResults, RunPhase};

/// Start time of scripted runs.
pub const START_NS: Nanos = 1_000_000_000;

/// Simulated time of one call.
const CALL_NS: Nanos = 500;

thread_local! {
    static NOW: Cell<Nanos> = const { Cell::new(START_NS) };
}

/// Responds to each datagram after the same delay, and can lose one.
pub struct ScriptedTransport {
    response_delay_ns: Nanos,
    lost_datagram: Option<usize>,
    sent: usize,
    responses: VecDeque<(Nanos, Vec<u8>)>,
    receive_timeout_ns: Nanos,
    /// Time for which the socket is full after each send.
    full_after_send_ns: Nanos,
    writable_from_ns: Nanos,
    end: Option<(Nanos, &'static RunPhase)>,
    interrupted_ns: Option<Nanos>,
}

impl ScriptedTransport {
    pub fn with_delay(response_delay_ns: Nanos) -> Self {
        Self {
            response_delay_ns,
            lost_datagram: None,
            sent: 0,
            responses: VecDeque::new(),
            receive_timeout_ns: 0,
            full_after_send_ns: 0,
            writable_from_ns: 0,
            end: None,
            interrupted_ns: None,
        }
    }

    pub fn with_lost(mut self, number: usize) -> Self {
        self.lost_datagram = Some(number);
        self
    }

    pub fn with_full_socket(mut self, full_for_ns: Nanos) -> Self {
        self.full_after_send_ns = full_for_ns;
        self
    }

    /// Advances the time and ends the run as the coordinator would.
    fn advance(&self, until: Nanos) {
        let now = NOW.get().max(until);
        NOW.set(now);
        if let Some((end_ns, phase)) = self.end {
            if now >= end_ns {
                phase.end();
            }
            if self.interrupted_ns.is_some_and(|at| now >= at) {
                phase.interrupt();
            }
        }
    }
}

/// Runs the request sender of one flow over a scripted transport.
pub fn run_scripted(
    plan: &Plan,
    mut transport: ScriptedTransport,
    interrupted_ns: Option<Nanos>,
) -> FlowEndResults {
    NOW.set(START_NS);
    let phase: &'static RunPhase = Box::leak(Box::default());
    let duration_ns = plan.duration_ns.unwrap_or(Nanos::MAX / 2);
    transport.end = Some((START_NS + plan.omit_ns + duration_ns, phase));
    transport.interrupted_ns = interrupted_ns;
    let worker = WorkerContext {
        plan,
        direction: Direction::Send,
        role: FlowRole::Sender,
        run_clock: RunClock {
            start_ns: START_NS,
            count_from_ns: START_NS + plan.omit_ns,
            interval_ns: None,
            trace_stop_call_ns: None,
        },
        phase,
    };
    let flow = OpenFlow {
        histograms: Default::default(),
        id: 1,
        socket: (),
        shared: Default::default(),
        pattern: None,
        framing: Default::default(),
        reconnect: None,
    };
    let mut results = super::run(&worker, &mut transport, vec![flow]);
    results.pop().expect("each flow has an outcome")
}

const UNUSED: &str = "not used by any test";

impl Transport for ScriptedTransport {
    type Socket = ();

    fn poll(&mut self) {}

    fn now(&self) -> Nanos {
        NOW.get()
    }

    fn read_clock() -> Nanos {
        NOW.get()
    }

    fn idle(&mut self, until: Option<Nanos>) {
        self.advance(until.unwrap_or(NOW.get() + CALL_NS));
    }

    fn connect(&mut self, _: SocketAddr, _: &FlowOptions) -> io::Result<()> {
        Ok(())
    }

    fn accept(&mut self, (): (), _: &FlowOptions) -> Poll<io::Result<()>> {
        // No client connects.
        self.advance(NOW.get() + CALL_NS);
        Poll::Pending
    }

    fn set_receive_timeout(&mut self, (): (), timeout: Duration) {
        self.receive_timeout_ns = timeout.as_nanos() as Nanos;
    }

    fn udp_send(
        &mut self,
        (): (),
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        if NOW.get() < self.writable_from_ns {
            self.advance(NOW.get() + CALL_NS);
            return Poll::Pending;
        }
        self.writable_from_ns = NOW.get() + self.full_after_send_ns;
        let mut payload = vec![0; bytes];
        fill(&mut payload);
        self.advance(NOW.get() + CALL_NS);
        if self.lost_datagram != Some(self.sent) {
            self.responses
                .push_back((NOW.get() + self.response_delay_ns, payload));
        }
        self.sent += 1;
        Poll::Ready(Ok(bytes))
    }

    fn udp_receive<R>(
        &mut self,
        (): (),
        take: impl FnOnce(&[u8], RecvMeta) -> R,
    ) -> Poll<io::Result<R>> {
        let limit = NOW.get() + self.receive_timeout_ns.max(CALL_NS);
        let next = self.responses.front().map(|(at, _)| *at);
        let Some(at) = next.filter(|&at| at <= limit) else {
            self.advance(limit);
            return Poll::Pending;
        };
        self.advance(at);
        let (_, payload) = self.responses.pop_front().expect("it was just seen");
        Poll::Ready(Ok(take(&payload, RecvMeta::default())))
    }

    fn enable_timestamps(&mut self, (): (), _: TransportProtocol) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn receive_with_timestamp<R>(
        &mut self,
        (): (),
        _: usize,
        take: impl FnOnce(&[u8], RecvMeta) -> R,
    ) -> Poll<io::Result<R>> {
        self.udp_receive((), take)
    }

    fn take_tx_timestamps(&mut self, (): (), _: impl FnMut(TxTimestamp)) -> io::Result<()> {
        Ok(())
    }

    fn max_burst(&self, (): (), _: usize) -> usize {
        1
    }

    fn udp_send_burst(
        &mut self,
        (): (),
        _: usize,
        _: usize,
        _: impl FnMut(usize, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        unimplemented!("{UNUSED}")
    }

    fn udp_receive_burst(
        &mut self,
        (): (),
        _: impl FnMut(&[u8], RecvMeta),
    ) -> Poll<io::Result<usize>> {
        unimplemented!("{UNUSED}")
    }

    fn tcp_send(&mut self, (): (), _: usize, _: impl FnOnce(&mut [u8])) -> Poll<io::Result<usize>> {
        unimplemented!("{UNUSED}")
    }

    fn tcp_receive<R>(
        &mut self,
        (): (),
        _: usize,
        _: impl FnOnce(&[u8]) -> R,
    ) -> Poll<io::Result<R>> {
        unimplemented!("{UNUSED}")
    }

    fn shutdown_send(&mut self, (): ()) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&mut self, (): ()) {}

    fn socket_facts(&self, (): ()) -> SocketFacts {
        SocketFacts::default()
    }

    fn capabilities(&self) -> TransportCapabilities {
        TransportCapabilities {
            blocks_in_calls: true,
            timestamps_end_waits: false,
            has_edge_trigger: false,
        }
    }
}
