//! Ring of frame handles between two threads of one process.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::frames::burst::{BURST_FRAMES, Burst};
use crate::frames::frame::total_bytes;
use crate::frames::ring_cursor::{ReceiveCursor, RingIndices, SendCursor, SharedIndex};

/// Storage of a ring's items. A trait so that tests can use a checked implementation (loom).
pub trait RingSlots {
    /// Number of slots; a power of two.
    fn count(&self) -> usize;
    /// Copies `handles` to the slots from `at` on; they do not exceed the last slot.
    ///
    /// # Safety
    /// No other thread reads or writes these slots meanwhile.
    unsafe fn write(&self, at: usize, handles: &[u64]);
    /// Copies slots from `at` on to `handles`; returns their [`total_bytes`].
    ///
    /// # Safety
    /// No other thread writes these slots meanwhile.
    unsafe fn read(&self, at: usize, handles: &mut [u64]) -> u64;
}

/// Slots on the heap.
pub struct HeapSlots(Box<[UnsafeCell<u64>]>);

// SAFETY: the caller of `write` and `read` excludes other accesses to the slots meanwhile (see
// `RingSlots`).
unsafe impl Sync for HeapSlots {}

impl RingSlots for HeapSlots {
    #[inline]
    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn write(&self, at: usize, handles: &[u64]) {
        let slots = &self.0[at..at + handles.len()];
        let to = UnsafeCell::raw_get(slots.as_ptr());
        // SAFETY: there are as many slots as handles, and the caller excludes other accesses to
        // them; a borrowed slice cannot lie inside them.
        unsafe { copy(handles.as_ptr(), to, handles.len()) };
    }

    #[inline(always)]
    unsafe fn read(&self, at: usize, handles: &mut [u64]) -> u64 {
        let slots = &self.0[at..at + handles.len()];
        let from = UnsafeCell::raw_get(slots.as_ptr());
        if let Ok(burst) = <&mut [u64; BURST_FRAMES]>::try_from(&mut *handles) {
            // SAFETY: as in `write`; the caller excludes writers.
            return unsafe { copy_and_total(from, burst) };
        }
        // SAFETY: as in `write`; the caller excludes writers.
        unsafe { copy(from, handles.as_mut_ptr(), handles.len()) };
        total_bytes(handles)
    }
}

/// Handles copied inline: eight registers of 16 bytes, which the compiler copies without a call.
const INLINE_HANDLES: usize = 16;
const _: () = assert!(BURST_FRAMES.is_multiple_of(INLINE_HANDLES));

/// Copies handles; a full burst without calling `memcpy`, whose call costs as much as the copy.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u64, to: *mut u64, count: usize) {
    if count != BURST_FRAMES {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
        return;
    }
    for at in (0..BURST_FRAMES).step_by(INLINE_HANDLES) {
        // SAFETY: below `count`.
        let from = unsafe { from.add(at) }.cast::<[u64; INLINE_HANDLES]>();
        // SAFETY: below `count`.
        let to = unsafe { to.add(at) }.cast::<[u64; INLINE_HANDLES]>();
        // SAFETY: `count` is a multiple of the chunk, and the caller's promise covers all of it;
        // arrays of u64 are aligned as u64 is.
        unsafe { std::ptr::copy_nonoverlapping(from, to, 1) };
    }
}

/// Handles copied and summed in one step: four registers of 16 bytes.
const SUMMED_HANDLES: usize = 8;
const _: () = assert!(BURST_FRAMES.is_multiple_of(SUMMED_HANDLES));

/// Copies a full burst and sums its bytes: the additions overlap with the stores; a second pass
/// over the handles would cost a third of the loop.
///
/// # Safety
/// `from` is readable for a full burst, and no thread writes there meanwhile.
#[inline(always)]
unsafe fn copy_and_total(from: *const u64, to: &mut [u64; BURST_FRAMES]) -> u64 {
    let (chunks, _) = to.as_chunks_mut::<SUMMED_HANDLES>();
    let mut total = 0;
    for (number, chunk) in chunks.iter_mut().enumerate() {
        // SAFETY: the chunks are those of a burst, so this is below its end.
        let from = unsafe { from.add(number * SUMMED_HANDLES) }.cast::<[u64; SUMMED_HANDLES]>();
        // SAFETY: the caller's promise; arrays of u64 are aligned as u64 is.
        let handles = unsafe { from.read() };
        *chunk = handles;
        total += total_bytes(&handles);
    }
    total
}

struct SharedRing<W, S> {
    indices: RingIndices<W>,
    slots: S,
}

/// Sending end of a ring.
pub struct RingSender<W = AtomicU32, S = HeapSlots> {
    shared: Arc<SharedRing<W, S>>,
    cursor: SendCursor,
}

/// Receiving end of a ring.
pub struct RingReceiver<W = AtomicU32, S = HeapSlots> {
    shared: Arc<SharedRing<W, S>>,
    cursor: ReceiveCursor,
}

