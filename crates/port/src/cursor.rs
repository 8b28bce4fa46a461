//! Positions of a ring between one sender and one receiver, apart from where its slots are.
//!
//! Two words are shared: `tail`, written by the sender, counts what was ever put in; `head`, written by
//! the receiver, what was ever taken out. Both wrap at 2^32. Each side keeps its own position and the
//! other's as last seen, and reads the shared word only when what it saw is not enough: as long as both
//! sides are busy, a burst costs one cache line moved each way.

use std::sync::atomic::{AtomicU32, Ordering};

/// A word that two sides share; a trait so that tests can exchange it for one that is checked.
pub(crate) trait Word {
    /// Reads what the other side released, and sees all that it wrote before.
    fn acquire(&self) -> u32;
    /// Writes, so that whoever acquires it sees all that was written before.
    fn release(&self, value: u32);
}

impl Word for AtomicU32 {
    #[inline]
    fn acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// A word on cache lines of its own (128 B: adjacent lines are fetched in pairs).
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Alone<W>(pub W);

/// The shared words of one ring.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Indices<W = AtomicU32> {
    pub tail: Alone<W>,
    pub head: Alone<W>,
}

/// The sender's view.
pub(crate) struct Sending {
    /// What was put in and released.
    position: u32,
    /// `head` as last read.
    seen: u32,
    capacity: u32,
}

impl Sending {
    /// The view of a ring of `capacity` slots that stands at `position`.
    pub(crate) fn at(position: u32, capacity: u32) -> Self {
        Self {
            position,
            seen: position,
            capacity,
        }
    }

    /// The view of a ring that another sender has used before; whatever that one did not publish is
    /// forgotten.
    ///
    /// None when the shared words cannot be those of a ring.
    pub(crate) fn resume<W: Word>(indices: &Indices<W>, capacity: u32) -> Option<Self> {
        let (position, seen) = (indices.tail.0.acquire(), indices.head.0.acquire());
        (position.wrapping_sub(seen) <= capacity).then_some(Self {
            position,
            seen,
            capacity,
        })
    }

    /// Where the next item goes, unmasked.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.position
    }

    /// How many of `wanted` slots are free from [`Sending::position`] on.
    ///
    /// A `head` that cannot be (a peer of another process may write anything) counts as a full ring.
    #[inline]
    pub(crate) fn room<W: Word>(&mut self, indices: &Indices<W>, wanted: u32) -> u32 {
        let mut used = self.position.wrapping_sub(self.seen);
        if self.capacity - used < wanted {
            let head = indices.head.0.acquire();
            used = self.position.wrapping_sub(head);
            if used > self.capacity {
                return 0;
            }
            self.seen = head;
        }
        wanted.min(self.capacity - used)
    }

    /// How many slots are free by what was last seen of the receiver.
    #[inline]
    pub(crate) fn known_room(&self) -> u32 {
        self.capacity
            .saturating_sub(self.position.wrapping_sub(self.seen))
    }

    /// Hands `count` filled slots to the receiver.
    #[inline]
    pub(crate) fn publish<W: Word>(&mut self, indices: &Indices<W>, count: u32) {
        self.position = self.position.wrapping_add(count);
        indices.tail.0.release(self.position);
    }
}

/// The receiver's view.
pub(crate) struct Receiving {
    /// What was taken out and released.
    position: u32,
    /// `tail` as last read.
    seen: u32,
    capacity: u32,
}

impl Receiving {
    /// The view of a ring of `capacity` slots that stands at `position`.
    pub(crate) fn at(position: u32, capacity: u32) -> Self {
        Self {
            position,
            seen: position,
            capacity,
        }
    }

    /// The view of a ring that another receiver has used before; whatever that one did not give back
    /// comes again.
    ///
    /// None when the shared words cannot be those of a ring.
    pub(crate) fn resume<W: Word>(indices: &Indices<W>, capacity: u32) -> Option<Self> {
        let (seen, position) = (indices.tail.0.acquire(), indices.head.0.acquire());
        (seen.wrapping_sub(position) <= capacity).then_some(Self {
            position,
            seen,
            capacity,
        })
    }

    /// Where the next item is, unmasked.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.position
    }

    /// How many of `wanted` slots are filled from [`Receiving::position`] on.
    ///
    /// A `tail` that cannot be counts as an empty ring.
    #[inline]
    pub(crate) fn filled<W: Word>(&mut self, indices: &Indices<W>, wanted: u32) -> u32 {
        let mut waiting = self.seen.wrapping_sub(self.position);
        if waiting < wanted {
            let tail = indices.tail.0.acquire();
            waiting = tail.wrapping_sub(self.position);
            if waiting > self.capacity {
                return 0;
            }
            self.seen = tail;
        }
        wanted.min(waiting)
    }

    /// Gives `count` emptied slots back to the sender.
    #[inline]
    pub(crate) fn give_back<W: Word>(&mut self, indices: &Indices<W>, count: u32) {
        self.position = self.position.wrapping_add(count);
        indices.head.0.release(self.position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_that_cannot_be_stop_the_ring_without_harm() {
        let indices: Indices = Indices::default();
        let (mut sending, mut receiving) = (Sending::at(0, 8), Receiving::at(0, 8));
        indices.head.0.release(77);
        indices.tail.0.release(99);
        // The sender still trusts the head it knew; it is full after that.
        assert_eq!(sending.room(&indices, 8), 8);
        sending.publish(&indices, 8);
        assert_eq!(sending.room(&indices, 1), 0);
        indices.tail.0.release(99);
        assert_eq!(receiving.filled(&indices, 1), 0);
    }

    proptest! {
        /// Whatever both sides do, nothing is given twice, and no slot is written before it was emptied.
        #[test]
        fn both_views_agree(
            start in any::<u32>(),
            capacity in 1u32..40,
            steps in prop::collection::vec((any::<bool>(), 0u32..40), 0..200),
        ) {
            let indices: Indices = Indices::default();
            indices.tail.0.release(start);
            indices.head.0.release(start);
            let (mut sending, mut receiving) =
                (Sending::at(start, capacity), Receiving::at(start, capacity));
            let mut inside = 0;
            for (send, wanted) in steps {
                if send {
                    let room = sending.room(&indices, wanted);
                    prop_assert_eq!(room, wanted.min(capacity - inside));
                    sending.publish(&indices, room);
                    inside += room;
                } else {
                    let filled = receiving.filled(&indices, wanted);
                    prop_assert_eq!(filled, wanted.min(inside));
                    receiving.give_back(&indices, filled);
                    inside -= filled;
                }
            }
        }
    }
}
