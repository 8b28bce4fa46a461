//! Updates for the full-screen display (`--tui`), in addition to events: current part of a series,
//! results, warnings.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::mpsc::Sender;

use linerate_port::{DropCause, QueueTotals};
use linerate_record::figure;
use linerate_record::record::Record;

use crate::printer::EventSender;

/// Update that only a screen shows.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "tui"), allow(dead_code))]
pub enum UiUpdate {
    /// Title: the object of the measurement.
    Title(String),
    /// A part of a series starts.
    PartStarted(SeriesPart),
    /// Result of a part, or another line of progress.
    Line(String),
    /// A warning, or a note on the figures.
    Warning(String),
    /// Number of frames forwarded between two times since the start.
    Frames {
        start_ns: u64,
        end_ns: u64,
        count: u64,
    },
    /// Packets lost so far, by loss point.
    LossCounters(Vec<(String, u64)>),
    /// Runs use hosts of a lab: counters of this host do not apply.
    LabHosts,
    /// Step that the user must do by hand and confirm with Enter; the sender signals the
    /// confirmation.
    ManualStep(String, Sender<()>),
}

impl UiUpdate {
    /// Returns the line with the result of a run of a series: the main figure of its kind.
    pub fn part_result(name: &str, record: &Record) -> Self {
        let figure = figure::default_for(record.kind);
        Self::Line(match figure.value_in(record) {
            Some(value) => format!("{name}: {}", figure::format(figure.name, value)),
            None => format!("{name}: no {}", figure.name),
        })
    }

    /// Returns the drops of ports so far, by queue and cause.
    pub fn port_drops(queues: impl IntoIterator<Item = (String, QueueTotals)>) -> Self {
        let by_cause = |(name, totals): (String, QueueTotals)| {
            let causes = DropCause::ALL.iter();
            causes.map(move |&cause| {
                let loss_point = format!("{name} ({})", cause.name());
                (loss_point, totals.drops_by(cause))
            })
        };
        Self::LossCounters(queues.into_iter().flat_map(by_cause).collect())
    }
}

/// One part of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesPart {
    /// Name of such parts: `run`, `pair`.
    pub name: &'static str,
    /// Number of the part, from 1.
    pub number: usize,
    /// Total number of parts, if known.
    pub total: Option<usize>,
    /// The total is a maximum: a search may end earlier.
    pub at_most: bool,
    /// Settings of the part.
    pub settings: String,
}

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
