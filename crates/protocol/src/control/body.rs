//! Body of a frame: a MessagePack map with named fields, checked before it is unpacked.
//!
//! MessagePack is compact. A flow without figures is 26 bytes on the wire and 1 KiB in memory, and
//! a value that a flattened structure has to buffer is one byte against 32, so that 16 MiB could
//! unpack to 1 GiB. A first pass without allocation therefore counts values and maps and checks
//! that the announced lengths are present. Only a body that passes is unpacked. This bounds a frame
//! to [`FRAME_LIMIT_BYTES`](super::FRAME_LIMIT_BYTES) of text, [`MAP_LIMIT`] structures and
//! [`VALUE_LIMIT`] plain values: below 160 MiB in the worst case, and far below in any real one.

use std::cell::Cell;
use std::fmt;
use std::io::Cursor;

use serde::Serialize;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::error::BodyError;
use super::frame::FlowFigures;

/// Maximum number of values in one body, map keys included: twelve full histograms of 28,000
/// buckets fit.
pub const VALUE_LIMIT: usize = 1 << 20;

/// Maximum number of maps, that is structures, in one body. A flow of RESULTS has at most seven, so
/// [`FLOWS_PER_FRAME`] of them fit; a granted flow has one, so 16,000 of them fit.
pub const MAP_LIMIT: usize = 1 << 14;

/// Maximum number of flows whose figures are sent in one frame.
pub const FLOWS_PER_FRAME: usize = 2_000;

const _: () = assert!(7 * FLOWS_PER_FRAME < MAP_LIMIT);

/// Maximum levels of nesting in one body; our frames have eight.
pub const DEPTH_LIMIT: usize = 32;

// A growing vector briefly holds its elements twice.
const _: () = assert!(2 * MAP_LIMIT * size_of::<FlowFigures>() <= 64 << 20);

/// Appends a body.
pub(super) fn encode<T: Serialize>(body: &T, out: &mut Vec<u8>) -> Result<(), BodyError> {
    let start = out.len();
    rmp_serde::encode::write_named(out, body)?;
    // Checks our own body with the peer's limits, so that the error names the right end.
    check_limits(&out[start..])
}

/// Reads a body; unknown fields are skipped.
pub(super) fn decode<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, BodyError> {
    check_limits(body)?;
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(body);
    deserializer.set_max_depth(DEPTH_LIMIT);
    Ok(T::deserialize(&mut deserializer)?)
}

/// Checks the limits of a body without storing its values.
fn check_limits(body: &[u8]) -> Result<(), BodyError> {
    // fixmap, map16, map32. Structures would also be read from arrays, without names.
    if !matches!(body.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return Err(BodyError::NotAMap);
    }
    let counters = BodyCounters::default();
    let mut deserializer = rmp_serde::Deserializer::new(Cursor::new(body));
    deserializer.set_max_depth(DEPTH_LIMIT);
    let result = counters.deserialize(&mut deserializer);
    // The limits come first: exceeding one also makes the deserializer return an error.
    if counters.values.get() > VALUE_LIMIT {
        return Err(BodyError::TooManyValues);
    }
    if counters.maps.get() > MAP_LIMIT {
        return Err(BodyError::TooManyMaps);
    }
    result?;
    let read = usize::try_from(deserializer.position()).unwrap_or(usize::MAX);
    match body.len().saturating_sub(read) {
        0 => Ok(()),
        bytes => Err(BodyError::Trailing { bytes }),
    }
}

/// Number of values and maps so far.
#[derive(Default)]
struct BodyCounters {
    values: Cell<usize>,
    maps: Cell<usize>,
}

impl BodyCounters {
    fn count<E: de::Error>(counter: &Cell<usize>, limit: usize) -> Result<(), E> {
        counter.set(counter.get() + 1);
        if counter.get() > limit {
            return Err(E::custom("too much in one body"));
        }
        Ok(())
    }

    fn count_value<E: de::Error>(&self) -> Result<(), E> {
        Self::count(&self.values, VALUE_LIMIT)
    }
}

