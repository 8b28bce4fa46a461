//! Latency: questions and answers, one at a time on each flow (closed loop).

use std::io;
use std::sync::Arc;
use std::task::Poll;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::Protocol;

use super::{Lane, Opened, Progress, Workload, drive};
use crate::flow::{FlowOutcome, Part, Shared, is_greeting};
use crate::meter::Totals;
use crate::transport::Transport;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    lane: &Lane<'_>,
    transport: &mut T,
    flows: Vec<Opened<T::Socket>>,
) -> Vec<FlowOutcome> {
    match (lane.plan.protocol, lane.part) {
        (Protocol::Udp, Part::Source) => {
            let flows = flows.into_iter().map(|flow| UdpAsker::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Tcp, Part::Source) => {
            let flows = flows.into_iter().map(|flow| TcpAsker::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Udp, Part::Sink) => {
            let flows = flows.into_iter().map(|flow| UdpResponder::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Tcp, Part::Sink) => {
            let flows = flows.into_iter().map(|flow| TcpResponder::new(lane, flow));
            drive(transport, flows.collect())
        }
    }
}

/// The question that waits for its answer, and the account of those that got one.
struct Questions<'a> {
    lane: &'a Lane<'a>,
    id: u32,
    shared: Arc<Shared>,
    message: Vec<u8>,
    left: u64,
    timeout_ns: Nanos,
    totals: Totals,
    mismatched: u64,
    ended_ns: Nanos,
    times: Histogram,
    /// Times of the running interval; handed over at its end.
    recent: Histogram,
    intervals_ended: u64,
    interval_ends_ns: Nanos,
}

impl<'a> Questions<'a> {
    fn new<S>(lane: &'a Lane<'a>, flow: &Opened<S>) -> Self {
        let plan = lane.plan;
        let mut mailbox = flow.shared.mailbox.lock().expect("no holder panics");
        mailbox.times = Some(Histogram::new());
        drop(mailbox);
        // Content that differs from byte to byte, so that a shifted answer is told.
        let message = (0..plan.payload_bytes).map(|n| (n % 251) as u8).collect();
        Self {
            lane,
            id: flow.id,
            shared: Arc::clone(&flow.shared),
            message,
            left: (plan.round_trips).map_or(u64::MAX, |trips| lane.share(trips, flow.id)),
            timeout_ns: plan.answer_timeout_ns.unwrap_or(1_000_000_000),
            totals: Totals::default(),
            mismatched: 0,
            ended_ns: lane.timeline.start_ns,
            times: Histogram::new(),
            recent: Histogram::new(),
            intervals_ended: 0,
            interval_ends_ns: lane
                .timeline
                .interval_end(lane.timeline.start_ns)
                .unwrap_or(Nanos::MAX),
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.lane.phase.is_ending()
    }

    /// Writes the number of the next question into its message.
    fn number_message(&mut self) -> u64 {
        let number = self.totals.calls;
        if self.message.len() >= wire::HEADER_BYTES {
            // A datagram is stamped with the time that is read as it leaves.
            wire::write_header(&mut self.message, number, 0);
        } else {
            let short = short_number(number, self.message.len());
            self.message[..short.len].copy_from_slice(&short.bytes[8 - short.len..]);
        }
        number
    }

    /// Hands over the times of intervals that have ended.
    fn turn_interval(&mut self, now: Nanos) {
        if now < self.interval_ends_ns {
            return;
        }
        while now >= self.interval_ends_ns {
            let next = self.lane.timeline.interval_end(self.interval_ends_ns);
            self.interval_ends_ns = next.unwrap_or(Nanos::MAX);
            self.intervals_ended += 1;
        }
        let mut mailbox = self.shared.mailbox.lock().expect("no holder panics");
        mailbox.intervals_ended = self.intervals_ended;
        if let Some(times) = &mut mailbox.times {
            times.add(&self.recent);
        }
        drop(mailbox);
        self.recent.clear();
    }

    /// Notes an answer that came in time.
    #[inline]
    fn answered(&mut self, asked_ns: Nanos, answered_ns: Nanos, right: bool) {
        if answered_ns >= self.interval_ends_ns {
            self.turn_interval(answered_ns);
        }
        let time = answered_ns - asked_ns;
        self.recent.record(time);
        if answered_ns >= self.lane.timeline.count_from_ns {
            self.times.record(time);
            self.mismatched += u64::from(!right);
        }
        self.totals.packets += 1;
        self.totals.bytes += self.message.len() as u64;
        self.asked(answered_ns);
    }

    /// Notes that no answer came in time.
    fn missed(&mut self, now: Nanos) {
        self.turn_interval(now);
        self.totals.missing += 1;
        self.asked(now);
    }

    #[inline]
    fn asked(&mut self, now: Nanos) {
        self.totals.calls += 1;
        self.left = self.left.saturating_sub(1);
        self.ended_ns = now;
        self.shared.meter.publish(&self.totals);
    }

    fn outcome<T: Transport>(
        mut self,
        transport: &T,
        socket: T::Socket,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        // What the last, shortened interval holds is handed over too.
        let mut mailbox = self.shared.mailbox.lock().expect("no holder panics");
        if let Some(times) = &mut mailbox.times {
            times.add(&self.recent);
        }
        mailbox.intervals_ended = u64::MAX;
        drop(mailbox);
        self.recent.clear();
        FlowOutcome {
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence: None,
            times: Some(self.times),
            mismatched: self.mismatched,
            facts: transport.facts(socket),
            ended_ns: match error {
                Some(_) => transport.now(),
                None => self.ended_ns,
            },
            error,
        }
    }
}

/// Asks with datagrams.
struct UdpAsker<'a, S> {
    questions: Questions<'a>,
    socket: S,
    /// When the open question left, and its number.
    open: Option<(Nanos, u64)>,
}

/// A number in a message too short for a header: as many of its low bytes as fit tell neighbours
/// apart.
struct Short {
    bytes: [u8; 8],
    len: usize,
}

fn short_number(number: u64, message_bytes: usize) -> Short {
    Short {
        bytes: number.to_be_bytes(),
        len: message_bytes.min(8),
    }
}

/// How far back a number in a short message is looked for before its answer counts as wrong.
const SHORT_WINDOW: u64 = 64;

/// Whether a payload without a header answers a question that was given up.
fn is_stale_short(payload: &[u8], question: &[u8], number: u64) -> bool {
    let len = question.len().min(8);
    if payload.len() != question.len() || payload[len..] != question[len..] {
        return false;
    }
    (1..=number.min(SHORT_WINDOW)).any(|back| {
        let earlier = short_number(number - back, question.len());
        payload[..len] == earlier.bytes[8 - len..]
    })
}

/// What a datagram turned out to be.
enum Answer {
    Right,
    Wrong,
    /// The answer to a question that was given up, or a repeated greeting.
    Stale,
}

fn judge(payload: &[u8], question: &[u8], number: u64) -> Answer {
    if payload == question {
        return Answer::Right;
    }
    if is_greeting(payload) {
        return Answer::Stale;
    }
    if question.len() < wire::HEADER_BYTES {
        return if is_stale_short(payload, question, number) {
            Answer::Stale
        } else {
            Answer::Wrong
        };
    }
    match wire::read_header(payload) {
        Some(header) if header.sequence < number => Answer::Stale,
        _ => Answer::Wrong,
    }
}

impl<'a, S: Copy> UdpAsker<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            questions: Questions::new(lane, &flow),
            socket: flow.socket,
            open: None,
        }
    }

    fn ask<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Option<Progress>> {
        if self.questions.is_over() {
            return Ok(Some(Progress::Done));
        }
        let number = self.questions.number_message();
        let message = &self.questions.message;
        let mut asked_ns = 0;
        let sent = transport.udp_send(self.socket, message.len(), |payload| {
            payload.copy_from_slice(message);
            // After the copy: filling the message is not part of the round trip.
            asked_ns = T::clock();
            wire::write_header(payload, number, asked_ns);
        });
        match sent {
            Poll::Pending => Ok(Some(Progress::Starved(None))),
            Poll::Ready(sent) => {
                sent?;
                // The answer is compared with what left.
                wire::write_header(&mut self.questions.message, number, asked_ns);
                self.open = Some((asked_ns, number));
                Ok(None)
            }
        }
    }
}

