//! Coordinator of one end of a run, from the start to the exchange of results.
//!
//! Both ends do the same here: they keep the time, report intervals, send their totals and exchange
//! results. The threads that move payload are [`lane`](crate::lane)s; their results become figures
//! in [`outcome`](crate::outcome).

mod control_channel;
mod exchange;
mod interval;

pub use control_channel::Correspondence;

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
use linerate_host::sys::readiness::{self, Ready};
use linerate_host::sys::scheduling::{self, Above};
use linerate_host::sys::thread::prepare_wakes;
use linerate_metric::cost::{MachineTime, ProcessorTime};
use linerate_metric::event::What;
use linerate_metric::facts::{Host, Role};
use linerate_metric::plan::{Direction, Kind, Plan, Protocol, Sched};
use linerate_metric::record::{Doubt, Interval};

use crate::error::MeasureError;
use crate::flow::{FlowOutcome, Part, Shared, Timeline};
use crate::flow_counters::Totals;
use crate::flow_memory::Memory;
use crate::interval_series::Series;
use crate::loss::{Ledger, of_stack};
use crate::netstack::{stack_warnings as stack_doubts, thread_schedule};
use crate::result_builder::Account;
use crate::tcp_info_sums::TcpSums;
use crate::timestamps::{Noted, Stamped};
use crate::transport::Watch;
use crate::transport::call_times::{CallTally, add_tally};
use crate::worker::{Gate, LaneHandle};
use crate::worker_costs::Threads;

use self::exchange::Exchange;

/// Longest sleep of the coordinator: the delay until Ctrl-C is noticed.
const LOOK_UP_NS: Nanos = 250_000_000;

/// Drain time: longest wait of a receiver for payload in flight, in a run that ends by time.
const DRAIN_NS: Nanos = 3_000_000_000;

/// Time without progress after its end at which a run is aborted.
const STALL_NS: Nanos = 10_000_000_000;

/// Longest wait for the results of a run that ends by amount, even while frames arrive: a receiver
/// may have to drain the buffers of the path, 4 MB at 64 kb/s.
const UNBOUNDED_NS: Nanos = 600_000_000_000;

/// Time after the start in which rejected datagrams (ICMP port unreachable) abort the run.
const REFUSED_NS: Nanos = 3_000_000_000;

/// Longest wait of an interval for its requesting thread, or for the other end's half.
const GRACE_NS: Nanos = 150_000_000;

/// Time after the start of the first memory sample: all flows have their buffers by then.
const MEMORY_NS: Nanos = 200_000_000;

/// Interval of progress checks of request/response flows.
const WAKE_NS: Nanos = 200_000_000;

/// The interval once the run is to end: a wake-up just before a thread sleeps is lost.
const WAKE_AT_END_NS: Nanos = 10_000_000;

/// Lower bound per thread of the interval between two wake-ups of all threads. One wake-up takes
/// some 10 us of CPU time on the 2-core VM, at either side of the signal. Without this bound,
/// hundreds of threads that are woken whenever one of them ends would do nothing else.
const WAKE_EACH_NS: Nanos = 100_000;

/// Flow as seen by the coordinator.
pub struct FlowHandle {
    pub id: u32,
    pub direction: Direction,
    pub part: Part,
    /// State shared with the flow's thread.
    pub shared: Arc<Shared>,
    /// Observer of its socket, which keeps the descriptor open and closes it on drop.
    pub watch: Option<Watch>,
}

/// Finds a flow by number in `flows`, which are sorted by number.
#[must_use]
pub fn flow_of(flows: &[FlowHandle], id: u32) -> Option<&FlowHandle> {
    let place = flows.binary_search_by_key(&id, |flow| flow.id).ok()?;
    flows.get(place)
}

/// Coordinator of one end of a run, ready to start.
pub struct End<'a> {
    pub role: Role,
    pub plan: Arc<Plan>,
    pub host: Host,
    pub wire: &'a mut dyn Correspondence,
    /// Start barrier and phase of the threads.
    pub gate: Arc<Gate>,
    pub lanes: Vec<LaneHandle>,
    /// Flows of all threads, sorted by number.
    pub flows: Vec<FlowHandle>,
    /// Memory of the process before the flows were opened.
    pub memory: Memory,
    /// Readable when a thread has ended.
    pub done: UnixStream,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Callback for events.
    pub emit: &'a mut dyn FnMut(What),
    /// Warnings about the figures that are known before the start.
    pub doubts: Vec<Doubt>,
    /// This end measures steal time; of two ends on one machine, one does.
    pub watches_machine: bool,
    /// Reasons where timestamping is less than requested.
    pub notes: Vec<String>,
    /// Loss counters of this host.
    pub ledger: Ledger,
    /// Longest run that this end permits, measured from its start, with the warning for a run that
    /// was stopped by it; `None`: no limit.
    pub limit: Option<(Nanos, Doubt)>,
}

