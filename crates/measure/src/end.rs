//! One end of a run, from the start to the exchange of results.
//!
//! Both ends do the same here: they keep the time, report intervals, tell each other what they sent,
//! and exchange what they found. The threads that move payload are [`lane`](crate::lane)s; what
//! they came to is made into figures in [`outcome`](crate::outcome).

mod correspondence;
mod exchange;
mod interval;

pub use correspondence::Correspondence;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_dialect::control::{Outcome, Stop as StopFrame};
use linerate_host::processor_time::{machine, machine_since, processors, processors_since};
use linerate_host::steal::Ticks;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::ThreadUsage;
use linerate_host::sys::sched::{self, Above};
use linerate_host::sys::thread::prepare_wakes;
use linerate_host::sys::wait::{self, Ready};
use linerate_metric::cost::{MachineTime, ProcessorTime};
use linerate_metric::event::What;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, Sched};
use linerate_metric::record::{Doubt, Interval};

use crate::error::MeasureError;
use crate::flow::{FlowOutcome, Part, Shared, Timeline};
use crate::lane::{Gate, LaneHandle};
use crate::loss::{Ledger, of_stack};
use crate::memory::Memory;
use crate::meter::Totals;
use crate::outcome::Account;
use crate::series::Series;
use crate::stack::{doubts as stack_doubts, schedule};
use crate::stamped::{Noted, Stamped};
use crate::tcp_series::TcpSums;
use crate::threads::Threads;
use crate::transport::Watch;
use crate::transport::calls::{CallTally, add_tally};

use self::exchange::Exchange;

/// Longest sleep of the coordinator: how soon it notices Ctrl-C.
const LOOK_UP_NS: Nanos = 250_000_000;

/// How long a sink of a run that ends by time waits for what is still on its way.
const DRAIN_NS: Nanos = 3_000_000_000;

/// Without any progress for so long after its end, a run is given up.
const STALL_NS: Nanos = 10_000_000_000;

/// The same of the results of a run of an amount, whatever is said meanwhile: what a sink still takes out of
/// the path's buffers, 4 MB at 64 kb/s.
const UNBOUNDED_NS: Nanos = 600_000_000_000;

/// How long after its start a run is given up because nobody takes its datagrams.
const REFUSED_NS: Nanos = 3_000_000_000;

/// How long an interval waits for its asking thread, or for the other end's half.
const GRACE_NS: Nanos = 150_000_000;

/// From when on a first look shows what flows take in memory.
const MEMORY_NS: Nanos = 200_000_000;

/// How often it is seen whether flows of round trips move.
const WAKE_NS: Nanos = 200_000_000;

/// The same once the run is to end: a wake-up that comes just before a thread sleeps is lost.
const WAKE_AT_END_NS: Nanos = 10_000_000;

/// Time between two wake-ups of all threads for each of them. Waking one takes some 10 us of a
/// processor on the 2-core VM, at either side of the signal: without this bound, hundreds of threads
/// that are woken whenever one of them has ended do nothing but look up.
const WAKE_EACH_NS: Nanos = 100_000;

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
    /// Its socket to look at. It stays open as long as this is here, and is closed here.
    pub watch: Option<Watch>,
}

