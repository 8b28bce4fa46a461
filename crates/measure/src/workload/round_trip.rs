//! Latency: requests and responses. This file has the closed loop: one request at a time per flow.

pub(super) mod device_timestamps;
mod in_flight;
mod open_loop;
mod reconnect;
mod request_tracker;
mod responder;
pub(super) mod rt_yield;
mod slow_responses;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use linerate_dialect::control::flow as wire;
use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::Protocol;
use linerate_metric::round_trip::Attachment;

use self::open_loop::OpenLoop;
use self::reconnect::{Reopener, Steps};
use self::request_tracker::{Answer, Questions, Verdict, judge_around, judge_framed};
use self::responder::{TcpAcceptor, TcpResponder, UdpResponder};
use super::histogram_pool::Room;
use super::{Lane, Opened, Progress, Workload, drive, edge_driver};
use crate::flow::{FlowOutcome, Part};
use crate::transport::Transport;

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    lane: &Lane<'_>,
    transport: &mut T,
    flows: Vec<Opened<T::Socket>>,
) -> Vec<FlowOutcome> {
    if !lane.plan.stamps.is_none() {
        return super::timestamped_round_trip::run(lane, transport, flows);
    }
    let asked = &lane.plan.round_trip;
    let reopened = asked.attachment == Attachment::Reopened;
    match (lane.plan.protocol, lane.part) {
        (_, Part::Source) if reopened => {
            let mut flows = flows;
            let mut none = Room::default();
            let room = flows.first_mut().map_or(&mut none, |flow| &mut flow.room);
            let steps = Rc::new(RefCell::new(Steps::of(room)));
            let flow = |flow| Reopener::new(lane, flow, Rc::clone(&steps));
            let flows: Vec<_> = flows.into_iter().map(flow).collect();
            drop(steps);
            // UDP: a queued datagram behind a stale response would not be reported edge-triggered.
            let by_changes = lane.plan.protocol == Protocol::Tcp;
            match by_changes && transport.capabilities().tells_changes {
                true => edge_driver::drive(transport, flows),
                false => drive(transport, flows),
            }
        }
        (_, Part::Source) if asked.is_open() => {
            let flows = flows.into_iter().map(|flow| OpenLoop::new(lane, flow));
            drive(transport, flows.collect())
        }
        (Protocol::Tcp, Part::Sink) if reopened => {
            let flows = flows.into_iter().map(|flow| TcpAcceptor::new(lane, flow));
            match transport.capabilities().tells_changes {
                true => edge_driver::drive(transport, flows.collect()),
                false => drive(transport, flows.collect()),
            }
        }
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

/// Sends requests as datagrams.
struct UdpAsker<'a, S> {
    questions: Questions<'a>,
    socket: S,
    /// Send time and number of the outstanding request.
    open: Option<(Nanos, u64)>,
}

impl<'a, S: Copy> UdpAsker<'a, S> {
    fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        Self {
            questions: Questions::new(lane, &mut flow).with_numbers(),
            socket: flow.socket,
            open: None,
        }
    }

    fn ask<T: Transport<Socket = S>>(&mut self, transport: &mut T) -> io::Result<Option<Progress>> {
        if self.questions.is_over() {
            return Ok(Some(Progress::Done));
        }
        self.questions.breathe();
        self.questions.begin(transport, self.socket);
        let number = self.questions.number_message();
        let (message, framing) = (&self.questions.message, &self.questions.framing);
        let mut asked_ns = 0;
        let sent = transport.udp_send(self.socket, message.len(), |payload| {
            payload.copy_from_slice(message);
            // After the copy: filling the message is not part of the round trip.
            asked_ns = T::clock();
            framing.ask(payload, number, asked_ns);
        });
        match sent {
            Poll::Pending => Ok(Some(Progress::Starved(None))),
            Poll::Ready(sent) => {
                sent?;
                transport.flush();
                // The response is compared with what was sent.
                if framing.echoes() {
                    wire::write_header(&mut self.questions.message, number, asked_ns);
                }
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
        let (question, verify) = (&self.questions.message, self.questions.verify);
        let framing = &self.questions.framing;
        let stamps = self.questions.device_stamps();
        let received = transport.udp_receive(self.socket, |payload, _| {
            // Before the comparison, which is not part of the round trip.
            let now = T::clock();
            let answer = match stamps {
                None => judge_framed(framing, payload, question, number, verify),
                Some(stamps) => judge_around(payload, question, number, verify, stamps),
            };
            (now, answer, stamps.and_then(|stamps| stamps.read(payload)))
        });
        let (now, nothing_came) = match received {
            Poll::Ready(received) => match received? {
                (now, Answer::Greeting, _) => (now, false),
                (now, Answer::Earlier(number), _) => {
                    self.questions.came_again(number);
                    (now, false)
                }
                (now, Answer::Due(verdict), stamped) => {
                    self.open = None;
                    let socket = Some(self.socket);
                    self.questions.was_inside(stamped, asked_ns, now);
                    self.questions
                        .answered(transport, socket, number, asked_ns, now, verdict);
                    return Ok(Progress::Worked);
                }
            },
            // For a timeout, the time of the last poll is exact enough.
            Poll::Pending => (transport.now(), true),
        };
        if now >= asked_ns + self.questions.timeout_ns {
            self.open = None;
            self.questions.missed(number, now);
            return Ok(Progress::Worked);
        }
        self.questions.passed(now);
        // The response to the last request of an interrupted run is neither counted nor missing.
        if nothing_came && self.questions.lets_go(asked_ns, now) {
            return Ok(Progress::Done);
        }
        Ok(Progress::Starved(None))
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.questions.outcome(transport, Some(self.socket), error)
    }
}

/// Sends requests over a stream.
struct TcpAsker<'a, S> {
    questions: Questions<'a>,
    socket: S,
    state: Asking,
    /// The outstanding request was counted as missing while it was still being sent.
    given_up: bool,
}

/// State of a request on a stream.
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
        /// The request was counted as missing; its response must still be read from the stream.
        late: bool,
    },
}