/// Results of a run at one end.
pub struct Ended {
    /// Results of this end.
    pub own: Outcome,
    /// Results of the other end; `None` when it was lost before.
    pub peer: Option<Outcome>,
    /// Intervals, both halves joined.
    pub intervals: Vec<Interval>,
    /// Number of intervals beyond the storage limit.
    pub intervals_left_out: u64,
    /// Timestamps of both ends, where they were requested.
    pub stamped: Option<Box<Stamped>>,
    /// Stopped early by a user at either end.
    pub interrupted: bool,
    /// Error that ended the run before the exchange of results.
    pub failure: Option<MeasureError>,
}

/// Counters of a flow or a direction at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    pub totals: Totals,
    /// Retransmitted TCP segments.
    pub retransmits: u64,
}

struct Run<'a> {
    end: End<'a>,
    timeline: Timeline,
    /// Time when senders stop; `None` when an amount ends the run.
    ends_ns: Option<Nanos>,
    /// Counters by flow at the start of counting, after the omitted time.
    base: BTreeMap<u32, Reading>,
    counted_from_ns: Nanos,
    base_taken: bool,
    series: Series,
    /// Counters by direction at the end of the last interval.
    last: BTreeMap<Direction, Reading>,
    /// Counters by flow at the same time, where the series has them.
    last_of_flow: BTreeMap<u32, Reading>,
    /// Last TCP_INFO sums by direction, with their time.
    tcp: BTreeMap<Direction, (TcpSums, Nanos)>,
    /// Start of the running interval on the grid; `interval_start_ns` is the real one.
    slot_start_ns: Nanos,
    interval_start_ns: Nanos,
    number: u64,
    exchange: Exchange,
    finished: Vec<FlowOutcome>,
    /// Figures of the other end's flows that arrived before its results.
    figures: Vec<linerate_dialect::control::FlowFigures>,
    usage: ThreadUsage,
    /// Durations of all system calls, where they are recorded.
    calls_taken: Option<CallTally>,
    threads: Threads,
    /// CPU time of the machine at the start.
    machine: (Option<MachineTime>, Vec<ProcessorTime>),
    /// CPU time of the machine when the last thread ended: later time is not part of the run.
    machine_at_end: Option<(Option<MachineTime>, Vec<ProcessorTime>)>,
    /// End time of the last thread.
    threads_ended_ns: Nanos,
    ticks: Option<Ticks>,
    /// The memory of the flows was sampled.
    memory_seen: bool,
    /// Time of the last progress check; `calls` has the flows' counters then.
    looked_ns: Nanos,
    /// Time when this end was requested to stop.
    stopped_ns: Option<Nanos>,
    calls: Vec<u64>,
    /// Every thread was woken for the end of the run.
    woken_at_end: bool,
}

/// Returns the machine's CPU time since boot, in total and by CPU.
fn machine_time() -> (Option<MachineTime>, Vec<ProcessorTime>) {
    (machine(), processors())
}

