//! What a device can carry: results of RFC 2544's tests, with the goals of MLRsearch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::Quantiles;

/// The result of `linerate capacity`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Capacity {
    /// The port that sends.
    pub send: String,
    /// The port that receives.
    pub receive: String,
    /// Length of the trials that decide. RFC 2544 section 24 asks for 60 s at least.
    pub trial_ns: u64,
    /// How close bounds had to come, as a share of the upper one.
    pub resolution: f64,
    /// Rate of the line in bits per second, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bps: Option<u64>,
    /// By frame size.
    pub sizes: Vec<SizeCapacity>,
}

/// The results for one size of frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SizeCapacity {
    /// The size as it was asked for: `64`, `imix`.
    pub size: String,
    /// Mean size with check sequence.
    pub frame_bytes: f64,
    /// The highest load tried in frames per second: the line's, or what the generator gave.
    pub most_fps: f64,
    /// By loss goal, the strictest first.
    pub throughput: Vec<Throughput>,
    /// By share of the throughput (RFC 2544 section 26.2).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<DelayAt>,
    /// By offered load, from the highest down (RFC 2544 section 26.3).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frame_loss: Vec<LossAt>,
    /// The longest burst without loss (RFC 2544 section 26.4, RFC 9004).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to_back: Option<BackToBack>,
    /// All trials in their order.
    pub trials: Vec<CapacityTrial>,
}

/// The highest rate at which no more than a share of frames is lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Throughput {
    /// `ndr` where nothing may be lost (the throughput of RFC 2544 section 26.1), `pdr` otherwise.
    pub name: String,
    /// Share of the frames that may be lost.
    pub loss_goal: f64,
    /// The highest load that passed below all that failed (MLRsearch: relevant lower bound), frames
    /// per second; absent when none did. As it was offered, where that was another than asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fps: Option<f64>,
    /// The same in bits of frames with check sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2_bps: Option<f64>,
    /// The same with preambles and gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l1_bps: Option<f64>,
    /// Share lost at that load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// Frames per second that arrived then (MLRsearch: conditional throughput).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_fps: Option<f64>,
    /// The lowest load that failed, as it was offered: the truth lies between the two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_fps: Option<f64>,
    /// The load that was asked for in the trials at `failed_fps`; absent where that is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_asked_fps: Option<f64>,
    /// The lowest load at or below `fps` at which a later trial of this size lost more than the goal; absent
    /// where none did. `fps` is then what passed in the search, and not what the device carries each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted_fps: Option<f64>,
    /// Share lost in that trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradicted_loss: Option<f64>,
    /// Whether `failed_fps` stands on nothing but trials in which this machine may have lost what was lost
    /// (`own` of the trials): the device may carry more than `fps`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disturbed: bool,
    /// Frames beyond `failed_fps` that a shorter trial let through: room or an allowance of the device that no
    /// delay shows. By as many the trials that decide may overstate its rate as well. Absent where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond_frames: Option<f64>,
    /// Why it ended: `resolution`, `line` (the highest load passes), `generator` (it can offer no
    /// more, and that passes), `floor` (not even a frame a trial), `trials` (too many),
    /// `nothing-sent` (no frame left the port) or `interrupted`.
    pub stopped_by: String,
}

/// Delay at a share of the throughput.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DelayAt {
    /// Share of the throughput, 0 to 1.
    pub share: f64,
    /// Offered frames per second.
    pub offered_fps: f64,
    /// Frames per second that were asked for, where the generator could not offer them; absent where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_offered_fps: Option<f64>,
    /// Share lost meanwhile.
    pub loss_fraction: f64,
    /// From when the generator handed a frame over to when the receiving side had it; absent where
    /// frames are too short to carry a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
}

/// Loss at an offered load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LossAt {
    /// Share of the highest load, 0 to 1: of what was asked for.
    pub share: f64,
    /// Offered frames per second.
    pub offered_fps: f64,
    /// Frames per second that were asked for, where the generator could not offer them: what was lost is then
    /// the loss at a lower load than `share` says. Absent where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_offered_fps: Option<f64>,
    /// Frames per second that arrived.
    pub forwarding_fps: f64,
    /// Share lost.
    pub loss_fraction: f64,
}

/// Bursts at the smallest gap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BackToBack {
    /// Frames of the longest burst without loss: the mean of the searches.
    pub frames: f64,
    /// Each search's.
    pub searches: Vec<u64>,
    /// Whether the longest burst that may be tried passed: the truth is longer.
    pub unlimited: bool,
    /// Frames per second within the longest of them; 0 where none passed, or where a burst left so
    /// fast that it has no rate.
    pub burst_fps: f64,
    /// Whether bursts left at the smallest gap of the line; absent where its rate is not known, and the
    /// gap is the generator's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_line_rate: Option<bool>,
    /// What the device's buffers hold in time at the highest rate, corrected by what it forwards
    /// meanwhile (RFC 9004 section 6.4); absent where no throughput is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_ns: Option<u64>,
}

/// One trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CapacityTrial {
    /// From 1, over all sizes.
    pub number: u32,
    /// What it was for: `throughput`, `latency`, `frame-loss`, `back-to-back`.
    pub test: String,
    /// Size as it was asked for.
    pub size: String,
    /// Frames per second asked for; absent: as fast as it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_fps: Option<f64>,
    /// Length of sending.
    pub duration_ns: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Frames sent per second.
    pub offered_fps: f64,
    /// Frames that arrived, over the time of sending.
    pub forwarding_fps: f64,
    /// Share lost.
    pub loss_fraction: f64,
    /// Whether the generator offered what it was asked for.
    pub kept: bool,
    /// Frames that a queue on the way held back, at the rate at which it was still filling when sending ended:
    /// the search counts them as lost. Absent where none was filling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// How much longer frames took at the end than the fastest ones of the trial, where a queue was filling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_wait_ns: Option<u64>,
    /// Frames among the lost ones that this machine may have lost itself: it was late, stood still, or did not
    /// look into its own ring in time. Absent where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<u64>,
    /// Whether the trial says nothing because of that and was made again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub again: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
