//! Findings: why a run was no faster, what proves it, and what to try.
//!
//! Plain data for the record. The `explain` crate makes them, from records alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::facts::Role;
use crate::plan::Direction;

/// What sort of thing was found.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// Something that can be changed and that costs. A healthy run has none.
    Cause,
    /// What the run came up against: the line, a processor, what was asked for.
    Limit,
    /// What could not be decided, because something could not be read.
    Unknown,
}

/// Where it is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The end that asked for the run.
    Client,
    /// The end that served it.
    Server,
    /// Both ends alike.
    Both,
    /// Between them.
    Path,
}

impl From<Role> for End {
    fn from(role: Role) -> Self {
        match role {
            Role::Client => Self::Client,
            Role::Server => Self::Server,
        }
    }
}

/// A number or a word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// Any other number.
    Number(f64),
    /// A word, as the kernel has it.
    Word(String),
}

/// A reading that a finding rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// What was read: a counter by the kernel's name or ours, a setting, a figure of the run.
    pub counter: String,
    /// What it said; absent: it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Unit of the value: `ns`, `B`, `bit/s`, `share`, `packets`, …; empty for words and bare counts.
    pub unit: String,
    /// Where it was read: `server TCP_INFO`, `client /proc/stat`, `plan`.
    pub read: String,
    /// Why it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Cause, limit, or not known.
    pub kind: FindingKind,
    /// Kebab-case id, stable for scripts: docs/CAUSES.md has a section for each.
    pub cause: String,
    /// Where it is.
    pub end: End,
    /// The direction of payload that it concerns; absent: all of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Share of the run that it costs, 0 to 1: of its time, of its packets, or of what it could
    /// have carried (docs/CAUSES.md says which). Findings are ordered by this.
    pub cost: f64,
    /// The finding that this one is a consequence of, by its id.
    #[serde(default)]
    pub follows_from: Option<String>,
    /// What happened, for people: a sentence.
    pub what: String,
    /// What proves it.
    pub evidence: Vec<Evidence>,
    /// What to do, for people: a sentence.
    pub remedy: String,
    /// The exact command or setting to try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What of this kind the run had already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
    /// Estimate of what the remedy gives: the figure after over the figure before, of goodput or of
    /// round trips a second (2 is twice as good); absent: nobody can say.
    #[serde(default)]
    pub gain: Option<f64>,
    /// How the estimate was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_formula: Option<String>,
}

impl Finding {
    /// Whether a healthy run would not have it.
    #[must_use]
    pub fn is_cause(&self) -> bool {
        self.kind == FindingKind::Cause
    }
}
