//! The index: what the files say, in a database that finds it faster.
//!
//! Nothing is in it that is not in a file, so a damaged one is thrown away and made again. It is
//! brought up to date before each use: measuring never waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, params};

use super::entry::{Entry, Note};
use super::marks;
use crate::document::Document;
use crate::store::locked_within;

/// Layout of the tables. Each step takes a database from its number to the next; `user_version` says
/// which have been taken.
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
    // Entries know who kept them, and sets their labels: all files are read again.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries of experiments know their names and the figures of their points: the same.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries know dialects, directions and the clients of servers: the same.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries of sweeps, comparisons and searches know what they came to: the same.
    "
DELETE FROM document;
DELETE FROM file;
",
    // Entries of experiments know the runs of their points, and how many expectations hold: the same.
    "
DELETE FROM document;
DELETE FROM file;
",
];

/// How long one process waits for another that is bringing the index up to date.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open index.
pub(super) struct Index {
    connection: Connection,
    /// Held while the database is used, so that nobody throws it away meanwhile.
    _lock: Option<File>,
    /// Why it is not on the disk, if it is not.
    pub(super) remark: Option<String>,
}

/// Files that are no records, with what they are instead.
pub(super) type Strange = Vec<(String, String)>;

/// What went wrong with the database.
enum Trouble {
    /// It can be thrown away and made again.
    Damaged(rusqlite::Error),
    /// It cannot be kept on this disk now.
    Unusable(String),
}

/// What a failure of the database means, where its own words say little: `disk I/O error`.
pub(super) fn words(error: &rusqlite::Error) -> String {
    let meaning = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "there is no room on its disk",
        // With a log that is mapped into memory a full disk is told so, too.
        Some(ErrorCode::SystemIoFailure) => "its disk is full, or fails",
        Some(ErrorCode::ReadOnly) => "it may not be written",
        Some(ErrorCode::CannotOpen) => "it cannot be made or opened there",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process has held it for half a minute"
        }
        _ => return error.to_string(),
    };
    meaning.to_owned()
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error),
            _ => Self::Unusable(words(&error)),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl Index {
    /// Opens the index at `path` and brings it up to date with the files of both folders. A damaged
    /// one is made again; where none can be kept (full disk, folder that cannot be written, index of a
    /// newer version) it is made in memory, with a remark.
    pub(super) fn open(path: &Path, runs: &Path, marks: &Path) -> Result<Self, rusqlite::Error> {
        let why = match Self::on_disk(path, runs, marks) {
            Ok(index) => return Ok(index),
            Err(Trouble::Damaged(error)) => match Self::anew(path, runs, marks) {
                Ok(index) => return Ok(index),
                Err(Trouble::Unusable(why)) => why,
                Err(Trouble::Damaged(_)) => error.to_string(),
            },
            // Before the first run is stored there is no folder, and nothing to keep in it.
            Err(Trouble::Unusable(_)) if path.parent().is_some_and(|base| !base.exists()) => {
                String::new()
            }
            Err(Trouble::Unusable(why)) => why,
        };
        let mut connection = Connection::open_in_memory()?;
        prepare(&mut connection)?;
        refresh(&mut connection, runs, marks)?;
        Ok(Self {
            connection,
            _lock: None,
            remark: (!why.is_empty()).then(|| {
                format!(
                    "the index {} cannot be kept ({why}); records were read one by one",
                    path.display()
                )
            }),
        })
    }

    fn on_disk(path: &Path, runs: &Path, marks: &Path) -> Result<Self, Trouble> {
        let lock = lock_of(path)?;
        lock.lock_shared()?;
        Self::with_lock(lock, path, runs, marks)
    }

    /// Throws a damaged index away, when nobody uses it, and makes it again.
    fn anew(path: &Path, runs: &Path, marks: &Path) -> Result<Self, Trouble> {
        let lock = lock_of(path)?;
        if !locked_within(&lock, PATIENCE)? {
            return Err(Trouble::Unusable(
                "it is damaged, and another process uses it".to_owned(),
            ));
        }
        // Somebody may have made it again while this process waited.
        let sound = open_file(path).and_then(|connection| is_sound(&connection));
        if !matches!(sound, Ok(true)) {
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

    fn with_lock(lock: File, path: &Path, runs: &Path, marks: &Path) -> Result<Self, Trouble> {
        let mut connection = open_file(path)?;
        if !is_sound(&connection)? {
            return Err(Trouble::Damaged(rusqlite::Error::InvalidQuery));
        }
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version > MIGRATIONS.len() as i64 {
            return Err(Trouble::Unusable(format!(
                "a newer linerate made it: its layout is {version}, this one knows {}",
                MIGRATIONS.len()
            )));
        }
        prepare(&mut connection)?;
        refresh(&mut connection, runs, marks)?;
        // What was read is used at once, and may be read by others meanwhile.
        lock.lock_shared()?;
        Ok(Self {
            connection,
            _lock: Some(lock),
            remark: None,
        })
    }

    /// Every document, the oldest first, with whether it belongs to a set.
    pub(super) fn entries(&self) -> Result<Vec<(Entry, bool)>, rusqlite::Error> {
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
            let (entry, tags, notes, member) = row?;
            // What this very version wrote it can read: a row that it cannot is damage.
            let Ok(mut entry) = serde_json::from_str::<Entry>(&entry) else {
                continue;
            };
            let tags = tags.and_then(|tags| serde_json::from_str::<BTreeSet<String>>(&tags).ok());
            let notes = notes.and_then(|notes| serde_json::from_str::<Vec<Note>>(&notes).ok());
            entry.tags = tags.unwrap_or_default();
            entry.notes = notes.unwrap_or_default();
            entries.push((entry, member));
        }
        Ok(entries)
    }

    /// Files in the folder of records that are none.
    pub(super) fn strange(&self) -> Result<Strange, rusqlite::Error> {
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
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // With WAL this cannot damage the database: a power cut may lose the latest rows, which are read
    // from their files again.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

fn is_sound(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(verdict == "ok")
}

/// Brings the tables to the newest layout, under the lock of the one writer.
fn prepare(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    connection.pragma_update(None, "foreign_keys", true)?;
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = change.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let taken = usize::try_from(version).unwrap_or(0);
    for (position, step) in MIGRATIONS.iter().enumerate().skip(taken) {
        change.execute_batch(step)?;
        change.pragma_update(None, "user_version", position as i64 + 1)?;
    }
    change.commit()
}

/// What tells a file that was replaced: each record is a new file, renamed into its place.
fn stamp(facts: &fs::Metadata) -> String {
    let (time, nanoseconds) = (facts.mtime(), facts.mtime_nsec());
    format!("{} {} {time}.{nanoseconds:09}", facts.ino(), facts.len())
}

/// The JSON files of a folder with their stamps; none where there is no folder.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for found in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = found.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') || !name.ends_with(".json") {
            continue;
        }
        if let Ok(facts) = found.metadata()
            && facts.is_file()
        {
            files.insert(name, stamp(&facts));
        }
    }
    files
}

