//! SQLite index of the stored files.
//!
//! All data comes from files, so a damaged index is deleted and rebuilt. It is updated before each
//! use, so measurements never wait for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};

use super::entry::{DocumentNote, HistoryEntry};
use super::marks;
use crate::document::Document;
use crate::store::lock_within;

/// Schema migrations. Each step takes a database to the next version; `user_version` holds the
/// number of applied steps.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE file (
    name TEXT PRIMARY KEY,
    stamp TEXT NOT NULL,
    why TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE document (
    id TEXT PRIMARY KEY,
    started TEXT NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL,
    plan TEXT NOT NULL,
    entry TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX document_started ON document (started);
CREATE TABLE figure (
    document TEXT NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (document, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE member (
    run TEXT NOT NULL,
    document TEXT NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    PRIMARY KEY (run, document)
) STRICT, WITHOUT ROWID;
CREATE TABLE mark (
    id TEXT PRIMARY KEY,
    stamp TEXT NOT NULL,
    tags TEXT NOT NULL,
    notes TEXT NOT NULL
) STRICT, WITHOUT ROWID;
",
    // Entries gained the recording role and labels of sets: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries of experiments gained names and figures of points: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries gained peer protocols, directions and clients of servers: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries of sweeps, comparisons and searches gained results: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries of experiments gained runs of points and expectations: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Keys of entries were renamed: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
];

/// Time to wait for another process that updates the index.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// An open index.
pub(super) struct HistoryIndex {
    connection: Connection,
    /// Held while the database is in use, so that no other process deletes it.
    _lock: Option<File>,
    /// Reason for an index in memory; `None` if it is on disk.
    pub(super) memory_reason: Option<String>,
}

/// Files that are not records, with a description of their content.
pub(super) type UnreadableFiles = Vec<(String, String)>;

/// Failure of the database.
enum IndexError {
    /// Damaged; it can be deleted and rebuilt.
    Damaged(rusqlite::Error),
    /// Not usable on this disk now.
    Unusable(String),
}

/// Describes a database error where SQLite's message is unclear, such as `disk I/O error`.
pub(super) fn describe_error(error: &rusqlite::Error) -> String {
    let meaning = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "no space left on the disk",
        // With a memory-mapped log, SQLite reports a full disk as an I/O error.
        Some(ErrorCode::SystemIoFailure) => "disk full or I/O error",
        Some(ErrorCode::ReadOnly) => "it is read-only",
        Some(ErrorCode::CannotOpen) => "it cannot be created or opened",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process has locked it for 30 s"
        }
        _ => return error.to_string(),
    };
    meaning.to_owned()
}

impl From<rusqlite::Error> for IndexError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error),
            _ => Self::Unusable(describe_error(&error)),
        }
    }
}

impl From<io::Error> for IndexError {
    fn from(error: io::Error) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl HistoryIndex {
    /// Opens the index at `path` and updates it from the files of both directories. A damaged index
    /// is rebuilt. If no index can be written (full disk, read-only directory, index of a newer
    /// version), one is built in memory, with a warning.
    pub(super) fn open(path: &Path, runs: &Path, marks: &Path) -> Result<Self, rusqlite::Error> {
        let reason = match Self::on_disk(path, runs, marks) {
            Ok(index) => return Ok(index),
            Err(IndexError::Damaged(error)) => match Self::rebuild(path, runs, marks) {
                Ok(index) => return Ok(index),
                Err(IndexError::Unusable(reason)) => reason,
                Err(IndexError::Damaged(_)) => error.to_string(),
            },
            // Before the first run is stored, the directory does not exist and needs no index.
            Err(IndexError::Unusable(_)) if path.parent().is_some_and(|base| !base.exists()) => {
                String::new()
            }
            Err(IndexError::Unusable(reason)) => reason,
        };
        let mut connection = Connection::open_in_memory()?;
        migrate(&mut connection)?;
        refresh(&mut connection, runs, marks)?;
        Ok(Self {
            connection,
            _lock: None,
            memory_reason: (!reason.is_empty()).then(|| {
                format!(
                    "the index {} cannot be used ({reason}); the records were indexed in memory",
                    path.display()
                )
            }),
        })
    }

    fn on_disk(path: &Path, runs: &Path, marks: &Path) -> Result<Self, IndexError> {
        let lock = lock_of(path)?;
        lock.lock_shared()?;
        Self::with_lock(lock, path, runs, marks)
    }

    /// Deletes and rebuilds a damaged index when no other process uses it.
    fn rebuild(path: &Path, runs: &Path, marks: &Path) -> Result<Self, IndexError> {
        let lock = lock_of(path)?;
        if !lock_within(&lock, LOCK_TIMEOUT)? {
            return Err(IndexError::Unusable(
                "it is damaged and in use by another process".to_owned(),
            ));
        }
        // Another process may have rebuilt it in the meantime.
        let integrity = open_file(path).and_then(|connection| is_sound(&connection));
        if !matches!(integrity, Ok(true)) {
            for suffix in ["", "-wal", "-shm"] {
                let mut name = path.as_os_str().to_owned();
                name.push(suffix);
                match fs::remove_file(PathBuf::from(name)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(error.into());
                    }
                    _ => {}
                }
            }
        }
        Self::with_lock(lock, path, runs, marks)
    }

