//! Outstanding requests: looked up by number, given up in the order of sending.
//!
//! The memory depends on the number of outstanding requests, not on the rate: one that waits long
//! uses one slot and keeps none of the later ones.

use linerate_sys::clock::Nanos;

/// Marks the absence of a slot.
const NO_SLOT: u32 = u32::MAX;

/// Multiplier that spreads consecutive numbers over the index (Knuth, multiplicative hashing).
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A request without a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutstandingRequest {
    pub number: u64,
    pub intended_ns: Nanos,
    pub sent_ns: Nanos,
}

#[derive(Clone, Copy)]
struct RequestSlot {
    request: OutstandingRequest,
    /// Slot of the request sent before it; unused in a free slot.
    older: u32,
    /// Slot of the request sent after it; in a free slot the next free one.
    newer: u32,
}

/// Set of outstanding requests with a fixed capacity; allocates only when created.
pub struct OutstandingRequests {
    slots: Box<[RequestSlot]>,
    free_head: u32,
    oldest: u32,
    newest: u32,
    /// Slots by number: open addressing with linear probing, at most half full.
    index: Box<[u32]>,
    shift: u32,
    len: usize,
}

impl OutstandingRequests {
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, (NO_SLOT / 4) as usize);
        let last = capacity as u32 - 1;
        let slots = (0..capacity as u32).map(|slot| RequestSlot {
            request: OutstandingRequest::default(),
            older: NO_SLOT,
            newer: if slot == last { NO_SLOT } else { slot + 1 },
        });
        let index = (capacity * 2).next_power_of_two();
        Self {
            slots: slots.collect(),
            free_head: 0,
            oldest: NO_SLOT,
            newest: NO_SLOT,
            shift: 64 - index.trailing_zeros(),
            index: vec![NO_SLOT; index].into_boxed_slice(),
            len: 0,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the request that was sent first.
    #[inline]
    pub fn oldest(&self) -> Option<&OutstandingRequest> {
        self.slots
            .get(self.oldest as usize)
            .map(|slot| &slot.request)
    }

    /// Iterates over all requests, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &OutstandingRequest> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let slot = self.slots.get(at as usize)?;
            at = slot.newer;
            Some(&slot.request)
        })
    }

    #[inline]
    fn home_position(&self, number: u64) -> usize {
        (number.wrapping_mul(HASH_MULTIPLIER) >> self.shift) as usize
    }

    /// Returns the position of a number in the index.
    #[inline]
    fn index_position(&self, number: u64) -> Option<usize> {
        let mut position = self.home_position(number);
        loop {
            let slot = self.slots.get(self.index[position] as usize)?;
            if slot.request.number == number {
                return Some(position);
            }
            position = (position + 1) & (self.index.len() - 1);
        }
    }

    #[inline]
    pub fn get(&self, number: u64) -> Option<&OutstandingRequest> {
        let position = self.index_position(number)?;
        Some(&self.slots[self.index[position] as usize].request)
    }

    /// Adds a request; beyond the capacity it is ignored, which is a bug of the caller.
    #[inline]
    pub fn push(&mut self, request: OutstandingRequest) {
        let slot = self.free_head;
        debug_assert_ne!(slot, NO_SLOT, "more outstanding requests than the capacity");
        let Some(entry) = self.slots.get_mut(slot as usize) else {
            return;
        };
        self.free_head = entry.newer;
        *entry = RequestSlot {
            request,
            older: self.newest,
            newer: NO_SLOT,
        };
        match self.slots.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
        let mut position = self.home_position(request.number);
        while self.index[position] != NO_SLOT {
            position = (position + 1) & (self.index.len() - 1);
        }
        self.index[position] = slot;
        self.len += 1;
    }

    /// Removes a request.
    #[inline]
    pub fn take(&mut self, number: u64) -> Option<OutstandingRequest> {
        let position = self.index_position(number)?;
        let slot = self.index[position];
        self.close_gap(position);
        let RequestSlot {
            request,
            older,
            newer,
        } = self.slots[slot as usize];
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        self.slots[slot as usize].newer = self.free_head;
        self.free_head = slot;
        self.len -= 1;
        Some(request)
    }

    /// Removes an index entry and moves later ones up, so that no probe sequence ends early.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut position = gap;
        loop {
            position = (position + 1) & mask;
            let Some(slot) = self.slots.get(self.index[position] as usize) else {
                break;
            };
            let home_position = self.home_position(slot.request.number);
            // It may move if its probe sequence passes the gap.
            if position.wrapping_sub(home_position) & mask >= position.wrapping_sub(gap) & mask {
                self.index[gap] = self.index[position];
                gap = position;
            }
        }
        self.index[gap] = NO_SLOT;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn request(number: u64) -> OutstandingRequest {
        OutstandingRequest {
            number,
            intended_ns: number * 2,
            sent_ns: number * 2 + 1,
        }
    }

    #[test]
    fn one_long_wait_takes_no_slot_from_others() {
        let mut requests = OutstandingRequests::with_capacity(2);
        requests.push(request(0));
        for number in 1..100_000 {
            requests.push(request(number));
            assert_eq!(requests.take(number), Some(request(number)));
        }
        assert_eq!(requests.oldest(), Some(&request(0)));
        assert_eq!((requests.len(), requests.slots.len()), (1, 2));
    }

    proptest! {
        #[test]
        fn the_table_is_an_ordered_map(room in 1usize..40, steps in prop::collection::vec(any::<u64>(), 1..400)) {
            let mut open = OutstandingRequests::with_capacity(room);
            let mut model = BTreeMap::new();
            let mut next = 0;
            for step in steps {
                if step % 3 > 0 && model.len() < room {
                    next += 1 + step % 5;
                    open.push(request(next));
                    model.insert(next, request(next));
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
