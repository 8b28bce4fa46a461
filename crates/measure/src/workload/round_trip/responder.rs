//! Responding end: echoes every request.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_host::sys::clock::{self, Nanos};

use super::rt_yield::Breath;
use crate::flow::{FlowOutcome, Shared, Timing, is_greeting};
use crate::flow_counters::Totals;
use crate::transport::{Echoed, FlowOptions, Transport};
use crate::workload::{Lane, Opened, Progress, Reopening, Workload};

/// State and figures of a responding flow.
struct Answers<'a, S> {
    lane: &'a Lane<'a>,
    id: u32,
    socket: S,
    shared: Arc<Shared>,
    totals: Totals,
    message: Vec<u8>,
    breath: Option<(Breath, Nanos)>,
}

impl<'a, S: Copy> Answers<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            lane,
            id: flow.id,
            socket: flow.socket,
            shared: flow.shared,
            totals: Totals::default(),
            message: vec![0; lane.plan.payload_bytes as usize],
            breath: Breath::of(lane).map(|breath| (breath, clock::now())),
        }
    }

    #[inline]
    fn answered(&mut self, bytes: usize) {
        self.totals.packets += 1;
        self.totals.calls += 1;
        self.totals.bytes += bytes as u64;
        self.shared.meter.publish(&self.totals);
        if let Some((_, answered_ns)) = &mut self.breath {
            *answered_ns = clock::now();
        }
    }

    /// Called when no request is waiting.
    #[inline]
    fn starved(&mut self) -> Progress {
        if let Some((breath, answered_ns)) = &mut self.breath {
            breath.without_question(*answered_ns);
        }
        Progress::Starved(None)
    }

    fn outcome<T: Transport<Socket = S>>(
        self,
        transport: &T,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        FlowOutcome {
            timing: Timing::default(),
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence: None,
            times: None,
            mismatched: 0,
            first_mismatch: None,
            log: None,
            facts: transport.facts(self.socket),
            ended_ns: transport.now(),
            error,
            asking: None,
        }
    }
}

/// Echoes every datagram.
pub struct UdpResponder<'a, S> {
    answers: Answers<'a, S>,
    /// Bytes of a response that could not be sent yet.
    pending: Option<usize>,
}

impl<'a, S: Copy> UdpResponder<'a, S> {
    pub fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            answers: Answers::new(lane, flow),
            pending: None,
        }
    }
}

impl<T: Transport> Workload<T> for UdpResponder<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let answers = &mut self.answers;
        let socket = answers.socket;
        let echoed = match self.pending.take() {
            Some(bytes) => {
                let message = &answers.message[..bytes];
                let sent = transport.udp_send(socket, bytes, |payload| {
                    payload.copy_from_slice(message);
                });
                match sent {
                    Poll::Ready(sent) => Echoed::Sent(sent?),
                    Poll::Pending => Echoed::Full(bytes),
                }
            }
            None => {
                // A repeated flow opening was answered when the flow opened.
                let room = &mut answers.message;
                match transport.udp_echo(socket, room, |message| !is_greeting(message)) {
                    Poll::Ready(echoed) => echoed?,
                    Poll::Pending => {
                        let over = answers.lane.phase.is_aborted() || answers.shared.is_over();
                        return Ok(if over {
                            Progress::Done
                        } else {
                            answers.starved()
                        });
                    }
                }
            }
        };
        match echoed {
            Echoed::Ignored => Ok(Progress::Worked),
            // A response that cannot be sent, as over a link that is down, must not delay the end.
            Echoed::Full(_) if answers.lane.phase.is_aborted() || answers.shared.is_over() => {
                Ok(Progress::Done)
            }
            Echoed::Full(bytes) => {
                self.pending = Some(bytes);
                Ok(Progress::Starved(None))
            }
            Echoed::Sent(bytes) => {
                answers.answered(bytes);
                if answers.lane.phase.is_aborted() {
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.answers.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.answers.outcome(transport, error)
    }
}

/// Echoes every complete message of a stream.
pub struct TcpResponder<'a, S> {
    answers: Answers<'a, S>,
    received: usize,
    sent: usize,
}

impl<'a, S: Copy> TcpResponder<'a, S> {
    pub fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            answers: Answers::new(lane, flow),
            received: 0,
            sent: 0,
        }
    }
}

impl<T: Transport> Workload<T> for TcpResponder<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        let answers = &mut self.answers;
        if self.received < answers.message.len() {
            let room = &mut answers.message[self.received..];
            let received = transport.tcp_receive(answers.socket, room.len(), |payload| {
                room[..payload.len()].copy_from_slice(payload);
                payload.len()
            });
            match received {
                Poll::Ready(bytes) => match bytes? {
                    0 => return Ok(Progress::Done),
                    bytes => self.received += bytes,
                },
                Poll::Pending if answers.lane.phase.is_aborted() => return Ok(Progress::Done),
                Poll::Pending => return Ok(answers.starved()),
            }
            if self.received < answers.message.len() {
                return Ok(Progress::Worked);
            }
        }
        let rest = &answers.message[self.sent..];
        let taken = transport.tcp_send(answers.socket, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
        });
        match taken {
            Poll::Pending if answers.lane.phase.is_aborted() => Ok(Progress::Done),
            Poll::Pending => Ok(Progress::Starved(None)),
            Poll::Ready(_) if answers.lane.phase.is_aborted() => Ok(Progress::Done),
            Poll::Ready(taken) => {
                self.sent += taken?;
                if self.sent == answers.message.len() {
                    answers.answered(self.sent);
                    self.received = 0;
                    self.sent = 0;
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.answers.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.answers.outcome(transport, error)
    }
}

/// Accepts a connection for each request, responds, and closes it.
pub struct TcpAcceptor<'a, S> {
    answers: Answers<'a, S>,
    options: FlowOptions,
    connection: Option<S>,
    /// Number of sockets so far: the listener, then the connections.
    sockets: u64,
    received: usize,
    sent: usize,
}

