//! Socket calls for all kinds of sockets.

use std::net::{IpAddr, SocketAddr};

use super::Stack;
use crate::error::StackError;
use crate::socket::{SocketId, SocketKind};

/// Calls for all kinds of sockets.
impl Stack {
    /// Closes a socket. A connection continues in the background until its payload has been
    /// delivered; if received payload is unread it is reset.
    ///
    /// # Errors
    /// [`StackError::Stale`].
    pub fn close(&mut self, socket: SocketId) -> Result<(), StackError> {
        match socket.kind() {
            SocketKind::Udp => self.udp.close(socket, &mut self.link),
            SocketKind::Tcp => self.tcp.close(&mut self.link, socket, false),
            SocketKind::Listener => self.tcp.close_listener(&mut self.link, socket),
        }
    }

    /// Resets a connection; closes any other socket.
    ///
    /// # Errors
    /// [`StackError::Stale`].
    pub fn abort(&mut self, socket: SocketId) -> Result<(), StackError> {
        match socket.kind() {
            SocketKind::Tcp => self.tcp.close(&mut self.link, socket, true),
            _ => self.close(socket),
        }
    }

    /// Returns the local address; for a socket bound to any address, the one that it would send
    /// from.
    ///
    /// # Errors
    /// [`StackError::Stale`].
    pub fn local(&mut self, socket: SocketId) -> Result<SocketAddr, StackError> {
        if socket.kind() == SocketKind::Tcp {
            return Ok(self.tcp.endpoints(socket)?.0);
        }
        let ((bound, port), peer) = match socket.kind() {
            SocketKind::Listener => (self.tcp.listen_address(socket)?, None),
            _ => (self.udp.local(socket)?, self.udp.peer(socket)?),
        };
        let source_towards = |peer: SocketAddr| self.link.addressing.source_for(peer.ip());
        let first_address: IpAddr = self.link.addressing.networks[0].address;
        let address = bound
            .or_else(|| peer.and_then(source_towards))
            .unwrap_or(first_address);
        Ok(SocketAddr::new(address, port))
    }

    /// Returns the peer's address; `None` for a socket that is not connected.
    ///
    /// # Errors
    /// [`StackError::Stale`], [`StackError::WrongKind`] for a listener.
    pub fn remote(&mut self, socket: SocketId) -> Result<Option<SocketAddr>, StackError> {
        if socket.kind() == SocketKind::Tcp {
            return Ok(Some(self.tcp.endpoints(socket)?.1));
        }
        self.udp.peer(socket)
    }
}
