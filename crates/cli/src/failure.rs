//! Failure of a command: an error message and an exit code for scripts.

use linerate_lab::{LabError, TopologyError};
use linerate_port::{FrameRunError, PortError};
use linerate_record::event::ErrorReport;
use linerate_record::exit;
use linerate_report::ReportError;
use linerate_session::error::SessionError;
use linerate_transport::TransportError;

use crate::command_line;

/// A failed command.
#[derive(Debug)]
pub struct CommandFailure {
    /// Situation, object and next step.
    pub problem: ErrorReport,
    /// Exit code, one of [`exit`].
    pub code: u8,
}

impl CommandFailure {
    /// Creates a failure for an invalid command line.
    pub fn usage(problem: ErrorReport) -> Self {
        Self {
            problem,
            code: exit::USAGE,
        }
    }

    /// Adds the environment variable that set an option, unless the command line sets the option:
    /// the variable may be meant for other commands.
    pub fn with_variable(mut self, option: &str) -> Self {
        if let Some(variable) = command_line::variable_of_option(option) {
            let prefix = format!("--{option} ");
            if let Some(value) = self.problem.object.strip_prefix(&prefix) {
                self.problem.object = format!("{variable}={value}");
            }
            let next = &self.problem.next_step;
            self.problem.next_step = format!(
                "{next}; {variable} in the environment sets --{option}: unset it, or pass --{option}"
            );
        }
        self
    }

    /// Creates a failure for an operation that did not work.
    pub fn failed(problem: ErrorReport) -> Self {
        Self {
            problem,
            code: exit::FAILED,
        }
    }
}

impl From<TransportError> for CommandFailure {
    fn from(error: TransportError) -> Self {
        SessionError::from(error).into()
    }
}

impl From<SessionError> for CommandFailure {
    fn from(error: SessionError) -> Self {
        Self {
            problem: error.problem(),
            code: error.exit_code(),
        }
    }
}

impl From<FrameRunError> for CommandFailure {
    fn from(error: FrameRunError) -> Self {
        Self {
            problem: error.report(),
            code: error.exit_code(),
        }
    }
}

impl From<&PortError> for CommandFailure {
    fn from(error: &PortError) -> Self {
        Self {
            problem: error.report(),
            code: error.exit_code(),
        }
    }
}

impl From<LabError> for CommandFailure {
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

impl From<TopologyError> for CommandFailure {
    fn from(error: TopologyError) -> Self {
        LabError::from(error).into()
    }
}

impl From<ReportError> for CommandFailure {
    fn from(error: ReportError) -> Self {
        if error.is_broken_pipe() {
            // The reader of the result has closed, so an error message has no reader either.
            linerate_sys::signal::exit_by_sigpipe();
        }
        Self::failed(error.problem())
    }
}
