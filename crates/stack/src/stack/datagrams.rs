//! Calls on UDP sockets.

use std::net::SocketAddr;
use std::task::Poll;

use super::Stack;
use crate::addressing::on_the_link;
use crate::error::StackError;
use crate::socket::{Echo, Meta, SocketId};

/// UDP.
impl Stack {
    /// Opens a UDP socket on a local address and port; unspecified is any address, 0 any free port.
    ///
    /// # Errors
    /// [`StackError::PortTaken`], [`StackError::NotLocal`], [`StackError::TooManySockets`].
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<SocketId, StackError> {
        let local = on_the_link(local);
        let address = local.ip();
        if !address.is_unspecified() && !self.link.own.is_own(address) {
            return Err(StackError::NotLocal { address });
        }
        self.udp.open(local, self.config.udp_sockets)
    }

    /// Opens a UDP socket for datagrams between these two alone, beside the one that has the port: what
    /// this peer sends there from now on comes here, everybody else's goes on as before.
    ///
    /// # Errors
    /// [`StackError::PortTaken`] when there is such a socket, [`StackError::NotLocal`],
    /// [`StackError::NoRoute`], [`StackError::TooManySockets`].
    pub fn udp_bind_pair(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<SocketId, StackError> {
        if !self.link.own.is_own(local.ip()) {
            return Err(StackError::NotLocal {
                address: local.ip(),
            });
        }
        let address = peer.ip();
        self.link
            .hop(address)
            .ok_or(StackError::NoRoute { address })?;
        self.udp.open_pair(local, peer, self.config.udp_sockets)
    }

    /// Takes datagrams of this peer alone from now on, and sends to it when no addressee is named.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::NoRoute`].
    pub fn udp_connect(&mut self, socket: SocketId, peer: SocketAddr) -> Result<(), StackError> {
        let peer = on_the_link(peer);
        let address = peer.ip();
        self.link
            .hop(address)
            .ok_or(StackError::NoRoute { address })?;
        self.udp.connect(socket, peer)
    }

    /// Whether a datagram may be sent now: the ring has room, and no longer one still leaves in fragments.
    #[inline]
    pub fn udp_has_room(&mut self) -> bool {
        self.udp.has_room(&mut self.link)
    }

    /// Sends a datagram of `bytes`, written by `fill`, to `to` or to whom the socket is connected to.
    ///
    /// It leaves with the next [`Stack::turn`] or [`Stack::flush`]. Pending when the ring is full, or while
    /// a longer datagram leaves in fragments. What the buffer holds before is undefined.
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

    /// Sends up to `count` datagrams of `bytes`, the nth written by `fill(n, …)`; returns how many.
    ///
    /// # Errors
    /// As [`Stack::udp_send`], when it is the first that fails.
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

    /// Receives one datagram and shows it to `take`.
    ///
    /// # Errors
    /// [`StackError::Refused`] once after nobody had the port that a connected socket sent to, and
    /// [`StackError::NeighborSilent`] after nobody answered for its address; [`StackError::Stale`].
    #[inline]
    pub fn udp_receive<R>(
        &mut self,
        socket: SocketId,
        take: impl FnOnce(&[u8], Meta) -> R,
    ) -> Poll<Result<R, StackError>> {
        self.udp.receive(&mut self.link, socket, take)
    }

    /// Receives what is there, up to `most` datagrams, and shows each to `take`; returns how many.
    ///
    /// # Errors
    /// As [`Stack::udp_receive`], when it is the first that fails.
    #[inline]
    pub fn udp_receive_burst(
        &mut self,
        socket: SocketId,
        most: usize,
        mut take: impl FnMut(&[u8], Meta),
    ) -> Poll<Result<usize, StackError>> {
        for number in 0..most {
            let got = self.udp.receive(&mut self.link, socket, |bytes, meta| {
                take(bytes, meta);
            });
            match got {
                Poll::Ready(Ok(())) => {}
                _ if number > 0 => return Poll::Ready(Ok(number)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(most))
    }

    /// Sends the datagram that is in front back in the frame that it came in: as many bytes of it as `answer` says, which
    /// may write into them. Where that says nothing, it is no question, and is taken away. What did not come from `to`, or
    /// from whom the socket is connected to, stays ([`Echo::Elsewhere`]).
    ///
    /// Payload is neither copied nor moved: what is written are headers. It leaves as what [`Stack::udp_send`] sends.
    /// Pending when nothing is there.
    ///
    /// # Errors
    /// As [`Stack::udp_receive`].
    #[inline]
    pub fn udp_echo(
        &mut self,
        socket: SocketId,
        to: Option<SocketAddr>,
        answer: impl FnOnce(&mut [u8], Meta) -> Option<usize>,
    ) -> Poll<Result<Echo, StackError>> {
        self.udp.echo(&mut self.link, socket, to, answer)
    }

    /// Shows the datagram that [`Stack::udp_receive`] would give next, with who sent it, and leaves it
    /// there; `None` when there is none.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_peek<R>(
        &mut self,
        socket: SocketId,
        look: impl FnOnce(&[u8], SocketAddr) -> R,
    ) -> Result<Option<R>, StackError> {
        self.udp.peek(&self.link, socket, look)
    }

    /// Whether no datagram waits in its frame at any socket.
    #[inline]
    #[must_use]
    pub fn udp_none_waits(&self) -> bool {
        self.udp.none_waits()
    }

    /// Packets that wait at a socket.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_waiting(&mut self, socket: SocketId) -> Result<usize, StackError> {
        self.udp.waiting(socket)
    }

    /// Datagrams that a socket has sent since it was opened, modulo 2^32: the number of the next one among
    /// [`Departure`](crate::Departure)s.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_sent(&mut self, socket: SocketId) -> Result<u32, StackError> {
        self.udp.sent(socket)
    }

    /// Keeps the times of [`Stack::stamp_payload`] out of what a socket sends: for one whose datagrams have
    /// words of their own where times would stand.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`].
    pub fn udp_leave_unstamped(&mut self, socket: SocketId) -> Result<(), StackError> {
        self.udp.leave_unstamped(socket)
    }
}
