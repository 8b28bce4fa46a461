//! Deadlines of connections.

use crate::Nanos;
use crate::prefault;

/// Heap of deadlines, at most one for each index: reading the next deadline is free, a change costs
/// the logarithm of their number.
pub(crate) struct Timers {
    heap: Vec<u32>,
    /// Position of each index in the heap; `ABSENT` without a deadline.
    places: Vec<u32>,
    deadlines: Vec<Nanos>,
}

const ABSENT: u32 = u32::MAX;

impl Timers {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            heap: prefault::room(count),
            places: vec![ABSENT; count],
            deadlines: prefault::filled(count),
        }
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        let first = *self.heap.first()?;
        Some(self.deadlines[first as usize])
    }

    /// Sets the deadline of `index` unless an earlier one is set. An early wake-up only costs one
    /// check; moving the deadline back with each acknowledgement would cost more.
    #[inline]
    pub(crate) fn no_later_than(&mut self, index: u32, deadline: Nanos) {
        let place = self.places[index as usize];
        if place != ABSENT {
            if self.deadlines[index as usize] > deadline {
                self.deadlines[index as usize] = deadline;
                self.up(place as usize);
            }
            return;
        }
        self.deadlines[index as usize] = deadline;
        self.heap.push(index);
        let place = self.heap.len() - 1;
        self.places[index as usize] = place as u32;
        self.up(place);
    }

    /// Removes and returns the first index whose deadline has passed.
    #[inline]
    pub(crate) fn expired(&mut self, now: Nanos) -> Option<u32> {
        let first = *self.heap.first()?;
        if self.deadlines[first as usize] > now {
            return None;
        }
        self.remove(first);
        Some(first)
    }

    /// Removes the deadline of an index.
    pub(crate) fn remove(&mut self, index: u32) {
        let place = self.places[index as usize];
        if place == ABSENT {
            return;
        }
        self.places[index as usize] = ABSENT;
        self.heap.swap_remove(place as usize);
        if let Some(&moved) = self.heap.get(place as usize) {
            self.places[moved as usize] = place;
            self.up(place as usize);
            self.down(self.places[moved as usize] as usize);
        }
    }

    fn before(&self, one: usize, other: usize) -> bool {
        self.deadlines[self.heap[one] as usize] < self.deadlines[self.heap[other] as usize]
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.places[self.heap[one] as usize] = one as u32;
        self.places[self.heap[other] as usize] = other as u32;
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 && self.before(place, (place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let mut least = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.before(child, least) {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.swap(place, least);
            place = least;
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
            let mut timers = Timers::new(20);
            let mut model = std::collections::BTreeMap::new();
            for (index, time, what) in steps {
                match what {
                    0 => {
                        timers.remove(index);
                        model.remove(&index);
                    }
                    1 => while let Some(index) = timers.expired(time) {
                        let deadline = model.remove(&index);
                        prop_assert!(deadline.is_some_and(|deadline| deadline <= time));
                    },
                    _ => {
                        timers.no_later_than(index, time);
                        let entry = model.entry(index).or_insert(time);
                        *entry = time.min(*entry);
                    }
                }
                prop_assert_eq!(timers.next(), model.values().min().copied());
            }
        }
    }
}
