//! Names of sockets, and what is known of them.

use std::net::{IpAddr, SocketAddr};

use crate::Nanos;

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SocketKind {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
    /// Where connections are accepted.
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

/// Names a socket of one stack. A name whose socket was closed is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    pub(crate) kind: SocketKind,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SocketId {
    /// What the socket is.
    #[must_use]
    pub const fn kind(self) -> SocketKind {
        self.kind
    }

    /// Its place among sockets of its kind, below the configured number: for tables beside the stack.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// What came with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Who sent it.
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: IpAddr,
    /// The time of the turn that took its last frame from the port ("driver in"); read for each burst
    /// where stages are watched.
    pub arrived_ns: Nanos,
    /// When it was put into the socket's queue ("stack in"), where [`Stack::watch_stages`](crate::Stack::watch_stages) keeps
    /// departures.
    pub queued_ns: Option<Nanos>,
    /// Datagrams that this socket's queue has refused since it was opened.
    pub queue_drops: u32,
    /// Type of service or traffic class.
    pub tos: u8,
}

/// What became of a datagram that was to go back in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// So many bytes of payload leave.
    Sent(usize),
    /// It is no question, and was taken away.
    Ignored,
    /// It is still there, and nobody was asked: it came in pieces or with others, the port has no room, it is longer than
    /// what its way back takes, or the headers of what the socket sent last do not fit it, which went to somebody else or
    /// from another address, or were made before a neighbour changed. Whoever receives it and sends it has them made.
    Elsewhere,
}

/// What cannot be reached, as ICMP tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// There is no way to the network.
    Network,
    /// The host does not answer on its link.
    Host,
    /// The host does not speak TCP.
    Protocol,
    /// Nobody has the port.
    Port,
    /// Somebody on the way lets no packet through.
    Prohibited,
    /// The packet crossed as many networks as it may.
    Hops,
}

impl Unreachable {
    /// Whether asking again would change nothing (RFC 1122, section 4.2.3.9).
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Protocol | Self::Port | Self::Prohibited)
    }
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Network => "its network is unreachable",
            Self::Host => "the host is unreachable",
            Self::Protocol => "it does not speak TCP",
            Self::Port => "the port is unreachable",
            Self::Prohibited => "that is prohibited",
            Self::Hops => "packets go round in a circle",
        })
    }
}

/// Where a connection stands (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Both ends agree on its start.
    Opening,
    /// Payload may go both ways.
    Established,
    /// The far end has finished sending.
    FarFinished,
    /// This end has finished sending.
    Finished,
    /// Both have finished.
    Closing,
    /// It is over.
    Closed,
}
