//! Which socket a datagram is for.

use std::net::SocketAddr;

use super::FIRST_FREE_PORT;
use crate::pages;
use crate::table::{Table, pair_hash};

/// The socket of each port, and those that stand beside it for one far end alone.
pub(crate) struct Ports {
    /// The socket of each port, and one; zero is nobody.
    owners: Vec<u16>,
    next: u16,
    /// Sockets beside the owner of their port, by both ends.
    pairs: Table,
    /// How many there are: without any, no datagram costs a hash.
    paired: u32,
    seed: u64,
}

impl Ports {
    pub(crate) fn new(sockets: usize, seed: u64) -> Self {
        Self {
            owners: pages::filled(1 << 16),
            next: FIRST_FREE_PORT + (seed as u16 & 0x3fff),
            pairs: Table::new(sockets),
            paired: 0,
            seed,
        }
    }

    /// Bytes from the heap.
    pub(crate) const fn heap_bytes(sockets: usize) -> usize {
        (1 << 16) * size_of::<u16>() + Table::slots_for(sockets) * size_of::<u32>()
    }

    /// The socket that has a port.
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

    /// A port that nobody has.
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

    /// Whether any socket stands beside the owner of its port.
    #[inline]
    pub(crate) fn has_pairs(&self) -> bool {
        self.paired > 0
    }

    /// The socket between two ends that `is` recognises.
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

    /// `ends` gives both ends of the sockets behind it, which may move up.
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
