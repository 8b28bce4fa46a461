//! Sender and receiver of a ring of slots that two processes share.

use std::sync::Arc;

use super::{Lane, Region, Shape};
use crate::ring_cursor::{Indices, Receiving, Sending, Word};

/// A ring of slots. A trait so that tests can use a checked implementation (loom).
pub(crate) trait Slotted {
    /// Type of the shared indices.
    type Word: Word;
    /// Number and size of the slots.
    fn shape(&self) -> Shape;
    /// Shared indices of the ring.
    fn indices(&self) -> &Indices<Self::Word>;
    /// Copies a frame and its length into a slot.
    ///
    /// # Safety
    /// The other side neither reads nor writes this slot meanwhile.
    unsafe fn put(&self, slot: usize, frame: &[u8]);
    /// Bytes of the frame in a slot, as written by the other side.
    fn length(&self, slot: usize) -> usize;
    /// Copies the first bytes of a slot to `frame`.
    ///
    /// # Safety
    /// The other side does not write this slot meanwhile.
    unsafe fn get(&self, slot: usize, frame: &mut [u8]);
    /// Prefetches the first bytes of a slot for reading.
    fn fetch(&self, slot: usize, bytes: usize) {
        let _ = (slot, bytes);
    }
    /// Prefetches the first bytes of a slot and its length for writing.
    fn claim(&self, slot: usize, bytes: usize) {
        let _ = (slot, bytes);
    }
}

/// Bytes prefetched ahead of the copy: as many cache lines as a core can have in flight.
const AHEAD_BYTES: usize = 2048;

/// Number of frames of `bytes` that are prefetched ahead of the one copied.
#[inline]
pub(crate) fn ahead(bytes: usize) -> u32 {
    (AHEAD_BYTES / bytes.max(1)).clamp(1, 32) as u32
}

/// Sending end of a ring of slots.
pub(crate) struct SlotSender<R = Lane> {
    ring: R,
    cursor: Sending,
    mask: u32,
}

impl SlotSender {
    /// Continues where the last sender of ring `way` stopped. None if the ring's positions are
    /// invalid.
    pub(crate) fn resume(region: Arc<Region>, way: usize) -> Option<Self> {
        Self::over(Lane::new(region, way))
    }
}

impl<R: Slotted> SlotSender<R> {
    pub(super) fn over(ring: R) -> Option<Self> {
        let cursor = Sending::resume(ring.indices(), ring.shape().capacity)?;
        let mask = ring.shape().slots() as u32 - 1;
        Some(Self { ring, cursor, mask })
    }

    /// Maximum bytes of a frame.
    #[inline]
    pub(crate) fn slot_bytes(&self) -> usize {
        self.ring.shape().slot_bytes as usize
    }

    /// Returns the number of free slots, at most `wanted`.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32) -> u32 {
        self.cursor.room(self.ring.indices(), wanted)
    }

    /// Copies a frame into the slot `ahead` of the position. The slot must be free (see
    /// [`SlotSender::room`]) and large enough ([`SlotSender::slot_bytes`]).
    #[inline]
    pub(crate) fn write(&mut self, ahead: u32, frame: &[u8]) {
        let slot = (self.cursor.position().wrapping_add(ahead) & self.mask) as usize;
        // SAFETY: `room` returned that the other side has emptied the slot; it reads it only after
        // `publish`.
        unsafe { self.ring.put(slot, frame) };
    }

    /// Makes `count` written slots visible to the receiver.
    #[inline]
    pub(crate) fn publish(&mut self, count: u32) {
        self.cursor.publish(self.ring.indices(), count);
    }

    /// Prefetches the next `count` slots that are known to be empty, for frames of `bytes`. Lines
    /// that the other side has yet to read are not taken from its cache.
    #[inline]
    pub(crate) fn claim(&self, count: u32, bytes: usize) {
        for ahead in 0..count.min(self.cursor.known_room()) {
            let slot = self.cursor.position().wrapping_add(ahead) & self.mask;
            self.ring.claim(slot as usize, bytes);
        }
    }
}

