//! Queue decorators: a transmit queue with a bit rate limit, and queues whose frames are described
//! one by one.
//!
//! The loop over decorated queues is compiled separately, so that undecorated queues have no
//! overhead.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use linerate_port::kinds::ring::RingTransmit;
use linerate_port::kinds::{AnyReceive, AnyTransmit};
use linerate_port::{OutageInterval, PeerState, PortError, QueueCounters, RxQueue, TxQueue};
use linerate_sys::clock;
use linerate_sys::clock::Nanos;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use rate_limit::RateLimitedTx;

use super::settings::ForwardSettings;
use super::stream::StreamFacts;

mod frame_description;
mod rate_limit;

/// Maximum bursts of descriptions that wait to be printed; later ones are skipped and counted.
const MAX_PENDING: usize = 32;

/// Sending end for descriptions of frames.
#[derive(Clone)]
pub(super) struct DescriptionSender {
    texts: SyncSender<String>,
    skipped_frames: Arc<AtomicU64>,
}

/// Receiving end for descriptions of frames.
pub(super) struct DescriptionReceiver {
    texts: Receiver<String>,
    skipped_frames: Arc<AtomicU64>,
}

/// Creates both ends of a channel for descriptions.
pub(super) fn description_channel() -> (DescriptionSender, DescriptionReceiver) {
    let (texts, pending) = sync_channel(MAX_PENDING);
    let skipped_frames = Arc::<AtomicU64>::default();
    let sender = DescriptionSender {
        texts,
        skipped_frames: Arc::clone(&skipped_frames),
    };
    let receiver = DescriptionReceiver {
        texts: pending,
        skipped_frames,
    };
    (sender, receiver)
}

impl DescriptionReceiver {
    /// Returns the descriptions that have arrived since the last call.
    pub(super) fn read(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.texts.try_iter().take(MAX_PENDING).collect();
        match self.skipped_frames.swap(0, Relaxed) {
            0 => {}
            1 => lines.push(
                "(1 packet skipped: packets arrive faster than they can be printed)".to_owned(),
            ),
            skipped_frames => lines.push(format!(
                "({skipped_frames} packets skipped: packets arrive faster than they can be printed)"
            )),
        }
        lines
    }
}

impl DescriptionSender {
    fn send(&self, text: String, frames: usize) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.texts.try_send(text)
        {
            self.skipped_frames.fetch_add(frames as u64, Relaxed);
        }
    }
}

/// Describes the frames of a queue.
struct FrameDescriber {
    port: u32,
    queue: u32,
    memory: FrameRegion,
    sender: DescriptionSender,
}

impl FrameDescriber {
    fn describe_received(&self, burst: &Burst, before: usize) {
        let frames = &burst.frames()[before..];
        let lines = frames.iter().map(|frame| {
            frame_description::describe_frame(self.memory.bytes(frame), "Receive", self.queue)
        });
        self.send("received", lines.collect());
    }

    fn send(&self, action: &str, lines: Vec<String>) {
        let (Self { port, queue, .. }, count) = (self, lines.len());
        let text = format!(
            "port {port}/queue {queue}: {action} {count} packets\n{}",
            lines.join("\n")
        );
        self.sender.send(text, count);
    }
}

/// Queue with an optional rate limit and optional descriptions.
pub(super) struct DecoratedQueue<Q> {
    queue: Q,
    describer: Option<FrameDescriber>,
    rate_limit: Option<RateLimitedTx>,
}

/// Transmit queue of the loop, with or without decorators.
pub(super) trait WorkerTransmit: TxQueue + Into<AnyTransmit> {
    /// True if frames may wait for a rate limit; the loop omits the calls otherwise.
    const MAY_HOLD: bool = false;

    /// Sends the waiting frames whose time has come.
    fn release_due(&mut self, pool: &mut FramePool) {
        let _ = pool;
    }

    /// Returns the deadline of the next waiting frame; `None` if no frame waits.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Returns whether the queue has accepted no waiting frame for long, so that its peer seems
    /// gone.
    fn is_stuck(&self) -> bool {
        false
    }

    /// Frees the waiting frames; returns their number.
    fn discard_held(&mut self, pool: &mut FramePool) -> u64 {
        let _ = pool;
        0
    }
}

impl WorkerTransmit for AnyTransmit {}
impl WorkerTransmit for RingTransmit {}

