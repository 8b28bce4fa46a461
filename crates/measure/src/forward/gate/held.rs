//! A transmit queue that is held to a bit rate: frames wait in a ring in front of it, and leave when their time
//! has come.
//!
//! As with a NIC's rate limiter: what is handed over lies in the transmit ring, as many frames as that has
//! descriptors, and what finds the ring full is not taken.

use std::collections::VecDeque;

use linerate_host::sys::clock::Nanos;
use linerate_port::{Burst, Frame, Pool, Transmit};

/// Time that a queue which had nothing to send may make up for.
const CATCH_UP_NS: Nanos = 1_000_000;

/// How soon a queue that refused frames is asked again: longer than what a thread waits for awake, and shorter than
/// a ring takes to run dry.
const RETRY_NS: Nanos = 200_000;

/// How long a queue refuses all frames until nobody is thought to take them at its far end.
const STUCK_NS: Nanos = 500_000_000;

/// When the next frame may leave, so that a queue keeps to a bit rate: each is paid for before the next.
#[derive(Clone, Copy, Debug)]
struct Pace {
    l2_bps: u64,
    free_ns: Nanos,
    /// What whole nanoseconds leave unpaid, in parts of a nanosecond of which `l2_bps` make one: at high rates a
    /// frame takes few of them.
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

/// The ring in front of a queue that is held to a rate. All of its memory is taken when it is made.
pub(super) struct Held {
    pace: Pace,
    ring: VecDeque<Frame>,
    descriptors: usize,
    /// Frames whose time has come, and that the queue had no room for yet.
    due: Burst,
    /// Since when, and when last, it took none of them.
    refused: Option<(Nanos, Nanos)>,
}

impl Held {
    /// A ring of so many descriptors, emptied at this rate.
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

    /// Takes frames from the front of a burst until the ring is full; returns how many.
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

    /// Hands the queue those frames whose time has come.
    pub(super) fn leave(&mut self, now: Nanos, queue: &mut impl Transmit, pool: &mut Pool) {
        loop {
            while !self.due.is_full()
                && self.pace.allows(now)
                && let Some(frame) = self.ring.pop_front()
            {
                self.pace.leaves(now, frame.len().into());
                let pushed = self.due.push(frame);
                debug_assert!(pushed.is_ok(), "the room was asked for");
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

    /// When the next frame may leave; none where none waits.
    pub(super) fn due(&self) -> Option<Nanos> {
        match (self.due.is_empty(), self.ring.is_empty()) {
            (true, true) => None,
            (true, false) => Some(self.pace.free_ns),
            (false, _) => Some(self.refused.map_or(0, |(_, latest)| latest + RETRY_NS)),
        }
    }

    /// Whether the queue has taken nothing for so long that nobody seems to be at its far end.
    pub(super) fn is_stuck(&self) -> bool {
        let refused = self.refused;
        refused.is_some_and(|(since, latest)| latest.saturating_sub(since) >= STUCK_NS)
    }

    /// Gives up on what waits; returns how many frames that were.
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
    use linerate_port::kind::{AnyReceive, AnyTransmit};
    use linerate_port::{Memory, PortUrl, Receive, memory_plan, open};

    /// A second, in nanoseconds.
    const SECOND: Nanos = 1_000_000_000;

    /// All that is allowed leaves, asked for every microsecond: also where a frame takes less than a nanosecond.
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
                // Far from the next turn there is nothing to ask.
                now = pace.free_ns.min(end).max(now + 1000);
            }
            // What the start makes up for is beside the span.
            let want = rate as f64 / 8.0 * (span + CATCH_UP_NS) as f64 / SECOND as f64;
            let off = (sent as f64 - want).abs();
            // The frame, and the microsecond, that the end cuts.
            let room = want * 0.001 + 2.0 * bytes as f64;
            assert!(off <= room, "{rate}: {sent} instead of {want}");
        }
    }

    /// A queue, what comes out of it, and frames for it.
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

        /// Offers so many frames of 64 bytes, each with its number; returns how many were taken.
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

        /// Numbers of the frames that have left.
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

    /// Frames wait for their time instead of being refused, as many as the ring has descriptors for; they leave
    /// one by one, in order, and make room.
    #[test]
    fn frames_wait_in_the_ring() {
        let mut bench = Bench::new(64);
        // A frame of 64 bytes takes a second.
        let mut held = Held::new(512, 8);
        assert_eq!(held.due(), None);
        let began = 10 * SECOND;
        assert_eq!(bench.offer(&mut held, 0, 5), 5);
        held.leave(began, &mut bench.transmit, &mut bench.pool);
        assert_eq!(bench.left(), [0]);
        // Nothing was to be sent before: a millisecond of that is made up for.
        assert_eq!(held.due(), Some(began + SECOND - CATCH_UP_NS));
        // Four wait, and there is room for four more.
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

    /// A queue behind that takes nothing is asked again now and then, and after a while nothing is expected of it
    /// any more; until it takes some.
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
        // Its ring is full, and all others are due.
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

    /// A queue behind that takes nothing holds frames up: they stay in order, and none is lost or paid for twice.
    #[test]
    fn a_full_queue_behind_holds_them_up() {
        let mut bench = Bench::new(4);
        let mut held = Held::new(512_000, 100);
        assert_eq!(bench.offer(&mut held, 0, 32), 32);
        let mut left = Vec::new();
        // A millisecond for each; the ring behind is emptied every 25 only.
        for millisecond in 0..100 {
            let now = SECOND + millisecond * 1_000_000;
            held.leave(now, &mut bench.transmit, &mut bench.pool);
            if millisecond % 25 == 24 {
                left.extend(bench.left());
            }
        }
        assert!(left.is_sorted() && left.first() == Some(&0), "{left:?}");
        // And some whose time has not come.
        assert_eq!(bench.offer(&mut held, 32, 20), 20);
        let waiting = held.end(&mut bench.pool);
        assert_eq!(left.len() as u64 + waiting, 52);
        // None of those that waited is missing from the memory.
        assert_eq!(bench.left().len(), 0);
        let frames = std::iter::from_fn(|| bench.pool.allocate()).collect::<Vec<_>>();
        assert_eq!(frames.len() as u64, u64::from(bench.memory.frames()));
        frames.into_iter().for_each(|frame| bench.pool.free(frame));
        assert!((8..32).contains(&left.len()), "{left:?}");
        let dropped = bench.transmit.counters().read().all_dropped();
        assert_eq!(dropped, 0);
    }
}
