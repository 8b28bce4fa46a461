//! Table of the workloads' sockets on a stack, with the queue of ready ones.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use linerate_record::plan::TransportProtocol;
use linerate_stack::{SocketId, SocketKind};

/// Handle of a socket of a [`NetstackTransport`](super::NetstackTransport).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSlot(pub(super) usize);

/// State of a workload's socket.
#[derive(Clone, Copy, Default)]
pub(super) struct NetstackSocket {
    /// `None` before it is connected and after it is closed.
    pub(super) socket: Option<SocketId>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// Destination of each datagram of an unconnected socket.
    pub(super) destination: Option<SocketAddr>,
    /// Sender of the last datagram.
    pub(super) last_sender: Option<SocketAddr>,
    pub(super) queue_drops: u32,
    /// True if a workload receives from it, and gets refused sends as errors there.
    pub(super) is_read: bool,
    /// Sends refused by ICMP errors, where no workload receives.
    pub(super) refused_sends: u32,
    pub(super) batch: usize,
    pub(super) copy_bypass: CopyBypass,
    /// Host whose datagrams alone are accepted, from any port, and replied to.
    pub(super) accepted_host: Option<IpAddr>,
    /// Bytes of a stream that the stack accepted, modulo 2^32.
    pub(super) sent_stream_bytes: u32,
    /// Number of the first packet with a transmit timestamp; `None` without timestamps.
    pub(super) first_number: Option<u32>,
    /// Protocol of a socket that is opened by `bind` or `connect`.
    pub(super) protocol: Option<TransportProtocol>,
    pub(super) registration: SocketRegistration,
}

impl NetstackSocket {
    /// Returns the destination of a datagram: the given one, or the last sender where one host is
    /// accepted.
    #[inline]
    pub(super) fn next_destination(&self) -> Option<SocketAddr> {
        self.destination
            .or(self.accepted_host.and(self.last_sender))
    }
}

/// Directions in which payload is not copied between the program's memory and the stack's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CopyBypass {
    pub(super) send: bool,
    pub(super) receive: bool,
}

/// Registration of a socket for readiness.
#[derive(Clone, Copy, Default)]
pub(super) struct SocketRegistration {
    key: Option<usize>,
    /// Edge-triggered: reported once for each change, not as long as it is ready.
    is_edge_triggered: bool,
    is_queued: bool,
    /// True if a call was pending since the last report.
    is_starved: bool,
}

/// Number of socket kinds.
const SOCKET_KINDS: usize = 3;

pub(super) struct SocketTable {
    sockets: Vec<NetstackSocket>,
    /// Slots to be reused.
    free_slots: Vec<usize>,
    /// Slot plus one by kind and index in the stack; zero: not a workload's socket.
    owners: [Vec<u32>; SOCKET_KINDS],
    /// Slots to be reported as ready.
    ready_slots: VecDeque<usize>,
    /// Slots reported last, which may still be ready.
    reported_slots: Vec<usize>,
    /// Number of registered sockets.
    registered_count: usize,
}

#[inline]
fn kind_index(kind: SocketKind) -> usize {
    match kind {
        SocketKind::Udp => 0,
        SocketKind::Tcp => 1,
        SocketKind::Listener => 2,
    }
}

impl SocketTable {
    pub(super) fn new() -> Self {
        Self {
            sockets: Vec::with_capacity(64),
            free_slots: Vec::new(),
            owners: Default::default(),
            ready_slots: VecDeque::with_capacity(64),
            reported_slots: Vec::with_capacity(64),
            registered_count: 0,
        }
    }

    pub(super) fn add(&mut self, entry: NetstackSocket) -> SocketSlot {
        let index = match self.free_slots.pop() {
            Some(index) => {
                self.sockets[index] = entry;
                index
            }
            None => {
                self.sockets.push(entry);
                self.sockets.len() - 1
            }
        };
        if let Some(socket) = entry.socket {
            self.set_owner(index, socket);
        }
        SocketSlot(index)
    }

    /// Returns whether exactly one slot is in use.
    #[inline]
    pub(super) fn has_one(&self) -> bool {
        self.sockets.len() - self.free_slots.len() == 1
    }

    /// Records the stack's socket of a slot.
    pub(super) fn open(&mut self, slot: SocketSlot, socket: SocketId) {
        self.sockets[slot.0].socket = Some(socket);
        self.set_owner(slot.0, socket);
    }

    fn set_owner(&mut self, index: usize, socket: SocketId) {
        let owners = &mut self.owners[kind_index(socket.kind())];
        if owners.len() <= socket.index() {
            owners.resize(socket.index() + 1, 0);
        }
        owners[socket.index()] = index as u32 + 1;
    }

    fn clear_owner(&mut self, socket: SocketId) {
        if let Some(owner) = self.owners[kind_index(socket.kind())].get_mut(socket.index()) {
            *owner = 0;
        }
    }

    /// Frees a slot; returns its socket.
    pub(super) fn remove(&mut self, slot: SocketSlot) -> Option<SocketId> {
        let entry = std::mem::take(&mut self.sockets[slot.0]);
        self.registered_count -= usize::from(entry.registration.key.is_some());
        self.free_slots.push(slot.0);
        if let Some(socket) = entry.socket {
            self.clear_owner(socket);
        }
        entry.socket
    }

    /// Frees all slots; returns their sockets.
    pub(super) fn clear(&mut self) -> Vec<SocketId> {
        self.free_slots.clear();
        self.ready_slots.clear();
        self.reported_slots.clear();
        self.registered_count = 0;
        self.owners.iter_mut().for_each(Vec::clear);
        let sockets = self.sockets.drain(..).filter_map(|entry| entry.socket);
        sockets.collect()
    }

