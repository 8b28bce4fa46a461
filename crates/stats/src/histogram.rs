//! Histograms of durations in fixed memory.
//!
//! HDR histograms with three significant digits: a percentile is at most 0.1 % above its sample.
//! Coarse histograms have two digits: at most 1 %. The memory is the same for 10^3 and 10^8
//! samples. Minimum, maximum and mean are exact, because they are stored separately.

use hdrhistogram::Histogram as Hdr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Significant decimal digits of the buckets.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// Significant decimal digits of histograms that exist once per flow.
const COARSE_DIGITS: u8 = 2;

/// Longest duration with a bucket of its own, 137 s; longer ones are counted in the last bucket.
/// The maximum stays exact.
pub const HIGHEST_NS: u64 = (1 << 37) - 1;

/// Histogram of durations in nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Hdr<u64>,
    /// Digits of the coarsest samples included.
    digits: u8,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Creates an empty histogram with all the memory that it will ever use (about 230 KiB).
    #[must_use]
    pub fn new() -> Self {
        Self::with_digits(SIGNIFICANT_DIGITS)
    }

    /// Creates an empty histogram with two digits in about 30 KiB, for distributions that exist
    /// once per flow. Its percentiles are at most 1 % above the sample; a histogram that it is
    /// added to has the same error.
    #[must_use]
    pub fn coarse() -> Self {
        Self::with_digits(COARSE_DIGITS)
    }

    fn with_digits(digits: u8) -> Self {
        Self {
            buckets: Hdr::new_with_bounds(1, HIGHEST_NS, digits)
                .expect("the bounds and digits are constants that the library accepts"),
            digits,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Adds one duration. Never allocates.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.record_many(nanoseconds, 1);
    }

    /// Adds one duration `count` times.
    #[inline]
    pub fn record_many(&mut self, nanoseconds: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.buckets
            .saturating_record_n(nanoseconds.min(HIGHEST_NS), count);
        self.sum += u128::from(nanoseconds) * u128::from(count);
        self.min = self.min.min(nanoseconds);
        self.max = self.max.max(nanoseconds);
    }

    /// Adds all samples of another histogram; the order of additions does not matter.
    pub fn add(&mut self, addend: &Self) {
        if self.buckets.sigfig() <= addend.buckets.sigfig() {
            self.buckets
                .add(&addend.buckets)
                .expect("all histograms here have the same bounds");
        } else {
            // The library would add the lowest value of a wider bucket, but percentiles must not be
            // too low.
            for bucket in addend.buckets.iter_recorded() {
                let value = bucket.value_iterated_to().min(addend.max).min(HIGHEST_NS);
                self.buckets
                    .saturating_record_n(value, bucket.count_at_value());
            }
        }
        if addend.count() > 0 {
            self.digits = self.digits.min(addend.digits);
        }
        self.sum += addend.sum;
        self.min = self.min.min(addend.min);
        self.max = self.max.max(addend.max);
    }

    /// Adds durations counted by another program in buckets `(duration, count)`, with their exact
    /// minimum, maximum and sum.
    pub fn add_counted(
        &mut self,
        counted: impl IntoIterator<Item = (u64, u64)>,
        min: u64,
        max: u64,
        sum: u128,
    ) {
        let before = self.count();
        for (nanoseconds, count) in counted {
            let value = nanoseconds.clamp(min, max).min(HIGHEST_NS);
            self.buckets.saturating_record_n(value, count);
        }
        if self.count() > before {
            self.sum += sum;
            self.min = self.min.min(min);
            self.max = self.max.max(max);
        }
    }

    /// Removes all samples and keeps the memory.
    pub fn clear(&mut self) {
        self.buckets.reset();
        self.digits = self.buckets.sigfig();
        self.sum = 0;
        self.min = u64::MAX;
        self.max = 0;
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.len()
    }

    /// Returns the number of samples above a duration; samples in its bucket are not above.
    #[must_use]
    pub fn count_above(&self, nanoseconds: u64) -> u64 {
        let up_to = self.buckets.count_between(0, nanoseconds.min(HIGHEST_NS));
        self.count() - up_to.min(self.count())
    }

    /// Returns the exact minimum; `None` without samples.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.min)
    }

    /// Returns the exact maximum; `None` without samples.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max)
    }

    /// Returns the exact mean; `None` without samples.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum as f64 / self.count() as f64)
    }

    /// Returns the duration that the share `quantile` (`0.0..=1.0`) of the samples does not exceed.
    ///
    /// Error: at most 0.1 % above the true value (1 % with two digits). `None` without samples.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        (self.count() > 0).then(|| {
            self.buckets
                .value_at_quantile(quantile)
                .clamp(self.min, self.max)
        })
    }

    /// Returns the usual figures of the distribution; `None` without samples.
    #[must_use]
    pub fn summary(&self) -> Option<Quantiles> {
        let at = |quantile| self.quantile(quantile);
        Some(Quantiles {
            count: self.count(),
            min: self.min()?,
            mean: self.mean()?,
            p50: at(0.50)?,
            p90: at(0.90)?,
            p99: at(0.99)?,
            p99_9: at(0.999)?,
            p99_99: at(0.9999)?,
            max: self.max()?,
            standard_deviation: self.buckets.stdev(),
        })
    }

    /// Returns the cumulative distribution as `(nanoseconds, share not above)`, one point per used
    /// bucket.
    #[must_use]
    pub fn cumulative(&self) -> Vec<(u64, f64)> {
        let total = self.count() as f64;
        let mut cumulative_count = 0;
        self.buckets
            .iter_recorded()
            .map(|bucket| {
                cumulative_count += bucket.count_at_value();
                (
                    bucket.value_iterated_to().clamp(self.min, self.max),
                    cumulative_count as f64 / total,
                )
            })
            .collect()
    }
}

