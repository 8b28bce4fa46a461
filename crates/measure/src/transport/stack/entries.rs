//! The sockets of workloads on a stack, and which of them may go on.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use linerate_metric::plan::Protocol;
use linerate_stack::{SocketId, SocketKind};

/// Names a socket of an [`OnStack`](super::OnStack).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub(super) usize);

/// What is kept of a workload's socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    /// None: it is not connected yet, or was closed.
    pub(super) socket: Option<SocketId>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// Whom each datagram is sent to by name.
    pub(super) addressee: Option<SocketAddr>,
    /// Who sent the last one.
    pub(super) from: Option<SocketAddr>,
    pub(super) queue_drops: u32,
    /// Somebody fetches its datagrams, and is told of refusals there.
    pub(super) reads: bool,
    /// Refusals (ICMP) of what it sent, where nobody does.
    pub(super) refusals: u32,
    pub(super) batch: usize,
    /// Payload is written and read in the stack's buffers.
    pub(super) in_place: InPlace,
    /// Whose datagrams alone are heard, and answered wherever they come from.
    pub(super) asker: Option<IpAddr>,
    /// Bytes of a stream that the stack took, modulo 2^32.
    pub(super) stream_bytes: u32,
    /// Stages are noted: departures are numbered from here.
    pub(super) numbered_from: Option<u32>,
    /// Of a socket that is opened when it is bound or connected.
    pub(super) protocol: Option<Protocol>,
    pub(super) told: Telling,
}

impl Entry {
    /// Whom a datagram goes to by name: the addressee, or whoever asked last where one host may.
    #[inline]
    pub(super) fn to(&self) -> Option<SocketAddr> {
        self.addressee.or(self.asker.and(self.from))
    }
}

/// Payload that is not copied between the program's memory and the stack's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InPlace {
    pub(super) sent: bool,
    pub(super) received: bool,
}

/// How somebody is told of a socket.
#[derive(Clone, Copy, Default)]
pub(super) struct Telling {
    key: Option<usize>,
    /// Once for each change, and not as long as it can go on.
    changes: bool,
    queued: bool,
    /// A call found nothing to do since it was told of.
    starved: bool,
}

/// Kinds of sockets.
const KINDS: usize = 3;

/// All sockets of workloads.
pub(super) struct Entries {
    all: Vec<Entry>,
    /// Places that were given up.
    unused: Vec<usize>,
    /// By kind and place in the stack: the place here, and one; zero is nobody's.
    owners: [Vec<u32>; KINDS],
    /// Places that may go on and are to be told of.
    changed: VecDeque<usize>,
    /// Those told of last, which may still be able to.
    told: Vec<usize>,
    /// Sockets that somebody is told of.
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

    /// Whether there is one place, and no more.
    #[inline]
    pub(super) fn is_one(&self) -> bool {
        self.all.len() - self.unused.len() == 1
    }

    /// A socket was opened for a place.
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

    /// The place is free; gives the socket that it had.
    pub(super) fn remove(&mut self, place: Place) -> Option<SocketId> {
        let entry = std::mem::take(&mut self.all[place.0]);
        self.enrolled -= usize::from(entry.told.key.is_some());
        self.unused.push(place.0);
        if let Some(socket) = entry.socket {
            self.disown(socket);
        }
        entry.socket
    }

    /// All places are free; gives the sockets that they had.
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

    /// Sockets of a kind, in the order of opening.
    pub(super) fn of(&self, kind: SocketKind) -> impl Iterator<Item = SocketId> + '_ {
        let sockets = self.all.iter().filter_map(|entry| entry.socket);
        sockets.filter(move |socket| socket.kind() == kind)
    }

    /// UDP sockets of which nobody fetches anything, the first `most` of all.
    pub(super) fn unread(&mut self, most: usize) -> impl Iterator<Item = (SocketId, &mut u32)> {
        let first = self.all.iter_mut().take(most);
        first.filter(|entry| !entry.reads).filter_map(|entry| {
            let socket = entry.socket?;
            (socket.kind() == SocketKind::Udp).then_some((socket, &mut entry.refusals))
        })
    }

    /// Whether anybody is told of sockets.
    #[inline]
    pub(super) fn tells(&self) -> bool {
        self.enrolled > 0
    }

    /// Has somebody told of a socket.
    pub(super) fn enrol(&mut self, place: Place, key: usize, changes: bool) {
        let entry = &mut self.all[place.0];
        self.enrolled += usize::from(entry.told.key.is_none());
        entry.told.key = Some(key);
        entry.told.changes = changes;
        // What can be done already is told at once.
        self.queue(place.0);
    }

    fn queue(&mut self, at: usize) {
        let told = &mut self.all[at].told;
        if told.key.is_some() && !std::mem::replace(&mut told.queued, true) {
            self.changed.push_back(at);
        }
    }

    /// Something changed at a socket of the stack; false when it is none of a workload's.
    #[inline]
    pub(super) fn change(&mut self, socket: SocketId) -> bool {
        let owner = self.owners[row(socket.kind())].get(socket.index());
        let Some(at) = owner.and_then(|owner| (*owner as usize).checked_sub(1)) else {
            return false;
        };
        self.queue(at);
        true
    }

    /// A call on a socket found nothing to do: it has to change before it can go on.
    #[inline]
    pub(super) fn starved(&mut self, place: Place) {
        self.all[place.0].told.starved = true;
    }

    /// Adds the keys of sockets that may go on, as far as there is room, those that were not told of for
    /// the longest time first.
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
        assert_eq!(told(&mut entries), [10], "nobody said that it starved");
        entries.starved(level);
        assert!(told(&mut entries).is_empty());
        entries.queue(level.0);
        entries.queue(level.0);
        entries.queue(edge.0);
        assert_eq!(told(&mut entries), [10, 11], "once, however much changed");
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
