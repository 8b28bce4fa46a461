//! Polling loop: one thread with its streams, in one mode.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::Duration;

use linerate_host::sys::cpu::{self, ThreadUsage};
use linerate_host::sys::{clock, tick_clock};
use linerate_metric::forward::Idle;
use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{Memory, Pool, PortError, Receive, Transmit};

use super::idle_policy::{self, Cost, Idling, Way};
use super::mode::tx_only::TxOnly;
use super::queue_decorators::{self, Outlet, Teller};
use super::settings::Settings;
use super::stream::{Facts, ForwardMode, NoPlan, Stream};
use super::stream_recorder::Recorded;

/// Requests to a running thread, and its reports.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Control {
    /// Bits [`STOP`] and [`REFRESH`]; 0: no request.
    word: AtomicU32,
    /// True if no frame will arrive any more, or only frames that are discarded.
    pub(super) ended: AtomicBool,
    /// Number of frames that its streams put into circulation, valid once `is_primed`.
    pub(super) primed: AtomicU64,
    pub(super) is_primed: AtomicBool,
    /// Error that stopped a port.
    pub(super) trouble: Mutex<Option<PortError>>,
}

const STOP: u32 = 1;
const REFRESH: u32 = 2;

impl Control {
    /// Requests the end of the loop.
    pub(super) fn stop(&self) {
        self.word.fetch_or(STOP, Relaxed);
    }

    /// Requests a reading of the counters that only the kernel keeps.
    pub(super) fn ask_refresh(&self) {
        self.word.fetch_or(REFRESH, Relaxed);
    }

    /// Returns whether the requested reading is complete.
    pub(super) fn is_fresh(&self) -> bool {
        self.word.load(Relaxed) & REFRESH == 0
    }

    /// Records a port error, unless one is recorded already.
    pub(super) fn report(&self, error: PortError) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert(error);
    }
}

/// Participation of a thread in the start barrier: all threads wait there before the first frames
/// are sent and again before forwarding. If a thread panics, the guard reports it and takes its
/// remaining waits.
pub(super) struct Presence {
    control: Arc<Control>,
    start: Arc<Barrier>,
    meetings: u32,
    /// Names of the ports that it polls.
    ports: String,
}

impl Presence {
    pub(super) fn new(control: &Arc<Control>, start: &Arc<Barrier>, ports: String) -> Self {
        Self {
            control: Arc::clone(control),
            start: Arc::clone(start),
            meetings: 2,
            ports,
        }
    }

    fn meet(&mut self) {
        self.start.wait();
        self.meetings -= 1;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.control.report(PortError::Fault {
            port: std::mem::take(&mut self.ports),
        });
        self.control.ended.store(true, Relaxed);
        self.control.is_primed.store(true, Release);
        for _ in 0..self.meetings {
            self.start.wait();
        }
    }
}

/// Stream assigned to a thread.
pub(super) struct Assigned {
    /// Number of the stream among all streams.
    pub(super) number: usize,
    pub(super) stream: Stream<AnyReceive, AnyTransmit>,
    /// Recorder of the figures that the settings require.
    pub(super) recorded: Option<Arc<Recorded>>,
}

/// Work assigned to a thread.
pub(super) struct ForwardTask {
    pub(super) streams: Vec<Assigned>,
    pub(super) control: Arc<Control>,
    pub(super) settings: Arc<Settings>,
    pub(super) memory: Memory,
    pub(super) cpu: Option<u32>,
    /// Sender for descriptions of frames.
    pub(super) teller: Option<Teller>,
    /// Participation in the start barrier.
    pub(super) presence: Presence,
}

/// Result of a stream.
pub(super) struct StreamDone {
    pub(super) number: usize,
    pub(super) receive: AnyReceive,
    pub(super) transmit: AnyTransmit,
    pub(super) taken: u64,
    pub(super) counts: BTreeMap<String, u64>,
}

