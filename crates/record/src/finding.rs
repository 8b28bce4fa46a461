//! Findings: the cause of a result, its evidence, and a remedy.
//!
//! Plain data for the record. The `explain` crate makes them, from records only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;
use crate::ids::{CauseId, StoredId};
use crate::plan::Direction;

/// Kind of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// A cause that can be changed and costs performance. A healthy run has none.
    Cause,
    /// A limit that the run reached: line rate, processor, requested rate.
    Limit,
    /// Something that could not be decided, because some value could not be read.
    Unknown,
}

/// Location of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FindingLocation {
    /// The client.
    Client,
    /// The server.
    Server,
    /// Both ends.
    Both,
    /// The path between them.
    Path,
}

impl From<Role> for FindingLocation {
    fn from(role: Role) -> Self {
        match role {
            Role::Client => Self::Client,
            Role::Server => Self::Server,
        }
    }
}

/// Value of an evidence: a number or a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EvidenceValue {
    /// An integer.
    Count(u64),
    /// Any other number.
    Number(f64),
    /// A text, as the kernel prints it.
    Text(String),
}

/// A value that supports a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Name of the value: a counter by the kernel's name or ours, a setting, a figure of the run.
    pub counter: String,
    /// The value; absent if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<EvidenceValue>,
    /// Unit of the value: `ns`, `B`, `bit/s`, `share`, `packets`, …; empty for texts and plain
    /// counts.
    pub unit: String,
    /// Source of the value: `server TCP_INFO`, `client /proc/stat`, `plan`.
    #[serde(alias = "read")]
    pub source: String,
    /// Reason for a missing value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Cause, limit or unknown.
    pub kind: FindingKind,
    /// Kebab-case id, stable for scripts: docs/CAUSES.md has a section for each.
    pub cause: StoredId<CauseId>,
    /// Location of the cause.
    pub end: FindingLocation,
    /// Payload direction that is affected; absent: the full run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Cost as a share of the run, 0 to 1: of its time, its packets, or the payload it could have
    /// carried (see docs/CAUSES.md). Findings are sorted by it.
    pub cost: f64,
    /// Id of the finding that causes this one.
    #[serde(default)]
    pub follows_from: Option<StoredId<CauseId>>,
    /// Cause as a sentence for users.
    #[serde(alias = "what")]
    pub summary: String,
    /// Evidence of the cause.
    pub evidence: Vec<Evidence>,
    /// Remedy as a sentence for users.
    pub remedy: String,
    /// Exact command or setting to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// True if the command measures to `linerate server`, which the server of the run is not: start
    /// it first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_our_server: bool,
    /// Remedies of this kind that the run already used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
    /// Effect of the remedy: the figure after over the figure before, of goodput or of round trips
    /// per second (2 is twice as good). An upper bound, unless `gain_is_estimate`; absent if there is
    /// no estimate.
    #[serde(default)]
    pub gain: Option<f64>,
    /// True if `gain` is no upper bound: the remedy may change more than its formula knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gain_is_estimate: bool,
    /// Formula of the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_formula: Option<String>,
}

impl Finding {
    /// Returns true for a cause: a healthy run has none.
    #[must_use]
    pub fn is_cause(&self) -> bool {
        self.kind == FindingKind::Cause
    }
}
