//! Calls on TCP sockets.

use std::net::{IpAddr, SocketAddr};
use std::task::Poll;

use super::Stack;
use crate::Nanos;
use crate::addressing::on_the_link;
use crate::error::StackError;
use crate::socket::{SocketId, TcpState, Unreachable};

/// TCP.
impl Stack {
    /// Listens on a local address and port, for at most `backlog` connections not yet accepted; requests
    /// beyond are not answered, so that they come again.
    ///
    /// # Errors
    /// [`StackError::PortTaken`] (also for port 0), [`StackError::NotLocal`],
    /// [`StackError::TooManySockets`].
    pub fn tcp_listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketId, StackError> {
        let address = local.ip();
        if !address.is_unspecified() && !self.link.own.is_own(address) {
            return Err(StackError::NotLocal { address });
        }
        self.tcp.listen(local, backlog)
    }

    /// Takes the next connection of a listening socket.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_accept(&mut self, listener: SocketId) -> Poll<Result<SocketId, StackError>> {
        self.tcp.accept(listener)
    }

    /// Begins a connection; it stands once [`Stack::tcp_state`] says so. `local`: address and port to come
    /// from, where unspecified and 0 are chosen. There is no time limit but the caller's.
    ///
    /// # Errors
    /// [`StackError::NoRoute`], [`StackError::NotLocal`], [`StackError::PortTaken`],
    /// [`StackError::TooManySockets`].
    pub fn tcp_connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, StackError> {
        let remote = on_the_link(remote);
        let socket = self
            .tcp
            .connect(remote, &mut self.link, local.map(on_the_link))?;
        self.link.counters.tcp.active_opens += 1;
        Ok(socket)
    }

    /// Where a connection stands.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_state(&mut self, socket: SocketId) -> Result<TcpState, StackError> {
        self.tcp.state(socket)
    }

    /// What routers or the far host said last of packets of this connection that did not arrive, and who did: why it
    /// does not come to stand, or nothing moves.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_trouble(
        &self,
        socket: SocketId,
    ) -> Result<Option<(Unreachable, IpAddr)>, StackError> {
        self.tcp.trouble(socket)
    }

    /// Offers room in the send buffer to `fill`, which says how many bytes it wrote from its start.
    ///
    /// The room is never empty, and may be less than all that is free: where the buffer wraps, call again.
    /// Payload leaves with the next [`Stack::turn`] or [`Stack::flush`].
    ///
    /// # Errors
    /// [`StackError::Refused`], [`StackError::Reset`], [`StackError::Finished`], [`StackError::Stale`].
    #[inline]
    pub fn tcp_send(
        &mut self,
        socket: SocketId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<Result<usize, StackError>> {
        self.tcp.send(socket, fill)
    }

    /// Shows what has come to `take`, which says how many bytes it took from the front; the rest is shown
    /// again. Nothing is shown once, and from then on, when the far end has finished sending.
    ///
    /// # Errors
    /// [`StackError::Refused`], [`StackError::Reset`], [`StackError::Stale`].
    #[inline]
    pub fn tcp_receive<R>(
        &mut self,
        socket: SocketId,
        take: impl FnOnce(&[u8]) -> (usize, R),
    ) -> Poll<Result<R, StackError>> {
        self.tcp.receive(socket, take)
    }

    /// Says that nothing more will be sent; the other direction stays open.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_finish(&mut self, socket: SocketId) -> Result<(), StackError> {
        self.tcp.finish(socket)
    }

    /// Bytes that wait at a connection: sent or to be sent and not acknowledged; received and not fetched.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_queued(&mut self, socket: SocketId) -> Result<(usize, usize), StackError> {
        self.tcp.queued(socket)
    }

    /// When payload came last: to the port ("driver in") and into the connection's buffer ("stack in");
    /// `None` where stages are not watched.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_came(&self, socket: SocketId) -> Result<Option<(Nanos, Nanos)>, StackError> {
        self.tcp.came(socket)
    }
}
