//! Listening sockets and the queues of connections not yet accepted.

use std::net::{IpAddr, SocketAddr};
use std::task::Poll;

use smoltcp::socket::tcp::State;

use super::connection::Owner;
use super::{LISTENERS, Tcp};
use crate::Nanos;
use crate::error::StackError;
use crate::link::Link;
use crate::socket::{SocketId, SocketKind};
use crate::wire::ip::Header;

/// Listening socket.
#[derive(Default)]
pub(crate) struct Listener {
    open: bool,
    generation: u32,
    address: Option<IpAddr>,
    port: u16,
    backlog: u32,
    /// Connections started and not accepted.
    pending: u32,
    /// Half-open connections, in the order in which they were started: a doubly linked list through
    /// [`super::Connection::next`] and [`super::Connection::before`].
    half_open: u32,
    oldest: Option<u32>,
    youngest: Option<u32>,
    /// Established connections to be accepted: a list through [`super::Connection::next`].
    first: Option<u32>,
    last: Option<u32>,
}

impl Tcp {
    pub(crate) fn listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
    ) -> Result<SocketId, StackError> {
        let port = local.port();
        if port == 0 || self.listener_of(port).is_some() {
            return Err(StackError::PortTaken { port });
        }
        let free = self.listeners.iter().position(|listener| !listener.open);
        let index = free.ok_or(StackError::TooManySockets {
            kind: "listening",
            limit: LISTENERS as u32,
            key: "close one, their number is fixed",
        })?;
        let generation = self.listeners[index].generation;
        self.listeners[index] = Listener {
            open: true,
            generation,
            address: (!local.ip().is_unspecified()).then_some(local.ip()),
            port,
            backlog: backlog.max(1),
            ..Listener::default()
        };
        Ok(SocketId {
            kind: SocketKind::Listener,
            index: index as u32,
            generation,
        })
    }

    fn listener_of(&self, port: u16) -> Option<usize> {
        let found = |listener: &Listener| listener.open && listener.port == port;
        self.listeners.iter().position(found)
    }

    fn listener(&self, id: SocketId, call: &'static str) -> Result<usize, StackError> {
        if id.kind != SocketKind::Listener {
            return Err(StackError::WrongKind {
                kind: id.kind.name(),
                call,
            });
        }
        let index = id.index as usize;
        let listener = self.listeners.get(index);
        listener
            .filter(|listener| listener.open && listener.generation == id.generation)
            .map(|_| index)
            .ok_or(StackError::Stale)
    }

    pub(crate) fn listener_generation(&self, index: u32) -> Option<u32> {
        let listener = &self.listeners[index as usize];
        listener.open.then_some(listener.generation)
    }

    pub(crate) fn accept(&mut self, id: SocketId) -> Poll<Result<SocketId, StackError>> {
        let at = match self.listener(id, "tcp_accept") {
            Ok(at) => at,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(index) = self.listeners[at].first else {
            return Poll::Pending;
        };
        let connection = &mut self.connections[index as usize];
        connection.owner = Owner::Application;
        let (next, generation) = (connection.next.take(), connection.generation);
        let listener = &mut self.listeners[at];
        listener.first = next;
        listener.pending -= 1;
        if next.is_none() {
            listener.last = None;
        }
        Poll::Ready(Ok(SocketId {
            kind: SocketKind::Tcp,
            index,
            generation,
        }))
    }

    /// Returns address and port of a listener; address `None`: any.
    pub(crate) fn listens_on(&self, id: SocketId) -> Result<(Option<IpAddr>, u16), StackError> {
        let listener = &self.listeners[self.listener(id, "local")?];
        Ok((listener.address, listener.port))
    }

    /// Closes a listener; connections not yet accepted are reset.
    pub(crate) fn unlisten(&mut self, link: &mut Link, id: SocketId) -> Result<(), StackError> {
        let at = self.listener(id, "close")?;
        let generation = self.listeners[at].generation.wrapping_add(1);
        let ended = Listener {
            generation,
            ..Listener::default()
        };
        if std::mem::replace(&mut self.listeners[at], ended).pending == 0 {
            return Ok(());
        }
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.owner == Owner::Listener(at as u32) {
                connection.disown(link.now);
                connection.break_off(&mut link.counters);
                self.dirty.push(index as u32);
            }
        }
        Ok(())
    }

    /// Starts a connection for a SYN. Returns `None` if the SYN is dropped and counted, and an
    /// error if no listener has that port.
    pub(super) fn admit(
        &mut self,
        link: &mut Link,
        header: &Header,
        (remote_port, port): (u16, u16),
    ) -> Result<Option<u32>, ()> {
        let at = self.listener_of(port).ok_or(())?;
        let listener = &self.listeners[at];
        if listener.address.is_some_and(|own| own != header.to) || !link.own.is_own(header.to) {
            return Err(());
        }
        let full = listener.pending >= listener.backlog
            || listener.half_open >= most_half_open(self.settings.sockets);
        if full && !self.give_up_half_open(link, Some(at as u32)) {
            link.counters.tcp.listen_overflows += 1;
            return Ok(None);
        }
        let Ok(index) = self.take(link) else {
            link.counters.tcp.no_sockets += 1;
            return Ok(None);
        };
        let connection = &mut self.connections[index as usize];
        let listens = connection.socket().listen((header.to, port));
        debug_assert!(listens.is_ok(), "a free connection is closed");
        let local = SocketAddr::new(header.to, port);
        let remote = SocketAddr::new(header.from, remote_port);
        connection.begin(local, remote, Owner::Listener(at as u32), link.now);
        // The state after a valid SYN; an invalid one leaves smoltcp's socket listening.
        connection.state = State::SynReceived;
        self.listeners[at].pending += 1;
        self.join_half_open(index, at);
        self.table.insert(self.hash(local, remote), index);
        link.counters.tcp.passive_opens += 1;
        Ok(Some(index))
    }

    /// Moves an established connection to the accept queue.
    pub(super) fn line_up(&mut self, index: u32, at: u32) {
        self.leave_half_open(index, at);
        let listener = &mut self.listeners[at as usize];
        match listener.last.replace(index) {
            Some(last) => self.connections[last as usize].next = Some(index),
            None => listener.first = Some(index),
        }
        self.ready.push(self.connections.len() as u32 + at);
    }

    /// Removes a connection that was not established from its listener.
    pub(super) fn not_lined_up(&mut self, index: u32, at: u32) {
        self.leave_half_open(index, at);
        self.listeners[at as usize].pending -= 1;
    }

    /// Appends a connection to its listener's half-open list.
    fn join_half_open(&mut self, index: u32, at: usize) {
        let listener = &mut self.listeners[at];
        listener.half_open += 1;
        let before = listener.youngest.replace(index);
        match before {
            Some(before) => self.connections[before as usize].next = Some(index),
            None => listener.oldest = Some(index),
        }
        self.connections[index as usize].before = before;
    }

    /// Removes a connection from its listener's half-open list.
    fn leave_half_open(&mut self, index: u32, at: u32) {
        let connection = &mut self.connections[index as usize];
        let (before, next) = (connection.before.take(), connection.next.take());
        let listener = &mut self.listeners[at as usize];
        listener.half_open -= 1;
        match before {
            Some(before) => self.connections[before as usize].next = next,
            None => listener.oldest = next,
        }
        match next {
            Some(next) => self.connections[next as usize].before = before,
            None => listener.youngest = before,
        }
    }

    /// Drops the oldest half-open connection of a listener (or of any) that received no reply
    /// within a timeout, to make place for a newer one. Returns whether there was one.
    #[cold]
    pub(super) fn give_up_half_open(&mut self, link: &mut Link, of: Option<u32>) -> bool {
        // Initial timeout for an unknown path (RFC 6298, section 2); shorter settings apply to
        // known paths.
        const LEAST: Nanos = 1_000_000_000;
        let patience = (Nanos::from(self.clock.second_us) * 1_000).max(LEAST);
        let since = |&index: &u32| self.connections[index as usize].since;
        let oldest = match of {
            Some(at) => self.listeners[at as usize].oldest,
            None => {
                let all = self.listeners.iter();
                all.filter_map(|listener| listener.oldest).min_by_key(since)
            }
        };
        let due = oldest.filter(|index| link.now >= since(index) + patience);
        let Some((index, at)) = due.and_then(|index| Some((index, self.half_open_of(index)?)))
        else {
            return false;
        };
        self.drop_half_open(link, index, at);
        true
    }

    /// Returns the listener of a half-open connection.
    pub(super) fn half_open_of(&self, index: u32) -> Option<u32> {
        let connection = &self.connections[index as usize];
        match connection.owner {
            Owner::Listener(at) if connection.state == State::SynReceived => Some(at),
            _ => None,
        }
    }

    /// Drops a half-open connection without a reset: its peer may not exist, and otherwise receives
    /// one with its next segment.
    pub(super) fn drop_half_open(&mut self, link: &mut Link, index: u32, at: u32) {
        link.counters.tcp.attempt_fails += 1;
        self.not_lined_up(index, at);
        self.drop_connection(index);
    }
}

/// Returns the maximum number of half-open connections of a listener: some sockets are left for
/// other listeners and for outgoing connections.
const fn most_half_open(sockets: u32) -> u32 {
    sockets - sockets / 8
}
