//! Error of a run over frame ports.

use std::io;

use linerate_packet::template::TemplateError;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_sys::error_report;
use linerate_sys::frames::FrameRegionError;
use linerate_sys::spawn::SpawnError;

use crate::error::PortError;

/// Error of forwarding or generating: situation, object and next step are fields.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each text names the situation and its fields")]
pub enum FrameRunError {
    /// Ports, threads, files and settings that do not fit together.
    #[error("{object}: {situation}")]
    Setup {
        object: String,
        situation: String,
        next_step: String,
    },
    /// A requested option that this host does not support or permit.
    #[error("{option}: {why}")]
    OptionRejected {
        option: String,
        why: String,
        next_step: String,
    },
    /// Options that exclude each other.
    #[error("{option}: {why}")]
    Unsupported {
        option: String,
        why: String,
        next_step: String,
    },
    /// A port cannot be opened, or failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A thread cannot be started.
    #[error(transparent)]
    Thread(#[from] SpawnError),
    /// A system call failed unexpectedly.
    #[error("{action}: {source}")]
    System { action: String, source: io::Error },
}

impl From<FrameRegionError> for FrameRunError {
    fn from(error: FrameRegionError) -> Self {
        Self::Port(error.into())
    }
}

impl From<TemplateError> for FrameRunError {
    fn from(error: TemplateError) -> Self {
        let text = error.to_string();
        let (situation, next_step) = text.split_once(": ").unwrap_or((text.as_str(), ""));
        Self::Setup {
            object: "frame options".to_owned(),
            situation: situation.to_owned(),
            next_step: next_step.to_owned(),
        }
    }
}

impl FrameRunError {
    /// Wraps the error of a system call that should work.
    pub fn system(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        Self::System { action, source }
    }

    /// Returns the process exit code of the error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Setup { .. } | Self::Unsupported { .. } => exit_codes::USAGE,
            Self::OptionRejected { .. } => exit_codes::MISSING,
            Self::Port(error) => error.exit_code(),
            Self::Thread(_) | Self::System { .. } => exit_codes::FAILED,
        }
    }

    /// Returns the situation, the object and the next step.
    #[must_use]
    pub fn to_report(&self) -> ErrorReport {
        match self {
            Self::Setup {
                object,
                situation,
                next_step,
            } => ErrorReport::new(situation, object, next_step),
            Self::OptionRejected {
                option,
                why,
                next_step,
            }
            | Self::Unsupported {
                option,
                why,
                next_step,
            } => ErrorReport::new(why, option, next_step),
            Self::Port(error) => error.to_report().with_retryable(error.retryable()),
            Self::Thread(SpawnError { thread, source }) => error_report::thread(thread, source),
            Self::System { action, source } => error_report::system_call(action, source),
        }
    }
}
