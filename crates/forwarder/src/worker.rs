//! Polling loop: one thread with its streams, in one mode.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{PortError, RxQueue, TxQueue};
use linerate_record::forward::IdleStrategy;
use linerate_sys::cpu::ThreadUsage;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::{clock, cpu, tick_clock};

use crate::idle_policy::{self, IdleDelay, IdleMethod, IdlePolicy};
use crate::mode::tx_only::TxOnly;
use crate::settings::ForwardSettings;
use crate::stream::{ForwardMode, FwdStream, ModeTask, NoOptions};
use crate::stream_recorder::StreamRecorder;

/// Requests to a running thread, and its reports.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct WorkerControl {
    /// Bits [`STOP_REQUEST`] and [`REFRESH_REQUEST`]; 0: no request.
    requests: AtomicU32,
    /// True if no frame will arrive any more, or only frames that are discarded.
    pub(super) has_ended: AtomicBool,
    /// Number of frames that its streams put into circulation, valid once `is_primed`.
    pub(super) primed: AtomicU64,
    pub(super) is_primed: AtomicBool,
    /// Error that stopped a port.
    pub(super) port_error: Mutex<Option<PortError>>,
}

const STOP_REQUEST: u32 = 1;
const REFRESH_REQUEST: u32 = 2;

impl WorkerControl {
    /// Requests the end of the loop.
    pub(super) fn stop(&self) {
        self.requests.fetch_or(STOP_REQUEST, Relaxed);
    }

    /// Requests a reading of the counters that only the kernel keeps.
    pub(super) fn request_refresh(&self) {
        self.requests.fetch_or(REFRESH_REQUEST, Relaxed);
    }

    /// Returns whether the requested reading is complete.
    pub(super) fn is_refreshed(&self) -> bool {
        self.requests.load(Relaxed) & REFRESH_REQUEST == 0
    }

    /// Records a port error, unless one is recorded already.
    pub(super) fn report_error(&self, error: PortError) {
        let mut port_error = self
            .port_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        port_error.get_or_insert(error);
    }
}

/// Participation of a thread in the start barrier: all threads wait there before the first frames
/// are sent and again before forwarding. If a thread panics, the guard reports it and takes its
/// remaining waits.
pub(super) struct StartBarrierGuard {
    control: Arc<WorkerControl>,
    barrier: Arc<Barrier>,
    remaining_waits: u32,
    /// Names of the ports that it polls.
    ports: String,
}

impl StartBarrierGuard {
    pub(super) fn new(control: &Arc<WorkerControl>, start: &Arc<Barrier>, ports: String) -> Self {
        Self {
            control: Arc::clone(control),
            barrier: Arc::clone(start),
            remaining_waits: 2,
            ports,
        }
    }

    fn wait(&mut self) {
        self.barrier.wait();
        self.remaining_waits -= 1;
    }
}

impl Drop for StartBarrierGuard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.control.report_error(PortError::Fault {
            port: std::mem::take(&mut self.ports),
        });
        self.control.has_ended.store(true, Relaxed);
        self.control.is_primed.store(true, Release);
        for _ in 0..self.remaining_waits {
            self.barrier.wait();
        }
    }
}

/// Stream assigned to a thread.
pub(super) struct AssignedStream {
    /// Number of the stream among all streams.
    pub(super) number: usize,
    pub(super) stream: FwdStream<AnyReceive, AnyTransmit>,
    /// Recorder of the figures that the settings require.
    pub(super) recorder: Option<Arc<StreamRecorder>>,
}

/// Work assigned to a thread.
pub(super) struct ForwardTask {
    pub(super) streams: Vec<AssignedStream>,
    pub(super) control: Arc<WorkerControl>,
    pub(super) settings: Arc<ForwardSettings>,
    pub(super) memory: FrameRegion,
    pub(super) cpu: Option<u32>,
    /// Participation in the start barrier.
    pub(super) barrier_guard: StartBarrierGuard,
}

/// Result of a stream.
pub(super) struct StreamResult {
    pub(super) number: usize,
    pub(super) receive: AnyReceive,
    pub(super) transmit: AnyTransmit,
    pub(super) consumed: u64,
    pub(super) counts: BTreeMap<String, u64>,
}

