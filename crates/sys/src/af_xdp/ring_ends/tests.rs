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
    RingProducer<KernelIndex, KernelSlots<u64>>,
    RingConsumer<KernelIndex, KernelSlots<u64>>,
) {
    // Leaked: a few bytes per test, so that the pointers stay valid for both sides.
    let indices: &'static [AtomicU32; 2] =
        Box::leak(Box::new([AtomicU32::new(start), AtomicU32::new(start)]));
    let slots: &'static mut [u64] = Box::leak(vec![0_u64; size as usize].into_boxed_slice());
    let base = NonNull::from(slots).cast::<u64>();
    // SAFETY: leaked memory remains, and atomics are accessed as atomics only.
    let index = |at: usize| unsafe { KernelIndex::new(NonNull::from(&indices[at])) };
    // SAFETY: leaked memory remains, and the ring's indices separate the accesses of both sides.
    let slots = || unsafe { KernelSlots::new(base, size) };
    (
        RingProducer::new(index(0), index(1), slots(), size),
        RingConsumer::new(index(0), index(1), slots()),
    )
}

#[derive(Clone, Debug)]
enum RingStep {
    Push(u8),
    Publish,
    Pop(u8),
    Release,
}

fn step() -> impl Strategy<Value = RingStep> {
    prop_oneof![
        (0_u8..12).prop_map(RingStep::Push),
        Just(RingStep::Publish),
        (0_u8..12).prop_map(RingStep::Pop),
        Just(RingStep::Release),
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
                RingStep::Push(times) => {
                    let used = hidden.len() as u32 + shown.len() as u32 + held;
                    prop_assert_eq!(producer.free_slots(), size - used);
                    for pushed in 0..u32::from(times) {
                        let fits = producer.push(number);
                        prop_assert_eq!(fits, pushed < size - used);
                        if fits {
                            hidden.push_back(number);
                            number += 1;
                        }
                    }
                }
                RingStep::Publish => {
                    producer.publish();
                    shown.append(&mut hidden);
                    prop_assert_eq!(producer.pending(), shown.len() as u32 + held);
                }
                RingStep::Pop(times) => {
                    // The index is read again only when no entry is known, so fewer may be
                    // reported.
                    let waiting = consumer.available();
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
                RingStep::Release => {
                    consumer.release();
                    held = 0;
                }
            }
        }
    }
}

#[test]
fn a_push_uses_the_cached_consumer_index() {
    let (mut producer, mut consumer) = ring(2, 7);
    assert!(producer.push(1) && producer.push(2) && !producer.push(3));
    producer.publish();
    assert_eq!(consumer.available(), 2);
    assert_eq!(consumer.pop(), Some(1));
    consumer.release();
    assert!(
        !producer.push(3),
        "a push uses the cached index of the other side"
    );
    assert_eq!(producer.free_slots(), 1);
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

    struct LoomIndex(Arc<AtomicU32>);

    impl SharedIndex for LoomIndex {
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

    impl RingEntries for LoomSlots {
        type Entry = u64;

        fn read(&self, at: u32) -> u64 {
            let cell = &self.cells[at as usize % self.cells.len()];
            // SAFETY: loom checks that no other thread writes meanwhile.
            cell.with(|value| unsafe { *value })
        }

        fn write(&mut self, at: u32, entry: u64) {
            let cell = &self.cells[at as usize % self.cells.len()];
            // SAFETY: loom checks that no other thread reads or writes meanwhile.
            cell.with_mut(|value| unsafe { *value = entry });
        }
    }

    fn loom_ring(
        size: u32,
        start: u32,
    ) -> (
        RingProducer<LoomIndex, LoomSlots>,
        RingConsumer<LoomIndex, LoomSlots>,
    ) {
        let indices = [0, 1].map(|_| Arc::new(AtomicU32::new(start)));
        let cells = Arc::new((0..size).map(|_| UnsafeCell::new(u64::MAX)).collect());
        let index = |at: usize| LoomIndex(Arc::clone(&indices[at]));
        let slots = || LoomSlots {
            cells: Arc::clone(&cells),
        };
        (
            RingProducer::new(index(0), index(1), slots(), size),
            RingConsumer::new(index(0), index(1), slots()),
        )
    }

    /// Three entries through two slots, across the wrap of the indices, in any order of the
    /// threads.
    #[test]
    fn entries_cross_in_order_and_slots_never_collide() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (mut producer, mut consumer) = loom_ring(2, u32::MAX - 1);
            let sender = thread::spawn(move || {
                let mut next = 0;
                while next < 3 {
                    if producer.free_slots() > 0 {
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
                if consumer.available() == 0 {
                    thread::yield_now();
                    continue;
                }
                while let Some(entry) = consumer.pop() {
                    assert_eq!(entry, expected);
                    expected += 1;
                }
                consumer.release();
            }
            sender.join().unwrap();
        });
    }

    /// A burst becomes visible completely or not at all.
    #[test]
    fn a_burst_appears_completely() {
        loom::model(|| {
            let (mut producer, mut consumer) = loom_ring(4, 0);
            let sender = thread::spawn(move || {
                assert_eq!(producer.free_slots(), 4);
                assert!(producer.push(10) && producer.push(11) && producer.push(12));
                producer.publish();
            });
            let waiting = consumer.available();
            assert!(waiting == 0 || waiting == 3, "{waiting}");
            for at in 0..u64::from(waiting) {
                assert_eq!(consumer.pop(), Some(10 + at));
            }
            sender.join().unwrap();
        });
    }
}
