//! Axes: mapping of values to positions, and tick labels.

use linerate_stats::units::format_count;

use crate::model::format_short;

/// Ratio of two amounts above which a linear axis shows the shorter bar as a stroke only.
const MAX_LINEAR_RATIO: f64 = 20.0;

/// Spacing of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AxisScale {
    /// Linear spacing.
    Linear,
    /// Logarithmic spacing: each decade has the same length.
    Log,
    /// Shares from 0 to 1, logarithmic towards 1: the distances between 90 %, 99 % and 99.9 % are
    /// equal, so that the tail of a distribution is readable.
    Tail,
}

/// Unit shared by the labels of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AxisUnit {
    pub(crate) name: &'static str,
    pub(crate) size: f64,
}

impl AxisUnit {
    const fn new(name: &'static str, size: f64) -> Self {
        Self { name, size }
    }

    /// Returns the unit in which `highest` is a number between 1 and 1000.
    fn largest_below(units: &'static [Self], highest: f64) -> Self {
        *units
            .iter()
            .rev()
            .find(|unit| highest >= unit.size)
            .unwrap_or(&units[0])
    }

    /// Unit for bit rates.
    pub(crate) fn for_bit_rate(highest: f64) -> Self {
        const UNITS: &[AxisUnit] = &[
            AxisUnit::new("b/s", 1.0),
            AxisUnit::new("kb/s", 1e3),
            AxisUnit::new("Mb/s", 1e6),
            AxisUnit::new("Gb/s", 1e9),
            AxisUnit::new("Tb/s", 1e12),
        ];
        Self::largest_below(UNITS, highest)
    }

    /// Unit for packets per second.
    pub(crate) fn for_packet_rate(highest: f64) -> Self {
        const UNITS: &[AxisUnit] = &[
            AxisUnit::new("/s", 1.0),
            AxisUnit::new("k/s", 1e3),
            AxisUnit::new("M/s", 1e6),
            AxisUnit::new("G/s", 1e9),
        ];
        Self::largest_below(UNITS, highest)
    }

    /// Unit for times in nanoseconds; times above ten minutes are shown in minutes or hours.
    pub(crate) fn for_time(highest: f64) -> Self {
        const UNITS: &[AxisUnit] = &[
            AxisUnit::new("ns", 1.0),
            AxisUnit::new("µs", 1e3),
            AxisUnit::new("ms", 1e6),
            AxisUnit::new("s", 1e9),
        ];
        match highest {
            h if h > 10.0 * 3600e9 => Self::new("h", 3600e9),
            h if h > 600e9 => Self::new("min", 60e9),
            h => Self::largest_below(UNITS, h),
        }
    }

    /// Returns the unit of the same family that suits `value`.
    fn for_value(self, value: f64) -> Self {
        match self.name {
            "" | "%" => self,
            name if name.ends_with("b/s") => Self::for_bit_rate(value),
            name if name.ends_with("/s") => Self::for_packet_rate(value),
            _ => Self::for_time(value),
        }
    }

    /// Returns the smallest round number of this unit that is not below a value. The step of a
    /// count is at least 1.
    fn round_step(self, lowest: f64) -> f64 {
        let step = round_up_to_step(lowest / self.size);
        let step = if self == Self::COUNT {
            step.max(1.0)
        } else {
            step
        };
        step * self.size
    }

    /// Unit for shares between 0 and 1.
    pub(crate) const SHARE: Self = Self::new("%", 0.01);

    /// Unit for counts.
    pub(crate) const COUNT: Self = Self::new("", 1.0);

    /// Unit for percentages.
    pub(crate) const PERCENT: Self = Self::new("%", 1.0);
}

/// Axis of a chart.
#[derive(Clone, Debug)]
pub(crate) struct ChartAxis {
    /// Name of the quantity, with the unit if the tick labels have none.
    pub(crate) label: String,
    scale: AxisScale,
    low: f64,
    high: f64,
    unit: AxisUnit,
}

/// A labelled position on an axis.
#[derive(Debug, PartialEq)]
pub(super) struct AxisTick {
    /// Position from 0 (low end) to 1 (high end).
    pub(super) position: f64,
    pub(super) label: String,
}