/// Result of a thread.
pub(super) struct ForwardTaskResult {
    pub(super) streams: Vec<StreamDone>,
    pub(super) rounds: u64,
    pub(super) idle_rounds: u64,
    pub(super) idle: Cost,
    pub(super) usage: ThreadUsage,
    pub(super) wall_ns: u64,
}

/// Stream with its mode and recorder.
struct Lane<R, T, M> {
    number: usize,
    stream: Stream<R, T>,
    mode: M,
    primed: u64,
    recorded: Option<Arc<Recorded>>,
}

impl ForwardTask {
    /// Runs until a stop is requested.
    pub(super) fn run<M: ForwardMode>(self, plan: &M::Plan) -> ForwardTaskResult {
        let in_memory = |Assigned { stream, .. }: &Assigned| {
            matches!(
                (&stream.receive, &stream.transmit),
                (AnyReceive::Ring(_), AnyTransmit::Ring(_))
            )
        };
        if self.teller.is_some() || self.settings.rates.iter().any(|rate| rate.l2_bps > 0) {
            let (settings, memory) = (Arc::clone(&self.settings), self.memory.clone());
            let teller = self.teller.clone();
            return self.run_as::<M, _, _>(plan, |facts, receive, transmit| {
                queue_decorators::gated(
                    receive,
                    transmit,
                    facts,
                    &settings,
                    &memory,
                    teller.as_ref(),
                )
            });
        }
        if !self.streams.iter().all(in_memory) {
            return self.run_as::<M, _, _>(plan, |_, receive, transmit| (receive, transmit));
        }
        // A loop of its own for rings: at a few nanoseconds per burst, a match on the port kind
        // would be visible.
        self.run_as::<M, _, _>(plan, |_, receive, transmit| match (receive, transmit) {
            (AnyReceive::Ring(receive), AnyTransmit::Ring(transmit)) => (receive, transmit),
            _ => unreachable!("the port kinds were checked above"),
        })
    }

    fn run_as<M, R, T>(
        self,
        plan: &M::Plan,
        queues: impl Fn(&Facts, AnyReceive, AnyTransmit) -> (R, T),
    ) -> ForwardTaskResult
    where
        M: ForwardMode,
        R: Receive + Into<AnyReceive>,
        T: Outlet,
    {
        // Created first, so that it is dropped last: after a panic all other objects of this thread
        // are gone by then.
        let mut presence = self.presence;
        if let Some(cpu) = self.cpu {
            // The processor was checked before: if it has gone offline meanwhile, the thread is not
            // pinned.
            let _ = cpu::pin(&[cpu]);
        }
        let settings = &*self.settings;
        let records = self.streams.iter().any(|given| given.recorded.is_some());
        let mut pool = self.memory.pool();
        let mut lanes: Vec<Lane<R, T, M>> = self
            .streams
            .into_iter()
            .map(|given| Lane {
                number: given.number,
                mode: M::new(plan, &given.stream.facts, settings),
                stream: given.stream.map(&queues),
                primed: 0,
                recorded: given.recorded,
            })
            .collect();
        let mut idling = Idling::new(
            settings.idle,
            lanes.iter().map(|lane| lane.stream.receive.wait_handle()),
        )
        .unwrap_or(Idling::of(Way::Yield));
        let wake_ns = matches!(settings.idle, Idle::Interrupt)
            .then(idle_policy::wake_ns)
            .flatten();
        presence.meet();
        for lane in &mut lanes {
            lane.prime(settings, &mut pool, &self.memory, &self.control);
        }
        let primed = lanes.iter().map(|lane| lane.primed).sum();
        self.control.primed.store(primed, Relaxed);
        self.control.is_primed.store(true, Release);
        presence.meet();
        let (began, before) = (clock::now(), ThreadUsage::now());
        let mut looped = Loop {
            lanes: &mut lanes,
            pool: &mut pool,
            memory: &self.memory,
            control: &self.control,
            idling: &mut idling,
            rounds: 0,
            idle_rounds: 0,
        };
        if records {
            looped.turn(|lane, pool, memory| lane.recorded(pool, memory));
        } else {
            looped.turn(|lane, pool, memory| lane.mode.step(&mut lane.stream, pool, memory));
        }
        let (rounds, idle_rounds) = (looped.rounds, looped.idle_rounds);
        let usage = ThreadUsage::now().since(&before);
        let wall_ns = clock::now().saturating_sub(began);
        refresh(&mut lanes, &self.control);
        let streams = lanes.into_iter().map(|lane| lane.end(&mut pool));
        ForwardTaskResult {
            streams: streams.collect(),
            rounds,
            idle_rounds,
            idle: idling.cost(wake_ns),
            usage,
            wall_ns,
        }
    }
}

