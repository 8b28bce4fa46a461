//! Updates for the full-screen display (`--tui`), in addition to events: current part of a series,
//! results, warnings.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::mpsc::Sender;

use linerate_metric::figure;
use linerate_metric::record::Record;
use linerate_port::{Cause, QueueTotals};

use crate::printer::Teller;

/// Update that only a screen shows.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "tui"), allow(dead_code))]
pub enum Scene {
    /// Title: the object of the measurement.
    Title(String),
    /// A part of a series starts.
    Part(Part),
    /// Result of a part, or another line of progress.
    Line(String),
    /// A warning, or a note on the figures.
    Remark(String),
    /// Number of frames forwarded between two times since the start.
    Frames {
        start_ns: u64,
        end_ns: u64,
        count: u64,
    },
    /// Packets lost so far, by loss point.
    Places(Vec<(String, u64)>),
    /// Runs use hosts of a lab: counters of this host do not apply.
    Elsewhere,
    /// Step that the user must do by hand and confirm with Enter; the sender signals the
    /// confirmation.
    Hands(String, Sender<()>),
}

impl Scene {
    /// Returns the line with the result of a run of a series: the main figure of its kind.
    pub fn came_to(name: &str, record: &Record) -> Self {
        let figure = figure::of_kind(record.kind);
        Self::Line(match figure.of(record) {
            Some(value) => format!("{name}: {}", figure::format(figure.name, value)),
            None => format!("{name}: no {}", figure.name),
        })
    }

    /// Returns the drops of ports so far, by queue and cause.
    pub fn drops(queues: impl IntoIterator<Item = (String, QueueTotals)>) -> Self {
        let by_cause = |(name, totals): (String, QueueTotals)| {
            let causes = Cause::ALL.iter();
            causes.map(move |&cause| {
                let place = format!("{name} ({})", cause.name());
                (place, totals.dropped(cause))
            })
        };
        Self::Places(queues.into_iter().flat_map(by_cause).collect())
    }
}

/// One part of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Name of such parts: `run`, `pair`.
    pub name: &'static str,
    /// Number of the part, from 1.
    pub number: usize,
    /// Total number of parts, if known.
    pub of: Option<usize>,
    /// The total is a maximum: a search may end earlier.
    pub at_most: bool,
    /// Settings of the part.
    pub words: String,
}

/// Maximum number of warnings that are repeated after the screen closes: the latest are the visible
/// ones.
const REMARKS: usize = 1_000;

/// Full-screen display of an output, with the warnings to repeat after it closes.
pub struct Screen {
    teller: Teller,
    remarks: RefCell<Remarks>,
}

/// Log of the latest warnings.
#[derive(Default)]
struct Remarks {
    kept: VecDeque<String>,
    /// Number of earlier warnings that were discarded.
    left_out: usize,
}

impl Remarks {
    fn push(&mut self, text: &str) {
        if self.kept.len() >= REMARKS {
            self.kept.pop_front();
            self.left_out += 1;
        }
        self.kept.push_back(text.to_owned());
    }

    #[cfg(feature = "tui")]
    fn all(self) -> Vec<String> {
        let earlier = (self.left_out > 0).then(|| {
            format!(
                "note: {} earlier warnings were shown on the screen only",
                self.left_out
            )
        });
        earlier.into_iter().chain(self.kept).collect()
    }
}

impl Screen {
    /// Creates the display that receives from this sender's queue.
    #[cfg(feature = "tui")]
    pub fn behind(teller: Teller) -> Self {
        Self {
            teller,
            remarks: RefCell::default(),
        }
    }

    pub fn teller(&self) -> &Teller {
        &self.teller
    }

    /// Shows a line of progress.
    pub fn line(&self, text: &str) {
        self.teller.show(Scene::Line(text.to_owned()));
    }

    /// Shows a warning, and keeps it for later.
    pub fn remark(&self, text: &str) {
        self.teller.show(Scene::Remark(text.to_owned()));
        self.remarks.borrow_mut().push(text);
    }

    /// Returns the warnings, to print them on standard error after the screen has closed.
    #[cfg(feature = "tui")]
    pub fn remarks(self) -> Vec<String> {
        self.remarks.into_inner().all()
    }
}

#[cfg(all(test, feature = "tui"))]
mod tests {
    use super::*;

    #[test]
    fn the_latest_remarks_are_said_again_and_the_others_counted() {
        let mut remarks = Remarks::default();
        for number in 0..REMARKS + 2 {
            remarks.push(&format!("remark {number}"));
        }
        let all = remarks.all();
        assert_eq!(all.len(), REMARKS + 1);
        assert_eq!(
            all[0],
            "note: 2 earlier warnings were shown on the screen only"
        );
        assert_eq!(all[1], "remark 2");
    }
}
