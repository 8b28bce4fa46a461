//! Socket calls for TCP.

use std::net::{IpAddr, SocketAddr};
use std::task::Poll;

use super::Stack;
use crate::Nanos;
use crate::addressing::without_scope;
use crate::error::StackError;
use crate::socket::{SocketId, TcpState, UnreachableReason};

/// TCP calls.
impl Stack {
    /// Listens on a local address and port, with up to `backlog` connections not yet accepted; SYNs
    /// beyond are dropped, so that clients retransmit them.
    ///
    /// # Errors
    /// [`StackError::PortInUse`] (also for port 0), [`StackError::NotLocal`],
    /// [`StackError::TooManySockets`].
    pub fn tcp_listen(&mut self, local: SocketAddr, backlog: u32) -> Result<SocketId, StackError> {
        let address = local.ip();
        if !address.is_unspecified() && !self.link.addressing.is_local(address) {
            return Err(StackError::NotLocal { address });
        }
        self.tcp.listen(local, backlog)
    }

    /// Accepts the next connection of a listening socket.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_accept(&mut self, listener: SocketId) -> Poll<Result<SocketId, StackError>> {
        self.tcp.accept(listener)
    }

    /// Starts a connection; [`Stack::tcp_state`] reports when it is established. `local`: source
    /// address and port; an unspecified address and port 0 are chosen by the stack. Only the
    /// caller's timeout limits the attempt.
    ///
    /// # Errors
    /// [`StackError::NoRoute`], [`StackError::NotLocal`], [`StackError::PortInUse`],
    /// [`StackError::TooManySockets`].
    pub fn tcp_connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, StackError> {
        let remote = without_scope(remote);
        let socket = self
            .tcp
            .connect(remote, &mut self.link, local.map(without_scope))?;
        self.link.counters.tcp.active_opens += 1;
        Ok(socket)
    }

    /// Returns the state of a connection.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_state(&mut self, socket: SocketId) -> Result<TcpState, StackError> {
        self.tcp.state(socket)
    }

    /// Returns the last ICMP error for packets of this connection, and its sender: the reason why
    /// the connection is not established or makes no progress.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_icmp_error(
        &self,
        socket: SocketId,
    ) -> Result<Option<(UnreachableReason, IpAddr)>, StackError> {
        self.tcp.icmp_error(socket)
    }

    /// Passes free space of the send buffer to `fill`, which returns how many bytes it wrote from
    /// the start.
    ///
    /// The slice is never empty, and may be less than all free space: where the buffer wraps, call
    /// again. Payload leaves with the next [`Stack::poll`] or [`Stack::flush`].
    ///
    /// # Errors
    /// [`StackError::Refused`], [`StackError::ConnectionReset`], [`StackError::Finished`],
    /// [`StackError::Stale`].
    #[inline]
    pub fn tcp_send(
        &mut self,
        socket: SocketId,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Poll<Result<usize, StackError>> {
        self.tcp.send(socket, fill)
    }

    /// Passes received payload to `take`, which returns how many bytes it consumed from the front;
    /// the rest is passed again. The slice is empty once the peer has finished sending, and in
    /// every call after that.
    ///
    /// # Errors
    /// [`StackError::Refused`], [`StackError::ConnectionReset`], [`StackError::Stale`].
    #[inline]
    pub fn tcp_receive<R>(
        &mut self,
        socket: SocketId,
        take: impl FnOnce(&[u8]) -> (usize, R),
    ) -> Poll<Result<R, StackError>> {
        self.tcp.receive(socket, take)
    }

    /// Finishes sending (FIN); the other direction stays open.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_finish(&mut self, socket: SocketId) -> Result<(), StackError> {
        self.tcp.finish(socket)
    }

    /// Returns the bytes in a connection's buffers: queued or unacknowledged for sending; received
    /// and unread.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_queued(&mut self, socket: SocketId) -> Result<(usize, usize), StackError> {
        self.tcp.buffered_bytes(socket)
    }

    /// Returns when the last payload arrived: at the port ("driver in") and in the connection's
    /// buffer ("stack in"); `None` while stages are not watched.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn tcp_arrival_times(
        &self,
        socket: SocketId,
    ) -> Result<Option<(Nanos, Nanos)>, StackError> {
        self.tcp.arrival_times(socket)
    }
}
