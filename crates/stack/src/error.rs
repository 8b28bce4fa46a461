//! Errors of this crate.

use std::net::{IpAddr, SocketAddr};

use linerate_port::PortError;

use crate::socket::UnreachableReason;

/// Reasons for which a stack cannot be created, or a socket call failed.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Unknown configuration key.
    #[error("unknown configuration key `{key}`: use one of {valid_keys}")]
    UnknownKey {
        /// Key as written.
        key: String,
        /// Valid keys, separated by commas.
        valid_keys: String,
    },
    /// Value that a key does not accept.
    #[error("`{value}` is not a value of `{key}`: write {accepted_values}")]
    BadValue {
        /// The key.
        key: String,
        /// Value as written.
        value: String,
        /// Accepted values.
        accepted_values: String,
    },
    /// Setting without a value.
    #[error("`{text}` sets no configuration key: write KEY=VALUE, as in `tcp.send_buffer=16K`")]
    MissingValue {
        /// Text as written.
        text: String,
    },
    /// Unknown profile.
    #[error("unknown profile `{name}`: use one of {valid_profiles}")]
    UnknownProfile {
        /// Name as written.
        name: String,
        /// Profiles, separated by commas.
        valid_profiles: String,
    },
    /// File that is not TOML.
    #[error("the stack's configuration is not valid TOML ({reason}): compare it with a profile")]
    BadToml {
        /// Message of the parser, with the line.
        reason: String,
    },
    /// Settings that contradict each other or the port's capabilities.
    #[error("{reason}: {remedy}")]
    Contradiction {
        /// Contradiction.
        reason: String,
        /// Setting to change.
        remedy: String,
    },
    /// Text that is not an address with a prefix.
    #[error(
        "`{text}` is not an interface address: write it with its prefix length, as in 10.0.0.2/24 (at most 32, or 128 for IPv6)"
    )]
    BadInterfaceAddress {
        /// Text as written.
        text: String,
    },
    /// Address that cannot belong to a host.
    #[error("`{text}` is {reason}, not a host address: choose another address of that network")]
    NotAHostAddress {
        /// Text as written.
        text: String,
        /// Kind of address.
        reason: &'static str,
    },
    /// Error of the port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Id of a socket that was closed.
    #[error("this socket of the stack is closed: open another one")]
    SocketClosed,
    /// Call that this kind of socket does not support.
    #[error("a {kind} socket of the stack does not support `{call}`: use another kind of socket")]
    WrongKind {
        /// Kind of the socket.
        kind: &'static str,
        /// Name of the call.
        call: &'static str,
    },
    /// No free socket of this kind.
    #[error("all {limit} {kind} sockets of the stack are in use: {remedy}")]
    TooManySockets {
        /// TCP or UDP.
        kind: &'static str,
        /// Number of sockets of this kind.
        limit: u32,
        /// Remedy.
        remedy: &'static str,
    },
    /// Port number in use by another socket.
    #[error("port {port} of the stack is in use: choose another, or 0 for any")]
    PortInUse {
        /// Port number.
        port: u16,
    },
    /// Local address that the stack does not have.
    #[error("{address} is not an address of this stack: bind to one of its addresses, or to none")]
    NotLocal {
        /// Address as given.
        address: IpAddr,
    },
    /// Destination without a route.
    #[error(
        "the stack has no route to {address}: give it an address of that network, or a gateway"
    )]
    NoRoute {
        /// Destination.
        address: IpAddr,
    },
    /// Next hop that did not answer ARP or neighbour solicitations.
    #[error(
        "no ARP or ND reply from {neighbor} on the stack's link: is that host up, and in the same network?"
    )]
    NeighborSilent {
        /// Destination, or the gateway towards it.
        neighbor: IpAddr,
    },
    /// Datagram without a destination.
    #[error("this socket of the stack is not connected: pass a destination address")]
    NotConnected,
    /// Datagram longer than can be sent.
    #[error("a datagram of {bytes} B exceeds the limit of {limit} B: {remedy}")]
    TooLong {
        /// Payload of the datagram, in bytes.
        bytes: usize,
        /// Largest payload, in bytes.
        limit: usize,
        /// Setting to change.
        remedy: &'static str,
    },
    /// Connection rejected by the peer.
    #[error("{remote} rejected the connection: is something listening there?")]
    ConnectionRefused {
        /// Peer address.
        remote: SocketAddr,
    },
    /// ICMP error received before the connection was established.
    #[error(
        "no connection to {remote}: {reporter} reports that {reason}; is the address right, and is something listening there?"
    )]
    Unreachable {
        /// Peer address.
        remote: SocketAddr,
        /// Reason in the ICMP message.
        reason: UnreachableReason,
        /// Sender of the ICMP message.
        reporter: IpAddr,
    },
    /// Connection reset by the peer.
    #[error("connection reset by the peer: it closed the connection, or ended")]
    ConnectionReset,
    /// Send after the local end has finished sending.
    #[error("this end of the connection has finished sending: open another connection")]
    SendFinished,
}
