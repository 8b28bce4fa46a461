//! Errors of a nuttcp control connection.

use super::line_reader::{LINE_LIMIT_BYTES, TEXT_LIMIT_BYTES};
use super::parameters::NuttcpVersion;

/// Error of a control connection. Send the queued bytes, then close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NuttcpError {
    /// The first line of the peer is not nuttcp's HELO.
    #[error(
        "the peer sent {line:?} instead of nuttcp's HELO with a version: check host and port (nuttcp's control port is 5000)"
    )]
    NotNuttcp {
        /// The line.
        line: String,
    },
    /// The version of the peer is not supported.
    #[error("the peer is nuttcp {version}, older than 5.4.1: update it there")]
    TooOld {
        /// Version of the peer.
        version: NuttcpVersion,
    },
    /// The server rejected the test.
    #[error("the nuttcp server rejected the test: {reason}")]
    Rejected {
        /// Reason that the server sent.
        reason: String,
    },
    /// A line exceeds the limit.
    #[error(
        "the peer sent a line of more than {LINE_LIMIT_BYTES} B: it does not use nuttcp; assign the right protocol to this port"
    )]
    LineTooLong,
    /// The report exceeds the limit.
    #[error(
        "the peer sent more than {TEXT_LIMIT_BYTES} B of report: it is broken, or not nuttcp; stop it there"
    )]
    ReportTooLong,
    /// The peer closed the connection before a test was accepted.
    #[error(
        "the nuttcp peer closed its control connection before the test was accepted: see its console"
    )]
    PeerClosed,
    /// nuttcp cannot run the test of this client.
    #[error("nuttcp cannot run this test: {reason}")]
    Unsupported {
        /// Reason.
        reason: String,
    },
    /// A read was repeated after an error.
    #[error("the control connection has already failed: close it")]
    AlreadyFailed,
}
