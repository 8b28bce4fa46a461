//! Which dialect a peer speaks, told by its first bytes.
//!
//! A server port serves every dialect at once, so the first bytes of a connection, or the first
//! datagram of a flow, must decide. Each dialect brings a recogniser that looks at those bytes
//! alone, and [`DIALECTS`] lists them with the most certain first: ours opens with a magic that
//! nothing else can begin with, while plain payload can look like anything.

use crate::{chargen, control, discard, echo, iperf2, iperf3, nuttcp, plain, sockperf, ttcp};

/// What carries the bytes, because the rules of a dialect differ between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A TCP connection: the bytes are what has arrived of it so far.
    Stream,
    /// UDP: the bytes are one whole datagram.
    Datagram,
}

/// What a recogniser says of the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are this dialect.
    Yes,
    /// They cannot be this dialect, whatever follows.
    No,
    /// They may become this dialect: ask again with more. Never said of a datagram.
    NeedMore,
}

impl Verdict {
    /// How `bytes` compare with a fixed beginning.
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

    /// The verdict on two beginnings of which either will do.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::NeedMore, _) | (_, Self::NeedMore) => Self::NeedMore,
            (Self::No, Self::No) => Self::No,
        }
    }
}

/// A wire format that a peer may speak.
#[derive(Debug)]
pub struct Dialect {
    /// Kebab-case name, as options and records have it.
    pub name: &'static str,
    /// What the first bytes say.
    pub recognise: fn(Carrier, &[u8]) -> Verdict,
}

/// Every dialect, in the order in which they are asked.
///
/// The last four have no beginning of their own: a port is told to speak them. What is none of the
/// others is plain.
pub const DIALECTS: &[Dialect] = &[
    control::DIALECT,
    nuttcp::DIALECT,
    iperf3::DIALECT,
    iperf2::DIALECT,
    sockperf::DIALECT,
    ttcp::DIALECT,
    iperf2::LEGACY_DIALECT,
    echo::DIALECT,
    discard::DIALECT,
    chargen::DIALECT,
    plain::DIALECT,
];

/// Which dialect the first bytes belong to.
#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    /// This one.
    Known(&'static Dialect),
    /// Not told yet: ask again with more bytes.
    NeedMore,
    /// None of the table.
    Unknown,
}

/// Asks the dialects of [`DIALECTS`] in their order.
///
/// A dialect that needs more bytes holds back all that come after it, so that a doubtful match
/// never wins over a certain one that has not fully arrived.
#[must_use]
pub fn speaker(carrier: Carrier, first_bytes: &[u8]) -> Speaker {
    for dialect in DIALECTS {
        match (dialect.recognise)(carrier, first_bytes) {
            Verdict::Yes => return Speaker::Known(dialect),
            Verdict::NeedMore => return Speaker::NeedMore,
            Verdict::No => {}
        }
    }
    Speaker::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (position, dialect) in DIALECTS.iter().enumerate() {
            assert!(
                DIALECTS[..position].iter().all(|d| d.name != dialect.name),
                "{}",
                dialect.name
            );
        }
    }

    #[test]
    fn a_datagram_is_whole() {
        for dialect in DIALECTS {
            for bytes in [&b""[..], b"\x01", b"\x01lr\xC0"] {
                assert_ne!(
                    (dialect.recognise)(Carrier::Datagram, bytes),
                    Verdict::NeedMore,
                    "{} {bytes:02x?}",
                    dialect.name
                );
            }
        }
    }
}
