//! Errors of an iperf3 control connection.

use std::fmt;

use super::error_code::Iperf3ErrorCode;
use super::{DEPTH_LIMIT, READ_AHEAD_BYTES};

/// Phase of a control connection, for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iperf3Phase {
    /// The server has to request the parameters.
    CookieExchange,
    /// The client has to send its parameters.
    Parameters,
    /// The server has to accept the test.
    Acceptance,
    /// The flows are being opened.
    Flows,
    /// Payload is being transferred.
    Running,
    /// Results are being exchanged.
    Results,
    /// The client has to confirm the end.
    Confirmation,
    /// The exchange is complete.
    Over,
}

impl fmt::Display for Iperf3Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CookieExchange => "exchanging the cookie",
            Self::Parameters => "sending the parameters",
            Self::Acceptance => "accepting the test",
            Self::Flows => "opening the flows",
            Self::Running => "transferring payload",
            Self::Results => "exchanging results",
            Self::Confirmation => "confirming the end",
            Self::Over => "ending",
        })
    }
}

/// Error of an iperf3 control connection. Close the connection after any of these; the bytes in
/// `outgoing` may still be written.
#[derive(Debug, thiserror::Error)]
pub enum Iperf3Error {
    /// Another test is running at the server.
    #[error("the iperf3 server is busy with another test: try again when it has ended")]
    Busy,
    /// The server rejected or aborted the test.
    #[error(
        "the iperf3 server rejected the test: {code}{}: see the server's own messages",
        errno_text(*errno)
    )]
    Rejected {
        /// Error code of the server.
        code: Iperf3ErrorCode,
        /// Errno of the server; 0 for none.
        errno: i32,
    },
    /// An unexpected byte was received.
    #[error(
        "the peer sent the unexpected byte {byte:#04x} while {phase}: check that iperf3 runs at both ends"
    )]
    Unexpected {
        /// The byte.
        byte: u8,
        /// Phase of the connection.
        phase: Iperf3Phase,
    },
    /// The peer closed the connection early.
    #[error(
        "the iperf3 peer closed the connection while {phase}: see its own messages, or whether it was killed"
    )]
    PeerClosed {
        /// Phase of the connection.
        phase: Iperf3Phase,
    },
    /// The peer exceeded the timeout of a step.
    #[error("the iperf3 peer timed out while {phase}: it hangs, or the path is down")]
    TimedOut {
        /// Phase of the connection.
        phase: Iperf3Phase,
    },
    /// The peer announced a text above the limit.
    #[error(
        "the iperf3 peer announced a text of {length} B, above the limit of {limit} B: it is broken, or not iperf3"
    )]
    TooLong {
        /// Announced length.
        length: u32,
        /// Limit of this text.
        limit: usize,
    },
    /// A text of the peer cannot be parsed.
    #[error("the iperf3 peer's {document} cannot be read: try another version of iperf3 there")]
    Json {
        /// Parameters or results.
        document: &'static str,
        /// Cause.
        #[source]
        source: JsonError,
    },
    /// More bytes were passed in than any message has.
    #[error("more than {READ_AHEAD_BYTES} B were read ahead: take all events before reading on")]
    ReadAhead,
    /// A text of this end is above the peer's limit.
    #[error("a text of {length} B is above the peer's limit of {limit} B: leave out the report")]
    OutgoingTooLong {
        /// Size of the text.
        length: usize,
        /// Limit of the peer.
        limit: usize,
    },
    /// A read was repeated after an error.
    #[error("the iperf3 control connection has already failed: close it")]
    AlreadyFailed,
    /// The driver called a step in the wrong order.
    #[error("{step} is out of order while {phase}: follow the events")]
    OutOfOrder {
        /// Description of the step.
        step: &'static str,
        /// Phase of the connection.
        phase: Iperf3Phase,
    },
}

fn errno_text(errno: i32) -> String {
    match errno {
        0 => String::new(),
        errno => format!(" ({})", std::io::Error::from_raw_os_error(errno)),
    }
}

/// Reason why a text of a peer is invalid.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is nested deeper than any real one.
    #[error("it nests deeper than {DEPTH_LIMIT} levels")]
    TooDeep,
    /// The text is not JSON, or has other types.
    #[error("it is not JSON, or has an unexpected structure")]
    Decode(#[from] serde_json::Error),
    /// A mandatory value is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A value is out of range.
    #[error("`{0}` is out of range")]
    OutOfRange(&'static str),
    /// The text has more flows than any test.
    #[error("it has more than {0} flows")]
    TooManyFlows(usize),
}
