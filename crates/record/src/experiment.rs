//! Result of an experiment: its points, their figures, and the check of the expected shape.

use std::collections::BTreeMap;

use linerate_stats::statistics::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::FigureUnit;

/// Value of each knob at one point, by knob name.
pub type KnobValues = BTreeMap<String, String>;

/// Result of an experiment, without the records of its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExperimentResult {
    /// Name: `udp-hops`.
    pub name: String,
    /// Title for headings.
    pub title: String,
    /// Question that the experiment answers.
    pub question: String,
    /// Table that the points were added to (`--label`); absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// True if it was run with fewer and shorter points (`--quick`).
    pub quick: bool,
    /// Location of the run: `lab`, or the host of `--on`.
    #[serde(alias = "place")]
    pub location: String,
    /// Switches between the client and the server, in path order, of the longest path that was
    /// built.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "between")]
    pub switches: Vec<String>,
    /// True if it was run without root.
    pub rootless: bool,
    /// Limits of a run without root, as text for users.
    pub without_root: String,
    /// Varied knobs, the slowest first.
    pub knobs: Vec<KnobAxis>,
    /// Figures read from each run.
    pub figures: Vec<FigureSpec>,
    /// Points in the order of the file.
    pub points: Vec<ExperimentPoint>,
    /// Tables of the report.
    pub tables: Vec<TableSpec>,
    /// Plots of the report.
    pub plots: Vec<PlotSpec>,
    /// Published figures with the values measured here.
    pub published: Vec<PublishedFigure>,
    /// Published changes from one setting to the next, checked against those measured here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trends: Vec<PublishedTrend>,
    /// Expected shapes with the result of their check.
    pub shapes: Vec<ExpectedShape>,
    /// Figures that were missing in every record of a measured point, with the path that was read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "unread")]
    pub missing_figures: Vec<String>,
}

/// A varied knob with its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnobAxis {
    /// Name.
    pub name: String,
    /// Values in the order of the file.
    pub values: Vec<String>,
}

/// A figure that is read from each run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureSpec {
    /// Name within the experiment.
    pub name: String,
    /// Unit of its values.
    pub unit: FigureUnit,
    /// Meaning of the figure.
    #[serde(alias = "says")]
    pub description: String,
    /// True if the figure is exact: any difference between runs is real, not noise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
}

/// Point of an experiment: a value for each knob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ExperimentPoint {
    /// Values of the knobs.
    pub setting: KnobValues,
    /// Commands that measured it, for repeating it by hand; with `lab exec` for a lab host.
    pub commands: Vec<String>,
    /// Commands that set up the network and start the programs of other hosts, for repeating it by
    /// hand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "around")]
    pub setup_commands: Vec<String>,
    /// Median of each figure over the repeats, with its interval.
    pub figures: BTreeMap<String, Estimate>,
    /// Values of each figure by run, if there is more than one; absent in results of older
    /// versions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, Vec<f64>>,
    /// Values of each figure by run, for the runs before and after which the processors had this
    /// distance; absent if the distance was not measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub values_at: BTreeMap<CoreDistance, BTreeMap<String, Vec<f64>>>,
    /// Ids of the records.
    pub runs: Vec<String>,
    /// Reason for not measuring the point; absent if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

impl ExperimentPoint {
    /// Reason in [`Self::skipped`] of a point that was not reached before the run was stopped.
    pub const NOT_REACHED: &str = "interrupted before it was measured";

    /// Returns true if the run was stopped before it reached this point.
    #[must_use]
    pub fn is_not_reached(&self) -> bool {
        self.skipped.as_deref() == Some(Self::NOT_REACHED)
    }

    /// Returns the figure in each run, or the median if the runs' values are not available.
    #[must_use]
    pub fn run_values(&self, figure: &str) -> Vec<f64> {
        let median = || Some(self.figures.get(figure)?.median);
        match self.values.get(figure) {
            Some(values) => values.clone(),
            None => median().into_iter().collect(),
        }
    }
}

/// Distance of two processors, from the round-trip time of a cache line between them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CoreDistance {
    /// The processors share a cache.
    Near,
    /// The processors do not share a cache.
    Far,
}

