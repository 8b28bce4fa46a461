//! What can go wrong on a control connection.

use super::line::{LINE_LIMIT_BYTES, TEXT_LIMIT_BYTES};
use super::test::Version;

/// Why a control connection cannot go on; it is to be closed once what waits was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NuttcpError {
    /// The peer's first line is none of nuttcp.
    #[error(
        "the peer said {line:?} where nuttcp says HELO and its version: check host and port (nuttcp's control port is 5000)"
    )]
    NotNuttcp {
        /// What it said.
        line: String,
    },
    /// The peer is older than what we can speak with.
    #[error("the peer is nuttcp {version}, older than 5.4.1: update it there")]
    TooOld {
        /// Its version.
        version: Version,
    },
    /// The server refused the test.
    #[error("the nuttcp server refused the test: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// A line without an end.
    #[error(
        "the peer sent a line of more than {LINE_LIMIT_BYTES} B: it is no nuttcp; name the right dialect for this port"
    )]
    LineTooLong,
    /// More lines than a report has.
    #[error(
        "the peer sent more than {TEXT_LIMIT_BYTES} B of report: it is broken, or no nuttcp; end it there"
    )]
    TooMuch,
    /// The connection ended too early.
    #[error(
        "the nuttcp peer closed its control connection before the test was agreed on: see its console"
    )]
    Vanished,
    /// Our own test cannot be asked for.
    #[error("nuttcp cannot do this test: {reason}")]
    Impossible {
        /// Why.
        reason: String,
    },
    /// Reading was tried again after it had failed.
    #[error("the control connection failed before: close it")]
    Failed,
}
