//! Sender and receiver of a ring of slots that two processes share.

use std::sync::Arc;

use super::{ShmLayout, ShmRing, ShmSegment};
use crate::frames::ring_cursor::{ReceiveCursor, RingIndices, SendCursor, SharedIndex};

/// A ring of slots. A trait so that tests can use a checked implementation (loom).
pub trait SlotRing {
    /// Type of the shared indices.
    type Index: SharedIndex;
    /// Number and size of the slots.
    fn layout(&self) -> ShmLayout;
    /// Shared indices of the ring.
    fn indices(&self) -> &RingIndices<Self::Index>;
    /// Copies a frame and its length into a slot.
    ///
    /// # Safety
    /// The other side neither reads nor writes this slot meanwhile.
    unsafe fn write_slot(&self, slot: usize, frame: &[u8]);
    /// Bytes of the frame in a slot, as written by the other side.
    fn length(&self, slot: usize) -> usize;
    /// Copies the first bytes of a slot to `frame`.
    ///
    /// # Safety
    /// The other side does not write this slot meanwhile.
    unsafe fn read_slot(&self, slot: usize, frame: &mut [u8]);
    /// Prefetches the first bytes of a slot for reading.
    fn prefetch_for_read(&self, slot: usize, bytes: usize) {
        let _ = (slot, bytes);
    }
    /// Prefetches the first bytes of a slot and its length for writing.
    fn prefetch_for_write(&self, slot: usize, bytes: usize) {
        let _ = (slot, bytes);
    }
}

/// Bytes prefetched ahead of the copy: as many cache lines as a core can have in flight.
const PREFETCH_WINDOW_BYTES: usize = 2048;

/// Number of frames of `bytes` that are prefetched ahead of the one copied.
#[inline]
pub fn prefetch_distance(bytes: usize) -> u32 {
    (PREFETCH_WINDOW_BYTES / bytes.max(1)).clamp(1, 32) as u32
}

/// Sending end of a ring of slots.
pub struct SlotSender<R = ShmRing> {
    ring: R,
    cursor: SendCursor,
    mask: u32,
}

impl SlotSender {
    /// Sender of ring `ring_index` of new memory.
    pub fn new(segment: Arc<ShmSegment>, ring_index: usize) -> Self {
        Self::with_ring(ShmRing::new(segment, ring_index))
    }

    /// Sends the frames of another ring that its receiver has not taken, as far as they fit.
    pub fn take_over(&mut self, mut abandoned: Self) {
        let mut frame = vec![0; abandoned.slot_bytes()];
        let waiting = abandoned.cursor.unreleased(abandoned.ring.indices());
        for back in (1..=waiting).rev() {
            let slot = abandoned.cursor.position().wrapping_sub(back) & abandoned.mask;
            let bytes = abandoned.ring.length(slot as usize);
            // The receiver may have written any length.
            let Some(frame) = frame
                .get_mut(..bytes)
                .filter(|_| bytes <= self.slot_bytes())
            else {
                continue;
            };
            if self.free_slots(1) == 0 {
                return;
            }
            // SAFETY: only the sender writes a slot that was published and not released; a receiver
            // that violates this corrupts the bytes of the frame.
            unsafe { abandoned.ring.read_slot(slot as usize, frame) };
            self.write(0, frame);
            self.publish(1);
        }
    }
}

impl<R: SlotRing> SlotSender<R> {
    /// Sender of a new ring.
    pub fn with_ring(ring: R) -> Self {
        let cursor = SendCursor::new(0, ring.layout().capacity);
        let mask = ring.layout().slots() as u32 - 1;
        Self { ring, cursor, mask }
    }