/// A table of figures over two sets of knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TableSpec {
    /// Heading.
    pub title: String,
    /// Figures of the table; several figures become columns.
    pub figures: Vec<String>,
    /// Knobs of the rows.
    pub rows: Vec<String>,
    /// Knobs of the columns.
    pub columns: Vec<String>,
    /// Knobs with a fixed value in this table, for figures that do not depend on them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub at: KnobValues,
    /// True if the table shows the difference from row to row, for knobs with numeric values.
    pub steps: bool,
    /// Value of the row knob that the other rows are compared with, each as a direction of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// True if the table has details that the page folds and a text leaves out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub folded: bool,
}

/// A plot of a figure over a knob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlotSpec {
    /// Heading.
    pub title: String,
    /// Figure on the y axis.
    pub figure: String,
    /// Knob on the x axis; values that are not numbers are drawn as bars.
    pub x: String,
    /// Knobs whose values get a line each.
    pub series: Vec<String>,
    /// True if the x axis is logarithmic.
    pub log_x: bool,
}

/// A published figure, with the value measured here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PublishedFigure {
    /// Point that it belongs to, as far as it was published.
    pub setting: KnobValues,
    /// Name of the figure.
    pub figure: String,
    /// Published value in base units.
    pub value: f64,
    /// Hardware and software of the publication.
    pub on: String,
    /// Value measured here; absent if no measured point matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
}

/// Published change of a figure with one knob, and the change measured here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PublishedTrend {
    /// Name of the figure.
    pub figure: String,
    /// Knobs with a fixed value.
    pub at: KnobValues,
    /// Knob that changes.
    pub knob: String,
    /// Value of the knob before.
    pub from: String,
    /// Value of the knob after.
    pub to: String,
    /// Published figure after over the one before.
    pub published: f64,
    /// Measured figure after over the one before; absent if one of them was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    /// True if both changed in the same direction: up, down, or by less than a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
    /// Caveats of the runs behind it: `steal in 2 of 4 runs`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "doubts")]
    pub caveats: Vec<String>,
    /// Possible reason for a disagreement.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// An expected shape of the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedShape {
    /// Expectation as text for users.
    #[serde(alias = "says")]
    pub description: String,
    /// Expectation as a rule: `slope(p50 over hops) > 0`.
    pub rule: String,
    /// Result of the check.
    pub state: ShapeState,
    /// Measured values as text for users.
    pub measured: String,
    /// Sentence with the measured figures, in place of description and values; empty if the shape
    /// is not as expected, or if its file has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub conclusion: String,
    /// Caveats of the runs behind it: `steal in 2 of 4 runs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "doubts")]
    pub caveats: Vec<String>,
    /// Possible reason for a miss.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Result of checking an expected shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShapeState {
    /// The shape is as expected.
    Holds,
    /// The shape differs.
    Misses,
    /// The points needed for the check were not measured.
    Untested,
}

impl ExperimentResult {
    /// Returns the figure with this name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&FigureSpec> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// Returns the points that match a setting, which may leave knobs open.
    pub fn matching_points<'a>(
        &'a self,
        setting: &KnobValues,
    ) -> impl Iterator<Item = &'a ExperimentPoint> {
        self.points.iter().filter(move |point| {
            setting
                .iter()
                .all(|(knob, value)| point.setting.get(knob) == Some(value))
        })
    }

    /// Returns true if a tested shape is not as expected.
    #[must_use]
    pub fn has_missed_shape(&self) -> bool {
        self.shapes
            .iter()
            .any(|shape| shape.state == ShapeState::Misses)
    }
}

/// Returns all combinations of the values of some knobs, each with its name; the first knob varies
/// slowest. A knob without values has no combination.
#[must_use]
pub fn combine_values<'a>(
    knobs: impl IntoIterator<Item = (&'a str, &'a [String])>,
) -> Vec<KnobValues> {
    let mut settings = vec![KnobValues::new()];
    for (name, values) in knobs {
        settings = settings
            .iter()
            .flat_map(|setting| {
                values.iter().map(|value| {
                    let mut setting = setting.clone();
                    setting.insert(name.to_owned(), value.clone());
                    setting
                })
            })
            .collect();
    }
    settings
}

/// Parses the value of a knob as a number, for slopes and axes: `4`, `1.5`, `32K` (1024 each).
#[must_use]
pub fn parse_number(value: &str) -> Option<f64> {
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
        for (text, expected) in [
            ("4", Some(4.0)),
            ("1.5", Some(1.5)),
            ("32K", Some(32768.0)),
            ("reused", None),
            ("inf", None),
            ("", None),
            ("K", None),
        ] {
            assert_eq!(parse_number(text), expected, "{text}");
        }
    }
}
