//! Background reader for the output of a child program.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of one read: the capacity of a pipe (pipe(7)).
const ROOM: usize = 64 << 10;

/// Most bytes of output that are kept: larger than any record, small enough for any machine.
const MOST: usize = 256 << 20;

/// Most bytes of diagnostics that are kept: the first lines of an error output name its cause.
const MOST_TOLD: usize = 1 << 20;

/// Reads a pipe to its end on a thread of its own, because a full pipe would block the program.
///
/// A pipe ends when its last writer closes it. That may be a process that the program left behind,
/// so callers can stop waiting for the end.
#[derive(Debug)]
pub struct Reader {
    heard: Arc<Mutex<Vec<u8>>>,
    /// Carries no message; disconnects at the end of the pipe.
    end: Receiver<()>,
}

impl Reader {
    /// Keeps the first 256 MiB of output. Reads and drops the rest, so that the program does not
    /// block.
    pub fn all(pipe: impl Read + Send + 'static) -> Self {
        Self::first(pipe, MOST)
    }

    /// Keeps the first MiB of diagnostic output, and reads and drops the rest.
    pub fn told(pipe: impl Read + Send + 'static) -> Self {
        Self::first(pipe, MOST_TOLD)
    }

    /// Keeps the first `most` bytes, and reads and drops the rest.
    fn first(mut pipe: impl Read + Send + 'static, most: usize) -> Self {
        Self::with(move |heard, _open| {
            let mut room = vec![0; ROOM];
            let mut left = most;
            loop {
                match pipe.read(&mut room) {
                    Ok(size @ 1..) => {
                        let kept = size.min(left);
                        left -= kept;
                        keep(&heard, &room[..kept]);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Bytes received before an error are kept.
                    _ => return,
                }
            }
        })
    }

    /// Calls `hear` for each line and keeps the text it returns.
    pub fn lines(
        pipe: impl Read + Send + 'static,
        mut hear: impl FnMut(&str) -> Option<String> + Send + 'static,
    ) -> Self {
        Self::with(move |heard, _open| {
            // Invalid UTF-8 is replaced: a line never ends the loop.
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                if let Some(text) = hear(&String::from_utf8_lossy(&line)) {
                    keep(&heard, text.as_bytes());
                }
            }
        })
    }

    fn with(read: impl FnOnce(Arc<Mutex<Vec<u8>>>, Sender<()>) + Send + 'static) -> Self {
        let heard = Arc::default();
        let (open, end) = mpsc::channel();
        let kept = Arc::clone(&heard);
        thread::spawn(move || read(kept, open));
        Self { heard, end }
    }

    /// Waits for the end of the pipe at most `patience`; returns whether it was reached.
    #[must_use]
    pub fn ends_within(&self, patience: Duration) -> bool {
        self.end.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }

    /// Returns the text kept so far.
    #[must_use]
    pub fn text(&self) -> String {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&heard).into_owned()
    }
}

fn keep(heard: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    heard.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_was_said_is_there_though_the_pipe_stays_open() {
        let (pipe, mut held) = std::io::pipe().unwrap();
        let (told, tells) = mpsc::channel();
        let reader = Reader::lines(pipe, move |line| {
            let _ = told.send(());
            (line != "a").then(|| format!("[{line}]"))
        });
        held.write_all(b"a\n\xff\nc").unwrap();
        tells.recv_timeout(LONG).unwrap();
        tells.recv_timeout(LONG).unwrap();
        assert!(!reader.ends_within(Duration::ZERO));
        drop(held);
        assert!(reader.ends_within(LONG) && reader.ends_within(Duration::ZERO));
        assert_eq!(reader.text(), "[\u{fffd}][c]");
    }

    /// Regression: a command that printed without end filled 23 GB of memory.
    #[test]
    fn who_goes_on_and_on_is_heard_and_not_kept() {
        let (pipe, mut held) = std::io::pipe().unwrap();
        let reader = Reader::first(pipe, ROOM + 3);
        let text = "0123456789".repeat(ROOM);
        // The reader goes on after its limit, so the writer is not blocked.
        held.write_all(text.as_bytes()).unwrap();
        drop(held);
        assert!(reader.ends_within(LONG));
        assert_eq!(reader.text(), text[..ROOM + 3]);
    }

    #[test]
    fn all_of_it_is_kept() {
        let (pipe, mut held) = std::io::pipe().unwrap();
        let reader = Reader::all(pipe);
        let text = "0123456789".repeat(ROOM / 5);
        held.write_all(text.as_bytes()).unwrap();
        drop(held);
        assert!(reader.ends_within(LONG));
        assert_eq!(reader.text(), text);
    }
}
