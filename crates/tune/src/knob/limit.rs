//! User limits on the values of a knob.

use std::str::FromStr;

use linerate_stats::units::ByteSize;

use super::{DEFAULT_VALUE, Knob, present_name};
use crate::TuneError;

/// Minimum and maximum value that a search may set a knob to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobLimit {
    pub name: String,
    min: Option<u64>,
    max: Option<u64>,
}

impl FromStr for KnobLimit {
    type Err = TuneError;

    /// Parses `rcvbuf=16K..1M`, `mtu=..9000` or `streams=2..`.
    fn from_str(text: &str) -> Result<Self, TuneError> {
        let reject = |reason: &str| TuneError::InvalidLimit {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (name, range) = text
            .split_once('=')
            .ok_or_else(|| reject("write KNOB=LEAST..MOST"))?;
        let (min, max) = range
            .split_once("..")
            .ok_or_else(|| reject("write KNOB=LEAST..MOST"))?;
        let parse_bound = |text: &str| match text.trim() {
            "" => Ok(None),
            text => parse_number(text)
                .map(Some)
                .ok_or_else(|| reject("each limit must be a number or a size")),
        };
        let limit = Self {
            name: present_name(name.trim()),
            min: parse_bound(min)?,
            max: parse_bound(max)?,
        };
        if limit.min.is_none() && limit.max.is_none() {
            return Err(reject("the minimum or the maximum must be given"));
        }
        if limit.min.zip(limit.max).is_some_and(|(min, max)| min > max) {
            return Err(reject("the minimum is above the maximum"));
        }
        Ok(limit)
    }
}

impl KnobLimit {
    /// Limit read from a file.
    #[must_use]
    pub fn new(name: &str, min: Option<u64>, max: Option<u64>) -> Self {
        Self {
            name: name.to_owned(),
            min,
            max,
        }
    }

    /// Removes the values of `knob` outside the limit; the start value stays.
    ///
    /// Values without a number cannot be compared with the limit and are removed too.
    pub fn apply(&self, knob: &mut Knob) {
        let start = knob.values.first().cloned();
        knob.values
            .retain(|value| Some(value) == start.as_ref() || self.contains(value));
    }

    /// Returns whether every number in `value` is within the limit.
    #[must_use]
    pub fn contains(&self, value: &str) -> bool {
        if value == DEFAULT_VALUE {
            return true;
        }
        let numbers: Vec<u64> = value
            .split_whitespace()
            .filter_map(|token| {
                parse_number(token.rsplit_once('=').map_or(token, |(_, number)| number))
            })
            .collect();
        let within = |number: &u64| {
            self.min.is_none_or(|min| *number >= min) && self.max.is_none_or(|max| *number <= max)
        };
        !numbers.is_empty() && numbers.iter().all(within)
    }
}

fn parse_number(text: &str) -> Option<u64> {
    text.parse::<ByteSize>().ok().map(|size| size.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::KnobTarget;

    #[test]
    fn values_beyond_a_limit_are_left_out() {
        for (limit, values, remaining) in [
            ("a=16K..1M", "default 4K 16K 1M 4M", "default 16K 1M"),
            ("a=..9000", "default 1500 9000 9001", "default 1500 9000"),
            ("a=2..", "1 2 4", "1 2 4"),
            ("a=..5", "default on 4", "default 4"),
        ] {
            let limit: KnobLimit = limit.parse().unwrap();
            let mut knob = Knob {
                name: "a".to_owned(),
                values: values.split(' ').map(str::to_owned).collect(),
                target: KnobTarget::Option("a".to_owned()),
                ordered: true,
                may_be_rejected: false,
                bytes_per_unit: None,
            };
            limit.apply(&mut knob);
            assert_eq!(knob.values.join(" "), remaining, "{limit:?}");
        }
    }

    #[test]
    fn every_number_of_a_value_counts() {
        let limit: KnobLimit = "tcp-rmem=..20000000".parse().unwrap();
        assert!(limit.contains("4096 131072 16777216"));
        assert!(!limit.contains("4096 131072 33554432"));
        let rings: KnobLimit = "rings=..1024".parse().unwrap();
        assert!(rings.contains("rx=1024 tx=1024") && !rings.contains("rx=1024 tx=4096"));
    }

    #[test]
    fn invalid_limits_are_rejected() {
        for text in ["a", "a=1", "a=..", "a=8..1", "a=x..2"] {
            assert!(text.parse::<KnobLimit>().is_err(), "{text}");
        }
    }
}
