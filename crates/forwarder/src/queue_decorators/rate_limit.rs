//! Bit rate limit of a transmit queue: frames wait in a ring before the queue until their time has
//! come.
//!
//! The limit works like the rate limiter of a NIC. The ring holds as many frames as the queue has
//! descriptors, and a full ring accepts no more.

use std::collections::VecDeque;

use linerate_port::TxQueue;
use linerate_sys::clock::Nanos;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_pool::FramePool;

/// Idle time of a queue that it may make up for.
const CATCH_UP_NS: Nanos = 1_000_000;

/// Time after which a queue that rejected frames is tried again: longer than what a thread waits
/// for by spinning, and shorter than a ring takes to run dry.
const RETRY_NS: Nanos = 200_000;

/// Time of continuous rejections after which the peer of a queue counts as gone.
const STUCK_NS: Nanos = 500_000_000;

/// Pacer for a bit rate: each frame delays the next one by its own transmission time.
#[derive(Clone, Copy, Debug)]
struct BitRatePacer {
    l2_bps: u64,
    next_send_ns: Nanos,
    /// Remainder below a nanosecond, in units of 1/`l2_bps` ns: at high rates a frame takes few
    /// nanoseconds.
    remainder: u64,
}

impl BitRatePacer {
    fn new(l2_bps: u64) -> Self {
        Self {
            l2_bps: l2_bps.max(1),
            next_send_ns: 0,
            remainder: 0,
        }
    }

    fn may_send(&self, now: Nanos) -> bool {
        now >= self.next_send_ns
    }

    fn sent(&mut self, now: Nanos, bytes: u64) {
        let base_ns = self.next_send_ns.max(now.saturating_sub(CATCH_UP_NS));
        let scaled_bits = u128::from(bytes) * 8 * 1_000_000_000 + u128::from(self.remainder);
        let duration_ns = scaled_bits / u128::from(self.l2_bps);
        self.remainder = (scaled_bits % u128::from(self.l2_bps)) as u64;
        self.next_send_ns = base_ns.saturating_add(u64::try_from(duration_ns).unwrap_or(u64::MAX));
    }
}

/// Ring before a rate-limited queue. All its memory is allocated on creation.
pub(super) struct RateLimitedTx {
    pacer: BitRatePacer,
    ring: VecDeque<Frame>,
    descriptors: usize,
    /// Frames whose time has come and that the queue has not accepted yet.
    ready: Burst,
    /// First and last time of continuous rejections.
    rejections: Option<(Nanos, Nanos)>,
}

impl RateLimitedTx {
    /// Creates a ring of `descriptors`, drained at `l2_bps`.
    pub(super) fn new(l2_bps: u64, descriptors: u32) -> Self {
        let descriptors = descriptors.max(1) as usize;
        Self {
            pacer: BitRatePacer::new(l2_bps),
            ring: VecDeque::with_capacity(descriptors),
            descriptors,
            ready: Burst::new(),
            rejections: None,
        }
    }

    fn waiting_frames(&self) -> usize {
        self.ring.len() + self.ready.len()
    }

    /// Accepts frames from the front of a burst until the ring is full; returns their number.
    pub(super) fn accept(&mut self, burst: &mut Burst) -> usize {
        let mut free_slots = self.descriptors - self.waiting_frames();
        burst.take_front(|frame| {
            if free_slots == 0 {
                return Err(frame);
            }
            free_slots -= 1;
            self.ring.push_back(frame);
            Ok(())
        })
    }

    /// Sends the frames whose time has come.
    pub(super) fn release_due(
        &mut self,
        now: Nanos,
        queue: &mut impl TxQueue,
        pool: &mut FramePool,
    ) {
        loop {
            while !self.ready.is_full()
                && self.pacer.may_send(now)
                && let Some(frame) = self.ring.pop_front()
            {
                self.pacer.sent(now, frame.len().into());
                let pushed = self.ready.push(frame);
                debug_assert!(pushed.is_ok(), "the burst is not full");
            }
            if self.ready.is_empty() {
                return;
            }
            let accepted = queue.transmit(pool, &mut self.ready);
            let since = match self.rejections {
                Some((since, _)) if accepted == 0 => since,
                _ => now,
            };
            self.rejections = (!self.ready.is_empty()).then_some((since, now));
            if !self.ready.is_empty() {
                return;
            }
        }
    }