impl ChartAxis {
    /// Linear axis from zero to a round number above `highest`.
    pub(crate) fn from_zero(label: &str, highest: f64, unit: AxisUnit) -> Self {
        let highest = if highest > 0.0 { highest } else { unit.size };
        let step = unit.round_step(highest / 4.0);
        Self {
            label: with_unit(label, unit),
            scale: AxisScale::Linear,
            low: 0.0,
            high: (highest / step).ceil() * step,
            unit,
        }
    }

    /// Linear axis from a round number below `low` to one above `high`; includes zero.
    pub(crate) fn including_zero(label: &str, low: f64, high: f64, unit: AxisUnit) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let length = if high > low { high - low } else { unit.size };
        let step = unit.round_step(length / 4.0);
        Self {
            label: with_unit(label, unit),
            scale: AxisScale::Linear,
            low: (low / step).floor() * step,
            high: (high / step).ceil().max((low / step).floor() + 1.0) * step,
            unit,
        }
    }

    /// Linear axis exactly from `low` to `high`, for time.
    pub(crate) fn between(label: &str, low: f64, high: f64, unit: AxisUnit) -> Self {
        Self {
            label: with_unit(label, unit),
            scale: AxisScale::Linear,
            low,
            high: if high > low { high } else { low + unit.size },
            unit,
        }
    }

    /// Logarithmic axis for times in nanoseconds, with a margin around `low` and `high`.
    pub(crate) fn log_time(label: &str, low: f64, high: f64) -> Self {
        let (low, high) = (low.max(1.0), high.max(2.0));
        // The margin is less than a decade.
        let low = round_down(low);
        let high = round_up(high.max(low * 1.5));
        Self {
            label: label.to_owned(),
            scale: AxisScale::Log,
            low,
            high,
            unit: AxisUnit::for_time(low),
        }
    }

    /// Logarithmic axis for counts, from `low` to `high`.
    pub(crate) fn log_count(label: &str, low: f64, high: f64) -> Self {
        let low = low.max(1.0);
        Self {
            label: label.to_owned(),
            scale: AxisScale::Log,
            low,
            high: high.max(low * 2.0),
            unit: AxisUnit::COUNT,
        }
    }

    /// Axis for horizontal bars: linear from zero to the highest value, or logarithmic if the
    /// lowest would be invisible.
    pub(crate) fn for_bars(label: &str, lowest: f64, highest: f64, unit: AxisUnit) -> Self {
        match Self::needs_logarithmic(lowest, highest) {
            true => Self::logarithmic(label, lowest, highest, unit),
            false => Self::between(label, 0.0, highest, unit),
        }
    }

    /// Logarithmic axis for amounts, labelled as such; each amount gets a visible length.
    pub(crate) fn logarithmic(label: &str, lowest: f64, highest: f64, unit: AxisUnit) -> Self {
        let decade = |value: f64| 10f64.powf(value.log10().floor());
        Self {
            label: format!("{label}, logarithmic"),
            scale: AxisScale::Log,
            low: decade(lowest / 1.5),
            high: round_up(highest),
            unit,
        }
    }

    /// Returns whether two amounts need a logarithmic axis to be visible together.
    pub(crate) fn needs_logarithmic(lowest: f64, highest: f64) -> bool {
        lowest > 0.0 && highest > lowest * MAX_LINEAR_RATIO
    }

    /// Axis for percentiles, up to that of a single sample among `samples`.
    pub(crate) fn percentile_tail(label: &str, samples: u64) -> Self {
        let least_share = 1.0 / (samples.max(10) as f64);
        Self {
            label: label.to_owned(),
            scale: AxisScale::Tail,
            low: 0.0,
            // Half a sample further, so that the longest sample lies inside.
            high: 1.0 - least_share / 2.0,
            unit: AxisUnit::COUNT,
        }
    }

    /// Returns the position of a value from 0 to 1; values outside are clamped.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let scaled = |value: f64| match self.scale {
            AxisScale::Linear => value,
            AxisScale::Log => value.max(f64::MIN_POSITIVE).log10(),
            AxisScale::Tail => -(1.0 - value.min(self.high)).log10(),
        };
        let (low, high) = (scaled(self.low), scaled(self.high));
        ((scaled(value) - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Returns whether a value lies on the axis.
    pub(crate) fn shows(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns whether the axis is logarithmic.
    pub(super) fn is_logarithmic(&self) -> bool {
        self.scale == AxisScale::Log
    }

    /// Returns whether lengths from the low end are proportional to amounts.
    pub(super) fn starts_at_zero(&self) -> bool {
        self.scale == AxisScale::Linear && self.low == 0.0
    }

    /// Returns ticks for an axis of some length, given the length of a label.
    pub(super) fn ticks(&self, length: f64, label_length: f64) -> Vec<AxisTick> {
        let max_ticks = (length / label_length).floor().max(2.0);
        let values = match self.scale {
            AxisScale::Linear => self.linear_values(max_ticks),
            AxisScale::Log => self.log_values(max_ticks),
            AxisScale::Tail => return self.tail_ticks(max_ticks),
        };
        values
            .into_iter()
            .map(|value| AxisTick {
                position: self.position(value),
                label: match self.scale {
                    AxisScale::Log if self.unit == AxisUnit::COUNT && value < 1.0 => {
                        format_short(value)
                    }
                    AxisScale::Log if self.unit == AxisUnit::COUNT => format_count(value as u64),
                    AxisScale::Log => {
                        let unit = self.unit.for_value(value * 1.000_001);
                        format!("{} {}", format_short(value / unit.size), unit.name)
                    }
                    _ if self.unit == AxisUnit::COUNT => format_count(value as u64),
                    _ => format_short(value / self.unit.size),
                },
            })
            .collect()
    }

    fn linear_values(&self, max_ticks: f64) -> Vec<f64> {
        let step = self.unit.round_step((self.high - self.low) / max_ticks);
        let first = (self.low / step).ceil();
        let last = (self.high / step * 1.000_000_1).floor();
        let mut values = Vec::new();
        let mut multiple = first;
        while multiple <= last {
            values.push(multiple * step);
            multiple += 1.0;
        }
        values
    }

    /// Returns 1, 2, 5 of every decade if they fit, otherwise the decades.
    fn log_values(&self, max_ticks: f64) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        for factors in [&[1.0, 2.0, 5.0][..], &[1.0]] {
            let values: Vec<f64> = decades
                .clone()
                .flat_map(|decade| factors.iter().map(move |f| f * 10f64.powi(decade)))
                .filter(|value| (self.low * 0.999..=self.high * 1.001).contains(value))
                .collect();
            if (values.len() as f64) <= max_ticks || (factors.len() == 1 && values.len() > 1) {
                return values;
            }
        }
        vec![self.low, self.high]
    }

    fn tail_ticks(&self, max_ticks: f64) -> Vec<AxisTick> {
        let mut shares = vec![(0.0, "0".to_owned()), (0.5, "50".to_owned())];
        let mut remaining = 0.1;
        let mut digits = 0;
        while 1.0 - remaining < self.high {
            let label = match digits {
                0 => "90".to_owned(),
                n => format!("{:.*}", n - 1, 100.0 - 100.0 * remaining),
            };
            shares.push((1.0 - remaining, label));
            remaining /= 10.0;
            digits += 1;
        }
        // 50 is closest to its neighbour on this axis, so it is dropped first.
        if shares.len() as f64 > max_ticks {
            shares.remove(1);
        }
        shares
            .into_iter()
            .map(|(share, label)| AxisTick {
                position: self.position(share),
                label: format!("{label} %"),
            })
            .collect()
    }
}

fn with_unit(label: &str, unit: AxisUnit) -> String {
    match (label, unit.name) {
        (label, "") => label.to_owned(),
        ("", name) => name.to_owned(),
        (label, name) => format!("{label}, {name}"),
    }
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is not below a value.
fn round_up_to_step(lowest: f64) -> f64 {
    let power = 10f64.powf(lowest.log10().floor());
    for factor in [1.0, 2.0, 5.0] {
        if factor * power >= lowest * 0.999_999 {
            return factor * power;
        }
    }
    10.0 * power
}

fn round_up(value: f64) -> f64 {
    round_up_to_step(value)
}

fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    for factor in [5.0, 2.0] {
        if factor * power <= value * 1.000_001 {
            return factor * power;
        }
    }
    power
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(axis: &ChartAxis, length: f64, label_length: f64) -> Vec<String> {
        let ticks = axis.ticks(length, label_length);
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn linear_axes_end_at_round_numbers() {
        let axis = ChartAxis::from_zero("", 61.2e9, AxisUnit::for_bit_rate(61.2e9));
        assert_eq!(axis.label, "Gb/s");
        assert_eq!(labels(&axis, 220.0, 40.0), ["0", "20", "40", "60", "80"]);
        let minutes = ChartAxis::between("", 0.0, 1e12, AxisUnit::for_time(1e12));
        assert_eq!(labels(&minutes, 200.0, 40.0), ["0", "5", "10", "15"]);
        let change_axis = ChartAxis::including_zero("", -47.0, 35.0, AxisUnit::PERCENT);
        assert_eq!(
            labels(&change_axis, 220.0, 40.0),
            ["-40", "-20", "0", "20", "40"]
        );
        assert!(change_axis.shows(-47.0) && change_axis.shows(35.0));
        let zero_axis = ChartAxis::from_zero("lost", 0.0, AxisUnit::COUNT);
        assert_eq!(labels(&zero_axis, 100.0, 40.0), ["0", "1"]);
    }

    #[test]
    fn logarithmic_axes_label_what_fits() {
        let axis = ChartAxis::log_time("", 41_300.0, 1_430_000.0);
        let all_labels = [
            "20 µs", "50 µs", "100 µs", "200 µs", "500 µs", "1 ms", "2 ms",
        ];
        assert_eq!(labels(&axis, 300.0, 30.0), all_labels);
        assert_eq!(labels(&axis, 100.0, 30.0), ["100 µs", "1 ms"]);
    }

    #[test]
    fn bars_of_very_different_amounts_have_a_labelled_logarithmic_axis() {
        let even = ChartAxis::for_bars("goodput", 1e9, 19e9, AxisUnit::for_bit_rate(19e9));
        assert_eq!(
            (even.label.as_str(), even.position(0.0)),
            ("goodput, Gb/s", 0.0)
        );
        let axis = ChartAxis::for_bars("goodput", 55e3, 434e6, AxisUnit::for_bit_rate(434e6));
        assert_eq!(axis.label, "goodput, logarithmic");
        // The smallest bar is visible.
        assert!(axis.position(55e3) > 0.05, "{}", axis.position(55e3));
        assert!(axis.position(434e6) < 1.0);
        assert_eq!(
            labels(&axis, 500.0, 80.0),
            ["10 kb/s", "100 kb/s", "1 Mb/s", "10 Mb/s", "100 Mb/s"]
        );
        // A zero has no length on a logarithmic axis, so it does not select one.
        let zero = ChartAxis::for_bars("goodput", 0.0, 434e6, AxisUnit::for_bit_rate(434e6));
        assert!(!zero.is_logarithmic());
    }

    #[test]
    fn the_tail_axis_is_stretched() {
        let axis = ChartAxis::percentile_tail("", 100_000);
        assert_eq!(
            labels(&axis, 700.0, 50.0),
            [
                "0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"
            ]
        );
        let nine = axis.position(0.99) - axis.position(0.9);
        let next = axis.position(0.999) - axis.position(0.99);
        assert!((nine - next).abs() < 1e-9);
        assert_eq!(axis.position(1.0), 1.0);
    }

    proptest! {
        #[test]
        fn ticks_are_few_and_inside(low in 1.0f64..1e12, factor in 1.0f64..1e6, room in 100.0f64..900.0) {
            let high = low * factor;
            for axis in [
                ChartAxis::from_zero("", high, AxisUnit::COUNT),
                ChartAxis::between("", low, high, AxisUnit::COUNT),
                ChartAxis::log_time("", low, high),
                ChartAxis::percentile_tail("", low as u64),
            ] {
                let ticks = axis.ticks(room, 40.0);
                prop_assert!(ticks.len() <= 26, "{axis:?} {ticks:?}");
                for pair in ticks.windows(2) {
                    prop_assert!(pair[0].position < pair[1].position, "{axis:?} {ticks:?}");
                    prop_assert!(pair[0].label != pair[1].label, "{axis:?} {ticks:?}");
                }
                prop_assert!((0.0..=1.0).contains(&axis.position(high)));
            }
        }
    }
}