/// Decorates both queues of a stream as the settings require.
pub(super) fn decorate(
    receive: AnyReceive,
    transmit: AnyTransmit,
    stream_facts: &StreamFacts,
    settings: &ForwardSettings,
    memory: &FrameRegion,
    sender: Option<&DescriptionSender>,
) -> (DecoratedQueue<AnyReceive>, DecoratedQueue<AnyTransmit>) {
    let ([rx_port, rx_queue], [tx_port, tx_queue]) = (stream_facts.rx, stream_facts.tx);
    let describer_for = |is_enabled: bool, port, queue| {
        sender.filter(|_| is_enabled).map(|sender| FrameDescriber {
            port,
            queue,
            memory: memory.clone(),
            sender: sender.clone(),
        })
    };
    let receive = DecoratedQueue {
        queue: receive,
        describer: describer_for(settings.verbose.received(), rx_port, rx_queue),
        rate_limit: None,
    };
    let transmit = DecoratedQueue {
        queue: transmit,
        describer: describer_for(settings.verbose.sent(), tx_port, tx_queue),
        rate_limit: (settings.queue_rate(tx_port, tx_queue))
            .map(|rate| RateLimitedTx::new(rate, stream_facts.descriptors)),
    };
    (receive, transmit)
}

impl RxQueue for DecoratedQueue<AnyReceive> {
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let before = burst.len();
        let received = self.queue.receive(pool, burst);
        if received > 0
            && let Some(describer) = &self.describer
        {
            describer.describe_received(burst, before);
        }
        received
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        self.queue.counters()
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.queue.refresh()
    }

    fn is_exhausted(&self) -> bool {
        self.queue.is_exhausted()
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_handle()
    }

    fn peer_state(&self) -> Option<PeerState> {
        self.queue.peer_state()
    }

    fn peer_outages(&self) -> Vec<OutageInterval> {
        self.queue.peer_outages()
    }
}

impl DecoratedQueue<AnyTransmit> {
    /// Accepts frames into the ring of the rate limit, or sends them at once without a limit.
    fn accept(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let Some(rate_limit) = &mut self.rate_limit else {
            return self.queue.transmit(pool, burst);
        };
        let now = clock::now();
        rate_limit.release_due(now, &mut self.queue, pool);
        let accepted = rate_limit.accept(burst);
        rate_limit.release_due(now, &mut self.queue, pool);
        accepted
    }
}

impl TxQueue for DecoratedQueue<AnyTransmit> {
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let Some(describer) = &self.describer else {
            return self.accept(pool, burst);
        };
        // Sent frames belong to the port and can no longer be read.
        let frames = burst.frames().iter();
        let mut lines: Vec<String> = frames
            .map(|frame| {
                frame_description::describe_frame(
                    describer.memory.bytes(frame),
                    "Send",
                    describer.queue,
                )
            })
            .collect();
        let accepted = self.accept(pool, burst);
        lines.truncate(accepted);
        if let Some(describer) = self.describer.as_ref().filter(|_| accepted > 0) {
            describer.send("sent", lines);
        }
        accepted
    }

    fn reclaim(&mut self, pool: &mut FramePool) -> usize {
        self.release_due(pool);
        self.queue.reclaim(pool)
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        self.queue.counters()
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.queue.refresh()
    }
}

impl WorkerTransmit for DecoratedQueue<AnyTransmit> {
    const MAY_HOLD: bool = true;

    fn release_due(&mut self, pool: &mut FramePool) {
        if let Some(rate_limit) = &mut self.rate_limit {
            rate_limit.release_due(clock::now(), &mut self.queue, pool);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.rate_limit.as_ref()?.next_deadline()
    }

    fn is_stuck(&self) -> bool {
        self.rate_limit
            .as_ref()
            .is_some_and(RateLimitedTx::is_stuck)
    }

    fn discard_held(&mut self, pool: &mut FramePool) -> u64 {
        self.rate_limit
            .as_mut()
            .map_or(0, |rate_limit| rate_limit.discard(pool))
    }
}

impl From<DecoratedQueue<AnyReceive>> for AnyReceive {
    fn from(decorated: DecoratedQueue<Self>) -> Self {
        decorated.queue
    }
}

impl From<DecoratedQueue<AnyTransmit>> for AnyTransmit {
    fn from(decorated: DecoratedQueue<Self>) -> Self {
        decorated.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_descriptions_are_counted() {
        let (sender, receiver) = description_channel();
        for at in 0..MAX_PENDING + 2 {
            sender.send(at.to_string(), 3);
        }
        let lines = receiver.read();
        assert_eq!((lines.len(), lines[0].as_str()), (MAX_PENDING + 1, "0"));
        assert!(
            lines[MAX_PENDING].contains("(6 packets"),
            "{}",
            lines[MAX_PENDING]
        );
        assert!(receiver.read().is_empty());
    }
}
