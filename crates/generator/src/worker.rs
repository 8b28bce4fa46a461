//! Polling threads of a run: one sends and one receives, or one does both.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Barrier, Mutex, PoisonError};

use linerate_host::processor_time::SchedStats;
use linerate_port::{AnyReceive, AnyTransmit, PortError, RxQueue, TxQueue};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::cpu;
use linerate_sys::cpu::ThreadUsage;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::thread::ThreadId;

use super::frame_sink::{FrameSink, ReceiveProgress};
use super::frame_source::FrameSource;

/// Time after the end during which frames that a full ring rejected are retried.
const FINAL_RETRY_NS: Nanos = 100_000_000;
/// Interval at which a thread reads the port counters that only the kernel keeps.
const COUNTER_REFRESH_NS: Nanos = 250_000_000;

/// State shared by the polling threads and the coordinating thread.
pub(super) struct GeneratorState {
    /// Ends all threads.
    pub stop: AtomicBool,
    /// Time at which sending ended; 0 before. A thread that reads it also sees `sent`.
    sent_at: AtomicU64,
    /// Number of frames sent, valid once sending has ended.
    sent: AtomicU64,
    pub progress: ReceiveProgress,
    /// First error that stopped a port.
    pub port_error: Mutex<Option<PortError>>,
    /// Barrier at which all threads wait before they start.
    pub start_barrier: Barrier,
    /// True if an idle thread yields, because there are fewer processors than threads.
    pub yields_when_idle: bool,
}

impl GeneratorState {
    pub(super) fn new(threads: usize, yields_when_idle: bool) -> Self {
        Self {
            stop: AtomicBool::new(false),
            sent_at: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            progress: ReceiveProgress::default(),
            port_error: Mutex::new(None),
            // The coordinating thread waits there too.
            start_barrier: Barrier::new(threads + 1),
            yields_when_idle,
        }
    }

    /// Records the end of sending and the number of frames sent.
    pub(super) fn set_sent(&self, frames: u64, at: Nanos) {
        self.sent.store(frames, Relaxed);
        self.sent_at.store(at.max(1), Release);
    }

    /// Returns the time at which sending ended and the number of frames sent, once it has ended.
    pub(super) fn sent(&self) -> Option<(Nanos, u64)> {
        match self.sent_at.load(Acquire) {
            0 => None,
            at => Some((at, self.sent.load(Relaxed))),
        }
    }

    /// Records a port error and ends all threads.
    pub(super) fn stop_with_error(&self, error: PortError) {
        let mut port_error = self
            .port_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        port_error.get_or_insert(error);
        self.stop.store(true, Relaxed);
    }
}

/// Sending side of a run.
pub(super) struct GeneratorSender<'a> {
    pub transmit: &'a mut AnyTransmit,
    pub source: FrameSource,
    pool: FramePool,
    burst: Burst,
    /// Duration of sending; `None`: until the last frame, or until it is stopped.
    duration: Option<Nanos>,
    end_at: Option<Nanos>,
    /// Time of the first frame.
    pub started_at: Option<Nanos>,
    pub last_sent_at: Nanos,
    pub rejected_polls: u64,
}

impl<'a> GeneratorSender<'a> {
    pub(super) fn new(
        transmit: &'a mut AnyTransmit,
        source: FrameSource,
        memory: &FrameRegion,
        burst: usize,
        duration: Option<Nanos>,
    ) -> Self {
        Self {
            transmit,
            source,
            pool: memory.pool(),
            burst: Burst::with_limit(burst),
            duration,
            end_at: None,
            started_at: None,
            last_sent_at: 0,
            rejected_polls: 0,
        }
    }

