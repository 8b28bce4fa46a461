//! Forwarder: open ports, and the threads that poll them between start and stop.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{
    PortError, PortUrl, QueueCounters, QueueTotals, RxDestination, RxQueue, memory_plan,
};
use linerate_record::forward::{
    ForwardCore, ForwardFigures, ForwardStream, FrameMemory, IdleStrategy, StreamRoute,
};
use linerate_record::plan::CpuList;
use linerate_record::record::Caveat;
use linerate_record::throttling::CpuThrottling;
use linerate_stats::units::{count_of, format_bytes};
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan, PageKind};
use linerate_sys::{clock, cpu};

use super::bit_rate_meter::BitRateMeter;
use super::cpu_choice::ChosenCpus;
use super::forwarder_port::{ForwarderPort, PortTotals, queue_figures};
use super::mode_table::ModeSpec;
use super::settings::ForwardSettings;
use super::stream::{FwdStream, StreamFacts};
use super::stream_recorder::{RecorderSample, StreamRecorder};
use super::worker::{
    AssignedStream, ForwardTask, ForwardTaskResult, StartBarrierGuard, StreamResult, WorkerControl,
};
use linerate_host::numa::NumaPlacement;
use linerate_host::snapshot::cpu_quota::read_cpu_throttling;
use linerate_port::FrameRunError;
use linerate_sys::spawn::spawn_all;

mod port_control;
#[cfg(test)]
mod tests;

/// Work of a thread; returns nothing if it received none.
type WorkerJob = Box<dyn FnOnce() -> Option<ForwardTaskResult> + Send>;

/// Function that starts a thread, or fails.
type SpawnWorker<'a> =
    &'a mut dyn FnMut(Builder, WorkerJob) -> io::Result<JoinHandle<Option<ForwardTaskResult>>>;

/// Requested frame memory, beyond the needs of the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameMemoryRequest {
    /// Minimum number of frames.
    pub frames: Option<u32>,
    /// Minimum bytes per frame, headroom included; less than the ports need is rejected.
    pub slot_bytes: Option<u32>,
    /// Number of free frames that a thread caches before it returns some to the shared pool.
    pub cached_frames: Option<u16>,
}

/// Frames put into circulation before forwarding starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrimedFrames {
    /// Requested number of frames, all streams.
    pub requested: u64,
    /// Number of frames that the rings accepted.
    pub sent: u64,
}

/// Results of a run from start to stop.
#[derive(Debug)]
pub struct ForwardResults {
    /// Assignment of streams to threads, including threads that panicked.
    pub routes: Vec<StreamRoute>,
    pub figures: ForwardFigures,
    /// Figures since the counters were cleared in the run, if they were: for display, not for the
    /// record.
    pub since_cleared: Option<ForwardFigures>,
    /// Caveat about ports, memory and threads on different NUMA nodes.
    pub numa_caveat: Option<Caveat>,
    /// Error that stopped a port.
    pub port_error: Option<PortError>,
}

/// Ports and the threads that forward between them.
pub struct Forwarder {
    memory: FrameRegion,
    memory_request: FrameMemoryRequest,
    ports: Vec<ForwarderPort>,
    running: Option<ActiveRun>,
    /// Ports that were reopened for a larger memory, until `take_reopened` returns them.
    reopened: Vec<u32>,
    /// Processors chosen automatically, kept until the number of threads changes.
    chosen_cpus: Mutex<Option<ChosenCpus>>,
}

struct ActiveRun {
    routes: Vec<StreamRoute>,
    threads: Vec<(Arc<WorkerControl>, JoinHandle<Option<ForwardTaskResult>>)>,
    /// Totals of the ports at the start.
    totals_at_start: Vec<PortTotals>,
    throttling_at_start: Option<CpuThrottling>,
    /// Totals of the ports at the last clear in the run.
    totals_at_clear: Option<Vec<PortTotals>>,
    streams: Vec<StreamBaseline>,
    bit_rates: Option<BitRateMeter>,
    /// Number of frames that `tx_first` requests, all streams.
    frames_to_prime: u64,
    started_ns: u64,
    flushed: u64,
    /// Next time at which threads are requested to read the kernel's counters.
    next_refresh_ns: u64,
}

