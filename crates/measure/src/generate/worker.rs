//! Polling threads of a run: one sends and one receives, or one does both.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Barrier, Mutex, PoisonError};

use linerate_host::processor_time::Scheduled;
use linerate_host::sys::clock::{self, Nanos};
use linerate_host::sys::cpu::{self, ThreadUsage};
use linerate_host::sys::thread::ThreadId;
use linerate_port::{AnyReceive, AnyTransmit, Burst, Memory, Pool, PortError, Receive, Transmit};

use super::frame_sink::{Progress, Sink};
use super::frame_source::Source;

/// Time after the end during which frames that a full ring rejected are retried.
const LAST_TRIES_NS: Nanos = 100_000_000;
/// Interval at which a thread reads the port counters that only the kernel keeps.
const REFRESH_NS: Nanos = 250_000_000;

/// State shared by the polling threads and the coordinating thread.
pub(super) struct Shared {
    /// Ends all threads.
    pub stop: AtomicBool,
    /// Time at which sending ended; 0 before. A thread that reads it also sees `sent`.
    sent_at: AtomicU64,
    /// Number of frames sent, valid once sending has ended.
    sent: AtomicU64,
    pub progress: Progress,
    /// First error that stopped a port.
    pub trouble: Mutex<Option<PortError>>,
    /// Barrier at which all threads wait before they start.
    pub gate: Barrier,
    /// True if an idle thread yields, because there are fewer processors than threads.
    pub polite: bool,
}

impl Shared {
    pub(super) fn new(threads: usize, polite: bool) -> Self {
        Self {
            stop: AtomicBool::new(false),
            sent_at: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            progress: Progress::default(),
            trouble: Mutex::new(None),
            // The coordinating thread waits there too.
            gate: Barrier::new(threads + 1),
            polite,
        }
    }

    /// Records the end of sending and the number of frames sent.
    pub(super) fn sending_ended(&self, frames: u64, at: Nanos) {
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
    pub(super) fn failed(&self, error: PortError) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert(error);
        self.stop.store(true, Relaxed);
    }
}

/// Sending side of a run.
pub(super) struct Sender<'a> {
    pub transmit: &'a mut AnyTransmit,
    pub source: Source,
    pool: Pool,
    burst: Burst,
    /// Duration of sending; `None`: until the last frame, or until it is stopped.
    duration: Option<Nanos>,
    end: Option<Nanos>,
    /// Time of the first frame.
    pub began: Option<Nanos>,
    pub last: Nanos,
    pub refused: u64,
}

impl<'a> Sender<'a> {
    pub(super) fn new(
        transmit: &'a mut AnyTransmit,
        source: Source,
        memory: &Memory,
        burst: usize,
        duration: Option<Nanos>,
    ) -> Self {
        Self {
            transmit,
            source,
            pool: memory.pool(),
            burst: Burst::with_limit(burst),
            duration,
            end: None,
            began: None,
            last: 0,
            refused: 0,
        }
    }

    /// Performs one poll; returns whether it moved frames, and whether sending is over.
    #[inline]
    fn turn(&mut self, now: Nanos, memory: &Memory) -> (bool, bool) {
        if self.began.is_none() {
            self.began = Some(now);
            self.end = self.duration.map(|time| now.saturating_add(time));
            self.source.begin(now);
        }
        // Frames whose deadline was before the end may leave a moment later. Otherwise a stall at
        // the end of a trial would count for more than one in its middle.
        let is_late = self.end.is_some_and(|end| {
            let all_left = self.source.due().is_none_or(|due| due >= end);
            now >= end && (all_left || now >= end + LAST_TRIES_NS)
        });
        let until = self.end.map_or(now, |end| now.min(end.saturating_sub(1)));
        // Frames that a full ring rejected go first, so that order is kept and late frames count as
        // late.
        let fresh = match self.burst.is_empty() && !is_late {
            true => (self.source).fill(now, until, &mut self.pool, memory, &mut self.burst),
            false => 0,
        };
        let held = self.burst.len();
        if held == 0 {
            self.transmit.reclaim(&mut self.pool);
            return (fresh > 0, is_late || self.source.is_over());
        }
        let taken = self.transmit.transmit(&mut self.pool, &mut self.burst);
        if taken > 0 {
            self.last = now;
        }
        self.refused += u64::from(taken < held);
        let give_up = self.end.is_some_and(|end| now >= end + LAST_TRIES_NS);
        // The last frame has left: another poll would count as time of sending.
        let is_last = taken == held && self.end.is_none() && self.source.is_over();
        (taken > 0, give_up || is_last)
    }

    /// Releases the frames that were never sent.
    fn finish(&mut self, memory: &Memory) {
        while let Some(frame) = self.burst.pop() {
            self.source.take_back(memory.bytes(&frame));
            self.pool.free(frame);
        }
    }
}

