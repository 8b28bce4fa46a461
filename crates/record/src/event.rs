//! Events of a run in progress, as data: the engine emits them, `report` prints them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::capacity::CapacityTrial;
use crate::plan::{CpuList, PerEnd, Plan, WaitMode};
use crate::record::{Caveat, Interval, Record};
use crate::run_set::RateSearchTrial;
use crate::stack::StackInterval;

/// An event and its test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Number of the test within the process, from 1; 0 for the process itself.
    pub test: u32,
    /// Kind of the event with its data.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Kinds of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventKind {
    /// The server accepts connections.
    Ready {
        /// Listen port.
        port: u16,
        /// Listen addresses.
        addresses: Vec<String>,
        /// Additional listen ports, of other protocols.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[serde(alias = "also")]
        other_ports: Vec<u16>,
    },
    /// The control connection is established.
    Connected {
        /// Address and port of the peer.
        peer: String,
        /// Program and version of the peer (`linerate 0.1.0`).
        agent: String,
        /// True if the peer opened the connection.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        accepted: bool,
    },
    /// Both ends are about to send payload.
    Started {
        /// Every effective option.
        plan: Box<Plan>,
        /// Wait mode of each end.
        wait: PerEnd<WaitMode>,
        /// Processors of each end's threads.
        cpu: PerEnd<CpuList>,
        /// Reason for the wait mode, if the user did not request one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(alias = "because")]
        wait_reason: Option<String>,
    },
    /// An interval of one direction ended.
    Interval {
        /// Figures of the interval.
        interval: Box<Interval>,
    },
    /// An interval of a host on the user-space stack ended.
    StackInterval {
        /// Counters of the interval.
        interval: Box<StackInterval>,
    },
    /// A caveat of the figures to come was detected.
    #[serde(rename = "caveat", alias = "doubted")]
    CaveatRaised {
        /// The caveat.
        #[serde(alias = "doubt")]
        caveat: Caveat,
    },
    /// Another pass of the run starts, whose figures explain those of the first.
    Pass {
        /// Number of the pass; the first one gives the figures.
        pass: u32,
        /// Number of passes.
        passes: u32,
        /// Data that this pass records.
        notes: String,
    },
    /// Payload is complete, and the result waits for something slow.
    #[serde(alias = "awaited")]
    Waiting {
        /// Activity that it waits for.
        #[serde(alias = "what")]
        activity: String,
    },
    /// The server rejected a requested setting; the next step names the server option that would
    /// allow it.
    Refused {
        /// Rejected setting, its client, and the option that would allow it.
        problem: ErrorReport,
    },
    /// A trial of a rate search ended.
    Trial {
        /// Result of the trial.
        trial: Box<RateSearchTrial>,
    },
    /// A trial of a capacity measurement ended.
    CapacityTrial {
        /// Result of the trial.
        trial: Box<CapacityTrial>,
    },
    /// The run ended.
    Finished {
        /// Record of the run.
        record: Box<Record>,
    },
    /// The test ended without a result.
    Failed {
        /// Situation, object and next step.
        problem: ErrorReport,
    },
}

/// Parses one line of a run's `--json-stream` and passes its event to the callback. For a line that
/// ends the run, returns the document that `--json` would have printed.
pub fn read_line(line: &str, emit: &mut dyn FnMut(Event)) -> Option<String> {
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
                let kind = EventKind::Finished { record };
                emit(Event { test, kind });
            }
            Some(document.to_string())
        }
        Some("failed") => Some(json!({ "error": value["problem"] }).to_string()),
        Some(_) => {
            // Unknown events of newer versions are skipped.
            Event::deserialize(value).into_iter().for_each(emit);
            None
        }
        None => Some(line.to_owned()),
    }
}

/// Suffix of a next step for commands that can retry until the peer listens.
pub const RETRY_HINT: &str = ", or wait for it with --retry 5s";

