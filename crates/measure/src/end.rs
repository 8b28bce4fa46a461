//! One end of a run, from the start to the exchange of results.
//!
//! Both ends do the same here: they keep the time, report intervals, tell each other what they sent,
//! and exchange what they found. The threads that move payload are [`lane`](crate::lane)s; what
//! they came to is made into figures in [`outcome`](crate::outcome).

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::control::{
    FlowTotal, Frame, IntervalEnded, Outcome, Sent, Stop as StopFrame,
};
use linerate_host::steal::Ticks;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::ThreadUsage;
use linerate_host::sys::thread::prepare_wakes;
use linerate_host::sys::wait::{self, Ready};
use linerate_metric::event::What;
use linerate_metric::facts::{Host, Role};
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::record::{CountedAt, Doubt, Interval};

use crate::error::MeasureError;
use crate::flow::{FlowOutcome, Part, Shared, Timeline};
use crate::lane::{Gate, LaneHandle};
use crate::meter::Totals;
use crate::outcome::Account;
use crate::series::Series;
use crate::session::Wire;
use crate::transport::Watch;

/// Longest sleep of the coordinator: how soon it notices Ctrl-C.
const LOOK_UP_NS: Nanos = 250_000_000;

/// How long a sink of a run that ends by time waits for what is still on its way.
const DRAIN_NS: Nanos = 3_000_000_000;

/// Without any progress for so long after its end, a run is given up.
const STALL_NS: Nanos = 10_000_000_000;

/// How long an interval waits for its asking thread, or for the other end's half.
const GRACE_NS: Nanos = 150_000_000;

/// How long the server waits for the client's farewell, so that its results are not cut off.
const FAREWELL_NS: Nanos = 2_000_000_000;

/// How often it is seen whether flows of round trips move.
const WAKE_NS: Nanos = 200_000_000;

/// Frames taken in one turn: a peer that never stops talking does not stop our clock.
const FRAMES_A_TURN: usize = 64;

/// A flow as the coordinator sees it.
pub struct FlowHandle {
    /// Its number.
    pub id: u32,
    /// Which way it goes.
    pub direction: Direction,
    /// What this end does in it.
    pub part: Part,
    /// What its thread shares.
    pub shared: Arc<Shared>,
    /// Its socket to look at; `None` where there is nothing to see (UDP).
    pub watch: Option<Watch>,
}

/// One end of a run, ready to start.
pub struct End<'a> {
    /// Which end.
    pub role: Role,
    /// What the run does.
    pub plan: Arc<Plan>,
    /// This host.
    pub host: Host,
    /// The connection to the other end.
    pub wire: &'a mut Wire,
    /// Holds and tells the threads.
    pub gate: Arc<Gate>,
    /// The threads.
    pub lanes: Vec<LaneHandle>,
    /// Their flows.
    pub flows: Vec<FlowHandle>,
    /// Readable when a thread has ended.
    pub done: UnixStream,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Takes what happens.
    pub emit: &'a mut dyn FnMut(What),
    /// What is known to speak against the figures before the start.
    pub doubts: Vec<Doubt>,
    /// Whether this end watches over its machine; of two ends on one machine, one does.
    pub watches_machine: bool,
}

/// What became of a run at one end.
pub struct Ended {
    /// What this end found.
    pub own: Outcome,
    /// What the other end found, if it could still say so.
    pub peer: Option<Outcome>,
    /// The series, both halves joined.
    pub intervals: Vec<Interval>,
    /// Intervals that were too many to keep.
    pub intervals_left_out: u64,
    /// Whether somebody ended it early.
    pub interrupted: bool,
    /// What ended it before its results were exchanged.
    pub failure: Option<MeasureError>,
}

/// Counters of a flow or a direction at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// What was moved.
    pub totals: Totals,
    /// TCP: segments sent again.
    pub retransmits: u64,
}

