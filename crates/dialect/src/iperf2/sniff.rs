//! Detection of iperf2.
//!
//! Two entries in the protocol table, because there are two degrees of certainty:
//!
//! - [`DIALECT`]: a header. Its flags have bits that are never set, in bytes where text has others,
//!   a length that fits, and a plausible version or port. No other protocol looks like this, so the
//!   entry may come before the others.
//! - [`LEGACY_DIALECT`]: numbers and times without a header (UDP), or a header without flags, or
//!   digits
//! (TCP). Other payload can look like this, so the entry comes after all more certain ones. An
//! error costs little: over TCP such a connection is treated as plain payload anyway, and over UDP
//! the only datagram that is ever sent is the reply to a negative number.

use super::datagram::HEADER_BYTES;
use super::settings::{BASE_BYTES, Settings, flags, header_length};
use super::{bounceback, word};
use crate::sniff::{Carrier, Dialect, Verdict};

/// iperf2 with a header: 2.1 and later, 2.0 with both directions, bounceback.
pub const DIALECT: Dialect = Dialect {
    name: "iperf2",
    recognise,
};

/// iperf2 without a header: 2.0, embedded boards, `-C`.
pub const LEGACY_DIALECT: Dialect = Dialect {
    name: "iperf2-legacy",
    recognise: recognise_legacy,
};

/// Maximum number of flows in a plausible header.
const FLOWS_LIMIT: u32 = 4096;

/// Highest number that may open an old flow: the first datagrams may get lost.
const FIRST_NUMBERS: u32 = 1024;

/// Lowest plausible time of a clock that was set: September 2001, in seconds since 1970.
const SET_CLOCK_SECONDS: u32 = 1_000_000_000;

fn recognise(carrier: Carrier, bytes: &[u8]) -> Verdict {
    match carrier {
        Carrier::Stream => stream(bytes),
        Carrier::Datagram if is_datagram(bytes) => Verdict::Yes,
        Carrier::Datagram => Verdict::No,
    }
}

fn stream(bytes: &[u8]) -> Verdict {
    let mut first = [0; 4];
    let there = bytes.len().min(4);
    first[..there].copy_from_slice(&bytes[..there]);
    let flags = u32::from_be_bytes(first);
    if flags & !flags::KNOWN != 0 {
        return Verdict::No;
    }
    if there < 4 {
        // The missing bytes may complete the flags; the first two bytes already exclude most
        // values.
        let hopeless = match there {
            0 => false,
            1 => flags != 0 && flags & (flags::DUAL | flags::EXTENSION) == 0,
            // A bounceback request has no other flag; another one is excluded from the first byte
            // on.
            _ => {
                flags & (flags::DUAL | flags::EXTENSION) == 0
                    && first[..there] != flags::BOUNCEBACK.to_be_bytes()[..there]
            }
        };
        return if hopeless {
            Verdict::No
        } else {
            Verdict::NeedMore
        };
    }
    if flags == flags::BOUNCEBACK {
        return question(bytes);
    }
    let Some(length) = header_length(flags, 0) else {
        return Verdict::No;
    };
    if flags & (flags::UDP_TESTS | flags::BOUNCEBACK) != 0 {
        return Verdict::No;
    }
    match (Settings::read(bytes, 0), bytes.len()) {
        (Some(settings), _) if is_plausible(&settings) => Verdict::Yes,
        (None, there) if there < length => Verdict::NeedMore,
        _ => Verdict::No,
    }
}

fn question(bytes: &[u8]) -> Verdict {
    match (word(bytes, 4), word(bytes, 8)) {
        (Some(size), _)
            if !(bounceback::BEGINNING_BYTES as u32..=bounceback::SIZE_LIMIT).contains(&size) =>
        {
            Verdict::No
        }
        (Some(_), Some(1)) => Verdict::Yes,
        (Some(_), Some(_)) => Verdict::No,
        _ => Verdict::NeedMore,
    }
}

fn is_plausible(settings: &Settings) -> bool {
    (1..=FLOWS_LIMIT).contains(&settings.flows)
        && settings.port != 0
        // Every version with an extension writes 2 as the major version.
        && settings.version.is_none_or(|(upper, _)| upper >> 16 == 2)
}

/// Returns whether a datagram has a plausible header.
fn is_datagram(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.get(HEADER_BYTES..) else {
        return false;
    };
    // The old header over UDP has too few fixed fields.
    let settings = Settings::read(rest, HEADER_BYTES).filter(|s| s.version.is_some());
    let is_time = word(bytes, 8).is_some_and(|us| us < 1_000_000);
    is_time && settings.is_some_and(|settings| is_plausible(&settings))
}

fn recognise_legacy(carrier: Carrier, bytes: &[u8]) -> Verdict {
    match carrier {
        Carrier::Stream => legacy_stream(bytes),
        Carrier::Datagram if is_legacy_datagram(bytes) => Verdict::Yes,
        Carrier::Datagram => Verdict::No,
    }
}

/// Detects a header without flags, as boards send it, or the digits of a client without a header.
fn legacy_stream(bytes: &[u8]) -> Verdict {
    const DIGITS: &[u8; BASE_BYTES] = b"012345678901234567890123";
    let zeros = |words: usize| (0..words.min(bytes.len())).all(|at| bytes[at] == 0);
    if !zeros(4) {
        return Verdict::of_prefix(DIGITS, bytes);
    }
    match (word(bytes, 4), word(bytes, 8), word(bytes, 20)) {
        (Some(flows), ..) if !(1..=FLOWS_LIMIT).contains(&flows) => Verdict::No,
        (_, Some(port), _) if port == 0 || port > u16::MAX.into() => Verdict::No,
        (.., Some(amount)) if amount != 0 => Verdict::Yes,
        (.., Some(_)) => Verdict::No,
        _ => Verdict::NeedMore,
    }
}

fn is_legacy_datagram(bytes: &[u8]) -> bool {
    let (Some(number), Some(seconds), Some(microseconds)) =
        (word(bytes, 0), word(bytes, 4), word(bytes, 8))
    else {
        return false;
    };
    let clock_is_set = seconds >= SET_CLOCK_SECONDS;
    microseconds < 1_000_000
        && (number == 1 || (2..=FIRST_NUMBERS).contains(&number) && clock_is_set)
}
