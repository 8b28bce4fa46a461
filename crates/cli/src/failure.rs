//! Failure of a command: an error message and an exit code for scripts. Early end of a series of
//! runs.

use linerate_lab::{LabError, TopologyError};
use linerate_port::{FrameRunError, PortError};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_report::ReportError;
use linerate_session::error::SessionError;
use linerate_transport::TransportError;

/// A failed command.
#[derive(Debug)]
pub struct CommandFailure {
    /// Situation, object and next step.
    pub problem: ErrorReport,
    /// Exit code, one of [`exit_codes`].
    pub code: u8,
}

impl CommandFailure {
    /// Creates a failure for an invalid command line.
    pub fn usage(problem: ErrorReport) -> Self {
        Self {
            problem,
            code: exit_codes::USAGE,
        }
    }

    /// Creates the failure of a command that Ctrl-C stopped before it had a result.
    pub fn interrupted() -> Self {
        SessionError::Interrupted.into()
    }

    /// Creates a failure for an operation that did not work.
    pub fn failed(problem: ErrorReport) -> Self {
        Self {
            problem,
            code: exit_codes::FAILED,
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
            problem: error.to_report(),
            code: error.exit_code(),
        }
    }
}

impl From<FrameRunError> for CommandFailure {
    fn from(error: FrameRunError) -> Self {
        Self {
            problem: error.to_report(),
            code: error.exit_code(),
        }
    }
}

impl From<&PortError> for CommandFailure {
    fn from(error: &PortError) -> Self {
        Self {
            problem: error.to_report(),
            code: error.exit_code(),
        }
    }
}

impl From<LabError> for CommandFailure {
    fn from(error: LabError) -> Self {
        let code = if error.is_missing_privilege() {
            exit_codes::MISSING
        } else if matches!(error, LabError::Topology(_)) {
            exit_codes::USAGE
        } else {
            error.command_exit_code().unwrap_or(exit_codes::FAILED)
        };
        Self {
            problem: error.to_report(),
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
            crate::standard_streams::end_with_reader();
        }
        Self::failed(error.to_report())
    }
}

/// End of a series at a run without a record.
pub enum SeriesEnd {
    /// No further run is possible.
    Failed(CommandFailure),
    /// Interrupted by Ctrl-C; the records so far are kept.
    Interrupted,
}

impl From<CommandFailure> for SeriesEnd {
    fn from(failure: CommandFailure) -> Self {
        Self::Failed(failure)
    }
}