impl<T: Transport> Workload<T> for UdpAsker<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.open.is_none()
            && let Some(progress) = self.ask(transport)?
        {
            return Ok(progress);
        }
        let Some((asked_ns, number)) = self.open else {
            return Ok(Progress::Worked);
        };
        let question = &self.questions.message;
        let received = transport.udp_receive(self.socket, |payload, _| {
            // Before the comparison: it is not part of the round trip.
            (T::clock(), judge(payload, question, number))
        });
        let (now, nothing_came) = match received {
            Poll::Ready(received) => match received? {
                (now, Answer::Stale) => (now, false),
                (now, answer) => {
                    self.open = None;
                    let right = matches!(answer, Answer::Right);
                    self.questions.answered(asked_ns, now, right);
                    return Ok(Progress::Worked);
                }
            },
            Poll::Pending => (T::clock(), true),
        };
        if now >= asked_ns + self.questions.timeout_ns {
            self.open = None;
            self.questions.missed(now);
            return Ok(Progress::Worked);
        }
        // An interrupted run does not wait for its last answer; it counts neither way.
        if nothing_came && self.questions.lane.phase.is_ending() {
            return Ok(Progress::Done);
        }
        Ok(Progress::Starved(None))
    }

    fn socket(&self) -> T::Socket {
        self.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.questions.outcome(transport, self.socket, error)
    }
}

