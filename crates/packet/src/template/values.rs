//! Values of a header field by flow: constant, ascending, listed, or random.

use super::TemplateError;

/// Values of one field, as numbers; the flow of a frame determines its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValues {
    /// `count` values ascending from `first` by `step`, repeated.
    Steps { first: u128, step: u128, count: u64 },
    /// Listed values, repeated.
    Cycle(Vec<u128>),
    /// Random values by flow, both bounds included.
    Draw { min: u128, max: u128 },
}

/// Maximum number of listed values of a field.
const MAX_LISTED: usize = 4096;

impl FieldValues {
    /// Returns a single value for all flows.
    #[must_use]
    pub fn single(value: u128) -> Self {
        Self::Steps {
            first: value,
            step: 1,
            count: 1,
        }
    }

    /// Parses `A`, `A-B`, `A-B+S`, `A,B,C` or `draw:A-B`, and each value with `parse_value`.
    ///
    /// # Errors
    /// [`TemplateError::BadValue`] with `example`; [`TemplateError::Backwards`] for a descending
    /// range.
    pub fn parse(
        field: &'static str,
        text: &str,
        example: &str,
        parse_value: impl Fn(&str) -> Option<u128>,
    ) -> Result<Self, TemplateError> {
        let rejection = || TemplateError::BadValue {
            field,
            text: text.to_owned(),
            example: example.to_owned(),
        };
        // The error names the wrong value, not a long list.
        let value = |text: &str| {
            parse_value(text.trim()).ok_or_else(|| TemplateError::BadValue {
                field,
                text: text.trim().to_owned(),
                example: example.to_owned(),
            })
        };
        let range = |text: &str| {
            let (min, max) = text.split_once('-').ok_or_else(rejection)?;
            let (min, max) = (value(min)?, value(max)?);
            let descending = || TemplateError::Backwards {
                field,
                text: text.to_owned(),
            };
            (min <= max).then_some((min, max)).ok_or_else(descending)
        };
        if let Some(drawn) = text.strip_prefix("draw:") {
            let (min, max) = range(drawn)?;
            return Ok(Self::Draw { min, max });
        }
        if text.contains(',') {
            let values: Result<Vec<u128>, _> = text.split(',').map(value).collect();
            return match values? {
                values if values.len() <= MAX_LISTED => Ok(Self::Cycle(values)),
                _ => Err(rejection()),
            };
        }
        if !text.contains('-') {
            return value(text).map(Self::single);
        }
        let (bounds, step) = match text.rsplit_once('+') {
            Some((bounds, step)) => (bounds, step.parse().map_err(|_| rejection())?),
            None => (text, 1),
        };
        let (first, last) = range(bounds)?;
        if step == 0 {
            return Err(rejection());
        }
        Ok(Self::Steps {
            first,
            step,
            count: u64::try_from((last - first) / step).unwrap_or(u64::MAX - 1) + 1,
        })
    }

    /// Returns the number of distinct values if known; random values count as one.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Steps { count, .. } => *count,
            Self::Cycle(listed) => listed.len() as u64,
            Self::Draw { .. } => 1,
        }
    }

    /// Returns the largest possible value.
    #[must_use]
    pub fn largest(&self) -> u128 {
        match self {
            Self::Steps { first, step, count } => first + step * u128::from(count - 1),
            Self::Cycle(listed) => listed.iter().copied().max().unwrap_or(0),
            Self::Draw { max: high, .. } => *high,
        }
    }

    /// Returns the value of flow `number`; each field has its own `seed`.
    #[must_use]
    pub fn value_of_flow(&self, number: u64, seed: u64) -> u128 {
        match self {
            Self::Steps { first, step, count } => first + step * u128::from(number % count),
            Self::Cycle(listed) => listed[(number % listed.len() as u64) as usize],
            Self::Draw { min, max } => {
                let mut random = fastrand::Rng::with_seed(seed ^ number.wrapping_mul(SEED_MIX));
                random.u128(*min..=*max)
            }
        }
    }
}

/// Odd number with well-mixed bits (2^64 divided by the golden ratio), so that seeds of
/// neighbouring flows differ.
const SEED_MIX: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<FieldValues, TemplateError> {
        FieldValues::parse("port", text, "9", |text| text.parse().ok())
    }

    fn first(text: &str, count: u64) -> Vec<u128> {
        let values = read(text).unwrap();
        (0..count)
            .map(|flow| values.value_of_flow(flow, 7))
            .collect()
    }

    #[test]
    fn values_of_flows() {
        for (text, expected) in [
            ("9", &[9, 9, 9][..]),
            ("9-10", &[9, 10, 9]),
            ("9-20+4", &[9, 13, 17, 9]),
            ("7,3,7", &[7, 3, 7, 7]),
        ] {
            assert_eq!(first(text, expected.len() as u64), expected, "{text}");
        }
        for text in [
            "", "x", "9-", "10-9", "1-9+0", "1-9+x", "draw:3", "draw:4-3", "1,,2",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(read("9-20+4").unwrap().count(), 3);
        assert_eq!(read("9-20+4").unwrap().largest(), 17);
    }

    proptest! {
        #[test]
        fn draws_stay_inside_and_repeat(low in 0u128..1000, more in 0u128..1000, flow: u64, seed: u64) {
            let values = read(&format!("draw:{low}-{}", low + more)).unwrap();
            let drawn = values.value_of_flow(flow, seed);
            prop_assert!((low..=low + more).contains(&drawn));
            prop_assert_eq!(values.value_of_flow(flow, seed), drawn);
        }
    }
}