impl PartialEq for Histogram {
    fn eq(&self, right: &Self) -> bool {
        self.sum == right.sum
            && self.min == right.min
            && self.max == right.max
            && self.buckets == right.buckets
    }
}

/// Figures of a distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Number of samples.
    #[serde(default)]
    pub count: u64,
    /// Minimum, exact.
    pub min: u64,
    /// Mean, exact.
    pub mean: f64,
    /// Median. As all percentiles, at most 0.1 % above the sample, or 1 % for a histogram with two
    /// significant digits.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// 99.99th percentile.
    pub p99_99: u64,
    /// Maximum, exact.
    pub max: u64,
    /// Standard deviation, computed from the buckets (error at most 0.1 %).
    #[serde(default)]
    pub standard_deviation: f64,
}

/// A histogram as stored in a record and sent to the peer: the used buckets only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistogramData {
    /// Unit: `ns`.
    pub unit: String,
    /// Significant decimal digits of the bucket bounds.
    pub significant_digits: u8,
    /// Number of samples.
    pub count: u64,
    /// Shortest sample, exact; 0 without samples.
    pub min: u64,
    /// Longest sample, exact; 0 without samples.
    pub max: u64,
    /// Sum of all samples, exact up to 2^64 - 1 ns (584 years), saturating there.
    pub sum: u64,
    /// `[lowest value of the bucket, samples in it]`, ascending.
    pub buckets: Vec<(u64, u64)>,
}

impl From<&Histogram> for HistogramData {
    fn from(histogram: &Histogram) -> Self {
        Self {
            unit: "ns".to_owned(),
            significant_digits: histogram.digits,
            count: histogram.count(),
            min: histogram.min().unwrap_or(0),
            max: histogram.max().unwrap_or(0),
            sum: u64::try_from(histogram.sum).unwrap_or(u64::MAX),
            buckets: histogram
                .buckets
                .iter_recorded()
                .map(|bucket| {
                    let value = bucket.value_iterated_to();
                    (
                        histogram.buckets.lowest_equivalent(value),
                        bucket.count_at_value(),
                    )
                })
                .collect(),
        }
    }
}

