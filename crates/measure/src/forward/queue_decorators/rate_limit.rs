//! Bit rate limit of a transmit queue: frames wait in a ring before the queue until their time has
//! come.
//!
//! The limit works like the rate limiter of a NIC. The ring holds as many frames as the queue has
//! descriptors, and a full ring accepts no more.

use std::collections::VecDeque;

use linerate_host::sys::clock::Nanos;
use linerate_port::{Burst, Frame, Pool, Transmit};

/// Idle time of a queue that it may make up for.
const CATCH_UP_NS: Nanos = 1_000_000;

/// Time after which a queue that rejected frames is tried again: longer than what a thread waits
/// for by spinning, and shorter than a ring takes to run dry.
const RETRY_NS: Nanos = 200_000;

/// Time of continuous rejections after which the peer of a queue counts as gone.
const STUCK_NS: Nanos = 500_000_000;

/// Pacer for a bit rate: each frame delays the next one by its own transmission time.
#[derive(Clone, Copy, Debug)]
struct Pace {
    l2_bps: u64,
    free_ns: Nanos,
    /// Remainder below a nanosecond, in units of 1/`l2_bps` ns: at high rates a frame takes few
    /// nanoseconds.
    rest: u64,
}

impl Pace {
    fn new(l2_bps: u64) -> Self {
        Self {
            l2_bps: l2_bps.max(1),
            free_ns: 0,
            rest: 0,
        }
    }

    fn allows(&self, now: Nanos) -> bool {
        now >= self.free_ns
    }

    fn leaves(&mut self, now: Nanos, bytes: u64) {
        let from = self.free_ns.max(now.saturating_sub(CATCH_UP_NS));
        let owed = u128::from(bytes) * 8 * 1_000_000_000 + u128::from(self.rest);
        let took = owed / u128::from(self.l2_bps);
        self.rest = (owed % u128::from(self.l2_bps)) as u64;
        self.free_ns = from.saturating_add(u64::try_from(took).unwrap_or(u64::MAX));
    }
}

/// Ring before a rate-limited queue. All its memory is allocated on creation.
pub(super) struct Held {
    pace: Pace,
    ring: VecDeque<Frame>,
    descriptors: usize,
    /// Frames whose time has come and that the queue has not accepted yet.
    due: Burst,
    /// First and last time of continuous rejections.
    refused: Option<(Nanos, Nanos)>,
}

impl Held {
    /// Creates a ring of `descriptors`, drained at `l2_bps`.
    pub(super) fn new(l2_bps: u64, descriptors: u32) -> Self {
        let descriptors = descriptors.max(1) as usize;
        Self {
            pace: Pace::new(l2_bps),
            ring: VecDeque::with_capacity(descriptors),
            descriptors,
            due: Burst::new(),
            refused: None,
        }
    }

    fn waiting(&self) -> usize {
        self.ring.len() + self.due.len()
    }

    /// Accepts frames from the front of a burst until the ring is full; returns their number.
    pub(super) fn take(&mut self, burst: &mut Burst) -> usize {
        let mut room = self.descriptors - self.waiting();
        burst.take_front(|frame| {
            if room == 0 {
                return Err(frame);
            }
            room -= 1;
            self.ring.push_back(frame);
            Ok(())
        })
    }

    /// Sends the frames whose time has come.
    pub(super) fn leave(&mut self, now: Nanos, queue: &mut impl Transmit, pool: &mut Pool) {
        loop {
            while !self.due.is_full()
                && self.pace.allows(now)
                && let Some(frame) = self.ring.pop_front()
            {
                self.pace.leaves(now, frame.len().into());
                let pushed = self.due.push(frame);
                debug_assert!(pushed.is_ok(), "the burst is not full");
            }
            if self.due.is_empty() {
                return;
            }
            let taken = queue.transmit(pool, &mut self.due);
            let since = match self.refused {
                Some((since, _)) if taken == 0 => since,
                _ => now,
            };
            self.refused = (!self.due.is_empty()).then_some((since, now));
            if !self.due.is_empty() {
                return;
            }
        }
    }