impl End<'_> {
    /// Starts the threads, coordinates the run and exchanges results.
    ///
    /// A failure is returned in [`Ended::failure`], together with the figures until then.
    pub fn run(self) -> Ended {
        let start_ns = clock::now();
        let plan = Arc::clone(&self.plan);
        let timeline = Timeline {
            start_ns,
            count_from_ns: start_ns.saturating_add(plan.omit_ns),
            interval_ns: plan.interval_ns,
            trace_on_ns: plan.trace_on_ns,
        };
        // Without it, a sleeping thread notices the end only when data arrives.
        let _ = prepare_wakes();
        // Real-time threads that spin on all CPUs would starve the coordinator, which has to end
        // them.
        let sched = match self.role {
            Role::Client => plan.sched.near,
            Role::Server => plan.sched.far,
        };
        // With `chrt -f 10 linerate …` all threads have the same priority, so spinning ones would
        // not yield either.
        let inherited = (sched == Sched::Inherited).then(scheduling::real_time_priority);
        // Threads of the user-space stack have a class of their own.
        let of_stack = self.host.stack.as_deref();
        let _above = (sched.real_time_priority())
            .or_else(|| inherited.flatten())
            .max(of_stack.and_then(thread_schedule::real_time_priority))
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

/// Longest wait for the other end's results, even while frames arrive.
#[derive(Clone, Copy, Debug)]
struct Waits {
    /// End of the run by time: payload in flight arrives soon after it, or never.
    ends_ns: Option<Nanos>,
    /// Time when this end was requested to stop.
    stopped_ns: Option<Nanos>,
}

impl Waits {
    /// Returns the deadline for an end that sent its own results at `said_ns`.
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
                let waited = readiness::poll(&self.end.done, Ready::Receive, patience);
                waited.map_err(|error| MeasureError::system("poll", error))?;
            } else {
                self.end.wire.beat()?;
                self.end.wire.flush()?;
                self.end.wire.wait(Some(self.end.done.as_fd()), until)?;
            }
            // The bytes only wake the poll; the thread handles show which thread ended.
            let _ = (&self.end.done).read(&mut [0; 64]);
        }
    }

    /// Returns the time of the next action that no event triggers.
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
            // Past its end, the interval waits for the requesting thread.
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

    /// Ends the run now, on request of a user at either end.
    fn interrupt(&mut self, now: Nanos) {
        self.exchange.interrupted = true;
        self.end.gate.phase.interrupt();
        self.ends_ns = Some(self.ends_ns.map_or(now, |ends| ends.min(now)));
        if self.exchange.sent_heard_ns.is_some() {
            self.exchange.drain_until_ns.get_or_insert(now + DRAIN_NS);
        }
    }

    /// Ends the run before its time and notifies the other end.
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

    /// Wakes threads that sleep without a timeout: at the end of the run, and when a flow has made
    /// no call since the last check.
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

    /// Returns the interval between two wake-ups of all threads; `shortest_ns` with few threads.
    fn wave_ns(&self, shortest_ns: Nanos) -> Nanos {
        let running = self.end.lanes.iter().filter(|lane| !lane.is_finished());
        shortest_ns.max(WAKE_EACH_NS * running.count() as Nanos)
    }

    /// Samples the memory of the flows.
    fn look_at_memory(&mut self, now: Nanos) {
        if !self.end.lanes.iter().all(LaneHandle::is_finished) {
            self.end.memory.look(&self.end.flows, now);
        }
    }

    /// Passes the number of rejected datagrams to the control channel, early in the run.
    fn watch_for_refusals(&self, now: Nanos) -> Result<(), MeasureError> {
        // After the start phase, a lost peer ends the run with the figures that exist.
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

    /// Aborts a run that makes no progress any more.
    fn watch_for_stalls(&mut self, now: Nanos) -> Result<(), MeasureError> {
        let bytes = self.end.flows.iter().map(|f| f.shared.meter.read().bytes);
        let bytes = bytes.sum();
        if bytes != self.exchange.moved.0 {
            self.exchange.moved = (bytes, now);
        }
        let still = now.saturating_sub(self.exchange.moved.1);
        // A receiver of an amount has no end time: it ends when all was sent and no payload
        // arrives.
        let all_sent = self.sources_done() && self.exchange.sent_heard_ns.is_some();
        if all_sent && self.ends_ns.is_none() && still >= STALL_NS {
            self.end.gate.phase.abort();
        }
        // A run that ends by time is aborted some time after it, whatever the other end does.
        let late = |ends: Nanos| now >= ends.saturating_add(STALL_NS + DRAIN_NS);
        if self.ends_ns.is_some_and(late) {
            self.end.gate.phase.abort();
        }
        // The other end may be alive and still never send its results.
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
                how: "it responds, but sends no results".to_owned(),
            });
        }
        Ok(())
    }

    fn sources_done(&self) -> bool {
        (self.end.lanes.iter())
            .filter(|lane| lane.part == Part::Source)
            .all(LaneHandle::is_finished)
    }

    /// Collects the results of threads that have ended.
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

    /// Returns the time until which a receiver counts at least, even if no payload arrives: a dead
    /// path has a low rate.
    fn window_end_ns(&self) -> Option<Nanos> {
        self.ends_ns.or(self.exchange.sent_heard_ns)
    }

    fn account(&self) -> Account<'_> {
        let mut doubts = self.end.doubts.clone();
        let stack = self.end.host.stack.as_deref();
        for doubt in stack.map(stack_doubts::of).unwrap_or_default() {
            // Warnings about all threads of this end are in the list already.
            if doubts.iter().all(|told| told.doubt != doubt.doubt) {
                doubts.push(doubt);
            }
        }
        if self.exchange.drain_cut {
            doubts.push(Doubt::new(
                "drain-cut",
                format!(
                    "payload was still in flight {} s after the end and is not counted",
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

    /// Ends the threads after a failure, and returns all results.
    fn wind_up(mut self, failure: Option<MeasureError>) -> Ended {
        if failure.is_some() {
            self.end.gate.phase.abort();
            // A receiver's figures do not cover the time after the failure.
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
            // Interrupted long after this end had sent everything.
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
