//! Numbers in a lab file: a number in the base unit, or a text with a unit (`"1G"`, `"20ms"`,
//! `"0.1%"`); and tables that keep the order of the file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, MapAccess, Visitor};

/// Reads the two ends of a link. (An array would drop a third name without an error.)
pub fn two_names<'de, D: Deserializer<'de>>(from: D) -> Result<[String; 2], D::Error> {
    <Vec<String> as serde::Deserialize>::deserialize(from)?
        .try_into()
        .map_err(|names: Vec<String>| {
            D::Error::custom(format_args!(
                "a link is between two names, as [\"client\", \"s1\"], and not {}",
                names.len()
            ))
        })
}

/// Number as written in the file.
enum FileNumber {
    Integer(u64),
    Float(f64),
    Text(String),
}

struct FileNumberReader(&'static str);

impl Visitor<'_> for FileNumberReader {
    type Value = FileNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<FileNumber, E> {
        Ok(FileNumber::Integer(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<FileNumber, E> {
        u64::try_from(value)
            .map(FileNumber::Integer)
            .map_err(|_| E::custom(format_args!("`{value}` is negative: expected {}", self.0)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<FileNumber, E> {
        Ok(FileNumber::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<FileNumber, E> {
        Ok(FileNumber::Text(value.to_owned()))
    }
}

fn read_number<'de, D: Deserializer<'de>>(
    from: D,
    expected: &'static str,
) -> Result<FileNumber, D::Error> {
    from.deserialize_any(FileNumberReader(expected))
}

/// Bit rates: `"1G"` or bits per second.
pub mod rate {
    use linerate_stats::units::BitRate;
    use serde::{Deserializer, Serializer, de::Error};

    use super::{FileNumber, read_number};

    const EXPECTED: &str = "a rate such as \"1G\" (10^9 bit/s) or a whole number of bit/s";

    pub fn serialize<S: Serializer>(value: &Option<BitRate>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(rate) => to.serialize_u64(rate.0),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BitRate>, D::Error> {
        match read_number(from, EXPECTED)? {
            FileNumber::Integer(bits) => Ok(BitRate(bits)),
            FileNumber::Text(text) => text.parse().map_err(D::Error::custom),
            FileNumber::Float(value) => Err(D::Error::custom(format_args!(
                "`{value}` is not {EXPECTED}"
            ))),
        }
        .map(Some)
    }
}

/// Sizes: `"64K"` or bytes.
pub mod size {
    use linerate_stats::units::ByteSize;
    use serde::{Deserializer, Serializer, de::Error};

    use super::{FileNumber, read_number};

    const EXPECTED: &str = "a size such as \"64K\" (65536 B) or a whole number of bytes";

    pub fn serialize<S: Serializer>(value: &Option<ByteSize>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(size) => to.serialize_u64(size.0),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
        match read_number(from, EXPECTED)? {
            FileNumber::Integer(bytes) => Ok(ByteSize(bytes)),
            FileNumber::Text(text) => text.parse().map_err(D::Error::custom),
            FileNumber::Float(value) => Err(D::Error::custom(format_args!(
                "`{value}` is not {EXPECTED}"
            ))),
        }
        .map(Some)
    }
}

/// Durations: `"20ms"` or seconds.
pub mod duration {
    use std::time::Duration;

    use linerate_stats::units::parse_duration;
    use serde::{Deserializer, Serializer, de::Error};

    use super::{FileNumber, read_number};

    const EXPECTED: &str = "a duration such as \"20ms\" or a number of seconds";

    pub fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(time) => to.collect_str(&format_args!("{}ns", time.as_nanos())),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let time = match read_number(from, EXPECTED)? {
            FileNumber::Integer(seconds) => Duration::from_secs(seconds),
            FileNumber::Float(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|_| D::Error::custom(format_args!("`{seconds}` is not {EXPECTED}")))?,
            FileNumber::Text(text) => parse_duration(&text).map_err(D::Error::custom)?,
        };
        Ok(Some(time))
    }
}

/// Fractions: `"0.1%"` or `0.001`.
pub mod share {
    use linerate_stats::units::parse_fraction;
    use serde::{Deserializer, Serializer, de::Error};

    use super::{FileNumber, read_number};

    pub fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(share) => to.serialize_f64(*share),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        match read_number(from, "a share such as \"0.1%\" or a number from 0 to 1")? {
            FileNumber::Integer(share) => Ok(share as f64),
            FileNumber::Float(share) => Ok(share),
            FileNumber::Text(text) => parse_fraction(&text).map_err(D::Error::custom),
        }
        .map(Some)
    }
}

/// Tables as lists of names and values, in the order of the file.
pub mod named {
    use serde::de::Deserialize;
    use serde::ser::{Serialize, SerializeMap, Serializer};

    use super::{Deserializer, MapAccess, PhantomData, Visitor, fmt};

    pub fn serialize<T: Serialize, S: Serializer>(
        items: &[(String, T)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(items.len()))?;
        for (name, item) in items {
            map.serialize_entry(name, item)?;
        }
        map.end()
    }

    struct OrderedTable<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for OrderedTable<T> {
        type Value = Vec<(String, T)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table with one entry for each name, as [hosts.client]")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(entry) = map.next_entry()? {
                items.push(entry);
            }
            Ok(items)
        }
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(String, T)>, D::Error> {
        from.deserialize_map(OrderedTable(PhantomData))
    }
}
