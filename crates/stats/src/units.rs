//! Parsing and formatting of rates, sizes, durations and counts.
//!
//! Rates are SI bits per second (`10G` = 10^10 bit/s), sizes are IEC bytes (`64K` = 65536 B), a
//! plain duration is in seconds, counts have SI suffixes (`500k` = 500,000). All values are stored
//! in base units: bit/s, bytes, nanoseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Error of parsing a rate, a size, a duration or a count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not start with a number.
    #[error("{}", no_number(text))]
    NoNumber {
        /// Text as written.
        text: String,
    },
    /// The suffix does not belong to this quantity.
    #[error("`{suffix}` is not a unit of a {quantity}: use {suffixes}")]
    UnknownSuffix {
        /// Text after the number.
        suffix: String,
        /// Expected quantity.
        quantity: &'static str,
        /// Valid suffixes.
        suffixes: &'static str,
    },
    /// The value is negative.
    #[error("`{text}` is negative: a {quantity} must be zero or more")]
    Negative {
        /// Text as written.
        text: String,
        /// Expected quantity.
        quantity: &'static str,
    },
    /// The value does not fit, or is not a number.
    #[error("`{text}` is out of range for a {quantity}")]
    OutOfRange {
        /// Text as written.
        text: String,
        /// Expected quantity.
        quantity: &'static str,
    },
}

fn no_number(text: &str) -> String {
    match text.is_empty() {
        true => "the value is missing".to_owned(),
        false => format!("`{text}` does not start with a number"),
    }
}

/// Splits `12.5G` into the number and its suffix.
fn split_number<'a>(text: &'a str, quantity: &'static str) -> Result<(f64, &'a str), UnitError> {
    let text = text.trim();
    if (text.strip_prefix('-')).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(UnitError::Negative {
            text: text.to_owned(),
            quantity,
        });
    }
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number = text[..end]
        .parse::<f64>()
        .map_err(|_| UnitError::NoNumber {
            text: text.to_owned(),
        })?;
    Ok((number, text[end..].trim_start()))
}

/// Scales and rounds to the base unit; rejects values that do not fit.
fn to_base_unit(
    text: &str,
    quantity: &'static str,
    number: f64,
    factor: f64,
) -> Result<u64, UnitError> {
    let value = (number * factor).round();
    // 2^63 instead of 2^64: no real value comes close, and signed arithmetic cannot overflow.
    if !(0.0..9.2e18).contains(&value) {
        return Err(UnitError::OutOfRange {
            text: text.to_owned(),
            quantity,
        });
    }
    Ok(value as u64)
}

/// Spellings of bits per second after the prefix, each before its own endings.
const RATE_ENDINGS: &[&str] = &[
    "bits/sec", "bit/sec", "bits/s", "bit/s", "bits", "bit", "bps", "b/s", "b",
];

/// Spellings of bytes after the prefix.
const SIZE_ENDINGS: &[&str] = &["iB", "ib", "i", "bytes", "byte", "B", "b"];

/// Removes the first of these endings that a suffix has, in any case of letters except for `b`:
/// `B` is a byte.
fn strip_one_of<'a>(suffix: &'a str, endings: &[&str]) -> &'a str {
    let fits = |ending: &&&str| match suffix.len().checked_sub(ending.len()) {
        Some(start) if ending.len() > 2 => {
            suffix.is_char_boundary(start) && suffix[start..].eq_ignore_ascii_case(ending)
        }
        _ => suffix.ends_with(**ending),
    };
    let found = endings.iter().find(fits);
    found.map_or(suffix, |ending| &suffix[..suffix.len() - ending.len()])
}

/// A rate in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(pub u64);

impl FromStr for BitRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, suffix) = split_number(text, "rate")?;
        let unit = strip_one_of(suffix, RATE_ENDINGS);
        let factor = match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "m" | "M" => 1e6,
            "g" | "G" => 1e9,
            "t" | "T" => 1e12,
            _ => {
                return Err(UnitError::UnknownSuffix {
                    suffix: suffix.to_owned(),
                    quantity: "rate",
                    suffixes: "K, M, G or T (10^3, 10^6, 10^9, 10^12 bit/s)",
                });
            }
        };
        to_base_unit(text, "rate", number, factor).map(BitRate)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_bit_rate(self.0 as f64))
    }
}

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, suffix) = split_number(text, "size")?;
        let unit = strip_one_of(suffix, SIZE_ENDINGS);
        let factor = match unit {
            "" => 1.0,
            "k" | "K" => 1024.0,
            "m" | "M" => 1_048_576.0,
            "g" | "G" => 1_073_741_824.0,
            "t" | "T" => 1_099_511_627_776.0,
            _ => {
                return Err(UnitError::UnknownSuffix {
                    suffix: suffix.to_owned(),
                    quantity: "size",
                    suffixes: "K, M, G or T (1024 B and its powers)",
                });
            }
        };
        to_base_unit(text, "size", number, factor).map(ByteSize)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format_bytes(self.0))
    }
}

