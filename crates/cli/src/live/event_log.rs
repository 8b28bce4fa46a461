//! Log of the events so far, for saving.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use linerate_metric::units::format_count;

/// Maximum bytes of kept lines: some hours of intervals or some hundred records, small enough for a
/// board.
const KEPT_BYTES: usize = 16 << 20;

/// Latest events as lines of JSON, as `--json-stream` prints them.
pub(super) struct Heard {
    lines: VecDeque<String>,
    bytes: usize,
    limit: usize,
    /// Number of earlier lines that were discarded.
    left_out: u64,
}

impl Default for Heard {
    fn default() -> Self {
        Self::up_to(KEPT_BYTES)
    }
}

impl Heard {
    fn up_to(limit: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            bytes: 0,
            limit,
            left_out: 0,
        }
    }

    /// Appends a line and discards the oldest ones above the limit; the latest line is always kept.
    pub(super) fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > self.limit && self.lines.len() > 1 {
            let oldest = self.lines.pop_front().unwrap_or_default();
            self.bytes -= oldest.len();
            self.left_out += 1;
        }
    }

    /// Writes the log to a file named after the current time, and returns a message with its name.
    pub(super) fn save(&self) -> String {
        let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        let path = PathBuf::from(format!("linerate-live-{now}.jsonl"));
        match self.write(&path) {
            Ok(()) => self.saved(&path),
            Err(error) => format!("cannot write {}: {error}", path.display()),
        }
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for line in &self.lines {
            writeln!(file, "{line}")?;
        }
        file.flush()
    }

    fn saved(&self, path: &Path) -> String {
        let count = self.lines.len() as u64;
        let earlier = match self.left_out {
            0 => String::new(),
            more => format!(" ({} earlier ones were discarded)", format_count(more)),
        };
        format!(
            "saved {} events to {}{earlier}",
            format_count(count),
            path.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept_up_to_a_limit_and_the_others_counted() {
        let mut heard = Heard::up_to(10);
        for line in ["aaaa", "bbbb", "cccc"] {
            heard.push(line.to_owned());
        }
        assert_eq!(heard.lines, ["bbbb", "cccc"]);
        assert_eq!(
            heard.saved(Path::new("x.jsonl")),
            "saved 2 events to x.jsonl (1 earlier ones were discarded)"
        );
        heard.push("one that is longer than all of it".to_owned());
        assert_eq!((heard.lines.len(), heard.left_out), (1, 3));
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("saved");
        heard.write(&path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text, "one that is longer than all of it\n");
    }
}
