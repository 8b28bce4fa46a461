//! Free frames of one thread.

use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::Frame;
use crate::sys::frame_memory::{KEEP, Memory};

/// Frames that move between pools in one operation.
pub(crate) type Batch = Burst;

impl Batch {
    /// Number of frames in a full batch.
    pub(crate) const FULL: usize = BURST_FRAMES;
}

/// Free frames of one thread: taken and returned without atomics, last in first out, so that the
/// next frame's cache lines are still in the cache.
///
/// An empty pool takes a batch from the memory's depot, and a pool with too many frames returns a
/// batch there. So frames that are received on one core and freed on another get back to the first.
/// The depot is lock-free, and used once per 32 frames, only while frames drift between cores.
/// Batches returned last are taken first, so that drifting frames stay in the cache.
pub struct Pool {
    memory: Memory,
    free: Vec<Frame>,
    /// Free frames kept before a batch is returned to the depot.
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

    /// Bytes that a pool allocates on the heap, all at its creation, with the default number of
    /// cached frames.
    pub const HEAP_BYTES: usize = (KEEP as usize + 2 * BURST_FRAMES) * size_of::<Frame>();

    /// Memory that the frames belong to.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Free frames of this pool, without those in the depot.
    #[must_use]
    pub fn at_hand(&self) -> usize {
        self.free.len()
    }

    /// Takes an empty frame that begins behind the headroom. None if all frames are in use.
    #[inline]
    pub fn allocate(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.restock();
        }
        let mut frame = self.free.pop()?;
        frame.reset(self.memory.headroom());
        Some(frame)
    }

    /// Appends empty frames to `burst`, at most `wanted` and until it is full; returns their
    /// number.
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
                debug_assert!(pushed.is_ok(), "the burst has room");
            }
            got += count;
        }
        got
    }

    /// Returns a frame to the pool.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        self.free.push(frame);
        if self.free.len() >= self.keep + BURST_FRAMES {
            self.share();
        }
    }

    /// Returns all frames of a burst to the pool, which leaves it empty; returns their number.
    #[inline]
    pub fn free_all(&mut self, burst: &mut Burst) -> usize {
        let count = burst.move_to(&mut self.free);
        if self.free.len() >= self.keep + BURST_FRAMES {
            self.share();
        }
        count
    }

    /// Returns the first `count` frames of a burst to the pool; returns their bytes.
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
        // Completes a short batch of an earlier pool first: the depot has a slot for each full
        // batch and for a few short ones.
        self.restock();
        while !self.free.is_empty() {
            self.leave_batch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::frame_memory::MemoryPlan;
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
            // Frames freed on another core come back, except those that its pool caches.
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

    /// Few distinct frames drift from one pool to another, whatever the size of the memory.
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
        // The frames that a pool caches, and some batches.
        assert!(
            seen.len() <= usize::from(KEEP) + 8 * BURST_FRAMES,
            "{}",
            seen.len()
        );
    }

    /// A thread caches as many free frames as planned, and returns the others to the depot.
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
