//! Listening sockets and the queues of connections not yet accepted.

use std::net::{IpAddr, SocketAddr};
use std::task::Poll;

use smoltcp::socket::tcp::State;

use super::connection::ConnectionOwner;
use super::{MAX_LISTENERS, TcpLayer};
use crate::Nanos;
use crate::error::StackError;
use crate::link::LinkLayer;
use crate::socket::{SocketId, SocketKind};
use crate::wire::ip::IpHeader;

/// Listening socket.
#[derive(Default)]
pub(crate) struct ListenSocket {
    is_open: bool,
    generation: u32,
    address: Option<IpAddr>,
    port: u16,
    backlog: u32,
    /// Connections started and not accepted.
    pending: u32,
    /// Half-open connections, in the order in which they were started: a doubly linked list through
    /// [`super::TcpConnection::next`] and [`super::TcpConnection::previous`].
    half_open: u32,
    oldest_half_open: Option<u32>,
    newest_half_open: Option<u32>,
    /// Established connections to be accepted: a list through [`super::TcpConnection::next`].
    first_established: Option<u32>,
    last_established: Option<u32>,
}

impl TcpLayer {
    pub(crate) fn listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
    ) -> Result<SocketId, StackError> {
        let port = local.port();
        if port == 0 || self.listener_of(port).is_some() {
            return Err(StackError::PortInUse { port });
        }
        let free = self.listeners.iter().position(|listener| !listener.is_open);
        let index = free.ok_or(StackError::TooManySockets {
            kind: "listening",
            limit: MAX_LISTENERS as u32,
            remedy: "close one, their number is fixed",
        })?;
        let generation = self.listeners[index].generation;
        self.listeners[index] = ListenSocket {
            is_open: true,
            generation,
            address: (!local.ip().is_unspecified()).then_some(local.ip()),
            port,
            backlog: backlog.max(1),
            ..ListenSocket::default()
        };
        Ok(SocketId {
            kind: SocketKind::Listener,
            index: index as u32,
            generation,
        })
    }

    fn listener_of(&self, port: u16) -> Option<usize> {
        let is_match = |listener: &ListenSocket| listener.is_open && listener.port == port;
        self.listeners.iter().position(is_match)
    }

    fn listener_index(&self, id: SocketId, call: &'static str) -> Result<usize, StackError> {
        if id.kind != SocketKind::Listener {
            return Err(StackError::WrongKind {
                kind: id.kind.name(),
                call,
            });
        }
        let index = id.index as usize;
        let listener = self.listeners.get(index);
        listener
            .filter(|listener| listener.is_open && listener.generation == id.generation)
            .map(|_| index)
            .ok_or(StackError::SocketClosed)
    }

    pub(crate) fn listener_generation(&self, index: u32) -> Option<u32> {
        let listener = &self.listeners[index as usize];
        listener.is_open.then_some(listener.generation)
    }

    pub(crate) fn accept(&mut self, id: SocketId) -> Poll<Result<SocketId, StackError>> {
        let at = match self.listener_index(id, "tcp_accept") {
            Ok(at) => at,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let Some(index) = self.listeners[at].first_established else {
            return Poll::Pending;
        };
        let connection = &mut self.connections[index as usize];
        connection.owner = ConnectionOwner::Application;
        let (next, generation) = (connection.next.take(), connection.generation);
        let listener = &mut self.listeners[at];
        listener.first_established = next;
        listener.pending -= 1;
        if next.is_none() {
            listener.last_established = None;
        }
        Poll::Ready(Ok(SocketId {
            kind: SocketKind::Tcp,
            index,
            generation,
        }))
    }

    /// Returns address and port of a listener; address `None`: any.
    pub(crate) fn listen_address(&self, id: SocketId) -> Result<(Option<IpAddr>, u16), StackError> {
        let listener = &self.listeners[self.listener_index(id, "local")?];
        Ok((listener.address, listener.port))
    }

    /// Closes a listener; connections not yet accepted are reset.
    pub(crate) fn close_listener(
        &mut self,
        link: &mut LinkLayer,
        id: SocketId,
    ) -> Result<(), StackError> {
        let at = self.listener_index(id, "close")?;
        let generation = self.listeners[at].generation.wrapping_add(1);
        let closed = ListenSocket {
            generation,
            ..ListenSocket::default()
        };
        if std::mem::replace(&mut self.listeners[at], closed).pending == 0 {
            return Ok(());
        }
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.owner == ConnectionOwner::Listener(at as u32) {
                connection.orphan(link.now);
                connection.reset(&mut link.counters);
                self.dirty.push(index as u32);
            }
        }
        Ok(())
    }

    /// Starts a connection for a SYN. Returns `None` if the SYN is dropped and counted, and an
    /// error if no listener has that port.
    pub(super) fn accept_syn(
        &mut self,
        link: &mut LinkLayer,
        header: &IpHeader,
        (remote_port, port): (u16, u16),
    ) -> Result<Option<u32>, ()> {
        let at = self.listener_of(port).ok_or(())?;
        let listener = &self.listeners[at];
        if listener
            .address
            .is_some_and(|bound_address| bound_address != header.to)
            || !link.addressing.is_local(header.to)
        {
            return Err(());
        }
        let full = listener.pending >= listener.backlog
            || listener.half_open >= max_half_open(self.settings.sockets);
        if full && !self.evict_half_open(link, Some(at as u32)) {
            link.counters.tcp.listen_overflows += 1;
            return Ok(None);
        }
        let Ok(index) = self.allocate_connection(link) else {
            link.counters.tcp.no_sockets += 1;
            return Ok(None);
        };
        let connection = &mut self.connections[index as usize];
        let result = connection.socket().listen((header.to, port));
        debug_assert!(result.is_ok(), "a free connection is closed");
        let local = SocketAddr::new(header.to, port);
        let remote = SocketAddr::new(header.from, remote_port);
        connection.reset_for(
            local,
            remote,
            ConnectionOwner::Listener(at as u32),
            link.now,
        );
        // The state after a valid SYN; an invalid one leaves smoltcp's socket listening.
        connection.state = State::SynReceived;
        self.listeners[at].pending += 1;
        self.push_half_open(index, at);
        self.table.insert(self.pair_hash(local, remote), index);
        link.counters.tcp.passive_opens += 1;
        Ok(Some(index))
    }

    /// Moves an established connection to the accept queue.
    pub(super) fn enqueue_established(&mut self, index: u32, at: u32) {
        self.remove_half_open(index, at);
        let listener = &mut self.listeners[at as usize];
        match listener.last_established.replace(index) {
            Some(last) => self.connections[last as usize].next = Some(index),
            None => listener.first_established = Some(index),
        }
        self.ready.push(self.connections.len() as u32 + at);
    }

    /// Removes a connection that was not established from its listener.
    pub(super) fn remove_pending(&mut self, index: u32, at: u32) {
        self.remove_half_open(index, at);
        self.listeners[at as usize].pending -= 1;
    }

    /// Appends a connection to its listener's half-open list.
    fn push_half_open(&mut self, index: u32, at: usize) {
        let listener = &mut self.listeners[at];
        listener.half_open += 1;
        let previous = listener.newest_half_open.replace(index);
        match previous {
            Some(previous) => self.connections[previous as usize].next = Some(index),
            None => listener.oldest_half_open = Some(index),
        }
        self.connections[index as usize].previous = previous;
    }

    /// Removes a connection from its listener's half-open list.
    fn remove_half_open(&mut self, index: u32, at: u32) {
        let connection = &mut self.connections[index as usize];
        let (previous, next) = (connection.previous.take(), connection.next.take());
        let listener = &mut self.listeners[at as usize];
        listener.half_open -= 1;
        match previous {
            Some(previous) => self.connections[previous as usize].next = next,
            None => listener.oldest_half_open = next,
        }
        match next {
            Some(next) => self.connections[next as usize].previous = previous,
            None => listener.newest_half_open = previous,
        }
    }

    /// Drops the oldest half-open connection of a listener (or of any) that received no reply
    /// within a timeout, to make place for a newer one. Returns whether there was one.
    #[cold]
    pub(super) fn evict_half_open(
        &mut self,
        link: &mut LinkLayer,
        at_listener: Option<u32>,
    ) -> bool {
        // Initial timeout for an unknown path (RFC 6298, section 2); shorter settings apply to
        // known paths.
        const MIN_TIMEOUT_NS: Nanos = 1_000_000_000;
        let timeout = (Nanos::from(self.clock.min_rto_us) * 1_000).max(MIN_TIMEOUT_NS);
        let since = |&index: &u32| self.connections[index as usize].since;
        let oldest = match at_listener {
            Some(at) => self.listeners[at as usize].oldest_half_open,
            None => {
                let all = self.listeners.iter();
                all.filter_map(|listener| listener.oldest_half_open)
                    .min_by_key(since)
            }
        };
        let expired = oldest.filter(|index| link.now >= since(index) + timeout);
        let Some((index, at)) =
            expired.and_then(|index| Some((index, self.half_open_listener(index)?)))
        else {
            return false;
        };
        self.drop_half_open(link, index, at);
        true
    }

    /// Returns the listener of a half-open connection.
    pub(super) fn half_open_listener(&self, index: u32) -> Option<u32> {
        let connection = &self.connections[index as usize];
        match connection.owner {
            ConnectionOwner::Listener(at) if connection.state == State::SynReceived => Some(at),
            _ => None,
        }
    }

    /// Drops a half-open connection without a reset: its peer may not exist, and otherwise receives
    /// one with its next segment.
    pub(super) fn drop_half_open(&mut self, link: &mut LinkLayer, index: u32, at: u32) {
        link.counters.tcp.attempt_fails += 1;
        self.remove_pending(index, at);
        self.free_connection(index);
    }
}

/// Returns the maximum number of half-open connections of a listener: some sockets are left for
/// other listeners and for outgoing connections.
const fn max_half_open(sockets: u32) -> u32 {
    sockets - sockets / 8
}
