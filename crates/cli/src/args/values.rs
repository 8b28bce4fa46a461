//! Parsers of option values.

use std::time::Duration;

use linerate_interop::{AUTO, CLIENT_PROTOCOLS};
use linerate_record::round_trip::MAX_RATE_PER_SECOND;
use linerate_stats::units::{BitRate, parse_count, parse_duration, parse_fraction};

pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

pub(super) fn fraction(text: &str) -> Result<f64, String> {
    parse_fraction(text).map_err(|error| error.to_string())
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    parse_count(text).map_err(|error| error.to_string())
}

/// Parses the condition of a slow round trip: `rtt>200us`.
pub(super) fn slower_than(text: &str) -> Result<Duration, String> {
    condition_above("rtt", "200us", text)
}

/// Parses the condition of a long call: `call>1ms`.
pub(super) fn longer_call(text: &str) -> Result<Duration, String> {
    condition_above("call", "1ms", text)
}

/// Parses `NAME>TIME`.
pub(super) fn condition_above(
    quantity: &str,
    example: &str,
    text: &str,
) -> Result<Duration, String> {
    let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let limit = compact
        .strip_prefix(quantity)
        .and_then(|rest| rest.strip_prefix('>'))
        .map(|limit| limit.trim_start_matches('='));
    let limit =
        limit.ok_or_else(|| format!("`{text}` is not a condition: write {quantity}>{example}"))?;
    duration(limit)
}

/// Parses a rate per second: `10k/s`, `500`.
pub(super) fn per_second(text: &str) -> Result<u64, String> {
    let count = count(text.trim_end_matches("/s"))?;
    match count {
        1..=MAX_RATE_PER_SECOND => Ok(count),
        _ => Err("use 1/s to 10M/s".to_owned()),
    }
}

/// Parses a type of service: a number, or a DSCP name (RFC 2474, 2597, 3246, 8622), whose value is
/// the upper six bits of the byte.
pub(super) fn tos(text: &str) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    let number = match lower.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => lower.parse().ok(),
    };
    let digits: Vec<u8> = lower
        .bytes()
        .skip_while(u8::is_ascii_alphabetic)
        .map(|digit| digit.wrapping_sub(b'0'))
        .collect();
    let code_point = match (
        lower.trim_end_matches(|c: char| c.is_ascii_digit()),
        &digits[..],
    ) {
        ("ef", []) => Some(46),
        ("le", []) => Some(1),
        ("cs", &[class @ 0..=7]) => Some(class * 8),
        ("af", &[class @ 1..=4, drop @ 1..=3]) => Some(class * 8 + drop * 2),
        _ => None,
    };
    number
        .or(code_point.map(|point| point << 2))
        .ok_or_else(|| {
            format!("`{text}` is neither 0 to 255 nor a DSCP name (ef, le, cs0-7, af11-43)")
        })
}

/// Parses a bit rate above zero.
pub(super) fn nonzero_rate(text: &str) -> Result<BitRate, String> {
    let rate: BitRate = text.parse().map_err(|error| format!("{error}"))?;
    match rate.0 {
        0 => Err("a rate of 0 sends nothing: leave it out for no limit".to_owned()),
        _ => Ok(rate),
    }
}

/// Parses a time above zero.
pub(super) fn nonzero_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a time of 0 allows no test: leave it out for no limit".to_owned()),
        time => Ok(time),
    }
}

/// Parses the name of another tool's protocol, or `none`.
pub(super) fn served_protocol(text: &str) -> Result<String, String> {
    let names = linerate_server::handlers::handler_names();
    match text == "none" || names.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "unknown protocol: use {}, or none",
            names.join(", ")
        )),
    }
}

/// Parses the name of a protocol that a client can use.
pub(super) fn client_protocol(text: &str) -> Result<String, String> {
    let names_iter = CLIENT_PROTOCOLS
        .iter()
        .map(|protocol| protocol.name)
        .chain([AUTO]);
    let names: Vec<_> = names_iter.collect();
    match names.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is not one of {}", names.join(", "))),
    }
}
