//! Set of several runs with their combined result.

use std::collections::BTreeMap;

use jiff::Timestamp;
use linerate_stats::size_costs::SizeCosts;
use linerate_stats::statistics::{Estimate, estimate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::comparison::Comparison;
use crate::expect::FIGURES;
use crate::experiment::ExperimentResult;
use crate::forward::SaturationCurve;
use crate::ids::{SearchEnd, StoredId, TrialFailure};
use crate::load::{LatencyUnderLoad, LoadCurve};
use crate::record::Record;
use crate::sweep::Sweep;
use crate::tuning::Tuning;
use crate::waiting_costs::WaitingCosts;

/// Schema id of a [`RunSet`].
pub const SET_SCHEMA: &str = "linerate/set/1";

/// Result of a command that makes several runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSet {
    /// `linerate/set/1`.
    pub schema: String,
    /// Unique id that sorts by time.
    pub id: String,
    /// Command that made it: `repeat`, `demo`, ...
    pub kind: String,
    /// Start of its first run.
    pub started: Timestamp,
    /// True if it was stopped early.
    pub interrupted: bool,
    /// Records of the runs.
    pub runs: Vec<Record>,
    /// Combined result of the runs.
    pub result: SetResult,
}

/// Combined result of several runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SetResult {
    /// Label given by the user (`--label`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Repeats of one run: median and interval of each figure, by its `--expect` name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, Estimate>,
    /// Sweep of sizes: cost of a round trip by size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_costs: Option<SizeCosts>,
    /// Comparison of wait modes: cost of sleeping in a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_costs: Option<WaitingCosts>,
    /// Load curve: latency as a function of load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_curve: Option<LoadCurve>,
    /// Runs with and without a background load: the latency that it adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_load: Option<LatencyUnderLoad>,
    /// Rate search (`-b max`): the highest rate received, with the trials of the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Box<RateSearchResult>>,
    /// `forward --saturate`: packets per second as a function of packets in flight, by number of
    /// threads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub saturation: Vec<SaturationCurve>,
    /// `capacity`: capacity of the device by frame size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Box<Capacity>>,
    /// Experiment: its points, tables, and the check of the expected shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<Box<ExperimentResult>>,
    /// `compare`: both sides and the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Box<Comparison>>,
    /// `sweep`: every point of the matrix, and the Pareto-optimal ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Box<Sweep>>,
    /// `tune`: the changes that matter, and their proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Box<Tuning>>,
    /// Steps that were skipped, and the reason, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl SetResult {
    /// Returns true if the result depends on the run with this id and loss. A rate search depends
    /// on the passed trial with the highest rate, a capacity measurement on runs within its loss
    /// goal, every other set on all of its runs.
    #[must_use]
    pub fn depends_on(&self, id: &str, loss_fraction: Option<f64>) -> bool {
        if let Some(search) = &self.search {
            let passed = search.trials.iter().filter(|trial| trial.passed);
            let best = passed.max_by(|a, b| a.offered_bps.total_cmp(&b.offered_bps));
            return best.is_some_and(|trial| trial.record == id);
        }
        let Some(capacity) = &self.capacity else {
            return true;
        };
        let goals = capacity.sizes.iter().flat_map(|size| &size.throughput);
        let most = goals
            .map(|throughput| throughput.loss_goal)
            .fold(0.0, f64::max);
        loss_fraction.unwrap_or(0.0) <= most
    }

    /// Returns true if the set has many similar runs that are not reported one by one.
    #[must_use]
    pub fn has_uniform_runs(&self) -> bool {
        self.comparison.is_some() || self.sweep.is_some() || self.tuning.is_some()
    }

    /// Computes median and interval of each figure that all runs have.
    #[must_use]
    pub fn from_repeats(runs: &[Record]) -> Self {
        let figures = FIGURES
            .iter()
            .filter_map(|figure| {
                let values: Option<Vec<f64>> =
                    runs.iter().map(|run| (figure.read)(&run.summary)).collect();
                Some((figure.name.to_owned(), estimate(&values?)?))
            })
            .collect();
        Self {
            figures,
            ..Self::default()
        }
    }
}

