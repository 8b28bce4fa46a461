//! How a command fails: what to say, and the exit code that tells scripts the kind of it.

use crate::command_line;
use linerate_lab::{LabError, TopologyError};
use linerate_measure::MeasureError;
use linerate_measure::forward::PortError;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_report::ReportError;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// What happened, to what, and what to do.
    pub problem: Problem,
    /// A code of [`exit`].
    pub code: u8,
}

impl Failure {
    /// The command line makes no sense.
    pub fn usage(problem: Problem) -> Self {
        Self {
            problem,
            code: exit::USAGE,
        }
    }

    /// Names the variable of the environment that set an option, where the words of the command did not: who
    /// set it for other commands finds it then.
    pub fn of_option(mut self, option: &str) -> Self {
        if let Some(variable) = command_line::variable_of(option) {
            let said = format!("--{option} ");
            if let Some(value) = self.problem.object.strip_prefix(&said) {
                self.problem.object = format!("{variable}={value}");
            }
            let next = &self.problem.next_step;
            self.problem.next_step = format!(
                "{next}; {variable} in the environment sets --{option}: unset it, or say --{option}"
            );
        }
        self
    }

    /// Something that should work did not.
    pub fn failed(problem: Problem) -> Self {
        Self {
            problem,
            code: exit::FAILED,
        }
    }
}

impl From<MeasureError> for Failure {
    fn from(error: MeasureError) -> Self {
        Self {
            problem: error.problem(),
            code: error.exit_code(),
        }
    }
}

impl From<&PortError> for Failure {
    fn from(error: &PortError) -> Self {
        Self {
            problem: error.problem(),
            code: error.exit_code(),
        }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        let code = if error.is_missing_privilege() {
            exit::MISSING
        } else if matches!(error, LabError::Topology(_)) {
            exit::USAGE
        } else {
            error.command_exit_code().unwrap_or(exit::FAILED)
        };
        Self {
            problem: error.problem(),
            code,
        }
    }
}

impl From<TopologyError> for Failure {
    fn from(error: TopologyError) -> Self {
        LabError::from(error).into()
    }
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Self {
        if error.is_broken_pipe() {
            // Whoever was to read the result is gone: nobody reads of a failure either.
            linerate_host::stop::end_by_sigpipe();
        }
        Self::failed(error.problem())
    }
}
