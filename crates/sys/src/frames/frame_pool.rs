//! Free frames of one thread.

use crate::frames::burst::{BURST_FRAMES, Burst};
use crate::frames::frame::Frame;
use crate::frames::frame_memory::{DEFAULT_CACHED_FRAMES, FrameRegion};

/// Frames that move between pools in one operation.
pub type Batch = Burst;

impl Batch {
    /// Number of frames in a full batch.
    pub const FULL_FRAMES: usize = BURST_FRAMES;
}

/// Free frames of one thread: taken and returned without atomics, last in first out, so that the
/// next frame's cache lines are still in the cache.
///
/// An empty pool takes a batch from the memory's depot, and a pool with too many frames returns a
/// batch there. So frames that are received on one core and freed on another get back to the first.
/// The depot is lock-free, and used once per 32 frames, only while frames drift between cores.
/// Batches returned last are taken first, so that drifting frames stay in the cache.
pub struct FramePool {
    memory: FrameRegion,
    free: Vec<Frame>,
    /// Free frames kept before a batch is returned to the depot.
    max_cached: usize,
}

impl FramePool {
    pub fn new(memory: FrameRegion) -> Self {
        let max_cached = usize::from(memory.cached_frames());
        Self {
            memory,
            free: Vec::with_capacity(max_cached + 2 * BURST_FRAMES),
            max_cached,
        }
    }

    /// Bytes that a pool allocates on the heap, all at its creation, with the default number of
    /// cached frames.
    pub const HEAP_BYTES: usize =
        (DEFAULT_CACHED_FRAMES as usize + 2 * BURST_FRAMES) * size_of::<Frame>();

    /// Memory that the frames belong to.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &FrameRegion {
        &self.memory
    }

    /// Free frames of this pool, without those in the depot.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// Takes an empty frame that begins behind the headroom. None if all frames are in use.
    #[inline]
    pub fn allocate(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.refill();
        }
        let mut frame = self.free.pop()?;
        frame.reset(self.memory.headroom());
        Some(frame)
    }

    /// Appends empty frames to `burst`, at most `max_frames` and until it is full; returns their
    /// number.
    pub fn allocate_burst(&mut self, burst: &mut Burst, max_frames: usize) -> usize {
        let max_frames = max_frames.min(burst.remaining());
        let mut allocated = 0;
        while allocated < max_frames {
            if self.free.is_empty() {
                self.refill();
            }
            let count = (max_frames - allocated).min(self.free.len());
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
            allocated += count;
        }
        allocated
    }

    /// Returns a frame to the pool.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        self.free.push(frame);
        if self.free.len() >= self.max_cached + BURST_FRAMES {
            self.return_surplus();
        }
    }

    /// Returns all frames of a burst to the pool, which leaves it empty; returns their number.
    #[inline]
    pub fn free_all(&mut self, burst: &mut Burst) -> usize {
        let count = burst.drain_into(&mut self.free);
        if self.free.len() >= self.max_cached + BURST_FRAMES {
            self.return_surplus();
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
    fn refill(&mut self) {
        if let Some(mut batch) = self.memory.take_batch() {
            batch.drain_into(&mut self.free);
        }
    }

    #[cold]
    fn return_surplus(&mut self) {
        while self.free.len() > self.max_cached {
            self.return_batch();
        }
    }

    fn return_batch(&mut self) {
        self.memory.put_batch(Batch::drain_tail(&mut self.free));
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        // Completes a short batch of an earlier pool first: the depot has a slot for each full
        // batch and for a few short ones.
        self.refill();
        while !self.free.is_empty() {
            self.return_batch();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::frames::frame_memory::MemoryPlan;

    fn memory(frames: u32) -> FrameRegion {
        FrameRegion::new(MemoryPlan {
            frames,
            ..MemoryPlan::default()
        })
        .unwrap()
    }

    fn all(pool: &mut FramePool) -> Vec<Frame> {
        std::iter::from_fn(|| pool.allocate()).collect()
    }

    #[test]
    fn no_frame_is_lost_or_given_twice() {
        let memory = memory(1000);
        let (mut allocating, mut freeing) = (memory.pool(), memory.pool());
        for _ in 0..3 {
            let frames = all(&mut allocating);
            let distinct: HashSet<u32> = frames.iter().map(Frame::index).collect();
            assert_eq!((frames.len(), distinct.len()), (1000, 1000));
            assert!(allocating.allocate().is_none());
            // Frames freed on another core come back, except those that its pool caches.
            for frame in frames {
                freeing.free(frame);
            }
            assert!(freeing.free_frames() < usize::from(DEFAULT_CACHED_FRAMES) + BURST_FRAMES);
            let back = all(&mut allocating);
            assert_eq!(back.len() + freeing.free_frames(), 1000);
            for frame in back {
                allocating.free(frame);
            }
            drop(std::mem::replace(&mut freeing, memory.pool()));
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
    fn drifting_frames_are_reused() {
        let memory = memory(10_000);
        let (mut from, mut to) = (memory.pool(), memory.pool());
        let mut used = HashSet::new();
        for _ in 0..20_000 {
            let frame = from.allocate().unwrap();
            used.insert(frame.index());
            to.free(frame);
        }
        // The frames that a pool caches, and some batches.
        assert!(
            used.len() <= usize::from(DEFAULT_CACHED_FRAMES) + 8 * BURST_FRAMES,
            "{}",
            used.len()
        );
    }

    /// A thread caches as many free frames as planned, and returns the others to the depot.
    #[test]
    fn a_pool_caches_the_planned_number() {
        for (planned, expected) in [(32, 32), (100, 100), (512, 512), (1, 32), (9999, 512)] {
            let memory = FrameRegion::new(MemoryPlan {
                frames: 2000,
                cached_frames: planned,
                ..MemoryPlan::default()
            })
            .unwrap();
            let (mut allocating, mut freeing) = (memory.pool(), memory.pool());
            for frame in all(&mut allocating) {
                freeing.free(frame);
            }
            assert!(
                (expected - BURST_FRAMES + 1..expected + BURST_FRAMES)
                    .contains(&freeing.free_frames()),
                "{planned}: {}",
                freeing.free_frames()
            );
            assert_eq!(all(&mut allocating).len() + freeing.free_frames(), 2000);
        }
    }
}
