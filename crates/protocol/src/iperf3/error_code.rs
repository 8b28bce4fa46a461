//! Error codes of an iperf3 server.

use std::fmt;

/// Message of a busy server to a second client, before it closes the connection.
pub const BUSY: [u8; 1] = [0xff];

/// Error code of an iperf3 server: a number of upstream's error list, whose text the client prints.
/// Checked against upstream 3.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iperf3ErrorCode(pub i32);

impl Iperf3ErrorCode {
    /// The test is longer than allowed.
    pub const DURATION: Self = Self(5);
    /// Too many parallel flows.
    pub const PARALLEL: Self = Self(6);
    /// The block size (`-l`) is too large.
    pub const BLOCK: Self = Self(7);
    /// The omitted time is invalid.
    pub const OMIT: Self = Self(12);
    /// The server does not implement an option.
    pub const UNIMPLEMENTED: Self = Self(13);
    /// The server does not support SCTP.
    pub const NO_SCTP: Self = Self(18);
    /// The datagram size (`-l`) is out of range.
    pub const UDP_BLOCK: Self = Self(20);
    /// The rate is higher than the server allows.
    pub const TOTAL_RATE: Self = Self(27);
    /// The server cannot create a test.
    pub const NEW_TEST: Self = Self(100);
    /// A control message was unexpected.
    pub const MESSAGE: Self = Self(110);
    /// The parameters cannot be read.
    pub const PARAMETERS: Self = Self(114);
    /// The results cannot be read.
    pub const RESULTS: Self = Self(117);
    /// The server terminated the test.
    pub const TEST_TERMINATED: Self = Self(120);
    /// The congestion control (`-C`) is not available.
    pub const CONGESTION: Self = Self(134);
    /// Authentication failed.
    pub const AUTHORIZATION: Self = Self(142);
    /// A flow cannot be created.
    pub const CREATE_FLOW: Self = Self(200);
    /// A flow did not arrive.
    pub const ACCEPT_FLOW: Self = Self(204);
    /// The results have a flow number that the test does not have.
    pub const FLOW_ID: Self = Self(208);

    /// Returns the meaning of the code; `None` for codes that are not listed here.
    #[must_use]
    pub fn meaning(self) -> Option<&'static str> {
        Some(match self {
            Self::DURATION => "the test is longer than it allows",
            Self::PARALLEL => "too many flows",
            Self::BLOCK => "the block size is too large",
            Self::OMIT => "the omitted time is invalid",
            Self::UNIMPLEMENTED => "an option is not implemented there",
            Self::NO_SCTP => "SCTP is not supported there",
            Self::UDP_BLOCK => "the datagram size is out of range",
            Self::TOTAL_RATE => "the rate is higher than it allows",
            Self::NEW_TEST => "it cannot create a test",
            Self::MESSAGE => "it received an unexpected control message",
            Self::PARAMETERS => "it cannot read the parameters",
            Self::RESULTS => "it cannot read the results",
            Self::TEST_TERMINATED => "it terminated the test",
            Self::CONGESTION => "the congestion control is not available there, or not permitted",
            Self::AUTHORIZATION => "user and password are wrong or missing",
            Self::CREATE_FLOW => "it cannot create a flow",
            Self::ACCEPT_FLOW => "it cannot accept a flow",
            Self::FLOW_ID => "the results have an unknown flow number",
            _ => return None,
        })
    }
}

impl fmt::Display for Iperf3ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(meaning) => write!(f, "{meaning} (iperf3 error {})", self.0),
            None => write!(f, "iperf3 error {}", self.0),
        }
    }
}