/// Time to wait for a peer that accepts the first burst: a process that was just started, or a link
/// that comes up.
const FIRST_PATIENCE_NS: u64 = 3_000_000_000;

/// Time after which a thread that sleeps or waits for arrivals retries a full ring: less than a
/// ring of a few hundred descriptors takes to run dry.
const RETRY_NS: u64 = 200_000;

/// Time for which a full ring is retried before forwarding starts.
const ROOM_PATIENCE_NS: u64 = 2_000_000;

/// Number of rounds without a frame after which the loop checks for the end of all streams.
const QUIET_ROUNDS: u64 = 1024;

struct Loop<'a, R, T, M> {
    lanes: &'a mut [Lane<R, T, M>],
    pool: &'a mut Pool,
    memory: &'a Memory,
    control: &'a Control,
    idling: &'a mut Idling,
    rounds: u64,
    idle_rounds: u64,
}

impl<R: Receive, T: Outlet, M: ForwardMode> Loop<'_, R, T, M> {
    #[inline(always)]
    fn turn(&mut self, step: impl Fn(&mut Lane<R, T, M>, &mut Pool, &Memory) -> usize) {
        let mut rounds = 0;
        loop {
            let mut handled = 0;
            for lane in &mut *self.lanes {
                handled += step(lane, self.pool, self.memory);
                if T::HOLDS {
                    // Also without new frames: waiting frames have their own deadlines.
                    lane.stream.transmit.leave(self.pool);
                }
            }
            rounds += 1;
            if handled == 0 && self.idle() {
                break;
            }
            if self.control.word.load(Relaxed) != 0 && self.told() {
                break;
            }
        }
        self.rounds = rounds;
    }

    /// Idles; returns whether no frame will arrive any more.
    fn idle(&mut self) -> bool {
        self.idle_rounds += 1;
        for lane in &mut *self.lanes {
            lane.stream.transmit.reclaim(self.pool);
        }
        if self.idling.spins() && !self.idle_rounds.is_multiple_of(QUIET_ROUNDS) {
            return false;
        }
        if self.lanes.iter().all(Lane::is_done) {
            self.control.ended.store(true, Relaxed);
            return true;
        }
        self.look_for_the_end();
        if self.idling.spins() {
            return false;
        }
        let now = clock::now();
        let mut held = self.lanes.iter().filter(|lane| lane.holds()).peekable();
        let holds = held.peek().is_some();
        // With several streams that hold frames, all deadlines must be known before the thread may
        // sleep.
        let due = held.try_fold(u64::MAX, |least, lane| Some(least.min(lane.due(now)?)));
        let due = due.filter(|_| holds);
        self.idling.idle(now, holds, due);
        false
    }

    /// Reports the end when only streams that discard frames are left. These continue until the
    /// streams of all threads have ended.
    fn look_for_the_end(&self) {
        let is_over = |lane: &Lane<R, T, M>| lane.stream.facts.is_aimless || lane.is_done();
        if !self.lanes.is_empty() && self.lanes.iter().all(is_over) {
            self.control.ended.store(true, Relaxed);
        }
    }

    #[cold]
    fn told(&mut self) -> bool {
        let word = self.control.word.load(Relaxed);
        if word & REFRESH != 0 {
            refresh(self.lanes, self.control);
            // Discarded frames may arrive without end.
            self.look_for_the_end();
            self.control.word.fetch_and(!REFRESH, Relaxed);
        }
        word & STOP != 0
    }
}

