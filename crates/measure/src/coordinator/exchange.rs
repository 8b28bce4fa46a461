//! Frames between the two ends during a run and at its end.

use linerate_dialect::control::{
    ClockAnswer, FLOWS_A_FRAME, Figures, FlowTotal, Frame, Outcome, Sent,
};
use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::facts::Role;
use linerate_metric::plan::{Plan, Protocol};

use super::{DRAIN_NS, Run, flow_of};
use crate::error::MeasureError;
use crate::flow::Part;
use crate::timestamps::Noted;
use crate::transport::call_times::CallTally;
use crate::worker::LaneHandle;

/// Frames handled in one poll: a peer that sends without pause does not stop our clock.
const FRAMES_A_TURN: usize = 64;

/// Longest wait of a server for the client's farewell, so that its results are not cut off by a
/// reset.
const FAREWELL_NS: Nanos = 2_000_000_000;

/// Progress of the exchange at the end of a run.
#[derive(Default)]
pub(super) struct Exchange {
    pub(super) sent_said: bool,
    /// Time when the other end sent its totals.
    pub(super) sent_heard_ns: Option<Nanos>,
    /// Results of this end once they are sent, with the time.
    pub(super) outcome: Option<(Outcome, Nanos)>,
    pub(super) peer: Option<Outcome>,
    /// Timestamps of the other end.
    pub(super) noted: Noted,
    /// Closed by the other end after its results: no more frames in either direction.
    pub(super) closed: bool,
    pub(super) interrupted: bool,
    pub(super) stop_said: bool,
    pub(super) drain_until_ns: Option<Nanos>,
    /// A receiver was stopped while payload was in flight.
    pub(super) drain_cut: bool,
    /// Bytes at this end, and the time when they or the other end's last grew.
    pub(super) moved: (u64, Nanos),
}

