//! Errors of experiments, with the next step.

use linerate_lab::LabError;
use linerate_metric::event::Problem;
use linerate_metric::exit;

/// Reason why an experiment was not run.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The text is not valid TOML, or has unknown or missing keys.
    #[error("line {line}: not an experiment file: {error}")]
    Syntax {
        error: Box<toml::de::Error>,
        /// Line of the error, from 1.
        line: usize,
    },
    /// The file is inconsistent, for example refers to something that it does not define.
    #[error("{place}: {situation}; {next_step}")]
    Content {
        /// Part of the file.
        place: String,
        /// Line of the error, from 1; `None` if it could not be located.
        line: Option<usize>,
        situation: String,
        next_step: String,
    },
    /// `--on` was given, but the experiment measures within one machine.
    #[error("the experiment measures within one machine: leave out --on")]
    StaysHere,
    /// `--point` selects a point that the experiment does not have.
    #[error("`{asked}` is not a point of the experiment: {known}")]
    NoSuchPoint {
        asked: String,
        /// Points or values that exist.
        known: String,
    },
    /// The lab network could not be built.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A remote program did not start.
    #[error("`{command}` did not start: {why}")]
    Far {
        command: String,
        /// Error output of the program.
        why: String,
    },
    /// The port in `--on` is invalid.
    #[error("{host}: `{port}` is not a port")]
    PortOfHost {
        /// The argument of `--on`.
        host: String,
        /// The argument without the port.
        name: String,
        /// Text in place of the port.
        port: String,
    },
    /// The argument of `--on` is not a host.
    #[error("--on {host} names no host")]
    NoHost { host: String },
    /// Knobs that can only be set manually on real hosts still have several values.
    #[error(
        "{knobs} cannot be set on real hosts: add the points one by one, --point {example} --label NAME"
    )]
    NeedsHands {
        knobs: String,
        /// Example with a value of each knob.
        example: String,
    },
    /// An error that every point would repeat.
    #[error("{problem}; every point would fail the same way")]
    Stays {
        /// Error of the first point.
        problem: Box<Problem>,
        /// Exit code of the command that failed.
        code: u8,
    },
    /// No point could be measured.
    #[error("no point could be measured: {why}")]
    Nothing {
        /// Error of the first point.
        why: String,
        /// Next step for that error; empty if it applies to another machine.
        next_step: String,
        /// Exit code of the command that failed.
        code: u8,
    },
}

impl ExperimentError {
    /// Error for an inconsistency in the file.
    pub(crate) fn content(
        place: impl Into<String>,
        situation: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self::Content {
            place: place.into(),
            line: None,
            situation: situation.into(),
            next_step: next_step.into(),
        }
    }

    /// Returns the error as situation, object and next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::Syntax { error, line } => Problem::new(
                format!("not an experiment file ({})", error.message()),
                format!("line {line}"),
                "`linerate run udp-hops --print` shows one that works",
            ),
            Self::Content {
                place,
                line,
                situation,
                next_step,
            } => {
                let object = match line {
                    Some(line) => format!("line {line}: {place}"),
                    None => place.clone(),
                };
                Problem::new(situation.clone(), object, next_step.clone())
            }
            Self::StaysHere => Problem::new(
                "the experiment measures within one machine",
                "--on",
                "leave it out",
            ),
            Self::NoSuchPoint { asked, known } => Problem::new(
                "not a point of the experiment",
                format!("`{asked}`"),
                format!("use {known}"),
            ),
            Self::Lab(error) => error.problem(),
            Self::Far { command, why } => Problem::new(
                format!("did not start ({why})"),
                format!("`{command}`"),
                "run it by hand to see the error",
            ),
            Self::PortOfHost { host, name, port } => Problem::new(
                format!("`{port}` is not a port"),
                format!("--on {host}"),
                format!("use --on {name}, or append the port of `linerate server`: 1 to 65535"),
            ),
            Self::NoHost { host } => Problem::new(
                "names no host",
                format!("--on {host}"),
                "use --on HOST or --on HOST:PORT, with a name or an address",
            ),
            Self::NeedsHands { knobs, example } => Problem::new(
                "cannot be set on real hosts automatically",
                knobs.clone(),
                format!(
                    "set it by hand and add each point to a table: --point {example} --label NAME"
                ),
            ),
            Self::Stays { problem, .. } => Problem::new(
                format!(
                    "{} (every point would fail the same way)",
                    problem.situation
                ),
                problem.object.clone(),
                problem.next_step.clone(),
            ),
            // Commands that measure a single point, such as `tune`, show only the situation to
            // their users.
            Self::Nothing { why, next_step, .. } => Problem::new(
                format!("no point could be measured; the first one: {why}"),
                "the experiment",
                match next_step.is_empty() {
                    true => "fix that, or measure other points (--point KNOB=VALUE)".to_owned(),
                    false => next_step.clone(),
                },
            ),
        }
    }

    /// Like [`ExperimentError::problem`]; errors in the text also name the file.
    #[must_use]
    pub fn problem_in(&self, file: &str) -> Problem {
        let mut problem = self.problem();
        if matches!(self, Self::Syntax { .. } | Self::Content { .. }) {
            problem.object = format!("{file}: {}", problem.object);
        }
        problem
    }

    /// Exit code for this kind of error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Syntax { .. }
            | Self::Content { .. }
            | Self::StaysHere
            | Self::NoSuchPoint { .. }
            | Self::PortOfHost { .. }
            | Self::NoHost { .. }
            | Self::NeedsHands { .. } => exit::USAGE,
            Self::Stays { code, .. } | Self::Nothing { code, .. } => *code,
            Self::Lab(error) if error.is_missing_privilege() => exit::MISSING,
            Self::Lab(_) | Self::Far { .. } => exit::FAILED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that measure a single point show only the situation.
    #[test]
    fn why_no_point_could_be_measured_is_the_situation() {
        for (next_step, said) in [("", "--point"), ("start it", "start it")] {
            let error = ExperimentError::Nothing {
                why: "`make flash` failed".to_owned(),
                next_step: next_step.to_owned(),
                code: 1,
            };
            let problem = error.problem();
            assert!(
                problem.situation.contains("`make flash` failed"),
                "{problem}"
            );
            assert!(problem.next_step.contains(said), "{problem:?}");
        }
    }
}