/// Reads the counters that only the kernel keeps.
#[cold]
fn refresh<R: Receive, T: Transmit, M>(lanes: &mut [Lane<R, T, M>], control: &Control) {
    for lane in lanes {
        let queues = [
            lane.stream.receive.refresh(),
            lane.stream.transmit.refresh(),
        ];
        for error in queues.into_iter().filter_map(Result::err) {
            control.report(error);
        }
    }
}

impl<R: Receive, T: Outlet, M: ForwardMode> Lane<R, T, M> {
    /// Sends the first bursts.
    fn prime(&mut self, settings: &Settings, pool: &mut Pool, memory: &Memory, control: &Control) {
        if settings.tx_first == 0 {
            return;
        }
        let mut source = TxOnly::new(&NoPlan, &self.stream.facts, settings);
        let dropped = |lane: &Self| lane.stream.transmit.counters().read().all_dropped();
        let before = dropped(self);
        let mut made = source.fill(&mut self.stream, pool, memory);
        self.await_room(pool, control);
        let is_told = || control.word.load(Relaxed) & STOP != 0;
        for _ in 1..settings.tx_first {
            made += source.fill(&mut self.stream, pool, memory);
            if self.stream.transmit.transmit(pool, &mut self.stream.burst) == 0
                && !self.has_room(pool)
            {
                // The thread does not forward yet, so the ring stays full: further bursts would
                // only be dropped.
                self.stream.transmit.refuse(pool, &mut self.stream.burst);
                break;
            }
            self.stream.transmit(pool);
            if is_told() {
                break;
            }
        }
        // Frames that wait for a rate limit are in flight as well.
        self.primed = (made as u64).saturating_sub(dropped(self) - before);
    }

    /// Returns whether the stream holds frames with a deadline in the future, or has frames to send
    /// for which the ring or the memory had no space. No arriving frame reports when that changes.
    fn holds(&self) -> bool {
        self.mode.holds() || self.stream.transmit.due().is_some() || self.is_eager()
    }

    fn is_eager(&self) -> bool {
        M::MAKES_FRAMES || !self.stream.burst.is_empty()
    }

    /// Returns whether no frame arrives at the stream or leaves it any more.
    fn is_done(&self) -> bool {
        let (receive, transmit) = (&self.stream.receive, &self.stream.transmit);
        let awaits_gate = transmit.due().is_some() && !transmit.is_stuck();
        receive.ended() && !self.mode.holds() && !awaits_gate
    }

    /// Returns the first deadline of these frames; `None` if unknown.
    fn due(&self, now: u64) -> Option<u64> {
        let again = self.is_eager().then(|| now + RETRY_NS);
        let dues = [self.stream.transmit.due(), again];
        let due = dues.into_iter().flatten().min();
        match self.mode.holds() {
            true => Some(self.mode.due()?.min(due.unwrap_or(u64::MAX))),
            false => due,
        }
    }

