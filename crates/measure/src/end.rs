//! One end of a run, from the start to the exchange of results.
//!
//! Both ends do the same here: they keep the time, report intervals, tell each other what they sent,
//! and exchange what they found. The threads that move payload are [`lane`](crate::lane)s.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linerate_dialect::control::{
    FlowFigures, FlowTotal, Frame, IntervalEnded, Outcome, Sent, Stop as StopFrame,
};
use linerate_host::steal::Ticks;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::ThreadUsage;
use linerate_metric::event::What;
use linerate_metric::facts::{Host, Role};
use linerate_metric::histogram::Histogram;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
use linerate_metric::record::{
    CountedAt, CpuCost, Doubt, HistogramData, Interval, Loss, Stream, Summary,
};

use linerate_metric::units::format_share;

use crate::error::MeasureError;
use crate::flow::{FlowOutcome, Part, Shared, Timeline};
use crate::lane::{Gate, LaneHandle};
use crate::meter::Totals;
use crate::series::Series;
use crate::session::Wire;
use crate::transport::Watch;

/// Longest sleep of the coordinator: how soon it notices Ctrl-C.
const LOOK_UP_NS: Nanos = 250_000_000;

/// How long a sink of a run that ends by time waits for what is still on its way.
const DRAIN_NS: Nanos = 3_000_000_000;

/// Silence of every flow after which a sink of a run that ends by amount gives up.
const STALL_NS: Nanos = 10_000_000_000;

/// How long an interval waits for its asking thread, or for the other end's half.
const GRACE_NS: Nanos = 150_000_000;

/// Stolen processor time from which a figure is doubtful: the third digit moves.
const STEAL_SHARE: f64 = 0.01;

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
    /// Whether somebody ended it early.
    pub interrupted: bool,
    /// What ended it before its results were exchanged.
    pub failure: Option<MeasureError>,
}

/// A direction's counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    totals: Totals,
    retransmits: u64,
}

/// How far the end of the run has come.
#[derive(Default)]
struct Progress {
    sent_said: bool,
    outcome: Option<Outcome>,
    peer: Option<Outcome>,
    interrupted: bool,
    stop_said: bool,
    drain_until_ns: Option<Nanos>,
    /// Bytes and the time when they last grew.
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
    interval_start_ns: Nanos,
    intervals: u64,
    progress: Progress,
    finished: Vec<FlowOutcome>,
    usage: ThreadUsage,
    ticks: Option<Ticks>,
}

impl<'a> End<'a> {
    /// Starts, runs, and exchanges results.
    ///
    /// What goes wrong on the way is in [`Ended::failure`], beside what was measured until then.
    pub fn run(self) -> Ended {
        let start_ns = clock::now();
        let plan = Arc::clone(&self.plan);
        let timeline = Timeline {
            start_ns,
            count_from_ns: start_ns + plan.omit_ns,
            interval_ns: plan.interval_ns,
        };
        self.gate.open(timeline);
        let mut run = Run {
            timeline,
            ends_ns: plan
                .duration_ns
                .map(|duration| timeline.count_from_ns + duration),
            base: BTreeMap::new(),
            counted_from_ns: start_ns,
            base_taken: plan.omit_ns == 0,
            series: Series::default(),
            last: BTreeMap::new(),
            interval_start_ns: start_ns,
            intervals: 0,
            progress: Progress {
                moved: (0, start_ns),
                ..Progress::default()
            },
            finished: Vec::new(),
            usage: ThreadUsage::default(),
            ticks: self.watches_machine.then(Ticks::now).flatten(),
            end: self,
        };
        let failure = run.conduct().err();
        run.wind_up(failure)
    }
}

