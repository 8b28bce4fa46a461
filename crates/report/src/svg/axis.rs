//! Axes: mapping of values to positions, and tick labels.

use linerate_metric::units::format_count;

use crate::phrases::short;

/// Ratio of two amounts above which a linear axis shows the shorter bar as a stroke only.
const APART: f64 = 20.0;

/// Spacing of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
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
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    pub(crate) size: f64,
}

impl Unit {
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
    pub(crate) fn of_rate(highest: f64) -> Self {
        const UNITS: &[Unit] = &[
            Unit::new("b/s", 1.0),
            Unit::new("kb/s", 1e3),
            Unit::new("Mb/s", 1e6),
            Unit::new("Gb/s", 1e9),
            Unit::new("Tb/s", 1e12),
        ];
        Self::largest_below(UNITS, highest)
    }

    /// Unit for packets per second.
    pub(crate) fn of_frequency(highest: f64) -> Self {
        const UNITS: &[Unit] = &[
            Unit::new("/s", 1.0),
            Unit::new("k/s", 1e3),
            Unit::new("M/s", 1e6),
            Unit::new("G/s", 1e9),
        ];
        Self::largest_below(UNITS, highest)
    }

    /// Unit for times in nanoseconds; times above ten minutes are shown in minutes or hours.
    pub(crate) fn of_time(highest: f64) -> Self {
        const UNITS: &[Unit] = &[
            Unit::new("ns", 1.0),
            Unit::new("µs", 1e3),
            Unit::new("ms", 1e6),
            Unit::new("s", 1e9),
        ];
        match highest {
            h if h > 10.0 * 3600e9 => Self::new("h", 3600e9),
            h if h > 600e9 => Self::new("min", 60e9),
            h => Self::largest_below(UNITS, h),
        }
    }

    /// Returns the unit of the same family that suits `value`.
    fn of(self, value: f64) -> Self {
        match self.name {
            "" | "%" => self,
            name if name.ends_with("b/s") => Self::of_rate(value),
            name if name.ends_with("/s") => Self::of_frequency(value),
            _ => Self::of_time(value),
        }
    }

