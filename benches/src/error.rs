//! Errors that prevent a row from being measured.

use std::io;

use linerate_lab::LabError;

#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The row is skipped, which is not a failure.
    #[error("{why}")]
    Skip {
        /// Missing requirement and how to install it.
        why: String,
    },
    /// The options are invalid.
    #[error("{0}")]
    Usage(String),
    /// The lab could not be built or entered.
    #[error("{}", .0.full_text())]
    Lab(#[from] LabError),
    /// A program failed.
    #[error("{program}: {what}")]
    Program {
        program: String,
        /// Description of the failure, with the program's last output.
        what: String,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// Action that failed.
        doing: String,
        source: io::Error,
    },
}

impl Trouble {
    /// Error that skips a row.
    pub fn skip(why: impl Into<String>) -> Self {
        Self::Skip { why: why.into() }
    }

    /// Error for invalid options.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Error for a program that failed.
    pub fn program(program: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Program {
            program: program.into(),
            what: what.into(),
        }
    }

    /// Error for a failed system call.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }
}
