//! Forwarder: open ports, and the threads that poll them between start and stop.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use linerate_host::sys::{clock, cpu};
use linerate_metric::forward::{
    ForwardCore, ForwardFigures, ForwardStream, FrameMemory, Idle, StreamPlace,
};
use linerate_metric::plan::Cpus;
use linerate_metric::record::Doubt;
use linerate_metric::units::format_bytes;
use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{
    Memory, MemoryPlan, Onward, Pages, PortError, PortUrl, QueueCounters, QueueTotals, Receive,
    memory_plan,
};

use super::bit_rate_meter::Observed;
use super::cpu_choice::Chosen;
use super::forwarder_port::{Port, PortTotals, figures};
use super::mode_table::ModeSpec;
use super::queue_decorators::{self, Told};
use super::settings::Settings;
use super::stream::{Facts, Stream};
use super::stream_recorder::{Recorded, Sample};
use super::worker::{Assigned, Control, ForwardTask, ForwardTaskResult, Presence, StreamDone};
use crate::MeasureError;
use crate::numa::Seats;
use crate::spawn_all::hire;

mod port_control;
#[cfg(test)]
mod tests;

/// Work of a thread; returns nothing if it received none.
type Job = Box<dyn FnOnce() -> Option<ForwardTaskResult> + Send>;

/// Function that starts a thread, or fails.
type Spawn<'a> =
    &'a mut dyn FnMut(Builder, Job) -> io::Result<JoinHandle<Option<ForwardTaskResult>>>;

/// Requested frame memory, beyond the needs of the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryWish {
    /// Minimum number of frames.
    pub frames: Option<u32>,
    /// Minimum bytes per frame, headroom included; less than the ports need is rejected.
    pub slot_bytes: Option<u32>,
    /// Number of free frames that a thread caches before it returns some to the shared pool.
    pub cached_frames: Option<u16>,
}

/// Frames put into circulation before forwarding starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primed {
    /// Requested number of frames, all streams.
    pub wanted: u64,
    /// Number of frames that the rings accepted.
    pub sent: u64,
}

/// Results of a run from start to stop.
#[derive(Debug)]
pub struct Outcome {
    /// Assignment of streams to threads, including threads that panicked.
    pub places: Vec<StreamPlace>,
    pub figures: ForwardFigures,
    /// Figures since the counters were cleared in the run, if they were: for display, not for the
    /// record.
    pub since_cleared: Option<ForwardFigures>,
    /// Descriptions of the last frames, if the settings require them.
    pub described: Vec<String>,
    /// Caveat about ports, memory and threads on different NUMA nodes.
    pub numa: Option<Doubt>,
    /// Error that stopped a port.
    pub trouble: Option<PortError>,
}

/// Ports and the threads that forward between them.
pub struct Forwarder {
    memory: Memory,
    wish: MemoryWish,
    ports: Vec<Port>,
    running: Option<Running>,
    /// Ports that were reopened for a larger memory, until `take_reopened` returns them.
    reopened: Vec<u32>,
    /// Processors chosen automatically, kept until the number of threads changes.
    chosen: Mutex<Option<Chosen>>,
}

struct Running {
    places: Vec<StreamPlace>,
    threads: Vec<(Arc<Control>, JoinHandle<Option<ForwardTaskResult>>)>,
    /// Totals of the ports at the start.
    ports: Vec<PortTotals>,
    /// Totals of the ports at the last clear in the run.
    cleared: Option<Vec<PortTotals>>,
    streams: Vec<Base>,
    bit_rates: Option<Observed>,
    told: Option<Told>,
    /// Number of frames that `tx_first` requests, all streams.
    wanted: u64,
    started_ns: u64,
    flushed: u64,
    /// Next time at which threads are requested to read the kernel's counters.
    ask_at_ns: u64,
}

/// Counters of a stream, with their values at the start.
struct Base {
    received: Arc<QueueCounters>,
    sent: Arc<QueueCounters>,
    before: [QueueTotals; 2],
    /// Values at the last clear in the run, with the recorded sample of that time.
    cleared: Option<([QueueTotals; 2], Option<Sample>)>,
    /// Recorder of further figures.
    recorded: Option<Arc<Recorded>>,
}

