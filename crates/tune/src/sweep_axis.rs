//! Parser for one axis of a sweep: a name with its values, `rcvbuf=1k..64k:x2`,
//! `congestion=bbr,cubic`.

use std::str::FromStr;

use crate::TuneError;

/// Maximum number of values of one axis: a range with a small step is more likely a mistake.
const MOST_VALUES: usize = 1_000;

/// Options whose unit letters are powers of 1000 instead of 1024.
const DECIMAL: [&str; 5] = ["bitrate", "pps", "rate", "count", "parallel"];

/// A knob or option to vary, with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// Long name of the option, or name of a knob.
    pub name: String,
    /// Values in display order; empty if none was written, which selects the knob's own values.
    pub values: Vec<String>,
}

impl FromStr for Over {
    type Err = TuneError;

    fn from_str(text: &str) -> Result<Self, TuneError> {
        let refuse = |why: String| TuneError::Over {
            text: text.to_owned(),
            why,
        };
        let (name, values) = match text.split_once('=') {
            Some((name, values)) => (name, Some(values)),
            None => (text, None),
        };
        let name = name.trim().trim_start_matches("--");
        if name.is_empty() {
            return Err(refuse("the name is missing".to_owned()));
        }
        let mut all: Vec<String> = Vec::new();
        for part in values.into_iter().flat_map(|values| values.split(',')) {
            let part = part.trim();
            match part.split_once("..") {
                Some((from, rest)) => all.extend(range(name, from, rest).map_err(refuse)?),
                None if part.is_empty() => return Err(refuse("a value is empty".to_owned())),
                None => all.push(part.to_owned()),
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|value| seen.insert(value.clone()));
        if all.len() > MOST_VALUES {
            return Err(refuse(format!("more than {MOST_VALUES} values")));
        }
        Ok(Self {
            name: name.to_owned(),
            values: all,
        })
    }
}

/// Splits `text` into a number and its unit letters.
fn amount(text: &str) -> Result<(f64, &str), String> {
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
fn range(name: &str, from: &str, rest: &str) -> Result<Vec<String>, String> {
    let (to, step) = rest.split_once(':').unwrap_or((rest, "x2"));
    let (first, first_unit) = amount(from)?;
    let (last, last_unit) = amount(to)?;
    let factor: f64 = if DECIMAL.contains(&name) {
        1000.0
    } else {
        1024.0
    };
    let size = |unit: &str| -> Result<f64, String> {
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
        false => (first * size(first_unit)?, last * size(last_unit)?, None),
    };
    if !(first <= last && first >= 0.0) {
        return Err("the range ends before it begins".to_owned());
    }
    let next: Box<dyn Fn(f64) -> f64> = if let Some(times) = step.strip_prefix('x') {
        let times: f64 = times
            .parse()
            .map_err(|_| format!("`{step}` is not a step: write x2 or +8K"))?;
        if times <= 1.0 || first == 0.0 {
            return Err("the step does not advance".to_owned());
        }
        Box::new(move |value| value * times)
    } else if let Some(add) = step.strip_prefix('+') {
        let (add, add_unit) = amount(add)?;
        let add = match unit {
            Some(unit) if add_unit == unit || add_unit.is_empty() => add,
            Some(_) => return Err("the step has a different unit".to_owned()),
            None => add * size(add_unit)?,
        };
        if add <= 0.0 {
            return Err("the step does not advance".to_owned());
        }
        Box::new(move |value| value + add)
    } else {
        return Err(format!("`{step}` is not a step: write x2 or +8K"));
    };
    let mut values = Vec::new();
    let mut value = first;
    // A last value that exceeds the limit by rounding alone still counts.
    while value <= last * (1.0 + 1e-9) {
        values.push(match unit {
            Some(unit) => format!("{}{unit}", plain(value)),
            None => with_letter(value, factor),
        });
        if values.len() > MOST_VALUES {
            return Err(format!("more than {MOST_VALUES} values"));
        }
        value = next(value);
    }
    Ok(values)
}

fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a value with a unit letter (`64K`), or as a plain number if no unit divides it.
fn with_letter(value: f64, factor: f64) -> String {
    for (power, letter) in [(3, "G"), (2, "M"), (1, "K")] {
        let size = factor.powi(power);
        if value >= size && (value / size).fract() == 0.0 {
            return format!("{}{letter}", plain(value / size));
        }
    }
    plain(value.round())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_ranges() {
        for (text, want) in [
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
            let over: Over = text.parse().unwrap();
            assert_eq!(
                format!("{} {}", over.name, over.values.join(" ")),
                want,
                "{text}"
            );
        }
    }

    #[test]
    fn nonsense_is_told() {
        for (text, said) in [
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
            let error = text.parse::<Over>().unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Over>();
        }
    }
}
