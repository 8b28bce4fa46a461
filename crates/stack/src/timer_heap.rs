//! Deadlines of connections.

use crate::Nanos;
use crate::prefault;

/// Heap of deadlines, at most one for each index: reading the next deadline is free, a change costs
/// the logarithm of their number.
pub(crate) struct TimerHeap {
    heap: Vec<u32>,
    /// Position of each index in the heap; `ABSENT` without a deadline.
    positions: Vec<u32>,
    deadlines: Vec<Nanos>,
}

const ABSENT: u32 = u32::MAX;

impl TimerHeap {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            heap: prefault::with_capacity(count),
            positions: vec![ABSENT; count],
            deadlines: prefault::filled(count),
        }
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let first = *self.heap.first()?;
        Some(self.deadlines[first as usize])
    }

    /// Sets the deadline of `index` unless an earlier one is set. An early wake-up only costs one
    /// check; moving the deadline back with each acknowledgement would cost more.
    #[inline]
    pub(crate) fn arm(&mut self, index: u32, deadline: Nanos) {
        let position = self.positions[index as usize];
        if position != ABSENT {
            if self.deadlines[index as usize] > deadline {
                self.deadlines[index as usize] = deadline;
                self.sift_up(position as usize);
            }
            return;
        }
        self.deadlines[index as usize] = deadline;
        self.heap.push(index);
        let position = self.heap.len() - 1;
        self.positions[index as usize] = position as u32;
        self.sift_up(position);
    }

    /// Removes and returns the first index whose deadline has passed.
    #[inline]
    pub(crate) fn pop_expired(&mut self, now: Nanos) -> Option<u32> {
        let first = *self.heap.first()?;
        if self.deadlines[first as usize] > now {
            return None;
        }
        self.disarm(first);
        Some(first)
    }

    /// Removes the deadline of an index.
    pub(crate) fn disarm(&mut self, index: u32) {
        let position = self.positions[index as usize];
        if position == ABSENT {
            return;
        }
        self.positions[index as usize] = ABSENT;
        self.heap.swap_remove(position as usize);
        if let Some(&moved_index) = self.heap.get(position as usize) {
            self.positions[moved_index as usize] = position;
            self.sift_up(position as usize);
            self.sift_down(self.positions[moved_index as usize] as usize);
        }
    }

    fn is_earlier(&self, first: usize, second: usize) -> bool {
        self.deadlines[self.heap[first] as usize] < self.deadlines[self.heap[second] as usize]
    }

    fn swap(&mut self, first: usize, second: usize) {
        self.heap.swap(first, second);
        self.positions[self.heap[first] as usize] = first as u32;
        self.positions[self.heap[second] as usize] = second as u32;
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 && self.is_earlier(position, (position - 1) / 2) {
            self.swap(position, (position - 1) / 2);
            position = (position - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let mut least = position;
            for child in [2 * position + 1, 2 * position + 2] {
                if child < self.heap.len() && self.is_earlier(child, least) {
                    least = child;
                }
            }
            if least == position {
                return;
            }
            self.swap(position, least);
            position = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn deadlines_come_in_order(steps in prop::collection::vec((0u32..20, 0u64..100, 0u8..4), 0..200)) {
            let mut timers = TimerHeap::new(20);
            let mut model = std::collections::BTreeMap::new();
            for (index, time, what) in steps {
                match what {
                    0 => {
                        timers.disarm(index);
                        model.remove(&index);
                    }
                    1 => while let Some(index) = timers.pop_expired(time) {
                        let deadline = model.remove(&index);
                        prop_assert!(deadline.is_some_and(|deadline| deadline <= time));
                    },
                    _ => {
                        timers.arm(index, time);
                        let entry = model.entry(index).or_insert(time);
                        *entry = time.min(*entry);
                    }
                }
                prop_assert_eq!(timers.next_deadline(), model.values().min().copied());
            }
        }
    }
}
