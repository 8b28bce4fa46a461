//! Latency: requests and responses. This file has the closed loop: one request at a time per flow.

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

use linerate_protocol::control::flow as wire;
use linerate_record::plan::TransportProtocol;
use linerate_record::round_trip::SocketMode;
use linerate_sys::clock::Nanos;
use linerate_transport::Transport;
use linerate_transport::flow_role::FlowRole;

use self::open_loop::OpenLoopSender;
use self::reconnect::{ReconnectingSender, StepHistograms};
use self::request_tracker::{
    RequestTracker, ResponseCheck, ResponseKind, classify_framed, classify_outside_timestamps,
};
use self::responder::{TcpAcceptor, TcpResponder, UdpResponder};
use crate::flow::FlowEndResults;
use crate::histogram_pool::HistogramPool;
use crate::{OpenFlow, Progress, WorkerContext, Workload, drive, edge_driver};

/// Runs the flows of one thread.
pub fn run<T: Transport>(
    worker: &WorkerContext<'_>,
    transport: &mut T,
    flows: Vec<OpenFlow<T::Socket>>,
) -> Vec<FlowEndResults> {
    if !worker.plan.timestamps.is_none() {
        return super::timestamped_round_trip::run(worker, transport, flows);
    }
    let options = &worker.plan.round_trip;
    let reopened = options.socket_mode == SocketMode::Reopened;
    match (worker.plan.protocol, worker.role) {
        (_, FlowRole::Sender) if reopened => {
            let mut flows = flows;
            let mut none = HistogramPool::default();
            let histograms = flows
                .first_mut()
                .map_or(&mut none, |flow| &mut flow.histograms);
            let steps = Rc::new(RefCell::new(StepHistograms::from_pool(histograms)));
            let flow = |flow| ReconnectingSender::new(worker, flow, Rc::clone(&steps));
            let flows: Vec<_> = flows.into_iter().map(flow).collect();
            drop(steps);
            // UDP: a queued datagram behind a stale response would not be reported edge-triggered.
            let is_edge_safe = worker.plan.protocol == TransportProtocol::Tcp;
            match is_edge_safe && transport.capabilities().has_edge_trigger {
                true => edge_driver::drive(transport, flows),
                false => drive(transport, flows),
            }
        }
        (_, FlowRole::Sender) if options.is_pipelined() => {
            let flows = flows
                .into_iter()
                .map(|flow| OpenLoopSender::new(worker, flow));
            drive(transport, flows.collect())
        }
        (TransportProtocol::Tcp, FlowRole::Receiver) if reopened => {
            let flows = flows.into_iter().map(|flow| TcpAcceptor::new(worker, flow));
            match transport.capabilities().has_edge_trigger {
                true => edge_driver::drive(transport, flows.collect()),
                false => drive(transport, flows.collect()),
            }
        }
        (TransportProtocol::Udp, FlowRole::Sender) => {
            let flows = flows
                .into_iter()
                .map(|flow| UdpRequestSender::new(worker, flow));
            drive(transport, flows.collect())
        }
        (TransportProtocol::Tcp, FlowRole::Sender) => {
            let flows = flows
                .into_iter()
                .map(|flow| TcpRequestSender::new(worker, flow));
            drive(transport, flows.collect())
        }
        (TransportProtocol::Udp, FlowRole::Receiver) => {
            let flows = flows
                .into_iter()
                .map(|flow| UdpResponder::new(worker, flow));
            drive(transport, flows.collect())
        }
        (TransportProtocol::Tcp, FlowRole::Receiver) => {
            let flows = flows
                .into_iter()
                .map(|flow| TcpResponder::new(worker, flow));
            drive(transport, flows.collect())
        }
    }
}

/// Sends requests as datagrams.
struct UdpRequestSender<'a, S> {
    requests: RequestTracker<'a>,
    socket: S,
    /// Send time and number of the outstanding request.
    outstanding: Option<(Nanos, u64)>,
}

impl<'a, S: Copy> UdpRequestSender<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        Self {
            requests: RequestTracker::new(worker, &mut flow).with_numbers(),
            socket: flow.socket,
            outstanding: None,
        }
    }

    fn send_request<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
    ) -> io::Result<Option<Progress>> {
        if self.requests.is_over() {
            return Ok(Some(Progress::Done));
        }
        self.requests.pause_if_due();
        self.requests.before_request(transport, self.socket);
        let number = self.requests.write_next_number();
        let (message, framing) = (&self.requests.message, &self.requests.framing);
        let mut sent_ns = 0;
        let sent = transport.udp_send(self.socket, message.len(), |payload| {
            payload.copy_from_slice(message);
            // After the copy: filling the message is not part of the round trip.
            sent_ns = T::read_clock();
            framing.make_request(payload, number, sent_ns);
        });
        match sent {
            Poll::Pending => Ok(Some(Progress::Starved(None))),
            Poll::Ready(sent) => {
                sent?;
                transport.flush();
                // The response is compared with what was sent.
                if framing.replies_are_copies() {
                    wire::write_header(&mut self.requests.message, number, sent_ns);
                }
                self.outstanding = Some((sent_ns, number));
                Ok(None)
            }
        }
    }
}

