//! `link`: emulated link with delay, rate, loss and errors between two ports.
//!
//! [`decide`] makes the decisions, without a clock and without ports.

pub mod emulation;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use linerate_host::sys::clock;
use linerate_port::{Frame, Memory, Pool, Receive, Transmit};

use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, HELD_AT_THE_STOP, Stream};

pub use emulation::{Counts, Emulation, LinkPlan};

/// Frame in the link.
struct Held {
    /// Departure time, and a sequence number for frames that leave at the same time.
    at: Reverse<(u64, u64)>,
    frame: Frame,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// One direction of a link.
pub struct Link {
    emulation: Emulation,
    held: BinaryHeap<Held>,
    arrivals: u64,
    /// Maximum number of frames in the link, limited by the memory.
    room: usize,
    /// Number of frames in the link when the run ended.
    unsent: u64,
}

impl Link {
    fn hold(&mut self, at_ns: u64, frame: Frame) {
        self.arrivals += 1;
        self.held.push(Held {
            at: Reverse((at_ns, self.arrivals)),
            frame,
        });
    }

    /// Decides for one received frame, and puts it into the link.
    fn send(&mut self, now: u64, mut frame: Frame, pool: &mut Pool, memory: &Memory) -> bool {
        let full = self.held.len() >= self.room;
        let fate = self
            .emulation
            .decide(now, frame.len(), self.held.len(), full);
        let Some(at) = fate.leaves_ns else {
            pool.free(frame);
            return false;
        };
        if let Some(again) = fate.again_ns {
            match pool.allocate() {
                None => self.emulation.not_copied(),
                Some(mut copy) => {
                    copy.set_len(frame.len());
                    memory
                        .bytes_mut(&mut copy)
                        .copy_from_slice(memory.bytes(&frame));
                    self.hold(again, copy);
                }
            }
        }
        if let Some(bit) = fate.flipped {
            let bytes = memory.bytes_mut(&mut frame);
            if let Some(byte) = bytes.get_mut(bit as usize / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        self.hold(at, frame);
        true
    }
}

impl ForwardMode for Link {
    type Plan = LinkPlan;
    const ABOUT: &'static str =
        "emulated link with rate, delay, jitter, loss, reordering, duplicates and bit errors";

    fn new(plan: &LinkPlan, facts: &Facts, setting: &Settings) -> Self {
        let room = facts.share as usize;
        Self {
            emulation: Emulation::new(
                plan.clone(),
                setting.seed.wrapping_add(u64::from(facts.number)),
            ),
            // One more for the copy of the last frame that fits.
            held: BinaryHeap::with_capacity(room + 2),
            arrivals: 0,
            room,
            unsent: 0,
        }
    }

    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let mut handled = stream.receive(pool);
        // Read after the poll: a preemption before it would otherwise let frames leave too early.
        let now = clock::now();
        for _ in 0..handled {
            let mut first = None;
            stream.burst.take_front(|frame| match first {
                None => {
                    first = Some(frame);
                    Ok(())
                }
                Some(_) => Err(frame),
            });
            if let Some(frame) = first
                && !self.send(now, frame, pool, memory)
            {
                stream.taken += 1;
            }
        }
        while !stream.burst.is_full() && self.held.peek().is_some_and(|held| held.at.0.0 <= now) {
            if let Some(held) = self.held.pop() {
                let pushed = stream.burst.push(held.frame);
                debug_assert!(pushed.is_ok(), "the burst is not full");
            }
        }
        if !stream.burst.is_empty() {
            handled += stream.burst.len();
            stream.transmit(pool);
        }
        handled
    }

    fn end(&mut self, pool: &mut Pool) {
        self.unsent = self.held.len() as u64;
        for held in self.held.drain() {
            pool.free(held.frame);
        }
    }

    fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn due(&self) -> Option<u64> {
        self.held.peek().map(|held| held.at.0.0)
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let Counts {
            lost,
            overflowed,
            duplicated,
            not_duplicated,
            corrupted,
            reordered,
        } = self.emulation.counts();
        let seldom = [
            ("not-duplicated", not_duplicated),
            (HELD_AT_THE_STOP, self.unsent),
        ];
        let always = [
            ("lost", lost),
            ("queue-full", overflowed),
            ("duplicated", duplicated),
            ("corrupted", corrupted),
            ("reordered", reordered),
        ];
        let seldom = seldom.into_iter().filter(|&(_, count)| count > 0);
        let all = always.into_iter().chain(seldom);
        all.map(|(name, count)| (name.to_owned(), count)).collect()
    }
}
