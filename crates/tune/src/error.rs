//! What can go wrong while remedies are tried, with the next step.

use std::io;
use std::path::PathBuf;

/// Why something was not varied, changed or restored.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// What is to be varied cannot be read.
    #[error("`{text}` says nothing to vary: {why}")]
    Over {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A limit cannot be read.
    #[error("`{text}` limits no knob: {why}")]
    Limit {
        /// What was written.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A journal cannot be read or written.
    #[error("the journal {} is of no use ({source}): see who may read and write it", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A journal is being written.
    #[error("the journal {} is in use: another process is at it, wait for it or end it", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A journal ends before its first line does: its process died before it changed anything.
    #[error("the journal {} has no first line: nothing was changed by then, remove it", path.display())]
    Headless {
        /// The file.
        path: PathBuf,
    },
    /// Another process changes the same setting.
    #[error("{setting} is being changed by process {pid} as well: wait until that has ended")]
    Shared {
        /// What is changed, and of which host.
        setting: String,
        /// The process.
        pid: u32,
    },
    /// Something else of this process changes the same setting.
    #[error("{setting} is set for another port of this command as well: ask for it once")]
    Twice {
        /// What is changed, and of which host.
        setting: String,
    },
    /// There is nowhere to write down what was there before.
    #[error(
        "there is no folder for the journal of changes: set HOME or XDG_STATE_HOME to an absolute path"
    )]
    NoFolder,
    /// A file of knobs makes no sense.
    #[error("{} holds no knobs ({why}): each [[knob]] has name, values, and one of set, option, stack and sysctl", path.display())]
    Knobs {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A journal holds something else.
    #[error("{} is no journal of this version ({why}): start anew without it", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
