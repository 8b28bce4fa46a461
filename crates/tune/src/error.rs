//! Errors of sweeps, searches and guarded settings, with the next step.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error("`{text}` is not a valid axis: {reason}")]
    InvalidAxis { text: String, reason: String },
    #[error("`{text}` is not a valid knob limit: {reason}")]
    InvalidLimit { text: String, reason: String },
    #[error("the journal {} cannot be read or written ({source}): check its permissions", path.display())]
    JournalAccess { path: PathBuf, source: io::Error },
    #[error("the journal {} is locked by another process: wait until that process ends, or end it", path.display())]
    JournalLocked { path: PathBuf },
    /// The journal's header is incomplete: its process died before it changed anything.
    #[error("the journal {} has no header, so nothing was changed: remove it", path.display())]
    JournalWithoutHeader { path: PathBuf },
    #[error("{setting} is also being changed by process {pid}: wait until that process ends")]
    SettingInUse {
        /// The setting and its host.
        setting: String,
        pid: u32,
    },
    /// Two guards of this process change the same setting.
    #[error("{setting} is already set for another port of this command: request it once")]
    DuplicateSetting { setting: String },
    #[error(
        "there is no directory for the journal of changes: set HOME or XDG_STATE_HOME to an absolute path"
    )]
    NoStateDir,
    #[error("{} is not a valid knob file ({reason}): each [[knob]] has name, values, and one of set, option, stack and sysctl", path.display())]
    InvalidKnobFile { path: PathBuf, reason: String },
    #[error("{} is not a journal of this version ({reason}): start again without it", path.display())]
    InvalidJournal { path: PathBuf, reason: String },
}