    #[inline]
    pub(super) fn get(&self, slot: SocketSlot) -> &NetstackSocket {
        &self.sockets[slot.0]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: SocketSlot) -> &mut NetstackSocket {
        &mut self.sockets[slot.0]
    }

    /// Returns the sockets of a kind, in the order of opening.
    pub(super) fn of_kind(&self, kind: SocketKind) -> impl Iterator<Item = SocketId> + '_ {
        let sockets = self.sockets.iter().filter_map(|entry| entry.socket);
        sockets.filter(move |socket| socket.kind() == kind)
    }

    /// Returns the UDP sockets from which no workload receives, among the first `max` of all.
    pub(super) fn unread(&mut self, max: usize) -> impl Iterator<Item = (SocketId, &mut u32)> {
        let first = self.sockets.iter_mut().take(max);
        first.filter(|entry| !entry.is_read).filter_map(|entry| {
            let socket = entry.socket?;
            (socket.kind() == SocketKind::Udp).then_some((socket, &mut entry.refused_sends))
        })
    }

    /// Returns whether any socket is registered.
    #[inline]
    pub(super) fn has_registrations(&self) -> bool {
        self.registered_count > 0
    }

    /// Registers a socket under a key.
    #[inline]
    pub(super) fn register(&mut self, slot: SocketSlot, key: usize, is_edge_triggered: bool) {
        let entry = &mut self.sockets[slot.0];
        self.registered_count += usize::from(entry.registration.key.is_none());
        entry.registration.key = Some(key);
        entry.registration.is_edge_triggered = is_edge_triggered;
        // The present state is reported at once.
        self.enqueue(slot.0);
    }

    #[inline]
    fn enqueue(&mut self, index: usize) {
        let registration = &mut self.sockets[index].registration;
        if registration.key.is_some() && !std::mem::replace(&mut registration.is_queued, true) {
            self.ready_slots.push_back(index);
        }
    }

    /// Queues the slot of a socket that changed; returns false if it is not a workload's.
    #[inline]
    pub(super) fn mark_changed(&mut self, socket: SocketId) -> bool {
        let owner = self.owners[kind_index(socket.kind())].get(socket.index());
        let Some(index) = owner.and_then(|owner| (*owner as usize).checked_sub(1)) else {
            return false;
        };
        self.enqueue(index);
        true
    }

    /// Records that a call was pending: the socket must change before it is ready again.
    #[inline]
    pub(super) fn mark_starved(&mut self, slot: SocketSlot) {
        self.sockets[slot.0].registration.is_starved = true;
    }

    /// Appends the keys of sockets that may be ready, up to the capacity of `keys`, least
    /// recently reported first.
    pub(super) fn collect_ready(&mut self, keys: &mut Vec<usize>) {
        let mut reported_slots = std::mem::take(&mut self.reported_slots);
        for index in reported_slots.drain(..) {
            let registration = self.sockets[index].registration;
            if !registration.is_starved && !registration.is_edge_triggered {
                self.enqueue(index);
            }
        }
        while keys.len() < keys.capacity() {
            let Some(index) = self.ready_slots.pop_front() else {
                break;
            };
            let registration = &mut self.sockets[index].registration;
            registration.is_queued = false;
            registration.is_starved = false;
            if let Some(key) = registration.key {
                keys.push(key);
                reported_slots.push(index);
            }
        }
        self.reported_slots = reported_slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready_keys(entries: &mut SocketTable) -> Vec<usize> {
        let mut keys = Vec::with_capacity(8);
        entries.collect_ready(&mut keys);
        keys
    }

    #[test]
    fn a_socket_is_reported_until_a_call_is_pending() {
        let mut entries = SocketTable::new();
        let level_triggered = entries.add(NetstackSocket::default());
        let edge_triggered = entries.add(NetstackSocket::default());
        entries.register(level_triggered, 10, false);
        entries.register(edge_triggered, 11, true);
        assert_eq!(ready_keys(&mut entries), [10, 11]);
        assert_eq!(ready_keys(&mut entries), [10], "not marked as starved");
        entries.mark_starved(level_triggered);
        assert!(ready_keys(&mut entries).is_empty());
        entries.enqueue(level_triggered.0);
        entries.enqueue(level_triggered.0);
        entries.enqueue(edge_triggered.0);
        assert_eq!(
            ready_keys(&mut entries),
            [10, 11],
            "once for several changes"
        );
    }

    #[test]
    fn data_without_space_comes_first_the_next_time() {
        let mut entries = SocketTable::new();
        for key in 0..5 {
            let slot = entries.add(NetstackSocket::default());
            entries.register(slot, key, false);
        }
        let mut keys = Vec::with_capacity(2);
        let mut keys_in_order = Vec::new();
        for _ in 0..5 {
            keys.clear();
            entries.collect_ready(&mut keys);
            keys_in_order.extend_from_slice(&keys);
        }
        assert_eq!(keys_in_order, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_freed_slot_is_reused() {
        let mut entries = SocketTable::new();
        let slot = entries.add(NetstackSocket::default());
        entries.register(slot, 1, false);
        assert!(entries.has_registrations());
        entries.remove(slot);
        assert!(!entries.has_registrations());
        assert!(ready_keys(&mut entries).is_empty());
        assert_eq!(entries.add(NetstackSocket::default()), slot);
    }
}