/// Parses a time of at least one second, as full seconds; `None` if the text is not such a time.
#[must_use]
pub fn parse_seconds(text: &str) -> Option<u64> {
    let seconds = parse_duration(text).ok()?.as_secs();
    (seconds > 0).then_some(seconds)
}

/// Parses a duration: `10`, `10s`, `500ms`, `20us`, `800ns`, `2m`, `1h`; a plain number is in
/// seconds.
///
/// # Errors
/// [`UnitError`] if the text is not a number with one of these suffixes.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, suffix) = split_number(text, "duration")?;
    let factor = match suffix {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1e9,
        "ms" | "msec" => 1e6,
        "us" | "µs" | "μs" | "usec" => 1e3,
        "ns" | "nsec" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60e9,
        "h" | "hour" | "hours" => 3600e9,
        _ => {
            return Err(UnitError::UnknownSuffix {
                suffix: suffix.to_owned(),
                quantity: "duration",
                suffixes: "ns, us, ms, s, m or h",
            });
        }
    };
    to_base_unit(text, "duration", number, factor).map(Duration::from_nanos)
}

/// Parses a count with an SI suffix: `500000`, `500k`, `2M`.
///
/// # Errors
/// [`UnitError`] if the text is not an integer with one of these suffixes.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    let (number, suffix) = split_number(text, "count")?;
    let factor = match suffix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "m" | "M" => 1e6,
        "g" | "G" => 1e9,
        _ => {
            return Err(UnitError::UnknownSuffix {
                suffix: suffix.to_owned(),
                quantity: "count",
                suffixes: "k, M or G (10^3, 10^6, 10^9)",
            });
        }
    };
    to_base_unit(text, "count", number, factor)
}

/// Parses a share: `0.1%` or `0.001`.
///
/// # Errors
/// [`UnitError`] if the text is not a number with or without `%`.
pub fn parse_fraction(text: &str) -> Result<f64, UnitError> {
    let (number, suffix) = split_number(text, "share")?;
    match suffix {
        "" => Ok(number),
        "%" => Ok(number / 100.0),
        _ => Err(UnitError::UnknownSuffix {
            suffix: suffix.to_owned(),
            quantity: "share",
            suffixes: "% or none",
        }),
    }
}

/// Formats three significant digits, as every figure for users: the tools' noise is larger.
fn format_three_digits(value: f64) -> String {
    // The threshold is where rounding adds a digit: 99.95 prints as 100, not 100.0.
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// Formats a bit rate with an SI prefix: `9.41 Gb/s`.
#[must_use]
pub fn format_bit_rate(bits_per_second: f64) -> String {
    let (value, unit) = with_bit_rate_unit(bits_per_second);
    format!("{} {unit}", format_three_digits(value))
}

/// Formats a bit rate as [`format_bit_rate`] does, with two digits more: steps of a search differ by
/// less than its noise.
#[must_use]
pub fn format_precise_bit_rate(bits_per_second: f64) -> String {
    let (value, unit) = with_bit_rate_unit(bits_per_second);
    let digits = match value.abs() {
        v if v >= 99.95 => 2,
        v if v >= 9.995 => 3,
        _ => 4,
    };
    format!("{value:.digits$} {unit}")
}

fn with_bit_rate_unit(bits_per_second: f64) -> (f64, &'static str) {
    match bits_per_second {
        v if v >= 999.5e9 => (v / 1e12, "Tb/s"),
        v if v >= 999.5e6 => (v / 1e9, "Gb/s"),
        v if v >= 999.5e3 => (v / 1e6, "Mb/s"),
        v if v >= 999.5 => (v / 1e3, "kb/s"),
        v => (v, "b/s"),
    }
}

/// Formats a size: `64 KiB` if exact, else three digits: `1.43 GiB`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    for (size, unit) in UNITS {
        if bytes >= size {
            return if bytes.is_multiple_of(size) {
                format!("{} {unit}", bytes / size)
            } else if bytes < 10 * 1024 {
                // Users compare such sizes with an MTU: 1472 B is clearer than 1.44 KiB.
                format!("{bytes} B")
            } else {
                format!("{} {unit}", format_three_digits(bytes as f64 / size as f64))
            };
        }
    }
    format!("{bytes} B")
}

