//! Entry of the protocol table, and the results of its detectors.

/// Transport that carries the bytes; the detection rules differ between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// A TCP connection: the bytes are what has arrived of it so far.
    Stream,
    /// UDP: the bytes are one complete datagram.
    Datagram,
}

/// Result of one protocol's detector for the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolMatch {
    /// The bytes belong to this protocol.
    Yes,
    /// The bytes cannot belong to this protocol, whatever follows.
    No,
    /// The bytes may belong to this protocol: repeat with more. Never returned for a datagram.
    NeedMore,
}

impl ProtocolMatch {
    /// Compares `bytes` with a fixed prefix.
    #[must_use]
    pub fn of_prefix(prefix: &[u8], bytes: &[u8]) -> Self {
        if bytes.starts_with(prefix) {
            Self::Yes
        } else if prefix.starts_with(bytes) {
            Self::NeedMore
        } else {
            Self::No
        }
    }

    /// Combines the results for two alternative prefixes of one protocol.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::NeedMore, _) | (_, Self::NeedMore) => Self::NeedMore,
            (Self::No, Self::No) => Self::No,
        }
    }
}

/// Name and detector of a protocol.
#[derive(Debug)]
pub struct ProtocolInfo {
    /// Kebab-case name, as in options and records.
    pub name: &'static str,
    /// Detector: compares the first bytes with the protocol.
    pub detect: fn(TransportKind, &[u8]) -> ProtocolMatch,
}

/// Protocol that the first bytes belong to.
#[derive(Clone, Copy, Debug)]
pub enum Classification {
    /// A protocol of the table.
    Known(&'static ProtocolInfo),
    /// Undecided: repeat with more bytes.
    NeedMore,
    /// No protocol of the table.
    Unknown,
}
