//! Tags and notes: one file per document, in a directory next to the records.
//!
//! They are files, so that the index can be rebuilt without loss.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entry::DocumentNote;
use crate::ReportError;
use crate::store::{is_plain_id, replace_file};

/// Tags and notes of one document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DocumentMarks {
    pub tags: BTreeSet<String>,
    /// Notes, the oldest first.
    pub notes: Vec<DocumentNote>,
}

impl DocumentMarks {
    /// Returns whether there are no tags and no notes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.notes.is_empty()
    }
}

/// Directory of tags and notes.
#[derive(Clone, Debug)]
pub(super) struct MarksDir {
    path: PathBuf,
}

impl MarksDir {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file of a document's marks.
    pub(super) fn file(&self, id: &str) -> io::Result<PathBuf> {
        match is_plain_id(id) {
            true => Ok(self.path.join(format!("{id}.json"))),
            false => Err(io::Error::other(ReportError::BadId { id: id.to_owned() })),
        }
    }

    /// Changes the marks of a document under a lock, so that concurrent processes lose no change.
    pub(super) fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut DocumentMarks),
    ) -> Result<(), ReportError> {
        let path = (self.file(id)).map_err(|_| ReportError::BadId { id: id.to_owned() })?;
        let changed = self.lock().and_then(|_lock| {
            let mut marks = read(&path)?;
            change(&mut marks);
            if marks.is_empty() {
                return ignore_not_found(fs::remove_file(&path));
            }
            let text = serde_json::to_string(&marks).map_err(io::Error::other)?;
            replace_file(&path, text.as_bytes())
        });
        changed.map_err(|source| ReportError::Update { path, source })
    }

    fn lock(&self) -> io::Result<File> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)?;
        let lock = open_lock(&self.path.join(".lock"))?;
        lock.lock()?;
        Ok(lock)
    }
}

/// Opens a lock file.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Reads the marks of a file; empty if the file is missing or invalid.
pub(super) fn read(path: &Path) -> io::Result<DocumentMarks> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DocumentMarks::default()),
        Err(error) => Err(error),
    }
}

pub(super) fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        unexpected => unexpected,
    }
}
