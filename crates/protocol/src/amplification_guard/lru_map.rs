//! Map from addresses to values with LRU eviction, in fixed memory.

use std::collections::HashMap;
use std::net::IpAddr;

/// Index that marks an end of the list.
const NO_SLOT: u32 = u32::MAX;

/// Map that evicts the least recently used address.
///
/// The list of use is linked inside a slab, so that nothing is allocated after the start. The hash
/// of the map has a random key: a peer cannot choose addresses that collide.
#[derive(Clone, Debug)]
pub(super) struct LruMap<T> {
    slots: HashMap<IpAddr, u32>,
    slab: Vec<LruNode<T>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    capacity: usize,
}

#[derive(Clone, Debug)]
struct LruNode<T> {
    address: IpAddr,
    value: T,
    newer: u32,
    older: u32,
}

impl<T> LruMap<T> {
    /// Creates a map for `capacity` addresses, at least one.
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, NO_SLOT as usize - 1);
        Self {
            slots: HashMap::with_capacity(capacity),
            slab: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            newest: NO_SLOT,
            oldest: NO_SLOT,
            capacity,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the value of an address and marks it as the most recently used.
    pub(super) fn touch(&mut self, address: IpAddr) -> Option<&mut T> {
        let slot = *self.slots.get(&address)?;
        if slot != self.newest {
            self.unlink(slot);
            self.link(slot);
        }
        Some(&mut self.slab[slot as usize].value)
    }

    /// Returns the value of an address, inserted if it is absent; evicts the oldest if the map is
    /// full.
    pub(super) fn get_or_insert_with(
        &mut self,
        address: IpAddr,
        make: impl FnOnce() -> T,
    ) -> &mut T {
        if !self.slots.contains_key(&address) {
            if self.slots.len() == self.capacity {
                self.remove(self.slab[self.oldest as usize].address);
            }
            let node = LruNode {
                address,
                value: make(),
                newer: NO_SLOT,
                older: NO_SLOT,
            };
            let slot = match self.free.pop() {
                Some(slot) => {
                    self.slab[slot as usize] = node;
                    slot
                }
                None => {
                    self.slab.push(node);
                    (self.slab.len() - 1) as u32
                }
            };
            self.slots.insert(address, slot);
            self.link(slot);
        }
        self.touch(address).expect("the address was just inserted")
    }

    pub(super) fn remove(&mut self, address: IpAddr) {
        if let Some(slot) = self.slots.remove(&address) {
            self.unlink(slot);
            self.free.push(slot);
        }
    }

    fn unlink(&mut self, slot: u32) {
        let LruNode { newer, older, .. } = self.slab[slot as usize];
        match newer {
            NO_SLOT => self.newest = older,
            newer => self.slab[newer as usize].older = older,
        }
        match older {
            NO_SLOT => self.oldest = newer,
            older => self.slab[older as usize].newer = newer,
        }
    }

    fn link(&mut self, slot: u32) {
        let node = &mut self.slab[slot as usize];
        node.newer = NO_SLOT;
        node.older = self.newest;
        match self.newest {
            NO_SLOT => self.oldest = slot,
            newest => self.slab[newest as usize].newer = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the map with a list whose last entry is the newest.
        #[test]
        fn agrees_with_a_list(
            capacity in 1usize..6,
            does in prop::collection::vec((0u8..3, 0u32..9), 0..200),
        ) {
            let mut recent = LruMap::new(capacity);
            let mut list: Vec<(u32, u32)> = Vec::new();
            for (step, &(what, who)) in does.iter().enumerate() {
                let address = IpAddr::V4(Ipv4Addr::from_bits(who));
                let at = list.iter().position(|&(name, _)| name == who);
                match what {
                    0 => {
                        let value = at.map_or(step as u32, |at| list.remove(at).1);
                        if list.len() == capacity {
                            list.remove(0);
                        }
                        list.push((who, value));
                        prop_assert_eq!(*recent.get_or_insert_with(address, || step as u32), value);
                    }
                    1 => {
                        let value = at.map(|at| list.remove(at).1);
                        list.extend(value.map(|value| (who, value)));
                        prop_assert_eq!(recent.touch(address).copied(), value);
                    }
                    _ => {
                        at.map(|at| list.remove(at));
                        recent.remove(address);
                    }
                }
                prop_assert_eq!(recent.len(), list.len());
                prop_assert!(recent.slab.len() <= capacity);
            }
        }
    }
}
