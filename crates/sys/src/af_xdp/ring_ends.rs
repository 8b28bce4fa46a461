//! Rings that an AF_XDP socket shares with the kernel: one side writes entries and advances the
//! `producer` index, the other reads them and advances the `consumer` index
//! (Documentation/networking/af_xdp.rst).
//!
//! Both indices count entries since the start and wrap at 2^32; the slot is the count modulo the
//! size, a power of two. The logic is independent of where indices and slots are, so that the same
//! code runs on the kernel's pages and, in tests, with loom and with a queue as the model.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use crate::frames::ring_cursor::SharedIndex;

/// Storage of a ring's entries.
pub trait RingEntries {
    /// Type of an entry.
    type Entry: Copy;
    /// Reads the entry with the index `at`.
    fn read(&self, at: u32) -> Self::Entry;
    /// Writes the entry with the index `at`.
    fn write(&mut self, at: u32, entry: Self::Entry);
}

/// Producer side of a ring (fill, transmit).
#[derive(Debug)]
pub struct RingProducer<W, S> {
    producer: W,
    consumer: W,
    slots: S,
    size: u32,
    /// Next entry to write; entries before it that are not published belong to this side.
    next: u32,
    /// Consumer index as last read.
    cached_consumer: u32,
}

impl<W: SharedIndex, S: RingEntries> RingProducer<W, S> {
    /// Producer side of a ring of `size` slots, a power of two.
    pub fn new(producer: W, consumer: W, slots: S, size: u32) -> Self {
        debug_assert!(size.is_power_of_two(), "{size} slots");
        let (next, cached_consumer) = (producer.acquire(), consumer.acquire());
        Self {
            producer,
            consumer,
            slots,
            size,
            next,
            cached_consumer,
        }
    }

    /// Maximum number of entries.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of entries that can be pushed now. Reads the consumer index on each call:
    /// a fill ring that is refilled by a cached index starves, and no counter shows it.
    #[inline]
    pub fn free_slots(&mut self) -> u32 {
        self.cached_consumer = self.consumer.acquire();
        self.size - self.next.wrapping_sub(self.cached_consumer)
    }

    /// Writes one entry; visible to the other side after [`Self::publish`].
    ///
    /// Returns false without effect if the last [`Self::free_slots`] is used up.
    #[inline]
    pub fn push(&mut self, entry: S::Entry) -> bool {
        if self.next.wrapping_sub(self.cached_consumer) >= self.size {
            return false;
        }
        self.slots.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes all entries pushed so far visible to the other side.
    #[inline]
    pub fn publish(&mut self) {
        self.producer.release(self.next);
    }

    /// Number of entries that the other side has not taken yet.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        self.size - self.free_slots()
    }
}

/// Consumer side of a ring (receive, completion).
#[derive(Debug)]
pub struct RingConsumer<W, S> {
    producer: W,
    consumer: W,
    slots: S,
    /// Next entry to read.
    next: u32,
    /// Producer index as last read.
    cached_producer: u32,
}

impl<W: SharedIndex, S: RingEntries> RingConsumer<W, S> {
    /// Consumer side of a ring with these slots.
    pub fn new(producer: W, consumer: W, slots: S) -> Self {
        let (next, cached_producer) = (consumer.acquire(), producer.acquire());
        Self {
            producer,
            consumer,
            slots,
            next,
            cached_producer,
        }
    }

    /// Returns the number of entries available. Reads the producer index only when all known
    /// entries are read: it is on a cache line that the other side writes for every burst.
    #[inline]
    pub fn available(&mut self) -> u32 {
        if self.next == self.cached_producer {
            self.cached_producer = self.producer.acquire();
        }
        self.cached_producer.wrapping_sub(self.next)
    }

    /// Reads the next entry of those counted by the last [`Self::available`].
    #[inline]
    pub fn pop(&mut self) -> Option<S::Entry> {
        if self.next == self.cached_producer {
            return None;
        }
        let entry = self.slots.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Returns the slots of all entries popped so far to the other side.
    #[inline]
    pub fn release(&mut self) {
        self.consumer.release(self.next);
    }
}

/// Ring index in pages shared with the kernel.
#[derive(Debug)]
pub struct KernelIndex(NonNull<AtomicU32>);

// SAFETY: the index is accessed by atomic operations only, from any thread.
unsafe impl Send for KernelIndex {}

impl KernelIndex {
    /// Index at the address `pointer`.
    ///
    /// # Safety
    /// `pointer` is aligned, and mapped for reading and writing for as long as the value lives.
    pub unsafe fn new(pointer: NonNull<AtomicU32>) -> Self {
        Self(pointer)
    }

    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: the caller of `new` promised an aligned, mapped address, and every access is
        // atomic.
        unsafe { self.0.as_ref() }
    }
}

impl SharedIndex for KernelIndex {
    #[inline]
    fn acquire(&self) -> u32 {
        self.atomic().acquire()
    }

    #[inline]
    fn release(&self, value: u32) {
        self.atomic().release(value);
    }
}

/// Ring entries in pages shared with the kernel.
#[derive(Debug)]
pub struct KernelSlots<T> {
    base: NonNull<T>,
    mask: u32,
}

// SAFETY: the entries are plain integers, and the ring's indices give each slot to one side at a
// time.
unsafe impl<T: Copy + Send> Send for KernelSlots<T> {}

impl<T: Copy> KernelSlots<T> {
    /// The `size` entries at `base`; `size` is a power of two.
    ///
    /// # Safety
    /// `base` is aligned, mapped for reading and writing for as long as the value lives, and every
    /// bit pattern is a valid `T`.
    pub unsafe fn new(base: NonNull<T>, size: u32) -> Self {
        Self {
            base,
            mask: size - 1,
        }
    }

    fn slot(&self, at: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the number of entries promised to `new`.
        unsafe { self.base.add((at & self.mask) as usize) }
    }
}

impl<T: Copy> RingEntries for KernelSlots<T> {
    type Entry = T;

    #[inline]
    fn read(&self, at: u32) -> T {
        let slot = self.slot(at);
        // SAFETY: the slot is mapped and aligned, and the kernel does not write it before the
        // consumer index passes it.
        unsafe { slot.read() }
    }

    #[inline]
    fn write(&mut self, at: u32, entry: T) {
        let slot = self.slot(at);
        // SAFETY: the slot is mapped and aligned, and the kernel does not read it before the
        // producer index passes it.
        unsafe { slot.write(entry) }
    }
}

#[cfg(test)]
mod tests;
