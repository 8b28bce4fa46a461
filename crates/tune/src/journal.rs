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
pub fn folder(name: &str) -> Option<PathBuf> {
    let absolute = |variable: &str| {
        let path = PathBuf::from(std::env::var_os(variable)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local").join("state")))?;
    Some(base.join("linerate").join(name))
}

impl Journal {
    /// Creates a journal with `head` as its first line; the file must not exist yet.
    ///
    /// # Errors
    /// [`TuneError::Journal`].
    pub fn create(path: &Path, head: &impl Serialize) -> Result<Self, TuneError> {
        let failed = |source| TuneError::Journal {
            path: path.to_owned(),
            source,
        };
        if let Some(parent) = path.parent() {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent);
            made.map_err(failed)?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        hold(&file, path)?;
        let mut journal = Self {
            path: path.to_owned(),
            file,
        };
        journal.append(head)?;
        // A new file name survives a power loss only once its directory is synced too; some file
        // systems reject that.
        let folder = path.parent().map(File::open);
        let _ = folder.map(|folder| folder.and_then(|folder| folder.sync_all()));
        Ok(journal)
    }

    /// Opens an existing journal for appending; returns its header, its lines and the journal.
    ///
    /// A last line that a crash cut off is removed.
    ///
    /// # Errors
    /// [`TuneError::Journal`], [`TuneError::InUse`], [`TuneError::Headless`], [`TuneError::Shape`].
    pub fn resume<H: DeserializeOwned, L: DeserializeOwned>(
        path: &Path,
    ) -> Result<(H, Vec<L>, Self), TuneError> {
        let failed = |source: io::Error| TuneError::Journal {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        hold(&file, path)?;
        let (head, lines, whole) = read(path)?;
        file.set_len(whole as u64).map_err(failed)?;
        let journal = Self {
            path: path.to_owned(),
            file,
        };
        Ok((head, lines, journal))
    }

    /// Appends a line and syncs it to disk.
    ///
    /// # Errors
    /// [`TuneError::Journal`].
    pub fn append(&mut self, line: &impl Serialize) -> Result<(), TuneError> {
        let mut text = serde_json::to_string(line).expect("our lines hold only what JSON can say");
        text.push('\n');
        let end = self.file.metadata().map(|facts| facts.len());
        let written = self.file.write_all(text.as_bytes());
        let written = written.and_then(|()| self.file.sync_data());
        if let (Err(_), Ok(end)) = (&written, end) {
            // A partial line would corrupt the next one and with it the journal.
            let _ = self.file.set_len(end);
        }
        written.map_err(|source| TuneError::Journal {
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
    /// [`TuneError::Journal`].
    pub fn remove(self) -> Result<(), TuneError> {
        remove(&self.path)
    }
}

/// Deletes a journal that no process has locked.
///
/// # Errors
/// [`TuneError::Journal`].
pub fn remove(path: &Path) -> Result<(), TuneError> {
    fs::remove_file(path).map_err(|source| TuneError::Journal {
        path: path.to_owned(),
        source,
    })
}

/// Returns whether a process has the journal locked; false if the file system has no locks.
#[must_use]
pub fn is_held(path: &Path) -> bool {
    // A shared lock: two processes that check at the same time do not mistake each other for the
    // owner.
    let lock = OpenOptions::new()
        .append(true)
        .open(path)
        .map(|file| file.try_lock_shared());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}

/// Locks a journal until it is closed; otherwise two processes could resume it and measure the same
/// points.
fn hold(file: &File, path: &Path) -> Result<(), TuneError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TuneError::InUse {
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
/// [`TuneError::Journal`], [`TuneError::Headless`], [`TuneError::Shape`].
pub fn read<H: DeserializeOwned, L: DeserializeOwned>(
    path: &Path,
) -> Result<(H, Vec<L>, usize), TuneError> {
    let text = fs::read_to_string(path).map_err(|source| TuneError::Journal {
        path: path.to_owned(),
        source,
    })?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let shape = |why: String| TuneError::Shape {
        path: path.to_owned(),
        why,
    };
    let mut lines = text[..whole].lines();
    let head = lines.next().ok_or_else(|| TuneError::Headless {
        path: path.to_owned(),
    })?;
    let head = serde_json::from_str(head).map_err(|error| shape(error.to_string()))?;
    let lines = lines
        .map(|line| serde_json::from_str(line).map_err(|error| shape(error.to_string())))
        .collect::<Result<Vec<L>, _>>()?;
    Ok((head, lines, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_before_a_crash_is_there() {
        let folder = std::env::temp_dir().join(format!("linerate-journal-{}", std::process::id()));
        let path = folder.join("one.jsonl");
        let mut journal = Journal::create(&path, &"head").unwrap();
        journal.append(&1).unwrap();
        journal.append(&2).unwrap();
        assert!(
            Journal::create(&path, &"head").is_err(),
            "it is there already"
        );
        let told = Journal::resume::<String, u32>(&path).unwrap_err();
        assert!(told.to_string().contains("another process"), "{told}");
        assert!(is_held(&path));
        drop(journal);
        let looks_as_well = File::open(&path).unwrap();
        looks_as_well.try_lock_shared().unwrap();
        assert!(!is_held(&path));
        drop(looks_as_well);
        // Half of a line.
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("33");
        fs::write(&path, text).unwrap();
        let (head, lines, mut journal) = Journal::resume::<String, u32>(&path).unwrap();
        assert_eq!((head.as_str(), lines.as_slice()), ("head", &[1, 2][..]));
        journal.append(&4).unwrap();
        drop(journal);
        let (_, lines, journal) = Journal::resume::<String, u32>(&path).unwrap();
        assert_eq!(lines, [1, 2, 4]);
        journal.remove().unwrap();
        assert!(Journal::resume::<String, u32>(&path).is_err());
        fs::remove_dir(&folder).unwrap();
    }
}
