//! Documents that were removed lately: kept for a day, so that a removal can be undone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::marks::ignore_not_found;

/// Time for which a removal can be undone.
pub const UNDO_TIME: Duration = Duration::from_secs(24 * 3600);

/// Directory of removed files, beside that of the records.
#[derive(Clone, Debug)]
pub(super) struct RemovedDir {
    path: PathBuf,
}

impl RemovedDir {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Moves a file here, if it exists, and deletes files that are older than [`UNDO_TIME`].
    pub(super) fn put(&self, file: &Path, name: &str) -> io::Result<()> {
        (DirBuilder::new().recursive(true).mode(0o700)).create(&self.path)?;
        self.delete_old();
        let kept = self.path.join(name);
        ignore_not_found(fs::rename(file, &kept))?;
        // The time of removal, not that of the measurement, starts the day.
        match fs::File::options().append(true).open(&kept) {
            Ok(kept) => kept.set_modified(std::time::SystemTime::now()),
            Err(error) => ignore_not_found(Err(error)),
        }
    }

    /// Moves a file back, if it is here.
    pub(super) fn take(&self, name: &str, file: &Path) -> io::Result<()> {
        if let Some(dir) = file.parent() {
            (DirBuilder::new().recursive(true).mode(0o700)).create(dir)?;
        }
        ignore_not_found(fs::rename(self.path.join(name), file))
    }

    /// Returns the ids of the documents here, the oldest first.
    pub(super) fn ids(&self) -> Vec<String> {
        self.delete_old();
        let files = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let mut ids: Vec<String> = names
            .filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()))
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Deletes what cannot be restored any more; a file that cannot be deleted stays.
    fn delete_old(&self) {
        for file in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let age = file.metadata().and_then(|found| found.modified());
            let age = age.ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > UNDO_TIME) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn removals_are_kept_for_a_day() {
        let dir = tempfile::tempdir().expect("a directory");
        let removed = RemovedDir::new(dir.path().join("removed"));
        let file = dir.path().join("x");
        fs::write(&file, "content").expect("a file");
        removed.put(&file, "x.json").expect("it is moved");
        // A document without marks.
        removed
            .put(&dir.path().join("none"), "x.marks")
            .expect("nothing is moved");
        assert_eq!(removed.ids(), ["x"]);
        assert!(!file.exists());
        removed.take("x.json", &file).expect("it is moved back");
        assert!(file.exists() && removed.ids().is_empty());
        removed.put(&file, "x.json").expect("it is moved");
        let kept = fs::File::options()
            .append(true)
            .open(removed.path.join("x.json"));
        let yesterday = SystemTime::now() - UNDO_TIME - Duration::from_secs(1);
        kept.expect("it is there")
            .set_modified(yesterday)
            .expect("a time");
        assert!(removed.ids().is_empty(), "too old");
    }
}
