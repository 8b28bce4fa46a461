//! History of stored records: search, tags, notes, import and export.
//!
//! The files hold all data: `runs/ID.json` records, `marks/ID.json` tags and notes. `index.sqlite`
//! next to them is only an index; it is rebuilt from the files when it is missing, damaged or
//! outdated.

mod entry;
mod exchange;
mod filter;
mod index;
mod marks;
mod removed;
mod table;
#[cfg(test)]
mod tests;
mod trend;

use std::fs;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

pub use entry::{DocumentNote, ExpectationCounts, HeadlineFigure, HistoryEntry};
pub use exchange::{EXPORT_SCHEMA, ImportResult};
pub use filter::HistoryFilter;
pub use removed::UNDO_TIME;
#[cfg(feature = "parquet")]
pub use table::entries_to_parquet;
pub use table::{HistoryExportFormat, entries_to_csv};
pub use trend::{FigureTrend, TrendPoint, trend};

use crate::ReportError;
use crate::document::{Document, read_document};
use crate::store::RecordStore;
use index::HistoryIndex;

/// Records of this user on this machine.
pub struct History {
    store: RecordStore,
    base: PathBuf,
    marks: marks::MarksDir,
    /// Documents that were removed lately.
    removed: removed::RemovedDir,
    index: HistoryIndex,
}

impl History {
    /// Opens the history of the default store.
    ///
    /// # Errors
    /// [`ReportError::NoDataDirectory`], [`ReportError::Index`].
    pub fn open_default() -> Result<Self, ReportError> {
        let store = RecordStore::open_default()?;
        let base = store.dir().parent().unwrap_or(store.dir()).to_owned();
        Self::open(base)
    }

