//! Terminal output of the screen, with a count of the bytes that the terminal accepted.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linerate_host::sys::terminal::put_back;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};

/// Maximum bytes of a write: any terminal with a reader accepts as many at once.
const PIECE: usize = 4096;

/// Terminal that the screen is drawn on.
pub(super) type Screen = Terminal<CrosstermBackend<BufWriter<Canvas>>>;

/// Writer to a duplicate of standard output: a write that blocks holds no lock of
/// `std::io::stdout`.
pub(super) struct Canvas {
    out: File,
    taken: Arc<AtomicU64>,
}

impl Canvas {
    /// Takes the terminal; the second value counts the bytes it accepts.
    ///
    /// # Errors
    /// Fails if the terminal mode cannot be changed.
    pub(super) fn on_terminal() -> io::Result<(Screen, Arc<AtomicU64>)> {
        let taken = Arc::new(AtomicU64::new(0));
        let canvas = Self {
            out: File::from(io::stdout().as_fd().try_clone_to_owned()?),
            taken: Arc::clone(&taken),
        };
        // A panic message must appear on the restored terminal.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            put_back();
            before(panic);
        }));
        enable_raw_mode()?;
        let mut canvas = BufWriter::with_capacity(PIECE, canvas);
        execute!(canvas, EnterAlternateScreen)?;
        Ok((Terminal::new(CrosstermBackend::new(canvas))?, taken))
    }
}

impl Write for Canvas {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(&bytes[..bytes.len().min(PIECE)])?;
        self.taken.fetch_add(count as u64, Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
