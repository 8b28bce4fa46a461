//! End of a test: workers end by themselves, or all are stopped at a limit.

use std::sync::atomic::Ordering::Relaxed;

use linerate_protocol::plain::SILENCE_NS;
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::ids::CaveatId;
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_transport::flow_role::FlowRole;

use super::TestRun;
use crate::interop_limits::time_limit_caveat;
use crate::interop_state::OpenFlowEntry;

/// Time after the limit at which the test is polled: payload sent behind the limit shows that it
/// goes on.
const POLL_AFTER_END_NS: Nanos = 1_000_000;

/// Reason for the server to stop a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The server is stopping.
    Stopped,
    /// The time limit of a test is reached.
    Time,
}

impl TestRun {
    /// Returns the reason to stop the test now, if any.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason> {
        if self.server.stop.load(Relaxed) {
            return Some(StopReason::Stopped);
        }
        let end_ns = self.end_ns()?;
        let running = self.workers.iter().filter(|worker| worker.is_running());
        let spans = running.filter_map(|worker| worker.context.payload_times());
        // End markers may take longer: some protocols repeat them.
        let sends_after_end = spans.map(|(_, last)| last).max().unwrap_or(0) > end_ns;
        sends_after_end.then_some(StopReason::Time)
    }

    /// Returns the end of the time limit.
    fn end_ns(&self) -> Option<Nanos> {
        self.limits().end_ns(&self.plan, self.start_ns)
    }

    /// Returns the latest time of the next poll: the end of an interval or of the time limit.
    #[must_use]
    pub fn next_poll_ns(&self) -> Nanos {
        let next = match self.agreed_end_ns {
            Some(_) => Nanos::MAX,
            None => self.interval_end_ns(),
        };
        match self
            .end_ns()
            .map(|end| end.saturating_add(POLL_AFTER_END_NS))
        {
            Some(end) if clock::now() < end => next.min(end),
            _ => next,
        }
    }

    /// Waits for all workers, if they could be started, and builds the record.
    pub fn conclude(
        mut self,
        spawned: Result<(), SessionError>,
        remote_report: impl FnOnce() -> RemoteReport,
    ) {
        if spawned.is_ok() {
            self.wait_for_workers();
        }
        self.join();
        self.finish(remote_report(), spawned.err());
    }

    /// Waits until all workers have ended.
    pub fn wait_for_workers(&mut self) {
        while !self.is_done() {
            self.wait(clock::now() + 100_000_000);
            if let Some(reason) = self.stop_reason() {
                self.abort(reason);
            }
        }
    }

    /// Returns whether the test was over already as far as the server can see: a client without an
    /// end marker has been silent for [`SILENCE_NS`].
    fn is_silent(&self, now: Nanos) -> bool {
        let spans = self
            .workers
            .iter()
            .filter_map(|worker| worker.context.payload_times());
        let last = spans.map(|(_, last)| last).max();
        self.has_no_end_marker && last.is_some_and(|last| now.saturating_sub(last) > SILENCE_NS)
    }

    /// Stops the test before its end.
    pub fn abort(&mut self, reason: StopReason) {
        let is_over = reason == StopReason::Stopped && self.is_silent(clock::now());
        if !self.interrupted && !is_over {
            self.interrupted = true;
            self.open_flows.iter_mut().for_each(OpenFlowEntry::abort);
            let is_noted = self
                .caveats
                .iter()
                .any(|caveat| caveat.id == CaveatId::CutShort);
            if let (StopReason::Time, false, Some(limit_ns)) =
                (reason, is_noted, self.limits().time_ns)
            {
                self.add_caveat(time_limit_caveat(limit_ns));
            }
        }
        self.close();
    }

    /// Returns whether the server stopped the test before its end.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.interrupted
    }

    /// Stops the senders.
    pub fn end_sending(&self) {
        self.signals.end_sending();
    }

    /// Stops all workers.
    pub fn close(&self) {
        self.signals.end_sending();
        self.signals.closed.store(true, Relaxed);
        for worker in self.workers.iter().filter(|worker| worker.thread.is_some()) {
            if let (Some(watch), FlowRole::Receiver) = (&worker.watch, worker.role) {
                // Wakes a thread that blocks in a receive call.
                let _ = rustix::net::shutdown(watch, rustix::net::Shutdown::Read);
            }
        }
    }

    /// Stops and joins all workers.
    pub fn join(&mut self) {
        self.close();
        self.join_workers();
    }

    /// Stops and joins the senders, and closes the sending half of their connections.
    pub fn join_senders(&mut self) {
        self.end_sending();
        for worker in self
            .workers
            .iter_mut()
            .filter(|worker| worker.role == FlowRole::Sender)
        {
            worker.join();
            // Clients read whole blocks, whatever they receive on the control connection: the end
            // of the stream frees a client that waits for the rest of a block. Datagrams have no
            // end of stream.
            if let Some(watch) = &worker.watch {
                let _ = rustix::net::shutdown(watch, rustix::net::Shutdown::Write);
            }
        }
    }

    fn join_workers(&mut self) {
        for worker in &mut self.workers {
            worker.join();
        }
    }
}
