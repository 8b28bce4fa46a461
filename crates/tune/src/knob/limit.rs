//! User limits on the values of a knob.

use std::str::FromStr;

use linerate_metric::units::ByteSize;

use super::{DEFAULT, Knob};
use crate::TuneError;

/// Minimum and maximum value that a search may set a knob to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub name: String,
    least: Option<u64>,
    most: Option<u64>,
}

impl FromStr for Limit {
    type Err = TuneError;

    /// Parses `rcvbuf=16K..1M`, `mtu=..9000` or `streams=2..`.
    fn from_str(text: &str) -> Result<Self, TuneError> {
        let refuse = |why: &str| TuneError::Limit {
            text: text.to_owned(),
            why: why.to_owned(),
        };
        let (name, range) = text
            .split_once('=')
            .ok_or_else(|| refuse("write KNOB=LEAST..MOST"))?;
        let (least, most) = range
            .split_once("..")
            .ok_or_else(|| refuse("write KNOB=LEAST..MOST"))?;
        let end = |text: &str| match text.trim() {
            "" => Ok(None),
            text => number(text)
                .map(Some)
                .ok_or_else(|| refuse("each limit must be a number or a size")),
        };
        let limit = Self {
            name: name.trim().to_owned(),
            least: end(least)?,
            most: end(most)?,
        };
        if limit.least.is_none() && limit.most.is_none() {
            return Err(refuse("the minimum or the maximum must be given"));
        }
        if limit
            .least
            .zip(limit.most)
            .is_some_and(|(least, most)| least > most)
        {
            return Err(refuse("the minimum is above the maximum"));
        }
        Ok(limit)
    }
}

impl Limit {
    /// Limit read from a file.
    #[must_use]
    pub fn new(name: &str, least: Option<u64>, most: Option<u64>) -> Self {
        Self {
            name: name.to_owned(),
            least,
            most,
        }
    }

    /// Removes the values of `knob` outside the limit; the start value stays.
    ///
    /// Values without a number cannot be compared with the limit and are removed too.
    pub fn apply(&self, knob: &mut Knob) {
        let start = knob.values.first().cloned();
        knob.values
            .retain(|value| Some(value) == start.as_ref() || self.holds(value));
    }

    /// Returns whether every number in `value` is within the limit.
    #[must_use]
    pub fn holds(&self, value: &str) -> bool {
        if value == DEFAULT {
            return true;
        }
        let numbers: Vec<u64> = value
            .split_whitespace()
            .filter_map(|word| number(word.rsplit_once('=').map_or(word, |(_, number)| number)))
            .collect();
        let within = |number: &u64| {
            self.least.is_none_or(|least| *number >= least)
                && self.most.is_none_or(|most| *number <= most)
        };
        !numbers.is_empty() && numbers.iter().all(within)
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse::<ByteSize>().ok().map(|size| size.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::Set;

    #[test]
    fn values_beyond_a_limit_are_left_out() {
        for (limit, values, left) in [
            ("a=16K..1M", "default 4K 16K 1M 4M", "default 16K 1M"),
            ("a=..9000", "default 1500 9000 9001", "default 1500 9000"),
            ("a=2..", "1 2 4", "1 2 4"),
            ("a=..5", "default on 4", "default 4"),
        ] {
            let limit: Limit = limit.parse().unwrap();
            let mut knob = Knob {
                name: "a".to_owned(),
                values: values.split(' ').map(str::to_owned).collect(),
                set: Set::Option("a".to_owned()),
                ordered: true,
                uncertain: false,
                memory: None,
            };
            limit.apply(&mut knob);
            assert_eq!(knob.values.join(" "), left, "{limit:?}");
        }
    }

    #[test]
    fn every_number_of_a_value_counts() {
        let limit: Limit = "tcp-rmem=..20000000".parse().unwrap();
        assert!(limit.holds("4096 131072 16777216"));
        assert!(!limit.holds("4096 131072 33554432"));
        let rings: Limit = "rings=..1024".parse().unwrap();
        assert!(rings.holds("rx=1024 tx=1024") && !rings.holds("rx=1024 tx=4096"));
    }

    #[test]
    fn nonsense_is_told() {
        for text in ["a", "a=1", "a=..", "a=8..1", "a=x..2"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
