//! Runs the generator: starts the threads, waits for the end, and computes the figures.

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
use super::frame_sink::{ACCOUNTS, Arrived, Known, Sink};
use super::frame_source::{Frames, Source};
use super::generator_ports::{Carriers, Ports, totals};
use super::queue_growth::Filling;
use super::template::{Layout, MAC_BYTES, Template};
use super::thread_count;
use super::worker::{Receiver, Sender, Shared, Spent, Worker};
use crate::MeasureError;
use crate::spawn_all::hire;
use crate::timestamps::scheduler_tracer::processors;

/// Input from which frames are made.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one a run")]
pub enum What {
    /// Frames made from a template.
    Template(TemplatePlan),
    /// Frames of a capture. It was read before the ports are opened, because a port may be
    /// configured to write the same file.
    Capture(Arc<Capture>),
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub what: What,
    pub load: Load,
    /// Bit rate of the line, if known or given.
    pub line_bps: Option<u64>,
    /// Duration of sending; `None`: until the last frame, or until it is stopped.
    pub duration: Option<Duration>,
    /// Maximum number of frames.
    pub frames: Option<u64>,
    /// Number of frames sent back to back.
    pub burst: u32,
    /// Time to wait for late frames after sending (RFC 2544 section 23: 2 s).
    pub drain: Duration,
    /// Length of an interval; `None`: no intervals.
    pub interval: Option<Duration>,
    /// Number of threads: one for both directions, or one each; `None`: chosen by the number of
    /// processors.
    pub threads: Option<u32>,
    /// Processors of the threads: first the sending thread, then the receiving thread.
    pub cpus: Vec<u32>,
    /// Sends frames from the receiving port before each run, so that switches learn its addresses
    /// (RFC 2544 section 23).
    pub learn: bool,
    /// Limits the rate of late frames to twice the intended rate.
    pub gentle: bool,
    /// Extends the drain time while frames still arrive, up to ten times: otherwise the next run
    /// would share a queue with them.
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
    /// Checks the settings alone, before ports are opened: opening a port that writes the capture
    /// file would truncate it.
    ///
    /// # Errors
    /// [`MeasureError`] for an invalid template, or a share of an unknown line rate.
    pub fn check(&self) -> Result<(), MeasureError> {
        self.check_template()?;
        self.check_load()
    }

    /// Checks the template alone.
    ///
    /// # Errors
    /// [`MeasureError`] for an invalid template.
    pub fn check_template(&self) -> Result<(), MeasureError> {
        if let What::Template(plan) = &self.what {
            Template::new(plan, Ports::address(None, 1), Ports::address(None, 2))?;
        }
        Ok(())
    }

    /// Checks that the threads can run on the listed processors.
    ///
    /// # Errors
    /// [`MeasureError`] if a processor is not usable, or if there are too many or too few for the
    /// threads.
    pub fn check_threads(&self, receives: bool) -> Result<(), MeasureError> {
        thread_count::of(self, receives, &cpu::usable().unwrap_or_default()).map(|_| ())
    }