    /// Maximum bytes of a frame.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.ring.layout().slot_bytes as usize
    }

    /// Returns the number of free slots, at most `max_frames`.
    #[inline]
    pub fn free_slots(&mut self, max_frames: u32) -> u32 {
        self.cursor.free_slots(self.ring.indices(), max_frames)
    }

    /// Copies a frame into the slot `ahead` positions after the cursor. The slot must be free (see
    /// [`SlotSender::free_slots`]) and large enough ([`SlotSender::slot_bytes`]).
    #[inline]
    pub fn write(&mut self, ahead: u32, frame: &[u8]) {
        let slot = (self.cursor.position().wrapping_add(ahead) & self.mask) as usize;
        // SAFETY: `free_slots` returned that the other side has emptied the slot; it reads it only
        // after `publish`.
        unsafe { self.ring.write_slot(slot, frame) };
    }

    /// Makes `count` written slots visible to the receiver.
    #[inline]
    pub fn publish(&mut self, count: u32) {
        self.cursor.publish(self.ring.indices(), count);
    }

    /// Prefetches the next `count` slots that are known to be empty, for frames of `bytes`. Lines
    /// that the other side has yet to read are not taken from its cache.
    #[inline]
    pub fn prefetch_for_write(&self, count: u32, bytes: usize) {
        for ahead in 0..count.min(self.cursor.cached_free_slots()) {
            let slot = self.cursor.position().wrapping_add(ahead) & self.mask;
            self.ring.prefetch_for_write(slot as usize, bytes);
        }
    }
}

/// Receiving end of a ring of slots.
pub struct SlotReceiver<R = ShmRing> {
    ring: R,
    cursor: ReceiveCursor,
    mask: u32,
}

impl SlotReceiver {
    /// Receiver of ring `ring_index` of new memory.
    pub fn new(segment: Arc<ShmSegment>, ring_index: usize) -> Self {
        Self::with_ring(ShmRing::new(segment, ring_index))
    }
}

impl<R: SlotRing> SlotReceiver<R> {
    /// Receiver of a new ring.
    pub fn with_ring(ring: R) -> Self {
        let cursor = ReceiveCursor::new(0, ring.layout().capacity);
        let mask = ring.layout().slots() as u32 - 1;
        Self { ring, cursor, mask }
    }

    /// Frames of the ring.
    pub fn capacity(&self) -> u32 {
        self.ring.layout().capacity
    }

    /// Maximum bytes of a frame.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.ring.layout().slot_bytes as usize
    }

    /// Returns the number of filled slots, at most `max_frames`.
    #[inline]
    pub fn filled_slots(&mut self, max_frames: u32) -> u32 {
        self.cursor.filled_slots(self.ring.indices(), max_frames)
    }

    /// Bytes of the frame in the slot `ahead` positions after the cursor; not trusted: may exceed
    /// the slot.
    #[inline]
    pub fn length(&self, ahead: u32) -> usize {
        self.ring.length(self.slot(ahead))
    }

    /// Copies the first bytes of the slot `ahead` positions after the cursor: at most
    /// [`SlotReceiver::slot_bytes`].
    #[inline]
    pub fn read(&self, ahead: u32, frame: &mut [u8]) {
        // SAFETY: `filled_slots` returned that the other side has published the slot; it writes it
        // only after `release_slots`.
        unsafe { self.ring.read_slot(self.slot(ahead), frame) };
    }

    /// Prefetches the bytes of the slot `ahead` positions after the cursor.
    #[inline]
    pub fn prefetch_for_read(&self, ahead: u32, bytes: usize) {
        self.ring.prefetch_for_read(self.slot(ahead), bytes);
    }

    /// Returns `count` slots to the sender.
    #[inline]
    pub fn release_slots(&mut self, count: u32) {
        self.cursor.release_slots(self.ring.indices(), count);
    }

    #[inline]
    fn slot(&self, ahead: u32) -> usize {
        (self.cursor.position().wrapping_add(ahead) & self.mask) as usize
    }
}

#[cfg(test)]
mod weak_memory {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::frames::ring_cursor::PaddedIndex;

    type LoomIndex = loom::sync::atomic::AtomicU32;

    /// A slot of one byte and its length; detects a writer at the same time as any other access.
    #[derive(Default)]
    struct LoomSlot {
        byte: UnsafeCell<u8>,
        bytes: UnsafeCell<u32>,
    }

