//! Table of the workloads' sockets on a stack, with the queue of ready ones.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use linerate_metric::plan::Protocol;
use linerate_stack::{SocketId, SocketKind};

/// Handle of a socket of an [`OnStack`](super::OnStack).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub(super) usize);

/// State of a workload's socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    /// `None` before it is connected and after it is closed.
    pub(super) socket: Option<SocketId>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// Destination of each datagram of an unconnected socket.
    pub(super) addressee: Option<SocketAddr>,
    /// Sender of the last datagram.
    pub(super) from: Option<SocketAddr>,
    pub(super) queue_drops: u32,
    /// True if a workload receives from it, and gets refused sends as errors there.
    pub(super) reads: bool,
    /// Sends refused by ICMP errors, where no workload receives.
    pub(super) refusals: u32,
    pub(super) batch: usize,
    pub(super) in_place: InPlace,
    /// Host whose datagrams alone are accepted, from any port, and replied to.
    pub(super) asker: Option<IpAddr>,
    /// Bytes of a stream that the stack accepted, modulo 2^32.
    pub(super) stream_bytes: u32,
    /// Number of the first packet with a transmit timestamp; `None` without timestamps.
    pub(super) numbered_from: Option<u32>,
    /// Protocol of a socket that is opened by `bind` or `connect`.
    pub(super) protocol: Option<Protocol>,
    pub(super) told: Telling,
}

impl Entry {
    /// Returns the destination of a datagram: the given one, or the last sender where one host is
    /// accepted.
    #[inline]
    pub(super) fn to(&self) -> Option<SocketAddr> {
        self.addressee.or(self.asker.and(self.from))
    }
}

/// Directions in which payload is not copied between the program's memory and the stack's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InPlace {
    pub(super) sent: bool,
    pub(super) received: bool,
}

/// Registration of a socket for readiness.
#[derive(Clone, Copy, Default)]
pub(super) struct Telling {
    key: Option<usize>,
    /// Edge-triggered: reported once for each change, not as long as it is ready.
    changes: bool,
    queued: bool,
    /// True if a call was pending since the last report.
    starved: bool,
}

/// Number of socket kinds.
const KINDS: usize = 3;

pub(super) struct Entries {
    all: Vec<Entry>,
    /// Slots to be reused.
    unused: Vec<usize>,
    /// Slot plus one by kind and index in the stack; zero: not a workload's socket.
    owners: [Vec<u32>; KINDS],
    /// Slots to be reported as ready.
    changed: VecDeque<usize>,
    /// Slots reported last, which may still be ready.
    told: Vec<usize>,
    /// Number of registered sockets.
    enrolled: usize,
}

fn row(kind: SocketKind) -> usize {
    match kind {
        SocketKind::Udp => 0,
        SocketKind::Tcp => 1,
        SocketKind::Listener => 2,
    }
}

