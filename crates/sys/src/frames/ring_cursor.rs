//! Positions of a single-producer single-consumer ring, independent of where its slots are.
//!
//! Two indices are shared: `tail`, written by the sender, counts all items ever put in; `head`,
//! written by the receiver, counts all items ever taken out. Both wrap at 2^32. Each side keeps its
//! own position and a cached copy of the other's, and reads the shared index only when the cached
//! one does not suffice. As long as both sides are busy, a burst transfers one cache line in each
//! direction.

use std::sync::atomic::{AtomicU32, Ordering};

/// Index shared by two sides. A trait so that tests can use a checked implementation (loom).
pub trait SharedIndex {
    /// Loads with acquire ordering: all writes before the matching `release` are visible.
    fn acquire(&self) -> u32;
    /// Stores with release ordering.
    fn release(&self, value: u32);
}

impl SharedIndex for AtomicU32 {
    #[inline]
    fn acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// A value on cache lines of its own (128 B: adjacent lines are fetched in pairs).
#[repr(C, align(128))]
#[derive(Default)]
pub struct PaddedIndex<W>(pub W);

/// Shared indices of one ring.
#[repr(C)]
#[derive(Default)]
pub struct RingIndices<W = AtomicU32> {
    pub tail: PaddedIndex<W>,
    pub head: PaddedIndex<W>,
}

/// Sender's position in a ring.
pub struct SendCursor {
    /// Number of items published so far.
    position: u32,
    /// `head` as last read.
    cached_head: u32,
    capacity: u32,
}

impl SendCursor {
    /// Cursor of a ring of `capacity` slots, with both indices at `position`.
    pub fn new(position: u32, capacity: u32) -> Self {
        Self {
            position,
            cached_head: position,
            capacity,
        }
    }

    /// Index of the next item to write, not masked.
    #[inline]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Returns the number of free slots from [`SendCursor::position`] on, at most `max_slots`.
    ///
    /// An impossible `head` (a peer process may write anything) counts as a full ring.
    #[inline]
    pub fn free_slots<W: SharedIndex>(&mut self, indices: &RingIndices<W>, max_slots: u32) -> u32 {
        let mut used = self.position.wrapping_sub(self.cached_head);
        if self.capacity - used < max_slots {
            let head = indices.head.0.acquire();
            used = self.position.wrapping_sub(head);
            if used > self.capacity {
                return 0;
            }
            self.cached_head = head;
        }
        max_slots.min(self.capacity - used)
    }

    /// Returns the number of published items that the receiver has not released; 0 if its `head` is
    /// impossible.
    pub fn unreleased<W: SharedIndex>(&mut self, indices: &RingIndices<W>) -> u32 {
        let waiting = self.position.wrapping_sub(indices.head.0.acquire());
        match waiting <= self.capacity {
            true => waiting,
            false => 0,
        }
    }

    /// Returns the number of free slots according to the cached `head`.
    #[inline]
    pub fn cached_free_slots(&self) -> u32 {
        self.capacity
            .saturating_sub(self.position.wrapping_sub(self.cached_head))
    }

    /// Makes `count` filled slots visible to the receiver.
    #[inline]
    pub fn publish<W: SharedIndex>(&mut self, indices: &RingIndices<W>, count: u32) {
        self.position = self.position.wrapping_add(count);
        indices.tail.0.release(self.position);
    }
}

/// Receiver's position in a ring.
pub struct ReceiveCursor {
    /// Number of items released so far.
    position: u32,
    /// `tail` as last read.
    cached_tail: u32,
    capacity: u32,
}

impl ReceiveCursor {
    /// Cursor of a ring of `capacity` slots, with both indices at `position`.
    pub fn new(position: u32, capacity: u32) -> Self {
        Self {
            position,
            cached_tail: position,
            capacity,
        }
    }

    /// Index of the next item to read, not masked.
    #[inline]
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Returns the number of filled slots from [`ReceiveCursor::position`] on, at most `max_slots`.
    ///
    /// An impossible `tail` counts as an empty ring.
    #[inline]
    pub fn filled_slots<W: SharedIndex>(
        &mut self,
        indices: &RingIndices<W>,
        max_slots: u32,
    ) -> u32 {
        let mut waiting = self.cached_tail.wrapping_sub(self.position);
        if waiting < max_slots {
            let tail = indices.tail.0.acquire();
            waiting = tail.wrapping_sub(self.position);
            if waiting > self.capacity {
                return 0;
            }
            self.cached_tail = tail;
        }
        max_slots.min(waiting)
    }

    /// Returns `count` emptied slots to the sender.
    #[inline]
    pub fn release_slots<W: SharedIndex>(&mut self, indices: &RingIndices<W>, count: u32) {
        self.position = self.position.wrapping_add(count);
        indices.head.0.release(self.position);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn impossible_indices_stop_the_ring_without_harm() {
        let indices: RingIndices = RingIndices::default();
        let (mut sending, mut receiving) = (SendCursor::new(0, 8), ReceiveCursor::new(0, 8));
        indices.head.0.release(77);
        indices.tail.0.release(99);
        // The sender still uses the cached head; the ring is full after that.
        assert_eq!(sending.free_slots(&indices, 8), 8);
        sending.publish(&indices, 8);
        assert_eq!(sending.free_slots(&indices, 1), 0);
        indices.tail.0.release(99);
        assert_eq!(receiving.filled_slots(&indices, 1), 0);
    }

    proptest! {
        /// For any sequence of steps: no item is received twice, and no slot is overwritten before
        /// its release.
        #[test]
        fn both_views_agree(
            start in any::<u32>(),
            capacity in 1u32..40,
            steps in prop::collection::vec((any::<bool>(), 0u32..40), 0..200),
        ) {
            let indices: RingIndices = RingIndices::default();
            indices.tail.0.release(start);
            indices.head.0.release(start);
            let (mut sending, mut receiving) =
                (SendCursor::new(start, capacity), ReceiveCursor::new(start, capacity));
            let mut inside = 0;
            for (send, wanted) in steps {
                if send {
                    let room = sending.free_slots(&indices, wanted);
                    prop_assert_eq!(room, wanted.min(capacity - inside));
                    sending.publish(&indices, room);
                    inside += room;
                } else {
                    let filled = receiving.filled_slots(&indices, wanted);
                    prop_assert_eq!(filled, wanted.min(inside));
                    receiving.release_slots(&indices, filled);
                    inside -= filled;
                }
            }
        }
    }
}