/// Counters of a stream, with their values at the start.
struct StreamBaseline {
    received: Arc<QueueCounters>,
    sent: Arc<QueueCounters>,
    totals_at_start: [QueueTotals; 2],
    /// Values at the last clear in the run, with the recorded sample of that time.
    at_clear: Option<([QueueTotals; 2], Option<RecorderSample>)>,
    /// Recorder of further figures.
    recorder: Option<Arc<StreamRecorder>>,
}

impl StreamBaseline {
    fn totals(&self) -> [QueueTotals; 2] {
        [self.received.read(), self.sent.read()]
    }

    /// Returns the figures of the stream since the start.
    fn figures_since_start(&self, route: &StreamRoute) -> ForwardStream {
        let mut stream = stream_figures(route, self.since(self.totals_at_start));
        if let Some(recorder) = &self.recorder {
            recorder.write_totals(&mut stream);
        }
        stream
    }

    /// Returns the figures of the stream since the last clear.
    fn figures_since_clear(&self, route: &StreamRoute) -> ForwardStream {
        let Some((cleared, earlier_sample)) = &self.at_clear else {
            return self.figures_since_start(route);
        };
        let mut stream = stream_figures(route, self.since(*cleared));
        if let (Some(recorder), Some(earlier_sample)) = (&self.recorder, earlier_sample) {
            recorder.write_since(earlier_sample, &mut stream);
        }
        stream
    }

    fn since(&self, before: [QueueTotals; 2]) -> [QueueTotals; 2] {
        let [received, sent] = self.totals();
        [received.since(before[0]), sent.since(before[1])]
    }

    fn clear(&mut self) {
        let sample = self.recorder.as_ref().map(|recorder| {
            recorder.clear();
            recorder.sample()
        });
        self.at_clear = Some((self.totals(), sample));
    }
}

/// Frames that modes may hold back per queue, in addition to the needs of the ports.
const SPARE_FRAMES: u32 = 512;

impl Forwarder {
    /// Returns the number of frames of memory that a mode needs between these ports; `None` if the
    /// needs of the ports suffice.
    #[must_use]
    pub fn frames_for(urls: &[PortUrl], mode: &ModeSpec) -> Option<u32> {
        let queues = urls.iter().map(|url| {
            let named = url
                .parse_queues("q")
                .map(|range| range.end() - range.start() + 1);
            named.or(url.common().queues).unwrap_or(1)
        });
        let held_frames = mode.max_held_frames().saturating_mul(queues.sum());
        let ports = memory_plan(urls).frames;
        // Half of the memory is for frames that modes hold back, the other half for the ports.
        (held_frames > ports / 2).then(|| held_frames.max(ports).saturating_mul(2))
    }

    /// Opens the ports over one memory.
    ///
    /// # Errors
    /// [`FrameRunError`] if a port cannot be opened or the memory is too small or too large.
    pub fn open(urls: &[PortUrl], request: FrameMemoryRequest) -> Result<Self, FrameRunError> {
        let plan = memory_plan_for(urls, &request)?;
        check_memory(&plan)?;
        let memory = FrameRegion::new(plan)?;
        let ports = (0..).zip(urls);
        let ports = ports.map(|(number, url)| ForwarderPort::open(number, url, &memory));
        Ok(Self {
            ports: ports.collect::<Result<_, _>>()?,
            memory,
            memory_request: request,
            running: None,
            reopened: Vec::new(),
            chosen_cpus: Mutex::default(),
        })
    }

