//! Detection of iperf2.
//!
//! Two entries in the protocol table, because there are two degrees of certainty:
//!
//! - [`PROTOCOL`]: a header. Its flags have bits that are never set, in bytes where text has
//!   others, a length that fits, and a plausible version or port. No other protocol looks like
//!   this, so the entry may come before the others.
//! - [`LEGACY_PROTOCOL`]: numbers and times without a header (UDP), or a header without flags, or
//!   digits (TCP). Other payload can look like this, so the entry comes after all more certain
//!   ones. An error costs little: over TCP such a connection is treated as plain payload anyway,
//!   and over UDP the only datagram that is ever sent is the reply to a negative number.

use super::datagram::{HEADER_BYTES, read_header};
use super::settings::{BASE_BYTES, Iperf2Settings, flags, header_length};
use super::{bounceback, read_u32};
use crate::classification::{ProtocolInfo, ProtocolMatch, TransportKind};

/// iperf2 with a header: 2.1 and later, 2.0 with both directions, bounceback.
pub const PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "iperf2",
    detect,
};

/// iperf2 without a header: 2.0, embedded boards, `-C`.
pub const LEGACY_PROTOCOL: ProtocolInfo = ProtocolInfo {
    name: "iperf2-legacy",
    detect: detect_legacy,
};

/// Maximum number of flows in a plausible header.
const FLOWS_LIMIT: u32 = 4096;

/// Highest number that may open an old flow: the first datagrams may get lost.
const FIRST_NUMBER_LIMIT: u32 = 1024;

/// Lowest plausible time of a clock that was set: September 2001, in seconds since 1970.
const SET_CLOCK_SECONDS: u32 = 1_000_000_000;

fn detect(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    match transport {
        TransportKind::Stream => detect_stream(bytes),
        TransportKind::Datagram if is_datagram(bytes) => ProtocolMatch::Yes,
        TransportKind::Datagram => ProtocolMatch::No,
    }
}

fn detect_stream(bytes: &[u8]) -> ProtocolMatch {
    let mut first = [0; 4];
    let available = bytes.len().min(4);
    first[..available].copy_from_slice(&bytes[..available]);
    let flags = u32::from_be_bytes(first);
    if flags & !flags::ALL != 0 {
        return ProtocolMatch::No;
    }
    if available < 4 {
        // The missing bytes may complete the flags; the first two bytes already exclude most
        // values.
        let is_excluded = match available {
            0 => false,
            1 => flags != 0 && flags & (flags::DUAL | flags::EXTENSION) == 0,
            // A bounceback request has no other flag; another one is excluded from the first byte
            // on.
            _ => {
                flags & (flags::DUAL | flags::EXTENSION) == 0
                    && first[..available] != flags::BOUNCEBACK.to_be_bytes()[..available]
            }
        };
        return if is_excluded {
            ProtocolMatch::No
        } else {
            ProtocolMatch::NeedMore
        };
    }
    if flags == flags::BOUNCEBACK {
        return detect_bounceback(bytes);
    }
    let Some(length) = header_length(flags, 0) else {
        return ProtocolMatch::No;
    };
    if flags & (flags::UDP_TESTS | flags::BOUNCEBACK) != 0 {
        return ProtocolMatch::No;
    }
    match (Iperf2Settings::read(bytes, 0), bytes.len()) {
        (Some(settings), _) if is_plausible(&settings) => ProtocolMatch::Yes,
        (None, available) if available < length => ProtocolMatch::NeedMore,
        _ => ProtocolMatch::No,
    }
}

fn detect_bounceback(bytes: &[u8]) -> ProtocolMatch {
    match (read_u32(bytes, 4), read_u32(bytes, 8)) {
        (Some(size), _)
            if !(bounceback::MESSAGE_MIN_BYTES as u32..=bounceback::SIZE_LIMIT).contains(&size) =>
        {
            ProtocolMatch::No
        }
        (Some(_), Some(1)) => ProtocolMatch::Yes,
        (Some(_), Some(_)) => ProtocolMatch::No,
        _ => ProtocolMatch::NeedMore,
    }
}

fn is_plausible(settings: &Iperf2Settings) -> bool {
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
    let settings = Iperf2Settings::read(rest, HEADER_BYTES).filter(|s| s.version.is_some());
    let is_time = read_u32(bytes, 8).is_some_and(|microseconds| microseconds < 1_000_000);
    is_time && settings.is_some_and(|settings| is_plausible(&settings))
}

fn detect_legacy(transport: TransportKind, bytes: &[u8]) -> ProtocolMatch {
    match transport {
        TransportKind::Stream => detect_legacy_stream(bytes),
        TransportKind::Datagram if is_legacy_datagram(bytes) => ProtocolMatch::Yes,
        TransportKind::Datagram => ProtocolMatch::No,
    }
}

/// Detects a header without flags, as boards send it, or the digits of a client without a header.
fn detect_legacy_stream(bytes: &[u8]) -> ProtocolMatch {
    const DIGITS: &[u8; BASE_BYTES] = b"012345678901234567890123";
    let zeros = |word_count: usize| (0..word_count.min(bytes.len())).all(|at| bytes[at] == 0);
    if !zeros(4) {
        return ProtocolMatch::of_prefix(DIGITS, bytes);
    }
    match (read_u32(bytes, 4), read_u32(bytes, 8), read_u32(bytes, 20)) {
        (Some(flows), ..) if !(1..=FLOWS_LIMIT).contains(&flows) => ProtocolMatch::No,
        (_, Some(port), _) if port == 0 || port > u16::MAX.into() => ProtocolMatch::No,
        (.., Some(amount)) if amount != 0 => ProtocolMatch::Yes,
        (.., Some(_)) => ProtocolMatch::No,
        _ => ProtocolMatch::NeedMore,
    }
}

/// Largest distance of the numbers of a flow's first datagrams: a queue may have dropped many.
const FIRST_NUMBERS_SPAN: u64 = 1 << 16;

/// Decides from the first datagrams of a flow whether they are iperf2 without a header: numbers
/// that differ, from 0 or 1 on or shortly after, and times. One datagram alone may be other
/// payload, and boards send numbers from 0 and times of a clock that was not set.
#[must_use]
pub fn detect_legacy_flow<'a>(datagrams: impl IntoIterator<Item = &'a [u8]>) -> ProtocolMatch {
    let mut datagrams = datagrams
        .into_iter()
        .map(|datagram| read_header(datagram, false).map(|header| header.sequence));
    let first = match datagrams.next() {
        None => return ProtocolMatch::NeedMore,
        Some(Some(first)) if (0..=FIRST_NUMBER_LIMIT.into()).contains(&first) => first,
        Some(_) => return ProtocolMatch::No,
    };
    for number in datagrams {
        match number.map(|number| number.unsigned_abs().abs_diff(first.unsigned_abs())) {
            Some(0) => {}
            Some(1..=FIRST_NUMBERS_SPAN) => return ProtocolMatch::Yes,
            _ => return ProtocolMatch::No,
        }
    }
    ProtocolMatch::NeedMore
}

fn is_legacy_datagram(bytes: &[u8]) -> bool {
    let (Some(number), Some(seconds), Some(microseconds)) =
        (read_u32(bytes, 0), read_u32(bytes, 4), read_u32(bytes, 8))
    else {
        return false;
    };
    let clock_is_set = seconds >= SET_CLOCK_SECONDS;
    microseconds < 1_000_000
        && (number == 1 || (2..=FIRST_NUMBER_LIMIT).contains(&number) && clock_is_set)
}
