//! Outstanding requests: looked up by number, given up in the order of sending.
//!
//! The memory depends on the number of outstanding requests, not on the rate: one that waits long
//! uses one slot and keeps none of the later ones.

use linerate_host::sys::clock::Nanos;

/// Marks the absence of a slot.
const NONE: u32 = u32::MAX;

/// Multiplier that spreads consecutive numbers over the index (Knuth, multiplicative hashing).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A request without a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Question {
    pub number: u64,
    pub intended_ns: Nanos,
    pub sent_ns: Nanos,
}

#[derive(Clone, Copy)]
struct Place {
    question: Question,
    /// Slot of the request sent before it; unused in a free slot.
    older: u32,
    /// Slot of the request sent after it; in a free slot the next free one.
    newer: u32,
}

/// Set of outstanding requests with a fixed capacity; allocates only when created.
pub struct Open {
    places: Box<[Place]>,
    free: u32,
    oldest: u32,
    newest: u32,
    /// Slots by number: open addressing with linear probing, at most half full.
    index: Box<[u32]>,
    shift: u32,
    len: usize,
}

impl Open {
    pub fn with_room(room: usize) -> Self {
        let room = room.clamp(1, (NONE / 4) as usize);
        let last = room as u32 - 1;
        let places = (0..room as u32).map(|place| Place {
            question: Question::default(),
            older: NONE,
            newer: if place == last { NONE } else { place + 1 },
        });
        let index = (room * 2).next_power_of_two();
        Self {
            places: places.collect(),
            free: 0,
            oldest: NONE,
            newest: NONE,
            shift: 64 - index.trailing_zeros(),
            index: vec![NONE; index].into_boxed_slice(),
            len: 0,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the request that was sent first.
    #[inline]
    pub fn oldest(&self) -> Option<&Question> {
        self.places
            .get(self.oldest as usize)
            .map(|place| &place.question)
    }

    /// Iterates over all requests, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Question> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let place = self.places.get(at as usize)?;
            at = place.newer;
            Some(&place.question)
        })
    }

    #[inline]
    fn home(&self, number: u64) -> usize {
        (number.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    /// Returns the position of a number in the index.
    #[inline]
    fn slot(&self, number: u64) -> Option<usize> {
        let mut slot = self.home(number);
        loop {
            let place = self.places.get(self.index[slot] as usize)?;
            if place.question.number == number {
                return Some(slot);
            }
            slot = (slot + 1) & (self.index.len() - 1);
        }
    }

    #[inline]
    pub fn get(&self, number: u64) -> Option<&Question> {
        let slot = self.slot(number)?;
        Some(&self.places[self.index[slot] as usize].question)
    }

    /// Adds a request; beyond the capacity it is ignored, which is a bug of the caller.
    #[inline]
    pub fn push(&mut self, question: Question) {
        let place = self.free;
        debug_assert_ne!(place, NONE, "more open questions than may be open");
        let Some(entry) = self.places.get_mut(place as usize) else {
            return;
        };
        self.free = entry.newer;
        *entry = Place {
            question,
            older: self.newest,
            newer: NONE,
        };
        match self.places.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
        let mut slot = self.home(question.number);
        while self.index[slot] != NONE {
            slot = (slot + 1) & (self.index.len() - 1);
        }
        self.index[slot] = place;
        self.len += 1;
    }

    /// Removes a request.
    #[inline]
    pub fn take(&mut self, number: u64) -> Option<Question> {
        let slot = self.slot(number)?;
        let place = self.index[slot];
        self.close_gap(slot);
        let Place {
            question,
            older,
            newer,
        } = self.places[place as usize];
        match self.places.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.places.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        self.places[place as usize].newer = self.free;
        self.free = place;
        self.len -= 1;
        Some(question)
    }

    /// Removes an index entry and moves later ones up, so that no probe sequence ends early.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + 1) & mask;
            let Some(place) = self.places.get(self.index[slot] as usize) else {
                break;
            };
            let home = self.home(place.question.number);
            // It may move if its probe sequence passes the gap.
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(gap) & mask {
                self.index[gap] = self.index[slot];
                gap = slot;
            }
        }
        self.index[gap] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn question(number: u64) -> Question {
        Question {
            number,
            intended_ns: number * 2,
            sent_ns: number * 2 + 1,
        }
    }

    #[test]
    fn one_that_waits_long_takes_no_room_from_others() {
        let mut open = Open::with_room(2);
        open.push(question(0));
        for number in 1..100_000 {
            open.push(question(number));
            assert_eq!(open.take(number), Some(question(number)));
        }
        assert_eq!(open.oldest(), Some(&question(0)));
        assert_eq!((open.len(), open.places.len()), (1, 2));
    }

    proptest! {
        #[test]
        fn it_is_a_map_in_order(room in 1usize..40, steps in prop::collection::vec(any::<u64>(), 1..400)) {
            let mut open = Open::with_room(room);
            let mut model = BTreeMap::new();
            let mut next = 0;
            for step in steps {
                if step % 3 > 0 && model.len() < room {
                    next += 1 + step % 5;
                    open.push(question(next));
                    model.insert(next, question(next));
                } else {
                    let place = step as usize % (model.len() + 1);
                    let number = model.keys().nth(place).copied().unwrap_or(next + 1);
                    prop_assert_eq!(open.take(number), model.remove(&number));
                }
                prop_assert_eq!(open.len(), model.len());
                prop_assert!(open.iter().eq(model.values()));
                prop_assert_eq!(open.oldest(), model.values().next());
                for number in 0..=next {
                    prop_assert_eq!(open.get(number), model.get(&number));
                }
            }
        }
    }
}
