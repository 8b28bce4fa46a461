//! Ring of frame handles between two threads of one process.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::ring_cursor::{Indices, Receiving, Sending, Word};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::total_bytes;

/// Storage of a ring's items. A trait so that tests can use a checked implementation (loom).
pub(crate) trait Slots {
    /// Number of slots; a power of two.
    fn count(&self) -> usize;
    /// Copies `words` to the slots from `at` on; they do not exceed the last slot.
    ///
    /// # Safety
    /// No other thread reads or writes these slots meanwhile.
    unsafe fn put(&self, at: usize, words: &[u64]);
    /// Copies slots from `at` on to `words`; returns their [`total_bytes`].
    ///
    /// # Safety
    /// No other thread writes these slots meanwhile.
    unsafe fn get(&self, at: usize, words: &mut [u64]) -> u64;
}

/// Slots on the heap.
pub(crate) struct Plain(Box<[UnsafeCell<u64>]>);

// SAFETY: the caller of `put` and `get` excludes other accesses to the slots meanwhile (see
// `Slots`).
unsafe impl Sync for Plain {}

impl Slots for Plain {
    #[inline]
    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn put(&self, at: usize, words: &[u64]) {
        let slots = &self.0[at..at + words.len()];
        let to = UnsafeCell::raw_get(slots.as_ptr());
        // SAFETY: there are as many slots as handles, and the caller excludes other accesses to
        // them; a borrowed slice cannot lie inside them.
        unsafe { copy(words.as_ptr(), to, words.len()) };
    }

    #[inline(always)]
    unsafe fn get(&self, at: usize, words: &mut [u64]) -> u64 {
        let slots = &self.0[at..at + words.len()];
        let from = UnsafeCell::raw_get(slots.as_ptr());
        if let Ok(burst) = <&mut [u64; BURST_FRAMES]>::try_from(&mut *words) {
            // SAFETY: as in `put`; the caller excludes writers.
            return unsafe { copy_and_total(from, burst) };
        }
        // SAFETY: as in `put`; the caller excludes writers.
        unsafe { copy(from, words.as_mut_ptr(), words.len()) };
        total_bytes(words)
    }
}

/// Handles copied inline: eight registers of 16 bytes, which the compiler copies without a call.
const INLINE_WORDS: usize = 16;
const _: () = assert!(BURST_FRAMES.is_multiple_of(INLINE_WORDS));

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
    for at in (0..BURST_FRAMES).step_by(INLINE_WORDS) {
        // SAFETY: below `count`.
        let from = unsafe { from.add(at) }.cast::<[u64; INLINE_WORDS]>();
        // SAFETY: below `count`.
        let to = unsafe { to.add(at) }.cast::<[u64; INLINE_WORDS]>();
        // SAFETY: `count` is a multiple of the chunk, and the caller's promise covers all of it;
        // arrays of u64 are aligned as u64 is.
        unsafe { std::ptr::copy_nonoverlapping(from, to, 1) };
    }
}

/// Handles copied and summed in one step: four registers of 16 bytes.
const SUMMED_WORDS: usize = 8;
const _: () = assert!(BURST_FRAMES.is_multiple_of(SUMMED_WORDS));

/// Copies a full burst and sums its bytes: the additions overlap with the stores; a second pass
/// over the handles would cost a third of the loop.
///
/// # Safety
/// `from` is readable for a full burst, and no thread writes there meanwhile.
#[inline(always)]
unsafe fn copy_and_total(from: *const u64, to: &mut [u64; BURST_FRAMES]) -> u64 {
    let (pieces, _) = to.as_chunks_mut::<SUMMED_WORDS>();
    let mut total = 0;
    for (number, piece) in pieces.iter_mut().enumerate() {
        // SAFETY: the chunks are those of a burst, so this is below its end.
        let from = unsafe { from.add(number * SUMMED_WORDS) }.cast::<[u64; SUMMED_WORDS]>();
        // SAFETY: the caller's promise; arrays of u64 are aligned as u64 is.
        let words = unsafe { from.read() };
        *piece = words;
        total += total_bytes(&words);
    }
    total
}

struct Shared<W, S> {
    indices: Indices<W>,
    slots: S,
}

/// Sending end of a ring.
pub(crate) struct Sender<W = AtomicU32, S = Plain> {
    shared: Arc<Shared<W, S>>,
    cursor: Sending,
}

/// Receiving end of a ring.
pub(crate) struct Receiver<W = AtomicU32, S = Plain> {
    shared: Arc<Shared<W, S>>,
    cursor: Receiving,
}