impl<T: Transport> Workload<T> for UdpRequestSender<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        if self.outstanding.is_none()
            && let Some(progress) = self.send_request(transport)?
        {
            return Ok(progress);
        }
        let Some((sent_ns, number)) = self.outstanding else {
            return Ok(Progress::Worked);
        };
        let (request, verify) = (&self.requests.message, self.requests.verify);
        let framing = &self.requests.framing;
        let stamps = self.requests.device_format();
        let received = transport.udp_receive(self.socket, |payload, _| {
            // Before the comparison, which is not part of the round trip.
            let now = T::read_clock();
            let response = match stamps {
                None => classify_framed(framing, payload, request, number, verify),
                Some(stamps) => {
                    classify_outside_timestamps(payload, request, number, verify, stamps)
                }
            };
            (
                now,
                response,
                stamps.and_then(|stamps| stamps.read(payload)),
            )
        });
        let (now, is_empty) = match received {
            Poll::Ready(received) => match received? {
                (now, ResponseKind::SetupDatagram, _) => (now, false),
                (now, ResponseKind::Earlier(number), _) => {
                    self.requests.record_earlier_response(number, now);
                    (now, false)
                }
                (now, ResponseKind::Current(verdict), timestamps) => {
                    self.outstanding = None;
                    let socket = Some(self.socket);
                    self.requests.record_device_time(timestamps, sent_ns, now);
                    self.requests
                        .record_response(transport, socket, number, sent_ns, now, verdict);
                    return Ok(Progress::Worked);
                }
            },
            // For a timeout, the time of the last poll is exact enough.
            Poll::Pending => (transport.now(), true),
        };
        if self.requests.is_missing(sent_ns, now) {
            self.outstanding = None;
            self.requests.give_up(number, sent_ns, now);
            return Ok(Progress::Worked);
        }
        self.requests.advance_time(now);
        // The response to the last request of an interrupted run is neither counted nor missing.
        if is_empty && self.requests.stops_waiting(sent_ns, now) {
            return Ok(Progress::Done);
        }
        Ok(Progress::Starved(None))
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.requests.finish(transport, Some(self.socket), error)
    }
}

/// Sends requests over a stream.
struct TcpRequestSender<'a, S> {
    requests: RequestTracker<'a>,
    socket: S,
    state: TcpRequestState,
    /// The outstanding request was counted as missing while it was still being sent.
    is_counted_missing: bool,
}

/// State of a request on a stream.
#[derive(Clone, Copy)]
enum TcpRequestState {
    Idle,
    Sending {
        sent_ns: Nanos,
        sent_bytes: usize,
    },
    Waiting {
        sent_ns: Nanos,
        received_bytes: usize,
        is_correct: bool,
        /// The request was counted as missing; its response must still be read from the stream.
        is_counted_missing: bool,
    },
}

impl<'a, S: Copy> TcpRequestSender<'a, S> {
    fn new(worker: &'a WorkerContext<'a>, mut flow: OpenFlow<S>) -> Self {
        Self {
            requests: RequestTracker::new(worker, &mut flow),
            socket: flow.socket,
            state: TcpRequestState::Idle,
            is_counted_missing: false,
        }
    }

    fn send<T: Transport<Socket = S>>(
        &mut self,
        transport: &mut T,
        sent_ns: Nanos,
        sent: usize,
    ) -> io::Result<Progress> {
        let rest = &self.requests.message[sent..];
        let (framing, number) = (&self.requests.framing, self.requests.completed_requests());
        let mut filled_ns = 0;
        let accepted = transport.tcp_send(self.socket, rest.len(), |payload| {
            payload.copy_from_slice(&rest[..payload.len()]);
            if sent == 0 && !framing.replies_are_copies() {
                framing.make_request(payload, number, 0);
            }
            filled_ns = T::read_clock();
        });
        let sent_ns = if sent == 0 { filled_ns } else { sent_ns };
        match accepted {
            // The peer does not read.
            Poll::Pending => {
                let now = T::read_clock();
                if matches!(self.state, TcpRequestState::Sending { .. }) {
                    self.count_missing_if_late(now, sent_ns);
                    if self.requests.stops_waiting(sent_ns, now) {
                        return Ok(Progress::Done);
                    }
                }
                Ok(Progress::Starved(None))
            }
            Poll::Ready(accepted) => {
                let sent = sent + accepted?;
                transport.flush();
                self.state = if sent == self.requests.message.len() {
                    TcpRequestState::Waiting {
                        sent_ns,
                        received_bytes: 0,
                        is_correct: true,
                        is_counted_missing: std::mem::take(&mut self.is_counted_missing),
                    }
                } else {
                    TcpRequestState::Sending {
                        sent_ns,
                        sent_bytes: sent,
                    }
                };
                Ok(Progress::Worked)
            }
        }
    }
}

