//! JSON of a peer: checked limits, and lenient parsing of upstream's value types.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::DEPTH_LIMIT;
use super::error::JsonError;

/// Rejects text that nests too deep, without parsing it. Its length prefix bounds the size.
pub(super) fn check_depth(text: &[u8]) -> Result<(), JsonError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_LIMIT {
            return Err(JsonError::TooDeep);
        }
    }
    Ok(())
}

/// Value that should be a number, a boolean or a text. Versions write different types (`true` and
/// `1`), so the reader of the value decides; other types become null.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum LenientValue {
    #[default]
    Null,
    Unsigned(u64),
    Real(f64),
    Bool(bool),
    Text(String),
}

impl LenientValue {
    /// Returns a count; `None` for a negative number, and for -1 as an unsigned one, which upstream
    /// writes for "unknown".
    pub fn count(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(number) => i64::try_from(number).is_ok().then_some(number),
            // Below 2^63, so only a fraction is truncated.
            Self::Real(number) if (0.0..9.2e18).contains(&number) => Some(number as u64),
            _ => None,
        }
    }

    /// Returns a finite number that is not negative.
    pub fn real(&self) -> Option<f64> {
        match *self {
            Self::Unsigned(number) => Some(number as f64),
            Self::Real(number) if number >= 0.0 && number.is_finite() => Some(number),
            _ => None,
        }
    }

    /// Returns whether a switch is on.
    pub fn is_on(&self) -> bool {
        match *self {
            Self::Bool(on) => on,
            Self::Unsigned(number) => number != 0,
            Self::Real(number) => number != 0.0,
            Self::Null | Self::Text(_) => false,
        }
    }

    pub fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for LenientValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = LenientValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_bool<E: Error>(self, on: bool) -> Result<LenientValue, E> {
                Ok(LenientValue::Bool(on))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<LenientValue, E> {
                Ok(LenientValue::Unsigned(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<LenientValue, E> {
                Ok(u64::try_from(number)
                    .map_or(LenientValue::Real(number as f64), LenientValue::Unsigned))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<LenientValue, E> {
                Ok(LenientValue::Real(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<LenientValue, E> {
                Ok(LenientValue::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<LenientValue, E> {
                Ok(LenientValue::Text(text))
            }

            fn visit_unit<E: Error>(self) -> Result<LenientValue, E> {
                Ok(LenientValue::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LenientValue, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LenientValue::Null)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LenientValue, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(LenientValue::Null)
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_texts() {
        let deep = |levels: usize| [vec![b'['; levels], vec![b']'; levels]].concat();
        assert!(check_depth(&deep(DEPTH_LIMIT)).is_ok());
        assert!(check_depth(&deep(DEPTH_LIMIT + 1)).is_err());
        let text = format!(r#"{{"a\"": "{}"}}"#, "[".repeat(100));
        assert!(check_depth(text.as_bytes()).is_ok());
        // Closing brackets without opening ones are invalid JSON, which the parser rejects.
        assert!(check_depth(&[b']'; 100]).is_ok());
    }

    #[test]
    fn numbers_are_read_as_upstream_writes_them() {
        let read = |text: &str| serde_json::from_str::<LenientValue>(text).unwrap();
        for (text, count) in [
            ("7", Some(7)),
            ("18446744073709551615", None),
            ("-1", None),
            ("1e3", Some(1000)),
            ("1.5", Some(1)),
            ("null", None),
            ("true", None),
            (r#""7""#, None),
            ("1e300", None),
        ] {
            assert_eq!(read(text).count(), count, "{text}");
        }
        assert_eq!(
            read("1.5153027229913239e-05").real(),
            Some(1.515_302_722_991_323_9e-5)
        );
        assert_eq!(read("-2.5").real(), None);
        for (text, on) in [("true", true), ("1", true), ("0", false), ("[1]", false)] {
            assert_eq!(read(text).is_on(), on, "{text}");
        }
    }
}
