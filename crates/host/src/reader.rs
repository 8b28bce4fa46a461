//! What a program says, read while it runs, and given up where somebody else holds the pipe after it.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of one read: what a pipe holds (pipe(7)).
const ROOM: usize = 64 << 10;

/// Bytes that are kept at most: more than any record takes, and what a machine has to spare.
const MOST: usize = 256 << 20;

/// The same of what is only told: where a program complains, the first lines say of what.
const MOST_TOLD: usize = 1 << 20;

/// Reads a pipe to its end on a thread of its own: a full pipe would stop the program.
///
/// A pipe ends with the last who holds it, which may be something that the program left behind. So nobody has to
/// wait for the end.
#[derive(Debug)]
pub struct Reader {
    heard: Arc<Mutex<Vec<u8>>>,
    /// Nothing comes here; its other side is gone at the end of the pipe.
    end: Receiver<()>,
}

impl Reader {
    /// Keeps all of it, as far as anybody can mean it: of a program that goes on and on its first 256 MiB. The rest is
    /// read all the same, for the program not to stop.
    pub fn all(pipe: impl Read + Send + 'static) -> Self {
        Self::first(pipe, MOST)
    }

    /// Keeps what is only told, as far as anybody reads it: its first MiB.
    pub fn told(pipe: impl Read + Send + 'static) -> Self {
        Self::first(pipe, MOST_TOLD)
    }

    /// Keeps its first so many bytes, and reads the rest.
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
                    // What came before an error is kept.
                    _ => return,
                }
            }
        })
    }

    /// Keeps what is made of each line, if anything is.
    pub fn lines(
        pipe: impl Read + Send + 'static,
        mut hear: impl FnMut(&str) -> Option<String> + Send + 'static,
    ) -> Self {
        Self::with(move |heard, _open| {
            // Whatever is in a line, the next one is read.
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

    /// Waits for the end so long; whether it is there.
    #[must_use]
    pub fn ends_within(&self, patience: Duration) -> bool {
        self.end.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }

    /// What was kept so far.
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

    /// Long enough for any machine.
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

    /// A command that prints without end filled 23 GB, until the kernel killed the search that had started it.
    #[test]
    fn who_goes_on_and_on_is_heard_and_not_kept() {
        let (pipe, mut held) = std::io::pipe().unwrap();
        let reader = Reader::first(pipe, ROOM + 3);
        let text = "0123456789".repeat(ROOM);
        // It does not stop at a full pipe.
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
