//! The rings that an AF_XDP socket shares with the kernel: one side writes entries and moves the
//! `producer` word, the other reads them and moves the `consumer` word (Documentation/networking/af_xdp.rst).
//!
//! Both words count entries since the start and wrap at 2^32; the slot is the count modulo the size, a
//! power of two. The logic is apart from where words and slots live, so that the same code runs against
//! the kernel's pages and, in the tests, against Loom's memory and a queue as a model.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use crate::cursor::Word;

/// The entries of a ring.
pub trait Slots {
    /// One of them.
    type Entry: Copy;
    /// Reads the entry that the count `at` stands for.
    fn read(&self, at: u32) -> Self::Entry;
    /// Writes it.
    fn write(&mut self, at: u32, entry: Self::Entry);
}

/// Our end of a ring in which we are the producer (fill, transmit).
#[derive(Debug)]
pub struct Producer<W, S> {
    producer: W,
    consumer: W,
    slots: S,
    size: u32,
    /// The next entry to write; what is before it and not yet published is ours alone.
    next: u32,
    /// The consumer word as it was when last looked at.
    consumed: u32,
}

impl<W: Word, S: Slots> Producer<W, S> {
    /// The end of a ring of `size` slots, a power of two.
    pub fn new(producer: W, consumer: W, slots: S, size: u32) -> Self {
        debug_assert!(size.is_power_of_two(), "{size} slots");
        let (next, consumed) = (producer.acquire(), consumer.acquire());
        Self {
            producer,
            consumer,
            slots,
            size,
            next,
            consumed,
        }
    }

    /// How many entries it holds at most.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// How many entries can be pushed now. Looks at the consumer's word each time: a fill ring that is
    /// refilled by what was once read starves without a word of complaint.
    #[inline]
    pub fn room(&mut self) -> u32 {
        self.consumed = self.consumer.acquire();
        self.size - self.next.wrapping_sub(self.consumed)
    }

    /// Writes one entry that [`Self::publish`] will show to the other side.
    ///
    /// Returns false, and does nothing, when the last [`Self::room`] is used up.
    #[inline]
    pub fn push(&mut self, entry: S::Entry) -> bool {
        if self.next.wrapping_sub(self.consumed) >= self.size {
            return false;
        }
        self.slots.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows everything pushed so far to the other side.
    #[inline]
    pub fn publish(&mut self) {
        self.producer.release(self.next);
    }

    /// How many entries the other side has not taken yet.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        self.size - self.room()
    }
}

/// Our end of a ring in which the kernel is the producer (receive, completion).
#[derive(Debug)]
pub struct Consumer<W, S> {
    producer: W,
    consumer: W,
    slots: S,
    /// The next entry to read.
    next: u32,
    /// The producer word as it was when last looked at.
    produced: u32,
}

impl<W: Word, S: Slots> Consumer<W, S> {
    /// The end of a ring with these slots.
    pub fn new(producer: W, consumer: W, slots: S) -> Self {
        let (next, produced) = (consumer.acquire(), producer.acquire());
        Self {
            producer,
            consumer,
            slots,
            next,
            produced,
        }
    }

    /// How many entries wait. Looks at the producer's word only when all known ones are read: that word
    /// is on a cache line which the other side writes for every burst.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        if self.next == self.produced {
            self.produced = self.producer.acquire();
        }
        self.produced.wrapping_sub(self.next)
    }

    /// Reads the next entry among those that the last [`Self::waiting`] found.
    #[inline]
    pub fn pop(&mut self) -> Option<S::Entry> {
        if self.next == self.produced {
            return None;
        }
        let entry = self.slots.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the slots of everything popped so far back to the other side.
    #[inline]
    pub fn release(&mut self) {
        self.consumer.release(self.next);
    }
}

/// A word in pages shared with the kernel.
#[derive(Debug)]
pub struct SharedWord(NonNull<AtomicU32>);

// SAFETY: the word is only ever reached through atomic operations, from whatever thread.
unsafe impl Send for SharedWord {}

impl SharedWord {
    /// The word at `place`.
    ///
    /// # Safety
    /// `place` is aligned, and mapped for reading and writing for as long as the value lives.
    pub unsafe fn new(place: NonNull<AtomicU32>) -> Self {
        Self(place)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: `new` was promised an aligned, mapped place, and every access is atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Word for SharedWord {
    #[inline]
    fn acquire(&self) -> u32 {
        self.word().acquire()
    }

    #[inline]
    fn release(&self, value: u32) {
        self.word().release(value);
    }
}

/// Entries in pages shared with the kernel.
#[derive(Debug)]
pub struct SharedSlots<T> {
    base: NonNull<T>,
    mask: u32,
}

// SAFETY: the entries are plain numbers, and the ring's two words hand each slot to one side at a time.
unsafe impl<T: Copy + Send> Send for SharedSlots<T> {}

impl<T: Copy> SharedSlots<T> {
    /// The `size` entries at `base`, a power of two.
    ///
    /// # Safety
    /// `base` is aligned, mapped for reading and writing for as long as the value lives, and every bit
    /// pattern is a `T`.
    pub unsafe fn new(base: NonNull<T>, size: u32) -> Self {
        Self {
            base,
            mask: size - 1,
        }
    }

    fn slot(&self, at: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the number of entries that `new` was promised.
        unsafe { self.base.add((at & self.mask) as usize) }
    }
}

impl<T: Copy> Slots for SharedSlots<T> {
    type Entry = T;

    #[inline]
    fn read(&self, at: u32) -> T {
        let slot = self.slot(at);
        // SAFETY: the slot is mapped and aligned, and the kernel leaves it alone until the consumer
        // word passes it.
        unsafe { slot.read() }
    }

    #[inline]
    fn write(&mut self, at: u32, entry: T) {
        let slot = self.slot(at);
        // SAFETY: the slot is mapped and aligned, and the kernel does not read it before the producer
        // word passes it.
        unsafe { slot.write(entry) }
    }
}

#[cfg(test)]
#[path = "xsk_ring_tests.rs"]
mod tests;
