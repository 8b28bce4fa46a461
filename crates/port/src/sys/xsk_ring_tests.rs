//! Tests of the ring logic with a queue as the model, and with loom's weak memory.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;

/// Both sides of a ring in ordinary memory, with any start value of the indices.
fn ring(
    size: u32,
    start: u32,
) -> (
    Producer<SharedWord, SharedSlots<u64>>,
    Consumer<SharedWord, SharedSlots<u64>>,
) {
    // Leaked: a few bytes per test, so that the pointers stay valid for both sides.
    let words: &'static [AtomicU32; 2] =
        Box::leak(Box::new([AtomicU32::new(start), AtomicU32::new(start)]));
    let slots: &'static mut [u64] = Box::leak(vec![0_u64; size as usize].into_boxed_slice());
    let base = NonNull::from(slots).cast::<u64>();
    // SAFETY: leaked memory remains, and atomics are accessed as atomics only.
    let word = |at: usize| unsafe { SharedWord::new(NonNull::from(&words[at])) };
    // SAFETY: leaked memory remains, and the ring's indices separate the accesses of both sides.
    let slots = || unsafe { SharedSlots::new(base, size) };
    (
        Producer::new(word(0), word(1), slots(), size),
        Consumer::new(word(0), word(1), slots()),
    )
}

#[derive(Clone, Debug)]
enum Step {
    Push(u8),
    Publish,
    Pop(u8),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..12).prop_map(Step::Push),
        Just(Step::Publish),
        (0_u8..12).prop_map(Step::Pop),
        Just(Step::Release),
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(
        exponent in 0_u32..5,
        start in prop_oneof![Just(0_u32), Just(u32::MAX), Just(u32::MAX - 3), any::<u32>()],
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let size = 1 << exponent;
        let (mut producer, mut consumer) = ring(size, start);
        // Pushed and not published; published and not popped; popped and not released.
        let (mut hidden, mut shown, mut held) = (VecDeque::new(), VecDeque::new(), 0_u32);
        let mut number = 0_u64;
        for step in steps {
            match step {
                Step::Push(times) => {
                    let used = hidden.len() as u32 + shown.len() as u32 + held;
                    prop_assert_eq!(producer.room(), size - used);
                    for pushed in 0..u32::from(times) {
                        let fits = producer.push(number);
                        prop_assert_eq!(fits, pushed < size - used);
                        if fits {
                            hidden.push_back(number);
                            number += 1;
                        }
                    }
                }
                Step::Publish => {
                    producer.publish();
                    shown.append(&mut hidden);
                    prop_assert_eq!(producer.pending(), shown.len() as u32 + held);
                }
                Step::Pop(times) => {
                    // The index is read again only when no entry is known, so fewer may be
                    // reported.
                    let waiting = consumer.waiting();
                    prop_assert!(waiting as usize <= shown.len());
                    prop_assert_eq!(waiting == 0, shown.is_empty());
                    for popped in 0..u32::from(times) {
                        let entry = consumer.pop();
                        prop_assert_eq!(entry.is_some(), popped < waiting);
                        if entry.is_some() {
                            prop_assert_eq!(entry, shown.pop_front());
                            held += 1;
                        }
                    }
                }
                Step::Release => {
                    consumer.release();
                    held = 0;
                }
            }
        }
    }
}

#[test]
fn nothing_is_pushed_before_room_was_looked_for() {
    let (mut producer, mut consumer) = ring(2, 7);
    assert!(producer.push(1) && producer.push(2) && !producer.push(3));
    producer.publish();
    assert_eq!(consumer.waiting(), 2);
    assert_eq!(consumer.pop(), Some(1));
    consumer.release();
    assert!(
        !producer.push(3),
        "a push uses the cached index of the other side"
    );
    assert_eq!(producer.room(), 1);
    assert!(producer.push(3));
}

/// Loom's memory in place of shared pages: detects a slot that is written and read at the same
/// time.
mod weak_memory {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    struct LoomWord(Arc<AtomicU32>);

    impl Word for LoomWord {
        fn acquire(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        fn release(&self, value: u32) {
            self.0.store(value, Ordering::Release);
        }
    }

    struct LoomSlots {
        cells: Arc<Vec<UnsafeCell<u64>>>,
    }

    impl Slots for LoomSlots {
        type Entry = u64;

        fn read(&self, at: u32) -> u64 {
            let cell = &self.cells[at as usize % self.cells.len()];
            // SAFETY: loom checks that no other thread writes meanwhile.
            cell.with(|place| unsafe { *place })
        }

        fn write(&mut self, at: u32, entry: u64) {
            let cell = &self.cells[at as usize % self.cells.len()];
            // SAFETY: loom checks that no other thread reads or writes meanwhile.
            cell.with_mut(|place| unsafe { *place = entry });
        }
    }

    fn ends(
        size: u32,
        start: u32,
    ) -> (Producer<LoomWord, LoomSlots>, Consumer<LoomWord, LoomSlots>) {
        let words = [0, 1].map(|_| Arc::new(AtomicU32::new(start)));
        let cells = Arc::new((0..size).map(|_| UnsafeCell::new(u64::MAX)).collect());
        let word = |at: usize| LoomWord(Arc::clone(&words[at]));
        let slots = || LoomSlots {
            cells: Arc::clone(&cells),
        };
        (
            Producer::new(word(0), word(1), slots(), size),
            Consumer::new(word(0), word(1), slots()),
        )
    }

    /// Three entries through two slots, across the wrap of the indices, in any order of the
    /// threads.
    #[test]
    fn entries_cross_in_order_and_slots_never_collide() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (mut producer, mut consumer) = ends(2, u32::MAX - 1);
            let far = thread::spawn(move || {
                let mut next = 0;
                while next < 3 {
                    if producer.room() > 0 {
                        assert!(producer.push(next));
                        producer.publish();
                        next += 1;
                    } else {
                        thread::yield_now();
                    }
                }
            });
            let mut expected = 0;
            while expected < 3 {
                if consumer.waiting() == 0 {
                    thread::yield_now();
                    continue;
                }
                while let Some(entry) = consumer.pop() {
                    assert_eq!(entry, expected);
                    expected += 1;
                }
                consumer.release();
            }
            far.join().unwrap();
        });
    }

    /// A burst becomes visible completely or not at all.
    #[test]
    fn a_burst_appears_whole() {
        loom::model(|| {
            let (mut producer, mut consumer) = ends(4, 0);
            let far = thread::spawn(move || {
                assert_eq!(producer.room(), 4);
                assert!(producer.push(10) && producer.push(11) && producer.push(12));
                producer.publish();
            });
            let waiting = consumer.waiting();
            assert!(waiting == 0 || waiting == 3, "{waiting}");
            for at in 0..u64::from(waiting) {
                assert_eq!(consumer.pop(), Some(10 + at));
            }
            far.join().unwrap();
        });
    }
}