/// The flow of that number, among flows that ascend in number.
#[must_use]
pub fn flow_of(flows: &[FlowHandle], id: u32) -> Option<&FlowHandle> {
    let place = flows.binary_search_by_key(&id, |flow| flow.id).ok()?;
    flows.get(place)
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
    pub wire: &'a mut dyn Correspondence,
    /// Holds and tells the threads.
    pub gate: Arc<Gate>,
    /// The threads.
    pub lanes: Vec<LaneHandle>,
    /// Their flows, ascending in number.
    pub flows: Vec<FlowHandle>,
    /// What the process had before they were opened.
    pub memory: Memory,
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
    /// What this end does not note of round trips, and why.
    pub notes: Vec<String>,
    /// This host's counters at the places where packets can be lost.
    pub ledger: Ledger,
    /// Longest time that this end gives a run, from its start on, and what is said of one that took it;
    /// `None` for no limit.
    pub limit: Option<(Nanos, Doubt)>,
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
    /// What both ends noted of round trips, where that was asked for.
    pub stamped: Option<Box<Stamped>>,
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
    /// The same by flow, where the series holds each of them.
    last_of_flow: BTreeMap<u32, Reading>,
    /// What the kernel told of the connections of a direction, and when.
    tcp: BTreeMap<Direction, (TcpSums, Nanos)>,
    /// Where the running interval began on the grid of intervals, and when it really did.
    slot_start_ns: Nanos,
    interval_start_ns: Nanos,
    number: u64,
    exchange: Exchange,
    finished: Vec<FlowOutcome>,
    /// Other figures of the other end's flows, until its results are whole.
    figures: Vec<linerate_dialect::control::FlowFigures>,
    usage: ThreadUsage,
    /// How long the system calls of all threads took, where they were recorded.
    calls_taken: Option<CallTally>,
    threads: Threads,
    /// The machine's time at the start.
    machine: (Option<MachineTime>, Vec<ProcessorTime>),
    /// The same when the last thread had ended: what follows is no part of the run.
    machine_at_end: Option<(Option<MachineTime>, Vec<ProcessorTime>)>,
    /// When the last thread ended.
    threads_ended_ns: Nanos,
    ticks: Option<Ticks>,
    /// Whether it was looked for once what the flows take in memory.
    memory_seen: bool,
    /// When it was last seen whether flows move, and their calls then.
    looked_ns: Nanos,
    /// Since when this end is told to end.
    stopped_ns: Option<Nanos>,
    calls: Vec<u64>,
    /// Whether all threads were woken because the run is to end.
    woken_at_end: bool,
}

/// Where the machine's time went since boot, as a whole and by processor.
fn machine_time() -> (Option<MachineTime>, Vec<ProcessorTime>) {
    (machine(), processors())
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
            trace_on_ns: plan.trace_on_ns,
        };
        // Without it, threads that sleep look around when something arrives.
        let _ = prepare_wakes();
        // Threads of a real-time class that spin on all processors would keep their own end from coming.
        let sched = match self.role {
            Role::Client => plan.sched.near,
            Role::Server => plan.sched.far,
        };
        // `chrt -f 10 linerate …` makes all threads alike: those that never sleep would outlive the end of the run.
        let inherited = (sched == Sched::Inherited).then(sched::real_time_priority);
        // Those of our own stack have a class of their own.
        let of_stack = self.host.stack.as_deref();
        let _above = (sched.real_time_priority())
            .or_else(|| inherited.flatten())
            .max(of_stack.and_then(schedule::real_time_priority))
            .and_then(Above::priority);
        let threads = Threads::new(&self.lanes, start_ns);
        let machine = machine_time();
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
            last_of_flow: BTreeMap::new(),
            tcp: BTreeMap::new(),
            slot_start_ns: start_ns,
            interval_start_ns: start_ns,
            number: 0,
            exchange: Exchange {
                moved: (0, start_ns),
                ..Exchange::default()
            },
            finished: Vec::new(),
            figures: Vec::new(),
            usage: ThreadUsage::default(),
            calls_taken: None,
            threads,
            machine,
            machine_at_end: None,
            threads_ended_ns: start_ns,
            ticks: self.watches_machine.then(Ticks::now).flatten(),
            memory_seen: false,
            looked_ns: start_ns,
            stopped_ns: None,
            calls: Vec::new(),
            woken_at_end: false,
            end: self,
        };
        let failure = run.conduct().err();
        if failure.is_none() && run.end.role == Role::Server {
            run.hear_farewell();
        }
        run.wind_up(failure)
    }
}

/// How long the other end's results are waited for, whatever it says meanwhile.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// When the run ends by time: what is on its way then arrives soon or never.
    ends_ns: Option<Nanos>,
    /// Since when this end is told to end.
    stopped_ns: Option<Nanos>,
}

impl Waits {
    /// Until when, by an end that said its own at this time.
    fn until(self, said_ns: Nanos) -> Nanos {
        let until = match self.ends_ns {
            Some(ends) => said_ns.max(ends).saturating_add(STALL_NS + DRAIN_NS),
            None => said_ns.saturating_add(UNBOUNDED_NS),
        };
        match self.stopped_ns {
            Some(stopped) => until.min(said_ns.max(stopped) + 2 * DRAIN_NS),
            None => until,
        }
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
        if let Some(&(most, _)) = self.end.limit.as_ref().filter(|_| !self.exchange.stop_said) {
            let end = self.timeline.start_ns.saturating_add(most);
            due = due.min(if end > now { end } else { now + LOOK_UP_NS });
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
            due = due.min(
                self.looked_ns
                    .saturating_add(self.wave_ns(WAKE_AT_END_NS))
                    .max(now),
            );
        }
        due
    }