/// Result of a thread.
pub(super) struct ForwardTaskResult {
    pub(super) streams: Vec<StreamResult>,
    pub(super) rounds: u64,
    pub(super) idle_rounds: u64,
    pub(super) idle_delay: IdleDelay,
    pub(super) usage: ThreadUsage,
    pub(super) wall_ns: u64,
}

/// Stream with its mode and recorder.
struct ModeStream<R, T, M> {
    number: usize,
    stream: FwdStream<R, T>,
    mode: M,
    primed: u64,
    recorder: Option<Arc<StreamRecorder>>,
}

impl ModeTask for ForwardTask {
    type Result = ForwardTaskResult;

    /// Runs until a stop is requested.
    fn run<M: ForwardMode>(self, plan: &M::Plan) -> ForwardTaskResult {
        let in_memory = |AssignedStream { stream, .. }: &AssignedStream| {
            matches!(
                (&stream.receive, &stream.transmit),
                (AnyReceive::Ring(_), AnyTransmit::Ring(_))
            )
        };
        if !self.streams.iter().all(in_memory) {
            return self.run_as::<M, _, _>(plan, |receive, transmit| (receive, transmit));
        }
        // A loop of its own for rings: at a few nanoseconds per burst, a match on the port kind
        // would be visible.
        self.run_as::<M, _, _>(plan, |receive, transmit| match (receive, transmit) {
            (AnyReceive::Ring(receive), AnyTransmit::Ring(transmit)) => (receive, transmit),
            _ => unreachable!("the port kinds were checked above"),
        })
    }
}

impl ForwardTask {
    fn run_as<M, R, T>(
        self,
        plan: &M::Plan,
        queues: impl Fn(AnyReceive, AnyTransmit) -> (R, T),
    ) -> ForwardTaskResult
    where
        M: ForwardMode,
        R: RxQueue + Into<AnyReceive>,
        T: TxQueue + Into<AnyTransmit>,
    {
        // Created first, so that it is dropped last: after a panic all other objects of this thread
        // are gone by then.
        let mut guard = self.barrier_guard;
        if let Some(cpu) = self.cpu {
            // The processor was checked before: if it has gone offline meanwhile, the thread is not
            // pinned.
            let _ = cpu::pin(&[cpu]);
        }
        let settings = &*self.settings;
        let is_recorded = self
            .streams
            .iter()
            .any(|assigned| assigned.recorder.is_some());
        let mut pool = self.memory.pool();
        let mut mode_streams: Vec<ModeStream<R, T, M>> = self
            .streams
            .into_iter()
            .map(|assigned| ModeStream {
                number: assigned.number,
                mode: M::new(plan, &assigned.stream.facts, &settings.mode_settings),
                stream: assigned.stream.map(&queues),
                primed: 0,
                recorder: assigned.recorder,
            })
            .collect();
        let mut idling = IdlePolicy::new(
            settings.idle,
            mode_streams
                .iter()
                .map(|mode_stream| mode_stream.stream.receive.wait_handle()),
        )
        .unwrap_or(IdlePolicy::with_method(IdleMethod::Yield));
        let wake_ns = matches!(settings.idle, IdleStrategy::Interrupt)
            .then(idle_policy::measure_wake_ns)
            .flatten();
        guard.wait();
        for mode_stream in &mut mode_streams {
            mode_stream.prime(settings, &mut pool, &self.memory, &self.control);
        }
        let primed = mode_streams
            .iter()
            .map(|mode_stream| mode_stream.primed)
            .sum();
        self.control.primed.store(primed, Relaxed);
        self.control.is_primed.store(true, Release);
        guard.wait();
        let (started_at, before) = (clock::now(), ThreadUsage::read());
        let mut worker_loop = WorkerLoop {
            mode_streams: &mut mode_streams,
            pool: &mut pool,
            memory: &self.memory,
            control: &self.control,
            idling: &mut idling,
            rounds: 0,
            idle_rounds: 0,
        };
        if is_recorded {
            worker_loop.run(|mode_stream, pool, memory| mode_stream.step_recorded(pool, memory));
        } else {
            worker_loop.run(|mode_stream, pool, memory| {
                mode_stream.mode.step(&mut mode_stream.stream, pool, memory)
            });
        }
        let (rounds, idle_rounds) = (worker_loop.rounds, worker_loop.idle_rounds);
        let usage = ThreadUsage::read().since(&before);
        let wall_ns = clock::now().saturating_sub(started_at);
        refresh_counters(&mut mode_streams, &self.control);
        let streams = mode_streams
            .into_iter()
            .map(|mode_stream| mode_stream.into_result(&mut pool));
        ForwardTaskResult {
            streams: streams.collect(),
            rounds,
            idle_rounds,
            idle_delay: idling.delay(wake_ns),
            usage,
            wall_ns,
        }
    }
}

