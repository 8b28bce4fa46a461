//! Lengths of frames, in the order of sending.

use linerate_record::generate::FCS_BYTES;

use super::TemplateError;
use super::values::FieldValues;

/// Simple IMIX: Ethernet frame lengths with FCS, and their number in twelve frames (IP packets of
/// 40, 576 and 1500 bytes of early Internet measurements).
pub const IMIX: &[(u16, u32)] = &[(64, 7), (594, 4), (1518, 1)];

/// Minimum Ethernet frame length with FCS (IEEE 802.3). Devices pad shorter frames, so their rates
/// and loads would be wrong.
pub const MIN_FRAME_WITH_FCS: u16 = 64;
/// Maximum number of frames before the lengths repeat.
const MAX_SEQUENCE_FRAMES: u64 = 65_536;
/// Number of random lengths before they repeat.
const RANDOM_SIZES: u64 = 4096;

/// Lengths without FCS, in the order of sending before they repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSizes {
    sequence: Box<[u16]>,
}

impl FrameSizes {
    /// Returns a single length with FCS, raised to the minimum of Ethernet if it is below it.
    pub(super) fn single(size: u16) -> Self {
        Self {
            sequence: [size.max(MIN_FRAME_WITH_FCS) - FCS_BYTES].into(),
        }
    }

    /// Returns `imix` with at least `min_bytes` bytes per frame, in the form that
    /// [`FrameSizes::parse`] parses.
    #[must_use]
    pub fn imix_with_min(min_bytes: u16) -> String {
        let part = |&(size, weight): &(u16, u32)| format!("{}:{weight}", size.max(min_bytes));
        let parts: Vec<String> = IMIX.iter().map(part).collect();
        parts.join(",")
    }

    /// Parses lengths with FCS: `64`, `64,512`, `64-1518+2`, `draw:64-1518`, `imix`,
    /// `64:7,594:4`.
    ///
    /// # Errors
    /// [`TemplateError::BadValue`].
    pub fn parse(text: &str, seed: u64) -> Result<Self, TemplateError> {
        let rejection = || TemplateError::BadValue {
            field: "size",
            text: text.to_owned(),
            example: format!(
                "{MIN_FRAME_WITH_FCS} to 65535 bytes, as 64, 64,512,1518, 64-1518+2, draw:64-1518, imix or \
                 64:7,594:4,1518:1"
            ),
        };
        let sizes: Vec<u128> = if text == "imix" {
            interleave(IMIX)
        } else if text.contains(':') && !text.starts_with("draw:") {
            let weights: Option<Vec<(u16, u32)>> = text
                .split(',')
                .map(|part| {
                    let (size, weight) = part.split_once(':')?;
                    Some((size.trim().parse().ok()?, weight.trim().parse().ok()?))
                })
                .collect();
            let weights = weights.ok_or_else(rejection)?;
            let total: u64 = weights.iter().map(|&(_, weight)| u64::from(weight)).sum();
            if total == 0 || total > MAX_SEQUENCE_FRAMES {
                return Err(rejection());
            }
            interleave(&weights)
        } else {
            let values = FieldValues::parse("size", text, "", |size| size.parse().ok());
            let values = values.map_err(|error| match error {
                TemplateError::BadValue { .. } => rejection(),
                error => error,
            })?;
            let count = match values {
                FieldValues::Draw { .. } => RANDOM_SIZES,
                _ => values.count(),
            };
            if count > MAX_SEQUENCE_FRAMES {
                return Err(rejection());
            }
            (0..count)
                .map(|number| values.value_of_flow(number, seed))
                .collect()
        };
        let sequence: Option<Box<[u16]>> = sizes
            .into_iter()
            .map(|size| {
                let size = u16::try_from(size).ok()?;
                (size >= MIN_FRAME_WITH_FCS).then(|| size - FCS_BYTES)
            })
            .collect();
        sequence
            .map(|sequence| Self { sequence })
            .ok_or_else(rejection)
    }

    /// Returns the lengths without FCS in their order.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> &[u16] {
        &self.sequence
    }

    /// Returns the smallest length without FCS.
    #[must_use]
    pub fn smallest(&self) -> u16 {
        self.sequence.iter().copied().min().unwrap_or(0)
    }

    /// Returns the largest length without FCS.
    #[must_use]
    pub fn largest(&self) -> u16 {
        self.sequence.iter().copied().max().unwrap_or(0)
    }

    /// Returns the mean length with FCS.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.sequence.iter().map(|&size| u64::from(size)).sum();
        sum as f64 / self.sequence.len() as f64 + f64::from(FCS_BYTES)
    }
}

/// Distributes lengths evenly by their weights: the length with the largest deficit is next.
fn interleave(weights: &[(u16, u32)]) -> Vec<u128> {
    let total: i64 = weights.iter().map(|&(_, weight)| i64::from(weight)).sum();
    let mut credit = vec![0i64; weights.len()];
    let mut sequence = Vec::new();
    for _ in 0..total {
        for (credit, &(_, weight)) in credit.iter_mut().zip(weights) {
            *credit += i64::from(weight);
        }
        let Some(next) = (0..weights.len()).rev().max_by_key(|&at| credit[at]) else {
            break;
        };
        credit[next] -= total;
        sequence.push(u128::from(weights[next].0));
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_with_check_sequence() {
        for (text, expected) in [
            ("64", &[60][..]),
            ("64,128", &[60, 124]),
            ("64-70+2", &[60, 62, 64, 66]),
            ("64:2,128:1", &[60, 124, 60]),
        ] {
            assert_eq!(
                FrameSizes::parse(text, 1).unwrap().sequence(),
                expected,
                "{text}"
            );
        }
        let imix = FrameSizes::parse("imix", 1).unwrap();
        let count = |size| {
            imix.sequence()
                .iter()
                .filter(|&&candidate| candidate == size)
                .count()
        };
        assert_eq!((count(60), count(590), count(1514)), (7, 4, 1));
        assert!((imix.mean() - (7 * 64 + 4 * 594 + 1518) as f64 / 12.0).abs() < 1e-9);
        // No more than three small frames in a row, also across the repetition.
        let doubled = [imix.sequence(), imix.sequence()].concat();
        assert!(
            doubled
                .windows(4)
                .all(|four| four.iter().any(|&size| size != 60))
        );
        assert_eq!(
            FrameSizes::parse("draw:64-1518", 1)
                .unwrap()
                .sequence()
                .len(),
            4096
        );
        for text in [
            "", "3", "63", "70000", "64:0", "1-70000", "64:x", "draw:9", "64:70000",
        ] {
            assert!(FrameSizes::parse(text, 1).is_err(), "{text}");
        }
    }
}
