//! Storage of results: the store of records, and output files.
//!
//! Files are replaced atomically: content is written to a temporary file in the same directory,
//! which is then renamed. There is no `fsync`: after a power failure a measurement can be repeated,
//! and the wait would disturb the next run.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linerate_record::record::Record;
use linerate_record::run_set::RunSet;

use crate::ReportError;

/// Directory that holds one file per record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordStore {
    dir: PathBuf,
}

impl RecordStore {
    /// Opens `$XDG_DATA_HOME/linerate/runs`, or `~/.local/share/linerate/runs`. Creates nothing
    /// yet.
    ///
    /// # Errors
    /// [`ReportError::NoDataDirectory`] when neither variable holds an absolute path.
    pub fn open_default() -> Result<Self, ReportError> {
        let dir = data_dir(std::env::var_os("XDG_DATA_HOME"), std::env::var_os("HOME"))
            .ok_or(ReportError::NoDataDirectory)?;
        Ok(Self::in_dir(dir.join("linerate").join("runs")))
    }

    /// Returns a store in this directory. Creates nothing yet.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Directory of the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the file of a document; the file may not exist.
    #[must_use]
    pub fn file(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Stores a record as `ID.json` and returns the file.
    ///
    /// # Errors
    /// [`ReportError::RecordStore`] without leaving a partial file; [`ReportError::BadId`].
    pub fn store(&self, record: &Record) -> Result<PathBuf, ReportError> {
        self.put_document(&record.id, &record.to_json())
    }

    /// Stores a set as `ID.json` and returns the file.
    ///
    /// # Errors
    /// As [`RecordStore::store`].
    pub fn store_set(&self, set: &RunSet) -> Result<PathBuf, ReportError> {
        let text = serde_json::to_string(set).expect("a set has a JSON form");
        self.put_document(&set.id, &text)
    }

    pub(crate) fn put_document(&self, id: &str, text: &str) -> Result<PathBuf, ReportError> {
        // An id may come from another machine, so it must not point outside the directory.
        if !is_plain_id(id) {
            return Err(ReportError::BadId { id: id.to_owned() });
        }
        let path = self.file(id);
        // Mode 0700 as required by the XDG base directory specification.
        let created = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir);
        match created.and_then(|()| replace_file(&path, text.as_bytes())) {
            Ok(()) => Ok(path),
            Err(source) => Err(ReportError::Store { path, source }),
        }
    }
}

/// Returns whether an id is a plain file name, which cannot point outside the store.
pub(crate) fn is_plain_id(id: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !id.is_empty() && !id.starts_with('.') && id.chars().all(is_allowed)
}

/// Returns the base directory for data. Relative paths are ignored, as the XDG specification
/// requires.
fn data_dir(data_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute =
        |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(data_home).or_else(|| Some(absolute(home)?.join(".local").join("share")))
}

/// Waits for the lock of a file or directory. Returns false on timeout.
///
/// # Errors
/// I/O error of the lock, for example on a file system without locks.
pub fn lock_within(lock: &File, timeout: Duration) -> io::Result<bool> {
    // Interval between two attempts.
    const RETRY_INTERVAL: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + timeout;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(RETRY_INTERVAL)
            }
            Err(TryLockError::WouldBlock) => return Ok(false),
        }
    }
}

/// Writes text to the file named by `-o`; `-` is standard output.
///
/// A regular file is replaced atomically; other files (`/dev/stdout`, a pipe) are written in place.
///
/// # Errors
/// [`ReportError::Write`]; the file keeps its old content.
pub fn write_file(path: impl AsRef<Path>, text: &str) -> Result<(), ReportError> {
    write_bytes(path, text.as_bytes())
}

/// Writes bytes; otherwise like [`write_file`].
///
/// # Errors
/// See [`write_file`].
pub fn write_bytes(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), ReportError> {
    let path = path.as_ref();
    let written = if path == Path::new("-") {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush())
    } else {
        write_path(path, bytes)
    };
    written.map_err(|source| ReportError::Write {
        path: path.to_owned(),
        source,
    })
}