/// Creates a ring that holds up to `capacity` handles (at least one).
pub fn new_ring(capacity: u32) -> (RingSender, RingReceiver) {
    let count = (capacity.max(1) as usize).next_power_of_two();
    let slots = (0..count).map(|_| UnsafeCell::new(0)).collect();
    ring_with_slots(capacity.max(1), HeapSlots(slots), RingIndices::default())
}

fn ring_with_slots<W: SharedIndex, S: RingSlots>(
    capacity: u32,
    slots: S,
    indices: RingIndices<W>,
) -> (RingSender<W, S>, RingReceiver<W, S>) {
    debug_assert!(slots.count().is_power_of_two() && slots.count() >= capacity as usize);
    let shared = Arc::new(SharedRing { indices, slots });
    (
        RingSender {
            shared: Arc::clone(&shared),
            cursor: SendCursor::new(0, capacity),
        },
        RingReceiver {
            shared,
            cursor: ReceiveCursor::new(0, capacity),
        },
    )
}

impl<W: SharedIndex, S: RingSlots> RingSender<W, S> {
    /// Copies from the front of `handles` until the ring is full; returns the number copied.
    #[inline(always)]
    pub fn push(&mut self, handles: &[u64]) -> usize {
        let shared = &*self.shared;
        let max_handles = u32::try_from(handles.len()).unwrap_or(u32::MAX);
        let count = self.cursor.free_slots(&shared.indices, max_handles) as usize;
        if count == 0 {
            return 0;
        }
        let at = self.cursor.position() as usize & (shared.slots.count() - 1);
        let until_wrap = count.min(shared.slots.count() - at);
        // SAFETY: `free_slots` returned that the receiver has emptied these slots, and it reads
        // none of them before `publish`; `&mut self` is the only sender.
        unsafe { shared.slots.write(at, &handles[..until_wrap]) };
        if until_wrap < count {
            // SAFETY: as above, from the start of the array.
            unsafe { shared.slots.write(0, &handles[until_wrap..count]) };
        }
        self.cursor.publish(&shared.indices, count as u32);
        count
    }
}

impl<W: SharedIndex, S: RingSlots> RingReceiver<W, S> {
    /// Takes handles until the ring is empty or `handles` is full; returns their number and their
    /// [`total_bytes`].
    #[inline(always)]
    pub fn pop(&mut self, handles: &mut [u64]) -> (usize, u64) {
        let shared = &*self.shared;
        let max_handles = u32::try_from(handles.len()).unwrap_or(u32::MAX);
        let count = self.cursor.filled_slots(&shared.indices, max_handles) as usize;
        if count == 0 {
            return (0, 0);
        }
        let at = self.cursor.position() as usize & (shared.slots.count() - 1);
        let until_wrap = count.min(shared.slots.count() - at);
        // SAFETY: `filled_slots` returned that the sender has published these slots, and it writes
        // none of them before `release_slots`; `&mut self` is the only receiver.
        let mut total = unsafe { shared.slots.read(at, &mut handles[..until_wrap]) };
        if until_wrap < count {
            // SAFETY: as above, from the start of the array.
            total += unsafe { shared.slots.read(0, &mut handles[until_wrap..count]) };
        }
        self.cursor.release_slots(&shared.indices, count as u32);
        (count, total)
    }
}

/// Sending end of a ring of frames.
pub struct FrameSender(RingSender);

/// Receiving end of a ring of frames.
pub struct FrameReceiver(RingReceiver);

/// Creates a ring that holds up to `capacity` frames. Frames inside when both ends are dropped are
/// lost to their memory.
pub fn new_frame_ring(capacity: u32) -> (FrameSender, FrameReceiver) {
    let (sender, receiver) = new_ring(capacity);
    (FrameSender(sender), FrameReceiver(receiver))
}

impl FrameSender {
    /// Takes frames from the front of `burst` until the ring is full; returns their number and
    /// bytes.
    #[inline(always)]
    pub fn push(&mut self, burst: &mut Burst) -> (usize, u64) {
        let count = self.0.push(burst.handles());
        let bytes = if count == burst.len() {
            burst.bytes()
        } else {
            total_bytes(&burst.handles()[..count])
        };
        burst.forget_front(count);
        (count, bytes)
    }
}

