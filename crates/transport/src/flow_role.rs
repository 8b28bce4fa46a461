//! Role of an end in a flow.

/// Role of an end in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowRole {
    /// Sends payload or requests.
    Sender,
    /// Receives payload, or responds.
    Receiver,
}
