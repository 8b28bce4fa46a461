//! Errors that prevent a row from being measured.

use std::io;

use linerate_lab::LabError;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The row is skipped, which is not a failure.
    #[error("{reason}")]
    Skip {
        /// Missing requirement and how to install it.
        reason: String,
    },
    /// The options are invalid.
    #[error("{0}")]
    InvalidOption(String),
    /// The lab could not be built or entered.
    #[error("{}", .0.full_text())]
    Lab(#[from] LabError),
    /// A program failed.
    #[error("{program}: {description}")]
    ProgramFailed {
        program: String,
        /// Description of the failure, with the program's last output.
        description: String,
    },
    /// A system call failed.
    #[error("{action}: {source}")]
    SystemCall {
        /// Action that failed.
        action: String,
        source: io::Error,
    },
}

impl BenchError {
    /// Error that skips a row.
    pub fn skip(reason: impl Into<String>) -> Self {
        Self::Skip {
            reason: reason.into(),
        }
    }

    /// Error for invalid options.
    pub fn invalid_option(text: impl Into<String>) -> Self {
        Self::InvalidOption(text.into())
    }

    /// Error for a program that failed.
    pub fn program_failed(program: impl Into<String>, description: impl Into<String>) -> Self {
        Self::ProgramFailed {
            program: program.into(),
            description: description.into(),
        }
    }

    /// Error for a failed system call.
    pub fn system_call(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::SystemCall { action, source }
    }
}
