//! What can go wrong on an iperf3 control connection.

use std::fmt;

use super::refusal::Refusal;
use super::{DEPTH_LIMIT, READ_AHEAD_BYTES};

/// Where a control connection is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The server has to ask for the parameters.
    Greeting,
    /// The client has to send its parameters.
    Parameters,
    /// The server has to agree.
    Agreement,
    /// The flows are being opened.
    Flows,
    /// Payload flows.
    Running,
    /// Results are being exchanged.
    Results,
    /// The client has to say that it is done.
    Farewell,
    /// All is said.
    Over,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Greeting => "greeting",
            Self::Parameters => "sending the parameters",
            Self::Agreement => "agreeing",
            Self::Flows => "opening the flows",
            Self::Running => "moving payload",
            Self::Results => "exchanging results",
            Self::Farewell => "saying goodbye",
            Self::Over => "ending",
        })
    }
}

/// Why an iperf3 control connection cannot go on. After any of these it is to be closed; what is in
/// `outgoing` may still be written.
#[derive(Debug, thiserror::Error)]
pub enum Iperf3Error {
    /// Another test is running there.
    #[error("the iperf3 server is busy with another test: try again when it is over")]
    Busy,
    /// The server gave up.
    #[error(
        "the iperf3 server refused: {refusal}{}: look at the server's own messages",
        errno_text(*errno)
    )]
    Refused {
        /// Its reason.
        refusal: Refusal,
        /// The errno beside it; 0 for none.
        errno: i32,
    },
    /// A byte that does not belong here.
    #[error(
        "the peer sent {byte:#04x} while {phase}, where iperf3 says nothing like it: check that iperf3 runs at both ends"
    )]
    Unexpected {
        /// The byte.
        byte: u8,
        /// Where.
        phase: Phase,
    },
    /// The peer closed the connection.
    #[error(
        "the iperf3 peer closed the connection while {phase}: look at its own messages, or whether it was killed"
    )]
    Vanished {
        /// Where.
        phase: Phase,
    },
    /// The peer did not say in time what it had to.
    #[error("the iperf3 peer was silent too long while {phase}: it hangs, or the path is down")]
    Overdue {
        /// Where.
        phase: Phase,
    },
    /// The peer announced a text that is longer than any real one.
    #[error(
        "the iperf3 peer announced a text of {length} B where {limit} B are the limit: it is broken, or no iperf3"
    )]
    TooLong {
        /// What it announced.
        length: u32,
        /// The limit that holds here.
        limit: usize,
    },
    /// The peer's text cannot be read.
    #[error("the iperf3 peer's {what} cannot be read: try another version of iperf3 there")]
    Json {
        /// Parameters or results.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: JsonError,
    },
    /// More was handed over than is ever waited for.
    #[error("more than {READ_AHEAD_BYTES} B were read ahead: take all events before reading on")]
    ReadAhead,
    /// A text of ours that is longer than the peer takes.
    #[error("a text of {length} B is above the peer's limit of {limit} B: leave out the report")]
    Outsized {
        /// Its size.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// Reading was tried again after it had failed.
    #[error("the iperf3 control connection failed before: close it")]
    Failed,
    /// A step was taken in the wrong order.
    #[error("{step} is out of turn while {phase}: follow the events")]
    OutOfTurn {
        /// The step.
        step: &'static str,
        /// Where the connection is.
        phase: Phase,
    },
}

fn errno_text(errno: i32) -> String {
    match errno {
        0 => String::new(),
        errno => format!(" ({})", std::io::Error::from_raw_os_error(errno)),
    }
}

/// Why a text of a peer is no use.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Nested deeper than any real one.
    #[error("it nests deeper than {DEPTH_LIMIT} levels")]
    TooDeep,
    /// Not JSON, or not of the right shape.
    #[error("it is no JSON, or of another shape")]
    Decode(#[from] serde_json::Error),
    /// Something that cannot be done without is missing.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A value that cannot be.
    #[error("`{0}` is out of range")]
    OutOfRange(&'static str),
    /// More flows than any test has.
    #[error("it has more than {0} flows")]
    TooManyFlows(usize),
}