    fn with_lock(lock: File, path: &Path, runs: &Path, marks: &Path) -> Result<Self, IndexError> {
        let mut connection = open_file(path)?;
        if !is_sound(&connection)? {
            return Err(IndexError::Damaged(rusqlite::Error::InvalidQuery));
        }
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version > MIGRATIONS.len() as i64 {
            return Err(IndexError::Unusable(format!(
                "made by a newer linerate: layout {version}, this version supports {}",
                MIGRATIONS.len()
            )));
        }
        migrate(&mut connection)?;
        refresh(&mut connection, runs, marks)?;
        // Downgrades the lock: from here on the index is only read, and others may read it too.
        lock.lock_shared()?;
        Ok(Self {
            connection,
            _lock: Some(lock),
            memory_reason: None,
        })
    }

    /// Returns all documents, the oldest first; the flag is true if the document belongs to a set.
    pub(super) fn entries(&self) -> Result<Vec<(HistoryEntry, bool)>, rusqlite::Error> {
        let mut statement = self.connection.prepare(
            "SELECT entry, mark.tags, mark.notes,
                    EXISTS (SELECT 1 FROM member WHERE member.run = document.id)
             FROM document LEFT JOIN mark ON mark.id = document.id
             ORDER BY started, document.id",
        )?;
        let rows = statement.query_map([], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, Option<String>>(1)?,
                row.get::<_, Option<String>>(2)?,
                row.get::<_, bool>(3)?,
            ))
        })?;
        let mut entries = Vec::new();
        for row in rows {
            let (entry, tags, notes, is_member) = row?;
            // This version wrote the row, so a row that it cannot parse is damaged.
            let Ok(mut entry) = serde_json::from_str::<HistoryEntry>(&entry) else {
                continue;
            };
            let tags = tags.and_then(|tags| serde_json::from_str::<BTreeSet<String>>(&tags).ok());
            let notes =
                notes.and_then(|notes| serde_json::from_str::<Vec<DocumentNote>>(&notes).ok());
            entry.tags = tags.unwrap_or_default();
            entry.notes = notes.unwrap_or_default();
            entries.push((entry, is_member));
        }
        Ok(entries)
    }

    /// Returns the files in the record directory that are not records.
    pub(super) fn unreadable_files(&self) -> Result<UnreadableFiles, rusqlite::Error> {
        let mut statement = self
            .connection
            .prepare("SELECT name, why FROM file WHERE why IS NOT NULL ORDER BY name")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }
}

pub(super) fn lock_of(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    marks::open_lock(Path::new(&name))
}

fn open_file(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(LOCK_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Safe with WAL: a power failure may lose the latest rows, but does not damage the database.
    // Lost rows are read from their files again.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

fn is_sound(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(verdict == "ok")
}

/// Migrates the tables to the newest layout, under the writer's lock.
fn migrate(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "foreign_keys", true)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let applied = usize::try_from(version).unwrap_or(0);
    for (position, step) in MIGRATIONS.iter().enumerate().skip(applied) {
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "user_version", position as i64 + 1)?;
    }
    transaction.commit()
}