impl From<&HistogramData> for Histogram {
    fn from(data: &HistogramData) -> Self {
        // The buckets stay the same: each is identified by its lowest value.
        let mut histogram = match data.significant_digits {
            COARSE_DIGITS => Histogram::coarse(),
            _ => Histogram::new(),
        };
        let mut count = 0u64;
        for &(value, samples) in &data.buckets {
            // Records may be of any origin: counts that overflow saturate.
            let samples = samples.min(u64::MAX - count);
            count += samples;
            histogram
                .buckets
                .saturating_record_n(value.min(HIGHEST_NS), samples);
        }
        if count > 0 {
            histogram.sum = u128::from(data.sum);
            histogram.min = data.min;
            histogram.max = data.max.max(data.min);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_histogram_has_no_figures() {
        let histogram = Histogram::new();
        assert_eq!(histogram.summary(), None);
        assert_eq!(histogram.min(), None);
        let back = Histogram::from(&HistogramData::from(&histogram));
        assert_eq!(back, histogram);
    }

    #[test]
    fn longer_than_the_last_bucket_still_shows_in_the_maximum() {
        let mut histogram = Histogram::new();
        histogram.record(u64::MAX / 4);
        assert_eq!(histogram.max(), Some(u64::MAX / 4));
        assert_eq!(histogram.count(), 1);
    }

    #[test]
    fn a_hundred_million_samples_take_no_more_memory() {
        let mut few = Histogram::new();
        few.record(10_000);
        let mut many = Histogram::new();
        many.record_many(10_000, 100_000_000);
        let size = |h: &Histogram| h.buckets.distinct_values();
        assert_eq!(size(&few), size(&many));
        assert_eq!(many.mean(), Some(10_000.0));
    }

    proptest! {
        #[test]
        fn two_digits_stay_two_digits(samples in prop::collection::vec(1u64..10_000_000_000, 1..300)) {
            let mut coarse = Histogram::coarse();
            for &sample in &samples {
                coarse.record(sample);
            }
            let data = HistogramData::from(&coarse);
            prop_assert_eq!(data.significant_digits, 2);
            prop_assert_eq!(Histogram::from(&data).summary(), coarse.summary());
            // Added to a finer histogram the error stays, and percentiles are never below the
            // samples.
            let mut sum = Histogram::new();
            sum.add(&coarse);
            let data = HistogramData::from(&sum);
            prop_assert_eq!(data.significant_digits, 2);
            for quantile in [0.5, 0.9, 0.99] {
                prop_assert_eq!(sum.quantile(quantile), coarse.quantile(quantile));
                prop_assert_eq!(Histogram::from(&data).quantile(quantile), coarse.quantile(quantile));
            }
        }

        #[test]
        fn percentiles_are_within_a_thousandth(mut samples in prop::collection::vec(1u64..10_000_000_000, 1..300)) {
            let mut histogram = Histogram::new();
            for &sample in &samples {
                histogram.record(sample);
            }
            samples.sort_unstable();
            for quantile in [0.5, 0.9, 0.99, 1.0] {
                let rank = ((quantile * samples.len() as f64).ceil() as usize).max(1) - 1;
                let exact = samples[rank] as f64;
                let got = histogram.quantile(quantile).unwrap() as f64;
                prop_assert!((got - exact).abs() <= exact * 0.001 + 1.0, "{quantile}: {got} for {exact}");
            }
            prop_assert_eq!(histogram.min(), samples.first().copied());
            prop_assert_eq!(histogram.max(), samples.last().copied());
        }

        #[test]
        fn the_record_form_round_trips(samples in prop::collection::vec(0u64..1 << 40, 0..200)) {
            let mut histogram = Histogram::new();
            for &sample in &samples {
                histogram.record(sample);
            }
            let data = HistogramData::from(&histogram);
            let json = serde_json::to_string(&data).unwrap();
            let read: HistogramData = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(&read, &data);
            prop_assert_eq!(Histogram::from(&read), histogram);
        }

        #[test]
        fn adding_loses_nothing(a in prop::collection::vec(1u64..1 << 30, 0..100), b in prop::collection::vec(1u64..1 << 30, 0..100)) {
            let fill = |samples: &[u64]| {
                let mut histogram = Histogram::new();
                samples.iter().for_each(|&sample| histogram.record(sample));
                histogram
            };
            let mut sum = fill(&a);
            sum.add(&fill(&b));
            let whole: Vec<u64> = a.iter().chain(&b).copied().collect();
            prop_assert_eq!(sum, fill(&whole));
        }
    }
}
