//! Terminal output of the screen, with a count of the bytes that the terminal accepted.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linerate_sys::terminal::restore;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};

/// Maximum bytes of a write: any terminal with a reader accepts as many at once.
const MAX_WRITE_BYTES: usize = 4096;

/// Terminal that the screen is drawn on.
pub(super) type ScreenTerminal = Terminal<CrosstermBackend<BufWriter<TerminalWriter>>>;

/// Writer to a duplicate of standard output: a write that blocks holds no lock of
/// `std::io::stdout`.
pub(super) struct TerminalWriter {
    out: File,
    written_bytes: Arc<AtomicU64>,
}

impl TerminalWriter {
    /// Takes the terminal; the second value counts the bytes it accepts.
    ///
    /// # Errors
    /// Fails if the terminal mode cannot be changed.
    pub(super) fn take_terminal() -> io::Result<(ScreenTerminal, Arc<AtomicU64>)> {
        let written_bytes = Arc::new(AtomicU64::new(0));
        let writer = Self {
            out: File::from(io::stdout().as_fd().try_clone_to_owned()?),
            written_bytes: Arc::clone(&written_bytes),
        };
        // A panic message must appear on the restored terminal.
        let previous_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            previous_hook(panic);
        }));
        enable_raw_mode()?;
        let mut writer = BufWriter::with_capacity(MAX_WRITE_BYTES, writer);
        execute!(writer, EnterAlternateScreen)?;
        Ok((Terminal::new(CrosstermBackend::new(writer))?, written_bytes))
    }
}

impl Write for TerminalWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(&bytes[..bytes.len().min(MAX_WRITE_BYTES)])?;
        self.written_bytes.fetch_add(count as u64, Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
