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
mod table;
#[cfg(test)]
mod tests;
mod trend;

use std::fs;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

pub use entry::{Entry, Note, Outcome, Shapes};
pub use exchange::{Arrived, EXPORT_SCHEMA};
pub use filter::Filter;
#[cfg(feature = "parquet")]
pub use table::parquet;
pub use table::{Form, csv};
pub use trend::{Point, Trend, trend};

use crate::ReportError;
use crate::document::{Document, read_document};
use crate::store::Store;
use index::Index;

/// Records of this user on this machine.
pub struct History {
    store: Store,
    base: PathBuf,
    marks: marks::Folder,
    index: Index,
}

impl History {
    /// Opens the history of the default store.
    ///
    /// # Errors
    /// [`ReportError::NoDataFolder`], [`ReportError::Index`].
    pub fn open_default() -> Result<Self, ReportError> {
        let store = Store::open_default()?;
        let base = store.folder().parent().unwrap_or(store.folder()).to_owned();
        Self::open(base)
    }

    /// Opens the history in a directory, whose subdirectory `runs` holds the records.
    ///
    /// # Errors
    /// [`ReportError::Index`] when not even an in-memory index can be created,
    /// [`ReportError::Read`] when the records are not readable.
    pub fn open(base: impl Into<PathBuf>) -> Result<Self, ReportError> {
        let base = base.into();
        let store = Store::at(base.join("runs"));
        match fs::read_dir(store.folder()) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ReportError::Read {
                    path: store.folder().to_owned(),
                    source,
                });
            }
            _ => {}
        }
        let marks = marks::Folder::at(base.join("marks"));
        let path = base.join("index.sqlite");
        let index = Index::open(&path, store.folder(), marks.path()).map_err(|error| {
            ReportError::Index {
                path,
                why: index::words(&error),
            }
        })?;
        Ok(Self {
            store,
            base,
            marks,
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
    pub fn remark(&self) -> Option<&str> {
        self.index.remark.as_deref()
    }

    /// Returns the files in the record directory that are not records, with a description of their
    /// content.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn strange(&self) -> Result<Vec<(String, String)>, ReportError> {
        self.index.strange().map_err(|error| self.trouble(&error))
    }

    /// Returns the documents that match a filter, the oldest first.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn entries(&self, filter: &Filter) -> Result<Vec<Entry>, ReportError> {
        let all = self.index.entries().map_err(|error| self.trouble(&error))?;
        let mut taken: Vec<Entry> = all
            .into_iter()
            .filter(|(entry, member)| filter.takes(entry, *member))
            .map(|(entry, _)| entry)
            .collect();
        if let Some(limit) = filter.limit {
            taken.drain(..taken.len().saturating_sub(limit));
        }
        Ok(taken)
    }

    /// Returns whether the store is empty.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn is_empty(&self) -> Result<bool, ReportError> {
        let all = self.index.entries().map_err(|error| self.trouble(&error))?;
        Ok(all.is_empty())
    }

    /// Finds a document by its id, by the beginning or end of its id, or by `last` (`last~1` is the
    /// one before, and so on). `last` skips runs that belong to a set, and copies recorded by a
    /// server.
    ///
    /// # Errors
    /// [`ReportError::Unknown`] when no document matches, or several do.
    pub fn find(&self, asked: &str) -> Result<Entry, ReportError> {
        let unknown = |found| ReportError::Unknown {
            asked: asked.to_owned(),
            found,
        };
        if let Some(back) = back_from_last(asked) {
            let whole = Filter {
                whole: true,
                ..Filter::default()
            };
            let mut entries = self.entries(&whole)?;
            let at = entries.len().checked_sub(back + 1);
            return at
                .map(|at| entries.swap_remove(at))
                .ok_or_else(|| unknown(0));
        }
        let everything = Filter {
            copies: true,
            ..Filter::default()
        };
        let mut entries = self.entries(&everything)?;
        if let Some(at) = entries.iter().position(|entry| entry.id == asked) {
            return Ok(entries.swap_remove(at));
        }
        entries.retain(|entry| entry.id.starts_with(asked) || entry.id.ends_with(asked));
        match entries.len() {
            1 if !asked.is_empty() => Ok(entries.swap_remove(0)),
            found => Err(unknown(found)),
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
    /// [`ReportError::Read`], [`ReportError::Foreign`].
    pub fn document(&self, id: &str) -> Result<Document, ReportError> {
        read_document(&self.file(id))
    }

    /// Removes a document with its tags and notes. The runs of a set stay.
    ///
    /// # Errors
    /// [`ReportError::Keep`].
    pub fn remove(&self, id: &str) -> Result<(), ReportError> {
        let path = self.file(id);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(ReportError::Keep { path, source });
            }
            _ => {}
        }
        self.marks.remove(id)
    }

    /// Adds tags to a document and removes others.
    ///
    /// # Errors
    /// [`ReportError::Keep`].
    pub fn tag(&self, id: &str, add: &[String], take: &[String]) -> Result<(), ReportError> {
        self.marks.change(id, |marks| {
            marks.tags.extend(add.iter().cloned());
            marks.tags.retain(|tag| !take.contains(tag));
        })
    }

    /// Adds a note to a document.
    ///
    /// # Errors
    /// [`ReportError::Keep`].
    pub fn note(&self, id: &str, at: Timestamp, text: &str) -> Result<(), ReportError> {
        self.marks.change(id, |marks| {
            marks.notes.push(Note {
                at,
                text: text.to_owned(),
            });
        })
    }

    /// Removes all notes of a document.
    ///
    /// # Errors
    /// [`ReportError::Keep`].
    pub fn clear_notes(&self, id: &str) -> Result<(), ReportError> {
        self.marks.change(id, |marks| marks.notes.clear())
    }

    fn trouble(&self, error: &rusqlite::Error) -> ReportError {
        ReportError::Index {
            path: self.base.join("index.sqlite"),
            why: index::words(error),
        }
    }
}

/// Parses `last` as 0 and `last~2` as 2.
fn back_from_last(text: &str) -> Option<usize> {
    match text.strip_prefix("last")? {
        "" => Some(0),
        back => back.strip_prefix('~')?.parse().ok(),
    }
}