impl Entries {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::with_capacity(64),
            unused: Vec::new(),
            owners: Default::default(),
            changed: VecDeque::with_capacity(64),
            told: Vec::with_capacity(64),
            enrolled: 0,
        }
    }

    pub(super) fn add(&mut self, entry: Entry) -> Place {
        let at = match self.unused.pop() {
            Some(at) => {
                self.all[at] = entry;
                at
            }
            None => {
                self.all.push(entry);
                self.all.len() - 1
            }
        };
        if let Some(socket) = entry.socket {
            self.own(at, socket);
        }
        Place(at)
    }

    /// Returns whether exactly one slot is in use.
    #[inline]
    pub(super) fn is_one(&self) -> bool {
        self.all.len() - self.unused.len() == 1
    }

    /// Records the stack's socket of a slot.
    pub(super) fn open(&mut self, place: Place, socket: SocketId) {
        self.all[place.0].socket = Some(socket);
        self.own(place.0, socket);
    }

    fn own(&mut self, at: usize, socket: SocketId) {
        let owners = &mut self.owners[row(socket.kind())];
        if owners.len() <= socket.index() {
            owners.resize(socket.index() + 1, 0);
        }
        owners[socket.index()] = at as u32 + 1;
    }

    fn disown(&mut self, socket: SocketId) {
        if let Some(owner) = self.owners[row(socket.kind())].get_mut(socket.index()) {
            *owner = 0;
        }
    }

    /// Frees a slot; returns its socket.
    pub(super) fn remove(&mut self, place: Place) -> Option<SocketId> {
        let entry = std::mem::take(&mut self.all[place.0]);
        self.enrolled -= usize::from(entry.told.key.is_some());
        self.unused.push(place.0);
        if let Some(socket) = entry.socket {
            self.disown(socket);
        }
        entry.socket
    }

    /// Frees all slots; returns their sockets.
    pub(super) fn clear(&mut self) -> Vec<SocketId> {
        self.unused.clear();
        self.changed.clear();
        self.told.clear();
        self.enrolled = 0;
        self.owners.iter_mut().for_each(Vec::clear);
        let sockets = self.all.drain(..).filter_map(|entry| entry.socket);
        sockets.collect()
    }

    #[inline]
    pub(super) fn get(&self, place: Place) -> &Entry {
        &self.all[place.0]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: Place) -> &mut Entry {
        &mut self.all[place.0]
    }

    /// Returns the sockets of a kind, in the order of opening.
    pub(super) fn of(&self, kind: SocketKind) -> impl Iterator<Item = SocketId> + '_ {
        let sockets = self.all.iter().filter_map(|entry| entry.socket);
        sockets.filter(move |socket| socket.kind() == kind)
    }

    /// Returns the UDP sockets from which no workload receives, among the first `most` of all.
    pub(super) fn unread(&mut self, most: usize) -> impl Iterator<Item = (SocketId, &mut u32)> {
        let first = self.all.iter_mut().take(most);
        first.filter(|entry| !entry.reads).filter_map(|entry| {
            let socket = entry.socket?;
            (socket.kind() == SocketKind::Udp).then_some((socket, &mut entry.refusals))
        })
    }

    /// Returns whether any socket is registered.
    #[inline]
    pub(super) fn tells(&self) -> bool {
        self.enrolled > 0
    }

    /// Registers a socket under a key.
    pub(super) fn enrol(&mut self, place: Place, key: usize, changes: bool) {
        let entry = &mut self.all[place.0];
        self.enrolled += usize::from(entry.told.key.is_none());
        entry.told.key = Some(key);
        entry.told.changes = changes;
        // The present state is reported at once.
        self.queue(place.0);
    }

    fn queue(&mut self, at: usize) {
        let told = &mut self.all[at].told;
        if told.key.is_some() && !std::mem::replace(&mut told.queued, true) {
            self.changed.push_back(at);
        }
    }

    /// Queues the slot of a socket that changed; returns false if it is not a workload's.
    #[inline]
    pub(super) fn change(&mut self, socket: SocketId) -> bool {
        let owner = self.owners[row(socket.kind())].get(socket.index());
        let Some(at) = owner.and_then(|owner| (*owner as usize).checked_sub(1)) else {
            return false;
        };
        self.queue(at);
        true
    }

    /// Records that a call was pending: the socket must change before it is ready again.
    #[inline]
    pub(super) fn starved(&mut self, place: Place) {
        self.all[place.0].told.starved = true;
    }

    /// Appends the keys of sockets that may be ready, up to the capacity of `keys`, least recently
    /// reported first.
    pub(super) fn tell(&mut self, keys: &mut Vec<usize>) {
        let mut told = std::mem::take(&mut self.told);
        for at in told.drain(..) {
            let telling = self.all[at].told;
            if !telling.starved && !telling.changes {
                self.queue(at);
            }
        }
        while keys.len() < keys.capacity() {
            let Some(at) = self.changed.pop_front() else {
                break;
            };
            let telling = &mut self.all[at].told;
            telling.queued = false;
            telling.starved = false;
            if let Some(key) = telling.key {
                keys.push(key);
                told.push(at);
            }
        }
        self.told = told;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(entries: &mut Entries) -> Vec<usize> {
        let mut keys = Vec::with_capacity(8);
        entries.tell(&mut keys);
        keys
    }

    #[test]
    fn a_socket_is_told_of_until_a_call_finds_nothing() {
        let mut entries = Entries::new();
        let level = entries.add(Entry::default());
        let edge = entries.add(Entry::default());
        entries.enrol(level, 10, false);
        entries.enrol(edge, 11, true);
        assert_eq!(told(&mut entries), [10, 11]);
        assert_eq!(told(&mut entries), [10], "not marked as starved");
        entries.starved(level);
        assert!(told(&mut entries).is_empty());
        entries.queue(level.0);
        entries.queue(level.0);
        entries.queue(edge.0);
        assert_eq!(told(&mut entries), [10, 11], "once for several changes");
    }

    #[test]
    fn what_does_not_fit_comes_first_the_next_time() {
        let mut entries = Entries::new();
        for key in 0..5 {
            let place = entries.add(Entry::default());
            entries.enrol(place, key, false);
        }
        let mut keys = Vec::with_capacity(2);
        let mut seen = Vec::new();
        for _ in 0..5 {
            keys.clear();
            entries.tell(&mut keys);
            seen.extend_from_slice(&keys);
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_place_that_was_given_up_is_used_again() {
        let mut entries = Entries::new();
        let place = entries.add(Entry::default());
        entries.enrol(place, 1, false);
        assert!(entries.tells());
        entries.remove(place);
        assert!(!entries.tells());
        assert!(told(&mut entries).is_empty());
        assert_eq!(entries.add(Entry::default()), place);
    }
}
