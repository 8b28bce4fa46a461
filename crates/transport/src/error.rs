//! Errors of starting a transport.

use std::io;

use linerate_port::PortError;
use linerate_stack::StackError;
use linerate_sys::frames::FrameRegionError;

/// Error of a transport or of the stack under it, before payload moves.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A requested option that this host does not support or permit.
    #[error("{option}: {why}")]
    OptionRejected {
        /// The option as it was written.
        option: String,
        why: String,
        next_step: String,
    },
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Stack(Box<StackError>),
    /// A system call failed unexpectedly.
    #[error("{action}: {source}")]
    System {
        /// The operation.
        action: String,
        source: io::Error,
    },
}

impl TransportError {
    /// Wraps the error of a system call that should work.
    pub fn system(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        Self::System { action, source }
    }
}

impl From<FrameRegionError> for TransportError {
    fn from(error: FrameRegionError) -> Self {
        Self::Port(error.into())
    }
}

impl From<StackError> for TransportError {
    fn from(error: StackError) -> Self {
        match error {
            StackError::Port(error) => Self::Port(error),
            error => Self::Stack(Box::new(error)),
        }
    }
}