impl<'de> DeserializeSeed<'de> for &BodyCounters {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &BodyCounters {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.count_value()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.count_value()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.count_value()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.count_value()
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        self.count_value()
    }

    fn visit_bytes<E: de::Error>(self, _: &[u8]) -> Result<(), E> {
        self.count_value()
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.count_value()
    }

    /// Accepts an extension type: unused today, but a later field may have one.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.count_value()?;
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.count_value()?;
        BodyCounters::count(&self.maps, MAP_LIMIT)?;
        while map.next_entry_seed(self, self)?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    use super::*;

    /// Returns `{"x": ...}` with the given encoded value.
    fn wrap_in_map(rest: &[u8]) -> Vec<u8> {
        [&[0x81, 0xa1, b'x'], rest].concat()
    }

    /// Returns an array of `length` values of one byte.
    fn array(length: u32, element: u8) -> Vec<u8> {
        let mut bytes = vec![0xdd];
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + length as usize, element);
        bytes
    }

    fn decode_error(body: &[u8]) -> String {
        decode::<IgnoredAny>(body).unwrap_err().to_string()
    }

    #[test]
    fn oversized_bodies_are_rejected_before_unpacking() {
        assert!(decode_error(&wrap_in_map(&array(1 << 23, 0x80))).contains("maps"));
        assert!(decode_error(&wrap_in_map(&array(1 << 23, 0xa0))).contains("values"));
        assert!(decode::<IgnoredAny>(&wrap_in_map(&array(1 << 19, 0xa0))).is_ok());
        assert!(decode::<IgnoredAny>(&wrap_in_map(&array(1 << 13, 0x80))).is_ok());
    }

    #[test]
    fn announced_lengths_must_be_there() {
        for body in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xc9, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert!(
                decode::<IgnoredAny>(&wrap_in_map(body)).is_err(),
                "{body:02x?}"
            );
        }
    }

    #[test]
    fn nesting_is_limited() {
        let mut body = wrap_in_map(&[0x91; 20]);
        body.push(0xc0);
        assert!(decode::<IgnoredAny>(&body).is_ok());
        let mut body = wrap_in_map(&[0x91; 4096]);
        body.push(0xc0);
        match decode::<IgnoredAny>(&body) {
            Err(BodyError::Decode(rmp_serde::decode::Error::DepthLimitExceeded)) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_body_is_one_map() {
        assert!(matches!(check_limits(&[]), Err(BodyError::NotAMap)));
        assert!(matches!(check_limits(&[0x90]), Err(BodyError::NotAMap)));
        assert!(matches!(check_limits(&[0xc0]), Err(BodyError::NotAMap)));
        assert!(matches!(
            check_limits(&[0x80, 0x80]),
            Err(BodyError::Trailing { bytes: 1 })
        ));
        check_limits(&[0x80]).unwrap();
        check_limits(&[0xde, 0, 0]).unwrap();
        check_limits(&[0xdf, 0, 0, 0, 0]).unwrap();
    }

    #[test]
    fn every_kind_of_value_is_counted() {
        for value in [
            &[0xc0][..],
            &[0xc2],
            &[0x7f],
            &[0xe0],
            &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0],
            &[0xca, 0x7f, 0xc0, 0, 0],
            &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
            &[0xc4, 2, 0xff, 0xfe],
            // Text that is no UTF-8, and an extension (a timestamp).
            &[0xa2, 0xff, 0xfe],
            &[0xd6, 0xff, 1, 2, 3, 4],
            &[0x93, 1, 0x81, 2, 3, 0x90],
        ] {
            check_limits(&wrap_in_map(value))
                .unwrap_or_else(|error| panic!("{value:02x?}: {error}"));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<BTreeMap<String, FlowFigures>>(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = 0x80 | (*first & 0x0f);
            }
            let _ = decode::<BTreeMap<String, FlowFigures>>(&bytes);
        }
    }
}