fn write_path(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        // A symbolic link is kept: the file it points to is replaced.
        Ok(found) if found.is_file() => replace_file(&fs::canonicalize(path)?, bytes),
        // fs::write would truncate, which fails on a pipe.
        Ok(found) if !found.is_dir() => fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(bytes),
        Ok(_) => Err(io::ErrorKind::IsADirectory.into()),
        Err(_) => replace_file(path, bytes),
    }
}

/// Writes a temporary file next to `path` and renames it; on error the temporary file is removed.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let file = tempfile::Builder::new()
        .prefix(".linerate-")
        .suffix(".partial")
        // Permissions of a newly created file; the umask applies.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir);
    let mut file = file.map_err(without_temporary_path)?;
    file.write_all(bytes).map_err(without_temporary_path)?;
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

/// Removes the name of the temporary file, which no longer exists, from an error.
fn without_temporary_path(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((message, _)) => io::Error::new(error.kind(), message),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(text: &str) -> Option<OsString> {
        Some(text.into())
    }

    #[test]
    fn the_data_directory_follows_xdg() {
        for (data_home, home, expected) in [
            (os("/data"), os("/home/a"), Some("/data")),
            (None, os("/home/a"), Some("/home/a/.local/share")),
            (os(""), os("/home/a"), Some("/home/a/.local/share")),
            (os("relative"), os("/home/a"), Some("/home/a/.local/share")),
            (None, os("relative"), None),
            (None, None, None),
        ] {
            assert_eq!(
                data_dir(data_home.clone(), home.clone()),
                expected.map(PathBuf::from),
                "{data_home:?} {home:?}"
            );
        }
    }

    #[test]
    fn a_file_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        write_file(&path, "one").unwrap();
        write_file(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");

        let link = dir.path().join("latest.html");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_file(&link, "three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn a_device_is_written_into_and_stays() {
        write_file("/dev/null", "gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let full = write_file("/dev/full", "no room").unwrap_err().to_string();
        assert!(full.contains("free some space under /dev"), "{full}");
    }

    #[test]
    fn errors_name_the_path_and_the_next_step() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, step) in [
            (dir.path().to_owned(), "name a file, not a directory"),
            (dir.path().join("missing/report.html"), "create "),
            (file.join("report.html"), "is a file, not a directory"),
        ] {
            let error = write_file(&path, "text").unwrap_err().to_string();
            assert!(error.contains(step), "{error}");
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            assert!(!error.contains(".partial"), "{error}");
        }
        let error = RecordStore::in_dir(file.join("runs"))
            .put_document("id", "{}")
            .unwrap_err();
        assert!(error.to_string().contains("--no-store"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_id_cannot_point_outside_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let store = RecordStore::in_dir(dir.path().join("runs"));
        for id in ["", "../x", "a/b", ".hidden", "a\0b", "a b"] {
            let error = store.put_document(id, "{}");
            assert!(matches!(error, Err(ReportError::BadId { .. })), "{id:?}");
        }
        let path = store.put_document("20261121T144042Z-3f9a1c", "{}").unwrap();
        assert_eq!(path, store.dir().join("20261121T144042Z-3f9a1c.json"));
    }

    /// Fills a small file system. The test runs itself again inside a mount namespace.
    #[test]
    fn a_full_disk_leaves_nothing_half_written() {
        const INSIDE: &str = "LINERATE_TEST_FULL_DISK";
        if let Some(disk) = std::env::var_os(INSIDE) {
            let disk = PathBuf::from(disk);
            let store = RecordStore::in_dir(disk.join("runs"));
            store.put_document("small", "{}").unwrap();
            let error = store
                .put_document("large", &"x".repeat(1 << 20))
                .unwrap_err();
            assert!(error.to_string().contains("free some space"), "{error}");
            assert!(!error.to_string().contains(".partial"), "{error}");
            let names: Vec<_> = fs::read_dir(store.dir()).unwrap().collect();
            assert_eq!(names.len(), 1, "{names:?}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounted = "mount -t tmpfs -o size=64k none \"$0\" || exit 77; exec \"$@\"";
        let status = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", mounted])
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::a_full_disk_leaves_nothing_half_written",
            ])
            .env(INSIDE, dir.path())
            .stdout(std::process::Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) if status.code() == Some(101) => panic!("failed on a full disk"),
            unexpected => {
                println!("skipped: no mount namespace for a small file system ({unexpected:?})")
            }
        }
    }
}
