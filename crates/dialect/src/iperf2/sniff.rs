//! What tells iperf2 from everything else.
//!
//! Two lines of the table of dialects, because there are two degrees of certainty:
//!
//! - [`DIALECT`]: a header. Its flags have bits that are never set, in bytes where text has others, a
//!   length that fits, and a version or port that can be. Nothing else looks like that, so it may stand
//!   before the others.
//! - [`LEGACY_DIALECT`]: numbers and times without a header (UDP), or a header without flags, or digits
//!   (TCP). Other payload can look like that, so it stands behind all who are more certain. To be wrong
//!   costs little: over TCP such a connection is plain payload in any case, and over UDP the answer to
//!   a negative number is all that is ever sent.

use super::datagram::HEADER_BYTES;
use super::settings::{BASE_BYTES, Settings, flags, header_length};
use super::{bounceback, word};
use crate::sniff::{Carrier, Dialect, Verdict};

/// iperf2 with a header: 2.1 and later, 2.0 that wants both directions, bounceback.
pub const DIALECT: Dialect = Dialect {
    name: "iperf2",
    recognise,
};

/// iperf2 without: 2.0, boards, `-C`.
pub const LEGACY_DIALECT: Dialect = Dialect {
    name: "iperf2-legacy",
    recognise: recognise_legacy,
};

/// Flows that a client may say it has.
const FLOWS_LIMIT: u32 = 4096;

/// First numbers of an old flow that may get lost: later ones open none.
const FIRST_NUMBERS: u32 = 1024;

/// Seconds since 1970 that a clock has which was ever set: September 2001.
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
        // The next bytes may bring what is missing; of the first two there is enough to tell.
        let hopeless = match there {
            0 => false,
            1 => flags != 0 && flags & (flags::DUAL | flags::EXTENSION) == 0,
            // A question has no other flag: with one it was hopeless from its first byte on.
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
        // Every version with an extension says that it is 2.
        && settings.version.is_none_or(|(upper, _)| upper >> 16 == 2)
}

/// The least of [`Settings`] that a datagram has room for.
fn is_datagram(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.get(HEADER_BYTES..) else {
        return false;
    };
    // In the old header over UDP too little is fixed.
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

/// A header without flags, which boards send, or the digits of a client that sends none.
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