/// Creates a ring that holds up to `capacity` handles (at least one).
pub(crate) fn ring(capacity: u32) -> (Sender, Receiver) {
    let count = (capacity.max(1) as usize).next_power_of_two();
    let slots = (0..count).map(|_| UnsafeCell::new(0)).collect();
    ring_over(capacity.max(1), Plain(slots), Indices::default())
}

fn ring_over<W: Word, S: Slots>(
    capacity: u32,
    slots: S,
    indices: Indices<W>,
) -> (Sender<W, S>, Receiver<W, S>) {
    debug_assert!(slots.count().is_power_of_two() && slots.count() >= capacity as usize);
    let shared = Arc::new(Shared { indices, slots });
    (
        Sender {
            shared: Arc::clone(&shared),
            cursor: Sending::at(0, capacity),
        },
        Receiver {
            shared,
            cursor: Receiving::at(0, capacity),
        },
    )
}

impl<W: Word, S: Slots> Sender<W, S> {
    /// Puts in handles from the front of `words` until the ring is full; returns their number.
    #[inline(always)]
    pub(crate) fn push(&mut self, words: &[u64]) -> usize {
        let shared = &*self.shared;
        let wanted = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let count = self.cursor.room(&shared.indices, wanted) as usize;
        if count == 0 {
            return 0;
        }
        let at = self.cursor.position() as usize & (shared.slots.count() - 1);
        let straight = count.min(shared.slots.count() - at);
        // SAFETY: `room` returned that the receiver has emptied these slots, and it reads none of
        // them before `publish`; `&mut self` is the only sender.
        unsafe { shared.slots.put(at, &words[..straight]) };
        if straight < count {
            // SAFETY: as above, from the start of the array.
            unsafe { shared.slots.put(0, &words[straight..count]) };
        }
        self.cursor.publish(&shared.indices, count as u32);
        count
    }
}

impl<W: Word, S: Slots> Receiver<W, S> {
    /// Takes handles until the ring is empty or `words` is full; returns their number and their
    /// [`total_bytes`].
    #[inline(always)]
    pub(crate) fn pop(&mut self, words: &mut [u64]) -> (usize, u64) {
        let shared = &*self.shared;
        let wanted = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let count = self.cursor.filled(&shared.indices, wanted) as usize;
        if count == 0 {
            return (0, 0);
        }
        let at = self.cursor.position() as usize & (shared.slots.count() - 1);
        let straight = count.min(shared.slots.count() - at);
        // SAFETY: `filled` returned that the sender has published these slots, and it writes none
        // of them before `give_back`; `&mut self` is the only receiver.
        let mut total = unsafe { shared.slots.get(at, &mut words[..straight]) };
        if straight < count {
            // SAFETY: as above, from the start of the array.
            total += unsafe { shared.slots.get(0, &mut words[straight..count]) };
        }
        self.cursor.give_back(&shared.indices, count as u32);
        (count, total)
    }
}

/// Sending end of a ring of frames.
pub(crate) struct FrameSender(Sender);

/// Receiving end of a ring of frames.
pub(crate) struct FrameReceiver(Receiver);

/// Creates a ring that holds up to `capacity` frames. Frames inside when both ends are dropped are
/// lost to their memory.
pub(crate) fn frame_ring(capacity: u32) -> (FrameSender, FrameReceiver) {
    let (sender, receiver) = ring(capacity);
    (FrameSender(sender), FrameReceiver(receiver))
}

impl FrameSender {
    /// Takes frames from the front of `burst` until the ring is full; returns their number and
    /// bytes.
    #[inline(always)]
    pub(crate) fn push(&mut self, burst: &mut Burst) -> (usize, u64) {
        let count = self.0.push(burst.words());
        let bytes = if count == burst.len() {
            burst.bytes()
        } else {
            total_bytes(&burst.words()[..count])
        };
        burst.forget_front(count);
        (count, bytes)
    }
}

