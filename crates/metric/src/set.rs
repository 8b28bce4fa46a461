//! Several runs that belong together, with the result made from them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::comparison::Comparison;
use crate::expect::FIGURES;
use crate::experiment::ExperimentResult;
use crate::fit::SizeCosts;
use crate::forward::Saturation;
use crate::load::{LoadCurve, UnderLoad};
use crate::record::Record;
use crate::statistics::{Estimate, estimate};
use crate::sweep::Sweep;
use crate::tuning::Tuning;
use crate::waiting::WaitingCosts;

/// Schema id of a [`RunSet`].
pub const SET_SCHEMA: &str = "linerate/set/1";

/// What a command that makes several runs gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSet {
    /// `linerate/set/1`.
    pub schema: String,
    /// Sortable by time, unique.
    pub id: String,
    /// What made it: `repeat`, `demo`, ...
    pub kind: String,
    /// When its first run started.
    pub started: Timestamp,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// The runs.
    pub runs: Vec<Record>,
    /// What follows from them together.
    pub result: SetResult,
}

/// What several runs say together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SetResult {
    /// A name given by whoever asked for it (`--label`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// For repeats of one run: each figure's median and interval, by the names `--expect` knows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, Estimate>,
    /// For a sweep of sizes: what a round trip costs by size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_costs: Option<SizeCosts>,
    /// For a comparison of ways of waiting: what sleeping adds to a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_costs: Option<WaitingCosts>,
    /// For a load curve: latency against load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_curve: Option<LoadCurve>,
    /// For runs with and without a load: what it adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub under_load: Option<UnderLoad>,
    /// For a search (`-b max`): the highest rate that arrived, and the trials that found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Box<RateSearch>>,
    /// For `forward --saturate`: packets per second against packets in flight, by number of threads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub saturation: Vec<Saturation>,
    /// For `capacity`: what the device can carry, by frame size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Box<Capacity>>,
    /// For a whole experiment: its points, tables, and whether its shape is the expected one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experiment: Option<Box<ExperimentResult>>,
    /// For `compare`: both sides, and whether they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Box<Comparison>>,
    /// For `sweep`: every point of a matrix, and which are worth having.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Box<Sweep>>,
    /// For `tune`: the changes that matter, and their proof.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Box<Tuning>>,
    /// What could not be done and why, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl SetResult {
    /// Whether a search rests on a run of this id, and of this loss: the trial with the highest rate that
    /// passed; for a device those that lost no more than was allowed. All runs of any other set count.
    #[must_use]
    pub fn rests_on(&self, id: &str, loss_fraction: Option<f64>) -> bool {
        if let Some(search) = &self.search {
            let passed = search.trials.iter().filter(|trial| trial.passed);
            let best = passed.max_by(|a, b| a.offered_bps.total_cmp(&b.offered_bps));
            return best.is_some_and(|trial| trial.record == id);
        }
        let Some(capacity) = &self.capacity else {
            return true;
        };
        let goals = capacity.sizes.iter().flat_map(|size| &size.throughput);
        let most = goals.map(|found| found.loss_goal).fold(0.0, f64::max);
        loss_fraction.unwrap_or(0.0) <= most
    }

    /// Whether its runs are so many and so alike that none of them is told on its own.
    #[must_use]
    pub fn is_many_alike(&self) -> bool {
        self.comparison.is_some() || self.sweep.is_some() || self.tuning.is_some()
    }

    /// The median and interval of every figure that all of the runs have.
    #[must_use]
    pub fn of_repeats(runs: &[Record]) -> Self {
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

/// The highest rate that arrives with no more than some loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RateSearch {
    /// Share of the datagrams that might be lost.
    pub loss_limit: f64,
    /// How close what passed and what failed had to come, as a share of the rate.
    pub resolution: f64,
    /// Offered load that passed, payload bits per second of all flows; absent when none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<f64>,
    /// What arrived then, in the longest trial at that rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_bps: Option<f64>,
    /// Share that was lost then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// The lowest load above it that failed or could not be offered: the truth lies between the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_bps: Option<f64>,
    /// Whether a longer trial at that rate passed too.
    pub confirmed: bool,
    /// Why it ended: `resolution`, `sender` (no more leaves it), `floor` (nothing passed), `trials`
    /// (too many) or `interrupted`.
    pub stopped_by: String,
    /// The trials, in their order.
    pub trials: Vec<Trial>,
}

impl RateSearch {
    /// How far what passed and what failed are apart, as a share of what failed; `None` where either is
    /// not known.
    #[must_use]
    pub fn gap(&self) -> Option<f64> {
        let (low, high) = (self.rate_bps?, self.failed_bps?);
        (high > 0.0).then_some((high - low) / high)
    }
}

/// One trial of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trial {
    /// From 1.
    pub number: u32,
    /// Payload bits per second asked for, all flows; absent: as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_bps: Option<f64>,
    /// What was offered, with what the sender's socket had no room for.
    pub offered_bps: f64,
    /// What arrived.
    pub goodput_bps: f64,
    /// Share that was lost.
    pub loss_fraction: f64,
    /// Whether no more was lost than might be.
    pub passed: bool,
    /// Whether it was to confirm the winner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirms: bool,
    /// Id of its record.
    pub record: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::{SizeCapacity, Throughput};

    #[test]
    fn a_search_rests_on_the_highest_rate_that_passed() {
        let trial = |record: &str, offered_bps, passed| Trial {
            number: 1,
            asked_bps: None,
            offered_bps,
            goodput_bps: offered_bps,
            loss_fraction: 0.0,
            passed,
            confirms: false,
            record: record.to_owned(),
        };
        let trials = vec![
            trial("low", 1e8, true),
            trial("most", 9e9, false),
            trial("best", 4e9, true),
        ];
        let result = SetResult {
            search: Some(Box::new(RateSearch {
                trials,
                ..RateSearch::default()
            })),
            ..SetResult::default()
        };
        let rests = ["low", "most", "best"].map(|id| result.rests_on(id, Some(0.0)));
        assert_eq!(rests, [false, false, true]);
    }

    #[test]
    fn a_device_rests_on_runs_that_lost_no_more_than_they_may() {
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
        let rests = [None, Some(0.005), Some(0.2)].map(|lost| result.rests_on("id", lost));
        assert_eq!(rests, [true, true, false]);
        assert!(SetResult::default().rests_on("id", Some(1.0)));
    }
}