/// Result of a search for the highest rate received within a loss limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RateSearchResult {
    /// Largest permitted share of lost datagrams.
    pub loss_limit: f64,
    /// Largest gap between passed and failed rate at the end, as a share of the rate.
    pub resolution: f64,
    /// Highest offered load that passed, payload bits per second of all flows; absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// Goodput of the longest trial at that rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_bps: Option<f64>,
    /// Loss share of that trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// Lowest load above it that failed or could not be offered: the true limit lies between the
    /// two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_bps: Option<f64>,
    /// True if a longer trial at that rate also passed.
    pub confirmed: bool,
    /// Reason for the end: `resolution`, `sender` (it cannot offer more), `floor` (nothing passed),
    /// `trials` (too many) or `interrupted`.
    pub stopped_by: StoredId<SearchEnd>,
    /// Trials in order.
    pub trials: Vec<RateSearchTrial>,
}

impl RateSearchResult {
    /// Returns the gap between passed and failed rate, as a share of the failed one; `None` if one
    /// of them is unknown.
    #[must_use]
    pub fn gap(&self) -> Option<f64> {
        let (low, high) = (self.rate_bps?, self.failed_bps?);
        (high > 0.0).then_some((high - low) / high)
    }
}

/// Trial of a rate search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RateSearchTrial {
    /// Number from 1.
    pub number: u32,
    /// Intended load in payload bits per second, all flows; absent: as fast as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "asked_bps")]
    pub intended_bps: Option<f64>,
    /// Offered load, including datagrams dropped at the sender's socket.
    pub offered_bps: f64,
    /// Goodput.
    pub goodput_bps: f64,
    /// Share of lost datagrams.
    pub loss_fraction: f64,
    /// True if the loss was within the limit.
    pub passed: bool,
    /// Reason why it did not pass: `loss` (more than the limit), or `queue` (less arrived per second
    /// than was sent, so a queue fills).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<StoredId<TrialFailure>>,
    /// Share of the datagrams that may arrive later than they were sent: more fill a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_limit: Option<f64>,
    /// True if the failure did not count yet, because chance can explain it: the next trial has the
    /// same load.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_repeated: bool,
    /// Lost datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// True if the trial was to confirm the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(alias = "confirms")]
    pub is_confirmation: bool,
    /// Id of the trial's record.
    pub record: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::{SizeCapacity, Throughput};

    #[test]
    fn a_search_depends_on_the_highest_rate_that_passed() {
        let trial = |record: &str, offered_bps, passed| RateSearchTrial {
            number: 1,
            intended_bps: None,
            offered_bps,
            goodput_bps: offered_bps,
            loss_fraction: 0.0,
            passed,
            failure: None,
            queue_limit: None,
            is_repeated: false,
            lost: None,
            is_confirmation: false,
            record: record.to_owned(),
        };
        let trials = vec![
            trial("low", 1e8, true),
            trial("most", 9e9, false),
            trial("best", 4e9, true),
        ];
        let result = SetResult {
            search: Some(Box::new(RateSearchResult {
                trials,
                ..RateSearchResult::default()
            })),
            ..SetResult::default()
        };
        let depends = ["low", "most", "best"].map(|id| result.depends_on(id, Some(0.0)));
        assert_eq!(depends, [false, false, true]);
    }

    #[test]
    fn a_capacity_depends_on_runs_within_its_loss_goal() {
        let throughput = vec![Throughput {
            loss_goal: 0.01,
            ..Throughput::default()
        }];
        let capacity = Capacity {
            sizes: vec![SizeCapacity {
                throughput,
                ..SizeCapacity::default()
            }],
            ..Capacity::default()
        };
        let result = SetResult {
            capacity: Some(Box::new(capacity)),
            ..SetResult::default()
        };
        let depends = [None, Some(0.005), Some(0.2)].map(|lost| result.depends_on("id", lost));
        assert_eq!(depends, [true, true, false]);
        assert!(SetResult::default().depends_on("id", Some(1.0)));
    }
}