/// Receiving end of a ring of slots.
pub(crate) struct SlotReceiver<R = Lane> {
    ring: R,
    cursor: Receiving,
    mask: u32,
}

impl SlotReceiver {
    /// Continues where the last receiver of ring `way` stopped. None if the ring's positions are
    /// invalid.
    pub(crate) fn resume(region: Arc<Region>, way: usize) -> Option<Self> {
        Self::over(Lane::new(region, way))
    }
}

impl<R: Slotted> SlotReceiver<R> {
    pub(super) fn over(ring: R) -> Option<Self> {
        let cursor = Receiving::resume(ring.indices(), ring.shape().capacity)?;
        let mask = ring.shape().slots() as u32 - 1;
        Some(Self { ring, cursor, mask })
    }

    /// Maximum bytes of a frame.
    #[inline]
    pub(crate) fn slot_bytes(&self) -> usize {
        self.ring.shape().slot_bytes as usize
    }

    /// Returns the number of filled slots, at most `wanted`.
    #[inline]
    pub(crate) fn filled(&mut self, wanted: u32) -> u32 {
        self.cursor.filled(self.ring.indices(), wanted)
    }

    /// Bytes of the frame in the slot `ahead` of the position; not trusted: may exceed the slot.
    #[inline]
    pub(crate) fn length(&self, ahead: u32) -> usize {
        self.ring.length(self.slot(ahead))
    }

    /// Copies the first bytes of the slot `ahead` of the position: at most
    /// [`SlotReceiver::slot_bytes`].
    #[inline]
    pub(crate) fn read(&self, ahead: u32, frame: &mut [u8]) {
        // SAFETY: `filled` returned that the other side has published the slot; it writes it only
        // after `give_back`.
        unsafe { self.ring.get(self.slot(ahead), frame) };
    }

    /// Prefetches the bytes of the slot `ahead` of the position.
    #[inline]
    pub(crate) fn fetch(&self, ahead: u32, bytes: usize) {
        self.ring.fetch(self.slot(ahead), bytes);
    }

    /// Returns `count` slots to the sender.
    #[inline]
    pub(crate) fn give_back(&mut self, count: u32) {
        self.cursor.give_back(self.ring.indices(), count);
    }

    #[inline]
    fn slot(&self, ahead: u32) -> usize {
        (self.cursor.position().wrapping_add(ahead) & self.mask) as usize
    }
}

#[cfg(test)]
mod weak_memory {
    use super::*;
    use crate::ring_cursor::Alone;
    use loom::cell::UnsafeCell;

    type LoomWord = loom::sync::atomic::AtomicU32;

    /// A slot of one byte and its length; detects a writer at the same time as any other access.
    #[derive(Default)]
    struct Slot {
        byte: UnsafeCell<u8>,
        bytes: UnsafeCell<u32>,
    }

    struct Memory {
        indices: Indices<LoomWord>,
        slots: Vec<Slot>,
        capacity: u32,
    }

    #[derive(Clone)]
    struct Checked(loom::sync::Arc<Memory>);

    // SAFETY: loom's cells report data races.
    unsafe impl Send for Checked {}

    impl Slotted for Checked {
        type Word = LoomWord;

        fn shape(&self) -> Shape {
            Shape {
                capacity: self.0.capacity,
                slot_bytes: 64,
            }
        }

        fn indices(&self) -> &Indices<LoomWord> {
            &self.0.indices
        }

        unsafe fn put(&self, slot: usize, frame: &[u8]) {
            let slot = &self.0.slots[slot];
            // SAFETY: loom provides a valid pointer and has checked that no other thread uses the
            // cell.
            slot.byte.with_mut(|byte| unsafe { *byte = frame[0] });
            // SAFETY: as above.
            slot.bytes.with_mut(|bytes| unsafe { *bytes = 1 });
        }

        fn length(&self, slot: usize) -> usize {
            // SAFETY: as in `put`, against writers.
            self.0.slots[slot].bytes.with(|bytes| unsafe { *bytes }) as usize
        }

