//! Runs the generator: starts the threads, waits for the end, and computes the figures.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::snapshot::cpu_quota::read_cpu_throttling;
use linerate_host::steal::StealTicks;
use linerate_packet::template::{MAC_BYTES, MAX_FLOW_GROUPS, TagLayout, Template};
use linerate_port::{
    AnyReceive, DropCause, FrameRunError, PortCapabilities, PortError, QueueTotals, TxQueue,
};
use linerate_record::generate::{
    FCS_BYTES, GenerateFigures, GeneratorPort, IntendedLoad, TemplatePlan, WIRE_OVERHEAD_BYTES,
};
use linerate_record::record::Caveat;
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::spawn::spawn_all;
use linerate_sys::{clock, cpu};
use linerate_workload::timestamps::scheduler_tracer::traced_processors;

use crate::capture::Capture;
use crate::frame_sink::{FrameMatcher, FrameSink, ReceiveResults};
use crate::frame_source::{FrameOrigin, FrameSource};
use crate::generator_ports::{CarrierPair, GeneratorPorts, totals};
use crate::queue_growth::QueueGrowth;
use crate::thread_count::thread_count;
use crate::worker::{
    GeneratorReceiver, GeneratorSender, GeneratorState, GeneratorWorker, WorkerUsage,
};

/// Input from which frames are made.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one a run")]
pub enum FrameInput {
    /// Frames made from a template.
    Template(TemplatePlan),
    /// Frames of a capture. It was read before the ports are opened, because a port may be
    /// configured to write the same file.
    Capture(Arc<Capture>),
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct GeneratorSettings {
    pub input: FrameInput,
    pub load: IntendedLoad,
    /// Bit rate of the line, if known or given.
    pub line_bps: Option<u64>,
    /// Duration of sending; `None`: until the last frame, or until it is stopped.
    pub duration: Option<Duration>,
    /// Maximum number of frames.
    pub max_frames: Option<u64>,
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
    pub catches_up_gently: bool,
    /// Extends the drain time while frames still arrive, up to ten times: otherwise the next run
    /// would share a queue with them.
    pub extends_drain: bool,
}

impl Default for GeneratorSettings {
    fn default() -> Self {
        Self {
            input: FrameInput::Template(TemplatePlan::default()),
            load: IntendedLoad::Max,
            line_bps: None,
            duration: None,
            max_frames: None,
            burst: 1,
            drain: Duration::from_secs(2),
            interval: None,
            threads: None,
            cpus: Vec::new(),
            learn: false,
            catches_up_gently: false,
            extends_drain: false,
        }
    }
}

impl GeneratorSettings {
    /// Checks the settings alone, before ports are opened: opening a port that writes the capture
    /// file would truncate it.
    ///
    /// # Errors
    /// [`FrameRunError`] for an invalid template, or a share of an unknown line rate.
    pub fn check(&self) -> Result<(), FrameRunError> {
        self.check_template()?;
        self.check_load()
    }

    /// Checks the template alone.
    ///
    /// # Errors
    /// [`FrameRunError`] for an invalid template.
    pub fn check_template(&self) -> Result<(), FrameRunError> {
        if let FrameInput::Template(plan) = &self.input {
            Template::new(
                plan,
                GeneratorPorts::address(None, 1),
                GeneratorPorts::address(None, 2),
            )?;
        }
        Ok(())
    }

    /// Checks that the threads can run on the listed processors.
    ///
    /// # Errors
    /// [`FrameRunError`] if a processor is not usable, or if there are too many or too few for the
    /// threads.
    pub fn check_threads(&self, receives: bool) -> Result<(), FrameRunError> {
        thread_count(
            self.threads,
            &self.cpus,
            receives,
            &cpu::list_usable().unwrap_or_default(),
        )
        .map(|_| ())
    }

