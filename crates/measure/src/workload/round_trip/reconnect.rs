//! A socket per request: opened, bound if requested, connected, used once, closed.
//!
//! Over TCP the responding end closes first, so that TIME_WAIT stays at its one port and uses up
//! no ports of the requesting end.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Protocol;

use super::request_tracker::{Answer, Questions, Verdict, judge};
use crate::flow::FlowOutcome;
use crate::transport::{FlowOptions, Transport};
use crate::workload::histogram_pool::Room;
use crate::workload::{Lane, Opened, Progress, Reopening, Workload};

/// Pause before the next try to get a local port.
const PORT_PAUSE_NS: Nanos = 1_000_000;

/// Pause after a connection was refused or reset.
const BROKEN_PAUSE_NS: Nanos = 1_000_000;

/// EADDRNOTAVAIL, "Cannot assign requested address": no local port is free.
const EADDRNOTAVAIL: i32 = 99;

/// Histograms of the steps of a round trip, of all flows of a thread.
pub struct Steps {
    open: Histogram,
    bind: Histogram,
    connect: Histogram,
    send: Histogram,
    receive: Histogram,
    close: Histogram,
    whole: Histogram,
}

/// Times of the steps of the current round trip.
#[derive(Clone, Copy, Default)]
struct Marks {
    begun: Nanos,
    opened: Nanos,
    bound: Nanos,
    connected: Nanos,
    asked: Nanos,
    sent: Nanos,
    answered: Nanos,
}

impl Steps {
    /// Takes the histograms of the first flow of a thread.
    pub fn of(room: &mut Room) -> Self {
        Self {
            open: room.beside(),
            bind: room.beside(),
            connect: room.beside(),
            send: room.beside(),
            receive: room.beside(),
            close: room.beside(),
            whole: room.beside(),
        }
    }

    fn record(&mut self, marks: &Marks, binds: bool, closed: Nanos) {
        self.open.record(marks.opened.saturating_sub(marks.begun));
        if binds {
            self.bind.record(marks.bound.saturating_sub(marks.opened));
        }
        let connect = marks.connected.saturating_sub(marks.bound);
        self.connect.record(connect);
        self.send.record(marks.sent.saturating_sub(marks.asked));
        self.receive
            .record(marks.answered.saturating_sub(marks.sent));
        self.close.record(closed.saturating_sub(marks.answered));
        self.whole.record(closed.saturating_sub(marks.begun));
    }

    fn named(self) -> Vec<(&'static str, Histogram)> {
        vec![
            ("open_ns", self.open),
            ("bind_ns", self.bind),
            ("connect_ns", self.connect),
            ("send_ns", self.send),
            ("receive_ns", self.receive),
            ("close_ns", self.close),
            ("whole_ns", self.whole),
        ]
    }
}

/// State of a round trip.
#[derive(Clone, Copy)]
enum Step {
    /// No socket is open; the next one is opened from this time on.
    Nothing(Nanos),
    Connecting,
    Sending(usize),
    Waiting {
        received: usize,
        right: bool,
    },
    /// TCP: the response is complete, the end of the stream is awaited.
    Ending(Verdict),
}

/// Sends each request over a socket of its own.
pub struct Reopener<'a, S> {
    questions: Questions<'a>,
    protocol: Protocol,
    remote: SocketAddr,
    local: Option<SocketAddr>,
    options: FlowOptions,
    /// Socket opened before the start, then the one in use.
    socket: Option<S>,
    step: Step,
    marks: Marks,
    number: u64,
    /// Number of sockets so far.
    sockets: u64,
    steps: Rc<RefCell<Steps>>,
}

impl<'a, S: Copy> Reopener<'a, S> {
    pub fn new(lane: &'a Lane<'a>, mut flow: Opened<S>, steps: Rc<RefCell<Steps>>) -> Self {
        let questions = Questions::new(lane, &mut flow);
        let Reopening { remote, options } = *flow
            .reopening
            .expect("a flow that opens its sockets anew knows how");
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let protocol = lane.plan.protocol;
        let local = match (options.local, protocol) {
            // A port cannot be reused at once, so only the address is kept.
            (Some(local), _) => Some(SocketAddr::new(local.ip(), 0)),
            // As most programs do; so this step is measured, too.
            (None, Protocol::Udp) => Some(SocketAddr::new(any, 0)),
            // Binding would reserve a port against all destinations; `connect` chooses one.
            (None, Protocol::Tcp) => None,
        };
        Self {
            questions: match protocol {
                Protocol::Udp => questions.with_numbers(),
                Protocol::Tcp => questions,
            },
            protocol,
            remote,
            local,
            options,
            socket: Some(flow.socket),
            step: Step::Nothing(0),
            marks: Marks::default(),
            number: 0,
            sockets: 0,
            steps,
        }
    }

