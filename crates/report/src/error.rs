//! What can go wrong when a result is put away, with the next step.

use std::io;
use std::path::{Path, PathBuf};

use linerate_metric::event::Problem;

/// Why a result was not written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no place for records: neither variable names one.
    #[error(
        "there is no folder for records: set HOME or XDG_DATA_HOME to an absolute path, or pass --no-store"
    )]
    NoDataFolder,
    /// A record's id cannot be a file name.
    #[error(
        "`{id}` is no id to name a file with: only letters, digits, `-`, `_` and `.` within; pass --no-store"
    )]
    BadId {
        /// The id.
        id: String,
    },
    /// The store could not take a record.
    #[error("cannot store {}: {source}; {}, or pass --no-store", path.display(), next_step(source, path))]
    Store {
        /// The file that was to be.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Tags or notes could not be kept.
    #[error("cannot change {}: {source}; {}", path.display(), next_step(source, path))]
    Keep {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something stored could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file holds a table that was exported.
    #[error(
        "{} is a table in {form}: it holds figures and no records; export those where it was made, `linerate runs export -o FILE`",
        path.display()
    )]
    Table {
        /// The file.
        path: PathBuf,
        /// The form of the table.
        form: &'static str,
    },
    /// A file holds no record.
    #[error("{} is {why}: name a file that --json, -o or the store wrote", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// No document, or more than one, has such an id.
    #[error("{found} stored records fit `{asked}`: `linerate runs list` shows their ids")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// How many there are.
        found: usize,
    },
    /// The index of records failed, and could not be made anew.
    #[error("the index of records {}: {why}; remove the file, it is made again", path.display())]
    Index {
        /// The database.
        path: PathBuf,
        /// What it said.
        why: String,
    },
    /// A form of export could not be made.
    #[error("cannot export as {form}: {why}")]
    Export {
        /// The form.
        form: &'static str,
        /// What its writer said.
        why: String,
    },
    /// A file that was asked for could not be written.
    #[error("cannot write {}: {source}; {}", path.display(), next_step(source, path))]
    Write {
        /// The file that was asked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ReportError {
    /// Whether the reader of a pipe went away (`linerate … | head`), which ends a program quietly.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Store { source, .. } | Self::Write { source, .. }
            if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The situation, the object and the next step.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::NoDataFolder => Problem::new(
                "there is no folder for them",
                "records",
                "set HOME or XDG_DATA_HOME to an absolute path, or pass --no-store",
            ),
            Self::BadId { id } => Problem::new(
                "no id to name a file with: only letters, digits, `-`, `_` and `.` within",
                format!("`{id}`"),
                "pass --no-store",
            ),
            Self::Store { path, source } => Problem::new(
                format!("cannot be stored ({source})"),
                path.display().to_string(),
                format!("{}, or pass --no-store", next_step(source, path)),
            ),
            Self::Keep { path, source } => Problem::new(
                format!("cannot be changed ({source})"),
                path.display().to_string(),
                next_step(source, path),
            ),
            Self::Read { path, source } => Problem::new(
                format!("cannot be read ({source})"),
                path.display().to_string(),
                match source.kind() {
                    io::ErrorKind::NotFound => {
                        "name a file, or an id that `linerate runs list` shows".to_owned()
                    }
                    _ => "see who may read it".to_owned(),
                },
            ),
            Self::Table { path, form } => Problem::new(
                format!("a table in {form}: it holds figures and no records"),
                path.display().to_string(),
                "export the records where it was made: `linerate runs export -o FILE`",
            ),
            Self::Foreign { path, why } => Problem::new(
                why.clone(),
                path.display().to_string(),
                "name a file that --json, -o or the store wrote",
            ),
            Self::Unknown { asked, found: 0 }
                if asked.ends_with(".json") || asked.contains('/') =>
            {
                Problem::new(
                    "there is no such file, and no stored record has such an id",
                    format!("`{asked}`"),
                    "check its path, or choose an id of `linerate runs list --all`",
                )
            }
            Self::Unknown { asked, found: 0 } => Problem::new(
                "no stored record has such an id",
                format!("`{asked}`"),
                "`linerate runs list --all` shows them; a file needs its path",
            ),
            Self::Unknown { asked, found } => Problem::new(
                format!("{found} stored records begin or end so"),
                format!("`{asked}`"),
                "give more of its letters",
            ),
            Self::Index { path, why } => Problem::new(
                format!("the index of records cannot be used ({why})"),
                path.display().to_string(),
                "remove the file: it is made again from the records",
            ),
            Self::Export { form, why } => Problem::new(
                format!("cannot be made ({why})"),
                format!("{form} file"),
                "choose another form: --format json or csv",
            ),
            Self::Write { path, source } => Problem::new(
                format!("cannot be written ({source})"),
                path.display().to_string(),
                next_step(source, path),
            ),
        }
    }
}

/// What to do about it, as far as the kind of failure tells.
fn next_step(source: &io::Error, path: &Path) -> String {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.display().to_string(),
        _ => ".".to_owned(),
    };
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free some space under {folder}")
        }
        io::ErrorKind::PermissionDenied => format!("make {folder} writable for this user"),
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{folder} is mounted read-only: choose another place")
        }
        io::ErrorKind::NotFound => format!("create {folder} first"),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            format!("{folder} has a file where a folder is needed: move it away")
        }
        io::ErrorKind::IsADirectory => "name a file, not a folder".to_owned(),
        _ => "choose another place".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_that_is_not_there_is_told_as_one() {
        for (asked, says) in [
            ("before.json", "there is no such file"),
            ("out/before", "there is no such file"),
            ("3f9a1c", "no stored record"),
        ] {
            let unknown = ReportError::Unknown {
                asked: asked.to_owned(),
                found: 0,
            };
            let problem = unknown.problem();
            assert!(problem.situation.starts_with(says), "{problem}");
        }
    }
}
