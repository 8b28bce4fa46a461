//! Responding end: echoes every request.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::{EchoOutcome, FlowOptions, Transport};

use super::rt_yield::RtYield;
use crate::flow::{FlowEndResults, FlowShared, TimingHistograms, is_opening_datagram};
use crate::flow_counters::PayloadTotals;
use crate::{OpenFlow, Progress, ReconnectOptions, WorkerContext, Workload};

/// State and figures of a responding flow.
struct ResponderState<'a, S> {
    worker: &'a WorkerContext<'a>,
    id: u32,
    socket: S,
    shared: Arc<FlowShared>,
    totals: PayloadTotals,
    buffer: Vec<u8>,
    rt_yield: Option<(RtYield, Nanos)>,
}

impl<'a, S: Copy> ResponderState<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        Self {
            worker,
            id: flow.id,
            socket: flow.socket,
            shared: flow.shared,
            totals: PayloadTotals::default(),
            buffer: vec![0; worker.plan.payload_bytes as usize],
            rt_yield: RtYield::for_worker(worker).map(|rt_yield| (rt_yield, clock::now())),
        }
    }

    #[inline]
    fn count_response(&mut self, bytes: usize) {
        self.totals.packets += 1;
        self.totals.calls += 1;
        self.totals.bytes += bytes as u64;
        self.shared.counters.publish(&self.totals);
        if let Some((_, responded_ns)) = &mut self.rt_yield {
            *responded_ns = clock::now();
        }
    }

    /// Called when no request is waiting.
    #[inline]
    fn on_starved(&mut self) -> Progress {
        if let Some((rt_yield, responded_ns)) = &mut self.rt_yield {
            rt_yield.pause_without_request(*responded_ns);
        }
        Progress::Starved(None)
    }

    fn finish<T: Transport<Socket = S>>(
        self,
        transport: &T,
        error: Option<io::Error>,
    ) -> FlowEndResults {
        FlowEndResults {
            timing: TimingHistograms::default(),
            id: self.id,
            direction: self.worker.direction,
            role: self.worker.role,
            totals: self.totals,
            sequence: None,
            times: None,
            mismatched: 0,
            first_mismatch: None,
            log: None,
            facts: transport.socket_facts(self.socket),
            first_ns: None,
            ended_ns: transport.now(),
            error,
            requests: None,
        }
    }
}

/// Echoes every datagram.
pub struct UdpResponder<'a, S> {
    state: ResponderState<'a, S>,
    /// Bytes of a response that could not be sent yet.
    pending_bytes: Option<usize>,
}

impl<'a, S: Copy> UdpResponder<'a, S> {
    pub fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        Self {
            state: ResponderState::new(worker, flow),
            pending_bytes: None,
        }
    }
}

impl<T: Transport> Workload<T> for UdpResponder<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let state = &mut self.state;
        let socket = state.socket;
        let echo = match self.pending_bytes.take() {
            Some(bytes) => {
                let message = &state.buffer[..bytes];
                let sent = transport.udp_send(socket, bytes, |payload| {
                    payload.copy_from_slice(message);
                });
                match sent {
                    Poll::Ready(sent) => EchoOutcome::Sent(sent?),
                    Poll::Pending => EchoOutcome::Full(bytes),
                }
            }
            None => {
                // A repeated flow opening was answered when the flow opened.
                let buffer = &mut state.buffer;
                match transport.udp_echo(socket, buffer, |message| !is_opening_datagram(message)) {
                    Poll::Ready(echo) => echo?,
                    Poll::Pending => {
                        let is_over =
                            state.worker.phase.is_aborted() || state.shared.has_sender_ended();
                        return Ok(if is_over {
                            Progress::Done
                        } else {
                            state.on_starved()
                        });
                    }
                }
            }
        };
        match echo {
            EchoOutcome::Ignored => Ok(Progress::Worked),
            // A response that cannot be sent, as over a link that is down, must not delay the end.
            EchoOutcome::Full(_)
                if state.worker.phase.is_aborted() || state.shared.has_sender_ended() =>
            {
                Ok(Progress::Done)
            }
            EchoOutcome::Full(bytes) => {
                self.pending_bytes = Some(bytes);
                Ok(Progress::Starved(None))
            }
            EchoOutcome::Sent(bytes) => {
                state.count_response(bytes);
                if state.worker.phase.is_aborted() {
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.state.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.state.finish(transport, error)
    }
}

/// Echoes every complete message of a stream.
pub struct TcpResponder<'a, S> {
    state: ResponderState<'a, S>,
    received: usize,
    sent: usize,
}

