//! Connection or UDP flow on its way from the acceptor to a test.

use std::net::{SocketAddr, TcpStream};

use linerate_sys::clock::Nanos;
use socket2::Socket;

use crate::interop_state::OpenFlowEntry;

/// Connection or UDP flow that is handed to a test.
pub struct IncomingFlow {
    /// Socket, connected to the peer.
    pub socket: Socket,
    pub peer: SocketAddr,
    /// Datagrams that arrived before the socket was connected, with their receive times.
    pub early_datagrams: Vec<(Nanos, Box<[u8]>)>,
    /// Guard that prevents a second start of the same UDP flow.
    pub key: Option<OpenFlowEntry>,
}

impl IncomingFlow {
    /// Wraps a TCP connection.
    pub fn from_tcp(stream: TcpStream, peer: SocketAddr) -> Self {
        Self {
            socket: stream.into(),
            peer,
            early_datagrams: Vec::new(),
            key: None,
        }
    }

    /// Size in bytes of the largest early datagram.
    pub fn largest_datagram_bytes(&self) -> u64 {
        let sizes = self
            .early_datagrams
            .iter()
            .map(|(_, datagram)| datagram.len());
        sizes.max().unwrap_or(0) as u64
    }
}

/// Converts an IPv4-mapped address to IPv4; other addresses keep their scope id.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}
