//! Background reader for the output of a child program.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of one read: the capacity of a pipe (pipe(7)).
const READ_BYTES: usize = 64 << 10;

/// Most bytes of output that are kept: larger than any record, small enough for any machine.
const MAX_OUTPUT_BYTES: usize = 256 << 20;

/// Most bytes of diagnostics that are kept: the first lines of an error output name its cause.
const MAX_DIAGNOSTIC_BYTES: usize = 1 << 20;

/// Reads a pipe to its end on a thread of its own, because a full pipe would block the program.
///
/// A pipe ends when its last writer closes it. That may be a process that the program left behind,
/// so callers can stop waiting for the end.
#[derive(Debug)]
pub struct OutputReader {
    collected: Arc<Mutex<Vec<u8>>>,
    /// Carries no message; disconnects at the end of the pipe.
    closed: Receiver<()>,
}

impl OutputReader {
    /// Keeps the first 256 MiB of output. Reads and drops the rest, so that the program does not
    /// block.
    pub fn read_output(pipe: impl Read + Send + 'static) -> Self {
        Self::read_limited(pipe, MAX_OUTPUT_BYTES)
    }

    /// Keeps the first MiB of diagnostic output, and reads and drops the rest.
    pub fn read_diagnostics(pipe: impl Read + Send + 'static) -> Self {
        Self::read_limited(pipe, MAX_DIAGNOSTIC_BYTES)
    }

    /// Keeps the first `limit_bytes` bytes, and reads and drops the rest.
    fn read_limited(mut pipe: impl Read + Send + 'static, limit_bytes: usize) -> Self {
        Self::spawn(move |collected, _open| {
            let mut buffer = vec![0; READ_BYTES];
            let mut remaining = limit_bytes;
            loop {
                match pipe.read(&mut buffer) {
                    Ok(size @ 1..) => {
                        let kept_bytes = size.min(remaining);
                        remaining -= kept_bytes;
                        append(&collected, &buffer[..kept_bytes]);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Bytes received before an error are kept.
                    _ => return,
                }
            }
        })
    }

    /// Calls `map_line` for each line and keeps the text it returns.
    pub fn read_lines(
        pipe: impl Read + Send + 'static,
        mut map_line: impl FnMut(&str) -> Option<String> + Send + 'static,
    ) -> Self {
        Self::spawn(move |collected, _open| {
            // Invalid UTF-8 is replaced: a line never ends the loop.
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                if let Some(text) = map_line(&String::from_utf8_lossy(&line)) {
                    append(&collected, text.as_bytes());
                }
            }
        })
    }

    fn spawn(read: impl FnOnce(Arc<Mutex<Vec<u8>>>, Sender<()>) + Send + 'static) -> Self {
        let collected = Arc::default();
        let (open, closed) = mpsc::channel();
        let shared = Arc::clone(&collected);
        thread::spawn(move || read(shared, open));
        Self { collected, closed }
    }

    /// Waits for the end of the pipe at most `timeout`; returns whether it was reached.
    #[must_use]
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.closed.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }

    /// Returns the text kept so far.
    #[must_use]
    pub fn text(&self) -> String {
        let collected = self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&collected).into_owned()
    }
}

fn append(collected: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
    collected.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn text_is_available_while_the_pipe_is_open() {
        let (pipe, mut writer) = std::io::pipe().unwrap();
        let (line_sender, line_receiver) = mpsc::channel();
        let reader = OutputReader::read_lines(pipe, move |line| {
            let _ = line_sender.send(());
            (line != "a").then(|| format!("[{line}]"))
        });
        writer.write_all(b"a\n\xff\nc").unwrap();
        line_receiver.recv_timeout(TIMEOUT).unwrap();
        line_receiver.recv_timeout(TIMEOUT).unwrap();
        assert!(!reader.wait_closed(Duration::ZERO));
        drop(writer);
        assert!(reader.wait_closed(TIMEOUT) && reader.wait_closed(Duration::ZERO));
        assert_eq!(reader.text(), "[\u{fffd}][c]");
    }

    /// Regression: a command that printed without end filled 23 GB of memory.
    #[test]
    fn endless_output_is_read_and_not_kept() {
        let (pipe, mut writer) = std::io::pipe().unwrap();
        let reader = OutputReader::read_limited(pipe, READ_BYTES + 3);
        let text = "0123456789".repeat(READ_BYTES);
        // The reader goes on after its limit, so the writer is not blocked.
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        assert!(reader.wait_closed(TIMEOUT));
        assert_eq!(reader.text(), text[..READ_BYTES + 3]);
    }

    #[test]
    fn full_output_is_kept() {
        let (pipe, mut writer) = std::io::pipe().unwrap();
        let reader = OutputReader::read_output(pipe);
        let text = "0123456789".repeat(READ_BYTES / 5);
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        assert!(reader.wait_closed(TIMEOUT));
        assert_eq!(reader.text(), text);
    }
}