impl<'a, S: Copy> TcpResponder<'a, S> {
    pub fn new(worker: &'a WorkerContext<'a>, flow: OpenFlow<S>) -> Self {
        Self {
            state: ResponderState::new(worker, flow),
            received: 0,
            sent: 0,
        }
    }
}

impl<T: Transport> Workload<T> for TcpResponder<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let state = &mut self.state;
        if self.received < state.buffer.len() {
            let buffer = &mut state.buffer[self.received..];
            let received = transport.tcp_receive(state.socket, buffer.len(), |payload| {
                buffer[..payload.len()].copy_from_slice(payload);
                payload.len()
            });
            match received {
                Poll::Ready(bytes) => match bytes? {
                    0 => return Ok(Progress::Done),
                    bytes => self.received += bytes,
                },
                Poll::Pending if state.worker.phase.is_aborted() => return Ok(Progress::Done),
                Poll::Pending => return Ok(state.on_starved()),
            }
            if self.received < state.buffer.len() {
                return Ok(Progress::Worked);
            }
        }
        let rest = &state.buffer[self.sent..];
        let accepted = transport.tcp_send(state.socket, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
        });
        match accepted {
            Poll::Pending if state.worker.phase.is_aborted() => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(_) if state.worker.phase.is_aborted() => Ok(Progress::Done),
            Poll::Ready(accepted) => {
                self.sent += accepted?;
                if self.sent == state.buffer.len() {
                    state.count_response(self.sent);
                    self.received = 0;
                    self.sent = 0;
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.state.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.state.finish(transport, error)
    }
}

/// Accepts a connection for each request, responds, and closes it.
pub struct TcpAcceptor<'a, S> {
    state: ResponderState<'a, S>,
    options: FlowOptions,
    connection: Option<S>,
    /// Number of sockets so far: the listener, then the connections.
    socket_count: u64,
    received: usize,
    sent: usize,
}

impl<'a, S: Copy> TcpAcceptor<'a, S> {
    pub fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        let reopening = flow.reconnect.take();
        let ReconnectOptions { options, .. } =
            *reopening.expect("a flow of many connections has their options");
        Self {
            state: ResponderState::new(worker, flow),
            options,
            connection: None,
            socket_count: 1,
            received: 0,
            sent: 0,
        }
    }

    fn close<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> Progress {
        if let Some(connection) = self.connection.take() {
            transport.close(connection);
        }
        (self.received, self.sent) = (0, 0);
        Progress::Worked
    }

    fn respond<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        connection: S,
    ) -> io::Result<Progress> {
        let message = &mut self.state.buffer;
        if self.received < message.len() {
            let buffer = &mut message[self.received..];
            let received = transport.tcp_receive(connection, buffer.len(), |payload| {
                buffer[..payload.len()].copy_from_slice(payload);
                payload.len()
            });
            let Poll::Ready(bytes) = received else {
                return Ok(self.state.on_starved());
            };
            match bytes? {
                0 => return Ok(self.close(transport)),
                bytes => self.received += bytes,
            }
            if self.received < self.state.buffer.len() {
                return Ok(Progress::Worked);
            }
        }
        let rest = &self.state.buffer[self.sent..];
        let accepted = transport.tcp_send(connection, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
        });
        let Poll::Ready(accepted) = accepted else {
            return Ok(Progress::Starved(None));
        };
        self.sent += accepted?;
        if self.sent == self.state.buffer.len() {
            // Closes first, so that TIME_WAIT stays at this end's one port.
            self.close(transport);
            let bytes = self.state.buffer.len();
            self.state.count_response(bytes);
        }
        Ok(Progress::Worked)
    }
}

