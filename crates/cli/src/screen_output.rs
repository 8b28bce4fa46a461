//! Full-screen display (`--tui`) as an output: sends lines and warnings to the screen, and keeps
//! the warnings until it closes.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::event_queue::EventSender;
use crate::ui_update::UiUpdate;

/// Maximum number of warnings that are repeated after the screen closes: the latest are the visible
/// ones.
const MAX_WARNINGS: usize = 1_000;

/// Full-screen display of an output, with the warnings to repeat after it closes.
pub struct ScreenOutput {
    sender: EventSender,
    warnings: RefCell<WarningLog>,
}

/// Log of the latest warnings.
#[derive(Default)]
struct WarningLog {
    latest: VecDeque<String>,
    /// Number of earlier warnings that were discarded.
    dropped: usize,
}

impl WarningLog {
    fn push(&mut self, text: &str) {
        if self.latest.len() >= MAX_WARNINGS {
            self.latest.pop_front();
            self.dropped += 1;
        }
        self.latest.push_back(text.to_owned());
    }

    #[cfg(feature = "tui")]
    fn into_lines(self) -> Vec<String> {
        let note = (self.dropped > 0).then(|| {
            format!(
                "note: {} earlier warnings were shown on the screen only",
                self.dropped
            )
        });
        note.into_iter().chain(self.latest).collect()
    }
}

impl ScreenOutput {
    /// Creates the display that receives from this sender's queue.
    #[cfg(feature = "tui")]
    pub fn new(sender: EventSender) -> Self {
        Self {
            sender,
            warnings: RefCell::default(),
        }
    }

    pub fn sender(&self) -> &EventSender {
        &self.sender
    }

    /// Shows a line of progress.
    pub fn show_line(&self, text: &str) {
        self.sender.show(UiUpdate::Line(text.to_owned()));
    }

    /// Shows a warning, and keeps it for later.
    pub fn warn(&self, text: &str) {
        self.sender.show(UiUpdate::Warning(text.to_owned()));
        self.warnings.borrow_mut().push(text);
    }

    /// Returns the warnings, to print them on standard error after the screen has closed.
    #[cfg(feature = "tui")]
    pub fn into_warnings(self) -> Vec<String> {
        self.warnings.into_inner().into_lines()
    }
}

#[cfg(all(test, feature = "tui"))]
mod tests {
    use super::*;

    #[test]
    fn the_latest_warnings_are_repeated_and_the_others_counted() {
        let mut warnings = WarningLog::default();
        for number in 0..MAX_WARNINGS + 2 {
            warnings.push(&format!("remark {number}"));
        }
        let all = warnings.into_lines();
        assert_eq!(all.len(), MAX_WARNINGS + 1);
        assert_eq!(
            all[0],
            "note: 2 earlier warnings were shown on the screen only"
        );
        assert_eq!(all[1], "remark 2");
    }
}
