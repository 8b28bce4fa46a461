//! Parser for one axis of a sweep: a name with its values, `rcvbuf=1k..64k:x2`,
//! `congestion_controls=bbr,cubic`.

use std::str::FromStr;

use crate::TuneError;
use crate::knob::present_name;

/// Maximum number of values of one axis: a range with a small step is more likely a mistake.
const MAX_VALUES: usize = 1_000;

/// Options whose unit letters are powers of 1000 instead of 1024.
const DECIMAL_OPTIONS: [&str; 5] = ["bitrate", "pps", "rate", "count", "parallel"];

/// A knob or option to vary, with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepAxis {
    /// Long name of the option, or name of a knob.
    pub name: String,
    /// Values in display order; empty if none was written, which selects the knob's own values.
    pub values: Vec<String>,
}

impl FromStr for SweepAxis {
    type Err = TuneError;

    fn from_str(text: &str) -> Result<Self, TuneError> {
        let reject = |reason: String| TuneError::InvalidAxis {
            text: text.to_owned(),
            reason,
        };
        let (name, values) = match text.split_once('=') {
            Some((name, values)) => (name, Some(values)),
            None => (text, None),
        };
        let name = name.trim().trim_start_matches("--");
        if name.is_empty() {
            return Err(reject("the name is missing".to_owned()));
        }
        let mut axis_values: Vec<String> = Vec::new();
        for part in values.into_iter().flat_map(|values| values.split(',')) {
            let part = part.trim();
            match part.split_once("..") {
                Some((from, rest)) => {
                    axis_values.extend(expand_range(name, from, rest).map_err(reject)?)
                }
                None if part.is_empty() => return Err(reject("a value is empty".to_owned())),
                None => axis_values.push(part.to_owned()),
            }
        }
        let mut distinct = std::collections::BTreeSet::new();
        axis_values.retain(|value| distinct.insert(value.clone()));
        if axis_values.len() > MAX_VALUES {
            return Err(reject(format!("more than {MAX_VALUES} values")));
        }
        Ok(Self {
            name: present_name(name),
            values: axis_values,
        })
    }
}

/// Splits `text` into a number and its unit letters.
fn split_unit(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end]
        .parse()
        .map_err(|_| format!("`{text}` does not begin with a number"))?;
    Ok((number, &text[end..]))
}

/// Expands `FROM..TO` with an optional step `:x2` or `:+8K`; both limits are included.
fn expand_range(name: &str, from: &str, rest: &str) -> Result<Vec<String>, String> {
    let (to, step) = rest.split_once(':').unwrap_or((rest, "x2"));
    let (first, first_unit) = split_unit(from)?;
    let (last, last_unit) = split_unit(to)?;
    let factor: f64 = if DECIMAL_OPTIONS.contains(&name) {
        1000.0
    } else {
        1024.0
    };
    let unit_factor = |unit: &str| -> Result<f64, String> {
        let power = match unit.to_ascii_lowercase().as_str() {
            "" => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            _ if first_unit == last_unit => 0,
            _ => {
                return Err(format!(
                    "unit `{unit}` has no known size: give both limits the same unit"
                ));
            }
        };
        Ok(factor.powi(power))
    };
    // With one unit for both limits there is nothing to convert.
    let (first, last, unit) = match first_unit == last_unit {
        true => (first, last, Some(first_unit)),
        false => (
            first * unit_factor(first_unit)?,
            last * unit_factor(last_unit)?,
            None,
        ),
    };
    if !(first <= last && first >= 0.0) {
        return Err("the range ends before it begins".to_owned());
    }
    let next: Box<dyn Fn(f64) -> f64> = if let Some(multiplier) = step.strip_prefix('x') {
        let multiplier: f64 = multiplier
            .parse()
            .map_err(|_| format!("`{step}` is not a step: write x2 or +8K"))?;
        if multiplier <= 1.0 || first == 0.0 {
            return Err("the step does not advance".to_owned());
        }
        Box::new(move |value| value * multiplier)
    } else if let Some(increment) = step.strip_prefix('+') {
        let (increment, increment_unit) = split_unit(increment)?;
        let increment = match unit {
            Some(unit) if increment_unit == unit || increment_unit.is_empty() => increment,
            Some(_) => return Err("the step has a different unit".to_owned()),
            None => increment * unit_factor(increment_unit)?,
        };
        if increment <= 0.0 {
            return Err("the step does not advance".to_owned());
        }
        Box::new(move |value| value + increment)
    } else {
        return Err(format!("`{step}` is not a step: write x2 or +8K"));
    };
    let mut values = Vec::new();
    let mut value = first;
    // A last value that exceeds the limit by rounding alone still counts.
    while value <= last * (1.0 + 1e-9) {
        values.push(match unit {
            Some(unit) => format!("{}{unit}", format_number(value)),
            None => format_with_unit(value, factor),
        });
        if values.len() > MAX_VALUES {
            return Err(format!("more than {MAX_VALUES} values"));
        }
        value = next(value);
    }
    Ok(values)
}

fn format_number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a value with a unit letter (`64K`), or as a plain number if no unit divides it.
fn format_with_unit(value: f64, factor: f64) -> String {
    for (power, letter) in [(3, "G"), (2, "M"), (1, "K")] {
        let size = factor.powi(power);
        if value >= size && (value / size).fract() == 0.0 {
            return format!("{}{letter}", format_number(value / size));
        }
    }
    format_number(value.round())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_ranges() {
        for (text, expected) in [
            ("congestion=bbr,cubic", "congestion bbr cubic"),
            ("rcvbuf=1k..16k:x2", "rcvbuf 1k 2k 4k 8k 16k"),
            ("rcvbuf=1K..2M:x32", "rcvbuf 1K 32K 1M"),
            ("--sndbuf=64..1K:x4", "sndbuf 64 256 1K"),
            ("bitrate=1M..3M:+1M", "bitrate 1M 2M 3M"),
            ("bitrate=500K..2M:x2", "bitrate 500K 1M 2M"),
            ("parallel=1..8", "parallel 1 2 4 8"),
            ("time=0.5..1:+0.25", "time 0.5 0.75 1"),
            ("length=64,1K..4K:x2,1M", "length 64 1K 2K 4K 1M"),
            ("no-delay=off,on", "no-delay off on"),
            ("window", "window "),
        ] {
            let axis: SweepAxis = text.parse().unwrap();
            assert_eq!(
                format!("{} {}", axis.name, axis.values.join(" ")),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_axes_are_rejected() {
        for (text, message) in [
            ("", "name is missing"),
            ("=1,2", "name is missing"),
            ("rcvbuf=1,,2", "empty"),
            ("rcvbuf=8k..1k:x2", "ends before"),
            ("rcvbuf=1k..8k:x1", "does not advance"),
            ("rcvbuf=0..8k:x2", "does not advance"),
            ("rcvbuf=1k..8k:2", "not a step"),
            ("length=1..1000000:+1", "1000 values"),
            ("interval=1ms..1s:x10", "same unit"),
        ] {
            let error = text.parse::<SweepAxis>().unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<SweepAxis>();
        }
    }
}