/// Asks over a stream.
struct TcpAsker<'a, S> {
    questions: Questions<'a>,
    socket: S,
    state: Asking,
    /// The open question was counted as missed while it was still being sent.
    given_up: bool,
}

/// How far a question on a stream has come.
#[derive(Clone, Copy)]
enum Asking {
    Nothing,
    Sending {
        asked_ns: Nanos,
        sent: usize,
    },
    Waiting {
        asked_ns: Nanos,
        received: usize,
        right: bool,
        /// Its time is over and it was counted as lost; the stream has to be read past it.
        late: bool,
    },
}

impl<'a, S: Copy> TcpAsker<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
        Self {
            questions: Questions::new(lane, &flow),
            socket: flow.socket,
            state: Asking::Nothing,
            given_up: false,
        }
    }

    fn send<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        asked_ns: Nanos,
        sent: usize,
    ) -> io::Result<Progress> {
        let rest = &self.questions.message[sent..];
        let mut filled_ns = 0;
        let taken = transport.tcp_send(self.socket, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
            filled_ns = T::clock();
        });
        let asked_ns = if sent == 0 { filled_ns } else { asked_ns };
        match taken {
            // A peer that does not read: an interrupted run does not wait for it.
            Poll::Pending if self.questions.lane.phase.is_ending() => Ok(Progress::Done),
            Poll::Pending => {
                if sent > 0 || matches!(self.state, Asking::Sending { .. }) {
                    self.give_up_when_late(T::clock(), asked_ns);
                }
                Ok(Progress::Starved(None))
            }
            Poll::Ready(taken) => {
                let sent = sent + taken?;
                self.state = if sent == self.questions.message.len() {
                    Asking::Waiting {
                        asked_ns,
                        received: 0,
                        right: true,
                        late: std::mem::take(&mut self.given_up),
                    }
                } else {
                    Asking::Sending { asked_ns, sent }
                };
                Ok(Progress::Worked)
            }
        }
    }
}

impl<S: Copy> TcpAsker<'_, S> {
    /// Counts a question that cannot even be sent as missed, once.
    fn give_up_when_late(&mut self, now: Nanos, asked_ns: Nanos) {
        if !self.given_up && now >= asked_ns + self.questions.timeout_ns {
            self.given_up = true;
            self.questions.missed(now);
        }
    }
}

