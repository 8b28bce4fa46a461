//! Result of a knob search: the changes that matter, their proof, and rejected settings.

use linerate_stats::statistics::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::{BetterWhen, Comparison};
use crate::experiment::{KnobAxis, KnobValues};
use crate::ids::{CauseId, StoredId, TuneStage};

/// Result of `tune`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tuning {
    /// Figure to optimise.
    pub goal: String,
    /// Direction in which the figure improves.
    pub better: BetterWhen,
    /// Limit on the memory of buffers and knobs, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Measuring command at the start.
    pub command: String,
    /// Measuring command with the changes that matter.
    pub tuned_command: String,
    /// Findings of the first measurement, with the knobs that they suggest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<FindingHint>,
    /// Searched knobs in the order in which they were tried; the first value is that at the start.
    pub knobs: Vec<KnobAxis>,
    /// Changes that matter: without any one of them the goal gets worse by more than noise. A
    /// change marked `undecided` has a median loss that matters, in too few pairs for significance.
    pub changes: Vec<TuningChange>,
    /// Changes as configuration of other tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snippets: Vec<ConfigSnippet>,
    /// Settings that do not matter, are not available, or make the goal worse.
    #[serde(alias = "vain")]
    pub rejected: Vec<RejectedSetting>,
    /// Trials of the search, in order.
    pub trials: Vec<TuningTrial>,
    /// Interleaved comparison of the start (A) with the changes that matter (B).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Box<Comparison>>,
    /// Bytes of the buffers at the start and at the end, sum of both ends.
    pub memory_bytes: [Option<f64>; 2],
    /// Processor time of both ends at the start and at the end: ns per byte, or per round trip.
    pub cpu_ns: [Option<f64>; 2],
    /// Total number of runs.
    pub runs: u32,
    /// Number of runs by purpose.
    #[serde(default)]
    #[serde(alias = "spent")]
    pub run_counts: RunCounts,
    /// Stage in which it was interrupted: `check`, `search`, `minimal-set` or `proof`; absent if it
    /// was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_in: Option<StoredId<TuneStage>>,
    /// Best trial of the search and the start as the search measured it, without proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "best_seen")]
    pub best_trial: Option<BestTrial>,
    /// Seed of the search.
    pub seed: u64,
    /// True if the best host settings were left in place.
    #[serde(alias = "kept")]
    pub settings_kept: bool,
}

/// A finding of the first measurement, as a hint for the search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FindingHint {
    /// Id, as in `findings[].cause` of the record.
    pub cause: StoredId<CauseId>,
    /// Cost as a share, 0 to 1.
    pub cost: f64,
    /// Cause as a sentence for users.
    #[serde(alias = "what")]
    pub summary: String,
    /// Knobs that were tried first because of it; empty if it suggests none that is available here.
    pub knobs: Vec<String>,
}

/// Changes in the format of another tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigSnippet {
    /// `sysctl` (a file for `sysctl --load`), `ethtool` (a shell script), `stack.toml` (a file for
    /// `--config`), or `toml` (options of the measuring command and user-defined knobs).
    pub format: String,
    /// Content in that format.
    pub text: String,
}

/// Number of runs by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RunCounts {
    /// Short runs that check which values are available.
    pub check: u32,
    /// Trials of the search, including the first measurement.
    pub search: u32,
    /// Runs of the pairs that determine which changes matter.
    pub minimal_set: u32,
    /// Runs of the pairs that compare the start with all changes.
    pub proof: u32,
}

/// Best setting of the search, without proof.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BestTrial {
    /// Difference from the start.
    pub setting: KnobValues,
    /// Median of the figure with that setting.
    pub value: f64,
    /// Number of runs.
    pub runs: u32,
    /// Median of the figure at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
}

/// A change that matters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TuningChange {
    /// Name of the knob.
    pub knob: String,
    /// Value at the start.
    pub from: String,
    /// New value.
    pub to: String,
    /// Commands that make the change outside of a measurement; empty for options of the measuring
    /// command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Figure without the change over the figure with it, in pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<Estimate>,
    /// True if the change is kept without significance: its pairs are too few or too noisy, but
    /// their median loss matters, or no run without the change was possible.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
}

/// A setting that was tried and not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RejectedSetting {
    /// Name of the knob.
    pub knob: String,
    /// Value that was tried.
    pub value: String,
    /// Reason for the rejection.
    #[serde(alias = "why")]
    pub reason: String,
}

/// Trial of the search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TuningTrial {
    /// Difference from the start.
    pub setting: KnobValues,
    /// The figure; absent if the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Memory of buffers and knobs in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
    /// Id of the trial's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Reason for a missing figure, or for excluding the setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "refused")]
    pub rejected: Option<String>,
}
