//! What can go wrong.

use std::net::{IpAddr, SocketAddr};

use linerate_port::PortError;

use crate::socket::Unreachable;

/// Why a stack cannot be made, or a call on one of its sockets failed.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A key that the configuration does not have.
    #[error("the stack's configuration has no key `{key}`: there are {known}")]
    UnknownKey {
        /// The key as it was written.
        key: String,
        /// Every key.
        known: String,
    },
    /// A value that a key does not take.
    #[error("`{value}` is no value of `{key}`: write {wanted}")]
    BadValue {
        /// The key.
        key: String,
        /// The value as it was written.
        value: String,
        /// What the key takes.
        wanted: String,
    },
    /// A setting without a value.
    #[error("`{text}` sets nothing: write KEY=VALUE, as in `tcp.send_buffer=16K`")]
    NotASetting {
        /// The text as it was written.
        text: String,
    },
    /// A profile that is not shipped.
    #[error("there is no profile `{name}`: use one of {known}")]
    UnknownProfile {
        /// The name as it was written.
        name: String,
        /// Every profile.
        known: String,
    },
    /// A file that is not TOML.
    #[error("the stack's configuration is no TOML ({why}): compare it with a profile")]
    BadToml {
        /// What the parser says.
        why: String,
    },
    /// Settings that contradict each other or what the port can do.
    #[error("{why}: {remedy}")]
    Contradiction {
        /// What cannot be.
        why: String,
        /// What to change.
        remedy: String,
    },
    /// Text that is no address with a prefix.
    #[error(
        "`{text}` is no address of a stack: write it with its prefix, as in 10.0.0.2/24 (32 at most, 128 of IPv6)"
    )]
    BadNetwork {
        /// The text as it was written.
        text: String,
    },
    /// An address that no host has.
    #[error("`{text}` is {why}, and no host's: take another of its addresses")]
    NotAHost {
        /// The text as it was written.
        text: String,
        /// What it is instead.
        why: &'static str,
    },
    /// The port cannot be used.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A name of a socket that was closed.
    #[error("this socket of the stack is closed: open another one")]
    Stale,
    /// A call that this kind of socket does not have.
    #[error("a {kind} socket of the stack has no `{call}`: use one that has")]
    WrongKind {
        /// What the socket is.
        kind: &'static str,
        /// What was asked of it.
        call: &'static str,
    },
    /// All sockets of a kind are in use.
    #[error("all {limit} {kind} sockets of the stack are in use: set {key} higher")]
    TooManySockets {
        /// TCP or UDP.
        kind: &'static str,
        /// How many there are.
        limit: u32,
        /// The key that sets it.
        key: &'static str,
    },
    /// Another socket has the port.
    #[error("port {port} of the stack is taken: choose another, or 0 for any")]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The local address is none of the stack's.
    #[error("{address} is no address of this stack: bind to one that was given to it, or to none")]
    NotLocal {
        /// The address.
        address: IpAddr,
    },
    /// No way to an address.
    #[error(
        "the stack has no route to {address}: give it an address of that network, or a gateway"
    )]
    NoRoute {
        /// The address.
        address: IpAddr,
    },
    /// Nobody on the link has the address that packets go to.
    #[error(
        "nobody answers for {neighbor} on the stack's link: is that host up, and in the same network?"
    )]
    NeighborSilent {
        /// The far end, or the gateway towards it.
        neighbor: IpAddr,
    },
    /// A datagram without an addressee.
    #[error("this socket of the stack is not connected: name an addressee")]
    NotConnected,
    /// A datagram longer than can be sent.
    #[error("a datagram of {bytes} B is longer than {limit} B: {remedy}")]
    TooLong {
        /// Its payload.
        bytes: usize,
        /// The largest.
        limit: usize,
        /// What to change.
        remedy: &'static str,
    },
    /// The far end refused the connection.
    #[error("{remote} refused the connection: is something listening there?")]
    Refused {
        /// The far end.
        remote: SocketAddr,
    },
    /// Somebody said that the far end cannot be reached, before the connection stood.
    #[error(
        "no connection to {remote}: {by} says that {what}; is the address right, and is something listening there?"
    )]
    Unreachable {
        /// The far end.
        remote: SocketAddr,
        /// What cannot be reached.
        what: Unreachable,
        /// Who said it.
        by: IpAddr,
    },
    /// The far end broke the connection off.
    #[error("the connection was reset: the far end closed it, or ended")]
    Reset,
    /// Payload after the end was announced.
    #[error("this end of the connection has finished sending: open another one")]
    Finished,
}
