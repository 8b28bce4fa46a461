//! Errors of a test with an iperf2 peer.

/// Error of a test with an iperf2 peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Iperf2Error {
    /// A bounceback message is above the size limit.
    #[error("the iperf2 client requests messages of {bytes} B, above the limit of {limit} B")]
    MessageTooLarge {
        /// Requested size.
        bytes: u32,
        /// Largest allowed size.
        limit: u32,
    },
    /// A bounceback message is smaller than the mandatory fields.
    #[error("messages of {bytes} B are too small: iperf2 needs {min_bytes} B")]
    MessageTooSmall {
        /// Size of the message.
        bytes: u32,
        /// Smallest size.
        min_bytes: u32,
    },
    /// A reply does not belong to the last request.
    #[error(
        "the iperf2 server's reply does not match the request: check that iperf 2.1.8 or later runs there"
    )]
    UnexpectedReply,
    /// The header cannot express a value.
    #[error("iperf2's header cannot express {quantity}: request less, or end the test by time")]
    Unencodable {
        /// Description of the value.
        quantity: &'static str,
    },
    /// A datagram is smaller than its header.
    #[error("datagrams of {bytes} B are too small: the header needs {min_bytes} B")]
    DatagramTooSmall {
        /// Size of the datagram.
        bytes: usize,
        /// Smallest size.
        min_bytes: usize,
    },
}
