//! Capacity of a device: results of the RFC 2544 tests, with the search goals of MLRsearch.

use linerate_stats::histogram::Quantiles;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{SearchEnd, StoredId};

/// Result of `linerate capacity`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Capacity {
    /// Port that sends.
    pub send: String,
    /// Port that receives.
    pub receive: String,
    /// Duration of the trials that decide. RFC 2544 section 24 demands at least 60 s.
    pub trial_ns: u64,
    /// Largest gap between the bounds of a search, as a share of the upper one.
    pub resolution: f64,
    /// Line rate in bits per second, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bps: Option<u64>,
    /// Results by frame size.
    pub sizes: Vec<SizeCapacity>,
}

/// Results for one frame size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SizeCapacity {
    /// Frame size as requested: `64`, `imix`.
    pub size: String,
    /// Mean frame size in bytes, FCS included.
    pub frame_bytes: f64,
    /// Highest load tried, in frames per second: the line rate, or the most that the generator
    /// could offer.
    #[serde(alias = "most_fps")]
    pub max_tried_fps: f64,
    /// Throughput by loss goal, the strictest first.
    pub throughput: Vec<Throughput>,
    /// Delay by share of the throughput (RFC 2544 section 26.2).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<DelayPoint>,
    /// Loss by offered load, descending (RFC 2544 section 26.3).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frame_loss: Vec<FrameLossPoint>,
    /// Longest burst without loss (RFC 2544 section 26.4, RFC 9004).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to_back: Option<BackToBackResult>,
    /// Every trial, in order.
    pub trials: Vec<CapacityTrial>,
}

/// Highest rate at which the loss does not exceed a goal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Throughput {
    /// `ndr` for a goal of zero loss (the throughput of RFC 2544 section 26.1), else `pdr`.
    pub name: String,
    /// Largest permitted share of lost frames.
    pub loss_goal: f64,
    /// Highest load that passed below every failed load (MLRsearch: relevant lower bound), in
    /// frames per second; absent if none passed. The offered load, where it differs from the
    /// intended one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fps: Option<f64>,
    /// The load in bits per second of frames, FCS included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_bps: Option<f64>,
    /// The load in bits per second, preamble and gap included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1_bps: Option<f64>,
    /// Share of frames lost at that load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// Frames received per second at that load (MLRsearch: conditional throughput).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_fps: Option<f64>,
    /// Lowest load that failed, as offered: the true throughput lies between it and `fps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_fps: Option<f64>,
    /// Intended load of the trials at `failed_fps`; absent if it is equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "failed_asked_fps")]
    pub failed_intended_fps: Option<f64>,
    /// Lowest load at or below `fps` at which a later trial of this size lost more than the goal;
    /// absent if none did. With it, `fps` is the result of the search and not a load that the
    /// device carries every time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted_fps: Option<f64>,
    /// Share of frames lost in that trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted_loss: Option<f64>,
    /// True if all trials behind `failed_fps` may have lost their frames on this machine
    /// (`local_loss` of the trials): the device may carry more than `fps`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disturbed: bool,
    /// Frames beyond `failed_fps` that a shorter trial passed: buffer space or a burst allowance of
    /// the device that no delay shows. The deciding trials may overstate its rate by as many
    /// frames. Absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "beyond_frames")]
    pub short_trial_surplus_frames: Option<f64>,
    /// Reason for the end of the search: `resolution`, `line` (the highest load passes),
    /// `generator` (its highest load passes), `minimum-rate` (not even one frame per trial passes),
    /// `trials` (too many), `nothing-sent` (no frame left the port) or `interrupted`.
    pub stopped_by: StoredId<SearchEnd>,
}

/// Delay at a share of the throughput.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DelayPoint {
    /// Share of the throughput, 0 to 1.
    pub share: f64,
    /// Offered load in frames per second.
    pub offered_fps: f64,
    /// Intended load in frames per second; absent if the generator offered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "not_offered_fps")]
    pub missed_intended_fps: Option<f64>,
    /// Share of frames lost.
    pub loss_fraction: f64,
    /// Time from passing a frame to the sending port until it was received; absent if frames are
    /// too short to carry a timestamp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
}

/// Frame loss at an offered load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FrameLossPoint {
    /// Intended load as a share of the highest one, 0 to 1.
    pub share: f64,
    /// Offered load in frames per second.
    pub offered_fps: f64,
    /// Intended load in frames per second; absent if the generator offered it. With it, the loss
    /// belongs to a lower load than `share` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "not_offered_fps")]
    pub missed_intended_fps: Option<f64>,
    /// Frames received per second.
    pub forwarding_fps: f64,
    /// Share of frames lost.
    pub loss_fraction: f64,
}

/// Longest burst of frames at the minimum gap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BackToBackResult {
    /// Length in frames of the longest burst without loss: mean of the searches.
    pub frames: f64,
    /// Result of each search.
    pub searches: Vec<u64>,
    /// True if the longest permitted burst passed: the device may take longer ones.
    pub unlimited: bool,
    /// Frames per second within the longest burst; 0 if none passed, or if the burst was too short
    /// in time to have a rate.
    pub burst_fps: f64,
    /// True if bursts were sent at the minimum gap of the line; absent if the line rate is not
    /// known and the gap is the generator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_line_rate: Option<bool>,
    /// Buffer time of the device at the highest rate, corrected by the frames it forwards meanwhile
    /// (RFC 9004 section 6.4); absent if the throughput is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_ns: Option<u64>,
}

/// Trial of a capacity measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CapacityTrial {
    /// Number from 1, over all sizes.
    pub number: u32,
    /// Test that it belongs to: `throughput`, `latency`, `frame-loss`, `back-to-back`.
    pub test: String,
    /// Frame size as requested.
    pub size: String,
    /// Intended load in frames per second; absent: as fast as possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "asked_fps")]
    pub intended_fps: Option<f64>,
    /// Time of sending.
    pub duration_ns: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames sent per second.
    pub offered_fps: f64,
    /// Frames received per second of sending.
    pub forwarding_fps: f64,
    /// Share of frames lost.
    pub loss_fraction: f64,
    /// True if the generator offered the intended load.
    #[serde(alias = "kept")]
    pub load_met: bool,
    /// Frames that a queue on the path delayed, extrapolated at the rate at which it was still
    /// growing when sending ended: the search counts them as lost. Absent if no queue was growing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Delay at the end of the trial less the delay of its fastest frames, if a queue was growing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_wait_ns: Option<u64>,
    /// Lost frames that this machine may have lost itself, because it sent late, stalled, or polled
    /// its own ring too late. Absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "own")]
    pub local_loss: Option<u64>,
    /// True if the trial is invalid for that reason and was repeated.
    #[serde(default, skip_serializing_if = "is_false")]
    #[serde(alias = "again")]
    pub repeated: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
