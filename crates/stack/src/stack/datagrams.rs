//! Socket calls for UDP.

use std::net::SocketAddr;
use std::task::Poll;

use super::Stack;
use crate::addressing::without_scope;
use crate::error::StackError;
use crate::socket::{DatagramMeta, EchoResult, SocketId};

/// UDP calls.
impl Stack {
    /// Opens a UDP socket on a local address and port; an unspecified address means all, port 0 any
    /// free one.
    ///
    /// # Errors
    /// [`StackError::PortInUse`], [`StackError::NotLocal`], [`StackError::TooManySockets`].
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<SocketId, StackError> {
        let local = without_scope(local);
        let address = local.ip();
        if !address.is_unspecified() && !self.link.addressing.is_local(address) {
            return Err(StackError::NotLocal { address });
        }
        self.udp.open(local, self.config.udp_sockets)
    }

    /// Opens a UDP socket for datagrams between two addresses only, in addition to the socket that
    /// has the port: datagrams of this peer now arrive here, those of other peers at the other
    /// socket as before.
    ///
    /// # Errors
    /// [`StackError::PortInUse`] when there is such a socket, [`StackError::NotLocal`],
    /// [`StackError::NoRoute`], [`StackError::TooManySockets`].
    pub fn udp_bind_pair(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<SocketId, StackError> {
        if !self.link.addressing.is_local(local.ip()) {
            return Err(StackError::NotLocal {
                address: local.ip(),
            });
        }
        let address = peer.ip();
        self.link
            .next_hop(address)
            .ok_or(StackError::NoRoute { address })?;
        self.udp.open_pair(local, peer, self.config.udp_sockets)
    }

    /// Restricts a socket to datagrams of this peer, which becomes the default destination.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::NoRoute`].
    pub fn udp_connect(&mut self, socket: SocketId, peer: SocketAddr) -> Result<(), StackError> {
        let peer = without_scope(peer);
        let address = peer.ip();
        self.link
            .next_hop(address)
            .ok_or(StackError::NoRoute { address })?;
        self.udp.connect(socket, peer)
    }

    /// Returns whether a datagram can be sent now: the ring has space, and no fragmented datagram
    /// is still leaving.
    #[inline]
    pub fn udp_can_send(&mut self) -> bool {
        self.udp.can_send(&mut self.link)
    }

    /// Sends a datagram of `bytes`, written by `fill`, to `to` or to the connected peer.
    ///
    /// It leaves with the next [`Stack::poll`] or [`Stack::flush`]. Pending while the ring is full,
    /// or while a datagram is leaving in fragments. The buffer's content before `fill` is
    /// undefined.
    ///
    /// # Errors
    /// [`StackError::TooLong`], [`StackError::NotConnected`], [`StackError::NoRoute`],
    /// [`StackError::Stale`].
    #[inline]
    pub fn udp_send(
        &mut self,
        socket: SocketId,
        to: Option<SocketAddr>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        self.udp.send(&mut self.link, socket, to, bytes, fill)
    }

    /// Sends up to `count` datagrams of `bytes`, the nth written by `fill(n, …)`; returns the
    /// number sent.
    ///
    /// # Errors
    /// Errors of [`Stack::udp_send`], if the first datagram fails.
    #[inline]
    pub fn udp_send_burst(
        &mut self,
        socket: SocketId,
        to: Option<SocketAddr>,
        bytes: usize,
        count: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Poll<Result<usize, StackError>> {
        let size = (bytes, count);
        self.udp.send_burst(&mut self.link, socket, to, size, fill)
    }

    /// Receives one datagram and passes it to `take`.
    ///
    /// # Errors
    /// For a connected socket, once each: [`StackError::Refused`] after the peer reported its port
    /// unreachable, and [`StackError::NeighborSilent`] after its next hop did not answer.
    /// [`StackError::Stale`].
    #[inline]
    pub fn udp_receive<R>(
        &mut self,
        socket: SocketId,
        take: impl FnOnce(&[u8], DatagramMeta) -> R,
    ) -> Poll<Result<R, StackError>> {
        self.udp.receive(&mut self.link, socket, take)
    }

    /// Receives the waiting datagrams, up to `max_count`, and passes each to `take`; returns the
    /// number received.
    ///
    /// # Errors
    /// Errors of [`Stack::udp_receive`], if the first datagram fails.
    #[inline]
    pub fn udp_receive_burst(
        &mut self,
        socket: SocketId,
        max_count: usize,
        mut take: impl FnMut(&[u8], DatagramMeta),
    ) -> Poll<Result<usize, StackError>> {
        for number in 0..max_count {
            let result = self.udp.receive(&mut self.link, socket, |bytes, meta| {
                take(bytes, meta);
            });
            match result {
                Poll::Ready(Ok(())) => {}
                _ if number > 0 => return Poll::Ready(Ok(number)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(max_count))
    }

    /// Sends the first datagram of the queue back in the frame in which it arrived: as many bytes
    /// of it as `reply` returns, which may write into them. If `reply` returns `None`, the
    /// datagram is not a request, and is removed. A datagram that is not from `to` or from the
    /// connected peer stays ([`EchoResult::StillQueued`]).
    ///
    /// Payload is neither copied nor moved: only headers are written. The frame leaves as those of
    /// [`Stack::udp_send`] do. Pending when the queue is empty.
    ///
    /// # Errors
    /// Errors of [`Stack::udp_receive`].
    #[inline]
    pub fn udp_echo(
        &mut self,
        socket: SocketId,
        to: Option<SocketAddr>,
        reply: impl FnOnce(&mut [u8], DatagramMeta) -> Option<usize>,
    ) -> Poll<Result<EchoResult, StackError>> {
        self.udp.echo(&mut self.link, socket, to, reply)
    }

    /// Passes the datagram that [`Stack::udp_receive`] would return next, and its sender, to a
    /// closure without removing it; `None` when the queue is empty.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_peek<R>(
        &mut self,
        socket: SocketId,
        peek: impl FnOnce(&[u8], SocketAddr) -> R,
    ) -> Result<Option<R>, StackError> {
        self.udp.peek(&self.link, socket, peek)
    }

    /// Returns whether no datagram waits in its frame at any socket.
    #[inline]
    #[must_use]
    pub fn udp_queues_are_empty(&self) -> bool {
        self.udp.queues_are_empty()
    }

    /// Returns the number of packets that wait at a socket.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_queued(&mut self, socket: SocketId) -> Result<usize, StackError> {
        self.udp.queued(socket)
    }

    /// Returns the number of datagrams that a socket has sent since it was opened, modulo 2^32: the
    /// number of the next one in [`FrameDeparture`](crate::FrameDeparture)s.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_sent_count(&mut self, socket: SocketId) -> Result<u32, StackError> {
        self.udp.sent_count(socket)
    }

    /// Excludes a socket from [`Stack::stamp_payload`]: for payload that has data of its own at the
    /// position of the stamps.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_disable_stamps(&mut self, socket: SocketId) -> Result<(), StackError> {
        self.udp.disable_stamps(socket)
    }
}
