//! What happens while a run goes on, as data: the engine emits these, `report` renders them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capacity::CapacityTrial;
use crate::plan::{Cpus, Ends, Plan, Wait};
use crate::record::{Doubt, Interval, Record};
use crate::set::Trial;

/// Something that happened, and to which test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Number of the test within this process, from 1; 0 for the process itself.
    pub test: u32,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// The server can be reached now.
    Ready {
        /// Its port.
        port: u16,
        /// The addresses it listens on.
        addresses: Vec<String>,
        /// Ports beside its own.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<u16>,
    },
    /// The control connection stands.
    Connected {
        /// The other end's address and port.
        peer: String,
        /// What the other end says it is (`linerate 0.1.0`).
        agent: String,
    },
    /// Both ends are about to move payload.
    Started {
        /// Every effective option.
        plan: Box<Plan>,
        /// How each end waits.
        wait: Ends<Wait>,
        /// On which processors each end's threads run.
        cpu: Ends<Cpus>,
        /// Why that way of waiting was chosen, when nobody asked for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        because: Option<String>,
    },
    /// One interval of one direction ended.
    Interval {
        /// Its figures.
        interval: Box<Interval>,
    },
    /// Something speaks against the figures to come.
    Doubted {
        /// What, and why.
        doubt: Doubt,
    },
    /// Another pass of the run begins, whose figures explain those of the first.
    Pass {
        /// Its number; the run itself is 1.
        pass: u32,
        /// How many there are.
        passes: u32,
        /// What it notes.
        notes: String,
    },
    /// Payload is over, and the result waits for something else that takes its time.
    Awaited {
        /// What it waits for.
        what: String,
    },
    /// The server did not do what somebody asked for; the next step names the option that would have
    /// allowed it.
    Refused {
        /// What was refused, to whom, and what would allow it.
        problem: Problem,
    },
    /// A trial of a search is over.
    Trial {
        /// What it saw.
        trial: Box<Trial>,
    },
    /// A trial of a measurement of capacity is over.
    CapacityTrial {
        /// What it saw.
        trial: Box<CapacityTrial>,
    },
    /// The run is over.
    Finished {
        /// All of it.
        record: Box<Record>,
    },
    /// The test ended without a result.
    Failed {
        /// What happened, to what, and what to do.
        problem: Problem,
    },
}

/// A failure as people and scripts need it: the situation, the object, the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// What went wrong, as a sentence fragment.
    pub situation: String,
    /// Which host, port, option, file it is about.
    pub object: String,
    /// What to do now.
    pub next_step: String,
}

impl Problem {
    /// A problem with its three parts.
    #[must_use]
    pub fn new(
        situation: impl Into<String>,
        object: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self {
            situation: situation.into(),
            object: object.into(),
            next_step: next_step.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.situation)
    }
}