/// Time to wait for a peer that accepts the first burst: a process that was just started, or a link
/// that comes up.
const FIRST_BURST_TIMEOUT_NS: u64 = 3_000_000_000;

/// Time after which a thread that sleeps or waits for arrivals retries a full ring: less than a
/// ring of a few hundred descriptors takes to run dry.
const RETRY_NS: u64 = 200_000;

/// Time for which a full ring is retried before forwarding starts.
const SPACE_TIMEOUT_NS: u64 = 2_000_000;

/// Number of rounds without a frame after which the loop checks for the end of all streams.
const QUIET_ROUNDS: u64 = 1024;

struct WorkerLoop<'a, R, T, M> {
    mode_streams: &'a mut [ModeStream<R, T, M>],
    pool: &'a mut FramePool,
    memory: &'a FrameRegion,
    control: &'a WorkerControl,
    idling: &'a mut IdlePolicy,
    rounds: u64,
    idle_rounds: u64,
}

impl<R: RxQueue, T: TxQueue, M: ForwardMode> WorkerLoop<'_, R, T, M> {
    #[inline(always)]
    fn run(
        &mut self,
        step: impl Fn(&mut ModeStream<R, T, M>, &mut FramePool, &FrameRegion) -> usize,
    ) {
        let mut rounds = 0;
        loop {
            let mut handled = 0;
            for mode_stream in &mut *self.mode_streams {
                handled += step(mode_stream, self.pool, self.memory);
            }
            rounds += 1;
            if handled == 0 && self.idle() {
                break;
            }
            if self.control.requests.load(Relaxed) != 0 && self.handle_requests() {
                break;
            }
        }
        self.rounds = rounds;
    }

    /// Idles; returns whether no frame will arrive any more.
    fn idle(&mut self) -> bool {
        self.idle_rounds += 1;
        for mode_stream in &mut *self.mode_streams {
            mode_stream.stream.transmit.reclaim(self.pool);
        }
        if self.idling.spins() && !self.idle_rounds.is_multiple_of(QUIET_ROUNDS) {
            return false;
        }
        if self.mode_streams.iter().all(ModeStream::is_done) {
            self.control.has_ended.store(true, Relaxed);
            return true;
        }
        self.detect_end();
        if self.idling.spins() {
            return false;
        }
        let now = clock::now();
        let mut holding = self
            .mode_streams
            .iter()
            .filter(|mode_stream| mode_stream.holds_frames())
            .peekable();
        let any_holds = holding.peek().is_some();
        // With several streams that hold frames, all deadlines must be known before the thread may
        // sleep.
        let deadline = holding.try_fold(u64::MAX, |earliest, mode_stream| {
            Some(earliest.min(mode_stream.next_deadline(now)?))
        });
        let deadline = deadline.filter(|_| any_holds);
        self.idling.idle(now, any_holds, deadline);
        false
    }

    /// Reports the end when only streams that discard frames are left. These continue until the
    /// streams of all threads have ended.
    fn detect_end(&self) {
        let is_over = |mode_stream: &ModeStream<R, T, M>| {
            mode_stream.stream.facts.is_discarded || mode_stream.is_done()
        };
        if !self.mode_streams.is_empty() && self.mode_streams.iter().all(is_over) {
            self.control.has_ended.store(true, Relaxed);
        }
    }

    #[cold]
    fn handle_requests(&mut self) -> bool {
        let requests = self.control.requests.load(Relaxed);
        if requests & REFRESH_REQUEST != 0 {
            refresh_counters(self.mode_streams, self.control);
            // Discarded frames may arrive without end.
            self.detect_end();
            self.control.requests.fetch_and(!REFRESH_REQUEST, Relaxed);
        }
        requests & STOP_REQUEST != 0
    }
}

