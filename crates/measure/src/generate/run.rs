//! A generating run: opens ports, starts the threads, keeps the time, counts.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::steal::Ticks;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu;
use linerate_metric::generate::{
    FCS_BYTES, GAP_BYTES, GenerateFigures, Load, PortFigures, TemplatePlan,
};
use linerate_metric::histogram::Histogram;
use linerate_metric::record::Doubt;
use linerate_port::{
    AnyReceive, BURST_FRAMES, Burst, Capabilities, Cause, PortError, QueueTotals, Transmit,
};

use super::capture::Capture;
use super::course::Filling;
use super::engine::{Receiver, Sender, Shared, Spent, Worker};
use super::ports::{Carriers, Ports, totals};
use super::sink::{ACCOUNTS, Arrived, Known, Sink};
use super::source::{Frames, Source};
use super::template::{Layout, MAC_BYTES, Template};
use super::threads;
use crate::MeasureError;
use crate::hire::hire;
use crate::stamped::instruments::processors;

/// What is sent.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one a run")]
pub enum What {
    /// Frames made from a template.
    Template(TemplatePlan),
    /// Frames of a capture, which was read before ports are opened: one of them may be asked to write the
    /// same file.
    Capture(Arc<Capture>),
}

/// What a run is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is sent.
    pub what: What,
    /// How fast.
    pub load: Load,
    /// Rate of the line, where it is known or given.
    pub line_bps: Option<u64>,
    /// Length of sending; none: until the last frame, or a stop.
    pub duration: Option<Duration>,
    /// Frames at most.
    pub frames: Option<u64>,
    /// Frames that leave at once.
    pub burst: u32,
    /// How long late frames are waited for. RFC 2544 section 23 has two seconds.
    pub drain: Duration,
    /// Length of an interval; none: no intervals.
    pub interval: Option<Duration>,
    /// One thread for both directions, or one each; none: as processors allow.
    pub threads: Option<u32>,
    /// Processors for the threads, in their order: sending, receiving.
    pub cpus: Vec<u32>,
    /// Frames that the receiving port sends before each run, so that switches learn where it is (RFC 2544
    /// section 23).
    pub learn: bool,
    /// What is late leaves at no more than twice the rate.
    pub gentle: bool,
    /// Frames that still arrive when late ones were waited for are waited for as well, ten times as long at
    /// most: else they would meet those of the next run in a queue.
    pub settle: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            what: What::Template(TemplatePlan::default()),
            load: Load::Max,
            line_bps: None,
            duration: None,
            frames: None,
            burst: 1,
            drain: Duration::from_secs(2),
            interval: None,
            threads: None,
            cpus: Vec::new(),
            learn: false,
            gentle: false,
            settle: false,
        }
    }
}

