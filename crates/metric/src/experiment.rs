//! A whole experiment: what was varied, what came out at each point, and whether its shape is the
//! expected one.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::Unit;
use crate::statistics::Estimate;

/// Values of the knobs at one point, by knob.
pub type Setting = BTreeMap<String, String>;

/// What an experiment says, beside the records of its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExperimentResult {
    /// Its name: `udp-hops`.
    pub name: String,
    /// What it is called in a heading.
    pub title: String,
    /// What it answers.
    pub question: String,
    /// The table that points were added to (`--label`); absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether it was run with fewer points and shorter (`--quick`).
    pub quick: bool,
    /// Where: `lab`, or the host of `--on`.
    pub place: String,
    /// Switches between the client and the server in the order of the way, of the longest way that was
    /// built.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<String>,
    /// Whether it was run without root.
    pub rootless: bool,
    /// What it does without root, for people.
    pub without_root: String,
    /// What was varied, the slowest first.
    pub knobs: Vec<Knob>,
    /// What was read from each run.
    pub figures: Vec<FigureOf>,
    /// Every point, in the order of the file.
    pub points: Vec<Point>,
    /// How it is tabulated.
    pub tables: Vec<TableOf>,
    /// How it is drawn.
    pub plots: Vec<PlotOf>,
    /// What others published, beside what was measured here.
    pub published: Vec<Published>,
    /// Which way published figures went from one setting to the next, and whether they do so here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trends: Vec<Trend>,
    /// What was expected of the shape, and whether it is so.
    pub shapes: Vec<Shape>,
    /// Figures that no record of a measured point had, with where they were looked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Something that is varied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Knob {
    /// Its name.
    pub name: String,
    /// Its values, in the order of the file.
    pub values: Vec<String>,
}

/// A figure that is read from each run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureOf {
    /// Its name within the experiment.
    pub name: String,
    /// How its values are written.
    pub unit: Unit,
    /// What it means.
    pub says: String,
    /// Whether it is the same in every run: any difference is one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
}

/// One point: a value of each knob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Point {
    /// The values of the knobs.
    pub setting: Setting,
    /// The commands that measured it, to repeat it by hand: for a host of a lab by way of `lab exec`.
    pub commands: Vec<String>,
    /// What it takes around them, to repeat it by hand: the network, and what runs on its other hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub around: Vec<String>,
    /// Each figure's median over the repeats, with its interval.
    pub figures: BTreeMap<String, Estimate>,
    /// Each figure in every run that has it, where there is more than one; absent in results of older versions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Vec<f64>>,
    /// The same of the runs before and behind which the processors were found that far apart; absent where nobody asked.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values_at: BTreeMap<Distance, BTreeMap<String, Vec<f64>>>,
    /// Ids of its records.
    pub runs: Vec<String>,
    /// Why it was not measured; absent where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

impl Point {
    /// A figure in each of its runs: where they are not known, the median of all.
    #[must_use]
    pub fn each(&self, figure: &str) -> Vec<f64> {
        let median = || Some(self.figures.get(figure)?.median);
        match self.values.get(figure) {
            Some(values) => values.clone(),
            None => median().into_iter().collect(),
        }
    }
}

/// How far apart two processors are, by the time a cache line takes from one to the other and back.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// They share a cache.
    Near,
    /// They share none.
    Far,
}

/// A figure over two knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TableOf {
    /// Its heading.
    pub title: String,
    /// The figures in it; more than one become columns.
    pub figures: Vec<String>,
    /// The knobs along its side.
    pub rows: Vec<String>,
    /// The knobs along its top.
    pub columns: Vec<String>,
    /// Knobs that stand still in it, with their values: for figures that do not depend on them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub at: Setting,
    /// Whether what each step along the side adds stands below: for knobs that are numbers.
    pub steps: bool,
    /// The value of a row's knob that every other row is held against: each names its direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
}

/// A figure against a knob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlotOf {
    /// Its heading.
    pub title: String,
    /// The figure.
    pub figure: String,
    /// The knob along x; where its values are words they are drawn as bars.
    pub x: String,
    /// The knobs whose values make a line each.
    pub series: Vec<String>,
    /// Whether x is logarithmic.
    pub log_x: bool,
}

/// A figure that others published, with what was measured here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Published {
    /// The point that it belongs to, as far as it is told.
    pub setting: Setting,
    /// The figure.
    pub figure: String,
    /// Its value there, in base units.
    pub value: f64,
    /// What it was measured on.
    pub on: String,
    /// Its value here; absent where no measured point fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
}

/// How a published figure moved with one knob, beside how it moved here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Trend {
    /// The figure.
    pub figure: String,
    /// The knobs that stand still.
    pub at: Setting,
    /// The knob that is moved.
    pub knob: String,
    /// Its value before.
    pub from: String,
    /// Its value after.
    pub to: String,
    /// The published figure after over the one before.
    pub published: f64,
    /// The same of what was measured here; absent where one of both was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// Whether both moved the same way: up, down, or by less than a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
    /// What speaks against the runs that this rests on: `steal in 2 of 4 runs`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// Why it need not be so, where it is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Something that was expected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shape {
    /// What is expected, for people.
    pub says: String,
    /// The same as a rule: `slope(p50 over hops) > 0`.
    pub rule: String,
    /// Whether it is so.
    pub state: ShapeState,
    /// What was measured, for people.
    pub measured: String,
    /// What speaks against the runs that this rests on: `steal in 2 of 4 runs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// Why it need not be so, where it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Whether a shape is as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShapeState {
    /// It is.
    Holds,
    /// It is not.
    Misses,
    /// The points that tell were not measured.
    Untested,
}

impl ExperimentResult {
    /// The figure of a name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&FigureOf> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// Measured points that a setting fits, which may leave knobs open.
    pub fn fitting<'a>(&'a self, setting: &Setting) -> impl Iterator<Item = &'a Point> {
        self.points.iter().filter(move |point| {
            setting
                .iter()
                .all(|(knob, value)| point.setting.get(knob) == Some(value))
        })
    }

    /// Whether a shape that could be tested is not as expected.
    #[must_use]
    pub fn misses(&self) -> bool {
        self.shapes
            .iter()
            .any(|shape| shape.state == ShapeState::Misses)
    }
}

/// A value of a knob as a number, for slopes and axes: `4`, `1.5`, `32K` (1024 each).
#[must_use]
pub fn number(value: &str) -> Option<f64> {
    if let Ok(number) = value.parse::<f64>() {
        return Some(number).filter(|number| number.is_finite());
    }
    let (digits, scale) = match value.as_bytes().last()? {
        b'K' => (&value[..value.len() - 1], 1024.0),
        b'M' => (&value[..value.len() - 1], 1024.0 * 1024.0),
        b'G' => (&value[..value.len() - 1], 1024.0 * 1024.0 * 1024.0),
        _ => return None,
    };
    let number: f64 = digits.parse().ok()?;
    Some(number * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_knobs_as_numbers() {
        for (text, want) in [
            ("4", Some(4.0)),
            ("1.5", Some(1.5)),
            ("32K", Some(32768.0)),
            ("reused", None),
            ("inf", None),
            ("", None),
            ("K", None),
        ] {
            assert_eq!(number(text), want, "{text}");
        }
    }
}