    /// Returns the deadline of the next waiting frame; `None` if no frame waits.
    pub(super) fn due(&self) -> Option<Nanos> {
        match (self.due.is_empty(), self.ring.is_empty()) {
            (true, true) => None,
            (true, false) => Some(self.pace.free_ns),
            (false, _) => Some(self.refused.map_or(0, |(_, latest)| latest + RETRY_NS)),
        }
    }

    /// Returns whether the queue has accepted nothing for so long that its peer seems gone.
    pub(super) fn is_stuck(&self) -> bool {
        let refused = self.refused;
        refused.is_some_and(|(since, latest)| latest.saturating_sub(since) >= STUCK_NS)
    }

    /// Frees the waiting frames; returns their number.
    pub(super) fn end(&mut self, pool: &mut Pool) -> u64 {
        let waiting = self.waiting();
        self.refused = None;
        pool.free_all(&mut self.due);
        for frame in self.ring.drain(..) {
            pool.free(frame);
        }
        waiting as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_port::kinds::{AnyReceive, AnyTransmit};
    use linerate_port::{Memory, PortUrl, Receive, memory_plan, open};

    /// Nanoseconds in a second.
    const SECOND: Nanos = 1_000_000_000;

    /// All allowed frames leave when polled each microsecond, also if a frame takes less than 1 ns.
    #[test]
    fn a_queue_keeps_to_its_rate() {
        for (rate, bytes, span) in [
            (1_000_000_000, 2048, 10 * SECOND),
            (10_000_000, 64, 10 * SECOND),
            (3, 1, 10 * SECOND),
            (20_000_000_000, 64, SECOND / 50),
            (800_000_000_000, 64, SECOND / 1000),
        ] {
            let mut pace = Pace::new(rate);
            let (mut sent, mut now) = (0u64, 10_000_000);
            let end = now + span;
            while now < end {
                while pace.allows(now) {
                    pace.leaves(now, bytes);
                    sent += bytes;
                    assert!(sent < rate * 10, "{rate}: no limit at all");
                }
                // No frame may leave before the next deadline.
                now = pace.free_ns.min(end).max(now + 1000);
            }
            // The catch-up at the start adds to the time span.
            let want = rate as f64 / 8.0 * (span + CATCH_UP_NS) as f64 / SECOND as f64;
            let off = (sent as f64 - want).abs();
            // Tolerance: the frame and the microsecond cut off at the end.
            let room = want * 0.001 + 2.0 * bytes as f64;
            assert!(off <= room, "{rate}: {sent} instead of {want}");
        }
    }

    /// Queue under test with its receiving end and a frame pool.
    struct Bench {
        memory: Memory,
        pool: Pool,
        transmit: AnyTransmit,
        receive: AnyReceive,
    }

    impl Bench {
        fn new(descriptors: u32) -> Self {
            let url: PortUrl = format!("ring:0,rxd={descriptors}").parse().unwrap();
            let memory = Memory::new(memory_plan(std::slice::from_ref(&url))).unwrap();
            let port = open(&url, &memory).unwrap().remove(0);
            Self {
                pool: memory.pool(),
                transmit: port.transmit,
                receive: port.receive,
                memory,
            }
        }

        /// Offers `count` frames of 64 bytes with their numbers; returns how many were accepted.
        fn offer(&mut self, held: &mut Held, from: u8, count: usize) -> usize {
            let mut burst = Burst::new();
            for number in (from..).take(count) {
                let mut frame = self.pool.allocate().unwrap();
                frame.set_len(64);
                self.memory.bytes_mut(&mut frame).fill(number);
                burst.push(frame).unwrap();
            }
            let taken = held.take(&mut burst);
            self.pool.free_all(&mut burst);
            taken
        }

        /// Returns the numbers of the frames that have left.
        fn left(&mut self) -> Vec<u8> {
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
        let mut bench = Bench::new(64);
        // A frame of 64 bytes takes 1 s.
        let mut held = Held::new(512, 8);
        assert_eq!(held.due(), None);
        let began = 10 * SECOND;
        assert_eq!(bench.offer(&mut held, 0, 5), 5);
        held.leave(began, &mut bench.transmit, &mut bench.pool);
        assert_eq!(bench.left(), [0]);
        // The queue was idle before, so 1 ms is made up for.
        assert_eq!(held.due(), Some(began + SECOND - CATCH_UP_NS));
        // Four frames wait, and four more fit.
        assert_eq!(bench.offer(&mut held, 5, 32), 4);
        assert_eq!(bench.offer(&mut held, 99, 1), 0);
        for (number, second) in (1..=8).zip(1..) {
            let now = began + second * SECOND - CATCH_UP_NS;
            held.leave(now - 1, &mut bench.transmit, &mut bench.pool);
            assert!(bench.left().is_empty(), "{number}");
            held.leave(now, &mut bench.transmit, &mut bench.pool);
            assert_eq!(bench.left(), [number]);
        }
        assert_eq!((held.due(), held.end(&mut bench.pool)), (None, 0));
    }

    /// A queue that accepts nothing is retried now and then. After a while it counts as stuck,
    /// until it accepts frames again.
    #[test]
    fn a_queue_that_nobody_empties_is_found_out() {
        let mut bench = Bench::new(4);
        let mut held = Held::new(512_000, 100);
        assert_eq!(bench.offer(&mut held, 0, 32), 32);
        let mut at = SECOND;
        let mut leave = |bench: &mut Bench, held: &mut Held, later: Nanos| {
            at += later;
            held.leave(at, &mut bench.transmit, &mut bench.pool);
            at
        };
        // The queue's own ring is full, and all other frames are due.
        for _ in 0..100 {
            leave(&mut bench, &mut held, 1_000_000);
        }
        let now = leave(&mut bench, &mut held, 0);
        assert_eq!((held.due(), held.is_stuck()), (Some(now + RETRY_NS), false));
        leave(&mut bench, &mut held, STUCK_NS);
        assert!(held.is_stuck());
        assert!(!bench.left().is_empty());
        leave(&mut bench, &mut held, 1_000_000);
        assert!(!held.is_stuck());
        leave(&mut bench, &mut held, STUCK_NS);
        assert!(held.is_stuck());
        held.end(&mut bench.pool);
        assert_eq!((held.due(), held.is_stuck()), (None, false));
    }

    /// A full queue delays frames: they stay in order, and none is lost or paced twice.
    #[test]
    fn a_full_queue_behind_holds_them_up() {
        let mut bench = Bench::new(4);
        let mut held = Held::new(512_000, 100);
        assert_eq!(bench.offer(&mut held, 0, 32), 32);
        let mut left = Vec::new();
        // One frame per millisecond; the queue is emptied every 25 ms only.
        for millisecond in 0..100 {
            let now = SECOND + millisecond * 1_000_000;
            held.leave(now, &mut bench.transmit, &mut bench.pool);
            if millisecond % 25 == 24 {
                left.extend(bench.left());
            }
        }
        assert!(left.is_sorted() && left.first() == Some(&0), "{left:?}");
        // Further frames whose time has not come.
        assert_eq!(bench.offer(&mut held, 32, 20), 20);
        let waiting = held.end(&mut bench.pool);
        assert_eq!(left.len() as u64 + waiting, 52);
        // All frames are back in the memory.
        assert_eq!(bench.left().len(), 0);
        let frames = std::iter::from_fn(|| bench.pool.allocate()).collect::<Vec<_>>();
        assert_eq!(frames.len() as u64, u64::from(bench.memory.frames()));
        frames.into_iter().for_each(|frame| bench.pool.free(frame));
        assert!((8..32).contains(&left.len()), "{left:?}");
        let dropped = bench.transmit.counters().read().all_dropped();
        assert_eq!(dropped, 0);
    }
}
