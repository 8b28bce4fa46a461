//! Errors of sweeps, searches and guarded settings, with the next step.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error("`{text}` is not a valid axis: {why}")]
    Over { text: String, why: String },
    #[error("`{text}` is not a valid knob limit: {why}")]
    Limit { text: String, why: String },
    #[error("the journal {} cannot be read or written ({source}): check its permissions", path.display())]
    Journal { path: PathBuf, source: io::Error },
    #[error("the journal {} is locked by another process: wait until that process ends, or end it", path.display())]
    InUse { path: PathBuf },
    /// The journal's header is incomplete: its process died before it changed anything.
    #[error("the journal {} has no header, so nothing was changed: remove it", path.display())]
    Headless { path: PathBuf },
    #[error("{setting} is also being changed by process {pid}: wait until that process ends")]
    Shared {
        /// The setting and its host.
        setting: String,
        pid: u32,
    },
    /// Two guards of this process change the same setting.
    #[error("{setting} is already set for another port of this command: request it once")]
    Twice { setting: String },
    #[error(
        "there is no directory for the journal of changes: set HOME or XDG_STATE_HOME to an absolute path"
    )]
    NoFolder,
    #[error("{} is not a valid knob file ({why}): each [[knob]] has name, values, and one of set, option, stack and sysctl", path.display())]
    Knobs { path: PathBuf, why: String },
    #[error("{} is not a journal of this version ({why}): start again without it", path.display())]
    Shape { path: PathBuf, why: String },
}
