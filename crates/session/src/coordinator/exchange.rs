//! Frames between the two ends during a run and at its end.

use linerate_protocol::control::{
    ClockReply, EndResults, FLOWS_PER_FRAME, FlowFiguresBatch, FlowTotal, Frame, SenderTotals,
};
use linerate_record::facts::Role;
use linerate_record::plan::{Plan, TransportProtocol};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::call_times::CallStats;
use linerate_transport::flow_role::FlowRole;
use linerate_workload::timestamps::TimestampLog;
use linerate_workload::worker::WorkerHandle;

use super::{DRAIN_TIMEOUT_NS, RunState, STALL_TIMEOUT_NS};
use crate::error::SessionError;
use crate::flow_handle::find_flow;

/// Frames handled in one poll: a peer that sends without pause does not stop our clock.
const MAX_FRAMES_PER_POLL: usize = 64;

/// Longest wait of a server for the client's farewell, so that its results are not cut off by a
/// reset.
const FAREWELL_TIMEOUT_NS: Nanos = 2_000_000_000;

/// Progress of the exchange at the end of a run.
#[derive(Default)]
pub(super) struct ExchangeState {
    pub(super) totals_sent: bool,
    /// Time when the other end sent its totals.
    pub(super) peer_totals_ns: Option<Nanos>,
    /// Results of this end once they are sent, with the time.
    pub(super) local_results: Option<(EndResults, Nanos)>,
    pub(super) peer_results: Option<EndResults>,
    /// Timestamps of the other end.
    pub(super) peer_timestamps: TimestampLog,
    /// Closed by the other end after its results: no more frames in either direction.
    pub(super) peer_closed: bool,
    pub(super) interrupted: bool,
    pub(super) stop_exchanged: bool,
    pub(super) drain_deadline_ns: Option<Nanos>,
    /// A receiver was stopped while payload was in flight.
    pub(super) drain_incomplete: bool,
    /// Bytes at this end, and the time when they or the other end's last grew.
    pub(super) progress: (u64, Nanos),
}