/// Receiving side of a run.
pub(super) struct Receiver<'a> {
    pub receive: Vec<&'a mut AnyReceive>,
    pub sink: Sink,
    pool: Pool,
    burst: Burst,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(
        receive: Vec<&'a mut AnyReceive>,
        sink: Sink,
        memory: &Memory,
        burst: usize,
    ) -> Self {
        Self {
            receive,
            sink,
            pool: memory.pool(),
            burst: Burst::with_limit(burst),
        }
    }

    /// Performs one poll; returns whether it moved frames.
    #[inline]
    fn turn(&mut self, memory: &Memory, progress: &Progress) -> bool {
        let mut busy = false;
        for queue in &mut self.receive {
            if queue.receive(&mut self.pool, &mut self.burst) == 0 {
                continue;
            }
            busy = true;
            // The clock is read once per burst: all frames of it have arrived by then.
            let now = clock::now();
            for frame in self.burst.frames() {
                self.sink.take(memory.bytes(frame), now);
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
struct Alarm<'a> {
    shared: &'a Shared,
    ports: String,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.failed(PortError::Fault {
                port: std::mem::take(&mut self.ports),
            });
        }
    }
}

/// Work of one thread: sending, receiving, or both alternately.
pub(super) struct Worker<'a> {
    pub sender: Option<Sender<'a>>,
    pub receiver: Option<Receiver<'a>>,
    pub cpu: Option<u32>,
    /// Names of the ports that it polls.
    pub ports: String,
}

/// Processor time of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// False if the thread could not be pinned to its processor.
    pub pinned: bool,
    pub wall_ns: Nanos,
    pub cpu_ns: Nanos,
    /// Time during which it was runnable but did not run; 0 if the kernel does not report it.
    pub waited_ns: Nanos,
}

impl Spent {
    /// Returns processor time divided by wall time, at most 1.
    pub(super) fn core_share(&self) -> f64 {
        (self.cpu_ns as f64 / self.wall_ns.max(1) as f64).min(1.0)
    }
}

impl Worker<'_> {
    /// Polls until its task has ended.
    pub(super) fn run(&mut self, memory: &Memory, shared: &Shared) -> Spent {
        let _alarm = Alarm {
            shared,
            ports: self.ports.clone(),
        };
        let pinned = self.cpu.is_none_or(|cpu| cpu::pin(&[cpu]).is_ok());
        shared.gate.wait();
        let thread = ThreadId::current();
        let scheduled = Scheduled::of(thread);
        let (began, usage) = (clock::now(), ThreadUsage::now());
        self.work(memory, shared);
        let used = ThreadUsage::now().since(&usage);
        let waited = scheduled.zip(Scheduled::of(thread));
        Spent {
            pinned,
            wall_ns: clock::now().saturating_sub(began),
            cpu_ns: used.cpu_ns,
            waited_ns: waited.map_or(0, |(before, after)| after.since(&before).runnable_ns),
        }
    }

    fn work(&mut self, memory: &Memory, shared: &Shared) {
        let mut sending = self.sender.is_some();
        let mut refresh = clock::now() + REFRESH_NS;
        while !shared.stop.load(Relaxed) {
            let now = clock::now();
            let mut busy = false;
            if let Some(sender) = self.sender.as_mut().filter(|_| sending) {
                let (moved, over) = sender.turn(now, memory);
                busy = moved;
                if over {
                    sending = false;
                    self.sent(memory, shared);
                    if self.receiver.is_none() {
                        break;
                    }
                }
            }
            if let Some(receiver) = &mut self.receiver {
                busy |= receiver.turn(memory, &shared.progress);
            }
            if now >= refresh {
                refresh = now + REFRESH_NS;
                self.refresh(shared);
            }
            if !busy {
                self.idle(sending, shared.polite);
            }
        }
        if sending {
            self.sent(memory, shared);
        }
        self.refresh(shared);
    }

    /// Waits without work: spins, or yields if there are fewer processors than threads.
    #[inline]
    fn idle(&self, sending: bool, polite: bool) {
        /// Frames due within this time are waited for by spinning: after a yield another thread may
        /// run for longer.
        const NEAR_NS: Nanos = 20_000;
        let due = self
            .sender
            .as_ref()
            .filter(|_| sending)
            .and_then(|sender| sender.source.due());
        if polite && due.is_none_or(|due| due > clock::now() + NEAR_NS) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    fn sent(&mut self, memory: &Memory, shared: &Shared) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        sender.finish(memory);
        shared.sending_ended(sender.source.made(), clock::now());
    }

    fn refresh(&mut self, shared: &Shared) {
        let sender = self.sender.as_mut().map(|sender| sender.transmit.refresh());
        let receiver = self
            .receiver
            .iter_mut()
            .flat_map(|receiver| &mut receiver.receive);
        let results = sender
            .into_iter()
            .chain(receiver.map(|queue| queue.refresh()));
        for error in results.filter_map(Result::err) {
            shared.failed(error);
        }
    }
}