impl<T: Transport> Workload<T> for TcpAcceptor<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.state.worker.phase.is_aborted() {
            self.close(transport);
            return Ok(Progress::Done);
        }
        if let Some(connection) = self.connection {
            return Ok(match self.respond(transport, connection) {
                Ok(progress) => progress,
                // The client gave this connection up; the next one is unaffected.
                Err(_) => self.close(transport),
            });
        }
        match transport.accept(self.state.socket, &self.options) {
            Poll::Ready(Ok(connection)) => {
                self.connection = Some(connection);
                self.socket_count += 1;
                Ok(Progress::Worked)
            }
            Poll::Ready(Err(error)) => match error.kind() {
                // The client closed it before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {
                    Ok(Progress::Worked)
                }
                _ => Err(error),
            },
            Poll::Pending if self.state.shared.has_sender_ended() => Ok(Progress::Done),
            Poll::Pending => Ok(self.state.on_starved()),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.state.socket)
    }

    fn newest_socket(&self) -> Option<(u64, T::Socket)> {
        Some(match self.connection {
            Some(connection) => (self.socket_count, connection),
            None => (1, self.state.socket),
        })
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.state.finish(transport, error)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linerate_record::plan::{
        Direction, PerEnd, Plan, RunKind, SchedPolicy, SocketPlan, TransportProtocol, WaitMode,
    };
    use linerate_sys::cpu::ThreadEvents;
    use linerate_transport::flow_role::FlowRole;
    use linerate_transport::{PeerAddressing, RunClock};

    use super::*;
    use crate::flow::RunPhase;
    use crate::scripted_transport::ScriptedTransport;

    fn options() -> FlowOptions {
        FlowOptions {
            protocol: TransportProtocol::Tcp,
            local: None,
            interface: None,
            socket_plan: SocketPlan::default(),
            congestion_control: None,
            segment_bytes: None,
            gro: false,
            batch: None,
            zero_copy: false,
            receive_in_place: false,
            paced: false,
            max_rate: None,
            departure_clock: None,
            force_buffers: false,
            busy_poll: None,
            timeout: Duration::ZERO,
            addressing: PeerAddressing::Connected,
            multicast_hops: 1,
        }
    }

    /// Counts how often a thread sleeps that polls for connections for `time` and finds none.
    fn sleeps(rt_yield: bool, time: Duration) -> u64 {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "far");
        plan.payload_bytes = 64;
        plan.wait = Some(PerEnd::same(WaitMode::Spin));
        plan.sched = PerEnd::same(SchedPolicy::Fifo(1));
        plan.round_trip.rt_yield = rt_yield;
        let phase = RunPhase::default();
        let worker = WorkerContext {
            plan: &plan,
            direction: Direction::Send,
            role: FlowRole::Receiver,
            run_clock: RunClock {
                start_ns: 0,
                count_from_ns: 0,
                interval_ns: None,
                trace_stop_call_ns: None,
            },
            phase: &phase,
        };
        let flow = OpenFlow {
            histograms: Default::default(),
            id: 1,
            socket: (),
            shared: Default::default(),
            pattern: None,
            framing: Default::default(),
            reconnect: Some(Box::new(ReconnectOptions {
                remote: "127.0.0.1:9".parse().unwrap(),
                options: options(),
            })),
        };
        let mut transport = ScriptedTransport::with_delay(0);
        let mut acceptor = TcpAcceptor::new(&worker, flow);
        let before = ThreadEvents::read().voluntary_switches;
        let end = clock::now() + time.as_nanos() as Nanos;
        while clock::now() < end {
            let progress = acceptor.step(&mut transport).unwrap();
            assert!(matches!(progress, Progress::Starved(None)));
        }
        ThreadEvents::read().voluntary_switches - before
    }

    #[test]
    fn a_real_time_thread_that_looks_for_connections_pauses() {
        let time = Duration::from_millis(200);
        // One pause in 5 to 10 ms; without pauses hardly any.
        let (plain, yielding) = (sleeps(false, time), sleeps(true, time));
        assert!(
            yielding > plain && yielding <= plain + 45,
            "{plain} {yielding}"
        );
    }
}