impl<'a, S: Copy> TcpAcceptor<'a, S> {
    pub fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        let reopening = flow.reopening.take();
        let Reopening { options, .. } =
            *reopening.expect("a flow of many connections knows their options");
        Self {
            answers: Answers::new(lane, flow),
            options,
            connection: None,
            sockets: 1,
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

    fn serve<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        connection: S,
    ) -> io::Result<Progress> {
        let message = &mut self.answers.message;
        if self.received < message.len() {
            let room = &mut message[self.received..];
            let received = transport.tcp_receive(connection, room.len(), |payload| {
                room[..payload.len()].copy_from_slice(payload);
                payload.len()
            });
            let Poll::Ready(bytes) = received else {
                return Ok(self.answers.starved());
            };
            match bytes? {
                0 => return Ok(self.close(transport)),
                bytes => self.received += bytes,
            }
            if self.received < self.answers.message.len() {
                return Ok(Progress::Worked);
            }
        }
        let rest = &self.answers.message[self.sent..];
        let taken = transport.tcp_send(connection, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
        });
        let Poll::Ready(taken) = taken else {
            return Ok(Progress::Starved(None));
        };
        self.sent += taken?;
        if self.sent == self.answers.message.len() {
            // Closes first, so that TIME_WAIT stays at this end's one port.
            self.close(transport);
            let bytes = self.answers.message.len();
            self.answers.answered(bytes);
        }
        Ok(Progress::Worked)
    }
}

impl<T: Transport> Workload<T> for TcpAcceptor<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.answers.lane.phase.is_aborted() {
            self.close(transport);
            return Ok(Progress::Done);
        }
        if let Some(connection) = self.connection {
            return Ok(match self.serve(transport, connection) {
                Ok(progress) => progress,
                // The client gave this connection up; the next one is unaffected.
                Err(_) => self.close(transport),
            });
        }
        match transport.accept(self.answers.socket, &self.options) {
            Poll::Ready(Ok(connection)) => {
                self.connection = Some(connection);
                self.sockets += 1;
                Ok(Progress::Worked)
            }
            Poll::Ready(Err(error)) => match error.kind() {
                // The client closed it before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {
                    Ok(Progress::Worked)
                }
                _ => Err(error),
            },
            Poll::Pending if self.answers.shared.is_over() => Ok(Progress::Done),
            Poll::Pending => Ok(self.answers.starved()),
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.answers.socket)
    }

    fn newest(&self) -> Option<(u64, T::Socket)> {
        Some(match self.connection {
            Some(connection) => (self.sockets, connection),
            None => (1, self.answers.socket),
        })
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.answers.outcome(transport, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Part, Phase, Timeline};
    use crate::transport::Correspondent;
    use crate::workload::scripted_transport::Far;
    use linerate_host::sys::cpu::ThreadEvents;
    use linerate_metric::plan::{Direction, Ends, Kind, Plan, Protocol, Sched, SocketPlan, Wait};
    use std::time::Duration;

    fn options() -> FlowOptions {
        FlowOptions {
            protocol: Protocol::Tcp,
            local: None,
            interface: None,
            socket: SocketPlan::default(),
            congestion_control: None,
            segment_bytes: None,
            coalesce: false,
            batch: None,
            zero_copy: false,
            discard: false,
            paced: false,
            max_rate: None,
            departure_clock: None,
            force_buffers: false,
            busy_poll: None,
            patience: Duration::ZERO,
            correspondent: Correspondent::Connected,
            group_hops: 1,
        }
    }

    /// Counts how often a thread sleeps that polls for connections for `time` and finds none.
    fn sleeps(rt_yield: bool, time: Duration) -> u64 {
        let mut plan = Plan::new(Kind::Latency, Protocol::Tcp, "far");
        plan.payload_bytes = 64;
        plan.wait = Some(Ends::both(Wait::Spin));
        plan.sched = Ends::both(Sched::Fifo(1));
        plan.round_trip.rt_yield = rt_yield;
        let phase = Phase::default();
        let lane = Lane {
            plan: &plan,
            direction: Direction::Send,
            part: Part::Sink,
            timeline: Timeline {
                start_ns: 0,
                count_from_ns: 0,
                interval_ns: None,
                trace_on_ns: None,
            },
            phase: &phase,
        };
        let flow = Opened {
            room: Default::default(),
            id: 1,
            socket: (),
            shared: Default::default(),
            pattern: None,
            framing: Default::default(),
            reopening: Some(Box::new(Reopening {
                remote: "127.0.0.1:9".parse().unwrap(),
                options: options(),
            })),
        };
        let mut transport = Far::after(0);
        let mut acceptor = TcpAcceptor::new(&lane, flow);
        let before = ThreadEvents::now().voluntary_switches;
        let end = clock::now() + time.as_nanos() as Nanos;
        while clock::now() < end {
            let progress = acceptor.step(&mut transport).unwrap();
            assert!(matches!(progress, Progress::Starved(None)));
        }
        ThreadEvents::now().voluntary_switches - before
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