impl<S: Copy> TcpRequestSender<'_, S> {
    /// Counts a request that cannot be sent in time as missing, once.
    fn count_missing_if_late(&mut self, now: Nanos, sent_ns: Nanos) {
        if !self.is_counted_missing && self.requests.is_missing(sent_ns, now) {
            self.is_counted_missing = true;
            self.requests
                .record_missing(self.requests.completed_requests(), now);
        }
    }
}

impl<T: Transport> Workload<T> for TcpRequestSender<'_, T::Socket> {
    #[inline]
    fn step(&mut self, transport: &mut T) -> io::Result<Progress> {
        match self.state {
            TcpRequestState::Idle => {
                if self.requests.is_over() {
                    transport.shutdown_send(self.socket)?;
                    return Ok(Progress::Done);
                }
                self.requests.pause_if_due();
                self.requests.before_request(transport, self.socket);
                self.requests.write_next_number();
                self.send(transport, 0, 0)?;
            }
            TcpRequestState::Sending {
                sent_ns,
                sent_bytes: sent,
            } => return self.send(transport, sent_ns, sent),
            TcpRequestState::Waiting { .. } => {}
        }
        let TcpRequestState::Waiting {
            sent_ns,
            received_bytes: received,
            is_correct,
            is_counted_missing,
        } = self.state
        else {
            return Ok(Progress::Starved(None));
        };
        let (request, verify) = (&self.requests.message, self.requests.verify);
        let framing = &self.requests.framing;
        let response = transport.tcp_receive(self.socket, request.len() - received, |payload| {
            let now = T::read_clock();
            let expected = &request[received..received + payload.len()];
            let is_correct = !verify || framing.is_expected(payload, expected, received);
            (now, payload.len(), is_correct)
        });
        match response {
            Poll::Ready(response) => {
                let (now, bytes, is_equal) = response?;
                if bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let received = received + bytes;
                let is_correct = is_correct && is_equal;
                if received < request.len() {
                    self.state = TcpRequestState::Waiting {
                        sent_ns,
                        received_bytes: received,
                        is_correct,
                        is_counted_missing,
                    };
                    return Ok(Progress::Worked);
                }
                self.state = TcpRequestState::Idle;
                if !is_counted_missing {
                    // A stream has no message lengths: every difference is one of content.
                    let verdict = if is_correct {
                        ResponseCheck::Correct
                    } else {
                        ResponseCheck::WrongContent
                    };
                    let number = self.requests.completed_requests();
                    let socket = Some(self.socket);
                    self.requests
                        .record_response(transport, socket, number, sent_ns, now, verdict);
                }
                Ok(Progress::Worked)
            }
            Poll::Pending => {
                let now = T::read_clock();
                self.requests.advance_time(now);
                if !is_counted_missing && self.requests.is_missing(sent_ns, now) {
                    self.requests
                        .record_missing(self.requests.completed_requests(), now);
                    self.state = TcpRequestState::Waiting {
                        sent_ns,
                        received_bytes: received,
                        is_correct,
                        is_counted_missing: true,
                    };
                }
                if self.requests.is_over()
                    && (is_counted_missing || self.requests.stops_waiting(sent_ns, now))
                {
                    transport.shutdown_send(self.socket)?;
                    return Ok(Progress::Done);
                }
                Ok(Progress::Starved(None))
            }
        }
    }

    fn socket(&self) -> Option<T::Socket> {
        Some(self.socket)
    }

    fn finish(self, transport: &T, error: Option<io::Error>) -> FlowEndResults {
        self.requests.finish(transport, Some(self.socket), error)
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{Plan, RunKind, TransportProtocol};

    use crate::scripted_transport::{START_NS, ScriptedTransport, run_scripted};

    #[test]
    fn the_last_response_is_awaited_like_every_other() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far");
        plan.duration_ns = Some(100_000_000);
        plan.response_timeout_ns = Some(200_000_000);
        // Responses take 30 ms: the fourth arrives after the end and counts.
        let result = run_scripted(&plan, ScriptedTransport::with_delay(30_000_000), None);
        assert_eq!((result.totals.packets, result.totals.missing), (4, 0));
        // The fourth is lost: that is a missing response and does not extend the run.
        let result = run_scripted(
            &plan,
            ScriptedTransport::with_delay(30_000_000).with_lost(3),
            None,
        );
        assert_eq!((result.totals.packets, result.totals.missing), (3, 1));
        assert!(result.ended_ns < START_NS + 100_000_000);
        // A path that is longer than its first measurement: one request counts as missing, and those
        // after the late response have their times.
        plan.response_timeout_ns = Some(20_000_000);
        for (requested, expected) in [(false, (3, 1)), (true, (0, 5))] {
            plan.response_timeout_requested = requested;
            let result = run_scripted(&plan, ScriptedTransport::with_delay(30_000_000), None);
            let counts = (result.totals.packets, result.totals.missing);
            assert_eq!(counts, expected, "{requested}");
        }
        plan.response_timeout_ns = Some(200_000_000);
        // In an interrupted run the outstanding request is neither counted nor missing.
        let result = run_scripted(
            &plan,
            ScriptedTransport::with_delay(30_000_000),
            Some(START_NS + 50_000_000),
        );
        assert_eq!((result.totals.packets, result.totals.missing), (1, 0));
    }
}