impl Settings {
    /// Whether they make sense by themselves, before ports are opened: a capture file that a port writes is
    /// replaced by opening it.
    ///
    /// # Errors
    /// [`MeasureError`]: what the template cannot say, and a share of a line whose rate is not known.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.check_template()?;
        self.check_load()
    }

    /// The same of the template alone.
    ///
    /// # Errors
    /// [`MeasureError`]: what the template cannot say.
    pub fn check_template(&self) -> Result<(), MeasureError> {
        if let What::Template(plan) = &self.what {
            Template::new(plan, Ports::address(None, 1), Ports::address(None, 2))?;
        }
        Ok(())
    }

    /// Whether threads can poll where they are to.
    ///
    /// # Errors
    /// [`MeasureError`]: processors that are not there, or too many or too few for the threads.
    pub fn check_threads(&self, receives: bool) -> Result<(), MeasureError> {
        threads::of(self, receives, &cpu::usable().unwrap_or_default()).map(|_| ())
    }

    fn check_load(&self) -> Result<(), MeasureError> {
        let recorded = matches!(&self.what, What::Capture(capture) if capture.recorded_times());
        match (self.load, self.line_bps) {
            (Load::Line(_), None) if !recorded => Err(MeasureError::Generator {
                object: self.load.to_string(),
                situation: "the rate of the line is not known".to_owned(),
                next_step: "say it: --line-rate 10G".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// What all queues moved within a stretch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// From here on, counted from the start of sending.
    pub start_ns: u64,
    /// To here.
    pub end_ns: u64,
    /// Sent.
    pub sent: QueueTotals,
    /// Received.
    pub received: QueueTotals,
    /// Numbers found missing meanwhile; a late frame is missed first and found later.
    pub missing: u64,
}

/// What follows from ports and settings before anything is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Frames per second that are asked for; none: as fast as it goes, or at recorded times.
    pub intended_fps: Option<f64>,
    /// Flows.
    pub flows: u32,
    /// Mean size of frames with check sequence.
    pub frame_bytes: f64,
    /// Whether frames carry tags.
    pub tagged: bool,
    /// Threads that poll.
    pub threads: u32,
    /// Processors of the threads, where they are pinned.
    pub cpus: Vec<u32>,
}

/// What a run tells while it lasts.
#[derive(Debug)]
pub enum Told<'a> {
    /// It is about to send.
    Started(&'a Facts),
    /// An interval is over.
    Interval(&'a Reading),
}

/// What a run gave.
#[derive(Debug)]
pub struct Ran {
    /// When sending began.
    pub started: Timestamp,
    /// The figures.
    pub figures: GenerateFigures,
    /// How late frames left.
    pub lateness: Option<Histogram>,
    /// All delays.
    pub delay: Option<Histogram>,
    /// The series.
    pub readings: Vec<Reading>,
    /// What followed from the settings.
    pub facts: Facts,
    /// Whether a thread could not be pinned.
    pub unpinned: bool,
    /// Whether threads had to share processors.
    pub shared_cores: bool,
    /// Whether somebody stopped it before its time.
    pub interrupted: bool,
    /// Why a port stopped working, if one did.
    pub trouble: Option<PortError>,
    /// A port at whose other end nobody ever was.
    pub alone: Option<String>,
    /// That processes at the other ends of ports went away meanwhile.
    pub left: Vec<Doubt>,
    /// That ports, memory and threads sit on several NUMA nodes.
    pub numa: Option<Doubt>,
    /// A queue on the way that was still filling when sending ended, where frames tell.
    pub filling: Option<Filling>,
    /// Frames that arrived over the time from the first to the last of them; none of fewer than two.
    pub arrival_fps: Option<f64>,
    /// What kept this program from its work.
    pub own: Disturbance,
}

/// What kept the run's own threads from their work while they sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Bursts that left so late that others left at once with them.
    pub late: u64,
    /// How late the latest was.
    pub late_by_ns: Nanos,
    /// The least share of a core that a thread had which never sleeps; 1 where all had all of theirs.
    pub core_share: f64,
    /// How long threads were ready to run and did not, and the hypervisor ran somebody else.
    pub stood_ns: Nanos,
    /// Frames that the receiving port dropped because this program did not look.
    pub dropped: u64,
}

impl Disturbance {
    /// A burst that is late by so many gaps between bursts leaves with others.
    const GAPS: f64 = 8.0;
    /// Less than this is the noise of any loop, and more is late at any rate.
    const LATE_NS: (f64, f64) = (50_000.0, 1_000_000.0);

    /// Later than this is late, where so many bursts are due in a second.
    pub(crate) fn late_ns(bursts_per_second: f64) -> Nanos {
        let (least, most) = Self::LATE_NS;
        (Self::GAPS * 1e9 / bursts_per_second.max(1e-9)).clamp(least, most) as Nanos
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How often the coordinator looks at the flag of a stop.
const LOOK_NS: Nanos = 20_000_000;
/// How often it looks whether all frames have arrived.
const DRAIN_LOOK_NS: Nanos = 1_000_000;
/// Nothing came for so long: what was on its way has arrived.
const SETTLED_NS: Nanos = 50_000_000;
/// Times the wait for late frames at most, while they come.
const SETTLING: u64 = 10;
/// What the last frame without a time may be later than the first one in any run.
const UNTIMED_NOISE_NS: Nanos = 5_000_000;
/// How long repeated frames are waited for when all have arrived.
const AFTER_LAST_NS: Nanos = 5_000_000;

/// Sends and receives until the time is over, the last frame left, or `stop` is set.
///
/// # Errors
/// What cannot be sent, and why.
pub fn run(
    ports: &mut Ports,
    settings: &Settings,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<Ran, MeasureError> {
    settings.check_load()?;
    let (frames, template) = match &settings.what {
        What::Template(plan) => {
            let template = ports.template(plan)?;
            (Frames::Made(Box::new(template.clone())), Some(template))
        }
        What::Capture(capture) => {
            ports.check_size(capture.largest())?;
            (Frames::Captured(Arc::clone(capture)), None)
        }
    };
    let (flows, frame_bytes, known) = known(&frames);
    let accounts = flows.min(ACCOUNTS.into()) as u16;
    // Frames that keep their recorded times have no rate to keep.
    let recorded = matches!(&settings.what, What::Capture(capture) if capture.recorded_times());
    let rate = (settings.load)
        .frames_per_second(frame_bytes, settings.line_bps)
        .filter(|_| !recorded);
    if settings.learn
        && let Some(template) = &template
    {
        learn(ports, template);
    }
    let epoch = clock::now();
    let mark = fastrand::u16(..);
    let known = match known {
        Some(place) => Known::Tag {
            place,
            mark,
            content: template
                .as_ref()
                .map_or_else(Box::default, |template| template.content().into()),
            headers: template
                .as_ref()
                .map_or_else(Default::default, Template::expected),
        },
        None => Known::Length(lengths(&frames)),
    };
    let tagged = matches!(known, Known::Tag { .. });
    let limit = settings.frames.unwrap_or(u64::MAX);
    let burst = settings.burst.max(1);
    let mut source = Source::new(frames, rate, limit, burst, accounts, mark, epoch);
    if settings.gentle {
        source = source.catching_up_gently();
    }
    let duration = settings.duration.map(nanos);
    let receives = ports.reflects || ports.receive.is_some();
    let sink = receives.then(|| Sink::new(known, accounts, epoch).sent_for(duration));
    let usable = cpu::usable().unwrap_or_default();
    let threads = threads::of(settings, receives, &usable)?;
    let cpus = settings.cpus.clone();
    let polite = usable.len() <= threads as usize;
    let shared = Shared::new(threads as usize, polite);
    // What the kernel dropped between runs is of none of them.
    if let Err(error) = ports.refresh() {
        shared.failed(error);
    }
    let before = ports.counters();
    let carriers = ports.carriers();
    let facts = Facts {
        intended_fps: rate,
        flows,
        frame_bytes,
        tagged,
        threads,
        cpus,
    };
    let numa = ports.seats.doubt(&facts.cpus);
    tell(Told::Started(&facts));

    let memory = ports.memory.clone();
    let (sent_counters, received_counters) = ports.queue_counters();
    let names: Vec<String> = ports.capabilities().map(|port| port.name.clone()).collect();
    let Ports {
        send,
        others,
        receive,
        ..
    } = ports;
    let sender = Sender::new(&mut send.transmit, source, &memory, BURST_FRAMES, duration);
    let queues: Vec<&mut AnyReceive> = match receive {
        Some(ports) => ports.iter_mut().map(|port| &mut port.receive).collect(),
        None => std::iter::once(&mut send.receive)
            .chain(others.iter_mut().map(|port| &mut port.receive))
            .collect(),
    };
    let receiver = sink.map(|sink| Receiver::new(queues, sink, &memory, BURST_FRAMES));
    let mut workers = vec![Worker {
        sender: Some(sender),
        receiver: None,
        cpu: facts.cpus.first().copied(),
        ports: names.join(", "),
    }];
    match (threads, receiver) {
        (2, receiver @ Some(_)) => workers.push(Worker {
            sender: None,
            receiver,
            cpu: facts.cpus.get(1).copied(),
            ports: names.join(", "),
        }),
        (_, receiver) => workers[0].receiver = receiver,
    }
    let totals = || totals(&sent_counters, &received_counters);
    let mut readings = Vec::new();
    let ticks = Ticks::now();
    let ran = std::thread::scope(|scope| {
        let (memory, shared) = (&memory, &shared);
        let hired = hire::<&mut Worker<'_>, _>(
            "generate",
            "generating",
            workers.len(),
            |builder, given| {
                builder.spawn_scoped(scope, move || {
                    given.recv().ok().map(|worker| worker.run(memory, shared))
                })
            },
        )?;
        let give = |(worker, (give, thread)): (_, (mpsc::Sender<_>, _))| {
            // It does nothing but wait for it.
            let _ = give.send(worker);
            thread
        };
        let threads: Vec<ScopedJoinHandle<_>> = workers.iter_mut().zip(hired).map(give).collect();
        shared.gate.wait();
        let started = Timestamp::now();
        let interval = settings.interval.map(nanos).filter(|&time| time > 0);
        let drain = (nanos(settings.drain), settings.settle);
        let mut series = Series::new(before, interval);
        let interrupted = watch(shared, stop, receives, drain, &mut || {
            let missing = shared.progress.missing.load(Relaxed);
            if let Some(reading) = series.look(&totals, missing, false) {
                tell(Told::Interval(&reading));
                readings.push(reading);
            }
        });
        shared.stop.store(true, Relaxed);
        // One that a fault ended has told so.
        let spent: Vec<Spent> = threads
            .into_iter()
            .filter_map(|thread| thread.join().ok().flatten())
            .collect();
        let missing = shared.progress.missing.load(Relaxed);
        if let Some(reading) = series.look(&totals, missing, true) {
            tell(Told::Interval(&reading));
            readings.push(reading);
        }
        Ok::<_, MeasureError>((started, interrupted, spent))
    });
    let (started, interrupted, spent) = ran?;
    let mut parts = (None, None);
    for worker in workers {
        parts.0 = parts.0.or(worker.sender);
        parts.1 = parts.1.or(worker.receiver.map(|receiver| receiver.sink));
    }
    let (Some(sender), sink) = parts else {
        unreachable!("the first worker sends");
    };
    // One that a fault ended sent until about now.
    let sent_at = shared.sent().map_or_else(clock::now, |(at, _)| at);
    let ends = Ends {
        began: sender.began.unwrap_or(sent_at),
        due: sender.source.due(),
        last: sender.last,
        sent_at,
        paced: rate.is_some() || recorded,
        duration: duration.filter(|_| !interrupted && settings.frames.is_none()),
    };
    let sent = sender.source.made();
    let refused = sender.refused;
    let (numbers, unsent, lateness) = sender.source.finish();
    let after = ports.counters();
    let moved = (after.0.since(before.0), after.1.since(before.1));
    let arrived = sink.map(|sink| sink.finish(&numbers));
    let (filling, arrival_fps) = path_of(arrived.as_ref(), &ends);
    let own = {
        let bursts = rate.map_or(f64::INFINITY, |rate| rate / f64::from(burst));
        let late_ns = Disturbance::late_ns(bursts);
        let stolen = ticks.zip(Ticks::now());
        let stolen = stolen.and_then(|(before, after)| after.stolen_ns_since(&before));
        Disturbance {
            late: lateness
                .as_ref()
                .map_or(0, |late| late.count_above(late_ns)),
            late_by_ns: lateness.as_ref().and_then(Histogram::max).unwrap_or(0),
            dropped: moved.1.dropped(Cause::RingFull) + moved.1.dropped(Cause::NoBuffer),
            ..disturbance(&spent, stolen.unwrap_or(0), &ends)
        }
    };
    let (mut figures, delay) = figures(&ends, sent, frame_bytes, &moved, arrived);
    figures.unsent = unsent;
    figures.refused_polls = refused;
    figures.flows_each = flows.div_ceil(u32::from(accounts));
    let carriers = both(carriers, ports.carriers());
    // The clock of the run and that of absences are one, with other origins.
    let since = Duration::from_nanos(clock::now().saturating_sub(ends.began));
    let began = Instant::now() - since;
    figures.send = port(&ports.send.capabilities, carriers.0, moved.0);
    figures.receive = receives.then(|| {
        let port_of = ports.receive.as_ref().and_then(|ports| ports.first());
        port(
            &port_of.unwrap_or(&ports.send).capabilities,
            carriers.1,
            moved.1,
        )
    });
    let trouble = shared
        .trouble
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(Ran {
        started,
        figures,
        lateness,
        delay,
        readings,
        facts,
        unpinned: spent.iter().any(|spent| !spent.pinned),
        shared_cores: polite,
        interrupted,
        trouble,
        alone: ports.without_peer().map(str::to_owned),
        left: ports.left(began, ends.duration()),
        numa,
        filling,
        arrival_fps,
        own,
    })
}

/// What arrivals tell of the way: whether a queue was filling, and how fast frames left it.
fn path_of(arrived: Option<&Arrived>, ends: &Ends) -> (Option<Filling>, Option<f64>) {
    let Some(arrived) = arrived else {
        return (None, None);
    };
    let fps = (arrived.span_ns > 0 && arrived.received > 1)
        .then(|| (arrived.received - 1) as f64 * 1e9 / arrived.span_ns as f64);
    // Frames without a time: the last one was so much longer on its way than the first. A stall at the end
    // looks the same, but one that long is seldom.
    let later = arrived.span_ns.saturating_sub(ends.duration());
    let untimed =
        (arrived.delay.is_none() && ends.paced && later > UNTIMED_NOISE_NS).then(|| Filling {
            growth: later as f64 / ends.duration() as f64,
            wait_ns: later,
        });
    (arrived.filling.or(untimed), fps)
}

/// What the threads that poll were kept from, of all the time that they ran scaled to the time of sending.
fn disturbance(spent: &[Spent], stolen_ns: Nanos, ends: &Ends) -> Disturbance {
    let wall = spent.iter().map(|spent| spent.wall_ns).max().unwrap_or(0);
    // Threads that share a processor wait for each other: the one that waited longest says how long.
    let waited: Nanos = spent.iter().map(|spent| spent.waited_ns).max().unwrap_or(0);
    // What was stolen is told of all processors together.
    let stolen_ns = stolen_ns / processors().max(1) as Nanos;
    let part = (ends.duration() as f64 / wall.max(1) as f64).min(1.0);
    let shares = spent.iter().map(Spent::core_share);
    Disturbance {
        core_share: shares.fold(1.0, f64::min),
        stood_ns: ((waited + stolen_ns) as f64 * part) as Nanos,
        ..Disturbance::default()
    }
}

/// Waits for the end: of the time, of the frames, or by `stop`; returns whether it was stopped. Late frames
/// are waited for as long as `drain` says, and with its second part while they come.
fn watch(
    shared: &Shared,
    stop: &AtomicBool,
    receives: bool,
    (drain, settle): (Nanos, bool),
    look: &mut dyn FnMut(),
) -> bool {
    let mut all_at = None;
    let (mut seen, mut came_at) = (0, 0);
    loop {
        look();
        if stop.load(Relaxed) {
            return true;
        }
        if shared.stop.load(Relaxed) {
            return false;
        }
        let now = clock::now();
        let Some((sent_at, sent)) = shared.sent() else {
            clock::sleep_until(now + LOOK_NS);
            continue;
        };
        let arrived = shared.progress.unique.load(Relaxed);
        if arrived != seen {
            (seen, came_at) = (arrived, now);
        }
        let is_over = now >= sent_at.saturating_add(drain);
        let still_comes = settle
            && now < came_at.saturating_add(SETTLED_NS)
            && now < sent_at.saturating_add(drain.saturating_mul(SETTLING));
        if !receives || is_over && !still_comes {
            return false;
        }
        if arrived >= sent {
            let since = *all_at.get_or_insert(now);
            if now >= since + AFTER_LAST_NS {
                return false;
            }
        }
        clock::sleep_until(now + DRAIN_LOOK_NS);
    }
}

/// Flows, mean size and the place of the tag.
fn known(frames: &Frames) -> (u32, f64, Option<(usize, Layout)>) {
    match frames {
        Frames::Made(template) => (
            template.flows(),
            template.sizes().mean(),
            template.tag_place(),
        ),
        Frames::Captured(capture) => (1, capture.mean(), None),
    }
}

/// Lengths that frames of the run have.
fn lengths(frames: &Frames) -> Box<[bool]> {
    let mut lengths = vec![false; usize::from(u16::MAX) + 1];
    match frames {
        Frames::Made(template) => {
            for &size in template.sizes().order() {
                lengths[usize::from(size)] = true;
            }
        }
        Frames::Captured(capture) => {
            for number in 0..capture.len() {
                lengths[capture.frame(number).len()] = true;
            }
        }
    }
    lengths.into()
}

/// Flows whose addresses are taught to switches: more than that no test needs before it starts.
const LEARNED: u32 = 1024;

/// Sends a frame from each flow's destination, so that switches know where it is and flood nothing.
fn learn(ports: &mut Ports, template: &Template) {
    let Some(port) = ports.receive.as_mut().and_then(|ports| ports.first_mut()) else {
        return;
    };
    let mut pool = ports.memory.pool();
    let mut burst = Burst::new();
    for flow in 0..template.flows().min(LEARNED) {
        let (destination, source) = template.addresses(flow);
        if let Some(mut frame) = pool.allocate() {
            // Ethernet's shortest frame, of a type that no host takes (IEEE 802, for experiments).
            frame.set_len(60);
            let bytes = ports.memory.bytes_mut(&mut frame);
            bytes.fill(0);
            bytes[..MAC_BYTES].copy_from_slice(&source);
            bytes[MAC_BYTES..2 * MAC_BYTES].copy_from_slice(&destination);
            bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
            if let Err(frame) = burst.push(frame) {
                pool.free(frame);
            }
        }
        port.transmit.transmit(&mut pool, &mut burst);
        pool.free_all(&mut burst);
    }
    port.transmit.reclaim(&mut pool);
}

/// Cuts a run into intervals.
struct Series {
    interval: Option<Nanos>,
    began: Nanos,
    from: Nanos,
    next: Nanos,
    before: (QueueTotals, QueueTotals),
    missing: u64,
}

impl Series {
    fn new(before: (QueueTotals, QueueTotals), interval: Option<Nanos>) -> Self {
        let now = clock::now();
        Self {
            interval,
            began: now,
            from: now,
            next: now.saturating_add(interval.unwrap_or(u64::MAX)),
            before,
            missing: 0,
        }
    }

    /// The interval that is over by now, or at the end what is left of one.
    fn look(
        &mut self,
        totals: &dyn Fn() -> (QueueTotals, QueueTotals),
        missing: u64,
        ended: bool,
    ) -> Option<Reading> {
        let interval = self.interval?;
        let now = clock::now();
        // Too short a rest says nothing.
        let long_enough = now - self.from >= interval / 10;
        if !(now >= self.next || ended && long_enough) {
            return None;
        }
        let after = totals();
        let reading = Reading {
            start_ns: self.from - self.began,
            end_ns: now - self.began,
            sent: after.0.since(self.before.0),
            received: after.1.since(self.before.1),
            missing: missing.saturating_sub(self.missing),
        };
        (self.before, self.from, self.missing) = (after, now, missing);
        while self.next <= now {
            self.next += interval;
        }
        Some(reading)
    }
}

/// Moments of a run.
struct Ends {
    began: Nanos,
    due: Option<Nanos>,
    last: Nanos,
    sent_at: Nanos,
    /// Whether frames had times at which they were due.
    paced: bool,
    /// The time that was asked for, where it was kept.
    duration: Option<Nanos>,
}

impl Ends {
    /// How long was sent: the time asked for, or until the frame after the last would have been due.
    fn duration(&self) -> Nanos {
        if let Some(duration) = self.duration {
            return duration.min(self.sent_at.saturating_sub(self.began)).max(1);
        }
        if !self.paced {
            // As fast as it goes: the last frame was handed over when sending was over.
            return self.sent_at.saturating_sub(self.began).max(1);
        }
        let last = self
            .due
            .unwrap_or(0)
            .max(self.last)
            .min(self.sent_at.max(self.last));
        let due = self.due.map_or(last, |due| due.max(last));
        due.saturating_sub(self.began).max(1)
    }
}

fn figures(
    ends: &Ends,
    sent: u64,
    frame_bytes: f64,
    moved: &(QueueTotals, QueueTotals),
    arrived: Option<Arrived>,
) -> (GenerateFigures, Option<Histogram>) {
    let duration_ns = ends.duration();
    let seconds = duration_ns as f64 / 1e9;
    // The mean of what really left: a run may end in the middle of a mix.
    let mean = match moved.0.frames {
        0 => frame_bytes,
        frames => moved.0.bytes as f64 / frames as f64 + f64::from(FCS_BYTES),
    };
    let bits = |fps: f64, more: u16| fps * (mean + f64::from(more)) * 8.0;
    let offered = sent as f64 / seconds;
    let mut figures = GenerateFigures {
        duration_ns,
        sent,
        offered_fps: offered,
        offered_l1_bps: bits(offered, GAP_BYTES),
        offered_l2_bps: bits(offered, 0),
        ..GenerateFigures::default()
    };
    let Some(arrived) = arrived else {
        return (figures, None);
    };
    let forwarded = arrived.received as f64 / seconds;
    let uncounted = || sent.saturating_sub(arrived.received);
    let lost = arrived.lost.unwrap_or_else(uncounted);
    figures.received = Some(arrived.received);
    figures.corrupted = arrived.corrupted;
    figures.foreign = arrived.foreign;
    figures.forwarding_fps = Some(forwarded);
    figures.forwarding_l1_bps = Some(bits(forwarded, GAP_BYTES));
    figures.forwarding_l2_bps = Some(bits(forwarded, 0));
    figures.lost = Some(lost);
    figures.loss_fraction = (sent > 0).then(|| lost as f64 / sent as f64);
    figures.out_of_order = arrived.order.map(|(late, _)| late);
    figures.duplicates = arrived.order.map(|(_, again)| again);
    figures.one_way_delay_ns = arrived.delay.as_ref().and_then(Histogram::summary);
    figures.flows = arrived.flows;
    (figures, arrived.delay)
}

/// Whether there was a carrier both times, as far as that is known.
fn both(before: Carriers, after: Carriers) -> Carriers {
    let both = |before: Option<bool>, after: Option<bool>| {
        after.map(|after| after && before.unwrap_or(true))
    };
    (both(before.0, after.0), both(before.1, after.1))
}

fn port(capabilities: &Capabilities, carrier: Option<bool>, totals: QueueTotals) -> PortFigures {
    let drops = Cause::ALL
        .iter()
        .map(|&cause| (cause.name().to_owned(), totals.dropped(cause)));
    PortFigures {
        name: capabilities.name.clone(),
        xdp: capabilities.xdp.as_ref().map(crate::forward::xdp_facts),
        notes: capabilities.notes_so_far(),
        carrier,
        frames: totals.frames,
        bytes: totals.bytes,
        dropped: totals.all_dropped(),
        drops: drops.filter(|&(_, count)| count > 0).collect(),
    }
}

#[cfg(test)]
mod tests;
