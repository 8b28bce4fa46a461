//! What can go wrong on a control connection.

use super::hello::Versions;
use super::{BACKLOG_LIMIT_BYTES, DEPTH_LIMIT, MAP_LIMIT, READ_AHEAD_BYTES, VALUE_LIMIT};

/// Why a control connection cannot go on. After any of these it is to be closed; what is in
/// [`Connection::outgoing`](super::Connection::outgoing) may still be sent, a REFUSE too.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The first bytes are not those of a control connection.
    #[error(
        "the peer does not speak linerate's control protocol: check host and port, and that `linerate server` runs there (iperf3 has the same default port)"
    )]
    NotOurs,
    /// The peer wants a security that this version does not have.
    #[error(
        "the peer asks for security {asked}, which this version does not have: use the same version at both ends"
    )]
    Security {
        /// The peer's byte.
        asked: u8,
    },
    /// Seen by a client: the server wants a key.
    #[error(
        "the server speaks only to those who have its key: give the same secret here with --key FILE"
    )]
    KeyDemanded,
    /// Seen by a client: the server has no key, so it cannot prove who it is.
    #[error(
        "the server has no key: start it with --key and the same secret, or leave --key out here too"
    )]
    KeyUnused,
    /// Seen by a server: a client without a key.
    #[error("the client has no key: give it this server's secret with --key FILE")]
    KeyMissing,
    /// Seen by a server: a client with a key, which this server has not.
    #[error("the client has a key and this server has none: start it with --key FILE")]
    KeyUnknown,
    /// The ends have different keys.
    #[error(
        "the other end has another key: give both the same secret with --key (compare `sha256sum FILE` at both)"
    )]
    KeyDiffers,
    /// A sealed message that the peer did not send, or not in this place.
    #[error(
        "a message on the protected control connection was changed on the way, repeated or left out: somebody interferes, or the peer is broken"
    )]
    Tampered,
    /// No version of the protocol is spoken by both ends.
    #[error(
        "this end speaks version {ours} of the control protocol, the peer version {theirs}: update linerate at {}",
        older(*ours, *theirs)
    )]
    Version {
        /// What this end speaks.
        ours: Versions,
        /// What the peer speaks.
        theirs: Versions,
    },
    /// The peer sent something before its HELLO.
    #[error(
        "the peer sent a frame of type {kind} before HELLO: it is broken, or no linerate; try the same version at both ends"
    )]
    HelloMissing {
        /// Type of the frame that came instead.
        kind: u16,
    },
    /// The peer sent a second HELLO.
    #[error("the peer sent HELLO twice: it is broken; try the same version at both ends")]
    HelloAgain,
    /// The peer announced a frame that is longer than any real one.
    #[error(
        "the peer announced a frame of {length} B where {limit} B are the limit: something else writes into this connection, or the peer is broken"
    )]
    TooLong {
        /// The length that it announced.
        length: u32,
        /// The limit that holds in this state.
        limit: usize,
    },
    /// The peer announced a frame without room for a type.
    #[error(
        "the peer announced a frame of {length} B, too short for any: something else writes into this connection, or the peer is broken"
    )]
    TooShort {
        /// The length that it announced.
        length: u32,
    },
    /// A frame whose body cannot be read.
    #[error(
        "the peer's {frame} frame cannot be read: it is broken, or newer; try the same version at both ends"
    )]
    Body {
        /// Name of the frame.
        frame: &'static str,
        /// What is wrong with it.
        #[source]
        source: BodyError,
    },
    /// More arrived than was taken out: the caller must take every frame before it reads on.
    #[error(
        "more than {READ_AHEAD_BYTES} B were read ahead of a whole frame: take all frames before reading on"
    )]
    ReadAhead,
    /// Reading was tried again after it had failed.
    #[error("the control connection failed before: close it")]
    Failed,
    /// A frame was to be sent before the ends had greeted each other.
    #[error("{frame} cannot be sent before the peer's HELLO: wait for it")]
    TooEarly {
        /// Name of the frame.
        frame: &'static str,
    },
    /// A frame to be sent is longer than the peer would take.
    #[error(
        "a {frame} frame of {length} B is above the limit of {limit} B: ask for less in one run"
    )]
    Outsized {
        /// Name of the frame.
        frame: &'static str,
        /// Its type and body.
        length: usize,
        /// The limit that holds in this state.
        limit: usize,
    },
    /// A frame to be sent holds more than the peer would take.
    #[error("a {frame} frame of ours cannot be sent: ask for less in one run")]
    Unsendable {
        /// Name of the frame.
        frame: &'static str,
        /// What is wrong with it.
        #[source]
        source: BodyError,
    },
    /// The peer does not read what it is sent.
    #[error(
        "the peer has left more than {BACKLOG_LIMIT_BYTES} B unread on the control connection: it hangs, or the path is down"
    )]
    Backlog,
}

/// Why a body is none.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Not a MessagePack map.
    #[error("the body is no map")]
    NotAMap,
    /// The map ends before the body does.
    #[error("{bytes} B follow the body")]
    Trailing {
        /// How many bytes are left.
        bytes: usize,
    },
    /// More values than any real frame has.
    #[error("the body has more than {VALUE_LIMIT} values")]
    TooManyValues,
    /// More maps than any real frame has.
    #[error("the body has more than {MAP_LIMIT} maps")]
    TooManyMaps,
    /// Not MessagePack, nested deeper than any real frame, or not the fields of this frame.
    #[error(
        "the body is not MessagePack, lacks a field, or nests deeper than {DEPTH_LIMIT} levels"
    )]
    Decode(#[from] rmp_serde::decode::Error),
    /// A frame of ours that MessagePack cannot express.
    #[error("the body cannot be expressed in MessagePack")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// The side that must be updated so that a version is shared.
fn older(ours: Versions, theirs: Versions) -> &'static str {
    if theirs.max < ours.min {
        "the peer"
    } else {
        "this end"
    }
}
