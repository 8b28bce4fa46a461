//! What can go wrong with an iperf2 peer.

/// Why an iperf2 peer cannot be spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Iperf2Error {
    /// A message of question and answer that is larger than any real one.
    #[error("the iperf2 client asks for messages of {bytes} B where {limit} B are the limit")]
    MessageTooLarge {
        /// What it asks for.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// A message that does not hold the fields which every message begins with.
    #[error("messages of {bytes} B are too small: iperf2 needs {least} B")]
    MessageTooSmall {
        /// The size.
        bytes: u32,
        /// The least.
        least: u32,
    },
    /// An answer that belongs to no question.
    #[error(
        "the iperf2 server answered with something else than the question: check that iperf 2.1.8 or later runs there"
    )]
    NotAnAnswer,
    /// A number that the header has no room for.
    #[error("iperf2's header has no room for {what}: ask for less, or end the test by time")]
    Unsendable {
        /// What it is.
        what: &'static str,
    },
    /// A datagram that is too small for what it has to hold.
    #[error("datagrams of {bytes} B are too small: {least} B hold the header")]
    DatagramTooSmall {
        /// The size.
        bytes: usize,
        /// The least.
        least: usize,
    },
}