    /// Somebody wants the run to end now.
    fn interrupt(&mut self, now: Nanos) {
        self.exchange.interrupted = true;
        self.end.gate.phase.interrupt();
        self.ends_ns = Some(self.ends_ns.map_or(now, |ends| ends.min(now)));
        if self.exchange.sent_heard_ns.is_some() {
            self.exchange.drain_until_ns.get_or_insert(now + DRAIN_NS);
        }
    }

    /// Ends the run before its time.
    fn stop(&mut self, now: Nanos, why: String) -> Result<(), MeasureError> {
        self.exchange.stop_said = true;
        self.interrupt(now);
        self.say(StopFrame { why })
    }

    fn keep_time(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.end.stop.load(Relaxed) && !self.exchange.stop_said {
            self.stop(now, "interrupted".to_owned())?;
        }
        if let Some((most, doubt)) = self.end.limit.clone()
            && now >= self.timeline.start_ns.saturating_add(most)
            && !self.exchange.stop_said
            && !self.end.gate.phase.is_ending()
        {
            self.stop(now, doubt.why.clone())?;
            self.end.doubts.push(doubt);
        }
        if !self.base_taken && now >= self.timeline.count_from_ns {
            self.base_taken = true;
            self.counted_from_ns = now;
            self.base = (self.end.flows.iter())
                .map(|flow| (flow.id, read_flow(flow)))
                .collect();
        }
        if !self.memory_seen && now >= self.timeline.start_ns + MEMORY_NS {
            // A run may end without an interval.
            self.memory_seen = true;
            self.look_at_memory(now);
        }
        if self.ends_ns.is_some_and(|ends| now >= ends) {
            if !self.end.gate.phase.is_ending() {
                self.look_at_memory(now);
            }
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
        self.watch_for_refusals(now)?;
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
        let first_at_end = ending && !std::mem::replace(&mut self.woken_at_end, ending);
        let pause_ns = self.wave_ns(if ending { WAKE_AT_END_NS } else { WAKE_NS });
        if !first_at_end && now < self.looked_ns.saturating_add(pause_ns) {
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

    /// Time from one wake-up of all threads to the next, which is `shortest_ns` for a few.
    fn wave_ns(&self, shortest_ns: Nanos) -> Nanos {
        let running = self.end.lanes.iter().filter(|lane| !lane.is_finished());
        shortest_ns.max(WAKE_EACH_NS * running.count() as Nanos)
    }

    /// Looks what the flows take in memory.
    fn look_at_memory(&mut self, now: Nanos) {
        if !self.end.lanes.iter().all(LaneHandle::is_finished) {
            self.end.memory.look(&self.end.flows, now);
        }
    }

    /// Tells the other end's dialect what the far kernel refuses while the run goes on.
    fn watch_for_refusals(&self, now: Nanos) -> Result<(), MeasureError> {
        // Who goes away later leaves the figures that there are.
        let begins = now < self.timeline.start_ns.saturating_add(REFUSED_NS);
        let is_udp = self.end.plan.protocol == Protocol::Udp;
        if !is_udp || !begins || self.end.gate.phase.is_ending() {
            return Ok(());
        }
        let watched = (self.end.flows.iter()).filter_map(|flow| flow.watch.as_ref());
        match watched.map(Watch::refusals).max() {
            Some(refusals) if refusals > 0 => self.end.wire.refused(refusals),
            _ => Ok(()),
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
        if self.end.stop.load(Relaxed) {
            self.stopped_ns.get_or_insert(now);
        }
        let waits = Waits {
            ends_ns: self.ends_ns,
            stopped_ns: self.stopped_ns,
        };
        let gives_up = |said: Nanos| {
            let waited = now >= said + STALL_NS + DRAIN_NS;
            let silent = self.timeline.interval_ns.is_some() && still >= STALL_NS + DRAIN_NS;
            now >= waits.until(said) || waited && silent
        };
        let said = self.exchange.outcome.as_ref().map(|&(_, said)| said);
        if said.is_some_and(gives_up) {
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
        for (place, lane) in self.end.lanes.iter_mut().enumerate() {
            if !lane.is_finished() {
                continue;
            }
            let outcome = lane.join();
            if outcome.flows.is_empty() {
                continue;
            }
            self.threads.ended(place, &outcome);
            if outcome.stack.is_some() {
                self.end.host.stack.clone_from(&outcome.stack);
            }
            self.threads_ended_ns = self.threads_ended_ns.max(outcome.ended_ns);
            self.finished.extend(outcome.flows);
            add_tally(&mut self.calls_taken, outcome.calls);
            self.usage.cpu_ns += outcome.usage.cpu_ns;
            self.usage.user_ns += outcome.usage.user_ns;
            self.usage.system_ns += outcome.usage.system_ns;
            self.usage.voluntary_switches += outcome.usage.voluntary_switches;
            self.usage.involuntary_switches += outcome.usage.involuntary_switches;
        }
        if self.machine_at_end.is_none() && self.end.lanes.iter().all(LaneHandle::is_finished) {
            self.machine_at_end = Some(machine_time());
        }
    }

    /// Until when a sink counts at least, even if nothing arrives any more: a dead path is slow.
    fn window_end_ns(&self) -> Option<Nanos> {
        self.ends_ns.or(self.exchange.sent_heard_ns)
    }

    fn account(&self) -> Account<'_> {
        let mut doubts = self.end.doubts.clone();
        let stack = self.end.host.stack.as_deref();
        for doubt in stack.map(stack_doubts::of).unwrap_or_default() {
            // What holds for all threads of this end was told already.
            if doubts.iter().all(|told| told.doubt != doubt.doubt) {
                doubts.push(doubt);
            }
        }
        if self.exchange.drain_cut {
            doubts.push(Doubt::new(
                "drain-cut",
                format!(
                    "payload was still on its way {} s after the end and is not counted",
                    DRAIN_NS / 1_000_000_000
                ),
            ));
        }
        let (machine, processors) = self.machine_at_end.clone().unwrap_or_else(machine_time);
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
            threads: self.end.lanes.len(),
            costs: &self.threads,
            memory: self.end.memory.cost(self.end.role, self.end.flows.len()),
            machine: (machine.zip(self.machine.0))
                .map(|(now, before)| machine_since(&now, &before)),
            processors: processors_since(&processors, &self.machine.1),
            threads_ended_ns: self.threads_ended_ns,
            usage: self.usage,
            calls: self.calls_taken.as_ref(),
            ticks: self.ticks.as_ref(),
            interrupted: self.exchange.interrupted,
            doubts,
            counters: match &self.end.host.stack {
                None => self.end.ledger.close(),
                Some(stack) => of_stack(self.end.role, stack),
            },
        }
    }

    /// Ends the threads, if something went wrong, and hands everything over.
    fn wind_up(mut self, failure: Option<MeasureError>) -> Ended {
        if failure.is_some() {
            self.end.gate.phase.abort();
            // The rest of its time did not take place: a receiver's figures do not cover it.
            let now = clock::now();
            self.ends_ns = self.ends_ns.map(|ends| ends.min(now));
        }
        while !self.end.lanes.iter().all(LaneHandle::is_finished) {
            for lane in &self.end.lanes {
                lane.wake();
            }
            clock::sleep_until(clock::now() + self.wave_ns(1_000_000));
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
        let own_log = self.finished.iter_mut().find_map(|flow| flow.log.take());
        let calls = self.calls_taken.as_mut().map(CallTally::take_latest);
        let near = match (own_log, calls) {
            (Some(log), _) => Some(Noted::of(*log)),
            (None, Some(calls)) if !calls.is_empty() => Some(Noted::of_calls(calls)),
            _ => None,
        };
        let stamped = near.map(|near| {
            Box::new(Stamped {
                start_ns: self.timeline.start_ns,
                near,
                far: self.exchange.noted,
            })
        });
        Ended {
            own,
            peer: self.exchange.peer,
            stamped,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_ends_results_are_not_waited_for_for_ever() {
        let second = 1_000_000_000;
        for (ends, stopped, said, until) in [
            (Some(10), None, 10, 23),
            // Interrupted long after this end had said all.
            (Some(60), None, 10, 73),
            (None, None, 10, 610),
            (None, Some(100), 10, 106),
            (Some(10), Some(11), 10, 17),
            (Some(10), Some(5), 12, 18),
        ] {
            let waits = Waits {
                ends_ns: ends.map(|ends| ends * second),
                stopped_ns: stopped.map(|stopped| stopped * second),
            };
            let told = format!("{waits:?} {said}");
            assert_eq!(waits.until(said * second), until * second, "{told}");
        }
    }
}
