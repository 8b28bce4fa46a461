//! The codes by which a server says why it will not.

use std::fmt;

/// All that a server says to a second client while it is busy, before it closes the connection.
pub const BUSY: [u8; 1] = [0xff];

/// Why a server refuses: a number of the stock program's own list of errors, whose text its client
/// prints. Every number below was held against stock 3.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub i32);

impl Refusal {
    /// The test is too long.
    pub const DURATION: Self = Self(5);
    /// Too many flows.
    pub const PARALLEL: Self = Self(6);
    /// A block (`-l`) is too large.
    pub const BLOCK: Self = Self(7);
    /// The omitted time makes no sense.
    pub const OMIT: Self = Self(12);
    /// An option that the server does not have.
    pub const UNIMPLEMENTED: Self = Self(13);
    /// No SCTP here.
    pub const NO_SCTP: Self = Self(18);
    /// A datagram (`-l`) is too small or too large.
    pub const UDP_BLOCK: Self = Self(20);
    /// The rate is above what the server allows.
    pub const TOTAL_RATE: Self = Self(27);
    /// A test could not be made.
    pub const NEW_TEST: Self = Self(100);
    /// A byte that does not belong there.
    pub const MESSAGE: Self = Self(110);
    /// The parameters could not be read.
    pub const PARAMETERS: Self = Self(114);
    /// The results could not be read.
    pub const RESULTS: Self = Self(117);
    /// The server ends the test.
    pub const SERVER_ENDS: Self = Self(120);
    /// The congestion control (`-C`) is not to be had.
    pub const CONGESTION: Self = Self(134);
    /// The client may not.
    pub const AUTHORIZATION: Self = Self(142);
    /// A flow could not be made.
    pub const CREATE_FLOW: Self = Self(200);
    /// A flow did not arrive.
    pub const ACCEPT_FLOW: Self = Self(204);
    /// Results with another number than that of the flow.
    pub const FLOW_ID: Self = Self(208);

    /// What it means, as far as it is known here.
    #[must_use]
    pub fn meaning(self) -> Option<&'static str> {
        Some(match self {
            Self::DURATION => "the test is longer than it allows",
            Self::PARALLEL => "too many flows",
            Self::BLOCK => "the block size is too large",
            Self::OMIT => "the omitted time makes no sense to it",
            Self::UNIMPLEMENTED => "an option that it does not have",
            Self::NO_SCTP => "it has no SCTP",
            Self::UDP_BLOCK => "the datagram size is out of its range",
            Self::TOTAL_RATE => "the rate is above what it allows",
            Self::NEW_TEST => "it cannot make a test",
            Self::MESSAGE => "it did not understand a control message",
            Self::PARAMETERS => "it cannot read the parameters",
            Self::RESULTS => "it cannot read the results",
            Self::SERVER_ENDS => "it ended the test",
            Self::CONGESTION => "it does not have the congestion control, or may not choose it",
            Self::AUTHORIZATION => "user and password are wrong or missing",
            Self::CREATE_FLOW => "it cannot make a flow",
            Self::ACCEPT_FLOW => "it cannot accept a flow",
            Self::FLOW_ID => "the results name a flow that it does not know",
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} (its error {})", self.0),
            None => write!(f, "its error {}", self.0),
        }
    }
}