/// How far the end of the run has come.
#[derive(Default)]
struct Exchange {
    sent_said: bool,
    /// When the other end said what it had sent.
    sent_heard_ns: Option<Nanos>,
    /// What this end found, once it has been said, and when.
    outcome: Option<(Outcome, Nanos)>,
    peer: Option<Outcome>,
    /// The other end has closed after its results; nothing is heard or said any more.
    closed: bool,
    interrupted: bool,
    stop_said: bool,
    drain_until_ns: Option<Nanos>,
    /// A sink was cut off while payload was on its way.
    drain_cut: bool,
    /// Bytes at this end, and when they or the other end's last grew.
    moved: (u64, Nanos),
}

struct Run<'a> {
    end: End<'a>,
    timeline: Timeline,
    /// When sources stop; `None` when an amount ends the run.
    ends_ns: Option<Nanos>,
    /// Counters when counting began, by flow.
    base: BTreeMap<u32, Reading>,
    counted_from_ns: Nanos,
    base_taken: bool,
    series: Series,
    /// Counters at the last interval's end, by direction.
    last: BTreeMap<Direction, Reading>,
    /// Where the running interval began on the grid of intervals, and when it really did.
    slot_start_ns: Nanos,
    interval_start_ns: Nanos,
    number: u64,
    exchange: Exchange,
    finished: Vec<FlowOutcome>,
    usage: ThreadUsage,
    threads: usize,
    /// When the last thread was seen to have ended.
    threads_ended_ns: Nanos,
    ticks: Option<Ticks>,
    /// When it was last seen whether flows move, and their calls then.
    looked_ns: Nanos,
    calls: Vec<u64>,
}

impl End<'_> {
    /// Starts, runs, and exchanges results.
    ///
    /// What goes wrong on the way is in [`Ended::failure`], beside what was measured until then.
    pub fn run(self) -> Ended {
        let start_ns = clock::now();
        let plan = Arc::clone(&self.plan);
        let timeline = Timeline {
            start_ns,
            count_from_ns: start_ns.saturating_add(plan.omit_ns),
            interval_ns: plan.interval_ns,
        };
        // Without it, threads that sleep look around when something arrives.
        let _ = prepare_wakes();
        self.gate.open(timeline);
        let mut run = Run {
            timeline,
            ends_ns: plan
                .duration_ns
                .map(|duration| timeline.count_from_ns.saturating_add(duration)),
            base: BTreeMap::new(),
            counted_from_ns: start_ns,
            base_taken: plan.omit_ns == 0,
            series: Series::default(),
            last: BTreeMap::new(),
            slot_start_ns: start_ns,
            interval_start_ns: start_ns,
            number: 0,
            exchange: Exchange {
                moved: (0, start_ns),
                ..Exchange::default()
            },
            finished: Vec::new(),
            usage: ThreadUsage::default(),
            threads: self.lanes.len(),
            threads_ended_ns: start_ns,
            ticks: self.watches_machine.then(Ticks::now).flatten(),
            looked_ns: start_ns,
            calls: Vec::new(),
            end: self,
        };
        let failure = run.conduct().err();
        if failure.is_none() && run.end.role == Role::Server {
            run.hear_farewell();
        }
        run.wind_up(failure)
    }
}