    /// Performs one poll; returns whether it moved frames, and whether sending is over.
    #[inline]
    fn poll(&mut self, now: Nanos, memory: &FrameRegion) -> (bool, bool) {
        if self.started_at.is_none() {
            self.started_at = Some(now);
            self.end_at = self.duration.map(|time| now.saturating_add(time));
            self.source.start(now);
        }
        // Frames whose deadline was before the end may leave a moment later. Otherwise a stall at
        // the end of a trial would count for more than one in its middle.
        let is_past_end = self.end_at.is_some_and(|end_at| {
            let all_sent = self
                .source
                .next_deadline()
                .is_none_or(|deadline| deadline >= end_at);
            now >= end_at && (all_sent || now >= end_at + FINAL_RETRY_NS)
        });
        let latest_deadline = self
            .end_at
            .map_or(now, |end_at| now.min(end_at.saturating_sub(1)));
        // Frames that a full ring rejected go first, so that order is kept and late frames count as
        // late.
        let new_frames = match self.burst.is_empty() && !is_past_end {
            true => (self.source).fill(
                now,
                latest_deadline,
                &mut self.pool,
                memory,
                &mut self.burst,
            ),
            false => 0,
        };
        let waiting = self.burst.len();
        if waiting == 0 {
            self.transmit.reclaim(&mut self.pool);
            return (new_frames > 0, is_past_end || self.source.is_exhausted());
        }
        let accepted = self.transmit.transmit(&mut self.pool, &mut self.burst);
        if accepted > 0 {
            self.last_sent_at = now;
        }
        self.rejected_polls += u64::from(accepted < waiting);
        let give_up = self
            .end_at
            .is_some_and(|end_at| now >= end_at + FINAL_RETRY_NS);
        // The last frame has left: another poll would count as time of sending.
        let is_last = accepted == waiting && self.end_at.is_none() && self.source.is_exhausted();
        (accepted > 0, give_up || is_last)
    }

    /// Releases the frames that were never sent.
    fn release_unsent(&mut self, memory: &FrameRegion) {
        while let Some(frame) = self.burst.pop() {
            self.source.retract(memory.bytes(&frame));
            self.pool.free(frame);
        }
    }
}

/// Receiving side of a run.
pub(super) struct GeneratorReceiver<'a> {
    pub queues: Vec<&'a mut AnyReceive>,
    pub sink: FrameSink,
    pool: FramePool,
    burst: Burst,
}

impl<'a> GeneratorReceiver<'a> {
    pub(super) fn new(
        receive: Vec<&'a mut AnyReceive>,
        sink: FrameSink,
        memory: &FrameRegion,
        burst: usize,
    ) -> Self {
        Self {
            queues: receive,
            sink,
            pool: memory.pool(),
            burst: Burst::with_limit(burst),
        }
    }

    /// Performs one poll; returns whether it moved frames.
    #[inline]
    fn poll(&mut self, memory: &FrameRegion, progress: &ReceiveProgress) -> bool {
        let mut busy = false;
        for queue in &mut self.queues {
            if queue.receive(&mut self.pool, &mut self.burst) == 0 {
                continue;
            }
            busy = true;
            // The clock is read once per burst: all frames of it have arrived by then.
            let now = clock::now();
            for frame in self.burst.frames() {
                self.sink.record(memory.bytes(frame), now);
            }
            self.pool.free_all(&mut self.burst);
        }
        if busy {
            self.sink.publish(progress);
        }
        busy
    }
}

/// Reports the panic of a polling thread on drop; the other threads would otherwise wait forever.
struct PanicReporter<'a> {
    shared: &'a GeneratorState,
    ports: String,
}

impl Drop for PanicReporter<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.stop_with_error(PortError::Fault {
                port: std::mem::take(&mut self.ports),
            });
        }
    }
}

/// Work of one thread: sending, receiving, or both alternately.
pub(super) struct GeneratorWorker<'a> {
    pub sender: Option<GeneratorSender<'a>>,
    pub receiver: Option<GeneratorReceiver<'a>>,
    pub cpu: Option<u32>,
    /// Names of the ports that it polls.
    pub ports: String,
}