    /// Returns the deadline of the next waiting frame; `None` if no frame waits.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        match (self.ready.is_empty(), self.ring.is_empty()) {
            (true, true) => None,
            (true, false) => Some(self.pacer.next_send_ns),
            (false, _) => Some(self.rejections.map_or(0, |(_, latest)| latest + RETRY_NS)),
        }
    }

    /// Returns whether the queue has accepted nothing for so long that its peer seems gone.
    pub(super) fn is_stuck(&self) -> bool {
        let rejections = self.rejections;
        rejections.is_some_and(|(since, latest)| latest.saturating_sub(since) >= STUCK_NS)
    }

    /// Frees the waiting frames; returns their number.
    pub(super) fn discard(&mut self, pool: &mut FramePool) -> u64 {
        let waiting = self.waiting_frames();
        self.rejections = None;
        pool.free_all(&mut self.ready);
        for frame in self.ring.drain(..) {
            pool.free(frame);
        }
        waiting as u64
    }
}

#[cfg(test)]
mod tests {
    use linerate_port::kinds::{AnyReceive, AnyTransmit};
    use linerate_port::{PortUrl, RxQueue, memory_plan, open};
    use linerate_sys::frames::frame_memory::FrameRegion;

    use super::*;

    /// Nanoseconds in a second.
    const SECOND: Nanos = 1_000_000_000;

    /// All allowed frames leave when polled each microsecond, also if a frame takes less than 1 ns.
    #[test]
    fn a_queue_keeps_to_its_rate() {
        for (rate, bytes, span_ns) in [
            (1_000_000_000, 2048, 10 * SECOND),
            (10_000_000, 64, 10 * SECOND),
            (3, 1, 10 * SECOND),
            (20_000_000_000, 64, SECOND / 50),
            (800_000_000_000, 64, SECOND / 1000),
        ] {
            let mut pacer = BitRatePacer::new(rate);
            let (mut sent, mut now) = (0u64, 10_000_000);
            let end = now + span_ns;
            while now < end {
                while pacer.may_send(now) {
                    pacer.sent(now, bytes);
                    sent += bytes;
                    assert!(sent < rate * 10, "{rate}: no limit at all");
                }
                // No frame may leave before the next deadline.
                now = pacer.next_send_ns.min(end).max(now + 1000);
            }
            // The catch-up at the start adds to the time span.
            let expected = rate as f64 / 8.0 * (span_ns + CATCH_UP_NS) as f64 / SECOND as f64;
            let difference = (sent as f64 - expected).abs();
            // Tolerance: the frame and the microsecond cut off at the end.
            let tolerance = expected * 0.001 + 2.0 * bytes as f64;
            assert!(
                difference <= tolerance,
                "{rate}: {sent} instead of {expected}"
            );
        }
    }

    /// Queue under test with its receiving end and a frame pool.
    struct TestQueue {
        memory: FrameRegion,
        pool: FramePool,
        transmit: AnyTransmit,
        receive: AnyReceive,
    }

    impl TestQueue {
        fn new(descriptors: u32) -> Self {
            let url: PortUrl = format!("ring:0,rxd={descriptors}").parse().unwrap();
            let memory = FrameRegion::new(memory_plan(std::slice::from_ref(&url))).unwrap();
            let port = open(&url, &memory).unwrap().remove(0);
            Self {
                pool: memory.pool(),
                transmit: port.transmit,
                receive: port.receive,
                memory,
            }
        }

        /// Offers `count` frames of 64 bytes with their numbers; returns how many were accepted.
        fn offer(&mut self, rate_limit: &mut RateLimitedTx, from: u8, count: usize) -> usize {
            let mut burst = Burst::new();
            for number in (from..).take(count) {
                let mut frame = self.pool.allocate().unwrap();
                frame.set_len(64);
                self.memory.bytes_mut(&mut frame).fill(number);
                burst.push(frame).unwrap();
            }
            let accepted = rate_limit.accept(&mut burst);
            self.pool.free_all(&mut burst);
            accepted
        }

        /// Returns the numbers of the frames that have left.
        fn sent_numbers(&mut self) -> Vec<u8> {
            let mut burst = Burst::new();
            let mut numbers = Vec::new();
            while self.receive.receive(&mut self.pool, &mut burst) > 0 {
                let frames = burst.frames().iter();
                numbers.extend(frames.map(|frame| self.memory.bytes(frame)[0]));
                self.pool.free_all(&mut burst);
            }
            numbers
        }
    }