    /// Opens the history in a directory, whose subdirectory `runs` holds the records.
    ///
    /// # Errors
    /// [`ReportError::Index`] when not even an in-memory index can be created,
    /// [`ReportError::Read`] when the records are not readable.
    pub fn open(base: impl Into<PathBuf>) -> Result<Self, ReportError> {
        let base = base.into();
        let store = RecordStore::in_dir(base.join("runs"));
        match fs::read_dir(store.dir()) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ReportError::Read {
                    path: store.dir().to_owned(),
                    source,
                });
            }
            _ => {}
        }
        let marks = marks::MarksDir::new(base.join("marks"));
        let removed = removed::RemovedDir::new(base.join("removed"));
        let path = base.join("index.sqlite");
        let index = HistoryIndex::open(&path, store.dir(), marks.path()).map_err(|error| {
            ReportError::Index {
                path,
                why: index::describe_error(&error),
            }
        })?;
        Ok(Self {
            store,
            base,
            marks,
            removed,
            index,
        })
    }

    /// Reads the files again after a change.
    ///
    /// # Errors
    /// See [`History::open`].
    pub fn reopen(self) -> Result<Self, ReportError> {
        let base = self.base.clone();
        drop(self);
        Self::open(base)
    }

    /// Reason for an index in memory; `None` if the index is on disk.
    #[must_use]
    pub fn index_warning(&self) -> Option<&str> {
        self.index.memory_reason.as_deref()
    }

    /// Returns the files in the record directory that are not records, with a description of their
    /// content.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn unreadable_files(&self) -> Result<Vec<(String, String)>, ReportError> {
        self.index
            .unreadable_files()
            .map_err(|error| self.index_error(&error))
    }

    /// Returns the documents that match a filter, the oldest first.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn entries(&self, filter: &HistoryFilter) -> Result<Vec<HistoryEntry>, ReportError> {
        let all = self
            .index
            .entries()
            .map_err(|error| self.index_error(&error))?;
        let mut matching: Vec<HistoryEntry> = all
            .into_iter()
            .filter(|(entry, member)| filter.matches(entry, *member))
            .map(|(entry, _)| entry)
            .collect();
        if let Some(limit) = filter.limit {
            matching.drain(..matching.len().saturating_sub(limit));
        }
        Ok(matching)
    }

    /// Returns whether the store is empty.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn is_empty(&self) -> Result<bool, ReportError> {
        let entries = self
            .index
            .entries()
            .map_err(|error| self.index_error(&error))?;
        Ok(entries.is_empty())
    }

    /// Finds a document by its id, by the beginning or end of its id, or by `last` (`last~1` is the
    /// one before, and so on). `last` skips runs that belong to a set, and copies recorded by a
    /// server.
    ///
    /// # Errors
    /// [`ReportError::Unknown`] when no document matches, or several do.
    pub fn find(&self, query: &str) -> Result<HistoryEntry, ReportError> {
        let unknown = |matches| ReportError::NoUniqueMatch {
            query: query.to_owned(),
            matches,
        };
        if let Some(steps_back) = parse_last(query) {
            let without_members = HistoryFilter {
                skip_members: true,
                ..HistoryFilter::default()
            };
            let mut entries = self.entries(&without_members)?;
            let position = entries.len().checked_sub(steps_back + 1);
            return position
                .map(|position| entries.swap_remove(position))
                .ok_or_else(|| unknown(0));
        }
        let all_documents = HistoryFilter {
            copies: true,
            ..HistoryFilter::default()
        };
        let mut entries = self.entries(&all_documents)?;
        if let Some(position) = entries.iter().position(|entry| entry.id == query) {
            return Ok(entries.swap_remove(position));
        }
        entries.retain(|entry| entry.id.starts_with(query) || entry.id.ends_with(query));
        match entries.len() {
            1 if !query.is_empty() => Ok(entries.swap_remove(0)),
            matches => Err(unknown(matches)),
        }
    }

    /// Path of a document's file.
    #[must_use]
    pub fn file(&self, id: &str) -> PathBuf {
        self.store.file(id)
    }

    /// Reads a document.
    ///
    /// # Errors
    /// [`ReportError::Read`], [`ReportError::NotARecord`].
    pub fn document(&self, id: &str) -> Result<Document, ReportError> {
        read_document(&self.file(id))
    }

    /// Removes a document with its tags and notes; [`Self::restore`] undoes it for
    /// [`UNDO_TIME`]. The runs of a set stay.
    ///
    /// # Errors
    /// [`ReportError::Update`].
    pub fn remove(&self, id: &str) -> Result<(), ReportError> {
        let path = self.file(id);
        let moved = self
            .removed
            .put(&path, &format!("{id}.json"))
            .and_then(|()| (self.removed).put(&self.marks.file(id)?, &format!("{id}.marks")));
        moved.map_err(|source| ReportError::Update { path, source })
    }

    /// Restores documents that were removed less than [`UNDO_TIME`] ago, with their tags and notes;
    /// without ids all of them. Returns their ids.
    ///
    /// # Errors
    /// [`ReportError::Update`]; [`ReportError::NoUniqueMatch`] for an id that was not removed.
    pub fn restore(&self, ids: &[String]) -> Result<Vec<String>, ReportError> {
        let kept = self.removed.ids();
        if let Some(missing) = ids.iter().find(|id| !kept.contains(id)) {
            return Err(ReportError::NoUniqueMatch {
                query: missing.clone(),
                matches: 0,
            });
        }
        let mut restored = Vec::new();
        for id in kept.iter().filter(|id| ids.is_empty() || ids.contains(id)) {
            let path = self.file(id);
            let moved = (self.removed)
                .take(&format!("{id}.json"), &path)
                .and_then(|()| (self.removed).take(&format!("{id}.marks"), &self.marks.file(id)?));
            moved.map_err(|source| ReportError::Update { path, source })?;
            restored.push(id.clone());
        }
        Ok(restored)
    }

    /// Adds tags to a document and removes others.
    ///
    /// # Errors
    /// [`ReportError::Update`].
    pub fn tag(&self, id: &str, add: &[String], remove: &[String]) -> Result<(), ReportError> {
        self.marks.change(id, |marks| {
            marks.tags.extend(add.iter().cloned());
            marks.tags.retain(|tag| !remove.contains(tag));
        })
    }

    /// Adds a note to a document.
    ///
    /// # Errors
    /// [`ReportError::Update`].
    pub fn note(&self, id: &str, at: Timestamp, text: &str) -> Result<(), ReportError> {
        self.marks.change(id, |marks| {
            marks.notes.push(DocumentNote {
                at,
                text: text.to_owned(),
            });
        })
    }

    /// Removes all notes of a document.
    ///
    /// # Errors
    /// [`ReportError::Update`].
    pub fn clear_notes(&self, id: &str) -> Result<(), ReportError> {
        self.marks.change(id, |marks| marks.notes.clear())
    }

    fn index_error(&self, error: &rusqlite::Error) -> ReportError {
        ReportError::Index {
            path: self.base.join("index.sqlite"),
            why: index::describe_error(error),
        }
    }
}

/// Parses `last` as 0 and `last~2` as 2.
fn parse_last(text: &str) -> Option<usize> {
    match text.strip_prefix("last")? {
        "" => Some(0),
        steps => steps.strip_prefix('~')?.parse().ok(),
    }
}
