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
    /// The knobs that were searched, the value at the start first.
    pub knobs: Vec<Knob>,
    /// The changes that matter: without any of them the goal is missed by more than noise.
    pub changes: Vec<Change>,
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
    /// The seed of the search.
    pub seed: u64,
    /// Whether settings of the host were left as they were found best.
    pub kept: bool,
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