/// Processor time of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkerUsage {
    /// False if the thread could not be pinned to its processor.
    pub is_pinned: bool,
    pub wall_ns: Nanos,
    pub cpu_ns: Nanos,
    /// Time during which it was runnable but did not run; 0 if the kernel does not report it.
    pub runnable_wait_ns: Nanos,
}

impl WorkerUsage {
    /// Returns processor time divided by wall time, at most 1.
    pub(super) fn core_share(&self) -> f64 {
        (self.cpu_ns as f64 / self.wall_ns.max(1) as f64).min(1.0)
    }
}

impl GeneratorWorker<'_> {
    /// Polls until its task has ended.
    pub(super) fn run(&mut self, memory: &FrameRegion, shared: &GeneratorState) -> WorkerUsage {
        let _alarm = PanicReporter {
            shared,
            ports: self.ports.clone(),
        };
        let pinned = self.cpu.is_none_or(|cpu| cpu::pin(&[cpu]).is_ok());
        shared.start_barrier.wait();
        let thread = ThreadId::current();
        let scheduled = SchedStats::read(thread);
        let (started_at, usage) = (clock::now(), ThreadUsage::read());
        self.poll_until_done(memory, shared);
        let used = ThreadUsage::read().since(&usage);
        let schedule = scheduled.zip(SchedStats::read(thread));
        WorkerUsage {
            is_pinned: pinned,
            wall_ns: clock::now().saturating_sub(started_at),
            cpu_ns: used.cpu_ns,
            runnable_wait_ns: schedule
                .map_or(0, |(before, after)| after.since(&before).runnable_ns),
        }
    }

    fn poll_until_done(&mut self, memory: &FrameRegion, shared: &GeneratorState) {
        let mut sending = self.sender.is_some();
        let mut refresh_at = clock::now() + COUNTER_REFRESH_NS;
        while !shared.stop.load(Relaxed) {
            let now = clock::now();
            let mut busy = false;
            if let Some(sender) = self.sender.as_mut().filter(|_| sending) {
                let (is_busy, is_finished) = sender.poll(now, memory);
                busy = is_busy;
                if is_finished {
                    sending = false;
                    self.finish_sending(memory, shared);
                    if self.receiver.is_none() {
                        break;
                    }
                }
            }
            if let Some(receiver) = &mut self.receiver {
                busy |= receiver.poll(memory, &shared.progress);
            }
            if now >= refresh_at {
                refresh_at = now + COUNTER_REFRESH_NS;
                self.refresh_counters(shared);
            }
            if !busy {
                self.idle(sending, shared.yields_when_idle);
            }
        }
        if sending {
            self.finish_sending(memory, shared);
        }
        self.refresh_counters(shared);
    }

    /// Waits without work: spins, or yields if there are fewer processors than threads.
    #[inline]
    fn idle(&self, sending: bool, yields_when_idle: bool) {
        /// Frames due within this time are waited for by spinning: after a yield another thread may
        /// run for longer.
        const SPIN_WITHIN_NS: Nanos = 20_000;
        let deadline = self
            .sender
            .as_ref()
            .filter(|_| sending)
            .and_then(|sender| sender.source.next_deadline());
        if yields_when_idle
            && deadline.is_none_or(|deadline| deadline > clock::now() + SPIN_WITHIN_NS)
        {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    fn finish_sending(&mut self, memory: &FrameRegion, shared: &GeneratorState) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        sender.release_unsent(memory);
        shared.set_sent(sender.source.frames_made(), clock::now());
    }

    fn refresh_counters(&mut self, shared: &GeneratorState) {
        let sender = self.sender.as_mut().map(|sender| sender.transmit.refresh());
        let receiver = self
            .receiver
            .iter_mut()
            .flat_map(|receiver| &mut receiver.queues);
        let results = sender
            .into_iter()
            .chain(receiver.map(|queue| queue.refresh()));
        for error in results.filter_map(Result::err) {
            shared.stop_with_error(error);
        }
    }
}
