//! Assignment of datagrams to sockets.

use std::net::SocketAddr;

use crate::index_table::{IndexTable, pair_hash};
use crate::prefault;
use crate::socket::FIRST_FREE_PORT;

/// Table of ports, and of sockets bound to one peer.
pub(crate) struct PortTable {
    /// Index of each port's socket plus one; zero: unused.
    owners: Vec<u16>,
    next_free: u16,
    /// Sockets bound to one peer, by local and remote address. They exist in addition to the owner
    /// of the port.
    pairs: IndexTable,
    /// Number of such sockets: without any, no datagram costs a hash.
    pair_count: u32,
    seed: u64,
}

impl PortTable {
    pub(crate) fn new(sockets: usize, seed: u64) -> Self {
        Self {
            owners: prefault::filled(1 << 16),
            next_free: FIRST_FREE_PORT + (seed as u16 & 0x3fff),
            pairs: IndexTable::new(sockets),
            pair_count: 0,
            seed,
        }
    }

    /// Returns the heap memory in bytes.
    pub(crate) const fn heap_bytes(sockets: usize) -> usize {
        (1 << 16) * size_of::<u16>() + IndexTable::slots_for(sockets) * size_of::<u32>()
    }

    /// Returns the socket that owns a port.
    #[inline]
    pub(crate) fn owner(&self, port: u16) -> Option<u32> {
        u32::from(self.owners[usize::from(port)]).checked_sub(1)
    }

    pub(crate) fn assign(&mut self, port: u16, index: u32) {
        self.owners[usize::from(port)] = (index + 1) as u16;
    }

    pub(crate) fn unassign(&mut self, port: u16) {
        self.owners[usize::from(port)] = 0;
    }

    /// Returns an unused port.
    pub(crate) fn find_free(&mut self) -> Option<u16> {
        for _ in FIRST_FREE_PORT..=u16::MAX {
            let port = self.next_free;
            self.next_free = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
            if self.owner(port).is_none() {
                return Some(port);
            }
        }
        None
    }

    /// Returns whether a socket is bound to one peer.
    #[inline]
    pub(crate) fn has_pairs(&self) -> bool {
        self.pair_count > 0
    }

    /// Returns the socket bound to this pair for which `matches` returns true.
    pub(crate) fn find_pair(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        matches: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.pairs
            .find(pair_hash(self.seed, local, remote), matches)
    }

    pub(crate) fn add_pair(&mut self, local: SocketAddr, remote: SocketAddr, index: u32) {
        self.pairs
            .insert(pair_hash(self.seed, local, remote), index);
        self.pair_count += 1;
    }

    /// Removes a socket bound to one peer. `addresses_of` returns the addresses of later entries,
    /// which may move up.
    pub(crate) fn remove_pair(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        index: u32,
        addresses_of: impl Fn(u32) -> (SocketAddr, SocketAddr),
    ) {
        let seed = self.seed;
        self.pairs
            .remove(pair_hash(seed, local, remote), index, |other_index| {
                let (local, remote) = addresses_of(other_index);
                pair_hash(seed, local, remote)
            });
        self.pair_count -= 1;
    }
}