    fn check_load(&self) -> Result<(), MeasureError> {
        let recorded = matches!(&self.what, What::Capture(capture) if capture.recorded_times());
        match (self.load, self.line_bps) {
            (Load::Line(_), None) if !recorded => Err(MeasureError::Generator {
                object: self.load.to_string(),
                situation: "the line rate is unknown".to_owned(),
                next_step: "set it: --line-rate 10G".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// Counters of all queues over one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Start, relative to the start of sending.
    pub start_ns: u64,
    /// End, relative to the start of sending.
    pub end_ns: u64,
    pub sent: QueueTotals,
    pub received: QueueTotals,
    /// Frame numbers missed in the interval, some of which arrive late in another one.
    pub missing: u64,
}

/// Properties of a run that follow from ports and settings before it starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Intended load in frames per second; `None`: unlimited, or at recorded times.
    pub intended_fps: Option<f64>,
    pub flows: u32,
    /// Mean length of the frames in bytes, FCS included.
    pub frame_bytes: f64,
    /// True if frames carry tags.
    pub tagged: bool,
    /// Number of polling threads.
    pub threads: u32,
    /// Processors of the threads, if they are pinned.
    pub cpus: Vec<u32>,
}

/// Event of a run in progress.
#[derive(Debug)]
pub enum Told<'a> {
    /// Sending is about to start.
    Started(&'a Facts),
    /// An interval has ended.
    Interval(&'a Reading),
}

/// Result of a run.
#[derive(Debug)]
pub struct Ran {
    /// Start of sending.
    pub started: Timestamp,
    pub figures: GenerateFigures,
    /// Lateness of the sent frames.
    pub lateness: Option<Histogram>,
    /// One-way delays of all frames.
    pub delay: Option<Histogram>,
    /// Counters by interval.
    pub readings: Vec<Reading>,
    pub facts: Facts,
    /// True if a thread could not be pinned.
    pub unpinned: bool,
    /// True if threads had to share processors.
    pub shared_cores: bool,
    /// True if the run was stopped early.
    pub interrupted: bool,
    /// Error that stopped a port.
    pub trouble: Option<PortError>,
    /// Name of a port whose peer has never connected.
    pub alone: Option<String>,
    /// Caveats about peers of the ports that left during the run.
    pub left: Vec<Doubt>,
    /// Caveat about ports, memory and threads on different NUMA nodes.
    pub numa: Option<Doubt>,
    /// Queue on the path that was still growing when sending ended, if the frames show it.
    pub filling: Option<Filling>,
    /// Frames that arrived, per second between the first and the last arrival; `None` for fewer
    /// than two.
    pub arrival_fps: Option<f64>,
    pub own: Disturbance,
}

/// Disturbances of the polling threads of a run while they sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Number of bursts so late that they left together with others.
    pub late: u64,
    /// Lateness of the latest burst.
    pub late_by_ns: Nanos,
    /// Smallest fraction of a core that a polling thread received; 1: no disturbance.
    pub core_share: f64,
    /// Time during which threads were runnable but did not run, or the hypervisor ran another
    /// guest.
    pub stood_ns: Nanos,
    /// Frames that the receiving port dropped because its ring was not polled in time.
    pub dropped: u64,
}

impl Disturbance {
    /// Lateness, in gaps between bursts, from which on a burst leaves together with others.
    const GAPS: f64 = 8.0;
    /// Bounds of the threshold: less is the noise of any loop, more is late at any rate.
    const LATE_NS: (f64, f64) = (50_000.0, 1_000_000.0);

    /// Returns the lateness above which a burst counts as late, at an intended number of bursts per
    /// second.
    pub(crate) fn late_ns(bursts_per_second: f64) -> Nanos {
        let (least, most) = Self::LATE_NS;
        (Self::GAPS * 1e9 / bursts_per_second.max(1e-9)).clamp(least, most) as Nanos
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Interval at which the coordinating thread checks for a stop.
const LOOK_NS: Nanos = 20_000_000;
/// Interval at which it checks whether all frames have arrived.
const DRAIN_LOOK_NS: Nanos = 1_000_000;
/// Time without arrivals after which all frames in transit have arrived.
const SETTLED_NS: Nanos = 50_000_000;
/// Maximum extension of the drain time while frames still arrive, as a multiple of it.
const SETTLING: u64 = 10;
/// Delay of the last untagged frame, relative to the first one, that is noise in any run.
const UNTIMED_NOISE_NS: Nanos = 5_000_000;
/// Time to wait for duplicates after all frames have arrived.
const AFTER_LAST_NS: Nanos = 5_000_000;

/// Sends and receives until the time has passed, the last frame has left, or `stop` is set.
///
/// # Errors
/// [`MeasureError`] if the settings do not fit the ports.
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
    let (flows, frame_bytes, tag_location) = known(&frames);
    let accounts = flows.min(ACCOUNTS.into()) as u16;
    // Frames at their recorded times have no intended rate.
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
    let known = match tag_location {
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
    let threads = thread_count::of(settings, receives, &usable)?;
    let cpus = settings.cpus.clone();
    let polite = usable.len() <= threads as usize;
    let shared = Shared::new(threads as usize, polite);
    // Drops that the kernel counted between runs belong to no run.
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
            // The thread only waits for its worker.
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
        // A thread that panicked has reported itself.
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
    // A thread that panicked sent until about now.
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
    // Both clocks are the same clock with different origins.
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

/// Returns the path figures of the arrivals: a growing queue, and the arrival rate in frames per
/// second.
fn path_of(arrived: Option<&Arrived>, ends: &Ends) -> (Option<Filling>, Option<f64>) {
    let Some(arrived) = arrived else {
        return (None, None);
    };
    let fps = (arrived.span_ns > 0 && arrived.received > 1)
        .then(|| (arrived.received - 1) as f64 * 1e9 / arrived.span_ns as f64);
    // Untagged frames: the last one was on the path longer than the first by this much. A stall at
    // the end looks the same, but so long a stall is rare.
    let later = arrived.span_ns.saturating_sub(ends.duration());
    let untimed =
        (arrived.delay.is_none() && ends.paced && later > UNTIMED_NOISE_NS).then(|| Filling {
            growth: later as f64 / ends.duration() as f64,
            wait_ns: later,
        });
    (arrived.filling.or(untimed), fps)
}

/// Returns the disturbance of the polling threads, scaled from their running time to the time of
/// sending.
fn disturbance(spent: &[Spent], stolen_ns: Nanos, ends: &Ends) -> Disturbance {
    let wall = spent.iter().map(|spent| spent.wall_ns).max().unwrap_or(0);
    // Threads that share a processor wait for each other: the longest wait counts.
    let waited: Nanos = spent.iter().map(|spent| spent.waited_ns).max().unwrap_or(0);
    // Steal time is the sum over all processors.
    let stolen_ns = stolen_ns / processors().max(1) as Nanos;
    let part = (ends.duration() as f64 / wall.max(1) as f64).min(1.0);
    let shares = spent.iter().map(Spent::core_share);
    Disturbance {
        core_share: shares.fold(1.0, f64::min),
        stood_ns: ((waited + stolen_ns) as f64 * part) as Nanos,
        ..Disturbance::default()
    }
}

/// Waits for the end of the run: by time, by frames, or by `stop`. Returns true if it was stopped.
/// `drain` is the time to wait for late frames, and whether it is extended while they arrive.
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

/// Returns the number of flows, the mean frame length and the location of the tag.
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

/// Returns the frame lengths of the run, as flags by length.
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

/// Maximum number of flows whose addresses switches learn before a test.
const LEARNED: u32 = 1024;

/// Sends a frame from the destination of each flow, so that switches learn its port and do not
/// flood.
fn learn(ports: &mut Ports, template: &Template) {
    let Some(port) = ports.receive.as_mut().and_then(|ports| ports.first_mut()) else {
        return;
    };
    let mut pool = ports.memory.pool();
    let mut burst = Burst::new();
    for flow in 0..template.flows().min(LEARNED) {
        let (destination, source) = template.addresses(flow);
        if let Some(mut frame) = pool.allocate() {
            // Minimum Ethernet frame, with the experimental ethertype (IEEE 802), which hosts
            // ignore.
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

/// Divides a run into intervals.
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

    /// Returns the interval that has ended, or at the end of the run the rest of one.
    fn look(
        &mut self,
        totals: &dyn Fn() -> (QueueTotals, QueueTotals),
        missing: u64,
        ended: bool,
    ) -> Option<Reading> {
        let interval = self.interval?;
        let now = clock::now();
        // A very short rest gives no useful rates.
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

/// Times of a run.
struct Ends {
    began: Nanos,
    due: Option<Nanos>,
    last: Nanos,
    sent_at: Nanos,
    /// True if frames had deadlines.
    paced: bool,
    /// Requested duration, if the run lasted that long.
    duration: Option<Nanos>,
}

impl Ends {
    /// Returns the duration of sending: the requested time, or until the deadline of the frame
    /// after the last.
    fn duration(&self) -> Nanos {
        if let Some(duration) = self.duration {
            return duration.min(self.sent_at.saturating_sub(self.began)).max(1);
        }
        if !self.paced {
            // Unlimited load: the last frame was handed to the port when sending ended.
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
    // Mean length of the frames sent: a run may end in the middle of a mix of sizes.
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

/// Returns whether there was a carrier both times, as far as known.
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
