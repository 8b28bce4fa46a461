//! What a search over knobs found: the changes that matter, their proof, and what was tried in vain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::{Better, Comparison};
use crate::experiment::{Knob, Setting};
use crate::statistics::Estimate;

/// What `tune` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tuning {
    /// The figure that was to get better.
    pub goal: String,
    /// Which way it is better.
    pub better: Better,
    /// The most bytes of buffers and knobs that a setting might take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// The measuring command as it began.
    pub command: String,
    /// The measuring command with the changes that matter.
    pub tuned_command: String,
    /// What the first measurement found, and the knobs that it points at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Pointed>,
    /// The knobs that were searched, the value at the start first; in the order in which they were tried.
    pub knobs: Vec<Knob>,
    /// The changes that matter: without any of them the goal is missed by more than noise, or, where one is
    /// `undecided`, by as much as is worth knowing in the middle of pairs that were too few to be sure.
    pub changes: Vec<Change>,
    /// The same changes as files of other tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snippets: Vec<Snippet>,
    /// What was tried and does not matter, cannot be had, or makes it worse.
    pub vain: Vec<Vain>,
    /// All trials of the search, in their order.
    pub trials: Vec<Trial>,
    /// The start (A) against the changes that matter (B), in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Box<Comparison>>,
    /// Bytes of the buffers at the start and at the end, both ends together.
    pub memory_bytes: [Option<f64>; 2],
    /// Processor time for what was moved at the start and at the end, both ends together: ns per byte, or
    /// per round trip.
    pub cpu_ns: [Option<f64>; 2],
    /// Runs that all of it took.
    pub runs: u32,
    /// What these runs were for.
    #[serde(default)]
    pub spent: Spent,
    /// Where it was interrupted: `check`, `search`, `minimal-set` or `proof`; absent: it came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_in: Option<String>,
    /// The best trial of the search and the start as the search saw it; nothing is proved by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_seen: Option<Best>,
    /// The seed of the search.
    pub seed: u64,
    /// Whether settings of the host were left as they were found best.
    pub kept: bool,
}

/// A finding of the first measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pointed {
    /// Its id, as in `findings[].cause` of the record.
    pub cause: String,
    /// What it costs, 0 to 1.
    pub cost: f64,
    /// What happened, as a sentence.
    pub what: String,
    /// The knobs that were tried first because of it; empty: none that can be turned here.
    pub knobs: Vec<String>,
}

/// Changes in the format of another tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snippet {
    /// `sysctl` (a file for `sysctl --load`), `ethtool` (a shell script), `stack.toml` (a file for `--config`), or
    /// `toml` (options of the measuring command and knobs of the user's own).
    pub format: String,
    /// Its text.
    pub text: String,
}

/// Runs by what they were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Spent {
    /// Short runs that tell whether a value can be had.
    pub check: u32,
    /// Trials of the search, the first measurement among them.
    pub search: u32,
    /// Halves of pairs that tell which changes matter.
    pub minimal_set: u32,
    /// Halves of pairs of the start against all changes.
    pub proof: u32,
}

/// What a search saw without proof.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Best {
    /// What differs from the start.
    pub setting: Setting,
    /// Median of the figure there.
    pub value: f64,
    /// How often it was measured.
    pub runs: u32,
    /// Median of the figure at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
}

/// A change that matters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The knob.
    pub knob: String,
    /// Its value at the start.
    pub from: String,
    /// Its value now.
    pub to: String,
    /// Commands that make it outside of a measurement; none for options of the measuring command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// The figure without this change over that with it, in pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<Estimate>,
    /// It is kept because as much is lost without it as is worth knowing, though its own pairs are too few or
    /// too wild to be sure of that, or because it could not be measured without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
}

/// A value that was tried in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Vain {
    /// The knob.
    pub knob: String,
    /// The value.
    pub value: String,
    /// Why it is not among the changes.
    pub why: String,
}

/// One run of the search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Trial {
    /// What differs from the start.
    pub setting: Setting,
    /// The figure; absent when the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Bytes that it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<f64>,
    /// Id of its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Why it has no figure, or may not be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