/// Formats a size exactly, in the largest unit of which it is a multiple: `64 KiB`, `65507 B`.
#[must_use]
pub fn format_exact_bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let is_exact = |shift: u32| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift);
    match units.into_iter().find(|&(shift, _)| is_exact(shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// Formats a time with three significant digits, ASCII only: `48.3 us`, `1.20 ms`.
#[must_use]
pub fn format_nanos(nanoseconds: f64) -> String {
    if nanoseconds == 0.0 {
        // Zero has no significant digits.
        return "0 ns".to_owned();
    }
    let (value, unit) = match nanoseconds {
        v if v >= 999.5e6 => (v / 1e9, "s"),
        v if v >= 999.5e3 => (v / 1e6, "ms"),
        v if v >= 999.5 => (v / 1e3, "us"),
        v => (v, "ns"),
    };
    format!("{} {unit}", format_three_digits(value))
}

/// Formats a duration exactly, as options accept it: `100us`, `1500us`, `2s`.
#[must_use]
pub fn format_exact_duration(nanoseconds: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit_entry = units
        .iter()
        .find(|(unit, _)| nanoseconds.is_multiple_of(*unit));
    match unit_entry {
        Some((unit, name)) => format!("{}{name}", nanoseconds / unit),
        None => format!("{nanoseconds}ns"),
    }
}

/// Formats a bit rate exactly, as options accept it: `1G`, `1500M`, `999`.
#[must_use]
pub fn format_exact_rate(bits_per_second: u64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let unit_entry = units
        .iter()
        .find(|(unit, _)| bits_per_second > 0 && bits_per_second.is_multiple_of(*unit));
    match unit_entry {
        Some((unit, name)) => format!("{}{name}", bits_per_second / unit),
        None => bits_per_second.to_string(),
    }
}

/// Formats a share exactly, as options accept it: `0.1%`, or the plain number if the percentage
/// would not parse to the same value.
#[must_use]
pub fn format_exact_share(share: f64) -> String {
    let percent = format!("{}%", (share * 1e10).round() / 1e8);
    match parse_fraction(&percent) {
        Ok(read) if read == share => percent,
        _ => share.to_string(),
    }
}

/// Formats a count with separators: `1,234,567`.
#[must_use]
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with its noun: `1 run`, `1,234 runs`.
#[must_use]
pub fn count_of(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", format_count(count))
}

/// Formats events per second: `266 k/s`, `1.20 M/s`.
#[must_use]
pub fn format_per_second(per_second: f64) -> String {
    let (value, unit) = match per_second {
        v if v >= 999.5e6 => (v / 1e9, "G/s"),
        v if v >= 999.5e3 => (v / 1e6, "M/s"),
        v if v >= 999.5 => (v / 1e3, "k/s"),
        v => (v, "/s"),
    };
    format!("{} {unit}", format_three_digits(value))
}

/// Formats a share as a percentage: `0.12 %`; a share above zero never prints as zero.
#[must_use]
pub fn format_share(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent > 0.0 && percent < 0.01 {
        return "<0.01 %".to_owned();
    }
    format!("{} %", format_three_digits(percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_there_is_not_quoted() {
        for (text, why) in [
            ("", "the value is missing"),
            (" ", "the value is missing"),
            ("x1", "`x1` does not start with a number"),
        ] {
            let error = text.parse::<ByteSize>().expect_err("it is no size");
            assert_eq!(error.to_string(), why, "{text:?}");
        }
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for (nanoseconds, text) in [
            (100_000, "100us"),
            (1_500_000, "1500us"),
            (2_000_000_000, "2s"),
            (250_000_000, "250ms"),
            (123, "123ns"),
        ] {
            assert_eq!(format_exact_duration(nanoseconds), text);
            let read = parse_duration(text).unwrap();
            assert_eq!(read.as_nanos(), u128::from(nanoseconds), "{text}");
        }
        assert_eq!(format_nanos(0.0), "0 ns");
        assert_eq!(format_exact_duration(0), "0s");
    }

    #[test]
    fn a_negative_value_is_reported_as_such() {
        let message = "-5".parse::<BitRate>().unwrap_err().to_string();
        assert_eq!(message, "`-5` is negative: a rate must be zero or more");
        let message = "-64K".parse::<ByteSize>().unwrap_err().to_string();
        assert_eq!(message, "`-64K` is negative: a size must be zero or more");
        assert!(matches!(
            "-x".parse::<ByteSize>(),
            Err(UnitError::NoNumber { .. })
        ));
    }
    use proptest::prelude::*;

    #[test]
    fn rates_are_si_bits() {
        for (text, expected) in [
            ("10G", 10_000_000_000),
            ("1.5M", 1_500_000),
            ("55kb/s", 55_000),
            ("100", 100),
            ("9Gbit/s", 9_000_000_000),
            ("1Tbps", 1_000_000_000_000),
            ("10Mbit", 10_000_000),
            ("10 mbits/sec", 10_000_000),
            ("10MBIT/S", 10_000_000),
            ("10mb", 10_000_000),
            ("500bit", 500),
        ] {
            assert_eq!(text.parse::<BitRate>(), Ok(BitRate(expected)), "{text}");
        }
        // `B` is a byte.
        for text in [
            "",
            "G",
            "10X",
            "-1",
            "1e9",
            "99999999999T",
            "10MB",
            "10Mibit",
        ] {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_iec_bytes() {
        for (text, expected) in [
            ("64K", 65_536),
            ("1472", 1472),
            ("1M", 1_048_576),
            ("32KiB", 32_768),
            ("2GB", 2_147_483_648),
            ("64 kbytes", 65_536),
            ("10b", 10),
        ] {
            assert_eq!(text.parse::<ByteSize>(), Ok(ByteSize(expected)), "{text}");
        }
        assert!("64Q".parse::<ByteSize>().is_err());
    }

    #[test]
    fn bare_durations_are_seconds() {
        for (text, expected) in [
            ("10", 10_000_000_000),
            ("500ms", 500_000_000),
            ("1.5us", 1_500),
            ("2m", 120_000_000_000),
            ("20µs", 20_000),
            ("10 sec", 10_000_000_000),
            ("5msec", 5_000_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_nanos(expected)),
                "{text}"
            );
        }
        assert!(parse_duration("3 fortnights").is_err());
    }

    #[test]
    fn figures_print_three_digits() {
        for (value, expected) in [
            (9_414_000_000.0, "9.41 Gb/s"),
            (55_000.0, "55.0 kb/s"),
            (999_600_000.0, "1.00 Gb/s"),
            (434_000_000.0, "434 Mb/s"),
            (0.0, "0.00 b/s"),
        ] {
            assert_eq!(format_bit_rate(value), expected);
        }
        assert_eq!(format_nanos(48_312.0), "48.3 us");
        assert_eq!(format_nanos(99_960.0), "100 us");
        assert_eq!(format_bytes(1472), "1472 B");
        assert_eq!(format_bytes(65_536), "64 KiB");
        for (bytes, expected) in [
            (0, "0 B"),
            (1_472, "1472 B"),
            (65_507, "65507 B"),
            (65_536, "64 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 20) + 1_024, "1025 KiB"),
        ] {
            assert_eq!(format_exact_bytes(bytes), expected);
        }
        assert_eq!(format_count(1_234_567), "1,234,567");
        assert_eq!(format_share(0.000_001), "<0.01 %");
        assert_eq!(format_share(0.0), "0.00 %");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = text.parse::<BitRate>();
            let _ = text.parse::<ByteSize>();
            let _ = parse_duration(&text);
            let _ = parse_count(&text);
            let _ = parse_fraction(&text);
        }

        #[test]
        fn printed_rates_read_back_within_their_digits(rate in 1_000u64..1_000_000_000_000) {
            let printed = BitRate(rate).to_string();
            let read: BitRate = printed.parse().unwrap();
            let error = (read.0 as f64 - rate as f64).abs() / rate as f64;
            prop_assert!(error <= 0.006, "{rate} printed {printed}");
        }

        #[test]
        fn printed_sizes_read_back(size in 0u64..1 << 50) {
            let printed = ByteSize(size).to_string();
            let read: ByteSize = printed.parse().unwrap();
            let error = (read.0 as f64 - size as f64).abs();
            prop_assert!(error <= size as f64 * 0.006, "{size} printed {printed}");
        }
    }
}
