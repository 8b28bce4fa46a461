//! Assignment of datagrams to sockets.

use std::net::SocketAddr;

use super::FIRST_FREE_PORT;
use crate::index_table::{Table, pair_hash};
use crate::prefault;

/// Table of ports, and of sockets bound to one peer.
pub(crate) struct Ports {
    /// Index of each port's socket plus one; zero: unused.
    owners: Vec<u16>,
    next: u16,
    /// Sockets bound to one peer, by local and remote address. They exist in addition to the owner
    /// of the port.
    pairs: Table,
    /// Number of such sockets: without any, no datagram costs a hash.
    paired: u32,
    seed: u64,
}

impl Ports {
    pub(crate) fn new(sockets: usize, seed: u64) -> Self {
        Self {
            owners: prefault::filled(1 << 16),
            next: FIRST_FREE_PORT + (seed as u16 & 0x3fff),
            pairs: Table::new(sockets),
            paired: 0,
            seed,
        }
    }

    /// Returns the heap memory in bytes.
    pub(crate) const fn heap_bytes(sockets: usize) -> usize {
        (1 << 16) * size_of::<u16>() + Table::slots_for(sockets) * size_of::<u32>()
    }

    /// Returns the socket that owns a port.
    #[inline]
    pub(crate) fn owner(&self, port: u16) -> Option<u32> {
        u32::from(self.owners[usize::from(port)]).checked_sub(1)
    }

    pub(crate) fn give(&mut self, port: u16, index: u32) {
        self.owners[usize::from(port)] = (index + 1) as u16;
    }

    pub(crate) fn take_back(&mut self, port: u16) {
        self.owners[usize::from(port)] = 0;
    }

    /// Returns an unused port.
    pub(crate) fn free(&mut self) -> Option<u16> {
        for _ in FIRST_FREE_PORT..=u16::MAX {
            let port = self.next;
            self.next = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
            if self.owner(port).is_none() {
                return Some(port);
            }
        }
        None
    }

    /// Returns whether a socket is bound to one peer.
    #[inline]
    pub(crate) fn has_pairs(&self) -> bool {
        self.paired > 0
    }

    /// Returns the socket bound to this pair for which `is` returns true.
    pub(crate) fn pair(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        is: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.pairs.find(pair_hash(self.seed, local, remote), is)
    }

    pub(crate) fn add_pair(&mut self, local: SocketAddr, remote: SocketAddr, index: u32) {
        self.pairs
            .insert(pair_hash(self.seed, local, remote), index);
        self.paired += 1;
    }

    /// Removes a socket bound to one peer. `ends` returns the addresses of later entries, which may
    /// move up.
    pub(crate) fn remove_pair(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        index: u32,
        ends: impl Fn(u32) -> (SocketAddr, SocketAddr),
    ) {
        let seed = self.seed;
        self.pairs
            .remove(pair_hash(seed, local, remote), index, |other| {
                let (local, remote) = ends(other);
                pair_hash(seed, local, remote)
            });
        self.paired -= 1;
    }
}
