//! Socket ids and the types that socket calls return.

use std::net::{IpAddr, SocketAddr};

use crate::Nanos;

/// First of the dynamic ports, assigned when port 0 is requested (RFC 6335).
pub(crate) const FIRST_FREE_PORT: u16 = 49_152;

/// Kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SocketKind {
    /// Datagram socket.
    Udp,
    /// TCP connection.
    Tcp,
    /// Socket that accepts TCP connections.
    Listener,
}

impl SocketKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Listener => "listening",
        }
    }
}

/// Id of a socket of one stack. The generation detects ids of closed sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    pub(crate) kind: SocketKind,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketId {
    /// Returns the kind of the socket.
    #[must_use]
    pub const fn kind(self) -> SocketKind {
        self.kind
    }

    /// Returns the index among sockets of its kind, below the configured number: for tables of the
    /// caller.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// Metadata of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramMeta {
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Time of the poll that took its last frame from the port ("driver in"). While stages are
    /// watched the clock is read for each burst.
    pub arrived_ns: Nanos,
    /// Time when it entered the socket's queue ("stack in"); `None` unless
    /// [`Stack::watch_stages`](crate::Stack::watch_stages) keeps departures.
    pub queued_ns: Option<Nanos>,
    /// Datagrams dropped at this socket since it was opened: its queue was full, or no packet
    /// buffer was left.
    pub queue_drops: u32,
    /// Type of service or traffic class.
    pub tos: u8,
}

/// Result of [`Stack::udp_echo`](crate::Stack::udp_echo): a datagram to be returned in its own
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoResult {
    /// Sent back with this many bytes of payload.
    Sent(usize),
    /// Not a request; removed from the queue.
    Ignored,
    /// Not possible; the datagram is still in the queue and the closure was not called. It came in
    /// fragments or in one buffer with others, the port's ring is full, it exceeds the path MTU, or
    /// the socket's prepared headers do not fit it: they are for another peer or local address, or
    /// older than a change of a neighbour. Receiving it and sending a reply makes new headers.
    StillQueued,
}

/// Reason of an ICMP error: the destination, or part of it, cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreachableReason {
    /// No route to the network.
    Network,
    /// No answer from the host on its link.
    Host,
    /// No TCP at the host.
    Protocol,
    /// No socket at the port.
    Port,
    /// Administratively prohibited by a router or the host.
    Prohibited,
    /// TTL or hop limit exceeded in transit.
    HopLimit,
}

impl UnreachableReason {
    /// Returns whether a retry would change nothing (RFC 1122, section 4.2.3.9).
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Protocol | Self::Port | Self::Prohibited)
    }
}

impl std::fmt::Display for UnreachableReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Network => "its network is unreachable",
            Self::Host => "the host is unreachable",
            Self::Protocol => "the host does not support TCP",
            Self::Port => "the port is unreachable",
            Self::Prohibited => "access is administratively prohibited",
            Self::HopLimit => "the hop limit was exceeded (routing loop?)",
        })
    }
}

/// State of a connection, in fewer steps than RFC 9293, section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Handshake in progress.
    Connecting,
    /// Established in both directions.
    Established,
    /// The peer has finished sending.
    RemoteFinished,
    /// The local end has finished sending.
    LocalFinished,
    /// Both ends have finished sending.
    Closing,
    /// Closed, or in TIME-WAIT.
    Closed,
}
