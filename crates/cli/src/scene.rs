//! What a screen (`--tui`) is told besides events: what of a series runs now, and what it came to.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::mpsc::Sender;

use linerate_metric::figure;
use linerate_metric::record::Record;
use linerate_port::{Cause, QueueTotals};

use crate::printer::Teller;

/// Something for a screen alone.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "tui"), allow(dead_code))]
pub enum Scene {
    /// What is measured, as its first line says it.
    Title(String),
    /// A part of a series begins.
    Part(Part),
    /// What a part came to, or what else is told line by line.
    Line(String),
    /// Something that speaks against the figures, or that somebody has to know.
    Remark(String),
    /// Frames that were moved from one moment to another, in nanoseconds since the start.
    Frames {
        /// From here on.
        start_ns: u64,
        /// To here.
        end_ns: u64,
        /// How many.
        count: u64,
    },
    /// Packets lost so far, by place.
    Places(Vec<(String, u64)>),
    /// Runs are on hosts of a lab: counters of this host are none of theirs.
    Elsewhere,
    /// Somebody has to do this, and then press Enter; the other end waits for the answer.
    Hands(String, Sender<()>),
}

impl Scene {
    /// What a run of a series came to, by the figure of its kind.
    pub fn came_to(name: &str, record: &Record) -> Self {
        let figure = figure::of_kind(record.kind);
        Self::Line(match figure.of(record) {
            Some(value) => format!("{name}: {}", figure::format(figure.name, value)),
            None => format!("{name}: no {}", figure.name),
        })
    }

    /// What ports dropped so far, by queue and cause.
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

/// A part of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// What such a part is called: `run`, `pair`.
    pub name: &'static str,
    /// Its number, from 1.
    pub number: usize,
    /// How many there are.
    pub of: Option<usize>,
    /// Whether there may be fewer: a search ends when it has found what it looks for.
    pub at_most: bool,
    /// What it is.
    pub words: String,
}

/// Remarks that are said again at most: who reads on a terminal reads the last of them.
const REMARKS: usize = 1_000;

/// The screen that an output is shown on, and what is to be said again when it is gone.
pub struct Screen {
    teller: Teller,
    remarks: RefCell<Remarks>,
}

/// The latest remarks.
#[derive(Default)]
struct Remarks {
    kept: VecDeque<String>,
    /// Earlier ones that are kept no longer.
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
                "note: {} earlier remarks were on the screen only",
                self.left_out
            )
        });
        earlier.into_iter().chain(self.kept).collect()
    }
}

impl Screen {
    /// A screen behind a teller.
    #[cfg(feature = "tui")]
    pub fn behind(teller: Teller) -> Self {
        Self {
            teller,
            remarks: RefCell::default(),
        }
    }

    /// Who tells it.
    pub fn teller(&self) -> &Teller {
        &self.teller
    }

    /// Shows a line of progress.
    pub fn line(&self, text: &str) {
        self.teller.show(Scene::Line(text.to_owned()));
    }

    /// Shows something that is no result, and keeps it for later.
    pub fn remark(&self, text: &str) {
        self.teller.show(Scene::Remark(text.to_owned()));
        self.remarks.borrow_mut().push(text);
    }

    /// What was remarked: the screen is gone, and standard error has to have it.
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
        assert_eq!(all[0], "note: 2 earlier remarks were on the screen only");
        assert_eq!(all[1], "remark 2");
    }
}