/// An error in the form that users and scripts need: situation, object, next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// Error as a sentence fragment.
    pub situation: String,
    /// Host, port, option or file concerned.
    pub object: String,
    /// Action that solves the problem.
    pub next_step: String,
    /// Result to expect from a retry, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(alias = "again")]
    pub retryable: Option<Retryable>,
}

/// Result to expect from a retry after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Retryable {
    /// A retry may succeed: the port has no listener yet, or the server is full.
    #[serde(alias = "may-pass")]
    Transient,
    /// A retry fails, whatever is measured: wrong key, another program, unknown host.
    #[serde(alias = "stays")]
    Permanent,
    /// A retry fails for every run that names the same object: a missing interface.
    #[serde(alias = "stays-for-object")]
    PermanentForObject,
}

impl ErrorReport {
    /// Creates an error from its three parts.
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
            retryable: None,
        }
    }

    /// Returns the error with the expected result of a retry.
    #[must_use]
    pub fn with_retryable(self, retryable: Option<Retryable>) -> Self {
        Self { retryable, ..self }
    }
}

impl std::fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.situation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_back_to_the_document_that_it_ends_with() {
        let mut events = Vec::new();
        let mut read = |line: &str| read_line(line, &mut |event| events.push(event));
        let awaited = r#"{"schema":"linerate/event/1","time":"2026-01-01T00:00:00Z","test":1,"event":"awaited","what":"x"}"#;
        assert_eq!(read(awaited), None);
        assert_eq!(read(r#"{"test":1,"event":"of-a-newer-version"}"#), None);
        let problem = ErrorReport::new("refused", "far", "start it");
        let failed = Event {
            test: 1,
            kind: EventKind::Failed {
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
            kind: EventKind::Finished {
                record: Box::new(record.clone()),
            },
        };
        let finished = serde_json::to_string(&finished).unwrap();
        let document = read(&finished).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&document).unwrap(), record);
        // Documents of a set, and lines of other programs, are returned unchanged.
        for text in [r#"{"schema":"linerate/set/1","runs":[]}"#, "no json"] {
            assert_eq!(read(text).as_deref(), Some(text));
        }
        let awaited = Event {
            test: 1,
            kind: EventKind::Waiting {
                activity: "x".to_owned(),
            },
        };
        assert_eq!(events, [awaited, serde_json::from_str(&finished).unwrap()]);
    }

    /// Lines of commit b37400c, before the renaming of keys.
    #[test]
    fn events_with_earlier_keys_load() {
        let warning = r#"{"doubt":"steal","why":"it was"}"#;
        let ready = r#"{"event":"ready","port":1,"addresses":[],"KEY":[2]}"#;
        let doubted = format!(r#"{{"event":"doubted","doubt":{warning}}}"#);
        let caveat = format!(r#"{{"event":"caveat","caveat":{warning}}}"#);
        for (earlier, present) in [
            (
                ready.replace("KEY", "also"),
                ready.replace("KEY", "other_ports"),
            ),
            (doubted, caveat),
            (
                r#"{"event":"awaited","what":"x"}"#.to_owned(),
                r#"{"event":"waiting","activity":"x"}"#.to_owned(),
            ),
        ] {
            let event: EventKind = serde_json::from_str(&earlier).expect(&earlier);
            let written = serde_json::to_value(&event).unwrap();
            let expected: Value = serde_json::from_str(&present).unwrap();
            assert_eq!(written, expected, "{earlier}");
        }
        for (earlier, expected) in [
            ("may-pass", Retryable::Transient),
            ("stays", Retryable::Permanent),
            ("stays-for-object", Retryable::PermanentForObject),
        ] {
            let value = json!({
                "situation": "refused", "object": "far", "next_step": "start it", "again": earlier,
            });
            let report = ErrorReport::deserialize(value).unwrap();
            assert_eq!(report.retryable, Some(expected), "{earlier}");
        }
    }
}
