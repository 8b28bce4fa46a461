//! Errors of a control connection.

use super::hello::VersionRange;
use super::{BACKLOG_LIMIT_BYTES, DEPTH_LIMIT, MAP_LIMIT, READ_AHEAD_BYTES, VALUE_LIMIT};

/// Error of a control connection. Close the connection after any of these; the bytes in
/// [`ControlCodec::outgoing`](super::ControlCodec::outgoing), such as a REJECT, may still be sent.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The first bytes are not those of a control connection.
    #[error(
        "the peer does not use linerate's control protocol: check host and port, and that `linerate server` runs there (iperf3 has the same default port)"
    )]
    NotLinerate,
    /// Client side: the first byte is a state of iperf3's server.
    #[error("the peer is an iperf3 server: use --peer iperf3")]
    Iperf3,
    /// The peer requests a security that this version lacks.
    #[error(
        "the peer requests security {security_byte}, which this version does not have: use the same version at both ends"
    )]
    Security {
        /// Security byte of the peer.
        security_byte: u8,
    },
    /// Client side: the server requires a key.
    #[error(
        "the server accepts only clients that have its key: give the same secret here with --key FILE"
    )]
    ServerRequiresKey,
    /// Client side: the server has no key, so it cannot authenticate itself.
    #[error(
        "the server has no key: start it with --key and the same secret, or leave --key out here too"
    )]
    ServerHasNoKey,
    /// Server side: the client has no key.
    #[error("the client has no key: give it this server's secret with --key FILE")]
    ClientHasNoKey,
    /// Server side: the client has a key, and this server has none.
    #[error("the client has a key and this server has none: start it with --key FILE")]
    UnexpectedClientKey,
    /// The keys of the two ends differ.
    #[error(
        "the other end has another key: give both ends the same secret with --key (compare `sha256sum FILE` at both)"
    )]
    KeyMismatch,
    /// A decrypted message was not sent by the peer, or not at this position.
    #[error(
        "a message on the protected control connection was changed on the path, repeated or left out: the connection is under attack, or the peer is broken"
    )]
    Tampered,
    /// The two ends share no version of the protocol.
    #[error(
        "this end supports version {local} of the control protocol, the peer version {remote}: update linerate at {}",
        outdated_side(*local, *remote)
    )]
    Version {
        /// Versions of this end.
        local: VersionRange,
        /// Versions of the peer.
        remote: VersionRange,
    },
    /// The peer sent another frame before its HELLO.
    #[error(
        "the peer sent a frame of type {kind} before HELLO: it is broken, or not linerate; try the same version at both ends"
    )]
    HelloMissing {
        /// Type of that frame.
        kind: u16,
    },
    /// The peer sent a second HELLO.
    #[error("the peer sent HELLO twice: it is broken; try the same version at both ends")]
    DuplicateHello,
    /// The peer announced a frame above the limit.
    #[error(
        "the peer announced a frame of {length} B, above the limit of {limit} B: another program writes into this connection, or the peer is broken"
    )]
    TooLong {
        /// Announced length.
        length: u32,
        /// Limit in this state.
        limit: usize,
    },
    /// The peer announced a frame that has no space for a type.
    #[error(
        "the peer announced a frame of {length} B, which is too short: another program writes into this connection, or the peer is broken"
    )]
    TooShort {
        /// Announced length.
        length: u32,
    },
    /// The body of a frame cannot be read.
    #[error(
        "the peer's {frame} frame cannot be read: it is broken, or newer; try the same version at both ends"
    )]
    Body {
        /// Name of the frame.
        frame: &'static str,
        /// Cause.
        #[source]
        source: BodyError,
    },
    /// More bytes were passed in than frames taken out: take every frame before the next read.
    #[error(
        "more than {READ_AHEAD_BYTES} B were read ahead of a complete frame: take all frames before reading on"
    )]
    ReadAhead,
    /// A read was repeated after an error.
    #[error("the control connection has already failed: close it")]
    AlreadyFailed,
    /// A frame was to be sent before the exchange of HELLOs.
    #[error("{frame} cannot be sent before the peer's HELLO: wait for it")]
    BeforeHello {
        /// Name of the frame.
        frame: &'static str,
    },
    /// A frame to be sent is above the peer's limit.
    #[error(
        "a {frame} frame of {length} B is above the limit of {limit} B: request less in one run"
    )]
    OutgoingTooLong {
        /// Name of the frame.
        frame: &'static str,
        /// Length of its type and body.
        length: usize,
        /// Limit in this state.
        limit: usize,
    },
    /// A frame to be sent has more values than the peer accepts.
    #[error("a {frame} frame of this end cannot be sent: request less in one run")]
    Unencodable {
        /// Name of the frame.
        frame: &'static str,
        /// Cause.
        #[source]
        source: BodyError,
    },
    /// The peer does not read the connection.
    #[error(
        "the peer has left more than {BACKLOG_LIMIT_BYTES} B unread on the control connection: it hangs, or the path is down"
    )]
    BacklogFull,
}

/// Reason why a body is invalid.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is not a MessagePack map.
    #[error("the body is not a map")]
    NotAMap,
    /// Bytes follow the end of the map.
    #[error("{bytes} B follow the body")]
    Trailing {
        /// Number of bytes after the map.
        bytes: usize,
    },
    /// The body has more values than any real frame.
    #[error("the body has more than {VALUE_LIMIT} values")]
    TooManyValues,
    /// The body has more maps than any real frame.
    #[error("the body has more than {MAP_LIMIT} maps")]
    TooManyMaps,
    /// The body is not MessagePack, is nested deeper than any real frame, or lacks a field.
    #[error(
        "the body is not MessagePack, lacks a field, or nests deeper than {DEPTH_LIMIT} levels"
    )]
    Decode(#[from] rmp_serde::decode::Error),
    /// MessagePack cannot express the frame.
    #[error("the body cannot be expressed in MessagePack")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// Returns the side that must be updated.
fn outdated_side(local: VersionRange, remote: VersionRange) -> &'static str {
    if remote.max < local.min {
        "the peer"
    } else {
        "this end"
    }
}