    /// Returns whether a full ring accepts frames within a short time, as the kernel or another
    /// process empties it.
    fn has_room(&mut self, pool: &mut Pool) -> bool {
        if self.stream.transmit.due().is_some() {
            // The queue has a rate limit and is full: space appears at that rate only.
            return false;
        }
        let until = clock::now() + ROOM_PATIENCE_NS;
        while clock::now() < until {
            self.stream.transmit.reclaim(pool);
            if self.stream.transmit.transmit(pool, &mut self.stream.burst) > 0 {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Sends the first burst; waits for a peer that may still be starting.
    fn await_room(&mut self, pool: &mut Pool, control: &Control) {
        let until = clock::now() + FIRST_PATIENCE_NS;
        let is_told = || control.word.load(Relaxed) & STOP != 0;
        while self.stream.transmit.transmit(pool, &mut self.stream.burst) == 0
            && clock::now() < until
            && !is_told()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stream.transmit(pool);
    }

    #[inline]
    fn recorded(&mut self, pool: &mut Pool, memory: &Memory) -> usize {
        let Some(recorded) = &self.recorded else {
            return self.mode.step(&mut self.stream, pool, memory);
        };
        let source = tick_clock::source();
        let before = self.stream.receive.counters().read().frames;
        let times = recorded.times_frames();
        let from = if times { clock::now() } else { 0 };
        let began = tick_clock::read(source);
        let handled = self.mode.step(&mut self.stream, pool, memory);
        let took = tick_clock::read(source).wrapping_sub(began);
        let received = self.stream.receive.counters().read().frames - before;
        if times && received > 0 {
            recorded.stayed(clock::now().saturating_sub(from));
        }
        recorded.polled(received, handled, took);
        handled
    }

    fn end(mut self, pool: &mut Pool) -> StreamDone
    where
        R: Into<AnyReceive>,
    {
        self.mode.end(pool);
        pool.free_all(&mut self.stream.burst);
        let mut counts = self.mode.counts();
        let unsent = self.stream.transmit.end(pool);
        if unsent > 0 {
            counts.insert("held-to-the-rate-at-the-stop".to_owned(), unsent);
        }
        self.stream.transmit.reclaim(pool);
        StreamDone {
            number: self.number,
            counts,
            taken: self.stream.taken,
            receive: self.stream.receive.into(),
            transmit: self.stream.transmit.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_port::{MemoryPlan, PortUrl, open};

    use super::*;
    use crate::forward::frame::Mac;

    fn lane<M: ForwardMode<Plan = NoPlan>>(memory: &Memory) -> Lane<AnyReceive, AnyTransmit, M> {
        let url: PortUrl = "ring:0,rxd=64".parse().unwrap();
        let port = open(&url, memory).unwrap().remove(0);
        let facts = Facts {
            number: 0,
            from: [0, 0],
            to: [0, 0],
            address: Mac::of_port(0),
            peer: Mac::of_port(1),
            frame_bytes: 1518,
            descriptors: 64,
            share: 100,
            is_aimless: false,
        };
        let settings = Settings::default();
        Lane {
            number: 0,
            mode: M::new(&NoPlan, &facts, &settings),
            stream: Stream::new(port.receive, port.transmit, settings.burst, None, facts),
            primed: 0,
            recorded: None,
        }
    }

    /// A source has frames to send, but no arriving frame reports that its ring or the memory has
    /// space again: a thread that waits for arrivals must retry by itself.
    #[test]
    fn what_a_full_ring_refused_is_tried_again_soon() {
        let again = Some(1000 + RETRY_NS);
        let memory = Memory::new(MemoryPlan::default()).unwrap();
        let mut pool = memory.pool();
        let mut full = lane::<TxOnly>(&memory);
        while full.mode.step(&mut full.stream, &mut pool, &memory) > 0 {}
        assert!(full.holds() && !full.stream.burst.is_empty());
        assert_eq!(full.due(1000), again);

        let mut dry = lane::<TxOnly>(&memory);
        let taken: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(dry.mode.step(&mut dry.stream, &mut pool, &memory), 0);
        assert!(dry.holds() && dry.stream.burst.is_empty());
        assert_eq!(dry.due(1000), again);
        taken.into_iter().for_each(|frame| pool.free(frame));

        // A mode that only forwards has no work until a frame arrives.
        let mut idle = lane::<super::super::mode::io::Io>(&memory);
        assert_eq!(idle.mode.step(&mut idle.stream, &mut pool, &memory), 0);
        assert!(!idle.holds());
        assert_eq!(idle.due(1000), None);
    }
}