impl FrameReceiver {
    /// Appends frames to `burst` until it is full or the ring is empty; returns their number and
    /// bytes.
    #[inline(always)]
    pub fn pop(&mut self, burst: &mut Burst) -> (usize, u64) {
        // SAFETY: only `FrameSender::push` puts handles into this ring, each of which its burst
        // gave up, and a handle put in once is taken out once.
        unsafe { burst.fill_handles(|handles| self.0.pop(handles)) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::frames::ring_cursor::PaddedIndex;

    /// Slots that detect a reader and a writer at the same time.
    struct LoomSlots(Vec<loom::cell::UnsafeCell<u64>>);

    // SAFETY: loom's cells report data races.
    unsafe impl Sync for LoomSlots {}

    impl RingSlots for LoomSlots {
        fn count(&self) -> usize {
            self.0.len()
        }

        unsafe fn write(&self, at: usize, handles: &[u64]) {
            for (slot, word) in self.0[at..].iter().zip(handles) {
                // SAFETY: loom provides a valid pointer and has checked that no other thread uses
                // the cell.
                slot.with_mut(|slot| unsafe { *slot = *word });
            }
        }

        unsafe fn read(&self, at: usize, handles: &mut [u64]) -> u64 {
            for (slot, word) in self.0[at..].iter().zip(&mut *handles) {
                // SAFETY: as in `write`, against writers.
                slot.with(|slot| *word = unsafe { *slot });
            }
            total_bytes(handles)
        }
    }

    impl SharedIndex for loom::sync::atomic::AtomicU32 {
        fn acquire(&self) -> u32 {
            self.load(loom::sync::atomic::Ordering::Acquire)
        }

        fn release(&self, value: u32) {
            self.store(value, loom::sync::atomic::Ordering::Release);
        }
    }

    type LoomIndex = loom::sync::atomic::AtomicU32;

    fn loom_ring(
        capacity: u32,
    ) -> (
        RingSender<LoomIndex, LoomSlots>,
        RingReceiver<LoomIndex, LoomSlots>,
    ) {
        let count = (capacity as usize).next_power_of_two();
        let cells = (0..count).map(|_| loom::cell::UnsafeCell::new(0));
        let indices = RingIndices {
            tail: PaddedIndex(LoomIndex::new(0)),
            head: PaddedIndex(LoomIndex::new(0)),
        };
        ring_with_slots(capacity, LoomSlots(cells.collect()), indices)
    }

    /// Covers all orders in which two threads may run and observe each other's writes.
    #[test]
    fn no_interleaving_loses_or_repeats() {
        for (capacity, bursts) in [
            (1, vec![1, 1]),
            (2, vec![2, 1]),
            (3, vec![2, 2]),
            (3, vec![3, 1]),
        ] {
            loom::model(move || {
                let (mut sender, mut receiver) = loom_ring(capacity);
                let bursts = bursts.clone();
                let producer = loom::thread::spawn(move || {
                    let mut next = 0;
                    for size in bursts {
                        let items: Vec<u64> = (next..next + size).collect();
                        next += sender.push(&items) as u64;
                    }
                    next
                });
                let mut got = Vec::new();
                let mut items = [0; 4];
                for max_items in [1, 4] {
                    let (count, _) = receiver.pop(&mut items[..max_items]);
                    got.extend_from_slice(&items[..count]);
                }
                let sent = producer.join().unwrap();
                let (count, _) = receiver.pop(&mut items);
                got.extend_from_slice(&items[..count]);
                assert_eq!(got, (0..sent).collect::<Vec<u64>>());
            });
        }
    }

    proptest! {
        /// Compares with a queue as the model.
        #[test]
        fn a_ring_is_a_bounded_queue(
            capacity in 1u32..70,
            steps in prop::collection::vec((any::<bool>(), 0usize..70), 0..100),
        ) {
            let (mut sender, mut receiver) = new_ring(capacity);
            let mut model = VecDeque::new();
            let mut next = 0u64;
            for (send, wanted) in steps {
                if send {
                    let words: Vec<u64> = (next..next + wanted as u64).collect();
                    let sent = sender.push(&words);
                    prop_assert_eq!(sent, wanted.min(capacity as usize - model.len()));
                    model.extend(&words[..sent]);
                    next += sent as u64;
                } else {
                    let mut words = vec![0; wanted];
                    let (got, bytes) = receiver.pop(&mut words);
                    prop_assert_eq!(bytes, total_bytes(&words[..got]));
                    let want: Vec<u64> = model.drain(..wanted.min(model.len())).collect();
                    prop_assert_eq!(&words[..got], &want[..]);
                }
            }
        }
    }

    /// With two real threads, each item arrives once and in order, for all burst sizes.
    #[test]
    fn two_threads_lose_and_repeat_nothing() {
        const ITEMS: u64 = 60_000;
        for capacity in [1, 3, 32, 100, 1024] {
            let items = if capacity < 32 { ITEMS / 6 } else { ITEMS };
            let (mut sender, mut receiver) = new_ring(capacity);
            let producer = std::thread::spawn(move || {
                let mut next = 0;
                let mut size = 1;
                while next < items {
                    let burst: Vec<u64> = (next..items.min(next + size)).collect();
                    let sent = sender.push(&burst);
                    if sent == 0 {
                        std::thread::yield_now();
                    }
                    next += sent as u64;
                    size = size % 37 + 1;
                }
            });
            let mut expected = 0;
            let mut burst = [0; 32];
            while expected < items {
                let (got, _) = receiver.pop(&mut burst);
                if got == 0 {
                    std::thread::yield_now();
                }
                for &item in &burst[..got] {
                    assert_eq!(item, expected);
                    expected += 1;
                }
            }
            producer.join().unwrap();
            assert_eq!(receiver.pop(&mut burst), (0, 0));
        }
    }
}
