//! Journal files that survive a crash: JSON lines, each synced to disk before the next step begins.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::TuneError;

/// Journal file opened for writing and locked.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

/// Directory `$XDG_STATE_HOME/linerate/NAME`, or `~/.local/state/linerate/NAME`.
///
/// Returns `None` if neither variable holds an absolute path.
#[must_use]
pub fn state_dir(name: &str) -> Option<PathBuf> {
    let absolute = |variable: &str| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local").join("state")))?;
    Some(base.join("linerate").join(name))
}

impl Journal {
    /// Creates a journal with `header` as its first line; the file must not exist yet.
    ///
    /// # Errors
    /// [`TuneError::JournalAccess`].
    pub fn create(path: &Path, header: &impl Serialize) -> Result<Self, TuneError> {
        let access_error = |source| TuneError::JournalAccess {
            path: path.to_owned(),
            source,
        };
        if let Some(parent) = path.parent() {
            let dir_created = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent);
            dir_created.map_err(access_error)?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(access_error)?;
        lock_file(&file, path)?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
        };
        journal.append(header)?;
        // A new file name survives a power loss only once its directory is synced too; some file
        // systems reject that.
        let parent_dir = path.parent().map(File::open);
        let _ =
            parent_dir.map(|parent_dir| parent_dir.and_then(|parent_dir| parent_dir.sync_all()));
        Ok(journal)
    }

    /// Opens an existing journal for appending; returns its header, its lines and the journal.
    ///
    /// A last line that a crash cut off is removed.
    ///
    /// # Errors
    /// [`TuneError::JournalAccess`], [`TuneError::JournalLocked`],
    /// [`TuneError::JournalWithoutHeader`], [`TuneError::InvalidJournal`].
    pub fn resume<H: DeserializeOwned, L: DeserializeOwned>(
        path: &Path,
    ) -> Result<(H, Vec<L>, Self), TuneError> {
        let access_error = |source: io::Error| TuneError::JournalAccess {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(access_error)?;
        lock_file(&file, path)?;
        let (header, lines, complete_bytes) = read(path)?;
        file.set_len(complete_bytes as u64).map_err(access_error)?;
        let journal = Self {
            path: path.to_owned(),
            file,
        };
        Ok((header, lines, journal))
    }

    /// Appends a line and syncs it to disk.
    ///
    /// # Errors
    /// [`TuneError::JournalAccess`].
    pub fn append(&mut self, line: &impl Serialize) -> Result<(), TuneError> {
        let mut text = serde_json::to_string(line).expect("our lines hold only what JSON can say");
        text.push('\n');
        let previous_len = self.file.metadata().map(|metadata| metadata.len());
        let written = self.file.write_all(text.as_bytes());
        let written = written.and_then(|()| self.file.sync_data());
        if let (Err(_), Ok(previous_len)) = (&written, previous_len) {
            // A partial line would corrupt the next one and with it the journal.
            let _ = self.file.set_len(previous_len);
        }
        written.map_err(|source| TuneError::JournalAccess {
            path: self.path.clone(),
            source,
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the file once its purpose is fulfilled.
    ///
    /// # Errors
    /// [`TuneError::JournalAccess`].
    pub fn remove(self) -> Result<(), TuneError> {
        remove(&self.path)
    }
}

/// Deletes a journal that no process has locked.
///
/// # Errors
/// [`TuneError::JournalAccess`].
pub fn remove(path: &Path) -> Result<(), TuneError> {
    fs::remove_file(path).map_err(|source| TuneError::JournalAccess {
        path: path.to_owned(),
        source,
    })
}

/// Returns whether a process has the journal locked; false if the file system has no locks.
#[must_use]
pub fn is_locked(path: &Path) -> bool {
    // A shared lock: two processes that check at the same time do not mistake each other for the
    // owner.
    let attempt = OpenOptions::new()
        .append(true)
        .open(path)
        .map(|file| file.try_lock_shared());
    matches!(attempt, Ok(Err(TryLockError::WouldBlock)))
}

/// Locks a journal until it is closed; otherwise two processes could resume it and measure the same
/// points.
fn lock_file(file: &File, path: &Path) -> Result<(), TuneError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TuneError::JournalLocked {
            path: path.to_owned(),
        }),
        // A file system without locks must not prevent the measurement.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Returns the header of a journal, its lines, and their length in bytes, without a last line that
/// a crash cut off.
///
/// # Errors
/// [`TuneError::JournalAccess`], [`TuneError::JournalWithoutHeader`],
/// [`TuneError::InvalidJournal`].
pub fn read<H: DeserializeOwned, L: DeserializeOwned>(
    path: &Path,
) -> Result<(H, Vec<L>, usize), TuneError> {
    let text = fs::read_to_string(path).map_err(|source| TuneError::JournalAccess {
        path: path.to_owned(),
        source,
    })?;
    let complete_bytes = text.rfind('\n').map_or(0, |end| end + 1);
    let invalid = |reason: String| TuneError::InvalidJournal {
        path: path.to_owned(),
        reason,
    };
    let mut lines = text[..complete_bytes].lines();
    let header = lines
        .next()
        .ok_or_else(|| TuneError::JournalWithoutHeader {
            path: path.to_owned(),
        })?;
    let header = serde_json::from_str(header).map_err(|error| invalid(error.to_string()))?;
    let lines = lines
        .map(|line| serde_json::from_str(line).map_err(|error| invalid(error.to_string())))
        .collect::<Result<Vec<L>, _>>()?;
    Ok((header, lines, complete_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_written_before_a_crash_are_kept() {
        let dir = std::env::temp_dir().join(format!("linerate-journal-{}", std::process::id()));
        let path = dir.join("one.jsonl");
        let mut journal = Journal::create(&path, &"head").unwrap();
        journal.append(&1).unwrap();
        journal.append(&2).unwrap();
        assert!(
            Journal::create(&path, &"head").is_err(),
            "it is there already"
        );
        let error = Journal::resume::<String, u32>(&path).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        assert!(is_locked(&path));
        drop(journal);
        let shared_reader = File::open(&path).unwrap();
        shared_reader.try_lock_shared().unwrap();
        assert!(!is_locked(&path));
        drop(shared_reader);
        // Half of a line.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("33");
        fs::write(&path, text).unwrap();
        let (header, lines, mut journal) = Journal::resume::<String, u32>(&path).unwrap();
        assert_eq!((header.as_str(), lines.as_slice()), ("head", &[1, 2][..]));
        journal.append(&4).unwrap();
        drop(journal);
        let (_, lines, journal) = Journal::resume::<String, u32>(&path).unwrap();
        assert_eq!(lines, [1, 2, 4]);
        journal.remove().unwrap();
        assert!(Journal::resume::<String, u32>(&path).is_err());
        fs::remove_dir(&dir).unwrap();
    }
}
