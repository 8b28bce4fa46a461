//! How a test ends: its threads by themselves, or all of them because its time is over.

use std::sync::atomic::Ordering::Relaxed;

use linerate_dialect::far::FarReport;
use linerate_dialect::plain::SILENCE_NS;
use linerate_host::sys::clock::{self, Nanos};

use super::super::FlowKey;
use super::super::limits::cut_short;
use super::Test;
use crate::error::MeasureError;
use crate::flow::Part;

/// How soon after its end a test is looked at: what leaves behind it shows that it goes on.
const PAST_END_NS: Nanos = 1_000_000;

/// Why a test goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The server is told to end.
    Stopped,
    /// It took as long as any may.
    Time,
}

impl Test {
    /// What keeps it from going on.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        if self.house.stop.load(Relaxed) {
            return Some(Limit::Stopped);
        }
        let end_ns = self.end_ns()?;
        let going = self.lanes.iter().filter(|lane| lane.goes_on());
        let spans = going.filter_map(|lane| lane.context.span());
        // Farewells may take longer: some dialects say them several times.
        let goes_on = spans.map(|(_, last)| last).max().unwrap_or(0) > end_ns;
        goes_on.then_some(Limit::Time)
    }

    /// When its time is over that any may have.
    fn end_ns(&self) -> Option<Nanos> {
        self.limits().end_ns(&self.plan, self.start_ns)
    }

    /// When to look again at the latest: an interval ends, or the time that any may have.
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

    /// Waits for the end of all threads, if they could be had, and makes the record.
    pub fn conclude(mut self, spawned: Result<(), MeasureError>, far: impl FnOnce() -> FarReport) {
        if spawned.is_ok() {
            self.run_lanes();
        }
        self.join();
        self.finish(far(), spawned.err());
    }

    /// Waits for the end of all threads.
    pub fn run_lanes(&mut self) {
        while !self.is_done() {
            self.wait(clock::now() + 100_000_000);
            if let Some(limit) = self.limit() {
                self.cut(limit);
            }
        }
    }

    /// Whether it was over already, as far as anybody can tell: of a client that says no end nothing came for
    /// so long.
    fn is_silent(&self, now: Nanos) -> bool {
        let spans = self.lanes.iter().filter_map(|lane| lane.context.span());
        let last = spans.map(|(_, last)| last).max();
        self.says_no_end && last.is_some_and(|last| now.saturating_sub(last) > SILENCE_NS)
    }

    /// Ends it before its time.
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

    /// Whether this end ended it before its time.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.interrupted
    }

    /// Sources stop.
    pub fn end_sending(&self) {
        self.signals.end();
    }

    /// Everything stops, now.
    pub fn close(&self) {
        self.signals.end();
        self.signals.closed.store(true, Relaxed);
        for lane in self.lanes.iter().filter(|lane| lane.thread.is_some()) {
            if let (Some(watch), Part::Sink) = (&lane.watch, lane.part) {
                // It wakes whoever sleeps in a receive call.
                let _ = rustix::net::shutdown(watch, rustix::net::Shutdown::Read);
            }
        }
    }

    /// Ends all threads.
    pub fn join(&mut self) {
        self.close();
        self.join_ended();
    }

    /// Ends the sources and their streams.
    pub fn join_sources(&mut self) {
        self.end_sending();
        for lane in self
            .lanes
            .iter_mut()
            .filter(|lane| lane.part == Part::Source)
        {
            lane.join();
            // Clients read whole blocks, whatever they were told meanwhile: the end of the stream frees
            // one that waits for the rest of a block. Datagrams have no end.
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
