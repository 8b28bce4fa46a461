//! What can go wrong with an experiment, with the next step.

use linerate_lab::LabError;
use linerate_metric::event::Problem;
use linerate_metric::exit;

/// Why an experiment was not run.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The text is no experiment.
    #[error("line {line}: no experiment: {error}")]
    Syntax {
        /// What its reader says.
        error: Box<toml::de::Error>,
        /// The line on which it stopped, from 1.
        line: usize,
    },
    /// It names something that it does not have.
    #[error("{place}: {situation}; {next_step}")]
    Content {
        /// Which part of the file.
        place: String,
        /// The line that it is about, from 1, where that shows.
        line: Option<usize>,
        /// What is wrong there.
        situation: String,
        /// What to write instead.
        next_step: String,
    },
    /// It stays within one machine, and somebody asked for a host (`--on`).
    #[error("it measures within one machine: leave out --on")]
    StaysHere,
    /// A setting that somebody asked for (`--point`) is none of it.
    #[error("`{asked}` is no point of it: {known}")]
    NoSuchPoint {
        /// What was asked.
        asked: String,
        /// What there is.
        known: String,
    },
    /// Its network could not be built.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A far end did not come up.
    #[error("`{command}` did not start: {why}")]
    Far {
        /// Its command line.
        command: String,
        /// What it said.
        why: String,
    },
    /// What `--on` names has something behind it that is no port.
    #[error("{host}: `{port}` is no port")]
    PortOfHost {
        /// As it was named.
        host: String,
        /// That without it.
        name: String,
        /// What stands behind it.
        port: String,
    },
    /// `--on` names no host.
    #[error("--on {host} names no host")]
    NoHost {
        /// As it was named.
        host: String,
    },
    /// Knobs that only hands can set have several values left.
    #[error(
        "{knobs} cannot be set on real hosts: add the points one by one, --point {example} --label NAME"
    )]
    NeedsHands {
        /// The knobs.
        knobs: String,
        /// One setting as an example.
        example: String,
    },
    /// A mistake that every point would repeat.
    #[error("{problem}; it would be so at every point")]
    Stays {
        /// What happened at the first one, to what, and what to do.
        problem: Box<Problem>,
        /// The exit code of the command that told it.
        code: u8,
    },
    /// Not one point could be measured.
    #[error("no point could be measured: {why}")]
    Nothing {
        /// Why the first one was not.
        why: String,
        /// What to do about that; empty where it is for another machine.
        next_step: String,
        /// The exit code of the command that told it.
        code: u8,
    },
}

impl ExperimentError {
    /// Something that the file names and does not have.
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

    /// The situation, the object and the next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::Syntax { error, line } => Problem::new(
                format!("no experiment ({})", error.message()),
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
                "no point of the experiment",
                format!("`{asked}`"),
                format!("use {known}"),
            ),
            Self::Lab(error) => error.problem(),
            Self::Far { command, why } => Problem::new(
                format!("did not start ({why})"),
                format!("`{command}`"),
                "run it by hand to see what it lacks",
            ),
            Self::PortOfHost { host, name, port } => Problem::new(
                format!("`{port}` is no port"),
                format!("--on {host}"),
                format!(
                    "say --on {name}, or put the port of `linerate server` behind it: 1 to 65535"
                ),
            ),
            Self::NoHost { host } => Problem::new(
                "names no host",
                format!("--on {host}"),
                "say --on HOST or --on HOST:PORT, with a name or an address",
            ),
            Self::NeedsHands { knobs, example } => Problem::new(
                "cannot be set on real hosts by a program",
                knobs.clone(),
                format!(
                    "set it by hand and add each point to a table: --point {example} --label NAME"
                ),
            ),
            Self::Stays { problem, .. } => Problem::new(
                format!("{} (it would be so at every point)", problem.situation),
                problem.object.clone(),
                problem.next_step.clone(),
            ),
            // Whoever measures one point of it, as `tune` does, tells its user the situation alone.
            Self::Nothing { why, next_step, .. } => Problem::new(
                format!("no point could be measured; the first one: {why}"),
                "the experiment",
                match next_step.is_empty() {
                    true => "mend that, or measure other points (--point KNOB=VALUE)".to_owned(),
                    false => next_step.clone(),
                },
            ),
        }
    }

    /// The same where the experiment came from a file: what is wrong with its text names it.
    #[must_use]
    pub fn problem_in(&self, file: &str) -> Problem {
        let mut problem = self.problem();
        if matches!(self, Self::Syntax { .. } | Self::Content { .. }) {
            problem.object = format!("{file}: {}", problem.object);
        }
        problem
    }

    /// The exit code that tells scripts the kind of it.
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

    /// Who measures one point of an experiment tells its user what is wrong, and no more.
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