    /// Frames wait for their time instead of being rejected, as many as the ring has descriptors.
    /// They leave one by one, in order.
    #[test]
    fn frames_wait_in_the_ring() {
        let mut queue = TestQueue::new(64);
        // A frame of 64 bytes takes 1 s.
        let mut rate_limit = RateLimitedTx::new(512, 8);
        assert_eq!(rate_limit.next_deadline(), None);
        let started_at = 10 * SECOND;
        assert_eq!(queue.offer(&mut rate_limit, 0, 5), 5);
        rate_limit.release_due(started_at, &mut queue.transmit, &mut queue.pool);
        assert_eq!(queue.sent_numbers(), [0]);
        // The queue was idle before, so 1 ms is made up for.
        assert_eq!(
            rate_limit.next_deadline(),
            Some(started_at + SECOND - CATCH_UP_NS)
        );
        // Four frames wait, and four more fit.
        assert_eq!(queue.offer(&mut rate_limit, 5, 32), 4);
        assert_eq!(queue.offer(&mut rate_limit, 99, 1), 0);
        for (number, second) in (1..=8).zip(1..) {
            let now = started_at + second * SECOND - CATCH_UP_NS;
            rate_limit.release_due(now - 1, &mut queue.transmit, &mut queue.pool);
            assert!(queue.sent_numbers().is_empty(), "{number}");
            rate_limit.release_due(now, &mut queue.transmit, &mut queue.pool);
            assert_eq!(queue.sent_numbers(), [number]);
        }
        assert_eq!(
            (
                rate_limit.next_deadline(),
                rate_limit.discard(&mut queue.pool)
            ),
            (None, 0)
        );
    }

    /// A queue that accepts nothing is retried now and then. After a while it counts as stuck,
    /// until it accepts frames again.
    #[test]
    fn queue_without_a_reader_is_detected() {
        let mut queue = TestQueue::new(4);
        let mut rate_limit = RateLimitedTx::new(512_000, 100);
        assert_eq!(queue.offer(&mut rate_limit, 0, 32), 32);
        let mut at = SECOND;
        let mut release =
            |queue: &mut TestQueue, rate_limit: &mut RateLimitedTx, step_ns: Nanos| {
                at += step_ns;
                rate_limit.release_due(at, &mut queue.transmit, &mut queue.pool);
                at
            };
        // The queue's own ring is full, and all other frames are due.
        for _ in 0..100 {
            release(&mut queue, &mut rate_limit, 1_000_000);
        }
        let now = release(&mut queue, &mut rate_limit, 0);
        assert_eq!(
            (rate_limit.next_deadline(), rate_limit.is_stuck()),
            (Some(now + RETRY_NS), false)
        );
        release(&mut queue, &mut rate_limit, STUCK_NS);
        assert!(rate_limit.is_stuck());
        assert!(!queue.sent_numbers().is_empty());
        release(&mut queue, &mut rate_limit, 1_000_000);
        assert!(!rate_limit.is_stuck());
        release(&mut queue, &mut rate_limit, STUCK_NS);
        assert!(rate_limit.is_stuck());
        rate_limit.discard(&mut queue.pool);
        assert_eq!(
            (rate_limit.next_deadline(), rate_limit.is_stuck()),
            (None, false)
        );
    }

    /// A full queue delays frames: they stay in order, and none is lost or paced twice.
    #[test]
    fn a_full_queue_behind_holds_them_up() {
        let mut queue = TestQueue::new(4);
        let mut rate_limit = RateLimitedTx::new(512_000, 100);
        assert_eq!(queue.offer(&mut rate_limit, 0, 32), 32);
        let mut numbers = Vec::new();
        // One frame per millisecond; the queue is emptied every 25 ms only.
        for millisecond in 0..100 {
            let now = SECOND + millisecond * 1_000_000;
            rate_limit.release_due(now, &mut queue.transmit, &mut queue.pool);
            if millisecond % 25 == 24 {
                numbers.extend(queue.sent_numbers());
            }
        }
        assert!(
            numbers.is_sorted() && numbers.first() == Some(&0),
            "{numbers:?}"
        );
        // Further frames whose time has not come.
        assert_eq!(queue.offer(&mut rate_limit, 32, 20), 20);
        let waiting = rate_limit.discard(&mut queue.pool);
        assert_eq!(numbers.len() as u64 + waiting, 52);
        // All frames are back in the memory.
        assert_eq!(queue.sent_numbers().len(), 0);
        let frames = std::iter::from_fn(|| queue.pool.allocate()).collect::<Vec<_>>();
        assert_eq!(frames.len() as u64, u64::from(queue.memory.frames()));
        frames.into_iter().for_each(|frame| queue.pool.free(frame));
        assert!((8..32).contains(&numbers.len()), "{numbers:?}");
        let dropped = queue.transmit.counters().read().total_drops();
        assert_eq!(dropped, 0);
    }
}