    /// Returns the number of ports, open or not.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Returns whether threads are forwarding.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns whether each thread has ended, or has only streams left that discard frames: all
    /// captures have been read to their end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let mut threads = running.threads.iter();
            threads.all(|(control, _)| control.has_ended.load(Relaxed))
        })
    }

    /// Returns whether a port has failed; [`Forwarder::stop`] returns the error.
    #[must_use]
    pub fn has_port_error(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let mut threads = running.threads.iter();
            threads.any(|(control, _)| {
                let port_error = control.port_error.lock();
                port_error.unwrap_or_else(PoisonError::into_inner).is_some()
            })
        })
    }

    /// Returns the number of streams with these settings.
    ///
    /// # Errors
    /// [`FrameRunError`] if the settings allow no stream.
    pub fn streams_of(&self, settings: &ForwardSettings) -> Result<usize, FrameRunError> {
        Ok(self.port_pairs(settings)?.len())
    }

    /// Returns the assignment of streams to threads with these settings.
    ///
    /// # Errors
    /// [`FrameRunError`] if the settings do not fit the ports or processors.
    pub fn routes(&self, settings: &ForwardSettings) -> Result<Vec<StreamRoute>, FrameRunError> {
        let pairs = self.port_pairs(settings)?;
        let threads = (settings.cores.max(1) as usize).min(pairs.len().max(1));
        let cpus = self.thread_cpus(settings, threads)?;
        let count = pairs.len();
        let routes = pairs.into_iter().enumerate();
        let routes = routes.map(|(number, (from, to, queue))| {
            // Neighbouring streams share a thread; the first threads get one more if the division
            // leaves a rest.
            let core = number * threads / count;
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            StreamRoute {
                rx_port: number(from),
                rx_queue: number(queue),
                tx_port: number(to),
                tx_queue: number(queue),
                peer: settings.peer_address(number(to)).to_string(),
                core: number(core),
                cpu: cpus.get(core).copied(),
            }
        });
        Ok(routes.collect())
    }

    /// Returns the ports of each stream, and the number of its queue on both.
    fn port_pairs(
        &self,
        settings: &ForwardSettings,
    ) -> Result<Vec<(usize, usize, usize)>, FrameRunError> {
        let ports = self.selected_ports(settings)?;
        let topology = match settings.mode.replies_on_rx_port() {
            true => linerate_record::forward::PortTopology::Loop,
            false => settings.topology,
        };
        let mut pairs = Vec::new();
        for (index, &from) in ports.iter().enumerate() {
            let to = ports[topology.peer(index, ports.len())];
            let queues = [from, to].map(|port| self.ports[port].queues.len());
            if queues[0] != queues[1] {
                return Err(FrameRunError::Setup {
                    object: format!("ports {from} and {to}"),
                    situation: format!(
                        "they have {} and {}",
                        queues[0],
                        queue_count_text(queues[1])
                    ),
                    next_step: "give both ports the same `queues=`".to_owned(),
                });
            }
            pairs.extend((0..queues[0]).map(|queue| (from, to, queue)));
        }
        Ok(pairs)
    }

    /// Returns the open ports that the settings select, in their order: neighbours in the list are
    /// pairs.
    fn selected_ports(&self, settings: &ForwardSettings) -> Result<Vec<usize>, FrameRunError> {
        let unknown = (settings.ports.iter()).find(|&&port| port as usize >= self.ports.len());
        if let Some(port) = unknown {
            return Err(FrameRunError::Setup {
                object: format!("port {port}"),
                situation: "there is no such port".to_owned(),
                next_step: match self.ports.len() {
                    1 => "the only port is 0".to_owned(),
                    ports => format!("ports are numbered 0 to {}", ports - 1),
                },
            });
        }
        let mut ports: Vec<usize> = match settings.ports.is_empty() {
            true => (0..self.ports.len()).collect(),
            false => settings.ports.iter().map(|&port| port as usize).collect(),
        };
        ports.retain(|&port| self.ports[port].is_started());
        if ports.is_empty() {
            return Err(FrameRunError::Setup {
                object: "ports".to_owned(),
                situation: "none is started".to_owned(),
                next_step: "use `port start all`".to_owned(),
            });
        }
        Ok(ports)
    }

    /// Returns the processors of the threads: the requested ones, else [free ones](ChosenCpus).
    fn thread_cpus(
        &self,
        settings: &ForwardSettings,
        threads: usize,
    ) -> Result<Vec<u32>, FrameRunError> {
        if !settings.is_pinned {
            return Ok(Vec::new());
        }
        let usable = cpu::list_usable()
            .map_err(|source| FrameRunError::system("reading the affinity mask", source))?;
        if !settings.cpus.is_empty() {
            if let Some(cpu) = settings.cpus.iter().find(|cpu| !usable.contains(cpu)) {
                return Err(FrameRunError::Setup {
                    object: format!("processor {cpu}"),
                    situation: "this process may not run there".to_owned(),
                    next_step: format!("choose among {}", CpuList(usable)),
                });
            }
            if settings.cpus.len() < threads {
                return Err(FrameRunError::Setup {
                    object: format!("{threads} threads"),
                    situation: format!("{} processors are listed", settings.cpus.len()),
                    next_step: "list a processor for each thread, or use fewer threads".to_owned(),
                });
            }
            return Ok(settings.cpus[..threads].to_vec());
        }
        let mut chosen_cpus = self
            .chosen_cpus
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if chosen_cpus
            .as_ref()
            .is_none_or(|chosen_cpus| chosen_cpus.threads != threads)
        {
            // The locks of the last choice are released first.
            *chosen_cpus = None;
            *chosen_cpus = Some(ChosenCpus::choose_from(&usable, threads));
        }
        Ok(chosen_cpus
            .as_ref()
            .map_or_else(Vec::new, |chosen_cpus| chosen_cpus.cpus.clone()))
    }

    /// Starts the threads. `quiet` is the time without arrivals after which receive queues
    /// count as empty.
    ///
    /// # Errors
    /// [`FrameRunError`] if the settings do not fit the ports, processors or memory.
    pub fn start(
        &mut self,
        settings: &ForwardSettings,
        quiet: Duration,
    ) -> Result<Vec<StreamRoute>, FrameRunError> {
        self.start_with(settings, quiet, &mut |builder, job| builder.spawn(job))
    }

    fn start_with(
        &mut self,
        settings: &ForwardSettings,
        quiet: Duration,
        spawn: SpawnWorker<'_>,
    ) -> Result<Vec<StreamRoute>, FrameRunError> {
        if self.is_running() {
            return Err(FrameRunError::Setup {
                object: "forwarding".to_owned(),
                situation: "it is running already".to_owned(),
                next_step: "use `stop` first".to_owned(),
            });
        }
        let routes = self.routes(settings)?;
        self.check_frame_length(settings, &routes)?;
        check_residence(settings)?;
        self.check_held_frames(settings, routes.len())?;
        if settings.idle == IdleStrategy::Interrupt {
            self.check_interrupts(&routes)?;
        }
        let threads = routes.iter().map(|route| route.core + 1).max().unwrap_or(1);
        // Spawned before any queue is taken from its port, and before any thread waits at the
        // barrier.
        let spawned = spawn_all(
            "forward",
            "forwarding",
            threads as usize,
            |builder, task: Receiver<ForwardTask>| {
                let mode = settings.mode.clone();
                let job = move || task.recv().ok().map(|task| mode.run(task));
                spawn(builder, Box::new(job))
            },
        )?;
        let mut flushed = 0;
        if settings.flush {
            let mut pool = self.memory.pool();
            for port in &mut self.ports {
                flushed += port.flush(&mut pool, quiet);
            }
        }
        let port_error = self.refresh_before_run(&routes);
        self.ports.iter_mut().for_each(ForwarderPort::start_run);
        let ports = self.ports.iter().map(ForwarderPort::totals).collect();
        let streams = routes.iter().map(|route| self.baseline(route, settings));
        let streams: Vec<StreamBaseline> = streams.collect();
        let bit_rates = settings
            .record_bit_rates
            .then(|| BitRateMeter::new(self.totals(), clock::now()));
        let barrier = Arc::new(Barrier::new(threads as usize));
        let shared = Arc::new(settings.clone());
        let mut tasks = Vec::new();
        for core in 0..threads {
            let assigned = routes.iter().enumerate();
            let assigned = assigned.filter(|(_, route)| route.core == core);
            let control = Arc::default();
            tasks.push(ForwardTask {
                barrier_guard: StartBarrierGuard::new(
                    &control,
                    &barrier,
                    self.polled_ports(core, &routes),
                ),
                cpu: assigned.clone().find_map(|(_, route)| route.cpu),
                streams: assigned
                    .map(|(number, route)| AssignedStream {
                        number,
                        stream: self.take_stream(number, route, settings, &routes),
                        recorder: streams[number].recorder.clone(),
                    })
                    .collect(),
                control,
                settings: Arc::clone(&shared),
                memory: self.memory.clone(),
            });
        }
        if let (Some(error), Some(task)) = (port_error, tasks.first()) {
            task.control.report_error(error);
        }
        let started_ns = clock::now();
        let mut running = ActiveRun {
            routes: routes.clone(),
            threads: Vec::new(),
            totals_at_start: ports,
            throttling_at_start: read_cpu_throttling(),
            totals_at_clear: None,
            frames_to_prime: settings.first_frames().saturating_mul(streams.len() as u64),
            streams,
            bit_rates,
            started_ns,
            flushed,
            next_refresh_ns: 0,
        };
        for (task, (task_sender, thread)) in tasks.into_iter().zip(spawned) {
            running.threads.push((Arc::clone(&task.control), thread));
            // The thread only waits for its work.
            let _ = task_sender.send(task);
        }
        self.running = Some(running);
        Ok(routes)
    }

    /// Rejects generated frames that a port cannot send: truncated ones would be different frames.
    fn check_frame_length(
        &self,
        settings: &ForwardSettings,
        routes: &[StreamRoute],
    ) -> Result<(), FrameRunError> {
        let makes_frames = settings.tx_first > 0 || settings.mode.makes_frames();
        let bytes = settings.mode_settings.frame.bytes;
        for route in routes.iter().filter(|_| makes_frames) {
            let port = &self.ports[route.tx_port as usize];
            let max_bytes = port.capabilities.frame_bytes;
            if bytes > max_bytes {
                return Err(FrameRunError::OptionRejected {
                    option: format!("--txpkts {bytes}"),
                    why: format!(
                        "{} sends at most {max_bytes} bytes per frame",
                        port.url.short_name()
                    ),
                    next_step: "set a larger mtu= in its URL, or use shorter frames".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Returns the number of frames that a mode may hold back per stream: half of the memory,
    /// divided.
    fn held_frames_per_stream(&self, streams: usize) -> u32 {
        let streams = u32::try_from(streams.max(1)).unwrap_or(u32::MAX);
        (self.memory.frames() / 2 / streams).max(1)
    }

    /// Rejects a mode that may hold more frames than the memory has: its queue would be shorter
    /// than requested.
    fn check_held_frames(
        &self,
        settings: &ForwardSettings,
        streams: usize,
    ) -> Result<(), FrameRunError> {
        let (max_held, share) = (
            settings.mode.max_held_frames(),
            self.held_frames_per_stream(streams),
        );
        if max_held <= share {
            return Ok(());
        }
        let needed = u64::from(max_held) * 2 * streams.max(1) as u64;
        Err(FrameRunError::Setup {
            object: format!("limit={max_held}"),
            situation: format!("the memory has space for {share} delayed frames in each direction"),
            next_step: format!(
                "start the program with this mode (--mode) or with --total-num-mbufs {needed}, or use limit={share}"
            ),
        })
    }

    fn check_interrupts(&self, routes: &[StreamRoute]) -> Result<(), FrameRunError> {
        for route in routes {
            let port = &self.ports[route.rx_port as usize];
            let queue = &port.queues[route.rx_queue as usize];
            if queue
                .receive
                .as_ref()
                .is_none_or(|receive| receive.wait_handle().is_none())
            {
                return Err(FrameRunError::OptionRejected {
                    option: "--idle interrupt".to_owned(),
                    why: format!(
                        "`{}` has no file descriptor to wait on",
                        port.url.short_name()
                    ),
                    next_step: "use --idle sleep:50us, or packet:, xdp: and tap: ports".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn baseline(&self, route: &StreamRoute, settings: &ForwardSettings) -> StreamBaseline {
        let queue = |port: u32, queue: u32| &self.ports[port as usize].queues[queue as usize];
        let received = Arc::clone(&queue(route.rx_port, route.rx_queue).received);
        let sent = Arc::clone(&queue(route.tx_port, route.tx_queue).sent);
        StreamBaseline {
            totals_at_start: [received.read(), sent.read()],
            at_clear: None,
            recorder: StreamRecorder::for_settings(settings).map(Arc::new),
            received,
            sent,
        }
    }

    /// Takes the queues of a stream from their ports.
    fn take_stream(
        &mut self,
        number: usize,
        route: &StreamRoute,
        settings: &ForwardSettings,
        routes: &[StreamRoute],
    ) -> FwdStream<AnyReceive, AnyTransmit> {
        let share = self.held_frames_per_stream(routes.len());
        let rx_port = &self.ports[route.rx_port as usize].capabilities;
        let forwards_on = settings.mode.rx_destination() == RxDestination::Port && !rx_port.replays;
        let tx_port = &mut self.ports[route.tx_port as usize];
        let facts = StreamFacts {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            address: tx_port.address(),
            peer: settings.peer_address(route.tx_port),
            frame_bytes: tx_port.capabilities.frame_bytes,
            max_held_frames: share,
            is_discarded: forwards_on && tx_port.capabilities.discards,
        };
        let transmit = tx_port.queues[route.tx_queue as usize].transmit.take();
        let rx_port = &mut self.ports[route.rx_port as usize];
        let receive = rx_port.queues[route.rx_queue as usize].receive.take();
        let (Some(receive), Some(transmit)) = (receive, transmit) else {
            unreachable!("a topology gives each queue to one stream");
        };
        let retry = settings.retry;
        FwdStream::new(receive, transmit, settings.burst, retry, facts)
    }

    /// Stops the threads and returns the queues to their ports; `None` if no threads run.
    pub fn stop(&mut self) -> Option<ForwardResults> {
        let mut running = self.running.take()?;
        for (control, _) in &running.threads {
            control.stop();
        }
        // A thread waits in the kernel only briefly, so the joins are short.
        let mut port_error = None;
        let mut primed = 0;
        let mut results = Vec::new();
        for (control, thread) in running.threads {
            // A thread that panicked has reported itself, and its queues are gone.
            results.push(thread.join().ok().flatten());
            // Also counted for a thread that panicked.
            primed += control.primed.load(Relaxed);
            let mut error_slot = control
                .port_error
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            port_error = port_error.or(error_slot.take());
        }
        // Threads that ended by themselves ended earlier.
        let wall_ns = results.iter().flatten().map(|result| result.wall_ns).max();
        let baselines = || running.routes.iter().zip(&running.streams);
        let since_start: Vec<_> = baselines()
            .map(|(route, baseline)| baseline.figures_since_start(route))
            .collect();
        let since_clear: Vec<_> = baselines()
            .map(|(route, baseline)| baseline.figures_since_clear(route))
            .collect();
        let (mut streams, mut cores) = (Vec::new(), Vec::new());
        let mut lost_queue_ports = Vec::new();
        for (core, result) in (0..).zip(results) {
            let Some(result) = result else {
                let unfinished = running.routes.iter().zip(&since_start).enumerate();
                let unfinished = unfinished.filter(|(_, (route, _))| route.core == core);
                for (number, (route, since_start)) in unfinished {
                    streams.push((number, since_start.clone()));
                    lost_queue_ports.extend([route.rx_port, route.tx_port]);
                }
                continue;
            };
            cores.push(core_figures(core, &result, &running.routes));
            for stream in result.streams {
                let figures = ForwardStream {
                    consumed: stream.consumed,
                    mode_counters: stream.counts.clone(),
                    ..since_start[stream.number].clone()
                };
                streams.push((stream.number, figures));
                self.return_queues(&running.routes[stream.number], stream);
            }
        }
        streams.sort_by_key(|(number, _)| *number);
        if let Some(meter) = &mut running.bit_rates {
            meter.finish(self.totals(), clock::now());
        }
        let duration_ns = wall_ns.unwrap_or_else(|| clock::now() - running.started_ns);
        let figures = ForwardFigures {
            duration_ns,
            ports: self.port_records(&running.totals_at_start, running.bit_rates.as_ref()),
            streams: streams.into_iter().map(|(_, stream)| stream).collect(),
            cores,
            memory: Some(self.memory_figures()),
            flushed: running.flushed,
            primed,
            throttling: read_cpu_throttling()
                .zip(running.throttling_at_start)
                .map(|(now, at_start)| now.since(&at_start)),
        };
        let since_cleared = running.totals_at_clear.map(|cleared| ForwardFigures {
            ports: self.port_records(&cleared, running.bit_rates.as_ref()),
            streams: since_clear,
            ..figures.clone()
        });
        let cpus: Vec<u32> = figures.cores.iter().filter_map(|core| core.cpu).collect();
        // Ports without streams may be on any node.
        let has_stream = |port: &&ForwarderPort| {
            let uses_port =
                |route: &StreamRoute| [route.rx_port, route.tx_port].contains(&port.number);
            running.routes.iter().any(uses_port)
        };
        let ports = self.ports.iter().filter(has_stream);
        let numa = NumaPlacement::read(
            ports.map(|port| port.capabilities.name_and_interface()),
            self.memory.numa_node(),
        )
        .warning(&cpus);
        // A port that lost a queue must be reopened.
        for port in &mut self.ports {
            if lost_queue_ports.contains(&port.number) && port.is_started() {
                port.close();
            }
        }
        Some(ForwardResults {
            routes: running.routes,
            numa_caveat: numa,
            figures,
            since_cleared,
            port_error,
        })
    }

    /// Returns the names of the ports that a thread polls.
    fn polled_ports(&self, core: u32, routes: &[StreamRoute]) -> String {
        let assigned = routes.iter().filter(|route| route.core == core);
        let mut ports: Vec<u32> = assigned.flat_map(|p| [p.rx_port, p.tx_port]).collect();
        ports.sort_unstable();
        ports.dedup();
        let names = ports
            .iter()
            .map(|&port| self.ports[port as usize].url.short_name());
        names.collect::<Vec<_>>().join(", ")
    }

    fn return_queues(&mut self, route: &StreamRoute, stream: StreamResult) {
        let rx_port = &mut self.ports[route.rx_port as usize];
        rx_port.queues[route.rx_queue as usize].receive = Some(stream.receive);
        let tx_port = &mut self.ports[route.tx_port as usize];
        tx_port.queues[route.tx_queue as usize].transmit = Some(stream.transmit);
    }

    fn memory_figures(&self) -> FrameMemory {
        FrameMemory {
            frames: self.memory.frames(),
            slot_bytes: self.memory.slot_bytes() as u64,
            bytes: self.memory.mapped_bytes() as u64,
            huge_pages: self.memory.page_kind() == PageKind::Huge,
        }
    }

    /// Reads the counters that only the kernel keeps; called once per interval.
    pub fn refresh(&mut self) {
        /// Time to wait for the threads; a late thread is requested again at the next call.
        const REFRESH_TIMEOUT: Duration = Duration::from_millis(20);
        let Some(running) = &self.running else {
            for port in &mut self.ports {
                // A port that failed reports the error at its next start.
                let _ = port.refresh();
            }
            return;
        };
        for (control, _) in &running.threads {
            control.request_refresh();
        }
        let deadline = clock::now() + REFRESH_TIMEOUT.as_nanos() as u64;
        let all_refreshed = || {
            running
                .threads
                .iter()
                .all(|(control, _)| control.is_refreshed())
        };
        while !all_refreshed() && clock::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the memory plan for these ports.
fn memory_plan_for(
    urls: &[PortUrl],
    request: &FrameMemoryRequest,
) -> Result<MemoryPlan, FrameRunError> {
    let mut plan = memory_plan(urls);
    let queues = urls.iter().map(|url| url.common().queues.unwrap_or(1));
    plan.frames = plan
        .frames
        .saturating_add(SPARE_FRAMES.saturating_mul(queues.sum()))
        .max(request.frames.unwrap_or(0));
    plan.cached_frames = request.cached_frames.unwrap_or(plan.cached_frames);
    let Some(slot_bytes) = request.slot_bytes else {
        return Ok(plan);
    };
    let needed = u32::from(plan.headroom) + u32::from(plan.frame_bytes);
    let spare_bytes = slot_bytes.checked_sub(needed);
    let frame_bytes = spare_bytes.map(|spare| u32::from(plan.frame_bytes) + spare);
    match frame_bytes.map(u16::try_from) {
        Some(Ok(frame_bytes)) => {
            plan.frame_bytes = frame_bytes;
            Ok(plan)
        }
        Some(Err(_)) => Err(FrameRunError::Unsupported {
            option: format!("--mbuf-size {slot_bytes}"),
            why: format!("a frame has at most {} bytes", u16::MAX),
            next_step: "use less, or --total-num-mbufs for more frames".to_owned(),
        }),
        None => Err(FrameRunError::Unsupported {
            option: format!("--mbuf-size {slot_bytes}"),
            why: format!(
                "ports send frames of {} bytes with {} bytes of headroom, and a frame must fit into one buffer",
                plan.frame_bytes, plan.headroom
            ),
            next_step: format!("use {needed} or more, or a smaller mtu= (--max-pkt-len)"),
        }),
    }
}

/// Formats `1 queue`, `2 queues`.
fn queue_count_text(queues: usize) -> String {
    count_of(queues as u64, "queue")
}

/// Rejects residence times in modes that do not forward frames at once.
fn check_residence(settings: &ForwardSettings) -> Result<(), FrameRunError> {
    let mode = &settings.mode;
    if !settings.record_residence || mode.forwards_at_once() {
        return Ok(());
    }
    Err(FrameRunError::Unsupported {
        option: "--latencystats".to_owned(),
        why: format!(
            "mode {} consumes, generates or delays frames: none passes straight through",
            mode.name()
        ),
        next_step:
            "use a mode that forwards frames (io, mac, macswap, 5tswap, icmpecho, csum), or \
                    `linerate latency` through this forwarder"
                .to_owned(),
    })
}

/// Rejects a memory of more than half of the free memory: the kernel would overcommit it, and kill
/// a process when it is used.
fn check_memory(plan: &MemoryPlan) -> Result<(), FrameRunError> {
    let bytes = plan.slot_bytes() as u64 * u64::from(plan.frames);
    match linerate_sys::memory_info::available_bytes() {
        Some(free) if bytes > free / 2 => Err(FrameRunError::Setup {
            object: format!("memory for {} frames", plan.frames),
            situation: format!(
                "{} is more than half of the {} that are free",
                format_bytes(bytes),
                format_bytes(free)
            ),
            next_step: "use fewer or shorter rings (--rxq, --rxd, --txd), a smaller mtu=, or a smaller limit= of \
                        an emulated link"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

fn core_figures(core: u32, result: &ForwardTaskResult, routes: &[StreamRoute]) -> ForwardCore {
    let wall_ns = result.wall_ns.max(1) as f64;
    ForwardCore {
        core,
        cpu: routes.iter().find(|p| p.core == core).and_then(|p| p.cpu),
        streams: u32::try_from(result.streams.len()).unwrap_or(u32::MAX),
        cpu_share: (result.usage.cpu_ns as f64 / wall_ns).min(1.0),
        rounds: result.rounds,
        idle_rounds: result.idle_rounds,
        idle_gap_ns: result.idle_delay.gap_ns,
        idle_gap_max_ns: result.idle_delay.gap_max_ns,
        wake_ns: result.idle_delay.wake_ns,
        involuntary_switches: result.usage.involuntary_switches,
        voluntary_switches: result.usage.voluntary_switches,
    }
}

fn stream_figures(route: &StreamRoute, [received, sent]: [QueueTotals; 2]) -> ForwardStream {
    ForwardStream {
        rx_port: route.rx_port,
        rx_queue: route.rx_queue,
        tx_port: route.tx_port,
        tx_queue: route.tx_queue,
        core: route.core,
        receive: queue_figures(received),
        transmit: queue_figures(sent),
        ..ForwardStream::default()
    }
}