impl FrameReceiver {
    /// Appends frames to `burst` until it is full or the ring is empty; returns their number and
    /// bytes.
    #[inline(always)]
    pub(crate) fn pop(&mut self, burst: &mut Burst) -> (usize, u64) {
        // SAFETY: only `FrameSender::push` puts handles into this ring, each of which its burst
        // gave up, and a handle put in once is taken out once.
        unsafe { burst.fill_words(|words| self.0.pop(words)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring_cursor::Alone;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Slots that detect a reader and a writer at the same time.
    struct Checked(Vec<loom::cell::UnsafeCell<u64>>);

    // SAFETY: loom's cells report data races.
    unsafe impl Sync for Checked {}

    impl Slots for Checked {
        fn count(&self) -> usize {
            self.0.len()
        }

        unsafe fn put(&self, at: usize, words: &[u64]) {
            for (slot, word) in self.0[at..].iter().zip(words) {
                // SAFETY: loom provides a valid pointer and has checked that no other thread uses
                // the cell.
                slot.with_mut(|slot| unsafe { *slot = *word });
            }
        }

        unsafe fn get(&self, at: usize, words: &mut [u64]) -> u64 {
            for (slot, word) in self.0[at..].iter().zip(&mut *words) {
                // SAFETY: as in `put`, against writers.
                slot.with(|slot| *word = unsafe { *slot });
            }
            total_bytes(words)
        }
    }

    impl Word for loom::sync::atomic::AtomicU32 {
        fn acquire(&self) -> u32 {
            self.load(loom::sync::atomic::Ordering::Acquire)
        }

        fn release(&self, value: u32) {
            self.store(value, loom::sync::atomic::Ordering::Release);
        }
    }

    type LoomWord = loom::sync::atomic::AtomicU32;

    fn loom_ring(capacity: u32) -> (Sender<LoomWord, Checked>, Receiver<LoomWord, Checked>) {
        let count = (capacity as usize).next_power_of_two();
        let cells = (0..count).map(|_| loom::cell::UnsafeCell::new(0));
        let indices = Indices {
            tail: Alone(LoomWord::new(0)),
            head: Alone(LoomWord::new(0)),
        };
        ring_over(capacity, Checked(cells.collect()), indices)
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
                        let words: Vec<u64> = (next..next + size).collect();
                        next += sender.push(&words) as u64;
                    }
                    next
                });
                let mut got = Vec::new();
                let mut words = [0; 4];
                for room in [1, 4] {
                    let (count, _) = receiver.pop(&mut words[..room]);
                    got.extend_from_slice(&words[..count]);
                }
                let sent = producer.join().unwrap();
                let (count, _) = receiver.pop(&mut words);
                got.extend_from_slice(&words[..count]);
                assert_eq!(got, (0..sent).collect::<Vec<u64>>());
            });
        }
    }

    /// A sender ends before it publishes, and another continues in its place, while the receiver
    /// runs.
    #[test]
    fn a_sender_may_die_between_writing_and_publishing() {
        loom::model(|| {
            let (mut sender, mut receiver) = loom_ring(2);
            let producer = loom::thread::spawn(move || {
                let mut sent = sender.push(&[0]) as u64;
                let room = sender.cursor.room(&sender.shared.indices, 1);
                if room == 1 {
                    let at = sender.cursor.position() as usize & 1;
                    // SAFETY: a slot is free, as `push` checks.
                    unsafe { sender.shared.slots.put(at, &[99]) };
                }
                sender.cursor = Sending::resume(&sender.shared.indices, 2).unwrap();
                sent += sender.push(&[sent]) as u64;
                sent
            });
            let mut got = Vec::new();
            let mut words = [0; 2];
            let (count, _) = receiver.pop(&mut words);
            got.extend_from_slice(&words[..count]);
            let sent = producer.join().unwrap();
            receiver.cursor = Receiving::resume(&receiver.shared.indices, 2).unwrap();
            let (count, _) = receiver.pop(&mut words);
            got.extend_from_slice(&words[..count]);
            assert_eq!(got, (0..sent).collect::<Vec<u64>>());
        });
    }

    proptest! {
        /// Compares with a queue as the model.
        #[test]
        fn a_ring_is_a_bounded_queue(
            capacity in 1u32..70,
            steps in prop::collection::vec((any::<bool>(), 0usize..70), 0..100),
        ) {
            let (mut sender, mut receiver) = ring(capacity);
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
        const WORDS: u64 = 300_000;
        for capacity in [1, 3, 32, 100, 1024] {
            let words = if capacity < 32 { WORDS / 30 } else { WORDS };
            let (mut sender, mut receiver) = ring(capacity);
            let producer = std::thread::spawn(move || {
                let mut next = 0;
                let mut size = 1;
                while next < words {
                    let burst: Vec<u64> = (next..words.min(next + size)).collect();
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
            while expected < words {
                let (got, _) = receiver.pop(&mut burst);
                if got == 0 {
                    std::thread::yield_now();
                }
                for &word in &burst[..got] {
                    assert_eq!(word, expected);
                    expected += 1;
                }
            }
            producer.join().unwrap();
            assert_eq!(receiver.pop(&mut burst), (0, 0));
        }
    }
}