/// Reads the counters that only the kernel keeps.
#[cold]
fn refresh_counters<R: RxQueue, T: TxQueue, M>(
    mode_streams: &mut [ModeStream<R, T, M>],
    control: &WorkerControl,
) {
    for mode_stream in mode_streams {
        let queues = [
            mode_stream.stream.receive.refresh(),
            mode_stream.stream.transmit.refresh(),
        ];
        for error in queues.into_iter().filter_map(Result::err) {
            control.report_error(error);
        }
    }
}

impl<R: RxQueue, T: TxQueue, M: ForwardMode> ModeStream<R, T, M> {
    /// Sends the first bursts.
    fn prime(
        &mut self,
        settings: &ForwardSettings,
        pool: &mut FramePool,
        memory: &FrameRegion,
        control: &WorkerControl,
    ) {
        if settings.tx_first == 0 {
            return;
        }
        let mut source = TxOnly::new(&NoOptions, &self.stream.facts, &settings.mode_settings);
        let dropped =
            |mode_stream: &Self| mode_stream.stream.transmit.counters().read().total_drops();
        let before = dropped(self);
        let mut frames_made = source.fill_all_slots(&mut self.stream, pool, memory);
        self.send_first_burst(pool, control);
        let is_stop_requested = || control.requests.load(Relaxed) & STOP_REQUEST != 0;
        for _ in 1..settings.tx_first {
            frames_made += source.fill_all_slots(&mut self.stream, pool, memory);
            if self.stream.transmit.transmit(pool, &mut self.stream.burst) == 0
                && !self.wait_for_space(pool)
            {
                // The thread does not forward yet, so the ring stays full: further bursts would
                // only be dropped.
                self.stream
                    .transmit
                    .drop_unsent(pool, &mut self.stream.burst);
                break;
            }
            self.stream.transmit(pool);
            if is_stop_requested() {
                break;
            }
        }
        self.primed = (frames_made as u64).saturating_sub(dropped(self) - before);
    }

    /// Returns whether the stream holds frames with a deadline in the future, or has frames to send
    /// for which the ring or the memory had no space. No arriving frame reports when that changes.
    fn holds_frames(&self) -> bool {
        self.mode.holds_frames() || self.wants_to_send()
    }

    fn wants_to_send(&self) -> bool {
        M::MAKES_FRAMES || !self.stream.burst.is_empty()
    }

    /// Returns whether no frame arrives at the stream or leaves it any more.
    fn is_done(&self) -> bool {
        self.stream.receive.is_exhausted() && !self.mode.holds_frames()
    }

    /// Returns the first deadline of these frames; `None` if unknown.
    fn next_deadline(&self, now: u64) -> Option<u64> {
        let retry_at = self.wants_to_send().then(|| now + RETRY_NS);
        match self.mode.holds_frames() {
            true => Some(self.mode.next_deadline()?.min(retry_at.unwrap_or(u64::MAX))),
            false => retry_at,
        }
    }