impl Run<'_> {
    fn conduct(&mut self) -> Result<(), MeasureError> {
        loop {
            self.hear()?;
            let now = clock::now();
            self.keep_time(now)?;
            self.collect();
            self.say_what_is_due(now)?;
            if self.exchange.outcome.is_some() && self.exchange.peer.is_some() {
                return Ok(());
            }
            let until = self.next_look(now);
            if self.exchange.closed {
                let patience = Duration::from_nanos(until.saturating_sub(now));
                let waited = wait::poll(&self.end.done, Ready::Receive, patience);
                waited.map_err(|error| MeasureError::system("poll", error))?;
            } else {
                self.end.wire.beat()?;
                self.end.wire.flush()?;
                self.end.wire.wait(Some(self.end.done.as_fd()), until)?;
            }
            // The bytes only wake us up; which threads ended is seen from the threads.
            let _ = (&self.end.done).read(&mut [0; 64]);
        }
    }

    /// Takes what the other end has said, up to a limit.
    fn hear(&mut self) -> Result<(), MeasureError> {
        for _ in 0..FRAMES_A_TURN {
            if self.exchange.closed {
                break;
            }
            match self.end.wire.hear() {
                Ok(Some(frame)) => self.take(frame)?,
                Ok(None) => break,
                // With its results the other end has said all: it may go.
                Err(_) if self.exchange.peer.is_some() => self.exchange.closed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says something, if there is still somebody to hear it.
    fn say(&mut self, frame: impl Into<Frame>) -> Result<(), MeasureError> {
        if self.exchange.closed {
            return Ok(());
        }
        match self.end.wire.say(frame) {
            Err(_) if self.exchange.peer.is_some() => {
                self.exchange.closed = true;
                Ok(())
            }
            said => said,
        }
    }

    /// When something is due that nobody will wake us for.
    fn next_look(&self, now: Nanos) -> Nanos {
        let mut due = now + LOOK_UP_NS;
        if !self.exchange.closed {
            due = due.min(self.end.wire.due_ns());
        }
        if !self.base_taken {
            due = due.min(self.timeline.count_from_ns);
        }
        if let Some(ends) = self.ends_ns.filter(|_| !self.end.gate.phase.is_ending()) {
            due = due.min(ends);
        }
        if let Some(end) = self.next_interval_end() {
            // Past its end, it waits for the asking thread.
            due = due.min(if end > now { end } else { now + 2_000_000 });
        }
        if let Some(drain) = self.exchange.drain_until_ns {
            due = due.min(drain.max(now + 1_000_000));
        }
        let ending = self.end.gate.phase.is_ending() || self.exchange.sent_heard_ns.is_some();
        if ending && self.end.plan.kind == Kind::Latency {
            // A wake-up that comes just before the thread sleeps is lost: the next one is due soon.
            due = due.min(now + 10_000_000);
        }
        due
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
                    if let Some(flow) = self.end.flows.iter().find(|flow| flow.id == total.id) {
                        flow.shared.expect(total.packets.unwrap_or(0));
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
            Frame::Outcome(outcome) => self.exchange.peer = Some(*outcome),
            Frame::Refuse(refuse) => {
                return Err(MeasureError::PeerRefused {
                    peer: self.end.wire.peer(),
                    problem: refuse.problem,
                    exit_code: refuse.exit_code,
                });
            }
            // Everything else says no more than that the other end is alive.
            _ => {}
        }
        Ok(())
    }

    /// Somebody wants the run to end now.
    fn interrupt(&mut self, now: Nanos) {
        self.exchange.interrupted = true;
        self.end.gate.phase.end();
        self.ends_ns = Some(self.ends_ns.map_or(now, |ends| ends.min(now)));
        if self.exchange.sent_heard_ns.is_some() {
            self.exchange.drain_until_ns.get_or_insert(now + DRAIN_NS);
        }
    }

    fn keep_time(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.end.stop.load(Relaxed) && !self.exchange.stop_said {
            self.exchange.stop_said = true;
            self.interrupt(now);
            self.say(StopFrame {
                why: "interrupted".to_owned(),
            })?;
        }
        if !self.base_taken && now >= self.timeline.count_from_ns {
            self.base_taken = true;
            self.counted_from_ns = now;
            self.base = (self.end.flows.iter())
                .map(|flow| (flow.id, read_flow(flow)))
                .collect();
        }
        if self.ends_ns.is_some_and(|ends| now >= ends) {
            self.end.gate.phase.end();
        }
        while let Some(end) = self.next_interval_end().filter(|&end| now >= end) {
            if !self.askers_passed(self.number) && now < end + GRACE_NS {
                break;
            }
            self.end_interval(end, now)?;
        }
        if (self.exchange.drain_until_ns).is_some_and(|drain| now >= drain)
            && !self.end.lanes.iter().all(LaneHandle::is_finished)
        {
            self.exchange.drain_cut = true;
            self.end.gate.phase.abort();
        }
        self.watch_for_stalls(now)?;
        self.wake_sleepers(now);
        self.show();
        Ok(())
    }

    /// Threads that sleep without a time-out are woken to look around: at the end, and when none of
    /// their flows has moved for a while.
    fn wake_sleepers(&mut self, now: Nanos) {
        if self.end.plan.kind != Kind::Latency {
            return;
        }
        let ending = self.end.gate.phase.is_ending() || self.exchange.sent_heard_ns.is_some();
        if !ending && now < self.looked_ns + WAKE_NS {
            return;
        }
        self.looked_ns = now;
        let mut calls = Vec::with_capacity(self.end.flows.len());
        calls.extend(self.end.flows.iter().map(|f| f.shared.meter.read().calls));
        let stuck = calls
            .iter()
            .zip(&self.calls)
            .any(|(now, before)| now == before);
        self.calls = calls;
        if ending || stuck {
            for lane in &self.end.lanes {
                lane.wake();
            }
        }
    }

    /// The end of the running interval on the grid; `None` when the end of the run ends it.
    fn next_interval_end(&self) -> Option<Nanos> {
        let end = self.timeline.interval_end(self.slot_start_ns)?;
        let last = self
            .ends_ns
            .is_some_and(|ends| end >= ends || self.end.gate.phase.is_ending());
        (!last && self.exchange.outcome.is_none()).then_some(end)
    }

    /// Whether all asking threads of this end have left the interval of that number behind.
    fn askers_passed(&self, interval: u64) -> bool {
        self.end.plan.kind != Kind::Latency
            || self
                .end
                .flows
                .iter()
                .filter(|flow| flow.part == Part::Source)
                .all(|flow| {
                    let mailbox = flow.shared.mailbox.lock().expect("no holder panics");
                    mailbox.intervals_ended > interval
                })
    }

    /// Closes the running interval of every direction; `slot_end_ns` is its end on the grid, `now`
    /// when its counters are read.
    fn end_interval(&mut self, slot_end_ns: Nanos, now: Nanos) -> Result<(), MeasureError> {
        let mut slot_end_ns = slot_end_ns;
        // Late by whole intervals: they end as one, under the number of the last.
        while let Some(next) = self.timeline.interval_end(slot_end_ns) {
            if next > now || slot_end_ns == self.timeline.count_from_ns {
                break;
            }
            slot_end_ns = next;
            self.number += 1;
        }
        // Throughput counters are read now and not when the interval should have ended; the
        // asking threads have cut theirs at the very end.
        let end_ns = match self.end.plan.kind {
            Kind::Throughput => now,
            Kind::Latency => slot_end_ns,
        };
        self.report(end_ns, now)?;
        self.slot_start_ns = slot_end_ns;
        self.interval_start_ns = end_ns;
        self.number += 1;
        Ok(())
    }

    /// Tells everybody of the interval that ends now.
    fn report(&mut self, end_ns: Nanos, now: Nanos) -> Result<(), MeasureError> {
        for direction in [Direction::Send, Direction::Receive] {
            let Some(interval) = self.interval_of(direction, end_ns) else {
                continue;
            };
            self.say(IntervalEnded {
                interval: interval.clone(),
            })?;
            self.series.own(now, interval);
        }
        Ok(())
    }

    /// This end's half of an interval; `None` for a direction that it does not count.
    fn interval_of(&mut self, direction: Direction, end_ns: Nanos) -> Option<Interval> {
        let plan = Arc::clone(&self.end.plan);
        let start_ns = self.interval_start_ns;
        let mut reading = Reading::default();
        let mut times: Option<Histogram> = None;
        let (mut cwnd, mut rtt, mut watched) = (0, 0, 0);
        let mut part = None;
        for flow in self.end.flows.iter().filter(|f| f.direction == direction) {
            part = Some(flow.part);
            reading.totals += flow.shared.meter.read();
            if flow.part == Part::Sink {
                continue;
            }
            if let Some(tcp) = flow.watch.as_ref().and_then(Watch::tcp) {
                reading.retransmits += u64::from(tcp.retransmits);
                cwnd += u64::from(tcp.cwnd) * u64::from(tcp.mss);
                rtt += u64::from(tcp.rtt_us) * 1_000;
                watched += 1;
            }
            if plan.kind == Kind::Latency {
                let mut mailbox = flow.shared.mailbox.lock().expect("no holder panics");
                if let Some(recent) = &mut mailbox.times {
                    times.get_or_insert_default().add(recent);
                    recent.clear();
                }
            }
        }
        let source = part? == Part::Source;
        if plan.kind == Kind::Latency && !source {
            return None;
        }
        let before = self.last.insert(direction, reading).unwrap_or_default();
        let mut moved = reading.totals.since(before.totals);
        if plan.kind == Kind::Latency {
            // The askers cut their times at the interval's very end, the counters are read later.
            moved.packets = times.as_ref().map_or(0, Histogram::count);
            moved.bytes = moved.packets * plan.payload_bytes;
        }
        let is_udp = plan.protocol == Protocol::Udp;
        let is_tcp_source = watched > 0;
        Some(Interval {
            number: self.number,
            start_ns: start_ns - self.timeline.start_ns,
            end_ns: end_ns - self.timeline.start_ns,
            direction,
            omitted: self.slot_start_ns < self.timeline.count_from_ns,
            counted_at: if source {
                CountedAt::Sender
            } else {
                CountedAt::Receiver
            },
            bytes: moved.bytes,
            packets: (is_udp || plan.kind == Kind::Latency).then_some(moved.packets),
            calls: Some(moved.calls),
            bytes_sent: source.then_some(moved.bytes),
            packets_sent: (source && is_udp).then_some(moved.packets),
            lost: ((is_udp && !source) || plan.kind == Kind::Latency).then_some(moved.missing),
            retransmits: is_tcp_source
                .then(|| reading.retransmits.saturating_sub(before.retransmits)),
            cwnd_bytes: is_tcp_source.then_some(cwnd),
            tcp_rtt_ns: is_tcp_source.then(|| rtt / watched),
            rtt_ns: times.as_ref().and_then(Histogram::summary),
        })
    }

    /// Emits the intervals that both ends have told of.
    fn show(&mut self) {
        for interval in self.series.ready(clock::now(), GRACE_NS) {
            (self.end.emit)(What::Interval {
                interval: Box::new(interval),
            });
        }
    }

    /// Gives up what makes no progress any more.
    fn watch_for_stalls(&mut self, now: Nanos) -> Result<(), MeasureError> {
        let bytes = self.end.flows.iter().map(|f| f.shared.meter.read().bytes);
        let bytes = bytes.sum();
        if bytes != self.exchange.moved.0 {
            self.exchange.moved = (bytes, now);
        }
        let still = now.saturating_sub(self.exchange.moved.1);
        // A sink of an amount has no clock: once all was sent and nothing comes, it is over.
        let all_sent = self.sources_done() && self.exchange.sent_heard_ns.is_some();
        if all_sent && self.ends_ns.is_none() && still >= STALL_NS {
            self.end.gate.phase.abort();
        }
        // Whatever the other end does, a run that ends by time is over some time later.
        let late = |ends: Nanos| now >= ends.saturating_add(STALL_NS + DRAIN_NS);
        if self.ends_ns.is_some_and(late) {
            self.end.gate.phase.abort();
        }
        // It may be alive and still never come to its results.
        let waited = self.exchange.outcome.as_ref();
        let waited = waited.is_some_and(|(_, said)| now >= said + STALL_NS + DRAIN_NS);
        let bounded = self.ends_ns.is_some() || self.timeline.interval_ns.is_some();
        if waited && bounded && still >= STALL_NS + DRAIN_NS {
            return Err(MeasureError::Vanished {
                peer: self.end.wire.peer(),
                how: "it answers, but sends no results".to_owned(),
            });
        }
        Ok(())
    }

    fn sources_done(&self) -> bool {
        (self.end.lanes.iter())
            .filter(|lane| lane.part == Part::Source)
            .all(LaneHandle::is_finished)
    }

    /// Takes in the threads that have ended.
    fn collect(&mut self) {
        for lane in &mut self.end.lanes {
            if !lane.is_finished() {
                continue;
            }
            let outcome = lane.join();
            if outcome.flows.is_empty() {
                continue;
            }
            self.threads_ended_ns = clock::now();
            self.finished.extend(outcome.flows);
            self.usage.cpu_ns += outcome.usage.cpu_ns;
            self.usage.user_ns += outcome.usage.user_ns;
            self.usage.system_ns += outcome.usage.system_ns;
            self.usage.voluntary_switches += outcome.usage.voluntary_switches;
            self.usage.involuntary_switches += outcome.usage.involuntary_switches;
        }
    }

    fn say_what_is_due(&mut self, now: Nanos) -> Result<(), MeasureError> {
        // In this order: a thread may end between the two looks, and what was sent must be said
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
                    packets: is_udp.then_some(flow.totals.packets),
                })
                .collect();
            if !flows.is_empty() {
                self.say(Sent { flows })?;
            }
        }
        if all_done && self.exchange.outcome.is_none() {
            self.collect();
            self.last_interval(now)?;
            let outcome = self.account().outcome();
            self.say(outcome.clone())?;
            self.exchange.outcome = Some((outcome, now));
        }
        Ok(())
    }

    /// The interval at the end: shorter, or longer by what was still on its way.
    fn last_interval(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.timeline.interval_ns.is_none() {
            return Ok(());
        }
        let ended = self.finished.iter().map(|flow| flow.ended_ns).max();
        let ended = ended.unwrap_or(now).max(self.window_end_ns().unwrap_or(0));
        // Its other half comes with the results at the latest, so it is waited for.
        self.report(ended.max(self.interval_start_ns + 1), Nanos::MAX)
    }

    /// Until when a sink counts at least, even if nothing arrives any more: a dead path is slow.
    fn window_end_ns(&self) -> Option<Nanos> {
        self.ends_ns.or(self.exchange.sent_heard_ns)
    }

    fn account(&self) -> Account<'_> {
        let mut doubts = self.end.doubts.clone();
        if self.exchange.drain_cut {
            doubts.push(Doubt::new(
                "drain-cut",
                format!(
                    "payload was still on its way {} s after the end and is not counted",
                    DRAIN_NS / 1_000_000_000
                ),
            ));
        }
        Account {
            role: self.end.role,
            plan: &self.end.plan,
            host: &self.end.host,
            flows: &self.end.flows,
            finished: &self.finished,
            base: &self.base,
            start_ns: self.timeline.start_ns,
            counted_from_ns: self.counted_from_ns,
            window_end_ns: self.window_end_ns(),
            threads: self.threads,
            threads_ended_ns: self.threads_ended_ns,
            usage: self.usage,
            ticks: self.ticks.as_ref(),
            interrupted: self.exchange.interrupted,
            doubts,
        }
    }

    /// Waits for the client to have read everything: closing with unread bytes resets the connection.
    fn hear_farewell(&mut self) {
        let until = clock::now() + FAREWELL_NS;
        while clock::now() < until && !self.exchange.closed {
            match self.end.wire.hear() {
                Ok(Some(Frame::Bye(_))) | Err(_) => return,
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

    /// Ends the threads, if something went wrong, and hands everything over.
    fn wind_up(mut self, failure: Option<MeasureError>) -> Ended {
        if failure.is_some() {
            self.end.gate.phase.abort();
        }
        while !self.end.lanes.iter().all(LaneHandle::is_finished) {
            for lane in &self.end.lanes {
                lane.wake();
            }
            clock::sleep_until(clock::now() + 1_000_000);
        }
        self.collect();
        let own = match self.exchange.outcome.take() {
            Some((outcome, _)) => outcome,
            None => self.account().outcome(),
        };
        for interval in self.series.ready(Nanos::MAX, 0) {
            (self.end.emit)(What::Interval {
                interval: Box::new(interval),
            });
        }
        let (intervals, intervals_left_out) = self.series.finish();
        Ended {
            own,
            peer: self.exchange.peer,
            intervals,
            intervals_left_out,
            interrupted: self.exchange.interrupted,
            failure,
        }
    }
}

fn read_flow(flow: &FlowHandle) -> Reading {
    let tcp = flow.watch.as_ref().and_then(Watch::tcp);
    Reading {
        totals: flow.shared.meter.read(),
        retransmits: tcp.map_or(0, |tcp| u64::from(tcp.retransmits)),
    }
}
