//! What keeps a row from being measured.

use std::io;

use linerate_lab::LabError;

/// What went wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The row is left out, and that is no failure.
    #[error("{why}")]
    Skip {
        /// What is missing and how to get it.
        why: String,
    },
    /// The settings make no sense.
    #[error("{0}")]
    Usage(String),
    /// The lab could not be built or entered.
    #[error("{}", .0.full_text())]
    Lab(#[from] LabError),
    /// A program did not do its part.
    #[error("{program}: {what}")]
    Program {
        /// Which one.
        program: String,
        /// What it did instead, with its own last words.
        what: String,
    },
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Trouble {
    /// A row that is left out.
    pub fn skip(why: impl Into<String>) -> Self {
        Self::Skip { why: why.into() }
    }

    /// Settings that make no sense.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// A program that did not do its part.
    pub fn program(program: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Program {
            program: program.into(),
            what: what.into(),
        }
    }

    /// Something the system refused.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }
}