impl Run<'_> {
    /// Handles received frames, up to a limit.
    pub(super) fn hear(&mut self) -> Result<(), MeasureError> {
        for _ in 0..FRAMES_A_TURN {
            if self.exchange.closed {
                break;
            }
            match self.end.wire.hear() {
                Ok(Some(frame)) => self.take(frame)?,
                Ok(None) => break,
                // After its results the other end may close.
                Err(_) if self.exchange.peer.is_some() => self.exchange.closed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends a frame, unless the other end has closed.
    pub(super) fn say(&mut self, frame: impl Into<Frame>) -> Result<(), MeasureError> {
        if self.exchange.closed {
            return Ok(());
        }
        match self.end.wire.say(frame.into()) {
            Err(_) if self.exchange.peer.is_some() => {
                self.exchange.closed = true;
                Ok(())
            }
            said => said,
        }
    }

    fn take(&mut self, frame: Frame) -> Result<(), MeasureError> {
        let now = clock::now();
        match frame {
            Frame::Interval(ended) => {
                let interval = ended.interval;
                if self.end.plan.flows(interval.direction) {
                    if interval.bytes > 0 {
                        self.exchange.moved.1 = now;
                    }
                    self.series.peer(interval);
                    self.show();
                }
            }
            Frame::Sent(sent) => {
                self.exchange.sent_heard_ns.get_or_insert(now);
                for total in sent.flows {
                    if let Some(flow) = flow_of(&self.end.flows, total.id) {
                        match total.packets {
                            Some(packets) => flow.shared.expect(packets),
                            None => flow.shared.expect_no_more(),
                        }
                    }
                }
                if self.end.plan.duration_ns.is_some() || self.exchange.interrupted {
                    self.exchange.drain_until_ns.get_or_insert(now + DRAIN_NS);
                }
            }
            Frame::Stop(_) => {
                self.exchange.stop_said = true;
                self.interrupt(now);
            }
            Frame::Stamps(stamps) if takes_stamps(self.end.role, &self.end.plan) => {
                self.exchange.noted.take(*stamps);
            }
            Frame::Figures(more) => {
                let room = self.end.flows.len().saturating_sub(self.figures.len());
                self.figures.extend(more.flows.into_iter().take(room));
            }
            Frame::Outcome(outcome) => {
                let mut outcome = *outcome;
                let mut streams = std::mem::take(&mut self.figures);
                streams.append(&mut outcome.streams);
                outcome.streams = streams;
                self.exchange.peer = Some(outcome);
            }
            Frame::Refuse(refuse) => {
                return Err(MeasureError::PeerRefused {
                    peer: self.end.wire.peer(),
                    problem: Box::new(refuse.problem),
                    exit_code: refuse.exit_code,
                });
            }
            // All other frames count as heartbeats.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn say_what_is_due(&mut self, now: Nanos) -> Result<(), MeasureError> {
        // In this order: a thread may end between the two checks, and the totals must be sent
        // before the results.
        let all_done = self.end.lanes.iter().all(LaneHandle::is_finished);
        if self.sources_done() && !self.exchange.sent_said {
            self.collect();
            self.exchange.sent_said = true;
            let is_udp = self.end.plan.protocol == Protocol::Udp;
            let flows: Vec<_> = self
                .finished
                .iter()
                .filter(|flow| flow.part == Part::Source)
                .map(|flow| FlowTotal {
                    id: flow.id,
                    bytes: flow.totals.bytes,
                    // Datagrams rejected by a full socket buffer have sequence numbers too.
                    packets: is_udp.then(|| {
                        let refused = flow.facts.send_refused.unwrap_or(0);
                        flow.totals.packets.saturating_add(refused)
                    }),
                })
                .collect();
            for flows in flows.chunks(FLOWS_A_FRAME) {
                let flows = flows.to_vec();
                self.say(Sent { flows })?;
            }
        }
        if all_done && self.exchange.outcome.is_none() {
            self.collect();
            self.last_interval(now)?;
            self.say_stamps()?;
            let outcome = self.account().outcome();
            self.say_outcome(outcome.clone())?;
            self.exchange.outcome = Some((outcome, now));
        }
        Ok(())
    }

    /// Sends the timestamps of a responding end.
    fn say_stamps(&mut self) -> Result<(), MeasureError> {
        if self.end.role == Role::Client {
            return Ok(());
        }
        let mut parts = Vec::new();
        for flow in &mut self.finished {
            if let Some(mut log) = flow.log.take() {
                log.notes.splice(0..0, self.end.notes.drain(..));
                parts.extend(Noted::of(*log).parts(flow.id));
            }
        }
        let calls = self.calls_taken.as_mut().map(CallTally::take_latest);
        if let Some(calls) = calls.filter(|calls| !calls.is_empty()) {
            parts.extend(Noted::of_calls(calls).parts(0));
        }
        parts.into_iter().try_for_each(|part| self.say(part))
    }

    /// Sends the results of this end: first its flows, at most `FLOWS_A_FRAME` in a frame.
    fn say_outcome(&mut self, mut outcome: Outcome) -> Result<(), MeasureError> {
        let last = outcome.streams.len().saturating_sub(FLOWS_A_FRAME);
        let rest = outcome.streams.split_off(last);
        let first = std::mem::replace(&mut outcome.streams, rest);
        for flows in first.chunks(FLOWS_A_FRAME) {
            let flows = flows.to_vec();
            self.say(Figures { flows })?;
        }
        self.say(outcome)
    }

    /// Waits until the client has read everything: closing with unread bytes resets the connection.
    pub(super) fn hear_farewell(&mut self) {
        let until = clock::now() + FAREWELL_NS;
        while clock::now() < until && !self.exchange.closed {
            match self.end.wire.hear() {
                Ok(Some(Frame::Bye(_))) | Err(_) => return,
                Ok(Some(Frame::ClockQuestion(question))) => {
                    let t2_ns = clock::now();
                    let answer = ClockAnswer {
                        t1_ns: question.t1_ns,
                        t2_ns,
                        t3_ns: clock::now(),
                    };
                    if self.end.wire.say(answer.into()).is_err() {
                        return;
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    let done = self.end.wire.flush();
                    if done.and_then(|()| self.end.wire.wait(None, until)).is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Returns whether an end accepts the timestamps of the other; servers do not request them.
fn takes_stamps(role: Role, plan: &Plan) -> bool {
    role == Role::Client && plan.is_traced()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::{Kind, Stamping};

    #[test]
    fn a_server_keeps_no_stamps_of_its_clients() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "host");
        assert!(!takes_stamps(Role::Client, &plan));
        plan.stamps = Stamping::Driver;
        assert!(takes_stamps(Role::Client, &plan));
        assert!(!takes_stamps(Role::Server, &plan));
    }
}