impl<T: Transport> Workload<T> for TcpAsker<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match self.state {
            Asking::Nothing => {
                if self.questions.is_over() {
                    transport.finish_sending(self.socket)?;
                    return Ok(Progress::Done);
                }
                self.questions.number_message();
                self.send(transport, 0, 0)?;
            }
            Asking::Sending { asked_ns, sent } => return self.send(transport, asked_ns, sent),
            Asking::Waiting { .. } => {}
        }
        let Asking::Waiting {
            asked_ns,
            received,
            right,
            late,
        } = self.state
        else {
            return Ok(Progress::Starved(None));
        };
        let question = &self.questions.message;
        let answer = transport.tcp_receive(self.socket, question.len() - received, |payload| {
            let now = T::clock();
            let expected = &question[received..received + payload.len()];
            (now, payload.len(), payload == expected)
        });
        match answer {
            Poll::Ready(answer) => {
                let (now, bytes, same) = answer?;
                if bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let received = received + bytes;
                let right = right && same;
                if received < question.len() {
                    self.state = Asking::Waiting {
                        asked_ns,
                        received,
                        right,
                        late,
                    };
                    return Ok(Progress::Worked);
                }
                self.state = Asking::Nothing;
                if !late {
                    self.questions.answered(asked_ns, now, right);
                }
                Ok(Progress::Worked)
            }
            Poll::Pending => {
                let now = T::clock();
                if !late && now >= asked_ns + self.questions.timeout_ns {
                    self.questions.missed(now);
                    self.state = Asking::Waiting {
                        asked_ns,
                        received,
                        right,
                        late: true,
                    };
                }
                if self.questions.is_over() && (late || self.questions.lane.phase.is_ending()) {
                    transport.finish_sending(self.socket)?;
                    return Ok(Progress::Done);
                }
                Ok(Progress::Starved(None))
            }
        }
    }

    fn socket(&self) -> T::Socket {
        self.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.questions.outcome(transport, self.socket, error)
    }
}

/// Figures of an answering end.
struct Answers<'a, S> {
    lane: &'a Lane<'a>,
    id: u32,
    socket: S,
    shared: Arc<Shared>,
    totals: Totals,
    message: Vec<u8>,
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
        }
    }

    #[inline]
    fn answered(&mut self, bytes: usize) {
        self.totals.packets += 1;
        self.totals.calls += 1;
        self.totals.bytes += bytes as u64;
        self.shared.meter.publish(&self.totals);
    }

    fn outcome<T: Transport<Socket = S>>(
        self,
        transport: &T,
        error: Option<io::Error>,
    ) -> FlowOutcome {
        FlowOutcome {
            id: self.id,
            direction: self.lane.direction,
            part: self.lane.part,
            totals: self.totals,
            sequence: None,
            times: None,
            mismatched: 0,
            facts: transport.facts(self.socket),
            ended_ns: transport.now(),
            error,
        }
    }
}

/// Sends every datagram back.
struct UdpResponder<'a, S> {
    answers: Answers<'a, S>,
    /// Bytes of an answer that could not leave yet.
    pending: Option<usize>,
}

impl<'a, S: Copy> UdpResponder<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
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
        let bytes = match self.pending.take() {
            Some(bytes) => bytes,
            None => {
                let room = &mut answers.message;
                let received = transport.udp_receive(answers.socket, |payload, _| {
                    let bytes = payload.len().min(room.len());
                    room[..bytes].copy_from_slice(&payload[..bytes]);
                    bytes
                });
                match received {
                    Poll::Ready(bytes) => bytes?,
                    Poll::Pending => {
                        let over =
                            answers.lane.phase.is_aborted() || answers.shared.expected().is_some();
                        return Ok(if over {
                            Progress::Done
                        } else {
                            Progress::Starved(None)
                        });
                    }
                }
            }
        };
        let message = &answers.message[..bytes];
        if is_greeting(message) {
            // A repeated greeting: it was answered when the flow opened.
            return Ok(Progress::Worked);
        }
        let sent = transport.udp_send(answers.socket, bytes, |payload| {
            payload.copy_from_slice(message);
        });
        match sent {
            Poll::Pending => {
                self.pending = Some(bytes);
                Ok(Progress::Starved(None))
            }
            Poll::Ready(sent) => {
                answers.answered(sent?);
                if answers.lane.phase.is_aborted() {
                    return Ok(Progress::Done);
                }
                Ok(Progress::Worked)
            }
        }
    }

    fn socket(&self) -> T::Socket {
        self.answers.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.answers.outcome(transport, error)
    }
}

/// Sends every complete message of a stream back.
struct TcpResponder<'a, S> {
    answers: Answers<'a, S>,
    received: usize,
    sent: usize,
}

impl<'a, S: Copy> TcpResponder<'a, S> {
    fn new(lane: &'a Lane<'a>, flow: Opened<S>) -> Self {
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
                Poll::Pending => return Ok(Progress::Starved(None)),
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

    fn socket(&self) -> T::Socket {
        self.answers.socket
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.answers.outcome(transport, error)
    }
}
