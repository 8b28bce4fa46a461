//! Free frames of one thread.

use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::Frame;
use crate::sys::memory::{KEEP, Memory};

/// Frames that move between pools at once.
pub(crate) type Batch = Burst;

impl Batch {
    /// Frames of a full batch.
    pub(crate) const FULL: usize = BURST_FRAMES;
}

/// Free frames of one thread: taken and given back without atomics, last in first out, so that the
/// next frame's lines are still in the cache.
///
/// A pool that runs out takes a batch from the memory's depot, and one that has too many leaves a batch
/// there: frames received on one core and freed on another find their way back. The depot is
/// lock-free, touched once for 32 frames and only while frames drift between cores; what was left there last
/// is taken first, so that frames which drift stay in the cache.
pub struct Pool {
    memory: Memory,
    free: Vec<Frame>,
    /// Free frames it keeps before it gives a batch to the others.
    keep: usize,
}

impl Pool {
    pub(crate) fn new(memory: Memory) -> Self {
        let keep = usize::from(memory.cached_frames());
        Self {
            memory,
            free: Vec::with_capacity(keep + 2 * BURST_FRAMES),
            keep,
        }
    }

    /// What a pool takes from the heap, in bytes, unless the memory's plan has it keep another number of
    /// frames: all of it when it is made.
    pub const HEAP_BYTES: usize = (KEEP as usize + 2 * BURST_FRAMES) * size_of::<Frame>();

    /// The memory that the frames are of.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Free frames at hand, without those that other threads left for all.
    #[must_use]
    pub fn at_hand(&self) -> usize {
        self.free.len()
    }

    /// A frame without bytes, behind the headroom. None when all are in use.
    #[inline]
    pub fn allocate(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.restock();
        }
        let mut frame = self.free.pop()?;
        frame.reset(self.memory.headroom());
        Some(frame)
    }

    /// Adds frames without bytes to `burst`, at most `wanted` and as it has room; returns how many.
    pub fn allocate_burst(&mut self, burst: &mut Burst, wanted: usize) -> usize {
        let wanted = wanted.min(burst.room());
        let mut got = 0;
        while got < wanted {
            if self.free.is_empty() {
                self.restock();
            }
            let count = (wanted - got).min(self.free.len());
            if count == 0 {
                break;
            }
            let headroom = self.memory.headroom();
            let from = self.free.len() - count;
            for mut frame in self.free.drain(from..) {
                frame.reset(headroom);
                let pushed = burst.push(frame);
                debug_assert!(pushed.is_ok(), "the room was asked for");
            }
            got += count;
        }
        got
    }

    /// Takes a frame back.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        self.free.push(frame);
        if self.free.len() >= self.keep + BURST_FRAMES {
            self.share();
        }
    }

    /// Takes all frames of a burst back, which is empty then; returns how many they were.
    #[inline]
    pub fn free_all(&mut self, burst: &mut Burst) -> usize {
        let count = burst.move_to(&mut self.free);
        if self.free.len() >= self.keep + BURST_FRAMES {
            self.share();
        }
        count
    }

    /// Takes the first `count` frames of a burst back; returns their bytes.
    #[inline]
    pub fn free_front(&mut self, burst: &mut Burst, count: usize) -> u64 {
        let (mut freed, mut bytes) = (0, 0);
        burst.take_front(|frame| {
            if freed == count {
                return Err(frame);
            }
            freed += 1;
            bytes += u64::from(frame.len());
            self.free(frame);
            Ok(())
        });
        bytes
    }

    #[cold]
    fn restock(&mut self) {
        if let Some(mut batch) = self.memory.take_batch() {
            batch.move_to(&mut self.free);
        }
    }

    #[cold]
    fn share(&mut self) {
        while self.free.len() > self.keep {
            self.leave_batch();
        }
    }

    fn leave_batch(&mut self) {
        self.memory.put_batch(Batch::of_last(&mut self.free));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // What an earlier pool left short is filled up first: the depot has a place for each full batch
        // and for a few short ones.
        self.restock();
        while !self.free.is_empty() {
            self.leave_batch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::MemoryPlan;
    use std::collections::HashSet;

    fn memory(frames: u32) -> Memory {
        Memory::new(MemoryPlan {
            frames,
            ..MemoryPlan::default()
        })
        .unwrap()
    }

    fn all(pool: &mut Pool) -> Vec<Frame> {
        std::iter::from_fn(|| pool.allocate()).collect()
    }

    #[test]
    fn no_frame_is_lost_or_given_twice() {
        let memory = memory(1000);
        let (mut near, mut far) = (memory.pool(), memory.pool());
        for _ in 0..3 {
            let frames = all(&mut near);
            let distinct: HashSet<u32> = frames.iter().map(Frame::index).collect();
            assert_eq!((frames.len(), distinct.len()), (1000, 1000));
            assert!(near.allocate().is_none());
            // Freed on another core, they come back but for what that core keeps.
            for frame in frames {
                far.free(frame);
            }
            assert!(far.at_hand() < usize::from(KEEP) + BURST_FRAMES);
            let back = all(&mut near);
            assert_eq!(back.len() + far.at_hand(), 1000);
            for frame in back {
                near.free(frame);
            }
            drop(std::mem::replace(&mut far, memory.pool()));
        }
    }

    #[test]
    fn a_fresh_frame_is_empty_behind_the_headroom() {
        let memory = memory(1);
        let mut pool = memory.pool();
        let mut frame = pool.allocate().unwrap();
        frame.set_len(99);
        frame.set_offset(3);
        pool.free(frame);
        let frame = pool.allocate().unwrap();
        assert_eq!((frame.len(), frame.offset()), (0, memory.headroom()));
        pool.free(frame);
    }

    #[test]
    fn a_burst_is_filled_as_far_as_frames_go() {
        let memory = memory(40);
        let mut pool = memory.pool();
        let mut burst = Burst::new();
        assert_eq!(pool.allocate_burst(&mut burst, 99), 32);
        let mut rest = Burst::new();
        assert_eq!(pool.allocate_burst(&mut rest, 32), 8);
        assert_eq!(
            (pool.free_all(&mut burst), pool.free_all(&mut rest)),
            (32, 8)
        );
    }

    /// Frames that drift from one pool to another are few, however many the memory has.
    #[test]
    fn drifting_frames_are_the_same_again_and_again() {
        let memory = memory(10_000);
        let (mut from, mut to) = (memory.pool(), memory.pool());
        let mut seen = HashSet::new();
        for _ in 0..20_000 {
            let frame = from.allocate().unwrap();
            seen.insert(frame.index());
            to.free(frame);
        }
        // What a pool keeps, and some batches.
        assert!(
            seen.len() <= usize::from(KEEP) + 8 * BURST_FRAMES,
            "{}",
            seen.len()
        );
    }

    /// A thread keeps as many free frames as the plan says, and gives the rest to the others.
    #[test]
    fn a_pool_keeps_what_it_is_told_to() {
        for (wish, kept) in [(32, 32), (100, 100), (512, 512), (1, 32), (9999, 512)] {
            let memory = Memory::new(MemoryPlan {
                frames: 2000,
                cached_frames: wish,
                ..MemoryPlan::default()
            })
            .unwrap();
            let (mut near, mut far) = (memory.pool(), memory.pool());
            for frame in all(&mut near) {
                far.free(frame);
            }
            assert!(
                (kept - BURST_FRAMES + 1..kept + BURST_FRAMES).contains(&far.at_hand()),
                "{wish}: {}",
                far.at_hand()
            );
            assert_eq!(all(&mut near).len() + far.at_hand(), 2000);
        }
    }
}