        unsafe fn get(&self, slot: usize, frame: &mut [u8]) {
            let byte = &self.0.slots[slot].byte;
            // SAFETY: as in `put`, against writers.
            byte.with(|byte| frame[0] = unsafe { *byte });
        }
    }

    fn memory(capacity: u32) -> Checked {
        let count = capacity.next_power_of_two();
        Checked(loom::sync::Arc::new(Memory {
            indices: Indices {
                tail: Alone(LoomWord::new(0)),
                head: Alone(LoomWord::new(0)),
            },
            slots: (0..count).map(|_| Slot::default()).collect(),
            capacity,
        }))
    }

    fn send(sender: &mut SlotSender<Checked>, first: u8, wanted: u32) -> u8 {
        let room = sender.room(wanted);
        for ahead in 0..room {
            sender.write(ahead, &[first + ahead as u8]);
        }
        sender.publish(room);
        room as u8
    }

    /// Reads the frames that are there, without releasing their slots.
    fn look(receiver: &mut SlotReceiver<Checked>, most: u32) -> Vec<u8> {
        let count = receiver.filled(most);
        let frames = (0..count).map(|ahead| {
            assert_eq!(receiver.length(ahead), 1);
            let mut frame = [0];
            receiver.read(ahead, &mut frame);
            frame[0]
        });
        frames.collect()
    }

    fn take(receiver: &mut SlotReceiver<Checked>, most: u32) -> Vec<u8> {
        let frames = look(receiver, most);
        receiver.give_back(frames.len() as u32);
        frames
    }

    /// Covers all orders in which two processes may run and observe each other's writes.
    #[test]
    fn no_interleaving_loses_or_repeats() {
        for (capacity, bursts) in [(1, [1, 1]), (2, [2, 1]), (3, [2, 2])] {
            loom::model(move || {
                let memory = memory(capacity);
                let mut receiver = SlotReceiver::over(memory.clone()).unwrap();
                let producer = loom::thread::spawn(move || {
                    let mut sender = SlotSender::over(memory).unwrap();
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

    /// A sender ends with a written slot, and another continues in its place, while the receiver
    /// runs. Published frames arrive once, others never.
    #[test]
    fn a_sender_may_die_and_come_back() {
        loom::model(|| {
            let memory = memory(2);
            let mut receiver = SlotReceiver::over(memory.clone()).unwrap();
            let producer = loom::thread::spawn(move || {
                let mut sender = SlotSender::over(memory.clone()).unwrap();
                let sent = send(&mut sender, 0, 1);
                if sender.room(1) == 1 {
                    sender.write(0, &[99]);
                }
                drop(sender);
                let mut sender = SlotSender::over(memory).unwrap();
                sent + send(&mut sender, sent, 1)
            });
            let mut got = take(&mut receiver, 2);
            let sent = producer.join().unwrap();
            got.extend(take(&mut receiver, 2));
            assert_eq!(got, (0..sent).collect::<Vec<u8>>());
        });
    }

    /// A receiver ends with a burst that it has not released, and another takes its place, while
    /// the sender runs. The burst is received again; no other frame is lost or repeated.
    #[test]
    fn a_receiver_may_die_and_come_back() {
        loom::model(|| {
            let memory = memory(2);
            let mut sender = SlotSender::over(memory.clone()).unwrap();
            let consumer = loom::thread::spawn(move || {
                let mut receiver = SlotReceiver::over(memory.clone()).unwrap();
                let seen = look(&mut receiver, 2);
                drop(receiver);
                let mut receiver = SlotReceiver::over(memory).unwrap();
                let again = take(&mut receiver, 2);
                assert!(again.starts_with(&seen), "{seen:?} then {again:?}");
                (receiver, again)
            });
            let mut sent = send(&mut sender, 0, 2);
            sent += send(&mut sender, sent, 1);
            let (mut receiver, mut got) = consumer.join().unwrap();
            got.extend(take(&mut receiver, 4));
            assert_eq!(got, (0..sent).collect::<Vec<u8>>());
        });
    }
}