    struct LoomSegment {
        indices: RingIndices<LoomIndex>,
        slots: Vec<LoomSlot>,
        capacity: u32,
    }

    #[derive(Clone)]
    struct LoomRing(loom::sync::Arc<LoomSegment>);

    // SAFETY: loom's cells report data races.
    unsafe impl Send for LoomRing {}

    impl SlotRing for LoomRing {
        type Index = LoomIndex;

        fn layout(&self) -> ShmLayout {
            ShmLayout {
                capacity: self.0.capacity,
                slot_bytes: 64,
            }
        }

        fn indices(&self) -> &RingIndices<LoomIndex> {
            &self.0.indices
        }

        unsafe fn write_slot(&self, slot: usize, frame: &[u8]) {
            let slot = &self.0.slots[slot];
            // SAFETY: loom provides a valid pointer and has checked that no other thread uses the
            // cell.
            slot.byte.with_mut(|byte| unsafe { *byte = frame[0] });
            // SAFETY: as above.
            slot.bytes.with_mut(|bytes| unsafe { *bytes = 1 });
        }

        fn length(&self, slot: usize) -> usize {
            // SAFETY: as in `write_slot`, against writers.
            self.0.slots[slot].bytes.with(|bytes| unsafe { *bytes }) as usize
        }

        unsafe fn read_slot(&self, slot: usize, frame: &mut [u8]) {
            let byte = &self.0.slots[slot].byte;
            // SAFETY: as in `write_slot`, against writers.
            byte.with(|byte| frame[0] = unsafe { *byte });
        }
    }

    fn memory(capacity: u32) -> LoomRing {
        let count = capacity.next_power_of_two();
        LoomRing(loom::sync::Arc::new(LoomSegment {
            indices: RingIndices {
                tail: PaddedIndex(LoomIndex::new(0)),
                head: PaddedIndex(LoomIndex::new(0)),
            },
            slots: (0..count).map(|_| LoomSlot::default()).collect(),
            capacity,
        }))
    }

    fn send(sender: &mut SlotSender<LoomRing>, first: u8, max_frames: u32) -> u8 {
        let free = sender.free_slots(max_frames);
        for ahead in 0..free {
            sender.write(ahead, &[first + ahead as u8]);
        }
        sender.publish(free);
        free as u8
    }

    /// Reads the frames that are there, without releasing their slots.
    fn peek(receiver: &mut SlotReceiver<LoomRing>, max_frames: u32) -> Vec<u8> {
        let count = receiver.filled_slots(max_frames);
        let frames = (0..count).map(|ahead| {
            assert_eq!(receiver.length(ahead), 1);
            let mut frame = [0];
            receiver.read(ahead, &mut frame);
            frame[0]
        });
        frames.collect()
    }

    fn take(receiver: &mut SlotReceiver<LoomRing>, max_frames: u32) -> Vec<u8> {
        let frames = peek(receiver, max_frames);
        receiver.release_slots(frames.len() as u32);
        frames
    }

    /// Covers all orders in which two processes may run and observe each other's writes.
    #[test]
    fn no_interleaving_loses_or_repeats() {
        for (capacity, bursts) in [(1, [1, 1]), (2, [2, 1]), (3, [2, 2])] {
            loom::model(move || {
                let memory = memory(capacity);
                let mut receiver = SlotReceiver::with_ring(memory.clone());
                let producer = loom::thread::spawn(move || {
                    let mut sender = SlotSender::with_ring(memory);
                    let first = send(&mut sender, 0, bursts[0]);
                    first + send(&mut sender, first, bursts[1])
                });
                let mut got = take(&mut receiver, 1);
                got.extend(take(&mut receiver, 4));
                let sent = producer.join().unwrap();
                got.extend(take(&mut receiver, 4));
                assert_eq!(got, (0..sent).collect::<Vec<u8>>());
            });
        }
    }
}
