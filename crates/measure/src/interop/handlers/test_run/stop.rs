//! End of a test: workers end by themselves, or all are stopped at a limit.

use std::sync::atomic::Ordering::Relaxed;

use linerate_dialect::plain::SILENCE_NS;
use linerate_dialect::remote_report::FarReport;
use linerate_host::sys::clock::{self, Nanos};

use super::super::FlowKey;
use super::super::limits::cut_short;
use super::Test;
use crate::error::MeasureError;
use crate::flow::Part;

/// Time after the limit at which the test is polled: payload sent behind the limit shows that it
/// goes on.
const PAST_END_NS: Nanos = 1_000_000;

/// Reason for the server to stop a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The server is stopping.
    Stopped,
    /// The time limit of a test is reached.
    Time,
}

impl Test {
    /// Returns the reason to stop the test now, if any.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        if self.house.stop.load(Relaxed) {
            return Some(Limit::Stopped);
        }
        let end_ns = self.end_ns()?;
        let going = self.lanes.iter().filter(|lane| lane.goes_on());
        let spans = going.filter_map(|lane| lane.context.span());
        // End markers may take longer: some protocols repeat them.
        let goes_on = spans.map(|(_, last)| last).max().unwrap_or(0) > end_ns;
        goes_on.then_some(Limit::Time)
    }

    /// Returns the end of the time limit.
    fn end_ns(&self) -> Option<Nanos> {
        self.limits().end_ns(&self.plan, self.start_ns)
    }

    /// Returns the latest time of the next poll: the end of an interval or of the time limit.
    #[must_use]
    pub fn next_look(&self) -> Nanos {
        let next = match self.over_ns {
            Some(_) => Nanos::MAX,
            None => self.interval_end(),
        };
        match self.end_ns().map(|end| end.saturating_add(PAST_END_NS)) {
            Some(end) if clock::now() < end => next.min(end),
            _ => next,
        }
    }

    /// Waits for all workers, if they could be started, and builds the record.
    pub fn conclude(mut self, spawned: Result<(), MeasureError>, far: impl FnOnce() -> FarReport) {
        if spawned.is_ok() {
            self.run_lanes();
        }
        self.join();
        self.finish(far(), spawned.err());
    }

    /// Waits until all workers have ended.
    pub fn run_lanes(&mut self) {
        while !self.is_done() {
            self.wait(clock::now() + 100_000_000);
            if let Some(limit) = self.limit() {
                self.cut(limit);
            }
        }
    }

    /// Returns whether the test was over already as far as the server can see: a client without an
    /// end marker has been silent for [`SILENCE_NS`].
    fn is_silent(&self, now: Nanos) -> bool {
        let spans = self.lanes.iter().filter_map(|lane| lane.context.span());
        let last = spans.map(|(_, last)| last).max();
        self.says_no_end && last.is_some_and(|last| now.saturating_sub(last) > SILENCE_NS)
    }

    /// Stops the test before its end.
    pub fn cut(&mut self, limit: Limit) {
        let is_over = limit == Limit::Stopped && self.is_silent(clock::now());
        if !self.interrupted && !is_over {
            self.interrupted = true;
            self.keys.iter_mut().for_each(FlowKey::cut);
            let told = self.doubts.iter().any(|doubt| doubt.doubt == "cut-short");
            if let (Limit::Time, false, Some(most)) = (limit, told, self.limits().time_ns) {
                self.doubt(cut_short(most));
            }
        }
        self.close();
    }

    /// Returns whether the server stopped the test before its end.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.interrupted
    }

    /// Stops the senders.
    pub fn end_sending(&self) {
        self.signals.end();
    }

    /// Stops all workers.
    pub fn close(&self) {
        self.signals.end();
        self.signals.closed.store(true, Relaxed);
        for lane in self.lanes.iter().filter(|lane| lane.thread.is_some()) {
            if let (Some(watch), Part::Sink) = (&lane.watch, lane.part) {
                // Wakes a thread that blocks in a receive call.
                let _ = rustix::net::shutdown(watch, rustix::net::Shutdown::Read);
            }
        }
    }

    /// Stops and joins all workers.
    pub fn join(&mut self) {
        self.close();
        self.join_ended();
    }

    /// Stops and joins the senders, and closes the sending half of their connections.
    pub fn join_sources(&mut self) {
        self.end_sending();
        for lane in self
            .lanes
            .iter_mut()
            .filter(|lane| lane.part == Part::Source)
        {
            lane.join();
            // Clients read whole blocks, whatever they receive on the control connection: the end
            // of the stream frees a client that waits for the rest of a block. Datagrams have no
            // end of stream.
            if let Some(watch) = &lane.watch {
                let _ = rustix::net::shutdown(watch, rustix::net::Shutdown::Write);
            }
        }
    }

    fn join_ended(&mut self) {
        for lane in &mut self.lanes {
            lane.join();
        }
    }
}
