//! What happens while a run goes on, as data: the engine emits these, `report` renders them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::capacity::CapacityTrial;
use crate::plan::{Cpus, Ends, Plan, Wait};
use crate::record::{Doubt, Interval, Record};
use crate::set::Trial;
use crate::stack::StackInterval;

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
    /// An interval of a host on our own stack ended.
    StackInterval {
        /// What was counted in it.
        interval: Box<StackInterval>,
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

/// Reads a line of `--json-stream` of a run: `tell` has what happened; a line that ends the run gives the
/// document that `--json` would have printed in its place.
pub fn read_line(line: &str, tell: &mut dyn FnMut(Event)) -> Option<String> {
    let Ok(mut value) = serde_json::from_str::<Value>(line) else {
        return Some(line.to_owned());
    };
    let test = value["test"].as_u64().unwrap_or(0);
    let test = u32::try_from(test).unwrap_or(u32::MAX);
    match value["event"].as_str() {
        Some("finished") => {
            let document = value["record"].take();
            if let Ok(record) = Record::deserialize(&document) {
                let record = Box::new(record);
                let what = What::Finished { record };
                tell(Event { test, what });
            }
            Some(document.to_string())
        }
        Some("failed") => Some(json!({ "error": value["problem"] }).to_string()),
        Some(_) => {
            // What a newer version tells besides is for newer readers.
            Event::deserialize(value).into_iter().for_each(tell);
            None
        }
        None => Some(line.to_owned()),
    }
}

/// What ends a next step where a command of its own may wait for whoever does not listen yet.
pub const WAIT_FOR_IT: &str = ", or wait for it with --retry 5s";

/// A failure as people and scripts need it: the situation, the object, the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// What went wrong, as a sentence fragment.
    pub situation: String,
    /// Which host, port, option, file it is about.
    pub object: String,
    /// What to do now.
    pub next_step: String,
    /// What asking again comes to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

/// What asking again comes to after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Again {
    /// It may pass by itself: nobody listens yet, or there is no room.
    MayPass,
    /// It stays, whatever is measured: another key, another program, no such host.
    Stays,
    /// It stays for whatever names the same object: an interface that is not there.
    StaysForObject,
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
            again: None,
        }
    }

    /// The same with what asking again comes to.
    #[must_use]
    pub fn asking_again(self, again: Option<Again>) -> Self {
        Self { again, ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.situation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_back_to_the_document_that_it_ends_with() {
        let mut told = Vec::new();
        let mut read = |line: &str| read_line(line, &mut |event| told.push(event));
        let awaited = r#"{"schema":"linerate/event/1","time":"2026-01-01T00:00:00Z","test":1,"event":"awaited","what":"x"}"#;
        assert_eq!(read(awaited), None);
        assert_eq!(read(r#"{"test":1,"event":"of-a-newer-version"}"#), None);
        let problem = Problem::new("refused", "far", "start it");
        let failed = Event {
            test: 1,
            what: What::Failed {
                problem: problem.clone(),
            },
        };
        let failed = serde_json::to_string(&failed).unwrap();
        let document: Value = serde_json::from_str(&read(&failed).unwrap()).unwrap();
        assert_eq!(document["error"]["object"], "far");
        let record = include_str!("../../report/tests/fixtures/run-1.json");
        let record: Record = serde_json::from_str(record).unwrap();
        let finished = Event {
            test: 1,
            what: What::Finished {
                record: Box::new(record.clone()),
            },
        };
        let finished = serde_json::to_string(&finished).unwrap();
        let document = read(&finished).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&document).unwrap(), record);
        // The document of a set stands on a line as it is; so does whatever is none of ours.
        for other in [r#"{"schema":"linerate/set/1","runs":[]}"#, "no json"] {
            assert_eq!(read(other).as_deref(), Some(other));
        }
        let awaited = Event {
            test: 1,
            what: What::Awaited {
                what: "x".to_owned(),
            },
        };
        assert_eq!(told, [awaited, serde_json::from_str(&finished).unwrap()]);
    }
}
