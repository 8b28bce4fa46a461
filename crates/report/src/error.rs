//! Errors of reading and writing results, with the next step.

use std::io;
use std::path::{Path, PathBuf};

use linerate_record::event::ErrorReport;

/// Error of the store, of reading a document, or of writing an output file.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No directory for records: neither environment variable names one.
    #[error(
        "no directory for records: set HOME or XDG_DATA_HOME to an absolute path, or pass --no-store"
    )]
    NoDataDirectory,
    /// The record's id is not usable as a file name.
    #[error(
        "`{id}` cannot be a file name: ids have only letters, digits, `-`, `_` and inner `.`; pass --no-store"
    )]
    BadId { id: String },
    /// Writing a record to the store failed.
    #[error("cannot store {}: {source}; {}, or pass --no-store", path.display(), next_step(source, path))]
    Store {
        /// File to be written.
        path: PathBuf,
        source: io::Error,
    },
    /// Writing tags or notes failed.
    #[error("cannot change {}: {source}; {}", path.display(), next_step(source, path))]
    Update { path: PathBuf, source: io::Error },
    /// Reading a stored file failed.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is an exported table.
    #[error(
        "{} is a {format} table with figures only, not records; export the records where it was made, `linerate runs export -o FILE`",
        path.display()
    )]
    Table {
        path: PathBuf,
        /// Format of the table: CSV or Parquet.
        format: &'static str,
    },
    /// The file is not a record.
    #[error("{} is {why}: name a file that --json, -o or the store wrote", path.display())]
    NotARecord {
        path: PathBuf,
        /// Description of the actual content.
        why: String,
    },
    /// The id matches no document, or several.
    #[error("{matches} stored records match `{query}`: `linerate runs list` shows their ids")]
    NoUniqueMatch {
        /// Id or file name from the command line.
        query: String,
        /// Number of matches.
        matches: usize,
    },
    /// The index of records failed and could not be rebuilt.
    #[error("the index of records {}: {why}; remove the file to have it rebuilt", path.display())]
    Index {
        /// Database file.
        path: PathBuf,
        /// Message of the database.
        why: String,
    },
    /// An export failed.
    #[error("cannot export as {format}: {why}")]
    Export {
        /// Output format.
        format: &'static str,
        /// Message of the format's writer.
        why: String,
    },
    /// Writing an output file failed.
    #[error("cannot write {}: {source}; {}", path.display(), next_step(source, path))]
    Write {
        /// File named on the command line.
        path: PathBuf,
        source: io::Error,
    },
}

impl ReportError {
    /// Returns whether the reader of a pipe closed it (`linerate … | head`); the program then exits
    /// silently.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Store { source, .. } | Self::Write { source, .. }
            if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Situation, object and next step.
    #[must_use]
    pub fn to_report(&self) -> ErrorReport {
        match self {
            Self::NoDataDirectory => ErrorReport::new(
                "no directory for them",
                "records",
                "set HOME or XDG_DATA_HOME to an absolute path, or pass --no-store",
            ),
            Self::BadId { id } => ErrorReport::new(
                "cannot be a file name: ids have only letters, digits, `-`, `_` and inner `.`",
                format!("`{id}`"),
                "pass --no-store",
            ),
            Self::Store { path, source } => ErrorReport::new(
                format!("cannot be stored ({source})"),
                path.display().to_string(),
                format!("{}, or pass --no-store", next_step(source, path)),
            ),
            Self::Update { path, source } => ErrorReport::new(
                format!("cannot be changed ({source})"),
                path.display().to_string(),
                next_step(source, path),
            ),
            Self::Read { path, source } => ErrorReport::new(
                format!("cannot be read ({source})"),
                path.display().to_string(),
                match source.kind() {
                    io::ErrorKind::NotFound => {
                        "name a file, or an id that `linerate runs list` shows".to_owned()
                    }
                    _ => "check its permissions".to_owned(),
                },
            ),
            Self::Table { path, format: form } => ErrorReport::new(
                format!("a {form} table with figures only, not records"),
                path.display().to_string(),
                "export the records where it was made: `linerate runs export -o FILE`",
            ),
            Self::NotARecord { path, why } => ErrorReport::new(
                why.clone(),
                path.display().to_string(),
                "name a file that --json, -o or the store wrote",
            ),
            Self::NoUniqueMatch { query, matches: 0 }
                if query.ends_with(".json") || query.contains('/') =>
            {
                ErrorReport::new(
                    "no such file, and no stored record has this id",
                    format!("`{query}`"),
                    "check the path, or choose an id from `linerate runs list --all`",
                )
            }
            Self::NoUniqueMatch { query, matches: 0 } => ErrorReport::new(
                "no file has this name, and no stored record this id",
                format!("`{query}`"),
                "`linerate runs list --all` lists the ids; for a file, give its path",
            ),
            Self::NoUniqueMatch { query, matches } => ErrorReport::new(
                format!("{matches} stored records have ids that begin or end like this"),
                format!("`{query}`"),
                "give more characters of the id",
            ),
            Self::Index { path, why } => ErrorReport::new(
                format!("the index of records cannot be used ({why})"),
                path.display().to_string(),
                "remove the file: it is rebuilt from the records",
            ),
            Self::Export { format: form, why } => ErrorReport::new(
                format!("cannot be written ({why})"),
                format!("{form} file"),
                "choose another format: --format json or csv",
            ),
            Self::Write { path, source } => ErrorReport::new(
                format!("cannot be written ({source})"),
                path.display().to_string(),
                next_step(source, path),
            ),
        }
    }
}

/// Returns the remedy for an I/O error, by its kind.
fn next_step(source: &io::Error, path: &Path) -> String {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.display().to_string(),
        _ => ".".to_owned(),
    };
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free some space under {dir}")
        }
        io::ErrorKind::PermissionDenied => format!("make {dir} writable for this user"),
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{dir} is mounted read-only: choose another directory")
        }
        io::ErrorKind::NotFound => format!("create {dir} first"),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            format!("a part of the path {dir} is a file, not a directory: move it away")
        }
        io::ErrorKind::IsADirectory => "name a file, not a directory".to_owned(),
        _ => "choose another directory".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_reported_as_a_file() {
        for (query, says) in [
            ("before.json", "no such file"),
            ("out/before", "no such file"),
            ("3f9a1c", "no file has this name"),
        ] {
            let unknown = ReportError::NoUniqueMatch {
                query: query.to_owned(),
                matches: 0,
            };
            let problem = unknown.to_report();
            assert!(problem.situation.starts_with(says), "{problem}");
        }
    }
}
