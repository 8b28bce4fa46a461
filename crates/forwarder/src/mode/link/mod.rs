//! `link`: emulated link with delay, rate, loss and errors between two ports.
//!
//! [`emulation`] makes the decisions, without a clock and without ports.

pub mod emulation;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use linerate_port::{RxQueue, TxQueue};
use linerate_sys::clock;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::stream::{ForwardMode, FwdStream, HELD_AT_STOP, ModeSettings, StreamFacts};
pub use emulation::{LinkCounts, LinkEmulation, LinkPlan};

/// Frame in the link.
struct LinkFrame {
    /// Departure time, and a sequence number for frames that leave at the same time.
    departure: Reverse<(u64, u64)>,
    frame: Frame,
}

impl PartialEq for LinkFrame {
    fn eq(&self, other: &Self) -> bool {
        self.departure == other.departure
    }
}

impl Eq for LinkFrame {}

impl PartialOrd for LinkFrame {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LinkFrame {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.departure.cmp(&other.departure)
    }
}

/// One direction of a link.
pub struct Link {
    emulation: LinkEmulation,
    frames: BinaryHeap<LinkFrame>,
    arrivals: u64,
    /// Maximum number of frames in the link, limited by the memory.
    max_frames: usize,
    /// Number of frames in the link when the run ended.
    unsent: u64,
}

impl Link {
    fn insert(&mut self, at_ns: u64, frame: Frame) {
        self.arrivals += 1;
        self.frames.push(LinkFrame {
            departure: Reverse((at_ns, self.arrivals)),
            frame,
        });
    }

    /// Decides for one received frame, and puts it into the link.
    fn accept(
        &mut self,
        now: u64,
        mut frame: Frame,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> bool {
        let is_full = self.frames.len() >= self.max_frames;
        let decision = self
            .emulation
            .decide(now, frame.len(), self.frames.len(), is_full);
        let Some(departure_ns) = decision.departure_ns else {
            pool.free(frame);
            return false;
        };
        if let Some(duplicate_ns) = decision.duplicate_ns {
            match pool.allocate() {
                None => self.emulation.record_missing_copy(),
                Some(mut copy) => {
                    copy.set_len(frame.len());
                    memory
                        .bytes_mut(&mut copy)
                        .copy_from_slice(memory.bytes(&frame));
                    self.insert(duplicate_ns, copy);
                }
            }
        }
        if let Some(bit) = decision.flipped_bit {
            let bytes = memory.bytes_mut(&mut frame);
            if let Some(byte) = bytes.get_mut(bit as usize / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        self.insert(departure_ns, frame);
        true
    }
}

impl ForwardMode for Link {
    type Plan = LinkPlan;
    const ABOUT: &'static str =
        "emulated link with rate, delay, jitter, loss, reordering, duplicates and bit errors";

    fn new(plan: &LinkPlan, facts: &StreamFacts, settings: &ModeSettings) -> Self {
        let max_frames = facts.max_held_frames as usize;
        Self {
            emulation: LinkEmulation::new(
                plan.clone(),
                settings.seed.wrapping_add(u64::from(facts.number)),
            ),
            // One more for the copy of the last frame that fits.
            frames: BinaryHeap::with_capacity(max_frames + 2),
            arrivals: 0,
            max_frames,
            unsent: 0,
        }
    }

    fn step<R: RxQueue, T: TxQueue>(
        &mut self,
        stream: &mut FwdStream<R, T>,
        pool: &mut FramePool,
        memory: &FrameRegion,
    ) -> usize {
        let mut handled = stream.receive(pool);
        // Read after the poll: a preemption before it would otherwise let frames leave too early.
        let now = clock::now();
        let consumed = &mut stream.consumed;
        stream.burst.take_front(|frame| {
            if !self.accept(now, frame, pool, memory) {
                *consumed += 1;
            }
            Ok(())
        });
        while !stream.burst.is_full()
            && self
                .frames
                .peek()
                .is_some_and(|link_frame| link_frame.departure.0.0 <= now)
        {
            if let Some(link_frame) = self.frames.pop() {
                let pushed = stream.burst.push(link_frame.frame);
                debug_assert!(pushed.is_ok(), "the burst is not full");
            }
        }
        if !stream.burst.is_empty() {
            handled += stream.burst.len();
            stream.transmit(pool);
        }
        handled
    }

    fn release_held(&mut self, pool: &mut FramePool) {
        self.unsent = self.frames.len() as u64;
        for link_frame in self.frames.drain() {
            pool.free(link_frame.frame);
        }
    }

    fn holds_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    fn next_deadline(&self) -> Option<u64> {
        self.frames
            .peek()
            .map(|link_frame| link_frame.departure.0.0)
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        let LinkCounts {
            lost,
            overflowed,
            duplicated,
            not_duplicated,
            corrupted,
            reordered,
        } = self.emulation.counts();
        let rare = [
            ("not-duplicated", not_duplicated),
            (HELD_AT_STOP, self.unsent),
        ];
        let regular = [
            ("lost", lost),
            ("queue-full", overflowed),
            ("duplicated", duplicated),
            ("corrupted", corrupted),
            ("reordered", reordered),
        ];
        let rare = rare.into_iter().filter(|&(_, count)| count > 0);
        let all = regular.into_iter().chain(rare);
        all.map(|(name, count)| (name.to_owned(), count)).collect()
    }
}