impl Base {
    fn totals(&self) -> [QueueTotals; 2] {
        [self.received.read(), self.sent.read()]
    }

    /// Returns the figures of the stream since the start.
    fn all(&self, place: &StreamPlace) -> ForwardStream {
        let mut stream = figures_of(place, self.since(self.before));
        if let Some(recorded) = &self.recorded {
            recorded.all_into(&mut stream);
        }
        stream
    }

    /// Returns the figures of the stream since the last clear.
    fn shown(&self, place: &StreamPlace) -> ForwardStream {
        let Some((cleared, earlier)) = &self.cleared else {
            return self.all(place);
        };
        let mut stream = figures_of(place, self.since(*cleared));
        if let (Some(recorded), Some(earlier)) = (&self.recorded, earlier) {
            recorded.later_into(earlier, &mut stream);
        }
        stream
    }

    fn since(&self, before: [QueueTotals; 2]) -> [QueueTotals; 2] {
        let [received, sent] = self.totals();
        [received.since(before[0]), sent.since(before[1])]
    }

    fn clear(&mut self) {
        let sample = self.recorded.as_ref().map(|recorded| {
            recorded.clear();
            recorded.sample()
        });
        self.cleared = Some((self.totals(), sample));
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
            let named = url.queues("q").map(|range| range.end() - range.start() + 1);
            named.or(url.common().queues).unwrap_or(1)
        });
        let held = mode.frames_held().saturating_mul(queues.sum());
        let ports = memory_plan(urls).frames;
        // Half of the memory is for frames that modes hold back, the other half for the ports.
        (held > ports / 2).then(|| held.max(ports).saturating_mul(2))
    }

    /// Opens the ports over one memory.
    ///
    /// # Errors
    /// [`MeasureError`] if a port cannot be opened or the memory is too small or too large.
    pub fn open(urls: &[PortUrl], wish: MemoryWish) -> Result<Self, MeasureError> {
        let plan = planned(urls, &wish)?;
        check_memory(&plan)?;
        let memory = Memory::new(plan)?;
        let ports = (0..).zip(urls);
        let ports = ports.map(|(number, url)| Port::open(number, url, &memory));
        Ok(Self {
            ports: ports.collect::<Result<_, _>>()?,
            memory,
            wish,
            running: None,
            reopened: Vec::new(),
            chosen: Mutex::default(),
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
            threads.all(|(control, _)| control.ended.load(Relaxed))
        })
    }

    /// Returns whether a port has failed; [`Forwarder::stop`] returns the error.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let mut threads = running.threads.iter();
            threads.any(|(control, _)| {
                let trouble = control.trouble.lock();
                trouble.unwrap_or_else(PoisonError::into_inner).is_some()
            })
        })
    }

    /// Returns the number of streams with these settings.
    ///
    /// # Errors
    /// [`MeasureError`] if the settings allow no stream.
    pub fn streams_of(&self, settings: &Settings) -> Result<usize, MeasureError> {
        Ok(self.pairs(settings)?.len())
    }

    /// Returns the assignment of streams to threads with these settings.
    ///
    /// # Errors
    /// [`MeasureError`] if the settings do not fit the ports or processors.
    pub fn places(&self, settings: &Settings) -> Result<Vec<StreamPlace>, MeasureError> {
        let pairs = self.pairs(settings)?;
        let threads = (settings.cores.max(1) as usize).min(pairs.len().max(1));
        let cpus = self.cpus(settings, threads)?;
        let count = pairs.len();
        let places = pairs.into_iter().enumerate();
        let places = places.map(|(number, (from, to, queue))| {
            // Neighbouring streams share a thread; the first threads get one more if the division
            // leaves a rest.
            let core = number * threads / count;
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            StreamPlace {
                rx_port: number(from),
                rx_queue: number(queue),
                tx_port: number(to),
                tx_queue: number(queue),
                peer: settings.peer(number(to)).to_string(),
                core: number(core),
                cpu: cpus.get(core).copied(),
            }
        });
        Ok(places.collect())
    }

    /// Returns the ports of each stream, and the number of its queue on both.
    fn pairs(&self, settings: &Settings) -> Result<Vec<(usize, usize, usize)>, MeasureError> {
        let ports = self.taking_part(settings)?;
        let topology = match settings.mode.replies_on_rx_port() {
            true => linerate_metric::forward::PortTopology::Loop,
            false => settings.topology,
        };
        let mut pairs = Vec::new();
        for (index, &from) in ports.iter().enumerate() {
            let to = ports[topology.peer(index, ports.len())];
            let queues = [from, to].map(|port| self.ports[port].queues.len());
            if queues[0] != queues[1] {
                return Err(MeasureError::NotForwardable {
                    object: format!("ports {from} and {to}"),
                    situation: format!("they have {} and {}", queues[0], counted(queues[1])),
                    next_step: "give both ports the same `queues=`".to_owned(),
                });
            }
            pairs.extend((0..queues[0]).map(|queue| (from, to, queue)));
        }
        Ok(pairs)
    }

    /// Returns the open ports that the settings select, in their order: neighbours in the list are
    /// pairs.
    fn taking_part(&self, settings: &Settings) -> Result<Vec<usize>, MeasureError> {
        let unknown = (settings.ports.iter()).find(|&&port| port as usize >= self.ports.len());
        if let Some(port) = unknown {
            return Err(MeasureError::NotForwardable {
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
            return Err(MeasureError::NotForwardable {
                object: "ports".to_owned(),
                situation: "none is started".to_owned(),
                next_step: "use `port start all`".to_owned(),
            });
        }
        Ok(ports)
    }

    /// Returns the processors of the threads: the requested ones, else [free ones](Chosen).
    fn cpus(&self, settings: &Settings, threads: usize) -> Result<Vec<u32>, MeasureError> {
        if !settings.pinned {
            return Ok(Vec::new());
        }
        let usable = cpu::usable()
            .map_err(|source| MeasureError::system("reading the affinity mask", source))?;
        if !settings.cpus.is_empty() {
            if let Some(cpu) = settings.cpus.iter().find(|cpu| !usable.contains(cpu)) {
                return Err(MeasureError::NotForwardable {
                    object: format!("processor {cpu}"),
                    situation: "this process may not run there".to_owned(),
                    next_step: format!("choose among {}", Cpus(usable)),
                });
            }
            if settings.cpus.len() < threads {
                return Err(MeasureError::NotForwardable {
                    object: format!("{threads} threads"),
                    situation: format!("{} processors are listed", settings.cpus.len()),
                    next_step: "list a processor for each thread, or use fewer threads".to_owned(),
                });
            }
            return Ok(settings.cpus[..threads].to_vec());
        }
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if chosen
            .as_ref()
            .is_none_or(|chosen| chosen.threads != threads)
        {
            // The locks of the last choice are released first.
            *chosen = None;
            *chosen = Some(Chosen::among(&usable, threads));
        }
        Ok(chosen
            .as_ref()
            .map_or_else(Vec::new, |chosen| chosen.cpus.clone()))
    }

    /// Starts the threads. `quiet` is the time without arrivals after which receive queues count as
    /// empty.
    ///
    /// # Errors
    /// [`MeasureError`] if the settings do not fit the ports, processors or memory.
    pub fn start(
        &mut self,
        settings: &Settings,
        quiet: Duration,
    ) -> Result<Vec<StreamPlace>, MeasureError> {
        self.start_by(settings, quiet, &mut |builder, job| builder.spawn(job))
    }

    fn start_by(
        &mut self,
        settings: &Settings,
        quiet: Duration,
        spawn: Spawn<'_>,
    ) -> Result<Vec<StreamPlace>, MeasureError> {
        if self.is_running() {
            return Err(MeasureError::NotForwardable {
                object: "forwarding".to_owned(),
                situation: "it is running already".to_owned(),
                next_step: "use `stop` first".to_owned(),
            });
        }
        let places = self.places(settings)?;
        self.check_length(settings, &places)?;
        check_residence(settings)?;
        self.check_rates(settings)?;
        self.check_room(settings, places.len())?;
        if settings.idle == Idle::Interrupt {
            self.check_interrupts(&places)?;
        }
        let threads = places.iter().map(|place| place.core + 1).max().unwrap_or(1);
        // Spawned before any queue is taken from its port, and before any thread waits at the
        // barrier.
        let hired = hire(
            "forward",
            "forwarding",
            threads as usize,
            |builder, work: Receiver<ForwardTask>| {
                let mode = settings.mode.clone();
                let job = move || work.recv().ok().map(|work| mode.run(work));
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
        let trouble = self.settle(&places);
        self.ports.iter_mut().for_each(Port::begin);
        let ports = self.ports.iter().map(Port::totals).collect();
        let streams = places.iter().map(|place| self.base(place, settings));
        let streams: Vec<Base> = streams.collect();
        let bit_rates = settings
            .record_bit_rates
            .then(|| Observed::new(self.totals(), clock::now()));
        let telling = (settings.verbose.0 > 0).then(queue_decorators::telling);
        let (teller, told) = telling.unzip();
        let barrier = Arc::new(Barrier::new(threads as usize));
        let shared = Arc::new(settings.clone());
        let mut works = Vec::new();
        for core in 0..threads {
            let own = places.iter().enumerate();
            let own = own.filter(|(_, place)| place.core == core);
            let control = Arc::default();
            works.push(ForwardTask {
                presence: Presence::new(&control, &barrier, self.polled_by(core, &places)),
                cpu: own.clone().find_map(|(_, place)| place.cpu),
                streams: own
                    .map(|(number, place)| Assigned {
                        number,
                        stream: self.stream(number, place, settings, &places),
                        recorded: streams[number].recorded.clone(),
                    })
                    .collect(),
                control,
                settings: Arc::clone(&shared),
                memory: self.memory.clone(),
                teller: teller.clone(),
            });
        }
        if let (Some(error), Some(work)) = (trouble, works.first()) {
            work.control.report(error);
        }
        let started_ns = clock::now();
        let mut running = Running {
            places: places.clone(),
            threads: Vec::new(),
            ports,
            cleared: None,
            wanted: settings.first_frames().saturating_mul(streams.len() as u64),
            streams,
            bit_rates,
            told,
            started_ns,
            flushed,
            ask_at_ns: 0,
        };
        for (work, (give, thread)) in works.into_iter().zip(hired) {
            running.threads.push((Arc::clone(&work.control), thread));
            // The thread only waits for its work.
            let _ = give.send(work);
        }
        self.running = Some(running);
        Ok(places)
    }

    /// Rejects generated frames that a port cannot send: truncated ones would be different frames.
    fn check_length(
        &self,
        settings: &Settings,
        places: &[StreamPlace],
    ) -> Result<(), MeasureError> {
        let makes = settings.tx_first > 0 || settings.mode.makes_frames();
        let bytes = settings.frame.bytes;
        for place in places.iter().filter(|_| makes) {
            let port = &self.ports[place.tx_port as usize];
            let most = port.capabilities.frame_bytes;
            if bytes > most {
                return Err(MeasureError::OptionRefused {
                    option: format!("--txpkts {bytes}"),
                    why: format!("{} sends at most {most} bytes per frame", port.url.short()),
                    next_step: "set a larger mtu= in its URL, or use shorter frames".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Rejects rates of queues that do not exist, which would have no effect.
    fn check_rates(&self, settings: &Settings) -> Result<(), MeasureError> {
        for rate in &settings.rates {
            let port = self.ports.get(rate.port as usize);
            let queues = port.map_or(0, |port| port.queues.len());
            if rate.queue as usize >= queues && port.is_none_or(Port::is_started) {
                return Err(MeasureError::NotForwardable {
                    object: format!("queue {} of port {}", rate.queue, rate.port),
                    situation: format!("a rate is set, and the port has {}", counted(queues)),
                    next_step: format!("use `set port {} queue {} rate 0`", rate.port, rate.queue),
                });
            }
        }
        Ok(())
    }

    /// Returns the number of frames that a mode may hold back per stream: half of the memory,
    /// divided.
    fn share(&self, streams: usize) -> u32 {
        let streams = u32::try_from(streams.max(1)).unwrap_or(u32::MAX);
        (self.memory.frames() / 2 / streams).max(1)
    }

    /// Rejects a mode that may hold more frames than the memory has: its queue would be shorter
    /// than requested.
    fn check_room(&self, settings: &Settings, streams: usize) -> Result<(), MeasureError> {
        let (held, share) = (settings.mode.frames_held(), self.share(streams));
        if held <= share {
            return Ok(());
        }
        let needed = u64::from(held) * 2 * streams.max(1) as u64;
        Err(MeasureError::NotForwardable {
            object: format!("limit={held}"),
            situation: format!("the memory has space for {share} delayed frames in each direction"),
            next_step: format!(
                "start the program with this mode (--mode) or with --total-num-mbufs {needed}, or use limit={share}"
            ),
        })
    }

    fn check_interrupts(&self, places: &[StreamPlace]) -> Result<(), MeasureError> {
        for place in places {
            let port = &self.ports[place.rx_port as usize];
            let queue = &port.queues[place.rx_queue as usize];
            if queue
                .receive
                .as_ref()
                .is_none_or(|receive| receive.wait_handle().is_none())
            {
                return Err(MeasureError::OptionRefused {
                    option: "--idle interrupt".to_owned(),
                    why: format!("`{}` has no file descriptor to wait on", port.url.short()),
                    next_step: "use --idle sleep:50us, or packet:, xdp: and tap: ports".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn base(&self, place: &StreamPlace, settings: &Settings) -> Base {
        let queue = |port: u32, queue: u32| &self.ports[port as usize].queues[queue as usize];
        let received = Arc::clone(&queue(place.rx_port, place.rx_queue).received);
        let sent = Arc::clone(&queue(place.tx_port, place.tx_queue).sent);
        Base {
            before: [received.read(), sent.read()],
            cleared: None,
            recorded: Recorded::wanted(settings).map(Arc::new),
            received,
            sent,
        }
    }

    /// Takes the queues of a stream from their ports.
    fn stream(
        &mut self,
        number: usize,
        place: &StreamPlace,
        settings: &Settings,
        places: &[StreamPlace],
    ) -> Stream<AnyReceive, AnyTransmit> {
        let share = self.share(places.len());
        let from = &self.ports[place.rx_port as usize].capabilities;
        let sends_on = settings.mode.onward() == Onward::Port && !from.replays;
        let to = &mut self.ports[place.tx_port as usize];
        let facts = Facts {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            from: [place.rx_port, place.rx_queue],
            to: [place.tx_port, place.tx_queue],
            address: to.address(),
            peer: settings.peer(place.tx_port),
            frame_bytes: to.capabilities.frame_bytes,
            descriptors: (to.capabilities.transmit_descriptors).unwrap_or_else(|| to.url.txd()),
            share,
            is_aimless: sends_on && to.capabilities.discards,
        };
        let transmit = to.queues[place.tx_queue as usize].transmit.take();
        let from = &mut self.ports[place.rx_port as usize];
        let receive = from.queues[place.rx_queue as usize].receive.take();
        let (Some(receive), Some(transmit)) = (receive, transmit) else {
            unreachable!("a topology gives each queue to one stream");
        };
        let retry = settings.retry;
        Stream::new(receive, transmit, settings.burst, retry, facts)
    }

    /// Stops the threads and returns the queues to their ports; `None` if no threads run.
    pub fn stop(&mut self) -> Option<Outcome> {
        let mut running = self.running.take()?;
        for (control, _) in &running.threads {
            control.stop();
        }
        // A thread waits in the kernel only briefly, so the joins are short.
        let mut trouble = None;
        let mut primed = 0;
        let mut results = Vec::new();
        for (control, thread) in running.threads {
            // A thread that panicked has reported itself, and its queues are gone.
            results.push(thread.join().ok().flatten());
            // Also counted for a thread that panicked.
            primed += control.primed.load(Relaxed);
            let mut told = control
                .trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            trouble = trouble.or(told.take());
        }
        // Threads that ended by themselves ended earlier.
        let wall_ns = results.iter().flatten().map(|done| done.wall_ns).max();
        let bases = || running.places.iter().zip(&running.streams);
        let moved: Vec<_> = bases().map(|(place, base)| base.all(place)).collect();
        let shown: Vec<_> = bases().map(|(place, base)| base.shown(place)).collect();
        let (mut streams, mut cores) = (Vec::new(), Vec::new());
        let mut gone = Vec::new();
        for (core, done) in (0..).zip(results) {
            let Some(done) = done else {
                let own = running.places.iter().zip(&moved).enumerate();
                let own = own.filter(|(_, (place, _))| place.core == core);
                for (number, (place, moved)) in own {
                    streams.push((number, moved.clone()));
                    gone.extend([place.rx_port, place.tx_port]);
                }
                continue;
            };
            cores.push(core_figures(core, &done, &running.places));
            for stream in done.streams {
                let figures = ForwardStream {
                    taken: stream.taken,
                    counts: stream.counts.clone(),
                    ..moved[stream.number].clone()
                };
                streams.push((stream.number, figures));
                self.give_back(&running.places[stream.number], stream);
            }
        }
        streams.sort_by_key(|(number, _)| *number);
        if let Some(observed) = &mut running.bit_rates {
            observed.end(self.totals(), clock::now());
        }
        let duration_ns = wall_ns.unwrap_or_else(|| clock::now() - running.started_ns);
        let figures = ForwardFigures {
            duration_ns,
            ports: self.records(&running.ports, running.bit_rates.as_ref()),
            streams: streams.into_iter().map(|(_, stream)| stream).collect(),
            cores,
            memory: Some(self.memory_figures()),
            flushed: running.flushed,
            primed,
        };
        let since_cleared = running.cleared.map(|cleared| ForwardFigures {
            ports: self.records(&cleared, running.bit_rates.as_ref()),
            streams: shown,
            ..figures.clone()
        });
        let cpus: Vec<u32> = figures.cores.iter().filter_map(|core| core.cpu).collect();
        // Ports without streams may be on any node.
        let takes_part = |port: &&Port| {
            let of = |place: &StreamPlace| [place.rx_port, place.tx_port].contains(&port.number);
            running.places.iter().any(of)
        };
        let ports = self.ports.iter().filter(takes_part);
        let numa = Seats::of(ports.map(|port| &port.capabilities), &self.memory).doubt(&cpus);
        // A port that lost a queue must be reopened.
        for port in &mut self.ports {
            if gone.contains(&port.number) && port.is_started() {
                port.stop();
            }
        }
        Some(Outcome {
            places: running.places,
            numa,
            figures,
            since_cleared,
            described: (running.told.as_ref()).map_or_else(Vec::new, Told::read),
            trouble,
        })
    }

    /// Returns the names of the ports that a thread polls.
    fn polled_by(&self, core: u32, places: &[StreamPlace]) -> String {
        let own = places.iter().filter(|place| place.core == core);
        let mut ports: Vec<u32> = own.flat_map(|p| [p.rx_port, p.tx_port]).collect();
        ports.sort_unstable();
        ports.dedup();
        let names = ports
            .iter()
            .map(|&port| self.ports[port as usize].url.short());
        names.collect::<Vec<_>>().join(", ")
    }

    fn give_back(&mut self, place: &StreamPlace, stream: StreamDone) {
        let from = &mut self.ports[place.rx_port as usize];
        from.queues[place.rx_queue as usize].receive = Some(stream.receive);
        let to = &mut self.ports[place.tx_port as usize];
        to.queues[place.tx_queue as usize].transmit = Some(stream.transmit);
    }

    fn memory_figures(&self) -> FrameMemory {
        FrameMemory {
            frames: self.memory.frames(),
            slot_bytes: self.memory.slot_bytes() as u64,
            bytes: self.memory.mapped_bytes() as u64,
            huge_pages: self.memory.pages() == Pages::Huge,
        }
    }

    /// Reads the counters that only the kernel keeps; called once per interval.
    pub fn refresh(&mut self) {
        /// Time to wait for the threads; a late thread is requested again at the next call.
        const PATIENCE: Duration = Duration::from_millis(20);
        let Some(running) = &self.running else {
            for port in &mut self.ports {
                // A port that failed reports the error at its next start.
                let _ = port.refresh();
            }
            return;
        };
        for (control, _) in &running.threads {
            control.ask_refresh();
        }
        let until = clock::now() + PATIENCE.as_nanos() as u64;
        let fresh = || {
            running
                .threads
                .iter()
                .all(|(control, _)| control.is_fresh())
        };
        while !fresh() && clock::now() < until {
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
fn planned(urls: &[PortUrl], wish: &MemoryWish) -> Result<MemoryPlan, MeasureError> {
    let mut plan = memory_plan(urls);
    let queues = urls.iter().map(|url| url.common().queues.unwrap_or(1));
    plan.frames = plan
        .frames
        .saturating_add(SPARE_FRAMES.saturating_mul(queues.sum()))
        .max(wish.frames.unwrap_or(0));
    plan.cached_frames = wish.cached_frames.unwrap_or(plan.cached_frames);
    let Some(wished) = wish.slot_bytes else {
        return Ok(plan);
    };
    let needed = u32::from(plan.headroom) + u32::from(plan.frame_bytes);
    let room = wished.checked_sub(needed);
    let frame_bytes = room.map(|more| u32::from(plan.frame_bytes) + more);
    match frame_bytes.map(u16::try_from) {
        Some(Ok(frame_bytes)) => {
            plan.frame_bytes = frame_bytes;
            Ok(plan)
        }
        Some(Err(_)) => Err(MeasureError::Unsupported {
            option: format!("--mbuf-size {wished}"),
            why: format!("a frame has at most {} bytes", u16::MAX),
            next_step: "use less, or --total-num-mbufs for more frames".to_owned(),
        }),
        None => Err(MeasureError::Unsupported {
            option: format!("--mbuf-size {wished}"),
            why: format!(
                "ports send frames of {} bytes with {} bytes of headroom, and a frame must fit into one buffer",
                plan.frame_bytes, plan.headroom
            ),
            next_step: format!("use {needed} or more, or a smaller mtu= (--max-pkt-len)"),
        }),
    }
}

/// Formats `1 queue`, `2 queues`.
fn counted(queues: usize) -> String {
    let plural = if queues == 1 { "" } else { "s" };
    format!("{queues} queue{plural}")
}

/// Rejects residence times in modes that do not forward frames at once.
fn check_residence(settings: &Settings) -> Result<(), MeasureError> {
    let mode = &settings.mode;
    if !settings.record_residence || mode.goes_through() {
        return Ok(());
    }
    Err(MeasureError::Unsupported {
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
fn check_memory(plan: &MemoryPlan) -> Result<(), MeasureError> {
    let wanted = plan.slot_bytes() as u64 * u64::from(plan.frames);
    match crate::flow_memory::available() {
        Some(free) if wanted > free / 2 => Err(MeasureError::NotForwardable {
            object: format!("memory for {} frames", plan.frames),
            situation: format!(
                "{} is more than half of the {} that are free",
                format_bytes(wanted),
                format_bytes(free)
            ),
            next_step: "use fewer or shorter rings (--rxq, --rxd, --txd), a smaller mtu=, or a smaller limit= of \
                        an emulated link"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

fn core_figures(core: u32, done: &ForwardTaskResult, places: &[StreamPlace]) -> ForwardCore {
    let wall = done.wall_ns.max(1) as f64;
    ForwardCore {
        core,
        cpu: places.iter().find(|p| p.core == core).and_then(|p| p.cpu),
        streams: u32::try_from(done.streams.len()).unwrap_or(u32::MAX),
        cpu_share: (done.usage.cpu_ns as f64 / wall).min(1.0),
        rounds: done.rounds,
        idle_rounds: done.idle_rounds,
        idle_gap_ns: done.idle.gap_ns,
        idle_gap_max_ns: done.idle.gap_max_ns,
        wake_ns: done.idle.wake_ns,
        involuntary_switches: done.usage.involuntary_switches,
        voluntary_switches: done.usage.voluntary_switches,
    }
}

fn figures_of(place: &StreamPlace, [received, sent]: [QueueTotals; 2]) -> ForwardStream {
    ForwardStream {
        rx_port: place.rx_port,
        rx_queue: place.rx_queue,
        tx_port: place.tx_port,
        tx_queue: place.tx_queue,
        core: place.core,
        receive: figures(received),
        transmit: figures(sent),
        ..ForwardStream::default()
    }
}