    fn socket(&self) -> S {
        self.socket.expect("a step that uses a socket has one")
    }

    fn close<T: Transport<Socket = S>>(&mut self, transport: &mut T) {
        if let Some(socket) = self.socket.take() {
            transport.close(socket);
        }
        self.step = Step::Nothing(0);
    }

    /// Opens the next socket and starts to connect it.
    fn open<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<()> {
        self.close(transport);
        self.marks.begun = T::clock();
        let socket = transport.open(self.remote, &self.options)?;
        self.socket = Some(socket);
        self.sockets += 1;
        self.marks.opened = T::clock();
        self.marks.bound = self.marks.opened;
        if let Some(local) = self.local {
            transport.bind(socket, local)?;
            self.marks.bound = T::clock();
        }
        self.step = Step::Connecting;
        Ok(())
    }

    /// Waits for a free local port.
    fn without_port<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> Progress {
        self.close(transport);
        self.questions.ports_waited += 1;
        let due = T::clock() + PORT_PAUSE_NS;
        self.step = Step::Nothing(due);
        Progress::Starved(Some(due))
    }

    fn send<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        sent: usize,
    ) -> io::Result<bool> {
        let socket = self.socket();
        let number = self.number;
        let rest = &self.questions.message[sent..];
        let mut asked_ns = 0;
        let taken = match self.protocol {
            Protocol::Udp => transport.udp_send(socket, rest.len(), |payload| {
                payload.copy_from_slice(rest);
                asked_ns = T::clock();
                wire::write_header(payload, number, asked_ns);
            }),
            Protocol::Tcp => transport.tcp_send(socket, rest.len(), |payload| {
                payload.copy_from_slice(&rest[..payload.len()]);
                asked_ns = T::clock();
            }),
        };
        let Poll::Ready(taken) = taken else {
            return Ok(false);
        };
        let taken = taken?;
        self.marks.sent = T::clock();
        if sent == 0 {
            self.marks.asked = asked_ns;
            if self.protocol == Protocol::Udp {
                wire::write_header(&mut self.questions.message, number, asked_ns);
            }
        }
        let sent = sent + taken;
        self.step = match sent < self.questions.message.len() {
            true => Step::Sending(sent),
            false => Step::Waiting {
                received: 0,
                right: true,
            },
        };
        Ok(true)
    }

    /// Receives what is available of the response; returns the comparison once it is complete.
    fn receive<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        received: usize,
        right: bool,
    ) -> io::Result<Option<Verdict>> {
        let (socket, number) = (self.socket(), self.number);
        let (question, verify) = (&self.questions.message, self.questions.verify);
        if self.protocol == Protocol::Udp {
            let answer = transport.udp_receive(socket, |payload, _| {
                (T::clock(), judge(payload, question, number, verify))
            });
            let Poll::Ready(answer) = answer else {
                return Ok(None);
            };
            return Ok(match answer? {
                (now, Answer::Due(verdict)) => {
                    self.marks.answered = now;
                    Some(verdict)
                }
                (_, Answer::Earlier(number)) => {
                    self.questions.came_again(number);
                    None
                }
                (_, Answer::Greeting) => None,
            });
        }
        let answer = transport.tcp_receive(socket, question.len() - received, |payload| {
            let now = T::clock();
            let expected = &question[received..received + payload.len()];
            (now, payload.len(), !verify || payload == expected)
        });
        let Poll::Ready(answer) = answer else {
            return Ok(None);
        };
        let (now, bytes, same) = answer?;
        if bytes == 0 {
            // The connection ended before the response: too short.
            self.marks.answered = now;
            return Ok(Some(Verdict::WrongLength));
        }
        let (received, right) = (received + bytes, right && same);
        self.step = Step::Waiting { received, right };
        if received < question.len() {
            return Ok(None);
        }
        self.marks.answered = now;
        Ok(Some(match right {
            true => Verdict::Right,
            false => Verdict::WrongContent,
        }))
    }

    /// Closes the socket and counts the round trip.
    fn finish<T: Transport<Socket = S>>(&mut self, transport: &mut T, verdict: Verdict) {
        self.close(transport);
        let closed = T::clock();
        if self.marks.answered >= self.questions.lane.timeline.count_from_ns {
            let mut steps = self.steps.borrow_mut();
            steps.record(&self.marks, self.local.is_some(), closed);
        }
        let (asked, answered) = (self.marks.asked, self.marks.answered);
        self.questions
            .answered(transport, None, self.number, asked, answered, verdict);
    }

    /// Counts a refused or reset connection as a missing response.
    fn broken_off<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> Progress {
        self.close(transport);
        if self.questions.lane.phase.is_interrupted() {
            return Progress::Done;
        }
        let now = T::clock();
        self.questions.broken += 1;
        self.questions.missed(self.number, now);
        // Paused, because a server that refuses one connection refuses the next at once.
        let due = now + BROKEN_PAUSE_NS;
        self.step = Step::Nothing(due);
        Progress::Starved(Some(due))
    }

    /// Advances the connection as far as possible without waiting.
    fn go_on<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Progress> {
        if let Step::Nothing(due) = self.step {
            if self.questions.is_over() {
                self.close(transport);
                return Ok(Progress::Done);
            }
            if due > 0 && T::clock() < due {
                return Ok(Progress::Starved(Some(due)));
            }
            self.questions.breathe();
            self.number = self.questions.number_message();
            match self.open(transport) {
                Err(error) if error.raw_os_error() == Some(EADDRNOTAVAIL) => {
                    return Ok(self.without_port(transport));
                }
                opened => opened?,
            }
        }
        if let Step::Connecting = self.step {
            match transport.begin_connect(self.socket(), self.remote) {
                Poll::Ready(Ok(())) => {
                    self.marks.connected = T::clock();
                    self.step = Step::Sending(0);
                }
                Poll::Ready(Err(error)) if error.raw_os_error() == Some(EADDRNOTAVAIL) => {
                    return Ok(self.without_port(transport));
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {}
            }
        }
        if let Step::Sending(sent) = self.step
            && self.send(transport, sent)?
            && matches!(self.step, Step::Sending(_))
        {
            return Ok(Progress::Worked);
        }
        if let Step::Waiting { received, right } = self.step {
            match self.receive(transport, received, right) {
                Ok(Some(verdict)) if self.protocol == Protocol::Udp => {
                    self.finish(transport, verdict);
                    return Ok(Progress::Worked);
                }
                Ok(Some(verdict)) => self.step = Step::Ending(verdict),
                Ok(None) if matches!(self.step, Step::Waiting { received: now, .. } if now > received) =>
                {
                    return Ok(Progress::Worked);
                }
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        if let Step::Ending(verdict) = self.step {
            match transport.tcp_receive(self.socket(), 1, |payload| payload.len()) {
                // More than the response arrived.
                Poll::Ready(Ok(1)) => {
                    self.finish(transport, Verdict::WrongLength);
                    return Ok(Progress::Worked);
                }
                Poll::Ready(_) => {
                    self.finish(transport, verdict);
                    return Ok(Progress::Worked);
                }
                Poll::Pending => {}
            }
        }
        let now = T::clock();
        self.questions.passed(now);
        if now >= self.marks.begun + self.questions.timeout_ns {
            // Timed out in any of the steps.
            self.close(transport);
            self.questions.missed(self.number, now);
            return Ok(Progress::Worked);
        }
        if self.questions.lets_go(self.marks.begun, now) {
            self.close(transport);
            return Ok(Progress::Done);
        }
        Ok(Progress::Starved(None))
    }
}

/// Returns whether an error ends one connection and not the run: refused, reset or unreachable.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
    )
}

impl<T: Transport> Workload<T> for Reopener<'_, T::Socket> {
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match self.go_on(transport) {
            Err(error) if is_of_the_connection(&error) => Ok(self.broken_off(transport)),
            result => result,
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        self.socket
    }

    fn newest(&self) -> Option<(u64, T::Socket)> {
        Some((self.sockets, self.socket?))
    }

    fn outcome(mut self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        // The last flow of the thread reports the steps of all.
        if let Some(steps) = Rc::into_inner(self.steps) {
            self.questions.more = steps.into_inner().named();
        }
        self.questions.outcome(transport, self.socket, error)
    }
}
