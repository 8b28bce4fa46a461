//! Small files of /proc, /sys and /etc below a root directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// File tree to read from: the machine's own, or one that a test laid out.
#[derive(Clone, Debug)]
pub struct SystemFiles {
    root: PathBuf,
}

impl SystemFiles {
    /// The machine's own files.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::below("/")
    }

    /// The files below `root`.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns whether it is the machine's own tree.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the location in this tree of an absolute `path` of the machine.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns a file's text without surrounding white space; `None` when unreadable or empty.
    #[must_use]
    pub fn read_text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Returns the number in a file that holds one number.
    #[must_use]
    pub fn read_number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.read_text(path)?.parse().ok()
    }

    /// Returns the sorted names in a directory; empty when it is unreadable.
    #[must_use]
    pub fn list_names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Returns whether such a file or directory exists.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns the last component of a symbolic link's target.
    #[must_use]
    pub fn link_target_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(Path::new(&target).file_name()?.to_str()?.to_owned())
    }
}

/// Lays out `files` below a fresh directory.
#[cfg(test)]
pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, SystemFiles) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tree = SystemFiles::below(directory.path());
    for (path, text) in files {
        let path = tree.path(path);
        fs::create_dir_all(path.parent().expect("files have a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    (directory, tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_and_empty_are_absent() {
        let (_directory, files) = tree(&[
            ("/proc/number", "42\n"),
            ("/proc/empty", "\n"),
            ("/proc/word", "abc"),
        ]);
        assert_eq!(files.read_number::<u32>("/proc/number"), Some(42));
        assert_eq!(files.read_text("/proc/empty"), None);
        assert_eq!(files.read_number::<u32>("/proc/word"), None);
        assert_eq!(files.read_text("/proc/none"), None);
        assert_eq!(files.list_names("/proc"), ["empty", "number", "word"]);
        assert!(files.list_names("/none").is_empty());
    }
}
