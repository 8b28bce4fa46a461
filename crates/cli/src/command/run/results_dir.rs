//! Directory of an experiment's results: owner, lock, and removal if it stays empty.

use std::fs::{File, create_dir_all, read_dir, read_to_string, remove_dir, remove_file, write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_record::event::ErrorReport;
use linerate_record::experiment::ExperimentResult;
use linerate_record::run_set::RunSet;
use linerate_report::document::Document;
use linerate_report::store::lock_within;

use crate::command::demo::prepare_dir;
use crate::failure::CommandFailure;

/// Time to wait at the start for another process that is writing: a report takes a second at most.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Time to wait after the measurement: a table without the lock is better than none.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Table whose results go into a directory.
#[derive(Clone, Copy)]
pub struct ResultsTable<'a> {
    /// Name of the experiment.
    pub name: &'a str,
    /// Label of a growing table.
    pub label: Option<&'a str>,
    /// The run is resumed: its directory is fixed.
    pub is_resumed: bool,
}

/// File that names the table of unfinished results, so that leftovers belong to it.
const UNFINISHED_FILE: &str = ".unfinished";

impl ResultsTable<'_> {
    /// Returns the experiment and its label, as on the command line.
    fn owner_name(self) -> String {
        match self.label {
            Some(label) => format!("{} --label {label}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// Directory for the results of one table. On drop, created directories that stayed empty are
/// removed.
pub struct ResultsDir {
    /// Created directories, innermost first.
    created_dirs: Vec<PathBuf>,
    /// File that names the table, if written.
    owner_file: Option<PathBuf>,
    lock: Option<File>,
}

impl ResultsDir {
    /// Checks before a measurement that the results of this table may be written there, and that no
    /// other file has a name that its commands will write (`expected_files`). Several processes at
    /// a time may only add to a growing table.
    ///
    /// # Errors
    /// Fails if the directory cannot be created or written, holds something else, or is used by
    /// another process.
    pub fn prepare(
        dir: &Path,
        table: ResultsTable,
        expected_files: &[String],
    ) -> Result<Self, CommandFailure> {
        check_results(dir, table)?;
        let parts = dir.ancestors().filter(|part| !part.as_os_str().is_empty());
        let created = parts.take_while(|part| !part.exists());
        let mut results_dir = Self {
            created_dirs: created.map(Path::to_owned).collect(),
            owner_file: None,
            lock: None,
        };
        prepare_dir(dir)?;
        results_dir.lock_dir(dir, table)?;
        results_dir.write_owner_file(dir, table, expected_files)?;
        Ok(results_dir)
    }

    /// Writes the file that names the table. Only processes that add to the same table may share
    /// the directory.
    fn write_owner_file(
        &mut self,
        dir: &Path,
        table: ResultsTable,
        expected_files: &[String],
    ) -> Result<(), CommandFailure> {
        let mark = dir.join(UNFINISHED_FILE);
        let owner = table.owner_name();
        let belongs_to_table =
            table.is_resumed || read_to_string(&mark).is_ok_and(|text| text.trim_end() == owner);
        let mut expected_files = expected_files.iter().map(|file| dir.join(file));
        // A dangling symbolic link counts as a file too.
        if let Some(existing) =
            expected_files.find(|file| !belongs_to_table && file.symlink_metadata().is_ok())
        {
            return Err(would_overwrite(
                "exists and does not belong to this table",
                &existing,
                table,
            ));
        }
        // If this fails, later writes fail too and are reported.
        let _ = write(&mark, owner + "\n");
        self.owner_file = Some(mark);
        Ok(())
    }

    /// Locks the directory; the lock is kept unless other processes may add to its table.
    fn lock_dir(&mut self, dir: &Path, table: ResultsTable) -> Result<(), CommandFailure> {
        let Ok(held) = lock_dir_within(dir, START_TIMEOUT) else {
            // The other process needs the directories, even if they are still empty.
            self.created_dirs.clear();
            return Err(CommandFailure::failed(ErrorReport::new(
                "in use by another process that measures into it",
                dir.display().to_string(),
                match table.is_resumed {
                    true => "wait until it ends, then use --resume",
                    false => "wait until it ends, or name another directory with --dir",
                },
            )));
        };
        self.lock = held.filter(|_| table.label.is_none());
        Ok(())
    }
}

impl Drop for ResultsDir {
    fn drop(&mut self) {
        if let Some(mark) = &self.owner_file
            && let Some(dir) = mark.parent()
            && (dir.join("result.json").exists() || has_only_owner_file(dir))
        {
            let _ = remove_file(mark);
        }
        // `remove_dir` fails for a directory with content, and then its parents are kept too.
        let _ = self.created_dirs.iter().try_for_each(remove_dir);
        // The lock is released last, so that a waiting process finds the directory removed.
    }
}

/// Returns whether the directory contains only the file that names the table.
fn has_only_owner_file(dir: &Path) -> bool {
    read_dir(dir).is_ok_and(|files| files.count() == 1)
}

/// Locks the directory of a growing table until the returned file is closed: without it, two
/// processes that read and write the table at once would lose points. `None` if it cannot be
/// locked.
pub fn lock_table_dir(dir: &Path) -> Option<File> {
    // Another process without results may have removed it.
    create_dir_all(dir).ok()?;
    lock_dir_within(dir, WRITE_TIMEOUT).ok().flatten()
}

/// The directory is locked by another process.
struct DirInUse;

/// Locks a directory within a time; `None` if directories cannot be locked.
fn lock_dir_within(dir: &Path, timeout: Duration) -> Result<Option<File>, DirInUse> {
    let Ok(dir_file) = File::open(dir) else {
        return Ok(None);
    };
    match lock_within(&dir_file, timeout) {
        Ok(true) => Ok(Some(dir_file)),
        Ok(false) => Err(DirInUse),
        Err(_) => Ok(None),
    }
}

/// Checks that results of this table may replace those in a directory: it is empty, or has the same
/// experiment and label.
///
/// # Errors
/// Fails if it contains something else.
pub fn check_results(dir: &Path, table: ResultsTable) -> Result<(), CommandFailure> {
    let results = ["result.json", "report.html"].map(|file| dir.join(file));
    let Some(existing) = results.iter().find(|file| file.exists()) else {
        return Ok(());
    };
    let before = table_in(dir);
    let result = before.as_ref().and_then(result_of);
    let belongs_to_table = |stored: &ExperimentResult| {
        stored.name == table.name && stored.label.as_deref() == table.label
    };
    if result.is_some_and(belongs_to_table) {
        return Ok(());
    }
    let situation = match result {
        Some(stored) => match &stored.label {
            Some(label) => format!("holds the results of {} --label {label}", stored.name),
            None => format!("holds the results of {} without a label", stored.name),
        },
        None => "exists and does not belong to this table".to_owned(),
    };
    Err(would_overwrite(&situation, existing, table))
}

/// Returns the error for a file that results would overwrite.
fn would_overwrite(situation: &str, existing: &Path, table: ResultsTable) -> CommandFailure {
    CommandFailure::usage(ErrorReport::new(
        format!("{situation}, but would be overwritten"),
        existing.display().to_string(),
        match table.is_resumed {
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
    use jiff::Timestamp;
    use linerate_record::exit_codes;
    use linerate_record::run_set::{SET_SCHEMA, SetResult};

    use super::*;

    const SMALL: ResultsTable = ResultsTable {
        name: "small",
        label: None,
        is_resumed: false,
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
    fn an_empty_directory_is_removed_with_its_created_parents() {
        let temp = tempfile::tempdir().unwrap();
        let (outer, dir) = (temp.path().join("a"), temp.path().join("a/b"));
        drop(ResultsDir::prepare(&dir, SMALL, &[]).unwrap());
        assert!(!outer.exists());
        // Directories that existed before stay, and so do those with content.
        std::fs::create_dir(&outer).unwrap();
        drop(ResultsDir::prepare(&dir, SMALL, &[]).unwrap());
        assert!(outer.exists() && !dir.exists());
        let results_dir = ResultsDir::prepare(&dir, SMALL, &[]).unwrap();
        std::fs::write(dir.join("result.json"), result("small", None)).unwrap();
        drop(results_dir);
        assert!(dir.join("result.json").exists());
    }

    #[test]
    fn results_replace_only_those_of_the_same_table() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let check = |label| {
            let results_dir =
                ResultsDir::prepare(dir, ResultsTable { label, ..SMALL }, &[]).map(drop);
            results_dir.map_err(|failure| (failure.code, failure.problem.to_string()))
        };
        assert_eq!(check(None), Ok(()));
        let write = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
        for (file, text, label, expected) in [
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
            let (code, message) = check(label).unwrap_err();
            assert!(
                code == exit_codes::USAGE && message.contains(expected),
                "{code} {message}"
            );
        }
        assert_eq!(check(Some("bench")), Ok(()));
        write("result.json", &result("small", None));
        assert_eq!(check(None), Ok(()));
        for (resumes, next_step) in [
            (false, "name another directory with --dir, or move it away"),
            // With --resume, --dir is not possible.
            (true, "move it away, then use --resume"),
        ] {
            let other_table = ResultsTable {
                name: "other",
                is_resumed: resumes,
                ..SMALL
            };
            let failure = check_results(dir, other_table).unwrap_err();
            assert_eq!(failure.problem.next_step, next_step);
        }
    }

    #[test]
    fn a_file_that_a_command_would_write_over_is_its_owners() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let expected_files = ["send.pftrace".to_owned()];
        let check = |table| {
            let results_dir = ResultsDir::prepare(dir, table, &expected_files).map(drop);
            results_dir.map_err(|failure| failure.problem.object)
        };
        std::fs::write(dir.join("notes.txt"), "mine").unwrap();
        assert_eq!(check(SMALL), Ok(()));
        std::fs::remove_file(dir.join(UNFINISHED_FILE)).unwrap();
        let file = dir.join("send.pftrace");
        std::fs::write(&file, "mine").unwrap();
        let rejected = Err(file.display().to_string());
        assert_eq!(check(SMALL), rejected);
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        assert_eq!(check(SMALL), rejected);
        // A resumed run wrote it itself.
        let resumed = ResultsTable {
            is_resumed: true,
            ..SMALL
        };
        assert_eq!(check(resumed), Ok(()));
        std::fs::remove_file(dir.join(UNFINISHED_FILE)).unwrap();
        // The table there did not write it.
        std::fs::write(dir.join("result.json"), result("small", None)).unwrap();
        assert_eq!(check(SMALL), rejected);
        assert_eq!(check(resumed), Ok(()));
        assert!(!dir.join(UNFINISHED_FILE).exists());
    }

    /// The run was interrupted before a point was measured, or was killed.
    #[test]
    fn leftovers_of_an_interrupted_run_belong_to_it() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a");
        let expected_files = ["send.pftrace".to_owned()];
        let file = dir.join("send.pftrace");
        let other_table = ResultsTable {
            label: Some("other"),
            ..SMALL
        };
        let first = ResultsDir::prepare(&dir, SMALL, &expected_files).unwrap();
        std::fs::write(&file, "left").unwrap();
        // A process that starts meanwhile gets the lock error first.
        let failure = ResultsDir::prepare(&dir, SMALL, &expected_files)
            .err()
            .unwrap();
        assert!(failure.problem.situation.contains("in use"));
        drop(first);
        assert!(dir.join(UNFINISHED_FILE).exists());
        drop(ResultsDir::prepare(&dir, SMALL, &expected_files).unwrap());
        assert!(ResultsDir::prepare(&dir, other_table, &expected_files).is_err());
        // Two processes that add to the same table write the same files.
        std::fs::remove_dir_all(&dir).unwrap();
        let both_dirs = [(); 2].map(|()| {
            let results_dir = ResultsDir::prepare(&dir, other_table, &expected_files).unwrap();
            std::fs::write(&file, "left").unwrap();
            results_dir
        });
        drop(both_dirs);
        std::fs::remove_file(&file).unwrap();
        drop(ResultsDir::prepare(&dir, other_table, &expected_files).unwrap());
        assert!(dir.exists() && std::fs::read_dir(&dir).unwrap().count() == 0);
    }

    #[test]
    fn an_empty_folder_that_another_process_was_faster_to_take_stays() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a");
        let first = ResultsDir::prepare(&dir, SMALL, &[]).unwrap();
        // It did not exist when this process checked.
        let mut second = ResultsDir {
            created_dirs: vec![dir.clone()],
            owner_file: None,
            lock: None,
        };
        assert!(second.lock_dir(&dir, SMALL).is_err());
        drop(second);
        assert!(dir.exists());
        drop(first);
        assert!(!dir.exists());
    }

    #[test]
    fn two_at_a_time_measure_for_a_table_that_grows_alone() {
        let temp = tempfile::tempdir().unwrap();
        let prepare =
            |label| ResultsDir::prepare(temp.path(), ResultsTable { label, ..SMALL }, &[]);
        let growing = [prepare(Some("bench")), prepare(Some("bench"))];
        assert!(growing.iter().all(Result::is_ok));
        let only = prepare(None).unwrap();
        let problem = prepare(None).map(drop).unwrap_err().problem;
        assert!(problem.situation.contains("another process"), "{problem}");
        drop(only);
        assert!(prepare(None).is_ok());
    }
}