/// Makes the tables say what the files say, in one transaction.
fn refresh(connection: &mut Connection, runs: &Path, marks: &Path) -> Result<(), rusqlite::Error> {
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Listed under the lock: what another process indexed meanwhile is not done twice.
    let now = files(runs);
    let known = stamps(&change, "SELECT name, stamp FROM file")?;
    for name in known.keys().filter(|name| !now.contains_key(*name)) {
        forget(&change, name)?;
    }
    for (name, stamp) in &now {
        if known.get(name) != Some(stamp) {
            take(&change, runs, name, stamp)?;
        }
    }
    let now = files(marks);
    let known = stamps(&change, "SELECT id || '.json', stamp FROM mark")?;
    for name in known.keys().filter(|name| !now.contains_key(*name)) {
        change.execute("DELETE FROM mark WHERE id || '.json' = ?1", [name])?;
    }
    for (name, stamp) in now {
        if known.get(&name) == Some(&stamp) {
            continue;
        }
        let found = marks::read(&marks.join(&name)).unwrap_or_default();
        let id = name.trim_end_matches(".json");
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let (tags, notes) = (
            json(serde_json::to_string(&found.tags)),
            json(serde_json::to_string(&found.notes)),
        );
        change.execute(
            "INSERT OR REPLACE INTO mark (id, stamp, tags, notes) VALUES (?1, ?2, ?3, ?4)",
            params![id, stamp, tags, notes],
        )?;
    }
    change.commit()
}

fn stamps(change: &Transaction, query: &str) -> Result<HashMap<String, String>, rusqlite::Error> {
    let mut statement = change.prepare(query)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

fn forget(change: &Transaction, name: &str) -> Result<(), rusqlite::Error> {
    let id = name.trim_end_matches(".json");
    change.execute("DELETE FROM document WHERE id = ?1", [id])?;
    change.execute("DELETE FROM file WHERE name = ?1", [name])?;
    Ok(())
}

/// Reads one file into the tables.
fn take(change: &Transaction, runs: &Path, name: &str, stamp: &str) -> Result<(), rusqlite::Error> {
    forget(change, name)?;
    let read = fs::read_to_string(runs.join(name)).map_err(|error| error.to_string());
    let document =
        read.and_then(|text| Document::from_json(&text).map_err(|error| error.to_string()));
    let id = name.trim_end_matches(".json");
    let document = document.and_then(|document| match document.id() == id {
        true => Ok(document),
        false => Err(format!(
            "named otherwise than the record in it, {}",
            document.id()
        )),
    });
    let why = document.as_ref().err();
    change.execute(
        "INSERT INTO file (name, stamp, why) VALUES (?1, ?2, ?3)",
        params![name, stamp, why],
    )?;
    let Ok(document) = document else {
        return Ok(());
    };
    let entry = Entry::of(&document);
    let text = serde_json::to_string(&entry).expect("an entry holds only what JSON can say");
    change.execute(
        "INSERT INTO document (id, started, kind, target, plan, entry)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            entry.id,
            order(&entry),
            entry.kind,
            entry.target,
            entry.plan,
            text
        ],
    )?;
    for (figure, value) in &entry.figures {
        change.execute(
            "INSERT INTO figure (document, name, value) VALUES (?1, ?2, ?3)",
            params![entry.id, figure, value],
        )?;
    }
    for run in &entry.members {
        change.execute(
            "INSERT OR IGNORE INTO member (run, document) VALUES (?1, ?2)",
            params![run, entry.id],
        )?;
    }
    Ok(())
}

/// A time that sorts as text: all digits of the nanoseconds.
fn order(entry: &Entry) -> String {
    format!("{:.9}", entry.started)
}