    /// Returns the smallest round number of this unit that is not below a value. The step of a
    /// count is at least 1.
    fn step(self, least: f64) -> f64 {
        let step = step(least / self.size);
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
pub(crate) struct Axis {
    /// Name of the quantity, with the unit if the tick labels have none.
    pub(crate) label: String,
    scale: Scale,
    low: f64,
    high: f64,
    unit: Unit,
}

/// A labelled position on an axis.
#[derive(Debug, PartialEq)]
pub(super) struct Tick {
    /// Position from 0 (low end) to 1 (high end).
    pub(super) at: f64,
    pub(super) label: String,
}

impl Axis {
    /// Linear axis from zero to a round number above `highest`.
    pub(crate) fn from_zero(label: &str, highest: f64, unit: Unit) -> Self {
        let highest = if highest > 0.0 { highest } else { unit.size };
        let step = unit.step(highest / 4.0);
        Self {
            label: with_unit(label, unit),
            scale: Scale::Linear,
            low: 0.0,
            high: (highest / step).ceil() * step,
            unit,
        }
    }

    /// Linear axis from a round number below `low` to one above `high`; includes zero.
    pub(crate) fn around(label: &str, low: f64, high: f64, unit: Unit) -> Self {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let length = if high > low { high - low } else { unit.size };
        let step = unit.step(length / 4.0);
        Self {
            label: with_unit(label, unit),
            scale: Scale::Linear,
            low: (low / step).floor() * step,
            high: (high / step).ceil().max((low / step).floor() + 1.0) * step,
            unit,
        }
    }

    /// Linear axis exactly from `low` to `high`, for time.
    pub(crate) fn between(label: &str, low: f64, high: f64, unit: Unit) -> Self {
        Self {
            label: with_unit(label, unit),
            scale: Scale::Linear,
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
            scale: Scale::Log,
            low,
            high,
            unit: Unit::of_time(low),
        }
    }

    /// Logarithmic axis for counts, from `low` to `high`.
    pub(crate) fn log_count(label: &str, low: f64, high: f64) -> Self {
        let low = low.max(1.0);
        Self {
            label: label.to_owned(),
            scale: Scale::Log,
            low,
            high: high.max(low * 2.0),
            unit: Unit::COUNT,
        }
    }

    /// Axis for horizontal bars: linear from zero to the highest value, or logarithmic if the
    /// lowest would be invisible.
    pub(crate) fn of_bars(label: &str, least: f64, most: f64, unit: Unit) -> Self {
        match Self::are_apart(least, most) {
            true => Self::log(label, least, most, unit),
            false => Self::between(label, 0.0, most, unit),
        }
    }

    /// Logarithmic axis for amounts, labelled as such; each amount gets a visible length.
    pub(crate) fn log(label: &str, least: f64, most: f64, unit: Unit) -> Self {
        let decade = |value: f64| 10f64.powf(value.log10().floor());
        Self {
            label: format!("{label}, logarithmic"),
            scale: Scale::Log,
            low: decade(least / 1.5),
            high: round_up(most),
            unit,
        }
    }

    /// Returns whether two amounts need a logarithmic axis to be visible together.
    pub(crate) fn are_apart(least: f64, most: f64) -> bool {
        least > 0.0 && most > least * APART
    }

    /// Axis for percentiles, up to that of a single sample among `samples`.
    pub(crate) fn tail(label: &str, samples: u64) -> Self {
        let least_share = 1.0 / (samples.max(10) as f64);
        Self {
            label: label.to_owned(),
            scale: Scale::Tail,
            low: 0.0,
            // Half a sample further, so that the longest sample lies inside.
            high: 1.0 - least_share / 2.0,
            unit: Unit::COUNT,
        }
    }

    /// Returns the position of a value from 0 to 1; values outside are clamped.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let along = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
            Scale::Tail => -(1.0 - value.min(self.high)).log10(),
        };
        let (low, high) = (along(self.low), along(self.high));
        ((along(value) - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Returns whether a value lies on the axis.
    pub(crate) fn shows(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns whether the axis is logarithmic.
    pub(super) fn is_logarithmic(&self) -> bool {
        self.scale == Scale::Log
    }

    /// Returns whether lengths from the low end are proportional to amounts.
    pub(super) fn starts_at_zero(&self) -> bool {
        self.scale == Scale::Linear && self.low == 0.0
    }

    /// Returns ticks for an axis of some length, given the length of a label.
    pub(super) fn ticks(&self, room: f64, each: f64) -> Vec<Tick> {
        let most = (room / each).floor().max(2.0);
        let values = match self.scale {
            Scale::Linear => self.linear_values(most),
            Scale::Log => self.log_values(most),
            Scale::Tail => return self.tail_ticks(most),
        };
        values
            .into_iter()
            .map(|value| Tick {
                at: self.position(value),
                label: match self.scale {
                    Scale::Log if self.unit == Unit::COUNT && value < 1.0 => short(value),
                    Scale::Log if self.unit == Unit::COUNT => format_count(value as u64),
                    Scale::Log => {
                        let unit = self.unit.of(value * 1.000_001);
                        format!("{} {}", short(value / unit.size), unit.name)
                    }
                    _ if self.unit == Unit::COUNT => format_count(value as u64),
                    _ => short(value / self.unit.size),
                },
            })
            .collect()
    }

    fn linear_values(&self, most: f64) -> Vec<f64> {
        let step = self.unit.step((self.high - self.low) / most);
        let first = (self.low / step).ceil();
        let last = (self.high / step * 1.000_000_1).floor();
        let mut values = Vec::new();
        let mut at = first;
        while at <= last {
            values.push(at * step);
            at += 1.0;
        }
        values
    }

    /// Returns 1, 2, 5 of every decade if they fit, otherwise the decades.
    fn log_values(&self, most: f64) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        for factors in [&[1.0, 2.0, 5.0][..], &[1.0]] {
            let values: Vec<f64> = decades
                .clone()
                .flat_map(|decade| factors.iter().map(move |f| f * 10f64.powi(decade)))
                .filter(|value| (self.low * 0.999..=self.high * 1.001).contains(value))
                .collect();
            if (values.len() as f64) <= most || (factors.len() == 1 && values.len() > 1) {
                return values;
            }
        }
        vec![self.low, self.high]
    }

    fn tail_ticks(&self, most: f64) -> Vec<Tick> {
        let mut shares = vec![(0.0, "0".to_owned()), (0.5, "50".to_owned())];
        let mut left = 0.1;
        let mut digits = 0;
        while 1.0 - left < self.high {
            let label = match digits {
                0 => "90".to_owned(),
                n => format!("{:.*}", n - 1, 100.0 - 100.0 * left),
            };
            shares.push((1.0 - left, label));
            left /= 10.0;
            digits += 1;
        }
        // 50 is closest to its neighbour on this axis, so it is dropped first.
        if shares.len() as f64 > most {
            shares.remove(1);
        }
        shares
            .into_iter()
            .map(|(share, label)| Tick {
                at: self.position(share),
                label: format!("{label} %"),
            })
            .collect()
    }
}

fn with_unit(label: &str, unit: Unit) -> String {
    match (label, unit.name) {
        (label, "") => label.to_owned(),
        ("", name) => name.to_owned(),
        (label, name) => format!("{label}, {name}"),
    }
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is not below a value.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    for factor in [1.0, 2.0, 5.0] {
        if factor * power >= least * 0.999_999 {
            return factor * power;
        }
    }
    10.0 * power
}

fn round_up(value: f64) -> f64 {
    step(value)
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
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis, room: f64, each: f64) -> Vec<String> {
        let ticks = axis.ticks(room, each);
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn linear_axes_end_at_round_numbers() {
        let axis = Axis::from_zero("", 61.2e9, Unit::of_rate(61.2e9));
        assert_eq!(axis.label, "Gb/s");
        assert_eq!(labels(&axis, 220.0, 40.0), ["0", "20", "40", "60", "80"]);
        let minutes = Axis::between("", 0.0, 1e12, Unit::of_time(1e12));
        assert_eq!(labels(&minutes, 200.0, 40.0), ["0", "5", "10", "15"]);
        let change = Axis::around("", -47.0, 35.0, Unit::PERCENT);
        assert_eq!(
            labels(&change, 220.0, 40.0),
            ["-40", "-20", "0", "20", "40"]
        );
        assert!(change.shows(-47.0) && change.shows(35.0));
        let nothing = Axis::from_zero("lost", 0.0, Unit::COUNT);
        assert_eq!(labels(&nothing, 100.0, 40.0), ["0", "1"]);
    }

    #[test]
    fn log_axes_label_what_there_is_room_for() {
        let axis = Axis::log_time("", 41_300.0, 1_430_000.0);
        let all = [
            "20 µs", "50 µs", "100 µs", "200 µs", "500 µs", "1 ms", "2 ms",
        ];
        assert_eq!(labels(&axis, 300.0, 30.0), all);
        assert_eq!(labels(&axis, 100.0, 30.0), ["100 µs", "1 ms"]);
    }

    #[test]
    fn bars_of_amounts_far_apart_have_a_logarithmic_axis_that_says_so() {
        let even = Axis::of_bars("goodput", 1e9, 19e9, Unit::of_rate(19e9));
        assert_eq!(
            (even.label.as_str(), even.position(0.0)),
            ("goodput, Gb/s", 0.0)
        );
        let axis = Axis::of_bars("goodput", 55e3, 434e6, Unit::of_rate(434e6));
        assert_eq!(axis.label, "goodput, logarithmic");
        // The smallest bar is visible.
        assert!(axis.position(55e3) > 0.05, "{}", axis.position(55e3));
        assert!(axis.position(434e6) < 1.0);
        assert_eq!(
            labels(&axis, 500.0, 80.0),
            ["10 kb/s", "100 kb/s", "1 Mb/s", "10 Mb/s", "100 Mb/s"]
        );
        // A zero has no length on a logarithmic axis, so it does not select one.
        let zero = Axis::of_bars("goodput", 0.0, 434e6, Unit::of_rate(434e6));
        assert!(!zero.is_logarithmic());
    }

    #[test]
    fn the_tail_axis_is_stretched() {
        let axis = Axis::tail("", 100_000);
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
                Axis::from_zero("", high, Unit::COUNT),
                Axis::between("", low, high, Unit::COUNT),
                Axis::log_time("", low, high),
                Axis::tail("", low as u64),
            ] {
                let ticks = axis.ticks(room, 40.0);
                prop_assert!(ticks.len() <= 26, "{axis:?} {ticks:?}");
                for pair in ticks.windows(2) {
                    prop_assert!(pair[0].at < pair[1].at, "{axis:?} {ticks:?}");
                    prop_assert!(pair[0].label != pair[1].label, "{axis:?} {ticks:?}");
                }
                prop_assert!((0.0..=1.0).contains(&axis.position(high)));
            }
        }
    }
}
