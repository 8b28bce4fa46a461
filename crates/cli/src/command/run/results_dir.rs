//! Directory of an experiment's results: owner, lock, and removal if it stays empty.

use std::fs::{File, create_dir_all, read_dir, read_to_string, remove_dir, remove_file, write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_metric::event::Problem;
use linerate_metric::experiment::ExperimentResult;
use linerate_metric::run_set::RunSet;
use linerate_report::document::Document;
use linerate_report::store::locked_within;

use crate::command::demo::prepare_folder;
use crate::failure::Failure;

/// Time to wait at the start for another process that is writing: a report takes a second at most.
const BEGIN: Duration = Duration::from_secs(2);

/// Time to wait after the measurement: a table without the lock is better than none.
const END: Duration = Duration::from_secs(20);

/// Table whose results go into a directory.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// Name of the experiment.
    pub name: &'a str,
    /// Label of a growing table.
    pub label: Option<&'a str>,
    /// The run is resumed: its directory is fixed.
    pub resumes: bool,
}

/// File that names the table of unfinished results, so that leftovers belong to it.
const UNFINISHED: &str = ".unfinished";

impl Table<'_> {
    /// Returns the experiment and its label, as on the command line.
    fn whose(self) -> String {
        match self.label {
            Some(label) => format!("{} --label {label}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// Directory for the results of one table. On drop, created directories that stayed empty are
/// removed.
pub struct Folder {
    /// Created directories, innermost first.
    made: Vec<PathBuf>,
    /// File that names the table, if written.
    marked: Option<PathBuf>,
    held: Option<File>,
}

impl Folder {
    /// Checks before a measurement that the results of this table may be written there, and that no
    /// other file has a name that its commands will write (`left`). Several processes at a time may
    /// only add to a growing table.
    ///
    /// # Errors
    /// Fails if the directory cannot be created or written, holds something else, or is used by
    /// another process.
    pub fn prepare(dir: &Path, table: Table, left: &[String]) -> Result<Self, Failure> {
        check(dir, table)?;
        let parts = dir.ancestors().filter(|part| !part.as_os_str().is_empty());
        let made = parts.take_while(|part| !part.exists());
        let mut folder = Self {
            made: made.map(Path::to_owned).collect(),
            marked: None,
            held: None,
        };
        prepare_folder(dir)?;
        folder.take(dir, table)?;
        folder.mark(dir, table, left)?;
        Ok(folder)
    }

    /// Writes the file that names the table. Only processes that add to the same table may share
    /// the directory.
    fn mark(&mut self, dir: &Path, table: Table, left: &[String]) -> Result<(), Failure> {
        let mark = dir.join(UNFINISHED);
        let own = table.whose();
        let is_own =
            table.resumes || read_to_string(&mark).is_ok_and(|text| text.trim_end() == own);
        let mut left = left.iter().map(|file| dir.join(file));
        // A dangling symbolic link counts as a file too.
        if let Some(there) = left.find(|file| !is_own && file.symlink_metadata().is_ok()) {
            return Err(in_the_way(
                "exists and does not belong to this table",
                &there,
                table,
            ));
        }
        // If this fails, later writes fail too and are reported.
        let _ = write(&mark, own + "\n");
        self.marked = Some(mark);
        Ok(())
    }

    /// Locks the directory; the lock is kept unless other processes may add to its table.
    fn take(&mut self, dir: &Path, table: Table) -> Result<(), Failure> {
        let Ok(held) = lock(dir, BEGIN) else {
            // The other process needs the directories, even if they are still empty.
            self.made.clear();
            return Err(Failure::failed(Problem::new(
                "in use by another process that measures into it",
                dir.display().to_string(),
                match table.resumes {
                    true => "wait until it ends, then use --resume",
                    false => "wait until it ends, or name another directory with --dir",
                },
            )));
        };
        self.held = held.filter(|_| table.label.is_none());
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mark) = &self.marked
            && let Some(dir) = mark.parent()
            && (dir.join("result.json").exists() || is_alone(dir))
        {
            let _ = remove_file(mark);
        }
        // `remove_dir` fails for a directory with content, and then its parents are kept too.
        let _ = self.made.iter().try_for_each(remove_dir);
        // The lock is released last, so that a waiting process finds the directory removed.
    }
}

/// Returns whether the directory contains only the file that names the table.
fn is_alone(dir: &Path) -> bool {
    read_dir(dir).is_ok_and(|files| files.count() == 1)
}

/// Locks the directory of a growing table until the returned file is closed: without it, two
/// processes that read and write the table at once would lose points. `None` if it cannot be
/// locked.
pub fn hold(dir: &Path) -> Option<File> {
    // Another process without results may have removed it.
    create_dir_all(dir).ok()?;
    lock(dir, END).ok().flatten()
}

/// The directory is locked by another process.
struct InUse;

/// Locks a directory within a time; `None` if directories cannot be locked.
fn lock(dir: &Path, within: Duration) -> Result<Option<File>, InUse> {
    let Ok(folder) = File::open(dir) else {
        return Ok(None);
    };
    match locked_within(&folder, within) {
        Ok(true) => Ok(Some(folder)),
        Ok(false) => Err(InUse),
        Err(_) => Ok(None),
    }
}

/// Checks that results of this table may replace those in a directory: it is empty, or has the same
/// experiment and label.
///
/// # Errors
/// Fails if it contains something else.
pub fn check(dir: &Path, table: Table) -> Result<(), Failure> {
    let results = ["result.json", "report.html"].map(|file| dir.join(file));
    let Some(there) = results.iter().find(|file| file.exists()) else {
        return Ok(());
    };
    let before = table_in(dir);
    let result = before.as_ref().and_then(result_of);
    let is_own = |found: &ExperimentResult| {
        found.name == table.name && found.label.as_deref() == table.label
    };
    if result.is_some_and(is_own) {
        return Ok(());
    }
    let what = match result {
        Some(found) => match &found.label {
            Some(label) => format!("holds the results of {} --label {label}", found.name),
            None => format!("holds the results of {} without a label", found.name),
        },
        None => "exists and does not belong to this table".to_owned(),
    };
    Err(in_the_way(&what, there, table))
}

/// Returns the error for a file that results would overwrite.
fn in_the_way(what: &str, there: &Path, table: Table) -> Failure {
    Failure::usage(Problem::new(
        format!("{what}, but would be overwritten"),
        there.display().to_string(),
        match table.resumes {
            true => "move it away, then use --resume",
            false => "name another directory with --dir, or move it away",
        },
    ))
}

/// Returns the table in a directory.
pub fn table_in(dir: &Path) -> Option<RunSet> {
    let text = read_to_string(dir.join("result.json")).ok()?;
    match Document::from_json(&text) {
        Ok(Document::Set(set)) => Some(*set),
        _ => None,
    }
}

fn result_of(set: &RunSet) -> Option<&ExperimentResult> {
    set.result.experiment.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use linerate_metric::exit;
    use linerate_metric::run_set::{SET_SCHEMA, SetResult};

    const SMALL: Table = Table {
        name: "small",
        label: None,
        resumes: false,
    };

    /// Returns the result file of a table.
    fn result(name: &str, label: Option<&str>) -> String {
        let result = ExperimentResult {
            name: name.to_owned(),
            label: label.map(str::to_owned),
            ..ExperimentResult::default()
        };
        let set = RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: "before".to_owned(),
            kind: "experiment".to_owned(),
            started: Timestamp::UNIX_EPOCH,
            interrupted: false,
            runs: Vec::new(),
            result: SetResult {
                experiment: Some(Box::new(result)),
                ..SetResult::default()
            },
        };
        serde_json::to_string(&set).unwrap()
    }

    #[test]
    fn a_folder_that_nothing_was_put_into_goes_with_whatever_was_made_for_it() {
        let room = tempfile::tempdir().unwrap();
        let (outer, dir) = (room.path().join("a"), room.path().join("a/b"));
        drop(Folder::prepare(&dir, SMALL, &[]).unwrap());
        assert!(!outer.exists());
        // Directories that existed before stay, and so do those with content.
        std::fs::create_dir(&outer).unwrap();
        drop(Folder::prepare(&dir, SMALL, &[]).unwrap());
        assert!(outer.exists() && !dir.exists());
        let folder = Folder::prepare(&dir, SMALL, &[]).unwrap();
        std::fs::write(dir.join("result.json"), result("small", None)).unwrap();
        drop(folder);
        assert!(dir.join("result.json").exists());
    }

    #[test]
    fn results_take_the_place_of_their_own_kind_alone() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path();
        let told = |label| {
            let folder = Folder::prepare(dir, Table { label, ..SMALL }, &[]).map(drop);
            folder.map_err(|failure| (failure.code, failure.problem.to_string()))
        };
        assert_eq!(told(None), Ok(()));
        let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
        for (file, text, label, says) in [
            ("report.html", "<p>", None, "does not belong to this table"),
            ("result.json", "{}", None, "does not belong to this table"),
            (
                "result.json",
                &result("other", None),
                None,
                "holds the results of other without a label",
            ),
            (
                "result.json",
                &result("small", None),
                Some("bench"),
                "holds the results of small without a label",
            ),
            (
                "result.json",
                &result("small", Some("bench")),
                None,
                "holds the results of small --label bench",
            ),
        ] {
            write(file, text);
            let (code, said) = told(label).unwrap_err();
            assert!(code == exit::USAGE && said.contains(says), "{code} {said}");
        }
        assert_eq!(told(Some("bench")), Ok(()));
        write("result.json", &result("small", None));
        assert_eq!(told(None), Ok(()));
        for (resumes, next_step) in [
            (false, "name another directory with --dir, or move it away"),
            // With --resume, --dir is not possible.
            (true, "move it away, then use --resume"),
        ] {
            let other = Table {
                name: "other",
                resumes,
                ..SMALL
            };
            let failure = check(dir, other).unwrap_err();
            assert_eq!(failure.problem.next_step, next_step);
        }
    }

    #[test]
    fn a_file_that_a_command_would_write_over_is_its_owners() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path();
        let left = ["send.pftrace".to_owned()];
        let told = |table| {
            let folder = Folder::prepare(dir, table, &left).map(drop);
            folder.map_err(|failure| failure.problem.object)
        };
        std::fs::write(dir.join("notes.txt"), "mine").unwrap();
        assert_eq!(told(SMALL), Ok(()));
        std::fs::remove_file(dir.join(UNFINISHED)).unwrap();
        let file = dir.join("send.pftrace");
        std::fs::write(&file, "mine").unwrap();
        let refused = Err(file.display().to_string());
        assert_eq!(told(SMALL), refused);
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        assert_eq!(told(SMALL), refused);
        // A resumed run wrote it itself.
        let resumed = Table {
            resumes: true,
            ..SMALL
        };
        assert_eq!(told(resumed), Ok(()));
        std::fs::remove_file(dir.join(UNFINISHED)).unwrap();
        // The table there did not write it.
        std::fs::write(dir.join("result.json"), result("small", None)).unwrap();
        assert_eq!(told(SMALL), refused);
        assert_eq!(told(resumed), Ok(()));
        assert!(!dir.join(UNFINISHED).exists());
    }

    /// The run was interrupted before a point was measured, or was killed.
    #[test]
    fn what_an_ended_run_left_is_its_own() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("a");
        let left = ["send.pftrace".to_owned()];
        let file = dir.join("send.pftrace");
        let other = Table {
            label: Some("other"),
            ..SMALL
        };
        let first = Folder::prepare(&dir, SMALL, &left).unwrap();
        std::fs::write(&file, "left").unwrap();
        // A process that starts meanwhile gets the lock error first.
        let failure = Folder::prepare(&dir, SMALL, &left).err().unwrap();
        assert!(failure.problem.situation.contains("in use"));
        drop(first);
        assert!(dir.join(UNFINISHED).exists());
        drop(Folder::prepare(&dir, SMALL, &left).unwrap());
        assert!(Folder::prepare(&dir, other, &left).is_err());
        // Two processes that add to the same table write the same files.
        std::fs::remove_dir_all(&dir).unwrap();
        let both = [(); 2].map(|()| {
            let folder = Folder::prepare(&dir, other, &left).unwrap();
            std::fs::write(&file, "left").unwrap();
            folder
        });
        drop(both);
        std::fs::remove_file(&file).unwrap();
        drop(Folder::prepare(&dir, other, &left).unwrap());
        assert!(dir.exists() && std::fs::read_dir(&dir).unwrap().count() == 0);
    }

    #[test]
    fn an_empty_folder_that_another_process_was_faster_to_take_stays() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("a");
        let first = Folder::prepare(&dir, SMALL, &[]).unwrap();
        // It did not exist when this process checked.
        let mut second = Folder {
            made: vec![dir.clone()],
            marked: None,
            held: None,
        };
        assert!(second.take(&dir, SMALL).is_err());
        drop(second);
        assert!(dir.exists());
        drop(first);
        assert!(!dir.exists());
    }

    #[test]
    fn two_at_a_time_measure_for_a_table_that_grows_alone() {
        let room = tempfile::tempdir().unwrap();
        let prepare = |label| Folder::prepare(room.path(), Table { label, ..SMALL }, &[]);
        let grows = [prepare(Some("bench")), prepare(Some("bench"))];
        assert!(grows.iter().all(Result::is_ok));
        let one = prepare(None).unwrap();
        let told = prepare(None).map(drop).unwrap_err().problem;
        assert!(told.situation.contains("another process"), "{told}");
        drop(one);
        assert!(prepare(None).is_ok());
    }
}