impl<'a, S: Copy> TcpAsker<'a, S> {
    fn new(lane: &'a Lane<'a>, mut flow: Opened<S>) -> Self {
        Self {
            questions: Questions::new(lane, &mut flow),
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
        let (framing, number) = (&self.questions.framing, self.questions.asked());
        let mut filled_ns = 0;
        let taken = transport.tcp_send(self.socket, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
            if sent == 0 && !framing.echoes() {
                framing.ask(payload, number, 0);
            }
            filled_ns = T::clock();
        });
        let asked_ns = if sent == 0 { filled_ns } else { asked_ns };
        match taken {
            // The peer does not read.
            Poll::Pending => {
                let now = T::clock();
                if matches!(self.state, Asking::Sending { .. }) {
                    self.give_up_when_late(now, asked_ns);
                    if self.questions.lets_go(asked_ns, now) {
                        return Ok(Progress::Done);
                    }
                }
                Ok(Progress::Starved(None))
            }
            Poll::Ready(taken) => {
                let sent = sent + taken?;
                transport.flush();
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
    /// Counts a request that cannot be sent in time as missing, once.
    fn give_up_when_late(&mut self, now: Nanos, asked_ns: Nanos) {
        if !self.given_up && now >= asked_ns + self.questions.timeout_ns {
            self.given_up = true;
            self.questions.missed(self.questions.asked(), now);
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
                self.questions.breathe();
                self.questions.begin(transport, self.socket);
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
        let (question, verify) = (&self.questions.message, self.questions.verify);
        let framing = &self.questions.framing;
        let answer = transport.tcp_receive(self.socket, question.len() - received, |payload| {
            let now = T::clock();
            let expected = &question[received..received + payload.len()];
            let right = !verify || framing.is_right(payload, expected, received);
            (now, payload.len(), right)
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
                    // A stream has no message lengths: every difference is one of content.
                    let verdict = if right {
                        Verdict::Right
                    } else {
                        Verdict::WrongContent
                    };
                    let number = self.questions.asked();
                    let socket = Some(self.socket);
                    self.questions
                        .answered(transport, socket, number, asked_ns, now, verdict);
                }
                Ok(Progress::Worked)
            }
            Poll::Pending => {
                let now = T::clock();
                self.questions.passed(now);
                if !late && now >= asked_ns + self.questions.timeout_ns {
                    self.questions.missed(self.questions.asked(), now);
                    self.state = Asking::Waiting {
                        asked_ns,
                        received,
                        right,
                        late: true,
                    };
                }
                if self.questions.is_over() && (late || self.questions.lets_go(asked_ns, now)) {
                    transport.finish_sending(self.socket)?;
                    return Ok(Progress::Done);
                }
                Ok(Progress::Starved(None))
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.socket)
    }

    fn outcome(self, transport: &T, error: Option<io::Error>) -> FlowOutcome {
        self.questions.outcome(transport, Some(self.socket), error)
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Kind, Plan, Protocol};

    use crate::workload::scripted_transport::{Far, START_NS, asked};

    #[test]
    fn the_last_question_is_waited_for_as_every_other() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far");
        plan.duration_ns = Some(100_000_000);
        plan.answer_timeout_ns = Some(200_000_000);
        // Responses take 30 ms: the fourth arrives after the end and counts.
        let outcome = asked(&plan, Far::after(30_000_000), None);
        assert_eq!((outcome.totals.packets, outcome.totals.missing), (4, 0));
        // The fourth is lost: that is a missing response and does not extend the run.
        let outcome = asked(&plan, Far::after(30_000_000).losing(3), None);
        assert_eq!((outcome.totals.packets, outcome.totals.missing), (3, 1));
        assert!(outcome.ended_ns < START_NS + 100_000_000);
        // In an interrupted run the outstanding request is neither counted nor missing.
        let outcome = asked(&plan, Far::after(30_000_000), Some(START_NS + 50_000_000));
        assert_eq!((outcome.totals.packets, outcome.totals.missing), (1, 0));
    }
}