    fn check_load(&self) -> Result<(), FrameRunError> {
        let is_recorded =
            matches!(&self.input, FrameInput::Capture(capture) if capture.recorded_times());
        match (self.load, self.line_bps) {
            (IntendedLoad::LineShare(_), None) if !is_recorded => Err(FrameRunError::Setup {
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
pub struct GeneratorInterval {
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
pub struct GeneratorFacts {
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
pub enum GeneratorEvent<'a> {
    /// Sending is about to start.
    Started(&'a GeneratorFacts),
    /// An interval has ended.
    Interval(&'a GeneratorInterval),
}

/// Result of a run.
#[derive(Debug)]
pub struct GeneratorRun {
    /// Start of sending.
    pub started: Timestamp,
    pub figures: GenerateFigures,
    /// Lateness of the sent frames.
    pub lateness: Option<Histogram>,
    /// One-way delays of all frames.
    pub delays: Option<Histogram>,
    /// Counters by interval.
    pub intervals: Vec<GeneratorInterval>,
    pub facts: GeneratorFacts,
    /// True if a thread could not be pinned.
    pub unpinned: bool,
    /// True if threads had to share processors.
    pub shared_cores: bool,
    /// True if the run was stopped early.
    pub interrupted: bool,
    /// Error that stopped a port.
    pub port_error: Option<PortError>,
    /// Name of a port whose peer has never connected.
    pub peerless_port: Option<String>,
    /// Caveats about peers of the ports that left during the run.
    pub peer_outages: Vec<Caveat>,
    /// Caveat about ports, memory and threads on different NUMA nodes.
    pub numa_caveat: Option<Caveat>,
    /// Queue on the path that was still growing when sending ended, if the frames show it.
    pub queue_growth: Option<QueueGrowth>,
    /// Frames that arrived, per second between the first and the last arrival; `None` for fewer
    /// than two.
    pub arrival_fps: Option<f64>,
    pub disturbance: HostDisturbance,
}

/// Disturbances of the polling threads of a run while they sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostDisturbance {
    /// Number of bursts so late that they left together with others.
    pub late_bursts: u64,
    /// Lateness of the latest burst.
    pub max_lateness_ns: Nanos,
    /// Smallest fraction of a core that a polling thread received; 1: no disturbance.
    pub core_share: f64,
    /// Time during which threads were runnable but did not run, or the hypervisor ran another
    /// guest.
    pub stalled_ns: Nanos,
    /// Frames that the receiving port dropped because its ring was not polled in time.
    pub ring_drops: u64,
}

impl HostDisturbance {
    /// Lateness, in gaps between bursts, from which on a burst leaves together with others.
    const LATE_GAPS: f64 = 8.0;
    /// Bounds of the threshold: less is the noise of any loop, more is late at any rate.
    const LATE_BOUNDS_NS: (f64, f64) = (50_000.0, 1_000_000.0);

    /// Returns the lateness above which a burst counts as late, at an intended number of bursts per
    /// second.
    pub fn lateness_threshold_ns(bursts_per_second: f64) -> Nanos {
        let (min_ns, max_ns) = Self::LATE_BOUNDS_NS;
        (Self::LATE_GAPS * 1e9 / bursts_per_second.max(1e-9)).clamp(min_ns, max_ns) as Nanos
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Interval at which the coordinating thread checks for a stop.
const STOP_POLL_NS: Nanos = 20_000_000;
/// Interval at which it checks whether all frames have arrived.
const DRAIN_POLL_NS: Nanos = 1_000_000;
/// Time without arrivals after which all frames in transit have arrived.
const DRAINED_AFTER_NS: Nanos = 50_000_000;
/// Maximum extension of the drain time while frames still arrive, as a multiple of it.
const MAX_DRAIN_FACTOR: u64 = 10;
/// Delay of the last untagged frame, relative to the first one, that is noise in any run.
const UNTIMED_NOISE_NS: Nanos = 5_000_000;
/// Time to wait for duplicates after all frames have arrived.
const DUPLICATE_WAIT_NS: Nanos = 5_000_000;

/// Sends and receives until the time has passed, the last frame has left, or `stop` is set.
///
/// # Errors
/// [`FrameRunError`] if the settings do not fit the ports.
pub fn run(
    ports: &mut GeneratorPorts,
    settings: &GeneratorSettings,
    stop: &AtomicBool,
    on_event: &mut dyn FnMut(GeneratorEvent<'_>),
) -> Result<GeneratorRun, FrameRunError> {
    settings.check_load()?;
    let (origin, template) = match &settings.input {
        FrameInput::Template(plan) => {
            let template = ports.template(plan)?;
            (
                FrameOrigin::Template(Box::new(template.clone())),
                Some(template),
            )
        }
        FrameInput::Capture(capture) => {
            ports.check_size(capture.largest())?;
            (FrameOrigin::Capture(Arc::clone(capture)), None)
        }
    };
    let (flows, frame_bytes, tag_location) = frame_properties(&origin);
    let flow_groups = flows.min(MAX_FLOW_GROUPS.into()) as u16;
    // Frames at their recorded times have no intended rate.
    let is_recorded =
        matches!(&settings.input, FrameInput::Capture(capture) if capture.recorded_times());
    let rate = (settings.load)
        .frames_per_second(frame_bytes, settings.line_bps)
        .filter(|_| !is_recorded);
    if settings.learn
        && let Some(template) = &template
    {
        teach_switches(ports, template);
    }
    let epoch = clock::now();
    let mark = fastrand::u16(..);
    let matcher = match tag_location {
        Some(location) => FrameMatcher::Tag {
            location,
            mark,
            content: template
                .as_ref()
                .map_or_else(Box::default, |template| template.content().into()),
            headers: template
                .as_ref()
                .map_or_else(Default::default, Template::expected_headers),
        },
        None => FrameMatcher::Length(length_set(&origin)),
    };
    let is_tagged = matches!(matcher, FrameMatcher::Tag { .. });
    let max_frames = settings.max_frames.unwrap_or(u64::MAX);
    let burst = settings.burst.max(1);
    let mut source = FrameSource::new(origin, rate, max_frames, burst, flow_groups, mark, epoch);
    if settings.catches_up_gently {
        source = source.with_gentle_catch_up();
    }
    let duration = settings.duration.map(nanos);
    let receives = ports.reflects || ports.receive.is_some();
    let sink =
        receives.then(|| FrameSink::new(matcher, flow_groups, epoch).with_duration(duration));
    let usable = cpu::list_usable().unwrap_or_default();
    let threads = thread_count(settings.threads, &settings.cpus, receives, &usable)?;
    let cpus = settings.cpus.clone();
    let yields_when_idle = usable.len() <= threads as usize;
    let shared = GeneratorState::new(threads as usize, yields_when_idle);
    // Drops that the kernel counted between runs belong to no run.
    if let Err(error) = ports.refresh() {
        shared.stop_with_error(error);
    }
    let totals_before = ports.counters();
    let throttling_at_start = read_cpu_throttling();
    let carriers = ports.carriers();
    let facts = GeneratorFacts {
        intended_fps: rate,
        flows,
        frame_bytes,
        tagged: is_tagged,
        threads,
        cpus,
    };
    let numa_caveat = ports.numa_placement.warning(&facts.cpus);
    on_event(GeneratorEvent::Started(&facts));

    let memory = ports.memory.clone();
    let (sent_counters, received_counters) = ports.queue_counters();
    let names: Vec<String> = ports.capabilities().map(|port| port.name.clone()).collect();
    let GeneratorPorts {
        send,
        other_queues,
        receive,
        ..
    } = ports;
    let sender = GeneratorSender::new(&mut send.transmit, source, &memory, BURST_FRAMES, duration);
    let queues: Vec<&mut AnyReceive> = match receive {
        Some(ports) => ports.iter_mut().map(|port| &mut port.receive).collect(),
        None => std::iter::once(&mut send.receive)
            .chain(other_queues.iter_mut().map(|port| &mut port.receive))
            .collect(),
    };
    let receiver = sink.map(|sink| GeneratorReceiver::new(queues, sink, &memory, BURST_FRAMES));
    let mut workers = vec![GeneratorWorker {
        sender: Some(sender),
        receiver: None,
        cpu: facts.cpus.first().copied(),
        ports: names.join(", "),
    }];
    match (threads, receiver) {
        (2, receiver @ Some(_)) => workers.push(GeneratorWorker {
            sender: None,
            receiver,
            cpu: facts.cpus.get(1).copied(),
            ports: names.join(", "),
        }),
        (_, receiver) => workers[0].receiver = receiver,
    }
    let totals = || totals(&sent_counters, &received_counters);
    let mut intervals = Vec::new();
    let ticks = StealTicks::read();
    let outcome = std::thread::scope(|scope| {
        let (memory, shared) = (&memory, &shared);
        let spawned = spawn_all::<&mut GeneratorWorker<'_>, _>(
            "generate",
            "generating",
            workers.len(),
            |builder, assigned| {
                builder.spawn_scoped(scope, move || {
                    assigned
                        .recv()
                        .ok()
                        .map(|worker| worker.run(memory, shared))
                })
            },
        )?;
        let assign = |(worker, (assign, thread)): (_, (mpsc::Sender<_>, _))| {
            // The thread only waits for its worker.
            let _ = assign.send(worker);
            thread
        };
        let threads: Vec<ScopedJoinHandle<_>> =
            workers.iter_mut().zip(spawned).map(assign).collect();
        shared.start_barrier.wait();
        let started = Timestamp::now();
        let interval = settings.interval.map(nanos).filter(|&time| time > 0);
        let drain = (nanos(settings.drain), settings.extends_drain);
        let mut series = IntervalSeries::new(totals_before, interval);
        let interrupted = wait_for_end(shared, stop, receives, drain, &mut || {
            let missing = shared.progress.missing.load(Relaxed);
            if let Some(interval_counters) = series.next_interval(&totals, missing, false) {
                on_event(GeneratorEvent::Interval(&interval_counters));
                intervals.push(interval_counters);
            }
        });
        shared.stop.store(true, Relaxed);
        // A thread that panicked has reported itself.
        let usage: Vec<WorkerUsage> = threads
            .into_iter()
            .filter_map(|thread| thread.join().ok().flatten())
            .collect();
        let missing = shared.progress.missing.load(Relaxed);
        if let Some(interval_counters) = series.next_interval(&totals, missing, true) {
            on_event(GeneratorEvent::Interval(&interval_counters));
            intervals.push(interval_counters);
        }
        Ok::<_, FrameRunError>((started, interrupted, usage))
    });
    let (started, interrupted, usage) = outcome?;
    let mut sides = (None, None);
    for worker in workers {
        sides.0 = sides.0.or(worker.sender);
        sides.1 = sides.1.or(worker.receiver.map(|receiver| receiver.sink));
    }
    let (Some(sender), sink) = sides else {
        unreachable!("the first worker sends");
    };
    // A thread that panicked sent until about now.
    let sent_at = shared.sent().map_or_else(clock::now, |(at, _)| at);
    let times = SendTimes {
        started_at: sender.started_at.unwrap_or(sent_at),
        next_deadline: sender.source.next_deadline(),
        last_sent_at: sender.last_sent_at,
        ended_at: sent_at,
        is_paced: rate.is_some() || is_recorded,
        duration: duration.filter(|_| !interrupted && settings.max_frames.is_none()),
    };
    let sent = sender.source.frames_made();
    let rejected_polls = sender.rejected_polls;
    let (numbers, unsent, lateness) = sender.source.into_results();
    let totals_after = ports.counters();
    let totals_moved = (
        totals_after.0.since(totals_before.0),
        totals_after.1.since(totals_before.1),
    );
    let received = sink.map(|sink| sink.into_results(&numbers));
    let (queue_growth, arrival_fps) = path_figures(received.as_ref(), &times);
    let own = {
        let bursts = rate.map_or(f64::INFINITY, |rate| rate / f64::from(burst));
        let lateness_threshold_ns = HostDisturbance::lateness_threshold_ns(bursts);
        let steal_ticks = ticks.zip(StealTicks::read());
        let steal_ticks = steal_ticks
            .and_then(|(totals_before, totals_after)| totals_after.stolen_ns_since(&totals_before));
        HostDisturbance {
            late_bursts: lateness
                .as_ref()
                .map_or(0, |histogram| histogram.count_above(lateness_threshold_ns)),
            max_lateness_ns: lateness.as_ref().and_then(Histogram::max).unwrap_or(0),
            ring_drops: totals_moved.1.drops_by(DropCause::RingFull)
                + totals_moved.1.drops_by(DropCause::NoBuffer),
            ..disturbance(&usage, steal_ticks.unwrap_or(0), &times)
        }
    };
    let (mut figures, delays) = figures(&times, sent, frame_bytes, &totals_moved, received);
    figures.throttling = read_cpu_throttling()
        .zip(throttling_at_start)
        .map(|(now, at_start)| now.since(&at_start));
    figures.unsent = unsent;
    figures.short_transmits = rejected_polls;
    figures.flows_per_entry = flows.div_ceil(u32::from(flow_groups));
    let carriers = carrier_throughout(carriers, ports.carriers());
    // Both clocks are the same clock with different origins.
    let elapsed = Duration::from_nanos(clock::now().saturating_sub(times.started_at));
    let started_at = Instant::now() - elapsed;
    figures.send = port_figures(&ports.send.capabilities, carriers.0, totals_moved.0);
    figures.receive = receives.then(|| {
        let port_of = ports.receive.as_ref().and_then(|ports| ports.first());
        port_figures(
            &port_of.unwrap_or(&ports.send).capabilities,
            carriers.1,
            totals_moved.1,
        )
    });
    let port_error = shared
        .port_error
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(GeneratorRun {
        started,
        figures,
        lateness,
        delays,
        intervals,
        facts,
        unpinned: usage.iter().any(|usage| !usage.is_pinned),
        shared_cores: yields_when_idle,
        interrupted,
        port_error,
        peerless_port: ports.without_peer().map(str::to_owned),
        peer_outages: ports.peer_outages(started_at, times.duration()),
        numa_caveat,
        queue_growth,
        arrival_fps,
        disturbance: own,
    })
}

/// Returns the path figures of the arrivals: a growing queue, and the arrival rate in frames per
/// second.
fn path_figures(
    received: Option<&ReceiveResults>,
    times: &SendTimes,
) -> (Option<QueueGrowth>, Option<f64>) {
    let Some(received) = received else {
        return (None, None);
    };
    let fps = (received.arrival_window_ns > 0 && received.received > 1)
        .then(|| (received.received - 1) as f64 * 1e9 / received.arrival_window_ns as f64);
    // Untagged frames: the last one was on the path longer than the first by this much. A stall at
    // the end looks the same, but so long a stall is rare.
    let extra_delay_ns = received.arrival_window_ns.saturating_sub(times.duration());
    let untimed = (received.delays.is_none()
        && times.is_paced
        && extra_delay_ns > UNTIMED_NOISE_NS)
        .then(|| QueueGrowth {
            growth_ratio: extra_delay_ns as f64 / times.duration() as f64,
            wait_ns: extra_delay_ns,
        });
    (received.queue_growth.or(untimed), fps)
}

/// Returns the disturbance of the polling threads, scaled from their running time to the time of
/// sending.
fn disturbance(usage: &[WorkerUsage], stolen_ns: Nanos, times: &SendTimes) -> HostDisturbance {
    let wall = usage.iter().map(|usage| usage.wall_ns).max().unwrap_or(0);
    // Threads that share a processor wait for each other: the longest wait counts.
    let longest_wait_ns: Nanos = usage
        .iter()
        .map(|usage| usage.runnable_wait_ns)
        .max()
        .unwrap_or(0);
    // Steal time is the sum over all processors.
    let stolen_ns = stolen_ns / traced_processors().max(1) as Nanos;
    let sending_fraction = (times.duration() as f64 / wall.max(1) as f64).min(1.0);
    let shares = usage.iter().map(WorkerUsage::core_share);
    HostDisturbance {
        core_share: shares.fold(1.0, f64::min),
        stalled_ns: ((longest_wait_ns + stolen_ns) as f64 * sending_fraction) as Nanos,
        ..HostDisturbance::default()
    }
}

/// Waits for the end of the run: by time, by frames, or by `stop`. Returns true if it was stopped.
/// `drain` is the time to wait for late frames, and whether it is extended while they arrive.
fn wait_for_end(
    shared: &GeneratorState,
    stop: &AtomicBool,
    receives: bool,
    (drain, extends_drain): (Nanos, bool),
    on_poll: &mut dyn FnMut(),
) -> bool {
    let mut all_arrived_at = None;
    let (mut last_arrived, mut last_arrival_at) = (0, 0);
    loop {
        on_poll();
        if stop.load(Relaxed) {
            return true;
        }
        if shared.stop.load(Relaxed) {
            return false;
        }
        let now = clock::now();
        let Some((sent_at, sent)) = shared.sent() else {
            clock::sleep_until(now + STOP_POLL_NS);
            continue;
        };
        let arrived = shared.progress.unique.load(Relaxed);
        if arrived != last_arrived {
            (last_arrived, last_arrival_at) = (arrived, now);
        }
        let is_drained = now >= sent_at.saturating_add(drain);
        let is_still_arriving = extends_drain
            && now < last_arrival_at.saturating_add(DRAINED_AFTER_NS)
            && now < sent_at.saturating_add(drain.saturating_mul(MAX_DRAIN_FACTOR));
        if !receives || is_drained && !is_still_arriving {
            return false;
        }
        if arrived >= sent {
            let all_since = *all_arrived_at.get_or_insert(now);
            if now >= all_since + DUPLICATE_WAIT_NS {
                return false;
            }
        }
        clock::sleep_until(now + DRAIN_POLL_NS);
    }
}

/// Returns the number of flows, the mean frame length and the location of the tag.
fn frame_properties(frames: &FrameOrigin) -> (u32, f64, Option<(usize, TagLayout)>) {
    match frames {
        FrameOrigin::Template(template) => (
            template.flows(),
            template.sizes().mean(),
            template.tag_location(),
        ),
        FrameOrigin::Capture(capture) => (1, capture.mean(), None),
    }
}

/// Returns the frame lengths of the run, as flags by length.
fn length_set(frames: &FrameOrigin) -> Box<[bool]> {
    let mut lengths = vec![false; usize::from(u16::MAX) + 1];
    match frames {
        FrameOrigin::Template(template) => {
            for &size in template.sizes().sequence() {
                lengths[usize::from(size)] = true;
            }
        }
        FrameOrigin::Capture(capture) => {
            for number in 0..capture.len() {
                lengths[capture.frame(number).len()] = true;
            }
        }
    }
    lengths.into()
}

/// Maximum number of flows whose addresses switches learn before a test.
const MAX_LEARNED_FLOWS: u32 = 1024;

/// Sends a frame from the destination of each flow, so that switches learn its port and do not
/// flood.
fn teach_switches(ports: &mut GeneratorPorts, template: &Template) {
    let Some(port) = ports.receive.as_mut().and_then(|ports| ports.first_mut()) else {
        return;
    };
    let mut pool = ports.memory.pool();
    let mut burst = Burst::new();
    for flow in 0..template.flows().min(MAX_LEARNED_FLOWS) {
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
struct IntervalSeries {
    interval: Option<Nanos>,
    started_at: Nanos,
    interval_start: Nanos,
    interval_end: Nanos,
    last_totals: (QueueTotals, QueueTotals),
    last_missing: u64,
}

impl IntervalSeries {
    fn new(before: (QueueTotals, QueueTotals), interval: Option<Nanos>) -> Self {
        let now = clock::now();
        Self {
            interval,
            started_at: now,
            interval_start: now,
            interval_end: now.saturating_add(interval.unwrap_or(u64::MAX)),
            last_totals: before,
            last_missing: 0,
        }
    }

    /// Returns the interval that has ended, or at the end of the run the rest of one.
    fn next_interval(
        &mut self,
        totals: &dyn Fn() -> (QueueTotals, QueueTotals),
        missing: u64,
        is_run_end: bool,
    ) -> Option<GeneratorInterval> {
        let interval = self.interval?;
        let now = clock::now();
        // A very short rest gives no useful rates.
        let is_long_enough = now - self.interval_start >= interval / 10;
        if !(now >= self.interval_end || is_run_end && is_long_enough) {
            return None;
        }
        let after = totals();
        let interval_counters = GeneratorInterval {
            start_ns: self.interval_start - self.started_at,
            end_ns: now - self.started_at,
            sent: after.0.since(self.last_totals.0),
            received: after.1.since(self.last_totals.1),
            missing: missing.saturating_sub(self.last_missing),
        };
        (self.last_totals, self.interval_start, self.last_missing) = (after, now, missing);
        while self.interval_end <= now {
            self.interval_end += interval;
        }
        Some(interval_counters)
    }
}

/// Times of a run.
struct SendTimes {
    started_at: Nanos,
    next_deadline: Option<Nanos>,
    last_sent_at: Nanos,
    ended_at: Nanos,
    /// True if frames had deadlines.
    is_paced: bool,
    /// Requested duration, if the run lasted that long.
    duration: Option<Nanos>,
}

impl SendTimes {
    /// Returns the duration of sending: the requested time, or until the deadline of the frame
    /// after the last.
    fn duration(&self) -> Nanos {
        if let Some(duration) = self.duration {
            return duration
                .min(self.ended_at.saturating_sub(self.started_at))
                .max(1);
        }
        if !self.is_paced {
            // Unlimited load: the last frame was handed to the port when sending ended.
            return self.ended_at.saturating_sub(self.started_at).max(1);
        }
        let last_sent_at = self
            .next_deadline
            .unwrap_or(0)
            .max(self.last_sent_at)
            .min(self.ended_at.max(self.last_sent_at));
        let deadline = self
            .next_deadline
            .map_or(last_sent_at, |deadline| deadline.max(last_sent_at));
        deadline.saturating_sub(self.started_at).max(1)
    }
}

fn figures(
    times: &SendTimes,
    sent: u64,
    frame_bytes: f64,
    totals_moved: &(QueueTotals, QueueTotals),
    received: Option<ReceiveResults>,
) -> (GenerateFigures, Option<Histogram>) {
    let duration_ns = times.duration();
    let seconds = duration_ns as f64 / 1e9;
    // Mean length of the frames sent: a run may end in the middle of a mix of sizes.
    let mean = match totals_moved.0.frames {
        0 => frame_bytes,
        frames => totals_moved.0.bytes as f64 / frames as f64 + f64::from(FCS_BYTES),
    };
    let bits = |fps: f64, overhead_bytes: u16| fps * (mean + f64::from(overhead_bytes)) * 8.0;
    let offered = sent as f64 / seconds;
    let mut figures = GenerateFigures {
        duration_ns,
        sent,
        offered_fps: offered,
        offered_l1_bps: bits(offered, WIRE_OVERHEAD_BYTES),
        offered_l2_bps: bits(offered, 0),
        ..GenerateFigures::default()
    };
    let Some(received) = received else {
        return (figures, None);
    };
    let forwarded = received.received as f64 / seconds;
    let uncounted = || sent.saturating_sub(received.received);
    let lost = received.lost.unwrap_or_else(uncounted);
    figures.received = Some(received.received);
    figures.corrupted = received.corrupted;
    figures.unrelated = received.unrelated;
    figures.forwarding_fps = Some(forwarded);
    figures.forwarding_l1_bps = Some(bits(forwarded, WIRE_OVERHEAD_BYTES));
    figures.forwarding_l2_bps = Some(bits(forwarded, 0));
    figures.lost = Some(lost);
    figures.loss_fraction = (sent > 0).then(|| lost as f64 / sent as f64);
    figures.out_of_order = received
        .out_of_order_and_duplicates
        .map(|(out_of_order, _)| out_of_order);
    figures.duplicates = received
        .out_of_order_and_duplicates
        .map(|(_, duplicates)| duplicates);
    figures.one_way_delay_ns = received.delays.as_ref().and_then(Histogram::summary);
    figures.flows = received.flows;
    (figures, received.delays)
}

/// Returns whether there was a carrier both times, as far as known.
fn carrier_throughout(before: CarrierPair, after: CarrierPair) -> CarrierPair {
    let throughout = |before: Option<bool>, after: Option<bool>| {
        after.map(|after| after && before.unwrap_or(true))
    };
    (throughout(before.0, after.0), throughout(before.1, after.1))
}

fn port_figures(
    capabilities: &PortCapabilities,
    carrier: Option<bool>,
    totals: QueueTotals,
) -> GeneratorPort {
    let drops = DropCause::ALL
        .iter()
        .map(|&cause| (cause.name().to_owned(), totals.drops_by(cause)));
    GeneratorPort {
        name: capabilities.name.clone(),
        xdp: capabilities
            .xdp
            .as_ref()
            .map(linerate_port::facts::xdp_facts),
        notes: capabilities.current_notes(),
        carrier,
        frames: totals.frames,
        bytes: totals.bytes,
        dropped: totals.total_drops(),
        drops: drops.filter(|&(_, count)| count > 0).collect(),
    }
}

#[cfg(test)]
mod tests;