    /// Returns whether a full ring accepts frames within a short time, as the kernel or another
    /// process empties it.
    fn wait_for_space(&mut self, pool: &mut FramePool) -> bool {
        let deadline = clock::now() + SPACE_TIMEOUT_NS;
        while clock::now() < deadline {
            self.stream.transmit.reclaim(pool);
            if self.stream.transmit.transmit(pool, &mut self.stream.burst) > 0 {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Sends the first burst; waits for a peer that may still be starting.
    fn send_first_burst(&mut self, pool: &mut FramePool, control: &WorkerControl) {
        let deadline = clock::now() + FIRST_BURST_TIMEOUT_NS;
        let is_stop_requested = || control.requests.load(Relaxed) & STOP_REQUEST != 0;
        while self.stream.transmit.transmit(pool, &mut self.stream.burst) == 0
            && clock::now() < deadline
            && !is_stop_requested()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stream.transmit(pool);
    }

    #[inline]
    fn step_recorded(&mut self, pool: &mut FramePool, memory: &FrameRegion) -> usize {
        let Some(recorder) = &self.recorder else {
            return self.mode.step(&mut self.stream, pool, memory);
        };
        let frames = |stream: &FwdStream<R, T>| stream.receive.counters().read().frames;
        let before = (recorder.times_frames()).then(|| (frames(&self.stream), clock::now()));
        let start = recorder.counts_cycles().then(|| {
            let source = tick_clock::choose_source();
            (source, tick_clock::read_ticks(source))
        });
        let handled = self.mode.step(&mut self.stream, pool, memory);
        let cycles =
            start.map(|(source, ticks)| tick_clock::read_ticks(source).wrapping_sub(ticks));
        if let Some((frames_before, started_ns)) = before
            && frames(&self.stream) > frames_before
        {
            recorder.record_residence(clock::now().saturating_sub(started_ns));
        }
        if let Some(cycles) = cycles {
            recorder.record_cycles(handled, cycles);
        }
        handled
    }

    fn into_result(mut self, pool: &mut FramePool) -> StreamResult
    where
        R: Into<AnyReceive>,
        T: Into<AnyTransmit>,
    {
        self.mode.release_held(pool);
        pool.free_all(&mut self.stream.burst);
        self.stream.transmit.reclaim(pool);
        StreamResult {
            number: self.number,
            counts: self.mode.counts(),
            consumed: self.stream.consumed,
            receive: self.stream.receive.into(),
            transmit: self.stream.transmit.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_packet::mac_address::MacAddress;
    use linerate_port::{PortUrl, open};
    use linerate_sys::frames::frame_memory::MemoryPlan;

    use super::*;
    use crate::stream::StreamFacts;

    fn mode_stream<M: ForwardMode<Plan = NoOptions>>(
        memory: &FrameRegion,
    ) -> ModeStream<AnyReceive, AnyTransmit, M> {
        let url: PortUrl = "ring:0,rxd=64".parse().unwrap();
        let port = open(&url, memory).unwrap().remove(0);
        let facts = StreamFacts {
            number: 0,
            address: MacAddress::of_port(0),
            peer: MacAddress::of_port(1),
            frame_bytes: 1518,
            max_held_frames: 100,
            is_discarded: false,
        };
        let settings = ForwardSettings::default();
        ModeStream {
            number: 0,
            mode: M::new(&NoOptions, &facts, &settings.mode_settings),
            stream: FwdStream::new(port.receive, port.transmit, settings.burst, None, facts),
            primed: 0,
            recorder: None,
        }
    }

    /// A source has frames to send, but no arriving frame reports that its ring or the memory has
    /// space again: a thread that waits for arrivals must retry by itself.
    #[test]
    fn rejected_frames_are_retried_soon() {
        let retry_at = Some(1000 + RETRY_NS);
        let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
        let mut pool = memory.pool();
        let mut full = mode_stream::<TxOnly>(&memory);
        while full.mode.step(&mut full.stream, &mut pool, &memory) > 0 {}
        assert!(full.holds_frames() && !full.stream.burst.is_empty());
        assert_eq!(full.next_deadline(1000), retry_at);

        let mut dry = mode_stream::<TxOnly>(&memory);
        let exhausted: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(dry.mode.step(&mut dry.stream, &mut pool, &memory), 0);
        assert!(dry.holds_frames() && dry.stream.burst.is_empty());
        assert_eq!(dry.next_deadline(1000), retry_at);
        exhausted.into_iter().for_each(|frame| pool.free(frame));

        // A mode that only forwards has no work until a frame arrives.
        let mut idle = mode_stream::<super::super::mode::io::Io>(&memory);
        assert_eq!(idle.mode.step(&mut idle.stream, &mut pool, &memory), 0);
        assert!(!idle.holds_frames());
        assert_eq!(idle.next_deadline(1000), None);
    }
}