impl RunState<'_> {
    /// Handles received frames, up to a limit.
    pub(super) fn receive_frames(&mut self) -> Result<(), SessionError> {
        for _ in 0..MAX_FRAMES_PER_POLL {
            if self.exchange.peer_closed {
                break;
            }
            match self.coordinator.control.receive() {
                Ok(Some(frame)) => self.handle_frame(frame)?,
                Ok(None) => break,
                // After its results the other end may close.
                Err(_) if self.exchange.peer_results.is_some() => self.exchange.peer_closed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends a frame, unless the other end has closed.
    pub(super) fn send(&mut self, frame: impl Into<Frame>) -> Result<(), SessionError> {
        if self.exchange.peer_closed {
            return Ok(());
        }
        match self.coordinator.control.send(frame.into()) {
            Err(_) if self.exchange.peer_results.is_some() => {
                self.exchange.peer_closed = true;
                Ok(())
            }
            result => result,
        }
    }

    fn handle_frame(&mut self, frame: Frame) -> Result<(), SessionError> {
        let now = clock::now();
        match frame {
            Frame::Interval(report) => {
                let interval = report.interval;
                if self.coordinator.plan.has_direction(interval.direction) {
                    if interval.bytes > 0 {
                        self.exchange.progress.1 = now;
                    }
                    self.series.add_peer(interval);
                    self.emit_ready_intervals();
                }
            }
            Frame::Sent(sent) => {
                self.exchange.peer_totals_ns.get_or_insert(now);
                for total in sent.flows {
                    if let Some(flow) = find_flow(&self.coordinator.ready.flows, total.id) {
                        match total.packets {
                            Some(packets) => flow.shared.set_expected(packets),
                            None => flow.shared.set_sender_ended(),
                        }
                    }
                }
                if self.coordinator.plan.duration_ns.is_some() || self.exchange.interrupted {
                    self.exchange
                        .drain_deadline_ns
                        .get_or_insert(now + DRAIN_TIMEOUT_NS);
                }
            }
            Frame::Stop(_) => {
                self.exchange.stop_exchanged = true;
                self.interrupt(now);
            }
            Frame::Timestamps(timestamps)
                if accepts_timestamps(self.coordinator.role, &self.coordinator.plan) =>
            {
                self.exchange.peer_timestamps.add_frame(*timestamps);
            }
            Frame::Figures(more) => {
                let capacity = self
                    .coordinator
                    .ready
                    .flows
                    .len()
                    .saturating_sub(self.peer_figures.len());
                self.peer_figures
                    .extend(more.flows.into_iter().take(capacity));
            }
            Frame::Results(results) => {
                let mut results = *results;
                let mut streams = std::mem::take(&mut self.peer_figures);
                streams.append(&mut results.streams);
                results.streams = streams;
                self.exchange.peer_results = Some(results);
            }
            Frame::Reject(rejection) => {
                return Err(SessionError::PeerRejected {
                    peer: self.coordinator.control.peer(),
                    problem: Box::new(rejection.problem),
                    exit_code: rejection.exit_code,
                });
            }
            // All other frames count as heartbeats.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn send_pending(&mut self, now: Nanos) -> Result<(), SessionError> {
        // In this order: a thread may end between the two checks, and the totals must be sent
        // before the results.
        let all_done = self
            .coordinator
            .ready
            .workers
            .iter()
            .all(WorkerHandle::is_finished);
        if self.senders_done() && !self.exchange.totals_sent && !self.awaits_send_queue(now) {
            self.collect_finished();
            self.exchange.totals_sent = true;
            let is_udp = self.coordinator.plan.protocol == TransportProtocol::Udp;
            let flows: Vec<_> = self
                .finished_flows
                .iter()
                .filter(|flow| flow.role == FlowRole::Sender)
                .map(|flow| FlowTotal {
                    id: flow.id,
                    bytes: flow.totals.bytes,
                    // Datagrams rejected by a full socket buffer have sequence numbers too.
                    packets: is_udp.then(|| {
                        let rejected = flow.facts.send_refused.unwrap_or(0);
                        flow.totals.packets.saturating_add(rejected)
                    }),
                })
                .collect();
            for flows in flows.chunks(FLOWS_PER_FRAME) {
                let flows = flows.to_vec();
                self.send(SenderTotals { flows })?;
            }
        }
        if all_done && self.exchange.totals_sent && self.exchange.local_results.is_none() {
            self.collect_finished();
            self.close_last_interval(now)?;
            self.send_timestamps()?;
            let results = self.result_builder().build();
            self.send_results(results.clone())?;
            self.exchange.local_results = Some((results, now));
        }
        Ok(())
    }

    /// Sends the timestamps of a responding end.
    fn send_timestamps(&mut self) -> Result<(), SessionError> {
        if self.coordinator.role == Role::Client {
            return Ok(());
        }
        let mut frames = Vec::new();
        for flow in &mut self.finished_flows {
            if let Some(mut log) = flow.log.take() {
                log.warnings
                    .splice(0..0, self.coordinator.timestamp_warnings.drain(..));
                frames.extend(TimestampLog::from_ring(*log).into_frames(flow.id));
            }
        }
        let calls = self.call_tally.as_mut().map(CallStats::take_latest);
        if let Some(calls) = calls.filter(|calls| !calls.is_empty()) {
            frames.extend(TimestampLog::from_calls(calls).into_frames(0));
        }
        frames.into_iter().try_for_each(|frame| self.send(frame))
    }

    /// Sends the results of this end: first its flows, at most `FLOWS_PER_FRAME` in a frame.
    fn send_results(&mut self, mut results: EndResults) -> Result<(), SessionError> {
        let last = results.streams.len().saturating_sub(FLOWS_PER_FRAME);
        let rest = results.streams.split_off(last);
        let first = std::mem::replace(&mut results.streams, rest);
        for flows in first.chunks(FLOWS_PER_FRAME) {
            let flows = flows.to_vec();
            self.send(FlowFiguresBatch { flows })?;
        }
        self.send(results)
    }

    /// Waits until the client has read everything: closing with unread bytes resets the connection.
    pub(super) fn wait_for_farewell(&mut self) {
        // Its farewell, or its first request for the time, follows a round trip after the results.
        let path_ns = (2 * self.coordinator.control.path_delay_ns()).min(STALL_TIMEOUT_NS);
        let deadline_ns = clock::now() + FAREWELL_TIMEOUT_NS + path_ns;
        while clock::now() < deadline_ns && !self.exchange.peer_closed {
            match self.coordinator.control.receive() {
                Ok(Some(Frame::Bye(_))) | Err(_) => return,
                Ok(Some(Frame::ClockRequest(request))) => {
                    let t2_ns = clock::now();
                    let reply = ClockReply {
                        t1_ns: request.t1_ns,
                        t2_ns,
                        t3_ns: clock::now(),
                    };
                    if self.coordinator.control.send(reply.into()).is_err() {
                        return;
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    let done = self.coordinator.control.flush();
                    if done
                        .and_then(|()| self.coordinator.control.wait(None, deadline_ns))
                        .is_err()
                    {
                        return;
                    }
                }
            }
        }
    }
}

/// Returns whether an end accepts the timestamps of the other; servers do not request them.
fn accepts_timestamps(role: Role, plan: &Plan) -> bool {
    role == Role::Client && plan.is_traced()
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{RunKind, TimestampLevel};

    use super::*;

    #[test]
    fn a_server_keeps_no_timestamps_of_its_clients() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        assert!(!accepts_timestamps(Role::Client, &plan));
        plan.timestamps = TimestampLevel::Driver;
        assert!(accepts_timestamps(Role::Client, &plan));
        assert!(!accepts_timestamps(Role::Server, &plan));
    }
}
