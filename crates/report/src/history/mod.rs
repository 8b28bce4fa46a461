//! The history: every record that is stored here, found by what it says, tagged, noted, moved.
//!
//! Files are the truth: `runs/ID.json` for records, `marks/ID.json` for tags and notes. `index.sqlite`
//! beside them only finds them; it is made from the files whenever it is missing, damaged or old.

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

/// The records of this user on this machine.
pub struct History {
    store: Store,
    base: PathBuf,
    marks: marks::Folder,
    index: Index,
}

impl History {
    /// Opens the history of the store that records go to.
    ///
    /// # Errors
    /// [`ReportError::NoDataFolder`], [`ReportError::Index`].
    pub fn open_default() -> Result<Self, ReportError> {
        let store = Store::open_default()?;
        let base = store.folder().parent().unwrap_or(store.folder()).to_owned();
        Self::open(base)
    }

    /// Opens the history below a folder: its records are in `runs`.
    ///
    /// # Errors
    /// [`ReportError::Index`] when not even an index in memory can be made, [`ReportError::Read`] when the
    /// records may not be looked at.
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

    /// Reads the files again, after something was changed.
    ///
    /// # Errors
    /// As [`History::open`].
    pub fn reopen(self) -> Result<Self, ReportError> {
        let base = self.base.clone();
        drop(self);
        Self::open(base)
    }

    /// Why the index is not kept on the disk, if it is not.
    #[must_use]
    pub fn remark(&self) -> Option<&str> {
        self.index.remark.as_deref()
    }

    /// Files in the folder of records that are none, with what they are instead.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn strange(&self) -> Result<Vec<(String, String)>, ReportError> {
        self.index.strange().map_err(|error| self.trouble(&error))
    }

    /// The documents that a filter means, the oldest first.
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

    /// Whether there is no document at all.
    ///
    /// # Errors
    /// [`ReportError::Index`].
    pub fn is_empty(&self) -> Result<bool, ReportError> {
        let all = self.index.entries().map_err(|error| self.trouble(&error))?;
        Ok(all.is_empty())
    }

    /// The document that somebody means by an id, the beginning or the end of one, or `last` (`last~1`
    /// for the one before, and so on; runs that belong to a set, and a server's copies, are left out
    /// there).
    ///
    /// # Errors
    /// [`ReportError::Unknown`] when there is none, or more than one.
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

    /// The file of a document.
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

    /// Gives a document tags, and takes others away.
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

    /// Takes all notes of a document away.
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

/// `last` is 0, `last~2` is 2.
fn back_from_last(text: &str) -> Option<usize> {
    match text.strip_prefix("last")? {
        "" => Some(0),
        back => back.strip_prefix('~')?.parse().ok(),
    }
}
