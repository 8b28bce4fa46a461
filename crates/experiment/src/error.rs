//! Errors of experiments, with the next step.

use linerate_lab::LabError;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;

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
    #[error("{section}: {situation}; {next_step}")]
    InvalidContent {
        /// Part of the file.
        section: String,
        /// Line of the error, from 1; `None` if it could not be located.
        line: Option<usize>,
        situation: String,
        next_step: String,
    },
    /// `--on` was given, but the experiment measures within one machine.
    #[error("the experiment measures within one machine: leave out --on")]
    RunsOnOneMachine,
    /// `--point` selects a point that the experiment does not have.
    #[error("`{requested}` is not a point of the experiment: {available}")]
    UnknownPoint {
        requested: String,
        /// Points or values that exist.
        available: String,
    },
    /// The lab network could not be built.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A remote program did not start.
    #[error("`{command}` did not start: {reason}")]
    RemoteProgram {
        command: String,
        /// Error output of the program.
        reason: String,
    },
    /// The port in `--on` is invalid.
    #[error("{host}: `{port}` is not a port")]
    InvalidPort {
        /// The argument of `--on`.
        host: String,
        /// The argument without the port.
        name: String,
        /// Text in place of the port.
        port: String,
    },
    /// The argument of `--on` is not a host.
    #[error("--on {host} names no host")]
    InvalidHost { host: String },
    /// Knobs that can only be set manually on real hosts still have several values.
    #[error(
        "{knobs} cannot be set on real hosts: add the points one by one, --point {example} --label NAME"
    )]
    NeedsManualSetup {
        knobs: String,
        /// Example with a value of each knob.
        example: String,
    },
    /// An error that every point would repeat.
    #[error("{problem}; every point would fail the same way")]
    FailsAtEveryPoint {
        /// Error of the first point.
        problem: Box<ErrorReport>,
        /// Exit code of the command that failed.
        code: u8,
    },
    /// No point could be measured.
    #[error("no point could be measured: {reason}")]
    NothingMeasured {
        /// Error of the first point.
        reason: String,
        /// Next step for that error; empty if it applies to another machine.
        next_step: String,
        /// Exit code of the command that failed.
        code: u8,
    },
}

impl ExperimentError {
    /// Error for an inconsistency in the file.
    pub(crate) fn invalid_content(
        section: impl Into<String>,
        situation: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self::InvalidContent {
            section: section.into(),
            line: None,
            situation: situation.into(),
            next_step: next_step.into(),
        }
    }

    /// Returns the error as situation, object and next step.
    #[must_use]
    pub fn to_report(&self) -> ErrorReport {
        match self {
            Self::Syntax { error, line } => ErrorReport::new(
                format!("not an experiment file ({})", error.message()),
                format!("line {line}"),
                "`linerate run udp-hops --print` shows one that works",
            ),
            Self::InvalidContent {
                section,
                line,
                situation,
                next_step,
            } => {
                let object = match line {
                    Some(line) => format!("line {line}: {section}"),
                    None => section.clone(),
                };
                ErrorReport::new(situation.clone(), object, next_step.clone())
            }
            Self::RunsOnOneMachine => ErrorReport::new(
                "the experiment measures within one machine",
                "--on",
                "leave it out",
            ),
            Self::UnknownPoint {
                requested,
                available,
            } => ErrorReport::new(
                "not a point of the experiment",
                format!("`{requested}`"),
                format!("use {available}"),
            ),
            Self::Lab(error) => error.to_report(),
            Self::RemoteProgram { command, reason } => ErrorReport::new(
                format!("did not start ({reason})"),
                format!("`{command}`"),
                "run it by hand to see the error",
            ),
            Self::InvalidPort { host, name, port } => ErrorReport::new(
                format!("`{port}` is not a port"),
                format!("--on {host}"),
                format!("use --on {name}, or append the port of `linerate server`: 1 to 65535"),
            ),
            Self::InvalidHost { host } => ErrorReport::new(
                "names no host",
                format!("--on {host}"),
                "use --on HOST or --on HOST:PORT, with a name or an address",
            ),
            Self::NeedsManualSetup { knobs, example } => ErrorReport::new(
                "cannot be set on real hosts automatically",
                knobs.clone(),
                format!(
                    "set it by hand and add each point to a table: --point {example} --label NAME"
                ),
            ),
            Self::FailsAtEveryPoint { problem, .. } => ErrorReport::new(
                format!(
                    "{} (every point would fail the same way)",
                    problem.situation
                ),
                problem.object.clone(),
                problem.next_step.clone(),
            ),
            // Commands that measure a single point, such as `tune`, show only the situation to
            // their users.
            Self::NothingMeasured {
                reason, next_step, ..
            } => ErrorReport::new(
                format!("no point could be measured; reason of the first: {reason}"),
                "the experiment",
                match next_step.is_empty() {
                    true => "fix that, or measure other points (--point KNOB=VALUE)".to_owned(),
                    false => next_step.clone(),
                },
            ),
        }
    }

    /// Like [`ExperimentError::to_report`]; errors in the text also name the file.
    #[must_use]
    pub fn to_report_in_file(&self, file: &str) -> ErrorReport {
        let mut problem = self.to_report();
        if matches!(self, Self::Syntax { .. } | Self::InvalidContent { .. }) {
            problem.object = format!("{file}: {}", problem.object);
        }
        problem
    }

    /// Exit code for this kind of error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Syntax { .. }
            | Self::InvalidContent { .. }
            | Self::RunsOnOneMachine
            | Self::UnknownPoint { .. }
            | Self::InvalidPort { .. }
            | Self::InvalidHost { .. }
            | Self::NeedsManualSetup { .. } => exit_codes::USAGE,
            Self::FailsAtEveryPoint { code, .. } | Self::NothingMeasured { code, .. } => *code,
            Self::Lab(error) if error.is_missing_privilege() => exit_codes::MISSING,
            Self::Lab(_) | Self::RemoteProgram { .. } => exit_codes::FAILED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that measure a single point show only the situation.
    #[test]
    fn why_no_point_could_be_measured_is_the_situation() {
        for (next_step, expected) in [("", "--point"), ("start it", "start it")] {
            let error = ExperimentError::NothingMeasured {
                reason: "`make flash` failed".to_owned(),
                next_step: next_step.to_owned(),
                code: 1,
            };
            let problem = error.to_report();
            assert!(
                problem.situation.contains("`make flash` failed"),
                "{problem}"
            );
            assert!(problem.next_step.contains(expected), "{problem:?}");
        }
    }
}
