//! Hash table of indices with fixed capacity.

use std::net::{IpAddr, SocketAddr};

use crate::prefault;

/// Finds an index by the hash of its entry, which the caller stores. Open addressing, at most half
/// full: a search reads two slots on average, independent of the number of entries.
pub(crate) struct IndexTable {
    /// Index plus one; zero is empty.
    slots: Vec<u32>,
}

impl IndexTable {
    /// Returns the number of slots for this many entries.
    pub(crate) const fn slots_for(entries: usize) -> usize {
        (2 * entries + 2).next_power_of_two()
    }

    pub(crate) fn new(entries: usize) -> Self {
        Self {
            slots: prefault::filled(Self::slots_for(entries)),
        }
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// Returns the index with this hash for which `matches` returns true.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask();
        loop {
            let index = self.slots[at].checked_sub(1)?;
            if matches(index) {
                return Some(index);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Adds an index that is not in the table.
    pub(crate) fn insert(&mut self, hash: u32, index: u32) {
        let mut at = hash as usize & self.mask();
        while self.slots[at] != 0 {
            at = (at + 1) & self.mask();
        }
        self.slots[at] = index + 1;
    }

    /// Removes an index; `hash_of` returns the hashes of later entries, which may move up.
    pub(crate) fn remove(&mut self, hash: u32, index: u32, hash_of: impl Fn(u32) -> u32) {
        let mask = self.mask();
        let mut gap = hash as usize & mask;
        while self.slots[gap] != index + 1 {
            if self.slots[gap] == 0 {
                return;
            }
            gap = (gap + 1) & mask;
        }
        self.slots[gap] = 0;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let Some(other_index) = self.slots[at].checked_sub(1) else {
                return;
            };
            let first_slot = hash_of(other_index) as usize & mask;
            // It may move into the gap unless its first slot lies behind the gap.
            if (at.wrapping_sub(first_slot) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots.swap(gap, at);
                gap = at;
            }
        }
    }
}

/// Mixes 64-bit words into a hash whose low bits depend on all of them.
#[inline]
pub(crate) fn hash(seed: u64, values: &[u64]) -> u32 {
    let mut mixed = seed;
    for value in values {
        // The multiplier of a 64-bit linear congruential generator (Knuth, MMIX).
        mixed = (mixed ^ value).wrapping_mul(6_364_136_223_846_793_005);
        mixed ^= mixed >> 29;
    }
    (mixed >> 16) as u32
}

/// Returns the hash of an address and port pair.
pub(crate) fn pair_hash(seed: u64, local: SocketAddr, remote: SocketAddr) -> u32 {
    let ports = u64::from(local.port()) << 16 | u64::from(remote.port());
    match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let addresses = u64::from(u32::from(local)) << 32 | u64::from(u32::from(remote));
            hash(seed, &[addresses, ports])
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let (local, remote) = (u128::from(local), u128::from(remote));
            let values = [
                local as u64,
                (local >> 64) as u64,
                remote as u64,
                (remote >> 64) as u64,
                ports,
            ];
            hash(seed, &values)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compared with a set; many hashes collide.
        #[test]
        fn as_a_set(steps in prop::collection::vec((any::<bool>(), 0u32..24), 0..200)) {
            let hash_of = |index: u32| index / 5 * 31;
            let mut table = IndexTable::new(24);
            let mut model = std::collections::HashSet::new();
            for (add, index) in steps {
                if !add {
                    table.remove(hash_of(index), index, hash_of);
                    model.remove(&index);
                } else if model.insert(index) {
                    table.insert(hash_of(index), index);
                }
                for index in 0..24 {
                    let found = table.find(hash_of(index), |other| other == index);
                    prop_assert_eq!(found.is_some(), model.contains(&index));
                }
            }
        }
    }
}