/// Fingerprint of a file version. Each record is written to a new file that is renamed, so the
/// inode changes.
fn file_fingerprint(metadata: &fs::Metadata) -> String {
    let (time, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    format!(
        "{} {} {time}.{nanoseconds:09}",
        metadata.ino(),
        metadata.len()
    )
}

/// Returns the JSON files of a directory with their fingerprints; empty if there is no directory.
fn json_files(dir: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') || !name.ends_with(".json") {
            continue;
        }
        if let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            files.insert(name, file_fingerprint(&metadata));
        }
    }
    files
}

/// Updates the tables from the files, in one transaction.
fn refresh(connection: &mut Connection, runs: &Path, marks: &Path) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Listed under the lock, so that files indexed by another process are not indexed twice.
    let present = json_files(runs);
    let indexed = read_fingerprints(&transaction, "SELECT name, stamp FROM file")?;
    for name in indexed.keys().filter(|name| !present.contains_key(*name)) {
        remove_rows(&transaction, name)?;
    }
    for (name, stamp) in &present {
        if indexed.get(name) != Some(stamp) {
            index_file(&transaction, runs, name, stamp)?;
        }
    }
    let present = json_files(marks);
    let indexed = read_fingerprints(&transaction, "SELECT id || '.json', stamp FROM mark")?;
    for name in indexed.keys().filter(|name| !present.contains_key(*name)) {
        transaction.execute("DELETE FROM mark WHERE id || '.json' = ?1", [name])?;
    }
    for (name, stamp) in present {
        if indexed.get(&name) == Some(&stamp) {
            continue;
        }
        let marks_of_file = marks::read(&marks.join(&name)).unwrap_or_default();
        let id = name.trim_end_matches(".json");
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let (tags, notes) = (
            json(serde_json::to_string(&marks_of_file.tags)),
            json(serde_json::to_string(&marks_of_file.notes)),
        );
        transaction.execute(
            "INSERT OR REPLACE INTO mark (id, stamp, tags, notes) VALUES (?1, ?2, ?3, ?4)",
            params![id, stamp, tags, notes],
        )?;
    }
    transaction.commit()
}

fn read_fingerprints(
    transaction: &Transaction,
    query: &str,
) -> Result<HashMap<String, String>, rusqlite::Error> {
    let mut statement = transaction.prepare(query)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

fn remove_rows(transaction: &Transaction, name: &str) -> Result<(), rusqlite::Error> {
    let id = name.trim_end_matches(".json");
    transaction.execute("DELETE FROM document WHERE id = ?1", [id])?;
    transaction.execute("DELETE FROM file WHERE name = ?1", [name])?;
    Ok(())
}

/// Indexes one file.
fn index_file(
    transaction: &Transaction,
    runs: &Path,
    name: &str,
    stamp: &str,
) -> Result<(), rusqlite::Error> {
    remove_rows(transaction, name)?;
    let read = fs::read_to_string(runs.join(name)).map_err(|error| error.to_string());
    let document =
        read.and_then(|text| Document::from_json(&text).map_err(|error| error.to_string()));
    let id = name.trim_end_matches(".json");
    let document = document.and_then(|document| match document.id() == id {
        true => Ok(document),
        false => Err(format!(
            "the file name does not match the id of its record, {}",
            document.id()
        )),
    });
    let why = document.as_ref().err();
    transaction.execute(
        "INSERT INTO file (name, stamp, why) VALUES (?1, ?2, ?3)",
        params![name, stamp, why],
    )?;
    let Ok(document) = document else {
        return Ok(());
    };
    let entry = HistoryEntry::summarise(&document);
    let text = serde_json::to_string(&entry).expect("an entry has a JSON form");
    transaction.execute(
        "INSERT INTO document (id, started, kind, target, plan, entry)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            entry.id,
            sortable_time(&entry),
            entry.kind,
            entry.target,
            entry.plan,
            text
        ],
    )?;
    for (figure, value) in &entry.figures {
        transaction.execute(
            "INSERT INTO figure (document, name, value) VALUES (?1, ?2, ?3)",
            params![entry.id, figure, value],
        )?;
    }
    for run in &entry.members {
        transaction.execute(
            "INSERT OR IGNORE INTO member (run, document) VALUES (?1, ?2)",
            params![run, entry.id],
        )?;
    }
    Ok(())
}

/// Formats a time so that it sorts as text, with all digits of the nanoseconds.
fn sortable_time(entry: &HistoryEntry) -> String {
    format!("{:.9}", entry.started)
}
