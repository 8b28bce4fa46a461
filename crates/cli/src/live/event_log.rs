//! Log of the events so far, for saving.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use linerate_stats::units::format_count;

/// Maximum bytes of kept lines: some hours of intervals or some hundred records, small enough for a
/// board.
const MAX_LOG_BYTES: usize = 16 << 20;

/// Latest events as lines of JSON, as `--json-stream` prints them.
pub(super) struct EventLog {
    lines: VecDeque<String>,
    bytes: usize,
    limit_bytes: usize,
    /// Number of earlier lines that were discarded.
    dropped: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        Self::with_limit(MAX_LOG_BYTES)
    }
}

impl EventLog {
    fn with_limit(limit: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            bytes: 0,
            limit_bytes: limit,
            dropped: 0,
        }
    }

    /// Appends a line and discards the oldest ones above the limit; the latest line is always kept.
    pub(super) fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > self.limit_bytes && self.lines.len() > 1 {
            let oldest = self.lines.pop_front().unwrap_or_default();
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
    }

    /// Writes the log to a file named after the current time, and returns a message with its name.
    pub(super) fn save(&self) -> String {
        let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
        let path = PathBuf::from(format!("linerate-live-{now}.jsonl"));
        match self.write(&path) {
            Ok(()) => self.saved_message(&path),
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

    fn saved_message(&self, path: &Path) -> String {
        let count = self.lines.len() as u64;
        let dropped = match self.dropped {
            0 => String::new(),
            more => format!(" ({} earlier ones were discarded)", format_count(more)),
        };
        format!(
            "saved {} events to {}{dropped}",
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
        let mut log = EventLog::with_limit(10);
        for line in ["aaaa", "bbbb", "cccc"] {
            log.push(line.to_owned());
        }
        assert_eq!(log.lines, ["bbbb", "cccc"]);
        assert_eq!(
            log.saved_message(Path::new("x.jsonl")),
            "saved 2 events to x.jsonl (1 earlier ones were discarded)"
        );
        log.push("one that is longer than all of it".to_owned());
        assert_eq!((log.lines.len(), log.dropped), (1, 3));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        log.write(&path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text, "one that is longer than all of it\n");
    }
}
