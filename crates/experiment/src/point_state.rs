//! Measurements of a point, and state of a point during a run.

use std::collections::BTreeMap;
use std::time::Instant;

use linerate_record::experiment::{CoreDistance, ExperimentPoint, KnobValues};
use linerate_record::record::Record;
use linerate_stats::statistics::estimate;
use serde::{Deserialize, Serialize};

/// Result of one measurement of a point, complete enough to resume without measuring it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointMeasurement {
    /// Round, from 0.
    pub round: u32,
    pub setting: KnobValues,
    /// Command lines that measured the point.
    pub commands: Vec<String>,
    /// Commands to run before them to reproduce the point.
    #[serde(alias = "around")]
    pub setup_commands: Vec<String>,
    pub values: BTreeMap<String, f64>,
    pub runs: Vec<Record>,
    /// Distance of the CPUs; `None` if it was not measured or changed during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<CoreDistance>,
}

/// State of a point during the run.
pub(crate) struct PointState {
    pub(crate) setting: KnobValues,
    pub(crate) commands: Vec<String>,
    pub(crate) setup_commands: Vec<String>,
    pub(crate) values: BTreeMap<String, Vec<f64>>,
    values_at: BTreeMap<CoreDistance, BTreeMap<String, Vec<f64>>>,
    pub(crate) runs: Vec<Record>,
    /// Reason why it has no run.
    pub(crate) skip_reason: Option<String>,
    /// Reason why it was skipped in the latest round.
    pub(crate) last_failure: Option<SkipReason>,
}

impl PointState {
    pub(crate) fn new(setting: KnobValues) -> Self {
        Self {
            setting,
            commands: Vec::new(),
            setup_commands: Vec::new(),
            values: BTreeMap::new(),
            values_at: BTreeMap::new(),
            runs: Vec::new(),
            skip_reason: None,
            last_failure: None,
        }
    }

    /// Adds the result of one round.
    pub(crate) fn add_measurement(&mut self, measurement: &PointMeasurement) {
        (self.skip_reason, self.last_failure) = (None, None);
        self.commands.clone_from(&measurement.commands);
        self.setup_commands.clone_from(&measurement.setup_commands);
        self.runs.extend(measurement.runs.iter().cloned());
        let values_at_distance = measurement
            .distance
            .map(|distance| self.values_at.entry(distance).or_default());
        for values in [&mut self.values].into_iter().chain(values_at_distance) {
            for (name, value) in &measurement.values {
                values.entry(name.clone()).or_default().push(*value);
            }
        }
    }

    /// Returns whether the point is not measured any more.
    ///
    /// True if this machine cannot measure it, or if it failed permanently and was never measured.
    pub(crate) fn is_excluded(&self) -> bool {
        self.skip_reason.is_some()
            && self
                .last_failure
                .as_ref()
                .is_none_or(|left| !left.is_transient)
    }

    pub(crate) fn to_point(&self) -> ExperimentPoint {
        let figures = self
            .values
            .iter()
            .filter_map(|(name, values)| Some((name.clone(), estimate(values)?)));
        let repeated = self.values.iter().filter(|(_, values)| values.len() > 1);
        let repeated = repeated.map(|(name, values)| (name.clone(), values.clone()));
        ExperimentPoint {
            setting: self.setting.clone(),
            commands: self.commands.clone(),
            setup_commands: self.setup_commands.clone(),
            figures: figures.collect(),
            values: repeated.collect(),
            values_at: self.values_at.clone(),
            runs: self.runs.iter().map(|run| run.id.clone()).collect(),
            skipped: self.skip_reason.clone(),
        }
    }
}

/// Reason why a point was skipped in a round.
pub(crate) struct SkipReason {
    pub(crate) reason: String,
    pub(crate) next_step: String,
    /// Exit code for it.
    pub(crate) exit_code: u8,
    /// True if the point may succeed in the next round.
    pub(crate) is_transient: bool,
    /// Other points that would fail the same way.
    pub(crate) skip_group: Option<SkipGroup>,
    /// Time of the failure.
    pub(crate) failed_at: Instant,
}

/// Points skipped for the same reason.
#[derive(Clone)]
pub(crate) struct SkipGroup {
    /// Object that they name.
    pub(crate) object: String,
    /// Indices of the points still to be measured.
    pub(crate) points: Vec<usize>,
    /// True if no other points remain.
    pub(crate) covers_all: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line of a journal of commit b37400c, before the renaming of keys.
    #[test]
    fn measurements_with_earlier_keys_load() {
        let text = r#"{"round":1,"setting":{"size":"64"},"commands":["measure"],"around":["up"],"values":{"p50":2.0},"runs":[]}"#;
        let measurement: PointMeasurement = serde_json::from_str(text).unwrap();
        let expected = PointMeasurement {
            round: 1,
            setting: [("size".to_owned(), "64".to_owned())].into(),
            commands: vec!["measure".to_owned()],
            setup_commands: vec!["up".to_owned()],
            values: [("p50".to_owned(), 2.0)].into(),
            runs: Vec::new(),
            distance: None,
        };
        assert_eq!(measurement, expected);
    }
}