impl Run<'_> {
    fn conduct(&mut self) -> Result<(), MeasureError> {
        loop {
            // With its results the other end has said all; then it may close at any time.
            while self.progress.peer.is_none() {
                let Some(frame) = self.end.wire.hear()? else {
                    break;
                };
                self.take(frame)?;
            }
            let now = clock::now();
            self.keep_time(now)?;
            self.collect();
            self.exchange(now)?;
            if self.progress.outcome.is_some() && self.progress.peer.is_some() {
                return Ok(());
            }
            self.end.wire.beat()?;
            self.end.wire.flush()?;
            let done = self.end.done.as_fd();
            self.end.wire.wait(Some(done), self.next_look(now))?;
            // The bytes only wake us up; which threads ended is seen from the threads.
            let _ = (&self.end.done).read(&mut [0; 64]);
        }
    }

    /// When something is due that nobody will wake us for.
    fn next_look(&self, now: Nanos) -> Nanos {
        let mut due = (now + LOOK_UP_NS).min(self.end.wire.due_ns());
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
        if let Some(drain) = self.progress.drain_until_ns {
            due = due.min(drain.max(now + 1_000_000));
        }
        due
    }

    fn take(&mut self, frame: Frame) -> Result<(), MeasureError> {
        match frame {
            Frame::Interval(ended) => {
                self.series.peer(ended.interval);
                self.show();
            }
            Frame::Sent(sent) => {
                for total in sent.flows {
                    if let Some(flow) = self.end.flows.iter().find(|flow| flow.id == total.id) {
                        flow.shared.expect(total.packets.unwrap_or(0));
                    }
                }
                if self.end.plan.duration_ns.is_some() || self.progress.interrupted {
                    self.progress
                        .drain_until_ns
                        .get_or_insert(clock::now() + DRAIN_NS);
                }
            }
            Frame::Stop(_) => {
                self.progress.interrupted = true;
                self.progress.stop_said = true;
                self.end.gate.phase.end();
            }
            Frame::Outcome(outcome) => self.progress.peer = Some(*outcome),
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

    fn keep_time(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.end.stop.load(Relaxed) && !self.progress.stop_said {
            self.progress.interrupted = true;
            self.progress.stop_said = true;
            self.end.gate.phase.end();
            self.end.wire.say(StopFrame {
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
            if !self.askers_passed(self.intervals) && now < end + GRACE_NS {
                break;
            }
            self.end_interval(end.max(self.interval_start_ns), now)?;
        }
        if self
            .progress
            .drain_until_ns
            .is_some_and(|drain| now >= drain)
        {
            self.end.gate.phase.abort();
        }
        self.watch_for_stalls(now);
        self.show();
        Ok(())
    }

    /// The end of the running interval; `None` when the end of the run ends it.
    fn next_interval_end(&self) -> Option<Nanos> {
        let end = self.timeline.interval_end(self.interval_start_ns)?;
        let last = self
            .ends_ns
            .is_some_and(|ends| end >= ends || self.end.gate.phase.is_ending());
        (!last && self.progress.outcome.is_none()).then_some(end)
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

    /// Closes the running interval of every direction. `now` is when its counters are read.
    fn end_interval(&mut self, end_ns: Nanos, now: Nanos) -> Result<(), MeasureError> {
        // Throughput counters are read now and not when the interval should have ended; the
        // asking threads have cut theirs at the very end.
        let end_ns = match self.end.plan.kind {
            Kind::Throughput => now,
            Kind::Latency => end_ns,
        };
        let start_ns = self.interval_start_ns;
        for direction in [Direction::Send, Direction::Receive] {
            let Some(interval) = self.interval_of(direction, start_ns, end_ns) else {
                continue;
            };
            self.end.wire.say(IntervalEnded {
                interval: interval.clone(),
            })?;
            self.series.own(now, interval);
        }
        self.interval_start_ns = end_ns;
        self.intervals += 1;
        Ok(())
    }

    /// This end's half of an interval; `None` for a direction that it does not count.
    fn interval_of(
        &mut self,
        direction: Direction,
        start_ns: Nanos,
        end_ns: Nanos,
    ) -> Option<Interval> {
        let plan = Arc::clone(&self.end.plan);
        let mut reading = Reading::default();
        let mut times: Option<Histogram> = None;
        let (mut cwnd, mut rtt, mut watched) = (0, 0, 0);
        let mut part = None;
        for flow in self.end.flows.iter().filter(|f| f.direction == direction) {
            part = Some(flow.part);
            let now = read_flow(flow);
            reading.totals += now.totals;
            reading.retransmits += now.retransmits;
            if let Some(tcp) = flow.watch.as_ref().and_then(Watch::tcp) {
                cwnd += u64::from(tcp.cwnd) * u64::from(tcp.mss);
                rtt += u64::from(tcp.rtt_us) * 1_000;
                watched += 1;
            }
            if plan.kind == Kind::Latency && flow.part == Part::Source {
                let mut mailbox = flow.shared.mailbox.lock().expect("no holder panics");
                if let Some(recent) = &mut mailbox.times {
                    times.get_or_insert_default().add(recent);
                    recent.clear();
                }
            }
        }
        let part = part?;
        if plan.kind == Kind::Latency && part == Part::Sink {
            return None;
        }
        let before = self.last.insert(direction, reading).unwrap_or_default();
        let moved = reading.totals.since(before.totals);
        let is_udp = plan.protocol == Protocol::Udp;
        let source = part == Part::Source;
        let is_tcp_source = source && watched > 0;
        Some(Interval {
            start_ns: start_ns - self.timeline.start_ns,
            end_ns: end_ns - self.timeline.start_ns,
            direction,
            omitted: start_ns < self.timeline.count_from_ns,
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

    /// A run that ends by amount has no clock: when nothing moves any more, it is over.
    fn watch_for_stalls(&mut self, now: Nanos) {
        let bytes = self.end.flows.iter().map(|f| f.shared.meter.read().bytes);
        let bytes = bytes.sum();
        if bytes != self.progress.moved.0 {
            self.progress.moved = (bytes, now);
        }
        let sources_done = self
            .end
            .lanes
            .iter()
            .filter(|lane| lane.part == Part::Source)
            .all(LaneHandle::is_finished);
        if sources_done && self.ends_ns.is_none() && now >= self.progress.moved.1 + STALL_NS {
            self.end.gate.phase.abort();
        }
        // Whatever the other end does, a run that ends by time is over some time later.
        if (self.ends_ns).is_some_and(|ends| now >= ends + STALL_NS + DRAIN_NS) {
            self.end.gate.phase.abort();
        }
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
            self.finished.extend(outcome.flows);
            self.usage.cpu_ns += outcome.usage.cpu_ns;
            self.usage.user_ns += outcome.usage.user_ns;
            self.usage.system_ns += outcome.usage.system_ns;
            self.usage.voluntary_switches += outcome.usage.voluntary_switches;
            self.usage.involuntary_switches += outcome.usage.involuntary_switches;
        }
    }

    fn exchange(&mut self, now: Nanos) -> Result<(), MeasureError> {
        // In this order: a thread may end between the two looks, and what was sent must be said
        // before the results, behind which the other end hears nothing more.
        let all_done = self.end.lanes.iter().all(LaneHandle::is_finished);
        let sources_done = (self.end.lanes.iter())
            .filter(|lane| lane.part == Part::Source)
            .all(LaneHandle::is_finished);
        if sources_done && !self.progress.sent_said {
            self.collect();
            self.progress.sent_said = true;
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
                self.end.wire.say(Sent { flows })?;
            }
        }
        if all_done && self.progress.outcome.is_none() {
            self.collect();
            self.last_interval(now)?;
            let outcome = self.outcome();
            self.end.wire.say(outcome.clone())?;
            self.progress.outcome = Some(outcome);
        }
        Ok(())
    }

    /// The shorter interval at the end, if anything moved in it.
    fn last_interval(&mut self, now: Nanos) -> Result<(), MeasureError> {
        if self.timeline.interval_ns.is_none() {
            return Ok(());
        }
        let ended = self.finished.iter().map(|flow| flow.ended_ns).max();
        let ended = ended.unwrap_or(now).max(self.interval_start_ns + 1);
        for direction in [Direction::Send, Direction::Receive] {
            let start_ns = self.interval_start_ns;
            let Some(interval) = self.interval_of(direction, start_ns, ended) else {
                continue;
            };
            if interval.bytes == 0 && interval.lost.unwrap_or(0) == 0 {
                continue;
            }
            self.end.wire.say(IntervalEnded {
                interval: interval.clone(),
            })?;
            self.series.own(now, interval);
        }
        Ok(())
    }

    fn outcome(&self) -> Outcome {
        let plan = &self.end.plan;
        let ended = self.finished.iter().map(|flow| flow.ended_ns).max();
        let ended = ended.unwrap_or(self.counted_from_ns);
        let mut histograms = BTreeMap::new();
        let mut times: Option<Histogram> = None;
        for flow in &self.finished {
            if let Some(more) = &flow.times {
                times.get_or_insert_default().add(more);
            }
        }
        if let Some(times) = &times {
            histograms.insert("rtt_ns".to_owned(), HistogramData::from(times));
        }
        let mut doubts = self.end.doubts.clone();
        let broken = self.finished.iter().filter_map(|flow| {
            let error = flow.error.as_ref()?;
            Some(format!("flow {}: {error}", flow.id))
        });
        let broken: Vec<_> = broken.take(3).collect();
        if !broken.is_empty() {
            doubts.push(Doubt::new("stream-broken", broken.join("; ")));
        }
        doubts.extend(self.stolen());
        let streams: Vec<_> = self
            .finished
            .iter()
            .map(|flow| FlowFigures {
                direction: flow.direction,
                stream: self.stream(flow),
            })
            .collect();
        Outcome {
            role: self.end.role,
            host: self.end.host.clone(),
            cpu: Some(self.cpu(ended)),
            losses: losses(plan, &streams),
            streams,
            histograms,
            doubts,
            interrupted: self.progress.interrupted,
            duration_ns: ended.saturating_sub(self.counted_from_ns),
        }
    }

    /// Says so when the hypervisor gave processor time of this machine to others.
    fn stolen(&self) -> Option<Doubt> {
        let share = Ticks::now()?.stolen_since(self.ticks.as_ref()?)?;
        (share >= STEAL_SHARE).then(|| {
            Doubt::new(
                "steal",
                format!(
                    "the hypervisor gave {} of this machine's processor time to others meanwhile",
                    format_share(share)
                ),
            )
        })
    }

    fn cpu(&self, ended: Nanos) -> CpuCost {
        let wall = ended.saturating_sub(self.timeline.start_ns).max(1) as f64;
        CpuCost {
            role: self.end.role,
            share: self.usage.cpu_ns as f64 / wall,
            user_share: self.usage.user_ns as f64 / wall,
            voluntary_switches: self.usage.voluntary_switches,
            involuntary_switches: self.usage.involuntary_switches,
        }
    }

    /// What this end knows of one flow.
    fn stream(&self, flow: &FlowOutcome) -> Stream {
        let plan = &self.end.plan;
        let base = self.base.get(&flow.id).copied().unwrap_or_default();
        let totals = flow.totals.since(base.totals);
        let duration_ns = flow.ended_ns.saturating_sub(self.counted_from_ns);
        let seconds = duration_ns as f64 / 1e9;
        let per_second = |count: u64| (duration_ns > 0).then(|| count as f64 / seconds);
        let is_udp = plan.protocol == Protocol::Udp;
        let mut summary = Summary {
            duration_ns: Some(duration_ns),
            ..Summary::default()
        };
        let retransmits = flow.facts.tcp.as_ref().map(|tcp| tcp.retransmits);
        let retransmits = retransmits.map(|now| now.saturating_sub(base.retransmits));
        match (plan.kind, flow.part) {
            (Kind::Throughput, Part::Source) => {
                summary.bytes_sent = Some(totals.bytes);
                summary.packets_sent = is_udp.then_some(totals.packets);
                summary.offered_bps = per_second(totals.bytes * 8);
                summary.calls_per_second = (!is_udp).then(|| per_second(totals.calls)).flatten();
                summary.retransmits = retransmits;
            }
            (Kind::Throughput, Part::Sink) => {
                summary.bytes_received = Some(totals.bytes);
                summary.goodput_bps = per_second(totals.bytes * 8);
                if is_udp {
                    summary.packets_received = Some(totals.packets);
                    summary.packets_per_second = per_second(totals.packets);
                    self.account(flow, base.totals, &mut summary);
                }
            }
            (Kind::Latency, Part::Source) => {
                let times = flow.times.as_ref();
                let trips = times.map_or(0, Histogram::count);
                summary.rtt_ns = times.and_then(Histogram::summary);
                summary.round_trips = Some(trips);
                summary.round_trips_per_second = per_second(trips);
                summary.lost = Some(totals.missing);
                let asked = trips + totals.missing;
                summary.loss_fraction = (asked > 0).then(|| totals.missing as f64 / asked as f64);
                summary.mismatched = Some(flow.mismatched);
                summary.bytes_sent = Some(totals.calls * plan.payload_bytes);
                summary.bytes_received = Some(totals.bytes);
                summary.retransmits = retransmits;
            }
            (Kind::Latency, Part::Sink) => {}
        }
        let facts = Some(flow.facts.clone());
        let (sender, receiver) = match flow.part {
            Part::Source => (facts, None),
            Part::Sink => (None, facts),
        };
        Stream {
            id: flow.id,
            summary,
            sender,
            receiver,
        }
    }

    /// What the numbers on datagrams and the sender's total tell together.
    fn account(&self, flow: &FlowOutcome, base: Totals, summary: &mut Summary) {
        let expected = self.end.flows.iter().find(|f| f.id == flow.id);
        let expected = expected.and_then(|f| f.shared.expected());
        let unique = match &flow.sequence {
            Some(sequence) => {
                summary.out_of_order = Some(sequence.out_of_order());
                summary.duplicates = Some(sequence.duplicates());
                summary.ipdv_ns = sequence.ipdv_ns();
                sequence.unique()
            }
            None => flow.totals.packets,
        };
        let lost = match (expected, &flow.sequence) {
            (Some(expected), _) => expected.saturating_sub(unique),
            // The sender could not say what it sent: gaps are all there is to see.
            (None, Some(sequence)) => sequence.missing(),
            (None, None) => return,
        };
        let lost = lost.saturating_sub(base.missing);
        let received = unique.saturating_sub(base.packets);
        summary.lost = Some(lost);
        let sent = received + lost;
        summary.loss_fraction = (sent > 0).then(|| lost as f64 / sent as f64);
    }

    /// Ends the threads, if something went wrong, and hands everything over.
    fn wind_up(mut self, failure: Option<MeasureError>) -> Ended {
        if failure.is_some() {
            self.end.gate.phase.abort();
        }
        for index in 0..self.end.lanes.len() {
            while !self.end.lanes[index].is_finished() {
                clock::sleep_until(clock::now() + 1_000_000);
            }
        }
        self.collect();
        let own = match self.progress.outcome.take() {
            Some(outcome) => outcome,
            None => self.outcome(),
        };
        for interval in self.series.ready(Nanos::MAX, 0) {
            (self.end.emit)(What::Interval {
                interval: Box::new(interval),
            });
        }
        Ended {
            own,
            peer: self.progress.peer,
            intervals: self.series.finish(),
            interrupted: self.progress.interrupted,
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

/// Where this end saw its lost datagrams go: its own sockets refused some, the rest never came.
fn losses(plan: &Plan, streams: &[FlowFigures]) -> Vec<Loss> {
    if plan.kind != Kind::Throughput || plan.protocol != Protocol::Udp {
        return Vec::new();
    }
    let mut losses = Vec::new();
    for direction in [Direction::Send, Direction::Receive] {
        let (mut lost, mut refused, mut known) = (0, 0, false);
        for flow in streams.iter().filter(|flow| flow.direction == direction) {
            let Some(flow_lost) = flow.stream.summary.lost else {
                continue;
            };
            known = true;
            lost += flow_lost;
            let socket = flow.stream.receiver.as_ref();
            let drops = socket.and_then(|socket| socket.receive_queue_drops);
            refused += drops.unwrap_or(0).min(flow_lost);
        }
        if !known || lost == 0 {
            continue;
        }
        // The socket counts from its opening: with omitted time its count is an upper bound.
        let exact = plan.omit_ns == 0;
        for (place, packets) in [("udp-receive-queue", refused), ("path", lost - refused)] {
            if packets > 0 {
                losses.push(Loss {
                    direction,
                    place: place.to_owned(),
                    packets,
                    exact,
                });
            }
        }
    }
    losses
}
